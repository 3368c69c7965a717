#!/bin/sh
# SPDX-License-Identifier: MIT
# valgrind.sh VALGRIND SUPPRESSIONS PROGRAM [ARGUMENT]...: a test under memcheck: memory that is not the program's, that has no value yet, or
# that is lost for good. A test that is a script runs as it is: the interpreter and its children are
# not ours.
valgrind=$1 suppressions=$2
shift 2
case ${1##*/} in
sh | *.sh | python*) exec "$@" ;;
esac
# Fair, or a thread that asks in a loop keeps the others from running for minutes.
exec "$valgrind" --quiet --fair-sched=try --error-exitcode=99 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
	--suppressions="$suppressions" "$@"

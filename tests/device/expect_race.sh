#!/bin/sh
# SPDX-License-Identifier: MIT
# expect_race.sh FILE PROGRAM [ARG...]: passes if ThreadSanitizer ends the program for a data race with FILE among the frames.
file=$1
shift
out=$(TSAN_OPTIONS="exitcode=66 halt_on_error=1" "$@" 2>&1)
rc=$?
if [ $rc -eq 66 ] && echo "$out" | grep -q "WARNING: ThreadSanitizer: data race" && echo "$out" | grep "#[0-9]* .*$file:"; then
	exit 0
fi
echo "$out"
echo "exit code $rc; expected 66 and a data race in $file"
exit 1

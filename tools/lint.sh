#!/bin/sh
# SPDX-License-Identifier: MIT
# clang-tidy (.clang-tidy) and cppcheck over src/, tools/ and include/, as they are built for the sim. Fails if either has something to
# say, or with 77 if they cannot be had. Both change their minds from version to version: only those of Debian 12 are asked, others with
# LINT_ANY_VERSION=1. What is right in spite of them is marked where it stands, with a reason.
set -u
cd "$(dirname "$0")/.." || exit
. tools/setup.sh

dir=${LINT_BUILD:-build-lint}
if ! need_packages clang-tidy cppcheck; then
	echo "lint: neither here nor to be installed: clang-tidy, cppcheck"
	exit 77
fi
tidy=$(clang-tidy --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
check=$(cppcheck --version | sed 's/[^0-9.]//g')
if [ "$tidy $check" != "14 2.10" ] && [ "${LINT_ANY_VERSION:-0}" = 0 ]; then
	echo "lint: made for clang-tidy 14 and cppcheck 2.10, here are $tidy and $check; LINT_ANY_VERSION=1 runs them all the same"
	exit 77
fi
need_build_tools || exit 1
configure "$dir" -Dcuda=disabled -Dtests=false || exit 1
found=$dir/lint.log

# What clang-tidy writes to stderr is how much it leaves out; it is of interest only if something is wrong.
# shellcheck disable=SC2016
python3 -c 'import json, os, sys
for c in json.load(open(sys.argv[1] + "/compile_commands.json")):
    print(os.path.abspath(os.path.join(c["directory"], c["file"])))' "$dir" | sort -u | grep '\.cc\?$' |
	nice xargs -P "$(nproc)" -n 1 sh -c 'clang-tidy -p "$0" --quiet "$1" 2>"$0/lint-$$.err" || {
		code=$?
		grep -v "warnings\? \(generated\|treated\)" "$0/lint-$$.err"
		echo "lint: clang-tidy ended with $code: $1"
		exit 1
	}
	rm -f "$0/lint-$$.err"' "$dir" >"$found" 2>&1
status=$?
nice cppcheck -j "$(nproc)" --quiet --error-exitcode=1 --enable=warning,performance,portability --inline-suppr \
	--suppressions-list=tools/cppcheck.txt --std=c17 --library=posix -D_GNU_SOURCE -Isrc -Iinclude src tools include >>"$found" 2>&1 || status=1
rm -f "$dir"/lint-*.err
[ "$status" = 0 ] || cat "$found"
exit "$status"

#!/bin/sh
# SPDX-License-Identifier: MIT
# What holds of the sources without running them: layers, words, tables of the rows, format, figures in the docs, types of the Python
# package, and clang-tidy (.clang-tidy) on src/ and tools/ as they are built for the sim. Each step prints its name, and runs even if others
# fail; the exit status is 0 if all are silent, 77 if a tool cannot be installed, else 1. The tools' findings change from version to version:
# tools/lint.txt has the versions that come from PyPI. What is right in spite of them is marked where it stands, with a reason. `tools/lint.sh
# quick` leaves clang-tidy out. LINT_DEEP=1: clang-tidy follows the paths through functions, too, and cppcheck (that of Debian 12) reads all.
set -u
cd "$(dirname "$0")/.." || exit
. tools/setup.sh

status=0
broken() {
	echo "lint: $*"
	status=1
}

python3 tools/lint_layers.py || broken "layers: a folder reaches for what stands above it"
python3 tools/lint_words.py || broken "words: docs/glossary.md says what to write"
python3 tools/lint_defs.py || broken "rows: tools/lint_defs.py --write"
python3 tools/results.py --check || broken "results: figures come from docs/results, by tools/results.py"

if ! need_lint_tools; then
	echo "lint: neither here nor to be installed: $(grep -v '^#' tools/lint.txt | tr '\n' ' ')"
	exit 77
fi
[ -n "$(git ls-files)" ] || broken "files: git names none, so nothing of the sources is looked at (git status says why)"
# shellcheck disable=SC2046
clang-format --dry-run --Werror $(git ls-files | grep -E '\.(c|h|cc|cu)$') || broken "format: run tools/format.sh"
git ls-files | grep -E '\.(c|h|cc|cu|def|S)$' | xargs awk '
	{ line = $0; while ((at = index(line, "\t")) > 0) line = substr(line, 1, at - 1) substr("        ", 1, 8 - (at - 1) % 8) substr(line, at + 1) }
	length(line) > 120 { printf "%s:%d: %d columns\n", FILENAME, FNR, length(line); found = 1 }
	END { exit found }' || broken "lines: at most 120 columns"
ruff check --quiet || broken "python: ruff"
ruff format --quiet --diff || broken "python format: run tools/format.sh"
# The package with the syntax and the standard library of the oldest and the newest Python that it says it runs on: what both have, and no
# line asks for the version, those between have, too.
pythons="3.10 3.14"
! grep -rn 'sys.version_info' python || pythons="3.10 3.11 3.12 3.13 3.14"
[ "${1:-}" != quick ] || pythons=3.10
for python in $pythons; do
	mypy --no-error-summary --python-version "$python" || broken "python: mypy for Python $python"
done
! grep -rnE --include='*.c' --include='*.cc' '\bgetenv\(' src | grep -vE '^src/device/sim/|_getenv\(' ||
	broken "getenv: shunt_env() or secure_getenv() instead; a setuid program takes nothing from who started it"
# A forked child closes its copies of what is noted, and whatever else has the number by then (src/base/fd.h).
! grep -rnE --include='*.c' --include='*.h' --include='*.cc' \
	'\b(socket|socketpair|accept4?|epoll_create1?|eventfd|timerfd_create|signalfd|memfd_create|pipe2?|inotify_init1?|userfaultfd)\(|pidfd_open,|F_DUPFD' src |
	grep -vE 'SHUNT_FD\(|^src/device/cuda/gpu_cuda' || broken "descriptors: SHUNT_FD(...) makes them, so that no child keeps a copy"
! grep -rnE --include='*.c' --include='*.h' --include='*.cc' '\bclose\(' src |
	grep -vE '[.>]close\(|^src/base/(fd|files|log|env|host|os|json|no_stdin)\.c:|^src/(shim/real/real|comm/observe/dump|device/sim/sim)\.c' ||
	broken "descriptors: shunt_close_fd() closes them; a file that is opened, read and closed at once is listed in tools/lint.sh"
! grep -rnE '^_?[a-z_]+ *(: *[^=]*)?= *threading\.(Lock|RLock|Condition)\(' python/libshunt | grep -v '/_fork.py:' ||
	broken "locks: _fork.Lock() is free in a forked child"
# Tests wait for conditions and gates; a test that sleeps nevertheless gives the reason.
! grep -rnE --include='*.c' --include='*.h' --include='*.cc' '\b(usleep|nanosleep|clock_nanosleep|sleep|sleep_for)\(' tests |
	grep -v '^tests/support/pause.h:' || broken "sleeps: tests/support/pause.h has the only one, and the reasons"
! grep -rnE --include='*.sh' --include='*.py' '(^|[;&|(]|\bthen|\bdo)[[:space:]]*sleep [0-9$]|\btime\.sleep\(' tests | grep -v '# pause: ' ||
	broken "sleeps: a test's ends with a comment: # pause: poll, late or grace, as in tests/support/pause.h; on GPUs also middle"
[ "${1:-}" != quick ] || exit "$status"

dir=${LINT_BUILD:-build-lint} # LINT_BUILD: one that is set up already
if [ -z "${LINT_BUILD:-}" ]; then
	need_build_tools || exit 1
	configure "$dir" -Dcuda=disabled -Dtests=disabled || exit 1
fi
found=$dir/lint.log
checks=.clang-tidy
if [ -z "${LINT_DEEP:-}" ]; then
	checks=$dir/clang-tidy-brief
	sed '/^  -\{0,1\}clang-analyzer-/d' .clang-tidy >"$checks"
fi

# Tests, and sources that only a build makes, are left out; the kernels for the sim are not. What clang-tidy writes to stderr is how much it
# leaves out; it is of interest only if something is wrong.
# shellcheck disable=SC2016
python3 -c 'import json, os, sys
for c in json.load(open(sys.argv[1] + "/compile_commands.json")):
    path = os.path.abspath(os.path.join(c["directory"], c["file"]))
    folder = os.path.relpath(path).split("/")[0]
    if os.path.exists(path) and (folder in ("src", "tools") or path.endswith(".sim.cc")):
        print(path)' "$dir" | sort -u | grep '\.cc\?$' |
	nice xargs -P "$(nproc)" -n 8 sh -c 'dir=$0 checks=$1 && shift
	clang-tidy -p "$dir" --config-file="$checks" --quiet --extra-arg=-DSHUNT_FEW_ROWS "$@" 2>"$dir/lint-$$.err" || {
		code=$?
		grep -v -e "warnings\? \(generated\|treated\)" -e "Processing file" "$dir/lint-$$.err"
		echo "lint: clang-tidy ended with $code: $*"
		exit 1
	}
	rm -f "$dir/lint-$$.err"' "$dir" "$checks" >"$found" 2>&1 || {
	cat "$found"
	broken "clang-tidy"
}
rm -f "$dir"/lint-*.err
[ -n "${LINT_DEEP:-}" ] || exit "$status"

if ! need_packages cppcheck; then
	echo "lint: neither here nor to be installed: cppcheck"
	exit 77
fi
check=$(cppcheck --version | sed 's/[^0-9.]//g')
if [ "$check" != 2.10 ] && [ "${LINT_ANY_VERSION:-0}" = 0 ]; then
	echo "lint: made for cppcheck 2.10, here is $check; LINT_ANY_VERSION=1 runs it all the same"
	exit 77
fi
nice cppcheck -j "$(nproc)" --quiet --error-exitcode=1 --enable=warning,performance,portability --inline-suppr \
	--suppressions-list=tools/cppcheck.txt --std=c17 --library=posix -D_GNU_SOURCE -I. -Isrc -Iinclude src tools include >"$found" 2>&1 || {
	cat "$found"
	broken "cppcheck"
}
exit "$status"

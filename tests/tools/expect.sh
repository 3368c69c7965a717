# SPDX-License-Identifier: MIT
# Sourced by the tests of the command, with $shunt and $mock set: a clean environment, a scratch folder $dir, and expect.
. "$(dirname "$0")/../support/own.sh"
SHUNT_LIB=$mock
export SHUNT_LIB

# A command's lines of progress, and the end that SIGTERM makes: its status and its messages. $1: how the lines begin.
ended_early() {
	lines=$1
	shift
	"$@" --progress 1 >/dev/null 2>"$dir/early" &
	early=$!
	until grep -q "^\[$lines" "$dir/early"; do
		kill -0 $early || return 1
		sleep 0.1 # pause: poll
	done
	kill -TERM $early
	wait $early
	early=$?
	cat "$dir/early"
	return $early
}

# expect NAME STATUS PATTERN COMMAND...: exit status, and a line of stdout or stderr that matches.
expect() {
	name=$1 status=$2 pattern=$3
	shift 3
	"$@" >"$dir/out" 2>&1 </dev/null
	got=$?
	[ "$got" = "$status" ] && grep -Eq -e "$pattern" "$dir/out"
	verdict "$name" "status $got, wanted $status and \"$pattern\" in:"
}

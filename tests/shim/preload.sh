#!/bin/sh
# SPDX-License-Identifier: MIT
# preload.sh LIBRARY CLIENT FAKE: the ways in. LIBRARY is ours, FAKE a libnccl.so.2 that CLIENT is linked with.
set -u
lib=$1 client=$2 fake_dir=$(dirname "$3")
bad=0
. "$(dirname "$0")/../support/own.sh"
check() { # name, expected, actual
	[ "$2" = "$3" ] && return
	echo "$1: expected '$2', got '$3'"
	bad=1
}
export LD_LIBRARY_PATH="$fake_dir"
check "linked, plain" nccl "$("$client" linked)"
check "dlopen, plain" nccl "$("$client" dlopen)"
check "linked, preloaded" shunt "$(LD_PRELOAD=$lib "$client" linked)"
check "dlopen, preloaded" shunt "$(LD_PRELOAD=$lib "$client" dlopen)"
check "standalone, preloaded" shunt "$(SHUNT_NCCL_LIB=none LD_PRELOAD=$lib "$client" linked 2>/dev/null)"
links=$dir/links
mkdir "$links"
ln -s "$lib" "$links/libnccl.so.2"
check "linked, in NCCL's place" shunt "$(LD_LIBRARY_PATH=$links:$fake_dir "$client" linked)"
check "dlopen, in NCCL's place" shunt "$(LD_LIBRARY_PATH=$links:$fake_dir "$client" dlopen)"

# DeepEP demands that exactly one file called libnccl is mapped, and compares it with the one that it was built with.
check "one libnccl after a call, preloaded" "$(realpath "$3")" "$(LD_PRELOAD=$lib "$client" maps)"

# A program that never calls NCCL must not notice.
out=$(LD_PRELOAD=$lib /bin/true 2>&1)
check "/bin/true" "0 " "$? $out"
if command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null; then
	n=$(LD_PRELOAD= strace -f -e trace=socket,clone,clone3 -E LD_PRELOAD="$lib" /bin/true 2>&1 | grep -cE 'socket\(|clone')
	check "/bin/true makes no socket and no thread" 0 "$n"
fi
exit $bad

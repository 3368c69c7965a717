#!/bin/sh
# SPDX-License-Identifier: MIT
# install.sh BUILD CLIENT PKG_CONFIG MESON PYTHON NCCL (CC and CXX in the environment): an installation in a staging directory is
# complete, can be built against, runs, and leaves alone the programs that do not use NCCL.
set -u
build=$1 client=$2 pkg_config=$3 meson=$4 python=$5 nccl=$6
CC=${CC:-cc} CXX=${CXX:-c++}
bad=0
complain() {
	echo "not ok: $*"
	bad=1
}
check() { # what, expected, actual
	[ "$2" = "$3" ] || complain "$1: expected '$2', got '$3'"
}

. "$(dirname "$0")/../support/own.sh"
work=$dir
stage=$work/stage
unset DESTDIR LD_LIBRARY_PATH
"$meson" install -C "$build" --no-rebuild --destdir "$stage" >"$work/log" 2>&1 || {
	cat "$work/log"
	exit 1
}

# What is there.
lib=$(find "$stage" -name libshunt.so)
[ -f "$lib" ] && [ ! -L "$lib" ] || {
	complain "no lib/libshunt.so"
	exit 1
}
libdir=$(dirname "$lib")
for link in libnccl.so.2 libnccl.so; do
	[ -L "$libdir/shunt/$link" ] || complain "tests/support/shunt/$link is not a link"
	check "tests/support/shunt/$link" "$(realpath "$lib")" "$(realpath "$libdir/shunt/$link")"
done
for link in "$libdir/libshunt_api.so" "$libdir/shunt/libshunt_api.so.0"; do
	check "$link" "$(realpath "$libdir")/libshunt_api.so.0" "$(realpath "$link")"
done
include=$(dirname "$(find "$stage" -path '*/include/shunt' -type d)")
for header in shunt device; do
	[ -f "$include/shunt/$header.h" ] || complain "no include/shunt/$header.h"
	printf '#include <shunt/%s.h>\nint main(void) { return 0; }\n' "$header" >"$work/alone.c"
	cp "$work/alone.c" "$work/alone.cc"
	strict="-Wall -Wextra -pedantic -Werror -I$include -c -o $work/alone.o"
	$CC -std=c99 $strict "$work/alone.c" || complain "$header.h alone in C"
	$CXX -std=c++11 $strict "$work/alone.cc" || complain "$header.h alone in C++"
done

# The pkg-config file. PKG_CONFIG_LIBDIR: this installation and no other.
export PKG_CONFIG_SYSROOT_DIR="$stage" PKG_CONFIG_LIBDIR="$libdir/pkgconfig"
unset PKG_CONFIG_PATH
flags=$("$pkg_config" --cflags --libs shunt) || complain "pkg-config does not know shunt"
shunt=$(find "$stage" -path '*/bin/shunt')
# shellcheck disable=SC2086
if $CC -o "$work/client" "$client" $flags; then
	export SHUNT_DEVICE=sim SHUNT_SIM_DEVICES=3
	expected="$("$pkg_config" --modversion shunt) sim"
	check "a client that links it" "$expected" "$(LD_LIBRARY_PATH=$libdir "$work/client")"
	# The loader finds an NCCL first.
	check "a client beside an NCCL" "$expected" "$(LD_LIBRARY_PATH=$(dirname "$nccl"):$libdir "$work/client")"
	check "a client, preloaded" "$expected" "$(LD_PRELOAD=$lib LD_LIBRARY_PATH=$libdir "$work/client")"
	[ -z "$shunt" ] || check "a client under shunt run" "$expected" "$("$shunt" run -- "$work/client")"
	check "what a client needs" "libshunt_api.so.0" "$(readelf -d "$work/client" | sed -n 's/.*NEEDED.*\[\(lib[sn][hc][uc].*\)\]/\1/p')"
	unset SHUNT_DEVICE SHUNT_SIM_DEVICES
else
	complain "a client does not build with: $flags"
fi
# One that calls NCCL, too, and takes Shunt for it wherever it runs.
linkdir=$("$pkg_config" --variable=linkdir shunt)
linkdir=$stage${linkdir#"$stage"}
cat >"$work/both.c" <<'C'
#include <stdio.h>
#include <shunt/shunt.h>
int ncclGetVersion(int *version);
int main(void)
{
	int version = 0;
	return ncclGetVersion(&version) || !printf("%s %s\n", shunt_version(), version > 20000 ? "nccl" : "");
}
C
# shellcheck disable=SC2086
if $CC -o "$work/both" "$work/both.c" $flags -L"$linkdir" -lnccl -Wl,-rpath,"$linkdir"; then
	check "a client that has Shunt for its NCCL" "$("$pkg_config" --modversion shunt) nccl" "$(SHUNT_NCCL_LIB=none "$work/both")"
else
	complain "a client does not build with: $flags -L$linkdir -lnccl"
fi
for variable in preload linkdir; do
	path=$("$pkg_config" --variable=$variable shunt)
	[ -e "$stage${path#"$stage"}" ] || complain "the pkg-config variable $variable names $path, which is not there"
done

# The command finds the library beside itself.
if [ -n "$shunt" ]; then
	preload=$("$shunt" run --print | sed -n "s/^\(export \)*LD_PRELOAD=['\"]*\([^'\"]*\).*/\2/p")
	check "shunt run" "$(realpath "$lib")" "$(realpath "${preload%%:*}" 2>&1)"
fi

# Programs that do not use NCCL. Not even a misspelt variable may make it speak.
export SHUNT_LOG=trace SHUNT_STATS=1 SHUNT_NO_SUCH_NAME=1 NCCL_DEBUG=INFO
check "true" "0 " "$(LD_PRELOAD=$lib /bin/true 2>&1; echo "$? ")"
check "sh" "said 7 " "$(LD_PRELOAD=$lib sh -c 'echo said; exit 7' 2>&1 | tr '\n' ' '; LD_PRELOAD=$lib sh -c 'exit 7'; echo "$? ")"
cat >"$work/quiet.py" <<'PY'
import os, socket, subprocess, sys, threading
t = threading.Thread(target=lambda: None)
t.start()
t.join()
subprocess.run(["true"], check=True)
if os.fork() == 0:
    os._exit(0)
os.wait()
seen = ["threads %d" % len(os.listdir("/proc/self/task"))]
for fd in os.listdir("/proc/self/fd"):
    try:
        seen.append("fd %s %s" % (fd, os.readlink("/proc/self/fd/" + fd)))
    except FileNotFoundError:
        pass # it was that of the listing
seen += sorted({"map " + line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line})
open(sys.argv[1], "w").write("\n".join(seen) + "\n")
sys.exit(5)
PY
"$python" "$work/quiet.py" "$work/without" </dev/null >"$work/output" 2>&1
check "python by itself" "5 " "$? $(cat "$work/output")"
LD_PRELOAD=$lib "$python" "$work/quiet.py" "$work/with" </dev/null >"$work/output" 2>&1
check "python, preloaded" "5 " "$? $(cat "$work/output")"
[ "$(grep -c '^map' "$work/without")" -gt 3 ] && grep -q '^fd 0' "$work/without" || complain "the test sees nothing"
# Its own file, and the libraries that it is linked with.
ldd "$lib" | awk '$2 == "=>" {print $3} $1 ~ /^\// {print $1}' >"$work/allowed"
realpath "$lib" $(cat "$work/allowed") | sort -u >"$work/allowed.paths"
while read -r line; do
	case $line in
	"map "*) grep -qxF "$(realpath "${line#map }")" "$work/allowed.paths" || complain "python: preloaded it also has: $line" ;;
	*) complain "python: preloaded it also has: $line" ;;
	esac
done <<LINES
$(grep -vxF -f "$work/without" "$work/with" || echo "no difference, so it was not preloaded")
LINES
gone=$(grep -vxF -f "$work/with" "$work/without")
check "python: what it lacks when preloaded" "" "$gone"
grep -qi -E 'map .*(cuda|libnccl|nvidia)' "$work/with" && complain "python: opened a library of NVIDIA's: $(cat "$work/with")"
[ $bad = 0 ] && echo "ok"
exit $bad

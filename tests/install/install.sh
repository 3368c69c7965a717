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
lib=$(find "$stage" -name libshunt.so -type f)
[ -f "$lib" ] || {
	complain "no lib/libshunt.so"
	exit 1
}
libdir=$(dirname "$lib")
for link in libnccl.so.2 libnccl.so; do
	[ -L "$libdir/shunt/$link" ] || complain "tests/support/shunt/$link is not a link"
	check "tests/support/shunt/$link" "$(realpath "$lib")" "$(realpath "$libdir/shunt/$link")"
done
check "shunt/bin/ncclras" "$(realpath "$(find "$stage" -path '*/bin/shunt' -type f)")" "$(realpath "$libdir/shunt/bin/ncclras")"
for link in "$libdir/libshunt_api.so" "$libdir/shunt/libshunt_api.so.0"; do
	check "$link" "$(realpath "$libdir")/libshunt_api.so.0" "$(realpath "$link")"
done
[ -f "$libdir/shunt/nccl_ep/libnccl_ep.so.0" ] || complain "no shunt/nccl_ep/libnccl_ep.so.0"
include=$(dirname "$(find "$stage" -path '*/include/shunt' -type d)")
for header in shunt device ep; do
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
shunt=$(find "$stage" -path '*/bin/shunt' -type f)
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
# A project of CMake, here and where the installation was moved.
if command -v cmake >/dev/null && [ -n "$CXX" ]; then
	prefix=$(dirname "$include")
	mkdir "$work/cmake" && cp "$client" "$work/cmake/client.c"
	printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(client C)' 'find_package(shunt 0.2 REQUIRED)' \
		'add_executable(client client.c)' 'target_link_libraries(client shunt::shunt)' 'message(STATUS "preload ${shunt_PRELOAD}")' \
		>"$work/cmake/CMakeLists.txt"
	cp -a "$stage" "$work/moved"
	for at in "$stage" "$work/moved"; do
		if CC=$CC cmake -S "$work/cmake" -B "$work/cmake.$(basename "$at")" -DCMAKE_PREFIX_PATH="$at${prefix#"$stage"}" >"$work/log" 2>&1 &&
			cmake --build "$work/cmake.$(basename "$at")" >>"$work/log" 2>&1; then
			check "a client of CMake" "$(realpath "$at${lib#"$stage"}")" "$(realpath "$(sed -n 's/^-- preload //p' "$work/log")")"
			check "a client of CMake" "$("$pkg_config" --modversion shunt) sim" "$(SHUNT_DEVICE=sim SHUNT_SIM_DEVICES=3 "$work/cmake.$(basename "$at")/client")"
		else
			cat "$work/log"
			complain "a client of CMake does not build"
		fi
	done
	# A version that is not there, and an installation without its headers, have a reason.
	sed 's/shunt 0.2/shunt 7.1/' "$work/cmake/CMakeLists.txt" >"$work/list" && mkdir "$work/cmake7" && mv "$work/list" "$work/cmake7/CMakeLists.txt"
	cmake -S "$work/cmake7" -B "$work/cmake.7" -DCMAKE_PREFIX_PATH="$prefix" 2>&1 | grep -q "requested version .7.1" || complain "CMake takes 0.2 for 7.1"
	rm -r "$work/moved${include#"$stage"}"
	cmake -S "$work/cmake" -B "$work/cmake.bare" -DCMAKE_PREFIX_PATH="$work/moved${prefix#"$stage"}" 2>&1 | grep -q 'install Shunt as' ||
		complain "CMake does not say what is missing"
else
	echo "skipped: a client of CMake: there is no cmake"
fi
sources=$(dirname "$0")/../..
check "ready tuning files" "$(ls "$sources/tuning" | grep '\.json$')" "$(ls "$(find "$stage" -path '*/share/shunt' -type d)/tuning" 2>/dev/null)"
# Manual pages and completion, with every option of each command's help.
share=$(dirname "$(find "$stage" -path '*/share/shunt' -type d)")
for command in run info doctor top watch bench conform torture plan plugin tune path ras; do
	page=$share/man/man1/shunt-$command.1
	[ -f "$page" ] || complain "no $page"
	for option in $("$shunt" "$command" --help | sed -n 's/^  \(-.,\|   \) --\([a-z-]*\).*/\2/p'); do
		grep -q -e "^[^a-z]*.*\\\\-\\\\-$(echo "$option" | sed 's/-/\\\\-/g')" "$page" || complain "$page lacks --$option"
		for file in bash-completion/completions/shunt.bash zsh/site-functions/_shunt; do
			grep -q -e "--$option\\b" "$share/$file" || complain "$file lacks --$option of $command"
		done
		grep -q -e "-l $option\\b" "$share/fish/vendor_completions.d/shunt.fish" || complain "the completion of fish lacks --$option of $command"
	done
	if command -v man >/dev/null; then
		text=$(LC_ALL=C MANWIDTH=100 man --warnings -l "$page" 2>&1) || complain "man cannot show $page"
		case $text in *"shunt-$command - "*) ;; *) complain "$page has no name: $text" ;; esac
		case $text in *": warning"*) complain "$page: $text" ;; esac
		wide=$(echo "$text" | grep '.\{112\}') && complain "$page: too wide for 100 columns: $wide"
	fi
done
for shell in bash zsh fish; do
	command -v $shell >/dev/null || continue
	$shell -n "$(find "$share" -name "*shunt*" -path "*$shell*" -type f)" || complain "$shell cannot read its completion"
done
cat >"$work/complete" <<'BASH'
. "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_shunt
echo "${COMPREPLY[*]}"
BASH
if command -v bash >/dev/null; then
	completed() { # expected, words
		expected=$1
		shift
		check "completion of $*" "$expected" "$(bash "$work/complete" "$share/bash-completion/completions/shunt.bash" shunt "$@")"
	}
	completed bench ben
	completed --mode bench --mo
	completed 'eager graph both' bench --mode ''
	completed 'float16 float32 float64 float8e4m3 float8e5m2 float8e4m3b15 float8e4m3b15/float16 float8e4m3b15/own float8e4m3/float16 float8e4m3/own float8e5m2/float16 float8e5m2/own float16/own' bench -d fl
	completed 'check show run new build --help' plan ''
	completed --by-name plan new --by
	completed 'allreduce allgather alltoall' info select --op all
fi
# The same by the shells themselves.
asked() { # shell, words that must be among what it offers, what was typed
	offers=" $(cat "$work/offers" | tr -s '\n\r ' ' ') "
	for word in $2; do
		case $offers in *" $word "*) ;; *) complain "$1 completes '$3' by '$offers', without $word" ;; esac
	done
}
cat >"$work/ask.zsh" <<'ZSH'
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' insert-tab false
compadd() { builtin compadd \"\$@\"; local -a offers; (( \${@[(I)-[AOD]]} )) || { builtin compadd -A offers \"\$@\"; print -rl -- OFFER:\$^offers; }; }
comppostfuncs=(exit); bindkey '^I' complete-word; echo rea''dy"
zpty -r shell answer '*ready*'
zpty -w -n shell "$2"$'\t'
answer=
while zpty -r shell part; do answer+=$part; done
print -r -- $answer | sed -n 's/.*OFFER:\([^ =]*\).*/\1/p'
ZSH
for shell in zsh fish; do
	command -v $shell >/dev/null || {
		echo "skipped: what $shell completes: there is no $shell"
		continue
	}
	for case in 'shunt ben:bench' 'shunt bench --mo:--mode' 'shunt bench --mode :eager graph both' 'shunt plan :check new run' 'shunt doctor j:job' \
		'shunt plan new --by:--by-name' 'shunt info select --op all:allreduce allgather alltoall'; do
		typed=${case%%:*}
		if [ $shell = fish ]; then
			fish --no-config -c "source '$share/fish/vendor_completions.d/shunt.fish'; complete -C '$typed'" | cut -f 1 >"$work/offers" 2>&1
		else
			(cd "$work" && timeout 60 zsh -f "$work/ask.zsh" "$share/zsh/site-functions" "$typed") >"$work/offers" 2>&1
		fi
		asked $shell "${case#*:}" "$typed"
	done
done
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

# The Python package, and each part from each other: as staged, by a link, and moved as a whole. Paths are compared without links.
source=$(cd "$(dirname "$0")/../../python" && pwd)
package=$(find "$stage" -path '*/libshunt/__init__.py')
parts() { # what, where the staging directory is now
	at=$2/${lib#"$stage"/}
	python_dir=$2/${package#"$stage"/}
	python_dir=${python_dir%/libshunt/__init__.py}
	ask='import os, sys, libshunt; print(*map(os.path.realpath, (libshunt.library_path(), libshunt.command_path(False))))'
	real="$(realpath "$at") $(realpath "$2/${shunt#"$stage"/}")"
	check "$1: package" "$real" "$(PYTHONPATH=$python_dir "$python" -c "$ask" 2>&1)"
	check "$1: package of the sources" "$real" "$(PYTHONPATH=$source SHUNT_LIB=$at "$python" -c "$ask" 2>&1)"
	command=$2/${shunt#"$stage"/}
	check "$1: path lib" "$(realpath "$at")" "$("$command" path lib 2>&1)"
	check "$1: path link" "$(realpath "$(dirname "$at")/shunt")" "$("$command" path link 2>&1)"
	check "$1: path include" "$(realpath "$2/${include#"$stage"/}")" "$("$command" path include 2>&1)"
	check "$1: path python" "$(realpath "$python_dir")" "$("$command" path python 2>&1)"
	check "$1: default plans" 1 "$("$command" info select --standalone --hosts 2 --local 2 2>&1 | grep -c 'share/shunt/plans' | sed 's/^[1-9].*/1/')"
	mscclpp=$("$command" run --mscclpp --print | sed -n "s/^\(export \)*PYTHONPATH=['\"]*\([^':\"]*\).*/\2/p")
	[ -d "$mscclpp/mscclpp" ] && case $mscclpp in "$(realpath "$python_dir")"/*) ;; *) false ;; esac ||
		complain "$1: run --mscclpp has PYTHONPATH $mscclpp"
}
if [ -n "$shunt" ] && [ -n "$package" ]; then
	(cd "$source" && find libshunt -name '*.py' -o -name py.typed) | sort >"$work/sources"
	(cd "$(dirname "$package")/.." && find libshunt -name '*.py' -o -name py.typed) | sort | diff "$work/sources" - >"$work/log" ||
		complain "python/meson.build does not list the files that are there: $(cat "$work/log")"
	export PYTHONDONTWRITEBYTECODE=1
	parts staged "$stage"
	ln -s "$stage" "$work/link"
	parts "by a link" "$work/link"
	mkdir "$work/other folder"
	mv "$stage" "$work/other folder/moved"
	parts moved "$work/other folder/moved"
	mv "$work/other folder/moved" "$stage"
	found='import importlib.metadata as m; print(*(e.value for e in m.entry_points(group="torchcomms.backends") if e.name == "shunt"))'
	check "torchcomms' entry point" libshunt.torchcomms "$(PYTHONPATH=$(dirname "$package")/.. "$python" -c "$found" 2>&1)"
	cat >"$work/mine.py" <<'PY'
from libshunt.language import *

with CollectiveProgram("mine", AllReduce(2, 1, inplace=True), 2, protocol="LL", use_double_scratch_buffer=True) as program:
    boxes = [Buffer(rank, 4) for rank in range(2)]
    for rank in range(2):
        MemoryChannel(1 - rank, rank).put_packets(boxes[1 - rank][rank * 2 : rank * 2 + 2], Rank(rank).get_input_buffer()[:], tb=0)
        Rank(rank).reduce(Rank(rank).get_input_buffer()[:], [boxes[rank][(1 - rank) * 2 : (1 - rank) * 2 + 2]], tb=0, packet=True)
print(program.verify()["ok"])
PY
	check "an all-reduce of one's own" True "$(PYTHONPATH=$source SHUNT_LIB=$lib SHUNT_DEVICE=sim "$python" "$work/mine.py" 2>&1 | tail -1)"
else
	complain "no command or no Python package"
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
"$python" "$(dirname "$0")/docker.py" "$sources" "$build" "$stage" || complain "the Dockerfile or the Dev Container file"
[ $bad = 0 ] && echo "ok"
exit $bad

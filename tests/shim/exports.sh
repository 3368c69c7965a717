#!/bin/sh
# SPDX-License-Identifier: MIT
# exports.sh LIBRARY NEWER_NAMES API_LIBRARY EP_LIBRARY: what the library exports is what it should: every name of an installed libnccl, with the same
# binding, the names of newer versions with their twins, and nothing outside nccl*, pnccl*, shunt_*. API_LIBRARY, libshunt_api.so.0, exports the
# same functions shunt_*, and nothing else. EP_LIBRARY, libnccl_ep.so.0, alone exports ncclEp*: NVIDIA's may be in the process, too.
set -u
lib=$1
newer=$2
api=$3
ep=$4
bad=0
# -P: the form of POSIX, "NAME KIND ..."; a name with a version in it ("name@@V_1") is none of ours.
ours=$(nm -D -P --defined-only "$lib" | awk '{print $1 " " $2}' | sort)

has() { printf '%s\n' "$ours" | grep -qx "$1"; }
complain() { echo "$*"; bad=1; }

other=$(printf '%s\n' "$ours" | grep -Ev '^(nccl|pnccl|shunt_)' || true)
[ -z "$other" ] || complain "exported and should not be: $other"
undefined=$(nm -D -P --undefined-only "$lib" | grep -E '^(nccl|cu[A-Z]|cuda)' || true)
[ -z "$undefined" ] || complain "needs: $undefined"
needed=$(readelf -d "$lib" | grep NEEDED | grep -Ei 'cuda|nccl' || true)
[ -z "$needed" ] || complain "linked with: $needed"
readelf -d "$lib" | grep -q 'SONAME.*\[libnccl.so.2\]' || complain "the SONAME is not libnccl.so.2"

functions=$(printf '%s\n' "$ours" | awk '$1 ~ /^shunt_/ && $2 == "T"')
[ "$(nm -D -P --defined-only "$api" | awk '{print $1 " " $2}' | sort)" = "$functions" ] ||
	complain "src/shim/api/functions.def: $api does not export the functions that $lib does"
readelf -d "$api" | grep -q 'SONAME.*\[libshunt_api.so.0\]' || complain "the SONAME is not libshunt_api.so.0"

other=$(printf '%s\n' "$ours" | grep -E '^p?ncclEp' || true)
[ -z "$other" ] || complain "exported and should not be: $other"
functions=$(nm -D -P --defined-only "$ep" | awk '{print $1}')
other=$(printf '%s\n' "$functions" | grep -v '^ncclEp' || true)
[ -z "$other" ] || complain "exported by $ep and should not be: $other"
[ "$(printf '%s\n' "$functions" | wc -l)" = 18 ] || complain "$ep does not export the 18 functions"
readelf -d "$ep" | grep -q 'SONAME.*\[libnccl_ep.so.0\]' || complain "the SONAME is not libnccl_ep.so.0"

while read -r name; do
	has "$name W" || complain "missing: $name (weak)"
	has "p$name T" || complain "missing: p$name"
done < "$newer"

real=
for candidate in ${SHUNT_TEST_NCCL:-} /usr/local/cuda/lib64/libnccl.so.2 /usr/local/cuda/lib/libnccl.so.2 \
	/usr/local/cuda-*/lib*/libnccl.so.2 /usr/lib/*/libnccl.so.2; do
	[ -f "$candidate" ] && real=$candidate && break
done
if [ -n "$real" ]; then
	n=0
	for entry in $(nm -D -P --defined-only "$real" | awk '$1 ~ /^p?nccl/ {sub("@.*", "", $1); print $1 ":" $2}'); do
		has "${entry%:*} ${entry#*:}" || complain "in $real but not here: $entry"
		n=$((n + 1))
	done
	echo "compared with the $n names of $real"
	[ $n -gt 50 ] || complain "too few names"
else
	echo "no installed libnccl to compare with"
fi
exit $bad

#!/bin/sh
# SPDX-License-Identifier: MIT
# aarch64.sh COMMAND...: runs the command where programs for aarch64 start like the machine's own, under qemu: in a user namespace with a
# binfmt_misc of its own (Linux 6.7 or newer), so that nothing that others see changes. need_aarch64 of setup.sh comes first.
set -eu
deps=$(realpath "$(dirname "$0")/../.deps/arm64")
export QEMU_LD_PREFIX="$deps/root" AARCH64_QEMU="$deps/qemu/usr/bin/qemu-aarch64-static"
# shellcheck disable=SC2016
inside='
until [ "$(id -u)" = 0 ]; do sleep 0.01; done
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
printf ":aarch64:M::%s:%s:%s:PCF" "$magic" "$mask" "$AARCH64_QEMU" >/proc/sys/fs/binfmt_misc/register
exec "$@"'
if [ "$(id -u)" != 0 ]; then
	exec unshare --user --map-root-user --mount sh -ec "$inside" sh "$@"
fi
# Tests want other users, too: root maps all of them, once the new namespace is there.
outside=$(readlink /proc/self/ns/user)
(
	while [ "$(readlink /proc/$$/ns/user)" = "$outside" ]; do sleep 0.01; done
	echo 0 0 65536 >/proc/$$/uid_map
	echo 0 0 65536 >/proc/$$/gid_map
) &
exec unshare --user --mount sh -ec "$inside" sh "$@"

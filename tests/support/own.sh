# SPDX-License-Identifier: MIT
# Sourced by the tests that are shell scripts: none of the variables, files and addresses of who runs them, a scratch folder $dir, and an end
# with which the folder and all processes go, also if the script is killed.
for own_name in $(env | sed -n 's/^\(SHUNT_[A-Z_]*\|NCCL_[A-Z_]*\|MSCCLPP_[A-Z_]*\)=.*/\1/p'); do
	unset "$own_name"
done
unset LD_PRELOAD LD_LIBRARY_PATH RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
dir=$(mktemp -d) || exit 1
HOME=$dir/nobody NCCL_SOCKET_IFNAME=lo
export HOME NCCL_SOCKET_IFNAME

# verdict NAME [WHY]: of the command before, whose output is in $dir/out. The script ends with $failed.
failed=0
verdict() {
	if [ $? = 0 ]; then
		echo "ok: $1"
	else
		echo "not ok: $1${2:+: $2}"
		[ ! -f "$dir/out" ] || sed 's/^/    /' "$dir/out"
		failed=1
	fi
}

# What the shell started in the background. The ranks of a command end with it.
own_children() {
	for own_pid in $(cat "/proc/$$/task/$$/children" 2>/dev/null); do
		kill -KILL "$own_pid" 2>/dev/null
	done
}
trap 'own_children; rm -rf "$dir"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# A script that is killed outright leaves its folder, and who sees to it ends what is left of its process group: Meson makes one for each test.
read -r _ _ _ _ own_group _ <"/proc/$$/stat"
(
	trap '' HUP INT TERM
	(
		while [ -d "$dir" ] && kill -0 $$; do
			sleep 1 # pause: poll
		done
		[ -d "$dir" ] || exit 0
		rm -rf "$dir"
		[ "$own_group" != $$ ] || kill -KILL "-$$"
	) &
) </dev/null >/dev/null 2>&1

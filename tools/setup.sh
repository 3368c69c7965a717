# SPDX-License-Identifier: MIT
# Sourced by demo.sh and test.sh, from the root of the source tree: installs what the build needs and is missing.
# Debian and Ubuntu; does nothing, and needs no root, where all is there.

say() {
	printf '== %s\n' "$*"
}

# The version $1 is at least $2.
version_at_least() {
	[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# need_packages PACKAGE...: Debian packages.
need_packages() {
	missing=
	for package in "$@"; do
		dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
	done
	[ -n "$missing" ] || return 0
	if [ "$(id -u)" != 0 ]; then
		echo "missing packages:$missing" >&2
		echo "install them as root: apt-get install$missing" >&2
		return 1
	fi
	say "installing$missing"
	apt-get update -qq || echo "apt-get update failed; trying with the package lists that are there" >&2
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# A Python environment of our own, first on the PATH.
need_venv() {
	if [ ! -x .deps/venv/bin/pip ]; then
		need_packages python3-venv python3-pip || return 1
		say "making a Python environment in .deps/venv"
		python3 -m venv .deps/venv || return 1
	fi
	PATH=$PWD/.deps/venv/bin:$PATH
	export PATH
}

# The tools of every build. A compiler, Ninja or Python that does not come from a package will do.
need_build_tools() {
	packages="libjansson-dev libsodium-dev"
	{ command -v cc && command -v c++; } >/dev/null || packages="$packages build-essential"
	command -v pkg-config >/dev/null || packages="$packages pkg-config"
	command -v ninja >/dev/null || packages="$packages ninja-build"
	command -v python3 >/dev/null || packages="$packages python3"
	command -v meson >/dev/null || packages="$packages meson"
	# shellcheck disable=SC2086
	need_packages $packages "$@" || return 1
	# pyenv's python3 is a script that looks for the interpreter at each start, which takes longer than the start.
	python=$(python3 -c 'import sys; print(sys.executable)')
	[ "$(command -v python3)" = "$python" ] || export PATH="${python%/*}:$PATH"
	if ! version_at_least "$(meson --version)" 1.0; then
		need_venv || return 1
		if ! version_at_least "$(meson --version)" 1.0; then
			say "Meson $(meson --version) is too old: installing one from PyPI"
			pip install -q --disable-pip-version-check 'meson>=1.0'
		fi
	fi
}

# The tools of tools/lint.txt in their versions.
need_lint_tools() {
	need_venv || return 1
	for tool in $(sed -n 's/^\([a-z-]*\)==\(.*\)/\1=\2/p' tools/lint.txt); do
		"${tool%%=*}" --version 2>/dev/null | grep -qwF "${tool#*=}" || {
			say "installing from PyPI what checks the sources"
			pip install -q --disable-pip-version-check -r tools/lint.txt
			return
		}
	done
}

# For the test that counts instructions, which skips without valgrind.
need_valgrind() {
	command -v valgrind >/dev/null || need_packages valgrind
}

# The header of which tests/fake_ibverbs is made, and programs that run on it; no device is needed.
need_rdma() {
	need_packages libibverbs-dev ibverbs-utils perftest python3-pyverbs
}

# What builds for aarch64 and runs the result (tools/aarch64.ini, tools/aarch64.sh): compilers; and, unpacked into .deps/arm64, so that the
# machine's packages stay those of its own architecture, the libraries and qemu.
need_aarch64() {
	need_packages gcc-aarch64-linux-gnu g++-aarch64-linux-gnu || return 1
	[ ! -f .deps/arm64/deps.ini ] || return 0
	say "unpacking qemu and libraries for aarch64 into .deps/arm64"
	(
		rm -rf .deps/arm64 && mkdir -p .deps/arm64/lists/partial .deps/arm64/cache/archives/partial && cd .deps/arm64 || exit
		apt='apt-get -qq -o APT::Sandbox::User=root'
		arm64="$apt -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD/cache"
		$arm64 update || echo "apt-get update failed for a source of arm64; trying with the others" >&2
		$arm64 download libc6 libgcc-s1 libstdc++6 libjansson-dev libjansson4 libsodium-dev libsodium23 libcmocka-dev libcmocka0 &&
			for package in *_arm64.deb; do dpkg -x "$package" root || exit; done &&
			$apt download qemu-user-static && dpkg -x qemu-user-static_*.deb qemu || exit
		rm -rf ./*.deb lists cache
		printf "[constants]\ndeps = '%s'\n" "$PWD" >deps.ini
	)
}

gpu_count() {
	{ command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true
}

# The nvcc that the build takes; nothing if there is none.
nvcc_path() {
	command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || python3 src/kernels/find_nvcc.py
}

nvcc_found() {
	nvcc_path | grep -q .
}

# "90" or "80,90": the compute capabilities of the GPUs here.
gpu_archs() {
	nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -un | paste -sd,
}

# "13.0": the CUDA that the driver is for, by its own word: nvidia-smi's table has other words in other versions. Nothing if it does not say.
driver_cuda() {
	python3 - <<-'PY' 2>/dev/null
		import ctypes
		version = ctypes.c_int()
		if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
		    print("%d.%d" % (version.value // 1000, version.value % 1000 // 10))
	PY
}

# Where there is a GPU but no nvcc: the compiler from its PyPI wheels, of the driver's own CUDA version.
need_nvcc() {
	if [ "$(gpu_count)" = 0 ] || nvcc_found; then
		return 0
	fi
	cuda=$(driver_cuda)
	if ! version_at_least "${cuda:-0}" 13.0; then
		say "the driver is for CUDA ${cuda:-?}, wheels of nvcc exist for 13 and later: install a toolkit to use the GPUs"
		return 0
	fi
	need_nvcc_wheels "$cuda"
}

# need_nvcc_wheels VERSION: nvcc from PyPI, unless there is one.
need_nvcc_wheels() {
	need_venv || return 1
	if ! nvcc_found; then
		say "installing nvcc for CUDA $1 from PyPI"
		pip install -q --disable-pip-version-check "nvidia-cuda-nvcc==$1.*" "nvidia-cuda-crt==$1.*" \
			"nvidia-nvvm==$1.*" "nvidia-cuda-runtime==$1.*" "nvidia-cuda-cccl==$1.*"
	fi
}

# configure DIRECTORY OPTION...: sets the build up, or sets the options of a build that is there.
configure() {
	dir=$1
	shift
	if [ -f "$dir/build.ninja" ]; then
		meson setup --reconfigure "$dir" "$@" >/dev/null # files may have come and gone
	else
		say "meson setup $dir $*"
		mkdir -p .deps
		meson setup "$dir" "$@" >".deps/$dir-setup.log" 2>&1 || {
			cat ".deps/$dir-setup.log"
			return 1
		}
	fi
}

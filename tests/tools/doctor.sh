#!/bin/sh
# SPDX-License-Identifier: MIT
# doctor.sh SHUNT LIBSHUNT FAKE_NCCL LATER_NCCL LATER_PROGRAM LINKED_BY_SONAME FAKE_CUDA TORCHCOMMS...: what the doctor says of an environment, of files, and of dumps that are none.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") fake=$(realpath "$3")
. "$(dirname "$0")/expect.sh"
for name in $(env | sed -n 's/^\(SHUNT_[A-Z_]*\|NCCL_[A-Z_]*\|MSCCLPP_[A-Z_]*\)=.*/\1/p'); do
	[ "$name" = SHUNT_LIB ] || unset "$name"
done
HOME=$dir
export HOME
# The devices and limits of the machine that runs this are what they are: most checks look at a line, and let the status be.
says() {
	name=$1 pattern=$2
	shift 2
	expect "$name" 0 "$pattern" sh -c '"$@"; exit 0' sh "$@"
}
none="env SHUNT_NCCL_LIB=none"

expect help_explains 0 '^usage: shunt doctor' "$shunt" doctor --help
expect help_of_dumps_explains 0 '^usage: shunt doctor dumps' "$shunt" doctor dumps --help
expect unknown_option_is_usage_error 2 'no option --frob' "$shunt" doctor --frob
expect two_programs_are_usage_error 2 'one argument too many' "$shunt" doctor /bin/sh /bin/ls
expect output_without_pid_is_usage_error 2 'output goes with' "$shunt" doctor --output "$dir"
expect bad_pid_is_usage_error 2 '"12x" is not a list' "$shunt" doctor --pid 12x
expect dumps_without_files_is_usage_error 2 'which files' "$shunt" doctor dumps
expect missing_program_is_error 2 '/nonexistent: No such file' "$shunt" doctor /nonexistent

# DeepEP on a path of Python packages
packages=$dir/venv/lib/python3.99/site-packages
mkdir -p "$packages/deep_ep"
touch "$packages/deep_ep/__init__.py"
says deep_ep_needs_a_variable 'info +DeepEP is in .*/deep_ep/__init__.py: its search' env VIRTUAL_ENV="$dir/venv" "$shunt" doctor
says deep_ep_has_its_variable 'set EP_SUPPRESS_NCCL_CHECK=1 for such programs' env VIRTUAL_ENV="$dir/venv" "$shunt" doctor
says deep_ep_that_does_not_look 'ok +EP_SUPPRESS_NCCL_CHECK=1: DeepEP looks' env VIRTUAL_ENV="$dir/venv" EP_SUPPRESS_NCCL_CHECK=1 "$shunt" doctor

# Engines: stand-ins of their packages
engine() { # PACKAGE VERSION FILE TEXT...
	at=$packages/$1
	rm -rf "$at" "$packages/$1"-*.dist-info
	mkdir -p "$at" "$packages/$1-1.dist-info"
	touch "$at/__init__.py"
	printf 'Metadata-Version: 2.4\nName: %s\n%s\n\nVersion: 9.9.9 of the text\n' "$1" "$2" >"$packages/$1-1.dist-info/METADATA"
	shift 2
	while [ $# -gt 0 ]; do
		mkdir -p "$at/$(dirname "$1")"
		printf '%s\n' "$2" >>"$at/$1"
		shift 2
	done
}
vllm() { # VERSION TEXT-OF-COMMUNICATORS
	engine vllm "$1" envs.py 'VLLM_ALLREDUCE_USE_FLASHINFER: bool' envs.py VLLM_ALLREDUCE_USE_SYMM_MEM envs.py VLLM_BATCH_INVARIANT \
		distributed/device_communicators/custom_all_reduce.py 'class CustomAllreduce:' distributed/device_communicators/cuda_communicator.py "self.pynccl_comm $2"
}
in_venv="env VIRTUAL_ENV=$dir/venv"
expect engine_that_is_missing 2 'error +there is no vLLM beside the Python' env -u PYTHONPATH PATH="$dir" VIRTUAL_ENV="$dir/venv" "$shunt" doctor vllm
vllm 'Version: 0.33.1rc2+cu130' 'self.fi_ar_comm self.fi_pcie_ipc_ar_comm self.ca_comm'
expect engine_of_the_table 0 'ok +vLLM 0.33.1rc2\+cu130 \(table: 0.29 to 0.33\)' $in_venv "$shunt" doctor vllm
says engine_has_its_order 'in this order: FlashInfer \(on\), vLLM.s own kernel \(on, up to 8 MB, less beside torch symmetric memory\), torch symmetric memory \(on' $in_venv "$shunt" doctor vllm
says engine_has_its_switches 'VLLM_ALLREDUCE_USE_FLASHINFER=0 VLLM_ALLREDUCE_USE_SYMM_MEM=0 shunt run -- vllm serve MODEL --disable-custom-all-reduce$' $in_venv "$shunt" doctor vllm
says longer_name_is_no_marker 'switches' $in_venv "$shunt" doctor vllm
! grep -q PCIE "$dir/out" || { echo 'not ok: a longer name is told'; failed=1; }
says variable_of_the_user_counts 'off, and would stand before NCCL: FlashInfer' $in_venv VLLM_ALLREDUCE_USE_FLASHINFER=0 "$shunt" doctor vllm
says batch_invariance_has_its_recipe 'set SHUNT_DETERMINISTIC=1 VLLM_BATCH_INVARIANT=1' $in_venv "$shunt" doctor vllm
expect engine_as_json 0 '"topic": "engine"' $in_venv "$shunt" doctor --json vllm
vllm 'Version: 0.28.0' ''
expect older_engine_is_told 1 'warning +vLLM 0.28.0 is outside of what this table' $in_venv "$shunt" doctor vllm
says older_engine_has_its_defaults 'off, and would stand before NCCL: FlashInfer \(VLLM_ALLREDUCE_USE_FLASHINFER\)' $in_venv "$shunt" doctor vllm
vllm 'Version: 1.2.0' 'self.new_comm self.other_comm self.new_comm'
expect newer_engine_is_told 1 'warning +vLLM 1.2.0 is outside' $in_venv "$shunt" doctor vllm
says newer_ways_are_told 'by what this table does not know: new_comm other_comm$' $in_venv "$shunt" doctor vllm
vllm 'Summary: none' ''
expect metadata_without_a_version 1 'its METADATA tells no version that can be understood$' $in_venv "$shunt" doctor vllm
vllm "Version: $(printf '\033[31mx')" ''
expect metadata_of_garbage 1 'tells no version that can be understood: \?\[31mx$' $in_venv "$shunt" doctor vllm
rm -r "$packages/vllm-1.dist-info"
expect engine_without_metadata 1 'it has no METADATA' $in_venv "$shunt" doctor vllm
rm "$packages/vllm/distributed/device_communicators/cuda_communicator.py"
mkfifo "$packages/vllm/distributed/device_communicators/cuda_communicator.py"
says pipe_for_a_file_is_told 'cuda_communicator.py cannot be read' $in_venv "$shunt" doctor vllm
engine sglang 'Version: 0.5.11' srt/distributed/parallel_state.py 'self.ca_comm self.pymscclpp_comm self.pynccl_comm'
expect sglang_is_known 0 'shunt run -- python3 -m sglang.launch_server --model-path MODEL --disable-custom-all-reduce$' $in_venv "$shunt" doctor sglang
says sglang_has_what_is_off 'off, and would stand before NCCL: MSCCL\+\+ \(--enable-mscclpp\)' $in_venv "$shunt" doctor sglang
engine sglang 'Version: 0.5.19' srt/server_args.py 'enforce_disable_flashinfer_allreduce_fusion: bool'
says sglang_has_what_is_on_by_itself 'FlashInfer.s all-reduce, alone and with RMSNorm \(on, for some models on Hopper and Blackwell\)' \
	$in_venv "$shunt" doctor sglang
says sglang_has_its_switch '\-\-model-path MODEL --enforce-disable-flashinfer-allreduce-fusion$' $in_venv "$shunt" doctor sglang
engine torch 'Version: 2.12.0' distributed/distributed_c10d.py '"nccl" "nccl2"' distributed/_symmetric_memory/__init__.py 'def set_backend'
expect torch_is_known 0 'ok +PyTorch 2.12.0' $in_venv "$shunt" doctor torch
says torch_has_two_back_ends 'nccl2 and nccl-legacy' $in_venv "$shunt" doctor torch
cp /bin/sh "$dir/torch"
says file_of_an_engines_name_is_a_program 'torch itself has nothing to do' sh -c "cd '$dir' && '$shunt' doctor torch"
rm -r "$packages/torch" "$packages/torch-1.dist-info"

# variables
says no_variables_is_ok 'ok +none are set' "$shunt" doctor
says unknown_name_has_the_nearest 'error +SHUNT_AGLO does nothing: there is no such variable; SHUNT_ALGO is meant' $none SHUNT_AGLO=1 "$shunt" doctor
says old_name_of_a_variable 'error +SHUNT_BULK_COPIES does nothing: it is called SHUNT_TMA now' $none SHUNT_BULK_COPIES=0 "$shunt" doctor
says unknown_name_without_a_near_one 'error +SHUNT_FROBNICATION does nothing: there is no such variable$' $none SHUNT_FROBNICATION=1 "$shunt" doctor
says unreadable_value 'error +SHUNT_TIMEOUT=soon cannot be read, and 30m is used: it takes a time' $none SHUNT_TIMEOUT=soon "$shunt" doctor
says unreadable_rule 'error +SHUNT_ALGO: a rule cannot be used and is left out: "foo": it is not of the form' $none SHUNT_ALGO=allreduce:0-:oneshot,foo "$shunt" doctor
says unknown_collective 'error +SHUNT_FORCE_NCCL: there is no collective "foo"' $none SHUNT_FORCE_NCCL=foo "$shunt" doctor
says missing_tuning_file 'error +SHUNT_TUNING_FILE: /nonexistent: No such file' $none SHUNT_TUNING_FILE=/nonexistent "$shunt" doctor
says other_tuning_file 'error +SHUNT_TUNING_FILE: tuning file refused: /etc/passwd: ' $none SHUNT_TUNING_FILE=none:/etc/passwd "$shunt" doctor
says no_tuning_file 'ok +SHUNT_TUNING_FILE=none' $none SHUNT_TUNING_FILE=none "$shunt" doctor
says cache_that_is_a_file 'error +SHUNT_CACHE_DIR=/etc/passwd: Not a directory' $none SHUNT_CACHE_DIR=/etc/passwd "$shunt" doctor
says cache_that_is_not_there_yet 'ok +SHUNT_CACHE_DIR=/nonexistent/x' $none SHUNT_CACHE_DIR=/nonexistent/x "$shunt" doctor
says comm_id_without_port 'error +NCCL_COMM_ID=foo is no address' $none NCCL_COMM_ID=foo "$shunt" doctor
says good_comm_id 'ok +NCCL_COMM_ID=127.0.0.1:5000' $none NCCL_COMM_ID=127.0.0.1:5000 "$shunt" doctor
says missing_interface 'error +NCCL_SOCKET_IFNAME=nosuch: no interface' $none NCCL_SOCKET_IFNAME=nosuch "$shunt" doctor
says unknown_family 'error +NCCL_SOCKET_FAMILY=foo cannot be read, and any is used' $none NCCL_SOCKET_FAMILY=foo "$shunt" doctor
expect unreadable_rule_is_status_2 2 'error' $none SHUNT_ALGO=foo "$shunt" doctor
says good_value 'ok +SHUNT_TIMEOUT=5s' $none SHUNT_TIMEOUT=5s "$shunt" doctor
says endless_timeout 'warning +SHUNT_TIMEOUT=0: a kernel' $none SHUNT_TIMEOUT=0 "$shunt" doctor
says alias_is_overridden 'warning +MSCCLPP_CACHE_DIR does nothing: SHUNT_CACHE_DIR' $none SHUNT_CACHE_DIR=/x MSCCLPP_CACHE_DIR=/y "$shunt" doctor
says forced_without_nccl 'error +SHUNT_FORCE_NCCL=all asks for the real NCCL, and there is none' $none SHUNT_FORCE_NCCL=all "$shunt" doctor
says nccl_variable_without_nccl 'warning +NCCL_BUFFSIZE does nothing' $none NCCL_BUFFSIZE=8 "$shunt" doctor
says nccl_variable_with_nccl "info +NCCL_BUFFSIZE is for the real NCCL and concerns forwarded calls only; Shunt's buffers have" env SHUNT_NCCL_LIB="$fake" NCCL_BUFFSIZE=8 "$shunt" doctor
says nccl_variables_of_a_family_are_known 'info +NCCL_GIN_TYPE .*; Shunt has no device API' env SHUNT_NCCL_LIB="$fake" NCCL_GIN_TYPE=2 "$shunt" doctor
says nccl_variable_is_misspelt 'warning +Shunt knows no variable NCCL_SOKET_IFNAME \(maybe NCCL_SOCKET_IFNAME\?\)' $none NCCL_SOKET_IFNAME=lo "$shunt" doctor
says nccl_variable_of_another_name_is_obeyed '^0$' $none NCCL_HOSTID=x sh -c '"$0" doctor | grep -c "NCCL_HOSTID does nothing"' "$shunt"
invariant="NCCL_ALGO=ring,tree;allreduce:tree NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=1 NCCL_MAX_NCHANNELS=1 NCCL_NTHREADS=1 NCCL_NVLS_ENABLE=0"
for who in 'vLLM \(VLLM_BATCH_INVARIANT\)|VLLM_BATCH_INVARIANT=1' "vLLM or torchtitan|$invariant" \
	'SGLang|NCCL_ALGO=allreduce:tree NCCL_MIN_NCHANNELS=8 NCCL_MAX_NCHANNELS=8' 'Megatron \(--deterministic-mode\)|NCCL_ALGO=^NVLS'; do
	# shellcheck disable=SC2086
	says batch_invariant_settings_are_known "info +variables as ${who%|*} exports them" env SHUNT_NCCL_LIB="$fake" ${who##*|} "$shunt" doctor
done
says rule_for_nccl_wins 'warning +SHUNT_ALGO=allreduce:1M-:nccl wins over SHUNT_DETERMINISTIC' env SHUNT_NCCL_LIB="$fake" SHUNT_DETERMINISTIC=1 SHUNT_ALGO=allreduce:1M-:nccl "$shunt" doctor
# shellcheck disable=SC2086
says deterministic_wins 'ok +SHUNT_DETERMINISTIC wins over NCCL_ALGO' env SHUNT_NCCL_LIB="$fake" SHUNT_DETERMINISTIC=1 $invariant "$shunt" doctor
says forced_wins 'warning +SHUNT_FORCE_NCCL=all wins over SHUNT_DETERMINISTIC' env SHUNT_NCCL_LIB="$fake" SHUNT_DETERMINISTIC=1 SHUNT_FORCE_NCCL=all "$shunt" doctor
says p2p_off 'warning +NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids' env SHUNT_NCCL_LIB="$fake" NCCL_P2P_DISABLE=1 "$shunt" doctor
says p2p_disable_is_1_alone '^0$' env SHUNT_NCCL_LIB="$fake" NCCL_P2P_DISABLE=2 sh -c '"$0" doctor | grep -c "NCCL_P2P_LEVEL forbids"' "$shunt"
# What the long self-test finds is kept where the library keeps it; one pair lies, in the memory of the host.
links="env SHUNT_LIB=$mock SHUNT_DEVICE=sim SHUNT_SIM_DEVICES=3 SHUNT_CACHE_DIR=$dir/links SHUNT_NCCL_LIB=none SHUNT_SIM_LINKS=0-1:none,lie=swap;0-2:peer,distance=PXB"
expect links_are_tested_for_long 1 'warning +devices 0 and 1 do not exchange data right by shared: word ' $links "$shunt" doctor --links
says links_matrix 'device 0 with 1 shared WRONG, 2 ' $links "$shunt" doctor --links
says info_shows_links '^links +0: 1 shared \(PIX, refused by its self-test\), 2 peer \(PXB' $links "$shunt" info -d
says launch_order 'warning +NCCL_LAUNCH_ORDER_IMPLICIT has NCCL put' env SHUNT_NCCL_LIB="$fake" NCCL_LAUNCH_ORDER_IMPLICIT=1 "$shunt" doctor
says sim_beside_nccl 'warning +SHUNT_DEVICE=sim beside a real NCCL' env SHUNT_NCCL_LIB="$fake" SHUNT_DEVICE=sim "$shunt" doctor
says missing_nccl_lib 'error +SHUNT_NCCL_LIB=/nonexistent is not there' env SHUNT_NCCL_LIB=/nonexistent "$shunt" doctor
says dump_dir_missing 'error +SHUNT_DUMP_DIR=/nonexistent/x is no directory' $none SHUNT_DUMP_DIR=/nonexistent/x "$shunt" doctor
says subsys_without_debug 'warning +NCCL_DEBUG_SUBSYS does nothing without NCCL_DEBUG' $none NCCL_DEBUG_SUBSYS=INIT "$shunt" doctor
expect errors_are_status_2 2 'error' $none SHUNT_AGLO=1 "$shunt" doctor
$none SHUNT_AGLO=1 "$shunt" doctor --json 2>"$dir/err" | python3 -c 'import json, sys
d = json.load(sys.stdin)
assert d["worst"] == "error" and any("SHUNT_AGLO" in f["text"] and f["level"] == "error" for f in d["findings"])' 2>"$dir/out"
verdict json_holds_the_findings
! grep . "$dir/err" >"$dir/out"
verdict json_is_all_there_is

# libraries
says library_is_named "ok +Shunt [0-9.]+: $mock" $none "$shunt" doctor
says standalone_is_said 'info +no real NCCL would be found' $none "$shunt" doctor
says real_nccl_is_named "ok +the real NCCL .*$fake" env SHUNT_NCCL_LIB="$fake" "$shunt" doctor
says preload_missing 'error +LD_PRELOAD has /nonexistent/lib.so' $none LD_PRELOAD=/nonexistent/lib.so "$shunt" doctor
says later_nccl 'warning +.* has ncclOfALaterVersion, which Shunt does not know' env SHUNT_NCCL_LIB="$(realpath "$4")" "$shunt" doctor
expect program_of_a_later_nccl_is_status_2 2 'error +.* needs ncclOfALaterVersion, which Shunt does not know' $none "$shunt" doctor "$(realpath "$5")"
# Modules of torchcomms; $8 and later.
says torchcomms_nccl_can_be_interposed 'ok +.*_comms_nccl.so, of torchcomms, calls the NCCL that PyTorch has loaded: with .shunt run., or libshunt.enable' \
	$none "$shunt" doctor "$(realpath "$8")"
cp "$8" "$dir" # away from what it needs
# shellcheck disable=SC2016
says what_python_has_loaded_before_is_not_missed '^0$' $none sh -c '"$1" doctor "$2" | grep -c "which is not found"' sh "$shunt" "$dir/_comms_nccl.so"
says torchcomms_ncclx_cannot 'warning +.*_comms_ncclx.so, of torchcomms, has NCCL linked in under names such as torchcomms_ncclAllReduce: Shunt cannot' \
	$none "$shunt" doctor "$(realpath "$9")"
says torchcomms_gloo_does_not_call_nccl 'info +.*_comms_gloo.so, of torchcomms, does not call NCCL' $none "$shunt" doctor "$(realpath "${10}")"
says another_nccl_of_other_names 'warning +.*renamed.so has an NCCL linked in under names such as torchcomms_ncclAllReduce' \
	$none "$shunt" doctor "$(realpath "${11}")"
says linked_by_soname 'warning +.*linked_by_soname calls functions of shunt.h and is linked with libshunt.so, whose SONAME is libnccl.so.2' $none "$shunt" doctor "$(realpath "$6")"
says plain_program '/sh itself has nothing to do with NCCL' $none "$shunt" doctor /bin/sh
says script_is_told 'is no program of this machine; a script' $none "$shunt" doctor "$0"
says missing_library 'error +libshunt.so cannot be used' env SHUNT_LIB=/nonexistent "$shunt" doctor
head -c 3000 "$fake" >"$dir/cut.so"
says cut_library_does_no_harm 'libraries' $none "$shunt" doctor "$dir/cut.so"
if command -v cc >/dev/null; then
	echo 'static int ncclAllReduce(void) { return 1; } int main(void) { return ncclAllReduce() - 1; }' >"$dir/hidden.c"
	echo 'const char text[] = "NCCL_DEBUG_SUBSYS";' >>"$dir/hidden.c"
	cc -O0 -o "$dir/hidden" "$dir/hidden.c" && says hidden_copy_is_found 'warning +.*/hidden has NCCL linked in, and hidden' $none "$shunt" doctor "$dir/hidden"
	# What has functions of NCCL's names and is no NCCL: it opens one.
	stub='int ncclAllReduce(void); int main(void) { return ncclAllReduce(); }'
	says_stub() { # NAME TEXT OPTION...
		name=$1 text=$2
		shift 2
		printf '%s\n' "$text" >"$dir/$name.c"
		cc -O0 -o "$dir/$name" "$dir/$name.c" "$@" && says "$name" "info +.*/$name may open libnccl.so by itself" $none "$shunt" doctor "$dir/$name"
	}
	says_stub jumps_are_no_nccl "$stub"' __asm__(".text\n.globl ncclAllReduce\n.hidden ncclAllReduce\n.type ncclAllReduce, %function\nncclAllReduce:\nret\n");'
	says_stub labels_are_no_nccl "$stub"' __asm__(".text\n.globl ncclAllReduce\n.hidden ncclAllReduce\nncclAllReduce:\nret\n");'
	says_stub pointers_are_no_nccl 'int (*volatile ncclAllReduce)(void), (*volatile my_ncclAllReduce)(void); int main(void) { return ncclAllReduce != my_ncclAllReduce; } const char name[] = "libnccl.so.2";'
	says_stub wrappers_are_no_nccl "$stub"' void *dlopen(const char *, int); int ncclAllReduce(void) { return !dlopen("libnccl.so.2", 1); }' -ldl
	says_stub wrappers_of_other_names_are_no_nccl 'int my_ncclAllReduce(void) { return 0; } const char name[] = "libnccl.so.2"; int main(void) { return my_ncclAllReduce(); }'
	says_stub functions_without_nccls_texts_are_no_nccl "$stub"' void *dlopen(const char *, int); int ncclAllReduce(void) { return !dlopen("nccl", 1); }' -ldl
	# A real one, stripped, whatever else it names.
	cat >"$dir/static.c" <<-'C'
		const char *volatile texts[] = { "NCCL version 2.28.9+cuda13.0", "NCCL_DEBUG_SUBSYS", "libnccl.so.2" };
		__attribute__((visibility("hidden"))) int ncclAllReduce(void) { return !texts[0]; }
		int main(void) { return ncclAllReduce(); }
	C
	for strip in '' -s; do
		cc -O0 $strip -o "$dir/static$strip" "$dir/static.c" &&
			says "static_nccl_is_found$strip" 'warning +.*/static(-s)? has NCCL 2.28.9\+cuda13.0 linked in, and hidden' $none "$shunt" doctor "$dir/static$strip"
	done
	echo 'V_1 { ncclAllReduce; };' >"$dir/versions"
	echo 'int ncclAllReduce(void) { return 0; }' >"$dir/versioned.c"
	cc -shared -fPIC -o "$dir/versioned.so" "$dir/versioned.c" -Wl,--version-script="$dir/versions" &&
		says versioned_nccl_is_found 'info +.*/versioned.so has NCCL .*linked in, for all to use' $none "$shunt" doctor "$dir/versioned.so"
	echo 'int ncclSend(void); int f(void) { return ncclSend(); }' >"$dir/sends.c"
	cc -shared -fPIC -o "$dir/sends.so" "$dir/sends.c" && says any_function_of_nccl_counts 'ok +.*/sends.so is linked with NCCL' $none "$shunt" doctor "$dir/sends.so"
	mkdir "$dir/path"
	cc -shared -fPIC -o "$dir/path/libnccl.so.2" "$dir/versioned.c"
	echo 'int main(void) { return 0; }' >"$dir/by_path.c"
	cc -o "$dir/by_path" "$dir/by_path.c" -Wl,--no-as-needed "$dir/path/libnccl.so.2" &&
		says nccl_that_is_needed_by_its_path_counts 'ok +.*/by_path is linked with NCCL' $none "$shunt" doctor "$dir/by_path"
	# A program that has a module of Python's is no such module: what it misses, it misses.
	echo 'int gone(void) { return 0; }' >"$dir/gone.c"
	echo 'int gone(void); void *PyInit_x(void) { return 0; } int main(void) { return gone(); }' >"$dir/python.c"
	cc -shared -fPIC -o "$dir/libgone.so" "$dir/gone.c" && cc -rdynamic -o "$dir/python" "$dir/python.c" -L"$dir" -lgone && rm "$dir/libgone.so" &&
		says interpreter_is_no_module 'needs libgone.so, which is not found' $none "$shunt" doctor "$dir/python"
	# RISC-V's; an object; a part.
	cp "$dir/hidden" "$dir/foreign"
	printf '\363\000' | dd of="$dir/foreign" bs=1 seek=18 conv=notrunc 2>/dev/null
	says other_machines_program_is_told '/foreign is no program of this machine' $none "$shunt" doctor "$dir/foreign"
	says other_machines_library_cannot_be_loaded 'error +LD_PRELOAD has .*/foreign, which cannot be loaded' $none LD_PRELOAD="$dir/foreign" "$shunt" doctor
	cc -c -o "$dir/object.o" "$dir/hidden.c" && says object_is_no_program '/object.o is no program of this machine' $none "$shunt" doctor "$dir/object.o"
	says cut_library_is_told 'warning +.*/cut.so is cut short' $none "$shunt" doctor "$dir/cut.so"
	echo 'int ncclAllReduce(void); int main(void) { return ncclAllReduce(); }' >"$dir/linked.c"
	cp "$fake" "$dir/libnccl.so.2"
	cc -o "$dir/linked" "$dir/linked.c" "$dir/libnccl.so.2" -Wl,-rpath,"$dir" 2>/dev/null &&
		says linked_program_is_found 'ok +.*/linked is linked with NCCL' $none "$shunt" doctor "$dir/linked"
fi

# devices: only where there is no driver is there anything to say of that
if "$shunt" doctor | grep -q 'there is no NVIDIA driver here'; then
	expect no_driver_without_nccl 0 'info +there is no NVIDIA driver here: collectives run on the sim' sh -c '"$@"; exit 0' sh $none "$shunt" doctor
	expect no_driver_with_nccl 2 'error +there is no NVIDIA driver here, and the real NCCL' env SHUNT_NCCL_LIB="$fake" "$shunt" doctor
	expect no_driver_names_the_way_out 2 'SHUNT_NCCL_LIB=none' env SHUNT_NCCL_LIB="$fake" "$shunt" doctor
fi

# The fake driver is for CUDA 12.2. What built the kernels stands in the library as a text.
for built in 12.8 13.0; do
	cp "$mock" "$dir/libshunt_$built.so"
	printf '\0nvcc %s for sm_90\0' "$built" >>"$dir/libshunt_$built.so"
done
old_driver="env SHUNT_NCCL_LIB=none LD_LIBRARY_PATH=$(dirname "$7")"
says driver_of_the_same_cuda_will_do 'libcuda.so.1 is for CUDA 12.2|driver .*, for CUDA up to 12.2' $old_driver SHUNT_LIB="$dir/libshunt_12.8.so" "$shunt" doctor
! grep -q 'too old for the kernels' "$dir/out" || expect driver_of_the_same_cuda_is_not_too_old 0 '' false
if ! grep -aq 'nvcc 1[0-9.]* for sm' "$mock"; then
	says driver_that_is_too_old_is_named 'error +the driver is for CUDA up to 12.2, too old for the kernels in .*/libshunt_13.0.so \(nvcc 13.0 for sm_90\)' \
		$old_driver SHUNT_LIB="$dir/libshunt_13.0.so" "$shunt" doctor
fi

# host, plans
says descriptors_are_tried 'ok +descriptors can be passed' $none "$shunt" doctor
mkdir "$dir/plans" "$dir/empty"
echo '{' >"$dir/plans/broken.json"
says broken_plan 'warning +.*broken.json' $none SHUNT_PLAN_DIR="$dir/plans" "$shunt" doctor
mkdir "$dir/pl[1]*"
cp "$dir/plans/broken.json" "$dir/pl[1]*/odd.json"
cp "$dir/plans/broken.json" "$dir/pl[1]*/.hidden.json"
says folder_is_no_pattern 'warning +.*odd.json' $none SHUNT_PLAN_DIR="$dir/pl[1]*" "$shunt" doctor
says hidden_file_is_no_plan '0 plans can be used, 1 cannot' $none SHUNT_PLAN_DIR="$dir/pl[1]*" "$shunt" doctor
says folder_without_plans 'warning +there are no plans in .*/empty' $none SHUNT_PLAN_DIR="$dir/empty" "$shunt" doctor
says missing_plans 'error +/nonexistent: No such file' $none SHUNT_PLAN_DIR=/nonexistent "$shunt" doctor

# dumps
says_dumps() {
	name=$1 status=$2 pattern=$3
	shift 3
	expect "$name" "$status" "$pattern" "$shunt" doctor dumps "$@"
}
# dump RANK COLLECTIVES OPERATIONS [MORE]: one rank's file, of a communicator of two.
dump() {
	cat >"$dir/d/shunt-h-$((100 + $1))-0.json" <<-END
		{"shunt_dump": 2, "version": "x", "reason": "asked", "host": "h", "pid": $((100 + $1)), "pid_namespace": 0, "program": "p", "time_ns": 10000000000,
		 "communicators": [{"id": "00000001", "key": "k", "rank": $1, "nranks": 2, "device": $1, "state": "ready", "calls": $2, "collectives": $2,
		  "captured_calls": 0${4:-}, "operations": [$3]}]}
	END
}
# op NUMBER KIND COUNT STATE [AGE IN S]
op() {
	printf '{"seq": %d, "number": %d, "kind": "%s", "count": %d, "dtype": "float32", "op": "sum", "path": "oneshot", "stream": "0x7", "time_ns": %d000000000, "captured": false, "state": "%s"}' \
		"$1" "$1" "$2" "$3" $((10 - ${5:-5})) "$4"
}
# One that the real NCCL has.
forwarded() {
	op "$1" "$2" "$3" forwarded | sed 's/"oneshot"/"nccl", "reason": "NCCL is faster at this size"/'
}
mkdir "$dir/d"
dump 0 2 "$(op 1 allreduce 8 finished), $(op 2 allreduce 8 running)"
dump 1 2 "$(op 1 allreduce 8 finished), $(op 2 allreduce 8 enqueued)"
says_dumps device_that_has_not_begun 2 'rank 1 .* is behind: its device has not begun collective 2 .* rank 0 waits since .* \(5.0 s\); it is on stream 0x7' "$dir/d"
dump 1 2 "$(op 1 allreduce 8 finished), $(op 2 allreduce 8 running)"
says_dumps all_in_it 2 'ranks 0 and 1 are in collective 2 .* and none of them ends' "$dir/d"
dump 1 1 "$(op 1 allreduce 8 finished)"
dump 0 2 "$(op 1 allreduce 8 finished), $(op 2 allreduce 8 running 0)"
says_dumps young_difference_is_info 0 'info +.*rank 1 .* has not called collective 2' "$dir/d"
dump 0 1 "$(op 1 broadcast 8 finished)"
says_dumps other_kind 2 'called .* as collective 1, where' "$dir/d"
dump 0 1 "$(op 1 allreduce 8 running)"
dump 1 1 "$(forwarded 1 allreduce 8)"
says_dumps other_path_is_named_with_its_reason 2 'collective 1 \(allreduce of 8 float32, sum\) went to oneshot on rank 0 and to NCCL \(NCCL is faster at this size\) on rank 1' "$dir/d"
dump 1 1 "$(forwarded 1 allreduce 9000)"
says_dumps other_count_and_path_are_named 2 "called allreduce of 8 .* as collective 1, where rank 1 called allreduce of 9000 .*; rank 0's went to oneshot, rank 1's to NCCL \(NCCL is faster at this size\): neither sees the other|\
called allreduce of 9000 .* as collective 1, where rank 0 called allreduce of 8 .*; rank 1's went to NCCL \(NCCL is faster at this size\), rank 0's to oneshot: neither sees the other" "$dir/d"
dump 0 1 "$(op 1 allreduce 8 running)"
dump 1 1 "$(op 1 allreduce 8 unknown)" ', "unresponsive": true'
says_dumps silent_rank_has_not_ended_it 2 'rank 0 is in collective 1 .* since .* \(5.0 s\)$' "$dir/d"
says_dumps held_driver_is_named 2 'CUDA does not answer in rank 1 \(pid 101 on h\): how far the device has come is not known' "$dir/d"
# Two containers of one host name: the processes have one number.
dump 0 1 "$(op 1 allreduce 8 running)"
dump 1 0 ""
sed -i 's/"pid": 10\([01]\), "pid_namespace": 0/"pid": 1, "pid_namespace": 400\1/' "$dir"/d/*.json
says_dumps containers_have_pids_of_their_own 2 'rank 1 \(pid 1 on h\) is behind: it has not called collective 1' "$dir/d"
dump 0 2 "" ', "phase": "set-up", "phase_time_ns": 1000000000'
dump 1 0 ""
sed -i 's/"ready"/"new"/' "$dir"/d/*.json
says_dumps setup_is_named 2 'rank 0 waits in the set-up since .* \(9.0 s\) for rank 1 \(pid 101 on h\), which has not come to it' "$dir/d"
dump 0 1 "$(op 1 allreduce 8 finished)" ', "phase": "agreement on a window", "phase_time_ns": 1000000000'
dump 1 1 "$(op 1 allreduce 8 finished)"
says_dumps window_is_named 2 'rank 0 waits in the agreement on a window since .* \(9.0 s\) for rank 1 \(pid 101 on h\), which has not come to it' "$dir/d"
dump 0 2 "$(op 1 allreduce 8 finished), $(op 2 allreduce 8 running)" ', "phase": "destruction", "phase_time_ns": 6000000000'
says_dumps rank_that_ends_it_waits_for_a_call 2 'rank 1 .* is behind: it has not called collective 2 .* rank 0 waits since .* \(5.0 s\)' "$dir/d"
dump 0 1 "$(op 1 allreduce 8 finished)" ', "phase": "destruction", "phase_time_ns": 6000000000'
says_dumps end_is_named 2 'rank 0 waits in the destruction since .* \(4.0 s\)$' "$dir/d"
mkdir "$dir/e"
says_dumps empty_directory_is_error 2 'there are no dumps' "$dir/e"
echo '[1]' >"$dir/e/a"
says_dumps other_json_is_error 2 'is not a dump' "$dir/e/a"
echo '{"shunt_dump": 2, "communicators": [' >"$dir/e/a"
says_dumps cut_file_is_error 2 'line ' "$dir/e/a"
mkdir "$dir/some [1]"
dump 0 2 "$(op 1 allreduce 8 finished), $(op 2 allreduce 8 running)"
dump 1 1 "$(op 1 allreduce 8 finished)"
cp "$dir"/d/*.json "$dir/some [1]"
says_dumps brackets_are_part_of_a_name 2 'rank 1 .* has not called collective 2' "$dir/some [1]"
: >"$dir/some [1]/shunt-h-1-0.json"
says_dumps empty_file_does_not_drop_the_others 2 'rank 1 .* has not called collective 2' "$dir/some [1]"
says_dumps empty_file_is_told 2 'warning +.*/some \[1\]/shunt-h-1-0.json is left out' "$dir/some [1]"
says_dumps named_empty_file_is_an_error 2 'error +.*/shunt-h-1-0.json is left out' "$dir/some [1]/shunt-h-1-0.json" "$dir/d"
says_dumps nothing_but_empty_files_is_error 2 'shunt-h-1-0.json: line' "$dir/some [1]/shunt-h-1-0.json"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && setpriv --reuid=65534 --clear-groups "$shunt" --version >/dev/null 2>&1; then
	chmod 711 "$dir"
	mkdir -m 700 "$dir/closed"
	expect closed_directory_is_told_as_such 2 'closed: Permission denied' setpriv --reuid=65534 --clear-groups "$shunt" doctor dumps "$dir/closed"
	mkdir -p "$dir/closed/.cache/shunt/default"
	says closed_cache_is_told 'warning +.*/closed/.cache/shunt/default is in the home of another user' $none HOME="$dir/closed" \
		setpriv --reuid=65534 --clear-groups "$shunt" doctor
	says closed_plans_are_told 'error +.*/closed: Permission denied' $none SHUNT_PLAN_DIR="$dir/closed" \
		setpriv --reuid=65534 --clear-groups "$shunt" doctor
fi
echo '{"shunt_dump": 0, "version": "0.1.0", "why": "asked", "communicators": []}' >"$dir/e/a"
says_dumps format_of_before_is_named 2 'another version \("0.1.0"\)' "$dir/e/a"
echo '{"shunt_dump": 9, "version": "7.0", "communicators": []}' >"$dir/e/a"
says_dumps newer_format_is_error 2 'another version \("7.0"\)' "$dir/e/a"
# What is not of the format is refused by a line that names it.
dump 0 1 "$(op 1 allreduce 8 finished)"
good=$dir/d/shunt-h-100-0.json
sed 's/"shunt_dump": 2/"shunt_dump": 1/' "$good" >"$dir/e/a"
says_dumps first_format_is_read 1 'rank 1 has no dump here' "$dir/e/a"
refuses() {
	name=$1 pattern=$2
	shift 2
	sed "$@" "$good" >"$dir/e/a"
	says_dumps "refused_$name" 2 "/e/a: $pattern" "$dir/e/a"
}
refuses other_field 'communicators\[0\] has a field "frob", which is none of format 2' 's/"rank": 0/"rank": 0, "frob": 1/'
refuses other_field_at_the_top 'it has a field "frob", which is none' 's/"host"/"frob": {}, "host"/'
refuses missing_field 'communicators\[0\].captured_calls is missing' 's/"captured_calls": 0,//'
refuses missing_field_of_a_call 'communicators\[0\].operations\[0\].seq is missing' 's/"seq": 1, //'
refuses text_for_a_number 'communicators\[0\].calls is a string, expected a whole number' 's/"calls": 1/"calls": "1"/'
refuses number_for_a_text 'communicators\[0\].operations\[0\].kind is a number, expected a string' 's/"allreduce"/5/'
refuses number_out_of_range 'communicators\[0\].rank is -2, expected -1 to 2147483647' 's/"rank": 0/"rank": -2/'
refuses number_of_more_than_64_bits 'time_ns is more than 64 bits' 's/"time_ns": 1[0-9]*/"time_ns": 99999999999999999999/'
refuses number_for_a_call 'communicators\[0\].operations\[0\] is a number, expected an object' 's/"operations": .*\]}\]}/"operations": [7]}]}/'
refuses object_for_a_list 'communicators\[0\].operations is an object, expected an array' 's/"operations": .*\]}\]}/"operations": {}}]}/'
refuses list_for_a_list_of_numbers 'communicators\[0\].sends\[1\] is a string' 's/"operations"/"sends": [1, "x"], "operations"/'
refuses depth 'nested more than 64 deep' "s/\"operations\".*/\"operations\": $(printf '%0100d' 0 | tr 0 '[')/"
refuses many_brackets '[0-9]+ objects and arrays in [0-9]+ bytes are too many' "s/\"operations\".*/\"operations\": [$(printf '%05000d' 0 | sed 's/0/[],/g')/"
refuses escape_in_a_field 'it has a field "\?\[31m", which is none' 's/"host"/"\\u001b[31m": 1, "host"/'
dump 0 2 "$(op 1 allreduce 8 finished), $(op 2 allreduce 8 running)"
dump 1 1 "$(op 1 allreduce 8 finished)"
sed -i 's/"host": "h"/"host": "\\u001b[31mh"/' "$dir"/d/*.json
says_dumps escape_in_a_name_is_made_visible 2 'rank 1 \(pid 101 on \?\[31mh\) is behind' "$dir/d"
! grep -q "$(printf '\033')" "$dir/out"
verdict escape_in_a_name_is_not_printed
dump 0 1 "$(op 1 allreduce 8 finished)"
sed 's/"rank": 0, "nranks": 2/"rank": 0, "nranks": 99999999/; s/"number": 1/"number": 9223372036854775807/; s/"collectives": 1/"collectives": 18446744073709551615/; s/"operations"/"sends": [18446744073709551615], "operations"/' "$good" >"$dir/e/a"
says_dumps large_numbers_do_no_harm 0 'no dump has a communicator whose ranks are known' "$dir/e/a"
"$shunt" doctor dumps --fields >"$dir/table" || failed=1
sed -n '/^| field | type | since | meaning |$/,/^$/p' "$(dirname "$0")/../../docs/doctor.md" | sed '/^$/d' >"$dir/page"
diff "$dir/page" "$dir/table" >"$dir/out"
verdict page_has_the_fields "replace the table in docs/doctor.md by the output of: shunt doctor dumps --fields"
exit $failed

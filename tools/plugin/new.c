/* SPDX-License-Identifier: MIT */
/* shunt plugin new: writes a small all-reduce that works, and the lines that build and check it. */
#include "tools/common/libc.h"
#include "algos/plugins.h"
#include "tools/plugin/plugin.h"

static const char usage[] = "usage: shunt plugin new NAME [-o DIRECTORY]\n\n"
                            "Writes NAME.cu, an all-reduce of float32 that works, and NAME.sh, which builds NAME.so "
                            "from it (for the sim, and for\n"
                            "GPUs where there is an nvcc) and checks it. Existing files stay as they are.\n\n";

struct new_opts {
	const char *directory;
};

static const struct option_row rows[] = { { "output", 'o', OPTION_TEXT, "DIRECTORY",
	                                      .at = offsetof(struct new_opts, directory), .help = "where to (.)" },
	{ 0 } };
const struct option_table plugin_new_options = { usage, rows, NULL };

/* ~ stands for the name. */
static const char source[] =
    "/*\n"
    " * ~: an all-reduce of float32. Every rank stores its input into all ranks' scratch, waits for all, and adds up.\n"
    " * shunt/kernel.h has all that a kernel can call; docs/plugins.md of Shunt explains each part.\n"
    " */\n"
    "#include \"shunt/kernel.h\"\n"
    "\n"
    "#define MOST (1u << 18) /* elements */\n"
    "\n"
    "SHUNT_PLUGIN_KERNEL(~)\n"
    "{\n"
    "	const float *in = (const float *)call.send;\n"
    "	float *out = (float *)call.recv;\n"
    "	const uint32_t first = shunt_k_bid() * shunt_k_ntid() + shunt_k_tid(), step = shunt_k_nbid() * "
    "shunt_k_ntid();\n"
    "	/* Two sets of slots take turns: a rank may be in the next call while another still reads. */\n"
    "	const uint64_t set = (epoch & 1) * call.nranks * MOST;\n"
    "\n"
    "	for (uint64_t i = first; i < call.count; i += step)\n"
    "		for (uint32_t r = 0; r < call.nranks; r++)\n"
    "			((float *)call.scratch[r])[set + call.rank * MOST + i] = in[i];\n"
    "	if (!shunt_k_barrier(call)) /* false: the communicator is broken */\n"
    "		return;\n"
    "	/* The ranks' order, so that all come to the same sum. */\n"
    "	for (uint64_t i = first; i < call.count; i += step) {\n"
    "		const float *slots = (const float *)call.scratch[call.rank] + set + i;\n"
    "		float sum = slots[0];\n"
    "\n"
    "		for (uint32_t r = 1; r < call.nranks; r++)\n"
    "			sum += slots[r * MOST];\n"
    "		out[i] = sum;\n"
    "	}\n"
    "}\n"
    "\n"
    "/* The table, which the host's compiler builds. IMAGE: the file that nvcc has made of this one. */\n"
    "#if !defined(__CUDACC__)\n"
    "#if defined(IMAGE)\n"
    "SHUNT_PLUGIN_IMAGE(~, IMAGE)\n"
    "#else\n"
    "static const void *~_image() { return nullptr; }\n"
    "static uint64_t ~_image_bytes() { return 0; }\n"
    "#endif\n"
    "\n"
    "static struct shunt_plugin table()\n"
    "{\n"
    "	struct shunt_plugin p = {};\n"
    "\n"
    "	p.size = sizeof(p);\n"
    "	p.abi = SHUNT_PLUGIN_ABI;\n"
    "	p.name = \"~\";\n"
    "	p.doc = \"every rank stores its input into all ranks' scratch\";\n"
    "	p.collectives = \"allreduce\";\n"
    "	p.dtypes = 1u << 7; /* ncclFloat32 */\n"
    "	p.redops = 1u << 0; /* ncclSum */\n"
    "	p.max_bytes = 4 * MOST;\n"
    "	p.scratch_bytes = 2ull * SHUNT_PLUGIN_RANKS * 4 * MOST;\n"
    "	p.min_ranks = 2;\n"
    "	p.max_ranks = SHUNT_PLUGIN_RANKS;\n"
    "	p.flags = SHUNT_PLUGIN_COUNTED; /* as SHUNT_PLUGIN_KERNEL does */\n"
    "	p.image = ~_image();\n"
    "	p.image_bytes = ~_image_bytes();\n"
    "	p.launch = { nullptr, 8, 512, 0, 0 }; /* blocks, threads */\n"
    "	p.sim = ~_sim;\n"
    "	return p;\n"
    "}\n"
    "\n"
    "static const struct shunt_plugin plugin = table();\n"
    "extern \"C\" SHUNT_API const struct shunt_plugin *const shunt_plugins_1[] = { &plugin, nullptr };\n"
    "#endif\n";

static const char script[] =
    "#!/bin/sh\n"
    "# Builds ~.so and checks it on the sim. SHUNT: the command; CXX: the compiler of the host; CHECK: options of the "
    "check.\n"
    "set -eu\n"
    "cd \"$(dirname \"$0\")\"\n"
    "shunt=${SHUNT:-shunt}\n"
    "include=$($shunt path include)\n"
    "if command -v \"${NVCC:=nvcc}\" >/dev/null; then\n"
    "	\"$NVCC\" -fatbin -std=c++17 -O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \\\n"
    "		-gencode arch=compute_90,code=compute_90 -I\"$include\" -o ~.fatbin ~.cu\n"
    "	set -- -DIMAGE='\"~.fatbin\"'\n"
    "else\n"
    "	set --\n"
    "fi\n"
    "${CXX:-g++} -std=c++17 -O2 -fPIC -shared -x c++ \"$@\" -I\"$include\" -o ~.so ~.cu\n"
    "$shunt plugin check ${CHECK:-} ~.so\n"
    "echo \"To run it: SHUNT_PLUGINS=$PWD/~.so SHUNT_ALGO=allreduce:0-inf:~ $shunt bench\"\n";

static int write_file(const struct new_opts *o, const char *name, const char *ending, const char *text, mode_t mode)
{
	struct tool_file file;
	struct stat st;
	char path[PATH_MAX];
	int err;

	if (snprintf(path, sizeof(path), "%s/%s%s", o->directory, name, ending) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	if (!stat(path, &st)) {
		tool_error("%s is there already: remove it, or choose another name or directory", path);
		return -EEXIST;
	}
	err = tool_file_begin(&file, path);
	if (err)
		return err;
	for (; *text; text++)
		if (*text == '~')
			fputs(name, file.out);
		else
			putc(*text, file.out);
	err = tool_file_end(&file, 0);
	if (!err && chmod(path, mode))
		err = -errno;
	if (!err)
		printf("%s\n", path);
	return err;
}

int plugin_new_main(int argc, char **argv)
{
	struct new_opts o = { "." };
	int first, status = options_parse(&plugin_new_options, &o, argc, argv, &first), err;
	const char *name;

	if (status >= 0)
		return status;
	if (first + 1 != argc)
		return tool_usage_error("which name?");
	name = argv[first];
	if (!shunt_plugin_row_of_any(SHUNT_ALLREDUCE, name) || (*name >= '0' && *name <= '9'))
		return tool_usage_error("\"%.40s\" cannot be a plug-in's name: a-z, 0-9 and _, at most 31, a letter "
		                        "first, and none of Shunt's",
		    name);
	err = write_file(&o, name, ".cu", source, 0644);
	if (!err)
		err = write_file(&o, name, ".sh", script, 0755);
	return err ? TOOL_FAIL : TOOL_OK;
}

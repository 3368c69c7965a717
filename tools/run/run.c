/* SPDX-License-Identifier: MIT */
/* shunt run: sets the environment in which a program's NCCL calls go to Shunt, then exec. */
#include "tools/common/libc.h"
#include "base/place.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"
#include "tools/watch/watch.h"

static void print_export(const char *name)
{
	const char *value = getenv(name);

	if (!value)
		return;
	printf("export %s='", name);
	for (; *value; value++) {
		if (*value == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*value);
	}
	puts("'");
}

/* NCCL cannot run without GPUs, so Shunt runs standalone on the sim unless the user names a library. */
static int device_set(const char *device)
{
	return setenv("SHUNT_DEVICE", device, 1) ||
	    (!strcmp(device, "sim") && !tool_nccl_lib() && setenv("SHUNT_NCCL_LIB", "none", 1));
}

/* A folder of the package whose packages have the names of others. Exit status, or -1 if all is well. */
static int alias_set(const char *folder)
{
	char package[PATH_MAX], path[PATH_MAX];
	int n;

	if (tool_python_package(package))
		return TOOL_FAIL;
	n = snprintf(path, sizeof(path), "%s/%s", package, folder);
	if (n < 0 || n >= PATH_MAX || strchr(path, ':')) {
		tool_error("PYTHONPATH cannot hold the path \"%s\": it has a colon or is too long", path);
		return TOOL_FAIL;
	}
	if (tool_env_prepend("PYTHONPATH", path)) {
		tool_error("cannot set the environment: %s", strerror(ENOMEM));
		return TOOL_FAIL;
	}
	return -1;
}

/*
 * The loader splits LD_PRELOAD at blanks and colons, LD_LIBRARY_PATH at colons and semicolons, and has no quoting. A
 * name without a slash is looked for in LD_LIBRARY_PATH. -EINVAL: neither can hold the path.
 */
static int preload_set(const char *lib)
{
	char folder[PATH_MAX];
	const char *name = strrchr(lib, '/') + 1;
	int err;

	if (!strpbrk(lib, ": \t\n"))
		return tool_env_prepend("LD_PRELOAD", lib);
	snprintf(folder, sizeof(folder), "%.*s", (int)(name - 1 - lib), lib);
	if (strpbrk(folder, ":;") || strpbrk(name, ": \t\n"))
		return -EINVAL;
	err = tool_env_prepend("LD_LIBRARY_PATH", folder);
	return err ? err : tool_env_prepend("LD_PRELOAD", name);
}

struct run_opts {
	struct watch_opts watch;
	bool watches, stats, print, mscclpp, deep_ep, nccl_ep, ras;
	int device; /* index in devices, -1: none given */
};
static const char *const devices[] = { "auto", "cuda", "sim", NULL };

#define AT(field) .at = offsetof(struct run_opts, field)
static const struct option_row rows[] = {
	{ "stats", 0, OPTION_FLAG, AT(stats),
	    .help = "print each communicator's counters when it is destroyed (SHUNT_STATS=1)" },
	{ "device", 0, OPTION_WORD, "D", AT(device), .names = devices,
	    .help = "auto, cuda or sim (SHUNT_DEVICE); with sim SHUNT_NCCL_LIB=none, too, unless it is set" },
	{ "mscclpp", 0, OPTION_FLAG, AT(mscclpp),
	    .help = "`import mscclpp` in a Python program is Shunt's package of that name (PYTHONPATH)" },
	{ "deep-ep", 0, OPTION_FLAG, AT(deep_ep),
	    .help = "`import deep_ep` in a Python program is Shunt's module of that name (docs/ep.md)" },
	{ "nccl-ep", 0, OPTION_FLAG, AT(nccl_ep),
	    .help = "libnccl_ep.so.0 is Shunt's, for programs without a real NCCL (docs/ep.md)" },
	{ "watch", 0, OPTION_FLAG, AT(watches),
	    .help =
	        "stay the program's parent, and look at it and its children from time to time, as `shunt watch` does" },
	WATCH_OPTIONS("with --watch: ", 0),
	{ "ras", 0, OPTION_FLAG, AT(ras),
	    .help = "`ncclras` that the program starts, as Ray does, counts Shunt's calls, too (PATH)" },
	{ "print", 0, OPTION_FLAG, AT(print),
	    .help = "print the variables as shell commands instead of running a program" },
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt run [--stats] [--device D] [--mscclpp] [--deep-ep] [--nccl-ep] [--ras] [--] PROGRAM "
	"[ARGUMENT...]\n"
	"       shunt run --watch [--hang TIME] [--on-hang WHAT] ... [--] PROGRAM [ARGUMENT...]\n"
	"       shunt run [--stats] [--device D] [--mscclpp] [--deep-ep] [--nccl-ep] [--ras] --print\n\n"
	"Runs an unmodified program with Shunt in front of NCCL. Sets LD_PRELOAD, in an installation LD_LIBRARY_PATH "
	"too, "
	"and\n"
	"what the options name; then it becomes the program. Its children inherit all of these.\n\n",
	rows,
	"SHUNT_LIB names another libshunt.so than the one beside this program.\n"
	"With --on-hang exit: keep the dumps, end the program and all that it started, exit with status 75.\n"
	"Exit status: the program's; 126 if it cannot be run, 127 if it is not found, 2 for a wrong option.\n",
	.stops = true,
};

static int run_main(int argc, char **argv)
{
	char lib[PATH_MAX], links[PATH_MAX];
	struct run_opts o = { .watch = WATCH_OPTS, .device = -1 };
	int first, err = 0, status = options_parse(&options, &o, argc, argv, &first);

	if (status >= 0)
		return status;
	if (o.stats)
		err = setenv("SHUNT_STATS", "1", 1);
	if (err || (o.device >= 0 && device_set(devices[o.device]))) {
		tool_error("cannot set the environment: %s", strerror(errno));
		return TOOL_FAIL;
	}
	if (first == argc && !o.print)
		return tool_usage_error("which program?");
	if (o.nccl_ep && (!tool_nccl_lib() || strcmp(tool_nccl_lib(), "none")))
		return tool_usage_error(
		    "--nccl-ep is for programs without a real NCCL: set SHUNT_NCCL_LIB=none, too; with "
		    "one, NVIDIA's libnccl_ep runs as it is");
	if (first < argc && o.print)
		return tool_usage_error("--print runs no program, so it takes no \"%s\"", argv[first]);
	if (tool_lib_path(lib))
		return TOOL_FAIL;
	err = preload_set(lib);
	if (err == -EINVAL) {
		tool_error(
		    "neither LD_PRELOAD nor LD_LIBRARY_PATH can hold the path \"%s\": put it where no folder has a "
		    "colon or semicolon, and its name no space",
		    lib);
		return TOOL_FAIL;
	}
	/* For programs that dlopen("libnccl.so"). All others need only the preload. */
	if (!err && shunt_place_find(SHUNT_PLACE_LINKS, lib, links))
		err = tool_env_prepend("LD_LIBRARY_PATH", links);
	if (!err && o.nccl_ep && !shunt_place_find(SHUNT_PLACE_NCCL_EP, lib, links)) {
		tool_error("--nccl-ep: there is no libnccl_ep.so.0 beside %s: is it installed as a whole?", lib);
		return TOOL_FAIL;
	}
	if (!err && o.nccl_ep)
		err = tool_env_prepend("LD_LIBRARY_PATH", links);
	if (!err && o.ras && !shunt_place_find(SHUNT_PLACE_RAS, lib, links)) {
		tool_error("--ras: there is no shunt/bin/ncclras beside %s: is it installed as a whole?", lib);
		return TOOL_FAIL;
	}
	if (!err && o.ras)
		err = tool_env_prepend("PATH", links);
	if (!err && o.mscclpp && (status = alias_set("compat")) >= 0)
		return status;
	if (!err && o.deep_ep && (status = alias_set("alias")) >= 0)
		return status;
	if (err) {
		tool_error("cannot set the environment: %s", strerror(-err));
		return TOOL_FAIL;
	}
	if (o.print) {
		signal(SIGPIPE, SIG_DFL); /* as of the commands that start no program */
		static const char *const names[] = { "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "SHUNT_STATS",
			"SHUNT_DEVICE", "SHUNT_NCCL_LIB", "PATH" };

		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) - !o.ras; i++) /* PATH is the last */
			print_export(names[i]);
		return TOOL_OK;
	}
	if (o.watches)
		return watch_program(&o.watch, argv + first);
	execvp(argv[first], argv + first);
	err = errno;
	tool_error("cannot run %s: %s", argv[first], strerror(err));
	return err == ENOENT ? 127 : 126;
}

const struct tool_cmd tool_cmd_run = {
	.name = "run", .summary = "run a program with Shunt in front of NCCL", .options = &options, .run = run_main
};

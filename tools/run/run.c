/* SPDX-License-Identifier: MIT */
/* shunt run: sets the environment in which a program's NCCL calls go to Shunt, then exec. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/common/tool.h"

static const char run_help[] =
    "usage: shunt run [--stats] [--device D] [--] PROGRAM [ARGUMENT...]\n"
    "       shunt run [--stats] [--device D] --print\n\n"
    "Runs an unmodified program with Shunt in front of NCCL. Sets LD_PRELOAD, in an installation LD_LIBRARY_PATH too, "
    "and\n"
    "what the options name; then it becomes the program. Its children inherit all of these.\n\n"
    "  --stats      print each communicator's counters when it is destroyed (SHUNT_STATS=1)\n"
    "  --device D   auto, cuda or sim (SHUNT_DEVICE); with sim SHUNT_NCCL_LIB=none, too, unless it is set\n"
    "  --print      print the variables as shell commands instead of running a program\n\n"
    "SHUNT_LIB names another libshunt.so than the one beside this program.\n"
    "Exit status: the program's; 126 if it cannot be run, 127 if it is not found, 2 for a wrong option.\n";

/* Sets value, or value:old if the variable has a value. 0 or -ENOMEM. */
static int env_prepend(const char *name, const char *value)
{
	const char *old = getenv(name);
	char *joined;
	int err;

	if (!old || !*old)
		return setenv(name, value, 1) ? -ENOMEM : 0;
	if (asprintf(&joined, "%s:%s", value, old) < 0)
		return -ENOMEM;
	err = setenv(name, joined, 1) ? -ENOMEM : 0;
	free(joined);
	return err;
}

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

static int run_main(int argc, char **argv)
{
	static const struct option options[] = { { "stats", no_argument, NULL, 's' },
		{ "device", required_argument, NULL, 'd' }, { "print", no_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' }, { 0 } };
	static const char *const devices[] = { "auto", "cuda", "sim" };
	char lib[PATH_MAX], links[PATH_MAX];
	const char *device = NULL;
	bool print = false;
	int opt, err = 0;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, "+:h", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			err = setenv("SHUNT_STATS", "1", 1);
			break;
		case 'd':
			if (tool_lookup(optarg, devices, 3) < 0)
				return tool_usage_error("--device takes auto, cuda or sim, not \"%s\"", optarg);
			device = devices[tool_lookup(optarg, devices, 3)];
			break;
		case 'p':
			print = true;
			break;
		case 'h':
			fputs(run_help, stdout);
			return TOOL_OK;
		default:
			return tool_option_error(opt, argv[optind - 1]);
		}
	}
	if (err || (device && device_set(device))) {
		tool_error("cannot set the environment: %s", strerror(errno));
		return TOOL_FAIL;
	}
	if (optind == argc && !print)
		return tool_usage_error("which program?");
	if (optind < argc && print)
		return tool_usage_error("--print runs no program, so it takes no \"%s\"", argv[optind]);
	if (tool_lib_path(lib))
		return TOOL_FAIL;
	/* The loader splits LD_PRELOAD at these characters and has no quoting. */
	if (strpbrk(lib, ": \t\n")) {
		tool_error("LD_PRELOAD cannot hold the path \"%s\": it has a space or colon", lib);
		return TOOL_FAIL;
	}
	err = env_prepend("LD_PRELOAD", lib);
	/* For programs that dlopen("libnccl.so"). All others need only the preload. */
	if (!err && !tool_links_dir(lib, links))
		err = env_prepend("LD_LIBRARY_PATH", links);
	if (err) {
		tool_error("cannot set the environment: %s", strerror(-err));
		return TOOL_FAIL;
	}
	if (print) {
		static const char *const names[] = { "LD_PRELOAD", "LD_LIBRARY_PATH", "SHUNT_STATS", "SHUNT_DEVICE",
			"SHUNT_NCCL_LIB" };

		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
			print_export(names[i]);
		return TOOL_OK;
	}
	execvp(argv[optind], argv + optind);
	err = errno;
	tool_error("cannot run %s: %s", argv[optind], strerror(err));
	return err == ENOENT ? 127 : 126;
}

const struct tool_cmd tool_cmd_run = {
	.name = "run", .summary = "run a program with Shunt in front of NCCL", .help = run_help, .run = run_main
};

/* SPDX-License-Identifier: MIT */
/* shunt plan build: becomes Python, which runs the program and writes its plans (python/libshunt/_build.py). */
#include "tools/common/libc.h"
#include "tools/plan/plan.h"

struct build_opts {
	const char *out;
};

#define AT(field) .at = offsetof(struct build_opts, field)
static const struct option_row rows[] = {
	{ "output", 'o', OPTION_TEXT, "DIRECTORY", AT(out),
	    .help = "where NAME.json of each plan goes; made if need be (.)" },
	{ .type = OPTION_END },
};
const struct option_table plan_build_options = {
	"usage: shunt plan build [-o DIRECTORY] PROGRAM.py [ARGUMENT...]\n"
	"       shunt plan build PROGRAM.py [ARGUMENT...] -o DIRECTORY\n\n"
	"Runs a program in the language of plans (docs/dsl.md), also one that is written for MSCCL++, by python3. Each "
	"plan\n"
	"that it writes by JSON() or to_json() goes to a file, and is checked: a line for each. What the program "
	"prints "
	"is\n"
	"left out.\n\n",
	rows,
	"Exit status: 0 all plans are right, 1 one is not, or there is none, or the program fails, 2 wrong option.\n",
	.stops = true,
};

int plan_build_main(int argc, char **argv)
{
	char package[PATH_MAX], script[PATH_MAX], lib[PATH_MAX];
	struct build_opts o = { 0 };
	int first, n, status = options_parse(&plan_build_options, &o, argc, argv, &first);

	if (status >= 0)
		return status;
	if (!o.out && argc - first > 2 && (!strcmp(argv[argc - 2], "-o") || !strcmp(argv[argc - 2], "--output"))) {
		o.out = argv[argc - 1];
		argc -= 2;
	}
	if (first >= argc)
		return tool_usage_error("which program?");
	if (tool_python_package(package) || tool_lib_path(lib))
		return TOOL_FAIL;
	n = snprintf(script, sizeof(script), "%s/_build.py", package);
	const char **args = calloc((size_t)(argc - first) + 4, sizeof(*args));

	/* The package's command is the file beside this library, so it is this command. */
	if (n < 0 || n >= PATH_MAX || !args || setenv("SHUNT_LIB", lib, 1)) {
		tool_error("cannot run python3: %s", strerror(ENOMEM));
		free((void *)args);
		return TOOL_FAIL;
	}
	args[0] = "python3";
	args[1] = script;
	args[2] = o.out ? o.out : ".";
	memcpy((void *)(args + 3), argv + first, (size_t)(argc - first) * sizeof(*args));
	execvp(args[0], (char *const *)args);
	tool_error("cannot run python3: %s", strerror(errno));
	free((void *)args);
	return TOOL_FAIL;
}

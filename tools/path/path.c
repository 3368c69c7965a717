/* SPDX-License-Identifier: MIT */
/* shunt path: where this installation has what other programs are built or started with. */
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/common/options.h"
#include "tools/common/tool.h"

static const struct option_table options = {
	"usage: shunt path lib|link|include\n\n"
	"  lib      libshunt.so, for LD_PRELOAD and dlopen\n"
	"  link     the folder with a libnccl.so that is Shunt: LIBRARY_PATH=$(shunt path link) cc ... -lnccl\n"
	"  include  the folder with shunt/shunt.h: cc -I$(shunt path include) ...\n\n",
	NULL,
	"SHUNT_LIB names another libshunt.so than the one beside this program. Exit status: 1 if it is not there.\n"
};

/* Prints the first of these folders, relative to the library's, that has the file. False: none has. */
static bool print_folder(const char *lib, const char *const *folders, const char *file)
{
	char copy[PATH_MAX], real[PATH_MAX];

	snprintf(copy, sizeof(copy), "%s", lib);
	for (const char *base = dirname(copy); *folders; folders++) {
		char path[PATH_MAX];
		int n = snprintf(path, sizeof(path), "%s/%s/%s", base, *folders, file);

		if (n <= 0 || n >= PATH_MAX || access(path, R_OK))
			continue;
		path[(size_t)n - strlen(file) - 1] = 0;
		if (!realpath(path, real))
			continue;
		puts(real);
		return true;
	}
	return false;
}

static int path_main(int argc, char **argv)
{
	/*
	 * A wheel has no links: there the libnccl.so beside the library is for the linker, and that of its folder shunt
	 * for the loader. In the build tree headers are in the source tree, which has the build in it.
	 */
	static const char *const links[] = { ".", "shunt", NULL };
	static const char *const headers[] = { "../include", "../../include", "../../../include", NULL };
	int first, status = options_parse(&options, NULL, argc, argv, &first);
	char lib[PATH_MAX];

	if (status >= 0)
		return status;
	if (first + 1 != argc)
		return tool_usage_error("which path? lib, link or include");
	const char *what = argv[first];

	if (strcmp(what, "lib") && strcmp(what, "link") && strcmp(what, "include"))
		return tool_usage_error("there is no path \"%s\"; it is lib, link or include", what);
	if (tool_lib_path(lib))
		return TOOL_FAIL;
	if (!strcmp(what, "lib")) {
		puts(lib);
		return TOOL_OK;
	}
	if (!strcmp(what, "link") ? print_folder(lib, links, "libnccl.so") :
	                            print_folder(lib, headers, "shunt/shunt.h"))
		return TOOL_OK;
	tool_error("there %s beside %s: is it installed as a whole?",
	    strcmp(what, "link") ? "are no headers" : "is no libnccl.so to link with", lib);
	return TOOL_FAIL;
}

const struct tool_cmd tool_cmd_path = { .name = "path",
	.summary = "where the library, what to link with, and the headers are",
	.options = &options,
	.run = path_main };

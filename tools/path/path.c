/* SPDX-License-Identifier: MIT */
/* shunt path: where this installation has what other programs are built or started with. */
#include <stdlib.h>
#include <string.h>
#include "base/place.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

#define WHATS(or) "lib" or "link" or "include" or "cmake" or "pkgconfig" or "python"

static const struct option_table options = {
	"usage: shunt path " WHATS(
	    "|") "\n\n"
	         "  lib        libshunt.so, for LD_PRELOAD and dlopen\n"
	         "  link       the folder with a libnccl.so that is Shunt: LIBRARY_PATH=$(shunt path link) cc ... "
	         "-lnccl\n"
	         "  include    the folder with shunt/shunt.h: cc -I$(shunt path include) ...\n"
	         "  cmake      the folder with shuntConfig.cmake: cmake -Dshunt_DIR=$(shunt path cmake) ...\n"
	         "  pkgconfig  the folder with shunt.pc: PKG_CONFIG_PATH=$(shunt path pkgconfig) pkg-config --libs "
	         "shunt\n"
	         "  python     the folder with the package libshunt: PYTHONPATH=$(shunt path python) python3 ...\n\n",
	NULL,
	"SHUNT_LIB names another libshunt.so than the one beside this program. Exit status: 1 if it is not there.\n"
};

static const struct {
	const char *what, *lacks;
	enum shunt_place place;
} folders[] = {
	{ "link", "is no libnccl.so to link with", SHUNT_PLACE_LINKING },
	{ "include", "are no headers", SHUNT_PLACE_HEADERS },
	{ "cmake", "is no shuntConfig.cmake", SHUNT_PLACE_CMAKE },
	{ "pkgconfig", "is no shunt.pc", SHUNT_PLACE_PKGCONFIG },
};

/* Of the library, or of the package libshunt. */
static int path_print(const char *what)
{
	char lib[PATH_MAX], dir[PATH_MAX];
	size_t i = 0;

	if (!strcmp(what, "python")) {
		if (tool_python_package(dir))
			return TOOL_FAIL;
		printf("%.*s\n", (int)(strrchr(dir, '/') - dir), dir);
		return TOOL_OK;
	}
	while (i < sizeof(folders) / sizeof(folders[0]) && strcmp(what, folders[i].what))
		i++;
	if (i == sizeof(folders) / sizeof(folders[0]) && strcmp(what, "lib"))
		return tool_usage_error("there is no path \"%s\"; it is one of " WHATS(", "), what);
	if (tool_lib_path(lib))
		return TOOL_FAIL;
	if (!strcmp(what, "lib")) {
		puts(lib);
		return TOOL_OK;
	}
	if (!shunt_place_find(folders[i].place, lib, dir)) {
		tool_error("there %s beside %s: is it installed as a whole?", folders[i].lacks, lib);
		return TOOL_FAIL;
	}
	puts(dir);
	return TOOL_OK;
}

static int path_main(int argc, char **argv)
{
	int first, status = options_parse(&options, NULL, argc, argv, &first);

	if (status >= 0)
		return status;
	if (first + 1 != argc)
		return tool_usage_error("which path? " WHATS(", "));
	return path_print(argv[first]);
}

const struct tool_cmd tool_cmd_path = { .name = "path",
	.summary = "where the library, what to link with, the headers and the Python package are",
	.options = &options,
	.run = path_main };

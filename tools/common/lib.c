/* SPDX-License-Identifier: MIT */
/* Finds and opens libshunt.so. */
#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tools/common/tool.h"

#ifndef TOOL_LIBDIR_FROM_BINDIR
#define TOOL_LIBDIR_FROM_BINDIR "../lib"
#endif

static bool is_file(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode);
}

int tool_lib_path(char path[PATH_MAX])
{
	/* Relative to this executable's directory: the build tree first, then the installed places. */
	static const char *const places[] = { "../src/libshunt.so", "../src/shim/libshunt.so",
		(TOOL_LIBDIR_FROM_BINDIR "/libshunt.so"), "../lib/libshunt.so", "../lib64/libshunt.so" };
	const char *given = getenv("SHUNT_LIB");
	char self[PATH_MAX];
	ssize_t len;

	if (given && *given) {
		if (is_file(given) && realpath(given, path))
			return 0;
		tool_error("SHUNT_LIB is \"%s\", which is not a file", given);
		return -ENOENT;
	}
	len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (len > 0) {
		self[len] = 0;
		const char *dir = dirname(self);

		for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
			char candidate[PATH_MAX];
			int n = snprintf(candidate, sizeof(candidate), "%s/%s", dir, places[i]);

			if (n > 0 && n < PATH_MAX && is_file(candidate) && realpath(candidate, path))
				return 0;
		}
	}
	tool_error("cannot find libshunt.so beside this program; set SHUNT_LIB to its path");
	return -ENOENT;
}

int tool_links_dir(const char *lib_path, char dir[PATH_MAX])
{
	/* Relative to the library's directory: installed, then the build tree. */
	static const char *const places[] = { "shunt", "lib/shunt", "links" };
	char copy[PATH_MAX];

	snprintf(copy, sizeof(copy), "%s", lib_path);
	const char *base = dirname(copy);

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char candidate[PATH_MAX];
		int n = snprintf(candidate, sizeof(candidate), "%s/%s/libnccl.so", base, places[i]);

		if (n <= 0 || n >= PATH_MAX || !is_file(candidate))
			continue;
		candidate[n - strlen("/libnccl.so")] = 0;
		if (realpath(candidate, dir))
			return 0;
	}
	return -ENOENT;
}

void *tool_dlopen(const char *path)
{
	int flags = RTLD_NOW | RTLD_LOCAL;

	/* A sanitizer's run-time library refuses deep binding. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	flags |= RTLD_DEEPBIND;
#endif
	return dlopen(path, flags);
}

int tool_lib_open(struct tool_lib *lib)
{
	int err = tool_lib_path(lib->path);

	if (err)
		return err;
	lib->handle = tool_dlopen(lib->path);
	if (!lib->handle) {
		tool_error("cannot open %s: %s", lib->path, dlerror());
		return -ELIBACC;
	}
	const struct {
		const char *name;
		void **func_p;
	} funcs[] = {
#define X(name) { "shunt_" #name, (void **)&lib->name },
		TOOL_LIB_FUNCS(X)
#undef X
	};
	for (size_t i = 0; i < sizeof(funcs) / sizeof(funcs[0]); i++) {
		*funcs[i].func_p = dlsym(lib->handle, funcs[i].name);
		if (!*funcs[i].func_p) {
			tool_error("%s has no %s: it is not the libshunt.so of this version", lib->path, funcs[i].name);
			return -ELIBBAD;
		}
	}
	return 0;
}

/* SPDX-License-Identifier: MIT */
/* Finds and opens libshunt.so. */
#include "tools/common/libc.h"
#include "base/place.h"
#include "tools/common/tool.h"

static bool is_file(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode);
}

int tool_lib_path(char path[PATH_MAX])
{
	const char *given = getenv("SHUNT_LIB");
	char dir[PATH_MAX], file[PATH_MAX];

	if (given && *given) {
		if (is_file(given) && realpath(given, path))
			return 0;
		tool_error("SHUNT_LIB is \"%s\", which is not a file", given);
		return -ENOENT;
	}
	if (shunt_place_find(SHUNT_PLACE_LIBRARY, NULL, dir) &&
	    (size_t)snprintf(file, sizeof(file), "%s/libshunt.so", dir) < sizeof(file) && is_file(file) &&
	    realpath(file, path))
		return 0;
	tool_error("cannot find libshunt.so beside this program; set SHUNT_LIB to its path");
	return -ENOENT;
}

void *tool_dlopen(const char *path)
{
	/* Ranks as threads: ThreadSanitizer does not see that the loader has run constructors before it returns. */
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	int flags = RTLD_NOW | RTLD_LOCAL;
	void *handle;

	/* A sanitizer's run-time library refuses deep binding. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	flags |= RTLD_DEEPBIND;
#endif
	pthread_mutex_lock(&one);
	handle = dlopen(path, flags);
	pthread_mutex_unlock(&one);
	return handle;
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

/* SPDX-License-Identifier: MIT */
/* Where the default plans of this installation lie. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/config.h"
#include "plan/plan_registry_priv.h"

enum { LEVELS = 4 }; /* from prefix/lib/TRIPLET/libshunt.so to prefix, and one more */

/* The file that this code is in: a library, or the program itself, whose name may be without a path. */
static bool own_file(char path[PATH_MAX])
{
	static const char here;
	Dl_info info;

	return dladdr(&here, &info) && info.dli_fname &&
	    realpath(strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe", path);
}

bool shunt_plan_defaults_dir(char *dir, size_t bytes)
{
	const char *named = shunt_config()->default_plans;
	char path[PATH_MAX], *slash;
	struct stat st;

	if (*named)
		return (size_t)snprintf(dir, bytes, "%s", named) < bytes;
	if (!own_file(path))
		return false;
	for (int i = 0; i < LEVELS && (slash = strrchr(path, '/')) && slash != path; i++) {
		*slash = '\0';
		if ((size_t)snprintf(dir, bytes, "%s/share/shunt/plans", path) < bytes && !stat(dir, &st) &&
		    S_ISDIR(st.st_mode))
			return true;
	}
	return false;
}

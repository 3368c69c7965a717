/* SPDX-License-Identifier: MIT */
#include "base/place.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * A folder with a file that it must have. First that of a build tree, then that of an installation, as Meson was told,
 * then that of a wheel, whose files come from an installation. up: so many folders above that of the file that looks
 * are tried, the nearest first; 3 leads from prefix/lib/TRIPLET to prefix, and one further.
 */
#define PLACES 3
static const struct {
	const char *folder[PLACES], *file;
	int up;
} rows[SHUNT_PLACE_COUNT] = {
	[SHUNT_PLACE_LIBRARY] = { { "src", SHUNT_LIBDIR, "lib" }, "libshunt.so", 3 },
	[SHUNT_PLACE_LINKS] = { { "shunt" }, "libnccl.so", 0 },
	/* A wheel has no links: the linker needs the file beside the library, the loader that in the folder. */
	[SHUNT_PLACE_LINKING] = { { ".", "shunt" }, "libnccl.so", 0 },
	[SHUNT_PLACE_HEADERS] = { { SHUNT_INCLUDEDIR, "include" }, "shunt/shunt.h", 3 },
	[SHUNT_PLACE_CMAKE] = { { SHUNT_LIBDIR "/cmake/shunt", "lib/cmake/shunt" }, "shuntConfig.cmake", 3 },
	[SHUNT_PLACE_PKGCONFIG] = { { SHUNT_LIBDIR "/pkgconfig", "lib/pkgconfig" }, "shunt.pc", 3 },
	[SHUNT_PLACE_PLANS] = { { SHUNT_DATADIR "/shunt/plans", "share/shunt/plans" }, ".", 3 },
	[SHUNT_PLACE_TUNING] = { { SHUNT_DATADIR "/shunt/tuning", "share/shunt/tuning" }, ".", 3 },
	[SHUNT_PLACE_PYTHON] = { { "python/libshunt", SHUNT_PYTHONDIR "/libshunt", "." }, "compat/mscclpp/__init__.py",
	    3 },
	[SHUNT_PLACE_RAS] = { { "shunt/bin", "../tools" }, "ncclras", 0 }, /* tools: of a build tree */
	/* A folder of its own: in front of NCCL, programs must find NVIDIA's. */
	[SHUNT_PLACE_NCCL_EP] = { { "shim/nccl_ep", "shunt/nccl_ep" }, "libnccl_ep.so.0", 0 },
};

/* Path of the mapping that holds the address. */
static bool mapping_path(const void *address, char path[PATH_MAX])
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[PATH_MAX + 128];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		unsigned long from, to;
		const char *slash = strchr(line, '/');

		if (sscanf(line, "%lx-%lx", &from, &to) != 2 || !slash || (unsigned long)address < from ||
		    (unsigned long)address >= to)
			continue;
		snprintf(path, PATH_MAX, "%.*s", (int)strcspn(slash, "\n"), slash);
		found = true;
	}
	if (f)
		fclose(f);
	return found && !access(path, F_OK);
}

bool shunt_place_own(char path[PATH_MAX])
{
	static const char here;
	Dl_info info;

	/* dladdr() may give a name that was relative to another working folder, or the program's name without a path.
	 */
	return mapping_path(&here, path) ||
	    (dladdr(&here, &info) && info.dli_fname &&
	        realpath(strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe", path));
}

/* folder: of the file that looks, or one above it. A place outside of the prefix is absolute. */
static bool is_there(const char *folder, const char *place, const char *file, char path[PATH_MAX])
{
	char dir[PATH_MAX], name[PATH_MAX];

	return (size_t)snprintf(dir, sizeof(dir), "%s/%s", *place == '/' ? "" : folder, place) < sizeof(dir) &&
	    (size_t)snprintf(name, sizeof(name), "%s/%s", dir, file) < sizeof(name) && !access(name, R_OK) &&
	    realpath(dir, path);
}

bool shunt_place_find(enum shunt_place what, const char *from, char path[PATH_MAX])
{
	char folder[PATH_MAX], *slash;

	if (from ? !realpath(from, folder) : !shunt_place_own(folder))
		return false;
	for (int i = 0; i <= rows[what].up && (slash = strrchr(folder, '/')) && slash != folder; i++) {
		*slash = '\0';
		for (int k = 0; k < PLACES && rows[what].folder[k]; k++)
			if (is_there(folder, rows[what].folder[k], rows[what].file, path))
				return true;
	}
	return false;
}

/* SPDX-License-Identifier: MIT */
/*
 * libshunt_api.so.0: the functions of include/shunt under a SONAME of their own, for programs that are linked with
 * them. libshunt.so itself has NCCL's SONAME, so the loader may give NVIDIA's library to a program that is linked with
 * it.
 *
 * There is no state here. The first call looks for a libshunt.so that the process has loaded, in whatever way, by the
 * name of an object that only it exports; else it loads the one beside this file. Each function is then looked up there
 * by its name, which is all that the two files need to have in common. This file uses nothing else of src/.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "shunt/device.h"
#include "shunt/ep.h"
#include "shunt/plugin.h"
#include "shunt/shunt.h"

#define MAIN_FILE "libshunt.so"
#define MARK "shunt_state_0" /* src/shim/api.c */

static void *main_library; /* set once; never closed, as libshunt.so cannot be unloaded */
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct names {
	char **at;
	size_t n;
};

static int name_add(struct dl_phdr_info *info, size_t bytes, void *arg)
{
	struct names *names = arg;
	char **at;

	(void)bytes;
	if (!info->dlpi_name || !*info->dlpi_name) /* the program */
		return 0;
	at = realloc(names->at, (names->n + 1) * sizeof(*at));
	if (!at)
		return 1;
	names->at = at;
	at[names->n] = strdup(info->dlpi_name);
	names->n += at[names->n] != NULL;
	return 0;
}

/* The first library in the order of loading, so a preloaded one comes before all others. NULL: none is loaded. */
static void *find_loaded(void)
{
	struct names names = { 0 };
	void *found = NULL;

	dl_iterate_phdr(name_add, &names);
	for (size_t i = 0; i < names.n; i++) {
		void *handle = found ? NULL : dlopen(names.at[i], RTLD_LAZY | RTLD_NOLOAD);
		/* dlsym also finds functions of the libraries with which the handle's library is linked. */
		void *mark = handle ? dlsym(handle, MARK) : NULL;
		Dl_info info;

		if (mark && dladdr(mark, &info) && info.dli_fname)
			found = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
		if (handle)
			dlclose(handle);
		free(names.at[i]);
	}
	free(names.at);
	return found;
}

/*
 * Loads the one beside this file, or above it, where a wheel has it, whose folder lib/shunt has copies for links. Its
 * own names do not enter the process's scope; NCCL's SONAME is Shunt from then on.
 */
static void *load_beside(void)
{
	char path[PATH_MAX], above[PATH_MAX], *slash;
	void *handle;
	Dl_info info;

	if (!dladdr(&once, &info) || !info.dli_fname || !realpath(info.dli_fname, path) ||
	    !(slash = strrchr(path, '/')) || (size_t)(slash + 1 - path) + sizeof(MAIN_FILE) > sizeof(path)) {
		fprintf(stderr,
		    "shunt: libshunt_api.so.0 cannot tell where it is: preload libshunt.so, as `shunt run` does\n");
		return NULL;
	}
	strcpy(slash + 1, MAIN_FILE);
	if ((size_t)snprintf(above, sizeof(above), "%.*s/../" MAIN_FILE, (int)(slash - path), path) < sizeof(above) &&
	    access(path, F_OK) && !access(above, F_OK))
		(void)!realpath(above, path);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		fprintf(stderr,
		    "shunt: libshunt_api.so.0 cannot load libshunt.so (%s): preload it, as `shunt run` does, or put it "
		    "there\n",
		    dlerror());
	return handle;
}

static void find_or_load(void)
{
	main_library = find_loaded();
	if (!main_library)
		main_library = load_beside();
}

/* The function of libshunt.so in *slot, which starts as NULL. 0; -ELIBACC: no library; -ENOSYS: an older one. */
static int look_up(const char *name, _Atomic(void *) *slot, void **function_p)
{
	*function_p = atomic_load_explicit(slot, memory_order_acquire);
	if (*function_p)
		return 0;
	pthread_once(&once, find_or_load);
	if (!main_library)
		return -ELIBACC;
	*function_p = dlsym(main_library, name);
	if (!*function_p)
		return -ENOSYS;
	atomic_store_explicit(slot, *function_p, memory_order_release);
	return 0;
}

/* The results of functions that return a pointer, if there is no library. */
static const char *missing_version(void)
{
	return SHUNT_VERSION; /* of this file */
}
#define missing_build() NULL
#define missing_real_nccl_path() NULL
#define missing_device_kind() NULL
#define missing_torch_alloc() NULL

#define FIND(name) \
	static _Atomic(void *) slot; \
	__typeof__(shunt_##name) *function; \
	int err = look_up("shunt_" #name, &slot, (void **)&function)
/* clang-format off */
#define INT(name, params, args) int shunt_##name params { FIND(name); return err ? err : function args; }
#define POINTER(type, name, params, args) \
	type shunt_##name params { FIND(name); return err ? missing_##name() : function args; }
#define VOID(name, params, args) void shunt_##name params { FIND(name); if (!err) function args; }
/* clang-format on */
#include "shim/api/functions.def"

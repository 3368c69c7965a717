/* SPDX-License-Identifier: MIT */
#include "transport/net/verbs/verbs_load.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct shunt_ibv ibv;
static int ibv_err;
static char problem[400]; /* why there is no library */

/* The variable that the path comes from. */
static const char *variable(void)
{
	static struct shunt_config_row row;

	for (size_t i = 0; shunt_config_row(i, &row); i++)
		if (!strcmp(row.name, "SHUNT_IBV_LIB"))
			return row.source;
	return "SHUNT_IBV_LIB";
}

/* NULL, or the first symbol that is missing. */
static const char *take_symbols(void *lib)
{
	const char *missing = NULL;

#define TAKE(required, field, symbol, version, result, arguments) \
	*(void **)&ibv.field = dlvsym(lib, symbol, version); \
	if (required && !ibv.field && !missing) \
		missing = symbol " of version " version;
	SHUNT_IBV_CALLS(TAKE)
#undef TAKE
	return missing;
}

static void load(void)
{
	const char *path = shunt_config()->ibv_lib, *missing, *name = path;
	void *lib;
	int err = 0;

	if (*path) {
		lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!lib) {
			snprintf(problem, sizeof(problem), "%s=%s cannot be opened: %s", variable(), path, dlerror());
			shunt_error("%s; there will be no verbs", problem);
			ibv_err = -ELIBACC;
			return;
		}
	} else {
		name = "libibverbs.so.1";
		lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
		if (!lib) {
			name = "libibverbs.so";
			lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
		}
		if (!lib) {
			snprintf(problem, sizeof(problem), "libibverbs.so.1 and libibverbs.so cannot be opened: %s",
			    dlerror());
			shunt_info(SHUNT_LOG_INIT | SHUNT_LOG_NET, "no verbs: %s", problem);
			ibv_err = -ENOENT;
			return;
		}
	}
	missing = take_symbols(lib);
	if (missing) {
		snprintf(problem, sizeof(problem), "%s has no %s: libibverbs 1.1.8 of 2014 or later is needed", name,
		    missing);
		shunt_error("no verbs: %s", problem);
		ibv_err = -ELIBBAD;
		dlclose(lib);
		return;
	}
	/* The pages of registered memory stay with the parent of a fork. */
	if (ibv.fork_init)
		err = ibv.fork_init();
	if (err)
		shunt_info(SHUNT_LOG_NET, "ibv_fork_init: %s; forking is safe on kernels that need no such call",
		    strerror(err));
}

int shunt_ibv_load(const struct shunt_ibv **ibv_p)
{
	pthread_once(&once, load);
	*ibv_p = ibv_err ? NULL : &ibv;
	return ibv_err;
}

const char *shunt_ibv_problem(void)
{
	const struct shunt_ibv *unused;

	shunt_ibv_load(&unused);
	return problem;
}

/* SPDX-License-Identifier: MIT */
/* One library that speaks NCCL's ABI, opened beside others. */
#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

/* Where "nccl" is: the library that Shunt itself would use. */
static int real_nccl_path(const struct tool_lib *lib, char path[PATH_MAX])
{
	__typeof__(ncclGetVersion) *get_version = (__typeof__(ncclGetVersion) *)dlsym(lib->handle, "ncclGetVersion");
	const char *found;
	int version;

	/* Shunt looks for it at the first call. */
	if (get_version)
		get_version(&version);
	found = lib->real_nccl_path();
	if (!found) {
		tool_error("--lib nccl: %s found no real NCCL; set SHUNT_NCCL_LIB to its path, or give the path to --lib", lib->path);
		return -ENOENT;
	}
	snprintf(path, PATH_MAX, "%s", found);
	return 0;
}

static int path_resolve(const char *spec, const struct tool_lib *lib, char path[PATH_MAX])
{
	if (!strcmp(spec, "shunt")) {
		snprintf(path, PATH_MAX, "%s", lib->path);
		return 0;
	}
	if (!strcmp(spec, "nccl"))
		return real_nccl_path(lib, path);
	if (!realpath(spec, path)) {
		tool_error("library %s: %s", spec, strerror(errno));
		return -ENOENT;
	}
	return 0;
}

int bench_nccl_open(struct bench_nccl *nccl, const char *spec, const struct tool_lib *lib)
{
	int err = path_resolve(spec, lib, nccl->path);

	if (err)
		return err;
	char copy[PATH_MAX];
	snprintf(copy, sizeof(copy), "%s", nccl->path);
	bool named = !strcmp(spec, "shunt") || !strcmp(spec, "nccl");
	snprintf(nccl->label, sizeof(nccl->label), "%s", named ? spec : basename(copy));

	nccl->handle = tool_dlopen(nccl->path);
	if (!nccl->handle) {
		tool_error("library %s: %s", nccl->path, dlerror());
		return -ELIBACC;
	}
	const struct { const char *name; void *func_p; bool optional; } funcs[] = {
#define X(name) { "nccl" #name, &nccl->name, false },
		BENCH_NCCL_FUNCS(X)
#undef X
#define X(name) { "nccl" #name, &nccl->name, true },
		BENCH_NCCL_OPTIONAL(X)
#undef X
	};
	for (size_t i = 0; i < sizeof(funcs) / sizeof(funcs[0]); i++) {
		void *func = dlsym(nccl->handle, funcs[i].name);

		if (!func && !funcs[i].optional) {
			tool_error("library %s has no %s: it does not speak NCCL's ABI", nccl->path, funcs[i].name);
			return -ELIBBAD;
		}
		memcpy(funcs[i].func_p, &func, sizeof(func));
	}
	nccl->path_of = (__typeof__(shunt_path_of) *)dlsym(nccl->handle, "shunt_path_of");
	nccl->counters = (__typeof__(shunt_counters) *)dlsym(nccl->handle, "shunt_counters");
	if (nccl->GetVersion(&nccl->version))
		nccl->version = 0;
	return 0;
}

int bench_nccl_check(const struct bench_nccl *nccl, int rank, const char *call, ncclResult_t result)
{
	const char *detail;

	if (!result)
		return 0;
	detail = nccl->GetLastError(NULL);
	tool_error("rank %d: %s of %s failed: %s%s%s", rank, call, nccl->label, nccl->GetErrorString(result), detail && *detail ? ": " : "",
		detail ? detail : "");
	return -EIO;
}

/* SPDX-License-Identifier: MIT */
/* One of several libraries with NCCL's ABI in one process. */
#include <libgen.h>
#include <sys/sendfile.h>
#include "tools/common/libc.h"
#include "tools/bench/bench.h"

const char *const bench_memory_names[BENCH_NMEMORIES] = { "plain", "allocated", "registered" };

void tool_spec_split(const char *spec, char name[PATH_MAX], bool *registered_p)
{
	static const char suffix[] = ":reg";
	size_t len = strlen(spec), end = sizeof(suffix) - 1;

	*registered_p = len > end && !strcmp(spec + len - end, suffix);
	snprintf(name, PATH_MAX, "%.*s", (int)(*registered_p ? len - end : len), spec);
}

/* Path of "nccl": the library that Shunt itself would use. */
static int real_nccl_path(const struct tool_lib *lib, char path[PATH_MAX])
{
	__typeof__(ncclGetVersion) *get_version = (__typeof__(ncclGetVersion) *)dlsym(lib->handle, "ncclGetVersion");
	const char *found;
	int version;

	/* Shunt looks for NCCL at the first call. */
	if (get_version)
		get_version(&version);
	found = lib->real_nccl_path();
	if (!found) {
		tool_error("--lib nccl or forwarded: %s found no real NCCL; set SHUNT_NCCL_LIB to its path, or give "
		           "the path to --lib",
		    lib->path);
		return -ENOENT;
	}
	snprintf(path, PATH_MAX, "%s", found);
	return 0;
}

/* Opens a copy of a library. The loader takes it for another library, with a state of its own. */
static void *lib_copy_open(const char *path)
{
	int from = open(path, O_RDONLY | O_CLOEXEC), to = memfd_create("libshunt-forwarded.so", MFD_CLOEXEC);
	struct stat st = { 0 };
	void *handle = NULL;
	off_t at = 0;
	char name[64];

	if (from < 0 || to < 0 || fstat(from, &st))
		goto out;
	while (at < st.st_size && sendfile(to, from, &at, (size_t)(st.st_size - at)) > 0)
		;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", to);
	handle = at == st.st_size ? tool_dlopen(name) : NULL;
out:
	if (from >= 0)
		close(from);
	if (to >= 0 && !handle) /* else keep it: a later file must not get this name */
		close(to);
	return handle;
}

/*
 * Shunt with every call forwarded to the real NCCL. One instance for all threads. It reads its configuration in this
 * function; then the variable gets its old value back.
 */
static void *forwarding_lib_open(const struct tool_lib *lib)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static void *handle;
	const char *before;
	char *saved;

	pthread_mutex_lock(&lock);
	if (!handle) {
		before = getenv("SHUNT_FORCE_NCCL");
		saved = before ? strdup(before) : NULL;
		setenv("SHUNT_FORCE_NCCL", "all", 1);
		handle = lib_copy_open(lib->path);
		if (handle) {
			__typeof__(ncclGetVersion) *get_version =
			    (__typeof__(ncclGetVersion) *)dlsym(handle, "ncclGetVersion");
			int version;

			if (get_version)
				get_version(&version);
		}
		if (saved)
			setenv("SHUNT_FORCE_NCCL", saved, 1);
		else
			unsetenv("SHUNT_FORCE_NCCL");
		free(saved);
	}
	pthread_mutex_unlock(&lock);
	return handle;
}

static int path_resolve(const char *spec, const struct tool_lib *lib, char path[PATH_MAX])
{
	if (!strcmp(spec, "forwarded")) {
		int err = real_nccl_path(lib, path);

		snprintf(path, PATH_MAX, "%s", lib->path);
		return err;
	}
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

ncclDataType_t bench_nccl_dtype(enum shunt_dtype dtype)
{
	enum shunt_dtype element = shunt_dtype_rows[dtype].element;

	return element == SHUNT_F8E4M3B15 ? ncclUint8 : (ncclDataType_t)element;
}

ncclResult_t bench_nccl_format(
    const struct bench_nccl *nccl, ncclComm_t comm, enum shunt_dtype dtype, ncclRedOp_t *redop_p)
{
	const struct shunt_dtype_row *row = &shunt_dtype_rows[dtype];
	struct shunt_numerics numerics = { .size = sizeof(numerics),
		.e4m3b15 = row->element == SHUNT_F8E4M3B15,
		.accumulate = row->accumulator == SHUNT_F32 ? SHUNT_ACCUMULATE_FP32 :
		    row->accumulator == row->element        ? SHUNT_ACCUMULATE_OWN :
		                                              SHUNT_ACCUMULATE_FP16 };
	__typeof__(shunt_redop_create) *create;
	int redop;

	if (!shunt_dtype_is_format(dtype))
		return ncclSuccess;
	create = (__typeof__(shunt_redop_create) *)dlsym(nccl->handle, "shunt_redop_create");
	if (!create || create(comm, (int)*redop_p, (int)bench_nccl_dtype(dtype), &numerics, &redop))
		return ncclInvalidUsage;
	*redop_p = (ncclRedOp_t)redop;
	return ncclSuccess;
}

int bench_nccl_open(struct bench_nccl *nccl, const char *spec, const struct tool_lib *lib)
{
	int err = path_resolve(spec, lib, nccl->path);

	if (err)
		return err;
	char copy[PATH_MAX];
	snprintf(copy, sizeof(copy), "%s", nccl->path);
	bool forwarded = !strcmp(spec, "forwarded"),
	     named = forwarded || !strcmp(spec, "shunt") || !strcmp(spec, "nccl");
	snprintf(nccl->label, sizeof(nccl->label), "%s", named ? spec : basename(copy));

	nccl->handle = forwarded ? forwarding_lib_open(lib) : tool_dlopen(nccl->path);
	if (!nccl->handle) {
		tool_error("library %s: %s", nccl->path, dlerror());
		return -ELIBACC;
	}
	const struct {
		const char *name;
		void *func_p;
		bool optional;
	} funcs[] = {
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

bool bench_nccl_is_alone(const struct bench_nccl *nccl)
{
	__typeof__(shunt_real_nccl_path) *path =
	    (__typeof__(shunt_real_nccl_path) *)dlsym(nccl->handle, "shunt_real_nccl_path");

	return path && !path();
}

int bench_nccl_check(const struct bench_nccl *nccl, int rank, const char *call, ncclResult_t result)
{
	const char *detail;

	if (!result)
		return 0;
	detail = nccl->GetLastError(NULL);
	tool_error("rank %d: %s of %s failed: %s%s%s", rank, call, nccl->label, nccl->GetErrorString(result),
	    detail && *detail ? ": " : "", detail ? detail : "");
	return -EIO;
}

/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/config.h"
#include "base/log.h"
#include "device/gpu_ops.h"
#include "shim/real/find.h"
#include "shim/real/real.h"
#include "shunt/shunt.h"

/* Sanitizers refuse DEEPBIND; there the re-entry guard alone has to do. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL)
#else
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
#endif

static void *real_handle;
static char *real_path;
static int real_version;
static _Atomic(const char *) published_path;
static const char *missing_reason = "is not supported without a real NCCL";

ncclResult_t shunt_real_missing(const char *name, atomic_bool *logged)
{
	if (!atomic_exchange(logged, true))
		shunt_warn("%s %s: the call fails", name, missing_reason);
	return ncclInvalidUsage;
}

#define TYPED(name, params, args) \
	static ncclResult_t missing_##name params \
	{ \
		static atomic_bool logged; \
		return shunt_real_missing("nccl" #name, &logged); \
	}
#define TEXT(name, params, args) \
	static const char *missing_##name params \
	{ \
		return ""; \
	}
#define VOID(name, params, args) \
	static void missing_##name params \
	{ \
	}
#include "shim/nccl/symbols.def"

struct shunt_real shunt_real = {
#define TYPED(name, params, args) .name = missing_##name,
#define TEXT(name, params, args) .name = missing_##name,
#define VOID(name, params, args) .name = missing_##name,
#include "shim/nccl/symbols.def"
};

void *shunt_real_symbol(const char *name)
{
	return real_handle ? dlsym(real_handle, name) : NULL;
}

static void fill_table(void)
{
	void *symbol;

#define TYPED(name, params, args) \
	symbol = shunt_real_symbol("nccl" #name); \
	if (symbol) \
		shunt_real.name = (__typeof__(shunt_real.name))symbol;
#define TEXT(name, params, args) TYPED(name, params, args)
#define VOID(name, params, args) TYPED(name, params, args)
#include "shim/nccl/symbols.def"
}

/* The reason why the file cannot be the real NCCL, before it is loaded; NULL: it may be. */
static const char *check_file(const char *path)
{
	struct stat st;
	char magic[4] = "";
	int fd;

	if (stat(path, &st))
		return strerror(errno);
	if (S_ISDIR(st.st_mode))
		return "is a directory";
	if (shunt_find_is_self(path))
		return "is Shunt itself";
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return strerror(errno);
	if (read(fd, magic, 4) != 4 || memcmp(magic, "\177ELF", 4)) {
		close(fd);
		return "is not a shared library";
	}
	close(fd);
	return NULL;
}

/* Loads the file. NULL, or the reason why that failed. */
static const char *load_file(const char *path)
{
	const char *reason = check_file(path);
	void *handle;

	if (reason)
		return reason;
	handle = dlopen(path, OPEN_FLAGS);
	if (!handle)
		return dlerror();
	if (dlsym(handle, "shunt_version"))
		reason = "is Shunt itself";
	else if (!dlsym(handle, "ncclAllReduce") || !dlsym(handle, "ncclGetVersion"))
		reason = "is not an NCCL library";
	if (reason) {
		dlclose(handle);
		return reason;
	}
	real_path = strdup(path);
	if (!real_path) {
		dlclose(handle);
		return strerror(ENOMEM);
	}
	real_handle = handle;
	return NULL;
}

static bool try_candidate(const char *path, const char *from, void *arg)
{
	char *resolved = realpath(path, NULL);
	const char *reason;

	if (!resolved)
		return false;
	reason = load_file(resolved);
	shunt_info(SHUNT_LOG_INIT, "real NCCL: %s (%s)%s%s", resolved, from, reason ? ": " : "", reason ? reason : "");
	free(resolved);
	return !reason;
}

/* Opens the path that the user gave, by its absolute name: a bare libnccl.so.2 would be Shunt itself. */
static bool open_explicit(const char *path)
{
	char *resolved = realpath(path, NULL);
	const char *reason = resolved ? load_file(resolved) : strerror(errno), *ours = secure_getenv("SHUNT_NCCL_LIB");

	free(resolved);
	if (reason)
		shunt_error("%s=%s cannot be used: %s; looking for a real NCCL elsewhere",
		    ours && *ours ? "SHUNT_NCCL_LIB" : "MSCCLPP_NCCL_LIB_PATH", path, reason);
	return !reason;
}

/* Takes an NCCL that is linked statically into a library loaded after Shunt. */
static bool open_static(void)
{
	void *symbol = dlsym(RTLD_NEXT, "ncclAllReduce"), *version = dlsym(RTLD_NEXT, "shunt_version");
	Dl_info info, of_version;

	if (!symbol || !dladdr(symbol, &info) || !info.dli_fname || !dlsym(RTLD_NEXT, "ncclGetVersion"))
		return false;
	/* libshunt_api.so.0 has a shunt_version, too, but not NCCL's names. */
	if (shunt_find_is_self(info.dli_fname) ||
	    (version && dladdr(version, &of_version) && of_version.dli_fbase == info.dli_fbase))
		return false;
	real_path = strdup(info.dli_fname);
	if (!real_path)
		return false;
	real_handle = RTLD_NEXT;
	return true;
}

static bool open_library(void)
{
	const char *lib = shunt_config()->nccl_lib;

	if (!strcmp(lib, "none"))
		return false;
	return (*lib && open_explicit(lib)) || shunt_find_nccl(try_candidate, NULL) || open_static();
}

bool shunt_real_open(void)
{
	char *reason;

	if (!open_library()) {
		shunt_info(SHUNT_LOG_INIT, "no real NCCL: standalone");
		return false;
	}
	fill_table();
	if (shunt_real.GetVersion(&real_version) != ncclSuccess)
		real_version = 0;
	missing_reason =
	    asprintf(&reason, "is not in the real NCCL (%s)", real_path) < 0 ? "is not in the real NCCL" : reason;
	atomic_store(&published_path, real_path);
	shunt_gpu_prefer_cuda();
	return true;
}

/* The real library sees one group: for it only the outermost end counts, not the depth. */
ncclResult_t shunt_real_open_group(void)
{
	struct shunt_thread *me = shunt_thread();
	ncclResult_t result;

	me->group.real_due = false;
	/* Not real_GroupStart: the thread's note is that of the call for which the group is opened. */
	me->inside++;
	result = shunt_real.GroupStart();
	me->inside--;
	shunt_real_note_error(result);
	me->group.real_due = result != ncclSuccess;
	return result == ncclSuccess ? result : shunt_group_result(result);
}

int shunt_real_version(void)
{
	return real_version;
}

const char *shunt_real_nccl_path(void)
{
	return atomic_load(&published_path);
}

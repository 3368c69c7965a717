/* SPDX-License-Identifier: MIT */
/*
 * An ordinary NCCL program, for the ways of getting between it and NCCL. Prints "shunt" if its calls reach Shunt, else
 * "nccl". client linked    calls through its link to libnccl.so.2 client dlopen    opens libnccl.so.2 by name, as
 * ctypes does
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "shim/nccl/abi.h"

/* The files with libnccl in their names that are mapped, as programs look for a second NCCL. */
static void print_mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[4096], last[4096] = "";

	while (f && fgets(line, sizeof(line), f)) {
		char *path = strchr(line, '/');

		if (!path || !strstr(path, "libnccl") || !strcmp(path, last))
			continue;
		printf("%s", path);
		strcpy(last, path);
	}
	if (f)
		fclose(f);
}

int main(int argc, char **argv)
{
	ncclResult_t (*get_version)(int *) = ncclGetVersion;
	ncclResult_t (*all_reduce)(
	    const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) = ncclAllReduce;
	int version = 0;
	Dl_info info;

	if (argc > 1 && !strcmp(argv[1], "dlopen")) {
		void *lib = dlopen("libnccl.so.2", RTLD_NOW);
		if (!lib) {
			printf("%s\n", dlerror());
			return 1;
		}
		get_version = (__typeof__(get_version))dlsym(lib, "ncclGetVersion");
		all_reduce = (__typeof__(all_reduce))dlsym(lib, "ncclAllReduce");
	}
	if (get_version(&version) || version < 20000 ||
	    all_reduce(NULL, NULL, 1, ncclInt8, ncclSum, NULL, NULL) != ncclInvalidArgument)
		return 2;
	if (argc > 1 && !strcmp(argv[1], "maps")) {
		print_mapped();
		return 0;
	}
	dladdr((void *)get_version, &info);
	printf("%s\n", dlsym(dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD), "shunt_version") ? "shunt" : "nccl");
	return 0;
}

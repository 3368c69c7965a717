/* SPDX-License-Identifier: MIT */
/*
 * A program that is linked with libshunt_api.so.0. link PLAN [LIBRARY]: opens LIBRARY first, as ctypes does; then
 * registers the plan through libshunt_api.so.0, through its own link, and by the name in every library that has the
 * state of libshunt.so. Prints what the first said, "once" if the others said -EEXIST, whose ncclGetVersion it has
 * (none, nccl or shunt), and the paths of the libraries that have the state.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include "shim/nccl/abi.h"
#include "shunt/device.h"
#include "shunt/shunt.h"

struct states {
	void *at[4];
	int n;
};

static int state_find(struct dl_phdr_info *info, size_t bytes, void *arg)
{
	struct states *s = arg;
	void *handle = *info->dlpi_name ? dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	const char *mark = handle ? dlsym(handle, "shunt_state_0") : NULL;
	Dl_info at;

	(void)bytes;
	if (mark && dladdr(mark, &at) && !strcmp(at.dli_fname, info->dlpi_name) && s->n < 4)
		s->at[s->n++] = handle;
	return 0;
}

/* BESIDE: built with a link to NCCL. */
static const char *whose_nccl(void)
{
#ifdef BESIDE
	int version = 0;
	Dl_info info;

	if (ncclGetVersion(&version) || version < 20000 || !dladdr((void *)ncclGetVersion, &info))
		return "broken";
	return dlsym(dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD), "shunt_state_0") ? "shunt" : "nccl";
#else
	return dlsym(RTLD_DEFAULT, "ncclGetVersion") ? "shunt" : "none";
#endif
}

int main(int argc, char **argv)
{
	void *api;
	__typeof__(shunt_plan_register_file) *add;
	struct shunt_counter row = { 0 };
	struct states states = { 0 };
	size_t n = 1;
	int err, bad = 0;

	if (argc > 2 && !dlopen(argv[2], RTLD_NOW | RTLD_LOCAL)) {
		printf("%s\n", dlerror());
		return 1;
	}
	api = dlopen("libshunt_api.so.0", RTLD_NOW | RTLD_NOLOAD);
	if (!api || argc < 2)
		return 2;
	add = (__typeof__(add))dlsym(api, "shunt_plan_register_file");
	err = add(argv[1], NULL, 0);
	if (err) {
		printf("%s %s\n", shunt_version(), strerrorname_np(-err));
		return shunt_device_kind() || shunt_plan_register_file(argv[1], NULL, 0) != err;
	}
	bad |= shunt_plan_register_file(argv[1], NULL, 0) != -EEXIST;
	bad |= shunt_counters(&row, &row, 1, &n) != -ENOENT;
	dl_iterate_phdr(state_find, &states);
	for (int i = 0; i < states.n; i++) {
		add = (__typeof__(add))dlsym(states.at[i], "shunt_plan_register_file");
		bad |= add(argv[1], NULL, 0) != -EEXIST;
	}
	printf("%s %s", bad ? "differ" : "once", whose_nccl());
	for (int i = 0; i < states.n; i++) {
		struct link_map *map;

		printf(" %s", dlinfo(states.at[i], RTLD_DI_LINKMAP, &map) ? "?" : map->l_name);
	}
	printf(" %s\n", shunt_device_kind());
	return bad;
}

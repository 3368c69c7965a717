/* SPDX-License-Identifier: MIT */
#include "tests/algos/paths.h"
#include <stdlib.h>

const char *path_of_sel(const struct shunt_sel *sel, enum shunt_kind kind, uint64_t bytes)
{
	enum shunt_reason reason;

	return shunt_select_name(sel, kind, SHUNT_U8, SHUNT_SUM, bytes, &reason);
}

const char *path_of(const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes)
{
	return path_of_sel(SEL(key), kind, bytes);
}

const char *path_in_window(const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes)
{
	return path_of_sel(SEL_WINDOW(key), kind, bytes);
}

void path_alone(void)
{
	setenv("SHUNT_TUNING_FILE", "none", 1);
	unsetenv("SHUNT_ALGO");
	unsetenv("SHUNT_FORCE_NCCL");
}

/* SPDX-License-Identifier: MIT */
#include "base/renamed.h"

#include <stdbool.h>
#include <string.h>

static const struct {
	enum shunt_renamed_kind kind;
	const char *old, *text;
} renamed[] = {
#define RENAMED(kind, old, now) { SHUNT_RENAMED_##kind, old, "it is called " now " now" },
#define FOREIGN(name, now) { SHUNT_RENAMED_FOREIGN, name, now },
#define NCCL_ONLY(name, ours) { SHUNT_RENAMED_NCCL_ONLY, name, ours },
#include "base/renamed.def"
#undef NCCL_ONLY
#undef FOREIGN
#undef RENAMED
};

/* A name that ends in * stands for all that begin so. */
static bool is_meant(const char *row, const char *name)
{
	size_t n = strlen(row) - 1;

	return row[n] == '*' ? !strncmp(row, name, n) : !strcmp(row, name);
}

const char *shunt_renamed(enum shunt_renamed_kind kind, const char *name)
{
	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
		if (renamed[i].kind == kind && is_meant(renamed[i].old, name))
			return renamed[i].text;
	return NULL;
}

const char *shunt_renamed_row(enum shunt_renamed_kind kind, size_t i, const char **now_p)
{
	for (size_t j = 0; j < sizeof(renamed) / sizeof(renamed[0]); j++) {
		if (renamed[j].kind != kind || i--)
			continue;
		*now_p = renamed[j].text;
		return renamed[j].old;
	}
	return NULL;
}

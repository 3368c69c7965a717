/* SPDX-License-Identifier: MIT */
#include "base/renamed.h"

#include <string.h>

static const struct {
	enum shunt_renamed_kind kind;
	const char *old, *text;
} renamed[] = {
#define RENAMED(kind, old, now) { SHUNT_RENAMED_##kind, old, "it is called " now " now" },
#define FOREIGN(name, now) { SHUNT_RENAMED_FOREIGN, name, now },
#include "base/renamed.def"
#undef FOREIGN
#undef RENAMED
};

const char *shunt_renamed(enum shunt_renamed_kind kind, const char *name)
{
	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
		if (renamed[i].kind == kind && !strcmp(renamed[i].old, name))
			return renamed[i].text;
	return NULL;
}

const char *shunt_renamed_foreign(size_t i, const char **now_p)
{
	for (size_t j = 0; j < sizeof(renamed) / sizeof(renamed[0]); j++) {
		if (renamed[j].kind != SHUNT_RENAMED_FOREIGN || i--)
			continue;
		*now_p = renamed[j].text;
		return renamed[j].old;
	}
	return NULL;
}

/* SPDX-License-Identifier: MIT */
#include "base/renamed.h"

#include <stddef.h>
#include <string.h>

static const struct {
	enum shunt_renamed_kind kind;
	const char *old, *text;
} renamed[] = {
#define RENAMED(kind, old, now) { SHUNT_RENAMED_##kind, old, "it is called " now " now" },
#include "base/renamed.def"
#undef RENAMED
};

const char *shunt_renamed(enum shunt_renamed_kind kind, const char *name)
{
	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
		if (renamed[i].kind == kind && !strcmp(renamed[i].old, name))
			return renamed[i].text;
	return NULL;
}

/* SPDX-License-Identifier: MIT */
#include "tests/algos/tuning_text.h"
#include "tests/support/unit.h"

struct shunt_tuning *tuning_parsed(const char *text)
{
	struct shunt_tuning *t = NULL;
	char reason[256];

	if (shunt_tuning_parse("x.json", text, strlen(text), &t, reason, sizeof(reason)))
		fail_msg("%s", reason);
	return t;
}

char *tuning_edited(const char *from, const char *to)
{
	const char *at = strstr(tuning_good, from);
	char *text;

	assert_non_null(at);
	assert_true(asprintf(&text, "%.*s%s%s", (int)(at - tuning_good), tuning_good, to, at + strlen(from)) > 0);
	return text;
}

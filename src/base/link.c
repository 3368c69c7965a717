/* SPDX-License-Identifier: MIT */
#include "base/link.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char *const shunt_link_names[SHUNT_LINKS + 1] = { "self", "nvlink", "peer", "shared", "net", NULL };

#define DISTANCE(name) #name,
const char *const shunt_distance_names[SHUNT_DISTANCE_SYS + 2] = { SHUNT_DISTANCES(DISTANCE) NULL };
#undef DISTANCE

/* A rule's pairs: each of one set with each of the other. */
struct rule {
	uint64_t set[2];
	struct shunt_link_rule is;
};

/* "0/1/2", or "*" for all. NULL: neither. */
static const char *read_set(const char *p, uint64_t *set)
{
	*set = 0;
	if (*p == '*') {
		*set = UINT64_MAX;
		return p + 1;
	}
	for (;; p++) {
		unsigned n = 0;
		const char *from = p;

		for (; *p >= '0' && *p <= '9' && n < 64; p++)
			n = n * 10 + (unsigned)(*p - '0');
		if (p == from || n >= 64)
			return NULL;
		*set |= UINT64_C(1) << n;
		if (*p != '/')
			return p;
	}
}

/* The index of this name of n bytes, or -1. */
static int index_of(const char *const *names, const char *text, size_t n)
{
	for (int i = 0; names[i]; i++)
		if (strlen(names[i]) == n && !memcmp(names[i], text, n))
			return i;
	return -1;
}

/* "distance=PXB", "lie=old", "dies=1000" or "stores=posted" at p; returns where it ends. NULL: none of them. */
static const char *read_option(const char *p, struct shunt_link_rule *rule)
{
	static const char *const lies[] = { "honest", "old", "lost", "swap", "silent", "oneway", NULL };
	size_t key = strcspn(p, "=;,"), n = p[key] == '=' ? strcspn(p + key + 1, ";,") : 0;
	const char *value = p + key + 1;
	int i = -1;

	if (n && key == 8 && !memcmp(p, "distance", key) && (i = index_of(shunt_distance_names, value, n)) >= 0)
		rule->distance = (enum shunt_distance)i;
	if (n && key == 3 && !memcmp(p, "lie", key) && (i = index_of(lies, value, n)) >= 0)
		rule->play = (enum shunt_link_play)i;
	if (n && n < 10 && key == 4 && !memcmp(p, "dies", key) && strspn(value, "0123456789") == n) {
		rule->play = SHUNT_LINK_DIES;
		rule->after = (uint32_t)strtoul(value, NULL, 10);
		i = 0;
	}
	if (n == 6 && key == 6 && !memcmp(p, "stores=posted", 13)) {
		rule->play = SHUNT_LINK_POSTED;
		i = 0;
	}
	return i < 0 ? NULL : value + n;
}

/* Reads the rule at p, and returns where the next one begins. NULL: there is no such rule. */
static const char *read_rule(const char *p, struct rule *rule)
{
	p = read_set(p, &rule->set[0]);
	if (!p)
		return NULL;
	rule->set[1] = rule->set[0];
	if (*p == '-' && !(p = read_set(p + 1, &rule->set[1])))
		return NULL;
	if (*p++ != ':')
		return NULL;
	size_t n = strcspn(p, ";,");
	int link = n == 4 && !memcmp(p, "none", n) ? (int)SHUNT_LINK_SHARED : index_of(shunt_link_names, p, n);

	if (link < SHUNT_LINK_NVLINK || link > SHUNT_LINK_SHARED)
		return NULL;
	rule->is = (struct shunt_link_rule){ .link = (enum shunt_link)link,
		.distance = link == SHUNT_LINK_NVLINK ? SHUNT_DISTANCE_NVL : SHUNT_DISTANCE_PIX };
	for (p += n; *p == ',';)
		if (!(p = read_option(p + 1, &rule->is)))
			return NULL;
	return p + (*p != 0);
}

const char *shunt_link_rules_check(const char *text)
{
	struct rule rule;

	while (*text) {
		const char *next = read_rule(text, &rule);

		if (!next)
			return text;
		text = next;
	}
	return NULL;
}

struct shunt_link_rule shunt_link_rules_look(const char *text, int a, int b)
{
	struct shunt_link_rule is = { .link = SHUNT_LINK_NVLINK, .distance = SHUNT_DISTANCE_NVL };
	struct rule rule;

	while (text && *text && (text = read_rule(text, &rule)))
		for (int i = 0; i < 2; i++)
			if (rule.set[i] >> a & rule.set[1 - i] >> b & 1)
				is = rule.is;
	return is;
}

enum shunt_link shunt_link_rules_find(const char *text, int a, int b)
{
	return shunt_link_rules_look(text, a, b).link;
}

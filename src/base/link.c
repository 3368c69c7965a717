/* SPDX-License-Identifier: MIT */
#include "base/link.h"
#include <stdint.h>
#include <string.h>

const char *const shunt_link_names[SHUNT_LINKS + 1] = { "self", "nvlink", "peer", "shared", "net", NULL };

/* A rule's pairs: each of one set with each of the other. */
struct rule {
	uint64_t set[2];
	enum shunt_link link;
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
	size_t n = strcspn(p, ";");
	if (n == 4 && !memcmp(p, "none", n)) {
		rule->link = SHUNT_LINK_SHARED;
		return p + n + (p[n] != 0);
	}
	for (int link = SHUNT_LINK_NVLINK; link <= SHUNT_LINK_SHARED; link++)
		if (strlen(shunt_link_names[link]) == n && !memcmp(p, shunt_link_names[link], n)) {
			rule->link = (enum shunt_link)link;
			return p + n + (p[n] != 0);
		}
	return NULL;
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

enum shunt_link shunt_link_rules_find(const char *text, int a, int b)
{
	enum shunt_link link = SHUNT_LINK_NVLINK;
	struct rule rule;

	while (text && *text && (text = read_rule(text, &rule)))
		for (int i = 0; i < 2; i++)
			if (rule.set[i] >> a & rule.set[1 - i] >> b & 1)
				link = rule.link;
	return link;
}

/* SPDX-License-Identifier: MIT */
#include "transport/net/verbs/gid.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

static bool is_ipv4(const struct shunt_gid *gid)
{
	return !memcmp(gid->raw, mapped, sizeof(mapped));
}

static bool is_link_local(const struct shunt_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static bool is_empty(const struct shunt_gid *gid)
{
	static const uint8_t zero[16];

	/* A link's own prefix without an interface is empty as well. */
	return !memcmp(gid->raw, zero, 16) || (is_link_local(gid) && !memcmp(gid->raw + 8, zero, 8));
}

/* An address with /bits, as a prefix of GIDs. */
static bool parse_range(const char *text, struct shunt_gid_rules *rules)
{
	const char *slash = strchr(text, '/');
	char address[INET6_ADDRSTRLEN];
	size_t n = slash ? (size_t)(slash - text) : strlen(text);
	unsigned long bits, most = 128;
	char *end;

	if (n >= sizeof(address))
		return false;
	memcpy(address, text, n);
	address[n] = '\0';
	memcpy(rules->range, mapped, sizeof(mapped));
	if (inet_pton(AF_INET, address, rules->range + 12) == 1)
		most = 32;
	else if (inet_pton(AF_INET6, address, rules->range) != 1)
		return false;
	bits = slash ? strtoul(slash + 1, &end, 10) : most;
	if (slash && (end == slash + 1 || *end || bits > most))
		return false;
	rules->range_bits = (unsigned)(bits + 128 - most);
	return true;
}

int shunt_gid_rules_parse(const char *family, const char *range, struct shunt_gid_rules *rules_p, const char **bad_p)
{
	int err = 0;

	*rules_p = (struct shunt_gid_rules){ .index = -1 };
	if (family && !strcmp(family, "AF_INET")) {
		rules_p->family = AF_INET;
	} else if (family && !strcmp(family, "AF_INET6")) {
		rules_p->family = AF_INET6;
	} else if (family && *family) {
		*bad_p = family;
		err = -EINVAL;
	}
	if (range && *range && !parse_range(range, rules_p)) {
		rules_p->range_bits = 0;
		*bad_p = range;
		err = -EINVAL;
	}
	return err;
}

int shunt_gid_class(const struct shunt_gid *gid)
{
	int family = is_ipv4(gid) ? 0 : is_link_local(gid) ? 2 : 1;

	return gid->type == SHUNT_GID_IB ? 0 : gid->type == SHUNT_GID_ROCE_V2 ? family : 3 + family;
}

static bool in_range(const struct shunt_gid *gid, const struct shunt_gid_rules *rules)
{
	unsigned whole = rules->range_bits / 8, rest = rules->range_bits % 8;

	return !memcmp(gid->raw, rules->range, whole) &&
	    (!rest || (gid->raw[whole] ^ rules->range[whole]) >> (8 - rest) == 0);
}

static bool allowed(const struct shunt_gid *gid, const struct shunt_gid_rules *rules)
{
	if (is_empty(gid))
		return false;
	if (rules->index >= 0)
		return gid->index == rules->index;
	if (gid->type == SHUNT_GID_IB)
		return true;
	return (!rules->family || (rules->family == AF_INET) == is_ipv4(gid)) &&
	    (!rules->version || (rules->version == 2) == (gid->type == SHUNT_GID_ROCE_V2)) && in_range(gid, rules);
}

int shunt_gid_offer(
    const struct shunt_gid *table, int n, const struct shunt_gid_rules *rules, struct shunt_gid *offered)
{
	int taken = 0;

	for (int class = 0; class < 6; class++)
		for (int i = 0; i < n && taken < SHUNT_GID_MAX_OFFERED; i++)
			if (shunt_gid_class(&table[i]) == class && allowed(&table[i], rules) &&
			    !(taken && table[i].type == SHUNT_GID_IB))
				offered[taken++] = table[i];
	return taken;
}

bool shunt_gid_choose(struct shunt_gids own, struct shunt_gids peers, bool first, int *own_p, int *peers_p)
{
	int best = -1;

	for (int i = 0; i < own.n; i++) {
		for (int j = 0; j < peers.n; j++) {
			int class = shunt_gid_class(&own.list[i]), cost;

			if (own.list[i].type != peers.list[j].type || class != shunt_gid_class(&peers.list[j]))
				continue;
			cost = (class * 2 * SHUNT_GID_MAX_OFFERED + i + j) * SHUNT_GID_MAX_OFFERED + (first ? i : j);
			if (best >= 0 && cost >= best)
				continue;
			best = cost;
			*own_p = i;
			*peers_p = j;
		}
	}
	return best >= 0;
}

void shunt_gid_show(const struct shunt_gid *gid, char *text, size_t bytes)
{
	if (is_ipv4(gid))
		inet_ntop(AF_INET, gid->raw + 12, text, (socklen_t)bytes);
	else
		inet_ntop(AF_INET6, gid->raw, text, (socklen_t)bytes);
}

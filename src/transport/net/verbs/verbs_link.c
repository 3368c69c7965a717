/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include "base/config.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

#define MAX_GIDS 256 /* of a port's table; the index has a byte */

/* The types of the entries of a port's table: the library's, or else sysfs'. Number of entries, or -errno. */
static int read_gids(struct verbs_rail *rail, struct shunt_gid *table)
{
	bool ethernet = rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET;
	struct shunt_ibv_gid_entry *entries;
	int n = 0, port = rail->port->number;
	ssize_t found = -1;

	entries = rail->ibv->query_gid_table ? calloc(2 * MAX_GIDS, sizeof(*entries)) : NULL;
	if (entries)
		found = rail->ibv->query_gid_table(rail->context, entries, 2 * MAX_GIDS, 0, sizeof(*entries));
	for (ssize_t i = 0; i < found && n < MAX_GIDS; i++) {
		if ((int)entries[i].port_num != port || entries[i].gid_index >= MAX_GIDS)
			continue;
		table[n].index = (uint8_t)entries[i].gid_index;
		table[n].type = (uint8_t)entries[i].gid_type;
		memcpy(table[n++].raw, entries[i].gid, 16);
	}
	free(entries);
	if (found > 0)
		return n;
	for (int i = 0; i < rail->attr.gid_tbl_len && i < MAX_GIDS; i++) {
		_Alignas(8) uint8_t raw[16]; /* as the library's union */
		char file[64], text[32];

		if (rail->ibv->query_gid(rail->context, (uint8_t)port, i, raw))
			continue;
		/* Of an interface that is in another network namespace the type cannot be read, nor can it be used. */
		snprintf(file, sizeof(file), "ports/%d/gid_attrs/types/%d", port, i);
		if (ethernet && !shunt_nic_read(rail->port->name, file, text, sizeof(text)))
			continue;
		memcpy(table[n].raw, raw, sizeof(raw));
		table[n].index = (uint8_t)i;
		table[n++].type = !ethernet  ? SHUNT_GID_IB :
		    !strcmp(text, "RoCE v2") ? SHUNT_GID_ROCE_V2 :
		                               SHUNT_GID_ROCE_V1;
	}
	return n;
}

int verbs_gids(struct verbs_rail *rail, struct shunt_gid *offered)
{
	const struct shunt_nccl_env *env = shunt_nccl_env();
	struct shunt_gid table[MAX_GIDS];
	struct shunt_gid_rules rules;
	const char *bad;
	int n = read_gids(rail, table), noffered;

	if (shunt_gid_rules_parse(env->ib_addr_family, env->ib_addr_range, &rules, &bad))
		shunt_warn("\"%s\" of NCCL_IB_ADDR_FAMILY or NCCL_IB_ADDR_RANGE cannot be read: it is ignored", bad);
	rules.index = shunt_config()->ib_gid_index;
	rules.version = env->ib_roce_version_num;
	noffered = shunt_gid_offer(table, n, &rules, offered);
	if (noffered || (rules.index < 0 && rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_INFINIBAND))
		return noffered;
	shunt_error(
	    "%s: none of its %d GIDs suits SHUNT_IB_GID_INDEX=%d, NCCL_IB_ADDR_FAMILY=%s, NCCL_IB_ADDR_RANGE=%s and "
	    "NCCL_IB_ROCE_VERSION_NUM=%d",
	    rail->port->info.where, n, rules.index, env->ib_addr_family, env->ib_addr_range, rules.version);
	return -EADDRNOTAVAIL;
}

int verbs_link_of(struct verbs_rail *rail, struct verbs_link *link_p)
{
	int n;

	memset(link_p, 0, sizeof(*link_p)); /* padding is sent, too */
	n = verbs_gids(rail, link_p->gids);
	if (n < 0)
		return n;
	link_p->lid = rail->attr.lid;
	link_p->pkey = rail->pkey;
	link_p->mtu = (uint8_t)rail->attr.active_mtu;
	link_p->ethernet = rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET;
	link_p->ngids = (uint8_t)n;
	return 0;
}

bool verbs_link_is_valid(const struct verbs_link *link)
{
	bool valid = link->ngids <= SHUNT_GID_MAX_OFFERED && link->mtu >= 1 && link->mtu <= 5;

	for (int i = 0; valid && i < link->ngids; i++)
		valid = link->gids[i].type <= SHUNT_GID_ROCE_V2;
	return valid;
}

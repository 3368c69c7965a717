/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "shim/handles/comm_config.h"

#define MAX_CHANNELS 64 /* NCCL's limit on nChannelsPerNetPeer */

/*
 * A number in the struct. since: the caller's header must be at least of this version, else the bytes are padding or
 * behind the struct; 0: the caller's size alone decides. Values outside least..most are refused. INT_MIN..INT_MAX: any
 * value, because Shunt does not use it and its range is not known for every version.
 */
static const struct field {
	const char *name;
	size_t offset;
	unsigned since;
	int least, most;
} fields[] = {
#define FIELD(name, since, least, most) { #name, offsetof(ncclConfig_t, name), since, least, most }
	FIELD(blocking, 21400, 0, 1),
	FIELD(cgaClusterSize, 21700, 0, INT_MAX),
	FIELD(minCTAs, 21700, 1, INT_MAX),
	FIELD(maxCTAs, 21700, 1, INT_MAX),
	FIELD(splitShare, 0, 0, 1),
	FIELD(trafficClass, 22500, INT_MIN, INT_MAX),
	FIELD(collnetEnable, 22700, 0, 1),
	FIELD(CTAPolicy, 22700, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO),
	FIELD(shrinkShare, 22700, 0, 1),
	FIELD(nvlsCTAs, 22700, 1, INT_MAX),
	FIELD(nChannelsPerNetPeer, 22800, 1, MAX_CHANNELS),
	FIELD(nvlinkCentricSched, 22800, 0, 1),
	FIELD(graphUsageMode, 22900, 0, 2),
	FIELD(numRmaCtx, 22900, 0, INT_MAX),
	FIELD(maxP2pPeers, 23000, 1, INT_MAX),
	FIELD(graphStreamOrdering, 23005, 0, 1),
	FIELD(launchOrderImplicit, 23100, INT_MIN, INT_MAX),
	FIELD(numRmaSig, 23100, INT_MIN, INT_MAX),
	FIELD(rmaEagerInit, 23100, INT_MIN, INT_MAX),
	FIELD(hostCftMode, 23100, INT_MIN, INT_MAX),
	FIELD(nvlsHostMode, 23200, 0, INT_MAX),
#undef FIELD
};

static int *field_value(ncclConfig_t *c, const struct field *f)
{
	return (int *)((char *)c + f->offset);
}

static void set_undefined(ncclConfig_t *c)
{
	memset(c, 0, sizeof(*c)); /* pointers: NULL */
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		*field_value(c, &fields[i]) = NCCL_CONFIG_UNDEF_INT;
}

/* Drops fields that the caller's version does not have, and checks the others. */
static int check_fields(ncclConfig_t *c, char *reason, size_t bytes)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		const struct field *f = &fields[i];
		int *value = field_value(c, f);

		if (c->version < f->since)
			*value = NCCL_CONFIG_UNDEF_INT;
		if (*value == NCCL_CONFIG_UNDEF_INT || (*value >= f->least && *value <= f->most))
			continue;
		if (f->most == INT_MAX)
			snprintf(reason, bytes, "%s is %d and must be at least %d", f->name, *value, f->least);
		else
			snprintf(reason, bytes, "%s is %d and must be between %d and %d", f->name, *value, f->least,
			    f->most);
		return -EINVAL;
	}
	/* NCCL compares the values as they are: a minimum without a maximum is refused. */
	if (c->minCTAs > c->maxCTAs) {
		if (c->maxCTAs == NCCL_CONFIG_UNDEF_INT)
			snprintf(reason, bytes, "minCTAs is %d and maxCTAs is not set", c->minCTAs);
		else
			snprintf(reason, bytes, "minCTAs is %d and maxCTAs only %d", c->minCTAs, c->maxCTAs);
		return -EINVAL;
	}
	return 0;
}

/* Of both policies zero counts, as in NCCL. */
static void take_policy(int policy, struct shunt_comm_config *out)
{
	out->no_sms = policy & NCCL_CTA_POLICY_ZERO;
	out->few_ctas = policy == NCCL_CTA_POLICY_EFFICIENCY;
}

int shunt_comm_config_read(const ncclConfig_t *config, const struct shunt_comm_config *inherit,
    struct shunt_comm_config *out, char *reason, size_t bytes)
{
	const struct shunt_nccl_env *env = shunt_nccl_env();
	ncclConfig_t c;
	size_t size;
	int err = 0;

	*out = (struct shunt_comm_config){ .blocking = true };
	set_undefined(&c);
	if (config) {
		memcpy(&size, &config->size, sizeof(size));
		memcpy(
		    &c, config, size < sizeof(c) ? size : sizeof(c)); /* the caller's struct may be shorter or longer */
		if (size < offsetof(ncclConfig_t, blocking) || c.magic != SHUNT_NCCL_CONFIG_MAGIC) {
			snprintf(reason, bytes, "the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
			set_undefined(&c);
			err = -EINVAL;
		} else {
			err = check_fields(&c, reason, bytes);
		}
		if (!err && c.blocking != NCCL_CONFIG_UNDEF_INT)
			out->blocking = c.blocking;
		if (!err && c.maxCTAs != NCCL_CONFIG_UNDEF_INT)
			out->max_ctas = c.maxCTAs;
		if (!err && c.cgaClusterSize != NCCL_CONFIG_UNDEF_INT)
			out->no_clusters = c.cgaClusterSize == 0;
		if (!err && c.CTAPolicy != NCCL_CONFIG_UNDEF_INT)
			take_policy(c.CTAPolicy, out);
		if (!err && c.nvlsHostMode != NCCL_CONFIG_UNDEF_INT)
			out->nvls_off = c.nvlsHostMode & NCCL_NVLS_HOST_MODE_DISABLE_SYMMETRIC_MULTIMEM;
		if (!err && c.launchOrderImplicit != NCCL_CONFIG_UNDEF_INT)
			out->in_order = c.launchOrderImplicit != 0;
		if (!err && c.version >= 22700 && c.commName)
			snprintf(out->name, sizeof(out->name), "%s", c.commName);
	} else if (inherit) {
		*out = *inherit;
	}
	if (env->comm_blocking == 0 || env->comm_blocking == 1)
		out->blocking = env->comm_blocking;
	if (env->launch_order_implicit)
		out->in_order = true;
	if (env->cta_policy >= 0)
		take_policy(env->cta_policy, out);
	if (env->max_ctas > 0)
		out->max_ctas = env->max_ctas;
	if (env->cga_cluster_size >= 0)
		out->no_clusters = env->cga_cluster_size == 0;
	return err;
}

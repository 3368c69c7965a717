/* SPDX-License-Identifier: MIT */
/*
 * The functions of shunt/ep.h, in both modes, and the table of the process's groups. A group's pointer is a number that
 * is never used again, so a pointer that is none, or that of a group that has ended, is told without a look at it.
 */
#include <errno.h>
#include <string.h>
#include <stdlib.h>
#include "algos/ep/room.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/ep/group.h"
#include "kernels/set.h"
#include "shim/calls/thread.h"
#include "shim/handles/child_id.h"
#include "shim/overlay/attach.h"
#include "shim/overlay/pending_child.h"
#include "shunt/ep.h"
#include "transport/rendezvous/bootstrap.h"
#include "transport/rendezvous/bootstrap_group.h"
#include "transport/rendezvous/host_table.h"

_Static_assert(SHUNT_EP_ID_BYTES == SHUNT_BOOTSTRAP_ID_BYTES, "an id of a group is one of a communicator");

/* ---- the table */

struct live {
	struct live *next;
	uintptr_t name;
	struct shunt_ep_group *group;
	unsigned users;
	bool ending;
};

static struct live *groups; /* SHUNT_LOCK_GROUPS */
static uintptr_t last_name;
static pthread_cond_t unused = PTHREAD_COND_INITIALIZER;

/* A forked child has no groups, and nobody who waits. */
static void forget_groups(void)
{
	groups = NULL;
	pthread_cond_init(&unused, NULL);
}
SHUNT_IN_FORKED_CHILD(forget_groups)

static struct live **find(uintptr_t name)
{
	struct live **at = &groups;

	while (*at && (*at)->name != name)
		at = &(*at)->next;
	return at;
}

/* The group, which stays until it is put; NULL: there is none. */
static struct live *get(const struct shunt_ep *name)
{
	struct live *l;

	shunt_lock_acquire(SHUNT_LOCK_GROUPS);
	l = *find((uintptr_t)name);
	if (l && l->ending)
		l = NULL;
	if (l)
		l->users++;
	shunt_lock_release(SHUNT_LOCK_GROUPS);
	return l;
}

static int refuse(const char *call, int err, const char *why)
{
	shunt_warn("shunt_%s: %s", call, why);
	return err;
}

/* The same for a call; the log says where there is none. */
static struct live *look_up(const char *call, const struct shunt_ep *name)
{
	struct live *l = get(name);

	if (!l)
		shunt_warn(
		    "shunt_%s: group is %p, which is no group of this process, or has ended", call, (const void *)name);
	return l;
}

static void put(struct live *l)
{
	shunt_lock_acquire(SHUNT_LOCK_GROUPS);
	if (!--l->users)
		pthread_cond_broadcast(&unused);
	shunt_lock_release(SHUNT_LOCK_GROUPS);
}

static int publish(struct shunt_ep_group *g, struct shunt_ep **group_p)
{
	struct live *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	shunt_lock_acquire(SHUNT_LOCK_GROUPS);
	last_name += 16;
	*l = (struct live){ .next = groups, .name = last_name, .group = g };
	groups = l;
	shunt_lock_release(SHUNT_LOCK_GROUPS);
	*group_p = (struct shunt_ep *)l->name;
	return 0;
}

/* Takes the group out of the table once no thread uses it; its calls that wait end by an abort. */
static struct shunt_ep_group *withdraw(struct live *l, bool abort)
{
	struct shunt_ep_group *g = l->group;
	bool first;

	shunt_lock_acquire(SHUNT_LOCK_GROUPS);
	first = !l->ending;
	l->ending = true;
	shunt_lock_release(SHUNT_LOCK_GROUPS);
	if (!first) { /* another thread ends it */
		put(l);
		return NULL;
	}
	if (abort)
		shunt_ep_group_abort(g);
	shunt_lock_acquire(SHUNT_LOCK_GROUPS);
	l->users--;
	while (l->users)
		pthread_cond_wait(&unused, &shunt_lock_mutex[SHUNT_LOCK_GROUPS]);
	*find(l->name) = l->next;
	shunt_lock_release(SHUNT_LOCK_GROUPS);
	free(l);
	return g;
}

/* ---- create */

struct gathering {
	const void *id; /* by which the ranks come together over TCP; NULL: in the group below */
	struct shunt_bootstrap_group ranks;
	struct shunt_hosts *joined; /* of an id that other groups have, too */
	struct shunt_group_root root;
};

static int refuse_null(const char *call, const char *name)
{
	shunt_warn("shunt_%s: %s is NULL", call, name);
	return -EINVAL;
}

/*
 * Copies the caller's struct, whose first member is its size. Fields that the caller does not know are 0; least: the
 * size that it must have.
 */
static int take(const char *call, const char *name, const void *from, size_t least, void *to, size_t bytes)
{
	size_t size;

	if (!from)
		return refuse_null(call, name);
	memcpy(&size, from, sizeof(size));
	if (size < least) {
		shunt_warn("shunt_%s: size of %s is %zu, and must be at least %zu", call, name, size, least);
		return -EINVAL;
	}
	memset(to, 0, bytes);
	memcpy(to, from, size < bytes ? size : bytes);
	return 0;
}

static int come_together(void *ctx, struct shunt_hosts **hosts_p)
{
	struct gathering *g = ctx;

	if (g->id)
		return shunt_bootstrap_join(g->id, g->ranks.rank, g->ranks.nranks, NULL, hosts_p, NULL);
	return g->ranks.nranks > 1 ? shunt_bootstrap_allgather(&g->ranks, NULL, 0, NULL, hosts_p) : 0;
}

/* Rank 0 of these hosts is where the ranks of the group come together. */
static void take_root(struct gathering *g, const struct shunt_hosts *hosts, int rank)
{
	g->root = (struct shunt_group_root){ .at = hosts->rank[0].group, .fd = rank ? -1 : hosts->group_fd };
}

static int check_ranks(int rank, int nranks)
{
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_check_range(&why, "nranks", nranks, 1, INT32_MAX);

	if (!err)
		err = shunt_ep_check_range(&why, "rank", rank, 0, nranks - 1);
	if (err)
		return refuse("ep_create", err, why.text);
	return nranks > SHUNT_HOSTS_MAX_RANKS ? refuse("ep_create", -EOPNOTSUPP, "more than 64 ranks") : 0;
}

static int describe_by_id(const struct shunt_ep_config *c, struct shunt_ep_desc *d, struct gathering *g)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	struct shunt_id own;
	int err;

	if (!c->id)
		return refuse("ep_create", -EINVAL, "both comm and id are NULL");
	if (!gpu)
		return -ENODEV;
	err = check_ranks(c->rank, c->nranks);
	if (!err && c->device < 0)
		err = gpu->device_get(&d->device);
	else
		d->device = c->device;
	d->rank = c->rank;
	d->nranks = c->nranks;
	if (err)
		return err;
	if (!shunt_bootstrap_id_is_shared(c->id)) {
		g->id = c->id;
		d->id = shunt_id_derive(c->id, SHUNT_EP_ID_BYTES, "expert parallel", 0, 0);
		return 0;
	}
	/* NCCL_COMM_ID's, which other groups have, too. */
	err = shunt_bootstrap_join(c->id, c->rank, c->nranks, NULL, &g->joined, &own);
	if (!err)
		d->id = shunt_id_derive(&own, sizeof(own), "expert parallel", 0, 0);
	if (!err && g->joined)
		take_root(g, g->joined, c->rank);
	return err;
}

/* The same on all ranks: they have counted as many groups. */
static int describe_by_comm(
    struct shunt_entry *e, const struct shunt_ep_config *c, struct shunt_ep_desc *d, struct gathering *g)
{
	const struct shunt_hosts *hosts;
	int err;

	if (e->forward_reason || !shunt_attach_takes_calls(e, (ncclComm_t)c->comm))
		return refuse("ep_create", -EOPNOTSUPP,
		    e->forward_reason ? e->forward_reason :
		                        "the communicator is not ready, or was finalized or revoked");
	d->rank = shunt_comm_rank(e->comm);
	d->nranks = shunt_comm_nranks(e->comm);
	d->device = shunt_comm_device(e->comm);
	d->id = shunt_child_group(e);
	err = check_ranks(d->rank, d->nranks);
	hosts = shunt_comm_hosts(e->comm);
	if (!err && hosts && hosts->rank[0].group.family)
		take_root(g, hosts, d->rank);
	else if (!err)
		err = shunt_comm_check_host(e->comm);
	return err == -EREMOTE ?
	    refuse("ep_create", -EOPNOTSUPP,
	        "the communicator's ranks are on several hosts in front of NCCL, or some have no Shunt; make the group "
	        "from an id") :
	    err;
}

static int create(const struct shunt_ep_desc *d, struct shunt_ep **group_p)
{
	struct shunt_ep_group *g;
	int err = shunt_ep_group_create(d, &g);

	if (!err && (err = publish(g, group_p)))
		shunt_ep_group_destroy(g);
	return err;
}

int shunt_ep_id(void *host)
{
	return host ? shunt_bootstrap_new_id(host) : refuse_null("ep_id", "host");
}

int shunt_ep_create(const struct shunt_ep_config *config, struct shunt_ep **group_p)
{
	struct shunt_ep_config c;
	struct gathering g = { .root.fd = -1 };
	struct shunt_ep_desc d = { .config = &c, .come_together = come_together, .ctx = &g };
	struct shunt_entry *parent = NULL;
	int err;

	if (!group_p)
		return refuse_null("ep_create", "group_p");
	*group_p = NULL;
	err = take("ep_create", "config", config, sizeof(c), &c, sizeof(c));
	if (err)
		return err;
	if (shunt_group_of(shunt_thread()))
		return refuse(
		    "ep_create", -EBUSY, "a group of NCCL calls is open, and its communicators may not be ready");
	if (c.comm && !(parent = shunt_entry_find((ncclComm_t)c.comm)))
		return refuse("ep_create", -EINVAL, "comm is no communicator that Shunt knows");
	err = parent ? describe_by_comm(parent, &c, &d, &g) : describe_by_id(&c, &d, &g);
	if (!err) {
		g.ranks = (struct shunt_bootstrap_group){ .id = shunt_id_derive(&d.id, sizeof(d.id), "gathering", 0, 0),
			.member = d.rank,
			.nmembers = d.nranks,
			.rank = d.rank,
			.nranks = d.nranks,
			.cancel = parent ? &parent->life.cancel : NULL,
			.root = g.root };
		err = create(&d, group_p);
	}
	shunt_hosts_destroy(g.joined);
	shunt_entry_put(parent);
	return err;
}

int shunt_ep_destroy(struct shunt_ep *group, int abort)
{
	struct shunt_ep_group *g;
	struct live *l;

	if (!group)
		return 0;
	l = look_up("ep_destroy", group);
	if (!l)
		return -EINVAL;
	g = withdraw(l, abort);
	if (!g)
		return refuse("ep_destroy", -EINVAL, "another thread ends the group");
	shunt_ep_group_destroy(g);
	return 0;
}

/* ---- calls */

int shunt_ep_bytes(const struct shunt_ep_shape *shape, uint64_t *normal_p, uint64_t *ll_p)
{
	struct shunt_ep_why why = { "" };
	struct shunt_ep_shape s;
	int err = take("ep_bytes", "shape", shape, offsetof(struct shunt_ep_shape, hosts), &s, sizeof(s));

	if (err)
		return err;
	err = shunt_ep_room_needed(&s, normal_p, ll_p, &why);
	return err ? refuse("ep_bytes", err, why.text) : 0;
}

/* A function of a group, which comm has; `before` goes first. */
#define ON_GROUP_AFTER(name, before, params, args) \
	int shunt_ep_##name params \
	{ \
		struct live *l = look_up("ep_" #name, group); \
		int err; \
\
		if (!l) \
			return -EINVAL; \
		before; \
		if (!err) \
			err = shunt_ep_group_##name args; \
		put(l); \
		return err; \
	}
#define ON_GROUP(name, params, args) ON_GROUP_AFTER(name, err = 0, params, args)
/* One whose struct goes to c. least: the size that it must have, as early callers do not know all fields. */
#define WITH_CALL(name, least, params, args) \
	ON_GROUP_AFTER(name, struct shunt_ep_##name c; \
	    err = take("ep_" #name, "call", call, least, &c, sizeof(c)), params, args)
/* clang-format off */
ON_GROUP(error, (struct shunt_ep *group, char *text, size_t bytes), (l->group, text, bytes))
ON_GROUP(hosts, (struct shunt_ep *group), (l->group))
ON_GROUP(mask, (struct shunt_ep *group, int rank, int masked, void *stream), (l->group, rank, masked, stream))
ON_GROUP(masks, (struct shunt_ep *group, int32_t *masks, void *stream), (l->group, masks, stream))
ON_GROUP(masks_clear, (struct shunt_ep *group, void *stream), (l->group, stream))
ON_GROUP(barrier, (struct shunt_ep *group, void *stream), (l->group, stream))
ON_GROUP(counts, (struct shunt_ep *group, uint64_t ticket, int32_t *rows_p, int32_t *experts),
	(l->group, ticket, rows_p, experts))
WITH_CALL(layout, sizeof(c), (struct shunt_ep *group, const struct shunt_ep_layout *call), (l->group, &c))
WITH_CALL(notify, sizeof(c), (struct shunt_ep *group, const struct shunt_ep_notify *call, uint64_t *ticket_p),
	(l->group, &c, ticket_p))
WITH_CALL(dispatch, sizeof(c), (struct shunt_ep *group, const struct shunt_ep_dispatch *call), (l->group, &c))
WITH_CALL(combine, sizeof(c), (struct shunt_ep *group, const struct shunt_ep_combine *call), (l->group, &c))
WITH_CALL(ll_dispatch, offsetof(struct shunt_ep_ll_dispatch, blocks),
	(struct shunt_ep *group, const struct shunt_ep_ll_dispatch *call), (l->group, &c))
WITH_CALL(ll_combine, offsetof(struct shunt_ep_ll_combine, blocks),
	(struct shunt_ep *group, const struct shunt_ep_ll_combine *call), (l->group, &c))
/* clang-format on */

/* SPDX-License-Identifier: MIT */
#include "comm/ep/group_priv.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "kernels/work.h"
#include "transport/rendezvous/host_table.h"

/* Values that must be alike on all ranks go round as two words. */
static struct shunt_comm_own describe_memory(const struct shunt_ep_config *c, int nranks, uint64_t most_topk)
{
	bool rank_sums = shunt_config()->ep_sum == SHUNT_EP_SUM_RANK;

	return (struct shunt_comm_own){ .bytes = SHUNT_EP_CTRL_BYTES, /* until the hosts are known */
		.host_bytes = sizeof(struct shunt_ep_words) +
		    (c->normal_bytes ? SHUNT_EP_TICKETS * SHUNT_EP_COUNTS_BYTES(nranks) : 0),
		.noun = "expert parallel group",
		.limit_name = c->timeout_ns ? "timeout_ns" : "SHUNT_EP_TIMEOUT",
		.limit_ns = c->timeout_ns ? c->timeout_ns : (uint64_t)shunt_config()->ep_timeout * 1000000,
		.value = { c->normal_bytes,
		    c->ll_bytes ^ (uint64_t)c->flags << 48 ^ most_topk << 56 ^ (uint64_t)rank_sums << 63 },
		.differs = { "its normal_bytes are not those of rank 0",
		    "its ll_bytes, topk, flags or SHUNT_EP_SUM are not those of rank 0" },
		.tolerates = c->flags & SHUNT_EP_MASKS };
}

static int check_config(const struct shunt_ep_config *c, int nranks, struct shunt_ep_why *why)
{
	const int64_t most = INT64_C(1) << 40;
	int err = shunt_ep_check_range(why, "flags", c->flags, 0, SHUNT_EP_MASKS | SHUNT_EP_DROP);

	if (!err)
		err = shunt_ep_check_range(why, "topk", c->topk, 0, SHUNT_EP_MAX_TOPK);
	if (!err)
		err = shunt_ep_check_range(why, "normal_bytes", (int64_t)c->normal_bytes, 0, most);
	if (!err)
		err = shunt_ep_check_range(why, "ll_bytes", (int64_t)c->ll_bytes, 0, most);
	if (!err && c->normal_bytes && c->normal_bytes < SHUNT_EP_NOTIFY_BYTES(nranks))
		err = shunt_ep_check_range(
		    why, "normal_bytes", (int64_t)c->normal_bytes, SHUNT_EP_NOTIFY_BYTES(nranks), most);
	return err;
}

/* Why there can be no such group over hosts; NULL: there can. */
static const char *refuse_over_hosts(const struct shunt_ep_room *room, struct shunt_ep_why *why)
{
	uint64_t bytes = SHUNT_NET_REMOTE_AT + shunt_ep_net_bytes(room);

	if (room->normal_bytes && shunt_ep_normal_part(room) < shunt_ep_notify_part(room->nranks)) {
		shunt_ep_refuse(why, -EINVAL, "normal_bytes is %llu, and for these hosts it must be at least %llu",
		    (unsigned long long)room->normal_bytes, (unsigned long long)shunt_ep_normal_least(room));
		return why->text;
	}
	if (bytes <= UINT32_MAX)
		return NULL;
	shunt_ep_refuse(why, -ENOSPC,
	    "normal_bytes and ll_bytes ask for %llu MiB of page-locked memory, and 4095 are the most",
	    (unsigned long long)(bytes >> 20));
	return why->text;
}

/* The ranks are on these hosts, which it takes over; NULL: on one. */
static int take_hosts(struct shunt_ep_group *g, struct shunt_hosts *hosts)
{
	struct shunt_ep_room *room = &g->room;
	struct shunt_ep_why why = { "" };
	int least = room->nranks;

	for (int i = 0; hosts && i < hosts->nhosts; i++)
		least = hosts->nlocal[i] < least ? hosts->nlocal[i] : least;
	room->local = hosts ? hosts->largest : room->nranks;
	room->sources = room->nranks - least;
	room->rank_sums = shunt_config()->ep_sum == SHUNT_EP_SUM_RANK && !hosts;
	if (shunt_config()->ep_sum == SHUNT_EP_SUM_RANK && hosts && !room->rank)
		shunt_warn(
		    "expert parallel group of %d ranks on %d hosts adds as SHUNT_EP_SUM=exact: rank is for ranks "
		    "of one host",
		    room->nranks, hosts->nhosts);
	shunt_comm_set_own(
	    g->comm, shunt_ep_own_bytes(room), shunt_ep_net_bytes(room), hosts ? refuse_over_hosts(room, &why) : NULL);
	return shunt_comm_set_hosts(g->comm, hosts);
}

static void write_ordinals(struct shunt_ep_group *g)
{
	const struct shunt_hosts *hosts = shunt_comm_hosts(g->comm);
	struct shunt_ep_hosts *h = &g->hosts;

	if (!shunt_comm_spans_hosts(g->comm))
		return;
	*h = (struct shunt_ep_hosts){ .rank = (uint16_t)g->room.rank,
		.nranks = (uint16_t)g->room.nranks,
		.sources = (uint16_t)g->room.sources,
		.nhosts = (uint16_t)hosts->nhosts };
	for (int ordinal = 0; ordinal < g->room.nranks; ordinal++) {
		h->rank_of[ordinal] = (uint8_t)shunt_comm_rank_of_ordinal(g->comm, (unsigned)ordinal);
		h->ordinal_of[h->rank_of[ordinal]] = (uint8_t)ordinal;
		h->host_of[ordinal] = (uint8_t)hosts->host_of[ordinal];
	}
	g->room.hosts = h;
}

int shunt_ep_group_create(const struct shunt_ep_desc *d, struct shunt_ep_group **group_p)
{
	const struct shunt_ep_config *c = d->config;
	int most_topk = c->topk ? c->topk : SHUNT_EP_MAX_TOPK, err;
	struct shunt_ep_group *g = calloc(1, sizeof(*g));
	struct shunt_comm_desc desc = { .id = d->id,
		.member = d->rank,
		.nmembers = d->nranks,
		.rank = d->rank,
		.nranks = d->nranks,
		.device = d->device,
		.takes_all = true,
		.joined = true,
		.may_span = true,
		.own = describe_memory(c, d->nranks, (uint64_t)most_topk) };
	struct shunt_ep_why why = { "" };
	struct shunt_hosts *hosts = NULL;

	if (!g)
		return -ENOMEM;
	g->room = (struct shunt_ep_room){ .nranks = d->nranks,
		.rank = d->rank,
		.most_topk = most_topk,
		.flags = c->flags,
		.normal_bytes = c->normal_bytes,
		.ll_bytes = c->ll_bytes };
	/* All ranks wait for each other, so a rank whose values are wrong comes, too. */
	if (check_config(c, d->nranks, &why))
		snprintf(desc.own.refusal, sizeof(desc.own.refusal), "%.95s", why.text);
	err = shunt_comm_create(&desc, &g->comm);
	if (!err)
		err = d->come_together(d->ctx, &hosts);
	if (!err)
		err = take_hosts(g, hosts);
	if (!err)
		err = shunt_comm_set_up(g->comm);
	if (err) {
		shunt_ep_group_destroy(g);
		return err;
	}
	g->room.key = &g->comm->sel_key;
	write_ordinals(g);
	*group_p = g;
	return 0;
}

/* The ranks of other hosts hear of an abort at once, and may be in a call to which this rank has done its part. */
static bool is_done(struct shunt_ep_group *g)
{
	bool done = false;

	if (!g->room.hosts)
		return false;
	shunt_comm_lock(g->comm);
	if (shunt_order_done(&g->comm->order, g->comm->gpu, g->comm->device, &done))
		done = false;
	shunt_comm_unlock(g->comm);
	return done;
}

void shunt_ep_group_abort(struct shunt_ep_group *g)
{
	if (!is_done(g))
		shunt_comm_abort(g->comm);
}

void shunt_ep_group_destroy(struct shunt_ep_group *g)
{
	/* The kernels of a broken group may still wait to tell a peer what is wrong (kernels/ep_rings.h). */
	if (g->comm && shunt_comm_life_state(&g->comm->life) == COMM_READY && shunt_comm_error(g->comm))
		shunt_comm_stop_kernels(g->comm);
	if (g->comm)
		shunt_comm_destroy(g->comm);
	free(g);
}

int shunt_ep_group_hosts(const struct shunt_ep_group *g)
{
	return g->room.hosts ? g->room.hosts->nhosts : 1;
}

int shunt_ep_group_error(struct shunt_ep_group *g, char *text, size_t bytes)
{
	int err = shunt_comm_error(g->comm);
	const char *known = err ? shunt_comm_error_text(g->comm) : "";

	if (text && bytes)
		snprintf(text, bytes, "%s",
		    known                 ? known :
		        err == -ECANCELED ? "the group was aborted" :
		                            strerror(-err));
	return err;
}

uint64_t *shunt_ep_group_told(const struct shunt_ep_group *g, unsigned ordinal)
{
	struct shunt_host_ctrl *words = g->comm->words;

	return ordinal < (unsigned)shunt_comm_local_ranks(g->comm) ?
	    &words->masked[ordinal] :
	    &((struct shunt_ep_words *)(words + 1))->masked[ordinal];
}

/* Kernels have told of the ranks that they did not wait for any longer. */
static void name_masked(struct shunt_ep_group *g)
{
	uint64_t gone = __atomic_load_n(&g->comm->words->gone, __ATOMIC_ACQUIRE);

	for (unsigned i = 0; i < (unsigned)g->room.nranks; i++) {
		int r = shunt_comm_rank_of_ordinal(g->comm, i);

		if (!__atomic_load_n(shunt_ep_group_told(g, i), __ATOMIC_ACQUIRE))
			continue;
		if (gone >> i & 1)
			shunt_comm_miss(g->comm, r, "rank %d has left", r);
		else
			shunt_comm_miss(g->comm, r, "rank %d did not come within %lld ms", r,
			    (long long)(shunt_comm_spin_limit(g->comm) / 1000000));
	}
}

int shunt_ep_group_enter(struct shunt_ep_group *g)
{
	int err;

	shunt_comm_lock(g->comm);
	if (g->room.flags & SHUNT_EP_MASKS)
		name_masked(g);
	err = shunt_comm_error(g->comm);
	if (err)
		shunt_comm_unlock(g->comm);
	return err;
}

void shunt_ep_group_leave(struct shunt_ep_group *g)
{
	shunt_comm_unlock(g->comm);
}

int shunt_ep_group_refuse(const struct shunt_ep_group *g, const char *call, int err, const struct shunt_ep_why *why)
{
	shunt_warn("shunt_%s on rank %d: %s", call, g->room.rank, why->text);
	return err;
}

int shunt_ep_group_run(struct shunt_ep_group *g, const struct shunt_comm_call *call, struct shunt_work *work)
{
	struct shunt_ep_why why;
	int err = shunt_comm_run_work(g->comm, call, work);

	return err == -EBADMSG ? shunt_ep_group_refuse(g, call->name,
	                             shunt_ep_refuse(&why, -EBUSY, "the stream's capture was spoiled"), &why) :
	                         err;
}

/* SPDX-License-Identifier: MIT */
/* Calls of normal mode: checked, put in order, launched; and the counts that the host waits for. */
#include "algos/ep/normal.h"
#include <errno.h>
#include <string.h>
#include <time.h>
#include "comm/ep/group_priv.h"
#include "kernels/work.h"

#define EAGER_POLLS 2000 /* before the waiting thread sleeps between two looks */
#define POLL_NS 20000

/* Launches checked work; err: what the check said. */
static int run(struct shunt_ep_group *g, const char *name, uint64_t count, void *stream, struct shunt_work *work,
    int err, const struct shunt_ep_why *why)
{
	struct shunt_comm_call call = { name, count, stream };

	if (err)
		return shunt_ep_group_refuse(g, name, err, why);
	err = shunt_ep_group_enter(g);
	if (err)
		return err;
	err = shunt_ep_group_run(g, &call, work);
	shunt_ep_group_leave(g);
	return err;
}

int shunt_ep_group_layout(struct shunt_ep_group *g, const struct shunt_ep_layout *c)
{
	struct shunt_work work;
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_layout_work(&g->room, c, &work, &why);

	return run(g, "ep_layout", (uint64_t)c->tokens, c->stream, &work, err, &why);
}

int shunt_ep_group_dispatch(struct shunt_ep_group *g, const struct shunt_ep_dispatch *c)
{
	struct shunt_work work;
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_dispatch_work(&g->room, c, &work, &why);

	return run(g, "ep_dispatch", (uint64_t)c->tokens, c->stream, &work, err, &why);
}

int shunt_ep_group_combine(struct shunt_ep_group *g, const struct shunt_ep_combine *c)
{
	struct shunt_work work;
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_combine_work(&g->room, c, &work, &why);

	return run(g, "ep_combine", (uint64_t)c->tokens, c->stream, &work, err, &why);
}

/* ---- counts */

/* From the host's control words on. */
static uint64_t counts_at(const struct shunt_ep_group *g, uint64_t ticket)
{
	return sizeof(struct shunt_host_ctrl) + sizeof(struct shunt_ep_words) +
	    ticket % SHUNT_EP_TICKETS * SHUNT_EP_COUNTS_BYTES(g->room.nranks);
}

/* A ticket for a notify that is about to be launched. With the lock. */
static int take_ticket(
    struct shunt_ep_group *g, const struct shunt_ep_notify *c, struct shunt_kargs_ep *a, struct shunt_ep_why *why)
{
	enum shunt_capture capture = SHUNT_CAPTURE_NONE;
	uint64_t ticket = g->tickets + 1;
	int err = g->comm->gpu->stream_capture(g->comm->device, c->stream, &capture);

	if (err)
		return err;
	if (capture != SHUNT_CAPTURE_NONE)
		return shunt_ep_refuse(why, -EBUSY, "counts is 1, and the host cannot wait in a capture");
	if (g->open[ticket % SHUNT_EP_TICKETS].number)
		return shunt_ep_refuse(why, -EDEADLK,
		    "%u tickets were not asked for by shunt_ep_counts(), the first of them is %llu", SHUNT_EP_TICKETS,
		    (unsigned long long)g->open[ticket % SHUNT_EP_TICKETS].number);
	a->ticket = ticket;
	a->counts_at = counts_at(g, ticket);
	return 0;
}

int shunt_ep_group_notify(struct shunt_ep_group *g, const struct shunt_ep_notify *c, uint64_t *ticket_p)
{
	struct shunt_comm_call call = { "ep_notify", (uint64_t)c->tokens, c->stream };
	struct shunt_work work;
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_notify_work(&g->room, c, &work, &why);

	if (!err && c->counts && !ticket_p)
		return shunt_ep_group_refuse(
		    g, "ep_notify", shunt_ep_refuse(&why, -EINVAL, "counts is 1, and ticket_p is NULL"), &why);
	if (err)
		return shunt_ep_group_refuse(g, "ep_notify", err, &why);
	err = shunt_ep_group_enter(g);
	if (err)
		return err;
	if (c->counts && (err = take_ticket(g, c, &work.args.ep, &why)) && *why.text)
		shunt_ep_group_refuse(g, "ep_notify", err, &why);
	if (!err)
		err = shunt_ep_group_run(g, &call, &work);
	if (!err && c->counts) {
		*ticket_p = ++g->tickets;
		g->open[*ticket_p % SHUNT_EP_TICKETS].number = *ticket_p;
		g->open[*ticket_p % SHUNT_EP_TICKETS].experts = (size_t)(c->experts / g->room.nranks);
	}
	shunt_ep_group_leave(g);
	return err;
}

/* The kernel's wait is limited, so this one ends with it, or with the group. */
static int await(struct shunt_ep_group *g, const struct shunt_ep_counts *counts, uint64_t ticket)
{
	int err = 0;

	for (int i = 0; !err && __atomic_load_n(&counts->ticket, __ATOMIC_ACQUIRE) != ticket; i++) {
		if (i > EAGER_POLLS || g->room.key->sim)
			nanosleep(&(struct timespec){ .tv_nsec = POLL_NS }, NULL);
		err = shunt_comm_error(g->comm);
	}
	return err;
}

int shunt_ep_group_counts(struct shunt_ep_group *g, uint64_t ticket, int32_t *rows_p, int32_t *experts)
{
	const struct shunt_ep_counts *counts = (const void *)((const char *)g->comm->words + counts_at(g, ticket));
	__typeof__(g->open[0]) *open = &g->open[ticket % SHUNT_EP_TICKETS];
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_group_enter(g);

	if (err)
		return err;
	if (!ticket || open->number != ticket)
		err = shunt_ep_refuse(
		    &why, -EINVAL, "there is no ticket %llu, or it was asked for before", (unsigned long long)ticket);
	shunt_ep_group_leave(g);
	if (err)
		return shunt_ep_group_refuse(g, "ep_counts", err, &why);
	err = await(g, counts, ticket);
	if (err)
		return err;
	shunt_comm_lock(g->comm);
	if (rows_p)
		*rows_p = counts->rows;
	if (experts)
		memcpy(experts, counts->experts, open->experts * sizeof(*experts));
	open->number = 0;
	shunt_comm_unlock(g->comm);
	return 0;
}

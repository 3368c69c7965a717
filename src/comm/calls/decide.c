/* SPDX-License-Identifier: MIT */
/*
 * The decision about a call: an algorithm, a plan or NCCL, and the rounds among the ranks that it needs before its
 * launch.
 *
 * decide() is the only place that knows the order: plans, kernels, NCCL. It looks at values that are equal on all ranks
 * and at nothing else, because a rank that decided otherwise than its peers would hang with them;
 * tests/comm/test_decide.c enumerates that. A decision is kept with its call, and holds until something changes that it
 * depends on: the state, the plans, the windows, the rules of shunt_algo_force(). Such changes have the same places
 * among the calls of all ranks, but come at times of their own: a rank that has decided before one decides again.
 */
#include <errno.h>
#include <stdio.h>
#include "comm/core/communicator.h"

/*
 * State of the call's buffers for algorithms on symmetric memory: NONE if one of them lies in no window, NEW if the
 * ranks still have to agree on a window, else READY.
 */
static enum shunt_window_state window_state_of(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	enum shunt_window_state all = SHUNT_WINDOW_NONE, state;
	const void *ptr;
	uint64_t bytes;

	for (unsigned i = 0; shunt_symmem_buffer(coll, comm->nranks, i, &ptr, &bytes); i++) {
		state = shunt_symmem_state(comm, ptr, bytes);
		if (state == SHUNT_WINDOW_NONE)
			return state;
		if (!i || state == SHUNT_WINDOW_NEW)
			all = state;
	}
	return all;
}

/* Agrees with the peers on the call's windows that are new. All ranks have the same ones. */
static int agree_on_windows(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	const void *ptr = NULL;
	uint64_t bytes = 0;
	int err = 0;

	for (unsigned i = 0; !err && shunt_symmem_buffer(coll, comm->nranks, i, &ptr, &bytes); i++)
		if (shunt_symmem_state(comm, ptr, bytes) != SHUNT_WINDOW_READY)
			err = shunt_symmem_agree(comm, ptr, bytes);
	return err;
}

/* The selection key. The set-up writes the key of state READY on another thread; before that, the early key holds. */
static const struct shunt_sel_key *key_of(const struct shunt_comm *comm, enum comm_state state)
{
	return state == COMM_READY ? &comm->sel_key : &comm->early_key;
}

/* True: the plans have decided, for a plan or for NCCL. path_p: the algorithm that a selector wants, if any. */
static bool plans_decide(struct shunt_comm *comm, const struct shunt_coll *coll, enum comm_state state,
    struct shunt_decision *d, struct shunt_path *path_p)
{
	/* A call that names an algorithm does not mean a plan, and a plan's launch records no event. */
	if (coll->algo || coll->launched)
		return false;
	if ((state >= COMM_READY && !comm->plans.set) || !shunt_select_plans(&comm->sel_key, coll->kind))
		return false;
	switch (shunt_comm_plans_choose(comm, coll, d, path_p)) {
	case SHUNT_PLAN_CHOICE_PLAN:
		d->algo = &shunt_plan_algo;
		d->reason = SHUNT_REASON_NONE;
		return true;
	case SHUNT_PLAN_CHOICE_NCCL:
		/* Not before the set-up: this rank may be the only one with a selector, and must not act on it alone.
		 */
		d->reason = SHUNT_REASON_SELECTOR;
		return !comm->sel_key.takes_all && state == COMM_READY;
	default:
		return false;
	}
}

/* A rule or a row wants a plan, and names none. */
static void decide_planned(
    struct shunt_comm *comm, const struct shunt_coll *coll, enum comm_state state, struct shunt_decision *d)
{
	/* As in plans_decide. */
	if (state == COMM_READY && !coll->launched && shunt_select_plans(&comm->sel_key, coll->kind) &&
	    shunt_comm_plans_decide_any(comm, coll, d)) {
		d->algo = &shunt_plan_algo;
		return;
	}
	d->algo = shunt_select_unplanned(d->algo);
	d->path = d->algo->name;
}

/* wanted: an algorithm that a selector wants; its algo is NULL for none. */
static void decide_kernel(struct shunt_comm *comm, const struct shunt_coll *coll, enum comm_state state,
    const struct shunt_path *wanted, struct shunt_decision *d)
{
	bool any = comm->nranks > 1 && !shunt_comm_spans_hosts(comm) && !key_of(comm, state)->staged &&
	    atomic_load_explicit(&comm->symmem.nlive, memory_order_relaxed);
	enum shunt_window_state window = any ? window_state_of(comm, coll) : SHUNT_WINDOW_NONE;
	struct shunt_sel sel = { .key = key_of(comm, state) };

	if (window != SHUNT_WINDOW_NONE) {
		sel.symmem = true;
		sel.no_sms = shunt_coll_no_sms(sel.key, coll);
	}
	if (!(wanted->algo && shunt_select_path(&sel, coll, wanted, d)) && !shunt_select(&sel, coll, d))
		return;
	d->path = d->algo->name;
	if (d->algo->planned)
		decide_planned(comm, coll, state, d);
	else if (d->algo->plugin && state == COMM_READY && !shunt_comm_plugin_ready(comm, d->algo))
		d->need = SHUNT_NEED_PLUGIN;
	if (shunt_comm_needs_window(d)) {
		d->settled = false; /* the window may be deregistered before the launch */
		if (window == SHUNT_WINDOW_NEW)
			d->need = SHUNT_NEED_WINDOW;
	}
}

/* Shunt's decision if the ranks were on several hosts, which is not known yet. */
static void decide_over_hosts(const struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *d)
{
	static const struct shunt_topology some = { .nranks = 2, .nislands = 2, .rails = 1 };
	struct shunt_sel_key key = comm->early_key;

	key.topology = &some;
	if (!shunt_select(&(struct shunt_sel){ .key = &key }, coll, d))
		return;
	d->algo = d->algo->planned ? shunt_select_unplanned(d->algo) : d->algo;
	d->path = d->algo->name;
}

static void decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *d)
{
	enum comm_state state = shunt_comm_life_state(&comm->life);
	struct shunt_path wanted = { 0 };
	bool anywhere;

	d->algo = NULL;
	d->path = NULL;
	d->need = SHUNT_NEED_NOTHING;
	d->settled = state >= COMM_READY || comm->nranks == 1;
	if (state >= COMM_FORWARD_UNTOLD)
		d->reason = comm->nranks == 1 ? SHUNT_REASON_ONE_RANK : SHUNT_REASON_COMM;
	else if (comm->nranks == 1 || !plans_decide(comm, coll, state, d, &wanted))
		decide_kernel(comm, coll, state, &wanted, d);
	anywhere = state < COMM_READY && comm->nranks > 1 && shunt_comm_may_be_anywhere(comm);
	if (anywhere && !d->algo)
		decide_over_hosts(comm, coll, d);
	if (d->algo && state < COMM_READY)
		d->need = anywhere ? SHUNT_NEED_HOSTS : SHUNT_NEED_SETUP;
	else if (d->need)
		d->settled = false; /* a plan or a window may be refused */
}

bool shunt_comm_decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	uint32_t version = shunt_comm_version(comm);

	if (decision->version != version) {
		decide(comm, coll, decision);
		decision->version = version; /* from before: a change meanwhile makes the decision an old one */
	}
	return decision->algo;
}

const char *shunt_comm_reason(const struct shunt_comm *comm, enum shunt_reason reason)
{
	bool own = reason == SHUNT_REASON_COMM && shunt_comm_life_forwards(&comm->life);

	return own ? comm->life.reason : shunt_reason_name(reason);
}

/* The round among the ranks that the decision needs. -EOPNOTSUPP, on all ranks: that plan or window was refused. */
static int obtain(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_decision *d)
{
	char what[160];
	int err;

	if (d->need == SHUNT_NEED_PLAN)
		err = shunt_comm_plans_prepare(comm, coll, d->u.plan);
	else if (d->need == SHUNT_NEED_PLUGIN)
		err = shunt_comm_plugin_prepare(comm, d->algo);
	else
		err = d->algo == &shunt_plan_algo ? shunt_comm_plans_agree_windows(comm, coll, d->u.exec) :
		                                    agree_on_windows(comm, coll);
	/*
	 * The others may still wait in this round, or have finished it. This rank's next round must not be mixed up
	 * with theirs.
	 */
	if (!err || err == -EOPNOTSUPP)
		return err;
	if (d->need == SHUNT_NEED_PLUGIN)
		snprintf(what, sizeof(what),
		    "agreeing on the memory of plug-in %s, whose supports() must say the same on all ranks",
		    d->algo->name);
	else
		snprintf(what, sizeof(what), "agreeing on what %s needs", shunt_kind_name(coll->kind));
	return shunt_comm_fail_round(comm, err, what);
}

int shunt_comm_decide_locked(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	int err = 0;

	while (!err && shunt_comm_decide(comm, coll, decision) && decision->need) {
		err = shunt_comm_error(comm);
		if (err)
			break;
		if (decision->need == SHUNT_NEED_HOSTS) {
			err = shunt_comm_locate_locked(comm);
		} else if (decision->need == SHUNT_NEED_SETUP) {
			err = shunt_comm_setup_locked(comm);
			err = err == -EOPNOTSUPP ? -EIO : err; /* nothing was declined: the device cannot do it */
		} else {
			err = obtain(comm, coll, decision);
			err = err == -EOPNOTSUPP ? 0 : err; /* decide again without it */
		}
		shunt_comm_changed(comm);
	}
	return err || decision->algo ? err : -EOPNOTSUPP;
}

bool shunt_comm_needs_round(const struct shunt_comm *comm, const struct shunt_decision *decision)
{
	return comm->nranks > 1 && decision->need;
}

int shunt_comm_prepare(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	int err;

	shunt_mutex_lock(&comm->lock);
	err = shunt_comm_decide_locked(comm, coll, decision);
	if (!err)
		err = shunt_comm_error(comm);
	if (err && err != -EOPNOTSUPP)
		shunt_comm_fail(comm, err);
	shunt_mutex_unlock(&comm->lock);
	return err == -EOPNOTSUPP ? 0 : err;
}

/* SPDX-License-Identifier: MIT */
/* Which calls Shunt takes, how it launches them, and the rounds among the ranks that this needs. */
#include <errno.h>
#include <string.h>
#include "comm/comm_priv.h"
#include "base/config.h"
#include "base/log.h"

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

/*
 * Decides how a call is launched, or returns false and the reason to forward it. Plans come first, then our kernels,
 * then NCCL. For a plan, decision->plan is set later, when it is prepared (decide_and_prepare). Before the set-up
 * *plan_p may point to freed memory (shunt_comm_plans_choose): do not read it.
 */
static bool decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision,
    const struct shunt_plan **plan_p, const char **name_p, enum shunt_reason *reason_p)
{
	int state = atomic_load_explicit(&comm->state, memory_order_acquire);
	struct shunt_sel_key fresh;
	enum shunt_plan_choice choice;
	bool symmem;

	*plan_p = NULL;
	if (state == COMM_FORWARD) {
		*reason_p = comm->nranks == 1 ? SHUNT_REASON_ONE_RANK : SHUNT_REASON_COMM;
		return false;
	}
	if (comm->nranks > 1 && (state == COMM_NEW || comm->plans.set) &&
	    shunt_select_plans(&comm->sel_key, coll->kind)) {
		choice = shunt_comm_plans_choose(comm, coll, plan_p, name_p);
		if (choice == SHUNT_PLAN_CHOICE_PLAN) {
			decision->algo = &shunt_plan_algo;
			return true;
		}
		*plan_p = NULL;
		/*
		 * Not before the set-up: this rank may be the only one with a selector, and must not act on it alone.
		 */
		if (choice == SHUNT_PLAN_CHOICE_NCCL && !comm->sel_key.standalone && state == COMM_READY) {
			*reason_p = SHUNT_REASON_SELECTOR;
			return false;
		}
	}
	symmem = comm->nranks > 1 && atomic_load_explicit(&comm->symmem.nlive, memory_order_relaxed) &&
	    window_state_of(comm, coll) != SHUNT_WINDOW_NONE;
	if (state == COMM_READY && !symmem)
		return shunt_select(&comm->sel_key, coll, decision, reason_p);
	/* The set-up, on another thread, writes the rest of the selection key: use the key only in state READY. */
	if (state == COMM_READY)
		fresh = comm->sel_key;
	else
		fresh = (struct shunt_sel_key){ .nranks = comm->nranks,
			.sim = shunt_config()->device == SHUNT_DEVICE_SIM,
			.standalone = comm->sel_key.standalone,
			.deterministic = comm->sel_key.deterministic,
			.no_sms = comm->no_sms };
	fresh.symmem = symmem;
	return shunt_select(&fresh, coll, decision, reason_p);
}

const char *shunt_comm_path(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_reason *reason_p)
{
	const struct shunt_plan *plan;
	const char *name = NULL;
	struct shunt_decision decision;

	return !decide(comm, coll, &decision, &plan, &name, reason_p) ? NULL : plan ? name : decision.algo->name;
}

const char *shunt_comm_reason(const struct shunt_comm *comm, enum shunt_reason reason)
{
	bool own = reason == SHUNT_REASON_COMM &&
	    atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_FORWARD && comm->reason[0];

	return own ? comm->reason : shunt_reason_name(reason);
}

bool shunt_comm_needs_setup(const struct shunt_comm *comm)
{
	return atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_NEW && comm->nranks > 1;
}

/* As decide, plus the round among the ranks that a new plan or window needs. */
static int decide_and_prepare(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision,
    enum shunt_reason *reason_p)
{
	const struct shunt_plan *plan;
	struct shunt_comm_exec *exec;
	int err;

	do {
		if (!decide(comm, coll, decision, &plan, NULL, reason_p))
			return -EOPNOTSUPP;
		if (atomic_load_explicit(&comm->state, memory_order_relaxed) != COMM_READY)
			return 0;
		if (!plan && (!shunt_comm_needs_window(decision) || window_state_of(comm, coll) == SHUNT_WINDOW_READY))
			return 0;
		if (!plan) {
			err = agree_on_windows(comm, coll);
			continue;
		}
		err = shunt_comm_plans_prepare(comm, coll, plan, &exec);
		decision->plan = exec;
		if (!err)
			err = shunt_comm_plans_agree_windows(comm, coll, exec);
	} while (err == -EOPNOTSUPP); /* that plan or window was refused: decide again without it */
	/*
	 * The others may still wait in this round, or have finished it. This rank's next round must not be mixed up
	 * with theirs.
	 */
	if (err && shunt_comm_fail(comm, err) && err != -ECANCELED)
		shunt_error("communicator of %d ranks, rank %d: agreeing on what %s needs: %s", comm->nranks,
		    comm->rank, shunt_kind_name(coll->kind), strerror(-err));
	return err;
}

int shunt_comm_decide_locked(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    struct shunt_decision *decisions, size_t n, size_t *which_p, enum shunt_reason *reason_p)
{
	bool fresh = atomic_load_explicit(&comm->state, memory_order_relaxed) == COMM_NEW, again;
	int err = 0;

	do {
		again = atomic_load_explicit(&comm->state, memory_order_relaxed) == COMM_NEW;
		for (size_t i = 0; i < n && !err; i++)
			if (fresh || !decisions[i].algo) {
				*which_p = i;
				err = decide_and_prepare(comm, calls[i], &decisions[i], reason_p);
			}
		/* The set-up's outcome, and what the ranks agreed on, are known only after it: decide again then. */
		if (!err)
			err = shunt_comm_error(comm);
		if (!err && again)
			err = shunt_comm_setup_locked(comm);
	} while (!err && again);
	return err;
}

bool shunt_comm_decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision_p,
    enum shunt_reason *reason_p)
{
	bool final = !shunt_comm_needs_setup(comm) &&
	    !comm->plans.set; /* read first: a set-up on another thread after this does no harm */
	const struct shunt_plan *plan;

	if (!decide(comm, coll, decision_p, &plan, NULL, reason_p))
		return false;
	if (!final || shunt_comm_needs_window(decision_p)) /* the window may be deregistered before the launch */
		decision_p->algo = NULL;
	return true;
}

bool shunt_comm_needs_round(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	const struct shunt_plan *plan;
	struct shunt_decision decision;
	enum shunt_reason reason;

	if (comm->nranks == 1 || !decide(comm, coll, &decision, &plan, NULL, &reason))
		return false;
	return shunt_comm_needs_setup(comm) ||
	    (plan && (!shunt_comm_plans_ready(comm, coll, plan) || shunt_comm_plans_window_is_new(comm, coll, plan))) ||
	    (shunt_comm_needs_window(&decision) && window_state_of(comm, coll) == SHUNT_WINDOW_NEW);
}

int shunt_comm_prepare(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	struct shunt_decision decision = { 0 };
	enum shunt_reason reason;
	size_t which;
	int err;

	pthread_mutex_lock(&comm->lock);
	err = shunt_comm_decide_locked(comm, &coll, &decision, 1, &which, &reason);
	if (err && err != -EOPNOTSUPP)
		shunt_comm_fail(comm, err);
	pthread_mutex_unlock(&comm->lock);
	return err == -EOPNOTSUPP ? 0 : err;
}

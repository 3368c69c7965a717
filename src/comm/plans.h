/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_PLANS_H
#define SHUNT_COMM_PLANS_H
/*
 * A communicator's execution plans: the set that its ranks agreed on at the set-up, and what is on the device for those
 * that ran. All with the communicator's lock held, unless said otherwise.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "plan/registry.h"

struct shunt_comm;
struct shunt_plan_exec;

/* A plan that ran, or that cannot. */
struct shunt_comm_exec {
	struct shunt_comm_exec *next;
	const struct shunt_plan *plan;
	struct shunt_plan_exec *exec;
	const char *name;      /* static */
	uint64_t max_bytes;    /* messages up to this size can run */
	uint64_t refused_from; /* messages from this size on cannot; alike on all ranks */
};

struct shunt_comm_plans {
	struct shunt_plan_set *set; /* NULL: none */
	struct shunt_comm_exec *execs;
};

/* What a rank tells the others about its plans in the first round; takes the set. */
uint64_t shunt_comm_plans_acquire(struct shunt_comm *comm);
/*
 * After that round, with all ranks' words: where they differ, one more round finds out in which plan, rank 0 says so,
 * and none is used.
 */
int shunt_comm_plans_agree(struct shunt_comm *comm, const uint64_t *hashes);
/*
 * Any thread, no lock: what the plans say about a call. Before the set-up, from the plans that there are now, and the
 * one that *plan_p then points to may be gone already: only that there is one counts. *name_p (may be NULL) is its name
 * as a string that stays. Calls that a plan was refused for are as if there were none.
 */
enum shunt_plan_choice shunt_comm_plans_choose(const struct shunt_comm *comm, const struct shunt_coll *coll,
    const struct shunt_plan **plan_p, const char **name_p);
/*
 * Collective: makes what the call needs on the device. 0 and *exec_p; -EOPNOTSUPP: it cannot be had on some rank, and
 * the plan is not chosen for such a call any more; else an error that breaks the communicator.
 */
int shunt_comm_plans_prepare(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan *plan,
    struct shunt_comm_exec **exec_p);
/* Any thread, no lock: would that need no round among the ranks? */
bool shunt_comm_plans_ready(
    const struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan *plan);
/*
 * The windows that the plan could use in place for this call (src/plan/exec/exec.h). agree: with the ranks, on those
 * that are new; 0, also where some are refused. new: any thread, no lock: would that need a round?
 */
int shunt_comm_plans_agree_windows(
    struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_comm_exec *exec);
bool shunt_comm_plans_window_is_new(
    struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan *plan);
/*
 * base: what all launches of this call share. stream: where it runs, whatever the call's own is. *symmem_p: it may use
 * some.
 */
int shunt_comm_plans_launch(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_comm_exec *exec,
    const struct shunt_kargs *base, void *stream, bool *symmem_p);
/* After the last kernel. */
void shunt_comm_plans_drop(struct shunt_comm *comm);
#endif

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A communicator's execution plans: the set that its ranks agreed on in the set-up, and the device's part of those that
 * ran. The functions need the communicator's lock, unless they say otherwise.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "comm/parts/answers.h"
#include "plan/exec/exec.h"
#include "plan/plan_registry.h"

struct shunt_comm;
struct shunt_decision;

/* A plan that ran, or that cannot run. */
struct shunt_comm_exec {
	struct shunt_comm_exec *next;
	const struct shunt_plan *plan;
	struct shunt_plan_exec *exec;
	const char *name;      /* static */
	uint64_t max_bytes;    /* the largest message that was prepared */
	uint64_t refused_from; /* messages from this size on cannot run; the same on all ranks */
};

struct shunt_comm_plans {
	struct shunt_plan_set *set; /* NULL: none */
	struct shunt_answers answers;
	struct shunt_comm_exec *execs;
	struct shunt_plan_exec_hosts hosts; /* of all of them, over several hosts */
};

/*
 * The plans' decision about a call. Any thread, no lock. A plan that was refused for such a call does not count. For a
 * plan, sets the decision's path, need, and plan or exec; before the set-up the path alone, because the answer is from
 * the plans of that moment, which may go again. For OTHER, sets *path_p to the algorithm that the selector wants.
 */
enum shunt_plan_choice shunt_comm_plans_choose(
    struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision, struct shunt_path *path_p);
/*
 * Of a communicator that is ready: decides for the first plan that fits the call, also one that runs by name only.
 * False: no plan fits, or the plan was refused for such a call. Otherwise as above.
 */
bool shunt_comm_plans_decide_any(
    struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision);
/*
 * Collective: creates the device's part for the call. -EOPNOTSUPP: some rank cannot, and from now on the plan is not
 * chosen for such a call; another error breaks the communicator.
 */
int shunt_comm_plans_prepare(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan *plan);
/*
 * Collective: agrees with the ranks on the new ones of the windows that the plan could use in place for this call
 * (plan/exec/exec.h). 0, even where some are refused.
 */
int shunt_comm_plans_agree_windows(
    struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_comm_exec *exec);
/*
 * Fills in the launch of the call. base: equal for all launches of this call. *symmem_p: set to true if the launch uses
 * windows.
 */
int shunt_comm_plans_work(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_comm_exec *exec,
    const struct shunt_kargs *base, struct shunt_work *work, bool *symmem_p);
/* The plan of this name that takes the call, and the call's bytes; NULL and the error. */
const struct shunt_plan *shunt_comm_plans_find(
    const struct shunt_comm *comm, const char *name, struct shunt_plan_call *call, uint64_t *bytes_p, int *err_p);
/* shunt_comm_plans_prepare for that plan. */
int shunt_comm_plans_prepare_named(
    struct shunt_comm *comm, const struct shunt_plan *plan, uint64_t bytes, struct shunt_comm_exec **exec_p);

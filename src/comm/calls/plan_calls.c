/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "comm/core/communicator.h"
#include "base/config.h"
#include "base/log.h"
#include "base/os.h"
#include "base/lock.h"
#include "comm/setup/plan_set.h"
#include "plan/exec/exec.h"

/* A copy of the name that is never freed, because counters refer to it. As many as plans that ran in this process. */
static const char *intern_name(const char *name)
{
	static struct name {
		struct name *next;
		char text[];
	} *names;
	struct name *n;
	size_t bytes = strlen(name) + 1;

	shunt_lock_acquire(SHUNT_LOCK_PLAN_NAMES);
	for (n = names; n && strcmp(n->text, name); n = n->next)
		;
	if (!n && (n = malloc(sizeof(*n) + bytes))) {
		memcpy(n->text, name, bytes);
		n->next = names;
		names = n;
	}
	shunt_lock_release(SHUNT_LOCK_PLAN_NAMES);
	return n ? n->text : "plan";
}

static struct shunt_ranks ranks_of(const struct shunt_comm *comm)
{
	return shunt_comm_ranks(comm, shunt_config()->timeout);
}

static struct shunt_plan_query query_of(const struct shunt_comm *comm, const struct shunt_coll *coll)
{
	return (struct shunt_plan_query){ .kind = coll->kind,
		.dtype = coll->dtype,
		.redop = coll->redop,
		.count = coll->count,
		.place = shunt_plan_call_inplace(coll, comm->rank) };
}

static uint64_t message_bytes(
    const struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan *plan)
{
	uint64_t bytes = 0;

	return shunt_plan_message_bytes(plan->collective, comm->nranks, coll->count, coll->dtype, &bytes) ? bytes :
	                                                                                                    UINT64_MAX;
}

static struct shunt_comm_exec *find_exec(const struct shunt_comm *comm, const struct shunt_plan *plan)
{
	struct shunt_comm_exec *e = __atomic_load_n(&comm->plans.execs, __ATOMIC_ACQUIRE);

	while (e && e->plan != plan)
		e = e->next;
	return e;
}

/* True: the plan's memory holds messages of this size. */
static bool is_prepared(const struct shunt_comm_exec *e, uint64_t bytes)
{
	uint64_t max = __atomic_load_n(&e->max_bytes, __ATOMIC_RELAXED);

	return max && bytes <= max;
}

static int make_region(
    void *ctx, uint64_t bytes, uint32_t nchannels, struct shunt_vote *vote, struct shunt_plan_region *region_p)
{
	return shunt_comm_net_region(ctx, bytes, nchannels, vote, region_p);
}

/* The data that plans over hosts need; NULL on one host. */
static const struct shunt_plan_exec_hosts *exec_hosts(struct shunt_comm *comm)
{
	const struct shunt_topology *t = &comm->topology;

	if (!shunt_topology_is_split(t))
		return NULL;
	comm->plans.hosts = (struct shunt_plan_exec_hosts){ .host_of = t->island_of,
		.mates = shunt_topology_locals(t),
		.nmates = shunt_comm_local_ranks(comm),
		.own = shunt_comm_local_rank(comm),
		.region = make_region,
		.ctx = comm };
	return &comm->plans.hosts;
}

static int create_exec(struct shunt_comm *comm, const struct shunt_plan *plan, struct shunt_comm_exec **exec_p)
{
	struct shunt_plan_exec_config host = {
		.gpu = comm->gpu,
		.device = comm->device,
		.ranks = ranks_of(comm),
		.ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr,
		.process = shunt_process_token(),
		.max_blocks = (unsigned)comm->sel_key.max_ctas,
		.hosts = exec_hosts(comm),
	};
	struct shunt_comm_exec *e = calloc(1, sizeof(*e));
	int err;

	if (!e)
		return shunt_rendezvous_lacks_memory(&host.ranks);
	e->plan = plan;
	e->name = intern_name(plan->name);
	e->refused_from = UINT64_MAX;
	err = shunt_plan_exec_create(&host, (struct shunt_plan *)(uintptr_t)plan, &e->exec);
	if (err == -ENOMEM) {
		free(e);
		return shunt_rendezvous_lacks_memory(&host.ranks);
	}
	if (err) /* the same on all ranks */
		e->refused_from = 0;
	e->next = comm->plans.execs;
	__atomic_store_n(&comm->plans.execs, e, __ATOMIC_RELEASE);
	*exec_p = e;
	return 0;
}

/* what: the call, for the log. */
static int prepare(struct shunt_comm *comm, const struct shunt_plan *plan, uint64_t bytes, const char *what,
    struct shunt_comm_exec **exec_p)
{
	struct shunt_comm_exec *e = find_exec(comm, plan);
	const char *reason = "it is too large for any device";
	int err = e ? 0 : create_exec(comm, plan, &e);

	*exec_p = e;
	if (err || is_prepared(e, bytes))
		return err;
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): without an error create_exec gives one */
	err = e->refused_from <= bytes ? -EOPNOTSUPP : shunt_plan_exec_prepare(e->exec, bytes, &reason);
	if (!err)
		__atomic_store_n(&e->max_bytes, bytes, __ATOMIC_RELAXED);
	if (err == -EOPNOTSUPP) {
		__atomic_store_n(&e->refused_from, bytes < e->refused_from ? bytes : e->refused_from, __ATOMIC_RELAXED);
		if (comm->rank == 0)
			shunt_warn("plan %s cannot run %s of %llu bytes on %d ranks: %s; such calls go on without it",
			    e->name, what, (unsigned long long)bytes, comm->nranks, reason);
	}
	return err;
}

int shunt_comm_plans_prepare(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan *plan)
{
	struct shunt_comm_exec *e;

	return prepare(comm, plan, message_bytes(comm, coll, plan), shunt_kind_name(coll->kind), &e);
}

const struct shunt_plan *shunt_comm_plans_find(
    const struct shunt_comm *comm, const char *name, struct shunt_plan_call *call, uint64_t *bytes_p, int *err_p)
{
	int format = shunt_format_of(call->dtype, comm->e4m3b15, comm->accumulate);
	const struct shunt_plan *plan;

	*err_p = -ENOENT;
	for (size_t i = 0; comm->plans.set && (plan = shunt_plan_set_at(comm->plans.set, i)); i++) {
		bool received = shunt_plan_gathers(plan->collective) || !call->send_bytes;
		enum shunt_dtype dtype = plan->redops && format >= 0 ? (enum shunt_dtype)format : call->dtype;

		if (strcmp(plan->name, name))
			continue;
		*err_p = -EINVAL;
		*bytes_p = received ? call->recv_bytes : call->send_bytes;
		if ((plan->dtypes >> dtype & 1) && (!plan->redops || plan->redops == 1u << call->redop) &&
		    *bytes_p >= plan->min_bytes && *bytes_p <= plan->max_bytes) {
			call->dtype = dtype;
			return plan;
		}
	}
	return NULL;
}

int shunt_comm_plans_prepare_named(
    struct shunt_comm *comm, const struct shunt_plan *plan, uint64_t bytes, struct shunt_comm_exec **exec_p)
{
	return prepare(comm, plan, bytes, "a call by name", exec_p);
}

/* wants: the call's buffers that the plan could use in windows; false: none. The same on all ranks. */
static bool wants_windows(const struct shunt_comm *comm, const struct shunt_coll *coll,
    const struct shunt_plan_exec *exec, bool wants[2], struct shunt_plan_call *call)
{
	if (!atomic_load_explicit(&comm->symmem.nlive, memory_order_relaxed) ||
	    !shunt_plan_call_from_coll(coll, comm->nranks, call))
		return false;
	shunt_plan_exec_wants_direct(exec, wants);
	/* The input is used in place only if it is known not to be the output. */
	wants[1] |= wants[0];
	return wants[1];
}

int shunt_comm_plans_agree_windows(
    struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_comm_exec *exec)
{
	struct shunt_plan_call call;
	bool wants[2];
	int err = 0;

	if (!wants_windows(comm, coll, exec->exec, wants, &call))
		return 0;
	if (shunt_symmem_state(comm, call.recv, call.recv_bytes) == SHUNT_WINDOW_NEW)
		err = shunt_symmem_agree(comm, call.recv, call.recv_bytes);
	if ((!err || err == -EOPNOTSUPP) && wants[0] &&
	    shunt_symmem_state(comm, call.send, call.send_bytes) == SHUNT_WINDOW_NEW)
		err = shunt_symmem_agree(comm, call.send, call.send_bytes);
	return err == -EOPNOTSUPP ? 0 : err;
}

/* True: shunt_comm_plans_agree_windows would need a round. */
static bool window_is_new(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_comm_exec *exec)
{
	struct shunt_plan_call call;
	bool wants[2];

	if (!wants_windows(comm, coll, exec->exec, wants, &call))
		return false;
	return shunt_symmem_state(comm, call.recv, call.recv_bytes) == SHUNT_WINDOW_NEW ||
	    (wants[0] && shunt_symmem_state(comm, call.send, call.send_bytes) == SHUNT_WINDOW_NEW);
}

/* Fills in a decision for the plan. False: it was refused for such a call. */
static bool choose_plan(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan *plan,
    struct shunt_decision *decision)
{
	struct shunt_comm_exec *e = find_exec(comm, plan);
	uint64_t bytes = message_bytes(comm, coll, plan);

	if (e && bytes >= __atomic_load_n(&e->refused_from, __ATOMIC_RELAXED))
		return false;
	decision->path = e ? e->name : intern_name(plan->name);
	if (!e || !is_prepared(e, bytes)) {
		decision->need = SHUNT_NEED_PLAN;
		decision->u.plan = plan;
		return true;
	}
	decision->u.exec = e;
	if (window_is_new(comm, coll, e))
		decision->need = SHUNT_NEED_WINDOW;
	return true;
}

/* The choice among the plans of a set: the selector's (*named_p), else the set's own. */
static enum shunt_plan_choice choose_in(struct shunt_comm *comm, const struct shunt_plan_set *set,
    const struct shunt_plan_query *query, const struct shunt_plan **plan_p, struct shunt_path *path_p, bool *named_p)
{
	struct shunt_answer answer = shunt_answers_get(&comm->plans.answers, set, query);

	if (answer.choice == SHUNT_PLAN_CHOICE_PLAN)
		*plan_p = shunt_plan_set_at(set, answer.plan);
	*path_p = answer.path;
	*named_p = answer.choice != SHUNT_PLAN_CHOICE_NONE;
	return *named_p ? answer.choice : shunt_plan_set_choose(set, query, plan_p);
}

/* The first plan was refused, on all ranks: the next one that fits and was not. False: there is none. */
static bool choose_next(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_plan_query *query,
    struct shunt_decision *decision)
{
	const struct shunt_plan *plan;

	for (size_t i = 1; (plan = shunt_plan_set_match(comm->plans.set, query, i)); i++)
		if (choose_plan(comm, coll, plan, decision))
			return true;
	return false;
}

enum shunt_plan_choice shunt_comm_plans_choose(
    struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision, struct shunt_path *path_p)
{
	bool fresh = shunt_comm_life_state(&comm->life) < COMM_READY, named = false;
	struct shunt_plan_set *set =
	    fresh ? shunt_comm_plan_set_get(comm, &comm->early_topology, false) : comm->plans.set;
	enum shunt_plan_choice choice = SHUNT_PLAN_CHOICE_NONE;
	const struct shunt_plan *plan = NULL;
	struct shunt_plan_query query;

	if (!set)
		return choice;
	query = query_of(comm, coll);
	if (shunt_plan_set_hash(set))
		choice = choose_in(comm, set, &query, &plan, path_p, &named);
	if (choice == SHUNT_PLAN_CHOICE_PLAN && fresh)
		decision->path = intern_name(plan->name);
	else if (choice == SHUNT_PLAN_CHOICE_PLAN && !choose_plan(comm, coll, plan, decision) &&
	    (named || !choose_next(comm, coll, &query, decision)))
		choice = SHUNT_PLAN_CHOICE_NONE;
	if (fresh)
		shunt_plan_set_free(set);
	return choice;
}

bool shunt_comm_plans_decide_any(
    struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	struct shunt_plan_query query = query_of(comm, coll);
	const struct shunt_plan *plan = comm->plans.set ? shunt_plan_set_any(comm->plans.set, &query) : NULL;

	return plan && choose_plan(comm, coll, plan, decision);
}

/* The buffer's address on every rank; false: it lies in no window that all ranks use. */
static bool find_remote(struct shunt_comm *comm, const void *ptr, uint64_t bytes, char *remote[SHUNT_MAX_RANKS])
{
	if (shunt_symmem_state(comm, ptr, bytes) != SHUNT_WINDOW_READY || !shunt_symmem_aligned(comm, ptr, bytes))
		return false;
	for (int r = 0; r < comm->nranks; r++)
		remote[r] = r == comm->rank ? (char *)(uintptr_t)ptr : shunt_symmem_peer_ptr(comm, ptr, bytes, r);
	return true;
}

int shunt_comm_plans_work(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_comm_exec *exec,
    const struct shunt_kargs *base, struct shunt_work *work, bool *symmem_p)
{
	char *remote[2][SHUNT_MAX_RANKS];
	struct shunt_plan_call call;
	bool wants[2];

	if (!shunt_plan_call_from_coll(coll, comm->nranks, &call))
		return -EINVAL;
	if (wants_windows(comm, coll, exec->exec, wants, &call)) {
		const void *ptr[2] = { call.send, call.recv };
		const uint64_t bytes[2] = { call.send_bytes, call.recv_bytes };

		for (int i = 0; i < 2; i++)
			if (wants[i] && find_remote(comm, ptr[i], bytes[i], remote[i])) {
				call.remote[i] = remote[i];
				call.place[i] = shunt_symmem_offset(comm, ptr[i]);
				*symmem_p = true;
			}
	}
	call.op = base->op;
	call.check = base->check;
	call.count = base->count;
	return shunt_plan_exec_work(exec->exec, &call, work);
}

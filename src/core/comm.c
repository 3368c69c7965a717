/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/comm_priv.h"
#include "core/config.h"
#include "core/fault.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/peers.h"
#include "core/retire.h"
#include "core/service.h"

struct shunt_id shunt_id_derive(const void *secret, size_t bytes, const char *tag, uint64_t a, uint64_t b)
{
	uint8_t mac[SHUNT_MAC_BYTES], key[32];
	uint64_t numbers[2] = { a, b };
	struct shunt_id id;

	/* The secret may be of any length: hash it to a key first. */
	static const uint8_t zero[32];
	shunt_mac(key, zero, sizeof(zero), "shunt id secret", secret, bytes, NULL, 0);
	shunt_mac(mac, key, sizeof(key), tag, numbers, sizeof(numbers), NULL, 0);
	memcpy(id.b, mac, sizeof(id.b));
	return id;
}

static void become_forward(struct shunt_comm *comm, const char *why)
{
	snprintf(comm->why, sizeof(comm->why), "%s", why);
	atomic_store(&comm->untold, true);
	shunt_recorder_forward(comm->recorder, why);
	atomic_store_explicit(&comm->state, COMM_FORWARD, memory_order_release);
}

/*
 * Ranks that choose differently must not find each other: one that forwards a call never comes to the set-up, and the rest would
 * wait for it. Without a real NCCL nothing is forwarded, so that they meet and the set-up can say what differs.
 */
static struct shunt_id meeting_id(const struct shunt_comm_desc *desc)
{
	if (desc->standalone)
		return desc->id;
	return shunt_id_derive(&desc->id, sizeof(desc->id), "meet " SHUNT_VERSION, SHUNT_SETUP_PROTOCOL, shunt_config_fingerprint());
}

/* A peer connects: it wants to set the communicator up. On a thread of the service. True: to be asked again. */
static bool answer_peer(struct shunt_comm *comm)
{
	bool again = false;

	pthread_mutex_lock(&comm->lock);
	if (comm->rank < 0 || comm->device < 0) {
		comm->wanted = true;
	} else if (!atomic_load(&comm->error)) {
		/* A peer comes when all members have their sockets. A stranger may come before, and is not to end what has not begun. */
		again = atomic_load(&comm->state) == COMM_NEW &&
			shunt_meet_await(comm->meet, comm->nslots, comm->nranks, 1, &comm->cancel) == -ETIMEDOUT;
		if (!again && shunt_gpu())
			shunt_gpu()->device_set(comm->device);
		if (!again)
			shunt_comm_setup_locked(comm);
	}
	pthread_mutex_unlock(&comm->lock);
	return again;
}

int shunt_comm_create(const struct shunt_comm_desc *desc, struct shunt_comm **comm_p)
{
	struct shunt_comm *comm = calloc(1, sizeof(*comm));
	struct shunt_id meeting;
	int err;

	if (!comm)
		return -ENOMEM;
	comm->id = desc->id;
	comm->slot = desc->slot;
	comm->nslots = desc->nslots;
	comm->device = -1;
	comm->rank = comm->nranks = -1;
	comm->recorder = shunt_recorder_create(desc->id.b);
	comm->checks = shunt_config()->check;
	comm->scope.standalone = desc->standalone;
	comm->scope.deterministic = shunt_config()->deterministic;
	comm->scope.max_ctas = shunt_lesser_limit(desc->max_ctas, (int)shunt_nccl_env_max_ctas());
	comm->no_sms = desc->no_sms;
	comm->no_clusters = desc->no_clusters;
	shunt_order_init(&comm->order, shunt_nccl_env()->graph_mixing_support != 0);
	pthread_mutex_init(&comm->lock, NULL);
	shunt_windows_init(&comm->windows);
	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		comm->mem[r].fd = -1;
	shunt_select_check();

	if (desc->forward_why) {
		become_forward(comm, desc->forward_why);
	} else if (shunt_nccl_env_forbids_p2p() && !desc->standalone) {
		/* Set alike on all ranks or not, the missing socket tells the others. */
		become_forward(comm, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access");
	} else if (desc->nslots > 1) {
		meeting = meeting_id(desc);
		err = shunt_meet_bind(&meeting, desc->slot, &comm->meet);
		if (err)
			/* The peers find no socket and forward as well. */
			become_forward(comm, "no Unix socket could be bound on one rank");
		else if ((err = shunt_service_watch(comm, shunt_meet_fd(comm->meet), answer_peer)))
			shunt_info(SHUNT_LOG_INIT, "peers wait for this rank's first call: %s", strerror(-err));
	}
	if (desc->rank >= 0)
		shunt_comm_set_rank(comm, desc->rank, desc->nranks, desc->device);
	*comm_p = comm;
	return 0;
}

void shunt_comm_set_rank(struct shunt_comm *comm, int rank, int nranks, int device)
{
	bool wanted;

	pthread_mutex_lock(&comm->lock);
	comm->rank = rank;
	comm->nranks = nranks;
	comm->device = device;
	comm->scope.nranks = nranks;
	shunt_recorder_set_rank(comm->recorder, rank, nranks, device);
	if (nranks > SHUNT_MAX_RANKS && atomic_load(&comm->state) == COMM_NEW)
		become_forward(comm, "more than 8 ranks");
	wanted = comm->wanted;
	pthread_mutex_unlock(&comm->lock);
	if (wanted)
		shunt_service_wake(comm);
}

static void print_stats(struct shunt_comm *comm)
{
	char title[96];

	snprintf(title, sizeof(title), "communicator %s rank %d of %d", shunt_id_text(comm->id.b).s, comm->rank, comm->nranks);
	shunt_counters_print(&comm->counters, title);
}

/* All that is left: device memory, and the struct. */
static void free_comm(struct shunt_comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	shunt_comm_unset(comm);
	shunt_copier_finish(comm);
	if (comm->beside)
		comm->gpu->stream_destroy(comm->device, comm->beside);
	free(comm->forked.streams);
	shunt_meet_destroy(comm->meet);
	pthread_mutex_unlock(&comm->lock);
	shunt_windows_finish(comm);
	pthread_mutex_destroy(&comm->lock);
	shunt_recorder_destroy(comm->recorder);
	free(comm);
}

void shunt_comm_destroy(struct shunt_comm *comm)
{
	int device;

	if (!comm)
		return;
	if (shunt_config()->stats)
		print_stats(comm);
	shunt_recorder_phase(comm->recorder, "destruction");
	shunt_service_unwatch(comm);
	if (atomic_load(&comm->cancel)) { /* it may have to wait before it is freed, and others are not to see it until then */
		shunt_peers_unwatch(comm);
		pthread_mutex_lock(&comm->lock);
		shunt_meet_destroy(comm->meet);
		comm->meet = NULL;
		pthread_mutex_unlock(&comm->lock);
	}
	device = comm->device;
	if (!shunt_retire(comm))
		return;
	free_comm(comm);
	while ((comm = shunt_retired(device)))
		free_comm(comm);
}

bool shunt_comm_fail(struct shunt_comm *comm, int err)
{
	int none = 0;

	if (!atomic_compare_exchange_strong(&comm->error, &none, err))
		return false;
	shunt_recorder_error(comm->recorder, err);
	return true;
}

uint64_t shunt_comm_spin_limit(void)
{
	return (uint64_t)shunt_config()->timeout * 1000000;
}

void shunt_comm_stop_kernels(struct shunt_comm *comm)
{
	struct shunt_ctrl *ctrl = comm->mem[comm->rank].ptr;
	uint32_t one = 1;

	/* Kernels look at both at the same times; this one comes to them also where the copy has to wait until they have ended. */
	__atomic_store_n(&comm->words->limit_ns, SHUNT_LIMIT_ABORT, __ATOMIC_RELEASE);
	comm->gpu->copy(comm->device, &ctrl->abort, &one, sizeof(one));
}

void shunt_comm_abort(struct shunt_comm *comm)
{
	shunt_comm_error(comm); /* why a watchdog aborts is to be told first */
	atomic_store(&comm->cancel, 1);
	shunt_comm_fail(comm, -ECANCELED);
	if (atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_READY)
		shunt_comm_stop_kernels(comm);
}

int shunt_comm_error(struct shunt_comm *comm)
{
	int err = atomic_load_explicit(&comm->error, memory_order_relaxed);

	if (err || atomic_load_explicit(&comm->state, memory_order_acquire) != COMM_READY)
		return err;
	return shunt_fault_look(comm);
}

/* The call's buffers as an algorithm for windows wants them. */
static enum shunt_window_state window_of(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	enum shunt_window_state all = SHUNT_WINDOW_NONE, state;
	const void *ptr;
	uint64_t bytes;

	for (unsigned i = 0; shunt_window_buffer(coll, comm->nranks, i, &ptr, &bytes); i++) {
		state = shunt_windows_state(comm, ptr, bytes);
		if (state == SHUNT_WINDOW_NONE)
			return state;
		if (!i || state == SHUNT_WINDOW_NEW)
			all = state;
	}
	return all;
}

/* On those of the call's windows that the ranks have not agreed on; which these are is the same on all of them. */
static int agree_on_windows(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	const void *ptr = NULL;
	uint64_t bytes = 0;
	int err = 0;

	for (unsigned i = 0; !err && shunt_window_buffer(coll, comm->nranks, i, &ptr, &bytes); i++)
		if (shunt_windows_state(comm, ptr, bytes) != SHUNT_WINDOW_READY)
			err = shunt_windows_agree(comm, ptr, bytes);
	return err;
}

static bool needs_window(const struct shunt_pick *pick)
{
	return pick->algo && pick->algo->fuse == SHUNT_FUSE_WINDOWS;
}

/*
 * How a call is to be launched, or false and the reason to forward it: plans come first, then our kernels, then NCCL. A plan that is picked
 * has pick->plan only when it was prepared (decide_all). What *plan_p points to is not to be read before the set-up (shunt_comm_plans_choose).
 */
static bool decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_pick *pick, const struct shunt_plan **plan_p,
    const char **name_p, enum shunt_why *why_p)
{
	int state = atomic_load_explicit(&comm->state, memory_order_acquire);
	struct shunt_scope fresh;
	enum shunt_plan_choice choice;
	bool windows;

	*plan_p = NULL;
	if (state == COMM_FORWARD) {
		*why_p = comm->nranks == 1 ? SHUNT_WHY_ONE_RANK : SHUNT_WHY_COMM;
		return false;
	}
	if (comm->nranks > 1 && (state == COMM_NEW || comm->plans.set) && shunt_select_plans(&comm->scope, coll->kind)) {
		choice = shunt_comm_plans_choose(comm, coll, plan_p, name_p);
		if (choice == SHUNT_PLAN_CHOICE_PLAN) {
			pick->algo = &shunt_plan_algo;
			return true;
		}
		*plan_p = NULL;
		/* Not before the set-up: this rank may be the only one that has a selector, and must not be alone with its answer. */
		if (choice == SHUNT_PLAN_CHOICE_NCCL && !comm->scope.standalone && state == COMM_READY) {
			*why_p = SHUNT_WHY_SELECTOR;
			return false;
		}
	}
	windows = comm->nranks > 1 && atomic_load_explicit(&comm->windows.nlive, memory_order_relaxed) &&
		window_of(comm, coll) != SHUNT_WINDOW_NONE;
	if (state == COMM_READY && !windows)
		return shunt_select(&comm->scope, coll, pick, why_p);
	/* The set-up, on another thread, writes the rest of the scope: it counts when all of it is there. */
	if (state == COMM_READY)
		fresh = comm->scope;
	else
		fresh = (struct shunt_scope){ .nranks = comm->nranks, .standalone = comm->scope.standalone,
			.deterministic = comm->scope.deterministic, .no_sms = comm->no_sms };
	fresh.windows = windows;
	return shunt_select(&fresh, coll, pick, why_p);
}

const char *shunt_comm_path(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_why *why_p)
{
	const struct shunt_plan *plan;
	const char *name = NULL;
	struct shunt_pick pick;

	return !decide(comm, coll, &pick, &plan, &name, why_p) ? NULL : plan ? name : pick.algo->name;
}

const char *shunt_comm_why(const struct shunt_comm *comm, enum shunt_why why)
{
	bool own = why == SHUNT_WHY_COMM && atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_FORWARD && comm->why[0];

	return own ? comm->why : shunt_why_name(why);
}

bool shunt_comm_needs_setup(const struct shunt_comm *comm)
{
	return atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_NEW && comm->nranks > 1;
}

struct emitter {
	struct shunt_comm *comm;
	void *stream;
	struct shunt_kargs *base; /* of the launches to come */
	bool windows;             /* used by any of them */
	bool forked;              /* they run beside others' kernels */
};

/*
 * As clusters blocks need more room than they have. Ranks may use communicators in different orders, and then all of a launch must find room beside another one,
 * or each might wait for the rest of the other. Where that is not sure, only who is alone on a device launches so.
 */
static unsigned cluster_of(const struct shunt_comm *comm, const struct shunt_work *work, bool forked)
{
	if (!work->cluster || comm->no_clusters)
		return 0;
	return work->blocks <= comm->gpu->cluster_blocks(comm->device) || (!forked && shunt_retire_alone(comm)) ? work->cluster : 0;
}

/* What a launch adds to the device's account of warps: of what is done in windows the barrier that opens it stands for all. */
static unsigned warps_of(const struct shunt_work *work, const struct shunt_gpu_launch *l)
{
	switch (SHUNT_SHAPE_OF(l->kernel)) {
	case SHUNT_SHAPE_pulls2:
	case SHUNT_SHAPE_pulls4:
	case SHUNT_SHAPE_pulls8:
		return 0;
	case SHUNT_SHAPE_barrier:
		return work->args.k.flags & SHUNT_K_OPENS ? l->blocks * l->threads / 32 : 0;
	default:
		return l->blocks * l->threads / 32;
	}
}

static int emit(void *ctx, const struct shunt_work *work)
{
	struct emitter *e = ctx;
	struct shunt_gpu_launch l = {
		.kernel = work->kernel, .blocks = work->blocks + (work->args.k.check.what != 0), .threads = work->threads, .args = &work->args,
		.arg_bytes = shunt_kernel_arg_bytes(work->kernel), .stream = e->stream,
		.cluster = cluster_of(e->comm, work, e->forked), .shared = work->shared,
	};

	int err = shunt_copier_join(e->comm, e->stream);

	e->base->check.what = 0; /* the first launch has compared all collectives */
	if (!err)
		err = e->comm->gpu->launch(e->comm->device, &l);
	if (!err)
		shunt_order_count(&e->comm->order, warps_of(work, &l));
	return err;
}

static int copy(void *ctx, const struct shunt_copy *copy)
{
	struct emitter *e = ctx;

	return shunt_copier_copy(e->comm, e->stream, copy);
}

static uint64_t place(void *ctx, const void *ptr)
{
	struct emitter *e = ctx;

	return shunt_windows_place(e->comm, ptr);
}

static void *there(void *ctx, const void *ptr, uint64_t bytes, int peer)
{
	struct emitter *e = ctx;

	return shunt_windows_at(e->comm, ptr, bytes, peer);
}

static int run_plan(void *ctx, void *plan, const struct shunt_coll *coll)
{
	struct emitter *e = ctx;
	int err = shunt_comm_plans_launch(e->comm, coll, plan, e->base, e->stream, &e->windows);

	e->base->check.what = 0;
	return err;
}

/* later waits for what earlier has now. */
static int follow(struct shunt_comm *comm, void *later, void *earlier)
{
	void *event;
	int err = comm->gpu->event_create(comm->device, false, &event);

	if (err)
		return err;
	err = comm->gpu->event_record(comm->device, event, earlier);
	if (!err)
		err = comm->gpu->event_wait(comm->device, event, later);
	comm->gpu->event_destroy(comm->device, event);
	return err;
}

/* The streams of a group wait for each other before its first launch, and for its last one; stream: the one that has these. */
static int join_streams(struct shunt_comm *comm, void *stream, const struct shunt_coll *const *calls, size_t n, bool before)
{
	int err = 0;

	for (size_t i = 0; i < n && !err; i++) {
		void *other = calls[i]->stream;
		bool seen = other == stream;

		for (size_t k = 0; k < i && !seen; k++)
			seen = calls[k]->stream == other;
		if (!seen)
			err = before ? follow(comm, stream, other) : follow(comm, other, stream);
	}
	return err;
}

/* All streams of a group capture into one graph, or none captures: as NCCL has it, and nothing else could be put in order. */
static int check_streams(struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n)
{
	struct shunt_gpu_capture first, other;
	int err = comm->gpu->capture_info(comm->device, calls[0]->stream, &first);

	for (size_t i = 1; i < n && !err; i++) {
		if (calls[i]->stream == calls[i - 1]->stream)
			continue;
		err = comm->gpu->capture_info(comm->device, calls[i]->stream, &other);
		if (err || (other.state == first.state && (other.state != SHUNT_CAPTURE_ACTIVE || other.id == first.id)))
			continue;
		shunt_warn("a group on one communicator: streams %p and %p do not capture into the same graph, or only one of them captures",
		    calls[0]->stream, calls[i]->stream);
		err = -EBADMSG;
	}
	return err;
}

static bool captures(struct shunt_comm *comm, void *stream)
{
	enum shunt_capture state;

	return !comm->gpu->stream_capture(comm->device, stream, &state) && state != SHUNT_CAPTURE_NONE;
}

/* -EBADMSG where a capture is in the way: nothing was launched then, and what was captured comes to nothing. */
static int put_in_order(struct shunt_comm *comm, void *stream, const struct shunt_coll *const *calls, size_t n)
{
	int err = check_streams(comm, calls, n);

	if (!err)
		err = join_streams(comm, stream, calls, n, true);
	if (!err)
		err = shunt_order_begin(&comm->order, comm->gpu, comm->device, stream);
	return err && captures(comm, calls[0]->stream) ? -EBADMSG : err;
}

/* ... of calls on one stream. */
static inline int put_one_in_order(struct shunt_comm *comm, void *stream)
{
	int err = shunt_order_begin(&comm->order, comm->gpu, comm->device, stream);

	return err && captures(comm, stream) ? -EBADMSG : err;
}

/* A stream that was forked inside a capture belongs to that until it ends. */
static bool have_beside(struct shunt_comm *comm, void *stream)
{
	const struct shunt_gpu_ops *gpu = comm->gpu;
	struct shunt_gpu_capture here, beside;

	if (!comm->beside && gpu->stream_create(comm->device, &comm->beside))
		return false;
	if (gpu->capture_info(comm->device, stream, &here) || gpu->capture_info(comm->device, comm->beside, &beside))
		return false;
	return beside.state == SHUNT_CAPTURE_NONE || (beside.state == SHUNT_CAPTURE_ACTIVE && beside.id == here.id);
}

int shunt_comm_fork_group(struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n, bool *forked_p)
{
	void **streams = calloc(n, sizeof(*streams));
	int err = 0;

	*forked_p = false;
	pthread_mutex_lock(&comm->lock);
	if (streams && atomic_load_explicit(&comm->state, memory_order_relaxed) == COMM_READY && !shunt_comm_error(comm) &&
	    have_beside(comm, calls[0]->stream)) {
		err = put_in_order(comm, comm->beside, calls, n);
		*forked_p = !err;
	}
	if (*forked_p) {
		for (size_t i = 0; i < n; i++)
			streams[i] = calls[i]->stream;
		free(comm->forked.streams);
		comm->forked.streams = streams;
		comm->forked.n = n;
		streams = NULL;
	}
	pthread_mutex_unlock(&comm->lock);
	free(streams);
	return err;
}

static int join_locked(struct shunt_comm *comm)
{
	void **streams = comm->forked.streams;
	int err = 0;

	for (size_t i = 0; i < comm->forked.n && !err; i++)
		if (i == 0 || streams[i] != streams[i - 1])
			err = follow(comm, streams[i], comm->beside);
	if (err)
		shunt_comm_fail(comm, err);
	comm->forked.n = 0;
	atomic_store(&comm->forked.due, false);
	return err;
}

int shunt_comm_join_group(struct shunt_comm *comm)
{
	int err;

	pthread_mutex_lock(&comm->lock);
	err = join_locked(comm);
	pthread_mutex_unlock(&comm->lock);
	return err;
}

void shunt_comm_join_later(struct shunt_comm *comm)
{
	atomic_store(&comm->forked.due, true);
}

int shunt_comm_join_due(struct shunt_comm *comm)
{
	int err = 0;

	if (!atomic_load(&comm->forked.due))
		return 0;
	pthread_mutex_lock(&comm->lock);
	if (atomic_load(&comm->forked.due))
		err = join_locked(comm);
	pthread_mutex_unlock(&comm->lock);
	return err;
}

static const char *path_name(const struct shunt_pick *pick)
{
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): decide_ready() gave the plan what it runs on */
	return pick->algo == &shunt_plan_algo ? ((const struct shunt_comm_exec *)pick->plan)->name : pick->algo->name;
}

static int launch(struct shunt_comm *comm, const struct shunt_coll *const *calls, const struct shunt_pick *picks, size_t n, bool forked)
{
	struct shunt_kargs base = comm->kargs;
	struct emitter e = { comm, forked ? comm->beside : calls[0]->stream, &base, false, forked };
	bool checks = comm->checks && comm->nranks > 1;
	struct shunt_issue issue = { .scope = &comm->scope, .base = &base, .emit = emit, .copy = copy, .place = place, .there = there, .run_plan = run_plan, .check = checks,
		.ctx = &e };
	bool captured, several = false, begun;
	int err = 0;

	for (size_t i = 0; i < n; i++) {
		e.windows |= needs_window(&picks[i]);
		several |= calls[i]->stream != e.stream;
	}
	if (!forked)
		err = several ? put_in_order(comm, e.stream, calls, n) : put_one_in_order(comm, e.stream);
	begun = !err;
	for (size_t i = 0; i < n && !err; i++)
		base.op = shunt_recorder_add(comm->recorder, calls[i], path_name(&picks[i]), (unsigned)(n - 1 - i), comm->order.now != NULL);
	if (!err && checks)
		shunt_check_group(comm, calls, n, comm->order.now != NULL, &base);
	if (!err)
		err = shunt_issue_calls(&issue, calls, picks, n);
	captured = comm->order.now != NULL;
	if (!err)
		err = shunt_order_end(&comm->order, comm->gpu, comm->device, e.stream);
	if (!err && e.windows)
		err = shunt_windows_note_use(comm, e.stream, captured);
	if (!err && several && !forked)
		err = join_streams(comm, e.stream, calls, n, false);
	if (err && begun && err != -EBADMSG)
		shunt_order_lose(&comm->order, comm->gpu, comm->device, e.stream);
	return err;
}

/* As decide, with what a plan or a window needs on the device: a round among the ranks if it was not there. */
static int decide_ready(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_pick *pick, enum shunt_why *why_p)
{
	const struct shunt_plan *plan;
	struct shunt_comm_exec *exec;
	int err;

	do {
		if (!decide(comm, coll, pick, &plan, NULL, why_p))
			return -EOPNOTSUPP;
		if (atomic_load_explicit(&comm->state, memory_order_relaxed) != COMM_READY)
			return 0;
		if (!plan && (!needs_window(pick) || window_of(comm, coll) == SHUNT_WINDOW_READY))
			return 0;
		if (!plan) {
			err = agree_on_windows(comm, coll);
			continue;
		}
		err = shunt_comm_plans_prepare(comm, coll, plan, &exec);
		pick->plan = exec;
		if (!err)
			err = shunt_comm_plans_agree_windows(comm, coll, exec);
	} while (err == -EOPNOTSUPP); /* that plan or window is out: what is next? */
	/* The others may wait in the round, or have it behind them: this rank's next one must not meet theirs. */
	if (err && shunt_comm_fail(comm, err) && err != -ECANCELED)
		shunt_error("communicator of %d ranks, rank %d: agreeing on what %s needs: %s", comm->nranks, comm->rank,
		    shunt_kind_name(coll->kind), strerror(-err));
	return err;
}

/*
 * Decides all calls whose pick has no algorithm yet, with the set-up done on the way if one wants a kernel; -EOPNOTSUPP: one is to be forwarded,
 * *which_p.
 */
static int decide_all(struct shunt_comm *comm, const struct shunt_coll *const *calls, struct shunt_pick *picks, size_t n, size_t *which_p,
    enum shunt_why *why_p)
{
	bool fresh = atomic_load_explicit(&comm->state, memory_order_relaxed) == COMM_NEW, again;
	int err = 0;

	do {
		again = atomic_load_explicit(&comm->state, memory_order_relaxed) == COMM_NEW;
		for (size_t i = 0; i < n && !err; i++)
			if (fresh || !picks[i].algo) {
				*which_p = i;
				err = decide_ready(comm, calls[i], &picks[i], why_p);
			}
		/* Only after the set-up its outcome and what the ranks agreed on are known. */
		if (!err)
			err = shunt_comm_error(comm);
		if (!err && again)
			err = shunt_comm_setup_locked(comm);
	} while (!err && again);
	return err;
}

bool shunt_comm_pick(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_pick *pick_p, enum shunt_why *why_p)
{
	bool final = !shunt_comm_needs_setup(comm) && !comm->plans.set; /* asked first: a set-up that comes in between changes nothing then */
	const struct shunt_plan *plan;

	if (!decide(comm, coll, pick_p, &plan, NULL, why_p))
		return false;
	if (!final || needs_window(pick_p)) /* a window may go until then */
		pick_p->algo = NULL;
	return true;
}

bool shunt_comm_needs_round(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	const struct shunt_plan *plan;
	struct shunt_pick pick;
	enum shunt_why why;

	if (comm->nranks == 1 || !decide(comm, coll, &pick, &plan, NULL, &why))
		return false;
	return shunt_comm_needs_setup(comm) ||
		(plan && (!shunt_comm_plans_ready(comm, coll, plan) || shunt_comm_plans_window_is_new(comm, coll, plan))) ||
		(needs_window(&pick) && window_of(comm, coll) == SHUNT_WINDOW_NEW);
}

int shunt_comm_prepare(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	struct shunt_pick pick = { 0 };
	enum shunt_why why;
	size_t which;
	int err;

	pthread_mutex_lock(&comm->lock);
	err = decide_all(comm, &coll, &pick, 1, &which, &why);
	if (err && err != -EOPNOTSUPP)
		shunt_comm_fail(comm, err);
	pthread_mutex_unlock(&comm->lock);
	return err == -EOPNOTSUPP ? 0 : err;
}

int shunt_comm_run_group(struct shunt_comm *comm, const struct shunt_coll *const *calls, struct shunt_pick *picks, size_t n, bool forked)
{
	struct shunt_window *dead;
	enum shunt_why why;
	size_t which = 0;
	int err;

	pthread_mutex_lock(&comm->lock);
	dead = shunt_windows_take_dead(comm);
	err = decide_all(comm, calls, picks, n, &which, &why);
	if (err == -EOPNOTSUPP) {
		shunt_comm_count_forward(comm, calls[which], why);
	} else if (!err) {
		err = launch(comm, calls, picks, n, forked);
		/* The peers may have launched: there is no way back to NCCL. A call that was refused by itself breaks nothing. */
		if (err && err != -EBADMSG)
			shunt_comm_fail(comm, err = err == -EOPNOTSUPP ? -EIO : err);
		for (size_t i = 0; i < n && !err; i++)
			shunt_counters_add(&comm->counters, calls[i]->kind, path_name(&picks[i]), SHUNT_WHY_OURS, shunt_coll_bytes(calls[i]));
	}
	pthread_mutex_unlock(&comm->lock);
	if (dead)
		shunt_windows_free(comm, dead);
	return err;
}

int shunt_comm_run(struct shunt_comm *comm, const struct shunt_coll *coll)
{
	struct shunt_pick pick = { 0 };

	return shunt_comm_run_group(comm, &coll, &pick, 1, false);
}

void shunt_comm_say_forward(const struct shunt_comm *comm)
{
	shunt_warn("communicator of %d ranks stays with NCCL%s: %s", comm->nranks,
	    comm->scope.deterministic ? ", its sums in NCCL's order in spite of SHUNT_DETERMINISTIC" : "", comm->why);
}

void shunt_comm_count_forward(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_why why)
{
	/* What was known before any peer was asked is said when it matters for the first time. */
	if (why == SHUNT_WHY_COMM && comm->rank == 0 && atomic_load_explicit(&comm->untold, memory_order_relaxed) &&
	    atomic_exchange(&comm->untold, false))
		shunt_comm_say_forward(comm);
	if (comm->checks)
		shunt_check_forward(comm, coll);
	shunt_recorder_add_forward(comm->recorder, coll, why);
	shunt_counters_add(&comm->counters, coll->kind, NULL, why, shunt_coll_bytes(coll));
}

int shunt_comm_rank(const struct shunt_comm *comm)
{
	return comm->rank;
}

int shunt_comm_nranks(const struct shunt_comm *comm)
{
	return comm->nranks;
}

int shunt_comm_device(const struct shunt_comm *comm)
{
	return comm->device;
}

size_t shunt_comm_memory(struct shunt_comm *comm)
{
	return atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_READY ? comm->mem[comm->rank].bytes : 0;
}

size_t shunt_comm_counters(const struct shunt_comm *comm, struct shunt_counter *rows, size_t cap)
{
	return shunt_counters_list(&comm->counters, rows, cap);
}

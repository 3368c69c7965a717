/* SPDX-License-Identifier: MIT */
/*
 * Lifecycles of a torture run. Each creates communicators, uses them for some hundred operations and destroys them.
 * Then memory and descriptors must be as they were after the first lifecycles.
 */
#include "tools/common/libc.h"
#include "tools/torture/rank.h"

enum {
	FIRST_LIFECYCLE_OPS = 24, /* operations */
	LIFECYCLE_OPS = 400,      /* about */
	VOTE_EVERY = 16,          /* rounds */
	LEAK_BYTES = 16 << 20,    /* less than the memory of one communicator */
	LEAK_DESCRIPTORS = 8,
};

/* ---- windows ---- */

static struct torture_slot *slot_at(struct torture_rank *r, int i)
{
	int k = i - TORTURE_SLOTS;

	return k < 0 ? &r->slots[i] : &r->graphs[k / TORTURE_GRAPH_OPS].slots[k % TORTURE_GRAPH_OPS];
}

/* Deregisters a communicator's windows. Captured operations may use them, so the graphs go first. */
static void windows_deregister(struct torture_rank *r, enum conform_comm comm)
{
	if (!(r->has_windows >> comm & 1))
		return;
	r->has_windows &= ~(1u << comm);
	torture_check_all(r);
	torture_rendezvous(r);
	torture_graphs_drop(r);
	for (int i = 0; i < 2 * TORTURE_ALL_SLOTS; i++) {
		ncclWindow_t *window = &slot_at(r, i / 2)->windows[comm][i % 2];

		if (*window && !r->err)
			torture_nccl_error(
			    r, "ncclCommWindowDeregister", r->nccl.CommWindowDeregister(r->comm[comm], *window));
		*window = NULL;
	}
}

/* Registers all buffers that can be symmetric as windows of a communicator. */
static void windows_register(struct torture_rank *r, enum conform_comm comm)
{
	torture_check_all(r);
	torture_rendezvous(r);
	r->has_windows |= 1u << comm;
	for (int i = 0; r->comm[comm] && i < 2 * TORTURE_ALL_SLOTS && !r->err; i++) {
		struct torture_slot *s = slot_at(r, i / 2);
		ncclWindow_t *window = &s->windows[comm][i % 2];
		void *buffer = i % 2 ? s->out : s->in;

		if (!s->symmetric)
			continue;
		torture_nccl_error(r, "ncclCommWindowRegister",
		    r->nccl.CommWindowRegister(r->comm[comm], buffer, r->env.bytes, window, NCCL_WIN_COLL_SYMMETRIC));
		r->stats.windows += *window != NULL;
	}
}

static void windows_round(struct torture_rank *r)
{
	enum conform_comm comm = (enum conform_comm)torture_random_bit(&r->common, r->comms);

	if (r->has_windows >> comm & 1)
		windows_deregister(r, comm);
	else
		windows_register(r, comm);
}

/* ---- communicators ---- */

/* id: for the world only; else NULL. */
static void comm_create(struct torture_rank *r, enum conform_comm comm, const ncclUniqueId *id)
{
	struct conform_made made = {
		.comm = comm, .rank = r->rank, .nranks = r->nranks, .device = r->device, .comms = r->comm
	};
	char text[400];

	snprintf(r->progress->what, sizeof(r->progress->what), "the communicator \"%s\" of --seed %llu",
	    conform_comm_name(comm), (unsigned long long)r->seed);
	torture_rank_progress(r, RANKS_INIT);
	if (id)
		torture_nccl_error(
		    r, "ncclCommInitRank", r->nccl.CommInitRank(&r->comm[comm], r->nranks, *id, r->rank));
	else
		made.result = conform_comm_start(&r->nccl, comm, r->rank, r->nranks, id, r->comm);
	if (!id && !conform_comm_check(&r->nccl, &made, text, sizeof(text))) {
		tool_error("rank %d: %s", r->rank, text);
		r->err = -EIO;
	}
	r->comms |= 1u << comm;
	r->unmet |= 1u << comm;
	r->stats.comms++;
}

static void path_count_add(struct torture_rank *r, const struct shunt_counter *c)
{
	struct torture_stats *t = &r->stats;
	size_t i = 0;

	while (i < t->npaths &&
	    (strcmp(t->paths[i].op, c->op) || strcmp(t->paths[i].path, c->path) ||
	        strcmp(t->paths[i].reason, c->reason)))
		i++;
	if (i == TORTURE_COUNTERS)
		return;
	if (i == t->npaths)
		t->paths[t->npaths++] = (struct shunt_counter){ c->op, c->path, c->reason, 0, 0 };
	t->paths[i].calls += c->calls;
}

static void comm_destroy(struct torture_rank *r, enum conform_comm comm)
{
	struct shunt_counter rows[TORTURE_COUNTERS];
	/*
	 * Over bad links a call in flight may break the communicator until its end, and a destruction does not say so:
	 * its results would count.
	 */
	bool finalized = torture_random(&r->common, 4) == 0 || r->o->ranks.faults;
	char token = 0, all[RANKS_MAX];
	size_t n = 0;

	r->comms &= ~(1u << comm);
	windows_deregister(r, comm);
	/* Without a real NCCL a first call waits for all ranks, also for ranks that it does not need. */
	if (r->unmet >> comm & 1 && !r->err)
		torture_allgather(r, &token, 1, all);
	if (!r->comm[comm] || r->err)
		return;
	torture_rank_progress(r, RANKS_DESTROY);
	if (r->nccl.counters && !r->nccl.counters(r->comm[comm], rows, TORTURE_COUNTERS, &n))
		for (size_t i = 0; i < n && i < TORTURE_COUNTERS; i++)
			path_count_add(r, &rows[i]);
	torture_comm_check(r, comm);
	if (!r->err && r->nccl.CommFinalize && finalized) {
		torture_nccl_error(r, "ncclCommFinalize", r->nccl.CommFinalize(r->comm[comm]));
		torture_comm_check(r, comm);
	}
	if (!r->err)
		torture_nccl_error(r, "ncclCommDestroy", r->nccl.CommDestroy(r->comm[comm]));
	r->comm[comm] = NULL;
}

/* Destroys a child with its own children and the graphs, or creates it if it does not exist. */
static void comm_round(struct torture_rank *r)
{
	enum conform_comm comm = 1 + torture_random(&r->common, CONFORM_NCOMMS - 1);

	if (!(r->possible >> comm & 1))
		return;
	/*
	 * A destroy waits for the communicator's own calls in flight. A creation needs a parent without calls in
	 * flight. Ranks that are threads with GPUs always check first: a CUDA call that waits for a GPU locks the
	 * driver for all of them, so that no rank can launch what the GPU waits for.
	 */
	if (torture_random(&r->common, 2) || !(r->comms >> comm & 1) || (r->cuda && r->o->ranks.threads))
		torture_check_all(r);
	torture_rendezvous(r);
	if (!(r->comms >> comm & 1)) {
		if (!(r->comms >> conform_comm_parent(comm) & 1))
			comm_create(r, conform_comm_parent(comm), NULL);
		if (!r->err)
			comm_create(r, comm, NULL);
	} else {
		torture_graphs_drop(r);
		for (int i = CONFORM_NCOMMS - 1; i >= (int)comm; i--)
			if (r->comms >> i & 1 && (i == (int)comm || (conform_comm_parent(i) == comm)))
				comm_destroy(r, i);
	}
	torture_rendezvous(r);
}

/*
 * Aborts a child with calls in flight. Each rank does so when it gets here; others may not even have enqueued their
 * calls. Calls of other communicators at that time, also on the same streams, must have correct results.
 */
static void abort_round(struct torture_rank *r)
{
	unsigned children = r->comms & ~(1u << CONFORM_WORLD);
	char token = 0, all[RANKS_MAX];
	enum conform_comm comm;

	if (!r->nccl.CommAbort || r->serialized || !children)
		return;
	comm = (enum conform_comm)torture_random_bit(&r->common, children);
	windows_deregister(r, comm);
	torture_check_all(r);
	torture_graphs_drop(r);
	/* A rank that aborts also takes data from the others that they have not received yet. */
	if (r->err || torture_allgather(r, &token, 1, all))
		return;
	r->dying = 1u << comm;
	torture_dying_round(r, comm);
	if (torture_random(&r->own, 2))
		usleep(torture_random(&r->own, 2000));
	torture_rank_progress(r, RANKS_DESTROY);
	if (r->comm[comm] && !r->err)
		torture_nccl_error(r, "ncclCommAbort", r->nccl.CommAbort(r->comm[comm]));
	r->comm[comm] = NULL;
	r->comms &= ~(1u << comm);
	r->dying = 0;
	r->stats.aborts++;
	torture_check_all(r);
}

/* Replaces a stream by a new one, perhaps at the same address. Each rank decides for itself. */
static void stream_round(struct torture_rank *r)
{
	int which = (int)torture_random(&r->own, TORTURE_STREAMS);

	torture_check_all(r);
	if (!r->err)
		torture_device_error(r, "destroying a stream", r->lib.stream_destroy(r->streams[which]));
	r->streams[which] = NULL;
	if (!r->err)
		torture_device_error(r, "making a stream", r->lib.stream_create(&r->streams[which]));
}

/* ---- lifecycles ---- */

static uint64_t descriptors_count(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static struct torture_usage usage_read(const struct torture_rank *r)
{
	struct torture_usage h = { .descriptors = descriptors_count() };
	size_t avail = 0, total = 0;

	if (!r->o->shared && !r->lib.mem_info(&avail, &total))
		h.device = total - avail;
	return h;
}

static bool usage_is_back(const struct torture_rank *r)
{
	return r->latest.device <= r->baseline.device + LEAK_BYTES &&
	    r->latest.descriptors <= r->baseline.descriptors + LEAK_DESCRIPTORS;
}

/* Compares memory and descriptors with the baseline. No rank has a communicator. */
static void usage_check(struct torture_rank *r)
{
	char token = 0, all[RANKS_MAX];

	/*
	 * No rank measures before the others have destroyed their communicators, or creates the next one before all
	 * have measured.
	 */
	if (torture_allgather(r, &token, 1, all))
		return;
	r->latest = usage_read(r);
	/*
	 * Freed memory may become visible a moment later, and over a bad network connections stay until the other side
	 * has heard the last word.
	 */
	int looks = r->o->ranks.faults ? 1000 : 100;

	for (int i = 0; r->stats.lifecycles > TORTURE_WARMUP_LIFECYCLES && i < looks && !usage_is_back(r); i++) {
		usleep(20000);
		r->latest = usage_read(r);
	}
	if (r->stats.lifecycles <= TORTURE_WARMUP_LIFECYCLES) {
		if (r->latest.device > r->baseline.device)
			r->baseline.device = r->latest.device;
		if (r->latest.descriptors > r->baseline.descriptors)
			r->baseline.descriptors = r->latest.descriptors;
	}
	if (!usage_is_back(r)) {
		tool_error("rank %d: after %llu lifecycles %.1f MiB of device %d and %llu descriptors are in use, "
		           "where it was %.1f MiB and %llu "
		           "after the first %d: something of the communicators was not given back",
		    r->rank, (unsigned long long)r->stats.lifecycles, (double)r->latest.device / (1 << 20), r->device,
		    (unsigned long long)r->latest.descriptors, (double)r->baseline.device / (1 << 20),
		    (unsigned long long)r->baseline.descriptors, TORTURE_WARMUP_LIFECYCLES);
		r->err = -ENOSPC;
	}
	torture_allgather(r, &token, 1, all);
}

static double torture_seconds(const struct torture_opts *o)
{
	return 60 * (o->minutes > 0 ? o->minutes : 1);
}

/*
 * Ends the run after a wrong value on any rank, or when the time or the number of operations is reached. All ranks
 * agree.
 */
static void stop_vote(struct torture_rank *r)
{
	struct vote {
		uint64_t wrong;
		bool time_is_up;
	} mine = { r->stats.wrong, false }, all[RANKS_MAX];
	double seconds = (ranks_now_us() - r->began_us) / 1e6;

	mine.time_is_up = r->o->ops ? r->stats.ops >= r->o->ops : seconds >= torture_seconds(r->o);
	if (torture_allgather(r, &mine, sizeof(mine), all))
		return;
	r->stop = all[0].time_is_up;
	for (int i = 0; i < r->nranks; i++)
		r->stop |= all[i].wrong > 0;
}

static void lifecycle_begin(struct torture_rank *r)
{
	ncclUniqueId id, ids[RANKS_MAX];

	memset(&id, 0, sizeof(id));
	if (!r->rank)
		torture_nccl_error(r, "ncclGetUniqueId", r->nccl.GetUniqueId(&id));
	if (!r->err && !torture_allgather(r, &id, sizeof(id), ids))
		comm_create(r, CONFORM_WORLD, &ids[0]);
	torture_rendezvous(r);
	if (torture_random(&r->common, 2) && !r->err)
		windows_register(r, CONFORM_WORLD);
}

static void lifecycle_end(struct torture_rank *r)
{
	uint32_t first = torture_random(&r->common, CONFORM_NCOMMS);

	torture_check_all(r);
	torture_rendezvous(r);
	torture_graphs_drop(r);
	/* In any order: a child survives its parent. */
	for (uint32_t i = 0; i < CONFORM_NCOMMS; i++)
		comm_destroy(r, (first + i) % CONFORM_NCOMMS);
	r->stats.lifecycles++;
	if (!r->err)
		usage_check(r);
}

/* For the parent, which prints it now and then. */
static void so_far(const struct torture_rank *r)
{
	const struct torture_stats *t = &r->stats;
	char end[48];
	int seconds = (int)((ranks_now_us() - r->began_us) / 1e6);

	if (r->o->ops)
		snprintf(end, sizeof(end), " %llu calls", (unsigned long long)r->o->ops);
	else
		snprintf(
		    end, sizeof(end), " %d:%02d", (int)torture_seconds(r->o) / 60, (int)torture_seconds(r->o) % 60);
	snprintf(r->progress->so_far, sizeof(r->progress->so_far),
	    "[torture %d:%02d of%s] %llu calls, %llu groups, %llu graphs, %llu communicators, %llu wrong", seconds / 60,
	    seconds % 60, end, (unsigned long long)t->ops, (unsigned long long)t->groups,
	    (unsigned long long)t->captures, (unsigned long long)t->comms, (unsigned long long)t->wrong);
}

void torture_lifecycle(struct torture_rank *r)
{
	uint64_t end = r->stats.ops +
	    (r->stats.lifecycles ? LIFECYCLE_OPS / 4 + torture_random(&r->common, LIFECYCLE_OPS) : FIRST_LIFECYCLE_OPS);

	lifecycle_begin(r);
	for (uint64_t round = 1; !r->err && !r->stop && r->stats.ops < end; round++) {
		uint32_t what = torture_random(&r->common, 100);

		if (what < 64 || (what < 86 && r->serialized))
			torture_eager_round(r);
		else if (what < 86)
			torture_graph_round(r, what % 6);
		else if (what < 93)
			comm_round(r);
		else if (what < 95)
			torture_check_all(r);
		else if (what < 97)
			windows_round(r);
		else if (what < 98)
			abort_round(r);
		else
			stream_round(r);
		if (!r->rank)
			so_far(r);
		if (!r->err && (round % VOTE_EVERY == 0 || (r->o->ops && r->stats.ops >= r->o->ops)))
			stop_vote(r);
	}
	if (!r->err)
		lifecycle_end(r);
	/* Results of the last operations. */
	if (!r->err && !r->stop)
		stop_vote(r);
}

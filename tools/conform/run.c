/* SPDX-License-Identifier: MIT */
/* A rank that is a process or a thread: runs each case with each library and sends the outcomes to rank 0. */
#include "tools/common/libc.h"
#include "tools/conform/conform.h"

struct rank_slot {
	struct conform_rank rank;
	struct ranks_shared *shared;
	struct ranks *ranks;
	struct conform_report *report; /* rank 0 */
};

static int rank_allgather(struct rank_slot *t, const void *mine, size_t bytes, void *all)
{
	conform_rank_progress(&t->rank, RANKS_WAIT, -1);
	int err = ranks_allgather(t->ranks, mine, bytes, all);

	return ranks_error(t->rank.rank, err);
}

/* ---- communicators ---- */

static int id_broadcast(struct rank_slot *t, struct conform_side *s, ncclUniqueId *id)
{
	ncclUniqueId ids[RANKS_MAX];
	int err = 0;

	memset(id, 0, sizeof(*id));
	if (!t->rank.rank)
		err = bench_nccl_check(&s->nccl, 0, "ncclGetUniqueId", s->nccl.GetUniqueId(id));
	if (!err)
		err = rank_allgather(t, id, sizeof(*id), ids);
	if (!err)
		*id = ids[0];
	return err;
}

/* All ranks create the same communicator, its parents first. 0, or -errno after a message: the run ends. */
static int comm_create(struct rank_slot *t, int lib, enum conform_comm comm, struct conform_outcome *out)
{
	struct conform_rank *r = &t->rank;
	struct conform_side *s = &r->side[lib];
	struct conform_made made;
	ncclUniqueId id;
	char text[400];
	int err = 0;

	if (s->tried[comm])
		return 0;
	s->tried[comm] = true;
	if (conform_comm_parent(comm) != comm)
		err = comm_create(t, lib, conform_comm_parent(comm), out);
	if (!err)
		err = id_broadcast(t, s, &id);
	conform_rank_progress(r, RANKS_INIT, lib);
	if (err)
		return err;
	made = (struct conform_made){ .comm = comm,
		.rank = r->rank,
		.nranks = r->nranks,
		.device = r->device,
		.result = conform_comm_start(&s->nccl, comm, r->rank, r->nranks, &id, s->comm),
		.comms = s->comm };
	if (!conform_comm_check(&s->nccl, &made, text, sizeof(text)))
		conform_outcome_set(out, CONFORM_FAIL, "%s: %s", s->nccl.label, text);
	return 0;
}

static int comms_create(
    struct rank_slot *t, int lib, const struct conform_fixture *fixture, struct conform_outcome *out)
{
	int err = 0;

	for (int rank = 0; rank < fixture->nranks; rank++)
		for (size_t i = 0; !err && i < fixture->program[rank].n; i++)
			err = comm_create(t, lib, fixture->program[rank].steps[i].comm, out);
	return err;
}

/* ---- cases ---- */

static int program_run(struct rank_slot *t, const struct conform_case *c, struct conform_outcome *out)
{
	struct conform_rank *r = &t->rank;
	struct conform_fixture fixture;
	struct conform_memory memory = { 0 };
	int err = conform_fixture_create(&fixture, c, r->nranks), nlibs = r->o->ranks.nlibs;
	char token = 0, all[RANKS_MAX];

	if (!err)
		err = conform_memory_create(&memory, r, &fixture);
	if (err) {
		tool_error("rank %d: %s cannot be prepared: %s", r->rank, c->name, strerror(-err));
		goto out;
	}
	/*
	 * The preparation may have freed device memory, which waits for the device. Threads can share a GPU: no other
	 * rank may run kernels meanwhile that wait for this rank.
	 */
	err = rank_allgather(t, &token, sizeof(token), all);
	if (err)
		goto out;
	for (int i = 0; i < nlibs; i++) {
		const char *what = conform_fixture_lacks(&fixture, &r->side[i]);

		if (what)
			conform_outcome_set(out, CONFORM_SKIP, "%s lacks %s", r->side[i].nccl.label, what);
	}
	/* Also after a failure of this rank, since the other ranks go on. */
	for (int i = 0; out->status != CONFORM_SKIP && !err && i < nlibs; i++)
		err = comms_create(t, i, &fixture, out);
	/* A failure of this rank may be a success on another one: this rank takes part to the end. */
	if (!err && out->status != CONFORM_SKIP && c->kind == CONFORM_DETERMINISM)
		conform_determinism_run(r, &fixture, &memory, out);
	for (int i = 0; !err && out->status != CONFORM_SKIP && c->kind == CONFORM_PROGRAM && i < nlibs; i++) {
		conform_rank_progress(r, RANKS_CHECK, i);
		if (!conform_rank_upload(r, i, &fixture, out))
			break;
		conform_rank_run(r, i, &fixture, c->graph, out);
		conform_rank_check(r, i, &fixture, &memory, out);
	}
out:
	conform_memory_destroy(&memory);
	conform_fixture_destroy(&fixture);
	return err;
}

static int case_run(struct rank_slot *t, const struct conform_case *c, struct conform_outcome *out)
{
	switch (c->kind) {
	case CONFORM_INVALID:
		conform_invalid_run(&t->rank, c, out);
		return 0;
	case CONFORM_HUGE:
		conform_huge_run(&t->rank, c, out);
		return 0;
	default:
		return program_run(t, c, out);
	}
}

/* ---- set-up ---- */

/* The library lacks a collective that is not exported, or that answers a plain call with "invalid usage". */
static int side_probe(struct rank_slot *t, struct conform_side *s)
{
	struct conform_rank *r = &t->rank;
	uint64_t lacks = 0, all[RANKS_MAX];
	int err;

	for (int id = 0; id < BENCH_NCOLLS; id++) {
		const struct bench_coll *coll = &bench_colls[id];
		struct bench_args a = { .send = r->send,
			.recv = r->recv,
			.count = 1,
			.dtype = ncclInt32,
			.rank = r->rank,
			.nranks = r->nranks,
			.comm = s->comm[CONFORM_WORLD],
			.stream = r->stream[0] };

		if (id == BENCH_COLL_SEND || id == BENCH_COLL_RECV) /* the ring has tried them */
			lacks |= (lacks >> BENCH_COLL_SENDRECV & 1) << id;
		else if (bench_coll_missing(coll, &s->nccl) || coll->call(&s->nccl, &a) == ncclInvalidUsage)
			lacks |= 1ull << id;
	}
	err = r->lib.stream_synchronize(r->stream[0]);
	if (err) {
		tool_error("rank %d: %s: waiting for the device: %s", r->rank, s->nccl.label, strerror(-err));
		return err;
	}
	err = rank_allgather(t, &lacks, sizeof(lacks), all);
	for (int i = 0; !err && i < r->nranks; i++)
		s->lacks |= all[i];
	return err;
}

static int side_open(struct rank_slot *t, int lib)
{
	struct conform_rank *r = &t->rank;
	struct conform_side *s = &r->side[lib];
	ncclUniqueId id;
	int err;

	conform_rank_progress(r, RANKS_INIT, lib);
	err = id_broadcast(t, s, &id);
	conform_rank_progress(r, RANKS_INIT, lib);
	if (!err)
		err = bench_nccl_check(&s->nccl, r->rank, "ncclCommInitRank",
		    s->nccl.CommInitRank(&s->comm[CONFORM_WORLD], r->nranks, id, r->rank));
	s->tried[CONFORM_WORLD] = true;
	return err ? err : side_probe(t, s);
}

static int rank_open(struct rank_slot *t, int fd)
{
	struct conform_rank *r = &t->rank;
	/* Longer than the parent waits: its message is better. */
	int err = ranks_join(t->shared, fd, r->rank, r->o->ranks.timeout_s + 10, &t->ranks);

	conform_rank_progress(r, RANKS_INIT, -1);
	if (!err)
		err = conform_rank_open(r);
	for (int i = 0; !err && i < r->o->ranks.nlibs; i++)
		err = side_open(t, i);
	return err;
}

static void rank_close(struct rank_slot *t, bool clean)
{
	struct conform_rank *r = &t->rank;

	conform_rank_progress(r, RANKS_DESTROY, -1);
	/* After an error a library may wait for ranks that will not come. The process ends anyway. */
	for (int i = 0; clean && i < r->o->ranks.nlibs; i++)
		for (int k = CONFORM_NCOMMS - 1; k >= 0; k--)
			if (r->side[i].comm[k])
				r->side[i].nccl.CommDestroy(r->side[i].comm[k]);
	if (clean)
		conform_rank_close(r);
	conform_report_destroy(t->report);
	conform_rank_progress(r, RANKS_DONE, -1);
	ranks_leave(t->ranks);
}

static int cases_run(struct rank_slot *t, const struct conform_list *list)
{
	struct conform_rank *r = &t->rank;
	struct conform_outcome *all = calloc((size_t)r->nranks, sizeof(*all));
	int err = all ? 0 : -ENOMEM;

	for (size_t i = 0; !err && i < list->n; i++) {
		const struct conform_case *c = &list->cases[i];
		struct conform_outcome out = { 0 };

		snprintf(r->progress->what, sizeof(r->progress->what), "--case %s", c->name);
		err = case_run(t, c, &out);
		/* If the other ranks do not come, the parent prints it. */
		if (out.status == CONFORM_FAIL)
			snprintf(r->progress->what, sizeof(r->progress->what), "--case %s, where it had failed: %.300s",
			    c->name, out.text);
		if (!err)
			err = rank_allgather(t, &out, sizeof(out), all);
		if (!err && !r->rank)
			conform_report_case(t->report, list, i, all);
	}
	free(all);
	return err;
}

static int rank_run(const void *arg, const struct ranks_slot *rank_slot)
{
	struct rank_slot *t = calloc(1, sizeof(*t));
	struct conform_list list = { 0 };
	int status = TOOL_OK, statuses[RANKS_MAX], err = -ENOMEM;
	struct conform_rank *r;

	if (!t) {
		ranks_abort(NULL, rank_slot->shared);
		return TOOL_FAIL;
	}
	r = &t->rank;
	r->o = arg;
	t->shared = rank_slot->shared;
	r->progress = rank_slot->progress;
	r->rank = rank_slot->rank;
	r->device = rank_slot->device;
	r->nranks = rank_slot->shared->launch.nranks;
	err = rank_open(t, r->o->ranks.worker_fd);
	if (!err)
		err = conform_cases(r->o, r->nranks, &list);
	if (!err && !r->rank) {
		struct bench_nccl libs[RANKS_MAX_LIBS];

		for (int i = 0; i < r->o->ranks.nlibs; i++)
			libs[i] = r->side[i].nccl;
		t->report = conform_report_create(r->o, t->shared, libs, &r->lib);
		err = t->report ? 0 : -ENOMEM;
	}
	if (!err)
		err = cases_run(t, &list);
	if (!err && !r->rank)
		status = conform_report_finish(t->report);
	if (!err)
		err = rank_allgather(t, &status, sizeof(status), statuses);
	if (!err) {
		status = statuses[0];
	} else {
		status = TOOL_FAIL;
		ranks_abort(t->ranks, t->shared);
	}
	rank_close(t, !err);
	free(list.cases);
	free(t);
	return status;
}

int conform_worker(const struct conform_opts *o)
{
	return o->single_thread ? conform_single_thread(o) : ranks_slots_run(&o->ranks, rank_run, o);
}

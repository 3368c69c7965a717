/* SPDX-License-Identifier: MIT */
/*
 * One thread that drives all devices, as ncclCommInitAll and nccl-tests -g do. The calls of all ranks are in one group,
 * because the first rank's call could wait for calls of the others that are not made yet. The programs are those of the
 * other runs. If all of them have the same number of outermost calls and groups, these become a sequence of groups,
 * else a single group.
 */
#include "tools/common/libc.h"
#include "tools/conform/conform.h"

struct single_thread {
	const struct conform_opts *o;
	struct ranks_shared *shared;
	int nranks;
	struct conform_rank rank[RANKS_MAX];
	struct conform_memory memory[RANKS_MAX];
	struct conform_outcome out[RANKS_MAX];
	struct conform_fixture fixture;
};

static void device_use(struct single_thread *t, int rank)
{
	int err = t->rank[rank].lib.device_set(t->rank[rank].device);

	if (err)
		conform_outcome_set(&t->out[rank], CONFORM_FAIL, "device %d: %s", t->rank[rank].device, strerror(-err));
}

static const struct bench_nccl *lib_nccl(const struct single_thread *t, int lib)
{
	return &t->rank[0].side[lib].nccl;
}

static void group_call(struct single_thread *t, int lib, enum conform_step_kind kind, ncclResult_t *result_p)
{
	ncclResult_t result = conform_group_call(lib_nccl(t, lib), kind);

	*result_p = result;
	if (result && result != ncclInProgress)
		conform_outcome_set(&t->out[0], CONFORM_FAIL, "%s: the group of all ranks: returned %d: %s",
		    lib_nccl(t, lib)->label, (int)result, lib_nccl(t, lib)->GetErrorString(result));
}

/* ---- communicators ---- */

static void comm_create(struct single_thread *t, int lib, enum conform_comm comm)
{
	const struct bench_nccl *nccl = lib_nccl(t, lib);
	ncclResult_t result, end;
	ncclUniqueId id;
	char text[400];

	if (t->rank[0].side[lib].tried[comm])
		return;
	t->rank[0].side[lib].tried[comm] = true;
	if (conform_comm_parent(comm) != comm)
		comm_create(t, lib, conform_comm_parent(comm));
	memset(&id, 0, sizeof(id));
	nccl->GetUniqueId(&id);
	group_call(t, lib, CONFORM_GROUP_START, &result);
	for (int i = 0; i < t->nranks; i++) {
		device_use(t, i);
		result = conform_comm_start(nccl, comm, i, t->nranks, &id, t->rank[i].side[lib].comm);
		if (result && result != ncclInProgress)
			conform_outcome_set(&t->out[i], CONFORM_FAIL, "%s: making \"%s\" in a group returned %d: %s",
			    nccl->label, conform_comm_name(comm), (int)result, nccl->GetErrorString(result));
	}
	group_call(t, lib, CONFORM_GROUP_END, &end);
	for (int i = 0; i < t->nranks; i++) {
		const struct conform_made made = { .comm = comm,
			.rank = i,
			.nranks = t->nranks,
			.device = t->rank[i].device,
			.result = end,
			.comms = t->rank[i].side[lib].comm };

		if (!conform_comm_check(nccl, &made, text, sizeof(text)))
			conform_outcome_set(&t->out[i], CONFORM_FAIL, "%s: %s", nccl->label, text);
	}
}

static int side_open(struct single_thread *t, int lib)
{
	const struct bench_nccl *nccl = lib_nccl(t, lib);
	ncclComm_t comms[RANKS_MAX] = { 0 };
	int devices[RANKS_MAX], err;

	conform_rank_progress(&t->rank[0], RANKS_INIT, lib);
	if (!nccl->CommInitAll || !nccl->GroupStart || !nccl->GroupEnd) {
		tool_error(
		    "library %s lacks ncclCommInitAll or groups, without which one thread cannot drive several devices",
		    nccl->label);
		return -ENOSYS;
	}
	for (int i = 0; i < t->nranks; i++)
		devices[i] = t->rank[i].device;
	err = bench_nccl_check(nccl, 0, "ncclCommInitAll", nccl->CommInitAll(comms, t->nranks, devices));
	for (int i = 0; !err && i < t->nranks; i++) {
		t->rank[i].side[lib].comm[CONFORM_WORLD] = comms[i];
		t->rank[i].side[lib].tried[CONFORM_WORLD] = true;
		for (int id = 0; id < BENCH_NCOLLS; id++)
			t->rank[i].side[lib].lacks |= (uint64_t)(bench_coll_missing(&bench_colls[id], nccl) != NULL)
			    << id;
	}
	return err;
}

/* ---- programs ---- */

/* End of the outermost call or group that begins at step i. */
static size_t segment_end(const struct conform_program *s, size_t i)
{
	int depth = 0;

	do {
		if (s->steps[i].kind == CONFORM_GROUP_START)
			depth++;
		else if (s->steps[i].kind == CONFORM_GROUP_END || s->steps[i].kind == CONFORM_GROUP_SIMULATE)
			depth--;
		i++;
	} while (depth && i < s->n);
	return i;
}

static size_t segments_count(const struct conform_program *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->n; i = segment_end(s, i))
		n += s->steps[i].kind != CONFORM_DELAY;
	return n;
}

/* Runs steps from ... to - 1 of a rank's program. Its outermost group is the common group of all ranks. */
static enum conform_step_kind segment_run(struct single_thread *t, int lib, int rank, size_t from, size_t to)
{
	const struct conform_program *s = &t->fixture.program[rank];
	enum conform_step_kind end = CONFORM_GROUP_END;

	device_use(t, rank);
	if (s->steps[from].kind == CONFORM_GROUP_START && to - from > 1) {
		end = s->steps[to - 1].kind;
		from++;
		to--;
	}
	for (size_t i = from; i < to; i++)
		conform_rank_step(&t->rank[rank], lib, &t->fixture, i, &t->out[rank]);
	return end;
}

static void segments_run(struct single_thread *t, int lib)
{
	size_t at[RANKS_MAX] = { 0 }, n = segments_count(&t->fixture.program[0]);
	ncclResult_t result;

	for (size_t segment = 0; segment < n; segment++) {
		enum conform_step_kind end = CONFORM_GROUP_END;

		group_call(t, lib, CONFORM_GROUP_START, &result);
		for (int rank = 0; rank < t->nranks; rank++) {
			const struct conform_program *s = &t->fixture.program[rank];
			size_t to;

			while (s->steps[at[rank]].kind == CONFORM_DELAY)
				at[rank]++;
			to = segment_end(s, at[rank]);
			end = segment_run(t, lib, rank, at[rank], to);
			at[rank] = to;
		}
		group_call(t, lib, end, &result);
		for (int comm = 0; comm < CONFORM_NCOMMS && result == ncclInProgress; comm++)
			for (int rank = 0; rank < t->nranks; rank++)
				if (conform_comm_is_async(comm) && t->rank[rank].side[lib].comm[comm])
					conform_comm_wait(lib_nccl(t, lib), t->rank[rank].side[lib].comm[comm], result);
	}
}

static void programs_run(struct single_thread *t, int lib)
{
	ncclResult_t result;

	group_call(t, lib, CONFORM_GROUP_START, &result);
	for (int rank = 0; rank < t->nranks; rank++) {
		device_use(t, rank);
		for (size_t i = 0; i < t->fixture.program[rank].n; i++)
			if (t->fixture.program[rank].steps[i].kind != CONFORM_DELAY)
				conform_rank_step(&t->rank[rank], lib, &t->fixture, i, &t->out[rank]);
	}
	group_call(t, lib, CONFORM_GROUP_END, &result);
}

static void library_run(struct single_thread *t, int lib)
{
	bool even = true;

	conform_rank_progress(&t->rank[0], RANKS_CHECK, lib);
	for (int rank = 0; rank < t->nranks; rank++) {
		device_use(t, rank);
		if (!conform_rank_upload(&t->rank[rank], lib, &t->fixture, &t->out[rank]))
			return;
		even &= segments_count(&t->fixture.program[rank]) == segments_count(&t->fixture.program[0]);
	}
	if (even)
		segments_run(t, lib);
	else
		programs_run(t, lib);
	for (int rank = 0; rank < t->nranks; rank++) {
		device_use(t, rank);
		conform_rank_sync(&t->rank[rank], lib, &t->out[rank]);
	}
	for (int rank = 0; rank < t->nranks; rank++) {
		device_use(t, rank);
		conform_rank_check(&t->rank[rank], lib, &t->fixture, &t->memory[rank], &t->out[rank]);
	}
}

static void case_run(struct single_thread *t, const struct conform_case *c)
{
	int err = conform_fixture_create(&t->fixture, c, t->nranks), nlibs = t->o->ranks.nlibs;
	struct conform_outcome *first = &t->out[0];

	memset(t->out, 0, sizeof(t->out));
	memset(t->memory, 0, sizeof(t->memory));
	for (int rank = 0; !err && rank < t->nranks; rank++) {
		device_use(t, rank);
		err = conform_memory_create(&t->memory[rank], &t->rank[rank], &t->fixture);
	}
	if (err)
		conform_outcome_set(first, CONFORM_FAIL, "cannot be prepared: %s", strerror(-err));
	for (int i = 0; !err && i < nlibs; i++) {
		const char *what = conform_fixture_lacks(&t->fixture, &t->rank[0].side[i]);

		if (what)
			conform_outcome_set(first, CONFORM_SKIP, "%s lacks %s", lib_nccl(t, i)->label, what);
	}
	for (int i = 0; !first->status && i < nlibs; i++)
		for (int rank = 0; rank < t->nranks; rank++)
			for (size_t k = 0; k < t->fixture.program[rank].n; k++)
				if (t->fixture.program[rank].steps[k].kind == CONFORM_CALL)
					comm_create(t, i, t->fixture.program[rank].steps[k].comm);
	for (int i = 0; !first->status && i < nlibs; i++)
		library_run(t, i);
	for (int rank = 0; rank < t->nranks; rank++)
		conform_memory_destroy(&t->memory[rank]);
	conform_fixture_destroy(&t->fixture);
}

/* ---- the run ---- */

static int ranks_open(struct single_thread *t)
{
	int err = 0;

	for (int i = 0; !err && i < t->nranks; i++) {
		struct conform_rank *r = &t->rank[i];

		r->o = t->o;
		r->progress = &t->shared->progress[0];
		r->rank = i;
		r->nranks = t->nranks;
		r->device = i % t->shared->launch.ndevices;
		conform_rank_progress(r, RANKS_INIT, -1);
		err = conform_rank_open(r);
	}
	for (int i = 0; !err && i < t->o->ranks.nlibs; i++)
		err = side_open(t, i);
	return err;
}

static void ranks_close(struct single_thread *t)
{
	ncclResult_t result;

	/* All ranks of one communicator together: each may wait for the others. */
	for (int lib = 0; lib < t->o->ranks.nlibs; lib++)
		for (int comm = CONFORM_NCOMMS - 1; comm >= 0; comm--) {
			conform_rank_progress(&t->rank[0], RANKS_DESTROY, lib);
			if (!t->rank[0].side[lib].tried[comm])
				continue;
			group_call(t, lib, CONFORM_GROUP_START, &result);
			for (int i = 0; i < t->nranks; i++)
				if (t->rank[i].side[lib].comm[comm])
					lib_nccl(t, lib)->CommDestroy(t->rank[i].side[lib].comm[comm]);
			group_call(t, lib, CONFORM_GROUP_END, &result);
		}
	for (int i = 0; i < t->nranks; i++) {
		device_use(t, i);
		conform_rank_close(&t->rank[i]);
	}
}

static int cases_run(struct single_thread *t, struct conform_report *report)
{
	struct conform_list list = { 0 };
	int err = conform_cases(t->o, t->nranks, &list);

	for (size_t i = 0; !err && i < list.n; i++) {
		const struct conform_case *c = &list.cases[i];

		/* A capture has one stream, and the other kinds do not depend on threads. */
		if (c->kind != CONFORM_PROGRAM || c->graph)
			continue;
		snprintf(t->shared->progress[0].what, sizeof(t->shared->progress[0].what), "--case %s", c->name);
		case_run(t, c);
		conform_report_case(report, &list, i, t->out);
	}
	free(list.cases);
	return err ? TOOL_FAIL : conform_report_finish(report);
}

int conform_single_thread(const struct conform_opts *o)
{
	struct single_thread *t = calloc(1, sizeof(*t));
	struct conform_report *report = NULL;
	struct bench_nccl libs[RANKS_MAX_LIBS];
	int err, status = TOOL_FAIL;

	if (!t)
		return TOOL_FAIL;
	t->o = o;
	t->shared = mmap(NULL, sizeof(*t->shared), PROT_READ | PROT_WRITE, MAP_SHARED, o->ranks.worker_fd, 0);
	if (t->shared == MAP_FAILED) {
		tool_error("--worker is not for you: the command gives it to the processes that it starts");
		free(t);
		return TOOL_USAGE;
	}
	t->nranks = t->shared->launch.nranks;
	err = ranks_open(t);
	for (int i = 0; !err && i < o->ranks.nlibs; i++)
		libs[i] = *lib_nccl(t, i);
	if (!err)
		report = conform_report_create(o, t->shared, libs, &t->rank[0].lib);
	if (report) {
		status = cases_run(t, report);
		ranks_close(t);
	}
	conform_report_destroy(report);
	free(t);
	return status;
}

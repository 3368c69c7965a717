/* SPDX-License-Identifier: MIT */
/* One rank of a benchmark: opens the libraries, then checks, measures and reports each size. */
#include <sys/random.h>
#include "tools/common/libc.h"
#include "tools/bench/rank.h"

void bench_rank_progress(struct bench_rank *r, enum ranks_stage stage, int lib, int way)
{
	ranks_progress_set(r->progress, stage, lib, way);
}

int bench_barrier(struct bench_rank *r)
{
	bench_rank_progress(r, RANKS_WAIT, -1, -1);
	int err = ranks_barrier(r->ranks);

	return ranks_error(r->rank, err);
}

int bench_fail_together(struct bench_rank *r, int err)
{
	bench_barrier(r);
	return err;
}

int bench_allgather(struct bench_rank *r, const void *mine, size_t bytes, void *all)
{
	bench_rank_progress(r, RANKS_ALLGATHER, -1, -1);
	int err = ranks_allgather(r->ranks, mine, bytes, all);

	return ranks_error(r->rank, err);
}

int bench_rank_check(const struct bench_rank *r, const char *what, int err)
{
	return ranks_device_error(r->rank, r->device, what, err);
}

void bench_rank_slot(struct bench_rank *r, const struct ranks_slot *slot)
{
	r->shared = slot->shared;
	r->rank = slot->rank;
	r->device = slot->device;
	r->progress = slot->progress;
}

int bench_rank_join(struct bench_rank *r, const struct ranks_opts *o)
{
	int err;

	bench_rank_progress(r, RANKS_RENDEZVOUS, -1, -1);
	err = ranks_join(r->shared, o->worker_fd, r->rank, o->timeout_s, &r->ranks);
	bench_rank_progress(r, RANKS_INIT, -1, -1);
	if (!err)
		err = tool_lib_open(&r->lib);
	if (!err)
		err = bench_rank_check(r, "cannot be used", r->lib.device_set(r->device));
	return err ? err : bench_rank_check(r, "cannot make a stream", r->lib.stream_create(&r->stream));
}

static int seed_broadcast(struct bench_rank *r)
{
	uint64_t seed = r->o->seed, seeds[RANKS_MAX];
	int err;

	if (!seed && getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		seed = (uint64_t)ranks_now_us();
	seed &= INT64_MAX; /* fits a JSON integer */
	err = bench_allgather(r, &seed, sizeof(seed), seeds);
	if (!err)
		r->opts.seed = seeds[0];
	return err;
}

int bench_comm_create(struct bench_rank *r, int lib, ncclComm_t *comm_p, double *us_p)
{
	ncclUniqueId id, ids[RANKS_MAX];
	struct bench_nccl *nccl = &r->nccl[lib];
	double start;
	int err;

	bench_rank_progress(r, RANKS_INIT, lib, -1);
	memset(&id, 0, sizeof(id));
	err = r->rank ? 0 : bench_nccl_check(nccl, r->rank, "ncclGetUniqueId", nccl->GetUniqueId(&id));
	if (!err)
		err = bench_allgather(r, &id, sizeof(id), ids);
	if (err)
		return err;
	bench_rank_progress(r, RANKS_INIT, lib, -1);
	start = ranks_now_us();
	err = bench_nccl_check(
	    nccl, r->rank, "ncclCommInitRank", nccl->CommInitRank(comm_p, r->shared->launch.nranks, ids[0], r->rank));
	if (us_p)
		*us_p = ranks_now_us() - start;
	return err;
}

static int comms_create(struct bench_rank *r)
{
	int err = 0;

	for (int i = 0; !err && i < r->o->ranks.nlibs; i++)
		err = bench_comm_create(r, i, &r->comm[i], NULL);
	/* NCCL's communicator exists only when all ranks have come. A mock library in a test may not wait for them. */
	return err ? err : bench_barrier(r);
}

/* Checks that the library has the functions of the collective. */
static int coll_check(struct bench_rank *r, const struct bench_nccl *nccl)
{
	const char *missing = bench_coll_missing(r->o->coll, nccl);

	if (!missing && r->o->group > 1 && (!nccl->GroupStart || !nccl->GroupEnd))
		missing = "GroupStart or ncclGroupEnd";
	if (missing) {
		if (!r->rank)
			tool_error(
			    "library %s has no nccl%s, so it cannot do %s", nccl->label, missing, r->o->coll->name);
		return bench_fail_together(r, -ENOSYS);
	}
	if (r->o->root >= r->shared->launch.nranks) {
		if (!r->rank)
			tool_error("there are %d ranks, so none is root %d", r->shared->launch.nranks, r->o->root);
		return bench_fail_together(r, -EINVAL);
	}
	return 0;
}

static int libs_open(struct bench_rank *r)
{
	char name[PATH_MAX];
	bool registered;
	int err = 0;

	for (int i = 0; !err && i < r->o->ranks.nlibs; i++) {
		struct bench_nccl *nccl = &r->nccl[i];

		tool_spec_split(r->o->ranks.libs[i], name, &registered);
		err = bench_nccl_open(nccl, name, &r->lib);
		if (err)
			break;
		nccl->buffers = registered || r->o->registered ? BENCH_REGISTERED : BENCH_PLAIN;
		if (registered)
			strncat(nccl->label, ":reg", sizeof(nccl->label) - strlen(nccl->label) - 1);
		err = coll_check(r, nccl);
	}
	return err;
}

static int memory_alloc(struct bench_rank *r)
{
	r->nsamples = (size_t)BENCH_NWAYS * RANKS_MAX_LIBS * (size_t)r->o->rounds;
	r->samples = calloc(r->nsamples * BENCH_NSAMPLES, sizeof(double));
	r->gathered = calloc(r->nsamples * BENCH_NSAMPLES * (size_t)r->shared->launch.nranks, sizeof(double));
	r->row = calloc(1, sizeof(*r->row));
	r->block = malloc(BENCH_BLOCK_BYTES);
	return r->samples && r->gathered && r->row && r->block ? 0 : bench_rank_check(r, "host memory", -ENOMEM);
}

static int report_create(struct bench_rank *r)
{
	char name[128] = "?";

	if (r->rank || r->o->guest)
		return 0;
	r->lib.device_name(r->device, name, sizeof(name));
	r->report = bench_report_create(r->o, &r->shared->launch, r->nccl, name, &r->lib);
	return r->report ? 0 : bench_rank_check(r, "host memory", -ENOMEM);
}

static int rank_open(struct bench_rank *r)
{
	int err = r->o->gemm ? bench_gemm_open(r) : 0;

	if (err)
		return err;
	err = bench_rank_join(r, &r->o->ranks);
	if (!err)
		err = seed_broadcast(r);
	if (!err)
		err = libs_open(r);
	if (!err && r->o->guest)
		err = r->o->guest->open(r);
	if (!err)
		err = memory_alloc(r);
	if (!err && r->o->gemm)
		err = bench_gemm_create(r);
	/* --init creates communicators in its measurement. */
	if (!err && !r->o->init)
		err = comms_create(r);
	if (!err)
		err = bench_buffers_alloc(r);
	return err ? err : report_create(r);
}

static void rank_close(struct bench_rank *r, bool clean)
{
	bench_rank_progress(r, RANKS_DESTROY, -1, -1);
	/* After an error a library may wait for ranks that will not come. The process ends anyway. */
	if (clean) {
		bench_buffers_deregister(r);
		for (int i = 0; i < r->o->ranks.nlibs; i++) {
			bench_rank_progress(r, RANKS_DESTROY, i, -1);
			if (r->comm[i] &&
			    bench_nccl_check(
			        &r->nccl[i], r->rank, "ncclCommDestroy", r->nccl[i].CommDestroy(r->comm[i])))
				r->status = TOOL_FAIL;
		}
		bench_buffers_free(r);
		if (r->stream)
			r->lib.stream_destroy(r->stream);
	}
	bench_gemm_destroy(r, clean);
	bench_report_destroy(r->report);
	bench_buffers_free_host(r);
	free(r->block);
	free(r->samples);
	free(r->gathered);
	free(r->row);
	bench_rank_progress(r, RANKS_DONE, -1, -1);
	ranks_leave(r->ranks);
}

/* ---- results ---- */

static double *gathered_at(const struct bench_rank *r, enum bench_sample kind, int rank, int way, int lib)
{
	return r->gathered + r->nsamples * (size_t)(kind * r->shared->launch.nranks + rank) +
	    (way * RANKS_MAX_LIBS + lib) * r->o->rounds;
}

/* The slowest rank of each round: the longest time, the lowest rate. */
static void slowest_rank(
    const struct bench_rank *r, enum bench_sample kind, int way, int lib, double rounds[BENCH_MAX_ROUNDS])
{
	bool rate = kind == BENCH_GEMM_ALONE || kind == BENCH_GEMM_WITH;

	for (int rank = 0; rank < r->shared->launch.nranks; rank++) {
		const double *gathered = gathered_at(r, kind, rank, way, lib);

		for (int i = 0; i < r->o->rounds; i++)
			if (!rank || (rate ? gathered[i] < rounds[i] : gathered[i] > rounds[i]))
				rounds[i] = gathered[i];
	}
}

static void cell_fill(struct bench_rank *r, const struct bench_task *t, int way, int lib,
    const uint64_t (*wrong)[BENCH_NWAYS][RANKS_MAX_LIBS], struct bench_cell *cell)
{
	int n = r->o->rounds, nranks = r->shared->launch.nranks;

	cell->wrong = 0;
	for (int rank = 0; rank < nranks; rank++)
		cell->wrong += wrong[rank][way][lib];
	slowest_rank(r, BENCH_US, way, lib, cell->rounds_us);
	cell->us = bench_median(cell->rounds_us, n, &cell->p99_us);
	if (r->o->host) {
		slowest_rank(r, BENCH_CPU_US, way, lib, cell->rounds_cpu_us);
		cell->cpu_us = bench_median(cell->rounds_cpu_us, n, NULL);
	}
	if (r->o->gemm) {
		double rounds[BENCH_MAX_ROUNDS];

		slowest_rank(r, BENCH_GEMM_US, way, lib, rounds);
		cell->gemm_us = bench_median(rounds, n, NULL);
		slowest_rank(r, BENCH_GEMM_ALONE, way, lib, rounds);
		cell->gemm_alone = bench_median(rounds, n, NULL);
		slowest_rank(r, BENCH_GEMM_WITH, way, lib, rounds);
		cell->gemm_with = bench_median(rounds, n, NULL);
	}
	cell->algbw = (double)t->bytes / cell->us / 1e3;
	cell->busbw = cell->algbw * bench_coll_bus_factor(r->o->coll, nranks);
	cell->path = bench_path_taken(r, lib);
}

/* Gathers the samples of all ranks. */
static int samples_gather(struct bench_rank *r, enum bench_sample kind)
{
	size_t way_bytes = (size_t)r->o->rounds * sizeof(double) * RANKS_MAX_LIBS;
	int nranks = r->shared->launch.nranks, err = 0;
	char *gathered = malloc(way_bytes * (size_t)nranks);

	if (!gathered)
		return bench_rank_check(r, "host memory", -ENOMEM);
	/* One way at a time: a rank's contribution must fit a slot. */
	for (int way = 0; !err && way < BENCH_NWAYS; way++) {
		err = bench_allgather(r, bench_sample_at(r, kind, way, 0), way_bytes, gathered);
		for (int rank = 0; !err && rank < nranks; rank++)
			memcpy(gathered_at(r, kind, rank, way, 0), gathered + way_bytes * (size_t)rank, way_bytes);
	}
	free(gathered);
	return err;
}

/* Operators for a format, which the communicators keep; or ends them. */
static int formats_make(struct bench_rank *r, const struct bench_task *t, bool make)
{
	int err = 0;

	for (int lib = 0; shunt_dtype_is_format(t->dtype) && !err && lib < r->o->ranks.nlibs; lib++) {
		ncclRedOp_t op = (ncclRedOp_t)t->redop;
		ncclResult_t result = make ? bench_nccl_format(&r->nccl[lib], r->comm[lib], t->dtype, &op) :
		                             r->nccl[lib].RedOpDestroy(r->format_op[lib], r->comm[lib]);

		if (make && result == ncclInvalidUsage) {
			tool_error("%s reduces no %s: leave it out of -d, or the library out", r->nccl[lib].label,
			    shunt_dtype_name(t->dtype));
			return -EOPNOTSUPP;
		}
		err =
		    bench_nccl_check(&r->nccl[lib], r->rank, make ? "shunt_redop_create" : "ncclRedOpDestroy", result);
		r->format_op[lib] = op;
	}
	return err;
}

static int task_run(struct bench_rank *r, const struct bench_task *t)
{
	uint64_t wrong[BENCH_NWAYS][RANKS_MAX_LIBS] = { 0 }, all_wrong[RANKS_MAX][BENCH_NWAYS][RANKS_MAX_LIBS];
	int err = 0;

	atomic_store(&r->progress->bytes, t->bytes);
	bench_buffers_layout(r, t->bytes);
	bench_path_begin(r);
	err = formats_make(r, t, true);
	for (int way = 0; r->o->check && !err && way < BENCH_NWAYS; way++)
		for (int lib = 0; !err && lib < r->o->ranks.nlibs && bench_way_wanted(r->o, way); lib++)
			err = bench_way_check(r, t, lib, way, &wrong[way][lib]);
	if (!err && r->o->guest)
		err = r->o->guest->checked(r);
	if (!err)
		err = bench_task_time(r, t);
	if (!err)
		err = formats_make(r, t, false);
	if (!err)
		err = bench_allgather(r, wrong, sizeof(wrong), all_wrong);
	for (int kind = 0; !err && kind < BENCH_NSAMPLES; kind++)
		if (kind == BENCH_US || (kind == BENCH_CPU_US ? r->o->host : r->o->gemm))
			err = samples_gather(r, (enum bench_sample)kind);
	if (err || r->rank)
		return err;
	for (int way = 0; way < BENCH_NWAYS; way++) {
		if (!bench_way_wanted(r->o, way))
			continue;
		r->row->bytes = t->bytes;
		r->row->count = t->count;
		r->row->dtype = t->dtype;
		r->row->redop = t->redop;
		r->row->way = way;
		for (int lib = 0; lib < r->o->ranks.nlibs; lib++)
			cell_fill(r, t, way, lib, all_wrong, &r->row->cell[lib]);
		if (!r->o->guest) {
			bench_report_row(r->report, r->row);
			continue;
		}
		r->o->guest->row(r, r->row);
		r->nrows++;
		r->wrong += r->row->cell[0].wrong;
	}
	return 0;
}

static int tasks_run(struct bench_rank *r)
{
	const struct bench_opts *o = r->o;
	int err = 0, nranks = r->shared->launch.nranks;
	bool any = false;

	for (int dtype = 0; dtype < (o->coll->reduces ? SHUNT_NFORMATS : SHUNT_NDTYPES); dtype++)
		for (int redop = 0; redop < SHUNT_NREDOPS; redop++) {
			if (!(o->dtypes >> dtype & 1) || !((o->coll->reduces ? o->redops : 1u) >> redop & 1))
				continue;
			uint64_t last = 0;

			for (uint64_t bytes = o->first; !err && bytes <= o->last; bytes *= o->factor) {
				size_t size = shunt_dtype_bytes[dtype];
				struct bench_task t = { .dtype = dtype,
					.redop = redop,
					.count = bench_coll_count(o->coll, bytes, size, nranks) };

				t.bytes = t.count * size *
				    bench_coll_blocks(o->coll, o->coll->send_many || o->coll->recv_many, nranks);
				/*
				 * Skips sizes below 16 bytes a rank, where nccl-tests prints a line of size 0, and
				 * repeated sizes (both smaller than one element).
				 */
				if (t.count && t.bytes != last && (!o->guest || o->guest->admits(r, &t)))
					err = task_run(r, &t);
				any = any || t.count;
				last = t.bytes;
				if (bytes > UINT64_MAX / o->factor)
					break;
			}
		}
	if (!err && !any && !o->guest) {
		if (!r->rank)
			tool_error("nothing was measured: %s of %d ranks begins at %llu bytes, and no size from "
			           "--first to --last "
			           "has so many",
			    o->coll->name, nranks, 16ull * bench_coll_blocks(o->coll, true, nranks));
		return bench_fail_together(r, -ENODATA);
	}
	return err;
}

static void counters_print(struct bench_rank *r)
{
	bench_path_begin(r);
	for (int lib = 0; lib < r->o->ranks.nlibs; lib++)
		if (r->nccl[lib].counters)
			bench_report_counters(r->report, lib, r->counters_before[lib].rows, r->counters_before[lib].n);
}

static void rank_main(struct bench_rank *r)
{
	int err = rank_open(r);

	if (!err)
		err = r->o->init ? bench_init_run(r) : tasks_run(r);
	if (!err && !r->rank) {
		if (r->o->stats && !r->o->init)
			counters_print(r);
		r->status = r->o->guest ? r->o->guest->finish(r) : bench_report_finish(r->report);
	}
	/*
	 * All ranks return rank 0's status. The exchange also keeps a rank from destroying a communicator that others
	 * still use.
	 */
	int statuses[RANKS_MAX];

	if (!err)
		err = bench_allgather(r, &r->status, sizeof(r->status), statuses);
	if (!err) {
		r->status = statuses[0];
	} else {
		r->status = err == -ENOPKG ? TOOL_USAGE : TOOL_FAIL;
		ranks_abort(r->ranks, r->shared);
	}
	rank_close(r, !err);
}

static void defaults_fill(struct bench_opts *o, const char *kind)
{
	bool sim = !strcmp(kind, "sim");

	o->warmup = o->warmup < 0 ? (sim ? 1 : 5) : o->warmup;
	/* The host's part of a call is short, and 50 calls fit in a device's queue. */
	o->iters = o->iters >= 0 ? o->iters : o->host ? 50 : sim ? 2 : o->gemm ? 100 : 20;
	o->rounds = o->rounds < 0 ? (sim ? 3 : 20) : o->rounds;
}

static int rank_run(const void *arg, const struct ranks_slot *rank_slot)
{
	const struct bench_opts *o = arg;
	struct bench_rank *r = calloc(1, sizeof(*r));
	int status;

	if (!r) {
		ranks_abort(NULL, rank_slot->shared);
		return TOOL_FAIL;
	}
	r->given = o;
	r->opts = *o;
	defaults_fill(&r->opts, rank_slot->shared->launch.kind);
	r->o = &r->opts;
	bench_rank_slot(r, rank_slot);
	rank_main(r);
	status = r->status;
	free(r);
	return status;
}

int bench_worker(const struct bench_opts *o)
{
	return ranks_slots_run(&o->ranks, rank_run, o);
}

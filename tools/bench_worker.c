/* SPDX-License-Identifier: MIT */
/* One rank of a benchmark: sets the libraries up, then for each size checks, measures and reports. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "bench.h"

enum {
	GRAPH_CALLS = 20,
	GUARD_BYTES = 256,           /* behind every buffer; nobody may write there */
	BLOCK_BYTES = 4 << 20,       /* host memory through which data is made and checked */
	POISON = 0xa5,
	BUFFER_ALIGN = 512,          /* --rotate */
	MAX_SETS = 1 << 20,
};

struct rank {
	const struct bench_opts *o;  /* &opts */
	struct bench_opts opts;      /* with the defaults filled in and the seed agreed */
	struct bench_shared *shared;
	int fd;
	int rank, device;
	struct bench_team *team;
	struct bench_progress *progress;
	struct tool_lib lib;
	struct bench_nccl nccl[BENCH_MAX_LIBS];
	ncclComm_t comm[BENCH_MAX_LIBS];
	void *stream;
	void **send, **recv;         /* o->buffers of each; with --rotate one, which is cut into sets */
	unsigned allocated, sets;    /* of each; sets of buffers for the size that is measured */
	uint64_t arena, stride;      /* --rotate: bytes of the one, and from set to set */
	unsigned turn;               /* the set to take next */
	char *block;
	struct bench_report *report; /* rank 0 */
	struct bench_row *row;
	double *samples;             /* [way][lib][round], and with --host the same of CPU times behind that */
	double *heard;               /* the same of all ranks; of CPU times: behind all of them */
	size_t nsamples;             /* of one rank, without CPU times */
	int status;
};

/* One size, type and operator. */
struct task {
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	uint64_t count, bytes;
};

static void note(struct rank *r, enum bench_stage stage, int lib, int way)
{
	atomic_store(&r->progress->stage, stage);
	atomic_store(&r->progress->lib, lib);
	atomic_store(&r->progress->way, way);
	atomic_fetch_add(&r->progress->beats, 1);
}

static int barrier(struct rank *r)
{
	note(r, BENCH_WAIT, -1, -1);
	int err = bench_team_barrier(r->team);

	return bench_round_error(r->rank, err);
}

static int gather(struct rank *r, const void *mine, size_t bytes, void *all)
{
	note(r, BENCH_GATHER, -1, -1);
	int err = bench_team_gather(r->team, mine, bytes, all);

	return bench_round_error(r->rank, err);
}

/* Turns a device call's error into a message once. */
static int device_check(const struct rank *r, const char *what, int err)
{
	return bench_device_error(r->rank, r->device, what, err);
}

/* ---- set-up ---- */

static int buffers_alloc(struct rank *r)
{
	uint64_t bytes = r->o->last + GUARD_BYTES;
	int err;

	/* The smallest size may be less than one element. */
	if (r->o->last < 8)
		bytes += 8;
	r->allocated = r->o->buffers;
	if (r->o->rotate) {
		uint64_t least = (bytes + BUFFER_ALIGN) * r->o->group;

		r->allocated = 1;
		bytes = r->arena = r->o->rotate > least ? r->o->rotate : least;
	}
	r->send = calloc(r->allocated * 2, sizeof(*r->send));
	r->block = malloc(BLOCK_BYTES);
	if (!r->send || !r->block)
		return device_check(r, "host memory", -ENOMEM);
	r->recv = r->send + r->allocated;
	for (unsigned i = 0; i < r->allocated * 2; i++) {
		err = device_check(r, "cannot allocate a buffer", r->lib.malloc(&r->send[i], bytes));
		if (!err)
			err = device_check(r, "memset", r->lib.memset_async(r->send[i], 0, bytes, r->stream));
		if (err)
			return err;
	}
	return device_check(r, "memset", r->lib.stream_synchronize(r->stream));
}

/* How the buffers are cut for a size. */
static void buffers_cut(struct rank *r, uint64_t bytes)
{
	r->turn = 0;
	r->sets = r->o->buffers;
	if (!r->o->rotate)
		return;
	r->stride = (bytes + GUARD_BYTES + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
	r->sets = r->arena / r->stride > MAX_SETS ? MAX_SETS : (unsigned)(r->arena / r->stride);
}

static char *buffer_at(const struct rank *r, void *const *side, unsigned set)
{
	return r->o->rotate ? (char *)side[0] + set * r->stride : side[set];
}

static int seed_agree(struct rank *r)
{
	uint64_t seed = r->o->seed, seeds[BENCH_MAX_RANKS];
	int err;

	if (!seed && getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		seed = (uint64_t)bench_now_us();
	seed &= INT64_MAX; /* so that JSON can hold it */
	err = gather(r, &seed, sizeof(seed), seeds);
	if (!err)
		r->opts.seed = seeds[0];
	return err;
}

static int comms_create(struct rank *r)
{
	ncclUniqueId id, ids[BENCH_MAX_RANKS];
	int err, n = r->shared->launch.nranks;

	for (int i = 0; i < r->o->nlibs; i++) {
		struct bench_nccl *nccl = &r->nccl[i];

		note(r, BENCH_INIT, i, -1);
		memset(&id, 0, sizeof(id));
		err = r->rank ? 0 : bench_nccl_check(nccl, r->rank, "ncclGetUniqueId", nccl->GetUniqueId(&id));
		if (!err)
			err = gather(r, &id, sizeof(id), ids);
		if (err)
			return err;
		note(r, BENCH_INIT, i, -1);
		err = bench_nccl_check(nccl, r->rank, "ncclCommInitRank", nccl->CommInitRank(&r->comm[i], n, ids[0], r->rank));
		if (err)
			return err;
	}
	return 0;
}

/* Can the collective be measured with this library? */
static int coll_check(const struct rank *r, const struct bench_nccl *nccl)
{
	const char *missing = bench_coll_missing(r->o->coll, nccl);

	if (!missing && r->o->group > 1 && (!nccl->GroupStart || !nccl->GroupEnd))
		missing = "GroupStart or ncclGroupEnd";
	if (missing) {
		if (!r->rank)
			tool_error("library %s has no nccl%s, so it cannot do %s", nccl->label, missing, r->o->coll->name);
		return -ENOSYS;
	}
	if (r->o->root >= r->shared->launch.nranks) {
		if (!r->rank)
			tool_error("there are %d ranks, so none is root %d", r->shared->launch.nranks, r->o->root);
		return -EINVAL;
	}
	return 0;
}

static int rank_open(struct rank *r)
{
	const struct bench_launch *l = &r->shared->launch;
	size_t samples;
	char name[128] = "?";
	int err;

	note(r, BENCH_MEET, -1, -1);
	err = bench_team_join(r->shared, r->fd, r->rank, r->o->timeout_s, &r->team);
	if (!err)
		err = seed_agree(r);
	if (err)
		return err;
	note(r, BENCH_INIT, -1, -1);
	err = tool_lib_open(&r->lib);
	for (int i = 0; !err && i < r->o->nlibs; i++) {
		err = bench_nccl_open(&r->nccl[i], r->o->libs[i], &r->lib);
		if (!err)
			err = coll_check(r, &r->nccl[i]);
	}
	if (err)
		return err;
	err = device_check(r, "cannot be used", r->lib.device_set(r->device));
	if (!err)
		err = device_check(r, "cannot make a stream", r->lib.stream_create(&r->stream));
	if (!err)
		err = buffers_alloc(r);
	if (err)
		return err;
	r->nsamples = (size_t)BENCH_NWAYS * BENCH_MAX_LIBS * (size_t)r->o->rounds;
	samples = r->nsamples * (r->o->host ? 2 : 1);
	r->samples = calloc(samples, sizeof(double));
	r->heard = calloc(samples * (size_t)l->nranks, sizeof(double));
	r->row = calloc(1, sizeof(*r->row));
	if (!r->samples || !r->heard || !r->row)
		return device_check(r, "host memory", -ENOMEM);
	err = comms_create(r);
	if (err)
		return err;
	if (!r->rank) {
		r->lib.device_name(r->device, name, sizeof(name));
		r->report = bench_report_create(r->o, l, r->nccl, name, r->lib.version());
		if (!r->report)
			return device_check(r, "host memory", -ENOMEM);
	}
	return 0;
}

static void rank_close(struct rank *r, bool clean)
{
	note(r, BENCH_DESTROY, -1, -1);
	/* After an error a library may wait for ranks that will not come; the process ends anyway. */
	if (clean) {
		for (int i = 0; i < r->o->nlibs; i++) {
			note(r, BENCH_DESTROY, i, -1);
			if (r->comm[i] &&
				bench_nccl_check(&r->nccl[i], r->rank, "ncclCommDestroy", r->nccl[i].CommDestroy(r->comm[i])))
				r->status = TOOL_FAIL;
		}
		if (r->send)
			for (unsigned i = 0; i < r->allocated * 2; i++)
				if (r->send[i])
					r->lib.free(r->send[i]);
		if (r->stream)
			r->lib.stream_destroy(r->stream);
	}
	bench_report_destroy(r->report);
	free(r->send);
	free(r->block);
	free(r->samples);
	free(r->heard);
	free(r->row);
	note(r, BENCH_DONE, -1, -1);
	bench_team_leave(r->team);
}

/* ---- one call ---- */

/* Of one set of buffers: where a call reads and writes. In place both lie in recv[set]. */
static char *send_at(const struct rank *r, const struct task *t, enum bench_place place, unsigned set)
{
	if (place == BENCH_OUT)
		return buffer_at(r, r->send, set);
	return buffer_at(r, r->recv, set) + bench_coll_send_offset(r->o->coll, t->count, r->rank) * shunt_dtype_bytes[t->dtype];
}

static char *recv_at(const struct rank *r, const struct task *t, enum bench_place place, unsigned set)
{
	uint64_t offset = place == BENCH_IN ? bench_coll_recv_offset(r->o->coll, t->count, r->rank) : 0;

	return buffer_at(r, r->recv, set) + offset * shunt_dtype_bytes[t->dtype];
}

static uint64_t send_count(const struct rank *r, const struct task *t)
{
	return t->count * bench_coll_blocks(r->o->coll, r->o->coll->send_many, r->shared->launch.nranks);
}

static uint64_t recv_count(const struct rank *r, const struct task *t)
{
	return t->count * bench_coll_blocks(r->o->coll, r->o->coll->recv_many, r->shared->launch.nranks);
}

/* A group of --group calls, each with buffers of its own because they may run at the same time. first: the set to begin with. */
static int call(struct rank *r, const struct task *t, int lib, enum bench_place place, unsigned first)
{
	const struct bench_nccl *nccl = &r->nccl[lib];
	struct bench_args a = {.count = t->count,
		.dtype = (ncclDataType_t)t->dtype,
		.redop = (ncclRedOp_t)t->redop,
		.root = r->o->root,
		.rank = r->rank,
		.nranks = r->shared->launch.nranks,
		.comm = r->comm[lib],
		.stream = r->stream};
	int err = 0;

	if (r->o->group > 1)
		err = bench_nccl_check(nccl, r->rank, "ncclGroupStart", nccl->GroupStart());
	for (unsigned i = 0; !err && i < r->o->group; i++) {
		unsigned set = (first + i) % r->sets;

		a.send = send_at(r, t, place, set);
		a.recv = recv_at(r, t, place, set);
		err = bench_nccl_check(nccl, r->rank, r->o->coll->name, r->o->coll->call(nccl, &a));
	}
	if (!err && r->o->group > 1)
		err = bench_nccl_check(nccl, r->rank, "ncclGroupEnd", nccl->GroupEnd());
	return err;
}

static int sync(struct rank *r, int lib)
{
	int err = r->lib.stream_synchronize(r->stream);

	if (err)
		tool_error("rank %d: %s: waiting for the device: %s", r->rank, r->nccl[lib].label, strerror(-err));
	return err;
}

static int capture(struct rank *r, const struct task *t, int lib, enum bench_place place, unsigned calls, void **graph_p)
{
	unsigned spread;
	int err, end;

	note(r, BENCH_CAPTURE, lib, BENCH_GRAPH * BENCH_NPLACES + place);
	err = device_check(r, "capture", r->lib.capture_begin(r->stream));
	if (err)
		return err;
	/* Its calls lie as far apart as there is room. */
	spread = r->sets / (calls * r->o->group);
	for (unsigned i = 0; !err && i < calls; i++)
		err = call(r, t, lib, place, i * r->o->group * (spread ? spread : 1));
	end = r->lib.capture_end(r->stream, graph_p);
	return err ? err : device_check(r, "capture", end);
}

/* ---- check ---- */

static int input_write(struct rank *r, const struct bench_data *data, const struct task *t, char *dst)
{
	size_t size = shunt_dtype_bytes[t->dtype], per_block = BLOCK_BYTES / size;
	uint64_t count = send_count(r, t);
	int err = 0;

	for (uint64_t first = 0; !err && first < count; first += per_block) {
		size_t n = count - first < per_block ? count - first : per_block;

		bench_data_input(data, r->rank, first, n, r->block);
		err = device_check(r, "copy", r->lib.memcpy(dst + first * size, r->block, n * size));
	}
	return err;
}

/* One block of the collective's result, which begins at src. text: filled with the first wrong element unless it is so already. */
static int block_check(struct rank *r, const struct bench_data *data, const struct task *t, int block, const char *src,
	uint64_t *wrong_p, char *text, size_t text_bytes)
{
	size_t size = shunt_dtype_bytes[t->dtype], per_block = BLOCK_BYTES / size;
	struct bench_block b = bench_coll_block(r->o->coll, r->rank, r->shared->launch.nranks, r->o->root, block, t->count);
	int err;

	for (uint64_t first = 0; first < b.count; first += per_block) {
		size_t n = b.count - first < per_block ? b.count - first : per_block;
		uint64_t at = b.from_at + first;

		err = device_check(r, "copy", r->lib.memcpy(r->block, src + (b.at + first) * size, n * size));
		if (err)
			return err;
		*wrong_p += b.from < 0 ? bench_data_check(data, at, n, r->block, *text ? NULL : text, text_bytes)
				       : bench_data_check_copy(data, b.from, at, n, r->block, *text ? NULL : text, text_bytes);
		atomic_fetch_add(&r->progress->beats, 1);
	}
	return 0;
}

static int result_check(
	struct rank *r, const struct bench_data *data, const struct task *t, int lib, int way, unsigned set, uint64_t *wrong_p)
{
	const char *src = recv_at(r, t, way % BENCH_NPLACES, set);
	int blocks = r->o->coll->recv_many ? r->shared->launch.nranks : 1, err = 0;
	uint64_t wrong = 0;
	char text[768] = "";

	if (!bench_coll_has_recv(r->o->coll, r->rank, r->o->root))
		return 0;
	for (int block = 0; !err && block < blocks; block++)
		err = block_check(r, data, t, block, src, &wrong, text, sizeof(text));
	if (wrong)
		tool_error("rank %d: %s, %s %s, %s %s-place, %llu bytes: %llu wrong; %s", r->rank, r->nccl[lib].label,
			shunt_dtype_name(t->dtype), shunt_redop_name(t->redop), bench_mode_names[way / BENCH_NPLACES],
			way % BENCH_NPLACES == BENCH_IN ? "in" : "out-of", (unsigned long long)t->bytes, (unsigned long long)wrong,
			text);
	*wrong_p += wrong;
	return err;
}

/* The bytes behind the result and, out of place, the input and a result that is not ours must be as they were. */
static int surroundings_check(struct rank *r, const struct bench_data *data, const struct task *t, int lib, int way, unsigned set,
	uint64_t *wrong_p)
{
	size_t size = shunt_dtype_bytes[t->dtype], per_block = BLOCK_BYTES / 2 / size;
	char *now = r->block, *before = r->block + BLOCK_BYTES / 2;
	bool in_place = way % BENCH_NPLACES == BENCH_IN;
	uint64_t touched = 0, used = in_place ? t->bytes : recv_count(r, t) * size;
	/* Off the root there is no result, so the poison begins at once; a look at its start will do. */
	uint64_t skip = in_place || bench_coll_has_recv(r->o->coll, r->rank, r->o->root) ? used : 0;
	int err = device_check(r, "copy", r->lib.memcpy(now, buffer_at(r, r->recv, set) + skip, GUARD_BYTES));

	if (err)
		return err;
	for (int i = 0; i < GUARD_BYTES; i++)
		touched += (unsigned char)now[i] != POISON;
	if (touched)
		tool_error("rank %d: %s, %llu bytes: %llu bytes behind the result were written", r->rank, r->nccl[lib].label,
			(unsigned long long)t->bytes, (unsigned long long)touched);
	*wrong_p += touched;
	if (in_place)
		return 0;
	touched = 0;
	for (uint64_t first = 0, count = send_count(r, t); first < count; first += per_block) {
		size_t n = count - first < per_block ? count - first : per_block;

		err = device_check(r, "copy", r->lib.memcpy(now, buffer_at(r, r->send, set) + first * size, n * size));
		if (err)
			return err;
		bench_data_input(data, r->rank, first, n, before);
		touched += memcmp(now, before, n * size) != 0;
	}
	if (touched)
		tool_error(
		    "rank %d: %s, %llu bytes: the input was written", r->rank, r->nccl[lib].label, (unsigned long long)t->bytes);
	*wrong_p += touched;
	return 0;
}

static int check_class(
	struct rank *r, const struct task *t, int lib, int way, void *graph, const struct bench_data *data, uint64_t *wrong_p)
{
	enum bench_place place = way % BENCH_NPLACES;
	int err = 0;

	/* A stale or missing result must not look right. */
	for (unsigned set = 0; !err && set < r->o->group; set++)
		err = device_check(
		    r, "memset", r->lib.memset_async(buffer_at(r, r->recv, set), POISON, t->bytes + GUARD_BYTES, r->stream));
	if (!err)
		err = sync(r, lib);
	for (unsigned set = 0; !err && set < r->o->group; set++)
		err = input_write(r, data, t, send_at(r, t, place, set));
	if (!err)
		err = graph ? device_check(r, "graph launch", r->lib.graph_launch(graph, r->stream)) : call(r, t, lib, place, 0);
	if (!err)
		err = sync(r, lib);
	for (unsigned set = 0; !err && set < r->o->group; set++) {
		err = result_check(r, data, t, lib, way, set, wrong_p);
		if (!err)
			err = surroundings_check(r, data, t, lib, way, set, wrong_p);
	}
	return err;
}

/* The order of calls and graphs is the same on all ranks, as the ABI demands. */
static int check_way(struct rank *r, const struct task *t, int lib, int way, uint64_t *wrong_p)
{
	bool as_graph = way / BENCH_NPLACES == BENCH_GRAPH;
	void *graph = NULL;
	int err = 0;

	if (as_graph)
		err = capture(r, t, lib, way % BENCH_NPLACES, 1, &graph);
	for (int class = 0; !err && class < BENCH_NCLASSES; class++) {
		/* Fresh data every time, the same on all ranks. */
		uint64_t seed =
			r->o->seed +
			((((t->bytes * SHUNT_NDTYPES + t->dtype) * SHUNT_NREDOPS + t->redop) * BENCH_NWAYS + (uint64_t)way) *
					BENCH_MAX_LIBS +
				(uint64_t)lib) *
				BENCH_NCLASSES +
			(uint64_t) class;
		struct bench_data *data;

		if (!bench_data_has(t->dtype, class))
			continue;
		note(r, BENCH_CHECK, lib, way);
		data = bench_data_create(t->dtype, t->redop, class, r->shared->launch.nranks, seed);
		err = data ? check_class(r, t, lib, way, graph, data, wrong_p) : device_check(r, "host memory", -ENOMEM);
		bench_data_destroy(data);
	}
	if (graph)
		r->lib.graph_destroy(graph);
	return err;
}

/* ---- timing ---- */

static double cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* --skew: waits, and returns how long that was. Draws from *seed, with which every library begins alike. */
static double skew_wait(const struct rank *r, unsigned *seed)
{
	double start, us;

	if (!r->o->skew_us)
		return 0;
	us = (double)r->o->skew_us * rand_r(seed) / RAND_MAX;
	start = bench_now_us();
	while (bench_now_us() - start < us)
		;
	return bench_now_us() - start;
}

/* *waited_p: time that is not the calls'. */
static int calls_run(
    struct rank *r, const struct task *t, int lib, int way, void *graph, int calls, unsigned seed, double *waited_p)
{
	int err = 0;

	*waited_p = 0;
	if (graph) {
		for (int i = 0; !err && i < calls; i += GRAPH_CALLS) {
			*waited_p += skew_wait(r, &seed);
			err = device_check(r, "graph launch", r->lib.graph_launch(graph, r->stream));
		}
	} else {
		for (int i = 0; !err && i < calls; i++) {
			*waited_p += skew_wait(r, &seed);
			err = call(r, t, lib, way % BENCH_NPLACES, r->turn);
			r->turn = (r->turn + r->o->group) % r->sets;
		}
	}
	return err;
}

/* cpu_us_p: with --host, when only the calls count. */
static int round_time(
	struct rank *r, const struct task *t, int lib, int way, void *graph, int round, double *us_p, double *cpu_us_p)
{
	/* A graph is launched whole. */
	int calls = graph ? (r->o->iters + GRAPH_CALLS - 1) / GRAPH_CALLS * GRAPH_CALLS : r->o->iters, err;
	unsigned seed = (unsigned)(r->o->seed + (uint64_t)(round * BENCH_MAX_RANKS + r->rank) * 7919);
	double start, cpu, waited, each = (double)calls * r->o->group;

	/* The first barrier may sleep, the second one lets all go at once. */
	err = barrier(r);
	if (!err)
		err = barrier(r);
	if (err)
		return err;
	note(r, BENCH_TIME, lib, way);
	start = bench_now_us();
	cpu = cpu_us();
	err = calls_run(r, t, lib, way, graph, calls, seed, &waited);
	if (r->o->host) {
		*cpu_us_p = (cpu_us() - cpu) / each;
		*us_p = (bench_now_us() - start - waited) / each;
	}
	if (!err)
		err = sync(r, lib);
	if (!r->o->host)
		*us_p = (bench_now_us() - start - waited) / each;
	return err;
}

static bool way_wanted(const struct bench_opts *o, int way)
{
	return o->modes[way / BENCH_NPLACES] && o->places[way % BENCH_NPLACES];
}

static double *sample_at(const struct rank *r, double *base, int way, int lib)
{
	return base + (way * BENCH_MAX_LIBS + lib) * r->o->rounds;
}

static int task_time(struct rank *r, const struct task *t)
{
	void *graph[BENCH_NWAYS][BENCH_MAX_LIBS] = { 0 };
	int err = 0;

	for (int way = 0; !err && way < BENCH_NWAYS; way++) {
		for (int lib = 0; !err && lib < r->o->nlibs && way_wanted(r->o, way); lib++) {
			if (way / BENCH_NPLACES == BENCH_GRAPH)
				err = capture(r, t, lib, way % BENCH_NPLACES, GRAPH_CALLS, &graph[way][lib]);
			if (err)
				break;
			note(r, BENCH_WARMUP, lib, way);
			if (r->o->warmup) {
				double waited;

				err = calls_run(r, t, lib, way, graph[way][lib], r->o->warmup, 0, &waited);
				if (!err)
					err = sync(r, lib);
			}
		}
	}
	for (int round = 0; !err && round < r->o->rounds; round++)
		for (int way = 0; !err && way < BENCH_NWAYS; way++)
			for (int i = 0; !err && i < r->o->nlibs && way_wanted(r->o, way); i++) {
				/* Nobody always comes first. */
				int lib = (i + round) % r->o->nlibs;
				double *sample = sample_at(r, r->samples, way, lib) + round;

				err = round_time(r, t, lib, way, graph[way][lib], round, sample, sample + r->nsamples);
			}
	for (int way = 0; way < BENCH_NWAYS; way++)
		for (int lib = 0; lib < r->o->nlibs; lib++)
			if (graph[way][lib])
				r->lib.graph_destroy(graph[way][lib]);
	return err;
}

/* ---- results ---- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Of each round the slowest rank. heard: of all ranks. */
static void slowest(const struct rank *r, double *heard, int way, int lib, double rounds[BENCH_MAX_ROUNDS])
{
	for (int i = 0; i < r->o->rounds; i++)
		rounds[i] = 0;
	for (int rank = 0; rank < r->shared->launch.nranks; rank++) {
		const double *us = sample_at(r, heard + r->nsamples * (size_t)rank, way, lib);

		for (int i = 0; i < r->o->rounds; i++)
			if (us[i] > rounds[i])
				rounds[i] = us[i];
	}
}

/* p99_p: may be NULL. */
static double median(const double *values, int n, double *p99_p)
{
	double sorted[BENCH_MAX_ROUNDS];

	memcpy(sorted, values, (size_t)n * sizeof(double));
	qsort(sorted, (size_t)n, sizeof(double), compare);
	if (p99_p)
		*p99_p = sorted[(99 * n + 99) / 100 - 1];
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void cell_fill(struct rank *r, const struct task *t, int way, int lib, const uint64_t (*wrong)[BENCH_NWAYS][BENCH_MAX_LIBS],
	struct bench_cell *cell)
{
	int n = r->o->rounds, nranks = r->shared->launch.nranks;
	const char *path;

	cell->wrong = 0;
	for (int rank = 0; rank < nranks; rank++)
		cell->wrong += wrong[rank][way][lib];
	slowest(r, r->heard, way, lib, cell->rounds_us);
	cell->us = median(cell->rounds_us, n, &cell->p99_us);
	if (r->o->host) {
		slowest(r, r->heard + r->nsamples * (size_t)nranks, way, lib, cell->rounds_cpu_us);
		cell->cpu_us = median(cell->rounds_cpu_us, n, NULL);
	}
	cell->algbw = (double)t->bytes / cell->us / 1e3;
	cell->busbw = cell->algbw * bench_coll_bus_factor(r->o->coll, nranks);
	cell->path = "-";
	if (r->nccl[lib].path_of && !r->nccl[lib].path_of(r->comm[lib], r->o->coll->op, t->count, t->dtype, t->redop, &path))
		cell->path = path;
}

/* What every rank has sampled; all: of all ranks, one after the other. */
static int samples_gather(struct rank *r, double *samples, double *all)
{
	size_t way_bytes = (size_t)r->o->rounds * sizeof(double) * BENCH_MAX_LIBS;
	int nranks = r->shared->launch.nranks, err = 0;

	/* One way at a time fits a slot; what comes back lies way by way and is put in rank order. */
	for (int way = 0; !err && way < BENCH_NWAYS; way++) {
		char *heard = malloc(way_bytes * (size_t)nranks);

		if (!heard)
			return device_check(r, "host memory", -ENOMEM);
		err = gather(r, sample_at(r, samples, way, 0), way_bytes, heard);
		for (int rank = 0; !err && rank < nranks; rank++)
			memcpy((char *)all + way_bytes * (size_t)(BENCH_NWAYS * rank + way), heard + way_bytes * (size_t)rank,
			    way_bytes);
		free(heard);
	}
	return err;
}

static int task_run(struct rank *r, const struct task *t)
{
	uint64_t wrong[BENCH_NWAYS][BENCH_MAX_LIBS] = { 0 }, all_wrong[BENCH_MAX_RANKS][BENCH_NWAYS][BENCH_MAX_LIBS];
	int err = 0;

	atomic_store(&r->progress->bytes, t->bytes);
	buffers_cut(r, t->bytes);
	for (int way = 0; r->o->check && !err && way < BENCH_NWAYS; way++)
		for (int lib = 0; !err && lib < r->o->nlibs && way_wanted(r->o, way); lib++)
			err = check_way(r, t, lib, way, &wrong[way][lib]);
	if (!err)
		err = task_time(r, t);
	if (!err)
		err = gather(r, wrong, sizeof(wrong), all_wrong);
	if (!err)
		err = samples_gather(r, r->samples, r->heard);
	if (!err && r->o->host)
		err = samples_gather(r, r->samples + r->nsamples, r->heard + r->nsamples * (size_t)r->shared->launch.nranks);
	if (err || r->rank)
		return err;
	for (int way = 0; way < BENCH_NWAYS; way++) {
		if (!way_wanted(r->o, way))
			continue;
		r->row->bytes = t->bytes;
		r->row->count = t->count;
		r->row->dtype = t->dtype;
		r->row->redop = t->redop;
		r->row->way = way;
		for (int lib = 0; lib < r->o->nlibs; lib++)
			cell_fill(r, t, way, lib, all_wrong, &r->row->cell[lib]);
		bench_report_row(r->report, r->row);
	}
	return 0;
}

static int tasks_run(struct rank *r)
{
	const struct bench_opts *o = r->o;
	int err = 0, nranks = r->shared->launch.nranks;

	for (int dtype = 0; dtype < SHUNT_NDTYPES; dtype++)
		for (int redop = 0; redop < SHUNT_NREDOPS; redop++) {
			if (!(o->dtypes >> dtype & 1) || !((o->coll->reduces ? o->redops : 1u) >> redop & 1))
				continue;
			for (uint64_t bytes = o->first; !err && bytes <= o->last; bytes *= o->factor) {
				size_t size = shunt_dtype_bytes[dtype];
				struct task t = {
					.dtype = dtype, .redop = redop, .count = bench_coll_count(o->coll, bytes, size, nranks)};

				t.bytes =
				    t.count * size * bench_coll_blocks(o->coll, o->coll->send_many || o->coll->recv_many, nranks);
				/* Too small for 16 bytes a rank; nccl-tests has a line of nothing there. */
				if (t.count)
					err = task_run(r, &t);
				if (bytes > UINT64_MAX / o->factor)
					break;
			}
		}
	return err;
}

static void counters_print(struct rank *r)
{
	struct shunt_counter rows[64];
	size_t n;

	for (int lib = 0; lib < r->o->nlibs; lib++) {
		if (!r->nccl[lib].counters || r->nccl[lib].counters(r->comm[lib], rows, 64, &n))
			continue;
		bench_report_counters(r->report, lib, rows, n < 64 ? n : 64);
	}
}

static void rank_main(struct rank *r)
{
	int err = rank_open(r);

	if (!err)
		err = tasks_run(r);
	if (!err && !r->rank) {
		if (r->o->stats)
			counters_print(r);
		r->status = bench_report_finish(r->report);
	}
	/* Rank 0's verdict is everybody's; and nobody destroys a communicator that others still use. */
	int statuses[BENCH_MAX_RANKS];

	if (!err)
		err = gather(r, &r->status, sizeof(r->status), statuses);
	if (!err) {
		r->status = statuses[0];
	} else {
		r->status = TOOL_FAIL;
		if (r->team)
			bench_team_fail(r->team);
		else
			atomic_store(&r->shared->hall.failed, 1);
	}
	rank_close(r, !err);
}

static void defaults_fill(struct bench_opts *o, const char *kind)
{
	bool sim = !strcmp(kind, "sim");

	o->warmup = o->warmup < 0 ? (sim ? 1 : 5) : o->warmup;
	/* Calls alone are short, and far fewer than a device's queue holds. */
	o->iters = o->iters >= 0 ? o->iters : o->host ? 50 : sim ? 2 : 20;
	o->rounds = o->rounds < 0 ? (sim ? 3 : 20) : o->rounds;
}

static int seat_run(const void *arg, const struct bench_seat *seat)
{
	const struct bench_opts *o = arg;
	struct rank *r = calloc(1, sizeof(*r));
	int status;

	if (!r) {
		atomic_store(&seat->shared->hall.failed, 1);
		return TOOL_FAIL;
	}
	r->opts = *o;
	defaults_fill(&r->opts, seat->shared->launch.kind);
	r->o = &r->opts;
	r->shared = seat->shared;
	r->fd = o->worker_fd;
	r->rank = seat->rank;
	r->device = seat->device;
	r->progress = seat->progress;
	rank_main(r);
	status = r->status;
	free(r);
	return status;
}

int bench_worker(const struct bench_opts *o)
{
	return bench_seats_run(o, seat_run, o);
}

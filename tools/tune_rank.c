/* SPDX-License-Identifier: MIT */
/*
 * One rank of shunt tune. Every rank makes the same calls in the same order and judges the same numbers, those of the slowest rank;
 * rank 0 keeps the results.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "core/config.h"
#include "tune.h"

enum {
	SHUNT, NCCL, NLIBS,
	MAX_ROUNDS = 100,
	GUARD_BYTES = 256,
};

struct rank {
	struct tune_opts opts;
	const struct tune_opts *o;
	struct bench_shared *shared;
	struct bench_progress *progress;
	struct bench_team *team;
	int rank, nranks, device, fd;
	bool sim, nccl_there;
	const char *cache_dir;
	struct tool_lib lib;
	__typeof__(shunt_algo_force) *force;
	struct bench_nccl nccl[NLIBS];
	ncclComm_t comm[NLIBS];
	void *stream;
	char *send, *recv, *host;
	struct tune_candidate list[TUNE_MAX_CANDIDATES];
	double us[TUNE_MAX_CANDIDATES];
	double samples[TUNE_MAX_CANDIDATES * MAX_ROUNDS];
	void *graph[TUNE_MAX_CANDIDATES];
	struct tune_results *results; /* rank 0's are kept; the others know which points there are */
	struct tune_partial *partial; /* rank 0 */
	struct tune_task tasks[TUNE_MAX_POINTS];
	size_t ntasks;
	double start_us;
	char path[PATH_MAX];
};

static void note(struct rank *r, enum bench_stage stage, int lib)
{
	bench_progress_note(r->progress, stage, lib, -1);
}

static int gather(struct rank *r, const void *mine, size_t bytes, void *all)
{
	note(r, BENCH_GATHER, -1);
	int err = bytes ? bench_team_gather(r->team, mine, bytes, all) : bench_team_barrier(r->team);

	return bench_round_error(r->rank, err);
}

static int device_check(const struct rank *r, const char *what, int err)
{
	return bench_device_error(r->rank, r->device, what, err);
}

/* ---- set-up ---- */

/* Everything that would come between the call and the algorithm that is to be measured. */
static void environment_clear(struct rank *r)
{
	r->cache_dir = strdup(shunt_config()->cache_dir); /* of the command's own copy of the configuration */
	setenv("SHUNT_TUNING_FILE", "none", 1);
	setenv("SHUNT_CACHE_DIR", "/dev/null", 1);
	unsetenv("SHUNT_ALGO");
	unsetenv("SHUNT_FORCE_NCCL");
	unsetenv("SHUNT_PLAN_DIR");
}

static void defaults_fill(struct tune_opts *o, bool sim)
{
	static const unsigned blocks[] = {8, 16, 32, 64}, quick_blocks[] = {16, 64}, threads[] = {128, 256, 512},
	                      quick_threads[] = {256, 512};
	struct bench_opts *b = &o->base;

	b->first = b->first ? b->first : sim ? 256 : 1 << 10;
	b->last = b->last ? b->last : sim ? 4 << 10 : 256 << 20;
	b->last = b->last < b->first ? b->first : b->last;
	b->factor = b->factor ? b->factor : sim || o->quick ? 4 : 2;
	b->rounds = b->rounds > 0 ? b->rounds : sim ? 1 : o->quick ? 7 : 15;
	o->minutes = o->minutes > 0 ? o->minutes : o->quick ? 4 : 0;
	if (!o->nblocks) {
		o->nblocks = sim || o->quick ? 2 : 4;
		for (int i = 0; i < o->nblocks; i++)
			o->blocks[i] = sim ? (unsigned)i + 1 : o->quick ? quick_blocks[i] : blocks[i];
	}
	if (!o->nthreads) {
		o->nthreads = sim ? 1 : o->quick ? 2 : 3;
		for (int i = 0; i < o->nthreads; i++)
			o->threads[i] = sim ? 64 : o->quick ? quick_threads[i] : threads[i];
	}
}

/* All ranks are on devices of one kind, and all see a real NCCL, or none does. */
static int machine_learn(struct rank *r)
{
	struct identity { struct shunt_device_identity device; int nccl, version; } mine, all[BENCH_MAX_RANKS];
	__typeof__(shunt_device_identify) *identify =
	    (__typeof__(shunt_device_identify) *)dlsym(r->lib.handle, "shunt_device_identify");
	__typeof__(ncclGetVersion) *get_version = (__typeof__(ncclGetVersion) *)dlsym(r->lib.handle, "ncclGetVersion");
	struct shunt_machine *m = &r->results->machine;
	int err;

	memset(&mine, 0, sizeof(mine));
	mine.device.size = sizeof(mine.device);
	r->force = (__typeof__(shunt_algo_force) *)dlsym(r->lib.handle, "shunt_algo_force");
	if (!identify || !r->force) {
		tool_error("%s has no %s: it is not the libshunt.so of this version", r->lib.path,
		    identify ? "shunt_algo_force" : "shunt_device_identify");
		return -ELIBBAD;
	}
	err = device_check(r, "cannot be asked", identify(r->device, &mine.device));
	if (err)
		return err;
	if (get_version)
		get_version(&mine.version); /* and the search for the real one */
	mine.nccl = r->lib.real_nccl_path() && !r->o->no_nccl;
	err = gather(r, &mine, sizeof(mine), all);
	for (int i = 0; !err && i < r->nranks; i++) {
		if (strcmp(all[i].device.name, mine.device.name) || all[i].device.cc != mine.device.cc ||
		    all[i].device.driver != mine.device.driver) {
			tool_error("rank %d is on %s, rank %d on %s: a table is for devices of one kind", r->rank, mine.device.name,
			    i, all[i].device.name);
			err = -EXDEV;
		} else if (all[i].nccl != mine.nccl) {
			tool_error("rank %d has %s real NCCL, rank %d has %s", r->rank, mine.nccl ? "a" : "no", i,
			    all[i].nccl ? "one" : "none");
			err = -EXDEV;
		}
	}
	if (err)
		return err;
	if (!mine.nccl && !r->sim && !r->o->no_nccl) {
		tool_error("there is no real NCCL to measure: set SHUNT_NCCL_LIB to its path, or give --no-nccl for a file that is "
		           "for standalone only");
		return -ENOENT;
	}
	r->nccl_there = mine.nccl;
	*m = (struct shunt_machine){ .cc = mine.device.cc, .driver = mine.device.driver, .nranks = r->nranks, .sim = r->sim };
	memcpy(m->gpu, mine.device.name, sizeof(m->gpu));
	if (mine.nccl)
		snprintf(r->results->nccl, sizeof(r->results->nccl), "%d.%d.%d", mine.version / 10000, mine.version / 100 % 100,
		    mine.version % 100);
	snprintf(r->results->dtype, sizeof(r->results->dtype), "%s", shunt_dtype_name(r->o->dtype));
	return 0;
}

static int comms_create(struct rank *r)
{
	ncclUniqueId id, ids[BENCH_MAX_RANKS];
	int err = bench_nccl_open(&r->nccl[SHUNT], "shunt", &r->lib);

	if (!err && r->nccl_there)
		err = bench_nccl_open(&r->nccl[NCCL], "nccl", &r->lib);
	for (int i = 0; !err && i < (r->nccl_there ? NLIBS : NCCL); i++) {
		struct bench_nccl *nccl = &r->nccl[i];

		note(r, BENCH_INIT, i);
		memset(&id, 0, sizeof(id));
		err = r->rank ? 0 : bench_nccl_check(nccl, r->rank, "ncclGetUniqueId", nccl->GetUniqueId(&id));
		if (!err)
			err = gather(r, &id, sizeof(id), ids);
		if (!err)
			err = bench_nccl_check(
			    nccl, r->rank, "ncclCommInitRank", nccl->CommInitRank(&r->comm[i], r->nranks, ids[0], r->rank));
	}
	return err;
}

static int buffers_alloc(struct rank *r)
{
	uint64_t bytes = r->o->base.last + GUARD_BYTES;
	void *send = NULL, *recv = NULL;
	int err = device_check(r, "cannot allocate a buffer", r->lib.malloc(&send, bytes));

	if (!err)
		err = device_check(r, "cannot allocate a buffer", r->lib.malloc(&recv, bytes));
	r->send = send;
	r->recv = recv;
	if (!err)
		err = device_check(r, "memset", r->lib.memset_async(send, 0, bytes, r->stream));
	if (!err)
		err = device_check(r, "memset", r->lib.stream_synchronize(r->stream));
	r->host = malloc(TUNE_CHECK_BYTES + GUARD_BYTES);
	return !err && !r->host ? device_check(r, "host memory", -ENOMEM) : err;
}

/* Rank 0 reads the partial file; everybody learns which points there are. */
static int results_begin(struct rank *r)
{
	struct known { uint64_t coll, bytes; } *mine, *all;
	size_t n = 0, counts[BENCH_MAX_RANKS];
	int err = 0;

	if (!r->rank)
		err = tune_path(r->o, r->cache_dir, &r->results->machine, r->path);
	if (!err && !r->rank)
		err = tune_partial_open(r->o, r->path, r->results, &r->partial);
	if (err)
		return err;
	n = r->results->n;
	err = gather(r, &n, sizeof(n), counts);
	n = err ? 0 : counts[0];
	if (err || !n)
		return err;
	mine = calloc(n, sizeof(*mine));
	all = calloc(n * (size_t)r->nranks, sizeof(*all));
	if (!mine || !all)
		err = -ENOMEM;
	for (size_t i = 0; !err && !r->rank && i < n; i++)
		mine[i] = (struct known){ r->results->points[i].coll, r->results->points[i].bytes };
	if (!err)
		err = gather(r, mine, n * sizeof(*mine), all);
	for (size_t i = 0; !err && r->rank && i < n; i++)
		r->results->points[r->results->n++] =
		    (struct tune_point){.coll = (enum bench_coll_id)all[i].coll, .bytes = all[i].bytes};
	free(mine);
	free(all);
	return err;
}

static int rank_open(struct rank *r)
{
	int err;

	note(r, BENCH_MEET, -1);
	err = bench_team_join(r->shared, r->fd, r->rank, r->o->base.timeout_s, &r->team);
	note(r, BENCH_INIT, -1);
	if (!err)
		err = tool_lib_open(&r->lib);
	if (!err)
		err = device_check(r, "cannot be used", r->lib.device_set(r->device));
	if (!err)
		err = device_check(r, "cannot make a stream", r->lib.stream_create(&r->stream));
	if (!err)
		err = machine_learn(r);
	if (!err)
		err = results_begin(r);
	if (!err)
		err = buffers_alloc(r);
	return err ? err : comms_create(r);
}

static void rank_close(struct rank *r, bool clean)
{
	note(r, BENCH_DESTROY, -1);
	/* After an error a library may wait for ranks that will not come; the process ends anyway. */
	if (clean) {
		for (int i = 0; i < NLIBS; i++)
			if (r->comm[i])
				bench_nccl_check(&r->nccl[i], r->rank, "ncclCommDestroy", r->nccl[i].CommDestroy(r->comm[i]));
		r->lib.free(r->send);
		r->lib.free(r->recv);
		r->lib.stream_destroy(r->stream);
	}
	free(r->host);
	note(r, BENCH_DONE, -1);
	bench_team_leave(r->team);
}

/* ---- calls ---- */

/* From the next call on the candidate's way. */
static int choose(struct rank *r, const struct tune_task *t, const struct tune_candidate *c)
{
	char rule[128];

	if (c->nccl)
		return 0;
	if (c->algo)
		snprintf(rule, sizeof(rule), "%s:0-inf:%s@%ux%ux%u", shunt_kind_name(tune_kind(t->coll)), c->algo->name,
		    c->geometry.blocks, c->geometry.threads, c->geometry.channels);
	return r->force(c->algo ? rule : NULL);
}

static int call(struct rank *r, const struct tune_task *t, bool nccl)
{
	const struct bench_coll *coll = &bench_colls[t->coll];
	struct bench_args a = {.send = r->send,
		.recv = r->recv,
		.count = t->count,
		.dtype = (ncclDataType_t)r->o->dtype,
		.redop = ncclSum,
		.rank = r->rank,
		.nranks = r->nranks,
		.comm = r->comm[nccl ? NCCL : SHUNT],
		.stream = r->stream};

	return bench_nccl_check(&r->nccl[nccl ? NCCL : SHUNT], r->rank, coll->name, coll->call(&r->nccl[nccl ? NCCL : SHUNT], &a));
}

static int sync(struct rank *r)
{
	return device_check(r, "waiting for the device", r->lib.stream_synchronize(r->stream));
}

static int capture(struct rank *r, const struct tune_task *t, bool nccl, int calls, void **graph_p)
{
	int err = device_check(r, "capture", r->lib.capture_begin(r->stream)), end;

	if (err)
		return err;
	for (int i = 0; !err && i < calls; i++)
		err = call(r, t, nccl);
	end = r->lib.capture_end(r->stream, graph_p);
	return err ? err : device_check(r, "capture", end);
}

/* ---- possible? ---- */

/*
 * Calls every candidate once, so that nothing is set up while it is measured, and leaves out what Shunt does not run: forcing an
 * algorithm does not help on a communicator that forwards everything, or where an algorithm wants something else of a call. Alike
 * on all ranks.
 */
static int candidates_try(struct rank *r, const struct tune_task *t, int *n_p)
{
	const struct bench_nccl *shunt = &r->nccl[SHUNT];
	const char *path = "?";
	int kept = 0, ours = 0, err = 0;

	for (int i = 0; !err && i < *n_p; i++) {
		const struct tune_candidate *c = &r->list[i];

		note(r, BENCH_WARMUP, c->nccl);
		err = choose(r, t, c);
		if (!err)
			err = call(r, t, c->nccl);
		if (!err)
			err = sync(r);
		if (err)
			return err;
		if (c->algo && shunt->path_of &&
		    (shunt->path_of(r->comm[SHUNT], bench_colls[t->coll].op, t->count, r->o->dtype, SHUNT_SUM, &path) ||
		        strcmp(path, c->algo->name)))
			continue;
		ours += c->algo != NULL;
		r->list[kept++] = *c;
	}
	*n_p = kept;
	if (!ours && !r->rank)
		tool_error("%s of %llu bytes: none of Shunt's algorithms runs it on these ranks, its path is %s; NCCL_DEBUG=INFO says why",
			bench_colls[t->coll].name, (unsigned long long)t->bytes, path);
	return ours ? 0 : -ENOENT;
}

/* ---- right? ---- */

/* A candidate's result, from inputs that every correct library adds up exactly. */
static int check(struct rank *r, const struct tune_task *t, const struct tune_candidate *c)
{
	const struct bench_coll *coll = &bench_colls[t->coll];
	size_t size = shunt_dtype_bytes[r->o->dtype], wrong = 0;
	uint64_t in = t->count * bench_coll_blocks(coll, coll->send_many, r->nranks);
	int blocks = coll->recv_many ? r->nranks : 1, err;
	char text[512] = "";
	struct bench_data *data;

	data = bench_data_create(r->o->dtype, SHUNT_SUM, BENCH_EXACT, r->nranks, r->o->base.seed + t->bytes);
	if (!data)
		return device_check(r, "host memory", -ENOMEM);
	bench_data_input(data, r->rank, 0, in, r->host);
	err = device_check(r, "copy", r->lib.memcpy(r->send, r->host, in * size));
	if (!err)
		err = device_check(r, "memset", r->lib.memset_async(r->recv, 0xa5, t->bytes + GUARD_BYTES, r->stream));
	if (!err)
		err = sync(r);
	if (!err)
		err = choose(r, t, c);
	if (!err)
		err = call(r, t, c->nccl);
	if (!err)
		err = sync(r);
	for (int i = 0; !err && bench_coll_has_recv(coll, r->rank, 0) && i < blocks; i++) {
		struct bench_block b = bench_coll_block(coll, r->rank, r->nranks, 0, i, t->count);

		err = device_check(r, "copy", r->lib.memcpy(r->host, r->recv + b.at * size, b.count * size));
		if (!err)
			wrong += b.from < 0 ? bench_data_check(data, b.from_at, b.count, r->host, *text ? NULL : text, sizeof(text))
			                    : bench_data_check_copy(
			                          data, b.from, b.from_at, b.count, r->host, *text ? NULL : text, sizeof(text));
	}
	bench_data_destroy(data);
	if (!err && wrong) {
		tool_error("rank %d: %s, %llu bytes, %s with %u blocks of %u threads: %zu wrong; %s", r->rank, coll->name,
		    (unsigned long long)t->bytes,
		    c->nccl   ? "nccl"
		    : c->algo ? c->algo->name
		              : "as now",
		    c->geometry.blocks, c->geometry.threads, wrong, text);
		err = -EBADMSG;
	}
	return err;
}

/* ---- time ---- */

/* Medians over rounds of the slowest rank; samples: [candidate][round]. The same on all ranks. */
static int medians(struct rank *r, int n, int rounds, double *us)
{
	double heard[BENCH_MAX_RANKS * MAX_ROUNDS] = {0};
	int err = 0;

	for (int i = 0; !err && i < n; i++) {
		double slowest[MAX_ROUNDS] = {0};

		err = gather(r, r->samples + (size_t)i * (size_t)rounds, (size_t)rounds * sizeof(double), heard);
		for (int k = 0; !err && k < r->nranks * rounds; k++)
			if (heard[k] > slowest[k % rounds])
				slowest[k % rounds] = heard[k];
		us[i] = err ? 0 : bench_median(slowest, rounds, NULL);
	}
	return err;
}

/* Times of n candidates, interleaved. graphs, or calls. */
static int measure(
    struct rank *r, const struct tune_task *t, const struct tune_candidate *list, int n, int rounds, bool graphs, double *us)
{
	struct tune_burst burst = tune_burst(r->sim, t->bytes);
	int calls = burst.calls * burst.launches, err = 0;

	memset(r->graph, 0, sizeof(r->graph));
	for (int i = 0; !err && i < n; i++) {
		note(r, graphs ? BENCH_CAPTURE : BENCH_WARMUP, list[i].nccl);
		err = choose(r, t, &list[i]);
		if (!err && graphs)
			err = capture(r, t, list[i].nccl, burst.calls, &r->graph[i]);
		if (!err)
			err = graphs ? device_check(r, "graph launch", r->lib.graph_launch(r->graph[i], r->stream))
			             : call(r, t, list[i].nccl);
		if (!err)
			err = sync(r);
	}
	for (int round = 0; !err && round < rounds; round++)
		for (int k = 0; !err && k < n; k++) {
			int i = (k + round) % n; /* nobody always comes first */
			double start;

			err = choose(r, t, &list[i]);
			/* The first barrier may sleep, the second one lets all go at once. */
			if (!err)
				err = gather(r, NULL, 0, NULL);
			if (!err)
				err = gather(r, NULL, 0, NULL);
			if (err)
				break;
			note(r, BENCH_TIME, list[i].nccl);
			start = bench_now_us();
			for (int l = 0; !err && graphs && l < burst.launches; l++)
				err = device_check(r, "graph launch", r->lib.graph_launch(r->graph[i], r->stream));
			for (int c = 0; !err && !graphs && c < calls; c++)
				err = call(r, t, list[i].nccl);
			if (!err)
				err = sync(r);
			r->samples[i * rounds + round] = (bench_now_us() - start) / calls;
		}
	for (int i = 0; i < n; i++)
		if (r->graph[i])
			r->lib.graph_destroy(r->graph[i]);
	return err ? err : medians(r, n, rounds, us);
}

/* The present way, NCCL, and the fastest few of ours come to the front; returns how many these are. */
static int finalists(struct rank *r, int n)
{
	struct tune_candidate list[TUNE_FINALISTS + 8];
	int out = 0, ours = 0;

	/* One after the other the fastest that is left, the algorithms' own geometry among them. */
	for (int i = 0; i < n; i++)
		if (!r->list[i].algo)
			list[out++] = r->list[i];
	for (int i = 0; i < n && out < TUNE_FINALISTS + 4; i++)
		if (r->list[i].algo && !r->list[i].geometry.blocks) {
			bool best = true;

			for (int k = 0; k < n; k++)
				best = best && !(r->list[k].algo && !r->list[k].geometry.blocks && r->us[k] < r->us[i]);
			if (best) {
				list[out++] = r->list[i];
				r->us[i] = -1;
				break;
			}
		}
	for (; ours < TUNE_FINALISTS; ours++) {
		int best = -1;

		for (int i = 0; i < n; i++)
			if (r->list[i].algo && r->us[i] >= 0 && (best < 0 || r->us[i] < r->us[best]))
				best = i;
		if (best < 0)
			break;
		list[out++] = r->list[best];
		r->us[best] = -1;
	}
	memcpy(r->list, list, (size_t)out * sizeof(*list));
	return out;
}

static void before_name(struct rank *r, const struct tune_task *t, char name[24])
{
	const char *path = "?";

	r->force(NULL);
	if (r->nccl[SHUNT].path_of)
		r->nccl[SHUNT].path_of(r->comm[SHUNT], bench_colls[t->coll].op, t->count, r->o->dtype, SHUNT_SUM, &path);
	snprintf(name, 24, "%s", path);
}

static int point_measure(struct rank *r, const struct tune_task *t, struct tune_point *p)
{
	struct tune_candidate duel[2] = { { 0 }, { .nccl = true } };
	double eager[2] = { 0 };
	int n = tune_candidates(r->o, t->coll, t->part, r->nranks, r->sim, r->nccl_there, r->list), err, best;

	err = candidates_try(r, t, &n);
	for (int i = 0; !err && i < n && r->o->base.check && t->bytes <= TUNE_CHECK_BYTES; i++) {
		note(r, BENCH_CHECK, r->list[i].nccl);
		err = check(r, t, &r->list[i]);
	}
	if (!err)
		err = measure(r, t, r->list, n, r->sim ? 1 : TUNE_QUICK_ROUNDS, true, r->us);
	if (err)
		return err;
	n = finalists(r, n);
	err = measure(r, t, r->list, n, r->o->base.rounds, true, r->us);
	if (err)
		return err;
	best = tune_best(r->list, r->us, n);
	if (best < 0)
		return -ENOENT;
	*p = (struct tune_point){.coll = t->coll,
	    .bytes = t->bytes,
	    .part = t->part,
	    .algo = r->list[best].algo,
	    .geometry = r->list[best].geometry,
	    .us = r->us[best],
	    .before_us = r->us[0],
	    .nccl_us = r->nccl_there ? r->us[1] : 0};
	if (r->nccl_there) {
		duel[0] = r->list[best];
		err = measure(r, t, duel, 2, r->o->base.rounds, false, eager);
		p->eager_us = eager[0];
		p->nccl_eager_us = eager[1];
	}
	p->forward = tune_forwards(p->us, p->nccl_us, p->eager_us, p->nccl_eager_us, r->o->margin);
	before_name(r, t, p->before);
	return err;
}

/* "40 s" or "12 min". */
static const char *duration(double us, char text[32])
{
	snprintf(text, 32, us < 90e6 ? "%.0f s" : "%.0f min", us < 90e6 ? us / 1e6 : us / 60e6);
	return text;
}

static void progress_print(const struct tune_point *p, size_t done, size_t total, double left_us)
{
	char size[24], nccl[32] = "", left[32];

	if (p->nccl_us > 0)
		snprintf(nccl, sizeof(nccl), ", nccl %.2f us", p->nccl_us);
	printf("[%zu/%zu] %s %s: %s %ux%u %.2f us%s, before (%s) %.2f us%s", done, total, bench_colls[p->coll].name,
	    tool_format_size(p->bytes, size), p->algo->name, p->geometry.blocks, p->geometry.threads, p->us, nccl, p->before,
	    p->before_us, p->forward ? ": nccl" : "");
	if (left_us > 0)
		printf(" (%s left)", duration(left_us, left));
	putchar('\n');
	fflush(stdout);
}

/* The collectives that all libraries have. */
static unsigned colls_there(const struct rank *r)
{
	unsigned colls = 0;

	for (int coll = 0; bench_colls[coll].name; coll++) {
		const char *missing = bench_coll_missing(&bench_colls[coll], &r->nccl[SHUNT]);

		if (!(r->o->colls >> coll & 1))
			continue;
		if (!missing && r->nccl_there)
			missing = bench_coll_missing(&bench_colls[coll], &r->nccl[NCCL]);
		if (!missing)
			colls |= 1u << coll;
		else if (!r->rank)
			printf("# %s is left out: there is no nccl%s\n", bench_colls[coll].name, missing);
	}
	return colls;
}

/* Tasks that an earlier run has not done, and what they cost by the plan. */
static size_t tasks_left(const struct rank *r, double *cost_us_p)
{
	size_t n = 0;

	*cost_us_p = 0;
	for (size_t i = 0; i < r->ntasks; i++)
		if (!tune_point_find(r->results, r->tasks[i].coll, r->tasks[i].bytes)) {
			*cost_us_p += r->tasks[i].cost_us;
			n++;
		}
	return n;
}

static void plan_print(const struct rank *r, size_t n, double cost_us)
{
	char whole[32], bound[32];

	if (!n)
		return;
	printf("# %zu points to measure, which takes about %s", n, duration(cost_us, whole));
	if (r->o->minutes > 0)
		printf("; it ends after %s", duration(r->o->minutes * 60e6, bound));
	else
		printf(" (--minutes bounds that%s)", r->o->quick ? "" : ", --quick measures less");
	putchar('\n');
	fflush(stdout);
}

/* Is the time over? Rank 0's clock says it for all. */
static int time_check(struct rank *r, bool *over_p)
{
	double mine = bench_now_us() - r->start_us, all[BENCH_MAX_RANKS];
	int err = 0;

	*over_p = false;
	if (r->o->minutes <= 0)
		return 0;
	err = gather(r, &mine, sizeof(mine), all);
	*over_p = !err && all[0] > r->o->minutes * 60e6;
	return err;
}

static int tasks_run(struct rank *r)
{
	double left_us, done_us = 0, begin;
	size_t left, done;
	struct tune_point p;
	bool over = false;
	int err = 0;

	r->ntasks = tune_plan(r->o, colls_there(r), r->nranks, r->sim, r->nccl_there, r->tasks);
	left = tasks_left(r, &left_us);
	done = r->ntasks - left;
	if (!r->rank)
		plan_print(r, left, left_us);
	begin = bench_now_us();
	for (size_t i = 0; !err && i < r->ntasks; i++) {
		const struct tune_task *t = &r->tasks[i];

		if (tune_point_find(r->results, t->coll, t->bytes))
			continue;
		err = time_check(r, &over);
		if (err || over)
			break;
		atomic_store(&r->progress->bytes, t->bytes);
		err = r->results->n == TUNE_MAX_POINTS ? -E2BIG : point_measure(r, t, &p);
		if (err)
			break;
		r->results->points[r->results->n++] = p;
		left_us -= t->cost_us;
		done_us += t->cost_us;
		done++;
		if (r->rank)
			continue;
		/* What the plan has not foreseen goes into the pace. */
		progress_print(&p, done, r->ntasks, left_us * (bench_now_us() - begin) / done_us);
		err = tune_partial_add(r->partial, &p);
	}
	if (over && !r->rank)
		printf(
		    "# the time is over: %zu of %zu points are measured; the same command goes on from there\n", done, r->ntasks);
	return err;
}

static int by_coll_and_size(const void *a, const void *b)
{
	const struct tune_point *x = a, *y = b;

	if (x->coll != y->coll)
		return x->coll < y->coll ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* A collective of which too little was measured is the built-in table's. False: that is all of them. */
static bool results_reduce(struct rank *r)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->results->n; i++)
		if (tune_covered(r->results, r->tasks, r->ntasks, r->results->points[i].coll))
			r->results->points[kept++] = r->results->points[i];
	for (int coll = 0; bench_colls[coll].name; coll++) {
		bool planned = false;

		for (size_t i = 0; i < r->ntasks; i++)
			planned = planned || (int)r->tasks[i].coll == coll;
		if (planned && !tune_covered(r->results, r->tasks, r->ntasks, (enum bench_coll_id)coll))
			printf("# too little of %s is measured: its rows are the built-in table's\n", bench_colls[coll].name);
	}
	r->results->n = kept;
	return kept;
}

static int results_end(struct rank *r)
{
	double left_us;
	bool done;
	int err;

	if (r->rank)
		return 0;
	done = !tasks_left(r, &left_us);
	if (!results_reduce(r)) {
		tool_error("of no collective enough is measured to write %s: what there is is kept, give more --minutes", r->path);
		return -ETIME;
	}
	qsort(r->results->points, r->results->n, sizeof(r->results->points[0]), by_coll_and_size);
	err = tune_write(r->results, r->path);
	if (err)
		return err;
	tune_print(r->results);
	printf("# written to %s\n", r->path);
	fflush(stdout);
	tune_partial_close(r->partial, done);
	r->partial = NULL;
	return 0;
}

static int seat_run(const void *arg, const struct bench_seat *seat)
{
	struct rank *r = calloc(1, sizeof(*r));
	int err = -ENOMEM;

	if (r)
		r->results = calloc(1, sizeof(*r->results));
	if (!r || !r->results) {
		bench_team_fail(NULL, seat->shared);
		free(r);
		return TOOL_FAIL;
	}
	r->opts = *(const struct tune_opts *)arg;
	r->o = &r->opts;
	r->shared = seat->shared;
	r->progress = seat->progress;
	r->rank = seat->rank;
	r->device = seat->device;
	r->nranks = seat->shared->launch.nranks;
	r->fd = r->o->base.worker_fd;
	r->sim = !strcmp(seat->shared->launch.kind, "sim");
	r->start_us = bench_now_us();
	environment_clear(r);
	defaults_fill(&r->opts, r->sim);
	if (r->nranks < 2 || r->nranks > SHUNT_MAX_RANKS) {
		if (!r->rank)
			tool_error("there are tables for 2 to %d ranks, and these are %d", SHUNT_MAX_RANKS, r->nranks);
		err = -EINVAL;
	} else {
		err = rank_open(r);
	}
	if (!err)
		err = tasks_run(r);
	/* Nobody destroys a communicator that others still use. */
	if (!err)
		err = gather(r, NULL, 0, NULL);
	if (!err)
		err = results_end(r);
	if (err)
		bench_team_fail(r->team, r->shared);
	tune_partial_close(r->partial, false);
	rank_close(r, !err);
	free((char *)r->cache_dir);
	free(r->results);
	free(r);
	return err ? TOOL_FAIL : TOOL_OK;
}

int tune_worker(const struct tune_opts *o)
{
	return bench_seats_run(&o->base, seat_run, o);
}

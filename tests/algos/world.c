/* SPDX-License-Identifier: MIT */
#include "tests/algos/sel.h"
#include "tests/algos/world.h"
#include "tests/support/test.h"
#include "transport/symm/host_memory.h"

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;

void world_start(struct world *w, int n)
{
	memset(w, 0, sizeof(*w));
	w->n = n;
	w->tma = true;
	for (int r = 0; r < n; r++) {
		void *host, *dev;

		assert_int_equal(gpu->share_alloc(r, SHUNT_SCRATCH_BYTES(n), &w->mem[r]), 0);
		assert_int_equal(gpu->host_alloc(sizeof(*w->host_ctrl[r]) + WORLD_HOST_BYTES, &host, &dev), 0);
		w->host_ctrl[r] = host;
		w->host_ctrl[r]->limit_ns = 60ull * 1000000000;
		struct shunt_ctrl *ctrl = w->mem[r].ptr;
		assert_int_equal(gpu->copy(r, &ctrl->host_ctrl, &dev, sizeof(dev)), 0);
		for (int p = 0; p < SHUNT_KARGS_MAX_RANKS; p++)
			ctrl->rank_of[p] = (uint8_t)(10 + p);
		assert_int_equal(gpu->stream_create(r, &w->stream[r]), 0);
	}
}

void world_start_over(struct world *w, int n, enum shunt_link link)
{
	world_start(w, n);
	w->staged = true;
	for (int r = 0; r < n; r++) {
		struct shunt_ctrl *ctrl = w->mem[r].ptr;

		if (link == SHUNT_LINK_SHARED)
			assert_int_equal(shunt_host_memory_create(gpu, r, SHUNT_SEGMENT_BYTES(n), &w->segment[r]), 0);
		assert_true(SHUNT_SEGMENT_BYTES(n) <= w->mem[r].bytes);
		assert_int_equal(
		    gpu->copy(r, &ctrl->inbox, w->segment[r].ptr ? &w->segment[r].ptr : &w->mem[r].ptr, sizeof(char *)),
		    0);
	}
}

void world_stop(struct world *w)
{
	for (int r = 0; r < w->n; r++) {
		if (w->segment[r].ptr)
			shunt_host_memory_free(gpu, &w->segment[r]);
		gpu->stream_destroy(r, w->stream[r]);
		gpu->host_free(w->host_ctrl[r]);
		gpu->share_free(&w->mem[r]);
	}
}

char *world_alloc(int rank, size_t bytes)
{
	void *p;

	assert_int_equal(gpu->mem_alloc(rank, bytes, &p), 0);
	return p;
}

struct emitter {
	struct world *w;
	int rank;
};

static int emit(void *ctx, const struct shunt_work *work)
{
	const struct emitter *e = ctx;
	struct shunt_gpu_launch l = { .kernel = e->w->staged ? shunt_algo_staged(work->kernel) : work->kernel,
		.blocks = work->blocks + (work->args.k.check.what != 0),
		.threads = work->threads,
		.args = &work->args,
		.stream = e->w->stream[e->rank],
		.shared = work->shared };

	assert_true(gpu->kernel_exists(l.kernel));
	assert_int_equal(gpu->launch(e->rank, &l), 0);
	e->w->launches[e->rank]++;
	return 0;
}

int world_launch_group(struct world *w, int rank, const struct shunt_coll *const *calls, size_t n, const char *name)
{
	bool tma = name && !strcmp(name, "bulk"), without_tma = name && !strcmp(name, "simple");
	struct shunt_sel_key sel_key = { .topology = ONE_ISLAND,
		.nranks = w->n,
		.sim = true,
		.takes_all = true,
		.staged = w->staged,
		.tma = tma || (w->tma && !without_tma) };
	struct shunt_decision *decisions = calloc(n, sizeof(*decisions));
	struct shunt_kargs base = { .rank = (uint16_t)rank, .nranks = (uint16_t)w->n, .op = w->op };
	struct emitter e = { w, rank };
	struct shunt_enqueue_ctx enqueue = {
		.sel_key = &sel_key, .base = &base, .emit = emit, .ctx = &e, .check = w->checks
	};
	const struct shunt_algo *a;
	int err;

	for (int p = 0; p < w->n; p++)
		base.peer[p] = w->segment[p].ptr && p != rank ? w->segment[p].ptr : w->mem[p].ptr;
	for (size_t c = 0; c < n; c++) {
		/* The selection's type, flags and factor in any case. */
		assert_true(shunt_select(SEL(&sel_key), calls[c], &decisions[c]));
		for (size_t i = 0; name && (a = shunt_algo_row(i)); i++)
			if (a->kind == calls[c]->kind && !strcmp(a->name, tma ? "simple" : name)) {
				decisions[c].algo = a;
				decisions[c].kernel =
				    shunt_algo_kernel(a, a->kind, w->n, calls[c]->redop, calls[c]->dtype);
			}
	}
	if (!name)
		shunt_uneven_decide(&sel_key, calls, decisions, n);
	err = shunt_enqueue_calls(&enqueue, calls, decisions, n);
	free(decisions);
	return err;
}

void world_launch(struct world *w, int rank, const struct shunt_coll *coll, const char *name)
{
	assert_int_equal(world_launch_group(w, rank, &coll, 1, name), 0);
}

void world_wait(struct world *w, int rank, const char *what)
{
	assert_int_equal(gpu->stream_sync(rank, w->stream[rank]), 0);
	if (w->host_ctrl[rank]->fault.set)
		fail_msg("%s n=%d: rank %d gave up on rank %u, channel %u", what, w->n, rank,
		    w->host_ctrl[rank]->fault.peer, w->host_ctrl[rank]->fault.channel);
}

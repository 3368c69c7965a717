/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
#include "world.h"

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;

void world_start(struct world *w, int n)
{
	memset(w, 0, sizeof(*w));
	w->n = n;
	for (int r = 0; r < n; r++) {
		uint64_t timeout = 60ull * 1000000000;
		void *host, *dev;

		assert_int_equal(gpu->share_alloc(r, SHUNT_SCRATCH_BYTES, &w->mem[r]), 0);
		assert_int_equal(gpu->host_alloc(sizeof(*w->fault[r]), &host, &dev), 0);
		w->fault[r] = host;
		struct shunt_ctrl *ctrl = w->mem[r].ptr;
		assert_int_equal(gpu->copy(r, &ctrl->timeout_ns, &timeout, sizeof(timeout)), 0);
		assert_int_equal(gpu->copy(r, &ctrl->fault, &dev, sizeof(dev)), 0);
		assert_int_equal(gpu->stream_create(r, &w->stream[r]), 0);
	}
}

void world_stop(struct world *w)
{
	for (int r = 0; r < w->n; r++) {
		gpu->stream_destroy(r, w->stream[r]);
		gpu->host_free(w->fault[r]);
		gpu->share_free(&w->mem[r]);
	}
}

char *world_alloc(int rank, size_t bytes)
{
	void *p;

	assert_int_equal(gpu->mem_alloc(rank, bytes, &p), 0);
	return p;
}

void world_launch(struct world *w, int rank, const struct shunt_coll *coll, const char *name)
{
	struct shunt_scope scope = { .nranks = w->n, .sim = true, .standalone = true };
	struct shunt_pick pick;
	enum shunt_why why;
	struct shunt_kargs args = { .send = coll->send, .recv = coll->recv, .count = coll->count, .rank = (uint16_t)rank,
		.nranks = (uint16_t)w->n };
	struct shunt_gpu_launch l = { .args = &args, .arg_bytes = sizeof(args), .stream = w->stream[rank] };
	const struct shunt_algo *a;

	/* The selection's type, flags and factor in any case. */
	assert_true(shunt_select(&scope, coll, &pick, &why));
	for (size_t i = 0; name && (a = shunt_algo_row(i)); i++)
		if (a->kind == coll->kind && !strcmp(a->name, name)) {
			pick.algo = a;
			pick.kernel = shunt_algo_kernel(a, w->n, coll->redop, coll->dtype);
			a->geometry(&scope, coll->count * shunt_dtype_bytes[coll->dtype], &pick);
		}
	args.flags = pick.flags;
	args.scalar = pick.scalar;
	if (!(((uintptr_t)coll->send | (uintptr_t)coll->recv) & 15))
		args.flags |= SHUNT_K_ALIGNED;
	for (int p = 0; p < w->n; p++)
		args.peer[p] = w->mem[p].ptr;
	if (pick.algo->fill)
		pick.algo->fill(&scope, coll, rank, &pick, &args);
	l.kernel = pick.kernel;
	l.blocks = pick.blocks;
	l.threads = pick.threads;
	assert_true(gpu->kernel_exists(l.kernel));
	if (l.blocks)
		assert_int_equal(gpu->launch(rank, &l), 0);
}

void world_wait(struct world *w, int rank, const char *what)
{
	assert_int_equal(gpu->stream_sync(rank, w->stream[rank]), 0);
	if (w->fault[rank]->set)
		fail_msg("%s n=%d: rank %d gave up on rank %u, channel %u", what, w->n, rank, w->fault[rank]->peer, w->fault[rank]->channel);
}

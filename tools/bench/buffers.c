/* SPDX-License-Identifier: MIT */
/* The buffers that calls use in turn: plain ones, and a library's own that are registered as windows. */
#include "tools/common/libc.h"
#include "tools/bench/rank.h"

enum {
	BUFFER_ALIGN = 512,  /* --rotate: alignment of a set */
	WINDOW_ALIGN = 4096, /* NCCL's requirement for the size of a window */
	MAX_SETS = 1 << 20,
};

static int buffer_alloc(struct bench_rank *r, struct bench_buffers *b, void **ptr_p, uint64_t bytes)
{
	int err = b->nccl ? bench_nccl_check(b->nccl, r->rank, "ncclMemAlloc", b->nccl->MemAlloc(ptr_p, bytes)) :
	                    bench_rank_check(r, "cannot allocate a buffer", r->lib.malloc(ptr_p, bytes));

	if (!err)
		err = bench_rank_check(r, "memset", r->lib.memset_async(*ptr_p, 0, bytes, r->stream));
	return err;
}

static int buffers_alloc(struct bench_rank *r, struct bench_buffers *b, uint64_t bytes)
{
	int err = 0;

	b->n = r->o->rotate ? 1 : r->o->buffers;
	b->send = calloc(b->n * 2, sizeof(*b->send));
	b->window = calloc(b->n * 2, sizeof(*b->window));
	if (!b->send || !b->window)
		return bench_rank_check(r, "host memory", -ENOMEM);
	b->recv = b->send + b->n;
	for (unsigned i = 0; !err && i < b->n * 2; i++)
		err = buffer_alloc(r, b, &b->send[i], bytes);
	return err ? err : bench_rank_check(r, "memset", r->lib.stream_synchronize(r->stream));
}

/* The reason why the library is measured with plain buffers in spite of the request, or NULL. The same on all ranks. */
static const char *register_lacks(const struct bench_nccl *nccl)
{
	if (!nccl->MemAlloc || !nccl->MemFree)
		return "it has no ncclMemAlloc";
	return nccl->CommWindowRegister && nccl->CommWindowDeregister ? NULL : "it has no ncclCommWindowRegister";
}

/*
 * All ranks make the same number of registrations, also after a failure. *reason: "" or this rank's error. A library
 * that cannot register does not fail the run.
 */
static void buffers_register(struct bench_rank *r, struct bench_buffers *b, uint64_t bytes, char reason[128])
{
	*reason = 0;
	for (unsigned i = 0; i < b->n * 2; i++) {
		ncclResult_t result =
		    b->nccl->CommWindowRegister(b->comm, b->send[i], bytes, &b->window[i], NCCL_WIN_COLL_SYMMETRIC);

		if (*reason)
			continue;
		if (result)
			snprintf(reason, 128, "ncclCommWindowRegister says \"%.80s\"", b->nccl->GetErrorString(result));
		else if (!b->window[i])
			snprintf(reason, 128, "ncclCommWindowRegister gives no window");
	}
}

static int lib_buffers_alloc(struct bench_rank *r, int lib, uint64_t bytes)
{
	struct bench_nccl *nccl = &r->nccl[lib];
	struct bench_buffers *b = &r->own[lib];
	char mine[128], (*all)[128];
	int err;

	b->nccl = nccl;
	b->comm = r->comm[lib];
	bytes = (bytes + WINDOW_ALIGN - 1) / WINDOW_ALIGN * WINDOW_ALIGN;
	bench_rank_progress(r, RANKS_INIT, lib, -1);
	err = buffers_alloc(r, b, bytes);
	if (err)
		return err;
	all = calloc((size_t)r->shared->launch.nranks, sizeof(*all));
	if (!all)
		return bench_rank_check(r, "host memory", -ENOMEM);
	buffers_register(r, b, bytes, mine);
	err = bench_allgather(r, mine, sizeof(mine), all);
	nccl->buffers = BENCH_REGISTERED;
	for (int rank = 0; !err && rank < r->shared->launch.nranks; rank++)
		if (*all[rank] && nccl->buffers == BENCH_REGISTERED) {
			nccl->buffers = BENCH_ALLOCATED;
			if (!r->rank)
				tool_error(
				    "%s: rank %d: %s: measured with buffers of ncclMemAlloc that are not registered",
				    nccl->label, rank, all[rank]);
		}
	free(all);
	r->buffers[lib] = b;
	return err;
}

int bench_buffers_alloc(struct bench_rank *r)
{
	uint64_t bytes = r->o->last + BENCH_GUARD_BYTES;
	bool plain = false;
	int err = 0;

	/* The smallest size may be smaller than one element. */
	if (r->o->last < 8)
		bytes += 8;
	if (r->o->rotate) {
		uint64_t least = (bytes + BUFFER_ALIGN) * r->o->group;

		bytes = r->pool_bytes = r->o->rotate > least ? r->o->rotate : least;
	}
	for (int i = 0; i < r->o->ranks.nlibs; i++) {
		const char *reason = r->nccl[i].buffers == BENCH_PLAIN ? "" : register_lacks(&r->nccl[i]);

		if (!reason)
			continue;
		if (*reason && !r->rank)
			tool_error("%s: %s: measured with plain buffers", r->nccl[i].label, reason);
		r->nccl[i].buffers = BENCH_PLAIN;
		r->buffers[i] = &r->plain;
		plain = true;
	}
	if (plain)
		err = buffers_alloc(r, &r->plain, bytes);
	for (int i = 0; !err && i < r->o->ranks.nlibs; i++)
		if (!r->buffers[i])
			err = lib_buffers_alloc(r, i, bytes);
	return err;
}

void bench_buffers_deregister(struct bench_rank *r)
{
	for (int i = 0; i < r->o->ranks.nlibs; i++) {
		struct bench_buffers *b = &r->own[i];

		for (unsigned k = 0; b->window && k < b->n * 2; k++)
			if (b->window[k] &&
			    bench_nccl_check(b->nccl, r->rank, "ncclCommWindowDeregister",
			        b->nccl->CommWindowDeregister(b->comm, b->window[k])))
				r->status = TOOL_FAIL;
	}
}

static void buffers_free(struct bench_rank *r, struct bench_buffers *b)
{
	for (unsigned i = 0; b->send && i < b->n * 2; i++) {
		if (!b->send[i])
			continue;
		if (!b->nccl)
			r->lib.free(b->send[i]);
		else if (bench_nccl_check(b->nccl, r->rank, "ncclMemFree", b->nccl->MemFree(b->send[i])))
			r->status = TOOL_FAIL;
		b->send[i] = NULL;
	}
}

void bench_buffers_free(struct bench_rank *r)
{
	buffers_free(r, &r->plain);
	for (int i = 0; i < r->o->ranks.nlibs; i++)
		buffers_free(r, &r->own[i]);
}

void bench_buffers_free_host(struct bench_rank *r)
{
	for (int i = -1; i < r->o->ranks.nlibs; i++) {
		struct bench_buffers *b = i < 0 ? &r->plain : &r->own[i];

		free(b->send);
		free(b->window);
	}
}

void bench_buffers_layout(struct bench_rank *r, uint64_t bytes)
{
	r->next_set = 0;
	r->sets = r->o->buffers;
	if (!r->o->rotate)
		return;
	r->stride = (bytes + BENCH_GUARD_BYTES + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
	r->sets = r->pool_bytes / r->stride > MAX_SETS ? MAX_SETS : (unsigned)(r->pool_bytes / r->stride);
}

static char *buffer_at(const struct bench_rank *r, void *const *side, unsigned set)
{
	return r->o->rotate ? (char *)side[0] + set * r->stride : side[set];
}

char *bench_send_buffer(const struct bench_rank *r, int lib, unsigned set)
{
	return buffer_at(r, r->buffers[lib]->send, set);
}

char *bench_recv_buffer(const struct bench_rank *r, int lib, unsigned set)
{
	return buffer_at(r, r->buffers[lib]->recv, set);
}

char *bench_send_at(
    const struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned set)
{
	if (place == BENCH_OUT)
		return bench_send_buffer(r, lib, set);
	return bench_recv_buffer(r, lib, set) +
	    bench_coll_send_offset(r->o->coll, t->count, r->rank) * shunt_dtype_bytes[t->dtype];
}

char *bench_recv_at(
    const struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned set)
{
	uint64_t offset = place == BENCH_IN ? bench_coll_recv_offset(r->o->coll, t->count, r->rank) : 0;

	return bench_recv_buffer(r, lib, set) + offset * shunt_dtype_bytes[t->dtype];
}

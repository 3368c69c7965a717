/* SPDX-License-Identifier: MIT */
/* Checks a rank's result and the bytes around it, and that the plan ran. */
#include <errno.h>
#include <string.h>
#include "tools/plan/rank.h"

enum { POISON = 0xa5 };

static int input_write(struct plan_rank *r, const struct bench_data *data, const struct plan_task *t)
{
	uint64_t count = t->count * bench_coll_blocks(r->o->base.coll, r->o->base.coll->send_many, r->nranks),
	         per_block = PLAN_RANK_BLOCK / r->element;
	char *send = plan_rank_send_at(r, t);
	int err = 0;

	for (uint64_t first = 0; !err && first < count; first += per_block) {
		size_t n = count - first < per_block ? count - first : per_block;

		bench_data_input(data, r->rank, first, n, r->block);
		err = plan_rank_device(r, "copy", r->lib.memcpy(send + first * r->element, r->block, n * r->element));
	}
	return err;
}

static int result_check(
    struct plan_rank *r, const struct bench_data *data, const struct plan_task *t, uint64_t *wrong_p)
{
	const struct bench_coll *coll = r->o->base.coll;
	int blocks = coll->recv_many ? r->nranks : 1, err;
	uint64_t per_block = PLAN_RANK_BLOCK / r->element, wrong = 0;
	const char *recv = plan_rank_recv_at(r, t);
	char text[512] = "";

	for (int k = 0; k < blocks; k++) {
		struct bench_block b = bench_coll_block(coll, r->rank, r->nranks, 0, k, t->count);

		for (uint64_t first = 0; first < b.count; first += per_block) {
			size_t n = b.count - first < per_block ? b.count - first : per_block;

			err = plan_rank_device(
			    r, "copy", r->lib.memcpy(r->block, recv + (b.at + first) * r->element, n * r->element));
			if (err)
				return err;
			wrong += b.from < 0 ?
			    bench_data_check(data, b.from_at + first, n, r->block, *text ? NULL : text, sizeof(text)) :
			    bench_data_check_copy(
			        data, b.from, b.from_at + first, n, r->block, *text ? NULL : text, sizeof(text));
			atomic_fetch_add(&r->progress->heartbeats, 1);
		}
	}
	if (wrong)
		tool_error("rank %d: %llu bytes, %s place: %llu wrong; %s", r->rank, (unsigned long long)t->bytes,
		    t->place == BENCH_IN ? "in" : "out of", (unsigned long long)wrong, text);
	*wrong_p += wrong;
	return 0;
}

/* These must not change: the bytes behind the result and, out of place, the input. */
static int guard_check(struct plan_rank *r, const struct bench_data *data, const struct plan_task *t, uint64_t *wrong_p)
{
	const struct bench_coll *coll = r->o->base.coll;
	uint64_t sent = t->count * bench_coll_blocks(coll, coll->send_many, r->nranks) * r->element,
	         half = PLAN_RANK_BLOCK / 2, touched = 0;
	uint64_t used = t->place == BENCH_IN ?
	    t->bytes :
	    t->count * bench_coll_blocks(coll, coll->recv_many, r->nranks) * r->element;
	int err = plan_rank_device(r, "copy", r->lib.memcpy(r->block, r->recv + used, PLAN_RANK_GUARD));

	for (int i = 0; !err && i < PLAN_RANK_GUARD; i++)
		touched += (unsigned char)r->block[i] != POISON;
	if (touched)
		tool_error("rank %d: %llu bytes: %llu bytes behind the result were written", r->rank,
		    (unsigned long long)t->bytes, (unsigned long long)touched);
	*wrong_p += touched;
	for (uint64_t first = 0; !err && t->place == BENCH_OUT && first < sent; first += half) {
		size_t n = sent - first < half ? sent - first : half;

		err = plan_rank_device(r, "copy", r->lib.memcpy(r->block, r->send + first, n));
		bench_data_input(data, r->rank, first / r->element, n / r->element, r->block + half);
		if (err || !memcmp(r->block, r->block + half, n))
			continue;
		tool_error("rank %d: %llu bytes: the input was written", r->rank, (unsigned long long)t->bytes);
		*wrong_p += 1;
		break;
	}
	return err;
}

int plan_rank_check(struct plan_rank *r, const struct plan_task *t, void *graph, uint64_t *wrong_p)
{
	int err = 0;

	for (int class = 0; !err && class < BENCH_NCLASSES; class++) {
		struct bench_data *data;

		if (!bench_data_has(r->o->dtype, class))
			continue;
		plan_rank_note(r, RANKS_CHECK);
		data = bench_data_create(r->o->dtype, r->o->redop, class, r->nranks,
		    r->o->base.seed + (t->bytes * 2 + t->place) * 2 + (uint64_t)class);
		if (!data)
			return plan_rank_device(r, "host memory", -ENOMEM);
		/* A missing result must not look right. */
		err = plan_rank_device(
		    r, "memset", r->lib.memset_async(r->recv, POISON, t->bytes + PLAN_RANK_GUARD, r->stream));
		if (!err)
			err = plan_rank_device(r, "memset", r->lib.stream_synchronize(r->stream));
		if (!err)
			err = input_write(r, data, t);
		if (!err)
			err = plan_rank_calls(r, t, graph, 1);
		if (!err)
			err = result_check(r, data, t, wrong_p);
		if (!err)
			err = guard_check(r, data, t, wrong_p);
		bench_data_destroy(data);
	}
	return err;
}

/* Counts this rank's calls that did not run the plan; with the path and the reason of one. */
static uint64_t count_other_paths(struct plan_rank *r, const char **path_p, const char **reason_p)
{
	struct shunt_counter rows[64];
	uint64_t calls = 0;
	size_t n = 0;

	if (!r->nccl.counters || r->nccl.counters(r->comm, rows, 64, &n))
		return 0;
	for (size_t i = 0; i < n && i < 64; i++)
		if (!strcmp(rows[i].op, r->o->base.coll->op) && !strstr(rows[i].path, r->o->plan->name)) {
			*path_p = rows[i].path;
			*reason_p = rows[i].reason;
			calls += rows[i].calls;
		}
	return calls;
}

int plan_rank_used(struct plan_rank *r)
{
	const char *path = "", *reason = "";
	uint64_t mine, all[RANKS_MAX];
	int err;

	mine = count_other_paths(r, &path, &reason);
	err = plan_rank_gather(r, &mine, sizeof(mine), all);
	for (int i = 0; !err && i < r->nranks; i++) {
		if (!all[i])
			continue;
		if (!r->rank)
			tool_error("the library did not run plan %s: %llu calls of rank %d took the path \"%s\"%s%s; "
			           "SHUNT_LOG=info may say why",
			    r->o->plan->name, (unsigned long long)all[i], i, mine ? path : "?", *reason ? ": " : "",
			    reason);
		err = -EPROTO;
	}
	return err;
}

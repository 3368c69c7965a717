/* SPDX-License-Identifier: MIT */
#include "tests/plan/exec_ranks.h"
#include "tests/support/test.h"
#include "base/os.h"
#include "plan/load.h"
#include "tools/common/reference.h"

#define GUARD 64

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;

/* ---- ranks */

static void *join_thread(void *arg)
{
	struct exec_rank *r = arg;
	int n = r->exec_ranks->n;

	return shunt_rendezvous_join(r->ranks.rendezvous, n, r->rank, n, NULL, NULL) ? r : NULL;
}

static void join_ranks(struct exec_ranks *f)
{
	pthread_t thread[EXEC_RANKS_MAX];
	struct shunt_id id;
	void *failed;

	shunt_random(&id, sizeof(id));
	for (int i = 0; i < f->n; i++) {
		f->rank[i].ranks = (struct shunt_ranks){ .rank = i, .nranks = f->n, .timeout_ms = 120000 };
		if (f->n > 1)
			assert_int_equal(shunt_rendezvous_bind(&id, i, &f->rank[i].ranks.rendezvous), 0);
	}
	for (int i = 0; i < f->n && f->n > 1; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, join_thread, &f->rank[i]), 0);
	for (int i = 0; i < f->n && f->n > 1; i++) {
		pthread_join(thread[i], &failed);
		assert_null(failed);
	}
}

void exec_ranks_break(struct exec_ranks *f)
{
	for (int i = 0; i < f->n; i++) /* a descriptor in a round without descriptors */
		assert_int_equal(shunt_rendezvous_allgather(&f->rank[i].ranks, NULL, 0, NULL, 0, NULL), -EINVAL);
}

void exec_ranks_start(struct exec_ranks *f, int n)
{
	memset(f, 0, sizeof(*f));
	f->n = n;
	for (int i = 0; i < n; i++) {
		struct exec_rank *r = &f->rank[i];
		struct shunt_ctrl *ctrl;
		void *host;

		r->exec_ranks = f;
		r->rank = i;
		r->device = i % 8;
		assert_int_equal(gpu->mem_alloc(r->device, sizeof(struct shunt_ctrl), &r->ctrl), 0);
		assert_int_equal(gpu->host_alloc(sizeof(*r->words), &host, &r->words_dev), 0);
		r->words = host;
		r->words->limit_ns = 20ull * 1000000000;
		memset(r->ctrl, 0, sizeof(struct shunt_ctrl));
		ctrl = r->ctrl;
		assert_int_equal(gpu->copy(r->device, &ctrl->host_ctrl, &r->words_dev, sizeof(r->words_dev)), 0);
		assert_int_equal(gpu->stream_create(r->device, &r->stream), 0);
	}
	join_ranks(f);
}

void exec_ranks_stop(struct exec_ranks *f)
{
	for (int i = 0; i < f->n; i++) {
		struct exec_rank *r = &f->rank[i];

		gpu->stream_destroy(r->device, r->stream);
		gpu->mem_free(r->ctrl);
		gpu->host_free(r->words);
		shunt_rendezvous_destroy(r->ranks.rendezvous);
	}
}

void exec_ranks_create(struct exec_ranks *f, struct shunt_plan *plan, const struct exec_options *options)
{
	for (int i = 0; i < f->n; i++) {
		struct shunt_plan_exec_config host = { .gpu = gpu,
			.device = f->rank[i].device,
			.ranks = f->rank[i].ranks,
			.ctrl = f->rank[i].ctrl,
			.process = options && options->mapped ? (uint64_t)i + 1 : 7,
			.max_blocks = options ? options->max_blocks : 0,
			.ll_format = options ? options->ll_format : SHUNT_PLAN_LL_FORMAT_LL128 };

		if (options && options->last && i == f->n - 1)
			host.gpu = options->last;
		f->rank[i].gpu = host.gpu;
		assert_int_equal(shunt_plan_exec_create(&host, plan, &f->rank[i].exec), 0);
	}
}

void exec_ranks_destroy(struct exec_ranks *f)
{
	for (int i = 0; i < f->n; i++) {
		shunt_plan_exec_destroy(f->rank[i].exec);
		f->rank[i].exec = NULL;
	}
}

struct prepare_arg {
	struct exec_rank *rank;
	uint64_t bytes;
	int err;
};

static void *prepare_thread(void *arg)
{
	struct prepare_arg *p = arg;
	const char *reason;

	p->err = shunt_plan_exec_prepare(p->rank->exec, p->bytes, &reason);
	return NULL;
}

int exec_ranks_prepare(struct exec_ranks *f, uint64_t message_bytes)
{
	struct prepare_arg p[EXEC_RANKS_MAX];
	pthread_t thread[EXEC_RANKS_MAX];

	for (int i = 0; i < f->n; i++) {
		p[i] = (struct prepare_arg){ &f->rank[i], message_bytes, 0 };
		assert_int_equal(pthread_create(&thread[i], NULL, prepare_thread, &p[i]), 0);
	}
	for (int i = 0; i < f->n; i++)
		pthread_join(thread[i], NULL);
	for (int i = 1; i < f->n; i++)
		assert_int_equal(p[i].err, p[0].err);
	return p[0].err;
}

int exec_rank_launch(const struct exec_rank *r, const struct shunt_plan_call *call)
{
	struct shunt_work work;
	int err = shunt_plan_exec_work(r->exec, call, &work);

	if (err)
		return err;
	return r->gpu->launch(r->device,
	    &(struct shunt_gpu_launch){ .kernel = work.kernel,
	        .blocks = work.blocks + (work.args.k.check.what != 0),
	        .threads = work.threads,
	        .args = &work.args,
	        .stream = call->stream });
}

/* True if a rank has given up. */
static bool wait_for_all(struct exec_ranks *f, const char *what, bool quiet)
{
	bool stuck = false;

	for (int i = 0; i < f->n; i++) {
		struct exec_rank *r = &f->rank[i];

		assert_int_equal(gpu->stream_sync(r->device, r->stream), 0);
		if (!r->words->fault.set)
			continue;
		stuck = true;
		if (!quiet)
			print_error("%s: rank %d block %u gave up on rank %d: wanted %llu, saw %llu\n", what, i,
			    r->words->fault.channel, (int)r->words->fault.peer,
			    (unsigned long long)r->words->fault.expected, (unsigned long long)r->words->fault.seen);
	}
	return stuck;
}

void exec_ranks_wait(struct exec_ranks *f, const char *what)
{
	assert_false(wait_for_all(f, what, false));
}

/* ---- plans */

char *exec_read(const char *path)
{
	FILE *file = fopen(path, "rb");
	char *text = NULL;
	size_t n = 0, room = 0, got;

	if (!file)
		return NULL;
	do {
		room = room ? 2 * room : 65536;
		text = realloc(text, room);
		got = fread(text + n, 1, room - n - 1, file);
		n += got;
	} while (got);
	fclose(file);
	text[n] = 0;
	return text;
}

struct shunt_plan *exec_load_text(const char *name, const char *text, const char *from, const char *to)
{
	struct shunt_plan *plan = NULL;
	char reason[256] = "", *out = malloc(2 * strlen(text) + 1), *w = out;
	int err;

	for (const char *p = text; *p;)
		if (from && !strncmp(p, from, strlen(from))) {
			w = stpcpy(w, to);
			p += strlen(from);
		} else {
			*w++ = *p++;
		}
	*w = 0;
	err = shunt_plan_load_buffer(name, out, (size_t)(w - out), &plan, reason, sizeof(reason));
	free(out);
	if (err)
		fail_msg("%s", reason);
	return plan;
}

struct shunt_plan *exec_load(const char *path, int *nranks_p)
{
	char *text = exec_read(path);
	struct shunt_plan *plan;

	assert_non_null(text);
	plan = exec_load_text(path, text, NULL, NULL);
	free(text);
	*nranks_p = (int)plan->nranks;
	return plan;
}

/* ---- checks */

/* Numbers whose sums or products over 16 ranks are exact in any order. */
static void fill_input(void *buf, uint64_t count, const struct exec_job *j, uint64_t *seed)
{
	static const double factors[] = { 1, -1, 2, 0.5 };
	bool f8 = j->dtype == SHUNT_F8E4M3 || j->dtype == SHUNT_F8E5M2;
	int most = f8 ? 1 : 8;

	if (j->dtype < SHUNT_F16) {
		ref_fill(buf, count, j->dtype, seed);
		return;
	}
	for (uint64_t i = 0; i < count; i++) {
		uint64_t x = ref_random(seed);
		double v = j->op == SHUNT_PROD ? factors[x % (f8 ? 2 : 4)] : (double)(x % (2 * most + 1)) - most;

		ref_from_double((char *)buf + i * shunt_dtype_bytes[j->dtype], j->dtype, v);
	}
}

static void call_sizes(const struct shunt_plan *plan, uint64_t count, uint64_t *send_p, uint64_t *recv_p)
{
	*send_p = count * shunt_plan_parts(plan->collective, SHUNT_SIDE_SEND, (int)plan->nranks);
	*recv_p = count * shunt_plan_parts(plan->collective, SHUNT_SIDE_RECV, (int)plan->nranks);
}

/* True if the side has a part for each rank. */
static bool has_each(const struct shunt_plan *plan, enum shunt_side side)
{
	return shunt_plan_parts(plan->collective, side, 2) == 2;
}

/* Send-receive: who sends to rank r follows from who puts into its output. */
static int sender_to(const struct shunt_plan *plan, uint32_t r)
{
	for (uint32_t s = 0; s < plan->nranks; s++)
		for (uint32_t b = 0; b < plan->gpus[s].nblocks; b++)
			for (uint32_t i = 0; i < plan->gpus[s].blocks[b].nops; i++) {
				const struct shunt_plan_op *op = &plan->gpus[s].blocks[b].ops[i];

				if (op->ndst && op->dst[0].place == SHUNT_PLAN_REMOTE &&
				    op->dst[0].buffer == SHUNT_PLAN_OUTPUT && op->dst[0].target == r)
					return (int)s;
			}
	fail_msg("nobody sends to rank %u", r);
	return -1;
}

static void compute_expected(const struct shunt_plan *plan, const struct exec_job *j, int r, char *const *in,
    const void *const *scalars, char *want)
{
	uint64_t part = j->count * shunt_dtype_bytes[j->dtype];
	const void *from[EXEC_RANKS_MAX];
	int n = (int)plan->nranks;

	for (int p = 0; p < n; p++) {
		from[p] = in[p] + (has_each(plan, SHUNT_SIDE_SEND) ? r * part : 0);
		if (has_each(plan, SHUNT_SIDE_RECV))
			memcpy(want + p * part, from[p], part);
	}
	if (plan->collective == SHUNT_PLAN_ALLREDUCE || plan->collective == SHUNT_PLAN_REDUCESCATTER)
		ref_allreduce(want, from, n, j->count, j->dtype, j->op, scalars);
	if (plan->collective == SHUNT_PLAN_SENDRECV)
		memcpy(want, in[sender_to(plan, (uint32_t)r)], part);
}

struct rank_buffers {
	char *memory, *send, *recv,
	    *result_copy; /* of one rank and launch; result_copy: what was there when the launch was done */
	uint64_t room, send_bytes, recv_bytes;
	char *input; /* a copy */
};

static void rank_buffers_make(
    struct rank_buffers *b, const struct shunt_plan *plan, const struct exec_job *j, const struct exec_rank *r)
{
	uint64_t esz = shunt_dtype_bytes[j->dtype], send, recv;
	void *p;

	call_sizes(plan, j->count, &send, &recv);
	b->send_bytes = send * esz;
	b->recv_bytes = recv * esz;
	b->room = 2 * (b->send_bytes + b->recv_bytes) + 8 * GUARD;
	assert_int_equal(gpu->mem_alloc(r->device, b->room, &p), 0);
	b->memory = p;
	assert_int_equal(gpu->mem_alloc(r->device, b->room, &p), 0);
	b->result_copy = p;
	memset(b->memory, 0xa5, b->room);
	memset(b->result_copy, 0, b->room);
	b->send = b->memory + GUARD + (uint64_t)j->skew * esz;
	b->recv = b->send;
	if (!j->in_place)
		b->recv += (b->send_bytes + 2 * GUARD) / 16 * 16;
	else if (shunt_plan_gathers(plan->collective))
		b->send = b->recv + (uint64_t)r->rank * b->send_bytes;
	else if (shunt_plan_scatters(plan->collective))
		b->recv = b->send + (uint64_t)r->rank * b->recv_bytes;
	b->input = malloc(b->send_bytes);
}

static void rank_buffers_free(struct rank_buffers *b)
{
	gpu->mem_free(b->memory);
	gpu->mem_free(b->result_copy);
	free(b->input);
}

/* all: of rank 0 in the same launch; those of the other ranks are `stride` apart. */
static void launch(
    const struct exec_rank *r, const struct exec_job *j, const struct rank_buffers *all, int stride, const void *scalar)
{
	const struct rank_buffers *b = &all[r->rank * stride];
	char *remote[2][EXEC_RANKS_MAX];
	struct shunt_plan_call call = { .send = b->send,
		.recv = b->recv,
		.send_bytes = b->send_bytes,
		.recv_bytes = b->recv_bytes,
		.dtype = j->dtype,
		.redop = j->op,
		.stream = r->stream };

	for (int p = 0; p < r->exec_ranks->n && j->direct; p++) {
		remote[0][p] = all[p * stride].send;
		remote[1][p] = all[p * stride].recv;
	}
	for (int i = 0; i < 2 && j->direct; i++) {
		call.remote[i] = remote[i];
		call.place[i] = (uint64_t)1 << 48 | (uint64_t)(remote[i][r->rank] - b->memory);
	}
	memcpy(&call.scalar, scalar, shunt_dtype_bytes[j->dtype]);
	assert_int_equal(exec_rank_launch(r, &call), 0);
	/* The result is taken and everything spoilt at once, whatever the other ranks still do. */
	assert_int_equal(gpu->copy_async(r->device, b->result_copy, b->memory, b->room, r->stream), 0);
	if (!j->graph)
		assert_int_equal(gpu->memset_async(r->device, b->memory, 0x5a, b->room, r->stream), 0);
}

/* True if the result and all around it are as they must be. */
static bool is_output_right(const struct exec_job *j, const struct rank_buffers *b, const char *want)
{
	const char *out = b->result_copy + (b->recv - b->memory);
	size_t first;

	if (ref_compare(out, want, b->recv_bytes / shunt_dtype_bytes[j->dtype], j->dtype, &first))
		return false;
	for (uint64_t i = 0; i < b->room; i++) {
		const char *at = b->memory + i;
		bool result = at >= b->recv && at < b->recv + b->recv_bytes,
		     input = at >= b->send && at < b->send + b->send_bytes;
		unsigned char kept = input ? (unsigned char)b->input[at - b->send] : 0xa5;

		if (!result && (unsigned char)b->result_copy[i] != kept)
			return false;
	}
	return true;
}

static void check_output(const struct shunt_plan *plan, const struct exec_job *j, int r, int time,
    const struct rank_buffers *b, const char *want)
{
	uint64_t esz = shunt_dtype_bytes[j->dtype];
	const char *out = b->result_copy + (b->recv - b->memory);
	size_t first = 0, wrong = ref_compare(out, want, b->recv_bytes / esz, j->dtype, &first);

	if (wrong)
		fail_msg("%s %s %s count %llu skew %d %s launch %d rank %d: %zu wrong, first %zu: %g, wanted %g",
		    plan->source, shunt_dtype_name(j->dtype), shunt_redop_name(j->op), (unsigned long long)j->count,
		    j->skew, j->in_place ? "in place" : "out of place", time, r, wrong, first,
		    ref_to_double(out + first * esz, j->dtype), ref_to_double(want + first * esz, j->dtype));
	for (uint64_t i = 0; i < b->room; i++) {
		const char *at = b->memory + i;
		bool result = at >= b->recv && at < b->recv + b->recv_bytes,
		     input = at >= b->send && at < b->send + b->send_bytes;

		if (!result && !input && (unsigned char)b->result_copy[i] != 0xa5)
			fail_msg("%s count %llu rank %d: wrote outside of the buffers, at %lld of the result",
			    plan->source, (unsigned long long)j->count, r, (long long)(at - b->recv));
		if (input && !result && b->result_copy[i] != b->input[at - b->send])
			fail_msg(
			    "%s count %llu rank %d: changed the input", plan->source, (unsigned long long)j->count, r);
	}
}

void exec_ranks_check(struct exec_ranks *f, const struct exec_job *j, uint64_t seed)
{
	struct shunt_plan *plan = shunt_plan_exec_plan(f->rank[0].exec);
	int n = f->n, sets = j->graph ? 1 : j->times, rounds = j->graph ? j->times : 1;
	struct rank_buffers *b = calloc((size_t)(n * sets), sizeof(*b));
	char scalars[EXEC_RANKS_MAX][8], *in[EXEC_RANKS_MAX], *want;
	const void *scalar_ptrs[EXEC_RANKS_MAX];
	void *graph[EXEC_RANKS_MAX];
	uint64_t bytes;

	assert_true(shunt_plan_message_bytes(plan->collective, n, j->count, j->dtype, &bytes));
	assert_int_equal(exec_ranks_prepare(f, bytes), 0);
	for (int r = 0; r < n; r++) {
		ref_from_double(scalars[r], j->dtype, r % 2 ? 2 : 1);
		scalar_ptrs[r] = scalars[r];
		for (int t = 0; t < sets; t++)
			rank_buffers_make(&b[r * sets + t], plan, j, &f->rank[r]);
	}
	want = malloc(b[0].room);
	for (int r = 0; r < n && j->graph; r++) {
		assert_int_equal(gpu->capture_begin(f->rank[r].device, f->rank[r].stream), 0);
		launch(&f->rank[r], j, b, 1, scalars[r]);
		assert_int_equal(gpu->capture_end(f->rank[r].device, f->rank[r].stream, &graph[r]), 0);
	}
	for (int round = 0; round < rounds; round++) {
		for (int r = 0; r < n; r++)
			for (int t = 0; t < sets; t++) {
				struct rank_buffers *x = &b[r * sets + t];

				fill_input(x->input, x->send_bytes / shunt_dtype_bytes[j->dtype], j, &seed);
				memset(x->memory, 0xa5, x->room);
				memcpy(x->send, x->input, x->send_bytes);
			}
		for (int t = 0; t < sets; t++)
			for (int r = 0; r < n; r++) {
				if (j->graph)
					assert_int_equal(
					    gpu->graph_launch(f->rank[r].device, graph[r], f->rank[r].stream), 0);
				else
					launch(&f->rank[r], j, &b[t], sets, scalars[r]);
			}
		bool stuck = wait_for_all(f, plan->source, j->wrong_p);

		if (j->wrong_p)
			*j->wrong_p |= stuck;
		else
			assert_false(stuck);
		for (int t = 0; t < sets && !stuck; t++)
			for (int r = 0; r < n; r++) {
				for (int p = 0; p < n; p++)
					in[p] = b[p * sets + t].input;
				compute_expected(plan, j, r, in, scalar_ptrs, want);
				if (!j->wrong_p)
					check_output(plan, j, r, t, &b[r * sets + t], want);
				else if (!is_output_right(j, &b[r * sets + t], want))
					*j->wrong_p = true;
			}
	}
	for (int r = 0; r < n && j->graph; r++)
		gpu->graph_destroy(f->rank[r].device, graph[r]);
	for (int i = 0; i < n * sets; i++)
		rank_buffers_free(&b[i]);
	free(want);
	free(b);
}

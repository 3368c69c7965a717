/* SPDX-License-Identifier: MIT */
/*
 * The table of operations (plan/format/ops.def) and what really happens. Each operation runs on the sim, between
 * buffers full of random bytes: it changes what its row says that it writes, and nothing else; the result depends on
 * what its row says that it reads, and on nothing else; and it signals and waits as often as its row says.
 */
#include "tests/plan/edit.h"
#include "tests/plan/exec_ranks.h"
#include "tests/plan/op_plans.h"
#include "kernels/kernel_list.h"
#include "kernels/set.h"
#include "plan/compile/program.h"

enum { UNITS = 4, CHUNK = UNITS * 16 };
static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;

/* The buffers of a rank, one after the other; packets take twice their bytes. */
enum { INPUT_AT = 0, OUTPUT_AT = OP_PLAN_INPUTS * CHUNK, SCRATCH_AT = OUTPUT_AT + OP_PLAN_OUTPUTS * CHUNK };
enum { BUFFERS = SCRATCH_AT + 2 * OP_PLAN_SCRATCH * CHUNK };
enum { ENDS = BUFFERS / CHUNK };
struct memory {
	unsigned char rank[2][BUFFERS];
};

struct effects_run {
	struct exec_ranks ranks;
	struct shunt_plan *plan;
	struct shunt_program *program[2];
	char *resources[2], *private[2]; /* private: input and output that no peer uses */
	uint64_t bytes;
	/* After a run. */
	uint64_t signals[2][2], waits[2][2], semaphore, arrivals;
};

static const struct shunt_prog_head *head_of(const struct effects_run *e, int rank)
{
	return (const struct shunt_prog_head *)e->program[rank]->bytecodes;
}

/* The address of a byte of a rank's buffers. */
static char *address(const struct effects_run *e, int rank, size_t at)
{
	const struct shunt_prog_head *h = head_of(e, rank);
	int b = at >= OUTPUT_AT;

	if (at >= SCRATCH_AT)
		return e->resources[rank] + h->scratch_at + (at - SCRATCH_AT);
	if (e->program[rank]->staging[b])
		return e->resources[rank] + h->staging_at[b] + (at - (b ? OUTPUT_AT : INPUT_AT));
	return e->private[rank] + at;
}

/* Bytes of a rank's chunk of a buffer that a plan has; scratch: packets. */
static void copy_buffers(const struct effects_run *e, struct memory *m, bool in)
{
	for (int r = 0; r < 2; r++)
		for (size_t at = 0; at < BUFFERS; at += CHUNK) {
			char *there = address(e, r, at);

			if (at >= SCRATCH_AT && !e->program[r]->packets)
				continue;
			if (in)
				memcpy(there, m->rank[r] + at, CHUNK);
			else
				memcpy(m->rank[r] + at, there, CHUNK);
		}
}

static void effects_start(struct effects_run *e, const struct op_case *c, bool ll128)
{
	json_t *json = op_case_plan(c);
	char reason[512] = "";

	memset(e, 0, sizeof(*e));
	assert_non_null(json);
	if (edit_load(json, &e->plan, reason, sizeof(reason)))
		fail_msg("%s", reason);
	json_decref(json);
	exec_ranks_start(&e->ranks, 2);
	for (int r = 0; r < 2; r++) {
		void *p;

		assert_int_equal(shunt_program_create(e->plan, (uint32_t)r, ll128, &e->program[r]), 0);
		assert_true(shunt_program_resources_bytes(e->program[r], e->plan, UNITS, &e->bytes));
		assert_int_equal(gpu->mem_alloc(r, e->bytes, &p), 0);
		e->resources[r] = p;
		assert_int_equal(gpu->mem_alloc(r, BUFFERS, &p), 0);
		e->private[r] = p;
	}
	for (int r = 0; r < 2; r++)
		shunt_program_bind(e->program[r], e->plan, UNITS, e->resources);
}

static void effects_stop(struct effects_run *e)
{
	for (int r = 0; r < 2; r++) {
		gpu->mem_free(e->resources[r]);
		gpu->mem_free(e->private[r]);
		shunt_program_destroy(e->program[r]);
	}
	exec_ranks_stop(&e->ranks);
	shunt_plan_unref(e->plan);
}

static void launch_rank(struct effects_run *e, int r)
{
	const struct shunt_program *p = e->program[r];
	struct shunt_kargs_plan a = { .k.rank = (uint16_t)r,
		.k.nranks = 2,
		.ctrl = e->ranks.rank[r].ctrl,
		.bytecodes = p->bytecodes,
		.bytecode_bytes = p->bytecode_bytes,
		.resources = e->resources[r],
		.buffer = { address(e, r, INPUT_AT), address(e, r, OUTPUT_AT) },
		.chunk = UNITS };
	unsigned shape = p->flags & SHUNT_PROG_LL128 ? SHUNT_SHAPE_plan_ll128 : SHUNT_SHAPE_plan;
	struct shunt_gpu_launch l = { .kernel = SHUNT_KERNEL(shape, 0, SHUNT_I32),
		.args = &a,
		.blocks = p->nblocks,
		.threads = 64,
		.stream = e->ranks.rank[r].stream };

	assert_true(p->bytecode_bytes <= SHUNT_PLAN_SHARED_BYTECODE);
	assert_int_equal(gpu->launch(e->ranks.rank[r].device, &l), 0);
}

/* A first launch with these buffers, and what they are afterwards. */
static void effects_launch(struct effects_run *e, struct memory *m, const char *name)
{
	for (int r = 0; r < 2; r++) {
		memset(e->resources[r], 0, e->bytes);
		*(uint64_t *)(e->resources[r] + e->program[r]->semaphores_at) = OP_PLAN_SEMAPHORE;
	}
	copy_buffers(e, m, true);
	for (int r = 0; r < 2; r++)
		launch_rank(e, r);
	exec_ranks_wait(&e->ranks, name);
	copy_buffers(e, m, false);
	for (int r = 0; r < 2; r++) {
		const struct shunt_plan_slot *slots =
		    (const struct shunt_plan_slot *)(e->resources[r] + head_of(e, r)->slots_at);

		for (int type = 0; type < 2; type++) {
			e->signals[r][type] = slots[type].signals;
			e->waits[r][type] = slots[type].waits;
		}
	}
	e->semaphore = *(uint64_t *)(e->resources[0] + e->program[0]->semaphores_at);
	e->arrivals = e->plan->gpus[0].nbarriers ? *(uint64_t *)(e->resources[0] + head_of(e, 0)->barriers_at) : 0;
}

/* ---- what the row says, in pieces of CHUNK bytes */

struct expected {
	bool read[2][ENDS], written[2][ENDS];
};

/* Notes a slice of rank 0's operation. */
static void expect_slice(bool marks[2][ENDS], unsigned kind, size_t at)
{
	unsigned place = kind & SHUNT_PLAN_SLICE_PLACE, pieces = kind & SHUNT_PLAN_SLICE_PACKETS ? 2 : 1;

	for (int r = 0; r < 2; r++)
		for (unsigned k = 0; k < pieces; k++)
			if (place == SHUNT_PLAN_SLICE_MULTICAST || (place == SHUNT_PLAN_SLICE_REMOTE) == r)
				marks[r][at / CHUNK + k] = true;
}

static void expect_effects(const struct op_case *c, struct expected *x)
{
	const struct shunt_plan_op_row *row = &shunt_plan_op_rows[c->code];
	uint16_t src = shunt_plan_op_src(row, c->type);

	memset(x, 0, sizeof(*x));
	if (row->effects & SHUNT_PLAN_REPEATS) /* its body is a copy */
		row = &shunt_plan_op_rows[SHUNT_PLAN_COPY], src = row->src;
	for (unsigned i = 0; i < op_case_nslices(src); i++) {
		unsigned kind = shunt_plan_list_kind(src, i);

		if (kind & SHUNT_PLAN_SLICE_PACKETS) { /* packed before, from input */
			expect_slice(x->read, SHUNT_PLAN_SLICE_LOCAL, (OP_PLAN_PACKED + i) * CHUNK);
			expect_slice(x->written, kind, SCRATCH_AT + 2 * i * CHUNK);
		} else {
			expect_slice(x->read, kind, INPUT_AT + i * CHUNK);
		}
	}
	for (unsigned i = 0; i < op_case_nslices(row->dst); i++) {
		unsigned kind = shunt_plan_list_kind(row->dst, i);
		bool packets = kind & SHUNT_PLAN_SLICE_PACKETS;

		expect_slice(
		    x->written, kind, packets ? SCRATCH_AT + 2 * (OP_PLAN_DST + i) * CHUNK : OUTPUT_AT + i * CHUNK);
	}
}

static void randomize(unsigned char *p, size_t n, uint32_t *seed)
{
	for (size_t i = 0; i < n; i++) {
		*seed = *seed * 1664525 + 1013904223;
		p[i] = (unsigned char)(*seed >> 24 | 0x80); /* no packet's flag */
	}
}

static void check_writes(
    const struct memory *before, const struct memory *after, const struct expected *x, const char *name)
{
	for (int r = 0; r < 2; r++)
		for (size_t k = 0; k < ENDS; k++) {
			bool changed = memcmp(before->rank[r] + k * CHUNK, after->rank[r] + k * CHUNK, CHUNK) != 0;

			if (changed && !x->written[r][k])
				fail_msg("%s: wrote to rank %d, piece %zu, which its row does not have", name, r, k);
			if (!changed && x->written[r][k])
				fail_msg("%s: did not write to rank %d, piece %zu, which its row has", name, r, k);
		}
}

/* As LL128 a slice's data fills the first half of the memory that LL takes. What is between it and the flag is kept. */
static bool same_results(
    const struct effects_run *e, const struct memory *a, const struct memory *b, const struct expected *x)
{
	bool ll128 = e->program[0]->flags & SHUNT_PROG_LL128;

	for (int r = 0; r < 2; r++)
		for (size_t k = 0; k < ENDS; k++) {
			bool kept = ll128 && k * CHUNK >= SCRATCH_AT && (k - SCRATCH_AT / CHUNK) % 2;

			if (x->written[r][k] && !kept &&
			    memcmp(a->rank[r] + k * CHUNK, b->rank[r] + k * CHUNK, CHUNK) != 0)
				return false;
		}
	return true;
}

static void check_reads(struct effects_run *e, const struct memory *before, const struct memory *after,
    const struct expected *x, const char *name)
{
	static struct memory m, was;
	uint32_t seed = 77;

	/* Everything that is not read is different, all at once. */
	m = *before;
	for (int r = 0; r < 2; r++)
		for (size_t k = 0; k < ENDS; k++)
			if (!x->read[r][k])
				randomize(m.rank[r] + k * CHUNK, CHUNK, &seed);
	was = m;
	effects_launch(e, &m, name);
	check_writes(&was, &m, x, name);
	if (!same_results(e, &m, after, x))
		fail_msg("%s: its result depends on what its row does not have as read", name);
	/* Each byte that is read counts, one of each piece of 16. */
	for (int r = 0; r < 2; r++)
		for (size_t at = 0; at < BUFFERS; at += 16) {
			if (!x->read[r][at / CHUNK])
				continue;
			m = *before;
			m.rank[r][at + at / 16 % 16] ^= 1;
			effects_launch(e, &m, name);
			if (same_results(e, &m, after, x))
				fail_msg("%s: does not read rank %d, byte %zu, which its row has", name, r, at);
		}
}

static void check_counts(const struct effects_run *e, const struct op_case *c, const char *name)
{
	unsigned effects = shunt_plan_op_rows[c->code].effects;

	for (int type = 0; type < 2; type++) {
		uint64_t here = (int)c->type == type ? OP_PLAN_IDS : 0;
		bool signals = effects & SHUNT_PLAN_SIGNALS, waits = effects & SHUNT_PLAN_WAITS;

		/* Rank 0 signals at rank 1's end, where rank 1 waits; and the other way round. */
		if (e->signals[1][type] != here * signals || e->waits[1][type] != here * signals ||
		    e->signals[0][type] != here * waits || e->waits[0][type] != here * waits)
			fail_msg("%s: type %d: signals %d and %d, waits %d and %d", name, type,
			    (int)e->signals[0][type], (int)e->signals[1][type], (int)e->waits[0][type],
			    (int)e->waits[1][type]);
	}
	if (e->semaphore != OP_PLAN_SEMAPHORE || e->arrivals != (effects & SHUNT_PLAN_SYNCS_BLOCKS ? 2 : 0))
		fail_msg("%s: semaphore %d, arrivals %d", name, (int)e->semaphore, (int)e->arrivals);
}

static void test_effects_of_each_operation_are_those_of_its_row(void **state)
{
	struct op_case c = { 0, SHUNT_PLAN_NONE + 1 };
	unsigned n = 0;

	while (op_case_next(&c))
		for (int ll128 = 0; ll128 < 2; ll128++) {
			static struct memory before, after;
			struct effects_run e;
			struct expected x;
			uint32_t seed = 5;
			char name[64];

			snprintf(name, sizeof(name), "%s of type %s%s", shunt_plan_op_name(c.code),
			    shunt_plan_channel_type_name(c.type), ll128 ? " as LL128" : "");
			effects_start(&e, &c, ll128);
			expect_effects(&c, &x);
			randomize(before.rank[0], sizeof(before), &seed);
			after = before;
			effects_launch(&e, &after, name);
			check_writes(&before, &after, &x, name);
			check_counts(&e, &c, name);
			check_reads(&e, &before, &after, &x, name);
			effects_stop(&e);
			n++;
		}
	assert_true(n > 2 * SHUNT_PLAN_NOPCODES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_effects_of_each_operation_are_those_of_its_row),
	};

	setenv("SHUNT_SIM_DEVICES", "2", 1);
	if (gpu->open(&shunt_kernels))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

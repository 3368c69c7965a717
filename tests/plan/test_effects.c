/* SPDX-License-Identifier: MIT */
/*
 * The table of operations (plan/format/op_rows.def) and what really happens. Each operation runs on the sim, between
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
		struct shunt_program_bytes bytes;
		void *p;

		assert_int_equal(shunt_program_create(e->plan, (uint32_t)r, NULL, ll128, &e->program[r]), 0);
		assert_true(shunt_program_resources_bytes(e->program[r], e->plan, UNITS, &bytes));
		e->bytes = bytes.resources;
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

TEST(test_effects_of_each_operation_are_those_of_its_row)
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

/* ---- misuse */

/* What a test of refusals works on: a right plan is made anew for each change. */
struct misuse {
	struct op_case c;
	const struct shunt_plan_op_row *row;
	char path[64], at[96]; /* of the operation, and where a refusal says that it is */
	unsigned refused;
};

struct misuse_edit {
	const char *path, *value; /* as edit_text; a path without "gpus" at its start is in the operation */
};

static void set_edit(const struct misuse *m, json_t *plan, struct misuse_edit e)
{
	char path[160];

	if (!strncmp(e.path, "gpus", 4) || !strcmp(e.path, "protocol"))
		snprintf(path, sizeof(path), "%s", e.path);
	else
		snprintf(path, sizeof(path), "%s/%s", m->path, e.path);
	edit_text(plan, path, e.value);
}

/* Expects that the plan with a change is refused with this text; in_op: it names the operation. */
static void refuse(struct misuse *m, bool in_op, struct misuse_edit e, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void refuse(struct misuse *m, bool in_op, struct misuse_edit e, const char *format, ...)
{
	json_t *plan = op_case_plan(&m->c);
	struct shunt_plan *loaded = NULL;
	char reason[1200] = "", says[512];
	va_list args;
	int err;

	va_start(args, format);
	vsnprintf(says, sizeof(says), format, args);
	va_end(args);
	set_edit(m, plan, e);
	err = edit_load(plan, &loaded, reason, sizeof(reason));
	json_decref(plan);
	if (err != -EINVAL || !strstr(reason, says) || (in_op && !strstr(reason, m->at)))
		fail_msg("%s%s, %s = %s: error %d, \"%s\" is not \"%s\"", m->path, m->at, e.path, e.value, err, reason,
		    says);
	m->refused++;
}

static unsigned chunks_of(unsigned buffer)
{
	return (const unsigned[]){ OP_PLAN_INPUTS, OP_PLAN_OUTPUTS, OP_PLAN_SCRATCH }[buffer];
}

static void refuse_slice(struct misuse *m, const char *key, uint16_t list, unsigned i, bool dst)
{
	unsigned kind = shunt_plan_list_kind(list, i), place = kind & SHUNT_PLAN_SLICE_PLACE;
	bool packets = kind & SHUNT_PLAN_SLICE_PACKETS;
	unsigned buffer = packets ? SHUNT_PLAN_SCRATCH : dst ? SHUNT_PLAN_OUTPUT : SHUNT_PLAN_INPUT;
	const char *id = place == SHUNT_PLAN_SLICE_REMOTE ? "buffer_id" : "switch_channel_id";
	char path[64];

	snprintf(path, sizeof(path), "%s/%u/index", key, i);
	refuse(m, true, (struct misuse_edit){ path, "99" },
	    "%s[%u].index 99 and size 1 reach chunk 99, expected at most %u: the %s of rank %d has %u chunks", key, i,
	    chunks_of(buffer) - 1, shunt_plan_buffer_name(buffer), place == SHUNT_PLAN_SLICE_REMOTE, chunks_of(buffer));
	snprintf(path, sizeof(path), "%s/%u/size", key, i);
	refuse(m, true, (struct misuse_edit){ path, "0" }, "%s[%u].size is 0, expected 1 to", key, i);
	if (dst || i)
		refuse(m, true, (struct misuse_edit){ path, "2" },
		    "%s[%u].size is 2, expected 1 as the operation's first has", key, i);
	snprintf(path, sizeof(path), "%s/%u/%s", key, i, place == SHUNT_PLAN_SLICE_LOCAL ? "type" : id);
	if (place == SHUNT_PLAN_SLICE_LOCAL)
		refuse(m, true, (struct misuse_edit){ path, "\"x\"" }, "%s[%u].type is \"x\", expected one of i, o, s",
		    key, i);
	else
		refuse(m, true, (struct misuse_edit){ path, "3" }, "%s[%u].%s is 3, expected 0 to 2", key, i, id);
	if (!packets)
		return;
	refuse(m, true, (struct misuse_edit){ path, place == SHUNT_PLAN_SLICE_LOCAL ? "\"i\"" : "0" },
	    "%s[%u] is in input, expected scratch: it holds packets", key, i);
	refuse(m, false, (struct misuse_edit){ "protocol", "\"Simple\"" },
	    "holds packets, expected none unless protocol is \"LL\"");
	/* Nobody packs them. */
	if (!dst && !i)
		refuse(m, false, (struct misuse_edit){ "gpus/0/threadblocks/0/ops/0/name", "\"copy\"" },
		    "waits for packets in its scratch, chunk 0, expected a block that gives it: none does");
}

static void refuse_list(struct misuse *m, const char *key, uint16_t list, bool dst)
{
	unsigned least = shunt_plan_list_least(list), n = op_case_nslices(list);
	bool more = shunt_plan_list_more(list);
	char path[64];

	refuse(m, true, (struct misuse_edit){ key, "" }, "%s is missing", key);
	refuse(m, true, (struct misuse_edit){ key, "[]" }, "%s has 0 entries, expected %u%s", key, least,
	    more ? " or more" : "");
	snprintf(path, sizeof(path), "%s/%u", key, n);
	if (!more)
		refuse(m, true, (struct misuse_edit){ path, "{\"type\":\"s\",\"index\":0,\"size\":1}" },
		    "%s has %u entries, expected %u", key, n + 1, n);
	snprintf(path, sizeof(path), "%s/%u", key, n - 1);
	if (m->row->effects & SHUNT_PLAN_PAIRWISE)
		refuse(m, true, (struct misuse_edit){ path, "" },
		    "dst_buff has %d entries, expected %d as src_buff has", dst ? 1 : 2, dst ? 2 : 1);
	for (unsigned i = 0; i < n; i++)
		refuse_slice(m, key, list, i, dst);
}

static void refuse_type(struct misuse *m)
{
	static const char *const expected[] = { [1 << SHUNT_PLAN_MEMORY] = "\"memory\"",
		[1 << SHUNT_PLAN_PORT] = "\"port\"",
		[1 << SHUNT_PLAN_MEMORY | 1 << SHUNT_PLAN_PORT] = "\"memory\" or \"port\"",
		[1 << SHUNT_PLAN_SWITCH] = "\"switch\"" };

	refuse(m, true, (struct misuse_edit){ "channel_type", "" }, "channel_type is missing");
	refuse(m, true, (struct misuse_edit){ "channel_type", "\"none\"" }, "channel_type is \"none\", expected %s",
	    expected[m->row->types]);
}

static void refuse_ids(struct misuse *m)
{
	bool semaphores = m->row->ids == SHUNT_PLAN_IDS_SEMAPHORES;
	const char *key = semaphores ? "semaphore_ids" : "channel_ids", *type = shunt_plan_channel_type_name(m->c.type);
	char path[64];

	refuse(m, true, (struct misuse_edit){ key, "" }, "%s is missing", key);
	refuse(m, true, (struct misuse_edit){ key, "[]" }, "%s is empty, expected at least one number", key);
	refuse(m, true, (struct misuse_edit){ key, "[0,1]" }, "%s[1] is 1, expected 0", key);
	if (m->row->ids == SHUNT_PLAN_IDS_PORTS)
		refuse(m, true, (struct misuse_edit){ key, "[0,0,0]" },
		    "channel_ids has 3 entries, expected 2 as dst_buff has");
	if (m->row->effects & (SHUNT_PLAN_SIGNALS | SHUNT_PLAN_WAITS)) {
		snprintf(path, sizeof(path), "gpus/1/channels/%d/connected_to/0", m->c.type);
		refuse(m, true, (struct misuse_edit){ path, "1" },
		    "channel_ids[0] is %s channel 0 of the rank, expected one to which rank 1 has an other end: it "
		    "lists too "
		    "few to rank 0",
		    type);
	}
}

/* The other block or rank does not do its part. */
static void refuse_alone(struct misuse *m)
{
	const char *type = shunt_plan_channel_type_name(m->c.type);
	unsigned effects = m->row->effects;

	if (effects & SHUNT_PLAN_SIGNALS)
		refuse(m, false, (struct misuse_edit){ "gpus/1/threadblocks/0/ops", "[]" },
		    "%s channel 0: rank 0 signals 2 times on its channel 0, expected 0, as often as waits are made "
		    "here",
		    type);
	if (effects & SHUNT_PLAN_WAITS)
		refuse(m, true, (struct misuse_edit){ "gpus/1/threadblocks/0/ops", "[]" },
		    "waits for signal 1 on its %s channel 0, from channel 0 of rank 1, expected a block that gives it",
		    type);
	if (effects & (SHUNT_PLAN_ACQUIRES | SHUNT_PLAN_RELEASES))
		refuse(m, false, (struct misuse_edit){ "gpus/0/threadblocks/1/ops", "[]" },
		    "semaphores[0] ends as %d, expected %d, its init_value",
		    OP_PLAN_SEMAPHORE + (effects & SHUNT_PLAN_ACQUIRES ? -OP_PLAN_IDS : OP_PLAN_IDS),
		    OP_PLAN_SEMAPHORE);
	if (effects & SHUNT_PLAN_ACQUIRES)
		refuse(m, true, (struct misuse_edit){ "semaphore_ids", "[0,0,0,0,0,0]" },
		    "waits for semaphore 0, expected a block that gives it");
	if (effects & SHUNT_PLAN_SYNCS_BLOCKS) {
		refuse(m, true, (struct misuse_edit){ "gpus/0/threadblocks/1/ops", "[]" },
		    "num_threadblocks is 2, expected 1, the number of blocks that use barrier_id 0");
		refuse(m, false, (struct misuse_edit){ "num_threadblocks", "1" },
		    "num_threadblocks is 2, expected 1 as in block 0, operation 0, for barrier_id 0");
		refuse(
		    m, true, (struct misuse_edit){ "num_threadblocks", "3" }, "num_threadblocks is 3, expected 1 to 2");
	}
}

/* Keys of single operations. */
static void refuse_own_keys(struct misuse *m)
{
	if (m->row->effects & SHUNT_PLAN_REPEATS) {
		refuse(m, true, (struct misuse_edit){ "iter_context/unit_size", "24" },
		    "iter_context.unit_size is 24, expected a multiple of buffer_alignment, 16");
		refuse(m, true, (struct misuse_edit){ "iter_context/num_chunks", "0" },
		    "iter_context.num_chunks is 0, expected 1 to");
		refuse(m, true, (struct misuse_edit){ "ops", "[]" }, "ops is empty, expected at least one operation");
		refuse(m, false, (struct misuse_edit){ "ops/0/name", "\"pipeline\"" },
		    "operation 0.0 (pipeline): name is \"pipeline\", expected none within a pipeline");
	}
	if (m->row->effects & SHUNT_PLAN_OWN_KEYS) {
		refuse(m, true, (struct misuse_edit){ "buffer_type", "\"o\"" },
		    "buffer_type is \"o\", expected \"i\" as the switch channel has");
		refuse(m, true, (struct misuse_edit){ "buffer_offset", "99" },
		    "buffer_offset.index 99 and size 1 reach chunk 99");
		refuse(m, true, (struct misuse_edit){ "dst_chunk/index", "99" },
		    "dst_chunk.index 99 and size 1 reach chunk 99");
		refuse(m, true, (struct misuse_edit){ "dst_chunk/size", "2" }, "dst_chunk.size is 2, expected 1");
		refuse(m, true, (struct misuse_edit){ "dst_chunk/rank", "1" }, "dst_chunk.rank is 1, expected 0");
		refuse(m, true, (struct misuse_edit){ "channel_ids", "[0,0]" },
		    "channel_ids has 2 entries, expected 1, a switch channel of the block, which has 3");
		refuse(m, true, (struct misuse_edit){ "channel_ids", "[3]" }, "channel_ids[0] is 3, expected 0 to 2");
	}
}

TEST(test_effects_misuse_of_each_operation_is_refused_with_its_reason)
{
	struct op_case c = { 0, SHUNT_PLAN_NONE + 1 };
	unsigned refused = 0;

	while (op_case_next(&c)) {
		const struct shunt_plan_op_row *row = &shunt_plan_op_rows[c.code];
		struct misuse m = { .c = c, .row = row };
		bool ports = row->ids == SHUNT_PLAN_IDS_PORTS && c.type != SHUNT_PLAN_PORT;

		snprintf(m.path, sizeof(m.path), "%s", op_case_path(&c));
		snprintf(m.at, sizeof(m.at), "plan: rank 0, block 0, operation %s (%s): ", strrchr(m.path, '/') + 1,
		    row->name);
		if (row->types)
			refuse_type(&m);
		if (row->src && !(row->effects & SHUNT_PLAN_OWN_KEYS)) {
			refuse_list(&m, "src_buff", shunt_plan_op_src(row, c.type), false);
			refuse_list(&m, "dst_buff", row->dst, true);
		}
		if (row->ids != SHUNT_PLAN_IDS_NONE && !ports)
			refuse_ids(&m);
		if (row->effects & SHUNT_PLAN_REDUCES)
			refuse(&m, true, (struct misuse_edit){ "reduce_op", "\"mul\"" },
			    "reduce_op is \"mul\", expected one of sum, prod, max, min, avg");
		refuse(&m, true, (struct misuse_edit){ "tbg_info", "{\"tb_id\":1,\"tbg_size\":1}" }, "%s",
		    row->src ? "tbg_info.tb_id is 1, expected 0" :
		               "tbg_info is there, expected none: the operation has no slices to share");
		refuse_alone(&m);
		refuse_own_keys(&m);
		refused += m.refused;
	}
	assert_true(refused > 300);
}

TEST(test_effects_of_each_operation_are_documented)
{
	char *doc = exec_read(getenv("DOC")), name[32], *table, *end;

	assert_non_null(doc);
	table = strstr(doc, "\n### Operations\n");
	assert_non_null(table);
	end = strstr(table + 1, "\n## ");
	assert_non_null(end);
	*end = 0;
	for (int code = 0; code < SHUNT_PLAN_NOPCODES; code++) {
		bool found = false;

		snprintf(name, sizeof(name), "`%s`", shunt_plan_op_rows[code].name);
		/* In the first column. */
		for (const char *row = strstr(table, "\n| `"); row && !found; row = strstr(row + 1, "\n| `")) {
			const char *at = strstr(row, name);

			found = at && at < strchr(row + 3, '|');
		}
		if (!found)
			fail_msg("docs/plans.md has no row for %s", name);
	}
	free(doc);
}

TESTS_BEGIN
{
	setenv("SHUNT_SIM_DEVICES", "2", 1);
	if (gpu->open(&shunt_kernels))
		exit(1);
}

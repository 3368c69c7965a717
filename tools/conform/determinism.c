/* SPDX-License-Identifier: MIT */
/*
 * Determinism: the same elements in calls of other sizes, at other offsets, in place, single or fused in a group, by
 * another collective, repeated, in a graph. Results of Shunt's own kernels must have the same bits everywhere and on
 * all ranks. Differences of other libraries are a remark, also where Shunt forwards a call. The results' hash is
 * printed for comparisons between runs.
 */
#include <string.h>
#include "tools/conform/conform.h"

enum { COMMON = 700, RUNS = 3 };

struct row {
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	const char *name;
	bool scalar_on_device;
};

#define ROWS(type, text) \
	{ type, SHUNT_SUM, text ".sum" }, { type, SHUNT_PROD, text ".prod" }, { type, SHUNT_AVG, text ".avg" }, \
	    { type, SHUNT_PREMUL, text ".premul" }
static const struct row rows[] = { ROWS(SHUNT_F16, "float16"), ROWS(SHUNT_F32, "float32"), ROWS(SHUNT_F64, "float64"),
	ROWS(SHUNT_BF16, "bfloat16"), ROWS(SHUNT_F8E4M3, "float8e4m3"), ROWS(SHUNT_F8E5M2, "float8e5m2"),
	{ SHUNT_F32, SHUNT_PREMUL, "float32.premul_device", true },
	{ SHUNT_BF16, SHUNT_PREMUL, "bfloat16.premul_device", true }, { SHUNT_I32, SHUNT_SUM, "int32.sum" } };
enum { NROWS = sizeof(rows) / sizeof(rows[0]) };

/* A call with the common elements at element `at` of `count`. */
struct common {
	enum bench_coll_id coll;
	int root;
	size_t count, at;
	bool in_place;
	int misalign;
};

static void common_calls(struct conform_build *b, const struct common *calls, size_t n)
{
	for (const struct common *c = calls; c < calls + n; c++) {
		struct conform_step *step;

		b->place = c->in_place ? CONFORM_IN : CONFORM_OUT;
		b->misalign = c->misalign;
		step = conform_call(b, c->coll, c->root, c->count);
		step->common = COMMON;
		step->common_at = c->at;
	}
}

/* c->count: of the largest message. */
static void program_build(struct conform_build *b, const struct conform_case *c)
{
	size_t large = c->count, medium = c->count / 3;
	int last = b->nranks - 1;

	const struct common alone[] = {
		{ BENCH_COLL_ALLREDUCE, 0, COMMON, 0, false, 0 },
		{ BENCH_COLL_ALLREDUCE, 0, COMMON, 0, true, 1 },
		{ BENCH_COLL_ALLREDUCE, 0, 5000, 1234, false, 0 },
		{ BENCH_COLL_ALLREDUCE, 0, medium, medium - COMMON, true, 0 },
		{ BENCH_COLL_ALLREDUCE, 0, large, large / 2 + 77, false, -1 },
		{ BENCH_COLL_REDUCESCATTER, 0, COMMON, 0, false, 0 },
		{ BENCH_COLL_REDUCESCATTER, 0, large / 9, large / 9 - COMMON - 1, false, 1 },
		{ BENCH_COLL_REDUCE, 0, COMMON, 0, false, 0 },
		{ BENCH_COLL_REDUCE, last, large / 6, 999, true, 0 },
	};
	const struct common grouped[] = {
		{ BENCH_COLL_ALLREDUCE, 0, 2000, 1300, false, 0 },
		{ BENCH_COLL_ALLREDUCE, 0, COMMON, 0, false, 3 },
		{ BENCH_COLL_ALLREDUCE, 0, medium, 3, true, 0 },
		{ BENCH_COLL_REDUCESCATTER, 0, 1000, 1, false, 0 },
		{ BENCH_COLL_REDUCE, last, COMMON, 0, false, 0 },
		{ BENCH_COLL_REDUCE, 0, large / 9, 300, false, 0 },
	};

	common_calls(b, alone, sizeof(alone) / sizeof(alone[0]));
	conform_group_start(b);
	common_calls(b, grouped, sizeof(grouped) / sizeof(grouped[0]));
	conform_group_end(b);
}

/* large: for float32 and bfloat16; medium: for the other types. */
static void variants_add(struct conform_list *list, const char *family, size_t large, size_t medium)
{
	for (int i = 0; i < NROWS; i++) {
		struct conform_case c = { .kind = CONFORM_DETERMINISM,
			.row = i,
			.build = program_build,
			.data = CONFORM_WIDE,
			.dtype = rows[i].dtype,
			.redop = rows[i].redop,
			.count = rows[i].dtype == SHUNT_F32 || rows[i].dtype == SHUNT_BF16 ? large : medium,
			.scalar_on_device = rows[i].scalar_on_device };

		snprintf(c.name, sizeof(c.name), "%s.%s", family, rows[i].name);
		conform_case_add(list, &c);
	}
}

void conform_determinism_add(struct conform_list *list)
{
	variants_add(list, "determinism", 66000, 21000);
	if (list->o->full || list->o->only)
		variants_add(list, "determinism_large", 4000000, 4000000);
}

/* True: Shunt does the call itself, and sums by rank. */
static bool step_is_ours(const struct conform_side *s, const struct conform_step *step)
{
	const char *path = NULL;

	return s->nccl.path_of &&
	    !s->nccl.path_of(
	        s->comm[CONFORM_WORLD], bench_colls[step->coll].op, step->count, step->dtype, step->redop, &path) &&
	    strcmp(path, "nccl") && strcmp(path, "islands");
}

static uint64_t bits_hash(const unsigned char *p, size_t bytes)
{
	uint64_t h = 14695981039346656037ull;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 1099511628211ull;
	return h ? h : 1;
}

/* The results of the runs of one library. */
struct seen {
	const struct conform_side *side;
	const unsigned char *first[2]; /* first results for the common elements, of Shunt and of another library */
	unsigned char bits[2][COMMON * 8];
	size_t others, other; /* calls of another library; those with different bits */
};

/* Compares the results of rank's run with the first ones. */
static void results_compare(struct seen *seen, int rank, const struct conform_program *program,
    const struct conform_memory *m, const char *how, struct conform_outcome *out)
{
	size_t bytes = COMMON * shunt_dtype_bytes[program->steps[0].dtype];

	for (size_t i = 0; i < program->n; i++) {
		const struct conform_step *step = &program->steps[i];
		const struct bench_coll *coll = &bench_colls[step->coll];
		const unsigned char *bits = m->got.recv + step->recv + step->common_at * shunt_dtype_bytes[step->dtype];
		int ours;

		if (!conform_step_is_call(step) || !bench_coll_has_recv(coll, rank, step->root))
			continue;
		ours = step_is_ours(seen->side, step);
		seen->others += !ours;
		if (!seen->first[ours]) {
			memcpy(seen->bits[ours], bits, bytes);
			seen->first[ours] = seen->bits[ours];
		}
		if (!memcmp(bits, seen->first[ours], bytes))
			continue;
		if (ours)
			conform_outcome_set(out, CONFORM_FAIL,
			    "%s: step %zu (%s of %zu %s), %s: other bits than the same elements gave before",
			    seen->side->nccl.label, i, coll->name, step->count, shunt_dtype_name(step->dtype), how);
		seen->other++;
	}
}

void conform_determinism_run(struct conform_rank *r, const struct conform_fixture *fixture, struct conform_memory *m,
    struct conform_outcome *out)
{
	static const char *const variants[RUNS] = { "eager", "a second time", "in a graph" };
	const struct conform_program *program = &fixture->program[r->rank];
	size_t bytes = COMMON * shunt_dtype_bytes[fixture->c->dtype];

	for (int lib = 0; lib < r->o->ranks.nlibs; lib++) {
		const struct conform_side *s = &r->side[lib];
		struct seen seen = { .side = s };

		for (int run = 0; run < RUNS; run++) {
			conform_rank_progress(r, RANKS_CHECK, lib);
			if (!conform_rank_upload(r, lib, fixture, out))
				return;
			conform_rank_run(r, lib, fixture, run == RUNS - 1, out);
			if (!conform_rank_download(r, lib, fixture, m, out))
				return;
			results_compare(&seen, r->rank, program, m, variants[run], out);
			/* The results must be correct, too. The check changes the downloaded bytes. */
			conform_rank_check(r, lib, fixture, m, out);
		}
		for (int i = 1; i >= 0 && !out->bits[lib]; i--)
			if (seen.first[i])
				out->bits[lib] = bits_hash(seen.first[i], bytes);
		if (seen.other && !out->status && !*out->text)
			snprintf(out->text, sizeof(out->text),
			    "%s: other bits than the same elements gave before in %zu of %zu results", s->nccl.label,
			    seen.other, seen.others);
	}
}

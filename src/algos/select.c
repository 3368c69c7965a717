/* SPDX-License-Identifier: MIT */
/* Which path a call takes, and which kernel. */
#include <stdio.h>
#include <string.h>
#include "algos/algos.h"
#include "algos/tuning.h"
#include "core/config.h"

/*
 * Parts that are no multiple of 16 bytes begin anywhere, and the kernels load and store them element by element. Up to
 * this size that matters little; above it NCCL gets them. The tables speak of other parts. Not measured.
 */
#define ODD_PART ((uint64_t)1 << 20)

const struct shunt_algo *shunt_algo_row(size_t i)
{
	static const struct shunt_algo *const files[] = { shunt_lines_algos, shunt_exchange_algos, shunt_copies_algos,
		shunt_pulls_algos };

	for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++)
		for (const struct shunt_algo *a = files[f]; a->name; a++)
			if (!i--)
				return a;
	return NULL;
}

const struct shunt_algo *shunt_algo_find(enum shunt_kind kind, const char *name)
{
	const struct shunt_algo *a;

	for (size_t i = 0; (a = shunt_algo_row(i)); i++)
		if (a->kind == kind && !strcmp(a->name, name))
			return a;
	return NULL;
}

static enum shunt_dtype unsigned_of(enum shunt_dtype dtype)
{
	return dtype == SHUNT_I8 || dtype == SHUNT_I32 || dtype == SHUNT_I64 ? dtype + 1 : dtype;
}

#define HOT_BIT(shape, op, opn, type, typen) | 1u << typen
/* Types whose sums have kernels for few ranks. */
static const unsigned hot_sums = 0 SHUNT_HOT_ROWS(HOT_BIT, any);
#undef HOT_BIT

bool shunt_algo_hot(enum shunt_redop redop, enum shunt_dtype dtype)
{
	return (redop == SHUNT_SUM || redop == SHUNT_AVG || redop == SHUNT_PREMUL) && (hot_sums >> dtype & 1);
}

unsigned shunt_algo_kernel(
    const struct shunt_algo *algo, enum shunt_kind kind, int nranks, enum shunt_redop redop, enum shunt_dtype dtype)
{
	static const enum shunt_kop kops[SHUNT_NREDOPS] = {
		[SHUNT_SUM] = SHUNT_KOP_SUM,
		[SHUNT_AVG] = SHUNT_KOP_SUM,
		[SHUNT_PREMUL] = SHUNT_KOP_SUM,
		[SHUNT_PROD] = SHUNT_KOP_PROD,
		[SHUNT_MAX] = SHUNT_KOP_EXT,
		[SHUNT_MIN] = SHUNT_KOP_EXT,
	};
	/* Kernels that copy have one row per element size, under the number of a type of that size. */
	static const enum shunt_dtype copy_of[9] = {
		[1] = SHUNT_U8, [2] = SHUNT_F16, [4] = SHUNT_U32, [8] = SHUNT_U64
	};
	if (!shunt_kind_reduces(kind))
		return SHUNT_KERNEL(algo->shapes[2], SHUNT_KOP_COPY, copy_of[shunt_dtype_bytes[dtype]]);

	enum shunt_kop op = kops[redop];

	return SHUNT_KERNEL(algo->shapes[shunt_algo_hot(redop, dtype) ? (nranks > 2) + (nranks > 4) : 2], op,
	    op == SHUNT_KOP_EXT ? dtype : unsigned_of(dtype));
}

/* Kernel index, flags and factor that type and operator ask for. */
static void type_op(const struct shunt_scope *scope, const struct shunt_coll *coll, struct shunt_pick *pick)
{
	bool is_int = coll->dtype < SHUNT_F16;

	pick->kernel = shunt_algo_kernel(pick->algo, coll->kind, scope->nranks, coll->redop, coll->dtype);
	pick->flags = 0;
	pick->scalar = 0;
	if (!shunt_kind_reduces(coll->kind))
		return;
	switch (coll->redop) {
	case SHUNT_MIN:
		pick->flags = SHUNT_K_MIN;
		break;
	case SHUNT_PREMUL:
		pick->flags = SHUNT_K_PREMUL | (coll->scalar_on_device ? SHUNT_K_SCALAR_ON_DEVICE : 0);
		pick->scalar = coll->scalar;
		break;
	case SHUNT_AVG:
		if (is_int) {
			pick->flags = SHUNT_K_DIVIDE | (coll->dtype != unsigned_of(coll->dtype) ? SHUNT_K_SIGNED : 0);
		} else {
			pick->flags = SHUNT_K_PREMUL;
			pick->scalar = shunt_dtype_reciprocal(coll->dtype, scope->nranks);
		}
		break;
	default:
		break;
	}
}

/* The two ends of a message must come to one answer. */
static enum shunt_kind table_kind(enum shunt_kind kind)
{
	return kind == SHUNT_RECV ? SHUNT_SEND : kind;
}

/* Sums that are to have our order. */
static bool holds(const struct shunt_scope *scope, enum shunt_kind kind)
{
	return scope->deterministic && shunt_kind_reduces(kind);
}

/* Is no size declined? */
static bool keeps(const struct shunt_scope *scope, enum shunt_kind kind)
{
	return scope->standalone || holds(scope, kind);
}

/*
 * Why the kind is NCCL's altogether. Who chooses NCCL's algorithm for the order of its sums gets that from ours, too.
 */
static enum shunt_why why_nccl(const struct shunt_scope *scope, enum shunt_kind kind)
{
	enum shunt_why why = scope->standalone ? SHUNT_WHY_OURS : shunt_config_why_nccl(kind);

	return why == SHUNT_WHY_NCCL_ENV && holds(scope, kind) ? SHUNT_WHY_OURS : why;
}

bool shunt_select_plans(const struct shunt_scope *scope, enum shunt_kind kind)
{
	return !holds(scope, kind) && !why_nccl(scope, kind);
}

/* A rule that names an algorithm for windows speaks of calls in windows only. */
static bool forced(const struct shunt_scope *scope, enum shunt_kind kind, uint64_t bytes,
    const struct shunt_algo **algo_p, struct shunt_geometry *g)
{
	if (!shunt_forced_find(kind, bytes, algo_p, g))
		return false;
	if (!*algo_p || (*algo_p)->fuse != SHUNT_FUSE_WINDOWS || scope->windows)
		return true;
	*g = (struct shunt_geometry){ 0 };
	return false;
}

/* *table_p: whose row it is. */
static const struct shunt_tuning_row *find_row(
    const struct shunt_scope *scope, enum shunt_kind kind, uint64_t bytes, const struct shunt_tuning **table_p)
{
	*table_p = scope->tuning;
	return scope->tuning ? shunt_tuning_row(scope->tuning, kind, bytes) :
	                       shunt_tuning_find(scope, kind, bytes, table_p);
}

static bool odd_parts(const struct shunt_scope *scope, enum shunt_kind kind, uint64_t bytes)
{
	return bytes > ODD_PART && bytes % 16 && !keeps(scope, kind) && shunt_kind_has_parts(kind);
}

/* The algorithm, or NULL and why not. */
static const struct shunt_algo *choose(const struct shunt_scope *scope, enum shunt_kind kind, uint64_t bytes,
    struct shunt_geometry *g, enum shunt_why *why_p)
{
	const struct shunt_tuning_row *row;
	const struct shunt_tuning *table;
	const struct shunt_algo *algo;

	*g = (struct shunt_geometry){ 0 };
	*why_p = why_nccl(scope, kind);
	if (*why_p)
		return NULL;
	if (forced(scope, kind, bytes, &algo, g)) {
		*why_p = SHUNT_WHY_FORCED;
		return algo;
	}
	if (scope->windows && (algo = shunt_tuning_in_windows(scope, kind, bytes)))
		return algo;
	row = find_row(scope, kind, bytes, &table);
	if (!row || (row->forward && !keeps(scope, kind))) {
		*why_p = row ? SHUNT_WHY_SIZE : SHUNT_WHY_KIND;
		return NULL;
	}
	if (odd_parts(scope, kind, bytes)) {
		*why_p = SHUNT_WHY_ODD;
		return NULL;
	}
	*g = row->geometry;
	return row->algo;
}

bool shunt_select(
    const struct shunt_scope *scope, const struct shunt_coll *coll, struct shunt_pick *pick_p, enum shunt_why *why_p)
{
	uint64_t bytes = shunt_coll_bytes(coll);
	struct shunt_geometry geometry = { 0 };
	const struct shunt_algo *algo;

	if (scope->nranks == 1) {
		*why_p = scope->standalone ? SHUNT_WHY_OURS : SHUNT_WHY_ONE_RANK;
		algo = scope->standalone ? &shunt_local_algo : NULL;
	} else {
		algo = choose(scope, table_kind(coll->kind), bytes, &geometry, why_p);
	}
	if (!algo)
		return false;
	pick_p->algo = algo;
	pick_p->geometry = geometry;
	type_op(scope, coll, pick_p);
	*why_p = SHUNT_WHY_OURS;
	return true;
}

const char *shunt_select_name(const struct shunt_scope *scope, enum shunt_kind kind, enum shunt_dtype dtype,
    enum shunt_redop redop, uint64_t bytes, enum shunt_why *why_p)
{
	struct shunt_coll coll = {
		.kind = kind, .dtype = dtype, .redop = redop, .count = bytes / shunt_dtype_bytes[dtype]
	};
	struct shunt_pick pick;

	return shunt_select(scope, &coll, &pick, why_p) ? pick.algo->name : "nccl";
}

/* Of a kind's rows: a file's table has the built-in one's for kinds that the file does not speak of. */
static void say_table(const struct shunt_scope *scope, const struct shunt_tuning *table, enum shunt_kind kind,
    char *text, size_t text_bytes)
{
	if (!table->builtin && !(table->own >> kind & 1))
		table = shunt_tuning_builtin(table->machine.sim, table->machine.cc, table->machine.nranks);
	snprintf(text, text_bytes, "%s%s", table->source,
	    table->builtin && scope->cc && scope->cc != table->machine.cc ? ", an estimate for this generation" : "");
}

void shunt_select_source(const struct shunt_scope *scope, enum shunt_kind kind, enum shunt_dtype dtype, uint64_t bytes,
    char *text, size_t text_bytes)
{
	const struct shunt_tuning *table = NULL;
	struct shunt_geometry g = { 0 };
	const struct shunt_algo *algo;

	kind = table_kind(kind);
	bytes = bytes / shunt_dtype_bytes[dtype] * shunt_dtype_bytes[dtype];
	snprintf(text, text_bytes, "no table");
	if (scope->nranks == 1)
		snprintf(text, text_bytes, "one rank by itself");
	else if (why_nccl(scope, kind))
		snprintf(text, text_bytes, "%s",
		    why_nccl(scope, kind) == SHUNT_WHY_FORCED ? "SHUNT_FORCE_NCCL" : "NCCL_ALGO or NCCL_PROTO");
	else if (forced(scope, kind, bytes, &algo, &g))
		snprintf(text, text_bytes, "SHUNT_ALGO");
	else if (scope->windows && shunt_tuning_in_windows(scope, kind, bytes))
		snprintf(text, text_bytes, "%s",
		    scope->no_sms && !shunt_kind_reduces(kind) ?
		        "CTAPolicy zero" :
		        scope->nranks == 2 || scope->nranks == 4 ?
		        "built-in, for windows, measured on H200" :
		        "built-in, for windows, estimated from 2 and 4 ranks of H200");
	else if (odd_parts(scope, kind, bytes))
		snprintf(text, text_bytes, "built-in, not measured");
	else if (find_row(scope, kind, bytes, &table))
		say_table(scope, table, kind, text, text_bytes);
}

void shunt_select_borders(
    const struct shunt_scope *scope, enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx)
{
	const struct shunt_tuning *table;

	kind = table_kind(kind);
	shunt_forced_borders(kind, add, ctx);
	if (!find_row(scope, kind, 0, &table))
		return;
	for (unsigned i = table->first[kind]; i < table->first[kind + 1]; i++)
		if (table->rows[i].upto != UINT64_MAX)
			add(ctx, table->rows[i].upto + 1);
}

void shunt_select_check(void)
{
	const struct shunt_algo *algo;
	struct shunt_geometry g;

	shunt_forced_find(SHUNT_ALLREDUCE, 0, &algo, &g);
	shunt_tuning_files();
}

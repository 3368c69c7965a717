/* SPDX-License-Identifier: MIT */
/* The path and the kernel of a call. */
#include <stdio.h>
#include <string.h>
#include "algos/algos.h"
#include "algos/plugins.h"
#include "algos/select/forced.h"
#include "algos/select/tuning.h"
#include "base/config.h"

/*
 * Parts that are no multiple of 16 bytes begin anywhere, and the kernels load and store them element by element. Up to
 * this size that matters little; above it NCCL gets them. The tables were measured with other parts. Not measured.
 */
#define MAX_UNALIGNED_PART ((uint64_t)1 << 20)

/* The two ends of a message must come to the same answer. */
static enum shunt_kind table_kind(enum shunt_kind kind)
{
	return kind == SHUNT_RECV ? SHUNT_SEND : kind;
}

/* True: sums must have Shunt's fixed order. */
static bool fixes_order(const struct shunt_sel_key *sel_key, enum shunt_kind kind)
{
	return sel_key->deterministic && shunt_kind_reduces(kind);
}

/* True: no size is declined. */
static bool never_declines(const struct shunt_sel_key *sel_key, enum shunt_kind kind)
{
	return sel_key->takes_all || fixes_order(sel_key, kind);
}

/* Why NCCL gets all calls of the kind; SHUNT_REASON_NONE: it does not. */
static enum shunt_reason nccl_reason(const struct shunt_sel_key *sel_key, enum shunt_kind kind)
{
	return sel_key->takes_all ? SHUNT_REASON_NONE : shunt_config_nccl_reason(kind);
}

bool shunt_select_plans(const struct shunt_sel_key *sel_key, enum shunt_kind kind)
{
	return !sel_key->staged && !fixes_order(sel_key, kind) && !nccl_reason(sel_key, kind);
}

/*
 * A named algorithm for windows holds only for calls in windows, one for several hosts only for communicators over
 * several hosts, one for a single host only for the others, a plug-in only for what it takes, and each only on the
 * links that it is right on.
 */
static bool holds(const struct shunt_sel *sel, const struct shunt_coll *coll, const struct shunt_algo *algo)
{
	return algo->links >> shunt_topology_within(sel->key->topology) & 1 &&
	    algo->over_islands == shunt_topology_is_split(sel->key->topology) &&
	    (!algo->over_islands || shunt_tuning_serves_islands(sel->key, algo->kind)) &&
	    (algo->fuse != SHUNT_FUSE_SYMMEM || sel->symmem) &&
	    (!algo->by_parts || shunt_islands_fit(sel->key, coll)) &&
	    (!algo->copies || algo->fuse == SHUNT_FUSE_SYMMEM || sel->key->ce_shared) &&
	    (!algo->plugin || shunt_plugin_fits(sel->key, coll, algo));
}

/* kind, bytes: the call's, as tables have them. */
static bool forced_algo(const struct shunt_sel *sel, const struct shunt_coll *coll, enum shunt_kind kind,
    uint64_t bytes, const struct shunt_algo **algo_p, struct shunt_geometry *g)
{
	if (!shunt_forced_find(kind, bytes, algo_p, g))
		return false;
	if (!*algo_p || holds(sel, coll, *algo_p))
		return true;
	*g = (struct shunt_geometry){ 0 };
	return false;
}

/* *table_p: the row's table. */
static const struct shunt_tuning_row *find_row(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes, const struct shunt_tuning **table_p)
{
	*table_p = sel_key->tuning;
	return sel_key->tuning ? shunt_tuning_row(sel_key->tuning, kind, bytes) :
	                         shunt_tuning_find(sel_key, kind, bytes, table_p);
}

static bool unaligned_parts(const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes)
{
	return bytes > MAX_UNALIGNED_PART && bytes % 16 && !never_declines(sel_key, kind) && shunt_kind_has_parts(kind);
}

/* True: NCCL is the faster one at this size for calls in windows. *file_p: says the tuning file. */
static bool nccl_in_windows(const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes, bool *file_p)
{
	*file_p = false;
	return !never_declines(sel_key, kind) && bytes >= shunt_tuning_windows_from(sel_key, kind, file_p);
}

/* The same as choose_algo, over several hosts. */
static const struct shunt_algo *choose_over_islands(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes, enum shunt_reason *reason_p)
{
	const struct shunt_algo *algo;
	enum shunt_tuning_side side;

	*reason_p = SHUNT_REASON_HOSTS;
	if (!shunt_tuning_serves_islands(sel_key, kind))
		return NULL;
	side = shunt_tuning_over_islands(sel_key, kind, bytes, &algo);
	if (side == SHUNT_TUNING_NCCLS)
		*reason_p = SHUNT_REASON_SIZE;
	return side == SHUNT_TUNING_OURS || never_declines(sel_key, kind) ? algo : NULL;
}

/*
 * The size from which calls that Shunt takes go by steps among some ranks: measured among 4 H200 that used NVLink in
 * pairs and the host's memory between them (docs/links.md). An all-gather of less is faster in one hop.
 */
static uint64_t by_parts_from(enum shunt_kind kind)
{
	return kind == SHUNT_ALLREDUCE ? 128u << 10 : kind == SHUNT_ALLGATHER ? 512u << 10 : UINT64_MAX;
}

/* True: the result depends on the order of the inputs, which steps change. */
static bool depends_on_order(const struct shunt_coll *coll)
{
	return shunt_kind_reduces(coll->kind) && shunt_dtype_is_float(coll->dtype) && coll->redop != SHUNT_MIN &&
	    coll->redop != SHUNT_MAX;
}

/*
 * True: such a call may take steps. Without NCCL sums are by rank at every size; in front of it larger ones are in its
 * order anyway.
 */
static bool may_go_by_parts(const struct shunt_sel_key *sel_key, const struct shunt_coll *coll)
{
	return shunt_islands_fit(sel_key, coll) && !(depends_on_order(coll) && never_declines(sel_key, coll->kind));
}

/*
 * Bytes of a part from which copy engines go through shared memory where the SMs are to be left alone. In front of NCCL
 * where they were faster than NCCL's SMs between two H200 (docs/kernels/staged.md); alone, where pieces are long enough
 * to pay for their barriers.
 */
static uint64_t ce_shared_from(const struct shunt_sel_key *sel_key, enum shunt_kind kind)
{
	if (!sel_key->ce_shared || !shunt_algo_row_find(kind, "ce_shared"))
		return UINT64_MAX;
	if (never_declines(sel_key, kind))
		return (uint64_t)1 << 20;
	return sel_key->nranks == 2 && (kind == SHUNT_ALLGATHER || kind == SHUNT_ALLTOALL) ? (uint64_t)8 << 20 :
	                                                                                     UINT64_MAX;
}

/*
 * Where some pair has no NVLink: *algo_p is what goes before tables, copy engines for CTAPolicy zero, or steps among
 * some ranks where no file has measured them and the row leaves the call to Shunt; else NULL, and the row counts that
 * this returns. A file's row with such steps counts for calls that can take them; for others the built-in table does.
 */
__attribute__((cold, noinline)) static const struct shunt_tuning_row *without_nvlink(
    const struct shunt_sel_key *sel_key, const struct shunt_coll *coll, uint64_t bytes,
    const struct shunt_tuning_row *row, const struct shunt_algo **algo_p)
{
	*algo_p = NULL;
	if (sel_key->ce_shared && shunt_coll_no_sms(sel_key, coll) && bytes >= ce_shared_from(sel_key, coll->kind)) {
		*algo_p = shunt_algo_row_find(coll->kind, "ce_shared");
		return row;
	}
	if (row && row->algo->by_parts && !may_go_by_parts(sel_key, coll))
		row = shunt_tuning_row(shunt_tuning_builtin_of(sel_key), row->kind, bytes);
	if (row && (!row->forward || never_declines(sel_key, row->kind)) && sel_key->parts &&
	    !(sel_key->by_link && sel_key->by_link->own >> row->kind & 1) && bytes >= by_parts_from(coll->kind) &&
	    may_go_by_parts(sel_key, coll))
		*algo_p = shunt_algo_row_find(coll->kind, "islands");
	return row;
}

/* The algorithm, or NULL and the reason. */
static const struct shunt_algo *choose_algo(
    const struct shunt_sel *sel, const struct shunt_coll *coll, struct shunt_geometry *g, enum shunt_reason *reason_p)
{
	const struct shunt_sel_key *sel_key = sel->key;
	enum shunt_kind kind = table_kind(coll->kind);
	uint64_t bytes = shunt_coll_bytes(coll);
	const struct shunt_tuning_row *row;
	const struct shunt_tuning *table;
	const struct shunt_algo *algo;
	bool file;

	*g = (struct shunt_geometry){ 0 };
	*reason_p = nccl_reason(sel_key, kind);
	if (*reason_p)
		return NULL;
	if (forced_algo(sel, coll, kind, bytes, &algo, g)) {
		*reason_p = SHUNT_REASON_FORCED;
		return algo;
	}
	if (shunt_topology_is_split(sel_key->topology))
		return choose_over_islands(sel_key, kind, bytes, reason_p);
	if (sel->symmem && (algo = shunt_tuning_symmem(sel_key->nranks, sel->no_sms, kind, bytes)))
		return algo;
	if (sel->symmem && nccl_in_windows(sel_key, kind, bytes, &file)) {
		*reason_p = SHUNT_REASON_WINDOWS;
		return NULL;
	}
	row = find_row(sel_key, kind, bytes, &table);
	if (!sel_key->tuning && sel_key->staged) {
		const struct shunt_algo *first; /* its address is taken, so that of `algo` is not */

		row = without_nvlink(sel_key, coll, bytes, row, &first);
		if (first)
			return first;
	}
	if (row && row->algo->plugin && !shunt_plugin_fits(sel_key, coll, row->algo)) { /* as if it were not there */
		table = shunt_tuning_builtin_of(sel_key);
		row = table ? shunt_tuning_row(table, kind, bytes) : NULL;
	}
	if (!row || (row->forward && !never_declines(sel_key, kind))) {
		*reason_p = row ? SHUNT_REASON_SIZE : SHUNT_REASON_KIND;
		return NULL;
	}
	if (unaligned_parts(sel_key, kind, bytes)) {
		*reason_p = SHUNT_REASON_UNALIGNED;
		return NULL;
	}
	*g = row->geometry;
	return row->algo;
}

/* The algorithm that has kernels for formats, if `algo` has none. algo NULL: NCCL would get the call, and must not. */
static const struct shunt_algo *format_algo(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, const struct shunt_algo *algo)
{
	if (algo && (algo->over_islands || (algo->shapes[2] == SHUNT_SHAPE_simple8 && !algo->uses)))
		return algo;
	if (!shunt_topology_is_split(sel_key->topology))
		return sel_key->nranks == 1 ? algo : shunt_algo_row_find(kind, "simple");
	return shunt_tuning_serves_islands(sel_key, kind) ? shunt_algo_over_islands(kind) : NULL;
}

static bool has_format(const struct shunt_coll *coll)
{
	return __builtin_expect(shunt_dtype_is_format(coll->dtype), false);
}

bool shunt_select(const struct shunt_sel *sel, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	const struct shunt_sel_key *sel_key = sel->key;
	enum shunt_reason reason;

	if (sel_key->nranks == 1) {
		decision->geometry = (struct shunt_geometry){ 0 };
		decision->reason = SHUNT_REASON_ONE_RANK;
		decision->algo = sel_key->takes_all ? &shunt_local_algo : NULL;
	} else if (coll->algo && !nccl_reason(sel_key, coll->kind) &&
	    shunt_select_path(sel, coll, &(struct shunt_path){ .algo = coll->algo }, decision)) {
		return true;
	} else if (coll->algo && coll->only_algo) {
		decision->algo = NULL;
		decision->reason = SHUNT_REASON_CONFIG;
	} else {
		decision->algo = choose_algo(sel, coll, &decision->geometry, &reason);
		decision->reason = (uint8_t)reason;
	}
	if (has_format(coll))
		decision->algo = format_algo(sel_key, coll->kind, decision->algo);
	/* Before the set-up nobody knows the links. */
	if (decision->algo && !(decision->algo->links >> shunt_topology_within(sel_key->topology) & 1) &&
	    !sel_key->early) {
		decision->algo = NULL;
		decision->reason = SHUNT_REASON_LINK;
	}
	if (!decision->algo)
		return false;
	decision->reason = SHUNT_REASON_NONE;
	shunt_algo_set_kernel(decision, coll, sel_key->nranks);
	return true;
}

bool shunt_select_path(const struct shunt_sel *sel, const struct shunt_coll *coll, const struct shunt_path *path,
    struct shunt_decision *decision)
{
	if (!path->algo || !holds(sel, coll, path->algo))
		return false;
	decision->algo = has_format(coll) ? format_algo(sel->key, coll->kind, path->algo) : path->algo;
	decision->geometry = path->geometry;
	decision->reason = SHUNT_REASON_NONE;
	shunt_algo_set_kernel(decision, coll, sel->key->nranks);
	return true;
}

bool shunt_select_wants_plans(void)
{
	const struct shunt_tuning_set *set = shunt_tuning_files();

	for (size_t i = 0; i < set->n; i++)
		for (size_t k = 0; k < set->tables[i]->nrows; k++)
			if (set->tables[i]->rows[k].algo->planned)
				return true;
	return shunt_forced_plans();
}

/* Alone on its host, a rank is on a rail with all others; but for a message no other rank makes a call. */
static bool table_wants_pairs(const struct shunt_tuning *t)
{
	for (size_t k = 0; k < t->nrows; k++)
		if (shunt_algo_needs_pairs(t->rows[k].algo) && !t->rows[k].forward &&
		    (shunt_kind_is_p2p(t->rows[k].kind) || t->machine.nhosts < t->machine.nranks))
			return true;
	return false;
}

bool shunt_select_wants_pairs(void)
{
	const struct shunt_tuning_set *set = shunt_tuning_files();

	for (size_t i = 0; i < set->n; i++)
		if (table_wants_pairs(set->tables[i]))
			return true;
	return shunt_forced_pairs();
}

const struct shunt_algo *shunt_select_unplanned(const struct shunt_algo *algo)
{
	return shunt_algo_over_islands(algo->kind);
}

const char *shunt_select_name(const struct shunt_sel *sel, enum shunt_kind kind, enum shunt_dtype dtype,
    enum shunt_redop redop, uint64_t bytes, enum shunt_reason *reason_p)
{
	struct shunt_coll coll = {
		.kind = kind, .dtype = dtype, .redop = redop, .count = bytes / shunt_dtype_bytes[dtype]
	};
	struct shunt_decision decision;

	shunt_select(sel, &coll, &decision);
	*reason_p = (enum shunt_reason)decision.reason;
	return decision.algo ? decision.algo->name : "nccl";
}

/* The source of a kind's rows. In a file's table, kinds that the file does not have come from the built-in table. */
static void describe_table(const struct shunt_sel_key *sel_key, const struct shunt_tuning *table, enum shunt_kind kind,
    char *text, size_t text_bytes)
{
	if (!table->builtin && !(table->own >> kind & 1))
		table = shunt_tuning_builtin_of(sel_key);
	snprintf(text, text_bytes, "%s%s%s", table->builtin ? "" : "tuned here, ", table->source,
	    table->builtin && !sel_key->staged && sel_key->cc && sel_key->cc != table->machine.cc ?
	        ", an estimate for this generation" :
	        "");
}

void shunt_select_source(const struct shunt_sel *sel, enum shunt_kind kind, enum shunt_dtype dtype, uint64_t bytes,
    char *text, size_t text_bytes)
{
	const struct shunt_sel_key *sel_key = sel->key;
	const struct shunt_tuning *table = NULL;
	struct shunt_geometry g = { 0 };
	struct shunt_decision decision;
	const struct shunt_algo *algo;
	bool file;
	struct shunt_coll coll;

	kind = table_kind(kind);
	bytes = bytes / shunt_dtype_bytes[dtype] * shunt_dtype_bytes[dtype];
	coll = (struct shunt_coll){ .kind = kind, .dtype = dtype, .count = bytes / shunt_dtype_bytes[dtype] };
	snprintf(text, text_bytes, "no table");
	if (sel_key->nranks == 1)
		snprintf(text, text_bytes, "one rank by itself");
	else if (nccl_reason(sel_key, kind))
		snprintf(text, text_bytes, "%s",
		    nccl_reason(sel_key, kind) == SHUNT_REASON_FORCED ? "SHUNT_FORCE_NCCL" : "NCCL_ALGO or NCCL_PROTO");
	else if (forced_algo(sel, &coll, table_kind(kind), shunt_coll_bytes(&coll), &algo, &g))
		snprintf(text, text_bytes, "SHUNT_ALGO");
	else if (shunt_topology_is_split(sel_key->topology) && sel_key->tuning && sel_key->tuning->own >> kind & 1)
		snprintf(text, text_bytes, "tuned here, %s", sel_key->tuning->source);
	else if (shunt_topology_is_split(sel_key->topology))
		snprintf(text, text_bytes, "built-in, for %s",
		    shunt_tuning_over_islands(sel_key, kind, bytes, &algo) == SHUNT_TUNING_UNMEASURED ?
		        "several hosts, not measured" :
		        sel_key->sim ? "the sim" :
		                       "such hosts, measured on H200 over loopback");
	else if (sel->symmem && shunt_tuning_symmem(sel_key->nranks, sel->no_sms, kind, bytes))
		snprintf(text, text_bytes, "%s",
		    sel->no_sms && !shunt_kind_reduces(kind) ?
		        "CTAPolicy zero" :
		        sel_key->nranks == 2 || sel_key->nranks == 4 ?
		        "built-in, for windows, measured on H200" :
		        "built-in, for windows, estimated from 2 and 4 ranks of H200");
	else if (sel->symmem && nccl_in_windows(sel_key, kind, bytes, &file))
		snprintf(text, text_bytes, "%s%s",
		    file ? "tuned here, " : "built-in, for NCCL with NVLink multicast, estimated",
		    file && sel_key->tuning ? sel_key->tuning->source : "");
	else if (unaligned_parts(sel_key, kind, bytes))
		snprintf(text, text_bytes, "built-in, not measured");
	else if (sel_key->ce_shared && shunt_select(sel, &coll, &decision) && decision.algo->copies)
		snprintf(text, text_bytes, "CTAPolicy zero");
	else if (sel_key->parts && !(sel_key->by_link && sel_key->by_link->own >> kind & 1) &&
	    shunt_select(sel, &coll, &decision) && decision.algo->by_parts)
		snprintf(text, text_bytes, "built-in, for islands, estimated");
	else if (find_row(sel_key, kind, bytes, &table))
		describe_table(sel_key, table, kind, text, text_bytes);
}

void shunt_select_crossovers(
    const struct shunt_sel *sel, enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx)
{
	const struct shunt_sel_key *sel_key = sel->key;
	const struct shunt_tuning *table;
	uint64_t from;
	bool file;

	kind = table_kind(kind);
	shunt_forced_crossovers(kind, add, ctx);
	from = sel->symmem ? shunt_tuning_windows_from(sel_key, kind, &file) : UINT64_MAX;
	if (from != UINT64_MAX)
		add(ctx, from);
	if (shunt_topology_is_split(sel_key->topology) && !(sel_key->tuning && sel_key->tuning->own >> kind & 1)) {
		if (!sel_key->takes_all)
			shunt_tuning_islands_crossovers(sel_key, kind, add, ctx);
		return;
	}
	if (ce_shared_from(sel_key, kind) != UINT64_MAX)
		add(ctx, ce_shared_from(sel_key, kind));
	if (sel_key->parts && by_parts_from(kind) != UINT64_MAX)
		add(ctx, by_parts_from(kind));
	if (!find_row(sel_key, kind, 0, &table))
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

/* SPDX-License-Identifier: MIT */
/* shunt info select: which path a call takes, and where that is written. */
#include <jansson.h>
#include "tools/common/libc.h"
#include "algos/algos.h"
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/log.h"
#include "plan/plan_registry.h"
#include "shim/nccl/abi.h"
#include "transport/net/net.h"
#include "transport/net/providers.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"
#include "tools/common/where.h"
#include "tools/info/info.h"

static const char *kind_at(int i)
{
	return i < SHUNT_NKINDS ? shunt_kind_name(i) : NULL;
}

static const char *redop_at(int i)
{
	return i < SHUNT_NREDOPS ? shunt_redop_name(i) : NULL;
}

struct select_query {
	struct shunt_sel_key sel_key;
	struct shunt_sel sel; /* of this key */
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	struct shunt_plan_set *plans; /* to be dropped */
	struct shunt_topology at;
	struct shunt_part parts[SHUNT_PARTS];
	json_t *rows; /* --json; else NULL */
};

/* The reason why such a communicator forwards all calls, or NULL. */
static const char *comm_reason(const struct select_query *q)
{
	if (!q->sel_key.takes_all && shunt_nccl_env()->launch_order_implicit)
		return "NCCL_LAUNCH_ORDER_IMPLICIT has NCCL put the launches of all communicators in order";
	if (shunt_topology_is_split(&q->at))
		return q->sel_key.nranks > (int)SHUNT_NET_MAX_RANKS ? "more than 64 ranks" : NULL;
	return q->sel_key.nranks > SHUNT_MAX_RANKS ? "more than 8 ranks" : NULL;
}

/* The plan for a call of `bytes` bytes, or NULL. planned: a rule or a table wants one, also one that runs by name. */
static const struct shunt_plan *plan_select(const struct select_query *q, uint64_t bytes, bool planned)
{
	struct shunt_plan_query query = {
		.kind = q->kind, .dtype = q->dtype, .redop = q->redop, .count = bytes / shunt_dtype_bytes[q->dtype]
	};
	const struct shunt_plan *plan;

	if (!q->plans || q->sel_key.nranks == 1 || !shunt_select_plans(&q->sel_key, q->kind))
		return NULL;
	if (planned)
		plan = shunt_plan_set_any(q->plans, &query);
	else if (shunt_plan_set_choose(q->plans, &query, &plan) != SHUNT_PLAN_CHOICE_PLAN)
		plan = NULL;
	if (!plan)
		return NULL;
	/* The plan would be refused, and the call would run without it. */
	return q->sel_key.max_ctas && plan->max_blocks > (unsigned)q->sel_key.max_ctas ? NULL : plan;
}

struct selection {
	const char *name, *reason; /* the path; the reason why it is not ours, "" if it is */
	char source[300];
	bool kernel; /* of an algorithm, whose blocks can be told */
};

/* The algorithm is a plan, or what runs without one. */
static void planned_make(const struct select_query *q, uint64_t bytes, struct selection *a)
{
	const struct shunt_algo *algo = shunt_algo_find(q->kind, a->name);
	const struct shunt_plan *plan;
	char by[sizeof(a->source)];

	if (!algo || !algo->planned)
		return;
	plan = plan_select(q, bytes, true);
	memcpy(by, a->source, sizeof(by));
	a->kernel = false;
	a->name = plan ? plan->name : shunt_select_unplanned(algo)->name;
	if (plan)
		snprintf(a->source, sizeof(a->source), "plan, %.150s, by %.120s", plan->source, by);
	else
		snprintf(a->source, sizeof(a->source), "no plan fits, wanted by %.250s", by);
}

static void selection_make(const struct select_query *q, uint64_t bytes, struct selection *a)
{
	const struct shunt_plan *plan = comm_reason(q) ? NULL : plan_select(q, bytes, false);
	enum shunt_reason reason = SHUNT_REASON_NONE;

	a->reason = "";
	a->kernel = false;
	if (comm_reason(q)) {
		a->name = q->sel_key.takes_all ? "none" : "nccl";
		a->reason = comm_reason(q);
		snprintf(a->source, sizeof(a->source), "%s",
		    q->sel_key.takes_all ? "there is no such communicator" : "the whole communicator");
	} else if (plan) {
		a->name = plan->name;
		snprintf(a->source, sizeof(a->source), "plan, %s", plan->source);
	} else {
		a->name = shunt_select_name(&q->sel, q->kind, q->dtype, q->redop, bytes, &reason);
		a->reason = shunt_reason_name(reason);
		a->kernel = !reason;
		shunt_select_source(&q->sel, q->kind, q->dtype, bytes, a->source, sizeof(a->source));
		planned_make(q, bytes, a);
	}
}

static bool selection_equal(const struct selection *a, const struct selection *b)
{
	return !strcmp(a->name, b->name) && !strcmp(a->reason, b->reason) && !strcmp(a->source, b->source);
}

/*
 * The first size in (lo, hi] whose decision differs from that of lo, which is `was`; the decision of hi differs from
 * it.
 */
static uint64_t boundary_find(
    const struct select_query *q, const struct selection *was, uint64_t lo, uint64_t hi, uint64_t step)
{
	while (hi - lo > step) {
		/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every type has a size */
		uint64_t mid = lo + (hi - lo) / step / 2 * step;
		struct selection now;

		selection_make(q, mid, &now);
		if (selection_equal(&now, was))
			lo = mid;
		else
			hi = mid;
	}
	return hi;
}

/* Sizes at which the decision may change. */
struct size_points {
	uint64_t step, *at;
	size_t n, cap;
	bool failed; /* out of memory */
};

#define MAX_BYTES ((uint64_t)1 << 60)

/* Adds a size at which a range begins or that follows one. */
static void size_point_add(void *ctx, uint64_t size)
{
	struct size_points *p = ctx;

	if (size > MAX_BYTES)
		return;
	if (p->n == p->cap) {
		size_t cap = p->cap ? p->cap * 2 : 256;
		uint64_t *more = reallocarray(p->at, cap, sizeof(*more));

		if (!more) {
			p->failed = true;
			return;
		}
		p->at = more;
		p->cap = cap;
	}
	p->at[p->n++] = (size + p->step - 1) / p->step * p->step;
}

static void plan_size_points_add(const struct select_query *q, struct size_points *p)
{
	const struct shunt_plan *plan;
	uint64_t parts;

	for (size_t i = 0; q->plans && (plan = shunt_plan_set_at(q->plans, i)); i++) {
		/* A plan's sizes are those of the whole message; a rank's part may be smaller. */
		if (!shunt_plan_message_bytes(plan->collective, q->sel_key.nranks, 1, SHUNT_U8, &parts))
			continue;
		size_point_add(p, plan->min_bytes / parts + (plan->min_bytes % parts != 0));
		size_point_add(p, plan->max_bytes / parts + 1);
	}
}

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

#define LARGE_BYTES ((uint64_t)1 << 30) /* stands for all sizes of a range without an end */

/*
 * The rest of a line: the blocks of the smallest and the largest size. With --json the row, to: 0 for all sizes after
 * it.
 */
static void selection_show(const struct select_query *q, const struct selection *is, uint64_t from, uint64_t to)
{
	uint64_t last = to ? to : from > LARGE_BYTES ? from : LARGE_BYTES;
	unsigned least = 0, most = 0;

	if (is->kernel) {
		least = shunt_select_blocks(&q->sel, q->kind, q->dtype, q->redop, from);
		most = shunt_select_blocks(&q->sel, q->kind, q->dtype, q->redop, last);
	}
	if (q->rows) {
		json_array_append_new(q->rows,
		    json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "from", (json_int_t)from, "to",
		        to ? json_integer((json_int_t)to) : json_null(), "path", json_string_nocheck(is->name), "why",
		        tool_json_text(is->reason), "source", json_string_nocheck(is->source), "min_blocks",
		        most ? json_integer(least) : json_null(), "max_blocks",
		        most ? json_integer(most) : json_null()));
		return;
	}
	if (most && least != most)
		printf("  %u to %u blocks", least, most);
	else if (most)
		printf("  %u block%s", most, most == 1 ? "" : "s");
	putchar('\n');
}

static void range_print(const struct select_query *q, const struct selection *is, uint64_t from, uint64_t to)
{
	char a[24], b[24];

	if (!q->rows)
		printf("%10s ... %-10s %s%s%s  (%s)", tool_format_size(from, a), to ? tool_format_size(to, b) : "",
		    is->name, *is->reason ? ": " : "", is->reason, is->source);
	selection_show(q, is, from, to);
}

/* All ends of ranges are points; a search between powers of two finds the other changes. */
static int ranges_print(const struct select_query *q)
{
	/* Parts that are not multiples of 16 bytes get a decision of their own (algos/select/select.c). */
	struct size_points p = { .step = shunt_kind_has_parts(q->kind) ? 16 : shunt_dtype_bytes[q->dtype] };
	uint64_t from = p.step, last = from;
	struct selection is, now;

	shunt_select_crossovers(&q->sel, q->kind, size_point_add, &p);
	plan_size_points_add(q, &p);
	for (int shift = 0; shift < 41; shift++)
		size_point_add(&p, 1ull << shift);
	if (p.failed) {
		free(p.at);
		tool_error("out of memory");
		return TOOL_FAIL;
	}
	qsort(p.at, p.n, sizeof(*p.at), by_size);
	selection_make(q, from, &is);
	for (size_t i = 0; i < p.n; i++) {
		if (p.at[i] <= last)
			continue;
		for (selection_make(q, p.at[i], &now); !selection_equal(&now, &is); selection_make(q, from, &is)) {
			uint64_t change = boundary_find(q, &is, last, p.at[i], p.step);

			range_print(q, &is, from, change - p.step);
			from = last = change;
		}
		last = p.at[i];
	}
	range_print(q, &is, from, 0);
	free(p.at);
	return TOOL_OK;
}

/* The tables of a communicator of this number of ranks here: of the first device, and of the tuning files. */
static void tables_find(struct select_query *q, const struct tool_lib *lib, bool forced_mode)
{
	struct shunt_machine m = { .nranks = q->sel_key.nranks,
		.nhosts = shunt_topology_is_split(&q->at) ? q->at.nislands : 0 };
	unsigned nets = shunt_topology_is_split(&q->at) ? shunt_net_usable() : 0;

	if (!info_machine(lib, &m))
		return;
	if (forced_mode && !m.cc) /* as if this host had GPUs */
		return;
	q->sel_key.cc = (uint16_t)m.cc;
	q->sel_key.nvls = q->sel_key.nvls || (!q->sel_key.takes_all && m.nvls);
	q->sel_key.nvls = q->sel_key.nvls && !shunt_topology_is_split(&q->at); /* no windows over hosts */
	m.nvls = q->sel_key.nvls;
	if (nets)
		q->sel_key.net = shunt_net_providers()[__builtin_ctz(nets)]->name;
	snprintf(m.net, sizeof(m.net), "%s", nets ? q->sel_key.net : "");
	shunt_machine_join(&m, &q->at);
	q->sel_key.tuning = shunt_tuning_match(shunt_tuning_files(), &m, q->sel_key.takes_all, true);
}

enum { MODE_HERE, MODE_OVERLAY, MODE_STANDALONE };

struct select_opts {
	struct select_query query;
	const char *json;
	unsigned ranks, hosts, locals, cc; /* 0: not given */
	int mode;
};

static int mode_apply(void *opts, const struct option_row *row, const char *text)
{
	(void)text;
	((struct select_opts *)opts)->mode = strcmp(row->name, "overlay") ? MODE_STANDALONE : MODE_OVERLAY;
	return 0;
}

#define AT(field) .at = offsetof(struct select_opts, field)
static const struct option_row select_rows[] = {
	{ "ranks", 'n', OPTION_NUMBER, "N", AT(ranks), 1, 1u << 20, .help = "ranks of the communicator" },
	{ "hosts", 0, OPTION_NUMBER, "N", AT(hosts), 2, SHUNT_NET_MAX_RANKS,
	    .help = "over so many hosts, with as many ranks each; a tuning file of the provider that is usable here" },
	{ "local", 0, OPTION_NUMBER, "N", AT(locals), 1, SHUNT_MAX_RANKS,
	    .help = "ranks of each host, in place of --ranks" },
	{ "op", 0, OPTION_WORD, "OP", AT(query.kind), .name_at = kind_at,
	    .help = "allreduce (default), reduce, broadcast, allgather, ..." },
	{ "dtype", 0, OPTION_WORD, "TYPE", AT(query.dtype), .find = tool_dtype_find, .name_at = tool_dtype_at,
	    .help = "float32 (default), float16, bfloat16, int8, ..." },
	{ "redop", 0, OPTION_WORD, "OP", AT(query.redop), .name_at = redop_at,
	    .help = "sum (default), prod, max, min, avg" },
	{ "windows", 0, OPTION_FLAG, AT(query.sel.symmem),
	    .help = "as if the buffers were registered as symmetric memory" },
	{ "nvls", 0, OPTION_FLAG, AT(query.sel_key.nvls),
	    .help = "as if NCCL used NVLink multicast (default: as here)" },
	{ "cc", 0, OPTION_NUMBER, "N", AT(cc), 10, 9999,
	    .help = "as on GPUs of compute capability N / 10 (default: as here, else 90); takes no tuning file" },
	{ "overlay", 0, OPTION_CALL, .call = mode_apply,
	    .help = "as if a real NCCL were there, on GPUs (default: as here)" },
	{ "standalone", 0, OPTION_CALL, .call = mode_apply, .help = "as if not, on GPUs" },
	{ "json", 0, OPTION_TEXT, "FILE", AT(json), .help = "write the answer there, and print nothing" },
	{ .type = OPTION_END },
};
const struct option_table info_select_options = {
	"usage: shunt info select --ranks N [options] [SIZE...]\n"
	"       shunt info select --hosts N --local N [options] [SIZE...]\n\n"
	"Which path a call takes, for each SIZE in bytes or over all sizes, and where that is written: a plan's file, "
	"SHUNT_ALGO,\n"
	"a tuning file (`shunt tune`), or the built-in table. All ranks are on one host, or, with --hosts, on "
	"several.\n"
	"Sizes are bytes of `count` elements: of one rank's part for allgather, reducescatter, alltoall, gather and\n"
	"scatter (what `shunt bench` shows, divided by the ranks), else of the message. So they are in SHUNT_ALGO and\n"
	"tuning files, and a rule of SHUNT_ALGO holds for from <= size < to.\n\n",
	select_rows, "Exit status: 0; 1 if the library cannot be opened or used; 2 for a wrong option.\n"
};
#undef AT

/* Checks that the sizes can be read. 0, or an exit status after a message. */
static int sizes_check(int n, char **sizes)
{
	uint64_t bytes;

	for (int i = 0; i < n; i++)
		if (tool_parse_size(sizes[i], 1, UINT64_MAX, &bytes))
			return tool_usage_error("size: %s", tool_refused(sizes[i]));
	return TOOL_OK;
}

/* The plans for the ranks, over hosts with the default ones. */
static struct shunt_plan_set *plans_get(const struct select_query *q)
{
	const struct shunt_plan_placement placement = { q->at.island_of, q->sel_key.pairs ? NULL : q->at.local_of };

	if (!shunt_topology_is_split(&q->at))
		return shunt_plan_set_get(q->sel_key.nranks, q->sel_key.nranks);
	shunt_plan_defaults_load(q->at.nislands, q->at.rails);
	return shunt_plan_set_get_over(q->sel_key.nranks, q->at.rails, &placement, false);
}

/* What joins ranks without NVLink, as they agree in their set-up where NVLink joins all GPUs. */
static void links_take(struct select_query *q)
{
	uint8_t claims[SHUNT_TOPOLOGY_RANKS][SHUNT_TOPOLOGY_LOCAL];
	struct shunt_topology at;
	int a, b;

	if (shunt_topology_is_split(&q->at) || q->sel_key.nranks > SHUNT_MAX_RANKS)
		return;
	shunt_topology_join(&at, q->sel_key.nranks, 0);
	for (a = 0; a < at.nranks; a++)
		for (b = 0; b < at.nranks; b++)
			claims[a][b] = shunt_nccl_env_forbids_p2p() ?
			    SHUNT_LINK_SHARED :
			    (uint8_t)shunt_link_rules_find(shunt_config()->links, a, b);
	if (!shunt_topology_agree(&at, claims, ~0u, &a, &b) || at.within <= SHUNT_LINK_NVLINK)
		return;
	q->at = at;
	q->sel_key.staged = true;
	q->sel_key.ce_shared = q->sel_key.no_sms && at.within == SHUNT_LINK_SHARED;
}

/* Fills in the rest of the query: from the options, and from this machine. 0, or an exit status after a message. */
static int query_complete(struct select_opts *o)
{
	struct select_query *q = &o->query;
	struct tool_lib lib;
	int version;

	q->sel.key = &q->sel_key;
	if (!q->at.nislands)
		q->at = shunt_topology_one_island;
	q->sel_key.topology = &q->at;
	q->sel_key.nranks = (int)o->ranks;
	q->sel_key.max_ctas = (int)shunt_nccl_env_max_ctas();
	q->sel_key.no_sms = q->sel.no_sms = shunt_nccl_env()->cta_policy >= 2;
	q->sel_key.takes_all = o->mode == MODE_STANDALONE;
	q->sel_key.deterministic = shunt_config()->deterministic;
	links_take(q);
	/*
	 * Missing GPUs are expected here. The command's own copy of the code warns about files and variables; it reads
	 * its log level here, before that.
	 */
	shunt_log_enabled(SHUNT_LOGLEVEL_WARN, SHUNT_LOG_ENV);
	setenv("SHUNT_LOG", "error", 0);
	if (o->mode == MODE_HERE) {
		if (tool_lib_open(&lib))
			return TOOL_FAIL;
		__typeof__(ncclGetVersion) *get_version =
		    (__typeof__(ncclGetVersion) *)dlsym(lib.handle, "ncclGetVersion");
		if (get_version)
			get_version(&version);
		q->sel_key.takes_all = !lib.real_nccl_path();
		const char *device = q->sel_key.takes_all ? lib.device_kind() : NULL;
		q->sel_key.sim = device && !strcmp(device, "sim");
		if (!o->cc)
			tables_find(q, &lib, false);
	} else if (!o->cc && !tool_lib_open(&lib)) {
		tables_find(q, &lib, true);
	}
	q->sel_key.pairs = q->sel_key.takes_all || shunt_select_wants_pairs();
	if (!q->sel_key.cc && !q->sel_key.sim)
		q->sel_key.cc = (uint16_t)(o->cc ? o->cc : 90);
	q->sel_key.nvls &= !q->sel_key.takes_all;
	q->sel_key.tma = shunt_config()->tma && (q->sel_key.sim || q->sel_key.cc >= 90);
	if (q->sel_key.staged) {
		q->sel_key.by_link = q->sel_key.tuning;
		q->sel_key.tuning = NULL;
	}
	if (q->sel_key.staged && shunt_parts_make(q->parts, &q->sel_key))
		q->sel_key.parts = q->parts;
	q->plans = plans_get(q);
	return TOOL_OK;
}

/* The ranks' hosts, from the options. 0, or an exit status after a message. */
static int place_complete(struct select_opts *o)
{
	struct shunt_topology *at = &o->query.at;

	if (!o->hosts && !o->ranks)
		return tool_usage_error("how many --ranks?");
	if (!o->hosts)
		return o->locals ? tool_usage_error("--local: it goes with --hosts") : TOOL_OK;
	if (!o->locals && o->ranks % o->hosts)
		return tool_usage_error("%u ranks are not as many on each of %u hosts", o->ranks, o->hosts);
	o->locals = o->locals ? o->locals : o->ranks / o->hosts;
	if (!o->locals || (o->ranks && o->ranks != o->hosts * o->locals))
		return tool_usage_error("how many ranks on each of the %u hosts? --local says it", o->hosts);
	o->ranks = o->hosts * o->locals;
	if (o->locals > SHUNT_MAX_RANKS || o->ranks > SHUNT_NET_MAX_RANKS)
		return tool_usage_error("%u ranks, %u on each host: at most %d, and %d on each", o->ranks, o->locals,
		    SHUNT_NET_MAX_RANKS, SHUNT_MAX_RANKS);
	*at = (struct shunt_topology){ .nranks = (int)o->ranks, .nislands = (int)o->hosts };
	for (unsigned r = 0; r < o->ranks; r++)
		at->island_of[r] = (uint8_t)(r / o->locals);
	shunt_topology_complete(at);
	return TOOL_OK;
}

/* "on 2 hosts of 4, ", or nothing. */
static const char *place_text(const struct select_opts *o, char place[48])
{
	*place = '\0';
	if (o->hosts)
		snprintf(place, 48, "on %u hosts of %u, ", o->hosts, o->locals);
	return place;
}

/* The plans that are there and run only where a rule, a tuning file or a selector says so. */
static void waiting_print(const struct select_query *q)
{
	const struct shunt_plan *plan;
	char from[24], to[24];
	bool any = false;

	for (size_t i = 0; q->plans && (plan = shunt_plan_set_at(q->plans, i)); i++) {
		if (plan->automatic ||
		    strcmp(shunt_plan_collective_name(plan->collective), shunt_kind_name(q->kind)) != 0)
			continue;
		if (!any)
			puts("inactive unless SHUNT_ALGO or a tuning file says plan (sizes of whole messages):");
		any = true;
		printf("%10s ... %-10s %s  (%s)\n", tool_format_size(plan->min_bytes, from),
		    plan->max_bytes == UINT64_MAX ? "" : tool_format_size(plan->max_bytes, to), plan->name,
		    plan->source);
	}
}

/* Takes the rows. An exit status. */
static int json_write(const struct select_opts *o)
{
	const struct select_query *q = &o->query;
	const char *device = q->sel_key.sim ? "sim" : "cuda";
	struct tool_lib lib;
	json_t *root;
	int err;

	if (tool_lib_open(&lib))
		return TOOL_FAIL;
	root = json_pack("{s:o, s:{s:s, s:s, s:s, s:i, s:i, s:s, s:b, s:b, s:b}, s:o}", "where",
	    tool_where_json(lib.build(), &lib, true), "key", "collective", shunt_kind_name(q->kind), "dtype",
	    shunt_dtype_name(q->dtype), "redop", shunt_redop_name(q->redop), "ranks", (int)o->ranks, "hosts",
	    o->hosts ? (int)o->hosts : 1, "device", device, "standalone", q->sel_key.takes_all, "nvls", q->sel_key.nvls,
	    "windows", q->sel.symmem, "rows", q->rows);
	err = tool_file_json(o->json, root);
	json_decref(root);
	return err ? TOOL_FAIL : TOOL_OK;
}

int info_select_main(int argc, char **argv)
{
	struct select_opts o = { .query = { .kind = SHUNT_ALLREDUCE, .dtype = SHUNT_F32, .redop = SHUNT_SUM } };
	const struct select_query *q = &o.query;
	int first, status = options_parse(&info_select_options, &o, argc, argv, &first);
	char place[48];

	if (status >= 0)
		return status;
	status = place_complete(&o);
	if (!status)
		status = sizes_check(argc - first, argv + first);
	if (!status)
		status = query_complete(&o);
	if (status)
		return status;
	if (o.json)
		o.query.rows = json_array();
	else
		printf("%s of %s, %s, %u ranks, %s%s%s%s\n", shunt_kind_name(q->kind), shunt_dtype_name(q->dtype),
		    shunt_redop_name(q->redop), o.ranks, place_text(&o, place),
		    q->sel_key.sim           ? "standalone on the sim" :
		        q->sel_key.takes_all ? "standalone" :
		                               "in front of the real NCCL",
		    q->sel_key.nvls ? " with NVLink multicast" : "", q->sel.symmem ? ", symmetric buffers" : "");
	if (first == argc)
		status = ranges_print(q);
	if (first == argc && !status && !o.json)
		waiting_print(q);
	for (int i = first; i < argc; i++) {
		struct selection is;
		uint64_t bytes;

		tool_parse_size(argv[i], 1, UINT64_MAX, &bytes);
		selection_make(q, bytes, &is);
		if (!q->rows)
			printf("%10s  %s%s%s  (%s)", argv[i], is.name, *is.reason ? ": " : "", is.reason, is.source);
		selection_show(q, &is, bytes, bytes);
	}
	shunt_plan_set_free(o.query.plans);
	return o.json && !status ? json_write(&o) : status;
}

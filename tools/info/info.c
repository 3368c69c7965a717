/* SPDX-License-Identifier: MIT */
/* shunt info: devices and libraries, settings, and decisions. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "algos/select/nvls.h"
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/log.h"
#include "base/renamed.h"
#include "plan/plan_registry.h"
#include "shim/nccl/abi.h"
#include "transport/net/net.h"
#include "transport/net/providers.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"
#include "tools/info/info.h"

static int library_print(const struct tool_lib *lib)
{
	__typeof__(ncclGetVersion) *get_version = (__typeof__(ncclGetVersion) *)dlsym(lib->handle, "ncclGetVersion");
	const char *path;
	int version = 0;
	ncclResult_t res = get_version ? get_version(&version) : ncclInternalError;

	printf("shunt %s\n  library     %s\n", lib->build(), lib->path);
	/* Known only after the first NCCL call. */
	path = lib->real_nccl_path();
	printf("  real NCCL   %s\n", path ? path : "none: standalone");
	if (res) {
		tool_error("ncclGetVersion failed with %d", (int)res);
		return TOOL_FAIL;
	}
	/* 2.9 and later: X * 10000 + Y * 100 + Z. */
	printf("  NCCL ABI    %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
	return TOOL_OK;
}

/* The real NCCL's version, 22809 for 2.28.9; 0: there is none. */
static int nccl_version(const struct tool_lib *lib)
{
	__typeof__(ncclGetVersion) *get_version = (__typeof__(ncclGetVersion) *)dlsym(lib->handle, "ncclGetVersion");
	int version = 0;

	if (!get_version || get_version(&version) || !lib->real_nccl_path())
		return 0;
	return version;
}

/* Why NCCL has no NVLink multicast on the first device; POSSIBLE: nothing is known that speaks against it. */
static enum shunt_nvls nvls_obstacle(const struct tool_lib *lib, const struct shunt_device_identity *id)
{
	const struct shunt_gpu_info gpu = { .cc = (uint16_t)id->cc, .multicast = id->multicast };
	const struct shunt_nvls_nccl nccl = { .version = nccl_version(lib) };

	return shunt_nvls_of_rank(&gpu, &nccl, shunt_nccl_env()->nvls_enable);
}

static bool first_device(const struct tool_lib *lib, struct shunt_device_identity *id)
{
	__typeof__(shunt_device_identify) *identify =
	    (__typeof__(shunt_device_identify) *)dlsym(lib->handle, "shunt_device_identify");

	*id = (struct shunt_device_identity){ .size = sizeof(*id) };
	return identify && !identify(0, id);
}

static void nvls_print(const struct tool_lib *lib)
{
	struct shunt_device_identity id;
	enum shunt_nvls why;

	if (!first_device(lib, &id))
		return;
	why = nvls_obstacle(lib, &id);
	printf("multicast     %s%s (device attribute %s, NCCL_NVLS_ENABLE %d)\n",
	    why ? "NCCL has none: " : "NCCL may use NVLink multicast: large all-reduces in windows are its",
	    shunt_nvls_name(why), id.multicast ? "set" : "not set", shunt_nccl_env()->nvls_enable);
}

static int devices_print(const struct tool_lib *lib)
{
	const char *kind = lib->device_kind();
	int n = 0;

	if (!kind || lib->device_count(&n)) {
		puts("devices\n  none; SHUNT_DEVICE=sim SHUNT_NCCL_LIB=none runs without");
		return TOOL_OK;
	}
	printf("devices       %s, %d\n", kind, n);
	for (int i = 0; i < n; i++) {
		char name[128] = "?";

		lib->device_name(i, name, sizeof(name));
		printf("  %-11d %s\n", i, name);
	}
	nvls_print(lib);
	return TOOL_OK;
}

static void config_print(void)
{
	struct shunt_config_row row;

	puts("configuration");
	for (size_t i = 0; shunt_config_row(i, &row); i++) {
		printf("  %-22s %s%s", row.name, *row.value ? row.value : "(empty)",
		    strcmp(row.source, "default") ? "" : "  (default)");
		if (strcmp(row.source, "default"))
			printf("  (from %s; default %s)", row.source, *row.def ? row.def : "empty");
		printf("\n      %s\n", row.doc);
		if (*row.accepts)
			printf("      takes %s\n", row.accepts);
		if (*row.aliases)
			printf("      also %s\n", row.aliases);
	}
}

static void config_markdown(void)
{
	const char *foreign, *now;
	struct shunt_config_row row;

	puts("| variable | default | meaning |\n|---|---|---|");
	for (size_t i = 0; shunt_config_row(i, &row); i++) {
		printf("| `%s` | %s%s%s | %s", row.name, *row.def ? "`" : "", row.def, *row.def ? "`" : "", row.doc);
		if (*row.aliases)
			printf(" (also `%s`)", row.aliases);
		puts(" |");
	}
	puts("\n| variable of MSCCL++ | here |\n|---|---|");
	for (size_t i = 0; (foreign = shunt_renamed_foreign(i, &now)); i++)
		printf("| `%s` | %s |\n", foreign, *now ? now : "obeyed, after NCCL's");
}

static void algorithms_print(void)
{
	puts("algorithms");
	const struct shunt_algo *a;

	for (size_t i = 0; (a = shunt_algo_row(i)); i++)
		printf("  %-11s %-14s %s\n", a->name, shunt_kind_name(a->kind), a->doc);
}

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
};

/* The reason why such a communicator forwards all calls, or NULL. */
static const char *comm_reason(const struct select_query *q)
{
	if (!q->sel_key.takes_all && shunt_nccl_env_forbids_p2p())
		return "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access";
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

/* The rest of a line: the blocks of the smallest and the largest size. */
static void blocks_print(const struct select_query *q, const struct selection *is, uint64_t from, uint64_t to)
{
	unsigned least = 0, most = 0;

	if (is->kernel) {
		least = shunt_select_blocks(&q->sel, q->kind, q->dtype, q->redop, from);
		most = shunt_select_blocks(&q->sel, q->kind, q->dtype, q->redop, to);
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

	printf("%10s ... %-10s %s%s%s  (%s)", tool_format_size(from, a), to ? tool_format_size(to, b) : "", is->name,
	    *is->reason ? ": " : "", is->reason, is->source);
	blocks_print(q, is, from, to ? to : from > LARGE_BYTES ? from : LARGE_BYTES);
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
	struct shunt_device_identity id;
	struct shunt_machine m = { .nranks = q->sel_key.nranks,
		.nhosts = shunt_topology_is_split(&q->at) ? q->at.nislands : 0,
		.sim = q->sel_key.sim,
		.nccl = nccl_version(lib) };
	unsigned nets = shunt_topology_is_split(&q->at) ? shunt_net_usable() : 0;

	if (!first_device(lib, &id))
		return;
	if (forced_mode && !id.cc) /* as if this host had GPUs */
		return;
	q->sel_key.cc = (uint16_t)id.cc;
	m.cc = id.cc;
	m.driver = id.driver;
	memcpy(m.gpu, id.name, sizeof(m.gpu));
	q->sel_key.nvls = q->sel_key.nvls || (!q->sel_key.takes_all && !nvls_obstacle(lib, &id));
	q->sel_key.nvls = q->sel_key.nvls && !shunt_topology_is_split(&q->at); /* no windows over hosts */
	m.nvls = q->sel_key.nvls;
	if (nets)
		snprintf(m.net, sizeof(m.net), "%s", shunt_net_providers()[__builtin_ctz(nets)]->name);
	q->sel_key.tuning = shunt_tuning_match(shunt_tuning_files(), &m, q->sel_key.takes_all, true);
}

enum { MODE_HERE, MODE_OVERLAY, MODE_STANDALONE };

struct select_opts {
	struct select_query query;
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
	{ .type = OPTION_END },
};
static const struct option_table select_options = {
	"usage: shunt info select --ranks N [options] [SIZE...]\n"
	"       shunt info select --hosts N --local N [options] [SIZE...]\n\n"
	"Which path a call takes, for each SIZE in bytes or over all sizes, and where that is written: a plan's file, "
	"SHUNT_ALGO,\n"
	"a tuning file (`shunt tune`), or the built-in table. All ranks are on one host, or, with --hosts, on several. "
	"Sizes are bytes of `count` "
	"elements: of one rank's\n"
	"part for allgather, reducescatter, alltoall, gather and scatter (what `shunt bench` shows, divided by the "
	"ranks), "
	"else of the\n"
	"message; so they are in SHUNT_ALGO and tuning files, and a rule of SHUNT_ALGO holds for from <= size < to\n\n",
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
	const struct shunt_plan_placement placement = { q->at.island_of, q->sel_key.takes_all ? NULL : q->at.local_of };

	if (!shunt_topology_is_split(&q->at))
		return shunt_plan_set_get(q->sel_key.nranks, q->sel_key.nranks);
	shunt_plan_defaults_load(q->at.nislands, q->at.rails);
	return shunt_plan_set_get_over(q->sel_key.nranks, q->at.rails, &placement, false);
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
	if (!q->sel_key.cc && !q->sel_key.sim)
		q->sel_key.cc = (uint16_t)(o->cc ? o->cc : 90);
	q->sel_key.nvls &= !q->sel_key.takes_all;
	q->sel_key.tma = shunt_config()->tma && (q->sel_key.sim || q->sel_key.cc >= 90);
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

static int select_main(int argc, char **argv)
{
	struct select_opts o = { .query = { .kind = SHUNT_ALLREDUCE, .dtype = SHUNT_F32, .redop = SHUNT_SUM } };
	const struct select_query *q = &o.query;
	int first, status = options_parse(&select_options, &o, argc, argv, &first);
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
	printf("%s of %s, %s, %u ranks, %s%s%s%s\n", shunt_kind_name(q->kind), shunt_dtype_name(q->dtype),
	    shunt_redop_name(q->redop), o.ranks, place_text(&o, place),
	    q->sel_key.sim           ? "standalone on the sim" :
	        q->sel_key.takes_all ? "standalone" :
	                               "in front of the real NCCL",
	    q->sel_key.nvls ? " with NVLink multicast" : "", q->sel.symmem ? ", symmetric buffers" : "");
	if (first == argc)
		status = ranges_print(q);
	if (first == argc && !status)
		waiting_print(q);
	for (int i = first; i < argc; i++) {
		struct selection is;
		uint64_t bytes;

		tool_parse_size(argv[i], 1, UINT64_MAX, &bytes);
		selection_make(q, bytes, &is);
		printf("%10s  %s%s%s  (%s)", argv[i], is.name, *is.reason ? ": " : "", is.reason, is.source);
		blocks_print(q, &is, bytes, bytes);
	}
	shunt_plan_set_unref(o.query.plans);
	return status;
}
struct info_opts {
	bool library, devices, config, algorithms, markdown;
};

#define AT(field) .at = offsetof(struct info_opts, field)
static const struct option_row rows[] = {
	{ "library", 'l', OPTION_FLAG, AT(library), .help = "versions, and which real NCCL would be used" },
	{ "devices", 'd', OPTION_FLAG, AT(devices), .help = "device layer and devices" },
	{ "config", 'c', OPTION_FLAG, AT(config), .help = "every variable: value, where it comes from, meaning" },
	{ "markdown", 0, OPTION_FLAG, AT(markdown),
	    .help = "with -c: names, defaults and meanings as a table for a document" },
	{ "algorithms", 'a', OPTION_FLAG, AT(algorithms), .help = "Shunt's own algorithms" },
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt info [-l] [-d] [-c] [-a]\n"
	"       shunt info select --ranks N [options] [SIZE...]     (shunt info select --help)\n\n"
	"Without options all sections:\n",
	rows,
	"select: which path a call takes, for each SIZE in bytes or over all sizes, and where that is written.\n\n"
	"Exit status: 0; 1 if the library cannot be opened or used; 2 for a wrong option.\n",
};

static int info_main(int argc, char **argv)
{
	struct info_opts o = { 0 };
	int first, status;

	status = options_parse(&options, &o, argc, argv, &first);
	if (status >= 0)
		return status;
	status = TOOL_OK;
	if (first < argc)
		return tool_usage_error("\"%s\" is not one of its arguments", argv[first]);
	if (o.markdown && !o.config)
		return tool_usage_error("--markdown goes with -c");
	if (!o.library && !o.devices && !o.config && !o.algorithms)
		o.library = o.devices = o.config = o.algorithms = true;
	if (o.library || o.devices) {
		struct tool_lib lib;

		if (tool_lib_open(&lib)) {
			status = TOOL_FAIL;
		} else {
			if (o.library)
				status = library_print(&lib);
			if (o.devices) {
				info_host();
				info_nics();
			}
			if (o.devices && devices_print(&lib))
				status = TOOL_FAIL;
		}
	}
	if (o.config && o.markdown)
		config_markdown();
	else if (o.config)
		config_print();
	if (o.algorithms)
		algorithms_print();
	return status;
}

static const struct tool_action actions[] = { { "select", &select_options, select_main }, { 0 } };

const struct tool_cmd tool_cmd_info = { .name = "info",
	.summary = "show versions, devices, configuration and which path a call takes",
	.options = &options,
	.actions = actions,
	.run = info_main };

/* SPDX-License-Identifier: MIT */
/*
 * shunt bench ep: expert parallel calls, dispatch and combine, each by itself. Times are those of the slowest rank in
 * each round; beside them the floor: the time that the rows of the busiest rank take on its link at least.
 */
#include <jansson.h>
#include "tools/common/libc.h"
#include "tools/bench/rank.h"
#include "tools/common/ep_call.h"
#include "tools/common/where.h"

enum {
	GRAPH_CALLS = 20,
	NORMAL_BLOCKS = 24, /* for which a group has memory, unless --blocks says more */
};

/* The ways to make a call. */
enum { EP_EAGER, EP_GRAPH, EP_NWAYS };
enum { EP_LL, EP_NORMAL, EP_NMODES };
static const char *const way_names[] = { "eager", "graph", NULL };
static const char *const part_names[] = { "layout", "dispatch", "combine" };
static const char *const mode_names[] = { "ll", "normal", NULL };
static const char *const form_names[] = { "as-is", "fp8", "fp8-round", "ue8m0", NULL };

struct ep_opts {
	struct ranks_opts ranks;
	unsigned modes, ways; /* bit sets */
	struct option_list tokens, blocks;
	int hidden, topk, experts, form;
	unsigned link;           /* GB/s */
	const char *link_source; /* NULL: of the default */
	int warmup, iters, rounds;
	uint64_t seed;
	bool check, no_host;
};

#define LINK_GBPS 360
#define LINK_SOURCE "stores of 64 blocks between two H200, docs/results/2026-11-4xH200-link.json"

#define AT(field) .at = offsetof(struct ep_opts, field)
static const struct option_row rows[] = {
	{ .type = OPTION_TITLE, .help = "What to measure" },
	{ "mode", 0, OPTION_WORDS, "LIST", AT(modes), .high = (1u << EP_NMODES) - 1, .names = mode_names,
	    .help =
	        "ll: low latency calls; normal: of normal mode, layout with notify, and dispatch and combine with what "
	        "that gave (all)" },
	{ "tokens", 't', OPTION_NUMBERS, "LIST", AT(tokens), .high = 1u << 20,
	    .help = "of each rank, up to 8 sizes; a low latency call has 1024 at most (1,8,64,128,512,4096; 4,32 on "
	            "the sim)" },
	{ "hidden", 0, OPTION_NUMBER, "N", AT(hidden), 8, 16384, .help = "elements of a row (7168; 1024 on the sim)" },
	{ "topk", 'k', OPTION_NUMBER, "N", AT(topk), 1, SHUNT_EP_MAX_TOPK,
	    .help = "experts of a token, chosen at random, each once (8)" },
	{ "experts", 0, OPTION_NUMBER, "N", AT(experts), 1, SHUNT_EP_MAX_EXPERTS,
	    .help = "of all ranks together (256; 8 of each rank on the sim)" },
	{ "form", 0, OPTION_WORD, "F", AT(form), .names = form_names,
	    .help = "of the rows that dispatch brings: as-is (bfloat16), fp8, fp8-round or ue8m0 (fp8)" },
	{ "blocks", 0, OPTION_NUMBERS, "LIST", AT(blocks), .high = 64,
	    .help = "blocks of a launch, up to 8 numbers (as Shunt decides)" },
	{ "calls", 0, OPTION_WORDS, "LIST", AT(ways), .high = (1u << EP_NWAYS) - 1, .names = way_names,
	    .help = "eager, graph (all)" },
	{ "link", 0, OPTION_NUMBER, "GB/s", AT(link), 1, 1u << 20,
	    .help = "rate of a rank's link in one direction, for the floors (360: " LINK_SOURCE ")" },
	{ "link-source", 0, OPTION_TEXT, "TEXT", AT(link_source),
	    .help = "where that rate comes from; for the report" },
	{ .type = OPTION_TITLE, .help = "How" },
	RANKS_OPTIONS("ranks to start (all GPUs; 4 on the sim)", 1, EP_CALL_RANKS, "300"),
	{ "warmup", 'w', OPTION_NUMBER, "N", AT(warmup), 0, 1u << 20,
	    .help = "calls before the timing (GPU 20, sim 1)" },
	{ "iters", 'i', OPTION_NUMBER, "N", AT(iters), 1, 1u << 20, .help = "calls per round (GPU 100, sim 2)" },
	{ "rounds", 'r', OPTION_NUMBER, "N", AT(rounds), 1, BENCH_MAX_ROUNDS,
	    .help = "rounds; median and p99 are over these (GPU 20, sim 3)" },
	{ "no-check", 0, OPTION_FLAG, AT(check), .clear = true,
	    .help = "do not compare each size's results with the reference" },
	{ "seed", 0, OPTION_SIZE, "N", AT(seed), 1, INT64_MAX, .help = "of inputs and routing (1)" },
	{ "no-host", 0, OPTION_FLAG, AT(no_host), .help = "leave this host's name out of the table and of --json" },
	{ "json", 0, OPTION_TEXT, "FILE", AT(ranks.json), .help = "everything, every round included" },
	{ .type = OPTION_END },
};
const struct option_table bench_ep_options = { "usage: shunt bench ep [options]\n\n"
	                                       "Measures dispatch and combine of expert parallel groups (shunt/ep.h), "
	                                       "each by itself, after one check of their\n"
	                                       "results.\n\n",
	rows,
	"The floor is what the rows to and from the busiest rank take on its link at least: a row of a token for each\n"
	"other rank that it goes to; of a low latency combine, unless SHUNT_EP_SUM=rank, a row for each expert\n"
	"there. Rows to oneself cross no link and are not counted.\n"
	"Exit status: 0; 1 after an error or a wrong result; 2 for a wrong option; a rank's own status if it died.\n" };

struct ep_rank {
	struct ep_opts o; /* with defaults filled in */
	struct bench_rank bench;
	int nranks;
	struct ep_lib ep;
	struct shunt_ep *group;
	struct ep_call call;
	uint64_t wrong;         /* on this rank, in what was checked last */
	uint64_t all_wrong;     /* on all ranks, in all */
	json_t *root, *results; /* of rank 0 */
};

/* An error of the group has its text from there. */
static int group_check(struct ep_rank *r, const char *what, int err)
{
	char text[512] = "";
	int broken = r->group ? r->ep.error(r->group, text, sizeof(text)) : 0;

	if (err || broken)
		tool_error("rank %d: %s: %s", r->bench.rank, what, *text ? text : strerror(-(err ? err : broken)));
	return err ? err : broken;
}

/* ---- calls */

static int call_once(struct ep_rank *r, int part)
{
	return group_check(r, part_names[part], ep_call_run(&r->call, r->group, part));
}

static int wait_for_calls(struct ep_rank *r, const char *what)
{
	int err = bench_rank_check(&r->bench, "waiting for calls", r->bench.lib.stream_synchronize(r->bench.stream));

	return err ? err : group_check(r, what, 0);
}

static int capture(struct ep_rank *r, int part, int calls, void **graph_p)
{
	int end, err = bench_rank_check(&r->bench, "capture", r->bench.lib.capture_begin(r->bench.stream));

	bench_rank_progress(&r->bench, RANKS_CAPTURE, -1, EP_GRAPH);
	if (err)
		return err;
	for (int i = 0; i < calls && !err; i++)
		err = call_once(r, part);
	end = r->bench.lib.capture_end(r->bench.stream, graph_p);
	return err ? err : bench_rank_check(&r->bench, "capture", end);
}

/* So many calls, in whole graphs if there is one. */
static int make_calls(struct ep_rank *r, int part, void *graph, int calls)
{
	int err = 0;

	for (int i = 0; i < calls && !err; i += graph ? GRAPH_CALLS : 1)
		err = graph ?
		    bench_rank_check(&r->bench, "graph launch", r->bench.lib.graph_launch(graph, r->bench.stream)) :
		    call_once(r, part);
	return err;
}

/* What the timed calls go by. */
static int make_once(struct ep_rank *r)
{
	int err = make_calls(r, EP_LAYOUT, NULL, 1);

	return err ? err : make_calls(r, EP_DISPATCHES, NULL, 1);
}

/* All parts, once, with fresh outputs. */
static int check_way(struct ep_rank *r, int way)
{
	char text[EP_NPARTS][128] = { "", "", "" };
	uint64_t wrong[EP_NPARTS] = { 0 };
	void *graph[EP_NPARTS] = { NULL };
	int err = 0;

	for (int part = 0; part < EP_NPARTS && way == EP_GRAPH && !err; part++)
		err = capture(r, part, 1, &graph[part]);
	if (!err)
		err = bench_rank_check(&r->bench, "memset", ep_call_poison(&r->call, r->bench.stream));
	bench_rank_progress(&r->bench, RANKS_CHECK, -1, way);
	for (int part = 0; part < EP_NPARTS && !err; part++)
		err = make_calls(r, part, graph[part], 1);
	if (!err)
		err = wait_for_calls(r, "a checked call");
	for (int part = 0; part < EP_NPARTS && !err; part++)
		err = bench_rank_check(
		    &r->bench, "copy", ep_call_check(&r->call, part, &wrong[part], text[part], sizeof(text[part])));
	for (int part = 0; part < EP_NPARTS; part++) {
		if (wrong[part])
			tool_error("rank %d: %s, %s, %d tokens: %llu parts of rows are wrong; the first: %s",
			    r->bench.rank, part_names[part], way_names[way], r->call.job.max_tokens,
			    (unsigned long long)wrong[part], text[part]);
		r->wrong += wrong[part];
		if (graph[part])
			r->bench.lib.graph_destroy(graph[part]);
	}
	return err;
}

static int time_round(struct ep_rank *r, int part, int way, void *graph, double *us_p)
{
	int calls = graph ? (r->o.iters + GRAPH_CALLS - 1) / GRAPH_CALLS * GRAPH_CALLS : r->o.iters;
	double start, mine, all[EP_CALL_RANKS] = { 0 };
	/* The first barrier may sleep; the second one releases all ranks at once. */
	int err = bench_barrier(&r->bench);

	if (!err)
		err = bench_barrier(&r->bench);
	if (err)
		return err;
	bench_rank_progress(&r->bench, RANKS_TIME, -1, way);
	start = ranks_now_us();
	err = make_calls(r, part, graph, calls);
	if (!err)
		err = wait_for_calls(r, part_names[part]);
	mine = (ranks_now_us() - start) / calls;
	if (!err)
		err = bench_allgather(&r->bench, &mine, sizeof(mine), all);
	*us_p = 0;
	for (int i = 0; i < r->nranks; i++)
		*us_p = all[i] > *us_p ? all[i] : *us_p;
	return err;
}

/* ---- results */

/*
 * Bytes of a row on the wire. Low latency: lines of 128 bytes, 120 of them data. Normal mode: with a token's experts
 * and weights at dispatch, and its number.
 */
static uint64_t wire_bytes(const struct ep_rank *r, int part)
{
	uint64_t bytes = 2 * (uint64_t)r->o.hidden;

	if (part == EP_DISPATCHES && r->o.form == SHUNT_EP_FP8_UE8M0)
		bytes = (uint64_t)r->o.hidden + (uint64_t)r->o.hidden / 128;
	else if (part == EP_DISPATCHES && r->o.form != SHUNT_EP_AS_IS)
		bytes = (uint64_t)r->o.hidden + (uint64_t)r->o.hidden / 32;
	if (!r->call.job.normal)
		return (bytes + 119) / 120 * 128;
	return bytes + (part == EP_DISPATCHES ? 8 * (uint64_t)r->o.topk + 8 : 0);
}

static void number(double v, char text[24])
{
	snprintf(text, 24, "%.*f", v < 10 ? 3 : v < 1000 ? 2 : 1, v);
}

static void report(struct ep_rank *r, int part, int way, int blocks, const double *us, uint64_t wrong)
{
	uint64_t bytes = part == EP_LAYOUT ? 0 :
	                                     ep_job_wire_bytes(&r->call.job, r->call.topk_idx, wire_bytes(r, part),
	                                         !r->call.job.normal && part == EP_COMBINES && !ep_sums_by_rank());
	double p99, median = bench_median(us, r->o.rounds, &p99), floor_us = (double)bytes / r->o.link / 1e3;
	char a[24], b[24], c[24], n[16], w[24];
	json_t *all = json_array();

	number(median, a);
	number(p99, b);
	snprintf(c, sizeof(c), "-"); /* of layout */
	if (bytes)
		number(floor_us, c);
	snprintf(n, sizeof(n), blocks ? "%d" : "-", blocks);
	snprintf(w, sizeof(w), r->o.check ? "%llu" : "-", (unsigned long long)wrong);
	printf("  %-6s %7d %6s %-8s %-5s %10s %10s %10s %9.2f %9.1f %6s\n", mode_names[r->call.job.normal],
	    r->call.job.max_tokens, n, part_names[part], way_names[way], a, b, c, floor_us > 0 ? median / floor_us : 0,
	    (double)bytes / median / 1e3, w);
	fflush(stdout);
	for (int i = 0; i < r->o.rounds; i++)
		json_array_append_new(all, json_real(us[i]));
	json_array_append_new(r->results,
	    json_pack("{s:s, s:i, s:i, s:s, s:s, s:f, s:f, s:f, s:I, s:o, s:o}", "mode", mode_names[r->call.job.normal],
	        "tokens", r->call.job.max_tokens, "blocks", blocks, "call", part_names[part], "calls", way_names[way],
	        "time_us", median, "p99_us", p99, "floor_us", floor_us, "wire_bytes", (json_int_t)bytes, "wrong",
	        r->o.check ? json_integer((json_int_t)wrong) : json_null(), "rounds_us", all));
}

static int begin_report(struct ep_rank *r)
{
	const struct ep_opts *o = &r->o;
	const char *source = o->link_source ? o->link_source : o->link == LINK_GBPS ? LINK_SOURCE : "as given";
	char name[128] = "?", where[400];

	r->bench.lib.device_name(r->bench.device, name, sizeof(name));
	r->results = json_array();
	r->root =
	    json_pack("{s:s, s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:i, s:o, s:i, s:i, s:i, s:I, s:b, s:O}",
	        "shunt", r->bench.lib.version(), "measures", "ep", "ranks", r->nranks, "device",
	        r->bench.shared->launch.kind, "device_name", name, "hidden", o->hidden, "topk", o->topk, "experts",
	        o->experts, "form", form_names[o->form], "sum", ep_sums_by_rank() ? "rank" : "exact", "link_GBps",
	        (int)o->link, "link_source", json_string_nocheck(source), "warmup", o->warmup, "iters", o->iters,
	        "rounds", o->rounds, "seed", (json_int_t)o->seed, "checked", o->check, "results", r->results);
	if (!r->root)
		return bench_rank_check(&r->bench, "host memory", -ENOMEM);
	json_object_set_new(r->root, "where", tool_where_json(r->bench.lib.build(), &r->bench.lib, !o->no_host));
	printf("# shunt %s, expert parallel, %d ranks as %s, %s (%s)\n", r->bench.lib.version(), r->nranks,
	    o->ranks.threads ? "threads" : "processes", r->bench.shared->launch.kind, name);
	tool_where_show(json_object_get(r->root, "where"), where, sizeof(where));
	printf("# %s\n", where);
	printf("# %d experts, top %d, rows of %d, dispatched %s, sums %s; seed %llu\n", o->experts, o->topk, o->hidden,
	    form_names[o->form], ep_sums_by_rank() ? "of each rank" : "exact", (unsigned long long)o->seed);
	printf("# %d rounds of %d calls after %d; time is the median of rounds, us per call on the slowest rank\n",
	    o->rounds, o->iters, o->warmup);
	printf(
	    "# floor: the rows of the busiest rank at %u GB/s (%s); GB/s: these rows in the time\n", o->link, source);
	if (!strcmp(r->bench.shared->launch.kind, "sim"))
		puts("# the sim runs on CPU threads: its times say nothing about GPUs");
	printf("#\n# %-6s %7s %6s %-8s %-5s %10s %10s %10s %9s %9s %6s\n", "mode", "tokens", "blocks", "call", "calls",
	    "us", "p99", "floor", "ratio", "GB/s", "wrong");
	fflush(stdout);
	return 0;
}

/* ---- sizes */

static int time_part(struct ep_rank *r, int part, int way, int blocks)
{
	double us[BENCH_MAX_ROUNDS];
	uint64_t all[EP_CALL_RANKS] = { 0 }, wrong = 0;
	void *graph = NULL;
	int err = way == EP_GRAPH ? capture(r, part, GRAPH_CALLS, &graph) : 0;

	bench_rank_progress(&r->bench, RANKS_WARMUP, -1, way);
	if (!err)
		err = make_calls(r, part, graph, r->o.warmup);
	if (!err)
		err = wait_for_calls(r, part_names[part]);
	for (int i = 0; i < r->o.rounds && !err; i++)
		err = time_round(r, part, way, graph, &us[i]);
	if (graph)
		r->bench.lib.graph_destroy(graph);
	if (!err)
		err = bench_allgather(&r->bench, &r->wrong, sizeof(r->wrong), all);
	for (int i = 0; i < r->nranks; i++)
		wrong += all[i];
	r->all_wrong += wrong;
	if (!err && !r->bench.rank)
		report(r, part, way, blocks, us, wrong);
	return err;
}

static int run_size(struct ep_rank *r, int tokens, bool normal)
{
	struct ep_job job = { .normal = normal,
		.nranks = r->nranks,
		.experts = r->o.experts,
		.topk = r->o.topk,
		.hidden = r->o.hidden,
		.max_tokens = tokens,
		.form = r->o.form,
		.routing = EP_FREE,
		.seed = r->o.seed };
	int nblocks = r->o.blocks.n ? r->o.blocks.n : 1, err;

	for (int i = 0; i < r->nranks; i++)
		job.tokens[i] = tokens;
	atomic_store(&r->bench.progress->bytes, (unsigned long long)tokens * (unsigned long long)job.hidden * 2);
	err =
	    bench_rank_check(&r->bench, "cannot allocate memory", ep_call_open(&r->call, &r->ep, &job, r->bench.rank));
	for (int i = 0; i < nblocks && !err; i++) {
		int blocks = r->o.blocks.n ? (int)r->o.blocks.at[i] : 0;

		ep_call_place(&r->call, r->bench.stream, blocks);
		for (int way = 0; way < EP_NWAYS && !err; way++) {
			r->wrong = 0;
			if (!(r->o.ways >> way & 1))
				continue;
			err = r->o.check ? check_way(r, way) : make_once(r);
			for (int part = normal ? EP_LAYOUT : EP_DISPATCHES; part < EP_NPARTS && !err; part++)
				err = time_part(r, part, way, blocks);
		}
	}
	if (err) /* what poisons the outputs may not have run yet */
		r->bench.lib.stream_synchronize(r->bench.stream);
	ep_call_close(&r->call);
	return err;
}

/* ---- a rank */

static void fill_defaults(struct ep_opts *o, bool sim, int nranks)
{
	static const unsigned gpu[] = { 1, 8, 64, 128, 512, 4096 }, few[] = { 4, 32 };

	if (!o->tokens.n) {
		o->tokens.n = sim ? 2 : 6;
		memcpy(o->tokens.at, sim ? few : gpu, (size_t)o->tokens.n * sizeof(few[0]));
	}
	o->hidden = o->hidden ? o->hidden : sim ? 1024 : 7168;
	o->experts = o->experts ? o->experts : sim ? 8 * nranks : 256;
	o->warmup = o->warmup >= 0 ? o->warmup : sim ? 1 : 20;
	o->iters = o->iters >= 0 ? o->iters : sim ? 2 : 100;
	o->rounds = o->rounds >= 0 ? o->rounds : sim ? 3 : 20;
}

static int make_group(struct ep_rank *r)
{
	struct ep_job job = { .normal = true,
		.nranks = r->nranks,
		.hosts = r->o.ranks.nhosts,
		.topk = r->o.topk,
		.hidden = r->o.hidden };
	struct shunt_ep_config config = { .size = sizeof(config),
		.nranks = r->nranks,
		.rank = r->bench.rank,
		.device = r->bench.device,
		.topk = r->o.topk };
	char id[SHUNT_EP_ID_BYTES] = "", ids[EP_CALL_RANKS][SHUNT_EP_ID_BYTES];
	int blocks = NORMAL_BLOCKS, err = r->bench.rank ? 0 : r->ep.id(id);

	bench_rank_progress(&r->bench, RANKS_INIT, -1, -1);
	if (!err)
		err = bench_allgather(&r->bench, id, sizeof(id), ids);
	for (int i = 0; i < r->o.tokens.n; i++)
		if (r->o.tokens.at[i] <= 1024 && (int)r->o.tokens.at[i] > job.max_tokens)
			job.max_tokens = (int)r->o.tokens.at[i];
	config.id = ids[0];
	for (int i = 0; i < r->o.blocks.n; i++)
		blocks = (int)r->o.blocks.at[i] > blocks ? (int)r->o.blocks.at[i] : blocks;
	config.normal_bytes = r->o.modes >> EP_NORMAL & 1 ? ep_job_bytes(&r->ep, &job, blocks) : 0;
	job.normal = false;
	config.ll_bytes = r->o.modes >> EP_LL & 1 ? ep_job_bytes(&r->ep, &job, 0) : 0;
	return err ? err : group_check(r, "making the group", r->ep.create(&config, &r->group));
}

/* What no rank can do: rank 0 says so before another one ends. */
static int check_numbers(struct ep_rank *r)
{
	bool many = r->nranks > EP_CALL_RANKS, uneven = r->o.experts % r->nranks;

	if (many && !r->bench.rank)
		tool_error("a group has %d ranks at most, and these are %d", EP_CALL_RANKS, r->nranks);
	else if (uneven && !r->bench.rank)
		tool_error("%d experts are no multiple of %d ranks; give --experts", r->o.experts, r->nranks);
	if (many || uneven)
		bench_barrier(&r->bench);
	return many || uneven ? -EINVAL : 0;
}

static int open_rank(struct ep_rank *r)
{
	int err = bench_rank_join(&r->bench, &r->o.ranks);

	if (!err)
		err = check_numbers(r);
	if (!err)
		err = ep_lib_open(&r->ep, &r->bench.lib);
	if (!err)
		err = make_group(r);
	return err || r->bench.rank ? err : begin_report(r);
}

static int run_sizes(struct ep_rank *r)
{
	int err = 0;

	for (int mode = 0; mode < EP_NMODES; mode++)
		for (int i = 0; i < r->o.tokens.n && !err && r->o.modes >> mode & 1; i++)
			if (mode == EP_NORMAL || r->o.tokens.at[i] <= 1024)
				err = run_size(r, (int)r->o.tokens.at[i], mode == EP_NORMAL);
	return err;
}

static int run_rank(const void *arg, const struct ranks_slot *slot)
{
	struct ep_rank *r = calloc(1, sizeof(*r));
	int status = TOOL_FAIL, err;

	if (!r) {
		ranks_abort(NULL, slot->shared);
		return TOOL_FAIL;
	}
	r->o = *(const struct ep_opts *)arg;
	bench_rank_slot(&r->bench, slot);
	r->nranks = slot->shared->launch.nranks;
	fill_defaults(&r->o, !strcmp(slot->shared->launch.kind, "sim"), r->nranks);
	err = open_rank(r);
	if (!err)
		err = run_sizes(r);
	/* Nobody ends before all are here. */
	if (!err)
		err = bench_barrier(&r->bench);
	if (!err && r->root) {
		if (r->o.check)
			printf("# %llu wrong parts of rows\n", (unsigned long long)r->all_wrong);
		err = r->o.ranks.json ? tool_file_json(r->o.ranks.json, r->root) : 0;
	}
	if (!err)
		status = r->all_wrong ? TOOL_FAIL : TOOL_OK;
	else
		ranks_abort(r->bench.ranks, r->bench.shared);
	if (r->group)
		r->ep.destroy(r->group, err != 0);
	if (r->bench.stream && !err)
		r->bench.lib.stream_destroy(r->bench.stream);
	json_decref(r->results);
	json_decref(r->root);
	bench_rank_progress(&r->bench, RANKS_DONE, -1, -1);
	ranks_leave(r->bench.ranks);
	free(r);
	return status;
}

int bench_ep_main(int argc, char **argv)
{
	struct ep_opts o = { .ranks = RANKS_OPTS(300, "shunt"),
		.modes = (1u << EP_NMODES) - 1,
		.ways = (1u << EP_NWAYS) - 1,
		.topk = 8,
		.form = SHUNT_EP_FP8,
		.link = LINK_GBPS,
		.warmup = -1,
		.iters = -1,
		.rounds = -1,
		.seed = 1,
		.check = true };
	int status;

	o.ranks.way_names = way_names;
	status = options_parse(&bench_ep_options, &o, argc, argv, NULL);
	if (status >= 0)
		return status;
	return o.ranks.worker_fd >= 0 ? ranks_slots_run(&o.ranks, run_rank, &o) : ranks_run(&o.ranks, argc, argv);
}

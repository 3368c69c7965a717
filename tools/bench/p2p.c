/* SPDX-License-Identifier: MIT */
/*
 * shunt bench p2p: messages between each pair of ranks, one pair at a time, as matrices: latency, and rate in one and
 * in both directions. The other ranks wait, without work on their devices.
 */
#include <jansson.h>
#include <math.h>
#include "tools/common/libc.h"
#include "tools/bench/rank.h"
#include "tools/common/where.h"

enum { GRAPH_TRIPS = 20 }; /* round trips in a graph, so that a launch's cost is not a message's */

/* What is measured of a pair. BOTH: each sends to the other at once. */
enum { P2P_LATENCY, P2P_RATE, P2P_BOTH, P2P_NKINDS };
static const struct {
	const char *name, *unit, *key;
	bool one_way; /* the value of i to j is not that of j to i */
} kinds[P2P_NKINDS] = {
	[P2P_LATENCY] = { "latency, one way", "us", "latency_us", false },
	[P2P_RATE] = { "rate, from the row to the column", "GB/s", "rate_GBps", true },
	[P2P_BOTH] = { "rate, both directions at once, added", "GB/s", "both_GBps", false },
};
static const char *const kind_names[] = { "latency", "rate", "both directions", NULL };

struct p2p_opts {
	struct ranks_opts ranks;
	uint64_t small, large;
	int iters, rounds;
	bool check, no_host;
};

#define AT(field) .at = offsetof(struct p2p_opts, field)
static const struct option_row rows[] = {
	{ "lib", 0, OPTION_TEXT, "LIB", AT(ranks.libs[0]),
	    .help = "shunt (default), nccl (the real one that shunt finds), or a path" },
	{ "vs", 0, OPTION_CALL, "LIB", .call = ranks_option_vs,
	    .help = "another one to compare it with; may be given three times" },
	{ "small", 0, OPTION_SIZE, "SIZE", AT(small), 1, 1u << 20, .help = "message of the latencies (8)" },
	{ "large", 0, OPTION_SIZE, "SIZE", AT(large), 1, 1ull << 32,
	    .help = "message of the rates (64M; 1M on the sim)" },
	RANKS_OPTIONS("ranks to start (all GPUs; 4 on the sim)", 2, RANKS_MAX, "300"),
	{ "iters", 'i', OPTION_NUMBER, "N", AT(iters), 1, 1u << 20,
	    .help = "messages per round; of the latency ten times as many, in graphs (GPU 10, sim 2)" },
	{ "rounds", 'r', OPTION_NUMBER, "N", AT(rounds), 1, BENCH_MAX_ROUNDS,
	    .help = "rounds, whose median is taken (GPU 5, sim 2)" },
	{ "no-check", 0, OPTION_FLAG, AT(check), .clear = true,
	    .help = "do not compare what arrives with what was sent" },
	RANKS_OPTION_PROGRESS,
	{ "no-host", 0, OPTION_FLAG, AT(no_host), .help = "leave this host's name out of the table and of --json" },
	{ "json", 0, OPTION_TEXT, "FILE", AT(ranks.json), .help = "the matrices" },
	{ .type = OPTION_END },
};
const struct option_table bench_p2p_options = {
	"usage: shunt bench p2p [options]\n\n"
	"Measures ncclSend and ncclRecv between each pair of ranks, one pair at a time, and prints matrices: what each "
	"link\n"
	"of a new machine, or of a set of hosts, gives. A pair that is far from the median is named.\n\n",
	rows,
	"GB/s are 1e9 bytes a second.\n"
	"Exit status: 0; 1 after an error or wrong data; 2 for a wrong option; a rank's own status if it died.\n"
};

struct p2p_rank {
	struct p2p_opts o; /* with defaults filled in */
	struct bench_rank bench;
	int nranks;
	void *send, *recv;
	uint32_t *host; /* a message that arrived */
	uint64_t wrong;
	double *values[RANKS_MAX_LIBS][P2P_NKINDS]; /* rank 0: [from][to] */
};

/* Two ranks, and a library. */
struct pair {
	int from, to, lib;
};

static bool takes_part(const struct p2p_rank *r, const struct pair *p)
{
	return r->bench.rank == p->from || r->bench.rank == p->to;
}

/* ---- messages */

static int message(struct p2p_rank *r, const struct pair *p, bool sends, uint64_t bytes)
{
	const struct bench_nccl *n = &r->bench.nccl[p->lib];
	int peer = r->bench.rank == p->from ? p->to : p->from;

	return sends ? bench_nccl_check(n, r->bench.rank, "ncclSend",
	                   n->Send(r->send, bytes, ncclInt8, peer, r->bench.comm[p->lib], r->bench.stream)) :
	               bench_nccl_check(n, r->bench.rank, "ncclRecv",
	                   n->Recv(r->recv, bytes, ncclInt8, peer, r->bench.comm[p->lib], r->bench.stream));
}

static int round_trip(struct p2p_rank *r, const struct pair *p)
{
	bool first = r->bench.rank == p->from;
	int err = message(r, p, first, r->o.small);

	return err ? err : message(r, p, !first, r->o.small);
}

static int both_ways(struct p2p_rank *r, const struct pair *p)
{
	const struct bench_nccl *n = &r->bench.nccl[p->lib];
	int err = bench_nccl_check(n, r->bench.rank, "ncclGroupStart", n->GroupStart());

	if (!err)
		err = message(r, p, true, r->o.large);
	if (!err)
		err = message(r, p, false, r->o.large);
	return err ? err : bench_nccl_check(n, r->bench.rank, "ncclGroupEnd", n->GroupEnd());
}

/* graph: of GRAPH_TRIPS round trips; else so many messages. */
static int messages(struct p2p_rank *r, const struct pair *p, int kind, void *graph, int n)
{
	int err = 0;

	for (int i = 0; i < n && !err; i += graph ? GRAPH_TRIPS : 1)
		err = graph ?
		    bench_rank_check(&r->bench, "graph launch", r->bench.lib.graph_launch(graph, r->bench.stream)) :
		    kind == P2P_LATENCY ? round_trip(r, p) :
		    kind == P2P_RATE    ? message(r, p, r->bench.rank == p->from, r->o.large) :
		                          both_ways(r, p);
	return err;
}

static int wait_for_messages(struct p2p_rank *r, const struct pair *p)
{
	const struct bench_nccl *n = &r->bench.nccl[p->lib];
	ncclResult_t result = ncclSuccess;
	int err = bench_rank_check(&r->bench, "waiting for messages", r->bench.lib.stream_synchronize(r->bench.stream));

	if (!err && n->CommGetAsyncError)
		err = bench_nccl_check(
		    n, r->bench.rank, "ncclCommGetAsyncError", n->CommGetAsyncError(r->bench.comm[p->lib], &result));
	return err ? err : bench_nccl_check(n, r->bench.rank, "ncclCommGetAsyncError's answer", result);
}

static int capture(struct p2p_rank *r, const struct pair *p, void **graph_p)
{
	int end, err = bench_rank_check(&r->bench, "capture", r->bench.lib.capture_begin(r->bench.stream));

	if (err)
		return err;
	for (int i = 0; i < GRAPH_TRIPS && !err; i++)
		err = round_trip(r, p);
	end = r->bench.lib.capture_end(r->bench.stream, graph_p);
	return err ? err : bench_rank_check(&r->bench, "capture", end);
}

/* ---- data: words that tell the rank and the place */

static uint32_t word(int rank, size_t i)
{
	return (uint32_t)i * 2654435761u + (uint32_t)rank * 97 + 1;
}

static int check_data(struct p2p_rank *r, const struct pair *p)
{
	uint32_t last;
	size_t n = r->o.large / 4, rest = r->o.large % 4;
	int err = bench_rank_check(&r->bench, "copy", r->bench.lib.memcpy(r->host, r->recv, r->o.large));

	for (size_t i = 0; i < n && !err; i++)
		r->wrong += r->host[i] != word(p->from, i);
	last = word(p->from, n);
	if (!err && rest)
		r->wrong += memcmp(&r->host[n], &last, rest) != 0;
	return err;
}

static int checked_message(struct p2p_rank *r, const struct pair *p)
{
	bool receives = r->bench.rank == p->to;
	int err = 0;

	if (receives)
		err = bench_rank_check(
		    &r->bench, "memset", r->bench.lib.memset_async(r->recv, 0xa5, r->o.large, r->bench.stream));
	if (!err)
		err = message(r, p, !receives, r->o.large);
	if (!err)
		err = wait_for_messages(r, p);
	return err || !receives ? err : check_data(r, p);
}

/* ---- times */

static double value_of(const struct p2p_rank *r, int kind, int n, double us)
{
	return kind == P2P_LATENCY ? us / n / 2 : (double)r->o.large * n * (kind == P2P_BOTH ? 2 : 1) / us / 1e3;
}

static int time_round(struct p2p_rank *r, const struct pair *p, int kind, void *graph, double *value_p)
{
	int n = kind != P2P_LATENCY ? r->o.iters : (10 * r->o.iters + GRAPH_TRIPS - 1) / GRAPH_TRIPS * GRAPH_TRIPS;
	double start, mine = 0, all[RANKS_MAX], us = 0;
	/* The first barrier may sleep; the second one releases all ranks at once. */
	int err = bench_barrier(&r->bench);

	if (!err)
		err = bench_barrier(&r->bench);
	if (!err && takes_part(r, p)) {
		bench_rank_progress(&r->bench, RANKS_TIME, p->lib, kind);
		start = ranks_now_us();
		err = messages(r, p, kind, graph, n);
		if (!err)
			err = wait_for_messages(r, p);
		mine = ranks_now_us() - start;
	}
	if (!err)
		err = bench_allgather(&r->bench, &mine, sizeof(mine), all);
	for (int i = 0; !err && i < r->nranks; i++)
		us = all[i] > us ? all[i] : us;
	*value_p = us > 0 ? value_of(r, kind, n, us) : 0;
	return err;
}

static int measure(struct p2p_rank *r, const struct pair *p, int kind)
{
	double values[BENCH_MAX_ROUNDS], median;
	void *graph = NULL;
	int err = 0;

	atomic_store(&r->bench.progress->bytes, kind == P2P_LATENCY ? r->o.small : r->o.large);
	if (takes_part(r, p)) {
		bench_rank_progress(&r->bench, RANKS_WARMUP, p->lib, kind);
		/* The first message connects the pair. */
		err = kind == P2P_RATE && r->o.check ? checked_message(r, p) : messages(r, p, kind, NULL, 2);
		if (!err)
			err = wait_for_messages(r, p);
		if (!err && kind == P2P_LATENCY)
			err = capture(r, p, &graph);
	}
	for (int i = 0; i < r->o.rounds && !err; i++)
		err = time_round(r, p, kind, graph, &values[i]);
	if (graph)
		r->bench.lib.graph_destroy(graph);
	if (err || r->bench.rank)
		return err;
	median = bench_median(values, r->o.rounds, NULL);
	r->values[p->lib][kind][p->from * r->nranks + p->to] = median;
	if (!kinds[kind].one_way)
		r->values[p->lib][kind][p->to * r->nranks + p->from] = median;
	return 0;
}

static int measure_all(struct p2p_rank *r)
{
	int pairs = r->nranks * (r->nranks - 1), done = 0, err = 0;

	for (int i = 0; i < r->nranks && !err; i++)
		for (int j = 0; j < r->nranks && !err; j++) {
			if (i == j)
				continue;
			for (int lib = 0; lib < r->o.ranks.nlibs; lib++)
				for (int kind = 0; kind < P2P_NKINDS && !err; kind++)
					if (i < j || kinds[kind].one_way)
						err = measure(r, &(struct pair){ i, j, lib }, kind);
			snprintf(r->bench.progress->so_far, sizeof(r->bench.progress->so_far), "[p2p %d of %d pairs]",
			    ++done, pairs);
		}
	return err;
}

/* ---- results, at rank 0 */

static void print_matrix(const struct p2p_rank *r, int lib, int kind)
{
	char size[24];

	printf("#\n# %s: %s, %s, messages of %s bytes\n#    ", r->bench.nccl[lib].label, kinds[kind].name,
	    kinds[kind].unit, tool_format_size(kind == P2P_LATENCY ? r->o.small : r->o.large, size));
	for (int j = 0; j < r->nranks; j++)
		printf(" %8d", j);
	putchar('\n');
	for (int i = 0; i < r->nranks; i++) {
		printf("%5d", i);
		for (int j = 0; j < r->nranks; j++) {
			double v = r->values[lib][kind][i * r->nranks + j];

			if (i == j)
				printf(" %8s", "-");
			else
				printf(" %8.*f", v < 10 ? 3 : v < 100 ? 2 : 1, v);
		}
		putchar('\n');
	}
}

static bool is_far(const struct p2p_rank *r, int i, int j)
{
	int hosts = r->o.ranks.nhosts;

	return hosts && ranks_host_of(i, r->nranks, hosts) != ranks_host_of(j, r->nranks, hosts);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Names the pairs that are less than half as good as the median of their kind: on a host, or between hosts. */
static void name_the_slow(const struct p2p_rank *r, int lib, int kind, double *sorted)
{
	for (int far = 0; far < 2; far++) {
		double median;
		size_t n = 0;

		for (int i = 0; i < r->nranks; i++)
			for (int j = 0; j < r->nranks; j++)
				if (i != j && is_far(r, i, j) == far)
					sorted[n++] = r->values[lib][kind][i * r->nranks + j];
		if (n < 3)
			continue;
		qsort(sorted, n, sizeof(*sorted), by_value);
		median = sorted[n / 2];
		for (int i = 0; i < r->nranks; i++)
			for (int j = 0; j < r->nranks; j++) {
				double v = r->values[lib][kind][i * r->nranks + j];
				bool slow = kind == P2P_LATENCY ? v > 2 * median : v < median / 2;

				if (i != j && is_far(r, i, j) == far && slow && (i < j || kinds[kind].one_way))
					printf(
					    "# slow: %s: %s of %d and %d: %.3g %s; the median of such pairs is %.3g\n",
					    r->bench.nccl[lib].label, kind_names[kind], i, j, v, kinds[kind].unit,
					    median);
			}
	}
}

/* Geometric mean over the pairs of how many times as good the first library is. */
static double mean_ratio(const struct p2p_rank *r, int lib, int kind)
{
	double sum = 0;

	for (int i = 0; i < r->nranks; i++)
		for (int j = 0; j < r->nranks; j++)
			if (i != j)
				sum += log(
				    r->values[lib][kind][i * r->nranks + j] / r->values[0][kind][i * r->nranks + j]);
	sum /= r->nranks * (r->nranks - 1);
	return exp(kind == P2P_LATENCY ? sum : -sum);
}

static json_t *matrix_json(const struct p2p_rank *r, int lib, int kind)
{
	json_t *all = json_array();

	for (int i = 0; i < r->nranks; i++) {
		json_t *row = json_array();

		for (int j = 0; j < r->nranks; j++)
			json_array_append_new(
			    row, i == j ? json_null() : json_real(r->values[lib][kind][i * r->nranks + j]));
		json_array_append_new(all, row);
	}
	return all;
}

/* The exit status. */
static int report(struct p2p_rank *r, const char *device_name, json_t *where, uint64_t wrong)
{
	double *sorted = calloc((size_t)r->nranks * (size_t)r->nranks, sizeof(*sorted));
	json_t *libs = json_array(), *root;
	int err = 0;

	for (int lib = 0; lib < r->o.ranks.nlibs; lib++) {
		json_t *entry = json_pack("{s:o, s:o, s:i}", "label", json_string_nocheck(r->bench.nccl[lib].label),
		    "path", json_string_nocheck(r->bench.nccl[lib].path), "version", r->bench.nccl[lib].version);

		for (int kind = 0; kind < P2P_NKINDS; kind++) {
			print_matrix(r, lib, kind);
			json_object_set_new(entry, kinds[kind].key, matrix_json(r, lib, kind));
		}
		json_array_append_new(libs, entry);
	}
	puts("#");
	for (int lib = 0; lib < r->o.ranks.nlibs && sorted; lib++)
		for (int kind = 0; kind < P2P_NKINDS; kind++)
			name_the_slow(r, lib, kind, sorted);
	for (int lib = 1; lib < r->o.ranks.nlibs; lib++)
		printf("# %s is better than %s, in the geometric mean over the pairs: latency %.2f, rate %.2f, both "
		       "directions %.2f times\n",
		    r->bench.nccl[0].label, r->bench.nccl[lib].label, mean_ratio(r, lib, P2P_LATENCY),
		    mean_ratio(r, lib, P2P_RATE), mean_ratio(r, lib, P2P_BOTH));
	if (r->o.check && wrong)
		printf("# %llu words arrived wrong\n", (unsigned long long)wrong);
	else if (r->o.check)
		puts("# all data arrived right");
	root = json_pack("{s:s, s:i, s:s, s:s, s:I, s:I, s:i, s:i, s:o, s:o, s:O}", "measures", "p2p", "ranks",
	    r->nranks, "device", r->bench.shared->launch.kind, "device_name", device_name, "latency_bytes",
	    (json_int_t)r->o.small, "rate_bytes", (json_int_t)r->o.large, "iters", r->o.iters, "rounds", r->o.rounds,
	    "wrong", r->o.check ? json_integer((json_int_t)wrong) : json_null(), "libraries", libs, "where", where);
	if (r->o.ranks.json)
		err = tool_file_json(r->o.ranks.json, root);
	json_decref(root);
	free(sorted);
	return err || wrong ? TOOL_FAIL : TOOL_OK;
}

static void print_title(const struct p2p_rank *r, const char *device_name, json_t *where)
{
	char text[400];

	printf("# shunt %s, messages of pairs, %d ranks as %s, %s (%s)\n", r->bench.lib.version(), r->nranks,
	    r->o.ranks.threads ? "threads" : "processes", r->bench.shared->launch.kind, device_name);
	tool_where_show(where, text, sizeof(text));
	printf("# %s\n", text);
	for (int i = 0; i < r->o.ranks.nlibs; i++)
		printf(
		    "# %s: %s, NCCL ABI %d\n", r->bench.nccl[i].label, r->bench.nccl[i].path, r->bench.nccl[i].version);
	if (!strcmp(r->bench.shared->launch.kind, "sim"))
		puts("# the sim runs on CPU threads: its times say nothing about GPUs");
	fflush(stdout);
}

/* ---- a rank */

static int open_lib(struct p2p_rank *r, int i)
{
	static const char *const needs[] = { "Send", "Recv", "GroupStart", "GroupEnd" };
	struct bench_nccl *n = &r->bench.nccl[i];
	int err = bench_nccl_open(n, r->o.ranks.libs[i], &r->bench.lib);

	if (!err && (!n->Send || !n->Recv || !n->GroupStart || !n->GroupEnd)) {
		const bool there[] = { n->Send, n->Recv, n->GroupStart, n->GroupEnd };
		int k = 0;

		while (there[k])
			k++;
		if (!r->bench.rank)
			tool_error("library %s has no nccl%s, so it has no messages", n->label, needs[k]);
		bench_barrier(&r->bench);
		err = -ENOSYS;
	}
	return err ? err : bench_comm_create(&r->bench, i, &r->bench.comm[i], NULL);
}

static int open_rank(struct p2p_rank *r)
{
	size_t bytes = r->o.large > r->o.small ? r->o.large : r->o.small, words = (bytes + 3) / 4;
	int err = bench_rank_join(&r->bench, &r->o.ranks);

	for (int i = 0; i < r->o.ranks.nlibs && !err; i++)
		err = open_lib(r, i);
	if (!err)
		err = bench_rank_check(&r->bench, "cannot allocate memory", r->bench.lib.malloc(&r->send, 4 * words));
	if (!err)
		err = bench_rank_check(&r->bench, "cannot allocate memory", r->bench.lib.malloc(&r->recv, 4 * words));
	r->host = malloc(4 * words);
	for (int lib = 0; lib < r->o.ranks.nlibs && !r->bench.rank; lib++)
		for (int kind = 0; kind < P2P_NKINDS; kind++) {
			r->values[lib][kind] = calloc((size_t)r->nranks * (size_t)r->nranks, sizeof(double));
			err = r->values[lib][kind] || err ? err : bench_rank_check(&r->bench, "host memory", -ENOMEM);
		}
	if (!err && !r->host)
		err = bench_rank_check(&r->bench, "host memory", -ENOMEM);
	for (size_t i = 0; r->host && i < words && !err; i++)
		r->host[i] = word(r->bench.rank, i);
	return err ? err : bench_rank_check(&r->bench, "copy", r->bench.lib.memcpy(r->send, r->host, 4 * words));
}

static void close_rank(struct p2p_rank *r, bool clean)
{
	bench_rank_progress(&r->bench, RANKS_DESTROY, -1, -1);
	/* After an error a library may wait for ranks that will not come. The process ends anyway. */
	for (int i = 0; i < r->o.ranks.nlibs && clean; i++)
		bench_nccl_check(&r->bench.nccl[i], r->bench.rank, "ncclCommDestroy",
		    r->bench.nccl[i].CommDestroy(r->bench.comm[i]));
	if (clean) {
		r->bench.lib.free(r->send);
		r->bench.lib.free(r->recv);
		r->bench.lib.stream_destroy(r->bench.stream);
	}
	free(r->host);
	for (int lib = 0; lib < r->o.ranks.nlibs; lib++)
		for (int kind = 0; kind < P2P_NKINDS; kind++)
			free(r->values[lib][kind]);
	bench_rank_progress(&r->bench, RANKS_DONE, -1, -1);
	ranks_leave(r->bench.ranks);
}

static int run_rank(const void *arg, const struct ranks_slot *slot)
{
	struct p2p_rank *r = calloc(1, sizeof(*r));
	uint64_t all_wrong[RANKS_MAX], wrong = 0;
	int status = TOOL_OK, statuses[RANKS_MAX], err;
	char device_name[128] = "?";
	json_t *where = NULL;
	bool sim;

	if (!r) {
		ranks_abort(NULL, slot->shared);
		return TOOL_FAIL;
	}
	r->o = *(const struct p2p_opts *)arg;
	bench_rank_slot(&r->bench, slot);
	r->nranks = slot->shared->launch.nranks;
	sim = !strcmp(slot->shared->launch.kind, "sim");
	r->o.large = r->o.large ? r->o.large : sim ? 1 << 20 : 64 << 20;
	r->o.iters = r->o.iters ? r->o.iters : sim ? 2 : 10;
	r->o.rounds = r->o.rounds ? r->o.rounds : sim ? 2 : 5;
	err = open_rank(r);
	if (!err && !r->bench.rank) {
		r->bench.lib.device_name(r->bench.device, device_name, sizeof(device_name));
		where = tool_where_json(r->bench.lib.build(), &r->bench.lib, !r->o.no_host);
		print_title(r, device_name, where);
	}
	if (!err)
		err = measure_all(r);
	if (!err)
		err = bench_allgather(&r->bench, &r->wrong, sizeof(r->wrong), all_wrong);
	for (int i = 0; i < r->nranks && !err; i++)
		wrong += all_wrong[i];
	if (!err && !r->bench.rank)
		status = report(r, device_name, where, wrong);
	/* All ranks return rank 0's status. Nobody destroys a communicator that others still use. */
	if (!err)
		err = bench_allgather(&r->bench, &status, sizeof(status), statuses);
	if (err)
		ranks_abort(r->bench.ranks, r->bench.shared);
	status = err ? TOOL_FAIL : statuses[0];
	close_rank(r, !err);
	json_decref(where);
	free(r);
	return status;
}

int bench_p2p_main(int argc, char **argv)
{
	struct p2p_opts o = { .ranks = RANKS_OPTS(300, "shunt"), .small = 8, .check = true };
	int status;

	o.ranks.way_names = kind_names;
	status = options_parse(&bench_p2p_options, &o, argc, argv, NULL);
	if (status >= 0)
		return status;
	return o.ranks.worker_fd >= 0 ? ranks_slots_run(&o.ranks, run_rank, &o) : ranks_run(&o.ranks, argc, argv);
}

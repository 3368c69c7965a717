/* SPDX-License-Identifier: MIT */
/* The table on stdout, line by line, and the JSON file at the end. */
#include <jansson.h>
#include "tools/common/libc.h"
#include "tools/bench/bench.h"
#include "tools/common/where.h"

struct bench_report {
	const struct bench_opts *o;
	const struct ranks_launch *l;
	const struct bench_nccl *libs;
	json_t *root, *results;
	struct bench_means means, gemm_means; /* gemm: of the times during multiplications */
	json_t *init;                         /* --init */
	uint64_t wrong;
	/* --host, by library: sums over rows, and number of rows. */
	double own_us[RANKS_MAX_LIBS], forwarded_us[RANKS_MAX_LIBS], direct_us[RANKS_MAX_LIBS];
	unsigned own[RANKS_MAX_LIBS], forwarded[RANKS_MAX_LIBS];
};

static const char *const memory_text[BENCH_NMEMORIES] = {
	[BENCH_PLAIN] = "",
	[BENCH_ALLOCATED] = ", buffers of ncclMemAlloc",
	[BENCH_REGISTERED] = ", buffers of ncclMemAlloc, registered",
};

static void sim_print(const struct bench_report *r)
{
	if (!strcmp(r->l->kind, "sim"))
		puts("# the sim runs on CPU threads: its times say nothing about GPUs");
}

static void init_header_print(void)
{
	printf("#\n# %-51s %10s %10s | %10s %10s\n", "", "ms", "first", "MiB", "first");
	fflush(stdout);
}

static void header_print(const struct bench_report *r, const char *device_name, const char *version)
{
	const struct bench_opts *o = r->o;
	char where[400];

	printf("# shunt %s, %s, %d ranks as %s, %s (%s)\n", version, o->coll->name, r->l->nranks,
	    r->l->external       ? "launched from outside" :
	        o->ranks.threads ? "threads" :
	                           "processes",
	    r->l->kind, device_name);
	tool_where_show(json_object_get(r->root, "where"), where, sizeof(where));
	printf("# %s\n", where);
	for (int i = 0; i < o->ranks.nlibs; i++)
		printf("# %c = %s: %s, NCCL ABI %d%s\n", 'A' + i, r->libs[i].label, r->libs[i].path, r->libs[i].version,
		    memory_text[r->libs[i].buffers]);
	if (o->init) {
		printf("# medians of %d rounds, and the first one; on the slowest rank, and the one that it costs most "
		       "memory\n",
		    o->rounds);
		sim_print(r);
		init_header_print();
		return;
	}
	printf("# %d rounds of %d calls after %d; time is the median of rounds, us per call on the slowest rank; "
	       "bandwidths in GB/s\n",
	    o->rounds, o->iters, o->warmup);
	if (o->group > 1)
		printf("# calls come in groups of %u\n", o->group);
	if (o->rotate)
		printf("# buffers rotate through %" PRIu64 " MB a side\n", o->rotate >> 20);
	if (o->skew_us)
		printf("# every rank waits up to %u us before each call; its own waits are not counted\n", o->skew_us);
	if (o->host)
		puts("# times are those of the calls alone, on the host: us of the clock (p99 of it), cpu: us of CPU "
		     "time; what "
		     "they start is not in them");
	if (o->coll->rooted)
		printf("# root %d\n", o->root);
	if (o->gemm)
		puts("# +gemm: time beside matrix multiplications; alone, with: TFLOP/s of these without the calls and "
		     "beside them");
	if (o->check)
		printf("# every result checked; seed %" PRIu64 "\n", o->seed);
	sim_print(r);
	printf("#\n# %-37s", "");
	for (int i = 0; i < o->ranks.nlibs; i++)
		printf(" | %-*.59s", o->gemm ? 83 : 59, r->libs[i].label);
	printf("\n# %5s %10s %10s %5s %-5s %-3s", "size", "count", "dtype", "op", "mode", "to");
	for (int i = 0; i < o->ranks.nlibs; i++) {
		printf(" | %10s %10s %8s %8s %-11s %5s%s", "us", "p99", o->host ? "cpu" : "algbw",
		    o->host ? "-" : "busbw", "path", "wrong", i ? "  ratio" : "");
		if (o->gemm)
			printf(" %9s %6s %6s", "+gemm", "alone", "with");
	}
	putchar('\n');
	fflush(stdout);
}

struct bench_report *bench_report_create(const struct bench_opts *o, const struct ranks_launch *l,
    const struct bench_nccl *libs, const char *device_name, const struct tool_lib *lib)
{
	struct bench_report *r = calloc(1, sizeof(*r));
	json_t *list;

	if (!r)
		return NULL;
	r->o = o;
	r->l = l;
	r->libs = libs;
	list = json_array();
	for (int i = 0; i < o->ranks.nlibs; i++)
		json_array_append_new(list,
		    json_pack("{s:o, s:o, s:i, s:s}", "label", json_string_nocheck(libs[i].label), "path",
		        json_string_nocheck(libs[i].path), "version", libs[i].version, "buffers",
		        bench_memory_names[libs[i].buffers]));
	r->results = json_array();
	r->root =
	    json_pack("{s:s, s:s, s:i, s:s, s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:i, s:b, s:b, s:I, s:o, s:O}",
	        "shunt", lib->version(), "collective", o->coll->name, "ranks", l->nranks, "device", l->kind,
	        "device_name", device_name, "threads", o->ranks.threads, "warmup", o->warmup, "iters", o->iters,
	        "rounds", o->rounds, "buffers", (int)o->buffers, "group", (int)o->group, "root", o->root,
	        "rotate_bytes", (json_int_t)o->rotate, "skew_us", (int)o->skew_us, "host", o->host, "checked", o->check,
	        "seed", (json_int_t)o->seed, "libraries", list, "results", r->results);
	if (!r->root) {
		bench_report_destroy(r);
		return NULL;
	}
	json_object_set_new(r->root, "where", tool_where_json(lib->build(), lib, !o->no_host));
	header_print(r, device_name, lib->version());
	return r;
}

static const char *number(double v, char *buf)
{
	/* Four digits for the table; JSON has all. */
	snprintf(buf, 24, "%.*f", v < 10 ? 3 : v < 1000 ? 2 : v < 100000 ? 1 : 0, v);
	return buf;
}

static void row_print(struct bench_report *r, const struct bench_row *row)
{
	char size[24], wrong[24], a[24], b[24], c[24], d[24];

	printf("%7s %10" PRIu64 " %10s %5s %-5s %-3s", tool_format_size(row->bytes, size), row->count,
	    shunt_dtype_name(row->dtype), r->o->coll->reduces ? shunt_redop_name(row->redop) : "-",
	    bench_mode_names[row->way / BENCH_NPLACES], bench_place_names[row->way % BENCH_NPLACES]);
	for (int i = 0; i < r->o->ranks.nlibs; i++) {
		const struct bench_cell *cell = &row->cell[i];

		snprintf(wrong, sizeof(wrong), "%" PRIu64, cell->wrong);
		printf(" | %10s %10s %8s %8s %-11s %5s", number(cell->us, a), number(cell->p99_us, b),
		    number(r->o->host ? cell->cpu_us : cell->algbw, c), r->o->host ? "-" : number(cell->busbw, d),
		    cell->path, r->o->check ? wrong : "-");
		if (i)
			printf(" %6.2f", cell->us / row->cell[0].us);
		if (r->o->gemm)
			printf(" %9s %6.1f %6.1f", number(cell->gemm_us, a), cell->gemm_alone, cell->gemm_with);
	}
	putchar('\n');
	fflush(stdout);
}

static json_t *cell_json(const struct bench_report *r, const struct bench_cell *cell)
{
	json_t *rounds = json_array();

	for (int i = 0; i < r->o->rounds; i++)
		json_array_append_new(rounds, json_real(cell->rounds_us[i]));
	json_t *json = json_pack("{s:f, s:f, s:f, s:f, s:o, s:o, s:o}", "time_us", cell->us, "p99_us", cell->p99_us,
	    "algbw", cell->algbw, "busbw", cell->busbw, "path", json_string_nocheck(cell->path), "wrong",
	    r->o->check ? json_integer((json_int_t)cell->wrong) : json_null(), "rounds_us", rounds);

	if (r->o->host)
		json_object_set_new(json, "cpu_us", json_real(cell->cpu_us));
	if (r->o->gemm)
		json_object_set_new(json, "gemm",
		    json_pack("{s:f, s:f, s:f, s:f}", "time_us", cell->gemm_us, "busbw",
		        cell->busbw * cell->us / cell->gemm_us, "alone_tflops", cell->gemm_alone, "with_tflops",
		        cell->gemm_with));
	return json;
}

/* Extra cost of a forwarded call over a direct call of the real NCCL, where a run has both at the same size. */
static void forwarding_cost_add(struct bench_report *r, const struct bench_row *row)
{
	int direct = -1;

	for (int i = 0; i < r->o->ranks.nlibs; i++)
		if (!strcmp(r->libs[i].label, "nccl"))
			direct = i;
	for (int i = 0; i < r->o->ranks.nlibs; i++) {
		if (!r->libs[i].path_of)
			continue;
		if (strcmp(row->cell[i].path, "nccl")) {
			r->own_us[i] += row->cell[i].us;
			r->own[i]++;
		} else if (direct >= 0) {
			r->forwarded_us[i] += row->cell[i].us;
			r->direct_us[i] += row->cell[direct].us;
			r->forwarded[i]++;
		}
	}
}

static void forwarding_cost_print(const struct bench_report *r)
{
	for (int i = 0; i < r->o->ranks.nlibs; i++) {
		if (r->own[i])
			printf("# %s: own calls %.0f ns of the host's time on average\n", r->libs[i].label,
			    r->own_us[i] / r->own[i] * 1e3);
		if (r->forwarded[i])
			printf("# %s: forwarded calls %.0f ns, the same calls of nccl %.0f ns: %+.0f ns\n",
			    r->libs[i].label, r->forwarded_us[i] / r->forwarded[i] * 1e3,
			    r->direct_us[i] / r->forwarded[i] * 1e3,
			    (r->forwarded_us[i] - r->direct_us[i]) / r->forwarded[i] * 1e3);
	}
}

void bench_report_row(struct bench_report *r, const struct bench_row *row)
{
	json_t *cells = json_array();

	double us[RANKS_MAX_LIBS], gemm_us[RANKS_MAX_LIBS];

	row_print(r, row);
	forwarding_cost_add(r, row);
	for (int i = 0; i < r->o->ranks.nlibs; i++) {
		if (r->o->check)
			r->wrong += row->cell[i].wrong;
		us[i] = row->cell[i].us;
		gemm_us[i] = row->cell[i].gemm_us;
		json_array_append_new(cells, cell_json(r, &row->cell[i]));
	}
	bench_means_add(&r->means, row->way, us, r->o->ranks.nlibs);
	if (r->o->gemm)
		bench_means_add(&r->gemm_means, row->way, gemm_us, r->o->ranks.nlibs);
	json_array_append_new(r->results,
	    json_pack("{s:I, s:I, s:s, s:s, s:s, s:s, s:o}", "bytes", (json_int_t)row->bytes, "count",
	        (json_int_t)row->count, "dtype", shunt_dtype_name(row->dtype), "op", shunt_redop_name(row->redop),
	        "mode", bench_mode_names[row->way / BENCH_NPLACES], "place",
	        bench_place_names[row->way % BENCH_NPLACES], "libraries", cells));
}

void bench_report_counters(struct bench_report *r, int lib, const struct shunt_counter *rows, size_t n)
{
	printf("# counters of %s, rank 0\n", r->libs[lib].label);
	for (size_t i = 0; i < n; i++)
		printf("#   %-14s %-11s %12" PRIu64 " calls %16" PRIu64 " bytes%s%s\n", rows[i].op, rows[i].path,
		    rows[i].calls, rows[i].bytes, *rows[i].reason ? "  " : "", rows[i].reason);
}

static double medians_append(const double *values, int n, json_t **list_p)
{
	*list_p = json_array();
	for (int i = 0; i < n; i++)
		json_array_append_new(*list_p, json_real(values[i]));
	return bench_median(values, n, NULL);
}

void bench_report_init(
    struct bench_report *r, int lib, enum bench_init_what what, const double *us, const double *bytes)
{
	static const char *const names[BENCH_INIT_NSTEPS] = { "init", "first_call", "splits", "first_calls_of_splits" };
	char text[96], size[24], ms[4][24];
	json_t *us_list, *bytes_list;
	double us_median = medians_append(us, r->o->rounds, &us_list),
	       bytes_median = medians_append(bytes, r->o->rounds, &bytes_list);
	bool memory = strcmp(r->l->kind, "sim"); /* the sim does not count memory */

	if (!r->init) {
		r->init = json_array();
		json_object_set_new(r->root, "init", r->init);
		json_object_set_new(r->root, "comms", json_integer(r->o->comms));
		json_object_set_new(r->root, "first_call_bytes", json_integer((json_int_t)r->o->first));
	}
	json_array_append_new(r->init,
	    json_pack("{s:o, s:s, s:f, s:o, s:f, s:o}", "library", json_string_nocheck(r->libs[lib].label), "step",
	        names[what], "time_us", us_median, "rounds_us", us_list, "memory_bytes", bytes_median, "rounds_bytes",
	        bytes_list));
	if (what == BENCH_INIT_COMM)
		snprintf(text, sizeof(text), "ncclCommInitRank");
	else if (what == BENCH_INIT_CALL)
		snprintf(text, sizeof(text), "first %s of %s", r->o->coll->name, tool_format_size(r->o->first, size));
	else
		snprintf(text, sizeof(text),
		    what == BENCH_INIT_SPLIT ? "%u more by ncclCommSplit" : "first calls of these %u", r->o->comms);
	number(us_median / 1e3, ms[0]);
	number(us[0] / 1e3, ms[1]);
	snprintf(ms[2], sizeof(ms[2]), memory ? "%.1f" : "-", bytes_median / (1 << 20));
	snprintf(ms[3], sizeof(ms[3]), memory ? "%.1f" : "-", bytes[0] / (1 << 20));
	/* 0 us: the step was not done. */
	if (us_median > 0)
		printf(
		    "  %-20.20s %-30s %10s %10s | %10s %10s\n", r->libs[lib].label, text, ms[0], ms[1], ms[2], ms[3]);
	else if (r->o->comms)
		printf("  %-20.20s %-30s: it has no ncclCommSplit\n", r->libs[lib].label, text);
}

/* Prints one line, and returns it as JSON. lib: may be BENCH_BEST. */
static json_t *mean_print(const struct bench_report *r, const struct bench_means *m, int lib, const char *what)
{
	const char *name = lib == BENCH_BEST ? "the fastest of the others" : r->libs[lib].label;
	json_t *json = json_pack("{s:o, s:o, s:f}", "of", json_string_nocheck(lib == BENCH_BEST ? "best" : name),
	    "over", json_string_nocheck(r->libs[0].label), "all", bench_means_get(m, lib, -1));
	const char *comma = "";

	printf("# geometric mean%s of %s / %s: %.3f (", what, name, r->libs[0].label, bench_means_get(m, lib, -1));
	for (int way = 0; way < BENCH_NWAYS; way++) {
		char text[32];

		if (!m->n[way])
			continue;
		snprintf(text, sizeof(text), "%s %s", bench_mode_names[way / BENCH_NPLACES],
		    bench_place_names[way % BENCH_NPLACES]);
		printf("%s%s %.3f", comma, text, bench_means_get(m, lib, way));
		comma = ", ";
		json_object_set_new(json, text, json_real(bench_means_get(m, lib, way)));
	}
	puts(")");
	return json;
}

static json_t *means_print(const struct bench_report *r, const struct bench_means *m, const char *what)
{
	json_t *list = json_array();

	for (int i = 1; i < r->o->ranks.nlibs; i++)
		json_array_append_new(list, mean_print(r, m, i, what));
	if (r->o->ranks.nlibs > 2)
		json_array_append_new(list, mean_print(r, m, BENCH_BEST, what));
	return list;
}

int bench_report_finish(struct bench_report *r)
{
	int status = r->wrong ? TOOL_FAIL : TOOL_OK;

	if (!r->o->init) {
		if (r->o->check)
			printf("# %" PRIu64 " wrong elements\n", r->wrong);
		json_object_set_new(r->root, "geometric_means", means_print(r, &r->means, ""));
		if (r->o->gemm)
			json_object_set_new(
			    r->root, "gemm_geometric_means", means_print(r, &r->gemm_means, " beside multiplications"));
		if (r->o->host)
			forwarding_cost_print(r);
		if (r->o->check)
			json_object_set_new(r->root, "wrong", json_integer((json_int_t)r->wrong));
	}
	if (r->o->ranks.json && tool_file_json(r->o->ranks.json, r->root))
		status = TOOL_FAIL;
	fflush(stdout);
	return status;
}

void bench_report_destroy(struct bench_report *r)
{
	if (!r)
		return;
	json_decref(r->results);
	json_decref(r->root);
	free(r);
}

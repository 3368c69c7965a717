/* SPDX-License-Identifier: MIT */
/* The tasks of a run of shunt tune: points of an earlier run, points to measure, and the file at the end. */
#include "tools/common/libc.h"
#include "tools/tune/rank.h"

int tune_tasks_open(struct tune_rank *r)
{
	struct known {
		uint64_t coll, bytes;
	} *mine, *all;
	size_t n = 0, counts[RANKS_MAX];
	int err = 0;

	if (!r->bench.rank)
		err = tune_path(r->o, r->cache_dir, &r->results->machine, r->path);
	if (!err && !r->bench.rank)
		err = tune_partial_open(r->o, r->path, r->results, &r->partial);
	if (err)
		return err;
	n = r->results->n;
	err = bench_allgather(&r->bench, &n, sizeof(n), counts);
	n = err ? 0 : counts[0];
	if (err || !n)
		return err;
	mine = calloc(n, sizeof(*mine));
	all = calloc(n * (size_t)r->nranks, sizeof(*all));
	if (!mine || !all)
		err = -ENOMEM;
	for (size_t i = 0; !err && !r->bench.rank && i < n; i++)
		mine[i] = (struct known){ r->results->points[i].coll, r->results->points[i].bytes };
	if (!err)
		err = bench_allgather(&r->bench, mine, n * sizeof(*mine), all);
	for (size_t i = 0; !err && r->bench.rank && i < n; i++)
		r->results->points[r->results->n++] =
		    (struct tune_point){ .coll = (enum bench_coll_id)all[i].coll, .bytes = all[i].bytes };
	free(mine);
	free(all);
	return err;
}

/* ---- text ---- */

/* "40 s" or "12 min". */
static const char *duration(double us, char text[32])
{
	snprintf(text, 32, us < 90e6 ? "%.0f s" : "%.0f min", us < 90e6 ? us / 1e6 : us / 60e6);
	return text;
}

static void progress_print(const struct tune_point *p, size_t done, size_t total, double left_us)
{
	char size[24], nccl[32] = "", left[32], launch[16];

	if (p->nccl_us > 0)
		snprintf(nccl, sizeof(nccl), ", nccl %.2f us", p->nccl_us);
	printf("[%zu/%zu] %s %s: %s, launch %s, %.2f us%s, before (%s) %.2f us%s", done, total,
	    bench_colls[p->coll].name, tool_format_size(p->bytes, size), p->algo->name,
	    tune_geometry_text(&p->geometry, launch), p->us, nccl, p->before, p->before_us, p->forward ? ": nccl" : "");
	if (left_us > 0)
		printf(" (%s left)", duration(left_us, left));
	putchar('\n');
	fflush(stdout);
}

static void schedule_print(const struct tune_rank *r, size_t n, double cost_us)
{
	char whole[32], bound[32];

	if (!n)
		return;
	printf("# %zu points to measure, which takes about %s", n, duration(cost_us, whole));
	if (r->o->minutes > 0)
		printf("; it ends after %s", duration(r->o->minutes * 60e6, bound));
	else
		printf(" (--minutes bounds that%s)", r->o->quick ? "" : ", --quick measures less");
	putchar('\n');
	fflush(stdout);
}

/* ---- tasks ---- */

/* The collectives that all libraries have. */
static unsigned colls_available(const struct tune_rank *r)
{
	const struct shunt_machine *m = &r->results->machine;
	const struct shunt_topology hosts = {
		.nranks = m->nranks, .nislands = m->nhosts, .rails = m->nhosts ? m->nranks / m->nhosts : 0
	};
	const struct shunt_sel_key key = { .topology = &hosts, .pairs = true };
	unsigned colls = 0;

	for (int coll = 0; bench_colls[coll].name; coll++) {
		const char *missing = bench_coll_missing(&bench_colls[coll], &r->bench.nccl[TUNE_SHUNT]);

		if (!(r->o->colls >> coll & 1))
			continue;
		if (r->o->over_hosts && !shunt_tuning_serves_islands(&key, tune_kind((enum bench_coll_id)coll)))
			continue;
		if (!missing && r->have_nccl)
			missing = bench_coll_missing(&bench_colls[coll], &r->bench.nccl[TUNE_NCCL]);
		if (!missing)
			colls |= 1u << coll;
		else if (!r->bench.rank)
			printf("# %s is left out: there is no nccl%s\n", bench_colls[coll].name, missing);
	}
	return colls;
}

/* Number of tasks without a point from an earlier run; *cost_us_p: their estimated time. */
static size_t tasks_left(const struct tune_rank *r, double *cost_us_p)
{
	size_t n = 0;

	*cost_us_p = 0;
	for (size_t i = 0; i < r->ntasks; i++)
		if (!tune_point_find(r->results, r->tasks[i].coll, r->tasks[i].bytes)) {
			*cost_us_p += r->tasks[i].cost_us;
			n++;
		}
	return n;
}

/* Checks the time limit; rank 0's clock decides for all. */
static int time_check(struct tune_rank *r, bool *time_is_up_p)
{
	double mine = ranks_now_us() - r->start_us, all[RANKS_MAX];
	int err = 0;

	*time_is_up_p = false;
	if (r->o->minutes <= 0)
		return 0;
	err = bench_allgather(&r->bench, &mine, sizeof(mine), all);
	*time_is_up_p = !err && all[0] > r->o->minutes * 60e6;
	return err;
}

int tune_tasks_run(struct tune_rank *r)
{
	double left_us, done_us = 0, begin;
	size_t left, done;
	struct tune_point p;
	bool time_is_up = false;
	int err = 0;

	r->ntasks = tune_schedule(r->o, colls_available(r), r->nranks, r->sim, r->have_nccl, r->tasks);
	left = tasks_left(r, &left_us);
	done = r->ntasks - left;
	if (!r->bench.rank)
		schedule_print(r, left, left_us);
	begin = ranks_now_us();
	for (size_t i = 0; !err && i < r->ntasks; i++) {
		const struct tune_task *t = &r->tasks[i];

		if (tune_point_find(r->results, t->coll, t->bytes))
			continue;
		err = time_check(r, &time_is_up);
		if (err || time_is_up)
			break;
		atomic_store(&r->bench.progress->bytes, t->bytes);
		err = r->results->n == TUNE_MAX_POINTS ? -E2BIG : tune_point_measure(r, t, &p);
		if (err)
			break;
		r->results->points[r->results->n++] = p;
		left_us -= t->cost_us;
		done_us += t->cost_us;
		done++;
		if (r->bench.rank)
			continue;
		/* The actual pace corrects the estimate. */
		progress_print(&p, done, r->ntasks, left_us * (ranks_now_us() - begin) / done_us);
		err = tune_partial_add(r->partial, &p);
	}
	if (time_is_up && !r->bench.rank)
		printf("# the time is over: %zu of %zu points are measured; the same command goes on from there\n",
		    done, r->ntasks);
	return err;
}

/* ---- results ---- */

static int by_coll_and_size(const void *a, const void *b)
{
	const struct tune_point *x = a, *y = b;

	if (x->coll != y->coll)
		return x->coll < y->coll ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Drops collectives with too few points: they keep the built-in table's rows. False: no collective is left. */
static bool results_reduce(struct tune_rank *r)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->results->n; i++)
		if (tune_coll_covered(r->results, r->tasks, r->ntasks, r->results->points[i].coll))
			r->results->points[kept++] = r->results->points[i];
	for (int coll = 0; bench_colls[coll].name; coll++) {
		bool planned = false;

		for (size_t i = 0; i < r->ntasks; i++)
			planned = planned || (int)r->tasks[i].coll == coll;
		if (planned && !tune_coll_covered(r->results, r->tasks, r->ntasks, (enum bench_coll_id)coll))
			printf("# too little of %s is measured: its rows are the built-in table's\n",
			    bench_colls[coll].name);
	}
	r->results->n = kept;
	return kept;
}

int tune_tasks_finish(struct tune_rank *r)
{
	double left_us;
	bool done;
	int err;

	if (r->bench.rank)
		return 0;
	done = !tasks_left(r, &left_us);
	if (!results_reduce(r)) {
		tool_error(
		    "of no collective enough is measured to write %s: what there is is kept, give more --minutes",
		    r->path);
		return -ETIME;
	}
	tune_merge(r->o, r->path, r->results);
	qsort(r->results->points, r->results->n, sizeof(r->results->points[0]), by_coll_and_size);
	err = tune_write(r->results, &r->bench.lib, r->path);
	if (err)
		return err;
	tune_print(r->results);
	printf("# written to %s\n", r->path);
	fflush(stdout);
	tune_partial_close(r->partial, done);
	r->partial = NULL;
	return 0;
}

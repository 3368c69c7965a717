/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_TUNE_TUNE_H
#define SHUNT_TOOLS_TUNE_TUNE_H
/*
 * shunt tune: for each collective and size, which of our algorithms with how many blocks and threads is the fastest on
 * this machine, and is it faster than the real NCCL? The answers become a tuning file (docs/tuning.md).
 *
 * The ranks are workers as those of shunt bench (bench.c starts and watches them); tune_schedule.c says what is
 * measured, tune_rank.h and its files do it, tune_select.c decides, tune_file.c writes. What is measured is kept point
 * by point in a partial file, so that a run that was stopped goes on where it was.
 */
#include <jansson.h>
#include "algos/select/tuning.h"
#include "tools/bench/bench.h"

enum {
	TUNE_MAX_CANDIDATES = 96,
	TUNE_MAX_POINTS = 1024,
	TUNE_MAX_LIST = 8,
	TUNE_FINALISTS = 4,
	TUNE_QUICK_ROUNDS = 3,
	TUNE_CHECK_BYTES = 1 << 20, /* larger results are not checked: shunt conform does that */
};

struct tune_opts {
	struct bench_opts base;
	unsigned colls; /* bit set of enum bench_coll_id */
	enum shunt_dtype dtype;
	const char *out;  /* NULL: in the cache directory */
	const char *show; /* print this file and measure nothing */
	bool restart, no_nccl, quick;
	double minutes; /* then no more is measured; 0: no bound */
	double margin;  /* we have to be faster than NCCL by this part */
	unsigned blocks[TUNE_MAX_LIST], threads[TUNE_MAX_LIST];
	int nblocks, nthreads; /* 0: by device */
};

/* What is measured: one of ours, or the real NCCL. */
struct tune_candidate {
	const struct shunt_algo *algo; /* NULL: the call goes its present way */
	struct shunt_geometry geometry;
	bool nccl;
};

/* One collective at one size, and what came of it. Times are us per call on the slowest rank; 0: not measured. */
struct tune_point {
	enum bench_coll_id coll;
	uint64_t bytes;                /* as nccl-tests counts them */
	uint64_t part;                 /* of count elements, as the table counts them */
	const struct shunt_algo *algo; /* the best of ours */
	struct shunt_geometry geometry;
	bool forward;                  /* NCCL is faster, or as fast */
	char before[24];               /* the path of the built-in table */
	double us, nccl_us, before_us; /* in graphs */
	double eager_us, nccl_eager_us;
};

struct tune_results {
	struct shunt_machine machine;
	char nccl[24]; /* version; "": not measured */
	char dtype[16];
	size_t n;
	struct tune_point points[TUNE_MAX_POINTS];
};

enum shunt_kind tune_kind(enum bench_coll_id coll);

/* ---- tune_schedule.c ---- */

/* A round of a candidate is so many launches of a graph of so many calls, or their product of calls. */
struct tune_burst {
	int calls, launches;
};
struct tune_burst tune_burst(bool sim, uint64_t bytes);

struct tune_task {
	enum bench_coll_id coll;
	uint64_t count, bytes, part;
	unsigned level; /* coarse ones first: 0 to 3 */
	double cost_us; /* an estimate */
};
/* Of a size; false: it is too small for so many ranks. */
bool tune_task_make(
    const struct tune_opts *o, enum bench_coll_id coll, uint64_t bytes, int nranks, struct tune_task *t);
/*
 * What is to be measured, in order: a coarse grid over the sizes of all collectives, then finer ones, so that a run may
 * end early. colls: bit set; tasks has room for TUNE_MAX_POINTS. Returns how many.
 */
size_t tune_schedule(
    const struct tune_opts *o, unsigned colls, int nranks, bool sim, bool nccl, struct tune_task *tasks);
/* What was measured there, or NULL. */
const struct tune_point *tune_point_find(const struct tune_results *r, enum bench_coll_id coll, uint64_t bytes);
/* Is enough of the collective measured for rows of its own? (The coarse grid.) */
bool tune_coll_covered(const struct tune_results *r, const struct tune_task *tasks, size_t n, enum bench_coll_id coll);

/* ---- tune_select.c ---- */

/*
 * What there is to measure for a call of this many bytes; returns how many (list has TUNE_MAX_CANDIDATES). The first is
 * the present way.
 */
int tune_candidates(const struct tune_opts *o, enum bench_coll_id coll, uint64_t part, int nranks, bool sim, bool nccl,
    struct tune_candidate *list);
/*
 * The fastest of ours among n candidates. One that the algorithm chooses by itself is kept if it is nearly as fast, so
 * that noise decides nothing. -1: there is none.
 */
int tune_best(const struct tune_candidate *list, const double *us, int n);
/* Is the call NCCL's? us: ours. Either pair of times may be 0: not measured. */
bool tune_forwards(double us, double nccl_us, double eager_us, double nccl_eager_us, double margin);
/*
 * The points (any order) as rows for shunt_tuning_finalize(): a size between two that were measured is ours only if
 * both are. rows has room for 2 x n + SHUNT_NKINDS. Returns how many.
 */
size_t tune_rows(const struct tune_point *points, size_t n, struct shunt_tuning_row *rows);

/* ---- tune_file.c ---- */

/* Where the results go: o->out, or a name in the cache directory, which is made. 0 or -errno after a message. */
int tune_path(const struct tune_opts *o, const char *cache_dir, const struct shunt_machine *m, char path[PATH_MAX]);
/*
 * The partial file beside path: reads the points that are there if it was made by the same version on the same machine
 * with the same collectives, sizes and options, and keeps it open for more. 0 or -errno after a message.
 */
struct tune_partial;
int tune_partial_open(
    const struct tune_opts *o, const char *path, struct tune_results *r, struct tune_partial **partial_p);
int tune_partial_add(struct tune_partial *partial, const struct tune_point *p);
/* done: it is not needed any more. */
void tune_partial_close(struct tune_partial *partial, bool done);

/*
 * Adds what the file holds of collectives that this run is not about, if it is of the same machine, NCCL and data type:
 * tuning one collective again takes nothing from the others.
 */
void tune_merge(const struct tune_opts *o, const char *path, struct tune_results *r);
/* Writes the tuning file, after it was read back as the library will. 0 or -errno after a message. */
int tune_write(const struct tune_results *r, const char *path);
/* The table of before and after, of results or of a tuning file. Exit status. */
void tune_print(const struct tune_results *r);
/* "16x256", or "own" for the algorithm's own choice. */
const char *tune_geometry_text(const struct shunt_geometry *geometry, char text[16]);
int tune_show(const char *path);

/* ---- tune_rank.c ---- */

/* Worker: its rank. Exit status. */
int tune_worker(const struct tune_opts *o);
#endif

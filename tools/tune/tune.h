/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * shunt tune: finds, for each collective and size, the fastest of our algorithms on this machine, with its number of
 * blocks and threads, and whether it is faster than the real NCCL. The result is a tuning file (docs/tuning.md).
 *
 * tools/common/ranks starts and watches the ranks.
 *
 *   schedule.c           points to measure
 *   rank.h, rank.c, measure.c, tasks.c  measure them
 *   select.c             decides
 *   file.c               writes
 *
 * A partial file keeps each measured point: a run that was stopped continues from there.
 */
#include <jansson.h>
#include "algos/select/tuning.h"
#include "tools/bench/bench.h"

enum {
	TUNE_MAX_CANDIDATES = 96,
	TUNE_MAX_POINTS = 1024,
	TUNE_FINALISTS = 4,
	TUNE_QUICK_ROUNDS = 3,
	TUNE_CHECK_BYTES = 1 << 20, /* larger results are not checked; shunt conform does that */
};

struct tune_opts {
	struct bench_opts base;
	unsigned colls; /* bit set of enum bench_coll_id */
	enum shunt_dtype dtype;
	const char *out;   /* NULL: in the cache directory */
	const char *show;  /* print this file and measure nothing */
	const char *share; /* copy this file for others */
	bool restart, no_nccl, quick;
	bool over_hosts;                    /* found out by the ranks, as are the next ones */
	uint8_t link, islands;              /* as in struct shunt_machine */
	double minutes;                     /* time limit; 0: none */
	double margin;                      /* required advantage over NCCL, as a fraction */
	struct option_list blocks, threads; /* empty: the default of the device */
};

/* A candidate: one of our algorithms, or the real NCCL. */
struct tune_candidate {
	const struct shunt_algo *algo; /* NULL: the present decision for the call */
	struct shunt_geometry geometry;
	bool nccl, windows; /* windows: NCCL's, with buffers that are registered with it */
};

/* One collective at one size, and its results. Times are us per call on the slowest rank; 0: not measured. */
struct tune_point {
	enum bench_coll_id coll;
	uint64_t bytes;                /* as nccl-tests counts */
	uint64_t part;                 /* of `count` elements, as the table counts */
	const struct shunt_algo *algo; /* our best */
	struct shunt_geometry geometry;
	bool forward;                  /* NCCL is as fast or faster */
	char before[24];               /* the path of the built-in table */
	double us, nccl_us, before_us; /* in graphs */
	double eager_us, nccl_eager_us;
	double windows_us;    /* NCCL with registered buffers, in graphs beside our best, whose buffers need not be */
	bool windows_forward; /* ... and so it gets calls in windows */
};

struct tune_results {
	struct shunt_machine machine;
	char nccl[24]; /* version; "": not measured */
	char dtype[16];
	size_t n;
	struct tune_point points[TUNE_MAX_POINTS];
};

enum shunt_kind tune_kind(enum bench_coll_id coll);

/* ---- schedule.c ---- */

/* A round of a candidate: launches of a graph of `calls` calls, or calls x launches eager calls. */
struct tune_burst {
	int calls, launches;
};
struct tune_burst tune_burst(bool sim, uint64_t bytes);

struct tune_task {
	enum bench_coll_id coll;
	uint64_t count, bytes, part;
	unsigned level; /* 0 to 3, coarse ones first */
	double cost_us; /* estimate */
};
/* A task for a size; false: the size is too small for this number of ranks. */
bool tune_task_make(
    const struct tune_opts *o, enum bench_coll_id coll, uint64_t bytes, int nranks, struct tune_task *t);
/*
 * The tasks in order: a coarse grid of sizes for all collectives, then finer ones, so that a run may end early. colls:
 * bit set; tasks: room for TUNE_MAX_POINTS. Returns their number.
 */
size_t tune_schedule(
    const struct tune_opts *o, unsigned colls, int nranks, bool sim, bool nccl, struct tune_task *tasks);
/* The measured point, or NULL. */
const struct tune_point *tune_point_find(const struct tune_results *r, enum bench_coll_id coll, uint64_t bytes);
/* True: enough points of the collective (the coarse grid) for rows in the file. */
bool tune_coll_covered(const struct tune_results *r, const struct tune_task *tasks, size_t n, enum bench_coll_id coll);

/* ---- select.c ---- */

/*
 * Candidates for a call of `part` bytes; returns their number (list: TUNE_MAX_CANDIDATES). The first one is the present
 * decision.
 */
int tune_candidates(const struct tune_opts *o, enum bench_coll_id coll, uint64_t part, int nranks, bool sim, bool nccl,
    struct tune_candidate *list);
/*
 * Index of our fastest among n candidates. A candidate with the algorithm's own geometry wins if it is nearly as fast,
 * so that noise decides nothing. -1: there is no candidate.
 */
int tune_best(const struct tune_candidate *list, const double *us, int n);
/* True: NCCL gets the call. us: our time. Either pair of times may be 0: not measured. */
bool tune_forwards(double us, double nccl_us, double eager_us, double nccl_eager_us, double margin);
/*
 * Turns points (any order) into rows for shunt_tuning_finalize(). A size between two measured ones is ours only if both
 * are. rows: room for 2 x n + SHUNT_NKINDS. Returns their number.
 */
size_t tune_rows(const struct tune_point *points, size_t n, struct shunt_tuning_row *rows);

/*
 * The part from which NCCL gets the collective's calls in windows, all larger measured ones included. False: NCCL was
 * not measured with them. *from_p: UINT64_MAX: nowhere.
 */
bool tune_windows_from(const struct tune_point *points, size_t n, enum bench_coll_id coll, uint64_t *from_p);

/* ---- file.c ---- */

/* Path of the tuning file: o->out, or a name in the cache directory, which is created. 0 or -errno after a message. */
int tune_path(const struct tune_opts *o, const char *cache_dir, const struct shunt_machine *m, char path[PATH_MAX]);
/*
 * Opens the partial file, PATH.partial, and keeps it open. Reads its points if the same version wrote it on the same
 * machine with the same collectives, sizes and options. 0 or -errno after a message.
 */
struct tune_partial;
int tune_partial_open(
    const struct tune_opts *o, const char *path, struct tune_results *r, struct tune_partial **partial_p);
int tune_partial_add(struct tune_partial *partial, const struct tune_point *p);
/* done: deletes the file. */
void tune_partial_close(struct tune_partial *partial, bool done);

/*
 * Adds the file's collectives that this run does not tune, if machine, NCCL and data type are the same: tuning one
 * collective again keeps the others.
 */
void tune_merge(const struct tune_opts *o, const char *path, struct tune_results *r);
/* Writes the tuning file, after a check that the library can read it. 0 or -errno after a message. */
int tune_write(const struct tune_results *r, const struct tool_lib *lib, const char *path);
/* Prints the table of before and after, from results or from a tuning file. */
void tune_print(const struct tune_results *r);
/* "16x256", or "own" for the algorithm's own geometry. */
const char *tune_geometry_text(const struct shunt_geometry *geometry, char text[16]);
int tune_show(const char *path);
/* Writes a file that others on machines of this kind can use: without the name of the host. An exit status. */
int tune_share(const char *path, const char *out);

/* ---- rank.c ---- */

/* Worker process: runs its rank. Exit status. */
int tune_worker(const struct tune_opts *o);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Crossover points and launch geometry as data: for a kind of machine and a number of ranks, which algorithm takes
 * which size, with how many blocks, threads and channels. The built-in tables are for generations of GPUs (compute
 * capabilities) and the sim. A file that `shunt tune` made for this very machine replaces them (docs/tuning.md has its
 * format).
 *
 * All ranks of a communicator use one table, which the set-up determines. Before the set-up, Shunt takes a call if any
 * table that the set-up may agree on says so; the call is decided again after the set-up.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "algos/algo.h"
#include "device/gpu_ops.h"

#define SHUNT_TUNING_FORMAT 1             /* of the files */
#define SHUNT_TUNING_MAX_BYTES (1u << 20) /* ... and the largest of them */
#define SHUNT_TUNING_MAX_ROWS 1024u

struct shunt_tuning_row {
	enum shunt_kind kind;
	bool forward;  /* a real NCCL, if there is one, is faster; algo is still Shunt's best */
	uint64_t upto; /* bytes of count elements (of one part, where there are parts), inclusive; UINT64_MAX: no end */
	const struct shunt_algo *algo;
	struct shunt_geometry geometry;
};

/* The machine that a file's table was measured on. */
struct shunt_machine {
	char gpu[64];
	unsigned cc;     /* compute capability x 10; 0 on the sim */
	unsigned driver; /* CUDA version of the driver, 13000 for 13.0; 0 on the sim */
	int nranks;
	int nhosts;   /* that the ranks are on, each as many; 0: one host */
	char net[16]; /* the provider between the hosts, "tcp"; "" on one host */
	/* Of one host without NVLink between all ranks: enum shunt_link of the slowest pair, else 0; islands, 0: one.
	 */
	uint8_t link, islands;
	bool sim;
	int nccl; /* version of the real NCCL, 22809 for 2.28.9; 0: none */
	int nvls; /* 1: NCCL uses NVLink multicast (algos/select/nvls.h); 0: it does not; -1: a file does not say */
};

struct shunt_tuning {
	struct shunt_machine machine;
	const char *source; /* in words, or the file's path */
	bool builtin;
	bool vs_nccl; /* the real NCCL was measured, too */
	/* Of a file: sizes, as in rows, from which NCCL is the faster one for calls in windows; UINT64_MAX: nowhere. */
	uint64_t windows_from[SHUNT_NKINDS];
	uint32_t windows; /* bits of the kinds for which the file says so */
	uint32_t own;     /* of a file: bits of the kinds that it has; other kinds have the built-in table's rows */
	uint64_t hash;    /* of all members above except source and own, and of the rows */
	size_t nrows;
	struct shunt_tuning_row *rows;    /* by kind, then by size; the last one of each kind has no end */
	uint16_t first[SHUNT_NKINDS + 1]; /* rows of kind k: first[k] to first[k + 1] - 1 */
};

/* The first row of the kind that goes up to bytes or more; NULL: the table does not have this kind. */
const struct shunt_tuning_row *shunt_tuning_row(const struct shunt_tuning *t, enum shunt_kind kind, uint64_t bytes);

/*
 * The row for ranks that have no file's table in common: the built-in table's, or before the set-up as said above.
 * *table_p: the row's table. NULL: no table for this number of ranks, or no row of this kind.
 */
const struct shunt_tuning_row *shunt_tuning_find(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes, const struct shunt_tuning **table_p);

/*
 * The algorithm for a call of so many ranks whose buffers lie in windows, if that algorithm pays at this size, or if no
 * SMs may be used; else NULL, and the tables count. The same for all machines.
 */
const struct shunt_algo *shunt_tuning_symmem(int nranks, bool no_sms, enum shunt_kind kind, uint64_t bytes);

/*
 * The size from which calls in windows are the real NCCL's, unless shunt_tuning_symmem has an algorithm for them;
 * UINT64_MAX: the tables count. Not for communicators without a real NCCL, nor where sums must have Shunt's order.
 * *file_p: the answer is from the tuning file.
 */
uint64_t shunt_tuning_windows_from(const struct shunt_sel_key *sel_key, enum shunt_kind kind, bool *file_p);

/* The built-in table of the nearest generation; NULL: there is no table for so many ranks. */
const struct shunt_tuning *shunt_tuning_builtin(bool sim, unsigned cc, int nranks);
/* The same for a communicator: over PCIe and through shared memory there are others. */
const struct shunt_tuning *shunt_tuning_builtin_of(const struct shunt_sel_key *key);
/* Table i of them, or NULL. */
const struct shunt_tuning *shunt_tuning_builtin_at(size_t i);
/* Hash of all built-in tables: ranks with different ones must not run together. */
uint64_t shunt_tuning_builtin_hash(void);

/*
 * Files. A set is the files that SHUNT_TUNING_FILE names (files and directories, separated by colons; "none": no file,
 * not even of the cache) and every .json in tuning/ of the cache directory. Files that are broken or of another version
 * are left out, with one line of log.
 */
struct shunt_tuning_set {
	struct shunt_tuning **tables; /* in the order in which they were named */
	size_t n;
	bool *warned; /* why table i does not count, or a part of it, was logged */
};
/* list and cache_dir: values of the variables. The set can be used in any case. */
void shunt_tuning_set_load(struct shunt_tuning_set *set, const char *list, const char *cache_dir);
/*
 * The ready files of the installation, which nothing takes by itself. The set is complete in any case.
 */
void shunt_tuning_set_load_ready(struct shunt_tuning_set *set);
void shunt_tuning_set_finish(struct shunt_tuning_set *set);
/* The process's set, read by the first call. */
struct shunt_tuning_set *shunt_tuning_files(void);
/*
 * The table that was made for this machine, or NULL. takes_all: the file need not have been measured against the real
 * NCCL, or against this version. A file that does not say whether NCCL used multicast is taken where NCCL uses no
 * multicast, whatever NCCL's version. logs: if no table for this number of ranks fits, log each of them once.
 */
const struct shunt_tuning *shunt_tuning_match(
    struct shunt_tuning_set *set, const struct shunt_machine *m, bool takes_all, bool logs);
/*
 * Logs, once for each file, a plug-in that the table names and the ranks do not have. Its sizes go by the built-in
 * table.
 */
struct shunt_plugin_set;
void shunt_tuning_tell_missing(const struct shunt_tuning *table, const struct shunt_plugin_set *plugins);
/*
 * True: Shunt can run the kind over the key's islands. In front of a real NCCL only ranks of one rail are connected, as
 * each island's rank i is with the others' rank i, unless the key has pairs. Messages need these in any case: the ranks
 * without a call are ready for a set-up only then (docs/decisions/025.md).
 */
bool shunt_tuning_serves_islands(const struct shunt_sel_key *key, enum shunt_kind kind);
/*
 * Which library was the faster one for a kind that is served: says the file's table, or else the measurements of such
 * islands. Before the set-up: Shunt, if any table that the ranks may agree on says so. *algo_p: Shunt's algorithm.
 */
enum shunt_tuning_side { SHUNT_TUNING_UNMEASURED, SHUNT_TUNING_NCCLS, SHUNT_TUNING_OURS };
enum shunt_tuning_side shunt_tuning_over_islands(
    const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes, const struct shunt_algo **algo_p);
/* Calls add with the sizes at which that changes, if no file has the kind. */
void shunt_tuning_islands_crossovers(
    const struct shunt_sel_key *key, enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx);
/* Of the measurements that are built in: as for shunt_tuning_builtin_hash. */
uint64_t shunt_tuning_islands_hash(uint64_t seed);
/* nccl, nvls: as in the struct. Of one host. */
void shunt_machine_describe(const struct shunt_gpu_info *gpu, int nranks, int nccl, bool nvls, struct shunt_machine *m);
/* What joins its ranks, of one host, once they have agreed on links. */
void shunt_machine_join(struct shunt_machine *m, const struct shunt_topology *t);

/*
 * Reads a file's text, which may be anything. 0; -EINVAL: broken; -EXDEV: of another version of Shunt or of the format;
 * -EFBIG, -ENOMEM. On errors reason gets one line, which names source.
 */
int shunt_tuning_parse(
    const char *source, const char *text, size_t bytes, struct shunt_tuning **t_p, char *reason, size_t reason_bytes);
int shunt_tuning_read(const char *path, struct shunt_tuning **t_p, char *reason, size_t reason_bytes);
void shunt_tuning_free(struct shunt_tuning *t); /* NULL allowed */

/*
 * For code that makes tables: sorts the rows (in any order, with machine set), adds an open end to each kind, takes
 * missing kinds from the built-in table, and hashes. 0, -EINVAL (two rows of a kind have the same size), -ENOMEM.
 */
int shunt_tuning_finalize(struct shunt_tuning *t);

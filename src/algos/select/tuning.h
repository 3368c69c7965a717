/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_ALGOS_SELECT_TUNING_H
#define SHUNT_ALGOS_SELECT_TUNING_H
/*
 * Crossover points and launch geometry as data: for a kind of machine and a number of ranks, which algorithm takes
 * which size, and with how many blocks, threads and channels. The built-in tables are for generations of GPUs (compute
 * capabilities) and the sim; a file that `shunt tune` made for this very machine takes their place (docs/tuning.md has
 * its format).
 *
 * All ranks of a communicator use one table. Before they have met, none knows which: then a call counts as ours if it
 * is ours by any table that the set-up may agree on, and is looked at again after it.
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
	bool forward;  /* where there is a real NCCL, it is the faster one; algo is the best of ours all the same */
	uint64_t upto; /* bytes of count elements (of one part, where there are parts), inclusive; UINT64_MAX: no end */
	const struct shunt_algo *algo;
	struct shunt_geometry geometry;
};

/* What a file's table was measured on. */
struct shunt_machine {
	char gpu[64];
	unsigned cc;     /* compute capability x 10; 0 on the sim */
	unsigned driver; /* CUDA version of the driver, 13000 for 13.0; 0 on the sim */
	int nranks;
	bool sim;
};

struct shunt_tuning {
	struct shunt_machine machine;
	const char *source; /* in words, or the file's path */
	bool builtin;
	bool vs_nccl;  /* the real NCCL was measured, too */
	uint32_t own;  /* of a file: bits of the kinds that it speaks of; rows of the others are the built-in table's */
	uint64_t hash; /* of everything above but source and own, and of the rows */
	size_t nrows;
	struct shunt_tuning_row *rows;    /* by kind, then by size; each kind that has any ends without end */
	uint16_t first[SHUNT_NKINDS + 1]; /* rows of kind k: first[k] to first[k + 1] - 1 */
};

/* The first row of the kind whose size reaches bytes, or NULL if the table says nothing of this kind. */
const struct shunt_tuning_row *shunt_tuning_row(const struct shunt_tuning *t, enum shunt_kind kind, uint64_t bytes);

/*
 * What the selection key's ranks go by if they did not agree on a table: the built-in one; see above for what is done
 * before they have met. *table_p: whose row it is. NULL: no table for so many ranks, or nothing for this kind.
 */
const struct shunt_tuning_row *shunt_tuning_find(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes, const struct shunt_tuning **table_p);

/*
 * The algorithm for a call whose buffers lie in windows, where one is worth it from this size on, or the communicator
 * wants none of the SMs used; else NULL, and the tables count. The same for all machines.
 */
const struct shunt_algo *shunt_tuning_symmem(const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes);

/* The built-in table of the nearest generation that there is one for; NULL: more ranks than there are tables for. */
const struct shunt_tuning *shunt_tuning_builtin(bool sim, unsigned cc, int nranks);
/* Of all built-in tables: ranks with different ones must not run together. */
uint64_t shunt_tuning_builtin_hash(void);

/*
 * Files. A set is what SHUNT_TUNING_FILE names (files and directories with colons between; "none": nothing, not even
 * the cache) and every .json in tuning/ of the cache directory. What is broken or of another version is left out, with
 * one line about it.
 */
struct shunt_tuning_set {
	struct shunt_tuning **tables; /* those that were named first come first */
	size_t n;
	bool *warned; /* table i is for another machine, and that was said */
};
/* list and cache_dir as the variables have them. Always leaves a set that can be used. */
void shunt_tuning_set_load(struct shunt_tuning_set *set, const char *list, const char *cache_dir);
void shunt_tuning_set_finish(struct shunt_tuning_set *set);
/* The process's own, read at the first call. */
struct shunt_tuning_set *shunt_tuning_files(void);
/*
 * The table that was made for this machine, or NULL. standalone: one that was not measured against the real NCCL will
 * do. logs: if there are tables for this number of ranks and none fits, say so once for each.
 */
const struct shunt_tuning *shunt_tuning_match(
    struct shunt_tuning_set *set, const struct shunt_machine *m, bool standalone, bool logs);
void shunt_machine_describe(const struct shunt_gpu_info *gpu, int nranks, struct shunt_machine *m);

/*
 * Reads a file's text. 0; -EINVAL broken, -EXDEV of another version of Shunt or the format, -EFBIG, -ENOMEM: with one
 * line in reason, which names source. The text may be anything.
 */
int shunt_tuning_parse(
    const char *source, const char *text, size_t bytes, struct shunt_tuning **t_p, char *reason, size_t reason_bytes);
int shunt_tuning_read(const char *path, struct shunt_tuning **t_p, char *reason, size_t reason_bytes);
void shunt_tuning_free(struct shunt_tuning *t); /* NULL allowed */

/*
 * For those who make tables: sorts rows (in any order, with machine set), completes them so that each kind ends without
 * end, takes kinds that are missing from the built-in table, and hashes. 0, -EINVAL (two rows of a kind have one size),
 * -ENOMEM.
 */
int shunt_tuning_finalize(struct shunt_tuning *t);
#endif

/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_CONFORM_H
#define SHUNT_TOOLS_CONFORM_H
/*
 * shunt conform: does a library that speaks NCCL's ABI do what NCCL does?
 *
 * A case is a script: for each rank a list of calls, groups and delays, with every buffer at its place in two arenas, one that is
 * only read and one for results. conform_cases.c has the table of cases; conform_ref.c knows what every byte of the arenas should
 * be afterwards, whatever the script; conform_run.c runs it. Wrong calls are a table of their own (conform_wrong.c). A case depends
 * on its name, the seed and the number of ranks alone, so each one can be run by itself.
 *
 * Launching, watching and meeting are those of shunt bench.
 */
#include "bench.h"

/* ---- scripts (conform_script.c) ---- */

enum { CONFORM_POISON = 0xa5, CONFORM_GAP = 128 };
#define CONFORM_NULL SIZE_MAX

/* Communicators: all ranks; the lower and the upper half of them, by ncclCommSplit; all of them in the reverse order, likewise. */
enum conform_comm { CONFORM_WORLD, CONFORM_HALVES, CONFORM_REVERSED, CONFORM_NCOMMS };
enum conform_place { CONFORM_OUT, CONFORM_IN, CONFORM_NULLS, CONFORM_NPLACES }; /* nulls: out of place, NULL for what is not used */
extern const char *const conform_place_names[CONFORM_NPLACES];

enum conform_step_kind { CONFORM_CALL, CONFORM_GROUP_START, CONFORM_GROUP_END, CONFORM_DELAY };

struct conform_step {
	enum conform_step_kind kind;
	enum bench_coll_id coll;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum conform_comm comm;
	int stream;                  /* 0 or 1 */
	int root;                    /* rank in comm, of the root or the peer */
	size_t count;
	bool in_place;               /* send lies in the result arena */
	size_t send, recv;           /* byte offsets in the arenas, or CONFORM_NULL */
	unsigned delay_us;
};

struct conform_script {
	struct conform_step *steps;
	size_t n, cap;
	size_t send_bytes, recv_bytes; /* of the arenas */
	bool failed;                   /* out of memory */
};

/* What a script is made for, and the settings of the calls that are added from now on. */
struct conform_build {
	struct conform_script *script;
	int rank, nranks;            /* in the world */
	uint64_t seed;               /* of the case */
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum conform_comm comm;
	enum conform_place place;
	int stream;
	int misalign;                /* elements; negative: another number on every rank */
};

void conform_call(struct conform_build *b, enum bench_coll_id coll, int root, size_t count);
void conform_group_start(struct conform_build *b);
void conform_group_end(struct conform_build *b);
void conform_delay(struct conform_build *b, unsigned us);
/* A random number that depends on the case, i and j, not on the rank. */
uint64_t conform_random(const struct conform_build *b, unsigned i, unsigned j);
uint64_t conform_mix(uint64_t x);
void conform_script_finish(struct conform_script *s);

/* Members of a communicator that a world rank belongs to: world ranks in order of their rank in it. Returns how many; *me_p: which.
 */
int conform_members(enum conform_comm comm, int rank, int nranks, int members[BENCH_MAX_RANKS], int *me_p);

/* ---- cases (conform_cases.c) ---- */

enum conform_data {
	CONFORM_PLAIN,
	CONFORM_SPECIAL
}; /* special: infinities, NaNs, zeros, subnormals among the inputs of reductions */

struct conform_case {
	char name[128];
	uint64_t seed;
	int nranks;
	enum conform_data data;
	bool graph;
	int wrong;                   /* index of conform_wrongs, or -1: a script */
	void (*build)(struct conform_build *b, const struct conform_case *c);
	/* for build */
	enum bench_coll_id coll;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	size_t count;
	int root, misalign, group;   /* group: depth around the call */
	enum conform_place place;
};

struct conform_list {
	struct conform_case *cases;
	size_t n, cap;
};
/* Every case for so many ranks whose name contains filter (or equals only), in the order to be run. 0 or -ENOMEM. */
int conform_cases(int nranks, bool full, uint64_t seed, const char *filter, const char *only, struct conform_list *list);

/* ---- wrong calls (conform_wrong.c) ---- */

struct conform_wrong_env {
	const struct bench_nccl *nccl;
	ncclComm_t comm;
	void *stream, *a, *b;        /* two buffers of 4096 bytes */
	int rank, nranks;
};

struct conform_wrong {
	const char *name;
	int want;                    /* what NCCL returns, or -1: whatever the other library does */
	int coll;                    /* enum bench_coll_id that must be there, or -1 */
	ncclResult_t (*run)(const struct conform_wrong_env *e);
};
extern const struct conform_wrong conform_wrongs[]; /* ends with a NULL name */

/* ---- reference (conform_ref.c) ---- */

struct conform_image {
	unsigned char *send, *recv;
};
/* Fills an image with a rank's arenas before the run. */
void conform_image_fill(const struct conform_case *c, const struct conform_script *s, int rank, struct conform_image *image);
/* Rank's result arena after the run. scripts and images: before the run, of all ranks. 0, or -EPROTO: the scripts do not fit
 * together. */
int conform_expect(const struct conform_case *c, const struct conform_script *scripts, const struct conform_image *images, int rank,
	int nranks, unsigned char *recv);
/* The host scalar of a rank's PreMulSum operator. */
void conform_scalar(enum shunt_dtype dtype, int rank, void *scalar);
/*
 * Is what came out right? got: the arenas after the run; it is changed. strict: the reference's very bits, also of float sums.
 * like: bits that another library gave for the same, to be equal to within the same bound, or NULL. False: text says what is wrong.
 */
bool conform_check(const struct conform_script *scripts, const struct conform_image *images, const unsigned char *expected,
	int rank, int nranks, bool strict, struct conform_image *got, const unsigned char *like, const char *like_name, char *text,
	size_t text_bytes);

/* ---- options and results (conform.c, conform_report.c) ---- */

struct conform_opts {
	struct bench_opts base;      /* libraries, ranks, device, timeout, seed, worker: what the launcher needs */
	bool full, strict_missing, verbose, list;
	const char *filter, *only;
};

enum conform_verdict { CONFORM_PASS, CONFORM_SKIP, CONFORM_FAIL };

struct conform_outcome {
	int verdict;
	char text[480];              /* why, unless passed */
};

struct conform_report;
struct conform_report *conform_report_create(
	const struct conform_opts *o, const struct bench_launch *l, const struct bench_nccl *libs);
/* outcomes: of all ranks. */
void conform_report_case(struct conform_report *r, const struct conform_case *c, const struct conform_outcome *outcomes);
/* Exit status. */
int conform_report_finish(struct conform_report *r);
void conform_report_destroy(struct conform_report *r);

/* All local ranks. Exit status. */
int conform_worker(const struct conform_opts *o);
#endif

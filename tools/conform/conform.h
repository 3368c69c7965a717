/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_CONFORM_CONFORM_H
#define SHUNT_TOOLS_CONFORM_CONFORM_H
/*
 * shunt conform: does a library that speaks NCCL's ABI do what NCCL does?
 *
 * Most cases are programs: for each rank a list of calls, groups and delays, with every buffer at its place in two
 * arenas, one that is only read and one for results. conform_cases.c has the sweeps over single calls,
 * conform_patterns.def the patterns of many; conform_reference.c knows what every byte of the arenas should be
 * afterwards, whatever the program; conform_rank.c runs it on one rank's device, conform_run.c with a process or thread
 * for each rank, conform_single_thread.c with one thread for all. Wrong calls (conform_invalid.c), determinism
 * (conform_determinism.c) and messages over 4 GiB (conform_huge.c) are kinds of their own. A case depends on its name,
 * the seed and the number of ranks alone, so each one can be run by itself.
 *
 * Launching, watching and meeting are those of shunt bench.
 */
#include "tools/bench/bench.h"

/* ---- communicators (conform_comms.c) ---- */

/* What each is, and how it is made, says the table there. */
enum conform_comm {
	CONFORM_WORLD,
	CONFORM_HALVES,
	CONFORM_REVERSED,
	CONFORM_SOME,
	CONFORM_TIES,
	CONFORM_CHILD,
	CONFORM_SHRUNK,
	CONFORM_SELF,
	CONFORM_ASYNC,
	CONFORM_ASYNC_CHILD,
	CONFORM_NCOMMS
};
const char *conform_comm_name(enum conform_comm comm);
/* Ranks it needs at least. */
int conform_comm_least(enum conform_comm comm);
/*
 * Members of the communicator of this kind that a world rank belongs to: world ranks in order of their rank in it.
 * Returns how many, 0 if it belongs to none; else *me_p: which one it is.
 */
int conform_comm_members(enum conform_comm comm, int rank, int nranks, int members[BENCH_MAX_RANKS], int *me_p);
enum conform_comm conform_comm_parent(enum conform_comm comm);
/* A function that the library lacks for it, or NULL. */
const char *conform_comm_lacks(const struct bench_nccl *nccl, enum conform_comm comm);

/*
 * The call that makes it on one rank, from its parent in comms; id: of a new one that is no child. Nothing to do on
 * some ranks.
 */
ncclResult_t conform_comm_start(const struct bench_nccl *nccl, enum conform_comm comm, int rank, int nranks,
    const ncclUniqueId *id, ncclComm_t comms[CONFORM_NCOMMS]);
/*
 * Afterwards, with start's result or that of the group around it: waits until it can be used. False: text says what is
 * wrong with it.
 */
bool conform_comm_check(const struct bench_nccl *nccl, enum conform_comm comm, int rank, int nranks, int device,
    ncclResult_t result, const ncclComm_t comms[CONFORM_NCOMMS], char *text, size_t text_bytes);
/* With nothing set. */
ncclConfig_t conform_comm_config(void);
/* A result that may be ncclInProgress, waited for. */
ncclResult_t conform_comm_wait(const struct bench_nccl *nccl, ncclComm_t comm, ncclResult_t result);
bool conform_comm_is_async(enum conform_comm comm);

/* ---- programs (conform_program.c) ---- */

enum { CONFORM_POISON = 0xa5, CONFORM_GAP = 128 };
#define CONFORM_NULL SIZE_MAX

enum conform_place {
	CONFORM_OUT,
	CONFORM_IN,
	CONFORM_NULL_UNUSED,
	CONFORM_NPLACES
}; /* nulls: out of place, NULL for what is not used */
extern const char *const conform_place_names[CONFORM_NPLACES];

/*
 * The configuration of a call: the plain function; or ncclXConfig with NULL, with nothing set, with limits on blocks,
 * with a tag.
 */
enum conform_config {
	CONFORM_CONFIG_NONE,
	CONFORM_CONFIG_NULL,
	CONFORM_CONFIG_UNSET,
	CONFORM_CONFIG_CTAS,
	CONFORM_CONFIG_TAG,
	CONFORM_NCONFIGS
};
extern const char *const conform_config_names[CONFORM_NCONFIGS];
/* What to pass, or NULL. */
const ncclCollConfig_t *conform_config(enum conform_config config);

enum conform_step_kind { CONFORM_CALL, CONFORM_GROUP_START, CONFORM_GROUP_END, CONFORM_GROUP_SIMULATE, CONFORM_DELAY };

struct conform_step {
	enum conform_step_kind kind;
	enum bench_coll_id coll;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum conform_comm comm;
	enum conform_config config;
	bool scalar_on_device; /* PreMulSum */
	bool simulated;        /* in a group that is not launched: nothing comes of it */
	int stream;            /* 0 or 1 */
	int root;              /* rank in comm, of the root or the peer */
	size_t count;
	bool in_place;     /* send lies in the result arena */
	size_t send, recv; /* byte offsets in the arenas, or CONFORM_NULL */
	size_t common,
	    common_at; /* so many elements of every block, from common_at on, are the same in all calls of the case */
	unsigned delay_us;
};

struct conform_program {
	struct conform_step *steps;
	size_t n, cap;
	size_t send_bytes, recv_bytes; /* of the arenas */
	bool failed;                   /* out of memory */
};

/* What a program is made for, and the settings of the calls that are added from now on. */
struct conform_build {
	struct conform_program *program;
	int rank, nranks; /* in the world */
	uint64_t seed;    /* of the case */
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum conform_comm comm;
	enum conform_place place;
	enum conform_config config;
	bool scalar_on_device;
	int stream;
	int misalign; /* elements; negative: another number on every rank */
};

/* Nothing on a rank that does not belong to b->comm. */
struct conform_step *conform_call(struct conform_build *b, enum bench_coll_id coll, int root, size_t count);
void conform_group_start(struct conform_build *b);
void conform_group_end(struct conform_build *b);
/* Ends the outermost group by ncclGroupSimulateEnd. */
void conform_group_simulate(struct conform_build *b);
void conform_delay(struct conform_build *b, unsigned us);
/* A random number that depends on the case, i and j, not on the rank. */
uint64_t conform_random(const struct conform_build *b, unsigned i, unsigned j);
uint64_t conform_hash_mix(uint64_t x);
void conform_program_finish(struct conform_program *s);
/* A call that has a result. */
static inline bool conform_step_is_call(const struct conform_step *s)
{
	return s->kind == CONFORM_CALL && !s->simulated;
}

/* ---- cases (conform_cases.c) ---- */

enum conform_kind { CONFORM_PROGRAM, CONFORM_INVALID, CONFORM_DETERMINISM, CONFORM_HUGE };
/* special: infinities, NaNs, zeros, subnormals among the inputs of reductions; wide: of many magnitudes */
enum conform_data { CONFORM_PLAIN, CONFORM_SPECIAL, CONFORM_WIDE };

struct conform_case {
	char name[128];
	enum conform_kind kind;
	int row; /* of the table of its kind, unless it is a program */
	uint64_t seed;
	int nranks;
	enum conform_data data;
	bool graph;
	void (*build)(struct conform_build *b, const struct conform_case *c);
	/* for build */
	enum bench_coll_id coll;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum conform_comm comm;
	enum conform_config config;
	bool scalar_on_device;
	size_t count;
	int root, misalign, group; /* group: depth around the call */
	enum conform_place place;
};

struct conform_opts {
	struct bench_opts base; /* libraries, ranks, device, timeout, seed, worker: what the launcher needs */
	bool full, strict_missing, verbose, list;
	uint64_t huge; /* bytes of the messages of the huge cases; 0: without these */
	const char *filter, *only;
};

struct conform_list {
	struct conform_case *cases;
	size_t n, cap;
	/* while it is made */
	const struct conform_opts *o;
	int nranks;
	int err;
};
/* Every case for so many ranks that the options ask for, in the order to be run. 0 or -ENOMEM. */
int conform_cases(const struct conform_opts *o, int nranks, struct conform_list *list);
/* For the tables. Adds it if it is asked for. */
void conform_case_add(struct conform_list *list, const struct conform_case *c);
void conform_patterns_add(struct conform_list *list); /* conform_patterns.c */
void conform_invalid_add(struct conform_list *list);
void conform_determinism_add(struct conform_list *list);
void conform_huge_add(struct conform_list *list);

/* ---- wrong calls (conform_invalid.c) ---- */

struct conform_invalid_env {
	const struct bench_nccl *nccl;
	const struct tool_lib *lib;
	ncclComm_t comm;
	void *stream, *a, *b; /* two buffers of CONFORM_INVALID_BYTES */
	int rank, nranks, device;
	const char **lacks_p; /* set to the name of a function that is not there; the result means nothing then */
};

enum { CONFORM_INVALID_BYTES = 4096 };
struct conform_invalid {
	const char *name;
	int want; /* what NCCL returns, or -1: whatever the other library does */
	int coll; /* enum bench_coll_id that must be there, or -1 */
	ncclResult_t (*run)(const struct conform_invalid_env *e);
};
extern const struct conform_invalid conform_invalid_calls[]; /* ends with a NULL name */

/* ---- reference (conform_reference.c) ---- */

struct conform_image {
	unsigned char *send, *recv;
};
/* Fills an image with a rank's arenas before the run. */
void conform_image_fill(
    const struct conform_case *c, const struct conform_program *s, int rank, struct conform_image *image);
/*
 * Rank's result arena after the run. programs and images: before the run, of all ranks. 0, or -EPROTO: the programs do
 * not fit together.
 */
int conform_expect(const struct conform_case *c, const struct conform_program *programs,
    const struct conform_image *images, int rank, int nranks, unsigned char *recv);
/* The host scalar of a rank's PreMulSum operator. */
void conform_scalar(enum shunt_dtype dtype, int rank, void *scalar);
/*
 * Is what came out right? got: the arenas after the run; it is changed. strict: the reference's very bits, also of
 * float sums. like: bits that another library gave for the same, to be equal to within the same bound, or NULL. False:
 * text says what is wrong.
 */
bool conform_check(const struct conform_program *programs, const struct conform_image *images,
    const unsigned char *expected, int rank, int nranks, bool strict, struct conform_image *got,
    const unsigned char *like, const char *like_name, char *text, size_t text_bytes);

/* ---- options and results (conform.c, conform_report.c) ---- */

enum conform_status { CONFORM_PASS, CONFORM_SKIP, CONFORM_FAIL };

struct conform_outcome {
	int status;
	char text[480];                /* why, unless passed; a remark otherwise */
	uint64_t bits[BENCH_MAX_LIBS]; /* determinism: a hash of the results; 0: none */
};
/* The first failure stays; it comes before a skip, and that before a remark. */
void conform_outcome_set(struct conform_outcome *out, enum conform_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

struct conform_report;
struct conform_report *conform_report_create(
    const struct conform_opts *o, const struct bench_launch *l, const struct bench_nccl *libs);
/* outcomes: of all ranks. */
void conform_report_case(
    struct conform_report *r, const struct conform_case *c, const struct conform_outcome *outcomes);
/* Exit status. */
int conform_report_finish(struct conform_report *r);
void conform_report_destroy(struct conform_report *r);

/* ---- one rank (conform_rank.c) ---- */

/* One library with its communicators, on one rank. */
struct conform_side {
	struct bench_nccl nccl;
	ncclComm_t comm[CONFORM_NCOMMS];
	bool tried[CONFORM_NCOMMS]; /* to make it; it may be NULL where this rank does not belong to it */
	uint64_t lacks;             /* bit set of enum bench_coll_id */
	bool strict;                /* Shunt alone: sums are in rank order, so the result is known to the bit */
};

struct conform_rank {
	const struct conform_opts *o;
	struct bench_progress *progress;
	struct tool_lib lib;
	int rank, nranks, device;
	struct conform_side side[BENCH_MAX_LIBS];
	void *stream[2];
	void *send, *recv, *scalars; /* the arenas on the device, and a scalar for each step */
	size_t send_bytes, recv_bytes, scalar_bytes;
};

/* A case's programs and what lies in the arenas before it, of all ranks. */
struct conform_fixture {
	const struct conform_case *c;
	int nranks;
	struct conform_program program[BENCH_MAX_RANKS];
	struct conform_image image[BENCH_MAX_RANKS];
};

/* What a rank needs beside that. */
struct conform_memory {
	struct conform_image got;
	unsigned char *expected, *like; /* like: what the first library gave */
};

void conform_rank_progress(struct conform_rank *r, enum bench_stage stage, int lib);
/* Device, streams, small arenas; the libraries without a communicator. 0 or -errno after a message. */
int conform_rank_open(struct conform_rank *r);
/* Not of a rank that failed: a library may wait for ranks that will not come. */
void conform_rank_close(struct conform_rank *r);
int conform_arena_grow(struct conform_rank *r, void **arena, size_t *have, size_t bytes);

int conform_fixture_create(struct conform_fixture *fixture, const struct conform_case *c, int nranks);
void conform_fixture_destroy(struct conform_fixture *fixture);
int conform_memory_create(struct conform_memory *m, struct conform_rank *r, const struct conform_fixture *fixture);
void conform_memory_destroy(struct conform_memory *m);

/* What the library lacks of what the programs need, or NULL. */
const char *conform_fixture_lacks(const struct conform_fixture *fixture, const struct conform_side *side);
bool conform_rank_upload(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, struct conform_outcome *out);
void conform_rank_step(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, size_t i, struct conform_outcome *out);
/* ncclGroupStart, ncclGroupEnd or ncclGroupSimulateEnd. */
ncclResult_t conform_group_call(const struct bench_nccl *nccl, enum conform_step_kind kind);
void conform_rank_run(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, bool graph, struct conform_outcome *out);
void conform_rank_sync(struct conform_rank *r, int lib, struct conform_outcome *out);
/* Takes the arenas back from the device; false: said so. */
bool conform_rank_download(struct conform_rank *r, int lib, const struct conform_fixture *fixture,
    struct conform_memory *m, struct conform_outcome *out);
/* Downloads and compares. */
void conform_rank_check(struct conform_rank *r, int lib, const struct conform_fixture *fixture,
    struct conform_memory *m, struct conform_outcome *out);

/* ---- kinds of their own; the communicators are there, of conform_same the programs' as well ---- */

void conform_invalid_run(struct conform_rank *r, const struct conform_case *c, struct conform_outcome *out);
/* The programs of a determinism case are those of its fixture; other ranks run them at the same time. */
void conform_determinism_run(struct conform_rank *r, const struct conform_fixture *fixture, struct conform_memory *m,
    struct conform_outcome *out);
void conform_huge_run(struct conform_rank *r, const struct conform_case *c, struct conform_outcome *out);

/* ---- runs ---- */

/* Worker: all local ranks. Exit status. */
int conform_worker(const struct conform_opts *o);
/* Worker: one thread drives all ranks' devices (conform_single_thread.c). */
int conform_single_thread(const struct conform_opts *o);
#endif

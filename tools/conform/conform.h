/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * shunt conform: checks that a library with NCCL's ABI does what NCCL does.
 *
 * Most cases are programs: for each rank a list of calls, groups and delays. Every region of a program lies in one of
 * two buffers: send (read only) and recv (results).
 *
 *   cases.c            sweeps over single calls
 *   patterns.def       patterns of many calls
 *   reference.c        the expected bytes of both buffers after any program
 *   rank.c             runs a program on one rank's device
 *   run.c              runs with a process or thread for each rank
 *   single_thread.c    runs with one thread for all ranks
 *   invalid.c          invalid calls            (not programs)
 *   determinism.c      determinism
 *   huge.c             messages over 4 GiB      (not programs)
 *   quiet.c            keeps the warnings of invalid calls
 *
 * A case depends only on its name, the seed and the number of ranks, so each one can run by itself. Launcher, watchdog
 * and rendezvous are those of shunt bench.
 */
#include "tools/bench/bench.h"

/* ---- communicators (comms.c) ---- */

/* The table in comms.c has their members and origins. */
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
/* Smallest number of ranks. */
int conform_comm_least(enum conform_comm comm);
/*
 * Members of a rank's communicator of this kind, as world ranks in the order of their ranks in it. Returns their number
 * (0: rank is no member); *me_p: index of rank.
 */
int conform_comm_members(enum conform_comm comm, int rank, int nranks, int members[RANKS_MAX], int *me_p);
enum conform_comm conform_comm_parent(enum conform_comm comm);
/* A function that the communicator needs and the library lacks, or NULL. */
const char *conform_comm_lacks(const struct bench_nccl *nccl, enum conform_comm comm);

/*
 * This rank's call that starts to create the communicator, from its parent in comms. id: for one without a parent. Does
 * nothing on some ranks.
 */
ncclResult_t conform_comm_start(const struct bench_nccl *nccl, enum conform_comm comm, int rank, int nranks,
    const ncclUniqueId *id, ncclComm_t comms[CONFORM_NCOMMS]);
/* A communicator of a rank, after conform_comm_start(). */
struct conform_made {
	enum conform_comm comm;
	int rank, nranks, device;
	ncclResult_t result; /* conform_comm_start()'s, or that of the group around it */
	const ncclComm_t *comms;
};
/* Waits until the communicator is usable. False: text has the error. */
bool conform_comm_check(const struct bench_nccl *nccl, const struct conform_made *made, char *text, size_t text_bytes);
/* Waits while the result is ncclInProgress. */
ncclResult_t conform_comm_wait(const struct bench_nccl *nccl, ncclComm_t comm, ncclResult_t result);
bool conform_comm_is_async(enum conform_comm comm);

/* ---- programs (program.c) ---- */

enum { CONFORM_POISON = 0xa5, CONFORM_GAP = 128 };
#define CONFORM_NULL SIZE_MAX

enum conform_place {
	CONFORM_OUT,
	CONFORM_IN,
	CONFORM_NULL_UNUSED,
	CONFORM_NPLACES
}; /* nulls: out of place, with NULL for an unused buffer */
extern const char *const conform_place_names[CONFORM_NPLACES];

/*
 * The configuration of a call: the plain function; or ncclXConfig with NULL, without settings, with limits on blocks,
 * or with a tag.
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
/* The argument of ncclXConfig, or NULL. */
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
	bool simulated;        /* in a group that is not launched: no result */
	int stream;            /* 0 or 1 */
	int root;              /* rank in comm, of the root or the peer */
	size_t count;
	bool in_place;     /* send is in the recv buffer */
	size_t send, recv; /* byte offsets in the buffers, or CONFORM_NULL */
	size_t common,
	    common_at; /* these elements of every block are the same in all calls of the case: number, first */
	unsigned delay_us;
};

struct conform_program {
	struct conform_step *steps;
	size_t n, cap;
	size_t send_bytes, recv_bytes; /* of the buffers */
	bool failed;                   /* out of memory */
};

/* A program under construction, and the settings for the calls that are added next. */
struct conform_build {
	struct conform_program *program;
	int rank, nranks; /* of the world */
	uint64_t seed;    /* of the case */
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum conform_comm comm;
	enum conform_place place;
	enum conform_config config;
	bool scalar_on_device;
	int stream;
	int misalign; /* elements; negative: another value on every rank */
};

/* Adds nothing on a rank that is no member of b->comm. */
struct conform_step *conform_call(struct conform_build *b, enum bench_coll_id coll, int root, size_t count);
void conform_group_start(struct conform_build *b);
void conform_group_end(struct conform_build *b);
/* Ends the outermost group with ncclGroupSimulateEnd. */
void conform_group_simulate(struct conform_build *b);
void conform_delay(struct conform_build *b, unsigned us);
/* A random number from the case, i and j; the same on all ranks. */
uint64_t conform_random(const struct conform_build *b, unsigned i, unsigned j);
uint64_t conform_hash_mix(uint64_t x);
void conform_program_finish(struct conform_program *s);
/* True: a call with a result. */
static inline bool conform_step_is_call(const struct conform_step *s)
{
	return s->kind == CONFORM_CALL && !s->simulated;
}

/* ---- cases (cases.c) ---- */

enum conform_kind { CONFORM_PROGRAM, CONFORM_INVALID, CONFORM_DETERMINISM, CONFORM_HUGE };
/* special: infinities, NaNs, zeros, subnormals among the inputs of reductions; wide: of many magnitudes */
enum conform_data { CONFORM_PLAIN, CONFORM_SPECIAL, CONFORM_WIDE };

struct conform_case {
	char name[128];
	enum conform_kind kind;
	int row; /* index in the table of its kind; programs have none */
	uint64_t seed;
	int nranks;
	enum conform_data data;
	bool graph;
	void (*build)(struct conform_build *b, const struct conform_case *c);
	/* for `build` */
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
	struct ranks_opts ranks;
	uint64_t seed;
	bool single_thread; /* like threads, with one thread for all ranks */
	bool full, strict_missing, verbose, list;
	uint64_t huge; /* bytes of a message of the huge cases; 0: no such cases */
	const char *filter, *only;
};

struct conform_list {
	struct conform_case *cases;
	size_t n, cap;
	/* while the list is built */
	const struct conform_opts *o;
	int nranks;
	int err;
};
/* All requested cases for a number of ranks, in the order of the run. 0 or -ENOMEM. */
int conform_cases(const struct conform_opts *o, int nranks, struct conform_list *list);
/* For the tables: adds a case if it was requested. */
void conform_case_add(struct conform_list *list, const struct conform_case *c);
void conform_patterns_add(struct conform_list *list); /* patterns.c */
void conform_invalid_add(struct conform_list *list);
void conform_determinism_add(struct conform_list *list);
void conform_huge_add(struct conform_list *list);

/* ---- invalid calls (invalid.c) ---- */

struct conform_invalid_env {
	const struct bench_nccl *nccl;
	const struct tool_lib *lib;
	ncclComm_t comm;
	void *stream, *a, *b; /* two buffers of CONFORM_INVALID_BYTES */
	int rank, nranks, device;
	const char **lacks_p; /* set to the name of a missing function; then the result has no meaning */
};

enum { CONFORM_INVALID_BYTES = 4096 };
struct conform_invalid {
	const char *name;
	int want; /* NCCL's result, or -1: that of the other library */
	int coll; /* a required enum bench_coll_id, or -1 */
	ncclResult_t (*run)(const struct conform_invalid_env *e);
};
extern const struct conform_invalid conform_invalid_calls[]; /* ends with a NULL name */

/* ---- reference (reference.c) ---- */

/* A rank among all, which are spread over the hosts of --hosts by their numbers. Sums depend on the hosts. */
struct conform_member {
	int rank, nranks;
	int nhosts; /* 0: without --hosts */
};

struct conform_image {
	unsigned char *send, *recv;
};
/* Fills the image of a rank's buffers before the run. */
void conform_image_fill(
    const struct conform_case *c, const struct conform_program *s, int rank, struct conform_image *image);
/*
 * Expected recv buffer of a rank after the run. programs and images: of all ranks, before the run. 0, or -EPROTO: the
 * programs do not fit together.
 */
int conform_expect(const struct conform_program *programs, const struct conform_image *images,
    const struct conform_member *place, unsigned char *recv);
/* The host scalar of a rank's PreMulSum operator. */
void conform_scalar(enum shunt_dtype dtype, int rank, void *scalar);
/* What is compared. */
struct conform_claim {
	const struct conform_program *programs; /* of all ranks, as the images before the run */
	const struct conform_image *images;
	int rank, nranks;
	bool strict;                   /* the very bits of the reference, also of float sums */
	const unsigned char *expected; /* of conform_expect() */
	const unsigned char *like;     /* another library's result, which must be within the same bound, or NULL */
	const char *like_name;
	struct conform_image *got; /* the buffers after the run; the comparison changes them */
};
/* False: text has the difference. */
bool conform_check(const struct conform_claim *claim, char *text, size_t text_bytes);

/* ---- options and results (conform.c, report.c) ---- */

enum conform_status { CONFORM_PASS, CONFORM_SKIP, CONFORM_FAIL };

struct conform_outcome {
	int status;
	char text[480];                /* the reason, unless passed; then a remark */
	uint64_t bits[RANKS_MAX_LIBS]; /* determinism: hash of the results; 0: none */
};
/* A skip replaces a remark, and a failure a skip. The first failure stays. */
void conform_outcome_set(struct conform_outcome *out, enum conform_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

struct conform_report;
struct conform_report *conform_report_create(const struct conform_opts *o, struct ranks_shared *shared,
    const struct bench_nccl *libs, const struct tool_lib *lib);
/* The i-th case of the list; outcomes: of all ranks. */
void conform_report_case(
    struct conform_report *r, const struct conform_list *list, size_t i, const struct conform_outcome *outcomes);
/* Exit status. */
int conform_report_finish(struct conform_report *r);
void conform_report_destroy(struct conform_report *r);

/* ---- one rank (rank.c) ---- */

/* One library and its communicators on one rank. */
struct conform_side {
	struct bench_nccl nccl;
	ncclComm_t comm[CONFORM_NCOMMS];
	bool tried[CONFORM_NCOMMS]; /* creation was tried; NULL where this rank is no member */
	uint64_t lacks;             /* bit set of enum bench_coll_id */
	bool strict;                /* Shunt only: sums are in rank order, so every bit of the result is known */
};

struct conform_rank {
	const struct conform_opts *o;
	struct ranks_progress *progress;
	struct tool_lib lib;
	int rank, nranks, device;
	struct conform_side side[RANKS_MAX_LIBS];
	void *stream[2];
	void *send, *recv, *scalars; /* the buffers on the device, and a scalar for each step */
	size_t send_bytes, recv_bytes, scalar_bytes;
};

/* A case's programs, and the buffers before the run, of all ranks. */
struct conform_fixture {
	const struct conform_case *c;
	int nranks;
	struct conform_program program[RANKS_MAX];
	struct conform_image image[RANKS_MAX];
};

/* Further memory of a rank. */
struct conform_memory {
	struct conform_image got;
	unsigned char *expected, *like; /* like: the first library's result */
};

void conform_rank_progress(struct conform_rank *r, enum ranks_stage stage, int lib);
/* Opens device, streams, small buffers, and the libraries without communicators. 0 or -errno after a message. */
int conform_rank_open(struct conform_rank *r);
/* Not for a rank that failed: a library may wait for ranks that will not come. */
void conform_rank_close(struct conform_rank *r);
int conform_workspace_grow(struct conform_rank *r, void **workspace, size_t *have, size_t bytes);

int conform_fixture_create(struct conform_fixture *fixture, const struct conform_case *c, int nranks);
void conform_fixture_destroy(struct conform_fixture *fixture);
int conform_memory_create(struct conform_memory *m, struct conform_rank *r, const struct conform_fixture *fixture);
void conform_memory_destroy(struct conform_memory *m);

/* A function of the programs that the library lacks, or NULL. */
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
/* Copies the buffers back from the device. False: the outcome has the error. */
bool conform_rank_download(struct conform_rank *r, int lib, const struct conform_fixture *fixture,
    struct conform_memory *m, struct conform_outcome *out);
/* Downloads and compares the buffers. */
void conform_rank_check(struct conform_rank *r, int lib, const struct conform_fixture *fixture,
    struct conform_memory *m, struct conform_outcome *out);

/* ---- kinds that are not programs; the communicators exist, conform_same's those of the programs, too ---- */

void conform_invalid_run(struct conform_rank *r, const struct conform_case *c, struct conform_outcome *out);
/* Between these, warnings of this process's libraries are kept. They are printed at the end if one rank shows them. */
void conform_quiet_begin(void);
void conform_quiet_end(bool show);
/* A determinism case has its programs in a fixture; other ranks run them at the same time. */
void conform_determinism_run(struct conform_rank *r, const struct conform_fixture *fixture, struct conform_memory *m,
    struct conform_outcome *out);
void conform_huge_run(struct conform_rank *r, const struct conform_case *c, struct conform_outcome *out);

/* ---- runs (run.c) ---- */

/* Worker process: runs all local ranks. Exit status. */
int conform_worker(const struct conform_opts *o);
/* Worker process: one thread drives all ranks' devices (single_thread.c). Exit status. */
int conform_single_thread(const struct conform_opts *o);

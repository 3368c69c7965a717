/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * shunt torture: random calls against a reference, for any length of time.
 *
 * All ranks choose the same operations from one seed (choice.c): calls and patterns of messages, of every type,
 * operator and size, single and in groups, on several streams and communicators; captures and launches of graphs;
 * creation and destruction of communicators. Alignment and delays are chosen by each rank for itself. Each operation
 * has a slot with buffers of its own (slot.c). Its inputs are new each time, its output is poisoned before, and
 * everything in and around the output is compared with the reference (tools/common/data.c). rank.h has the state of one
 * rank.
 *
 * The launcher is that of tools/common/ranks, the communicators those of shunt conform.
 */
#include "tools/conform/conform.h"

enum {
	TORTURE_MAX_RANKS = 8,
	TORTURE_STREAMS = 3,
	TORTURE_SLOTS = 8,  /* eager operations in flight */
	TORTURE_GRAPHS = 2, /* alive at once */
	TORTURE_GRAPH_OPS = 4,
	TORTURE_ALL_SLOTS = TORTURE_SLOTS + TORTURE_GRAPHS * TORTURE_GRAPH_OPS,
	TORTURE_GROUP = 4,
	TORTURE_ROOM = 1024, /* of a buffer, in addition to the largest message: guards and alignment */
};

struct torture_opts {
	struct ranks_opts ranks;
	uint64_t seed;      /* 0: a new one */
	uint64_t ops;       /* 0: no limit */
	double minutes;     /* 0: no limit */
	uint64_t max_bytes; /* of an operation's larger side; 0: the default of the device */
	bool shared;        /* other programs use the devices, too */
	bool ep;            /* calls of expert parallel groups instead (ep.c) */
};

/* The same numbers for the same seed. */
struct torture_random {
	uint64_t state;
};
uint32_t torture_random(struct torture_random *r, uint32_t n);       /* below n */
unsigned torture_random_bit(struct torture_random *r, unsigned set); /* number of a random bit that is set */

/* One rank of --ep. Exit status. */
int torture_ep_rank(const void *arg, const struct ranks_slot *slot);

/* ---- operations (choice.c) ---- */

int torture_nkinds(void);
const char *torture_kind_name(int kind);
/* A function of this kind that the library lacks, or NULL. */
const char *torture_kind_lacks(int kind, const struct bench_nccl *nccl);
/* True: the library has the call with a configuration. */
bool torture_kind_is_configured(int kind, const struct bench_nccl *nccl);
/* True: every member has a call. */
bool torture_kind_is_for_all(int kind);

/* A call, or a pattern of messages. The same on all ranks of the world. */
struct torture_op {
	int kind;
	enum conform_comm comm;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum bench_class class;
	bool in_place;
	bool device_scalar;     /* the factor of a pre-multiplied sum is in device memory */
	int min_ctas, max_ctas; /* limits for this call; 0: none. Without limits the plain function is called */
	unsigned stream;
	uint64_t bytes;   /* of the larger side, approximately */
	uint32_t pattern; /* seed of roots and peers */
	uint64_t data;    /* selects the inputs */
};
/* comms, kinds: bit sets to choose from; configured: kinds that take a configuration. */
struct torture_op torture_op_choose(
    struct torture_random *r, unsigned comms, unsigned kinds, unsigned configured, uint64_t max_bytes);
/* True: every member has made a call on the communicator that needs the others. */
bool torture_op_needs_all(const struct torture_op *m);
void torture_op_describe(const struct torture_op *m, char *text, size_t bytes);

/* One call of a rank. send, recv: elements from the start of the buffers' data; in place both count in one buffer. */
struct torture_call {
	enum bench_coll_id coll;
	int root; /* or the peer */
	size_t count, send, recv;
};

enum torture_source { TORTURE_POISON, TORTURE_COPY, TORTURE_REDUCED };
/* A part of a result: bytes that were not written, elements of a member's input, or all members' inputs reduced. */
struct torture_piece {
	enum torture_source source;
	int from;
	size_t from_at, at, count;
};

/* An operation as one of its members sees it. */
struct torture_view {
	int n, me;         /* number of members, index of this one; n 0: not a member */
	uint64_t start;    /* of the members' inputs, see bench_data_input */
	size_t send_count; /* elements of input; in place they begin at `send` */
	size_t send;
	size_t recv_count; /* elements of the result's buffer */
	struct torture_call calls[2 * TORTURE_MAX_RANKS];
	int ncalls;
	struct torture_piece pieces[4 * TORTURE_MAX_RANKS]; /* expected result: the whole buffer, in order */
	int npieces;
};
void torture_view_create(const struct torture_op *m, int rank, int nranks, struct torture_view *s);

/* ---- slots (slot.c) ---- */

/* Inputs and references of all kinds used so far. */
struct torture_data {
	struct bench_data *have[SHUNT_NDTYPES][SHUNT_NREDOPS][BENCH_NCLASSES][TORTURE_MAX_RANKS + 1];
};
/* NULL: out of memory. */
const struct bench_data *torture_data(struct torture_data *d, const struct torture_op *m, int n);
void torture_data_destroy(struct torture_data *d);

struct torture_slot {
	char *in, *out;       /* device */
	size_t in_at, out_at; /* bytes: start of the data */
	struct torture_op op;
	struct torture_view view;
	uint64_t number;                         /* of the operation; for messages */
	bool symmetric;                          /* symmetric memory: data begins at the same offset on all ranks */
	ncclWindow_t windows[CONFORM_NCOMMS][2]; /* of in and out; NULL: none */
};

struct torture_env { /* common to all slots */
	const struct tool_lib *lib;
	const struct bench_nccl *nccl;
	struct torture_data *data;
	void *stream; /* independent of the calls' streams */
	char *host;   /* host memory of the size of a buffer */
	size_t bytes; /* of a buffer */
};
/* Allocates the buffers. symmetric: by the library's allocator, if it has one. 0 or -errno. */
int torture_slot_open(const struct torture_env *b, struct torture_slot *s, bool symmetric);
void torture_slot_close(const struct torture_env *b, struct torture_slot *s);
/* Assigns an operation to the slot. own: random numbers for the alignment. */
void torture_slot_place(
    struct torture_slot *s, const struct torture_op *m, int rank, int nranks, struct torture_random *own);
/* Writes poison and new inputs, before the operation is launched. 0 or -errno. */
int torture_slot_fill(const struct torture_env *b, struct torture_slot *s);
/*
 * After the operation: number of wrong elements, or -errno. Checks all elements up to 1 MiB; of larger results the ends
 * of every piece and random samples (own). *checked_p: number of checked elements. text: the first wrong one.
 */
int64_t torture_slot_check(const struct torture_env *b, const struct torture_slot *s, struct torture_random *own,
    uint64_t *checked_p, char *text, size_t text_bytes);
const void *torture_slot_send(const struct torture_slot *s, const struct torture_call *p);
void *torture_slot_recv(const struct torture_slot *s, const struct torture_call *p);
/* The factor of a pre-multiplied sum, in device memory. */
void *torture_slot_scalar(const struct torture_slot *s);

/* ---- runs (rank.c) ---- */

/* Worker process: runs all local ranks. Exit status. */
int torture_worker(const struct torture_opts *o);

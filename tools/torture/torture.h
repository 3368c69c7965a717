/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_TORTURE_TORTURE_H
#define SHUNT_TOOLS_TORTURE_TORTURE_H
/*
 * shunt torture: random calls against a reference, for as long as one likes.
 *
 * All ranks draw the same ops from one seed (torture_choice.c): calls and patterns of messages, of every type, operator
 * and size, alone and in groups, on several streams and communicators; graphs that are captured and launched between
 * them; communicators that come and go. What differs by rank is chosen apart: alignment, and how late it is. Each op
 * has a slot with buffers of its own (torture_slot.c); its inputs are new each time, its output is poisoned before, and
 * everything in and around it is compared with what the inputs give (bench_data.c). torture_rank.h and its files are
 * one rank.
 *
 * Launching, watching and meeting are those of shunt bench, the communicators those of shunt conform.
 */
#include "tools/conform/conform.h"

enum {
	TORTURE_MAX_RANKS = 8,
	TORTURE_STREAMS = 3,
	TORTURE_SLOTS = 8,  /* eager ops that are under way */
	TORTURE_GRAPHS = 2, /* alive at once */
	TORTURE_GRAPH_OPS = 4,
	TORTURE_ALL_SLOTS = TORTURE_SLOTS + TORTURE_GRAPHS * TORTURE_GRAPH_OPS,
	TORTURE_GROUP = 4,
	TORTURE_ROOM = 1024, /* of a buffer, beside the largest message: guards and alignment */
};

struct torture_opts {
	struct bench_opts base; /* library, ranks, device, timeout, seed, worker: what the launcher needs */
	uint64_t ops;           /* ops; 0: no limit */
	double minutes;         /* 0: no limit */
	uint64_t max_bytes;     /* of the larger side of a op; 0: by device */
	bool shared;            /* others use the devices meanwhile */
};

/* The same for the same seed. */
struct torture_random {
	uint64_t state;
};
uint32_t torture_random(struct torture_random *r, uint32_t n);       /* below n */
unsigned torture_random_bit(struct torture_random *r, unsigned set); /* the number of one that is set */

/* ---- ops (torture_choice.c) ---- */

int torture_nkinds(void);
const char *torture_kind_name(int kind);
/* A function that the library lacks for it, or NULL. */
const char *torture_kind_lacks(int kind, const struct bench_nccl *nccl);
/* Has the library a call of it that takes a configuration of its own? */
bool torture_kind_is_configured(int kind, const struct bench_nccl *nccl);
/* Has every member a call of it? */
bool torture_kind_is_for_all(int kind);

/* A call, or a pattern of messages: equal on all ranks of the world. */
struct torture_op {
	int kind;
	enum conform_comm comm;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	enum bench_class class;
	bool in_place;
	bool device_scalar;     /* where the factor of a pre-multiplied sum is */
	int min_ctas, max_ctas; /* of this call; 0: no limit. None at all: it is called plainly */
	unsigned stream;
	uint64_t bytes;   /* of the larger side, about */
	uint32_t pattern; /* who is root, who sends to whom */
	uint64_t data;    /* which inputs */
};
/* comms, kinds: bit sets of what there is; configured: of kinds that take a configuration. */
struct torture_op torture_op_choose(
    struct torture_random *r, unsigned comms, unsigned kinds, unsigned configured, uint64_t max_bytes);
void torture_op_describe(const struct torture_op *m, char *text, size_t bytes);

/* One call of a rank; places are elements from the beginning of the two buffers' data, or of the one in place. */
struct torture_call {
	enum bench_coll_id coll;
	int root; /* or the peer */
	size_t count, send, recv;
};

enum torture_source { TORTURE_POISON, TORTURE_COPY, TORTURE_REDUCED };
/*
 * What lies somewhere in a result: nothing that was written, elements of a member's input, or all members' inputs
 * reduced.
 */
struct torture_piece {
	enum torture_source source;
	int from;
	size_t from_at, at, count;
};

/* What a op is for one of its members. */
struct torture_view {
	int n, me;         /* members, and which one this is; n 0: not a member */
	uint64_t start;    /* of the members' inputs, see bench_data_input */
	size_t send_count; /* elements of input, at `send` of the buffer in place */
	size_t send;
	size_t recv_count; /* elements of the result's buffer */
	struct torture_call calls[2 * TORTURE_MAX_RANKS];
	int ncalls;
	struct torture_piece
	    pieces[4 * TORTURE_MAX_RANKS]; /* what it should be afterwards: the whole buffer, in order */
	int npieces;
};
void torture_view_create(const struct torture_op *m, int rank, int nranks, struct torture_view *s);

/* ---- slots (torture_slot.c) ---- */

/* Inputs and references of every kind that was needed so far. */
struct torture_data {
	struct bench_data *have[SHUNT_NDTYPES][SHUNT_NREDOPS][BENCH_NCLASSES][TORTURE_MAX_RANKS + 1];
};
/* NULL: out of memory. */
const struct bench_data *torture_data(struct torture_data *d, const struct torture_op *m, int n);
void torture_data_destroy(struct torture_data *d);

struct torture_slot {
	char *in, *out;       /* device */
	size_t in_at, out_at; /* bytes: where the data begins */
	struct torture_op op;
	struct torture_view view;
	uint64_t number;                         /* of the op; for messages */
	bool symmetric;                          /* memory for windows: data begins at the same place on all ranks */
	ncclWindow_t windows[CONFORM_NCOMMS][2]; /* of in and out; NULL: none */
};

struct torture_env { /* what slots are worked on with */
	const struct tool_lib *lib;
	const struct bench_nccl *nccl;
	struct torture_data *data;
	void *stream; /* waits for nobody's calls */
	char *host;   /* as large as a buffer */
	size_t bytes; /* of a buffer */
};
/* Buffers; symmetric: the library's, if it has some. 0 or -errno. */
int torture_slot_open(const struct torture_env *b, struct torture_slot *s, bool symmetric);
void torture_slot_close(const struct torture_env *b, struct torture_slot *s);
/* Lays the op out; own: alignment. */
void torture_slot_place(
    struct torture_slot *s, const struct torture_op *m, int rank, int nranks, struct torture_random *own);
/* Poison and new inputs, before the op is launched. 0 or -errno. */
int torture_slot_fill(const struct torture_env *b, struct torture_slot *s);
/*
 * After the op: how many elements are wrong, or -errno. *checked_p: elements looked at. All of them up to 1 MiB, beyond
 * that the ends of every piece and some places in between (own). text: the first wrong one.
 */
int64_t torture_slot_check(const struct torture_env *b, const struct torture_slot *s, struct torture_random *own,
    uint64_t *checked_p, char *text, size_t text_bytes);
const void *torture_slot_send(const struct torture_slot *s, const struct torture_call *p);
void *torture_slot_recv(const struct torture_slot *s, const struct torture_call *p);
/* On the device: the factor of a pre-multiplied sum. */
void *torture_slot_scalar(const struct torture_slot *s);

/* ---- runs (torture_rank.c) ---- */

/* Worker: all local ranks. Exit status. */
int torture_worker(const struct torture_opts *o);
#endif

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A dispatch and a combine of an expert parallel group, for shunt bench ep and shunt torture --ep: memory, inputs, and
 * the check of outputs against ep_reference.h.
 *
 * Inputs of all ranks follow from a seed, each element by itself, so that a check of many tokens of many elements can
 * look at some columns of each row. Functions return 0 or -errno; nothing is printed.
 */
#include <stdbool.h>
#include <stdint.h>
#include "shunt/ep.h"
#include "tools/common/ep_reference.h"
#include "tools/common/tool.h"

enum { EP_CALL_RANKS = 64 };

/* The functions of libshunt.so that it takes, which tool.h has not. */
/* clang-format off */
#define EP_LIB_FUNCS(X) \
	X(bytes) X(id) X(create) X(destroy) X(error) X(mask) X(masks_clear) X(barrier) X(ll_dispatch) X(ll_combine) \
	X(layout) X(notify) X(dispatch) X(combine)
/* clang-format on */
struct ep_lib {
	const struct tool_lib *lib;
#define X(name) __typeof__(shunt_ep_##name) *name;
	EP_LIB_FUNCS(X)
#undef X
};
/* Prints a message, too. */
int ep_lib_open(struct ep_lib *ep, const struct tool_lib *lib);

/* SHUNT_EP_SUM=rank. */
bool ep_sums_by_rank(void);

/* Where tokens go. */
enum ep_routing {
	EP_FREE,     /* to topk different experts */
	EP_ANYWHERE, /* the same expert twice, and none, among them */
	EP_ONE,      /* all to one expert */
	EP_ONE_RANK, /* to the experts of one rank */
	EP_NOWHERE,
	EP_NROUTINGS
};

/* The same on all ranks. */
struct ep_job {
	bool normal; /* of normal mode, else low latency */
	int nranks, experts, topk, hidden, max_tokens, form;
	int hosts; /* 0: one */
	int tokens[EP_CALL_RANKS];
	enum ep_routing routing;
	uint64_t seed;
	uint64_t masked; /* ranks that are left out, as bits */
};

struct ep_call {
	const struct ep_lib *ep;
	struct ep_job job;
	int rank;
	const uint16_t *pattern; /* of which all rows are made */
	int64_t *topk_idx[EP_CALL_RANKS];
	float *topk_weights[EP_CALL_RANKS];
	struct {
		void *at;
		uint64_t output; /* bytes to poison; 0: an input */
	} memory[24];            /* of the device */
	int nmemory, err;        /* err: the first one */
	struct shunt_ep_ll_dispatch dispatch;
	struct shunt_ep_ll_combine combine;
	struct ep_normal {
		struct shunt_ep_layout layout;
		struct shunt_ep_notify notify;
		struct shunt_ep_dispatch dispatch;
		struct shunt_ep_combine combine;
	} normal;
};
/* The parts of a call. Layout is of normal mode alone, with the notify behind it. */
enum { EP_LAYOUT, EP_DISPATCHES, EP_COMBINES, EP_NPARTS };
/* Memory of one rank, with its inputs. The caller sets the phases. */
int ep_call_open(struct ep_call *c, const struct ep_lib *ep, const struct ep_job *job, int rank);
/* NULL members allowed. */
void ep_call_close(struct ep_call *c);
void ep_call_place(struct ep_call *c, void *stream, int blocks);
/* Enqueues a part of the call; as the functions of shunt/ep.h. */
int ep_call_run(const struct ep_call *c, struct shunt_ep *group, int part);
/* Bytes of a group's memory for such a job, of normal mode with so many blocks; 0: it is refused. */
uint64_t ep_job_bytes(const struct ep_lib *ep, const struct ep_job *job, int blocks);
/* Fills the outputs with what is no result. */
int ep_call_poison(struct ep_call *c, void *stream);
/* How many parts of rows are wrong in what a part of the call has left. text: what the first one is. */
int ep_call_check(struct ep_call *c, int part, uint64_t *wrong_p, char *text, size_t bytes);
/*
 * Bytes that must cross the link of the busiest rank in one direction: a row for each rank that a token goes to, and
 * with `each` a row for each expert.
 */
uint64_t ep_job_wire_bytes(const struct ep_job *job, int64_t *const topk_idx[], uint64_t row_bytes, bool each);

/* ---- for the files of this folder */

enum { EP_POISON = 0xa5, EP_STRIP = 512 /* columns of a row that are looked at together */ };
struct ep_check {
	struct ep_call *c;
	uint64_t *wrong_p;
	char *text;
	size_t bytes;
	int err; /* the first one */
};
/* The same bytes? Row and column are for the text. */
void ep_check_bytes(struct ep_check *k, const char *what, uint64_t row, uint64_t column, const void *got,
    const void *want, size_t bytes);
void ep_check_array(struct ep_check *k, const char *what, const void *dev, const void *want, uint64_t bytes);
/* A copy of the device's memory, which the caller frees; NULL, with k->err: no memory, or it cannot be read. */
void *ep_fetch(struct ep_check *k, const void *from, uint64_t bytes);
/* The columns of a row of n elements to look at behind `column`; -1: no more. -1 before the first. */
int64_t ep_next_strip(int n, bool whole, int64_t column);
int ep_strip_width(int n, int64_t column);
/* Where a rank's tokens begin in the pattern, the rows of its experts, and the scales of its tokens. */
enum ep_pattern { EP_TOKENS = 1, EP_ROWS, EP_SCALES = 4 };
uint64_t ep_pattern_begin(const struct ep_job *j, int rank, enum ep_pattern what);
void ep_pattern_take(const struct ep_call *c, uint64_t at, uint64_t n, uint16_t *out);
/* Memory of the device until ep_call_close(): a copy of `from`, or an output. NULL: c->err is set. */
void *ep_device_memory(struct ep_call *c, const void *from, uint64_t bytes);
void *ep_output_memory(struct ep_call *c, uint64_t bytes);
/* n elements of the pattern from `at` on. */
void *ep_pattern_memory(struct ep_call *c, uint64_t at, uint64_t n);
struct ep_inputs ep_call_inputs(const struct ep_call *c);
/* Normal mode (ep_call_normal.c). */
void ep_normal_open(struct ep_call *c);
void ep_normal_check_dispatch(struct ep_check *k);
void ep_normal_check_combine(struct ep_check *k);

/* SPDX-License-Identifier: MIT */
#ifndef TOOLS_COMMON_EP_CALL_H
#define TOOLS_COMMON_EP_CALL_H
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

enum { EP_CALL_RANKS = 8 };

/* The functions of libshunt.so that it takes, which tool.h has not. */
/* clang-format off */
#define EP_LIB_FUNCS(X) \
	X(bytes) X(id) X(create) X(destroy) X(error) X(mask) X(masks_clear) X(barrier) X(ll_dispatch) X(ll_combine)
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
	int nranks, experts, topk, hidden, max_tokens, form;
	int tokens[EP_CALL_RANKS];
	enum ep_routing routing;
	uint64_t seed;
	uint32_t masked; /* ranks that are left out, as bits */
};

struct ep_call {
	const struct ep_lib *ep;
	struct ep_job job;
	int rank;
	uint16_t *pattern; /* of which all rows are made */
	int64_t *topk_idx[EP_CALL_RANKS];
	float *topk_weights[EP_CALL_RANKS];
	void *memory[16]; /* of the device */
	int nmemory;
	struct shunt_ep_ll_dispatch dispatch;
	struct shunt_ep_ll_combine combine;
};
/* Memory of one rank, with its inputs. The caller sets stream, phases and blocks. */
int ep_call_open(struct ep_call *c, const struct ep_lib *ep, const struct ep_job *job, int rank);
/* NULL members allowed. */
void ep_call_close(struct ep_call *c);
/* Bytes of a group's memory for such a job; 0: it is refused. */
uint64_t ep_job_ll_bytes(const struct ep_lib *ep, const struct ep_job *job);
/* Fills the outputs with what is no result. */
int ep_call_poison(struct ep_call *c, void *stream);
/* How many elements are wrong. text: what the first one is. */
int ep_call_check_dispatch(struct ep_call *c, uint64_t *wrong_p, char *text, size_t bytes);
int ep_call_check_combine(struct ep_call *c, uint64_t *wrong_p, char *text, size_t bytes);
/*
 * Bytes that must cross the link of the busiest rank in one direction: a row for each rank that a token goes to, and
 * with `each` a row for each expert.
 */
uint64_t ep_job_wire_bytes(const struct ep_job *job, int64_t *const topk_idx[], uint64_t row_bytes, bool each);
#endif

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Causes of hangs: dumps are grouped by communicator and compared rank by rank. First the calls (mismatch.c), then the
 * number of calls and the progress of the devices (stragglers.c), then messages (messages.c) and replays. The first
 * difference in this order is the cause of the later ones.
 */
#include "tools/doctor/doctor.h"

#define CREATION_NS 10000000000u /* a healthy creation of a communicator takes seconds */

/* A communicator with the dumps of its ranks. */
struct dump_group {
	const struct dump_comm **member; /* by rank; NULL: no dump */
	bool *marks[2];                  /* n each; scratch for the checks */
	int n;
	const char *id, *key;
	int ndumps;
};

/* Each adds a finding for the first problem of its kind; false: none. */
bool find_mismatch(struct findings *f, const struct dump_group *g);
bool find_split_path(struct findings *f, const struct dump_group *g);
bool find_setup_wait(struct findings *f, const struct dump_group *g);
bool find_teardown_wait(struct findings *f, const struct dump_group *g);
bool find_straggler_calls(struct findings *f, const struct dump_group *g);
/* NCCL has a collective, or a message, that has not finished on the device, as marks tell. */
bool find_nccl_unfinished(struct findings *f, const struct dump_group *g);
bool find_straggler_device(struct findings *f, const struct dump_group *g);
bool find_straggler_replays(struct findings *f, const struct dump_group *g);
/* A thread of a rank is inside a function of NCCL on this communicator. */
bool find_inside_nccl(struct findings *f, const struct dump_group *g);
bool find_messages(struct findings *f, const struct dump_group *g);

/* The same on a communicator that no dump has, such as one that is being created. */
void find_inside_unknown(struct findings *f, const struct dumps *d);

/* ---- text (text.c) */

/* Text that is built piece by piece; it is cut at the end of the buffer. */
struct text_buf {
	char s[1024];
	size_t n;
};
void text_add(struct text_buf *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The marked ranks: "rank 2", "ranks 0, 1 and 3", "ranks 0, 1, 2 and 29 more". */
void text_add_ranks(struct text_buf *t, const struct dump_group *g, const bool *marks);
/* The same, with process and host of each. */
void text_add_processes(struct text_buf *t, const struct dump_group *g, const bool *marks);
void text_add_op(struct text_buf *t, const struct dump_op *op);
/* "NCCL (its reason)", or the kernel's name. */
void text_add_path(struct text_buf *t, const struct dump_op *op);
void text_add_since(struct text_buf *t, uint64_t time_ns, uint64_t now_ns);
/* Another communicator's unfinished collective in the same process. */
void text_add_elsewhere(struct text_buf *t, const struct dump_comm *c);

int marks_count(const struct dump_group *g, const bool *marks);
/* The collective with this number; NULL: unknown. c may be NULL. */
const struct dump_op *collective_at(const struct dump_comm *c, uint64_t number);
bool op_is(const struct dump_op *op, const char *state);

void comm_finding_add(struct findings *f, const struct dump_group *g, enum finding_level level, const char *advice,
    const struct text_buf *t);
/*
 * Level for the age of a wait, by the clock of the waiting process. A healthy job has differences, too, but they do not
 * last.
 */
enum finding_level level_of_wait(uint64_t since_ns, uint64_t now_ns);
const char *advice_for(enum finding_level level);

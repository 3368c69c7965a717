/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_DOCTOR_HANGS_H
#define SHUNT_TOOLS_DOCTOR_HANGS_H
/*
 * Who waits for whom: dumps are put together by communicator and compared rank by rank. First what the ranks called
 * (doctor_mismatch.c), then how many calls they made and how far their devices are (doctor_stragglers.c), then messages
 * (doctor_messages.c) and replays. The first difference in that order is the cause of those behind it.
 */
#include "tools/doctor/doctor.h"

/* A communicator with the dumps of its ranks. */
struct dump_group {
	const struct dump_comm **member; /* by rank; NULL: no dump */
	bool *marks[2];                  /* of n each, for whoever needs them just now */
	int n;
	const char *id, *key;
	int ndumps;
};

/* Each says the first thing of its kind that it finds; false: nothing. */
bool find_mismatch(struct findings *f, const struct dump_group *g);
bool find_split_path(struct findings *f, const struct dump_group *g);
bool find_setup_wait(struct findings *f, const struct dump_group *g);
bool find_teardown_wait(struct findings *f, const struct dump_group *g);
bool find_straggler_calls(struct findings *f, const struct dump_group *g);
bool find_straggler_device(struct findings *f, const struct dump_group *g);
bool find_straggler_replays(struct findings *f, const struct dump_group *g);
bool find_messages(struct findings *f, const struct dump_group *g);

/* ---- words (doctor_text.c) */

/* Text that is put together piece by piece; what does not fit is cut. */
struct text_buf {
	char s[1024];
	size_t n;
};
void text_add(struct text_buf *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "rank 2", "ranks 0, 1 and 3", "ranks 0, 1, 2 and 29 more" of those that are marked. */
void text_add_ranks(struct text_buf *t, const struct dump_group *g, const bool *marks);
/* The same with process and host for each. */
void text_add_processes(struct text_buf *t, const struct dump_group *g, const bool *marks);
void text_add_op(struct text_buf *t, const struct dump_op *op);
/* "NCCL (its reason)", or the kernel's name. */
void text_add_path(struct text_buf *t, const struct dump_op *op);
void text_add_since(struct text_buf *t, uint64_t time_ns, uint64_t now_ns);
/* What else a process is doing: a collective of another communicator that has not ended. */
void text_add_elsewhere(struct text_buf *t, const struct dump_comm *c);

int marks_count(const struct dump_group *g, const bool *marks);
/* The collective of that number; NULL: not known. c may be NULL. */
const struct dump_op *collective_at(const struct dump_comm *c, uint64_t number);
bool op_is(const struct dump_op *op, const char *state);

void comm_finding_add(struct findings *f, const struct dump_group *g, enum finding_level level, const char *advice,
    const struct text_buf *t);
/* Age of a wait, as seen by the process that waits. A job that runs shows differences, too, but none that last. */
enum finding_level level_of_wait(uint64_t since_ns, uint64_t now_ns);
const char *advice_for(enum finding_level level);
#endif

/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_DOCTOR_WHO_H
#define SHUNT_TOOLS_DOCTOR_WHO_H
/*
 * Who waits for whom: dumps are put together by communicator and compared rank by rank. First what the ranks called
 * (doctor_calls.c), then how many calls they made and how far their devices are (doctor_behind.c), then messages
 * (doctor_messages.c) and replays. The first difference in that order is the cause of those behind it.
 */
#include "doctor.h"

/* A communicator with the dumps of its ranks. */
struct group {
	const struct dump_comm **member; /* by rank; NULL: no dump */
	bool *mark[2];                   /* of n each, for whoever needs them just now */
	int n;
	const char *id, *key;
	int nhere;
};

/* Each says the first thing of its kind that it finds; false: nothing. */
bool find_mismatch(struct findings *f, const struct group *g);
bool find_split_path(struct findings *f, const struct group *g);
bool find_in_setup(struct findings *f, const struct group *g);
bool find_in_end(struct findings *f, const struct group *g);
bool find_fewer_calls(struct findings *f, const struct group *g);
bool find_slow_device(struct findings *f, const struct group *g);
bool find_fewer_replays(struct findings *f, const struct group *g);
bool find_messages(struct findings *f, const struct group *g);

/* ---- words (doctor_words.c) */

/* Text that is put together piece by piece; what does not fit is cut. */
struct text {
	char s[1024];
	size_t n;
};
void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "rank 2", "ranks 0, 1 and 3", "ranks 0, 1, 2 and 29 more" of those that are marked. */
void add_ranks(struct text *t, const struct group *g, const bool *mark);
/* The same with process and host for each. */
void add_processes(struct text *t, const struct group *g, const bool *mark);
void add_op(struct text *t, const struct dump_op *op);
/* "NCCL (its reason)", or the kernel's name. */
void add_path(struct text *t, const struct dump_op *op);
void add_since(struct text *t, uint64_t time_ns, uint64_t now_ns);
/* What else a process is doing: a collective of another communicator that has not ended. */
void add_elsewhere(struct text *t, const struct dump_comm *c);

int count(const struct group *g, const bool *mark);
/* The collective of that number; NULL: not known. c may be NULL. */
const struct dump_op *collective(const struct dump_comm *c, uint64_t number);
bool is(const struct dump_op *op, const char *state);

void found_in(
    struct findings *f, const struct group *g, enum found_level level, const char *advice, const struct text *t);
/* Age of a wait, as seen by the process that waits. A job that runs shows differences, too, but none that last. */
enum found_level level_of(uint64_t since_ns, uint64_t now_ns);
const char *advice_of(enum found_level level);
#endif

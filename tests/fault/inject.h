/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Faults at a chosen point. The tests link the library's objects statically, and the linker puts a function of ours
 * before each call that they make to the C library for memory, sockets, descriptors, mappings and threads (--wrap; the
 * list is in meson.build). These count; at the one that was asked for they fail as the system would, or stop or kill
 * the process. The library itself knows nothing of it. What the C library calls by itself is not counted.
 */
#include <stdatomic.h>
#include <stdbool.h>

enum fault_kind {
	FAULT_ALLOC = 1, /* malloc and its like */
	FAULT_CALL = 2,  /* sockets, descriptors, mappings, threads, random numbers */
	FAULT_POLL = 4,  /* how often depends on time */
	FAULT_SEND = 8,  /* send and sendmsg alone */
};

enum fault_action {
	FAULT_COUNT,   /* only count */
	FAULT_FAIL,    /* once */
	FAULT_FAIL_ON, /* from there on, each time */
	FAULT_STOP,    /* SIGSTOP; somebody else has to send SIGCONT */
	FAULT_KILL,
	FAULT_CORRUPT, /* what is sent has another byte; see also fault_forge */
};

/* What takes the place of the descriptors that this process passes on, from now on. */
enum fault_forgery {
	FORGE_NOTHING,
	FORGE_OTHER_FILE, /* /dev/null */
	FORGE_UNSEALED,   /* memory of the same size that could be shrunk under the reader */
	FORGE_SMALLER,
	FORGE_TWO, /* instead of one */
	FORGE_NONE,
	FORGE_UNASKED, /* where none should be */
	FORGERIES
};
void fault_forge(enum fault_forgery forgery);

struct fault_state {
	atomic_uint kinds;
	atomic_int action;
	atomic_long at;   /* the at-th point, from 1 */
	atomic_long seen; /* points so far */
	atomic_uint salt; /* FAULT_CORRUPT: which byte, and how it changes */
	char hit[24];     /* the function that was chosen; "" if none has been */
};

/* Where the state is from now on: shared memory, so that another process can read it. Zeroed by the caller. */
void fault_use(struct fault_state *state);
void fault_arm(unsigned kinds, enum fault_action action, long at);
/* No more faults; how many points there were. */
long fault_disarm(void);
/* The function where the fault struck, or "". */
const char *fault_hit(void);

/* What the library's objects have and have not given back. */
struct fault_balance {
	long allocs, maps, fds;
};
struct fault_balance fault_balance(void);
/* True: within so many looks, of 2 ms each, no more is held than at the mark. Threads of ours may be about to end. */
bool fault_back_to(const struct fault_balance *mark, int looks);
/* What is held and was not at the mark, as a text that lasts until the next call. */
const char *fault_left_since(const struct fault_balance *mark);

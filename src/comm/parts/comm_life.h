/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The life of a communicator: two state machines, a function for each event. Queries are for any thread; an event is
 * for the thread that holds the communicator's lock, unless it says otherwise.
 */
#include <stdatomic.h>
#include <stdbool.h>

/*
 * How its calls run.
 *
 * | event                                            | UNNAMED  | WANTED   | NEW      | READY | UNTOLD  | FORWARD |
 * |--------------------------------------------------|----------|----------|----------|-------|---------|---------|
 * | wanted: a peer came to set it up                 | WANTED   | WANTED   | NEW      | READY | UNTOLD  | FORWARD |
 * | named: its rank, size and device are known       | NEW      | NEW      |          |       | UNTOLD  | FORWARD |
 * | ready: the set-up ended, all ranks agreed        | READY    | READY    | READY    |       |         |         |
 * | forward: all ranks forward, and will say so once | UNTOLD   | UNTOLD   | UNTOLD   |       |         |         |
 * | forward: ... and have said so                    | FORWARD  | FORWARD  | FORWARD  |       |         |         |
 * | told: the first call was forwarded               |          |          |          |       | FORWARD | FORWARD |
 *
 * An empty field: the event cannot come. A program may call before the device is known: then the set-up begins without
 * it, and finds that out for all ranks.
 */
enum comm_state {
	COMM_UNNAMED,        /* rank, size and device are not known yet */
	COMM_WANTED,         /* ... and a peer waits for the set-up */
	COMM_NEW,            /* not set up */
	COMM_READY,          /* our kernels run */
	COMM_FORWARD_UNTOLD, /* all calls are forwarded; the log does not say why yet */
	COMM_FORWARD,        /* all calls are forwarded */
};

/*
 * Whether it works: one word, which is 0 (WORKS), 1 + a rank (LOST) or a negative errno (FAILED).
 *
 * | event                                                                        | WORKS  | LOST   | FAILED |
 * |------------------------------------------------------------------------------|--------|--------|--------|
 * | lost: a rank died; the kernels that wait for it are to give up by themselves | LOST   | LOST   | FAILED |
 * | found: the device can be read again, so nothing is left to the kernels       | WORKS  | WORKS  | FAILED |
 * | failed: an error, which stays                                                | FAILED | FAILED | FAILED |
 */
struct shunt_comm_life {
	atomic_int state;  /* enum comm_state */
	atomic_int health; /* see above */
	int lost_pid;      /* of the lost rank; written before `health` */
	atomic_int cancel; /* abort was called; host waits poll it */
	char reason[160];  /* of FORWARD */
};

static inline enum comm_state shunt_comm_life_state(const struct shunt_comm_life *life)
{
	return atomic_load_explicit(&life->state, memory_order_acquire);
}

/* True: the reason stands, and no call runs here. */
static inline bool shunt_comm_life_forwards(const struct shunt_comm_life *life)
{
	return shunt_comm_life_state(life) >= COMM_FORWARD_UNTOLD;
}

/* 0, or the first error. */
static inline int shunt_comm_life_error(const struct shunt_comm_life *life)
{
	int health = atomic_load_explicit(&life->health, memory_order_acquire);

	return health < 0 ? health : 0;
}

/* The lost rank, or -1. */
static inline int shunt_comm_life_lost_rank(const struct shunt_comm_life *life)
{
	int health = atomic_load_explicit(&life->health, memory_order_acquire);

	return health > 0 ? health - 1 : -1;
}

static inline bool shunt_comm_life_aborted(const struct shunt_comm_life *life)
{
	return atomic_load(&life->cancel);
}

/* True: the set-up is to begin; it begins with `named` if it is too early, and has ended otherwise. */
bool shunt_comm_life_wanted(struct shunt_comm_life *life);
/* True: a peer waits for the set-up. */
bool shunt_comm_life_named(struct shunt_comm_life *life);
void shunt_comm_life_ready(struct shunt_comm_life *life);
void shunt_comm_life_forward(struct shunt_comm_life *life, const char *reason, bool told);
/* Any thread. True for one caller: it says why. */
bool shunt_comm_life_tell(struct shunt_comm_life *life);

/* The three below: any thread. lost and found: one thread at a time. */
void shunt_comm_life_lost(struct shunt_comm_life *life, int rank, int pid);
void shunt_comm_life_found(struct shunt_comm_life *life);
/* Abort was called: waits on the host give up. Any thread. */
static inline void shunt_comm_life_abort(struct shunt_comm_life *life)
{
	atomic_store(&life->cancel, 1);
}

/* err: a negative errno. False: there is an error already. */
bool shunt_comm_life_failed(struct shunt_comm_life *life, int err);

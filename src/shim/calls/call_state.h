/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The way of a call through a group. A function stands for each event. 0, or -EBUSY where the table has no state: then
 * nothing has changed. A group belongs to a thread, and so do its calls.
 *
 * | event   | NEW       | UNDECIDED | QUEUED    | OURS      | FORKED  | JOINING  |
 * |---------|-----------|-----------|-----------|-----------|---------|----------|
 * | record  | UNDECIDED |           |           |           |         |          |
 * | settle  | OURS      | OURS      |           |           |         |          |
 * | queue   | QUEUED    |           |           |           |         |          |
 * | forward |           | FORWARDED | FORWARDED | FORWARDED |         |          |
 * | fork    |           |           |           | FORKED    |         |          |
 * | launch  |           |           |           | LAUNCHED  | JOINING |          |
 * | join    |           |           |           |           | OURS    | LAUNCHED |
 *
 * record: Shunt takes the call, unless the ranks find out that they cannot. settle: the call cannot go to the real NCCL
 * any more. queue: the call is for the real NCCL, and waits behind a call that may have to go there, too. forward: the
 * real NCCL has got the call. fork: the call is to run at the same time as the real NCCL's part of the group. launch:
 * Shunt has launched the call. join: the call's stream waits for it, or for nothing if the group has failed.
 *
 * No event leaves FORWARDED and LAUNCHED.
 */
#include <errno.h>
#include <stdbool.h>

enum shunt_call_state {
	SHUNT_CALL_NEW,
	SHUNT_CALL_UNDECIDED,
	SHUNT_CALL_QUEUED,
	SHUNT_CALL_OURS,
	SHUNT_CALL_FORKED,
	SHUNT_CALL_JOINING,
	SHUNT_CALL_FORWARDED,
	SHUNT_CALL_LAUNCHED,
};

/* From one of the states of a set, which has a bit for each. */
static inline int shunt_call_move(enum shunt_call_state *state, unsigned from, enum shunt_call_state to)
{
	if (!(from >> *state & 1))
		return -EBUSY;
	*state = to;
	return 0;
}

static inline int shunt_call_record(enum shunt_call_state *state)
{
	return shunt_call_move(state, 1u << SHUNT_CALL_NEW, SHUNT_CALL_UNDECIDED);
}

static inline int shunt_call_settle(enum shunt_call_state *state)
{
	return shunt_call_move(state, 1u << SHUNT_CALL_NEW | 1u << SHUNT_CALL_UNDECIDED, SHUNT_CALL_OURS);
}

static inline int shunt_call_queue(enum shunt_call_state *state)
{
	return shunt_call_move(state, 1u << SHUNT_CALL_NEW, SHUNT_CALL_QUEUED);
}

static inline int shunt_call_forward(enum shunt_call_state *state)
{
	return shunt_call_move(
	    state, 1u << SHUNT_CALL_UNDECIDED | 1u << SHUNT_CALL_QUEUED | 1u << SHUNT_CALL_OURS, SHUNT_CALL_FORWARDED);
}

static inline int shunt_call_fork(enum shunt_call_state *state)
{
	return shunt_call_move(state, 1u << SHUNT_CALL_OURS, SHUNT_CALL_FORKED);
}

static inline int shunt_call_launch(enum shunt_call_state *state)
{
	return shunt_call_move(state, 1u << SHUNT_CALL_OURS | 1u << SHUNT_CALL_FORKED,
	    *state == SHUNT_CALL_FORKED ? SHUNT_CALL_JOINING : SHUNT_CALL_LAUNCHED);
}

static inline int shunt_call_join(enum shunt_call_state *state)
{
	return shunt_call_move(state, 1u << SHUNT_CALL_FORKED | 1u << SHUNT_CALL_JOINING,
	    *state == SHUNT_CALL_FORKED ? SHUNT_CALL_OURS : SHUNT_CALL_LAUNCHED);
}

/* True: a recorded call that Shunt or the real NCCL still has to get. */
static inline bool shunt_call_waits(enum shunt_call_state state)
{
	return state >= SHUNT_CALL_UNDECIDED && state <= SHUNT_CALL_FORKED;
}

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A profiler plug-in of NCCL, one file for each version of the interface (libnccl-profiler-fake4.so to fake7.so), that
 * writes down what it is told. FAKE_PROFILER has letters:
 *
 * | letter | the plug-in |
 * |--------|-------------|
 * | i      | wants what Inspector wants: Coll, P2p and KernelCh |
 * | a      | wants all there may ever be |
 * | n      | gives NULL for calls |
 * | f      | fails in init |
 * | s      | is slow: each event takes a millisecond |
 */
#include <stddef.h>
#include <stdint.h>

struct fake_event {
	uint64_t type;
	const struct fake_event *parent;
	uint64_t id; /* of the communicator */
	int rank, channels, peer, stops, states;
	uint64_t seq, count, start, stop; /* start, stop: of a KernelCh */
	char func[32], dtype[32], algo[32], proto[32], variant[32];
	int captured;
};

struct fake_profiler {
	int inits, finalized;
	int wrong;     /* events that are not of this version, handles that are none, stops that come twice */
	char name[64]; /* of the last communicator */
	size_t n;
	struct fake_event events[4096];
};

/* Of this process. */
typedef const struct fake_profiler *fake_profiler_get(void);

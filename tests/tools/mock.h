/* SPDX-License-Identifier: MIT */
#pragma once
/* What the files of the mock library (mock_lib.c) share: communicators, calls, and a thread's group of them. */
#include <stdatomic.h>
#include <stdbool.h>
#include "base/coll.h"
#include "shim/nccl/abi.h"
#include "shunt/device.h"
#include "shunt/shunt.h"

#define EXPORT __attribute__((visibility("default")))
enum { FIFO_BYTES = 4 << 20, MAX_RANKS = 8, MAX_OPS = 16 };
enum { COLL_CHANNEL, P2P_CHANNEL, NCHANNELS }; /* two orders of messages that do not mix */

/* Bytes from one rank to another. */
struct fifo {
	atomic_ullong in, out;
	char data[FIFO_BYTES];
};

struct comm_shm {
	struct fifo fifo[NCHANNELS][MAX_RANKS][MAX_RANKS]; /* from, to */
};

struct op {
	bool used;
	ncclDataType_t dtype;
	uint64_t scalar;
	const void *scalar_at; /* device scalar */
};

struct ncclComm {
	int rank, nranks, device, splits, shrinks;
	int windows; /* that are registered with it */
	bool async;
	int in_progress; /* how often ncclCommGetAsyncError says "in progress" still */
	bool broken;     /* it says that there is an error */
	char name[200];
	struct comm_shm *shm;
	struct op ops[MAX_OPS];
	struct {
		uint64_t calls, bytes;
	} counters[SHUNT_NKINDS][2]; /* small and large ones */
};

struct call {
	struct shunt_coll coll;
	ncclComm_t comm;
	const void *scalar_at;
};

struct calls {
	struct call *v;
	size_t n;
};

struct stream {
	struct calls *capturing;
	unsigned synchronized;
};

/* Not complete before the stream is synchronised. */
struct event {
	struct stream *stream;
	unsigned synchronized;
	double us;
};

/* A communicator that a call, or a group of calls, makes. */
struct comm_init {
	ncclComm_t *comm_p, comm, parent; /* parent: the others' votes say rank and nranks */
	int color, key;
	char name[256];
	int rank, nranks, device;
	bool async;
};

struct comm_inits {
	struct comm_init *v;
	size_t n;
};

struct mock_group {
	int depth;
	ncclResult_t error;
	struct calls calls;
	struct comm_inits comm_inits;
};
extern _Thread_local struct mock_group mock_group;
extern _Thread_local int mock_current_device;

/* MOCK_FAULT, if it is about this library, else "". */
const char *mock_fault(void);
void mock_fifo_put(ncclComm_t c, int channel, int to, const void *data, size_t bytes);
void mock_fifo_get(ncclComm_t c, int channel, int from, void *data, size_t bytes);
void mock_calls_run(const struct calls *calls);
ncclResult_t mock_in_progress(ncclComm_t comm);
bool mock_is_large(size_t count);
const char *mock_path_name(bool large);
/* Makes them, all of a group at once, in steps: one thread may make several ranks of a communicator. */
ncclResult_t mock_comm_inits_run(struct comm_inits *comm_inits);

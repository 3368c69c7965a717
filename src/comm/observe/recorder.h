/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The flight recorder of a communicator: its last operations as the host issued them, and how far the device has come
 * with them. It is read only when something breaks or hangs; readers wait for no kernel and for no lock of the
 * communicator.
 *
 * Host side:
 * - A ring has the last 1,024 operations that were launched or forwarded, another ring those that were captured: a
 *   graph replays them long after eager operations would have pushed them out.
 * - Every operation of this rank has a sequence number `seq`, from 1.
 * - Ranks are compared by `number`. Collectives are counted through, because all ranks issue the same ones. Messages
 *   are counted for each pair of ranks and direction, because the i-th send goes to the i-th receive, whatever comes
 *   between.
 *
 * Device side: the host does not see a graph's replay, so kernels keep the account, in struct shunt_progress of their
 * own rank's scratch. shunt_recorder_add() returns the word that identifies the operation, and the launch carries it as
 * kargs.op. Calls that share a launch share the word of the last one; a replay has the word of the captured call. A
 * kernel stores, by plain or relaxed accesses:
 * - At its start, the first thread of the first block: progress.now = op; progress.replays++ if (op &
 *   SHUNT_OP_CAPTURED), else progress.eager = op; progress.begun += the launch's warps.
 * - At its end, one lane of every warp, even of one that gave up: an atomic add of 1 to progress.ended.
 * - When it gives up, with the rest of the record: fault.op = progress.now.
 *
 * Launches of a communicator do not overlap, so one writer is enough, except for `ended`. begun and ended differ
 * exactly while a kernel runs; for a moment ended may lead.
 *
 * Threads: add from one thread at a time for a communicator, as with NCCL; two at once only lose the order. ready,
 * unready and destroy from the thread that owns the communicator; the rest from any thread. A recorder may be NULL
 * everywhere, and then nothing happens.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "device/gpu_ops.h"
#include "kernels/kargs.h"

#define SHUNT_RECORDER_OPERATIONS 1024u

struct shunt_recorder;
struct shunt_counter;
struct shunt_counters_table;

/*
 * NULL: no memory; the communicator works without a recorder. id: the communicator's 16 bytes, which are secret.
 * Readers find it in the registry.
 */
struct shunt_recorder *shunt_recorder_create(const uint8_t id[16]);
/* Another id: the first one was that of several communicators. */
void shunt_recorder_set_id(struct shunt_recorder *rec, const uint8_t id[16]);
void shunt_recorder_set_rank(struct shunt_recorder *rec, int rank, int nranks, int device);
/*
 * Over several hosts, before ready: the ranks in the order in which kernels with memory of their own number them in
 * faults. NULL: all kernels number them as the communicator does.
 */
void shunt_recorder_over_hosts(struct shunt_recorder *rec, const uint8_t *rank_of, unsigned n);
/* From now on, until unready, the device side may be read. words: as the host sees them, or NULL. */
void shunt_recorder_ready(struct shunt_recorder *rec, const struct shunt_gpu_ops *gpu, const struct shunt_ctrl *ctrl,
    const struct shunt_host_ctrl *words);
/* A fault that the host has from another place than that memory, with ranks of the communicator. The first one stays.
 */
void shunt_recorder_found(struct shunt_recorder *rec, const struct shunt_fault *fault);
/* To be called before that memory is freed; waits for a reader that is at it. */
void shunt_recorder_unready(struct shunt_recorder *rec);
/* The name of the communicator's wait on the host, such as "set-up", with static storage; NULL: no wait. */
void shunt_recorder_phase(struct shunt_recorder *rec, const char *phase);
/* Forward-only for good; reason is copied. */
void shunt_recorder_forward(struct shunt_recorder *rec, const char *reason);
/* The communicator's sticky error. True: it is the first one, which is kept. */
bool shunt_recorder_error(struct shunt_recorder *rec, int err);
/* A number that is equal on all ranks, and different for each communicator; 0 without a recorder. */
uint64_t shunt_recorder_tag(const struct shunt_recorder *rec);
/* The communicator's counters, which stay until destroy. */
void shunt_recorder_set_counters(struct shunt_recorder *rec, const struct shunt_counters_table *counters);
void shunt_recorder_destroy(struct shunt_recorder *rec);
/*
 * The communicator has ended, but its memory stays for a while; readers do not find it any more. Does not wait. Returns
 * what must be destroyed together with that memory; NULL: nothing.
 */
struct shunt_recorder *shunt_recorder_detach(struct shunt_recorder *rec);

/*
 * Notes an operation just before it is launched. path: the algorithm's name, with static storage; NULL: the real NCCL.
 * left: how many calls of the same group follow. Returns kargs.op for its launches; 0 without a recorder. Takes no
 * lock, and allocates only at the first eager and at the first captured call.
 */
uint64_t shunt_recorder_add(
    struct shunt_recorder *rec, const struct shunt_coll *coll, const char *path, unsigned left, bool captured);
/* The same for a call that is forwarded, with its reason. */
void shunt_recorder_add_forward(struct shunt_recorder *rec, const struct shunt_coll *coll, enum shunt_reason reason);
/* The same where marks are asked for: it becomes due (marks.h), unless it is captured. */
void shunt_recorder_add_marked(
    struct shunt_recorder *rec, const struct shunt_coll *coll, enum shunt_reason reason, bool captured);
/* To be called after set_rank where marks are asked for. gpu: NULL is allowed. */
void shunt_recorder_open_marks(struct shunt_recorder *rec, const struct shunt_gpu_ops *gpu);
/* The function of NCCL's that this thread calls next is on this communicator. */
void shunt_recorder_note_function(struct shunt_recorder *rec);
/* A call that NCCL got has failed with this ncclResult_t. */
void shunt_recorder_nccl_failed(struct shunt_recorder *rec, int result);
/*
 * The same for an operation that is none of NCCL's collectives, which all ranks issue alike; its name has static
 * storage.
 */
uint64_t shunt_recorder_add_named(
    struct shunt_recorder *rec, const char *name, uint64_t count, const void *stream, bool captured);
/*
 * kargs.op for a launch of an operation that is not noted, but has its place among the others. 0
 * without a recorder.
 */
uint64_t shunt_recorder_pass(struct shunt_recorder *rec, bool captured);

/* ---- for readers */

struct shunt_operation {
	uint64_t seq, number, last; /* last: seq of its group's last call */
	uint64_t count, time_ns;    /* time: CLOCK_MONOTONIC, coarse */
	const void *stream;
	const char *path;         /* NULL: the real NCCL */
	enum shunt_reason reason; /* ... and why */
	enum shunt_kind kind;     /* SHUNT_NKINDS: none of NCCL's, and path is its name */
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	int root; /* SEND, RECV: the peer */
	bool captured;
};

/* The collective's name, or the operation's own. */
static inline const char *shunt_operation_name(const struct shunt_operation *op)
{
	return op->kind < SHUNT_NKINDS ? shunt_kind_name(op->kind) : op->path;
}

/* State of an operation, by the device's words. */
enum shunt_operation_state {
	SHUNT_OPERATION_UNKNOWN,  /* no device side, or a captured operation: replays are only counted */
	SHUNT_OPERATION_IN_NCCL,  /* a thread is inside the real NCCL with it */
	SHUNT_OPERATION_RETURNED, /* the real NCCL has got it, and runs it */
	SHUNT_OPERATION_ENQUEUED, /* its kernel has not begun */
	SHUNT_OPERATION_RUNNING,  /* also one of NCCL's, whose mark has not come */
	SHUNT_OPERATION_FINISHED,
	SHUNT_OPERATION_FAILED, /* a kernel gave up in it, or it was launched after that */
};
const char *shunt_operation_state_name(enum shunt_operation_state state);
/* progress may be NULL. fault: as in a snapshot. */
enum shunt_operation_state shunt_operation_state(
    const struct shunt_operation *op, const struct shunt_progress *progress, const struct shunt_fault *fault);

/* The operations that the host has launched, to be compared with the device's account. */
struct shunt_recorder_issued {
	uint64_t eager;     /* kargs.op of the last operation outside of a capture; 0: none */
	uint64_t ncaptured; /* operations within captures */
};
/* Does not wait. An operation is in it before it is launched. */
struct shunt_recorder_issued shunt_recorder_issued(struct shunt_recorder *rec);

struct shunt_recorder_snapshot {
	char id[9];               /* as in the log */
	char key[17];             /* equal on all ranks, different for each communicator; does not tell the id */
	int rank, nranks, device; /* -1: not known yet */
	int error;
	bool forward, have_device;
	bool only_progress; /* of ctrl */
	bool over_hosts;    /* kernels between hosts keep no account of channels */
	bool unresponsive;  /* the device was not read in time: another call holds the driver */
	char reason[160];
	const char *phase;
	uint64_t phase_ns; /* when the phase began */
	uint64_t calls, collectives, captured;
	struct shunt_ctrl *ctrl; /* a copy, or NULL */
	struct shunt_fault fault;
	uint64_t waits_ns[SHUNT_WAIT_RANKS]; /* by rank: for how long kernels have waited for it */
	bool have_waits;
	unsigned npeers; /* 0, or nranks: how many messages were sent to, and received from, each rank */
	unsigned *sends, *receives;
	uint64_t tag;      /* for comm/observe/thread_note.h: the 8 bytes of key */
	uint64_t held_by;  /* seq of the first call that a thread is inside the real NCCL with; UINT64_MAX: none */
	uint64_t returned; /* seq of the last call that the real NCCL has come back from; 0: none */
	uint64_t marked;   /* seq of the last call that a mark follows; 0: none */
	uint64_t finished; /* seq of the last call whose mark has come; 0: none */
	int nccl_result;   /* what a call that it got has failed with; 0: nothing */
};

/* How much of the device is read. */
enum shunt_recorder_depth {
	SHUNT_READ_NOTHING,
	SHUNT_READ_PROGRESS, /* the account of kernels, and that only where something may have changed */
	SHUNT_READ_ALL,
};

/* Calls fn with the recorder of each communicator, oldest first. No lock is held meanwhile, and no communicator waits.
 */
void shunt_recorder_visit(void (*fn)(struct shunt_recorder *rec, void *arg), void *arg);
/* rec stays until unref, even if the communicator ends meanwhile. ref returns rec. */
struct shunt_recorder *shunt_recorder_ref(struct shunt_recorder *rec);
void shunt_recorder_unref(struct shunt_recorder *rec);
/* Copies at most cap operations, oldest first; returns how many. Leaves out entries that are being overwritten. */
size_t shunt_recorder_read(struct shunt_recorder *rec, bool captured, struct shunt_operation *ops, size_t cap);
/*
 * Waits at most wait_ms for the device; ctrl is NULL if it cannot be read in time. 0 or -ENOMEM. The caller calls
 * shunt_recorder_snapshot_finish.
 */
int shunt_recorder_snapshot(struct shunt_recorder *rec, enum shunt_recorder_depth depth, unsigned wait_ms,
    struct shunt_recorder_snapshot *snapshot);
/* As shunt_counters_list(); nothing once the communicator has ended. */
size_t shunt_recorder_counters(struct shunt_recorder *rec, struct shunt_counter *rows, size_t cap);
void shunt_recorder_snapshot_finish(struct shunt_recorder_snapshot *snapshot);

/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_OBSERVE_RECORDER_H
#define SHUNT_COMM_OBSERVE_RECORDER_H
/*
 * The flight recorder of a communicator: its last operations as the host issued them, and how far the device has come.
 * Nothing of it is looked at before something hangs; then dump.c writes it down, without waiting for a kernel or for a
 * lock of the communicator.
 *
 * Host side   A ring of the last 1,024 operations that were launched or forwarded, and a second one for those that were
 * captured: a graph replays them long after, when the eager ones would have pushed them out. Numbers     Every
 * operation has a sequence number `seq`, from 1, on this rank. Ranks are compared by `number`: collectives are counted
 * through, since all ranks issue the same; messages between two ranks are counted for each pair and direction, since
 *             the i-th send meets the i-th receive whatever stands in between.
 * Device side A graph's replay does not pass through the host, so the kernels keep account themselves, in struct
 * shunt_progress of their own rank's scratch. shunt_recorder_add() returns the word that identifies the operation; the
 * launch carries it (kargs.op). A replay carries the word of the captured call. The kernel does, through plain or
 * relaxed accesses: at its start, the first thread of the first block: progress.now = op; if (op & SHUNT_OP_CAPTURED)
 * progress.replays++; else progress.eager = op; progress.begun += the number of warps of the launch at its end, one
 * lane of every warp, also one that gave up: atomic add of 1 to progress.ended When it gives up, with the rest of the
 * record: fault.op = progress.now. Launches of a communicator do not overlap, so one writer is enough but for `ended`.
 * The two counts differ exactly while a kernel runs (for a moment `ended` may lead). Calls that share a launch share
 * its word: that of the last of them.
 *
 * Threads: add, from one thread at a time for a communicator, as with NCCL; two at once lose nothing but the order.
 * ready, unready and destroy from the thread that owns the communicator; the rest from any. NULL for a recorder is
 * allowed everywhere, and does nothing.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "device/gpu_ops.h"
#include "kernels/kargs.h"

#define SHUNT_RECORDER_OPERATIONS 1024u
#define SHUNT_OP_CAPTURED (UINT64_C(1) << 63)

struct shunt_recorder;

/*
 * Puts the communicator on the process's list; NULL: no memory, and the communicator does without. id: its 16 bytes, a
 * secret.
 */
struct shunt_recorder *shunt_recorder_create(const uint8_t id[16]);
void shunt_recorder_set_rank(struct shunt_recorder *rec, int rank, int nranks, int device);
/* The device side may be read from now on, until unready. fault: as the host sees it, or NULL. */
void shunt_recorder_ready(struct shunt_recorder *rec, const struct shunt_gpu_ops *gpu, const struct shunt_ctrl *ctrl,
    const struct shunt_fault *fault);
/* To be called before that memory goes; waits for who is just reading it. */
void shunt_recorder_unready(struct shunt_recorder *rec);
/* What the communicator waits for on the host, with static storage ("set-up"); NULL: nothing. */
void shunt_recorder_phase(struct shunt_recorder *rec, const char *phase);
/* Forward-only for good; reason is copied. */
void shunt_recorder_forward(struct shunt_recorder *rec, const char *reason);
/*
 * The communicator's sticky error. The first one is dumped, if the user asked for that (dump.h). Before an abort word
 * is raised: what runs is to be seen.
 */
void shunt_recorder_error(struct shunt_recorder *rec, int err);
void shunt_recorder_destroy(struct shunt_recorder *rec);
/*
 * The communicator has ended, but its memory stays: nobody finds it from now on. Waits for nobody. Returns what is to
 * be destroyed with that memory; NULL: nothing is left.
 */
struct shunt_recorder *shunt_recorder_detach(struct shunt_recorder *rec);

/*
 * Notes an operation just before it is launched or forwarded. path: the algorithm's name, with static storage; NULL:
 * the real NCCL. left: how many calls of the same group follow. Returns kargs.op for its launches; 0 without a
 * recorder. Takes no lock, and no memory but at the first call of either kind.
 */
uint64_t shunt_recorder_add(
    struct shunt_recorder *rec, const struct shunt_coll *coll, const char *path, unsigned left, bool captured);
/* The same for a call that is forwarded, with its reason. */
void shunt_recorder_add_forward(struct shunt_recorder *rec, const struct shunt_coll *coll, enum shunt_reason reason);

/* ---- for those who read */

struct shunt_operation {
	uint64_t seq, number, last; /* last: seq of the last call of its group */
	uint64_t count, time_ns;    /* time: CLOCK_MONOTONIC, coarse */
	const void *stream;
	const char *path;         /* NULL: the real NCCL */
	enum shunt_reason reason; /* ... and the reason */
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	int root; /* SEND, RECV: the peer */
	bool captured;
};

/* What is known of an operation, given the device's words. */
enum shunt_operation_state {
	SHUNT_OPERATION_UNKNOWN,   /* no device side, or a captured one: replays are counted as a whole */
	SHUNT_OPERATION_FORWARDED, /* the real NCCL has it */
	SHUNT_OPERATION_ENQUEUED,  /* its kernel has not begun */
	SHUNT_OPERATION_RUNNING,
	SHUNT_OPERATION_FINISHED,
	SHUNT_OPERATION_FAILED, /* a kernel gave up in it, or was launched after that */
};
const char *shunt_operation_state_name(enum shunt_operation_state state);
/* progress may be NULL. fault: as in a snapshot. */
enum shunt_operation_state shunt_operation_state(
    const struct shunt_operation *op, const struct shunt_progress *progress, const struct shunt_fault *fault);

struct shunt_recorder_snapshot {
	char id[9];               /* as in the log */
	char key[17];             /* tells communicators apart, and is the same on all ranks; tells nothing of the id */
	int rank, nranks, device; /* -1: not known yet */
	int error;
	bool forward, have_device;
	bool unresponsive; /* the device was not read in time: something holds the driver */
	char reason[160];
	const char *phase;
	uint64_t phase_ns; /* since when */
	uint64_t calls, collectives, captured;
	struct shunt_ctrl *ctrl; /* a copy, or NULL */
	struct shunt_fault fault;
	unsigned npeers; /* 0, or nranks: how many messages were sent to, and received from, each rank */
	unsigned *sends, *receives;
};

/*
 * Calls fn with every communicator of this process that is alive. No lock is held meanwhile; rec lives as long as the
 * call.
 */
void shunt_recorder_visit(void (*fn)(struct shunt_recorder *rec, void *arg), void *arg);
/* Copies at most cap operations, oldest first; returns how many. Those that are just being overwritten are left out. */
size_t shunt_recorder_read(struct shunt_recorder *rec, bool captured, struct shunt_operation *ops, size_t cap);
/*
 * To be finished. Waits at most wait_ms for the device. 0 or -ENOMEM. A device that cannot be read, or not in time,
 * leaves ctrl NULL.
 */
int shunt_recorder_snapshot(struct shunt_recorder *rec, unsigned wait_ms, struct shunt_recorder_snapshot *snapshot);
void shunt_recorder_snapshot_finish(struct shunt_recorder_snapshot *snapshot);
#endif

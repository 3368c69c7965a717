/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_EXEC_EXEC_H
#define SHUNT_PLAN_EXEC_EXEC_H
/*
 * A plan on one communicator: its program on the device, the memory it needs, and its launches.
 *
 * Memory. All ranks have resources of one layout (kernels/plan/args.h), mapped by all; they are made by the first
 * launch, in two rounds among the ranks, and again by a launch with a larger message than any before (twice as large at
 * least). Earlier ones stay, because captured graphs may use them, until the exec is destroyed. What the plan reaches
 * at peers is there only: input and output that peers use have staging buffers, which the kernel fills from the
 * caller's memory and empties into it. In windows of the communicator that all ranks' buffers lie in, at the same
 * place, peers reach the callers' memory itself, if the message fills all chunks; where it is input, nobody writes to
 * it and operands are not to be scaled. Where peers do not come, the plan works in the caller's memory, unless
 *   - the message does not fill all chunks, or an address is not a multiple of 16,
 *   - operands are to be scaled before the sum, or an average is to be divided (AVG and PREMUL run plans of sums),
 *   - the plan writes where the collective only reads, or the call is in place and the plan is not (or the other way
 * round), and then in a bounce buffer. Only the latter differs between ranks, and concerns nobody else; there is room
 * for it since the resources were made, as a launch could not fail on one rank alone. So a plan runs with any
 * addresses, in place or not, for any count.
 *
 * One thread at a time; launches of one exec run one after the other on the device (the caller orders its streams), all
 * ranks launch the same sequence. All blocks of a launch must be resident together: the caller keeps other kernels that
 * wait for peers away as it does for the native ones.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "device/gpu_ops.h"
#include "kernels/kargs.h"
#include "plan/format/plan.h"

struct shunt_plan_exec;

/*
 * How packets travel: as LL128 (kernels/plan/args.h) where the plan allows that, else in 16 bytes; always so; or in 8
 * bytes.
 */
enum shunt_plan_ll_format { SHUNT_PLAN_LL_FORMAT_LL128, SHUNT_PLAN_LL_FORMAT_LL16, SHUNT_PLAN_LL_FORMAT_LL8 };

/* What an exec needs of its communicator; copied. */
struct shunt_plan_exec_config {
	const struct shunt_gpu_ops *gpu;
	int device, rank, nranks;
	struct shunt_ctrl
	    *ctrl; /* device address: abort word, deadline and fault record of our kernels; lives as long as the exec */
	uint64_t process; /* a number that only ranks in this process have: those borrow their memory */
	/*
	 * A round among all ranks, as shunt_rendezvous_allgather with the time-out and cancellation of the
	 * communicator: every rank contributes bytes and (if fds is not NULL, on all ranks alike) a descriptor or -1.
	 * An error is passed on by the launch, and breaks the communicator. With 0 bytes and no fds, where there is no
	 * memory to take part: it fails on all ranks.
	 */
	int (*gather)(void *ctx, const void *mine, size_t bytes, void *all, int fd, int *fds);
	void *ctx;
	unsigned max_blocks; /* of a launch, the same on all ranks; 0: as many as the device holds at once */
	enum shunt_plan_ll_format ll_format; /* the same on all ranks */
};

/*
 * A call. Addresses need not be aligned to more than the type; count is exact in bytes, a multiple of the type's size.
 */
struct shunt_plan_call {
	const void *send;
	void *recv;
	uint64_t send_bytes,
	    recv_bytes; /* the whole buffers: one of them is n times the other for all-gather and reduce-scatter */
	enum shunt_dtype dtype;
	enum shunt_redop
	    redop;       /* used for AVG and PREMUL, if the plan reduces; otherwise the plan's own operators count */
	uint64_t scalar; /* as in struct shunt_coll */
	bool scalar_on_device;
	void *stream;
	/*
	 * [0] what the ranks send, [1] what they receive, if all ranks' lie at one place of a window that all have
	 * mapped, and that place is a multiple of 16 on all of them: where each rank's is, and a number that tells the
	 * place; else NULL and 0. See wants.
	 */
	char *const *remote[2];
	uint64_t place[2];
	uint64_t op;              /* kargs.op; see comm/observe/recorder.h */
	struct shunt_check check; /* kargs.check and kargs.count */
	uint64_t count;
	unsigned *warps_p; /* how many the launch has had; NULL: nobody asks */
};

/* The call that an NCCL collective makes; false: no plan can be meant (another kind). */
bool shunt_plan_call_from_coll(const struct shunt_coll *coll, int nranks, struct shunt_plan_call *call_p);

/*
 * Local and quick: compiles the plan for this rank, holds the plan. -ENOMEM; -E2BIG: too large for any device; -EINVAL:
 * made for another number of ranks. Alike on all ranks but for -ENOMEM.
 */
int shunt_plan_exec_create(
    const struct shunt_plan_exec_config *host, struct shunt_plan *plan, struct shunt_plan_exec **exec_p);
/*
 * NULL allowed. The caller has waited for all launches, those of graphs included, here and (as peers map our memory) on
 * no other rank.
 */
void shunt_plan_exec_destroy(struct shunt_plan_exec *exec);

/*
 * Collective where memory is to be had: is there enough for a message of this many bytes (as plan->min_bytes counts
 * them), or can it be got? 0; -EOPNOTSUPP, alike on all ranks, with *reason_p: some rank lacks memory or
 * multiprocessors, the plan cannot run at this size (nothing has changed); else as gather. Allowed while a stream
 * captures.
 */
int shunt_plan_exec_prepare(struct shunt_plan_exec *exec, uint64_t message_bytes, const char **reason_p);
/*
 * Prepares and launches one kernel: 0; -EOPNOTSUPP as above (nothing launched); -EINVAL: sizes that do not belong to
 * the plan's collective.
 */
int shunt_plan_exec_launch(struct shunt_plan_exec *exec, const struct shunt_plan_call *call);

/* Which of a call's remote[] could spare a copy. Alike on all ranks. */
void shunt_plan_exec_wants_direct(const struct shunt_plan_exec *exec, bool wants[2]);

struct shunt_plan *shunt_plan_exec_plan(const struct shunt_plan_exec *exec);
/* The newest resources of this rank (kernels/plan/args.h), or NULL: for tests. */
void *shunt_plan_exec_resources(const struct shunt_plan_exec *exec);
#endif

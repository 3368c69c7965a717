/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Executes a plan on one communicator: its program on the device, its memory, and the launches that its calls become.
 *
 * Resources. All ranks have resources of one layout (kernels/plan/args.h), mapped by all. The first launch makes them,
 * in two rounds among the ranks. A launch with a larger message than any before makes new ones, at least twice as
 * large. Earlier ones stay until the exec is destroyed, because captured graphs may use them.
 *
 * Buffers that peers use. All memory that the plan reaches at peers lies in the resources: input and output that peers
 * use have staging buffers. The kernel fills these from the caller's memory and copies them back. Peers use the
 * callers' memory directly if all ranks' buffers lie at the same place of a window of the communicator, and the message
 * fills all chunks. For input, no rank may write to it and operands must not be scaled.
 *
 * Over hosts, buffers that a port between hosts reads or writes lie in a region (kernels/plan/args.h) instead, and
 * those of the callers always have staging buffers.
 *
 * Other buffers. The plan works in the caller's memory. It works in a bounce buffer instead if
 * - the message does not fill all chunks, or an address is not a multiple of 16,
 * - operands must be scaled before the sum (AVG and PREMUL run plans of sums),
 * - the plan writes where the collective only reads,
 * - the call is in place and the plan is not, or the other way round.
 * Only bounce buffers may differ between ranks, and they concern no other rank. The resources have room for them from
 * the first, as a launch must not fail on one rank alone. So a plan runs with any addresses, in place or not, for any
 * count.
 *
 * One thread at a time. Launches of one exec run one after the other on the device (the caller orders its streams), and
 * all ranks launch the same sequence. All blocks of a launch must be resident together: the caller keeps away other
 * kernels that wait for peers, as it does for the native ones.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "device/gpu_ops.h"
#include "kernels/work.h"
#include "plan/format/plan.h"
#include "transport/rendezvous/rendezvous.h"
#include "transport/symm/vote.h"

struct shunt_plan_exec;

/*
 * How packets travel:
 *   LL128  as LL128 (kernels/plan/args.h) where the plan allows that, else as LL16
 *   LL16   stored 16 bytes at a time
 *   LL8    stored 8 bytes at a time
 */
enum shunt_plan_ll_format { SHUNT_PLAN_LL_FORMAT_LL128, SHUNT_PLAN_LL_FORMAT_LL16, SHUNT_PLAN_LL_FORMAT_LL8 };

/* Memory for puts between hosts, of one size on all ranks, which the ranks of a host map of each other. */
struct shunt_plan_region {
	uint32_t number, first_channel;  /* the same on all ranks */
	char *at[SHUNT_KARGS_MAX_RANKS]; /* of each mate, as kernels address it; zeroed */
};

/* Over hosts. */
struct shunt_plan_exec_hosts {
	const uint8_t *host_of; /* by rank */
	/* The ranks of this host, and this rank's index among them. */
	const uint8_t *mates;
	int nmates, own;
	/*
	 * Collective, one round: a region that begins with a counter for each of its channels of signals. A failure on
	 * this rank is added to its vote. 0, or a round's error. The region stays until the communicator ends.
	 */
	int (*region)(
	    void *ctx, uint64_t bytes, uint32_t nchannels, struct shunt_vote *vote, struct shunt_plan_region *region_p);
	void *ctx;
};

/* The parts of its communicator that an exec needs; copied. */
struct shunt_plan_exec_config {
	const struct shunt_gpu_ops *gpu;
	int device;
	/* The rounds that make memory; their errors are those of a launch, and break the communicator. */
	struct shunt_ranks ranks;
	struct shunt_ctrl
	    *ctrl; /* device address: abort word, deadline and fault record of our kernels; lives as long as the exec */
	uint64_t process;    /* shunt_process_token(): ranks of one process borrow each other's memory */
	unsigned max_blocks; /* of a launch, the same on all ranks; 0: as many as the device holds at once */
	enum shunt_plan_ll_format ll_format;       /* the same on all ranks */
	const struct shunt_plan_exec_hosts *hosts; /* NULL: one host; lives as long as the exec */
};

/*
 * A call. Addresses need the alignment of the type only. send_bytes and recv_bytes are exact, multiples of the type's
 * size.
 */
struct shunt_plan_call {
	const void *send;
	void *recv;
	uint64_t send_bytes,
	    recv_bytes; /* the whole buffers: one of them is n times the other for all-gather and reduce-scatter */
	enum shunt_dtype dtype;
	enum shunt_redop redop; /* AVG and PREMUL apply if the plan reduces; otherwise the plan's own operators count */
	uint64_t scalar;        /* as in struct shunt_coll */
	bool scalar_on_device;
	void *stream; /* of the launch */
	/*
	 * [0] the send buffers, [1] the receive buffers. remote: address of each rank's buffer; place: a number that
	 * identifies the place. Both are set if the buffers of all ranks lie at one place of a window that all have
	 * mapped, at a multiple of 16 on all of them. Else NULL and 0. See shunt_plan_exec_wants_direct.
	 */
	char *const *remote[2];
	uint64_t place[2];
	uint64_t op;              /* kargs.op; see comm/observe/recorder.h */
	struct shunt_check check; /* kargs.check and kargs.count */
	uint64_t count;
};

/* The call of an NCCL collective, without remote and the fields behind it. False: a kind that has no plans. */
bool shunt_plan_call_from_coll(const struct shunt_coll *coll, int nranks, struct shunt_plan_call *call_p);

/* True: the buffers' sizes are those of the plan's collective, and of whole elements. */
bool shunt_plan_call_fits(const struct shunt_plan *plan, const struct shunt_plan_call *call);

/*
 * Compiles the plan for this rank and takes a reference to it. Local and quick. 0; -ENOMEM; -E2BIG: too large for any
 * device; -EINVAL: made for another number of ranks. The same on all ranks, except for -ENOMEM.
 */
int shunt_plan_exec_create(
    const struct shunt_plan_exec_config *host, struct shunt_plan *plan, struct shunt_plan_exec **exec_p);
/*
 * NULL allowed. The caller has waited for all launches of this rank, those of graphs included. It need not wait for
 * other ranks, which have mappings of our memory.
 */
void shunt_plan_exec_destroy(struct shunt_plan_exec *exec);

/*
 * Makes sure that there is memory for a message of this many bytes (as plan->min_bytes counts them); collective if the
 * resources must grow. 0; -EOPNOTSUPP, the same on all ranks: some rank (see *reason_p) lacks memory or
 * multiprocessors, the plan cannot run at this size, and nothing has changed; else as a round. Allowed while a stream
 * captures.
 */
int shunt_plan_exec_prepare(struct shunt_plan_exec *exec, uint64_t message_bytes, const char **reason_p);
/*
 * Prepares, and fills in the one launch of the call, which the caller makes. 0; -EOPNOTSUPP as above; -EINVAL: the
 * sizes do not fit the plan's collective; or another error of a round.
 */
int shunt_plan_exec_work(struct shunt_plan_exec *exec, const struct shunt_plan_call *call, struct shunt_work *work);

/* wants[i]: remote[i] of a call could save a copy. The same on all ranks. */
void shunt_plan_exec_wants_direct(const struct shunt_plan_exec *exec, bool wants[2]);

struct shunt_plan *shunt_plan_exec_plan(const struct shunt_plan_exec *exec);
/* The newest resources of this rank (kernels/plan/args.h), or NULL: for tests. */
void *shunt_plan_exec_resources(const struct shunt_plan_exec *exec);

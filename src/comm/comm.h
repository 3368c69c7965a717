/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_COMM_H
#define SHUNT_COMM_COMM_H
/*
 * A communicator as Shunt sees it: who the ranks are, whether our kernels may run on it, and what they need.
 * It knows nothing of ncclComm_t; the shim keeps the map from handles to these.
 *
 * Life: create (cheap: one listening Unix socket, no memory, no thread) -> set_rank when rank and size are known ->
 * first run that wants a kernel does the set-up with all peers -> run ... -> destroy. One thread uses a communicator at
 * a time, except abort and the queries, which any thread may call.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "base/id.h"
#include "shunt/shunt.h"

struct shunt_comm;
struct shunt_decision; /* algos/algo.h */

struct shunt_comm_desc {
	struct shunt_id id;
	int member,
	    nmembers; /* our place among those who may be members: the rank, or for a child the rank in the parent */
	int rank, nranks;           /* -1: not known yet, set_rank follows */
	int device;                 /* -1: not known yet */
	bool standalone;            /* no real NCCL to fall back to */
	int max_ctas;               /* of ncclConfig_t or NCCL_MAX_CTAS; 0: no limit */
	bool no_sms;                /* CTAPolicy zero */
	bool no_clusters;           /* cgaClusterSize 0, or NCCL_CGA_CLUSTER_SIZE */
	const char *forward_reason; /* not NULL (static): forward-only from the start, no socket is made */
};

int shunt_comm_create(const struct shunt_comm_desc *desc, struct shunt_comm **comm_p);
/* To be called once, before the first run, if desc had -1. */
void shunt_comm_set_rank(struct shunt_comm *comm, int rank, int nranks, int device);
/* NULL is allowed. Frees device memory and mappings; waits for our own kernels on this communicator unless aborted. */
void shunt_comm_destroy(struct shunt_comm *comm);
/* From any thread: makes running kernels and host waits of this communicator return at once with an error. */
void shunt_comm_abort(struct shunt_comm *comm);

/*
 * Path of a call: the algorithm's name, or NULL and *reason_p for NCCL. Pure function of values that all ranks share;
 * may be called before set-up (then it assumes success). captured is not among its inputs.
 */
const char *shunt_comm_path(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_reason *reason_p);
/* The reason in words; of a communicator that takes no calls what made it so. Valid as long as the communicator. */
const char *shunt_comm_reason(const struct shunt_comm *comm, enum shunt_reason reason);
/* True when set-up is still to be done for a call that wants a kernel: the next run may wait for the peers. */
bool shunt_comm_needs_setup(const struct shunt_comm *comm);
/*
 * For a call that runs later: true if path has a name for it. *decision_p is set where that is final and nothing is
 * left to be done before the launch, so neither before the set-up nor where there are plans; else decision_p->algo is
 * NULL.
 */
bool shunt_comm_decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision_p,
    enum shunt_reason *reason_p);
/*
 * True when the next run of this call may wait for the peers: for the set-up, or for what a plan needs on the device.
 */
bool shunt_comm_needs_round(struct shunt_comm *comm, const struct shunt_coll *coll);
/*
 * Does now what run would have to do with the peers before it launches. 0: whether and how the call runs is known,
 * forwarding included; -EIO / -ECANCELED / -EOWNERDEAD: the communicator is broken.
 */
int shunt_comm_prepare(struct shunt_comm *comm, const struct shunt_coll *coll);
/*
 * Runs a call with our kernels: 0, or -EOPNOTSUPP: forward it (nothing was launched; counted with its reason), or
 * another error (sticky for the communicator). Does the set-up if needed. count 0 is the shim's to drop.
 */
int shunt_comm_run(struct shunt_comm *comm, const struct shunt_coll *coll);
/*
 * The same for several calls of a group, in order of issue, in as few launches as they fuse into. They run on the first
 * one's stream, and all their streams wait for each other before and after. decisions: what shunt_comm_decide said, or
 * algo NULL; the rest is filled in. -EOPNOTSUPP: one of them is to be forwarded, and nothing was launched; -EBADMSG:
 * this rank's messages to itself do not pair up, or its streams cannot be put in order since one captures, or its
 * capture was spoiled (nothing was launched, the communicator goes on).
 */
int shunt_comm_run_group(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    struct shunt_decision *decisions, size_t n, bool forked);
/*
 * Before others launch their part of a group of which these calls are ours: run_group is to run beside what comes onto
 * the calls' streams until join_due, and neither before nor after it. *forked_p: so it will, and run_group has to be
 * told. False: it cannot, and comes after it. -EBADMSG: as run_group.
 */
int shunt_comm_fork_group(struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n, bool *forked_p);
/*
 * run_group has launched them: from the next join_due on what comes onto the calls' streams waits for that. Any thread
 * may call join_due, which is cheap where nothing is due, and there may be more than one.
 */
void shunt_comm_join_later(struct shunt_comm *comm);
int shunt_comm_join_due(struct shunt_comm *comm);
/* For calls that the shim forwards without asking. */
void shunt_comm_count_forward(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_reason reason);
/* Sticky error of our side: 0, -ETIMEDOUT, -EOWNERDEAD (a peer died), -ECANCELED (aborted), -EIO. Cheap, any thread. */
int shunt_comm_error(struct shunt_comm *comm);
int shunt_comm_rank(const struct shunt_comm *comm);
int shunt_comm_nranks(const struct shunt_comm *comm);
int shunt_comm_device(const struct shunt_comm *comm);
/*
 * Waits for the kernels that were launched on the communicator, and its graphs'. 0, -ECANCELED: aborted meanwhile, or
 * another error.
 */
int shunt_comm_quiesce(struct shunt_comm *comm);
/* Device memory that the communicator has on this rank. Any thread. */
size_t shunt_comm_memory(struct shunt_comm *comm);
/* As shunt_counters_list (comm/observe/counters.h). */
size_t shunt_comm_counters(const struct shunt_comm *comm, struct shunt_counter *rows, size_t cap);
#endif

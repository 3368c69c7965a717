/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A communicator on Shunt's side: its ranks, whether Shunt's kernels may run on it, and the memory that they need. It
 * does not know ncclComm_t; the shim maps handles to communicators.
 *
 * | step     | when                                                                 |
 * |----------|----------------------------------------------------------------------|
 * | create   | first: binds one Unix socket; no device memory, no thread of its own |
 * | set_rank | once rank, size and device are known                                 |
 * | set-up   | in the first run that wants a kernel, together with all peers        |
 * | run      | any number of times                                                  |
 * | destroy  | at the end                                                           |
 *
 * One thread at a time uses a communicator. Abort and the queries are allowed from any thread at any time.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "base/id.h"
#include "shunt/shunt.h"

struct shunt_comm;
struct shunt_directory_tail; /* transport/rendezvous/directory.h */
struct shunt_hosts;          /* transport/rendezvous/host_table.h */
struct shunt_decision;       /* algos/algo.h */

/* Of a communicator that runs no collectives: memory of its own in place of their slots and rings. */
struct shunt_comm_own {
	size_t bytes;           /* zeroed, behind the control words; 0: the communicator runs collectives */
	size_t host_bytes;      /* zeroed and page-locked, behind its struct shunt_host_ctrl */
	size_t net_bytes;       /* over hosts: zeroed and page-locked, behind the network's words */
	const char *noun;       /* for texts: "expert parallel group". Static, as are all texts here */
	const char *limit_name; /* the variable by which a user raises limit_ns */
	uint64_t limit_ns;      /* longest wait of its kernels; 0: for ever */
	/* Alike on all ranks, else the set-up says so of the first rank that differs from rank 0, and is refused. */
	uint64_t value[2];
	const char *differs[2];
	char refusal[96]; /* not empty: this rank cannot take part, and all ranks are to hear this reason */
	bool tolerates;   /* its kernels go on without ranks that have died */
};

struct shunt_comm_desc {
	struct shunt_id id;
	int member, nmembers; /* member index and number of members; of a child: in the parent */
	int rank, nranks;     /* -1: not known yet, set_rank follows */
	int device;           /* -1: not known yet */
	bool takes_all;       /* there is no real NCCL to forward a call to */
	int nccl_version;     /* of the real NCCL, 22809 for 2.28.9; 0: none */
	bool nvls_off;        /* nvlsHostMode keeps NVLink multicast out of windows */
	bool joined;          /* its ranks have found each other before: one that is missing has ended */
	bool id_is_shared;    /* other communicators have this id, too: set_id follows, and makes the socket */
	/* Overlay: where ranks of other hosts are registered; NULL: nowhere. Copied. */
	const struct shunt_directory_tail *directory;
	bool members_are_ranks;     /* not of split and shrink, whose hosts are known by members until the set-up */
	bool may_span;              /* its ranks may be on several hosts: set_hosts follows */
	int max_ctas;               /* of ncclConfig_t or NCCL_MAX_CTAS; 0: no limit */
	bool no_sms;                /* CTAPolicy zero */
	bool few_ctas;              /* CTAPolicy efficiency */
	bool no_clusters;           /* cgaClusterSize 0, or NCCL_CGA_CLUSTER_SIZE */
	const char *name;           /* the program's commName, copied; "" or NULL: none */
	const char *forward_reason; /* not NULL (static): forward-only from the start, no socket is made */
	struct shunt_comm_own own;  /* with takes_all */
};

int shunt_comm_create(const struct shunt_comm_desc *desc, struct shunt_comm **comm_p);
/*
 * To be called once, before set_hosts, if desc had id_is_shared: an id of this communicator alone. Only then may peers
 * look for it. 0, or the reason why it has no socket (logged).
 */
int shunt_comm_set_id(struct shunt_comm *comm, const struct shunt_id *id);
/* To be called once, before the first run, if desc had -1. */
void shunt_comm_set_rank(struct shunt_comm *comm, int rank, int nranks, int device);
/* To be called before set_rank, if the real NCCL says of the communicator that it uses no NVLink multicast. */
void shunt_comm_deny_nvls(struct shunt_comm *comm);
/*
 * To be called once, after set_rank and before the first run, if desc had may_span: the hosts of its ranks, or NULL for
 * one. Takes them over, also on an error. 0 or -ENOMEM.
 */
int shunt_comm_set_hosts(struct shunt_comm *comm, struct shunt_hosts *hosts);
/*
 * The hosts of its ranks, alike on all of them; NULL: one host, or not known yet, as in overlay before the first call.
 * Valid as long as the communicator.
 */
const struct shunt_hosts *shunt_comm_hosts(const struct shunt_comm *comm);
/*
 * Sets the numbers of its reductions, fields of struct shunt_numerics, together with all ranks. Errors are those of
 * shunt_comm_numerics.
 */
int shunt_comm_set_numerics(struct shunt_comm *comm, bool e4m3b15, int accumulate);
/*
 * To be called before set_hosts, if desc had own memory and may_span: what the memory is on these hosts, or why there
 * can be none (NULL: there can), which all ranks then hear.
 */
void shunt_comm_set_own(struct shunt_comm *comm, size_t bytes, size_t net_bytes, const char *refusal);
/* As in the description; NULL: none. For children. */
const struct shunt_directory_tail *shunt_comm_directory(const struct shunt_comm *comm);
/*
 * NULL is allowed. Waits for our kernels on this communicator, and frees device memory and mappings. The memory of an
 * aborted communicator may be freed later (comm/core/deferred_free.h).
 */
void shunt_comm_destroy(struct shunt_comm *comm);
/* From any thread: running kernels and host waits of this communicator end at once with an error. */
void shunt_comm_abort(struct shunt_comm *comm);

/*
 * Decides a call: the only place where that is done (comm/calls/decide.c). True: Shunt takes it, by decision->path;
 * false: NCCL gets it, for decision->reason. Depends only on values that all ranks share; before the set-up it assumes
 * that the set-up will succeed. decision: zero before the first time; a decision that still holds is left as it is.
 */
bool shunt_comm_decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision);
/*
 * The reason in words. For a communicator that forwards everything: the cause. Valid as long as the communicator.
 */
const char *shunt_comm_reason(const struct shunt_comm *comm, enum shunt_reason reason);
/*
 * True: the next run of a call with this decision may wait for the peers, because of the set-up, a plan's memory or a
 * window.
 */
bool shunt_comm_needs_round(const struct shunt_comm *comm, const struct shunt_decision *decision);
/*
 * Decides a call, and runs the rounds with the peers that must come before its launch. 0: it is known whether and how
 * the call runs, forwarding included; -EIO / -ECANCELED / -EOWNERDEAD: the communicator is broken.
 */
int shunt_comm_prepare(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision);
/*
 * Runs a call with our kernels, after the rounds with the peers that it needs. decision: as for shunt_comm_decide. The
 * caller drops calls with count 0.
 *
 * | result      | meaning                                                                        |
 * |-------------|--------------------------------------------------------------------------------|
 * | 0           | launched                                                                       |
 * | -EOPNOTSUPP | to be forwarded: nothing was launched, and the call is counted with its reason |
 * | -EBADMSG    | see run_group                                                                  |
 * | else        | an error, sticky for the communicator                                          |
 */
int shunt_comm_run(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision);
/*
 * Runs several calls of a group, in order of issue, in as few launches as they fuse into. The launches are on the first
 * call's stream; all the calls' streams wait for each other before and after. decisions: as for shunt_comm_decide.
 * forked: as shunt_comm_fork_group said. Results are those of shunt_comm_run:
 *
 * | result      | meaning                                                                             |
 * |-------------|-------------------------------------------------------------------------------------|
 * | -EOPNOTSUPP | the first call without a path is to be forwarded; nothing was launched              |
 * | -EBADMSG    | refused for this rank's own use; nothing was launched, and the communicator goes on |
 *
 * -EBADMSG is for messages to itself that do not pair up, for streams that cannot be put in order since only some
 * capture, and for a capture that was spoiled.
 */
int shunt_comm_run_group(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    struct shunt_decision *decisions, size_t n, bool forked);
/*
 * To be called before the real NCCL launches its part of a group of which these calls are ours. Forks the side stream
 * from the calls' streams: run_group then runs at the same time as the work that comes onto those streams until
 * join_due. *forked_p: to be passed to run_group; false: the fork is not possible, and run_group comes after NCCL's
 * part. -EBADMSG: as run_group.
 */
int shunt_comm_fork_group(struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n, bool *forked_p);
/*
 * join_later: run_group has launched the forked calls. From the next join_due on, new work on the calls' streams waits
 * for the forked calls. join_due: any number of threads; cheap where nothing is due. 0, or an error that breaks the
 * communicator.
 */
void shunt_comm_join_later(struct shunt_comm *comm);
int shunt_comm_join_due(struct shunt_comm *comm);
/*
 * Runs a call by the plan of this name (call->dtype becomes the communicator's format if the plan reduces), for
 * collectives that NCCL does not have, too: kernels of Shunt that no table chose, no counter counts and no recorder
 * notes. Collective for its first call and larger ones. 0: launched; the same on all ranks: -ENOENT no such plan;
 * -EINVAL the plan does not take such a call; -EOPNOTSUPP no kernels run here, or the plan cannot run; else an error of
 * the communicator.
 */
struct shunt_plan_call; /* plan/exec/exec.h */
int shunt_comm_run_plan(struct shunt_comm *comm, const char *name, struct shunt_plan_call *call);
/*
 * Does the set-up now, with all ranks, which must have made their communicators. 0: kernels can be launched.
 * -EOPNOTSUPP: some rank cannot, or -EINVAL: values of `own` differ; the same on all ranks, with the reason logged.
 * Else an error of the communicator. For communicators with memory of their own, as is shunt_comm_run_work.
 */
int shunt_comm_set_up(struct shunt_comm *comm);
/*
 * 0: the ranks are on one host; -EREMOTE: they are not, or some have no Shunt. The same on all ranks. Does not wait,
 * and changes nothing for the communicator.
 */
int shunt_comm_check_host(struct shunt_comm *comm);
/*
 * Launches work, in which it sets all that is alike for the communicator's launches; args.k.flags, send, recv and count
 * are the caller's. name, of static storage, and count: of the operation, for dumps. With the communicator's lock held
 * by shunt_comm_lock: whoever decides about a launch by what was launched before makes both in one go. 0, or an error;
 * -EBADMSG: the stream's capture was spoiled, nothing was launched, and the communicator goes on.
 */
struct shunt_work; /* kernels/work.h */
struct shunt_comm_call {
	const char *name;
	uint64_t count;
	void *stream;
};
void shunt_comm_lock(struct shunt_comm *comm);
void shunt_comm_unlock(struct shunt_comm *comm);
int shunt_comm_run_work(struct shunt_comm *comm, const struct shunt_comm_call *call, struct shunt_work *work);
/* The error's text, or NULL where there is none; valid as long as the communicator. */
const char *shunt_comm_error_text(const struct shunt_comm *comm);
/* Counts a call that the shim forwards without asking. */
void shunt_comm_count_forward(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_reason reason);
/* The function of NCCL's that this thread calls next is on this communicator. */
void shunt_comm_note_function(struct shunt_comm *comm);
/* What the host waits in with this communicator, for dumps: static storage; NULL: it waits no more. */
void shunt_comm_phase(struct shunt_comm *comm, const char *phase);
/* A call that NCCL got on this communicator has failed with this ncclResult_t. */
void shunt_comm_nccl_failed(struct shunt_comm *comm, int result);
/*
 * Sticky error: 0, -ETIMEDOUT, -EOWNERDEAD (a peer died), -EBADE (the ranks' calls differ), -ECANCELED (aborted), -EIO,
 * or another -errno. Cheap, any thread.
 */
int shunt_comm_error(struct shunt_comm *comm);
int shunt_comm_rank(const struct shunt_comm *comm);
int shunt_comm_nranks(const struct shunt_comm *comm);
int shunt_comm_device(const struct shunt_comm *comm);
/*
 * Waits for the kernels that were launched on the communicator, and for those of its graphs. 0, -ECANCELED: aborted
 * meanwhile, or another error.
 */
int shunt_comm_quiesce(struct shunt_comm *comm);
/* Bytes of device memory that the communicator has on this rank. Any thread. */
size_t shunt_comm_memory(struct shunt_comm *comm);
/* Fills in all but the size. Any thread. */
void shunt_comm_info(struct shunt_comm *comm, struct shunt_comm_info *info);
/* As shunt_counters_list (comm/observe/counters.h). */
size_t shunt_comm_counters(const struct shunt_comm *comm, struct shunt_counter *rows, size_t cap);

/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_COMM_PRIV_H
#define SHUNT_COMM_COMM_PRIV_H
/*
 * struct shunt_comm, for the files that do something with a communicator: comm.c has its life, setup.c the first use,
 * decide.c and launch.c its calls, quiesce.c the end of its kernels. The others have one part of the struct each.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "algos/algo.h"
#include "comm/observe/check.h"
#include "comm/comm.h"
#include "comm/ce.h"
#include "comm/observe/counters.h"
#include "comm/stream_order.h"
#include "comm/plans.h"
#include "comm/observe/recorder.h"
#include "comm/symmem.h"
#include "device/gpu_ops.h"
#include "kernels/kargs.h"
#include "transport/rendezvous/rendezvous.h"

/* Changes with every change of the kernels' protocol, the scratch layout or the selection: ranks must agree. */
#define SHUNT_SETUP_PROTOCOL 10

enum comm_state {
	COMM_NEW,     /* not set up */
	COMM_READY,   /* our kernels run */
	COMM_FORWARD, /* agreed by all ranks, or known without asking them */
};

struct shunt_comm {
	struct shunt_id id;
	int member, nmembers, rank, nranks, device;
	struct shunt_sel_key sel_key;
	const struct shunt_gpu_ops *gpu; /* from the set-up on */
	struct shunt_rendezvous *rendezvous;
	bool no_clusters;  /* launches do not come as such */
	bool no_sms;       /* what the program asked for here; sel_key has what all ranks did */
	bool setup_wanted; /* a peer asked for the set-up before our rank was known */

	pthread_mutex_t lock;         /* set-up and launches */
	atomic_int state;             /* enum comm_state */
	atomic_int error;             /* sticky, 0 or -errno */
	atomic_int cancel;            /* abort was called; host waits poll it */
	char reason[160];             /* of COMM_FORWARD */
	atomic_bool forward_unlogged; /* ... and nobody was told yet */
	bool checks;                  /* SHUNT_CHECK */
	struct shunt_check_count check;

	struct shunt_gpu_mem mem[SHUNT_MAX_RANKS]; /* scratch of every rank, mem[rank] is ours */
	struct shunt_host_ctrl *words;             /* page-locked; also what kernels see and write */
	atomic_int
	    lost;     /* 1 + the rank that died, while kernels that wait for it are to give up by themselves; 0: none */
	int lost_pid; /* written before */
	struct shunt_kargs kargs; /* what is the same for every launch */
	struct shunt_order order;
	struct shunt_comm_plans plans;
	struct shunt_symmem symmem;
	struct shunt_ce ce;
	void *side_stream; /* a stream for groups that run beside others' kernels (shunt_comm_fork_group); NULL until it
	                      is needed */
	struct {
		void **streams; /* of the group that was forked to it, and is not joined yet */
		size_t n;
		atomic_bool due; /* shunt_comm_join_due is to do it */
	} forked;
	pid_t pid; /* of the process that made it: a forked child has a copy, and none of what it stands for */
	struct shunt_comm *next; /* comm/deferred_free.c's */
	struct shunt_recorder *recorder;
	struct shunt_counters_table counters;
};

/* The first use, unless it has been; with the lock held. 0: the outcome is in state. */
int shunt_comm_setup_locked(struct shunt_comm *comm);
/*
 * Decides all calls whose decision has no algorithm yet, with the set-up done on the way if one wants a kernel; with
 * the lock held. -EOPNOTSUPP: one is to be forwarded, *which_p.
 */
int shunt_comm_decide_locked(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    struct shunt_decision *decisions, size_t n, size_t *which_p, enum shunt_reason *reason_p);
/* The call's buffers are to lie in windows. */
static inline bool shunt_comm_needs_window(const struct shunt_decision *decision)
{
	return decision->algo && decision->algo->fuse == SHUNT_FUSE_SYMMEM;
}
/* Makes err the communicator's sticky error; false: it had one already. */
bool shunt_comm_fail(struct shunt_comm *comm, int err);
/* Raises the abort word: the kernels of a communicator that is ready give up within milliseconds. */
void shunt_comm_stop_kernels(struct shunt_comm *comm);
/* How long a kernel may wait for a peer, in ns; 0: for ever. */
uint64_t shunt_comm_spin_limit(void);
/* One line: that it is COMM_FORWARD, and why. */
void shunt_comm_log_forward(const struct shunt_comm *comm);
/* Waits for our kernels unless the set-up failed, and frees what it made. */
void shunt_comm_teardown(struct shunt_comm *comm);
#endif

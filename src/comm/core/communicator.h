/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * struct shunt_comm, for the files that work on a whole communicator, and the functions of these. Each file of parts/
 * and observe/ has one part of the struct, and does not know the others.
 *
 * | file | part |
 * |---|---|
 * | comm.c | create, destroy, abort |
 * | core/communicator.c | functions for all other files: break it, stop its kernels, forward a call |
 * | core/fault.c, core/peers.c | its error: reports of kernels, deaths of peers |
 * | setup/ | the first use, and the end of all that it made (setup/teardown.c) |
 * | calls/ | decisions and launches |
 */
#include <stdatomic.h>
#include "algos/algo.h"
#include "algos/select/nvls.h"
#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/calls/copies.h"
#include "comm/calls/plan_calls.h"
#include "comm/calls/plugin_calls.h"
#include "comm/calls/windows.h"
#include "comm/comm.h"
#include "comm/observe/call_check.h"
#include "comm/observe/counters.h"
#include "comm/observe/profiler.h"
#include "comm/observe/recorder.h"
#include "comm/parts/comm_life.h"
#include "comm/parts/comm_registry.h"
#include "comm/parts/stream_order.h"
#include "comm/setup/network.h"
#include "device/gpu_ops.h"
#include "kernels/kargs.h"
#include "transport/rendezvous/directory.h"
#include "transport/rendezvous/rendezvous.h"

/*
 * Ranks must agree in the kernels' protocol, the layout of scratch, the set-up's messages and the selection: a number
 * that setup/setup_protocol.py makes of the sources of these.
 */
extern const uint32_t shunt_setup_protocol;

/* Of the ranks of this one's island and rail (comm/setup/island_memory.h). */
struct shunt_comm_islands {
	struct shunt_part part[SHUNT_PARTS];
	struct shunt_gpu_mem mem[SHUNT_PARTS][SHUNT_MAX_RANKS]; /* of the ranks of each part */
	struct shunt_gpu_mem ctrl; /* over SHUNT_LINK_SHARED: what this rank alone writes between islands */
};

struct shunt_comm {
	struct shunt_id id;
	int member, nmembers, rank, nranks, device;
	struct shunt_sel_key sel_key;   /* written by the set-up, except for the fields of the description */
	struct shunt_sel_key early_key; /* for decisions before the set-up: what this rank alone knows */
	/* Goes up after each change of the state, the plans or the windows, on which decisions depend. */
	_Atomic uint32_t version;
	const struct shunt_gpu_ops *gpu; /* from the set-up on */
	struct shunt_rendezvous *rendezvous;
	bool joined;   /* as in the description */
	bool may_span; /* as in the description */
	/* Overlay: the directory of hosts, our member's registration, and the hosts that the directory has named. */
	struct shunt_directory_tail directory;
	struct shunt_directory_link *registered;
	struct shunt_directory_member as_member;
	_Atomic(struct shunt_hosts *) hosts; /* for the log alone: its ranks' order is not known */
	bool members_are_ranks;              /* as in the description */
	atomic_bool located;                 /* it is known on which hosts the ranks are */
	bool no_clusters;                    /* launches use no clusters */
	bool no_sms;                         /* asked for on this rank; sel_key has what all ranks asked for */
	bool few_ctas;                       /* the same */
	struct shunt_nvls_nccl nccl;         /* of this rank; sel_key has what follows for all */
	struct shunt_comm_own own;           /* as in the description */
	bool own_differs;                    /* values of it differ between the ranks */
	_Atomic uint64_t missed;             /* of the ranks without which it goes on, those that the log has named */
	_Atomic(char *) error_text;          /* of the first error that has one */

	struct shunt_mutex lock; /* set-up and launches */
	struct shunt_comm_life life;
	unsigned checks;        /* SHUNT_CHECK */
	bool follows_forwarded; /* SHUNT_CHECK or SHUNT_MARKS concern calls that NCCL gets */
	bool e4m3b15;           /* of struct shunt_numerics */
	int accumulate;         /* likewise, never the default */
	struct shunt_check_count check;

	/*
	 * Scratch of every rank; over several hosts, of the ranks on this host. shunt_comm_local_rank() is the index of
	 * our own.
	 */
	struct shunt_gpu_mem mem[SHUNT_MAX_RANKS];
	struct shunt_gpu_mem segment[SHUNT_MAX_RANKS]; /* over SHUNT_LINK_SHARED: of every rank */
	struct shunt_comm_islands *islands; /* NULL: the ranks are not on several (comm/setup/island_memory.h) */
	struct shunt_host_ctrl *words;      /* page-locked; kernels read and write it */
	struct shunt_host_ctrl *words_dev;  /* its address on the device */
	struct shunt_kargs kargs;           /* equal for every launch */
	struct shunt_order order;
	struct shunt_comm_plans plans;
	struct shunt_comm_plugins plugins;
	struct shunt_symmem symmem;
	struct shunt_ce ce;
	struct shunt_topology topology; /* the ranks of a host are an island */
	/* The same before the set-up, which places ranks of children once more while calls are decided about. */
	struct shunt_topology early_topology;
	struct {
		uint8_t peers[SHUNT_TOPOLOGY_RANKS]; /* of each rank: indices on its island, as bits */
		bool is_long;
		int tries; /* self-tests of this set-up */
	} untested;        /* links that need a self-test first; alike on all ranks */
	struct shunt_comm_net net;
	void *side_stream; /* for forked groups (shunt_comm_fork_group); NULL until it is needed */
	struct {
		void **streams; /* of the group that was forked and is not joined yet */
		size_t n;
		atomic_bool due; /* shunt_comm_join_due has to join them */
	} forked;
	/*
	 * Of the process that created the communicator: a forked child has a copy of this struct, but not its memory
	 * and kernels.
	 */
	unsigned process_generation;
	struct shunt_registration registration;
	struct shunt_recorder *recorder;
	struct shunt_counters_table counters;
	struct shunt_profiler *profiler; /* NULL: no plug-in is told */
	struct shunt_profiled *profiled; /* the group that is being launched, if the plug-in is told of it */
	char name[48];                   /* the program's; "" if there is none */
};

static inline bool shunt_comm_spans_hosts(const struct shunt_comm *comm)
{
	return shunt_topology_is_split(&comm->topology);
}

/* The number of ranks on this host, which map each other's memory; and this rank's index among them. */
static inline int shunt_comm_local_ranks(const struct shunt_comm *comm)
{
	return shunt_topology_nlocal(&comm->topology);
}

static inline int shunt_comm_local_rank(const struct shunt_comm *comm)
{
	return shunt_topology_local(&comm->topology);
}

/* A rank as kernels with memory of their own number it (kernels/ep.h). */
static inline int shunt_comm_rank_of_ordinal(const struct shunt_comm *comm, unsigned ordinal)
{
	unsigned nlocal = (unsigned)shunt_comm_local_ranks(comm);

	if (!shunt_comm_spans_hosts(comm) || ordinal >= (unsigned)comm->nranks)
		return (int)ordinal;
	return ordinal < nlocal ? shunt_topology_locals(&comm->topology)[ordinal] : comm->net.rank_of[ordinal - nlocal];
}

/* To be called once the ranks are known. shunt_comm_net_place adds the hosts. */
static inline void shunt_comm_fill_early_key(struct shunt_comm *comm)
{
	comm->early_key =
	    (struct shunt_sel_key){ .nranks = comm->nranks < SHUNT_MAX_RANKS ? comm->nranks : SHUNT_MAX_RANKS,
		    .sim = shunt_config()->device == SHUNT_DEVICE_SIM,
		    .takes_all = comm->sel_key.takes_all,
		    .pairs = comm->sel_key.pairs,
		    .deterministic = comm->sel_key.deterministic,
		    .no_sms = comm->no_sms,
		    .topology = &comm->early_topology,
		    .early = true };
}

/* For rounds among all ranks, with the communicator's lock. */
static inline struct shunt_ranks shunt_comm_ranks(const struct shunt_comm *comm, int64_t timeout_ms)
{
	return (struct shunt_ranks){ comm->rendezvous, comm->rank, comm->nranks, timeout_ms, &comm->life.cancel };
}
/*
 * Overlay with a directory, before the set-up: finds out on which hosts the ranks are, without waiting for them; with
 * the lock held. Then calls are decided anew. 0, or an error that breaks the communicator.
 */
int shunt_comm_locate_locked(struct shunt_comm *comm);
/* True: that is still to be done. */
static inline bool shunt_comm_may_be_anywhere(const struct shunt_comm *comm)
{
	return comm->directory.magic && !atomic_load_explicit(&comm->located, memory_order_acquire);
}
/* Does the set-up unless it is done; with the lock held. 0: the outcome is in state. */
int shunt_comm_setup_locked(struct shunt_comm *comm);
/*
 * Decides a call, and runs the rounds that it needs until it needs no more; with the lock held. -EOPNOTSUPP: the call
 * is to be forwarded.
 */
int shunt_comm_decide_locked(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision);
/*
 * The version of all that a decision depends on. Both numbers only go up, so their sum changes with each of them; it is
 * never 0.
 */
static inline uint32_t shunt_comm_version(const struct shunt_comm *comm)
{
	return atomic_load_explicit(&comm->version, memory_order_acquire) +
	    atomic_load_explicit(&shunt_select_version, memory_order_acquire);
}
/* True: the decision is Shunt's, it still holds, and the call needs nothing of the peers any more. */
static inline bool shunt_comm_can_launch(const struct shunt_comm *comm, const struct shunt_decision *decision)
{
	return decision->version == shunt_comm_version(comm) && decision->algo && !decision->need;
}
/* To be called when a value has changed on which decisions depend: earlier decisions then hold no more. */
static inline void shunt_comm_changed(struct shunt_comm *comm)
{
	atomic_fetch_add_explicit(&comm->version, 1, memory_order_release);
}
/* True: the call's buffers must lie in windows. */
static inline bool shunt_comm_needs_window(const struct shunt_decision *decision)
{
	return decision->algo && decision->algo->fuse == SHUNT_FUSE_SYMMEM;
}
/* Makes err the communicator's sticky error. False: it had one already. */
bool shunt_comm_fail(struct shunt_comm *comm, int err);
/*
 * The same, and logs the text as an error. The text is the last error's before any call returns the error, so that a
 * program may ask for it at once.
 */
bool shunt_comm_fail_saying(struct shunt_comm *comm, int err, const char *fmt, ...) SHUNT_LOG_PRINTF(3, 4);
/*
 * The same, of an error of a round among the ranks, or of a step of this rank that kept it from one: the line names
 * the rank that the round failed for, if it is known. -ECANCELED has no line. Returns err.
 */
int shunt_comm_fail_round(struct shunt_comm *comm, int err, const char *what);
/* The first text of an error stays, for communicators with memory of their own. */
void shunt_comm_keep_text(struct shunt_comm *comm, const char *text);
/* The log says why the communicator goes on without a rank, once. */
void shunt_comm_miss(struct shunt_comm *comm, int rank, const char *fmt, ...) SHUNT_LOG_PRINTF(3, 4);
/* Raises the abort word: the kernels of a READY communicator give up within milliseconds. */
void shunt_comm_stop_kernels(struct shunt_comm *comm);
/* How long a kernel may wait for a peer, in ns; 0: for ever. */
uint64_t shunt_comm_spin_limit(const struct shunt_comm *comm);
/* What it is, for texts. */
static inline const char *shunt_comm_noun(const struct shunt_comm *comm)
{
	return comm->own.bytes ? comm->own.noun : "communicator";
}
/* Logs one line: the communicator is COMM_FORWARD, and the reason. */
void shunt_comm_log_forward(const struct shunt_comm *comm, const char *reason);
/* Waits for our kernels unless the set-up failed, and frees what the set-up made. */
void shunt_comm_teardown(struct shunt_comm *comm);

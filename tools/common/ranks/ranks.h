/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The launcher of every command that runs ranks: bench, conform, torture, tune and plan run.
 *
 * The parent process (launch.c) finds out the number of ranks (detect.c) and starts the workers: all of them, or under
 * torchrun, mpirun or srun the one of this launch. It touches no device and no NCCL; it only watches, so that no
 * library can keep the run from ending. A worker (slots.c) runs one rank, or with --threads all ranks, one thread each.
 * Ranks synchronize through struct ranks (join.c).
 */
#include <limits.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "tools/common/netns/netns.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

enum {
	RANKS_MAX = 64,
	RANKS_MAX_LIBS = 4,
	RANKS_SLOT_BYTES = 64 << 10, /* largest contribution of one rank to ranks_allgather */
};

/* ---- options (options.c) ---- */

struct ranks_opts {
	int nranks;      /* 0: all devices */
	int nhosts;      /* that the ranks are spread over, on this machine; 0: they are where they are */
	bool names;      /* these hosts are names for root, too */
	uint64_t faults; /* seed of the faults between these hosts; 0: no faults */
	bool threads;
	unsigned timeout_s;
	unsigned progress_s; /* between lines of progress on stderr; 0: none */
	bool progress_given; /* false: 1 at a terminal, else 60 */
	const char *device, *rendezvous;
	const char *libs[RANKS_MAX_LIBS]; /* that the ranks will open */
	int nlibs;
	const char *json;             /* a file that rank 0 will write, or NULL */
	int worker_fd, worker_index;  /* --worker FD:INDEX, given by the parent; -1 in the parent */
	const char *const *way_names; /* of struct ranks_progress's way, or NULL */
};

/* Their first values. limit: seconds without progress; then the libraries, of which the first one counts. */
#define RANKS_OPTS(limit, ...) \
	{ .timeout_s = (limit), .libs = { __VA_ARGS__ }, .nlibs = 1, .worker_fd = -1, .worker_index = -1 }

/*
 * Rows for a command's table. The command's struct begins with a struct ranks_opts. low, high: of ranks;
 * timeout: the default, as text.
 */
#define RANKS_OPTIONS(ranks_help, low, high, timeout) \
	{ "ranks", 'n', OPTION_NUMBER, "N", offsetof(struct ranks_opts, nranks), low, high, .help = ranks_help }, \
	    RANKS_OPTION_HOSTS, RANKS_OPTIONS_START(timeout), \
	    { "rendezvous", 0, OPTION_TEXT, "DIR", offsetof(struct ranks_opts, rendezvous), \
		    .help = "under mpirun or srun: a directory that all ranks see" }
#define RANKS_OPTION_HOSTS \
	{ "hosts", 0, OPTION_NUMBER, "N", offsetof(struct ranks_opts, nhosts), 1, NETNS_MAX_HOSTS, \
		.help = "spread the ranks over N hosts on this machine: network namespaces for root, else names " \
		        "(SHUNT_HOSTID, NCCL_HOSTID)" }, \
	    { "names", 0, OPTION_FLAG, NULL, offsetof(struct ranks_opts, names), \
		    .help = "the hosts are names for root, too: data goes over loopback, which is faster" }
#define RANKS_OPTIONS_START(timeout) \
	{ "threads", 0, OPTION_FLAG, NULL, offsetof(struct ranks_opts, threads), \
		.help = "ranks are threads of one process" }, \
	    RANKS_OPTIONS_WATCH(timeout)
#define RANKS_OPTIONS_WATCH(timeout) \
	{ "device", 0, OPTION_CALL, "D", .call = ranks_option_device, .names = ranks_devices, \
		.help = "auto, cuda or sim" }, \
	    { "timeout", 0, OPTION_NUMBER, "S", offsetof(struct ranks_opts, timeout_s), 1, 1u << 20, \
		    .help = "end the run after S seconds without progress (" timeout ")" }, \
	{ \
		"worker", 0, OPTION_CALL, "FD:INDEX", .call = ranks_option_worker \
	}
#define RANKS_OPTION_PROGRESS \
	{ "progress", 0, OPTION_NUMBER, "S", offsetof(struct ranks_opts, progress_s), 0, 1u << 20, \
		.given = offsetof(struct ranks_opts, progress_given), \
		.help = "a line on stderr each S seconds (1 at a terminal, else 60); 0: none" }
int ranks_option_vs(void *opts, const struct option_row *row, const char *text);
int ranks_option_worker(void *opts, const struct option_row *row, const char *text);
extern const char *const ranks_devices[];
int ranks_option_device(void *opts, const struct option_row *row, const char *text);

/* ---- memory that the parent and its workers share ---- */

/* Stage of a rank, for the parent's messages. */
enum ranks_stage {
	RANKS_START,
	RANKS_RENDEZVOUS,
	RANKS_INIT,
	RANKS_CHECK,
	RANKS_WARMUP,
	RANKS_CAPTURE,
	RANKS_TIME,
	RANKS_WAIT,
	RANKS_ALLGATHER,
	RANKS_DESTROY,
	RANKS_DONE,
	RANKS_NSTAGES
};

struct ranks_progress {
	alignas(64) atomic_uint heartbeats; /* changes with every step */
	atomic_int stage, lib, way;         /* lib, way: -1 if none */
	atomic_ullong bytes;                /* 0: before the first size */
	char what[512];   /* conform, torture: the case or operation, and its error; read only to be printed */
	char so_far[256]; /* of rank 0: the line of progress, which is also the last one of a run that a signal ends */
};
void ranks_progress_set(struct ranks_progress *p, enum ranks_stage stage, int lib, int way);

/* Shared memory for the rendezvous of one host's ranks. Zero-filled memory is a valid start. */
struct ranks_shm {
	atomic_int failed; /* a rank failed: no rank waits any more */
	alignas(64) atomic_uint arrived;
	alignas(64) atomic_uint generation;
	uint8_t slot[RANKS_MAX][RANKS_SLOT_BYTES];
};

/* How this process was launched. Written by the parent before the workers start. */
struct ranks_launch {
	int nranks;
	int external;         /* the ranks come from torchrun, mpirun or srun: one rank per parent */
	int rank, local_rank; /* external only */
	char host[256];       /* external: rank 0's address, or "" if file is set */
	unsigned port;
	char file[PATH_MAX]; /* external: the file with rank 0's address */
	char kind[8];        /* "cuda" or "sim" */
	int ndevices;
};

struct ranks_shared {
	struct ranks_launch launch;
	struct ranks_progress progress[RANKS_MAX];
	struct ranks_shm shm; /* of the self-launched ranks, and of an external rank 0's host */
};

/* ---- the parent (detect.c, faults.c, launch.c) ---- */

/* The host of a rank, with --hosts. */
static inline int ranks_host_of(int rank, int nranks, int nhosts)
{
	return rank * nhosts / nranks;
}

/* Faults of links and ranks. Zero but for nhosts and random is a valid start. */
struct ranks_faults {
	int nhosts;
	uint64_t random;
	struct ranks_faults_host {
		int fault; /* 0: none */
		int64_t until_ms;
		pid_t stopped; /* 0: none */
	} host[NETNS_MAX_HOSTS];
	uint64_t count[16];
};
/* Goes on; pids: of the ranks, 0 those that have ended, and which are not reaped before the next call. In how many ms
 * to call it again. */
int ranks_faults_step(struct ranks_faults *faults, struct netns *netns, const pid_t *pids, int nranks);
/* Heals all, and prints how many there were. */
void ranks_faults_end(struct ranks_faults *faults, struct netns *netns);
/*
 * The faults of RDMA that the file of FAKE_IBV_FIRED tells of, behind what it had before the run: printed by kind, if
 * there is such a file.
 */
long ranks_fired_before(void);
void ranks_fired_print(long before);

/*
 * Fills nranks, external, rank, local_rank, host, port and file from the launcher's variables. 0 or -errno after a
 * message.
 */
int ranks_detect(const struct ranks_opts *o, struct ranks_launch *l);

/* Starts the workers and watches them. The options of argv are theirs, too, behind --worker. Exit status. */
int ranks_run(const struct ranks_opts *o, int argc, char **argv);

/* ---- the ranks of one worker (slots.c) ---- */

struct ranks_slot {
	struct ranks_shared *shared;
	int rank, device;
	struct ranks_progress *progress;
};
/* Worker: runs each local rank on a thread of its own. Exit status: 0 if every run returned 0. */
int ranks_slots_run(
    const struct ranks_opts *o, int (*run)(const void *arg, const struct ranks_slot *rank_slot), const void *arg);

/* ---- ranks (join.c) ---- */

struct ranks;
/*
 * Collective over all ranks. own: shared memory of this process's parent; fd: its descriptor. 0 or -errno after a
 * message.
 */
int ranks_join(struct ranks_shared *own, int fd, int rank, unsigned timeout_s, struct ranks **ranks_p);
/* All functions: 0; -ECANCELED when another rank failed or left (silent); or -errno after a message. */
int ranks_barrier(struct ranks *ranks);
/* Every rank contributes bytes <= RANKS_SLOT_BYTES and receives nranks x bytes. */
int ranks_allgather(struct ranks *ranks, const void *mine, size_t bytes, void *all);
/* Error messages for ranks: of a collective of the ranks (none for -ECANCELED), or of a device call. Return err. */
int ranks_error(int rank, int err);
int ranks_device_error(int rank, int device, const char *what, int err);
double ranks_now_us(void); /* monotonic */
/* Tells the other ranks that this rank failed. ranks: NULL before join; own: as for join. */
void ranks_abort(struct ranks *ranks, struct ranks_shared *own);
void ranks_leave(struct ranks *ranks); /* NULL allowed */

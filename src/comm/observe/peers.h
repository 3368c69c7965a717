/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_OBSERVE_PEERS_H
#define SHUNT_COMM_OBSERVE_PEERS_H
/*
 * Notices when a process dies that has ranks of our communicators: kernels that wait for it would wait until
 * SHUNT_TIMEOUT.
 *
 * Of a process's end nobody can tell whether it is a crash. A program may end without destroying its communicators, as
 * soon as it has what it came for, and its peers may still be at work with what it left. So a death by itself breaks
 * nothing. What does is a kernel of a communicator with a dead rank that gets no further for SHUNT_PEERS_GRACE_MS, and
 * as long after the death, unless it is one for messages that the dead rank has no part in: then the communicator's
 * error is -EOWNERDEAD, one line says who died and what waits, and the abort word is raised.
 *
 * How far kernels are can only be asked of the driver, and a call of the program's that waits for them, as cudaFree
 * does, may keep that from everybody. Of two ranks any wait is one for the other: then kernels are told to give up
 * after SHUNT_PEERS_GRACE_MS of one, and what they leave is taken for the death that it is. Among more, one line says
 * what cannot be seen.
 *
 * Each process is watched once, however many communicators have ranks in it, by the thread of the service. What is
 * watched is a pidfd that the process has opened on itself and passed to its peers: so it means that process in any PID
 * namespace, and a child of fork() that holds copies of all descriptors does not keep it alive. Where a system has no
 * pidfds (before Linux 5.3) or forbids them, nothing is noticed, and the deadline remains.
 */
#include <stdint.h>
#include <sys/types.h>

struct shunt_comm;

#define SHUNT_PEERS_GRACE_MS 2000

/* A rank's process. */
struct shunt_peer {
	uint64_t process; /* shunt_process_token() there */
	int32_t pid;      /* as it knows itself; for messages */
	int fd;           /* what shunt_peers_self() gave there; -1: nothing */
};
/* A descriptor that stands for this process's life, to be passed to peers; the caller's. -1: there is none. */
int shunt_peers_self(void);

/*
 * peers: of all ranks; their descriptors become ours. Before the communicator is READY, and while all ranks are known
 * to live. What cannot be watched is not.
 */
void shunt_peers_watch(struct shunt_comm *comm, const struct shunt_peer *peers);
/* Before the communicator's memory goes, and after its kernels have ended. Allowed for what is not watched. */
void shunt_peers_unwatch(struct shunt_comm *comm);

/*
 * For the service's thread: the process of this key has died; and to be called now and then: returns after how many ms
 * again, -1 for never.
 */
void shunt_peers_died(uint64_t key);
int shunt_peers_poll(void);
#endif

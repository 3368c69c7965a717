/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_CORE_PEERS_H
#define SHUNT_CORE_PEERS_H
/*
 * Notices when a process dies that has ranks of our communicators: kernels that wait for it would wait until SHUNT_TIMEOUT.
 *
 * Of a process's end nobody can tell whether it is a crash. A program may end without destroying its communicators, as soon as it
 * has what it came for, and its peers may still be at work with what it left. So a death by itself breaks nothing. What does is a
 * kernel of a communicator with a dead rank that gets no further for SHUNT_PEERS_GRACE_MS, and as long after the death, unless it
 * is one for messages that the dead rank has no part in: then the communicator's error is -EOWNERDEAD, one line says who died and
 * what waits, and the abort word is raised.
 *
 * Each process is watched once (a pidfd), however many communicators have ranks in it, by the thread of the service. Where the
 * peer is in another PID namespace, or the system has no pidfds, nothing is noticed, and the deadline remains.
 */
#include <stdint.h>
#include <sys/types.h>

struct shunt_comm;

#define SHUNT_PEERS_GRACE_MS 2000

/* What a rank tells the others of its process. */
struct shunt_peers_name {
	int32_t pid;
	uint32_t zero;
	uint64_t pid_namespace;
};
struct shunt_peers_name shunt_peers_self(void);

/* names: of all ranks. Before the communicator is READY, and while all ranks are known to live. What cannot be watched is not. */
void shunt_peers_watch(struct shunt_comm *comm, const struct shunt_peers_name *names);
/* Before the communicator's memory goes, and after its kernels have ended. Allowed for what is not watched. */
void shunt_peers_unwatch(struct shunt_comm *comm);

/*
 * For the service's thread: the process of this key has died; and to be called now and then: returns after how many ms again, -1
 * for never.
 */
void shunt_peers_died(uint64_t key);
int shunt_peers_look(void);
#endif

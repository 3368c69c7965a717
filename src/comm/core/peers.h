/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Notices the death of a process that has ranks of our communicators: otherwise kernels would wait for it until
 * SHUNT_TIMEOUT.
 *
 * A death alone breaks nothing, because the end of a process does not say whether it was a crash: a program may end
 * without destroying its communicators, while its peers still work with the data that it left. A communicator breaks if
 * it has a dead rank, its kernel has made no progress for a grace of two seconds, and the death is as long ago, unless
 * the kernel is for messages in which the dead rank has no part. Then the communicator's error is -EOWNERDEAD, one line
 * of log names the dead rank and the call that waits, and the abort word is raised.
 *
 * The progress of the kernels is read from the device, unless the host knows that no kernel can run: the device has
 * done all launches, there was no launch since, and no graph is alive.
 *
 * Only the driver can tell the progress of kernels, and a call of the program that waits for them, such as cudaFree,
 * may block the driver for all. Between two ranks every wait is for the other rank: then kernels are told to give up
 * after waiting as long, and the fault that they leave is reported as the death. Among more ranks one line
 * of log says that progress cannot be seen.
 *
 * Over several hosts a rank watches those of its own host, and tells the ranks of others of a death, where the network
 * does not (transport/net/proxy/proxy.h). If these have connections with the dead rank, as they have without a real
 * NCCL, they know whether it had said farewell, and tell of a death in their turn: a collective breaks by their word.
 *
 * The service's thread watches each process once, however many communicators have ranks in it. It watches a pidfd that
 * the process has opened on itself and passed to its peers. That means this process in any PID namespace, and a child
 * of fork() with copies of all descriptors does not keep it alive. Where a system has no pidfds (before Linux 5.3) or
 * forbids them, deaths are not noticed, and SHUNT_TIMEOUT remains.
 */
#include <stdint.h>
#include <sys/types.h>

struct shunt_comm;

/* The grace. Tests that wait it out link a shorter one (tests/support/grace.h). */
int shunt_peers_grace_ms(void);

/* The process of a rank. */
struct shunt_peer {
	uint64_t process; /* shunt_process_token() there */
	int32_t pid;      /* in its own namespace; for messages */
	int fd;           /* from its shunt_peers_self(); -1: none */
};
/* A descriptor for this process's life, to be passed to peers; the caller closes it. -1: none. */
int shunt_peers_self(void);

/*
 * peers: of all ranks; takes over their descriptors. To be called before the communicator is READY, while all ranks are
 * known to live. A peer that cannot be watched is left out.
 */
void shunt_peers_watch(struct shunt_comm *comm, const struct shunt_peer *peers);
/*
 * To be called after the communicator's kernels have ended, and before its memory is freed. Does nothing for a
 * communicator that is not watched.
 */
void shunt_peers_unwatch(struct shunt_comm *comm);

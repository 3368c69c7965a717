/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_SERVICE_H
#define SHUNT_COMM_SERVICE_H
/*
 * One thread for each process that has communicators of several ranks. It sleeps until a peer connects to the socket of
 * one of them: the peer wants to set the communicator up. Then a thread does this rank's part, whether or not the
 * program has come to its first call. So a first use waits for no other rank's program, only for its process; a message
 * between two ranks does not need the others.
 */
#include <stdbool.h>
#include <stdint.h>

struct shunt_comm;

/*
 * run(comm) is called on a thread of its own when fd can be read, and may take its time. True: it is to be called again
 * in a while, because whoever connected cannot have been a peer. 0 or -errno: nothing is watched.
 */
int shunt_service_watch(struct shunt_comm *comm, int fd, bool (*run)(struct shunt_comm *comm));
/*
 * Has the same thread call shunt_peers_died(key) when the process of a pidfd has ended. To end it, close the pidfd. 0
 * or -errno.
 */
int shunt_service_watch_process(int pidfd, uint64_t key);
/* Calls run() once more, as if a peer had connected. */
void shunt_service_wake(struct shunt_comm *comm);
/* Ends it; waits for run() if it is under way. Allowed for what is not watched. */
void shunt_service_unwatch(struct shunt_comm *comm);
#endif

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * One thread for each process that has communicators of several ranks. It sleeps until somebody connects to the socket
 * of a communicator. If that proves to be a peer, it wants to set the communicator up, and a thread does this rank's
 * part, whether or not the program has come to its first call. So a first use waits for the other ranks' processes
 * only, not for their programs, and a message between two ranks does not need the others.
 */
#include <stdbool.h>
#include <stdint.h>

struct shunt_comm;
struct shunt_registration; /* comm_registry.h */

/*
 * Once for a communicator that is in the registry. run(comm) is called on a thread of its own when fd can be read; it
 * may take its time. It returns true if the connection led to nothing, and fd is to be watched further. 0, or -errno:
 * nothing is watched.
 */
int shunt_service_watch(struct shunt_registration *r, int fd, bool (*run)(struct shunt_comm *comm));
/* Functions for the service's thread. */
struct shunt_service_deaths {
	void (*died)(uint64_t key); /* the process of this key has died */
	int (*poll)(void);          /* to be called again after so many ms as it returns; -1: after the next event */
};
/*
 * The same thread calls of->died(key) when the process of a pidfd has ended. `of` is the same for all processes. With
 * the registry's lock held. 0 or -errno.
 */
int shunt_service_watch_process_locked(int pidfd, uint64_t key, const struct shunt_service_deaths *of);
/* Ends that watch, and closes the pidfd. With the lock held. */
void shunt_service_unwatch_process_locked(int *pidfd);
/*
 * No peer will connect any more: fd is not watched from now on, and may be closed. Does not wait, and may be called in
 * run().
 */
void shunt_service_end_watch(struct shunt_registration *r);
/* Calls run() once more, as if a peer had connected. */
void shunt_service_wake(struct shunt_registration *r);
/* Ends the watch; waits for run() if it is under way. Does nothing for a communicator that is not watched. */
void shunt_service_unwatch(struct shunt_registration *r);

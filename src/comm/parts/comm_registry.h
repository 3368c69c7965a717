/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The communicators of the process, from creation to the end of their memory. SHUNT_LOCK_REGISTRY guards the list, and
 * each member of a registration belongs to a file that says what it means:
 *
 * | file | members |
 * |---|---|
 * | comm_registry.c | comm, recorder, looks |
 * | core/deferred_free.c | on_device, deferred |
 * | core/shared_gpu.c | has_device |
 * | service.c | watch |
 * | core/peers.c | peers |
 * | calls/windows.c | windows |
 *
 * A thread that has to do more than read or change a member, such as to read a device, looks at the communicator: the
 * communicator stays until the look ends, and the lock is free meanwhile. A forked child finds the registry empty.
 */
#include <stdbool.h>
#include <stdint.h>
#include "base/lock.h"

struct shunt_comm;
struct shunt_peers;
struct shunt_recorder;

/* The socket on which peers ask for the set-up (service.h). */
struct shunt_watch {
	/* epoll reports this number, not a pointer: the watch may have ended. 0: no watch, or one being removed. */
	uint64_t key;
	bool (*run)(struct shunt_comm *comm);
	int fd;
	bool listed;   /* fd is in the epoll set */
	int fruitless; /* connections that led to nothing */
	bool running;
};

/* In struct shunt_comm. */
struct shunt_registration {
	struct shunt_registration *next;
	struct shunt_comm *comm;
	struct shunt_recorder *recorder; /* the operations that dumps show (observe/recorder.h); NULL: none */
	unsigned looks;                  /* threads that look at the communicator without the lock */
	bool on_device;                  /* it may have kernels on its device */
	bool deferred;                   /* it has ended, and another thread is to free its memory */
	bool windows;                    /* it ever had one */
	bool has_device;                 /* its ranks, threads that share a GPU, have taken it */
	struct shunt_watch watch;
	struct shunt_peers *peers; /* NULL: their deaths are not watched */
};

void shunt_registry_add(struct shunt_registration *r, struct shunt_comm *comm, struct shunt_recorder *recorder);
/* From now on no visit finds the recorder. Does not wait. */
void shunt_registry_hide(struct shunt_registration *r);
/* Waits for threads that look at the communicator. Does nothing for a registration that is not in the list. */
void shunt_registry_remove(struct shunt_registration *r);

/*
 * Ends the look at r (NULL: there is no look), and begins a look at the next wanted communicator; NULL: no communicator
 * is left. A caller goes on until NULL. Communicators that are added meanwhile are not found.
 */
struct shunt_registration *shunt_registry_next(
    struct shunt_registration *r, bool (*wanted)(const struct shunt_registration *r));

/* With the lock held. */
struct shunt_registration *shunt_registry_first(void);
/* Waits until another thread calls changed, or for `until`, a time of CLOCK_MONOTONIC (NULL: none). False: it is over.
 */
bool shunt_registry_wait(const struct timespec *until);
void shunt_registry_changed(void);
/* Waits until no thread looks at the communicator. */
void shunt_registry_wait_unseen(const struct shunt_registration *r);

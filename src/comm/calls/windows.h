/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A communicator's windows: memory that the program registered. With a symmetric window the program promises that a
 * call's buffers lie at the same offset of the same window on every rank. So a rank that finds its own buffer in a
 * window knows where the peers' buffers are.
 *
 * Registering only notes the window, under a lock that is never held for long: allocators register in their callbacks,
 * with locks of their own held, inside groups, and while a stream captures. The first call that wants to use a window
 * makes the ranks agree on it (shunt_symmem_agree): each passes a descriptor of the allocation that its memory lies in,
 * and maps the others'. If one rank cannot, or the ranks mean different windows, all ranks refuse the window and go on
 * as if it were not registered; rank 0 logs the reason. Windows are numbered in the order of registration, which is the
 * same on all ranks.
 *
 * Deregistering takes a window out of the look-up at once. Its mappings go as soon as no launch can use them: in the
 * same call if possible, else in a later one, at the latest when the communicator ends. Freeing memory with ncclMemFree
 * does the same with all windows in it; their names last until they are deregistered. So an address that is used again
 * never leads to memory that was there before.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/lock.h"

struct shunt_comm;
struct shunt_window;

enum shunt_window_state {
	SHUNT_WINDOW_NONE,  /* the buffer lies in no window, or in one that the ranks cannot use */
	SHUNT_WINDOW_NEW,   /* the ranks have not agreed on it */
	SHUNT_WINDOW_READY, /* all ranks have mapped it */
};

/* The windows of a communicator. */
struct shunt_symmem {
	struct shunt_mutex lock;              /* of the lists; held for look-ups only */
	struct shunt_window *live, *deferred; /* oldest first; deferred: out of the look-up, but still mapped */
	struct shunt_window *names_only;      /* not deregistered, but their memory was freed: only the names count */
	atomic_uint nlive;                    /* of `live`; 0 saves the lock */
	atomic_bool any_deferred;
	uint64_t last_number; /* of symmetric windows */
	/* Protected by the communicator's lock. */
	void *used_event; /* event: covers all eager launches that used windows */
	bool used_eagerly, used_captured;
};

void shunt_symmem_init(struct shunt_symmem *symmem);
/* After the last launch. */
void shunt_symmem_finish(struct shunt_comm *comm);

/*
 * For the shim; any thread. A window is known by its name. The name is the window's own address, unique as long as the
 * window lives, until shunt_symmem_set_name. NULL: no memory. Only a symmetric window is used.
 */
struct shunt_window *shunt_symmem_add(struct shunt_comm *comm, void *base, size_t bytes, bool symmetric);
/* A window with the name NULL lasts until its memory is freed. Does nothing if the window is gone. */
void shunt_symmem_set_name(struct shunt_comm *comm, const struct shunt_window *window, const void *name);
/* False: no window has this name. */
bool shunt_symmem_remove(struct shunt_comm *comm, const void *name);
/* Removes the windows whose name is NULL. */
void shunt_symmem_remove_unnamed(struct shunt_comm *comm);
bool shunt_symmem_base(struct shunt_comm *comm, const void *name, void **base_p);
/* Removes the windows in memory of ncclMemAlloc that is about to be freed, on all communicators of the process. */
void shunt_symmem_forget(const void *memory);

/*
 * State of the window that all of [ptr, ptr + bytes) lies in; of several, the oldest one that was not refused. Any
 * thread.
 */
enum shunt_window_state shunt_symmem_state(struct shunt_comm *comm, const void *ptr, uint64_t bytes);

/* The functions below need the communicator's lock. */

/*
 * Two rounds among all ranks, each of which comes with a buffer in a new window. 0: the window is ready; -EOPNOTSUPP:
 * it is refused; another error breaks the communicator. Allowed while a stream captures.
 */
int shunt_symmem_agree(struct shunt_comm *comm, const void *ptr, uint64_t bytes);
/*
 * Address of the peer's counterpart of ptr, in a ready window; NULL: ptr lies in none. Mapped as long as the lock is
 * held.
 */
void *shunt_symmem_peer_ptr(struct shunt_comm *comm, const void *ptr, uint64_t bytes, int peer);
/* True: on all ranks the buffer begins at a multiple of 16 bytes of the allocation. */
bool shunt_symmem_aligned(struct shunt_comm *comm, const void *ptr, uint64_t bytes);
/* The window's number and ptr's offset in it, in one number that is the same on all ranks; 0: ptr lies in no window. */
uint64_t shunt_symmem_offset(struct shunt_comm *comm, const void *ptr);
/* Notes that a launch on the stream uses windows. */
int shunt_symmem_note_use(struct shunt_comm *comm, void *stream, bool captured);
/* Removed windows that no kernel can use any more, or NULL; to be passed to shunt_symmem_free(). */
struct shunt_window *shunt_symmem_take_deferred(struct shunt_comm *comm);

/*
 * To be called without the communicator's lock: unmapping waits for the device, where a kernel may hang until the
 * program aborts the communicator, which takes the lock.
 */
void shunt_symmem_free(struct shunt_comm *comm, struct shunt_window *deferred);

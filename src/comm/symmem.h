/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_SYMMEM_H
#define SHUNT_COMM_SYMMEM_H
/*
 * A communicator's windows: memory that the program registered. With a symmetric one it promises that the buffers of a
 * call lie at the same place of the same window on every rank, so a rank that finds its own buffer in one knows where
 * the peers' are.
 *
 * Registering only notes the window, under a lock that nobody holds for long: allocators do it in their callbacks, with
 * locks of their own held, inside groups, and while a stream captures. The first call that wants to use a window makes
 * the ranks agree on it (agree): each passes a descriptor of the allocation that its memory lies in, and maps the
 * others'. Where one of them cannot, or the ranks mean different windows, it is refused by all of them, which go on as
 * if it were not registered; rank 0 says why. Windows are numbered in the order of registration, which is the same on
 * all ranks.
 *
 * Deregistering takes a window out of the lookup at once. What it had mapped is unmapped as soon as launches that may
 * use it are done: in that very call if they are, else in a later one, at the latest when the communicator ends.
 * Freeing memory with ncclMemFree does the same with all windows in it; their names last until they are deregistered.
 * So an address that is used again never leads to memory that was there before.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shunt_comm;
struct shunt_window;

enum shunt_window_state {
	SHUNT_WINDOW_NONE,  /* there is none here, or the ranks cannot use it */
	SHUNT_WINDOW_NEW,   /* the ranks have not agreed on it */
	SHUNT_WINDOW_READY, /* mapped by all */
};

/* In a communicator. */
struct shunt_symmem {
	pthread_mutex_t lock;                 /* of the lists; held for look-ups, waits for nothing */
	struct shunt_window *live, *deferred; /* the oldest first; deferred: out of the lookup, not unmapped */
	struct shunt_window *names_only;      /* nothing but names: not deregistered, but their memory was freed */
	atomic_uint nlive;                    /* the usual case takes no lock */
	atomic_bool any_deferred;
	uint64_t last_number; /* symmetric ones so far */
	/* With the communicator's lock held. */
	void *used_event; /* event: covers all eager launches that used windows */
	bool used_eagerly, used_captured;
	struct shunt_symmem *next; /* of those of the process that ever had a window */
	bool listed;
};

void shunt_symmem_init(struct shunt_symmem *symmem);
/* After the last launch. */
void shunt_symmem_finish(struct shunt_comm *comm);

/*
 * For the shim; any thread. A window is known by its name, which is its own address, unique as long as it is live,
 * until it is given another. NULL: no memory. Only a symmetric one is used.
 */
struct shunt_window *shunt_symmem_add(struct shunt_comm *comm, void *base, size_t bytes, bool symmetric);
/* Without a name (NULL) it lasts until its memory is freed. Nothing happens if it is gone. */
void shunt_symmem_set_name(struct shunt_comm *comm, const struct shunt_window *window, const void *name);
/* False: there is none of this name. */
bool shunt_symmem_remove(struct shunt_comm *comm, const void *name);
/* Those that were given no name. */
void shunt_symmem_remove_unnamed(struct shunt_comm *comm);
bool shunt_symmem_base(struct shunt_comm *comm, const void *name, void **base_p);
/* Memory of ncclMemAlloc that is about to be freed: on all communicators of the process. */
void shunt_symmem_forget(const void *memory);

/* Any thread. Of the window that all of [ptr, ptr + bytes) lies in; of several, of the oldest one that is of use. */
enum shunt_window_state shunt_symmem_state(struct shunt_comm *comm, const void *ptr, uint64_t bytes);

/* The rest with the communicator's lock held. */

/*
 * Two rounds among all ranks, each of which comes with a buffer in a new window. 0: it is ready; -EOPNOTSUPP: it is
 * refused; another error is the communicator's. Allowed while a stream captures.
 */
int shunt_symmem_agree(struct shunt_comm *comm, const void *ptr, uint64_t bytes);
/*
 * Where peer has what we have at ptr, in a ready window; NULL: there is none. Stays mapped as long as the lock is held.
 */
void *shunt_symmem_peer_ptr(struct shunt_comm *comm, const void *ptr, uint64_t bytes, int peer);
/* Is that place a multiple of 16 on all ranks? */
bool shunt_symmem_aligned(struct shunt_comm *comm, const void *ptr, uint64_t bytes);
/* The place of ptr in its window as a number that is the same on all ranks; 0: none. */
uint64_t shunt_symmem_offset(struct shunt_comm *comm, const void *ptr);
/* A launch on the stream has used windows. */
int shunt_symmem_note_use(struct shunt_comm *comm, void *stream, bool captured);
/* Windows that have gone and that no kernel can be in any more, or NULL; for shunt_symmem_free(). */
struct shunt_window *shunt_symmem_take_deferred(struct shunt_comm *comm);

/*
 * Without it: unmapping waits for the device, where a kernel may hang that only an abort ends, and that takes the lock.
 */
void shunt_symmem_free(struct shunt_comm *comm, struct shunt_window *deferred);
#endif

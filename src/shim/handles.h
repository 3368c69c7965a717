/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_HANDLES_H
#define SHUNT_SHIM_HANDLES_H
/*
 * The side table: from the program's ncclComm_t to what we know of it. In overlay the handle is the real NCCL's own, in
 * standalone it points to a struct shunt_standalone_comm.
 *
 * Looking up takes no lock. Entries are counted: whoever found one may use it until he puts it back, even if another
 * thread destroys the communicator meanwhile; the last one to put it destroys our side. Entries are recycled and never
 * freed, so that a reader that comes too late reads an entry and not garbage.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "comm/comm.h"
#include "shim/comm_config.h"
#include "shim/nccl/abi.h"

/* An operator that the program made. */
struct shunt_user_op {
	ncclRedOp_t op;
	ncclDataType_t dtype;
	bool on_device;
	uint64_t scalar; /* bits in dtype, or a device address */
};

struct shunt_set_count {
	uint64_t set;
	unsigned count;
};

/* Reasons for which our kernels stay off an entry for now. */
enum { SHUNT_OFF_REVOKED = 1, SHUNT_OFF_SUSPENDED = 2, SHUNT_OFF_FINALIZED = 4 };

/* For good, or those that are under way. */
enum { SHUNT_CANCEL_ABORTED = 1, SHUNT_CANCEL_REVOKED = 2 };

/* Standalone: what the handle points to. */
struct shunt_standalone_comm {
	uint64_t magic;
	atomic_uint users;          /* the entry, and the tasks that run on threads of ours; the last one frees it */
	atomic_int tasks;           /* under way on the communicator: in an open group, or on a thread of ours */
	atomic_int threads;         /* of ours that still touch the communicator, or the program's memory for it */
	atomic_int running;         /* tasks that are at it, on a thread of ours or of the program's */
	atomic_int result;          /* ncclResult_t of the tasks that the program did not wait for */
	atomic_int never_connected; /* it has a handle, and its ranks have never met */
	atomic_int cancel;          /* SHUNT_CANCEL_* bits; nonzero makes tasks give up */
	int next_op;
};

struct shunt_entry {
	_Atomic(ncclComm_t) key;
	atomic_uint refs;
	struct shunt_comm *comm;
	struct shunt_id id;
	const char *forward_reason; /* children inherit it: their ids would not agree */
	struct shunt_comm_config config;
	unsigned splits, grows; /* how many children so far, the same on all ranks */
	atomic_bool ready;      /* rank, size and device are known to comm */
	atomic_int off;
	pthread_mutex_t lock; /* for what follows, and for getting ready */
	struct shunt_user_op *ops;
	size_t nops;
	struct shunt_set_count *sets;
	size_t nsets;
	struct shunt_standalone_comm *scomm;
	struct shunt_entry *next_free;
};

/* An entry that no handle leads to yet, with one reference; owns comm. NULL: no memory (comm is destroyed). */
struct shunt_entry *shunt_entry_create(struct shunt_comm *comm);
/* Makes the entry known under its handle; the caller's reference goes to the table. On -ENOMEM the entry is put. */
int shunt_entry_publish(struct shunt_entry *entry, ncclComm_t handle);
/* A reference, or NULL if the handle is unknown. */
struct shunt_entry *shunt_entry_get(ncclComm_t handle);
/* Is the handle known now? Takes no lock and no reference, so that nothing can be destroyed in here. */
bool shunt_entry_exists(ncclComm_t handle);
/*
 * Forgets the handle; the table's reference goes to the caller. NULL if it is unknown. To be called before the handle
 * dies.
 */
struct shunt_entry *shunt_entry_remove(ncclComm_t handle);
void shunt_entry_put(struct shunt_entry *entry); /* NULL is allowed */
/*
 * The same for callers who must not wait, such as an allocator's callback: if it was the last reference, a thread of
 * ours does the rest.
 */
void shunt_entry_put_async(struct shunt_entry *entry);

int shunt_entry_op_add(struct shunt_entry *entry, const struct shunt_user_op *op);
bool shunt_entry_op_find(struct shunt_entry *entry, ncclRedOp_t op, struct shunt_user_op *op_p);
bool shunt_entry_op_remove(struct shunt_entry *entry, ncclRedOp_t op);

/* Lets go of it; NULL is allowed. */
void shunt_standalone_comm_put(struct shunt_standalone_comm *scomm);

/* How often was this called before with the same set? */
unsigned shunt_entry_count_set(struct shunt_entry *entry, uint64_t set);
#endif

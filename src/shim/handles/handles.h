/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The side table: from the program's ncclComm_t to Shunt's side of the communicator. In overlay the handle is the real
 * NCCL's own; in standalone it points to a struct shunt_standalone_comm.
 *
 * Looking up takes no lock. Entries are counted: a caller may use the entry that it found until it puts the entry, even
 * if another thread destroys the communicator meanwhile. The last put destroys Shunt's side. Entries are recycled and
 * never freed, so that a late reader reads an entry and not garbage.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include "base/lock.h"
#include "comm/comm.h"
#include "shim/handles/comm_config.h"
#include "shim/handles/handle_life.h"
#include "shim/nccl/abi.h"
#include "transport/rendezvous/bootstrap_group.h"

/* The first number that shunt_redop_create tries; NCCL's own are anywhere, since it mixes them with addresses. */
#define SHUNT_FIRST_OWN_OP 0x60000000

/* An operator that the program created. */
struct shunt_user_op {
	ncclRedOp_t op;
	ncclRedOp_t base; /* the operator for NCCL, if Shunt's numbers are NCCL's */
	enum shunt_redop redop;
	bool own; /* of shunt_redop_create: with the next two, of struct shunt_numerics */
	bool e4m3b15;
	int accumulate;
	ncclDataType_t dtype;
	bool on_device;
	uint64_t scalar; /* bits in dtype, or a device address */
};

struct shunt_set_count {
	uint64_t set;
	unsigned count;
};

/* Standalone: the struct to which the handle points. */
struct shunt_standalone_comm {
	uint64_t magic;
	atomic_uint users;  /* the entry, and tasks on threads of ours; the last one frees the struct */
	atomic_int tasks;   /* under way: in an open group, or on a thread of ours */
	atomic_int started; /* those on threads of ours */
	atomic_int threads; /* of ours that still use the communicator, or the program's memory for it */
	atomic_int running; /* tasks that run now, on a thread of ours or of the program */
	int next_op;
	/* Of a communicator on one host: where ranks of others come when it grows for the time that `grow` counts. */
	struct shunt_group_root grow_root;
	unsigned grow;
};

struct shunt_entry {
	_Atomic(ncclComm_t) key;
	atomic_uint refs;
	struct shunt_comm *comm;
	struct shunt_id id;
	const char *forward_reason; /* children inherit it, because their ids would not agree */
	struct shunt_comm_config config;
	unsigned process_generation; /* shunt_process_generation() at its creation */
	/* Numbers of children and of expert parallel groups so far, the same on all ranks. */
	unsigned splits, grows, ep_groups;
	/*
	 * Operators below this number mean what they mean to NCCL: ncclNumOps, or 0 for a communicator whose reductions
	 * have other numbers, which follow, of struct shunt_numerics.
	 */
	int plain_ops;
	bool e4m3b15;
	int accumulate;
	unsigned own_ops; /* numbers given by shunt_redop_create so far */
	struct shunt_life life;
	struct shunt_mutex lock; /* of the members below, and for shunt_attach_ready */
	struct shunt_user_op *ops;
	size_t nops;
	struct shunt_set_count *sets;
	size_t nsets;
	struct shunt_standalone_comm *scomm;
	struct shunt_entry *next_free;
};

/*
 * A new communicator with the configuration's limits, as an entry without a handle, with one reference. Takes over
 * scomm, which is NULL in overlay. NULL: no memory, or no socket.
 */
struct shunt_entry *shunt_entry_create(
    const struct shunt_comm_desc *desc, const struct shunt_comm_config *config, struct shunt_standalone_comm *scomm);
/*
 * Puts the entry into the table, under its handle; the caller's reference goes to the table. On -ENOMEM the entry is
 * put.
 */
int shunt_entry_publish(struct shunt_entry *entry, ncclComm_t handle);
/* The handle's entry, with a reference; NULL: the handle is unknown. */
struct shunt_entry *shunt_entry_get(ncclComm_t handle);
/*
 * Takes the handle out of the table; the table's reference goes to the caller. NULL: the handle is unknown. To be
 * called before the handle becomes invalid.
 */
struct shunt_entry *shunt_entry_remove(ncclComm_t handle);
/* False: this process is a forked child of the entry's. */
static inline bool shunt_entry_is_ours(const struct shunt_entry *entry)
{
	return entry->process_generation == shunt_process_generation();
}
/* Copies at most cap handles of entries that are ours; returns how many there are. */
size_t shunt_entry_list(ncclComm_t *handles, size_t cap);
void shunt_entry_put(struct shunt_entry *entry); /* NULL is allowed */
/*
 * For callers that must not wait, such as an allocator's callback: if this was the last reference, a thread of ours
 * does the rest.
 */
void shunt_entry_put_async(struct shunt_entry *entry);

/* A host scalar is read now, a device scalar whenever a kernel runs. dtype: one that exists. */
struct shunt_user_op shunt_user_op_describe(
    ncclRedOp_t op, const void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence);
/* Fields of struct shunt_numerics, accumulate never the default. */
void shunt_entry_set_numerics(struct shunt_entry *entry, bool e4m3b15, int accumulate);
int shunt_entry_op_add(struct shunt_entry *entry, const struct shunt_user_op *op);
bool shunt_entry_op_find(struct shunt_entry *entry, ncclRedOp_t op, struct shunt_user_op *op_p);
bool shunt_entry_op_remove(struct shunt_entry *entry, ncclRedOp_t op, struct shunt_user_op *op_p);

/* With one use, the entry's. NULL: no memory. */
struct shunt_standalone_comm *shunt_standalone_comm_create(void);
/* Drops one use of it; NULL is allowed. */
void shunt_standalone_comm_put(struct shunt_standalone_comm *scomm);

/* How many earlier calls had the same set. */
unsigned shunt_entry_count_set(struct shunt_entry *entry, uint64_t set);

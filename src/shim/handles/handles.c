/* SPDX-License-Identifier: MIT */
/*
 * Open addressing with linear probing in an array of atomic pointers. Writers hold a lock, and make `sequence` odd
 * while they move entries. A reader that finds its key is right, whatever was moved: it checks the key again once it
 * holds a reference. A reader that does not find its key tries again if the sequence has changed. A grown table
 * replaces the old one, which stays allocated for late readers: all old tables together are smaller than the new one.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/inet/socket.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/os.h"
#include "shim/handles/handles.h"

struct handle_table {
	struct handle_table *older;
	size_t mask;
	_Atomic(struct shunt_entry *) buckets[];
};

static _Atomic(struct handle_table *) current_table;
static atomic_uint sequence;
/* Protected by SHUNT_LOCK_HANDLES, which writers of the table hold too. */
static size_t nused;
static struct shunt_entry *free_entries;

/*
 * A forked child has neither its parent's communicators nor the threads that worked for them. Handlers that the parent
 * registered for the exit may still destroy the handles. In front of a real NCCL they are NCCL's alone then.
 */
static void turn_off_entries(void)
{
	struct handle_table *t = atomic_load(&current_table);
	bool are_nccls = false;

	atomic_store(&sequence, 0); /* a writer may have been at it */
	for (size_t i = 0; t && i <= t->mask; i++) {
		struct shunt_entry *e = atomic_load(&t->buckets[i]);

		if (!e)
			continue;
		shunt_life_stop(&e->life);
		shunt_mutex_init(&e->lock, SHUNT_LOCK_ENTRY);
		/* A thread may have been at them. */
		e->ops = NULL;
		e->sets = NULL;
		e->nops = e->nsets = 0;
		if (e->scomm) {
			e->scomm->grow_root.fd = -1; /* the parent's: the end of the entry would shut it down */
			atomic_store(&e->scomm->tasks, 0);
			atomic_store(&e->scomm->started, 0);
			atomic_store(&e->scomm->threads, 0);
			atomic_store(&e->scomm->running, 0);
		} else {
			are_nccls = true;
		}
	}
	if (are_nccls) {
		atomic_store(&current_table, NULL);
		nused = 0;
	}
}
SHUNT_IN_FORKED_CHILD(turn_off_entries)

static size_t hash(ncclComm_t handle)
{
	uint64_t x = (uintptr_t)handle;

	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	return x;
}

static bool try_ref(struct shunt_entry *e)
{
	unsigned refs = atomic_load(&e->refs);

	while (refs)
		if (atomic_compare_exchange_weak(&e->refs, &refs, refs + 1))
			return true;
	return false;
}

/* The entry that a reader finds at this moment. */
static inline struct shunt_entry *lookup(ncclComm_t handle)
{
	struct handle_table *t = atomic_load(&current_table);
	struct shunt_entry *e = NULL;

	for (size_t n = 0, i = hash(handle); t && n <= t->mask; n++, i++) {
		e = atomic_load(&t->buckets[i & t->mask]);
		if (!e || atomic_load(&e->key) == handle)
			break;
		e = NULL;
	}
	return e;
}

struct shunt_entry *shunt_entry_get(ncclComm_t handle)
{
	if (!handle)
		return NULL;
	for (;;) {
		unsigned before = atomic_load(&sequence);
		struct shunt_entry *e = lookup(handle);

		if (e && try_ref(e)) {
			if (atomic_load(&e->key) == handle)
				return e;
			shunt_entry_put(e);
		}
		if (!(before & 1) && atomic_load(&sequence) == before)
			return NULL;
		sched_yield();
	}
}

struct shunt_standalone_comm *shunt_standalone_comm_create(void)
{
	struct shunt_standalone_comm *scomm = calloc(1, sizeof(*scomm));

	if (!scomm)
		return NULL;
	scomm->magic = SHUNT_NCCL_COMM_MAGIC;
	atomic_store(&scomm->users, 1);
	scomm->next_op = ncclNumOps;
	scomm->grow_root.fd = -1;
	return scomm;
}

void shunt_standalone_comm_put(struct shunt_standalone_comm *scomm)
{
	if (!scomm || atomic_fetch_sub(&scomm->users, 1) != 1)
		return;
	shunt_close_socket(&scomm->grow_root.fd);
	free(scomm);
}

/* One that is free, or a new one; NULL: no memory. */
static struct shunt_entry *take_entry(void)
{
	struct shunt_entry *e;

	shunt_lock_acquire(SHUNT_LOCK_HANDLES);
	e = free_entries;
	if (e)
		free_entries = e->next_free;
	shunt_lock_release(SHUNT_LOCK_HANDLES);
	if (!e) {
		e = calloc(1, sizeof(*e));
		if (e)
			shunt_mutex_init(&e->lock, SHUNT_LOCK_ENTRY);
	}
	return e;
}

static struct shunt_comm *create_comm(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config)
{
	struct shunt_comm_desc d = *desc;
	struct shunt_comm *comm;

	d.max_ctas = config->max_ctas;
	d.no_sms = config->no_sms;
	d.few_ctas = config->few_ctas;
	d.no_clusters = config->no_clusters;
	d.nvls_off = config->nvls_off;
	d.name = config->name;
	return shunt_comm_create(&d, &comm) ? NULL : comm;
}

void shunt_entry_set_numerics(struct shunt_entry *e, bool e4m3b15, int accumulate)
{
	e->e4m3b15 = e4m3b15;
	e->accumulate = accumulate;
	e->plain_ops = e4m3b15 || accumulate != SHUNT_ACCUMULATE_FP32 ? 0 : ncclNumOps;
}

struct shunt_entry *shunt_entry_create(
    const struct shunt_comm_desc *desc, const struct shunt_comm_config *config, struct shunt_standalone_comm *scomm)
{
	struct shunt_comm *comm = create_comm(desc, config);
	struct shunt_entry *e = comm ? take_entry() : NULL;

	if (!e) {
		shunt_comm_destroy(comm);
		shunt_standalone_comm_put(scomm);
		return NULL;
	}
	e->comm = comm;
	e->process_generation = shunt_process_generation();
	e->id = desc->id;
	e->forward_reason = desc->forward_reason;
	e->config = *config;
	e->splits = e->grows = 0;
	e->own_ops = 0;
	shunt_entry_set_numerics(e, false, shunt_config()->accumulate);
	e->ops = NULL;
	e->nops = 0;
	e->sets = NULL;
	e->nsets = 0;
	e->scomm = scomm;
	shunt_life_init(&e->life);
	if (desc->rank >= 0 && desc->nranks > 0 && desc->device >= 0)
		shunt_life_locate(&e->life);
	atomic_store(&e->refs, 1);
	if (config->name[0])
		shunt_info(
		    SHUNT_LOG_INIT, "communicator %s is the program's %s", shunt_id_text(e->id.b).s, config->name);
	return e;
}

static void *free_entry(void *arg)
{
	struct shunt_entry *e = arg;

	shunt_comm_destroy(e->comm);
	e->comm = NULL;
	free(e->ops);
	free(e->sets);
	shunt_standalone_comm_put(e->scomm);
	shunt_lock_acquire(SHUNT_LOCK_HANDLES);
	e->next_free = free_entries;
	free_entries = e;
	shunt_lock_release(SHUNT_LOCK_HANDLES);
	return NULL;
}

void shunt_entry_put(struct shunt_entry *e)
{
	if (e && atomic_fetch_sub(&e->refs, 1) == 1)
		free_entry(e);
}

void shunt_entry_put_async(struct shunt_entry *e)
{
	if (e && atomic_fetch_sub(&e->refs, 1) == 1 && shunt_thread_start(NULL, 0, free_entry, e))
		free_entry(e);
}

static size_t find_bucket(struct handle_table *t, ncclComm_t handle)
{
	size_t i = hash(handle) & t->mask;
	struct shunt_entry *e;

	while ((e = atomic_load(&t->buckets[i])) && atomic_load(&e->key) != handle)
		i = (i + 1) & t->mask;
	return i;
}

/* Keeps at least half of the buckets empty. */
static int reserve_bucket(void)
{
	struct handle_table *t = atomic_load(&current_table), *grown;
	size_t n = t ? t->mask + 1 : 0;

	if (2 * (nused + 1) <= n)
		return 0;
	n = n ? 2 * n : 64;
	grown = calloc(1, sizeof(*grown) + n * sizeof(grown->buckets[0]));
	if (!grown)
		return -ENOMEM;
	grown->older = t;
	grown->mask = n - 1;
	for (size_t i = 0; t && i <= t->mask; i++) {
		struct shunt_entry *e = atomic_load(&t->buckets[i]);
		if (e)
			atomic_store(&grown->buckets[find_bucket(grown, atomic_load(&e->key))], e);
	}
	atomic_store(&current_table, grown);
	return 0;
}

/* Empties bucket i, and moves up the entries that would not be found any more. */
static void close_gap(struct handle_table *t, size_t i)
{
	struct shunt_entry *e;

	for (size_t j = (i + 1) & t->mask; (e = atomic_load(&t->buckets[j])); j = (j + 1) & t->mask) {
		size_t home_bucket = hash(atomic_load(&e->key)) & t->mask;
		if (((j - home_bucket) & t->mask) < ((j - i) & t->mask))
			continue;
		atomic_store(&t->buckets[i], e);
		i = j;
	}
	atomic_store(&t->buckets[i], NULL);
}

static struct shunt_entry *unlink_entry(ncclComm_t handle)
{
	struct handle_table *t = atomic_load(&current_table);
	struct shunt_entry *e;
	size_t i;

	if (!t)
		return NULL;
	i = find_bucket(t, handle);
	e = atomic_load(&t->buckets[i]);
	if (!e)
		return NULL;
	atomic_fetch_add(&sequence, 1);
	close_gap(t, i);
	atomic_store(&e->key, NULL);
	atomic_fetch_add(&sequence, 1);
	nused--;
	return e;
}

int shunt_entry_publish(struct shunt_entry *entry, ncclComm_t handle)
{
	struct shunt_entry *stale;
	struct handle_table *t;
	int err;

	shunt_lock_acquire(SHUNT_LOCK_HANDLES);
	/* The handle may be the old address of a communicator that ended without our noticing. */
	stale = unlink_entry(handle);
	atomic_fetch_add(&sequence, 1);
	err = reserve_bucket();
	if (!err) {
		t = atomic_load(&current_table);
		atomic_store(&entry->key, handle);
		atomic_store(&t->buckets[find_bucket(t, handle)], entry);
		nused++;
	}
	atomic_fetch_add(&sequence, 1);
	shunt_lock_release(SHUNT_LOCK_HANDLES);
	shunt_entry_put(stale);
	if (err)
		shunt_entry_put(entry);
	return err;
}

struct shunt_entry *shunt_entry_remove(ncclComm_t handle)
{
	struct shunt_entry *e;

	if (!handle)
		return NULL;
	shunt_lock_acquire(SHUNT_LOCK_HANDLES);
	e = unlink_entry(handle);
	shunt_lock_release(SHUNT_LOCK_HANDLES);
	return e;
}

size_t shunt_entry_list(ncclComm_t *handles, size_t cap)
{
	struct handle_table *t;
	struct shunt_entry *e;
	size_t n = 0;

	shunt_lock_acquire(SHUNT_LOCK_HANDLES);
	t = atomic_load(&current_table);
	for (size_t i = 0; t && i <= t->mask; i++)
		if ((e = atomic_load(&t->buckets[i])) && shunt_entry_is_ours(e) && n++ < cap)
			handles[n - 1] = atomic_load(&e->key);
	shunt_lock_release(SHUNT_LOCK_HANDLES);
	return n;
}

struct shunt_user_op shunt_user_op_describe(
    ncclRedOp_t op, const void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence)
{
	struct shunt_user_op user = {
		.op = op, .base = op, .redop = SHUNT_PREMUL, .dtype = dtype, .on_device = residence == ncclScalarDevice
	};

	if (user.on_device)
		user.scalar = (uintptr_t)scalar;
	else
		memcpy(&user.scalar, scalar, shunt_dtype_bytes[dtype]); /* little endian: the low bytes */
	return user;
}

/* With the lock held. NULL: the communicator has no such operator. */
static struct shunt_user_op *op_at(struct shunt_entry *e, ncclRedOp_t op)
{
	for (size_t i = 0; i < e->nops; i++)
		if (e->ops[i].op == op)
			return &e->ops[i];
	return NULL;
}

int shunt_entry_op_add(struct shunt_entry *e, const struct shunt_user_op *op)
{
	struct shunt_user_op *ops;
	int err = 0;

	shunt_mutex_lock(&e->lock);
	if (op_at(e, op->op))
		err = -EEXIST;
	else if (!(ops = realloc(e->ops, (e->nops + 1) * sizeof(*ops))))
		err = -ENOMEM;
	else {
		e->ops = ops;
		ops[e->nops++] = *op;
	}
	shunt_mutex_unlock(&e->lock);
	return err;
}

bool shunt_entry_op_find(struct shunt_entry *e, ncclRedOp_t op, struct shunt_user_op *op_p)
{
	const struct shunt_user_op *found;

	shunt_mutex_lock(&e->lock);
	found = op_at(e, op);
	if (found)
		*op_p = *found;
	shunt_mutex_unlock(&e->lock);
	return found;
}

bool shunt_entry_op_remove(struct shunt_entry *e, ncclRedOp_t op, struct shunt_user_op *op_p)
{
	struct shunt_user_op *found;

	shunt_mutex_lock(&e->lock);
	found = op_at(e, op);
	if (found) {
		*op_p = *found;
		*found = e->ops[--e->nops];
	}
	shunt_mutex_unlock(&e->lock);
	return found;
}

unsigned shunt_entry_count_set(struct shunt_entry *e, uint64_t set)
{
	struct shunt_set_count *sets;
	unsigned count = 0;
	size_t i = 0;

	shunt_mutex_lock(&e->lock);
	while (i < e->nsets && e->sets[i].set != set)
		i++;
	if (i == e->nsets && (sets = realloc(e->sets, (e->nsets + 1) * sizeof(*sets)))) {
		e->sets = sets;
		sets[e->nsets++] = (struct shunt_set_count){ set, 0 };
	}
	if (i < e->nsets) /* else no memory: the next call gets the same count, and finds its name taken */
		count = e->sets[i].count++;
	shunt_mutex_unlock(&e->lock);
	return count;
}

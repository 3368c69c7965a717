/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "fake_nccl.h"

#define VERSION 22809

/*
 * Never given back to the heap, and the last one that died is the next to be born: a stale handle reads a communicator.
 */
struct ncclComm {
	uint64_t magic;
	int rank, nranks, device;
	bool blocking, aborted;
	ncclResult_t state;
	int next_op;
	uint64_t key; /* the same on all ranks, and no other communicator's */
	unsigned children;
	struct ncclComm *next_free, *next_made;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];
static _Thread_local char log_copy[1 << 16];
static size_t log_size;
static char fail_name[64];
static ncclResult_t fail_result;
static int late_ms = -1, init_late_ms = -1;
static unsigned char next_id = 1;
static _Thread_local int group_depth;
static _Thread_local ncclResult_t group_error;

static struct ncclComm *free_comms, *made_comms; /* the latter so that those of groups that failed are not lost */
static struct fake_call last_call;
static int launches;
static _Thread_local int group_calls;
static _Thread_local ncclComm_t group_comm; /* of its last call */
static const char *volatile last_error = "fake: last error";
static _Thread_local void (*at_launch)(void *arg);
static _Thread_local void *at_launch_arg;

/* ------------------------------------------------------------------------------------------------ where ranks meet */

#define ROOMS 256
#define ROOM_RANKS 16
#define ROOM_LIMIT_S 30

struct room {
	uint64_t key;
	int arrived;
	unsigned generation; /* how often it was full */
	int said[ROOM_RANKS][2];
};

struct building {
	int lock;
	struct room rooms[ROOMS];
};
_Static_assert(sizeof(struct building) <= FAKE_NCCL_SHARED_BYTES, "what the tests reserve");

struct ticket {
	struct room *room; /* NULL: nobody is to be met */
	unsigned generation;
};

/* Memory that all ranks share, or NULL: then nobody waits for anybody. */
static struct building *building(void)
{
	const char *text = getenv("FAKE_NCCL_SHARED");

	return text ? (struct building *)(uintptr_t)strtoull(text, NULL, 16) : NULL;
}

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
	return hash | 1;
}

/* One of nranks has come, and says two numbers that the others can read. */
static struct ticket arrive(uint64_t key, int rank, int nranks, int a, int b)
{
	struct building *all = building();
	struct ticket t = { NULL, 0 };

	if (!all || rank >= ROOM_RANKS)
		return t;
	while (__atomic_exchange_n(&all->lock, 1, __ATOMIC_ACQUIRE))
		usleep(10);
	for (int i = 0; i < ROOMS && !t.room; i++)
		if (all->rooms[i].key == key || !all->rooms[i].key)
			t.room = &all->rooms[i];
	if (t.room) {
		t.room->key = key;
		t.generation = t.room->generation;
		t.room->said[rank][0] = a;
		t.room->said[rank][1] = b;
		if (++t.room->arrived == nranks) {
			t.room->arrived = 0;
			__atomic_add_fetch(&t.room->generation, 1, __ATOMIC_RELEASE);
		}
	}
	__atomic_store_n(&all->lock, 0, __ATOMIC_RELEASE);
	return t;
}

/* False if they do not come, or if comm is aborted. */
static bool wait_for_all(const struct ticket *t, const struct ncclComm *comm)
{
	struct timespec now, end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += ROOM_LIMIT_S;
	while (t->room && __atomic_load_n(&t->room->generation, __ATOMIC_ACQUIRE) == t->generation) {
		usleep(200);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec > end.tv_sec || __atomic_load_n(&comm->aborted, __ATOMIC_RELAXED))
			return false;
	}
	return true;
}

/* A communicator that is not complete yet. */
struct birth {
	ncclComm_t *where; /* children: gets the handle once it is */
	ncclComm_t child;
	ncclComm_t owner; /* whose state tells: the parent, or the new communicator itself */
	int ms;           /* it takes so long; -1: no time */
	struct ticket ticket;
	bool split; /* place and size follow from what the ranks said */
	int old_rank, old_nranks;
};
/* Those of the open group: completed when it ends. */
static _Thread_local struct birth births[16];
static _Thread_local int nbirths;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
	va_list ap;

	pthread_mutex_lock(&lock);
	va_start(ap, format);
	log_size += vsnprintf(log_text + log_size, sizeof(log_text) - log_size, format, ap);
	va_end(ap);
	if (log_size > sizeof(log_text) - 256)
		log_size = 0;
	pthread_mutex_unlock(&lock);
}

const char *fake_nccl_log(void)
{
	pthread_mutex_lock(&lock);
	memcpy(log_copy, log_text, log_size);
	log_copy[log_size] = 0;
	pthread_mutex_unlock(&lock);
	return log_copy;
}

void fake_nccl_reset(void)
{
	pthread_mutex_lock(&lock);
	log_size = 0;
	log_text[0] = 0;
	fail_name[0] = 0;
	pthread_mutex_unlock(&lock);
	late_ms = init_late_ms = -1;
	launches = 0;
}

void fake_nccl_fail_next(const char *name, ncclResult_t result)
{
	pthread_mutex_lock(&lock);
	snprintf(fail_name, sizeof(fail_name), "%s", name);
	fail_result = result;
	pthread_mutex_unlock(&lock);
}

void fake_nccl_late(int ms)
{
	late_ms = ms;
}

void fake_nccl_init_late(int ms)
{
	init_late_ms = ms;
}

void fake_nccl_at_launch(void (*launch)(void *arg), void *arg)
{
	at_launch = launch;
	at_launch_arg = arg;
}

/* As ncclGroupErrCheck: an error sticks to an open group. */
static ncclResult_t keep(ncclResult_t result)
{
	if (group_depth && !group_error && result != ncclInProgress)
		group_error = result;
	return result;
}

static ncclResult_t planned(const char *name)
{
	ncclResult_t result = ncclSuccess;

	pthread_mutex_lock(&lock);
	if (!strcmp(fail_name, name)) {
		result = fail_result;
		fail_name[0] = 0;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return ncclInvalidArgument;
	*version = VERSION;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	return result == ncclSuccess ? "fake: no error" : "fake: error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	return last_error;
}

void ncclResetDebugInit(void)
{
	note("ResetDebugInit\n");
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	note("GetUniqueId\n");
	if (!id)
		return ncclInvalidArgument;
	memset(id, 0, sizeof(*id));
	if (getenv("NCCL_COMM_ID")) { /* nothing but the variable counts, whoever asks and how often */
		uint64_t magic = SHUNT_NCCL_COMM_MAGIC,
		         hash = mix(0, getenv("NCCL_COMM_ID"), strlen(getenv("NCCL_COMM_ID")));

		memcpy(id->internal, &magic, sizeof(magic));
		memcpy(id->internal + sizeof(magic), &hash, sizeof(hash));
		return ncclSuccess;
	}
	id->internal[0] = (char)next_id++;
	id->internal[1] = (char)getpid();
	id->internal[2] = (char)(getpid() >> 8);
	return ncclSuccess;
}

static ncclComm_t new_comm(int rank, int nranks, int device, bool blocking, uint64_t key)
{
	ncclComm_t comm;

	pthread_mutex_lock(&lock);
	comm = free_comms;
	if (comm)
		free_comms = comm->next_free;
	pthread_mutex_unlock(&lock);
	if (!comm) {
		comm = calloc(1, sizeof(*comm));
		pthread_mutex_lock(&lock);
		comm->next_made = made_comms;
		made_comms = comm;
		pthread_mutex_unlock(&lock);
	}
	comm->rank = rank;
	comm->nranks = nranks;
	comm->device = device;
	comm->blocking = blocking;
	comm->next_op = 5;
	comm->key = key;
	comm->children = 0;
	__atomic_store_n(&comm->aborted, false, __ATOMIC_RELAXED);
	__atomic_store_n(&comm->state, ncclSuccess, __ATOMIC_RELAXED);
	__atomic_store_n(&comm->magic, SHUNT_NCCL_COMM_MAGIC, __ATOMIC_RELEASE);
	return comm;
}

static bool alive(const struct ncclComm *comm)
{
	return comm && __atomic_load_n(&comm->magic, __ATOMIC_ACQUIRE) == SHUNT_NCCL_COMM_MAGIC;
}

static ncclResult_t state_of(const struct ncclComm *comm)
{
	return __atomic_load_n(&comm->state, __ATOMIC_ACQUIRE);
}

/* Finds this rank's place among those of the same colour, by key and then by old rank. */
static void find_place(const struct birth *b)
{
	int (*said)[2] = b->ticket.room->said, me = b->old_rank;

	b->child->rank = b->child->nranks = 0;
	for (int r = 0; r < b->old_nranks; r++) {
		if (said[r][0] != said[me][0])
			continue;
		b->child->nranks++;
		if (said[r][1] < said[me][1] || (said[r][1] == said[me][1] && r < me))
			b->child->rank++;
	}
}

static ncclResult_t complete(const struct birth *b)
{
	bool ok;

	if (b->ms > 0)
		usleep(1000 * (useconds_t)b->ms);
	ok = wait_for_all(&b->ticket, b->owner);
	if (ok && b->split)
		find_place(b);
	if (ok && b->where)
		__atomic_store_n(b->where, b->child, __ATOMIC_RELEASE);
	__atomic_store_n(&b->owner->state, ok ? ncclSuccess : ncclSystemError, __ATOMIC_RELEASE);
	return ok ? ncclSuccess : ncclSystemError;
}

static void *complete_thread(void *arg)
{
	complete(arg);
	free(arg);
	return NULL;
}

/* Here and now, or by a thread of our own. */
static ncclResult_t bear(const struct birth *birth)
{
	struct birth *b;
	pthread_t thread;

	if (birth->ms < 0 && birth->owner->blocking)
		return complete(birth);
	__atomic_store_n(&birth->owner->state, ncclInProgress, __ATOMIC_RELEASE);
	b = malloc(sizeof(*b));
	*b = *birth;
	pthread_create(&thread, NULL, complete_thread, b);
	pthread_detach(thread);
	return ncclInProgress;
}

/* Now, or at the end of the group. */
static ncclResult_t begin(const struct birth *birth)
{
	if (!group_depth)
		return bear(birth);
	births[nbirths++] = *birth;
	return ncclSuccess;
}

static ncclResult_t init(
    const char *name, ncclComm_t *newcomm, int nranks, const ncclUniqueId *id, int rank, ncclConfig_t *config)
{
	ncclResult_t result = planned(name);
	struct birth birth = { .ms = config && !config->blocking ? init_late_ms : -1 };
	uint64_t key;

	note("%s %d/%d\n", name, rank, nranks);
	if (!result &&
	    (!newcomm || nranks < 1 || rank < 0 || rank >= nranks || (config && config->magic != 0xcafebeef)))
		result = ncclInvalidArgument;
	if (result)
		return keep(result);
	key = mix(0, id, sizeof(*id));
	birth.ticket = arrive(key, rank, nranks, 0, 0);
	key = mix(key, &birth.ticket.generation, sizeof(birth.ticket.generation));
	*newcomm = birth.child = birth.owner = new_comm(rank, nranks, rank, !config || config->blocking != 0, key);
	return keep(begin(&birth));
}

ncclResult_t ncclCommInitRank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank)
{
	return init("CommInitRank", newcomm, nranks, &id, rank, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	return init("CommInitRankConfig", newcomm, nranks, &id, rank, config);
}

ncclResult_t ncclCommInitRankScalable(
    ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	return init("CommInitRankScalable", newcomm, nranks, ids, rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
	ncclUniqueId id;

	note("CommInitAll %d\n", ndev);
	if (!comms || ndev < 1)
		return ncclInvalidArgument;
	ncclGetUniqueId(&id); /* through the PLT, as the real one */
	for (int i = 0; i < ndev; i++)
		comms[i] = new_comm(i, ndev, devlist ? devlist[i] : i, true, mix(0, &id, sizeof(id)));
	return ncclSuccess;
}

/* mates: how many ranks have to come. rank, nranks: of the child, unless it is a split that the ranks agree on. */
static ncclResult_t child_of(
    const char *name, ncclComm_t parent, ncclComm_t *newcomm, int rank, int nranks, int color, int key, int mates)
{
	ncclResult_t result = planned(name);
	struct birth birth = { .where = newcomm, .owner = parent, .ms = late_ms };
	uint64_t id;

	if (result)
		return keep(result);
	if (!parent || !newcomm || state_of(parent) == ncclInProgress)
		return keep(ncclInvalidArgument);
	*newcomm = NULL;
	id = mix(parent->key, &parent->children, sizeof(parent->children));
	parent->children++;
	birth.ticket = arrive(mix(id, name, strlen(name)), parent->rank, mates, color, key);
	birth.split = birth.ticket.room && mates == parent->nranks;
	birth.old_rank = parent->rank;
	birth.old_nranks = parent->nranks;
	if (color < 0)
		return ncclSuccess;
	birth.child = new_comm(rank, nranks, parent->device, parent->blocking, mix(id, &color, sizeof(color)));
	return keep(begin(&birth));
}

/* Without shared memory there is nobody to ask: a child has half of the parent's ranks and keeps their order. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	note("CommSplit color %d\n", color);
	return child_of("CommSplit", comm, newcomm, comm ? comm->rank / 2 : 0, comm ? (comm->nranks + 1) / 2 : 0, color,
	    key, comm ? comm->nranks : 0);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	int before = 0;

	note("CommShrink %d\n", n);
	for (int i = 0; building() && comm && i < n; i++)
		before += excluded[i] < comm->rank;
	return child_of("CommShrink", comm, newcomm, comm ? comm->rank - before : 0, comm ? comm->nranks - n : 0, 0, 0,
	    comm ? comm->nranks - n : 0);
}

/* What old and new ranks of a growing communicator have in common: it travels in the unique id. */
static uint64_t grow_key(const struct ncclComm *comm)
{
	return mix(mix(comm->key, "grow", 4), &comm->children, sizeof(comm->children));
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
	uint64_t key;

	note("CommGetUniqueId\n");
	if (!alive(comm) || !id)
		return ncclInvalidArgument;
	memset(id, 0, sizeof(*id));
	key = grow_key(comm);
	memcpy(id->internal, &key, sizeof(key));
	return ncclSuccess;
}

ncclResult_t ncclCommGrow(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config)
{
	ncclResult_t result = planned("CommGrow");
	struct birth birth = { .ms = -1 };
	uint64_t key;

	note("CommGrow %d/%d\n", rank, nranks);
	if (!result &&
	    (!newcomm || nranks < 1 ||
	        (comm ? rank != -1 || nranks <= comm->nranks : !id || rank < 0 || rank >= nranks)))
		result = ncclInvalidArgument;
	if (result)
		return keep(result);
	if (comm) {
		key = grow_key(comm);
		comm->children++;
		rank = comm->rank;
	} else {
		memcpy(&key, id->internal, sizeof(key));
	}
	birth.ticket = arrive(key, rank, nranks, 0, 0);
	*newcomm = birth.child = birth.owner =
	    new_comm(rank, nranks, rank, config ? config->blocking != 0 : !comm || comm->blocking, mix(key, "n", 1));
	return keep(begin(&birth));
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
	if (!alive(comm) || !value)
		return ncclInvalidArgument;
	*value = 100;
	return ncclSuccess;
}

static ncclResult_t end(const char *name, ncclComm_t comm, bool dies)
{
	ncclResult_t result = planned(name);

	note("%s\n", name);
	if (result || !comm)
		return result;
	if (!dies)
		return ncclSuccess;
	__atomic_store_n(&comm->aborted, true, __ATOMIC_RELAXED);
	while (state_of(comm) == ncclInProgress) /* a thread of ours has it */
		usleep(100);
	__atomic_store_n(&comm->magic, 0, __ATOMIC_RELEASE);
	pthread_mutex_lock(&lock);
	comm->next_free = free_comms;
	free_comms = comm;
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	return end("CommFinalize", comm, false);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	return end("CommDestroy", comm, true);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	return end("CommAbort", comm, true);
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
	return end("CommRevoke", comm, false);
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
	return end("CommSuspend", comm, false);
}

ncclResult_t ncclCommResume(ncclComm_t comm)
{
	return end("CommResume", comm, false);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	ncclResult_t result = planned("CommGetAsyncError");

	if (result)
		return result;
	if (!alive(comm) || !state)
		return ncclInvalidArgument;
	*state = state_of(comm);
	return ncclSuccess;
}

static ncclResult_t ask(ncclComm_t comm, int value, int *out)
{
	if (alive(comm) && state_of(comm) == ncclInProgress)
		note("asked too early\n"); /* NCCL warns of it */
	if (!alive(comm) || !out || state_of(comm) == ncclInProgress)
		return ncclInvalidArgument;
	*out = value;
	return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return ask(comm, comm ? comm->nranks : 0, count);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return ask(comm, comm ? comm->device : 0, device);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return ask(comm, comm ? comm->rank : 0, rank);
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	note("MemAlloc %zu\n", size);
	*ptr = malloc(size);
	return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
	note("MemFree\n");
	free(ptr);
	return ncclSuccess;
}

/* Handles of windows; those of a group are written at its end. */
static _Thread_local struct {
	ncclWindow_t *where;
	void *base;
} new_windows[16];
static _Thread_local int nnew_windows;
static bool no_windows, windows_unwritten;

void fake_nccl_windows_unwritten(int on)
{
	windows_unwritten = on;
}

void fake_nccl_no_windows(int on)
{
	no_windows = on;
}

static ncclWindow_t window_of(void *base)
{
	return no_windows ? NULL : (ncclWindow_t)((char *)base + 1);
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	ncclResult_t result = planned("CommWindowRegister");

	note("CommWindowRegister %zu %d%s\n", size, flags, group_depth ? " grouped" : "");
	if (!result && (!alive(comm) || !buff || !size || !win))
		result = ncclInvalidArgument;
	if (result)
		return keep(result);
	if (group_depth && nnew_windows < 16) {
		new_windows[nnew_windows].where = win;
		new_windows[nnew_windows++].base = buff;
	} else if (!windows_unwritten) {
		*win = window_of(buff);
	}
	return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	note("CommWindowDeregister %d\n", win != NULL);
	return alive(comm) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **ptr)
{
	note("WinGetUserPtr\n");
	*ptr = win ? (char *)win - 1 : NULL;
	return ncclSuccess;
}

/* NCCL's numbers look like this: a slot mixed with the communicator's address. */
ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
{
	note("RedOpCreatePreMulSum\n");
	if (!op || !scalar || !comm)
		return ncclInvalidArgument;
	*op = (ncclRedOp_t)(0x1000 + comm->next_op++);
	return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	note("RedOpDestroy %d\n", (int)op);
	return ncclSuccess;
}

static ncclResult_t collective(struct fake_call call)
{
	ncclResult_t result = planned(call.name);

	note("%s %zu %d%s\n", call.name, call.count, (int)call.dtype, group_depth ? " grouped" : "");
	pthread_mutex_lock(&lock);
	last_call = call;
	pthread_mutex_unlock(&lock);
	last_error = call.comm ? "fake: last error" : "fake: the communicator is NULL";
	if (!result &&
	    (!alive(call.comm) || state_of(call.comm) == ncclInProgress || (unsigned)call.dtype >= ncclNumTypes))
		result = ncclInvalidArgument;
	if (!result && (unsigned)call.op > 4 && (unsigned)call.op < 0x1000)
		result = ncclInvalidArgument;
	if (!result && group_depth) {
		group_calls++;
		group_comm = call.comm;
	} else if (!result) {
		__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
	}
	return keep(result);
}

int fake_nccl_launches(void)
{
	return __atomic_load_n(&launches, __ATOMIC_RELAXED);
}

struct fake_call fake_nccl_last_call(void)
{
	struct fake_call call;

	pthread_mutex_lock(&lock);
	call = last_call;
	pthread_mutex_unlock(&lock);
	return call;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
    ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "AllReduce", send, recv, count, dtype, op, 0, comm, stream });
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,
    ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "Reduce", send, recv, count, dtype, op, root, comm, stream });
}

ncclResult_t ncclBroadcast(
    const void *send, void *recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "Broadcast", send, recv, count, dtype, 0, root, comm, stream });
}

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	note("Bcast\n");
	return ncclBroadcast(buff, buff, count, dtype, root, comm, stream); /* through the PLT, as the real one */
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
    ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "ReduceScatter", send, recv, count, dtype, op, 0, comm, stream });
}

ncclResult_t ncclAllGather(
    const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "AllGather", send, recv, count, dtype, 0, 0, comm, stream });
}

ncclResult_t ncclSend(
    const void *send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "Send", send, NULL, count, dtype, 0, peer, comm, stream });
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "Recv", NULL, recv, count, dtype, 0, peer, comm, stream });
}

ncclResult_t ncclPutSignal(const void *send, size_t count, ncclDataType_t dtype, int peer, ncclWindow_t win,
    size_t offset, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "PutSignal", send, NULL, count, dtype, 0, peer, comm, stream });
}

ncclResult_t ncclGroupStart(void)
{
	ncclResult_t result = planned("GroupStart");

	note("GroupStart\n");
	if (result)
		return result;
	group_depth++;
	return ncclSuccess;
}

struct late_launch {
	void (*launch)(void *arg);
	void *arg;
	ncclComm_t comm;
};

static void *late_launch_thread(void *arg)
{
	struct late_launch *l = arg;

	usleep(20000);
	l->launch(l->arg);
	__atomic_store_n(&l->comm->state, ncclSuccess, __ATOMIC_RELEASE);
	free(l);
	return NULL;
}

/*
 * In the place of what the group launches: here and now, or where the communicator does not block from a thread of our
 * own, a while later.
 */
static ncclResult_t launch(void)
{
	struct late_launch *l;
	pthread_t thread;

	if (group_comm->blocking) {
		at_launch(at_launch_arg);
		return ncclSuccess;
	}
	__atomic_store_n(&group_comm->state, ncclInProgress, __ATOMIC_RELEASE);
	l = malloc(sizeof(*l));
	*l = (struct late_launch){ at_launch, at_launch_arg, group_comm };
	pthread_create(&thread, NULL, late_launch_thread, l);
	pthread_detach(thread);
	return ncclInProgress;
}

static ncclResult_t group_end(const char *name)
{
	ncclResult_t result = planned(name);

	note("%s\n", name);
	if (!group_depth)
		return ncclInvalidUsage;
	if (--group_depth)
		return ncclSuccess;
	if (!result)
		result = group_error;
	group_error = ncclSuccess;
	if (!result && !strcmp(name, "GroupEnd"))
		__atomic_add_fetch(&launches, group_calls, __ATOMIC_RELAXED);
	if (!result && group_calls && at_launch)
		result = launch();
	group_calls = 0;
	for (int i = 0; i < nbirths; i++) {
		ncclResult_t born = result && result != ncclInProgress ? result : bear(&births[i]);
		if (born)
			result = born;
	}
	nbirths = 0;
	for (int i = 0; i < nnew_windows && !result; i++)
		*new_windows[i].where = window_of(new_windows[i].base);
	nnew_windows = 0;
	return result;
}

ncclResult_t ncclGroupEnd(void)
{
	return group_end("GroupEnd");
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	return group_end("GroupSimulateEnd");
}

#pragma GCC visibility push(default)
fake_nccl_16_args ncclParamBind;
fake_nccl_team ncclTeamWorld;
fake_nccl_large ncclGetPeerDevicePointer;
#pragma GCC visibility pop

double ncclParamBind(long a, long b, long c, long d, long e, long f, long g, long h, double p, double q, double r,
    double s, double t, double u, double v, double w)
{
	return (double)(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h) + 100 * p + 200 * q + 300 * r +
	    400 * s + 500 * t + 600 * u + 700 * v + 800 * w;
}

struct fake_team ncclTeamWorld(ncclComm_t comm)
{
	return (struct fake_team){ comm->nranks, comm->rank, 1 };
}

struct fake_large ncclGetPeerDevicePointer(long a, double b)
{
	return (struct fake_large){ { a, (long)b, 3, 4, 5 } };
}

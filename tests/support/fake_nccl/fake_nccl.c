/* SPDX-License-Identifier: MIT */
#include "tools/common/libc.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "shim/nccl/coll_params.h"
#include "tests/support/pause.h"

#ifndef VERSION
#define VERSION 22809
#endif

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
static int child_delay_ms = -1, init_delay_ms = -1;
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

#define NBARRIERS 256
#define BARRIER_RANKS 16
#define BARRIER_TIMEOUT_S 120

struct barrier {
	uint64_t key; /* 0: a free place */
	int arrived, left;
	unsigned generation; /* of no other barrier, and another one when all have come */
	int values[BARRIER_RANKS][2];
};

struct shared_memory {
	int lock;
	unsigned generations;
	struct barrier barriers[NBARRIERS];
};
_Static_assert(sizeof(struct shared_memory) <= FAKE_NCCL_SHARED_BYTES, "what the tests reserve");

struct arrival {
	struct barrier *barrier; /* NULL: nobody is to be met */
	unsigned generation;
	int nranks;
};

static struct shared_memory *file;

static void map_file(void)
{
	int fd = open(getenv("FAKE_NCCL_SHARED"), O_RDWR | O_CLOEXEC);
	void *at = mmap(NULL, FAKE_NCCL_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	file = at == MAP_FAILED ? NULL : at;
	close(fd);
}

/* Memory that all ranks share, or NULL: then nobody waits for anybody. */
static struct shared_memory *shared_memory(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *text = getenv("FAKE_NCCL_SHARED");

	if (!text || *text != '/')
		return text ? (struct shared_memory *)(uintptr_t)strtoull(text, NULL, 16) : NULL;
	pthread_once(&once, map_file);
	return file;
}

static void hold(const char *name)
{
	const char *held = getenv("FAKE_NCCL_HOLD");

	while (held && !strcmp(held, name))
		pause();
}

static uint64_t hash_mix(uint64_t hash, const void *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
	return hash | 1;
}

static void lock_shared(struct shared_memory *all)
{
	while (__atomic_exchange_n(&all->lock, 1, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 10);
}

static void unlock_shared(struct shared_memory *all)
{
	__atomic_store_n(&all->lock, 0, __ATOMIC_RELEASE);
}

/* The barrier with this key, or a free one, which gets it. */
static struct barrier *find_barrier(struct shared_memory *all, uint64_t key)
{
	struct barrier *found = NULL;

	for (int i = 0; i < NBARRIERS; i++) {
		struct barrier *b = &all->barriers[i];

		if (b->key == key)
			return b;
		if (!found && !b->key)
			found = b;
	}
	if (!found) {
		fprintf(stderr, "fake NCCL: more than %d communicators are being made\n", NBARRIERS);
		abort(); /* an init that did not wait would be another NCCL */
	}
	found->key = key;
	found->arrived = found->left = 0;
	found->generation = ++all->generations;
	return found;
}

/* One of nranks has come, and says two numbers that the others can read. */
static struct arrival arrive(uint64_t key, int rank, int nranks, int a, int b)
{
	struct shared_memory *all = shared_memory();
	struct arrival t = { .nranks = nranks };

	if (!all || rank >= BARRIER_RANKS)
		return t;
	lock_shared(all);
	t.barrier = find_barrier(all, key);
	t.generation = t.barrier->generation;
	t.barrier->values[rank][0] = a;
	t.barrier->values[rank][1] = b;
	if (++t.barrier->arrived == nranks) {
		t.barrier->arrived = 0;
		__atomic_store_n(&t.barrier->generation, ++all->generations, __ATOMIC_RELEASE);
	}
	unlock_shared(all);
	return t;
}

/* This rank looks at the barrier no more. The last one frees it, unless one has come to it again. */
static void leave_barrier(const struct arrival *t)
{
	struct shared_memory *all = shared_memory();

	if (!t->barrier)
		return;
	lock_shared(all);
	if (++t->barrier->left == t->nranks) {
		t->barrier->left = 0;
		t->barrier->key = t->barrier->arrived ? t->barrier->key : 0;
	}
	unlock_shared(all);
}

/* False if they do not come, or if comm is aborted. */
static bool wait_for_all(const struct arrival *t, const struct ncclComm *comm)
{
	struct timespec now, end_comm;

	clock_gettime(CLOCK_MONOTONIC, &end_comm);
	end_comm.tv_sec += BARRIER_TIMEOUT_S;
	while (t->barrier && __atomic_load_n(&t->barrier->generation, __ATOMIC_ACQUIRE) == t->generation) {
		pause_us(PAUSE_POLL, 200);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec > end_comm.tv_sec || __atomic_load_n(&comm->aborted, __ATOMIC_RELAXED))
			return false;
	}
	return true;
}

/* A communicator that is not complete yet. */
struct comm_init {
	ncclComm_t *where; /* children: gets the handle once it is */
	ncclComm_t child;
	ncclComm_t owner; /* whose state tells: the parent, or the new communicator itself */
	int ms;           /* it takes so long; -1: no time */
	struct arrival arrival;
	bool split; /* place and size follow from the ranks' values */
	int old_rank, old_nranks;
};
/* Those of the open group: completed when it ends. */
static _Thread_local struct comm_init comm_inits[16];
static _Thread_local int ncomm_inits;

static void log_call(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void log_call(const char *format, ...)
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
	child_delay_ms = init_delay_ms = -1;
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
	child_delay_ms = ms;
}

void fake_nccl_init_late(int ms)
{
	init_delay_ms = ms;
}

void fake_nccl_at_launch(void (*launch)(void *arg), void *arg)
{
	at_launch = launch;
	at_launch_arg = arg;
}

/* As ncclGroupErrCheck: an error sticks to an open group. */
static ncclResult_t keep_error(ncclResult_t result)
{
	if (group_depth && !group_error && result != ncclInProgress)
		group_error = result;
	return result;
}

static ncclResult_t injected_result(const char *name)
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
	*version = getenv("FAKE_NCCL_VERSION") ? atoi(getenv("FAKE_NCCL_VERSION")) : VERSION;
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
	log_call("ResetDebugInit\n");
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	log_call("GetUniqueId\n");
	if (!id)
		return ncclInvalidArgument;
	memset(id, 0, sizeof(*id));
	if (getenv("NCCL_COMM_ID")) { /* nothing but the variable counts, whoever asks and how often */
		uint64_t magic = SHUNT_NCCL_COMM_MAGIC,
		         hash = hash_mix(0, getenv("NCCL_COMM_ID"), strlen(getenv("NCCL_COMM_ID")));

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

static bool comm_is_alive(const struct ncclComm *comm)
{
	return comm && __atomic_load_n(&comm->magic, __ATOMIC_ACQUIRE) == SHUNT_NCCL_COMM_MAGIC;
}

static ncclResult_t state_of(const struct ncclComm *comm)
{
	return __atomic_load_n(&comm->state, __ATOMIC_ACQUIRE);
}

/* Finds this rank's place among those of the same colour, by key and then by old rank. */
static void split_rank(const struct comm_init *b)
{
	int (*values)[2] = b->arrival.barrier->values, me = b->old_rank;

	b->child->rank = b->child->nranks = 0;
	for (int r = 0; r < b->old_nranks; r++) {
		if (values[r][0] != values[me][0])
			continue;
		b->child->nranks++;
		if (values[r][1] < values[me][1] || (values[r][1] == values[me][1] && r < me))
			b->child->rank++;
	}
}

static ncclResult_t init_complete(const struct comm_init *b)
{
	bool ok;

	while (b->ms == FAKE_NCCL_UNTIL_TOLD && !__atomic_load_n(&b->owner->aborted, __ATOMIC_RELAXED) &&
	    (__atomic_load_n(&init_delay_ms, __ATOMIC_RELAXED) == b->ms ||
	        __atomic_load_n(&child_delay_ms, __ATOMIC_RELAXED) == b->ms))
		pause_us(PAUSE_POLL, 100);
	if (b->ms > 0 && b->ms != FAKE_NCCL_UNTIL_TOLD)
		pause_us(PAUSE_LATE, 1000 * (unsigned)b->ms);
	ok = wait_for_all(&b->arrival, b->owner);
	if (ok && b->split)
		split_rank(b);
	if (ok)
		leave_barrier(&b->arrival);
	if (ok && b->where)
		__atomic_store_n(b->where, b->child, __ATOMIC_RELEASE);
	__atomic_store_n(&b->owner->state, ok ? ncclSuccess : ncclSystemError, __ATOMIC_RELEASE);
	return ok ? ncclSuccess : ncclSystemError;
}

static void *init_complete_thread(void *arg)
{
	init_complete(arg);
	free(arg);
	return NULL;
}

/* Here and now, or by a thread of our own. */
static ncclResult_t init_start(const struct comm_init *comm_init)
{
	struct comm_init *b;
	pthread_t thread;

	if (comm_init->ms < 0 && comm_init->owner->blocking)
		return init_complete(comm_init);
	__atomic_store_n(&comm_init->owner->state, ncclInProgress, __ATOMIC_RELEASE);
	b = malloc(sizeof(*b));
	*b = *comm_init;
	pthread_create(&thread, NULL, init_complete_thread, b);
	pthread_detach(thread);
	return ncclInProgress;
}

/* Now, or at the end of the group. */
static ncclResult_t init_defer(const struct comm_init *comm_init)
{
	if (!group_depth)
		return init_start(comm_init);
	comm_inits[ncomm_inits++] = *comm_init;
	return ncclSuccess;
}

static ncclResult_t init_comm(
    const char *name, ncclComm_t *newcomm, int nranks, const ncclUniqueId *id, int rank, ncclConfig_t *config)
{
	ncclResult_t result = injected_result(name);
	struct comm_init comm_init = { .ms = config && !config->blocking ? init_delay_ms : -1 };
	uint64_t key;

	log_call("%s %d/%d\n", name, rank, nranks);
	if (!result &&
	    (!newcomm || nranks < 1 || rank < 0 || rank >= nranks || (config && config->magic != 0xcafebeef)))
		result = ncclInvalidArgument;
	if (result)
		return keep_error(result);
	key = hash_mix(0, id, sizeof(*id));
	comm_init.arrival = arrive(key, rank, nranks, 0, 0);
	key = hash_mix(key, &comm_init.arrival.generation, sizeof(comm_init.arrival.generation));
	*newcomm = comm_init.child = comm_init.owner =
	    new_comm(rank, nranks, rank, !config || config->blocking != 0, key);
	return keep_error(init_defer(&comm_init));
}

ncclResult_t ncclCommInitRank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank)
{
	hold("CommInitRank");
	return init_comm("CommInitRank", newcomm, nranks, &id, rank, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	return init_comm("CommInitRankConfig", newcomm, nranks, &id, rank, config);
}

ncclResult_t ncclCommInitRankScalable(
    ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	return init_comm("CommInitRankScalable", newcomm, nranks, ids, rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
	ncclUniqueId id;

	log_call("CommInitAll %d\n", ndev);
	if (!comms || ndev < 1)
		return ncclInvalidArgument;
	ncclGetUniqueId(&id); /* through the PLT, as the real one */
	for (int i = 0; i < ndev; i++)
		comms[i] = new_comm(i, ndev, devlist ? devlist[i] : i, true, hash_mix(0, &id, sizeof(id)));
	return ncclSuccess;
}

/* nmembers: how many ranks have to come. rank, nranks: of the child, unless it is a split that the ranks agree on. */
static ncclResult_t create_child(
    const char *name, ncclComm_t parent, ncclComm_t *newcomm, int rank, int nranks, int color, int key, int nmembers)
{
	ncclResult_t result = injected_result(name);
	struct comm_init comm_init = { .where = newcomm, .owner = parent, .ms = child_delay_ms };
	uint64_t id;

	if (result)
		return keep_error(result);
	if (!parent || !newcomm || state_of(parent) == ncclInProgress)
		return keep_error(ncclInvalidArgument);
	*newcomm = NULL;
	id = hash_mix(parent->key, &parent->children, sizeof(parent->children));
	parent->children++;
	comm_init.arrival = arrive(hash_mix(id, name, strlen(name)), parent->rank, nmembers, color, key);
	comm_init.split = comm_init.arrival.barrier && nmembers == parent->nranks;
	comm_init.old_rank = parent->rank;
	comm_init.old_nranks = parent->nranks;
	if (color < 0) {
		leave_barrier(&comm_init.arrival);
		return ncclSuccess;
	}
	comm_init.child = new_comm(rank, nranks, parent->device, parent->blocking, hash_mix(id, &color, sizeof(color)));
	return keep_error(init_defer(&comm_init));
}

/* Without shared memory there is nobody to query: a child has half of the parent's ranks and keeps their order. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	ncclResult_t result;

	log_call("CommSplit color %d\n", color);
	result = create_child("CommSplit", comm, newcomm, comm ? comm->rank / 2 : 0, comm ? (comm->nranks + 1) / 2 : 0,
	    color, key, comm ? comm->nranks : 0);
	hold("CommSplit"); /* the other ranks return */
	return result;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	int before = 0;

	log_call("CommShrink %d\n", n);
	for (int i = 0; shared_memory() && comm && i < n; i++)
		before += excluded[i] < comm->rank;
	return create_child("CommShrink", comm, newcomm, comm ? comm->rank - before : 0, comm ? comm->nranks - n : 0, 0,
	    0, comm ? comm->nranks - n : 0);
}

/* What old and new ranks of a growing communicator have in common: it travels in the unique id. */
static uint64_t grow_key(const struct ncclComm *comm)
{
	return hash_mix(hash_mix(comm->key, "grow", 4), &comm->children, sizeof(comm->children));
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
	uint64_t key;

	log_call("CommGetUniqueId\n");
	if (!comm_is_alive(comm) || !id || state_of(comm) == ncclInProgress)
		return ncclInvalidArgument;
	memset(id, 0, sizeof(*id));
	key = grow_key(comm);
	memcpy(id->internal, &key, sizeof(key));
	return ncclSuccess;
}

ncclResult_t ncclCommGrow(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config)
{
	ncclResult_t result = injected_result("CommGrow");
	struct comm_init comm_init = { .ms = -1 };
	uint64_t key;

	log_call("CommGrow %d/%d\n", rank, nranks);
	if (!result &&
	    (!newcomm || nranks < 1 ||
	        (comm ? rank != -1 || nranks <= comm->nranks : !id || rank < 0 || rank >= nranks)))
		result = ncclInvalidArgument;
	if (result)
		return keep_error(result);
	if (comm) {
		key = grow_key(comm);
		comm->children++;
		rank = comm->rank;
	} else {
		memcpy(&key, id->internal, sizeof(key));
	}
	comm_init.arrival = arrive(key, rank, nranks, 0, 0);
	*newcomm = comm_init.child = comm_init.owner = new_comm(
	    rank, nranks, rank, config ? config->blocking != 0 : !comm || comm->blocking, hash_mix(key, "n", 1));
	return keep_error(init_defer(&comm_init));
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
	if (!comm_is_alive(comm) || !value || state_of(comm) == ncclInProgress)
		return ncclInvalidArgument;
	*value = 100;
	return ncclSuccess;
}

static ncclResult_t end_comm(const char *name, ncclComm_t comm, bool frees)
{
	ncclResult_t result = injected_result(name);

	log_call("%s\n", name);
	if (result || !comm)
		return result;
	if (state_of(comm) == ncclInProgress && strcmp(name, "CommAbort") && strcmp(name, "CommRevoke"))
		return ncclInvalidArgument;
	if (!frees)
		return ncclSuccess;
	__atomic_store_n(&comm->aborted, true, __ATOMIC_RELAXED);
	while (state_of(comm) == ncclInProgress) /* a thread of ours has it */
		pause_us(PAUSE_POLL, 100);
	__atomic_store_n(&comm->magic, 0, __ATOMIC_RELEASE);
	pthread_mutex_lock(&lock);
	comm->next_free = free_comms;
	free_comms = comm;
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

#define COMM_END(name, frees, ...) \
	ncclResult_t nccl##name(__VA_ARGS__) \
	{ \
		return end_comm(#name, comm, frees); \
	}
COMM_END(CommFinalize, false, ncclComm_t comm)
COMM_END(CommDestroy, true, ncclComm_t comm)
COMM_END(CommAbort, true, ncclComm_t comm)
COMM_END(CommRevoke, false, ncclComm_t comm, int flags)
COMM_END(CommSuspend, false, ncclComm_t comm, int flags)
COMM_END(CommResume, false, ncclComm_t comm)

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	ncclResult_t result = injected_result("CommGetAsyncError");

	if (result)
		return result;
	if (!comm_is_alive(comm) || !state)
		return ncclInvalidArgument;
	*state = state_of(comm);
	return ncclSuccess;
}

static ncclResult_t query(ncclComm_t comm, int value, int *out)
{
	if (comm_is_alive(comm) && state_of(comm) == ncclInProgress)
		log_call("asked too early\n"); /* NCCL warns of it */
	if (!comm_is_alive(comm) || !out || state_of(comm) == ncclInProgress)
		return ncclInvalidArgument;
	*out = value;
	return ncclSuccess;
}

#define QUERY(name, field) \
	ncclResult_t nccl##name(const ncclComm_t comm, int *value) \
	{ \
		return query(comm, comm ? comm->field : 0, value); \
	}
QUERY(CommCount, nranks)
QUERY(CommCuDevice, device)
QUERY(CommUserRank, rank)

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	log_call("MemAlloc %zu\n", size);
	*ptr = malloc(size);
	return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
	log_call("MemFree\n");
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
	ncclResult_t result = injected_result("CommWindowRegister");

	log_call("CommWindowRegister %zu %d%s\n", size, flags, group_depth ? " grouped" : "");
	if (!result && (!comm_is_alive(comm) || !buff || !size || !win))
		result = ncclInvalidArgument;
	if (result)
		return keep_error(result);
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
	log_call("CommWindowDeregister %d\n", win != NULL);
	return comm_is_alive(comm) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **ptr)
{
	log_call("WinGetUserPtr\n");
	*ptr = win ? (char *)win - 1 : NULL;
	return ncclSuccess;
}

/* As NCCL's, which are a slot mixed with the communicator's address, numbers come from anywhere. */
ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
{
	log_call("RedOpCreatePreMulSum\n");
	if (!op || !scalar || !comm || state_of(comm) == ncclInProgress)
		return ncclInvalidArgument;
	*op = (ncclRedOp_t)((comm->next_op & 1 ? 0x60000000 : 0x1000) + comm->next_op);
	comm->next_op++;
	return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	log_call("RedOpDestroy %d\n", (int)op);
	return ncclSuccess;
}

static ncclResult_t collective(struct fake_call call)
{
	ncclResult_t result = injected_result(call.name);

	log_call("%s %zu %d%s\n", call.name, call.count, (int)call.dtype, group_depth ? " grouped" : "");
	pthread_mutex_lock(&lock);
	last_call = call;
	pthread_mutex_unlock(&lock);
	last_error = call.comm ? "fake: last error" : "fake: the communicator is NULL";
	if (!result &&
	    (!comm_is_alive(call.comm) || state_of(call.comm) == ncclInProgress ||
	        (unsigned)call.dtype >= ncclNumTypes))
		result = ncclInvalidArgument;
	if (!result && (unsigned)call.op > 4 && (unsigned)call.op < 0x1000)
		result = ncclInvalidArgument;
	if (!result && group_depth) {
		group_calls++;
		group_comm = call.comm;
	} else if (!result) {
		__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
	}
	return keep_error(result);
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

#define COLLECTIVE(name, ranks, operator) \
	ncclResult_t nccl##name(SHUNT_COLL_PARAMS(ranks, operator)) \
	{ \
		hold(#name); \
		return collective((struct fake_call){ #name, SHUNT_COLL_VALUES(ranks, operator), comm, stream }); \
	}
COLLECTIVE(AllReduce, ALL, REDUCES)
COLLECTIVE(Reduce, TO_ROOT, REDUCES)
COLLECTIVE(Broadcast, FROM_ROOT, MOVES)
COLLECTIVE(ReduceScatter, ALL, REDUCES)
COLLECTIVE(AllGather, ALL, MOVES)
COLLECTIVE(Send, TO_PEER, MOVES)
COLLECTIVE(Recv, FROM_PEER, MOVES)

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	log_call("Bcast\n");
	return ncclBroadcast(buff, buff, count, dtype, root, comm, stream); /* through the PLT, as the real one */
}

ncclResult_t ncclPutSignal(const void *send, size_t count, ncclDataType_t dtype, int peer, ncclWindow_t win,
    size_t offset, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
	return collective((struct fake_call){ "PutSignal", send, NULL, count, dtype, 0, peer, comm, stream });
}

ncclResult_t ncclGroupStart(void)
{
	ncclResult_t result = injected_result("GroupStart");

	log_call("GroupStart\n");
	if (result)
		return result;
	group_depth++;
	return ncclSuccess;
}

struct delayed_launch {
	void (*launch)(void *arg);
	void *arg;
	ncclComm_t comm;
};

static void *delayed_launch_thread(void *arg)
{
	struct delayed_launch *l = arg;

	pause_us(PAUSE_LATE, 20000);
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
	struct delayed_launch *l;
	pthread_t thread;

	if (group_comm->blocking) {
		at_launch(at_launch_arg);
		return ncclSuccess;
	}
	__atomic_store_n(&group_comm->state, ncclInProgress, __ATOMIC_RELEASE);
	l = malloc(sizeof(*l));
	*l = (struct delayed_launch){ at_launch, at_launch_arg, group_comm };
	pthread_create(&thread, NULL, delayed_launch_thread, l);
	pthread_detach(thread);
	return ncclInProgress;
}

static ncclResult_t group_end(const char *name)
{
	ncclResult_t result = injected_result(name);

	log_call("%s\n", name);
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
	for (int i = 0; i < ncomm_inits; i++) {
		ncclResult_t born = result && result != ncclInProgress ? result : init_start(&comm_inits[i]);
		if (born)
			result = born;
	}
	ncomm_inits = 0;
	for (int i = 0; i < nnew_windows && !result; i++)
		*new_windows[i].where = window_of(new_windows[i].base);
	nnew_windows = 0;
	return result;
}

ncclResult_t ncclGroupEnd(void)
{
	hold("GroupEnd");
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

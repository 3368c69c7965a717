/* SPDX-License-Identifier: MIT */
#include "comm/observe/recorder.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/id.h"
#include "base/lock.h"
#include "base/os.h"
#include "comm/observe/counters.h"
#include "comm/observe/marks.h"
#include "comm/observe/thread_note.h"
#include "comm/parts/comm_registry.h"

#define MAX_COUNTED_PEERS 1024
#define READ_STACK_BYTES \
	(256u << 10) /* for the driver, profilers in it, and the thread-local memory of all libraries */

/* One operation in one cache line. seq is 0 while the rest is being written, and is written last. */
enum { SEQ, NUMBER, COUNT, TIME, STREAM, PATH, KINDS, LEFT, WORDS };
struct entry {
	_Alignas(64) atomic_uint_fast64_t word[WORDS];
};

struct ring {
	_Atomic(struct entry *) entries; /* SHUNT_RECORDER_OPERATIONS of them; NULL before the first operation */
	atomic_uint_fast64_t next;
};

struct shunt_recorder {
	atomic_uint users; /* the communicator and its readers */
	char id[9], key[17];
	atomic_int rank, nranks, device, error;
	atomic_uint_fast64_t calls, collectives;
	atomic_uint_fast64_t last_eager;     /* kargs.op */
	atomic_uint_fast64_t tag;            /* the bytes of key as a number */
	atomic_uint_fast64_t last_forwarded; /* seq */
	atomic_int nccl_result;
	struct shunt_marks marks;
	struct ring eager, captured;
	_Atomic(atomic_uint *) peers; /* [2][nranks]: sent to, received from; NULL: not counted */
	_Atomic(const char *) phase;
	atomic_uint_fast64_t phase_ns;

	atomic_bool left;           /* a reading thread hangs: do not start another one */
	struct shunt_mutex reading; /* held while the device is read; taken before `lock` */
	struct shunt_mutex lock;    /* of the members below */
	const struct shunt_gpu_ops *gpu;
	const struct shunt_ctrl *ctrl;
	const struct shunt_host_ctrl *words;
	uint8_t rank_of[64];
	unsigned nordinals;       /* 0: rank_of is not used */
	struct shunt_fault found; /* by shunt_recorder_found */
	const struct shunt_counters_table *counters;
	struct shunt_progress seen; /* what a reader found last, when there were seen_calls */
	uint64_t seen_calls;
	bool sim, forward, over_hosts;
	char reason[160];
};

/* The device's words on the way to a reader. The last of the two threads frees it. */
struct device_read {
	struct shunt_recorder *rec;
	struct shunt_mutex lock;
	pthread_cond_t is_done;
	unsigned users;
	bool done, only_progress;
	struct shunt_ctrl *ctrl; /* NULL: it could not be read */
};

struct shunt_recorder *shunt_recorder_create(const uint8_t id[16])
{
	struct shunt_recorder *rec = calloc(1, sizeof(*rec));

	if (!rec)
		return NULL;
	atomic_init(&rec->rank, -1);
	atomic_init(&rec->nranks, -1);
	atomic_init(&rec->device, -1);
	atomic_init(&rec->users, 1);
	shunt_mutex_init(&rec->reading, SHUNT_LOCK_READING);
	shunt_mutex_init(&rec->lock, SHUNT_LOCK_RECORDER);
	shunt_recorder_set_id(rec, id);
	return rec;
}

void shunt_recorder_set_id(struct shunt_recorder *rec, const uint8_t id[16])
{
	uint8_t mac[SHUNT_MAC_BYTES];

	if (!rec)
		return;
	shunt_mac(mac, shunt_bytes(id, 16), "shunt dump", (struct shunt_bytes){ 0 }, (struct shunt_bytes){ 0 });
	shunt_mutex_lock(&rec->lock);
	snprintf(rec->id, sizeof(rec->id), "%s", shunt_id_text(id).s);
	uint64_t tag = 0;
	for (int i = 0; i < 8; i++)
		tag = tag << 8 | mac[i];
	snprintf(rec->key, sizeof(rec->key), "%016" PRIx64, tag);
	atomic_store_explicit(&rec->tag, tag, memory_order_relaxed);
	shunt_mutex_unlock(&rec->lock);
}

uint64_t shunt_recorder_tag(const struct shunt_recorder *rec)
{
	return rec ? atomic_load_explicit(&rec->tag, memory_order_relaxed) : 0;
}

void shunt_recorder_set_rank(struct shunt_recorder *rec, int rank, int nranks, int device)
{
	if (!rec)
		return;
	atomic_store(&rec->rank, rank);
	atomic_store(&rec->device, device);
	if (nranks > 0 && nranks <= MAX_COUNTED_PEERS && !atomic_load(&rec->peers))
		atomic_store(&rec->peers, calloc(2 * (size_t)nranks, sizeof(atomic_uint)));
	atomic_store(&rec->nranks, nranks); /* last: a thread that sees it sees peers */
}

void shunt_recorder_over_hosts(struct shunt_recorder *rec, const uint8_t *rank_of, unsigned n)
{
	if (!rec)
		return;
	shunt_mutex_lock(&rec->lock);
	rec->over_hosts = true;
	rec->nordinals = rank_of && n <= sizeof(rec->rank_of) ? n : 0;
	if (rec->nordinals)
		memcpy(rec->rank_of, rank_of, n);
	shunt_mutex_unlock(&rec->lock);
}

void shunt_recorder_ready(struct shunt_recorder *rec, const struct shunt_gpu_ops *gpu, const struct shunt_ctrl *ctrl,
    const struct shunt_host_ctrl *words)
{
	struct shunt_gpu_info info = { 0 };

	if (!rec)
		return;
	gpu->device_info(atomic_load(&rec->device), &info);
	shunt_mutex_lock(&rec->lock);
	rec->gpu = gpu;
	rec->ctrl = ctrl;
	rec->words = words;
	rec->sim = info.sim;
	shunt_mutex_unlock(&rec->lock);
}

void shunt_recorder_found(struct shunt_recorder *rec, const struct shunt_fault *fault)
{
	if (!rec)
		return;
	shunt_mutex_lock(&rec->lock);
	if (!rec->found.set)
		rec->found = *fault;
	shunt_mutex_unlock(&rec->lock);
}

void shunt_recorder_unready(struct shunt_recorder *rec)
{
	if (!rec)
		return;
	shunt_mutex_lock(&rec->reading);
	shunt_mutex_lock(&rec->lock);
	rec->ctrl = NULL;
	rec->words = NULL;
	shunt_mutex_unlock(&rec->lock);
	shunt_mutex_unlock(&rec->reading);
}

void shunt_recorder_phase(struct shunt_recorder *rec, const char *phase)
{
	if (!rec)
		return;
	atomic_store_explicit(&rec->phase_ns, shunt_inside_clock(), memory_order_relaxed);
	atomic_store_explicit(&rec->phase, phase, memory_order_release);
}

void shunt_recorder_forward(struct shunt_recorder *rec, const char *reason)
{
	if (!rec)
		return;
	shunt_mutex_lock(&rec->lock);
	rec->forward = true;
	snprintf(rec->reason, sizeof(rec->reason), "%s", reason);
	shunt_mutex_unlock(&rec->lock);
}

bool shunt_recorder_error(struct shunt_recorder *rec, int err)
{
	int none = 0;

	return rec && atomic_compare_exchange_strong(&rec->error, &none, err);
}

struct shunt_recorder *shunt_recorder_ref(struct shunt_recorder *rec)
{
	atomic_fetch_add(&rec->users, 1);
	return rec;
}

void shunt_recorder_unref(struct shunt_recorder *rec)
{
	if (atomic_fetch_sub(&rec->users, 1) > 1)
		return;
	shunt_marks_close(&rec->marks);
	shunt_mutex_destroy(&rec->lock);
	shunt_mutex_destroy(&rec->reading);
	free(atomic_load(&rec->eager.entries));
	free(atomic_load(&rec->captured.entries));
	free(atomic_load(&rec->peers));
	free(rec);
}

struct shunt_recorder *shunt_recorder_detach(struct shunt_recorder *rec)
{
	if (!rec)
		return NULL;
	if (atomic_load(&rec->users) >
	    1) /* perhaps of the device, which may not answer: an abort must not wait for that */
		return rec;
	shunt_recorder_unref(rec);
	return NULL;
}

void shunt_recorder_set_counters(struct shunt_recorder *rec, const struct shunt_counters_table *counters)
{
	if (!rec)
		return;
	shunt_mutex_lock(&rec->lock);
	rec->counters = counters;
	shunt_mutex_unlock(&rec->lock);
}

void shunt_recorder_destroy(struct shunt_recorder *rec)
{
	if (!rec)
		return;
	shunt_recorder_unready(rec);
	shunt_recorder_set_counters(rec, NULL);
	shunt_recorder_unref(rec);
}

void shunt_recorder_visit(void (*fn)(struct shunt_recorder *rec, void *arg), void *arg)
{
	struct shunt_recorder **all;
	size_t n = 0;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	for (struct shunt_registration *r = shunt_registry_first(); r; r = r->next)
		n += r->recorder != NULL;
	all = malloc((n + 1) * sizeof(*all));
	n = 0;
	for (struct shunt_registration *r = shunt_registry_first(); all && r; r = r->next)
		if (r->recorder)
			all[n++] = shunt_recorder_ref(r->recorder);
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	while (n) {
		fn(all[--n], arg);
		shunt_recorder_unref(all[n]);
	}
	free(all);
}

/* ---- writing */

static struct entry *entries_make(struct ring *ring)
{
	struct entry *none = NULL, *made = aligned_alloc(64, SHUNT_RECORDER_OPERATIONS * sizeof(*made));

	if (!made)
		return NULL;
	memset(made, 0, SHUNT_RECORDER_OPERATIONS * sizeof(*made));
	if (atomic_compare_exchange_strong(&ring->entries, &none, made))
		return made;
	free(made);
	return none;
}

static uint64_t number_of(struct shunt_recorder *rec, const struct shunt_coll *coll)
{
	int nranks = atomic_load_explicit(&rec->nranks, memory_order_relaxed);
	atomic_uint *peers;

	if (!shunt_kind_is_p2p(coll->kind))
		return atomic_fetch_add_explicit(&rec->collectives, 1, memory_order_relaxed) + 1;
	peers = atomic_load_explicit(&rec->peers, memory_order_acquire);
	if (!peers || coll->root < 0 || coll->root >= nranks)
		return 0;
	return atomic_fetch_add_explicit(
	           &peers[(coll->kind == SHUNT_RECV ? nranks : 0) + coll->root], 1, memory_order_relaxed) +
	    1;
}

/* Inline: most callers need no time. */
__attribute__((always_inline)) static inline uint64_t record_operation(struct shunt_recorder *rec,
    const struct shunt_coll *coll, const char *path, enum shunt_reason reason, unsigned left, bool captured,
    uint64_t *time_p)
{
	struct ring *ring;
	struct entry *entries, *e;
	uint64_t seq, number, kinds;

	*time_p = 0;
	if (!rec)
		return 0;
	ring = captured ? &rec->captured : &rec->eager;
	seq = atomic_fetch_add_explicit(&rec->calls, 1, memory_order_relaxed) + 1;
	number = number_of(rec, coll);
	entries = atomic_load_explicit(&ring->entries, memory_order_acquire);
	if (!entries && !(entries = entries_make(ring)))
		goto out;
	/*
	 * Release: a thread that sees a captured operation also sees the objects that its stream's order made for the
	 * capture.
	 */
	e = &entries[atomic_fetch_add_explicit(&ring->next, 1, memory_order_release) % SHUNT_RECORDER_OPERATIONS];
	kinds = (uint64_t)coll->kind | (uint64_t)coll->dtype << 8 | (uint64_t)coll->redop << 16 |
	    (uint64_t)reason << 24 | (uint64_t)(uint32_t)coll->root << 32;
	/* A reader that sees one of these words also sees the 0 before it, and skips the entry. */
	atomic_store_explicit(&e->word[SEQ], 0, memory_order_relaxed);
#define PUT(at, value) atomic_store_explicit(&e->word[at], (uint64_t)(value), memory_order_release)
	PUT(NUMBER, number);
	PUT(COUNT, coll->count);
	PUT(TIME, *time_p = shunt_inside_clock());
	PUT(STREAM, (uintptr_t)coll->stream);
	PUT(PATH, (uintptr_t)path);
	PUT(KINDS, kinds);
	PUT(LEFT, left);
	PUT(SEQ, seq);
#undef PUT
out:
	return (seq + left) | (captured ? SHUNT_OP_CAPTURED : 0);
}

uint64_t shunt_recorder_pass(struct shunt_recorder *rec, bool captured)
{
	if (!rec)
		return 0;
	return (atomic_fetch_add_explicit(&rec->calls, 1, memory_order_relaxed) + 1) |
	    (captured ? SHUNT_OP_CAPTURED : 0);
}

uint64_t shunt_recorder_add(
    struct shunt_recorder *rec, const struct shunt_coll *coll, const char *path, unsigned left, bool captured)
{
	uint64_t time, op = record_operation(rec, coll, path, SHUNT_REASON_NONE, left, captured, &time);

	if (rec && !captured)
		atomic_store_explicit(&rec->last_eager, op, memory_order_relaxed);
	return op;
}

uint64_t shunt_recorder_add_named(
    struct shunt_recorder *rec, const char *name, uint64_t count, const void *stream, bool captured)
{
	struct shunt_coll call = {
		.kind = SHUNT_NKINDS, .dtype = SHUNT_NFORMATS, .count = count, .stream = (void *)stream
	};

	return shunt_recorder_add(rec, &call, name, 0, captured);
}

void shunt_recorder_add_forward(struct shunt_recorder *rec, const struct shunt_coll *coll, enum shunt_reason reason)
{
	uint64_t time, seq = record_operation(rec, coll, NULL, reason, 0, false, &time);

	if (!rec)
		return;
	atomic_store_explicit(&rec->last_forwarded, seq, memory_order_relaxed);
	shunt_inside_note_call(atomic_load_explicit(&rec->tag, memory_order_relaxed), seq, time);
}

void shunt_recorder_add_marked(
    struct shunt_recorder *rec, const struct shunt_coll *coll, enum shunt_reason reason, bool captured)
{
	uint64_t time, seq = record_operation(rec, coll, NULL, reason, 0, captured, &time) & ~SHUNT_OP_CAPTURED;

	if (!rec)
		return;
	atomic_store_explicit(&rec->last_forwarded, seq, memory_order_relaxed);
	shunt_inside_note_call(atomic_load_explicit(&rec->tag, memory_order_relaxed), seq, time);
	if (!captured)
		shunt_marks_due(&rec->marks, coll->stream, seq);
}

void shunt_recorder_open_marks(struct shunt_recorder *rec, const struct shunt_gpu_ops *gpu)
{
	if (rec)
		shunt_marks_open(&rec->marks, gpu, atomic_load(&rec->device));
}

void shunt_recorder_note_function(struct shunt_recorder *rec)
{
	shunt_inside_note.next_tag = rec ? atomic_load(&rec->tag) : 0;
}

void shunt_recorder_nccl_failed(struct shunt_recorder *rec, int result)
{
	if (rec)
		atomic_store_explicit(&rec->nccl_result, result, memory_order_relaxed);
}

/* ---- reading */

static bool read_entry(struct entry *e, bool captured, struct shunt_operation *op)
{
	uint64_t w[WORDS];

	for (int i = 0; i < WORDS; i++)
		w[i] = atomic_load_explicit(&e->word[i], memory_order_acquire);
	if (!w[SEQ] || atomic_load_explicit(&e->word[SEQ], memory_order_relaxed) != w[SEQ])
		return false;
	*op = (struct shunt_operation){
		.seq = w[SEQ],
		.number = w[NUMBER],
		.last = w[SEQ] + w[LEFT],
		.count = w[COUNT],
		.time_ns = w[TIME],
		.stream = (const void *)(uintptr_t)w[STREAM],
		.path = (const char *)(uintptr_t)w[PATH],
		.kind = (enum shunt_kind)(w[KINDS] & 0xff),
		.dtype = (enum shunt_dtype)(w[KINDS] >> 8 & 0xff),
		.redop = (enum shunt_redop)(w[KINDS] >> 16 & 0xff),
		.reason = (enum shunt_reason)(w[KINDS] >> 24 & 0xff),
		.root = (int)(uint32_t)(w[KINDS] >> 32),
		.captured = captured,
	};
	return true;
}

size_t shunt_recorder_read(struct shunt_recorder *rec, bool captured, struct shunt_operation *ops, size_t cap)
{
	struct ring *ring = captured ? &rec->captured : &rec->eager;
	struct entry *entries = atomic_load_explicit(&ring->entries, memory_order_acquire);
	uint64_t end = atomic_load_explicit(&ring->next, memory_order_acquire), at;
	size_t n = 0;

	if (cap > SHUNT_RECORDER_OPERATIONS)
		cap = SHUNT_RECORDER_OPERATIONS;
	for (at = end > cap ? end - cap : 0; entries && at < end; at++)
		n += read_entry(&entries[at % SHUNT_RECORDER_OPERATIONS], captured, &ops[n]);
	return n;
}

struct shunt_recorder_issued shunt_recorder_issued(struct shunt_recorder *rec)
{
	return (struct shunt_recorder_issued){ atomic_load(&rec->last_eager), atomic_load(&rec->captured.next) };
}

/* ---- the device, which may not answer */

/* With rec->reading held, so that the memory stays. */
/* A copy of a device's words. The sim copies one word atomically, several not. */
static int copy_words(struct shunt_recorder *rec, void *to, const void *from, size_t bytes)
{
	size_t step = rec->sim ? 8 : bytes;
	int device = atomic_load(&rec->device), err = 0;

	for (size_t at = 0; at < bytes && !err; at += step)
		err = rec->gpu->copy(device, (char *)to + at, (const char *)from + at, step);
	return err;
}

static struct shunt_ctrl *copy_ctrl(struct shunt_recorder *rec, bool only_progress)
{
	struct shunt_ctrl *copy = rec->ctrl ? calloc(1, sizeof(*copy)) : NULL;
	size_t first = only_progress ? offsetof(struct shunt_ctrl, progress) : 0;
	size_t bytes = only_progress ? sizeof(copy->progress) : sizeof(*copy);
	int err = copy ? copy_words(rec, (char *)copy + first, (const char *)rec->ctrl + first, bytes) : 0;
	const struct shunt_ctrl *inbox = copy && !err ? copy->inbox : NULL;

	/* What peers tell this rank, they write into its segment of shared memory. */
	if (inbox)
		err = copy_words(rec, copy->ll128.head, inbox->ll128.head, sizeof(inbox->ll128.head));
	if (inbox && !err)
		err = copy_words(rec, copy->simple.head, inbox->simple.head, sizeof(inbox->simple.head));
	if (!err)
		return copy;
	free(copy);
	return NULL;
}

static void device_read_put(struct device_read *d)
{
	unsigned left;

	shunt_mutex_lock(&d->lock);
	left = --d->users;
	shunt_mutex_unlock(&d->lock);
	if (left)
		return;
	pthread_cond_destroy(&d->is_done);
	shunt_mutex_destroy(&d->lock);
	shunt_recorder_unref(d->rec);
	free(d->ctrl);
	free(d);
}

static void *device_read_main(void *arg)
{
	struct device_read *d = arg;
	struct shunt_ctrl *ctrl;

	shunt_mutex_lock(&d->rec->reading);
	ctrl = copy_ctrl(d->rec, d->only_progress);
	shunt_mutex_unlock(&d->rec->reading);
	shunt_mutex_lock(&d->lock);
	d->ctrl = ctrl;
	d->done = true;
	pthread_cond_signal(&d->is_done);
	shunt_mutex_unlock(&d->lock);
	atomic_store(&d->rec->left, false);
	device_read_put(d);
	return NULL;
}

static struct device_read *device_read_start(struct shunt_recorder *rec, bool only_progress)
{
	struct device_read *d = calloc(1, sizeof(*d));
	pthread_condattr_t attr;

	if (!d)
		return NULL;
	d->rec = rec;
	d->only_progress = only_progress;
	d->users = 2;
	shunt_mutex_init(&d->lock, SHUNT_LOCK_DEVICE_READ);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&d->is_done, &attr);
	pthread_condattr_destroy(&attr);
	shunt_recorder_ref(rec);
	if (shunt_thread_start(NULL, READ_STACK_BYTES, device_read_main, d)) {
		d->users = 1;
		device_read_put(d);
		return NULL;
	}
	return d;
}

/*
 * A call of the program that waits for kernels, such as cudaFree, may hold the driver meanwhile, and a read of the
 * device waits with it. So a thread of its own reads, and is left behind if it does not finish in time. False: it was
 * left behind, or an earlier one still hangs.
 */
static bool device_read(struct shunt_recorder *rec, bool only_progress, unsigned wait_ms, struct shunt_ctrl **ctrl_p)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	struct device_read *d;
	struct timespec end;
	bool done;

	*ctrl_p = NULL;
	for (; atomic_load(&rec->left); wait_ms--) {
		if (!wait_ms)
			return false;
		nanosleep(&ms, NULL);
	}
	d = device_read_start(rec, only_progress);
	if (!d)
		return true;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += wait_ms / 1000;
	end.tv_nsec += wait_ms % 1000 * 1000000L;
	if (end.tv_nsec >= 1000000000L) {
		end.tv_sec++;
		end.tv_nsec -= 1000000000L;
	}
	shunt_mutex_lock(&d->lock);
	while (!d->done && !pthread_cond_timedwait(&d->is_done, &d->lock.mutex, &end))
		;
	done = d->done;
	if (!done)
		atomic_store(&rec->left, true);
	*ctrl_p = d->ctrl;
	d->ctrl = NULL;
	shunt_mutex_unlock(&d->lock);
	device_read_put(d);
	return done;
}

/* The host issues all that runs on a device but the replays of graphs: where it issued nothing since the last read, and
 * that found all ended, the device has nothing new to say. False: it may have. */
static bool progress_is_known(struct shunt_recorder *rec, struct shunt_ctrl **ctrl_p)
{
	bool known;

	shunt_mutex_lock(&rec->lock);
	known = rec->seen_calls && rec->seen_calls == atomic_load(&rec->calls) && !atomic_load(&rec->captured.next) &&
	    rec->seen.begun == rec->seen.ended && rec->seen.eager >= atomic_load(&rec->last_eager);
	*ctrl_p = known ? calloc(1, sizeof(**ctrl_p)) : NULL;
	if (*ctrl_p)
		(*ctrl_p)->progress = rec->seen;
	shunt_mutex_unlock(&rec->lock);
	return *ctrl_p != NULL;
}

static void read_device(struct shunt_recorder *rec, unsigned wait_ms, struct shunt_recorder_snapshot *snapshot)
{
	uint64_t calls = atomic_load(&rec->calls);

	if (snapshot->only_progress && progress_is_known(rec, &snapshot->ctrl))
		return;
	snapshot->unresponsive = !device_read(rec, snapshot->only_progress, wait_ms, &snapshot->ctrl);
	if (!snapshot->ctrl)
		return;
	shunt_mutex_lock(&rec->lock);
	rec->seen = snapshot->ctrl->progress;
	rec->seen_calls = calls;
	shunt_mutex_unlock(&rec->lock);
}

size_t shunt_recorder_counters(struct shunt_recorder *rec, struct shunt_counter *rows, size_t cap)
{
	size_t n;

	shunt_mutex_lock(&rec->lock);
	n = rec->counters ? shunt_counters_list(rec->counters, rows, cap) : 0;
	shunt_mutex_unlock(&rec->lock);
	return n < cap ? n : cap;
}

/* With rec->lock. */
static void read_words(const struct shunt_recorder *rec, struct shunt_recorder_snapshot *snapshot)
{
	const struct shunt_host_ctrl *words = rec->words;

	snapshot->fault.set = __atomic_load_n(&words->fault.set, __ATOMIC_ACQUIRE);
	if (snapshot->fault.set)
		snapshot->fault = words->fault;
	if (snapshot->fault.peer < rec->nordinals)
		snapshot->fault.peer = rec->rank_of[snapshot->fault.peer];
	for (unsigned r = 0; r < SHUNT_WAIT_RANKS; r++)
		snapshot->waits_ns[r] = __atomic_load_n(&words->waits[r].ns, __ATOMIC_RELAXED);
	snapshot->have_waits = true;
}

int shunt_recorder_snapshot(struct shunt_recorder *rec, enum shunt_recorder_depth depth, unsigned wait_ms,
    struct shunt_recorder_snapshot *snapshot)
{
	atomic_uint *peers;

	*snapshot = (struct shunt_recorder_snapshot){ .rank = atomic_load(&rec->rank),
		.nranks = atomic_load(&rec->nranks),
		.device = atomic_load(&rec->device),
		.error = atomic_load(&rec->error),
		.nccl_result = atomic_load(&rec->nccl_result),
		.tag = atomic_load(&rec->tag),
		.only_progress = depth != SHUNT_READ_ALL };
	snapshot->phase = atomic_load_explicit(&rec->phase, memory_order_acquire);
	snapshot->phase_ns = atomic_load_explicit(&rec->phase_ns, memory_order_relaxed);
	peers = atomic_load(&rec->peers);
	if (peers && snapshot->nranks > 0) {
		snapshot->sends = calloc(2 * (size_t)snapshot->nranks, sizeof(*snapshot->sends));
		if (!snapshot->sends)
			return -ENOMEM;
		snapshot->npeers = (unsigned)snapshot->nranks;
		snapshot->receives = snapshot->sends + snapshot->nranks;
		for (int i = 0; i < 2 * snapshot->nranks; i++)
			snapshot->sends[i] = atomic_load_explicit(&peers[i], memory_order_relaxed);
	}
	shunt_mutex_lock(&rec->lock);
	memcpy(snapshot->id, rec->id, sizeof(snapshot->id));
	memcpy(snapshot->key, rec->key, sizeof(snapshot->key));
	snapshot->forward = rec->forward;
	memcpy(snapshot->reason, rec->reason, sizeof(snapshot->reason));
	snapshot->have_device = rec->ctrl != NULL;
	snapshot->over_hosts = rec->over_hosts;
	shunt_mutex_unlock(&rec->lock);
	if (snapshot->have_device && depth != SHUNT_READ_NOTHING)
		read_device(rec, wait_ms, snapshot);
	/* Read after the device: a kernel that gave up stores the fault before it counts itself as ended. */
	shunt_mutex_lock(&rec->lock);
	if (rec->words)
		read_words(rec, snapshot);
	if (!snapshot->fault.set)
		snapshot->fault = rec->found;
	shunt_mutex_unlock(&rec->lock);
	/* Read after the device: operations that the device has begun were counted before. */
	snapshot->captured = atomic_load(&rec->captured.next);
	snapshot->collectives = atomic_load(&rec->collectives);
	snapshot->calls = atomic_load(&rec->calls);
	snapshot->returned = atomic_load(&rec->last_forwarded);
	snapshot->held_by = shunt_inside_first_seq(snapshot->tag);
	if (snapshot->held_by <= snapshot->returned)
		snapshot->returned = snapshot->held_by - 1;
	snapshot->marked = shunt_marks_last(&rec->marks);
	snapshot->finished = shunt_marks_finished(&rec->marks);
	return 0;
}

void shunt_recorder_snapshot_finish(struct shunt_recorder_snapshot *snapshot)
{
	free(snapshot->ctrl);
	free(snapshot->sends);
	*snapshot = (struct shunt_recorder_snapshot){ 0 };
}

/* ---- states */

const char *shunt_operation_state_name(enum shunt_operation_state state)
{
	static const char *const names[] = {
		[SHUNT_OPERATION_UNKNOWN] = "unknown",
		[SHUNT_OPERATION_IN_NCCL] = "in_nccl",
		[SHUNT_OPERATION_RETURNED] = "returned",
		[SHUNT_OPERATION_ENQUEUED] = "enqueued",
		[SHUNT_OPERATION_RUNNING] = "running",
		[SHUNT_OPERATION_FINISHED] = "finished",
		[SHUNT_OPERATION_FAILED] = "failed",
	};

	return names[state];
}

/* True: the operation's kernel gave up, or came later. Later kernels end at once, and look as if they had run. */
static bool has_failed(
    const struct shunt_operation *op, const struct shunt_progress *progress, const struct shunt_fault *fault)
{
	uint64_t last = op->last | (op->captured ? SHUNT_OP_CAPTURED : 0);

	if (!fault->set || !fault->op)
		return false;
	if (op->captured || fault->op & SHUNT_OP_CAPTURED)
		return last == fault->op;
	return last >= fault->op && last <= progress->eager;
}

enum shunt_operation_state shunt_operation_state(
    const struct shunt_operation *op, const struct shunt_progress *progress, const struct shunt_fault *fault)
{
	bool running = progress && progress->begun != progress->ended;

	if (!op->path)
		return SHUNT_OPERATION_RETURNED;
	if (!progress || !progress->now) /* no kernel of ours has run yet, or there is no account */
		return progress && !op->captured ? SHUNT_OPERATION_ENQUEUED : SHUNT_OPERATION_UNKNOWN;
	if (has_failed(op, progress, fault))
		return SHUNT_OPERATION_FAILED;
	if (op->captured)
		return running && progress->now == (op->last | SHUNT_OP_CAPTURED) ? SHUNT_OPERATION_RUNNING :
		                                                                    SHUNT_OPERATION_UNKNOWN;
	if (op->last < progress->eager)
		return SHUNT_OPERATION_FINISHED;
	if (op->last > progress->eager)
		return SHUNT_OPERATION_ENQUEUED;
	return running && progress->now == progress->eager ? SHUNT_OPERATION_RUNNING : SHUNT_OPERATION_FINISHED;
}

/* SPDX-License-Identifier: MIT */
/* The layouts are NCCL's headers', written once more: the library's are not to be compared with themselves. */
#include "tests/support/fake_profiler/fake_profiler.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/pause.h"

enum {
	GROUP = 1,
	COLL = 2,
	P2P = 4,
	KERNEL_CH = 64,
	GROUP_API = 256,
	COLL_API = 512,
	P2P_API = 1024,
	LAUNCH = 2048,
	CE_COLL = 4096
};
enum { KNOWN = VERSION == 4 ? 255 : VERSION == 5 ? 4095 : VERSION == 6 ? 32767 : 65535 };

#if VERSION == 4
typedef uint8_t type_word;
#else
typedef uint64_t type_word;
#endif
#if VERSION == 7
#define TAG uint64_t user_tag;
#else
#define TAG
#endif

struct descr {
	type_word type;
	void *parent;
	int rank;
	union {
		struct {
			bool graph_captured;
			int depth;
		} group_api;
		struct {
			const char *func;
			size_t count;
			const char *dtype;
			int root;
			void *stream;
			bool graph_captured;
			TAG
		} coll_api;
		struct {
			const char *func;
			size_t count;
			const char *dtype;
			void *stream;
			bool graph_captured;
			TAG
		} p2p_api;
		struct {
			uint64_t seq;
			const char *func;
			const void *send;
			void *recv;
			size_t count;
			int root;
			const char *dtype;
			uint8_t channels, warps;
			const char *algo, *proto;
#if VERSION > 4
			void *group;
#endif
#if VERSION == 7
			const char *variant;
			bool symmetric;
#endif
			TAG
		} coll;
		struct {
			const char *func;
			void *buffer;
			const char *dtype;
			size_t count;
			int peer;
			uint8_t channels;
#if VERSION > 4
			void *group;
#endif
			TAG
		} p2p;
		struct {
			uint8_t channel;
			uint64_t timer;
		} kernel_ch;
		struct {
			uint64_t seq;
			const char *func;
			const void *send;
			void *recv;
			size_t count;
		} ce_coll;
	};
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_profiler told;

struct context {
	uint64_t id;
	int rank;
};

__attribute__((visibility("default"))) fake_profiler_get fake_profiler;
const struct fake_profiler *fake_profiler(void)
{
	return &told;
}

static bool is(char letter)
{
	const char *how = getenv("FAKE_PROFILER");

	return how && strchr(how, letter);
}

static struct fake_event *event_of(void *handle)
{
	struct fake_event *e = handle;

	return e >= told.events && e < told.events + told.n ? e : NULL;
}

static int make_context(void **context, int *mask, const char *name, uint64_t id, int rank)
{
	struct context *c = malloc(sizeof(*c));

	if (is('f')) {
		free(c);
		return 3;
	}
	*c = (struct context){ id, rank };
	*context = c;
	__atomic_store_n(mask, is('a') ? -1 : COLL | P2P | KERNEL_CH, __ATOMIC_RELAXED);
	pthread_mutex_lock(&lock);
	told.inits++;
	snprintf(told.name, sizeof(told.name), "%s", name ? name : "(none)");
	pthread_mutex_unlock(&lock);
	return 0;
}

#if VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t id, int nnodes, int nranks, int rank, void *log)
#else
static int init(void **context, uint64_t id, int *mask, const char *name, int nnodes, int nranks, int rank, void *log)
#endif
{
	return nnodes == 1 && nranks == 2 && log ? make_context(context, mask, name, id, rank) : 4;
}

static void copy(char to[32], const char *from)
{
	snprintf(to, 32, "%s", from);
}

static int start(void *context, void **handle, struct descr *d)
{
	const struct context *c = context;
	uint64_t type = d->type;
	struct fake_event *e;

	if (is('s'))
		pause_us(PAUSE_LATE, 1000);
	pthread_mutex_lock(&lock);
	e = &told.events[told.n];
	*e = (struct fake_event){
		.type = type, .parent = event_of(d->parent), .id = c->id, .rank = d->rank, .channels = -1
	};
	told.wrong += (type & ~(uint64_t)KNOWN) != 0 || d->rank != c->rank || (d->parent && !e->parent);
	if (type == COLL) {
		copy(e->func, d->coll.func);
		copy(e->dtype, d->coll.dtype);
		copy(e->algo, d->coll.algo);
		copy(e->proto, d->coll.proto);
#if VERSION == 7
		copy(e->variant, d->coll.variant);
		told.wrong += d->coll.user_tag != 0;
#endif
#if VERSION > 4
		told.wrong += d->coll.group && !event_of(d->coll.group);
#endif
		e->channels = d->coll.channels;
		e->seq = d->coll.seq;
		e->count = d->coll.count;
	} else if (type == P2P) {
		copy(e->func, d->p2p.func);
		copy(e->dtype, d->p2p.dtype);
		e->channels = d->p2p.channels;
		e->peer = d->p2p.peer;
		e->count = d->p2p.count;
	} else if (type == KERNEL_CH) {
		e->start = d->kernel_ch.timer;
	} else if (type == GROUP_API) {
		e->captured = d->group_api.graph_captured;
	} else if (type == COLL_API) {
		copy(e->func, d->coll_api.func);
		e->captured = d->coll_api.graph_captured;
		e->count = d->coll_api.count;
	} else if (type == P2P_API) {
		copy(e->func, d->p2p_api.func);
		e->captured = d->p2p_api.graph_captured;
	} else if (type == CE_COLL) {
		copy(e->func, d->ce_coll.func);
		e->count = d->ce_coll.count;
	}
	__atomic_store_n(&told.n, told.n + 1, __ATOMIC_RELEASE); /* tests may read it without the lock, as stops */
	*handle = is('n') && type & (COLL | P2P | CE_COLL) ? NULL : e;
	pthread_mutex_unlock(&lock);
	return 0;
}

static int stop(void *handle)
{
	struct fake_event *e;

	pthread_mutex_lock(&lock);
	e = event_of(handle);
	told.wrong += !e || __atomic_fetch_add(&e->stops, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int record_state(void *handle, int state, uint64_t *args)
{
	struct fake_event *e;

	pthread_mutex_lock(&lock);
	e = event_of(handle);
	if (e && e->type == KERNEL_CH && state == 22 && !e->stops)
		e->stop = *args;
	else if (!e || e->type != GROUP_API || (state != 23 && state != 24))
		told.wrong++;
	if (e)
		e->states++;
	pthread_mutex_unlock(&lock);
	return 0;
}

static int finalize(void *context)
{
	free(context);
	pthread_mutex_lock(&lock);
	told.finalized++;
	pthread_mutex_unlock(&lock);
	return 0;
}

#define SYMBOL_(version) ncclProfiler_v##version
#define SYMBOL(version) SYMBOL_(version)
__attribute__((visibility("default"))) struct {
	const char *name;
	__typeof__(init) *init;
	__typeof__(start) *start;
	__typeof__(stop) *stop;
	__typeof__(record_state) *record_state;
	__typeof__(finalize) *finalize;
} SYMBOL(VERSION) = { "fake", init, start, stop, record_state, finalize };

/* SPDX-License-Identifier: MIT */
#include "comm/observe/profiler.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/config.h"
#include "base/io.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/os.h"
#include "comm/observe/profiler_abi.h"

#define MAX_SPARE 32u  /* events that wait for the next launches: making one takes longer than a small call */
#define REBASE_US 1e6f /* events tell time as a float: of a second, to the tenth of a microsecond */

/* Events are told if the plug-in wants them, or their children. */
enum {
	CHILDREN = PROFILER_PROXY_OP | PROFILER_PROXY_STEP | PROFILER_KERNEL_CH | PROFILER_NET_PLUGIN,
	WANTS_CE = PROFILER_CE_COLL | PROFILER_CE_SYNC | PROFILER_CE_BATCH,
	WANTS_COLL = PROFILER_COLL | CHILDREN,
	WANTS_P2P = PROFILER_P2P | CHILDREN,
	WANTS_GROUP = PROFILER_GROUP | WANTS_COLL | WANTS_P2P,
	WANTS_COLL_API = PROFILER_COLL_API | WANTS_COLL | WANTS_CE,
	WANTS_P2P_API = PROFILER_P2P_API | WANTS_P2P,
	WANTS_GROUP_API = PROFILER_GROUP_API | PROFILER_KERNEL_LAUNCH | WANTS_GROUP | WANTS_COLL_API | WANTS_P2P_API,
};

/* The versions, newest first, and the events that each knows. */
static const struct version {
	const char *symbol;
	int number, knows;
} versions[] = {
	{ "ncclProfiler_v7", 7, (1 << 16) - 1 },
	{ "ncclProfiler_v6", 6, (1 << 15) - 1 },
	{ "ncclProfiler_v5", 5, (1 << 12) - 1 },
	{ "ncclProfiler_v4", 4, (1 << 8) - 1 },
};

/* Launches whose times the plug-in waits for. */
struct times {
	struct times *next;
	void *start, *stop; /* events */
	uint64_t start_ns;  /* 0: has not begun */
	size_t n;
	struct {
		void *call, *kernel; /* handles; NULL: the plug-in wants nothing of it */
	} of[];
};

struct shunt_profiler {
	struct shunt_profiler_desc desc;
	void *context;
	uint64_t seq[SHUNT_NKINDS];
	bool untimed; /* a thread or an event could not be had */
	bool threaded;
	pthread_t thread;
	void *base; /* the thread's: an event, and its time; NULL at first */
	uint64_t base_ns;
	struct shunt_mutex lock; /* of all below */
	pthread_cond_t changed;
	struct times *first, **last;
	void *spare[MAX_SPARE];
	unsigned nspare;
	int64_t end; /* when the thread ends even if launches have not ended; 0: not yet */
};

struct shunt_profiled {
	struct shunt_profiler *p;
	void *stream;
	void *group_api, *group, *launch; /* handles */
	bool timed;
	struct times *open; /* the launches that come now */
	struct times *first, **last;
	size_t n;
	struct {
		const struct shunt_coll *coll;
		void *handle;
		bool ce;
	} calls[];
};

/* ---- the plug-in */

/* Written once, with SHUNT_LOCK_PROFILER_FILE, before looked. */
static const struct profiler_plugin *plugin;
static const struct version *version;
/* Plug-ins may keep the address, to switch events on and off. So it is the process's, as NCCL's is. */
static int wanted;

static void *open_as(const char *name, char *why, size_t bytes)
{
	void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!file)
		snprintf(why, bytes, "%s", dlerror());
	return file;
}

/* As NCCL reads the variable. */
static void load(void)
{
	const char *value = shunt_nccl_env()->profiler_plugin;
	char name[280], why[400] = "";
	void *file;

	if (!strcasecmp(value, "none"))
		return;
	if (!strcasecmp(value, "STATIC_PLUGIN"))
		file = open_as(NULL, why, sizeof(why));
	else
		file = open_as(*value ? value : "libnccl-profiler.so", why, sizeof(why));
	if (!file && *value && !strchr(value, '/')) {
		snprintf(name, sizeof(name), "libnccl-profiler-%.200s.so", value);
		file = open_as(name, why, sizeof(why));
	}
	for (size_t i = 0; file && !plugin && i < sizeof(versions) / sizeof(versions[0]); i++) {
		plugin = dlsym(file, versions[i].symbol);
		version = &versions[i];
	}
	if (plugin)
		shunt_info(SHUNT_LOG_INIT, "profiler plug-in %s (version %d) is told of Shunt's calls", plugin->name,
		    version->number);
	else if (*value)
		shunt_warn("NCCL_PROFILER_PLUGIN=%s: no profiler plug-in is told of Shunt's calls: %s", value,
		    file ? "the file exports none of ncclProfiler_v4 to ncclProfiler_v7" : why);
}

static const struct profiler_plugin *find_plugin(void)
{
	static bool looked;

	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_PROFILER_FILE);
	if (!looked)
		load();
	looked = true;
	shunt_lock_release(SHUNT_LOCK_PROFILER_FILE);
	shunt_log_flush();
	return plugin;
}

/* Levels of NCCL: 2 is a warning. */
static void log_line(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	(void)flags, (void)file, (void)line;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (level == 2)
		shunt_warn("profiler plug-in: %s", text);
	else
		shunt_info(SHUNT_LOG_INIT, "profiler plug-in: %s", text);
}

static int init_plugin(struct shunt_profiler *p)
{
	const struct shunt_profiler_desc *d = &p->desc;
	const char *name = d->name[0] ? d->name : NULL;

	if (version->number == 4)
		return plugin->init.v4(&p->context, &wanted, name, d->id, d->nnodes, d->nranks, d->rank, log_line);
	return plugin->init.v5(&p->context, d->id, &wanted, name, d->nnodes, d->nranks, d->rank, log_line);
}

struct shunt_profiler *shunt_profiler_create(const struct shunt_profiler_desc *desc)
{
	struct shunt_profiler *p = find_plugin() ? calloc(1, sizeof(*p)) : NULL;
	int current, res;

	if (!p)
		return NULL;
	p->desc = *desc;
	p->last = &p->first;
	/* Plug-ins ask for the current device, and this may be a thread of Shunt. */
	if (desc->gpu->device_get(&current))
		current = -1;
	desc->gpu->device_set(desc->device);
	res = init_plugin(p);
	if (current >= 0)
		desc->gpu->device_set(current);
	if (!res && p->context) {
		shunt_mutex_init(&p->lock, SHUNT_LOCK_PROFILER);
		pthread_cond_init(&p->changed, NULL);
		return p;
	}
	if (res)
		shunt_info(SHUNT_LOG_INIT, "profiler plug-in %s is not told of this communicator: its init gave %d",
		    plugin->name, res);
	free(p);
	return NULL;
}

static int what_is_wanted(void)
{
	return __atomic_load_n(&wanted, __ATOMIC_RELAXED) & version->knows;
}

static void *start(struct shunt_profiler *p, uint64_t type, void *parent, struct profiler_descr *descr)
{
	void *handle = NULL;

	descr->type = type;
	descr->parent = parent;
	descr->rank = p->desc.rank;
	plugin->start(p->context, &handle, descr);
	return handle;
}

static void stop(void *handle)
{
	if (handle)
		plugin->stop(handle);
}

/* ---- times */

/* Puts an event on the stream. */
static int record_event(struct shunt_profiler *p, void *stream, void **event_p)
{
	int err = 0;

	shunt_mutex_lock(&p->lock);
	*event_p = p->nspare ? p->spare[--p->nspare] : NULL;
	shunt_mutex_unlock(&p->lock);
	if (!*event_p)
		err = p->desc.gpu->event_create(p->desc.device, true, event_p);
	return err ? err : p->desc.gpu->event_record(p->desc.device, *event_p, stream);
}

static void give_back_event(struct shunt_profiler *p, void *event)
{
	if (!event)
		return;
	shunt_mutex_lock(&p->lock);
	if (p->nspare < MAX_SPARE) {
		p->spare[p->nspare++] = event;
		event = NULL;
	}
	shunt_mutex_unlock(&p->lock);
	if (event)
		p->desc.gpu->event_destroy(p->desc.device, event);
}

/* start: the event if it goes, too. */
static void free_times(struct shunt_profiler *p, struct times *t, void *start)
{
	give_back_event(p, start);
	give_back_event(p, t->stop);
	free(t);
}

static bool is_done(const struct shunt_profiler *p, void *event)
{
	bool done = false;

	return !p->desc.gpu->event_done(p->desc.device, event, &done) && done;
}

static float us_between(const struct shunt_profiler *p, void *from, void *to)
{
	float us = 0;

	return p->desc.gpu->event_elapsed_us(p->desc.device, from, to, &us) ? 0 : us;
}

/* The first event has the host's time. */
static uint64_t time_of(struct shunt_profiler *p, void *event)
{
	void *old = p->base;
	struct timespec now;
	float us = old ? us_between(p, old, event) : 0;

	if (old && us < REBASE_US)
		return p->base_ns + (uint64_t)(us > 0 ? us * 1000 : 0);
	if (old) {
		p->base_ns += (uint64_t)(us * 1000.0);
	} else {
		clock_gettime(CLOCK_REALTIME, &now);
		p->base_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	}
	p->base = event;
	give_back_event(p, old);
	return p->base_ns;
}

static void tell_start(struct shunt_profiler *p, struct times *t)
{
	t->start_ns = time_of(p, t->start);
	for (size_t i = 0; i < t->n; i++) {
		struct profiler_descr descr = { .kernel_ch.timer = t->start_ns };

		if (t->of[i].call)
			t->of[i].kernel = start(p, PROFILER_KERNEL_CH, t->of[i].call, &descr);
	}
}

static void tell_stop(struct shunt_profiler *p, struct times *t)
{
	union profiler_state_args args = { .kernel_ch.timer =
		                               t->start_ns + (uint64_t)(us_between(p, t->start, t->stop) * 1000) };

	for (size_t i = 0; i < t->n; i++) {
		if (t->of[i].kernel)
			plugin->record_state(t->of[i].kernel, PROFILER_KERNEL_STOP, &args);
		stop(t->of[i].kernel);
	}
}

/* The communicator's thread: it sleeps while nothing is under way, and else looks each millisecond. */
static void *tell_times(void *arg)
{
	struct shunt_profiler *p = arg;
	struct times *t;

	shunt_mutex_lock(&p->lock);
	for (;;) {
		bool late, ended;

		while (!p->first && !p->end)
			pthread_cond_wait(&p->changed, &p->lock.mutex);
		t = p->first;
		late = p->end && shunt_now_ms() >= p->end;
		shunt_mutex_unlock(&p->lock);
		if (!t)
			return NULL;
		if (!t->start_ns && is_done(p, t->start))
			tell_start(p, t);
		ended = t->start_ns && is_done(p, t->stop);
		if (ended)
			tell_stop(p, t);
		else if (!late)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		shunt_mutex_lock(&p->lock);
		if (!ended && !late)
			continue;
		p->first = t->next;
		if (!p->first)
			p->last = &p->first;
		shunt_mutex_unlock(&p->lock);
		free_times(p, t, t->start == p->base ? NULL : t->start);
		shunt_mutex_lock(&p->lock);
	}
}

void shunt_profiler_destroy(struct shunt_profiler *p, int wait_ms)
{
	if (!p)
		return;
	if (p->threaded) {
		shunt_mutex_lock(&p->lock);
		p->end = shunt_deadline_ms(wait_ms);
		pthread_cond_signal(&p->changed);
		shunt_mutex_unlock(&p->lock);
		pthread_join(p->thread, NULL);
	}
	give_back_event(p, p->base);
	while (p->nspare)
		p->desc.gpu->event_destroy(p->desc.device, p->spare[--p->nspare]);
	plugin->finalize(p->context);
	pthread_cond_destroy(&p->changed);
	shunt_mutex_destroy(&p->lock);
	free(p);
}

/* The launches so far have ended with this event. */
static void close_times(struct shunt_profiled *g)
{
	struct shunt_profiler *p = g->p;
	struct times *t = g->open;

	g->open = NULL;
	if (!t)
		return;
	if (record_event(p, g->stream, &t->stop)) {
		p->untimed = true;
		free_times(p, t, t->start);
		return;
	}
	*g->last = t;
	g->last = &t->next;
}

void shunt_profiler_launches(struct shunt_profiled *g, const struct shunt_coll *const *calls, size_t n)
{
	struct shunt_profiler *p = g->p;
	struct times *t;
	size_t told = 0;

	close_times(g);
	t = g->timed && !p->untimed ? calloc(1, sizeof(*t) + n * sizeof(t->of[0])) : NULL;
	if (!t)
		return;
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < g->n; k++)
			if (g->calls[k].coll == calls[i] && !g->calls[k].ce && g->calls[k].handle)
				t->of[told++].call = g->calls[k].handle;
	t->n = told;
	if (!told) {
		free(t);
	} else if (record_event(p, g->stream, &t->start)) {
		p->untimed = true;
		free_times(p, t, t->start);
	} else {
		g->open = t;
	}
}

/* ---- calls */

static const char *dtype_text(enum shunt_dtype dtype)
{
#define SHUNT_NCCL_NAME(id, number, name, alias, nccl, ...) #nccl,
	static const char *const names[] = { SHUNT_DTYPE_LIST(SHUNT_NCCL_NAME) };
#undef SHUNT_NCCL_NAME

	/* Formats are bytes to the program, but for those of NCCL's types with another accumulator. */
	if (shunt_dtype_is_format(dtype))
		dtype = shunt_dtype_rows[dtype].element;
	return names[shunt_dtype_is_format(dtype) ? SHUNT_U8 : dtype];
}

/* As NCCL's function without its prefix. */
static const char *func_text(const struct shunt_coll *coll)
{
	return shunt_kind_rows[coll->kind].function + strlen("nccl");
}

static void tell_api(struct shunt_profiled *g, const struct shunt_coll *coll, bool captured, int wants, void **api_p)
{
	bool p2p = shunt_kind_is_p2p(coll->kind);
	struct profiler_descr descr;

	*api_p = NULL;
	if (!(wants & (p2p ? WANTS_P2P_API : WANTS_COLL_API)))
		return;
	if (p2p)
		descr = (struct profiler_descr){ .p2p_api = { func_text(coll), coll->count, dtype_text(coll->dtype),
			                             coll->stream, captured, 0 } };
	else
		descr = (struct profiler_descr){ .coll_api = { func_text(coll), coll->count, dtype_text(coll->dtype),
			                             coll->root, coll->stream, captured, 0 } };
	*api_p = start(g->p, p2p ? PROFILER_P2P_API : PROFILER_COLL_API, g->group_api, &descr);
	stop(*api_p);
}

/* channels: how many KernelCh will follow, or a number for plug-ins that do not want them. */
static void *tell_call(struct shunt_profiled *g, const struct shunt_coll *coll, const struct shunt_decision *decision,
    int wants, void *api, uint8_t channels, bool ce)
{
	struct shunt_profiler *p = g->p;
	uint64_t seq = p->seq[coll->kind]++, type;
	void *parent = version->number == 4 ? g->group : api;
	bool p2p = shunt_kind_is_p2p(coll->kind);
	struct profiler_descr descr;

	ce = ce && !p2p && version->number >= 6;
	if (!(wants & (p2p ? WANTS_P2P : ce ? WANTS_CE : WANTS_COLL)))
		return NULL;
	if (p2p) {
		type = PROFILER_P2P;
		descr =
		    (struct profiler_descr){ .p2p = { .func = func_text(coll),
			                         .buffer = coll->kind == SHUNT_SEND ? (void *)coll->send : coll->recv,
			                         .dtype = dtype_text(coll->dtype),
			                         .count = coll->count,
			                         .peer = coll->root,
			                         .channels = channels,
			                         .group = g->group } };
	} else if (ce) {
		type = PROFILER_CE_COLL;
		descr = (struct profiler_descr){ .ce_coll = { .seq = seq,
			                             .func = func_text(coll),
			                             .send = coll->send,
			                             .recv = coll->recv,
			                             .count = coll->count,
			                             .root = coll->root,
			                             .dtype = dtype_text(coll->dtype),
			                             .sync = "UC",
			                             .number = (uint32_t)seq,
			                             .stream = coll->stream } };
	} else {
		type = PROFILER_COLL;
		descr = (struct profiler_descr){ .coll = { .seq = seq,
			                             .func = func_text(coll),
			                             .send = coll->send,
			                             .recv = coll->recv,
			                             .count = coll->count,
			                             .root = coll->root,
			                             .dtype = dtype_text(coll->dtype),
			                             .channels = channels,
			                             .algo = "SHUNT",
			                             .proto = decision->path,
			                             .group = g->group,
			                             .variant = decision->algo->name,
			                             .symmetric = decision->algo->fuse == SHUNT_FUSE_SYMMEM } };
	}
	return start(p, type, parent, &descr);
}

struct shunt_profiled *shunt_profiler_begin(struct shunt_profiler *p, const struct shunt_coll *const *calls,
    const struct shunt_decision *decisions, size_t n, bool captured, void *stream)
{
	int wants = what_is_wanted();
	struct shunt_profiled *g = wants ? calloc(1, sizeof(*g) + n * sizeof(g->calls[0])) : NULL;
	void **apis = g ? calloc(n, sizeof(*apis)) : NULL;
	bool newer = version->number > 4;

	if (!apis) {
		free(g);
		return NULL;
	}
	g->p = p;
	g->stream = stream;
	g->n = n;
	g->last = &g->first;
	if (!p->threaded && wants & PROFILER_KERNEL_CH && !captured && shunt_config()->times && !p->untimed)
		p->untimed = !(p->threaded = !shunt_thread_start(&p->thread, 0, tell_times, p));
	g->timed = p->threaded && wants & PROFILER_KERNEL_CH && !captured && !p->untimed;
	if (newer && wants & WANTS_GROUP_API)
		g->group_api =
		    start(p, PROFILER_GROUP_API, NULL, &(struct profiler_descr){ .group_api = { captured, 1 } });
	for (size_t i = 0; newer && i < n; i++)
		tell_api(g, calls[i], captured, wants, &apis[i]);
	if (g->group_api) {
		plugin->record_state(g->group_api, PROFILER_GROUP_START_STOP, NULL);
		plugin->record_state(g->group_api, PROFILER_GROUP_END_START, NULL);
	}
	if (wants & WANTS_GROUP)
		g->group = start(p, PROFILER_GROUP, NULL, &(struct profiler_descr){ 0 });
	for (size_t i = 0; i < n; i++) {
		bool ce = decisions[i].algo->copies;
		uint8_t channels = wants & PROFILER_KERNEL_CH ? g->timed && !ce : 1;

		g->calls[i].coll = calls[i];
		g->calls[i].ce = ce;
		g->calls[i].handle = tell_call(g, calls[i], &decisions[i], wants, apis[i], channels, ce);
	}
	free(apis);
	if (newer && wants & PROFILER_KERNEL_LAUNCH)
		g->launch = start(
		    p, PROFILER_KERNEL_LAUNCH, g->group_api, &(struct profiler_descr){ .kernel_launch = { stream } });
	return g;
}

void shunt_profiler_end(struct shunt_profiled *g)
{
	struct shunt_profiler *p = g->p;

	close_times(g);
	stop(g->launch);
	for (size_t i = 0; i < g->n; i++)
		stop(g->calls[i].handle);
	stop(g->group);
	stop(g->group_api);
	if (g->first) {
		shunt_mutex_lock(&p->lock);
		*p->last = g->first;
		p->last = g->last;
		pthread_cond_signal(&p->changed);
		shunt_mutex_unlock(&p->lock);
	}
	free(g);
}

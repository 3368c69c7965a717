/* SPDX-License-Identifier: MIT */
#include "core/gpu.h"
#include "core/windows.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "core/comm_priv.h"
#include "core/config.h"
#include "core/io.h"
#include "core/log.h"
#include "core/process.h"
#include "core/verdict.h"

/* A place: the window's number, and where in it. */
#define PLACE_BITS 48

struct shunt_window {
	struct shunt_window *next;
	const void *name;
	char *base;
	size_t bytes;
	uint64_t number; /* 0: not symmetric, never used */
	bool ready, refused;
	/* With the communicator's lock held, and only when it is ready. */
	struct shunt_gpu_mem mem[SHUNT_MAX_RANKS]; /* of the peers: the allocation */
	uint64_t at[SHUNT_MAX_RANKS];              /* ... and where the window begins in it */
};

/* First round of an agreement. */
struct offer {
	struct shunt_verdict verdict;
	uint64_t number, bytes; /* of the window */
	uint64_t process;       /* peers in one process need no descriptor */
	uint64_t ptr, all;      /* the allocation; ptr means something in the same process only */
	uint64_t at;
};

/* Those of the process that ever had a window. Taken before the locks of the lists. */
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shunt_windows *process_list;

static struct shunt_comm *comm_of(struct shunt_windows *w)
{
	return (struct shunt_comm *)((char *)w - offsetof(struct shunt_comm, windows));
}

void shunt_windows_init(struct shunt_windows *w)
{
	pthread_mutex_init(&w->lock, NULL);
}

static void unmap(const struct shunt_gpu_ops *gpu, struct shunt_window *w)
{
	for (int r = 0; w->ready && r < SHUNT_MAX_RANKS; r++)
		gpu->share_free(&w->mem[r]);
	w->ready = false;
}

static void free_all(const struct shunt_gpu_ops *gpu, struct shunt_window *w)
{
	struct shunt_window *next;

	for (; w; w = next) {
		next = w->next;
		unmap(gpu, w);
		free(w);
	}
}

void shunt_windows_finish(struct shunt_comm *comm)
{
	struct shunt_windows *w = &comm->windows, **at;

	pthread_mutex_lock(&process_lock);
	for (at = &process_list; w->listed && *at != w; at = &(*at)->next)
		;
	if (w->listed)
		*at = w->next;
	pthread_mutex_unlock(&process_lock);
	free_all(comm->gpu, w->live);
	free_all(comm->gpu, w->dead);
	free_all(comm->gpu, w->gone);
	if (w->used)
		comm->gpu->event_destroy(comm->device, w->used);
	pthread_mutex_destroy(&w->lock);
}

/* ---- for the shim */

static void list_once(struct shunt_windows *w)
{
	pthread_mutex_lock(&process_lock);
	if (!w->listed) {
		w->listed = true;
		w->next = process_list;
		process_list = w;
	}
	pthread_mutex_unlock(&process_lock);
}

struct shunt_window *shunt_windows_add(struct shunt_comm *comm, void *base, size_t bytes, bool symmetric)
{
	struct shunt_windows *w = &comm->windows;
	struct shunt_window *mine = calloc(1, sizeof(*mine)), **at;

	if (!mine)
		return NULL;
	mine->name = mine;
	mine->base = base;
	mine->bytes = bytes;
	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		mine->mem[r].fd = -1;
	list_once(w);
	pthread_mutex_lock(&w->lock);
	mine->number = symmetric ? ++w->numbers : 0;
	for (at = &w->live; *at; at = &(*at)->next)
		;
	*at = mine;
	atomic_fetch_add(&w->nlive, 1);
	pthread_mutex_unlock(&w->lock);
	return mine;
}

/* With the list's lock held: the link to the window of this name, or to NULL. */
static struct shunt_window **named_in(struct shunt_window **at, const void *name)
{
	while (*at && (*at)->name != name)
		at = &(*at)->next;
	return at;
}

static struct shunt_window **named(struct shunt_windows *w, const void *name)
{
	return named_in(&w->live, name);
}

/* With the list's lock held. */
static void lay_out(struct shunt_windows *w, struct shunt_window *mine)
{
	mine->next = w->dead;
	w->dead = mine;
	atomic_store(&w->any_dead, true);
}

static void bury(struct shunt_windows *w, struct shunt_window **at)
{
	struct shunt_window *mine = *at;

	*at = mine->next;
	atomic_fetch_sub(&w->nlive, 1);
	lay_out(w, mine);
}

/*
 * With the list's lock held: the same where the program will deregister it yet. A window's address may be its name, so
 * that stays in use.
 */
static void bury_but_name(struct shunt_windows *w, struct shunt_window **at)
{
	struct shunt_window *mine = *at, *rest = mine->name ? malloc(sizeof(*rest)) : NULL;

	if (!rest) {
		bury(w, at);
		return;
	}
	*rest = *mine;
	*at = mine->next;
	atomic_fetch_sub(&w->nlive, 1);
	lay_out(w, rest);
	mine->ready = false;
	mine->next = w->gone;
	w->gone = mine;
}

/* Whoever has the communicator's lock now does it later: he takes the dead himself, or his next call does. */
static struct shunt_window *try_take_dead(struct shunt_comm *comm)
{
	struct shunt_window *dead;

	if (pthread_mutex_trylock(&comm->lock))
		return NULL;
	dead = shunt_windows_take_dead(comm);
	pthread_mutex_unlock(&comm->lock);
	return dead;
}

void shunt_windows_name(struct shunt_comm *comm, const struct shunt_window *window, const void *name)
{
	struct shunt_windows *w = &comm->windows;
	struct shunt_window *i;

	pthread_mutex_lock(&w->lock);
	for (i = w->live; i && i != window; i = i->next)
		;
	if (i)
		i->name = name;
	pthread_mutex_unlock(&w->lock);
}

bool shunt_windows_remove(struct shunt_comm *comm, const void *name)
{
	struct shunt_windows *w = &comm->windows;
	struct shunt_window **at, *gone;
	bool found;

	if (!name)
		return false;
	pthread_mutex_lock(&w->lock);
	at = named(w, name);
	found = *at;
	if (found) {
		bury(w, at);
	} else if ((gone = *(at = named_in(&w->gone, name)))) {
		*at = gone->next;
		lay_out(w, gone);
		found = true;
	}
	pthread_mutex_unlock(&w->lock);
	if (found)
		free_all(comm->gpu, try_take_dead(comm));
	return found;
}

void shunt_windows_remove_unnamed(struct shunt_comm *comm)
{
	struct shunt_windows *w = &comm->windows;
	struct shunt_window **at;
	bool any = false;

	if (!atomic_load(&w->nlive))
		return;
	pthread_mutex_lock(&w->lock);
	for (at = named(w, NULL); *at; at = named(w, NULL)) {
		bury(w, at);
		any = true;
	}
	pthread_mutex_unlock(&w->lock);
	if (any)
		free_all(comm->gpu, try_take_dead(comm));
}

bool shunt_windows_base(struct shunt_comm *comm, const void *name, void **base_p)
{
	struct shunt_windows *w = &comm->windows;
	const struct shunt_window *found = NULL;

	pthread_mutex_lock(&w->lock);
	if (name)
		found = *named(w, name);
	if (found)
		*base_p = found->base;
	pthread_mutex_unlock(&w->lock);
	return found;
}

static bool bury_between(struct shunt_windows *w, uintptr_t from, size_t bytes)
{
	struct shunt_window **at = &w->live;
	bool any = false;

	pthread_mutex_lock(&w->lock);
	while (*at) {
		uintptr_t base = (uintptr_t)(*at)->base;

		if (base - from < bytes || from - base < (*at)->bytes) {
			bury_but_name(w, at);
			any = true;
		} else {
			at = &(*at)->next;
		}
	}
	pthread_mutex_unlock(&w->lock);
	return any;
}

void shunt_windows_forget(const void *memory)
{
	struct shunt_window *dead = NULL, *of_one, **end = &dead;
	const struct shunt_gpu_ops *gpu = NULL;
	size_t bytes = 1;
	void *base;

	pthread_mutex_lock(&process_lock);
	if (process_list) {
		gpu = shunt_gpu();
		/* Of memory that nobody knows the ends of: the window that begins there, or has it inside. */
		if (gpu && gpu->mem_range(memory, &base, &bytes))
			bytes = 1;
	}
	for (struct shunt_windows *w = process_list; w; w = w->next) {
		of_one = bury_between(w, (uintptr_t)memory, bytes) ? try_take_dead(comm_of(w)) : NULL;
		for (*end = of_one; *end; end = &(*end)->next)
			;
	}
	pthread_mutex_unlock(&process_lock);
	free_all(gpu, dead);
}

/* ---- look-ups */

static bool holds(const struct shunt_window *w, const void *ptr, uint64_t bytes)
{
	uint64_t at = (uintptr_t)ptr - (uintptr_t)w->base;

	return w->number && at < w->bytes && bytes <= w->bytes - at;
}

/* With the list's lock held. */
static struct shunt_window *find(struct shunt_window *list, const void *ptr, uint64_t bytes, bool ready)
{
	while (list && (list->refused || (ready && !list->ready) || !holds(list, ptr, bytes)))
		list = list->next;
	return list;
}

enum shunt_window_state shunt_windows_state(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	struct shunt_windows *w = &comm->windows;
	enum shunt_window_state state = SHUNT_WINDOW_NONE;
	const struct shunt_window *found;

	if (!atomic_load_explicit(&w->nlive, memory_order_relaxed) || !bytes)
		return state;
	pthread_mutex_lock(&w->lock);
	found = find(w->live, ptr, bytes, false);
	if (found)
		state = found->ready ? SHUNT_WINDOW_READY : SHUNT_WINDOW_NEW;
	pthread_mutex_unlock(&w->lock);
	return state;
}

/* A window that is ready; one that was removed after the call had been decided will do, as it is still mapped. */
static struct shunt_window *find_ready(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	struct shunt_windows *w = &comm->windows;
	struct shunt_window *found;

	pthread_mutex_lock(&w->lock);
	found = find(w->live, ptr, bytes, true);
	if (!found)
		found = find(w->dead, ptr, bytes, true);
	pthread_mutex_unlock(&w->lock);
	return found;
}

void *shunt_windows_at(struct shunt_comm *comm, const void *ptr, uint64_t bytes, int peer)
{
	const struct shunt_window *w = find_ready(comm, ptr, bytes);

	return w ? (char *)w->mem[peer].ptr + w->at[peer] + ((const char *)ptr - w->base) : NULL;
}

bool shunt_windows_aligned(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	const struct shunt_window *w = find_ready(comm, ptr, bytes);
	uint64_t odd = w ? (uint64_t)((const char *)ptr - w->base) : 1;

	for (int r = 0; r < comm->nranks && w; r++)
		odd |= w->at[r];
	return !(odd & 15);
}

uint64_t shunt_windows_place(struct shunt_comm *comm, const void *ptr)
{
	const struct shunt_window *w = find_ready(comm, ptr, 1);

	return w ? w->number << PLACE_BITS | (uint64_t)((const char *)ptr - w->base) : 0;
}

int shunt_windows_note_use(struct shunt_comm *comm, void *stream, bool captured)
{
	struct shunt_windows *w = &comm->windows;

	if (captured) {
		w->used_captured = true;
		return 0;
	}
	w->used_eagerly = true;
	return comm->gpu->event_record(comm->device, w->used, stream);
}

struct shunt_window *shunt_windows_take_dead(struct shunt_comm *comm)
{
	struct shunt_windows *w = &comm->windows;
	struct shunt_window *dead;
	bool idle = true;

	if (!atomic_load_explicit(&w->any_dead, memory_order_relaxed))
		return NULL;
	/* What cannot be asked now is asked the next time. */
	if (w->used_eagerly && comm->gpu->event_done(comm->device, w->used, &idle))
		return NULL;
	if (idle && w->used_captured && shunt_order_graphs_idle(&comm->order, comm->gpu, comm->device, &idle))
		return NULL;
	if (!idle)
		return NULL;
	pthread_mutex_lock(&w->lock);
	dead = w->dead;
	w->dead = NULL;
	atomic_store(&w->any_dead, false);
	pthread_mutex_unlock(&w->lock);
	return dead;
}

void shunt_windows_free(struct shunt_comm *comm, struct shunt_window *dead)
{
	free_all(comm->gpu, dead);
}

/* ---- agreement */

static int gather(struct shunt_comm *comm, const void *mine, size_t bytes, void *all, int fd, int *fds)
{
	return shunt_meet_gather(comm->meet, mine, bytes, all, fd, fds, shunt_config()->timeout, &comm->cancel);
}

/* *fd_p is the caller's to close. */
static void make_offer(struct shunt_comm *comm, const struct shunt_window *w, struct offer *o, int *fd_p)
{
	struct shunt_gpu_export memory;
	const char *why;
	int err;

	memset(o, 0, sizeof(*o));
	o->verdict.ok = 1;
	if (!w) {
		shunt_verdict_refuse(&o->verdict, "it was deregistered in the meantime");
		return;
	}
	o->number = w->number;
	o->bytes = w->bytes;
	o->process = shunt_process();
	err = comm->windows.used ? 0 : comm->gpu->event_create(comm->device, false, &comm->windows.used);
	if (!err)
		err = comm->gpu->share_export(comm->device, w->base, w->bytes, &memory, &why);
	if (err) {
		shunt_verdict_refuse(&o->verdict, "%s", err == -EOPNOTSUPP ? why : strerror(-err));
		return;
	}
	*fd_p = memory.fd;
	o->ptr = (uintptr_t)memory.base;
	o->all = memory.bytes;
	o->at = (uint64_t)(w->base - (char *)memory.base);
}

/* What is wrong with the table of offers; NULL: nothing. Judged alike by all ranks. */
static const char *judge(const struct offer *o, int n, int *who_p)
{
	const char *why = NULL;

	for (int r = 0; r < n && !why; r++) {
		*who_p = r;
		if (!o[r].verdict.ok)
			why = o[r].verdict.why;
		else if (o[r].number != o[0].number)
			why = "its buffer lies in another window than that of rank 0";
		else if (o[r].bytes != o[0].bytes)
			why = "its window has another size than that of rank 0";
	}
	return why;
}

static void map_peers(
    struct shunt_comm *comm, struct shunt_window *w, const struct offer *o, const int *fds, struct shunt_verdict *v)
{
	memset(v, 0, sizeof(*v));
	v->ok = 1;
	for (int r = 0; r < comm->nranks && v->ok; r++) {
		int err;

		w->at[r] = o[r].at;
		if (r == comm->rank)
			continue;
		if (o[r].process == o[comm->rank].process)
			err = comm->gpu->share_alias(comm->device, (void *)(uintptr_t)o[r].ptr, o[r].all, &w->mem[r]);
		else
			err = fds[r] < 0 ? -EBADF : comm->gpu->share_map(comm->device, fds[r], o[r].all, &w->mem[r]);
		if (err)
			shunt_verdict_refuse(v, "the memory of rank %d cannot be mapped: %s", r, strerror(-err));
	}
}

/* Every window that a rank meant: whoever finds one of them must not wait for ranks that have given it up. */
static void refuse_windows(struct shunt_comm *comm, const struct offer *o)
{
	struct shunt_windows *w = &comm->windows;

	pthread_mutex_lock(&w->lock);
	for (struct shunt_window *i = w->live; i; i = i->next)
		for (int r = 0; r < comm->nranks; r++)
			i->refused |= i->number && i->number == o[r].number;
	pthread_mutex_unlock(&w->lock);
}

static int refused(struct shunt_comm *comm, const struct offer *o, int who, const char *why)
{
	refuse_windows(comm, o);
	if (comm->rank == 0)
		shunt_info(SHUNT_LOG_INIT,
		    "communicator of %d ranks: window %llu of %llu bytes is not used in place, rank %d: %s",
		    comm->nranks, (unsigned long long)o[0].number, (unsigned long long)o[0].bytes, who, why);
	return -EOPNOTSUPP;
}

static int agree(struct shunt_comm *comm, struct shunt_window *w, int *fd_p, int *fds)
{
	struct offer offer, offers[SHUNT_MAX_RANKS];
	struct shunt_verdict verdict, verdicts[SHUNT_MAX_RANKS];
	const char *why;
	int who = 0, err;

	make_offer(comm, w, &offer, fd_p);
	err = gather(comm, &offer, sizeof(offer), offers, *fd_p, fds);
	if (err)
		return err;
	why = judge(offers, comm->nranks, &who);
	if (why)
		return refused(comm, offers, who, why);
	map_peers(comm, w, offers, fds, &verdict);
	err = gather(comm, &verdict, sizeof(verdict), verdicts, -1, NULL);
	if (!err && (who = shunt_verdict_find(verdicts, comm->nranks)) >= 0)
		err = refused(comm, offers, who, verdicts[who].why);
	if (err) {
		for (int r = 0; r < comm->nranks; r++)
			comm->gpu->share_free(&w->mem[r]);
		return err;
	}
	pthread_mutex_lock(&comm->windows.lock);
	w->ready = true;
	pthread_mutex_unlock(&comm->windows.lock);
	if (comm->rank == 0)
		shunt_info(SHUNT_LOG_INIT, "communicator of %d ranks: window %llu of %llu bytes is used in place",
		    comm->nranks, (unsigned long long)w->number, (unsigned long long)w->bytes);
	return 0;
}

int shunt_windows_agree(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	struct shunt_windows *all = &comm->windows;
	int fd = -1, fds[SHUNT_MAX_RANKS], err;
	struct shunt_window *w;

	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		fds[r] = -1;
	/* A window is freed with our lock only, which we hold. */
	pthread_mutex_lock(&all->lock);
	w = find(all->live, ptr, bytes, false);
	pthread_mutex_unlock(&all->lock);
	if (w && w->ready)
		return 0;
	shunt_recorder_phase(comm->recorder, "agreement on a window");
	err = agree(comm, w, &fd, fds);
	shunt_recorder_phase(comm->recorder, NULL);
	shunt_io_close_all(&fd, 1);
	shunt_io_close_all(fds, comm->nranks);
	if (err && err != -EOPNOTSUPP) {
		if (err != -ECANCELED)
			shunt_error("communicator of %d ranks, rank %d: agreeing on a window: %s", comm->nranks,
			    comm->rank, strerror(-err));
		shunt_comm_fail(comm, err);
	}
	return err;
}

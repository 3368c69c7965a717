/* SPDX-License-Identifier: MIT */
#include "kernels/set.h"
#include "comm/calls/windows.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/lock.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "comm/core/communicator.h"
#include "transport/symm/symm.h"

/* shunt_symmem_offset: the window's number, then this many bits of offset. */
#define OFFSET_BITS 48

struct shunt_window {
	struct shunt_window *next;
	const void *name;
	char *base;
	size_t bytes;
	uint64_t number; /* 0: not symmetric, and never used */
	bool ready, refused_now;
	/* Protected by the communicator's lock; valid if ready. */
	struct shunt_gpu_mem mem[SHUNT_MAX_RANKS]; /* of the peers: the allocation */
	uint64_t at[SHUNT_MAX_RANKS];              /* ... and the window's offset in it */
};

static struct shunt_comm *comm_of(struct shunt_symmem *w)
{
	return (struct shunt_comm *)((char *)w - offsetof(struct shunt_comm, symmem));
}

void shunt_symmem_init(struct shunt_symmem *w)
{
	shunt_mutex_init(&w->lock, SHUNT_LOCK_WINDOWS);
}

static void unmap_window(const struct shunt_gpu_ops *gpu, struct shunt_window *w)
{
	if (w->ready)
		shunt_symm_free(gpu, w->mem, SHUNT_MAX_RANKS);
	w->ready = false;
}

static void free_windows(const struct shunt_gpu_ops *gpu, struct shunt_window *w)
{
	struct shunt_window *next;

	for (; w; w = next) {
		next = w->next;
		unmap_window(gpu, w);
		free(w);
	}
}

void shunt_symmem_finish(struct shunt_comm *comm)
{
	struct shunt_symmem *w = &comm->symmem;

	free_windows(comm->gpu, w->live);
	free_windows(comm->gpu, w->deferred);
	free_windows(comm->gpu, w->names_only);
	if (w->used_event)
		comm->gpu->event_destroy(comm->device, w->used_event);
	shunt_mutex_destroy(&w->lock);
}

/* ---- for the shim */

struct shunt_window *shunt_symmem_add(struct shunt_comm *comm, void *base, size_t bytes, bool symmetric)
{
	struct shunt_symmem *w = &comm->symmem;
	struct shunt_window *mine = calloc(1, sizeof(*mine)), **at;

	if (!mine)
		return NULL;
	mine->name = mine;
	mine->base = base;
	mine->bytes = bytes;
	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		mine->mem[r].fd = -1;
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	comm->registration.windows = true;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	shunt_mutex_lock(&w->lock);
	mine->number = symmetric ? ++w->last_number : 0;
	for (at = &w->live; *at; at = &(*at)->next)
		;
	*at = mine;
	atomic_fetch_add(&w->nlive, 1);
	shunt_comm_changed(comm);
	shunt_mutex_unlock(&w->lock);
	return mine;
}

/* With the list's lock held: the link to the window of this name, or to NULL. */
static struct shunt_window **find_named_in(struct shunt_window **at, const void *name)
{
	while (*at && (*at)->name != name)
		at = &(*at)->next;
	return at;
}

static struct shunt_window **find_named(struct shunt_symmem *w, const void *name)
{
	return find_named_in(&w->live, name);
}

/* With the list's lock held. */
static void defer_unmap(struct shunt_symmem *w, struct shunt_window *mine)
{
	mine->next = w->deferred;
	w->deferred = mine;
	atomic_store(&w->any_deferred, true);
}

static void unlink_window(struct shunt_symmem *w, struct shunt_window **at)
{
	struct shunt_window *mine = *at;

	*at = mine->next;
	atomic_fetch_sub(&w->nlive, 1);
	shunt_comm_changed(comm_of(w));
	defer_unmap(w, mine);
}

/*
 * With the list's lock held: as unlink_window, for a window that the program will still deregister. The name may be the
 * window's address, so that address stays in use.
 */
static void unlink_but_name(struct shunt_symmem *w, struct shunt_window **at)
{
	struct shunt_window *mine = *at, *copy = mine->name ? malloc(sizeof(*copy)) : NULL;

	if (!copy) {
		unlink_window(w, at);
		return;
	}
	*copy = *mine;
	*at = mine->next;
	atomic_fetch_sub(&w->nlive, 1);
	shunt_comm_changed(comm_of(w));
	defer_unmap(w, copy);
	mine->ready = false;
	mine->next = w->names_only;
	w->names_only = mine;
}

/*
 * The windows that can be unmapped now, or NULL. Where another thread has the communicator's lock, that thread or a
 * later call takes them.
 */
static struct shunt_window *try_take_deferred(struct shunt_comm *comm)
{
	struct shunt_window *deferred;

	if (!shunt_mutex_trylock(&comm->lock))
		return NULL;
	deferred = shunt_symmem_take_deferred(comm);
	shunt_mutex_unlock(&comm->lock);
	return deferred;
}

void shunt_symmem_set_name(struct shunt_comm *comm, const struct shunt_window *window, const void *name)
{
	struct shunt_symmem *w = &comm->symmem;
	struct shunt_window *i;

	shunt_mutex_lock(&w->lock);
	for (i = w->live; i && i != window; i = i->next)
		;
	if (i)
		i->name = name;
	shunt_mutex_unlock(&w->lock);
}

bool shunt_symmem_remove(struct shunt_comm *comm, const void *name)
{
	struct shunt_symmem *w = &comm->symmem;
	struct shunt_window **at, *names_only;
	bool found;

	if (!name)
		return false;
	shunt_mutex_lock(&w->lock);
	at = find_named(w, name);
	found = *at;
	if (found) {
		unlink_window(w, at);
	} else if ((names_only = *(at = find_named_in(&w->names_only, name)))) {
		*at = names_only->next;
		defer_unmap(w, names_only);
		found = true;
	}
	shunt_mutex_unlock(&w->lock);
	if (found)
		free_windows(comm->gpu, try_take_deferred(comm));
	return found;
}

void shunt_symmem_remove_unnamed(struct shunt_comm *comm)
{
	struct shunt_symmem *w = &comm->symmem;
	struct shunt_window **at;
	bool any = false;

	if (!atomic_load(&w->nlive))
		return;
	shunt_mutex_lock(&w->lock);
	for (at = find_named(w, NULL); *at; at = find_named(w, NULL)) {
		unlink_window(w, at);
		any = true;
	}
	shunt_mutex_unlock(&w->lock);
	if (any)
		free_windows(comm->gpu, try_take_deferred(comm));
}

bool shunt_symmem_base(struct shunt_comm *comm, const void *name, void **base_p)
{
	struct shunt_symmem *w = &comm->symmem;
	const struct shunt_window *found = NULL;

	shunt_mutex_lock(&w->lock);
	if (name)
		found = *find_named(w, name);
	if (found)
		*base_p = found->base;
	shunt_mutex_unlock(&w->lock);
	return found;
}

static bool unlink_between(struct shunt_symmem *w, uintptr_t from, size_t bytes)
{
	struct shunt_window **at = &w->live;
	bool any = false;

	shunt_mutex_lock(&w->lock);
	while (*at) {
		uintptr_t base = (uintptr_t)(*at)->base;

		if (base - from < bytes || from - base < (*at)->bytes) {
			unlink_but_name(w, at);
			any = true;
		} else {
			at = &(*at)->next;
		}
	}
	shunt_mutex_unlock(&w->lock);
	return any;
}

static bool has_windows(const struct shunt_registration *r)
{
	return r->windows;
}

void shunt_symmem_forget(const void *memory)
{
	struct shunt_window *deferred = NULL, *of_one, **end = &deferred;
	struct shunt_registration *r = NULL;
	const struct shunt_gpu_ops *gpu = NULL;
	size_t bytes = 1;
	void *base;

	while ((r = shunt_registry_next(r, has_windows))) {
		if (!gpu) {
			gpu = shunt_gpu();
			/* No size is known: then only the window that contains this address, or begins there. */
			if (gpu && gpu->mem_range(memory, &base, &bytes))
				bytes = 1;
		}
		of_one = unlink_between(&r->comm->symmem, (uintptr_t)memory, bytes) ? try_take_deferred(r->comm) : NULL;
		for (*end = of_one; *end; end = &(*end)->next)
			;
	}
	free_windows(gpu, deferred);
}

/* ---- look-ups */

static bool window_contains(const struct shunt_window *w, const void *ptr, uint64_t bytes)
{
	uint64_t at = (uintptr_t)ptr - (uintptr_t)w->base;

	return w->number && at < w->bytes && bytes <= w->bytes - at;
}

/* With the list's lock held. */
static struct shunt_window *find_window(struct shunt_window *list, const void *ptr, uint64_t bytes, bool ready)
{
	while (list && (list->refused_now || (ready && !list->ready) || !window_contains(list, ptr, bytes)))
		list = list->next;
	return list;
}

enum shunt_window_state shunt_symmem_state(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	struct shunt_symmem *w = &comm->symmem;
	enum shunt_window_state state = SHUNT_WINDOW_NONE;
	const struct shunt_window *found;

	if (!atomic_load_explicit(&w->nlive, memory_order_relaxed) || !bytes)
		return state;
	shunt_mutex_lock(&w->lock);
	found = find_window(w->live, ptr, bytes, false);
	if (found)
		state = found->ready ? SHUNT_WINDOW_READY : SHUNT_WINDOW_NEW;
	shunt_mutex_unlock(&w->lock);
	return state;
}

/* A ready window. A window that was removed after the call had been decided will do: it is still mapped. */
static struct shunt_window *find_ready(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	struct shunt_symmem *w = &comm->symmem;
	struct shunt_window *found;

	shunt_mutex_lock(&w->lock);
	found = find_window(w->live, ptr, bytes, true);
	if (!found)
		found = find_window(w->deferred, ptr, bytes, true);
	shunt_mutex_unlock(&w->lock);
	return found;
}

void *shunt_symmem_peer_ptr(struct shunt_comm *comm, const void *ptr, uint64_t bytes, int peer)
{
	const struct shunt_window *w = find_ready(comm, ptr, bytes);

	return w ? (char *)w->mem[peer].ptr + w->at[peer] + ((const char *)ptr - w->base) : NULL;
}

bool shunt_symmem_aligned(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	const struct shunt_window *w = find_ready(comm, ptr, bytes);
	uint64_t odd = w ? (uint64_t)((const char *)ptr - w->base) : 1;

	for (int r = 0; r < comm->nranks && w; r++)
		odd |= w->at[r];
	return !(odd & 15);
}

uint64_t shunt_symmem_offset(struct shunt_comm *comm, const void *ptr)
{
	const struct shunt_window *w = find_ready(comm, ptr, 1);

	return w ? w->number << OFFSET_BITS | (uint64_t)((const char *)ptr - w->base) : 0;
}

int shunt_symmem_note_use(struct shunt_comm *comm, void *stream, bool captured)
{
	struct shunt_symmem *w = &comm->symmem;

	if (captured) {
		w->used_captured = true;
		return 0;
	}
	w->used_eagerly = true;
	return comm->gpu->event_record(comm->device, w->used_event, stream);
}

struct shunt_window *shunt_symmem_take_deferred(struct shunt_comm *comm)
{
	struct shunt_symmem *w = &comm->symmem;
	struct shunt_window *deferred;
	bool idle = true;

	if (!atomic_load_explicit(&w->any_deferred, memory_order_relaxed))
		return NULL;
	/* A query that fails now is repeated the next time. */
	if (w->used_eagerly && comm->gpu->event_done(comm->device, w->used_event, &idle))
		return NULL;
	if (idle && w->used_captured && shunt_order_graphs_idle(&comm->order, comm->gpu, comm->device, &idle))
		return NULL;
	if (!idle)
		return NULL;
	shunt_mutex_lock(&w->lock);
	deferred = w->deferred;
	w->deferred = NULL;
	atomic_store(&w->any_deferred, false);
	shunt_mutex_unlock(&w->lock);
	return deferred;
}

void shunt_symmem_free(struct shunt_comm *comm, struct shunt_window *deferred)
{
	free_windows(comm->gpu, deferred);
}

/* ---- agreement */

/* A failure becomes this rank's vote. */
static void offer_window(struct shunt_comm *comm, struct shunt_window *w, struct shunt_symm *symm)
{
	int err;

	if (!w) {
		shunt_vote_refuse(&symm->vote, "it was deregistered in the meantime");
		return;
	}
	if (shunt_symm_register(symm, w->base, w->bytes) || comm->symmem.used_event)
		return;
	err = comm->gpu->event_create(comm->device, false, &comm->symmem.used_event);
	if (err)
		shunt_vote_refuse(&symm->vote, "%s", shunt_error_text(err).s);
}

/*
 * Refuses every window that some rank offered: a later call with one of them must not wait for ranks that have refused
 * theirs.
 */
static void refuse_windows(struct shunt_comm *comm, const struct shunt_symm_terms *offered)
{
	struct shunt_symmem *w = &comm->symmem;

	shunt_mutex_lock(&w->lock);
	for (struct shunt_window *i = w->live; i; i = i->next)
		for (int r = 0; r < comm->nranks; r++)
			i->refused_now |= i->number && i->number == offered[r].value[0];
	shunt_mutex_unlock(&w->lock);
}

static void window_refused(struct shunt_comm *comm, const struct shunt_symm_terms *offered, const char *refusal)
{
	refuse_windows(comm, offered);
	if (comm->rank == 0)
		shunt_info(SHUNT_LOG_INIT,
		    "communicator of %d ranks: window %llu of %llu bytes is not used in place, %s", comm->nranks,
		    (unsigned long long)offered[0].value[0], (unsigned long long)offered[0].bytes, refusal);
}

/* w: NULL if the window is gone. */
static int agree_on(struct shunt_comm *comm, struct shunt_window *w)
{
	struct shunt_symm_terms offered[SHUNT_MAX_RANKS] = { 0 };
	struct shunt_gpu_mem mem[SHUNT_MAX_RANKS] = { 0 };
	uint64_t at[SHUNT_MAX_RANKS];
	struct shunt_symm symm;
	int err;

	shunt_symm_init(&symm,
	    &(struct shunt_symm_config){ .ranks = shunt_comm_ranks(comm, shunt_config()->timeout),
	        .gpu = comm->gpu,
	        .device = comm->device,
	        .process = shunt_process_token(),
	        .what = "window",
	        .mem = mem,
	        .at = at,
	        .value = { w ? w->number : 0 },
	        .differs = { "its buffer lies in another window than that of rank 0" },
	        .terms = offered });
	offer_window(comm, w, &symm);
	err = shunt_symm_agree(&symm);
	if (err == -EOPNOTSUPP)
		window_refused(comm, offered, symm.refusal);
	if (err) {
		shunt_symm_free(comm->gpu, mem, comm->nranks);
		return err;
	}
	shunt_mutex_lock(&comm->symmem.lock);
	/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): offer_window refuses for a window that is gone */
	memcpy(w->mem, mem, sizeof(mem[0]) * (size_t)comm->nranks);
	memcpy(w->at, at, sizeof(at[0]) * (size_t)comm->nranks);
	w->ready = true;
	shunt_mutex_unlock(&comm->symmem.lock);
	if (comm->rank == 0)
		shunt_info(SHUNT_LOG_INIT, "communicator of %d ranks: window %llu of %llu bytes is used in place",
		    comm->nranks, (unsigned long long)w->number, (unsigned long long)w->bytes);
	return 0;
}

int shunt_symmem_agree(struct shunt_comm *comm, const void *ptr, uint64_t bytes)
{
	struct shunt_symmem *all = &comm->symmem;
	struct shunt_window *w;
	int err;

	/* A window is freed only with the communicator's lock, which the caller holds. */
	shunt_mutex_lock(&all->lock);
	w = find_window(all->live, ptr, bytes, false);
	shunt_mutex_unlock(&all->lock);
	if (w && w->ready)
		return 0;
	shunt_recorder_phase(comm->recorder, "agreement on a window");
	err = agree_on(comm, w);
	shunt_recorder_phase(comm->recorder, NULL);
	return err && err != -EOPNOTSUPP ? shunt_comm_fail_round(comm, err, "agreeing on a window") : err;
}

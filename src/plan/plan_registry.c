/* SPDX-License-Identifier: MIT */
#include "plan/load.h"
#include "plan/plan_registry.h"
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/lock.h"
#include "plan/proofs.h"
#include "plan/plan_registry_priv.h"

enum { MAX_HOSTS = 64, MAX_LOCALS = 8 };

/*
 * The process's plans: those of the program, then those from files. They are tried by priority, then in this order. A
 * list is not changed: a new one takes its place by one store, so that a forked child has one or the other whole,
 * whatever another thread of its parent was doing.
 */
struct plan_list {
	size_t n;
	size_t nregistered; /* the first of them, which the program registered */
	struct shunt_plan *plans[];
};

static const struct plan_list no_plans;

static struct {
	atomic_bool loaded; /* the directories were read */
	bool replaced;      /* a test has replaced the configuration's values by these */
	char *plan_dir, *cache_dir;
	bool same_place;
	_Atomic(const struct plan_list *) list; /* NULL: no plans */
	struct shunt_selector *_Atomic selector;
	atomic_uchar defaults[MAX_HOSTS + 1]; /* by number of hosts: bit n - 1: those with n ranks each were read */
} registry;

/* With the lock held, as the following functions. */
static const struct plan_list *registry_list(void)
{
	const struct plan_list *list = atomic_load_explicit(&registry.list, memory_order_relaxed);

	return list ? list : &no_plans;
}

static void registry_replace(const struct plan_list *list)
{
	free((void *)(uintptr_t)atomic_exchange(&registry.list, list));
}

static void registry_select(struct shunt_selector *s)
{
	shunt_selector_unref(atomic_exchange(&registry.selector, s));
}

/*
 * The program's plans come before those of files. On success the registry owns the caller's reference. -EEXIST: the
 * same plan is there already.
 */
static int registry_insert(struct shunt_plan *plan, bool registers)
{
	const struct plan_list *old = registry_list();
	size_t at = registers ? old->nregistered : old->n;
	struct plan_list *list;

	for (size_t i = 0; i < old->n; i++)
		if (old->plans[i]->hash == plan->hash)
			return -EEXIST;
	list = malloc(sizeof(*list) + (old->n + 1) * sizeof(struct shunt_plan *));
	if (!list)
		return -ENOMEM;
	list->n = old->n + 1;
	list->nregistered = old->nregistered + registers;
	memcpy(list->plans, old->plans, at * sizeof(struct shunt_plan *));
	list->plans[at] = plan;
	memcpy(list->plans + at + 1, old->plans + at, (old->n - at) * sizeof(struct shunt_plan *));
	registry_replace(list);
	return 0;
}

/* ctx: NULL unless the user named the file. */
static void add_file(void *ctx, const char *path)
{
	struct shunt_plan *plan;
	char reason[1024];
	int err = shunt_plan_load_file(path, &plan, reason, sizeof(reason));

	if (err) {
		shunt_warn("plan refused: %s", reason);
		return;
	}
	/* A communicator's first use may wait for this: no proof is begun here. */
	err = shunt_plan_judge(plan, SHUNT_PLAN_PROVE_IF_KNOWN, reason, sizeof(reason));
	if (err) {
		shunt_warn("plan refused: %s", reason);
		shunt_plan_unref(plan);
		return;
	}
	if (plan->status != SHUNT_PLAN_PROVED)
		shunt_info(SHUNT_LOG_INIT, "plan %s is not proved to be right: %s", plan->name,
		    plan->doubt ? plan->doubt : "`shunt plan check` proves it, and remembers that");
	plan->asked = ctx != NULL;
	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	err = registry_insert(plan, false);
	shunt_lock_release(SHUNT_LOCK_PLANS);
	if (!err) {
		shunt_info(SHUNT_LOG_INIT, "plan %s: %s among %u ranks, from %s", plan->name,
		    shunt_plan_collective_name(plan->collective), plan->nranks, path);
		return;
	}
	if (err == -EEXIST)
		shunt_info(SHUNT_LOG_INIT, "plan %s: there already, %s is the same", plan->name, path);
	else
		shunt_warn("plan refused: %s: %s", path, strerror(-err));
	shunt_plan_unref(plan);
}

/* Of the directory that the user names; others are there for whoever may use them. */
static const struct shunt_files named = { .what = "plans", .one = "plan", .add = add_file, .ctx = &registry };
static const struct shunt_files found = { .what = "plans", .one = "plan", .add = add_file };

/* Without the registry's lock, since files may be far away; other threads that want plans wait for them. */
static void load_once(void)
{
	const struct shunt_config *config = shunt_config();

	if (atomic_load_explicit(&registry.loaded, memory_order_acquire))
		return;
	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_PLAN_FILES);
	if (!atomic_load(&registry.loaded)) {
		if (!registry.replaced)
			registry.same_place = config->plan_same_place;
		shunt_files_list(&named, registry.replaced ? registry.plan_dir : config->plan_dir);
		shunt_files_cached(&found, registry.replaced ? registry.cache_dir : config->cache_dir, "default");
		atomic_store_explicit(&registry.loaded, true, memory_order_release);
	}
	shunt_lock_release(SHUNT_LOCK_PLAN_FILES);
	shunt_log_flush();
}

/* ctx: the end of the names of those to be read. */
static void add_default(void *ctx, const char *path)
{
	size_t n = strlen(path), end = strlen(ctx);

	if (n > end && !strcmp(path + n - end, ctx))
		add_file(NULL, path);
}

void shunt_plan_defaults_load(int nhosts, int nlocals)
{
	char dir[PATH_MAX], end[32];
	const struct shunt_files files = { .what = "plans", .one = "plan", .add = add_default, .ctx = end };
	unsigned char bit;

	if (nhosts < 1 || nhosts > MAX_HOSTS || nlocals < 1 || nlocals > MAX_LOCALS)
		return;
	bit = (unsigned char)(1u << (nlocals - 1));
	load_once();
	if (atomic_load_explicit(&registry.defaults[nhosts], memory_order_acquire) & bit)
		return;
	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_PLAN_FILES);
	snprintf(end, sizeof(end), "_%dx%d.json", nhosts, nlocals);
	if (!(atomic_load(&registry.defaults[nhosts]) & bit)) {
		if (shunt_plan_defaults_dir(dir, sizeof(dir)))
			shunt_files_path(&files, dir, *shunt_config()->default_plans);
		atomic_fetch_or_explicit(&registry.defaults[nhosts], bit, memory_order_release);
	}
	shunt_lock_release(SHUNT_LOCK_PLAN_FILES);
	shunt_log_flush();
}

int shunt_plan_registry_add(struct shunt_plan *plan)
{
	int err;

	load_once();
	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	err = registry_insert(plan, true);
	shunt_lock_release(SHUNT_LOCK_PLANS);
	return err;
}

struct shunt_plan *shunt_plan_registry_at(size_t i)
{
	struct shunt_plan *plan;

	load_once();
	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	plan = i < registry_list()->n ? shunt_plan_ref(registry_list()->plans[i]) : NULL;
	shunt_lock_release(SHUNT_LOCK_PLANS);
	return plan;
}

int shunt_plan_registry_remove(const char *name)
{
	struct shunt_plan **removed;
	struct plan_list *list;
	size_t nremoved = 0;
	const struct plan_list *old;
	int err = 0;

	load_once();
	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	old = registry_list();
	list = calloc(1, sizeof(*list) + old->n * sizeof(struct shunt_plan *));
	removed = calloc(old->n + 1, sizeof(struct shunt_plan *));
	if (!list || !removed)
		err = -ENOMEM;
	for (size_t i = 0; i < old->n && !err; i++) {
		if (strcmp(old->plans[i]->name, name)) {
			list->plans[list->n++] = old->plans[i];
			list->nregistered += i < old->nregistered;
		} else {
			removed[nremoved++] = old->plans[i];
		}
	}
	if (nremoved) {
		registry_replace(list);
		list = NULL;
	}
	shunt_lock_release(SHUNT_LOCK_PLANS);
	for (size_t i = 0; i < nremoved; i++)
		shunt_plan_unref(removed[i]);
	free(removed);
	free(list);
	return err ? err : nremoved ? 0 : -ENOENT;
}

int shunt_plan_registry_selector(shunt_plan_selector *function, void *arg)
{
	struct shunt_selector *s = NULL;
	bool done;

	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	if (function)
		s = shunt_selector_create(function, arg);
	done = s || !function;
	if (done)
		registry_select(s);
	shunt_lock_release(SHUNT_LOCK_PLANS);
	return done ? 0 : -ENOMEM;
}

void shunt_plan_registry_reset(const char *plan_dir, const char *cache_dir, bool same_place)
{
	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	for (size_t i = 0; i < registry_list()->n; i++)
		shunt_plan_unref(registry_list()->plans[i]);
	registry_replace(NULL);
	free(registry.plan_dir);
	free(registry.cache_dir);
	registry_select(NULL);
	atomic_store(&registry.loaded, false);
	for (int i = 0; i <= MAX_HOSTS; i++)
		atomic_store(&registry.defaults[i], 0);
	registry.replaced = true;
	registry.plan_dir = strdup(plan_dir);
	registry.cache_dir = strdup(cache_dir);
	registry.same_place = same_place;
	shunt_lock_release(SHUNT_LOCK_PLANS);
}

/* Higher priority first, then the registry's order. */
static int by_priority(const void *x, const void *y)
{
	const struct shunt_plan_entry *a = x, *b = y;

	if (a->plan->priority != b->plan->priority)
		return a->plan->priority > b->plan->priority ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

static uint64_t hash_set(const struct shunt_plan_set *set)
{
	const uint64_t steers[] = { set->n, set->selector != NULL, set->same_place };
	uint64_t h = shunt_fnv1a(0, steers, sizeof(steers));

	if (!set->n && !set->selector)
		return 0;
	for (size_t i = 0; i < set->n; i++)
		h = shunt_fnv1a(h, &set->entries[i].plan->hash, sizeof(uint64_t));
	return h ? h : 1;
}

/* True: the set has the plan. reason: why not, "" where nobody expected it. */
static bool belongs(const struct shunt_plan *plan, const struct shunt_plan_set *set,
    const struct shunt_plan_placement *placement, char *reason, size_t bytes)
{
	reason[0] = 0;
	if (set->nranks < 1 || plan->nranks != (uint32_t)set->nranks)
		return false;
	if (plan->ranks_per_node && plan->ranks_per_node != (uint32_t)set->ranks_per_node)
		return false;
	return !placement || shunt_plan_fits_hosts(plan, placement, reason, bytes);
}

/* A line for each plan that does not fit the hosts. Without a lock: `plans` has references. */
static void tell_misfits(
    const struct shunt_plan_set *set, struct shunt_plan **plans, size_t n, const struct shunt_plan_placement *placement)
{
	char reason[160];

	for (size_t i = 0; i < n; i++)
		if (!belongs(plans[i], set, placement, reason, sizeof(reason)) && reason[0])
			shunt_warn("plan %s is not used on these %d ranks: %s", plans[i]->name, set->nranks, reason);
}

struct shunt_plan_set *shunt_plan_set_get_over(
    int nranks, int ranks_per_node, const struct shunt_plan_placement *placement, bool speak)
{
	struct shunt_plan **misfits = NULL;
	struct shunt_plan_set *set;
	const struct plan_list *list;
	size_t nmisfits = 0;
	char reason[160];

	load_once();
	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	list = registry_list();
	set = calloc(1, sizeof(*set) + list->n * sizeof(set->entries[0]));
	if (!set) {
		shunt_lock_release(SHUNT_LOCK_PLANS);
		return NULL;
	}
	set->nranks = nranks;
	set->ranks_per_node = ranks_per_node;
	set->same_place = registry.same_place;
	set->selector = shunt_selector_ref(registry.selector);
	if (placement && speak)
		misfits = calloc(list->n + 1, sizeof(struct shunt_plan *));
	for (size_t i = 0; i < list->n; i++) {
		struct shunt_plan *plan = list->plans[i];

		if (belongs(plan, set, placement, reason, sizeof(reason))) {
			set->entries[set->n] = (struct shunt_plan_entry){ shunt_plan_ref(plan), set->n };
			set->n++;
		} else if (misfits && reason[0] && (i < list->nregistered || plan->asked)) {
			misfits[nmisfits++] = shunt_plan_ref(plan);
		}
	}
	shunt_lock_release(SHUNT_LOCK_PLANS);
	qsort(set->entries, set->n, sizeof(set->entries[0]), by_priority);
	set->hash = hash_set(set);
	if (nmisfits)
		tell_misfits(set, misfits, nmisfits, placement);
	for (size_t i = 0; i < nmisfits; i++)
		shunt_plan_unref(misfits[i]);
	free(misfits);
	return set;
}

struct shunt_plan_set *shunt_plan_set_get(int nranks, int ranks_per_node)
{
	return shunt_plan_set_get_over(nranks, ranks_per_node, NULL, false);
}

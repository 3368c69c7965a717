/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_PLAN_REGISTRY_PRIV_H
#define SHUNT_PLAN_PLAN_REGISTRY_PRIV_H
/*
 * Shared by the registry's files: registry.c (the process's plans), match.c (choice from a set), api.c (public
 * functions).
 */
#include <stdatomic.h>
#include "plan/plan_registry.h"

/* The callback of shunt/shunt.h. */
typedef const char *shunt_plan_selector(void *arg, const struct shunt_plan_request *request);

/*
 * A selector that was set once, in the list of all that the registry or a set still has (SHUNT_LOCK_PLANS). A thread
 * that asks counts itself before it looks at `ended`. So a thread that ends the selector and then finds the count 0
 * knows that no other thread will call it.
 */
struct shunt_selector {
	struct shunt_selector *next;
	shunt_plan_selector *function;
	void *arg;
	unsigned refs; /* with the lock */
	atomic_uint askers;
	atomic_bool ended, end_noticed, was_wrong;
};

struct shunt_plan_entry {
	struct shunt_plan *plan;
	size_t order;
};

struct shunt_plan_set {
	atomic_uint refcount;
	int nranks, ranks_per_node;
	bool same_place;
	struct shunt_selector *selector;
	uint64_t hash;
	size_t n;
	struct shunt_plan_entry entries[];
};

/* On success the registry owns the caller's reference. 0; -EEXIST: the same plan is there already; -ENOMEM. */
int shunt_plan_registry_add(struct shunt_plan *plan);
/* Plan i of all, with a reference for the caller; NULL: there are fewer. */
struct shunt_plan *shunt_plan_registry_at(size_t i);
/* Removes all plans of this name. 0; -ENOENT: none. */
int shunt_plan_registry_remove(const char *name);
/* 0 or -ENOMEM: nothing has changed. */
int shunt_plan_registry_selector(shunt_plan_selector *function, void *arg);

/* ---- defaults.c */

/* The directory of the default plans, which may not be there. False: there is none. */
bool shunt_plan_defaults_dir(char *dir, size_t bytes);

/* ---- selector.c */

/* Puts a selector with one reference into the list; NULL: no memory. With SHUNT_LOCK_PLANS. */
struct shunt_selector *shunt_selector_create(shunt_plan_selector *function, void *arg);
/* NULL is allowed. The last reference frees. With SHUNT_LOCK_PLANS. */
struct shunt_selector *shunt_selector_ref(struct shunt_selector *s);
void shunt_selector_unref(struct shunt_selector *s);
/* False: the selector has been ended. */
bool shunt_selector_ask(struct shunt_selector *s, const struct shunt_plan_request *request, const char **answer_p);
/*
 * Ends all selectors with this function and argument, and waits for other threads that run one of them. 0; -ENOENT:
 * there is no such selector; -ETIMEDOUT: a thread has run one for ten seconds.
 */
int shunt_selector_end(shunt_plan_selector *function, void *arg);
#endif

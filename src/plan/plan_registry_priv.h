/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Shared by the registry's files: registry.c (the process's plans), match.c (choice from a set), api.c (public
 * functions).
 */
#include <stdatomic.h>
#include "base/callback.h"
#include "plan/plan_registry.h"

/* The callback of shunt/shunt.h. */
typedef const char *shunt_plan_selector(void *arg, const struct shunt_plan_request *request);

/* A selector that was set once, and that the registry or a set still has. */
struct shunt_selector {
	struct shunt_callback callback;
	shunt_plan_selector *function;
	void *arg;
	unsigned refs; /* with SHUNT_LOCK_PLANS */
	atomic_bool end_noticed, was_wrong;
};

struct shunt_plan_entry {
	struct shunt_plan *plan;
	size_t order;
};

struct shunt_plan_set {
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

/* A selector with one reference; NULL: no memory. With SHUNT_LOCK_PLANS. */
struct shunt_selector *shunt_selector_create(shunt_plan_selector *function, void *arg);
/* NULL is allowed. The last reference frees. With SHUNT_LOCK_PLANS. */
struct shunt_selector *shunt_selector_ref(struct shunt_selector *s);
void shunt_selector_unref(struct shunt_selector *s);
/* False: the selector has been ended. */
bool shunt_selector_ask(struct shunt_selector *s, const struct shunt_plan_request *request, const char **answer_p);

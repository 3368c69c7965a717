/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_REGISTRY_PRIV_H
#define SHUNT_PLAN_REGISTRY_PRIV_H
/*
 * Shared by the registry's files: registry.c (the process's plans), match.c (choice from a set), api.c (public
 * functions).
 */
#include <stdatomic.h>
#include "plan/registry.h"

/* The callback of shunt/shunt.h. */
typedef const char *shunt_plan_selector(void *arg, const struct shunt_plan_request *request);

struct shunt_plan_entry {
	struct shunt_plan *plan;
	size_t order;
};

struct shunt_plan_set {
	atomic_uint refcount;
	int nranks, ranks_per_node;
	bool same_place;
	shunt_plan_selector *selector;
	void *arg;
	uint64_t hash;
	size_t n;
	struct shunt_plan_entry entries[];
};

/* On success the registry owns the caller's reference. 0; -EEXIST: the same plan is there already; -ENOMEM. */
int shunt_plan_registry_add(struct shunt_plan *plan);
/* Removes all plans of this name. 0; -ENOENT: none. */
int shunt_plan_registry_remove(const char *name);
void shunt_plan_registry_selector(shunt_plan_selector *selector, void *arg);
#endif

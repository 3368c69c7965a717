/* SPDX-License-Identifier: MIT */
/* Description: a fork while another thread changes the list of plans: the child's list is whole. */
#include "base/lock.h"
#include "tests/plan/edit.h"
#include "plan/plan_registry.h"
#include "plan/plan_registry_priv.h"
#include "tests/support/child.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_reallocarray(void *ptr, size_t n, size_t bytes);
void __real_free(void *ptr);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_reallocarray(void *ptr, size_t n, size_t bytes);
void __wrap_free(void *ptr);

static bool forks; /* at each call below that comes under the registry's lock */
static size_t nknown, ntorn, nforks;

/* All plans of the list, whose names begin with "whole"; one more or less, for one comes or goes. */
static bool plans_are_whole(void)
{
	struct shunt_plan *plan;
	size_t n = 0;

	for (; (plan = shunt_plan_registry_at(n)); n++) {
		if (strncmp(plan->name, "whole", 5))
			return false;
		shunt_plan_unref(plan);
	}
	return n + 1 >= nknown && n <= nknown + 1;
}

static void fork_here(void)
{
	if (!forks)
		return;
	if (!pthread_mutex_trylock(&shunt_lock_mutex[SHUNT_LOCK_PLANS])) {
		pthread_mutex_unlock(&shunt_lock_mutex[SHUNT_LOCK_PLANS]);
		return;
	}
	forks = false;
	ntorn += IN_CHILD(!plans_are_whole()) != 0;
	nforks++;
	forks = true;
}

void *__wrap_malloc(size_t bytes)
{
	void *ptr = __real_malloc(bytes);

	fork_here();
	return ptr;
}

void *__wrap_calloc(size_t n, size_t bytes)
{
	void *ptr = __real_calloc(n, bytes);

	fork_here();
	return ptr;
}

void *__wrap_reallocarray(void *ptr, size_t n, size_t bytes)
{
	ptr = __real_reallocarray(ptr, n, bytes);
	fork_here();
	return ptr;
}

void __wrap_free(void *ptr)
{
	fork_here();
	__real_free(ptr);
	fork_here();
}

static int add(json_t *plan, const char *name)
{
	char *text;
	int err;

	edit_set(plan, "name", json_string(name));
	text = json_dumps(plan, JSON_COMPACT);
	forks = true;
	err = shunt_plan_register("test", text, strlen(text), NULL, 0);
	forks = false;
	free(text);
	return err;
}

TEST(test_a_forked_child_has_whole_plans)
{
	enum { MANY = 20 };
	json_t *plan = edit_open("allreduce_oneshot_2");
	char name[32];

	shunt_plan_registry_reset("", "/dev/null/cache", false);
	for (; nknown < MANY; nknown++) {
		snprintf(name, sizeof(name), "whole%zu", nknown);
		assert_int_equal(add(plan, name), 0);
	}
	for (; nknown > 0; nknown--) {
		snprintf(name, sizeof(name), "whole%zu", MANY - nknown);
		forks = true;
		assert_int_equal(shunt_plan_registry_remove(name), 0);
		forks = false;
	}
	assert_true(nforks >= MANY);
	assert_int_equal(ntorn, 0);
	json_decref(plan);
}

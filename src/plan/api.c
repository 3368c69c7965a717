/* SPDX-License-Identifier: MIT */
/* The plan functions of shunt/shunt.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "plan/registry_priv.h"

static int register_plan(struct shunt_plan *plan, char *reason, size_t bytes)
{
	int err = shunt_plan_registry_add(plan);

	if (!err)
		return 0;
	if (reason)
		snprintf(reason, bytes, "%s: plan %s: %s", plan->source, plan->name,
		    err == -EEXIST ? "the same is there already" : strerror(-err));
	shunt_plan_unref(plan);
	return err;
}

static int fail_null(const char *what, char *reason, size_t bytes)
{
	if (reason)
		snprintf(reason, bytes, "%s is NULL", what);
	return -EINVAL;
}

int shunt_plan_register_file(const char *path, char *reason, size_t bytes)
{
	struct shunt_plan *plan;
	int err;

	if (!path)
		return fail_null("path", reason, bytes);
	err = shunt_plan_load_file(path, &plan, reason, bytes);
	return err ? err : register_plan(plan, reason, bytes);
}

int shunt_plan_register(const char *label, const void *json, size_t json_bytes, char *reason, size_t bytes)
{
	struct shunt_plan *plan;
	int err;

	if (!label || !json)
		return fail_null(label ? "json" : "label", reason, bytes);
	err = shunt_plan_load_buffer(label, json, json_bytes, &plan, reason, bytes);
	return err ? err : register_plan(plan, reason, bytes);
}

int shunt_plan_unregister(const char *name)
{
	return name ? shunt_plan_registry_remove(name) : -EINVAL;
}

void shunt_plan_set_selector(const char *(*selector)(void *arg, const struct shunt_plan_request *request), void *arg)
{
	shunt_plan_registry_selector(selector, arg);
}

/* SPDX-License-Identifier: MIT */
/* The plan functions of shunt/shunt.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/log.h"
#include "plan/load.h"
#include "plan/proofs.h"
#include "plan/plan_report.h"
#include "plan/plan_registry_priv.h"

static int register_plan(struct shunt_plan *plan, char *reason, size_t bytes)
{
	int err = shunt_plan_judge(plan, SHUNT_PLAN_PROVE, reason, bytes);

	if (err) {
		shunt_plan_unref(plan);
		return err;
	}
	if (plan->status != SHUNT_PLAN_PROVED)
		shunt_warn("plan %s is not proved to be right: %s", plan->name,
		    plan->doubt ? plan->doubt : "it is too large to decide");
	err = shunt_plan_registry_add(plan);
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

int shunt_plan_at(size_t i, struct shunt_plan_info *info)
{
	struct shunt_plan *plan;

	if (!info || info->size < sizeof(*info))
		return -EINVAL;
	plan = shunt_plan_registry_at(i);
	if (!plan)
		return -ENOENT;
	*info = (struct shunt_plan_info){ .size = info->size,
		.collective = shunt_plan_collective_name(plan->collective),
		.nranks = (int)plan->nranks,
		.ranks_per_node = (int)plan->ranks_per_node,
		.min_bytes = plan->min_bytes,
		.max_bytes = plan->max_bytes,
		.hash = plan->hash,
		.dtypes = plan->dtypes & ((1u << SHUNT_NDTYPES) - 1),
		.priority = plan->priority,
		.automatic = plan->automatic,
		.in_place = plan->inplace };
	snprintf(info->name, sizeof(info->name), "%s", plan->name);
	snprintf(info->source, sizeof(info->source), "%s", plan->source);
	shunt_plan_unref(plan);
	return 0;
}

int shunt_plan_verify(
    const char *label, const void *json, size_t json_bytes, char *report, size_t bytes, size_t *needed_p)
{
	struct shunt_json_writer writer = { 0 };
	struct shunt_plan *plan = NULL;
	char reason[1024] = "", *text = NULL;
	size_t size = 0;
	int err;

	if (!label || !json || !needed_p || (!report && bytes))
		return -EINVAL;
	err = shunt_plan_load_buffer(label, json, json_bytes, &plan, reason, sizeof(reason));
	if (!err)
		err = shunt_plan_judge(plan, SHUNT_PLAN_PROVE, reason, sizeof(reason));
	if (err) {
		shunt_plan_unref(plan);
		plan = NULL;
	}
	writer.out = open_memstream(&text, &size);
	if (!writer.out) {
		shunt_plan_unref(plan);
		return -ENOMEM;
	}
	shunt_plan_report(&writer, NULL, label, plan, reason);
	shunt_plan_unref(plan);
	if (fclose(writer.out))
		err = -ENOMEM;
	*needed_p = size + 1;
	if (text && size < bytes)
		memcpy(report, text, size + 1);
	else if (!err || err == -EINVAL)
		err = -ENOBUFS;
	free(text);
	return err;
}

void shunt_plan_set_selector(const char *(*selector)(void *arg, const struct shunt_plan_request *request), void *arg)
{
	if (shunt_plan_registry_selector(selector, arg))
		shunt_warn("the selector was not set: out of memory");
}

int shunt_plan_end_selector(const char *(*selector)(void *arg, const struct shunt_plan_request *request), void *arg)
{
	return selector ? shunt_callback_end((void *)selector, arg) : -EINVAL;
}

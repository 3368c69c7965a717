/* SPDX-License-Identifier: MIT */
/* From a plan's JSON to a plan that can run: read, checked, simulated. */
#include "plan/load.h"
#include <stdlib.h>
#include "plan/format/plan_priv.h"
#include "plan/verify/check_deadlock.h"

int shunt_plan_load_buffer(
    const char *name, const void *json, size_t json_bytes, struct shunt_plan **plan_p, char *reason, size_t bytes)
{
	struct shunt_plan_log log = shunt_plan_log_init(name, reason, bytes);
	struct shunt_plan_owned *owned;

	if (log.json.bytes)
		*reason = '\0';
	if (json_bytes > SHUNT_PLAN_MAX_JSON)
		return shunt_json_fail(
		    &log.json, EFBIG, "%zu bytes, expected at most %zu", json_bytes, SHUNT_PLAN_MAX_JSON);
	owned = calloc(1, sizeof(*owned));
	if (shunt_plan_no_memory(&log, owned))
		return -ENOMEM;
	atomic_init(&owned->refcount, 1);
	if (!shunt_plan_read(&log, json, json_bytes, owned) || shunt_plan_check(&log, &owned->plan) ||
	    shunt_plan_check_deadlock(&log, &owned->plan) || shunt_plan_check_ll128(&log, &owned->plan))
		goto err_drop;
	owned->plan.source = shunt_arena_strdup(&owned->arena, name);
	if (shunt_plan_no_memory(&log, owned->plan.source))
		goto err_drop;
	shunt_plan_finalize(&owned->plan);
	*plan_p = &owned->plan;
	return 0;
err_drop:
	shunt_plan_unref(&owned->plan);
	return -log.json.err;
}

int shunt_plan_load_file(const char *path, struct shunt_plan **plan_p, char *reason, size_t bytes)
{
	struct shunt_plan_log log = shunt_plan_log_init(path, reason, bytes);
	size_t n = 0;
	char *text = NULL;
	int err = shunt_json_file(&log.json, path, SHUNT_PLAN_MAX_JSON, &text, &n);

	if (err)
		return err;
	err = shunt_plan_load_buffer(path, text, n, plan_p, reason, bytes);
	free(text);
	return err;
}

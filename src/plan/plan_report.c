/* SPDX-License-Identifier: MIT */
#include "plan/plan_report.h"
#include <inttypes.h>
#include <stdio.h>

void shunt_plan_report(
    struct shunt_json_writer *w, const char *key, const char *file, const struct shunt_plan *plan, const char *reason)
{
	char hash[24];

	shunt_json_write_object(w, key);
	shunt_json_write_text(w, "file", file);
	shunt_json_write_bool(w, "ok", plan != NULL);
	if (plan) {
		snprintf(hash, sizeof(hash), "%016" PRIx64, plan->hash);
		shunt_json_write_text(w, "name", plan->name);
		shunt_json_write_text(w, "collective", shunt_plan_collective_name(plan->collective));
		shunt_json_write_uint(w, "ranks", plan->nranks);
		shunt_json_write_text(w, "protocol", plan->ll ? "LL" : "Simple");
		shunt_json_write_bool(w, "inplace", plan->inplace);
		shunt_json_write_uint(w, "blocks", plan->max_blocks);
		shunt_json_write_uint(w, "threads", plan->threads);
		shunt_json_write_uint(w, "min_message_size", plan->min_bytes);
		shunt_json_write_uint(w, "max_message_size", plan->max_bytes);
		shunt_json_write_int(w, "priority", plan->priority);
		shunt_json_write_bool(w, "auto", plan->automatic);
		shunt_json_write_text(w, "hash", hash);
		shunt_json_write_bool(w, "proved", plan->status == SHUNT_PLAN_PROVED);
		if (plan->doubt)
			shunt_json_write_text(w, "doubt", plan->doubt);
		if (plan->unread)
			shunt_json_write_text(w, "unread", plan->unread);
	} else {
		shunt_json_write_text(w, "error", reason);
	}
	shunt_json_write_object_end(w);
}

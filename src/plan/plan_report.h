/* SPDX-License-Identifier: MIT */
#pragma once
/* A plan, or what is wrong with it, as a JSON object. */
#include "base/json.h"
#include "plan/format/plan.h"

/* plan: NULL if it was refused, for this reason. file: where it came from. */
void shunt_plan_report(
    struct shunt_json_writer *w, const char *key, const char *file, const struct shunt_plan *plan, const char *reason);

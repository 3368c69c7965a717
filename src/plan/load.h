/* SPDX-License-Identifier: MIT */
#pragma once
#include "plan/format/plan.h"

/*
 * Loads and checks a plan; the caller owns a reference. On an error (-EINVAL: the plan is wrong; -EFBIG: too large;
 * -ENOMEM; or the file's) reason gets one line, and *plan_p is unchanged. The line begins with the file or name, and
 * says where the fault is and what was expected. Only regular files are read. The memory needed is at most a few
 * hundred times the bytes of the text. Any thread.
 */
int shunt_plan_load_file(const char *path, struct shunt_plan **plan_p, char *reason, size_t bytes);
int shunt_plan_load_buffer(
    const char *name, const void *json, size_t json_bytes, struct shunt_plan **plan_p, char *reason, size_t bytes);

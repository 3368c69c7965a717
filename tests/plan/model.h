/* SPDX-License-Identifier: MIT */
#pragma once
#include "plan/format/plan.h"

/*
 * What plan.h promises of a checked plan, looked at again without the checker's code. NULL: it holds, else what does
 * not.
 */
const char *plan_model_wrong(const struct shunt_plan *plan);
/* Loads text as the fuzzer does: refused with a text, or right. Aborts otherwise. Returns what loading did. */
int plan_model_try(const void *text, size_t bytes);

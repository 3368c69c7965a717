/* SPDX-License-Identifier: MIT */
#pragma once
#include "plan/format/plan_priv.h"

/*
 * Simulates all blocks of all ranks, at several sizes: checks that no block waits for ever, and that counters end as
 * they began. The plan has passed shunt_plan_check.
 */
int shunt_plan_check_deadlock(struct shunt_plan_log *log, const struct shunt_plan *plan);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Results of proofs, kept in $SHUNT_CACHE_DIR/proofs by the plan's hash and this version, so that a plan is proved
 * once and not by each rank of each job. Only files of this user are read. A directory that cannot be written is no
 * error.
 */
#include "plan/format/plan.h"

enum shunt_plan_proving { SHUNT_PLAN_PROVE, SHUNT_PLAN_PROVE_IF_KNOWN };

/*
 * Fills in plan->status, plan->doubt and plan->unread, from what is kept or, with PROVE, from a proof, which can take a
 * second. To be called before others have the plan, under no lock. 0; -EINVAL: the plan is wrong, -ENOMEM: reason gets
 * one line.
 */
int shunt_plan_judge(struct shunt_plan *plan, enum shunt_plan_proving how, char *reason, size_t bytes);

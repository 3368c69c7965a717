/* SPDX-License-Identifier: MIT */
#pragma once
/* Calls of an expert parallel group, for planted.c. */
#include <stdbool.h>
#include "shunt/ep.h"
#include "tests/algos/world.h"

/*
 * Three ranks make `times` dispatches and combines in a row, in the given form of rows, and all that they get is
 * compared with the reference. phases: a launch for each phase, and two calls under way. masks: as of a group that has
 * them; a rank is masked. late: a rank that begins when the others can go no further; -1: none. rank_sums: as with
 * SHUNT_EP_SUM=rank.
 */
void planted_ep(struct world *w, int times, int form, bool phases, bool masks, int late, bool rank_sums);
/*
 * The same of normal mode: `times` layouts, notifies, dispatches and combines, each with a thread that waits for the
 * counts. narrow: rings have two slots.
 */
void planted_ep_normal(struct world *w, int times, bool narrow, int late);
/*
 * In normal mode two ranks make calls that differ, before the third has ended its call before. It hears from both of
 * what is wrong.
 */
void planted_ep_refused(struct world *w);
/*
 * One notify of more tokens than a block has threads. alone: the other ranks never come, and rank 0 gives up by its
 * limit.
 */
void planted_ep_notify(struct world *w, bool alone);

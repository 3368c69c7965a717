/* SPDX-License-Identifier: MIT */
#pragma once
/* What the files of planted.c share. */
#include "tests/algos/world.h"

enum { IN_A_ROW = 8, JITTER_US = 150 };

/* world_start(), with the deadline of this run for all kernels. */
void planted_start(struct world *w, int n);

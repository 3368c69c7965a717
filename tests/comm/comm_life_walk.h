/* SPDX-License-Identifier: MIT */
#pragma once
#include "tests/support/choices.h"

/* Events of a communicator's life, as the choices say, each checked against the tables of comm/parts/comm_life.h. */
void comm_life_walk(struct choices *choices);

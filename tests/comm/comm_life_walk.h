/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TESTS_COMM_LIFE_WALK_H
#define SHUNT_TESTS_COMM_LIFE_WALK_H
#include "tests/support/choices.h"

/* Events of a communicator's life, as the choices say, each checked against the tables of comm/parts/comm_life.h. */
void comm_life_walk(struct choices *choices);
#endif

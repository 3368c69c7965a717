/* SPDX-License-Identifier: MIT */
#include "comm/parts/comm_life.h"

#include <stdio.h>

static void enter(struct shunt_comm_life *life, enum comm_state state)
{
	atomic_store_explicit(&life->state, state, memory_order_release);
}

bool shunt_comm_life_wanted(struct shunt_comm_life *life)
{
	if (shunt_comm_life_state(life) == COMM_UNNAMED)
		enter(life, COMM_WANTED);
	return shunt_comm_life_state(life) == COMM_NEW;
}

bool shunt_comm_life_named(struct shunt_comm_life *life)
{
	enum comm_state state = shunt_comm_life_state(life);

	if (state <= COMM_WANTED)
		enter(life, COMM_NEW);
	return state == COMM_WANTED;
}

void shunt_comm_life_ready(struct shunt_comm_life *life)
{
	enter(life, COMM_READY);
}

void shunt_comm_life_forward(struct shunt_comm_life *life, const char *reason, bool told)
{
	snprintf(life->reason, sizeof(life->reason), "%s", reason);
	enter(life, told ? COMM_FORWARD : COMM_FORWARD_UNTOLD);
}

bool shunt_comm_life_tell(struct shunt_comm_life *life)
{
	int untold = COMM_FORWARD_UNTOLD;

	return shunt_comm_life_state(life) == COMM_FORWARD_UNTOLD &&
	    atomic_compare_exchange_strong(&life->state, &untold, COMM_FORWARD);
}

/* Changes WORKS and LOST; an error stays. False: there is one. */
static bool change_health(struct shunt_comm_life *life, int to)
{
	int from = atomic_load(&life->health);

	do {
		if (from < 0)
			return false;
	} while (!atomic_compare_exchange_weak(&life->health, &from, to));
	return true;
}

void shunt_comm_life_lost(struct shunt_comm_life *life, int rank, int pid)
{
	life->lost_pid = pid;
	change_health(life, 1 + rank);
}

void shunt_comm_life_found(struct shunt_comm_life *life)
{
	change_health(life, 0);
}

bool shunt_comm_life_failed(struct shunt_comm_life *life, int err)
{
	return change_health(life, err);
}

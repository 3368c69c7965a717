/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Changes SHUNT_TIMEOUT and SHUNT_SETUP_TIMEOUT of this process, which has read its environment, for what begins from
 * now on: short, where a fault makes ranks wait in vain, and long, where all is to go well however busy the machine is.
 * For programs that are linked with the library's objects.
 */
#include "tests/support/clock.h"

void limits_set(int timeout_ms, int setup_timeout_ms);
#define LIMIT_LONG_MS (3000 * AT_ONCE_S) /* who ends at once is not taken for who waited in vain */
/*
 * Of the kernels of the process's only communicator, which took the limit when it was set up, from now on. The calls
 * before have had all the time that they took.
 */
void limits_of_kernels(int ms);

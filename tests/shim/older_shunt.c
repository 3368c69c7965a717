/* SPDX-License-Identifier: MIT */
/* A libshunt.so that has the state, but of all functions only one. */
#include "shunt/shunt.h"

SHUNT_API extern const unsigned shunt_state_0;
const unsigned shunt_state_0 = 1;

const char *shunt_version(void)
{
	return "older";
}

/* SPDX-License-Identifier: MIT */
#include "shunt/shunt.h"

const char *shunt_version(void)
{
	return SHUNT_VERSION;
}

/* SPDX-License-Identifier: MIT */
/* Stands in for the kernels that nvcc builds: the fake driver takes a source's name for its fatbin. */
#include "kernels/fatbin.h"

#define ROW(name) [SHUNT_SOURCE_##name] = #name,
const char *const shunt_fatbins[SHUNT_NSOURCES] = { SHUNT_SOURCE_LIST(ROW) };
const char shunt_fatbins_made[] = "";

/* SPDX-License-Identifier: MIT */
/* A shape without a fatbin does not link. */
#include "kernels/fatbin.h"

#define DECLARE(name, number) extern const char shunt_fatbin_##name[];
SHUNT_SHAPE_LIST(DECLARE)
#undef DECLARE

#define ROW(name, number) [number] = shunt_fatbin_##name,
const char *const shunt_fatbins[SHUNT_NSHAPES] = { SHUNT_SHAPE_LIST(ROW) };
#undef ROW

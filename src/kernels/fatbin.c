/* SPDX-License-Identifier: MIT */
/* A source without a fatbin fails to link. */
#include "kernels/fatbin.h"
#include "kargs_bytes.h"

#define DECLARE(name) extern const char shunt_fatbin_##name[];
SHUNT_SOURCE_LIST(DECLARE)
#undef DECLARE

#define ROW(name) [SHUNT_SOURCE_##name] = shunt_fatbin_##name,
const char *const shunt_fatbins[SHUNT_NSOURCES] = { SHUNT_SOURCE_LIST(ROW) };
#undef ROW

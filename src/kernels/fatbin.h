/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The CUDA kernels as nvcc built them: a fatbin per source file, in the library's read-only data. All are NULL in a
 * build without nvcc.
 */
#include "kernels/kernel_list.h"

extern const char *const shunt_fatbins[SHUNT_NSOURCES];
/* Compiler and targets of the fatbins, for messages. */
extern const char shunt_fatbins_made[];

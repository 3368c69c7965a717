/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_NCCL_FIND_H
#define SHUNT_SHIM_NCCL_FIND_H
/*
 * Where the real libnccl.so.2 may be, in the order in which to try. The file is not opened here.
 */
#include <stdbool.h>

/* Is offered an absolute path that may not exist, and where it comes from; true ends the search. */
typedef bool shunt_find_fn(const char *path, const char *from, void *arg);

/* Offers every candidate until one is taken; false if none was. */
bool shunt_find_nccl(shunt_find_fn *take, void *arg);
/* Is this existing file the one that our own code was loaded from, under whatever name? */
bool shunt_find_is_self(const char *path);
#endif

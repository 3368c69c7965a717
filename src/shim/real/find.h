/* SPDX-License-Identifier: MIT */
#pragma once
/* Where the real libnccl.so.2 may be, in the order in which to try. Does not open the file. */
#include <stdbool.h>

/* Gets an absolute path that may not exist, and its source; true ends the search. */
typedef bool shunt_find_fn(const char *path, const char *from, void *arg);

/* Offers candidates until one is taken; false: no candidate was taken. */
bool shunt_find_nccl(shunt_find_fn *take, void *arg);
/* True: our own code was loaded from this existing file, under whatever name. */
bool shunt_find_is_self(const char *path);

/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_RANDOM_H
#define SHUNT_BASE_RANDOM_H
#include <stddef.h>

/* Fills buf with random bytes from the kernel. 0 or -errno (logged). */
int shunt_random(void *buf, size_t bytes);
#endif

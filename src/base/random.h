/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_RANDOM_H
#define SHUNT_BASE_RANDOM_H
#include <stddef.h>

/* From the kernel. 0, or -errno with a line that says so. */
int shunt_random(void *buf, size_t bytes);
#endif

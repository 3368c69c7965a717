/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_CORE_PROCESS_H
#define SHUNT_CORE_PROCESS_H
#include <stdint.h>

/* Random, equal in all of this process and nowhere else, not in its children either: peers in one process borrow each other's memory. */
uint64_t shunt_process(void);
#endif

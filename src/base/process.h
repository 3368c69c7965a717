/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_PROCESS_H
#define SHUNT_BASE_PROCESS_H
#include <stdint.h>

/*
 * Random number of this process; a forked child has another one. Tells peers in the same process, which borrow each
 * other's memory, from others.
 */
uint64_t shunt_process_token(void);

/*
 * Opens /dev/null as stdin, stdout or stderr where the program has closed them. Else our own descriptors would get
 * these numbers, and the program's output would go into memory or connections that we share with peers. To be called
 * before Shunt opens any descriptor.
 */
void shunt_process_reserve_stdio(void);
#endif

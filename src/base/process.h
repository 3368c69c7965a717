/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_PROCESS_H
#define SHUNT_BASE_PROCESS_H
#include <stdint.h>

/*
 * Random, equal in all of this process and nowhere else, not in its children either: peers in one process borrow each
 * other's memory.
 */
uint64_t shunt_process_token(void);

/*
 * Takes the places of stdin, stdout and stderr where the program has closed them, with /dev/null. Else descriptors of
 * ours would get these numbers, and whatever is printed would go into memory or connections that we share with peers.
 * Before we open anything.
 */
void shunt_process_reserve_stdio(void);
#endif

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * With dep_grace. How long after the death of a peer, and after the last progress of a kernel, a communicator breaks,
 * in a program that links the library's own objects: this variable, in the place of two seconds. The time between two
 * looks follows it. Short, where a test waits for the end of the grace; long, where kernels that still make progress
 * must not be taken for kernels that wait, however busy the machine is.
 */
#include <stdbool.h>

#define GRACE_SHORT_MS 100
#define GRACE_LONG_MS 60000
extern int grace_ms; /* of processes that are forked from now on; 2000 at first */

/*
 * Once a peer of this process has died: waits until the process has looked at its peers so often that the grace is
 * over. False: it does not look.
 */
bool grace_is_over(void);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Waits for what another thread, process or kernel does, so that a test acts in the middle of it for certain. Each call
 * returns true as soon as it is so. After AT_ONCE_S it returns false, with a line on stderr that says what did not
 * come. Kernels of the sim in this process: shunt_sim_wait_stuck() in device/sim/hooks.h.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

/*
 * The process's dump, as `shunt doctor` gets it, has the text. Fields that only grow, such as "last", cannot be
 * missed: a look may come late.
 */
bool until_dump_has(pid_t pid, const char *text);
/* ... that its device has begun call `seq` of some communicator. */
bool until_begun(pid_t pid, unsigned seq);
bool until_process_stops(pid_t pid);
/* Ended with all its threads, so that nobody answers for it any more. */
bool until_process_ends(pid_t pid);
/*
 * All threads of this process but the caller sleep in the system, whenever looked at for 10 ms. Not while a kernel of
 * the sim runs or threads poll each other all the time.
 */
bool until_all_threads_wait(void);
/* How many threads this process has; and waits until they are no more than so many. */
int until_threads_now(void);
bool until_threads_are(int most);
/* name: what is counted, for the line. */
bool until_counted(const atomic_int *count, int least, const char *name);

/* SPDX-License-Identifier: MIT */
#pragma once
/* Limits that the system sets to a process: how they are raised, and how an error of theirs is told. */

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Raises the soft limit on descriptors to the hard one, once in a process, as NCCL does in the process that makes the
 * unique id. A rank has connections to other ranks, so it may need more than the usual 1024.
 */
void shunt_limits_raise_files(void);

/* For the log. Use within one statement: shunt_error_text(err).s. */
struct shunt_error_text {
	char s[168]; /* as much as a rank tells the others */
};
/* The text of a negative errno; of one that a limit causes also the limit, its value, and how it is raised. */
struct shunt_error_text shunt_error_text(int err);
/* The same, of a thread that cannot be started. */
struct shunt_error_text shunt_thread_error_text(int err);

#ifdef __cplusplus
}
#endif

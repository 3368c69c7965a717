/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_OBSERVE_DUMP_H
#define SHUNT_COMM_OBSERVE_DUMP_H
/*
 * What a process knows of its communicators, as JSON (docs/doctor.md describes it). It is written
 *   - when a communicator breaks, into SHUNT_DUMP_DIR if that is set, before the error is returned;
 *   - on SIGUSR1, if SHUNT_DUMP_SIGNAL is set, into SHUNT_DUMP_DIR or else the directory for temporary files;
 *   - to whoever connects to this process's socket and runs as the same user or as root (`shunt doctor --pid`), unless
 * SHUNT_DOCTOR=0. A file is named shunt-<host>-<pid>-<n>.json, in a container shunt-<host>-<pid>.<PID
 * namespace>-<n>.json. It is readable by its owner alone, and is complete when it has that name.
 *
 * One thread, started with the first communicator, serves signal and socket. It takes no lock of a communicator and
 * waits for no kernel, so it answers whatever the rest of the process hangs in. The signal's handler writes to a
 * descriptor, and then does what was done about the signal before, except for ending the process.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

/*
 * Starts what the configuration asks for; repeated calls are cheap. A child of fork() starts its own. Failures are
 * logged.
 */
void shunt_dump_start(void);
/* A communicator broke: writes a file if SHUNT_DUMP_DIR is set. */
void shunt_dump_error(void);

/*
 * Writes the dump as one JSON object. reason: "error", "signal" or "asked". 0 or -ENOMEM; the caller looks at the
 * stream's error.
 */
int shunt_dump_write(FILE *out, const char *reason);
/* A new file in dir, which is made if its parent exists. 0 and its path, or -errno (not logged). */
int shunt_dump_file(const char *dir, const char *reason, char *path, size_t bytes);
#endif

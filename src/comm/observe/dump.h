/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A process's state of its communicators, as JSON (docs/doctor.md describes it). It is written
 * - when a communicator breaks, into SHUNT_DUMP_DIR if that is set, before the error is returned;
 * - on SIGUSR1, if SHUNT_DUMP_SIGNAL is set, into SHUNT_DUMP_DIR or else the directory for temporary files;
 * - to each client of this process's socket that runs as the same user or as root (`shunt doctor --pid`), unless
 *   SHUNT_DOCTOR=0. The client may send one line of at most 256 bytes first: "dump"; "state" or "state N", which has
 * only the last N calls (8), those that have not ended, and the account of kernels; "counters", which reads no device.
 * A client that sends no line within 50 ms gets the dump in format 2.
 *
 * A file is named shunt-<host>-<pid>-<n>.json, in a container shunt-<host>-<pid>.<PID namespace>-<n>.json. Only its
 * owner can read it, and it is complete once it has that name.
 *
 * One thread, started with the first communicator, serves signal and socket. It takes no lock of a communicator and
 * waits for no kernel, so it answers whatever the rest of the process hangs in. The signal's handler writes to a
 * descriptor, then calls the handler that the program had, if any; it never ends the process. Writing takes memory for
 * the snapshots of one communicator at a time and for the stream; base/json.h's writer takes none, and no lock.
 *
 * base/dump.def has a row for each field.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

struct shunt_recorder;

/*
 * Starts the thread, socket and signal handler that the configuration asks for. Repeated calls are cheap. A child of
 * fork() starts its own. Failures are logged.
 */
void shunt_dump_start(void);
/*
 * A communicator breaks: its recorder gets the error, and for the first one a file is written if SHUNT_DUMP_DIR is set.
 * To be called before an abort word is raised, so that the dump shows what runs. rec may be NULL.
 */
void shunt_dump_error(struct shunt_recorder *rec, int err);

/*
 * Writes the dump as one JSON object. reason: "error", "signal" or "asked". 0 or -ENOMEM; the caller checks the stream
 * for errors.
 */
int shunt_dump_write(FILE *out, const char *reason);

struct shunt_dump_request {
	enum { SHUNT_DUMP_ALL, SHUNT_DUMP_STATE, SHUNT_DUMP_COUNTERS } what;
	unsigned format, calls; /* calls: at least as many of the last ones */
};
/* A client's line, without its end. False: it is none. */
bool shunt_dump_request_read(const char *line, struct shunt_dump_request *request);
int shunt_dump_answer(FILE *out, const char *reason, const struct shunt_dump_request *request);
/* Writes a new file in dir, which is created if its parent exists. 0 and its path, or -errno (not logged). */
int shunt_dump_file(const char *dir, const char *reason, char *path, size_t bytes);

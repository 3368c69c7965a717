/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Asks running processes for the state of their communicators, through the socket of src/comm/observe/dump.h. The
 * answers are dumps (base/dump.def). All processes are asked at once, and have ten seconds together: one that hangs in
 * a debugger costs the others nothing.
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The most that is read of an answer: a communicator with all its records takes half a MB. */
enum { ASK_SECONDS = 10, ASK_MAX_BYTES = 256 << 20 };

struct ask_process {
	pid_t pid;           /* as this process sees it; 0: it cannot */
	uid_t uid;           /* its user */
	ino_t pid_namespace; /* of its own, in which it is ns_pid */
	pid_t ns_pid;
	pid_t parent;
	char state; /* as in /proc/PID/stat: R, S, D, T, Z, ... */
	char name[64];
	int err;    /* 0, or -errno: it has not answered */
	char *text; /* the answer, or NULL */
	size_t bytes;
	pid_t entry; /* 0, or a process in the network namespace in which its socket is */
	int fd;      /* while it is asked */
};

/*
 * The processes that have a socket, of this network namespace: this user's, for root those of all users. Other users
 * may take such names, too: ask_all() gives them -EPERM. everywhere: also those of each other network namespace that a
 * process which is to be seen here has, and that may be entered. 0 or -errno; the caller calls ask_free().
 */
int ask_find(bool everywhere, struct ask_process **processes_p, size_t *n_p);
/* One process by its number. 0, or -errno: there is none. */
int ask_process_read(pid_t pid, struct ask_process *p);
/* Puts processes[i] behind the first *first_p, which it makes one more: a part of them that the rest is asked without.
 */
void ask_put_first(struct ask_process *processes, size_t i, size_t *first_p);
/* request: a line of dump.h without its end, such as "state 8". Frees what earlier answers there were. */
void ask_all(struct ask_process *processes, size_t n, const char *request);
void ask_free(struct ask_process *processes, size_t n);

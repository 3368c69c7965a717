/* SPDX-License-Identifier: MIT */
#pragma once
/* shunt ras, also as ncclras: the state of a job as NCCL's RAS tells it, with the calls that Shunt took. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "tools/common/ask.h"

struct ras_opts {
	const char *host, *port;
	int timeout; /* seconds that NCCL waits for its other processes; 0: no limit; -1: as NCCL has it */
	bool verbose, json;
};

/* ---- NCCL's service (server.c) */

/*
 * Asks the service as NCCL's own client does, for text or JSON. 0, and the caller frees the answer; -ECONNREFUSED:
 * nobody listens; or another -errno. reason: what was wrong, one line.
 */
int ras_ask(const struct ras_opts *o, bool json, char **text_p, size_t *bytes_p, char reason[256]);
/* Puts in the comma that NCCL 2.28 leaves out after a missing rank's nvml_dev. The caller frees the copy; NULL: no
 * memory. */
char *ras_repair(const char *text, size_t bytes);

/* ---- Shunt's processes (members.c) */

enum { RAS_OPS = 8 };
/* The names of NCCL's RAS for the collectives: the first five are those that it counts itself. */
extern const char *const ras_ops[RAS_OPS];

/* One rank of one communicator, as its process tells it. */
struct ras_member {
	char key[32], host[256];
	int rank, nranks, device, pid;
	bool counted;             /* its process tells counts */
	uint64_t counts[RAS_OPS]; /* calls, Shunt's and forwarded ones */
	int error;                /* as ncclResult_t; 0: none */
	bool aborted;
};
struct ras_members {
	struct ras_member *at;
	size_t n;
};
/*
 * Asks these processes, but none again that has not answered in time. 0 or -ENOMEM; at: sorted by key and rank. What m
 * had is freed.
 */
int ras_members_ask(struct ras_members *m, struct ask_process *processes, size_t n);
/* True if both have the same ranks of the same communicators. */
bool ras_members_equal(const struct ras_members *a, const struct ras_members *b);

/* ---- both together (merge.c) */

/*
 * Replaces NCCL's counts by Shunt's in each communicator all of whose ranks told theirs; else says why not. 0; -EINVAL:
 * not an answer of NCCL's RAS.
 */
int ras_merge(json_t *root, const struct ras_members *m);
/*
 * An answer of the same form from Shunt's processes alone; NULL: no memory. before: what they told a little earlier: a
 * communicator of which some ranks are missing, and were others then, is being made or ended, and is left out.
 */
json_t *ras_alone(const struct ras_members *m, const struct ras_members *before, const char *nccl_version);
/* True if the counts of a communicator were not replaced. */
bool ras_has_unmerged(const json_t *root);
/* Prints the section "Shunt" of an answer in text. */
void ras_print(const json_t *root);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Symmetric memory: each rank of a communicator brings device memory of its own, and maps that of all others. Scratch,
 * the memory of plans, and windows are made in this way. All ranks take the same steps:
 *
 * | step                | what it does                                                                          |
 * |---------------------|---------------------------------------------------------------------------------------|
 * | init                | says among which ranks, and what they must have in common                             |
 * | allocate / register | this rank's memory: new, of which peers of this process become users; or the caller's |
 * | agree, round 1      | all ranks get all offers: address, terms, vote, and a descriptor inside a host        |
 * | ... locally         | compares the offers, maps the peers' memory, calls fill                               |
 * | agree, round 2      | all ranks get all votes: whether each has mapped all                                  |
 *
 * Errors. An error on this rank before the second round becomes its vote, so all ranks come to the same outcome:
 * -EOPNOTSUPP, with a text that names the first rank that refused, and its reason. If a first offer refuses, nobody
 * maps and the second round is left out. A rank still calls agree if its allocation or registration has failed, or if
 * it refuses for a reason of its own (shunt_vote_refuse on `vote`): the others wait for that call. Any other error is
 * an error of a round (shunt_rendezvous_allgather), and the rendezvous cannot be used any more: a rank died, was
 * cancelled, lacks the memory to take part, or did not come in time.
 *
 * Ownership. The caller owns the array mem, and empties it by shunt_symm_free() in the end, also after an error or a
 * refusal: agree leaves its mappings there, because unmapping may wait for the device. Descriptors are closed when
 * agree returns. Registered memory stays the caller's.
 *
 * Threads. One thread uses a struct shunt_symm at a time. Ranks may be threads of one process or processes.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/gpu_ops.h"
#include "transport/rendezvous/rendezvous.h"
#include "transport/symm/vote.h"

/* Each rank's description of its memory; value must be equal on all ranks. */
struct shunt_symm_terms {
	uint64_t value[2]; /* the caller's */
	uint64_t bytes;    /* that were allocated or registered; 0: nothing was */
};

struct shunt_symm_config {
	struct shunt_ranks ranks;
	/*
	 * The ranks that map each other's memory, in the order of mem and at; own: which of them this rank is. NULL:
	 * all ranks. Votes and terms are of all ranks either way.
	 */
	const uint8_t *mates;
	int nmates, own;
	const struct shunt_gpu_ops *gpu;
	int device;
	uint64_t process;               /* shunt_process_token(): ranks of one process use each other's addresses */
	bool on_host;                   /* page-locked memory of the host instead (transport/symm/host_memory.h) */
	const char *what;               /* for reasons: "scratch" */
	struct shunt_gpu_mem *mem;      /* of each mate; they get our own memory if allocated, and the peers' */
	uint64_t *at;                   /* of each mate: where in mem what is registered begins; NULL if allocated */
	uint64_t value[2];              /* shunt_symm_terms.value */
	const char *differs[2];         /* the reason for a rank whose value is not that of rank 0 */
	struct shunt_symm_terms *terms; /* nranks; get those of all ranks; may be NULL */
	/* Called once this rank has mapped all. 0, or -errno if its own memory cannot be written. May be NULL. */
	int (*fill)(void *ctx);
	void *ctx;
};

struct shunt_symm {
	struct shunt_symm_config config;
	struct shunt_vote vote; /* this rank's */
	char refusal[144];      /* after -EOPNOTSUPP of agree: "rank 1: reason" */
	/* Of this rank's memory. */
	bool allocated;
	size_t bytes, whole; /* as asked for; of the allocation that it lies in */
	void *base;          /* the allocation */
	uint64_t at;
	int fd; /* -1: none */
};

/* Copies config, and empties mem. */
void shunt_symm_init(struct shunt_symm *symm, const struct shunt_symm_config *config);
/*
 * Allocates zeroed memory that peers can map. Peers of this process are users of the memory as long as their kernels
 * may write there; the last user frees it. 0, or -errno, which is this rank's vote.
 */
int shunt_symm_alloc(struct shunt_symm *symm, size_t bytes);
/* Takes memory of the caller, which stays the caller's. 0, or -errno, which is this rank's vote. */
int shunt_symm_register(struct shunt_symm *symm, void *base, size_t bytes);
/* Collective, see above. 0: all ranks have mapped all memory. Allowed while a stream captures. */
int shunt_symm_agree(struct shunt_symm *symm);
/* Unmaps the peers' memory, and frees our own if we are its last user. mem may be empty, and is then. */
void shunt_symm_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem, int nranks);

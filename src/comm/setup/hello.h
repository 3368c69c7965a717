/* SPDX-License-Identifier: MIT */
#pragma once
/* The first round of the set-up: each rank describes itself, and all find out whether the ranks fit together. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "device/gpu_ops.h"
#include "transport/symm/vote.h"

struct shunt_comm;

enum { SHUNT_HELLO_TUNINGS = 4 };

struct shunt_hello {
	uint32_t protocol;
	char version[16];
	struct shunt_vote vote;
	uint64_t fingerprint; /* of the configuration */
	uint64_t plans;       /* hash of the execution plans */
	uint64_t plugins;     /* hash of the plug-ins */
	/* Hashes of this rank's tables for this machine, from tuning files (tunings.h); 0: no table. */
	uint64_t tuning[SHUNT_HELLO_TUNINGS];
	uint64_t process; /* random, per process: ranks of one process borrow each other's scratch */
	int32_t max_ctas;
	uint32_t takes_all;
	uint32_t no_sms;   /* CTAPolicy zero */
	uint32_t few_ctas; /* CTAPolicy efficiency */
	uint32_t tma;      /* 1: its kernels can send chunks by TMA, and may */
	uint32_t nvls;     /* enum shunt_nvls of this rank */
	uint32_t net;      /* providers that it may use between hosts, as bits */
	int32_t pid;
	struct shunt_gpu_info gpu;
};

/* Fills in this rank's hello, and takes the device and the set of plans. A failure becomes this rank's vote. */
void shunt_hello_fill(struct shunt_comm *comm, struct shunt_hello *hello);
/* Compares the ranks' hellos, alike on all ranks. False: they do not fit, for this reason. */
bool shunt_hellos_fit(const struct shunt_hello *hellos, int n, char *reason, size_t bytes);

static inline bool shunt_hello_same_gpu(const struct shunt_hello *a, const struct shunt_hello *b)
{
	return !memcmp(a->gpu.uuid, b->gpu.uuid, sizeof(a->gpu.uuid));
}

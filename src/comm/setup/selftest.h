/* SPDX-License-Identifier: MIT */
#pragma once
/* One rank's part of a self-test of links (kernels/selftest.cu). The ranks agree around it (setup/links.h). */
#include <stdatomic.h>
#include "device/gpu_ops.h"
#include "kernels/kargs.h"

struct shunt_selftest {
	const struct shunt_gpu_ops *gpu;
	int device;
	struct shunt_kargs_selftest args;     /* area, rank, peers and status are the caller's */
	struct shunt_selftest_status *status; /* args.status, for the host: zeroed */
	int nranks;                           /* of the host */
	void *stream;
};

/* Rounds, and the limits of a device: long, for a person who waits; else as a set-up can bear. */
void shunt_selftest_limits(struct shunt_selftest *t, bool sim, bool is_long);
/* Launches this rank's kernel. 0 or -errno, and then nothing runs. */
int shunt_selftest_start(struct shunt_selftest *t);
/*
 * Waits until it has ended. worst: of each peer, the first mistake that a lane saw. -ETIMEDOUT: it has not begun, or
 * does not end; -ECANCELED: cancel; then the kernel may use the areas and verdicts for
 * ever.
 */
int shunt_selftest_finish(
    struct shunt_selftest *t, const atomic_int *cancel, struct shunt_selftest_status worst[SHUNT_KARGS_MAX_RANKS]);

/* SPDX-License-Identifier: MIT */
#include "comm/setup/selftest.h"
#include <errno.h>
#include <time.h>
#include "base/config.h"
#include "base/io.h"
#include "kernels/set.h"

enum { LANES = SHUNT_SELFTEST_LANES, PEERS = SHUNT_KARGS_MAX_RANKS };

/*
 * On GPUs what goes wrong is rare: 4 lanes of 500 rounds take some 10 ms. The sim's links lie in each round, and its
 * threads may have to wait for a processor for long.
 */
void shunt_selftest_limits(struct shunt_selftest *t, bool sim, bool is_long)
{
	const uint64_t s = 1000000000u, most = (uint64_t)shunt_config()->setup_timeout * 1000000u;

	t->args.rounds = (sim ? 4 : 500) * (is_long ? 50 : 1);
	t->args.first_ns = most && (sim || most < 10 * s) ? most / 2 : 10 * s;
	t->args.wait_ns = sim ? t->args.first_ns : s;
	t->args.all_ns = t->args.first_ns + 20 * s;
}

static unsigned lanes_of(const struct shunt_selftest *t)
{
	return t->gpu->helpful_threads ? 1 : LANES;
}

int shunt_selftest_start(struct shunt_selftest *t)
{
	int err = t->gpu->stream_create(t->device, &t->stream);

	if (err)
		return err;
	err = t->gpu->launch(t->device,
	    &(struct shunt_gpu_launch){ .kernel = SHUNT_KERNEL(SHUNT_SHAPE_selftest, 0, 1),
	        .blocks = (unsigned)t->nranks,
	        .threads = 64 * lanes_of(t),
	        .args = &t->args,
	        .stream = t->stream });
	if (err)
		t->gpu->stream_destroy(t->device, t->stream);
	return err;
}

/* The host asks no driver: a call that waits for kernels may hold it, and a capture may forbid it. */
static bool has_ended(const struct shunt_selftest *t)
{
	for (int p = 0; p < t->nranks; p++)
		for (unsigned lane = 0; lane < lanes_of(t); lane++)
			if (t->args.peers >> p & 1 &&
			    !__atomic_load_n(&t->status[p * LANES + lane].done, __ATOMIC_ACQUIRE))
				return false;
	return true;
}

int shunt_selftest_finish(
    struct shunt_selftest *t, const atomic_int *cancel, struct shunt_selftest_status worst[SHUNT_KARGS_MAX_RANKS])
{
	int64_t end = shunt_deadline_ms((int64_t)((t->args.first_ns + t->args.all_ns) / 1000000));

	while (!has_ended(t)) {
		if (cancel && atomic_load(cancel))
			return -ECANCELED;
		if (shunt_now_ms() >= end)
			return -ETIMEDOUT;
		nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
	}
	for (int p = 0; p < PEERS; p++) {
		worst[p] = (struct shunt_selftest_status){ 0 };
		for (int lane = 0; lane < LANES && !worst[p].kind; lane++)
			worst[p] = t->status[p * LANES + lane];
	}
	t->gpu->stream_destroy(t->device, t->stream);
	return 0;
}

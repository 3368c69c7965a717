/* SPDX-License-Identifier: MIT */
/* Until our kernels on a communicator are done; and then, what the set-up has made can go. */
#include <errno.h>
#include <time.h>
#include "comm/comm_priv.h"
#include "base/io.h"
#include "comm/observe/peers.h"
#include "comm/deferred_free.h"
#include "transport/symm/scratch.h"

#define DEVICE_SYNC_MS 20000
#define REVOKE_MS 5000 /* a revoked communicator's kernels end within milliseconds, unless others are ahead of them */

/* One look after the other, ever more seldom. */
static void back_off(long *ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = *ns }, NULL);
	*ns = *ns < 1000000 ? 2 * *ns : *ns;
}

/*
 * Was the wait a long one, and runs no kernel of ours? Then the device is to have the last word: should the account be
 * wrong, nobody waits for good. What it waits for besides is ahead of our kernels, or another communicator's.
 */
static bool should_ask_device(const struct shunt_comm *comm, int64_t from)
{
	const struct shunt_ctrl *ctrl = comm->mem[comm->rank].ptr;
	struct shunt_progress p;

	return shunt_now_ms() >= from && !comm->gpu->copy(comm->device, &p, &ctrl->progress, sizeof(p)) &&
	    p.begun == p.ended;
}

/*
 * Until none of our kernels runs, those of graphs included. Others are not waited for: they may hang for reasons of
 * their own, or their stream capture. shared: other threads use the communicator meanwhile, and one that aborts it ends
 * this with -ECANCELED, as what is ahead of our kernels may hang. If it was aborted before, which is how it is revoked,
 * it ends after a while.
 */
static int wait_for_kernels(struct shunt_comm *comm, bool shared)
{
	bool aborted = atomic_load(&comm->cancel), done = false;
	int64_t end = shunt_deadline_ms(DEVICE_SYNC_MS), revoked = shunt_deadline_ms(REVOKE_MS);
	long ns = 10000;
	int err;

	for (;;) {
		if (shared)
			pthread_mutex_lock(&comm->lock);
		err = shunt_order_done(&comm->order, comm->gpu, comm->device, &done);
		if (shared)
			pthread_mutex_unlock(&comm->lock);
		if (err || done)
			return err;
		if (shared && !aborted && atomic_load(&comm->cancel))
			return -ECANCELED;
		/* A kernel of another communicator of ours may hang, and who is to abort that one waits here. */
		if (shared && !shunt_deferred_free_alone(comm)) {
			if (aborted && shunt_now_ms() >= revoked)
				return 0;
		} else if (should_ask_device(comm, end)) {
			return comm->gpu->device_sync(comm->device);
		}
		back_off(&ns);
	}
}

int shunt_comm_quiesce(struct shunt_comm *comm)
{
	return atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_READY ? wait_for_kernels(comm, true) :
	                                                                                0;
}

void shunt_comm_teardown(struct shunt_comm *comm)
{
	long stored = 50000; /* a warp counts itself last, but what it stored in host memory may still be on its way */

	if (!comm->gpu)
		return;
	if (atomic_load(&comm->state) == COMM_READY) {
		wait_for_kernels(comm, false); /* nothing may run in memory that is about to go */
		back_off(&stored);
		shunt_comm_error(comm); /* what nobody has asked for yet is to be told at least */
	}
	shunt_peers_unwatch(comm);
	shunt_recorder_unready(comm->recorder);
	shunt_order_finish(&comm->order);
	shunt_comm_plans_drop(comm);
	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		shunt_scratch_free(comm->gpu, &comm->mem[r]);
	if (comm->words)
		comm->gpu->host_free(comm->words);
	comm->words = NULL;
}

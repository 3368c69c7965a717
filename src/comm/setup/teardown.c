/* SPDX-License-Identifier: MIT */
/* Waiting until no kernel of a communicator runs, and freeing what the set-up made. */
#include "comm/setup/teardown.h"
#include <errno.h>
#include <string.h>
#include <time.h>
#include "algos/plugins.h"
#include "base/io.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/core/deferred_free.h"
#include "comm/core/peers.h"
#include "comm/core/plugin_check.h"
#include "comm/setup/island_memory.h"
#include "comm/setup/plan_set.h"
#include "comm/setup/plugin_set.h"
#include "comm/setup/scratch.h"

#define DEVICE_SYNC_MS 20000
#define PLUGIN_MS 2000 /* of a plug-in's kernel: so long after it was told to end, it never will */
#define TIMES_MS 1000  /* for events behind kernels that have ended */
#define REVOKE_MS 5000 /* a revoked communicator's kernels end within milliseconds, unless others are ahead */

/* Sleeps *ns between two looks, and doubles *ns up to about a millisecond. */
static void back_off(long *ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = *ns }, NULL);
	*ns = *ns < 1000000 ? 2 * *ns : *ns;
}

/*
 * True: the caller is to wait for the device. The deadline `from` has passed, and none of our kernels runs: the missing
 * kernels have not begun, or the account of warps is wrong. In both cases a wait for the device ends; the other work
 * that it waits for comes before our kernels, or is another communicator's.
 */
static bool should_ask_device(const struct shunt_comm *comm, int64_t from)
{
	const struct shunt_ctrl *ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr;
	struct shunt_progress p;

	return shunt_now_ms() >= from && !comm->gpu->copy(comm->device, &p, &ctrl->progress, sizeof(p)) &&
	    p.begun == p.ended;
}

/*
 * When a plug-in's kernel will not end any more. Those of Shunt end after their limit, and all in all after the
 * device's other work.
 */
static int64_t plugin_end(const struct shunt_comm *comm)
{
	uint64_t limit = shunt_comm_spin_limit(comm);

	if (!comm->plugins.launched)
		return INT64_MAX;
	if (shunt_comm_life_aborted(&comm->life) || shunt_comm_life_error(&comm->life))
		return shunt_deadline_ms(PLUGIN_MS);
	return limit ? shunt_deadline_ms((int64_t)(limit / 1000000) + PLUGIN_MS) : INT64_MAX;
}

/*
 * Waits until none of our kernels runs, those of graphs included. It waits for the whole device only as the last
 * resort: others' kernels may hang for reasons of their own, and such a wait spoils a stream capture.
 *
 * shared: other threads use the communicator meanwhile. An abort by one of them ends the wait with -ECANCELED, because
 * the work ahead of our kernels may hang. If the communicator was aborted before (revoked) and is not alone on the
 * device, the wait ends after REVOKE_MS with 0. -EBUSY: a plug-in's kernel does not end.
 */
static int wait_for_kernels(struct shunt_comm *comm, bool shared)
{
	bool aborted = shunt_comm_life_aborted(&comm->life), done = false;
	int64_t end = shunt_deadline_ms(DEVICE_SYNC_MS), revoked = shunt_deadline_ms(REVOKE_MS);
	int64_t late = plugin_end(comm);
	long ns = 10000;
	int err;

	for (;;) {
		if (shared)
			shunt_mutex_lock(&comm->lock);
		err = shunt_order_done(&comm->order, comm->gpu, comm->device, &done);
		if (shared)
			shunt_mutex_unlock(&comm->lock);
		if (err || done)
			return err;
		if (shunt_now_ms() >= late)
			return -EBUSY;
		if (shared && !aborted && shunt_comm_life_aborted(&comm->life))
			return -ECANCELED;
		/*
		 * Another communicator's kernel may hang until this very thread aborts it: do not wait for the device.
		 */
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
	int err = shunt_comm_life_state(&comm->life) == COMM_READY ? wait_for_kernels(comm, true) : 0;

	if (err || !comm->plugins.watches)
		return err;
	shunt_mutex_lock(&comm->lock);
	err = shunt_plugin_watches_look(comm);
	shunt_mutex_unlock(&comm->lock);
	return err;
}

/* The name of a plug-in that ran. */
static const char *last_plugin(const struct shunt_comm *comm)
{
	const struct shunt_comm_plugins *p = &comm->plugins;
	size_t last = 0;

	for (size_t i = 1; p->state && i < p->set->n; i++)
		if (atomic_load(&p->state[i].op) > atomic_load(&p->state[last].op))
			last = i;
	return p->state ? p->set->use[last].entry->plugin.name : "";
}

/* A kernel goes on using the memory, which stays as long as the process. */
static void leave_memory(struct shunt_comm *comm)
{
	shunt_warn("plug-in %s has not ended, though its communicator has: its kernel ignores abort or the limit; its "
	           "stream and memory can be freed only with the process",
	    last_plugin(comm));
	shunt_comm_fail(comm, -ETIMEDOUT);
	shunt_scratch_leave(comm);
	comm->plugins.state = NULL;
	comm->plugins.watches = NULL;
	comm->plugins.launched = false;
}

void shunt_comm_teardown(struct shunt_comm *comm)
{
	long stored = 50000; /* ns: a warp's stores to host memory may arrive after it counts itself as ended */

	shunt_comm_net_reap(); /* also at the end of one that was never set up: there may be no other */
	if (!comm->gpu)
		return;
	if (shunt_comm_life_state(&comm->life) == COMM_READY) {
		if (wait_for_kernels(comm, false) == -EBUSY) /* no kernel may use memory that is about to be freed */
			leave_memory(comm);
		back_off(&stored);
		shunt_comm_error(comm); /* logs a fault that was not polled yet */
		if (comm->plugins.watches)
			shunt_plugin_watches_look(comm);
	}
	shunt_profiler_destroy(comm->profiler, shunt_comm_life_error(&comm->life) ? 0 : TIMES_MS);
	comm->profiler = NULL;
	shunt_peers_unwatch(comm);
	shunt_comm_net_finish(comm);
	shunt_recorder_unready(comm->recorder);
	shunt_order_finish(&comm->order);
	shunt_comm_plans_drop(comm);
	shunt_comm_plugins_drop(comm);
	shunt_comm_islands_drop(comm);
	shunt_scratch_drop(comm);
}

int shunt_comm_forward_from_now(struct shunt_comm *comm, bool logs, const char *reason)
{
	shunt_recorder_forward(comm->recorder, reason);
	if (!logs)
		shunt_info(SHUNT_LOG_INIT, "communicator of %d ranks, rank %d: %s", comm->nranks, comm->rank, reason);
	else if (comm->sel_key.takes_all)
		shunt_error("%s of %d ranks cannot run: %s", shunt_comm_noun(comm), comm->nranks, reason);
	else
		shunt_comm_log_forward(comm, reason);
	shunt_comm_teardown(comm);
	shunt_comm_life_forward(&comm->life, reason, true);
	shunt_comm_changed(comm);
	return 0;
}

int shunt_comm_setup_failed(struct shunt_comm *comm, const char *step, const char *reason, int err)
{
	if (err == -ECANCELED)
		shunt_comm_fail(comm, err);
	else
		shunt_comm_fail_saying(comm, err, "setting up %s of %d ranks: %s on rank %d: %s",
		    comm->own.bytes ? comm->own.noun : "a communicator", comm->nranks, step, comm->rank,
		    reason[0] ? reason : shunt_rendezvous_why(comm->rendezvous, err));
	/*
	 * Another communicator's kernels may hang until it is aborted, and freeing would wait for them. Then the memory
	 * is freed with this communicator.
	 */
	if (shunt_deferred_free_alone(comm))
		shunt_comm_teardown(comm);
	return err;
}

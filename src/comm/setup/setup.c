/* SPDX-License-Identifier: MIT */
/*
 * First use of a communicator: four rounds among all ranks. Where links need a self-test first, that is a fifth one; if
 * it refuses a pair, the second round and those behind it come once more.
 *
 * | round | each rank says                                | it decides                  |
 * |-------|-----------------------------------------------|-----------------------------|
 * | 1     | what it is (setup/hello.h)                    | whether to try              |
 * | 2     | what joins it with the others (setup/links.h) | which algorithms are right  |
 * | 3     | where its scratch is (transport/symm/symm.h)  | whether all ranks have some |
 * | 4     | whether it has mapped all others' scratch     | whether our kernels run     |
 *
 * Every rank checks the same tables, so all come to the same outcome: our kernels, or forward-only with one line of log
 * that has the reason.
 */
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/io.h"
#include "base/log.h"
#include "comm/parts/service.h"
#include "comm/core/net_tell.h"
#include "comm/core/communicator.h"
#include "comm/core/deferred_free.h"
#include "comm/core/peers.h"
#include "comm/setup/agreement.h"
#include "comm/setup/hello.h"
#include "comm/setup/island_memory.h"
#include "comm/setup/links.h"
#include "comm/setup/locate.h"
#include "comm/setup/plan_set.h"
#include "comm/setup/plugin_set.h"
#include "comm/setup/scratch.h"
#include "comm/setup/teardown.h"
#include "comm/setup/tunings.h"
#include "kernels/set.h"

/* Without a recorder, launches carry no word (kargs.op), and kernels without a word keep no account. */
static void start_account(struct shunt_comm *comm)
{
	const struct shunt_ctrl *ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr;

	if (comm->recorder)
		shunt_order_set_progress(&comm->order, &ctrl->progress);
}

/* Communicators with memory of their own run no calls of NCCL's. */
static void start_profiler(struct shunt_comm *comm)
{
	const struct shunt_profiler_desc desc = { .gpu = comm->gpu,
		.device = comm->device,
		.rank = comm->rank,
		.nranks = comm->nranks,
		.nnodes = comm->topology.nislands,
		.id = shunt_recorder_tag(comm->recorder),
		.name = comm->name };

	comm->profiler = comm->own.bytes ? NULL : shunt_profiler_create(&desc);
}

/* A single rank has no peers to agree with. Its kernels keep their counters in a small allocation of their own. */
static int setup_single_rank(struct shunt_comm *comm)
{
	void *ctrl;
	int err;

	comm->gpu = shunt_gpu();
	if (!comm->gpu)
		return -ENODEV;
	err = shunt_scratch_make_single(comm);
	if (err)
		return err;
	ctrl = comm->mem[0].ptr;
	comm->kargs = (struct shunt_kargs){ .peer = { ctrl }, .nranks = 1 };
	comm->sel_key.few_ctas = comm->few_ctas;
	shunt_recorder_ready(comm->recorder, comm->gpu, ctrl, NULL);
	start_account(comm);
	start_profiler(comm);
	shunt_comm_life_ready(&comm->life);
	shunt_comm_changed(comm);
	return 0;
}

/* State of a set-up. */
struct setup {
	struct shunt_hello hello, hellos[SHUNT_NET_MAX_RANKS];
	bool logs;        /* this rank logs the outcome */
	char reason[160]; /* of -EOPNOTSUPP, and of a rank that does not come */
	struct timespec begun, met_at;
};

static int rendezvous(struct shunt_comm *comm, struct setup *s)
{
	struct shunt_hosts *hosts = comm->nranks > 1 ? shunt_rendezvous_hosts_of(comm->rendezvous) : NULL;
	int err = 0, missing = -1, as = comm->rank;

	clock_gettime(CLOCK_MONOTONIC, &s->begun);
	shunt_hello_fill(comm, &s->hello); /* before the join: all ranks would wait for it after */
	if (comm->directory.magic && hosts) {
		as = shunt_hosts_find(hosts, comm->member);
		err = shunt_comm_find_roots(comm, hosts, as, s->reason, sizeof(s->reason));
	}
	if (comm->nranks > 1 && !err)
		err = shunt_rendezvous_join(
		    comm->rendezvous, comm->nmembers, as, comm->nranks, &comm->life.cancel, &missing);
	if (!err && comm->nranks > 1) {
		shunt_service_end_watch(&comm->registration);
		shunt_rendezvous_close(comm->rendezvous);
	}
	if (!err && hosts && hosts->by_member)
		err = shunt_comm_renumber(comm);
	clock_gettime(CLOCK_MONOTONIC, &s->met_at);
	/* A message that needs no rank which is lost can be NCCL's: nobody runs our kernels before all have come here.
	 */
	if (err && err != -ENOENT && err != -ECANCELED && comm->directory.magic && hosts && comm->sel_key.pairs) {
		if (!s->reason[0])
			snprintf(s->reason, sizeof(s->reason), "%s", shunt_rendezvous_why(comm->rendezvous, err));
		s->logs = s->logs || shunt_rendezvous_is_leader(comm->rendezvous);
		shunt_rendezvous_give_up(comm->rendezvous);
		return -EOPNOTSUPP;
	}
	if (err != -ENOENT)
		return err;
	if (comm->joined) { /* it was there at init */
		snprintf(s->reason, sizeof(s->reason),
		    "rank %d has ended, or runs as another user, or in another network namespace with the same "
		    "SHUNT_HOSTID",
		    missing);
		return -EOWNERDEAD;
	}
	shunt_comm_name_missing(comm, missing, s->reason, sizeof(s->reason));
	s->logs = s->logs ||
	    shunt_rendezvous_is_leader(comm->rendezvous); /* rank 0 may have no Shunt, and then logs nothing */
	return -EOPNOTSUPP;
}

/* From now on the processes of ranks that work together are watched. fds: their descriptors; closed or taken over. */
static void watch_processes(struct shunt_comm *comm, const struct shunt_hello *hellos, int *fds, bool together)
{
	struct shunt_peer peers[SHUNT_NET_MAX_RANKS];

	if (!together) {
		shunt_io_close_all(fds, comm->nranks);
		return;
	}
	for (int r = 0; r < comm->nranks; r++)
		peers[r] = (struct shunt_peer){ hellos[r].process, hellos[r].pid, fds[r] };
	shunt_peers_watch(comm, peers);
}

/* First round. */
static int exchange_hellos(struct shunt_comm *comm, struct setup *s)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	int processes[SHUNT_NET_MAX_RANKS], self = shunt_peers_self();
	int err = shunt_rendezvous_allgather(&ranks, &s->hello, sizeof(s->hello), s->hellos, self, processes);

	shunt_close_fd(&self);
	if (err)
		return err;
	if (shunt_hellos_fit(s->hellos, comm->nranks, s->reason, sizeof(s->reason)))
		shunt_comm_agree(comm, s->hellos);
	else
		err = -EOPNOTSUPP;
	watch_processes(comm, s->hellos, processes, !err);
	return err;
}

static int agree_on_links(struct shunt_comm *comm, struct setup *s)
{
	int err = shunt_comm_links_agree(comm, s->hellos, s->reason, sizeof(s->reason));

	if (!err)
		shunt_comm_agree_on_link(comm, s->hellos);
	return err;
}

static int compare_plans(struct shunt_comm *comm, struct setup *s)
{
	return shunt_comm_plan_set_agree(comm, s->hellos);
}

static int compare_plugins(struct shunt_comm *comm, struct setup *s)
{
	return shunt_comm_plugins_agree(comm, s->hellos);
}

/* Third and fourth round, and the self-test of links. */
static int share_scratch(struct shunt_comm *comm, struct setup *s)
{
	int err;

	for (;;) {
		err = shunt_scratch_share(comm, s->hellos, s->reason, sizeof(s->reason));
		if (!err)
			err = shunt_comm_links_test(comm, s->hellos, s->logs, s->reason, sizeof(s->reason));
		if (!err)
			err = shunt_comm_islands_share(comm);
		if (err != -EAGAIN)
			return err;
		shunt_scratch_drop(comm);
		err = agree_on_links(comm, s);
		if (err)
			return err;
	}
}

static int connect_hosts(struct shunt_comm *comm, struct setup *s)
{
	int err = shunt_comm_spans_hosts(comm) ? shunt_comm_net_connect(comm, s->reason) : 0;

	if (!err && shunt_comm_spans_hosts(comm))
		shunt_tunings_choose_provider(comm);
	return err;
}

static double ms_between(const struct timespec *from, const struct timespec *to)
{
	return (to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) / 1e6;
}

static void become_ready(struct shunt_comm *comm, const struct setup *s)
{
	char hosts[96], shared[48] = "", islands[32] = "";
	const struct shunt_gpu_mem *segment = &comm->segment[shunt_comm_local_rank(comm)];
	struct timespec now;

	for (int r = 0; r < shunt_comm_local_ranks(comm); r++)
		comm->kargs.peer[r] = comm->mem[r].ptr ? comm->mem[r].ptr : comm->segment[r].ptr;
	comm->kargs.rank = (uint16_t)shunt_comm_local_rank(comm);
	comm->kargs.nranks = (uint16_t)shunt_comm_local_ranks(comm);
	if (shunt_comm_spans_hosts(comm)) {
		uint8_t rank_of[SHUNT_NET_MAX_RANKS];

		for (int r = 0; r < comm->nranks; r++)
			rank_of[r] = (uint8_t)shunt_comm_rank_of_ordinal(comm, (unsigned)r);
		shunt_recorder_over_hosts(comm->recorder, comm->own.bytes ? rank_of : NULL, (unsigned)comm->nranks);
	}
	shunt_recorder_ready(comm->recorder, comm->gpu, comm->mem[shunt_comm_local_rank(comm)].ptr, comm->words);
	start_account(comm);
	start_profiler(comm);
	shunt_deferred_free_enter(comm);
	shunt_comm_life_ready(&comm->life);
	shunt_comm_changed(comm);
	clock_gettime(CLOCK_MONOTONIC, &now);
	shunt_comm_net_describe(comm, hosts, sizeof(hosts));
	if (segment->bytes)
		snprintf(shared, sizeof(shared), ", and %.1f MiB of shared memory", segment->bytes / 1048576.0);
	if (comm->islands)
		snprintf(islands, sizeof(islands), ", %d islands of %d",
		    comm->islands->part[SHUNT_PART_RAIL].key.nranks, comm->islands->part[SHUNT_PART_ISLAND].key.nranks);
	shunt_info(SHUNT_LOG_INIT,
	    "communicator %s rank %d of %d on device %d (%s%s%s): ready in %.1f ms after %.1f ms of waiting, %.1f "
	    "MiB%s",
	    shunt_id_text(comm->id.b).s, comm->rank, comm->nranks, comm->device, comm->gpu->name, hosts, islands,
	    ms_between(&s->met_at, &now), ms_between(&s->begun, &s->met_at),
	    comm->mem[shunt_comm_local_rank(comm)].bytes / 1048576.0, shared);
	/* An abort between the last check and READY did not stop the kernels: repeat it. */
	if (shunt_comm_life_aborted(&comm->life)) {
		shunt_comm_fail(comm, -ECANCELED);
		shunt_comm_stop_kernels(comm);
		shunt_comm_net_abort(comm, -1);
	}
}

/*
 * Runs the steps. -EOPNOTSUPP of a step is the same on all ranks, which then forward. Another error breaks the
 * communicator.
 */
static int setup_all_ranks(struct shunt_comm *comm)
{
	static const struct {
		int (*run)(struct shunt_comm *comm, struct setup *s);
		const char *name;
	} steps[] = {
		{ rendezvous, "rendezvous with the other ranks" },
		{ exchange_hellos, "exchanging capabilities" },
		{ agree_on_links, "agreeing on links" },
		{ compare_plans, "comparing execution plans" },
		{ compare_plugins, "comparing plug-ins" },
		{ share_scratch, "sharing scratch memory" },
		{ connect_hosts, "connecting with other hosts" },
	};
	struct setup s = { .logs = comm->rank == 0 };
	const char *step = NULL;
	int err = 0;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !err; i++) {
		step = steps[i].name;
		err = steps[i].run(comm, &s);
	}
	if (err)
		return err == -EOPNOTSUPP ? shunt_comm_forward_from_now(comm, s.logs, s.reason) :
		                            shunt_comm_setup_failed(comm, step, s.reason, err);
	become_ready(comm, &s);
	return 0;
}

int shunt_comm_setup_locked(struct shunt_comm *comm)
{
	int err = 0;

	if (shunt_comm_life_state(&comm->life) >= COMM_READY)
		return 0;
	/* A peer that knows the hosts may come before this rank's first call. */
	if (comm->nranks > 1 && shunt_comm_may_be_anywhere(comm))
		err = shunt_comm_locate_locked(comm);
	if (err || shunt_comm_life_state(&comm->life) >= COMM_READY)
		return err;
	shunt_recorder_phase(comm->recorder, "set-up");
	err = comm->nranks == 1 && comm->sel_key.takes_all && !comm->own.bytes ? setup_single_rank(comm) :
	                                                                         setup_all_ranks(comm);
	shunt_recorder_phase(comm->recorder, NULL);
	return err;
}

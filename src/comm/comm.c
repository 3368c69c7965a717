/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/config.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "comm/core/net_tell.h"
#include "comm/core/communicator.h"
#include "comm/core/deferred_free.h"
#include "comm/core/peers.h"
#include "comm/observe/dump.h"
#include "comm/parts/service.h"
#include "kernels/set.h"
#include "transport/rendezvous/host_table.h"

static void become_forward(struct shunt_comm *comm, const char *reason)
{
	shunt_recorder_forward(comm->recorder, reason);
	shunt_comm_life_forward(&comm->life, reason, false);
	shunt_comm_changed(comm);
}

/*
 * Ranks with different settings must not find each other: a rank that forwards a call never comes to the set-up, and
 * the others would wait for it. Without a real NCCL no call is forwarded: there the ranks may find each other, and the
 * set-up logs the difference. Ranks of which only some take messages over hosts differ in this way.
 */
static struct shunt_id rendezvous_id_of(const struct shunt_comm *comm)
{
	if (comm->sel_key.takes_all)
		return comm->id;
	return shunt_id_derive(&comm->id, sizeof(comm->id), "rendezvous " SHUNT_VERSION,
	    (uint64_t)shunt_setup_protocol << 1 | comm->sel_key.pairs, shunt_config_fingerprint());
}

/*
 * True: others may set the communicator up before a call on this rank, so this rank, if it is the root of a host, must
 * say where it listens. The hosts of other communicators are looked for by their first calls, which all ranks make.
 */
static bool is_to_be_found(const struct shunt_comm *comm)
{
	return comm->sel_key.pairs && comm->nranks > 1 && shunt_comm_may_be_anywhere(comm);
}

/*
 * Called on a thread of the service when somebody connects. Only a member that has proved itself wants a set-up, and it
 * connects only when all members have bound their sockets. True: nothing has come of it; watch on.
 */
static bool answer_peer(struct shunt_comm *comm)
{
	bool again = false;

	shunt_mutex_lock(&comm->lock);
	if (is_to_be_found(comm) && shunt_comm_life_state(&comm->life) == COMM_NEW)
		shunt_comm_locate_locked(comm);
	if (shunt_comm_life_state(&comm->life) >= COMM_READY || shunt_comm_life_error(&comm->life)) {
		/* The set-up has been done, or will never be. */
	} else if (!shunt_rendezvous_answer(comm->rendezvous)) {
		again = true;
	} else if (shunt_comm_life_wanted(&comm->life)) {
		if (shunt_gpu())
			shunt_gpu()->device_set(comm->device);
		shunt_comm_setup_locked(comm);
	}
	shunt_mutex_unlock(&comm->lock);
	return again;
}

/* Before the real NCCL is called: see transport/rendezvous/directory.h. */
static void register_member(struct shunt_comm *comm, const struct shunt_directory_tail *directory, struct shunt_id id)
{
	comm->directory = *directory;
	comm->as_member = (struct shunt_directory_member){ .id = id,
		.member = comm->member,
		.nmembers = comm->nmembers,
		.listen_fd = shunt_rendezvous_socket(comm->rendezvous) };
	(void)shunt_directory_register(&comm->directory, &comm->as_member, &comm->registered); /* it logs */
}

/* Makes the socket at which peers find this rank. directory: NULL is allowed. */
static int open_socket(struct shunt_comm *comm, const struct shunt_directory_tail *directory)
{
	struct shunt_id id = rendezvous_id_of(comm);
	int err = shunt_rendezvous_bind(&id, comm->member, &comm->rendezvous), unwatched;

	if (!err && directory && directory->magic)
		register_member(comm, directory, id);
	if (err)
		/* The peers find no socket, and forward, too. */
		become_forward(comm, "no Unix socket could be bound on one rank");
	else if ((unwatched =
	                 shunt_service_watch(&comm->registration, shunt_rendezvous_fd(comm->rendezvous), answer_peer)))
		shunt_info(
		    SHUNT_LOG_INIT, "peers wait for this rank's first call: %s", shunt_thread_error_text(unwatched).s);
	return err;
}

/* True: ranks without peer access may exchange data in another way. */
static bool serves_shared(void)
{
	return shunt_algo_links(false) >> SHUNT_LINK_SHARED & 1;
}

int shunt_comm_create(const struct shunt_comm_desc *desc, struct shunt_comm **comm_p)
{
	struct shunt_comm *comm = calloc(1, sizeof(*comm));
	int err;

	if (!comm)
		return -ENOMEM;
	shunt_process_reserve_stdio();
	shunt_limits_raise_files();
	comm->process_generation = shunt_process_generation();
	atomic_init(&comm->version, 1);
	comm->id = desc->id;
	comm->member = desc->member;
	comm->nmembers = desc->nmembers;
	comm->device = -1;
	comm->rank = comm->nranks = -1;
	comm->recorder = shunt_recorder_create(desc->id.b);
	shunt_recorder_set_counters(comm->recorder, &comm->counters);
	shunt_dump_start();
	shunt_registry_add(&comm->registration, comm, comm->recorder);
	comm->checks = shunt_config()->check;
	comm->follows_forwarded = comm->checks || shunt_config()->marks;
	comm->joined = desc->joined;
	comm->may_span = desc->may_span;
	comm->members_are_ranks = desc->members_are_ranks;
	comm->sel_key.takes_all = desc->takes_all;
	comm->topology = comm->early_topology = shunt_topology_one_island;
	comm->sel_key.topology = &comm->topology;
	comm->sel_key.deterministic = shunt_config()->deterministic;
	comm->sel_key.max_ctas = shunt_limit_min(desc->max_ctas, (int)shunt_nccl_env_max_ctas());
	comm->accumulate = shunt_config()->accumulate;
	comm->no_sms = desc->no_sms;
	comm->few_ctas = desc->few_ctas;
	comm->no_clusters = desc->no_clusters;
	comm->own = desc->own;
	if (desc->name)
		snprintf(comm->name, sizeof(comm->name), "%s", desc->name);
	comm->nccl = (struct shunt_nvls_nccl){ .version = desc->nccl_version, .windows_off = desc->nvls_off };
	shunt_order_init(&comm->order, shunt_nccl_env()->graph_mixing_support != 0);
	shunt_mutex_init(&comm->lock, SHUNT_LOCK_COMM);
	shunt_symmem_init(&comm->symmem);
	shunt_answers_init(&comm->plans.answers);
	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		comm->mem[r].fd = comm->segment[r].fd = -1;
	shunt_select_check();
	comm->sel_key.pairs = desc->takes_all || shunt_select_wants_pairs();

	if (desc->forward_reason) {
		become_forward(comm, desc->forward_reason);
	} else if (shunt_nccl_env_forbids_p2p() && !desc->takes_all && !serves_shared()) {
		/* The ranks need not agree on these settings: without this rank's socket the others forward, too. */
		become_forward(comm, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access");
	} else if (desc->nmembers > 1) {
		err = desc->id_is_shared ? 0 : open_socket(comm, desc->directory);
		/* A number that another rank has, too: the bootstrap tells all ranks. */
		if (err && err != -EADDRINUSE && desc->takes_all) {
			shunt_comm_destroy(comm);
			return err;
		}
	} else if (desc->directory) {
		comm->directory = *desc->directory; /* it may grow */
	}
	if (desc->rank >= 0)
		shunt_comm_set_rank(comm, desc->rank, desc->nranks, desc->device);
	*comm_p = comm;
	return 0;
}

int shunt_comm_set_id(struct shunt_comm *comm, const struct shunt_id *id)
{
	comm->id = *id;
	shunt_recorder_set_id(comm->recorder, id->b);
	return comm->nmembers > 1 && !shunt_comm_life_forwards(&comm->life) ? open_socket(comm, NULL) : 0;
}

void shunt_comm_deny_nvls(struct shunt_comm *comm)
{
	comm->nccl.denied = true;
}

static void forward_many(struct shunt_comm *comm)
{
	if (comm->nranks > SHUNT_MAX_RANKS && !shunt_comm_may_be_anywhere(comm) &&
	    !shunt_comm_life_forwards(&comm->life))
		become_forward(comm, "more than 8 ranks");
}

int shunt_comm_set_hosts(struct shunt_comm *comm, struct shunt_hosts *hosts)
{
	bool setup_wanted = false;
	int err = 0;

	shunt_mutex_lock(&comm->lock);
	if (!hosts) {
		forward_many(comm);
	} else if (!comm->rendezvous) {
		shunt_hosts_destroy(hosts);
	} else {
		err = shunt_rendezvous_set_hosts(comm->rendezvous, hosts, comm->rank);
		if (hosts->nranks > SHUNT_HOSTS_MAX_RANKS || hosts->largest > SHUNT_HOSTS_MAX_LOCAL)
			become_forward(comm, SHUNT_COMM_TOO_LARGE);
		else if (!shunt_comm_life_forwards(&comm->life))
			shunt_comm_net_place(comm, hosts);
	}
	if (comm->rank >= 0 && comm->device >= 0)
		setup_wanted = shunt_comm_life_named(&comm->life);
	shunt_mutex_unlock(&comm->lock);
	if (setup_wanted)
		shunt_service_wake(&comm->registration);
	return err;
}

void shunt_comm_set_own(struct shunt_comm *comm, size_t bytes, size_t net_bytes, const char *refusal)
{
	shunt_mutex_lock(&comm->lock);
	comm->own.bytes = bytes;
	comm->own.net_bytes = net_bytes;
	if (refusal && !comm->own.refusal[0])
		snprintf(comm->own.refusal, sizeof(comm->own.refusal), "%.95s", refusal);
	shunt_mutex_unlock(&comm->lock);
}

const struct shunt_directory_tail *shunt_comm_directory(const struct shunt_comm *comm)
{
	return comm->directory.magic ? &comm->directory : NULL;
}

void shunt_comm_set_rank(struct shunt_comm *comm, int rank, int nranks, int device)
{
	bool setup_wanted = false;

	shunt_mutex_lock(&comm->lock);
	comm->rank = rank;
	comm->nranks = nranks;
	comm->device = device;
	comm->sel_key.nranks = nranks;
	shunt_topology_join(&comm->topology, nranks, rank);
	shunt_topology_join(&comm->early_topology, nranks, rank);
	shunt_comm_fill_early_key(comm);
	shunt_recorder_set_rank(comm->recorder, rank, nranks, device);
	if (shunt_config()->marks && !comm->sel_key.takes_all)
		shunt_recorder_open_marks(comm->recorder, shunt_gpu());
	if (!comm->may_span) { /* else set_hosts follows: a peer may have begun already, and wait for this rank */
		if (rank >= 0 && device >= 0)
			setup_wanted = shunt_comm_life_named(&comm->life) || is_to_be_found(comm);
		forward_many(comm);
	}
	shunt_mutex_unlock(&comm->lock);
	if (setup_wanted)
		shunt_service_wake(&comm->registration);
}

struct numerics {
	uint32_t e4m3b15, accumulate;
};

/* Compares the ranks' numbers. 0, -EINVAL: they differ; or an error of the round. */
static int agree_on_numerics(struct shunt_comm *comm, const struct numerics *mine)
{
	const struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->timeout);
	struct numerics all[SHUNT_TOPOLOGY_RANKS];
	int err = shunt_rendezvous_allgather(&ranks, mine, sizeof(*mine), all, -1, NULL);

	if (err)
		return shunt_comm_fail_round(comm, err, "agreeing on the numbers of reductions");
	for (int r = 1; r < comm->nranks; r++)
		if (all[r].e4m3b15 != all[0].e4m3b15 || all[r].accumulate != all[0].accumulate) {
			shunt_error(
			    "shunt_comm_numerics: rank %d wants %s bytes and accumulation in %s, rank 0 %s and %s: let "
			    "all ranks want the same",
			    r, all[r].e4m3b15 ? "e4m3b15" : "unsigned",
			    shunt_accumulate_names[all[r].accumulate % (SHUNT_ACCUMULATE_OWN + 1)],
			    all[0].e4m3b15 ? "e4m3b15" : "unsigned",
			    shunt_accumulate_names[all[0].accumulate % (SHUNT_ACCUMULATE_OWN + 1)]);
			return -EINVAL;
		}
	return 0;
}

int shunt_comm_set_numerics(struct shunt_comm *comm, bool e4m3b15, int accumulate)
{
	const struct numerics mine = { e4m3b15, (uint32_t)accumulate };
	int err;

	shunt_mutex_lock(&comm->lock);
	err = shunt_comm_error(comm);
	if (!err && comm->nranks > 1 && shunt_comm_may_be_anywhere(comm))
		err = shunt_comm_locate_locked(comm);
	if (!err && comm->nranks > 1) {
		err = shunt_comm_setup_locked(comm);
		shunt_comm_changed(comm);
		if (!err && shunt_comm_life_state(&comm->life) != COMM_READY)
			err = -EOPNOTSUPP;
		if (!err)
			err = agree_on_numerics(comm, &mine);
	}
	if (!err) {
		comm->e4m3b15 = e4m3b15;
		comm->accumulate = accumulate;
	}
	shunt_mutex_unlock(&comm->lock);
	return err;
}

int shunt_comm_set_up(struct shunt_comm *comm)
{
	int err;

	shunt_mutex_lock(&comm->lock);
	err = shunt_comm_error(comm);
	if (!err)
		err = shunt_comm_setup_locked(comm);
	if (!err && shunt_comm_life_state(&comm->life) != COMM_READY) {
		err = comm->own_differs || comm->own.refusal[0] ? -EINVAL : -EOPNOTSUPP;
		if (shunt_comm_life_tell(&comm->life)) /* no rank had a part in it */
			shunt_error(
			    "%s of %d ranks cannot run: %s", shunt_comm_noun(comm), comm->nranks, comm->life.reason);
	}
	shunt_mutex_unlock(&comm->lock);
	return err;
}

int shunt_comm_check_host(struct shunt_comm *comm)
{
	int err = 0, missing;

	shunt_mutex_lock(&comm->lock);
	if (shunt_comm_hosts(comm) || shunt_comm_spans_hosts(comm) ||
	    (comm->nranks > 1 && shunt_comm_may_be_anywhere(comm) &&
	        shunt_rendezvous_present(comm->rendezvous, comm->nmembers, &missing) < comm->nranks))
		err = -EREMOTE;
	shunt_mutex_unlock(&comm->lock);
	return err;
}

void shunt_comm_lock(struct shunt_comm *comm)
{
	shunt_mutex_lock(&comm->lock);
}

void shunt_comm_unlock(struct shunt_comm *comm)
{
	shunt_mutex_unlock(&comm->lock);
}

/* False: this process is a forked child of the communicator's. */
static bool is_ours(const struct shunt_comm *comm)
{
	return comm->process_generation == shunt_process_generation();
}

static void print_stats(struct shunt_comm *comm)
{
	char title[96];

	snprintf(title, sizeof(title), "communicator %s rank %d of %d", shunt_id_text(comm->id.b).s, comm->rank,
	    comm->nranks);
	shunt_counters_print(&comm->counters, title);
}

/* Frees the device memory and the struct. */
static void free_comm(struct shunt_comm *comm)
{
	shunt_mutex_lock(&comm->lock);
	shunt_comm_teardown(comm);
	shunt_ce_finish(comm);
	if (comm->side_stream)
		comm->gpu->stream_destroy(comm->device, comm->side_stream);
	free(comm->forked.streams);
	shunt_rendezvous_destroy(comm->rendezvous);
	shunt_hosts_destroy(atomic_load(&comm->hosts));
	shunt_mutex_unlock(&comm->lock);
	shunt_registry_remove(&comm->registration);
	shunt_symmem_finish(comm);
	shunt_answers_finish(&comm->plans.answers);
	shunt_mutex_destroy(&comm->lock);
	shunt_recorder_destroy(comm->recorder);
	free(atomic_load(&comm->error_text));
	free(comm);
}

/*
 * True: the end of this communicator waits for the whole device. It does not where the communicator was aborted, or
 * where other ranks of this process use this rank's memory.
 */
static bool destroy_waits(const struct shunt_comm *comm)
{
	bool waits = !shunt_comm_life_aborted(&comm->life) && shunt_comm_life_state(&comm->life) == COMM_READY;

	for (int r = 0; waits && r < shunt_comm_local_ranks(comm); r++)
		waits = !comm->mem[r].borrowed;
	return waits;
}

void shunt_comm_destroy(struct shunt_comm *comm)
{
	bool waits;
	int device;

	if (!comm || !is_ours(comm))
		return;
	if (shunt_config()->stats)
		print_stats(comm);
	shunt_recorder_phase(comm->recorder, "destruction");
	shunt_service_unwatch(&comm->registration);
	shunt_directory_leave(comm->registered, &comm->as_member);
	comm->registered = NULL;
	if (shunt_comm_life_aborted(&comm->life)) {
		/* The memory may be freed later; until then no peer may find the communicator. */
		shunt_peers_unwatch(comm);
		shunt_mutex_lock(&comm->lock);
		shunt_rendezvous_destroy(comm->rendezvous);
		comm->rendezvous = NULL;
		shunt_mutex_unlock(&comm->lock);
	}
	device = comm->device;
	waits = destroy_waits(comm);
	if (shunt_deferred_free_leave(comm)) {
		free_comm(comm);
	} else {
		shunt_registry_hide(&comm->registration); /* from dumps */
		comm->recorder = shunt_recorder_detach(comm->recorder);
		shunt_deferred_free_push(comm);
	}
	while ((comm = shunt_deferred_free_pop(device, waits)))
		free_comm(comm);
}

void shunt_comm_abort(struct shunt_comm *comm)
{
	if (!is_ours(comm))
		return;
	shunt_comm_error(comm); /* logs a fault before the abort: it may be the reason for it */
	shunt_comm_life_abort(&comm->life);
	shunt_comm_fail(comm, -ECANCELED);
	if (shunt_comm_life_state(&comm->life) == COMM_READY) {
		shunt_comm_stop_kernels(comm);
		shunt_comm_net_abort(comm, -1);
	}
}

int shunt_comm_rank(const struct shunt_comm *comm)
{
	return comm->rank;
}

int shunt_comm_nranks(const struct shunt_comm *comm)
{
	return comm->nranks;
}

int shunt_comm_device(const struct shunt_comm *comm)
{
	return comm->device;
}

size_t shunt_comm_memory(struct shunt_comm *comm)
{
	if (shunt_comm_life_state(&comm->life) != COMM_READY)
		return 0;
	return comm->mem[shunt_comm_local_rank(comm)].bytes + (comm->net.landing ? comm->net.landing_bytes : 0);
}

void shunt_comm_info(struct shunt_comm *comm, struct shunt_comm_info *info)
{
	enum comm_state state = shunt_comm_life_state(&comm->life);
	bool forwards = shunt_comm_life_forwards(&comm->life), ready = state == COMM_READY;
	const struct shunt_hosts *hosts = shunt_comm_hosts(comm);

	*info = (struct shunt_comm_info){ .size = info->size,
		.rank = comm->rank,
		.nranks = comm->nranks,
		.device = comm->device,
		.error = shunt_comm_error(comm),
		.state = forwards ? "forwarding" :
		    ready         ? "ready" :
		                    "untouched",
		.memory = shunt_comm_memory(comm),
		.hosts = hosts ? hosts->nhosts : ready,
		.network = ready && comm->net.provider ? comm->net.provider : "" };
	snprintf(info->id, sizeof(info->id), "%s", shunt_id_text(comm->id.b).s);
	if (forwards)
		snprintf(info->reason, sizeof(info->reason), "%s", comm->life.reason);
	if (ready && comm->plans.set) {
		info->plans = shunt_plan_set_count(comm->plans.set);
		info->selector = shunt_plan_set_asks(comm->plans.set, SHUNT_ALLREDUCE);
	}
}

size_t shunt_comm_counters(const struct shunt_comm *comm, struct shunt_counter *rows, size_t cap)
{
	return shunt_counters_list(&comm->counters, rows, cap);
}

/* SPDX-License-Identifier: MIT */
/*
 * First use of a communicator: three rounds among all ranks.
 *
 * | round | each rank says                                | it decides                  |
 * |-------|-----------------------------------------------|-----------------------------|
 * | 1     | what it is (struct hello)                     | whether to try              |
 * | 2     | where its scratch is (transport/symm/symm.h)  | whether all ranks have some |
 * | 3     | whether it has mapped all others' scratch     | whether our kernels run     |
 *
 * Every rank checks the same tables, so all come to the same outcome: our kernels, or forward-only with one line of log
 * that has the reason.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "algos/select/tuning.h"
#include "comm/core/communicator.h"
#include "base/config.h"
#include "kernels/set.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "comm/core/peers.h"
#include "comm/core/shared_gpu.h"
#include "comm/setup/plan_set.h"
#include "base/os.h"
#include "comm/core/deferred_free.h"
#include "transport/net/providers.h"
#include "transport/symm/symm.h"

#define MISSING_TEXT \
	"%s %d has no Shunt, another version or other SHUNT_ or NCCL_ settings, or is on another host or in another " \
	"container"

enum { TUNINGS = 4 };

struct hello {
	uint32_t protocol;
	char version[16];
	struct shunt_vote vote;
	uint64_t fingerprint; /* of the configuration */
	uint64_t plans;       /* hash of the execution plans */
	/*
	 * Of the tuning files for this machine: without NVLink multicast and with it; over several hosts by provider.
	 * 0: none.
	 */
	uint64_t tuning[TUNINGS];
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

/* logs: this rank logs the reason for all. */
static int forward_from_now(struct shunt_comm *comm, bool logs, const char *reason)
{
	shunt_recorder_forward(comm->recorder, reason);
	if (!logs)
		shunt_info(SHUNT_LOG_INIT, "communicator of %d ranks, rank %d: %s", comm->nranks, comm->rank, reason);
	else if (comm->sel_key.takes_all)
		shunt_error("communicator of %d ranks cannot run: %s", comm->nranks, reason);
	else
		shunt_comm_log_forward(comm, reason);
	shunt_comm_teardown(comm);
	shunt_comm_life_forward(&comm->life, reason, true);
	shunt_comm_changed(comm);
	return 0;
}

/* How many tables a rank may have for one communicator. */
static int tunings(const struct shunt_comm *comm)
{
	int n = 0;

	if (!shunt_comm_spans_hosts(comm))
		return 2;
	while (n < TUNINGS && shunt_net_providers()[n])
		n++;
	return shunt_placement_is_regular(&comm->placement) ? n : 0;
}

/* which: as in the hello. */
static const struct shunt_tuning *own_tuning(
    const struct shunt_comm *comm, const struct shunt_gpu_info *gpu, int which, bool logs)
{
	struct shunt_machine machine;
	bool nvls = !shunt_comm_spans_hosts(comm) && which;

	shunt_machine_describe(gpu, comm->nranks, comm->nccl.version, nvls, &machine);
	if (shunt_comm_spans_hosts(comm)) {
		machine.nhosts = comm->placement.nhosts;
		snprintf(machine.net, sizeof(machine.net), "%s", shunt_net_providers()[which]->name);
	}
	return shunt_tuning_match(shunt_tuning_files(), &machine, comm->sel_key.takes_all, logs);
}

static uint64_t tuning_hash(const struct shunt_comm *comm, const struct shunt_gpu_info *gpu, int which)
{
	const struct shunt_tuning *t = own_tuning(comm, gpu, which, false);

	return t ? t->hash : 0;
}

/* The table of the ranks' tuning files if all have the same one, else NULL. which: as in the hello. */
static const struct shunt_tuning *same_tuning(struct shunt_comm *comm, const struct hello *hellos, int which)
{
	uint64_t first = hellos[0].tuning[which];
	const struct shunt_tuning *own;
	bool same = true;

	for (int r = 1; r < comm->nranks; r++) {
		if (same && hellos[r].tuning[which] != first && comm->rank == 0)
			shunt_warn("communicator of %d ranks uses the built-in tuning: rank %d has %s tuning file, "
			           "rank 0 has %s",
			    comm->nranks, r,
			    !hellos[r].tuning[which] ? "no" :
			        first                ? "another" :
			                               "a",
			    first ? "one" : "none");
		same = same && hellos[r].tuning[which] == first;
	}
	own = own_tuning(comm, &hellos[comm->rank].gpu, which, comm->rank == 0);
	return same && first ? own : NULL;
}

static void agree_on_tuning(struct shunt_comm *comm, const struct hello *hellos)
{
	uint16_t cc = hellos[0].gpu.cc;

	for (int r = 1; r < comm->nranks; r++)
		cc = hellos[r].gpu.cc < cc ? hellos[r].gpu.cc : cc;
	comm->sel_key.cc = cc;
	/* Which provider it is comes out once the ranks are connected. */
	for (int i = 0; shunt_comm_spans_hosts(comm) && i < tunings(comm); i++)
		comm->net.tuning[i] = same_tuning(comm, hellos, i);
	if (shunt_comm_spans_hosts(comm))
		return;
	comm->sel_key.tuning = same_tuning(comm, hellos, comm->sel_key.nvls);
	if (!comm->sel_key.tuning) /* looked up once, not for every call */
		comm->sel_key.tuning = shunt_tuning_builtin(hellos[0].gpu.sim, cc, comm->nranks);
}

static void fill_hello(struct shunt_comm *comm, struct hello *h)
{
	int err;

	memset(h, 0, sizeof(*h));
	h->protocol = shunt_setup_protocol;
	h->vote.ok = 1;
	snprintf(h->version, sizeof(h->version), "%s", SHUNT_VERSION);
	h->fingerprint = shunt_config_fingerprint() ^ shunt_tuning_builtin_hash();
	h->process = shunt_process_token();
	h->pid = (int32_t)getpid();
	h->plans = shunt_comm_plan_set_acquire(comm);
	h->max_ctas = comm->sel_key.max_ctas;
	h->takes_all = comm->sel_key.takes_all;
	h->no_sms = comm->no_sms;
	h->few_ctas = comm->few_ctas;
	comm->gpu = shunt_gpu();
	if (!comm->gpu)
		shunt_vote_refuse(&h->vote, "no device layer");
	else if (comm->device < 0)
		shunt_vote_refuse(&h->vote, "its device is not known");
	else if ((err = comm->gpu->device_info(comm->device, &h->gpu)))
		shunt_vote_refuse(&h->vote, "device %d cannot be asked: %s", comm->device, strerror(-err));
	else
		for (int i = 0; i < tunings(comm); i++)
			h->tuning[i] = tuning_hash(comm, &h->gpu, i);
	h->net = shunt_comm_net_usable(comm);
	h->tma = h->gpu.tma && shunt_config()->tma;
	h->nvls = shunt_nvls_of_rank(&h->gpu, &comm->nccl, shunt_nccl_env()->nvls_enable);
}

/* Compares the ranks' hellos, alike on all ranks. False: they do not fit, for this reason. */
static bool hellos_agree(const struct hello *h, int n, char *reason, size_t bytes)
{
	for (int r = 0; r < n; r++) {
		if (h[r].protocol != h[0].protocol || strncmp(h[r].version, h[0].version, sizeof(h[r].version))) {
			snprintf(reason, bytes,
			    "rank %d has Shunt %.15s (set-up protocol %08x), rank 0 has %.15s (%08x)", r, h[r].version,
			    h[r].protocol, h[0].version, h[0].protocol);
			return false;
		}
		if (!h[r].vote.ok) {
			snprintf(reason, bytes, "rank %d: %.95s", r, h[r].vote.reason);
			return false;
		}
		if (h[r].fingerprint != h[0].fingerprint) {
			snprintf(reason, bytes,
			    "rank %d has other SHUNT_ or NCCL_ settings than rank 0 (compare `shunt info -c` on both)",
			    r);
			return false;
		}
		if (h[r].takes_all != h[0].takes_all) {
			snprintf(reason, bytes, "rank %d has %s real NCCL, rank 0 has %s", r,
			    h[r].takes_all ? "no" : "a", h[0].takes_all ? "none" : "one");
			return false;
		}
		if (h[r].gpu.sim != h[0].gpu.sim) {
			snprintf(reason, bytes, "rank %d is on the %s, rank 0 is not", r, h[r].gpu.sim ? "sim" : "GPU");
			return false;
		}
	}
	return true;
}

static bool same_gpu(const struct shunt_gpu_info *a, const struct shunt_gpu_info *b)
{
	return !memcmp(a->uuid, b->uuid, sizeof(a->uuid));
}

/*
 * Limits launches where ranks share a GPU. Their kernels wait for each other, so all of them must find room at once,
 * together with those of a second communicator of the same ranks.
 */
static void limit_shared_gpus(struct shunt_comm *comm, const struct hello *h)
{
	for (int r = 0; r < comm->nranks; r++) {
		unsigned sharing = 1;

		for (int peer = 0; peer < comm->nranks; peer++)
			sharing += peer != r && same_gpu(&h[r].gpu, &h[peer].gpu);
		if (sharing > 1)
			comm->sel_key.max_ctas = shunt_limit_min(
			    comm->sel_key.max_ctas, (int)shunt_grid_coresident_blocks(h[r].gpu.sms, 2 * sharing));
	}
}

/* Whether NCCL uses NVLink multicast: not where one rank knows of an obstacle. */
static void agree_on_nvls(struct shunt_comm *comm, const struct hello *h)
{
	enum shunt_nvls why = SHUNT_NVLS_POSSIBLE;
	static atomic_bool warned;
	int rank = 0;

	for (int r = 0; r < comm->nranks && !why; rank = r++) {
		why = (enum shunt_nvls)h[r].nvls;
		for (int peer = 0; peer < r && !why; peer++)
			if (same_gpu(&h[r].gpu, &h[peer].gpu))
				why = SHUNT_NVLS_SHARED;
	}
	comm->sel_key.nvls = !why;
	if (comm->rank || comm->sel_key.takes_all)
		return;
	if (why && shunt_nccl_env()->nvls_enable == 1 && !atomic_exchange(&warned, true))
		shunt_warn(
		    "NCCL_NVLS_ENABLE=1 asks for NVLink multicast, which a communicator of %d ranks cannot have (rank "
		    "%d: %s): calls in windows are chosen as without it",
		    comm->nranks, rank, shunt_nvls_name(why));
	else
		shunt_info(SHUNT_LOG_INIT, "communicator of %d ranks: NCCL's NVLink multicast: %s%s", comm->nranks,
		    why ? "no: " : "yes", shunt_nvls_name(why));
}

/* True: the rank is on this one's host. */
static bool is_local(const struct shunt_comm *comm, int r)
{
	const struct shunt_placement *placement = &comm->placement;

	return !placement->nhosts || placement->host_of[r] == placement->host_of[comm->rank];
}

/* Ranks of this process, with this one, that share its GPU; 1 on the sim, whose devices are never full. */
static int threads_on_gpu(const struct shunt_comm *comm, const struct hello *h)
{
	const struct hello *own = &h[comm->rank];
	int n = 0;

	for (int r = 0; r < comm->nranks; r++)
		n += r == comm->rank ||
		    (is_local(comm, r) && !own->gpu.sim && own->process == h[r].process &&
		        same_gpu(&own->gpu, &h[r].gpu));
	return n;
}

/* True: this rank's device can use the memory of all others. */
static bool reaches_peers(struct shunt_comm *comm, const struct hello *hellos, struct shunt_vote *vote)
{
	for (int r = 0; r < comm->nranks && vote->ok; r++) {
		const char *reason = "no peer access";

		if (r == comm->rank || !is_local(comm, r))
			continue;
		if (same_gpu(&hellos[comm->rank].gpu, &hellos[r].gpu) && !shunt_config()->multi_rank_gpu)
			shunt_vote_refuse(
			    vote, "it shares its GPU with rank %d, which SHUNT_MULTI_RANK_GPU=1 would let it do", r);
		else if (comm->gpu->peer_check(comm->device, &hellos[r].gpu, &reason))
			shunt_vote_refuse(vote, "its device cannot reach rank %d's: %s", r, reason);
	}
	if (vote->ok && shunt_config()->multi_rank_gpu < 2 && threads_on_gpu(comm, hellos) > 1 &&
	    !shunt_shared_gpu_take(comm))
		shunt_vote_refuse(vote,
		    "threads that share GPU %d have a communicator there; SHUNT_MULTI_RANK_GPU=2 allows it",
		    comm->device);
	return vote->ok;
}

static size_t scratch_bytes(struct shunt_comm *comm)
{
	int largest = 0;

	if (!shunt_comm_spans_hosts(comm))
		return SHUNT_SCRATCH_BYTES(comm->nranks);
	for (int h = 0; h < comm->placement.nhosts; h++) /* the same on all hosts */
		largest = comm->placement.nlocal[h] > largest ? comm->placement.nlocal[h] : largest;
	return SHUNT_NET_SCRATCH_BYTES((unsigned)largest, comm->net.slot_bytes);
}

/* What fails becomes this rank's vote. */
static void make_scratch(struct shunt_comm *comm, const struct hello *hellos, struct shunt_symm *symm)
{
	const struct shunt_gpu_ops *gpu = comm->gpu;
	struct shunt_ctrl *ctrl;
	void *host, *dev;
	int err;

	if (!reaches_peers(comm, hellos, &symm->vote))
		return;
	err = gpu->kernels_load(comm->device);
	if (err) {
		shunt_vote_refuse(&symm->vote, "kernels cannot be loaded: %s", strerror(-err));
		return;
	}
	if (shunt_symm_alloc(symm, scratch_bytes(comm)))
		return;
	err = gpu->host_alloc(sizeof(*comm->words), &host, &dev);
	if (err) {
		shunt_vote_refuse(&symm->vote, "page-locked memory cannot be allocated: %s", strerror(-err));
		return;
	}
	comm->words = host;
	comm->words->limit_ns = shunt_comm_spin_limit();
	ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr;
	err = gpu->copy(comm->device, &ctrl->host_ctrl, &dev, sizeof(dev));
	if (err)
		shunt_vote_refuse(&symm->vote, "its scratch cannot be written: %s", strerror(-err));
}

/* For SHUNT_CHECK: a plan's launch has no other way to find the peers' scratch. */
static int write_peers(void *ctx)
{
	struct shunt_comm *comm = ctx;
	struct shunt_ctrl *ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr;
	char *peer[SHUNT_KARGS_MAX_RANKS] = { NULL };

	for (int r = 0; r < shunt_comm_local_ranks(comm); r++)
		peer[r] = comm->mem[r].ptr;
	return comm->gpu->copy(comm->device, ctrl->check.peer, peer, sizeof(peer));
}

static void begin_scratch(struct shunt_comm *comm, struct shunt_symm *symm)
{
	shunt_symm_init(symm,
	    &(struct shunt_symm_config){ .ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout),
	        .mates =
	            shunt_comm_spans_hosts(comm) ? comm->placement.rank_at[comm->placement.host_of[comm->rank]] : NULL,
	        .nmates = shunt_comm_local_ranks(comm),
	        .own = shunt_comm_local_rank(comm),
	        .gpu = comm->gpu,
	        .device = comm->device,
	        .process = shunt_process_token(),
	        .what = "scratch",
	        .mem = comm->mem,
	        .fill = comm->checks ? write_peers : NULL,
	        .ctx = comm });
}

/* Logs the failure, and breaks the communicator. reason: more than err says, or empty. */
static int setup_failed(struct shunt_comm *comm, const char *step, const char *reason, int err)
{
	if (reason[0])
		shunt_error("setting up a communicator of %d ranks on rank %d: %s", comm->nranks, comm->rank, reason);
	else if (err != -ECANCELED)
		shunt_error("setting up a communicator of %d ranks: %s on rank %d: %s", comm->nranks, step, comm->rank,
		    strerror(-err));
	/*
	 * Another communicator's kernels may hang until it is aborted, and freeing would wait for them. Then the memory
	 * is freed with this communicator.
	 */
	if (shunt_deferred_free_alone(comm))
		shunt_comm_teardown(comm);
	shunt_comm_fail(comm, err);
	return err;
}

/* Without a recorder, launches carry no word (kargs.op), and kernels without a word keep no account. */
static void start_account(struct shunt_comm *comm)
{
	const struct shunt_ctrl *ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr;

	if (comm->recorder)
		shunt_order_set_progress(&comm->order, &ctrl->progress);
}

/* A single rank has no peers to agree with. Its kernels keep their counters in a small allocation of their own. */
static int setup_single_rank(struct shunt_comm *comm)
{
	struct shunt_symm symm;
	void *ctrl;
	int err;

	comm->gpu = shunt_gpu();
	if (!comm->gpu)
		return -ENODEV;
	err = comm->gpu->kernels_load(comm->device);
	begin_scratch(comm, &symm);
	if (!err)
		err = shunt_symm_alloc(&symm, sizeof(struct shunt_ctrl));
	if (!err)
		err = shunt_symm_agree(&symm);
	if (err)
		return err;
	ctrl = comm->mem[0].ptr;
	comm->kargs = (struct shunt_kargs){ .peer = { ctrl }, .nranks = 1 };
	comm->sel_key.few_ctas = comm->few_ctas;
	shunt_recorder_ready(comm->recorder, comm->gpu, ctrl, NULL);
	start_account(comm);
	shunt_comm_life_ready(&comm->life);
	shunt_comm_changed(comm);
	return 0;
}

/* State of a set-up. */
struct setup {
	struct hello hello, hellos[SHUNT_NET_MAX_RANKS];
	bool logs;        /* this rank logs the outcome */
	char reason[160]; /* of -EOPNOTSUPP, and of a rank that does not come */
	struct timespec begun, met_at;
};

/* Waits until a root of another host says where it listens. */
static int find_root(struct shunt_comm *comm, struct shunt_hosts *hosts, int host)
{
	int root = hosts->leader[host], member = hosts->rank[root].row.member;
	int err = shunt_directory_find(
	    &comm->directory, comm->registered, &comm->as_member, member, &comm->life.cancel, &hosts->rank[root].at);
	char text[80];

	if (err && err != -ECANCELED) {
		shunt_hosts_show(hosts, host, text, sizeof(text));
		shunt_error("rank %d waited for %s %d on %s to set up a communicator: %s", comm->rank,
		    hosts->by_member ? "the parent's rank" : "rank", member, text,
		    err == -EOWNERDEAD ? "its process has ended" : strerror(-err));
	}
	return err;
}

/* Overlay, before the rendezvous: the hosts' roots learn each other's addresses from the directory. */
static int find_roots(struct shunt_comm *comm, struct shunt_hosts *hosts, int own)
{
	int host = hosts->host_of[own], err;

	if (own != hosts->leader[host])
		return 0;
	err = shunt_directory_offer(&comm->directory, &comm->registered, &comm->as_member, &hosts->rank[own].at);
	if (host)
		return err ? err : find_root(comm, hosts, 0);
	for (int h = 1; h < hosts->nhosts && !err; h++)
		err = find_root(comm, hosts, h);
	return err;
}

/*
 * Not all ranks are on this host: those of others have registered, or are missing. *hosts_p: all are there; NULL:
 * reason says who is missing. The table is the same on all ranks; only a rank that the directory's process has left
 * behind goes on without one.
 */
static void ask_directory(
    struct shunt_comm *comm, int missing, struct shunt_hosts **hosts_p, char *reason, size_t bytes)
{
	struct shunt_directory_table table = { .missing = missing };
	int err = shunt_directory_ask(&comm->directory, comm->registered, &comm->as_member, &comm->life.cancel, &table);

	*hosts_p = NULL;
	if (err) {
		shunt_info(SHUNT_LOG_INIT,
		    "communicator of %d ranks, rank %d: the directory of hosts does not answer: %s", comm->nranks,
		    comm->rank, strerror(-err));
		table.missing = missing;
	} else if (table.present >= comm->nranks) {
		*hosts_p = table.hosts;
		return;
	} else {
		shunt_hosts_destroy(table.hosts);
	}
	snprintf(
	    reason, bytes, MISSING_TEXT, comm->nmembers == comm->nranks ? "rank" : "the parent's rank", table.missing);
}

static int stay_with_nccl(struct shunt_comm *comm, struct shunt_hosts *hosts, const char *why)
{
	char reason[160];
	int n = snprintf(reason, sizeof(reason), "%s", why);

	if (hosts) {
		n += snprintf(reason + n, sizeof(reason) - (size_t)n, ": ");
		shunt_hosts_describe(hosts, reason + n, sizeof(reason) - (size_t)n);
		atomic_store(&comm->hosts, hosts);
	}
	return forward_from_now(
	    comm, comm->rank == 0 || (!hosts && shunt_rendezvous_is_leader(comm->rendezvous)), reason);
}

int shunt_comm_locate_locked(struct shunt_comm *comm)
{
	struct shunt_hosts *hosts = NULL;
	int missing, present, own;
	char reason[160];

	if (atomic_load(&comm->located) || shunt_comm_life_state(&comm->life) >= COMM_READY)
		return 0;
	present = shunt_rendezvous_present(comm->rendezvous, comm->nmembers, &missing);
	if (present < comm->nranks)
		ask_directory(comm, missing, &hosts, reason, sizeof(reason));
	atomic_store(&comm->located, true);
	if (present >= comm->nranks)
		return comm->nranks > SHUNT_MAX_RANKS ? stay_with_nccl(comm, NULL, "more than 8 ranks") : 0;
	if (!hosts)
		return stay_with_nccl(comm, NULL, reason);
	own = shunt_hosts_find(hosts, comm->member);
	if (own < 0 || hosts->nranks != comm->nranks) {
		shunt_hosts_destroy(hosts);
		return stay_with_nccl(comm, NULL, "other ranks than those of the communicator are registered");
	}
	hosts->by_member = !comm->members_are_ranks;
	if (hosts->largest > SHUNT_HOSTS_MAX_LOCAL)
		return stay_with_nccl(comm, hosts, SHUNT_COMM_TOO_LARGE);
	if (hosts->leader[hosts->host_of[own]] == own)
		(void)shunt_hosts_listen(hosts, own); /* logged; then the set-up finds no address, and fails */
	shunt_comm_net_place(comm, hosts);            /* a child's ranks are placed after the join */
	return shunt_rendezvous_set_hosts(comm->rendezvous, hosts, own);
}

/* Of a child the directory knows the parent's ranks, in whose order they have joined. */
static int renumber(struct shunt_comm *comm)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	int32_t rank_of[SHUNT_HOSTS_MAX_RANKS], own = comm->rank;
	int err = shunt_rendezvous_allgather(&ranks, &own, sizeof(own), rank_of, -1, NULL);

	if (!err)
		err = shunt_rendezvous_renumber(comm->rendezvous, rank_of);
	if (!err)
		shunt_comm_net_place(comm, shunt_rendezvous_hosts(comm->rendezvous));
	return err;
}

static int rendezvous(struct shunt_comm *comm, struct setup *s)
{
	struct shunt_hosts *hosts = comm->nranks > 1 ? shunt_rendezvous_hosts_of(comm->rendezvous) : NULL;
	int err = 0, missing = -1, as = comm->rank;

	clock_gettime(CLOCK_MONOTONIC, &s->begun);
	fill_hello(comm, &s->hello); /* before the join: all ranks would wait for it after */
	if (comm->directory.magic && hosts) {
		as = shunt_hosts_find(hosts, comm->member);
		err = find_roots(comm, hosts, as);
	}
	if (comm->nranks > 1 && !err)
		err = shunt_rendezvous_join(
		    comm->rendezvous, comm->nmembers, as, comm->nranks, &comm->life.cancel, &missing);
	if (!err && hosts && hosts->by_member)
		err = renumber(comm);
	clock_gettime(CLOCK_MONOTONIC, &s->met_at);
	if (err != -ENOENT)
		return err;
	if (comm->joined) { /* it was there at init */
		snprintf(s->reason, sizeof(s->reason),
		    "rank %d has ended, or runs as another user, or in another network namespace with the same "
		    "SHUNT_HOSTID",
		    missing);
		return -EOWNERDEAD;
	}
	snprintf(s->reason, sizeof(s->reason), MISSING_TEXT,
	    comm->nmembers == comm->nranks ? "rank" : "the parent's rank", missing);
	s->logs = s->logs ||
	    shunt_rendezvous_is_leader(comm->rendezvous); /* rank 0 may have no Shunt, and then logs nothing */
	return -EOPNOTSUPP;
}

/* Fills the selection key with what the ranks have in common. */
static void agree_on_sel_key(struct shunt_comm *comm, const struct hello *h)
{
	struct shunt_sel_key *sel_key = &comm->sel_key;

	sel_key->no_sms = sel_key->few_ctas = sel_key->tma = true;
	for (int r = 0; r < comm->nranks; r++) {
		sel_key->max_ctas = shunt_limit_min(sel_key->max_ctas, h[r].max_ctas);
		sel_key->sms = (uint32_t)shunt_limit_min((int)sel_key->sms, h[r].gpu.sim ? 0 : (int)h[r].gpu.sms);
		sel_key->no_sms &= h[r].no_sms != 0;
		sel_key->few_ctas &= h[r].few_ctas != 0;
		sel_key->tma &= h[r].tma != 0;
	}
	limit_shared_gpus(comm, h);
	sel_key->sim = h[0].gpu.sim;
	agree_on_nvls(comm, h);
	agree_on_tuning(comm, h);
}

static void agree_on_net(struct shunt_comm *comm, const struct hello *h)
{
	const struct shunt_net_ops *const *providers = shunt_net_providers();
	char gpus[SHUNT_KARGS_MAX_RANKS][16];
	unsigned usable = h[0].net, any = 0;
	int n = 0;

	for (int r = 0; r < comm->nranks; r++) {
		usable &= h[r].net;
		any |= h[r].net;
		if (is_local(comm, r))
			memcpy(gpus[n++], h[r].gpu.pci, sizeof(gpus[0]));
	}
	for (unsigned i = 0; providers[i] && comm->rank == 0; i++) /* who has none is named, as it may be a fault */
		for (int r = 0; (any & ~usable) >> i & 1 && r < comm->nranks; r++)
			if (!(h[r].net >> i & 1)) {
				shunt_warn(
				    "communicator of %d ranks does not use %s between its hosts: rank %d has no device "
				    "for it (`shunt doctor` there says why)",
				    comm->nranks, providers[i]->name, r);
				break;
			}
	for (int r = 0; any & ~usable & SHUNT_NET_USABLE_ADDS && comm->rank == 0 && r < comm->nranks; r++)
		if (!(h[r].net & SHUNT_NET_USABLE_ADDS)) {
			shunt_warn("communicator of %d ranks does not use SHUNT_IBV_MODE=host: rank %d has not set it, "
			           "or has a "
			           "NIC without atomics",
			    comm->nranks, r);
			break;
		}
	shunt_comm_net_choose(comm, usable, (const char (*)[16])gpus, n);
	shunt_comm_net_size(comm);
}

/* First round. */
static int exchange_hellos(struct shunt_comm *comm, struct setup *s)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	/* Over several hosts the end of a process's connections tells of its death. */
	bool watches = !shunt_comm_spans_hosts(comm);
	int processes[SHUNT_MAX_RANKS], self = watches ? shunt_peers_self() : -1;
	struct shunt_peer peers[SHUNT_MAX_RANKS];
	int err = shunt_rendezvous_allgather(
	    &ranks, &s->hello, sizeof(s->hello), s->hellos, self, watches ? processes : NULL);

	if (self >= 0)
		close(self);
	if (err)
		return err;
	if (!watches) {
		if (!hellos_agree(s->hellos, comm->nranks, s->reason, sizeof(s->reason)))
			return -EOPNOTSUPP;
		agree_on_sel_key(comm, s->hellos);
		agree_on_net(comm, s->hellos);
		return 0;
	}
	if (!hellos_agree(s->hellos, comm->nranks, s->reason, sizeof(s->reason))) {
		shunt_io_close_all(processes, comm->nranks);
		return -EOPNOTSUPP;
	}
	agree_on_sel_key(comm, s->hellos);
	for (int r = 0; r < comm->nranks; r++)
		peers[r] = (struct shunt_peer){ s->hellos[r].process, s->hellos[r].pid, processes[r] };
	shunt_peers_watch(comm, peers);
	return 0;
}

static int compare_plans(struct shunt_comm *comm, struct setup *s)
{
	uint64_t plans[SHUNT_NET_MAX_RANKS];

	for (int r = 0; r < comm->nranks; r++)
		plans[r] = s->hellos[r].plans;
	return shunt_comm_plan_set_agree(comm, plans);
}

/* Second and third round. */
static int share_scratch(struct shunt_comm *comm, struct setup *s)
{
	struct shunt_symm symm;
	int err;

	begin_scratch(comm, &symm);
	make_scratch(comm, s->hellos, &symm);
	err = shunt_symm_agree(&symm);
	if (err == -EOPNOTSUPP)
		snprintf(s->reason, sizeof(s->reason), "%s", symm.refusal);
	return err;
}

static int connect_hosts(struct shunt_comm *comm, struct setup *s)
{
	const struct shunt_net_ops *const *providers = shunt_net_providers();
	int err = shunt_comm_spans_hosts(comm) ? shunt_comm_net_connect(comm, s->reason) : 0;

	if (err || !shunt_comm_spans_hosts(comm))
		return err;
	for (int i = 0; i < tunings(comm); i++)
		if (!strcmp(providers[i]->name, comm->net.provider))
			comm->sel_key.tuning = comm->net.tuning[i];
	return 0;
}

static double ms_between(const struct timespec *from, const struct timespec *to)
{
	return (to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) / 1e6;
}

static void become_ready(struct shunt_comm *comm, const struct setup *s)
{
	char hosts[96] = "";
	struct timespec now;

	for (int r = 0; r < shunt_comm_local_ranks(comm); r++)
		comm->kargs.peer[r] = comm->mem[r].ptr;
	comm->kargs.rank = (uint16_t)shunt_comm_local_rank(comm);
	comm->kargs.nranks = (uint16_t)shunt_comm_local_ranks(comm);
	shunt_recorder_ready(
	    comm->recorder, comm->gpu, comm->mem[shunt_comm_local_rank(comm)].ptr, &comm->words->fault);
	start_account(comm);
	shunt_deferred_free_enter(comm);
	shunt_comm_life_ready(&comm->life);
	shunt_comm_changed(comm);
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (shunt_comm_spans_hosts(comm))
		snprintf(hosts, sizeof(hosts), ", %d hosts by %s%s", comm->placement.nhosts, comm->net.provider,
		    comm->net.adds        ? ", signals by atomics" :
		        comm->net.landing ? " into GPU memory" :
		                            "");
	shunt_info(SHUNT_LOG_INIT,
	    "communicator %s rank %d of %d on device %d (%s%s): ready in %.1f ms after %.1f ms of waiting, %.1f MiB",
	    shunt_id_text(comm->id.b).s, comm->rank, comm->nranks, comm->device, comm->gpu->name, hosts,
	    ms_between(&s->met_at, &now), ms_between(&s->begun, &s->met_at),
	    comm->mem[shunt_comm_local_rank(comm)].bytes / 1048576.0);
	/* An abort between the last check and READY did not stop the kernels: repeat it. */
	if (shunt_comm_life_aborted(&comm->life)) {
		shunt_comm_stop_kernels(comm);
		shunt_comm_net_abort(comm);
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
		const char *what;
	} steps[] = {
		{ rendezvous, "rendezvous with the other ranks" },
		{ exchange_hellos, "exchanging capabilities" },
		{ compare_plans, "comparing execution plans" },
		{ share_scratch, "sharing scratch memory" },
		{ connect_hosts, "connecting with other hosts" },
	};
	struct setup s = { .logs = comm->rank == 0 };
	const char *what = NULL;
	int err = 0;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !err; i++) {
		what = steps[i].what;
		err = steps[i].run(comm, &s);
	}
	if (err)
		return err == -EOPNOTSUPP ? forward_from_now(comm, s.logs, s.reason) :
		                            setup_failed(comm, what, s.reason, err);
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
	err = comm->nranks == 1 && comm->sel_key.takes_all ? setup_single_rank(comm) : setup_all_ranks(comm);
	shunt_recorder_phase(comm->recorder, NULL);
	return err;
}

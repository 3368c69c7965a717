/* SPDX-License-Identifier: MIT */
#include "comm/setup/network.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "algos/algos.h"
#include "base/config.h"
#include "base/io.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"
#include "transport/net/nic.h"
#include "transport/net/providers.h"
#include "transport/net/proxy/proxy.h"
#include "transport/rendezvous/hosts.h"
#include "transport/symm/vote.h"

/* Device memory for the rings on a rank's host, at most. */
#define LOCAL_BYTES (24u << 20)
#define SLOT_MOST (256u << 10)
#define SLOT_LEAST SHUNT_NET_MIN_CHUNK
/* A page of memory is written where a slot is used; the sim's machine has as many ranks as hosts. */
#define SIM_SLOT_MOST (32u << 10)
#define SIM_FEW_RANKS 16

#define FAREWELL_MS 200  /* how long the end of a communicator waits for its peers */
#define LINGER_MS 60000  /* how long connections stay open for peers that are late */
#define CONNECT_NAME 128 /* bytes of a peer's name */

/* What a finished communicator has left. */
struct lingering {
	struct lingering *next;
	struct shunt_proxy *proxy;
	const struct shunt_gpu_ops *gpu;
	void *memory, *landing;
	struct shunt_comm_region *regions;
	int64_t until;
};

static struct lingering *lingering; /* SHUNT_LOCK_LINGERING */

/* A forked child has no proxy, and its parent's memory is not its own. */
static void forget_lingering(void)
{
	lingering = NULL;
}
SHUNT_IN_FORKED_CHILD(forget_lingering)

void shunt_comm_net_place(struct shunt_comm *comm, const struct shunt_hosts *hosts)
{
	struct shunt_placement *placement = &comm->placement;

	*placement = (struct shunt_placement){ .nranks = hosts->nranks, .nhosts = hosts->nhosts, .rank = comm->rank };
	memcpy(placement->host_of, hosts->host_of, (size_t)hosts->nranks);
	shunt_placement_complete(placement);
	comm->sel_key.placement = placement;
}

/* ---- connections */

/* True: the two ranks, on different hosts, exchange data. Without a real NCCL any two do, else the rails alone. */
static bool connects(const struct shunt_comm *comm, int a, int b)
{
	const struct shunt_placement *placement = &comm->placement;

	if (placement->host_of[a] == placement->host_of[b])
		return false;
	return comm->sel_key.takes_all ||
	    (placement->local_of[a] == placement->local_of[b] && placement->local_of[a] < placement->rails);
}

/* The number of rank a's connection with rank b; b = nranks: how many a has. */
static int connection_of(const struct shunt_comm *comm, int a, int b)
{
	int n = 0;

	for (int r = 0; r < b; r++)
		n += connects(comm, a, r);
	return n;
}

static uint32_t floor_power(uint64_t bytes, uint32_t least, uint32_t most)
{
	uint32_t power = most;

	while (power > least && power > bytes)
		power /= 2;
	return power;
}

/* The sizes of rings, from values that all ranks share. */
static void size_rings(struct shunt_comm *comm)
{
	struct shunt_comm_net *net = &comm->net;
	struct shunt_sel_key *key = &comm->sel_key;
	uint64_t slot = SLOT_MOST, fits;
	int connections = 1, largest = 1;

	for (int r = 0; r < comm->nranks; r++) {
		int n = connection_of(comm, r, comm->nranks),
		    local = comm->placement.nlocal[comm->placement.host_of[r]];

		connections = n > connections ? n : connections;
		largest = local > largest ? local : largest;
	}
	fits = SHUNT_NET_MEMORY_MOST / ((uint64_t)connections * 2 * SHUNT_NET_REMOTE_RINGS * SHUNT_NET_SLOTS);
	slot = fits < slot ? fits : slot;
	fits = LOCAL_BYTES / ((uint64_t)largest * SHUNT_NET_RINGS * SHUNT_NET_SLOTS);
	slot = fits < slot ? fits : slot;
	net->slot_bytes = floor_power(slot, SLOT_LEAST, key->sim ? SIM_SLOT_MOST : SLOT_MOST);
	net->channels = key->sim ? (comm->nranks <= SIM_FEW_RANKS ? 2 : 1) : SHUNT_NET_CHANNELS;
	net->channels = shunt_grid_halve(key, net->channels);
	if (key->max_ctas && (uint32_t)key->max_ctas < net->channels)
		net->channels = (uint32_t)key->max_ctas;
	key->net_channels = net->channels;
	key->net_slot_bytes = net->slot_bytes;
	net->nconnections = connection_of(comm, comm->rank, comm->nranks);
	for (int r = 0; r < comm->nranks; r++)
		if (connects(comm, comm->rank, r))
			net->rank_of[connection_of(comm, comm->rank, r)] = (uint8_t)r;
}

/* ---- providers */

unsigned shunt_comm_net_usable(const struct shunt_comm *comm)
{
	return shunt_comm_spans_hosts(comm) ? shunt_net_usable() : 0;
}

/* The devices nearest to this rank's GPU; GPUs that are as near as each other take turns. */
static struct shunt_net_rails nearest_devices(
    const struct shunt_net_ops *net, const char (*gpus)[16], int ngpus, int own)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_nic_place devices[SHUNT_NET_MAX_DEVICES] = { 0 }, places[SHUNT_KARGS_MAX_RANKS];
	int n = net->devices(info, SHUNT_NET_MAX_DEVICES), most = net->add_rail ? (int)shunt_config()->ib_rails : 1;
	struct shunt_net_rails rails = { .n = 1 };

	if (n <= 1)
		return rails;
	for (int i = 0; i < n; i++) {
		snprintf(devices[i].pci, sizeof(devices[i].pci), "%s", info[i].pci);
		devices[i].numa = info[i].numa;
	}
	for (int i = 0; i < ngpus; i++)
		shunt_nic_pci_place(gpus[i], &places[i]);
	rails.n = shunt_nic_rails(places, ngpus, own, devices, n, most, rails.index);
	return rails;
}

static void choose_devices(struct shunt_comm *comm, unsigned usable, const char (*gpus)[16], int ngpus)
{
	const struct shunt_net_ops *const *providers = shunt_net_providers();

	comm->net.usable = usable;
	for (int i = 0; providers[i]; i++)
		if (usable >> i & 1)
			/* Interfaces of tcp need not reach each other: the first is the one that NCCL would take. */
			comm->net.rails[i] = providers[i + 1] ?
			    nearest_devices(providers[i], gpus, ngpus, shunt_comm_local_rank(comm)) :
			    (struct shunt_net_rails){ .n = 1 };
}

void shunt_comm_net_agree(struct shunt_comm *comm, const struct shunt_hello *h)
{
	const struct shunt_net_ops *const *providers = shunt_net_providers();
	char gpus[SHUNT_KARGS_MAX_RANKS][16];
	unsigned usable = h[0].net, any = 0;
	int n = 0;

	for (int r = 0; r < comm->nranks; r++) {
		usable &= h[r].net;
		any |= h[r].net;
		if (comm->placement.host_of[r] == comm->placement.host_of[comm->rank])
			memcpy(gpus[n++], h[r].gpu.pci, sizeof(gpus[0]));
	}
	/* Name the first rank without a device: it may be misconfigured. */
	for (unsigned i = 0; providers[i] && comm->rank == 0; i++)
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
			           "or has a NIC without atomics",
			    comm->nranks, r);
			break;
		}
	choose_devices(comm, usable, (const char (*)[16])gpus, n);
	size_rings(comm);
}

/* ---- what kernels read */

static struct shunt_net_ctrl *ctrl_of(const struct shunt_comm *comm, int mate)
{
	return (struct shunt_net_ctrl *)((char *)comm->mem[mate].ptr + SHUNT_NET_CTRL_AT);
}

static char *rings_of(const struct shunt_comm *comm, int mate, int sender)
{
	return (char *)comm->mem[mate].ptr + SHUNT_NET_LOCAL_AT +
	    (unsigned)sender * SHUNT_NET_PAIR_BYTES(comm->net.slot_bytes);
}

/* Both on this host, or this rank itself. */
static struct shunt_net_pair local_pair(const struct shunt_comm *comm, int peer)
{
	int own = comm->placement.local_of[comm->rank], other = comm->placement.local_of[peer];

	return (struct shunt_net_pair){ .out = rings_of(comm, other, own),
		.in = rings_of(comm, own, other),
		.out_tail = ctrl_of(comm, other)->tail[own],
		.out_head = ctrl_of(comm, own)->head[other],
		.in_tail = ctrl_of(comm, own)->tail[other],
		.in_head = ctrl_of(comm, other)->head[own],
		.ctrl = ctrl_of(comm, other) };
}

static struct shunt_net_pair remote_pair(const struct shunt_comm *comm, int peer)
{
	const struct shunt_comm_net *net = &comm->net;
	struct shunt_net_words *words = net->device_memory;
	unsigned here = (unsigned)connection_of(comm, comm->rank, peer),
	         there = (unsigned)connection_of(comm, peer, comm->rank);
	uint64_t out = SHUNT_NET_OUT_AT(here, net->slot_bytes);

	return (struct shunt_net_pair){ .out = (char *)net->device_memory + out,
		.in = net->landing ? (char *)net->landing + here * SHUNT_NET_REMOTE_BYTES(net->slot_bytes) :
		                     (char *)net->device_memory + SHUNT_NET_IN_AT(here, net->slot_bytes),
		.in_tail = words->raised[here],
		.out_head = words->raised[here] + SHUNT_NET_CREDIT_CHANNEL,
		.out_at = out,
		.to_at = net->lands >> here & 1 ? there * SHUNT_NET_REMOTE_BYTES(net->slot_bytes) :
		                                  SHUNT_NET_IN_AT(there, net->slot_bytes),
		.connection = here,
		.there = there,
		.remote = 1 };
}

static int write_ctrl(struct shunt_comm *comm)
{
	const struct shunt_comm_net *net = &comm->net;
	struct shunt_net_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	int err;

	if (!ctrl)
		return -ENOMEM;
	ctrl->words = net->device_memory;
	ctrl->rank = (uint32_t)comm->rank;
	ctrl->nranks = (uint32_t)comm->nranks;
	ctrl->channels = net->channels;
	ctrl->slot_bytes = net->slot_bytes;
	for (int r = 0; r < comm->nranks; r++)
		if (comm->placement.host_of[r] == comm->placement.host_of[comm->rank])
			ctrl->pair[r] = local_pair(comm, r);
		else if (connects(comm, comm->rank, r))
			ctrl->pair[r] = remote_pair(comm, r);
	/* Not the counters: a peer that is ready may write its own. */
	err = comm->gpu->copy(comm->device, ctrl_of(comm, comm->placement.local_of[comm->rank]), ctrl,
	    offsetof(struct shunt_net_ctrl, sent));
	free(ctrl);
	return err;
}

/* ---- communicators that have ended */

static void release(struct lingering *l)
{
	shunt_proxy_destroy(l->proxy);
	shunt_comm_net_regions_free(l->regions);
	if (l->memory)
		l->gpu->host_free(l->memory);
	if (l->landing)
		l->gpu->mem_free(l->landing);
	free(l);
}

void shunt_comm_net_reap(void)
{
	struct lingering *ended = NULL, **at;

	shunt_lock_acquire(SHUNT_LOCK_LINGERING);
	for (at = &lingering; *at;) {
		struct lingering *l = *at;

		if (!shunt_proxy_ended(l->proxy) && shunt_now_ms() < l->until) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		l->next = ended;
		ended = l;
	}
	shunt_lock_release(SHUNT_LOCK_LINGERING);
	while (ended) {
		struct lingering *l = ended;

		ended = l->next;
		release(l);
	}
}

/* ---- set-up */

/* On the proxy thread: kernels give up by a word in host memory, and the next call reports the error. */
static void connection_failed(void *ctx, int connection, int err, const char *text)
{
	struct shunt_comm *comm = ctx;

	(void)connection;
	if (atomic_exchange(&comm->net.lost, err))
		return;
	if (!shunt_comm_life_aborted(&comm->life))
		shunt_error("rank %d: %s (communicator %s): the communicator is broken; abort it and make a new one",
		    comm->rank, text, shunt_id_text(comm->id.b).s);
	__atomic_store_n(&comm->words->limit_ns, SHUNT_LIMIT_ABORT, __ATOMIC_RELEASE);
}

/* A rank that gives up closes its connections of the set-up; by the network it may never have been reached. */
static bool peers_lost(void *ctx)
{
	return shunt_rendezvous_lost(shunt_comm_ranks(ctx, 0).rendezvous);
}

/* The key that both ends of a connection have. */
static void pair_key(const struct shunt_comm *comm, int peer, uint8_t key[SHUNT_NET_KEY_BYTES])
{
	int low = comm->rank < peer ? comm->rank : peer, high = comm->rank < peer ? peer : comm->rank;

	for (unsigned i = 0; i < SHUNT_NET_KEY_BYTES / sizeof(struct shunt_id); i++) {
		struct shunt_id half = shunt_id_derive(&comm->id, sizeof(comm->id),
		    i ? "connection, second half" : "connection", (uint64_t)low, (uint64_t)high);

		memcpy(key + i * sizeof(half), &half, sizeof(half));
	}
}

struct wires {
	struct shunt_vote vote, votes[SHUNT_NET_MAX_RANKS];
	struct shunt_net_peer peers[SHUNT_NET_MAX_RANKS];
	char names[SHUNT_NET_MAX_RANKS][CONNECT_NAME];
	struct shunt_proxy_offer mine[SHUNT_NET_MAX_RANKS], theirs[SHUNT_NET_MAX_RANKS]; /* by connection */
};

_Static_assert(offsetof(struct shunt_proxy_offer, blob) == 0, "the blob is first");

/* What a rank says in the first round: its vote, and behind it by rank its offers, whose blobs are cut. */
struct offers {
	struct shunt_vote vote;
	uint8_t to[];
};

static size_t offer_bytes(const struct shunt_net_ops *net)
{
	return sizeof(struct shunt_proxy_offer) - sizeof(struct shunt_net_blob) + net->blob_bytes;
}

static void write_offer(const struct shunt_net_ops *net, struct offers *to, int rank, const struct shunt_proxy_offer *o)
{
	uint8_t *at = to->to + (size_t)rank * offer_bytes(net);

	memcpy(at, o->blob.bytes, net->blob_bytes);
	memcpy(at + net->blob_bytes, (const char *)o + sizeof(o->blob), sizeof(*o) - sizeof(o->blob));
}

static void read_offer(const struct shunt_net_ops *net, const struct offers *of, int rank, struct shunt_proxy_offer *o)
{
	const uint8_t *at = of->to + (size_t)rank * offer_bytes(net);

	*o = (struct shunt_proxy_offer){ 0 };
	memcpy(o->blob.bytes, at, net->blob_bytes);
	memcpy((char *)o + sizeof(o->blob), at + net->blob_bytes, sizeof(*o) - sizeof(o->blob));
}

static void name_peers(struct shunt_comm *comm, struct wires *w)
{
	const struct shunt_hosts *hosts = shunt_comm_hosts(comm);
	char host[80];

	for (int i = 0; i < comm->net.nconnections; i++) {
		int r = comm->net.rank_of[i];

		shunt_hosts_show(hosts, comm->placement.host_of[r], host, sizeof(host));
		snprintf(w->names[i], sizeof(w->names[i]), "rank %d on %s", r, host);
		/* Plans may have larger puts than rings have slots. All ranks have the same plans. */
		w->peers[i] = (struct shunt_net_peer){ .name = w->names[i],
			.connect_ms = shunt_config()->setup_timeout,
			.largest =
			    comm->plans.set && shunt_plan_set_count(comm->plans.set) ? 0 : comm->net.slot_bytes };
		pair_key(comm, r, w->peers[i].key);
	}
}

/*
 * Memory of the GPU for what comes from peers, where SHUNT_NET_GPU_MEMORY asks for it and the NIC may have it; else
 * none. *fd_p: its dma-buf, or -1.
 */
static void make_landing(struct shunt_comm *comm, int provider, size_t bytes, int *fd_p)
{
	const struct shunt_net_ops *net = shunt_net_providers()[provider];
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	int n, device = comm->net.rails[provider].index[0], err;

	*fd_p = -1;
	comm->net.landing = NULL;
	/* What SHUNT_CHECK announces is put beside the signals, in page-locked memory. */
	if (!shunt_config()->net_gpu_memory || comm->checks)
		return;
	n = net->devices(info, SHUNT_NET_MAX_DEVICES);
	if (device >= n || !info[device].gpu_memory)
		return;
	err = comm->gpu->mem_alloc_shared(comm->device, bytes, &comm->net.landing);
	if (err) {
		comm->net.landing = NULL;
		shunt_warn("rank %d: %zu bytes of the GPU's memory cannot be allocated for the network: %s; data goes "
		           "through the host's",
		    comm->rank, bytes, strerror(-err));
		return;
	}
	if (comm->gpu->mem_dmabuf(comm->device, comm->net.landing, bytes, fd_p))
		*fd_p = -1; /* a driver such as nvidia_peermem may take the address */
}

static void free_landing(struct shunt_comm *comm)
{
	if (comm->net.landing)
		comm->gpu->mem_free(comm->net.landing);
	comm->net.landing = NULL;
}

/* What fails becomes this rank's vote. */
static void open_proxy(struct shunt_comm *comm, int provider, struct wires *w)
{
	struct shunt_comm_net *net = &comm->net;
	size_t bytes = SHUNT_NET_MEMORY_BYTES((unsigned)net->nconnections, net->slot_bytes),
	       landing = (unsigned)net->nconnections * SHUNT_NET_REMOTE_BYTES(net->slot_bytes);
	int err, fd;

	shunt_comm_net_reap();
	err = comm->gpu->host_alloc(bytes, &net->memory, &net->device_memory);
	if (err) {
		net->memory = NULL;
		shunt_vote_refuse(
		    &w->vote, "%zu bytes of page-locked memory cannot be allocated: %s", bytes, strerror(-err));
		return;
	}
	name_peers(comm, w);
	make_landing(comm, provider, landing, &fd);
	err = shunt_proxy_create(&(struct shunt_proxy_config){ .net = shunt_net_providers()[provider],
	                             .rails = net->rails[provider],
	                             .gpu = comm->device,
	                             .adds = net->adds,
	                             .memory = net->memory,
	                             .bytes = bytes,
	                             .landing = net->landing,
	                             .landing_bytes = landing,
	                             .landing_fd = fd,
	                             .npeers = net->nconnections,
	                             .peers = w->peers,
	                             .failed = connection_failed,
	                             .lost = peers_lost,
	                             .ctx = comm },
	    w->mine, &net->proxy);
	if (fd >= 0)
		close(fd);
	if (err)
		shunt_vote_refuse(&w->vote, "the network cannot be used: %s", strerror(-err));
	if (err || !w->mine[0].lands)
		free_landing(comm);
	net->landing_bytes = net->landing ? landing : 0;
}

static int refused_by(const struct shunt_vote *votes, int nranks, char *reason)
{
	int who = shunt_vote_find_refusal(votes, nranks);

	if (who < 0)
		return 0;
	snprintf(reason, 160, "rank %d: %.*s", who, (int)sizeof(votes[who].reason) - 1, votes[who].reason);
	return -EOPNOTSUPP;
}

static int exchange_offers(struct shunt_comm *comm, const struct shunt_net_ops *net, struct wires *w, char *reason)
{
	const struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	/* Rounded up, since those of all ranks lie behind each other. */
	size_t bytes = (sizeof(struct offers) + (size_t)comm->nranks * offer_bytes(net) + 7) & ~(size_t)7;
	struct offers *mine = calloc(1, bytes);
	char *all = calloc((size_t)comm->nranks, bytes);
	int err;

	if (!mine || !all) {
		err = shunt_rendezvous_lacks_memory(&ranks);
		goto out;
	}
	mine->vote = w->vote;
	for (int i = 0; i < comm->net.nconnections; i++)
		write_offer(net, mine, comm->net.rank_of[i], &w->mine[i]);
	err = shunt_rendezvous_allgather(&ranks, mine, bytes, all, -1, NULL);
	for (int r = 0; r < comm->nranks && !err; r++)
		w->votes[r] = ((const struct offers *)(all + (size_t)r * bytes))->vote;
	for (int i = 0; i < comm->net.nconnections && !err; i++)
		read_offer(net, (const struct offers *)(all + comm->net.rank_of[i] * bytes), comm->rank, &w->theirs[i]);
	comm->net.lands = 0;
	for (int i = 0; i < comm->net.nconnections && !err; i++)
		comm->net.lands |= (w->theirs[i].lands & 1) << i;
	if (!err)
		err = refused_by(w->votes, comm->nranks, reason);
out:
	free(mine);
	free(all);
	return err;
}

static int connect_by(struct shunt_comm *comm, int provider, struct wires *w, char *reason)
{
	const struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	char text[256];
	int err;

	w->vote = (struct shunt_vote){ .ok = 1 };
	open_proxy(comm, provider, w);
	err = exchange_offers(comm, shunt_net_providers()[provider], w, reason);
	if (err)
		return err;
	err = shunt_proxy_connect(comm->net.proxy, w->theirs, shunt_config()->setup_timeout, &comm->life.cancel, text);
	/* Also who gives up goes into the round: its end tells the others. */
	if (err)
		shunt_vote_refuse(&w->vote, "%.90s", text);
	else if ((err = write_ctrl(comm)))
		shunt_vote_refuse(&w->vote, "its scratch cannot be written: %s", strerror(-err));
	err = shunt_rendezvous_allgather(&ranks, &w->vote, sizeof(w->vote), w->votes, -1, NULL);
	if (!err)
		err = refused_by(w->votes, comm->nranks, reason);
	if (!err)
		shunt_proxy_start(comm->net.proxy);
	return err;
}

static void close_proxy(struct shunt_comm *comm)
{
	shunt_proxy_destroy(comm->net.proxy);
	if (comm->net.memory)
		comm->gpu->host_free(comm->net.memory);
	free_landing(comm);
	comm->net.proxy = NULL;
	comm->net.memory = comm->net.device_memory = NULL;
}

/* With signals that are additions; where these fail, the same NICs may do without. */
static int connect_adding(struct shunt_comm *comm, int provider, struct wires *w, char *reason)
{
	int err = connect_by(comm, provider, w, reason);

	if (err != -EOPNOTSUPP)
		return err;
	if (comm->rank == 0)
		shunt_warn("communicator of %d ranks on %d hosts cannot use SHUNT_IBV_MODE=host, and tries "
		           "host-no-atomic: %s",
		    comm->nranks, comm->placement.nhosts, reason);
	close_proxy(comm);
	comm->net.adds = false;
	return err;
}

int shunt_comm_net_connect(struct shunt_comm *comm, char *reason)
{
	const struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	const struct shunt_net_ops *const *providers = shunt_net_providers();
	struct wires *w = calloc(1, sizeof(*w));
	int err = -EOPNOTSUPP;

	if (!w)
		return shunt_rendezvous_lacks_memory(&ranks);
	for (int i = 0; providers[i] && err == -EOPNOTSUPP; i++) {
		if (!(comm->net.usable >> i & 1))
			continue;
		comm->net.provider = providers[i]->name;
		err = -EOPNOTSUPP;
		comm->net.adds = providers[i + 1] && comm->net.usable & SHUNT_NET_USABLE_ADDS; /* tcp has none */
		if (comm->net.adds)
			err = connect_adding(comm, i, w, reason);
		if (err == -EOPNOTSUPP)
			err = connect_by(comm, i, w, reason);
		if (err != -EOPNOTSUPP || !providers[i + 1])
			continue;
		if (comm->rank == 0)
			shunt_warn("communicator of %d ranks on %d hosts cannot use %s, and takes tcp: %s",
			    comm->nranks, comm->placement.nhosts, providers[i]->name, reason);
		close_proxy(comm);
	}
	free(w);
	return err;
}

void shunt_comm_net_describe(const struct shunt_comm *comm, char *text, size_t bytes)
{
	*text = '\0';
	if (shunt_comm_spans_hosts(comm))
		snprintf(text, bytes, ", %d hosts by %s%s", comm->placement.nhosts, comm->net.provider,
		    comm->net.adds        ? ", signals by atomics" :
		        comm->net.landing ? " into GPU memory" :
		                            "");
}

/* ---- calls */

void shunt_comm_net_wake(struct shunt_comm *comm)
{
	if (comm->net.proxy)
		shunt_proxy_wake(comm->net.proxy);
}

void shunt_comm_net_abort(struct shunt_comm *comm)
{
	if (comm->net.proxy)
		shunt_proxy_abort(comm->net.proxy);
}

/* ---- the end */

void shunt_comm_net_finish(struct shunt_comm *comm)
{
	struct shunt_comm_net *net = &comm->net;
	struct lingering *l;
	int64_t end = shunt_deadline_ms(FAREWELL_MS);

	if (!net->memory)
		return;
	l = calloc(1, sizeof(*l));
	if (net->proxy)
		shunt_proxy_finish(net->proxy);
	while (
	    net->proxy && !shunt_proxy_ended(net->proxy) && !shunt_comm_life_error(&comm->life) && shunt_now_ms() < end)
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	if (!l || !net->proxy || shunt_proxy_ended(net->proxy) || shunt_comm_life_error(&comm->life)) {
		shunt_proxy_destroy(net->proxy);
		shunt_comm_net_regions_free(net->regions);
		comm->gpu->host_free(net->memory);
		free_landing(comm);
		free(l);
	} else {
		*l = (struct lingering){ .proxy = net->proxy,
			.gpu = comm->gpu,
			.memory = net->memory,
			.landing = net->landing,
			.regions = net->regions,
			.until = shunt_deadline_ms(LINGER_MS) };
		shunt_lock_acquire(SHUNT_LOCK_LINGERING);
		l->next = lingering;
		lingering = l;
		shunt_lock_release(SHUNT_LOCK_LINGERING);
	}
	net->proxy = NULL;
	net->regions = NULL;
	net->landing = NULL;
	net->memory = net->device_memory = NULL;
}

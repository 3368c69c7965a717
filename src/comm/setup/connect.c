/* SPDX-License-Identifier: MIT */
/* All ranks connect with their peers on other hosts, by the first provider that works for all; then the proxy runs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/network.h"
#include "transport/net/providers.h"
#include "transport/net/proxy/proxy.h"
#include "transport/rendezvous/host_table.h"
#include "transport/symm/vote.h"

#define CONNECT_NAME 128 /* bytes of a peer's name */

/* On the proxy thread: kernels wait for the rank no more, and the others go on. */
static void connection_lost(void *ctx, int connection, const char *text)
{
	struct shunt_comm *comm = ctx;
	int ordinal = shunt_comm_local_ranks(comm) + connection;

	if (text && !shunt_comm_life_aborted(&comm->life))
		shunt_comm_miss(comm, comm->net.rank_of[connection], "%s", text);
	__atomic_fetch_or(&comm->words->gone, UINT64_C(1) << ordinal, __ATOMIC_RELEASE);
}

/* On the proxy thread: kernels give up by a word in host memory, and the next call reports the error. */
static void connection_failed(void *ctx, int connection, int err, const char *text)
{
	struct shunt_comm *comm = ctx;

	const char *noun = shunt_comm_noun(comm);
	char line[512];

	(void)connection;
	/* The text first: a call may return the error as soon as it is stored, and the program may ask for its text. */
	snprintf(line, sizeof(line), "rank %d: %s (%s %s): the %s is broken; abort it and make a new one", comm->rank,
	    text, noun, shunt_id_text(comm->id.b).s, noun);
	shunt_comm_keep_text(comm, line);
	if (!shunt_comm_life_aborted(&comm->life))
		shunt_error("%s", line);
	atomic_store(&comm->net.lost, err);
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

/* A rank's message in the first round: its vote, then its offers by rank, with blobs of the provider's size. */
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

		shunt_hosts_show(hosts, comm->topology.island_of[r], host, sizeof(host));
		snprintf(w->names[i], sizeof(w->names[i]), "rank %d on %s", r, host);
		/* Plans and own memory may have larger puts than rings have slots. All ranks have the same plans. */
		w->peers[i] = (struct shunt_net_peer){ .name = w->names[i],
			.connect_ms = shunt_config()->setup_timeout,
			.largest = comm->own.bytes || (comm->plans.set && shunt_plan_set_count(comm->plans.set)) ?
			    0 :
			    comm->net.slot_bytes };
		pair_key(comm, r, w->peers[i].key);
	}
}

static void free_landing(struct shunt_comm *comm)
{
	if (comm->net.landing)
		comm->gpu->mem_free(comm->net.landing);
	comm->net.landing = NULL;
}

/* Flags of packets begin at 1, as in page-locked memory. */
static int clear_packets(struct shunt_comm *comm)
{
	uint64_t bytes = SHUNT_NET_REMOTE_BYTES(comm->net.slot_bytes), at = SHUNT_NET_PACKETS_AT(comm->net.slot_bytes);
	void *zeros = calloc(1, bytes - at);
	int err = zeros ? 0 : -ENOMEM;

	for (int i = 0; i < comm->net.nconnections && !err; i++)
		err = comm->gpu->copy(
		    comm->device, (char *)comm->net.landing + (unsigned)i * bytes + at, zeros, bytes - at);
	free(zeros);
	return err;
}

/*
 * Memory of the GPU for data from peers, if SHUNT_NET_GPU_MEMORY asks for it and the NIC can use it; else none. *fd_p:
 * its dma-buf, or -1.
 */
static void make_landing(struct shunt_comm *comm, int provider, size_t bytes, int *fd_p)
{
	const struct shunt_net_ops *net = shunt_net_providers()[provider];
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	int n, device = comm->net.rails[provider].index[0], err;

	*fd_p = -1;
	comm->net.landing = NULL;
	/* Announcements of SHUNT_CHECK are put beside the signals, in page-locked memory; so is all of own memory. */
	if (!shunt_config()->net_gpu_memory || comm->checks || comm->own.bytes)
		return;
	n = net->devices(info, SHUNT_NET_MAX_DEVICES);
	if (device >= n || !info[device].gpu_memory)
		return;
	err = comm->gpu->mem_alloc_shared(comm->device, bytes, &comm->net.landing);
	if (err)
		comm->net.landing = NULL;
	else if ((err = clear_packets(comm)))
		free_landing(comm);
	if (err) {
		shunt_warn("rank %d: %zu bytes of the GPU's memory cannot be allocated for the network: %s; data goes "
		           "through the host's",
		    comm->rank, bytes, shunt_error_text(err).s);
		return;
	}
	if (comm->gpu->mem_dmabuf(comm->device, comm->net.landing, bytes, fd_p))
		*fd_p = -1; /* a driver such as nvidia_peermem may take the address */
}

/* A failure becomes this rank's vote. */
static void open_proxy(struct shunt_comm *comm, int provider, struct wires *w)
{
	struct shunt_comm_net *net = &comm->net;
	size_t bytes = comm->own.bytes ? SHUNT_NET_REMOTE_AT + comm->own.net_bytes :
	                                 SHUNT_NET_MEMORY_BYTES((unsigned)net->nconnections, net->slot_bytes),
	       landing = (unsigned)net->nconnections * SHUNT_NET_REMOTE_BYTES(net->slot_bytes);
	int err, fd;

	shunt_comm_net_reap();
	err = comm->gpu->host_alloc(bytes, &net->memory, &net->device_memory);
	if (err) {
		net->memory = NULL;
		shunt_vote_refuse(&w->vote, "%zu bytes of page-locked memory cannot be allocated: %s", bytes,
		    shunt_error_text(err).s);
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
	                             .ranks = net->rank_of,
	                             .failed = connection_failed,
	                             .gone = comm->own.tolerates ? connection_lost : NULL,
	                             .patience_ms = (int64_t)(comm->own.limit_ns / 2000000),
	                             .lost = peers_lost,
	                             .ctx = comm },
	    w->mine, &net->proxy);
	shunt_close_fd(&fd);
	if (err)
		shunt_vote_refuse(&w->vote, "the network cannot be used: %s", shunt_error_text(err).s);
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
	/* A rank that gives up still takes part in the round: its vote tells the others. */
	if (err)
		shunt_vote_refuse(&w->vote, "%.90s", text);
	else if ((err = shunt_comm_net_write_ctrl(comm)))
		shunt_vote_refuse(&w->vote, "its scratch cannot be written: %s", shunt_error_text(err).s);
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
		    comm->nranks, comm->topology.nislands, reason);
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
		/* The provider tcp has no additions. */
		comm->net.adds = providers[i + 1] && comm->net.usable & SHUNT_NET_USABLE_ADDS;
		if (comm->net.adds)
			err = connect_adding(comm, i, w, reason);
		if (err == -EOPNOTSUPP)
			err = connect_by(comm, i, w, reason);
		if (err != -EOPNOTSUPP || !providers[i + 1])
			continue;
		if (comm->rank == 0)
			shunt_warn("communicator of %d ranks on %d hosts cannot use %s, and takes tcp: %s",
			    comm->nranks, comm->topology.nislands, providers[i]->name, reason);
		close_proxy(comm);
	}
	free(w);
	return err;
}

/* SPDX-License-Identifier: MIT */
/* Which ranks connect by which providers, the sizes of their rings, and what kernels read of them. */
#include "comm/setup/network.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "base/config.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"
#include "transport/net/nic.h"
#include "transport/net/providers.h"
#include "transport/rendezvous/host_table.h"

/* Device memory for the rings on a rank's host, at most. */
#define LOCAL_BYTES (24u << 20)
#define SLOT_MOST (512u << 10) /* with 4 slots and 4 channels 8 MB are under way: with 4 MB the network waited */
#define SLOT_LEAST SHUNT_NET_MIN_CHUNK
/* A page of memory is written where a slot is used; the sim's machine has as many ranks as hosts. */
#define SIM_SLOT_MOST (32u << 10)
#define SIM_FEW_RANKS 16

void shunt_comm_net_place(struct shunt_comm *comm, const struct shunt_hosts *hosts)
{
	shunt_topology_place(&comm->topology, hosts->nranks, hosts->nhosts, comm->rank, hosts->host_of);
	if (!shunt_topology_is_split(&comm->early_topology)) /* threads may read it, so it changes once */
		shunt_topology_place(&comm->early_topology, hosts->nranks, hosts->nhosts, comm->rank, hosts->host_of);
}

/* ---- connections */

static bool connects(const struct shunt_comm *comm, int a, int b)
{
	return shunt_topology_connects(&comm->topology, comm->sel_key.pairs, a, b);
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
	int connections = 1, largest = shunt_topology_largest(&comm->topology);

	for (int r = 0; r < comm->nranks; r++) {
		int n = connection_of(comm, r, comm->nranks);

		connections = n > connections ? n : connections;
	}
	fits = SHUNT_NET_SLOTS_MOST / ((uint64_t)connections * 2 * SHUNT_NET_REMOTE_RINGS * SHUNT_NET_SLOTS);
	slot = fits < slot ? fits : slot;
	fits = LOCAL_BYTES / ((uint64_t)largest * SHUNT_NET_RINGS * SHUNT_NET_SLOTS);
	slot = fits < slot ? fits : slot;
	net->slot_bytes = floor_power(slot, SLOT_LEAST, key->sim ? SIM_SLOT_MOST : SLOT_MOST);
	net->channels = key->sim ? (comm->nranks <= SIM_FEW_RANKS ? 2 : 1) : SHUNT_NET_CHANNELS;
	net->channels = shunt_grid_halve(key->few_ctas, net->channels);
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
    const struct shunt_net_ops *net, const char (*gpus)[16], int ngpus, int local)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_pci_place devices[SHUNT_NET_MAX_DEVICES] = { 0 }, places[SHUNT_KARGS_MAX_RANKS];
	int n = net->devices(info, SHUNT_NET_MAX_DEVICES), most = net->add_rail ? (int)shunt_config()->ib_rails : 1;
	struct shunt_net_rails rails = { .n = 1 };

	if (n <= 1)
		return rails;
	for (int i = 0; i < n; i++) {
		snprintf(devices[i].pci, sizeof(devices[i].pci), "%s", info[i].pci);
		devices[i].numa = info[i].numa;
	}
	for (int i = 0; i < ngpus; i++)
		shunt_pci_place(gpus[i], &places[i]);
	rails.n = shunt_nic_rails(places, ngpus, local, devices, n, most, rails.index);
	return rails;
}

static void choose_devices(struct shunt_comm *comm, unsigned usable, const char (*gpus)[16], int ngpus)
{
	const struct shunt_net_ops *const *providers = shunt_net_providers();

	comm->net.usable = usable;
	for (int i = 0; providers[i]; i++)
		if (usable >> i & 1)
			/* Interfaces of tcp need not reach each other, so the first is used, as NCCL would. */
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
		if (shunt_topology_is_joint(&comm->topology, r, comm->rank))
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

static struct shunt_net_ctrl *ctrl_of(const struct shunt_comm *comm, int local)
{
	return (struct shunt_net_ctrl *)((char *)comm->mem[local].ptr + SHUNT_NET_CTRL_AT);
}

static char *rings_of(const struct shunt_comm *comm, int local, int sender)
{
	return (char *)comm->mem[local].ptr + SHUNT_NET_LOCAL_AT +
	    (unsigned)sender * SHUNT_NET_PAIR_BYTES(comm->net.slot_bytes);
}

/* Both on this host, or this rank itself. */
static struct shunt_net_pair local_pair(const struct shunt_comm *comm, int peer)
{
	int mine = shunt_comm_local_rank(comm), theirs = comm->topology.local_of[peer];

	return (struct shunt_net_pair){ .out = rings_of(comm, theirs, mine),
		.in = rings_of(comm, mine, theirs),
		.out_tail = ctrl_of(comm, theirs)->tail[mine],
		.out_head = ctrl_of(comm, mine)->head[theirs],
		.in_tail = ctrl_of(comm, mine)->tail[theirs],
		.in_head = ctrl_of(comm, theirs)->head[mine],
		.ctrl = ctrl_of(comm, theirs) };
}

static struct shunt_net_pair remote_pair(const struct shunt_comm *comm, int peer)
{
	const struct shunt_comm_net *net = &comm->net;
	struct shunt_net_words *words = net->device_memory;
	unsigned mine = (unsigned)connection_of(comm, comm->rank, peer),
	         theirs = (unsigned)connection_of(comm, peer, comm->rank);
	uint64_t out = SHUNT_NET_OUT_AT(mine, net->slot_bytes);

	return (struct shunt_net_pair){ .out = (char *)net->device_memory + out,
		.in = net->landing ? (char *)net->landing + mine * SHUNT_NET_REMOTE_BYTES(net->slot_bytes) :
		                     (char *)net->device_memory + SHUNT_NET_IN_AT(mine, net->slot_bytes),
		.in_tail = words->raised[mine],
		.out_head = words->raised[mine] + SHUNT_NET_CREDIT_CHANNEL,
		.out_at = out,
		.to_at = net->lands >> mine & 1 ? theirs * SHUNT_NET_REMOTE_BYTES(net->slot_bytes) :
		                                  SHUNT_NET_IN_AT(theirs, net->slot_bytes),
		.connection = mine,
		.there = theirs,
		.remote = 1 };
}

int shunt_comm_net_write_ctrl(struct shunt_comm *comm)
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
		if (shunt_topology_is_joint(&comm->topology, r, comm->rank))
			ctrl->pair[r] = local_pair(comm, r);
		else if (connects(comm, comm->rank, r))
			ctrl->pair[r] = remote_pair(comm, r);
	/* Not the counters: a peer that is ready may write its own. */
	err = comm->gpu->copy(
	    comm->device, ctrl_of(comm, shunt_comm_local_rank(comm)), ctrl, offsetof(struct shunt_net_ctrl, sent));
	free(ctrl);
	return err;
}

void shunt_comm_net_describe(const struct shunt_comm *comm, char *text, size_t bytes)
{
	*text = '\0';
	if (shunt_comm_spans_hosts(comm))
		snprintf(text, bytes, ", %d hosts by %s%s", comm->topology.nislands, comm->net.provider,
		    comm->net.adds        ? ", signals by atomics" :
		        comm->net.landing ? " into GPU memory" :
		                            "");
}

/* SPDX-License-Identifier: MIT */
/*
 * Regions of plans over hosts: page-locked memory that a rank's proxy thread sends from and receives into, and that the
 * ranks of its host map, since their kernels write there, too.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/rlimits.h"
#include "base/config.h"
#include "base/fd.h"
#include "base/io.h"
#include "comm/core/communicator.h"
#include "transport/net/proxy/proxy.h"
#include "transport/symm/host_memory.h"
#include "transport/symm/vote.h"

struct shunt_comm_region {
	struct shunt_comm_region *next;
	const struct shunt_gpu_ops *gpu;
	size_t bytes;
	struct shunt_gpu_mem local[SHUNT_KARGS_MAX_RANKS];
};

/* A rank's offer in the round. */
struct region_offer {
	struct shunt_vote vote;
	uint64_t bytes;
	struct shunt_net_remote memory;
};

void shunt_comm_net_regions_free(struct shunt_comm_region *regions)
{
	while (regions) {
		struct shunt_comm_region *next = regions->next;

		for (int i = 0; i < SHUNT_KARGS_MAX_RANKS; i++)
			shunt_host_memory_free(regions->gpu, &regions->local[i]);
		free(regions);
		regions = next;
	}
}

/* This rank's memory, with a descriptor for the ranks of its host. A failure becomes its vote. */
static void make_mine(struct shunt_comm *comm, struct shunt_comm_region *region, uint32_t nchannels,
    struct region_offer *mine, struct shunt_vote *vote)
{
	struct shunt_comm_net *net = &comm->net;
	struct shunt_gpu_mem *m = &region->local[shunt_comm_local_rank(comm)];
	struct shunt_proxy_region proxy = { .number = net->nregions,
		.bytes = region->bytes,
		.first_channel = SHUNT_NET_SIGNAL_CHANNELS + net->nchannels,
		.nchannels = nchannels };
	int err;

	if (!vote->ok)
		return;
	if (net->nregions >= SHUNT_NET_MAX_REGIONS ||
	    proxy.first_channel + (uint64_t)nchannels > SHUNT_PROXY_FIRST_CHANNEL) {
		shunt_vote_refuse(vote, "the communicator's plans have used all numbers of regions or channels");
		return;
	}
	err = shunt_host_memory_create(region->gpu, -1, region->bytes, m);
	proxy.start = m->host;
	proxy.counters = m->host;
	if (!err)
		err = shunt_proxy_region_create(net->proxy, &proxy, &mine->memory);
	if (err)
		shunt_vote_refuse(
		    vote, "%zu bytes of page-locked memory cannot be had: %s", region->bytes, shunt_error_text(err).s);
}

/* The memory of all ranks is there: maps the memory of the ranks on this host. A failure becomes this rank's vote. */
static void join_region(struct shunt_comm *comm, struct shunt_comm_region *region, const struct region_offer *all,
    const int *fds, struct shunt_vote *vote)
{
	struct shunt_comm_net *net = &comm->net;
	const uint8_t *rank_of = shunt_topology_locals(&comm->topology);
	struct shunt_net_remote theirs[SHUNT_NET_MAX_RANKS];
	int err = 0;

	for (int r = 0; r < comm->nranks; r++)
		if (!all[r].vote.ok)
			return; /* the next round tells everybody */
		else if (all[r].bytes != all[0].bytes)
			shunt_vote_refuse(vote, "rank %d wants another amount of memory than rank 0", r);
	for (int i = 0; i < shunt_comm_local_ranks(comm) && !err; i++)
		if (rank_of[i] != comm->rank)
			err = fds[rank_of[i]] < 0 ?
			    -EBADF :
			    shunt_host_memory_map(comm->gpu, fds[rank_of[i]], region->bytes, &region->local[i]);
	if (err)
		shunt_vote_refuse(
		    vote, "the memory of a rank of its host cannot be mapped: %s", shunt_error_text(err).s);
	for (int i = 0; i < net->nconnections; i++)
		theirs[i] = all[net->rank_of[i]].memory;
	if (!err && shunt_proxy_region_connect(net->proxy, net->nregions, theirs))
		shunt_vote_refuse(vote, "no memory");
}

int shunt_comm_net_region(struct shunt_comm *comm, uint64_t bytes, uint32_t nchannels, struct shunt_vote *vote,
    struct shunt_plan_region *region_p)
{
	const struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->timeout);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct shunt_comm_region *region = calloc(1, sizeof(*region));
	struct region_offer mine, *all = calloc((unsigned)comm->nranks, sizeof(*all));
	int fds[SHUNT_NET_MAX_RANKS], err;
	struct shunt_gpu_mem *own;

	if (!region || !all) {
		free(region);
		free(all);
		return shunt_rendezvous_lacks_memory(&ranks);
	}
	memset(&mine, 0, sizeof(mine)); /* padding is sent, too */
	region->gpu = comm->gpu;
	region->bytes = (bytes + page - 1) / page * page;
	region->next = comm->net.regions;
	comm->net.regions = region;
	for (int i = 0; i < SHUNT_KARGS_MAX_RANKS; i++)
		region->local[i].fd = -1;
	own = &region->local[shunt_comm_local_rank(comm)];
	make_mine(comm, region, nchannels, &mine, vote);
	mine.vote = *vote;
	mine.bytes = region->bytes;
	err = shunt_rendezvous_allgather(&ranks, &mine, sizeof(mine), all, vote->ok ? own->fd : -1, fds);
	shunt_close_fd(&own->fd);
	if (!err) {
		join_region(comm, region, all, fds, vote);
		shunt_io_close_all(fds, comm->nranks);
		region_p->number = comm->net.nregions++;
		region_p->first_channel = SHUNT_NET_SIGNAL_CHANNELS + comm->net.nchannels;
		comm->net.nchannels += nchannels;
		for (int i = 0; i < shunt_comm_local_ranks(comm); i++)
			region_p->at[i] = region->local[i].ptr;
	}
	free(all);
	return err;
}

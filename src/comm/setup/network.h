/* SPDX-License-Identifier: MIT */
#pragma once
/* A communicator's part over several hosts: the rings' memory, and the proxy's connections. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "kernels/net_rings.h"
#include "transport/net/net.h"

struct shunt_comm;
struct shunt_comm_region;
struct shunt_hello;       /* setup/hello.h */
struct shunt_plan_region; /* plan/exec/exec.h */
struct shunt_vote;
struct shunt_hosts; /* transport/rendezvous/host_table.h */
struct shunt_proxy; /* transport/net/proxy/proxy.h */

struct shunt_comm_net {
	/* From the set-up on. */
	struct shunt_proxy *proxy;
	void *memory, *device_memory; /* page-locked, as the host and as kernels address it */
	size_t landing_bytes;         /* asked of the NIC */
	void *landing;                /* the GPU's, where peers' chunks land; NULL: in the memory above */
	uint64_t lands;               /* by connection, a bit: this rank's chunks land in the peer's GPU */
	uint32_t channels, slot_bytes;
	unsigned usable; /* providers, as bits, alike on all ranks; and SHUNT_NET_USABLE_ADDS */
	struct shunt_net_rails rails[sizeof(unsigned) * 8]; /* devices of each of them, for this rank */
	const char *provider;                               /* the name of the provider that carries the data */
	bool adds; /* signals are additions of the NICs to words; alike on all ranks */
	/* By provider: the tuning file's table that all ranks have for it; NULL: none. */
	const struct shunt_tuning *tuning[sizeof(unsigned) * 8];
	int nconnections;
	uint8_t rank_of[SHUNT_NET_MAX_RANKS]; /* by connection */
	struct shunt_comm_region *regions;    /* of plans */
	unsigned nregions;                    /* that were tried; the same on all ranks */
	uint32_t nchannels;                   /* of signals, that they have; the same on all ranks */
	atomic_int lost; /* a negative errno: a connection has failed, which was logged; kernels give up */
};

/* 0, or why a connection has failed. Any thread. */
static inline int shunt_comm_net_error(const struct shunt_comm_net *net)
{
	return atomic_load_explicit(&net->lost, memory_order_acquire);
}

#define SHUNT_COMM_TOO_LARGE "more than 64 ranks, or more than 8 on a host"

/* The ranks are on these hosts. */
void shunt_comm_net_place(struct shunt_comm *comm, const struct shunt_hosts *hosts);
/* A rank's word about its network in the set-up's first round: the providers that it may use, as bits. */
unsigned shunt_comm_net_usable(const struct shunt_comm *comm);
/*
 * After that round, before the scratch is allocated: the providers that all ranks may use, this rank's network devices
 * by the places of its host's GPUs, and the sizes of rings. Rank 0 warns of a rank that keeps others from a provider.
 */
void shunt_comm_net_agree(struct shunt_comm *comm, const struct shunt_hello *hellos);
/* Writes the description of the rings into this rank's scratch, for its kernels. 0 or -errno. */
int shunt_comm_net_write_ctrl(struct shunt_comm *comm);
/*
 * After scratch is shared: two rounds, in which all ranks connect. 0: all are connected. -EOPNOTSUPP: the same on all
 * ranks, reason (160 bytes) says why. Another -errno: a round's error.
 */
int shunt_comm_net_connect(struct shunt_comm *comm, char *reason);
/*
 * Collective, one round: a region for a plan (plan/exec/exec.h), which stays until the communicator ends. With the
 * communicator's lock. 0, or the round's error.
 */
int shunt_comm_net_region(struct shunt_comm *comm, uint64_t bytes, uint32_t nchannels, struct shunt_vote *vote,
    struct shunt_plan_region *region_p);
/* Frees all regions of the list, which no kernel uses and no peer reaches. NULL is allowed. */
void shunt_comm_net_regions_free(struct shunt_comm_region *regions);
/* For the log: ", 2 hosts by verbs"; on one host empty. */
void shunt_comm_net_describe(const struct shunt_comm *comm, char *text, size_t bytes);
/* To be called once no kernel runs: says farewell to the peers, and frees the memory that they can no longer reach. */
void shunt_comm_net_finish(struct shunt_comm *comm);
/*
 * Frees the memory of communicators that have ended, once no peer can reach that memory any more or its time is over.
 */
void shunt_comm_net_reap(void);

/* SPDX-License-Identifier: MIT */
#pragma once
/* shunt doctor --net: what its files share. Functions that return int: 0 or -errno after a message, if not said. */
#include <net/if.h>
#include <sys/socket.h>
#include "base/host.h"
#include "tools/doctor/doctor.h"
#include "transport/net/net.h"

#define NET_TOPIC "network"
#define NET_WAIT_S 3         /* for the other end of a pair */
#define NET_PINGS 200        /* messages of 8 bytes, there and back */
#define NET_TARGET_US 100000 /* of a measurement of the rate */

/* The data about each rank that all ranks have. */
struct net_place {
	uint8_t token[16]; /* of rank 0: a connection that does not send it is a stranger */
	uint8_t host[SHUNT_HOST_BYTES], machine[SHUNT_HOST_BYTES];
	char name[32], address[64], ifname[IF_NAMESIZE];
	struct sockaddr_storage at;
	socklen_t len;
	int err; /* it cannot listen */
};

/* The results of a pair, and its last step before an error. */
enum net_step { NET_CONNECT, NET_PING, NET_LARGE, NET_RATE };
struct net_pair {
	int err, step;
	float latency_us, to_mbs, from_mbs; /* from the rank's view */
	int mss;
	char text[256]; /* by verbs: the error, as the provider tells it */
};

struct net {
	struct ranks *ranks;
	int rank, nranks, listen_fd;
	struct net_place place[RANKS_MAX];
	struct net_pair pair[RANKS_MAX]; /* with each lower rank */
};
bool net_same_host(const struct net *net, int a, int b);
/* rows: pairs of each rank with the lower ones. */
void net_matrix_print(const struct net *net, struct net_pair (*rows)[RANKS_MAX], const char *title, bool latency);

/* ---- net_verbs.c: the same by the provider verbs, where every rank has a NIC for it */

struct net_nic {
	int ndevices;   /* 0: none */
	char why[200];  /* ... and the reason */
	char where[96]; /* "mlx5_0 port 1, RoCE v2, GID 3, 10.0.0.1" */
	int err;        /* it cannot be opened, or registers no memory */
};
struct net_verbs {
	bool tried;
	struct net_nic nic[RANKS_MAX];
	struct net_pair pair[RANKS_MAX];            /* of this rank */
	struct net_pair rows[RANKS_MAX][RANKS_MAX]; /* of all */
};
/* Collective over all ranks. Pairs that fail are no error. -errno: of the ranks' own exchange, no message. */
int net_verbs_try(const struct net *net, struct net_verbs *v);
void net_verbs_print(const struct net *net, struct net_verbs *v);
void net_verbs_find(struct findings *f, const struct net *net, const struct net_verbs *v);

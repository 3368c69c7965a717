/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The proxy thread: carries data between a communicator's rank and the ranks on other hosts. It takes triggers out of
 * the FIFO that the rank's kernels fill (kernels/net_rings.h), posts them to a provider (net.h), and counts the signals
 * that come in page-locked memory, where kernels wait for them. If the network adds to words (SHUNT_NET_ADD), the NIC
 * counts signals there.
 *
 * A process has one such thread for each GPU and network device. It calls no device: a call of the program that waits
 * for kernels may hold the driver, and those kernels may wait for the proxy. All that the provider does runs on it.
 *
 * The FIFO is memory, which no descriptor tells of. So the thread polls. It spins for SHUNT_PROXY_SPIN us after its
 * last work, or the last shunt_proxy_wake(), where the process has CPUs to spare. Then it naps: for a sixteenth of the
 * time since then, two milliseconds at most, or until the network or shunt_proxy_wake() has something for it.
 *
 * A struct shunt_proxy is one communicator's part. Any thread may call wake, ended, abort and died; one thread at a
 * time the rest.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "transport/net/net.h"

struct shunt_proxy;

struct shunt_proxy_config {
	const struct shunt_net_ops *net;
	struct shunt_net_rails rails;
	int gpu;
	bool adds; /* signals are additions to the peers' words; alike on all ranks */
	/* Page-locked; begins with a zeroed struct shunt_net_words. The caller's until destroy has returned. */
	void *memory;
	size_t bytes;
	/* Where puts of peers land: memory of the GPU, also until destroy. NULL: in the memory above. */
	void *landing;
	size_t landing_bytes;
	int landing_fd;                     /* its dma-buf; -1: none. May be closed when create has returned */
	int npeers;                         /* connections are numbered as peers */
	const uint8_t *ranks;               /* of the peers, below SHUNT_NET_MAX_RANKS; copied */
	const struct shunt_net_peer *peers; /* `user` is not used; copied */
	/*
	 * A connection has failed, or its peer has given up: once, on the proxy thread. err: a negative errno. text
	 * names the peer and the reason.
	 */
	void (*failed)(void *ctx, int connection, int err, const char *text);
	/*
	 * Not NULL: the owner goes on without peers. A connection that fails after start, or whose peer gives up or
	 * dies, ends alone: what is to go over it is dropped, and the other peers hear nothing of it. Called instead of
	 * failed, once for a connection; text NULL: the peer has finished. A connection that takes no data for
	 * patience_ms ends, too; 0: no limit.
	 */
	void (*gone)(void *ctx, int connection, const char *text);
	int64_t patience_ms;
	/*
	 * Called from time to time while connections are made, on the thread that waits for them. True: a peer has left
	 * the set-up. NULL: not known.
	 */
	bool (*lost)(void *ctx);
	void *ctx;
};

/* The data that a rank sends each of its peers before they connect. */
struct shunt_proxy_offer {
	struct shunt_net_blob blob;
	struct shunt_net_remote memory; /* where its puts land */
	uint64_t lands;                 /* 1: in the landing, from its start; 0: in the memory */
	struct shunt_net_remote words;  /* of additions: the memory once more */
	uint64_t raised_at;             /* in it: the words of the peer's signals, by channel */
};

/*
 * Registers the memory and makes an endpoint for each peer; offers: npeers of them, which say whether the network
 * accepted the landing. 0 or -errno (logged).
 */
int shunt_proxy_create(
    const struct shunt_proxy_config *config, struct shunt_proxy_offer *offers, struct shunt_proxy **proxy_p);
/*
 * Connects with all peers: theirs[i] is what peer i offered this rank. 0; -ETIMEDOUT, -ECANCELED, -EOWNERDEAD (lost),
 * or a connection's error; text (256 bytes) names the connection and the reason.
 */
int shunt_proxy_connect(struct shunt_proxy *proxy, const struct shunt_proxy_offer *theirs, int64_t timeout_ms,
    const atomic_int *cancel, char *text);
/*
 * All ranks have connected, and will use the connections: from now on triggers are taken, and failures are reported,
 * also those since connect. If one rank could not connect, the others close their connections, which is no failure:
 * then start is not called.
 */
void shunt_proxy_start(struct shunt_proxy *proxy);
/*
 * More memory for puts, which peers have alike and number alike, and the counters of signals that are meant for it.
 * The memory and the counters are the caller's, and must stay until destroy has returned.
 */
struct shunt_proxy_region {
	unsigned number; /* from 0; below SHUNT_NET_MAX_REGIONS */
	void *start;     /* page-locked */
	size_t bytes;
	uint64_t *counters; /* by channel, from first_channel on */
	uint32_t first_channel, nchannels;
};
/* Registers it: *remote_p is for each peer. From then on signals of its channels are counted. 0 or -errno (logged). */
int shunt_proxy_region_create(
    struct shunt_proxy *proxy, const struct shunt_proxy_region *region, struct shunt_net_remote *remote_p);
/* theirs[i]: peer i's region of this number. From then on triggers may name it. 0 or -ENOMEM. */
int shunt_proxy_region_connect(struct shunt_proxy *proxy, unsigned number, const struct shunt_net_remote *theirs);
/* A kernel is about to be launched: the thread shall not sleep long. Cheap where it does not sleep. */
void shunt_proxy_wake(struct shunt_proxy *proxy);
/*
 * Drops the triggers, and tells the peers that this rank has given up, and because of which rank; -1: of none, as the
 * program has aborted.
 */
void shunt_proxy_abort(struct shunt_proxy *proxy, int rank);
/*
 * The process of this rank of our host is dead. Tells those peers whose network does not tell them: for one that has a
 * connection with the rank, and has not got its farewell, that is the connection's failure.
 */
void shunt_proxy_died(struct shunt_proxy *proxy, int rank);
/* Signals of the owner have channels below this one; those above are the proxy's own. */
#define SHUNT_PROXY_FIRST_CHANNEL (SHUNT_NET_MAX_CHANNELS - 1 - 2 * SHUNT_NET_MAX_RANKS)
/*
 * No kernel runs any more: carries what is left, and tells the peers that nothing follows. Does not wait. The memory
 * must stay until destroy.
 */
void shunt_proxy_finish(struct shunt_proxy *proxy);
/* True after finish: all is carried, no peer will send anything, and the connections are closed. */
bool shunt_proxy_ended(const struct shunt_proxy *proxy);
/* Closes the connections. NULL is allowed. */
void shunt_proxy_destroy(struct shunt_proxy *proxy);

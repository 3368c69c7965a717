/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Networks: the contract that lets the proxy carry data between hosts over any provider. tests/transport/test_net.c
 * tests every provider against this contract.
 *
 * A device is a way into the network: an interface, or a NIC. An endpoint is one end of a connection between two
 * processes; a put writes through it into memory that the other process has registered. No function waits: progress
 * reports what has completed.
 *
 * 1. The bytes of a put appear at the target in any order and any pieces, and puts in any order among each other. With
 *    SHUNT_NET_PACKETS each aligned 8 bytes appear at once.
 * 2. A signal is told (SHUNT_NET_SIGNAL) when all puts that were posted before it on its endpoint, and its own, are
 *    visible to the CPUs and GPUs of the target. Other endpoints have no order among each other. A put with
 *    SHUNT_NET_ADD has the same signal in another form: its count is added to a word of the target's memory, where CPUs
 *    and GPUs that read the word with acquire find it. No event tells of it, and nobody is woken. The additions of all
 *    endpoints of a device to one word are atomic among each other, but not with writes of the CPU.
 * 3. SHUNT_NET_PUT_DONE says that the sources of the oldest puts can be used again. It says nothing of the target.
 * 4. Errors come by progress alone, once for an endpoint. The endpoint is dead then: it takes no puts, and has no more
 *    events. Until it is closed, the provider may still read sources and write to registered memory.
 * 5. One thread at a time uses a device, its endpoints and its memory. Devices do not wait for each other.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHUNT_NET_BLOB_BYTES 256
#define SHUNT_NET_KEY_BYTES 32
#define SHUNT_NET_MAX_CHANNELS 65535 /* of an endpoint, from 0 */
#define SHUNT_NET_MAX_COUNT 32767    /* of one signal */
#define SHUNT_NET_MAX_DEVICES 16
#define SHUNT_NET_MAX_RAILS 4             /* devices that are opened as one */
#define SHUNT_NET_SLOTS_MOST (64u << 20)  /* bytes of chunks' slots that a rank has for a communicator, at most */
#define SHUNT_NET_MEMORY_MOST (69u << 20) /* ... with packets' slots: what it registers */

struct shunt_net_device;
struct shunt_net_endpoint;
struct shunt_net_memory;

struct shunt_net_info {
	char name[32];      /* "eth0", "mlx5_0" */
	char where[80];     /* its address, for the log */
	char pci[256];      /* path of its PCI device in sysfs, to compare with a GPU's; "": none */
	int numa;           /* -1: unknown */
	unsigned rate_mbit; /* of the link; 0: unknown */
	bool gpu_memory;    /* it may read and write the memory of a GPU; else all memory is the host's */
	bool adds;          /* it takes SHUNT_NET_ADD */
};

/* Devices that are opened as one, by their indices. n is 0: the one with index 0. */
struct shunt_net_rails {
	int n, index[SHUNT_NET_MAX_RAILS];
};

/* What an endpoint tells its peer before they connect; the set-up's rounds carry it. Opaque. */
struct shunt_net_blob {
	uint8_t bytes[SHUNT_NET_BLOB_BYTES];
};

/* Names registered memory to a peer. Opaque; any endpoint of the device takes puts to it. */
struct shunt_net_remote {
	uint64_t word[3];
};

enum shunt_net_memory_flag {
	/* Signals' words, or packets, lie here: writes must appear in the order in which they were made. */
	SHUNT_NET_MEMORY_ORDERED = 1,
	/* start is an address of a GPU; dmabuf_fd exports it from dmabuf_offset on, or is -1. */
	SHUNT_NET_MEMORY_GPU = 2,
	/*
	 * Peers add to words in it; ordered. It lies beside the target of the puts before such signals: in the memory
	 * of the same GPU, or in the host's.
	 */
	SHUNT_NET_MEMORY_WORDS = 4,
};

struct shunt_net_region {
	void *start;
	size_t bytes;
	int dmabuf_fd; /* -1: none */
	uint64_t dmabuf_offset;
	unsigned flags;
};

struct shunt_net_peer {
	/* Both ends have the same; other processes do not. A connection without it is refused. */
	uint8_t key[SHUNT_NET_KEY_BYTES];
	const char *name; /* for the log: "rank 3 on node2"; copied */
	int64_t connect_ms;
	bool adds;        /* puts may have SHUNT_NET_ADD; alike at both ends, and only where their devices take it */
	uint32_t largest; /* bytes of most puts, at most: larger ones may be slow. 0: not known. Alike at both ends */
	void *user;       /* comes back with events */
};

enum shunt_net_put_flag {
	/* Offset and bytes are multiples of 8, of which each appears at once. */
	SHUNT_NET_PACKETS = 1,
	/* More puts follow at once: the provider may wait for them. */
	SHUNT_NET_MORE = 2,
	/* The signal is an addition of `count`, which is not 0, to the word; the channel is not used. */
	SHUNT_NET_ADD = 4,
	/*
	 * A signal alone, with a count of 1; the endpoint is closed next, perhaps at once. Its end tells the peer of
	 * the signal, even if no room was left and post took none; the signal may come twice. It does not come to a
	 * peer that has not had its SHUNT_NET_READY. Over tcp it may be lost while data is under way, in either
	 * direction.
	 */
	SHUNT_NET_LAST = 8,
};

struct shunt_net_put {
	const void *source; /* in `memory`; not read if bytes is 0 */
	struct shunt_net_memory *memory;
	struct shunt_net_remote remote;
	uint64_t remote_offset;
	uint32_t bytes;   /* 0: a signal alone, which uses neither memory nor remote */
	uint16_t channel; /* of the signal */
	uint16_t count;   /* the count of the signal; 0: no signal */
	unsigned flags;
	/* Of SHUNT_NET_ADD: memory that the peer has registered with SHUNT_NET_MEMORY_WORDS, and where; aligned. */
	struct shunt_net_remote words;
	uint64_t word_offset;
};

/* True if the put is valid; does not look at its memory. adds: the endpoint takes SHUNT_NET_ADD. */
static inline bool shunt_net_put_is_formed(const struct shunt_net_put *put, bool adds)
{
	if (put->flags & ~(unsigned)(SHUNT_NET_PACKETS | SHUNT_NET_MORE | SHUNT_NET_ADD | SHUNT_NET_LAST))
		return false;
	if (put->flags & SHUNT_NET_LAST && (put->flags != SHUNT_NET_LAST || put->bytes || put->count != 1))
		return false;
	if (put->flags & SHUNT_NET_ADD && (!adds || !put->count || put->word_offset & 7))
		return false;
	if (put->count > SHUNT_NET_MAX_COUNT || (put->count && put->channel >= SHUNT_NET_MAX_CHANNELS))
		return false;
	return !put->bytes || !(put->flags & SHUNT_NET_PACKETS) || !((put->remote_offset | put->bytes) & 7);
}

enum shunt_net_event_kind {
	/* The endpoint is connected: puts can be posted. Before anything else. */
	SHUNT_NET_READY,
	/* The sources of the `count` oldest puts can be used again. */
	SHUNT_NET_PUT_DONE,
	/* Signals of one channel, together `count`. */
	SHUNT_NET_SIGNAL,
	/* The peer has called finish: nothing more comes from it. Puts to it are still taken. */
	SHUNT_NET_END,
	/* The endpoint is dead. */
	SHUNT_NET_ERROR,
};

struct shunt_net_event {
	enum shunt_net_event_kind kind;
	struct shunt_net_endpoint *endpoint;
	void *user;
	uint32_t channel, count;
	int err;          /* -errno: -EOWNERDEAD the peer has gone, -ETIMEDOUT no answer, -EPROTO, -EACCES ... */
	const char *text; /* of an error: the peer, the address, the reason; lives as long as the endpoint */
};

struct shunt_net_ops {
	const char *name; /* "tcp" */
	/* The death of a process is an error of its peers' endpoints at once, and not after the time-outs of a NIC. */
	bool tells_deaths;
	size_t blob_bytes; /* of a blob; the others are 0 */
	/*
	 * Lists the devices by preference, in the same order each time. Returns their number, at most max. -errno:
	 * devices should exist, but they cannot be used (logged).
	 */
	int (*devices)(struct shunt_net_info *info, int max);
	/* Opens one of them by its index. 0 or -errno (logged). */
	int (*open)(int index, struct shunt_net_device **device_p);
	/*
	 * Opens one more as a rail of this device: the data of each of its endpoints goes over as many rails as the
	 * peer has, too. Before anything is made on it; alike in order at both ends. 0 or -errno (logged). NULL: there
	 * are none.
	 */
	int (*add_rail)(struct shunt_net_device *device, int index);
	/* All endpoints and memory of the device are closed before. NULL is allowed. */
	void (*close)(struct shunt_net_device *device);
	/*
	 * The process ends, and memory may be unmapped that is still registered: from now on only what is called here
	 * uses it. Data may stand still. NULL: this holds anyway.
	 */
	void (*halt)(struct shunt_net_device *device);

	/* 0; -EOPNOTSUPP: this device cannot use such memory; -ENOMEM and others (logged, with a remedy). */
	int (*mem_register)(
	    struct shunt_net_device *device, const struct shunt_net_region *region, struct shunt_net_memory **memory_p);
	/* No put that uses it is under way. Later puts of peers are errors of their endpoints. NULL is allowed. */
	void (*mem_deregister)(struct shunt_net_memory *memory);
	struct shunt_net_remote (*mem_remote)(const struct shunt_net_memory *memory);

	/* 0 or -errno (logged). peer may go when it has returned. */
	int (*endpoint_create)(struct shunt_net_device *device, const struct shunt_net_peer *peer,
	    struct shunt_net_endpoint **endpoint_p, struct shunt_net_blob *blob_p);
	/* Begins to connect with the endpoint whose blob this is. 0; -EPROTO: another version, or no blob (logged). */
	int (*endpoint_connect)(struct shunt_net_endpoint *endpoint, const struct shunt_net_blob *theirs);
	/*
	 * Takes puts, in order, as many as it has room for: their number; 0: no room until a SHUNT_NET_PUT_DONE.
	 * -ENOTCONN: not ready, finished, or dead, as an event has told or will tell. -EINVAL: a put is out of the
	 * bounds of `memory` or of the flags; no put was taken.
	 */
	int (*post)(struct shunt_net_endpoint *endpoint, const struct shunt_net_put *puts, int n);
	/*
	 * Says that no more puts come. Once all puts are done and the peer's SHUNT_NET_END has come, closing the
	 * endpoint loses nothing. If it is closed sooner, the peer's endpoint may die.
	 */
	void (*finish)(struct shunt_net_endpoint *endpoint);
	/*
	 * True after finish: the peer gets its SHUNT_NET_END even if this process ends now. What is only posted goes
	 * with the process.
	 */
	bool (*end_is_out)(const struct shunt_net_endpoint *endpoint);
	/*
	 * Puts under way are lost. The provider does not touch their sources, or memory for the endpoint, any more.
	 * NULL is allowed.
	 */
	void (*endpoint_close)(struct shunt_net_endpoint *endpoint);

	/* Goes on with everything, without waiting, and tells at most max events: their number. */
	int (*progress)(struct shunt_net_device *device, struct shunt_net_event *events, int max);
	/*
	 * To sleep: poll fd for POLLIN, after arm has returned true; then call progress. False: call progress first.
	 * Posting, connecting and progress undo it. It needs no time-out of the caller's.
	 */
	bool (*arm)(struct shunt_net_device *device);
	int (*fd)(const struct shunt_net_device *device);
};

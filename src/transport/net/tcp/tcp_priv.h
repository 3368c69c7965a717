/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The provider "tcp": what its files share. Lowest first: tcp_workers.c has threads for large transfers,
 * tcp_interfaces.c finds the devices, tcp_state.c ends endpoints, tcp_memory.c registers memory, tcp_connect.c makes
 * connections, tcp_send.c and tcp_receive.c use them, tcp.c is the table and makes progress.
 *
 * Where there are threads, they carry the data sockets of connected endpoints, from then on until the endpoint dies or
 * is closed; else the device's own thread, that of struct shunt_net_ops, does. "The socket's thread" is whichever it
 * is. All else is done by the device's own thread.
 *
 * An endpoint has one socket for signals and small puts, and data sockets for large puts. Large puts are cut into
 * pieces; a data socket that can be written takes the next piece, so a slow socket takes fewer pieces. Socket 0 has a
 * head for each put in the order of the puts. That order, and the number of bytes of each large put, tell the receiver
 * when a signal may be told.
 *
 * epoll tells edges: readable and writable of a socket stay set until the kernel says EAGAIN, or gives less than it was
 * asked for. An endpoint with work stands in the device's queue; a thread that finds the queue empty may sleep.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/inet/netaddr.h"
#include "base/lock.h"
#include "transport/net/net_objects.h"
#include "transport/net/tcp/tcp_wire.h"
#include "transport/net/tcp/tcp_workers.h"

#define TCP_SMALL_BYTES 65536u  /* a put of more goes in pieces */
#define TCP_PIECE_BYTES 131072u /* large enough to hide the cost of a call, small enough to spread over sockets */
/*
 * If threads carry the pieces: the waiting bytes are cut into two pieces for each socket, within these bounds.
 */
#define TCP_SMALL_BYTES_SPREAD 16384u
#define TCP_PIECE_LEAST_SPREAD 32768u
#define TCP_PIECE_MOST_SPREAD 262144u
#define TCP_MAX_PUTS 1024u     /* posted and not done, of an endpoint; a power of two */
#define TCP_WINDOW 4096u       /* large puts that the receiver keeps count of; a power of two above TCP_MAX_PUTS */
#define TCP_MAX_SIGNALS 16384u /* that wait at the receiver; with so many it reads no further */
#define TCP_BUDGET (1u << 20)  /* bytes of one endpoint and direction in one progress: others wait meanwhile */
/*
 * How many data sockets take pieces (struct tcp_pace). A socket's losses are looked at after so many bytes, which costs
 * a call.
 */
#define TCP_LOOK_BYTES 131072u
#define TCP_PACE_FIRST (1u << 20)           /* for each socket, without a loss: twice as many, until the first loss */
#define TCP_PACE_AGAIN ((uint64_t)16 << 20) /* ... one more, after the first loss; twice as many bytes after each */
#define TCP_PACE_LEAST_OFTEN ((uint64_t)16 << 30)
#define TCP_PACE_LOST 4u            /* retransmissions, at least, and more than one for each so many bytes: */
#define TCP_PACE_LOST_BYTES 262144u /* a queue is full. Fewer are packets that a bad link has lost */
#define TCP_STRANGERS 64            /* connections without a proof */
#define TCP_STRANGER_MS 10000
#define TCP_RETRY_MS 50
/*
 * After this time without a connection, or without a challenge, a new attempt. The kernel's own attempts come after 1,
 * 3, 7, 15, 31 s, even if the network is back sooner. If the last packet of the handshake was lost, the other side has
 * no connection, and sends no challenge.
 */
#define TCP_CONNECT_MS 2500
#define TCP_CHECK_MS 5000 /* between two looks for hosts that do not answer any more */
#define TCP_GONE_MS 25000 /* without an answer, as SHUNT_TCP_SILENCE_MS of base/inet/socket.h */
#define TCP_MAX_SOCKETS (1 + TCP_MAX_DATA_SOCKETS)

/* The source of an epoll event. */
enum tcp_watch_kind { TCP_WATCH_LISTENER, TCP_WATCH_TIMER, TCP_WATCH_NEWS, TCP_WATCH_STRANGER, TCP_WATCH_SOCKET };
struct tcp_watch {
	enum tcp_watch_kind kind;
};

struct tcp_memory {
	struct shunt_net_memory base;
	struct tcp_device *device;
	uint32_t id; /* the slot, and in the upper 16 bits a number that changes with each user of the slot */
};

enum tcp_socket_state {
	TCP_CLOSED,
	TCP_RETRY,      /* connects again at retry_at */
	TCP_CONNECTING, /* until retry_at, as the next one */
	TCP_AWAITS_CHALLENGE,
	TCP_AWAITS_ANSWER,
	TCP_OPEN, /* both sides have proved themselves */
};

struct tcp_socket {
	struct tcp_watch watch;
	struct tcp_endpoint *endpoint;
	struct tcp_load load;
	enum tcp_socket_state state;
	int fd;
	uint32_t index;
	/* from here on the socket's thread's, but for what says otherwise */
	bool failed; /* the endpoint dies of it; it is not used any more */
	bool readable;
	atomic_bool writable; /* read by other threads, too */
	bool hangup;          /* the other side sends no more; bytes that it has sent may still be unread */
	bool at_end;          /* all of that is read */
	bool blocked;         /* the message that comes next does not fit yet */
	/* the device's own thread's, as the next four */
	int64_t stuck_since; /* sent bytes are unacknowledged since then; 0: all are acknowledged */
	unsigned tries;      /* ... and was sent again so often */
	bool hurries;        /* ... and is sent again every SHUNT_TCP_AGAIN_MS at least */
	int64_t retry_at;
	uint8_t proof[SHUNT_MAC_BYTES]; /* that the answer must have */
	/* coming in: bytes [from, to) of the buffer, and the payload that goes on */
	uint8_t *in;
	uint32_t in_bytes, in_from, in_to;
	bool receiving;
	struct tcp_head head;
	struct tcp_memory *memory;
	uint8_t *target;
	uint32_t target_left;
	/* going out on a data socket: a piece of put number out_put */
	struct tcp_head out;
	uint32_t out_head_left, out_left;
	const uint8_t *out_at;
	uint64_t out_put;
	uint32_t unlooked, retransmitted; /* bytes since the last look at its losses, and all retransmissions by then */
};

/*
 * The data sockets of an endpoint that take pieces. Each socket has a window of its own, which it opens until packets
 * are lost, so that many of them fill the queue of a switch or of a slow wire together, and keep losing. So an endpoint
 * begins with one, takes more while what was sent is acknowledged, and half of them when packets are lost. Counts of
 * bytes and packets decide, and no times.
 */
struct tcp_pace {
	_Atomic uint32_t open;
	uint32_t lost;          /* retransmissions since `open` is as it is */
	uint64_t carried, need; /* bytes since then; bytes after which there are more. need 0: no loss yet */
};

/* A put that was posted. */
struct tcp_out_put {
	struct tcp_head head;
	const uint8_t *source;
	_Atomic uint32_t left; /* bytes that the kernel has not taken */
	bool large, told;      /* told: its head is sent */
	uint32_t memory;
	uint64_t offset;
};

struct tcp_signal {
	uint16_t channel;
	uint32_t count;
	uint32_t after; /* told when so many large puts are there, modulo 2^32 */
};

struct tcp_in_large {
	uint32_t bytes, arrived;
	bool announced;
};

enum tcp_endpoint_state { TCP_CREATED, TCP_JOINING, TCP_CONNECTED, TCP_DEAD };

struct tcp_endpoint {
	struct shunt_net_endpoint base;
	struct tcp_device *device;
	struct tcp_endpoint *next, *queue_next;
	bool queued;
	enum tcp_endpoint_state state;
	int64_t deadline;
	uint64_t id, peer_id; /* peer_id 0: not known yet */
	bool active;          /* it connects; else it is connected to */
	bool asked;           /* endpoint_connect was called */
	struct shunt_netaddr peer_addr;
	char where[128];
	uint32_t data_sockets; /* that it may have; the peer may want fewer */
	uint32_t nsockets;
	struct tcp_socket socket[TCP_MAX_SOCKETS];
	unsigned refused; /* connections for it without a proof */

	/* Guards what sockets' threads share; what is atomic is also read without it. */
	struct shunt_mutex lock;
	atomic_bool news;    /* of a socket's thread, for the device's own */
	_Atomic int trouble; /* the endpoint is to die of it: an errno below 0; and why */
	char trouble_text[256];

	/* out: puts [done, posted) are in the ring; heads up to sent are on socket 0 but for the bytes of `put[sent]`
	 * that sent_bytes counts. */
	struct tcp_out_put *put;
	uint64_t done, posted, sent;
	uint32_t sent_bytes, nlarge;
	/* under the lock: puts [pieces, pieces_end) may have bytes that no piece has yet, the first from piece_offset
	 * on */
	uint64_t pieces, pieces_end;
	uint32_t piece_offset;
	_Atomic uint64_t waiting; /* ... all of these bytes */
	struct tcp_pace pace;
	bool finished, end_sent;
	struct tcp_head end_head;

	/* in */
	struct tcp_signal *signal; /* ring */
	uint32_t signal_cap, signal_first, nsignals;
	struct tcp_in_large *large; /* under the lock, as the next */
	_Atomic uint32_t large_done;
	uint32_t large_announced; /* changed by the device's own thread */
	atomic_bool may_block;    /* a data socket has been blocked once */
	bool end_come;

	/* to tell */
	bool ready_told, end_told, error_told;
	uint32_t puts_done;
};

/*
 * ThreadSanitizer does not know that a peer's answer comes after what it answers was sent. A socket's thread may have
 * sent, and not gone on yet, when another thread hears the answer and lets a kernel write the memory anew. So these
 * tell of an endpoint's sends before they are made.
 */
#ifdef __SANITIZE_THREAD__
void __tsan_read_range(void *at, long bytes);
void __tsan_acquire(void *token);
void __tsan_release(void *token);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);
#define TCP_READS(at, bytes) __tsan_read_range(at, (long)(bytes))
#define TCP_SENDS(endpoint) (__tsan_release(endpoint), __tsan_ignore_thread_begin())
#define TCP_HAS_SENT() __tsan_ignore_thread_end()
#define TCP_HEARS(endpoint) __tsan_acquire(endpoint)
#else
#define TCP_READS(at, bytes) (void)(at)
#define TCP_SENDS(endpoint) (void)(endpoint)
#define TCP_HAS_SENT() (void)0
#define TCP_HEARS(endpoint) (void)(endpoint)
#endif

/* A connection that has not proved itself. */
struct tcp_stranger {
	struct tcp_watch watch;
	int fd; /* -1: a free place */
	uint32_t got;
	int64_t since;
	bool readable;
	uint8_t nonce[TCP_NONCE];
	struct tcp_hello hello;
};

struct tcp_slot {
	struct tcp_memory *memory;
	uint16_t turn;
};

struct tcp_device {
	struct shunt_net_device base;
	struct shunt_netaddr addr;
	int listen_fd;
	struct tcp_watch listener, timer, news_watch;
	bool listener_readable;
	int64_t accept_at; /* out of descriptors: not before */
	int64_t check_at;  /* the next look at whether peers' hosts answer */
	int64_t timer_at;  /* when the timer ends; SHUNT_NEVER: it is not set */
	uint32_t data_sockets;
	struct tcp_workers *workers; /* NULL: none */
	atomic_bool news;            /* an endpoint has news */
	atomic_bool armed;           /* the device's own thread may sleep; news_fd wakes it */
	int news_fd;
	struct shunt_mutex lock; /* guards the slots for sockets' threads; the device's own thread alone changes them */
	struct tcp_slot *slot;
	uint32_t nslots;
	struct tcp_endpoint *endpoints, *queue, **queue_end;
	unsigned nstrangers, njoining, nconnected;
	struct tcp_stranger stranger[TCP_STRANGERS];
};

static inline struct tcp_device *tcp_device_of(struct shunt_net_device *device)
{
	return (struct tcp_device *)device;
}

static inline struct tcp_memory *tcp_memory_of(struct shunt_net_memory *memory)
{
	return (struct tcp_memory *)memory;
}

static inline struct tcp_endpoint *tcp_endpoint_of(struct shunt_net_endpoint *endpoint)
{
	return (struct tcp_endpoint *)endpoint;
}

/* How many of its sockets, from 0 on, the device's own thread carries. */
static inline uint32_t shunt_tcp_own_sockets(const struct tcp_endpoint *endpoint)
{
	return endpoint->nsockets && endpoint->device->workers ? 1 : endpoint->nsockets;
}

/* Bytes of a put that goes through socket 0, at most. */
static inline uint32_t shunt_tcp_small(const struct tcp_device *device)
{
	return device->workers ? TCP_SMALL_BYTES_SPREAD : TCP_SMALL_BYTES;
}

/* tcp_interfaces.c */
int shunt_tcp_devices(struct shunt_net_info *info, int max);
/* Address of one of them. 0 or -ENODEV. */
int shunt_tcp_device_address(int index, struct shunt_netaddr *addr);

/* tcp_state.c */
/* On a socket's thread: there is something for the device's own. */
void shunt_tcp_tell(struct tcp_endpoint *endpoint);
/* On the socket's thread: the socket is not used any more, and its endpoint dies soon, with this reason. */
void shunt_tcp_fail_socket(struct tcp_socket *socket, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Wakes the threads of n data sockets that may take pieces and have room; fewer where there are not so many. */
void shunt_tcp_wake_writers(struct tcp_endpoint *endpoint, uint64_t n);
/* Something is to be done, or told. */
void shunt_tcp_queue(struct tcp_endpoint *endpoint);
/* Makes the endpoint dead, with this reason, unless it is dead already, and closes its sockets. */
void shunt_tcp_fail(struct tcp_endpoint *endpoint, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The endpoint is neither joining nor connected any more, in the device's counts. */
void shunt_tcp_leave_state(struct tcp_endpoint *endpoint);
/* Takes its sockets back from their threads, and closes them. */
void shunt_tcp_close_sockets(struct tcp_endpoint *endpoint);

/* tcp_memory.c */
int shunt_tcp_mem_register(
    struct shunt_net_device *device, const struct shunt_net_region *region, struct shunt_net_memory **memory_p);
void shunt_tcp_mem_deregister(struct shunt_net_memory *memory);
struct shunt_net_remote shunt_tcp_mem_remote(const struct shunt_net_memory *memory);
/* The memory that a head names if all its bytes lie in it, else NULL. */
struct tcp_memory *shunt_tcp_memory_find(struct tcp_device *device, const struct tcp_head *head);

/* tcp_connect.c */
int shunt_tcp_listen(struct tcp_device *device);
void shunt_tcp_blob(const struct tcp_endpoint *endpoint, struct shunt_net_blob *blob_p);
int shunt_tcp_connect(struct shunt_net_endpoint *endpoint, const struct shunt_net_blob *theirs);
/* Goes on with an endpoint that is not connected yet. */
void shunt_tcp_join(struct tcp_endpoint *endpoint);
/* Accepts connections, reads from those without a proof, and drops those that are overdue. */
void shunt_tcp_strangers(struct tcp_device *device);
/* Does the work that is due, and sets the timer to the next deadline. */
void shunt_tcp_time(struct tcp_device *device);
void shunt_tcp_stranger_drop(struct tcp_device *device, struct tcp_stranger *stranger);
/*
 * True if the host at the other end of a socket in use has not answered retransmissions for TCP_GONE_MS. The host of a
 * peer that does not read still answers.
 */
struct tcp_info;
bool shunt_tcp_look(struct tcp_socket *socket, const struct tcp_info *info, int64_t now);

/* tcp_send.c */
int shunt_tcp_post(struct shunt_net_endpoint *endpoint, const struct shunt_net_put *puts, int n);
/* Sends heads and small puts, as much as socket 0 takes. */
void shunt_tcp_send(struct tcp_endpoint *endpoint);
/* Sends pieces on a data socket. True: it took something. */
bool shunt_tcp_send_pieces(struct tcp_socket *socket);
/* Counts the puts that are done. */
void shunt_tcp_count_done(struct tcp_endpoint *endpoint);
/* So many bytes were carried, of which so many packets were sent again. most: data sockets. */
void shunt_tcp_pace(struct tcp_pace *pace, uint32_t most, uint32_t bytes, uint32_t again);
/* A socket of the device's own thread can be written, and data waits for it. */
bool shunt_tcp_can_send(const struct tcp_endpoint *endpoint);

/* tcp_receive.c */
/* Reads what has come on a socket. True: there was something. */
bool shunt_tcp_receive(struct tcp_socket *socket);
/* A socket of the device's own thread can be read. */
bool shunt_tcp_can_receive(const struct tcp_endpoint *endpoint);
/* True: there is a signal, and all puts before the oldest one have come. */
bool shunt_tcp_signal_due(const struct tcp_endpoint *endpoint);
struct tcp_signal shunt_tcp_signal_take(struct tcp_endpoint *endpoint);
/* True: the peer's end has come, and everything before it. */
bool shunt_tcp_ended(const struct tcp_endpoint *endpoint);

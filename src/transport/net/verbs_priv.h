/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_NET_VERBS_PRIV_H
#define SHUNT_TRANSPORT_NET_VERBS_PRIV_H
/*
 * The network of NICs with RDMA: puts are RDMA writes of a reliable connection (RC), signals are the immediate values
 * of such writes, told by the completion queue. A NIC needs no atomics, and a process that sleeps is woken by a signal.
 * Where both NICs have atomics, a signal may be an atomic addition instead, which goes the way of the data before it.
 * Internal to verbs*.c. Errors, threads: net.h.
 *
 * Each immediate value takes a receive that its target has posted before. The sender counts them (credits), and the
 * target tells of new ones: so a signal never finds none, which would cost the NIC's timer.
 *
 * An endpoint has two queue pairs (QPs). The main one carries all data, with the patience that the settings ask for.
 * The side one is impatient: it finds out when the peer's QPs can receive, before the main one sends anything, which
 * would else be lost and come again only after a time of seconds; and it tells the peer when the endpoint is closed or
 * dead, which a NIC does not do.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "transport/net/gid.h"
#include "transport/net/net.h"
#include "transport/net/nic.h"
#include "transport/net/verbs_load.h"

#define VERBS_SIGNALS 512     /* of puts, that the target has not told its proxy yet */
#define VERBS_OWN_RECEIVES 32 /* for messages of the provider itself, and those not yet posted again */
#define VERBS_RECEIVES (VERBS_SIGNALS + VERBS_OWN_RECEIVES)
#define VERBS_OWN_SENDS 16    /* for messages of the provider itself */
#define VERBS_SENDS 256       /* power of two */
#define VERBS_PUTS 512        /* that are taken and not done; power of two */
#define VERBS_BATCH 16        /* posted together, of which the last is signaled */
#define VERBS_SIDE 4          /* sends, and receives, of the side QP */
#define VERBS_CQ_ENDPOINTS 16 /* that share a completion queue */
#define VERBS_CQ_ENTRIES \
	(VERBS_SENDS + VERBS_RECEIVES + 2 * VERBS_SIDE + 1) /* of an endpoint, at most: all fail at once */
#define VERBS_MAX_CQS 64
#define VERBS_RAILS 4           /* NICs, or ports of them, of a device */
#define VERBS_MAX_GPU_MEMORY 64 /* regions of a device */
#define VERBS_INLINE 64         /* bytes */
#define VERBS_PING_BYTES 8192   /* several packets of the largest size */
#define VERBS_MOST_ATOMICS 16   /* of a QP, under way */
#define VERBS_PROOF 0x100000001 /* what the first message adds to a word of the peer's */
#define VERBS_LINGER_MS 2000    /* until a closed endpoint's last message is given up */
#define VERBS_REASON_MS 200     /* until the reason for a stop is given up */
#define VERBS_BEAT_MS 2000      /* between two looks whether an idle peer is there */

/* A port of a NIC that can be used. */
struct verbs_port {
	char name[56]; /* of the NIC */
	int number;
	struct shunt_net_info info;
};
/* The same list each time. Number or -errno (logged once). */
int verbs_ports(const struct shunt_ibv **ibv_p, const struct verbs_port **ports_p);
/* NICs and ports that are there and not used, each with the reason: their number. */
int verbs_left_out(const char (**texts_p)[160]);
/* Opens the NIC with that name; NULL: errno. */
struct shunt_ibv_context *verbs_open_nic(const struct shunt_ibv *ibv, const char *name);
/* Says whether the NIC can read and write memory of GPUs. */
bool verbs_has_gpu_memory(const struct shunt_ibv *ibv, struct shunt_ibv_context *context);

struct verbs_cq {
	struct shunt_ibv_cq *cq;
	int endpoints;
};

/* A signal that waits until the GPUs see the data before it (verbs_flush.c). */
struct verbs_deferred {
	struct shunt_net_event event;
	uint32_t id; /* of the endpoint, to see that it still lives */
};

struct verbs_flush {
	struct shunt_ibv_qp *qp;
	struct verbs_deferred *queue; /* rows from `first` to `last`; those before `seen` can be told */
	size_t rows, first, last, seen, covered;
	bool reading;
};

/* A port of a NIC, opened. A device has one, or several that share the data of its endpoints. */
struct verbs_rail {
	const struct shunt_ibv *ibv;
	const struct verbs_port *port;
	struct shunt_ibv_context *context;
	struct shunt_ibv_port_attr attr;
	uint8_t atomics_out, atomics_in; /* that a QP may have under way, as requester and as responder; 0: none */
	struct shunt_ibv_pd *pd;
	struct shunt_ibv_comp_channel *channel;
	struct verbs_cq cqs[VERBS_MAX_CQS];
	int ncqs, cq_endpoints;
	uint16_t pkey;
};

struct shunt_net_device {
	const struct shunt_ibv *ibv;
	struct verbs_rail rail[VERBS_RAILS];
	int nrails;
	int epoll_fd, timer_fd;
	struct shunt_net_endpoint **slots; /* by the slot of an endpoint's id */
	unsigned nslots;
	uint16_t generation;
	struct shunt_net_endpoint *attention; /* endpoints that progress looks at, whatever comes */
	unsigned timed;                       /* endpoints with a deadline */
	unsigned calls;
	bool armed;
	bool touched; /* since the last progress: something was posted, or begins to connect */
	int64_t next_beat;
	struct shunt_ibv_wc stash[VERBS_RAILS * VERBS_MAX_CQS]; /* completions that arm has found */
	int nstash;
	struct shunt_net_memory *gpu_memory; /* list of what lies in GPUs */
	struct verbs_flush flush;
	void *scratch; /* a page that the flush reads into */
	struct shunt_ibv_mr *scratch_mr;
};

struct shunt_net_memory {
	struct shunt_net_device *device;
	struct shunt_ibv_mr *mr[VERBS_RAILS];
	uint64_t at;
	size_t bytes;
	bool gpu;
	struct shunt_net_memory *next_gpu;
};

enum verbs_state {
	VERBS_CREATED,
	VERBS_PROBING, /* until the peer's QPs can receive */
	VERBS_PINGING, /* data and a signal go both ways */
	VERBS_READY,
	VERBS_DEAD,
	VERBS_LINGERING, /* closed; only its last message is waited for */
};

/* The provider's own messages: immediate values of the channel that no put has. The low bits have a number. */
enum verbs_message {
	VERBS_PING = 1 << 12,
	VERBS_PONG = 2 << 12,
	VERBS_CREDIT = 3 << 12, /* so many signals may come in addition */
	VERBS_END = 4 << 12,
	VERBS_BYE = 5 << 12,
	VERBS_NUMBER = (1 << 12) - 1,
};

/* Kinds of completions, in the ids of work requests. */
enum verbs_kind { VERBS_SEND, VERBS_RECEIVE, VERBS_SIDE_SEND, VERBS_SIDE_RECEIVE, VERBS_FLUSH };

#define VERBS_SEQ_MASK 0xfffffffu
#define VERBS_LAST_SIDE_SEND VERBS_SEQ_MASK
static inline uint64_t verbs_wr_id(uint32_t id, enum verbs_kind kind, uint32_t seq)
{
	return (uint64_t)id << 32 | (uint64_t)kind << 28 | (seq & VERBS_SEQ_MASK);
}

/* A put that was taken. */
struct verbs_put {
	uint64_t source, remote;
	uint32_t bytes, lkey, rkey;
	uint16_t channel, count;
	bool inlined, adds;
	uint64_t word; /* of the signal that adds */
	uint32_t word_key;
};

/* Memory of an endpoint that the provider itself writes to, at both ends. The blob has the address of `came`. */
struct verbs_own {
	uint8_t sent[VERBS_PING_BYTES], came[VERBS_PING_BYTES];
	uint64_t proof;  /* to which the peer adds */
	uint64_t answer; /* of additions to the peer's words: what was there; nobody reads it */
};
#define VERBS_PROOF_AT (offsetof(struct verbs_own, proof) - offsetof(struct verbs_own, came))

/* What the peer's blob has told. */
struct verbs_peer {
	uint32_t qpn, side_qpn, psn;
	uint16_t lid, pkey;
	uint8_t mtu, ethernet, ngids;
	uint8_t atomics; /* that it answers at a time; 0: it does not ask for additions */
	struct shunt_gid gids[SHUNT_GID_MAX_OFFERED];
	uint64_t ping_at;
	uint32_t ping_key;
	struct shunt_ibv_ece ece;
	uint8_t nonce[16];
};

struct shunt_net_endpoint {
	struct shunt_net_device *device;
	uint32_t id; /* slot << 16 | generation */
	enum verbs_state state;
	void *user;
	char *name;
	int cq;
	struct shunt_ibv_qp *qp, *side;
	uint32_t psn;
	struct shunt_ibv_ece ece; /* what the NIC of this end has */
	uint32_t inline_bytes;
	struct shunt_gid gids[SHUNT_GID_MAX_OFFERED];
	int ngids, gid; /* gid: the one chosen */
	int peer_gid;
	struct verbs_peer peer;
	uint8_t key[SHUNT_NET_KEY_BYTES], nonce[16];
	int64_t connect_ms, deadline; /* deadline 0: none */
	bool adds;                    /* the other end and this one want additions */

	struct verbs_own *ping;
	struct shunt_ibv_mr *ping_mr;
	uint32_t side_round; /* how often the side QP has begun */
	bool ping_came, pong_came, pong_sent;
	bool reached;            /* the peer's QPs have answered */
	bool bye_sent, bye_done; /* the peer has been told that this end is over */

	/* Counts that go round; taken >= posted >= done. */
	uint32_t taken, posted, done;
	uint32_t offset;                         /* bytes of the put `posted` that are posted */
	uint32_t sent, completed;                /* work requests of the main QP */
	uint32_t signals_sent, signals_allowed;  /* to the peer */
	uint32_t signals_came, signals_returned; /* from the peer, and the credits for them */
	uint32_t receives_owed;
	unsigned own; /* messages that wait for room: bits of 1 << (enum verbs_message >> 12) */
	bool finished, end_sent, end_done, end_came;
	uint32_t end_seq;

	bool in_attention, error_untold;
	bool flushed; /* the main QP has stopped, and why has not come yet */
	struct shunt_net_endpoint *next_attention;
	int err;
	char text[400];

	uint32_t upto[VERBS_SENDS]; /* `posted` when the work request was made */
	struct verbs_put puts[VERBS_PUTS];
};

/* Where progress puts its events. */
struct verbs_sink {
	struct shunt_net_event *events;
	int n, max;
};
/* There is room for it. Joins it to the one before where that says the same. */
void verbs_tell(struct verbs_sink *sink, struct shunt_net_endpoint *ep, enum shunt_net_event_kind kind,
    uint32_t channel, uint32_t count);

static inline struct shunt_net_endpoint *verbs_endpoint(const struct shunt_net_device *device, uint32_t id)
{
	struct shunt_net_endpoint *ep = id >> 16 < device->nslots ? device->slots[id >> 16] : NULL;

	return ep && ep->id == id ? ep : NULL;
}

/* verbs_qp.c. Masks of modify_qp are exact, or the library refuses. 0 or -errno (logged). */
struct verbs_path {
	uint32_t qpn, psn_in, psn_out;
	int mtu;
	uint8_t sgid_index, timeout, retries;
	uint8_t atomics_out, atomics_in; /* under way; 0: no atomics */
	const struct shunt_gid *gid;     /* NULL: the link has no need of one */
	uint16_t lid;
};
int verbs_qp_create(struct verbs_rail *rail, struct shunt_ibv_cq *cq, const struct shunt_ibv_qp_cap *cap,
    struct shunt_ibv_qp **qp_p, uint32_t *inline_p);
/* adds: the peer may add to words through it. */
int verbs_qp_init(struct verbs_rail *rail, struct shunt_ibv_qp *qp, bool adds);
int verbs_qp_connect(struct verbs_rail *rail, struct shunt_ibv_qp *qp, const struct verbs_path *path);
int verbs_qp_state(struct verbs_rail *rail, struct shunt_ibv_qp *qp, int state);
/* Posts n receives without memory. */
int verbs_receives_post(struct shunt_ibv_qp *qp, uint64_t wr_id, int n);

/* verbs_ece.c: what the NIC can do beyond the specification, of a QP in its first state; vendor 0: nothing. */
struct shunt_ibv_ece verbs_ece_of(const struct verbs_rail *rail, struct shunt_ibv_qp *qp);
/* Has the QP use what both ends have; before it can receive. 0 or -errno (not logged). */
int verbs_ece_set(const struct verbs_rail *rail, struct shunt_ibv_qp *qp, const struct shunt_ibv_ece *own,
    const struct shunt_ibv_ece *peers);

/* verbs_gids.c: the addresses that the port offers to a peer; their number, or -errno (logged). */
int verbs_gids(struct verbs_rail *rail, struct shunt_gid *offered);

/* verbs_cq.c: a queue with room for an endpoint; its index or -errno (logged). */
int verbs_cq_take(struct verbs_rail *rail);

/* verbs_blob.c */
void verbs_blob_write(const struct shunt_net_endpoint *ep, struct shunt_net_blob *blob_p);
int verbs_blob_read(const struct shunt_net_blob *blob, struct verbs_peer *peer_p); /* -EPROTO: not logged */

/* verbs_endpoint.c */
int verbs_endpoint_create(struct shunt_net_device *device, const struct shunt_net_peer *peer,
    struct shunt_net_endpoint **endpoint_p, struct shunt_net_blob *blob_p);
void verbs_endpoint_close(struct shunt_net_endpoint *ep);
/* Frees what a closed endpoint has kept. */
void verbs_endpoint_free(struct shunt_net_endpoint *ep);
/* progress has to look at it. */
void verbs_attend(struct shunt_net_endpoint *ep);
/* It is dead; progress tells. Only the first error of an endpoint counts. */
void verbs_fail(struct shunt_net_endpoint *ep, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Both ends have finished: what happens now is of no interest to anybody. */
bool verbs_over(const struct shunt_net_endpoint *ep);
void verbs_deadline(struct shunt_net_endpoint *ep, int64_t deadline); /* 0: none */

/* verbs_connect.c */
int verbs_endpoint_connect(struct shunt_net_endpoint *ep, const struct shunt_net_blob *theirs);
void verbs_probe_done(struct shunt_net_endpoint *ep, const struct shunt_ibv_wc *wc);
void verbs_ping_came(struct shunt_net_endpoint *ep);
/* True: the endpoint has become ready with this. */
bool verbs_ready(struct shunt_net_endpoint *ep);

/* verbs_send.c */
int verbs_post(struct shunt_net_endpoint *ep, const struct shunt_net_put *puts, int n);
void verbs_finish(struct shunt_net_endpoint *ep);
/* Posts puts and messages that wait, as far as there is room. */
void verbs_push(struct shunt_net_endpoint *ep);
void verbs_own(struct shunt_net_endpoint *ep, enum verbs_message message);
/* A write of the ping into the peer's memory. */
void verbs_send_ping(struct shunt_net_endpoint *ep);
int verbs_side_send(struct shunt_net_endpoint *ep, enum verbs_message message); /* 0: the probe */
/* Says good-bye, once, to a peer that has been reached. */
void verbs_bye(struct shunt_net_endpoint *ep);
/* A write of nothing, where no other one is under way: a NIC tells nobody that its process has gone. */
void verbs_beat(struct shunt_net_endpoint *ep);

/* verbs_cq.c */
int verbs_progress(struct shunt_net_device *device, struct shunt_net_event *events, int max);
const char *verbs_status(const struct shunt_net_device *device, int status);

/* verbs_wait.c */
bool verbs_arm(struct shunt_net_device *device);
int verbs_fd(const struct shunt_net_device *device);
/* Reads the events of the NIC: errors of QPs, of the port, of all. */
void verbs_async(struct shunt_net_device *device);
void verbs_disarm(struct shunt_net_device *device);
int verbs_wait_open(struct shunt_net_device *device);
int verbs_wait_add(const struct shunt_net_device *device, const struct verbs_rail *rail);

/* verbs_mem.c */
int verbs_mem_register(
    struct shunt_net_device *device, const struct shunt_net_region *region, struct shunt_net_memory **memory_p);
void verbs_mem_deregister(struct shunt_net_memory *memory);
struct shunt_net_remote verbs_mem_remote(const struct shunt_net_memory *memory);
/* The host's own pages; adds: peers add to words in them. NULL: logged. */
struct shunt_ibv_mr *verbs_mem_own(struct verbs_rail *rail, void *at, size_t bytes, bool adds);

/* verbs_flush.c: before a signal is told, a read of the GPU's memory pushes out what was written there before. */
int verbs_flush_open(struct shunt_net_device *device); /* at the first memory of a GPU */
void verbs_flush_close(struct shunt_net_device *device);
/* Keeps the event until the next read is done. */
void verbs_flush_defer(struct shunt_net_endpoint *ep, enum shunt_net_event_kind kind, uint32_t channel, uint32_t count);
void verbs_flush_done(struct shunt_net_device *device, const struct shunt_ibv_wc *wc);
/* Tells what can be told, and begins a read for the rest. */
void verbs_flush_go(struct shunt_net_device *device, struct verbs_sink *sink);
#endif

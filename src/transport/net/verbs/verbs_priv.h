/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The network of NICs with RDMA: puts are RDMA writes of a reliable connection (RC), signals are the immediate values
 * of such writes, told by the completion queue. A NIC needs no atomics, and a process that sleeps is woken by a signal.
 * Where both NICs have atomics, a signal may be an atomic addition instead, which takes the same way as the data before
 * it. Internal to this folder. Errors, threads: net.h.
 *
 * Each immediate value takes a receive that its target has posted before. The sender counts these receives (credits),
 * and the target tells it of new ones. So each signal finds a receive; without one, the NIC would wait and try again.
 *
 * An endpoint has queue pairs (QPs) of two kinds. Lanes carry data, with the patience that the settings ask for. The
 * first lane carries all signals; more lanes, on as many rails, carry parts of large puts (verbs_widen.c). The side QP
 * has short time-outs. It finds out when the peer's QPs can receive, before a lane sends anything: data that is sent
 * earlier is lost, and a lane repeats it only after seconds. It also tells the peer when the endpoint is closed or
 * dead, which a NIC does not do.
 */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "transport/net/net_objects.h"
#include "transport/net/nic.h"
#include "transport/net/verbs/gid.h"
#include "transport/net/verbs/verbs_load.h"

#define VERBS_SIGNALS 512     /* of puts, that the target has not reported to its proxy yet */
#define VERBS_OWN_RECEIVES 32 /* for messages of the provider itself, and those not yet posted again */
#define VERBS_RECEIVES (VERBS_SIGNALS + VERBS_OWN_RECEIVES)
#define VERBS_WAITING 1024    /* power of two, above all signals and the end */
#define VERBS_OWN_SENDS 16    /* for messages of the provider itself */
#define VERBS_SENDS 256       /* power of two */
#define VERBS_PUTS 512        /* that are taken and not done; power of two */
#define VERBS_BATCH 16        /* posted together, of which the last is signaled */
#define VERBS_SIDE 4          /* sends, and receives, of the side QP */
#define VERBS_CQ_ENDPOINTS 16 /* that share a completion queue */
/* The most entries that an endpoint with so many lanes on a NIC needs: when all its work requests fail at once. */
#define VERBS_CQ_ENTRIES(lanes) ((lanes) * (VERBS_SENDS + VERBS_RECEIVES) + 2 * VERBS_SIDE + 1)
#define VERBS_MAX_CQS 64
#define VERBS_RAILS SHUNT_NET_MAX_RAILS
#define VERBS_MOST_LANES 8       /* of an endpoint */
#define VERBS_LANE_PING 4096     /* bytes: a packet of the largest size */
#define VERBS_STRIPE_BYTES 65536 /* larger puts go over all lanes */
#define VERBS_STRIPE_ALIGN 4096
#define VERBS_MAX_GPU_MEMORY 64 /* regions of a device */
#define VERBS_INLINE 64         /* bytes */
#define VERBS_PING_BYTES 8192   /* several packets of the largest size */
#define VERBS_MOST_ATOMICS 16   /* of a QP, under way */
#define VERBS_PROOF 0x100000001 /* the value that the first message adds to a word of the peer */
#define VERBS_LINGER_MS 2000    /* the wait for a closed endpoint's last message */
#define VERBS_REASON_MS 200     /* the wait for the reason of a QP's stop */
#define VERBS_BEAT_MS 2000      /* between two checks of an idle peer */

/* A port of a NIC that can be used. */
struct verbs_port {
	char name[56]; /* of the NIC */
	int number;
	struct shunt_net_info info;
};
/* The same list each time. Number or -errno (logged once). */
int verbs_ports(const struct shunt_ibv **ibv_p, const struct verbs_port **ports_p);
/* NICs and ports that are not used, each with the reason. Returns their number. */
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
	struct verbs_device *device;
	const struct shunt_ibv *ibv;
	const struct verbs_port *port;
	struct shunt_ibv_context *context;
	struct shunt_ibv_port_attr attr;
	/* Atomics that a QP may have under way, as requester and as responder */
	uint8_t atomics_out, atomics_in;
	struct shunt_ibv_pd *pd;
	struct shunt_ibv_comp_channel *channel;
	struct verbs_cq cqs[VERBS_MAX_CQS];
	int ncqs, cq_endpoints, max_cqe;
	uint16_t pkey;
};

struct verbs_device {
	struct shunt_net_device base;
	const struct shunt_ibv *ibv;
	struct verbs_rail rail[VERBS_RAILS];
	int nrails;
	int qps;                       /* lanes of an endpoint on each rail */
	struct verbs_endpoint **slots; /* by the slot of an endpoint's id */
	unsigned nslots;
	uint16_t generation;
	struct verbs_endpoint *attention; /* endpoints that each progress looks at */
	unsigned timed;                   /* endpoints with a deadline */
	unsigned calls;
	bool armed;
	bool touched; /* since the last progress: something was posted, or begins to connect */
	int64_t next_beat;
	struct shunt_ibv_wc stash[VERBS_RAILS * VERBS_MAX_CQS]; /* completions that arm has found */
	int nstash;
	struct verbs_memory *gpu_memory; /* list of the memory in GPUs */
	struct verbs_flush flush;
	void *scratch; /* a page that the flush reads into */
	struct shunt_ibv_mr *scratch_mr;
};

struct verbs_memory {
	struct shunt_net_memory base;
	struct verbs_device *device;
	struct shunt_ibv_mr *mr[VERBS_RAILS];
	bool gpu;
	struct verbs_memory *next_gpu;
};

enum verbs_state {
	VERBS_CREATED,
	VERBS_PROBING,  /* until the peer's QPs can receive */
	VERBS_PINGING,  /* data and a signal go both ways */
	VERBS_WIDENING, /* until the other lanes carry data as well */
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
	VERBS_BYE = 5 << 12,      /* with the channel of the last signal, if there is one */
	VERBS_LANES = 6 << 12,    /* the other lanes of this end are in the peer's memory */
	VERBS_LANES_UP = 7 << 12, /* ... and can receive */
	VERBS_LANES_OK = 8 << 12, /* a ping has come on each lane of the peer */
	VERBS_PART = 9 << 12,     /* on a lane: a part of a put has come */
	VERBS_NUMBER = (1 << 12) - 1,
};

/* In the count of a signal: its put has parts on the other lanes. */
#define VERBS_STRIPED 0x8000u

/* Kinds of completions, in the ids of work requests. */
enum verbs_kind { VERBS_SEND, VERBS_RECEIVE, VERBS_SIDE_SEND, VERBS_SIDE_RECEIVE, VERBS_FLUSH };

#define VERBS_SEQ_MASK 0xffffffu
#define VERBS_LAST_SIDE_SEND VERBS_SEQ_MASK
static inline uint64_t verbs_wr_id(uint32_t id, enum verbs_kind kind, int lane, uint32_t seq)
{
	return (uint64_t)id << 32 | (uint64_t)kind << 28 | (uint64_t)lane << 24 | (seq & VERBS_SEQ_MASK);
}

/* A put that was taken. */
struct verbs_put {
	uint64_t source, remote;
	const struct verbs_memory *memory;
	uint32_t rkey[VERBS_RAILS];
	uint32_t bytes;
	uint16_t channel, count;
	bool inlined, adds, striped;
	uint64_t word; /* of the signal that adds */
	uint32_t word_key;
};

/* The data of a rail, and of a QP, that a peer needs to connect. */
struct verbs_link {
	uint16_t lid, pkey;
	uint8_t mtu, ethernet, ngids;
	struct shunt_gid gids[SHUNT_GID_MAX_OFFERED];
};
struct verbs_qp_name {
	uint32_t qpn, psn;
	struct shunt_ibv_ece ece;
};

/* The data of rails and lanes from 1 on, which the two ends exchange once the first lane carries data. */
struct verbs_table {
	struct verbs_link link[VERBS_RAILS];
	uint32_t ping_key[VERBS_RAILS];
	struct verbs_qp_name qp[VERBS_MOST_LANES];
};

/* Memory of an endpoint that the provider itself writes to, at both ends. The blob has the address of `came`. */
struct verbs_own {
	uint8_t sent[VERBS_PING_BYTES], came[VERBS_PING_BYTES];
	uint64_t proof;  /* to which the peer adds */
	uint64_t answer; /* of additions to the peer's words: the old values, which nobody reads */
	struct verbs_table table_sent, table_came;
	uint8_t lane_came[][VERBS_LANE_PING]; /* of lanes from 1 on */
};
/* Where the peer's field is, seen from the address in its blob. */
#define VERBS_AT(field) (offsetof(struct verbs_own, field) - offsetof(struct verbs_own, came))

/* The content of the peer's blob. */
struct verbs_peer {
	struct verbs_link link; /* of its first rail */
	struct verbs_qp_name qp;
	uint32_t side_qpn;
	uint8_t atomics; /* that the NIC answers at a time; 0: this end does not ask for additions */
	uint8_t rails, qps;
	uint64_t ping_at;
	uint32_t ping_key[VERBS_RAILS]; /* the first is in the blob */
	uint8_t nonce[16];
};

/* A QP that carries data. Counts go round; posted >= done. */
struct verbs_lane {
	struct verbs_rail *rail;
	struct shunt_ibv_qp *qp;
	uint32_t psn;
	struct shunt_ibv_ece ece; /* the features of its NIC */
	bool has_gid;
	struct shunt_gid gid, peer_gid; /* that were chosen */
	uint32_t sent, completed;       /* work requests */
	uint32_t posted, done;          /* puts, of which this lane's part is posted, or done */
	uint32_t offset;                /* bytes of the next part that are posted */
	uint32_t receives_owed;
	uint32_t parts;             /* that have come, of lanes from 1 on */
	uint32_t upto[VERBS_SENDS]; /* `posted` when the work request was made */
};

/* A signal, or the peer's end, that waits for parts on other lanes (verbs_order.c). */
struct verbs_waiting {
	enum shunt_net_event_kind kind;
	uint32_t channel, count;
	uint32_t parts; /* that must have come on each lane */
};

struct verbs_endpoint {
	struct shunt_net_endpoint base;
	struct verbs_device *device;
	uint32_t id; /* slot << 16 | generation */
	enum verbs_state state;
	int cq[VERBS_RAILS]; /* a place in this queue of the rail; -1: none */
	struct verbs_lane *lane;
	int nlanes; /* that are used; before the other end is known, 1 */
	struct shunt_ibv_qp *side;
	uint32_t inline_bytes;
	struct verbs_link link; /* of the first rail */
	struct verbs_peer peer;
	uint8_t nonce[16];
	int64_t deadline; /* 0: none */
	bool adds;        /* the other end and this one want additions */

	struct verbs_own *ping;
	size_t ping_bytes;
	struct shunt_ibv_mr *ping_mr[VERBS_RAILS];
	unsigned lanes_proven; /* bits of the lanes on which a ping has come */
	/* The peer says that a ping has come on each of this end's lanes; this end has said so of the peer's lanes */
	bool lanes_ok, ok_sent;
	uint32_t side_round; /* how often the side QP has begun */
	bool ping_came, pong_came, pong_sent;
	bool reached;            /* the peer's QPs have answered */
	uint16_t last;           /* the channel of SHUNT_NET_LAST, for the last message; VERBS_OWN_CHANNEL: none */
	bool bye_sent, bye_done; /* sent: the peer was told that this end is closed; done: that message is complete */

	/* Counts that go round; taken >= the lanes' posted; done: the least of the lanes' */
	uint32_t taken, done;
	uint32_t signals_sent, signals_allowed;  /* to the peer */
	uint32_t signals_came, signals_returned; /* from the peer and told, and the credits for them */
	uint32_t striped;                        /* puts from the peer that have parts on all lanes */
	struct verbs_waiting *waiting;           /* a ring of VERBS_WAITING; with several lanes */
	uint32_t first_waiting, last_waiting;
	unsigned own; /* messages that wait for room: bits of 1 << (enum verbs_message >> 12) */
	bool finished, end_sent, end_done, end_came;
	uint32_t end_seq;

	bool in_attention, error_untold;
	struct verbs_lane *flushed; /* its QP has stopped, and the completion with the reason has not come yet */
	struct verbs_endpoint *next_attention;

	struct verbs_put puts[VERBS_PUTS];
};

/* Where progress puts its events. */
struct verbs_sink {
	struct shunt_net_event *events;
	int n, max;
};

static inline struct verbs_device *verbs_device_of(struct shunt_net_device *device)
{
	return (struct verbs_device *)device;
}

static inline struct verbs_memory *verbs_memory_of(struct shunt_net_memory *memory)
{
	return (struct verbs_memory *)memory;
}

static inline struct verbs_endpoint *verbs_endpoint_of(struct shunt_net_endpoint *endpoint)
{
	return (struct verbs_endpoint *)endpoint;
}

/* NULL: it is closed. */
static inline struct verbs_endpoint *verbs_endpoint_find(const struct verbs_device *device, uint32_t id)
{
	struct verbs_endpoint *ep = id >> 16 < device->nslots ? device->slots[id >> 16] : NULL;

	return ep && ep->id == id ? ep : NULL;
}

/* Immediate values have channel and count of a signal. The provider's own messages have a channel that no put has. */
#define VERBS_OWN_CHANNEL 0xffffu
static inline uint32_t verbs_immediate(uint32_t channel, uint32_t count)
{
	return htonl(channel << 16 | count);
}

/* The peer's key of its memory for messages, on the lane's rail. */
static inline uint32_t verbs_ping_rkey(const struct verbs_endpoint *ep, const struct verbs_lane *lane)
{
	return ep->peer.ping_key[lane->rail - ep->device->rail];
}

static inline int verbs_least(int a, int b)
{
	return a < b ? a : b;
}

/* Lanes of an endpoint, at most. */
static inline int verbs_lanes_most(const struct verbs_device *device)
{
	return verbs_least(device->nrails * device->qps, VERBS_MOST_LANES);
}

/*
 * The functions of the files, lowest first: a file calls files that stand above it here. verbs_ports.c and
 * verbs_load.c, which find the NICs and the library, are below all of these.
 */

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
/* A queue with room for an endpoint; its index or -errno (logged). */
int verbs_cq_take(struct verbs_rail *rail);

/* verbs_mem.c */
int verbs_mem_register(
    struct verbs_device *device, const struct shunt_net_region *region, struct verbs_memory **memory_p);
void verbs_mem_deregister(struct shunt_net_memory *memory);
struct shunt_net_remote verbs_mem_remote(const struct shunt_net_memory *memory);
/* The host's own pages; adds: peers add to words in them. NULL: logged. */
struct shunt_ibv_mr *verbs_mem_own(struct verbs_rail *rail, void *start, size_t bytes, bool adds);

/* verbs_link.c: the addresses that the port offers to a peer; their number, or -errno (logged). */
int verbs_gids(struct verbs_rail *rail, struct shunt_gid *offered);
/* The data of the rail that its peer needs. 0 or -errno (logged). */
int verbs_link_of(struct verbs_rail *rail, struct verbs_link *link_p);
bool verbs_link_is_valid(const struct verbs_link *link);

/* verbs_blob.c */
void verbs_blob_write(const struct verbs_endpoint *ep, struct shunt_net_blob *blob_p);
int verbs_blob_read(const struct shunt_net_blob *blob, struct verbs_peer *peer_p); /* -EPROTO: not logged */

/* verbs_state.c */
/* progress has to look at it. */
void verbs_attend(struct verbs_endpoint *ep);
void verbs_deadline(struct verbs_endpoint *ep, int64_t deadline); /* 0: none */
/* Both ends have finished, and all puts are done: errors do not matter any more. */
bool verbs_over(const struct verbs_endpoint *ep);
/* It is dead; progress tells. Only the first error of an endpoint counts. The text names the first lane's NIC. */
void verbs_fail(struct verbs_endpoint *ep, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* ... this lane's. */
void verbs_lane_fail(struct verbs_endpoint *ep, const struct verbs_lane *lane, int err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int verbs_side_send(struct verbs_endpoint *ep, enum verbs_message message); /* 0: the probe */
/* Says good-bye, once, to a peer that has been reached. */
void verbs_bye(struct verbs_endpoint *ep);
const char *verbs_status(const struct verbs_device *device, int status);
/* Adds an event, for which the sink has room, or joins it to the last event if that is of the same kind and channel. */
void verbs_tell(struct verbs_sink *sink, struct verbs_endpoint *ep, enum shunt_net_event_kind kind, uint32_t channel,
    uint32_t count);

/* verbs_flush.c: before a signal is told, a read of the GPU's memory pushes out what was written there before. */
int verbs_flush_open(struct verbs_device *device); /* at the first memory of a GPU */
void verbs_flush_close(struct verbs_device *device);
/* Keeps the event until the next read is done. */
void verbs_flush_defer(struct verbs_endpoint *ep, enum shunt_net_event_kind kind, uint32_t channel, uint32_t count);
void verbs_flush_done(struct verbs_device *device, const struct shunt_ibv_wc *wc);
/* Tells the events that the last read covers, and begins a read for the rest. */
void verbs_flush_go(struct verbs_device *device, struct verbs_sink *sink);

/* verbs_order.c: a signal is told when the parts of all puts before it have come, on all lanes. */
/* It has come on the first lane. striped: its put has parts on the others; count 0: nothing to tell. */
void verbs_order_came(
    struct verbs_endpoint *ep, const struct shunt_net_event *event, bool striped, struct verbs_sink *sink);
void verbs_order_part(struct verbs_endpoint *ep, struct verbs_lane *lane);
/* Tells what can be told. */
void verbs_order_go(struct verbs_endpoint *ep, struct verbs_sink *sink);

/* verbs_send.c */
int verbs_post(struct shunt_net_endpoint *endpoint, const struct shunt_net_put *puts, int n);
void verbs_finish(struct shunt_net_endpoint *endpoint);
bool verbs_end_is_out(const struct shunt_net_endpoint *endpoint);
/* Posts waiting puts and messages, as far as there is room. */
void verbs_push(struct verbs_endpoint *ep);
void verbs_own(struct verbs_endpoint *ep, enum verbs_message message);
/* A write of so many bytes of the ping to a place of the peer's, with a message of the lane's own. */
void verbs_lane_write(
    struct verbs_endpoint *ep, struct verbs_lane *lane, uint64_t offset, uint32_t bytes, enum verbs_message message);
/* The puts whose sources all lanes have done with, and which were not told. */
uint32_t verbs_done(struct verbs_endpoint *ep);
/*
 * Writes nothing to the peer where no write is under way, to learn of its death: a NIC does not tell that its process
 * has gone.
 */
void verbs_beat(struct verbs_endpoint *ep);

/* verbs_wait.c */
bool verbs_arm(struct shunt_net_device *device);
/* Reads the events of the NIC: errors of QPs, of the port, of all. */
void verbs_async(struct verbs_device *device);
void verbs_disarm(struct verbs_device *device);
int verbs_wait_add(const struct verbs_device *device, const struct verbs_rail *rail);
/* Before the rail is closed, however far it was opened. */
void verbs_wait_remove(const struct verbs_device *device, const struct verbs_rail *rail);

/* verbs_lane.c */
/* The endpoint's place in a completion queue of the rail, taken with its first QP there. NULL: logged. */
struct shunt_ibv_cq *verbs_cq_of(struct verbs_endpoint *ep, struct verbs_rail *rail);
/* Makes the QP of the lane, on the rail, with its receives. 0 or -errno (logged). */
int verbs_lane_make(struct verbs_endpoint *ep, struct verbs_lane *lane, struct verbs_rail *rail);
/* Connects the lane's QP with the peer's. False: the endpoint has failed. */
bool verbs_lane_connect(struct verbs_endpoint *ep, struct verbs_lane *lane, const struct verbs_link *own,
    const struct verbs_link *peers, const struct verbs_qp_name *qp);
struct verbs_path verbs_path_of(const struct verbs_endpoint *ep, const struct verbs_lane *lane,
    const struct verbs_link *peers, const struct verbs_qp_name *qp);
/* `bytes` bytes of the peer's ping, or of this end's. */
void verbs_ping_write(const struct verbs_endpoint *ep, bool peers, uint8_t *ping, size_t bytes);

/* verbs_widen.c: lanes from 1 on */
/* Makes them, as many as both ends want. 0 or -errno (logged). */
int verbs_lanes_make(struct verbs_endpoint *ep);
/* The first lane carries data: tells the peer of the others. */
void verbs_lanes_tell(struct verbs_endpoint *ep);
void verbs_lanes_told(struct verbs_endpoint *ep); /* by the peer */
void verbs_lanes_ping(struct verbs_endpoint *ep); /* the peer's can receive */
void verbs_lane_ping_came(struct verbs_endpoint *ep, struct verbs_lane *lane);

/* verbs_connect.c */
int verbs_endpoint_connect(struct shunt_net_endpoint *endpoint, const struct shunt_net_blob *theirs);
void verbs_probe_done(struct verbs_endpoint *ep, const struct shunt_ibv_wc *wc);
void verbs_ping_came(struct verbs_endpoint *ep);
/* True: the endpoint has become ready with this. */
bool verbs_ready(struct verbs_endpoint *ep);

/* verbs_endpoint.c */
int verbs_endpoint_create(struct shunt_net_device *device, const struct shunt_net_peer *peer,
    struct shunt_net_endpoint **endpoint_p, struct shunt_net_blob *blob_p);
void verbs_endpoint_close(struct shunt_net_endpoint *endpoint);
/* Frees a closed endpoint. */
void verbs_endpoint_free(struct verbs_endpoint *ep);

/* verbs_progress.c */
int verbs_progress(struct shunt_net_device *device, struct shunt_net_event *events, int max);

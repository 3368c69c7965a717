/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * libibverbs.so.1 for tests: RDMA devices that are not there, with the ABI of the real library. A program, or
 * LD_LIBRARY_PATH, or SHUNT_IBV_LIB names it; nothing loads it by itself.
 *
 * One idea a file: modify.c which changes of state there are, config.c environment, fabric.c network between processes,
 * device.c devices and contexts, sysfs.c what the kernel says of them, mr.c memory regions, cq.c completion queues,
 * event.c asynchronous events, qp.c queue pairs and posts, requester.c and responder.c the two halves of the reliable
 * connection, land.c how data arrives in memory, nic.c the thread of each opened device, faults.c the fault script,
 * names.c texts, private.c what others' libraries link with.
 *
 * Environment. Where a value is a number, NUMBER@SEED seeds its random numbers; FAKE_IBV_SEED (1) seeds the others.
 *   FAKE_IBV_FABRIC=FILE      the network; without it there is one that only this process and what it forks are in
 *   FAKE_IBV_HOST=NAME        the host of this process (host0); %h: SHUNT_HOSTID, or the name that the system has
 *   FAKE_IBV_DEVICES=SPECS    "mlx0 link=roce mtu=1024; mlx1 ports=2" (one device mlx0); each a name and any of
 *                             link=ib|roce, ports=N, mtu=BYTES, atomic=none|hca|glob, dmabuf=0|1, ece=VENDOR:OPTIONS|0,
 *                             pci=DOMAIN:BUS:DEVICE.FUNCTION, path=FOLDERS (above the device, as
 *                             pci0000:00/0000:00:01.0), numa=N, inline=BYTES, depth=WRS, sges=N, rd=N (reads and
 *                             atomics in flight), cqes=N, speed=N (100 Mb/s), pkeys=P,P..., state=active|down|init,
 *                             sls=MASK (of valid SLs), gids=TYPE@ADDRESS,... with TYPE ib, v1 or v2; "none" leaves an
 *                             index empty; FAKE_IBV_DEVICES= (empty): no device
 *   SHUNT_SYSFS_ROOT=FOLDER   class/infiniband and the devices are written there
 *   FAKE_IBV_HIDE=NAMES       calls that this library refuses as an older one that lacks them: reg_mr_iova2, ece,
 *                             reg_dmabuf_mr, port_speed (they set errno to EOPNOTSUPP; symbols cannot vanish)
 *   FAKE_IBV_FAULTS=FILE      lines, see faults.c, or these lines themselves with ; between them
 *   FAKE_IBV_FIRED=FILE       gets a line for each time that one of them acted
 *   FAKE_IBV_TIME_SCALE=N     times of ACK and RNR timers are divided by N (1)
 *   FAKE_IBV_TIMEOUT_MIN_MS=N but an ACK time-out is not below this (400), for busy machines
 * How it treats data; each is off without its variable:
 *   FAKE_IBV_LATE_READ_US=N   a send's source is read up to N us after it was posted
 *   FAKE_IBV_PIECE_US=N       data lands in pieces of 64 bytes, up to N us apart; from the last to the first, and
 *                             writes among each other, if the region has relaxed ordering. Acknowledged before it has
 *                             landed
 *   FAKE_IBV_ORDERING=none    data for device memory is parked until this NIC serves an RDMA read or an atomic of
 *                             device memory, or FAKE_IBV_PARK_US (100000) have passed. none-all: for all memory
 *   FAKE_IBV_DEVICE_MAPS=TEXT memory whose line in /proc/self/maps has TEXT is device memory, as that of dma-bufs is
 *   FAKE_IBV_PEERMEM=1        and ibv_reg_mr() takes it; else it answers EFAULT
 *   FAKE_IBV_MEMLOCK=BYTES    more than that registered: ENOMEM
 *   FAKE_IBV_CQ_DELAY_US=N    completions come up to N us late, in any order among queues
 *   FAKE_IBV_CQ_PERIOD_US=N   completions come in batches, every N us
 *   FAKE_IBV_BY_POLLS=1       a source is read, and the next pieces land, only after the program's next poll of a queue
 *                             of the device: the program sees the time before, however its threads are scheduled
 *   FAKE_IBV_DROP=N           of 1000 packets N are lost; so may the last acknowledgement before a program ends, and
 *                             its peer fails then, as with real ones: end together, or lose packets by a script
 *   FAKE_IBV_RNR=N            of 1000 messages that need a receive N are answered RNR
 *   FAKE_IBV_ACCESS_ERRORS=N  of 1000 writes, reads and atomics N are refused as if the key were wrong
 *
 * Limits. Reliable connections only: no datagrams, shared receive queues, memory windows, extended QPs and CQs, or
 * registration anew. 4096 QPs, 1024 open devices, 256 ports a fabric; its file takes 128 KB for each QP that was busy,
 * in /dev/shm or wherever it lies. A program must not open and close that file: its locks would go. No congestion, no
 * paths that differ, no SQ_DRAINED event; a device whose CQ overran only says so. Retries take FAKE_IBV_TIMEOUT_MIN_MS
 * times (retry_cnt + 1) at least, and only where something is lost: a peer whose NIC did not come to read what is in
 * front of it is waited for, as long as its process is there. What is posted in one list is there at once. Rates mean
 * nothing.
 *
 * Threads. nic->lock is for what changes rarely (regions, states, lists) and is held by the NIC's thread for a pass
 * over its QPs. Posts and polls do not take it: queues are rings with one atomic count for each side, so that only what
 * the real library orders is ordered, and ThreadSanitizer sees the rest. The NIC stores into the program's memory with
 * relaxed atomics of 8 bytes where it is aligned; a completion is what orders them. What another process asks the NIC
 * for comes after what this program did before its last call of verbs: ThreadSanitizer cannot see the messages, over
 * sockets say, by which the two agreed on it.
 *
 * Functions of verbs return what the real ones return; others 0 or a negative errno.
 */
#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop
#include <pthread.h>
#include "fabric.h"

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list

#define FAKE_EXPORT __attribute__((visibility("default")))

enum {
	FAKE_DEVICES = 16,
	FAKE_PORTS = 4,
	FAKE_SGES = 32,
	FAKE_INLINE = 1024,
	FAKE_MRS = 65536,
	FAKE_ATOMIC_CACHE = 64,
	FAKE_SCRIPT = 2048,            /* text of a fault script in the variable */
	FAKE_WINDOW = 128,             /* packets that are not acknowledged */
	FAKE_LAND_BYTES = 1024 * 1024, /* that were acknowledged and have not landed */
	FAKE_VENDOR = 0x0f0f0f
};

/* ---- config.c ---- */

struct fake_knob {
	uint64_t value;
	_Atomic uint64_t seed;
};

struct fake_config {
	struct fake_knob late_read_us, piece_us, park_us, cq_delay_us, cq_period_us, drop, rnr, access_errors;
	bool park, park_all, peermem, by_polls;
	uint64_t memlock; /* 0: no limit */
	uint64_t time_scale, timeout_min_ms;
	char host[FABRIC_NAME], hide[256], device_maps[128], faults[FAKE_SCRIPT], fired[512], sysfs[512];
};

struct fake_spec {
	char name[FABRIC_NAME], pci[32], path[128];
	uint32_t ports, link_layer, mtu, atomics, dmabuf, ece_vendor, ece_options, inline_max, depth, sges, reads, cqes;
	uint32_t state, sls, guid;
	int numa;
	uint64_t speed;
	uint32_t pkeys[FABRIC_PKEYS];
	struct {
		uint32_t type;
		union ibv_gid gid;
	} gids[FABRIC_GIDS];
};

const struct fake_config *fake_config(void); /* read once */
/* A random number below n (0 if n is 0); from any thread. */
uint64_t fake_random(const struct fake_knob *knob, uint64_t n);
/* True with the knob's chance of 1000. */
bool fake_chance(const struct fake_knob *knob);
bool fake_hidden(const char *name);
/* The devices of FAKE_IBV_DEVICES: how many, or a negative errno after a line on stderr. */
int fake_specs(struct fake_spec specs[FAKE_DEVICES]);
/* An entry of the table of a port: ports of a device differ in the last byte. */
union ibv_gid fake_spec_gid(const struct fake_spec *spec, uint32_t port, uint32_t index);
void fake_sysfs_write(const struct fake_spec *spec);

/* ---- device.c ---- */

struct fake_device {
	struct ibv_device verbs;
	struct fake_spec spec;
	_Atomic int users; /* lists and contexts */
};

struct fake_mr {
	struct ibv_mr verbs;
	uint64_t iova;
	unsigned access;
	bool device;
	void *map; /* of a dma-buf */
	size_t map_bytes;
};

struct fake_parked {
	struct fake_parked *next;
	char *to;
	uint32_t bytes;
	int64_t until;
	uint64_t data[];
};

struct fake_qp;

struct fake_nic {
	struct verbs_context verbs;
	struct fake_device *device;
	uint32_t nic; /* of the fabric */
	uint32_t ports[FAKE_PORTS];
	uint32_t downs[FAKE_PORTS], gid_changes[FAKE_PORTS], kills[FAKE_PORTS], fatals[FAKE_PORTS];
	bool up[FAKE_PORTS];
	pthread_t thread;
	pthread_mutex_t lock;
	_Atomic int waiting; /* threads that want the lock */
	_Atomic int stop;
	_Atomic uint64_t polls; /* counted with FAKE_IBV_BY_POLLS */
	int event_fd;           /* the end of async_fd in which the NIC writes */
	/* Under the lock: */
	struct fake_qp *qps;
	struct fake_cq *cqs;
	struct fake_mr *mrs[FAKE_MRS];
	uint32_t mr_next;
	uint64_t locked_bytes;
	struct fake_parked *parked, **parked_end;
	int64_t next;         /* when the next pass is wanted at the latest */
	int64_t sleeps_until; /* what the thread takes that for */
	struct packet packet;
};

static inline struct fake_nic *fake_nic_of(struct ibv_context *c)
{
	return (struct fake_nic *)((char *)c - offsetof(struct fake_nic, verbs.context));
}

void fake_lock(struct fake_nic *nic);
void fake_unlock(struct fake_nic *nic);
/* Under the lock: have another pass at that time or before. */
static inline void fake_again(struct fake_nic *nic, int64_t at)
{
	if (at < nic->next)
		nic->next = at;
}
static inline uint64_t fake_polls(struct fake_nic *nic)
{
	return atomic_load_explicit(&nic->polls, memory_order_relaxed);
}
/* The program polled since then, or nobody waits for that. */
static inline bool fake_polled(struct fake_nic *nic, uint64_t polls)
{
	return !fake_config()->by_polls || fake_polls(nic) != polls;
}
static inline struct fabric_port *fake_port(const struct fake_nic *nic, uint32_t number)
{
	return &fabric_get()->ports[nic->ports[number - 1]];
}
int fake_query_port(struct ibv_context *c, uint8_t number, struct ibv_port_attr *attr, size_t bytes);
struct ibv_gid_entry fake_gid(const struct fake_nic *nic, uint32_t number, uint32_t index);

/* Calls that <infiniband/verbs.h> does not declare. */
FAKE_EXPORT const char *ibv_get_sysfs_path(void);
FAKE_EXPORT int ibv_query_port_speed(struct ibv_context *c, uint32_t port, uint64_t *speed_p);

/* ---- mr.c; under the lock ---- */

struct fake_span {
	uint32_t key;
	bool remote; /* the key is that which peers use */
	uint64_t address, bytes;
};

/* The memory behind a key if the access is allowed, else NULL. */
char *fake_mr_find(
    struct fake_nic *nic, const struct ibv_pd *pd, struct fake_span span, unsigned access, struct fake_mr **mr_p);

/* ---- cq.c ---- */

struct fake_cqe {
	struct ibv_wc wc;
	struct fake_qp *qp;
	uint64_t gives_back; /* slots of its queue that polling it gives back, counted for ever; 0: none */
	bool send;           /* of the send queue */
	bool solicited;
};

struct fake_cq {
	struct ibv_cq verbs;
	struct fake_cq *next; /* of the NIC's */
	uint64_t serial;
	pthread_mutex_t poll;
	struct fake_cqe *entries;
	uint32_t size;
	_Atomic uint64_t head, tail;
	_Atomic int armed; /* 1: for any, 2: for solicited ones */
	_Atomic int users; /* QPs */
	bool overrun;
	uint32_t events; /* sent and read, under verbs.mutex */
	uint32_t async_events;
};

struct fake_channel {
	struct ibv_comp_channel verbs;
	int write_fd;
};

int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wcs);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* By the NIC, under its lock. */
void fake_cq_push(struct fake_cq *cq, const struct fake_cqe *e);
/* Takes the completions of a QP out; under the NIC's lock. */
void fake_cq_clean(struct fake_cq *cq, const struct fake_qp *qp);

/* ---- event.c ---- */

/* Of a new QP or CQ: what an event in a pipe is about may have ended, and its memory be another's. */
uint64_t fake_serial(void);
/* Counts an event of a CQ (`async`: an asynchronous one); false: the CQ is no more. */
bool fake_cq_event_read(struct fake_nic *nic, struct fake_cq *cq, uint64_t serial, bool async);
void fake_event_port(struct fake_nic *nic, uint32_t port, enum ibv_event_type type);
void fake_event_qp(struct fake_qp *qp, enum ibv_event_type type);
void fake_event_cq(struct fake_cq *cq, enum ibv_event_type type);
/* Waits, with an end, until the count that the program acknowledged is `events`; 0 or EBUSY after a line. */
int fake_events_wait(pthread_mutex_t *mutex, const uint32_t *acked, const uint32_t *events, const char *what);

/* ---- qp.c ---- */

struct fake_send {
	struct ibv_send_wr wr; /* sg_list and next are not used */
	struct ibv_sge sges[FAKE_SGES];
	uint64_t bytes;
	/* Of the NIC: */
	uint64_t psn; /* of its first packet */
	uint32_t packets;
	uint32_t got; /* packets of a read's answer */
	bool begun, read;
	int64_t not_before;
	uint64_t polls; /* when it began */
	uint64_t value; /* an atomic's answer */
	uint8_t inline_data[FAKE_INLINE];
};

struct fake_recv {
	uint64_t wr_id;
	int sges;
	struct ibv_sge sge[FAKE_SGES];
};

/* Something that happens at the target when all before it in its QP has happened. */
enum fake_effect_kind { EFFECT_DATA, EFFECT_RECEIVED, EFFECT_READ, EFFECT_ATOMIC, EFFECT_REFUSAL };

struct fake_effect {
	struct fake_effect *next;
	enum fake_effect_kind kind;
	char *to; /* of EFFECT_DATA */
	uint32_t bytes, done;
	bool relaxed, device;
	struct fake_cqe cqe;
	/* Reads and atomics. */
	uint64_t psn, address, compare, swap;
	uint32_t rkey, mtu;
	uint8_t op; /* of a refusal: the NAK */
	uint64_t data[];
};

struct fake_delayed {
	struct fake_delayed *next;
	int64_t at;
	struct fake_cq *cq;
	struct fake_cqe cqe;
};

struct fake_completions {
	struct fake_delayed *first, **end;
	int64_t last; /* when the newest is due */
};

struct fake_cached {
	uint64_t psn, value;
	bool valid;
};

struct fake_qp {
	struct ibv_qp verbs;
	uint64_t serial;
	struct fake_nic *nic;
	struct fake_qp *next;
	struct fabric_qp *shared;
	uint32_t entry; /* of the fabric */
	uint32_t life;
	struct ibv_qp_cap cap;
	bool sig_all;
	struct ibv_qp_attr attr;
	struct ibv_ece ece;
	bool ece_set;
	_Atomic int state; /* as verbs.state; posts read it */
	uint32_t events;

	pthread_mutex_t send_lock, recv_lock; /* of posts */
	struct fake_send *sends;
	struct fake_recv *recvs;
	_Atomic uint64_t send_tail, send_given_back, recv_tail, recv_given_back;

	/* The requester, under the NIC's lock. Counts are for ever; send_done: completed; send_at: the next to send. */
	uint64_t send_done, send_at, send_begun;
	uint64_t psn_una, psn_next, psn_end, psn_acked;
	uint32_t reads_out;
	uint32_t retries, rnr_retries;
	int64_t timer, rnr_until; /* 0: off */
	bool broken;              /* the WR at send_done fails with this: */
	enum ibv_wc_status broken_status;

	/* The responder. */
	uint64_t head;      /* in the peer's ring; UINT64_MAX: where the last reader was */
	uint64_t recv_head; /* the next receive */
	uint64_t psn_expected;
	bool ack_due, nak_sent;
	bool refusing; /* a refusal is among the effects: no request is taken any more */
	uint8_t nak, nak_timer;
	uint64_t nak_psn;
	uint64_t received, written;
	char *write_to;
	struct fake_mr *write_mr;
	struct fake_effect *effects, **effects_end;
	uint64_t effect_bytes;
	uint32_t effect_reads;
	int64_t land_next;
	uint64_t land_polls;
	struct fake_cached cache[FAKE_ATOMIC_CACHE];
	uint32_t cache_next;
	struct fake_completions send_completions, recv_completions;
};

static inline struct fake_qp *fake_qp_of(struct ibv_qp *qp)
{
	return (struct fake_qp *)qp;
}

int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p);
/* Under the NIC's lock. */
void fake_qp_error(struct fake_qp *qp); /* and flush */
void fake_qp_reset(struct fake_qp *qp);
bool fake_modify_allowed(enum ibv_qp_state from, enum ibv_qp_state to, int mask);

/* ---- requester.c, responder.c, land.c, nic.c; by the NIC, under its lock. True: something was done ---- */

bool fake_requester(struct fake_qp *qp, int64_t now);
void fake_requester_answer(struct fake_qp *qp, const struct packet *p, int64_t now);
void fake_send_complete(struct fake_qp *qp, enum ibv_wc_status status); /* the WR at send_done */
void fake_requester_flush(struct fake_qp *qp);

void fake_responder_request(struct fake_qp *qp, struct packet *p, int64_t now);
bool fake_responder_answers(struct fake_qp *qp);
void fake_responder_refuses(struct fake_qp *qp, const struct fake_effect *e); /* the QP's end */
void fake_responder_flush(struct fake_qp *qp);

void fake_copy_in(char *to, const void *from, size_t bytes);  /* into the program's memory */
void fake_copy_out(void *to, const char *from, size_t bytes); /* out of it */
bool fake_land(struct fake_qp *qp, int64_t now);
void fake_land_add(struct fake_qp *qp, struct fake_effect *e);
void fake_land_all(struct fake_qp *qp); /* what was acknowledged arrives, whatever happens to the QP */
void fake_parked_release(struct fake_nic *nic, int64_t now, bool all);

extern _Atomic uint64_t fake_calls;
/* In each call of the program: orders what it did before, and nothing after. */
static inline void fake_called(void)
{
	atomic_fetch_add_explicit(&fake_calls, 1, memory_order_release);
}
/* Not 0: no room. What is lost on the way counts as sent. */
int fake_transmit(struct fake_qp *qp, struct packet *p);
void fake_complete(struct fake_qp *qp, bool send, struct fake_cqe *e);
bool fake_completions_due(struct fake_qp *qp, int64_t now);
void fake_completions_drop(struct fake_qp *qp);
int fake_nic_start(struct fake_nic *nic);
void fake_nic_stop(struct fake_nic *nic);

/* ---- faults.c ---- */

/* The lines that are due, with one packet more on the link of `here` and `there`, if these are not NULL. */
void fake_faults_due(const struct fabric_port *here, const struct fabric_port *there);
/* In a pass: what became of the NIC's ports. True: it must stand still. */
bool fake_faults_look(struct fake_nic *nic, int64_t now);

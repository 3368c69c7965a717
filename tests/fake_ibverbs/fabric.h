/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The network: one file that all processes map. It has the ports of all hosts, the NICs (one for each opened device of
 * each process), the QPs, and for each QP one ring of packets, which its own NIC writes and the NIC of its peer reads.
 * Requests and answers share the ring. Every word that two processes touch is atomic.
 *
 * Entries are given out under a lock of the file, which dies with the process that holds it. An entry of a process that
 * died is found by its lock on a byte of the file, and taken when there is no free one. A freed QP rests for a second:
 * who still reads its ring finds another number afterwards, and drops what it read.
 *
 * Functions return 0 or a negative errno, and log what they detect.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FABRIC_QPS = 4096,
	FABRIC_NICS = 1024,
	FABRIC_PORTS = 256,
	FABRIC_GIDS = 16,
	FABRIC_PKEYS = 4,
	FABRIC_FAULTS = 64,
	FABRIC_NAME = 64,
	FABRIC_RING_WORDS = 16384, /* 128 KB: 31 packets of the largest MTU */
	FABRIC_MTU = 4096
};

enum fabric_gid_type { GID_NONE, GID_IB, GID_ROCE_V1, GID_ROCE_V2 };

struct fabric_gid {
	_Atomic uint64_t high, low; /* bytes as in memory */
	_Atomic uint32_t type;
};

/* A port of a device of a host. Names are constant from the time at which `used` is set. */
struct fabric_port {
	_Atomic uint32_t used;
	char host[FABRIC_NAME], device[FABRIC_NAME];
	uint32_t number; /* 1, 2, ... */
	_Atomic uint32_t lid, link_layer, active_mtu;
	struct fabric_gid gids[FABRIC_GIDS];
	_Atomic uint32_t pkeys[FABRIC_PKEYS];
	/* What fault scripts did (faults.c). Times are of fabric_now(). */
	_Atomic uint32_t down, drop, corrupt; /* until up; packets to lose; status + 1 of the next completion */
	_Atomic uint32_t downs, kills, gid_changes, fatals; /* how often */
	_Atomic int64_t down_until, stall_until;
	_Atomic uint64_t packets; /* that came to this link, lost ones too */
};

struct fabric_nic {
	_Atomic uint32_t used;
	_Atomic uint32_t bell, asleep; /* a futex: it changes when there is work */
};

enum { FABRIC_QP_DEAF, FABRIC_QP_READY }; /* READY: in RTR, RTS or SQD */

struct fabric_qp {
	_Atomic uint32_t number;     /* 0: free */
	_Atomic uint32_t generation; /* of the entry; a part of the number */
	_Atomic uint32_t nic, port;
	_Atomic uint32_t ready;
	_Atomic uint32_t life; /* + 1 at each RESET: what was sent to an earlier life is dropped */
	_Atomic uint32_t dest, mtu, pkey;
	_Atomic uint32_t dest_lid, global, sgid_type;
	_Atomic uint64_t dgid_high, dgid_low;
	_Atomic int64_t freed;
	_Atomic uint32_t blocked;    /* the sender waits for room */
	_Atomic uint64_t head, tail; /* words, counted for ever */
};

struct fabric {
	_Atomic uint32_t ready;
	uint32_t bytes;
	int64_t began;                                /* of CLOCK_MONOTONIC */
	_Atomic uint32_t faults_fired[FABRIC_FAULTS]; /* how often */
	_Atomic int64_t faults_next[FABRIC_FAULTS];   /* since began: of those that act again by time; 0: the first */
	struct fabric_port ports[FABRIC_PORTS];
	struct fabric_nic nics[FABRIC_NICS];
	struct fabric_qp qps[FABRIC_QPS];
	_Atomic uint64_t rings[FABRIC_QPS][FABRIC_RING_WORDS];
};

enum packet_op { OP_WRITE = 1, OP_SEND, OP_READ, OP_ADD, OP_SWAP, OP_ACK, OP_NAK, OP_READ_DATA, OP_ATOMIC_VALUE };
enum { PACKET_FIRST = 1, PACKET_LAST = 2, PACKET_IMM = 4, PACKET_SOLICITED = 8 };
enum nak { NAK_SEQUENCE = 1, NAK_ACCESS, NAK_INVALID, NAK_OPERATION, NAK_RNR };

struct packet {
	uint32_t words; /* all of it in the ring */
	uint8_t op, flags, reads, nak;
	uint32_t source, life; /* the sender's number; the receiver's life */
	uint32_t bytes;        /* of payload */
	uint32_t total;        /* bytes of the message; of a NAK: the code of the RNR timer */
	uint64_t psn;
	uint64_t address;
	uint32_t rkey, imm;
	uint64_t compare, swap; /* swap also: what to add, and the old value in an answer */
	uint64_t payload[FABRIC_MTU / 8];
};

enum { PACKET_HEADER_WORDS = offsetof(struct packet, payload) / 8 };

/* The fabric of FAKE_IBV_FABRIC (a file of this process alone without it), or NULL after a line on stderr. */
struct fabric *fabric_get(void);
int64_t fabric_now(void); /* nanoseconds, the same clock in all processes */

/* The entry of a port; made if new. Negative errno: no room. */
int fabric_port(const char *host, const char *device, uint32_t number);
int fabric_nic_take(void);
void fabric_nic_give(uint32_t nic);
bool fabric_nic_ours(uint32_t nic); /* of this process */
/* An entry with a number; negative errno: no room. */
int fabric_qp_take(uint32_t nic, uint32_t port);
void fabric_qp_give(uint32_t qp);
/* The entry that has the number, or NULL. */
struct fabric_qp *fabric_qp_find(uint32_t number);
/* The entry that had the number last: what a QP sent before its end still arrives. */
struct fabric_qp *fabric_qp_last(uint32_t number);

void fabric_ring(uint32_t nic);                                /* the NIC's bell */
void fabric_sleep(uint32_t nic, uint32_t bell, int64_t until); /* at most until then, not if the bell changed */

bool fabric_up(const struct fabric_port *port, int64_t now);
/* True: what reached the peer waits for its NIC, which is there and has had no turn. Nothing of it is lost. */
bool fabric_unread(struct fabric_qp *from, struct fabric_qp *to, int64_t now);
/* True: a packet of these bytes that `from` sends now reaches its peer. Fault counters count it. */
bool fabric_reaches(struct fabric_qp *from, struct fabric_qp *to, uint32_t bytes);
/* False: not now; the NIC's bell rings when there is. */
bool fabric_room(struct fabric_qp *from, const struct packet *p);
void fabric_put(struct fabric_qp *from, struct packet *p);
/* True: the next packet in the ring of `from` after *head_p, which is moved. */
bool fabric_take(struct fabric_qp *from, uint32_t number, uint64_t *head_p, struct packet *p);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The messages on the sockets of the provider "tcp", in the byte order of the hosts, which are little-endian. A number
 * that changes here raises TCP_VERSION.
 *
 * A connection begins with a challenge by the side that was connected to, a hello with the proof of the side that
 * connects, and an answer with the other proof. Then heads follow, each with its payload.
 */
#include <stdint.h>
#include "base/hash.h"

#define TCP_MAGIC 0x746e6853u
#define TCP_VERSION 1u
#define TCP_NONCE 16
#define TCP_MAX_DATA_SOCKETS 16

/* struct shunt_net_blob begins with it. */
struct tcp_blob {
	uint32_t magic, version;
	uint64_t id; /* of the endpoint; random */
	uint16_t family;
	uint16_t port;         /* as in a sockaddr: big-endian */
	uint16_t data_sockets; /* that it would have */
	uint16_t zero;
	uint8_t address[16]; /* IPv4: the first 4 */
};

struct tcp_challenge {
	uint32_t magic, version;
	uint8_t nonce[TCP_NONCE];
};

struct tcp_hello {
	uint32_t magic, version;
	uint64_t to, from; /* endpoints */
	uint32_t index;    /* of the socket: 0 has signals, the others data */
	uint32_t sockets;
	uint8_t nonce[TCP_NONCE];
	uint8_t mac[SHUNT_MAC_BYTES]; /* of the challenge's nonce and all before it */
};

enum tcp_status { TCP_WELCOME, TCP_NO_PROOF, TCP_NO_ENDPOINT, TCP_NOT_NOW };

struct tcp_answer {
	uint32_t magic, status;       /* enum tcp_status */
	uint8_t mac[SHUNT_MAC_BYTES]; /* of the hello; 0 if not welcome */
};

enum tcp_kind {
	/* On socket 0: a put with its payload, and its signal. */
	TCP_PUT = 1,
	/* On socket 0: a put whose payload comes in pieces on other sockets. bytes: of all pieces. */
	TCP_LARGE,
	/* On the others: a piece of a large put. */
	TCP_PIECE,
	/* On socket 0: nothing more comes. */
	TCP_END,
};

#define TCP_PACKETS 1 /* flag: SHUNT_NET_PACKETS */

struct tcp_head {
	uint8_t kind, flags;
	uint16_t channel, count; /* count 0: no signal */
	uint16_t offset_high;
	uint32_t offset_low;
	uint32_t memory; /* names registered memory: struct tcp_device */
	uint32_t bytes;
	uint32_t put; /* large puts and their pieces: the index among the endpoint's large puts, modulo 2^32 */
};

/* Offsets beyond are out of any memory's bounds. */
#define TCP_MAX_OFFSET ((UINT64_C(1) << 48) - 1)

static inline uint64_t tcp_head_offset(const struct tcp_head *head)
{
	return (uint64_t)head->offset_high << 32 | head->offset_low;
}

static inline void tcp_head_set_offset(struct tcp_head *head, uint64_t offset)
{
	uint64_t o = offset > TCP_MAX_OFFSET ? TCP_MAX_OFFSET : offset;

	head->offset_high = (uint16_t)(o >> 32);
	head->offset_low = (uint32_t)o;
}

_Static_assert(sizeof(struct tcp_blob) == 40, "no holes");
_Static_assert(sizeof(struct tcp_challenge) == 24, "no holes");
_Static_assert(sizeof(struct tcp_hello) == 80, "no holes");
_Static_assert(sizeof(struct tcp_answer) == 40, "no holes");
_Static_assert(sizeof(struct tcp_head) == 24, "no holes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "heads are sent as they lie in memory");

/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_BOOTSTRAP_WIRE_H
#define SHUNT_TRANSPORT_BOOTSTRAP_WIRE_H
/*
 * The unique id and the messages between a rank and the root. All structs have a fixed size. All ranks are on one host,
 * so byte order is the host's; a foreign one shows as a wrong magic.
 *
 *   root -> rank  challenge  the root's nonce
 *   rank -> root  hello      identity of the rank; mac over (root's nonce, hello)
 *   root -> rank  answer     any number of BOOTSTRAP_WAIT (text: the missing ranks), then one BOOTSTRAP_DONE;
 *                            mac over (rank's nonce, answer)
 *
 * The layout of hello up to version, and its mac, never change: they tell another version from a stranger.
 */
#include <stdint.h>
#include "transport/bootstrap/bootstrap.h"
#include "base/hash.h"
#include "transport/net/netif.h"

#define BOOTSTRAP_MAGIC UINT64_C(0x746f6f62746e7568) /* "huntboot" */
#define BOOTSTRAP_VERSION 1
#define BOOTSTRAP_NONCE 32
#define BOOTSTRAP_SECRET 32

struct bootstrap_id {
	uint64_t magic;
	uint32_t version;
	uint8_t from_env; /* from NCCL_COMM_ID: rank 0 starts the root */
	uint8_t family;   /* 4 or 6 */
	uint16_t port;    /* network order, as in sockaddr */
	uint32_t scope;   /* of an IPv6 link-local address */
	uint8_t addr[16]; /* IPv4: the first four bytes */
	uint8_t secret[BOOTSTRAP_SECRET];
	uint8_t host[SHUNT_HOST_BYTES]; /* of the root; zero if from_env */
	uint8_t zero[SHUNT_BOOTSTRAP_ID_BYTES - 84];
};
_Static_assert(sizeof(struct bootstrap_id) == SHUNT_BOOTSTRAP_ID_BYTES, "the unique id is NCCL's size");

struct bootstrap_challenge {
	uint64_t magic;
	uint32_t version, zero;
	uint8_t nonce[BOOTSTRAP_NONCE];
};

struct bootstrap_hello {
	uint64_t magic;
	uint32_t version;
	int32_t rank, nranks;
	uint32_t pid; /* the root's own process is answered last */
	uint8_t nonce[BOOTSTRAP_NONCE];
	uint8_t host[SHUNT_HOST_BYTES];
	char shunt[24];               /* version string */
	uint8_t mac[SHUNT_MAC_BYTES]; /* must be last */
};

enum bootstrap_kind { BOOTSTRAP_WAIT, BOOTSTRAP_DONE };

struct bootstrap_answer {
	uint64_t magic;
	uint32_t version, kind;
	int32_t status;               /* of BOOTSTRAP_DONE: 0 or -errno */
	char text[172];               /* for the log */
	uint8_t mac[SHUNT_MAC_BYTES]; /* must be last */
};

/* Starts the thread of an id's root (root.c), which owns listen_fd from then on, also on an error. 0 or -errno. */
int shunt_bootstrap_root_start(const struct bootstrap_id *id, int listen_fd);
#endif

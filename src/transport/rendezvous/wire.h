/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_RENDEZVOUS_WIRE_H
#define SHUNT_TRANSPORT_RENDEZVOUS_WIRE_H
/*
 * Messages between the ranks of a rendezvous. All structs have a fixed size. Both ends are on one host, so byte order
 * is the host's.
 *
 *   root   -> member challenge   the root's nonce
 *   member -> root   hello       identity of the member; mac over (root's nonce, hello)
 *   root   -> member welcome     outcome of the join; mac over (member's nonce, welcome)
 *   then per round:
 *   member -> root   contrib     + bytes; the descriptor with the contrib's first byte
 *   root   -> member result      + one byte per rank (1: its descriptor is in this message) + nranks x bytes
 */
#include <stdint.h>
#include "base/hash.h"
#include "base/id.h"

#define RDZV_MAGIC UINT64_C(0x7465656d746e7568) /* "huntmeet" */
#define RDZV_VERSION 1
#define RDZV_NONCE 32

struct rdzv_challenge {
	uint64_t magic;
	uint32_t version, zero;
	uint8_t nonce[RDZV_NONCE];
};

struct rdzv_hello {
	uint64_t magic;
	uint32_t version;
	int32_t member, nmembers, rank, nranks;
	uint32_t zero;
	uint8_t nonce[RDZV_NONCE];
	uint8_t mac[SHUNT_MAC_BYTES]; /* must be last */
};

struct rdzv_welcome {
	uint64_t magic;
	uint32_t version;
	int32_t status;
	uint8_t mac[SHUNT_MAC_BYTES]; /* must be last */
};

struct rdzv_contrib {
	uint64_t magic, bytes;
	uint32_t round;
	uint8_t uses_fds, has_fd, zero[2];
};

struct rdzv_result {
	uint64_t magic, bytes;
	uint32_t round;
	int32_t status;
};

/* mac of a message for the peer that sent `nonce` (mac.c). The message's own field mac does not count. */
void shunt_rendezvous_mac_hello(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id,
    const uint8_t nonce[RDZV_NONCE], const struct rdzv_hello *hello);
void shunt_rendezvous_mac_welcome(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id,
    const uint8_t nonce[RDZV_NONCE], const struct rdzv_welcome *welcome);
#endif

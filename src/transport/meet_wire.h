/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_MEET_WIRE_H
#define SHUNT_TRANSPORT_MEET_WIRE_H
/*
 * What travels between the ranks of a meet. All structs are of fixed size; both ends are on one host, so byte order is
 * the host's.
 *
 *   hub   -> spoke  challenge   the hub's nonce
 *   spoke -> hub    hello       who it is; mac over (hub's nonce, hello)
 *   hub   -> spoke  welcome     the outcome of join; mac over (spoke's nonce, welcome)
 *   then per round:
 *   spoke -> hub    part        + bytes, the descriptor with the part's first byte
 *   hub   -> spoke  result      + one byte per rank (1: its descriptor is in this message) + nranks x bytes
 */
#include <stdint.h>
#include "core/hash.h"
#include "core/id.h"

#define MEET_MAGIC UINT64_C(0x7465656d746e7568) /* "huntmeet" */
#define MEET_VERSION 1
#define MEET_NONCE 32

struct meet_challenge {
	uint64_t magic;
	uint32_t version, zero;
	uint8_t nonce[MEET_NONCE];
};

struct meet_hello {
	uint64_t magic;
	uint32_t version;
	int32_t slot, nslots, rank, nranks;
	uint32_t zero;
	uint8_t nonce[MEET_NONCE];
	uint8_t mac[SHUNT_MAC_BYTES]; /* last */
};

struct meet_welcome {
	uint64_t magic;
	uint32_t version;
	int32_t status;
	uint8_t mac[SHUNT_MAC_BYTES]; /* last */
};

struct meet_part {
	uint64_t magic, bytes;
	uint32_t round;
	uint8_t uses_fds, has_fd, zero[2];
};

struct meet_result {
	uint64_t magic, bytes;
	uint32_t round;
	int32_t status;
};

/* The proof of what is said, to whom gave the nonce (meet_proof.c). What is in its own field mac does not matter. */
void shunt_meet_prove_hello(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id, const uint8_t nonce[MEET_NONCE],
    const struct meet_hello *hello);
void shunt_meet_prove_welcome(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id, const uint8_t nonce[MEET_NONCE],
    const struct meet_welcome *welcome);
#endif

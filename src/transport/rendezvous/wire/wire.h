/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The unique id, and the messages of a rendezvous, which are the same over Unix and TCP sockets. All structs have a
 * fixed size and begin with the same header. Byte order is the sender's; a foreign one shows as a wrong magic.
 *
 *   root   -> member challenge   the root's nonce
 *   member -> root   hello       identity of the member; mac over (root's nonce, hello)
 *   root   -> member answer      any number of WAIT (text: the missing ranks), then one DONE, and behind it a row for
 *                                each rank if its status is 0; macs over (member's nonce, answer or rows)
 *   root   -> member busy        a header alone: the place is needed for others, try again
 * A root that looks whether a member lives gets a challenge from it, too, and says a hello of the kind WATCH.
 *
 * Then, per round, on the connections that are kept:
 *   member -> root   contrib     + bytes; the descriptor with the contrib's first byte
 *   root   -> member result      + one byte per rank (1: its descriptor is in this message) + nranks x bytes
 * Over TCP each ends with a mac of its header and its bytes, under a key of the connection (rdzv_session).
 * Over several hosts (host_table.h) each host has such a round over Unix sockets, and its root is a member of a second
 * one over TCP, whose bytes are those of all ranks of its host.
 *
 * The header, the size of hello and the place of its mac never change: they tell another version from a stranger.
 */
#include <stdbool.h>
#include <stdint.h>
#include "base/hash.h"
#include "transport/rendezvous/wire/row.h"

#define RDZV_MAGIC UINT64_C(0x766472746e756873) /* "shuntrdv" */
#define RDZV_VERSION 4
#define RDZV_NONCE 32
#define RDZV_SECRET 32

enum rdzv_kind {
	RDZV_CHALLENGE = 1,
	RDZV_HELLO,
	RDZV_WATCH,
	RDZV_BUSY,
	RDZV_WAIT,
	RDZV_DONE,
	RDZV_CONTRIB,
	RDZV_RESULT,
};

struct rdzv_head {
	uint64_t magic;
	uint32_t version, kind;
};

static inline struct rdzv_head rdzv_head(enum rdzv_kind kind)
{
	return (struct rdzv_head){ RDZV_MAGIC, RDZV_VERSION, kind };
}

static inline bool rdzv_head_is(const struct rdzv_head *head, enum rdzv_kind kind)
{
	return head->magic == RDZV_MAGIC && head->version == RDZV_VERSION && head->kind == kind;
}

struct rdzv_unique_id {
	uint64_t magic;
	uint32_t version;
	uint8_t from_env; /* from NCCL_COMM_ID: rank 0 starts the server */
	uint8_t family;   /* 4 or 6 */
	uint16_t port;    /* network order, as in sockaddr */
	uint32_t scope;   /* of an IPv6 link-local address */
	uint8_t addr[16]; /* IPv4: the first four bytes */
	uint8_t secret[RDZV_SECRET];
	uint8_t host[SHUNT_HOST_BYTES]; /* of the server; zero if from_env */
	uint8_t zero[SHUNT_BOOTSTRAP_ID_BYTES - 84];
};
_Static_assert(sizeof(struct rdzv_unique_id) == SHUNT_BOOTSTRAP_ID_BYTES, "the unique id is NCCL's size");

struct rdzv_challenge {
	struct rdzv_head head;
	uint8_t nonce[RDZV_NONCE];
};

struct rdzv_hello {
	struct rdzv_head head; /* HELLO or WATCH */
	int32_t member, nmembers, rank, nranks;
	uint32_t pid;    /* the root's own process is answered last */
	uint32_t caller; /* random, the same in all calls of one join, which may be made again; 0: none */
	uint8_t nonce[RDZV_NONCE];
	uint8_t host[SHUNT_HOST_BYTES];
	char shunt[24];               /* version string */
	uint8_t mac[SHUNT_MAC_BYTES]; /* must be last */
};

struct rdzv_answer {
	struct rdzv_head head;             /* WAIT or DONE */
	int32_t status;                    /* of DONE: 0 or -errno */
	uint32_t nrows;                    /* that follow */
	char text[168];                    /* for the log */
	uint8_t rows_mac[SHUNT_MAC_BYTES]; /* of struct shunt_rendezvous_row[nrows] */
	uint8_t mac[SHUNT_MAC_BYTES];      /* must be last */
};

struct rdzv_contrib {
	struct rdzv_head head;
	uint64_t bytes;
	uint32_t round;
	uint8_t uses_fds, has_fd, zero[2];
	int32_t status, culprit; /* -errno: the member's host has failed, because of this rank; -1: of none */
};

struct rdzv_result {
	struct rdzv_head head;
	uint64_t bytes;
	uint32_t round;
	int32_t status, culprit;
	uint32_t zero;
};

_Static_assert(sizeof(struct rdzv_head) == 16 && sizeof(struct rdzv_challenge) == 48 &&
        sizeof(struct rdzv_hello) == 144 && sizeof(struct rdzv_answer) == 256 && sizeof(struct rdzv_contrib) == 40 &&
        sizeof(struct rdzv_result) == 40 && sizeof(struct shunt_rendezvous_row) == 32,
    "messages have no padding");

/* ---- proofs (proof.c): keyed hashes of the other side's nonce and the message */

/* A secret that all ranks share. */
struct rdzv_key {
	uint8_t bytes[RDZV_SECRET];
	size_t n; /* 16 or more */
};

struct rdzv_key rdzv_key(const void *secret, size_t bytes);
/* Fills head, nonce, host, pid, shunt; the caller then fills the rest and signs. 0 or -errno. */
int rdzv_hello_init(struct rdzv_hello *hello, enum rdzv_kind kind, const struct rdzv_key *key);
void rdzv_hello_sign(struct rdzv_hello *hello, const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE]);
/* True: the sender of the hello, of whatever version, knows the key. */
bool rdzv_hello_proves(const struct rdzv_hello *hello, const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE]);
void rdzv_answer_sign(struct rdzv_answer *answer, const struct shunt_rendezvous_row *rows, const struct rdzv_key *key,
    const uint8_t nonce[RDZV_NONCE]);
/* The answer without its rows, then the rows. */
bool rdzv_answer_proves(const struct rdzv_answer *answer, const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE]);
/* The key of a connection over TCP. */
void rdzv_session(uint8_t session[RDZV_SECRET], const struct rdzv_key *key, const uint8_t root_nonce[RDZV_NONCE],
    const uint8_t member_nonce[RDZV_NONCE]);
/* Of a message with this header and these bytes. */
void rdzv_message_mac(
    uint8_t mac[SHUNT_MAC_BYTES], const uint8_t session[RDZV_SECRET], struct shunt_bytes head, struct shunt_bytes body);
bool rdzv_rows_prove(const struct rdzv_answer *answer, const struct shunt_rendezvous_row *rows,
    const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE]);

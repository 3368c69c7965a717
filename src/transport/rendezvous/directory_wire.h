/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Messages between a process and a directory, after a join as of a rank that is alone (wire/wire.h): a request, and its
 * reply with rows. Each ends with a mac under the connection's key, and has a number that goes up, so that none can be
 * said twice.
 */
#include "base/id.h"
#include "transport/rendezvous/directory.h"
#include "transport/rendezvous/wire/wire.h"

#define RDZV_DIRECTORY_MAGIC UINT32_C(0x73646873) /* "shds" */
#define RDZV_DIRECTORY_VERSION 2

enum rdzv_directory_what {
	RDZV_DIRECTORY_REGISTER = 1,
	RDZV_DIRECTORY_LEAVE,
	RDZV_DIRECTORY_ASK,
	RDZV_DIRECTORY_OFFER, /* where the member listens for the roots of other hosts */
	RDZV_DIRECTORY_FIND,  /* where `wanted` does; in the first row. -EAGAIN: it has not said so yet */
};

struct rdzv_directory_request {
	uint32_t what, number;
	struct shunt_id id;
	int32_t member, nmembers;
	int32_t wanted, zero;
	struct shunt_host_address at; /* of an offer */
	char name[32];                /* of the host */
	uint8_t mac[SHUNT_MAC_BYTES];
};

struct rdzv_directory_row {
	uint8_t host[SHUNT_HOST_BYTES]; /* zero: missing */
	struct shunt_host_address at;
	char name[32];
};

struct rdzv_directory_reply {
	uint32_t number;
	int32_t status;
	uint32_t nrows, zero;
	struct rdzv_directory_row rows[SHUNT_DIRECTORY_MAX_MEMBERS];
	uint8_t mac[SHUNT_MAC_BYTES];
};

_Static_assert(sizeof(struct rdzv_directory_request) == 128 && sizeof(struct rdzv_directory_row) == 72 &&
        sizeof(struct rdzv_directory_reply) == 48 + 72 * SHUNT_DIRECTORY_MAX_MEMBERS,
    "messages have no padding");
_Static_assert(sizeof(struct shunt_directory_tail) == 40, "between NCCL's part of an id and that of ncclCommGrow");

/* The key of a directory's connections, and the name of its Unix socket. */
static inline struct rdzv_key rdzv_directory_key(const struct shunt_directory_tail *tail)
{
	return rdzv_key(tail->secret, sizeof(tail->secret));
}
static inline struct shunt_id rdzv_directory_id(const struct shunt_directory_tail *tail)
{
	return shunt_id_derive(tail->secret, sizeof(tail->secret), "directory", 0, 0);
}

/* Starts a directory (directory_server.c). 0: *tail_p leads to it. */
int rdzv_directory_start(struct shunt_directory_tail *tail_p);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Overlay: which members of a communicator run Shunt, on which hosts. The process that makes a unique id has a
 * directory, one for all its ids, and writes its address and a secret into each id, where NCCL leaves zeros: the id's
 * tail.
 *
 * A member that is on another host registers before it enters the real init. One on the directory's host has its Unix
 * socket, which the directory can look for. So once any real init has returned, "not in the directory" is as conclusive
 * as a refused connection is on one host, and no time-out decides. A rank that cannot reach the directory goes on
 * without it; all others then find that this rank is missing.
 *
 * A process has one connection to each directory that it uses, whatever the number of its communicators. A registration
 * ends with it.
 */
#include <stdatomic.h>
#include <stdint.h>
#include "base/id.h"
#include "transport/rendezvous/host_table.h"

#define SHUNT_DIRECTORY_ID_BYTES 128 /* of a unique id */
#define SHUNT_DIRECTORY_TAIL_OFFSET 48
#define SHUNT_DIRECTORY_MAX_MEMBERS SHUNT_HOSTS_MAX_RANKS

/* docs/decisions/013.md. */
struct shunt_directory_tail {
	uint32_t magic; /* 0: none */
	uint8_t version;
	uint8_t family; /* 4 or 6 */
	uint16_t port;  /* network order */
	uint8_t addr[16];
	uint8_t secret[16];
};

/* Makes the directory of this process if there is none, and writes the tail. An id without room stays as it is. */
void shunt_directory_mark(uint8_t id[SHUNT_DIRECTORY_ID_BYTES]);
/* Writes this tail, of a communicator that grows. An id without room stays as it is. */
void shunt_directory_copy(uint8_t id[SHUNT_DIRECTORY_ID_BYTES], const struct shunt_directory_tail *tail);
/* The tail of an id; its magic is 0 if the id has no tail that we can use. */
struct shunt_directory_tail shunt_directory_tail_of(const uint8_t id[SHUNT_DIRECTORY_ID_BYTES]);

struct shunt_directory_member {
	struct shunt_id id; /* of the rendezvous */
	int member, nmembers;
	int listen_fd; /* our Unix socket, which says whose processes we trust */
};

struct shunt_directory_link; /* a connection, with the users that it has */

/*
 * Registers a member unless it is on the directory's host. 0: *link_p, which the caller leaves, or NULL on that host;
 * -errno (logged): all ranks will find that this one is missing. Waits at most SHUNT_SETUP_TIMEOUT, and 5 s for a host
 * that is silent.
 */
int shunt_directory_register(const struct shunt_directory_tail *tail, const struct shunt_directory_member *member,
    struct shunt_directory_link **link_p);
/* NULL is allowed. */
void shunt_directory_leave(struct shunt_directory_link *link, const struct shunt_directory_member *member);

/* The directory's answer, which is the same for all members. */
struct shunt_directory_table {
	int present;               /* members */
	int missing;               /* the lowest that is nowhere, or -1 */
	struct shunt_hosts *hosts; /* of the members that are present, in their order; the caller destroys it */
};
/*
 * Before a set-up over hosts, the root of the first host offers the address where it listens, and the roots of the
 * others find it. link: as from register, or NULL. offer: 0 or -errno; *link_p, if it was NULL, becomes a connection
 * that keeps the offer, and that the caller leaves. find: waits for the offer; -EOWNERDEAD: the rank that should make
 * the offer has ended; -ETIMEDOUT after SHUNT_TIMEOUT, -ECANCELED, or another -errno.
 */
int shunt_directory_offer(const struct shunt_directory_tail *tail, struct shunt_directory_link **link_p,
    const struct shunt_directory_member *member, const struct shunt_host_address *at);
int shunt_directory_find(const struct shunt_directory_tail *tail, struct shunt_directory_link *link,
    const struct shunt_directory_member *member, int wanted, const atomic_int *cancel, struct shunt_host_address *at_p);
/* link: as from register, or NULL. 0 or -errno; -E2BIG: more members than a directory knows. */
int shunt_directory_ask(const struct shunt_directory_tail *tail, struct shunt_directory_link *link,
    const struct shunt_directory_member *member, const atomic_int *cancel, struct shunt_directory_table *table);

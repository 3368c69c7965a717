/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A rendezvous over TCP whose connections stay: rank 0 is the root, at an address that the caller tells the others.
 * Ranks may be on several hosts. The caller rounds by shunt_rendezvous_allgather(), without descriptors.
 */
#include <stdatomic.h>
#include "base/inet/netaddr.h"
#include "transport/rendezvous/rendezvous.h"

struct shunt_star {
	const void *secret; /* all ranks have the same one */
	size_t secret_bytes;
	const char *what;  /* for the log: "... failed: reason" */
	const char *limit; /* the name of timeout_ms */
	int rank, nranks;
	int64_t timeout_ms; /* for all ranks to come */
	const atomic_int *cancel;
};

/* Rank 0 listens at addr, which gets the port that the kernel has chosen. 0 or -errno. */
int shunt_star_listen(const struct shunt_star *star, struct shunt_netaddr *addr, struct shunt_rendezvous **rdzv_p);
/* Rank 0 waits for all others; afterwards no rank can join. Errors: as shunt_rendezvous_join. */
int shunt_star_collect(const struct shunt_star *star, struct shunt_rendezvous *rdzv);
/*
 * Another rank calls once, and waits for the outcome. The errors of rank 0 are final, and logged. -EAGAIN: nobody
 * listens at the address, or another program does, or one without the secret: the rank may call again. -ECANCELED, or
 * another -errno.
 */
int shunt_star_call(const struct shunt_star *star, const struct shunt_netaddr *addr, struct shunt_rendezvous **rdzv_p);
/* True: another rank has closed its connection. */
bool shunt_star_is_broken(const struct shunt_rendezvous *rdzv);
/* Ends the connections, so that all ranks notice. Any thread; the object stays. */
void shunt_star_abort(const struct shunt_rendezvous *rdzv);

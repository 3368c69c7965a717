/* SPDX-License-Identifier: MIT */
#include "comm/setup/locate.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/teardown.h"
#include "transport/rendezvous/host_table.h"

void shunt_comm_name_missing(const struct shunt_comm *comm, int missing, char *reason, size_t bytes)
{
	snprintf(reason, bytes,
	    "%s %d has no Shunt, another version or other SHUNT_ or NCCL_ settings, or is on another host or in "
	    "another "
	    "container",
	    comm->nmembers == comm->nranks ? "rank" : "the parent's rank", missing);
}

/* Waits until a root of another host says where it listens. */
static int find_root(struct shunt_comm *comm, struct shunt_hosts *hosts, int host, char *reason, size_t bytes)
{
	int root = hosts->leader[host], member = hosts->rank[root].row.member;
	int err = shunt_directory_find(
	    &comm->directory, comm->registered, &comm->as_member, member, &comm->life.cancel, &hosts->rank[root].at);
	char text[80];

	if (err && err != -ECANCELED) {
		shunt_hosts_show(hosts, host, text, sizeof(text));
		snprintf(reason, bytes, "%s %d on %s %s", hosts->by_member ? "the parent's rank" : "rank", member, text,
		    err == -EOWNERDEAD    ? "has ended" :
		        err == -ETIMEDOUT ? "has not come within SHUNT_TIMEOUT" :
		                            strerror(-err));
	}
	return err;
}

int shunt_comm_find_roots(struct shunt_comm *comm, struct shunt_hosts *hosts, int rank, char *reason, size_t bytes)
{
	int host = hosts->host_of[rank], err = 0;

	if (rank != hosts->leader[host])
		return 0;
	if (host)
		return find_root(comm, hosts, 0, reason, bytes);
	for (int h = 1; h < hosts->nhosts && !err; h++)
		err = find_root(comm, hosts, h, reason, bytes);
	return err;
}

/*
 * Not all ranks are on this host: those of others have registered, or are missing. *hosts_p: all are there; NULL:
 * reason names the missing ranks. The table is the same on all ranks; only a rank that the directory's process has left
 * behind goes on without one, and gets an error.
 */
static int ask_directory(struct shunt_comm *comm, int missing, struct shunt_hosts **hosts_p, char *reason, size_t bytes)
{
	struct shunt_directory_table table = { .missing = missing };
	int err = shunt_directory_ask(&comm->directory, comm->registered, &comm->as_member, &comm->life.cancel, &table);

	*hosts_p = NULL;
	if (err == -E2BIG) {
		snprintf(reason, bytes, "%s", SHUNT_COMM_TOO_LARGE);
		return 0; /* so it is on all ranks */
	}
	if (err) {
		shunt_info(SHUNT_LOG_INIT,
		    "communicator of %d ranks, rank %d: the directory of hosts does not answer: %s", comm->nranks,
		    comm->rank, strerror(-err));
		table.missing = missing;
	} else if (table.present >= comm->nranks) {
		*hosts_p = table.hosts;
		return 0;
	} else {
		shunt_hosts_destroy(table.hosts);
	}
	shunt_comm_name_missing(comm, table.missing, reason, bytes);
	return err;
}

static int stay_with_nccl(struct shunt_comm *comm, struct shunt_hosts *hosts, const char *why)
{
	char reason[160];
	int n = snprintf(reason, sizeof(reason), "%s", why);

	if (hosts) {
		n += snprintf(reason + n, sizeof(reason) - (size_t)n, ": ");
		shunt_hosts_describe(hosts, reason + n, sizeof(reason) - (size_t)n);
		atomic_store(&comm->hosts, hosts);
	}
	return shunt_comm_forward_from_now(
	    comm, comm->rank == 0 || (!hosts && shunt_rendezvous_is_leader(comm->rendezvous)), reason);
}

/* The same by this rank's own decision: the others find it missing, and do not wait for it. */
static int leave(struct shunt_comm *comm, const char *why)
{
	shunt_directory_leave(comm->registered, &comm->as_member);
	comm->registered = NULL;
	shunt_rendezvous_give_up(comm->rendezvous);
	return stay_with_nccl(comm, NULL, why);
}

/* The root of a host listens for those of others, and says where. 0, or -errno with a reason. */
static int offer(struct shunt_comm *comm, struct shunt_hosts *hosts, int rank, char *reason, size_t bytes)
{
	int err = shunt_hosts_listen(hosts, rank);

	if (err) {
		snprintf(reason, bytes, "rank %d cannot listen for other hosts: %s", comm->rank, strerror(-err));
		return err;
	}
	err = shunt_directory_offer(&comm->directory, &comm->registered, &comm->as_member, &hosts->rank[rank].at);
	if (err)
		snprintf(reason, bytes,
		    "the process that made the unique id, which tells hosts where others listen: %s",
		    err == -EOWNERDEAD ? "it has ended" : strerror(-err));
	return err;
}

int shunt_comm_locate_locked(struct shunt_comm *comm)
{
	struct shunt_hosts *hosts = NULL;
	int missing, present, rank, err = 0;
	char reason[160];

	if (atomic_load(&comm->located) || shunt_comm_life_state(&comm->life) >= COMM_READY)
		return 0;
	present = shunt_rendezvous_present(comm->rendezvous, comm->nmembers, &missing);
	if (present < comm->nranks)
		err = ask_directory(comm, missing, &hosts, reason, sizeof(reason));
	atomic_store(&comm->located, true);
	if (present >= comm->nranks)
		return comm->nranks > SHUNT_MAX_RANKS ? stay_with_nccl(comm, NULL, "more than 8 ranks") : 0;
	if (!hosts)
		return err ? leave(comm, reason) : stay_with_nccl(comm, NULL, reason);
	rank = shunt_hosts_find(hosts, comm->member);
	if (rank < 0 || hosts->nranks != comm->nranks) {
		shunt_hosts_destroy(hosts);
		return stay_with_nccl(comm, NULL, "other ranks than those of the communicator are registered");
	}
	hosts->by_member = !comm->members_are_ranks;
	if (hosts->largest > SHUNT_HOSTS_MAX_LOCAL)
		return stay_with_nccl(comm, hosts, SHUNT_COMM_TOO_LARGE);
	if (hosts->leader[hosts->host_of[rank]] == rank && offer(comm, hosts, rank, reason, sizeof(reason))) {
		shunt_hosts_destroy(hosts);
		return leave(comm, reason);
	}
	shunt_comm_net_place(comm, hosts); /* a child's ranks are placed after the join */
	return shunt_rendezvous_set_hosts(comm->rendezvous, hosts, rank);
}

int shunt_comm_renumber(struct shunt_comm *comm)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	int32_t rank_of[SHUNT_HOSTS_MAX_RANKS], rank = comm->rank;
	int err = shunt_rendezvous_allgather(&ranks, &rank, sizeof(rank), rank_of, -1, NULL);

	if (!err)
		err = shunt_rendezvous_renumber(comm->rendezvous, rank_of);
	if (!err)
		shunt_comm_net_place(comm, shunt_rendezvous_hosts(comm->rendezvous));
	return err;
}

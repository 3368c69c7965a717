/* SPDX-License-Identifier: MIT */
/* The object: it begins, has names and numbers of ranks, and ends. */
#include "base/rlimits.h"
#include "transport/rendezvous/object.h"
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "transport/rendezvous/wire/wire.h"

struct shunt_rendezvous *rdzv_create(const struct shunt_socket_kind *kind, struct rdzv_key key)
{
	struct shunt_rendezvous *rdzv = calloc(1, sizeof(*rdzv));

	if (rdzv)
		*rdzv =
		    (struct shunt_rendezvous){ .lobby = { .kind = kind, .key = key, .listen_fd = -1, .event_fd = -1 },
			    .root_fd = -1,
			    .root = -1,
			    .culprit = -1 };
	return rdzv;
}

void rdzv_close_connections(struct shunt_rendezvous *rdzv)
{
	if (rdzv->uplink)
		rdzv_close_connections(rdzv->uplink);
	shunt_close_socket(&rdzv->root_fd);
	for (int r = 0; rdzv->peer_fds && r < rdzv->nranks; r++)
		shunt_close_socket(&rdzv->peer_fds[r]);
}

void shunt_rendezvous_destroy(struct shunt_rendezvous *rdzv)
{
	if (!rdzv)
		return;
	rdzv_close_connections(rdzv);
	rdzv_lobby_finish(&rdzv->lobby);
	explicit_bzero(&rdzv->id, sizeof(rdzv->id));
	if (rdzv->level != RDZV_UPLINK)
		shunt_hosts_destroy(rdzv->hosts);
	shunt_rendezvous_destroy(rdzv->uplink);
	free(rdzv->peer_fds);
	free(rdzv->session);
	free(rdzv->rows);
	free(rdzv);
}

int rdzv_global_rank(const struct shunt_rendezvous *rdzv, int local)
{
	return rdzv->level == RDZV_HOST_RANKS ? shunt_hosts_rank(rdzv->hosts, rdzv->uplink->rank, local) : local;
}

int rdzv_speaker(const struct shunt_rendezvous *rdzv, int rank)
{
	return rdzv->level == RDZV_UPLINK ? rdzv->hosts->leader[rank] : rdzv_global_rank(rdzv, rank);
}

void rdzv_show_rank(const struct shunt_rendezvous *rdzv, int rank, char *text, size_t bytes)
{
	char host[128];

	if (rdzv->level == RDZV_ALL_RANKS) {
		snprintf(text, bytes, "rank %d", rank);
	} else if (rdzv->level == RDZV_UPLINK) {
		shunt_hosts_show(rdzv->hosts, rank, host, sizeof(host));
		snprintf(text, bytes, "host %s", host);
	} else {
		shunt_hosts_show_rank(rdzv->hosts, rdzv_global_rank(rdzv, rank), text, bytes);
	}
}

void rdzv_show_missing(const struct shunt_members *members, const bool *seen, int n, char *text, size_t bytes)
{
	const char *whose = members ? members->whose : "";
	size_t end = bytes - sizeof(" 123456 ...") - strlen(whose), at = (size_t)snprintf(text, bytes, "missing:");

	for (int r = 0; r < n; r++) {
		if (seen[r])
			continue;
		if (at > end) {
			at += (size_t)snprintf(text + at, bytes - at, " ...");
			break;
		}
		at +=
		    (size_t)snprintf(text + at, bytes - at, " %d", members && members->member ? members->member[r] : r);
	}
	snprintf(text + at, bytes - at, "%s", whose);
}

/* ---- what the object has */

void rdzv_because(struct shunt_rendezvous *rdzv, const char *fmt, ...)
{
	va_list ap;

	if (rdzv->why[0])
		return;
	va_start(ap, fmt);
	vsnprintf(rdzv->why, sizeof(rdzv->why), fmt, ap);
	va_end(ap);
}

void rdzv_set_error(struct shunt_rendezvous *rdzv, int err)
{
	rdzv->err = err;
	if (err == -EMFILE || err == -ENFILE)
		rdzv_because(rdzv, "%s", shunt_error_text(err).s);
}

const char *shunt_rendezvous_why(const struct shunt_rendezvous *rdzv, int err)
{
	return rdzv && rdzv->err == err && rdzv->why[0] ? rdzv->why : strerror(-err);
}

bool shunt_rendezvous_is_leader(const struct shunt_rendezvous *rdzv)
{
	return rdzv->is_leader;
}

const struct shunt_hosts *shunt_rendezvous_hosts(const struct shunt_rendezvous *rdzv)
{
	return rdzv->hosts;
}

struct shunt_hosts *shunt_rendezvous_hosts_of(struct shunt_rendezvous *rdzv)
{
	return rdzv->hosts;
}

bool shunt_rendezvous_passes_fds(const struct shunt_ranks *ranks)
{
	return ranks->nranks == 1 || ranks->rendezvous->lobby.kind == &shunt_socket_unix;
}

const struct shunt_rendezvous_row *shunt_rendezvous_rows(const struct shunt_rendezvous *rdzv)
{
	return rdzv->rows;
}

int shunt_rendezvous_fd(const struct shunt_rendezvous *rdzv)
{
	return rdzv->lobby.event_fd;
}

int shunt_rendezvous_socket(const struct shunt_rendezvous *rdzv)
{
	return rdzv->lobby.listen_fd;
}

static bool hangs_up(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	return fd >= 0 && poll(&p, 1, 0) > 0;
}

bool shunt_rendezvous_lost(const struct shunt_rendezvous *rdzv)
{
	if (!rdzv)
		return false;
	for (int r = 0; rdzv->peer_fds && r < rdzv->nranks; r++)
		if (hangs_up(rdzv->peer_fds[r]))
			return true;
	return hangs_up(rdzv->root_fd) || shunt_rendezvous_lost(rdzv->uplink);
}

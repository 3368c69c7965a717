/* SPDX-License-Identifier: MIT */
/*
 * One round: every rank sends its bytes and descriptor to the root, and gets those of all ranks back. Over several
 * hosts the root of each host has a round with those of the others in between.
 */
#include "transport/rendezvous/allgather.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/rlimits.h"
#include "base/config.h"
#include "base/io.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/fd_message.h"
#include "transport/rendezvous/wire/wait.h"
#include "transport/rendezvous/wire/wire.h"

/* The rank by whose error a round has failed, for a rank that was told this error or has found it. */
static void blame(struct shunt_rendezvous *rdzv, int status, int culprit)
{
	const char *network = rdzv->hosts ? ", or its network down" : "";
	char name[160];

	rdzv->culprit = culprit;
	if (culprit < 0 || culprit >= rdzv_all(rdzv))
		return;
	if (rdzv->hosts)
		shunt_hosts_show_rank(rdzv->hosts, culprit, name, sizeof(name));
	else
		snprintf(name, sizeof(name), "rank %d", culprit);
	switch (-status) {
	case EOWNERDEAD:
		rdzv_because(rdzv, "%s died or gave up before all ranks had given their part", name);
		break;
	case ETIMEDOUT:
		rdzv_because(rdzv, "%s says nothing: is it stopped%s?", name, network);
		break;
	case ENOMEM:
		rdzv_because(rdzv, "%s has no memory for what the ranks agree on", name);
		break;
	case EINVAL:
		rdzv_because(rdzv, "%s gives another number of bytes or descriptors than the others", name);
		break;
	case EPROTO:
		rdzv_because(rdzv, "%s says something that no rank of this version says", name);
		break;
	default:
		rdzv_because(rdzv, "%s: %s", name, shunt_error_text(status).s);
	}
}

/* ---- member */

/* Reads a message's end over TCP. */
static int check_proof(struct rdzv_recv *in, struct shunt_bytes head, struct shunt_bytes body,
    const struct shunt_rendezvous *rdzv, const struct rdzv_round *round)
{
	uint8_t mac[SHUNT_MAC_BYTES], said[SHUNT_MAC_BYTES];
	int err;

	if (!rdzv->session)
		return 0;
	err = rdzv_recv_fill(in, said, sizeof(said), round->deadline, round->cancel);
	if (err)
		return err;
	rdzv_message_mac(mac, rdzv->session[0], head, body);
	return shunt_mac_equal(mac, said) ? 0 : -EPROTO;
}

/* *root_said_p: the root has reported that the round failed, with this error. */
static int read_result(
    struct shunt_rendezvous *rdzv, const struct rdzv_round *round, struct rdzv_recv *in, bool *root_said_p)
{
	size_t total = (size_t)rdzv_total(rdzv) * round->bytes;
	uint8_t has[SHUNT_RENDEZVOUS_MAX_RANKS];
	struct rdzv_result result;
	int next = 0, count = 0, err;

	/* A failed root may still have sent its status. */
	err = rdzv_recv_fill(in, &result, sizeof(result), round->deadline, round->cancel);
	if (err)
		return err;
	if (!rdzv_head_is(&result.head, RDZV_RESULT) || result.round != rdzv->round || result.status > 0)
		return -EPROTO;
	if (result.status) {
		err = check_proof(in, shunt_bytes(&result, sizeof(result)), (struct shunt_bytes){ 0 }, rdzv, round);
		if (err)
			return err;
		*root_said_p = true;
		blame(rdzv, result.status, result.culprit);
		return result.status;
	}
	if (result.bytes != round->bytes)
		return -EPROTO;
	err = rdzv_recv_fill(in, has, (size_t)rdzv->nranks, round->deadline, round->cancel);
	if (!err)
		err = rdzv_recv_fill(in, round->all, total, round->deadline, round->cancel);
	if (!err)
		err =
		    check_proof(in, shunt_bytes(&result, sizeof(result)), shunt_bytes(round->all, total), rdzv, round);
	if (err)
		return err;
	for (int r = 0; r < rdzv->nranks; r++)
		count += has[r] && r != rdzv->rank;
	if (count != in->nfds)
		return -EPROTO;
	for (int r = 0; round->fds && r < rdzv_total(rdzv); r++)
		round->fds[r] = -1;
	for (int r = 0; round->fds && r < rdzv->nranks; r++)
		if (has[r] && r != rdzv->rank)
			round->fds[rdzv_global_rank(rdzv, r)] = in->fds[next++];
	in->nfds = 0;
	return 0;
}

/* Of an error that the root has not told: it is gone, or silent. */
static void root_failed(struct shunt_rendezvous *rdzv, int err)
{
	char name[160];

	if (err != -EOWNERDEAD && err != -ETIMEDOUT)
		return;
	if (rdzv->root < 0) {
		snprintf(name, sizeof(name), RDZV_ID_MAKER);
	} else {
		rdzv->culprit = rdzv_speaker(rdzv, rdzv->root);
		rdzv_show_rank(rdzv, rdzv->root, name, sizeof(name));
	}
	if (err == -EOWNERDEAD)
		rdzv_because(rdzv, "%s, to which all ranks give their parts, died or gave up", name);
	else
		rdzv_because(rdzv, "%s, to which all ranks give their parts, says nothing: is it stopped%s?", name,
		    rdzv->level == RDZV_ALL_RANKS ? "" : ", or its network down");
}

/*
 * When a member gives up. Until then the root's word comes, which names the rank that is missing, though the root may
 * have begun later; and that of a host's root comes after the one of the hosts' root.
 */
static int64_t patience(const struct shunt_rendezvous *rdzv, const struct rdzv_round *round)
{
	int64_t levels = rdzv->level == RDZV_HOST_RANKS ? 2 : 1, setup = shunt_config()->setup_timeout;

	if (round->timeout_ms <= 0)
		return SHUNT_NEVER;
	return round->deadline + levels * (setup <= 0 || round->timeout_ms < setup ? round->timeout_ms : setup);
}

int rdzv_member_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *asked)
{
	struct rdzv_round patient = *asked, *round = &patient;
	size_t bytes = round->status ? 0 : round->bytes;
	struct rdzv_contrib contrib = { .head = rdzv_head(RDZV_CONTRIB),
		.bytes = bytes,
		.round = rdzv->round,
		.uses_fds = round->fds != NULL,
		.has_fd = round->fd >= 0,
		.status = round->status,
		.culprit = round->culprit };
	struct rdzv_send out = { &contrib, sizeof(contrib), &round->fd, round->fd >= 0, round->mine, bytes };
	struct rdzv_recv in = { .fd = rdzv->root_fd, .max_fds = round->fds ? rdzv->nranks - 1 : 0 };
	uint8_t mac[SHUNT_MAC_BYTES];
	bool root_said = false;
	int err;

	patient.deadline = patience(rdzv, asked);
	rdzv->culprit = -1;
	err = rdzv_send_all(rdzv->root_fd, &out, round->deadline, round->cancel);
	if (!err && rdzv->session) {
		rdzv_message_mac(
		    mac, rdzv->session[0], shunt_bytes(&contrib, sizeof(contrib)), shunt_bytes(round->mine, bytes));
		out = (struct rdzv_send){ mac, sizeof(mac), NULL, 0, NULL, 0 };
		err = rdzv_send_all(rdzv->root_fd, &out, round->deadline, round->cancel);
	}
	if (!err || err == -EOWNERDEAD)
		err = read_result(rdzv, round, &in, &root_said);
	rdzv_recv_close(&in);
	if (err && !root_said)
		root_failed(rdzv, err);
	return err;
}

/* ---- root */

/* The next part of a round that the root expects from a rank. */
enum part { PART_HEAD, PART_BODY, PART_PROOF, PART_NONE };

/* State of a round at the root. Arrays are per rank. */
struct root_round {
	struct shunt_rendezvous *rdzv;
	const struct rdzv_round *round;
	struct rdzv_recv *in;
	struct rdzv_contrib *contrib;
	enum part *part;
	struct pollfd *pfds; /* then those of the hosts */
	uint8_t (*mac)[SHUNT_MAC_BYTES];
	char *local; /* the bytes of our ranks */
	int culprit;
};

static void *body_of(const struct root_round *h, int r)
{
	return h->round->bytes ? h->local + (size_t)r * h->round->bytes : (char *)&h->contrib[r];
}

static void expect(struct rdzv_recv *in, void *buf, size_t bytes)
{
	in->buf = buf;
	in->received = 0;
	in->expected = bytes;
}

/* Checks the complete header of rank r, and prepares to receive its bytes. */
static int check_contrib(struct root_round *h, int r)
{
	const struct rdzv_contrib *contrib = &h->contrib[r];
	size_t bytes = h->round->bytes;
	struct rdzv_recv *in = &h->in[r];

	if (!rdzv_head_is(&contrib->head, RDZV_CONTRIB) || contrib->round != h->rdzv->round ||
	    contrib->has_fd != in->nfds || contrib->status > 0 || (contrib->status && contrib->bytes))
		return -EPROTO;
	in->max_fds = in->nfds; /* no more descriptors */
	expect(in, body_of(h, r), contrib->status ? 0 : bytes);
	if (contrib->status)
		return 0;
	if (contrib->bytes != bytes && (!contrib->bytes || !bytes)) {
		h->culprit = contrib->bytes ? rdzv_own(h->rdzv) : rdzv_speaker(h->rdzv, r);
		return -ENOMEM;
	}
	if (contrib->bytes != bytes || contrib->uses_fds != (h->round->fds != NULL)) {
		h->culprit = rdzv_speaker(h->rdzv, r);
		rdzv_because(h->rdzv, "rank %d contributes %llu bytes, rank %d contributes %zu", h->culprit,
		    (unsigned long long)contrib->bytes, rdzv_own(h->rdzv), bytes);
		return -EINVAL;
	}
	return 0;
}

/* A part of rank r is complete: prepares for the next one. */
static int next_part(struct root_round *h, int r)
{
	struct rdzv_recv *in = &h->in[r];
	uint8_t mac[SHUNT_MAC_BYTES];
	int err;

	switch (h->part[r]++) {
	case PART_HEAD:
		return check_contrib(h, r);
	case PART_BODY:
		if (h->rdzv->session)
			expect(in, h->mac[r], sizeof(h->mac[r]));
		return 0;
	case PART_PROOF:
		break;
	default:
		return -EPROTO;
	}
	if (h->rdzv->session) {
		rdzv_message_mac(mac, h->rdzv->session[r], shunt_bytes(&h->contrib[r], sizeof(h->contrib[r])),
		    shunt_bytes(body_of(h, r), h->contrib[r].status ? 0 : h->round->bytes));
		if (!shunt_mac_equal(mac, h->mac[r]))
			return -EPROTO;
	}
	err = h->contrib[r].status;
	if (err)
		h->culprit = h->contrib[r].culprit;
	return err;
}

static int read_contrib(struct root_round *h, int r)
{
	struct rdzv_recv *in = &h->in[r];
	int err = rdzv_recv_read(in);

	while (!err && in->received == in->expected && h->part[r] != PART_NONE)
		err = next_part(h, r);
	if (err && h->culprit < 0)
		h->culprit = rdzv_speaker(h->rdzv, r);
	return err;
}

/* Which rank, or other host, kept the round waiting. */
static int late_rank(const struct root_round *h)
{
	for (int r = 0; r < h->rdzv->nranks; r++)
		if (h->pfds[r].fd >= 0 && h->part[r] != PART_NONE)
			return rdzv_speaker(h->rdzv, r);
	return -1;
}

static int hosts_of(const struct shunt_rendezvous *rdzv)
{
	return rdzv->uplink ? rdzv->uplink->nranks : 0;
}

/*
 * The other hosts have their round when that of our ranks is over. But ours may wait for connections with a host that
 * has given up. So its end ends their round, too.
 */
static void watch_hosts(const struct shunt_rendezvous *uplink, struct pollfd *pfds)
{
	for (int host = 0; host < uplink->nranks; host++) {
		int fd = uplink->peer_fds ? uplink->peer_fds[host] : host == uplink->root ? uplink->root_fd : -1;

		pfds[host] = (struct pollfd){ .fd = fd, .events = POLLRDHUP };
	}
}

/*
 * The root of the hosts names the rank that failed. It has sent the reason to the other hosts, which read it in the
 * round of the hosts.
 */
static int look_at_hosts(struct root_round *h)
{
	const struct shunt_rendezvous *uplink = h->rdzv->uplink;
	const struct pollfd *pfds = h->pfds + h->rdzv->nranks;

	for (int host = 0; host < hosts_of(h->rdzv); host++) {
		if (pfds[host].fd < 0 || !pfds[host].revents)
			continue;
		if (uplink->is_root)
			h->culprit = uplink->hosts->leader[host];
		return -EOWNERDEAD;
	}
	return 0;
}

static int collect_contribs(struct root_round *h)
{
	const struct shunt_rendezvous *rdzv = h->rdzv;
	nfds_t n = (nfds_t)(rdzv->nranks + hosts_of(rdzv));
	int left = 0, err;
	int64_t next_check = 0;

	for (int r = 0; r < rdzv->nranks; r++) {
		h->in[r] = (struct rdzv_recv){ .fd = rdzv->peer_fds[r],
			.buf = (char *)&h->contrib[r],
			.expected = sizeof(h->contrib[r]),
			/* A root that lacks memory gets the descriptors that the others send, and closes them. */
			.max_fds = h->round->fds || !h->round->bytes ? 1 : 0 };
		h->pfds[r] = (struct pollfd){ .fd = rdzv->peer_fds[r], .events = POLLIN };
		left += rdzv->peer_fds[r] >= 0;
	}
	if (rdzv->uplink)
		watch_hosts(rdzv->uplink, h->pfds + rdzv->nranks);
	while (left) {
		err = rdzv_poll(h->pfds, n, &next_check, h->round->deadline, h->round->cancel);
		if (err == -ETIMEDOUT)
			h->culprit = late_rank(h);
		if (err >= 0)
			err = look_at_hosts(h);
		if (err < 0)
			return err;
		for (int r = 0; r < rdzv->nranks; r++) {
			if (!h->pfds[r].revents)
				continue;
			err = read_contrib(h, r);
			if (err)
				return err;
			if (h->part[r] == PART_NONE) {
				if (h->pfds[r].events == POLLIN)
					left--;
				h->pfds[r].events = POLLRDHUP; /* complete: from now on only its death matters */
			}
		}
	}
	return 0;
}

/* Sends a rank its result: the descriptors of all other ranks, in rank order, and the bytes of all ranks. */
static int send_result(struct root_round *h, int to, int status)
{
	const struct shunt_rendezvous *rdzv = h->rdzv;
	const struct rdzv_round *round = h->round;
	struct {
		struct rdzv_result result;
		uint8_t has[SHUNT_RENDEZVOUS_MAX_RANKS];
	} head = { .result = { .head = rdzv_head(RDZV_RESULT),
		       .bytes = round->bytes,
		       .round = rdzv->round,
		       .status = status,
		       .culprit = h->culprit } };
	size_t body = status ? 0 : round->bytes * (size_t)rdzv_total(rdzv);
	uint8_t mac[SHUNT_MAC_BYTES];
	struct shunt_bytes proof = { mac, rdzv->session ? sizeof(mac) : 0 };
	int send_fds[RDZV_MAX_FDS], err;
	struct rdzv_send out = { &head, sizeof(head.result) + (size_t)rdzv->nranks, send_fds, 0, round->all, body };

	if (rdzv->session)
		rdzv_message_mac(mac, rdzv->session[to], shunt_bytes(&head.result, sizeof(head.result)),
		    shunt_bytes(round->all, body));
	if (status) {
		char failed[sizeof(head.result) + sizeof(mac)];

		memcpy(failed, &head.result, sizeof(head.result));
		memcpy(failed + sizeof(head.result), mac, proof.n);
		/* Do not wait for the peer: the round has failed in any case. */
		(void)!send(rdzv->peer_fds[to], failed, sizeof(head.result) + proof.n, MSG_NOSIGNAL | MSG_DONTWAIT);
		return 0;
	}
	for (int r = 0; round->fds && r < rdzv->nranks; r++) {
		int give_fd = r == rdzv->rank ? round->fd : h->in[r].nfds ? h->in[r].fds[0] : -1;

		head.has[r] = give_fd >= 0;
		if (give_fd >= 0 && r != to)
			send_fds[out.nfds++] = give_fd;
	}
	err = rdzv_send_all(rdzv->peer_fds[to], &out, round->deadline, round->cancel);
	if (err || !proof.n)
		return err;
	out = (struct rdzv_send){ proof.at, proof.n, NULL, 0, NULL, 0 };
	return rdzv_send_all(rdzv->peer_fds[to], &out, round->deadline, round->cancel);
}

/* The round of the hosts. err: this host has failed, and says so. */
static int across_hosts(struct root_round *h, int err)
{
	struct shunt_rendezvous *uplink = h->rdzv->uplink;
	const struct shunt_hosts *hosts = h->rdzv->hosts;
	size_t bytes = h->round->bytes, block = bytes * (size_t)hosts->largest;
	char *mine = calloc(1, block ? block : 1), *all = calloc((size_t)hosts->nhosts, block ? block : 1);
	struct rdzv_round round = { mine, block, all, -1, NULL, h->round->deadline, h->round->timeout_ms,
		h->round->cancel, !err && (!mine || !all) ? -ENOMEM : rdzv_peer_error(err), h->culprit };

	if (!round.status && mine && block)
		memcpy(mine, h->local, bytes * (size_t)h->rdzv->nranks);
	err = uplink->is_root ? rdzv_root_allgather(uplink, &round) : rdzv_member_allgather(uplink, &round);
	uplink->round++;
	h->culprit = uplink->culprit;
	err = err ? err : round.status;
	if (err && uplink->why[0])
		rdzv_because(h->rdzv, "%s", uplink->why);
	for (int r = 0; !err && all && bytes && r < hosts->nranks; r++)
		memcpy((char *)h->round->all + (size_t)r * bytes,
		    all + hosts->host_of[r] * block + hosts->local_of[r] * bytes, bytes);
	free(mine);
	free(all);
	return err;
}

static int gather(struct root_round *h)
{
	const struct rdzv_round *round = h->round;
	int err = round->status;

	if (!h->in || !h->contrib || !h->part || !h->pfds || !h->mac || !h->local)
		err = err ? err : -ENOMEM;
	if (!err && round->bytes && h->rdzv->rank >= 0)
		memcpy(h->local + (size_t)h->rdzv->rank * round->bytes, round->mine, round->bytes);
	if (!err)
		err = collect_contribs(h);
	/* Another host's end has a rank that the hosts' root knows; any other error without a rank is our own. */
	if (err && err != -EOWNERDEAD && h->culprit < 0)
		h->culprit = rdzv_own(h->rdzv);
	return h->rdzv->uplink ? across_hosts(h, err) : err;
}

int rdzv_root_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round)
{
	size_t n = (size_t)rdzv->nranks;
	struct root_round h = { .rdzv = rdzv,
		.round = round,
		.in = calloc(n, sizeof(*h.in)),
		.contrib = calloc(n, sizeof(*h.contrib)),
		.part = calloc(n, sizeof(*h.part)),
		.pfds = calloc(n + (size_t)hosts_of(rdzv), sizeof(*h.pfds)),
		.mac = calloc(n, sizeof(*h.mac)),
		.culprit = round->status ? round->culprit : -1 };
	char *local = rdzv->uplink ? malloc(round->bytes ? n * round->bytes : 1) : NULL;
	int err, status;

	if (rdzv->uplink)
		h.local = local;
	else
		h.local = round->bytes ? round->all : (char *)&h;
	err = gather(&h);
	status = rdzv_peer_error(err);
	if (err)
		blame(rdzv, err, h.culprit);
	/* The first rank is mostly of this process, which may end on a failure: the others hear before it does. */
	for (int r = rdzv->nranks - 1; r >= 0; r--) {
		int e = rdzv->peer_fds[r] < 0 ? 0 : send_result(&h, r, status);

		if (!err && e)
			blame(rdzv, e, rdzv_speaker(rdzv, r));
		err = err ? err : e;
	}
	for (int r = 0; !err && round->fds && r < rdzv_total(rdzv); r++)
		round->fds[r] = -1;
	for (int r = 0; h.in && r < rdzv->nranks; r++) {
		if (!err && round->fds && h.in[r].nfds)
			round->fds[rdzv_global_rank(rdzv, r)] = h.in[r].fds[--h.in[r].nfds];
		rdzv_recv_close(&h.in[r]);
	}
	free(local);
	free(h.in);
	free(h.contrib);
	free(h.part);
	free(h.pfds);
	free(h.mac);
	return err;
}

/* ---- a rank's call */

/* A rank that is alone. */
static void gather_alone(const void *mine, size_t bytes, void *all, int *fds)
{
	if (bytes)
		memcpy(all, mine, bytes);
	if (fds)
		fds[0] = -1;
}

int shunt_rendezvous_allgather(
    const struct shunt_ranks *ranks, const void *mine, size_t bytes, void *all, int fd, int *fds)
{
	struct rdzv_round round = { mine, bytes, all, fd, fds, shunt_deadline_ms(ranks->timeout_ms), ranks->timeout_ms,
		ranks->cancel };
	struct shunt_rendezvous *rdzv = ranks->rendezvous;
	int err;

	if (ranks->nranks == 1) {
		gather_alone(mine, bytes, all, fds);
		return 0;
	}
	if (rdzv->err)
		return rdzv->err;
	if (!rdzv->joined)
		return -EINVAL;
	if ((fd >= 0 && !fds) || bytes > SHUNT_RENDEZVOUS_MAX_BYTES / (size_t)rdzv_total(rdzv))
		err = -EINVAL;
	else
		err = rdzv->is_root ? rdzv_root_allgather(rdzv, &round) : rdzv_member_allgather(rdzv, &round);
	rdzv->round++;
	if (err) {
		rdzv_set_error(rdzv, err);
		rdzv_close_connections(rdzv);
	}
	return err;
}

int shunt_rendezvous_lacks_memory(const struct shunt_ranks *ranks)
{
	if (ranks->nranks > 1)
		shunt_rendezvous_allgather(ranks, NULL, 0, NULL, -1, NULL);
	return -ENOMEM;
}

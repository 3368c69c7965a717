/* SPDX-License-Identifier: MIT */
/* One round: every rank sends its bytes and descriptor to the root, and gets those of all ranks back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/log.h"
#include "transport/rendezvous/priv.h"
#include "transport/rendezvous/wire.h"

/* ---- member */

int shunt_rendezvous_member_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round)
{
	struct rdzv_contrib contrib = { .head = rdzv_head(RDZV_CONTRIB),
		.bytes = round->bytes,
		.round = rdzv->round,
		.uses_fds = round->fds != NULL,
		.has_fd = round->fd >= 0 };
	struct rdzv_send out = { &contrib, sizeof(contrib), &round->fd, round->fd >= 0, round->mine, round->bytes };
	struct rdzv_result result;
	struct rdzv_recv in = { .fd = rdzv->root_fd, .max_fds = round->fds ? rdzv->nranks - 1 : 0 };
	uint8_t has[SHUNT_RENDEZVOUS_MAX_RANKS];
	int next = 0, count = 0, err;

	err = shunt_rendezvous_send(rdzv->root_fd, &out, round->deadline, round->cancel);
	if (err && err != -EOWNERDEAD)
		return err;
	/* A failed root may still have sent its status. */
	err = shunt_rendezvous_recv_fill(&in, &result, sizeof(result), round->deadline, round->cancel);
	if (err)
		goto out;
	err = -EPROTO;
	if (!rdzv_head_is(&result.head, RDZV_RESULT) || result.round != rdzv->round || result.status > 0)
		goto out;
	err = result.status;
	if (err)
		goto out;
	err = -EPROTO;
	if (result.bytes != round->bytes)
		goto out;
	err = shunt_rendezvous_recv_fill(&in, has, (size_t)rdzv->nranks, round->deadline, round->cancel);
	if (!err)
		err = shunt_rendezvous_recv_fill(
		    &in, round->all, round->bytes * (size_t)rdzv->nranks, round->deadline, round->cancel);
	if (err)
		goto out;
	for (int r = 0; r < rdzv->nranks; r++)
		count += has[r] && r != rdzv->rank;
	if (count != in.nfds) {
		err = -EPROTO;
		goto out;
	}
	for (int r = 0; round->fds && r < rdzv->nranks; r++)
		round->fds[r] = has[r] && r != rdzv->rank ? in.fds[next++] : -1;
	in.nfds = 0;
out:
	shunt_rendezvous_recv_close(&in);
	return err;
}

/* ---- root */

/* State of a round at the root. Arrays are per rank. */
struct root_round {
	struct shunt_rendezvous *rdzv;
	const struct rdzv_round *round;
	struct rdzv_recv *in;
	struct rdzv_contrib *contrib;
	bool *body; /* the header is complete */
	struct pollfd *pfds;
};

/* Checks the complete header of rank r, and prepares to receive its bytes. */
static int check_contrib(struct root_round *h, int r)
{
	const struct rdzv_contrib *contrib = &h->contrib[r];
	size_t bytes = h->round->bytes;
	struct rdzv_recv *in = &h->in[r];

	if (!rdzv_head_is(&contrib->head, RDZV_CONTRIB) || contrib->round != h->rdzv->round ||
	    contrib->has_fd != in->nfds)
		return -EPROTO;
	if (contrib->bytes != bytes && (!contrib->bytes || !bytes)) {
		shunt_error("rank %d has no memory for what the ranks agree on", contrib->bytes ? h->rdzv->rank : r);
		return -ENOMEM;
	}
	if (contrib->bytes != bytes || contrib->uses_fds != (h->round->fds != NULL)) {
		shunt_error("rank %d contributes %llu bytes, rank %d contributes %zu", r,
		    (unsigned long long)contrib->bytes, h->rdzv->rank, bytes);
		return -EINVAL;
	}
	h->body[r] = true;
	in->max_fds = in->nfds; /* no more descriptors */
	in->buf = bytes ? (char *)h->round->all + (size_t)r * bytes : (char *)&h->contrib[r];
	in->received = 0;
	in->expected = bytes;
	return 0;
}

static int collect_contribs(struct root_round *h)
{
	const struct shunt_rendezvous *rdzv = h->rdzv;
	int left = rdzv->nranks - 1, err;
	int64_t next_check = 0;

	for (int r = 0; r < rdzv->nranks; r++) {
		h->in[r] = (struct rdzv_recv){ .fd = rdzv->peer_fds[r],
			.buf = (char *)&h->contrib[r],
			.expected = sizeof(h->contrib[r]),
			/* A root that lacks memory gets the descriptors that the others send, and closes them. */
			.max_fds = h->round->fds || !h->round->bytes ? 1 : 0 };
		h->pfds[r] = (struct pollfd){ .fd = rdzv->peer_fds[r], .events = POLLIN };
	}
	while (left) {
		err = shunt_rendezvous_poll(
		    h->pfds, (nfds_t)rdzv->nranks, &next_check, h->round->deadline, h->round->cancel);
		if (err < 0)
			return err;
		for (int r = 0; r < rdzv->nranks; r++) {
			struct rdzv_recv *in = &h->in[r];

			if (!h->pfds[r].revents)
				continue;
			err = shunt_rendezvous_recv_read(in);
			if (!err && in->received == in->expected && !h->body[r])
				err = check_contrib(h, r);
			if (err == -EOWNERDEAD)
				shunt_error("rank %d died or gave up before all ranks had given their part", r);
			if (err)
				return err;
			if (h->body[r] && in->received == in->expected) {
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
		       .status = status } };
	int send_fds[RDZV_MAX_FDS];
	struct rdzv_send out = { &head, sizeof(head.result) + (size_t)rdzv->nranks, send_fds, 0, round->all,
		round->bytes * (size_t)rdzv->nranks };

	if (status) {
		/* Do not wait for the peer: the round has failed in any case. */
		(void)!send(rdzv->peer_fds[to], &head.result, sizeof(head.result), MSG_NOSIGNAL | MSG_DONTWAIT);
		return 0;
	}
	for (int r = 0; round->fds && r < rdzv->nranks; r++) {
		int give_fd = r == rdzv->rank ? round->fd : h->in[r].nfds ? h->in[r].fds[0] : -1;

		head.has[r] = give_fd >= 0;
		if (give_fd >= 0 && r != to)
			send_fds[out.nfds++] = give_fd;
	}
	return shunt_rendezvous_send(rdzv->peer_fds[to], &out, round->deadline, round->cancel);
}

int shunt_rendezvous_root_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round)
{
	size_t n = (size_t)rdzv->nranks;
	struct root_round h = { rdzv, round, calloc(n, sizeof(*h.in)), calloc(n, sizeof(*h.contrib)),
		calloc(n, sizeof(*h.body)), calloc(n, sizeof(*h.pfds)) };
	int err = h.in && h.contrib && h.body && h.pfds ? 0 : -ENOMEM;

	if (!err) {
		if (round->bytes)
			memcpy((char *)round->all + (size_t)rdzv->rank * round->bytes, round->mine, round->bytes);
		err = collect_contribs(&h);
	}
	for (int r = 0, status = rdzv_peer_error(err); r < rdzv->nranks; r++) {
		int e = r == rdzv->rank ? 0 : send_result(&h, r, status);

		err = err ? err : e;
	}
	for (int r = 0; h.in && r < rdzv->nranks; r++) {
		if (!err && round->fds)
			round->fds[r] = h.in[r].nfds ? h.in[r].fds[--h.in[r].nfds] : -1;
		shunt_rendezvous_recv_close(&h.in[r]);
	}
	free(h.in);
	free(h.contrib);
	free(h.body);
	free(h.pfds);
	return err;
}

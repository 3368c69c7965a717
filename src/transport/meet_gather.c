/* SPDX-License-Identifier: MIT */
/* One round: every rank's bytes and descriptor go to the hub, and all of them come back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "core/io.h"
#include "core/log.h"
#include "transport/meet_priv.h"
#include "transport/meet_wire.h"

/* ---- spoke */

int shunt_meet_spoke_gather(struct shunt_meet *meet, const struct meet_round *round)
{
	struct meet_part part = { .magic = MEET_MAGIC,
		.bytes = round->bytes,
		.round = meet->round,
		.uses_fds = round->fds != NULL,
		.has_fd = round->fd >= 0 };
	struct meet_result result;
	struct meet_inbox in = { .fd = meet->hub_fd, .max_fds = round->fds ? meet->nranks - 1 : 0 };
	uint8_t has[SHUNT_MEET_MAX_RANKS];
	int next = 0, count = 0, err;

	err = shunt_meet_send(meet->hub_fd, &part, sizeof(part), &round->fd, round->fd >= 0, round->mine, round->bytes,
	    round->deadline, round->cancel);
	if (err && err != -EOWNERDEAD)
		return err;
	/* A hub that has failed may still have left its reason. */
	err = shunt_meet_inbox_fill(&in, &result, sizeof(result), round->deadline, round->cancel);
	if (err)
		goto out;
	err = -EPROTO;
	if (result.magic != MEET_MAGIC || result.round != meet->round || result.status > 0)
		goto out;
	err = result.status;
	if (err)
		goto out;
	err = -EPROTO;
	if (result.bytes != round->bytes)
		goto out;
	err = shunt_meet_inbox_fill(&in, has, (size_t)meet->nranks, round->deadline, round->cancel);
	if (!err)
		err = shunt_meet_inbox_fill(
		    &in, round->all, round->bytes * (size_t)meet->nranks, round->deadline, round->cancel);
	if (err)
		goto out;
	for (int r = 0; r < meet->nranks; r++)
		count += has[r] && r != meet->rank;
	if (count != in.nfds) {
		err = -EPROTO;
		goto out;
	}
	for (int r = 0; round->fds && r < meet->nranks; r++)
		round->fds[r] = has[r] && r != meet->rank ? in.fds[next++] : -1;
	in.nfds = 0;
out:
	shunt_meet_inbox_close(&in);
	return err;
}

/* ---- hub */

/* What has come of each rank. */
struct hub_round {
	struct shunt_meet *meet;
	const struct meet_round *round;
	struct meet_inbox *in;
	struct meet_part *part;
	bool *body; /* the header is complete */
	struct pollfd *pfds;
};

/* A rank's header is complete: check it and go on with the bytes. */
static int check_part(struct hub_round *h, int r)
{
	const struct meet_part *part = &h->part[r];
	size_t bytes = h->round->bytes;
	struct meet_inbox *in = &h->in[r];

	if (part->magic != MEET_MAGIC || part->round != h->meet->round || part->has_fd != in->nfds)
		return -EPROTO;
	if (part->bytes != bytes && (!part->bytes || !bytes)) {
		shunt_error("rank %d has no memory for what the ranks agree on", part->bytes ? h->meet->rank : r);
		return -ENOMEM;
	}
	if (part->bytes != bytes || part->uses_fds != (h->round->fds != NULL)) {
		shunt_error("rank %d contributes %llu bytes, rank %d contributes %zu", r,
		    (unsigned long long)part->bytes, h->meet->rank, bytes);
		return -EINVAL;
	}
	h->body[r] = true;
	in->max_fds = in->nfds; /* no more of them */
	in->buf = bytes ? (char *)h->round->all + (size_t)r * bytes : (char *)&h->part[r];
	in->got = 0;
	in->want = bytes;
	return 0;
}

static int collect(struct hub_round *h)
{
	const struct shunt_meet *meet = h->meet;
	int left = meet->nranks - 1, err;
	int64_t look = 0;

	for (int r = 0; r < meet->nranks; r++) {
		h->in[r] = (struct meet_inbox){ .fd = meet->fd_of[r],
			.buf = (char *)&h->part[r],
			.want = sizeof(h->part[r]),
			.max_fds = h->round->fds ? 1 : 0 };
		h->pfds[r] = (struct pollfd){ .fd = meet->fd_of[r], .events = POLLIN };
	}
	while (left) {
		err = shunt_meet_poll(h->pfds, (nfds_t)meet->nranks, &look, h->round->deadline, h->round->cancel);
		if (err < 0)
			return err;
		for (int r = 0; r < meet->nranks; r++) {
			struct meet_inbox *in = &h->in[r];

			if (!h->pfds[r].revents)
				continue;
			err = shunt_meet_inbox_read(in);
			if (!err && in->got == in->want && !h->body[r])
				err = check_part(h, r);
			if (err == -EOWNERDEAD)
				shunt_error("rank %d died during the communicator's set-up", r);
			if (err)
				return err;
			if (h->body[r] && in->got == in->want) {
				if (h->pfds[r].events == POLLIN)
					left--;
				h->pfds[r].events = POLLRDHUP; /* done; from now on only its death matters */
			}
		}
	}
	return 0;
}

/* One rank's result: everybody's descriptors but its own, in rank order. */
static int reply(struct hub_round *h, int to, int status)
{
	const struct shunt_meet *meet = h->meet;
	const struct meet_round *round = h->round;
	struct {
		struct meet_result result;
		uint8_t has[SHUNT_MEET_MAX_RANKS];
	} head = { .result = { .magic = MEET_MAGIC, .bytes = round->bytes, .round = meet->round, .status = status } };
	int send_fds[MEET_MAX_FDS], n = 0;

	if (status) {
		/* As much as fits: the round is lost, and so is a peer that does not listen. */
		(void)!send(meet->fd_of[to], &head.result, sizeof(head.result), MSG_NOSIGNAL | MSG_DONTWAIT);
		return 0;
	}
	for (int r = 0; round->fds && r < meet->nranks; r++) {
		int give = r == meet->rank ? round->fd : h->in[r].nfds ? h->in[r].fds[0] : -1;

		head.has[r] = give >= 0;
		if (give >= 0 && r != to)
			send_fds[n++] = give;
	}
	return shunt_meet_send(meet->fd_of[to], &head, sizeof(head.result) + (size_t)meet->nranks, send_fds, n,
	    round->all, round->bytes * (size_t)meet->nranks, round->deadline, round->cancel);
}

int shunt_meet_hub_gather(struct shunt_meet *meet, const struct meet_round *round)
{
	size_t n = (size_t)meet->nranks;
	struct hub_round h = { meet, round, calloc(n, sizeof(*h.in)), calloc(n, sizeof(*h.part)),
		calloc(n, sizeof(*h.body)), calloc(n, sizeof(*h.pfds)) };
	int err = h.in && h.part && h.body && h.pfds ? 0 : -ENOMEM;

	if (!err) {
		if (round->bytes)
			memcpy((char *)round->all + (size_t)meet->rank * round->bytes, round->mine, round->bytes);
		err = collect(&h);
	}
	for (int r = 0, status = meet_tell(err); r < meet->nranks; r++) {
		int e = r == meet->rank ? 0 : reply(&h, r, status);

		err = err ? err : e;
	}
	for (int r = 0; h.in && r < meet->nranks; r++) {
		if (!err && round->fds)
			round->fds[r] = h.in[r].nfds ? h.in[r].fds[--h.in[r].nfds] : -1;
		shunt_meet_inbox_close(&h.in[r]);
	}
	free(h.in);
	free(h.part);
	free(h.body);
	free(h.pfds);
	return err;
}

/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include "transport/net/verbs_priv.h"

#define OWN_CHANNEL 0xffffu   /* of no put */
#define MOST_BYTES (1u << 30) /* of a work request; no NIC takes less than its port's max_msg_sz */

_Static_assert(SHUNT_NET_MAX_CHANNELS == OWN_CHANNEL, "the provider's own channel is behind the last one");
_Static_assert(SHUNT_NET_MAX_COUNT <= 0xffff, "channel and count are an immediate value");
_Static_assert(VERBS_SIGNALS <= VERBS_NUMBER, "credits fit into a message");

static uint32_t immediate(uint32_t channel, uint32_t count)
{
	return htonl(channel << 16 | count);
}

/* Work requests of the main QP for which there is room. */
static int room(const struct shunt_net_endpoint *ep, int most)
{
	return most - (int)(ep->sent - ep->completed);
}

static int submit(struct shunt_net_endpoint *ep, struct shunt_ibv_send_wr *wr, int n, uint32_t posted)
{
	struct shunt_ibv_send_wr *bad;
	struct shunt_ibv_send_wr *last = &wr[n - 1];
	uint32_t seq = ep->sent + (uint32_t)n - 1;
	int err;

	last->wr_id = verbs_wr_id(ep->id, VERBS_SEND, seq);
	last->send_flags |= SHUNT_IBV_SEND_SIGNALED;
	last->next = NULL;
	ep->upto[seq % VERBS_SENDS] = posted;
	err = ep->qp->context->post_send(ep->qp, wr, &bad);
	if (!err) {
		ep->sent += (uint32_t)n;
		return 0;
	}
	err = err < 0 ? EIO : err;
	verbs_fail(ep, -err, "the NIC does not take what is to be sent: %s", strerror(err));
	return -err;
}

/* The addition that is a put's signal. What was in the word comes back, and is of no use. */
static void addition(const struct shunt_net_endpoint *ep, uint64_t word, uint32_t key, uint64_t count,
    struct shunt_ibv_send_wr *wr, struct shunt_ibv_sge *sge)
{
	*sge = (struct shunt_ibv_sge){ (uintptr_t)&ep->ping->answer, sizeof(ep->ping->answer), ep->ping_mr->lkey };
	*wr = (struct shunt_ibv_send_wr){ .wr_id = verbs_wr_id(ep->id, VERBS_SEND, 0),
		.sg_list = sge,
		.num_sge = 1,
		.opcode = SHUNT_IBV_WR_ATOMIC_FETCH_AND_ADD,
		.remote_addr = word,
		.compare_add = count,
		.atomic_rkey = key };
}

/*
 * The next piece of the oldest put that is not posted, at *offset_p, which is 0 behind its last piece; false: its
 * signal has no credit.
 */
static bool next_piece(struct shunt_net_endpoint *ep, uint32_t put, uint32_t *offset_p, uint32_t *signals_p,
    struct shunt_ibv_send_wr *wr, struct shunt_ibv_sge *sge)
{
	const struct verbs_put *p = &ep->puts[put % VERBS_PUTS];
	uint32_t most = ep->device->rail[0].attr.max_msg_sz, bytes = p->bytes - *offset_p;
	bool last, imm;

	if (p->adds && *offset_p == p->bytes) {
		addition(ep, p->word, p->word_key, p->count, wr, sge);
		*offset_p = 0;
		return true;
	}
	most = !most || most > MOST_BYTES ? MOST_BYTES : most & ~7u;
	last = bytes <= most;
	imm = last && p->count && !p->adds;
	if (imm && *signals_p == ep->signals_allowed)
		return false;
	*sge = (struct shunt_ibv_sge){ p->source + *offset_p, last ? bytes : most, p->lkey };
	/* Writes without bytes name a place as well: it is looked at by some NICs. */
	*wr = (struct shunt_ibv_send_wr){
		.wr_id = verbs_wr_id(ep->id, VERBS_SEND, 0),
		.sg_list = sge,
		.num_sge = sge->length ? 1 : 0,
		.opcode = imm ? SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM : SHUNT_IBV_WR_RDMA_WRITE,
		.send_flags = p->inlined && sge->length ? SHUNT_IBV_SEND_INLINE : 0,
		.imm_data = immediate(p->channel, p->count),
		.remote_addr = p->bytes ? p->remote + *offset_p : ep->peer.ping_at,
		.rkey = p->bytes ? p->rkey : ep->peer.ping_key,
	};
	*signals_p += imm;
	*offset_p = last && !p->adds ? 0 : *offset_p + sge->length;
	return true;
}

static void push_puts(struct shunt_net_endpoint *ep)
{
	struct shunt_ibv_send_wr wr[VERBS_BATCH];
	struct shunt_ibv_sge sge[VERBS_BATCH];

	while (ep->posted != ep->taken) {
		uint32_t posted = ep->posted, offset = ep->offset, signals = ep->signals_sent;
		int most = room(ep, VERBS_SENDS - VERBS_OWN_SENDS), n = 0;

		if (most > VERBS_BATCH)
			most = VERBS_BATCH;
		while (n < most && posted != ep->taken && next_piece(ep, posted, &offset, &signals, &wr[n], &sge[n])) {
			if (n)
				wr[n - 1].next = &wr[n];
			posted += !offset;
			n++;
		}
		if (!n || submit(ep, wr, n, posted))
			return;
		ep->posted = posted;
		ep->offset = offset;
		ep->signals_sent = signals;
	}
}

/* Sends one of the provider's own messages. */
static void push_message(struct shunt_net_endpoint *ep, enum verbs_message message)
{
	struct shunt_ibv_sge sge = { (uintptr_t)ep->ping->sent, VERBS_PING_BYTES, ep->ping_mr->lkey }, unused;
	struct shunt_ibv_send_wr wr[2], *message_wr = &wr[ep->adds && message == VERBS_PING];
	uint32_t number = 0;

	*message_wr = (struct shunt_ibv_send_wr){
		.opcode = SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM,
		.remote_addr = ep->peer.ping_at,
		.rkey = ep->peer.ping_key,
	};

	if (message == VERBS_CREDIT)
		number = ep->signals_came - ep->signals_returned;
	if (message == VERBS_PING) {
		message_wr->sg_list = &sge;
		message_wr->num_sge = 1;
	}
	message_wr->imm_data = immediate(OWN_CHANNEL, message | number);
	/* Additions have come before it. */
	if (ep->adds && message == VERBS_END)
		message_wr->send_flags = SHUNT_IBV_SEND_FENCE;
	if (message_wr != wr) {
		addition(ep, ep->peer.ping_at + VERBS_PROOF_AT, ep->peer.ping_key, VERBS_PROOF, wr, &unused);
		wr->next = message_wr;
	}
	if (submit(ep, wr, message_wr == wr ? 1 : 2, ep->posted))
		return;
	if (message == VERBS_CREDIT)
		ep->signals_returned += number;
	if (message == VERBS_PONG)
		ep->pong_sent = true;
	if (message == VERBS_END) {
		ep->end_sent = true;
		ep->end_seq = ep->sent - 1;
	}
}

void verbs_push(struct shunt_net_endpoint *ep)
{
	static const enum verbs_message order[] = { VERBS_PING, VERBS_PONG, VERBS_CREDIT, VERBS_END };

	if (ep->state == VERBS_READY)
		push_puts(ep);
	for (size_t i = 0; ep->own && i < sizeof(order) / sizeof(order[0]); i++) {
		unsigned bit = 1u << (order[i] >> 12);

		if (!(ep->own & bit) || (ep->state != VERBS_READY && ep->state != VERBS_PINGING))
			continue;
		if (!room(ep, VERBS_SENDS) || (order[i] == VERBS_END && ep->posted != ep->taken))
			return;
		ep->own &= ~bit;
		push_message(ep, order[i]);
	}
}

void verbs_own(struct shunt_net_endpoint *ep, enum verbs_message message)
{
	ep->own |= 1u << (message >> 12);
	verbs_push(ep);
}

int verbs_side_send(struct shunt_net_endpoint *ep, enum verbs_message message)
{
	struct shunt_ibv_send_wr wr = {
		.wr_id = verbs_wr_id(ep->id, VERBS_SIDE_SEND, message ? VERBS_LAST_SIDE_SEND : ep->side_round),
		.opcode = message ? SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM : SHUNT_IBV_WR_RDMA_WRITE,
		.send_flags = SHUNT_IBV_SEND_SIGNALED,
		.imm_data = immediate(OWN_CHANNEL, message),
		.remote_addr = ep->peer.ping_at,
		.rkey = ep->peer.ping_key,
	}, *bad;
	int err = ep->side->context->post_send(ep->side, &wr, &bad);

	return err < 0 ? -EIO : -err;
}

void verbs_bye(struct shunt_net_endpoint *ep)
{
	if (!ep->bye_sent && ep->reached)
		ep->bye_sent = !verbs_side_send(ep, VERBS_BYE);
}

void verbs_beat(struct shunt_net_endpoint *ep)
{
	struct shunt_ibv_send_wr wr = {
		.opcode = SHUNT_IBV_WR_RDMA_WRITE, .remote_addr = ep->peer.ping_at, .rkey = ep->peer.ping_key
	};

	if (ep->state == VERBS_READY && !ep->flushed && ep->sent == ep->completed)
		submit(ep, &wr, 1, ep->posted);
}

static bool legal(const struct shunt_net_put *put, bool adds)
{
	const struct shunt_net_memory *m = put->memory;
	uint64_t at = (uintptr_t)put->source;

	if (!shunt_net_put_is_formed(put, adds))
		return false;
	if (!put->bytes)
		return true;
	return m && at >= m->at && at - m->at <= m->bytes && put->bytes <= m->bytes - (at - m->at);
}

int verbs_post(struct shunt_net_endpoint *ep, const struct shunt_net_put *puts, int n)
{
	int taken = 0;

	if (ep->state != VERBS_READY || ep->finished)
		return -ENOTCONN;
	for (int i = 0; i < n; i++)
		if (!legal(&puts[i], ep->adds))
			return -EINVAL;
	ep->device->touched = true;
	for (; taken < n && ep->taken - ep->done < VERBS_PUTS; taken++) {
		const struct shunt_net_put *put = &puts[taken];
		struct verbs_put *p = &ep->puts[ep->taken++ % VERBS_PUTS];

		*p = (struct verbs_put){ .bytes = put->bytes, .channel = put->channel, .count = put->count };
		if (put->flags & SHUNT_NET_ADD) {
			p->adds = true;
			p->word = put->words.word[0] + put->word_offset;
			p->word_key = (uint32_t)put->words.word[1];
		}
		if (!put->bytes)
			continue;
		p->source = (uintptr_t)put->source;
		p->lkey = put->memory->mr[0]->lkey;
		p->remote = put->remote.word[0] + put->remote_offset;
		p->rkey = (uint32_t)put->remote.word[1];
		p->inlined = put->bytes <= ep->inline_bytes && !put->memory->gpu;
	}
	/* A batch costs the NIC one call; progress posts it if nothing follows. */
	if (taken && (puts[taken - 1].flags & SHUNT_NET_MORE) && ep->taken - ep->posted < VERBS_BATCH)
		verbs_attend(ep);
	else
		verbs_push(ep);
	return taken;
}

void verbs_finish(struct shunt_net_endpoint *ep)
{
	if (ep->finished)
		return;
	ep->finished = true;
	if (ep->state == VERBS_READY)
		verbs_own(ep, VERBS_END);
}

/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include "transport/net/verbs/verbs_priv.h"

#define MOST_BYTES (1u << 30) /* of a work request; no NIC takes less than its port's max_msg_sz */

_Static_assert(SHUNT_NET_MAX_CHANNELS == VERBS_OWN_CHANNEL, "the provider's own channel is behind the last one");
_Static_assert(SHUNT_NET_MAX_COUNT <= 0xffff, "channel and count are an immediate value");
_Static_assert(VERBS_SIGNALS <= VERBS_NUMBER, "credits fit into a message");

/* Work requests of the lane for which there is room. */
static int room(const struct verbs_lane *lane, int most)
{
	return most - (int)(lane->sent - lane->completed);
}

static int submit(
    struct verbs_endpoint *ep, struct verbs_lane *lane, struct shunt_ibv_send_wr *wr, int n, uint32_t posted)
{
	struct shunt_ibv_send_wr *bad;
	struct shunt_ibv_send_wr *last = &wr[n - 1];
	uint32_t seq = lane->sent + (uint32_t)n - 1;
	int err;

	last->wr_id = verbs_wr_id(ep->id, VERBS_SEND, (int)(lane - ep->lane), seq);
	last->send_flags |= SHUNT_IBV_SEND_SIGNALED;
	last->next = NULL;
	/* All that an idle lane has posted is done. */
	if (lane->sent == lane->completed)
		lane->done = lane->posted;
	lane->upto[seq % VERBS_SENDS] = posted;
	err = lane->qp->context->post_send(lane->qp, wr, &bad);
	if (!err) {
		lane->sent += (uint32_t)n;
		return 0;
	}
	err = err < 0 ? EIO : err;
	verbs_lane_fail(ep, lane, -err, "the NIC does not take what is to be sent: %s", strerror(err));
	return -err;
}

/* Our memory and the peer's, as the lane's NICs name it. */
static uint32_t ping_lkey(const struct verbs_endpoint *ep, const struct verbs_lane *lane)
{
	return ep->ping_mr[lane->rail - ep->device->rail]->lkey;
}

/* The addition that is a put's signal. The NIC returns the word's old value, which nobody reads. */
static void addition(const struct verbs_endpoint *ep, uint64_t word, uint32_t key, uint64_t count,
    struct shunt_ibv_send_wr *wr, struct shunt_ibv_sge *sge)
{
	*sge =
	    (struct shunt_ibv_sge){ (uintptr_t)&ep->ping->answer, sizeof(ep->ping->answer), ping_lkey(ep, ep->lane) };
	*wr = (struct shunt_ibv_send_wr){ .wr_id = verbs_wr_id(ep->id, VERBS_SEND, 0, 0),
		.sg_list = sge,
		.num_sge = 1,
		.opcode = SHUNT_IBV_WR_ATOMIC_FETCH_AND_ADD,
		.remote_addr = word,
		.compare_add = count,
		.atomic_rkey = key };
}

/* Where part i of n of a put begins; n: where the last one ends. */
static uint32_t part_at(const struct verbs_put *p, int i, int n)
{
	uint32_t begin = (uint32_t)((uint64_t)p->bytes * (unsigned)i / (unsigned)n);

	return i == n ? p->bytes : begin - begin % VERBS_STRIPE_ALIGN;
}

/* The immediate value with which the lane's part of the put ends; false: it ends without. */
static bool ends_with(const struct verbs_put *p, bool first, uint32_t *imm_p)
{
	if (!first)
		*imm_p = verbs_immediate(VERBS_OWN_CHANNEL, VERBS_PART);
	else
		*imm_p = verbs_immediate(p->channel, p->count | (p->striped ? VERBS_STRIPED : 0));
	return p->striped || (p->count && !p->adds);
}

/*
 * The next piece of the lane's part of the put, at *offset_p, which is 0 behind its last piece; false: its signal has
 * no credit.
 */
static bool next_piece(struct verbs_endpoint *ep, const struct verbs_lane *lane, const struct verbs_put *p,
    uint32_t *offset_p, uint32_t *signals_p, struct shunt_ibv_send_wr *wr, struct shunt_ibv_sge *sge)
{
	int index = (int)(lane - ep->lane), n = p->striped ? ep->nlanes : 1,
	    rail = (int)(lane->rail - ep->device->rail);
	uint32_t begin = part_at(p, index, n), bytes = part_at(p, index + 1, n) - begin - *offset_p, imm = 0;
	uint32_t most = lane->rail->attr.max_msg_sz;
	bool last, ends;

	if (p->adds && *offset_p == p->bytes) {
		addition(ep, p->word, p->word_key, p->count, wr, sge);
		*offset_p = 0;
		return true;
	}
	most = !most || most > MOST_BYTES ? MOST_BYTES : most & ~7u;
	last = bytes <= most;
	ends = last && ends_with(p, !index, &imm);
	if (ends && !index && *signals_p == ep->signals_allowed)
		return false;
	*sge = (struct shunt_ibv_sge){ p->source + begin + *offset_p, last ? bytes : most,
		p->bytes ? p->memory->mr[rail]->lkey : 0 };
	/* Writes without bytes name a place as well: it is looked at by some NICs. */
	*wr = (struct shunt_ibv_send_wr){
		.wr_id = verbs_wr_id(ep->id, VERBS_SEND, index, 0),
		.sg_list = sge,
		.num_sge = sge->length ? 1 : 0,
		.opcode = ends ? SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM : SHUNT_IBV_WR_RDMA_WRITE,
		.send_flags = p->inlined && sge->length ? SHUNT_IBV_SEND_INLINE : 0,
		.imm_data = imm,
		.remote_addr = p->bytes ? p->remote + begin + *offset_p : ep->peer.ping_at,
		.rkey = p->bytes ? p->rkey[rail] : verbs_ping_rkey(ep, lane),
	};
	*signals_p += ends && !index;
	*offset_p = last && !p->adds ? 0 : *offset_p + sge->length;
	return true;
}

/* The other lanes follow the first lane, which has the credits. */
static void push_puts(struct verbs_endpoint *ep, struct verbs_lane *lane)
{
	bool first = lane == ep->lane;
	uint32_t limit = first ? ep->taken : ep->lane->posted;
	struct shunt_ibv_send_wr wr[VERBS_BATCH];
	struct shunt_ibv_sge sge[VERBS_BATCH];

	while (lane->posted != limit) {
		uint32_t posted = lane->posted, offset = lane->offset, signals = ep->signals_sent;
		int most = room(lane, VERBS_SENDS - VERBS_OWN_SENDS), n = 0;

		if (most > VERBS_BATCH)
			most = VERBS_BATCH;
		while (n < most && posted != limit) {
			const struct verbs_put *p = &ep->puts[posted % VERBS_PUTS];

			if (first || p->striped) {
				if (!next_piece(ep, lane, p, &offset, &signals, &wr[n], &sge[n]))
					break;
				if (n)
					wr[n - 1].next = &wr[n];
				n++;
			}
			posted += !offset;
		}
		if (n && submit(ep, lane, wr, n, posted))
			return;
		lane->posted = posted;
		lane->offset = offset;
		ep->signals_sent = signals;
		if (!n)
			return;
	}
}

uint32_t verbs_done(struct verbs_endpoint *ep)
{
	uint32_t least = UINT32_MAX;

	for (int i = 0; i < ep->nlanes; i++) {
		const struct verbs_lane *lane = &ep->lane[i];
		uint32_t done = (lane->sent == lane->completed ? lane->posted : lane->done) - ep->done;

		least = done < least ? done : least;
	}
	return least;
}

static bool all_posted(const struct verbs_endpoint *ep)
{
	for (int i = 0; i < ep->nlanes; i++)
		if (ep->lane[i].posted != ep->taken)
			return false;
	return true;
}

void verbs_lane_write(
    struct verbs_endpoint *ep, struct verbs_lane *lane, uint64_t offset, uint32_t bytes, enum verbs_message message)
{
	struct shunt_ibv_sge sge = { (uintptr_t)ep->ping->sent, bytes, ping_lkey(ep, lane) };
	struct shunt_ibv_send_wr wr = { .sg_list = &sge,
		.num_sge = bytes ? 1 : 0,
		.opcode = message ? SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM : SHUNT_IBV_WR_RDMA_WRITE,
		.imm_data = verbs_immediate(VERBS_OWN_CHANNEL, message),
		.remote_addr = ep->peer.ping_at + offset,
		.rkey = verbs_ping_rkey(ep, lane) };

	submit(ep, lane, &wr, 1, lane->posted);
}

/* The part of a message of the provider's own that goes into the peer's memory. */
static void message_data(
    struct verbs_endpoint *ep, enum verbs_message message, struct shunt_ibv_send_wr *wr, struct shunt_ibv_sge *sge)
{
	bool table = message == VERBS_LANES;

	*wr = (struct shunt_ibv_send_wr){ .sg_list = sge,
		.opcode = SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM,
		.remote_addr = ep->peer.ping_at + (table ? VERBS_AT(table_came) : 0),
		.rkey = verbs_ping_rkey(ep, ep->lane) };
	*sge = (struct shunt_ibv_sge){ table ? (uintptr_t)&ep->ping->table_sent : (uintptr_t)ep->ping->sent,
		table ? sizeof(ep->ping->table_sent) : VERBS_PING_BYTES, ping_lkey(ep, ep->lane) };
	wr->num_sge = table || message == VERBS_PING;
}

/* Sends one of the provider's own messages, on the first lane. */
static void push_message(struct verbs_endpoint *ep, enum verbs_message message)
{
	bool proves = ep->adds && message == VERBS_PING;
	struct shunt_ibv_send_wr wr[2], *last = &wr[proves];
	struct shunt_ibv_sge sge[2];
	uint32_t number = 0;

	if (message == VERBS_CREDIT)
		number = ep->signals_came - ep->signals_returned;
	message_data(ep, message, last, &sge[1]);
	last->imm_data = verbs_immediate(VERBS_OWN_CHANNEL, message | number);
	/* Additions have come before it. */
	if (ep->adds && message == VERBS_END)
		last->send_flags = SHUNT_IBV_SEND_FENCE;
	if (proves) {
		addition(ep, ep->peer.ping_at + VERBS_AT(proof), verbs_ping_rkey(ep, ep->lane), VERBS_PROOF, wr, sge);
		wr->next = last;
	}
	if (submit(ep, ep->lane, wr, 1 + proves, ep->lane->posted))
		return;
	if (message == VERBS_CREDIT)
		ep->signals_returned += number;
	if (message == VERBS_PONG)
		ep->pong_sent = true;
	if (message == VERBS_LANES_OK)
		ep->ok_sent = true;
	if (message == VERBS_END) {
		ep->end_sent = true;
		ep->end_seq = ep->lane->sent - 1;
	}
}

void verbs_push(struct verbs_endpoint *ep)
{
	static const enum verbs_message order[] = { VERBS_PING, VERBS_PONG, VERBS_LANES, VERBS_LANES_UP, VERBS_LANES_OK,
		VERBS_CREDIT, VERBS_END };

	for (int i = 0; ep->state == VERBS_READY && i < ep->nlanes; i++)
		push_puts(ep, &ep->lane[i]);
	for (size_t i = 0; ep->own && i < sizeof(order) / sizeof(order[0]); i++) {
		unsigned bit = 1u << (order[i] >> 12);

		if (!(ep->own & bit) || ep->state < VERBS_PINGING || ep->state > VERBS_READY)
			continue;
		if (!room(ep->lane, VERBS_SENDS) || (order[i] == VERBS_END && !all_posted(ep)))
			return;
		ep->own &= ~bit;
		push_message(ep, order[i]);
	}
}

void verbs_own(struct verbs_endpoint *ep, enum verbs_message message)
{
	ep->own |= 1u << (message >> 12);
	verbs_push(ep);
}

void verbs_beat(struct verbs_endpoint *ep)
{
	for (int i = 0; i < ep->nlanes && ep->state == VERBS_READY && !ep->flushed; i++)
		if (ep->lane[i].sent == ep->lane[i].completed)
			verbs_lane_write(ep, &ep->lane[i], 0, 0, 0);
}

static bool legal(const struct shunt_net_put *put, bool adds)
{
	const struct shunt_net_memory *m = put->memory;
	uintptr_t source = (uintptr_t)put->source, start = m ? (uintptr_t)m->start : 0;

	if (!shunt_net_put_is_formed(put, adds))
		return false;
	if (!put->bytes)
		return true;
	return m && source >= start && source - start <= m->bytes && put->bytes <= m->bytes - (source - start);
}

static struct verbs_put put_of(const struct verbs_endpoint *ep, const struct shunt_net_put *put)
{
	struct verbs_put p = { .bytes = put->bytes, .channel = put->channel, .count = put->count };

	if (put->flags & SHUNT_NET_ADD) {
		p.adds = true;
		p.word = put->words.word[0] + put->word_offset;
		p.word_key = (uint32_t)put->words.word[1];
	}
	if (!put->bytes)
		return p;
	p.source = (uintptr_t)put->source;
	p.memory = verbs_memory_of(put->memory);
	p.remote = put->remote.word[0] + put->remote_offset;
	for (int i = 0; i < VERBS_RAILS; i++)
		p.rkey[i] = (uint32_t)(put->remote.word[1 + i / 2] >> i % 2 * 32);
	p.inlined = put->bytes <= ep->inline_bytes && !p.memory->gpu;
	p.striped = ep->nlanes > 1 && put->bytes > VERBS_STRIPE_BYTES && !(put->flags & SHUNT_NET_PACKETS);
	return p;
}

int verbs_post(struct shunt_net_endpoint *endpoint, const struct shunt_net_put *puts, int n)
{
	struct verbs_endpoint *ep = verbs_endpoint_of(endpoint);
	uint16_t last = ep->last;
	int taken = 0;

	if (ep->state != VERBS_READY || ep->finished)
		return -ENOTCONN;
	for (int i = 0; i < n; i++) {
		if (!legal(&puts[i], ep->adds))
			return -EINVAL;
		if (puts[i].flags & SHUNT_NET_LAST)
			last = puts[i].channel;
	}
	ep->last = last;
	ep->device->touched = true;
	for (; taken < n && ep->taken - ep->done < VERBS_PUTS; taken++)
		ep->puts[ep->taken++ % VERBS_PUTS] = put_of(ep, &puts[taken]);
	/* A batch costs the NIC one call; progress posts it if nothing follows. */
	if (taken && (puts[taken - 1].flags & SHUNT_NET_MORE) && ep->taken - ep->lane->posted < VERBS_BATCH)
		verbs_attend(ep);
	else
		verbs_push(ep);
	return taken;
}

void verbs_finish(struct shunt_net_endpoint *endpoint)
{
	struct verbs_endpoint *ep = verbs_endpoint_of(endpoint);

	if (ep->finished)
		return;
	ep->finished = true;
	if (ep->state == VERBS_READY)
		verbs_own(ep, VERBS_END);
}

bool verbs_end_is_out(const struct shunt_net_endpoint *endpoint)
{
	return ((const struct verbs_endpoint *)endpoint)->end_done;
}

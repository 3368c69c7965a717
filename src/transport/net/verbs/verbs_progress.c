/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include "base/io.h"
#include "transport/net/verbs/verbs_priv.h"

#define POLL 16
#define ROUNDS 16
/* Calls of progress between two looks for events of the NIC, which cost a system call. */
#define ASYNC_CALLS 1024

/* Why requests are flushed is told by an event of the NIC, or by another completion, which may come later. */
static void flushed(struct verbs_endpoint *ep, struct verbs_lane *lane)
{
	if (ep->flushed || verbs_over(ep))
		return;
	ep->flushed = lane;
	verbs_async(ep->device);
	if (ep->state != VERBS_DEAD)
		verbs_deadline(ep, shunt_now_ms() + VERBS_REASON_MS);
}

static void failed(struct verbs_endpoint *ep, struct verbs_lane *lane, const struct shunt_ibv_wc *wc)
{
	int err = -EIO;

	if (wc->status == SHUNT_IBV_WC_WR_FLUSH_ERR) {
		flushed(ep, lane);
		return;
	}
	switch (wc->status) {
	case SHUNT_IBV_WC_RETRY_EXC_ERR:
	case SHUNT_IBV_WC_RNR_RETRY_EXC_ERR:
		/* Of a host that stopped its processes the NIC would answer. */
		err = ep->state == VERBS_READY ? -EOWNERDEAD : -ETIMEDOUT;
		break;
	case SHUNT_IBV_WC_REM_ACCESS_ERR:
	case SHUNT_IBV_WC_REM_INV_REQ_ERR:
		err = -EACCES;
		break;
	default:
		break;
	}
	verbs_lane_fail(ep, lane, err, "%s (status %d, vendor's code 0x%x)", verbs_status(ep->device, wc->status),
	    wc->status, wc->vendor_err);
}

static void send_done(
    struct verbs_endpoint *ep, struct verbs_lane *lane, const struct shunt_ibv_wc *wc, struct verbs_sink *sink)
{
	uint32_t seq = (uint32_t)wc->wr_id & VERBS_SEQ_MASK, done;

	if (wc->status != SHUNT_IBV_WC_SUCCESS) {
		failed(ep, lane, wc);
		return;
	}
	lane->completed += (seq + 1 - lane->completed) & VERBS_SEQ_MASK;
	lane->done = lane->upto[seq % VERBS_SENDS];
	if (lane == ep->lane && ep->end_sent && (int32_t)(lane->completed - ep->end_seq) > 0)
		ep->end_done = true;
	if (ep->state == VERBS_LINGERING)
		return;
	verbs_push(ep);
	done = verbs_done(ep);
	ep->done += done;
	if (done)
		verbs_tell(sink, ep, SHUNT_NET_PUT_DONE, 0, done);
}

static void tell_ready(struct verbs_endpoint *ep, struct verbs_sink *sink)
{
	if (!verbs_ready(ep))
		return;
	verbs_tell(sink, ep, SHUNT_NET_READY, 0, 0);
	if (ep->finished)
		verbs_own(ep, VERBS_END);
}

/* One of the provider's own messages has come; the side QP's may have a channel. */
static void message_came(struct verbs_endpoint *ep, uint32_t channel, uint32_t number, struct verbs_sink *sink)
{
	switch (number & ~(uint32_t)VERBS_NUMBER) {
	case VERBS_PING:
		verbs_ping_came(ep);
		break;
	case VERBS_PONG:
		ep->pong_came = true;
		break;
	case VERBS_LANES:
		verbs_lanes_told(ep);
		return;
	case VERBS_LANES_UP:
		verbs_lanes_ping(ep);
		return;
	case VERBS_LANES_OK:
		ep->lanes_ok = true;
		break;
	case VERBS_CREDIT:
		ep->signals_allowed += number & VERBS_NUMBER;
		verbs_push(ep);
		return;
	case VERBS_END:
		if (ep->state == VERBS_READY)
			verbs_order_came(ep, &(struct shunt_net_event){ .kind = SHUNT_NET_END }, false, sink);
		return;
	case VERBS_BYE:
		/* The peer needs no such message from us. */
		ep->bye_sent = ep->bye_done = true;
		if (channel != VERBS_OWN_CHANNEL && ep->state == VERBS_READY)
			verbs_tell(sink, ep, SHUNT_NET_SIGNAL, channel, 1);
		verbs_fail(ep, -EOWNERDEAD, "the other end has closed the connection, or given it up");
		return;
	default:
		verbs_fail(ep, -EPROTO, "a message of an unknown kind, 0x%x", number);
		return;
	}
	tell_ready(ep, sink);
}

/* Posts the receives again that were used. */
static void renew_receives(struct verbs_endpoint *ep, struct verbs_lane *lane)
{
	uint64_t id = verbs_wr_id(ep->id, VERBS_RECEIVE, (int)(lane - ep->lane), 0);
	int err;

	if (lane->receives_owed < VERBS_BATCH)
		return;
	err = verbs_receives_post(lane->qp, id, (int)lane->receives_owed);
	lane->receives_owed = 0;
	if (err)
		verbs_lane_fail(ep, lane, err, "the NIC takes no receives: %s", strerror(-err));
}

/* Tells the peer of the receives that signals have given back. */
static void return_credits(struct verbs_endpoint *ep)
{
	if (ep->state == VERBS_READY && !ep->end_came && ep->signals_came - ep->signals_returned >= VERBS_SIGNALS / 2)
		verbs_own(ep, VERBS_CREDIT);
}

/* On a lane from 1 on. */
static void part_came(struct verbs_endpoint *ep, struct verbs_lane *lane, uint32_t imm, struct verbs_sink *sink)
{
	switch (imm & 0xffff) {
	case VERBS_PART:
		verbs_order_part(ep, lane);
		break;
	case VERBS_PING:
		verbs_lane_ping_came(ep, lane);
		tell_ready(ep, sink);
		break;
	default:
		verbs_lane_fail(ep, lane, -EPROTO, "a message of an unknown kind, 0x%x", imm);
		break;
	}
}

/* On the first lane. */
static void signal_came(struct verbs_endpoint *ep, uint32_t imm, struct verbs_sink *sink)
{
	struct shunt_net_event event = {
		.kind = SHUNT_NET_SIGNAL, .channel = imm >> 16, .count = imm & SHUNT_NET_MAX_COUNT
	};
	bool striped = imm & VERBS_STRIPED;

	if (event.channel == SHUNT_NET_MAX_CHANNELS)
		message_came(ep, event.channel, imm & 0xffff, sink);
	else if (ep->state != VERBS_READY || (!event.count && !striped))
		verbs_fail(ep, -EPROTO, "a signal before the connection was ready");
	else
		verbs_order_came(ep, &event, striped, sink);
}

static void receive_done(
    struct verbs_endpoint *ep, struct verbs_lane *lane, const struct shunt_ibv_wc *wc, struct verbs_sink *sink)
{
	uint32_t imm = ntohl(wc->imm_data);

	if (wc->status != SHUNT_IBV_WC_SUCCESS) {
		failed(ep, lane, wc);
		return;
	}
	lane->receives_owed++;
	if (lane == ep->lane)
		signal_came(ep, imm, sink);
	else
		part_came(ep, lane, imm, sink);
	if (ep->state != VERBS_DEAD)
		renew_receives(ep, lane);
	if (ep->state != VERBS_DEAD)
		return_credits(ep);
}

/* The first lane's messages of a closed endpoint are over with the end, the side QP's with its last. */
static void linger_done(
    struct verbs_endpoint *ep, struct verbs_lane *lane, enum verbs_kind kind, const struct shunt_ibv_wc *wc)
{
	bool bad = wc->status != SHUNT_IBV_WC_SUCCESS, sent = kind == VERBS_SEND && lane == ep->lane && lane->qp;

	if (sent && !bad)
		send_done(ep, lane, wc, &(struct verbs_sink){ 0 });
	if ((sent && (ep->end_done || bad)) || (kind == VERBS_SIDE_SEND && ep->bye_done))
		verbs_endpoint_free(ep);
}

static void side_sent(struct verbs_endpoint *ep, const struct shunt_ibv_wc *wc)
{
	uint32_t seq = (uint32_t)wc->wr_id & VERBS_SEQ_MASK;

	if (seq == VERBS_LAST_SIDE_SEND || (ep->bye_sent && wc->status != SHUNT_IBV_WC_SUCCESS))
		ep->bye_done = true;
	else if (seq == (ep->side_round & VERBS_SEQ_MASK))
		verbs_probe_done(ep, wc);
}

static void side_received(struct verbs_endpoint *ep, const struct shunt_ibv_wc *wc, struct verbs_sink *sink)
{
	uint32_t imm = ntohl(wc->imm_data);

	/* The receives of the rounds before are flushed. */
	if (wc->status == SHUNT_IBV_WC_SUCCESS)
		message_came(ep, imm >> 16, imm & 0xffff, sink);
}

/* Tells one event at most. */
static void completed(struct verbs_device *device, const struct shunt_ibv_wc *wc, struct verbs_sink *sink)
{
	struct verbs_endpoint *ep = verbs_endpoint_find(device, (uint32_t)(wc->wr_id >> 32));
	enum verbs_kind kind = (uint32_t)wc->wr_id >> 28;
	struct verbs_lane *lane = ep ? &ep->lane[(uint32_t)wc->wr_id >> 24 & 15] : NULL;

	if (kind == VERBS_FLUSH) {
		verbs_flush_done(device, wc);
		return;
	}
	/* Completions may come for an endpoint that is closed; those of a dead endpoint are flushed requests. */
	if (!ep)
		return;
	if (kind == VERBS_SIDE_SEND)
		side_sent(ep, wc);
	if (ep->state == VERBS_DEAD)
		return;
	if (ep->state == VERBS_LINGERING) {
		linger_done(ep, lane, kind, wc);
		return;
	}
	switch (kind) {
	case VERBS_SEND:
		send_done(ep, lane, wc, sink);
		break;
	case VERBS_RECEIVE:
		receive_done(ep, lane, wc, sink);
		break;
	case VERBS_SIDE_RECEIVE:
		side_received(ep, wc, sink);
		break;
	case VERBS_SIDE_SEND:
	case VERBS_FLUSH:
		break;
	}
}

static void poll_queue(struct verbs_device *device, struct shunt_ibv_cq *cq, struct verbs_sink *sink)
{
	struct shunt_ibv_wc wc[POLL];

	/* A peer may send as fast as this. */
	for (int round = 0; round < ROUNDS && sink->n < sink->max; round++) {
		int most = sink->max - sink->n < POLL ? sink->max - sink->n : POLL;
		int n = cq->context->poll_cq(cq, most, wc);

		for (int i = 0; i < n; i++)
			completed(device, &wc[i], sink);
		if (n < most)
			break;
	}
}

static void poll_queues(struct verbs_device *device, struct verbs_sink *sink)
{
	while (device->nstash && sink->n < sink->max) {
		struct shunt_ibv_wc first = device->stash[0];

		memmove(device->stash, device->stash + 1, (size_t)--device->nstash * sizeof(first));
		completed(device, &first, sink);
	}
	for (int i = 0; i < device->nrails && !device->nstash; i++)
		for (int j = 0; j < device->rail[i].ncqs; j++)
			poll_queue(device, device->rail[i].cqs[j].cq, sink);
}

/* Not connected in time: the lane that is in the way, and how. */
static void too_late(struct verbs_endpoint *ep)
{
	static const char silent[] =
	    "no answer; does it connect, and does the network carry RDMA between these addresses?";
	static const char small[] = "nothing arrives; are there smaller packets (MTU) on the way?";
	bool widening = ep->state == VERBS_WIDENING;
	int i = widening ? 1 : 0;

	while (widening && i < ep->nlanes - 1 && ep->lanes_proven >> i & 1)
		i++;
	verbs_lane_fail(ep, &ep->lane[i], -ETIMEDOUT, "not connected after %lld ms: %s", (long long)ep->base.connect_ms,
	    ep->state == VERBS_PROBING ? silent :
	        widening               ? (ep->ok_sent ? "what is sent does not arrive" : silent) :
	        ep->ping_came          ? "what is sent does not arrive" :
	                                 small);
}

static void look_at_deadlines(struct verbs_device *device)
{
	int64_t now = shunt_now_ms();

	for (unsigned i = 0; i < device->nslots; i++) {
		struct verbs_endpoint *ep = device->slots[i];

		if (!ep || !ep->deadline || now < ep->deadline)
			continue;
		verbs_deadline(ep, 0);
		if (ep->state == VERBS_LINGERING)
			verbs_endpoint_free(ep);
		else if (ep->flushed)
			verbs_lane_fail(ep, ep->flushed, -EIO, "the NIC has stopped the connection: %s",
			    verbs_status(device, SHUNT_IBV_WC_WR_FLUSH_ERR));
		else
			too_late(ep);
	}
}

static void attend(struct verbs_device *device, struct verbs_sink *sink)
{
	struct verbs_endpoint *ep = device->attention;

	device->attention = NULL;
	while (ep) {
		struct verbs_endpoint *next = ep->next_attention;

		ep->in_attention = false;
		if (ep->state == VERBS_READY) {
			verbs_order_go(ep, sink);
			return_credits(ep);
			verbs_push(ep);
		}
		if (ep->error_untold && sink->n < sink->max) {
			ep->error_untold = false;
			verbs_tell(sink, ep, SHUNT_NET_ERROR, 0, 0);
			sink->events[sink->n - 1].err = ep->base.err;
			sink->events[sink->n - 1].text = ep->base.text;
		}
		if (ep->error_untold)
			verbs_attend(ep);
		ep = next;
	}
}

static void beat(struct verbs_device *device)
{
	int64_t now = shunt_now_ms();

	if (now < device->next_beat)
		return;
	device->next_beat = now + VERBS_BEAT_MS;
	for (unsigned i = 0; i < device->nslots; i++)
		if (device->slots[i])
			verbs_beat(device->slots[i]);
}

int verbs_progress(struct shunt_net_device *net_device, struct shunt_net_event *events, int max)
{
	struct verbs_device *device = verbs_device_of(net_device);
	struct verbs_sink sink = { events, 0, max };

	if (device->armed || ++device->calls % ASYNC_CALLS == 0) {
		verbs_disarm(device);
		beat(device);
	}
	device->touched = false;
	if (device->flush.first != device->flush.last)
		verbs_flush_go(device, &sink);
	poll_queues(device, &sink);
	if (device->flush.first != device->flush.last)
		verbs_flush_go(device, &sink);
	if (device->timed)
		look_at_deadlines(device);
	if (device->attention)
		attend(device, &sink);
	return sink.n;
}

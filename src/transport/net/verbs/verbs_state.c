/* SPDX-License-Identifier: MIT */
/* An endpoint's errors, deadlines and events, and the last message of its side QP, for all other files. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include "transport/net/verbs/verbs_priv.h"

void verbs_attend(struct verbs_endpoint *ep)
{
	if (ep->in_attention)
		return;
	ep->in_attention = true;
	ep->next_attention = ep->device->attention;
	ep->device->attention = ep;
}

void verbs_deadline(struct verbs_endpoint *ep, int64_t deadline)
{
	ep->device->timed += (deadline != 0) - (ep->deadline != 0);
	ep->deadline = deadline;
}

bool verbs_over(const struct verbs_endpoint *ep)
{
	return ep->finished && ep->end_came && ep->done == ep->taken;
}

const char *verbs_status(const struct verbs_device *device, int status)
{
	return device->ibv->wc_status_str ? device->ibv->wc_status_str(status) : "error of the NIC";
}

void verbs_tell(struct verbs_sink *sink, struct verbs_endpoint *ep, enum shunt_net_event_kind kind, uint32_t channel,
    uint32_t count)
{
	struct shunt_net_event *last = sink->n ? &sink->events[sink->n - 1] : NULL;

	if (last && last->endpoint == &ep->base && last->kind == kind && last->channel == channel &&
	    (kind == SHUNT_NET_PUT_DONE || kind == SHUNT_NET_SIGNAL)) {
		last->count += count;
		return;
	}
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the caller's sink has room for the events */
	sink->events[sink->n++] = (struct shunt_net_event){
		.kind = kind, .endpoint = &ep->base, .user = ep->base.user, .channel = channel, .count = count
	};
}

int verbs_side_send(struct verbs_endpoint *ep, enum verbs_message message)
{
	struct shunt_ibv_send_wr wr = {
		.wr_id = verbs_wr_id(ep->id, VERBS_SIDE_SEND, 0, message ? VERBS_LAST_SIDE_SEND : ep->side_round),
		.opcode = message ? SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM : SHUNT_IBV_WR_RDMA_WRITE,
		.send_flags = SHUNT_IBV_SEND_SIGNALED,
		.imm_data = verbs_immediate(ep->last, message),
		.remote_addr = ep->peer.ping_at,
		.rkey = verbs_ping_rkey(ep, ep->lane),
	}, *bad;
	int err = ep->side->context->post_send(ep->side, &wr, &bad);

	return err < 0 ? -EIO : -err;
}

void verbs_bye(struct verbs_endpoint *ep)
{
	if (!ep->bye_sent && ep->reached)
		ep->bye_sent = !verbs_side_send(ep, VERBS_BYE);
}

static void fail(struct verbs_endpoint *ep, const struct verbs_lane *lane, int err, const char *fmt, va_list args)
{
	int n;

	if (ep->state == VERBS_DEAD || ep->state == VERBS_LINGERING || verbs_over(ep))
		return;
	n = snprintf(
	    ep->base.text, sizeof(ep->base.text), "%.120s over %s", ep->base.name, lane->rail->port->info.where);
	if (lane->has_gid) {
		char own[64], peers[64];

		shunt_gid_show(&lane->gid, own, sizeof(own));
		shunt_gid_show(&lane->peer_gid, peers, sizeof(peers));
		n += snprintf(ep->base.text + n, sizeof(ep->base.text) - (size_t)n, ", GID %d (%s) to %s",
		    lane->gid.index, own, peers);
	}
	n += snprintf(ep->base.text + n, sizeof(ep->base.text) - (size_t)n, ": ");
	vsnprintf(ep->base.text + n, sizeof(ep->base.text) - (size_t)n, fmt, args);
	ep->base.err = err;
	ep->state = VERBS_DEAD;
	ep->error_untold = true;
	verbs_deadline(ep, 0);
	/* Stop the QPs: the peer's requests and ours end at once. */
	for (int i = 0; i < verbs_lanes_most(ep->device) && ep->lane[i].qp; i++)
		verbs_qp_state(ep->lane[i].rail, ep->lane[i].qp, SHUNT_IBV_QPS_ERR);
	verbs_bye(ep);
	verbs_attend(ep);
}

void verbs_fail(struct verbs_endpoint *ep, int err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fail(ep, ep->lane, err, fmt, args);
	va_end(args);
}

void verbs_lane_fail(struct verbs_endpoint *ep, const struct verbs_lane *lane, int err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fail(ep, lane, err, fmt, args);
	va_end(args);
}

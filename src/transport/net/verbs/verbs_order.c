/* SPDX-License-Identifier: MIT */
/*
 * A large put has a part on each lane, and nothing orders lanes among each other. So each part ends with a completion
 * at the target, which says that the part is there. The first lane's completion also says that the put has parts on
 * other lanes. Signals and ends that come later on the first lane are told when as many parts have come on all other
 * lanes. A signal gives its receive back when it is told, so no lane can run out of receives.
 */
#include <errno.h>
#include "transport/net/verbs/verbs_priv.h"

static bool parts_came(const struct verbs_endpoint *ep, uint32_t parts)
{
	for (int i = 1; i < ep->nlanes; i++)
		if ((int32_t)(ep->lane[i].parts - parts) < 0)
			return false;
	return true;
}

static void tell(struct verbs_endpoint *ep, const struct verbs_waiting *w, struct verbs_sink *sink)
{
	if (w->kind == SHUNT_NET_END)
		ep->end_came = true;
	else
		ep->signals_came++;
	if (w->kind == SHUNT_NET_SIGNAL && !w->count)
		return;
	if (ep->device->gpu_memory)
		verbs_flush_defer(ep, w->kind, w->channel, w->count);
	else
		verbs_tell(sink, ep, w->kind, w->channel, w->count);
}

static struct verbs_waiting *first(const struct verbs_endpoint *ep)
{
	return ep->first_waiting == ep->last_waiting ? NULL : &ep->waiting[ep->first_waiting % VERBS_WAITING];
}

void verbs_order_came(
    struct verbs_endpoint *ep, const struct shunt_net_event *event, bool striped, struct verbs_sink *sink)
{
	struct verbs_waiting w = { event->kind, event->channel, event->count, ep->striped += striped };

	if (!first(ep) && parts_came(ep, w.parts)) {
		tell(ep, &w, sink);
		return;
	}
	if (!ep->waiting || ep->last_waiting - ep->first_waiting == VERBS_WAITING) {
		verbs_fail(ep, -EPROTO, "more signals than were allowed");
		return;
	}
	ep->waiting[ep->last_waiting++ % VERBS_WAITING] = w;
}

void verbs_order_part(struct verbs_endpoint *ep, struct verbs_lane *lane)
{
	lane->parts++;
	if (first(ep) && parts_came(ep, first(ep)->parts))
		verbs_attend(ep);
}

void verbs_order_go(struct verbs_endpoint *ep, struct verbs_sink *sink)
{
	struct verbs_waiting *w;

	while ((w = first(ep)) && parts_came(ep, w->parts) && sink->n < sink->max) {
		ep->first_waiting++;
		tell(ep, w, sink);
	}
	if (w && parts_came(ep, w->parts))
		verbs_attend(ep);
}

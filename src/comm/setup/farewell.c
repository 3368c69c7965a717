/* SPDX-License-Identifier: MIT */
/* The end of a communicator over hosts: its peers may still read and write what it leaves. */
#include <stdlib.h>
#include <time.h>
#include "base/io.h"
#include "base/lock.h"
#include "comm/core/communicator.h"
#include "comm/setup/network.h"
#include "transport/net/proxy/proxy.h"

#define FAREWELL_MS 200 /* how long the end of a communicator waits for its peers */
#define LINGER_MS 60000 /* how long connections stay open for peers that are late */

/* Connections and memory that a finished communicator keeps for its peers. */
struct lingering {
	struct lingering *next;
	struct shunt_proxy *proxy;
	const struct shunt_gpu_ops *gpu;
	void *memory, *landing;
	struct shunt_comm_region *regions;
	int64_t until;
};

static struct lingering *lingering; /* SHUNT_LOCK_LINGERING */

/* A forked child has no proxy, and its parent's memory is not its own. */
static void forget_lingering(void)
{
	lingering = NULL;
}
SHUNT_IN_FORKED_CHILD(forget_lingering)

static void release(const struct lingering *l)
{
	shunt_proxy_destroy(l->proxy);
	shunt_comm_net_regions_free(l->regions);
	if (l->memory)
		l->gpu->host_free(l->memory);
	if (l->landing)
		l->gpu->mem_free(l->landing);
}

void shunt_comm_net_reap(void)
{
	struct lingering *ended = NULL, **at;

	shunt_lock_acquire(SHUNT_LOCK_LINGERING);
	for (at = &lingering; *at;) {
		struct lingering *l = *at;

		if (!shunt_proxy_ended(l->proxy) && shunt_now_ms() < l->until) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		l->next = ended;
		ended = l;
	}
	shunt_lock_release(SHUNT_LOCK_LINGERING);
	while (ended) {
		struct lingering *l = ended;

		ended = l->next;
		release(l);
		free(l);
	}
}

void shunt_comm_net_finish(struct shunt_comm *comm)
{
	struct shunt_comm_net *net = &comm->net;
	struct lingering left, *l;
	int64_t end = shunt_deadline_ms(FAREWELL_MS);

	if (!net->memory)
		return;
	l = calloc(1, sizeof(*l));
	if (net->proxy)
		shunt_proxy_finish(net->proxy);
	while (
	    net->proxy && !shunt_proxy_ended(net->proxy) && !shunt_comm_life_error(&comm->life) && shunt_now_ms() < end)
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	left = (struct lingering){ .proxy = net->proxy,
		.gpu = comm->gpu,
		.memory = net->memory,
		.landing = net->landing,
		.regions = net->regions,
		.until = shunt_deadline_ms(LINGER_MS) };
	if (!l || !net->proxy || shunt_proxy_ended(net->proxy) || shunt_comm_life_error(&comm->life)) {
		release(&left);
		free(l);
	} else {
		*l = left;
		shunt_lock_acquire(SHUNT_LOCK_LINGERING);
		l->next = lingering;
		lingering = l;
		shunt_lock_release(SHUNT_LOCK_LINGERING);
	}
	net->proxy = NULL;
	net->regions = NULL;
	net->landing = NULL;
	net->memory = net->device_memory = NULL;
}

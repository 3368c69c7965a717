/* SPDX-License-Identifier: MIT */
/* A communicator's part of the proxy, as its owner sees it: each call runs on the proxy thread, which others wait for.
 */
#include "transport/net/proxy/proxy.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/fd.h"
#include "base/io.h"
#include "transport/net/proxy/proxy_priv.h"

#define LOST_LOOK_MS 50

struct create {
	struct shunt_proxy *proxy;
	struct shunt_proxy_offer *offers;
	int err;
};

/* The network may decline the landing; puts of peers then go to the host's memory. */
static int register_memory(struct proxy_thread *thread, struct shunt_proxy *proxy)
{
	const struct shunt_proxy_config *config = &proxy->config;
	const struct shunt_net_region memory = { .start = config->memory, .bytes = config->bytes, .dmabuf_fd = -1 };
	const struct shunt_net_region landing = { .start = config->landing,
		.bytes = config->landing_bytes,
		.dmabuf_fd = config->landing_fd,
		.flags = SHUNT_NET_MEMORY_GPU };
	const struct shunt_net_region words = { .start = config->memory,
		.bytes = sizeof(struct shunt_net_words),
		.dmabuf_fd = -1,
		.flags = SHUNT_NET_MEMORY_WORDS };
	int err = config->net->mem_register(thread->device, &memory, &proxy->memory);

	if (!err && config->adds)
		err = config->net->mem_register(thread->device, &words, &proxy->words);
	if (err || !config->landing)
		return err;
	err = config->net->mem_register(thread->device, &landing, &proxy->landing);
	return err == -EOPNOTSUPP ? 0 : err;
}

static void create(struct proxy_thread *thread, void *arg)
{
	struct create *call = arg;
	struct shunt_proxy *proxy = call->proxy;
	const struct shunt_net_ops *net = proxy->config.net;

	call->err = register_memory(thread, proxy);
	for (int i = 0; i < proxy->config.npeers && !call->err; i++) {
		struct connection *c = &proxy->connection[i];
		struct shunt_net_peer peer = proxy->config.peers[i];

		snprintf(c->name, sizeof(c->name), "%s", peer.name);
		c->proxy = proxy;
		c->rank = proxy->config.ranks[i];
		peer.user = c;
		peer.adds = proxy->config.adds;
		call->err = net->endpoint_create(thread->device, &peer, &c->endpoint, &call->offers[i].blob);
		call->offers[i].memory = net->mem_remote(proxy->landing ? proxy->landing : proxy->memory);
		call->offers[i].lands = proxy->landing != NULL;
		if (proxy->words)
			call->offers[i].words = net->mem_remote(proxy->words);
		call->offers[i].raised_at =
		    (uint64_t)((char *)shunt_proxy_words(proxy)->raised[i] - (char *)shunt_proxy_words(proxy));
	}
	if (call->err) {
		shunt_proxy_close_all(proxy);
		return;
	}
	proxy->next = thread->proxies;
	thread->proxies = proxy;
}

int shunt_proxy_create(
    const struct shunt_proxy_config *config, struct shunt_proxy_offer *offers, struct shunt_proxy **proxy_p)
{
	struct shunt_proxy *proxy = calloc(1, sizeof(*proxy) + (unsigned)config->npeers * sizeof(*proxy->connection));
	struct create call = { proxy, offers, 0 };
	int err;

	if (!proxy)
		return -ENOMEM;
	proxy->config = *config;
	proxy->notify_fd = SHUNT_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	err = proxy->notify_fd < 0 ? -errno :
	                             shunt_proxy_thread_get(config->net, &config->rails, config->gpu, &proxy->thread);
	if (!err) {
		shunt_proxy_thread_call(proxy->thread, create, &call);
		err = call.err;
		if (err)
			shunt_proxy_thread_put(proxy->thread);
	}
	if (err) {
		shunt_close_fd(&proxy->notify_fd);
		free(proxy);
		return err;
	}
	proxy->config.peers = NULL;
	proxy->config.ranks = NULL;
	*proxy_p = proxy;
	return 0;
}

struct connect {
	struct shunt_proxy *proxy;
	const struct shunt_proxy_offer *theirs;
};

static void begin_connecting(struct proxy_thread *thread, void *arg)
{
	struct connect *call = arg;
	struct shunt_proxy *proxy = call->proxy;

	(void)thread;
	for (int i = 0; i < proxy->config.npeers; i++) {
		struct connection *c = &proxy->connection[i];
		int err = proxy->config.net->endpoint_connect(c->endpoint, &call->theirs[i].blob);

		c->memory = call->theirs[i].memory;
		c->words = call->theirs[i].words;
		c->raised_at = call->theirs[i].raised_at;
		if (err) {
			char text[256];

			snprintf(text, sizeof(text), "no connection to %s can be made: %s", c->name, strerror(-err));
			shunt_proxy_fail(c, err, text);
		}
	}
}

struct missing {
	const struct shunt_proxy *proxy;
	char name[128]; /* of the first peer without a connection */
};

static void find_missing(struct proxy_thread *thread, void *arg)
{
	struct missing *call = arg;
	const struct shunt_proxy *proxy = call->proxy;

	(void)thread;
	for (int i = 0; i < proxy->config.npeers && !call->name[0]; i++)
		if (proxy->connection[i].state == CONNECTION_NEW)
			snprintf(call->name, sizeof(call->name), "%s", proxy->connection[i].name);
}

static void begin_taking(struct proxy_thread *thread, void *arg)
{
	struct shunt_proxy *proxy = arg;

	(void)thread;
	proxy->takes = true;
	if (atomic_load(&proxy->failed) && proxy->err != -ECANCELED)
		proxy->config.failed(proxy->config.ctx, proxy->failed_at, proxy->err, proxy->text);
}

void shunt_proxy_start(struct shunt_proxy *proxy)
{
	shunt_proxy_thread_call(proxy->thread, begin_taking, proxy);
}

int shunt_proxy_connect(struct shunt_proxy *proxy, const struct shunt_proxy_offer *theirs, int64_t timeout_ms,
    const atomic_int *cancel, char *text)
{
	int64_t deadline = shunt_deadline_ms(timeout_ms), look;
	struct pollfd fd = { .fd = proxy->notify_fd, .events = POLLIN };
	struct missing missing = { proxy, "" };
	uint64_t count;
	int err = 0, ready;

	shunt_proxy_thread_call(proxy->thread, begin_connecting, &(struct connect){ proxy, theirs });
	while (!err) {
		if (read(proxy->notify_fd, &count, sizeof(count)) < 0)
			count = 0; /* nothing has changed */
		ready = atomic_load(&proxy->nready);
		if (atomic_load(&proxy->failed)) {
			snprintf(text, 256, "%s", proxy->text);
			return proxy->err;
		}
		if (ready == proxy->config.npeers)
			return 0;
		look = shunt_deadline_ms(LOST_LOOK_MS);
		err = shunt_io_poll(&fd, 1, look < deadline ? look : deadline, cancel);
		if (err > 0 || (err == -ETIMEDOUT && shunt_now_ms() < deadline))
			err = proxy->config.lost && proxy->config.lost(proxy->config.ctx) ? -EOWNERDEAD : 0;
	}
	shunt_proxy_thread_call(proxy->thread, find_missing, &missing);
	if (missing.name[0])
		snprintf(text, 256, "no connection to %s was made (%d of %d were)", missing.name, ready,
		    proxy->config.npeers);
	else if (atomic_load(&proxy->failed)) /* just now, as is the next */
		snprintf(text, 256, "%s", proxy->text);
	else if (err == -ETIMEDOUT)
		return 0; /* the last one came */
	else
		snprintf(text, 256, "%s", strerror(-err));
	return err;
}

/* ---- regions */

struct region_call {
	struct shunt_proxy *proxy;
	const struct shunt_proxy_region *region;
	struct region *regions; /* the table, larger; then the old one */
	struct shunt_net_remote remote;
	int err;
};

static void create_region(struct proxy_thread *thread, void *arg)
{
	struct region_call *call = arg;
	struct shunt_proxy *proxy = call->proxy;
	const struct shunt_net_ops *net = proxy->config.net;
	unsigned number = call->region->number;
	struct region *old = proxy->regions;
	struct shunt_net_memory *memory;

	call->err = net->mem_register(thread->device,
	    &(struct shunt_net_region){ .start = call->region->start,
	        .bytes = call->region->bytes,
	        .dmabuf_fd = -1,
	        .flags = proxy->config.adds ? SHUNT_NET_MEMORY_WORDS : SHUNT_NET_MEMORY_ORDERED },
	    &memory);
	if (call->err)
		return;
	if (proxy->nregions)
		memcpy(call->regions, old, proxy->nregions * sizeof(*old));
	call->regions[number] = (struct region){ .is = *call->region, .memory = memory };
	proxy->regions = call->regions;
	proxy->nregions = number + 1;
	call->regions = old;
	call->remote = net->mem_remote(memory);
}

int shunt_proxy_region_create(
    struct shunt_proxy *proxy, const struct shunt_proxy_region *region, struct shunt_net_remote *remote_p)
{
	struct region_call call = { .proxy = proxy, .region = region };

	/* Numbers only rise, and the caller alone changes the table. */
	if (region->number >= SHUNT_NET_MAX_REGIONS || region->number < proxy->nregions)
		return -EINVAL;
	call.regions = calloc(region->number + 1, sizeof(*call.regions));
	if (!call.regions)
		return -ENOMEM;
	shunt_proxy_thread_call(proxy->thread, create_region, &call);
	free(call.regions);
	*remote_p = call.remote;
	return call.err;
}

struct region_connect {
	struct shunt_proxy *proxy;
	unsigned number;
	struct shunt_net_remote *remotes;
};

static void connect_region(struct proxy_thread *thread, void *arg)
{
	struct region_connect *call = arg;

	(void)thread;
	call->proxy->regions[call->number].remotes = call->remotes;
}

int shunt_proxy_region_connect(struct shunt_proxy *proxy, unsigned number, const struct shunt_net_remote *theirs)
{
	size_t bytes = (unsigned)proxy->config.npeers * sizeof(*theirs);
	struct region_connect call = { proxy, number, malloc(bytes ? bytes : 1) };

	if (!call.remotes)
		return -ENOMEM;
	memcpy(call.remotes, theirs, bytes);
	shunt_proxy_thread_call(proxy->thread, connect_region, &call);
	return 0;
}

void shunt_proxy_wake(struct shunt_proxy *proxy)
{
	shunt_proxy_thread_wake(proxy->thread);
}

struct about {
	struct shunt_proxy *proxy;
	int rank;
};

static void give_up(struct proxy_thread *thread, void *arg)
{
	const struct about *call = arg;
	struct shunt_proxy *proxy = call->proxy;

	(void)thread;
	if (atomic_load(&proxy->failed))
		return;
	proxy->err = -ECANCELED;
	snprintf(proxy->text, sizeof(proxy->text), "the communicator was aborted");
	atomic_store(&proxy->failed, true);
	shunt_proxy_tell_peers(proxy, call->rank);
}

void shunt_proxy_abort(struct shunt_proxy *proxy, int rank)
{
	shunt_proxy_thread_call(proxy->thread, give_up, &(struct about){ proxy, rank });
}

static void tell_death(struct proxy_thread *thread, void *arg)
{
	const struct about *call = arg;

	(void)thread;
	shunt_proxy_tell_death(call->proxy, call->rank);
}

void shunt_proxy_died(struct shunt_proxy *proxy, int rank)
{
	if (!proxy->config.net->tells_deaths)
		shunt_proxy_thread_call(proxy->thread, tell_death, &(struct about){ proxy, rank });
}

static void begin_finishing(struct proxy_thread *thread, void *arg)
{
	struct shunt_proxy *proxy = arg;

	(void)thread;
	proxy->finishing = true;
}

void shunt_proxy_finish(struct shunt_proxy *proxy)
{
	shunt_proxy_thread_call(proxy->thread, begin_finishing, proxy);
}

bool shunt_proxy_ended(const struct shunt_proxy *proxy)
{
	return atomic_load(&proxy->ended);
}

static void destroy(struct proxy_thread *thread, void *arg)
{
	struct shunt_proxy *proxy = arg, **link = &thread->proxies;

	while (*link != proxy)
		link = &(*link)->next;
	*link = proxy->next;
	shunt_proxy_close_all(proxy);
}

void shunt_proxy_destroy(struct shunt_proxy *proxy)
{
	if (!proxy)
		return;
	shunt_proxy_thread_call(proxy->thread, destroy, proxy);
	shunt_proxy_thread_put(proxy->thread);
	shunt_close_fd(&proxy->notify_fd);
	free(proxy);
}

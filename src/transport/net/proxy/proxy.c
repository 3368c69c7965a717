/* SPDX-License-Identifier: MIT */
/* A communicator's part of the proxy: its connections, and the way of a trigger and of a signal. */
#include "transport/net/proxy/proxy.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/io.h"
#include "base/log.h"
#include "transport/net/proxy/proxy_priv.h"

#define BATCH 16 /* triggers that are posted at a time */
#define LOST_LOOK_MS 50

static struct shunt_net_words *words_of(const struct shunt_proxy *proxy)
{
	return proxy->config.memory;
}

static void notify(struct shunt_proxy *proxy)
{
	uint64_t one = 1;

	if (write(proxy->notify_fd, &one, sizeof(one)) < 0)
		return; /* its count is full: it is readable all the same */
}

/* Puts were posted, or are done: says which of the FIFO's triggers is the first that may still be read. */
static void publish_busy(struct connection *c)
{
	uint64_t place = c->posted == c->done ? 0 : c->places[c->done % SHUNT_PROXY_POSTED];

	__atomic_store_n(&words_of(c->proxy)->busy[c - c->proxy->connection], place, __ATOMIC_RELEASE);
}

/* n triggers, from this place on. */
static void note_posted(struct connection *c, uint64_t place, int n)
{
	for (int i = 0; i < n; i++)
		c->places[c->posted++ % SHUNT_PROXY_POSTED] = place + (unsigned)i;
	publish_busy(c);
}

/* ---- failure */

static void tell_peers(struct shunt_proxy *proxy)
{
	static const struct shunt_net_put given_up = { .channel = SHUNT_PROXY_ABORT_CHANNEL, .count = 1 };

	for (int i = 0; i < proxy->config.npeers; i++) {
		struct connection *c = &proxy->connection[i];

		if (c->state == CONNECTION_READY && !c->finished &&
		    proxy->config.net->post(c->endpoint, &given_up, 1) == 1)
			note_posted(c, proxy->taken + 1, 1);
	}
}

static void fail(struct connection *c, int err, const char *text)
{
	struct shunt_proxy *proxy = c->proxy;

	if (atomic_load(&proxy->failed))
		return;
	proxy->err = err;
	proxy->failed_at = (int)(c - proxy->connection);
	snprintf(proxy->text, sizeof(proxy->text), "%s", text);
	atomic_store(&proxy->failed, true);
	notify(proxy);
	tell_peers(proxy);
	if (proxy->takes && !proxy->finishing)
		proxy->config.failed(proxy->config.ctx, proxy->failed_at, err, proxy->text);
}

/* ---- triggers */

/* The next trigger, if all of it has arrived. */
static bool read_trigger(const struct shunt_proxy *proxy, uint64_t number, uint32_t value[4])
{
	const struct shunt_net_trigger *trigger = &words_of(proxy)->fifo[number & (SHUNT_NET_FIFO - 1)];

	for (int i = 0; i < 4; i++) {
		uint64_t half = __atomic_load_n(&trigger->half[i], __ATOMIC_ACQUIRE);

		if (half >> 32 != (uint32_t)(number + 1))
			return false;
		value[i] = (uint32_t)half;
	}
	return true;
}

/* A put in a region; one that is not there has no memory, and is refused. */
static void put_in_region(
    const struct shunt_proxy *proxy, const struct connection *c, const uint32_t value[4], struct shunt_net_put *put)
{
	uint32_t number = value[SHUNT_NET_TRIGGER_BYTES] / (SHUNT_NET_REGION_PUT + 1),
	         units = value[SHUNT_NET_TRIGGER_BYTES] & SHUNT_NET_REGION_PUT;
	const struct region *region = number < proxy->nregions ? &proxy->regions[number] : NULL;

	put->bytes = units * SHUNT_NET_REGION_UNIT;
	if (!region || !region->remotes)
		return;
	put->source = (char *)region->is.at + (uint64_t)value[SHUNT_NET_TRIGGER_FROM] * SHUNT_NET_REGION_UNIT;
	put->memory = region->memory;
	put->remote = region->remotes[c - proxy->connection];
	put->remote_offset = (uint64_t)value[SHUNT_NET_TRIGGER_TO] * SHUNT_NET_REGION_UNIT;
}

/* The region whose counters have this channel; NULL: none. */
static const struct region *region_of_channel(const struct shunt_proxy *proxy, uint32_t channel)
{
	for (unsigned i = 0; i < proxy->nregions; i++) {
		const struct region *region = &proxy->regions[i];

		if (channel - region->is.first_channel < region->is.nchannels)
			return region;
	}
	return NULL;
}

/* Makes the signal an addition to the peer's word, if its channel has one. */
static void add_to_word(const struct shunt_proxy *proxy, const struct connection *c, struct shunt_net_put *put)
{
	const struct region *region = region_of_channel(proxy, put->channel);

	if (put->channel < SHUNT_NET_SIGNAL_CHANNELS) {
		put->words = c->words;
		put->word_offset = c->raised_at + put->channel * sizeof(uint64_t);
	} else if (region && region->remotes) {
		put->words = region->remotes[c - proxy->connection];
		put->word_offset = (uint64_t)((char *)region->is.counters - (char *)region->is.at) +
		    (put->channel - region->is.first_channel) * sizeof(uint64_t);
	} else {
		return;
	}
	put->flags |= SHUNT_NET_ADD;
}

static struct shunt_net_put put_of(const struct shunt_proxy *proxy, const struct connection *c, const uint32_t value[4])
{
	uint32_t what = value[0] >> 24;
	struct shunt_net_put put = { .channel = value[0] >> 8 & 0xffff };

	if (what & SHUNT_NET_TRIGGER_REGION) {
		put_in_region(proxy, c, value, &put);
		put.flags = what & SHUNT_NET_TRIGGER_PACKETS ? SHUNT_NET_PACKETS : 0;
	} else if (what & SHUNT_NET_TRIGGER_PUT) {
		put.source = (char *)proxy->config.memory + value[SHUNT_NET_TRIGGER_FROM];
		put.memory = proxy->memory;
		put.remote = c->memory;
		put.remote_offset = value[SHUNT_NET_TRIGGER_TO];
		put.bytes = value[SHUNT_NET_TRIGGER_BYTES];
		put.flags = what & SHUNT_NET_TRIGGER_PACKETS ? SHUNT_NET_PACKETS : 0;
	}
	if (what & SHUNT_NET_TRIGGER_SIGNAL)
		put.count = what & SHUNT_NET_TRIGGER_PUT ? 1 : (uint16_t)value[SHUNT_NET_TRIGGER_BYTES];
	if (put.count && proxy->config.adds)
		add_to_word(proxy, c, &put);
	return put;
}

static bool is_forsaken(const uint32_t value[4])
{
	return value[0] >> 24 & SHUNT_NET_TRIGGER_FORSAKEN;
}

/* For kernels: nothing more comes from this peer. */
static void tell_left(struct connection *c)
{
	struct shunt_net_words *words = words_of(c->proxy);

	__atomic_store_n(&words->gone[c - c->proxy->connection], 1, __ATOMIC_RELEASE);
	__atomic_store_n(&words->left, words->left + 1, __ATOMIC_RELEASE);
}

static void fail_left(struct connection *c, const char *who, const char *what)
{
	char text[160];

	snprintf(text, sizeof(text), "%s has left, and a call still %s", who, what);
	fail(c, -EOWNERDEAD, text);
}

static void fail_forsaken(struct connection *c, const uint32_t value[4])
{
	char rank[32];

	snprintf(rank, sizeof(rank), "rank %u", value[SHUNT_NET_TRIGGER_BYTES]);
	fail_left(c, value[SHUNT_NET_TRIGGER_FROM] ? c->name : rank, "waits for it");
}

/* Posts the next triggers, as many as follow each other on one connection. Their number; 0: none, or no room. */
static int post_some(struct shunt_proxy *proxy)
{
	struct shunt_net_put puts[BATCH];
	uint32_t value[4], next[4];
	struct connection *c;
	int n = 0, taken;

	if (!read_trigger(proxy, proxy->taken, value))
		return 0;
	if ((value[0] & 255) >= (unsigned)proxy->config.npeers) {
		fail(&proxy->connection[0], -EINVAL, "a trigger is of no connection");
		return 1;
	}
	c = &proxy->connection[value[0] & 255];
	if (is_forsaken(value)) {
		fail_forsaken(c, value);
		return 1;
	}
	do {
		puts[n++] = put_of(proxy, c, value);
		if (n == BATCH || !read_trigger(proxy, proxy->taken + (unsigned)n, next) ||
		    (next[0] ^ value[0]) & 255 || is_forsaken(next))
			break;
		puts[n - 1].flags |= SHUNT_NET_MORE;
		memcpy(value, next, sizeof(value));
	} while (true);
	/* Dead without a failure: closed, by a peer that had left. */
	if ((c->state == CONNECTION_ENDED || c->state == CONNECTION_DEAD) && puts[0].bytes)
		fail_left(c, c->name, "sends to it");
	if (atomic_load(&proxy->failed) || c->state == CONNECTION_DEAD)
		return n; /* dropped */
	for (int i = 0; i < n; i++)
		if (puts[i].bytes && !puts[i].memory) {
			fail(c, -EINVAL, "a trigger names a region that is none");
			return n;
		}
	if (c->posted - c->done + (unsigned)n > SHUNT_PROXY_POSTED)
		return 0;
	taken = proxy->config.net->post(c->endpoint, puts, n);
	if (taken == -EINVAL) {
		fail(c, taken, "a trigger is out of bounds");
		return n;
	}
	if (taken < 0) /* dead: an event will tell, or has told */
		return n;
	note_posted(c, proxy->taken + 1, taken);
	return taken;
}

static bool carry(struct shunt_proxy *proxy)
{
	uint64_t before = proxy->taken;

	for (int round = 0; round < 8; round++) {
		int n = post_some(proxy);

		if (!n)
			break;
		proxy->taken += (unsigned)n;
		__atomic_store_n(&words_of(proxy)->taken, proxy->taken, __ATOMIC_RELEASE);
	}
	return proxy->taken != before;
}

/* ---- the end */

static void close_all(struct shunt_proxy *proxy)
{
	const struct shunt_net_ops *net = proxy->config.net;

	for (int i = 0; i < proxy->config.npeers; i++) {
		net->endpoint_close(proxy->connection[i].endpoint);
		proxy->connection[i].endpoint = NULL;
	}
	for (unsigned i = 0; i < proxy->nregions; i++) {
		net->mem_deregister(proxy->regions[i].memory);
		free(proxy->regions[i].remotes);
	}
	free(proxy->regions);
	proxy->regions = NULL;
	proxy->nregions = 0;
	net->mem_deregister(proxy->landing);
	net->mem_deregister(proxy->words);
	net->mem_deregister(proxy->memory);
	proxy->landing = proxy->memory = proxy->words = NULL;
}

/* Finishes what has nothing left to carry. What has ended keeps no descriptors, however late its owner looks. */
static void go_on_finishing(struct shunt_proxy *proxy)
{
	uint32_t value[4];
	bool ended = true;

	if (read_trigger(proxy, proxy->taken, value) && !atomic_load(&proxy->failed))
		return;
	for (int i = 0; i < proxy->config.npeers; i++) {
		struct connection *c = &proxy->connection[i];

		if (!c->finished && c->state != CONNECTION_DEAD && c->state != CONNECTION_NEW) {
			proxy->config.net->finish(c->endpoint);
			c->finished = true;
		}
		ended &= c->state == CONNECTION_DEAD || (c->state == CONNECTION_ENDED && c->posted == c->done);
	}
	if (!ended)
		return;
	proxy->takes = false;
	close_all(proxy);
	close(proxy->notify_fd);
	proxy->notify_fd = -1;
	atomic_store(&proxy->ended, true);
}

bool shunt_proxy_left(const struct shunt_proxy *list)
{
	for (; list; list = list->next)
		for (int i = 0; i < list->config.npeers; i++) {
			const struct connection *c = &list->connection[i];

			if (c->state != CONNECTION_NEW && c->state != CONNECTION_DEAD &&
			    (!c->finished || c->posted != c->done))
				return false;
		}
	return true;
}

bool shunt_proxy_work(struct shunt_proxy *proxy)
{
	bool any = proxy->takes && carry(proxy);

	if (proxy->finishing && !atomic_load(&proxy->ended))
		go_on_finishing(proxy);
	return any;
}

/* ---- events */

static void raise_channel(struct connection *c, uint32_t channel, uint32_t count)
{
	struct shunt_proxy *proxy = c->proxy;
	const struct region *region = region_of_channel(proxy, channel);
	char text[160];
	uint64_t *word;

	if (channel < SHUNT_NET_SIGNAL_CHANNELS) {
		word = &words_of(proxy)->raised[c - proxy->connection][channel];
		__atomic_store_n(word, *word + count, __ATOMIC_RELEASE);
		return;
	}
	if (region) {
		word = &region->is.counters[channel - region->is.first_channel];
		__atomic_store_n(word, *word + count, __ATOMIC_RELEASE);
		return;
	}
	if (channel == SHUNT_PROXY_ABORT_CHANNEL)
		snprintf(text, sizeof(text), "%s has given up", c->name);
	else
		snprintf(text, sizeof(text), "%s raised channel %u, which is none", c->name, channel);
	fail(c, channel == SHUNT_PROXY_ABORT_CHANNEL ? -EOWNERDEAD : -EPROTO, text);
}

void shunt_proxy_event(const struct shunt_net_event *event)
{
	struct connection *c = event->user;

	switch (event->kind) {
	case SHUNT_NET_READY:
		c->state = CONNECTION_READY;
		atomic_fetch_add(&c->proxy->nready, 1);
		notify(c->proxy);
		break;
	case SHUNT_NET_PUT_DONE:
		c->done += event->count;
		publish_busy(c);
		break;
	case SHUNT_NET_SIGNAL:
		raise_channel(c, event->channel, event->count);
		break;
	case SHUNT_NET_END:
		c->state = CONNECTION_ENDED;
		tell_left(c);
		break;
	case SHUNT_NET_ERROR:
		if (c->state != CONNECTION_ENDED)
			fail(c, event->err, event->text);
		c->state = CONNECTION_DEAD;
		break;
	}
}

/* ---- commands */

struct create {
	struct shunt_proxy *proxy;
	struct shunt_proxy_offer *offers;
	int err;
};

/* The network may decline the landing: then there is none. */
static int register_memory(struct proxy_thread *thread, struct shunt_proxy *proxy)
{
	const struct shunt_proxy_config *config = &proxy->config;
	const struct shunt_net_region memory = { .at = config->memory, .bytes = config->bytes, .dmabuf_fd = -1 };
	const struct shunt_net_region landing = { .at = config->landing,
		.bytes = config->landing_bytes,
		.dmabuf_fd = config->landing_fd,
		.flags = SHUNT_NET_MEMORY_GPU };
	const struct shunt_net_region words = { .at = config->memory,
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
		peer.user = c;
		peer.adds = proxy->config.adds;
		call->err = net->endpoint_create(thread->device, &peer, &c->endpoint, &call->offers[i].blob);
		call->offers[i].memory = net->mem_remote(proxy->landing ? proxy->landing : proxy->memory);
		call->offers[i].lands = proxy->landing != NULL;
		if (proxy->words)
			call->offers[i].words = net->mem_remote(proxy->words);
		call->offers[i].raised_at = (uint64_t)((char *)words_of(proxy)->raised[i] - (char *)words_of(proxy));
	}
	if (call->err) {
		close_all(proxy);
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
	proxy->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	err = proxy->notify_fd < 0 ? -errno :
	                             shunt_proxy_thread_get(config->net, &config->rails, config->gpu, &proxy->thread);
	if (!err) {
		shunt_proxy_thread_call(proxy->thread, create, &call);
		err = call.err;
		if (err)
			shunt_proxy_thread_put(proxy->thread);
	}
	if (err) {
		if (proxy->notify_fd >= 0)
			close(proxy->notify_fd);
		free(proxy);
		return err;
	}
	proxy->config.peers = NULL;
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
		if (err)
			fail(c, err, c->name);
	}
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
	snprintf(text, 256, "%d of %d connections to other hosts were made", ready, proxy->config.npeers);
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
	    &(struct shunt_net_region){ .at = call->region->at,
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

	/* Numbers only go up, and nobody else changes the table. */
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

static void give_up(struct proxy_thread *thread, void *arg)
{
	struct shunt_proxy *proxy = arg;

	(void)thread;
	if (atomic_load(&proxy->failed))
		return;
	proxy->err = -ECANCELED;
	snprintf(proxy->text, sizeof(proxy->text), "the communicator was aborted");
	atomic_store(&proxy->failed, true);
	tell_peers(proxy);
}

void shunt_proxy_abort(struct shunt_proxy *proxy)
{
	shunt_proxy_thread_call(proxy->thread, give_up, proxy);
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
	struct shunt_proxy *proxy = arg, **at = &thread->proxies;

	while (*at != proxy)
		at = &(*at)->next;
	*at = proxy->next;
	close_all(proxy);
}

void shunt_proxy_destroy(struct shunt_proxy *proxy)
{
	if (!proxy)
		return;
	shunt_proxy_thread_call(proxy->thread, destroy, proxy);
	shunt_proxy_thread_put(proxy->thread);
	if (proxy->notify_fd >= 0)
		close(proxy->notify_fd);
	free(proxy);
}

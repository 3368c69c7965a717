/* SPDX-License-Identifier: MIT */
/* Carries a communicator's triggers out and its signals in, on the proxy thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "transport/net/proxy/proxy_priv.h"
#include "base/fd.h"

#define BATCH 16 /* triggers that are posted at a time */

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

	__atomic_store_n(&shunt_proxy_words(c->proxy)->busy[c - c->proxy->connection], place, __ATOMIC_RELEASE);
}

/* n triggers, from this place on. */
static void note_posted(struct connection *c, uint64_t place, int n)
{
	if (c->proxy->config.gone && c->posted == c->done)
		c->moved_ms = shunt_now_ms();
	for (int i = 0; i < n; i++)
		c->places[c->posted++ % SHUNT_PROXY_POSTED] = place + (unsigned)i;
	publish_busy(c);
}

/* ---- failure */

static void tell(struct shunt_proxy *proxy, uint32_t channel, unsigned flags)
{
	const struct shunt_net_put word = { .channel = channel, .count = 1, .flags = flags };

	for (int i = 0; i < proxy->config.npeers; i++) {
		struct connection *c = &proxy->connection[i];

		if (c->state == CONNECTION_READY && !c->finished && proxy->config.net->post(c->endpoint, &word, 1) == 1)
			note_posted(c, proxy->taken + 1, 1);
	}
}

void shunt_proxy_tell_peers(struct shunt_proxy *proxy, int rank)
{
	tell(
	    proxy, rank < 0 ? SHUNT_PROXY_ABORT_CHANNEL : SHUNT_PROXY_BECAUSE_CHANNEL + (uint32_t)rank, SHUNT_NET_LAST);
}

void shunt_proxy_tell_death(struct shunt_proxy *proxy, int rank)
{
	tell(proxy, SHUNT_PROXY_DIED_CHANNEL + (uint32_t)rank, 0);
}

/* The owner goes on without this peer. */
static void end_alone(struct connection *c, const char *text)
{
	struct shunt_proxy *proxy = c->proxy;
	bool known = c->state == CONNECTION_ENDED || c->state == CONNECTION_DEAD;

	c->state = CONNECTION_DEAD;
	/* The text may be the endpoint's. */
	if (!known && !proxy->finishing)
		proxy->config.gone(proxy->config.ctx, (int)(c - proxy->connection), text);
	proxy->config.net->endpoint_close(c->endpoint);
	c->endpoint = NULL;
	c->doubted_ms = 0;
	/* Nothing reads the sources any more. */
	c->done = c->posted;
	publish_busy(c);
}

static bool may_end_alone(const struct connection *c)
{
	return c->proxy->config.gone && c->proxy->takes && !atomic_load(&c->proxy->failed);
}

/* rank: of the first cause, which the peers are told. */
static void fail_because(struct connection *c, int err, int rank, const char *text)
{
	struct shunt_proxy *proxy = c->proxy;

	if (atomic_load(&proxy->failed))
		return;
	proxy->err = err;
	proxy->failed_at = (int)(c - proxy->connection);
	snprintf(proxy->text, sizeof(proxy->text), "%s", text);
	atomic_store(&proxy->failed, true);
	notify(proxy);
	shunt_proxy_tell_peers(proxy, rank);
	if (proxy->takes && !proxy->finishing)
		proxy->config.failed(proxy->config.ctx, proxy->failed_at, err, proxy->text);
}

void shunt_proxy_fail(struct connection *c, int err, const char *text)
{
	fail_because(c, err, c->rank, text);
}

/* The peer, or the connection with it, has ended because of this rank. */
static void lose_because(struct connection *c, int err, int rank, const char *text)
{
	if (may_end_alone(c))
		end_alone(c, text);
	else
		fail_because(c, err, rank, text);
}

static void lose(struct connection *c, int err, const char *text)
{
	lose_because(c, err, c->rank, text);
}

atomic_int shunt_proxy_doubt_ms = 200;

/* A rank of the peer's host has seen the peer's process end. What the peer had sent before may come after that word. */
static void doubt(struct shunt_proxy *proxy, int rank)
{
	for (int i = 0; i < proxy->config.npeers; i++) {
		struct connection *c = &proxy->connection[i];

		if (c->rank == rank && c->state == CONNECTION_READY && !c->doubted_ms)
			c->doubted_ms = shunt_deadline_ms(atomic_load(&shunt_proxy_doubt_ms));
		proxy->doubts |= c->doubted_ms != 0;
	}
}

/* This thread may not have run for long: what came meanwhile is heard before a doubt ends. */
static void end_doubts(struct shunt_proxy *proxy)
{
	int64_t now = shunt_now_ms();
	bool left = false;
	char text[160];

	for (int i = 0; i < proxy->config.npeers; i++) {
		struct connection *c = &proxy->connection[i];

		if (c->doubted_ms && (c->doubted_ms > now || !c->doubt_is_over)) {
			c->doubt_is_over = c->doubted_ms <= now;
			left = true;
			continue;
		}
		if (!c->doubted_ms)
			continue;
		c->doubted_ms = 0;
		if (c->state != CONNECTION_READY)
			continue;
		snprintf(text, sizeof(text), "%s has died, as another rank of its host tells", c->name);
		lose(c, -EOWNERDEAD, text);
		c->state = CONNECTION_DEAD;
	}
	proxy->doubts = left;
}

/* A peer that takes nothing would keep the others' data from going out. */
static void end_stuck(struct shunt_proxy *proxy)
{
	char text[160];

	for (int i = 0; i < proxy->config.npeers; i++) {
		struct connection *c = &proxy->connection[i];

		if (c->posted == c->done || !may_end_alone(c) ||
		    shunt_now_ms() - c->moved_ms < proxy->config.patience_ms)
			continue;
		snprintf(text, sizeof(text), "%s has taken no data for %lld ms", c->name,
		    (long long)proxy->config.patience_ms);
		end_alone(c, text);
	}
}

/* ---- triggers */

/* The next trigger, if all of it has arrived. */
static bool read_trigger(const struct shunt_proxy *proxy, uint64_t number, uint32_t value[4])
{
	const struct shunt_net_trigger *trigger = &shunt_proxy_words(proxy)->fifo[number & (SHUNT_NET_FIFO - 1)];

	for (int i = 0; i < 4; i++) {
		uint64_t half = __atomic_load_n(&trigger->half[i], __ATOMIC_ACQUIRE);

		if (half >> 32 != (uint32_t)(number + 1))
			return false;
		value[i] = (uint32_t)half;
	}
	return true;
}

/*
 * True unless the trigger's put has packets of which some are on their way here. Those that are out of bounds have
 * none: the provider refuses the put.
 */
static bool packets_are_here(const struct shunt_proxy *proxy, const uint32_t value[4])
{
	uint64_t from = value[SHUNT_NET_TRIGGER_FROM], bytes = value[SHUNT_NET_TRIGGER_BYTES];
	const uint64_t *at = (const uint64_t *)proxy->config.memory + from / 8;
	uint32_t flag = value[0] >> 8 & 0xffff;

	if (!(value[0] >> 24 & SHUNT_NET_TRIGGER_FLAGGED) || from % 8 || from + bytes > proxy->config.bytes)
		return true;
	for (uint64_t i = 0; i < bytes; i += 8)
		if ((__atomic_load_n(&at[i / 8], __ATOMIC_ACQUIRE) >> 32 & 0xffff) != flag)
			return false;
	return true;
}

/* A put in a region. A region that does not exist gives the put no memory, and the caller refuses it. */
static void put_in_region(
    const struct shunt_proxy *proxy, const struct connection *c, const uint32_t value[4], struct shunt_net_put *put)
{
	uint32_t number = value[SHUNT_NET_TRIGGER_BYTES] / (SHUNT_NET_REGION_PUT + 1),
	         units = value[SHUNT_NET_TRIGGER_BYTES] & SHUNT_NET_REGION_PUT;
	const struct region *region = number < proxy->nregions ? &proxy->regions[number] : NULL;

	put->bytes = units * SHUNT_NET_REGION_UNIT;
	if (!region || !region->remotes)
		return;
	put->source = (char *)region->is.start + (uint64_t)value[SHUNT_NET_TRIGGER_FROM] * SHUNT_NET_REGION_UNIT;
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
		put->word_offset = (uint64_t)((char *)region->is.counters - (char *)region->is.start) +
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
	struct shunt_net_words *words = shunt_proxy_words(c->proxy);

	__atomic_store_n(&words->gone[c - c->proxy->connection], 1, __ATOMIC_RELEASE);
	__atomic_store_n(&words->left, words->left + 1, __ATOMIC_RELEASE);
}

static void fail_left(struct connection *c, const char *who, const char *what)
{
	char text[160];

	snprintf(text, sizeof(text), "%s has left, and a call still %s", who, what);
	shunt_proxy_fail(c, -EOWNERDEAD, text);
}

static void fail_forsaken(struct connection *c, const uint32_t value[4])
{
	char rank[32];

	snprintf(rank, sizeof(rank), "rank %u", value[SHUNT_NET_TRIGGER_BYTES]);
	fail_left(c, value[SHUNT_NET_TRIGGER_FROM] ? c->name : rank, "waits for it");
}

/* Posts the next triggers, as many as follow each other on one connection. Their number; 0: no trigger, or no room. */
static int post_some(struct shunt_proxy *proxy)
{
	struct shunt_net_put puts[BATCH];
	uint32_t value[4], next[4];
	struct connection *c;
	int n = 0, taken;

	if (!read_trigger(proxy, proxy->taken, value) ||
	    (!packets_are_here(proxy, value) && !atomic_load(&proxy->failed)))
		return 0;
	if ((value[0] & 255) >= (unsigned)proxy->config.npeers) {
		shunt_proxy_fail(&proxy->connection[0], -EINVAL, "a trigger is of no connection");
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
		    (next[0] ^ value[0]) & 255 || is_forsaken(next) || !packets_are_here(proxy, next))
			break;
		puts[n - 1].flags |= SHUNT_NET_MORE;
		memcpy(value, next, sizeof(value));
	} while (true);
	if (c->state == CONNECTION_ENDED && proxy->config.gone)
		return n; /* dropped, as is what is for a peer without which the owner has gone on */
	/* Dead without a failure: closed, by a peer that had left. */
	if ((c->state == CONNECTION_ENDED || c->state == CONNECTION_DEAD) && puts[0].bytes && !proxy->config.gone)
		fail_left(c, c->name, "sends to it");
	if (atomic_load(&proxy->failed) || c->state == CONNECTION_DEAD)
		return n; /* dropped */
	for (int i = 0; i < n; i++)
		if (puts[i].bytes && !puts[i].memory) {
			shunt_proxy_fail(c, -EINVAL, "a trigger names a region that is none");
			return n;
		}
	if (c->posted - c->done + (unsigned)n > SHUNT_PROXY_POSTED)
		return 0;
	taken = proxy->config.net->post(c->endpoint, puts, n);
	if (taken == -EINVAL) {
		shunt_proxy_fail(c, taken, "a trigger is out of bounds");
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
		__atomic_store_n(&shunt_proxy_words(proxy)->taken, proxy->taken, __ATOMIC_RELEASE);
	}
	return proxy->taken != before;
}

/* ---- the end */

void shunt_proxy_close_all(struct shunt_proxy *proxy)
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

/*
 * Finishes connections that have nothing left to carry. A part that has ended keeps no descriptors, however late its
 * owner looks.
 */
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
	shunt_proxy_close_all(proxy);
	shunt_close_fd(&proxy->notify_fd);
	atomic_store(&proxy->ended, true);
}

bool shunt_proxy_left(const struct shunt_proxy *list)
{
	for (; list; list = list->next)
		for (int i = 0; i < list->config.npeers; i++) {
			const struct connection *c = &list->connection[i];

			if (c->state == CONNECTION_NEW || c->state == CONNECTION_DEAD || !c->endpoint)
				continue;
			if (!c->finished || c->posted != c->done || !list->config.net->end_is_out(c->endpoint))
				return false;
		}
	return true;
}

bool shunt_proxy_work(struct shunt_proxy *proxy)
{
	bool any = proxy->takes && carry(proxy);

	if (proxy->config.patience_ms && proxy->config.gone)
		end_stuck(proxy);
	if (proxy->doubts)
		end_doubts(proxy);
	if (proxy->finishing && !atomic_load(&proxy->ended))
		go_on_finishing(proxy);
	return any;
}

/* ---- events */

static void raise_channel(struct connection *c, uint32_t channel, uint32_t count)
{
	struct shunt_proxy *proxy = c->proxy;
	const struct region *region = region_of_channel(proxy, channel);
	int err = -EOWNERDEAD, because = c->rank;
	char text[160];
	uint64_t *word;

	if (channel < SHUNT_NET_SIGNAL_CHANNELS) {
		word = &shunt_proxy_words(proxy)->raised[c - proxy->connection][channel];
		__atomic_store_n(word, *word + count, __ATOMIC_RELEASE);
		return;
	}
	if (region) {
		word = &region->is.counters[channel - region->is.first_channel];
		__atomic_store_n(word, *word + count, __ATOMIC_RELEASE);
		return;
	}
	if (channel - SHUNT_PROXY_DIED_CHANNEL < SHUNT_NET_MAX_RANKS) {
		doubt(proxy, (int)(channel - SHUNT_PROXY_DIED_CHANNEL));
		return;
	}
	if (channel - SHUNT_PROXY_BECAUSE_CHANNEL < SHUNT_NET_MAX_RANKS) {
		because = (int)(channel - SHUNT_PROXY_BECAUSE_CHANNEL);
		snprintf(text, sizeof(text), "%s has given up, because of rank %d", c->name, because);
	} else if (channel == SHUNT_PROXY_ABORT_CHANNEL) {
		snprintf(text, sizeof(text), "%s has given up", c->name);
	} else {
		snprintf(text, sizeof(text), "%s raised channel %u, which is none", c->name, channel);
		err = -EPROTO;
	}
	if (err == -EPROTO)
		fail_because(c, err, because, text);
	else
		lose_because(c, err, because, text);
}

void shunt_proxy_event(const struct shunt_net_event *event)
{
	struct connection *c = event->user;

	if (!c->endpoint) /* it has ended alone */
		return;
	switch (event->kind) {
	case SHUNT_NET_READY:
		c->state = CONNECTION_READY;
		atomic_fetch_add(&c->proxy->nready, 1);
		notify(c->proxy);
		break;
	case SHUNT_NET_PUT_DONE:
		c->done += event->count;
		c->moved_ms = c->proxy->config.gone ? shunt_now_ms() : 0;
		publish_busy(c);
		break;
	case SHUNT_NET_SIGNAL:
		raise_channel(c, event->channel, event->count);
		break;
	case SHUNT_NET_END:
		if (may_end_alone(c) && !c->proxy->finishing)
			c->proxy->config.gone(c->proxy->config.ctx, (int)(c - c->proxy->connection), NULL);
		c->state = CONNECTION_ENDED;
		tell_left(c);
		break;
	case SHUNT_NET_ERROR:
		if (c->state != CONNECTION_ENDED || may_end_alone(c))
			lose(c, event->err, event->text);
		c->state = CONNECTION_DEAD;
		break;
	}
}

/* SPDX-License-Identifier: MIT */
#include "tests/transport/net_ends.h"
#include "base/config.h"
#include "tests/support/entries.h"

bool net_adds;
static struct net_end *ends; /* with words */

struct shunt_net_device *net_open(const struct shunt_net_ops *ops)
{
	struct shunt_net_device *device = NULL;

	assert_int_equal(ops->open(0, &device), 0);
	assert_non_null(device);
	for (int i = 1; ops->add_rail && i < (int)shunt_config()->ib_rails; i++)
		assert_int_equal(ops->add_rail(device, i), 0);
	return device;
}

void net_create(
    const struct shunt_net_ops *ops, struct shunt_net_device *device, struct net_end *end, uint8_t key, int64_t ms)
{
	char name[] = "rank 3 on node2"; /* gone when the call has returned */
	struct shunt_net_peer peer = { .name = name, .connect_ms = ms, .user = end, .adds = net_adds };
	struct shunt_net_region words = { end->word, sizeof(end->word), -1, 0, SHUNT_NET_MEMORY_WORDS };

	*end = (struct net_end){ 0 };
	end->device = device;
	if (net_adds) {
		assert_int_equal(ops->mem_register(device, &words, &end->words), 0);
		end->next = ends;
		ends = end;
	}
	memset(peer.key, key, sizeof(peer.key));
	assert_int_equal(ops->endpoint_create(device, &peer, &end->endpoint, &end->blob), 0);
	memset(name, 'x', sizeof(name) - 1);
	for (size_t i = ops->blob_bytes; i < sizeof(end->blob.bytes); i++)
		assert_int_equal(end->blob.bytes[i], 0);
}

void net_end_close(const struct shunt_net_ops *ops, struct net_end *end)
{
	ops->endpoint_close(end->endpoint);
	ops->mem_deregister(end->words);
	for (struct net_end **at = &ends; *at; at = &(*at)->next)
		if (*at == end) {
			*at = end->next;
			break;
		}
	end->endpoint = NULL;
	end->words = NULL;
}

void net_signal(const struct shunt_net_ops *ops, const struct net_end *to, struct shunt_net_put *put, uint16_t channel,
    uint16_t count)
{
	put->channel = channel;
	put->count = count;
	if (!net_adds || !count)
		return;
	put->flags |= SHUNT_NET_ADD;
	put->words = ops->mem_remote(to->words);
	put->word_offset = channel % NET_CHANNELS * sizeof(uint64_t);
}

static void note(const struct shunt_net_event *event);

/* What a peer has added since the last look. */
static void look_at_words(struct net_end *end)
{
	for (uint32_t i = 0; i < NET_CHANNELS && end->words && end->ready && !end->dead && !end->ended; i++) {
		uint64_t word = __atomic_load_n(&end->word[i], __ATOMIC_ACQUIRE);
		struct shunt_net_event event = { .kind = SHUNT_NET_SIGNAL,
			.endpoint = end->endpoint,
			.user = end,
			.channel = i,
			.count = (uint32_t)(word - end->seen[i]) };

		end->seen[i] = word;
		if (event.count)
			note(&event);
	}
}

static void note(const struct shunt_net_event *event)
{
	struct net_end *end = event->user;

	assert_ptr_equal(event->endpoint, end->endpoint);
	assert_false(end->dead);
	assert_true(end->ready || event->kind == SHUNT_NET_READY || event->kind == SHUNT_NET_ERROR);
	end->told++;
	switch (event->kind) {
	case SHUNT_NET_READY:
		assert_false(end->ready);
		end->ready = true;
		break;
	case SHUNT_NET_PUT_DONE:
		assert_true(event->count > 0);
		end->done += event->count;
		break;
	case SHUNT_NET_SIGNAL:
		assert_false(end->ended);
		assert_true(event->count > 0 && event->channel < SHUNT_NET_MAX_CHANNELS);
		end->signals[event->channel % NET_CHANNELS] += event->count;
		end->signalled += event->count;
		if (end->on_signal)
			end->on_signal(end, event);
		break;
	case SHUNT_NET_END:
		assert_false(end->ended);
		look_at_words(end);
		end->ended = true;
		break;
	case SHUNT_NET_ERROR:
		assert_true(event->err < 0);
		assert_non_null(event->text);
		look_at_words(end);
		end->dead = true;
		end->err = event->err;
		snprintf(end->text, sizeof(end->text), "%s", event->text);
		fprintf(stderr, "%s\n", event->text);
		break;
	default:
		fail_msg("event %d", (int)event->kind);
	}
}

int net_step(const struct shunt_net_ops *ops, struct shunt_net_device *device)
{
	struct shunt_net_event events[8];
	int n = ops->progress(device, events, 8);

	assert_in_range(n, 0, 8);
	for (int i = 0; i < n; i++)
		note(&events[i]);
	for (struct net_end *end = ends; end; end = end->next)
		if (end->device == device)
			look_at_words(end);
	return n;
}

int net_step_or_sleep(const struct shunt_net_ops *ops, struct shunt_net_device *device, int ms)
{
	struct pollfd fd = { .fd = ops->fd(device), .events = POLLIN };
	int n = net_step(ops, device);

	if (!n && ops->arm(device))
		poll(&fd, 1, ms);
	return n;
}

void net_put(const struct shunt_net_ops *ops, struct shunt_net_device *device, struct net_end *end,
    const struct shunt_net_put *put)
{
	int taken = 0;

	(void)end;
	NET_UNTIL((taken = ops->post(end->endpoint, put, 1)) != 0, net_step(ops, device));
	assert_int_equal(taken, 1);
}

struct shunt_net_memory *net_register(
    const struct shunt_net_ops *ops, struct shunt_net_device *device, void *start, size_t bytes)
{
	struct shunt_net_region region = { .start = start, .bytes = bytes, .dmabuf_fd = -1 };
	struct shunt_net_memory *memory = NULL;

	assert_int_equal(ops->mem_register(device, &region, &memory), 0);
	assert_non_null(memory);
	return memory;
}

void net_expect_only(uint8_t value, const uint8_t *at, size_t n)
{
	assert_int_equal(at[0], value);
	assert_int_equal(memcmp(at + 1, at, n - 1), 0); /* ThreadSanitizer does not see into assert_memory_equal() */
}

int net_descriptors(void)
{
	return entries("/proc/self/fd");
}

void net_pair_open(struct net_pair *pair, const struct shunt_net_ops *ops)
{
	*pair = (struct net_pair){ .ops = ops };
	for (int i = 0; i < 2; i++) {
		pair->device[i] = net_open(ops);
		net_create(ops, pair->device[i], &pair->end[i], 5, AT_ONCE_MS);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(ops->endpoint_connect(pair->end[i].endpoint, &pair->end[!i].blob), 0);
	NET_UNTIL(pair->end[0].ready && pair->end[1].ready, net_pair_step(pair));
}

void net_pair_close(struct net_pair *pair)
{
	for (int i = 0; i < 2; i++) {
		net_end_close(pair->ops, &pair->end[i]);
		pair->ops->close(pair->device[i]);
	}
}

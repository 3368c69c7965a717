/* SPDX-License-Identifier: MIT */
/*
 * shunt doctor --net by verbs: every pair connects two endpoints through the provider's table, as the library does,
 * proves that data and signals arrive both ways, and measures. The higher rank of a pair asks, the lower one answers.
 */
#include <sched.h>
#include "tools/common/libc.h"
#include "base/config.h"
#include "base/id.h"
#include "tools/common/nics.h"
#include "tools/doctor/net_pairs.h"
#include "transport/net/providers.h"

#define BLOCK (1u << 20) /* bytes of a large put */
#define MOST_BLOCKS 64
#define WORDS 32 /* small sources, taken in turn */

/* Channels of signals. */
enum { ASKED, WORD, TAKEN, GIVEN, NCHANNELS };

struct ask {
	uint32_t echo, take, give; /* words said back at once; blocks taken, then a word; blocks given */
	uint32_t end;              /* 1: that was all */
};

/* Registered memory: the target of the peer's puts, and the sources of ours. */
struct memory {
	struct ask asked;
	uint64_t word;
	uint8_t block[BLOCK];
	struct ask ask[WORDS];
	uint64_t words[WORDS];
	uint8_t source[BLOCK];
};

/* A rank's NIC, and its end of the pair that is tested now. */
struct end {
	const struct shunt_net_ops *ops;
	struct shunt_net_device *device;
	struct shunt_net_memory *registered;
	struct memory *memory;
	struct shunt_net_endpoint *endpoint;
	struct shunt_net_remote remote;
	uint32_t posted, done, small, came[NCHANNELS], used[NCHANNELS];
	bool ready, ended;
	int err;
	char text[256];
};

/* The data that the ranks of a pair exchange before they connect. */
struct wire {
	struct shunt_net_blob blob;
	struct shunt_net_remote remote;
	int err;
};

/* ---- progress */

static void note(struct end *e, const struct shunt_net_event *event)
{
	switch (event->kind) {
	case SHUNT_NET_READY:
		e->ready = true;
		break;
	case SHUNT_NET_PUT_DONE:
		e->done += event->count;
		break;
	case SHUNT_NET_SIGNAL:
		if (event->channel < NCHANNELS)
			e->came[event->channel] += event->count;
		break;
	case SHUNT_NET_END:
		e->ended = true;
		break;
	case SHUNT_NET_ERROR:
		e->err = event->err;
		snprintf(e->text, sizeof(e->text), "%s", event->text);
		break;
	}
}

/* Goes on, and sleeps if nothing has come for a while. */
static void step(struct end *e, unsigned *idle)
{
	struct shunt_net_event events[16];
	int n = e->ops->progress(e->device, events, 16);

	for (int i = 0; i < n; i++)
		if (events[i].endpoint == e->endpoint)
			note(e, &events[i]);
	*idle = n ? 0 : *idle + 1;
	if (*idle > 1000 && e->ops->arm(e->device)) {
		struct pollfd pfd = { .fd = e->ops->fd(e->device), .events = POLLIN };

		(void)poll(&pfd, 1, 10);
	} else if (*idle) {
		sched_yield();
	}
}

/* Runs until `condition`. Sets the int err of the caller. */
#define UNTIL(e, condition) \
	do { \
		double until = ranks_now_us() + NET_WAIT_S * 1e6; \
		unsigned idle = 0; \
\
		while (!(e)->err && !(condition)) { \
			step((e), &idle); \
			if (!(condition) && !(e)->err && ranks_now_us() > until) \
				give_up(e); \
		} \
	} while (0)

static void give_up(struct end *e)
{
	e->err = -ETIMEDOUT;
	snprintf(e->text, sizeof(e->text), "no answer within %d s", NET_WAIT_S);
}

/* Waits for n more signals of the channel. */
static int wait_for(struct end *e, int channel, uint32_t n)
{
	UNTIL(e, e->came[channel] - e->used[channel] >= n);
	e->used[channel] += n;
	return e->err;
}

static int put(struct end *e, const void *source, uint64_t to, uint32_t bytes, uint16_t channel)
{
	const struct shunt_net_put one = { .source = source,
		.memory = e->registered,
		.remote = e->remote,
		.remote_offset = to,
		.bytes = bytes,
		.channel = channel,
		.count = 1 };
	int n = 0;

	UNTIL(e, (n = e->ops->post(e->endpoint, &one, 1)) != 0);
	if (!e->err && n < 0) {
		unsigned idle = 0;

		step(e, &idle); /* the reason, if there is one */
		e->err = e->err ? e->err : n;
	}
	e->posted += !e->err;
	return e->err;
}

/* A source is used again once all puts of it are done. */
static uint32_t next_small(struct end *e)
{
	UNTIL(e, e->posted - e->done < WORDS);
	return e->small++ % WORDS;
}

static int put_word(struct end *e, uint64_t word, uint16_t channel)
{
	uint32_t i = next_small(e);

	e->memory->words[i] = word;
	return put(e, &e->memory->words[i], offsetof(struct memory, word), sizeof(word), channel);
}

static int put_blocks(struct end *e, uint32_t n, uint16_t channel)
{
	for (uint32_t i = 0; i < n && !e->err; i++)
		put(e, e->memory->source, offsetof(struct memory, block), BLOCK, channel);
	return e->err;
}

/* ---- data */

static uint8_t pattern(int rank, uint32_t i)
{
	return (uint8_t)(i * 7 + i / 251 + (unsigned)rank * 13);
}

static bool block_right(struct end *e, int from)
{
	for (uint32_t i = 0; i < BLOCK; i++)
		if (e->memory->block[i] != pattern(from, i))
			return false;
	return true;
}

static int wrong_data(struct end *e)
{
	e->err = -EBADMSG;
	snprintf(e->text, sizeof(e->text), "a signal came, and its data was not there, or wrong");
	return e->err;
}

/* ---- the lower rank of a pair */

static int echo(struct end *e, uint32_t n)
{
	for (uint32_t i = 1; i <= n && !e->err; i++) {
		if (wait_for(e, WORD, 1))
			return e->err;
		if (e->memory->word != i)
			return wrong_data(e);
		put_word(e, i, WORD);
	}
	return e->err;
}

static void answer(struct end *e, int peer)
{
	struct ask ask = { 0 };

	while (!e->err && !ask.end) {
		if (wait_for(e, ASKED, 1))
			return;
		ask = e->memory->asked;
		echo(e, ask.echo);
		if (!e->err && ask.take && !wait_for(e, TAKEN, ask.take))
			put_word(e, block_right(e, peer), TAKEN);
		put_blocks(e, e->err ? 0 : ask.give, GIVEN);
	}
}

/* ---- the higher rank */

static int ask_for(struct end *e, struct ask ask)
{
	uint32_t i = next_small(e);

	e->memory->ask[i] = ask;
	return put(e, &e->memory->ask[i], offsetof(struct memory, asked), sizeof(ask), ASKED);
}

static int ping(struct end *e, struct net_pair *pair)
{
	float best = 1e9f;

	ask_for(e, (struct ask){ .echo = NET_PINGS });
	for (uint64_t i = 1; i <= NET_PINGS && !e->err; i++) {
		double start = ranks_now_us();
		float took;

		put_word(e, i, WORD);
		if (wait_for(e, WORD, 1))
			break;
		took = (float)(ranks_now_us() - start) / 2;
		best = took < best ? took : best;
		if (e->memory->word != i)
			return wrong_data(e);
	}
	pair->latency_us = best;
	return e->err;
}

static int transmit(struct end *e, uint32_t blocks, float *mbs_p)
{
	double start = ranks_now_us();

	ask_for(e, (struct ask){ .take = blocks });
	put_blocks(e, blocks, TAKEN);
	if (!wait_for(e, TAKEN, 1) && !e->memory->word)
		return wrong_data(e);
	*mbs_p = (float)((double)blocks * BLOCK / (ranks_now_us() - start));
	return e->err;
}

static int receive(struct end *e, uint32_t blocks, int peer, float *mbs_p)
{
	double start = ranks_now_us();

	ask_for(e, (struct ask){ .give = blocks });
	if (!wait_for(e, GIVEN, blocks))
		*mbs_p = (float)((double)blocks * BLOCK / (ranks_now_us() - start));
	return !e->err && !block_right(e, peer) ? wrong_data(e) : e->err;
}

static uint32_t blocks_for(float mbs)
{
	double blocks = (double)mbs * NET_TARGET_US / BLOCK;

	return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : (uint32_t)blocks;
}

static void measure(struct end *e, int peer, struct net_pair *pair)
{
	float rate = 0;

	pair->step = NET_PING;
	ping(e, pair);
	if (!e->err) {
		pair->step = NET_LARGE;
		transmit(e, 1, &rate);
	}
	if (!e->err)
		receive(e, 1, peer, &rate);
	if (!e->err) {
		pair->step = NET_RATE;
		transmit(e, blocks_for(rate), &pair->to_mbs);
	}
	if (!e->err)
		receive(e, blocks_for(pair->to_mbs), peer, &pair->from_mbs);
	if (!e->err)
		ask_for(e, (struct ask){ .end = 1 });
}

/* ---- a pair */

static int create(const struct net *net, struct end *e, int peer, struct wire *wire)
{
	struct shunt_net_peer with = { .connect_ms = NET_WAIT_S * 1000 };
	int low = net->rank < peer ? net->rank : peer, high = net->rank < peer ? peer : net->rank;
	char name[64];

	for (unsigned i = 0; i < sizeof(with.key); i += sizeof(struct shunt_id)) {
		struct shunt_id half = shunt_id_derive(net->place[0].token, sizeof(net->place[0].token),
		    i ? "doctor, second half" : "doctor", (uint64_t)low, (uint64_t)high);

		memcpy(with.key + i, &half, sizeof(half));
	}
	snprintf(name, sizeof(name), "rank %d on %s", peer, net->place[peer].name);
	with.name = name;
	memset(e->came, 0, sizeof(e->came));
	memset(e->used, 0, sizeof(e->used));
	e->posted = e->done = 0;
	e->ready = e->ended = false;
	e->err = 0;
	*e->text = '\0';
	wire->remote = e->ops->mem_remote(e->registered);
	return e->ops->endpoint_create(e->device, &with, &e->endpoint, &wire->blob);
}

/* Says good-bye, so that neither end sees the other one die. */
static void leave(struct end *e)
{
	if (!e->err) {
		e->ops->finish(e->endpoint);
		UNTIL(e, e->ended && e->done == e->posted);
	}
	e->ops->endpoint_close(e->endpoint);
	e->endpoint = NULL;
}

static void run_pair(const struct net *net, struct end *e, int peer, const struct wire *theirs, struct net_pair *pair)
{
	pair->step = NET_CONNECT;
	e->remote = theirs->remote;
	e->err = e->ops->endpoint_connect(e->endpoint, &theirs->blob);
	UNTIL(e, e->ready);
	if (!e->err && net->rank > peer)
		measure(e, peer, pair);
	else if (!e->err)
		answer(e, peer);
	pair->err = e->err;
	snprintf(pair->text, sizeof(pair->text), "%s", e->text);
	leave(e);
}

/* All ranks take part in the exchange of each pair. */
static int try_pair(const struct net *net, struct end *e, struct net_verbs *v, int low, int high)
{
	static struct wire wires[RANKS_MAX];
	bool mine = net->rank == low || net->rank == high;
	int peer = net->rank == low ? high : low, err;
	struct wire wire = { .err = v->nic[net->rank].err };
	struct net_pair unused = { 0 }, *pair = net->rank == high ? &v->pair[low] : &unused;

	if (mine && !wire.err)
		wire.err = create(net, e, peer, &wire);
	err = ranks_allgather(net->ranks, &wire, sizeof(wire), wires);
	if (err)
		return err;
	if (mine && !wires[low].err && !wires[high].err) {
		run_pair(net, e, peer, &wires[peer], pair);
	} else if (mine) {
		pair->err = wires[high].err ? wires[high].err : wires[low].err;
		if (!wire.err)
			e->ops->endpoint_close(e->endpoint);
		e->endpoint = NULL;
	}
	return ranks_barrier(net->ranks);
}

/* ---- the ranks' NICs */

/* As the library would choose: near the GPU, if there are GPUs; else the ranks of a host take turns. */
static int choose(const struct net *net, const struct shunt_net_info *info, int n)
{
	struct shunt_pci_place nics[SHUNT_NET_MAX_DEVICES];
	struct tool_gpus gpus;
	int local = 0, device;

	for (int r = 0; r < net->rank; r++)
		local += net_same_host(net, r, net->rank);
	if (tool_gpus_find(&gpus) || !gpus.n)
		return local % n;
	for (int i = 0; i < n; i++) {
		memcpy(nics[i].pci, info[i].pci, sizeof(nics[i].pci));
		nics[i].numa = info[i].numa;
	}
	device = shunt_nic_pair(gpus.at, gpus.n, local % gpus.n, nics, n);
	free(gpus.at);
	return device;
}

static int open_nic(const struct net *net, struct end *e, const struct shunt_net_info *info, struct net_nic *nic)
{
	int index = choose(net, info, nic->ndevices), err;
	struct shunt_net_region region = { .bytes = sizeof(*e->memory), .dmabuf_fd = -1 };
	char address[96];

	snprintf(nic->where, sizeof(nic->where), "%.95s", info[index].where);
	err = e->ops->open(index, &e->device);
	if (err)
		return err;
	shunt_verbs_address(e->device, address, sizeof(address));
	if (*address)
		snprintf(nic->where, sizeof(nic->where), "%.*s, %.60s", (int)strcspn(info[index].where, ","),
		    info[index].where, address);
	/* cppcheck-suppress invalidFunctionArg; without a file it is -1 */
	region.start = mmap(NULL, region.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region.start == MAP_FAILED)
		return -errno; /* cppcheck-suppress memleak; there is none to unmap */
	e->memory = region.start;
	for (uint32_t i = 0; i < BLOCK; i++)
		e->memory->source[i] = pattern(net->rank, i);
	return e->ops->mem_register(e->device, &region, &e->registered);
}

static void find_nic(const struct net *net, struct end *e, struct net_nic *nic)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_verbs_look *look;

	if (shunt_config()->net == SHUNT_NET_TCP) {
		snprintf(nic->why, sizeof(nic->why), "SHUNT_NET=tcp");
		return;
	}
	nic->ndevices = e->ops->devices(info, SHUNT_NET_MAX_DEVICES);
	if (nic->ndevices > 0) {
		nic->err = open_nic(net, e, info, nic);
		return;
	}
	nic->ndevices = 0;
	look = malloc(sizeof(*look));
	if (!look)
		return;
	shunt_verbs_look(0, look);
	snprintf(nic->why, sizeof(nic->why), "%.199s", look->none);
	free(look);
}

static void close_nic(struct end *e)
{
	e->ops->mem_deregister(e->registered);
	e->ops->close(e->device);
	if (e->memory)
		munmap(e->memory, sizeof(*e->memory));
}

int net_verbs_try(const struct net *net, struct net_verbs *v)
{
	struct end e = { .ops = &shunt_net_verbs_ops };
	struct net_nic mine = { 0 };
	int err;

	find_nic(net, &e, &mine);
	err = ranks_allgather(net->ranks, &mine, sizeof(mine), v->nic);
	v->tried = true;
	for (int r = 0; r < net->nranks; r++)
		v->tried = v->tried && v->nic[r].ndevices;
	for (int low = 0; low < net->nranks && v->tried; low++)
		for (int high = low + 1; high < net->nranks && !err; high++)
			err = try_pair(net, &e, v, low, high);
	if (!err && v->tried)
		err = ranks_allgather(net->ranks, v->pair, sizeof(v->pair), v->rows);
	close_nic(&e);
	return err;
}

/* ---- report */

void net_verbs_print(const struct net *net, struct net_verbs *v)
{
	if (!v->tried)
		return;
	printf("\nverbs\nrank  NIC\n");
	for (int r = 0; r < net->nranks; r++)
		printf("%4d  %s\n", r, v->nic[r].where);
	net_matrix_print(
	    net, v->rows, "verbs: latency in us (half of a round trip of 8 bytes and a signal, the shortest)", true);
	net_matrix_print(net, v->rows, "verbs: rate in MB/s (puts of 1 MB)", false);
}

static void find_pair(struct findings *f, const struct net *net, const struct net_verbs *v, int high, int low)
{
	static const char *const what[] = { [NET_CONNECT] = "cannot connect by verbs to",
		[NET_PING] = "connects by verbs to, but exchanges no message with",
		[NET_LARGE] = "exchanges small messages by verbs with, but no large ones with",
		[NET_RATE] = "loses the connection by verbs to" };
	const struct net_pair *p = &v->rows[high][low];

	if (p->err)
		finding_add(f, FINDING_ERROR, NET_TOPIC,
		    p->err == -ENOMEM ? "ulimit -l unlimited" :
		                        "ports must be active (ibv_devinfo) and the GIDs on one network; "
		                        "NCCL_IB_HCA and SHUNT_IB_GID_INDEX choose; SHUNT_NET=tcp does without",
		    "rank %d on %s (%s) %s rank %d on %s (%s): %s", high, net->place[high].name, v->nic[high].where,
		    what[p->step], low, net->place[low].name, v->nic[low].where,
		    *p->text ? p->text : strerror(-p->err));
}

void net_verbs_find(struct findings *f, const struct net *net, const struct net_verbs *v)
{
	int without = 0, first = 0, failed = 0;

	for (int r = net->nranks - 1; r >= 0; r--)
		if (!v->nic[r].ndevices) {
			without++;
			first = r;
		}
	for (int high = 0; high < net->nranks && v->tried; high++)
		for (int low = 0; low < high; low++) {
			find_pair(f, net, v, high, low);
			failed += v->rows[high][low].err != 0;
		}
	if (v->tried && !failed)
		finding_add(f, FINDING_OK, NET_TOPIC, "", "all pairs exchange data by verbs");
	else if (!v->tried)
		finding_add(f,
		    without < net->nranks || shunt_config()->net == SHUNT_NET_VERBS ? FINDING_WARN : FINDING_INFO,
		    NET_TOPIC, "", "no test of verbs, and communicators take tcp: rank %d on %s%s has no NIC: %s",
		    first, net->place[first].name, without > 1 ? ", as others," : "", v->nic[first].why);
}

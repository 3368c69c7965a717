/* SPDX-License-Identifier: MIT */
/* Workloads of planted.c: calls over hosts. */
#include <sched.h>
#include "device/sim/hooks.h"
#include "tests/algos/sel.h"
#include "tests/kernels/planted.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;

/*
 * Three ranks, the last one on a host of its own. A thread for each does what the proxy does: takes triggers, copies,
 * and counts.
 */
enum { HOSTS_RANKS = 3, HOSTS_LOCAL = 2, HOSTS_SLOT = SHUNT_NET_MIN_CHUNK };

struct hosts_rank {
	struct hosts *hosts;
	int rank;
	char *memory; /* begins with struct shunt_net_words */
	struct shunt_topology at;
	bool forsaken;    /* a launch has said so */
	uint64_t checked; /* what SHUNT_CHECK compares in the next launch; 0: nothing */
	pthread_t proxy;
};

struct hosts {
	struct world w;
	struct hosts_rank rank[HOSTS_RANKS];
	uint32_t channels; /* several: one block has them all */
	atomic_bool stop;
};

static bool hosts_connect(const struct hosts *h, int a, int b)
{
	const struct shunt_topology *at = &h->rank[0].at;

	return at->island_of[a] != at->island_of[b];
}

static unsigned hosts_connection(const struct hosts *h, int a, int b)
{
	unsigned n = 0;

	for (int r = 0; r < b; r++)
		n += hosts_connect(h, a, r);
	return n;
}

static int hosts_peer(const struct hosts *h, int rank, unsigned connection)
{
	int r = 0;

	while (!hosts_connect(h, rank, r) || hosts_connection(h, rank, r) != connection)
		r++;
	return r;
}

static void hosts_carry(struct hosts_rank *own, const uint32_t value[4])
{
	int peer = hosts_peer(own->hosts, own->rank, value[0] & 255);
	struct hosts_rank *to = &own->hosts->rank[peer];
	struct shunt_net_words *words = (struct shunt_net_words *)to->memory;
	bool put = value[0] >> 24 & SHUNT_NET_TRIGGER_PUT;
	uint64_t *raised = &words->raised[hosts_connection(own->hosts, peer, own->rank)][value[0] >> 8 & 0xffff];

	if (value[0] >> 24 & SHUNT_NET_TRIGGER_FORSAKEN) {
		own->forsaken = true;
		__atomic_store_n(&own->hosts->w.host_ctrl[own->rank]->limit_ns, SHUNT_LIMIT_ABORT, __ATOMIC_RELEASE);
		return;
	}
	for (uint32_t i = 0; value[0] >> 24 & SHUNT_NET_TRIGGER_PACKETS && i < value[SHUNT_NET_TRIGGER_BYTES]; i += 8) {
		uint64_t word;

		memcpy(&word, own->memory + value[SHUNT_NET_TRIGGER_FROM] + i, sizeof(word));
		__atomic_store_n(
		    (uint64_t *)(void *)(to->memory + value[SHUNT_NET_TRIGGER_TO] + i), word, __ATOMIC_RELEASE);
	}
	if (!(value[0] >> 24 & SHUNT_NET_TRIGGER_SIGNAL))
		return;
	if (put)
		memcpy(to->memory + value[SHUNT_NET_TRIGGER_TO], own->memory + value[SHUNT_NET_TRIGGER_FROM],
		    value[SHUNT_NET_TRIGGER_BYTES]);
	__atomic_fetch_add(raised, put ? 1 : value[SHUNT_NET_TRIGGER_BYTES], __ATOMIC_RELEASE);
}

static void *hosts_proxy(void *arg)
{
	struct hosts_rank *own = arg;
	struct shunt_net_words *words = (struct shunt_net_words *)own->memory;

	for (uint64_t number = 0; !atomic_load(&own->hosts->stop);) {
		struct shunt_net_trigger *trigger = &words->fifo[number & (SHUNT_NET_FIFO - 1)];
		uint32_t value[4];
		bool whole = true;

		for (int i = 0; i < 4; i++) {
			uint64_t half = __atomic_load_n(&trigger->half[i], __ATOMIC_ACQUIRE);

			whole &= half >> 32 == (uint32_t)(number + 1);
			value[i] = (uint32_t)half;
		}
		if (!whole) {
			sched_yield();
			continue;
		}
		hosts_carry(own, value);
		__atomic_store_n(&words->taken, ++number, __ATOMIC_RELEASE);
	}
	return NULL;
}

static struct shunt_net_ctrl *hosts_ctrl(const struct hosts *h, int rank)
{
	return (struct shunt_net_ctrl *)((char *)h->w.mem[rank].ptr + SHUNT_NET_CTRL_AT);
}

static char *hosts_rings(const struct hosts *h, int receiver, int sender)
{
	return (char *)h->w.mem[receiver].ptr + SHUNT_NET_LOCAL_AT +
	    h->rank[0].at.local_of[sender] * SHUNT_NET_PAIR_BYTES(HOSTS_SLOT);
}

static struct shunt_net_pair hosts_pair(const struct hosts *h, int rank, int peer)
{
	struct shunt_net_words *words = (struct shunt_net_words *)h->rank[rank].memory;
	const struct shunt_topology *at = &h->rank[0].at;
	unsigned here = hosts_connection(h, rank, peer), there = hosts_connection(h, peer, rank);

	if (!hosts_connect(h, rank, peer))
		return (struct shunt_net_pair){ .out = hosts_rings(h, peer, rank),
			.in = hosts_rings(h, rank, peer),
			.out_tail = hosts_ctrl(h, peer)->tail[at->local_of[rank]],
			.out_head = hosts_ctrl(h, rank)->head[at->local_of[peer]],
			.in_tail = hosts_ctrl(h, rank)->tail[at->local_of[peer]],
			.in_head = hosts_ctrl(h, peer)->head[at->local_of[rank]],
			.ctrl = hosts_ctrl(h, peer) };
	return (struct shunt_net_pair){ .out = (char *)words + SHUNT_NET_OUT_AT(here, HOSTS_SLOT),
		.in = (char *)words + SHUNT_NET_IN_AT(here, HOSTS_SLOT),
		.in_tail = words->raised[here],
		.out_head = words->raised[here] + SHUNT_NET_CREDIT_CHANNEL,
		.out_at = SHUNT_NET_OUT_AT(here, HOSTS_SLOT),
		.to_at = SHUNT_NET_IN_AT(there, HOSTS_SLOT),
		.connection = here,
		.there = there,
		.remote = 1 };
}

static void hosts_start(struct hosts *h, uint32_t channels)
{
	static struct shunt_net_ctrl ctrl;

	memset(h, 0, sizeof(*h));
	h->channels = channels;
	planted_start(&h->w, HOSTS_RANKS);
	assert_true(SHUNT_SCRATCH_BYTES(HOSTS_RANKS) >= SHUNT_NET_SCRATCH_BYTES(HOSTS_LOCAL, HOSTS_SLOT));
	for (int r = 0; r < HOSTS_RANKS; r++) {
		h->rank[r] = (struct hosts_rank){ .hosts = h,
			.rank = r,
			.memory = calloc(1, SHUNT_NET_MEMORY_BYTES(HOSTS_LOCAL, HOSTS_SLOT)),
			.at = { .nranks = HOSTS_RANKS, .nislands = 2, .rank = r, .island_of = { 0, 0, 1 } } };
		assert_non_null(h->rank[r].memory);
		shunt_topology_complete(&h->rank[r].at);
	}
	for (int r = 0; r < HOSTS_RANKS; r++) {
		memset(&ctrl, 0, sizeof(ctrl));
		ctrl.words = (struct shunt_net_words *)h->rank[r].memory;
		ctrl.rank = (uint32_t)r;
		ctrl.nranks = HOSTS_RANKS;
		ctrl.channels = channels;
		ctrl.slot_bytes = HOSTS_SLOT;
		for (int p = 0; p < HOSTS_RANKS; p++)
			ctrl.pair[p] = hosts_pair(h, r, p);
		gpu->copy(r, hosts_ctrl(h, r), &ctrl, sizeof(ctrl));
	}
	for (int r = 0; r < HOSTS_RANKS; r++)
		assert_int_equal(pthread_create(&h->rank[r].proxy, NULL, hosts_proxy, &h->rank[r]), 0);
}

static void hosts_stop(struct hosts *h)
{
	atomic_store(&h->stop, true);
	for (int r = 0; r < HOSTS_RANKS; r++) {
		pthread_join(h->rank[r].proxy, NULL);
		free(h->rank[r].memory);
	}
	world_stop(&h->w);
}

static int hosts_emit(void *ctx, const struct shunt_work *work)
{
	const struct hosts_rank *own = ctx;
	const struct shunt_gpu_launch l = { .kernel = work->kernel,
		.blocks = work->blocks + (work->args.k.check.what != 0),
		.threads = work->threads,
		.args = &work->args,
		.stream = own->hosts->w.stream[own->rank],
		.shared = work->shared };

	return gpu->launch(own->rank, &l);
}

static void hosts_launch(struct hosts_rank *own, const struct shunt_coll *call)
{
	const struct shunt_sel_key key = { .nranks = HOSTS_RANKS,
		.sim = true,
		.takes_all = true,
		.max_ctas = own->hosts->channels > 1,
		.topology = &own->at,
		.net_channels = own->hosts->channels,
		.net_slot_bytes = HOSTS_SLOT };
	struct shunt_kargs base = { .rank = own->at.local_of[own->rank],
		.nranks = own->at.nlocal[own->at.island_of[own->rank]],
		.count = own->checked };

	if (own->checked)
		base.check = (struct shunt_check){ .what = SHUNT_CHECK_CALLS, .kind = 3, .calls = 1 };
	struct shunt_enqueue_ctx enqueue = { .sel_key = &key, .base = &base, .emit = hosts_emit, .ctx = own };
	struct shunt_decision decision;

	for (int l = 0; l < base.nranks; l++)
		base.peer[l] = own->hosts->w.mem[own->at.rank_at[own->at.island_of[own->rank]][l]].ptr;
	assert_true(shunt_select(SEL(&key), call, &decision));
	assert_true(decision.algo->over_islands);
	assert_int_equal(shunt_enqueue_calls(&enqueue, &call, &decision, 1), 0);
}

/*
 * As in_a_row() of planted.c, with its `late`. Numbers are small and whole, so that the order of their sum does not
 * show.
 */
static void hosts_in_a_row(enum shunt_kind kind, size_t count, int times, int late, uint32_t channels)
{
	uint32_t *in[HOSTS_RANKS][IN_A_ROW], *out[HOSTS_RANKS][IN_A_ROW], gate = 0;
	struct hosts h;

	hosts_start(&h, channels);
	shunt_sim_set_jitter(17, JITTER_US);
	if (late >= 0)
		assert_int_equal(shunt_sim_gate(late, h.w.stream[late], &gate), 0);
	for (int r = 0; r < HOSTS_RANKS; r++)
		for (int t = 0; t < times; t++) {
			in[r][t] = (uint32_t *)world_alloc(r, count * sizeof(uint32_t));
			out[r][t] = (uint32_t *)world_alloc(r, HOSTS_RANKS * count * sizeof(uint32_t));
			for (size_t i = 0; i < count; i++)
				in[r][t][i] = (uint32_t)(r * 1000003 + t * 7919) + (uint32_t)i;
			hosts_launch(&h.rank[r],
			    &(struct shunt_coll){ .kind = kind,
			        .dtype = SHUNT_U32,
			        .redop = SHUNT_SUM,
			        .count = count,
			        .send = in[r][t],
			        .recv = out[r][t] });
		}
	/* One thread of such a block looks for all, so the sim does not see that it can go no further. */
	if (late >= 0)
		pause_us(PAUSE_LATE, 100000);
	shunt_sim_gate_open(&gate);
	for (int r = 0; r < HOSTS_RANKS; r++)
		world_wait(&h.w, r, "over hosts");
	for (int r = 0; r < HOSTS_RANKS; r++)
		for (int t = 0; t < times; t++) {
			for (size_t i = 0; i < count; i++) {
				uint32_t sum = 0;

				for (int p = 0; p < HOSTS_RANKS; p++) {
					sum += in[p][t][i];
					if (kind == SHUNT_BROADCAST && !p)
						assert_int_equal(out[r][t][i], in[p][t][i]);
					if (kind == SHUNT_ALLGATHER)
						assert_int_equal(out[r][t][(size_t)p * count + i], in[p][t][i]);
				}
				if (kind == SHUNT_ALLREDUCE)
					assert_int_equal(out[r][t][i], sum);
			}
		}
	for (int r = 0; r < HOSTS_RANKS; r++)
		for (int t = 0; t < times; t++) {
			gpu->mem_free(in[r][t]);
			gpu->mem_free(out[r][t]);
		}
	hosts_stop(&h);
}

TEST_CALL(test_over_hosts, hosts_in_a_row(SHUNT_ALLREDUCE, 3 * HOSTS_SLOT / sizeof(uint32_t), 4, -1, 1))

/* More chunks than slots, while one rank has not begun. */
TEST(test_over_hosts_ahead)
{
	hosts_in_a_row(SHUNT_ALLGATHER, 2 * HOSTS_SLOT / sizeof(uint32_t), 6, 0, 1);
	hosts_in_a_row(SHUNT_ALLGATHER, 2 * HOSTS_SLOT / sizeof(uint32_t), 6, 2, 1);
}

/* A block that has a channel after the other. */
TEST_CALL(test_over_hosts_few_blocks, hosts_in_a_row(SHUNT_ALLREDUCE, 3 * HOSTS_SLOT / sizeof(uint32_t), 4, -1, 2))

/* The receivers have nothing to say but that slots are free again. */
TEST(test_over_hosts_one_way)
{
	hosts_in_a_row(SHUNT_BROADCAST, 3 * HOSTS_SLOT / sizeof(uint32_t), IN_A_ROW, 1, 1);
	hosts_in_a_row(SHUNT_BROADCAST, 3 * HOSTS_SLOT / sizeof(uint32_t), IN_A_ROW, -1, 1);
}

/* As test_check_of_calls() of planted.c. */
TEST(test_over_hosts_check)
{
	enum { TIMES = 6, COUNT = 64 };
	uint32_t *buf[HOSTS_RANKS];
	struct hosts h;

	hosts_start(&h, 1);
	shunt_sim_set_jitter(13, JITTER_US);
	for (int r = 0; r < HOSTS_RANKS; r++)
		buf[r] = (uint32_t *)world_alloc(r, COUNT * sizeof(uint32_t));
	for (uint64_t t = 0; t <= TIMES; t++)
		for (int r = 0; r < HOSTS_RANKS; r++) {
			h.rank[r].checked = t < TIMES ? 100 + t : 200 + (uint64_t)r;
			hosts_launch(&h.rank[r],
			    &(struct shunt_coll){ .kind = SHUNT_ALLREDUCE,
			        .dtype = SHUNT_U32,
			        .redop = SHUNT_SUM,
			        .count = COUNT,
			        .send = buf[r],
			        .recv = buf[r] });
		}
	for (int r = 0; r < HOSTS_RANKS; r++) {
		const struct shunt_fault *f = &h.w.host_ctrl[r]->fault;

		assert_int_equal(gpu->stream_sync(r, h.w.stream[r]), 0);
		assert_int_equal(f->set, SHUNT_FAULT_MISMATCH);
		assert_int_equal(f->rank, r);
		assert_int_equal(f->mine_count, 200 + r);
		assert_int_equal(f->theirs_count, 200 + f->peer);
		gpu->mem_free(buf[r]);
	}
	hosts_stop(&h);
}

/* Two ranks receive from the third, which has left: their launches tell the proxy so, and end with it. */
TEST(test_over_hosts_left)
{
	enum { COUNT = HOSTS_SLOT / 4 };
	uint32_t *buf[HOSTS_LOCAL];
	struct hosts h;

	hosts_start(&h, 1);
	for (int r = 0; r < HOSTS_LOCAL; r++) {
		struct shunt_net_words *words = (struct shunt_net_words *)h.rank[r].memory;

		buf[r] = (uint32_t *)world_alloc(r, 2 * HOSTS_RANKS * COUNT * sizeof(uint32_t));
		hosts_launch(&h.rank[r],
		    &(struct shunt_coll){ .kind = SHUNT_ALLTOALL,
		        .dtype = SHUNT_U32,
		        .count = COUNT,
		        .send = buf[r],
		        .recv = buf[r] + HOSTS_RANKS * COUNT });
		__atomic_store_n(&words->gone[0], 1, __ATOMIC_RELEASE);
		__atomic_store_n(&words->left, 1, __ATOMIC_RELEASE);
	}
	for (int r = 0; r < HOSTS_LOCAL; r++) {
		assert_int_equal(gpu->stream_sync(r, h.w.stream[r]), 0);
		assert_int_equal(h.w.host_ctrl[r]->fault.set, SHUNT_FAULT_ABORT);
		gpu->mem_free(buf[r]);
	}
	hosts_stop(&h);
	assert_true(h.rank[0].forsaken && h.rank[1].forsaken);
}

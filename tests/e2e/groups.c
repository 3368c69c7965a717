/* SPDX-License-Identifier: MIT */
/*
 * Point-to-point and groups through NCCL's ABI, with Shunt as the whole library: ranks as processes and as threads, on
 * the sim.
 */
#include "tools/common/reference.h"
#include "tests/support/own.h"
#include "tests/e2e/ranks.h"
#include "shunt/shunt.h"
#include "tests/support/entries.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

/* Bytes that `from` sends to `to` in message i of a test; the receiver knows them too. */
static unsigned char pattern_byte(int from, int to, int i, size_t at)
{
	return (unsigned char)(from * 71 + to * 37 + i * 13 + at * 7 + (at >> 8));
}

static void *pattern_buffer(int from, int to, int i, size_t bytes)
{
	unsigned char *buf;

	if (shunt_malloc((void **)&buf, bytes + 1))
		return NULL;
	for (size_t k = 0; k < bytes; k++)
		buf[k] = pattern_byte(from, to, i, k);
	buf[bytes] = 0xa5;
	return buf;
}

static void *blank_buffer(size_t bytes)
{
	unsigned char *buf;

	if (shunt_malloc((void **)&buf, bytes + 1))
		return NULL;
	memset(buf, 0xa5, bytes + 1);
	return buf;
}

static int check_pattern(struct rank *r, const unsigned char *buf, int from, int to, int i, size_t bytes)
{
	for (size_t k = 0; k < bytes; k++)
		CHECK(buf[k] == pattern_byte(from, to, i, k));
	CHECK(buf[bytes] == 0xa5);
	return 0;
}

/* Every rank to every rank, itself included, uneven counts, some of them zero, twice per pair. */
static size_t uneven_bytes(int from, int to, int i)
{
	return (from + to + i) % 4 ? (size_t)(from * 1000 + to * 300 + i * 17 + 1) : 0;
}

RANKS_TEST(
    test_send_recv_all_to_all_v_arrives, ranks_run(RANKS_PROCESSES, 3, 0, body) + ranks_run(RANKS_THREADS, 8, 0, body))
{
	void *out[8][2], *in[8][2];
	int n = r->nranks;

	NCCL(ncclGroupStart());
	for (int p = 0; p < n; p++)
		for (int i = 0; i < 2; i++) {
			size_t sent = uneven_bytes(r->rank, p, i), got = uneven_bytes(p, r->rank, i);

			out[p][i] = pattern_buffer(r->rank, p, i, sent);
			in[p][i] = blank_buffer(got);
			NCCL(ncclSend(sent ? out[p][i] : NULL, sent, ncclUint8, p, r->comm, r->stream));
			NCCL(ncclRecv(got ? in[p][i] : NULL, got, ncclUint8, p, r->comm, r->stream));
		}
	NCCL(ncclGroupEnd());
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int p = 0; p < n; p++)
		for (int i = 0; i < 2; i++) {
			if (check_pattern(r, in[p][i], p, r->rank, i, uneven_bytes(p, r->rank, i)))
				return 1;
			shunt_free(out[p][i]);
			shunt_free(in[p][i]);
		}
	return 0;
}

static atomic_int *arrived; /* ranks of the pair that are done */

/* The first thing on the communicator is a message between two ranks. The others call nothing until it has arrived. */
static int body_pair(struct rank *r)
{
	size_t bytes = 5000;

	if (r->rank == 1 || r->rank == 2) {
		void *buf = r->rank == 1 ? pattern_buffer(1, 2, 0, bytes) : blank_buffer(bytes);

		if (r->rank == 1)
			NCCL(ncclSend(buf, bytes, ncclInt8, 2, r->comm, r->stream));
		else
			NCCL(ncclRecv(buf, bytes, ncclInt8, 1, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		if (r->rank == 2 && check_pattern(r, buf, 1, 2, 0, bytes))
			return 1;
		shunt_free(buf);
		atomic_fetch_add(arrived, 1);
	} else {
		CHECK(until_counted(arrived, 2, "ranks have their message"));
	}
	return 0;
}

TEST(test_send_recv_needs_only_its_two_ranks)
{
	arrived = mmap(NULL, sizeof(*arrived), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(arrived, MAP_FAILED);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 4, 0, body_pair), 0);
	atomic_store(arrived, 0);
	assert_int_equal(ranks_run(RANKS_THREADS, 4, 0, body_pair), 0);
	munmap(arrived, sizeof(*arrived));
}

/* A pipeline: each rank receives from the one before and sends on, without groups. */
RANKS_TEST(test_send_recv_ungrouped_makes_a_pipeline, ranks_run(RANKS_PROCESSES, 4, 0, body))
{
	size_t bytes = 100000;
	void *buf = r->rank ? blank_buffer(bytes) : pattern_buffer(0, 9, 3, bytes);

	for (int i = 0; i < 5; i++) {
		if (r->rank)
			NCCL(ncclRecv(buf, bytes / 4, ncclFloat32, r->rank - 1, r->comm, r->stream));
		if (r->rank + 1 < r->nranks)
			NCCL(ncclSend(buf, bytes / 4, ncclFloat32, r->rank + 1, r->comm, r->stream));
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (check_pattern(r, buf, 0, 9, 3, bytes))
		return 1;
	shunt_free(buf);
	return 0;
}

/* Collectives and messages in one group, on two streams; ranks issue the messages in different places. */
RANKS_TEST(test_group_of_collectives_and_messages_runs,
    ranks_run(RANKS_PROCESSES, 4, 0, body) + ranks_run(RANKS_THREADS, 5, 0, body))
{
	int n = r->nranks, next = (r->rank + 1) % n, before = (r->rank + n - 1) % n;
	void *out = pattern_buffer(r->rank, next, 0, 3000), *in = blank_buffer(3000), *other;
	int *mine, *sum, *all;

	CHECK(!shunt_malloc((void **)&mine, 4000) && !shunt_malloc((void **)&sum, 4000) &&
	    !shunt_malloc((void **)&all, 4000 * n));
	CHECK(shunt_stream_create(&other) == 0);
	for (int i = 0; i < 1000; i++)
		mine[i] = i + r->rank;
	NCCL(ncclGroupStart());
	if (r->rank % 2)
		NCCL(ncclSend(out, 3000, ncclUint8, next, r->comm, other));
	NCCL(ncclAllReduce(mine, sum, 1000, ncclInt32, ncclSum, r->comm, r->stream));
	NCCL(ncclGroupStart());
	NCCL(ncclRecv(in, 3000, ncclUint8, before, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	NCCL(ncclAllGather(mine, all, 1000, ncclInt32, r->comm, other));
	if (r->rank % 2 == 0)
		NCCL(ncclSend(out, 3000, ncclUint8, next, r->comm, other));
	NCCL(ncclGroupEnd());
	CHECK(shunt_stream_synchronize(other) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int i = 0; i < 1000; i++)
		CHECK(sum[i] == n * i + n * (n - 1) / 2);
	for (int p = 0; p < n; p++)
		for (int i = 0; i < 1000; i++)
			CHECK(all[p * 1000 + i] == i + p);
	if (check_pattern(r, in, before, r->rank, 0, 3000))
		return 1;
	shunt_stream_destroy(other);
	shunt_free(out);
	shunt_free(in);
	shunt_free(mine);
	shunt_free(sum);
	shunt_free(all);
	return 0;
}

/*
 * Three communicators on one stream, named in another order on every rank, and a circle of messages of which each rank
 * has two.
 */
struct crosswise {
	ncclComm_t comm[3];
	void *out, *in;
	int *mine, *sum[3];
};

enum {
	CROSSWISE_BYTES = 100000,
	CROSSWISE_COUNT = 500
}; /* a message that does not fit into the ring: its sender waits */

static int crosswise_group(struct rank *r, const struct crosswise *c)
{
	int n = r->nranks;

	NCCL(ncclGroupStart());
	NCCL(ncclSend(c->out, CROSSWISE_BYTES, ncclUint8, (r->rank + 1) % n, c->comm[r->rank % 3], r->stream));
	NCCL(ncclRecv(
	    c->in, CROSSWISE_BYTES, ncclUint8, (r->rank + n - 1) % n, c->comm[(r->rank + n - 1) % n % 3], r->stream));
	NCCL(ncclGroupEnd());
	NCCL(ncclGroupStart());
	for (int i = 0; i < 3; i++) {
		int k = (i + r->rank) % 3;

		NCCL(ncclAllReduce(c->mine, c->sum[k], CROSSWISE_COUNT, ncclInt32, ncclSum, c->comm[k], r->stream));
	}
	NCCL(ncclGroupEnd());
	return 0;
}

static int crosswise_check(struct rank *r, const struct crosswise *c)
{
	int n = r->nranks, before = (r->rank + n - 1) % n;

	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (check_pattern(r, c->in, before, r->rank, 0, CROSSWISE_BYTES))
		return 1;
	memset(c->in, 0xa5, CROSSWISE_BYTES);
	for (int k = 0; k < 3; k++) {
		for (int i = 0; i < CROSSWISE_COUNT; i++)
			CHECK(c->sum[k][i] == n * i + n * (n - 1) / 2);
		memset(c->sum[k], 0, CROSSWISE_COUNT * sizeof(int));
	}
	return 0;
}

RANKS_TEST(test_group_names_communicators_crosswise_runs,
    ranks_run(RANKS_PROCESSES, 3, 0, body) + ranks_run(RANKS_THREADS, 3, 0, body))
{
	struct crosswise c = { .comm = { r->comm } };
	void *graph;

	NCCL(ncclCommSplit(r->comm, 0, r->rank, &c.comm[1], NULL));
	NCCL(ncclCommSplit(r->comm, 0, r->rank, &c.comm[2], NULL));
	c.out = pattern_buffer(r->rank, (r->rank + 1) % r->nranks, 0, CROSSWISE_BYTES);
	c.in = blank_buffer(CROSSWISE_BYTES);
	CHECK(!shunt_malloc((void **)&c.mine, CROSSWISE_COUNT * sizeof(int)));
	for (int i = 0; i < CROSSWISE_COUNT; i++)
		c.mine[i] = i + r->rank;
	for (int k = 0; k < 3; k++)
		CHECK(!shunt_malloc((void **)&c.sum[k], CROSSWISE_COUNT * sizeof(int)));
	for (int round = 0; round < 3; round++)
		if (crosswise_group(r, &c) || crosswise_check(r, &c))
			return 1;
	CHECK(shunt_capture_begin(r->stream) == 0);
	if (crosswise_group(r, &c))
		return 1;
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	for (int round = 0; round < 3; round++) {
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
		if (crosswise_check(r, &c))
			return 1;
	}
	CHECK(shunt_graph_destroy(graph) == 0);
	NCCL(ncclCommDestroy(c.comm[2]));
	NCCL(ncclCommDestroy(c.comm[1]));
	for (int k = 0; k < 3; k++)
		shunt_free(c.sum[k]);
	shunt_free(c.mine);
	shunt_free(c.out);
	shunt_free(c.in);
	return 0;
}

/* An algorithm of ours is taken by its name, among NCCL's too; a wish for NCCL's is none, a demand is an error. */
static int body_selection(struct rank *r, ncclCollConfig_t *config, int *a, int *b)
{
	static const char *const names[] = { "twoshot", "RING_LL,twoshot", "oneshot", "" };
	long twoshot = ranks_count_calls(r->comm, NULL, "twoshot"),
	     oneshot = ranks_count_calls(r->comm, NULL, "oneshot");

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char name[32];

		snprintf(name, sizeof(name), "%s", names[i]);
		config->algSelection = name;
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, config));
		memset(name, 'x', sizeof(name) - 1); /* the program's again */
		NCCL(ncclGroupEnd());
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		if (i == 1)
			CHECK(ranks_count_calls(r->comm, NULL, "twoshot") == twoshot + 2);
	}
	CHECK(ranks_count_calls(r->comm, NULL, "oneshot") >= oneshot + 1);
	twoshot = ranks_count_calls(r->comm, NULL, "twoshot");
	config->algSelection = "direct"; /* in windows only */
	CHECK(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, config) == ncclInvalidUsage);
	config->algSelection = "RING_LL";
	config->forceAlgSelection = 0;
	NCCL(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, config));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int i = 0; i < 10000; i++)
		CHECK(b[i] == i * r->nranks);
	config->CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;
	NCCL(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, config));
	config->CTAPolicy = 4;
	CHECK(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, config) == ncclInvalidArgument);
	config->CTAPolicy = NCCL_CONFIG_UNDEF_INT;
	config->size = 56; /* less than the first version's */
	CHECK(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, config) == ncclInvalidArgument);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	return 0;
}

/* Configurations of single calls, estimates, and messages that do not pair up; the communicator goes on. */
RANKS_TEST(test_group_odd_calls_answer_as_nccl, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	ncclCollConfig_t config = nccl_coll_config_unset();
	ncclSimInfo_t info = { .size = sizeof(info), .magic = SHUNT_NCCL_SIM_MAGIC, .estimatedTime = 7 };
	int *a = ranks_memory(r, 40000), *b = ranks_memory(r, 40000);

	config.maxCTAs = 1;
	for (int i = 0; i < 10000; i++)
		a[i] = i;
	memset(b, 0, 40000);
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream));
	NCCL(ncclSend(a, 1, ncclInt32, r->rank, r->comm, r->stream));
	NCCL(ncclGroupSimulateEnd(&info));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(b[1] == 0 && info.estimatedTime == -1);

	CHECK(ncclSend(a, 1, ncclInt32, r->rank, r->comm, r->stream) == ncclInvalidUsage);
	NCCL(ncclGroupStart());
	NCCL(ncclRecv(a, 1, ncclInt32, r->rank, r->comm, r->stream));
	CHECK(ncclGroupEnd() == ncclInvalidUsage);
	CHECK(ncclSend(a, 1, ncclInt32, r->nranks, r->comm, r->stream) == ncclInvalidArgument);
	CHECK(ncclRecv(NULL, 1, ncclInt32, 0, r->comm, r->stream) == ncclInvalidArgument);

	NCCL(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, &config));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int i = 0; i < 10000; i++)
		CHECK(b[i] == i * r->nranks);
	config.magic = 0;
	CHECK(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, &config) == ncclInvalidArgument);
	config.magic = 0xcafebeef;
	config.forceAlgSelection = NCCL_CONFIG_UNDEF_INT;
	CHECK(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, &config) == ncclInvalidArgument);
	config.forceAlgSelection = 1;
	config.algSelection = "allreduce_ring";
	CHECK(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, &config) == ncclInvalidArgument);
	if (body_selection(r, &config, a, b))
		return 1;
	return 0;
}

static ncclCollConfig_t config_with(void *event)
{
	ncclCollConfig_t config = nccl_coll_config_unset();

	config.launchCompletionEvent = event;
	return config;
}

/* Threads of this process, once none has come or gone for 50 ms: one that was joined may still be listed. */
static int count_threads(void)
{
	int n = 0, last = -1;

	for (int same = 0, looks = 0; same < 50 && looks < 30000; looks++) {
		n = entries("/proc/self/task");
		same = n == last ? same + 1 : 0;
		last = n;
		pause_us(PAUSE_POLL, 1000);
	}
	return n;
}

/* Blocks of an all-reduce on a stream of its own, which has a thread for each on the sim; -1: an error. */
static int count_blocks(ncclComm_t comm, int *a, int *b, const ncclCollConfig_t *config)
{
	int before = count_threads(), after;
	void *stream;

	if (shunt_stream_create(&stream) ||
	    ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, comm, stream, config) ||
	    shunt_stream_synchronize(stream))
		return -1;
	after = count_threads(); /* the stream stays, so that no thread of it goes */
	return after - before;
}

enum { POLICY_OF_ALL, POLICY_OF_ONE, POLICY_OF_ENVIRONMENT };
static int policy_of; /* set before the ranks are made */

/* Efficiency counts if all ranks ask for it, a call's own policy more than that, and the variable most. */
static int body_policy(struct rank *r)
{
	ncclCollConfig_t own = config_with(NULL);
	ncclConfig_t config = nccl_config_unset();
	ncclComm_t few;
	int *a, *b, few_blocks = policy_of == POLICY_OF_ONE ? 2 : 1;

	a = ranks_memory(r, 40000);
	b = ranks_memory(r, 40000);
	for (int i = 0; i < 10000; i++)
		a[i] = i;
	if (policy_of == POLICY_OF_ALL || (policy_of == POLICY_OF_ONE && r->rank))
		config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
	if (policy_of == POLICY_OF_ENVIRONMENT)
		config.CTAPolicy = NCCL_CTA_POLICY_DEFAULT;
	NCCL(ncclCommSplit(r->comm, 0, r->rank, &few, &config));
	/* The first call sets up, and starts threads that stay. */
	CHECK(count_blocks(r->comm, a, b, NULL) > 0 && count_blocks(few, a, b, NULL) > 0);
	CHECK(count_blocks(r->comm, a, b, NULL) == (policy_of == POLICY_OF_ENVIRONMENT ? 1 : 2));
	CHECK(count_blocks(few, a, b, NULL) == few_blocks);
	own.CTAPolicy = NCCL_CTA_POLICY_DEFAULT;
	CHECK(count_blocks(few, a, b, &own) == (policy_of == POLICY_OF_ENVIRONMENT ? 1 : 2));
	own.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
	CHECK(count_blocks(r->comm, a, b, &own) == 1);
	for (int i = 0; i < 10000; i++)
		CHECK(b[i] == i * r->nranks);
	NCCL(ncclCommDestroy(few));
	return 0;
}

static void set_efficiency(int rank)
{
	if (policy_of == POLICY_OF_ENVIRONMENT)
		setenv("NCCL_CTA_POLICY", "EFFICIENCY", 1);
}

TEST(test_efficiency_of_communicators_and_calls_takes_fewer_blocks)
{
	const struct ranks ranks = { RANKS_PROCESSES, 2, 0, body_policy, set_efficiency, 0 };

	for (policy_of = POLICY_OF_ALL; policy_of <= POLICY_OF_ENVIRONMENT; policy_of++)
		assert_int_equal(ranks_run_as(&ranks), 0);
}

static atomic_int *places; /* meetings of the ranks */

/* False: the event was not recorded within 30 s. */
static bool recorded(void *start, void *event)
{
	float us;

	for (int i = 0; i < 30000; i++) {
		int err = shunt_event_elapsed_us(start, event, &us);

		if (err != -EAGAIN)
			return !err;
		pause_us(PAUSE_POLL, 1000);
	}
	return false;
}

/* The event of a call is recorded while the call waits for a rank that does not come before it is. */
static int body_launched(struct rank *r)
{
	ncclCollConfig_t config;
	void *start, *events[2];
	int *a, *b, first;

	CHECK(!shunt_event_create(&start) && !shunt_event_create(&events[0]) && !shunt_event_create(&events[1]));
	a = ranks_memory(r, 40000);
	b = ranks_memory(r, 40000);
	for (int i = 0; i < 10000; i++)
		a[i] = i;
	NCCL(ncclAllReduce(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream)); /* sets up */
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int grouped = 0; grouped < 2; grouped++) {
		memset(b, 0, 40000);
		ranks_barrier(r, &places[3 * grouped]);
		if (r->rank)
			ranks_barrier(r, &places[3 * grouped + 1]);
		CHECK(shunt_event_record(start, r->stream) == 0);
		config = config_with(events[grouped]);
		if (grouped)
			NCCL(ncclGroupStart());
		NCCL(ncclAllReduceConfig(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream, &config));
		if (grouped)
			NCCL(ncclGroupEnd());
		if (!r->rank) {
			CHECK(recorded(start, events[grouped]));
			first = __atomic_load_n(&b[9999], __ATOMIC_RELAXED);
			ranks_barrier(r, &places[3 * grouped + 1]);
			CHECK(first == 0);
		}
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(recorded(start, events[grouped]));
		CHECK(b[9999] == 9999 * r->nranks);
		ranks_barrier(r, &places[3 * grouped + 2]);
	}
	/* As in NCCL a group has one, and the communicator goes on. */
	NCCL(ncclGroupStart());
	for (int i = 0; i < 2; i++) {
		config = config_with(events[i]);
		NCCL(ncclAllReduceConfig(a, b, 100, ncclInt32, ncclSum, r->comm, r->stream, &config));
	}
	CHECK(ncclGroupEnd() == ncclInvalidUsage);
	NCCL(ncclAllReduce(a, b, 10000, ncclInt32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(b[9999] == 9999 * r->nranks);
	return 0;
}

/* Of one rank, which copies, or does nothing where it is in place. */
static int body_launched_alone(struct rank *r)
{
	ncclCollConfig_t config;
	void *start, *event;
	int *a = ranks_memory(r, 4000), *b = ranks_memory(r, 4000);

	for (int in_place = 0; in_place < 2; in_place++) {
		CHECK(!shunt_event_create(&start) && !shunt_event_create(&event));
		config = config_with(event);
		CHECK(shunt_event_record(start, r->stream) == 0);
		NCCL(ncclAllReduceConfig(a, in_place ? a : b, 1000, ncclInt32, ncclSum, r->comm, r->stream, &config));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(recorded(start, event));
		shunt_event_destroy(event);
		shunt_event_destroy(start);
	}
	return 0;
}

TEST(test_launch_completion_event_comes_before_a_missing_rank)
{
	places = mmap(NULL, 6 * sizeof(*places), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(places != MAP_FAILED);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 0, body_launched), 0);
	for (int i = 0; i < 6; i++)
		places[i] = 0;
	assert_int_equal(ranks_run(RANKS_THREADS, 3, 0, body_launched), 0);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 1, 0, body_launched_alone), 0);
}

/* One rank by itself: everything is a local copy, and pre-multiplied sums scale. */
/* Of a group's two streams one captures. */
RANKS_TEST(test_group_on_streams_that_capture_apart_is_refused, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	void *streams[2] = { r->stream }, *graph;
	int *a, *b;

	CHECK(!shunt_malloc((void **)&a, 4000) && !shunt_malloc((void **)&b, 4000) &&
	    shunt_stream_create(&streams[1]) == 0);
	memset(a, 0, 4000);
	NCCL(ncclAllReduce(a, b, 1000, ncclInt32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK(shunt_capture_begin(streams[i]) == 0);
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(a, b, 500, ncclInt32, ncclSum, r->comm, streams[0]));
		NCCL(ncclAllReduce(a + 500, b + 500, 500, ncclInt32, ncclSum, r->comm, streams[1]));
		CHECK(ncclGroupEnd() == ncclInvalidUsage);
		NCCL(ncclAllReduce(a, a, 1000, ncclInt32, ncclSum, r->comm, streams[i]));
		CHECK(shunt_capture_end(streams[i], &graph) == 0);
		for (int k = 0; k < 1000; k++)
			a[k] = k + r->rank;
		CHECK(shunt_graph_launch(graph, streams[i]) == 0);
		NCCL(ncclAllReduce(a, b, 1000, ncclInt32, ncclMax, r->comm, streams[!i]));
		CHECK(shunt_stream_synchronize(streams[!i]) == 0);
		for (int k = 0; k < 1000; k++)
			CHECK(b[k] == r->nranks * k + r->nranks * (r->nranks - 1) / 2);
		shunt_graph_destroy(graph);
	}
	shunt_stream_destroy(streams[1]);
	shunt_free(a);
	shunt_free(b);
	return 0;
}

/*
 * A group on one end only: the other one takes message by message, and is to have each before the sender's next ones.
 * In one launch of the sender's there are messages in chunks and in lines.
 */
RANKS_TEST(test_group_on_one_end_only_runs, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	static const size_t bytes[] = { 262144, 16384, 16384, 16384 };
	enum { N = sizeof(bytes) / sizeof(bytes[0]) };
	void *buf[N];

	if (!r->rank)
		NCCL(ncclGroupStart());
	for (int i = 0; i < N; i++) {
		buf[i] = r->rank ? blank_buffer(bytes[i]) : pattern_buffer(0, 1, i, bytes[i]);
		CHECK(buf[i]);
		if (r->rank)
			NCCL(ncclRecv(buf[i], bytes[i], ncclUint8, 0, r->comm, r->stream));
		else
			NCCL(ncclSend(buf[i], bytes[i], ncclUint8, 1, r->comm, r->stream));
	}
	if (!r->rank)
		NCCL(ncclGroupEnd());
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int i = 0; i < N && r->rank; i++)
		CHECK(!check_pattern(r, buf[i], 0, 1, i, bytes[i]));
	for (int i = 0; i < N; i++)
		shunt_free(buf[i]);
	return 0;
}

/*
 * Groups of a broadcast and of a reduce for each root, of parts that differ, in which more than that is mixed: types,
 * operators, streams, a second communicator, a root that comes twice, and calls of other kinds between them.
 */
enum { PART = 400 };

static size_t part_count(int root)
{
	return root == 1 ? 0 : 100 + 97 * (size_t)root;
}

static int call_uneven(struct rank *r, ncclComm_t other, int *in, int *out, void *stream)
{
	int n = r->nranks, *sums = out + n * PART, *more = out + 2 * n * PART;
	float *floats = (float *)(in + n * PART), *sum = (float *)(out + 3 * n * PART);

	for (int i = 0; i < n; i++) {
		int root = (i + 2) % n;
		size_t count = part_count(root);

		NCCL(ncclBroadcast(
		    in + root * PART, out + root * PART, count, ncclInt32, root, r->comm, i % 2 ? stream : r->stream));
		NCCL(ncclReduce(in + root * PART, sums + root * PART, count, ncclInt32, i % 2 ? ncclMax : ncclSum, root,
		    r->comm, r->stream));
		NCCL(ncclReduce(
		    floats + root * PART, sum + root * PART, count, ncclFloat32, ncclSum, root, r->comm, r->stream));
		NCCL(ncclBroadcast(in + root * PART, more + root * PART, count * 4, ncclUint8, root, other, stream));
		if (i == 1)
			NCCL(ncclAllReduce(
			    in + n * PART - 1, out + n * PART - 1, 1, ncclInt32, ncclSum, r->comm, r->stream));
	}
	/* The last root again, which is another part. */
	NCCL(ncclBroadcast(in + PART - 9, out + PART - 9, 5, ncclInt32, 1 % n, r->comm, r->stream));
	return 0;
}

static int check_uneven(struct rank *r, const int *out)
{
	int n = r->nranks, ranks = n * (n - 1) / 2;
	const int *sums = out + n * PART, *more = out + 2 * n * PART;
	const float *sum = (const float *)(out + 3 * n * PART);

	for (int i = 0; i < n; i++) {
		int root = (i + 2) % n;

		for (int k = 0; k < (int)part_count(root); k++) {
			int at = root * PART + k, most = at + 10000 * (n - 1);

			CHECK(out[at] == at + 10000 * root && more[at] == at + 10000 * root);
			if (r->rank == root)
				CHECK(sums[at] == (i % 2 ? most : n * at + 10000 * ranks) &&
				    sum[at] == (float)(n * at + 10000 * ranks));
		}
	}
	CHECK(out[n * PART - 1] == n * (n * PART - 1) + 10000 * ranks);
	for (int k = 0; k < 5; k++)
		CHECK(out[PART - 9 + k] == PART - 9 + k + 10000 * (1 % n));
	return 0;
}

RANKS_TEST(test_group_of_uneven_parts_and_more_runs, ranks_run(RANKS_PROCESSES, 3, 0, body))
{
	size_t bytes = 4 * (size_t)r->nranks * PART * 4;
	ncclComm_t other;
	int *in, *out;
	void *stream;

	CHECK(
	    !shunt_malloc((void **)&in, bytes) && !shunt_malloc((void **)&out, bytes) && !shunt_stream_create(&stream));
	for (int k = 0; k < r->nranks * PART; k++) {
		in[k] = k + 10000 * r->rank;
		((float *)(in + r->nranks * PART))[k] = (float)in[k];
	}
	NCCL(ncclCommSplit(r->comm, 0, r->rank, &other, NULL));
	for (int bad = 1; bad >= 0; bad--) {
		memset(out, 0xff, bytes);
		NCCL(ncclGroupStart());
		CHECK(!call_uneven(r, other, in, out, stream));
		/* An error in the middle drops the whole group, and the communicators go on. */
		if (bad)
			CHECK(
			    ncclBroadcast(in, out, 5, ncclInt32, r->nranks, r->comm, r->stream) == ncclInvalidArgument);
		CHECK(ncclGroupEnd() == (bad ? ncclInvalidArgument : ncclSuccess));
		CHECK(!shunt_stream_synchronize(r->stream) && !shunt_stream_synchronize(stream));
		for (size_t k = 0; bad && k < bytes / 4; k++)
			CHECK(out[k] == -1);
	}
	CHECK(!check_uneven(r, out));
	CHECK(ranks_count_calls(r->comm, "broadcast", "allgatherv") > 0 &&
	    ranks_count_calls(other, "broadcast", "allgatherv") > 0);
	CHECK(ranks_count_calls(r->comm, "reduce", "reduce_scatterv") > 0);
	NCCL(ncclCommDestroy(other));
	shunt_stream_destroy(stream);
	shunt_free(in);
	shunt_free(out);
	return 0;
}

/* Messages of all sizes between all ranks, in rounds. Each rank makes groups of as many rounds as it likes. */
struct random_message {
	int round, from, to;
	size_t bytes, at;
	unsigned char *buf;
};

static uint32_t random_below(uint64_t *state, uint32_t n)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((*state >> 33) * n >> 31);
}

static size_t random_bytes(uint64_t *state)
{
	uint32_t how = random_below(state, 8);

	return how == 0 ? random_below(state, 600) :
	    how < 4     ? random_below(state, 16384) :
	    how < 6     ? 16384 :
	                  16385 + random_below(state, 150000);
}

static int random_messages(uint64_t seed, int nranks, struct random_message *m, int max)
{
	uint64_t common = seed;
	int n = 0;

	for (int round = 0; n + 6 <= max; round++)
		for (uint32_t left = 1 + random_below(&common, 6); left; left--) {
			int from = (int)random_below(&common, (uint32_t)nranks),
			    to = (int)random_below(&common, (uint32_t)nranks);
			size_t bytes = random_bytes(&common),
			       at = random_below(&common, 3) ? 0 : random_below(&common, 16);

			if (from != to)
				m[n++] = (struct random_message){
					.round = round, .from = from, .to = to, .bytes = bytes, .at = at
				};
		}
	return n;
}

static uint64_t apart_seed;

static int body_grouped_apart(struct rank *r)
{
	struct random_message m[120];
	int n = random_messages(apart_seed, r->nranks, m, 120);
	uint64_t own = apart_seed + 977u * (unsigned)r->rank;

	for (int i = 0; i < n;) {
		int end = m[i].round + 1 + (int)random_below(&own, 4);

		NCCL(ncclGroupStart());
		for (; i < n && m[i].round < end; i++) {
			struct random_message *d = &m[i];

			if (d->from != r->rank && d->to != r->rank)
				continue;
			d->buf = blank_buffer(d->bytes + d->at);
			CHECK(d->buf);
			for (size_t k = 0; d->from == r->rank && k < d->bytes; k++)
				d->buf[d->at + k] = pattern_byte(d->from, d->to, i, k);
			if (d->from == r->rank)
				NCCL(ncclSend(d->buf + d->at, d->bytes, ncclUint8, d->to, r->comm, r->stream));
			else
				NCCL(ncclRecv(d->buf + d->at, d->bytes, ncclUint8, d->from, r->comm, r->stream));
		}
		NCCL(ncclGroupEnd());
	}
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int i = 0; i < n; i++) {
		if (m[i].to == r->rank)
			CHECK(!check_pattern(r, m[i].buf + m[i].at, m[i].from, m[i].to, i, m[i].bytes));
		if (m[i].buf)
			shunt_free(m[i].buf);
	}
	return 0;
}

TEST(test_messages_grouped_otherwise_on_each_rank_arrive)
{
	for (apart_seed = 1; apart_seed < 4; apart_seed++)
		assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 0, body_grouped_apart), 0);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 3, 0, body_grouped_apart), 0);
	assert_int_equal(ranks_run(RANKS_THREADS, 4, 0, body_grouped_apart), 0);
}

RANKS_TEST(test_one_rank_runs_everything_by_itself, ranks_run(RANKS_PROCESSES, 1, 0, body))
{
	float *a, *b, two = 2;
	ncclRedOp_t twice;

	a = ranks_memory(r, 4000);
	b = ranks_memory(r, 4000);
	for (int i = 0; i < 1000; i++)
		a[i] = (float)i;
	memset(b, 0, 4000);
	NCCL(ncclRedOpCreatePreMulSum(&twice, &two, ncclFloat32, ncclScalarHostImmediate, r->comm));
	NCCL(ncclReduceScatter(a, b, 1000, ncclFloat32, twice, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int i = 0; i < 1000; i++)
		CHECK(b[i] == 2.f * (float)i);
	NCCL(ncclAllReduce(b, b, 1000, ncclFloat32, twice, r->comm, r->stream));
	NCCL(ncclRedOpDestroy(twice, r->comm));
	NCCL(ncclGroupStart());
	NCCL(ncclSend(b, 1000, ncclFloat32, 0, r->comm, r->stream));
	NCCL(ncclRecv(a, 1000, ncclFloat32, 0, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int i = 0; i < 1000; i++)
		CHECK(a[i] == 4.f * (float)i);
	NCCL(ncclAllReduce(a, b, 10, ncclFloat32, ncclAvg, r->comm, r->stream));
	NCCL(ncclAlltoAll(a, b + 10, 10, ncclFloat32, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(b[3] == 12 && b[13] == 12);
	return 0;
}

TESTS_BEGIN
{
	own_standalone();
	setenv("SHUNT_SIM_DEVICES", "8", 1);
}

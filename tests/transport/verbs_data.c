/* SPDX-License-Identifier: MIT */
/* Data and signals over NICs that are late, slow, or several. */
#include "tests/transport/verbs_suite.h"

/* ---- what NICs may do with data */

/* A source is written anew at the moment at which it may be. With several queue pairs most puts have parts on all. */
static void sources_change(void)
{
	struct shunt_net_put put = begin_put(REGION(wide_from, 0), REGION(wide_to, 0));
	uint32_t most = shunt_config()->ib_qps > 1 ? WIDE : 65536;

	put.count = 1;
	for (uint32_t turn = 1; turn <= 100; turn++) {
		put.bytes = turn % 3 ? 1 + turn * 104729 % most : turn;
		memset(wide_from, (int)(turn & 0x7f), put.bytes);
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		for (int64_t stop = unit_now_ms() + AT_ONCE_MS; ends[0].done != turn; step(&ends[0]))
			CHECK(unit_now_ms() < stop);
		memset(wide_from, 0xff, put.bytes);
		UNTIL(ends[1].signalled == turn);
		for (uint32_t i = 0; i < put.bytes; i++)
			CHECK(wide_to[i] == (turn & 0x7f));
	}
	end_all();
}

TEST(test_data_may_land_late_and_in_pieces)
{
	CASE(works(), { "FAKE_IBV_PIECE_US", "2" });
	CASE(sources_change(), { "FAKE_IBV_PIECE_US", "2" });
}

TEST(test_sources_are_read_late)
{
	CASE(sources_change(), { "FAKE_IBV_LATE_READ_US", "500" });
	/* What is small is copied when it is posted. */
	CASE(sources_change(), { "FAKE_IBV_LATE_READ_US", "500" }, { "FAKE_IBV_DEVICES", "mlx0 inline=0" });
	CASE(sources_change(), { "FAKE_IBV_LATE_READ_US", "500" }, { "FAKE_IBV_DEVICES", "mlx0 inline=64" });
	CASE(sources_change(), { "FAKE_IBV_LATE_READ_US", "500" }, { "SHUNT_IB_QPS", "3" });
}

TEST(test_completions_come_late_and_in_batches)
{
	CASE(works(), { "FAKE_IBV_CQ_DELAY_US", "1000" });
	CASE(works(), { "FAKE_IBV_CQ_PERIOD_US", "700" });
	CASE(works(), { "FAKE_IBV_CQ_PERIOD_US", "500" }, { "FAKE_IBV_CQ_DELAY_US", "300" });
}

/* Puts without signals, more than a queue holds: most have no completion of their own, which would give a slot back. */
static void many_without_signals(void)
{
	struct shunt_net_put put = begin_put(REGION(from, 0), REGION(to, 0));
	uint64_t posted = 0;

	put.bytes = 100;
	/* As fast as it takes them, and the NIC is looked at only when it takes none. */
	for (int64_t stop = unit_now_ms() + AT_ONCE_MS; posted < 20 * VERBS_SENDS;) {
		int taken = ops->post(ends[0].endpoint, &put, 1);

		CHECK(taken >= 0 && unit_now_ms() < stop);
		posted += (unsigned)taken;
		if (!taken)
			step(&ends[0]);
	}
	UNTIL(ends[0].done == posted);
	CHECK(!ends[0].dead);
	end_all();
}

TEST(test_a_full_queue_has_room_again)
{
	char shortest[64], queues[64];

	snprintf(shortest, sizeof(shortest), "mlx0 depth=%d", VERBS_RECEIVES);
	snprintf(queues, sizeof(queues), "mlx0 cqes=%d", VERBS_CQ_ENTRIES(1) + VERBS_MAX_GPU_MEMORY);
	CASE(many_without_signals(), { "FAKE_IBV_DEVICES", shortest });
	CASE(many_without_signals(), { "FAKE_IBV_DEVICES", queues });
}

/* Everything of 32 endpoints fails at once, in completion queues that are as short as they may be: none is too short.
 */
static void all_fail_at_once(void)
{
	enum { N = 32 };
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };
	struct shunt_net_put signal = { .count = 1 };
	struct shunt_net_event events[16];
	struct shunt_net_endpoint *endpoint[2 * N];
	struct shunt_net_blob blob[2 * N];
	struct shunt_net_device *device;
	int ready = 0, dead = 0;
	int64_t stop = unit_now_ms() + AT_ONCE_MS;

	CHECK(!ops->open(0, &device));
	for (int i = 0; i < 2 * N; i++)
		CHECK(!ops->endpoint_create(device, &peer, &endpoint[i], &blob[i]));
	for (int i = 0; i < 2 * N; i++)
		CHECK(!ops->endpoint_connect(endpoint[i], &blob[i ^ 1]));
	while (ready < 2 * N) {
		for (int n = ops->progress(device, events, 16); n; n--)
			ready += events[n - 1].kind == SHUNT_NET_READY;
		CHECK(unit_now_ms() < stop);
	}
	for (int i = 0; i < 2 * N; i++)
		for (int n = 0; n < VERBS_PUTS; n++)
			CHECK(ops->post(endpoint[i], &signal, 1) == 1);
	for (int i = 0; i < 2 * N; i++)
		CHECK(!verbs_qp_state(
		    verbs_device_of(device)->rail, verbs_endpoint_of(endpoint[i])->lane->qp, SHUNT_IBV_QPS_ERR));
	while (dead < 2 * N) {
		for (int n = ops->progress(device, events, 16); n; n--) {
			dead += events[n - 1].kind == SHUNT_NET_ERROR;
			CHECK(events[n - 1].kind != SHUNT_NET_ERROR || !strstr(events[n - 1].text, "CQ"));
		}
		CHECK(unit_now_ms() < stop);
	}
	for (int i = 0; i < 2 * N; i++)
		ops->endpoint_close(endpoint[i]);
	ops->close(device);
}

TEST_CALL(test_completion_queues_do_not_overrun, CASE(all_fail_at_once(), { "FAKE_IBV_CQ_PERIOD_US", "3000" }))

/* ---- signals */

/* Work of a sender whose peer takes nothing: it stops while the peer still has receives, so that none is missing. */
static void signals_alone(void)
{
	struct shunt_net_put signal = { .channel = 7, .count = 1 };
	uint64_t posted = 0;
	int64_t stop;

	begin();
	UNTIL(ends[0].ready && ends[1].ready);
	for (stop = unit_now_ms() + AT_ONCE_MS; ends[0].done < VERBS_SIGNALS;) {
		CHECK(unit_now_ms() < stop);
		posted += (uint64_t)ops->post(ends[0].endpoint, &signal, 1);
		step(&ends[0]);
	}
	while (ops->post(ends[0].endpoint, &signal, 1) == 1)
		posted++;
	CHECK(posted == VERBS_SIGNALS + VERBS_PUTS);
	/* What must not happen would have by then. */
	for (stop = unit_now_ms() + 200; unit_now_ms() < stop;)
		step(&ends[0]);
	CHECK(ends[0].done == VERBS_SIGNALS);
	UNTIL(ends[0].done == posted && ends[1].signalled == posted);
	end_all();
}

TEST_CALL(test_a_signal_always_finds_a_receive, CASE(signals_alone(), { "FAKE_IBV_DEVICES", "mlx0 link=roce" }))

/* ---- several rails and queue pairs */

/* Large puts, some without a signal of their own; a signal, of whatever put, says that all before it are there. */
static void many_lanes(void)
{
	struct shunt_net_put put = begin_put(REGION(wide_from, 0), REGION(wide_to, 0));
	int nlanes = atoi(getenv("LANES"));

	for (int i = 0; i < 2; i++)
		CHECK(verbs_endpoint_of(ends[i].endpoint)->nlanes == nlanes);
	for (uint32_t turn = 1; turn <= 100; turn++) {
		uint32_t large = 1 + turn * 104729 % (WIDE - 100), done = 2 * (turn - 1);

		for (uint32_t i = 0; i < large; i++)
			wide_from[i] = (uint8_t)(i * 7 + i / 251 + turn);
		memset(wide_from + large, (int)turn, 64);
		put.source = wide_from;
		put.bytes = large;
		put.remote_offset = 0;
		put.count = turn % 2;
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		put.source = wide_from + large;
		put.bytes = turn % 3 ? 64 : 0;
		put.remote_offset = large;
		put.count = 1;
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		UNTIL(ends[1].signalled == turn + (turn + 1) / 2);
		CHECK(!memcmp(wide_from, wide_to, large + put.bytes));
		UNTIL(ends[0].done == done + 2);
	}
	for (int i = 0; i < 2; i++)
		ops->finish(ends[i].endpoint);
	UNTIL(ends[0].ended && ends[1].ended);
	CHECK(!ends[0].dead && !ends[1].dead);
	end_all();
}

#define FOUR_NICS "mlx0 link=roce; mlx1 link=roce; mlx2 link=roce; mlx3 link=roce mtu=512"

TEST(test_large_puts_go_over_rails_and_queue_pairs)
{
	CASE(many_lanes(), { "LANES", "1" });
	CASE(many_lanes(), { "LANES", "4" }, { "NCCL_IB_QPS_PER_CONNECTION", "4" });
	CASE(many_lanes(), { "LANES", "8" }, { "SHUNT_IB_QPS", "100" });
	CASE(many_lanes(), { "LANES", "2" }, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" });
	CASE(many_lanes(), { "LANES", "4" }, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" },
	    { "SHUNT_IB_QPS", "2" }, { "FAKE_IBV_PIECE_US", "2" }, { "FAKE_IBV_CQ_DELAY_US", "300" });
	/* Additions would not wait for the other lanes. */
	CASE(many_lanes(), { "LANES", "1" }, { "SHUNT_IBV_MODE", "host" }, { "SHUNT_IB_QPS", "4" });
	/* Queues that have no room for more. */
	CASE(many_lanes(), { "LANES", "2" }, { "SHUNT_IB_QPS", "8" }, { "FAKE_IBV_DEVICES", "mlx0 cqes=2000" });
	write_script("at=2000 link=host0:mlx1 action=stall 100ms\nat=5000 link=host0:mlx1 action=flap 50ms\n");
	CASE(many_lanes(), { "LANES", "2" }, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" },
	    { "FAKE_IBV_FAULTS", script });
}

/* The end with more of both takes as many as the other one. */
static void uneven(void)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };

	for (int i = 0; i < 2; i++) {
		CHECK(!ops->open(2 * i, &ends[i].device));
		CHECK(i || !ops->add_rail(ends[i].device, 1));
		CHECK(!ops->endpoint_create(ends[i].device, &peer, &ends[i].endpoint, &ends[i].blob));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ops->endpoint_connect(ends[i].endpoint, &ends[!i].blob));
	UNTIL(ends[0].ready && ends[1].ready);
	for (int i = 0; i < 2; i++)
		CHECK(verbs_endpoint_of(ends[i].endpoint)->nlanes == 2);
	put_many(100);
	CHECK(!ends[0].dead);
}

TEST_CALL(test_ends_take_as_many_lanes_as_both_have,
    CASE(uneven(), { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_QPS", "2" }))

/* Names the rail, once. */
static void rail_lost(void)
{
	struct shunt_net_put put = begin_put(REGION(wide_from, 0), REGION(wide_to, 0));
	const struct end *met;
	int64_t stop = unit_now_ms() + AT_ONCE_MS;

	put.bytes = WIDE;
	put.count = 1;
	while (!ends[0].dead || !ends[1].dead) {
		if (!ends[0].dead)
			ops->post(ends[0].endpoint, &put, 1);
		CHECK(unit_now_ms() < stop);
		step(&ends[0]);
		step(&ends[1]);
	}
	met = strstr(ends[0].text, "mlx1") ? &ends[0] : &ends[1];
	CHECK(strstr(met->text, met == ends ? "mlx1 port 1" : "mlx3 port 1") && strstr(met->text, "status 12"));
	end_all();
}

static void no_gid_on_a_rail(void)
{
	begin();
	UNTIL(ends[0].dead && ends[1].dead);
	CHECK(!ends[0].ready && !ends[1].ready);
	CHECK((strstr(ends[0].text, "mlx1 port 1") && strstr(ends[0].text, "no GID of this end")) ||
	    (strstr(ends[1].text, "mlx3 port 1") && strstr(ends[1].text, "no GID of this end")));
	end_all();
}

static void silent_rail(void)
{
	begin_within(700);
	UNTIL(ends[0].dead && ends[1].dead);
	CHECK(!ends[0].ready && !ends[1].ready);
	CHECK(strstr(ends[0].text, "mlx1 port 1") || strstr(ends[1].text, "mlx3 port 1"));
	end_all();
}

TEST(test_a_rail_that_fails_ends_the_endpoint)
{
	write_script("at=3000 link=host0:mlx1 action=down\n");
	CASE(rail_lost(), { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" }, { "FAKE_IBV_FAULTS", script },
	    { "NCCL_IB_TIMEOUT", "14" });
	CASE(no_gid_on_a_rail(),
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce; mlx1 link=roce gids=v1@10.0.0.1; mlx2 link=roce; mlx3 link=roce gids=v2@10.0.0.2" },
	    { "SHUNT_IB_RAILS", "2" });
	CASE(silent_rail(),
	    { "FAKE_IBV_DEVICES", "mlx0 link=roce; mlx1 link=roce sls=1; mlx2 link=roce; mlx3 link=roce sls=1" },
	    { "SHUNT_IB_RAILS", "2" }, { "NCCL_IB_SL", "1" });
}

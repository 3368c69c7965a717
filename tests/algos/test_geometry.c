/* SPDX-License-Identifier: MIT */
/* Launches that calls become: blocks, threads, channels; and a warp for each channel of each message. */
#include "tests/algos/paths.h"
#include "tests/support/unit.h"
#include "algos/algos.h"
#include "shunt/shunt.h"

struct launch_seen {
	unsigned blocks, threads, channels, cluster, n, shape;
};

static int see_launch(void *ctx, const struct shunt_work *work)
{
	struct launch_seen *s = ctx;

	*s = (struct launch_seen){ work->blocks, work->threads, work->args.k.channels, work->cluster, s->n + 1,
		SHUNT_SHAPE_OF(work->kernel) };
	return 0;
}

/* Of so many calls at once, which take one launch. */
static struct launch_seen launched_group(
    struct shunt_sel_key sel_key, enum shunt_kind kind, uint64_t count, const char *rule, size_t n)
{
	const struct shunt_kargs base = { .nranks = (uint16_t)sel_key.nranks };
	static _Alignas(16) char in[16], out[16]; /* addresses only: what is not aligned is sent otherwise */
	struct launch_seen launch_seen = { 0 };
	struct shunt_enqueue_ctx enqueue = {
		.sel_key = &sel_key, .base = &base, .emit = see_launch, .ctx = &launch_seen
	};
	struct shunt_coll c = { .kind = kind, .dtype = SHUNT_F32, .count = count, .root = 1, .send = in, .recv = out };
	const struct shunt_coll *calls[8] = { &c, &c, &c, &c, &c, &c, &c, &c };
	struct shunt_decision decisions[8];

	assert_true(n <= 8);
	assert_int_equal(shunt_algo_force(rule), 0);
	for (size_t i = 0; i < n; i++)
		assert_true(shunt_select(SEL(&sel_key), &c, &decisions[i]));
	assert_int_equal(shunt_enqueue_calls(&enqueue, calls, decisions, n), 0);
	shunt_algo_force(NULL);
	assert_int_equal(launch_seen.n, 1);
	return launch_seen;
}

static struct launch_seen launched(struct shunt_sel_key sel_key, enum shunt_kind kind, uint64_t count, const char *rule)
{
	return launched_group(sel_key, kind, count, rule, 1);
}

TEST(test_geometry_two_ranks_take_one_hop_singly_and_in_groups)
{
	struct shunt_sel_key two = { .topology = ONE_ISLAND, .nranks = 2, .cc = 90, .takes_all = true },
	                     four = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true };

	/* There are no slots for a second one, and other sets of those for the first. */
	assert_int_equal(
	    launched(two, SHUNT_ALLREDUCE, 4096, "allreduce:0-inf:twoshot").shape, SHUNT_SHAPE_oneshot2_packs);
	assert_int_equal(
	    launched_group(two, SHUNT_ALLREDUCE, 4096, "allreduce:0-inf:twoshot", 2).shape, SHUNT_SHAPE_oneshot2_few);
	assert_int_equal(
	    launched_group(four, SHUNT_ALLREDUCE, 4096, "allreduce:0-inf:twoshot", 2).shape, SHUNT_SHAPE_twoshot4_few);
}

TEST(test_geometry_pairwise_is_for_one_call_between_two)
{
	struct shunt_sel_key two = { .topology = ONE_ISLAND, .nranks = 2, .cc = 90, .takes_all = true },
	                     four = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true };

	assert_int_equal(launched(two, SHUNT_ALLGATHER, 4096, "allgather:0-inf:pairwise").shape, SHUNT_SHAPE_pairwise);
	assert_int_equal(
	    launched(two, SHUNT_ALLTOALL, 4096, "alltoall:0-inf:pairwise").shape, SHUNT_SHAPE_pairwise_parts);
	assert_int_equal(
	    launched_group(two, SHUNT_ALLGATHER, 4096, "allgather:0-inf:pairwise", 2).shape, SHUNT_SHAPE_ll128_8);
	assert_int_equal(
	    launched(four, SHUNT_ALLGATHER, 4096, "allgather:0-inf:pairwise").shape, SHUNT_SHAPE_ll128_one);
}

TEST(test_geometry_roles_of_one_batch_have_a_kernel)
{
	struct shunt_sel_key four = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true };
	const char *rule = "allgather:0-inf:ll128,broadcast:0-inf:pipelined";

	/* 135 channels of a pair, four slots of 480 bytes on each. */
	assert_int_equal(launched(four, SHUNT_ALLGATHER, 4, rule).shape, SHUNT_SHAPE_ll128_one);
	assert_int_equal(launched(four, SHUNT_ALLGATHER, 135 * 4 * 120, rule).shape, SHUNT_SHAPE_ll128_one);
	assert_int_equal(launched(four, SHUNT_ALLGATHER, 135 * 4 * 120 + 4, rule).shape, SHUNT_SHAPE_ll128_8);
	assert_int_equal(launched(four, SHUNT_ALLGATHER, 3, rule).shape, SHUNT_SHAPE_ll128_8); /* odd bytes */
	assert_int_equal(launched_group(four, SHUNT_ALLGATHER, 4, rule, 2).shape, SHUNT_SHAPE_ll128_8);
	assert_int_equal(launched(four, SHUNT_BROADCAST, 4, rule).shape, SHUNT_SHAPE_ll128_8);
}

TEST(test_geometry_limits_blocks_threads_and_channels)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true };
	struct launch_seen x;

	x = launched(s, SHUNT_ALLREDUCE, 1 << 20, "allreduce:0-inf:twoshot");
	assert_int_equal(x.blocks, 64);
	assert_int_equal(x.threads, 512);
	x = launched(s, SHUNT_ALLREDUCE, 1 << 20, "allreduce:0-inf:twoshot@16x128");
	assert_int_equal(x.blocks, 16);
	assert_int_equal(x.threads, 128);
	x = launched(s, SHUNT_ALLREDUCE, 64, "allreduce:0-inf:oneshot@16x128"); /* one unit needs one warp */
	assert_int_equal(x.blocks, 1);
	assert_int_equal(x.threads, 32);
	x = launched(s, SHUNT_ALLGATHER, 1 << 20, "allgather:0-inf:ll128@16x256");
	assert_true(x.blocks <= 16 && x.threads <= 256);
	assert_int_equal(x.channels,
	    (16 - 2) / 6 *
	        (8 - 1)); /* if there are chunks, 2 blocks only copy, and one warp of the others is a courier */
	x = launched(s, SHUNT_ALLGATHER, 1 << 20, "allgather:0-inf:ll128@16x256x4");
	assert_int_equal(x.channels, 4);
	/* Every role needs a warp: too few threads for one block are not taken. */
	x = launched(s, SHUNT_ALLTOALL, 1 << 20, "alltoall:0-inf:ll128@1x32");
	assert_int_equal(x.blocks, 1);
	assert_int_equal(x.channels, 2);
	assert_true(x.threads >= 7 * 2 * 32 && x.threads <= 512);
	/* The user's own limits hold as well. */
	s.max_ctas = 4;
	x = launched(s, SHUNT_ALLREDUCE, 1 << 20, "allreduce:0-inf:twoshot@16x128");
	assert_int_equal(x.blocks, 4);
}

/* At most half the blocks, whatever chose their number, and warps of a small message share a block. */
TEST(test_geometry_of_efficiency_has_half_the_blocks)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true }, few = s;
	struct launch_seen x, y;

	few.few_ctas = true;
	x = launched(few, SHUNT_ALLREDUCE, 1 << 20, "allreduce:0-inf:twoshot");
	assert_int_equal(x.blocks, 32);
	assert_int_equal(x.threads, 512);
	x = launched(few, SHUNT_ALLREDUCE, 1 << 20, "allreduce:0-inf:twoshot@16x128");
	assert_int_equal(x.blocks, 8);
	y = launched(s, SHUNT_ALLREDUCE, 2000, "allreduce:0-inf:oneshot");
	x = launched(few, SHUNT_ALLREDUCE, 2000, "allreduce:0-inf:oneshot");
	assert_true(y.blocks > 8 && y.threads == 32);
	assert_int_equal(x.blocks, (y.blocks + 7) / 8);
	assert_true(x.blocks * x.threads >= y.blocks * y.threads); /* as many warps */
	for (uint64_t count = 4; count <= 1 << 26; count *= 4) {
		static const enum shunt_kind kinds[] = { SHUNT_ALLREDUCE, SHUNT_ALLGATHER, SHUNT_ALLTOALL,
			SHUNT_BROADCAST };

		for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
			y = launched(s, kinds[i], count, NULL);
			x = launched(few, kinds[i], count, NULL);
			assert_true(x.blocks >= 1 && (x.blocks <= y.blocks / 2 || y.blocks == 1));
			assert_true(x.channels <= y.channels);
		}
	}
	few.max_ctas = 4; /* a limit of the user is one */
	assert_int_equal(launched(few, SHUNT_ALLREDUCE, 1 << 20, "allreduce:0-inf:twoshot").blocks, 4);
}

/*
 * Ranks may begin with different ones of two communicators' launches: both must find room at once, each with its block
 * of SHUNT_CHECK.
 */
TEST(test_geometry_two_launches_find_room_on_a_small_gpu)
{
	static const uint32_t sms[] = { 132, 114, 108, 78, 16, 3, 1 };
	static const struct {
		enum shunt_kind kind;
		const char *rule;
	} ways[] = {
		{ SHUNT_ALLREDUCE, "allreduce:0-inf:oneshot" },
		{ SHUNT_ALLREDUCE, "allreduce:0-inf:twoshot" },
		{ SHUNT_ALLGATHER, "allgather:0-inf:ll128" },
		{ SHUNT_ALLGATHER, "allgather:0-inf:simple" },
		{ SHUNT_REDUCESCATTER, "reducescatter:0-inf:simple" },
		{ SHUNT_ALLTOALL, "alltoall:0-inf:simple@64x512" },
	};

	for (int n = 2; n <= 8; n++)
		for (int tma = 0; tma < (n == 2 ? 2 : 1); tma++)
			for (size_t i = 0; i < sizeof(sms) / sizeof(sms[0]); i++)
				for (size_t k = 0; k < sizeof(ways) / sizeof(ways[0]); k++) {
					struct shunt_sel_key s = { .topology = ONE_ISLAND,
						.nranks = n,
						.cc = 90,
						.takes_all = true,
						.tma = tma,
						.sms = sms[i] };
					struct launch_seen x = launched(s, ways[k].kind, (64 << 20) / 4, ways[k].rule);

					if (x.blocks != 1 && 2 * (x.blocks + 1) > sms[i])
						fail_msg("%s of %d ranks with %u multiprocessors: %u blocks",
						    ways[k].rule, n, sms[i], x.blocks);
				}
}

/* Likewise two for each of the ranks that share a GPU. */
TEST(test_launches_of_ranks_that_share_a_gpu_find_room)
{
	for (unsigned sms = 16; sms <= 148; sms++)
		for (unsigned sharing = 1; sharing <= 8 && 4 * sharing <= sms; sharing++) {
			unsigned blocks = shunt_grid_coresident_blocks(sms, 2 * sharing);

			assert_in_range(2 * sharing * (blocks + 1), sms - 2 * sharing + 1, sms);
		}
	assert_int_equal(shunt_grid_coresident_blocks(1, 16), 1);
}

TEST(test_geometry_simple_messages_come_in_clusters)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 2, .cc = 90, .takes_all = true };
	const char *simple = "allreduce:0-inf:simple,allgather:0-inf:simple,reducescatter:0-inf:simple";
	const uint64_t large = (16 << 20) / 4;
	struct launch_seen x = launched(s, SHUNT_ALLREDUCE, large, simple);

	assert_int_equal(x.blocks, 64);
	assert_int_equal(x.cluster, 4);
	assert_int_equal(launched(s, SHUNT_ALLREDUCE, 6 * 4096 / 4, simple).cluster, 0); /* not so many blocks */
	assert_int_equal(launched(s, SHUNT_REDUCESCATTER, large, simple).cluster, 4);
	assert_int_equal(launched(s, SHUNT_ALLGATHER, large, simple).cluster, 4);
	assert_int_equal(launched(s, SHUNT_ALLREDUCE, large, "allreduce:0-inf:oneshot").cluster, 0);
	s.max_ctas = 12; /* no whole number of them */
	assert_int_equal(launched(s, SHUNT_ALLREDUCE, large, simple).cluster, 0);
	s = (struct shunt_sel_key){ .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true };
	assert_int_equal(launched(s, SHUNT_REDUCESCATTER, large, simple).cluster, 0);
}

TEST(test_geometry_tma_takes_fewer_blocks)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 2, .cc = 90, .takes_all = true, .tma = true };
	const char *simple = "allreduce:0-inf:simple,allgather:0-inf:simple,reducescatter:0-inf:simple,alltoall:0-inf:"
	                     "simple,broadcast:0-inf:simple";
	const uint64_t large = (16 << 20) / 4, layer = (256 << 20) / 4;
	struct launch_seen x = launched(s, SHUNT_ALLREDUCE, large, simple);

	assert_int_equal(x.shape, SHUNT_SHAPE_tma2);
	assert_int_equal(x.blocks, 12 + 24);
	assert_int_equal(x.threads, 512);
	assert_int_equal(x.cluster, 4);
	x = launched(s, SHUNT_ALLGATHER, large, simple);
	assert_int_equal(x.shape, SHUNT_SHAPE_tma);
	assert_int_equal(x.blocks, 8 + 16 + 8); /* beside a program's computation */
	assert_int_equal(launched(s, SHUNT_ALLGATHER, layer, simple).blocks, 8 + 16 + 8);
	assert_int_equal(launched(s, SHUNT_REDUCESCATTER, layer, simple).blocks, 8 + 16);
	assert_int_equal(launched(s, SHUNT_REDUCESCATTER, layer + 1, simple).blocks, 12 + 24);
	assert_int_equal(launched(s, SHUNT_ALLGATHER, layer + 1, simple).blocks,
	    12 + 24 + 8); /* so many find room beside another launch, in clusters */
	assert_int_equal(launched(s, SHUNT_ALLTOALL, large, simple).blocks, 12 + 24 + 8);
	assert_int_equal(launched(s, SHUNT_BROADCAST, large, simple).shape, SHUNT_SHAPE_simple8);
	assert_int_equal(launched_group(s, SHUNT_ALLGATHER, large, simple, 8).shape, SHUNT_SHAPE_tma_many);
	s.max_ctas = 33;
	assert_int_equal(launched(s, SHUNT_ALLREDUCE, large, simple).blocks, 8 + 16); /* whole clusters */
	s.max_ctas = 36;
	assert_int_equal(launched(s, SHUNT_ALLGATHER, large, simple).blocks, 8 + 16 + 8);
	s.max_ctas = 24;
	assert_int_equal(launched(s, SHUNT_ALLREDUCE, large, simple).blocks, 8 + 16);
	assert_int_equal(launched(s, SHUNT_ALLGATHER, large, simple).shape, SHUNT_SHAPE_simple8); /* too few */
	s.max_ctas = 23;
	assert_int_equal(launched(s, SHUNT_ALLREDUCE, large, simple).shape, SHUNT_SHAPE_simple2);
	s.max_ctas = 0;
	s.nranks = 4; /* not measured */
	assert_int_equal(launched(s, SHUNT_ALLGATHER, large, simple).shape, SHUNT_SHAPE_simple8);
}

/*
 * Has every channel that the message uses a warp of the role's? By TMA a role's warps serve channels in steps of their
 * number, if need be.
 */
static void see_message(const struct shunt_kargs *k, const struct shunt_role *role, uint64_t proto, bool tma)
{
	uint64_t bytes = proto & ~SHUNT_MESSAGE_SIMPLE;
	bool simple = proto & SHUNT_MESSAGE_SIMPLE;
	uint64_t pieces = simple ? (bytes + SHUNT_SIMPLE_CHUNK - 1) / SHUNT_SIMPLE_CHUNK :
	                           (bytes + SHUNT_LL128_SLOT_DATA - 1) / SHUNT_LL128_SLOT_DATA;
	unsigned limit = simple ? k->simple_channels : k->channels, used = pieces < limit ? (unsigned)pieces : limit;
	unsigned width = role->what == SHUNT_ROLE_SEND && k->simple_channels >= SHUNT_TMA_CHANNELS ?
	    k->simple_channels / SHUNT_TMA_CHANNELS :
	    k->simple_channels;

	assert_true(limit >= 1 && limit <= (simple ? SHUNT_SIMPLE_PER_PEER(k->nranks) : SHUNT_P2P_PER_PEER(k->nranks)));
	if (role->channels < used && !(tma && role->channels == width))
		fail_msg("%u ranks: a message of %llu bytes has %u warps of %u channels", k->nranks,
		    (unsigned long long)bytes, role->channels, used);
}

/* Every channel that a message of the launch uses has its warp, in its role's place. */
static int see_warps(void *ctx, const struct shunt_work *work)
{
	const struct shunt_kargs_few *a = &work->args.few;
	unsigned shape = SHUNT_SHAPE_OF(work->kernel), sharing = 0, most = 0, blocks = work->blocks;
	bool tma = shape >= SHUNT_SHAPE_tma2 && shape <= SHUNT_SHAPE_tma_many;
	bool proxies = tma || (shape >= SHUNT_SHAPE_simple2 && shape <= SHUNT_SHAPE_simple_many);
	bool many =
	    shape == SHUNT_SHAPE_ll128_many || shape == SHUNT_SHAPE_simple_many || shape == SHUNT_SHAPE_tma_many;
	const struct shunt_message *messages = many ? work->args.many.message : a->message;
	unsigned warps = work->threads / 32 - proxies;

	assert_int_equal(work->threads % 32, 0);
	assert_true(work->threads <= SHUNT_MAX_THREADS && warps >= 1);
	assert_int_equal(work->shared, tma ? SHUNT_TMA_BYTES(warps) : 0);
	for (unsigned r = 0; r < a->k.roles; r++) {
		const struct shunt_role *role = &a->role[r];
		bool own = role->what == SHUNT_ROLE_COPY && role->blocks;

		assert_true(proxies || !role->blocks);
		assert_true(!tma || role->blocks);
		for (unsigned m = role->first; m < role->first + (unsigned)role->count; m++) {
			assert_true(proxies || !(messages[m].bytes & SHUNT_MESSAGE_SIMPLE));
			if (!own)
				see_message(&a->k, role, messages[m].bytes, tma);
		}
		if (role->blocks && role->channels > role->blocks * warps)
			fail_msg("%u ranks: %u warps of a role in %u blocks of %u", a->k.nranks, role->channels,
			    role->blocks, warps);
		blocks -= role->blocks;
		sharing += !role->blocks;
		if (!role->blocks && role->channels > most)
			most = role->channels;
	}
	/* Blocks with proxies have one role each, if there are enough of them. */
	assert_true(!proxies || blocks < sharing || (!sharing && !blocks));
	if (sharing && most > blocks * warps / sharing)
		fail_msg("%u ranks: %u roles of %u channels in %u blocks of %u warps", a->k.nranks, sharing, most,
		    blocks, warps);
	++*(unsigned *)ctx;
	return 0;
}

static void enqueue_two(struct shunt_sel_key *sel_key, enum shunt_kind kind, size_t first, size_t second)
{
	static _Alignas(16) char in[16], out[16]; /* addresses only: what is not aligned is sent otherwise */
	struct shunt_kargs base = { .nranks = (uint16_t)sel_key->nranks };
	unsigned launches = 0;
	struct shunt_enqueue_ctx enqueue = { .sel_key = sel_key, .base = &base, .emit = see_warps, .ctx = &launches };
	struct shunt_coll c[2] = {
		{ .kind = kind, .dtype = SHUNT_F32, .count = first, .root = 0, .send = in, .recv = out },
		{ .kind = kind, .dtype = SHUNT_F32, .count = second, .root = 0, .send = in, .recv = out },
	};
	const struct shunt_coll *calls[2] = { &c[0], &c[1] };
	struct shunt_decision decisions[2];

	if (shunt_kind_is_p2p(kind))
		c[0].root = c[1].root = 1;
	for (int i = 0; i < 2; i++)
		assert_true(shunt_select(SEL(sel_key), &c[i], &decisions[i]));
	assert_int_equal(shunt_enqueue_calls(&enqueue, calls, decisions, 2), 0);
	assert_true(launches > 0);
}

TEST(test_geometry_every_channel_of_every_message_has_a_warp)
{
	static const char *const geometries[] = { "", "@2x64", "@3x96", "@16x256", "@64x128x7" };
	static const int limits[] = { 0, 1, 2, 3, 7, 16, 24, 33 };
	/* Lines below 1 MB, chunks above; in both orders, and more than all channels have pieces. */
	static const size_t counts[][2] = { { 64, 1 << 20 }, { 1 << 20, 64 }, { 1 << 20, 200000 }, { 200000, 1 << 20 },
		{ 300000, 1 << 24 }, { 5, 6 } };
	static const enum shunt_kind kinds[] = { SHUNT_ALLGATHER, SHUNT_ALLTOALL, SHUNT_BROADCAST, SHUNT_REDUCE,
		SHUNT_GATHER, SHUNT_SCATTER, SHUNT_SEND };

	for (int n = 1; n <= 8; n++) /* 1: two with TMA */
		for (size_t g = 0; g < sizeof(geometries) / sizeof(geometries[0]); g++) {
			char rules[1024] = "";

			for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
				size_t at = strlen(rules);

				snprintf(rules + at, sizeof(rules) - at, "%s%s:0-1m:ll128%s,%s:1m-:simple%s",
				    at ? "," : "", shunt_kind_name(kinds[k]), geometries[g], shunt_kind_name(kinds[k]),
				    geometries[g]);
			}
			assert_int_equal(shunt_algo_force(rules), 0);
			for (size_t m = 0; m < sizeof(limits) / sizeof(limits[0]); m++)
				for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
					for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
						struct shunt_sel_key s = {
							.topology = ONE_ISLAND,
							.nranks = n > 1 ? n : 2,
							.cc = 90,
							.takes_all = true,
							.max_ctas = limits[m],
							.tma = n == 1,
						};

						enqueue_two(&s, kinds[k], counts[c][0], counts[c][1]);
					}
		}
	shunt_algo_force(NULL);
}

TEST(test_geometry_messages_channels_follow_from_size_alone)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true };
	struct launch_seen x = launched(s, SHUNT_SEND, 1 << 20, NULL),
	                   y = launched(s, SHUNT_SEND, 1 << 20, "send:0-inf:ll128@1x32x1");

	assert_memory_equal(&x, &y, sizeof(x));
}

/* ---- relays ---- */

/*
 * What one rank's launch moves, and how many channels it says messages have; all that is launched is looked at as
 * above.
 */
struct pipelined {
	uint64_t sent, taken, passed;
	unsigned launches, channels;
};

static int see_pipelined(void *ctx, const struct shunt_work *work)
{
	const struct shunt_kargs_few *a = &work->args.few;
	struct pipelined *launch_seen = ctx;

	launch_seen->channels = a->k.channels;
	for (unsigned r = 0; r < a->k.roles; r++)
		for (unsigned m = a->role[r].first; m < a->role[r].first + (unsigned)a->role[r].count; m++) {
			launch_seen->sent += a->role[r].what == SHUNT_ROLE_SEND ? a->message[m].bytes : 0;
			launch_seen->taken += a->role[r].what == SHUNT_ROLE_RECV ? a->message[m].bytes : 0;
			launch_seen->passed += a->role[r].what == SHUNT_ROLE_FORWARD ? a->message[m].bytes : 0;
		}
	return see_warps(&launch_seen->launches, work);
}

static struct pipelined pipelined(const struct shunt_sel_key *sel_key, int rank, int root, uint64_t bytes)
{
	static _Alignas(16) char in[16], out[16]; /* addresses only: what is not aligned is sent otherwise */
	struct shunt_kargs base = { .rank = (uint16_t)rank, .nranks = (uint16_t)sel_key->nranks };
	struct pipelined launch_seen = { 0 };
	struct shunt_enqueue_ctx enqueue = {
		.sel_key = sel_key, .base = &base, .emit = see_pipelined, .ctx = &launch_seen
	};
	struct shunt_coll c = {
		.kind = SHUNT_BROADCAST, .dtype = SHUNT_U8, .count = bytes, .root = root, .send = in, .recv = out
	};
	const struct shunt_coll *calls = &c;
	struct shunt_decision decision;

	assert_true(shunt_select(SEL(sel_key), &c, &decision));
	assert_string_equal(decision.algo->name, "pipelined");
	assert_int_equal(shunt_enqueue_calls(&enqueue, &calls, &decision, 1), 0);
	assert_int_equal(launch_seen.launches, 1);
	return launch_seen;
}

TEST(test_pipelined_the_roots_link_carries_the_message_once)
{
	static const uint64_t sizes[] = { 1, 127, 129, 1000, 100000, (8 << 20) + 1, 1ull << 32 };
	static const int limits[] = { 0, 1, 2, 7, 33 };

	assert_int_equal(shunt_algo_force("broadcast:0-:pipelined"), 0);
	for (int n = 2; n <= 8; n++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			for (size_t m = 0; m < sizeof(limits) / sizeof(limits[0]); m++) {
				struct shunt_sel_key s = {
					.topology = ONE_ISLAND, .nranks = n, .cc = 90, .max_ctas = limits[m]
				};
				struct pipelined b[8], all = { 0 };
				int root = (int)i % n;

				for (int rank = 0; rank < n; rank++) {
					b[rank] = pipelined(&s, rank, root, sizes[i]);
					assert_int_equal(b[rank].channels, b[0].channels);
					all.passed += b[rank].passed;
					if (n > 2 && rank != root)
						assert_int_equal(b[rank].passed + b[rank].taken, sizes[i]);
				}
				assert_int_equal(b[root].sent, sizes[i]);
				assert_int_equal(all.passed, n > 2 ? sizes[i] : 0);
			}
	shunt_algo_force(NULL);
}

TESTS_BEGIN
{
	path_alone();
}

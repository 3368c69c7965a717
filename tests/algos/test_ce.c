/* SPDX-License-Identifier: MIT */
/* Copies of copy engines: how much each rank copies to which, in how many launches. */
#include "tests/algos/paths.h"
#include "tests/support/unit.h"
#include "algos/algos.h"

/* What one rank would do: how much it copies to each rank, and in how many launches. */
struct links {
	uint64_t to[SHUNT_KARGS_MAX_RANKS], from[SHUNT_KARGS_MAX_RANKS];
	unsigned launches, opens, closes;
};

static int count_copy(void *ctx, const struct shunt_copy *copy)
{
	struct links *l = ctx;

	(copy->is_get ? l->from : l->to)[copy->peer] += copy->bytes;
	return 0;
}

static int count_launch(void *ctx, const struct shunt_work *work)
{
	struct links *l = ctx;

	l->launches++;
	l->opens += (work->args.k.flags & SHUNT_K_FIRST_BARRIER) != 0;
	l->closes += (work->args.k.flags & SHUNT_K_LAST_BARRIER) != 0;
	return 0;
}

static uint64_t no_offset(void *ctx, const void *ptr)
{
	return 1;
}

static struct links links_of(enum shunt_kind kind, int rank, int n, int root, uint64_t bytes, bool in_place)
{
	struct shunt_sel_key sel_key = { .topology = ONE_ISLAND, .nranks = n, .takes_all = true, .no_sms = true };
	struct shunt_kargs base = { .rank = (uint16_t)rank, .nranks = (uint16_t)n };
	struct links links = { { 0 }, { 0 }, 0, 0, 0 };
	struct shunt_enqueue_ctx enqueue = { .sel_key = &sel_key,
		.base = &base,
		.emit = count_launch,
		.copy = count_copy,
		.offset = no_offset,
		.ctx = &links };
	/* Only addresses are computed. */
	struct shunt_coll c = { .kind = kind,
		.dtype = SHUNT_U8,
		.count = bytes,
		.root = root,
		.send = (void *)((uint64_t)1 << 40),
		.recv = in_place ? (void *)((uint64_t)1 << 40) : (void *)((uint64_t)1 << 41) };
	const struct shunt_coll *calls = &c;
	struct shunt_decision decision;

	assert_true(shunt_select(SEL_WINDOW(&sel_key), &c, &decision));
	assert_string_equal(decision.algo->name, "ce");
	assert_int_equal(shunt_enqueue_calls(&enqueue, &calls, &decision, 1), 0);
	assert_int_equal(links.opens, 1);
	assert_int_equal(links.closes, 1);
	return links;
}

TEST(test_ce_broadcast_leaves_the_root_once)
{
	static const uint64_t sizes[] = { 1, 127, 129, 1000, 1 << 20, (100 << 20) + 1, 1ull << 32 };

	for (int n = 2; n <= 8; n++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			uint64_t in[SHUNT_KARGS_MAX_RANKS] = { 0 };
			unsigned launches = 0;
			int root = (int)i % n;

			for (int rank = 0; rank < n; rank++) {
				struct links l = links_of(SHUNT_BROADCAST, rank, n, root, sizes[i], i % 2);
				uint64_t out = 0;

				for (int p = 0; p < n; p++) {
					out += p == rank ? 0 : l.to[p];
					in[p] += l.to[p];
					assert_int_equal(l.from[p], 0);
				}
				/* Shares are rounded up to 128 bytes, in each of up to 8 pieces. */
				assert_true(rank == root ? out == sizes[i] : out <= sizes[i] + 8 * 128 * (uint64_t)n);
				/* All ranks meet in the same barriers. */
				assert_int_equal(l.launches, launches ? launches : l.launches);
				launches = l.launches;
			}
			for (int p = 0; p < n; p++)
				assert_int_equal(in[p], p == root && i % 2 ? 0 : sizes[i]);
		}
}

TEST(test_ce_gather_is_the_roots_work)
{
	for (int rank = 0; rank < 4; rank++) {
		struct links g = links_of(SHUNT_GATHER, rank, 4, 2, 1000, false),
		             s = links_of(SHUNT_SCATTER, rank, 4, 2, 1000, false);

		for (int p = 0; p < 4; p++) {
			assert_int_equal(g.from[p], rank == 2 && p != 2 ? 1000 : 0);
			assert_int_equal(g.to[p], rank == 2 && p == 2 ? 1000 : 0);
			assert_int_equal(s.to[p], rank == 2 ? 1000 : 0);
			assert_int_equal(s.from[p], 0);
		}
		assert_int_equal(g.launches, 2);
		assert_int_equal(s.launches, 2);
	}
}

TESTS_BEGIN
{
	path_alone();
}

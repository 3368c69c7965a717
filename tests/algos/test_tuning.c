/* SPDX-License-Identifier: MIT */
/*
 * Tables of the selection: the built-in ones, files, which one is taken, and what the rules of SHUNT_ALGO do before
 * them.
 */
#include "tests/algos/sel.h"
#include "tests/support/unit.h"
#include <fcntl.h>
#include <sys/stat.h>
#include "algos/algos.h"
#include "algos/select/nvls.h"
#include "algos/select/tuning.h"
#include "shunt/shunt.h"

#define KB ((uint64_t)1 << 10)
#define MB ((uint64_t)1 << 20)
#define END UINT64_MAX
#define NO_END (END / 32 * 16) /* of parts that are multiples of 16 bytes */

static const struct shunt_machine tuning_h200 = { .gpu = "NVIDIA H200", .cc = 90, .driver = 13000, .nranks = 4 };

static const char *path_of_sel(const struct shunt_sel *sel, enum shunt_kind kind, uint64_t bytes)
{
	enum shunt_reason reason;

	return shunt_select_name(sel, kind, SHUNT_U8, SHUNT_SUM, bytes, &reason);
}

static const char *path_of(const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes)
{
	return path_of_sel(SEL(key), kind, bytes);
}

static const char *path_in_window(const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes)
{
	return path_of_sel(SEL_WINDOW(key), kind, bytes);
}

/* ---- built-in tables ---- */

/*
 * Where each of our paths ends, for 2 to 8 ranks on a GPU in front of NCCL; 0: there is none. Of one kind in the order
 * of sizes.
 */
#define FEW_AND_MANY(two, few, many) { 0, 0, two, few, few, many, many, many, many }
static const struct {
	enum shunt_kind kind;
	const char *algo;
	uint64_t upto[9]; /* by rank count */
} ends[] = {
	{ SHUNT_ALLREDUCE, "oneshot", FEW_AND_MANY(16 * MB, 128 * KB, 32 * KB) },
	{ SHUNT_ALLREDUCE, "twoshot", FEW_AND_MANY(0, 16 * MB, 16 * MB) },
	{ SHUNT_ALLREDUCE, "simple", FEW_AND_MANY(NO_END, 0, 0) },
	{ SHUNT_ALLGATHER, "pairwise", FEW_AND_MANY(8 * MB, 0, 0) },
	{ SHUNT_ALLGATHER, "ll128", FEW_AND_MANY(0, 4 * MB, 64 * KB) },
	{ SHUNT_ALLGATHER, "simple", FEW_AND_MANY(NO_END, 16 * MB, 0) },
	{ SHUNT_REDUCESCATTER, "oneshot", FEW_AND_MANY(16 * MB, 16 * MB, 16 * KB) },
	{ SHUNT_REDUCESCATTER, "simple", FEW_AND_MANY(NO_END, 0, 0) },
	{ SHUNT_ALLTOALL, "pairwise", FEW_AND_MANY(8 * MB, 0, 0) },
	{ SHUNT_ALLTOALL, "ll128", FEW_AND_MANY(0, 4 * MB, 64 * KB) },
	{ SHUNT_ALLTOALL, "simple", FEW_AND_MANY(NO_END, 64 * MB, 0) },
	{ SHUNT_BROADCAST, "ll128", FEW_AND_MANY(4 * MB, 128 * KB, 64 * KB) },
	{ SHUNT_BROADCAST, "pipelined", FEW_AND_MANY(0, 4 * MB, 4 * MB) },
	{ SHUNT_BROADCAST, "simple", FEW_AND_MANY(128 * MB, 0, 0) },
	{ SHUNT_REDUCE, "ll128", FEW_AND_MANY(8 * MB, 256 * KB, 16 * KB) },
	{ SHUNT_REDUCE, "twoshot", FEW_AND_MANY(0, 2 * MB, 2 * MB) },
	{ SHUNT_REDUCE, "simple", FEW_AND_MANY(64 * MB, 0, 0) },
	{ SHUNT_GATHER, "ll128", FEW_AND_MANY(8 * MB, 4 * MB, 64 * KB) },
	{ SHUNT_GATHER, "simple", FEW_AND_MANY(64 * MB, 8 * MB, 0) },
	{ SHUNT_SCATTER, "ll128", FEW_AND_MANY(8 * MB, 2 * MB, 64 * KB) },
	{ SHUNT_SCATTER, "simple", FEW_AND_MANY(256 * MB, 8 * MB, 0) },
	{ SHUNT_SEND, "ll128", FEW_AND_MANY(8 * MB, 8 * MB, 64 * KB) },
	{ SHUNT_SEND, "simple", FEW_AND_MANY(256 * MB, 256 * MB, 0) },
	{ SHUNT_RECV, "ll128", FEW_AND_MANY(8 * MB, 8 * MB, 64 * KB) },
	{ SHUNT_RECV, "simple", FEW_AND_MANY(256 * MB, 256 * MB, 0) },
};
#define NENDS (sizeof(ends) / sizeof(ends[0]))

/* What follows row i for n ranks. */
static const char *next_path(size_t i, int n)
{
	for (size_t k = i + 1; k < NENDS && ends[k].kind == ends[i].kind; k++)
		if (ends[k].upto[n])
			return ends[k].algo;
	return "nccl";
}

static void test_tuning_builtin_ends_where_it_says(void **state)
{
	for (int n = 2; n <= 8; n++)
		for (size_t i = 0; i < NENDS; i++) {
			/* Before the ranks have met, after it, and on another generation. */
			for (int cc = 0; cc <= 100; cc += 10) {
				struct shunt_sel_key gpu = { .topology = ONE_ISLAND, .nranks = n, .cc = (uint16_t)cc };
				uint64_t upto = ends[i].upto[n];
				const char *next = next_path(i, n);

				if ((cc > 0 && cc < 70) || !upto)
					continue;
				assert_string_equal(path_of(&gpu, ends[i].kind, upto), ends[i].algo);
				if (upto == NO_END) /* it does not end */
					continue;
				assert_string_equal(path_of(&gpu, ends[i].kind, upto + 16),
				    next); /* parts of another size are NCCL's */
				if (!strcmp(next, "nccl"))
					assert_string_equal(path_of(&gpu, ends[i].kind, END / 2), "nccl");
			}
		}
}

static void test_tuning_builtin_small_sizes_are_ours(void **state)
{
	for (int n = 2; n <= 8; n++)
		for (int k = 0; k < SHUNT_NKINDS; k++) {
			struct shunt_sel_key gpu = { .topology = ONE_ISLAND, .nranks = n, .cc = 90 };

			bool pairwise = n == 2 && (k == SHUNT_ALLGATHER || k == SHUNT_ALLTOALL);
			const char *want = k == SHUNT_ALLREDUCE || k == SHUNT_REDUCESCATTER ? "oneshot" :
			    pairwise                                                        ? "pairwise" :
			                                                                      "ll128";

			assert_string_equal(path_of(&gpu, (enum shunt_kind)k, 0), want);
			assert_string_equal(path_of(&gpu, (enum shunt_kind)k, 1), want);
		}
}

static void test_tuning_standalone_declines_nothing(void **state)
{
	for (int n = 2; n <= 8; n++)
		for (int k = 0; k < SHUNT_NKINDS; k++)
			for (int sim = 0; sim < 2; sim++) {
				struct shunt_sel_key s = { .topology = ONE_ISLAND,
					.nranks = n,
					.cc = sim ? 0 : 90,
					.sim = sim,
					.takes_all = true };
				const char *want = "ll128";

				if (n == 2 || sim)
					want = "simple";
				else if (k == SHUNT_ALLREDUCE)
					want = "twoshot";
				else if (k == SHUNT_REDUCESCATTER)
					want = "oneshot";
				else if (k == SHUNT_BROADCAST)
					want = "pipelined";
				else if (k == SHUNT_REDUCE)
					want = "twoshot";
				else if (n <= 4)
					want = "simple";

				assert_string_equal(path_of(&s, (enum shunt_kind)k, END / 2), want);
			}
}

static void test_tuning_large_unaligned_parts_are_nccls(void **state)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 2, .cc = 90 };
	struct shunt_coll c = { .kind = SHUNT_REDUCESCATTER, .dtype = SHUNT_U8, .count = MB + 8 };
	struct shunt_decision decision;

	for (int k = 0; k < SHUNT_NKINDS; k++) {
		enum shunt_kind kind = (enum shunt_kind)k;

		assert_string_not_equal(path_of(&s, kind, MB - 8), "nccl");
		assert_string_not_equal(path_of(&s, kind, MB + 16), "nccl");
		if (shunt_kind_has_parts(kind))
			assert_string_equal(path_of(&s, kind, MB + 8), "nccl");
		else
			assert_string_not_equal(path_of(&s, kind, MB + 8), "nccl");
	}
	assert_false(shunt_select(SEL(&s), &c, &decision));
	assert_int_equal(decision.reason, SHUNT_REASON_UNALIGNED);
	/* There is nobody else, or the user wants it. */
	s.takes_all = true;
	assert_string_equal(path_of(&s, SHUNT_REDUCESCATTER, MB + 8), "oneshot");
	s.takes_all = false;
	assert_int_equal(shunt_algo_force("reducescatter:0-:ll128"), 0);
	assert_string_equal(path_of(&s, SHUNT_REDUCESCATTER, MB + 8), "ll128");
	assert_int_equal(shunt_algo_force(NULL), 0);
}

static void test_tuning_sim_has_a_table_of_its_own(void **state)
{
	struct shunt_sel_key sim = { .topology = ONE_ISLAND, .nranks = 5, .sim = true, .takes_all = true };

	assert_string_equal(path_of(&sim, SHUNT_ALLREDUCE, 16 * KB), "oneshot");
	assert_string_equal(path_of(&sim, SHUNT_ALLREDUCE, 16 * KB + 1), "twoshot");
	assert_string_equal(path_of(&sim, SHUNT_BROADCAST, 16 * KB), "ll128");
	assert_string_equal(path_of(&sim, SHUNT_BROADCAST, 16 * KB + 1), "pipelined");
	assert_string_equal(path_of(&sim, SHUNT_REDUCE, 32 * KB), "twoshot");
	assert_string_equal(path_of(&sim, SHUNT_REDUCE, 32 * KB + 1), "simple");
}

static void test_tuning_too_many_ranks_is_nccl(void **state)
{
	struct shunt_sel_key many = { .topology = ONE_ISLAND, .nranks = 9, .cc = 90 };

	assert_null(shunt_tuning_builtin(false, 90, 9));
	assert_string_equal(path_of(&many, SHUNT_ALLREDUCE, 8), "nccl");
}

static void test_tuning_builtin_rows_are_sound(void **state)
{
	for (int n = 2; n <= 8; n++)
		for (int sim = 0; sim < 2; sim++) {
			const struct shunt_tuning *t = shunt_tuning_builtin(sim, 90, n);

			assert_non_null(t);
			for (size_t i = 0; i < t->nrows; i++) {
				const struct shunt_tuning_row *r = &t->rows[i];

				assert_non_null(r->algo);
				assert_int_equal(r->algo->kind, r->kind);
				assert_true(
				    r->geometry.blocks <= SHUNT_MAX_BLOCKS && r->geometry.threads <= SHUNT_MAX_THREADS);
				if (i + 1 < t->nrows && t->rows[i + 1].kind == r->kind)
					assert_true(t->rows[i + 1].upto > r->upto);
				else
					assert_true(r->upto == END);
			}
		}
	assert_true(shunt_tuning_builtin_hash() != 0);
	assert_true(shunt_tuning_builtin(false, 90, 2)->hash != shunt_tuning_builtin(false, 90, 4)->hash);
}

static void test_tuning_source_says_what_was_measured(void **state)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 2, .cc = 90 };
	char text[128];

	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_F32, 8, text, sizeof(text));
	assert_string_equal(text, "built-in, measured on H200");
	s.nranks = 8;
	shunt_select_source(SEL(&s), SHUNT_RECV, SHUNT_F32, 8, text, sizeof(text));
	assert_non_null(strstr(text, "estimated"));
	s.nranks = 4;
	s.cc = 100;
	shunt_select_source(SEL(&s), SHUNT_SEND, SHUNT_F32, 8, text, sizeof(text));
	assert_non_null(strstr(text, "estimate for this generation"));
}

static void test_select_deterministic_sums_are_never_declined(void **state)
{
	static const enum shunt_kind sums[] = { SHUNT_ALLREDUCE, SHUNT_REDUCE, SHUNT_REDUCESCATTER };
	struct shunt_sel_key plain = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90 }, s = plain;

	s.deterministic = true;
	for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
		assert_string_equal(path_of(&plain, sums[i], 2048 * MB), "nccl");
		assert_string_not_equal(path_of(&s, sums[i], 2048 * MB), "nccl");
		assert_string_equal(path_of(&s, sums[i], 4096), path_of(&plain, sums[i], 4096));
		assert_true(shunt_select_plans(&plain, sums[i]));
		assert_false(shunt_select_plans(&s, sums[i]));
	}
	/* Odd parts, too, whose data only moves slower. */
	assert_string_equal(path_of(&plain, SHUNT_REDUCESCATTER, 4 * MB + 1), "nccl");
	assert_string_not_equal(path_of(&s, SHUNT_REDUCESCATTER, 4 * MB + 1), "nccl");
	/* What only moves data is the faster one's. */
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 2048 * MB), "nccl");
	assert_true(shunt_select_plans(&s, SHUNT_ALLGATHER));
	/* A rule is obeyed. */
	assert_int_equal(shunt_algo_force("allreduce:1M-:nccl"), 0);
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 2 * MB), "nccl");
	shunt_algo_force(NULL);
}

/* ---- windows where NCCL has multicast ---- */

static void test_select_windows_are_nccls_where_it_has_multicast(void **state)
{
	static const uint64_t from[9] = { 0, 0, 0, 8 * MB, 8 * MB, 1 * MB, 512 * KB, 512 * KB, 512 * KB };

	for (int n = 2; n <= 8; n++)
		for (int k = 0; k < SHUNT_NKINDS; k++)
			for (int shift = 3; shift < 36; shift++)
				for (int bits = 0; bits < 16; bits++) {
					enum shunt_kind kind = (enum shunt_kind)k;
					uint64_t bytes = ((uint64_t)1 << shift) - (bits & 8 ? 8 : 0);
					struct shunt_sel_key s = { .topology = ONE_ISLAND,
						.nranks = n,
						.cc = 90,
						.takes_all = bits & 2,
						.deterministic = bits & 4 },
					                     with = s;
					const struct shunt_sel with_sel = { &with, bits & 1 }, sel = { &s, bits & 1 };
					bool ours =
					    (bits & 7) != 1 || k != SHUNT_ALLREDUCE || !from[n] || bytes < from[n];
					enum shunt_reason reason;

					with.nvls = true;
					assert_string_equal(path_of_sel(&with_sel, kind, bytes),
					    ours ? path_of_sel(&sel, kind, bytes) : "nccl");
					shunt_select_name(&with_sel, kind, SHUNT_U8, SHUNT_SUM, bytes, &reason);
					assert_true((reason == SHUNT_REASON_WINDOWS) == !ours);
				}
}

static void test_nvls_a_rank_names_its_first_obstacle(void **state)
{
	static const struct {
		struct shunt_gpu_info gpu;
		struct shunt_nvls_nccl nccl;
		int enable;
		enum shunt_nvls want;
	} cases[] = {
		{ { .cc = 90, .multicast = 1 }, { 22809, false, false }, 2, SHUNT_NVLS_POSSIBLE },
		{ { .cc = 100, .multicast = 1 }, { 23203, false, false }, 1, SHUNT_NVLS_POSSIBLE },
		{ { .cc = 90, .multicast = 1 }, { 22700, false, false }, -2, SHUNT_NVLS_POSSIBLE },
		{ { .cc = 90, .multicast = 1 }, { 0, false, false }, 2, SHUNT_NVLS_NO_NCCL },
		{ { .cc = 90, .multicast = 1 }, { 22605, false, false }, 2, SHUNT_NVLS_OLD_NCCL },
		{ { .cc = 80, .multicast = 1 }, { 22809, true, true }, 0, SHUNT_NVLS_VARIABLE },
		{ { .cc = 80, .multicast = 1 }, { 23203, true, true }, 2, SHUNT_NVLS_CONFIG },
		{ { .cc = 90, .multicast = 1 }, { 23107, true, false }, 2, SHUNT_NVLS_POSSIBLE },
		{ { .cc = 89, .multicast = 1 }, { 23203, false, true }, 2, SHUNT_NVLS_CC },
		{ { .cc = 90, .multicast = 0 }, { 23203, false, true }, 2, SHUNT_NVLS_DEVICE },
		{ { .cc = 90, .multicast = 1 }, { 23203, false, true }, 2, SHUNT_NVLS_DENIED },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(shunt_nvls_of_rank(&cases[i].gpu, &cases[i].nccl, cases[i].enable), cases[i].want);
	for (int i = 1; i < SHUNT_NVLS_N; i++)
		assert_true(*shunt_nvls_name((enum shunt_nvls)i));
}

/* ---- files ---- */

#define TUNING_HEAD "{\"shunt_tuning\": 1, \"shunt\": \"" SHUNT_VERSION "\", \"nccl\": \"2.28.9\", "
#define TUNING_MACHINE "\"machine\": {\"gpu\": \"NVIDIA H200\", \"cc\": 90, \"driver\": 13000, \"ranks\": 4}, "
#define ROWS \
	"\"rows\": [" \
	"{\"kind\": \"allreduce\", \"upto\": 2048, \"algorithm\": \"oneshot\", \"blocks\": 8, \"threads\": 128}, " \
	"{\"kind\": \"allreduce\", \"upto\": 4096, \"algorithm\": \"twoshot\", \"nccl\": true}, " \
	"{\"kind\": \"allreduce\", \"upto\": 1048576, \"algorithm\": \"twoshot\", \"blocks\": 64, \"threads\": 512}, " \
	"{\"kind\": \"allgather\", \"algorithm\": \"ll128\", \"blocks\": 32, \"threads\": 256, \"channels\": 16}]}"
static const char tuning_good[] = TUNING_HEAD TUNING_MACHINE ROWS;

static struct shunt_tuning *tuning_parsed(const char *text)
{
	struct shunt_tuning *t = NULL;
	char reason[256];

	if (shunt_tuning_parse("x.json", text, strlen(text), &t, reason, sizeof(reason)))
		fail_msg("%s", reason);
	return t;
}

static void test_tuning_file_rows_are_taken(void **state)
{
	struct shunt_tuning *t = tuning_parsed(tuning_good);
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .tuning = t };
	struct shunt_coll c = { .kind = SHUNT_ALLREDUCE, .dtype = SHUNT_U8, .count = 2048 };
	struct shunt_decision decision;
	char text[64];

	assert_string_equal(t->machine.gpu, tuning_h200.gpu);
	assert_true(
	    t->machine.cc == tuning_h200.cc && t->machine.driver == tuning_h200.driver && t->machine.nranks == 4);
	assert_true(t->machine.nccl == 22809 && t->machine.nvls == -1);
	assert_true(t->vs_nccl);
	assert_true(shunt_select(SEL(&s), &c, &decision));
	assert_string_equal(decision.algo->name, "oneshot");
	assert_int_equal(decision.geometry.blocks, 8);
	assert_int_equal(decision.geometry.threads, 128);
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 2049), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4097), "twoshot");
	/* Not measured: NCCL's; without one the last row goes on. */
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 1 * MB + 1), "nccl");
	s.takes_all = true;
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 1 * MB + 1), "twoshot");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096), "twoshot");
	s.takes_all = false;
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, NO_END), "ll128");
	/* Kinds that the file lacks are the built-in table's. */
	assert_string_equal(path_of(&s, SHUNT_BROADCAST, 4 * MB), "pipelined");
	assert_string_equal(path_of(&s, SHUNT_BROADCAST, 4 * MB + 1), "nccl");
	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_F32, 8, text, sizeof(text));
	assert_string_equal(text, "tuned here, x.json");
	shunt_select_source(SEL(&s), SHUNT_BROADCAST, SHUNT_F32, 8, text, sizeof(text));
	assert_string_equal(text, "built-in, measured on H200");
	shunt_tuning_free(t);
}

static void crossover_add(void *ctx, uint64_t size)
{
	char *text = ctx;

	sprintf(text + strlen(text), "%llu ", (unsigned long long)size);
}

static void test_select_crossovers_are_those_of_rules_and_rows(void **state)
{
	struct shunt_tuning *t = tuning_parsed(tuning_good);
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .tuning = t };
	char text[256] = "";

	assert_int_equal(shunt_algo_force("allreduce:5000-6000:twoshot,send:1-2:ll128"), 0);
	shunt_select_crossovers(SEL(&s), SHUNT_ALLREDUCE, crossover_add, text);
	assert_string_equal(text, "5000 6000 2049 4097 1048577 ");
	*text = 0;
	shunt_select_crossovers(SEL(&s), SHUNT_RECV, crossover_add, text);
	assert_string_equal(text, "1 2 8388609 268435457 ");
	assert_int_equal(shunt_algo_force(NULL), 0);
	shunt_tuning_free(t);
}

static void test_tuning_file_order_of_rows_is_free(void **state)
{
	static const char turned[] = TUNING_HEAD TUNING_MACHINE
	    "\"rows\": ["
	    "{\"kind\": \"allgather\", \"algorithm\": \"ll128\", \"blocks\": 32, \"threads\": 256, \"channels\": 16}, "
	    "{\"kind\": \"allreduce\", \"upto\": 1048576, \"algorithm\": \"twoshot\", \"blocks\": 64, \"threads\": "
	    "512}, "
	    "{\"kind\": \"allreduce\", \"upto\": 4096, \"algorithm\": \"twoshot\", \"nccl\": true}, "
	    "{\"kind\": \"allreduce\", \"upto\": 2048, \"algorithm\": \"oneshot\", \"blocks\": 8, \"threads\": 128}]}";
	struct shunt_tuning *a = tuning_parsed(tuning_good), *b = tuning_parsed(turned);

	assert_true(a->hash == b->hash);
	shunt_tuning_free(a);
	shunt_tuning_free(b);
}

/* The good text with one place replaced. */
static char *tuning_edited(const char *from, const char *to)
{
	const char *at = strstr(tuning_good, from);
	char *text;

	assert_non_null(at);
	assert_true(asprintf(&text, "%.*s%s%s", (int)(at - tuning_good), tuning_good, to, at + strlen(from)) > 0);
	return text;
}

static void test_tuning_file_every_value_is_in_the_hash(void **state)
{
	static const char *const edits[][2] = {
		{ "\"driver\": 13000", "\"driver\": 12080" },
		{ "\"ranks\": 4", "\"ranks\": 8" },
		{ "\"cc\": 90", "\"cc\": 100" },
		{ "NVIDIA H200", "NVIDIA H100" },
		{ "\"upto\": 2048", "\"upto\": 2047" },
		{ "oneshot", "twoshot" },
		{ "\"blocks\": 8", "\"blocks\": 9" },
		{ "\"threads\": 128", "\"threads\": 160" },
		{ "\"channels\": 16", "\"channels\": 17" },
		{ "\"nccl\": true", "\"nccl\": false" },
		{ "\"nccl\": \"2.28.9\", ", "" },
		{ "2.28.9", "2.28.8" },
		{ "\"ranks\": 4", "\"ranks\": 4, \"nvls\": false" },
		{ "\"ranks\": 4", "\"ranks\": 4, \"nvls\": true" },
		{ "\"rows\"", "\"windows\": {\"allreduce\": 1024}, \"rows\"" },
		{ "\"rows\"", "\"windows\": {\"allreduce\": null}, \"rows\"" },
	};
	struct shunt_tuning *a = tuning_parsed(tuning_good);

	for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
		char *text = tuning_edited(edits[i][0], edits[i][1]);
		struct shunt_tuning *b = tuning_parsed(text);

		assert_true(a->hash != b->hash);
		shunt_tuning_free(b);
		free(text);
	}
	shunt_tuning_free(a);
}

static void test_tuning_file_wrong_values_are_refused(void **state)
{
	static const struct {
		const char *from, *to;
		int err;
		const char *reason;
	} edits[] = {
		{ "\"shunt_tuning\": 1", "\"shunt_tuning\": 2", -EXDEV, "format 2" },
		{ "\"shunt_tuning\": 1", "\"shunt_tuning\": \"1\"", -EINVAL, "a string" },
		{ "\"shunt_tuning\": 1, ", "", -EINVAL, "missing" },
		{ "\"shunt\": \"" SHUNT_VERSION "\"", "\"shunt\": \"0.0.1\"", -EXDEV, "made by Shunt \"0.0.1\"" },
		{ "\"cc\": 90", "\"cc\": -90", -EINVAL, "machine.cc is -90" },
		{ "\"cc\": 90", "\"cc\": 0", -EINVAL, "machine.cc" },
		{ "\"ranks\": 4", "\"ranks\": 1", -EINVAL, "machine.ranks" },
		{ "\"ranks\": 4", "\"ranks\": 9", -EINVAL, "machine.ranks" },
		{ "\"ranks\": 4", "\"ranks\": 99999999999999999999999", -EINVAL, "more than 64 bits" },
		{ "NVIDIA H200", "a\\nb", -EINVAL, "machine.gpu" },
		{ "NVIDIA H200", "0123456789012345678901234567890123456789012345678901234567890123456789", -EINVAL,
		    "machine.gpu" },
		{ "\"kind\": \"allreduce\"", "\"kind\": \"alltogether\"", -EINVAL, "rows[0].kind is \"alltogether\"" },
		{ "\"kind\": \"allreduce\"", "\"kind\": \"recv\"", -EINVAL, "rows[0].algorithm" },
		{ "oneshot", "ll128", -EINVAL, "none of allreduce" },
		{ "oneshot", "../../x\\u001b[2J", -EINVAL, "?[2J" },
		{ "\"blocks\": 8", "\"blocks\": 65", -EINVAL, "rows[0].blocks is 65" },
		{ "\"blocks\": 8", "\"blocks\": 1.5", -EINVAL, "a fraction" },
		{ "\"threads\": 128", "\"threads\": 1024", -EINVAL, "rows[0].threads" },
		{ "\"threads\": 128", "\"threads\": 100", -EINVAL, "multiple of 32" },
		{ "\"channels\": 16", "\"channels\": 513", -EINVAL, "rows[3].channels" },
		{ "\"upto\": 2048", "\"upto\": 4096", -EINVAL, "same upto" },
		{ "\"upto\": 2048", "\"upto\": null", -EINVAL, "rows[0].upto" },
		{ "\"nccl\": true", "\"nccl\": 1", -EINVAL, "true or false" },
		{ "\"nccl\": \"2.28.9\"", "\"nccl\": 2", -EINVAL, "nccl is a number" },
		{ "\"ranks\": 4", "\"ranks\": 4, \"nvls\": 2", -EINVAL, "machine.nvls" },
		{ "\"rows\"", "\"windows\": 1, \"rows\"", -EINVAL, "windows" },
		{ "\"rows\"", "\"windows\": {\"allreduce\": -1}, \"rows\"", -EINVAL, "windows.allreduce" },
		{ "\"rows\": [", "\"rows\": [7, ", -EINVAL, "rows[0]" },
		{ "\"blocks\": 8", "\"blocks\": 8, \"blocks\": 9", -EINVAL, "JSON" },
	};
	char reason[256];

	for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
		char *text = tuning_edited(edits[i].from, edits[i].to);
		struct shunt_tuning *t = NULL;
		int err = shunt_tuning_parse("x.json", text, strlen(text), &t, reason, sizeof(reason));

		if (err != edits[i].err || t || !strstr(reason, edits[i].reason) || strncmp(reason, "x.json: ", 8) ||
		    strchr(reason, '\n') || strchr(reason, '\33'))
			fail_msg("%s: %d, \"%s\", wanted %d with \"%s\"", edits[i].to, err, reason, edits[i].err,
			    edits[i].reason);
		free(text);
	}
}

static void test_tuning_file_too_large_is_refused(void **state)
{
	size_t bytes = SHUNT_TUNING_MAX_BYTES + 1, n;
	char *text = malloc(bytes + 64), reason[256];
	struct shunt_tuning *t = NULL;

	assert_non_null(text);
	memset(text, ' ', bytes);
	assert_int_equal(shunt_tuning_parse("x", text, bytes, &t, reason, sizeof(reason)), -EFBIG);
	/* More rows than there can be. */
	n = (size_t)sprintf(text, TUNING_HEAD TUNING_MACHINE "\"rows\": [");
	for (unsigned i = 0; i <= SHUNT_TUNING_MAX_ROWS; i++)
		n += (size_t)sprintf(
		    text + n, "%s{\"kind\": \"send\", \"upto\": %u, \"algorithm\": \"ll128\"}", i ? "," : "", i);
	n += (size_t)sprintf(text + n, "]}");
	assert_true(n < bytes);
	assert_int_equal(shunt_tuning_parse("x", text, n, &t, reason, sizeof(reason)), -EFBIG);
	/* Deep. */
	memset(text, '[', 100000);
	assert_int_equal(shunt_tuning_parse("x", text, 100000, &t, reason, sizeof(reason)), -EINVAL);
	free(text);
}

/* Whatever one byte, a piece, or the end is replaced by: a table that is sound, or an error with one line. */
static void test_tuning_file_mutations_are_read_or_refused(void **state)
{
	uint64_t random = 0x9e3779b97f4a7c15u;
	unsigned taken = 0, refused = 0;

	for (int i = 0; i < 30000; i++) {
		char text[2 * sizeof(tuning_good)], reason[200];
		size_t n = sizeof(tuning_good) - 1;
		struct shunt_tuning *t = NULL;
		int err;

		memcpy(text, tuning_good, n);
		for (int k = 0; k < 1 + i % 3 && n > 1; k++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			size_t at = (random >> 33) % n, from = (random >> 13) % n, len = (random >> 5) % 12;

			if (len > n - at)
				len = n - at;
			if (len > n - from)
				len = n - from;
			switch (random >> 61) {
			case 0:
			case 1:
			case 2:
				text[at] = (char)(random >> 40);
				break;
			case 3:
				text[at] = "0123456789\"{}[],:-.eE"[(random >> 40) % 21];
				break;
			case 4: /* a digit more */
				memmove(text + at + 1, text + at, n - at);
				text[at] = (char)('0' + (random >> 40) % 10);
				n++;
				break;
			case 5:
				memmove(text + at, text + from, len);
				break;
			case 6:
				memmove(text + at, text + at + len, n - at - len);
				n -= len;
				break;
			default:
				n = at ? at : 1;
			}
		}
		err = shunt_tuning_parse("x", text, n, &t, reason, sizeof(reason));
		if (err) {
			refused++;
			assert_null(t);
			assert_true(strlen(reason) > 3 && !strchr(reason, '\n'));
			continue;
		}
		taken++;
		assert_true(t->machine.nranks >= 2 && t->machine.nranks <= 8 && t->hash);
		for (int kind = 0; kind < SHUNT_NKINDS - 1; kind++)
			assert_non_null(shunt_tuning_row(t, (enum shunt_kind)kind, END));
		for (size_t r = 0; r < t->nrows; r++)
			assert_true(t->rows[r].algo->kind == t->rows[r].kind &&
			    t->rows[r].geometry.blocks <= SHUNT_MAX_BLOCKS && t->rows[r].geometry.threads % 32 == 0);
		shunt_tuning_free(t);
	}
	assert_true(taken > 100 && refused > 10000);
}

static void test_tuning_file_says_where_windows_are_nccls(void **state)
{
	char *text = tuning_edited("\"rows\"", "\"windows\": {\"allreduce\": 3000, \"reducescatter\": null}, \"rows\"");
	struct shunt_tuning *t = tuning_parsed(text);
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 8, .cc = 90, .tuning = t };
	char source[64];

	for (int nvls = 0; nvls < 2; nvls++) { /* the file was made for either, and counts before the built-in rule */
		s.nvls = nvls;
		assert_string_equal(path_in_window(&s, SHUNT_ALLREDUCE, 2048), "oneshot");
		assert_string_equal(path_in_window(&s, SHUNT_ALLREDUCE, 3000), "nccl");
		assert_string_equal(path_in_window(&s, SHUNT_ALLREDUCE, 1 * MB), "nccl");
		assert_string_equal(path_in_window(&s, SHUNT_REDUCESCATTER, 16 * KB), "oneshot");
	}
	shunt_select_source(SEL_WINDOW(&s), SHUNT_ALLREDUCE, SHUNT_F32, 4096, source, sizeof(source));
	assert_string_equal(source, "tuned here, x.json");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 1 * MB), "twoshot");
	shunt_tuning_free(t);
	free(text);
}

/* ---- sets ---- */

static char *dir;

static int set_up(void **state)
{
	static char name[64];
	char sub[80];

	strcpy(name, "/tmp/test_tuning_XXXXXX");
	dir = mkdtemp(name);
	snprintf(sub, sizeof(sub), "%s/tuning", name);
	return dir && !mkdir(sub, 0700) ? 0 : -1;
}

static int tear_down(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

static void test_tuning_set_takes_named_files_then_the_cache(void **state)
{
	char *other = tuning_edited("\"upto\": 2048", "\"upto\": 1024"), list[256];
	struct shunt_tuning_set set;
	const struct shunt_tuning *t;

	unit_write_file(dir, "tuning/cache.json", tuning_good);
	unit_write_file(dir, "tuning/.hidden.json", "x");
	unit_write_file(dir, "tuning/notes.txt", "x");
	unit_write_file(dir, "mine.json", other);
	snprintf(list, sizeof(list), "%s/mine.json", dir);
	shunt_tuning_set_load(&set, list, dir);
	assert_int_equal(set.n, 2);
	t = shunt_tuning_match(&set, &tuning_h200, false, true);
	assert_non_null(t);
	assert_string_equal(t->source, list);
	shunt_tuning_set_finish(&set);
	shunt_tuning_set_load(&set, "", dir);
	assert_int_equal(set.n, 1);
	shunt_tuning_set_finish(&set);
	shunt_tuning_set_load(&set, "none", dir);
	assert_int_equal(set.n, 0);
	assert_null(shunt_tuning_match(&set, &tuning_h200, false, true));
	shunt_tuning_set_finish(&set);
	free(other);
}

static void test_tuning_set_broken_files_are_left_out_with_a_line(void **state)
{
	struct shunt_tuning_set set;
	struct unit_capture c;
	char file[256];

	unit_write_file(dir, "tuning/a.json", "{\"shunt_tuning\": ");
	unit_write_file(dir, "tuning/b.json", tuning_good);
	snprintf(file, sizeof(file), "%s/tuning/c.json", dir);
	assert_int_equal(mkfifo(file, 0600), 0);
	snprintf(file, sizeof(file), "%s/tuning/d.json", dir);
	assert_int_equal(mkdir(file, 0700), 0);
	unit_capture_begin(&c);
	shunt_tuning_set_load(&set, "/nonexistent/x.json", dir);
	unit_capture_end(&c);
	assert_int_equal(set.n, 1);
	assert_int_equal(unit_count(c.text, "tuning file refused"), 3);
	assert_int_equal(unit_count(c.text, "a.json: line 1: no JSON"), 1);
	assert_int_equal(unit_count(c.text, "not a regular file"), 2);
	assert_int_equal(unit_count(c.text, "no tuning from /nonexistent/x.json: No such file"), 1);
	shunt_tuning_set_finish(&set);
}

/* Files that others may have written. */
static void test_tuning_set_trusts_files_of_this_user_and_root(void **state)
{
	char file[300], folder[256];
	struct shunt_tuning_set set;
	struct unit_capture c;

	unit_write_file(dir, "tuning/a.json", tuning_good);
	snprintf(folder, sizeof(folder), "%s/tuning", dir);
	snprintf(file, sizeof(file), "%s/a.json", folder);
	for (int i = 0; i < 5; i++) {
		bool others = i == 3 || i == 4; /* only root can give a file away */

		if (others && geteuid())
			break;
		assert_int_equal(chmod(file, i == 1 ? 0666 : 0664), 0);
		assert_int_equal(chmod(folder, i == 2 ? 0777 : 0775), 0);
		if (others)
			assert_int_equal(chown(i == 3 ? file : folder, 65534, (gid_t)-1), 0);
		unit_capture_begin(&c);
		shunt_tuning_set_load(&set, i % 2 ? file : folder, "/nonexistent");
		unit_capture_end(&c);
		assert_int_equal(set.n, i == 0 || (i % 2 && i != 1 && i != 3));
		assert_int_equal(unit_count(c.text, "every user may write to it"), i == 1 || i == 2);
		assert_int_equal(unit_count(c.text, "it is neither this user's nor root's"), i == 3 || i == 4);
		shunt_tuning_set_finish(&set);
		if (i == 3)
			assert_int_equal(chown(file, 0, (gid_t)-1), 0);
	}
}

static void test_tuning_set_empty_directory_is_told_if_it_was_named(void **state)
{
	struct shunt_tuning_set set;
	struct unit_capture c;
	char empty[128];

	snprintf(empty, sizeof(empty), "%s/empty", dir);
	assert_int_equal(mkdir(empty, 0700), 0);
	unit_capture_begin(&c);
	shunt_tuning_set_load(&set, empty, "/nonexistent");
	shunt_tuning_set_finish(&set);
	shunt_tuning_set_load(&set, "", dir);
	shunt_tuning_set_finish(&set);
	unit_capture_end(&c);
	assert_int_equal(unit_count(c.text, "\n"), 1);
	assert_int_equal(unit_count(c.text, "/empty: it has no *.json"), 1);
}

static void test_tuning_set_other_machine_is_refused_once(void **state)
{
	struct shunt_machine other = tuning_h200;
	struct shunt_tuning_set set;
	struct unit_capture c;

	unit_write_file(dir, "tuning/b.json", tuning_good);
	shunt_tuning_set_load(&set, "", dir);
	unit_capture_begin(&c);
	strcpy(other.gpu, "NVIDIA B200");
	other.cc = 100;
	assert_null(shunt_tuning_match(&set, &other, false, true));
	assert_null(shunt_tuning_match(&set, &other, false, true));
	other = tuning_h200;
	other.driver = 12080;
	assert_null(shunt_tuning_match(&set, &other, false, true));
	unit_capture_end(&c);
	assert_int_equal(unit_count(c.text, "\n"), 1);
	assert_non_null(strstr(c.text,
	    "made on NVIDIA H200 (compute capability 9.0, driver for CUDA 13.0), and this is NVIDIA B200 (10.0, CUDA "
	    "13.0)"));
	/* Another number of ranks is no reason for a line. */
	unit_capture_begin(&c);
	set.warned[0] = false;
	other = tuning_h200;
	other.nranks = 2;
	assert_null(shunt_tuning_match(&set, &other, false, true));
	unit_capture_end(&c);
	assert_string_equal(c.text, "");
	shunt_tuning_set_finish(&set);
}

/* A file is for one version of NCCL, and for NCCL with multicast or without; one of before is for that without. */
static void test_tuning_set_is_keyed_by_nccl_and_its_multicast(void **state)
{
	static const char *const machines[] = { "\"ranks\": 4", "\"ranks\": 4, \"nvls\": false",
		"\"ranks\": 4, \"nvls\": true" };
	static const struct {
		int file, nccl, nvls;
		bool taken;
	} cases[] = {
		{ 0, 22809, 0, true },
		{ 0, 23203, 0, true },
		{ 0, 22809, 1, false },
		{ 0, 23203, 1, false },
		{ 1, 22809, 0, true },
		{ 1, 23203, 0, false },
		{ 1, 22809, 1, false },
		{ 2, 22809, 1, true },
		{ 2, 23203, 1, false },
		{ 2, 22809, 0, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *text = tuning_edited("\"ranks\": 4", machines[cases[i].file]), list[256];
		struct shunt_machine m = tuning_h200;
		struct shunt_tuning_set set;

		m.nccl = cases[i].nccl;
		m.nvls = cases[i].nvls;
		unit_write_file(dir, "keyed.json", text);
		snprintf(list, sizeof(list), "%s/keyed.json", dir);
		shunt_tuning_set_load(&set, list, "/dev/null");
		assert_int_equal(set.n, 1);
		assert_true(!shunt_tuning_match(&set, &m, false, true) == !cases[i].taken);
		/* Without a real NCCL there is none that the file could be for. */
		m.nccl = 0;
		m.nvls = 0;
		assert_non_null(shunt_tuning_match(&set, &m, true, false));
		shunt_tuning_set_finish(&set);
		free(text);
	}
}

#define TUNING_OVER_HOSTS \
	"\"machine\": {\"gpu\": \"NVIDIA H200\", \"cc\": 90, \"driver\": 13000, \"ranks\": 4, \"hosts\": 2, \"net\": " \
	"\"tcp\", \"nvls\": false}, "
static const char tuning_over_hosts[] = TUNING_HEAD TUNING_OVER_HOSTS
    "\"rows\": [{\"kind\": \"allreduce\", \"upto\": 4096, \"algorithm\": \"hierarchical\"}, "
    "{\"kind\": \"allgather\", \"upto\": 67108864, \"algorithm\": \"hierarchical\"}]}";

static struct shunt_topology two_hosts(void)
{
	struct shunt_topology at = { .nranks = 4, .nislands = 2, .island_of = { 0, 0, 1, 1 } };

	shunt_topology_complete(&at);
	return at;
}

static void test_tuning_file_over_hosts_says_what_is_nccls(void **state)
{
	struct shunt_topology at = two_hosts();
	struct shunt_tuning *t = tuning_parsed(tuning_over_hosts);
	struct shunt_sel_key s = { .nranks = 4, .cc = 90, .topology = &at };
	char text[64];

	assert_true(t->machine.nhosts == 2 && t->machine.nranks == 4);
	assert_string_equal(t->machine.net, "tcp");
	/* Without it. */
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4 * MB), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4 * MB + 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 1 * MB + 16), "nccl");
	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "built-in, for several hosts, not measured");
	/* With it; kinds that it does not have are as without. */
	s.tuning = t;
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096 + 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 64 * MB), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 64 * MB + 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_REDUCESCATTER, 1 * MB), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_REDUCESCATTER, 1 * MB + 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_BROADCAST, 16), "nccl");
	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "tuned here, x.json");
	shunt_select_source(SEL(&s), SHUNT_REDUCESCATTER, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "built-in, for several hosts, not measured");
	s.takes_all = true;
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 64 * MB), "hierarchical");
	shunt_tuning_free(t);
}

static void test_tuning_file_over_hosts_may_want_plans(void **state)
{
	static const char text[] = TUNING_HEAD TUNING_OVER_HOSTS
	    "\"rows\": [{\"kind\": \"allreduce\", \"upto\": 4096, \"algorithm\": \"plan\"}, "
	    "{\"kind\": \"allreduce\", \"upto\": 65536, \"algorithm\": \"hierarchical\"}]}";
	struct shunt_topology at = two_hosts();
	struct shunt_tuning *t = tuning_parsed(text);
	struct shunt_sel_key s = { .nranks = 4, .cc = 90, .topology = &at, .tuning = t };
	const struct shunt_algo *plan = shunt_algo_find(SHUNT_ALLREDUCE, "plan");

	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096), "plan");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096 + 16), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 65536 + 16), "nccl");
	assert_true(plan && plan->planned && plan->over_islands);
	assert_string_equal(shunt_select_unplanned(plan)->name, "hierarchical");
	assert_int_equal(shunt_select_unplanned(plan)->kind, SHUNT_ALLREDUCE);
	s.takes_all = true;
	s.tuning = NULL;
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096), "hierarchical");
	shunt_tuning_free(t);
}

static void test_tuning_file_over_hosts_wrong_values_are_refused(void **state)
{
	static const struct {
		const char *from, *to, *says;
	} cases[] = {
		{ "\"hosts\": 2", "\"hosts\": 3", "machine.ranks is 4" },
		{ "\"hosts\": 2", "\"hosts\": 65", "hosts" },
		{ "\"hosts\": 2", "\"hosts\": 0", "hosts" },
		{ "\"ranks\": 4", "\"ranks\": 18", "at most 8" },
		{ ", \"net\": \"tcp\"", "", "net" },
		{ "\"net\": \"tcp\"", "\"net\": \"\"", "machine.net" },
		{ "\"net\": \"tcp\"", "\"net\": \"sixteen letters..\"", "machine.net" },
		{ "hierarchical", "oneshot", "rows[0].algorithm" },
		{ "\"hosts\": 2, \"net\": \"tcp\"", "\"hosts\": 1", "rows[0].algorithm" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *at = strstr(tuning_over_hosts, cases[i].from);
		struct shunt_tuning *t = NULL;
		char text[1024], reason[256];

		assert_non_null(at);
		snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - tuning_over_hosts), tuning_over_hosts, cases[i].to,
		    at + strlen(cases[i].from));
		assert_int_equal(shunt_tuning_parse("x", text, strlen(text), &t, reason, sizeof(reason)), -EINVAL);
		if (!strstr(reason, cases[i].says))
			fail_msg("%s: %s", cases[i].to, reason);
	}
}

static void test_tuning_set_is_keyed_by_hosts_and_provider(void **state)
{
	static const struct {
		int nranks, nhosts;
		const char *net;
		bool hosts, one; /* the file for several hosts, or for one, is taken */
	} cases[] = { { 4, 2, "tcp", true, false }, { 4, 2, "verbs", false, false }, { 4, 4, "tcp", false, false },
		{ 8, 2, "tcp", false, false }, { 4, 0, "", false, true } };
	struct shunt_tuning_set set;
	char list[256];

	unit_write_file(dir, "tuning/hosts.json", tuning_over_hosts);
	unit_write_file(dir, "tuning/one.json", tuning_good);
	snprintf(list, sizeof(list), "%s/tuning/hosts.json:%s/tuning/one.json", dir, dir);
	shunt_tuning_set_load(&set, list, "/dev/null");
	assert_int_equal(set.n, 2);
	assert_true(set.tables[0]->hash != set.tables[1]->hash);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_machine m = tuning_h200;
		const struct shunt_tuning *t;

		m.nccl = 22809;
		m.nranks = cases[i].nranks;
		m.nhosts = cases[i].nhosts;
		snprintf(m.net, sizeof(m.net), "%s", cases[i].net);
		t = shunt_tuning_match(&set, &m, false, false);
		assert_ptr_equal(t, cases[i].hosts ? set.tables[0] : cases[i].one ? set.tables[1] : NULL);
	}
	shunt_tuning_set_finish(&set);
}

static void test_tuning_set_without_nccl_is_for_standalone(void **state)
{
	char *text = tuning_edited("\"nccl\": \"2.28.9\", ", "");
	struct shunt_tuning_set set;
	struct unit_capture c;

	unit_write_file(dir, "tuning/b.json", text);
	shunt_tuning_set_load(&set, "", dir);
	unit_capture_begin(&c);
	assert_non_null(shunt_tuning_match(&set, &tuning_h200, true, true));
	assert_null(shunt_tuning_match(&set, &tuning_h200, false, true));
	unit_capture_end(&c);
	assert_non_null(strstr(c.text, "without the real NCCL"));
	shunt_tuning_set_finish(&set);
	free(text);
}

/* ---- SHUNT_ALGO ---- */

static void test_force_rules_come_first_and_go_again(void **state)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90 };
	struct shunt_coll c = { .kind = SHUNT_ALLREDUCE, .dtype = SHUNT_U8, .count = 64 };
	struct shunt_decision decision;
	char text[64];

	assert_int_equal(shunt_algo_force("allreduce:0-1k:twoshot@16x256,All_Reduce:1k-2k:nccl,send:0-inf:ll128"), 0);
	assert_true(shunt_select(SEL(&s), &c, &decision));
	assert_string_equal(decision.algo->name, "twoshot");
	assert_int_equal(decision.geometry.blocks, 16);
	assert_int_equal(decision.geometry.threads, 256);
	assert_int_equal(decision.geometry.channels, 0);
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 1 * KB), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 2 * KB), "oneshot");
	assert_string_equal(path_of(&s, SHUNT_RECV, END / 2), "ll128");
	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "SHUNT_ALGO");
	assert_int_equal(shunt_algo_force(NULL), 0);
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 64), "oneshot");
	assert_string_equal(path_of(&s, SHUNT_RECV, END / 2), "nccl");
}

static void test_force_what_cannot_be_read_changes_nothing(void **state)
{
	static const char *const bad[] = {
		"allreduce:0-1k:twoshot@",
		"allreduce:0-1k:twoshot@65",
		"allreduce:0-1k:twoshot@8x100",
		"allreduce:0-1k:twoshot@8x1024",
		"allreduce:0-1k:twoshot@8x128x1x1",
		"allreduce:0-1k:twoshot@-1",
		"allreduce:0-1k:nccl@8",
		"allreduce:0-1k:ll128",
		"allreduce:1k:oneshot",
		"oneshot",
		"allreduce:-1-2:oneshot",
		"allreduce:64k-1k:oneshot",
		"allreduce:1k-1k:oneshot",
		"allreduce:1k-0:nccl",
		"allreduce:0-1k:twoshot@8x",
		"allreduce:0-1k:twoshot@8 x8",
	};
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90 };
	struct unit_capture c;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		unit_capture_begin(&c);
		assert_int_equal(shunt_algo_force(bad[i]), -EINVAL);
		unit_capture_end(&c);
		assert_int_equal(unit_count(c.text, "\n"), 1);
		assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 64), "oneshot");
	}
}

/* An old name does nothing, and the line about it has the new one. */
static void test_old_names_are_answered_with_the_new_ones(void **state)
{
	static const struct {
		const char *rule, *now;
	} old[] = {
		{ "allgather:0-1k:swap", "it is called pairwise now" },
		{ "send:0-1k:exchange", "it is called ll128 now" },
		{ "allreduce:0-1k:chunks", "it is called simple now" },
		{ "broadcast:0-1k:relay", "it is called pipelined now" },
		{ "allgather:0-1k:copies", "it is called ce now" },
		{ "allreduce:0-1k:pulls", "it is called direct now" },
	};
	static const char file[] = "{ \"shunt_tuning\": 1, \"shunt\": \"" SHUNT_VERSION
	                           "\", \"machine\": { \"gpu\": \"x\", \"cc\": 90, \"driver\": 1, \"ranks\": 2 },"
	                           " \"rows\": [{ \"kind\": \"allgather\", \"algorithm\": \"swap\" }] }";
	struct shunt_tuning *t = NULL;
	struct unit_capture c;
	char reason[256];

	for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
		unit_capture_begin(&c);
		assert_int_equal(shunt_algo_force(old[i].rule), -EINVAL);
		unit_capture_end(&c);
		assert_int_equal(unit_count(c.text, "\n"), 1);
		assert_non_null(strstr(c.text, old[i].now));
	}
	assert_int_equal(shunt_tuning_parse("f", file, strlen(file), &t, reason, sizeof(reason)), -EINVAL);
	assert_non_null(strstr(reason, "\"swap\", which is none of allgather (it is called pairwise now)"));
}

/* ---- geometry ---- */

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
	static char in[16], out[16];
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

static void test_geometry_two_ranks_take_one_hop_singly_and_in_groups(void **state)
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

static void test_geometry_pairwise_is_for_one_call_between_two(void **state)
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

static void test_geometry_roles_of_one_batch_have_a_kernel(void **state)
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

static void test_geometry_limits_blocks_threads_and_channels(void **state)
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
static void test_geometry_of_efficiency_has_half_the_blocks(void **state)
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
static void test_geometry_two_launches_find_room_on_a_small_gpu(void **state)
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
static void test_launches_of_ranks_that_share_a_gpu_find_room(void **state)
{
	for (unsigned sms = 16; sms <= 148; sms++)
		for (unsigned sharing = 1; sharing <= 8 && 4 * sharing <= sms; sharing++) {
			unsigned blocks = shunt_grid_coresident_blocks(sms, 2 * sharing);

			assert_in_range(2 * sharing * (blocks + 1), sms - 2 * sharing + 1, sms);
		}
	assert_int_equal(shunt_grid_coresident_blocks(1, 16), 1);
}

static void test_geometry_simple_messages_come_in_clusters(void **state)
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

static void test_geometry_tma_takes_fewer_blocks(void **state)
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
	static char in[16], out[16];
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

static void test_geometry_every_channel_of_every_message_has_a_warp(void **state)
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
	static char in[16], out[16];
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

static void test_pipelined_the_roots_link_carries_the_message_once(void **state)
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

/* ---- windows ---- */

static void test_symmem_takes_ce_from_a_size_on(void **state)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90 },
	                     w = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90 };
	static const struct {
		enum shunt_kind kind;
		uint64_t two, more;
	} from[] = {
		{ SHUNT_ALLGATHER, 64 * MB, 16 * MB },
		{ SHUNT_ALLTOALL, 64 * MB, 32 * MB },
		{ SHUNT_BROADCAST, 128 * MB, NO_END },
		{ SHUNT_GATHER, 64 * MB, 64 * MB },
		{ SHUNT_SCATTER, 64 * MB, 64 * MB },
	};
	char text[64];

	for (int n = 2; n <= 4; n++)
		for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
			uint64_t bytes = n == 2 ? from[i].two : from[i].more;

			s.nranks = w.nranks = n;
			w.no_sms = false;
			if (bytes != NO_END) {
				assert_string_not_equal(path_of(&s, from[i].kind, bytes), "ce");
				assert_string_equal(path_in_window(&w, from[i].kind, bytes), "ce");
				assert_string_equal(
				    path_in_window(&w, from[i].kind, bytes - 1), path_of(&s, from[i].kind, bytes - 1));
			} else { /* not by its size */
				assert_string_equal(
				    path_in_window(&w, from[i].kind, 1024 * MB), path_of(&s, from[i].kind, 1024 * MB));
			}
			w.no_sms = true;
			assert_string_equal(path_in_window(&w, from[i].kind, 1), "ce");
		}
	/* What reduces: a reduce between 2 ranks only, and not without an SM. */
	assert_string_equal(path_in_window(&w, SHUNT_REDUCE, 64 * MB), path_of(&s, SHUNT_REDUCE, 64 * MB));
	s.nranks = w.nranks = 2;
	assert_string_equal(path_in_window(&w, SHUNT_REDUCE, 64 * MB), "direct");
	assert_string_equal(path_in_window(&w, SHUNT_REDUCE, 64 * MB - 1), path_of(&s, SHUNT_REDUCE, 64 * MB - 1));
	assert_string_equal(path_in_window(&w, SHUNT_ALLREDUCE, 256 * MB), path_of(&s, SHUNT_ALLREDUCE, 256 * MB));
	assert_string_equal(
	    path_in_window(&w, SHUNT_REDUCESCATTER, 256 * MB), path_of(&s, SHUNT_REDUCESCATTER, 256 * MB));
	s.nranks = w.nranks = 4;
	shunt_select_source(SEL_WINDOW(&w), SHUNT_ALLGATHER, SHUNT_U8, 1, text, sizeof(text));
	assert_string_equal(text, "CTAPolicy zero");

	/* A rule about windows says nothing about other buffers; one that forwards says so about all. */
	w.no_sms = false;
	assert_int_equal(shunt_algo_force("allgather:0-1m:ce,alltoall:0-:nccl"), 0);
	assert_string_equal(path_in_window(&w, SHUNT_ALLGATHER, 1 * KB), "ce");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 1 * KB), "ll128");
	assert_string_equal(path_in_window(&w, SHUNT_ALLTOALL, 16 * MB), "nccl");
	assert_int_equal(shunt_algo_force(NULL), 0);
}

static void test_symmem_takes_direct_only_by_rule(void **state)
{
	static const enum shunt_kind kinds[] = { SHUNT_ALLREDUCE, SHUNT_REDUCESCATTER, SHUNT_REDUCE };
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90 },
	                     w = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .no_sms = true };
	const void *ptr;
	uint64_t bytes;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		for (uint64_t size = 1 * KB; size <= 1024 * MB; size *= 4)
			assert_string_equal(path_in_window(&w, kinds[i], size), path_of(&s, kinds[i], size));
	assert_int_equal(shunt_algo_force("allreduce:64k-:direct,reducescatter:64k-:direct,reduce:64k-:direct"), 0);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct shunt_coll coll = { .kind = kinds[i], .redop = SHUNT_AVG, .dtype = SHUNT_F32, .count = 100 };
		unsigned buffers = 0;

		assert_string_equal(path_in_window(&w, kinds[i], 64 * KB), "direct");
		assert_string_equal(path_in_window(&w, kinds[i], 32 * KB), path_of(&s, kinds[i], 32 * KB));
		assert_string_not_equal(path_of(&s, kinds[i], 64 * KB), "direct");
		while (shunt_symmem_buffer(&coll, 4, buffers, &ptr, &bytes)) {
			assert_int_equal(bytes, kinds[i] == SHUNT_REDUCESCATTER ? 1600 : 400);
			buffers++;
		}
		assert_int_equal(buffers, kinds[i] == SHUNT_ALLREDUCE ? 2 : 1);
		coll.redop = SHUNT_PREMUL;
		assert_false(shunt_symmem_buffer(&coll, 4, 0, &ptr, &bytes));
	}
	assert_int_equal(shunt_algo_force(NULL), 0);
}

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

static void test_ce_broadcast_leaves_the_root_once(void **state)
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

static void test_ce_gather_is_the_roots_work(void **state)
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

static void test_geometry_messages_channels_follow_from_size_alone(void **state)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .takes_all = true };
	struct launch_seen x = launched(s, SHUNT_SEND, 1 << 20, NULL),
	                   y = launched(s, SHUNT_SEND, 1 << 20, "send:0-inf:ll128@1x32x1");

	assert_memory_equal(&x, &y, sizeof(x));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tuning_builtin_ends_where_it_says),
		cmocka_unit_test(test_tuning_builtin_small_sizes_are_ours),
		cmocka_unit_test(test_tuning_standalone_declines_nothing),
		cmocka_unit_test(test_tuning_large_unaligned_parts_are_nccls),
		cmocka_unit_test(test_tuning_sim_has_a_table_of_its_own),
		cmocka_unit_test(test_tuning_too_many_ranks_is_nccl),
		cmocka_unit_test(test_tuning_builtin_rows_are_sound),
		cmocka_unit_test(test_tuning_source_says_what_was_measured),
		cmocka_unit_test(test_select_deterministic_sums_are_never_declined),
		cmocka_unit_test(test_select_windows_are_nccls_where_it_has_multicast),
		cmocka_unit_test(test_nvls_a_rank_names_its_first_obstacle),
		cmocka_unit_test(test_tuning_file_rows_are_taken),
		cmocka_unit_test(test_tuning_file_says_where_windows_are_nccls),
		cmocka_unit_test(test_select_crossovers_are_those_of_rules_and_rows),
		cmocka_unit_test(test_tuning_file_order_of_rows_is_free),
		cmocka_unit_test(test_tuning_file_every_value_is_in_the_hash),
		cmocka_unit_test(test_tuning_file_wrong_values_are_refused),
		cmocka_unit_test(test_tuning_file_too_large_is_refused),
		cmocka_unit_test(test_tuning_file_mutations_are_read_or_refused),
		cmocka_unit_test_setup_teardown(test_tuning_set_takes_named_files_then_the_cache, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		    test_tuning_set_broken_files_are_left_out_with_a_line, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		    test_tuning_set_empty_directory_is_told_if_it_was_named, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tuning_set_trusts_files_of_this_user_and_root, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tuning_set_other_machine_is_refused_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tuning_set_is_keyed_by_nccl_and_its_multicast, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tuning_set_without_nccl_is_for_standalone, set_up, tear_down),
		cmocka_unit_test(test_tuning_file_over_hosts_says_what_is_nccls),
		cmocka_unit_test(test_tuning_file_over_hosts_wrong_values_are_refused),
		cmocka_unit_test(test_tuning_file_over_hosts_may_want_plans),
		cmocka_unit_test_setup_teardown(test_tuning_set_is_keyed_by_hosts_and_provider, set_up, tear_down),
		cmocka_unit_test(test_force_rules_come_first_and_go_again),
		cmocka_unit_test(test_force_what_cannot_be_read_changes_nothing),
		cmocka_unit_test(test_old_names_are_answered_with_the_new_ones),
		cmocka_unit_test(test_geometry_limits_blocks_threads_and_channels),
		cmocka_unit_test(test_geometry_of_efficiency_has_half_the_blocks),
		cmocka_unit_test(test_geometry_messages_channels_follow_from_size_alone),
		cmocka_unit_test(test_geometry_two_ranks_take_one_hop_singly_and_in_groups),
		cmocka_unit_test(test_geometry_pairwise_is_for_one_call_between_two),
		cmocka_unit_test(test_geometry_roles_of_one_batch_have_a_kernel),
		cmocka_unit_test(test_geometry_two_launches_find_room_on_a_small_gpu),
		cmocka_unit_test(test_launches_of_ranks_that_share_a_gpu_find_room),
		cmocka_unit_test(test_geometry_simple_messages_come_in_clusters),
		cmocka_unit_test(test_geometry_tma_takes_fewer_blocks),
		cmocka_unit_test(test_geometry_every_channel_of_every_message_has_a_warp),
		cmocka_unit_test(test_pipelined_the_roots_link_carries_the_message_once),
		cmocka_unit_test(test_symmem_takes_ce_from_a_size_on),
		cmocka_unit_test(test_symmem_takes_direct_only_by_rule),
		cmocka_unit_test(test_ce_broadcast_leaves_the_root_once),
		cmocka_unit_test(test_ce_gather_is_the_roots_work),
	};

	/* What the machine's user has is no part of this. */
	setenv("SHUNT_TUNING_FILE", "none", 1);
	unsetenv("SHUNT_ALGO");
	unsetenv("SHUNT_FORCE_NCCL");
	return cmocka_run_group_tests(tests, NULL, NULL);
}

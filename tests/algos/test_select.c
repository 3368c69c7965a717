/* SPDX-License-Identifier: MIT */
/*
 * What the selection takes: by the built-in tables, by the rules of SHUNT_ALGO before them, and of buffers in windows.
 */
#include "tests/algos/paths.h"
#include "tests/algos/tuning_text.h"
#include "tests/support/unit.h"
#include "algos/algos.h"
#include "algos/select/nvls.h"
#include "algos/select/tuning.h"

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
	{ SHUNT_ALLTOALL, "simple", FEW_AND_MANY(NO_END, 32 * MB, 0) },
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

TEST(test_tuning_builtin_ends_where_it_says)
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
				/* It does not end; until ranks have met, tables of other links may take what is larger.
				 */
				if (upto == NO_END || !cc)
					continue;
				assert_string_equal(path_of(&gpu, ends[i].kind, upto + 16),
				    next); /* parts of another size are NCCL's */
				if (!strcmp(next, "nccl"))
					assert_string_equal(path_of(&gpu, ends[i].kind, END / 2), "nccl");
			}
		}
}

TEST(test_tuning_builtin_small_sizes_are_ours)
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

TEST(test_tuning_standalone_declines_nothing)
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

TEST(test_tuning_large_unaligned_parts_are_nccls)
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

TEST(test_tuning_sim_has_a_table_of_its_own)
{
	struct shunt_sel_key sim = { .topology = ONE_ISLAND, .nranks = 5, .sim = true, .takes_all = true };

	assert_string_equal(path_of(&sim, SHUNT_ALLREDUCE, 16 * KB), "oneshot");
	assert_string_equal(path_of(&sim, SHUNT_ALLREDUCE, 16 * KB + 1), "twoshot");
	assert_string_equal(path_of(&sim, SHUNT_BROADCAST, 16 * KB), "ll128");
	assert_string_equal(path_of(&sim, SHUNT_BROADCAST, 16 * KB + 1), "pipelined");
	assert_string_equal(path_of(&sim, SHUNT_REDUCE, 32 * KB), "twoshot");
	assert_string_equal(path_of(&sim, SHUNT_REDUCE, 32 * KB + 1), "simple");
}

TEST(test_tuning_too_many_ranks_is_nccl)
{
	struct shunt_sel_key many = { .topology = ONE_ISLAND, .nranks = 9, .cc = 90 };

	assert_null(shunt_tuning_builtin(false, 90, 9));
	assert_string_equal(path_of(&many, SHUNT_ALLREDUCE, 8), "nccl");
}

TEST(test_tuning_builtin_rows_are_sound)
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

TEST(test_tuning_source_says_what_was_measured)
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

TEST(test_select_deterministic_sums_are_never_declined)
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

static void crossover_add(void *ctx, uint64_t size)
{
	char *text = ctx;

	sprintf(text + strlen(text), "%llu ", (unsigned long long)size);
}

/* NCCL has no such numbers, so no table and no size gives it the call; only where no kernel is there does it get one.
 */
TEST(test_select_formats_are_never_nccls)
{
	struct shunt_topology irregular;
	struct shunt_coll coll = { .dtype = SHUNT_F8E4M3B15, .count = 1 };
	struct shunt_decision d = { 0 };

	for (int n = 2; n <= 8; n++) {
		struct shunt_sel_key key = { .nranks = n, .cc = 90, .topology = ONE_ISLAND };

		for (coll.kind = 0; coll.kind < SHUNT_NKINDS; coll.kind++)
			for (coll.count = 1; shunt_kind_reduces(coll.kind) && coll.count < 1ull << 34;
			    coll.count *= 16) {
				assert_true(shunt_select(SEL_WINDOW(&key), &coll, &d));
				assert_int_equal(d.kernel, SHUNT_KERNEL(SHUNT_SHAPE_simple8, 0, SHUNT_KTYPE_ANY8));
				assert_int_equal(d.flags / SHUNT_K_ELEMENT & 15, SHUNT_F8E4M3B15);
				assert_null(d.algo->uses); /* such a row launches kernels of another one */
			}
	}
	shunt_topology_place(&irregular, 3, 2, 0, (const uint8_t[]){ 0, 0, 1 });
	struct shunt_sel_key over = { .nranks = 3, .topology = &irregular },
	                     near = { .nranks = 4, .topology = ONE_ISLAND };

	coll.kind = SHUNT_REDUCE;
	coll.count = 1000;
	assert_false(shunt_select(SEL(&over), &coll, &d));
	assert_int_equal(shunt_algo_force("reduce:0-:twoshot"), 0);
	assert_true(shunt_select(SEL(&near), &coll, &d));
	assert_string_equal(d.algo->name, "simple");
	shunt_algo_force(NULL);
}

TEST(test_select_crossovers_are_those_of_rules_and_rows)
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

/* ---- windows where NCCL has multicast ---- */

TEST(test_select_windows_are_nccls_where_it_has_multicast)
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

TEST(test_nvls_a_rank_names_its_first_obstacle)
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

/* ---- windows that copy engines and pulls take ---- */

TEST(test_symmem_takes_ce_from_a_size_on)
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

TEST(test_symmem_takes_direct_only_by_rule)
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

/* ---- SHUNT_ALGO ---- */

TEST(test_force_rules_come_first_and_go_again)
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

TEST(test_force_what_cannot_be_read_changes_nothing)
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
TEST(test_old_names_are_answered_with_the_new_ones)
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

/* Where the SMs are to be left alone and segments have room for copy engines. */
TEST(test_shared_memory_takes_copy_engines_for_policy_zero)
{
	struct shunt_topology at;
	struct shunt_sel_key s = {
		.topology = &at, .nranks = 2, .cc = 90, .staged = true, .no_sms = true, .ce_shared = true
	};
	struct shunt_coll c = {
		.kind = SHUNT_ALLGATHER, .dtype = SHUNT_U8, .count = 8 * MB, .cta_policy = SHUNT_CTAS_FEW
	};
	struct shunt_decision decision;

	shunt_topology_join(&at, 2, 0);
	at.within = SHUNT_LINK_SHARED;
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 8 * MB), "ce_shared");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 8 * MB - 16), "simple");
	assert_string_equal(path_of(&s, SHUNT_BROADCAST, 8 * MB), "nccl");
	assert_true(shunt_select(SEL(&s), &c, &decision));
	assert_string_equal(decision.algo->name, "simple"); /* its own policy */
	s.takes_all = true;
	assert_string_equal(path_of(&s, SHUNT_BROADCAST, 1 * MB), "ce_shared");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 8 * MB), "simple");
	s.ce_shared = false;
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 8 * MB), "simple");
}

/* Between two ranks; where NCCL was faster, eagerly or in graphs, in place or not. */
TEST(test_shared_memory_leaves_to_nccl_what_it_does_faster)
{
	struct shunt_topology at;
	struct shunt_sel_key s = { .topology = &at, .nranks = 2, .cc = 90, .staged = true };
	static const struct {
		enum shunt_kind kind;
		uint64_t bytes;
		const char *path, *alone;
	} calls[] = {
		{ SHUNT_SEND, 8 * KB, "ll128", "ll128" },
		{ SHUNT_SEND, 16 * KB, "nccl", "ll128" },
		{ SHUNT_SEND, 256 * KB, "nccl", "ll128" },
		{ SHUNT_SCATTER, 4 * KB, "ll128", "ll128" },
		{ SHUNT_SCATTER, 8 * KB, "nccl", "ll128" },
		{ SHUNT_SCATTER, 128 * KB, "nccl", "ll128" },
		{ SHUNT_SCATTER, 2 * MB, "simple", "simple" },
		{ SHUNT_REDUCESCATTER, 1 * MB, "oneshot", "oneshot" },
		{ SHUNT_REDUCESCATTER, 2 * MB, "nccl", "simple" },
		{ SHUNT_REDUCESCATTER, 4 * MB, "simple", "simple" },
	};

	shunt_topology_join(&at, 2, 0);
	at.within = SHUNT_LINK_SHARED;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		s.takes_all = false;
		assert_string_equal(path_of(&s, calls[i].kind, calls[i].bytes), calls[i].path);
		s.takes_all = true;
		assert_string_equal(path_of(&s, calls[i].kind, calls[i].bytes), calls[i].alone);
	}
}

/* ---- over hosts, in front of NCCL ---- */

TEST(test_messages_over_hosts_need_pairs_that_a_rule_or_a_file_wants)
{
	static const uint8_t two[] = { 0, 0, 1, 1 }, alone[] = { 0, 1, 2, 3 };
	static const enum shunt_kind kinds[] = { SHUNT_SEND, SHUNT_ALLTOALL, SHUNT_GATHER, SHUNT_SCATTER };
	struct shunt_topology t = { 0 };
	struct shunt_sel_key key = { .topology = &t, .nranks = 4, .cc = 90 };

	for (int each = 1; each <= 2; each++) {
		shunt_topology_place(&t, 4, each == 2 ? 2 : 4, 0, each == 2 ? two : alone);
		for (int k = 0; k < 4; k++) {
			key.pairs = false;
			assert_int_equal(
			    shunt_tuning_serves_islands(&key, kinds[k]), each == 1 && kinds[k] != SHUNT_SEND);
			key.pairs = true;
			assert_true(shunt_tuning_serves_islands(&key, kinds[k]));
		}
	}
	assert_false(shunt_select_wants_pairs());
	assert_int_equal(shunt_algo_force("allreduce:0-:hierarchical,send:0-:nccl,alltoall:0-:ll128"), 0);
	assert_false(shunt_select_wants_pairs());
	assert_int_equal(shunt_algo_force("gather:0-1k:hierarchical"), 0);
	assert_true(shunt_select_wants_pairs());
	assert_string_equal(path_of(&key, SHUNT_GATHER, 512), "hierarchical");
	assert_string_equal(path_of(&key, SHUNT_SEND, 512), "nccl");
	assert_int_equal(shunt_algo_force(NULL), 0);
	assert_true(shunt_select_wants_pairs()); /* communicators of then have them */
	assert_string_equal(path_of(&key, SHUNT_GATHER, 512), "nccl");
}

TESTS_BEGIN
{
	path_alone();
}

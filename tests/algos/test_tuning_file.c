/* SPDX-License-Identifier: MIT */
/* Text of tuning files: what it makes of the selection, and what is refused. */
#include "tests/algos/paths.h"
#include "tests/algos/tuning_text.h"
#include "tests/support/unit.h"
#include "algos/algos.h"
#include "algos/select/tuning.h"

TEST(test_tuning_file_rows_are_taken)
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

TEST(test_tuning_file_order_of_rows_is_free)
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

TEST(test_tuning_file_every_value_is_in_the_hash)
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

TEST(test_tuning_file_wrong_values_are_refused)
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

TEST(test_tuning_file_too_large_is_refused)
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
TEST(test_tuning_file_mutations_are_read_or_refused)
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

TEST(test_tuning_file_says_where_windows_are_nccls)
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

/* ---- several hosts ---- */

static struct shunt_topology two_hosts(void)
{
	struct shunt_topology at = { .nranks = 4, .nislands = 2, .island_of = { 0, 0, 1, 1 } };

	shunt_topology_complete(&at);
	return at;
}

TEST(test_tuning_file_over_hosts_says_what_is_nccls)
{
	struct shunt_topology at = two_hosts();
	struct shunt_tuning *t = tuning_parsed(tuning_over_hosts);
	struct shunt_sel_key s = { .nranks = 4, .cc = 90, .topology = &at, .net = "verbs" };
	char text[64];

	assert_true(t->machine.nhosts == 2 && t->machine.nranks == 4);
	assert_string_equal(t->machine.net, "tcp");
	/* Without it: nobody has measured such hosts. */
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 16), "nccl");
	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "built-in, for several hosts, not measured");
	/* With it; kinds that it does not have are as without. */
	s.tuning = t;
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096 + 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 64 * MB), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_ALLGATHER, 64 * MB + 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_REDUCESCATTER, 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_BROADCAST, 4096), "hierarchical");
	assert_string_equal(path_of(&s, SHUNT_BROADCAST, 4096 + 16), "nccl");
	assert_string_equal(path_of(&s, SHUNT_ALLTOALL, 16), "nccl"); /* ranks of other rails are not connected */
	assert_string_equal(path_of(&s, SHUNT_SEND, 16), "nccl");
	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "tuned here, x.json");
	shunt_select_source(SEL(&s), SHUNT_REDUCESCATTER, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "built-in, for several hosts, not measured");
	s.takes_all = true;
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 64 * MB), "hierarchical");
	shunt_tuning_free(t);
}

static struct shunt_topology hosts_of(int hosts, int each)
{
	struct shunt_topology at = { .nranks = hosts * each, .nislands = hosts };

	for (int r = 0; r < hosts * each; r++)
		at.island_of[r] = (uint8_t)(r / each);
	shunt_topology_complete(&at);
	return at;
}

/* Each kind, number of hosts, ranks of a host and provider by itself: what was measured for another has no say. */
TEST(test_tuning_over_hosts_is_by_kind_place_and_provider)
{
	static const struct {
		enum shunt_kind kind;
		int hosts, each;
		const char *net;
		uint64_t bytes;
		const char *path;
	} cases[] = {
		{ SHUNT_ALLREDUCE, 2, 1, "tcp", 16, "hierarchical" },
		{ SHUNT_ALLREDUCE, 2, 1, "tcp", 64 * MB, "hierarchical" },
		{ SHUNT_ALLREDUCE, 2, 1, "tcp", 64 * MB + 16, "nccl" },
		{ SHUNT_ALLREDUCE, 2, 1, "verbs", 16, "nccl" },
		{ SHUNT_ALLREDUCE, 2, 1, NULL, 16, "hierarchical" }, /* before the set-up */
		{ SHUNT_ALLREDUCE, 4, 1, "tcp", 64 * MB, "hierarchical" },
		{ SHUNT_ALLREDUCE, 2, 2, "tcp", 64 * MB + 16, "nccl" },
		{ SHUNT_ALLREDUCE, 2, 4, "tcp", 16, "nccl" },
		{ SHUNT_ALLGATHER, 2, 1, "tcp", 16, "hierarchical" },
		{ SHUNT_ALLGATHER, 2, 1, "tcp", 64 * MB, "nccl" },
		{ SHUNT_ALLGATHER, 4, 1, "tcp", 64 * KB, "hierarchical" },
		{ SHUNT_ALLGATHER, 4, 1, "tcp", 64 * KB + 16, "nccl" },
		{ SHUNT_ALLGATHER, 2, 2, "tcp", 4 * MB, "hierarchical" },
		{ SHUNT_REDUCESCATTER, 2, 2, "tcp", 256 * KB + 16, "nccl" },
		{ SHUNT_REDUCESCATTER, 2, 2, "tcp", 4 * MB, "hierarchical" }, /* two ranges, NCCL's in between */
		{ SHUNT_REDUCESCATTER, 4, 1, "tcp", 16 * MB, "hierarchical" },
		{ SHUNT_REDUCESCATTER, 2, 1, "tcp", 8 * MB, "hierarchical" },
		{ SHUNT_REDUCESCATTER, 2, 1, "tcp", 8 * MB + 16, "nccl" },
		{ SHUNT_BROADCAST, 2, 1, "verbs", 16, "nccl" },
		{ SHUNT_BROADCAST, 2, 1, "tcp", 8 * MB, "hierarchical" },
		{ SHUNT_ALLTOALL, 2, 1, "tcp", 8 * MB, "hierarchical" },
		{ SHUNT_GATHER, 2, 1, "tcp", 8 * MB + 16, "nccl" },
		{ SHUNT_SCATTER, 2, 1, "tcp", 16, "hierarchical" },
		{ SHUNT_SCATTER, 2, 2, "tcp", 16, "nccl" },
		{ SHUNT_SCATTER, 4, 1, "tcp", 16, "hierarchical" },
		{ SHUNT_REDUCE, 2, 2, "tcp", 16, "nccl" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_topology at = hosts_of(cases[i].hosts, cases[i].each);
		struct shunt_sel_key s = { .nranks = at.nranks, .cc = 90, .topology = &at, .net = cases[i].net };

		assert_string_equal(path_of(&s, cases[i].kind, cases[i].bytes), cases[i].path);
		s.deterministic = true; /* sums are Shunt's at any size */
		assert_string_equal(path_of(&s, cases[i].kind, cases[i].bytes),
		    shunt_kind_reduces(cases[i].kind) ? "hierarchical" : cases[i].path);
	}
}

TEST(test_tuning_over_hosts_says_its_source)
{
	struct shunt_topology at = hosts_of(2, 1);
	struct shunt_sel_key s = { .nranks = 2, .cc = 90, .topology = &at, .net = "tcp" };
	char text[64];

	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "built-in, for such hosts, measured on H200 over loopback");
	at = hosts_of(3, 1);
	s.nranks = 3;
	shunt_select_source(SEL(&s), SHUNT_ALLGATHER, SHUNT_U8, 64, text, sizeof(text));
	assert_string_equal(text, "built-in, for several hosts, not measured");
}

TEST(test_tuning_file_over_hosts_may_want_plans)
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

TEST(test_tuning_file_over_hosts_wrong_values_are_refused)
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

/* ---- one host without NVLink between all ranks ---- */

#define BY_LINK(more) \
	TUNING_HEAD "\"machine\": {\"gpu\": \"NVIDIA H200\", \"cc\": 90, \"driver\": 13000, \"ranks\": 4, " more "}, "
#define PAIRS "\"link\": \"shared\", \"islands\": 2"
#define PAIRS_ROWS \
	"\"rows\": [{\"kind\": \"allreduce\", \"upto\": 4096, \"algorithm\": \"twoshot\"}, " \
	"{\"kind\": \"allreduce\", \"upto\": 1048576, \"algorithm\": \"islands\"}]}"

/* Pairs of NVLink that shared memory joins. */
static struct shunt_topology two_pairs(void)
{
	uint8_t claims[4][SHUNT_TOPOLOGY_LOCAL] = { { 0, 1, 3, 3 }, { 1, 0, 3, 3 }, { 3, 3, 0, 1 }, { 3, 3, 1, 0 } };
	struct shunt_topology t;
	int a, b;

	shunt_topology_join(&t, 4, 0);
	assert_true(shunt_topology_agree(&t, claims, ~0u, &a, &b));
	return t;
}

TEST(test_tuning_file_of_links_has_their_algorithms)
{
	struct shunt_topology at = two_pairs();
	struct shunt_tuning *t = tuning_parsed(BY_LINK(PAIRS) PAIRS_ROWS);
	struct shunt_part parts[SHUNT_PARTS];
	struct shunt_sel_key s = { .topology = &at, .nranks = 4, .cc = 90, .by_link = t, .staged = true };
	struct shunt_machine m = { 0 };
	char text[64];

	shunt_machine_join(&m, &at);
	assert_true(m.link == SHUNT_LINK_SHARED && m.islands == 2);
	assert_true(t->machine.link == SHUNT_LINK_SHARED && t->machine.islands == 2);
	assert_true(shunt_parts_make(parts, &s));
	s.parts = parts;
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 4096), "twoshot");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 8192), "islands");
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 1 * MB + 64), "nccl");
	/* A count that its ranks cannot share, and sums whose order is fixed: the built-in table of such links. */
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 8193), "oneshot");
	s.deterministic = true;
	shunt_select_source(SEL(&s), SHUNT_ALLREDUCE, SHUNT_F32, 8192, text, sizeof(text));
	assert_string_equal(text, "tuned here, x.json");
	s.deterministic = false;
	s.parts = NULL; /* as with SHUNT_CHECK */
	assert_string_equal(path_of(&s, SHUNT_ALLREDUCE, 8192), "oneshot");
	/* Kinds that it lacks are those of the links' table. */
	shunt_select_source(SEL(&s), SHUNT_BROADCAST, SHUNT_F32, 8, text, sizeof(text));
	assert_string_equal(text, "built-in, for shared memory, from 2 and 4 H200");
	shunt_tuning_free(t);
}

TEST(test_tuning_file_of_links_wrong_values_are_refused)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{ BY_LINK("\"link\": \"nvlink\"") PAIRS_ROWS, "machine.link" },
		{ BY_LINK("\"link\": 3") PAIRS_ROWS, "machine.link" },
		{ BY_LINK("\"islands\": 2") PAIRS_ROWS, "machine.link" },
		{ BY_LINK("\"link\": \"peer\", \"islands\": 3") PAIRS_ROWS, "machine.ranks is 4" },
		{ BY_LINK("\"link\": \"peer\", \"islands\": 4") PAIRS_ROWS, "machine.ranks is 4" },
		{ BY_LINK("\"link\": \"peer\", \"islands\": 5") PAIRS_ROWS, "machine.islands" },
		{ BY_LINK("\"hosts\": 2, \"net\": \"tcp\", \"link\": \"peer\"") PAIRS_ROWS, "machine.link is peer" },
		{ BY_LINK("\"link\": \"peer\"") PAIRS_ROWS, "none of allreduce by machine.link peer" },
		{ BY_LINK("\"nvls\": false") PAIRS_ROWS, "rows[1].algorithm is \"islands\"" },
		{ BY_LINK(PAIRS) "\"rows\": [{\"kind\": \"allreduce\", \"algorithm\": \"direct\"}]}",
		    "rows[0].algorithm" },
		{ BY_LINK(PAIRS) "\"rows\": [{\"kind\": \"allreduce\", \"algorithm\": \"hierarchical\"}]}",
		    "rows[0].algorithm" },
	};
	char reason[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_tuning *t = NULL;

		assert_int_equal(
		    shunt_tuning_parse("x", cases[i].text, strlen(cases[i].text), &t, reason, sizeof(reason)), -EINVAL);
		if (!strstr(reason, cases[i].says))
			fail_msg("%s: %s", cases[i].text, reason);
	}
}

TESTS_BEGIN
{
	path_alone();
}

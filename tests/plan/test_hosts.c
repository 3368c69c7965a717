/* SPDX-License-Identifier: MIT */
/* The hosts of plans: islands, and placements that fit. Plans of two and three ranks, made here. */
#include "tests/support/test.h"
#include "plan/compile/program.h"
#include "plan/format/hosts.h"
#include "plan/load.h"

/* A rank's entry: who it is joined with, by which channels and remote buffers. */
static int rank_text(char *at, size_t bytes, int rank, const char *channels, const char *remotes, const char *ops)
{
	return snprintf(at, bytes,
	    "%s{\"id\": %d, \"input_chunks\": 1, \"output_chunks\": 4, \"scratch_chunks\": 4, \"channels\": [%s], "
	    "\"remote_buffers\": [%s], \"semaphores\": [], \"threadblocks\": [%s]}",
	    rank ? ", " : "", rank, channels, remotes, ops);
}

static struct shunt_plan *plan_of(
    int n, const char *const *channels, const char *const *remotes, const char *const *ops)
{
	char text[8192], reason[512];
	struct shunt_plan *plan;
	size_t at = (size_t)snprintf(text, sizeof(text),
	    "{\"name\": \"p\", \"collective\": \"test\", \"protocol\": \"Simple\", \"inplace\": false, \"gpus\": [");

	for (int r = 0; r < n; r++)
		at += (size_t)rank_text(
		    text + at, sizeof(text) - at, r, channels[r], remotes ? remotes[r] : "", ops ? ops[r] : "");
	snprintf(text + at, sizeof(text) - at, "]}");
	if (shunt_plan_load_buffer("p", text, strlen(text), &plan, reason, sizeof(reason)))
		fail_msg("%s", reason);
	return plan;
}

#define MEMORY(to) "{\"channel_type\": \"memory\", \"connected_to\": [" to "]}"
#define PORT(to) "{\"channel_type\": \"port\", \"connected_to\": [" to "]}"
#define SWITCH(ranks) \
	"{\"channel_type\": \"switch\", \"buffer_type\": \"i\", \"rank_groups\": [{\"size\": 2, \"ranks\": [" ranks \
	"]}]}"
#define REMOTE(rank, types) "{\"rank\": " rank ", \"type\": \"s\", \"access_channel_types\": [" types "]}"

static void expect_islands(struct shunt_plan *plan, uint32_t n, const uint32_t *want)
{
	uint32_t island_of[8];

	assert_int_equal(shunt_plan_islands(plan, island_of), n);
	assert_memory_equal(island_of, want, plan->nranks * sizeof(*want));
}

static void expect_fit(struct shunt_plan *plan, const uint8_t *host_of, const uint8_t *rail_of, const char *wrong)
{
	char reason[160] = "";
	bool fits =
	    shunt_plan_fits_hosts(plan, &(struct shunt_plan_placement){ host_of, rail_of }, reason, sizeof(reason));

	assert_int_equal(fits, !wrong);
	if (wrong)
		assert_string_equal(reason, wrong);
}

TEST(test_islands_are_joined_by_memory)
{
	struct shunt_plan *plan = plan_of(4, (const char *[]){ PORT("1"), MEMORY("3"), "", MEMORY("1") }, NULL, NULL);

	(void)state;
	expect_islands(plan, 3, (const uint32_t[]){ 0, 1, 2, 1 });
	shunt_plan_unref(plan);
}

TEST(test_islands_are_joined_through_others)
{
	struct shunt_plan *plan =
	    plan_of(4, (const char *[]){ MEMORY("3"), "", MEMORY("3"), MEMORY("0, 2") }, NULL, NULL);

	(void)state;
	expect_islands(plan, 2, (const uint32_t[]){ 0, 1, 0, 0 });
	shunt_plan_unref(plan);
}

TEST(test_all_that_joins_fits_one_host_alone)
{
	static const uint8_t one[2] = { 0, 0 }, two[2] = { 0, 1 };
	static const struct {
		const char *channels[2], *remotes[2], *wrong;
	} cases[] = {
		{ { MEMORY("1"), MEMORY("0") }, { "", "" },
		    "a memory channel joins ranks 0 and 1, which are on different hosts (0 and 1)" },
		{ { SWITCH("0, 1"), SWITCH("0, 1") }, { "", "" },
		    "a switch channel joins ranks 0 and 1, which are on different hosts (0 and 1)" },
		{ { "", "" }, { "", REMOTE("0", "\"memory\"") },
		    "a remote buffer of type memory joins ranks 1 and 0, which are on different hosts (1 and 0)" },
		{ { PORT("1"), PORT("0") }, { REMOTE("1", "\"port\""), "" }, NULL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_plan *plan = plan_of(2, cases[i].channels, cases[i].remotes, NULL);

		expect_fit(plan, one, NULL, NULL);
		expect_fit(plan, two, NULL, cases[i].wrong);
		shunt_plan_unref(plan);
	}
}

TEST(test_hosts_have_ranks_that_follow_each_other)
{
	struct shunt_plan *plan = plan_of(3, (const char *[]){ "", "", "" }, NULL, NULL);

	(void)state;
	expect_fit(plan, (const uint8_t[]){ 0, 1, 0 }, NULL,
	    "ranks 1 and 2: a plan needs hosts whose ranks follow each other");
	expect_fit(plan, (const uint8_t[]){ 0, 1, 1 }, NULL, NULL);
	shunt_plan_unref(plan);
}

TEST(test_ports_stay_on_a_rail)
{
	static const uint8_t host_of[4] = { 0, 0, 1, 1 }, rail_of[4] = { 0, 1, 0, 1 };
	struct shunt_plan *plan =
	    plan_of(4, (const char *[]){ PORT("2"), PORT("3"), PORT("0"), PORT("1") }, NULL, NULL);

	(void)state;
	expect_fit(plan, host_of, rail_of, NULL);
	shunt_plan_unref(plan);
	plan = plan_of(4, (const char *[]){ PORT("3"), "", "", PORT("0") }, NULL, NULL);
	expect_fit(plan, host_of, NULL, NULL);
	expect_fit(
	    plan, host_of, rail_of, "a port joins ranks 0 and 3, which are on different hosts and not of one rail");
	shunt_plan_unref(plan);
}

TEST(test_spread_is_in_order)
{
	struct shunt_plan *plan = plan_of(3, (const char *[]){ "", "", "" }, NULL, NULL);
	uint8_t host_of[3];
	char reason[160];

	(void)state;
	assert_int_equal(shunt_plan_spread(plan, 4, host_of, reason, sizeof(reason)), -EINVAL);
	assert_string_equal(reason, "its 3 ranks cannot be spread over 4 hosts");
	assert_int_equal(shunt_plan_spread(plan, 2, host_of, reason, sizeof(reason)), 0);
	assert_memory_equal(host_of, ((const uint8_t[]){ 0, 0, 1 }), 3);
	assert_int_equal(shunt_plan_spread(plan, 3, host_of, reason, sizeof(reason)), 0);
	assert_memory_equal(host_of, ((const uint8_t[]){ 0, 1, 2 }), 3);
	shunt_plan_unref(plan);
}

/* ---- what is compiled for ports between hosts */

#define BLOCK(ops) \
	"{\"id\": 0, \"channels\": [{\"channel_type\": \"port\", \"channel_ids\": [0]}], \"remote_buffer_refs\": " \
	"[{\"access_channel_type\": \"port\", \"remote_buffer_ids\": [0]}], \"ops\": [" ops "]}"
#define PUT(op, from) \
	"{\"name\": \"" op "\", \"channel_type\": \"port\", \"channel_ids\": [0], \"src_buff\": [{\"type\": \"" from \
	"\", \"index\": 0, \"size\": 1}], \"dst_buff\": [{\"buffer_id\": 0, \"index\": 1, \"size\": 1}]}"
#define WAIT "{\"name\": \"wait\", \"channel_type\": \"port\", \"channel_ids\": [0]}"
#define COPY(from, to) \
	"{\"name\": \"copy\", \"src_buff\": [{\"type\": \"" from "\", \"index\": 0, \"size\": 1}], \"dst_buff\": " \
	"[{\"type\": \"" to "\", \"index\": 0, \"size\": 1}]}, {\"name\": \"nop\"}"

/* How often rank 0's program has the operation; both ranks do the same. */
static unsigned count_codes(const char *ops, const uint8_t *host_of, uint8_t code, bool ported[3])
{
	const char *channels[2] = { PORT("1"), PORT("0") }, *blocks[2] = { ops, ops },
	           *remotes[2] = { REMOTE("1", "\"port\""), REMOTE("0", "\"port\"") };
	struct shunt_plan *plan = plan_of(2, channels, remotes, blocks);
	struct shunt_program *p;
	unsigned n = 0;
	uint32_t at;

	assert_int_equal(shunt_program_create(plan, 0, host_of, true, &p), 0);
	at = ((const struct shunt_prog_head *)p->bytecodes)->first;
	for (const struct shunt_prog_op *op; (op = (const void *)(p->bytecodes + at))->code != SHUNT_PROG_END;
	    at = op->next)
		n += op->code == code;
	memcpy(ported, p->ported, sizeof(p->ported));
	shunt_program_destroy(p);
	shunt_plan_unref(plan);
	return n;
}

TEST(test_ports_between_hosts_push_triggers)
{
	static const uint8_t one[2] = { 0, 0 }, two[2] = { 0, 1 };
	static const char ops[] = BLOCK(PUT("pws", "i") ", " WAIT);
	bool ported[3];

	(void)state;
	assert_int_equal(count_codes(ops, two, SHUNT_PROG_PORT_PUT, ported), 1);
	assert_true(ported[0] && !ported[1] && ported[2]);
	assert_int_equal(count_codes(ops, two, SHUNT_PROG_PORT_WAIT, ported), 1);
	assert_int_equal(count_codes(ops, two, SHUNT_PROG_SIGNAL, ported), 0); /* it is the put's */
	assert_int_equal(count_codes(ops, one, SHUNT_PROG_PORT_PUT, ported), 0);
	assert_int_equal(count_codes(ops, one, SHUNT_PROG_SIGNAL, ported), 1);
	assert_false(ported[0] || ported[1] || ported[2]);
}

TEST(test_put_of_what_may_be_written_later_is_flushed)
{
	static const uint8_t two[2] = { 0, 1 };
	static const char other[] =
	    ", {\"id\": 1, \"channels\": [], \"remote_buffer_refs\": [], \"ops\": [" COPY("i", "s") "]}";
	char blocks[2048];
	bool ported[3];

	(void)state;
	assert_int_equal(count_codes(BLOCK(PUT("pws", "i") ", " WAIT), two, SHUNT_PROG_PORT_FLUSH, ported), 0);
	assert_int_equal(count_codes(BLOCK(PUT("pwsf", "i") ", " WAIT), two, SHUNT_PROG_PORT_FLUSH, ported), 1);
	assert_int_equal(
	    count_codes(BLOCK(COPY("i", "s") ", " PUT("pws", "s") ", " WAIT), two, SHUNT_PROG_PORT_FLUSH, ported), 0);
	assert_int_equal(
	    count_codes(BLOCK(PUT("pws", "s") ", " WAIT ", " COPY("i", "s")), two, SHUNT_PROG_PORT_FLUSH, ported), 1);
	snprintf(blocks, sizeof(blocks), "%s%s", BLOCK(PUT("pws", "s") ", " WAIT), other);
	assert_int_equal(count_codes(blocks, two, SHUNT_PROG_PORT_FLUSH, ported), 1);
}

TEST(test_get_over_a_port_is_refused)
{
	static const char text[] =
	    "{\"name\": \"p\", \"collective\": \"test\", \"protocol\": \"Simple\", \"inplace\": false, \"gpus\": "
	    "[{\"id\": 0, "
	    "\"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0, \"channels\": [" PORT(
	        "0") "], "
	             "\"remote_buffers\": [], \"semaphores\": [], \"threadblocks\": [{\"id\": 0, \"channels\": "
	             "[{\"channel_type\": "
	             "\"port\", \"channel_ids\": [0]}], \"remote_buffer_refs\": [], \"ops\": [{\"name\": \"get\", "
	             "\"channel_type\": "
	             "\"port\", \"src_buff\": [], \"dst_buff\": []}]}]}]}";
	struct shunt_plan *plan;
	char reason[512];

	(void)state;
	assert_int_equal(shunt_plan_load_buffer("p", text, strlen(text), &plan, reason, sizeof(reason)), -EINVAL);
	assert_non_null(strstr(reason, "(get)"));
	assert_non_null(strstr(reason, "channel_type"));
	assert_null(strchr(reason, '\n'));
}

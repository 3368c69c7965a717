/* SPDX-License-Identifier: MIT */
/* Proofs of plans: what is right is proved, and what is wrong is refused with its place. */
#include "tests/plan/edit.h"
#include "plan/load.h"

/* Loads a text, which must be well formed, and proves it. */
static int prove(const char *text, enum shunt_plan_status *status_p, char reason[1024])
{
	struct shunt_plan *plan;
	int err;

	*reason = '\0';
	if (shunt_plan_load_buffer("plan", text, strlen(text), &plan, reason, 1024))
		return -EAGAIN;
	err = shunt_plan_prove(plan, reason, 1024);
	*status_p = plan->status;
	shunt_plan_unref(plan);
	return err;
}

static void expect(json_t *root, int err, const char *part)
{
	char *text = json_dumps(root, JSON_COMPACT), reason[1024];
	enum shunt_plan_status status;
	int got = prove(text, &status, reason);

	if (got != err || (part && !strstr(reason, part)) || (!err && status != SHUNT_PLAN_PROVED))
		fail_msg("%d, \"%s\", expected %d, \"%s\"", got, reason, err, part ? part : "");
	free(text);
	json_decref(root);
}

TEST(test_prove_plans_of_the_corpus_are_right)
{
	DIR *dir = opendir(getenv("SHUNT_TEST_PLANS"));
	const struct dirent *entry;
	unsigned n = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		char name[256];
		size_t len = strlen(entry->d_name);

		if (len < 6 || strcmp(entry->d_name + len - 5, ".json"))
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)len - 5, entry->d_name);
		/* Some were made to have every operation of a kind: one adds twice, one has no nop. */
		if (!strcmp(name, "reducescatter_packets_3"))
			expect(edit_open(name), -EINVAL, "the result is wrong: rank 0's input[0] holds a reduction of");
		else if (!strcmp(name, "switch_all_2"))
			expect(
			    edit_open(name), -EINVAL, "(cpkt): a race: reads rank 1's input[1], which rank 1, block 0");
		else if (!strcmp(name, "custom_reductions_2"))
			expect(
			    edit_open(name), -EINVAL, "(rre): a race: reads rank 1's input[1], which rank 1, block 0");
		else if (strcmp(name, "sendrecv_pipeline_2"))
			expect(edit_open(name), 0, NULL);
		n++;
	}
	closedir(dir);
	assert_true(n >= 9);
}

/* Two blocks wait for one channel's signals: which of them gets which is not decided, and no reason to refuse. */
TEST(test_prove_what_is_undecided_is_not_wrong)
{
	json_t *root = edit_open("sendrecv_pipeline_2");
	char *text = json_dumps(root, JSON_COMPACT), reason[1024];
	struct shunt_plan *plan;

	assert_int_equal(shunt_plan_load_buffer("plan", text, strlen(text), &plan, reason, sizeof(reason)), 0);
	assert_int_equal(shunt_plan_prove(plan, reason, sizeof(reason)), 0);
	assert_int_equal(plan->status, SHUNT_PLAN_UNDECIDED);
	assert_string_equal(reason, "");
	assert_non_null(strstr(plan->doubt, "plan: rank 0, block 1, operation 0.3 (copy): a race"));
	shunt_plan_unref(plan);
	free(text);
	json_decref(root);
}

/* Two ranks, one block each; `ops` of both, where R is the own rank and P the peer. */
static json_t *two_ranks(const char *collective, const char *chunks, const char *ops0, const char *ops1)
{
	static const char form[] =
	    "{\"name\":\"two\",\"collective\":\"%s\",\"protocol\":\"Simple\",\"inplace\":false,\"gpus\":[%s,%s]}";
	static const char rank[] =
	    "{\"id\":%d,%s,\"channels\":[{\"channel_type\":\"memory\",\"connected_to\":[%d]}],\"remote_buffers\":"
	    "[{\"rank\":%d,\"type\":\"o\",\"access_channel_types\":[\"memory\"]},"
	    "{\"rank\":%d,\"type\":\"i\",\"access_channel_types\":[\"memory\"]}],\"threadblocks\":[{\"id\":0,"
	    "\"channels\":[{\"channel_type\":\"memory\",\"channel_ids\":[0]}],\"remote_buffer_refs\":"
	    "[{\"access_channel_type\":\"memory\",\"remote_buffer_ids\":[0,1]}],\"ops\":[%s]}]}";
	static char ranks[2][8192], text[20000];
	json_t *root;

	for (int r = 0; r < 2; r++)
		snprintf(ranks[r], sizeof(ranks[r]), rank, r, chunks, !r, !r, !r, r ? ops1 : ops0);
	snprintf(text, sizeof(text), form, collective, ranks[0], ranks[1]);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	return root;
}

#define GATHER "\"input_chunks\":1,\"output_chunks\":2,\"scratch_chunks\":0"
#define PUT(to) \
	"{\"name\":\"put\",\"channel_type\":\"memory\",\"src\":\"gather.py:7\",\"src_buff\":[{\"type\":\"i\"," \
	"\"index\":0," \
	"\"size\":1}],\"dst_buff\":[{\"buffer_id\":0,\"index\":" #to ",\"size\":1}]}"
#define COPY(to) \
	"{\"name\":\"copy\",\"src_buff\":[{\"type\":\"i\",\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":\"o\"," \
	"\"index\":" #to ",\"size\":1}]}"
#define SYNC \
	",{\"name\":\"nop\"},{\"name\":\"signal\",\"channel_type\":\"memory\",\"channel_ids\":[0]}," \
	"{\"name\":\"wait\",\"channel_type\":\"memory\",\"channel_ids\":[0]}"

TEST(test_prove_needs_synchronization)
{
	expect(two_ranks("allgather", GATHER, PUT(0) "," COPY(0) SYNC, PUT(1) "," COPY(1) SYNC), 0, NULL);
	/* Without any, the other rank may end before its data is there. The line is the program's. */
	expect(two_ranks("allgather", GATHER, PUT(0) "," COPY(0), PUT(1) "," COPY(1)), -EINVAL,
	    "operation 0 (put, gather.py:7): writes rank 0's output[1], and rank 0 may end before");
	/* A signal without a nop before it covers one thread's data only. */
	json_t *root = two_ranks("allgather", GATHER, PUT(0) "," COPY(0) SYNC, PUT(1) "," COPY(1) SYNC);

	edit_set(root, "gpus/1/threadblocks/0/ops/2", NULL);
	expect(root, -EINVAL, "rank 1, block 0, operation 0 (put, gather.py:7): writes rank 0's output[1]");
}

/* The same with relaxed signals and waits: they order data, too (docs/plans.md, src/plan/compile/program_ops.c). */
TEST(test_prove_counts_on_relaxed_signals)
{
	static const char *const relaxed[] = { "\"rlxsignal\"", "\"rlxwait\"" };

	for (unsigned which = 1; which < 16; which++) {
		json_t *root = two_ranks("allgather", GATHER, PUT(0) "," COPY(0) SYNC, PUT(1) "," COPY(1) SYNC);

		for (unsigned i = 0; i < 4; i++) {
			char path[64];

			if (!(which >> i & 1))
				continue;
			snprintf(path, sizeof(path), "gpus/%u/threadblocks/0/ops/%u/name", i / 2, 3 + i % 2);
			edit_text(root, path, relaxed[i % 2]);
		}
		expect(root, 0, NULL);
	}
}

TEST(test_prove_looks_at_values)
{
	/* Both write to the same place. */
	expect(two_ranks("allgather", GATHER, PUT(0) "," COPY(0) SYNC, PUT(0) "," COPY(1) SYNC), -EINVAL,
	    "rank 0's output[0]");
	/* A part that nobody writes. */
	expect(two_ranks("allgather", GATHER, PUT(0) SYNC, PUT(1) SYNC), -EINVAL,
	    "the result is wrong: rank 0's output[0] holds nothing that an input gives, expected rank 0's input[0]");
}

/* An all-reduce of two chunks that reads the peer's input, and reduces `n` of them. */
static json_t *read_reduce(int n, const char *redop)
{
	static char ops[2048];

	snprintf(ops, sizeof(ops),
	    "{\"name\":\"rre\",\"channel_type\":\"memory\",\"reduce_op\":\"%s\",\"src_buff\":[{\"type\":\"i\","
	    "\"index\":0,"
	    "\"size\":%d},{\"buffer_id\":1,\"index\":0,\"size\":%d}],\"dst_buff\":[{\"type\":\"o\",\"index\":0,"
	    "\"size\":%d}]}",
	    redop, n, n, n);
	return two_ranks("allreduce", "\"input_chunks\":2,\"output_chunks\":2,\"scratch_chunks\":0", ops, ops);
}

#define PORT_OP(name, id) "{\"name\":\"" name "\",\"channel_type\":\"port\",\"channel_ids\":[" #id "]}"
#define SEMAPHORE(name) "{\"name\":\"sem_" name "\",\"semaphore_ids\":[0]}"
#define NOP "{\"name\":\"nop\"}"
#define PORT_PUT \
	"{\"name\":\"put\",\"channel_type\":\"port\",\"channel_ids\":[0],\"src_buff\":[{\"type\":\"i\",\"index\":0," \
	"\"size\":" \
	"1}],\"dst_buff\":[{\"buffer_id\":0,\"index\":0,\"size\":1}]}"
#define READ_PUT \
	"{\"name\":\"copy\",\"src_buff\":[{\"type\":\"o\",\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":\"o\"," \
	"\"index\":" \
	"1,\"size\":1}]}"

enum { WRONG = -1 }; /* as well as enum shunt_plan_status */

/*
 * Three ranks that ports join: rank 0 puts for rank 2, which reads it. Ports of rank 0 lead to ranks 2, 1, 2; of rank 1
 * to 0, 2; of rank 2 to 0, 1, 0. ops: of rank 0's two blocks, of rank 1, of rank 2. island: memory joins ranks 0 and 2.
 */
static void expect_put(bool island, const char *const ops[4], int wanted, const char *part)
{
	static const char *const ports[] = { "2,1,2", "0,2", "0,1,0" }, *const numbers[] = { "0,1,2", "0,1", "0,1,2" };
	char text[8192], reason[1024];
	size_t n = 0;
	struct shunt_plan *plan;
	int got;

	n += (size_t)snprintf(text, sizeof(text),
	    "{\"name\":\"three\",\"collective\":\"custom\",\"protocol\":\"Simple\",\"inplace\":false,\"gpus\":[");
	for (int r = 0; r < 3; r++) {
		n += (size_t)snprintf(text + n, sizeof(text) - n,
		    "%s{\"id\":%d,\"input_chunks\":1,\"output_chunks\":2,\"scratch_chunks\":0,\"channels\":[{\"channel_"
		    "type\":"
		    "\"port\",\"connected_to\":[%s]}],\"semaphores\":[{\"init_value\":0}],\"remote_buffers\":[{"
		    "\"rank\":%d,"
		    "\"type\":\"o\",\"access_channel_types\":[\"port\"%s]}],\"threadblocks\":[",
		    r ? "," : "", r, ports[r], r ? 0 : 2, island && !r ? ",\"memory\"" : "");
		for (int b = 0; b < 2 - (r > 0); b++)
			n += (size_t)snprintf(text + n, sizeof(text) - n,
			    "%s{\"id\":%d,\"channels\":[{\"channel_type\":\"port\",\"channel_ids\":[%s]}],"
			    "\"remote_buffer_refs\":[{\"access_channel_type\":\"port\",\"remote_buffer_ids\":[0]}],"
			    "\"ops\":[%s]}",
			    b ? "," : "", b, numbers[r], ops[r ? r + 1 : b]);
		n += (size_t)snprintf(text + n, sizeof(text) - n, "]}");
	}
	snprintf(text + n, sizeof(text) - n, "]}");
	if (shunt_plan_load_buffer("plan", text, strlen(text), &plan, reason, sizeof(reason)))
		fail_msg("%s", reason);
	got = shunt_plan_prove(plan, reason, sizeof(reason)) ? WRONG : (int)plan->status;
	if (got != wanted || (part && !strstr(*reason ? reason : plan->doubt ? plan->doubt : "", part)))
		fail_msg("%d, \"%s\", \"%s\", expected \"%s\"", got, reason, plan->doubt ? plan->doubt : "",
		    part ? part : "");
	shunt_plan_unref(plan);
}

TEST(test_prove_what_a_port_puts_is_there_for_who_hears_of_it_on_a_port)
{
	/* A signal behind it; of another block, too, on another channel to the same rank. */
	expect_put(false,
	    (const char *[]){ PORT_PUT "," PORT_OP("signal", 0), "", "", PORT_OP("wait", 0) "," NOP "," READ_PUT },
	    SHUNT_PLAN_PROVED, NULL);
	expect_put(false,
	    (const char *[]){ PORT_PUT "," NOP "," SEMAPHORE("release"),
	        SEMAPHORE("acquire") "," NOP "," PORT_OP("signal", 2), "", PORT_OP("wait", 2) "," NOP "," READ_PUT },
	    SHUNT_PLAN_PROVED, NULL);
	/* By way of rank 1: its connection may be faster. Not on one host, where the put is a store. */
	const char *around[] = { PORT_PUT "," PORT_OP("signal", 1), "", PORT_OP("wait", 0) "," PORT_OP("signal", 1),
		PORT_OP("wait", 1) "," NOP "," READ_PUT };
	expect_put(true, around, SHUNT_PLAN_PROVED, NULL);
	expect_put(false, around, SHUNT_PLAN_UNDECIDED,
	    "rank 2, block 0, operation 2 (copy): a race: reads rank 2's output[0], which rank 0, block 0, operation 0 "
	    "(put) "
	    "writes; expected a signal behind the put, on a port from its rank to the same peer");
	/* A signal before it, and none: wrong on one host as well. */
	expect_put(false,
	    (const char *[]){ PORT_OP("signal", 0) "," PORT_PUT "," PORT_OP("signal", 1), "",
	        PORT_OP("wait", 0) "," PORT_OP("signal", 1),
	        PORT_OP("wait", 0) "," PORT_OP("wait", 1) "," NOP "," READ_PUT },
	    SHUNT_PLAN_UNDECIDED, "expected a signal behind the put");
	expect_put(false, (const char *[]){ PORT_PUT, "", "", READ_PUT }, WRONG, "expected a nop, barrier");
}

TEST(test_prove_a_sum_of_half_the_message_is_wrong)
{
	expect(read_reduce(2, "sum"), 0, NULL);
	expect(read_reduce(2, "max"), 0, NULL);
	expect(read_reduce(1, "sum"), -EINVAL,
	    "the result is wrong: rank 0's output[1] holds nothing that an input gives, expected a reduction of rank "
	    "0's "
	    "input[1], rank 1's input[1]");
}

/*
 * Blocks 0 and 1 share a put of two chunks, each a half; the other side reads chunk 0, all of it, when block 0 has
 * signalled: half of a chunk may be missing if parts do not end where chunks do.
 */
TEST(test_prove_parts_of_a_group_need_all_blocks)
{
	json_t *root = edit_open("allgather_put_2");
	static const char *const paths[] = { "gpus/0/threadblocks/0/ops", "gpus/1/threadblocks/0/ops" };

	/* The barrier of the blocks that share the put is all that makes one signal cover both. */
	expect(edit_open("allgather_put_2"), 0, NULL);
	for (int r = 0; r < 2; r++)
		for (int b = 0; b < 2; b++) {
			char path[64];
			json_t *ops;

			snprintf(path, sizeof(path), "gpus/%d/threadblocks/%d/ops", r, b);
			ops = edit_at(root, path);
			for (size_t i = json_array_size(ops); i-- > 0;)
				if (!strcmp(
				        json_string_value(json_object_get(json_array_get(ops, i), "name")), "barrier"))
					json_array_remove(ops, i);
			/* Block 1 signals no more, nor is waited for. */
			for (size_t i = json_array_size(ops); b && i-- > 4;)
				json_array_remove(ops, i);
		}
	assert_non_null(edit_at(root, paths[0]));
	expect(root, -EINVAL, "rank");
}

/*
 * A twin of MSCCL++'s program reduce_tbg: two blocks share a copy of two chunks to scratch, so that block b writes
 * chunk b; the peer's blocks share the reduction of each chunk, and each of them awaits the block of its own number
 * only.
 */
static json_t *reduce_of_a_group(const char *behind_the_copy)
{
	static const char block[] =
	    "{\"id\":%d,\"channels\":[{\"channel_type\":\"memory\",\"channel_ids\":[%d]}],\"remote_buffer_refs\":"
	    "[{\"access_channel_type\":\"memory\",\"remote_buffer_ids\":[0]}],\"ops\":["
	    "{\"name\":\"copy\",\"src_buff\":[{\"type\":\"i\",\"index\":0,\"size\":2}],\"dst_buff\":[{\"type\":\"s\","
	    "\"index\":0,\"size\":2}],\"tbg_info\":{\"tb_id\":%d,\"tbg_size\":2}},%s"
	    "{\"name\":\"signal\",\"channel_type\":\"memory\",\"channel_ids\":[0]},"
	    "{\"name\":\"wait\",\"channel_type\":\"memory\",\"channel_ids\":[0]},{\"name\":\"nop\"},"
	    "%s,%s,{\"name\":\"nop\"},"
	    "{\"name\":\"signal\",\"channel_type\":\"memory\",\"channel_ids\":[0]},"
	    "{\"name\":\"wait\",\"channel_type\":\"memory\",\"channel_ids\":[0]}]}";
	static const char rank[] =
	    "{\"id\":%d,\"input_chunks\":2,\"output_chunks\":2,\"scratch_chunks\":2,\"channels\":[{\"channel_type\":"
	    "\"memory\",\"connected_to\":[%d,%d]}],\"remote_buffers\":[{\"rank\":%d,\"type\":\"s\","
	    "\"access_channel_types\":[\"memory\"]}],\"threadblocks\":[%s,%s]}";
	static const char reduction[] = "{\"name\":\"rre\",\"channel_type\":\"memory\",\"reduce_op\":\"sum\",\"src_"
	                                "buff\":[{\"type\":\"i\",\"index\":%d,"
	                                "\"size\":1},{\"buffer_id\":0,\"index\":%d,\"size\":1}],\"dst_buff\":[{"
	                                "\"type\":\"o\",\"index\":%d,\"size\":1}],"
	                                "\"tbg_info\":{\"tb_id\":%d,\"tbg_size\":2}}";
	static char reductions[2][512], blocks[2][2048], ranks[2][8192], text[20000];
	json_t *root;

	for (int b = 0; b < 2; b++) {
		for (int c = 0; c < 2; c++)
			snprintf(reductions[c], sizeof(reductions[c]), reduction, c, c, c, b);
		snprintf(blocks[b], sizeof(blocks[b]), block, b, b, b, behind_the_copy, reductions[0], reductions[1]);
	}
	for (int r = 0; r < 2; r++)
		snprintf(ranks[r], sizeof(ranks[r]), rank, r, !r, !r, !r, blocks[0], blocks[1]);
	snprintf(text, sizeof(text),
	    "{\"name\":\"group\",\"collective\":\"allreduce\",\"protocol\":\"Simple\",\"inplace\":false,\"gpus\":[%s,%"
	    "s]}",
	    ranks[0], ranks[1]);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	return root;
}

TEST(test_prove_who_reads_a_chunk_awaits_all_blocks_that_wrote_it)
{
	expect(reduce_of_a_group("{\"name\":\"nop\"},"), -EINVAL,
	    "(rre): a race: reads rank 0's scratch[1], which rank 0, block 1, operation 0 (copy) writes");
	/* With a barrier of the two blocks either signal tells of both. */
	expect(reduce_of_a_group("{\"name\":\"nop\"},{\"name\":\"barrier\",\"barrier_id\":0,\"num_threadblocks\":2},"),
	    0, NULL);
}

/* Nobody reads what a rank copies to its scratch: right, and said. */
TEST(test_prove_names_what_nobody_reads)
{
	static const char extra[] = ",{\"name\":\"copy\",\"src\":\"extra.py:3\",\"src_buff\":[{\"type\":\"i\","
	                            "\"index\":0,\"size\":1}],\"dst_buff\":"
	                            "[{\"type\":\"s\",\"index\":0,\"size\":1}]}";
	char ops[2][4096], reason[1024], *text;
	struct shunt_plan *plan;
	json_t *root;

	snprintf(ops[0], sizeof(ops[0]), "%s", PUT(0) "," COPY(0) SYNC);
	snprintf(ops[1], sizeof(ops[1]), "%s%s", PUT(1) "," COPY(1) SYNC, extra);
	root = two_ranks("allgather", "\"input_chunks\":1,\"output_chunks\":2,\"scratch_chunks\":1", ops[0], ops[1]);
	text = json_dumps(root, JSON_COMPACT);
	assert_int_equal(shunt_plan_load_buffer("plan", text, strlen(text), &plan, reason, sizeof(reason)), 0);
	assert_int_equal(shunt_plan_prove(plan, reason, sizeof(reason)), 0);
	assert_int_equal(plan->status, SHUNT_PLAN_PROVED);
	assert_non_null(plan->unread);
	assert_string_equal(plan->unread,
	    "plan: rank 1, block 0, operation 5 (copy, extra.py:3): writes rank 1's scratch[0], which no operation "
	    "reads");
	shunt_plan_unref(plan);
	free(text);
	json_decref(root);
}

/* Packets in one half of scratch that the next launch may write over: the writer must know that they were read. */
TEST(test_prove_launches_follow_each_other)
{
	json_t *root = edit_open("allreduce_oneshot_2");

	edit_text(root, "use_double_scratch_buffer", "false");
	expect(root, -EINVAL,
	    "a race of two launches: writes rank 0's packets[0], which rank 0, block 0, operation 1 (repkt)");
}

static const char *name_of(const json_t *op)
{
	return json_string_value(json_object_get(op, "name"));
}

/* Removes each operation of each right plan in turn. What is still called right is counted by the operation. */
TEST(test_prove_each_operation_is_needed)
{
	static const char *const plans[] = { "allgather_put_2", "allreduce_twoshot_2", "allreduce_oneshot_2",
		"allreduce_switch_2" };
	unsigned mutants = 0, right = 0;

	for (size_t k = 0; k < sizeof(plans) / sizeof(plans[0]); k++)
		for (int r = 0; r < 3; r++)
			for (int b = 0; b < 2; b++)
				for (size_t i = 0;; i++) {
					json_t *root = edit_open(plans[k]), *ops;
					char path[64], reason[1024], name[32], *text;
					enum shunt_plan_status status;
					int err;

					snprintf(path, sizeof(path), "gpus/%d/threadblocks/%d/ops", r, b);
					ops = edit_at(root, path);
					if (!ops || i >= json_array_size(ops)) {
						json_decref(root);
						break;
					}
					snprintf(name, sizeof(name), "%s", name_of(json_array_get(ops, i)));
					json_array_remove(ops, i);
					text = json_dumps(root, 0);
					err = prove(text, &status, reason);
					mutants++;
					/* Only what synchronizes threads may be more than is needed. */
					if (!err && strcmp(name, "nop") && strcmp(name, "barrier") &&
					    strcmp(name, "flush"))
						fail_msg(
						    "%s without %s %zu (%s) is called right", plans[k], path, i, name);
					right += !err;
					free(text);
					json_decref(root);
				}
	print_message("%u plans without one operation, %u of them right\n", mutants, right);
	assert_true(mutants > 30 && right < mutants / 3);
}

/* SPDX-License-Identifier: MIT */
/* Description: what the checker says of plans that are well formed and wrong. */
#include "plan/verify/simulate.h"
#include "tests/plan/edit.h"
#include "tests/plan/model.h"

static char reason[1200];

static void assert_says(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* A change to a plan of the corpus, and what the refusal says of it; says NULL: it is right all the same. */
struct change {
	const char *plan;
	struct {
		const char *path, *value; /* JSON; "" removes */
	} edits[5];
	const char *says;
};

#define OP0 "gpus/0/threadblocks/0/ops/"
#define OP1(rank) "gpus/" #rank "/threadblocks/0/ops/1"

static const struct change changes[] = {
	/* Indices and ranges */
	{ "allreduce_oneshot_2", { { OP0 "0/src_buff/0/index", "1" } },
	    "plan: rank 0, block 0, operation 0 (ppkt): src_buff[0].index 1 and size 1 reach chunk 1, expected at most "
	    "0: the input of "
	    "rank 0 has 1" },
	{ "allreduce_oneshot_2", { { OP0 "0/dst_buff/0/index", "1" } },
	    "dst_buff[0].index 1 and size 1 reach chunk 1, expected at most 0: the scratch of rank 1" },
	{ "allreduce_oneshot_2", { { "gpus/1/scratch_chunks", "0" } },
	    "expected at most -1: the scratch of rank 1 has 0 chunks" },
	{ "allreduce_oneshot_2", { { OP0 "0/src_buff/0/size", "0" } },
	    "operation 0 (ppkt): src_buff[0].size is 0, expected 1 to" },
	{ "allreduce_oneshot_2", { { OP0 "0/src_buff/0/index", "1099511627777" } },
	    "src_buff[0].index is 1099511627777, expected 0 to 1099511627776" },
	{ "allreduce_oneshot_2", { { OP0 "0/dst_buff/0/buffer_id", "1" } },
	    "operation 0 (ppkt): dst_buff[0].buffer_id is 1, expected 0" },
	{ "allreduce_oneshot_2", { { "gpus/0/threadblocks/0/remote_buffer_refs", "[]" } },
	    "dst_buff[0].buffer_id: the block has no remote_buffer_refs list" },
	{ "allreduce_oneshot_2", { { "gpus/0/threadblocks/0/remote_buffer_refs/0/remote_buffer_ids/0", "1" } },
	    "rank 0, block 0: remote_buffer_refs[0].remote_buffer_ids[0] is 1, expected 0" },
	{ "allreduce_oneshot_2", { { "gpus/0/threadblocks/0/channels/0/channel_ids/0", "3" } },
	    "rank 0, block 0: channels[0].channel_ids[0] is 3, expected 0" },
	{ "allreduce_oneshot_2", { { "gpus/0/channels/0/connected_to/0", "2" } },
	    "rank 0: channels[0].connected_to[0] is 2, expected 0 to 1" },
	{ "allreduce_oneshot_2", { { "gpus/0/remote_buffers/0/rank", "2" } },
	    "rank 0: remote_buffers[0].rank is 2, expected 0 to 1" },
	{ "allreduce_oneshot_2", { { "gpus/0/remote_buffers/0/access_channel_types", "[\"port\"]" } },
	    "access_channel_types lack \"memory\"" },
	{ "allreduce_oneshot_2", { { "gpus/0/remote_buffers/0/access_channel_types/0", "\"switch\"" } },
	    "remote_buffers[0].access_channel_types[0] is \"switch\", expected \"memory\" or \"port\"" },
	{ "allreduce_oneshot_2", { { "gpus/1/id", "0" } }, "rank 1: id is 0, expected 1" },
	{ "allreduce_oneshot_2", { { "gpus/1/threadblocks/0/id", "1" } }, "rank 1, block 0: id is 1, expected 0" },
	{ "allreduce_oneshot_2", { { "gpus", "[]" } }, "gpus has 0 entries, expected 1 to" },
	{ "allreduce_oneshot_2", { { "buffer_alignment", "24" } },
	    "buffer_alignment is 24, expected a multiple of 16" },
	{ "allreduce_oneshot_2", { { "buffer_alignment", "8" } }, "buffer_alignment is 8, expected 16 to" },
	{ "allreduce_oneshot_2", { { "num_threads_per_block", "1025" } },
	    "num_threads_per_block is 1025, expected 1 to 1024" },
	{ "allreduce_oneshot_2", { { "min_message_size", "9" }, { "max_message_size", "8" } },
	    "max_message_size is 8, expected at least min_message_size, 9" },
	{ "custom_reductions_2", { { "dtypes/0", "\"half\"" } }, "dtypes[0] is \"half\", expected the name of a type" },
	{ "custom_reductions_2", { { "dtypes", "[]" } }, "dtypes is empty" },
	{ "custom_reductions_2", { { "tags/auto", "2" } }, "tags.auto is 2, expected 0 to 1" },
	{ "custom_reductions_2", { { "tags/priority", "2147483648" } },
	    "tags.priority is 2147483648, expected -2147483648 to 2147483647" },
	{ "sendrecv_pipeline_2", { { "gpus/0/semaphores/0/init_value", "-1" } },
	    "rank 0: semaphores[0].init_value is -1, expected 0 to 2147483647" },
	{ "sendrecv_pipeline_2", { { OP0 "2/ops/4/semaphore_ids/0", "2" } },
	    "operation 2.4 (sem_release): semaphore_ids[0] is 2, expected 0 to 1" },

	/* Shapes of operations */
	{ "allreduce_oneshot_2", { { OP0 "0/name", "\"putt\"" } },
	    "operation 0: name is \"putt\", expected one of nop, barrier," },
	{ "allreduce_oneshot_2", { { OP0 "0/channel_type", "\"switch\"" } },
	    "operation 0 (ppkt): channel_type is \"switch\", expected \"memory\" or \"port\"" },
	{ "allreduce_oneshot_2", { { OP0 "0/dst_buff", "[]" } },
	    "operation 0 (ppkt): dst_buff has 0 entries, expected 1 or more" },
	{ "allreduce_oneshot_2", { { OP0 "0/src_buff/1", "{\"type\":\"i\",\"index\":0,\"size\":1}" } },
	    "operation 0 (ppkt): dst_buff has 1 entries, expected 2 as src_buff has" },
	{ "allreduce_oneshot_2", { { OP0 "1/src_buff/1", "" } },
	    "operation 1 (repkt): src_buff has 1 entries, expected 2 or more" },
	{ "allreduce_oneshot_2", { { OP0 "1/dst_buff/1", "{\"type\":\"i\",\"index\":0,\"size\":1}" } },
	    "dst_buff has 2 entries, expected 1" },
	{ "allreduce_oneshot_2", { { OP0 "1/reduce_op", "\"mul\"" } },
	    "reduce_op is \"mul\", expected one of sum, prod, max, min, avg" },
	{ "allreduce_oneshot_2", { { OP0 "1/src_buff/1/type", "\"o\"" } },
	    "operation 1 (repkt): src_buff[1] is in output, expected scratch: it holds packets" },
	{ "allreduce_oneshot_2", { { "protocol", "\"Simple\"" } },
	    "operation 0 (ppkt): dst_buff[0] holds packets, expected none unless protocol is \"LL\"" },
	{ "allreduce_twoshot_2", { { "gpus/0/remote_buffers/0/type", "\"i\"" } },
	    "dst_buff[0] is in input, expected scratch: it holds packets" },
	{ "allgather_put_2", { { "reuse_resources", "true" } },
	    "operation 3 (put): dst_buff[0] is a peer's output, expected scratch: reuse_resources is true" },
	{ "allgather_put_2", { { OP0 "3/dst_buff/0/index", "0" }, { OP0 "3/dst_buff/0/size", "2" } },
	    "dst_buff[0].size is 2, expected 1 as the operation's first has" },
	{ "allgather_put_2", { { OP0 "3/tbg_info/tb_id", "2" } },
	    "operation 3 (put): tbg_info.tb_id is 2, expected 0 to 1" },
	{ "allgather_put_2", { { OP0 "3/tbg_info/tbg_size", "0" } }, "tbg_info.tbg_size is 0, expected 1 to" },
	{ "allgather_put_2", { { OP0 "3/tbg_info/tbg_size", "4294967294" }, { OP0 "3/tbg_info/tb_id", "2147483648" } },
	    "tbg_info.tbg_size is 4294967294, expected 1 to 65536" },
	{ "allgather_put_2", { { OP0 "4/tbg_info", "{\"tb_id\":0,\"tbg_size\":1}" } },
	    "operation 4 (nop): tbg_info is there, expected none" },
	{ "alltoall_port_3", { { OP0 "4/channel_ids", "[1]" } },
	    "operation 4 (pws): channel_ids[0] leads to rank 2, expected rank 1 whose buffer dst_buff[0] is" },
	{ "alltoall_port_3", { { OP0 "4/channel_ids", "[0,0]" } },
	    "operation 4 (pws): channel_ids has 2 entries, expected 1 as dst_buff has" },
	{ "alltoall_port_3", { { OP0 "4/channel_ids", "[]" } }, "channel_ids is empty, expected at least one number" },
	{ "alltoall_port_3", { { OP0 "6/channel_type", "\"memory\"" } },
	    "operation 6 (flush): channel_type is \"memory\", expected \"port\"" },
	{ "alltoall_port_3", { { OP0 "1/channel_type", "\"memory\"" } },
	    "operation 1 (signal): channel_ids[0]: the block has no memory channel" },
	{ "sendrecv_pipeline_2", { { OP0 "2/iter_context/unit_size", "100" } },
	    "operation 2 (pipeline): iter_context.unit_size is 100, expected a multiple of buffer_alignment, 16" },
	{ "sendrecv_pipeline_2", { { OP0 "2/iter_context/num_chunks", "1099511627776" } },
	    "operation 2 (pipeline): iter_context.num_chunks is 1099511627776, expected 1 to 65536" },
	{ "sendrecv_pipeline_2", { { OP0 "2/ops", "[]" } }, "operation 2 (pipeline): ops is empty" },
	{ "sendrecv_pipeline_2", { { OP0 "2/ops/1/name", "\"pipeline\"" } },
	    "operation 2.1 (pipeline): name is \"pipeline\", expected none within a pipeline" },
	{ "sendrecv_pipeline_2", { { "min_message_size", "1152921504606846976" } },
	    "plan: the smallest message takes more than" },

	/* Input, output and the collective */
	{ "allreduce_oneshot_2", { { "gpus/1/input_chunks", "2" } },
	    "rank 1: input_chunks is 2, expected 1 as on rank 0" },
	{ "allreduce_oneshot_2", { { "gpus/0/output_chunks", "2" }, { "gpus/1/output_chunks", "2" } },
	    "output_chunks is 2, expected 1 (allreduce with input_chunks 1)" },
	{ "allgather_put_2", { { "gpus/0/output_chunks", "3" }, { "gpus/1/output_chunks", "3" } },
	    "output_chunks is 3, expected a multiple of the 2 ranks (allgather)" },
	{ "allgather_put_2", { { "gpus/0/output_chunks", "4" }, { "gpus/1/output_chunks", "4" } },
	    "output_chunks is 4, expected 2 (allgather with input_chunks 1)" },
	{ "allgather_put_2", { { "gpus/0/input_chunks", "0" }, { "gpus/1/input_chunks", "0" } }, NULL },
	{ "sendrecv_pipeline_2", { { "collective", "\"alltoall\"" } }, NULL },
	{ "allreduce_oneshot_2",
	    { { "gpus/0/input_chunks", "0" }, { "gpus/1/input_chunks", "0" }, { "gpus/0/output_chunks", "0" },
	        { "gpus/1/output_chunks", "0" } },
	    "input_chunks and output_chunks are 0, expected one that says how large a chunk is" },

	/* Channels: both ends */
	{ "allgather_put_2",
	    { { "gpus/1/channels/0/connected_to", "[0]" }, { "gpus/1/threadblocks/1/channels/0/channel_ids/0", "0" } },
	    "rank 0, block 1, operation 0 (rlxsignal): channel_ids[0] is memory channel 1 of the rank, expected one to "
	    "which rank 1 "
	    "has an other end" },
	{ "allgather_put_2", { { "gpus/0/channels/0/connected_to/2", "1" } }, NULL }, /* a channel that nobody uses */
	{ "allreduce_oneshot_2", { { "gpus/1/channels", "[]" }, { "gpus/1/threadblocks/0/channels", "[]" } },
	    NULL }, /* data goes one way */
	{ "alltoall_port_3", { { OP0 "10/channel_ids", "[0,0]" } },
	    "rank 2, block 0, operation 11 (wait): waits for signal 3 on its port channel 0, from channel 1 of rank "
	    "0" },
	{ "alltoall_port_3", { { OP0 "10/channel_ids", "[0,1,1]" } },
	    "rank 2: port channel 0: rank 0 signals 4 times on its channel 1, expected 3, as often as waits are made "
	    "here" },
	{ "allreduce_switch_2", { { OP0 "5", "" } },
	    "rank 1, block 0, operation 6 (wait): waits for signal 2 on its memory channel 0, from channel 0 of rank "
	    "0, expected" },
	{ "allreduce_switch_2", { { OP0 "6", "" } },
	    "rank 0: memory channel 0: rank 1 signals 2 times on its channel 0, expected 1" },

	/* Switch channels */
	{ "allreduce_switch_2", { { "gpus/1/channels/1/buffer_type", "\"o\"" } },
	    "rank 1: channels lacks the switch channel of the 2 ranks that rank 0 lists as its 0" },
	{ "allreduce_switch_2", { { "gpus/0/channels/1/rank_groups/0/ranks", "[1,0]" } },
	    "channels lacks the switch channel" },
	{ "allreduce_switch_2", { { "gpus/0/channels/1/rank_groups/0/ranks", "[0,0]" } },
	    "rank 0: switch channel 0: ranks names rank 0 twice" },
	{ "allreduce_switch_2",
	    { { "gpus/0/channels/1/rank_groups/0/ranks", "[1]" }, { "gpus/0/channels/1/rank_groups/0/size", "1" } },
	    "rank 0: switch channel 0: ranks lacks rank 0 itself" },
	{ "allreduce_switch_2", { { "gpus/0/channels/1/rank_groups/0/size", "3" } },
	    "channels[1].rank_groups[0].size is 3, expected 2" },
	{ "allreduce_switch_2", { { "gpus/0/channels/1/rank_groups/0/ranks/1", "7" } },
	    "channels[1].rank_groups[0].ranks[1] is 7, expected 0 to 1" },
	{ "allreduce_switch_2", { { "gpus/0/channels/1/rank_groups/1", "{\"size\":2,\"ranks\":[0,1]}" } },
	    "does not list switch channel" },
	{ "allreduce_switch_2", { { OP0 "3/src_buff/0/switch_channel_id", "1" } },
	    "operation 3 (glres): src_buff[0].switch_channel_id is 1, expected 0" },
	{ "allreduce_switch_2", { { OP0 "3/src_buff/0/index", "2" } },
	    "src_buff[0].index 2 and size 1 reach chunk 2, expected at most 1: the input of rank 0" },
	{ "switch_all_2", { { "gpus/1/scratch_chunks", "3" } }, "operation 6 (gstorepkt): dst_buff[0].index 3" },
	{ "switch_all_2", { { OP0 "2/buffer_type", "\"o\"" } },
	    "operation 2 (glre): buffer_type is \"o\", expected \"i\" as the switch channel has" },
	{ "switch_all_2", { { OP0 "2/channel_ids", "[0,1]" } },
	    "operation 2 (glre): channel_ids has 2 entries, expected 1" },
	{ "switch_all_2", { { OP0 "2/dst_chunk/rank", "1" } }, "operation 2 (glre): dst_chunk.rank is 1, expected 0" },
	{ "switch_all_2", { { OP0 "2/dst_chunk/size", "2" }, { OP0 "2/dst_chunk/index", "0" } },
	    "operation 2 (glre): dst_chunk.size is 2, expected 1 as" },
	{ "switch_all_2", { { OP0 "2/buffer_offset", "2" } }, "operation 2 (glre): buffer_offset.index 2" },

	/* Barriers */
	{ "allgather_put_2", { { OP0 "5/num_threadblocks", "1" } },
	    "operation 5 (barrier): num_threadblocks is 2, expected 1 as in block 0" },
	{ "allgather_put_2", { { OP0 "5/num_threadblocks", "3" } }, "num_threadblocks is 3, expected 1 to 2" },
	{ "allgather_put_2", { { OP0 "5/barrier_id", "8" } },
	    "operation 5 (barrier): num_threadblocks is 2, expected 1, the number of blocks that use barrier_id" },
	{ "allgather_put_2", { { OP0 "8", "{\"name\":\"barrier\",\"barrier_id\":7,\"num_threadblocks\":2}" } },
	    "rank 0, block 0, operation 8 (barrier): waits for 2 blocks at a barrier where 1 are, expected a block "
	    "that gives it: none "
	    "does" },

	/* Packets */
	{ "allreduce_oneshot_2", { { "gpus/1/threadblocks/0/ops/0", "" } },
	    "rank 0, block 0, operation 1 (repkt): waits for packets in its scratch, chunk 0, expected a block that "
	    "gives it: none "
	    "does" },
	{ "reducescatter_packets_3", { { OP0 "5/src_buff/0/index", "4" } }, NULL },
	{ "reducescatter_packets_3", { { OP0 "4/dst_buff/0/index", "5" } },
	    "rank 1, block 0, operation 5 (upkt): waits for packets in its scratch, chunk 6" },
	{ "allgather_port_packets_2", { { OP0 "0/dst_buff/0/index", "2" } },
	    "operation 2 (ppkt): waits for packets in its scratch, chunk 0" },
	{ "allreduce_oneshot_2", { { OP0 "0/tbg_info", "{\"tb_id\":0,\"tbg_size\":2}" } },
	    "rank 1, block 0, operation 1 (repkt): waits for packets" },

	/* Peers that do not take part */
	{ "allreduce_oneshot_2", { { "gpus/1/threadblocks", "[]" } },
	    "operation 0 (ppkt): dst_buff[0] reaches rank 1, expected a rank that has a thread block" },

	/* Semaphores */
	{ "sendrecv_pipeline_2", { { "gpus/0/threadblocks/1/ops/0/ops/0/semaphore_ids", "[1]" } },
	    "rank 0: semaphores[0] ends as 1, expected 0, its init_value" },
	{ "sendrecv_pipeline_2", { { "gpus/0/semaphores/0/init_value", "1" } }, NULL },
	{ "sendrecv_pipeline_2", { { OP0 "2/ops/4", "" } },
	    "rank 0, block 1, operation 0.0 (sem_acquire): waits for semaphore 0, expected a block that gives it: none "
	    "does" },
	{ "sendrecv_pipeline_2", { { "gpus/0/threadblocks/1/ops/0/ops/0", "" } },
	    "rank 0: semaphores[0] ends as 1, expected 0, its init_value" },
	/* The windows of the two sides differ, which shows where there are several. */
	{ "sendrecv_pipeline_2", { { "gpus/0/threadblocks/1/ops/0/iter_context/unit_size", "8192" } }, "expected" },
	/* ... or where there are many: ten windows of one are a bit less than ten chunks of the other's. */
	{ "sendrecv_pipeline_2",
	    { { OP0 "2/iter_context", "{\"unit_size\":1600,\"num_chunks\":1}" },
	        { "gpus/0/threadblocks/1/ops/0/iter_context", "{\"unit_size\":16016,\"num_chunks\":10}" },
	        { "gpus/1/threadblocks/0/ops/2/iter_context", "{\"unit_size\":1600,\"num_chunks\":1}" },
	        { "gpus/1/threadblocks/1/ops/0/iter_context", "{\"unit_size\":16016,\"num_chunks\":10}" } },
	    "expected" },
	/* A part that nobody sends is missing where there is something in it. */
	{ "allreduce_oneshot_2",
	    { { OP0 "0/tbg_info", "{\"tb_id\":0,\"tbg_size\":100}" },
	        { OP0 "1/tbg_info", "{\"tb_id\":0,\"tbg_size\":100}" },
	        { "gpus/1/threadblocks/0/ops/0/tbg_info", "{\"tb_id\":0,\"tbg_size\":100}" },
	        { "gpus/1/threadblocks/0/ops/1/tbg_info", "{\"tb_id\":80,\"tbg_size\":100}" },
	        { "use_double_scratch_buffer", "false" } },
	    "rank 1, block 0, operation 1 (repkt): waits for packets in its scratch, chunk 0, expected a block that "
	    "gives it" },
	/* The fourth eighth is in the second quarter, but not of four units. */
	{ "allreduce_oneshot_2",
	    { { OP0 "0/tbg_info", "{\"tb_id\":1,\"tbg_size\":4}" },
	        { OP0 "1/tbg_info", "{\"tb_id\":3,\"tbg_size\":8}" },
	        { "gpus/1/threadblocks/0/ops/0/tbg_info", "{\"tb_id\":1,\"tbg_size\":4}" },
	        { "gpus/1/threadblocks/0/ops/1/tbg_info", "{\"tb_id\":3,\"tbg_size\":8}" },
	        { "use_double_scratch_buffer", "false" } },
	    "operation 1 (repkt): waits for packets in its scratch, chunk 0, expected a block that gives it" },

	/* Two halves of scratch in turns */
	{ "allreduce_oneshot_2", { { "gpus/1/threadblocks/0/ops/1", "{\"name\":\"nop\"}" } },
	    "rank 1: writes packets to rank 0 and hears nothing of it, expected a signal or packets that come from "
	    "it" },
	{ "allreduce_oneshot_2",
	    { { "gpus/1/threadblocks/0/ops/1", "{\"name\":\"nop\"}" }, { "use_double_scratch_buffer", "false" } },
	    NULL },
};

TEST(test_check_invalid_plans_are_refused)
{
	unsigned bad = 0;

	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		const struct change *c = &changes[i];
		json_t *root = edit_open(c->plan);
		struct shunt_plan *plan = NULL;
		int err;

		for (int e = 0; e < 5 && c->edits[e].path; e++)
			edit_text(root, c->edits[e].path, c->edits[e].value);
		strcpy(reason, "loaded");
		err = edit_load(root, &plan, reason, sizeof(reason));
		if ((err != 0) != (c->says != NULL) || (c->says && (err != -EINVAL || !strstr(reason, c->says)))) {
			print_error("%s with %s = %s\n  gives    %s\n  expected %s\n", c->plan, c->edits[0].path,
			    c->edits[0].value, reason, c->says ? c->says : "loaded");
			bad++;
		}
		if (!err)
			assert_null(plan_model_wrong(plan));
		shunt_plan_unref(plan);
		json_decref(root);
	}
	assert_int_equal(bad, 0);
}

/* Both ranks wait before they signal. */
TEST(test_check_deadlock_cycle_is_reported_with_every_block)
{
	json_t *root = edit_open("allgather_put_2");
	struct shunt_plan *plan = NULL;
	char path[64];

	for (int r = 0; r < 2; r++) {
		snprintf(path, sizeof(path), "gpus/%d/threadblocks/0/ops/0/name", r);
		edit_text(root, path, "\"rlxwait\"");
		snprintf(path, sizeof(path), "gpus/%d/threadblocks/0/ops/1/name", r);
		edit_text(root, path, "\"rlxsignal\"");
	}
	assert_int_equal(edit_load(root, &plan, reason, sizeof(reason)), -EINVAL);
	assert_string_equal(reason,
	    "plan: rank 0, block 0, operation 0 (rlxwait): waits in a cycle, expected an order in which all "
	    "can run: for signal 1 on "
	    "its memory channel 0, from channel 0 of rank 1; rank 1, block 0 would give it in operation 1 "
	    "(rlxsignal) but waits in operation 0 (rlxwait) for "
	    "signal 1 on its memory channel 0, from channel 0 of rank 0; rank 0, block 0 would give it in "
	    "operation 1 (rlxsignal), after this");
	json_decref(root);
}

/* Every block waits for the next one's packets, all around, before it writes its own. */
TEST(test_check_deadlock_cycle_of_packets_is_found)
{
	json_t *root = edit_open("allreduce_oneshot_2");
	struct shunt_plan *plan = NULL;

	for (int r = 0; r < 2; r++) {
		json_t *ops = edit_at(root, r ? "gpus/1/threadblocks/0/ops" : "gpus/0/threadblocks/0/ops");

		json_array_append(ops, json_array_get(ops, 0));
		json_array_remove(ops, 0);
	}
	assert_int_equal(edit_load(root, &plan, reason, sizeof(reason)), -EINVAL);
	assert_says(reason, "rank 0, block 0, operation 0 (repkt): waits in a cycle");
	assert_says(reason,
	    "packets in its scratch, chunk 0; rank 1, block 0 would give it in operation 1 (ppkt) but waits in "
	    "operation 0 (repkt)");
	json_decref(root);
}

/* Two blocks of one rank hold a semaphore each and want the other's. */
TEST(test_check_deadlock_cycle_of_semaphores_is_found)
{
	json_t *root = edit_open("allgather_put_2");
	struct shunt_plan *plan = NULL;

	edit_text(root, "gpus/0/semaphores", "[{\"init_value\":0},{\"init_value\":0}]");
	edit_text(root, "gpus/0/threadblocks/0/ops",
	    "[{\"name\":\"sem_acquire\",\"semaphore_ids\":[0]},{\"name\":\"sem_release\",\"semaphore_ids\":[1]}]");
	edit_text(root, "gpus/0/threadblocks/1/ops",
	    "[{\"name\":\"sem_acquire\",\"semaphore_ids\":[1]},{\"name\":\"sem_release\",\"semaphore_ids\":[0]}]");
	edit_text(root, "gpus/1/threadblocks", "[]");
	assert_int_equal(edit_load(root, &plan, reason, sizeof(reason)), -EINVAL);
	assert_says(reason, "rank 0, block 0, operation 0 (sem_acquire): waits in a cycle");
	/* The same the right way round. */
	edit_text(root, "gpus/0/threadblocks/1/ops",
	    "[{\"name\":\"sem_release\",\"semaphore_ids\":[0]},{\"name\":\"sem_acquire\",\"semaphore_ids\":[1]}]");
	if (edit_load(root, &plan, reason, sizeof(reason)))
		fail_msg("%s", reason);
	shunt_plan_unref(plan);
	json_decref(root);
}

/* A barrier that only half of the blocks reach, because the other half waits for a signal that comes after it. */
TEST(test_check_deadlock_cycle_through_a_barrier_is_found)
{
	json_t *root = edit_open("allgather_put_2");
	struct shunt_plan *plan = NULL;
	json_t *ops = edit_at(root, "gpus/0/threadblocks/1/ops");

	/*
	 * Block 1 of rank 0 waits for the last signal before the barrier, which rank 1 sends after its own; that one
	 * waits for block 0.
	 */
	edit_text(
	    root, "gpus/0/threadblocks/1/ops/4", "{\"name\":\"wait\",\"channel_ids\":[0],\"channel_type\":\"memory\"}");
	edit_text(root, "gpus/0/threadblocks/1/ops/7", "");
	assert_int_equal(json_array_size(ops), 8);
	if (edit_load(root, &plan, reason, sizeof(reason)))
		fail_msg("%s", reason); /* rank 1 does not wait for rank 0 there */
	shunt_plan_unref(plan);
	plan = NULL;
	edit_text(
	    root, "gpus/1/threadblocks/1/ops/4", "{\"name\":\"wait\",\"channel_ids\":[0],\"channel_type\":\"memory\"}");
	edit_text(root, "gpus/1/threadblocks/1/ops/7", "");
	assert_int_equal(edit_load(root, &plan, reason, sizeof(reason)), -EINVAL);
	assert_says(reason, "waits in a cycle");
	json_decref(root);
}

/* A ring of many ranks: each waits for the one before it. */
static json_t *ring(unsigned nranks, bool open)
{
	json_t *root = json_pack(
	    "{s:s,s:s,s:s,s:b,s:[]}", "name", "ring", "collective", "test", "protocol", "Simple", "inplace", 0, "gpus");

	for (unsigned r = 0; r < nranks; r++) {
		json_t *wait = json_pack("{s:s,s:[i],s:s}", "name", "wait", "channel_ids", 1, "channel_type", "memory");
		json_t *signal =
		    json_pack("{s:s,s:[i],s:s}", "name", "signal", "channel_ids", 0, "channel_type", "memory");
		json_t *ops = json_array();
		bool first = open && r == 0;

		json_array_append_new(ops, first ? signal : wait);
		json_array_append_new(ops, first ? wait : signal);
		json_array_append_new(json_object_get(root, "gpus"),
		    json_pack("{s:i,s:i,s:i,s:i,s:[{s:s,s:[i,i]}],s:[],s:[{s:i,s:o,s:[{s:s,s:[i,i]}]}]}", "id", r,
		        "input_chunks", 1, "output_chunks", 1, "scratch_chunks", 0, "channels", "channel_type",
		        "memory", "connected_to", (r + 1) % nranks, (r + nranks - 1) % nranks, "remote_buffers",
		        "threadblocks", "id", 0, "ops", ops, "channels", "channel_type", "memory", "channel_ids", 0,
		        1));
	}
	return root;
}

TEST(test_check_deadlock_long_cycles_are_cut_in_the_text)
{
	static const unsigned sizes[] = { 3, 5, 64, 100, SHUNT_PLAN_MAX_RANKS };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct shunt_plan *plan = NULL;
		json_t *root = ring(sizes[i], true);

		if (edit_load(root, &plan, reason, sizeof(reason)))
			fail_msg("%u: %s", sizes[i], reason);
		assert_int_equal(plan->nranks, sizes[i]);
		shunt_plan_unref(plan);
		plan = NULL;
		json_decref(root);
		root = ring(sizes[i], false);
		assert_int_equal(edit_load(root, &plan, reason, sizeof(reason)), -EINVAL);
		assert_says(reason, "waits in a cycle");
		assert_true(strlen(reason) < 1000);
		json_decref(root);
	}
}

/* Steps of the simulations, which the linker leads here. */
static uint64_t steps;

int __real_shunt_simulation_launch(struct simulation *p, uint64_t units);
int __wrap_shunt_simulation_launch(struct simulation *p, uint64_t units);
int __wrap_shunt_simulation_launch(struct simulation *p, uint64_t units)
{
	uint64_t before = p->steps;
	int err = __real_shunt_simulation_launch(p, units);

	steps += before - p->steps;
	return err;
}

/* Work must follow the size of the text, not what numbers in it say. */
TEST(test_check_deadlock_work_is_limited)
{
	static const char *const values[] = { "16", "64", "4096", "9223372036854775792" };
	json_t *root = edit_open("sendrecv_pipeline_2");
	uint64_t most = 0;

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		for (uint64_t chunks = 1; chunks <= (uint64_t)1 << 16; chunks <<= 4) {
			struct shunt_plan *plan = NULL;

			for (int r = 0; r < 2; r++)
				for (int b = 0; b < 2; b++) {
					char path[96];

					snprintf(path, sizeof(path),
					    "gpus/%d/threadblocks/%d/ops/%d/iter_context/unit_size", r, b, b ? 0 : 2);
					edit_text(root, path, values[i]);
					snprintf(path, sizeof(path),
					    "gpus/%d/threadblocks/%d/ops/%d/iter_context/num_chunks", r, b, b ? 0 : 2);
					edit_set(root, path, json_integer((json_int_t)chunks));
				}
			steps = 0;
			(void)edit_load(root, &plan, reason, sizeof(reason));
			shunt_plan_unref(plan);
			most = steps > most ? steps : most;
		}
	json_decref(root);
	assert_in_range(most, 1, 30000000); /* MAX_STEPS of src/plan/verify/check_deadlock.c */
}

static bool uses_ll128(json_t *root, uint64_t dense)
{
	struct shunt_plan *plan = NULL;
	bool ll128;

	if (edit_load(root, &plan, reason, sizeof(reason)))
		fail_msg("%s", reason);
	ll128 = plan->ll128;
	if (ll128)
		assert_int_equal(plan->dense, dense);
	shunt_plan_unref(plan);
	json_decref(root);
	return ll128;
}

static json_t *changed(const char *name, const char *path, const char *value)
{
	json_t *root = edit_open(name);

	edit_text(root, path, value);
	return root;
}

/* Packets may travel in other pieces if all that read a range read the very range that was written. */
TEST(test_check_ll128_follows_from_ranges_of_packets)
{
	json_t *root;

	assert_true(uses_ll128(edit_open("allreduce_oneshot_2"), 4));
	assert_true(uses_ll128(changed("allreduce_oneshot_2", "buffer_alignment", "32"), 2));
	assert_true(uses_ll128(changed("allreduce_oneshot_2", "buffer_alignment", "64"), 1));
	/* No packets at all. */
	assert_false(uses_ll128(edit_open("allgather_put_2"), 0));
	/* Written by two blocks, a half each, and read by one; and then by as many. */
	root = edit_open("allreduce_oneshot_2");
	for (int r = 0; r < 2; r++) {
		char path[96];

		snprintf(path, sizeof(path), "gpus/%d/threadblocks/1", r);
		edit_set(
		    root, path, json_deep_copy(edit_at(root, r ? "gpus/1/threadblocks/0" : "gpus/0/threadblocks/0")));
		snprintf(path, sizeof(path), "gpus/%d/threadblocks/1/id", r);
		edit_text(root, path, "1");
		snprintf(path, sizeof(path), "gpus/%d/threadblocks/1/ops/1", r);
		edit_set(root, path, NULL);
		for (int b = 0; b < 2; b++) {
			snprintf(path, sizeof(path), "gpus/%d/threadblocks/%d/ops/0/tbg_info", r, b);
			edit_text(root, path, b ? "{\"tb_id\":1,\"tbg_size\":2}" : "{\"tb_id\":0,\"tbg_size\":2}");
		}
	}
	assert_false(uses_ll128(json_incref(root), 0));
	for (int r = 0; r < 2; r++)
		for (int b = 0; b < 2; b++) {
			char path[96];

			snprintf(path, sizeof(path), "gpus/%d/threadblocks/%d/ops/1", r, b);
			if (b)
				edit_set(root, path, json_deep_copy(edit_at(root, r ? OP1(1) : OP1(0))));
			snprintf(path, sizeof(path), "gpus/%d/threadblocks/%d/ops/1/tbg_info", r, b);
			edit_text(root, path, b ? "{\"tb_id\":1,\"tbg_size\":2}" : "{\"tb_id\":0,\"tbg_size\":2}");
		}
	assert_true(uses_ll128(root, 8));
	/* Written twice. */
	root = edit_open("allreduce_oneshot_2");
	edit_set(root, OP0 "2", json_deep_copy(edit_at(root, OP0 "0")));
	assert_false(uses_ll128(root, 0));
	/* Something else in scratch. */
	root = edit_open("allreduce_oneshot_2");
	edit_text(root, "gpus/0/scratch_chunks", "2");
	edit_text(root, OP0 "2",
	    "{\"name\":\"copy\",\"src_buff\":[{\"type\":\"i\",\"index\":0,\"size\":1}],\"dst_buff\":"
	    "[{\"type\":\"s\",\"index\":1,\"size\":1}]}");
	assert_false(uses_ll128(root, 0));
}

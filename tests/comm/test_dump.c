/* SPDX-License-Identifier: MIT */
/* The text of a dump. test_dump_output.c has where it goes. */
#include "tests/comm/recorder_fakes.h"
#include "base/dump_schema.h"
#include "comm/observe/counters.h"
#include "comm/observe/dump.h"
#include "comm/observe/marks.h"
#include "comm/observe/thread_note.h"

static int broken_copy(int device, void *dst, const void *src, size_t bytes)
{
	return -EIO;
}

/* As long as this is held, so is the driver. */
static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;

static int waiting_copy(int device, void *dst, const void *src, size_t bytes)
{
	pthread_mutex_lock(&driver);
	memcpy(dst, src, bytes);
	pthread_mutex_unlock(&driver);
	return 0;
}

static const struct shunt_gpu_ops waiting_gpu = { .device_info = fake_info, .copy = waiting_copy };
static const struct shunt_gpu_ops broken_gpu = { .device_info = fake_info, .copy = broken_copy };

TEST(test_dump_without_communicators_is_json)
{
	json_t *dump = dump_now();

	assert_int_equal(number(dump, "shunt_dump"), 3);
	assert_int_equal(number(dump, "pid"), getpid());
	assert_int_equal(json_array_size(json_object_get(dump, "communicators")), 0);
	json_decref(dump);
}

/* Device 3 is copied word by word, as from the sim; the result is the same. */
static void check_dump_with_device(int device)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	struct shunt_host_ctrl words = {
		.fault = { .set = SHUNT_FAULT_TIMEOUT, .rank = 1, .peer = 2, .channel = 4, .expected = 10, .seen = 9 },
		.waits = { [2] = { .ns = 5000 } }
	};
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1000, 0), b = collective(SHUNT_BROADCAST, 2000, 2),
	                  s = collective(SHUNT_SEND, 7, 0);
	unsigned per_peer = SHUNT_P2P_PER_PEER(3);
	json_t *dump, *comm, *ops, *op;

	shunt_recorder_set_rank(rec, 1, 3, device);
	shunt_recorder_add(rec, &c, "oneshot", 0, false);
	shunt_recorder_add(rec, &b, "ll128", 0, false);
	shunt_recorder_add_forward(rec, &s, SHUNT_REASON_SIZE);
	ctrl->progress = (struct shunt_progress){ .now = 2, .eager = 2, .begun = 4, .ended = 3 };
	ctrl->epoch[0] = 5;
	ctrl->epoch[1023] = 6;
	ctrl->ll128.sent[0] = 100;            /* to rank 0 */
	ctrl->ll128.sent[per_peer + 1] = 200; /* to rank 2: we have no place of our own */
	ctrl->ll128.head[per_peer] = 50;
	shunt_recorder_ready(rec, &fake_gpu, ctrl, &words);
	shunt_dump_error(rec, -ETIMEDOUT);
	shunt_recorder_phase(rec, "set-up");

	dump = dump_now();
	comm = json_array_get(json_object_get(dump, "communicators"), 0);
	assert_string_equal(string(comm, "id"), "abcd0100");
	assert_int_equal(strlen(string(comm, "key")), 16);
	assert_string_equal(string(comm, "state"), "ready");
	assert_string_equal(string(comm, "error"), "ETIMEDOUT");
	assert_string_equal(string(comm, "phase"), "set-up");
	assert_int_equal(number(comm, "rank"), 1);
	assert_int_equal(number(comm, "nranks"), 3);
	assert_int_equal(number(comm, "collectives"), 2);
	assert_int_equal(number(json_object_get(comm, "fault"), "peer"), 2);
	assert_int_equal(json_array_size(json_object_get(comm, "waits_ns")), 3);
	assert_int_equal(json_integer_value(json_array_get(json_object_get(comm, "waits_ns"), 2)), 5000);
	assert_true(json_is_true(json_object_get(json_object_get(comm, "progress"), "running")));
	assert_int_equal(number(json_object_get(comm, "channels"), "epochs"), 11);
	json_t *sent = json_object_get(json_object_get(comm, "channels"), "sent");
	assert_int_equal(json_array_size(sent), 3);
	assert_int_equal(json_integer_value(json_array_get(sent, 0)), 100);
	assert_int_equal(json_integer_value(json_array_get(sent, 1)), 0);
	assert_int_equal(json_integer_value(json_array_get(sent, 2)), 200);
	assert_int_equal(
	    json_integer_value(json_array_get(json_object_get(json_object_get(comm, "channels"), "taken"), 2)), 50);

	ops = json_object_get(comm, "operations");
	assert_int_equal(json_array_size(ops), 3);
	op = json_array_get(ops, 0);
	assert_string_equal(string(op, "kind"), "allreduce");
	assert_string_equal(string(op, "op"), "max");
	assert_null(json_object_get(op, "root"));
	assert_string_equal(string(op, "state"), "finished");
	op = json_array_get(ops, 1);
	assert_int_equal(number(op, "count"), 2000);
	assert_int_equal(number(op, "root"), 2);
	assert_string_equal(string(op, "dtype"), "float16");
	assert_string_equal(string(op, "stream"), "0x77");
	assert_string_equal(string(op, "state"), "running");
	assert_true(llabs(number(op, "time_ns") - number(dump, "time_ns")) < 5000000000ll);
	op = json_array_get(ops, 2);
	assert_string_equal(string(op, "path"), "nccl");
	assert_string_equal(string(op, "reason"), "NCCL is faster at this size");
	assert_null(json_object_get(json_array_get(ops, 1), "reason"));
	assert_int_equal(number(op, "peer"), 0);
	assert_string_equal(string(op, "state"), "returned");
	json_decref(dump);

	/* Its memory goes: nothing of it is read any more. */
	shunt_recorder_unready(rec);
	free(ctrl);
	dump = dump_now();
	comm = json_array_get(json_object_get(dump, "communicators"), 0);
	assert_null(json_object_get(comm, "progress"));
	assert_null(json_object_get(comm, "fault"));
	json_decref(dump);
	recorder_remove(rec);
}

TEST(test_dump_shows_device_counters)
{
	check_dump_with_device(0);
	check_dump_with_device(3);
}

TEST(test_dump_with_unreadable_device_has_host_side)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1000, 0);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	json_t *dump, *comm;

	shunt_recorder_set_rank(rec, 0, 2, 0);
	shunt_recorder_add(rec, &c, "oneshot", 0, false);
	shunt_recorder_ready(rec, &broken_gpu, ctrl, NULL);
	dump = dump_now();
	comm = json_array_get(json_object_get(dump, "communicators"), 0);
	assert_null(json_object_get(comm, "progress"));
	assert_string_equal(string(json_array_get(json_object_get(comm, "operations"), 0), "state"), "unknown");
	json_decref(dump);
	recorder_remove(rec);
	free(ctrl);
}

/*
 * A cudaFree that waits for a kernel holds the driver. What the host knows is told all the same, of all communicators,
 * and again when asked again.
 */
TEST(test_dump_beside_a_held_driver_has_host_side)
{
	struct shunt_recorder *rec[3];
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1000, 0);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	json_t *dump, *comm;

	ctrl->progress = (struct shunt_progress){ .now = 1, .eager = 1, .begun = 4, .ended = 3 };
	for (int i = 0; i < 3; i++) {
		rec[i] = recorder_add(id_a);
		shunt_recorder_set_rank(rec[i], 0, 2, 0);
		shunt_recorder_add(rec[i], &c, "oneshot", 0, false);
		shunt_recorder_ready(rec[i], &waiting_gpu, ctrl, NULL);
	}
	pthread_mutex_lock(&driver);
	for (int times = 0; times < 2; times++) {
		dump = dump_now();
		for (size_t i = 0; i < 3; i++) {
			comm = json_array_get(json_object_get(dump, "communicators"), i);
			assert_true(json_is_true(json_object_get(comm, "unresponsive")));
			assert_null(json_object_get(comm, "progress"));
			assert_string_equal(
			    string(json_array_get(json_object_get(comm, "operations"), 0), "state"), "unknown");
		}
		json_decref(dump);
	}
	pthread_mutex_unlock(&driver);
	dump = dump_now();
	comm = json_array_get(json_object_get(dump, "communicators"), 0);
	assert_null(json_object_get(comm, "unresponsive"));
	assert_string_equal(string(json_array_get(json_object_get(comm, "operations"), 0), "state"), "running");
	json_decref(dump);
	for (int i = 0; i < 3; i++)
		recorder_remove(rec[i]);
	free(ctrl);
}

TEST(test_dump_quotes_what_json_cannot_hold)
{
	struct shunt_recorder *a = recorder_add(id_a), *b = recorder_add(id_b);
	json_t *dump, *comms;

	shunt_recorder_forward(a, "a \"quote\", a \\ and\na line, \xff");
	dump = dump_now();
	comms = json_object_get(dump, "communicators");
	assert_int_equal(json_array_size(comms), 2);
	assert_string_equal(string(json_array_get(comms, 0), "reason"), "a \"quote\", a \\ and\na line, \xc3\xbf");
	assert_string_equal(string(json_array_get(comms, 0), "state"), "forward");
	/* The first bytes of the two ids are the same. */
	assert_string_not_equal(string(json_array_get(comms, 0), "key"), string(json_array_get(comms, 1), "key"));
	json_decref(dump);
	recorder_remove(a);
	recorder_remove(b);
}

/* Communicators come and go while others look. */
static void *come_and_go(void *arg)
{
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1, 0);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));

	for (int i = 0; i < 100; i++) {
		struct shunt_recorder *rec = recorder_add(id_a);

		shunt_recorder_set_rank(rec, 0, 2, 0);
		shunt_recorder_ready(rec, &fake_gpu, ctrl, NULL);
		for (int k = 0; k < 20; k++)
			shunt_recorder_add(rec, &c, "oneshot", 0, k & 1);
		recorder_remove(rec);
	}
	free(ctrl);
	return NULL;
}

TEST(test_dump_while_communicators_come_and_go)
{
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
	for (int i = 0; i < 50; i++)
		json_decref(dump_now());
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	test_dump_without_communicators_is_json(state);
}

TEST(test_dump_of_a_mismatch_has_both_calls)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	struct shunt_host_ctrl words = {
		.fault = { .set = SHUNT_FAULT_MISMATCH, .rank = 1, .peer = 2, .mine_count = 7, .theirs_count = 8 }
	};
	json_t *dump, *seen;

	shunt_recorder_set_rank(rec, 1, 3, 0);
	shunt_recorder_ready(rec, &fake_gpu, ctrl, &words);
	dump = dump_now();
	seen = json_object_get(json_array_get(json_object_get(dump, "communicators"), 0), "fault");
	assert_string_equal(string(seen, "what"), "mismatch");
	assert_non_null(strstr(string(seen, "mine"), "7"));
	assert_non_null(strstr(string(seen, "theirs"), "8"));
	json_decref(dump);
	shunt_recorder_unready(rec);
	recorder_remove(rec);
	free(ctrl);
}

static int host_alloc(size_t bytes, void **host_p, void **dev_p)
{
	*host_p = *dev_p = calloc(1, bytes);
	return 0;
}

/* The device is at the first call. */
static int first_mark(int device, void *stream, uint64_t *word, uint64_t value)
{
	if ((value & 0xff) == 1)
		*word = value;
	return 0;
}

TEST(test_dump_tells_what_nccl_has_finished)
{
	static const struct shunt_gpu_ops marking_gpu = { .host_alloc = host_alloc, .mark = first_mark };
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1000, 0);
	json_t *dump, *comm, *ops;

	shunt_recorder_set_rank(rec, 1, 3, 0);
	shunt_recorder_open_marks(rec, &marking_gpu);
	for (int i = 0; i < 2; i++) {
		shunt_recorder_add_marked(rec, &c, SHUNT_REASON_SIZE, false);
		shunt_marks_settle(true);
	}
	dump = dump_now();
	comm = json_array_get(json_object_get(dump, "communicators"), 0);
	ops = json_object_get(comm, "operations");
	assert_int_equal(number(json_object_get(comm, "nccl"), "marked"), 2);
	assert_int_equal(number(json_object_get(comm, "nccl"), "finished"), 1);
	assert_string_equal(string(json_array_get(ops, 0), "state"), "finished");
	assert_string_equal(string(json_array_get(ops, 1), "state"), "running");
	json_decref(dump);
	recorder_remove(rec);
}

/* Kernels over hosts keep no rings by rank, and those of expert parallel groups number the ranks in an order of their
 * own. */
TEST(test_dump_over_hosts_names_ranks_of_the_communicator)
{
	const uint8_t rank_of[4] = { 1, 3, 0, 2 };
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	struct shunt_host_ctrl words = { .fault = { .set = SHUNT_FAULT_TIMEOUT, .rank = 0, .peer = 1 } };
	json_t *dump, *comm;

	shunt_recorder_set_rank(rec, 1, 4, 0);
	shunt_recorder_over_hosts(rec, rank_of, 4);
	shunt_recorder_ready(rec, &fake_gpu, ctrl, &words);
	dump = dump_now();
	comm = json_array_get(json_object_get(dump, "communicators"), 0);
	assert_int_equal(number(json_object_get(comm, "fault"), "peer"), 3);
	assert_null(json_object_get(json_object_get(comm, "channels"), "sent"));
	json_decref(dump);
	shunt_recorder_unready(rec);
	recorder_remove(rec);
	free(ctrl);
}

/* After all others: a field that no dump has had is in the schema for nothing. */
static json_t *answer(const char *line, unsigned format)
{
	struct shunt_dump_request request;
	size_t bytes = 0;
	char *text = NULL;
	FILE *f = open_memstream(&text, &bytes);
	json_t *dump;

	assert_true(shunt_dump_request_read(line, &request));
	request.format = format ? format : request.format;
	assert_int_equal(shunt_dump_answer(f, "asked", &request), 0);
	fclose(f);
	dump = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(dump);
	free(text);
	return dump;
}

static json_t *first(json_t *o, const char *list)
{
	return json_array_get(json_object_get(o, list), 0);
}

/* The 20th call is inside NCCL. `state 2` has it and the one before it, and earlier formats have no word for it. */
TEST(test_dump_names_the_function_that_holds_a_call)
{
	static struct shunt_counters_table counters;
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1000, 0);
	struct shunt_inside *in = shunt_inside_list();
	const char *before;
	json_t *dump, *comm, *ops;

	shunt_recorder_set_rank(rec, 1, 3, 0);
	shunt_recorder_set_counters(rec, &counters);
	for (int i = 0; i < 20; i++) {
		shunt_recorder_add_forward(rec, &c, SHUNT_REASON_SIZE);
		shunt_counters_add(&counters, c.kind, NULL, SHUNT_REASON_SIZE, 4000);
	}
	shunt_recorder_nccl_failed(rec, 3);
	before = shunt_inside_enter(in, "ncclAllReduce");
	dump = dump_now();
	comm = first(dump, "communicators");
	assert_string_equal(string(first(dump, "threads"), "function"), "ncclAllReduce");
	assert_string_equal(string(first(dump, "threads"), "key"), string(comm, "key"));
	assert_int_equal(number(first(dump, "threads"), "seq"), 20);
	assert_int_equal(number(json_object_get(comm, "nccl"), "returned"), 19);
	assert_int_equal(number(json_object_get(comm, "nccl"), "result"), 3);
	assert_int_equal(number(first(comm, "counters"), "calls"), 20);
	json_decref(dump);
	dump = answer("state 2", 0);
	ops = json_object_get(first(dump, "communicators"), "operations");
	assert_int_equal(json_array_size(ops), 2);
	assert_string_equal(string(json_array_get(ops, 0), "state"), "returned");
	assert_string_equal(string(json_array_get(ops, 1), "state"), "in_nccl");
	json_decref(dump);
	dump = answer("counters", 0);
	assert_int_equal(json_array_size(json_object_get(first(dump, "communicators"), "operations")), 0);
	json_decref(dump);
	dump = answer("dump", 2);
	assert_null(json_object_get(dump, "threads"));
	ops = json_object_get(first(dump, "communicators"), "operations");
	assert_string_equal(string(json_array_get(ops, 19), "state"), "forwarded");
	json_decref(dump);
	shunt_inside_leave(in, before);
	dump = answer("state 0", 0);
	assert_null(json_object_get(dump, "threads"));
	assert_int_equal(json_array_size(json_object_get(first(dump, "communicators"), "operations")), 0);
	json_decref(dump);
	recorder_remove(rec);
}

TEST(test_requests_that_are_none_are_refused)
{
	static const char *const none[] = { "", "State", "state -1", "state 1 ", "state  1", "state 12345", "dump ",
		"count", "state x" };
	struct shunt_dump_request request;

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_false(shunt_dump_request_read(none[i], &request));
}

/* Pieces of requests in any order: a line is one of the four that there are, or none. */
TEST(test_any_line_is_a_request_or_none)
{
	static const char *const pieces[] = { "state", " ", "dump", "counters", "7", "0", "99", "-", "\t", "\xff", "%s",
		"+" };
	struct shunt_dump_request request;
	unsigned seed = 7, taken = 0;
	char line[64], again[64];

	for (int i = 0; i < 100000; i++) {
		*line = '\0';
		for (int k = rand_r(&seed) % 5; k > 0; k--)
			strcat(line, pieces[(size_t)rand_r(&seed) / 16 % (sizeof(pieces) / sizeof(pieces[0]))]);
		if (!shunt_dump_request_read(line, &request))
			continue;
		taken++;
		snprintf(again, sizeof(again), "%s%0*u",
		    request.what == SHUNT_DUMP_ALL          ? "dump" :
		        request.what == SHUNT_DUMP_COUNTERS ? "counters" :
		                                              "state ",
		    (int)strlen(line) - 6, request.calls);
		assert_true(request.calls < 10000 && !strncmp(line, again, strlen(line)));
	}
	assert_true(taken > 1000);
}

TEST(test_dumps_had_each_field)
{
	for (size_t i = 0; shunt_dump_fields[i].name; i++)
		if (!field_seen[i])
			fail_msg(
			    "no dump had %s (of object %d)", shunt_dump_fields[i].name, shunt_dump_fields[i].object);
}

TESTS_BEGIN
{
	setenv("SHUNT_LOG", "error", 1);
}

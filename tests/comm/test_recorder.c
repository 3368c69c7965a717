/* SPDX-License-Identifier: MIT */
/* The flight recorder and what is written of it: to a file, on a signal, to a client of the socket. */
#include "tests/support/unit.h"
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "base/dump_address.h"
#include "base/dump_schema.h"
#include "comm/observe/dump.h"
#include "comm/observe/recorder.h"
#include "comm/parts/comm_registry.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

static char dump_dir[] = "/tmp/shunt-test-dump-XXXXXX";
static volatile sig_atomic_t earlier_handler_ran;

static const uint8_t id_a[16] = { 0xab, 0xcd, 1 }, id_b[16] = { 0xab, 0xcd, 2 };

static struct shunt_coll collective(enum shunt_kind kind, size_t count, int root)
{
	return (struct shunt_coll){ .kind = kind,
		.dtype = SHUNT_F16,
		.redop = SHUNT_MAX,
		.count = count,
		.root = root,
		.stream = (void *)0x77 };
}

/* Recorders without communicators, in the registry. */
static struct {
	struct shunt_recorder *rec;
	struct shunt_registration registration;
} places[64];
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

/* Finds the place of `from`, and gives it to `to`. */
static struct shunt_registration *place(const struct shunt_recorder *from, struct shunt_recorder *to)
{
	size_t i = 0;

	pthread_mutex_lock(&places_lock);
	while (places[i].rec != from)
		i++;
	places[i].rec = to;
	pthread_mutex_unlock(&places_lock);
	return &places[i].registration;
}

static struct shunt_recorder *recorder_add(const uint8_t id[16])
{
	struct shunt_recorder *rec = shunt_recorder_create(id);

	shunt_dump_start();
	shunt_registry_add(place(NULL, rec), NULL, rec);
	return rec;
}

static void recorder_remove(struct shunt_recorder *rec)
{
	struct shunt_registration *r = place(rec, rec);

	shunt_registry_remove(r);
	place(rec, NULL);
	shunt_recorder_destroy(rec);
}

/* ---- a device of plain memory */

static int fake_info(int device, struct shunt_gpu_info *info)
{
	*info = (struct shunt_gpu_info){ .sim = device == 3 };
	return 0;
}

static int fake_copy(int device, void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
	return 0;
}

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

static char intruder[256]; /* a file that somebody else makes while a dump is being written */

static int intruding_copy(int device, void *dst, const void *src, size_t bytes)
{
	int fd = *intruder ? open(intruder, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;

	if (fd >= 0 && write(fd, "{}", 2) == 2)
		close(fd);
	return fake_copy(device, dst, src, bytes);
}

static const struct shunt_gpu_ops intruding_gpu = { .device_info = fake_info, .copy = intruding_copy };
static const struct shunt_gpu_ops waiting_gpu = { .device_info = fake_info, .copy = waiting_copy };
static const struct shunt_gpu_ops fake_gpu = { .device_info = fake_info, .copy = fake_copy };
static const struct shunt_gpu_ops broken_gpu = { .device_info = fake_info, .copy = broken_copy };

/* ---- the ring */

static void test_add_without_recorder_gives_zero(void **state)
{
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1, 0);

	assert_int_equal(shunt_recorder_add(NULL, &c, "oneshot", 0, false), 0);
	shunt_recorder_set_rank(NULL, 0, 1, 0);
	shunt_recorder_phase(NULL, "set-up");
	shunt_dump_error(NULL, -EIO);
	shunt_recorder_unready(NULL);
	shunt_recorder_destroy(NULL);
}

static void test_read_after_overflow_gives_last_in_order(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	static struct shunt_operation ops[2000];
	uint64_t total = 3 * SHUNT_RECORDER_OPERATIONS + 7;

	for (uint64_t i = 1; i <= total; i++) {
		struct shunt_coll c = collective(SHUNT_BROADCAST, i * 3, 2);

		assert_int_equal(shunt_recorder_add(rec, &c, i % 2 ? "ll128" : NULL, 0, false), i);
	}
	assert_int_equal(shunt_recorder_read(rec, false, ops, 2000), SHUNT_RECORDER_OPERATIONS);
	for (uint64_t i = 0; i < SHUNT_RECORDER_OPERATIONS; i++) {
		uint64_t seq = total - SHUNT_RECORDER_OPERATIONS + 1 + i;

		assert_int_equal(ops[i].seq, seq);
		assert_int_equal(ops[i].number, seq);
		assert_int_equal(ops[i].last, seq);
		assert_int_equal(ops[i].count, seq * 3);
		assert_int_equal(ops[i].kind, SHUNT_BROADCAST);
		assert_int_equal(ops[i].dtype, SHUNT_F16);
		assert_int_equal(ops[i].root, 2);
		assert_ptr_equal(ops[i].stream, (void *)0x77);
		assert_true(seq % 2 ? !strcmp(ops[i].path, "ll128") : !ops[i].path);
	}
	assert_int_equal(shunt_recorder_read(rec, false, ops, 5), 5);
	assert_int_equal(ops[4].seq, total);
	recorder_remove(rec);
}

static void test_captured_operations_outlive_eager_ones(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 5, 0);
	struct shunt_operation op;

	assert_true(shunt_recorder_add(rec, &c, "oneshot", 0, true) == (SHUNT_OP_CAPTURED | 1));
	for (int i = 0; i < 5000; i++)
		shunt_recorder_add(rec, &c, "oneshot", 0, false);
	assert_int_equal(shunt_recorder_read(rec, true, &op, 1), 1);
	assert_int_equal(op.seq, 1);
	assert_true(op.captured);
	recorder_remove(rec);
}

static void test_numbers_count_collectives_and_messages_apart(void **state)
{
	static const struct {
		enum shunt_kind kind;
		int peer;
		uint64_t number;
	} rows[] = {
		{ SHUNT_ALLREDUCE, 0, 1 },
		{ SHUNT_SEND, 1, 1 },
		{ SHUNT_SEND, 2, 1 },
		{ SHUNT_RECV, 1, 1 },
		{ SHUNT_SEND, 1, 2 },
		{ SHUNT_BROADCAST, 0, 2 },
		{ SHUNT_RECV, 1, 2 },
		{ SHUNT_RECV, 9, 0 },
		{ SHUNT_ALLREDUCE, 0, 3 },
	};
	enum { N = sizeof(rows) / sizeof(rows[0]) };
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_operation ops[N];
	struct shunt_recorder_snapshot snapshot;

	shunt_recorder_set_rank(rec, 0, 3, 0);
	for (int i = 0; i < N; i++) {
		struct shunt_coll c = collective(rows[i].kind, 1, rows[i].peer);

		shunt_recorder_add(rec, &c, "ll128", 0, false);
	}
	assert_int_equal(shunt_recorder_read(rec, false, ops, N), N);
	for (int i = 0; i < N; i++)
		assert_int_equal(ops[i].number, rows[i].number);
	assert_int_equal(shunt_recorder_snapshot(rec, 1000, &snapshot), 0);
	assert_int_equal(snapshot.calls, N);
	assert_int_equal(snapshot.collectives, 3);
	assert_int_equal(snapshot.npeers, 3);
	assert_int_equal(snapshot.sends[1], 2);
	assert_int_equal(snapshot.sends[2], 1);
	assert_int_equal(snapshot.receives[1], 2);
	shunt_recorder_snapshot_finish(&snapshot);
	recorder_remove(rec);
}

static void test_calls_of_a_group_share_the_last_ones_word(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 5, 0);
	struct shunt_operation ops[3];

	for (unsigned left = 3; left-- > 0;)
		assert_int_equal(shunt_recorder_add(rec, &c, "oneshot", left, false), 3);
	assert_int_equal(shunt_recorder_read(rec, false, ops, 3), 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ops[i].last, 3);
	recorder_remove(rec);
}

/* Whatever a reader gets, it is one operation and not parts of two. */
static struct {
	struct shunt_recorder *rec;
	atomic_bool stop;
} busy;

static void *write_all_the_time(void *arg)
{
	for (uint64_t i = 1; !atomic_load(&busy.stop); i++) {
		struct shunt_coll c = collective(SHUNT_ALLREDUCE, i * 7, (int)(i % 1000));

		c.stream = (void *)(uintptr_t)(i * 3);
		shunt_recorder_add(busy.rec, &c, "oneshot", 0, false);
	}
	return NULL;
}

static void test_read_beside_a_writer_gives_whole_operations(void **state)
{
	static struct shunt_operation ops[SHUNT_RECORDER_OPERATIONS];
	uint64_t seen = 0, newest = 0;
	pthread_t thread;

	busy.rec = recorder_add(id_a);
	assert_int_equal(pthread_create(&thread, NULL, write_all_the_time, NULL), 0);
	for (int times = 0; times < 300 || newest < 5000; times++) {
		size_t n = shunt_recorder_read(busy.rec, false, ops, SHUNT_RECORDER_OPERATIONS);

		for (size_t i = 0; i < n; i++) {
			assert_int_equal(ops[i].count, ops[i].seq * 7);
			assert_int_equal(ops[i].number, ops[i].seq);
			assert_int_equal((uintptr_t)ops[i].stream, ops[i].seq * 3);
			assert_int_equal(ops[i].root, ops[i].seq % 1000);
			newest = ops[i].seq > newest ? ops[i].seq : newest;
		}
		seen += n;
	}
	atomic_store(&busy.stop, true);
	pthread_join(thread, NULL);
	assert_true(seen > 0);
	recorder_remove(busy.rec);
}

/* Calls of the library to the C library, which the linker leads here. */
static atomic_int locks, accepts_refused, pauses;

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	atomic_fetch_add(&locks, 1);
	return __real_pthread_mutex_lock(mutex);
}

/* In a process that the system ends at its next call but the last one. How fast it is, tests/perf counts. */
static int add_body(int rank, void *arg)
{
	struct shunt_recorder *rec = arg;
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 5, 0);
	int before;

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		return -1;
#endif
	before = atomic_load(&locks);
	for (unsigned i = 0; i < 3 * SHUNT_RECORDER_OPERATIONS; i++)
		shunt_recorder_add(rec, &c, "oneshot", 0, i % 5 == 0);
	syscall(SYS_exit, atomic_load(&locks) - before ? 2 : 0);
	return -3;
}

static void test_add_takes_no_lock_and_calls_no_system(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 5, 0);
	int err;

	for (int captured = 0; captured < 2; captured++) /* the first of each kind gets memory */
		shunt_recorder_add(rec, &c, "oneshot", 0, captured);
	unit_run_processes(1, add_body, rec, &err);
	assert_int_equal(err, 0);
	recorder_remove(rec);
}

/* ---- what the device says */

static void test_state_follows_from_progress(void **state)
{
	const uint64_t cap = SHUNT_OP_CAPTURED;
	const struct {
		uint64_t seq, last;
		bool captured;
		const char *path;
		struct shunt_progress p;
		struct shunt_fault fault;
		enum shunt_operation_state want;
	} rows[] = {
		{ 5, 5, false, NULL, { .now = 9, .eager = 9 }, { 0 }, SHUNT_OPERATION_FORWARDED },
		{ 5, 5, false, "x", { 0 }, { 0 }, SHUNT_OPERATION_ENQUEUED },
		{ 5, 5, true, "x", { 0 }, { 0 }, SHUNT_OPERATION_UNKNOWN },
		{ 5, 5, false, "x", { .now = 6, .eager = 6 }, { 0 }, SHUNT_OPERATION_FINISHED },
		{ 6, 6, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 7 }, { 0 }, SHUNT_OPERATION_RUNNING },
		{ 6, 6, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 8 }, { 0 }, SHUNT_OPERATION_FINISHED },
		{ 7, 7, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 8 }, { 0 }, SHUNT_OPERATION_ENQUEUED },
		{ 4, 6, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 7 }, { 0 }, SHUNT_OPERATION_RUNNING },
		/* A graph runs: what was eager before it is done, its own calls are known only while they run. */
		{ 6, 6, false, "x", { .now = 2 | cap, .eager = 6, .begun = 8, .ended = 7 }, { 0 },
		    SHUNT_OPERATION_FINISHED },
		{ 2, 2, true, "x", { .now = 2 | cap, .eager = 6, .begun = 8, .ended = 7 }, { 0 },
		    SHUNT_OPERATION_RUNNING },
		{ 2, 2, true, "x", { .now = 2 | cap, .eager = 6, .begun = 8, .ended = 8 }, { 0 },
		    SHUNT_OPERATION_UNKNOWN },
		{ 3, 3, true, "x", { .now = 2 | cap, .eager = 6, .begun = 8, .ended = 7 }, { 0 },
		    SHUNT_OPERATION_UNKNOWN },
		/* A kernel gave up in 5: that, and what was launched after it, failed. */
		{ 4, 4, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 8 }, { .set = 1, .op = 5 },
		    SHUNT_OPERATION_FINISHED },
		{ 5, 5, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 8 }, { .set = 1, .op = 5 },
		    SHUNT_OPERATION_FAILED },
		{ 6, 6, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 8 }, { .set = 2, .op = 5 },
		    SHUNT_OPERATION_FAILED },
		{ 7, 7, false, "x", { .now = 6, .eager = 6, .begun = 8, .ended = 8 }, { .set = 1, .op = 5 },
		    SHUNT_OPERATION_ENQUEUED },
		{ 2, 2, true, "x", { .now = 2 | cap, .eager = 6, .begun = 8, .ended = 8 }, { .set = 1, .op = 2 | cap },
		    SHUNT_OPERATION_FAILED },
		{ 5, 5, false, "x", { .now = 2 | cap, .eager = 6, .begun = 8, .ended = 8 }, { .set = 1, .op = 2 | cap },
		    SHUNT_OPERATION_FINISHED },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct shunt_operation op = {
			.seq = rows[i].seq, .last = rows[i].last, .captured = rows[i].captured, .path = rows[i].path
		};

		if (shunt_operation_state(&op, &rows[i].p, &rows[i].fault) != rows[i].want)
			fail_msg("row %zu: %s", i,
			    shunt_operation_state_name(shunt_operation_state(&op, &rows[i].p, &rows[i].fault)));
	}
	struct shunt_operation op = { .seq = 1, .last = 1, .path = "x" };
	assert_int_equal(shunt_operation_state(&op, NULL, &(struct shunt_fault){ 0 }), SHUNT_OPERATION_UNKNOWN);
}

/* ---- the text */

/* The fields that this test's dumps had so far. */
static bool field_seen[128];

static void fields_note(const json_t *o, enum shunt_dump_object object)
{
	for (size_t i = 0; shunt_dump_fields[i].name; i++) {
		const struct shunt_dump_field *f = &shunt_dump_fields[i];
		const json_t *v = f->object == object ? json_object_get(o, f->name) : NULL;

		field_seen[i] |= v != NULL;
		if (json_is_object(v))
			fields_note(v, shunt_dump_object_of(f));
		for (size_t k = 0; v && f->type == SHUNT_DUMP_OBJECTS && k < json_array_size(v); k++)
			fields_note(json_array_get(v, k), shunt_dump_object_of(f));
	}
}

/* Each dump has the fields of the schema, and no other. */
static void form_check(const char *text, size_t bytes)
{
	char reason[256] = "";
	struct shunt_json_log log = { .source = "dump", .reason = reason, .bytes = sizeof(reason) };
	json_t *dump = shunt_json_parse(&log, text, bytes);

	if (!dump || !shunt_dump_check(&log, dump))
		fail_msg("%s", reason);
	fields_note(dump, SHUNT_DUMP_process);
	json_decref(dump);
}

static json_t *dump_now(void)
{
	size_t bytes = 0;
	char *text = NULL;
	FILE *f = open_memstream(&text, &bytes);
	json_error_t reason;
	json_t *dump;

	assert_non_null(f);
	assert_int_equal(shunt_dump_write(f, "asked"), 0);
	fclose(f);
	form_check(text, bytes);
	dump = json_loads(text, JSON_REJECT_DUPLICATES, &reason);
	if (!dump)
		fail_msg("line %d: %s in:\n%s", reason.line, reason.text, text);
	free(text);
	return dump;
}

static json_int_t number(json_t *o, const char *name)
{
	assert_true(json_is_integer(json_object_get(o, name)));
	return json_integer_value(json_object_get(o, name));
}

static const char *string(json_t *o, const char *name)
{
	assert_true(json_is_string(json_object_get(o, name)));
	return json_string_value(json_object_get(o, name));
}

static void test_dump_without_communicators_is_json(void **state)
{
	json_t *dump = dump_now();

	assert_int_equal(number(dump, "shunt_dump"), 2);
	assert_int_equal(number(dump, "pid"), getpid());
	assert_int_equal(json_array_size(json_object_get(dump, "communicators")), 0);
	json_decref(dump);
}

/* Device 3 is copied word by word, as from the sim; the result is the same. */
static void check_dump_with_device(int device)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	struct shunt_fault fault = {
		.set = SHUNT_FAULT_TIMEOUT, .rank = 1, .peer = 2, .channel = 4, .expected = 10, .seen = 9
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
	shunt_recorder_ready(rec, &fake_gpu, ctrl, &fault);
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
	assert_string_equal(string(op, "state"), "forwarded");
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

static void test_dump_shows_device_counters(void **state)
{
	check_dump_with_device(0);
	check_dump_with_device(3);
}

static void test_dump_with_unreadable_device_has_host_side(void **state)
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
static void test_dump_beside_a_held_driver_has_host_side(void **state)
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

static void test_dump_quotes_what_json_cannot_hold(void **state)
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

/* ---- where it goes */

static int count_files(char *last, size_t bytes)
{
	DIR *dir = opendir(dump_dir);
	struct dirent *e;
	int n = 0;

	while (dir && (e = readdir(dir)))
		if (*e->d_name != '.') { /* nor those that are not complete */
			n++;
			if (last)
				snprintf(last, bytes, "%s/%s", dump_dir, e->d_name);
		}
	if (dir)
		closedir(dir);
	return n;
}

static void test_file_is_private_and_complete(void **state)
{
	char path[256], again[256];
	struct stat st;
	json_t *dump;
	int before = count_files(NULL, 0);

	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	assert_int_equal(shunt_dump_file(dump_dir, "asked", again, sizeof(again)), 0);
	assert_string_not_equal(path, again);
	assert_int_equal(count_files(NULL, 0), before + 2);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	dump = json_load_file(path, 0, NULL);
	assert_non_null(dump);
	json_decref(dump);
	assert_int_equal(shunt_dump_file("/nonexistent/dir", "asked", path, sizeof(path)), -ENOENT);
	assert_int_equal(shunt_dump_file("/proc", "asked", path, sizeof(path)), -ENOENT);
	assert_int_equal(shunt_dump_file("/dev/null", "asked", path, sizeof(path)), -ENOTDIR);
}

/* As in a directory for all, where nobody can remove what another user has put at the name. */
static void test_file_whose_hidden_name_is_taken_is_written(void **state)
{
	char path[256], taken[256], *number;

	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	number = strrchr(path, '-') + 1;
	snprintf(taken, sizeof(taken), "%s/.%.*s%d.part", dump_dir, (int)(number - strrchr(path, '/') - 1),
	    strrchr(path, '/') + 1, atoi(number) + 1);
	assert_int_equal(mkdir(taken, 0700), 0);
	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	assert_int_equal(rmdir(taken), 0);
	assert_int_equal(access(path, R_OK), 0);
}

/* Two processes of one number may have one folder. What comes second has another name, and loses nothing either. */
static void test_file_replaces_none_that_came_meanwhile(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	char path[256], *number;
	struct stat st;
	json_t *dump;

	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	number = strrchr(path, '-') + 1;
	snprintf(intruder, sizeof(intruder), "%.*s%d.json", (int)(number - path), path, atoi(number) + 1);
	shunt_recorder_set_rank(rec, 0, 2, 0);
	shunt_recorder_ready(rec, &intruding_gpu, ctrl, NULL);
	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	assert_int_equal(stat(intruder, &st), 0);
	assert_int_equal(st.st_size, 2);
	assert_string_not_equal(path, intruder);
	dump = json_load_file(path, 0, NULL);
	assert_non_null(dump);
	json_decref(dump);
	unlink(intruder);
	intruder[0] = '\0';
	recorder_remove(rec);
	free(ctrl);
}

struct containers {
	char path[2][256]; /* of the dump of each one's first process; "": there is none */
	atomic_int done;
};

static int container_body(int rank, void *arg)
{
	struct containers *c = arg;
	pid_t first = unshare(CLONE_NEWPID) ? -1 : child_fork();

	if (!first) {
		if (getpid() != 1 || shunt_dump_file(dump_dir, "asked", c->path[rank], sizeof(c->path[rank])))
			c->path[rank][0] = '\0';
		atomic_fetch_add(&c->done, 1);
		for (int i = 0; i < 6000 && atomic_load(&c->done) < 2;
		    i++) /* the number of a namespace that has gone is free again */
			pause_us(PAUSE_POLL, 10000);
		_exit(0);
	}
	return first < 0 || waitpid(first, NULL, 0) != first ? -EPERM : 0;
}

static void test_files_of_containers_have_names_of_their_own(void **state)
{
	struct containers *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	json_t *dump[2];
	int errs[2];

	unit_run_processes(2, container_body, c, errs);
	if (errs[0] || errs[1]) {
		print_message("not allowed to make a PID namespace\n");
		skip();
	}
	for (int i = 0; i < 2; i++) {
		dump[i] = json_load_file(c->path[i], 0, NULL);
		assert_non_null(dump[i]);
		assert_int_equal(number(dump[i], "pid"), 1);
	}
	assert_int_equal(atoi(strrchr(c->path[0], '-') + 1),
	    atoi(strrchr(c->path[1], '-') + 1)); /* it is not this one that differs */
	assert_string_not_equal(c->path[0], c->path[1]);
	assert_int_not_equal(number(dump[0], "pid_namespace"), number(dump[1], "pid_namespace"));
	json_decref(dump[0]);
	json_decref(dump[1]);
	munmap(c, sizeof(*c));
}

static void test_error_is_dumped_once(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	int before = count_files(NULL, 0);

	shunt_dump_error(rec, -ETIMEDOUT);
	assert_int_equal(count_files(NULL, 0), before + 1);
	shunt_dump_error(rec, -EIO);
	assert_int_equal(count_files(NULL, 0), before + 1);
	recorder_remove(rec);
}

static void earlier_handler(int number)
{
	earlier_handler_ran++;
}

static void test_signal_writes_a_file_and_calls_the_earlier_handler(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	int before = count_files(NULL, 0);

	kill(getpid(), SIGUSR1);
	for (int i = 0; i < 6000 && count_files(NULL, 0) == before; i++)
		pause_us(PAUSE_POLL, 10000);
	for (int i = 0; i < 6000 && !earlier_handler_ran; i++)
		pause_us(PAUSE_POLL, 10000);
	assert_int_equal(count_files(NULL, 0), before + 1);
	assert_int_equal(earlier_handler_ran, 1);
	recorder_remove(rec);
}

static int connect_to(int fd, pid_t pid)
{
	struct sockaddr_un address;
	socklen_t length = shunt_dump_address(&address, geteuid(), shunt_dump_namespace("self"), pid);

	return connect(fd, (struct sockaddr *)&address, length);
}

static char *read_all(int fd, size_t *bytes_p)
{
	char *text = calloc(1, 1 << 20);
	ssize_t n;

	*bytes_p = 0;
	while ((n = read(fd, text + *bytes_p, (1 << 20) - 1 - *bytes_p)) > 0)
		*bytes_p += (size_t)n;
	return text;
}

static char *ask(pid_t pid, size_t *bytes_p)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char *text;

	connect_to(fd, pid); /* if nobody is there, nothing can be read */
	text = read_all(fd, bytes_p);
	close(fd);
	return text;
}

static void test_socket_answers_with_the_dump(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1000, 0);
	size_t bytes;
	char *text;
	json_t *dump;

	for (int i = 0; i < 1500; i++) /* more than a socket's buffer holds */
		shunt_recorder_add(rec, &c, "oneshot", 0, false);
	text = ask(getpid(), &bytes);
	dump = json_loads(text, 0, NULL);
	assert_non_null(dump);
	assert_string_equal(string(dump, "reason"), "asked");
	assert_int_equal(
	    json_array_size(json_object_get(json_array_get(json_object_get(dump, "communicators"), 0), "operations")),
	    SHUNT_RECORDER_OPERATIONS);
	json_decref(dump);
	free(text);
	recorder_remove(rec);
}

static void test_signal_to_a_child_is_not_the_parents(void **state)
{
	struct shunt_recorder *rec;
	int before = count_files(NULL, 0), ran = earlier_handler_ran, status;
	pid_t child;

#if defined(__SANITIZE_THREAD__)
	skip(); /* in a child of a process that has threads it runs no handlers */
#endif
	rec = recorder_add(id_a);
	child = child_fork();
	if (!child) {
		raise(SIGUSR1);
		_exit(earlier_handler_ran == ran + 1 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* The thread that would write the file answers, and again after it has looked for a signal. */
	for (int i = 0; i < 2; i++) {
		size_t bytes;

		free(ask(getpid(), &bytes));
		assert_true(bytes > 0);
	}
	assert_int_equal(count_files(NULL, 0), before);
	recorder_remove(rec);
}

/* A child inherits neither the thread nor the communicators; it gets its own with its first communicator. */
static int child_body(int rank, void *arg)
{
	struct shunt_recorder *rec;
	size_t bytes;
	char *text = ask(getpid(), &bytes);

	free(text);
	if (bytes)
		return -1;
	rec = recorder_add(id_b);
	text = ask(getpid(), &bytes);
	json_t *dump = json_loads(text, 0, NULL);
	if (!dump || json_array_size(json_object_get(dump, "communicators")) != 1 || number(dump, "pid") != getpid())
		return -2;
	json_decref(dump);
	free(text);
	recorder_remove(rec);
	return 0;
}

static void test_forked_child_answers_for_itself(void **state)
{
	struct shunt_recorder *rec;
	int err;

#if defined(__SANITIZE_THREAD__)
	skip(); /* it forbids threads in a child of a process that has some */
#endif
	rec = recorder_add(id_a);
	unit_run_processes(1, child_body, NULL, &err);
	assert_int_equal(err, 0);
	recorder_remove(rec);
}

int __real_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
	int made = __real_accept4(fd, address, bytes, flags);

	if (made < 0 && errno == EMFILE)
		atomic_fetch_add(&accepts_refused, 1);
	return made;
}

int __real_poll(struct pollfd *fds, nfds_t n, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms)
{
	int ready = __real_poll(fds, n, ms);

	if (ms >= 100 && !ready)
		atomic_fetch_add(&pauses, 1);
	return ready;
}

/* No descriptor is left for the connection: it waits until there is one, and nobody turns in circles meanwhile. */
static int full_body(int rank, void *arg)
{
	struct shunt_recorder *rec = recorder_add(id_b);
	struct rlimit few = { 64, 64 };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), last, spare, refused, paused;
	size_t bytes;
	char *text;
	json_t *dump;

	if (setrlimit(RLIMIT_NOFILE, &few))
		return -1;
	for (last = fd; (spare = dup(0)) >= 0; last = spare)
		;
	if (last == fd || connect_to(fd, getpid()))
		return -2;
	if (!until_counted(&accepts_refused, 4, "refused accepts"))
		return -5;
	refused = atomic_load(&accepts_refused); /* before the pauses, of which more may come between the two looks */
	paused = atomic_load(&pauses);
	if (refused > paused + 1)
		return -3;
	for (int i = fd + 1; i <= last; i++)
		close(i);
	text = read_all(fd, &bytes);
	dump = json_loads(text, 0, NULL);
	if (!dump)
		return -4;
	json_decref(dump);
	free(text);
	close(fd);
	recorder_remove(rec);
	return 0;
}

static void test_socket_without_descriptors_waits_at_rest(void **state)
{
	int err;

#if defined(__SANITIZE_THREAD__)
	skip(); /* it forbids threads in a child of a process that has some */
#endif
	unit_run_processes(1, full_body, NULL, &err);
	assert_int_equal(err, 0);
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

static void test_dump_while_communicators_come_and_go(void **state)
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

static void test_dump_of_a_mismatch_has_both_calls(void **state)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	struct shunt_fault fault = {
		.set = SHUNT_FAULT_MISMATCH, .rank = 1, .peer = 2, .mine_count = 7, .theirs_count = 8
	};
	json_t *dump, *seen;

	shunt_recorder_set_rank(rec, 1, 3, 0);
	shunt_recorder_ready(rec, &fake_gpu, ctrl, &fault);
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

/* After all others: a field that no dump has had is in the schema for nothing. */
static void test_dumps_had_each_field(void **state)
{
	for (size_t i = 0; shunt_dump_fields[i].name; i++)
		if (!field_seen[i])
			fail_msg(
			    "no dump had %s (of object %d)", shunt_dump_fields[i].name, shunt_dump_fields[i].object);
}

static int remove_dir(void **state)
{
	char path[512];

	while (count_files(path, sizeof(path)) && !unlink(path))
		;
	return rmdir(dump_dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_add_without_recorder_gives_zero),
		cmocka_unit_test(test_read_after_overflow_gives_last_in_order),
		cmocka_unit_test(test_captured_operations_outlive_eager_ones),
		cmocka_unit_test(test_numbers_count_collectives_and_messages_apart),
		cmocka_unit_test(test_calls_of_a_group_share_the_last_ones_word),
		cmocka_unit_test(test_read_beside_a_writer_gives_whole_operations),
		cmocka_unit_test(test_add_takes_no_lock_and_calls_no_system),
		cmocka_unit_test(test_state_follows_from_progress),
		cmocka_unit_test(test_dump_without_communicators_is_json),
		cmocka_unit_test(test_dump_shows_device_counters),
		cmocka_unit_test(test_dump_with_unreadable_device_has_host_side),
		cmocka_unit_test(test_dump_beside_a_held_driver_has_host_side),
		cmocka_unit_test(test_dump_quotes_what_json_cannot_hold),
		cmocka_unit_test(test_file_is_private_and_complete),
		cmocka_unit_test(test_file_whose_hidden_name_is_taken_is_written),
		cmocka_unit_test(test_file_replaces_none_that_came_meanwhile),
		cmocka_unit_test(test_files_of_containers_have_names_of_their_own),
		cmocka_unit_test(test_error_is_dumped_once),
		cmocka_unit_test(test_signal_writes_a_file_and_calls_the_earlier_handler),
		cmocka_unit_test(test_signal_to_a_child_is_not_the_parents),
		cmocka_unit_test(test_socket_answers_with_the_dump),
		cmocka_unit_test(test_forked_child_answers_for_itself),
		cmocka_unit_test(test_socket_without_descriptors_waits_at_rest),
		cmocka_unit_test(test_dump_while_communicators_come_and_go),
		cmocka_unit_test(test_dump_of_a_mismatch_has_both_calls),
		cmocka_unit_test(test_dumps_had_each_field),
	};

	if (!mkdtemp(dump_dir))
		return 1;
	setenv("SHUNT_DUMP_DIR", dump_dir, 1);
	setenv("SHUNT_DUMP_SIGNAL", "1", 1);
	setenv("SHUNT_LOG", "error", 1);
	unsetenv("SHUNT_DOCTOR");
	signal(SIGUSR1, earlier_handler);
	return cmocka_run_group_tests(tests, NULL, remove_dir);
}

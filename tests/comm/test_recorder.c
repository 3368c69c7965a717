/* SPDX-License-Identifier: MIT */
/* The flight recorder: its rings, and what the device says of its operations. test_dump.c has what is written of it. */
#include "tests/comm/recorder_fakes.h"
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "comm/observe/dump.h"
#include "comm/observe/marks.h"

/* ---- the ring */

TEST(test_add_without_recorder_gives_zero)
{
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1, 0);

	assert_int_equal(shunt_recorder_add(NULL, &c, "oneshot", 0, false), 0);
	shunt_recorder_set_rank(NULL, 0, 1, 0);
	shunt_recorder_phase(NULL, "set-up");
	shunt_dump_error(NULL, -EIO);
	shunt_recorder_unready(NULL);
	shunt_recorder_destroy(NULL);
}

TEST(test_read_after_overflow_gives_last_in_order)
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

TEST(test_captured_operations_outlive_eager_ones)
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

TEST(test_numbers_count_collectives_and_messages_apart)
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
	assert_int_equal(shunt_recorder_snapshot(rec, SHUNT_READ_ALL, 1000, &snapshot), 0);
	assert_int_equal(snapshot.calls, N);
	assert_int_equal(snapshot.collectives, 3);
	assert_int_equal(snapshot.npeers, 3);
	assert_int_equal(snapshot.sends[1], 2);
	assert_int_equal(snapshot.sends[2], 1);
	assert_int_equal(snapshot.receives[1], 2);
	shunt_recorder_snapshot_finish(&snapshot);
	recorder_remove(rec);
}

TEST(test_calls_of_a_group_share_the_last_ones_word)
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

TEST(test_read_beside_a_writer_gives_whole_operations)
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
static atomic_int locks;

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
		return -77; /* qemu's has none */
#endif
	before = atomic_load(&locks);
	for (unsigned i = 0; i < 3 * SHUNT_RECORDER_OPERATIONS; i++)
		shunt_recorder_add(rec, &c, "oneshot", 0, i % 5 == 0);
	syscall(SYS_exit, atomic_load(&locks) - before ? 2 : 0);
	return -3;
}

TEST(test_add_takes_no_lock_and_calls_no_system)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 5, 0);
	int err;

	for (int captured = 0; captured < 2; captured++) /* the first of each kind gets memory */
		shunt_recorder_add(rec, &c, "oneshot", 0, captured);
	unit_run_processes(1, add_body, rec, &err);
	recorder_remove(rec);
	if (err == -77)
		skip();
	assert_int_equal(err, 0);
}

/* ---- what the device says */

TEST(test_state_follows_from_progress)
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
		{ 5, 5, false, NULL, { .now = 9, .eager = 9 }, { 0 }, SHUNT_OPERATION_RETURNED },
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

/* ---- marks */

/* What streams are to write, until a test has them do so. */
static struct {
	uint64_t *word, value;
} writes[16];
static unsigned nwrites, tries;
static int mark_result;

static int host_alloc(size_t bytes, void **host_p, void **dev_p)
{
	*host_p = *dev_p = calloc(1, bytes);
	return 0;
}

static int mark_later(int device, void *stream, uint64_t *word, uint64_t value)
{
	tries++;
	if (mark_result)
		return mark_result;
	writes[nwrites].word = word;
	writes[nwrites++].value = value;
	return 0;
}

static const struct shunt_gpu_ops marking_gpu = { .host_alloc = host_alloc, .mark = mark_later };

static void land(unsigned i)
{
	*writes[i].word = writes[i].value;
}

static struct shunt_recorder *marked_recorder(void)
{
	struct shunt_recorder *rec = recorder_add(id_a);

	shunt_recorder_set_rank(rec, 0, 2, 0);
	shunt_recorder_open_marks(rec, &marking_gpu);
	nwrites = tries = 0;
	mark_result = 0;
	return rec;
}

static void forward(struct shunt_recorder *rec, uintptr_t stream, bool captured)
{
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 5, 0);

	c.stream = (void *)stream;
	shunt_recorder_add_marked(rec, &c, SHUNT_REASON_SIZE, captured);
}

static void check_marks(struct shunt_recorder *rec, uint64_t marked, uint64_t finished)
{
	struct shunt_recorder_snapshot s;

	assert_int_equal(shunt_recorder_snapshot(rec, SHUNT_READ_NOTHING, 0, &s), 0);
	assert_int_equal(s.marked, marked);
	assert_int_equal(s.finished, finished);
	shunt_recorder_snapshot_finish(&s);
}

TEST(test_marks_follow_what_nccl_has_launched)
{
	struct shunt_recorder *rec = marked_recorder();

	forward(rec, 1, false);
	assert_int_equal(nwrites, 0); /* NCCL has not returned */
	shunt_marks_settle(true);
	check_marks(rec, 1, 0);
	land(0);
	check_marks(rec, 1, 1);
	forward(rec, 1, false);
	shunt_marks_settle(false); /* NCCL has refused it */
	forward(rec, 1, true);
	shunt_marks_settle(true);
	check_marks(rec, 1, 1);
	for (int i = 0; i < 3; i++) /* a group: one mark on each stream */
		forward(rec, 1, false);
	forward(rec, 2, false);
	shunt_marks_settle(true);
	assert_int_equal(nwrites, 3);
	check_marks(rec, 7, 1);
	land(1); /* the later call's stream is the faster one */
	land(2);
	check_marks(rec, 7, 7);
	recorder_remove(rec);
}

TEST(test_marks_of_an_ended_communicator_count_for_nothing)
{
	struct shunt_recorder *rec = marked_recorder();

	forward(rec, 1, false);
	recorder_remove(rec); /* by another thread, while this one is in NCCL */
	shunt_marks_settle(true);
	rec = marked_recorder();
	nwrites = 1;
	land(0);
	check_marks(rec, 0, 0);
	forward(rec, 1, false);
	shunt_marks_settle(true);
	assert_ptr_equal(writes[1].word, writes[0].word);
	land(1);
	check_marks(rec, 1, 1);
	recorder_remove(rec);
}

TEST(test_a_driver_that_refuses_marks_is_asked_once)
{
	struct shunt_recorder *rec = marked_recorder();

	mark_result = -EOPNOTSUPP;
	for (int i = 0; i < 3; i++) {
		forward(rec, 1, false);
		shunt_marks_settle(true);
	}
	assert_int_equal(tries, 1);
	check_marks(rec, 0, 0);
	recorder_remove(rec);
}

TESTS_BEGIN
{
	setenv("SHUNT_LOG", "error", 1);
}

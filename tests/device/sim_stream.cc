/* SPDX-License-Identifier: MIT */
/* Streams, events, graphs and memory of the sim device, through its table of operations. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/device/sim_test.h"
#include "tests/support/pause.h"

/* recv[0] = recv[0] * 3 + count, after a while: results tell the order. */
static void k_step(const struct shunt_kargs &a)
{
	uint64_t *x = (uint64_t *)a.recv;

	for (int i = 0; i < 20; i++)
		gpu_relax();
	if (gpu_bid() == 0 && gpu_tid() == 0)
		*x = *x * 3 + a.count;
}

/* Polls *send until it is count. */
static void k_wait(const struct shunt_kargs &a)
{
	while (gpu_ld_acquire((const uint64_t *)a.send) != a.count)
		gpu_relax();
}

static void enqueue_step(void *x, uint64_t n, void *stream, int device = 0)
{
	struct shunt_kargs a = make_kargs(NULL, x, n);

	assert_ok(launch_fn(k_step, device, 2, 32, &a, stream));
}

/* It forks: before any thread is there. */
TEST(test_devices_are_told_apart_and_the_same_in_every_process)
{
	struct shunt_gpu_info info[8], theirs;
	const char *reason = NULL;
	int count, device = -1, pipes[2], status;

	assert_ok(ops->device_count(&count));
	assert_int_equal(count, 8);
	for (int i = 0; i < count; i++)
		assert_ok(ops->device_info(i, &info[i]));
	for (int i = 0; i < count; i++)
		for (int j = 0; j < count; j++) {
			assert_int_equal(
			    ops->peer_check(i, &info[j], &reason), i == j ? SHUNT_LINK_SELF : SHUNT_LINK_NVLINK);
			assert_int_equal(!memcmp(info[i].uuid, info[j].uuid, 16), i == j);
		}
	assert_null(reason);
	theirs = info[1];
	theirs.uuid[9] ^= 1;
	assert_int_equal(ops->peer_check(0, &theirs, &reason), -EOPNOTSUPP);
	assert_non_null(reason);
	assert_ok(ops->device_set(3));
	assert_ok(ops->device_get(&device));
	assert_int_equal(device, 3);
	assert_ok(ops->device_set(0));

	assert_ok(pipe(pipes));
	pid_t child = child_fork();
	if (!child) {
		memset(&theirs, 0, sizeof(theirs));
		ops->device_info(5, &theirs);
		_exit(write(pipes[1], &theirs, sizeof(theirs)) != sizeof(theirs));
	}
	assert_int_equal(read(pipes[0], &theirs, sizeof(theirs)), sizeof(theirs));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_memory_equal(&theirs, &info[5], sizeof(theirs));
	close(pipes[0]);
	close(pipes[1]);
}

TEST(test_stream_runs_in_order)
{
	uint64_t x = 0, want = 0, copy = 0, fill = 0;
	void *s;

	assert_ok(ops->stream_create(0, &s));
	for (uint64_t i = 1; i <= 30; i++) {
		enqueue_step(&x, i, s);
		want = want * 3 + i;
	}
	assert_ok(ops->copy_async(0, &copy, &x, sizeof(x), s));
	assert_ok(ops->memset_async(0, &fill, 0x1ff, sizeof(fill), s));
	enqueue_step(&x, 1, s);
	assert_ok(ops->stream_sync(0, s));
	assert_int_equal(copy, want);
	assert_int_equal(x, want * 3 + 1);
	assert_int_equal(fill, UINT64_MAX);
	ops->stream_destroy(0, s);
}

TEST(test_stream_args_are_copied_by_the_launch)
{
	uint64_t x = 0;
	struct shunt_kargs a = make_kargs(NULL, &x, 7);
	void *s;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(launch_fn(k_step, 0, 1, 32, &a, s));
	memset(&a, 0xff, sizeof(a));
	assert_ok(ops->stream_sync(0, s));
	assert_int_equal(x, 7);
	ops->stream_destroy(0, s);
}

TEST(test_stream_destroy_drains)
{
	uint64_t x = 0;
	void *s;

	assert_ok(ops->stream_create(0, &s));
	for (int i = 0; i < 10; i++)
		enqueue_step(&x, 1, s);
	ops->stream_destroy(0, s);
	assert_int_equal(x, 29524);
}

TEST(test_stream_default_handles_are_one_stream_per_device)
{
	uint64_t x = 0, y = 0;

	for (int i = 0; i < 5; i++)
		for (uintptr_t handle = 0; handle <= 2; handle++)
			enqueue_step(&x, handle + 1, (void *)handle);
	enqueue_step(&y, 5, NULL, 1);
	assert_ok(ops->stream_sync(0, (void *)1));
	assert_ok(ops->stream_sync(1, (void *)2));
	uint64_t want = 0;
	for (int i = 0; i < 15; i++)
		want = want * 3 + (uint64_t)(i % 3) + 1;
	assert_int_equal(x, want);
	assert_int_equal(y, 5);
	ops->stream_destroy(0, NULL);
	enqueue_step(&x, 0, NULL);
	assert_ok(ops->stream_sync(0, NULL));
	assert_int_equal(x, want * 3);
}

TEST(test_streams_are_independent_and_copy_reaches_a_spinning_kernel)
{
	uint64_t word = 0, x = 0, value = 42;
	struct shunt_kargs a = make_kargs(&word, NULL, 42);
	void *s, *t;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->stream_create(0, &t));
	assert_ok(launch_fn(k_wait, 0, 3, 64, &a, s));
	enqueue_step(&x, 3, t);
	assert_ok(ops->stream_sync(0, t));
	assert_int_equal(x, 3);
	assert_ok(ops->copy(0, &word, &value, sizeof(value)));
	assert_ok(ops->stream_sync(0, s));
	ops->stream_destroy(0, s);
	ops->stream_destroy(0, t);
}

TEST(test_event_wait_orders_two_streams)
{
	uint64_t x = 0, want = 0;
	void *s[2], *event;

	assert_ok(ops->stream_create(0, &s[0]));
	assert_ok(ops->stream_create(1, &s[1]));
	assert_ok(ops->event_create(0, false, &event));
	assert_ok(ops->event_wait(0, event, s[0])); /* never recorded: nothing to wait for */
	for (uint64_t i = 0; i < 40; i++) {
		enqueue_step(&x, i, s[i % 2], (int)(i % 2));
		assert_ok(ops->event_record((int)(i % 2), event, s[i % 2]));
		assert_ok(ops->event_wait((int)((i + 1) % 2), event, s[(i + 1) % 2]));
		want = want * 3 + i;
	}
	assert_ok(ops->stream_sync(0, s[0]));
	assert_ok(ops->stream_sync(1, s[1]));
	assert_int_equal(x, want);
	ops->event_destroy(0, event);
	ops->stream_destroy(0, s[0]);
	ops->stream_destroy(1, s[1]);
}

TEST(test_event_wait_means_the_record_before_it)
{
	uint64_t gate = 0, one = 1, x = 0;
	struct shunt_kargs a = make_kargs(&gate, NULL, 1);
	void *s, *t, *event;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->stream_create(0, &t));
	assert_ok(ops->event_create(0, false, &event));
	assert_ok(ops->event_record(0, event, s));
	assert_ok(ops->event_wait(0, event, t));
	assert_ok(launch_fn(k_wait, 0, 1, 32, &a, s));
	assert_ok(ops->event_record(0, event, s)); /* behind the kernel: not what t waits for */
	enqueue_step(&x, 9, t);
	assert_ok(ops->stream_sync(0, t));
	assert_int_equal(x, 9);
	/* Destroyed while the record is pending. */
	ops->event_destroy(0, event);
	assert_ok(ops->copy(0, &gate, &one, sizeof(one)));
	ops->stream_destroy(0, s);
	ops->stream_destroy(0, t);
}

/* A set of one kernel, whose index is 1. */
static void wait_kernel(const void *args)
{
	k_wait(*(const struct shunt_kargs *)args);
}
static shunt_sim_kernel *const kernels[] = { nullptr, wait_kernel };
static const struct shunt_kernel_desc kernel_descs[] = { {}, { "wait", sizeof(struct shunt_kargs), 0, false } };
static const struct shunt_kernel_set kernel_set = { 2, kernel_descs, kernels, nullptr, 0, "", 8, 512, 1, 1, 0 };

/* Its blocks have begun, and wait; what comes before in the stream has ended. */
TEST(test_event_of_a_launch_is_done_when_its_blocks_have_begun)
{
	uint32_t gate = 0;
	uint64_t word = 0, x = 0;
	struct shunt_kargs a = make_kargs(&word, NULL, 42);
	struct shunt_gpu_launch l = { 1, 2, 32, &a, NULL, 0, 0, NULL };
	void *s, *t;
	bool done;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->stream_create(0, &t));
	assert_ok(ops->event_create(0, false, &l.launched));
	l.stream = s;
	assert_ok(shunt_sim_gate(0, s, &gate));
	assert_ok(ops->launch(0, &l));
	assert_ok(ops->event_wait(0, l.launched, t)); /* the launch is in the queue: t waits for it */
	enqueue_step(&x, 7, t);
	assert_true(shunt_sim_wait_stuck(0, s)); /* at the gate */
	assert_ok(ops->event_done(0, l.launched, &done));
	assert_false(done);
	shunt_sim_gate_open(&gate);
	assert_ok(ops->stream_sync(0, t)); /* while the kernel waits */
	assert_int_equal(x, 7);
	assert_ok(ops->stream_idle(0, s, &done));
	assert_false(done);
	__atomic_store_n(&word, 42, __ATOMIC_RELEASE);
	assert_ok(ops->stream_sync(0, s));
	ops->event_destroy(0, l.launched);
	ops->stream_destroy(0, t);
	ops->stream_destroy(0, s);
}

TEST(test_event_elapsed_needs_two_complete_records)
{
	uint64_t gate = 0, one = 1;
	struct shunt_kargs a = make_kargs(&gate, NULL, 1);
	void *s, *start, *stop, *untimed;
	float us = -1;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->event_create(0, true, &start));
	assert_ok(ops->event_create(0, true, &stop));
	assert_ok(ops->event_create(0, false, &untimed));
	assert_int_equal(ops->event_elapsed_us(0, start, stop, &us), -EINVAL);
	assert_ok(ops->event_record(0, start, s));
	assert_ok(launch_fn(k_wait, 0, 1, 32, &a, s));
	assert_ok(ops->event_record(0, stop, s));
	assert_ok(ops->event_record(0, untimed, s));
	assert_int_equal(ops->event_elapsed_us(0, start, stop, &us), -EAGAIN);
	pause_us(PAUSE_LATE, 20000);
	assert_ok(ops->copy(0, &gate, &one, sizeof(one)));
	assert_ok(ops->stream_sync(0, s));
	assert_int_equal(ops->event_elapsed_us(0, start, untimed, &us), -EINVAL);
	assert_true(us == -1);
	assert_ok(ops->event_elapsed_us(0, start, stop, &us));
	assert_true(us > 10000 && us < 60e6f);
	ops->event_destroy(0, start);
	ops->event_destroy(0, stop);
	ops->event_destroy(0, untimed);
	ops->stream_destroy(0, s);
}

TEST(test_graph_replays_what_was_captured)
{
	enum shunt_capture capture;
	uint64_t x = 0, y = 0, want = 0;
	void *s, *t, *graph, *event;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->stream_create(0, &t));
	assert_ok(ops->event_create(0, false, &event));
	assert_ok(ops->capture_begin(0, s));
	assert_int_equal(ops->capture_begin(0, s), -EINVAL);
	assert_ok(ops->stream_capture(0, s, &capture));
	assert_int_equal(capture, SHUNT_CAPTURE_ACTIVE);
	enqueue_step(&x, 1, s);
	assert_ok(ops->event_record(0, event, s));
	assert_ok(ops->event_wait(0, event, s));
	enqueue_step(&x, 2, s);
	assert_ok(ops->copy_async(0, &y, &x, sizeof(x), s));
	assert_int_equal(ops->stream_sync(0, s), -EINVAL);
	assert_ok(ops->capture_end(0, s, &graph));
	assert_int_equal(ops->capture_end(0, s, &graph), -EINVAL);
	assert_ok(ops->stream_capture(0, s, &capture));
	assert_int_equal(capture, SHUNT_CAPTURE_NONE);
	assert_ok(ops->stream_sync(0, s));
	assert_int_equal(x, 0);
	for (int i = 0; i < 50; i++) {
		assert_ok(ops->graph_launch(0, graph, s));
		enqueue_step(&x, 5, s);
		want = ((want * 3 + 1) * 3 + 2) * 3 + 5;
	}
	/* Destroyed while launches are pending; the other stream never launched anything. */
	assert_ok(ops->event_record(0, event, s));
	assert_ok(ops->event_wait(0, event, t));
	assert_ok(ops->graph_launch(0, graph, t));
	ops->graph_destroy(0, graph);
	assert_ok(ops->stream_sync(0, t));
	want = (want * 3 + 1) * 3 + 2;
	assert_int_equal(x, want);
	assert_int_equal(y, want);
	assert_int_equal(ops->graph_launch(0, graph, s), -EINVAL);
	ops->event_destroy(0, event);
	ops->stream_destroy(0, s);
	ops->stream_destroy(0, t);
}

TEST(test_device_sync_invalidates_captures)
{
	enum shunt_capture capture;
	void *s, *graph;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->capture_begin(0, s));
	assert_ok(ops->device_sync(1));
	assert_ok(ops->stream_capture(0, s, &capture));
	assert_int_equal(capture, SHUNT_CAPTURE_ACTIVE);
	assert_int_equal(ops->device_sync(0), -EBUSY);
	assert_ok(ops->stream_capture(0, s, &capture));
	assert_int_equal(capture, SHUNT_CAPTURE_INVALID);
	assert_int_equal(ops->capture_end(0, s, &graph), -EBUSY);
	assert_ok(ops->stream_capture(0, s, &capture));
	assert_int_equal(capture, SHUNT_CAPTURE_NONE);
	assert_ok(ops->device_sync(0));
	ops->stream_destroy(0, s);
}

TEST(test_capture_forks_to_a_stream_that_waits_for_it)
{
	enum shunt_capture capture;
	void *s, *t, *graph, *event;
	uint64_t x = 0;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->stream_create(0, &t));
	assert_ok(ops->event_create(0, false, &event));
	assert_ok(ops->capture_begin(0, s));
	enqueue_step(&x, 1, s);
	assert_ok(ops->event_record(0, event, s));
	assert_int_equal(ops->event_wait(0, event, NULL), -EINVAL); /* the default stream has no part in captures */
	assert_ok(ops->event_wait(0, event, t));
	assert_ok(ops->stream_capture(0, t, &capture));
	assert_int_equal(capture, SHUNT_CAPTURE_ACTIVE);
	enqueue_step(&x, 2, t);
	assert_int_equal(ops->capture_end(0, t, &graph), -EINVAL);
	assert_ok(ops->event_record(0, event, t));
	assert_ok(ops->event_wait(0, event, s));
	enqueue_step(&x, 3, s);
	assert_ok(ops->capture_end(0, s, &graph));
	assert_ok(ops->stream_capture(0, t, &capture));
	assert_int_equal(capture, SHUNT_CAPTURE_NONE);
	assert_int_equal(ops->event_wait(0, event, t), -EINVAL); /* of a capture that is over */
	assert_ok(ops->graph_launch(0, graph, t));
	assert_ok(ops->stream_sync(0, t));
	assert_int_equal(x, (1 * 3 + 2) * 3 + 3);
	ops->graph_destroy(0, graph);
	/* The other stream leaves a capture that is given up. */
	assert_ok(ops->capture_begin(0, s));
	assert_ok(ops->event_record(0, event, s));
	assert_ok(ops->event_wait(0, event, t));
	ops->stream_destroy(0, s);
	assert_ok(ops->stream_sync(0, t));
	ops->stream_destroy(0, t);
	ops->event_destroy(0, event);
}

static void count_drop(void *arg)
{
	__atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

/* x only grows right if no two of its steps overlap and all come in the order of issue. */
TEST(test_external_events_order_graphs_by_their_launches)
{
	struct shunt_gpu_capture info, after;
	void *s[4], *graph[2], *outer, *event, *record;
	uint64_t x = 0, want = 0;
	int dropped = 0;

	assert_ok(ops->event_create(0, false, &event));
	for (void *&stream : s)
		assert_ok(ops->stream_create(0, &stream));
	assert_int_equal(ops->capture_wait(0, event, s[0]), -EINVAL);
	assert_ok(ops->capture_info(0, s[0], &info));
	assert_int_equal(info.state, SHUNT_CAPTURE_NONE);
	for (int g = 0; g < 2; g++) {
		assert_ok(ops->capture_begin(0, s[g]));
		assert_ok(ops->capture_info(0, s[g], &info));
		assert_int_equal(info.state, SHUNT_CAPTURE_ACTIVE);
		assert_null(info.node);
		assert_ok(ops->capture_retain(0, &info, count_drop, &dropped));
		assert_ok(ops->capture_wait(0, event, s[g]));
		enqueue_step(&x, 10 + g, s[g]);
		assert_ok(ops->capture_info(0, s[g], &info));
		assert_ok(ops->capture_record(0, &info, event, &record));
		enqueue_step(&x, 20 + g, s[g]);
		assert_ok(ops->capture_info(0, s[g], &after));
		assert_int_equal(after.id, info.id);
		assert_ptr_not_equal(after.node, info.node);
		assert_ok(ops->capture_join(0, s[g], info.node));
		assert_ok(ops->capture_move_record(0, &after, info.node, record));
		assert_ok(ops->capture_end(0, s[g], &graph[g]));
	}
	/* A graph within a graph brings its nodes along. */
	assert_ok(ops->capture_begin(0, s[0]));
	assert_ok(ops->graph_launch(0, graph[0], s[0]));
	assert_ok(ops->graph_launch(0, graph[1], s[0]));
	assert_ok(ops->capture_end(0, s[0], &outer));
	for (int i = 0; i < 200; i++) {
		void *on = s[i * 7 % 4];

		if (i % 4 == 3) {
			assert_ok(ops->event_wait(0, event, on));
			enqueue_step(&x, i, on);
			assert_ok(ops->event_record(0, event, on));
			want = want * 3 + i;
			continue;
		}
		assert_ok(ops->graph_launch(0, i % 4 == 2 ? outer : graph[i % 2], on));
		for (int g = 0; g < 2; g++)
			if (i % 4 == 2 || i % 2 == g)
				want = (want * 3 + 10 + g) * 3 + 20 + g;
	}
	ops->event_destroy(0, event); /* the graphs hold it */
	ops->graph_destroy(0, outer);
	ops->graph_destroy(0, graph[0]);
	assert_ok(ops->graph_launch(0, graph[1], s[0]));
	want = (want * 3 + 11) * 3 + 21;
	for (void *stream : s)
		assert_ok(ops->stream_sync(0, stream));
	assert_int_equal(x, want);
	ops->graph_destroy(0, graph[1]);
	for (void *stream : s)
		ops->stream_destroy(0, stream);
	assert_int_equal(dropped, 2);
}

TEST(test_wait_in_a_capture_for_work_outside_is_refused)
{
	void *s, *event;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->event_create(0, false, &event));
	assert_ok(ops->event_record(0, event, s));
	assert_ok(ops->capture_begin(0, s));
	assert_int_equal(ops->event_wait(0, event, s), -EINVAL);
	assert_int_equal(ops->capture_begin(0, NULL), -EINVAL);
	ops->stream_destroy(0, s); /* with a capture open */
	ops->event_destroy(0, event);
}

TEST(test_wrong_handles_are_errors)
{
	uint64_t x = 0;
	char nothing[4096] = { 0 };
	void *s, *old, *out = NULL;
	struct shunt_gpu_launch launch = { 1000000, 1, 32, &x, NULL };
	float us;

	assert_ok(ops->stream_create(0, &s));
	assert_ok(ops->stream_create(0, &old));
	ops->stream_destroy(0, old);
	for (void *wrong : { (void *)nothing, (void *)3, old }) {
		assert_int_equal(ops->stream_sync(0, wrong), -EINVAL);
		assert_int_equal(ops->copy_async(0, &x, &x, 8, wrong), -EINVAL);
		assert_int_equal(ops->event_record(0, wrong, s), -EINVAL);
		assert_int_equal(ops->event_wait(0, wrong, s), -EINVAL);
		assert_int_equal(ops->event_elapsed_us(0, wrong, wrong, &us), -EINVAL);
		assert_int_equal(ops->graph_launch(0, wrong, s), -EINVAL);
		assert_int_equal(ops->mem_free(wrong), -EINVAL);
		ops->stream_destroy(0, wrong);
		ops->event_destroy(0, wrong);
		ops->graph_destroy(0, wrong);
		ops->host_free(wrong);
	}
	assert_int_equal(ops->stream_sync(1, s), -EINVAL); /* of another device */
	assert_int_equal(ops->stream_sync(8, NULL), -EINVAL);
	assert_int_equal(ops->stream_create(-1, &out), -EINVAL);
	assert_int_equal(ops->device_set(99), -EINVAL);
	assert_int_equal(ops->launch(0, &launch), -EINVAL);
	assert_int_equal(ops->copy_async(0, NULL, &x, 8, s), -EINVAL);
	assert_false(ops->kernel_exists(1000000));
	assert_null(out);
	ops->stream_destroy(0, s);
}

TEST(test_memory_is_shared_by_descriptor)
{
	struct shunt_gpu_mem mine, map, borrowed, zero = {};
	int fd;

	assert_ok(ops->share_alloc(0, 100000, &mine));
	assert_true(mine.bytes >= 100000 && mine.fd >= 0);
	assert_true(fcntl(mine.fd, F_GETFD) & FD_CLOEXEC);
	for (size_t i = 0; i < mine.bytes; i++)
		assert_int_equal(((char *)mine.ptr)[i], 0);
	fd = dup(mine.fd);
	assert_ok(ops->share_map(1, fd, mine.bytes, &map));
	close(fd);
	assert_int_equal(map.fd, -1);
	assert_ptr_not_equal(map.ptr, mine.ptr);
	assert_ok(ops->share_borrow(1, mine.ptr, mine.bytes, &borrowed));
	assert_ptr_equal(borrowed.ptr, mine.ptr);
	strcpy((char *)mine.ptr + 5000, "over there");
	assert_string_equal((char *)map.ptr + 5000, "over there");
	/* What is not a peer's memory of that size is refused. */
	assert_int_equal(ops->share_map(1, mine.fd, mine.bytes + 4096, &zero), -EINVAL);
	assert_int_equal(ops->share_map(1, -1, mine.bytes, &zero), -EINVAL);
	fd = memfd_create("x", MFD_CLOEXEC);
	assert_ok(ftruncate(fd, (off_t)mine.bytes));
	assert_int_equal(ops->share_map(1, fd, mine.bytes, &zero), -EINVAL);
	close(fd);
	assert_int_equal(ops->share_alloc(0, 0, &zero), -EINVAL);
	assert_int_equal(ops->share_alloc(0, SIZE_MAX, &zero), -EINVAL);
	assert_true(ops->share_alloc(0, SIZE_MAX / 4, &zero) < 0);
	assert_null(zero.ptr);
	ops->share_free(&borrowed);
	fd = mine.fd;
	ops->share_free(&mine);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_string_equal((char *)map.ptr + 5000, "over there");
	ops->share_free(&map);
	ops->share_free(&map);
	assert_null(map.ptr);
}

TEST(test_memory_to_be_shared_is_passed_on_by_address)
{
	struct shunt_gpu_export out = { NULL, 0, -1 };
	struct shunt_gpu_mem map, alias, other;
	const char *reason = "";
	char *p, *plain, *again;
	size_t bytes;
	void *base;

	assert_ok(ops->mem_alloc_shared(2, 10000, (void **)&p));
	strcpy(p + 5000, "passed on");
	assert_ok(ops->share_export(2, p + 5000, 100, &out, &reason));
	assert_ptr_equal(out.base, p);
	assert_true(out.bytes >= 10000 && fcntl(out.fd, F_GETFD) & FD_CLOEXEC);
	assert_ok(ops->share_map(1, out.fd, out.bytes, &map));
	close(out.fd);
	assert_string_equal((char *)map.ptr + 5000, "passed on");
	assert_ok(ops->mem_range(p + 9999, &base, &bytes));
	assert_ptr_equal(base, p);
	assert_int_equal(bytes, out.bytes);
	assert_int_equal(ops->share_export(2, p + 5000, out.bytes, &out, &reason), -EOPNOTSUPP);
	assert_non_null(strstr(reason, "spans several"));
	assert_int_equal(ops->share_export(1, p, 1, &out, &reason), -EOPNOTSUPP);
	assert_ok(ops->mem_alloc(2, 1000, (void **)&plain));
	assert_int_equal(ops->share_export(2, plain, 1000, &out, &reason), -EOPNOTSUPP);
	assert_int_equal(ops->mem_range(plain, &base, &bytes), -ENOENT);
	assert_int_equal(ops->mem_free(p + 4096), -EINVAL);
	assert_ok(ops->share_alias(1, base, bytes, &alias));
	assert_int_equal(ops->share_alias(1, p + 4096, bytes, &other), -EINVAL);
	assert_ok(ops->mem_free(p));
	/* The memory, and its address, last as long as there are aliases. */
	assert_string_equal((char *)alias.ptr + 5000, "passed on");
	assert_ok(ops->mem_alloc_shared(2, 10000, (void **)&again));
	assert_ptr_not_equal(again, p);
	assert_ok(ops->mem_free(again));
	assert_int_equal(ops->share_alias(1, base, bytes, &other), -EINVAL);
	ops->share_free(&alias);
	ops->share_free(&alias);
	assert_int_equal(ops->mem_free(p), -EINVAL);
	assert_ok(ops->mem_free(plain));
	assert_string_equal((char *)map.ptr + 5000, "passed on");
	ops->share_free(&map);
	assert_int_equal(ops->mem_alloc_shared(0, 0, (void **)&p), -EINVAL);
	assert_int_equal(ops->mem_alloc_shared(8, 10, (void **)&p), -EINVAL);
}

TEST(test_queries_do_not_wait)
{
	uint64_t gate = 0, one = 1;
	struct shunt_kargs a = make_kargs(&gate, NULL, 1);
	void *s, *event, *graph;
	bool done = false;

	assert_ok(ops->stream_create(1, &s));
	assert_ok(ops->event_create(1, false, &event));
	assert_ok(ops->event_done(1, event, &done));
	assert_true(done);
	assert_ok(launch_fn(k_wait, 1, 1, 32, &a, s));
	assert_ok(ops->event_record(1, event, s));
	assert_ok(ops->stream_idle(1, s, &done));
	assert_false(done);
	done = true;
	assert_ok(ops->event_done(1, event, &done));
	assert_false(done);
	assert_ok(ops->copy(1, &gate, &one, sizeof(one)));
	while (!done)
		assert_ok(ops->event_done(1, event, &done));
	assert_ok(ops->stream_sync(1, s));
	done = false;
	assert_ok(ops->stream_idle(1, s, &done));
	assert_true(done);
	assert_ok(ops->capture_begin(1, s));
	assert_int_equal(ops->stream_idle(1, s, &done), -EINVAL);
	assert_ok(ops->capture_end(1, s, &graph));
	ops->graph_destroy(1, graph);
	ops->event_destroy(1, event);
	ops->stream_destroy(1, s);
}

TEST(test_memory_of_a_device_and_of_the_host)
{
	void *p, *host, *dev;
	size_t free_bytes = 1, total = 1;

	assert_ok(ops->mem_alloc(2, 1000, &p));
	assert_int_equal((uintptr_t)p % 512, 0);
	assert_int_equal(ops->mem_free((char *)p + 512), -EINVAL);
	assert_ok(ops->mem_free(p));
	assert_int_equal(ops->mem_free(p), -EINVAL);
	assert_ok(ops->mem_free(NULL));
	assert_true(ops->mem_alloc(0, SIZE_MAX / 4, &p) < 0);
	assert_ok(ops->host_alloc(10000, &host, &dev));
	assert_ptr_equal(host, dev);
	assert_int_equal(((char *)host)[9999], 0);
	ops->host_free(host);
	ops->host_free(NULL);
	assert_ok(ops->mem_info(0, &free_bytes, &total));
	assert_int_equal(free_bytes + total, 0);
	for (size_t bytes : { 1u, 4u, 8u, 13u, 4096u }) {
		static char from[4096], to[4097];

		memset(from, 7, bytes);
		memset(to, 0, sizeof(to));
		assert_ok(ops->copy(0, to, from, bytes));
		assert_memory_equal(to, from, bytes);
		assert_int_equal(to[bytes], 0);
	}
	assert_int_equal(ops->copy(0, NULL, NULL, 4), -EINVAL);
	assert_ok(ops->copy(0, NULL, NULL, 0));
}

TEST(test_device_sync_waits_for_all_streams_of_the_device)
{
	uint64_t x[3] = { 0, 0, 0 }, gate = 0, one = 1;
	struct shunt_kargs a = make_kargs(&gate, NULL, 1);
	void *s, *other;

	assert_ok(ops->stream_create(1, &s));
	assert_ok(ops->stream_create(2, &other));
	assert_ok(launch_fn(k_wait, 2, 1, 32, &a, other)); /* another device does not matter */
	for (int i = 0; i < 20; i++) {
		enqueue_step(&x[0], 1, s, 1);
		enqueue_step(&x[1], 2, NULL, 1);
	}
	assert_ok(ops->device_sync(1));
	assert_int_equal(x[0], 1743392200);
	assert_int_equal(x[1], 2 * 1743392200ul);
	assert_ok(ops->copy(2, &gate, &one, sizeof(one)));
	assert_ok(ops->device_sync(2));
	assert_int_equal(ops->device_sync(8), -EINVAL);
	ops->stream_destroy(1, s);
	ops->stream_destroy(2, other);
}

static void *use_streams(void *arg)
{
	for (int i = 0; i < 20; i++) {
		uint64_t x = 0;
		void *s, *event;

		assert_ok(ops->stream_create((int)(uintptr_t)arg, &s));
		assert_ok(ops->event_create(0, true, &event));
		enqueue_step(&x, 4, s, (int)(uintptr_t)arg);
		assert_ok(ops->event_record((int)(uintptr_t)arg, event, s));
		if (i % 2) {
			assert_ok(ops->stream_sync((int)(uintptr_t)arg, s));
			assert_int_equal(x, 4);
		} else if (i % 4) {
			assert_ok(ops->device_sync(((int)(uintptr_t)arg + 1) % 4)); /* while its streams come and go */
		}
		ops->stream_destroy((int)(uintptr_t)arg, s);
		assert_int_equal(x, 4);
		ops->event_destroy(0, event);
	}
	return NULL;
}

TEST(test_streams_may_be_used_from_many_threads)
{
	pthread_t t[4];

	for (uintptr_t i = 0; i < 4; i++)
		assert_ok(pthread_create(&t[i], NULL, use_streams, (void *)i));
	for (pthread_t i : t)
		pthread_join(i, NULL);
}

TESTS_BEGIN
{
	assert_ok(ops->open(&kernel_set));
}

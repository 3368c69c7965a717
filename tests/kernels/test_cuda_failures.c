/* SPDX-License-Identifier: MIT */
/* Each call of the driver fails once: the CUDA device layer says so and leaks nothing. */
#include "tests/kernels/cuda_setup.h"
#include "tests/support/entries.h"

/* What cannot be entered cannot be given back: only the test of clean-up lets that fail. */
static void cleanup_may_fail(void)
{
	if (!fake_cuda.fail_cleanup)
		fake_cuda.fail_at = 0;
}

/* Each makes something, uses it and gives it back, and returns the first error. */

static int use_share(void)
{
	struct shunt_gpu_mem a = { 0 }, b = { 0 }, c = { 0 };
	int err;

	if (!(err = ops->share_alloc(0, 1, &a)) && !(err = ops->share_map(1, a.fd, a.bytes, &b)))
		err = ops->share_borrow(1, a.ptr, a.bytes, &c);
	cleanup_may_fail();
	ops->share_free(&c);
	ops->share_free(&b);
	ops->share_free(&a);
	return err;
}

static int use_alias(void)
{
	struct shunt_gpu_mem a = { 0 };
	void *p = NULL;
	int err = ops->mem_alloc_shared(0, FAKE_GRANULE, &p);

	if (!err)
		err = ops->share_alias(1, p, FAKE_GRANULE, &a);
	cleanup_may_fail();
	ops->share_free(&a);
	ops->mem_free(p);
	return err;
}

static int use_mem(void)
{
	void *p;
	int err = ops->mem_alloc(1, 100, &p);

	if (err)
		return err;
	err = ops->mem_free(p);
	if (err)
		ops->mem_free(p); /* the first one changed nothing */
	return err;
}

static int use_host(void)
{
	void *host, *dev;
	int err = ops->host_alloc(100, &host, &dev);

	cleanup_may_fail();
	if (!err)
		ops->host_free(host);
	return err;
}

static int use_copy(void)
{
	char a = 1, b = 2;
	int err = ops->copy(1, &a, &b, 1);

	return err || a == 2 ? err : 1;
}

static int use_stream(void)
{
	void *stream = NULL, *event = NULL, *graph = NULL;
	struct shunt_gpu_capture info, after;
	enum shunt_capture cap;
	char a = 1, b = 2;
	int kept = 0, dropped = 0, err;
	void *record;

	if ((err = ops->stream_create(0, &stream)) || (err = ops->event_create(0, false, &event)) ||
	    (err = ops->stream_capture(0, stream, &cap)) || (err = ops->event_record(0, event, stream)) ||
	    (err = ops->event_wait(0, event, stream)) || (err = ops->copy_async(0, &a, &b, 1, stream)) ||
	    (err = ops->stream_sync(0, stream)) || (err = ops->device_sync(0)) || (err = ops->capture_begin(0, stream)))
		goto out;
	if (!(err = ops->capture_wait(0, event, stream)) && !(err = ops->capture_info(0, stream, &info)) &&
	    !(err = ops->capture_join(0, stream, info.node)) &&
	    !(err = ops->capture_record(0, &info, event, &record)) && !(err = ops->memset_async(0, &a, 3, 1, stream)) &&
	    !(err = ops->capture_info(0, stream, &after)) &&
	    !(err = ops->capture_move_record(0, &after, info.node, record))) {
		err = ops->capture_retain(0, &info, cuda_count_drop, &dropped);
		kept = 1;
	}
	if (!err)
		err = ops->memset_async(0, &a, 3, 1, stream);
	if (!err)
		err = ops->capture_end(0, stream, &graph);
	if (err) {
		cleanup_may_fail();
		if (!ops->stream_capture(0, stream, &cap) && cap == SHUNT_CAPTURE_ACTIVE)
			ops->capture_end(0, stream, &graph);
	}
	if (!err)
		err = ops->graph_launch(0, graph, stream);
out:
	cleanup_may_fail();
	ops->graph_destroy(0, graph);
	ops->event_destroy(0, event);
	ops->stream_destroy(0, stream);
	assert_true(dropped == kept || fake_cuda.fail_cleanup);
	return err;
}

static int (*const use_cases[])(void) = { use_share, use_alias, use_mem, use_host, use_copy, use_stream };

TEST(test_every_call_that_fails_is_reported_and_leaks_nothing)
{
	for (size_t u = 0; u < sizeof(use_cases) / sizeof(use_cases[0]); u++) {
		long n;

		for (n = 1; n < 1000; n++) {
			long live_objects = fake_cuda.live_objects;
			int fds = entries("/proc/self/fd"), err;

			fake_cuda.failed = NULL;
			fake_cuda.fail_at = fake_cuda.calls + n;
			mock_log_count = 0;
			err = use_cases[u]();
			fake_cuda.fail_at = 0;
			assert_int_equal(fake_cuda_pushed(), 0);
			assert_int_equal(fake_cuda_capture_mode(), 0);
			assert_int_equal(entries("/proc/self/fd"), fds);
			if (!fake_cuda.failed) {
				assert_int_equal(err, 0);
				assert_int_equal(fake_cuda.live_objects, live_objects);
				break;
			}
			assert_int_equal(fake_cuda.live_objects, live_objects);
			if (err == 0) {
				/*
				 * what the current context is is only asked to save a push, and an edge too many does
				 * no harm
				 */
				if (strcmp(fake_cuda.failed, "cuGraphRemoveDependencies"))
					assert_string_equal(fake_cuda.failed, "cuCtxGetCurrent");
				continue;
			}
			assert_int_equal(err, -ENOMEM);
			assert_int_equal(mock_log_count, 1);
		}
		assert_in_range(n, 3, 999);
	}
}

TEST(test_every_cleanup_that_fails_is_survived)
{
	for (size_t u = 0; u < sizeof(use_cases) / sizeof(use_cases[0]); u++) {
		for (long n = 1; n < 1000; n++) {
			bool fired;

			fake_cuda.failed = NULL;
			fake_cuda.fail_cleanup = true;
			fake_cuda.fail_at = fake_cuda.calls + n;
			use_cases[u]();
			fired = fake_cuda.failed;
			fake_cuda_reset_thread();
			cuda_each_setup(NULL);
			if (!fired)
				break;
		}
	}
}

int main(void)
{
	tests_each(cuda_each_setup, NULL);
	return tests_run(cuda_setup, NULL);
}

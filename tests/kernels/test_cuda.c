/* SPDX-License-Identifier: MIT */
/* The CUDA device layer against a driver that needs no GPU (fake_cuda). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/child_exit.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "device/cuda/dev.h"
#include "device/gpu_ops.h"
#include "kernels/fatbin.h"
#include "kernels/kargs.h"
#include "tests/device/mock_base.h"
#include "kernels/set.h"

#define SOURCE(name) [SHUNT_SOURCE_##name] = #name,
const char *const shunt_fatbins[SHUNT_NSOURCES] = { SHUNT_SOURCE_LIST(SOURCE) };
#undef SOURCE
const char shunt_fatbins_made[] = "nvcc 13.0 for sm_80, sm_90";

enum {
	NKERNELS_LISTED = 0
#define ONE(shape, op, opn, type, typen) +1
	SHUNT_KERNEL_LIST(ONE)
#undef ONE
};

static const struct shunt_gpu_ops *const ops = &shunt_gpu_cuda_ops;
enum {
	F32_SUM = SHUNT_KERNEL(SHUNT_SHAPE_twoshot8, SHUNT_KOP_SUM, 7),
	I8_SUM = SHUNT_KERNEL(SHUNT_SHAPE_twoshot8, SHUNT_KOP_SUM, 0), /* not in the list */
};

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int setup(void **state)
{
	char byte = 0, dst;

	if (ops->open(&shunt_kernels))
		return -1;
	/* What is kept for ever is made now, so that the tests can count the rest. */
	for (int d = 0; d < FAKE_DEVICES - 1; d++)
		if (ops->copy(d, &dst, &byte, 1))
			return -1;
	return ops->kernels_load(0);
}

static int each_setup(void **state)
{
	long live_objects = fake_cuda.live_objects, calls = fake_cuda.calls, contexts[FAKE_DEVICES];

	memcpy(contexts, fake_cuda.contexts, sizeof(contexts));
	fake_cuda_reset_thread();
	fake_cuda = (struct fake_cuda){ .cc = 90,
		.shared = 227 << 10,
		.fail_with = SHUNT_CU_OUT_OF_MEMORY,
		.live_objects = live_objects,
		.calls = calls };
	memcpy(fake_cuda.contexts, contexts, sizeof(contexts));
	fake_nvml = (struct fake_nvml){ 0 };
	mock_log_text[0] = '\0';
	mock_log_count = 0;
	return 0;
}

/* Runs fn in a process of its own, where the layer is not open yet if the test was started so. Returns its result. */
static int in_child(int (*fn)(long), long arg)
{
	int status;
	pid_t pid = child_fork();

	if (!pid)
		child_exit(fn(arg));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Devices. */

static void test_device_info_tells_name_uuid_and_capability(void **state)
{
	struct shunt_gpu_info info;
	int count;

	assert_int_equal(ops->device_count(&count), 0);
	assert_int_equal(count, FAKE_DEVICES - 1);
	assert_int_equal(ops->device_info(1, &info), 0);
	assert_string_equal(info.name, "Fake 1");
	assert_int_equal(info.uuid[15], 0xa1);
	assert_int_equal(info.sms, 132);
	assert_int_equal(info.cc, 90);
	assert_int_equal(info.sim, 0);
	assert_int_equal(ops->device_info(2, &info), -EINVAL);
	assert_int_equal(ops->device_info(-1, &info), -EINVAL);
}

static void test_device_get_without_context_is_zero(void **state)
{
	int device = -1;

	assert_int_equal(ops->device_get(&device), 0);
	assert_int_equal(device, 0);
	assert_int_equal(ops->device_set(1), 0);
	assert_int_equal(ops->device_get(&device), 0);
	assert_int_equal(device, 1);
	assert_int_equal(ops->device_set(7), -EINVAL);
	assert_int_equal(fake_cuda_pushed(), 0);
}

static void test_calls_restore_the_current_device(void **state)
{
	size_t free_bytes, total;
	int device;

	ops->device_set(0);
	assert_int_equal(ops->mem_info(1, &free_bytes, &total), 0);
	assert_int_equal(free_bytes, 1001);
	assert_int_equal(total, 2000);
	ops->device_get(&device);
	assert_int_equal(device, 0);
	assert_int_equal(fake_cuda_pushed(), 0);
	assert_int_equal(fake_cuda_capture_mode(), 0);
}

static void test_peer_check_asks_driver_or_nvml(void **state)
{
	struct shunt_gpu_info peer;
	const char *reason = NULL;

	assert_int_equal(ops->device_info(1, &peer), 0);
	assert_int_equal(ops->peer_check(0, &peer, &reason), 0);
	assert_null(reason);
	fake_cuda.no_nvlink = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	assert_non_null(strstr(reason, "NVLink"));
	fake_cuda.no_nvlink = false;
	fake_cuda.no_peer = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	fake_cuda.no_peer = false;
	assert_int_equal(ops->peer_check(0, &peer, &reason), 0);
	assert_int_equal(ops->peer_check(1, &peer, &reason), 0);
	peer.sim = 1;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	peer.sim = 0;

	/* A device that CUDA_VISIBLE_DEVICES hides. */
	memset(peer.uuid, 0xa2, sizeof(peer.uuid));
	assert_int_equal(ops->peer_check(0, &peer, &reason), 0);
	fake_nvml.no_nvlink = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	fake_nvml.no_nvlink = false;
	fake_nvml.no_write = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	fake_nvml.no_write = false;
	fake_nvml.no_init = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	fake_nvml.no_init = false;
	memset(peer.uuid, 0x11, sizeof(peer.uuid));
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	assert_int_equal(fake_nvml.users, 0);
	assert_int_equal(mock_log_count, 0);
}

/* Memory. */

static void test_share_alloc_is_zeroed_rounded_and_mapped_by_peers(void **state)
{
	struct shunt_gpu_mem mine, theirs, borrowed, again;
	uint32_t value = 0xdeadbeef, back = 1;

	assert_int_equal(ops->share_alloc(0, FAKE_GRANULE + 1, &mine), 0);
	assert_int_equal(mine.bytes, 2 * FAKE_GRANULE);
	assert_int_equal(mine.device, 0);
	assert_true(mine.fd >= 0);
	assert_false(mine.borrowed);
	assert_int_equal(ops->copy(0, &back, (char *)mine.ptr + FAKE_GRANULE, sizeof(back)), 0);
	assert_int_equal(back, 0);

	assert_int_equal(ops->share_map(1, mine.fd, mine.bytes, &theirs), 0);
	assert_ptr_not_equal(mine.ptr, theirs.ptr);
	assert_int_equal(theirs.fd, -1);
	assert_int_equal(ops->copy(1, (char *)theirs.ptr + 100, &value, sizeof(value)), 0);
	assert_int_equal(ops->copy(0, &back, (char *)mine.ptr + 100, sizeof(back)), 0);
	assert_int_equal(back, value);
	assert_true(fake_cuda_access(1, theirs.ptr));
	assert_false(fake_cuda_access(1, mine.ptr));

	assert_int_equal(ops->share_borrow(1, mine.ptr, mine.bytes, &borrowed), 0);
	assert_ptr_equal(borrowed.ptr, mine.ptr);
	assert_true(borrowed.borrowed);
	assert_true(fake_cuda_access(1, mine.ptr));
	assert_true(fake_cuda_access(0, mine.ptr));
	/* By two ranks on that device, and by another one on our own. */
	for (int device = 0; device < 2; device++) {
		assert_int_equal(ops->share_borrow(device, mine.ptr, mine.bytes, &again), 0);
		assert_ptr_equal(again.ptr, mine.ptr);
		ops->share_free(&again);
	}
	ops->share_free(&borrowed);
	assert_null(borrowed.ptr);
	assert_true(fake_cuda_access(0, mine.ptr));

	/* The mapping of a peer outlives the exporter's. */
	ops->share_free(&mine);
	back = 0;
	assert_int_equal(ops->copy(1, &back, (char *)theirs.ptr + 100, sizeof(back)), 0);
	assert_int_equal(back, value);
	ops->share_free(&theirs);
	ops->share_free(&theirs);
}

static void test_share_bad_arguments_are_refused(void **state)
{
	struct shunt_gpu_mem mem = { .ptr = (void *)1 };

	assert_int_equal(ops->share_alloc(0, 0, &mem), -EINVAL);
	assert_int_equal(ops->share_alloc(0, SIZE_MAX, &mem), -EINVAL);
	assert_int_equal(ops->share_alloc(5, 1, &mem), -EINVAL);
	assert_int_equal(ops->share_map(0, -1, FAKE_GRANULE, &mem), -EINVAL);
	assert_ptr_equal(mem.ptr, (void *)1);
}

static void test_share_export_passes_on_what_the_allocator_made_to_be_shared(void **state)
{
	struct shunt_gpu_export out = { .fd = -1 };
	struct shunt_gpu_mem theirs, alias;
	const char *reason = "";
	char *p, *plain, text[10];
	void *base;
	size_t bytes;
	int fd;

	assert_int_equal(ops->mem_alloc_shared(1, FAKE_GRANULE + 1, (void **)&p), 0);
	assert_int_equal(ops->copy(1, p + 100, "passed on", 10), 0);
	assert_int_equal(ops->share_export(1, p + 100, FAKE_GRANULE, &out, &reason), 0);
	assert_ptr_equal(out.base, p);
	assert_int_equal(out.bytes, 2 * FAKE_GRANULE);
	assert_int_equal(ops->share_map(0, out.fd, out.bytes, &theirs), 0);
	close(out.fd);
	assert_string_equal((char *)theirs.ptr + 100, "passed on");
	assert_int_equal(ops->mem_range(p + 70000, &base, &bytes), 0);
	assert_ptr_equal(base, p);
	assert_int_equal(bytes, 2 * FAKE_GRANULE);

	out.fd = -1;
	assert_int_equal(ops->share_export(1, p + 100, 2 * FAKE_GRANULE, &out, &reason), -EOPNOTSUPP);
	assert_non_null(strstr(reason, "spans several"));
	assert_int_equal(ops->share_export(0, p, 1, &out, &reason), -EOPNOTSUPP);
	assert_non_null(strstr(reason, "communicator's device"));
	fake_cuda.not_shareable = true;
	assert_int_equal(ops->share_export(1, p, 1, &out, &reason), -EOPNOTSUPP);
	assert_non_null(strstr(reason, "to be shared"));
	fake_cuda.not_shareable = false;
	assert_int_equal(ops->mem_alloc(1, 1000, (void **)&plain), 0);
	assert_int_equal(ops->share_export(1, plain, 1000, &out, &reason), -EOPNOTSUPP);
	assert_non_null(strstr(reason, "cudaMalloc"));
	assert_int_equal(out.fd, -1);
	assert_int_equal(ops->mem_range(&out, &base, &bytes), -ENOENT);
	assert_int_equal(mock_log_count, 0);

	assert_int_equal(ops->share_alias(0, p, 2 * FAKE_GRANULE, &alias), 0);
	assert_ptr_not_equal(alias.ptr, p);
	assert_string_equal((char *)alias.ptr + 100, "passed on");

	assert_int_equal(ops->mem_dmabuf(1, p, FAKE_GRANULE + 1, &fd), 0);
	assert_int_equal(pread(fd, text, sizeof(text), 100), sizeof(text));
	assert_string_equal(text, "passed on");
	close(fd);
	assert_int_equal(ops->mem_dmabuf(1, plain, 1000, &fd), -EOPNOTSUPP);
	assert_int_equal(mock_log_count, 0);

	/* The peers' mappings keep the memory. */
	assert_int_equal(ops->mem_free(p), 0);
	assert_int_equal(ops->mem_free(plain), 0);
	assert_string_equal((char *)theirs.ptr + 100, "passed on");
	assert_string_equal((char *)alias.ptr + 100, "passed on");
	ops->share_free(&theirs);
	ops->share_free(&alias);
	ops->share_free(&alias);
	assert_int_equal(ops->share_alias(0, p, 2 * FAKE_GRANULE, &alias), -EINVAL);
	assert_int_equal(ops->mem_alloc_shared(1, 0, (void **)&p), -EINVAL);
}

static void test_queries_do_not_wait(void **state)
{
	void *stream, *event;
	bool done = false;

	assert_int_equal(ops->stream_create(0, &stream), 0);
	assert_int_equal(ops->event_create(0, false, &event), 0);
	assert_int_equal(ops->event_record(0, event, stream), 0);
	assert_int_equal(ops->stream_idle(0, stream, &done), 0);
	assert_true(done);
	fake_cuda.busy = true;
	assert_int_equal(ops->stream_idle(0, stream, &done), 0);
	assert_false(done);
	done = true;
	assert_int_equal(ops->event_done(0, event, &done), 0);
	assert_false(done);
	fake_cuda.busy = false;
	assert_int_equal(ops->event_done(0, event, &done), 0);
	assert_true(done);
	assert_int_equal(mock_log_count, 0);
	ops->event_destroy(0, event);
	ops->stream_destroy(0, stream);
}

static void test_mem_free_finds_the_device(void **state)
{
	void *p, *q;

	assert_int_equal(ops->mem_alloc(1, 1000, &p), 0);
	assert_int_equal(ops->mem_alloc(0, 0, &q), 0);
	ops->device_set(0);
	assert_int_equal(ops->mem_free(p), 0);
	assert_int_equal(ops->mem_free(q), 0);
	assert_int_equal(ops->mem_free(NULL), 0);
	assert_int_equal(ops->mem_free(&p), -EINVAL);
	assert_non_null(strstr(mock_log_text, "CUDA_ERROR_"));
}

static void test_host_alloc_is_zeroed(void **state)
{
	unsigned char *host;
	void *dev;

	assert_int_equal(ops->host_alloc(64, (void **)&host, &dev), 0);
	for (int i = 0; i < 64; i++)
		assert_int_equal(host[i], 0);
	assert_non_null(dev);
	ops->host_free(host);
	ops->host_free(NULL);
	assert_int_equal(ops->host_alloc(0, (void **)&host, &dev), -EINVAL);
}

/* Streams, events, graphs. */

static void test_capture_records_work_and_replays_it(void **state)
{
	enum shunt_capture cap;
	void *stream, *graph;
	char buf[4] = "abc";

	assert_int_equal(ops->stream_create(1, &stream), 0);
	assert_int_equal(ops->stream_capture(1, stream, &cap), 0);
	assert_int_equal(cap, SHUNT_CAPTURE_NONE);
	assert_int_equal(ops->capture_begin(1, stream), 0);
	assert_int_equal(ops->stream_capture(1, stream, &cap), 0);
	assert_int_equal(cap, SHUNT_CAPTURE_ACTIVE);
	assert_int_equal(ops->memset_async(1, buf, 'x', 2, stream), 0);
	assert_string_equal(buf, "abc");
	assert_int_equal(ops->capture_end(1, stream, &graph), 0);
	assert_int_equal(ops->graph_launch(1, graph, stream), 0);
	assert_int_equal(ops->stream_sync(1, stream), 0);
	assert_string_equal(buf, "xxc");
	memcpy(buf, "abc", 4);
	assert_int_equal(ops->graph_launch(1, graph, stream), 0);
	assert_string_equal(buf, "xxc");
	ops->graph_destroy(1, graph);
	ops->stream_destroy(1, stream);
}

static void count_drop(void *arg)
{
	++*(int *)arg;
}

static void test_nodes_are_added_to_a_capture_in_progress(void **state)
{
	struct shunt_gpu_capture info, before;
	void *stream, *event, *record, *graph;
	char buf[4] = "abc";
	int dropped = 0;

	assert_int_equal(ops->stream_create(0, &stream), 0);
	assert_int_equal(ops->event_create(0, false, &event), 0);
	memset(&info, 0xff, sizeof(info));
	assert_int_equal(ops->capture_info(0, stream, &info), 0);
	assert_int_equal(info.state, SHUNT_CAPTURE_NONE);
	assert_int_equal(info.id, 0);
	assert_null(info.node);
	assert_int_equal(ops->capture_wait(0, event, stream), -EINVAL);

	assert_int_equal(ops->capture_begin(0, stream), 0);
	assert_int_equal(ops->capture_info(0, stream, &info), 0);
	assert_int_equal(info.state, SHUNT_CAPTURE_ACTIVE);
	assert_true(info.id != 0);
	assert_null(info.node);
	assert_int_equal(ops->capture_retain(0, &info, count_drop, &dropped), 0);
	assert_int_equal(ops->capture_wait(0, event, stream), 0);
	assert_int_equal(ops->capture_info(0, stream, &before), 0);
	assert_int_equal(before.id, info.id);
	assert_non_null(before.node);
	assert_int_equal(ops->capture_record(0, &before, event, &record), 0);
	assert_int_equal(fake_cuda_edges(before.graph, record), 1);
	assert_int_equal(ops->memset_async(0, buf, 'x', 2, stream), 0);
	assert_int_equal(ops->capture_info(0, stream, &info), 0);
	assert_ptr_not_equal(info.node, before.node);
	assert_ptr_not_equal(info.node, record);
	assert_int_equal(ops->capture_move_record(0, &info, before.node, record), 0);
	assert_int_equal(fake_cuda_edges(info.graph, record), 1);
	/* It was moved there. */
	assert_int_equal(ops->capture_move_record(0, &info, before.node, record), -EINVAL);
	assert_int_equal(ops->capture_join(0, stream, before.node), 0);
	assert_int_equal(fake_cuda.added_dependencies, 1);

	fake_cuda.edges_hidden = true;
	assert_int_equal(ops->capture_info(0, stream, &info), 0);
	assert_int_equal(info.id, before.id);
	assert_null(info.node);
	fake_cuda.edges_hidden = false;

	assert_int_equal(ops->capture_end(0, stream, &graph), 0);
	assert_int_equal(dropped, 0);
	assert_int_equal(ops->graph_launch(0, graph, stream), 0);
	assert_string_equal(buf, "xxc");
	ops->graph_destroy(0, graph);
	assert_int_equal(dropped, 1);
	ops->event_destroy(0, event);
	ops->stream_destroy(0, stream);
}

static void test_slow_calls_work_while_the_thread_captures(void **state)
{
	struct shunt_gpu_mem mem;
	void *stream, *graph, *p, *host, *dev;
	char a = 'a', b = 'b';

	assert_int_equal(ops->stream_create(0, &stream), 0);
	assert_int_equal(ops->capture_begin(0, stream), 0);
	assert_int_equal(ops->copy(0, &a, &b, 1), 0);
	assert_int_equal(a, 'b');
	assert_int_equal(ops->share_alloc(0, 1, &mem), 0);
	assert_int_equal(ops->mem_alloc(0, 1, &p), 0);
	assert_int_equal(ops->host_alloc(1, &host, &dev), 0);
	assert_int_equal(ops->kernels_load(1), 0);
	ops->host_free(host);
	assert_int_equal(ops->mem_free(p), 0);
	ops->share_free(&mem);
	/* A synchronisation that the program asks for is refused as CUDA refuses it. */
	assert_int_equal(ops->stream_sync(0, stream), -EBUSY);
	assert_int_equal(ops->capture_end(0, stream, &graph), 0);
	ops->graph_destroy(0, graph);
	ops->stream_destroy(0, stream);
}

static void test_stream_capture_error_of_the_legacy_stream_is_invalid(void **state)
{
	enum shunt_capture cap = SHUNT_CAPTURE_NONE;
	struct shunt_gpu_capture info;

	fake_cuda.capturing_result = SHUNT_CU_STREAM_CAPTURE_IMPLICIT;
	assert_int_equal(ops->stream_capture(0, NULL, &cap), 0);
	assert_int_equal(cap, SHUNT_CAPTURE_INVALID);
	assert_int_equal(ops->capture_info(0, NULL, &info), 0);
	assert_int_equal(info.state, SHUNT_CAPTURE_INVALID);
	assert_int_equal(mock_log_count, 0);
	fake_cuda.capturing_result = SHUNT_CU_ILLEGAL_ADDRESS;
	assert_int_equal(ops->stream_capture(0, NULL, &cap), -EIO);
	assert_int_equal(mock_log_count, 1);
}

static void test_event_elapsed_is_in_microseconds(void **state)
{
	void *stream, *a, *b;
	float us = -1;

	assert_int_equal(ops->stream_create(0, &stream), 0);
	assert_int_equal(ops->event_create(0, true, &a), 0);
	assert_int_equal(ops->event_create(0, true, &b), 0);
	assert_int_equal(ops->event_record(0, a, stream), 0);
	assert_int_equal(ops->event_elapsed_us(0, a, b, &us), -EAGAIN);
	assert_int_equal(mock_log_count, 0);
	assert_int_equal(ops->event_record(0, b, stream), 0);
	assert_int_equal(ops->event_wait(0, b, NULL), 0);
	assert_int_equal(ops->event_elapsed_us(0, a, b, &us), 0);
	assert_true(us == 1500.0f);
	ops->event_destroy(0, a);
	ops->event_destroy(0, b);
	ops->stream_destroy(0, stream);
}

/* Kernels. */

static void test_kernels_load_takes_every_row_of_the_list(void **state)
{
	int device = FAKE_DEVICES - 2;

	/* Device 0 was loaded by setup, device 1 perhaps by another test: both are cheap now. */
	assert_int_equal(ops->kernels_load(device), 0);
	fake_cuda.kernels_loaded = 0;
	assert_int_equal(ops->kernels_load(device), 0);
	assert_int_equal(ops->kernels_load(0), 0);
	assert_int_equal(fake_cuda.kernels_loaded, 0);
	assert_true(ops->kernel_exists(F32_SUM));
	assert_false(ops->kernel_exists(I8_SUM));
	assert_false(ops->kernel_exists(SHUNT_NKERNELS));
	assert_false(ops->kernel_exists(~0u));
}

static void test_launch_passes_arguments_stream_and_domain(void **state)
{
	struct shunt_kargs args = { .count = 77, .rank = 3 };
	struct shunt_gpu_launch launch = { .kernel = F32_SUM, .blocks = 8, .threads = 512, .args = &args };
	void *stream;

	assert_int_equal(ops->stream_create(0, &stream), 0);
	launch.stream = stream;
	ops->device_set(1);
	assert_int_equal(ops->launch(0, &launch), 0);
	assert_string_equal(fake_cuda.launch.kernel, "ncclDevKernel_Shunt_twoshot8_sum_f32");
	assert_int_equal(fake_cuda.launch.blocks, 8);
	assert_int_equal(fake_cuda.launch.threads, 512);
	assert_int_equal(fake_cuda.launch.device, 0);
	assert_int_equal(fake_cuda.launch.mem_sync_domain, SHUNT_CU_MEM_SYNC_DOMAIN_REMOTE);
	assert_ptr_equal(fake_cuda.launch.stream, stream);
	assert_memory_equal(fake_cuda.launch.args, &args, sizeof(args));

	launch.kernel = I8_SUM;
	assert_int_equal(ops->launch(0, &launch), -EINVAL);
	launch.kernel = SHUNT_NKERNELS;
	assert_int_equal(ops->launch(0, &launch), -EINVAL);
	assert_int_equal(fake_cuda.launch.count, 1);
	ops->stream_destroy(0, stream);
}

static void test_launch_costs_two_driver_calls_on_the_current_device(void **state)
{
	struct shunt_kargs args = { 0 };
	const struct shunt_gpu_launch launch = { .kernel = F32_SUM, .blocks = 1, .threads = 32, .args = &args };
	long before;

	ops->device_set(0);
	before = fake_cuda.calls;
	assert_int_equal(ops->launch(0, &launch), 0);
	assert_int_equal(fake_cuda.calls - before, 2);
}

/* Errors. */

static void test_errors_have_errno_and_name_the_cause(void **state)
{
	static const struct {
		int result, err;
	} rows[] = {
		{ SHUNT_CU_OUT_OF_MEMORY, -ENOMEM },
		{ SHUNT_CU_INVALID_VALUE, -EINVAL },
		{ SHUNT_CU_NO_DEVICE, -ENODEV },
		{ SHUNT_CU_ILLEGAL_ADDRESS, -EIO },
		{ 719, -EIO },
		{ 12345, -EIO },
		{ SHUNT_CU_STREAM_CAPTURE_WRONG_THREAD, -EBUSY },
	};
	void *event;

	ops->device_set(0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		mock_log_count = 0;
		fake_cuda.fail_with = rows[i].result;
		fake_cuda.fail_at = fake_cuda.calls + 3; /* exchange mode, current context, then it */
		assert_int_equal(ops->event_create(0, false, &event), rows[i].err);
		assert_string_equal(fake_cuda.failed, "cuEventCreate");
		assert_int_equal(mock_log_count, 1);
		assert_non_null(strstr(mock_log_text, "cuEventCreate on device 0: CUDA_ERROR_"));
	}
	/* The process is ending: nobody wants to hear it. */
	mock_log_count = 0;
	fake_cuda.fail_with = SHUNT_CU_DEINITIALIZED;
	fake_cuda.fail_at = fake_cuda.calls + 3;
	assert_int_equal(ops->event_create(0, false, &event), -ESHUTDOWN);
	assert_int_equal(mock_log_count, 0);
}

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
		err = ops->capture_retain(0, &info, count_drop, &dropped);
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

static void test_table_has_every_operation(void **state)
{
	void *const *op = (void *const *)ops; /* from open() on there are only pointers to functions */

	for (size_t i = offsetof(struct shunt_gpu_ops, open) / sizeof(void *); i < sizeof(*ops) / sizeof(void *); i++)
		if (!op[i])
			fail_msg("operation %zu is missing", i);
}

static int (*const use_cases[])(void) = { use_share, use_alias, use_mem, use_host, use_copy, use_stream };

static void test_every_call_that_fails_is_reported_and_leaks_nothing(void **state)
{
	for (size_t u = 0; u < sizeof(use_cases) / sizeof(use_cases[0]); u++) {
		long n;

		for (n = 1; n < 1000; n++) {
			long live_objects = fake_cuda.live_objects;
			int fds = open_fds(), err;

			fake_cuda.failed = NULL;
			fake_cuda.fail_at = fake_cuda.calls + n;
			mock_log_count = 0;
			err = use_cases[u]();
			fake_cuda.fail_at = 0;
			assert_int_equal(fake_cuda_pushed(), 0);
			assert_int_equal(fake_cuda_capture_mode(), 0);
			assert_int_equal(open_fds(), fds);
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

static void test_every_cleanup_that_fails_is_survived(void **state)
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
			each_setup(NULL);
			if (!fired)
				break;
		}
	}
}

/* In a process of its own: the n-th call of a first use fails; then it is tried again. */
static int fresh_kernels_load(long n)
{
	int err;

	if (ops->open(&shunt_kernels))
		return 2;
	fake_cuda.fail_at = n ? fake_cuda.calls + n : 0;
	fake_cuda.fail_with = SHUNT_CU_NO_BINARY_FOR_GPU;
	err = ops->kernels_load(1);
	if (!fake_cuda.failed)
		return err || fake_cuda.kernels_loaded != NKERNELS_LISTED ? 3 : 0;
	if (!strcmp(fake_cuda.failed, "cuOccupancyMaxActiveClusters")) {
		if (err || mock_log_count) /* then there are no clusters */
			return 4;
	} else if (strcmp(fake_cuda.failed, "cuCtxGetCurrent") && (err != -ENOEXEC || mock_log_count != 1)) {
		return 4;
	}
	fake_cuda.fail_at = 0;
	if (ops->kernels_load(1) || !ops->kernel_exists(F32_SUM))
		return 5;
	return 1;
}

static int fresh_open(long n)
{
	int err;

	fake_cuda.fail_at = n;
	err = ops->open(&shunt_kernels);
	if (!fake_cuda.failed)
		return err ? 3 : 0;
	return err == -ENOMEM && mock_log_count == 1 ? 1 : 4;
}

static void fail_each_until_none(int (*fn)(long), long at_least)
{
	int rc = 1;
	long n;

	for (n = 1; rc == 1 && n < 10 * NKERNELS_LISTED; n++)
		rc = in_child(fn, n);
	assert_int_equal(rc, 0);
	assert_true(n > at_least);
}

static void test_open_every_failure_is_an_error(void **state)
{
	fail_each_until_none(fresh_open, 10);
}

static void test_kernels_load_every_failure_is_an_error_and_can_be_repeated(void **state)
{
#ifdef __SANITIZE_THREAD__
	skip(); /* hundreds of processes of one thread */
#endif
	assert_int_equal(in_child(fresh_kernels_load, 0), 0);
	fail_each_until_none(fresh_kernels_load, 3 * NKERNELS_LISTED);
}

static int missing_kernel(long n)
{
	fake_cuda.missing_kernel = "ncclDevKernel_Shunt_twoshot8_ext_i64";
	if (ops->open(&shunt_kernels))
		return 2;
	return ops->kernels_load(0) == -ENOENT && strstr(mock_log_text, fake_cuda.missing_kernel) ? 0 : 1;
}

static void test_kernels_load_missing_kernel_is_named(void **state)
{
	assert_int_equal(in_child(missing_kernel, 0), 0);
}

static int no_device(long n)
{
	fake_cuda.init_result = SHUNT_CU_NO_DEVICE;
	return ops->open(&shunt_kernels) == -ENODEV && !mock_log_count ? 0 : 1;
}

static int fails_to_load(long at)
{
	char byte = 0, dst;

	if (ops->open(&shunt_kernels) || ops->copy(0, &dst, &byte, 1))
		return 1;
	fake_cuda.fail_with = SHUNT_CU_NO_BINARY_FOR_GPU;
	for (long n = 3; n < 40; n++) { /* behind the question which context is current, which may fail */
		fake_cuda.fail_at = fake_cuda.calls + n;
		if (ops->kernels_load(0) == -ENOEXEC && strstr(fake_cuda.failed, at ? "GetFunction" : "LoadData"))
			return !strstr(mock_log_text,
			    "built by nvcc 13.0 for sm_80, sm_90, on device 0 (sm_90, driver for CUDA 12.2): ");
	}
	return 2;
}

/* At once, or for each kernel where they are loaded lazily. */
static void test_kernels_load_failure_tells_what_they_were_built_for(void **state)
{
	assert_int_equal(in_child(fails_to_load, 0), 0);
	assert_int_equal(in_child(fails_to_load, 1), 0);
}

static int survives_device_reset(long program_first)
{
	char from = 1, to = 0;

	if (ops->open(&shunt_kernels) || ops->kernels_load(0) || ops->kernels_load(1) || ops->copy(0, &to, &from, 1))
		return 1;
	fake_cuda_device_reset(0);
	fake_cuda.contexts[0] += program_first; /* it has begun anew before we do */
	to = 0;
	if (ops->kernels_load(0) || ops->kernels_load(1) || ops->copy(0, &to, &from, 1) || to != 1)
		return 2;
	/* Ours on each device, and nothing a second time. */
	return fake_cuda.kernels_loaded != 3 * NKERNELS_LISTED || fake_cuda.contexts[0] != 1 + program_first ||
	        fake_cuda.contexts[1] != 1 ?
	    3 :
	    0;
}

/* What is kept for a device is gone then, and the driver crashes when it is asked about a stream that is. */
static void test_kernels_load_comes_back_from_a_device_reset(void **state)
{
	assert_int_equal(in_child(survives_device_reset, 0), 0);
	assert_int_equal(in_child(survives_device_reset, 1), 0);
}

static int open_with_cuda_12_0(long unused)
{
	fake_cuda.driver = 12000;
	return ops->open(&shunt_kernels) != -ENOSYS ||
	    !strstr(mock_log_text, "is for CUDA 12.0; Shunt needs a driver for CUDA 12.1");
}

/* It would load all kernels, and refuse to launch those with more than 4 KB of parameters. */
static void test_open_a_driver_without_long_parameters_is_refused(void **state)
{
	assert_int_equal(in_child(open_with_cuda_12_0, 0), 0);
}

static int context_means_in_use(long unused)
{
	if (ops->open(&shunt_kernels) || ops->in_use())
		return 1;
	fake_cuda.contexts[1]++; /* the program's, on another thread */
	if (!ops->in_use())
		return 2;
	fake_cuda.contexts[1]--;
	return ops->in_use() || ops->device_set(0) || !ops->in_use() ? 3 : 0;
}

static void test_a_context_tells_that_devices_are_in_use(void **state)
{
	assert_int_equal(in_child(context_means_in_use, 0), 0);
}

static void test_open_without_device_is_silent(void **state)
{
	assert_int_equal(in_child(no_device, 0), 0);
}

static int launch_on_sm_80(long n)
{
	struct shunt_kargs args = { 0 };
	const struct shunt_gpu_launch launch = { .kernel = F32_SUM, .blocks = 1, .threads = 32, .args = &args };

	fake_cuda.cc = 80;
	if (ops->open(&shunt_kernels) || ops->kernels_load(0) || ops->launch(0, &launch))
		return 1;
	return fake_cuda.launch.count == 1 && fake_cuda.launch.mem_sync_domain == -1 ? 0 : 2;
}

static void test_launch_before_sm_90_has_no_domain(void **state)
{
	assert_int_equal(in_child(launch_on_sm_80, 0), 0);
}

/*
 * The event of a launch is an attribute of it, among those that it has anyway, from CUDA 12.3 on; before, it is
 * recorded in front of the launch.
 */
static int launch_with_event(long n)
{
	static const struct {
		int cc, driver, clusters;
	} cases[] = { { 90, 12030, 0 }, { 90, 12030, 16 }, { 80, 13000, 0 }, { 90, 12020, 0 }, { 80, 12020, 0 } };
	bool attribute = cases[n].driver >= 12030;
	struct shunt_kargs args = { 0 };
	struct shunt_gpu_launch launch = {
		.kernel = F32_SUM, .blocks = 64, .threads = 512, .args = &args, .cluster = cases[n].clusters ? 8 : 0
	};

	fake_cuda.cc = cases[n].cc;
	fake_cuda.driver = cases[n].driver;
	fake_cuda.clusters = cases[n].clusters;
	if (ops->open(&shunt_kernels) || ops->kernels_load(0) || ops->event_create(0, false, &launch.launched) ||
	    ops->launch(0, &launch))
		return 1;
	if (attribute != (fake_cuda.launch.event == launch.launched))
		return 2;
	if (fake_cuda.launch.mem_sync_domain != (cases[n].cc < 90 ? -1 : SHUNT_CU_MEM_SYNC_DOMAIN_REMOTE) ||
	    fake_cuda.launch.cluster != (cases[n].clusters ? 8u : 0u))
		return 3;
	if (fake_cuda.launch.count != 1 || !fake_cuda_recorded(launch.launched))
		return 4;
	launch.launched = NULL;
	if (ops->launch(0, &launch) || (cases[n].cc >= 90 && fake_cuda.launch.event))
		return 5;
	return 0;
}

static void test_launch_records_the_event_of_its_beginning(void **state)
{
	for (long i = 0; i < 5; i++)
		assert_int_equal(in_child(launch_with_event, i), 0);
}

/*
 * Blocks of a cluster that a launch of `blocks` as clusters of 8 comes with, or a negative number, where a device has
 * room for so many of them.
 */
static int cluster_of(int cc, int clusters, unsigned blocks)
{
	struct shunt_kargs args = { 0 };
	const struct shunt_gpu_launch launch = {
		.kernel = F32_SUM, .blocks = blocks, .threads = 512, .args = &args, .cluster = 8
	};

	fake_cuda.cc = cc;
	fake_cuda.clusters = clusters;
	if (ops->open(&shunt_kernels) || ops->kernels_load(0) || ops->launch(0, &launch))
		return -1;
	return (int)fake_cuda.launch.cluster;
}

static int launch_in_clusters(long n)
{
	return cluster_of(90, 8, 64) == 8 ? 0 : 1;
}

/* 132 SMs, less 64 of single blocks and 3 of each GPC. */
static int clusters_beside_others(long n)
{
	int room = cluster_of(90, n ? 0 : 32, 64);

	if (room != (n ? 0 : 8))
		return 1;
	return ops->cluster_blocks(0) == (n ? 0 : 44) ? 0 : 2;
}

static int launch_without_clusters(long n)
{
	static const struct {
		int cc, clusters;
		unsigned blocks;
	} cases[] = { { 90, 16, 65 }, { 90, 7, 64 }, { 80, 16, 64 } };

	return cluster_of(cases[n].cc, cases[n].clusters, cases[n].blocks);
}

static void test_launch_comes_in_clusters_where_they_have_room(void **state)
{
	assert_int_equal(in_child(launch_in_clusters, 0), 0);
	assert_int_equal(in_child(clusters_beside_others, 0), 0);
	assert_int_equal(in_child(clusters_beside_others, 1), 0);
	for (long i = 0; i < 3; i++)
		assert_int_equal(in_child(launch_without_clusters, i), 0);
}

/* Whether a device has bulk copies, and its kernels the memory for them. */
static int tma_copies(int cc, int shared, bool want)
{
	struct shunt_kargs_few args = { 0 };
	const struct shunt_gpu_launch launch = {
		.kernel = SHUNT_KERNEL(SHUNT_SHAPE_tma2, SHUNT_KOP_SUM, SHUNT_F32),
		.blocks = 36,
		.threads = 512,
		.args = &args,
		.shared = want ? SHUNT_TMA_BYTES(15) : 0,
	};
	struct shunt_gpu_info info;

	fake_cuda.cc = cc;
	fake_cuda.shared = shared;
	if (ops->open(&shunt_kernels) || ops->device_info(0, &info) || ops->kernels_load(0) || ops->launch(0, &launch))
		return 1;
	if (info.tma != want || (fake_cuda.kernels_large_shared != 0) != want)
		return 2;
	return !want || fake_cuda.launch.shared == SHUNT_TMA_BYTES(15) ? 0 : 3;
}

static int tma_copies_case(long n)
{
	static const struct {
		int cc, shared;
		bool want;
	} cases[] = { { 90, 227 << 10, true }, { 100, 227 << 10, true }, { 120, 99 << 10, false },
		{ 80, 163 << 10, false } };

	return tma_copies(cases[n].cc, cases[n].shared, cases[n].want);
}

static void test_tma_where_there_is_shared_memory_for_it(void **state)
{
	for (long i = 0; i < 4; i++)
		assert_int_equal(in_child(tma_copies_case, i), 0);
}

static int other_device_only(long n)
{
	void *host, *dev, *ctx;
	char a = 1, b = 2;

	if (ops->open(&shunt_kernels))
		return 1;
	if (n) {
		/* the program works on device 1, as cudaSetDevice(1) does; we have used none yet */
		if (shunt_cu.DevicePrimaryCtxRetain(&ctx, 1) || shunt_cu.CtxSetCurrent(ctx))
			return 2;
	} else if (ops->copy(1, &a, &b, 1)) {
		return 3;
	}
	if (ops->host_alloc(8, &host, &dev))
		return 4;
	ops->host_free(host);
	return fake_cuda.contexts[0] || !fake_cuda.contexts[1] ? 5 : 0;
}

static void test_host_alloc_makes_no_context_on_device_zero(void **state)
{
	assert_int_equal(in_child(other_device_only, 0), 0);
	assert_int_equal(in_child(other_device_only, 1), 0);
}

static void *load_thread(void *arg)
{
	char a = 1, b = 2;

	return (void *)(intptr_t)(ops->copy(0, &a, &b, 1) || a != 2 || ops->kernels_load(0) || ops->kernels_load(1));
}

static int first_use_by_many(long n)
{
	pthread_t t[8];
	int bad = 0;
	void *ret;

	if (ops->open(&shunt_kernels))
		return 2;
	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, load_thread, NULL);
	for (int i = 0; i < 8; i++) {
		pthread_join(t[i], &ret);
		bad |= (int)(intptr_t)ret;
	}
	return bad || fake_cuda.kernels_loaded != 2 * NKERNELS_LISTED || fake_cuda.contexts[0] != 1 ||
	    fake_cuda.contexts[1] != 1;
}

static void test_first_use_by_many_threads_happens_once(void **state)
{
	assert_int_equal(in_child(first_use_by_many, 0), 0);
}

int main(void)
{
	/* These need a process in which the layer was not opened: they come first, without setup. */
	const struct CMUnitTest fresh[] = {
		cmocka_unit_test(test_table_has_every_operation),
		cmocka_unit_test(test_open_every_failure_is_an_error),
		cmocka_unit_test(test_kernels_load_failure_tells_what_they_were_built_for),
		cmocka_unit_test(test_kernels_load_comes_back_from_a_device_reset),
		cmocka_unit_test(test_open_a_driver_without_long_parameters_is_refused),
		cmocka_unit_test(test_a_context_tells_that_devices_are_in_use),
		cmocka_unit_test(test_open_without_device_is_silent),
		cmocka_unit_test(test_kernels_load_every_failure_is_an_error_and_can_be_repeated),
		cmocka_unit_test(test_kernels_load_missing_kernel_is_named),
		cmocka_unit_test(test_launch_before_sm_90_has_no_domain),
		cmocka_unit_test(test_launch_records_the_event_of_its_beginning),
		cmocka_unit_test(test_launch_comes_in_clusters_where_they_have_room),
		cmocka_unit_test(test_tma_where_there_is_shared_memory_for_it),
		cmocka_unit_test(test_host_alloc_makes_no_context_on_device_zero),
		cmocka_unit_test(test_first_use_by_many_threads_happens_once),
	};
	const struct CMUnitTest opened[] = {
		cmocka_unit_test_setup(test_device_info_tells_name_uuid_and_capability, each_setup),
		cmocka_unit_test_setup(test_device_get_without_context_is_zero, each_setup),
		cmocka_unit_test_setup(test_calls_restore_the_current_device, each_setup),
		cmocka_unit_test_setup(test_peer_check_asks_driver_or_nvml, each_setup),
		cmocka_unit_test_setup(test_share_alloc_is_zeroed_rounded_and_mapped_by_peers, each_setup),
		cmocka_unit_test_setup(test_share_bad_arguments_are_refused, each_setup),
		cmocka_unit_test_setup(test_share_export_passes_on_what_the_allocator_made_to_be_shared, each_setup),
		cmocka_unit_test_setup(test_queries_do_not_wait, each_setup),
		cmocka_unit_test_setup(test_mem_free_finds_the_device, each_setup),
		cmocka_unit_test_setup(test_host_alloc_is_zeroed, each_setup),
		cmocka_unit_test_setup(test_capture_records_work_and_replays_it, each_setup),
		cmocka_unit_test_setup(test_nodes_are_added_to_a_capture_in_progress, each_setup),
		cmocka_unit_test_setup(test_slow_calls_work_while_the_thread_captures, each_setup),
		cmocka_unit_test_setup(test_stream_capture_error_of_the_legacy_stream_is_invalid, each_setup),
		cmocka_unit_test_setup(test_event_elapsed_is_in_microseconds, each_setup),
		cmocka_unit_test_setup(test_kernels_load_takes_every_row_of_the_list, each_setup),
		cmocka_unit_test_setup(test_launch_passes_arguments_stream_and_domain, each_setup),
		cmocka_unit_test_setup(test_launch_costs_two_driver_calls_on_the_current_device, each_setup),
		cmocka_unit_test_setup(test_errors_have_errno_and_name_the_cause, each_setup),
		cmocka_unit_test_setup(test_every_call_that_fails_is_reported_and_leaks_nothing, each_setup),
		cmocka_unit_test_setup(test_every_cleanup_that_fails_is_survived, each_setup),
	};
	int failed = cmocka_run_group_tests_name("fresh", fresh, NULL, NULL);

	return failed + cmocka_run_group_tests_name("opened", opened, setup, NULL);
}

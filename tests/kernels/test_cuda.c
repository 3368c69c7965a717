/* SPDX-License-Identifier: MIT */
/* The CUDA device layer against a driver that needs no GPU (fake_cuda). */
#include "tests/kernels/cuda_setup.h"

/* Devices. */

TEST(test_device_info_tells_name_uuid_and_capability, .setup_func = cuda_each_setup)
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

TEST(test_device_get_without_context_is_zero, .setup_func = cuda_each_setup)
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

TEST(test_calls_restore_the_current_device, .setup_func = cuda_each_setup)
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

TEST(test_peer_check_asks_driver_or_nvml, .setup_func = cuda_each_setup)
{
	struct shunt_gpu_info peer;
	const char *reason = NULL;

	assert_int_equal(ops->device_info(1, &peer), 0);
	assert_int_equal(ops->peer_check(0, &peer, &reason), SHUNT_LINK_NVLINK);
	assert_null(reason);
	fake_cuda.no_nvlink = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), SHUNT_LINK_PEER);
	assert_non_null(strstr(reason, "NVLink"));
	fake_cuda.no_nvlink = false;
	fake_cuda.no_peer = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	fake_cuda.no_peer = false;
	assert_int_equal(ops->peer_check(0, &peer, &reason), SHUNT_LINK_NVLINK);
	assert_int_equal(ops->peer_check(1, &peer, &reason), SHUNT_LINK_SELF);
	peer.sim = 1;
	assert_int_equal(ops->peer_check(0, &peer, &reason), -EOPNOTSUPP);
	peer.sim = 0;

	/* A device that CUDA_VISIBLE_DEVICES hides. */
	memset(peer.uuid, 0xa2, sizeof(peer.uuid));
	assert_int_equal(ops->peer_check(0, &peer, &reason), SHUNT_LINK_NVLINK);
	fake_nvml.no_nvlink = true;
	assert_int_equal(ops->peer_check(0, &peer, &reason), SHUNT_LINK_PEER);
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

TEST(test_share_alloc_is_zeroed_rounded_and_mapped_by_peers, .setup_func = cuda_each_setup)
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

TEST(test_share_bad_arguments_are_refused, .setup_func = cuda_each_setup)
{
	struct shunt_gpu_mem mem = { .ptr = (void *)1 };

	assert_int_equal(ops->share_alloc(0, 0, &mem), -EINVAL);
	assert_int_equal(ops->share_alloc(0, SIZE_MAX, &mem), -EINVAL);
	assert_int_equal(ops->share_alloc(5, 1, &mem), -EINVAL);
	assert_int_equal(ops->share_map(0, -1, FAKE_GRANULE, &mem), -EINVAL);
	assert_ptr_equal(mem.ptr, (void *)1);
}

TEST(test_share_export_passes_on_what_the_allocator_made_to_be_shared, .setup_func = cuda_each_setup)
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

TEST(test_queries_do_not_wait, .setup_func = cuda_each_setup)
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

TEST(test_mem_free_finds_the_device, .setup_func = cuda_each_setup)
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

TEST(test_host_alloc_is_zeroed, .setup_func = cuda_each_setup)
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

TEST(test_capture_records_work_and_replays_it, .setup_func = cuda_each_setup)
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

TEST(test_a_stream_writes_marks_unless_the_driver_refuses, .setup_func = cuda_each_setup)
{
	void *host, *dev, *stream;

	assert_int_equal(ops->host_alloc(64, &host, &dev), 0);
	assert_int_equal(ops->stream_create(1, &stream), 0);
	assert_int_equal(ops->mark(1, stream, (uint64_t *)dev + 1, 0x123456789a), 0);
	assert_true(((uint64_t *)host)[1] == 0x123456789a);
	fake_cuda.no_marks = true;
	assert_int_equal(ops->mark(1, stream, (uint64_t *)dev + 1, 7), -EOPNOTSUPP);
	fake_cuda.no_marks = false;
	assert_true(((uint64_t *)host)[1] == 0x123456789a);
	assert_int_equal(fake_cuda_pushed(), 0);
	ops->stream_destroy(1, stream);
	ops->host_free(host);
}

TEST(test_nodes_are_added_to_a_capture_in_progress, .setup_func = cuda_each_setup)
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
	assert_int_equal(ops->capture_retain(0, &info, cuda_count_drop, &dropped), 0);
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

TEST(test_slow_calls_work_while_the_thread_captures, .setup_func = cuda_each_setup)
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

TEST(test_stream_capture_error_of_the_legacy_stream_is_invalid, .setup_func = cuda_each_setup)
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

TEST(test_event_elapsed_is_in_microseconds, .setup_func = cuda_each_setup)
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

TEST(test_kernels_load_takes_every_row_of_the_list, .setup_func = cuda_each_setup)
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

TEST(test_launch_passes_arguments_stream_and_domain, .setup_func = cuda_each_setup)
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

TEST(test_launch_of_the_programs_kernel_passes_its_parameters, .setup_func = cuda_each_setup)
{
	struct shunt_kargs args = { .rank = 3 };
	const void *params[] = { &args };
	char name[] = "theirs";
	struct shunt_gpu_function function = { .function = name };
	struct shunt_gpu_launch launch = { .blocks = 2, .threads = 64, .args = &args };

	assert_int_equal(ops->launch_function(0, &function, &launch, sizeof(args)), 0);
	assert_memory_equal(fake_cuda.launch.args, &args, sizeof(args));
	args.rank = 4;
	function.has_params = true;
	launch.args = params;
	assert_int_equal(ops->launch_function(0, &function, &launch, sizeof(args)), 0);
	assert_string_equal(fake_cuda.launch.kernel, "theirs");
	assert_memory_equal(fake_cuda.launch.args, &args, sizeof(args));
}

TEST(test_launch_costs_two_driver_calls_on_the_current_device, .setup_func = cuda_each_setup)
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

TEST(test_errors_have_errno_and_name_the_cause, .setup_func = cuda_each_setup)
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

TEST(test_table_has_every_operation)
{
	void *const *op = (void *const *)ops; /* from open() on there are only pointers to functions */

	for (size_t i = offsetof(struct shunt_gpu_ops, open) / sizeof(void *); i < sizeof(*ops) / sizeof(void *); i++)
		if (!op[i])
			fail_msg("operation %zu is missing", i);
}

int main(void)
{
	return tests_run(cuda_setup, NULL);
}

/* SPDX-License-Identifier: MIT */
/* The first use of the CUDA device layer, in a process in which it was not opened: failures, drivers and devices of
 * other kinds. */
#include "tests/kernels/cuda_setup.h"

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
		rc = cuda_in_child(fn, n);
	assert_int_equal(rc, 0);
	assert_true(n > at_least);
}

TEST_CALL(test_open_every_failure_is_an_error, fail_each_until_none(fresh_open, 10))

TEST(test_kernels_load_every_failure_is_an_error_and_can_be_repeated)
{
#ifdef __SANITIZE_THREAD__
	skip(); /* hundreds of processes of one thread */
#endif
	assert_int_equal(cuda_in_child(fresh_kernels_load, 0), 0);
	fail_each_until_none(fresh_kernels_load, 3 * NKERNELS_LISTED);
}

static int missing_kernel(long n)
{
	fake_cuda.missing_kernel = "ncclDevKernel_Shunt_twoshot8_ext_i64";
	if (ops->open(&shunt_kernels))
		return 2;
	return ops->kernels_load(0) == -ENOENT && strstr(mock_log_text, fake_cuda.missing_kernel) ? 0 : 1;
}

TEST_CALL(test_kernels_load_missing_kernel_is_named, assert_int_equal(cuda_in_child(missing_kernel, 0), 0))

TEST_OF(int, (long n), test_open_without_device_is_silent, cuda_in_child(body, 0))
{
	fake_cuda.init_result = SHUNT_CU_NO_DEVICE;
	return ops->open(&shunt_kernels) == -ENODEV && !mock_log_count ? 0 : 1;
}

/* At once, or for each kernel where they are loaded lazily. */
TEST_OF(int, (long at), test_kernels_load_failure_tells_what_they_were_built_for,
    cuda_in_child(body, 0) + cuda_in_child(body, 1))
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

/* What is kept for a device is gone then, and the driver crashes when it is asked about a stream that is. */
TEST_OF(int, (long program_first), test_kernels_load_comes_back_from_a_device_reset,
    cuda_in_child(body, 0) + cuda_in_child(body, 1))
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

/* It would load all kernels, and refuse to launch those with more than 4 KB of parameters. */
TEST_OF(int, (long unused), test_open_a_driver_without_long_parameters_is_refused, cuda_in_child(body, 0))
{
	fake_cuda.driver = 12000;
	return ops->open(&shunt_kernels) != -ENOSYS ||
	    !strstr(mock_log_text, "is for CUDA 12.0; Shunt needs a driver for CUDA 12.1");
}

TEST_OF(int, (long unused), test_a_context_tells_that_devices_are_in_use, cuda_in_child(body, 0))
{
	if (ops->open(&shunt_kernels) || ops->in_use())
		return 1;
	fake_cuda.contexts[1]++; /* the program's, on another thread */
	if (!ops->in_use())
		return 2;
	fake_cuda.contexts[1]--;
	return ops->in_use() || ops->device_set(0) || !ops->in_use() ? 3 : 0;
}

TEST_OF(int, (long n), test_launch_before_sm_90_has_no_domain, cuda_in_child(body, 0))
{
	struct shunt_kargs args = { 0 };
	const struct shunt_gpu_launch launch = { .kernel = F32_SUM, .blocks = 1, .threads = 32, .args = &args };

	fake_cuda.cc = 80;
	if (ops->open(&shunt_kernels) || ops->kernels_load(0) || ops->launch(0, &launch))
		return 1;
	return fake_cuda.launch.count == 1 && fake_cuda.launch.mem_sync_domain == -1 ? 0 : 2;
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

TEST(test_launch_records_the_event_of_its_beginning)
{
	for (long i = 0; i < 5; i++)
		assert_int_equal(cuda_in_child(launch_with_event, i), 0);
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

TEST(test_launch_comes_in_clusters_where_they_have_room)
{
	assert_int_equal(cuda_in_child(launch_in_clusters, 0), 0);
	assert_int_equal(cuda_in_child(clusters_beside_others, 0), 0);
	assert_int_equal(cuda_in_child(clusters_beside_others, 1), 0);
	for (long i = 0; i < 3; i++)
		assert_int_equal(cuda_in_child(launch_without_clusters, i), 0);
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

TEST(test_tma_where_there_is_shared_memory_for_it)
{
	for (long i = 0; i < 4; i++)
		assert_int_equal(cuda_in_child(tma_copies_case, i), 0);
}

TEST_OF(int, (long n), test_host_alloc_makes_no_context_on_device_zero, cuda_in_child(body, 0) + cuda_in_child(body, 1))
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

static void *load_thread(void *arg)
{
	char a = 1, b = 2;

	return (void *)(intptr_t)(ops->copy(0, &a, &b, 1) || a != 2 || ops->kernels_load(0) || ops->kernels_load(1));
}

TEST_OF(int, (long n), test_first_use_by_many_threads_happens_once, cuda_in_child(body, 0))
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

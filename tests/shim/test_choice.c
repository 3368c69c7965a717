/* SPDX-License-Identifier: MIT */
/*
 * Which device layer is chosen, and shunt/device.h over it. The choice is made once, so each case is a process of its
 * own.
 */

#include "tests/support/child.h"
#include "tests/support/child_exit.h"
#include "kernels/set.h"
#include "tests/device/mock_base.h"
#include "tests/support/test.h"
#include "shim/mode.h"
#include "shunt/device.h"

static bool cuda_used;
static int cuda_err, cuda_devices, sim_err, current_device;
static atomic_int cuda_opens, sim_opens;
static int last_device;
static void *last_arg;

static int cuda_open(const struct shunt_kernel_set *kernels)
{
	atomic_fetch_add(&cuda_opens, 1);
	return cuda_err;
}

static int sim_open(const struct shunt_kernel_set *kernels)
{
	atomic_fetch_add(&sim_opens, 1);
	return sim_err;
}

static int cuda_count(int *count_p)
{
	*count_p = cuda_devices;
	return 0;
}

static bool cuda_in_use(void)
{
	return cuda_used;
}

static int sim_count(int *count_p)
{
	*count_p = 8;
	return 0;
}

static int sim_get(int *device_p)
{
	*device_p = current_device;
	return 0;
}

static int sim_set(int device)
{
	current_device = device;
	return 0;
}

static int sim_info(int device, struct shunt_gpu_info *info_p)
{
	if (device >= 8)
		return -EINVAL;
	*info_p = (struct shunt_gpu_info){ .name = "a long name" };
	return 0;
}

static int sim_stream_create(int device, void **stream_p)
{
	last_device = device;
	*stream_p = &last_arg;
	return 0;
}

static void sim_stream_destroy(int device, void *stream)
{
	last_device = device;
	last_arg = stream;
}

static int sim_copy(int device, void *dst, const void *src, size_t bytes)
{
	last_device = device;
	memcpy(dst, src, bytes);
	return 0;
}

static int sim_mem_free(void *ptr)
{
	last_arg = ptr;
	return -EINVAL;
}

static int sim_event_create(int device, bool timing, void **event_p)
{
	last_device = device;
	*event_p = timing ? &last_arg : NULL;
	return 0;
}

const struct shunt_gpu_ops shunt_gpu_cuda_ops = {
	.name = "cuda", .open = cuda_open, .device_count = cuda_count, .in_use = cuda_in_use
};
const struct shunt_gpu_ops shunt_gpu_sim_ops = {
	.name = "sim",
	.open = sim_open,
	.device_count = sim_count,
	.device_get = sim_get,
	.device_set = sim_set,
	.device_info = sim_info,
	.stream_create = sim_stream_create,
	.stream_destroy = sim_stream_destroy,
	.copy = sim_copy,
	.mem_free = sim_mem_free,
	.event_create = sim_event_create,
};

/* The shim's: what it finds, the choice has to know. */
static bool nccl_is_there;

static const struct shunt_mode_ops overlay_ops, standalone_ops;
const struct shunt_mode_ops shunt_inside_ops;
_Atomic(const struct shunt_mode_ops *) shunt_process_ops;
_Thread_local struct shunt_thread shunt_this_thread;

const struct shunt_mode_ops *shunt_mode_choose(void)
{
	const struct shunt_mode_ops *ops = nccl_is_there ? &overlay_ops : &standalone_ops;

	if (nccl_is_there)
		shunt_gpu_prefer_cuda();
	atomic_store(&shunt_process_ops, ops);
	return ops;
}

static const struct shunt_gpu_ops *choose(void)
{
	shunt_mode_ops();
	return shunt_gpu();
}

struct row {
	const char *what;
	enum shunt_device_choice choice;
	bool overlay;
	int cuda_err, cuda_devices, sim_err;
	const char *chosen; /* NULL: none */
	int lines;
	bool shared; /* by several ranks of a communicator */
	bool used;   /* by the program, before */
};

static const struct row rows[] = {
	{ "auto, two GPUs", SHUNT_DEVICE_AUTO, false, 0, 2, 0, "cuda", 0 },
	{ "auto, one GPU", SHUNT_DEVICE_AUTO, false, 0, 1, 0, "sim", 0 },
	{ "auto, one GPU for all", SHUNT_DEVICE_AUTO, false, 0, 1, 0, "cuda", 0, .shared = true },
	{ "auto, each process is shown its GPU", SHUNT_DEVICE_AUTO, false, 0, 1, 0, "cuda", 0, .used = true },
	{ "auto, no driver", SHUNT_DEVICE_AUTO, false, -ENODEV, 0, 0, "sim", 0 },
	{ "auto, nothing", SHUNT_DEVICE_AUTO, false, -ENODEV, 0, -ENOMEM, NULL, 1 },
	{ "overlay, one GPU", SHUNT_DEVICE_AUTO, true, 0, 1, 0, "cuda", 0 },
	{ "overlay, no driver", SHUNT_DEVICE_AUTO, true, -ENODEV, 0, 0, NULL, 1 },
	{ "overlay, sim asked for", SHUNT_DEVICE_SIM, true, 0, 4, 0, "sim", 0 },
	{ "cuda asked for, one GPU", SHUNT_DEVICE_CUDA, false, 0, 1, 0, "cuda", 0 },
	{ "cuda asked for, no driver", SHUNT_DEVICE_CUDA, false, -ENODEV, 0, 0, NULL, 1 },
	{ "sim asked for", SHUNT_DEVICE_SIM, false, 0, 4, 0, "sim", 0 },
	{ "sim asked for, fails", SHUNT_DEVICE_SIM, false, 0, 4, -ENOMEM, NULL, 1 },
};

static void *choose_thread(void *arg)
{
	return (void *)(uintptr_t)choose();
}

static int check_row(const struct row *r)
{
	const struct shunt_gpu_ops *ops;
	const char *kind;
	pthread_t t[4];
	void *seen;
	int n, bad = 0;

	mock_config.device = r->choice;
	mock_config.multi_rank_gpu = r->shared;
	cuda_err = r->cuda_err;
	cuda_devices = r->cuda_devices;
	cuda_used = r->used;
	sim_err = r->sim_err;
	nccl_is_there = r->overlay;
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, choose_thread, NULL);
	ops = choose();
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &seen);
		bad |= seen != (const void *)ops;
	}
	if (bad || cuda_opens > 1 || sim_opens > 1)
		return 1;
	kind = shunt_device_kind();
	if (r->chosen ? !kind || strcmp(kind, r->chosen) : !!kind)
		return 2;
	if (mock_log_count != r->lines)
		return 3;
	if (!r->chosen &&
	    (shunt_device_count(&n) != -ENODEV || shunt_device_set(0) != -ENODEV || shunt_free(&n) != -ENODEV ||
	        shunt_stream_synchronize(NULL) != -ENODEV))
		return 4;
	return 0;
}

TEST(test_choice_follows_the_table)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int status = IN_CHILD(check_row(&rows[i]));

		if (status)
			fail_msg("%s: step %d", rows[i].what, WEXITSTATUS(status));
	}
}

TEST(test_device_calls_use_the_current_device)
{
	void *stream = NULL, *event = NULL;
	char name[6], a = 1, b = 2;
	int n = 0;

	mock_config.device = SHUNT_DEVICE_SIM;
	assert_string_equal(shunt_device_kind(), "sim");
	assert_int_equal(shunt_device_count(&n), 0);
	assert_int_equal(n, 8);
	assert_int_equal(shunt_device_set(3), 0);
	assert_int_equal(shunt_stream_create(&stream), 0);
	assert_ptr_equal(stream, &last_arg);
	assert_int_equal(last_device, 3);
	assert_int_equal(shunt_device_set(5), 0);
	assert_int_equal(shunt_memcpy(&a, &b, 1), 0);
	assert_int_equal(a, 2);
	assert_int_equal(last_device, 5);
	assert_int_equal(shunt_stream_destroy(stream), 0);
	assert_ptr_equal(last_arg, stream);
	assert_int_equal(shunt_event_create(&event), 0);
	assert_non_null(event); /* with a time stamp */
	assert_int_equal(shunt_free(&a), -EINVAL);
	assert_ptr_equal(last_arg, &a);
	assert_int_equal(shunt_free(NULL), 0);
	assert_int_equal(shunt_device_name(0, name, sizeof(name)), 0);
	assert_string_equal(name, "a lon");
	assert_int_equal(shunt_device_name(9, name, sizeof(name)), -EINVAL);
}

TEST(test_device_calls_null_outputs_are_refused)
{
	size_t bytes;
	char c;

	assert_int_equal(shunt_device_count(NULL), -EINVAL);
	assert_int_equal(shunt_device_name(0, NULL, 5), -EINVAL);
	assert_int_equal(shunt_device_name(0, &c, 0), -EINVAL);
	assert_int_equal(shunt_stream_create(NULL), -EINVAL);
	assert_int_equal(shunt_malloc(NULL, 5), -EINVAL);
	assert_int_equal(shunt_memcpy(NULL, &c, 1), -EINVAL);
	assert_int_equal(shunt_memcpy(&c, NULL, 1), -EINVAL);
	assert_int_equal(shunt_memcpy_async(NULL, &c, 1, NULL), -EINVAL);
	assert_int_equal(shunt_memcpy_async(&c, NULL, 1, NULL), -EINVAL);
	assert_int_equal(shunt_memset_async(NULL, 0, 1, NULL), -EINVAL);
	assert_int_equal(shunt_mem_info(&bytes, NULL), -EINVAL);
	assert_int_equal(shunt_event_create(NULL), -EINVAL);
	assert_int_equal(shunt_event_record(NULL, NULL), -EINVAL);
	assert_int_equal(shunt_event_elapsed_us(&c, &c, NULL), -EINVAL);
	assert_int_equal(shunt_capture_end(NULL, NULL), -EINVAL);
	assert_int_equal(shunt_graph_launch(NULL, NULL), -EINVAL);
}

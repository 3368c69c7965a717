/* SPDX-License-Identifier: MIT */
/* test_profiler_events PLUGIN: the times of many launches take few events, which a fake device counts. */
#include "comm/observe/profiler.h"
#include "tests/support/fake_profiler/fake_profiler.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

static const char *path;
static int made, destroyed;

static int device_get(int *device_p)
{
	*device_p = 0;
	return 0;
}

static int device_set(int device)
{
	return 0;
}

static int event_create(int device, bool timing, void **event_p)
{
	__atomic_add_fetch(&made, 1, __ATOMIC_RELAXED);
	*event_p = malloc(1);
	return 0;
}

static int event_record(int device, void *event, void *stream)
{
	return 0;
}

static int event_done(int device, void *event, bool *done_p)
{
	*done_p = true;
	return 0;
}

static int event_elapsed_us(int device, void *start, void *stop, float *us_p)
{
	*us_p = 1;
	return 0;
}

static void event_destroy(int device, void *event)
{
	__atomic_add_fetch(&destroyed, 1, __ATOMIC_RELAXED);
	free(event);
}

static const struct shunt_gpu_ops gpu = { .device_get = device_get,
	.device_set = device_set,
	.event_create = event_create,
	.event_record = event_record,
	.event_done = event_done,
	.event_elapsed_us = event_elapsed_us,
	.event_destroy = event_destroy };

static int kernels_told(const struct fake_profiler *told)
{
	int n = 0;

	for (size_t i = 0; i < __atomic_load_n(&told->n, __ATOMIC_ACQUIRE); i++)
		n += __atomic_load_n(&told->events[i].stops, __ATOMIC_ACQUIRE) && told->events[i].type == 64;
	return n;
}

TEST(test_launches_share_a_few_events)
{
	const struct shunt_algo algo = { .name = "oneshot" };
	const struct shunt_decision decision = { .algo = &algo, .path = "oneshot" };
	const struct shunt_coll call = { .kind = SHUNT_ALLREDUCE, .dtype = SHUNT_F32, .count = 8 },
	                        *calls[] = { &call };
	struct shunt_profiler *p =
	    shunt_profiler_create(&(struct shunt_profiler_desc){ .gpu = &gpu, .nranks = 2, .nnodes = 1, .name = "" });
	fake_profiler_get *get = (fake_profiler_get *)dlsym(dlopen(path, RTLD_NOW | RTLD_NOLOAD), "fake_profiler");

	assert_non_null(p);
	for (int i = 1; i <= 20; i++) {
		struct shunt_profiled *g = shunt_profiler_begin(p, calls, &decision, 1, false, NULL);

		assert_non_null(g);
		shunt_profiler_launches(g, calls, 1);
		shunt_profiler_end(g);
		while (kernels_told(get()) < i)
			pause_us(PAUSE_POLL, 1000);
	}
	/* Those of a launch, of the one before it, which the thread may still hold, and the one that times begin with.
	 */
	assert_in_range(made, 2, 5);
	shunt_profiler_destroy(p, 1000);
	assert_int_equal(destroyed, made);
}

int main(int argc, char **argv)
{
	path = argv[1];
	setenv("NCCL_PROFILER_PLUGIN", path, 1);
	setenv("FAKE_PROFILER", "i", 1);
	return tests_run(NULL, NULL);
}

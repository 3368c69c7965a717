/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda_setup.h"
#include "tests/support/child.h"
#include "tests/support/child_exit.h"

#define SOURCE(name) [SHUNT_SOURCE_##name] = #name,
const char *const shunt_fatbins[SHUNT_NSOURCES] = { SHUNT_SOURCE_LIST(SOURCE) };
#undef SOURCE
const char shunt_fatbins_made[] = "nvcc 13.0 for sm_80, sm_90";

int cuda_setup(void **state)
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

int cuda_each_setup(void **state)
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

int cuda_in_child(int (*fn)(long), long arg)
{
	int status;
	pid_t pid = child_fork();

	if (!pid)
		child_exit(fn(arg));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

void cuda_count_drop(void *arg)
{
	++*(int *)arg;
}

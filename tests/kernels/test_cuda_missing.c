/* SPDX-License-Identifier: MIT */
/* CUDA drivers that cannot be used: one that is too old (linked in), and a build without kernels. */

#include "tests/support/fake_cuda/fake_cuda.h"
#include "device/gpu_ops.h"
#include "kernels/fatbin.h"
#include "tests/device/mock_base.h"
#include "tests/support/test.h"
#include "kernels/set.h"

const char shunt_fatbins_made[] = "";
#if TEST_NO_KERNELS
const char *const shunt_fatbins[SHUNT_NSOURCES] = { 0 };

TEST(test_open_without_kernels_is_no_device)
{
	assert_int_equal(shunt_gpu_cuda_ops.open(&shunt_kernels), -ENODEV);
	assert_int_equal(mock_log_count, 0);
	assert_int_equal(fake_cuda.calls, 0);
	assert_false(shunt_gpu_cuda_ops.kernel_exists(0));
	assert_false(shunt_gpu_cuda_ops.kernel_exists(SHUNT_KERNEL(0, 0, 7)));
}
#else
const char *const shunt_fatbins[SHUNT_NSOURCES] = { "oneshot", "twoshot", "ll128" };

TEST(test_open_missing_symbol_is_named)
{
	assert_int_equal(shunt_gpu_cuda_ops.open(&shunt_kernels), -ENOSYS);
	assert_int_equal(mock_log_count, 1);
	assert_non_null(strstr(mock_log_text, "CUDA 11.8 and lacks cuLibraryLoadData"));
	assert_int_equal(fake_cuda.calls, 0);
}
#endif

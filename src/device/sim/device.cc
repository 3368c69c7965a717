/* SPDX-License-Identifier: MIT */
/* Which devices and kernels there are. */
#include "device/sim/sim.h"
extern "C" {
#include "base/config.h"
}

int sim_device_total(void)
{
	unsigned n = shunt_config()->sim_devices;

	/* cppcheck-suppress compareBoolExpressionWithInt; it takes the second question for a part of the first */
	return n < 1 ? 1 : n > SIM_MAX_DEVICES ? SIM_MAX_DEVICES : (int)n;
}

bool sim_device_ok(int device)
{
	if (device >= 0 && device < sim_device_total())
		return true;
	shunt_error("sim: there is no device %d", device);
	return false;
}

static const struct shunt_kernel_set *kernel_set;

int sim_open(const struct shunt_kernel_set *kernels)
{
	kernel_set = kernels;
	sim_link_open();
	return 0;
}

const struct shunt_kernel_desc *sim_kernel_desc(unsigned kernel)
{
	return kernel_set && kernel < kernel_set->n ? &kernel_set->kernel[kernel] : nullptr;
}

shunt_sim_kernel *sim_kernel(unsigned kernel) { return sim_kernel_desc(kernel) ? kernel_set->sim[kernel] : nullptr; }

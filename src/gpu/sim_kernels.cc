/* SPDX-License-Identifier: MIT */
/*
 * The kernels by index. Weak: a program that links only some of them (a test, a build that leaves a type out) lacks the
 * others.
 */
#include "gpu/sim.h"
#include "kernels/kernel_list.h"

#define DECLARE(shape, op, opn, type, typen) \
	extern "C" \
	    __attribute__((weak, visibility("hidden"))) void SHUNT_KERNEL_NAME(shape, op, type)(const void *args);
SHUNT_KERNEL_LIST(DECLARE)
#undef DECLARE

struct row {
	unsigned index;
	sim_kernel_fn *fn;
};

#define ROW(shape, op, opn, type, typen) \
	{ SHUNT_KERNEL(SHUNT_SHAPE_##shape, opn, typen), SHUNT_KERNEL_NAME(shape, op, type) },
static const struct row rows[] = { SHUNT_KERNEL_LIST(ROW) };
#undef ROW

sim_kernel_fn *sim_kernel(unsigned kernel)
{
	for (const struct row &row : rows)
		if (row.index == kernel)
			return row.fn;
	return nullptr;
}

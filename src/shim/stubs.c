/* SPDX-License-Identifier: MIT */
/* The C side of stubs.S. */
#include <stdatomic.h>
#include "shim/mode.h"
#include "shim/real/real.h"
#include "shim/stubs.h"

void shunt_stubs_fill(struct shunt_stub *stubs)
{
	shunt_mode_ops(); /* opens the real library */
	for (struct shunt_stub *stub = stubs; stub->name; stub++) {
		void *target = shunt_real_symbol(stub->name);
		atomic_store_explicit(&stub->target, target ? target : stub->missing, memory_order_release);
	}
}

ncclResult_t shunt_stub_missing(struct shunt_stub *stub)
{
	return shunt_real_missing(stub->name, &stub->logged);
}

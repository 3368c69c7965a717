/* SPDX-License-Identifier: MIT */
#pragma once
/* Shared by stubs.S and stubs.c. */
#include <stdatomic.h>
#include "shim/nccl/abi.h"

struct shunt_stub {
	_Atomic(void *) target; /* the exported function jumps there */
	void *missing;          /* the target if the real library lacks the function */
	const char *name;
	union {
		atomic_bool logged;
		uint64_t row_end;
	};
};
_Static_assert(sizeof(struct shunt_stub) == 32, "a row of stubs.S");

/*
 * Points every stub at the real library's function, or at its `missing` code. The last row has no name. Repeated calls
 * do no harm.
 */
void shunt_stubs_fill(struct shunt_stub *stubs);
ncclResult_t shunt_stub_missing(struct shunt_stub *stub);

/* SPDX-License-Identifier: MIT */
#pragma once
/* Non-blocking communicators. Behind <cmocka.h>. */
#include "tests/support/test.h"
#include "shim/nccl/abi.h"
#include "tests/support/clock.h"
#include "tests/support/pause.h"

static inline ncclConfig_t nonblocking_config(void)
{
	return (ncclConfig_t){ .size = 24, .magic = SHUNT_NCCL_CONFIG_MAGIC, .version = 21400, .blocking = 0 };
}

/* The communicator's state once nothing is in progress. */
static inline ncclResult_t wait_async(ncclComm_t comm)
{
	double end = now() + AT_ONCE_S;
	ncclResult_t state;

	do {
		assert_int_equal(ncclCommGetAsyncError(comm, &state), ncclSuccess);
		pause_us(PAUSE_POLL, 100);
	} while (state == ncclInProgress && now() < end);
	assert_int_not_equal(state, ncclInProgress);
	return state;
}

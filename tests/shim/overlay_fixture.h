/* SPDX-License-Identifier: MIT */
#pragma once
/* What tests of the overlay share: the fake that SHUNT_NCCL_LIB names, and communicators in front of it. */
#include "shim/nccl/abi.h"
#include "tests/support/fake_nccl/fake_nccl.h"

struct overlay_fake {
	__typeof__(fake_nccl_log) *log;
	__typeof__(fake_nccl_reset) *reset;
	__typeof__(fake_nccl_fail_next) *fail_next;
	__typeof__(fake_nccl_late) *late;
	__typeof__(fake_nccl_launches) *launches;
	__typeof__(fake_nccl_init_late) *init_late;
	__typeof__(fake_nccl_windows_unwritten) *windows_unwritten;
};

extern struct overlay_fake fake;
extern char a[8], b[8]; /* never touched */

int setup(void **state);
ncclComm_t new_comm(int rank, int nranks);
/* A communicator whose history is forgotten. */
ncclComm_t unused_comm(int rank, int nranks);
/* The same, and set up: before that a group keeps back even what is forwarded. */
ncclComm_t set_up_comm(int rank, int nranks);
/* The same, non-blocking. */
ncclComm_t nonblocking_comm(int rank, int nranks);
ncclResult_t reduce(ncclComm_t comm, size_t count);

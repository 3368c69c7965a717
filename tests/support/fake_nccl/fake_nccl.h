/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A libnccl.so.2 without GPUs for tests: it speaks enough of NCCL's ABI that a client can create communicators and call
 * collectives, does nothing with data, and writes down every call that reaches it. These are the extra functions that a
 * test finds with dlsym. Ranks do not meet, unless FAKE_NCCL_SHARED holds the address (hexadecimal) of
 * FAKE_NCCL_SHARED_BYTES of zeroes that all ranks share, or the path (from /) of a file with them: then making a
 * communicator is a barrier among its ranks, be they threads or processes, and splits and shrinks give the right ranks.
 * It behaves as NCCL does in what the shim has to cope with: it calls its own exports through the PLT, its groups keep
 * the first error, and a child's handle may be written later by a thread of its own. FAKE_NCCL_VERSION is the version
 * that it says to be. FAKE_NCCL_HOLD=AllReduce: that function, a CommInitRank, a CommSplit or the GroupEnd never
 * returns.
 */
#include "shim/nccl/abi.h"

#define FAKE_NCCL_SHARED_BYTES (64u << 10)

#pragma GCC visibility push(default)
/* The calls since the last reset, "name detail\n" each. Valid until the next call of these two by this thread. */
const char *fake_nccl_log(void);
void fake_nccl_reset(void);
/* The next call of this function (name without nccl) returns result and does nothing. */
void fake_nccl_fail_next(const char *name, ncclResult_t result);
/* Arguments of the last collective or point-to-point call that arrived; what it does not have is 0. root: or peer. */
struct fake_call {
	const char *name;
	const void *send;
	void *recv;
	size_t count;
	ncclDataType_t dtype;
	ncclRedOp_t op;
	int root;
	ncclComm_t comm;
	cudaStream_t stream;
};
struct fake_call fake_nccl_last_call(void);
/*
 * How many collective and point-to-point calls would have run since the last reset: not those of groups that failed or
 * were simulated.
 */
int fake_nccl_launches(void);
/*
 * Called by this thread's GroupEnd where calls of the group would be launched, in the place of that, or by another
 * thread 20 ms later where their communicator does not block; NULL: nothing.
 */
void fake_nccl_at_launch(void (*launch)(void *arg), void *arg);
enum { FAKE_NCCL_UNTIL_TOLD = 1 << 30 }; /* milliseconds of the next two: until another number is set, or an abort */
/* From now on splits and shrinks return InProgress, and write the child after this many milliseconds; -1: at once. */
void fake_nccl_late(int ms);
/* From now on a new communicator that does not block takes so many milliseconds; -1: no time. */
void fake_nccl_init_late(int ms);
/* nccl_newer only. ncclCommQueryProperties says from now on that these ranks (bits) have no multimem. */
void fake_nccl_no_multimem(unsigned ranks);
/*
 * From now on nothing is written where handles of windows are wanted: as before 2.30, where a thread will do so or
 * nobody.
 */
void fake_nccl_windows_unwritten(int on);
/* From now on windows have no handle, as where there is no symmetric memory. */
void fake_nccl_no_windows(int on);
/* What ncclParamBind does here: a signature of 8 integers and 8 doubles that shows whether a stub kept them all. */
typedef double fake_nccl_16_args(
    long, long, long, long, long, long, long, long, double, double, double, double, double, double, double, double);
/* Likewise ncclTeamWorld: returns a struct by value. */
struct fake_team {
	int nranks, rank, stride;
};
typedef struct fake_team fake_nccl_team(ncclComm_t comm);
/* And ncclGetPeerDevicePointer: returns a struct in memory, whose address is a hidden argument. */
struct fake_large {
	long v[5];
};
typedef struct fake_large fake_nccl_large(long a, double b);
#pragma GCC visibility pop

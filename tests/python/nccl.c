/* SPDX-License-Identifier: MIT */
/* Stands for NVIDIA's libnccl.so.2, of a version that Shunt does not report. */
#pragma GCC visibility push(default)

#define STUB(name) \
	int name(void); \
	int name(void) \
	{ \
		return 3; \
	}
STUB(ncclGetUniqueId)
STUB(ncclCommInitRank)
STUB(ncclCommDestroy)
STUB(ncclCommAbort)
STUB(ncclAllReduce)

int ncclGetVersion(int *version);
const char *ncclGetErrorString(int result);

int ncclGetVersion(int *version)
{
	*version = 22707;
	return 0;
}

const char *ncclGetErrorString(int result)
{
	return "of the stand-in";
}

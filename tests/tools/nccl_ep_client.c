/* SPDX-License-Identifier: MIT */
/* The version of the libnccl_ep.so.0 that the loader finds. With OTHER: such a library, which is none of Shunt's. */
#include <stdio.h>
#include "shim/nccl_ep/ep_abi.h"

#ifdef OTHER
ncclResult_t ncclEpGetVersion(int *version)
{
	*version = 999;
	return ncclSuccess;
}
#else
int main(void)
{
	int version = 0;

	return ncclEpGetVersion(&version) || printf("%d\n", version) < 0;
}
#endif

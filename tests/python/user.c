/* SPDX-License-Identifier: MIT */
#pragma GCC visibility push(default)
/* A library that is linked with NCCL, as PyTorch's is. */
int ncclGetVersion(int *version);
int user_version(void);

int user_version(void)
{
	int version = 0;

	return ncclGetVersion(&version) ? -1 : version;
}

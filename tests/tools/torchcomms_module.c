/* SPDX-License-Identifier: MIT */
/* The symbols of a module of torchcomms: what Python calls, and how its backend gets to NCCL. */
#pragma GCC visibility push(default)
#ifdef RENAMED_NCCL
int torchcomms_ncclAllReduce(void);
int torchcomms_ncclAllReduce(void)
{
	return 0;
}
#endif
#ifdef CALLS_NCCL
int ncclAllReduce(void);
#endif
#ifdef LOADED_BEFORE
int loaded_before(void);
int loaded_before(void)
{
	return 0;
}
#else
int loaded_before(void);

void *PyInit__comms(void);
void *PyInit__comms(void)
{
	loaded_before();
#ifdef CALLS_NCCL
	ncclAllReduce();
#endif
	return 0;
}
#endif

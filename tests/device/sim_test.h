/* SPDX-License-Identifier: MIT */
#pragma once
/* What the tests of the sim runtime share: cmocka in C++, and short names for one device's operations. */
#include <initializer_list>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/test.h"
#include "device/gpu_ops.h"
#include "device/sim/hooks.h"
#include "kernels/kargs.h"
#include "device/gpu.h"

static const struct shunt_gpu_ops *const ops = &shunt_gpu_sim_ops;

#define assert_ok(call) assert_int_equal(call, 0)

static inline struct shunt_kargs make_kargs(const void *send, void *recv, uint64_t count = 0)
{
	struct shunt_kargs a;

	memset(&a, 0, sizeof(a));
	a.send = send;
	a.recv = recv;
	a.count = count;
	return a;
}

/* Runs fn once on device 0 and waits. On the default stream: its threads and fibers are kept. */
/* A kernel of struct shunt_kargs; the sim calls it through the type that all kernels share. */
static inline int launch_fn(void (*fn)(const struct shunt_kargs &), int device, unsigned blocks, unsigned threads,
    const struct shunt_kargs *a, void *stream)
{
	struct shunt_sim_launch launch = { (void (*)(const void *))(void *)fn, blocks, threads, a, sizeof(*a) };

	return shunt_sim_launch_fn(device, &launch, stream);
}

static inline int run_kernel(
    void (*fn)(const struct shunt_kargs &), unsigned blocks, unsigned threads, const struct shunt_kargs *a)
{
	int err = launch_fn(fn, 0, blocks, threads, a, NULL);

	return err ? err : ops->stream_sync(0, NULL);
}

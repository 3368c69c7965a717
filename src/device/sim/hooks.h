/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_DEVICE_SIM_HOOKS_H
#define SHUNT_DEVICE_SIM_HOOKS_H
/* Hooks for tests, in addition to shunt_gpu_sim_ops. Not exported by the library. */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
/*
 * Enqueues any function as a kernel, which gets a copy of args. Returns 0 or a negative errno, as
 * shunt_gpu_ops.launch.
 */
int shunt_sim_launch_fn(void (*fn)(const void *args), int device, unsigned blocks, unsigned threads, const void *args,
    size_t arg_bytes, void *stream);
/* Blocks sleep for random times of at most max_us at their start, and now and then when they poll. max_us 0: never. */
void shunt_sim_set_jitter(unsigned seed, unsigned max_us);
/* waits: memory that peers can map is freed only when its device is idle, as with the CUDA driver; the caller waits. */
void shunt_sim_set_free_blocks(int waits);
/*
 * wait: copies by the host wait until the next call with 0, as they do while a call of the program that waits for
 * kernels holds the driver.
 */
void shunt_sim_set_copies_block(int wait);
#ifdef __cplusplus
}
#endif
#endif

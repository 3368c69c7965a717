/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_DEVICE_SIM_HOOKS_H
#define SHUNT_DEVICE_SIM_HOOKS_H
/* What tests may do with the sim beside shunt_gpu_sim_ops. Not exported by the library. */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
/*
 * Enqueues any function as a kernel; it gets a copy of args, 0 or a negative
 * errno, as shunt_gpu_ops.launch.
 */
int shunt_sim_launch_fn(void (*fn)(const void *args), int device, unsigned blocks, unsigned threads, const void *args,
    size_t arg_bytes, void *stream);
/* Blocks sleep for random times of at most max_us when they start, and now and then when they poll; max_us 0: never. */
void shunt_sim_set_jitter(unsigned seed, unsigned max_us);
/*
 * Memory that peers can map is taken away only when its device is idle, as the CUDA driver does: whoever frees it
 * waits.
 */
void shunt_sim_set_free_blocks(int waits);
/*
 * Copies by the host wait, as they do while a call of the program's that waits for kernels holds the driver, until it
 * is called with 0.
 */
void shunt_sim_set_copies_block(int wait);
#ifdef __cplusplus
}
#endif
#endif

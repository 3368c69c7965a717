/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_GPU_SIM_HOOKS_H
#define SHUNT_GPU_SIM_HOOKS_H
/* What tests may do with the sim beside shunt_gpu_sim_ops. Not exported by the library. */
#include "kernels/kargs.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Enqueues any function as a kernel. 0 or a negative errno, as shunt_gpu_ops.launch. */
int shunt_sim_launch_fn(void (*fn)(const struct shunt_kargs), int device, unsigned blocks, unsigned threads,
    const struct shunt_kargs *args, void *stream);
/* Blocks sleep for random times of at most max_us when they start, and now and then when they poll; max_us 0: never. */
void shunt_sim_set_jitter(unsigned seed, unsigned max_us);
#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: MIT */
/* The choice of this process's device layer. */
#include "device/gpu_ops.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"

static atomic_bool prefer_cuda_layer;
static pthread_once_t choose_once = PTHREAD_ONCE_INIT;
static const struct shunt_kernel_set *_Atomic kernel_set; /* of the first call */
static const struct shunt_gpu_ops *_Atomic chosen_ops;

void shunt_gpu_prefer_cuda(void) { atomic_store(&prefer_cuda_layer, true); }

static const struct shunt_gpu_ops *open_or_warn(const struct shunt_gpu_ops *ops, const char *asked_by)
{
	int err = ops->open(kernel_set);

	if (!err)
		return ops;
	shunt_warn("the %s device layer (%s) cannot be used: %s", ops->name, asked_by, strerror(-err));
	return NULL;
}

/*
 * True: CUDA has enough devices for ranks of this process or its children; or the program uses a device, as where
 * each process sees only one GPU.
 */
static bool cuda_is_usable(void)
{
	int count;

	return !shunt_gpu_cuda_ops.open(kernel_set) && !shunt_gpu_cuda_ops.device_count(&count) &&
	    (count >= (shunt_config()->multi_rank_gpu ? 1 : 2) || shunt_gpu_cuda_ops.in_use());
}

static void choose_layer(void)
{
	switch (shunt_config()->device) {
	case SHUNT_DEVICE_CUDA:
		chosen_ops = open_or_warn(&shunt_gpu_cuda_ops, "SHUNT_DEVICE=cuda");
		return;
	case SHUNT_DEVICE_SIM:
		chosen_ops = open_or_warn(&shunt_gpu_sim_ops, "SHUNT_DEVICE=sim");
		return;
	default:
		break;
	}
	if (atomic_load(&prefer_cuda_layer)) {
		chosen_ops = open_or_warn(&shunt_gpu_cuda_ops, "SHUNT_DEVICE=auto, beside the real NCCL");
		return;
	}
	if (cuda_is_usable())
		chosen_ops = &shunt_gpu_cuda_ops;
	else
		chosen_ops = open_or_warn(&shunt_gpu_sim_ops, "SHUNT_DEVICE=auto, fewer than two GPUs");
}

const struct shunt_gpu_ops *shunt_gpu_open(const struct shunt_kernel_set *kernels)
{
	const struct shunt_kernel_set *none = NULL;

	atomic_compare_exchange_strong(&kernel_set, &none, kernels);
	pthread_once(&choose_once, choose_layer);
	return chosen_ops;
}

const struct shunt_gpu_ops *shunt_gpu_chosen(void) { return chosen_ops; }

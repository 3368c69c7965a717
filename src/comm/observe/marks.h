/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Marks (SHUNT_MARKS): behind a call that the real NCCL has got, the call's stream writes the recorder's number of the
 * call into memory of the host. What has its number there has finished on the device. Calls in captures have no mark,
 * and neither have those of non-blocking communicators, which NCCL launches later.
 *
 * A communicator has some words, of which calls take turns: two streams may write in another order than that of the
 * calls. The words are the process's and are never freed, since a stream may write when the communicator has ended.
 * Each use of them has a number of its own, and words with another number count for nothing.
 *
 * Calls become due in the order in which NCCL gets them, on the thread that makes them. They are marked when NCCL's
 * function has returned, of a group when the group has.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "device/gpu_ops.h"

struct shunt_marks_slot;

/* A communicator's. Zeroed: no marks. */
struct shunt_marks {
	const struct shunt_gpu_ops *gpu;
	int device;
	_Atomic(struct shunt_marks_slot *) slot;
	uint64_t use; /* of the slot */
};

/* May wait for the device: for the creation of a communicator. gpu: NULL is allowed. */
void shunt_marks_open(struct shunt_marks *m, const struct shunt_gpu_ops *gpu, int device);
void shunt_marks_close(struct shunt_marks *m);
/* The last call that a mark follows, and the last one whose mark has come; 0: none. */
uint64_t shunt_marks_last(const struct shunt_marks *m);
uint64_t shunt_marks_finished(const struct shunt_marks *m);

/* NCCL is about to get call seq, or has just got it. */
void shunt_marks_due(const struct shunt_marks *m, void *stream, uint64_t seq);
/* NCCL's function has returned: marks what is due on this thread, or with has_launched false forgets it. */
void shunt_marks_settle(bool has_launched);

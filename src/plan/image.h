/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_IMAGE_H
#define SHUNT_PLAN_IMAGE_H
/*
 * A block's image as it grows (kernels/plan_args.h): operations one behind the other, and where its threads must meet
 * between them.
 *
 * Operations on lines share out a slice by warps, all others by threads: those that follow each other on the same bytes
 * must not mix. So an image knows which of the two kinds threads may still be at, each at its own place, since they met
 * last: these are loose.
 */
#include <stdbool.h>
#include <stddef.h>
#include "kernels/plan_args.h"

/* Zeroed: empty. */
struct shunt_image {
	char *bytes;
	size_t n, room;
	size_t last; /* the last operation */
	bool lines;  /* packets travel as lines */
	bool loose_lines, loose_others;
	bool in_loop;
	int err; /* sticky: once there is one, nothing more is written */
};

/* So many zeroed bytes, or NULL. */
void *shunt_image_append(struct shunt_image *im, size_t bytes);
/* The operation's offset; its operands are to follow before the next one begins. */
size_t shunt_image_emit(struct shunt_image *im, enum shunt_prog_code code, uint32_t nsrc, uint32_t ndst, uint64_t size);
/* Of the last operation, which is so much longer; o.back is filled in here. */
void shunt_image_operand(struct shunt_image *im, struct shunt_prog_operand o);
/* The operation at an offset, until something is appended; NULL after an error. */
struct shunt_prog_op *shunt_image_op(const struct shunt_image *im, size_t at);

/*
 * Threads have met, but in an operation of another kind than a sync; or they may have gone on by themselves, on lines
 * or not.
 */
void shunt_image_met(struct shunt_image *im);
void shunt_image_loosen(struct shunt_image *im, bool lines);
void shunt_image_sync(struct shunt_image *im);
/* A sync if threads must meet before an operation on lines, or another one. */
void shunt_image_separate(struct shunt_image *im, bool lines);
/* A sync unless nothing is loose. */
void shunt_image_tighten(struct shunt_image *im);

void shunt_image_finish(struct shunt_image *im);
#endif

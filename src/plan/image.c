/* SPDX-License-Identifier: MIT */
#include "plan/image.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *shunt_image_append(struct shunt_image *im, size_t bytes)
{
	void *at;

	if (im->err)
		return NULL;
	if (im->n + bytes > im->room) {
		size_t room = 2 * (im->n + bytes);
		char *grown = realloc(im->bytes, room);

		if (!grown) {
			im->err = -ENOMEM;
			return NULL;
		}
		im->bytes = grown;
		im->room = room;
	}
	at = im->bytes + im->n;
	memset(at, 0, bytes);
	im->n += bytes;
	if (im->n > UINT32_MAX / 2)
		im->err = -E2BIG;
	return im->err ? NULL : at;
}

size_t shunt_image_emit(struct shunt_image *im, enum shunt_prog_code code, uint32_t nsrc, uint32_t ndst, uint64_t size)
{
	size_t at = im->n;
	struct shunt_prog_op *op = shunt_image_append(im, sizeof(*op));

	if (op) {
		op->code = (uint8_t)code;
		op->nsrc = nsrc;
		op->ndst = ndst;
		op->size = size;
		op->parts = 1;
		op->next = (uint32_t)im->n;
	}
	im->last = at;
	return at;
}

void shunt_image_operand(struct shunt_image *im, struct shunt_prog_operand o)
{
	size_t back = im->n - im->last;
	struct shunt_prog_operand *at = shunt_image_append(im, sizeof(*at));

	o.back = (uint32_t)(back / sizeof(o));
	if (!at)
		return;
	*at = o;
	shunt_image_op(im, im->last)->next = (uint32_t)im->n;
}

struct shunt_prog_op *shunt_image_op(const struct shunt_image *im, size_t at)
{
	return im->err ? NULL : (struct shunt_prog_op *)(im->bytes + at);
}

void shunt_image_met(struct shunt_image *im)
{
	im->loose_lines = im->loose_others = false;
}

void shunt_image_loosen(struct shunt_image *im, bool lines)
{
	im->loose_lines |= lines;
	im->loose_others |= !lines;
}

void shunt_image_sync(struct shunt_image *im)
{
	shunt_image_emit(im, SHUNT_PROG_SYNC, 0, 0, 0);
	shunt_image_met(im);
}

void shunt_image_separate(struct shunt_image *im, bool lines)
{
	if (im->lines && (lines ? im->loose_others : im->loose_lines))
		shunt_image_sync(im);
}

void shunt_image_tighten(struct shunt_image *im)
{
	if (im->loose_lines || im->loose_others)
		shunt_image_sync(im);
}

void shunt_image_finish(struct shunt_image *im)
{
	free(im->bytes);
	*im = (struct shunt_image){ 0 };
}

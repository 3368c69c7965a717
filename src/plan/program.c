/* SPDX-License-Identifier: MIT */
/* The compiler: one rank's blocks, each an image from its first operation to the last. */
#include "plan/program.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "plan/program_priv.h"

/* Between the caller's memory and ours; `user` 0 is what is sent, 1 what is received. */
static void emit_stage(struct program_builder *b, enum shunt_prog_code code, uint8_t user, uint64_t user_index,
    uint8_t ours, uint64_t index, uint64_t size)
{
	struct shunt_prog_op *op;
	size_t at;

	if (!size)
		return;
	at = shunt_image_emit(&b->image, code, 1, 1, size);
	shunt_image_operand(&b->image, (struct shunt_prog_operand){ .buffer = user, .index = user_index });
	shunt_image_operand(&b->image,
	    (struct shunt_prog_operand){
	        .as = SHUNT_PROG_AS_SLICE, .buffer = ours, .rank = (uint16_t)b->rank, .index = index });
	op = shunt_image_op(&b->image, at);
	if (op)
		op->flags = ours;
}

static void emit_ranges(
    struct program_builder *b, enum shunt_prog_code code, uint8_t buffer, const struct shunt_ranges *r)
{
	for (size_t i = 0; i < r->n; i++)
		emit_stage(b, code, buffer, r->v[i].begin, buffer, r->v[i].begin, r->v[i].end - r->v[i].begin);
}

static void emit_loads(struct program_builder *b)
{
	const struct shunt_program *p = b->program;
	uint64_t part = b->plan->part_chunks;

	if (p->merged)
		emit_stage(b, SHUNT_PROG_LOAD, 0, 0, p->work, program_gathers(b->plan) ? b->rank * part : 0,
		    program_gathers(b->plan) ? part : p->extent[p->work]);
	else
		emit_ranges(b, SHUNT_PROG_LOAD, 0, &b->read[0]);
	if (p->loads_output)
		emit_ranges(b, SHUNT_PROG_LOAD, 1, &b->read[1]);
}

static void emit_stores(struct program_builder *b)
{
	const struct shunt_program *p = b->program;
	uint64_t part = b->plan->part_chunks;

	if (p->merged)
		emit_stage(b, SHUNT_PROG_STORE, 1, 0, p->work, program_scatters(b->plan) ? b->rank * part : 0,
		    program_scatters(b->plan) ? part : p->extent[p->work]);
	else
		emit_ranges(b, SHUNT_PROG_STORE, 1, &b->written[1]);
}

/* Block k's operations, in b->image. A rank without blocks takes part in the launch with one that does nothing. */
static int make_image(struct program_builder *b, uint32_t k)
{
	_Static_assert(sizeof(struct shunt_prog_head) % 16 == 0, "images are read in pieces of 16 bytes");
	uint32_t first = SHUNT_PROG_FIRST(b->plan->nranks);
	struct shunt_image *im = &b->image;
	size_t body;

	*im = (struct shunt_image){ .lines = b->program->flags & SHUNT_PROG_LINES };
	shunt_image_append(im, first);
	if (b->program->flags & SHUNT_PROG_SHADOWED)
		shunt_image_emit(im, SHUNT_PROG_READY, 0, 0, 0);
	emit_loads(b);
	shunt_image_emit(im, SHUNT_PROG_ENTER, 0, 0, 0);
	body = im->n;
	for (uint32_t i = 0; k < b->gpu->nblocks && i < b->gpu->blocks[k].nops && !im->err;)
		i += shunt_program_translate(b, &b->gpu->blocks[k].ops[i]);
	shunt_image_emit(im, SHUNT_PROG_LEAVE, 0, 0, 0);
	emit_stores(b);
	shunt_image_emit(im, SHUNT_PROG_END, 0, 0, 0);
	if (!im->err) {
		((struct shunt_prog_head *)im->bytes)->first = first;
		((struct shunt_prog_head *)im->bytes)->body = (uint32_t)body;
	}
	return im->err;
}

/* All images one behind the other, as long as the longest. `head` is what their heads have in common. */
static int make_images(struct program_builder *b, struct shunt_prog_head head)
{
	struct shunt_program *p = b->program;
	struct shunt_image *images = calloc(p->nblocks, sizeof(*images));
	size_t largest = sizeof(head); /* every image begins with one */
	int err = images ? 0 : -ENOMEM;

	for (uint32_t k = 0; k < p->nblocks && !err; k++) {
		err = make_image(b, k);
		images[k] = b->image;
		largest = b->image.n > largest ? b->image.n : largest;
	}
	if (!err && (uint64_t)largest * p->nblocks > UINT32_MAX)
		err = -E2BIG;
	if (!err && !(p->images = calloc(p->nblocks, largest)))
		err = -ENOMEM;
	for (uint32_t k = 0; k < p->nblocks && !err; k++) {
		struct shunt_prog_head *h = (struct shunt_prog_head *)(p->images + k * largest);

		memcpy(h, images[k].bytes, images[k].n);
		head.first = h->first;
		head.body = h->body;
		*h = head;
	}
	p->image_bytes = (uint32_t)largest;
	for (uint32_t k = 0; images && k < p->nblocks; k++)
		shunt_image_finish(&images[k]);
	free(images);
	return err;
}

static int build(struct program_builder *b, bool lines)
{
	const struct shunt_plan *plan = b->plan;
	struct shunt_program *p = b->program;
	struct shunt_prog_head head = {
		.rank = b->rank, .nranks = plan->nranks, .unit = plan->alignment, .dense = plan->dense
	};
	int err = shunt_program_buffers(b);

	if (err)
		return err;
	if (lines && plan->lines) {
		p->flags |= SHUNT_PROG_LINES;
		p->sparse = plan->dense - 1;
	}
	p->nblocks = b->gpu->nblocks ? b->gpu->nblocks : 1;
	p->scratch = plan->scratch_chunks * (plan->packets ? 2 : 1);
	p->nsemaphores = b->gpu->nsemaphores;
	p->semaphores = b->gpu->semaphores;
	head.nblocks = p->nblocks;
	head.flags = p->flags;
	for (int i = 0; i < 2; i++)
		head.chunks[i] = !program_is_free(plan) ? plan->part_chunks :
		    p->merged                           ? p->extent[p->work] :
		                                          b->gpu->chunks[i];
	err = shunt_program_lay_out(plan, &head, &p->counters_bytes);
	if (err)
		return err;
	p->semaphores_at = head.semaphores_at;
	return make_images(b, head);
}

int shunt_program_create(const struct shunt_plan *plan, uint32_t rank, bool lines, struct shunt_program **program_p)
{
	struct program_builder b = { .plan = plan, .gpu = &plan->gpus[rank], .rank = rank };
	int err;

	b.program = calloc(1, sizeof(*b.program));
	if (!b.program)
		return -ENOMEM;
	err = build(&b, lines);
	for (int i = 0; i < 2; i++) {
		shunt_ranges_finish(&b.read[i]);
		shunt_ranges_finish(&b.written[i]);
	}
	if (err) {
		shunt_program_destroy(b.program);
		return err;
	}
	*program_p = b.program;
	return 0;
}

void shunt_program_destroy(struct shunt_program *program)
{
	if (!program)
		return;
	free(program->images);
	free(program);
}

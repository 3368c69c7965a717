/* SPDX-License-Identifier: MIT */
/* The effect of a plan's operation, as text. */
#include "tools/common/libc.h"
#include "tools/plan/plan.h"
#include "plan/format/op_rows.h"

struct words {
	const struct shunt_plan *plan;
	const struct shunt_plan_gpu *gpu;
	char *text;
	size_t bytes, used;
};

static void append(struct words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void append(struct words *w, const char *fmt, ...)
{
	va_list args;
	int n;

	if (w->used + 1 >= w->bytes)
		return;
	va_start(args, fmt);
	n = vsnprintf(w->text + w->used, w->bytes - w->used, fmt, args);
	va_end(args);
	w->used += n > 0 ? (size_t)n : 0;
	if (w->used < w->bytes)
		return;
	w->used = w->bytes - 1;
	/* Shows that the text is cut. */
	if (w->bytes > 4)
		memcpy(w->text + w->bytes - 4, "...", 4);
}

static void append_slice(struct words *w, const struct shunt_plan_slice *s)
{
	if (s->place == SHUNT_PLAN_REMOTE)
		append(w, "rank %u's ", s->target);
	if (s->place == SHUNT_PLAN_MULTICAST) {
		const struct shunt_plan_switch *sw = &w->gpu->switches[s->target];

		if (sw->nranks == w->plan->nranks)
			append(w, "all ranks' ");
		for (uint32_t i = 0; sw->nranks != w->plan->nranks && i < sw->nranks; i++)
			append(w, "%s%u%s", i ? ", " : "ranks ", sw->ranks[i], i + 1 < sw->nranks ? "" : "' ");
	}
	append(w, "%s%s[%" PRIu64, s->packet ? "packets " : "", shunt_plan_buffer_name(s->buffer), s->index);
	if (s->size > 1)
		append(w, "..%" PRIu64, s->index + s->size - 1);
	append(w, "]");
}

static void append_slices(struct words *w, const struct shunt_plan_slice *s, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		append(w, "%s", i ? ", " : "");
		append_slice(w, &s[i]);
	}
}

static void append_channels(struct words *w, const struct shunt_plan_op *op)
{
	const char *type = shunt_plan_channel_type_name(op->type);

	for (uint32_t i = 0; i < op->nids; i++)
		append(w, "%s%u",
		    i                ? ", " :
		        op->nids > 1 ? "ranks " :
		                       "rank ",
		    w->gpu->channels[op->type][op->ids[i]].peer);
	for (uint32_t i = 0; i < op->nids; i++)
		append(w, "%s%s%s%u", i ? ", " : " (", i ? "" : type, i ? "" : " ", op->ids[i]);
	append(w, ")");
}

static void append_pairs(struct words *w, const struct shunt_plan_op *op)
{
	for (uint32_t i = 0; i < op->ndst; i++) {
		append(w, "%s", i ? "; " : "");
		append_slice(w, &op->dst[i]);
		append(w, " = ");
		append_slice(w, &op->src[op->nsrc == op->ndst ? i : 0]);
	}
}

static void append_reduction(struct words *w, const struct shunt_plan_op *op)
{
	append_slices(w, op->dst, op->ndst);
	/* A slice of a switch is one of each member. */
	append(w, " = %s(", shunt_redop_name(op->redop));
	/* Packets come first, in any order of the list: see the format. */
	if (op->nsrc > 1 && op->src[1].packet) {
		append_slices(w, op->src + 1, op->nsrc - 1);
		append(w, ", ");
		append_slice(w, op->src);
	} else {
		append_slices(w, op->src, op->nsrc);
	}
	append(w, ")");
}

/* The words of an operation without slices, and its channels or semaphores. */
static void append_ids(struct words *w, const struct shunt_plan_op *op)
{
	const struct shunt_plan_op_row *row = &shunt_plan_op_rows[op->code];

	append(w, "%s", row->words);
	if (row->ids == SHUNT_PLAN_IDS_CHANNELS)
		append_channels(w, op);
	if (row->ids != SHUNT_PLAN_IDS_SEMAPHORES)
		return;
	append(w, "%s ", op->nids > 1 ? "s" : "");
	for (uint32_t i = 0; i < op->nids; i++)
		append(w, "%s%u", i ? ", " : "", op->ids[i]);
}

void plan_op_describe(
    const struct shunt_plan *plan, uint32_t rank, const struct shunt_plan_op *op, char *text, size_t bytes)
{
	struct words w = { plan, &plan->gpus[rank], text, bytes, 0 };
	char unit[24];

	*text = 0;
	if (shunt_plan_op_does(op, SHUNT_PLAN_SYNCS_BLOCKS))
		append(&w, "%u blocks synchronize at barrier %u", op->nblocks, op->barrier);
	else if (shunt_plan_op_does(op, SHUNT_PLAN_REPEATS))
		append(&w, "for each window of %s bytes of %" PRIu64 " chunk%s, the next %u operations:",
		    tool_format_size(op->unit_size, unit), op->num_chunks, op->num_chunks > 1 ? "s" : "", op->nbody);
	else if (shunt_plan_op_does(op, SHUNT_PLAN_REDUCES))
		append_reduction(&w, op);
	else if (op->nsrc)
		append_pairs(&w, op);
	else
		append_ids(&w, op);
	if (op->nsrc && shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS))
		append(&w, "; then a signal to each%s",
		    shunt_plan_op_does(op, SHUNT_PLAN_COMPLETES) ? ", and wait until it is sent" : "");
	if (op->parts > 1)
		append(&w, "; part %u of %u", op->part, op->parts);
}

/* SPDX-License-Identifier: MIT */
/*
 * The picture of a plan: one SVG without script or external parts. It has a row for each block, or for all blocks of a
 * rank that do the same with other parts or chunks; a box for each operation, with its text under the mouse pointer;
 * and arrows from an operation to those that wait for it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "plan/format/op_rows.h"
#include "tools/plan/plan.h"

enum { LABEL = 175, ROW = 24, BOX = 16, RANK_GAP = 10, TOP = 56, BOTTOM = 64, MARGIN = 20, MANY = 120 };
#define WIDEST 3200.0 /* maximum if operations stay readable */
#define CHAR 5.2      /* of the boxes' letters */

enum op_style {
	STYLE_SYNC,
	STYLE_SIGNAL,
	STYLE_WAIT,
	STYLE_LOCAL,
	STYLE_SEND,
	STYLE_REDUCE,
	STYLE_REDUCE_SEND,
	NSTYLES
};
static const struct {
	const char *colour, *legend;
} op_styles[NSTYLES] = {
	[STYLE_SYNC] = { "#c3c9d1", "sync" },
	[STYLE_SIGNAL] = { "#eda73f", "signal" },
	[STYLE_WAIT] = { "#f7dcab", "wait" },
	[STYLE_LOCAL] = { "#a9d3ee", "copy, unpack" },
	[STYLE_SEND] = { "#5b9bdb", "to peers" },
	[STYLE_REDUCE] = { "#9bd08f", "reduce" },
	[STYLE_REDUCE_SEND] = { "#4fa55c", "reduce, to peers" },
};

static const struct {
	const char *colour, *dash, *legend;
} arrow_styles[] = {
	[PLAN_ARROW_SIGNAL] = { "#c77700", "", "signal" },
	[PLAN_ARROW_SEMAPHORE] = { "#7d6ba8", " stroke-dasharray=\"4 2\"", "semaphore" },
	[PLAN_ARROW_BARRIER] = { "#666666", " stroke-dasharray=\"2 2\"", "barrier" },
	[PLAN_ARROW_DATA] = { "#1f5fa8", "", "data" },
};
enum { NARROWS = sizeof(arrow_styles) / sizeof(arrow_styles[0]) };

struct picture {
	FILE *out;
	const struct shunt_plan *plan;
	struct plan_timeline t;
	uint32_t *drawn_row; /* for each row: the row shown for it, perhaps itself */
	uint32_t *nmerged;   /* for a row that is shown: number of rows that it stands for */
	uint32_t *first;     /* for each row, and behind the last: index of its first step in `order` */
	uint32_t *order;     /* steps by row */
	uint32_t *place;     /* index of each step within its row */
	double *y;           /* middle of each shown row */
	double scale, height;
	int64_t rank; /* only this rank's arrows; -1: all */
};

static enum op_style op_style_of(const struct shunt_plan_op *op)
{
	bool remote = false;

	for (uint32_t i = 0; i < op->ndst; i++)
		remote |= op->dst[i].place != SHUNT_PLAN_LOCAL;
	if (op->nsrc && shunt_plan_op_does(op, SHUNT_PLAN_REDUCES))
		return remote ? STYLE_REDUCE_SEND : STYLE_REDUCE;
	if (op->nsrc)
		return remote ? STYLE_SEND : STYLE_LOCAL;
	if (shunt_plan_op_does(op, SHUNT_PLAN_SYNCS | SHUNT_PLAN_SYNCS_BLOCKS))
		return STYLE_SYNC;
	return shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS | SHUNT_PLAN_RELEASES) ? STYLE_SIGNAL : STYLE_WAIT;
}

/* ---- rows to show */

/* Equal for blocks that do the same with other parts or chunks. The set of peers counts, not their order. */
static uint64_t signature(const struct shunt_plan *plan, const struct plan_row *row)
{
	const struct shunt_plan_gpu *gpu = &plan->gpus[row->rank];
	const struct shunt_plan_block *block = &gpu->blocks[row->block];
	uint64_t hash = block->nops;

	for (uint32_t i = 0; i < block->nops; i++) {
		const struct shunt_plan_op *op = &block->ops[i];
		uint64_t peers = 0;

		for (uint32_t k = 0; k < op->nsrc + op->ndst; k++) {
			const struct shunt_plan_slice *s = k < op->nsrc ? &op->src[k] : &op->dst[k - op->nsrc];
			uint64_t to = s->place == SHUNT_PLAN_REMOTE ? s->target + 1 : 0;

			peers += ((uint64_t)s->place << 40 | (uint64_t)s->buffer << 32 | to) * 0x9e3779b97f4a7c15u;
		}
		for (uint32_t k = 0; k < op->nids && op->type <= SHUNT_PLAN_PORT; k++)
			peers += (gpu->channels[op->type][op->ids[k]].peer + 77) * 0xc2b2ae3d27d4eb4fu;
		hash = (hash ^
		           (op->code | (uint64_t)op->nsrc << 8 | (uint64_t)op->ndst << 24 | (uint64_t)op->nids << 40)) *
		    0x100000001b3u;
		hash = (hash ^ peers) * 0x100000001b3u;
		hash ^= hash >> 29;
	}
	return hash;
}

static int rows_choose(struct picture *p, bool all)
{
	uint32_t n = p->t.nrows;
	uint64_t *hash = calloc(n + 1, sizeof(*hash));

	p->drawn_row = calloc(n + 1, sizeof(*p->drawn_row));
	p->nmerged = calloc(n + 1, sizeof(*p->nmerged));
	p->y = calloc(n + 1, sizeof(*p->y));
	if (!hash || !p->drawn_row || !p->nmerged || !p->y) {
		free(hash);
		return -ENOMEM;
	}
	p->height = TOP;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = i;

		hash[i] = signature(p->plan, &p->t.rows[i]);
		for (uint32_t j = 0; !all && j < i && k == i; j++)
			if (p->t.rows[j].rank == p->t.rows[i].rank && p->drawn_row[j] == j && hash[j] == hash[i])
				k = j;
		p->drawn_row[i] = k;
		p->nmerged[k]++;
		if (k != i)
			continue;
		if (i && p->t.rows[i].rank != p->t.rows[i - 1].rank)
			p->height += RANK_GAP;
		p->y[i] = p->height + ROW / 2.0;
		p->height += ROW;
	}
	free(hash);
	return 0;
}

/* Sorts the steps by row. Within a row they already are in order of time. */
static int steps_order(struct picture *p)
{
	uint32_t n = p->t.nrows;
	uint32_t *next = calloc(n + 1, sizeof(*next));

	p->first = calloc(n + 1, sizeof(*p->first));
	p->order = calloc(p->t.nsteps + 1, sizeof(*p->order));
	p->place = calloc(p->t.nsteps + 1, sizeof(*p->place));
	if (!next || !p->first || !p->order || !p->place) {
		free(next);
		return -ENOMEM;
	}
	for (size_t i = 0; i < p->t.nsteps; i++)
		p->first[p->t.steps[i].row + 1]++;
	for (uint32_t i = 0; i < n; i++)
		p->first[i + 1] += p->first[i];
	for (size_t i = 0; i < p->t.nsteps; i++) {
		uint32_t row = p->t.steps[i].row;

		p->place[i] = next[row]++;
		p->order[p->first[row] + p->place[i]] = (uint32_t)i;
	}
	free(next);
	return 0;
}

/* The step that is shown for a step. */
static uint32_t drawn_step(const struct picture *p, uint32_t step)
{
	uint32_t row = p->drawn_row[p->t.steps[step].row], at = p->first[row] + p->place[step];

	return at < p->first[row + 1] ? p->order[at] : p->order[p->first[row + 1] - 1];
}

/* ---- drawing */

static double time_to_x(const struct picture *p, double time)
{
	return LABEL + time * p->scale;
}

static void head_draw(const struct picture *p, double width, double height)
{
	FILE *out = p->out;
	char range[64];

	fprintf(out,
	    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n",
	    width, height, width, height);
	fputs("<style>text{font:11px sans-serif;fill:#222}.op{font:8.5px "
	      "monospace;pointer-events:none}.t{font-size:15px;font-weight:bold}"
	      "rect{stroke:#556;stroke-width:.5}.w{stroke:#99a;stroke-width:1;stroke-dasharray:1 "
	      "2}.a{fill:none;stroke-width:1.2;opacity:.6}"
	      ".many .a{stroke-width:.8;opacity:.35}.many "
	      ".a:hover,.a:hover{stroke-width:2.5;opacity:1}</style>\n<defs>\n",
	    out);
	for (int k = 0; k < NARROWS; k++)
		fprintf(out,
		    "<marker id=\"m%d\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" "
		    "orient=\"auto\">"
		    "<path d=\"M0 0 8 4 0 8z\" fill=\"%s\"/></marker>\n",
		    k, arrow_styles[k].colour);
	fprintf(out,
	    "</defs>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\" style=\"stroke:none\"/>\n<text class=\"t\" "
	    "x=\"%d\" "
	    "y=\"24\">",
	    width, height, MARGIN);
	tool_escape(p->plan->name, out);
	fprintf(out,
	    "</text>\n<text x=\"%d\" y=\"42\">%s of %u ranks, %s, %s. What waits for what is the plan's; how long "
	    "things take is "
	    "made up.</text>\n",
	    MARGIN, shunt_plan_collective_name(p->plan->collective), p->plan->nranks,
	    p->plan->inplace ? "in place" : "out of place", plan_range_text(p->plan, range));
}

static void rows_draw(const struct picture *p, double width)
{
	FILE *out = p->out;

	for (uint32_t i = 0; i < p->t.nrows; i++) {
		const struct plan_row *row = &p->t.rows[i];

		if (p->drawn_row[i] != i)
			continue;
		fprintf(out, "<text x=\"%d\" y=\"%.1f\">rank %u, block %u", MARGIN, p->y[i] + 4, row->rank, row->block);
		if (p->nmerged[i] > 1)
			fprintf(out, " (%u alike)", p->nmerged[i]);
		fprintf(out, "</text><path d=\"M%d %.1fH%.0f\" stroke=\"#ddd\"/>\n", LABEL, p->y[i], width - MARGIN);
	}
}

static void step_draw(const struct picture *p, const struct plan_step *s)
{
	FILE *out = p->out;
	double y = p->y[s->row], w = (s->end - s->start) * p->scale;
	const char *name = shunt_plan_op_name(s->op->code);
	char words[1024];
	int letters = (int)(w / CHAR);

	if (s->start > s->ready_at)
		fprintf(out, "<path class=\"w\" d=\"M%.1f %.1fH%.1f\"/>\n", time_to_x(p, s->ready_at), y,
		    time_to_x(p, s->start));
	/* Start of a window. */
	if (s->op->inner == 0)
		fprintf(out, "<path d=\"M%.1f %.1fv%d\" stroke=\"#333\"/>\n", time_to_x(p, s->ready_at), y - ROW / 2.0,
		    ROW);
	fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>%u",
	    time_to_x(p, s->start), y - BOX / 2.0, w, BOX, op_styles[op_style_of(s->op)].colour, s->op->at);
	if (s->op->inner != SHUNT_PLAN_NIL)
		fprintf(out, ".%u, window %u", s->op->inner, s->window);
	plan_op_describe(p->plan, p->t.rows[s->row].rank, s->op, words, sizeof(words));
	fprintf(out, ": %s: ", name);
	tool_escape(words, out);
	fputs("</title></rect>", out);
	if (!strncmp(name, "sem_", 4))
		name += 4;
	if (letters > 2)
		fprintf(out, "<text class=\"op\" x=\"%.1f\" y=\"%.1f\">%.*s</text>", time_to_x(p, s->start) + 2, y + 3,
		    letters, name);
	putc('\n', out);
}

static int by_arrow(const void *x, const void *y)
{
	const struct plan_arrow *a = x, *b = y;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	if (a->from != b->from)
		return a->from < b->from ? -1 : 1;
	return a->to < b->to ? -1 : a->to > b->to;
}

/* Draws the arrows. An arrow of a hidden row goes to or from the row shown for it; equal arrows are drawn once. */
static void arrows_draw(struct picture *p)
{
	struct plan_arrow *a = p->t.arrows;

	for (size_t i = 0; i < p->t.narrows; i++) {
		a[i].from = drawn_step(p, a[i].from);
		a[i].to = drawn_step(p, a[i].to);
	}
	if (p->t.narrows)
		qsort(a, p->t.narrows, sizeof(*a), by_arrow);
	fprintf(p->out, "<g%s>\n", p->t.narrows > MANY && p->rank < 0 ? " class=\"many\"" : "");
	for (size_t i = 0; i < p->t.narrows; i++) {
		const struct plan_step *from = &p->t.steps[a[i].from], *to = &p->t.steps[a[i].to];
		/* At a barrier all blocks begin together. */
		double x1 = time_to_x(p, a[i].kind == PLAN_ARROW_BARRIER ? from->start : from->end),
		       x2 = time_to_x(p, to->start), y1 = p->y[from->row], y2 = p->y[to->row], bend = (x2 - x1) / 2;

		if ((i && !by_arrow(&a[i - 1], &a[i])) || from->row == to->row)
			continue;
		if (p->rank >= 0 && p->t.rows[from->row].rank != p->rank && p->t.rows[to->row].rank != p->rank)
			continue;
		bend = bend > 8 ? bend : 8;
		/* Between the facing edges of the boxes. */
		y1 += y2 > y1 ? BOX / 2.0 : -BOX / 2.0;
		y2 += y2 > y1 ? -BOX / 2.0 : BOX / 2.0;
		fprintf(p->out,
		    "<path class=\"a\" stroke=\"%s\"%s marker-end=\"url(#m%d)\" d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f "
		    "%.1f %.1f\"/>\n",
		    arrow_styles[a[i].kind].colour, arrow_styles[a[i].kind].dash, a[i].kind, x1, y1, x1 + bend, y1,
		    x2 - bend, y2, x2, y2);
	}
	fputs("</g>\n", p->out);
}

static void legend_draw(const struct picture *p)
{
	FILE *out = p->out;
	double y = p->height + 24;

	for (int i = 0; i < NSTYLES; i++)
		fprintf(out,
		    "<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"10\" fill=\"%s\"/><text x=\"%d\" "
		    "y=\"%.1f\">%s</text>\n",
		    MARGIN + i * 115, y, op_styles[i].colour, MARGIN + 19 + i * 115, y + 9, op_styles[i].legend);
	y += 26;
	for (int i = 0; i < NARROWS; i++)
		fprintf(out,
		    "<path class=\"a\" stroke=\"%s\"%s marker-end=\"url(#m%d)\" d=\"M%d %.1fh26\"/><text x=\"%d\" "
		    "y=\"%.1f\">%s</text>\n",
		    arrow_styles[i].colour, arrow_styles[i].dash, i, MARGIN + i * 115, y, MARGIN + 32 + i * 115, y + 4,
		    arrow_styles[i].legend);
	fprintf(out, "<path class=\"w\" d=\"M%d %.1fh26\"/><text x=\"%d\" y=\"%.1f\">waits</text>\n",
	    MARGIN + NARROWS * 115, y, MARGIN + 32 + NARROWS * 115, y + 4);
	fprintf(out, "<path d=\"M%d %.1fv12\" stroke=\"#333\"/><text x=\"%d\" y=\"%.1f\">a window begins</text>\n",
	    MARGIN + (NARROWS + 1) * 115, y - 6, MARGIN + 8 + (NARROWS + 1) * 115, y + 4);
}

int plan_svg_write(FILE *out, const struct shunt_plan *plan, bool all, int64_t rank)
{
	struct picture p = { .out = out, .plan = plan, .rank = rank };
	double width;
	int err = plan_timeline_init(&p.t, plan);

	if (!err)
		err = rows_choose(&p, all);
	if (!err)
		err = steps_order(&p);
	if (!err) {
		p.scale = p.t.end > 0 ? WIDEST / p.t.end : 12;
		p.scale = p.scale > 12 ? 12 : p.scale < 5 ? 5 : p.scale;
		width = time_to_x(&p, p.t.end) + MARGIN;
		width = width > MARGIN + NSTYLES * 115 ? width : MARGIN + NSTYLES * 115;
		head_draw(&p, width, p.height + BOTTOM + MARGIN);
		rows_draw(&p, width);
		/* Behind the boxes, so that their text stays readable. */
		arrows_draw(&p);
		for (size_t i = 0; i < p.t.nsteps; i++)
			if (p.drawn_row[p.t.steps[i].row] == p.t.steps[i].row)
				step_draw(&p, &p.t.steps[i]);
		legend_draw(&p);
		fputs("</svg>\n", out);
	}
	free(p.drawn_row);
	free(p.nmerged);
	free(p.y);
	free(p.first);
	free(p.order);
	free(p.place);
	plan_timeline_finish(&p.t);
	return err;
}

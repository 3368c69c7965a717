/* SPDX-License-Identifier: MIT */
/*
 * The picture of a plan: one SVG without script or external parts. It has a row for each block, or for all blocks of a
 * rank that do the same with other parts or chunks; a box for each operation, with its text under the mouse pointer;
 * and arrows from an operation to those that wait for it. Where these are many, those of rank 0 are drawn, and the
 * others appear under the mouse pointer: those of a box, or of the row whose name it is on.
 */
#include "tools/common/libc.h"
#include "plan/format/op_rows.h"
#include "tools/plan/plan.h"

enum { LABEL = 175, ROW = 24, BOX = 16, RANK_GAP = 10, TOP = 70, BOTTOM = 64, MARGIN = 20, MANY = 100, COLUMN = 115 };
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
	struct plan_view view;
	bool *lit;                           /* for each step: it handles the chunk of the view */
	bool many;                           /* most arrows are hidden until the mouse pointer is on their box or row */
	uint32_t *arrow_first, *arrow_order; /* as first and order: the arrows of each step, of both ends */
	bool op_styles[NSTYLES], arrow_styles[NARROWS], waits, windows; /* drawn, so that the legend has them */
};

/* Of a row that is not drawn. */
#define HIDDEN UINT32_MAX

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

/* ---- the way of a chunk */

/* Chunks are counted in the buffer that has more of them. */
static bool slice_has(const struct picture *p, const struct shunt_plan_slice *s)
{
	const uint64_t *chunks = p->plan->gpus[0].chunks;
	uint64_t chunk = (uint64_t)p->view.chunk;

	if (s->buffer == SHUNT_PLAN_SCRATCH || chunks[s->buffer] < chunks[!s->buffer])
		return false;
	return s->index <= chunk && chunk < s->index + s->size;
}

static bool op_has(const struct picture *p, const struct shunt_plan_op *op, bool *counted_p)
{
	bool has = false;

	*counted_p = false;
	for (uint32_t k = 0; k < op->nsrc + op->ndst; k++) {
		const struct shunt_plan_slice *s = k < op->nsrc ? &op->src[k] : &op->dst[k - op->nsrc];
		const uint64_t *chunks = p->plan->gpus[0].chunks;

		*counted_p |= s->buffer != SHUNT_PLAN_SCRATCH && chunks[s->buffer] >= chunks[!s->buffer];
		has |= slice_has(p, s);
	}
	return has;
}

/* The operation brings the chunk to this rank: of pairs of slices those with the chunk count. */
static bool op_brings(const struct picture *p, const struct shunt_plan_op *op, uint32_t rank)
{
	bool pairs = false;

	for (uint32_t k = 0; op->nsrc == op->ndst && k < op->nsrc; k++) {
		pairs |= slice_has(p, &op->src[k]);
		if (slice_has(p, &op->src[k]) && (op->dst[k].place != SHUNT_PLAN_REMOTE || op->dst[k].target == rank))
			return true;
	}
	return !pairs;
}

/* Steps that name the chunk; and those with scratch only that read what such steps wrote. */
static int lit_find(struct picture *p)
{
	bool more = p->view.chunk >= 0, counted;

	p->lit = calloc(p->t.nsteps + 1, sizeof(*p->lit));
	if (!p->lit)
		return -ENOMEM;
	for (size_t i = 0; i < p->t.nsteps; i++)
		p->lit[i] = p->view.chunk < 0 || op_has(p, p->t.steps[i].op, &counted);
	while (more) {
		more = false;
		for (size_t i = 0; i < p->t.narrows; i++) {
			const struct plan_arrow *a = &p->t.arrows[i];
			const struct plan_step *to = &p->t.steps[a->to];

			if (a->kind != PLAN_ARROW_DATA || !p->lit[a->from] || p->lit[a->to])
				continue;
			op_has(p, to->op, &counted);
			if (counted || !op_brings(p, p->t.steps[a->from].op, p->t.rows[to->row].rank))
				continue;
			p->lit[a->to] = more = true;
		}
	}
	return 0;
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

/* It has steps that handle the view's chunk. */
static bool row_is_of_view(const struct picture *p, uint32_t row)
{
	bool any = p->view.chunk < 0;

	for (uint32_t i = p->first[row]; i < p->first[row + 1]; i++)
		any |= p->lit[p->order[i]];
	return any;
}

static int rows_choose(struct picture *p)
{
	uint32_t n = p->t.nrows, last = HIDDEN;
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
		if (!row_is_of_view(p, i)) {
			p->drawn_row[i] = HIDDEN;
			continue;
		}
		for (uint32_t j = 0; !p->view.all && j < i && k == i; j++)
			if (p->t.rows[j].rank == p->t.rows[i].rank && p->drawn_row[j] == j && hash[j] == hash[i])
				k = j;
		p->drawn_row[i] = k;
		p->nmerged[k]++;
		if (k != i)
			continue;
		if (last != HIDDEN && p->t.rows[i].rank != p->t.rows[last].rank)
			p->height += RANK_GAP;
		last = i;
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

/* The step that is shown for a step, or HIDDEN. */
static uint32_t drawn_step(const struct picture *p, uint32_t step)
{
	uint32_t row = p->drawn_row[p->t.steps[step].row], at;

	if (row == HIDDEN || !p->lit[step])
		return HIDDEN;
	at = p->first[row] + p->place[step];
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
	      "2}.a{fill:none;stroke-width:1.2;opacity:.7}.a:hover{stroke-width:2.5;opacity:1}.f{opacity:.2}"
	      ".h .a{opacity:0;pointer-events:none}g:hover>.h .a,.l:hover~g .a{opacity:.9}</style>\n<defs>\n",
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
	fprintf(out, "</text>\n<text x=\"%d\" y=\"42\">%s of %u ranks, %s, %s", MARGIN,
	    shunt_plan_collective_name(p->plan->collective), p->plan->nranks,
	    p->plan->inplace ? "in place" : "out of place", plan_range_text(p->plan, range));
	if (p->view.chunk >= 0)
		fprintf(out, "; the way of chunk %lld", (long long)p->view.chunk);
	fputs(". What waits for what is the plan's; how long things take is made up.</text>\n", out);
	if (p->many)
		fprintf(out,
		    "<text x=\"%d\" y=\"58\">Arrows of rank 0. Point at a box or at a row's name for those of others; "
		    "or see --rank, --block and --chunk.</text>\n",
		    MARGIN);
}

static void step_draw(struct picture *p, const struct plan_step *s)
{
	FILE *out = p->out;
	double y = p->y[s->row], w = (s->end - s->start) * p->scale;
	const char *name = shunt_plan_op_name(s->op->code);
	char words[1024];
	int letters = (int)(w / CHAR);

	p->op_styles[op_style_of(s->op)] = true;
	p->waits |= s->start > s->ready_at;
	p->windows |= s->op->inner == 0;
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

static int arrows_index(struct picture *p)
{
	uint32_t *end;

	p->arrow_first = calloc(p->t.nsteps + 2, sizeof(*p->arrow_first));
	p->arrow_order = calloc(2 * p->t.narrows + 1, sizeof(*p->arrow_order));
	if (!p->arrow_first || !p->arrow_order)
		return -ENOMEM;
	/* While it fills, a step's list ends where that of the next one begins. */
	end = p->arrow_first + 1;
	for (size_t i = 0; i < p->t.narrows; i++) {
		p->arrow_first[p->t.arrows[i].from + 2]++;
		p->arrow_first[p->t.arrows[i].to + 2]++;
	}
	for (size_t i = 2; i <= p->t.nsteps + 1; i++)
		p->arrow_first[i] += p->arrow_first[i - 1];
	for (size_t i = 0; i < p->t.narrows; i++) {
		p->arrow_order[end[p->t.arrows[i].from]++] = (uint32_t)i;
		p->arrow_order[end[p->t.arrows[i].to]++] = (uint32_t)i;
	}
	return 0;
}

/* The arrow's kind and the rows that it joins. */
static uint64_t arrow_rows(const struct picture *p, const struct plan_arrow *a)
{
	return (uint64_t)a->kind << 62 | (uint64_t)p->t.steps[a->from].row << 31 | p->t.steps[a->to].row;
}

/* The view has arrows of this row; a merged row has those of the row drawn for it. */
static bool row_is_looked_at(const struct picture *p, uint32_t row)
{
	uint32_t at = row - p->t.rows[row].block; /* the rank's first */

	if (p->view.rank >= 0 && p->t.rows[row].rank != p->view.rank)
		return false;
	if (p->view.block < 0)
		return true;
	at += (uint32_t)p->view.block;
	return at < p->t.nrows && p->t.rows[at].rank == p->t.rows[row].rank && p->drawn_row[at] == row;
}

static int by_rows(const void *x, const void *y)
{
	const uint64_t *a = x, *b = y;

	return (*a > *b) - (*a < *b);
}

/*
 * Arrows between the steps that are drawn, each once. An arrow of a merged row goes to or from the row drawn for it,
 * and is drawn only where no arrow of these rows themselves says the same: merged rows may take their peers in other
 * orders.
 */
static int arrows_choose(struct picture *p)
{
	struct plan_arrow *a = p->t.arrows;
	uint64_t *own = calloc(p->t.narrows + 1, sizeof(*own));
	size_t n = 0, nown = 0;

	if (!own)
		return -ENOMEM;
	for (size_t i = 0; i < p->t.narrows; i++)
		if (drawn_step(p, a[i].from) == a[i].from && drawn_step(p, a[i].to) == a[i].to)
			own[nown++] = arrow_rows(p, &a[i]);
	qsort(own, nown, sizeof(*own), by_rows);
	for (size_t i = 0; i < p->t.narrows; i++) {
		struct plan_arrow at = { a[i].kind, drawn_step(p, a[i].from), drawn_step(p, a[i].to) };
		bool is_own = at.from == a[i].from && at.to == a[i].to;
		uint32_t from, to;
		uint64_t key;

		if (at.from == HIDDEN || at.to == HIDDEN)
			continue;
		from = p->t.steps[at.from].row;
		to = p->t.steps[at.to].row;
		key = arrow_rows(p, &at);
		if (from == to || (!is_own && bsearch(&key, own, nown, sizeof(*own), by_rows)))
			continue;
		if (row_is_looked_at(p, from) || row_is_looked_at(p, to))
			a[n++] = at;
	}
	free(own);
	if (n)
		qsort(a, n, sizeof(*a), by_arrow);
	p->t.narrows = 0;
	for (size_t i = 0; i < n; i++)
		if (!p->t.narrows || by_arrow(&a[p->t.narrows - 1], &a[i]))
			a[p->t.narrows++] = a[i];
	p->many = p->t.narrows > MANY && p->view.rank < 0 && p->view.block < 0 && p->view.chunk < 0;
	return p->many ? arrows_index(p) : 0;
}

static bool arrow_is_of_rank_0(const struct picture *p, const struct plan_arrow *a)
{
	return !p->t.rows[p->t.steps[a->from].row].rank || !p->t.rows[p->t.steps[a->to].row].rank;
}

static void arrow_draw(struct picture *p, const struct plan_arrow *a)
{
	const struct plan_step *from = &p->t.steps[a->from], *to = &p->t.steps[a->to];
	/* At a barrier all blocks begin together. */
	double x1 = time_to_x(p, a->kind == PLAN_ARROW_BARRIER ? from->start : from->end), x2 = time_to_x(p, to->start),
	       y1 = p->y[from->row], y2 = p->y[to->row], bend = (x2 - x1) / 2;

	p->arrow_styles[a->kind] = true;
	bend = bend > 8 ? bend : 8;
	/* Between the facing edges of the boxes. */
	y1 += y2 > y1 ? BOX / 2.0 : -BOX / 2.0;
	y2 += y2 > y1 ? -BOX / 2.0 : BOX / 2.0;
	fprintf(p->out,
	    "<path class=\"a\" stroke=\"%s\"%s marker-end=\"url(#m%d)\" d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f "
	    "%.1f %.1f\"/>\n",
	    arrow_styles[a->kind].colour, arrow_styles[a->kind].dash, a->kind, x1, y1, x1 + bend, y1, x2 - bend, y2, x2,
	    y2);
}

/* The arrows that show only under the mouse pointer, in the group of their step; both ends have them. */
static void hidden_arrows_draw(struct picture *p, uint32_t step)
{
	bool any = false;

	for (uint32_t i = p->arrow_first[step]; i < p->arrow_first[step + 1]; i++) {
		const struct plan_arrow *a = &p->t.arrows[p->arrow_order[i]];

		if (arrow_is_of_rank_0(p, a))
			continue;
		fputs(any ? "" : "<g class=\"h\">", p->out);
		any = true;
		arrow_draw(p, a);
	}
	fputs(any ? "</g>" : "", p->out);
}

/* The row's name, its line, and its steps. */
static void row_draw(struct picture *p, uint32_t i, double width)
{
	const struct plan_row *row = &p->t.rows[i];
	FILE *out = p->out;

	fprintf(out, "<g><g class=\"l\"><text x=\"%d\" y=\"%.1f\">rank %u, block %u", MARGIN, p->y[i] + 4, row->rank,
	    row->block);
	if (p->nmerged[i] > 1)
		fprintf(out, " (%u alike)", p->nmerged[i]);
	fprintf(out, "</text></g><path d=\"M%d %.1fH%.0f\" stroke=\"#ddd\"/>\n", LABEL, p->y[i], width - MARGIN);
	for (uint32_t k = p->first[i]; k < p->first[i + 1]; k++) {
		fputs(p->lit[p->order[k]] ? "<g>" : "<g class=\"f\">", out);
		step_draw(p, &p->t.steps[p->order[k]]);
		if (p->many)
			hidden_arrows_draw(p, p->order[k]);
		fputs("</g>\n", out);
	}
	fputs("</g>\n", out);
}

/* What the picture has, and no more. */
static void legend_draw(const struct picture *p)
{
	FILE *out = p->out;
	double y = p->height + 24;
	int x = MARGIN;

	for (int i = 0; i < NSTYLES; i++) {
		if (!p->op_styles[i])
			continue;
		fprintf(out,
		    "<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"10\" fill=\"%s\"/><text x=\"%d\" "
		    "y=\"%.1f\">%s</text>\n",
		    x, y, op_styles[i].colour, x + 19, y + 9, op_styles[i].legend);
		x += COLUMN;
	}
	y += 26;
	x = MARGIN;
	for (int i = 0; i < NARROWS; i++) {
		if (!p->arrow_styles[i])
			continue;
		fprintf(out,
		    "<path class=\"a\" stroke=\"%s\"%s marker-end=\"url(#m%d)\" d=\"M%d %.1fh26\"/><text x=\"%d\" "
		    "y=\"%.1f\">%s</text>\n",
		    arrow_styles[i].colour, arrow_styles[i].dash, i, x, y, x + 32, y + 4, arrow_styles[i].legend);
		x += COLUMN;
	}
	if (p->waits) {
		fprintf(out, "<path class=\"w\" d=\"M%d %.1fh26\"/><text x=\"%d\" y=\"%.1f\">waits</text>\n", x, y,
		    x + 32, y + 4);
		x += COLUMN;
	}
	if (p->windows)
		fprintf(out,
		    "<path d=\"M%d %.1fv12\" stroke=\"#333\"/><text x=\"%d\" y=\"%.1f\">a window begins</text>\n", x,
		    y - 6, x + 8, y + 4);
}

int plan_svg_write(FILE *out, const struct shunt_plan *plan, const struct plan_view *view)
{
	struct picture p = { .out = out, .plan = plan, .view = *view };
	double width;
	int err = plan_timeline_init(&p.t, plan);

	if (!err)
		err = lit_find(&p);
	if (!err)
		err = steps_order(&p);
	if (!err)
		err = rows_choose(&p);
	if (!err)
		err = arrows_choose(&p);
	if (!err) {
		p.scale = p.t.end > 0 ? WIDEST / p.t.end : 12;
		p.scale = p.scale > 12 ? 12 : p.scale < 5 ? 5 : p.scale;
		width = time_to_x(&p, p.t.end) + MARGIN;
		width = width > MARGIN + NSTYLES * COLUMN ? width : MARGIN + NSTYLES * COLUMN;
		head_draw(&p, width, p.height + BOTTOM + MARGIN);
		/* Behind the boxes, so that their text stays readable. */
		for (size_t i = 0; i < p.t.narrows; i++)
			if (!p.many || arrow_is_of_rank_0(&p, &p.t.arrows[i]))
				arrow_draw(&p, &p.t.arrows[i]);
		for (uint32_t i = 0; i < p.t.nrows; i++)
			if (p.drawn_row[i] == i)
				row_draw(&p, i, width);
		legend_draw(&p);
		fputs("</svg>\n", out);
	}
	free(p.lit);
	free(p.drawn_row);
	free(p.nmerged);
	free(p.y);
	free(p.first);
	free(p.order);
	free(p.place);
	free(p.arrow_first);
	free(p.arrow_order);
	plan_timeline_finish(&p.t);
	return err;
}

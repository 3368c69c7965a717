/* SPDX-License-Identifier: MIT */
/* Effects of a simulated launch's operations on buffers: waits for packets, and arrows of data. */
#include <errno.h>
#include <stdlib.h>
#include "tools/plan/timing.h"

/* Units [low, high) of a buffer that a step wrote or reads. */
struct data_access {
	uint64_t low, high;
	uint32_t step;
	uint8_t buffer;
};

struct data_accesses {
	struct data_access *v;
	size_t n, room;
};

struct time_data {
	struct data_accesses *packets, *writes,
	    *reads; /* for each rank: packets written, plain data written by other ranks, plain data read */
};

static void add_access(struct time_simulation *p, struct data_accesses *t, struct data_access what)
{
	struct data_access *at = plan_time_array_grow(p, &t->v, t->n, &t->room, sizeof(*at));

	if (at) {
		*at = what;
		t->n++;
	}
}

int plan_time_data_init(struct time_simulation *p)
{
	size_t n = p->plan->nranks;

	p->data = calloc(1, sizeof(*p->data));
	if (!p->data)
		return -ENOMEM;
	p->data->packets = calloc(n, sizeof(*p->data->packets));
	p->data->writes = calloc(n, sizeof(*p->data->writes));
	p->data->reads = calloc(n, sizeof(*p->data->reads));
	return p->data->packets && p->data->writes && p->data->reads ? 0 : -ENOMEM;
}

static void data_accesses_free(struct data_accesses *t, size_t n)
{
	for (size_t i = 0; t && i < n; i++)
		free(t[i].v);
	free(t);
}

void plan_time_data_finish(struct time_simulation *p)
{
	if (!p->data)
		return;
	data_accesses_free(p->data->packets, p->plan->nranks);
	data_accesses_free(p->data->writes, p->plan->nranks);
	data_accesses_free(p->data->reads, p->plan->nranks);
	free(p->data);
}

/* Units of a slice that the operation handles in this window. False: none. */
static bool slice_units(const struct time_simulation *p, const struct time_block *a, const struct shunt_plan_op *op,
    const struct shunt_plan_slice *s, uint64_t *low_p, uint64_t *high_p)
{
	uint64_t size = s->size * p->units, first = 0, n;
	bool packets = false;

	for (uint32_t i = 0; i < op->nsrc + op->ndst; i++)
		packets |= (i < op->nsrc ? op->src[i] : op->dst[i - op->nsrc]).packet;
	if (a->pipeline != SHUNT_PLAN_NIL && !packets) {
		uint64_t unit = a->block->ops[a->pipeline].unit_size / p->plan->alignment;

		first = unit * a->window < size ? unit * a->window : size;
		size = size - first < unit ? size - first : unit;
	}
	shunt_plan_group_part(size, op->part, op->parts, low_p, &n);
	*low_p += first + s->index * p->units;
	*high_p = *low_p + n;
	return n;
}

static int by_low(const void *x, const void *y)
{
	const struct data_access *a = x, *b = y;

	return a->low < b->low ? -1 : a->low > b->low;
}

/* True: all packets of the operation's sources are there. False: a waits for more. */
bool plan_time_data_ready(
    struct time_simulation *p, struct time_block *a, const struct shunt_plan_op *op, double *time_p)
{
	struct data_accesses *t = &p->data->packets[a->rank];

	for (uint32_t i = 0; i < op->nsrc; i++) {
		uint64_t low, high, at;

		if (!op->src[i].packet || !slice_units(p, a, op, &op->src[i], &low, &high))
			continue;
		if (t->n)
			qsort(t->v, t->n, sizeof(*t->v), by_low);
		at = low;
		for (size_t k = 0; k < t->n && at < high; k++) {
			if (t->v[k].low > at || t->v[k].high <= at)
				continue;
			at = t->v[k].high;
			time_max(time_p, p->t->steps[t->v[k].step].end + TIME_LATENCY(p));
		}
		if (at < high) {
			time_wait_on(a, &t->n);
			return false;
		}
	}
	return true;
}

void plan_time_data_note(
    struct time_simulation *p, const struct time_block *a, const struct shunt_plan_op *op, uint32_t step)
{
	const uint32_t *ranks;
	uint64_t low, high;

	for (uint32_t i = 0; i < op->nsrc; i++) {
		const struct shunt_plan_slice *s = &op->src[i];
		struct data_accesses *t = &p->data->packets[a->rank];

		if (!slice_units(p, a, op, s, &low, &high))
			continue;
		for (size_t k = 0; s->packet && k < t->n; k++)
			if (t->v[k].low < high && low < t->v[k].high)
				plan_time_arrow(p, PLAN_ARROW_DATA, t->v[k].step, step);
		uint32_t n = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], s, &ranks);
		for (uint32_t m = 0; !s->packet && m < n; m++)
			add_access(p, &p->data->reads[ranks[m]], (struct data_access){ low, high, step, s->buffer });
	}
	for (uint32_t i = 0; i < op->ndst; i++) {
		const struct shunt_plan_slice *s = &op->dst[i];

		if (!slice_units(p, a, op, s, &low, &high))
			continue;
		uint32_t n = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], s, &ranks);
		for (uint32_t m = 0; m < n; m++)
			if (s->packet)
				add_access(
				    p, &p->data->packets[ranks[m]], (struct data_access){ low, high, step, s->buffer });
			else if (s->place != SHUNT_PLAN_LOCAL)
				add_access(
				    p, &p->data->writes[ranks[m]], (struct data_access){ low, high, step, s->buffer });
	}
}

void plan_time_data_arrows(struct time_simulation *p)
{
	for (uint32_t r = 0; r < p->plan->nranks; r++)
		for (size_t i = 0; i < p->data->writes[r].n; i++) {
			const struct data_access *w = &p->data->writes[r].v[i], *first = NULL;

			for (size_t k = 0; k < p->data->reads[r].n; k++) {
				const struct data_access *t = &p->data->reads[r].v[k];

				if (t->buffer != w->buffer || t->low >= w->high || w->low >= t->high ||
				    p->t->steps[t->step].start < p->t->steps[w->step].end)
					continue;
				if (!first || p->t->steps[t->step].start < p->t->steps[first->step].start)
					first = t;
			}
			if (first)
				plan_time_arrow(p, PLAN_ARROW_DATA, w->step, first->step);
		}
}

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

/* Units of a slice that the operation handles in this window. */
static struct shunt_plan_units slice_units(const struct time_simulation *p, const struct time_block *a,
    const struct shunt_plan_op *op, const struct shunt_plan_slice *s)
{
	struct shunt_plan_window w = { .chunk_units = p->units };

	if (a->pipeline != SHUNT_PLAN_NIL) {
		w.units = a->block->ops[a->pipeline].unit_size / p->plan->alignment;
		w.number = a->window;
	}
	return shunt_plan_slice_units(op, s, &w);
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
		struct shunt_plan_units u = slice_units(p, a, op, &op->src[i]);
		uint64_t at = u.low;

		if (!op->src[i].packet)
			continue;
		if (t->n)
			qsort(t->v, t->n, sizeof(*t->v), by_low);
		for (size_t k = 0; k < t->n && at < u.high; k++) {
			if (t->v[k].low > at || t->v[k].high <= at)
				continue;
			at = t->v[k].high;
			time_max(time_p, p->t->steps[t->v[k].step].end + TIME_LATENCY(p));
		}
		if (at < u.high) {
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

	for (uint32_t i = 0; i < op->nsrc; i++) {
		const struct shunt_plan_slice *s = &op->src[i];
		struct data_accesses *t = &p->data->packets[a->rank];
		struct shunt_plan_units u = slice_units(p, a, op, s);

		if (u.low == u.high)
			continue;
		for (size_t k = 0; s->packet && k < t->n; k++)
			if (t->v[k].low < u.high && u.low < t->v[k].high)
				plan_time_arrow(p, PLAN_ARROW_DATA, t->v[k].step, step);
		uint32_t n = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], s, &ranks);
		for (uint32_t m = 0; !s->packet && m < n; m++)
			add_access(
			    p, &p->data->reads[ranks[m]], (struct data_access){ u.low, u.high, step, s->buffer });
	}
	for (uint32_t i = 0; i < op->ndst; i++) {
		const struct shunt_plan_slice *s = &op->dst[i];
		struct shunt_plan_units u = slice_units(p, a, op, s);

		if (u.low == u.high)
			continue;
		uint32_t n = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], s, &ranks);
		for (uint32_t m = 0; m < n; m++)
			if (s->packet)
				add_access(p, &p->data->packets[ranks[m]],
				    (struct data_access){ u.low, u.high, step, s->buffer });
			else if (s->place != SHUNT_PLAN_LOCAL)
				add_access(p, &p->data->writes[ranks[m]],
				    (struct data_access){ u.low, u.high, step, s->buffer });
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

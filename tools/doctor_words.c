/* SPDX-License-Identifier: MIT */
/* What the doctor's sentences about ranks and their calls are made of. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "doctor_who.h"

#define SECOND 1000000000ull
#define MAX_NAMED 8

void add(struct text *t, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(t->s + t->n, sizeof(t->s) - t->n, fmt, args);
	va_end(args);
	if (n > 0)
		t->n = t->n + (size_t)n < sizeof(t->s) ? t->n + (size_t)n : sizeof(t->s) - 1;
}

void add_ranks(struct text *t, const struct group *g, const bool *mark)
{
	int total = 0, named = 0;

	for (int r = 0; r < g->n; r++)
		total += mark[r];
	add(t, total == 1 ? "rank" : "ranks");
	for (int r = 0; r < g->n; r++) {
		if (!mark[r])
			continue;
		if (named == MAX_NAMED && total > MAX_NAMED + 1) {
			add(t, " and %d more", total - named);
			return;
		}
		add(t, "%s %d", !named ? "" : named + 1 == total ? " and" : ",", r);
		named++;
	}
}

void add_processes(struct text *t, const struct group *g, const bool *mark)
{
	bool first = true;

	for (int r = 0; r < g->n; r++)
		if (mark[r]) {
			add(t, "%srank %d (pid %d on %s)", first ? "" : ", ", r, g->member[r]->process->pid,
			    g->member[r]->process->host);
			first = false;
		}
}

int count(const struct group *g, const bool *mark)
{
	int n = 0;

	for (int r = 0; r < g->n; r++)
		n += mark[r];
	return n;
}

void add_op(struct text *t, const struct dump_op *op)
{
	add(t, "%s of %" PRIu64 " %s", op->kind, op->count, op->dtype);
	if (*op->op)
		add(t, ", %s", op->op);
	if (op->root >= 0)
		add(t, op->message ? ", rank %d" : ", root %d", op->root);
}

void add_path(struct text *t, const struct dump_op *op)
{
	bool nccl = !strcmp(op->path, "nccl");

	add(t, "%s", nccl ? "NCCL" : op->path);
	if (nccl && *op->why)
		add(t, " (%s)", op->why);
}

void add_since(struct text *t, uint64_t time_ns, uint64_t now_ns)
{
	time_t s = (time_t)(time_ns / SECOND);
	char clock[16];
	struct tm tm;

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&s, &tm));
	add(t, "since %s", clock);
	if (now_ns > time_ns)
		add(t, " (%.1f s)", (double)(now_ns - time_ns) / SECOND);
}

const struct dump_op *collective(const struct dump_comm *c, uint64_t number)
{
	size_t from = 0, to = c ? c->ncollectives : 0;

	while (from < to) {
		size_t mid = (from + to) / 2;

		if (c->ops[mid].number == number)
			return &c->ops[mid];
		if (c->ops[mid].number < number)
			from = mid + 1;
		else
			to = mid;
	}
	return NULL;
}

bool is(const struct dump_op *op, const char *state)
{
	return op && !strcmp(op->state, state);
}

void found_in(
    struct findings *f, const struct group *g, enum found_level level, const char *advice, const struct text *t)
{
	found(f, level, "who waits for whom", advice, "communicator %s of %d: %s", g->id, g->n, t->s);
}

enum found_level level_of(uint64_t since_ns, uint64_t now_ns)
{
	return now_ns > since_ns && now_ns - since_ns >= SECOND ? FOUND_ERROR : FOUND_INFO;
}

const char *advice_of(enum found_level level)
{
	return level == FOUND_ERROR ? "" :
	                              "that is less than a second, and may be a job that runs: dump again and compare";
}

void add_elsewhere(struct text *t, const struct dump_comm *c)
{
	const struct dump_process *p = c->process;

	for (size_t i = 0; i < p->ncomms; i++) {
		const struct dump_comm *other = &p->comms[i];

		if (other == c || !strcmp(other->key, c->key))
			continue;
		if (*other->phase) {
			add(t, "; meanwhile it waits in the %s of communicator %s", other->phase, other->id);
			return;
		}
		for (size_t k = 0; k < other->nops; k++)
			if (is(&other->ops[k], "running") || is(&other->ops[k], "enqueued")) {
				add(t, "; meanwhile it is in ");
				add_op(t, &other->ops[k]);
				add(t, " of communicator %s", other->id);
				return;
			}
	}
}

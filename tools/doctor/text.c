/* SPDX-License-Identifier: MIT */
/* Parts of the doctor's sentences about ranks and their calls. */
#include "tools/common/libc.h"
#include "tools/doctor/hangs.h"

#define SECOND 1000000000ull
#define MAX_NAMED 8

void text_add(struct text_buf *t, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(t->s + t->n, sizeof(t->s) - t->n, fmt, args);
	va_end(args);
	if (n > 0)
		t->n = t->n + (size_t)n < sizeof(t->s) ? t->n + (size_t)n : sizeof(t->s) - 1;
}

void text_add_ranks(struct text_buf *t, const struct dump_group *g, const bool *marks)
{
	int total = 0, named = 0;

	for (int r = 0; r < g->n; r++)
		total += marks[r];
	text_add(t, total == 1 ? "rank" : "ranks");
	for (int r = 0; r < g->n; r++) {
		if (!marks[r])
			continue;
		if (named == MAX_NAMED && total > MAX_NAMED + 1) {
			text_add(t, " and %d more", total - named);
			return;
		}
		text_add(t, "%s %d", !named ? "" : named + 1 == total ? " and" : ",", r);
		named++;
	}
}

void text_add_processes(struct text_buf *t, const struct dump_group *g, const bool *marks)
{
	bool first = true;

	for (int r = 0; r < g->n; r++)
		if (marks[r]) {
			text_add(t, "%srank %d (pid %d on %s)", first ? "" : ", ", r, g->member[r]->process->pid,
			    g->member[r]->process->host);
			first = false;
		}
}

int marks_count(const struct dump_group *g, const bool *marks)
{
	int n = 0;

	for (int r = 0; r < g->n; r++)
		n += marks[r];
	return n;
}

void text_add_op(struct text_buf *t, const struct dump_op *op)
{
	text_add(t, "%s of %" PRIu64 " %s", op->kind, op->count, op->dtype);
	if (*op->op)
		text_add(t, ", %s", op->op);
	if (op->root >= 0)
		text_add(t, op->message ? ", rank %d" : ", root %d", op->root);
}

void text_add_path(struct text_buf *t, const struct dump_op *op)
{
	bool nccl = !strcmp(op->path, "nccl");

	text_add(t, "%s", nccl ? "NCCL" : op->path);
	if (nccl && *op->reason)
		text_add(t, " (%s)", op->reason);
}

void text_add_since(struct text_buf *t, uint64_t time_ns, uint64_t now_ns)
{
	time_t s = (time_t)(time_ns / SECOND);
	char clock[16];
	struct tm tm;

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&s, &tm));
	text_add(t, "since %s", clock);
	if (now_ns > time_ns)
		text_add(t, " (%.1f s)", (double)(now_ns - time_ns) / SECOND);
}

const struct dump_op *collective_at(const struct dump_comm *c, uint64_t number)
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

bool op_is(const struct dump_op *op, const char *state)
{
	return op && !strcmp(op->state, state);
}

void comm_finding_add(struct findings *f, const struct dump_group *g, enum finding_level level, const char *advice,
    const struct text_buf *t)
{
	finding_add(f, level, "who waits for whom", advice, "communicator %s of %d: %s", g->id, g->n, t->s);
}

enum finding_level level_of_wait(uint64_t since_ns, uint64_t now_ns)
{
	return now_ns > since_ns && now_ns - since_ns >= SECOND ? FINDING_ERROR : FINDING_INFO;
}

const char *advice_for(enum finding_level level)
{
	return level == FINDING_ERROR ?
	    "" :
	    "that is less than a second, and may be a job that runs: dump again and compare";
}

void text_add_elsewhere(struct text_buf *t, const struct dump_comm *c)
{
	const struct dump_process *p = c->process;

	for (size_t i = 0; i < p->ncomms; i++) {
		const struct dump_comm *other = &p->comms[i];

		if (other == c || !strcmp(other->key, c->key))
			continue;
		if (*other->phase) {
			text_add(t, "; meanwhile it waits in the %s of communicator %s", other->phase, other->id);
			return;
		}
		for (size_t k = 0; k < other->nops; k++)
			if (op_is(&other->ops[k], "running") || op_is(&other->ops[k], "enqueued")) {
				text_add(t, "; meanwhile it is in ");
				text_add_op(t, &other->ops[k]);
				text_add(t, " of communicator %s", other->id);
				return;
			}
	}
}

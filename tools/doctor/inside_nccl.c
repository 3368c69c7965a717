/* SPDX-License-Identifier: MIT */
/* Threads that are inside a function of the real NCCL. */
#include "tools/common/libc.h"
#include "tools/doctor/hangs.h"

const struct dump_thread *doctor_thread_inside(const struct dump_comm *c)
{
	for (size_t i = 0; c && i < c->process->nthreads; i++)
		if (!strcmp(c->process->threads[i].key, c->key))
			return &c->process->threads[i];
	return NULL;
}

bool find_inside_nccl(struct findings *f, const struct dump_group *g)
{
	bool *in = g->marks[0], *out = g->marks[1];
	const struct dump_thread *first = NULL;
	const struct dump_comm *whose = NULL;
	const struct dump_op *op = NULL;
	enum finding_level level;
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++) {
		const struct dump_thread *thread = doctor_thread_inside(g->member[r]);

		if (thread && (!first || thread->since_ns < first->since_ns)) {
			first = thread;
			whose = g->member[r];
		}
	}
	if (!first)
		return false;
	for (int r = 0; r < g->n; r++) {
		const struct dump_thread *thread = doctor_thread_inside(g->member[r]);

		in[r] = thread && !strcmp(thread->function, first->function);
		out[r] = g->member[r] && !thread;
	}
	for (size_t i = 0; first->seq && i < whose->nops && !op; i++)
		op = whose->ops[i].seq == first->seq ? &whose->ops[i] : NULL;
	/* A call that waits in NCCL for a rank that has not made it: that is the cause. */
	for (int r = 0; op && !op->message && r < g->n; r++)
		if (out[r] && g->member[r]->collectives < op->number)
			return false;
	text_add_processes(&t, g, in);
	text_add(&t, " %s inside %s of NCCL ", marks_count(g, in) == 1 ? "is" : "are", first->function);
	text_add_since(&t, first->since_ns, whose->process->time_ns);
	if (op) {
		text_add(&t, op->message ? " (" : " (collective %" PRIu64 ", ", op->number);
		text_add_op(&t, op);
		text_add(&t, ")");
	}
	if (marks_count(g, out)) {
		text_add(&t, "; ");
		text_add_ranks(&t, g, out);
		text_add(&t, " %s not", marks_count(g, out) == 1 ? "is" : "are");
	}
	level = level_of_wait(first->since_ns, whose->process->time_ns);
	comm_finding_add(f, g, level,
	    level == FINDING_ERROR ? "a debugger shows where in NCCL; the other ranks wait for it, or it waits for a "
	                             "rank that has not called it" :
	                             advice_for(level),
	    &t);
	return true;
}

const struct dump_thread *doctor_thread_unknown(const struct dump_process *p, size_t *at, uint64_t ns)
{
	while (*at < p->nthreads) {
		const struct dump_thread *thread = &p->threads[(*at)++];
		bool known = p->time_ns <= thread->since_ns + ns;

		for (size_t k = 0; k < p->ncomms; k++)
			known |= !strcmp(thread->key, p->comms[k].key);
		if (!known)
			return thread;
	}
	return NULL;
}

void doctor_unknown_tell(const struct dump_process *p, const struct dump_thread *thread, char *text, size_t bytes)
{
	struct text_buf t = { 0 };

	text_add(&t, "pid %d on %s is inside %s of NCCL ", p->pid, p->host, thread->function);
	text_add_since(&t, thread->since_ns, p->time_ns);
	snprintf(text, bytes, "%s", t.s);
}

void find_inside_unknown(struct findings *f, const struct dumps *d)
{
	for (size_t p = 0; p < d->n; p++) {
		const struct dump_thread *thread;

		for (size_t at = 0; (thread = doctor_thread_unknown(d->processes[p], &at, CREATION_NS));) {
			char text[1024];

			doctor_unknown_tell(d->processes[p], thread, text, sizeof(text));
			finding_add(f, FINDING_ERROR, "who waits for whom",
			    "it may wait for a rank that has not called it: look at the others", "%s", text);
		}
	}
}

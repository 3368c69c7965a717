/* SPDX-License-Identifier: MIT */
/* Messages by pair and direction: their sizes, and their number on each rank. */
#include <inttypes.h>
#include <string.h>
#include "base/coll.h"
#include "tools/doctor/hangs.h"

static const struct dump_op *message_find(const struct dump_comm *c, const char *kind, int peer, uint64_t number)
{
	for (size_t i = 0; i < c->nops; i++)
		if (c->ops[i].message && c->ops[i].root == peer && c->ops[i].number == number &&
		    !strcmp(c->ops[i].kind, kind))
			return &c->ops[i];
	return NULL;
}

static uint64_t op_bytes(const struct dump_op *op)
{
	for (int d = 0; d < SHUNT_NFORMATS; d++)
		if (!strcmp(op->dtype, shunt_dtype_name((enum shunt_dtype)d)))
			return op->count * shunt_dtype_bytes[d];
	return op->count;
}

static bool find_message_sizes(struct findings *f, const struct dump_group *g, int from, int to)
{
	const struct dump_comm *a = g->member[from], *b = g->member[to];

	for (size_t i = 0; i < a->nops; i++) {
		const struct dump_op *s = &a->ops[i], *r;
		struct text_buf t = { 0 };

		if (strcmp(s->kind, "send") || s->root != to || !s->number)
			continue;
		r = message_find(b, "recv", from, s->number);
		if (!r || op_bytes(r) == op_bytes(s))
			continue;
		text_add(&t,
		    "message %" PRIu64 " from rank %d to rank %d has %" PRIu64 " bytes, and rank %d receives %" PRIu64,
		    s->number, from, to, op_bytes(s), to, op_bytes(r));
		comm_finding_add(f, g, FINDING_ERROR, "both ends of a message must have the same size", &t);
		return true;
	}
	return false;
}

static bool find_unmatched_message(struct findings *f, const struct dump_group *g, int from, int to)
{
	const struct dump_comm *a = g->member[from], *b = g->member[to];
	unsigned sent = a->sends[to], taken = b->receives[from];
	bool lacks_send = sent < taken;
	const struct dump_comm *waits = lacks_send ? b : a, *absent = lacks_send ? a : b;
	const struct dump_op *op;
	enum finding_level level;
	struct text_buf t = { 0 };

	if (sent == taken)
		return false;
	op = message_find(waits, lacks_send ? "recv" : "send", lacks_send ? from : to, (lacks_send ? sent : taken) + 1);
	if (!op || op_is(op, "finished"))
		return false;
	level = level_of_wait(op->time_ns, waits->process->time_ns);
	text_add(&t, "rank %d (pid %d on %s) is behind: it has %s %u message%s %s rank %d, which waits in ",
	    absent->rank, absent->process->pid, absent->process->host, lacks_send ? "sent" : "received",
	    lacks_send ? sent : taken, (lacks_send ? sent : taken) == 1 ? "" : "s", lacks_send ? "to" : "from",
	    waits->rank);
	text_add_op(&t, op);
	text_add(&t, " (number %" PRIu64 ") ", op->number);
	text_add_since(&t, op->time_ns, waits->process->time_ns);
	text_add_elsewhere(&t, absent);
	comm_finding_add(f, g, level, advice_for(level), &t);
	return true;
}

bool find_messages(struct findings *f, const struct dump_group *g)
{
	bool any = false;

	for (int a = 0; a < g->n; a++)
		for (int b = 0; b < g->n; b++) {
			if (!g->member[a] || !g->member[b] || g->member[a]->npeers != (size_t)g->n ||
			    g->member[b]->npeers != (size_t)g->n)
				continue;
			any |= find_message_sizes(f, g, a, b) || find_unmatched_message(f, g, a, b);
		}
	return any;
}

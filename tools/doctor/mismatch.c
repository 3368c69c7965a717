/* SPDX-License-Identifier: MIT */
/* Ranks that made a different call, or whose call took another path. */
#include <inttypes.h>
#include <string.h>
#include "tools/doctor/hangs.h"

/*
 * True: two ranks made the same call. Of a call that was forwarded unseen only the bytes are known: count, type and
 * operator are not compared.
 */
static bool op_same(const struct dump_op *a, const struct dump_op *b)
{
	if (strcmp(a->kind, b->kind) || a->root != b->root)
		return false;
	if (!strcmp(a->dtype, "bytes") || !strcmp(b->dtype, "bytes"))
		return true;
	return a->count == b->count && !strcmp(a->dtype, b->dtype) && !strcmp(a->op, b->op);
}

static bool op_is_nccls(const struct dump_op *op)
{
	return !strcmp(op->path, "nccl");
}

/* The call that most ranks made with this number; on a tie that of the lowest rank. */
static int majority_call(const struct dump_group *g, uint64_t number)
{
	int best = -1, most = 0;

	for (int r = 0; r < g->n; r++) {
		const struct dump_op *op = collective_at(g->member[r], number);
		int votes = 0;

		for (int p = 0; op && p < g->n; p++) {
			const struct dump_op *other = collective_at(g->member[p], number);

			votes += other && op_same(op, other);
		}
		if (votes > most) {
			most = votes;
			best = r;
		}
	}
	return best;
}

/* A guess at the mistake of rank r, whose call `number` differs from rank `right`'s. */
static void text_add_guess(struct text_buf *t, const struct dump_group *g, int r, int right, uint64_t number)
{
	const struct dump_op *mine = collective_at(g->member[r], number),
	                     *mine_next = collective_at(g->member[r], number + 1);
	const struct dump_op *theirs = collective_at(g->member[right], number),
	                     *theirs_next = collective_at(g->member[right], number + 1);

	if (theirs_next && op_same(mine, theirs_next))
		text_add(t, "; it looks as if rank %d left out that one", r);
	else if (mine_next && op_same(mine_next, theirs))
		text_add(t, "; it looks as if rank %d made one call more", r);
}

bool find_mismatch(struct findings *f, const struct dump_group *g)
{
	uint64_t first = UINT64_MAX, last = 0;

	for (int r = 0; r < g->n; r++)
		for (size_t i = 0; g->member[r] && i < g->member[r]->nops; i++) {
			const struct dump_op *op = &g->member[r]->ops[i];

			if (op->message || !op->number)
				continue;
			first = op->number < first ? op->number : first;
			last = op->number > last ? op->number : last;
		}
	/* A file that is not ours may have any number. */
	for (uint64_t number = first; number <= last && number - first < 1u << 22; number++) {
		int right = majority_call(g, number), odd = -1;
		bool *marks = g->marks[0], *agree = g->marks[1];
		struct text_buf t = { 0 };

		for (int r = 0; r < g->n; r++) {
			const struct dump_op *op = collective_at(g->member[r], number);

			marks[r] = op && !op_same(op, collective_at(g->member[right], number));
			agree[r] = op && !marks[r];
			if (marks[r] && odd < 0)
				odd = r;
		}
		if (odd < 0)
			continue;
		for (int r = 0; r < g->n; r++)
			marks[r] = marks[r] &&
			    op_same(collective_at(g->member[r], number), collective_at(g->member[odd], number));
		text_add_processes(&t, g, marks);
		text_add(&t, " called ");
		text_add_op(&t, collective_at(g->member[odd], number));
		text_add(&t, " as collective %" PRIu64 ", where ", number);
		text_add_ranks(&t, g, agree);
		text_add(&t, " called ");
		text_add_op(&t, collective_at(g->member[right], number));
		if (marks_count(g, marks) == 1)
			text_add_guess(&t, g, odd, right, number);
		if (op_is_nccls(collective_at(g->member[odd], number)) !=
		    op_is_nccls(collective_at(g->member[right], number))) {
			text_add(&t, "; rank %d's went to ", odd);
			text_add_path(&t, collective_at(g->member[odd], number));
			text_add(&t, ", rank %d's to ", right);
			text_add_path(&t, collective_at(g->member[right], number));
			text_add(&t, ": neither sees the other");
		}
		comm_finding_add(f, g, FINDING_ERROR,
		    "all ranks must make the same calls in the same order: look at what the program does there on "
		    "these ranks",
		    &t);
		return true;
	}
	return false;
}

/* A call never ends if one rank forwarded it to NCCL and another ran it with Shunt. */
bool find_split_path(struct findings *f, const struct dump_group *g)
{
	for (int r = 0; r < g->n; r++)
		for (size_t i = 0; g->member[r] && i < g->member[r]->nops; i++) {
			const struct dump_op *op = &g->member[r]->ops[i];

			for (int p = r + 1; p < g->n && !op->message && op->number; p++) {
				const struct dump_op *other = collective_at(g->member[p], op->number);
				struct text_buf t = { 0 };

				if (!other || op_is_nccls(op) == op_is_nccls(other))
					continue;
				text_add(&t, "collective %" PRIu64 " (", op->number);
				text_add_op(&t, op);
				text_add(&t, ") went to ");
				text_add_path(&t, op);
				text_add(&t, " on rank %d and to ", r);
				text_add_path(&t, other);
				text_add(&t, " on rank %d", p);
				comm_finding_add(f, g, FINDING_ERROR,
				    "the ranks have different settings, or this is a defect of Shunt: "
				    "SHUNT_FORCE_NCCL=all avoids it",
				    &t);
				return true;
			}
		}
	return false;
}

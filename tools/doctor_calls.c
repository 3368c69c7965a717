/* SPDX-License-Identifier: MIT */
/* Ranks that called something else, or whose call took another path. */
#include <inttypes.h>
#include <string.h>
#include "doctor_who.h"

/* Did two ranks call the same? A call that was forwarded unseen is known by its bytes only. */
static bool same(const struct dump_op *a, const struct dump_op *b)
{
	if (strcmp(a->kind, b->kind) || a->root != b->root)
		return false;
	if (!strcmp(a->dtype, "bytes") || !strcmp(b->dtype, "bytes"))
		return true;
	return a->count == b->count && !strcmp(a->dtype, b->dtype) && !strcmp(a->op, b->op);
}

static bool is_nccls(const struct dump_op *op)
{
	return !strcmp(op->path, "nccl");
}

/* The call that most ranks made as this number; the lowest of them on a tie. */
static int majority(const struct group *g, uint64_t number)
{
	int best = -1, most = 0;

	for (int r = 0; r < g->n; r++) {
		const struct dump_op *op = collective(g->member[r], number);
		int votes = 0;

		for (int p = 0; op && p < g->n; p++) {
			const struct dump_op *other = collective(g->member[p], number);

			votes += other && same(op, other);
		}
		if (votes > most) {
			most = votes;
			best = r;
		}
	}
	return best;
}

/* What may have happened on rank r, which called something else as `number` than rank `right`. */
static void add_guess(struct text *t, const struct group *g, int r, int right, uint64_t number)
{
	const struct dump_op *mine = collective(g->member[r], number),
	                     *mine_next = collective(g->member[r], number + 1);
	const struct dump_op *theirs = collective(g->member[right], number),
	                     *theirs_next = collective(g->member[right], number + 1);

	if (theirs_next && same(mine, theirs_next))
		add(t, "; it looks as if rank %d left out that one", r);
	else if (mine_next && same(mine_next, theirs))
		add(t, "; it looks as if rank %d made one call more", r);
}

bool find_mismatch(struct findings *f, const struct group *g)
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
	/* A number that is out of any proportion comes from a file that is not ours. */
	for (uint64_t number = first; number <= last && number - first < 1u << 22; number++) {
		int right = majority(g, number), odd = -1;
		bool *mark = g->mark[0], *agree = g->mark[1];
		struct text t = { 0 };

		for (int r = 0; r < g->n; r++) {
			const struct dump_op *op = collective(g->member[r], number);

			mark[r] = op && !same(op, collective(g->member[right], number));
			agree[r] = op && !mark[r];
			if (mark[r] && odd < 0)
				odd = r;
		}
		if (odd < 0)
			continue;
		for (int r = 0; r < g->n; r++)
			mark[r] = mark[r] && same(collective(g->member[r], number), collective(g->member[odd], number));
		add_processes(&t, g, mark);
		add(&t, " called ");
		add_op(&t, collective(g->member[odd], number));
		add(&t, " as collective %" PRIu64 ", where ", number);
		add_ranks(&t, g, agree);
		add(&t, " called ");
		add_op(&t, collective(g->member[right], number));
		if (count(g, mark) == 1)
			add_guess(&t, g, odd, right, number);
		if (is_nccls(collective(g->member[odd], number)) != is_nccls(collective(g->member[right], number))) {
			add(&t, "; rank %d's went to ", odd);
			add_path(&t, collective(g->member[odd], number));
			add(&t, ", rank %d's to ", right);
			add_path(&t, collective(g->member[right], number));
			add(&t, ": neither sees the other");
		}
		found_in(f, g, FOUND_ERROR,
		    "all ranks must make the same calls in the same order: look at what the program does there on "
		    "these ranks",
		    &t);
		return true;
	}
	return false;
}

/* A call that one rank gave to NCCL and another ran itself can never end. */
bool find_split_path(struct findings *f, const struct group *g)
{
	for (int r = 0; r < g->n; r++)
		for (size_t i = 0; g->member[r] && i < g->member[r]->nops; i++) {
			const struct dump_op *op = &g->member[r]->ops[i];

			for (int p = r + 1; p < g->n && !op->message && op->number; p++) {
				const struct dump_op *other = collective(g->member[p], op->number);
				struct text t = { 0 };

				if (!other || is_nccls(op) == is_nccls(other))
					continue;
				add(&t, "collective %" PRIu64 " (", op->number);
				add_op(&t, op);
				add(&t, ") went to ");
				add_path(&t, op);
				add(&t, " on rank %d and to ", r);
				add_path(&t, other);
				add(&t, " on rank %d", p);
				found_in(f, g, FOUND_ERROR,
				    "the ranks have different settings, or this is a defect of Shunt: "
				    "SHUNT_FORCE_NCCL=all avoids it",
				    &t);
				return true;
			}
		}
	return false;
}

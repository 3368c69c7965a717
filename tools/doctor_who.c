/* SPDX-License-Identifier: MIT */
/* `shunt doctor dumps`, and what is said of each communicator. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "doctor_who.h"

static const char topic[] = "who waits for whom";

static void find_missing(struct findings *f, const struct group *g)
{
	bool *missing = g->mark[0];
	struct text t = { 0 };

	for (int r = 0; r < g->n; r++)
		missing[r] = !g->member[r];
	if (!count(g, missing))
		return;
	add_ranks(&t, g, missing);
	add(&t, " %s no dump here", count(g, missing) == 1 ? "has" : "have");
	found_in(f, g, FOUND_WARN,
	    "a process that died or is stopped writes none (`shunt doctor --pid` says which); others may be on another "
	    "host",
	    &t);
}

static void find_silent(struct findings *f, const struct group *g)
{
	bool *silent = g->mark[0];
	struct text t = { 0 };

	for (int r = 0; r < g->n; r++)
		silent[r] = g->member[r] && g->member[r]->silent;
	if (!count(g, silent))
		return;
	add(&t, "CUDA does not answer in ");
	add_processes(&t, g, silent);
	add(&t, ": how far the device%s come is not known", count(g, silent) == 1 ? " has" : "s have");
	found_in(f, g, FOUND_WARN,
	    "a call that waits for kernels, such as cudaFree or cudaHostUnregister, holds the driver of the whole "
	    "process meanwhile; "
	    "a debugger shows which thread is in it",
	    &t);
}

static void find_errors(struct findings *f, const struct group *g)
{
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];
		struct text t = { 0 };

		if (!c || !*c->error)
			continue;
		add(&t, "rank %d (pid %d on %s) ended it with %s", r, c->process->pid, c->process->host, c->error);
		if (*c->fault_theirs)
			add(&t, ", because rank %d calls %s", c->fault_peer, c->fault_theirs);
		else if (c->fault_peer >= 0)
			add(&t, ", after waiting for rank %d", c->fault_peer);
		for (size_t i = 0; c->fault_op && i < c->nops; i++)
			if (c->ops[i].seq == c->fault_op) {
				add(&t, " in call %" PRIu64 ", ", c->ops[i].seq);
				add_op(&t, &c->ops[i]);
			}
		found_in(f, g, strcmp(c->error, "ECANCELED") ? FOUND_ERROR : FOUND_INFO, "", &t);
	}
}

static void look_at(struct findings *f, const struct group *g)
{
	size_t before;
	bool any;

	/* One cause is enough: what comes behind it follows from it. */
	before = f->n;
	any = find_mismatch(f, g) || find_split_path(f, g) || find_in_setup(f, g) || find_fewer_calls(f, g) ||
	    find_slow_device(f, g);
	any |= find_messages(f, g);
	if (!any)
		any =
		    find_fewer_replays(f, g) || find_in_end(f, g); /* what a rank waits for that ends it is the cause */
	find_missing(f, g);
	find_silent(f, g);
	find_errors(f, g);
	if (!any && f->n == before) {
		uint64_t calls = 0;

		for (int r = 0; r < g->n; r++)
			calls = g->member[r]->collectives > calls ? g->member[r]->collectives : calls;
		found(f, FOUND_OK, topic, "",
		    "communicator %s of %d: nobody waits; all ranks have called %" PRIu64 " collectives", g->id, g->n,
		    calls);
	}
}

static void release(struct group *g)
{
	free(g->member);
	free(g->mark[0]);
}

/* All ranks of the communicator that c is one of. */
static bool gather(struct group *g, const struct dumps *d, const struct dump_comm *c)
{
	*g = (struct group){ .n = c->nranks, .id = c->id, .key = c->key };
	g->member = calloc((size_t)g->n, sizeof(struct dump_comm *));
	g->mark[0] = calloc((size_t)g->n, 2);
	if (!g->member || !g->mark[0]) {
		release(g);
		return false;
	}
	g->mark[1] = g->mark[0] + g->n;
	for (size_t p = 0; p < d->n; p++)
		for (size_t i = 0; i < d->processes[p]->ncomms; i++) {
			const struct dump_comm *m = &d->processes[p]->comms[i];

			if (strcmp(m->key, c->key) || m->nranks != c->nranks || m->rank < 0 || m->rank >= g->n ||
			    g->member[m->rank])
				continue;
			g->member[m->rank] = m;
			g->nhere++;
		}
	return true;
}

/* Is this the first place where its communicator comes up? */
static bool is_first(const struct dumps *d, const struct dump_comm *c)
{
	for (size_t p = 0; p < d->n; p++)
		for (size_t i = 0; i < d->processes[p]->ncomms; i++) {
			const struct dump_comm *m = &d->processes[p]->comms[i];

			if (m == c)
				return true;
			if (m->nranks == c->nranks && m->rank >= 0 && !strcmp(m->key, c->key))
				return false;
		}
	return true;
}

/* What matters most comes first; else the order stays. */
static void sort_by_level(struct finding *rows, size_t n)
{
	for (size_t i = 1; i < n; i++)
		for (size_t k = i; k && rows[k].level > rows[k - 1].level; k--) {
			struct finding row = rows[k];

			rows[k] = rows[k - 1];
			rows[k - 1] = row;
		}
}

void doctor_who(struct findings *f, const struct dumps *d)
{
	size_t start = f->n;

	for (size_t p = 0; p < d->n; p++)
		for (size_t i = 0; i < d->processes[p]->ncomms; i++) {
			const struct dump_comm *c = &d->processes[p]->comms[i];
			struct group g;

			if (c->rank < 0 || c->nranks < 1 || c->nranks > 1 << 16 || !is_first(d, c))
				continue;
			if (!gather(&g, d, c)) {
				f->failed = true;
				return;
			}
			look_at(f, &g);
			release(&g);
		}
	if (f->n == start)
		found(f, FOUND_INFO, topic, "",
		    "no dump has a communicator whose ranks are known: it was not used so far, or is gone");
	sort_by_level(f->rows + start, f->n - start);
}

static const char dumps_help[] = "usage: shunt doctor dumps [--json] FILE|DIRECTORY...\n\n"
                                 "Puts the dumps of all ranks together and says who waits for whom. Exit status 0: "
                                 "nobody, 1: perhaps, 2: somebody.\n";

int doctor_dumps_main(int argc, char **argv)
{
	struct findings f = { 0 };
	struct dumps d = { 0 };
	bool json = false;
	int status = TOOL_USAGE, first = 1;

	for (; first < argc && argv[first][0] == '-'; first++) {
		if (!strcmp(argv[first], "--json")) {
			json = true;
		} else if (!strcmp(argv[first], "--help") || !strcmp(argv[first], "-h")) {
			fputs(dumps_help, stdout);
			return TOOL_OK;
		} else {
			return tool_usage_error("there is no option %s", argv[first]);
		}
	}
	if (first == argc)
		return tool_usage_error("which files?");
	for (int i = first; i < argc; i++)
		if (dumps_add_path(&f, &d, argv[i]))
			found(&f, FOUND_ERROR, "dumps", "", "%s is left out: there is no dump in it that can be read",
			    argv[i]);
	if (d.n) {
		doctor_who(&f, &d);
		status = findings_print(&f, json);
	}
	findings_finish(&f);
	dumps_finish(&d);
	return status;
}

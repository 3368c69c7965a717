/* SPDX-License-Identifier: MIT */
/* `shunt doctor dumps`: the findings for each communicator. */
#include "tools/common/libc.h"
#include "tools/doctor/hangs.h"

static const char topic[] = "who waits for whom";

static void find_missing(struct findings *f, const struct dump_group *g)
{
	bool *missing = g->marks[0];
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++)
		missing[r] = !g->member[r];
	if (!marks_count(g, missing))
		return;
	text_add_ranks(&t, g, missing);
	text_add(&t, " %s no dump here", marks_count(g, missing) == 1 ? "has" : "have");
	comm_finding_add(f, g, FINDING_WARN,
	    "a process that died or is stopped writes none (`shunt doctor --pid` says which); all hosts together: "
	    "`srun "
	    "--overlap --jobid JOB --ntasks-per-node 1 shunt doctor job --rendezvous DIR`, mpirun or torchrun alike, "
	    "or "
	    "`shunt doctor job --answers` on each and `shunt doctor job FILE...`",
	    &t);
}

static void find_silent(struct findings *f, const struct dump_group *g)
{
	bool *silent = g->marks[0];
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++)
		silent[r] = g->member[r] && g->member[r]->silent;
	if (!marks_count(g, silent))
		return;
	text_add(&t, "CUDA does not answer in ");
	text_add_processes(&t, g, silent);
	text_add(&t, ": how far the device%s come is not known", marks_count(g, silent) == 1 ? " has" : "s have");
	comm_finding_add(f, g, FINDING_WARN,
	    "a call that waits for kernels, such as cudaFree or cudaHostUnregister, holds the driver of the whole "
	    "process meanwhile; "
	    "a debugger shows which thread is in it",
	    &t);
}

static void find_errors(struct findings *f, const struct dump_group *g)
{
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];
		struct text_buf t = { 0 };

		if (!c || !*c->error)
			continue;
		text_add(&t, "rank %d (pid %d on %s) ended it with %s", r, c->process->pid, c->process->host, c->error);
		if (*c->fault_peer_call)
			text_add(&t, ", because rank %d calls %s", c->fault_peer, c->fault_peer_call);
		else if (c->fault_peer >= 0)
			text_add(&t, ", after waiting for rank %d", c->fault_peer);
		for (size_t i = 0; c->fault_op && i < c->nops; i++)
			if (c->ops[i].seq == c->fault_op) {
				text_add(&t, " in call %" PRIu64 ", ", c->ops[i].seq);
				text_add_op(&t, &c->ops[i]);
			}
		comm_finding_add(f, g, strcmp(c->error, "ECANCELED") ? FINDING_ERROR : FINDING_INFO, "", &t);
	}
}

/* What moves does not hang: a difference between ranks that were asked one after the other is none. */
static bool find_moved(struct findings *f, const struct dump_group *g)
{
	uint64_t calls = 0;
	bool moved = false;
	struct dump_wait w = { .rank = -1 };
	char waits[64] = "";

	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];

		moved |= c && c->moved;
		calls = c && c->new_calls > calls ? c->new_calls : calls;
		if (c && c->waited.rank >= 0 && (w.rank < 0 || c->waited.percent > w.percent))
			w = c->waited;
	}
	if (w.rank >= 0 && w.percent)
		snprintf(waits, sizeof(waits), "; rank %d is waited for in %u %% of the time", w.rank, w.percent);
	if (moved)
		finding_add(f, FINDING_OK, topic, "",
		    "communicator %s of %d: runs (%" PRIu64 " calls between two looks%s)", g->id, g->n, calls, waits);
	return moved;
}

static void group_check(struct findings *f, const struct dump_group *g)
{
	size_t before;
	bool any, moved;

	/* One cause is enough: later differences follow from it. */
	before = f->n;
	moved = find_moved(f, g);
	any = moved || find_mismatch(f, g) || find_split_path(f, g) || find_setup_wait(f, g) ||
	    find_inside_nccl(f, g) || find_straggler_calls(f, g) || find_nccl_unfinished(f, g) ||
	    find_straggler_device(f, g);
	if (!moved)
		any |= find_messages(f, g);
	if (!any)
		any = find_straggler_replays(f, g) ||
		    find_teardown_wait(f, g); /* the calls above are the cause of a wait at the end */
	if (!moved)                           /* a host may have a part of the ranks */
		find_missing(f, g);
	find_silent(f, g);
	find_errors(f, g);
	if (!any && f->n == before) {
		uint64_t calls = 0;

		for (int r = 0; r < g->n; r++)
			calls = g->member[r]->collectives > calls ? g->member[r]->collectives : calls;
		finding_add(f, FINDING_OK, topic, "",
		    "communicator %s of %d: nobody waits; all ranks have called %" PRIu64 " collectives", g->id, g->n,
		    calls);
	}
}

static void group_free(struct dump_group *g)
{
	free(g->member);
	free(g->marks[0]);
}

/* Collects the dumps of all ranks of c's communicator. */
static bool group_collect(struct dump_group *g, const struct dumps *d, const struct dump_comm *c)
{
	*g = (struct dump_group){ .n = c->nranks, .id = c->id, .key = c->key };
	g->member = calloc((size_t)g->n, sizeof(struct dump_comm *));
	g->marks[0] = calloc((size_t)g->n, 2);
	if (!g->member || !g->marks[0]) {
		group_free(g);
		return false;
	}
	g->marks[1] = g->marks[0] + g->n;
	for (size_t p = 0; p < d->n; p++)
		for (size_t i = 0; i < d->processes[p]->ncomms; i++) {
			const struct dump_comm *m = &d->processes[p]->comms[i];

			if (strcmp(m->key, c->key) || m->nranks != c->nranks || m->rank < 0 || m->rank >= g->n ||
			    g->member[m->rank])
				continue;
			g->member[m->rank] = m;
			g->ndumps++;
		}
	return true;
}

/* True: c is the first entry of its communicator. */
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

/* Errors first, then warnings; otherwise the order stays. */
static void findings_sort(struct finding *rows, size_t n)
{
	for (size_t i = 1; i < n; i++)
		for (size_t k = i; k && rows[k].level > rows[k - 1].level; k--) {
			struct finding row = rows[k];

			rows[k] = rows[k - 1];
			rows[k - 1] = row;
		}
}

void doctor_hangs(struct findings *f, const struct dumps *d)
{
	size_t start = f->n;

	for (size_t p = 0; p < d->n; p++)
		for (size_t i = 0; i < d->processes[p]->ncomms; i++) {
			const struct dump_comm *c = &d->processes[p]->comms[i];
			struct dump_group g;

			if (c->rank < 0 || c->nranks < 1 || c->nranks > 1 << 16 || !is_first(d, c))
				continue;
			if (!group_collect(&g, d, c)) {
				f->failed = true;
				return;
			}
			group_check(f, &g);
			group_free(&g);
		}
	find_inside_unknown(f, d);
	if (f->n == start)
		finding_add(f, FINDING_INFO, topic, "",
		    "no dump has a communicator whose ranks are known: it was not used so far, or is gone");
	findings_sort(f->rows + start, f->n - start);
}

struct dumps_opts {
	bool json, fields;
};
static const struct option_row rows[] = {
	{ "json", 0, OPTION_FLAG, .at = offsetof(struct dumps_opts, json), .help = "findings as JSON" },
	{ "fields", 0, OPTION_FLAG, .at = offsetof(struct dumps_opts, fields),
	    .help = "print the fields of a dump as a table for a document, and read none" },
	{ .type = OPTION_END },
};
const struct option_table doctor_dumps_options = {
	"usage: shunt doctor dumps [--json] FILE|DIRECTORY...\n\n"
	"Puts the dumps of all ranks together and says who waits for whom.\n\n",
	rows,
	"Exit status: 0 nobody, 1 perhaps, 2 somebody.\n",
};

int doctor_dumps_main(int argc, char **argv)
{
	struct findings f = { 0 };
	struct dumps d = { 0 };
	struct dumps_opts o = { 0 };
	int first, status = options_parse(&doctor_dumps_options, &o, argc, argv, &first);

	if (status >= 0)
		return status;
	if (o.fields) {
		dumps_fields_print();
		return TOOL_OK;
	}
	status = TOOL_USAGE;
	if (first == argc)
		return tool_usage_error("which files?");
	for (int i = first; i < argc; i++)
		if (dumps_add_path(&f, &d, argv[i]))
			finding_add(&f, FINDING_ERROR, "dumps", "",
			    "%s is left out: there is no dump in it that can be read", argv[i]);
	if (d.n) {
		doctor_hangs(&f, &d);
		status = findings_print(&f, o.json);
	}
	findings_finish(&f);
	dumps_finish(&d);
	return status;
}

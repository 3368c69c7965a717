/* SPDX-License-Identifier: MIT */
/* Ranks with fewer calls than others, with a slower device, or with fewer graph launches. */
#include <inttypes.h>
#include <string.h>
#include "tools/doctor/hangs.h"

static void text_add_last_call(struct text_buf *t, const struct dump_comm *c)
{
	const struct dump_op *op = collective_at(c, c->collectives);

	if (!c->collectives) {
		text_add(t, "; it has called none so far");
	} else if (op) {
		text_add(t, "; its last was %" PRIu64 " (", op->number);
		text_add_op(t, op);
		text_add(t, ", %s)", op->state);
	}
}

/*
 * Ranks that wait on the host for others, which are not in that phase. ending: in the communicator's destruction, for
 * its kernels.
 */
static bool find_phase_wait(struct findings *f, const struct dump_group *g, bool ending)
{
	bool *waits = g->marks[0], *absent = g->marks[1];
	uint64_t since = UINT64_MAX, now = 0;
	const char *phase = "";
	enum finding_level level;
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];

		waits[r] = c && *c->phase && !strcmp(c->phase, "destruction") == ending;
		if (c && waits[r] && c->phase_time_ns < since) {
			phase = c->phase;
			since = c->phase_time_ns;
			now = c->process->time_ns;
		}
	}
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];

		absent[r] = !ending && c && !*c->phase && (strcmp(phase, "set-up") || !strcmp(c->state, "new"));
	}
	if (!marks_count(g, waits) || (!strcmp(phase, "creation") && now < since + CREATION_NS))
		return false;
	level = level_of_wait(since, now);
	text_add_ranks(&t, g, waits);
	text_add(&t, " wait%s in the %s ", marks_count(g, waits) == 1 ? "s" : "", phase);
	text_add_since(&t, since, now);
	if (marks_count(g, absent)) {
		text_add(&t, " for ");
		text_add_processes(&t, g, absent);
		text_add(&t, ", which %s not come to it", marks_count(g, absent) == 1 ? "has" : "have");
	} else if (g->ndumps < g->n) {
		text_add(&t, "; look at the ranks that have no dump");
	}
	comm_finding_add(f, g, level, advice_for(level), &t);
	return true;
}

bool find_setup_wait(struct findings *f, const struct dump_group *g)
{
	return find_phase_wait(f, g, false);
}

bool find_teardown_wait(struct findings *f, const struct dump_group *g)
{
	return find_phase_wait(f, g, true);
}

bool find_straggler_calls(struct findings *f, const struct dump_group *g)
{
	bool *behind = g->marks[0], *ahead = g->marks[1];
	bool dump_is_old = true;
	uint64_t most = 0, fewest = UINT64_MAX, since = UINT64_MAX, now = 0;
	const struct dump_op *awaited = NULL;
	enum finding_level level;
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++)
		if (g->member[r]) {
			most = g->member[r]->collectives > most ? g->member[r]->collectives : most;
			fewest = g->member[r]->collectives < fewest ? g->member[r]->collectives : fewest;
		}
	if (fewest >= most)
		return false;
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];
		const struct dump_op *op = collective_at(c, fewest + 1);

		behind[r] = c && c->collectives == fewest;
		ahead[r] = c && c->collectives > fewest && !op_is(op, "finished");
		if (ahead[r] && op && op->time_ns < since) {
			awaited = op;
			since = op->time_ns;
			now = c->process->time_ns;
		}
	}
	if (!awaited)
		return false; /* a root that has sent its data and continued */
	for (int r = 0; r < g->n; r++)
		if (behind[r] && g->member[r]->process->time_ns >= since)
			dump_is_old = false;
	level = op_is(awaited, "failed") ? FINDING_ERROR : level_of_wait(since, now);
	text_add_processes(&t, g, behind);
	text_add(&t, " %s behind: %s not called collective %" PRIu64 " (", marks_count(g, behind) == 1 ? "is" : "are",
	    marks_count(g, behind) == 1 ? "it has" : "they have", fewest + 1);
	text_add_op(&t, awaited);
	text_add(&t, "), in which ");
	text_add_ranks(&t, g, ahead);
	text_add(&t, op_is(awaited, "failed") ? " waited in vain " : marks_count(g, ahead) == 1 ? " waits " : " wait ");
	text_add_since(&t, since, now);
	for (int r = 0; r < g->n; r++)
		if (behind[r]) {
			text_add_last_call(&t, g->member[r]);
			text_add_elsewhere(&t, g->member[r]);
			break;
		}
	comm_finding_add(f, g, dump_is_old ? FINDING_WARN : level,
	    dump_is_old ? "its dump is older than that call: dump all ranks again" : advice_for(level), &t);
	return true;
}

static bool op_is_nccl(const struct dump_op *op)
{
	return !strcmp(op->path, "nccl");
}

/* A rank's first collective that our kernels have not finished; NULL: none known. */
static const struct dump_op *running_collective(const struct dump_comm *c)
{
	const struct dump_op *first = NULL;

	for (size_t i = 0; c && i < c->nops; i++) {
		const struct dump_op *op = &c->ops[i];

		if (!op->message && !op->captured && !op_is_nccl(op) &&
		    (op_is(op, "running") || op_is(op, "enqueued")) && (!first || op->number < first->number))
			first = op;
	}
	return first;
}

static void text_add_faults(struct text_buf *t, const struct dump_group *g)
{
	for (int r = 0; r < g->n; r++)
		if (g->member[r] && g->member[r]->fault_peer >= 0 && !*g->member[r]->fault_peer_call) {
			text_add(t, "; rank %d gave up waiting for rank %d", r, g->member[r]->fault_peer);
			return;
		}
}

/* No rank's device has begun the collective: other work of the program comes first. */
static void add_not_begun(struct findings *f, const struct dump_group *g, const bool *late, const struct dump_op *op)
{
	uint64_t since = UINT64_MAX, now = 0;
	enum finding_level level;
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++)
		if (late[r] && op->time_ns < since) {
			since = op->time_ns;
			now = g->member[r]->process->time_ns;
		}
	level = level_of_wait(since, now) == FINDING_ERROR ? FINDING_WARN : FINDING_INFO;
	text_add(&t, "collective %" PRIu64 " (", op->number);
	text_add_op(&t, op);
	text_add(&t, ") has been called, but no device has begun it, ");
	text_add_since(&t, since, now);
	comm_finding_add(f, g, level, "something before it on its stream has not ended, or the devices are full", &t);
}

bool find_straggler_device(struct findings *f, const struct dump_group *g)
{
	bool *late = g->marks[0], *in = g->marks[1];
	uint64_t lowest = UINT64_MAX, since = UINT64_MAX, now = 0;
	const struct dump_op *op = NULL, *waiting = NULL;
	enum finding_level level;
	struct text_buf t = { 0 };
	int ended = 0;

	for (int r = 0; r < g->n; r++) {
		const struct dump_op *at = running_collective(g->member[r]);

		if (at && at->number < lowest)
			lowest = at->number;
	}
	if (lowest == UINT64_MAX)
		return false;
	for (int r = 0; r < g->n; r++) {
		const struct dump_op *at = running_collective(g->member[r]);

		late[r] = at && at->number == lowest && op_is(at, "enqueued");
		in[r] = at && at->number == lowest && op_is(at, "running");
		if (late[r] && !op)
			op = at;
		if (in[r] && at->time_ns < since) {
			waiting = at;
			since = at->time_ns;
			now = g->member[r]->process->time_ns;
		}
	}
	if (!waiting) {
		if (op)
			add_not_begun(f, g, late, op);
		return op;
	}
	level = level_of_wait(since, now);
	if (op) {
		text_add_processes(&t, g, late);
		text_add(&t, " %s behind: %s device%s not begun collective %" PRIu64 " (",
		    marks_count(g, late) == 1 ? "is" : "are", marks_count(g, late) == 1 ? "its" : "their",
		    marks_count(g, late) == 1 ? " has" : "s have", lowest);
		text_add_op(&t, op);
		text_add(&t, "), in which ");
		text_add_ranks(&t, g, in);
		text_add(&t, " wait%s ", marks_count(g, in) == 1 ? "s" : "");
		text_add_since(&t, since, now);
		text_add(&t, "; it is on stream %s", op->stream);
		comm_finding_add(f, g, level,
		    level == FINDING_ERROR ? "something before it on that stream has not ended, or the device is full" :
		                             advice_for(level),
		    &t);
		return true;
	}
	text_add_ranks(&t, g, in);
	text_add(&t, " %s in collective %" PRIu64 " (", marks_count(g, in) == 1 ? "is" : "are", lowest);
	text_add_op(&t, waiting);
	text_add(&t, ", %s) ", waiting->path);
	text_add_since(&t, since, now);
	if (marks_count(g, in) == g->n) {
		text_add(&t, " and none of them ends, though all have begun it");
		text_add_faults(&t, g);
		comm_finding_add(f, g, level,
		    level == FINDING_ERROR ?
		        "if it is no matter of size, this is a defect of Shunt: please report it with these dumps; "
		        "SHUNT_FORCE_NCCL=all avoids it" :
		        advice_for(level),
		    &t);
		return true;
	}
	for (int r = 0; r < g->n; r++)
		ended += op_is(collective_at(g->member[r], lowest), "finished");
	if (ended && ended + marks_count(g, in) == g->ndumps)
		text_add(&t, ", while the others have ended it");
	text_add_faults(&t, g);
	if (g->ndumps < g->n)
		level = level == FINDING_ERROR ? FINDING_WARN : level;
	comm_finding_add(f, g, level, g->ndumps < g->n ? "look at the ranks that have no dump" : advice_for(level), &t);
	return true;
}

/* A rank's first call that NCCL has not finished; NULL: none known. */
static const struct dump_op *unfinished_in_nccl(const struct dump_comm *c)
{
	const struct dump_op *first = NULL;

	for (size_t i = 0; c && i < c->nops; i++)
		if (op_is_nccl(&c->ops[i]) && op_is(&c->ops[i], "running") && (!first || c->ops[i].seq < first->seq))
			first = &c->ops[i];
	return first;
}

bool find_nccl_unfinished(struct findings *f, const struct dump_group *g)
{
	bool *in = g->marks[0], *out = g->marks[1];
	const struct dump_op *first = NULL;
	const struct dump_comm *whose = NULL;
	enum finding_level level;
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++) {
		const struct dump_op *op = unfinished_in_nccl(g->member[r]), *ours = running_collective(g->member[r]);

		if (!op || (ours && ours->seq < op->seq) ||
		    (first && !first->message <= !op->message && first->number <= op->number))
			continue;
		first = op;
		whose = g->member[r];
	}
	if (!first)
		return false;
	for (int r = 0; r < g->n; r++) {
		const struct dump_op *op = unfinished_in_nccl(g->member[r]);

		in[r] = first->message ? g->member[r] == whose : op && !op->message && op->number == first->number;
		out[r] = !first->message && op_is(collective_at(g->member[r], first->number), "finished");
	}
	level = level_of_wait(first->time_ns, whose->process->time_ns);
	if (level == FINDING_ERROR && !marks_count(g, out)) /* the program's own work may come first on all ranks */
		level = FINDING_WARN;
	text_add(&t, "NCCL has not finished on ");
	text_add_processes(&t, g, in);
	text_add(&t, first->message ? ": " : ": collective %" PRIu64 " (", first->number);
	text_add_op(&t, first);
	text_add(&t, first->message ? " " : ") ");
	text_add_since(&t, first->time_ns, whose->process->time_ns);
	if (marks_count(g, out)) {
		text_add(&t, "; ");
		text_add_ranks(&t, g, out);
		text_add(&t, " %s", marks_count(g, out) == 1 ? "has" : "have");
	}
	text_add(&t, "; it is on stream %s", first->stream);
	comm_finding_add(f, g, level,
	    level == FINDING_INFO ? advice_for(level) :
	                            "something before it on that stream has not ended, or NCCL waits for a rank there",
	    &t);
	return true;
}

/* Replays do not involve the host: only the numbers of graph launches can be compared. */
bool find_straggler_replays(struct findings *f, const struct dump_group *g)
{
	bool *behind = g->marks[0], *in = g->marks[1];
	uint64_t most = 0, fewest = UINT64_MAX;
	struct text_buf t = { 0 };

	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];

		if (!c || !c->has_progress)
			continue;
		most = c->replays > most ? c->replays : most;
		fewest = c->replays < fewest ? c->replays : fewest;
	}
	if (fewest > most)
		return false;
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];

		behind[r] = c && c->has_progress && c->replays == fewest;
		in[r] = c && c->running && c->last_captured;
	}
	if (!marks_count(g, in))
		return false;
	if (fewest == most) {
		text_add_ranks(&t, g, in);
		text_add(&t, " %s in a collective of a graph; all have begun as many launches of graphs, %" PRIu64,
		    marks_count(g, in) == 1 ? "is" : "are", most);
		comm_finding_add(f, g, FINDING_INFO, "if a second dump shows the same number, it hangs there", &t);
		return true;
	}
	text_add_processes(&t, g, behind);
	text_add(&t, " %s behind in graphs: %s begun %" PRIu64 " launches of them, the farthest %" PRIu64,
	    marks_count(g, behind) == 1 ? "is" : "are", marks_count(g, behind) == 1 ? "it has" : "they have", fewest,
	    most);
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];
		bool said = false;

		for (size_t i = 0; in[r] && i < c->nops && !said; i++)
			if (c->ops[i].captured && op_is(&c->ops[i], "running")) {
				text_add(&t, "; rank %d waits in ", r);
				text_add_op(&t, &c->ops[i]);
				said = true;
			}
		if (said)
			break;
	}
	comm_finding_add(f, g, FINDING_WARN,
	    "if a second dump shows the same numbers, that rank's graph was not launched, or waits on its stream", &t);
	return true;
}

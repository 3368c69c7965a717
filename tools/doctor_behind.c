/* SPDX-License-Identifier: MIT */
/* Ranks that made fewer calls than others, whose device has not come as far, or that launched fewer graphs. */
#include <inttypes.h>
#include <string.h>
#include "doctor_who.h"

static void add_last_call(struct text *t, const struct dump_comm *c)
{
	const struct dump_op *op = collective(c, c->collectives);

	if (!c->collectives) {
		add(t, "; it has called none so far");
	} else if (op) {
		add(t, "; its last was %" PRIu64 " (", op->number);
		add_op(t, op);
		add(t, ", %s)", op->state);
	}
}

/*
 * Ranks that wait on the host, for others that have not come to that; ending: in the communicator's end, for its
 * kernels.
 */
static bool find_in_phase(struct findings *f, const struct group *g, bool ending)
{
	bool *waits = g->mark[0], *away = g->mark[1];
	uint64_t since = UINT64_MAX, now = 0;
	const char *phase = "";
	enum found_level level;
	struct text t = { 0 };

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

		away[r] = !ending && c && !*c->phase && (strcmp(phase, "set-up") || !strcmp(c->state, "new"));
	}
	if (!count(g, waits))
		return false;
	level = level_of(since, now);
	add_ranks(&t, g, waits);
	add(&t, " wait%s in the %s ", count(g, waits) == 1 ? "s" : "", phase);
	add_since(&t, since, now);
	if (count(g, away)) {
		add(&t, " for ");
		add_processes(&t, g, away);
		add(&t, ", which %s not come to it", count(g, away) == 1 ? "has" : "have");
	} else if (g->nhere < g->n) {
		add(&t, "; look at the ranks that have no dump");
	}
	found_in(f, g, level, advice_of(level), &t);
	return true;
}

bool find_in_setup(struct findings *f, const struct group *g)
{
	return find_in_phase(f, g, false);
}

bool find_in_end(struct findings *f, const struct group *g)
{
	return find_in_phase(f, g, true);
}

bool find_fewer_calls(struct findings *f, const struct group *g)
{
	bool *behind = g->mark[0], *ahead = g->mark[1];
	bool stale = true;
	uint64_t most = 0, fewest = UINT64_MAX, since = UINT64_MAX, now = 0;
	const struct dump_op *awaited = NULL;
	enum found_level level;
	struct text t = { 0 };

	for (int r = 0; r < g->n; r++)
		if (g->member[r]) {
			most = g->member[r]->collectives > most ? g->member[r]->collectives : most;
			fewest = g->member[r]->collectives < fewest ? g->member[r]->collectives : fewest;
		}
	if (fewest >= most)
		return false;
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];
		const struct dump_op *op = collective(c, fewest + 1);

		behind[r] = c && c->collectives == fewest;
		ahead[r] = c && c->collectives > fewest && !is(op, "finished");
		if (ahead[r] && op && op->time_ns < since) {
			awaited = op;
			since = op->time_ns;
			now = c->process->time_ns;
		}
	}
	if (!awaited)
		return false; /* a root that has sent and gone on */
	for (int r = 0; r < g->n; r++)
		if (behind[r] && g->member[r]->process->time_ns >= since)
			stale = false;
	level = is(awaited, "failed") ? FOUND_ERROR : level_of(since, now);
	add_processes(&t, g, behind);
	add(&t, " %s behind: %s not called collective %" PRIu64 " (", count(g, behind) == 1 ? "is" : "are",
	    count(g, behind) == 1 ? "it has" : "they have", fewest + 1);
	add_op(&t, awaited);
	add(&t, "), in which ");
	add_ranks(&t, g, ahead);
	add(&t, is(awaited, "failed") ? " waited in vain " : count(g, ahead) == 1 ? " waits " : " wait ");
	add_since(&t, since, now);
	for (int r = 0; r < g->n; r++)
		if (behind[r]) {
			add_last_call(&t, g->member[r]);
			add_elsewhere(&t, g->member[r]);
			break;
		}
	found_in(f, g, stale ? FOUND_WARN : level,
	    stale ? "its dump is older than that call: dump all ranks again" : advice_of(level), &t);
	return true;
}

/* The first collective of a rank that our kernels have not ended; NULL: none that we know of. */
static const struct dump_op *current(const struct dump_comm *c)
{
	const struct dump_op *first = NULL;

	for (size_t i = 0; c && i < c->nops; i++) {
		const struct dump_op *op = &c->ops[i];

		if (!op->message && !op->captured && (is(op, "running") || is(op, "enqueued")) &&
		    (!first || op->number < first->number))
			first = op;
	}
	return first;
}

static void add_faults(struct text *t, const struct group *g)
{
	for (int r = 0; r < g->n; r++)
		if (g->member[r] && g->member[r]->fault_peer >= 0 && !*g->member[r]->fault_theirs) {
			add(t, "; rank %d gave up waiting for rank %d", r, g->member[r]->fault_peer);
			return;
		}
}

bool find_slow_device(struct findings *f, const struct group *g)
{
	bool *late = g->mark[0], *in = g->mark[1];
	uint64_t lowest = UINT64_MAX, since = UINT64_MAX, now = 0;
	const struct dump_op *op = NULL, *waiting = NULL;
	enum found_level level;
	struct text t = { 0 };
	int ended = 0;

	for (int r = 0; r < g->n; r++) {
		const struct dump_op *at = current(g->member[r]);

		if (at && at->number < lowest)
			lowest = at->number;
	}
	if (lowest == UINT64_MAX)
		return false;
	for (int r = 0; r < g->n; r++) {
		const struct dump_op *at = current(g->member[r]);

		late[r] = at && at->number == lowest && is(at, "enqueued");
		in[r] = at && at->number == lowest && is(at, "running");
		if (late[r] && !op)
			op = at;
		if (in[r] && at->time_ns < since) {
			waiting = at;
			since = at->time_ns;
			now = g->member[r]->process->time_ns;
		}
	}
	if (!waiting) { /* nobody has begun it: other work of the program comes first */
		for (int r = 0; r < g->n; r++)
			if (late[r] && op->time_ns < since) {
				since = op->time_ns;
				now = g->member[r]->process->time_ns;
			}
		level = level_of(since, now) == FOUND_ERROR ? FOUND_WARN : FOUND_INFO;
		add(&t, "collective %" PRIu64 " (", lowest);
		add_op(&t, op);
		add(&t, ") has been called, but no device has begun it, ");
		add_since(&t, since, now);
		found_in(f, g, level, "something before it on its stream has not ended, or the devices are full", &t);
		return true;
	}
	level = level_of(since, now);
	if (op) {
		add_processes(&t, g, late);
		add(&t, " %s behind: %s device%s not begun collective %" PRIu64 " (",
		    count(g, late) == 1 ? "is" : "are", count(g, late) == 1 ? "its" : "their",
		    count(g, late) == 1 ? " has" : "s have", lowest);
		add_op(&t, op);
		add(&t, "), in which ");
		add_ranks(&t, g, in);
		add(&t, " wait%s ", count(g, in) == 1 ? "s" : "");
		add_since(&t, since, now);
		add(&t, "; it is on stream %s", op->stream);
		found_in(f, g, level,
		    level == FOUND_ERROR ? "something before it on that stream has not ended, or the device is full" :
		                           advice_of(level),
		    &t);
		return true;
	}
	add_ranks(&t, g, in);
	add(&t, " %s in collective %" PRIu64 " (", count(g, in) == 1 ? "is" : "are", lowest);
	add_op(&t, waiting);
	add(&t, ", %s) ", waiting->path);
	add_since(&t, since, now);
	if (count(g, in) == g->n) {
		add(&t, " and none of them ends, though all have begun it");
		add_faults(&t, g);
		found_in(f, g, level,
		    level == FOUND_ERROR ?
		        "if it is no matter of size, this is a defect of Shunt: please report it with these dumps; "
		        "SHUNT_FORCE_NCCL=all avoids it" :
		        advice_of(level),
		    &t);
		return true;
	}
	for (int r = 0; r < g->n; r++)
		ended += is(collective(g->member[r], lowest), "finished");
	if (ended && ended + count(g, in) == g->nhere)
		add(&t, ", while the others have ended it");
	add_faults(&t, g);
	if (g->nhere < g->n)
		level = level == FOUND_ERROR ? FOUND_WARN : level;
	found_in(f, g, level, g->nhere < g->n ? "look at the ranks that have no dump" : advice_of(level), &t);
	return true;
}

/* Replays pass no host: all there is to compare is how many launches of graphs began. */
bool find_fewer_replays(struct findings *f, const struct group *g)
{
	bool *behind = g->mark[0], *in = g->mark[1];
	uint64_t most = 0, fewest = UINT64_MAX;
	struct text t = { 0 };

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
	if (!count(g, in))
		return false;
	if (fewest == most) {
		add_ranks(&t, g, in);
		add(&t, " %s in a collective of a graph; all have begun as many launches of graphs, %" PRIu64,
		    count(g, in) == 1 ? "is" : "are", most);
		found_in(f, g, FOUND_INFO, "if a second dump shows the same number, it hangs there", &t);
		return true;
	}
	add_processes(&t, g, behind);
	add(&t, " %s behind in graphs: %s begun %" PRIu64 " launches of them, the farthest %" PRIu64,
	    count(g, behind) == 1 ? "is" : "are", count(g, behind) == 1 ? "it has" : "they have", fewest, most);
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];
		bool said = false;

		for (size_t i = 0; in[r] && i < c->nops && !said; i++)
			if (c->ops[i].captured && is(&c->ops[i], "running")) {
				add(&t, "; rank %d waits in ", r);
				add_op(&t, &c->ops[i]);
				said = true;
			}
		if (said)
			break;
	}
	found_in(f, g, FOUND_WARN,
	    "if a second dump shows the same numbers, that rank's graph was not launched, or waits on its stream", &t);
	return true;
}

/* SPDX-License-Identifier: MIT */
/*
 * Who waits for whom. Dumps are put together by communicator and compared rank by rank: first what the ranks called, then how many calls
 * they made, then how far their devices are, then messages and replays. The first difference in that order is the cause of those behind it.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/coll.h"
#include "doctor.h"

#define SECOND 1000000000ull
#define MAX_NAMED 8

static const char topic[] = "who waits for whom";

struct group {
	const struct dumps *dumps;
	const struct dump_comm **member; /* by rank; NULL: no dump */
	bool *mark[2];                   /* of n each, for whoever needs them just now */
	int n;
	const char *id, *key;
	int nhere;
};

/* Text that is put together piece by piece; what does not fit is cut. */
struct text {
	char s[1024];
	size_t n;
};

static void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *t, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(t->s + t->n, sizeof(t->s) - t->n, fmt, args);
	va_end(args);
	if (n > 0)
		t->n = t->n + (size_t)n < sizeof(t->s) ? t->n + (size_t)n : sizeof(t->s) - 1;
}

/* "rank 2", "ranks 0, 1 and 3", "ranks 0, 1, 2 and 29 more" of those that are marked. */
static void add_ranks(struct text *t, const struct group *g, const bool *mark)
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

/* The same with process and host for each. */
static void add_processes(struct text *t, const struct group *g, const bool *mark)
{
	bool first = true;

	for (int r = 0; r < g->n; r++)
		if (mark[r]) {
			add(t, "%srank %d (pid %d on %s)", first ? "" : ", ", r, g->member[r]->process->pid, g->member[r]->process->host);
			first = false;
		}
}

static int count(const struct group *g, const bool *mark)
{
	int n = 0;

	for (int r = 0; r < g->n; r++)
		n += mark[r];
	return n;
}

static void add_op(struct text *t, const struct dump_op *op)
{
	add(t, "%s of %" PRIu64 " %s", op->kind, op->count, op->dtype);
	if (*op->op)
		add(t, ", %s", op->op);
	if (op->root >= 0)
		add(t, op->message ? ", rank %d" : ", root %d", op->root);
}

static void add_since(struct text *t, uint64_t time_ns, uint64_t now_ns)
{
	time_t s = (time_t)(time_ns / SECOND);
	char clock[16];
	struct tm tm;

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&s, &tm));
	add(t, "since %s", clock);
	if (now_ns > time_ns)
		add(t, " (%.1f s)", (double)(now_ns - time_ns) / SECOND);
}

static const struct dump_op *collective(const struct dump_comm *c, uint64_t number)
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

static bool is(const struct dump_op *op, const char *state)
{
	return op && !strcmp(op->state, state);
}

/* Did two ranks call the same? A call that was forwarded unseen is known by its bytes only. */
static bool same(const struct dump_op *a, const struct dump_op *b)
{
	if (strcmp(a->kind, b->kind) || a->root != b->root)
		return false;
	if (!strcmp(a->dtype, "bytes") || !strcmp(b->dtype, "bytes"))
		return true;
	return a->count == b->count && !strcmp(a->dtype, b->dtype) && !strcmp(a->op, b->op);
}

static void found_in(struct findings *f, const struct group *g, enum found_level level, const char *advice, const struct text *t)
{
	found(f, level, topic, advice, "communicator %s of %d: %s", g->id, g->n, t->s);
}

/* Age of a wait, as seen by the process that waits. A job that runs shows differences, too, but none that last. */
static enum found_level level_of(uint64_t since_ns, uint64_t now_ns)
{
	return now_ns > since_ns && now_ns - since_ns >= SECOND ? FOUND_ERROR : FOUND_INFO;
}

static const char *advice_of(enum found_level level)
{
	return level == FOUND_ERROR ? "" : "that is less than a second, and may be a job that runs: dump again and compare";
}

/* ---- who called something else */

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
	const struct dump_op *mine = collective(g->member[r], number), *mine_next = collective(g->member[r], number + 1);
	const struct dump_op *theirs = collective(g->member[right], number), *theirs_next = collective(g->member[right], number + 1);

	if (theirs_next && same(mine, theirs_next))
		add(t, "; it looks as if rank %d left out that one", r);
	else if (mine_next && same(mine_next, theirs))
		add(t, "; it looks as if rank %d made one call more", r);
}

static bool find_mismatch(struct findings *f, const struct group *g)
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
		struct text t = {0};

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
		found_in(f, g, FOUND_ERROR, "all ranks must make the same calls in the same order: look at what the program does there on these ranks", &t);
		return true;
	}
	return false;
}

/* A call that one rank gave to NCCL and another ran itself can never end. */
static bool find_split_path(struct findings *f, const struct group *g)
{
	for (int r = 0; r < g->n; r++)
		for (size_t i = 0; g->member[r] && i < g->member[r]->nops; i++) {
			const struct dump_op *op = &g->member[r]->ops[i];

			for (int p = r + 1; p < g->n && !op->message && op->number; p++) {
				const struct dump_op *other = collective(g->member[p], op->number);
				struct text t = {0};

				if (!other || !strcmp(op->path, "nccl") == !strcmp(other->path, "nccl"))
					continue;
				add(&t, "collective %" PRIu64 " (", op->number);
				add_op(&t, op);
				add(&t, ") went to %s on rank %d and to %s on rank %d", op->path, r, other->path, p);
				found_in(f, g, FOUND_ERROR, "the ranks have different settings, or this is a defect of Shunt: SHUNT_FORCE_NCCL=all avoids it", &t);
				return true;
			}
		}
	return false;
}

/* ---- who is behind */

/* What else a process is doing: a collective of another communicator that has not ended. */
static void add_elsewhere(struct text *t, const struct dump_comm *c)
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

static bool find_in_setup(struct findings *f, const struct group *g)
{
	bool *waits = g->mark[0], *away = g->mark[1];
	uint64_t since = UINT64_MAX, now = 0;
	enum found_level level;
	struct text t = {0};

	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];

		waits[r] = c && *c->phase;
		away[r] = c && !*c->phase && !strcmp(c->state, "new");
		if (c && waits[r] && c->phase_time_ns < since) {
			since = c->phase_time_ns;
			now = c->process->time_ns;
		}
	}
	if (!count(g, waits))
		return false;
	level = level_of(since, now);
	add_ranks(&t, g, waits);
	add(&t, " wait%s in the set-up ", count(g, waits) == 1 ? "s" : "");
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

static bool find_fewer_calls(struct findings *f, const struct group *g)
{
	bool *behind = g->mark[0], *ahead = g->mark[1];
	bool stale = true;
	uint64_t most = 0, fewest = UINT64_MAX, since = UINT64_MAX, now = 0;
	const struct dump_op *awaited = NULL;
	enum found_level level;
	struct text t = {0};

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
	found_in(f, g, stale ? FOUND_WARN : level, stale ? "its dump is older than that call: dump all ranks again" : advice_of(level), &t);
	return true;
}

/* The first collective of a rank that our kernels have not ended; NULL: none that we know of. */
static const struct dump_op *current(const struct dump_comm *c)
{
	const struct dump_op *first = NULL;

	for (size_t i = 0; c && i < c->nops; i++) {
		const struct dump_op *op = &c->ops[i];

		if (!op->message && !op->captured && (is(op, "running") || is(op, "enqueued")) && (!first || op->number < first->number))
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

static bool find_slow_device(struct findings *f, const struct group *g)
{
	bool *late = g->mark[0], *in = g->mark[1];
	uint64_t lowest = UINT64_MAX, since = UINT64_MAX, now = 0;
	const struct dump_op *op = NULL, *waiting = NULL;
	enum found_level level;
	struct text t = {0};

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
		add(&t, " %s behind: %s device%s not begun collective %" PRIu64 " (", count(g, late) == 1 ? "is" : "are",
		    count(g, late) == 1 ? "its" : "their", count(g, late) == 1 ? " has" : "s have", lowest);
		add_op(&t, op);
		add(&t, "), in which ");
		add_ranks(&t, g, in);
		add(&t, " wait%s ", count(g, in) == 1 ? "s" : "");
		add_since(&t, since, now);
		add(&t, "; it is on stream %s", op->stream);
		found_in(f, g, level, level == FOUND_ERROR ? "something before it on that stream has not ended, or the device is full" : advice_of(level), &t);
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
		found_in(f, g, level, level == FOUND_ERROR ? "if it is no matter of size, this is a defect of Shunt: please report it with these dumps; "
		    "SHUNT_FORCE_NCCL=all avoids it" : advice_of(level), &t);
		return true;
	}
	if (count(g, in) < g->nhere)
		add(&t, ", while the others have ended it");
	add_faults(&t, g);
	if (g->nhere < g->n)
		level = level == FOUND_ERROR ? FOUND_WARN : level;
	found_in(f, g, level, g->nhere < g->n ? "look at the ranks that have no dump" : advice_of(level), &t);
	return true;
}

/* Replays pass no host: all there is to compare is how many launches of graphs began. */
static bool find_fewer_replays(struct findings *f, const struct group *g)
{
	bool *behind = g->mark[0], *in = g->mark[1];
	uint64_t most = 0, fewest = UINT64_MAX;
	struct text t = {0};

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
		add(&t, " %s in a collective of a graph; all have begun as many launches of graphs, %" PRIu64, count(g, in) == 1 ? "is" : "are", most);
		found_in(f, g, FOUND_INFO, "if a second dump shows the same number, it hangs there", &t);
		return true;
	}
	add_processes(&t, g, behind);
	add(&t, " %s behind in graphs: %s begun %" PRIu64 " launches of them, the farthest %" PRIu64, count(g, behind) == 1 ? "is" : "are",
	    count(g, behind) == 1 ? "it has" : "they have", fewest, most);
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
	found_in(f, g, FOUND_WARN, "if a second dump shows the same numbers, that rank's graph was not launched, or waits on its stream", &t);
	return true;
}

/* ---- messages */

static const struct dump_op *message(const struct dump_comm *c, const char *kind, int peer, uint64_t number)
{
	for (size_t i = 0; i < c->nops; i++)
		if (c->ops[i].message && c->ops[i].root == peer && c->ops[i].number == number && !strcmp(c->ops[i].kind, kind))
			return &c->ops[i];
	return NULL;
}

static uint64_t bytes_of(const struct dump_op *op)
{
	for (int d = 0; d < SHUNT_NDTYPES; d++)
		if (!strcmp(op->dtype, shunt_dtype_name((enum shunt_dtype)d)))
			return op->count * shunt_dtype_bytes[d];
	return op->count;
}

static bool find_message_sizes(struct findings *f, const struct group *g, int from, int to)
{
	const struct dump_comm *a = g->member[from], *b = g->member[to];

	for (size_t i = 0; i < a->nops; i++) {
		const struct dump_op *s = &a->ops[i], *r;
		struct text t = {0};

		if (strcmp(s->kind, "send") || s->root != to || !s->number)
			continue;
		r = message(b, "recv", from, s->number);
		if (!r || bytes_of(r) == bytes_of(s))
			continue;
		add(&t, "message %" PRIu64 " from rank %d to rank %d has %" PRIu64 " bytes, and rank %d receives %" PRIu64, s->number, from, to, bytes_of(s),
		    to, bytes_of(r));
		found_in(f, g, FOUND_ERROR, "both ends of a message must have the same size", &t);
		return true;
	}
	return false;
}

static bool find_unmet_message(struct findings *f, const struct group *g, int from, int to)
{
	const struct dump_comm *a = g->member[from], *b = g->member[to];
	unsigned sent = a->sends[to], taken = b->receives[from];
	bool lacks_send = sent < taken;
	const struct dump_comm *waits = lacks_send ? b : a, *absent = lacks_send ? a : b;
	const struct dump_op *op;
	enum found_level level;
	struct text t = {0};

	if (sent == taken)
		return false;
	op = message(waits, lacks_send ? "recv" : "send", lacks_send ? from : to, (lacks_send ? sent : taken) + 1);
	if (!op || is(op, "finished"))
		return false;
	level = level_of(op->time_ns, waits->process->time_ns);
	add(&t, "rank %d (pid %d on %s) is behind: it has %s %u message%s %s rank %d, which waits in ", absent->rank, absent->process->pid,
	    absent->process->host, lacks_send ? "sent" : "received", lacks_send ? sent : taken, (lacks_send ? sent : taken) == 1 ? "" : "s",
	    lacks_send ? "to" : "from", waits->rank);
	add_op(&t, op);
	add(&t, " (number %" PRIu64 ") ", op->number);
	add_since(&t, op->time_ns, waits->process->time_ns);
	add_elsewhere(&t, absent);
	found_in(f, g, level, advice_of(level), &t);
	return true;
}

static bool find_messages(struct findings *f, const struct group *g)
{
	bool any = false;

	for (int a = 0; a < g->n; a++)
		for (int b = 0; b < g->n; b++) {
			if (!g->member[a] || !g->member[b] || g->member[a]->npeers != (size_t)g->n || g->member[b]->npeers != (size_t)g->n)
				continue;
			any |= find_message_sizes(f, g, a, b) || find_unmet_message(f, g, a, b);
		}
	return any;
}

/* ---- the rest */

static void find_missing(struct findings *f, const struct group *g)
{
	bool *missing = g->mark[0];
	struct text t = {0};

	for (int r = 0; r < g->n; r++)
		missing[r] = !g->member[r];
	if (!count(g, missing))
		return;
	add_ranks(&t, g, missing);
	add(&t, " %s no dump here", count(g, missing) == 1 ? "has" : "have");
	found_in(f, g, FOUND_WARN, "a process that died or is stopped writes none (`shunt doctor --pid` says which); others may be on another host", &t);
}

static void find_errors(struct findings *f, const struct group *g)
{
	for (int r = 0; r < g->n; r++) {
		const struct dump_comm *c = g->member[r];
		struct text t = {0};

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
	any = find_mismatch(f, g) || find_split_path(f, g) || find_in_setup(f, g) || find_fewer_calls(f, g) || find_slow_device(f, g);
	any |= find_messages(f, g);
	if (!any)
		any = find_fewer_replays(f, g);
	find_missing(f, g);
	find_errors(f, g);
	if (!any && f->n == before) {
		uint64_t calls = 0;

		for (int r = 0; r < g->n; r++)
			calls = g->member[r]->collectives > calls ? g->member[r]->collectives : calls;
		found(f, FOUND_OK, topic, "", "communicator %s of %d: nobody waits; all ranks have called %" PRIu64 " collectives", g->id, g->n, calls);
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
	*g = (struct group){ .dumps = d, .n = c->nranks, .id = c->id, .key = c->key };
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

			if (strcmp(m->key, c->key) || m->nranks != c->nranks || m->rank < 0 || m->rank >= g->n || g->member[m->rank])
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
		found(f, FOUND_INFO, topic, "", "no dump has a communicator whose ranks are known: it was not used so far, or is gone");
	sort_by_level(f->rows + start, f->n - start);
}

static const char dumps_help[] =
	"usage: shunt doctor dumps [--json] FILE|DIRECTORY...\n\n"
	"Puts the dumps of all ranks together and says who waits for whom. Exit status 0: nobody, 1: perhaps, 2: somebody.\n";

int doctor_dumps_main(int argc, char **argv)
{
	struct findings f = {0};
	struct dumps d = {0};
	bool json = false;
	int status = TOOL_FAIL, first = 1;

	for (; first < argc && argv[first][0] == '-'; first++) {
		if (!strcmp(argv[first], "--json")) {
			json = true;
		} else if (!strcmp(argv[first], "--help") || !strcmp(argv[first], "-h")) {
			fputs(dumps_help, stdout);
			return TOOL_OK;
		} else {
			return tool_usage_error("dumps: there is no option %s", argv[first]);
		}
	}
	if (first == argc)
		return tool_usage_error("dumps: which files?");
	for (int i = first; i < argc; i++)
		if (dumps_add_path(&d, argv[i])) {
			status = TOOL_USAGE;
			goto out;
		}
	doctor_who(&f, &d);
	status = findings_print(&f, json);
out:
	findings_finish(&f);
	dumps_finish(&d);
	return status;
}

/* SPDX-License-Identifier: MIT */
/* What many looks together say: what moved, and what hangs. */
#include "tools/common/libc.h"
#include "base/io.h"
#include "tools/watch/watch.h"

#define INSIDE_NS 1000000000u

const struct dump_op *watch_unfinished(const struct dump_comm *c)
{
	const struct dump_op *first = NULL;

	for (size_t i = 0; i < c->nops; i++)
		if ((!strcmp(c->ops[i].state, "enqueued") || !strcmp(c->ops[i].state, "running") ||
		        !strcmp(c->ops[i].state, "in_nccl")) &&
		    (!first || c->ops[i].seq < first->seq))
			first = &c->ops[i];
	return first;
}

/* Adds room for a zeroed row to an array. NULL: no memory. */
static void *row_add(void **rows, size_t *n, size_t bytes)
{
	char *more = realloc(*rows, (*n + 1) * bytes);

	if (!more)
		return NULL;
	*rows = more;
	return memset(more + (*n)++ * bytes, 0, bytes);
}

static struct watch_rank *rank_of(struct watch *w, const struct dump_comm *c)
{
	struct watch_rank *r;

	for (size_t i = 0; i < w->nranks; i++) {
		r = &w->ranks[i];
		if (r->pid == c->process->pid && r->rank == c->rank && !strcmp(r->key, c->key))
			return r;
	}
	r = row_add((void **)&w->ranks, &w->nranks, sizeof(*r));
	if (!r)
		return NULL;
	snprintf(r->key, sizeof(r->key), "%s", c->key);
	snprintf(r->host, sizeof(r->host), "%s", c->process->host);
	r->rank = c->rank;
	r->nranks = c->nranks;
	r->pid = c->process->pid;
	return r;
}

static struct watch_group *group_of(struct watch *w, const struct dump_comm *c, bool *is_new_p)
{
	struct watch_group *g;

	*is_new_p = false;
	for (size_t i = 0; i < w->ngroups; i++)
		if (!strcmp(w->groups[i].key, c->key))
			return &w->groups[i];
	g = row_add((void **)&w->groups, &w->ngroups, sizeof(*g));
	if (!g)
		return NULL;
	snprintf(g->key, sizeof(g->key), "%s", c->key);
	snprintf(g->id, sizeof(g->id), "%s", c->id);
	snprintf(g->job, sizeof(g->job), "%s", c->key);
	g->nranks = c->nranks;
	g->moved_ms = g->compared_ms = w->look_ms;
	g->late = -1;
	*is_new_p = true;
	return g;
}

/* Newer than before, unless the communicator is seen for the first time: calls of long ago have no rate. */
static uint64_t fresh(uint64_t *seen, uint64_t now, bool first)
{
	uint64_t more = first || now < *seen ? 0 : now - *seen;

	*seen = now;
	return more;
}

/* From now on its waits are added up anew. */
static void waits_begin(struct watch_rank *r)
{
	memset(r->waits, 0, sizeof(r->waits));
	for (size_t p = 0; p < r->now->nwaits && p < WATCH_PEERS; p++)
		r->waits[p] = r->now->waits[p];
	r->waits_ns = r->now->process->time_ns;
}

static void rank_update(struct watch_rank *r, const struct dump_comm *c)
{
	uint64_t calls = 0, nccl = 0, bytes = 0;
	bool first = !r->now;

	r->here = true;
	r->now = c;
	for (size_t i = 0; i < c->ncounters; i++) {
		calls += c->counters[i].calls;
		bytes += c->counters[i].bytes;
		nccl += strcmp(c->counters[i].path, "nccl") ? 0 : c->counters[i].calls;
	}
	if (first)
		waits_begin(r);
	r->fresh_calls = fresh(&r->calls, calls, first);
	r->fresh_nccl = fresh(&r->nccl, nccl, first);
	r->fresh_bytes = fresh(&r->bytes, bytes, first);
}

/* A job has the name of its communicator with most ranks, of several such the one with the smallest key. */
static int jobs_name(struct watch *w)
{
	size_t *job = calloc(w->last.n + 1, sizeof(*job));

	if (!job)
		return -ENOMEM;
	doctor_jobs_find(&w->last, job);
	for (size_t i = 0; i < w->nranks; i++)
		for (size_t p = 0; p < w->last.n && w->ranks[i].here; p++)
			if (w->ranks[i].now->process == w->last.processes[p])
				w->groups[w->ranks[i].group].number = job[p];
	free(job);
	for (size_t i = 0; i < w->ngroups; i++) {
		struct watch_group *g = &w->groups[i];
		const struct watch_group *best = g;

		for (size_t k = 0; k < w->ngroups; k++) {
			const struct watch_group *other = &w->groups[k];

			if (other->here && other->number == g->number &&
			    (other->nranks > best->nranks ||
			        (other->nranks == best->nranks && strcmp(other->key, best->key) < 0)))
				best = other;
		}
		snprintf(g->job, sizeof(g->job), "%s", best->key);
	}
	return 0;
}

/* Ranks of a communicator, each with its last look, or NULL. */
static const struct dump_comm *member(const struct watch *w, const struct watch_group *g, int rank)
{
	for (size_t i = 0; i < w->nranks; i++)
		if (w->ranks[i].here && w->ranks[i].rank == rank && !strcmp(w->ranks[i].key, g->key))
			return w->ranks[i].now;
	return NULL;
}

/* Asks for all that there is: the cause may be a call of long ago, and dumps are kept as the processes write them. */
static int whole_look(struct watch *w)
{
	bool keep = w->o->on_hang == WATCH_DUMP || w->o->on_hang == WATCH_EXIT;
	const char *dir = !keep ? NULL : w->o->dumps ? w->o->dumps : "shunt-dumps";
	struct findings f = { 0 };
	int err;

	if (dir && doctor_directory_create("--dumps", dir))
		dir = NULL;
	dumps_finish(&w->whole);
	err = look_take(&w->whole, &f, w->o->ancestor, "dump", dir, w->o->namespaces);
	findings_finish(&f);
	return err;
}

/* A program's own polling is inside NCCL often, and never for long. */
static bool is_inside(const struct dump_comm *c)
{
	const struct dump_thread *thread = doctor_thread_inside(c);

	return c && thread && c->process->time_ns >= thread->since_ns + INSIDE_NS;
}

/* A call that NCCL has got waits for the ranks that have not made it: *least_p is the smallest number of collectives.
 */
static bool nccl_waits(const struct watch *w, const struct watch_group *g, uint64_t *least_p)
{
	const struct dump_comm *c;

	*least_p = UINT64_MAX;
	for (int r = 0; r < g->nranks; r++) {
		c = member(w, g, r);
		*least_p = !c ? 0 : c->collectives < *least_p ? c->collectives : *least_p;
		if (!c)
			return false; /* it is elsewhere, or ends */
	}
	for (int r = 0; r < g->nranks; r++) {
		c = member(w, g, r);
		for (size_t i = 0; i < c->ncollectives; i++)
			if (c->ops[i].number == *least_p + 1 && !strcmp(c->ops[i].state, "returned"))
				return true;
	}
	return false;
}

static int hang_report(struct watch *w, struct watch_group *g)
{
	bool *behind = calloc((size_t)g->nranks, 2), *waiting;
	const char *where = "device";
	uint64_t most = 0, least;
	bool called = true, nccl = nccl_waits(w, g, &least);
	char text[1024];

	if (!behind)
		return -ENOMEM;
	waiting = behind + g->nranks;
	for (int r = 0; r < g->nranks; r++) {
		const struct dump_comm *c = member(w, g, r);

		most = c && c->collectives > most ? c->collectives : most;
	}
	for (int r = 0; r < g->nranks; r++) {
		const struct dump_comm *c = member(w, g, r);

		behind[r] = !c || c->collectives < most;
		waiting[r] = c && !behind[r] && (nccl || watch_unfinished(c) || *c->phase);
		called = called && !behind[r];
		if (behind[r])
			where = "calls";
		if (c && *c->phase)
			where = strcmp(c->phase, "destruction") ? "setup" : "destruction";
	}
	for (int r = 0; called && r < g->nranks; r++) {
		const struct dump_comm *c = member(w, g, r);
		const struct dump_op *op = c ? watch_unfinished(c) : NULL;
		bool inside = c && is_inside(c), unfinished = op && !strcmp(op->path, "nccl");

		behind[r] = inside || unfinished;
		waiting[r] = waiting[r] && !behind[r];
		if (inside)
			where = "nccl_host";
		else if (unfinished && strcmp(where, "nccl_host"))
			where = "nccl_device";
	}
	if (!w->hung && whole_look(w)) {
		free(behind);
		return -ENOMEM;
	}
	w->hung = true;
	look_cause(&w->whole, g->id, g->nranks, text, sizeof(text));
	watch_event(w, EVENT_HANG, g, where, behind, waiting, *text ? text : "it does not move");
	free(behind);
	return 0;
}

static int group_judge(struct watch *w, struct watch_group *g)
{
	uint64_t least;
	bool is_hang;

	g->waits = g->here && (g->waits || nccl_waits(w, g, &least));
	is_hang = g->waits && (double)(w->look_ms - g->moved_ms) >= w->o->hang_s * 1000;

	if (g->hangs && !is_hang)
		watch_event(w, EVENT_MOVED, g, NULL, NULL, NULL, g->here ? "it goes on" : "it has ended");
	if (is_hang && !g->hangs && hang_report(w, g))
		return -ENOMEM;
	g->hangs = is_hang;
	return 0;
}

/*
 * Who was late since the waits of the communicator's ranks were last compared: the rank for which others waited for
 * longer than for all the rest together, if one of them waited for more than the share of its time that is asked for.
 */
static void straggler_judge(struct watch *w, struct watch_group *g)
{
	double waited[WATCH_PEERS] = { 0 }, all = 0, most[WATCH_PEERS] = { 0 };
	int by[WATCH_PEERS], late = 0;
	bool behind[WATCH_PEERS] = { 0 };
	char text[256];

	if (!w->o->straggler || !g->here || g->nranks > WATCH_PEERS ||
	    (double)(w->look_ms - g->compared_ms) < w->o->straggler_s * 1000)
		return;
	g->compared_ms = w->look_ms;
	for (size_t i = 0; i < w->nranks; i++) {
		struct watch_rank *r = &w->ranks[i];
		double time;

		if (!r->here || strcmp(r->key, g->key))
			continue;
		time = (double)(r->now->process->time_ns - r->waits_ns);
		for (size_t p = 0; p < r->now->nwaits && p < (size_t)g->nranks; p++) {
			double ns = r->now->waits[p] > r->waits[p] ? (double)(r->now->waits[p] - r->waits[p]) : 0;

			all += ns;
			waited[p] += ns;
			if (time > 0 && 100 * ns / time > most[p]) {
				most[p] = 100 * ns / time;
				by[p] = r->rank;
			}
		}
		waits_begin(r);
	}
	for (int p = 0; p < g->nranks; p++)
		late = waited[p] > waited[late] ? p : late;
	if (2 * waited[late] <= all || most[late] <= w->o->straggler) {
		g->late = -1;
		return;
	}
	if (g->late == late)
		return; /* it is known */
	g->late = late;
	behind[late] = true;
	snprintf(text, sizeof(text),
	    "rank %d is late: rank %d waited for it in %.0f %% of the last %.0f s, and %.0f %% of all waits of the "
	    "ranks "
	    "here were for it",
	    late, by[late], most[late] > 100 ? 100 : most[late], w->o->straggler_s, 100 * waited[late] / all);
	watch_event(w, EVENT_STRAGGLER, g, NULL, behind, NULL, text);
}

static int comm_update(struct watch *w, const struct dump_comm *c)
{
	bool is_new;
	struct watch_group *g = group_of(w, c, &is_new);
	struct watch_rank *r = rank_of(w, c);
	char text[256];

	if (!g || !r)
		return -ENOMEM;
	rank_update(r, c);
	r->group = (size_t)(g - w->groups);
	g->here = true;
	g->waits = g->waits || watch_unfinished(c) || *c->phase || c->running || is_inside(c);
	if (c->moved)
		g->moved_ms = w->look_ms;
	if (is_new) {
		snprintf(text, sizeof(text), "%d ranks", c->nranks);
		watch_event(w, EVENT_COMMUNICATOR, g, NULL, NULL, NULL, text);
	}
	if (*c->error && !g->broken) {
		g->broken = true;
		snprintf(text, sizeof(text), "rank %d (pid %d) ended it with %s%.100s", c->rank, r->pid, c->error,
		    *c->fault_peer_call ? "; its peer calls another operation" : "");
		watch_event(w, *c->fault_peer_call ? EVENT_MISMATCH : EVENT_BROKEN, g, NULL, NULL, NULL, text);
	}
	return 0;
}

static struct watch_process *process_find(struct watch *w, int pid)
{
	for (size_t i = 0; i < w->nprocesses; i++)
		if (w->processes[i].pid == pid)
			return &w->processes[i];
	return NULL;
}

/* A creation of a communicator that does not end. */
static int process_judge(struct watch *w, const struct dump_process *dump)
{
	struct watch_process *p = process_find(w, dump->pid);
	size_t at = 0;
	const struct dump_thread *thread = doctor_thread_unknown(dump, &at, (uint64_t)(w->o->hang_s * 1e9));
	char text[1024];

	if (!p || p->hangs == (thread != NULL))
		return 0;
	p->hangs = thread != NULL;
	snprintf(text, sizeof(text), "process %d goes on", dump->pid);
	if (!thread) {
		watch_event(w, EVENT_MOVED, NULL, NULL, NULL, NULL, text);
		return 0;
	}
	if (!w->hung && whole_look(w))
		return -ENOMEM;
	w->hung = true;
	doctor_unknown_tell(dump, thread, text, sizeof(text));
	watch_event(w, EVENT_HANG, NULL, "nccl_host", NULL, NULL, text);
	return 0;
}

static int process_seen(struct watch *w, int pid, const char *silent)
{
	struct watch_process *p = process_find(w, pid);
	char text[256];

	if (!p) {
		p = row_add((void **)&w->processes, &w->nprocesses, sizeof(*p));
		if (!p)
			return -ENOMEM;
		p->pid = pid;
		snprintf(text, sizeof(text), "process %d", pid);
		watch_event(w, EVENT_START, NULL, NULL, NULL, NULL, text);
	}
	p->here = true;
	if (silent && !p->silent)
		watch_event(w, EVENT_GONE, NULL, NULL, NULL, NULL, silent);
	p->silent = silent != NULL;
	return 0;
}

/* Rows of what is no longer there. */
static void forget(struct watch *w)
{
	size_t n = 0;
	char text[64];

	for (size_t i = 0; i < w->nprocesses; i++) {
		snprintf(text, sizeof(text), "process %d", w->processes[i].pid);
		if (w->processes[i].here)
			w->processes[n++] = w->processes[i];
		else
			watch_event(w, EVENT_END, NULL, NULL, NULL, NULL, text);
	}
	w->nprocesses = n;
	n = 0;
	for (size_t i = 0; i < w->nranks; i++)
		if (w->ranks[i].here)
			w->ranks[n++] = w->ranks[i];
	w->nranks = n;
	n = 0;
	for (size_t i = 0; i < w->ngroups; i++)
		if (w->groups[i].here)
			w->groups[n++] = w->groups[i];
	w->ngroups = n;
}

int watch_look(struct watch *w)
{
	struct findings f = { 0 };
	struct dumps d = { 0 };
	int err = look_take(&d, &f, w->o->ancestor, "state", NULL, w->o->namespaces);

	doctor_moved_mark(&d, &w->last);
	dumps_finish(&w->last);
	w->last = d;
	w->before_ms = w->look_ms;
	w->look_ms = shunt_now_ms();
	w->hung = false;
	for (size_t i = 0; i < w->nprocesses; i++)
		w->processes[i].here = false;
	for (size_t i = 0; i < w->nranks; i++)
		w->ranks[i].here = false;
	for (size_t i = 0; i < w->ngroups; i++)
		w->groups[i].here = w->groups[i].waits = false;
	for (size_t i = 0; i < d.n && !err; i++) {
		err = process_seen(w, d.processes[i]->pid, NULL);
		for (size_t k = 0; k < d.processes[i]->ncomms && !err; k++) {
			const struct dump_comm *c = &d.processes[i]->comms[k];

			if (c->rank >= 0 && c->nranks > 0 && c->nranks <= 1 << 16 && *c->key)
				err = comm_update(w, c);
		}
	}
	for (size_t i = 0; i < f.n && !err; i++) {
		int pid = 0;
		const char *at = strstr(f.rows[i].text, "process ");

		if (at && sscanf(at, "process %d", &pid) == 1 && f.rows[i].level > FINDING_WARN &&
		    (!kill(pid, 0) || errno == EPERM)) /* else it has just ended */
			err = process_seen(w, pid, f.rows[i].text);
	}
	if (!err)
		err = jobs_name(w);
	for (size_t i = 0; i < w->ngroups && !err; i++)
		err = group_judge(w, &w->groups[i]);
	for (size_t i = 0; i < w->ngroups && !err; i++)
		straggler_judge(w, &w->groups[i]);
	for (size_t i = 0; i < d.n && !err; i++)
		err = process_judge(w, d.processes[i]);
	forget(w);
	findings_finish(&f);
	return err;
}

void watch_finish(struct watch *w)
{
	free(w->ranks);
	free(w->groups);
	free(w->processes);
	dumps_finish(&w->last);
	dumps_finish(&w->whole);
}

/* SPDX-License-Identifier: MIT */
/* What Shunt's processes of this host tell of their communicators. */
#include "tools/common/libc.h"
#include "tools/doctor/doctor.h"
#include "tools/ras/ras.h"

const char *const ras_ops[RAS_OPS] = { "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "AlltoAll",
	"Gather", "Scatter" };
enum { REMOTE_ERROR = 6 }; /* ncclRemoteError */

static int member_add(struct ras_members *m, const struct dump_comm *c)
{
	struct ras_member *more = realloc(m->at, (m->n + 1) * sizeof(*more)), *member;

	if (!more)
		return -ENOMEM;
	m->at = more;
	member = &more[m->n];
	*member = (struct ras_member){ .rank = c->rank,
		.nranks = c->nranks,
		.device = c->device,
		.pid = c->process->pid,
		.error = *c->error ? REMOTE_ERROR : 0,
		.counted = c->process->format >= 3,
		.aborted = !strcmp(c->error, "ECANCELED") || c->aborted };
	snprintf(member->key, sizeof(member->key), "%s", c->key);
	snprintf(member->host, sizeof(member->host), "%s", c->process->host);
	if (!*c->key || strlen(c->key) >= sizeof(member->key) || c->rank < 0 || c->rank >= c->nranks)
		return 0; /* not yet one of a job */
	/* Whoever made the calls; messages are not alike on all ranks. */
	for (size_t i = 0; i < c->ncounters; i++)
		for (int op = 0; op < RAS_OPS; op++)
			member->counts[op] += strcasecmp(c->counters[i].op, ras_ops[op]) ? 0 : c->counters[i].calls;
	m->n++;
	return 0;
}

static int by_key_and_rank(const void *a, const void *b)
{
	const struct ras_member *x = a, *y = b;
	int order = strcmp(x->key, y->key);

	return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

int ras_members_ask(struct ras_members *m, struct ask_process *processes, size_t n)
{
	struct dumps d = { 0 };
	size_t silent = 0;
	int err = 0;

	for (size_t i = 0; i < n; i++)
		if (processes[i].err == -ETIMEDOUT)
			ask_put_first(processes, i, &silent);
	free(m->at);
	*m = (struct ras_members){ 0 };
	ask_all(processes + silent, n - silent, "counters");
	/* Why a process does not answer is the doctor's subject; here its ranks are missing. */
	for (size_t i = silent; i < n && err != -ENOMEM; i++)
		if (processes[i].text)
			err = doctor_answer_add(&d, &processes[i], NULL, "");
	for (size_t p = 0; p < d.n && err != -ENOMEM; p++)
		for (size_t i = 0; i < d.processes[p]->ncomms && err != -ENOMEM; i++)
			err = member_add(m, &d.processes[p]->comms[i]);
	dumps_finish(&d);
	if (m->n)
		qsort(m->at, m->n, sizeof(*m->at), by_key_and_rank);
	return err == -ENOMEM ? err : 0;
}

bool ras_members_equal(const struct ras_members *a, const struct ras_members *b)
{
	bool equal = a->n == b->n;

	for (size_t i = 0; i < a->n && equal; i++)
		equal = !by_key_and_rank(&a->at[i], &b->at[i]) && a->at[i].pid == b->at[i].pid;
	return equal;
}

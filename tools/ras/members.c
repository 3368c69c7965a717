/* SPDX-License-Identifier: MIT */
/* What Shunt's processes of this host tell of their communicators. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/coll.h"
#include "base/json.h"
#include "tools/common/ask.h"
#include "tools/ras/ras.h"

const char *const ras_ops[RAS_OPS] = { "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "AlltoAll",
	"Gather", "Scatter" };
enum { REMOTE_ERROR = 6 }; /* ncclRemoteError */

static const char *text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

static int int_of(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	return json_is_integer(value) ? (int)json_integer_value(value) : -1;
}

/* The calls of a communicator by collective, whoever made them. Messages are not alike on all ranks. */
static void counts_read(const json_t *counters, struct ras_member *member)
{
	const json_t *row;
	size_t i;

	member->counted = json_is_array(counters);
	json_array_foreach(counters, i, row) for (int op = 0; op < RAS_OPS;
	    op++) if (!strcasecmp(text_of(row, "op"), ras_ops[op])) member->counts[op] +=
	    (uint64_t)json_integer_value(json_object_get(row, "calls"));
}

static int member_add(struct ras_members *m, const json_t *process, const json_t *comm)
{
	struct ras_member *more = realloc(m->at, (m->n + 1) * sizeof(*more)), *member;
	const char *error = text_of(comm, "error");

	if (!more)
		return -ENOMEM;
	m->at = more;
	member = &more[m->n];
	*member = (struct ras_member){ .rank = int_of(comm, "rank"),
		.nranks = int_of(comm, "nranks"),
		.device = int_of(comm, "device"),
		.pid = int_of(process, "pid"),
		.error = *error ? REMOTE_ERROR : 0,
		.aborted = !strcmp(error, "ECANCELED") || json_is_true(json_object_get(comm, "aborted")) };
	snprintf(member->key, sizeof(member->key), "%s", text_of(comm, "key"));
	snprintf(member->host, sizeof(member->host), "%s", text_of(process, "host"));
	if (!*member->key || strlen(text_of(comm, "key")) >= sizeof(member->key) || member->rank < 0 ||
	    member->rank >= member->nranks)
		return 0; /* not yet one of a job, or not a dump */
	counts_read(json_object_get(comm, "counters"), member);
	member->counted |= int_of(process, "shunt_dump") >= 3; /* one without calls tells none */
	m->n++;
	return 0;
}

/* Why one does not answer is the doctor's subject; here its ranks are missing. */
static int answer_read(struct ras_members *m, const struct ask_process *p)
{
	struct shunt_json_log log = { .source = "the process", .reason = (char[256]){ 0 }, .bytes = 256 };
	json_t *process = p->text ? shunt_json_parse(&log, p->text, p->bytes) : NULL;
	const json_t *comm;
	size_t i;
	int err = 0;

	json_array_foreach(json_object_get(process, "communicators"), i, comm) if (!err) err =
	    member_add(m, process, comm);
	json_decref(process);
	return err;
}

static int by_key_and_rank(const void *a, const void *b)
{
	const struct ras_member *x = a, *y = b;
	int order = strcmp(x->key, y->key);

	return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

int ras_members_ask(struct ras_members *m)
{
	struct ask_process *processes = NULL;
	size_t n = 0;
	int err = ask_find(&processes, &n);

	if (!err)
		ask_all(processes, n, "counters");
	for (size_t i = 0; i < n && !err; i++)
		err = answer_read(m, &processes[i]);
	ask_free(processes, n);
	if (m->n)
		qsort(m->at, m->n, sizeof(*m->at), by_key_and_rank);
	return err;
}

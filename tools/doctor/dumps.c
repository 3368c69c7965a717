/* SPDX-License-Identifier: MIT */
/* Dumps from files and processes: JSON into structs. Files are untrusted. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/doctor/doctor.h"

#define FORMAT 2
#define MAX_FILE (256u << 20)

static const char *json_text(json_t *o, const char *name)
{
	json_t *v = json_object_get(o, name);

	return json_is_string(v) ? json_string_value(v) : "";
}

static uint64_t json_number(json_t *o, const char *name)
{
	json_t *v = json_object_get(o, name);

	return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
}

static int json_int(json_t *o, const char *name, int otherwise)
{
	json_t *v = json_object_get(o, name);
	json_int_t n = json_is_integer(v) ? json_integer_value(v) : otherwise;

	return n < -1 || n > INT_MAX ? otherwise : (int)n;
}

static void op_read(json_t *o, struct dump_op *op)
{
	*op = (struct dump_op){
		.seq = json_number(o, "seq"),
		.number = json_number(o, "number"),
		.count = json_number(o, "count"),
		.time_ns = json_number(o, "time_ns"),
		.kind = json_text(o, "kind"),
		.dtype = json_text(o, "dtype"),
		.op = json_text(o, "op"),
		.path = json_text(o, "path"),
		.reason = json_text(o, "reason"),
		.stream = json_text(o, "stream"),
		.state = json_text(o, "state"),
		.root = json_int(o, "root", json_int(o, "peer", -1)),
		.captured = json_is_true(json_object_get(o, "captured")),
	};
	op->message = !strcmp(op->kind, "send") || !strcmp(op->kind, "recv");
}

static int by_number(const void *a, const void *b)
{
	const struct dump_op *x = a, *y = b;

	if (x->message != y->message)
		return x->message ? 1 : -1;
	return x->number != y->number ? (x->number < y->number ? -1 : 1) : 0;
}

static unsigned *counts_read(json_t *comm, const char *name, size_t n)
{
	json_t *array = json_object_get(comm, name);
	unsigned *counts = calloc(n + 1, sizeof(*counts));

	for (size_t i = 0; counts && i < n; i++) {
		json_int_t v = json_integer_value(json_array_get(array, i));

		counts[i] = v > 0 && v <= UINT_MAX ? (unsigned)v : 0;
	}
	return counts;
}

static int comm_read(const struct dump_process *p, json_t *o, struct dump_comm *c)
{
	json_t *ops = json_object_get(o, "operations"), *progress = json_object_get(o, "progress"),
	       *fault = json_object_get(o, "fault");

	*c = (struct dump_comm){
		.process = p,
		.id = json_text(o, "id"),
		.key = json_text(o, "key"),
		.state = json_text(o, "state"),
		.reason = json_text(o, "reason"),
		.error = json_text(o, "error"),
		.phase = json_text(o, "phase"),
		.rank = json_int(o, "rank", -1),
		.nranks = json_int(o, "nranks", -1),
		.phase_time_ns = json_number(o, "phase_time_ns"),
		.calls = json_number(o, "calls"),
		.collectives = json_number(o, "collectives"),
		.replays = json_number(progress, "replays"),
		.last = json_number(progress, "last"),
		.has_progress = json_is_object(progress),
		.silent = json_is_true(json_object_get(o, "unresponsive")),
		.running = json_is_true(json_object_get(progress, "running")),
		.last_captured = json_is_true(json_object_get(progress, "captured")),
		.fault_peer = json_int(fault, "peer", -1),
		.fault_op = json_number(fault, "op"),
		.fault_peer_call = json_text(fault, "theirs"),
		.nops = json_array_size(ops),
		.npeers = json_array_size(json_object_get(o, "sends")),
	};
	c->ops = calloc(c->nops + 1, sizeof(*c->ops));
	c->sends = counts_read(o, "sends", c->npeers);
	c->receives = counts_read(o, "receives", c->npeers);
	if (!c->ops || !c->sends || !c->receives)
		return -ENOMEM;
	for (size_t i = 0; i < c->nops; i++)
		op_read(json_array_get(ops, i), &c->ops[i]);
	qsort(c->ops, c->nops, sizeof(*c->ops), by_number);
	while (c->ncollectives < c->nops && !c->ops[c->ncollectives].message)
		c->ncollectives++;
	return 0;
}

static void process_free(struct dump_process *p)
{
	for (size_t i = 0; i < p->ncomms; i++) {
		free(p->comms[i].ops);
		free(p->comms[i].sends);
		free(p->comms[i].receives);
	}
	free(p->comms);
	free(p->file);
	json_decref(p->json);
	free(p);
}

int dumps_add(struct dumps *d, json_t *json, const char *name)
{
	json_t *comms = json_object_get(json, "communicators");
	struct dump_process *p, **all;

	if (!json_is_integer(json_object_get(json, "shunt_dump")) || !json_is_array(comms)) {
		tool_error("%s is not a dump of Shunt", name);
		json_decref(json);
		return -EINVAL;
	}
	if (json_int(json, "shunt_dump", 0) != FORMAT) {
		tool_error("%s is a dump of another version (%s) of Shunt; use that version's shunt doctor", name,
		    json_text(json, "version"));
		json_decref(json);
		return -EINVAL;
	}
	p = calloc(1, sizeof(*p));
	if (!p) {
		json_decref(json);
		return -ENOMEM;
	}
	*p = (struct dump_process){ .json = json,
		.file = strdup(name),
		.host = json_text(json, "host"),
		.program = json_text(json, "program"),
		.reason = json_text(json, "reason"),
		.pid = json_int(json, "pid", 0),
		.pid_namespace = json_number(json, "pid_namespace"),
		.time_ns = json_number(json, "time_ns") };
	p->comms = calloc(json_array_size(comms) + 1, sizeof(*p->comms));
	if (!p->file || !p->comms)
		goto err_free;
	for (size_t i = 0; i < json_array_size(comms); i++) {
		p->ncomms++;
		if (comm_read(p, json_array_get(comms, i), &p->comms[i]))
			goto err_free;
	}
	for (size_t i = 0; i < d->n; i++) {
		struct dump_process *old = d->processes[i];

		if (old->pid != p->pid || old->pid_namespace != p->pid_namespace || strcmp(old->host, p->host))
			continue;
		d->processes[i] = old->time_ns < p->time_ns ? p : old;
		process_free(old->time_ns < p->time_ns ? old : p);
		return 0;
	}
	all = realloc(d->processes, (d->n + 1) * sizeof(*all));
	if (!all)
		goto err_free;
	d->processes = all;
	d->processes[d->n++] = p;
	return 0;
err_free:
	process_free(p);
	return -ENOMEM;
}

static int dump_file_add(struct dumps *d, const char *path)
{
	json_error_t reason;
	struct stat st;
	json_t *json;

	if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size > MAX_FILE) {
		tool_error("%s: %s", path,
		    stat(path, &st)          ? strerror(errno) :
		        !S_ISREG(st.st_mode) ? "not a file" :
		                               "too large for a dump");
		return -EINVAL;
	}
	json = json_load_file(path, JSON_REJECT_DUPLICATES, &reason);
	if (!json) {
		tool_error("%s, line %d: %s", path, reason.line, reason.text);
		return -EINVAL;
	}
	return dumps_add(d, json, path);
}

static int is_dump(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);

	return !strncmp(entry->d_name, "shunt-", 6) && n > 5 && !strcmp(entry->d_name + n - 5, ".json");
}

/* A file that cannot be used must not cost the others. */
static int dump_directory_add(struct findings *f, struct dumps *d, const char *path)
{
	struct dirent **entries;
	char file[PATH_MAX];
	int n = scandir(path, &entries, is_dump, alphasort), good = 0;

	if (n < 0) {
		tool_error("%s: %s", path, strerror(errno));
		return -EINVAL;
	}
	if (!n)
		tool_error("there are no dumps (shunt-*.json) in %s", path);
	for (int i = 0; i < n; i++) {
		snprintf(file, sizeof(file), "%.*s/%s", (int)sizeof(file) - 300, path, entries[i]->d_name);
		if (!dump_file_add(d, file))
			good++;
		else
			finding_add(
			    f, FINDING_WARN, "dumps", "", "%s is left out: it is no dump that can be read", file);
		free(entries[i]);
	}
	free(entries);
	return good ? 0 : -ENOENT;
}

int dumps_add_path(struct findings *f, struct dumps *d, const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISDIR(st.st_mode) ? dump_directory_add(f, d, path) : dump_file_add(d, path);
}

void dumps_finish(struct dumps *d)
{
	for (size_t i = 0; i < d->n; i++)
		process_free(d->processes[i]);
	free(d->processes);
	*d = (struct dumps){ 0 };
}

/* SPDX-License-Identifier: MIT */
/* Dumps from files and processes: JSON into structs. Files are untrusted. */
#include "tools/common/libc.h"
#include "base/dump_schema.h"
#include "tools/doctor/doctor.h"

static void op_read(const json_t *o, struct dump_op *op)
{
	*op = (struct dump_op){
		.seq = shunt_dump_read_op_seq(o),
		.number = shunt_dump_read_op_number(o),
		.count = shunt_dump_read_op_count(o),
		.time_ns = shunt_dump_read_op_time_ns(o),
		.kind = shunt_dump_read_op_kind(o),
		.dtype = shunt_dump_read_op_dtype(o),
		.op = shunt_dump_read_op_op(o),
		.path = shunt_dump_read_op_path(o),
		.reason = shunt_dump_read_op_reason(o),
		.stream = shunt_dump_read_op_stream(o),
		.state = shunt_dump_read_op_state(o),
		.root = shunt_dump_read_op_root(o),
		.captured = shunt_dump_read_op_captured(o),
	};
	op->message = !strcmp(op->kind, "send") || !strcmp(op->kind, "recv");
	if (op->message)
		op->root = shunt_dump_read_op_peer(o);
}

static int by_number(const void *a, const void *b)
{
	const struct dump_op *x = a, *y = b;

	if (x->message != y->message)
		return x->message ? 1 : -1;
	return x->number != y->number ? (x->number < y->number ? -1 : 1) : 0;
}

static unsigned *counts_read(const json_t *array, size_t n)
{
	unsigned *counts = calloc(n + 1, sizeof(*counts));

	for (size_t i = 0; counts && i < n; i++) {
		uint64_t v = shunt_json_uint_of(json_array_get(array, i));

		counts[i] = v <= UINT_MAX ? (unsigned)v : 0;
	}
	return counts;
}

static int waits_read(const json_t *array, struct dump_comm *c)
{
	c->nwaits = json_array_size(array);
	c->waits = calloc(c->nwaits + 1, sizeof(*c->waits));
	for (size_t i = 0; c->waits && i < c->nwaits; i++)
		c->waits[i] = shunt_json_uint_of(json_array_get(array, i));
	return c->waits ? 0 : -ENOMEM;
}

static int counters_read(const json_t *rows, struct dump_comm *c)
{
	c->ncounters = json_array_size(rows);
	c->counters = calloc(c->ncounters + 1, sizeof(*c->counters));
	for (size_t i = 0; c->counters && i < c->ncounters; i++) {
		const json_t *o = json_array_get(rows, i);

		c->counters[i] = (struct dump_counter){ shunt_dump_read_counter_op(o), shunt_dump_read_counter_path(o),
			shunt_dump_read_counter_reason(o), shunt_dump_read_counter_calls(o),
			shunt_dump_read_counter_bytes(o) };
	}
	return c->counters ? 0 : -ENOMEM;
}

static int comm_read(const struct dump_process *p, const json_t *o, struct dump_comm *c)
{
	const json_t *ops = shunt_dump_read_comm_operations(o), *progress = shunt_dump_read_comm_progress(o),
	             *fault = shunt_dump_read_comm_fault(o);

	*c = (struct dump_comm){
		.process = p,
		.id = shunt_dump_read_comm_id(o),
		.key = shunt_dump_read_comm_key(o),
		.state = shunt_dump_read_comm_state(o),
		.reason = shunt_dump_read_comm_reason(o),
		.error = shunt_dump_read_comm_error(o),
		.phase = shunt_dump_read_comm_phase(o),
		.rank = shunt_dump_read_comm_rank(o),
		.nranks = shunt_dump_read_comm_nranks(o),
		.device = shunt_dump_read_comm_device(o),
		.aborted = shunt_dump_read_comm_aborted(o),
		.phase_time_ns = shunt_dump_read_comm_phase_time_ns(o),
		.calls = shunt_dump_read_comm_calls(o),
		.collectives = shunt_dump_read_comm_collectives(o),
		.replays = shunt_dump_read_progress_replays(progress),
		.last = shunt_dump_read_progress_last(progress),
		.has_progress = progress != NULL,
		.silent = shunt_dump_read_comm_unresponsive(o),
		.running = shunt_dump_read_progress_running(progress),
		.last_captured = shunt_dump_read_progress_captured(progress),
		.nccl_finished = shunt_dump_read_nccl_finished(shunt_dump_read_comm_nccl(o)),
		.fault_peer = shunt_dump_read_fault_peer(fault),
		.fault_op = shunt_dump_read_fault_op(fault),
		.fault_peer_call = shunt_dump_read_fault_theirs(fault),
		.nops = json_array_size(ops),
		.npeers = json_array_size(shunt_dump_read_comm_sends(o)),
	};
	c->ops = calloc(c->nops + 1, sizeof(*c->ops));
	c->sends = counts_read(shunt_dump_read_comm_sends(o), c->npeers);
	c->receives = counts_read(shunt_dump_read_comm_receives(o), c->npeers);
	if (!c->ops || !c->sends || !c->receives || counters_read(shunt_dump_read_comm_counters(o), c) ||
	    waits_read(shunt_dump_read_comm_waits_ns(o), c))
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
		free(p->comms[i].counters);
		free(p->comms[i].waits);
	}
	free(p->comms);
	free(p->threads);
	free(p->file);
	json_decref(p->json);
	free(p);
}

int dumps_add(struct dumps *d, const char *name, const char *text, size_t bytes)
{
	char reason[512];
	struct shunt_json_log log = { .source = name, .reason = reason, .bytes = sizeof(reason) };
	json_t *json = shunt_json_parse(&log, text, bytes);

	if (json)
		return dumps_add_json(d, &log, json);
	tool_error("%s", reason);
	return -log.err;
}

int dumps_add_json(struct dumps *d, struct shunt_json_log *log, json_t *json)
{
	const json_t *comms;
	struct dump_process *p, **all;

	if (!shunt_dump_check(log, json)) {
		tool_error("%s", log->reason);
		json_decref(json);
		return -log->err;
	}
	comms = shunt_dump_read_process_communicators(json);
	p = calloc(1, sizeof(*p));
	if (!p) {
		json_decref(json);
		return -ENOMEM;
	}
	*p = (struct dump_process){ .json = json,
		.file = strdup(log->source),
		.host = shunt_dump_read_process_host(json),
		.program = shunt_dump_read_process_program(json),
		.reason = shunt_dump_read_process_reason(json),
		.pid = (int)shunt_dump_read_process_pid(json),
		.format = (unsigned)shunt_dump_read_process_shunt_dump(json),
		.pid_namespace = shunt_dump_read_process_pid_namespace(json),
		.time_ns = shunt_dump_read_process_time_ns(json) };
	p->comms = calloc(json_array_size(comms) + 1, sizeof(*p->comms));
	p->nthreads = json_array_size(shunt_dump_read_process_threads(json));
	p->threads = calloc(p->nthreads + 1, sizeof(*p->threads));
	if (!p->file || !p->comms || !p->threads)
		goto err_free;
	for (size_t i = 0; i < p->nthreads; i++) {
		const json_t *t = json_array_get(shunt_dump_read_process_threads(json), i);

		p->threads[i] = (struct dump_thread){ shunt_dump_read_thread_function(t), shunt_dump_read_thread_key(t),
			shunt_dump_read_thread_seq(t), shunt_dump_read_thread_since_ns(t) };
	}
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
	char reason[512], *text;
	struct shunt_json_log log = { .source = path, .reason = reason, .bytes = sizeof(reason) };
	size_t bytes;
	int err = shunt_json_file(&log, path, ASK_MAX_BYTES, &text, &bytes);

	if (err) {
		tool_error("%s", reason);
		return err;
	}
	err = dumps_add(d, path, text, bytes);
	free(text);
	return err;
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

/* ---- the table of fields */

static void fields_print(enum shunt_dump_object object, const char *place)
{
	static const char *const types[] = { [SHUNT_DUMP_UINT] = "number",
		[SHUNT_DUMP_INT] = "number, or -1",
		[SHUNT_DUMP_BOOL] = "bool",
		[SHUNT_DUMP_TEXT] = "text",
		[SHUNT_DUMP_UINTS] = "numbers",
		[SHUNT_DUMP_OBJECT] = "object",
		[SHUNT_DUMP_OBJECTS] = "objects" };

	for (const struct shunt_dump_field *f = shunt_dump_fields; f->name; f++) {
		char path[128];

		if (f->object != object)
			continue;
		printf("| `%s%s` | %s%s | %u | %s |\n", place, f->name, types[f->type], f->always ? "" : ", or none",
		    f->since, f->meaning);
		snprintf(path, sizeof(path), "%.60s%s%s.", place, f->name, f->type == SHUNT_DUMP_OBJECTS ? "[]" : "");
		if (f->type == SHUNT_DUMP_OBJECT || f->type == SHUNT_DUMP_OBJECTS)
			fields_print(shunt_dump_object_of(f), path);
	}
}

void dumps_fields_print(void)
{
	puts("| field | type | since | meaning |\n|---|---|---|---|");
	fields_print(SHUNT_DUMP_process, "");
}

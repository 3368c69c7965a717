/* SPDX-License-Identifier: MIT */
/*
 * Any text as what the doctor, the watcher and `shunt ras` get from others: a process's answer, a line of `shunt doctor
 * job --answers`, an answer of NCCL's RAS, or a line of /proc/net/unix. It is refused, or read and compared with what
 * was there before. For libFuzzer, and for fuzz_drive.c.
 */
#include "shunt/shunt.h"
#include "tests/support/fuzz_try.h"
#include "tools/common/ask.c"
#include "tools/common/where.h"
#include "tools/doctor/job_hosts.c"
#include "tools/ras/ras.h"

static void require_printable(const char *text)
{
	for (; *text; text++)
		require((unsigned char)*text >= ' ' && *text != 0x7f, "a text that a terminal would obey");
}

/* ---- what the command has beside */

void tool_error(const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	require(*text, "refused without a reason");
}

/* Nothing here starts ranks, or reads options. */
#define NEVER(type, name, ...) \
	type name(__VA_ARGS__) \
	{ \
		abort(); \
	}
NEVER(int, tool_usage_error, const char *fmt, ...)
NEVER(const char *, shunt_build, void)
NEVER(json_t *, tool_where_json, const char *build, const struct tool_lib *lib, bool with_host)
NEVER(int, options_parse, const struct option_table *table, void *opts, int argc, char **argv, int *first_p)
NEVER(void, options_text_print, const char *left, const char *text, int column, FILE *out)
NEVER(int, ranks_option_worker, void *opts, const struct option_row *row, const char *text)
NEVER(void, ranks_progress_set, struct ranks_progress *p, enum ranks_stage stage, int lib, int way)
NEVER(int, ranks_detect, const struct ranks_opts *o, struct ranks_launch *l)
NEVER(int, ranks_run, const struct ranks_opts *o, int argc, char **argv)
NEVER(int, ranks_slots_run, const struct ranks_opts *o, int (*run)(const void *, const struct ranks_slot *),
    const void *arg)
NEVER(int, ranks_join, struct ranks_shared *own, int fd, int rank, unsigned timeout_s, struct ranks **ranks_p)
NEVER(int, tool_file_replace, struct tool_file *f, const char *path)
NEVER(int, tool_file_end, struct tool_file *f, int err)
NEVER(int, ranks_barrier, struct ranks *ranks)
NEVER(int, ranks_allgather, struct ranks *ranks, const void *mine, size_t bytes, void *all)
NEVER(void, ranks_leave, struct ranks *ranks)

/* ---- the texts */

static int try_line(const char *text)
{
	struct ask_process p;

	if (!line_read(text, &p))
		return -EINVAL;
	require(p.fd == -1 && !p.text && (!geteuid() || p.uid == geteuid()), "a process that is none of this user's");
	return 0;
}

static int try_ras(const char *text, size_t bytes)
{
	struct ras_member rows[] = { { .key = "aa01", .nranks = 2, .pid = 11, .counted = true },
		{ .key = "aa01", .rank = 1, .nranks = 2, .device = 1, .pid = 12, .counted = true } };
	struct ras_members m = { rows, 2 };
	char reason[512], *repaired = ras_repair(text, bytes);
	struct shunt_json_log log = { .source = "fuzz", .reason = reason, .bytes = sizeof(reason) };
	json_t *root;
	int err;

	require(repaired && strlen(repaired) <= 2 * bytes, "a repair that is too long");
	root = shunt_json_parse(&log, repaired, strlen(repaired));
	err = root ? ras_merge(root, &m) : -EINVAL;
	for (size_t i = 0; !err && i < json_array_size(json_object_get(root, "communicators")); i++) {
		const json_t *shunt =
		    json_object_get(json_array_get(json_object_get(root, "communicators"), i), "shunt");

		require(json_is_true(json_object_get(shunt, "merged")) == !json_object_get(shunt, "reason"),
		    "neither merged nor told why not");
	}
	json_decref(root);
	free(repaired);
	return err;
}

static int try_dumps(const char *text, size_t bytes)
{
	struct findings f = { 0 };
	struct look look = { .f = &f };
	size_t *job = NULL;
	int err = strstr(text, "\"looks\"") ? look_read(&look, "fuzz", text, bytes) :
	                                      dumps_add(&look.now, "fuzz", text, bytes);

	if (!err) {
		doctor_moved_mark(&look.now, &look.before);
		doctor_hangs(&f, &look.now);
		job = calloc(look.now.n + 1, sizeof(*job));
		doctor_jobs_find(&look.now, job);
		for (size_t i = 0; i < look.now.n; i++)
			require(job[i] <= i && job[job[i]] == job[i], "a job without a first process");
	}
	for (size_t i = 0; i < f.n; i++) {
		require_printable(f.rows[i].text);
		require_printable(f.rows[i].advice);
	}
	free(job);
	findings_finish(&f);
	dumps_finish(&look.before);
	dumps_finish(&look.now);
	return err;
}

int fuzz_try(const void *text, size_t bytes)
{
	char *copy = strndup(text, bytes);
	int err;

	require(copy, "memory");
	err = strstr(copy, " @") && *copy != '{' ? try_line(copy) :
	    strstr(copy, "\"nccl_version\"")     ? try_ras(copy, strlen(copy)) :
	                                           try_dumps(copy, strlen(copy));
	free(copy);
	return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	fuzz_try(data, bytes);
	return 0;
}

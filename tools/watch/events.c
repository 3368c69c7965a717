/* SPDX-License-Identifier: MIT */
/* Events: lines of JSON in a file, lines for the user, and commands. */
#include "tools/common/libc.h"
#include "base/io.h"
#include "base/json.h"
#include "tools/watch/watch.h"

#define COMMAND_MS 60000
#define SAY_AGAIN_MS 60000

static const char *const names[] = { [EVENT_START] = "start",
	[EVENT_END] = "end",
	[EVENT_COMMUNICATOR] = "communicator",
	[EVENT_BROKEN] = "broken",
	[EVENT_HANG] = "hang",
	[EVENT_MOVED] = "moved",
	[EVENT_MISMATCH] = "mismatch",
	[EVENT_GONE] = "gone",
	[EVENT_STRAGGLER] = "straggler" };

static enum finding_level level_of(enum watch_event event)
{
	return event == EVENT_HANG || event == EVENT_BROKEN || event == EVENT_MISMATCH ? FINDING_ERROR :
	    event == EVENT_GONE || event == EVENT_STRAGGLER                            ? FINDING_WARN :
	                                                                                 FINDING_INFO;
}

static void put_ranks(struct shunt_json_writer *w, const char *key, const bool *marks, int n)
{
	if (!marks)
		return;
	shunt_json_write_array(w, key);
	for (int r = 0; r < n; r++)
		if (marks[r])
			shunt_json_write_int(w, NULL, r);
	shunt_json_write_array_end(w);
}

/* The first rank's call that waits. */
static void put_operation(struct shunt_json_writer *w, const struct watch *watch, const struct watch_group *g)
{
	for (size_t i = 0; i < watch->nranks; i++) {
		const struct watch_rank *r = &watch->ranks[i];
		const struct dump_op *op = r->here && !strcmp(r->key, g->key) ? watch_unfinished(r->now) : NULL;
		char text[32];
		time_t since;
		struct tm tm;

		if (!op)
			continue;
		shunt_json_write_object(w, "operation");
		shunt_json_write_uint(w, "number", op->number);
		shunt_json_write_text(w, "kind", op->kind);
		shunt_json_write_uint(w, "count", op->count);
		shunt_json_write_text(w, "dtype", op->dtype);
		shunt_json_write_object_end(w);
		since = (time_t)(op->time_ns / 1000000000u);
		strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&since, &tm));
		shunt_json_write_text(w, "since", text);
		return;
	}
}

static char *line_make(struct watch *watch, enum watch_event event, const struct watch_group *g, const char *where,
    const bool *behind, const bool *waiting, const char *text, size_t *bytes_p)
{
	static const char *const levels[] = { "ok", "info", "warning", "error" };
	char time_text[64], host[256] = "", *line = NULL;
	struct shunt_json_writer w = { .out = open_memstream(&line, bytes_p) };
	struct timespec now;
	struct tm tm;

	if (!w.out)
		return NULL;
	clock_gettime(CLOCK_REALTIME, &now);
	strftime(time_text, sizeof(time_text), "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
	snprintf(time_text + 19, sizeof(time_text) - 19, ".%03dZ", (int)(now.tv_nsec / 1000000));
	gethostname(host, sizeof(host) - 1);
	shunt_json_write_object(&w, NULL);
	shunt_json_write_text(&w, "time", time_text);
	shunt_json_write_text(&w, "event", names[event]);
	shunt_json_write_text(&w, "level", levels[level_of(event)]);
	if (where)
		shunt_json_write_text(&w, "where", where);
	if (g) {
		shunt_json_write_text(&w, "job", g->job);
		shunt_json_write_text(&w, "communicator", g->key);
		shunt_json_write_text(&w, "id", g->id);
		shunt_json_write_int(&w, "ranks", g->nranks);
		if (event == EVENT_HANG)
			put_operation(&w, watch, g);
		put_ranks(&w, "behind", behind, g->nranks);
		put_ranks(&w, "waiting", waiting, g->nranks);
	}
	shunt_json_write_text(&w, "host", host);
	shunt_json_write_text(&w, "text", text);
	shunt_json_write_object_end(&w);
	if (fclose(w.out)) {
		free(line);
		return NULL;
	}
	return line;
}

/* 0 or -errno. Readers see whole lines: each is one write. */
static int line_add(const char *path, const char *line, size_t bytes)
{
	int fd = !strcmp(path, "-") ?
	    STDOUT_FILENO :
	    open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	ssize_t n;
	int err;

	if (fd < 0)
		return -errno;
	n = write(fd, line, bytes);
	err = n == (ssize_t)bytes ? 0 : n < 0 ? -errno : -ENOSPC;
	if (fd != STDOUT_FILENO)
		close(fd);
	return err;
}

/* The command gets the line on its input, and a minute. */
static void command_run(const char *command, const char *line, size_t bytes)
{
	int64_t deadline = shunt_now_ms() + COMMAND_MS;
	int in = memfd_create("event", MFD_CLOEXEC), status;
	pid_t pid;

	if (in < 0 || write(in, line, bytes) != (ssize_t)bytes || lseek(in, 0, SEEK_SET)) {
		tool_error("exec: the command gets no event: %s", strerror(errno));
		goto out;
	}
	pid = fork();
	if (!pid) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		setpgid(0, 0);
		dup2(in, STDIN_FILENO);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	while (pid > 0 && waitpid(pid, &status, WNOHANG) == 0) {
		if (shunt_now_ms() >= deadline) {
			tool_error("exec: the command is not done after %d s, and is killed", COMMAND_MS / 1000);
			kill(-pid, SIGKILL);
			waitpid(pid, &status, 0);
			break;
		}
		poll(NULL, 0, 20);
	}
	if (pid < 0)
		tool_error("exec: the command cannot be started: %s", strerror(errno));
out:
	if (in >= 0)
		close(in);
}

void watch_event(struct watch *w, enum watch_event event, const struct watch_group *g, const char *where,
    const bool *behind, const bool *waiting, const char *text)
{
	size_t bytes = 0;
	char *line;
	int err = 0;

	if (w->o->silent)
		return;
	line = line_make(w, event, g, where, behind, waiting, text, &bytes);
	if (line && w->o->events)
		err = line_add(w->o->events, line, bytes);
	if (err && (!w->events_said_ms || shunt_now_ms() - w->events_said_ms >= SAY_AGAIN_MS)) {
		tool_error("cannot write %s: %s; events are lost", w->o->events, strerror(-err));
		w->events_said_ms = shunt_now_ms();
	}
	if (level_of(event) >= FINDING_WARN || event == EVENT_MOVED) {
		if (g)
			tool_error("%s: communicator %s of %d: %s", names[event], g->id, g->nranks, text);
		else
			tool_error("%s: %s", names[event], text);
	}
	if (line && event == EVENT_HANG && w->o->on_hang == WATCH_EXEC)
		command_run(w->o->command, line, bytes);
	free(line);
}

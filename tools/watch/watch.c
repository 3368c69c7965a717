/* SPDX-License-Identifier: MIT */
/* shunt watch: looks at this host's jobs from time to time, and reports what hangs. */
#include <sys/signalfd.h>
#include "tools/common/libc.h"
#include "base/io.h"
#include "tools/watch/watch.h"

int watch_on_hang_apply(void *opts, const struct option_row *row, const char *text)
{
	static const char *const words[] = { "report", "dump", "exit" };
	struct watch_opts *o = opts;

	for (int i = 0; i < 3; i++)
		if (!strcmp(text, words[i])) {
			if (i == WATCH_EXIT && row->low)
				return tool_refuse(-EINVAL, text,
				    "exit ends what `shunt run --watch` started; here "
				    "it is report, dump or exec:COMMAND");
			o->on_hang = i;
			return 0;
		}
	if (strncmp(text, "exec:", 5) || !text[5])
		return tool_refuse(-EINVAL, text, "\"%.64s\" is none of report, dump%s and exec:COMMAND", text,
		    row->low ? "" : ", exit");
	o->on_hang = WATCH_EXEC;
	o->command = text + 5;
	return 0;
}

int watch_seconds_apply(void *opts, const struct option_row *row, const char *text)
{
	char *end;
	double value = strtod(text, &end);

	value *= !strcmp(end, "m") ? 60 : !strcmp(end, "h") ? 3600 : 1;
	if (end == text || (*end && strcmp(end, "s") && strcmp(end, "m") && strcmp(end, "h")) ||
	    !(value >= 0.1 && value <= 1e6))
		return tool_refuse(-EINVAL, text, "\"%.64s\" is no time, such as 30s, 10m or 2h", text);
	memcpy((char *)opts + row->at, &value, sizeof(value));
	return 0;
}

/* True: a signal has come that ends the watcher. */
static bool pause_until(int signals, int listener, const struct watch *w, int64_t deadline)
{
	struct pollfd p[2] = { { .fd = signals, .events = POLLIN }, { .fd = listener, .events = POLLIN } };
	int64_t now;

	while ((now = shunt_now_ms()) < deadline) {
		if (poll(p, 2, (int)(deadline - now)) < 0 && errno != EINTR)
			return true;
		if (p[0].revents)
			return true;
		if (p[1].revents & POLLIN)
			listen_answer(listener, w);
	}
	return false;
}

int watch_run(const struct watch_opts *o, int notify)
{
	struct watch w = { .o = o };
	int signals, listener = -1, status = TOOL_OK;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (o->listen && (listener = listen_open(o->listen)) < 0)
		return TOOL_USAGE;
	for (bool ends = signals < 0; !ends;) {
		int64_t deadline = shunt_now_ms() + (int64_t)(o->every_s * 1000);
		int err = watch_look(&w);

		if (err) {
			tool_error("cannot look: %s", strerror(-err));
			status = TOOL_FAIL;
			break;
		}
		metrics_write(&w);
		if (w.hung && notify >= 0 && write(notify, "h", 1) != 1)
			break;
		ends = pause_until(signals, listener, &w, deadline);
	}
	metrics_remove(&w);
	watch_finish(&w);
	if (listener >= 0)
		close(listener);
	close(signals);
	return status;
}

static const struct option_row rows[] = {
	WATCH_OPTIONS("", 1),
	WATCH_OPTION_BELOW,
	WATCH_OPTION_NAMESPACES,
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt watch [--every TIME] [--hang TIME] [--on-hang WHAT] [--straggler PERCENT] [--events FILE]\n"
	"                   [--prometheus DIR] [--listen ADDRESS] [--below PID] [--namespaces]\n\n"
	"Looks at all processes of this user on this host that run Shunt (root: of all users), until a signal ends it, "
	"and says what\n"
	"hangs. The processes never notice. Lines for the user go to standard error.\n\n",
	rows,
	"Exit status: 0 after SIGTERM, SIGINT or SIGHUP; 1 it could not look; 2 a wrong option.\n",
};

static int watch_main(int argc, char **argv)
{
	struct watch_opts o = WATCH_OPTS;
	int first, status = options_parse(&options, &o, argc, argv, &first);

	if (status >= 0)
		return status;
	if (first < argc)
		return tool_usage_error("it takes no \"%s\"; `shunt run --watch` runs a program", argv[first]);
	return watch_run(&o, -1);
}

const struct tool_cmd tool_cmd_watch = {
	.name = "watch", .summary = "say what hangs, for as long as jobs run", .options = &options, .run = watch_main
};

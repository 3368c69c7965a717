/* SPDX-License-Identifier: MIT */
/* shunt top: a table of this host's communicators. */
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include "tools/common/libc.h"
#include "base/io.h"
#include "tools/watch/watch.h"

struct top_opts {
	struct watch_opts watch;
	bool once;
};
static const struct option_row rows[] = {
	{ "once", 0, OPTION_FLAG, .at = offsetof(struct top_opts, once), .help = "print one table, of two looks" },
	{ "every", 0, OPTION_CALL, "TIME", offsetof(struct watch_opts, every_s), .call = watch_seconds_apply,
	    .help = "time between two looks (1s)" },
	WATCH_OPTION_BELOW,
	WATCH_OPTION_NAMESPACES,
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt top [--once] [--every TIME] [--below PID] [--namespaces]\n\n"
	"Shows what the communicators of this user's processes on this host do (root: of all users'). q ends it.\n\n",
	rows,
	"waited for: the rank that kernels of another one wait for most, and in how much of the time since the look "
	"before.\nTwoshot, LL128, Simple and NCCL's kernels do not tell for whom they wait.\n"
	"NO_COLOR: no colors. Exit status: 0, or 1 if it could not look.\n",
};

static unsigned columns(void)
{
	struct winsize size = { 0 };
	const char *variable = getenv("COLUMNS");
	unsigned n;

	if (variable && !tool_parse_uint(variable, 20, 1000, &n))
		return n;
	return !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : 118;
}

/* A line of at most the terminal's width, in which nothing obeys control characters. */
static void line_print(bool marked, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line_print(bool marked, const char *fmt, ...)
{
	const char *no_color = getenv("NO_COLOR");
	bool color = marked && isatty(STDOUT_FILENO) && (!no_color || !*no_color);
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	tool_printable(text, "");
	printf("%s%.*s%s\n", color ? "\033[1;31m" : "", (int)columns(), text, color ? "\033[0m" : "");
}

struct sum {
	uint64_t calls, nccl, bytes;
	int here, behind, unfinished; /* ranks, -1: none. unfinished: NCCL has not finished on it */
	struct dump_wait waited;
	const struct dump_comm *first;
};

static struct sum sum_of(const struct watch *w, const struct watch_group *g)
{
	struct sum s = { .behind = -1, .unfinished = -1, .waited = { .rank = -1 } };
	uint64_t least = UINT64_MAX, most = 0;

	for (size_t i = 0; i < w->nranks; i++) {
		const struct watch_rank *r = &w->ranks[i];
		const struct dump_op *op;

		if (strcmp(r->key, g->key))
			continue;
		op = watch_unfinished(r->now);
		if (op && !strcmp(op->path, "nccl") && (s.unfinished < 0 || r->rank < s.unfinished))
			s.unfinished = r->rank;
		s.here++;
		s.calls = r->fresh_calls > s.calls ? r->fresh_calls : s.calls;
		s.nccl = r->fresh_nccl > s.nccl ? r->fresh_nccl : s.nccl;
		s.bytes = r->fresh_bytes > s.bytes ? r->fresh_bytes : s.bytes;
		if (r->now->waited.rank >= 0 && (s.waited.rank < 0 || r->now->waited.percent > s.waited.percent))
			s.waited = r->now->waited;
		if (!s.first || r->rank < s.first->rank)
			s.first = r->now;
		most = r->now->collectives > most ? r->now->collectives : most;
		if (r->now->collectives < least) {
			least = r->now->collectives;
			s.behind = r->rank;
		}
	}
	if (least == most)
		s.behind = -1;
	return s;
}

static void group_print(const struct watch *w, const struct watch_group *g, bool narrow)
{
	struct sum s = sum_of(w, g);
	double seconds = (double)(w->look_ms - w->before_ms) / 1000;
	uint64_t number = s.first ? s.first->collectives : 0;
	char state[128], share[16] = "-", waited[32] = "-";
	bool stands = g->waits && g->moved_ms < w->look_ms && !s.calls;
	const char *does = g->broken ? "broken" : stands ? "stands" : g->waits || s.calls ? "runs" : "idle";

	if (s.calls)
		snprintf(share, sizeof(share), "%u %%", (unsigned)(100 - 100 * s.nccl / s.calls));
	if (s.waited.rank >= 0)
		snprintf(waited, sizeof(waited), "rank %d: %u %%", s.waited.rank, s.waited.percent);
	if (s.here < g->nranks)
		snprintf(state, sizeof(state), "%s, %d of %d ranks here", does, s.here, g->nranks);
	else if (stands && s.behind >= 0)
		snprintf(state, sizeof(state), "stands; rank %d is behind", s.behind);
	else if (stands && s.unfinished >= 0)
		snprintf(state, sizeof(state), "stands; NCCL has not finished on rank %d", s.unfinished);
	else
		snprintf(state, sizeof(state), "%s", does);
	if (narrow)
		line_print(stands || g->broken, "%-8.8s %5d  %s", g->id, g->nranks, state);
	else
		line_print(stands || g->broken, " %-12.8s %5d %9.0f %7.0f %6s  collective %-10llu %-14s %s", g->id,
		    g->nranks, (double)s.calls / seconds, (double)s.bytes / seconds / 1e6, share,
		    (unsigned long long)number, waited, state);
}

static void table_print(const struct watch *w)
{
	bool narrow = columns() < 90;

	if (!w->ngroups)
		line_print(false, "no process of this user on this host runs Shunt, or none has made a communicator");
	for (size_t i = 0; i < w->ngroups; i++) {
		const struct watch_group *lead = &w->groups[i];
		struct sum s = sum_of(w, lead);

		if (strcmp(lead->job, lead->key))
			continue;
		line_print(false, "job %.8s: %d ranks, %d here, %.200s", lead->id, lead->nranks, s.here,
		    s.first ? s.first->process->program : "");
		if (narrow)
			line_print(false, "%-8s %5s  %s", "comm", "ranks", "state");
		else
			line_print(false, " %-12s %5s %9s %7s %6s  %-21s %-14s %s", "communicator", "ranks", "calls/s",
			    "MB/s", "Shunt", "last", "waited for", "state");
		for (size_t k = 0; k < w->ngroups; k++)
			if (!strcmp(w->groups[k].job, lead->key))
				group_print(w, &w->groups[k], narrow);
	}
}

/* True: the user wants no more. *signal_p: a signal that says so. */
static bool key_wait(int signals, int64_t ms, int *signal_p)
{
	struct pollfd p[2] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = signals, .events = POLLIN } };
	struct signalfd_siginfo info;
	char key;

	if (poll(p, 2, (int)ms) < 0)
		return errno != EINTR;
	if (p[1].revents && read(signals, &info, sizeof(info)) == sizeof(info))
		*signal_p = (int)info.ssi_signo;
	return *signal_p || (p[0].revents && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'));
}

static int top_main(int argc, char **argv)
{
	struct top_opts o = { .watch = { .every_s = 1, .hang_s = 600, .silent = true } };
	struct watch w = { .o = &o.watch };
	struct termios before;
	bool keys;
	sigset_t ends;
	int signals = -1, ended = 0, first, err = 0, status = options_parse(&options, &o, argc, argv, &first);

	if (status >= 0)
		return status;
	if (first < argc)
		return tool_usage_error("it takes no \"%s\"", argv[first]);
	keys = !o.once && isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &before);
	if (keys) {
		struct termios raw = before;

		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		/* A signal's end, too, gives the terminal back as it was. */
		sigemptyset(&ends);
		sigaddset(&ends, SIGINT);
		sigaddset(&ends, SIGTERM);
		sigaddset(&ends, SIGHUP);
		sigprocmask(SIG_BLOCK, &ends, NULL);
		signals = signalfd(-1, &ends, SFD_CLOEXEC);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	for (int looks = 0; !err; looks++) {
		err = watch_look(&w);
		if (err || (o.once && looks)) {
			break;
		}
		if (looks && !o.once) {
			printf("%s", isatty(STDOUT_FILENO) ? "\033[H\033[2J" : "\n");
			table_print(&w);
			if (fflush(stdout))
				break;
		}
		if (keys ? key_wait(signals, (int64_t)(o.watch.every_s * 1000), &ended) :
		           poll(NULL, 0, (int)(o.watch.every_s * 1000)) < 0)
			break;
	}
	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
	if (ended) {
		raise(ended);
		sigprocmask(SIG_UNBLOCK, &ends, NULL);
	}
	if (err)
		tool_error("cannot look: %s", strerror(-err));
	else if (o.once)
		table_print(&w);
	watch_finish(&w);
	return err ? TOOL_FAIL : TOOL_OK;
}

const struct tool_cmd tool_cmd_top = {
	.name = "top", .summary = "show what the jobs of this host do now", .options = &options, .run = top_main
};

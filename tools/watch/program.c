/* SPDX-License-Identifier: MIT */
/*
 * shunt run --watch: this process is the parent of the program, and of a watcher that looks at what descends from it.
 * Without the watcher the program goes on.
 */
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include "tools/common/libc.h"
#include "base/io.h"
#include "tools/watch/watch.h"

#define STATUS_HANG 75 /* EX_TEMPFAIL */
#define GRACE_MS 10000 /* from SIGTERM to SIGKILL */

static const int passed[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT };

static void signal_all(int number)
{
	pid_t *pids = NULL;
	int n = look_descendants(getpid(), &pids);

	for (int i = 0; i < n; i++)
		kill(pids[i], number);
	free(pids);
}

static int status_of(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Ends all that descends from this process: what a signal does not end in time is killed. */
static void end_all(void)
{
	int64_t deadline = shunt_now_ms() + GRACE_MS;

	signal_all(SIGTERM);
	signal_all(SIGCONT); /* a stopped process does not end otherwise */
	while (shunt_now_ms() < deadline) {
		if (waitpid(-1, NULL, WNOHANG) < 0)
			return; /* no child is left, and orphans become children of this process */
		poll(NULL, 0, 20);
	}
	signal_all(SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		signal_all(SIGKILL);
}

struct family {
	pid_t program, watcher;
	int signals, hangs; /* descriptors */
	bool exits;         /* --on-hang exit */
};

/* -1: goes on; else the program's status. Reaps. */
static int reap(struct family *f)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == f->program)
			return status_of(status);
		if (pid == f->watcher) {
			f->watcher = 0;
			tool_error("the watcher has ended; the program goes on without");
		}
	}
	return -1;
}

static int family_watch(struct family *f)
{
	struct pollfd p[2] = { { .fd = f->signals, .events = POLLIN }, { .fd = f->hangs, .events = POLLIN } };
	int status;

	for (;;) {
		struct signalfd_siginfo info;
		char c;

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return TOOL_FAIL;
		if (p[0].revents && read(f->signals, &info, sizeof(info)) == sizeof(info)) {
			if (info.ssi_signo == SIGCHLD) {
				status = reap(f);
				if (status >= 0)
					return status;
			} else if (info.ssi_code != SI_KERNEL) {
				/* The terminal's reach the program by themselves. */
				kill(f->program, (int)info.ssi_signo);
			}
		}
		if (!p[1].revents)
			continue;
		if (read(f->hangs, &c, 1) != 1) {
			p[1].fd = -1; /* the watcher has ended */
			continue;
		}
		if (!f->exits)
			continue;
		tool_error("the program hangs: it is ended, with status %d", STATUS_HANG);
		end_all();
		f->watcher = 0;
		return STATUS_HANG;
	}
}

static void program_become(char **argv, const sigset_t *mask)
{
	sigprocmask(SIG_SETMASK, mask, NULL);
	execvp(argv[0], argv);
	int err = errno;

	tool_error("cannot run %s: %s", argv[0], strerror(err));
	_exit(err == ENOENT ? 127 : 126);
}

int watch_program(struct watch_opts *o, char **argv)
{
	struct family f = { .exits = o->on_hang == WATCH_EXIT };
	sigset_t set, before;
	int hangs[2], status;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
		sigaddset(&set, passed[i]);
	sigprocmask(SIG_BLOCK, &set, &before);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	f.signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (f.signals < 0 || pipe2(hangs, O_CLOEXEC)) {
		tool_error("cannot watch: %s", strerror(errno));
		return TOOL_FAIL;
	}
	o->ancestor = getpid();
	f.hangs = hangs[0];
	f.watcher = fork();
	if (!f.watcher) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		setpgid(0, 0); /* the terminal's signals are the program's */
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		close(hangs[0]);
		/* What it starts is no program under Shunt. */
		unsetenv("LD_PRELOAD");
		_exit(watch_run(o, hangs[1]));
	}
	close(hangs[1]);
	if (f.watcher < 0)
		tool_error("cannot watch: %s; the program runs without", strerror(errno));
	f.program = fork();
	if (!f.program)
		program_become(argv, &before);
	if (f.program < 0) {
		tool_error("cannot run %s: %s", argv[0], strerror(errno));
		status = TOOL_FAIL;
	} else {
		status = family_watch(&f);
	}
	if (f.watcher > 0) {
		kill(f.watcher, SIGTERM);
		waitpid(f.watcher, NULL, 0);
	}
	return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * The parent process: starts the workers and watches them. It ends in every case. It kills all workers when one of them
 * died, when one failed and the others do not end, or after --timeout seconds without progress.
 */
#include <sys/prctl.h>
#include "tools/common/libc.h"
#include "base/config.h"
#include "tools/common/ranks/ranks.h"

enum { GRACE_S = 5 }; /* seconds that the other workers have to end by themselves after one failed */

static const char *const stage_names[RANKS_NSTAGES] = { "starting", "rendezvous of the ranks", "setting up", "checking",
	"warming up", "capturing a graph", "timing", "waiting for the other ranks", "exchanging results",
	"destroying communicators", "done" };

struct watchdog {
	const struct ranks_opts *o;
	struct ranks_shared *shared;
	int nworkers, ranks_each, running;
	pid_t pid[RANKS_MAX];       /* 0: has ended */
	int status;                 /* of the first worker that failed */
	struct netns *netns;        /* of --hosts; NULL: none */
	struct ranks_faults faults; /* nhosts 0: none */
};

static int64_t monotonic_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec;
}

static void rank_describe(const struct watchdog *w, int i)
{
	const struct ranks_progress *p = &w->shared->progress[i];
	int stage = atomic_load(&p->stage), lib = atomic_load(&p->lib), way = atomic_load(&p->way);
	unsigned long long bytes = atomic_load(&p->bytes);
	char size[600] = "before the first size";

	if (*p->what)
		snprintf(size, sizeof(size), "in %.*s", (int)sizeof(p->what) - 1, p->what);
	else if (bytes)
		snprintf(size, sizeof(size), "at %llu bytes", bytes);
	tool_error("  rank %d: %s%s%s%s%s, %s", w->shared->launch.external ? w->shared->launch.rank : i,
	    stage_names[stage >= 0 && stage < RANKS_NSTAGES ? stage : 0], lib >= 0 ? " " : "",
	    lib >= 0 ? w->o->libs[lib] : "", way >= 0 && w->o->way_names ? ", " : "",
	    way >= 0 && w->o->way_names ? w->o->way_names[way] : "", size);
}

static void ranks_describe(const struct watchdog *w)
{
	for (int i = 0; i < w->nworkers * w->ranks_each; i++)
		rank_describe(w, i);
}

static void workers_kill(struct watchdog *w)
{
	for (int i = 0; i < w->nworkers; i++)
		if (w->pid[i])
			kill(w->pid[i], SIGKILL);
	for (int i = 0; i < w->nworkers; i++) {
		if (w->pid[i])
			waitpid(w->pid[i], NULL, 0);
		w->pid[i] = 0;
	}
	w->running = 0;
}

static void worker_ended(struct watchdog *w, int i, int wait_status)
{
	int status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);

	w->pid[i] = 0;
	w->running--;
	if (!status || w->status)
		return;
	/* The reader of the table closed the pipe: no message. */
	if (status == 128 + SIGPIPE) {
		workers_kill(w);
	} else if (WIFSIGNALED(wait_status)) {
		tool_error(
		    "%s %d died of signal %d (%s):", w->ranks_each > 1 ? "the process of the ranks from" : "rank",
		    w->shared->launch.external ? w->shared->launch.rank : i, WTERMSIG(wait_status),
		    strsignal(WTERMSIG(wait_status)));
		rank_describe(w, i);
	}
	w->status = status;
	atomic_store(&w->shared->shm.failed, 1);
}

static void workers_reap(struct watchdog *w)
{
	for (int i = 0; i < w->nworkers; i++) {
		int status;

		if (w->pid[i] && waitpid(w->pid[i], &status, WNOHANG) == w->pid[i])
			worker_ended(w, i, status);
	}
}

static void so_far_print(const struct watchdog *w)
{
	const char *line = w->shared->progress[0].so_far;

	if (*line)
		fprintf(stderr, "%.*s\n", (int)sizeof(w->shared->progress[0].so_far) - 1, line);
}

/* Returns when all workers have ended. `signals` are blocked. */
static int watchdog_run(struct watchdog *w, const sigset_t *signals)
{
	int64_t moved = monotonic_s(), told = moved, failed = 0;
	unsigned heartbeats = 0, every_s = w->o->progress_given ? w->o->progress_s : isatty(STDERR_FILENO) ? 1 : 60;

	for (workers_reap(w); w->running; workers_reap(w)) {
		siginfo_t info;
		long wait_ms = w->faults.nhosts ? ranks_faults_step(&w->faults, w->netns, w->pid, w->nworkers) : 500;
		int sig = sigtimedwait(signals, &info, &(struct timespec){ .tv_nsec = wait_ms * 1000000 });
		unsigned sum = 0;

		if (sig > 0 && sig != SIGCHLD) {
			tool_error("stopped by signal %d (%s)", sig, strsignal(sig));
			workers_kill(w);
			so_far_print(w);
			return 128 + sig;
		}
		for (int i = 0; i < w->nworkers * w->ranks_each; i++)
			sum += atomic_load(&w->shared->progress[i].heartbeats);
		if (sum != heartbeats)
			moved = monotonic_s();
		heartbeats = sum;
		if (!failed && atomic_load(&w->shared->shm.failed))
			failed = monotonic_s();
		if (failed && monotonic_s() - failed >= GRACE_S) {
			workers_reap(w);
			if (w->running)
				workers_kill(w);
			return w->status ? w->status : TOOL_FAIL;
		}
		if (every_s && monotonic_s() - told >= (int64_t)every_s) {
			told = monotonic_s();
			so_far_print(w);
		}
		if (!failed && monotonic_s() - moved >= (int64_t)w->o->timeout_s) {
			tool_error("nothing has moved for %u s; ending the run. Where the ranks are:", w->o->timeout_s);
			ranks_describe(w);
			workers_kill(w);
			return TOOL_FAIL;
		}
	}
	return w->status;
}

/*
 * Finds the device layer and the number of devices. A child process asks, because a process that opened a GPU must not
 * fork. SHUNT_NCCL_LIB=none, so that "auto" selects the sim where there are fewer than two GPUs.
 */
static int devices_probe(struct watchdog *w)
{
	struct ranks_launch *l = &w->shared->launch;
	int64_t start = monotonic_s();
	pid_t pid = fork();
	int status;

	if (pid < 0) {
		tool_error("fork: %s", strerror(errno));
		return -errno;
	}
	if (!pid) {
		struct tool_lib lib;
		const char *kind;
		int n = 0;

		setenv("SHUNT_NCCL_LIB", "none", 1);
		if (tool_lib_open(&lib))
			_exit(TOOL_FAIL);
		kind = lib.device_kind();
		if (!kind || lib.device_count(&n) || n < 1) {
			tool_error("there is no device%s", kind ? "" : "; --device sim needs none");
			_exit(TOOL_FAIL);
		}
		snprintf(l->kind, sizeof(l->kind), "%s", kind);
		l->ndevices = n;
		_exit(TOOL_OK);
	}
	while (!waitpid(pid, &status, WNOHANG)) {
		if (monotonic_s() - start > (int64_t)w->o->timeout_s) {
			kill(pid, SIGKILL);
			waitpid(pid, NULL, 0);
			tool_error("opening the devices took more than %u s", w->o->timeout_s);
			return -ETIMEDOUT;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
	}
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -ENODEV;
}

static int ranks_choose(struct watchdog *w)
{
	struct ranks_launch *l = &w->shared->launch;
	bool sim = !strcmp(l->kind, "sim");

	if (l->external)
		return 0;
	l->nranks = w->o->nranks ? w->o->nranks : sim && l->ndevices > 4 ? 4 : l->ndevices;
	if (l->nranks > l->ndevices && !shunt_config()->multi_rank_gpu) {
		tool_error("%d ranks need as many devices, or SHUNT_MULTI_RANK_GPU=1; there are %d (%s)", l->nranks,
		    l->ndevices, l->kind);
		return -EINVAL;
	}
	return 0;
}

static bool lib_is_wanted(const struct ranks_opts *o, const char *name)
{
	char base[PATH_MAX];
	bool registered;

	for (int i = 0; i < o->nlibs; i++) {
		tool_spec_split(o->libs[i], base, &registered);
		if (!strcmp(base, name))
			return true;
	}
	return false;
}

/* True: the library is given by its path, not by a word ("shunt", "nccl", "forwarded"). name: spec without ":reg". */
static bool spec_is_path(const char *spec, char name[PATH_MAX])
{
	static const char *const words[] = { "shunt", "nccl", "forwarded" };
	bool registered;

	tool_spec_split(spec, name, &registered);
	return tool_lookup(name, words, 3) < 0;
}

/*
 * Each copy of the library has sim devices of its own. Another copy does not know the streams and the memory of this
 * one.
 */
static void other_libs_warn(const struct ranks_opts *o, const struct ranks_launch *l)
{
	char ours[PATH_MAX], name[PATH_MAX], path[PATH_MAX];

	if (l->rank || tool_lib_path(ours))
		return;
	for (int i = 0; i < o->nlibs; i++)
		if (spec_is_path(o->libs[i], name) && realpath(name, path) && strcmp(path, ours))
			tool_error("on the sim only this command's %s can be measured, and not %s; SHUNT_LIB=%s makes "
			           "that the command's",
			    ours, name, path);
}

/* NCCL cannot run on the sim, so Shunt runs standalone there unless the user names a library. */
static int environment_set(struct watchdog *w)
{
	const char *lib = tool_nccl_lib();
	bool sim = !strcmp(w->shared->launch.kind, "sim"), named = lib && strcmp(lib, "none");

	if (sim && !named && (lib_is_wanted(w->o, "nccl") || lib_is_wanted(w->o, "forwarded"))) {
		tool_error("the real NCCL needs GPUs, and here is only the sim");
		return -ENODEV;
	}
	if (sim)
		other_libs_warn(w->o, &w->shared->launch);
	/*
	 * A second instance of the library needs more thread-local memory than the loader reserves. The loader reads
	 * this variable when a worker starts.
	 */
	if (lib_is_wanted(w->o, "forwarded") && setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536", 0))
		return -ENOMEM;
	if (setenv("SHUNT_DEVICE", w->shared->launch.kind, 1) || (sim && !lib && setenv("SHUNT_NCCL_LIB", "none", 1)))
		return -ENOMEM;
	return 0;
}

/* Checks files before the ranks start: every rank would fail at a missing library, rank 0 at the end of the run. */
static int files_check(const struct ranks_opts *o, const struct ranks_launch *l)
{
	char name[PATH_MAX];

	for (int i = 0; i < o->nlibs; i++)
		if (spec_is_path(o->libs[i], name) && access(name, R_OK)) {
			tool_error("library %s: %s", name, strerror(errno));
			return -ENOENT;
		}
	return o->json && !l->rank ? tool_file_try(o->json) : 0;
}

/* In the worker, which is one rank. */
static int go_to_host(const struct watchdog *w, int rank)
{
	int host = w->o->nhosts ? ranks_host_of(rank, w->nworkers, w->o->nhosts) : 0, err = 0;
	char name[16];

	if (!w->o->nhosts)
		return 0;
	snprintf(name, sizeof(name), "host%d", host);
	if (w->netns)
		err = netns_enter(w->netns, host);
	if (err)
		tool_error("rank %d cannot enter %s: %s", rank, name, strerror(-err));
	else if (w->netns ? setenv("NCCL_SOCKET_IFNAME", "eth0", 1) :
	                    setenv("SHUNT_HOSTID", name, 1) || setenv("NCCL_HOSTID", name, 1))
		err = -ENOMEM;
	return err;
}

static int hosts_make(struct watchdog *w)
{
	int err;

	if (!w->o->nhosts)
		return 0;
	if (w->shared->launch.external || w->o->threads || w->o->nhosts > w->nworkers) {
		tool_error("--hosts %d: %s", w->o->nhosts,
		    w->o->nhosts > w->nworkers ? "a host needs a rank, and there are fewer" :
		                                 "it goes with ranks that this command starts as processes");
		return -EINVAL;
	}
	err = w->o->names ? -EPERM : netns_start(w->o->nhosts, 1, &w->netns);
	if (w->o->faults && err) {
		tool_error(
		    "--faults: the hosts must be network namespaces, which only root can make: %s", strerror(-err));
		return err;
	}
	if (err && err != -EPERM)
		tool_error("no network namespaces (%s): the hosts are names", strerror(-err));
	if (w->o->faults)
		w->faults = (struct ranks_faults){ .nhosts = w->o->nhosts, .random = w->o->faults };
	return 0;
}

static int worker_start(struct watchdog *w, int i, int fd, int argc, char **argv, const sigset_t *old)
{
	char option[48];
	char **args = calloc((size_t)argc + 5, sizeof(*args));
	pid_t parent = getpid(), pid;
	int n = 0;

	if (!args)
		return -ENOMEM;
	snprintf(option, sizeof(option), "--worker=%d:%d", fd, i);
	args[n++] = "shunt";
	args[n++] = (char *)(uintptr_t)tool_cmd_name();
	if (tool_action())
		args[n++] = (char *)(uintptr_t)tool_action();
	args[n++] = option;
	memcpy(args + n, argv + 1, (size_t)(argc - 1) * sizeof(*args));
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(TOOL_FAIL);
		sigprocmask(SIG_SETMASK, old, NULL);
		if (go_to_host(w, i))
			_exit(TOOL_FAIL);
		execv("/proc/self/exe", args);
		tool_error("exec: %s", strerror(errno));
		_exit(TOOL_FAIL);
	}
	free(args);
	if (pid < 0) {
		tool_error("fork: %s", strerror(errno));
		return -EAGAIN;
	}
	w->pid[i] = pid;
	w->running++;
	return 0;
}

int ranks_run(const struct ranks_opts *o, int argc, char **argv)
{
	struct watchdog w = { .o = o };
	sigset_t signals, old;
	int fd, err, status = TOOL_FAIL;
	long fired = ranks_fired_before();

	/* The workers inherit the descriptor. */
	fd = memfd_create("shunt-ranks", 0);
	if (fd < 0 || ftruncate(fd, sizeof(*w.shared))) {
		tool_error("cannot make shared memory: %s", strerror(errno));
		return TOOL_FAIL;
	}
	w.shared = mmap(NULL, sizeof(*w.shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (w.shared == MAP_FAILED) {
		tool_error("cannot map shared memory: %s", strerror(errno));
		return TOOL_FAIL; /* cppcheck-suppress memleak; there is none */
	}
	if (o->device)
		setenv("SHUNT_DEVICE", o->device, 1);
	signal(SIGCHLD, SIG_DFL); /* some parents leave it ignored: then a child's exit status is lost */
	err = ranks_detect(o, &w.shared->launch);
	if (!err)
		err = files_check(o, &w.shared->launch);
	if (!err)
		err = devices_probe(&w);
	if (!err)
		err = ranks_choose(&w);
	if (!err)
		err = environment_set(&w);
	if (err)
		return TOOL_FAIL;
	bool one = w.shared->launch.external || o->threads;
	w.nworkers = one ? 1 : w.shared->launch.nranks;
	w.ranks_each = w.shared->launch.external ? 1 : w.shared->launch.nranks / w.nworkers;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, &old);
	err = hosts_make(&w);
	for (int i = 0; !err && i < w.nworkers; i++)
		err = worker_start(&w, i, fd, argc, argv, &old);
	if (err)
		workers_kill(&w);
	else
		status = watchdog_run(&w, &signals);
	if (w.faults.nhosts)
		ranks_faults_end(&w.faults, w.netns);
	ranks_fired_print(fired);
	netns_stop(w.netns);
	sigprocmask(SIG_SETMASK, &old, NULL);
	munmap(w.shared, sizeof(*w.shared));
	close(fd);
	return status;
}

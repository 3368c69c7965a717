/* SPDX-License-Identifier: MIT */
/* shunt plugin check: runs plug-ins on the sim, each trial in a process of its own, and says what is wrong with them.
 */
#include "tools/common/libc.h"
#include "algos/plugins.h"
#include "base/io.h"
#include "tools/plugin/plugin.h"

#define TABLE "shunt_plugins_1"

static const char usage[] =
    "usage: shunt plugin check [options] FILE.so...\n\n"
    "Runs each plug-in of the files on the sim, with SHUNT_CHECK=2: every collective, type and operator that it "
    "takes,\n"
    "sizes up to 1 MB, in place, unaligned, in groups and graphs, with each rank late in turn, and with a rank that "
    "does\n"
    "not come. Build it with -fsanitize=thread, and use a Shunt that is built so, to find races, too. Launches then "
    "have\n"
    "at most 2 blocks of 64 threads, and TSAN_OPTIONS=halt_on_error=1 ends with the call that has the first race.\n\n";

struct check_opts {
	unsigned ranks, timeout;
	const char *name;
};

#define AT(field) .at = offsetof(struct check_opts, field)
static const struct option_row rows[] = {
	{ "ranks", 'n', OPTION_NUMBER, "N", AT(ranks), 2, 8, .help = "only with so many (2, 3 and the most it takes)" },
	{ "plugin", 'p', OPTION_TEXT, "NAME", AT(name), .help = "only this one of the files' plug-ins" },
	{ "timeout", 0, OPTION_NUMBER, "S", AT(timeout), 1, 3600, .help = "longest wait of a kernel, in seconds (10)" },
	{ 0 },
};
const struct option_table plugin_check_options = { usage, rows,
	"Exit status: 0 if all are right, 1 if one is not, 2 for a wrong option.\n" };

/* Waits for the process, as long as it comes forward. */
static int wait_for(pid_t pid, const struct plugin_job *job)
{
	int64_t patience = (int64_t)job->timeout_s * 1000 + PLUGIN_ENQUEUE_MS + 27000;
	int64_t end = shunt_deadline_ms(patience);
	volatile const unsigned *ncases = &job->report->ncases;
	unsigned seen = *ncases;
	int status;

	for (;;) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status;
		if (seen != *ncases) {
			seen = *ncases;
			end = shunt_deadline_ms(patience);
		}
		/* Threads of a trial that failed may wait for each other. */
		if (*(volatile const char *)job->report->failure && end > shunt_now_ms() + 500)
			end = shunt_deadline_ms(500);
		if (shunt_now_ms() >= end)
			kill(pid, SIGKILL);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

/* The result is in job->report. */
static int trial(const struct plugin_job *job)
{
	struct plugin_report *r = job->report;
	pid_t pid;
	int status;

	memset(r, 0, sizeof(*r));
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		tool_error("fork: %s", strerror(errno));
		return -errno;
	}
	if (!pid)
		plugin_trial_run(job);
	status = wait_for(pid, job);
	if (*r->failure || (WIFEXITED(status) && !WEXITSTATUS(status) && r->is_over))
		return 0;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		snprintf(r->failure, sizeof(r->failure), "it does not come to an end in %s", r->at);
	else if (WIFSIGNALED(status))
		snprintf(r->failure, sizeof(r->failure), "it dies by signal %d (%s) in %s", WTERMSIG(status),
		    strsignal(WTERMSIG(status)), r->at);
	else if (PLUGIN_RACES && WEXITSTATUS(status) == PLUGIN_RACES)
		snprintf(r->failure, sizeof(r->failure),
		    "ThreadSanitizer has found a race, in %s or before: its report is above", r->at);
	else
		snprintf(r->failure, sizeof(r->failure), "its process ends with status %d in %s", WEXITSTATUS(status),
		    r->at);
	return 0;
}

/* True: the trial passes at least once in a few times. */
static bool passes(struct plugin_job *job, enum plugin_trial which, int times)
{
	struct plugin_report first = *job->report;
	bool passed = false;

	job->trial = which;
	while (times-- && !passed)
		passed = !trial(job) && !*job->report->failure;
	*job->report = first;
	return passed;
}

/* What kind of mistake it is, where the failure tells only a part of it. */
static const char *kind_of(struct plugin_job *job)
{
	const struct plugin_report *r = job->report;
	bool first = r->ncalls <= (r->differs ? 0 : (unsigned)job->nranks); /* the library looks a call later */

	if (strstr(r->failure, " by a plug-in"))
		return "its supports() says one thing on one rank and another on the next: ";
	if (!r->differs && !strstr(r->failure, "not Shunt's"))
		return "";
	/* Sums of calls with a late rank do not depend on an order, so they differ for one reason. */
	if (r->late && (r->differs || passes(job, first ? PLUGIN_ONE_IN_TIME : PLUGIN_CASES_IN_TIME, first ? 5 : 1)))
		return first ?
		    "it does not wait for a rank that is late: " :
		    "it waits for a rank that is late in its first call alone, so later ones see words of an "
		    "earlier epoch: ";
	return r->differs ? "its ranks come to different results, as if each added in an order of its own: " : "";
}

static void print(const struct plugin_job *job, const char *what, const char *kind)
{
	const struct plugin_report *r = job->report;

	printf("  %-28s %d ranks %6u calls  %s%s%s\n", what, job->nranks, r->ncalls, *r->failure ? "FAILED: " : "ok",
	    kind, r->failure);
	fflush(stdout);
}

/* 1: it is wrong. Negative: an error. */
static int check_among(struct plugin_job *job)
{
	const char *kind = "";
	int err;

	job->trial = PLUGIN_CASES;
	err = trial(job);
	if (err)
		return err;
	if (*job->report->failure)
		kind = kind_of(job);
	else if (!job->report->ncalls)
		snprintf(job->report->failure, sizeof(job->report->failure), "it takes no call that was tried");
	print(job, "all cases", kind);
	if (*job->report->failure)
		return 1;
	job->trial = PLUGIN_MISSING_RANK;
	err = trial(job);
	if (err)
		return err;
	print(job, "a rank that does not come", *job->report->failure ? "its kernel ignores the limit: " : "");
	return *job->report->failure != '\0';
}

static int check_plugin(struct plugin_job *job, const struct check_opts *o)
{
	const struct shunt_plugin *p = job->plugin;
	int wrong = 0, done = 0;

	printf("%s: %s, %s\n", p->name, p->collectives, p->doc ? p->doc : "");
	if (!p->sim && !p->enqueue) {
		printf("  not run: it has no kernel for the sim\n");
		return 0;
	}
	for (int n = 2; n <= 8 && !wrong; n++) {
		bool asked = o->ranks ? n == (int)o->ranks : n < 4 || n == (int)p->max_ranks;

		if (!asked || n < (int)p->min_ranks || n > (int)p->max_ranks)
			continue;
		job->nranks = n;
		wrong = check_among(job);
		done++;
	}
	if (!done)
		printf("  not run: it takes %u to %u ranks\n", p->min_ranks, p->max_ranks);
	return wrong;
}

/* Counts in *n_p and *wrong_p. */
static int check_file(const char *path, const struct check_opts *o, unsigned *n_p, unsigned *wrong_p)
{
	const struct shunt_plugin *const *table;
	struct plugin_job job = { .timeout_s = o->timeout };
	char why[512], full[PATH_MAX];
	void *file;
	int err = 0;

	job.path = realpath(path, full);
	file = job.path ? dlopen(job.path, RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!file) {
		tool_error("%s: %s", path, job.path ? dlerror() : strerror(errno));
		return -ENOENT;
	}
	table = dlsym(file, TABLE);
	if (!table) {
		tool_error("%s: it exports no %s", path, TABLE);
		return -ENOEXEC;
	}
	/* cppcheck-suppress invalidFunctionArg; memory of no file has the descriptor -1 */
	job.report = mmap(NULL, sizeof(*job.report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (job.report == MAP_FAILED)
		return -ENOMEM; /* cppcheck-suppress memleak; there is none to unmap */
	for (; *table && err >= 0; table++) {
		if (o->name && (!(*table)->name || strcmp((*table)->name, o->name)))
			continue;
		++*n_p;
		err = shunt_plugin_add(*table, 0, why, sizeof(why));
		if (err) {
			printf("%s: refused: %s\n", path, why);
			++*wrong_p;
			err = 0;
			continue;
		}
		job.plugin = *table;
		err = check_plugin(&job, o);
		*wrong_p += err != 0;
	}
	munmap(job.report, sizeof(*job.report));
	return err < 0 ? err : 0;
}

int plugin_check_main(int argc, char **argv)
{
	struct check_opts o = { .timeout = 10 };
	unsigned n = 0, wrong = 0;
	int first, status = options_parse(&plugin_check_options, &o, argc, argv, &first), err = 0;

	if (status >= 0)
		return status;
	if (first == argc)
		return tool_usage_error("which file?");
	for (int i = first; i < argc && !err; i++)
		err = check_file(argv[i], &o, &n, &wrong);
	if (!err && !n) {
		tool_error("no plug-in %s%s", o.name ? "of the name " : "is in the files", o.name ? o.name : "");
		return TOOL_FAIL;
	}
	if (!err)
		printf("%u plug-in%s, %u wrong\n", n, n == 1 ? "" : "s", wrong);
	return err || wrong ? TOOL_FAIL : TOOL_OK;
}

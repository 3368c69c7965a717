/* SPDX-License-Identifier: MIT */
/*
 * A process that may open nothing more, one that may have no more memory or threads, and a log file that takes nothing.
 */
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include "base/rlimits.h"
#include "base/log.h"
#include "tests/fault/job.h"
#include "tests/support/child.h"
#include "tests/support/test.h"
#include "shim/nccl/abi.h"
#include "shunt/device.h"

enum { RANKS = 3 };

/* Short limits are for ranks that wait in vain, long ones for those that are to do well on any machine. */
enum limits { SHORT, LONG };

static void limit_to(enum limits limits)
{
	lifecycle_environment(limits == SHORT ? "200ms" : "100s", limits == SHORT ? "300ms" : "60s");
}

static void set_files(rlim_t limit)
{
	struct rlimit r = { limit, 4096 };

	setrlimit(RLIMIT_NOFILE, &r);
}

static int open_files(void)
{
	int fd = open("/dev/null", O_RDONLY); /* the lowest that is free: our processes have no gaps */

	close(fd);
	return fd;
}

/* True: what the library has printed has the text. */
static bool was_printed(int fd, const char *text)
{
	static char all[1 << 16];
	ssize_t n = pread(fd, all, sizeof(all) - 1, 0);

	all[n < 0 ? 0 : n] = '\0';
	return strstr(all, text);
}

/*
 * The victim has at.. descriptors left when it begins; afterwards the limit is lifted again, and all is well. Whatever
 * could not be opened, a line of the victim's names the limit.
 */
static enum lifecycle_result few_files(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	bool is_victim = l->rank == c->victim;
	enum lifecycle_result end;
	int stderr_fd = -1, log_fd = -1;

	shunt_limits_raise_files(); /* once in a process: not after this */
	if (is_victim) {
		stderr_fd = dup(STDERR_FILENO);
		log_fd = memfd_create("log", 0);
		dup2(log_fd, STDERR_FILENO);
		setenv("SHUNT_LOG", "warn", 1);
		shunt_log_reset();
		set_files((rlim_t)(open_files() + c->at));
	}
	end = lifecycle_run(l);
	set_files(1024);
	if (is_victim) {
		dup2(stderr_fd, STDERR_FILENO);
		if (end == LIFECYCLE_FAILED && !was_printed(log_fd, "RLIMIT_NOFILE")) {
			fprintf(stderr, "%ld left: %s\n", c->at, shunt_last_error());
			end = LIFECYCLE_WRONG;
		}
		close(stderr_fd);
		close(log_fd);
	}
	return end;
}

TEST(test_limits_no_descriptor_left_is_an_error_at_every_number)
{
	int failed = 0, good = 0;

	for (int victim = 0; victim < RANKS; victim += 2)
		for (int left = 0; left < 26; left += left < 10 ? 1 : 5) {
			struct job c = { .n = RANKS, .victim = victim, .full = 1, .at = left, .body = few_files };
			const char *reason;

			limit_to(left < 25 ? SHORT : LONG); /* with so many it ends well */
			reason = job_run(&c);
			if (reason) { /* A rank of a busy machine may have been late for the short limits. */
				limit_to(LONG);
				reason = job_run(&c);
			}
			if (reason)
				fail_msg("rank %d with %d descriptors left: %s", victim, left, reason);
			good += c.rank[victim].end == LIFECYCLE_OK;
			failed += c.rank[victim].end == LIFECYCLE_FAILED;
		}
	assert_true(failed > 5 && good > 0);
}

/* A soft limit is for programs that know no better: it is raised as far as it may be. */
static int limit_after_init(void)
{
	struct rlimit limit = { 256, 512 };
	ncclComm_t comm;

	if (setrlimit(RLIMIT_NOFILE, &limit) || ncclCommInitAll(&comm, 1, NULL) || getrlimit(RLIMIT_NOFILE, &limit))
		return 1;
	return limit.rlim_cur != 512;
}

TEST(test_limits_soft_limit_of_descriptors_is_raised)
{
	limit_to(LONG);
	assert_int_equal(IN_CHILD(limit_after_init()), 0);
}

/* As containers do: one call of the kernel's is forbidden. */
static int forbid(long number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) ? -errno : 0;
}

static const long forbidden[] = { SYS_sendmsg, SYS_getrandom, SYS_recvmsg, SYS_memfd_create, SYS_epoll_create1,
	SYS_connect, SYS_bind };

static enum lifecycle_result under_policy(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	enum lifecycle_result end;

	if (l->rank == c->victim && forbid(forbidden[c->at]))
		return LIFECYCLE_WRONG;
	end = lifecycle_run(l);
	return end == LIFECYCLE_FAILED && !*shunt_last_error() ? LIFECYCLE_WRONG : end;
}

TEST(test_limits_forbidden_calls_are_errors_on_all_ranks)
{
	if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
		skip();
	for (size_t i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++) {
		struct job c = { .n = RANKS, .victim = (int)i % RANKS, .at = (long)i, .body = under_policy };
		const char *reason;

		/* It stays forbidden: only a new communicator of all ranks is out of the question. */
		c.once = 1;
		limit_to(forbidden[i] == SYS_epoll_create1 ? LONG : SHORT); /* that ends well, see below */
		reason = job_run(&c);
		if (reason)
			fail_msg("without call %ld on rank %d: %s", forbidden[i], c.victim, reason);
		for (int r = 0; r < RANKS; r++)
			if ((c.rank[r].end == LIFECYCLE_OK) !=
			    (forbidden[i] == SYS_epoll_create1)) /* without a service thread the first calls do it */
				fail_msg("without call %ld on rank %d: rank %d says %d", forbidden[i], c.victim, r,
				    (int)c.rank[r].end);
	}
}

/* What the library says while its log file is of no use must not stop anything, and must be said once elsewhere. */
static enum lifecycle_result with_log(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	static const char *const files[] = { "/dev/full", "/nowhere/at/all", "." };

	setenv("NCCL_DEBUG_FILE", files[c->at], 1);
	setenv("NCCL_DEBUG", "INFO", 1);
	setenv("SHUNT_LOG", "info", 1);
	if (!freopen("/dev/null", "w", stderr))
		return LIFECYCLE_WRONG;
	shunt_log_reset();
	return lifecycle_run(l);
}

TEST(test_limits_log_file_that_takes_nothing_stops_nothing)
{
	limit_to(LONG);
	for (int i = 0; i < 3; i++) {
		struct job c = { .n = 2, .victim = -1, .at = i, .body = with_log };
		const char *reason = job_run(&c);

		if (reason || c.rank[0].end != LIFECYCLE_OK || c.rank[1].end != LIFECYCLE_OK)
			fail_msg(
			    "log %d: %s, %d, %d", i, reason ? reason : "ends", (int)c.rank[0].end, (int)c.rank[1].end);
	}
}

/* Nobody reads what the library prints: neither a signal nor a wait may come of it. */
static enum lifecycle_result with_closed_pipe(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	int fds[2];

	if (pipe(fds) || dup2(fds[1], STDERR_FILENO) < 0)
		return LIFECYCLE_WRONG;
	close(fds[0]);
	close(fds[1]);
	signal(SIGPIPE, SIG_DFL);
	setenv("SHUNT_LOG", "info", 1);
	shunt_log_reset();
	return lifecycle_run(l);
}

TEST(test_limits_closed_stderr_does_not_kill)
{
	struct job c = { .n = 2, .victim = -1, .body = with_closed_pipe };
	const char *reason;

	limit_to(LONG);
	reason = job_run(&c);
	if (reason || c.rank[0].end != LIFECYCLE_OK || c.rank[1].end != LIFECYCLE_OK)
		fail_msg("%s, %d, %d", reason ? reason : "ends", (int)c.rank[0].end, (int)c.rank[1].end);
}

/* As daemons are started: what the library opens must not become what it, and the program, print to. */
static enum lifecycle_result without_stderr(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	close(STDIN_FILENO);
	if (c->at)
		close(STDOUT_FILENO);
	close(STDERR_FILENO);
	setenv("SHUNT_LOG", "trace", 1);
	shunt_log_reset();
	return lifecycle_run(l);
}

TEST(test_limits_no_stderr_at_all_spoils_nothing)
{
	limit_to(LONG);
	for (int i = 0; i < 4; i++) {
		struct job c = { .n = 2, .victim = -1, .full = i / 2, .at = i % 2, .body = without_stderr };
		const char *reason = job_run(&c);

		if (reason || c.rank[0].end != LIFECYCLE_OK || c.rank[1].end != LIFECYCLE_OK)
			fail_msg("%d: %s, %d, %d", i, reason ? reason : "ends", (int)c.rank[0].end, (int)c.rank[1].end);
	}
}

TESTS_BEGIN
{
	limit_to(LONG);
}

/* SPDX-License-Identifier: MIT */
#include "base/log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/env.h"
#include "base/lock.h"

#define TEXT_BYTES 1024
#define LINE_BYTES (TEXT_BYTES + 192)
#define MAX_SCANS 64
#define DEFAULT_MASK (SHUNT_LOG_INIT | SHUNT_LOG_BOOTSTRAP | SHUNT_LOG_ENV)

const char *const shunt_loglevel_names[] = { "auto", "none", "error", "warn", "info", "trace", NULL };

static const struct {
	const char *name;
	unsigned bits;
} subsystems[] = {
	{ "INIT", SHUNT_LOG_INIT },
	{ "COLL", SHUNT_LOG_COLL },
	{ "ENV", SHUNT_LOG_ENV },
	{ "BOOTSTRAP", SHUNT_LOG_BOOTSTRAP },
	{ "GRAPH", SHUNT_LOG_GRAPH },
	{ "TUNING", SHUNT_LOG_GRAPH },
	{ "NET", SHUNT_LOG_NET },
	{ "P2P", SHUNT_LOG_NET },
	{ "SHM", SHUNT_LOG_NET },
	{ "ALL", SHUNT_LOG_ALL },
};

static struct shunt_lock lock = SHUNT_LOCK(NULL);
static atomic_bool ready; /* the next three are valid */
static atomic_int level_now;
static atomic_uint mask_now;
static atomic_bool banner_now;
/* The following are protected by lock. */
static int file_fd = -1;
static pid_t file_pid;
static int scans_left; /* see make_writers_append */
static char host[64];
static char last_error[TEXT_BYTES];

static _Thread_local int thread_device = -1;

static unsigned parse_mask(const char *text)
{
	bool invert = *text == '^';
	unsigned mask = 0;

	text += invert;
	while (*text) {
		size_t n = strcspn(text, ",");

		for (size_t i = 0; i < sizeof(subsystems) / sizeof(subsystems[0]); i++)
			if (n == strlen(subsystems[i].name) && !strncasecmp(text, subsystems[i].name, n))
				mask |= subsystems[i].bits;
		text += n + (text[n] == ',');
	}
	return invert ? SHUNT_LOG_ALL & ~mask : mask;
}

static void host_name(char *out, size_t bytes)
{
	if (gethostname(out, bytes))
		snprintf(out, bytes, "unknown");
	out[bytes - 1] = '\0';
	out[strcspn(out, ".")] = '\0';
}

static void expand_path(const char *in, char *out, size_t bytes)
{
	char name[64];
	size_t n = 0;

	host_name(name, sizeof(name));
	while (*in && n < bytes - 1) {
		int len = 1;

		if (in[0] == '%' && in[1] == 'h') {
			len = snprintf(out + n, bytes - n, "%s", name);
			in++;
		} else if (in[0] == '%' && in[1] == 'p') {
			len = snprintf(out + n, bytes - n, "%d", (int)getpid());
			in++;
		} else {
			in += in[0] == '%' && in[1] == '%';
			out[n] = *in;
		}
		in++;
		n += (size_t)len;
	}
	out[n < bytes ? n : bytes - 1] = '\0';
}

void shunt_log_parse(const char *(*get)(void *arg, const char *name), void *arg, struct shunt_log_settings *out)
{
	const char *ours = get(arg, "SHUNT_LOG"), *debug = get(arg, "NCCL_DEBUG");
	const char *subsys = get(arg, "NCCL_DEBUG_SUBSYS"), *file = get(arg, "NCCL_DEBUG_FILE");
	bool nccl_prints = false;

	*out = (struct shunt_log_settings){ .level = SHUNT_LOGLEVEL_WARN, .mask = DEFAULT_MASK };
	if (debug) {
		/*
		 * NCCL's ABORT lies between INFO and TRACE and prints as INFO. VERSION and unknown words leave our
		 * warnings on.
		 */
		nccl_prints = !strcasecmp(debug, "WARN");
		if (!strcasecmp(debug, "INFO") || !strcasecmp(debug, "ABORT"))
			out->level = SHUNT_LOGLEVEL_INFO;
		else if (!strcasecmp(debug, "TRACE"))
			out->level = SHUNT_LOGLEVEL_TRACE;
		nccl_prints = nccl_prints || out->level > SHUNT_LOGLEVEL_WARN;
	}
	/* A malformed SHUNT_LOG is reported by the configuration and means auto. */
	for (int i = SHUNT_LOGLEVEL_NONE; ours && shunt_loglevel_names[i]; i++) {
		if (strcasecmp(ours, shunt_loglevel_names[i]))
			continue;
		out->level = (enum shunt_loglevel)i;
		nccl_prints = true;
		if (i == SHUNT_LOGLEVEL_TRACE)
			out->mask = SHUNT_LOG_ALL;
	}
	if (subsys && *subsys)
		out->mask = parse_mask(subsys);
	out->banner = out->level >= SHUNT_LOGLEVEL_WARN;
	if (file && *file && nccl_prints)
		expand_path(file, out->path, sizeof(out->path));
}

static const char *get_env(void *arg, const char *name)
{
	return shunt_env(name);
}

/* With lock held. */
static bool write_bytes(int fd, const char *line, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, line, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		line += n;
		bytes -= (size_t)n;
	}
	return true;
}

/*
 * With lock held. A write to a pipe without readers, or beyond the limit on file sizes, raises a signal in the writing
 * thread. That signal would end the program because of a log line, so it is blocked and removed.
 */
static void write_all(int fd, const char *line, size_t bytes, bool *failed_p)
{
	sigset_t ours, old, before;
	int err;

	sigemptyset(&ours);
	sigaddset(&ours, SIGPIPE);
	sigaddset(&ours, SIGXFSZ);
	pthread_sigmask(SIG_BLOCK, &ours, &old);
	sigpending(&before);
	*failed_p = !write_bytes(fd, line, bytes);
	err = errno;
	if (*failed_p && (err == EPIPE || err == EFBIG)) {
		/* Keep a signal that was pending before. */
		if (sigismember(&before, SIGPIPE) == 1)
			sigdelset(&ours, SIGPIPE);
		if (sigismember(&before, SIGXFSZ) == 1)
			sigdelset(&ours, SIGXFSZ);
		sigtimedwait(&ours, NULL, &(struct timespec){ 0 });
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	errno = err;
}

static size_t format_line(char *line, const char *level, const char *text)
{
	char device[16] = "";
	int n;

	if (thread_device >= 0)
		snprintf(device, sizeof(device), " [%d]", thread_device);
	n = snprintf(line, LINE_BYTES, "%s:%d:%d%s SHUNT %s%s%s\n", host, (int)getpid(), (int)syscall(SYS_gettid),
	    device, level, *level ? " " : "", text);
	if (n >= LINE_BYTES) {
		n = LINE_BYTES - 1;
		line[n - 1] = '\n';
	}
	return (size_t)n;
}

/* With lock held. Reports once that the file cannot be used, and switches to stderr. */
static void abandon_file(const char *what, int err)
{
	char text[256], line[LINE_BYTES];
	bool failed;
	size_t n;

	errno = err;
	snprintf(text, sizeof(text), "cannot %s the file that NCCL_DEBUG_FILE names: %m; log lines go to stderr", what);
	n = format_line(line, "WARN", text);
	write_all(STDERR_FILENO, line, n, &failed);
	if (file_fd >= 0)
		close(file_fd);
	file_fd = -1;
}

/* With lock held. */
static void set_up(void)
{
	struct shunt_log_settings s;

	shunt_log_parse(get_env, NULL, &s);
	host_name(host, sizeof(host));
	if (file_fd >= 0)
		close(file_fd);
	file_fd = -1;
	scans_left = MAX_SCANS;
	file_pid = getpid();
	if (*s.path && strcmp(s.path, "/dev/stderr")) {
		file_fd = open(s.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		if (file_fd < 0 && s.level > SHUNT_LOGLEVEL_NONE)
			abandon_file("open", errno);
	}
	atomic_store(&level_now, s.level);
	atomic_store(&mask_now, s.mask);
	atomic_store(&banner_now, s.banner);
	atomic_store(&ready, true);
}

/*
 * With lock held. The real NCCL opens the same file on its own and writes at its own offset, over our lines. So look
 * for its descriptor and set O_APPEND there, too. After MAX_SCANS lines without such a descriptor, assume that none
 * will come.
 */
static void make_writers_append(void)
{
	struct stat ours, other;
	struct dirent *entry;
	DIR *dir;

	if (!scans_left || fstat(file_fd, &ours) || !S_ISREG(ours.st_mode))
		return;
	scans_left--;
	dir = opendir("/proc/self/fd");
	while (dir && (entry = readdir(dir))) {
		int fd = atoi(entry->d_name), flags;

		if (entry->d_name[0] == '.' || fd == file_fd || fd == dirfd(dir) || fstat(fd, &other) ||
		    other.st_dev != ours.st_dev || other.st_ino != ours.st_ino)
			continue;
		flags = fcntl(fd, F_GETFL);
		if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
			continue;
		if ((flags & O_APPEND) || fcntl(fd, F_SETFL, flags | O_APPEND) == 0)
			scans_left = 0;
	}
	if (dir)
		closedir(dir);
}

static void ensure_set_up(void)
{
	if (atomic_load(&ready))
		return;
	shunt_lock_acquire(&lock);
	if (!atomic_load(&ready))
		set_up();
	shunt_lock_release(&lock);
}

void shunt_log_reset(void)
{
	int err = errno;

	shunt_lock_acquire(&lock);
	set_up();
	shunt_lock_release(&lock);
	errno = err;
}

bool shunt_log_enabled(enum shunt_loglevel level, unsigned subsys)
{
	int err = errno;

	ensure_set_up();
	errno = err;
	return level <= (enum shunt_loglevel)atomic_load(&level_now) &&
	    (level <= SHUNT_LOGLEVEL_WARN || (atomic_load(&mask_now) & subsys));
}

void shunt_log_set_device(int device)
{
	thread_device = device;
}

static void write_line(const char *level, bool print, bool keep, const char *fmt, va_list ap)
{
	char text[TEXT_BYTES], line[LINE_BYTES];
	int err = errno, n;
	bool failed;
	size_t bytes;

	n = vsnprintf(text, sizeof(text), fmt, ap); /* errno is still the caller's: %m */
	if (n < 0)
		snprintf(text, sizeof(text), "(unprintable message)");
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < ' ')
			*p = ' ';
	shunt_lock_acquire(&lock);
	if (keep)
		snprintf(last_error, sizeof(last_error), "%s", text);
	if (print) {
		/* A forked child has another process number (%p). */
		if (file_fd >= 0 && file_pid != getpid())
			set_up();
		bytes = format_line(line, level, text);
		if (file_fd >= 0) {
			make_writers_append();
			write_all(file_fd, line, bytes, &failed);
			if (failed)
				abandon_file("write", errno);
		} else {
			failed = true;
		}
		if (failed)
			write_all(STDERR_FILENO, line, bytes, &failed);
	}
	shunt_lock_release(&lock);
	errno = err;
}

void shunt_error(const char *fmt, ...)
{
	bool print = shunt_log_enabled(SHUNT_LOGLEVEL_ERROR, 0);
	va_list ap;

	va_start(ap, fmt);
	write_line("ERROR", print, true, fmt, ap);
	va_end(ap);
}

void shunt_warn(const char *fmt, ...)
{
	bool print = shunt_log_enabled(SHUNT_LOGLEVEL_WARN, 0);
	va_list ap;

	va_start(ap, fmt);
	write_line("WARN", print, true, fmt, ap);
	va_end(ap);
}

void shunt_info(unsigned subsys, const char *fmt, ...)
{
	va_list ap;

	if (!shunt_log_enabled(SHUNT_LOGLEVEL_INFO, subsys))
		return;
	va_start(ap, fmt);
	write_line("INFO", true, false, fmt, ap);
	va_end(ap);
}

void shunt_trace(unsigned subsys, const char *fmt, ...)
{
	va_list ap;

	if (!shunt_log_enabled(SHUNT_LOGLEVEL_TRACE, subsys))
		return;
	va_start(ap, fmt);
	write_line("TRACE", true, false, fmt, ap);
	va_end(ap);
}

void shunt_banner(const char *fmt, ...)
{
	int err = errno;
	va_list ap;

	ensure_set_up();
	errno = err;
	if (!atomic_load(&banner_now))
		return;
	va_start(ap, fmt);
	write_line("", true, false, fmt, ap);
	va_end(ap);
}

const char *shunt_last_error(void)
{
	static _Thread_local char copy[TEXT_BYTES];

	shunt_lock_acquire(&lock);
	memcpy(copy, last_error, sizeof(copy));
	shunt_lock_release(&lock);
	return copy;
}

void shunt_last_error_set(const char *text)
{
	shunt_lock_acquire(&lock);
	snprintf(last_error, sizeof(last_error), "%s", text);
	shunt_lock_release(&lock);
}

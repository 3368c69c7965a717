/* SPDX-License-Identifier: MIT */
#include "base/log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "base/env.h"
#include "base/io.h"
#include "base/lock.h"

#define TEXT_BYTES 1024
#define LINE_BYTES (TEXT_BYTES + 192)
#define MAX_SCANS 64
#define READ_MS 1000
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

/* The file that NCCL_DEBUG_FILE names. Lines are written without the lock, so the last writer closes it. */
struct log_file {
	int fd;
	unsigned users;        /* `file` and writers; under the lock */
	atomic_int scans_left; /* see make_writers_append */
};

static atomic_bool ready; /* the next three are valid */
static atomic_int level_now;
static atomic_uint mask_now;
static atomic_bool banner_now;
/* The following are protected by SHUNT_LOCK_LOG. */
static struct log_file *file; /* NULL: stderr */
static char host[64];
static char last_error[TEXT_BYTES];

/* Lines that nobody read in time, since the last that was read. */
static atomic_uint nlost;

/* Lines that a thread keeps for later (shunt_log_hold), the oldest first. */
struct held_line {
	struct held_line *next;
	size_t bytes;
	char line[];
};
static _Thread_local struct {
	unsigned depth;
	struct held_line *first, **end_p;
} held;

/* The name of a forked child's file may be another one (%p). */
static void set_up_again(void)
{
	if (!file)
		return;
	file->users = 1; /* its parent's other threads are not in it */
	atomic_store(&ready, false);
}
SHUNT_IN_FORKED_CHILD(set_up_again)

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

	debug = debug ? debug : get(arg, "MSCCLPP_DEBUG");
	file = file ? file : get(arg, "MSCCLPP_DEBUG_FILE");
	file = file ? file : get(arg, "MSCCLPP_LOG_FILE");
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

/*
 * One write. poll() may be wrong about a pipe by now, where other processes write to it: so pipes and sockets are
 * written without waiting, on kernels that can (Linux 5.18, pipes 6.4).
 */
static ssize_t write_now(int fd, const char *line, size_t bytes)
{
	struct iovec part = { .iov_base = (void *)(uintptr_t)line, .iov_len = bytes };
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st) || (!S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode)))
		return write(fd, line, bytes);
	n = pwritev2(fd, &part, 1, -1, RWF_NOWAIT);
	return n < 0 && errno != EAGAIN && errno != EINTR && errno != EPIPE ? write(fd, line, bytes) : n;
}

/*
 * A line waits READ_MS for whoever reads the pipe or the terminal, and is lost then; after that the next ones do not
 * wait, until one can be written. A program whose output nobody reads must still be able to abort its communicators.
 * False: the file cannot be used.
 */
static bool write_bytes(int fd, const char *line, size_t bytes)
{
	int64_t end = shunt_now_ms() + (atomic_load(&nlost) ? 0 : READ_MS), left;

	while (bytes) {
		struct pollfd p = { .fd = fd, .events = POLLOUT };
		ssize_t n;

		left = end - shunt_now_ms();
		n = poll(&p, 1, left > 0 ? (int)left : 0);
		if (!n)
			errno = EAGAIN;
		else if (n > 0 || errno != EINTR)
			n = write_now(fd, line, bytes);
		if (n <= 0 && errno == EAGAIN && shunt_now_ms() >= end) {
			atomic_fetch_add(&nlost, 1);
			return true;
		}
		if (n <= 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return false;
		line += n;
		bytes -= (size_t)n;
	}
	return true;
}

/*
 * A write to a pipe without readers, or beyond the limit on file sizes, raises a signal in the writing
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

/* With the lock held, or once the log is set up. */
static size_t format_line(char *line, const char *level, const char *text)
{
	int n = snprintf(line, LINE_BYTES, "%s:%d:%d SHUNT %s%s%s\n", host, (int)getpid(), (int)syscall(SYS_gettid),
	    level, *level ? " " : "", text);

	if (n >= LINE_BYTES) {
		n = LINE_BYTES - 1;
		line[n - 1] = '\n';
	}
	return (size_t)n;
}

static struct log_file *file_open(const char *path)
{
	struct log_file *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (f->fd < 0) {
		free(f);
		return NULL;
	}
	f->users = 1;
	atomic_init(&f->scans_left, MAX_SCANS);
	return f;
}

/* NULL: stderr. */
static struct log_file *file_get(void)
{
	struct log_file *f;

	shunt_lock_acquire(SHUNT_LOCK_LOG);
	f = file;
	if (f)
		f->users++;
	shunt_lock_release(SHUNT_LOCK_LOG);
	return f;
}

static void file_put(struct log_file *f)
{
	unsigned left;

	if (!f)
		return;
	shunt_lock_acquire(SHUNT_LOCK_LOG);
	left = --f->users;
	shunt_lock_release(SHUNT_LOCK_LOG);
	if (left)
		return;
	close(f->fd);
	free(f);
}

static void write_stderr(const char *line, size_t bytes)
{
	bool failed;

	write_all(STDERR_FILENO, line, bytes, &failed);
}

static void warn_of_file(const char *what, int err)
{
	char text[256], line[LINE_BYTES];

	errno = err;
	snprintf(text, sizeof(text), "cannot %s the file that NCCL_DEBUG_FILE names: %m; log lines go to stderr", what);
	write_stderr(line, format_line(line, "WARN", text));
}

/* Reports once that the file cannot be used, and switches to stderr. */
static void abandon_file(struct log_file *f, int err)
{
	bool first;

	shunt_lock_acquire(SHUNT_LOCK_LOG);
	first = file == f;
	if (first)
		file = NULL;
	shunt_lock_release(SHUNT_LOCK_LOG);
	if (!first)
		return;
	warn_of_file("write", err);
	file_put(f);
}

/* again: even if the log is set up. The file is opened without the lock: it may be far away. */
static void set_up(bool again)
{
	struct shunt_log_settings s;
	struct log_file *opened = NULL, *before = NULL;
	bool ours, wanted;
	int err = 0;

	shunt_log_parse(get_env, NULL, &s);
	wanted = *s.path && strcmp(s.path, "/dev/stderr");
	if (wanted) {
		opened = file_open(s.path);
		err = errno;
	}
	shunt_lock_acquire(SHUNT_LOCK_LOG);
	ours = again || !atomic_load(&ready);
	if (ours) {
		if (!*host) /* a line may be in the making */
			host_name(host, sizeof(host));
		before = file;
		file = opened;
		atomic_store(&level_now, s.level);
		atomic_store(&mask_now, s.mask);
		atomic_store(&banner_now, s.banner);
		atomic_store(&ready, true);
	}
	shunt_lock_release(SHUNT_LOCK_LOG);
	file_put(ours ? before : opened);
	if (ours && wanted && !opened && s.level > SHUNT_LOGLEVEL_NONE)
		warn_of_file("open", err);
}

/*
 * The real NCCL opens the same file on its own and writes at its own offset, over our lines. So look for its descriptor
 * and set O_APPEND there, too. After MAX_SCANS lines without such a descriptor, assume that none will come.
 */
static void make_writers_append(struct log_file *f)
{
	struct stat ours, other;
	struct dirent *entry;
	DIR *dir;

	if (atomic_load(&f->scans_left) <= 0 || fstat(f->fd, &ours) || !S_ISREG(ours.st_mode))
		return;
	atomic_fetch_sub(&f->scans_left, 1);
	dir = opendir("/proc/self/fd");
	while (dir && (entry = readdir(dir))) {
		int fd = atoi(entry->d_name), flags;

		if (entry->d_name[0] == '.' || fd == f->fd || fd == dirfd(dir) || fstat(fd, &other) ||
		    other.st_dev != ours.st_dev || other.st_ino != ours.st_ino)
			continue;
		flags = fcntl(fd, F_GETFL);
		if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
			continue;
		if ((flags & O_APPEND) || fcntl(fd, F_SETFL, flags | O_APPEND) == 0)
			atomic_store(&f->scans_left, 0);
	}
	if (dir)
		closedir(dir);
}

static void ensure_set_up(void)
{
	if (!atomic_load(&ready))
		set_up(false);
}

void shunt_log_reset(void)
{
	int err = errno;

	set_up(true);
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

static void put_line(const char *line, size_t bytes)
{
	struct log_file *f = file_get();
	bool failed = true;

	shunt_lock_check_blocking("prints", false);
	if (f) {
		make_writers_append(f);
		write_all(f->fd, line, bytes, &failed);
		if (failed)
			abandon_file(f, errno);
	}
	if (failed)
		write_stderr(line, bytes);
	file_put(f); /* NOLINT(clang-analyzer-unix.Malloc): f has a reference of its own until here */
}

/* A line, and after it how many before it were lost. */
static void put_counted(const char *line, size_t bytes)
{
	unsigned lost = atomic_load(&nlost);
	char text[128], more[LINE_BYTES];

	put_line(line, bytes);
	if (!lost || atomic_load(&nlost) != lost || !atomic_compare_exchange_strong(&nlost, &lost, 0))
		return;
	snprintf(text, sizeof(text), "%u lines before this one are lost: nobody read them within %d ms", lost, READ_MS);
	put_line(more, format_line(more, "WARN", text));
}

static void hold_line(const char *line, size_t bytes)
{
	struct held_line *l = malloc(sizeof(*l) + bytes);

	if (!l)
		return;
	l->next = NULL;
	l->bytes = bytes;
	memcpy(l->line, line, bytes);
	*(held.first ? held.end_p : &held.first) = l;
	held.end_p = &l->next;
}

void shunt_log_hold(void)
{
	held.depth++;
}

void shunt_log_flush(void)
{
	struct held_line *l = held.first, *next;
	int err = errno;

	if (--held.depth)
		return;
	held.first = NULL;
	for (; l; l = next) {
		next = l->next;
		put_counted(l->line, l->bytes);
		free(l);
	}
	errno = err;
}

static void write_line(const char *level, bool print, bool keep, const char *fmt, va_list ap)
{
	char text[TEXT_BYTES], line[LINE_BYTES];
	int err = errno, n;
	size_t bytes;

	n = vsnprintf(text, sizeof(text), fmt, ap); /* errno is still the caller's: %m */
	if (n < 0)
		snprintf(text, sizeof(text), "(unprintable message)");
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < ' ')
			*p = ' ';
	if (keep)
		shunt_last_error_set(text);
	if (print) {
		bytes = format_line(line, level, text);
		if (held.depth)
			hold_line(line, bytes);
		else
			put_counted(line, bytes);
	}
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

void shunt_warn_again(const char *fmt, ...)
{
	bool print = shunt_log_enabled(SHUNT_LOGLEVEL_WARN, 0);
	va_list ap;

	va_start(ap, fmt);
	write_line("WARN", print, false, fmt, ap);
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

	shunt_lock_acquire(SHUNT_LOCK_LOG);
	memcpy(copy, last_error, sizeof(copy));
	shunt_lock_release(SHUNT_LOCK_LOG);
	return copy;
}

void shunt_last_error_set(const char *text)
{
	shunt_lock_acquire(SHUNT_LOCK_LOG);
	snprintf(last_error, sizeof(last_error), "%s", text);
	shunt_lock_release(SHUNT_LOCK_LOG);
}

/* SPDX-License-Identifier: MIT */
/* Talks to the service for clients of NCCL's RAS: lines over TCP. Whoever listens there is not trusted. */
#include <netdb.h>
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "base/io.h"
#include "tools/ras/ras.h"

enum {
	MAX_BYTES = 64 << 20,
	TALK_MS = 5000,    /* for each answer of a line */
	NCCL_WAIT_S = 5,   /* NCCL's own limit, without -t */
	EXTRA_WAIT_S = 11, /* what NCCL adds to it, and a second */
	PROTOCOL = 2,
};

static int fail(char reason[256], int err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(reason, 256, fmt, args);
	va_end(args);
	return err;
}

/* Waits until the socket is ready. deadline 0: without an end. False: it is not in time. */
static bool wait_for(int fd, short events, int64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = events };
	int64_t left;

	do {
		left = deadline ? deadline - shunt_now_ms() : -1;
		if (deadline && left <= 0)
			return false;
	} while (poll(&p, 1, (int)left) < 0 && errno == EINTR);
	return p.revents;
}

static int connect_one(const struct addrinfo *ai)
{
	int fd = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, ai->ai_protocol), err = 0;
	socklen_t n = sizeof(err);

	if (fd < 0)
		return -errno;
	if (connect(fd, ai->ai_addr, ai->ai_addrlen)) {
		err = errno;
		if (err == EINPROGRESS && !wait_for(fd, POLLOUT, shunt_now_ms() + TALK_MS))
			err = ETIMEDOUT;
		else if (err == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n))
			err = errno;
	}
	if (err)
		close(fd);
	return err ? -err : fd;
}

static int connect_to(const struct ras_opts *o, char reason[256])
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
	int fd = -EADDRNOTAVAIL, err = getaddrinfo(o->host, o->port, &hints, &list);

	if (err)
		return fail(reason, -EINVAL, "%s:%s: %s", o->host, o->port, gai_strerror(err));
	for (const struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next)
		fd = connect_one(ai);
	freeaddrinfo(list);
	return fd < 0 ? fail(reason, fd, "%s:%s: %s", o->host, o->port, strerror(-fd)) : fd;
}

/* Sends a line and reads one, without its end. Reads no byte beyond it. */
static int talk(int fd, char reason[256], const char *line, char answer[128])
{
	size_t n = 0;
	int64_t deadline = shunt_now_ms() + TALK_MS;

	if (send(fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
		return fail(reason, -EIO, "the connection has ended");
	do {
		ssize_t got = wait_for(fd, POLLIN, deadline) ? read(fd, answer + n, 1) : -2;

		if (got == -2)
			return fail(reason, -ETIMEDOUT, "no answer to \"%.*s\" in %d s", (int)strcspn(line, "\n"), line,
			    TALK_MS / 1000);
		if (got <= 0)
			return fail(reason, -EIO, "the connection has ended");
		n++;
	} while (answer[n - 1] != '\n' && n < 127);
	answer[n] = 0;
	answer[strcspn(answer, "\r\n")] = 0;
	return 0;
}

static int expect_ok(int fd, char reason[256], const char *line)
{
	char answer[128];
	int err = talk(fd, reason, line, answer);

	if (!err && strcasecmp(answer, "OK"))
		return fail(
		    reason, -EPROTO, "\"%.*s\" is answered with \"%.60s\"", (int)strcspn(line, "\n"), line, answer);
	return err;
}

static int read_all(int fd, char reason[256], int64_t deadline, char **text_p, size_t *bytes_p)
{
	size_t cap = 1 << 16, bytes = 0;
	char *text = malloc(cap), *more;
	ssize_t n = 1;

	while (text && n) {
		n = wait_for(fd, POLLIN, deadline) ? read(fd, text + bytes, cap - 1 - bytes) : -1;
		if (n < 0) {
			free(text);
			return fail(reason, -ETIMEDOUT, "the answer does not come, or not to its end");
		}
		bytes += (size_t)n;
		if (bytes < cap - 1)
			continue;
		more = cap < MAX_BYTES ? realloc(text, cap *= 2) : NULL;
		if (!more)
			free(text);
		text = more;
	}
	if (!text)
		return fail(reason, -EMSGSIZE, "the answer is longer than %d MB", MAX_BYTES >> 20);
	if (!bytes) {
		free(text);
		return fail(reason, -EIO, "the connection has ended");
	}
	text[bytes] = 0;
	*text_p = text;
	*bytes_p = bytes;
	return 0;
}

int ras_ask(const struct ras_opts *o, bool json, char **text_p, size_t *bytes_p, char reason[256])
{
	int seconds = o->timeout < 0 ? NCCL_WAIT_S : o->timeout, fd = connect_to(o, reason), err;
	const char *ask = o->verbose ? "VERBOSE STATUS\n" : "STATUS\n";
	char line[64], answer[128];

	if (fd < 0)
		return fd;
	snprintf(line, sizeof(line), "CLIENT PROTOCOL %d\n", PROTOCOL);
	err = talk(fd, reason, line, answer);
	if (!err && strncasecmp(answer, "SERVER PROTOCOL ", 16))
		err = fail(reason, -EPROTO, "%s:%s is not NCCL's RAS: it says \"%.60s\"", o->host, o->port, answer);
	snprintf(line, sizeof(line), "TIMEOUT %d\n", seconds);
	if (!err && o->timeout >= 0)
		err = expect_ok(fd, reason, line);
	if (!err && json)
		err = expect_ok(fd, reason, "SET FORMAT json\n");
	if (!err && send(fd, ask, strlen(ask), MSG_NOSIGNAL) != (ssize_t)strlen(ask))
		err = fail(reason, -EIO, "the connection has ended");
	if (!err)
		err = read_all(
		    fd, reason, o->timeout ? shunt_now_ms() + 1000 * (seconds + EXTRA_WAIT_S) : 0, text_p, bytes_p);
	close(fd);
	return err;
}

char *ras_repair(const char *text, size_t bytes)
{
	static const char key[] = "\"nvml_dev\":", next[] = "\"status\"";
	static const char digits[] = " -0123456789", blanks[] = " \r\n\t";
	char *copy = malloc(2 * bytes + 1), *to = copy;

	while (copy && bytes) {
		size_t n = bytes >= sizeof(key) - 1 && !memcmp(text, key, sizeof(key) - 1) ? sizeof(key) - 1 : 0, gap;

		while (n && n < bytes && memchr(digits, text[n], sizeof(digits) - 1))
			n++;
		for (gap = n; n && gap < bytes && memchr(blanks, text[gap], sizeof(blanks) - 1);)
			gap++;
		n = n ? n : 1;
		memcpy(to, text, n);
		to += n;
		if (gap && bytes - gap >= sizeof(next) - 1 && !memcmp(text + gap, next, sizeof(next) - 1))
			*to++ = ',';
		text += n;
		bytes -= n;
	}
	if (copy)
		*to = 0;
	return copy;
}

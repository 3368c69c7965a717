/* SPDX-License-Identifier: MIT */
/* What the watcher knows as Prometheus' text: in a file, or to who asks over loopback. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "base/io.h"
#include "tools/watch/watch.h"

#define MOST_COMMUNICATORS 200
#define RETRY_MS 60000

static void put_label(FILE *out, const char *name, const char *value)
{
	fprintf(out, "%s=\"", name);
	for (; *value; value++)
		if (*value == '\\' || *value == '"')
			fprintf(out, "\\%c", *value);
		else if (*value == '\n')
			fputs("\\n", out);
		else
			fputc((unsigned char)*value < ' ' || (unsigned char)*value >= 0x7f ? '?' : *value, out);
	fputc('"', out);
}

static void put_begin(FILE *out, const char *metric, const char *comm)
{
	const char *job = getenv("SLURM_JOB_ID");

	fprintf(out, "%s{", metric);
	put_label(out, "comm", comm);
	if (job && *job) {
		fputc(',', out);
		put_label(out, "slurm_job_id", job);
	}
}

static void put_rank(FILE *out, const char *metric, const struct watch_rank *r)
{
	char number[16];

	put_begin(out, metric, r->key);
	snprintf(number, sizeof(number), "%d", r->rank);
	fputc(',', out);
	put_label(out, "rank", number);
	fputc(',', out);
	put_label(out, "node", r->host);
}

static void put_head(FILE *out, const char *metric, const char *type, const char *help)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", metric, help, metric, type);
}

/* Communicators beyond the limit have no series of their own. */
static bool has_series(const struct watch *w, const struct watch_rank *r)
{
	for (size_t i = 0; i < w->ngroups && i < MOST_COMMUNICATORS; i++)
		if (!strcmp(w->groups[i].key, r->key))
			return true;
	return false;
}

static void put_counts(FILE *out, const struct watch *w, bool bytes)
{
	const char *metric = bytes ? "shunt_bytes_total" : "shunt_calls_total";
	uint64_t others = 0;

	put_head(out, metric, "counter",
	    bytes ? "Bytes of all calls, by operation, path and reason." : "All calls, by operation, path and reason.");
	for (size_t i = 0; i < w->nranks; i++)
		for (size_t k = 0; k < w->ranks[i].now->ncounters; k++) {
			const struct dump_counter *c = &w->ranks[i].now->counters[k];

			if (!has_series(w, &w->ranks[i])) {
				others += bytes ? c->bytes : c->calls;
				continue;
			}
			put_rank(out, metric, &w->ranks[i]);
			fputc(',', out);
			put_label(out, "op", c->op);
			fputc(',', out);
			put_label(out, "path", c->path);
			fputc(',', out);
			put_label(out, "reason", c->reason);
			fprintf(out, "} %llu\n", (unsigned long long)(bytes ? c->bytes : c->calls));
		}
	if (w->ngroups > MOST_COMMUNICATORS) {
		put_begin(out, metric, "other");
		fprintf(out, "} %llu\n", (unsigned long long)others);
	}
}

static void put_waits(FILE *out, const struct watch *w)
{
	put_head(
	    out, "shunt_wait_seconds_total", "counter", "Time for which kernels of a rank have waited for a peer.");
	for (size_t i = 0; i < w->nranks; i++) {
		const struct watch_rank *r = &w->ranks[i];

		for (size_t p = 0; p < r->now->nwaits && has_series(w, r); p++)
			if (r->now->waits[p]) {
				put_rank(out, "shunt_wait_seconds_total", r);
				fprintf(out, ",peer=\"%zu\"} %.6f\n", p, (double)r->now->waits[p] / 1e9);
			}
	}
}

static void put_oldest(FILE *out, const struct watch *w)
{
	put_head(out, "shunt_oldest_unfinished_seconds", "gauge", "Age of the oldest call that has not finished.");
	for (size_t i = 0; i < w->nranks; i++) {
		const struct dump_comm *c = w->ranks[i].now;
		const struct dump_op *op = watch_unfinished(c);
		uint64_t now = c->process->time_ns;

		if (!has_series(w, &w->ranks[i]))
			continue;
		put_rank(out, "shunt_oldest_unfinished_seconds", &w->ranks[i]);
		fprintf(out, "} %.3f\n", op && now > op->time_ns ? (double)(now - op->time_ns) / 1e9 : 0);
	}
}

int metrics_text(const struct watch *w, char **text_p, size_t *bytes_p)
{
	FILE *out = open_memstream(text_p, bytes_p);

	if (!out)
		return -ENOMEM;
	put_counts(out, w, false);
	put_counts(out, w, true);
	put_waits(out, w);
	put_oldest(out, w);
	put_head(out, "shunt_hang", "gauge", "1: a call of the communicator has not moved for the time of --hang.");
	for (size_t i = 0; i < w->ngroups && i < MOST_COMMUNICATORS; i++) {
		put_begin(out, "shunt_hang", w->groups[i].key);
		fprintf(out, "} %d\n", w->groups[i].hangs);
	}
	put_head(out, "shunt_communicator_info", "gauge", "Whether Shunt's kernels run, and if not, why.");
	for (size_t i = 0; i < w->nranks; i++) {
		if (!has_series(w, &w->ranks[i]))
			continue;
		put_rank(out, "shunt_communicator_info", &w->ranks[i]);
		fprintf(out, ",nranks=\"%d\",", w->ranks[i].nranks);
		put_label(out, "state", w->ranks[i].now->state);
		fputc(',', out);
		put_label(out, "reason", w->ranks[i].now->reason);
		fputs("} 1\n", out);
	}
	put_head(out, "shunt_up", "gauge", "1: the process has answered.");
	for (size_t i = 0; i < w->nprocesses; i++)
		fprintf(out, "shunt_up{pid=\"%d\"} %d\n", w->processes[i].pid, !w->processes[i].silent);
	if (!fclose(out))
		return 0;
	free(*text_p);
	return -ENOMEM;
}

static void metrics_path(const struct watch *w, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/shunt.prom", w->o->prometheus);
}

void metrics_write(struct watch *w)
{
	struct tool_file f;
	char path[PATH_MAX], *text;
	size_t bytes;

	if (!w->o->prometheus || (w->metrics_said_ms && shunt_now_ms() - w->metrics_said_ms < RETRY_MS))
		return;
	metrics_path(w, path);
	w->metrics_said_ms = shunt_now_ms();
	if (metrics_text(w, &text, &bytes))
		return;
	if (!tool_file_replace(&f, path)) {
		fwrite(text, 1, bytes, f.out);
		if (fchmod(fileno(f.out), 0644))
			tool_error("cannot let others read %s: %s", path, strerror(errno));
		if (!tool_file_end(&f, 0))
			w->metrics_said_ms = 0;
	}
	free(text);
}

void metrics_remove(const struct watch *w)
{
	char path[PATH_MAX];

	if (!w->o->prometheus)
		return;
	metrics_path(w, path);
	unlink(path);
}

int listen_open(const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	const char *colon = strrchr(address, ':');
	char host[32];
	unsigned port;
	int fd, on = 1;

	snprintf(host, sizeof(host), "%.*s", colon ? (int)(colon - address) : 0, address);
	if (!colon || inet_pton(AF_INET, host, &to.sin_addr) != 1 || tool_parse_uint(colon + 1, 1, 65535, &port)) {
		tool_error("--listen: \"%s\" is no address and port, such as 127.0.0.1:9400", address);
		return -1;
	}
	if (ntohl(to.sin_addr.s_addr) >> 24 != 127) {
		tool_error(
		    "--listen: %s is not an address of this host alone; let the collector come to 127.0.0.1", host);
		return -1;
	}
	to.sin_port = htons((uint16_t)port);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
	    !bind(fd, (struct sockaddr *)&to, sizeof(to)) && !listen(fd, 16))
		return fd;
	tool_error("--listen: %s: %s", address, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

/* A client that is slow gets a second for its request and one for the answer. */
void listen_answer(int listener, const struct watch *w)
{
	struct timeval second = { .tv_sec = 1 };
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	char request[4096], head[256], *text = NULL;
	size_t bytes = 0;
	ssize_t n;

	if (fd < 0)
		return;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
	n = recv(fd, request, sizeof(request), 0);
	if (n >= 4 && !memcmp(request, "GET ", 4) && !metrics_text(w, &text, &bytes)) {
		int64_t end = shunt_now_ms() + 1000 * second.tv_sec;
		int length = snprintf(head, sizeof(head),
		    "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %zu\r\n\r\n", bytes);

		if (send(fd, head, (size_t)length, MSG_NOSIGNAL) == length)
			for (size_t at = 0; at < bytes; at += (size_t)n) {
				n = send(fd, text + at, bytes - at, MSG_NOSIGNAL);
				if (n <= 0 || shunt_now_ms() > end)
					break;
			}
		free(text);
	}
	close(fd);
}

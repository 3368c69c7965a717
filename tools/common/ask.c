/* SPDX-License-Identifier: MIT */
#include "tools/common/ask.h"
#include <sched.h>
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "base/dump_address.h"
#include "base/io.h"
#include "tools/common/tool.h"

#define AGAIN_MS 20 /* a queue of connections that was full */

int ask_process_read(pid_t pid, struct ask_process *p)
{
	char path[64], line[512];
	struct stat st;
	FILE *f;

	*p = (struct ask_process){ .pid = pid, .ns_pid = pid, .state = '?', .fd = -1 };
	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	if (stat(path, &st))
		return -ESRCH;
	p->uid = st.st_uid;
	p->pid_namespace = shunt_dump_namespace(path + strlen("/proc/"));
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		const char *last = strrchr(line, '\t');

		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "Name:", 5))
			snprintf(p->name, sizeof(p->name), "%.40s", line + 6);
		else if (!strncmp(line, "State:", 6))
			p->state = line[7];
		else if (!strncmp(line, "PPid:", 5))
			p->parent = (pid_t)atoi(line + 6);
		else if (!strncmp(line, "NSpid:", 6) && last)
			p->ns_pid = (pid_t)atoi(last + 1);
	}
	fclose(f);
	return 0;
}

/* A line of /proc/net/unix; false: it is no socket that listens for us, or another user's. */
static bool line_read(const char *line, struct ask_process *p)
{
	unsigned long uid, namespace, flags;
	const char *name = strstr(line, " @shunt-doctor-");
	long pid;
	int end = 0;

	if (!name || sscanf(line, "%*s %*s %*s %lx", &flags) != 1 || !(flags & 0x10000) /* it listens */)
		return false;
	if (sscanf(name, " @shunt-doctor-%lu-%lu-%ld%n", &uid, &namespace, &pid, &end) != 3 ||
	    (name[end] && name[end] != '\n') || (geteuid() && uid != geteuid()))
		return false;
	*p = (struct ask_process){
		.uid = (uid_t)uid, .pid_namespace = namespace, .ns_pid = (pid_t)pid, .state = '?', .fd = -1
	};
	return true;
}

/* Adds the sockets that a file such as /proc/net/unix tells of. 0 or -ENOMEM. */
static int sockets_add(const char *path, pid_t entry, struct ask_process **processes_p, size_t *n_p)
{
	FILE *f = fopen(path, "re");
	struct ask_process p, *more;
	char line[512];
	int err = 0;

	while (f && !err && fgets(line, sizeof(line), f)) {
		if (!line_read(line, &p))
			continue;
		more = realloc(*processes_p, (*n_p + 1) * sizeof(*more));
		if (!more) {
			err = -ENOMEM;
			break;
		}
		*processes_p = more;
		p.entry = entry;
		more[(*n_p)++] = p;
	}
	if (f)
		fclose(f);
	return err;
}

static ino_t network_of(const char *process)
{
	char path[320];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%s/ns/net", process);
	return stat(path, &st) ? 0 : st.st_ino;
}

/* Those of other network namespaces, each once. 0 or -ENOMEM. */
static int others_add(struct ask_process **processes_p, size_t *n_p)
{
	DIR *dir = opendir("/proc");
	ino_t *seen = calloc(1, sizeof(*seen)), *more, at;
	size_t nseen = 1;
	struct dirent *entry;
	char path[320];
	int err = seen ? 0 : -ENOMEM;

	if (seen)
		seen[0] = network_of("self");
	while (dir && !err && (entry = readdir(dir))) {
		size_t i = 0;

		if (atoi(entry->d_name) <= 0 || !(at = network_of(entry->d_name)))
			continue;
		while (i < nseen && seen[i] != at)
			i++;
		if (i < nseen)
			continue;
		more = realloc(seen, (nseen + 1) * sizeof(*seen));
		if (!more) {
			err = -ENOMEM;
			break;
		}
		seen = more;
		seen[nseen++] = at;
		snprintf(path, sizeof(path), "/proc/%s/net/unix", entry->d_name);
		err = sockets_add(path, (pid_t)atoi(entry->d_name), processes_p, n_p);
	}
	if (dir)
		closedir(dir);
	free(seen);
	return err;
}

int ask_find(bool everywhere, struct ask_process **processes_p, size_t *n_p)
{
	int err;

	*processes_p = NULL;
	*n_p = 0;
	if (access("/proc/net/unix", R_OK))
		return -errno;
	err = sockets_add("/proc/net/unix", 0, processes_p, n_p);
	if (!err && everywhere)
		err = others_add(processes_p, n_p);
	if (err)
		ask_free(*processes_p, *n_p);
	return err;
}

void ask_put_first(struct ask_process *processes, size_t i, size_t *first_p)
{
	struct ask_process one = processes[i];

	processes[i] = processes[*first_p];
	processes[(*first_p)++] = one;
}

static void done(struct ask_process *p, int err)
{
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
	p->err = err;
	if (!err)
		return;
	free(p->text);
	p->text = NULL;
	p->bytes = 0;
}

/* Any process may take an abstract name: the peer's user counts. A stopped process would never answer. */
static int peer_check(struct ask_process *p)
{
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t bytes = sizeof(peer);
	struct ask_process now;

	if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) || peer.uid != p->uid)
		return -EPERM;
	if (peer.pid > 0 && !ask_process_read(peer.pid, &now)) {
		p->pid = peer.pid;
		p->state = now.state;
		snprintf(p->name, sizeof(p->name), "%s", now.name);
	}
	return p->state == 'T' || p->state == 'Z' ? -ETIMEDOUT : 0;
}

/* A socket of the network namespace in which the process has its own, or -errno. */
static int socket_open(pid_t entry)
{
	int here = entry ? open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC) : -1, there = -1, fd = -1, err = 0;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)entry);
	if (entry && (here < 0 || (there = open(path, O_RDONLY | O_CLOEXEC)) < 0 || setns(there, CLONE_NEWNET)))
		err = -errno;
	else
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (!err && fd < 0)
		err = -errno;
	if (entry && !err && setns(here, CLONE_NEWNET)) { /* not back: nothing else is found from here */
		err = -errno;
		close(fd);
	}
	if (there >= 0)
		close(there);
	if (here >= 0)
		close(here);
	return err == -ENOENT || err == -ESRCH ? -ECONNREFUSED : err ? err : fd; /* it has ended */
}

/* Connects and sends the request. -EAGAIN: the queue of connections is full. */
static int process_connect(struct ask_process *p, const char *request)
{
	struct sockaddr_un address;
	socklen_t bytes = shunt_dump_address(&address, p->uid, p->pid_namespace, p->ns_pid);
	char line[256];
	int n = snprintf(line, sizeof(line), "%s\n", request), err;
	ssize_t sent;

	if (p->state == 'T' || p->state == 'Z')
		return -ETIMEDOUT;
	p->fd = socket_open(p->entry);
	if (p->fd < 0) {
		err = p->fd;
		p->fd = -1;
		return err == -EPERM ? -EACCES : err;
	}
	err = connect(p->fd, (const struct sockaddr *)&address, bytes) ? -errno : peer_check(p);
	if (!err) {
		sent = send(p->fd, line, (size_t)n, MSG_NOSIGNAL);
		/* EPIPE: an earlier version, which reads no request, has answered already. */
		if (sent < 0 ? errno != EPIPE : sent != n)
			err = -ECONNRESET;
	}
	if (err != -EAGAIN && err != -EINTR)
		return err;
	close(p->fd);
	p->fd = -1;
	return -EAGAIN;
}

/* Takes what has come. cap: what the text has room for. 1: it is all; 0: more comes; -errno. */
static int process_receive(struct ask_process *p, size_t *cap)
{
	char *more;
	ssize_t n;

	if (p->bytes == *cap) {
		if (*cap >= ASK_MAX_BYTES)
			return -EMSGSIZE;
		more = realloc(p->text, *cap = *cap ? *cap * 2 : 1 << 16);
		if (!more)
			return -ENOMEM;
		p->text = more;
	}
	n = read(p->fd, p->text + p->bytes, *cap - p->bytes);
	if (n > 0)
		p->bytes += (size_t)n;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	/* An earlier version closes without having read the request, and so resets the connection behind its answer. */
	if (n < 0 && !(errno == ECONNRESET && p->bytes))
		return -errno;
	return n > 0 ? 0 : p->bytes ? 1 : -ECONNRESET;
}

static bool step(struct ask_process *processes, size_t n, const char *request, struct pollfd *fds, size_t *caps)
{
	bool open = false, again = false;
	int err;

	for (size_t i = 0; i < n; i++) {
		struct ask_process *p = &processes[i];

		fds[i].fd = -1;
		if (p->err != -EINPROGRESS)
			continue;
		err = p->fd < 0 ? process_connect(p, request) : fds[i].revents ? process_receive(p, &caps[i]) : 0;
		if (err && err != -EAGAIN) {
			done(p, err < 0 ? err : 0);
			continue;
		}
		fds[i] = (struct pollfd){ .fd = p->fd, .events = POLLIN };
		open = true;
		again |= p->fd < 0;
	}
	if (open && poll(fds, n, AGAIN_MS * (again ? 1 : 10)) < 0) /* an interruption: nobody has events */
		for (size_t i = 0; i < n; i++)
			fds[i].revents = 0;
	return open;
}

void ask_all(struct ask_process *processes, size_t n, const char *request)
{
	struct pollfd *fds = calloc(n + 1, sizeof(*fds));
	size_t *caps = calloc(n + 1, sizeof(*caps));
	int64_t deadline = shunt_now_ms() + ASK_SECONDS * 1000;

	for (size_t i = 0; i < n; i++) {
		free(processes[i].text);
		processes[i].text = NULL;
		processes[i].bytes = 0;
		processes[i].err = fds && caps ? -EINPROGRESS : -ENOMEM;
	}
	while (fds && caps && shunt_now_ms() < deadline && step(processes, n, request, fds, caps))
		;
	for (size_t i = 0; i < n; i++)
		if (processes[i].err == -EINPROGRESS)
			done(&processes[i], -ETIMEDOUT);
	free(fds);
	free(caps);
}

void ask_free(struct ask_process *processes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(processes[i].text);
	free(processes);
}

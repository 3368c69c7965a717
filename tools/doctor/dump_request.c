/* SPDX-License-Identifier: MIT */
/* Requests the dump of a running process, through the socket of src/comm/observe/dump.c. */
#include <errno.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/dump_address.h"
#include "base/io.h"
#include "tools/doctor/doctor.h"

#define TIMEOUT_MS 10000 /* of all that is asked of one process */
#define AGAIN_MS 20

static const char topic[] = "processes";

struct process {
	uid_t uid;
	pid_t ns_pid; /* pid in the process's own pid namespace */
	char state;   /* as in /proc/PID/stat: R, S, D, T, Z, ... */
	char name[64];
};

static int process_read(pid_t pid, struct process *p)
{
	char path[64], line[512];
	struct stat st;
	FILE *f;

	*p = (struct process){ .ns_pid = pid, .state = '?' };
	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	if (stat(path, &st))
		return -ESRCH;
	p->uid = st.st_uid;
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
		else if (!strncmp(line, "NSpid:", 6) && last)
			p->ns_pid = (pid_t)atoi(last + 1);
	}
	fclose(f);
	return 0;
}

static int64_t ms_until(int64_t deadline)
{
	int64_t now = shunt_now_ms();

	return now < deadline ? deadline - now : 0;
}

/* A process whose queue of connections is full does not answer, perhaps because it is in a debugger: 0 or -errno. */
static int connect_until(int fd, const struct sockaddr_un *address, socklen_t bytes, int64_t deadline)
{
	while (connect(fd, (const struct sockaddr *)address, bytes)) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (!ms_until(deadline))
			return -ETIMEDOUT;
		poll(NULL, 0, AGAIN_MS);
	}
	return 0;
}

static int connect_to(pid_t pid, const struct process *p, int64_t deadline)
{
	struct sockaddr_un address;
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t bytes, n = sizeof(peer);
	char number[16];
	int fd, err;

	snprintf(number, sizeof(number), "%d", (int)pid);
	bytes = shunt_dump_address(&address, p->uid, shunt_dump_namespace(number), p->ns_pid);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	err = connect_until(fd, &address, bytes, deadline);
	if (err)
		goto err_close;
	/* Any process may take an abstract name: check the peer's user. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) || peer.uid != p->uid) {
		err = -EPERM;
		goto err_close;
	}
	return fd;
err_close:
	close(fd);
	return err;
}

/* All by the deadline, however slowly it comes. */
static int fd_read_all(int fd, int64_t deadline, char **text_p, size_t *bytes_p)
{
	size_t cap = 1 << 16, bytes = 0;
	char *text = malloc(cap);
	int err = -ENOMEM;

	while (text) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n;

		if (!ms_until(deadline) || poll(&p, 1, (int)ms_until(deadline)) == 0) {
			err = -ETIMEDOUT;
			break;
		}
		n = read(fd, text + bytes, cap - bytes);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n == 0) {
			*text_p = text;
			*bytes_p = bytes;
			return 0;
		}
		if (n < 0) {
			err = -errno;
			break;
		}
		bytes += (size_t)n;
		if (bytes == cap) {
			char *more = cap < DUMP_MAX_BYTES ? realloc(text, cap *= 2) : NULL;

			if (!more)
				break;
			text = more;
		}
	}
	free(text);
	return err;
}

/* The process answers only its own user and root; for other users even its socket may be invisible. */
static void foreign_user_explain(struct findings *f, pid_t pid, const struct process *p)
{
	struct passwd entry, *owner = NULL;
	char number[16], cap[4096];

	if (getpwuid_r(p->uid, &entry, cap, sizeof(cap), &owner))
		owner = NULL;
	snprintf(number, sizeof(number), "%u", (unsigned)p->uid);
	finding_add(f, FINDING_ERROR, topic, "ask as that user, or as root",
	    "process %d (%s) belongs to user %s: only that user and root get an answer", (int)pid, p->name,
	    owner ? owner->pw_name : number /* the user may have no name */);
}

static void failure_explain(struct findings *f, pid_t pid, const struct process *p, int err)
{
	if (err == -ETIMEDOUT && p->state == 'T')
		finding_add(f, FINDING_ERROR, topic, "its peers wait for it: kill -CONT it",
		    "process %d (%s) is stopped", (int)pid, p->name);
	else if (p->state == 'Z')
		finding_add(f, FINDING_ERROR, topic, "its peers wait for nobody: end the job",
		    "process %d (%s) is dead, and its parent has not looked", (int)pid, p->name);
	else if (err == -ETIMEDOUT)
		finding_add(f, FINDING_ERROR, topic, "", "process %d (%s, state %c) does not answer within %d s",
		    (int)pid, p->name, p->state, TIMEOUT_MS / 1000);
	else if ((err == -ECONNREFUSED || err == -ECONNRESET) && geteuid() && geteuid() != p->uid)
		foreign_user_explain(f, pid, p);
	else if (err == -ECONNREFUSED)
		finding_add(f, FINDING_WARN, topic,
		    "it has no communicator yet, runs without Shunt or with SHUNT_DOCTOR=0, or is in a container with "
		    "another "
		    "network: ask from inside that",
		    "process %d (%s) has no socket of Shunt", (int)pid, p->name);
	else if (err == -EPERM || err == -ECONNRESET)
		finding_add(f, FINDING_ERROR, topic, "",
		    "the socket of process %d (%s) is not its own, or does not talk to this user", (int)pid, p->name);
	else
		finding_add(f, FINDING_ERROR, topic, "", "process %d (%s): %s", (int)pid, p->name, strerror(-err));
}

int doctor_dump_request(struct findings *f, pid_t pid, char **text_p, size_t *bytes_p)
{
	struct process p;
	size_t bytes = 0;
	char *text = NULL;
	int64_t deadline = shunt_now_ms() + TIMEOUT_MS;
	int fd = -1, err = process_read(pid, &p);

	if (err) {
		finding_add(f, FINDING_ERROR, topic, "", "there is no process %d", (int)pid);
		return err;
	}
	/* A stopped process accepts the connection but never answers: do not wait for it. */
	if (p.state == 'T' || p.state == 'Z')
		err = -ETIMEDOUT;
	else
		err = fd = connect_to(pid, &p, deadline);
	if (fd >= 0) {
		err = fd_read_all(fd, deadline, &text, &bytes);
		close(fd);
	}
	if (!err && !bytes)
		err = -ECONNRESET;
	if (err) {
		free(text);
		failure_explain(f, pid, &p, err);
		return err;
	}
	*text_p = text;
	*bytes_p = bytes;
	return 0;
}

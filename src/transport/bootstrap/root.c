/* SPDX-License-Identifier: MIT */
/* The root: one thread per unique id that collects the ranks and tells them the outcome. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "transport/bootstrap/wire.h"
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"

#define STACK_BYTES (256 * 1024)
#define MAX_PENDING_CONNS 128
#define HELLO_MS 10000     /* time for a hello */
#define HELLO_BUSY_MS 1000 /* the same while all places are taken */
#define FIRST_LOG_MS 30000
#define IDLE_MS (3600 * 1000) /* lifetime of an id that no rank uses */
#define LINGER_MS 60000       /* after a failure, at most: time to tell late ranks */
#define LINGER_ENV_MS 2000    /* the same for NCCL_COMM_ID, whose port is needed again */
#define SEND_MS 5000

struct pending_conn {
	int fd;
	int64_t since;
	size_t got;
	uint8_t nonce[BOOTSTRAP_NONCE];
	struct bootstrap_hello hello;
};

struct root {
	struct bootstrap_id id;
	int listen_fd;
	uint8_t host[SHUNT_HOST_BYTES];
	struct pending_conn pending_conn[MAX_PENDING_CONNS];
	int npending_conns;
	/* Valid from the first hello on. */
	int nranks, first; /* first: the rank that sent the first hello */
	int arrived, nreplied;
	int *peer_fds;                 /* per rank; -1: none */
	bool *seen;                    /* per rank: has ever arrived */
	struct bootstrap_hello *hello; /* per rank */
	struct pollfd *pfds;
	int status; /* outcome: 1 while open */
	char text[172];
	int64_t started, last_event, next_log, log_step, paused_until; /* started: when the first rank came */
};

/* Entries of pfds: the listening socket, the pending connections, the ranks. */
static struct pollfd *root_pfds(struct root *root)
{
	if (!root->pfds)
		root->pfds = calloc(1 + MAX_PENDING_CONNS + SHUNT_BOOTSTRAP_MAX_RANKS, sizeof(*root->pfds));
	return root->pfds;
}

static void close_socket(int *fd)
{
	if (*fd >= 0) {
		/* Ends the connection even if a forked child holds a copy of the descriptor. */
		shutdown(*fd, SHUT_RDWR);
		close(*fd);
	}
	*fd = -1;
}

static void root_destroy(struct root *root)
{
	for (int i = 0; i < root->npending_conns; i++)
		close_socket(&root->pending_conn[i].fd);
	for (int r = 0; root->peer_fds && r < root->nranks; r++)
		close_socket(&root->peer_fds[r]);
	close_socket(&root->listen_fd);
	explicit_bzero(&root->id, sizeof(root->id));
	free(root->peer_fds);
	free(root->seen);
	free(root->hello);
	free(root->pfds);
	free(root);
}

/* hello: the hello that came on this connection. */
static void send_answer(const struct root *root, int fd, const struct bootstrap_hello *hello, enum bootstrap_kind kind,
    int status, const char *text)
{
	struct bootstrap_answer a = {
		.magic = BOOTSTRAP_MAGIC, .version = BOOTSTRAP_VERSION, .kind = kind, .status = status
	};

	snprintf(a.text, sizeof(a.text), "%s", text);
	shunt_mac(a.mac, root->id.secret, sizeof(root->id.secret), "shunt bootstrap answer", hello->nonce,
	    BOOTSTRAP_NONCE, &a, offsetof(struct bootstrap_answer, mac));
	/* An answer fits the socket's empty buffer. A rank that lets the buffer fill up counts as dead. */
	(void)shunt_io_write(fd, &a, sizeof(a), shunt_now_ms() + (kind == BOOTSTRAP_DONE ? SEND_MS : 0), NULL);
}

/* Sends the outcome to one rank and closes its connection. */
static void send_status(struct root *root, int rank)
{
	if (root->peer_fds[rank] < 0)
		return;
	send_answer(root, root->peer_fds[rank], &root->hello[rank], BOOTSTRAP_DONE, root->status, root->text);
	close_socket(&root->peer_fds[rank]);
	root->nreplied++;
}

/* Ranks of our own process come last: when the first of them returns, the program may end, and this thread with it. */
static void send_status_all(struct root *root)
{
	for (int own = 0; own < 2; own++)
		for (int r = 0; r < root->nranks; r++)
			if ((root->hello[r].pid == (uint32_t)getpid()) == own)
				send_status(root, r);
}

__attribute__((format(printf, 3, 4))) static void set_status(struct root *root, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(root->text, sizeof(root->text), fmt, ap);
	va_end(ap);
	root->status = status;
	root->last_event = shunt_now_ms();
	/* Close before any rank learns of the success: later connections are meant for another communicator. */
	if (!status)
		close_socket(&root->listen_fd);
	send_status_all(root);
}

static void pending_conn_drop(struct root *root, int i)
{
	close_socket(&root->pending_conn[i].fd);
	root->pending_conn[i] = root->pending_conn[--root->npending_conns];
}

static int ranks_alloc(struct root *root, const struct bootstrap_hello *h)
{
	size_t n = (size_t)h->nranks;

	root->peer_fds = malloc(n * sizeof(*root->peer_fds));
	root->seen = calloc(n, sizeof(*root->seen));
	root->hello = calloc(n, sizeof(*root->hello));
	if (!root->peer_fds || !root->seen || !root->hello)
		return -ENOMEM; /* ends the root, so there is no second call */
	for (size_t r = 0; r < n; r++)
		root->peer_fds[r] = -1;
	root->nranks = h->nranks;
	root->first = h->rank;
	return 0;
}

/* Handles a complete hello. The connection becomes the rank's, or stays with p and is dropped. */
static void admit(struct root *root, struct pending_conn *p)
{
	struct bootstrap_hello *h = &p->hello;
	uint8_t mac[SHUNT_MAC_BYTES];

	shunt_mac(mac, root->id.secret, sizeof(root->id.secret), "shunt bootstrap hello", p->nonce, sizeof(p->nonce), h,
	    offsetof(struct bootstrap_hello, mac));
	if (h->magic != BOOTSTRAP_MAGIC || !shunt_mac_equal(mac, h->mac))
		return;
	h->shunt[sizeof(h->shunt) - 1] = '\0';
	if (root->status <= 0) { /* too late: the bootstrap has failed */
		send_answer(root, p->fd, h, BOOTSTRAP_DONE, root->status, root->text);
		if (root->nranks && h->rank >= 0 && h->rank < root->nranks && !root->seen[h->rank]) {
			root->seen[h->rank] = true;
			root->nreplied++;
		}
		return;
	}
	if (h->version != BOOTSTRAP_VERSION || strcmp(h->shunt, SHUNT_VERSION)) {
		set_status(root, -EPROTO, "rank %d has Shunt %s (bootstrap protocol %u), the root has %s (%u)", h->rank,
		    h->shunt, h->version, SHUNT_VERSION, BOOTSTRAP_VERSION);
	} else if (h->nranks < 1 || h->nranks > SHUNT_BOOTSTRAP_MAX_RANKS || h->rank < 0 || h->rank >= h->nranks) {
		set_status(root, -EINVAL, "rank %d of %d is out of range", h->rank, h->nranks);
	} else if (root->nranks && h->nranks != root->nranks) {
		set_status(root, -EINVAL, "rank %d says that there are %d ranks, rank %d says %d", h->rank, h->nranks,
		    root->first, root->nranks);
	} else if (memcmp(h->host, root->host, sizeof(root->host))) {
		set_status(
		    root, -EXDEV, "rank %d is on another host than the process that made the unique id", h->rank);
	} else if (root->nranks && root->seen[h->rank]) {
		set_status(root, -EEXIST, "two processes or threads joined as rank %d", h->rank);
	} else if (!root->nranks && ranks_alloc(root, h)) {
		set_status(root, -ENOMEM, "no memory for %d ranks", h->nranks);
	}
	if (root->status <= 0) {
		send_answer(root, p->fd, h, BOOTSTRAP_DONE, root->status, root->text);
		return;
	}
	root->peer_fds[h->rank] = p->fd;
	root->seen[h->rank] = true;
	root->hello[h->rank] = *h;
	p->fd = -1;
	root->last_event = shunt_now_ms();
	if (!root->arrived)
		root->started = root->last_event;
	if (++root->arrived == root->nranks)
		set_status(root, 0, "all %d ranks are here", root->nranks);
}

static void read_hello(struct root *root, int i)
{
	struct pending_conn *p = &root->pending_conn[i];
	ssize_t n = recv(p->fd, (char *)&p->hello + p->got, sizeof(p->hello) - p->got, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0) {
		p->got += (size_t)n;
		if (p->got < sizeof(p->hello))
			return;
		admit(root, p);
	}
	pending_conn_drop(root, i);
}

static void accept_peers(struct root *root)
{
	struct bootstrap_challenge challenge = { .magic = BOOTSTRAP_MAGIC, .version = BOOTSTRAP_VERSION };

	while (root->npending_conns < MAX_PENDING_CONNS) {
		struct pending_conn *p = &root->pending_conn[root->npending_conns];
		int fd = accept4(root->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			/* Out of descriptors: leave the connection in the backlog, and pause to avoid a busy loop. */
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
				root->paused_until = shunt_now_ms() + 200;
			return;
		}
		if (shunt_random(challenge.nonce, sizeof(challenge.nonce)) ||
		    send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(challenge)) {
			close_socket(&fd);
			continue;
		}
		*p = (struct pending_conn){ .fd = fd, .since = shunt_now_ms() };
		memcpy(p->nonce, challenge.nonce, sizeof(p->nonce));
		root->npending_conns++;
	}
}

static void format_missing(const struct root *root, char *text, size_t bytes)
{
	int n = snprintf(text, bytes, "missing:"), missing = 0;

	for (int r = 0; r < root->nranks; r++) {
		if (root->seen[r])
			continue;
		if (n < (int)bytes - 24)
			n += snprintf(text + n, bytes - (size_t)n, " %d", r);
		else if (!missing++)
			n += snprintf(text + n, bytes - (size_t)n, " ...");
	}
}

static void send_missing(struct root *root, int64_t now)
{
	char text[160];

	format_missing(root, text, sizeof(text));
	for (int r = 0; r < root->nranks; r++)
		if (root->peer_fds[r] >= 0)
			send_answer(root, root->peer_fds[r], &root->hello[r], BOOTSTRAP_WAIT, 0, text);
	root->log_step *= 2;
	root->next_log = now + root->log_step;
}

/* True if the thread can end. After a failure it stays for a while to tell late ranks. */
static bool is_finished(const struct root *root, int64_t now)
{
	int64_t setup_timeout_ms = shunt_config()->setup_timeout,
	        linger = setup_timeout_ms > 0 && setup_timeout_ms < LINGER_MS ? setup_timeout_ms : LINGER_MS;

	if (root->id.from_env && linger > LINGER_ENV_MS)
		linger = LINGER_ENV_MS;
	if (root->status == 1)
		return false;
	return root->status == 0 || (root->nranks && root->nreplied >= root->nranks) || now - root->last_event > linger;
}

static void check_deadlines(struct root *root, int64_t now)
{
	int64_t timeout = shunt_config()->timeout;
	char missing[96];

	if (root->status != 1)
		return;
	if (!root->arrived) {
		if (now - root->last_event > IDLE_MS)
			set_status(root, -ETIMEDOUT, "no rank came within an hour");
	} else if (timeout > 0 && now - root->started >= timeout) {
		format_missing(root, missing, sizeof(missing));
		set_status(root, -ETIMEDOUT, "not all ranks came within %lld s of the first (SHUNT_TIMEOUT), %s",
		    (long long)(timeout / 1000), missing);
	} else if (now >= root->next_log) {
		send_missing(root, now);
	}
}

/* Drops connections whose hello is overdue: sooner while all places are taken. */
static void drop_expired_conns(struct root *root, int64_t now)
{
	int64_t limit = root->npending_conns == MAX_PENDING_CONNS ? HELLO_BUSY_MS : HELLO_MS;

	for (int i = root->npending_conns - 1; i >= 0; i--)
		if (now - root->pending_conn[i].since > limit)
			pending_conn_drop(root, i);
}

static void poll_once(struct root *root)
{
	struct pollfd *pfds = root->pfds;
	int npending_conns = root->npending_conns, n = 0;
	int64_t now = shunt_now_ms();

	pfds[n++] =
	    (struct pollfd){ .fd =
		                 npending_conns < MAX_PENDING_CONNS && now >= root->paused_until ? root->listen_fd : -1,
		    .events = POLLIN };
	for (int i = 0; i < npending_conns; i++)
		pfds[n++] = (struct pollfd){ .fd = root->pending_conn[i].fd, .events = POLLIN };
	/* Ranks send nothing after the hello: any event means that the rank is gone. */
	for (int r = 0; r < root->nranks; r++)
		pfds[n++] = (struct pollfd){ .fd = root->peer_fds[r], .events = POLLIN | POLLRDHUP };
	/* Not shunt_io_poll: a root cannot be cancelled and needs no tick. */
	if (poll(pfds, (nfds_t)n, npending_conns || root->paused_until > now ? 200 : 1000) < 0) {
		/* The limit of open files was lowered below the number of entries: avoid a busy loop. */
		if (errno != EINTR)
			poll(NULL, 0, 200);
		return;
	}
	now = shunt_now_ms();
	for (int r = 0; root->status == 1 && r < n - 1 - npending_conns; r++) {
		if (!pfds[1 + npending_conns + r].revents || root->peer_fds[r] < 0)
			continue;
		close_socket(&root->peer_fds[r]);
		root->nreplied++;
		set_status(root, -EOWNERDEAD, "rank %d died or gave up before all ranks had come", r);
	}
	for (int i = npending_conns - 1; i >= 0; i--) /* backwards: a drop puts the last entry in its place */
		if (pfds[1 + i].revents)
			read_hello(root, i);
	drop_expired_conns(root, now);
	if (pfds[0].revents && root->listen_fd >= 0)
		accept_peers(root);
	check_deadlines(root, now);
}

static void *root_main(void *arg)
{
	struct root *root = arg;

	root->last_event = shunt_now_ms();
	root->log_step = FIRST_LOG_MS;
	root->next_log = root->last_event + root->log_step;
	while (!is_finished(root, shunt_now_ms()))
		poll_once(root);
	root_destroy(root);
	return NULL;
}

int shunt_bootstrap_root_start(const struct bootstrap_id *id, int listen_fd)
{
	struct root *root = calloc(1, sizeof(*root));
	int err;

	if (!root || !root_pfds(root)) {
		free(root);
		close(listen_fd);
		return -ENOMEM;
	}
	root->id = *id;
	root->listen_fd = listen_fd;
	root->status = 1;
	shunt_host_id(root->host, id->secret, sizeof(id->secret));
	err = shunt_thread_start(NULL, STACK_BYTES, root_main, root);
	if (err) {
		errno = -err;
		shunt_error("cannot start the bootstrap's thread: %m");
		root_destroy(root);
	}
	return err;
}

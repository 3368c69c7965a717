/* SPDX-License-Identifier: MIT */
/*
 * How the ranks of a benchmark meet. Ranks of one host use a hall in shared memory: the parent's memfd if one parent
 * started them all, or external rank 0's, which the others open through /proc. Over several hosts, or where /proc is
 * not shared, a star of TCP connections around rank 0 (the hub) does the same, slower. The hub of external ranks stays
 * connected in any case: it tells when a rank has died.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "bench.h"

struct bench_team {
	int rank, nranks;
	struct bench_hall *hall;     /* NULL: over the hub */
	struct bench_shared *mapped; /* external rank 0's memory, ours to unmap */
	int *hub;                    /* rank 0: descriptors by rank; others: [0] is the one to rank 0; NULL: no hub */
	struct bench_shared *own;
	long long timeout_ns;
};

static const char hello_magic[8] = "shbench1";

struct hello {
	char magic[8];
	uint32_t rank, nranks;
	uint64_t nonce;
};

static long long now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static void sleep_us(long us)
{
	nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL);
}

/* ---- TCP ---- */

/* 0, -ECANCELED: the other side has gone, -ETIMEDOUT. */
static int io_all(int fd, void *buf, size_t bytes, bool write_it, long long deadline)
{
	char *p = buf;

	while (bytes) {
		ssize_t n =
		    write_it ? send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, bytes, MSG_DONTWAIT);

		if (n > 0) {
			p += n;
			bytes -= (size_t)n;
			continue;
		}
		if (!n || (errno != EAGAIN && errno != EINTR))
			return -ECANCELED;
		long long left = (deadline - now_ns()) / 1000000;

		if (left <= 0)
			return -ETIMEDOUT;
		struct pollfd p_fd = { .fd = fd, .events = write_it ? POLLOUT : POLLIN };
		poll(&p_fd, 1, left > 1000 ? 1000 : (int)left + 1);
	}
	return 0;
}

static int listen_on(unsigned port, int *fd_p, unsigned *port_p)
{
	struct sockaddr_in6 addr = {
		.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_ANY_INIT
	};
	struct sockaddr_in addr4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	struct sockaddr_storage bound;
	socklen_t len = sizeof(bound);
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0, on = 1, err;
	bool v6 = fd >= 0;

	if (!v6)
		fd =
		    socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* cppcheck-suppress resourceLeak; there was none */
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (v6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	err = v6 ? bind(fd, (void *)&addr, sizeof(addr)) : bind(fd, (void *)&addr4, sizeof(addr4));
	if (err || listen(fd, BENCH_MAX_RANKS) || getsockname(fd, (void *)&bound, &len)) {
		err = -errno;
		close(fd);
		return err;
	}
	*port_p = ntohs(v6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
	*fd_p = fd;
	return 0;
}

static int connect_to(const char *host, unsigned port, int *fd_p)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list, *a;
	char service[16];
	int on = 1, fd = -1;

	snprintf(service, sizeof(service), "%u", port);
	if (getaddrinfo(host, service, &hints, &list))
		return -EHOSTUNREACH;
	for (a = list; a; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen))
			break;
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	if (fd < 0)
		return -ECONNREFUSED;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	*fd_p = fd;
	return 0;
}

/* Rank 0 tells in a file where it listens; the rename makes it appear whole. */
static int address_write(const char *file, unsigned port, uint64_t nonce)
{
	char tmp[PATH_MAX + 32], host[256];
	FILE *f;
	int fd;

	if (gethostname(host, sizeof(host)))
		return -errno;
	host[sizeof(host) - 1] = 0;
	snprintf(tmp, sizeof(tmp), "%s.%ld", file, (long)getpid());
	unlink(tmp);
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	f = fdopen(fd, "w");
	if (!f) {
		close(fd);
		return -ENOMEM;
	}
	fprintf(f, "%s %u %llx\n", host, port, (unsigned long long)nonce);
	if (fclose(f) || rename(tmp, file)) {
		int err = -errno;

		unlink(tmp);
		return err;
	}
	return 0;
}

static int address_read(const char *file, char host[256], unsigned *port_p, uint64_t *nonce_p)
{
	unsigned long long nonce;
	char self[256] = "";
	struct stat st;
	int fd = open(file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC), n;
	FILE *f;

	if (fd < 0)
		return -errno;
	/* The default place is a directory that everybody may write to. */
	if (fstat(fd, &st) || st.st_uid != geteuid()) {
		close(fd);
		return -EPERM;
	}
	f = fdopen(fd, "r");
	if (!f) {
		close(fd);
		return -ENOMEM;
	}
	n = fscanf(f, "%255s %u %llx", host, port_p, &nonce);
	fclose(f);
	if (n != 3)
		return -EPROTO;
	*nonce_p = nonce;
	/* A host's own name need not resolve. */
	if (!gethostname(self, sizeof(self) - 1) && !strcmp(self, host))
		strcpy(host, "localhost");
	return 0;
}

static int hub_accept(struct bench_team *t, int listener, uint64_t nonce, long long deadline)
{
	int missing = t->nranks - 1, on = 1;

	while (missing) {
		struct pollfd p = { .fd = listener, .events = POLLIN };
		struct hello hello;
		int fd;

		if (now_ns() > deadline) {
			tool_error("rank 0: %d of %d other ranks did not come", missing, t->nranks - 1);
			return -ETIMEDOUT;
		}
		if (poll(&p, 1, 200) <= 0)
			continue;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		/* Whoever is not one of us is dropped and does not disturb the others for long. */
		if (io_all(fd, &hello, sizeof(hello), false, now_ns() + 2000000000ll) ||
		    memcmp(hello.magic, hello_magic, sizeof(hello_magic)) || hello.nonce != nonce ||
		    hello.nranks != (uint32_t)t->nranks || !hello.rank || hello.rank >= (uint32_t)t->nranks ||
		    t->hub[hello.rank] >= 0) {
			close(fd);
			continue;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		if (io_all(fd, &hello, sizeof(hello), true, now_ns() + 2000000000ll)) {
			close(fd);
			continue;
		}
		t->hub[hello.rank] = fd;
		missing--;
	}
	return 0;
}

static int hub_open(struct bench_team *t, const struct bench_launch *l, long long deadline)
{
	uint64_t nonce = 0;
	unsigned port = 0;
	int err, listener = -1;

	if (*l->file) {
		struct timespec ts;

		clock_gettime(CLOCK_REALTIME, &ts);
		nonce = (uint64_t)ts.tv_nsec << 32 ^ (uint64_t)ts.tv_sec ^ (uint64_t)getpid() << 20;
	}
	err = listen_on(l->port, &listener, &port);
	if (err) {
		tool_error("rank 0: cannot listen on port %u: %s", l->port, strerror(-err));
		return err;
	}
	if (*l->file) {
		err = address_write(l->file, port, nonce);
		if (err)
			tool_error("rank 0: cannot write %s: %s", l->file, strerror(-err));
	}
	if (!err)
		err = hub_accept(t, listener, nonce, deadline);
	close(listener);
	if (*l->file)
		unlink(l->file);
	return err;
}

static int hub_connect(struct bench_team *t, const struct bench_launch *l, long long deadline)
{
	struct hello hello = { .rank = (uint32_t)t->rank, .nranks = (uint32_t)t->nranks }, echo;
	char host[256];
	unsigned port = l->port;

	memcpy(hello.magic, hello_magic, sizeof(hello_magic));
	snprintf(host, sizeof(host), "%s", l->host);
	/* Rank 0 may not listen yet, and a file may be left from an earlier run: try until it is the right one. */
	for (; now_ns() < deadline; sleep_us(20000)) {
		int fd;

		if (*l->file && address_read(l->file, host, &port, &hello.nonce))
			continue;
		if (connect_to(host, port, &fd))
			continue;
		/* Rank 0 answers at once; a stranger at this address may not. */
		long long soon = now_ns() + 10000000000ll;

		if (!io_all(fd, &hello, sizeof(hello), true, soon) && !io_all(fd, &echo, sizeof(echo), false, soon) &&
		    !memcmp(&hello, &echo, sizeof(hello))) {
			t->hub[0] = fd;
			return 0;
		}
		close(fd);
	}
	tool_error("rank %d: cannot reach rank 0 at %s%s", t->rank, *l->file ? "the address in " : "",
	    *l->file ? l->file : l->host);
	return -ETIMEDOUT;
}

static int hub_gather(struct bench_team *t, const void *mine, size_t bytes, void *all)
{
	long long deadline = now_ns() + t->timeout_ns;
	char one = 0, *buf = all;
	int err = 0;

	/* An empty contribution is a barrier: one byte each way. */
	if (!bytes) {
		if (t->rank) {
			err = io_all(t->hub[0], &one, 1, true, deadline);
			return err ? err : io_all(t->hub[0], &one, 1, false, deadline);
		}
		for (int r = 1; r < t->nranks && !err; r++)
			err = io_all(t->hub[r], &one, 1, false, deadline);
		for (int r = 1; r < t->nranks && !err; r++)
			err = io_all(t->hub[r], &one, 1, true, deadline);
		return err;
	}
	if (t->rank) {
		err = io_all(t->hub[0], (void *)mine, bytes, true, deadline);
		return err ? err : io_all(t->hub[0], buf, bytes * (size_t)t->nranks, false, deadline);
	}
	memcpy(buf, mine, bytes);
	for (int r = 1; r < t->nranks && !err; r++)
		err = io_all(t->hub[r], buf + bytes * (size_t)r, bytes, false, deadline);
	for (int r = 1; r < t->nranks && !err; r++)
		err = io_all(t->hub[r], buf, bytes * (size_t)t->nranks, true, deadline);
	return err;
}

/* Has a connection of the hub been closed by the other side? */
static bool hub_is_broken(struct bench_team *t)
{
	if (!t->hub)
		return false;
	for (int i = t->rank ? 0 : 1; i < (t->rank ? 1 : t->nranks); i++) {
		char byte;

		if (t->hub[i] >= 0 && !recv(t->hub[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT))
			return true;
	}
	return false;
}

/* ---- shared memory ---- */

static int hall_barrier(struct bench_team *t)
{
	struct bench_hall *h = t->hall;
	unsigned generation = atomic_load(&h->generation), spins = 0;
	long long start = 0;

	if (atomic_fetch_add(&h->arrived, 1) + 1 == (unsigned)t->nranks) {
		atomic_store(&h->arrived, 0);
		atomic_store(&h->generation, generation + 1);
	}
	/*
	 * Spin, then yield, then sleep: those who come close together leave close together, and a long wait takes no
	 * CPU time from those who are awaited.
	 */
	while (atomic_load(&h->generation) == generation) {
		if (atomic_load(&h->failed))
			return -ECANCELED;
		if (++spins < 1000) {
#if defined(__x86_64__)
			__builtin_ia32_pause();
#endif
			continue;
		}
		if (!start)
			start = now_ns();
		if (now_ns() - start < 2000000) {
			sched_yield();
			continue;
		}
		sleep_us(200);
		if (now_ns() - start > t->timeout_ns)
			return -ETIMEDOUT;
		/* Those who have left passed this barrier: look again. */
		if (hub_is_broken(t) && atomic_load(&h->generation) == generation) {
			atomic_store(&h->failed, 1);
			return -ECANCELED;
		}
	}
	return 0;
}

static int hall_gather(struct bench_team *t, const void *mine, size_t bytes, void *all)
{
	int err;

	memcpy(t->hall->slot[t->rank], mine, bytes);
	err = hall_barrier(t);
	if (err)
		return err;
	for (int r = 0; r < t->nranks; r++)
		memcpy((char *)all + bytes * (size_t)r, t->hall->slot[r], bytes);
	return hall_barrier(t);
}

/* External ranks that all see rank 0's memory through /proc take its hall; the answer is the same on all. */
static int hall_find(struct bench_team *t, int fd)
{
	struct {
		char boot[64], path[64];
	} mine = { 0 }, all[BENCH_MAX_RANKS];
	int8_t got = 0, gots[BENCH_MAX_RANKS];
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	int err, theirs;

	if (f) {
		if (!fgets(mine.boot, sizeof(mine.boot), f))
			mine.boot[0] = 0;
		fclose(f);
	}
	snprintf(mine.path, sizeof(mine.path), "/proc/%ld/fd/%d", (long)getpid(), fd);
	err = hub_gather(t, &mine, sizeof(mine), all);
	if (err)
		return err;
	if (!t->rank) {
		got = 1;
	} else if (*mine.boot && !strcmp(mine.boot, all[0].boot)) {
		theirs = open(all[0].path, O_RDWR | O_CLOEXEC);
		if (theirs >= 0) {
			struct stat st;
			void *p = MAP_FAILED;

			/* In another pid namespace the number means another process. */
			if (!fstat(theirs, &st) && st.st_size == (off_t)sizeof(struct bench_shared))
				p = mmap(
				    NULL, sizeof(struct bench_shared), PROT_READ | PROT_WRITE, MAP_SHARED, theirs, 0);
			close(theirs);
			if (p != MAP_FAILED) {
				t->mapped = p;
				got = !t->mapped->launch.rank && t->mapped->launch.external &&
				    t->mapped->launch.nranks == t->nranks;
			}
		}
	}
	err = hub_gather(t, &got, sizeof(got), gots);
	if (err)
		return err;
	for (int r = 0; r < t->nranks; r++)
		if (!gots[r])
			return 0;
	t->hall = t->rank ? &t->mapped->hall : &t->own->hall;
	return 0;
}

/* ---- both ---- */

int bench_team_join(struct bench_shared *own, int fd, int rank, unsigned timeout_s, struct bench_team **team_p)
{
	const struct bench_launch *l = &own->launch;
	struct bench_team *t = calloc(1, sizeof(*t));
	long long deadline;
	int err;

	if (!t)
		return -ENOMEM;
	t->rank = rank;
	t->nranks = l->nranks;
	t->own = own;
	t->timeout_ns = timeout_s * 1000000000ll;
	if (!l->external) {
		t->hall = &own->hall;
		*team_p = t;
		return 0;
	}
	deadline = now_ns() + t->timeout_ns;
	t->hub = malloc((size_t)t->nranks * sizeof(*t->hub));
	if (!t->hub) {
		free(t);
		return -ENOMEM;
	}
	for (int r = 0; r < t->nranks; r++)
		t->hub[r] = -1;
	err = rank ? hub_connect(t, l, deadline) : t->nranks > 1 ? hub_open(t, l, deadline) : 0;
	if (!err)
		err = hall_find(t, fd);
	if (err) {
		bench_team_leave(t);
		return err;
	}
	*team_p = t;
	return 0;
}

int bench_team_barrier(struct bench_team *t)
{
	return t->hall ? hall_barrier(t) : hub_gather(t, NULL, 0, NULL);
}

int bench_team_gather(struct bench_team *t, const void *mine, size_t bytes, void *all)
{
	if (bytes > BENCH_SLOT_BYTES)
		return -EMSGSIZE;
	return t->hall ? hall_gather(t, mine, bytes, all) : hub_gather(t, mine, bytes, all);
}

void bench_team_fail(struct bench_team *t, struct bench_shared *own)
{
	if (!t) {
		atomic_store(&own->hall.failed, 1);
		return;
	}
	if (t->hall)
		atomic_store(&t->hall->failed, 1);
	if (t->hub)
		for (int r = 0; r < t->nranks; r++)
			if (t->hub[r] >= 0)
				shutdown(t->hub[r], SHUT_RDWR);
}

void bench_team_leave(struct bench_team *t)
{
	if (!t)
		return;
	if (t->hub)
		for (int r = 0; r < t->nranks; r++)
			if (t->hub[r] >= 0)
				close(t->hub[r]);
	free(t->hub);
	if (t->mapped)
		munmap(t->mapped, sizeof(*t->mapped));
	free(t);
}

int bench_round_error(int rank, int err)
{
	if (err && err != -ECANCELED)
		tool_error("rank %d: waiting for the other ranks: %s", rank, strerror(-err));
	return err;
}

int bench_device_error(int rank, int device, const char *what, int err)
{
	if (err)
		tool_error("rank %d: device %d: %s: %s", rank, device, what, strerror(-err));
	return err;
}

double bench_now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

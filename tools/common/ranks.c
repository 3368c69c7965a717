/* SPDX-License-Identifier: MIT */
/*
 * Rendezvous of a benchmark's ranks. Ranks of one host use shared memory: the parent's memfd if one parent started them
 * all, or external rank 0's, which the others open through /proc. Over several hosts, or where /proc is not shared, TCP
 * connections from all ranks to rank 0 do the same, slower. External ranks keep these connections in any case: a closed
 * one shows that a rank died.
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
#include "tools/bench/bench.h"

struct bench_ranks {
	int rank, nranks;
	struct bench_shm *shm;       /* NULL: over TCP */
	struct bench_shared *mapped; /* mapping of external rank 0's memory */
	int *socks; /* rank 0: descriptors by rank; others: [0] is the connection to rank 0; NULL: no TCP */
	struct bench_shared *own;
	long long timeout_ns;
};

static const char handshake_magic[8] = "shbench1";

struct handshake {
	char magic[8];
	uint32_t rank, nranks;
	uint64_t nonce;
};

static long long monotonic_ns(void)
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

/* 0; -ECANCELED: the peer closed the connection; -ETIMEDOUT. */
static int io_full(int fd, void *buf, size_t bytes, bool write_it, long long deadline)
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
		long long left = (deadline - monotonic_ns()) / 1000000;

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
		/* cppcheck-suppress resourceLeak; there was none */
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
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

/* Rank 0 writes its address to a file. The rename makes the whole file appear at once. */
static int rendezvous_file_write(const char *file, unsigned port, uint64_t nonce)
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

static int rendezvous_file_read(const char *file, char host[256], unsigned *port_p, uint64_t *nonce_p)
{
	unsigned long long nonce;
	char self[256] = "";
	struct stat st;
	int fd = open(file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC), n;
	FILE *f;

	if (fd < 0)
		return -errno;
	/* Everybody may write to the default directory: only our own file counts. */
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
	/* A host's own name may not resolve. */
	if (!gethostname(self, sizeof(self) - 1) && !strcmp(self, host))
		strcpy(host, "localhost");
	return 0;
}

static int tcp_accept(struct bench_ranks *t, int listener, uint64_t nonce, long long deadline)
{
	int missing = t->nranks - 1, on = 1;

	while (missing) {
		struct pollfd p = { .fd = listener, .events = POLLIN };
		struct handshake handshake;
		int fd;

		if (monotonic_ns() > deadline) {
			tool_error("rank 0: %d of %d other ranks did not come", missing, t->nranks - 1);
			return -ETIMEDOUT;
		}
		if (poll(&p, 1, 200) <= 0)
			continue;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		/* A peer that is not a rank of this run is dropped soon, so that it does not delay the ranks. */
		if (io_full(fd, &handshake, sizeof(handshake), false, monotonic_ns() + 2000000000ll) ||
		    memcmp(handshake.magic, handshake_magic, sizeof(handshake_magic)) || handshake.nonce != nonce ||
		    handshake.nranks != (uint32_t)t->nranks || !handshake.rank ||
		    handshake.rank >= (uint32_t)t->nranks || t->socks[handshake.rank] >= 0) {
			close(fd);
			continue;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		if (io_full(fd, &handshake, sizeof(handshake), true, monotonic_ns() + 2000000000ll)) {
			close(fd);
			continue;
		}
		t->socks[handshake.rank] = fd;
		missing--;
	}
	return 0;
}

static int tcp_listen(struct bench_ranks *t, const struct bench_launch *l, long long deadline)
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
		err = rendezvous_file_write(l->file, port, nonce);
		if (err)
			tool_error("rank 0: cannot write %s: %s", l->file, strerror(-err));
	}
	if (!err)
		err = tcp_accept(t, listener, nonce, deadline);
	close(listener);
	if (*l->file)
		unlink(l->file);
	return err;
}

static int tcp_connect(struct bench_ranks *t, const struct bench_launch *l, long long deadline)
{
	struct handshake handshake = { .rank = (uint32_t)t->rank, .nranks = (uint32_t)t->nranks }, echo;
	char host[256];
	unsigned port = l->port;

	memcpy(handshake.magic, handshake_magic, sizeof(handshake_magic));
	snprintf(host, sizeof(host), "%s", l->host);
	/* Rank 0 may not listen yet, and the file may be of an earlier run: retry until the handshake succeeds. */
	for (; monotonic_ns() < deadline; sleep_us(20000)) {
		int fd;

		if (*l->file && rendezvous_file_read(l->file, host, &port, &handshake.nonce))
			continue;
		if (connect_to(host, port, &fd))
			continue;
		/* Rank 0 answers at once. Another process at this address may never answer. */
		long long reply_deadline = monotonic_ns() + 10000000000ll;

		if (!io_full(fd, &handshake, sizeof(handshake), true, reply_deadline) &&
		    !io_full(fd, &echo, sizeof(echo), false, reply_deadline) &&
		    !memcmp(&handshake, &echo, sizeof(handshake))) {
			t->socks[0] = fd;
			return 0;
		}
		close(fd);
	}
	tool_error("rank %d: cannot reach rank 0 at %s%s", t->rank, *l->file ? "the address in " : "",
	    *l->file ? l->file : l->host);
	return -ETIMEDOUT;
}

static int tcp_allgather(struct bench_ranks *t, const void *mine, size_t bytes, void *all)
{
	long long deadline = monotonic_ns() + t->timeout_ns;
	char one = 0, *buf = all;
	int err = 0;

	/* An empty contribution is a barrier: one byte in each direction. */
	if (!bytes) {
		if (t->rank) {
			err = io_full(t->socks[0], &one, 1, true, deadline);
			return err ? err : io_full(t->socks[0], &one, 1, false, deadline);
		}
		for (int r = 1; r < t->nranks && !err; r++)
			err = io_full(t->socks[r], &one, 1, false, deadline);
		for (int r = 1; r < t->nranks && !err; r++)
			err = io_full(t->socks[r], &one, 1, true, deadline);
		return err;
	}
	if (t->rank) {
		err = io_full(t->socks[0], (void *)mine, bytes, true, deadline);
		return err ? err : io_full(t->socks[0], buf, bytes * (size_t)t->nranks, false, deadline);
	}
	memcpy(buf, mine, bytes);
	for (int r = 1; r < t->nranks && !err; r++)
		err = io_full(t->socks[r], buf + bytes * (size_t)r, bytes, false, deadline);
	for (int r = 1; r < t->nranks && !err; r++)
		err = io_full(t->socks[r], buf, bytes * (size_t)t->nranks, true, deadline);
	return err;
}

/* True: a peer closed its TCP connection. */
static bool tcp_is_broken(struct bench_ranks *t)
{
	if (!t->socks)
		return false;
	for (int i = t->rank ? 0 : 1; i < (t->rank ? 1 : t->nranks); i++) {
		char byte;

		if (t->socks[i] >= 0 && !recv(t->socks[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT))
			return true;
	}
	return false;
}

/* ---- shared memory ---- */

static int shm_barrier(struct bench_ranks *t)
{
	struct bench_shm *h = t->shm;
	unsigned generation = atomic_load(&h->generation), spins = 0;
	long long start = 0;

	if (atomic_fetch_add(&h->arrived, 1) + 1 == (unsigned)t->nranks) {
		atomic_store(&h->arrived, 0);
		atomic_store(&h->generation, generation + 1);
	}
	/*
	 * Spin, then yield, then sleep: ranks that arrive close together leave close together, and a long wait takes no
	 * CPU time from the ranks that are still working.
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
			start = monotonic_ns();
		if (monotonic_ns() - start < 2000000) {
			sched_yield();
			continue;
		}
		sleep_us(200);
		if (monotonic_ns() - start > t->timeout_ns)
			return -ETIMEDOUT;
		/* A rank that left has passed this barrier: check the generation again. */
		if (tcp_is_broken(t) && atomic_load(&h->generation) == generation) {
			atomic_store(&h->failed, 1);
			return -ECANCELED;
		}
	}
	return 0;
}

static int shm_allgather(struct bench_ranks *t, const void *mine, size_t bytes, void *all)
{
	int err;

	memcpy(t->shm->slot[t->rank], mine, bytes);
	err = shm_barrier(t);
	if (err)
		return err;
	for (int r = 0; r < t->nranks; r++)
		memcpy((char *)all + bytes * (size_t)r, t->shm->slot[r], bytes);
	return shm_barrier(t);
}

/* External ranks use rank 0's shared memory if all of them can open it through /proc. All ranks get the same answer. */
static int shm_find(struct bench_ranks *t, int fd)
{
	struct {
		char boot_id[64], path[64];
	} mine = { 0 }, all[BENCH_MAX_RANKS];
	int8_t has_shm = 0, all_have_shm[BENCH_MAX_RANKS];
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	int err, root_fd;

	if (f) {
		if (!fgets(mine.boot_id, sizeof(mine.boot_id), f))
			mine.boot_id[0] = 0;
		fclose(f);
	}
	snprintf(mine.path, sizeof(mine.path), "/proc/%ld/fd/%d", (long)getpid(), fd);
	err = tcp_allgather(t, &mine, sizeof(mine), all);
	if (err)
		return err;
	if (!t->rank) {
		has_shm = 1;
	} else if (*mine.boot_id && !strcmp(mine.boot_id, all[0].boot_id)) {
		root_fd = open(all[0].path, O_RDWR | O_CLOEXEC);
		if (root_fd >= 0) {
			struct stat st;
			void *p = MAP_FAILED;

			/* In another pid namespace the number belongs to another process. */
			if (!fstat(root_fd, &st) && st.st_size == (off_t)sizeof(struct bench_shared))
				p = mmap(
				    NULL, sizeof(struct bench_shared), PROT_READ | PROT_WRITE, MAP_SHARED, root_fd, 0);
			close(root_fd);
			if (p != MAP_FAILED) {
				t->mapped = p;
				has_shm = !t->mapped->launch.rank && t->mapped->launch.external &&
				    t->mapped->launch.nranks == t->nranks;
			}
		}
	}
	err = tcp_allgather(t, &has_shm, sizeof(has_shm), all_have_shm);
	if (err)
		return err;
	for (int r = 0; r < t->nranks; r++)
		if (!all_have_shm[r])
			return 0;
	t->shm = t->rank ? &t->mapped->shm : &t->own->shm;
	return 0;
}

/* ---- both transports ---- */

int bench_ranks_join(struct bench_shared *own, int fd, int rank, unsigned timeout_s, struct bench_ranks **ranks_p)
{
	const struct bench_launch *l = &own->launch;
	struct bench_ranks *t = calloc(1, sizeof(*t));
	long long deadline;
	int err;

	if (!t)
		return -ENOMEM;
	t->rank = rank;
	t->nranks = l->nranks;
	t->own = own;
	t->timeout_ns = timeout_s * 1000000000ll;
	if (!l->external) {
		t->shm = &own->shm;
		*ranks_p = t;
		return 0;
	}
	deadline = monotonic_ns() + t->timeout_ns;
	t->socks = malloc((size_t)t->nranks * sizeof(*t->socks));
	if (!t->socks) {
		free(t);
		return -ENOMEM;
	}
	for (int r = 0; r < t->nranks; r++)
		t->socks[r] = -1;
	err = rank ? tcp_connect(t, l, deadline) : t->nranks > 1 ? tcp_listen(t, l, deadline) : 0;
	if (!err)
		err = shm_find(t, fd);
	if (err) {
		bench_ranks_leave(t);
		return err;
	}
	*ranks_p = t;
	return 0;
}

int bench_ranks_barrier(struct bench_ranks *t)
{
	return t->shm ? shm_barrier(t) : tcp_allgather(t, NULL, 0, NULL);
}

int bench_ranks_allgather(struct bench_ranks *t, const void *mine, size_t bytes, void *all)
{
	if (bytes > BENCH_SHM_SLOT_BYTES)
		return -EMSGSIZE;
	return t->shm ? shm_allgather(t, mine, bytes, all) : tcp_allgather(t, mine, bytes, all);
}

void bench_ranks_abort(struct bench_ranks *t, struct bench_shared *own)
{
	if (!t) {
		atomic_store(&own->shm.failed, 1);
		return;
	}
	if (t->shm)
		atomic_store(&t->shm->failed, 1);
	if (t->socks)
		for (int r = 0; r < t->nranks; r++)
			if (t->socks[r] >= 0)
				shutdown(t->socks[r], SHUT_RDWR);
}

void bench_ranks_leave(struct bench_ranks *t)
{
	if (!t)
		return;
	if (t->socks)
		for (int r = 0; r < t->nranks; r++)
			if (t->socks[r] >= 0)
				close(t->socks[r]);
	free(t->socks);
	if (t->mapped)
		munmap(t->mapped, sizeof(*t->mapped));
	free(t);
}

int bench_ranks_error(int rank, int err)
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

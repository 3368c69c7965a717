/* SPDX-License-Identifier: MIT */
/*
 * How ranks come together and wait for each other. Ranks of one host use shared memory: the parent's memfd if one
 * parent started them all, or external rank 0's, which the others open through /proc. Over several hosts, or where
 * /proc is not shared, a star of TCP connections (transport/rendezvous/star.h) does the same, slower. External ranks
 * keep these connections in any case: a closed one shows that a rank died.
 */
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "base/hash.h"
#include "base/os.h"
#include "tools/common/ranks/ranks.h"
#include "transport/rendezvous/star.h"

struct ranks {
	int rank, nranks;
	struct ranks_shm *shm;        /* NULL: over TCP */
	struct ranks_shared *mapped;  /* mapping of external rank 0's memory */
	struct shunt_rendezvous *tcp; /* external ranks: the star around rank 0; else NULL */
	struct ranks_shared *own;
	long long timeout_ns;
};

enum { SECRET_BYTES = 32 };

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

/* Rank 0 writes its address and a secret to a file. The rename makes the whole file appear at once. */
static int rendezvous_file_write(const char *file, unsigned port, const uint8_t secret[SECRET_BYTES])
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
	fprintf(f, "%s %u ", host, port);
	for (int i = 0; i < SECRET_BYTES; i++)
		fprintf(f, "%02x", secret[i]);
	fputc('\n', f);
	if (fclose(f) || rename(tmp, file)) {
		int err = -errno;

		unlink(tmp);
		return err;
	}
	return 0;
}

static int rendezvous_file_read(const char *file, char host[256], unsigned *port_p, uint8_t secret[SECRET_BYTES])
{
	char self[256] = "", hex[2 * SECRET_BYTES + 1] = "";
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
	n = fscanf(f, "%255s %u %64[0-9a-f]", host, port_p, hex);
	fclose(f);
	if (n != 3 || strlen(hex) != 2 * SECRET_BYTES)
		return -EPROTO;
	for (int i = 0; i < SECRET_BYTES; i++)
		sscanf(hex + 2 * i, "%2hhx", &secret[i]);
	/* A host's own name may not resolve. */
	if (!gethostname(self, sizeof(self) - 1) && !strcmp(self, host))
		strcpy(host, "localhost");
	return 0;
}

/* With MASTER_ADDR the ranks have nothing else in common, so every process that knows the variables is admitted. */
static void secret_from_address(const char *host, unsigned port, uint8_t secret[SECRET_BYTES])
{
	shunt_mac(secret, shunt_bytes("shunt MASTER_ADDR", 17), "shunt bench secret", shunt_bytes(host, strlen(host)),
	    shunt_bytes(&port, sizeof(port)));
}

static struct shunt_star star_of(const struct ranks *t, const uint8_t secret[SECRET_BYTES])
{
	return (struct shunt_star){ .secret = secret,
		.secret_bytes = SECRET_BYTES,
		.what = "rendezvous of the ranks",
		.limit = "--timeout",
		.rank = t->rank,
		.nranks = t->nranks,
		.timeout_ms = t->timeout_ns / 1000000 };
}

/* At every address of this host. */
static int listen_anywhere(const struct shunt_star *star, unsigned *port_p, struct shunt_rendezvous **rdzv_p)
{
	struct sockaddr_in6 any6 = {
		.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)*port_p), .sin6_addr = IN6ADDR_ANY_INIT
	};
	struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port_p) };
	struct shunt_netaddr addr = { .len = sizeof(any6) };
	int err;

	memcpy(&addr.ss, &any6, sizeof(any6));
	err = shunt_star_listen(star, &addr, rdzv_p);
	if (err == -EAFNOSUPPORT || err == -EADDRNOTAVAIL) {
		addr = (struct shunt_netaddr){ .len = sizeof(any4) };
		memcpy(&addr.ss, &any4, sizeof(any4));
		err = shunt_star_listen(star, &addr, rdzv_p);
	}
	/* The port lies at the same place in both. */
	*port_p = ntohs(((const struct sockaddr_in *)&addr.ss)->sin_port);
	return err;
}

static int tcp_listen(struct ranks *t, const struct ranks_launch *l)
{
	uint8_t secret[SECRET_BYTES];
	struct shunt_star star = star_of(t, secret);
	unsigned port = l->port;
	int err = 0;

	if (*l->file)
		err = shunt_random(secret, sizeof(secret));
	else
		secret_from_address(l->host, l->port, secret);
	if (!err)
		err = listen_anywhere(&star, &port, &t->tcp);
	if (err) {
		tool_error("rank 0: cannot listen on port %u: %s", l->port, strerror(-err));
		return err;
	}
	if (*l->file) {
		err = rendezvous_file_write(l->file, port, secret);
		if (err)
			tool_error("rank 0: cannot write %s: %s", l->file, strerror(-err));
	}
	if (!err) {
		err = shunt_star_collect(&star, t->tcp);
		if (err)
			tool_error("rank 0: the other %d ranks did not come: %s", t->nranks - 1,
			    shunt_rendezvous_why(t->tcp, err));
	}
	if (*l->file)
		unlink(l->file);
	return err;
}

/* Calls rank 0 at each of the host's addresses. -EAGAIN: not now. */
static int call_host(const struct shunt_star *star, const char *host, unsigned port, struct shunt_rendezvous **rdzv_p)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
	char service[16];
	int err = -EAGAIN;

	snprintf(service, sizeof(service), "%u", port);
	if (getaddrinfo(host, service, &hints, &list))
		return -EAGAIN;
	for (const struct addrinfo *a = list; a && err == -EAGAIN; a = a->ai_next) {
		struct shunt_netaddr addr = { .len = a->ai_addrlen };

		memcpy(&addr.ss, a->ai_addr, a->ai_addrlen);
		err = shunt_star_call(star, &addr, rdzv_p);
	}
	freeaddrinfo(list);
	return err;
}

static int tcp_connect(struct ranks *t, const struct ranks_launch *l, long long deadline)
{
	uint8_t secret[SECRET_BYTES];
	struct shunt_star star = star_of(t, secret);
	unsigned port = l->port;
	char host[256];
	int err = -EAGAIN;

	snprintf(host, sizeof(host), "%s", l->host);
	secret_from_address(l->host, l->port, secret);
	/* Rank 0 may not listen yet, and the file may be of an earlier run: only its own answer counts. */
	for (; err == -EAGAIN && monotonic_ns() < deadline; sleep_us(20000))
		if (!*l->file || !rendezvous_file_read(l->file, host, &port, secret))
			err = call_host(&star, host, port, &t->tcp);
	if (err == -EAGAIN) {
		tool_error("rank %d: cannot reach rank 0 at %s%s", t->rank, *l->file ? "the address in " : "",
		    *l->file ? l->file : l->host);
		err = -ETIMEDOUT;
	}
	return err;
}

static int tcp_allgather(struct ranks *t, const void *mine, size_t bytes, void *all)
{
	struct shunt_ranks ranks = {
		.rendezvous = t->tcp, .rank = t->rank, .nranks = t->nranks, .timeout_ms = t->timeout_ns / 1000000
	};
	int err = shunt_rendezvous_allgather(&ranks, mine, bytes, all, -1, NULL);

	/* Of a death one rank tells. */
	if (err && (err != -EOWNERDEAD || !t->rank))
		tool_error("rank %d: %s", t->rank, shunt_rendezvous_why(t->tcp, err));
	return err == -EOWNERDEAD ? -ECANCELED : err;
}

/* ---- shared memory ---- */

static int shm_barrier(struct ranks *t)
{
	struct ranks_shm *h = t->shm;
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
#elif defined(__aarch64__)
			__asm__ volatile("yield");
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
		if (t->tcp && shunt_star_is_broken(t->tcp) && atomic_load(&h->generation) == generation) {
			atomic_store(&h->failed, 1);
			return -ECANCELED;
		}
	}
	return 0;
}

static int shm_allgather(struct ranks *t, const void *mine, size_t bytes, void *all)
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
static int shm_find(struct ranks *t, int fd)
{
	const struct shunt_rendezvous_row *rows = shunt_rendezvous_rows(t->tcp);
	struct {
		char path[64];
	} mine = { 0 }, all[RANKS_MAX];
	int8_t has_shm = 0, all_have_shm[RANKS_MAX];
	int err, root_fd;

	snprintf(mine.path, sizeof(mine.path), "/proc/%ld/fd/%d", (long)getpid(), fd);
	err = tcp_allgather(t, &mine, sizeof(mine), all);
	if (err)
		return err;
	if (!t->rank) {
		has_shm = 1;
	} else if (!memcmp(rows[t->rank].host, rows[0].host, sizeof(rows[0].host))) {
		root_fd = open(all[0].path, O_RDWR | O_CLOEXEC);
		if (root_fd >= 0) {
			struct stat st;
			void *p = MAP_FAILED;

			/* In another pid namespace the number belongs to another process. */
			if (!fstat(root_fd, &st) && st.st_size == (off_t)sizeof(struct ranks_shared))
				p = mmap(
				    NULL, sizeof(struct ranks_shared), PROT_READ | PROT_WRITE, MAP_SHARED, root_fd, 0);
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

int ranks_join(struct ranks_shared *own, int fd, int rank, unsigned timeout_s, struct ranks **ranks_p)
{
	const struct ranks_launch *l = &own->launch;
	struct ranks *t = calloc(1, sizeof(*t));
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
	err = rank ? tcp_connect(t, l, deadline) : tcp_listen(t, l);
	if (!err)
		err = shm_find(t, fd);
	if (err) {
		ranks_leave(t);
		return err;
	}
	*ranks_p = t;
	return 0;
}

int ranks_barrier(struct ranks *t)
{
	return t->shm ? shm_barrier(t) : tcp_allgather(t, NULL, 0, NULL);
}

int ranks_allgather(struct ranks *t, const void *mine, size_t bytes, void *all)
{
	if (bytes > RANKS_SLOT_BYTES)
		return -EMSGSIZE;
	return t->shm ? shm_allgather(t, mine, bytes, all) : tcp_allgather(t, mine, bytes, all);
}

void ranks_abort(struct ranks *t, struct ranks_shared *own)
{
	if (!t) {
		atomic_store(&own->shm.failed, 1);
		return;
	}
	if (t->shm)
		atomic_store(&t->shm->failed, 1);
	if (t->tcp)
		shunt_star_abort(t->tcp);
}

void ranks_leave(struct ranks *t)
{
	if (!t)
		return;
	shunt_rendezvous_destroy(t->tcp);
	if (t->mapped)
		munmap(t->mapped, sizeof(*t->mapped));
	free(t);
}

int ranks_error(int rank, int err)
{
	if (err && err != -ECANCELED)
		tool_error("rank %d: waiting for the other ranks: %s", rank, strerror(-err));
	return err;
}

int ranks_device_error(int rank, int device, const char *what, int err)
{
	if (err)
		tool_error("rank %d: device %d: %s: %s", rank, device, what, strerror(-err));
	return err;
}

double ranks_now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* SPDX-License-Identifier: MIT */
#include "tests/fault/inject.h"
#include "tests/support/entries.h"
#include "tests/support/pause.h"
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include "tools/common/libc.h"

static struct fault_state own, *state = &own;
static atomic_long allocs, maps;

void fault_use(struct fault_state *s)
{
	state = s;
}

void fault_arm(unsigned kinds, enum fault_action action, long at)
{
	atomic_store(&state->kinds, 0);
	atomic_store(&state->action, action);
	atomic_store(&state->at, at);
	atomic_store(&state->seen, 0);
	state->hit[0] = '\0';
	atomic_store(&state->kinds, kinds);
}

long fault_disarm(void)
{
	atomic_store(&state->kinds, 0);
	return atomic_load(&state->seen);
}

const char *fault_hit(void)
{
	return state->hit;
}

ssize_t __real_send(int fd, const void *p, size_t n, int f);
ssize_t __real_sendmsg(int fd, const struct msghdr *m, int f);
void *__real_malloc(size_t n);
void __real_free(void *p);
int __real_close(int fd);
int __real_open(const char *path, int flags, ...);

/* True: this call is to fail, or to lie. */
static bool fault_due(unsigned kind, const char *name)
{
	int action = atomic_load(&state->action);
	long n, at = atomic_load(&state->at);

	if (!(atomic_load(&state->kinds) & kind))
		return false;
	n = atomic_fetch_add(&state->seen, 1) + 1;
	if (n != at && !(action == FAULT_FAIL_ON && n > at && at > 0))
		return false;
	if (n == at)
		snprintf(state->hit, sizeof(state->hit), "%s", name);
	if (action == FAULT_KILL)
		kill(getpid(), SIGKILL);
	if (action == FAULT_STOP)
		kill(getpid(), SIGSTOP);
	return action == FAULT_CORRUPT || action == FAULT_FAIL || action == FAULT_FAIL_ON;
}

struct fault_balance fault_balance(void)
{
	return (struct fault_balance){
		.allocs = atomic_load(&allocs), .maps = atomic_load(&maps), .fds = entries("/proc/self/fd") - 1
	};
}

bool fault_back_to(const struct fault_balance *mark, int looks)
{
	for (;; pause_us(PAUSE_POLL, 2000)) {
		struct fault_balance b = fault_balance();

		if (b.allocs <= mark->allocs && b.maps <= mark->maps && b.fds <= mark->fds)
			return true;
		if (looks-- <= 0)
			return false;
	}
}

const char *fault_left_since(const struct fault_balance *mark)
{
	static char text[96];
	struct fault_balance b = fault_balance();

	snprintf(text, sizeof(text), "%+ld allocations, %+ld mappings, %+ld descriptors", b.allocs - mark->allocs,
	    b.maps - mark->maps, b.fds - mark->fds);
	return text;
}

/* A function that returns -1 and errno. */
#define CALL(kind, err, type, name, params, args) \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params \
	{ \
		if (fault_due(kind, #name)) { \
			errno = err; \
			return (type) - 1; \
		} \
		return __real_##name args; \
	}

CALL(FAULT_CALL, EMFILE, int, socket, (int d, int t, int p), (d, t, p))
CALL(FAULT_CALL, EADDRINUSE, int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
CALL(FAULT_CALL, EADDRINUSE, int, listen, (int fd, int n), (fd, n))
CALL(FAULT_CALL, EPERM, int, connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
CALL(FAULT_CALL, EMFILE, int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int f), (fd, a, n, f))
CALL(FAULT_CALL, ENOMEM, ssize_t, recv, (int fd, void *p, size_t n, int f), (fd, p, n, f))
CALL(FAULT_CALL, EPERM, ssize_t, recvmsg, (int fd, struct msghdr *m, int f), (fd, m, f))
CALL(FAULT_CALL, EMFILE, int, memfd_create, (const char *name, unsigned f), (name, f))
CALL(FAULT_CALL, ENOSPC, int, ftruncate, (int fd, off_t n), (fd, n))
CALL(FAULT_CALL, ENOSPC, int, ftruncate64, (int fd, off_t n), (fd, n))
CALL(FAULT_CALL, EMFILE, int, epoll_create1, (int f), (f))
CALL(FAULT_CALL, ENOSPC, int, epoll_ctl, (int fd, int op, int of, struct epoll_event *e), (fd, op, of, e))
CALL(FAULT_CALL, ENOSYS, ssize_t, getrandom, (void *p, size_t n, unsigned f), (p, n, f))
CALL(FAULT_CALL, ENOBUFS, int, getsockname, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
CALL(FAULT_POLL, ENOMEM, int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))

/* A copy with one byte changed; NULL: nothing to change. */
static void *corrupted_copy(const void *p, size_t n)
{
	unsigned salt = atomic_load(&state->salt);
	unsigned char *copy = n ? __real_malloc(n) : NULL;

	if (copy) {
		memcpy(copy, p, n);
		copy[salt / 255 % n] ^= (unsigned char)(1 + salt % 255);
	}
	return copy;
}

static ssize_t send_corrupted(int fd, const struct msghdr *m, int f)
{
	struct msghdr other = *m;
	void *copy = corrupted_copy(m->msg_iov->iov_base, m->msg_iov->iov_len);
	struct iovec iov = { copy ? copy : m->msg_iov->iov_base, m->msg_iov->iov_len };
	ssize_t n;

	other.msg_iov = &iov;
	other.msg_iovlen = 1;
	n = __real_sendmsg(fd, &other, f);
	__real_free(copy);
	return n;
}

ssize_t __wrap_send(int fd, const void *p, size_t n, int f);
ssize_t __wrap_send(int fd, const void *p, size_t n, int f)
{
	struct iovec iov = { (void *)(uintptr_t)p, n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (!fault_due(FAULT_CALL | FAULT_SEND, "send"))
		return __real_send(fd, p, n, f);
	if (atomic_load(&state->action) == FAULT_CORRUPT)
		return send_corrupted(fd, &m, f);
	errno = ENOBUFS;
	return -1;
}

static enum fault_forgery forgery;

void fault_forge(enum fault_forgery f)
{
	forgery = f;
}

static int forged_file(void)
{
	size_t bytes = forgery == FORGE_SMALLER ? 4096 : (size_t)28 << 20;
	int fd;

	if (forgery != FORGE_UNSEALED && forgery != FORGE_SMALLER)
		return __real_open("/dev/null", O_RDWR | O_CLOEXEC);
	fd = __real_memfd_create("shunt-sim", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (__real_ftruncate(fd, (off_t)bytes) ||
	    (forgery == FORGE_SMALLER && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)))
		return -1;
	return fd;
}

static ssize_t forge(int fd, const struct msghdr *m, int f)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct msghdr other = *m;
	int fds[2] = { forged_file(), forged_file() }, count = forgery == FORGE_TWO ? 2 : 1;
	ssize_t n;

	other.msg_control = forgery == FORGE_NONE ? NULL : &control;
	other.msg_controllen = forgery == FORGE_NONE ? 0 : CMSG_SPACE((unsigned)count * sizeof(int));
	if (other.msg_control) {
		*CMSG_FIRSTHDR(&other) = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS,
			.cmsg_len = CMSG_LEN((unsigned)count * sizeof(int)) };
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&other)), fds, (unsigned)count * sizeof(int));
	}
	n = __real_sendmsg(fd, &other, f);
	__real_close(fds[0]);
	__real_close(fds[1]);
	return n;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int f);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int f)
{
	if (forgery && (m->msg_controllen != 0) == (forgery != FORGE_UNASKED))
		return forge(fd, m, f);
	if (!fault_due(FAULT_CALL | FAULT_SEND, "sendmsg"))
		return __real_sendmsg(fd, m, f);
	if (atomic_load(&state->action) == FAULT_CORRUPT)
		return send_corrupted(fd, m, f);
	errno = EPERM; /* as a security policy does */
	return -1;
}

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)
{
	return fault_due(FAULT_CALL, "pthread_create") ? EAGAIN : __real_pthread_create(t, a, f, arg);
}

/* Cannot fail in a way that anybody could answer, but is a place to die or to stop. */
int __wrap_close(int fd);
int __wrap_close(int fd)
{
	fault_due(FAULT_CALL, "close");
	return __real_close(fd);
}

#define OPEN(name) \
	int __real_##name(const char *path, int flags, ...); \
	int __wrap_##name(const char *path, int flags, ...); \
	int __wrap_##name(const char *path, int flags, ...) \
	{ \
		va_list ap; \
		int mode = 0; \
\
		if (flags & O_CREAT) { \
			va_start(ap, flags); \
			mode = va_arg(ap, int); \
			va_end(ap); \
		} \
		if (fault_due(FAULT_CALL, #name)) { \
			errno = EMFILE; \
			return -1; \
		} \
		return __real_##name(path, flags, mode); \
	}
OPEN(open)
OPEN(open64)

#define MMAP(name) \
	void *__real_##name(void *at, size_t n, int prot, int flags, int fd, off_t off); \
	void *__wrap_##name(void *at, size_t n, int prot, int flags, int fd, off_t off); \
	void *__wrap_##name(void *at, size_t n, int prot, int flags, int fd, off_t off) \
	{ \
		void *p; \
\
		if (fault_due(FAULT_CALL, #name)) { \
			errno = ENOMEM; \
			return MAP_FAILED; \
		} \
		p = __real_##name(at, n, prot, flags, fd, off); \
		atomic_fetch_add(&maps, p != MAP_FAILED); \
		return p; \
	}
MMAP(mmap)
MMAP(mmap64)

int __real_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n)
{
	fault_due(FAULT_CALL, "munmap");
	atomic_fetch_sub(&maps, 1);
	return __real_munmap(p, n);
}

/* fresh: it is one more than before. */
#define ALLOC(name, fresh, params, args) \
	void *__real_##name params; \
	void *__wrap_##name params; \
	void *__wrap_##name params \
	{ \
		void *p = fault_due(FAULT_ALLOC, #name) ? NULL : __real_##name args; \
\
		atomic_fetch_add(&allocs, p && (fresh)); \
		if (!p) \
			errno = ENOMEM; \
		return p; \
	}
ALLOC(malloc, true, (size_t n), (n))
ALLOC(calloc, true, (size_t n, size_t size), (n, size))
ALLOC(realloc, !old, (void *old, size_t n), (old, n))
ALLOC(aligned_alloc, true, (size_t align, size_t n), (align, n))

int __real_posix_memalign(void **p, size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
	int err = fault_due(FAULT_ALLOC, "posix_memalign") ? ENOMEM : __real_posix_memalign(p, align, n);

	atomic_fetch_add(&allocs, !err);
	return err;
}

char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
	char *p = __wrap_malloc(strlen(text) + 1);

	return p ? strcpy(p, text) : NULL;
}

void __wrap_free(void *p);
void __wrap_free(void *p)
{
	atomic_fetch_sub(&allocs, p != NULL);
	__real_free(p);
}

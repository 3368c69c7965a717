/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <time.h>
#include "base/fd.h"
#include "base/log.h"
#include "base/os.h"
#include "comm/parts/comm_registry.h"
#include "comm/parts/service.h"

#define PROCESS_EVENT (UINT64_C(1) << 63) /* set in the key that epoll reports for a pidfd */
#define CROWD 64                          /* fruitless connections, peers' included, after which each is a stranger's */
#define CROWD_MS 10

/* With the registry's lock. */
static uint64_t keys;
static int epoll_fd = -1;
/* Of the processes that are watched; NULL: none was, ever. */
static const struct shunt_service_deaths *_Atomic deaths;

/* A forked child has no thread that would wait. */
static void forget_epoll(void)
{
	epoll_fd = -1;
}
SHUNT_IN_FORKED_CHILD(forget_epoll)

/* Waits for this time, or until the watch is removed. With the lock held. */
static void back_off(struct shunt_watch *w, int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until); /* the real-time clock may be set back */
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	while (w->key && shunt_registry_wait(&until))
		;
}

/* Strangers that come and go take a thread for a moment, and no more of it than this. */
static void *worker(void *arg)
{
	struct shunt_registration *r = arg;
	struct shunt_watch *w = &r->watch;
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };
	bool again = w->run(r->comm);

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	if (again && ++w->fruitless > CROWD)
		back_off(w, CROWD_MS);
	if (again && w->key) {
		event.data.u64 = w->key;
		(void)epoll_ctl(epoll_fd, EPOLL_CTL_MOD, w->fd, &event);
	}
	w->running = false;
	shunt_registry_changed();
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	return NULL;
}

/* With the lock held. 0 or -errno. */
static int run_locked(struct shunt_registration *r)
{
	int err;

	if (!r || !r->watch.key || r->watch.running)
		return 0;
	r->watch.running = true;
	err = shunt_thread_start(NULL, 0, worker, r);
	if (err) /* the program's own first call does the set-up then */
		r->watch.running = false;
	return err;
}

static void warn_no_thread(int err)
{
	if (err)
		shunt_warn("no thread for a communicator that a peer wants to set up; the peer waits for this rank's "
		           "first call");
}

static void run_watch(uint64_t key)
{
	struct shunt_registration *r;
	int err;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	for (r = shunt_registry_first(); r && r->watch.key != key; r = r->next)
		;
	err = run_locked(r);
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	warn_no_thread(err);
}

void shunt_service_wake(struct shunt_registration *r)
{
	struct shunt_watch *w = &r->watch;
	int err;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	while (w->running) /* run found nothing to do, and the thread is about to end */
		shunt_registry_wait(NULL);
	err = run_locked(r);
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	warn_no_thread(err);
}

static int poll_deaths(void)
{
	const struct shunt_service_deaths *d = atomic_load(&deaths);

	return d ? d->poll() : -1;
}

static void *listen_thread(void *arg)
{
	int fd = (int)(intptr_t)arg;
	struct epoll_event events[16];

	for (int ms = -1;; ms = poll_deaths()) {
		int n = epoll_wait(fd, events, 16, ms);

		if (n < 0 && errno != EINTR)
			return NULL;
		for (int i = 0; i < n; i++)
			if (events[i].data.u64 & PROCESS_EVENT)
				atomic_load(&deaths)->died(events[i].data.u64 & ~PROCESS_EVENT);
			else
				run_watch(events[i].data.u64);
	}
}

static int start_thread(void)
{
	int fd, err;

	if (epoll_fd >= 0)
		return 0;
	fd = SHUNT_FD(epoll_create1(EPOLL_CLOEXEC));
	if (fd < 0)
		return -errno;
	err = shunt_thread_start(NULL, 0, listen_thread, (void *)(intptr_t)fd);
	if (err) {
		shunt_close_fd(&fd);
		return err;
	}
	epoll_fd = fd;
	return 0;
}

int shunt_service_watch_process_locked(int pidfd, uint64_t key, const struct shunt_service_deaths *of)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = key | PROCESS_EVENT };
	int err = start_thread();

	atomic_store(&deaths, of);
	if (!err && epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pidfd, &event))
		err = -errno;
	return err;
}

void shunt_service_unwatch_process_locked(int *pidfd)
{
	shunt_close_watched(epoll_fd, pidfd);
}

int shunt_service_watch(struct shunt_registration *r, int fd, bool (*run)(struct shunt_comm *comm))
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };
	int err;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	err = start_thread();
	if (!err) {
		event.data.u64 = ++keys;
		err = epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
	}
	if (!err)
		r->watch = (struct shunt_watch){ .key = keys, .fd = fd, .listed = true, .run = run };
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	return err;
}

void shunt_service_end_watch(struct shunt_registration *r)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	if (r->watch.listed) /* not left to close: a forked child may hold a copy */
		(void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, r->watch.fd, NULL);
	r->watch.listed = false;
	r->watch.key = 0;
	shunt_registry_changed();
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

void shunt_service_unwatch(struct shunt_registration *r)
{
	struct shunt_watch *w = &r->watch;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	/* No new event finds the watch. Its fd may be closed, and the number reused, only after run has ended. */
	w->key = 0;
	shunt_registry_changed();
	while (w->running)
		shunt_registry_wait(NULL);
	if (w->listed)
		(void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
	w->listed = false;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

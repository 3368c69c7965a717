/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "comm/observe/peers.h"
#include "comm/service.h"
#include "base/os.h"
#include "base/lock.h"

#define PROCESS_EVENT (UINT64_C(1) << 63) /* set in the key that epoll reports for a pidfd */
#define CROWD 64                          /* fruitless connections, peers' included, after which each is a stranger's */
#define CROWD_MS 10

struct watch {
	struct watch *next;
	uint64_t key; /* what epoll reports: a number, because the watch may be freed by then; 0: being removed */
	struct shunt_comm *comm;
	int fd;
	bool (*run)(struct shunt_comm *comm);
	bool running;
	int fruitless; /* how often nothing came of a connection */
};

static void drop_watches(void);
static struct shunt_lock lock = SHUNT_LOCK(drop_watches);
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static struct watch *watches;
static uint64_t keys;
static int epoll_fd = -1;

/* A forked child has none of what these stand for. */
static void drop_watches(void)
{
	watches = NULL;
	epoll_fd = -1;
	pthread_cond_init(&ended, NULL);
}

/* Waits for this time, or until the watch is removed. With the lock held. */
static void back_off(struct watch *w, int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until); /* the real-time clock may be set back */
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	while (w->key && !pthread_cond_clockwait(&ended, &lock.mutex, CLOCK_MONOTONIC, &until))
		;
}

/* Strangers that come and go take a thread for a moment, and no more of it than this. */
static void *worker(void *arg)
{
	struct watch *w = arg;
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };
	bool again = w->run(w->comm);

	shunt_lock_acquire(&lock);
	if (again && ++w->fruitless > CROWD)
		back_off(w, CROWD_MS);
	if (again && w->key) {
		event.data.u64 = w->key;
		(void)epoll_ctl(epoll_fd, EPOLL_CTL_MOD, w->fd, &event);
	}
	w->running = false;
	pthread_cond_broadcast(&ended);
	shunt_lock_release(&lock);
	return NULL;
}

static void run_locked(struct watch *w)
{
	if (!w || w->running)
		return;
	w->running = true;
	if (shunt_thread_start(NULL, 0, worker, w)) {
		/* The program's own first call does the set-up then. */
		w->running = false;
		shunt_warn("no thread for a communicator that a peer wants to set up; the peer waits for this rank's "
		           "first call");
	}
}

static void run_watch(uint64_t key)
{
	struct watch *w;

	shunt_lock_acquire(&lock);
	for (w = watches; w && w->key != key; w = w->next)
		;
	run_locked(w);
	shunt_lock_release(&lock);
}

void shunt_service_wake(struct shunt_comm *comm)
{
	struct watch *w;

	shunt_lock_acquire(&lock);
	for (w = watches; w && w->comm != comm; w = w->next)
		;
	while (w && w->running) /* run found nothing to do, and the thread is about to end */
		pthread_cond_wait(&ended, &lock.mutex);
	run_locked(w);
	shunt_lock_release(&lock);
}

static void *listen_thread(void *arg)
{
	int fd = (int)(intptr_t)arg;
	struct epoll_event events[16];

	for (int ms = -1;; ms = shunt_peers_poll()) {
		int n = epoll_wait(fd, events, 16, ms);

		if (n < 0 && errno != EINTR)
			return NULL;
		for (int i = 0; i < n; i++)
			if (events[i].data.u64 & PROCESS_EVENT)
				shunt_peers_died(events[i].data.u64 & ~PROCESS_EVENT);
			else
				run_watch(events[i].data.u64);
	}
}

static int start_thread(void)
{
	int fd, err;

	if (epoll_fd >= 0)
		return 0;
	fd = epoll_create1(EPOLL_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = shunt_thread_start(NULL, 0, listen_thread, (void *)(intptr_t)fd);
	if (err) {
		close(fd);
		return err;
	}
	epoll_fd = fd;
	return 0;
}

int shunt_service_watch_process(int pidfd, uint64_t key)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = key | PROCESS_EVENT };
	int err;

	shunt_lock_acquire(&lock);
	err = start_thread();
	if (!err && epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pidfd, &event))
		err = -errno;
	shunt_lock_release(&lock);
	return err;
}

int shunt_service_watch(struct shunt_comm *comm, int fd, bool (*run)(struct shunt_comm *comm))
{
	struct watch *w = calloc(1, sizeof(*w));
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };
	int err;

	if (!w)
		return -ENOMEM;
	shunt_lock_acquire(&lock);
	err = start_thread();
	if (!err) {
		*w = (struct watch){ .next = watches, .key = ++keys, .comm = comm, .fd = fd, .run = run };
		event.data.u64 = w->key;
		err = epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
	}
	if (!err)
		watches = w;
	else
		free(w);
	shunt_lock_release(&lock);
	return err;
}

void shunt_service_unwatch(struct shunt_comm *comm)
{
	struct watch **p, *w;

	shunt_lock_acquire(&lock);
	for (p = &watches; *p && (*p)->comm != comm; p = &(*p)->next)
		;
	w = *p;
	if (w) {
		/*
		 * No new event finds the watch. Its fd may be closed, and the number reused, only after run has ended.
		 */
		w->key = 0;
		pthread_cond_broadcast(&ended);
		while (w->running)
			pthread_cond_wait(&ended, &lock.mutex);
		for (p = &watches; *p != w; p = &(*p)->next)
			;
		*p = w->next;
		free(w);
	}
	shunt_lock_release(&lock);
}

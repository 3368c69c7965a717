/* SPDX-License-Identifier: MIT */
#include "transport/net/tcp/tcp_workers.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/io.h"
#include "base/lock.h"
#include "base/os.h"

#define CPUS_A_WORKER 4 /* a host has a proxy for each of up to 8 GPUs, whose threads seldom work at the same time */
#define WORKERS_AUTO 8
#define SPIN_US 50 /* at most: they are many, and an edge wakes one */
#define MAX_EVENTS 64

struct tcp_worker {
	struct tcp_workers *all;
	struct shunt_mutex lock; /* while it works on its sockets */
	atomic_uint wanted;      /* threads that wait for the lock: a mutex alone would let this one have it again */
	struct tcp_load *first;
	int epoll_fd, wake_fd;
	atomic_bool asleep;
	bool runs;
	pthread_t id;
};

struct tcp_workers {
	bool (*carry)(struct tcp_load *load);
	atomic_bool stopping;
	int64_t spin_ns;  /* for which a thread without work looks for some before it sleeps */
	unsigned n, next; /* next: which gets the next socket */
	struct tcp_worker worker[TCP_MAX_WORKERS];
};

unsigned shunt_tcp_workers_wanted(void)
{
	int64_t n = shunt_config()->socket_threads, each_way = shunt_nccl_env()->socket_nthreads;
	unsigned spare = (unsigned)shunt_usable_cpus() / CPUS_A_WORKER;

	if (n < 0 && each_way >= 0)
		n = 2 * each_way;
	if (n < 0)
		return spare < WORKERS_AUTO ? spare : WORKERS_AUTO;
	return n < TCP_MAX_WORKERS ? (unsigned)n : TCP_MAX_WORKERS;
}

/* Goes on with each socket. True: there was something to do. */
static bool pass(struct tcp_worker *w)
{
	struct epoll_event events[MAX_EVENTS];
	bool any = false;
	int n;

	while (atomic_load(&w->wanted))
		sched_yield();
	shunt_mutex_lock(&w->lock);
	n = epoll_wait(w->epoll_fd, events, MAX_EVENTS, 0);
	for (int i = 0; i < n; i++) {
		struct tcp_load *load = events[i].data.ptr;

		if (load) /* else it is wake_fd */
			load->edges |= events[i].events;
	}
	for (struct tcp_load *load = w->first; load; load = load->next)
		any |= w->all->carry(load);
	shunt_mutex_unlock(&w->lock);
	return any;
}

static void wake(struct tcp_worker *w)
{
	uint64_t one = 1;

	if (write(w->wake_fd, &one, sizeof(one)) < 0)
		return; /* its count is full: it has woken the thread */
}

/* Until there is an edge, or wake. */
static void sleep_idle(struct tcp_worker *w)
{
	struct pollfd fd = { .fd = w->epoll_fd, .events = POLLIN };

	atomic_store(&w->asleep, true);
	/* Whoever makes work after this look finds that the thread sleeps, and wakes it. */
	if (!pass(w) && !atomic_load(&w->all->stopping))
		poll(&fd, 1, -1);
	atomic_store(&w->asleep, false);
}

static void *worker_main(void *arg)
{
	struct tcp_worker *w = arg;
	int64_t last = shunt_now_ns();

	pthread_setname_np(pthread_self(), "shunt-socket");
	while (!atomic_load(&w->all->stopping)) {
		if (!pass(w)) {
			if (shunt_now_ns() - last < w->all->spin_ns)
				continue;
			sleep_idle(w);
		}
		last = shunt_now_ns();
	}
	return NULL;
}

static int start(struct tcp_worker *w)
{
	/* Edges: nobody reads its count. */
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int err;

	shunt_mutex_init(&w->lock, SHUNT_LOCK_SOCKETS);
	w->epoll_fd = SHUNT_FD(epoll_create1(EPOLL_CLOEXEC));
	w->wake_fd = SHUNT_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (w->epoll_fd < 0 || w->wake_fd < 0 || epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->wake_fd, &event))
		return -errno;
	err = shunt_thread_start(&w->id, 0, worker_main, w);
	w->runs = !err;
	return err;
}

int shunt_tcp_workers_start(unsigned n, bool (*carry)(struct tcp_load *load), struct tcp_workers **workers_p)
{
	struct tcp_workers *all = calloc(1, sizeof(*all));
	int err = 0;

	if (!all)
		return -ENOMEM;
	all->carry = carry;
	/* The proxy thread and the program need CPUs as well. */
	if ((unsigned)shunt_usable_cpus() > n + 2)
		all->spin_ns =
		    (int64_t)(shunt_config()->proxy_spin < SPIN_US ? shunt_config()->proxy_spin : SPIN_US) * 1000;
	while (all->n < n && !err) {
		all->worker[all->n].all = all;
		err = start(&all->worker[all->n++]);
	}
	if (err) {
		shunt_tcp_workers_stop(all);
		return err;
	}
	*workers_p = all;
	return 0;
}

void shunt_tcp_workers_halt(struct tcp_workers *all)
{
	if (!all)
		return;
	atomic_store(&all->stopping, true);
	for (unsigned i = 0; i < all->n; i++)
		if (all->worker[i].runs)
			wake(&all->worker[i]);
	for (unsigned i = 0; i < all->n; i++)
		if (all->worker[i].runs)
			pthread_join(all->worker[i].id, NULL);
	for (unsigned i = 0; i < all->n; i++)
		all->worker[i].runs = false;
}

void shunt_tcp_workers_stop(struct tcp_workers *all)
{
	if (!all)
		return;
	shunt_tcp_workers_halt(all);
	for (unsigned i = 0; i < all->n; i++) {
		struct tcp_worker *w = &all->worker[i];

		shunt_close_watched(w->epoll_fd, &w->wake_fd);
		shunt_close_fd(&w->epoll_fd);
		shunt_mutex_destroy(&w->lock);
	}
	free(all);
}

static void lock(struct tcp_worker *w)
{
	atomic_fetch_add(&w->wanted, 1);
	shunt_mutex_lock(&w->lock);
	atomic_fetch_sub(&w->wanted, 1);
}

int shunt_tcp_load_give(struct tcp_workers *all, struct tcp_load *load, int fd)
{
	struct tcp_worker *w = &all->worker[all->next++ % all->n];
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = load };
	int err;

	lock(w);
	err = epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
	if (!err) {
		load->worker = w;
		load->next = w->first;
		w->first = load;
	}
	shunt_mutex_unlock(&w->lock);
	return err;
}

void shunt_tcp_load_take(struct tcp_load *load, int fd)
{
	struct tcp_worker *w = load->worker;
	struct tcp_load **link;

	if (!w)
		return;
	lock(w);
	(void)epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	for (link = &w->first; *link != load; link = &(*link)->next)
		;
	*link = load->next;
	load->worker = NULL;
	shunt_mutex_unlock(&w->lock);
}

void shunt_tcp_load_lock(struct tcp_load *load)
{
	struct tcp_worker *w = load->worker;

	if (w)
		lock(w);
}

void shunt_tcp_load_unlock(struct tcp_load *load)
{
	struct tcp_worker *w = load->worker;

	if (w)
		shunt_mutex_unlock(&w->lock);
}

void shunt_tcp_load_wake(struct tcp_load *load)
{
	struct tcp_worker *w = load->worker;

	if (w && atomic_load(&w->asleep) && atomic_exchange(&w->asleep, false))
		wake(w);
}

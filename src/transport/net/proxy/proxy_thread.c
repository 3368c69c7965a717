/* SPDX-License-Identifier: MIT */
/* The proxy's threads: which there are, their loop, and how they sleep. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/io.h"
#include "base/lock.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/net/proxy/proxy_priv.h"

/*
 * A nap is as long as a part of the time since the last work, so that a kernel's trigger waits for no more than that
 * part of the time since the last call.
 */
#define NAP_PART 16
#define NAP_SHORTEST_NS 20000
#define NAP_LONGEST_NS 2000000 /* 500 times a second, 5 to 10 us each: half a percent of a CPU */
#define EVENTS 64
#define SPARE_CPUS 2 /* for the program, and for the network's own work */
/*
 * For the last words of a process that ends while its communicators linger, or without destroying them. It ends at once
 * when they are said, which takes seconds where many ranks share few CPUs; unsaid, they are a rank's death to its
 * peers.
 */
#define LEAVE_MS 5000

static struct proxy_thread *threads; /* SHUNT_LOCK_PROXY */

/* A forked child has no proxy threads. */
static void forget_threads(void)
{
	threads = NULL;
}
SHUNT_IN_FORKED_CHILD(forget_threads)

static int64_t spin_ns(void)
{
	int users = 0;

	shunt_lock_acquire(SHUNT_LOCK_PROXY);
	for (struct proxy_thread *t = threads; t; t = t->next)
		users++;
	shunt_lock_release(SHUNT_LOCK_PROXY);
	return shunt_usable_cpus() >= users + SPARE_CPUS + 1 ? (int64_t)shunt_config()->proxy_spin * 1000 : 0;
}

static void run_commands(struct proxy_thread *t)
{
	struct proxy_command *list, *first = NULL;

	if (!atomic_exchange(&t->has_commands, false))
		return;
	shunt_lock_acquire(SHUNT_LOCK_PROXY);
	list = t->commands;
	t->commands = NULL;
	shunt_lock_release(SHUNT_LOCK_PROXY);
	while (list) { /* the list begins with the newest command */
		struct proxy_command *next = list->next;

		list->next = first;
		first = list;
		list = next;
	}
	while (first) {
		struct proxy_command *command = first;

		first = command->next;
		command->fn(t, command->arg);
		sem_post(&command->done); /* the caller frees it now */
	}
}

/* True: there was something to do. */
static bool work(struct proxy_thread *t)
{
	struct shunt_net_event events[EVENTS];
	bool any = false;
	int n;

	run_commands(t);
	for (struct shunt_proxy *p = t->proxies; p; p = p->next)
		any |= shunt_proxy_work(p);
	n = t->net->progress(t->device, events, EVENTS);
	for (int i = 0; i < n; i++)
		shunt_proxy_event(&events[i]);
	return any || n > 0;
}

static long nap_ns(int64_t idle_ns)
{
	int64_t ns = idle_ns / NAP_PART;

	return ns < NAP_SHORTEST_NS ? NAP_SHORTEST_NS : ns < NAP_LONGEST_NS ? (long)ns : NAP_LONGEST_NS;
}

static void nap(struct proxy_thread *t, long ns)
{
	struct pollfd fds[2] = { { .fd = t->net->fd(t->device), .events = POLLIN },
		{ .fd = t->wake_fd, .events = POLLIN } };
	struct timespec time = { .tv_nsec = ns };
	uint64_t count;

	atomic_store(&t->asleep, true);
	if (!atomic_load(&t->has_commands) && !atomic_load(&t->called) && !atomic_load(&t->stopping))
		ppoll(fds, 2, t->proxies ? &time : NULL, NULL);
	atomic_store(&t->asleep, false);
	if (fds[1].revents && read(t->wake_fd, &count, sizeof(count)) < 0)
		return; /* another reader has taken the count: the loop looks for work anyway */
}

/* Tells the peers of all communicators that nothing follows. Commands that come later run on their callers' threads. */
static void leave(struct proxy_thread *t)
{
	int64_t end = shunt_deadline_ms(LEAVE_MS);
	bool last = false;

	for (struct shunt_proxy *p = t->proxies; p; p = p->next)
		p->finishing = true;
	while (t->proxies && shunt_now_ms() < end && !shunt_proxy_left(t->proxies))
		work(t);
	if (t->proxies && t->net->halt)
		t->net->halt(t->device);
	while (!last) {
		run_commands(t);
		shunt_lock_acquire(SHUNT_LOCK_PROXY);
		last = t->ended = !t->commands;
		shunt_lock_release(SHUNT_LOCK_PROXY);
	}
}

static void *thread_main(void *arg)
{
	struct proxy_thread *t = arg;
	int64_t last = shunt_now_ns(), spin = spin_ns();

	pthread_setname_np(pthread_self(), "shunt-proxy");
	prctl(PR_SET_TIMERSLACK, 1000UL);
	while (!atomic_load(&t->stopping)) {
		int64_t idle;

		/* A launch counts as work: its triggers come when its stream reaches it. */
		if (work(t) ||
		    (atomic_load_explicit(&t->called, memory_order_relaxed) && atomic_exchange(&t->called, false))) {
			last = shunt_now_ns();
			continue;
		}
		idle = shunt_now_ns() - last;
		if (idle >= spin && t->net->arm(t->device))
			nap(t, nap_ns(idle));
	}
	leave(t);
	return NULL;
}

void shunt_proxy_thread_wake(struct proxy_thread *t)
{
	uint64_t one = 1;

	atomic_store(&t->called, true); /* before the look: a thread that goes to sleep meanwhile looks at it then */
	if (atomic_load(&t->asleep) && write(t->wake_fd, &one, sizeof(one)) < 0)
		return; /* it is awake, or will be within two milliseconds */
}

void shunt_proxy_thread_call(struct proxy_thread *t, void (*fn)(struct proxy_thread *, void *), void *arg)
{
	struct proxy_command command = { .fn = fn, .arg = arg };
	uint64_t one = 1;
	bool ended;

	sem_init(&command.done, 0, 0);
	shunt_lock_acquire(SHUNT_LOCK_PROXY);
	ended = t->ended;
	if (!ended) {
		command.next = t->commands;
		t->commands = &command; /* cppcheck-suppress autoVariables; this function waits until it is done */
	}
	shunt_lock_release(SHUNT_LOCK_PROXY);
	if (ended) {
		fn(t, arg);
		return;
	}
	atomic_store(&t->has_commands, true);
	if (write(t->wake_fd, &one, sizeof(one)) < 0)
		shunt_proxy_thread_wake(t);
	while (sem_wait(&command.done))
		;
	sem_destroy(&command.done);
}

static void stop(struct proxy_thread *t)
{
	uint64_t one = 1;

	atomic_store(&t->stopping, true);
	if (write(t->wake_fd, &one, sizeof(one)) < 0)
		shunt_proxy_thread_wake(t);
	pthread_join(t->id, NULL);
}

/*
 * At the process's end, before the driver frees the memory that the threads read: its handler was registered before
 * this one, and so runs after it.
 */
static void stop_all(void)
{
	struct proxy_thread *all;

	shunt_lock_acquire(SHUNT_LOCK_PROXY);
	all = threads;
	threads = NULL;
	shunt_lock_release(SHUNT_LOCK_PROXY);
	for (; all; all = all->next)
		stop(all);
}

static void register_end(void)
{
	atexit(stop_all);
}

static bool same_rails(const struct shunt_net_rails *a, const struct shunt_net_rails *b)
{
	return a->n == b->n && !memcmp(a->index, b->index, sizeof(a->index));
}

static struct proxy_thread *find(const struct shunt_net_ops *net, const struct shunt_net_rails *rails, int gpu)
{
	struct proxy_thread *t = threads;

	while (t && (t->net != net || !same_rails(&t->rails, rails) || t->gpu != gpu))
		t = t->next;
	if (t)
		t->users++;
	return t;
}

static void destroy_thread(struct proxy_thread *t)
{
	if (t->device)
		t->net->close(t->device);
	shunt_close_fd(&t->wake_fd);
	free(t);
}

static int open_rails(struct proxy_thread *t)
{
	int err = t->net->open(t->rails.index[0], &t->device);

	for (int i = 1; i < t->rails.n && !err; i++)
		err = t->net->add_rail(t->device, t->rails.index[i]);
	return err;
}

static int create_thread(
    const struct shunt_net_ops *net, const struct shunt_net_rails *rails, int gpu, struct proxy_thread **thread_p)
{
	struct proxy_thread *t = calloc(1, sizeof(*t));
	int err;

	if (!t)
		return -ENOMEM;
	*t = (struct proxy_thread){ .net = net, .rails = *rails, .gpu = gpu, .users = 1 };
	t->wake_fd = SHUNT_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	err = t->wake_fd < 0 ? -errno : open_rails(t);
	if (!err)
		err = shunt_thread_start(&t->id, 0, thread_main, t);
	if (err) {
		shunt_error("the proxy thread of device %d of %s cannot be started: %s", rails->index[0], net->name,
		    shunt_thread_error_text(err).s);
		destroy_thread(t);
		return err;
	}
	*thread_p = t;
	return 0;
}

int shunt_proxy_thread_get(
    const struct shunt_net_ops *net, const struct shunt_net_rails *rails, int gpu, struct proxy_thread **thread_p)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct proxy_thread *t, *other;
	int err;

	pthread_once(&once, register_end);
	shunt_lock_acquire(SHUNT_LOCK_PROXY);
	*thread_p = find(net, rails, gpu);
	shunt_lock_release(SHUNT_LOCK_PROXY);
	if (*thread_p)
		return 0;
	err = create_thread(net, rails, gpu, &t); /* it logs, and opens a device: without the lock */
	if (err)
		return err;
	shunt_lock_acquire(SHUNT_LOCK_PROXY);
	other = find(net, rails, gpu);
	if (!other) {
		t->next = threads;
		threads = t;
	}
	shunt_lock_release(SHUNT_LOCK_PROXY);
	if (other) {
		stop(t);
		destroy_thread(t);
	}
	*thread_p = other ? other : t;
	return 0;
}

void shunt_proxy_thread_put(struct proxy_thread *t)
{
	struct proxy_thread **link;
	bool last;

	shunt_lock_acquire(SHUNT_LOCK_PROXY);
	last = !--t->users;
	for (link = &threads; last && *link; link = &(*link)->next)
		if (*link == t) {
			*link = t->next;
			break;
		}
	shunt_lock_release(SHUNT_LOCK_PROXY);
	if (!last)
		return;
	if (!atomic_load(&t->stopping))
		stop(t);
	destroy_thread(t);
}

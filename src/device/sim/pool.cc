/* SPDX-License-Identifier: MIT */
#include "device/sim/pool.h"
#include <errno.h>
#include <signal.h>

int sim_thread_create(pthread_t *thread_p, void *(*main)(void *), void *arg)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(thread_p, nullptr, main, arg);
	pthread_sigmask(SIG_SETMASK, &old, nullptr);
	return -err;
}

static void run_worker(struct sim_worker *m)
{
	struct sim_pool *t = m->pool;
	int ok = 0, err;

	if (!__atomic_sub_fetch(&t->absent, 1, __ATOMIC_ACQ_REL) && t->launch->begun)
		t->launch->begun(t->launch->launched);
	err = sim_block_run(&m->block, t->launch, m->bid, &t->tsan_edges);
	if (err)
		__atomic_compare_exchange_n(&t->err, &ok, err, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	if (__atomic_sub_fetch(&t->left, 1, __ATOMIC_ACQ_REL) == 0)
		sim_wake(&t->left);
}

static void *worker_main(void *arg)
{
	struct sim_worker *m = (struct sim_worker *)arg;

	for (uint32_t served = 0;; served++) {
		while (__atomic_load_n(&m->go, __ATOMIC_ACQUIRE) == served)
			sim_wait(&m->go, served);
		if (m->pool->stop)
			return nullptr;
		run_worker(m);
	}
}

static int add_worker(struct sim_pool *t)
{
	struct sim_worker *m = (struct sim_worker *)sim_new(sizeof(*m));
	int err;

	if (!m)
		return -ENOMEM;
	m->pool = t;
	m->bid = t->count;
	if (m->bid && (err = sim_thread_create(&m->thread, worker_main, m))) {
		sim_delete(m);
		return err;
	}
	t->worker[t->count++] = m;
	return 0;
}

int sim_pool_reserve(struct sim_pool *t, unsigned blocks, unsigned threads)
{
	int err = 0;

	sim_lock(&t->lock);
	while (!err && t->count < blocks)
		err = add_worker(t);
	for (unsigned i = 0; !err && i < blocks; i++)
		err = sim_block_reserve(&t->worker[i]->block, threads);
	sim_unlock(&t->lock);
	return err;
}

int sim_pool_run(struct sim_pool *t, const struct sim_launch *launch)
{
	t->launch = launch;
	t->err = 0;
	__atomic_store_n(&t->blocks, launch->blocks, __ATOMIC_RELAXED);
	__atomic_store_n(&t->absent, launch->blocks, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < launch->blocks; i++)
		sim_block_set_idle(&t->worker[i]->block, 0);
	__atomic_store_n(&t->left, launch->blocks, __ATOMIC_RELEASE);
	tsan_release(&t->tsan_edges.start);
	for (unsigned i = 1; i < launch->blocks; i++) {
		__atomic_add_fetch(&t->worker[i]->go, 1, __ATOMIC_RELEASE);
		sim_wake(&t->worker[i]->go);
	}
	run_worker(t->worker[0]);
	for (uint32_t left; (left = __atomic_load_n(&t->left, __ATOMIC_ACQUIRE));)
		sim_wait(&t->left, left);
	tsan_acquire(&t->tsan_edges.end);
	return t->err;
}

bool sim_pool_stuck(const struct sim_pool *t)
{
	if (!__atomic_load_n(&t->left, __ATOMIC_ACQUIRE))
		return false;
	for (unsigned i = 0; i < __atomic_load_n(&t->blocks, __ATOMIC_RELAXED); i++)
		if (__atomic_load_n(&t->worker[i]->block.idle_rounds, __ATOMIC_ACQUIRE) < SIM_STUCK_ROUNDS)
			return false;
	return true;
}

void sim_pool_finish(struct sim_pool *t)
{
	t->stop = true;
	for (unsigned i = 0; i < t->count; i++) {
		struct sim_worker *m = t->worker[i];

		if (i) {
			__atomic_add_fetch(&m->go, 1, __ATOMIC_RELEASE);
			sim_wake(&m->go);
			pthread_join(m->thread, nullptr);
		}
		sim_block_finish(&m->block);
		sim_delete(m);
	}
}

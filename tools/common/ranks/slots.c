/* SPDX-License-Identifier: MIT */
/* The ranks of a worker: the process's one, or with --threads all. */
#include "tools/common/libc.h"
#include "tools/common/ranks/ranks.h"

void ranks_progress_set(struct ranks_progress *p, enum ranks_stage stage, int lib, int way)
{
	atomic_store(&p->stage, stage);
	atomic_store(&p->lib, lib);
	atomic_store(&p->way, way);
	atomic_fetch_add(&p->heartbeats, 1);
}

struct rank_thread {
	struct ranks_slot rank_slot;
	int (*run)(const void *arg, const struct ranks_slot *rank_slot);
	const void *arg;
	int status;
	pthread_t thread;
};

static void *rank_thread_main(void *arg)
{
	struct rank_thread *s = arg;

	s->status =
	    s->run(s->arg, &s->rank_slot); /* NOLINT(clang-analyzer-core.CallAndMessage): there is at least one rank */
	return NULL;
}

int ranks_slots_run(
    const struct ranks_opts *o, int (*run)(const void *arg, const struct ranks_slot *rank_slot), const void *arg)
{
	struct ranks_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, o->worker_fd, 0);
	struct rank_thread rank_threads[RANKS_MAX];
	int started = 1, status = 0;

	if (shared == MAP_FAILED) {
		tool_error("--worker is not for you: the command gives it to the processes that it starts");
		return TOOL_USAGE;
	}
	const struct ranks_launch *l = &shared->launch;
	int n = o->threads && !l->external ? l->nranks : 1;

	for (int i = 0; i < n; i++) {
		int rank = l->external ? l->rank : o->worker_index + i;

		rank_threads[i] = (struct rank_thread){ .run = run,
			.arg = arg,
			.rank_slot = { .shared = shared,
			    .rank = rank,
			    .device = (l->external ? l->local_rank : rank) % l->ndevices,
			    .progress = &shared->progress[l->external ? 0 : rank] } };
	}
	/* The first rank stays on the main thread: a single rank needs no other thread. */
	for (; started < n; started++) {
		if (pthread_create(&rank_threads[started].thread, NULL, rank_thread_main, &rank_threads[started])) {
			tool_error("cannot start a thread for rank %d", started);
			ranks_abort(NULL, shared);
			break;
		}
	}
	rank_thread_main(&rank_threads[0]);
	for (int i = 1; i < started; i++)
		pthread_join(rank_threads[i].thread, NULL);
	for (int i = 0; i < started; i++)
		if (rank_threads[i].status)
			status = rank_threads[i].status;
	return started < n ? TOOL_FAIL : status;
}

/* SPDX-License-Identifier: MIT */
/* A worker's ranks: the one that its process is, or with --threads all of them. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "bench.h"

void bench_progress_note(struct bench_progress *p, enum bench_stage stage, int lib, int way)
{
	atomic_store(&p->stage, stage);
	atomic_store(&p->lib, lib);
	atomic_store(&p->way, way);
	atomic_fetch_add(&p->beats, 1);
}

struct sitter {
	struct bench_seat seat;
	int (*run)(const void *arg, const struct bench_seat *seat);
	const void *arg;
	int status;
	pthread_t thread;
};

static void *sitter_main(void *arg)
{
	struct sitter *s = arg;

	s->status =
	    s->run(s->arg, &s->seat); /* NOLINT(clang-analyzer-core.CallAndMessage): there is at least one rank */
	return NULL;
}

int bench_seats_run(
    const struct bench_opts *o, int (*run)(const void *arg, const struct bench_seat *seat), const void *arg)
{
	struct bench_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, o->worker_fd, 0);
	struct sitter sitters[BENCH_MAX_RANKS];
	int started = 1, status = 0;

	if (shared == MAP_FAILED) {
		tool_error("--worker is not for you: the command gives it to the processes that it starts");
		return TOOL_USAGE;
	}
	const struct bench_launch *l = &shared->launch;
	int n = o->threads && !l->external ? l->nranks : 1;

	for (int i = 0; i < n; i++) {
		int rank = l->external ? l->rank : o->worker_index + i;

		sitters[i] = (struct sitter){ .run = run,
			.arg = arg,
			.seat = { .shared = shared,
			    .rank = rank,
			    .device = (l->external ? l->local_rank : rank) % l->ndevices,
			    .progress = &shared->progress[l->external ? 0 : rank] } };
	}
	/* The first rank stays on the main thread, so that one rank needs no other. */
	for (; started < n; started++) {
		if (pthread_create(&sitters[started].thread, NULL, sitter_main, &sitters[started])) {
			tool_error("cannot start a thread for rank %d", started);
			bench_team_fail(NULL, shared);
			break;
		}
	}
	sitter_main(&sitters[0]);
	for (int i = 1; i < started; i++)
		pthread_join(sitters[i].thread, NULL);
	for (int i = 0; i < started; i++)
		if (sitters[i].status)
			status = sitters[i].status;
	return started < n ? TOOL_FAIL : status;
}

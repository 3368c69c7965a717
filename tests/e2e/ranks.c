/* SPDX-License-Identifier: MIT */
#include "tools/common/libc.h"
#include "shunt/shunt.h"
#include "tests/support/child.h"
#include "tests/support/clock.h"
#include "tests/support/child_exit.h"
#include "tests/e2e/ranks.h"
#include "tests/support/pause.h"

#define LIMIT_S 150 /* for 16 ranks; more have as much longer */

struct shared {
	ncclUniqueId id;
	int have_id; /* 1: yes, 2: failed */
};

static int one_rank(struct shared *shared, int rank, int n, int raw, rank_fn body)
{
	struct rank ctx = { .rank = rank, .nranks = n, .seed = 42 }, *r = &ctx;
	int failed;

	shunt_device_set(rank % 8); /* the sim has 8: more ranks share them */
	if (rank == 0) {
		ncclResult_t res = ncclGetUniqueId(&shared->id);

		__atomic_store_n(&shared->have_id, res ? 2 : 1, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&shared->have_id, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 1000);
	CHECK(shared->have_id == 1);
	ctx.id = shared->id;
	CHECK(shunt_stream_create(&ctx.stream) == 0);
	if (!raw)
		NCCL(ncclCommInitRank(&ctx.comm, n, ctx.id, rank));
	failed = body(&ctx);
	if (!raw && !failed)
		NCCL(ncclCommDestroy(ctx.comm));
	while (!failed && ctx.nmemory)
		CHECK(shunt_free(ctx.memory[--ctx.nmemory]) == 0);
	shunt_stream_destroy(ctx.stream);
	return failed;
}

struct thread_arg {
	struct shared *shared;
	int rank, n, raw, failed;
	rank_fn body;
};

static void *thread_main(void *p)
{
	struct thread_arg *a = p;

	a->failed = one_rank(a->shared, a->rank, a->n, a->raw, a->body);
	return NULL;
}

static int run_threads(struct shared *shared, int n, int raw, rank_fn body)
{
	struct thread_arg arg[16];
	pthread_t thread[16];
	int failed = 0;

	for (int i = 0; i < n; i++) {
		arg[i] = (struct thread_arg){ shared, i, n, raw, 0, body };
		pthread_create(&thread[i], NULL, thread_main, &arg[i]);
	}
	for (int i = 0; i < n; i++) {
		pthread_join(thread[i], NULL);
		failed += arg[i].failed != 0;
	}
	return failed;
}

/* Threads run in a child as well: the library's state of one test must not reach the next, and a hang can be killed. */
int ranks_run_as(const struct ranks *ranks)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int children = ranks->how == RANKS_THREADS ? 1 : ranks->n, failed = 0, left = children;
	int limit_s = ranks->limit_s ? ranks->limit_s : ranks->n > 16 ? LIMIT_S * ranks->n / 16 : LIMIT_S;
	pid_t pid[64];

	fflush(NULL);
	for (int i = 0; i < children; i++) {
		pid[i] = child_fork();
		if (pid[i])
			continue;
		if (ranks->prepare)
			ranks->prepare(i);
		child_exit(ranks->how == RANKS_THREADS ? run_threads(shared, ranks->n, ranks->raw, ranks->body) :
		                                         one_rank(shared, i, ranks->n, ranks->raw, ranks->body));
	}
	for (int tick = 0; left && tick < limit_s * 100; tick++) {
		for (int i = 0; i < children; i++) {
			int status, dies = ranks->dies >> i & 1;

			if (pid[i] <= 0 || waitpid(pid[i], &status, WNOHANG) != pid[i])
				continue;
			pid[i] = 0;
			left--;
			if (WIFSIGNALED(status) ? dies && WTERMSIG(status) == SIGKILL : !dies && !WEXITSTATUS(status))
				continue;
			fprintf(stderr, "rank %d: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "exit status",
			    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			failed += ranks->how == RANKS_THREADS && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		}
		pause_us(PAUSE_POLL, 10000);
	}
	for (int i = 0; i < children; i++)
		if (pid[i] > 0) {
			fprintf(stderr, "rank %d: still running after %d s, killed\n", i, limit_s);
			kill(pid[i], SIGKILL);
			waitpid(pid[i], NULL, 0);
			failed++;
		}
	munmap(shared, sizeof(*shared));
	return failed;
}

int ranks_run(enum ranks_how how, int n, int raw, rank_fn body)
{
	return ranks_run_as(&(struct ranks){ .how = how, .n = n, .raw = raw, .body = body });
}

ncclUniqueId ranks_id(const struct rank *r, struct ranks_ids *ids, int k)
{
	for (; r->rank == 0 && ids->n <= k; ids->n++)
		ncclGetUniqueId(&ids->id[ids->n]);
	while (ids->n <= k)
		pause_us(PAUSE_POLL, 200);
	return ids->id[k];
}

void *ranks_memory(struct rank *r, size_t bytes)
{
	void **memory_p = &r->memory[r->nmemory++];

	if (r->nmemory > (int)(sizeof(r->memory) / sizeof(r->memory[0])) || shunt_malloc(memory_p, bytes)) {
		fprintf(stderr, "rank %d: no memory of %zu bytes\n", r->rank, bytes);
		abort();
	}
	return *memory_p;
}

ncclResult_t ranks_settled(ncclComm_t comm)
{
	ncclResult_t state = ncclInProgress, res = ncclSuccess;

	for (double end = now() + 60; !res && state == ncclInProgress && now() < end; pause_us(PAUSE_POLL, 200))
		res = ncclCommGetAsyncError(comm, &state);
	return res ? res : state;
}

long ranks_count_calls(ncclComm_t comm, const char *op, const char *path)
{
	struct shunt_counter rows[64];
	size_t n = 0;
	long calls = 0;

	if (shunt_counters(comm, rows, 64, &n) || n > 64)
		return -1;
	for (size_t i = 0; i < n; i++) {
		bool native = strcmp(rows[i].path, "nccl") != 0;

		if ((!op || !strcmp(rows[i].op, op)) && (!path || (*path ? !strcmp(rows[i].path, path) : native)))
			calls += (long)rows[i].calls;
	}
	return calls;
}

void ranks_barrier(const struct rank *r, atomic_int *place)
{
	atomic_fetch_add(place, 1);
	while (*place < r->nranks)
		pause_us(PAUSE_POLL, 500);
}

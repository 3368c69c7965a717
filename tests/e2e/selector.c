/* SPDX-License-Identifier: MIT */
/*
 * A program's selector, and what it learns of its communicators: through NCCL's ABI, on the sim, ranks as processes and
 * as threads.
 */
#include "tests/support/own.h"
#include "tests/e2e/ranks.h"
#include "tests/plan/exec_plans.h"
#include "tests/support/test.h"
#include "shunt/shunt.h"

/* Of this process: ranks that are threads share it. */
static struct questions {
	atomic_int n;
	_Atomic(const char *) answer; /* for messages of 1024 bytes */
} questions;

static const char *select_path(void *arg, const struct shunt_plan_request *request)
{
	struct questions *q = arg;

	atomic_fetch_add(&q->n, 1);
	if (request->bytes == 1024)
		return atomic_load(&q->answer);
	return request->bytes == 4096 ? "native" : request->bytes == 65536 ? "twoshot@8x256" : NULL;
}

static int reduce(struct rank *r, ncclComm_t comm, size_t bytes, void *buf)
{
	NCCL(ncclAllReduce(buf, buf, bytes / 4, ncclFloat32, ncclSum, comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	return 0;
}

/*
 * Meetings of the ranks, by test: a peer's first call sets up this rank's communicator, too, which then takes the plans
 * that it has by then.
 */
static atomic_int *places;
enum { AT_SELECTOR, AT_LIST, AT_RUN, PLACES };

static int plan_add(struct rank *r)
{
	char *text = plan_twoshot(2, 1, "sum"), reason[256];
	int err = shunt_plan_register("mine", text, strlen(text), reason, sizeof(reason));

	free(text);
	CHECK(err == 0 || err == -EEXIST); /* another thread's rank has done it */
	return 0;
}

static int path_is(struct rank *r, ncclComm_t comm, size_t bytes, const char *expected)
{
	const char *path = NULL;

	CHECK(shunt_path_of(comm, "allreduce", bytes / 4, ncclFloat32, ncclSum, &path) == 0);
	if (strcmp(path, expected))
		fprintf(stderr, "%zu bytes by %s, not %s\n", bytes, path, expected);
	CHECK(!strcmp(path, expected));
	return 0;
}

RANKS_TEST(test_selector_chooses_plans_and_algorithms,
    ranks_run(RANKS_PROCESSES, 2, 1, body) + ranks_run(RANKS_THREADS, 2, 1, body))
{
	ncclComm_t comm;
	void *buf;
	int asked;

	if (plan_add(r))
		return 1;
	ranks_barrier(r, &places[AT_SELECTOR]);
	atomic_store(&questions.answer, "twoshot"); /* a plan's name goes before an algorithm's */
	shunt_plan_set_selector(select_path, &questions);
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc(&buf, 1 << 20) == 0 && shunt_memset_async(buf, 0, 1 << 20, r->stream) == 0);
	for (int i = 0; i < 3; i++)
		if (reduce(r, comm, 1024, buf) || reduce(r, comm, 4096, buf) || reduce(r, comm, 65536, buf))
			return 1;
	if (path_is(r, comm, 4096, "oneshot") || path_is(r, comm, 65536, "twoshot") ||
	    path_is(r, comm, 1024, "twoshot"))
		return 1;
	CHECK(ranks_count_calls(comm, NULL, "oneshot") == 3 && ranks_count_calls(comm, NULL, "twoshot") == 6);
	/* Three questions for each rank of this process, however often the calls came. */
	asked = atomic_load(&questions.n);
	CHECK(asked >= 3 && asked <= 3 * r->nranks);
	NCCL(ncclCommDestroy(comm));
	CHECK(shunt_free(buf) == 0);
	return 0;
}

/* Two plans fit, and the first needs more blocks than a launch may have. */
static int body_next_plan(struct rank *r)
{
	char *text, *name, reason[256];
	ncclComm_t comm;
	void *buf;

	for (int blocks = 2; blocks; blocks--) {
		text = plan_twoshot(2, blocks, "sum");
		name = strstr(text, "twoshot");
		CHECK(name);
		if (blocks == 2)
			memcpy(name, "toowide", 7);
		CHECK(shunt_plan_register(blocks == 2 ? "a" : "b", text, strlen(text), reason, sizeof(reason)) == 0);
		free(text);
	}
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc(&buf, 1 << 20) == 0 && shunt_memset_async(buf, 0, 1 << 20, r->stream) == 0);
	if (path_is(r, comm, 1024, "toowide"))
		return 1;
	for (int i = 0; i < 2; i++)
		if (reduce(r, comm, 1024, buf) || path_is(r, comm, 1024, "twoshot"))
			return 1;
	CHECK(ranks_count_calls(comm, NULL, "twoshot") == 2 && ranks_count_calls(comm, NULL, "toowide") == 0);
	NCCL(ncclCommDestroy(comm));
	CHECK(shunt_free(buf) == 0);
	return 0;
}

TEST(test_a_refused_plan_leaves_the_call_to_the_next)
{
	setenv("NCCL_MAX_CTAS", "1", 1);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_next_plan), 0);
	unsetenv("NCCL_MAX_CTAS");
}

/* A wrong answer costs one line; other answers come only when the old ones are forgotten. */
RANKS_TEST(test_answers_are_remembered_and_forgotten, ranks_run(RANKS_PROCESSES, 2, 1, body))
{
	ncclComm_t comm;
	void *buf = ranks_memory(r, 1 << 20);

	atomic_store(&questions.answer, "no_such_path");
	shunt_plan_set_selector(select_path, &questions);
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (path_is(r, comm, 1024, "oneshot") || reduce(r, comm, 1024, buf) || reduce(r, comm, 4096, buf))
		return 1;
	CHECK(atomic_load(&questions.n) == 2);
	atomic_store(&questions.answer, "simple");
	if (reduce(r, comm, 1024, buf) || path_is(r, comm, 1024, "oneshot"))
		return 1;
	shunt_plan_forget_answers();
	if (path_is(r, comm, 1024, "simple"))
		return 1;
	atomic_store(&questions.answer, "twoshot@2");
	shunt_plan_forget_answers();
	if (path_is(r, comm, 1024, "twoshot") || reduce(r, comm, 1024, buf))
		return 1;
	CHECK(atomic_load(&questions.n) == 4);
	/* Ended with a communicator that goes on: remembered answers stay, new questions get none. */
	shunt_plan_set_selector(NULL, NULL);
	CHECK(shunt_plan_end_selector(select_path, &questions) == 0);
	if (reduce(r, comm, 1024, buf) || reduce(r, comm, 2048, buf) || path_is(r, comm, 1024, "twoshot") ||
	    path_is(r, comm, 65536, "twoshot"))
		return 1;
	CHECK(atomic_load(&questions.n) == 4);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

RANKS_TEST(test_communicators_are_listed_and_described, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	struct shunt_comm_info info = { .size = sizeof(info) }, small = { .size = 4 };
	struct shunt_algo_info algo = { .size = sizeof(algo) };
	char dir[] = "/tmp/shunt-dump-XXXXXX", path[128];
	void *comms[4], *buf;
	ncclComm_t half;
	size_t n = 9, found = 0;
	int err;

	CHECK(shunt_comm_list(NULL, 0, &n) == 0 && n == 1);
	CHECK(shunt_comm_list(comms, 4, &n) == 0 && n == 1 && comms[0] == r->comm);
	CHECK(shunt_comm_list(NULL, 1, &n) == -EINVAL && shunt_comm_list(comms, 1, NULL) == -EINVAL);
	CHECK(shunt_comm_describe(r->comm, &info) == 0);
	CHECK(info.rank == r->rank && info.nranks == r->nranks && info.device == r->rank && info.error == 0);
	CHECK(!strcmp(info.state, "untouched") && !*info.reason && strlen(info.id) >= 8 && !info.memory);
	CHECK(shunt_comm_describe(&n, &info) == -ENOENT && shunt_comm_describe(NULL, &info) == -ENOENT);
	CHECK(shunt_comm_describe(r->comm, &small) == -EINVAL && shunt_comm_describe(r->comm, NULL) == -EINVAL);
	if (plan_add(r))
		return 1;
	ranks_barrier(r, &places[AT_LIST]);
	buf = ranks_memory(r, 1 << 20);
	if (reduce(r, r->comm, 4096, buf))
		return 1;
	CHECK(shunt_comm_describe(r->comm, &info) == 0 && !strcmp(info.state, "ready"));
	CHECK(info.memory > 0 && info.plans == 1 && !info.selector && info.size == sizeof(info));
	CHECK(mkdtemp(dir) && shunt_dump(dir, path, sizeof(path)) == 0 && !access(path, R_OK));
	CHECK(!strncmp(path, dir, strlen(dir)) && !unlink(path) && !rmdir(dir));
	CHECK(shunt_dump("/nonexistent/a/b", path, sizeof(path)) == -ENOENT);
	CHECK(shunt_dump(NULL, path, sizeof(path)) == -EINVAL && shunt_dump(dir, NULL, 0) == -EINVAL);
	NCCL(ncclCommSplit(r->comm, 0, r->rank, &half, NULL));
	CHECK(shunt_comm_list(comms, 1, &n) == 0 && n == 2);
	NCCL(ncclCommDestroy(half));
	CHECK(shunt_comm_list(comms, 4, &n) == 0 && n == 1);
	for (size_t i = 0; !(err = shunt_algo_at(i, &algo)); i++)
		found += !strcmp(algo.name, "twoshot") && !strcmp(algo.collective, "allreduce") && *algo.description;
	CHECK(err == -ENOENT && found == 1);
	return 0;
}

/* An all-reduce, and the same as a plan of collective `custom`, which no function of NCCL means. */
RANKS_TEST(test_a_plan_runs_by_its_name, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	enum { N = 1024 };
	struct shunt_plan_run run = { .size = sizeof(run),
		.name = "twoshot",
		.send_bytes = N * 4,
		.recv_bytes = N * 4,
		.dtype = ncclFloat32,
		.redop = ncclSum,
		.stream = r->stream };
	char *text = plan_twoshot(2, 1, "sum"), reason[256], *custom, *at;
	static const char was[] = "\"allreduce\"", is[] = "\"custom\"   ";
	float host[N];
	void *in, *out;

	CHECK(shunt_plan_register("mine", text, strlen(text), reason, sizeof(reason)) == 0);
	custom = strdup(text);
	at = strstr(custom, was);
	CHECK(at);
	memcpy(at, is, sizeof(was) - 1);
	at = strstr(custom, "\"twoshot\"");
	CHECK(at);
	memcpy(at, "\"another\"", 9);
	CHECK(shunt_plan_register("another", custom, strlen(custom), reason, sizeof(reason)) == 0);
	ranks_barrier(r, &places[AT_RUN]);
	in = ranks_memory(r, sizeof(host));
	out = ranks_memory(r, sizeof(host));
	run.send = in;
	run.recv = out;
	CHECK(shunt_plan_run(r->comm, NULL) == -EINVAL && shunt_plan_run(&run, &run) == -ENOENT);
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < N; k++)
			host[k] = (float)(k + i * 1000 * (r->rank + 1));
		CHECK(shunt_memcpy(in, host, sizeof(host)) == 0);
		run.name = i == 1 ? "another" : "twoshot";
		run.recv = i == 1 ? in : out; /* the plan is one in place, and what `custom` means is its own affair */
		CHECK(shunt_plan_run(r->comm, &run) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(host, run.recv, sizeof(host)) == 0);
		for (int k = 0; k < N; k++)
			CHECK(host[k] == (float)(2 * k + 3000 * i));
		/* Between them calls of NCCL. */
		NCCL(ncclAllReduce(in, in, N, ncclFloat32, ncclMax, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0); /* it writes what the next turn fills */
	}
	run.recv = out;
	/* Refused alike on all ranks; the communicator goes on. */
	run.name = "nobody";
	CHECK(shunt_plan_run(r->comm, &run) == -ENOENT);
	run.name = "twoshot";
	run.redop = ncclMax;
	CHECK(shunt_plan_run(r->comm, &run) == -EINVAL);
	run.redop = ncclSum;
	run.recv_bytes = 8;
	CHECK(shunt_plan_run(r->comm, &run) == -EINVAL);
	run.recv_bytes = run.send_bytes;
	run.dtype = 99;
	CHECK(shunt_plan_run(r->comm, &run) == -EINVAL);
	run.dtype = ncclFloat32;
	NCCL(ncclGroupStart());
	CHECK(shunt_plan_run(r->comm, &run) == -EBUSY);
	NCCL(ncclGroupEnd());
	CHECK(shunt_plan_run(r->comm, &run) == 0 && shunt_stream_synchronize(r->stream) == 0);
	free(text);
	free(custom);
	return 0;
}

TESTS_BEGIN
{
	places = mmap(NULL, PLACES * sizeof(*places), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (places == MAP_FAILED)
		exit(1);
	own_standalone();
}

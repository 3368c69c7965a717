/* SPDX-License-Identifier: MIT */
/*
 * NCCL's profiler plug-ins are told of Shunt's calls: tests/support/fake_profiler writes down what it is told. With the
 * fake NCCL, too: what goes there is NCCL's to tell.
 */
#include "shunt/shunt.h"
#include "tests/e2e/overlay_job.h"
#include "tests/support/fake_profiler/fake_profiler.h"

enum { COUNT = 1000, PART = 4096, WINDOW = 1 << 16 };
enum { GROUP = 1, COLL = 2, P2P = 4, KERNEL_CH = 64, GROUP_API = 256, COLL_API = 512, P2P_API = 1024, CE_COLL = 4096 };

static const char *folder; /* of the plug-ins */
static int version;
static const char *letters; /* FAKE_PROFILER */

/* Where the run's plug-in is: the newest by its path, others by their names. */
static void choose(int number, const char *how)
{
	char path[512], name[64];

	version = number;
	letters = how;
	snprintf(name, sizeof(name), "fake%d", number);
	snprintf(path, sizeof(path), "%s/libnccl-profiler-%s.so", folder, name);
	setenv("NCCL_PROFILER_PLUGIN", number == 7 ? path : name, 1);
	setenv("FAKE_PROFILER", how, 1);
}

static const struct fake_profiler *told(void)
{
	char path[512];
	void *file;
	fake_profiler_get *get;

	snprintf(path, sizeof(path), "%s/libnccl-profiler-fake%d.so", folder, version);
	file = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	get = file ? (fake_profiler_get *)dlsym(file, "fake_profiler") : NULL;
	return get ? get() : NULL;
}

static bool has_nccl(void)
{
	return strcmp(getenv("SHUNT_NCCL_LIB"), "none") != 0;
}

static size_t count(uint64_t type, const char *func)
{
	const struct fake_profiler *t = told();
	size_t n = 0;

	for (size_t i = 0; i < t->n; i++)
		n += t->events[i].type == type && (!func || !strcmp(t->events[i].func, func));
	return n;
}

/* Of this call. */
static const struct fake_event *kernel_of(const struct fake_event *call)
{
	const struct fake_profiler *t = told();

	for (size_t i = 0; i < t->n; i++)
		if (t->events[i].type == KERNEL_CH && t->events[i].parent == call)
			return &t->events[i];
	return NULL;
}

static int begin(struct rank *r, float **buf_p)
{
	ncclConfig_t config = nccl_config_unset();

	config.commName = "mine";
	NCCL(ncclCommInitRankConfig(&r->comm, r->nranks, r->id, r->rank, &config));
	*buf_p = ranks_memory(r, 2 * COUNT * sizeof(float));
	return 0;
}

static ncclResult_t sum(struct rank *r, ncclComm_t comm, float *buf)
{
	return ncclAllReduce(buf, buf, COUNT, ncclFloat32, ncclSum, comm, r->stream);
}

/* A call, a group, a captured call that is replayed, copy engines, and a call that goes to NCCL if there is one. */
static int run_calls(struct rank *r, ncclComm_t comm, float *buf)
{
	ncclWindow_t window;
	float *in;
	void *graph;

	NCCL(sum(r, comm, buf));
	NCCL(ncclGroupStart());
	NCCL(sum(r, comm, buf));
	NCCL(ncclSend(buf, COUNT, ncclInt32, 1 - r->rank, comm, r->stream));
	NCCL(ncclRecv(buf + COUNT, COUNT, ncclInt32, 1 - r->rank, comm, r->stream));
	NCCL(ncclGroupEnd());
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_capture_begin(r->stream) == 0);
	NCCL(sum(r, comm, buf));
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_graph_destroy(graph) == 0);
	CHECK(shunt_malloc_shared((void **)&in, WINDOW) == 0);
	NCCL(ncclCommWindowRegister(comm, in, WINDOW, &window, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclAllGather((char *)in + r->rank * PART, in, PART, ncclInt8, comm, r->stream));
	NCCL(ncclReduce(buf, buf, COUNT, ncclFloat32, ncclSum, 0, comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(ranks_count_calls(comm, "allgather", "ce") == 1);
	CHECK(!has_nccl() || overlay_forwarded("Reduce") == 1);
	NCCL(ncclCommWindowDeregister(comm, window));
	CHECK(shunt_free(in) == 0);
	return 0;
}

static int check_calls(struct rank *r, const struct fake_profiler *t)
{
	bool all = strchr(letters, 'a') != NULL, ce = version >= 6;
	size_t reduced = has_nccl() ? 0 : 1;

	CHECK(count(COLL, "AllReduce") == 3 && count(P2P, "Send") == 1 && count(P2P, "Recv") == 1);
	CHECK(count(COLL, "Reduce") == reduced);
	CHECK(count(COLL, "AllGather") == !ce && count(CE_COLL, "AllGather") == (ce && all));
	CHECK(count(GROUP, NULL) == 4 + reduced);
	CHECK(version == 4 || count(COLL_API, NULL) == 4 + reduced);
	CHECK(count(KERNEL_CH, NULL) == 4 + reduced);
	for (size_t i = 0; i < t->n; i++) {
		const struct fake_event *e = &t->events[i], *kernel = kernel_of(e);
		bool call = e->type == COLL || e->type == P2P;

		CHECK(e->stops == 1 && e->id == t->events[0].id);
		CHECK(e->type != KERNEL_CH || (e->states == 1 && e->start && e->stop >= e->start && e->parent));
		CHECK(e->type != GROUP_API || e->states == 2);
		if (!call)
			continue;
		CHECK(!kernel == !e->channels &&
		    !strcmp(e->dtype,
		        e->type == P2P       ? "ncclInt32" :
		            e->count == PART ? "ncclInt8" :
		                               "ncclFloat32"));
		CHECK(e->parent && e->parent->type == (version == 4 ? GROUP : e->type == P2P ? P2P_API : COLL_API));
		CHECK(version == 4 || e->parent->parent->type == GROUP_API);
		CHECK(version == 4 || !strcmp(e->parent->func, e->func));
		CHECK(version == 4 ||
		    (e->parent->captured && e->parent->parent->captured) == (!kernel && e->count != PART));
		CHECK(e->type == P2P ? e->peer == 1 - r->rank : !strcmp(e->algo, "SHUNT") && e->proto[0]);
		CHECK(version < 7 || e->type == P2P || e->variant[0]);
	}
	return 0;
}

static int body_calls(struct rank *r)
{
	const struct fake_profiler *t;
	float *buf;

	if (begin(r, &buf) || run_calls(r, r->comm, buf))
		return 1;
	NCCL(ncclCommDestroy(r->comm));
	t = told();
	CHECK(t && t->inits == 1 && t->finalized == 1 && !t->wrong && !strcmp(t->name, "mine"));
	return check_calls(r, t);
}

static int body_inspector(struct rank *r)
{
	const struct fake_profiler *t;
	float *buf;

	if (begin(r, &buf) || run_calls(r, r->comm, buf))
		return 1;
	NCCL(ncclCommDestroy(r->comm));
	t = told();
	CHECK(t->finalized == 1 && !t->wrong);
	/* A handle that is NULL has no kernels; without times no call has. */
	CHECK(count(KERNEL_CH, NULL) == (strchr(letters, 'n') || getenv("SHUNT_TIMES") ? 0 : has_nccl() ? 4 : 5));
	for (size_t i = 0; i < t->n; i++)
		CHECK(t->events[i].stops == !(strchr(letters, 'n') && t->events[i].type & (COLL | P2P | CE_COLL)));
	return 0;
}

/* No plug-in is told, and the calls run. */
static int body_untold(struct rank *r)
{
	const struct fake_profiler *t;
	float *buf;

	if (begin(r, &buf) || run_calls(r, r->comm, buf))
		return 1;
	NCCL(ncclCommDestroy(r->comm));
	t = version ? told() : NULL;
	CHECK(!t || (!t->n && !t->finalized && !t->inits));
	return 0;
}

/* The communicators of a process have contexts of their own, as the real NCCL's have; the ranks are threads. */
static int body_two(struct rank *r)
{
	const struct fake_profiler *t;
	ncclComm_t child;
	float *buf;

	if (begin(r, &buf))
		return 1;
	NCCL(ncclCommSplit(r->comm, 0, r->rank, &child, NULL));
	for (int i = 0; i < 5; i++) {
		NCCL(sum(r, r->comm, buf));
		NCCL(sum(r, child, buf));
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(r->comm));
	overlay_barrier(r, 0);
	t = told();
	CHECK(t->inits == 4 && t->finalized == 4 && !t->wrong);
	CHECK(count(COLL, "AllReduce") == 20 && count(KERNEL_CH, NULL) == 20);
	return 0;
}

/* Destroyed without a wait for the stream: what has ended is told, and nothing hangs. */
static int body_aborted(struct rank *r)
{
	float *buf;

	if (begin(r, &buf))
		return 1;
	NCCL(sum(r, r->comm, buf));
	if (r->rank == 0)
		NCCL(sum(r, r->comm, buf)); /* no partner: the kernel runs until the abort */
	NCCL(ncclCommAbort(r->comm));
	CHECK(told()->inits == 1 && !told()->wrong);
	return 0;
}

static int run(rank_fn body)
{
	return overlay_run(RANKS_PROCESSES, 2, body);
}

TEST(test_each_version_is_told_all)
{
	for (int v = 4; v <= 7; v++) {
		choose(v, "a");
		assert_int_equal(run(body_calls), 0);
	}
}

TEST(test_inspector_is_told_what_it_wants)
{
	choose(5, "i");
	assert_int_equal(run(body_inspector), 0);
	setenv("SHUNT_TIMES", "0", 1);
	assert_int_equal(run(body_inspector), 0);
	unsetenv("SHUNT_TIMES");
}

TEST(test_null_handles_and_slowness_harm_nobody)
{
	choose(6, "an");
	assert_int_equal(run(body_inspector), 0);
	choose(4, "as");
	assert_int_equal(run(body_calls), 0);
}

TEST(test_without_a_plugin_the_calls_run)
{
	static const char *const values[] = { "", "none", "/dev/null", "no-such-plug-in" };

	choose(7, "f");
	assert_int_equal(run(body_untold), 0);
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		version = 0;
		setenv("NCCL_PROFILER_PLUGIN", values[i], 1);
		assert_int_equal(run(body_untold), 0);
	}
}

TEST(test_an_abort_ends_the_times)
{
	choose(5, "i");
	assert_int_equal(run(body_aborted), 0);
}

TEST(test_communicators_of_a_process)
{
	choose(7, "i");
	assert_int_equal(overlay_run(RANKS_THREADS, 2, body_two), 0);
}

int main(int argc, char **argv)
{
	folder = argv[1];
	overlay_begin();
	setenv("SHUNT_FORCE_NCCL", "reduce", 1);
	setenv("SHUNT_ALGO", "allgather:0-:ce", 1);
	return tests_run(NULL, NULL);
}

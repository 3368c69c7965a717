/* SPDX-License-Identifier: MIT */
/*
 * Plug-ins in communicators, through NCCL's ABI on the sim: what is agreed on, chosen, kept, and what happens when one
 * is wrong. tests/plugins/defects.cc has the plug-ins.
 */
#include "shunt/plugin.h"
#include "shunt/shunt.h"
#include "tests/e2e/ranks.h"
#include "tests/support/child.h"
#include "tests/support/own.h"
#include "tests/support/pause.h"
#include "tests/support/plugin_table.h"
#include "tests/support/stderr.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

enum { COUNT = 100 };

static const char *defects; /* the file */

/* Loads the file's plug-ins, and makes a communicator. */
static int begin(struct rank *r, float **buf_p)
{
	char why[256] = "";
	int err = shunt_plugin_load(defects, why, sizeof(why));

	CHECK(!err || err == -EEXIST); /* another thread's rank has done it */
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	*buf_p = ranks_memory(r, COUNT * sizeof(float));
	return 0;
}

static ncclResult_t sum(struct rank *r, ncclComm_t comm, float *buf)
{
	float in[COUNT];

	for (int i = 0; i < COUNT; i++)
		in[i] = (float)(r->rank + i);
	if (shunt_memcpy(buf, in, sizeof(in)))
		return ncclInternalError;
	return ncclAllReduce(buf, buf, COUNT, ncclFloat32, ncclSum, comm, r->stream);
}

static int sum_is_right(struct rank *r, const float *buf)
{
	float out[COUNT];

	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(out, buf, sizeof(out)) == 0);
	for (int i = 0; i < COUNT; i++)
		CHECK(out[i] == (float)(r->nranks * i + r->nranks * (r->nranks - 1) / 2));
	return 0;
}

/* begin(), and a call that is right. */
static int begin_with_a_sum(struct rank *r, float **buf_p)
{
	if (begin(r, buf_p))
		return 1;
	NCCL(sum(r, r->comm, *buf_p));
	return sum_is_right(r, *buf_p);
}

static int end(struct rank *r)
{
	NCCL(ncclCommDestroy(r->comm));
	return 0;
}

/* With the rule that all all-reduces are the plug-in's, or with none. */
static int run(const char *plugin, enum ranks_how how, int n, rank_fn body)
{
	char rule[64];

	snprintf(rule, sizeof(rule), "allreduce:0-inf:%s", plugin);
	if (plugin)
		setenv("SHUNT_ALGO", rule, 1);
	else
		unsetenv("SHUNT_ALGO");
	return ranks_run(how, n, 1, body);
}

/* ---- what is right */

static int path_is(struct rank *r, ncclComm_t comm, const char *expected)
{
	CHECK(ranks_count_calls(comm, "allreduce", NULL) == ranks_count_calls(comm, "allreduce", expected));
	CHECK(ranks_count_calls(comm, "allreduce", expected) > 0);
	return 0;
}

static int body_runs(struct rank *r)
{
	float *buf;

	if (begin(r, &buf))
		return 1;
	for (int i = 0; i < 3; i++) {
		NCCL(sum(r, r->comm, buf));
		if (sum_is_right(r, buf))
			return 1;
	}
	return path_is(r, r->comm, "sound") || end(r);
}

/* Rules, by which a plug-in is chosen although it comes after the first communicator. */
TEST(test_a_named_plugin_runs)
{
	assert_int_equal(run("sound", RANKS_PROCESSES, 3, body_runs), 0);
	setenv("SHUNT_CHECK", "2", 1);
	assert_int_equal(ranks_run(RANKS_THREADS, 2, 1, body_runs), 0);
	unsetenv("SHUNT_CHECK");
}

static int body_unnamed(struct rank *r)
{
	float *buf;

	return begin_with_a_sum(r, &buf) || path_is(r, r->comm, "oneshot") || end(r);
}

TEST(test_a_plugin_that_nobody_names_does_not_run)
{
	unsetenv("SHUNT_ALGO");
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_unnamed), 0);
}

static const char *select_path(void *arg, const struct shunt_plan_request *request)
{
	return request->bytes == COUNT * sizeof(float) ? "sound" : NULL;
}

RANKS_TEST(test_a_selector_names_a_plugin, run(NULL, RANKS_PROCESSES, 2, body))
{
	shunt_plan_set_selector(select_path, NULL);
	return body_runs(r);
}

/* A tuning file of the sim whose only row for all-reduces is a plug-in's. */
static void write_tuning(char *path)
{
	int fd = mkstemp(path);
	FILE *f = fdopen(fd, "w");

	assert_non_null(f);
	fprintf(f,
	    "{\"shunt_tuning\": 1, \"shunt\": \"%s\", \"machine\": {\"gpu\": \"Shunt sim\", \"cc\": 0, \"driver\": 0, "
	    "\"ranks\": 2, \"sim\": true}, \"rows\": [{\"kind\": \"allreduce\", \"algorithm\": \"sound\", \"plugin\": "
	    "true}]}\n",
	    SHUNT_VERSION);
	assert_int_equal(fclose(f), 0);
}

static int body_missing(struct rank *r)
{
	float *buf = ranks_memory(r, COUNT * sizeof(float));

	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	NCCL(sum(r, r->comm, buf));
	return sum_is_right(r, buf) || path_is(r, r->comm, "oneshot") || end(r);
}

TEST(test_a_tuning_file_names_a_plugin)
{
	char path[] = "/tmp/shunt_test_plugins_XXXXXX";

	write_tuning(path);
	setenv("SHUNT_TUNING_FILE", path, 1);
	unsetenv("SHUNT_ALGO");
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_runs), 0);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_missing), 0);
	setenv("SHUNT_TUNING_FILE", "none", 1);
	unlink(path);
}

/* ---- what differs */

/* Rank 1 has none. */
RANKS_TEST(test_ranks_with_different_plugins_use_none, run("sound", RANKS_PROCESSES, 3, body))
{
	return r->rank == 1 ? body_missing(r) : body_unnamed(r);
}

static int enqueue_nothing(void *arg, const struct shunt_plugin_call *call, void *stream)
{
	return 0;
}

/* A plug-in of the name on both ranks, but not the same one. */
RANKS_TEST(test_ranks_with_different_plugins_of_a_name_use_none, run("twin", RANKS_PROCESSES, 2, body))
{
	static const char line[] = "uses no plug-ins: plug-in twin: rank 1 has another one than rank 0";
	struct shunt_plugin twin = plugin_table("twin");
	struct stderr_kept kept;
	char why[256];
	int bad;

	twin.enqueue = enqueue_nothing;
	twin.identity = (uint64_t)r->rank;
	CHECK(shunt_plugin_register(&twin, why, sizeof(why)) == 0);
	CHECK(stderr_keep(&kept));
	bad = body_missing(r) || stderr_count(&kept, line) != !r->rank;
	return stderr_give_back(&kept, bad);
}

static void not_reached(const struct shunt_sim_ops *ops, const struct shunt_plugin_call *call)
{
	abort();
}

/* Each bad value is refused, by its field and value. */
RANKS_TEST(test_what_is_wrong_with_a_plugin_is_said, run("sound", RANKS_PROCESSES, 2, body))
{
	static const char garbage[64] = "neither cubin nor fatbin nor text of PTX";
	static const char cubin[64] = "\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\2\0\276\0";
	struct shunt_plugin p, good = plugin_table("good");
	char why[256], name[40];

	good.enqueue = enqueue_nothing;
#define REFUSED(error, text, ...) \
	do { \
		p = good; \
		__VA_ARGS__; \
		CHECK(shunt_plugin_register(&p, why, sizeof(why)) == -(error)); \
		if (!strstr(why, text)) \
			fprintf(stderr, "%s\n", why); \
		CHECK(strstr(why, text)); \
	} while (0)
	REFUSED(EINVAL, "abi 7", p.abi = 7);
	REFUSED(EINVAL, "size 8", p.size = 8);
	REFUSED(EINVAL, "name is NULL", p.name = NULL);
	REFUSED(EINVAL, "name is Good", p.name = "Good");
	REFUSED(EEXIST, "name is oneshot", p.name = "oneshot");
	REFUSED(EEXIST, "name is nccl", p.name = "nccl");
	REFUSED(EINVAL, "collectives is allreduce,send", p.collectives = "allreduce,send");
	REFUSED(EINVAL, "dtypes is 0x100000", p.dtypes = 1 << 20);
	REFUSED(EINVAL, "redops is 0", p.redops = 0);
	REFUSED(EINVAL, "less than min_bytes", p.min_bytes = 2 << 20);
	REFUSED(EINVAL, "scratch_bytes is 268435457", p.scratch_bytes = SHUNT_PLUGIN_MAX_SCRATCH + 1);
	REFUSED(EINVAL, "max_ranks is 1 to 8", p.min_ranks = 1);
	REFUSED(EINVAL, "max_ranks is 2 to 9", p.max_ranks = 9);
	REFUSED(EINVAL, "flags is 0x8", p.flags = 8);
	REFUSED(EINVAL, "expected one", p.enqueue = NULL);
	REFUSED(EINVAL, "both", p.image = cubin; p.image_bytes = sizeof(cubin));
	REFUSED(ENOEXEC, "64 bytes is no cubin", p.enqueue = NULL; p.image = garbage; p.image_bytes = sizeof(garbage));
	REFUSED(EINVAL, "launch.threads is 33", p.enqueue = NULL; p.image = cubin; p.image_bytes = sizeof(cubin);
	    p.launch.threads = 33);
	REFUSED(EINVAL, "launch.blocks is 65", p.enqueue = NULL; p.image = cubin; p.image_bytes = sizeof(cubin);
	    p.launch.blocks = 65);
	REFUSED(EINVAL, "launch.shared_bytes is 204801", p.enqueue = NULL; p.sim = not_reached;
	    p.launch.shared_bytes = 204801);
	REFUSED(EINVAL, "launch.cluster is 3", p.enqueue = NULL; p.sim = not_reached; p.launch.blocks = 4;
	    p.launch.cluster = 3);
	CHECK(shunt_plugin_register(NULL, NULL, 0) == -EINVAL && shunt_plugin_load(NULL, why, sizeof(why)) == -EINVAL);
	CHECK(shunt_plugin_load("/dev/null/none.so", why, sizeof(why)) < 0 && strstr(why, "/dev/null/none.so"));
	CHECK(shunt_plugin_register(&good, why, sizeof(why)) == 0);
	CHECK(shunt_plugin_register(&good, why, sizeof(why)) == -EEXIST && strstr(why, "another plug-in has"));
	CHECK(shunt_plugin_unregister("good") == 0 && shunt_plugin_unregister("good") == -ENOENT);
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "plugin_%d", i);
		good.name = name;
		CHECK(shunt_plugin_register(&good, why, sizeof(why)) == 0);
	}
	return body_runs(r);
}

/* ---- faults: the communicator has an error that names the plug-in, and nothing hangs */

static const char *expected_text, *expected_dump; /* of the call while it runs; NULL: not looked at */
static ncclResult_t expected_result;

/* Calls until there is an error, which the first call may find, or the one after it. */
static int body_fault(struct rank *r)
{
	ncclResult_t result = ncclSuccess;
	float *buf;

	if (begin(r, &buf))
		return 1;
	for (int i = 0; i < 3 && !result; i++) {
		result = sum(r, r->comm, buf);
		CHECK(!expected_dump || until_dump_has(getpid(), expected_dump));
		shunt_stream_synchronize(r->stream);
	}
	/* As for the doctor, which says that this rank waited for rank 1 in this call. */
	CHECK(!expected_dump || until_dump_has(getpid(), "\"what\": \"timeout\",\n    \"peer\": 1,\n    \"op\": 1,"));
	if (result != expected_result || !strstr(ncclGetLastError(r->comm), expected_text))
		fprintf(stderr, "%d: %s\n", result, ncclGetLastError(r->comm));
	CHECK(result == expected_result && strstr(ncclGetLastError(r->comm), expected_text));
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

static void fault(const char *name, const char *check, ncclResult_t result, const char *text)
{
	char rule[64];

	snprintf(rule, sizeof(rule), "allreduce:0-inf:%s", name);
	setenv("SHUNT_ALGO", rule, 1);
	setenv("SHUNT_CHECK", check, 1);
	setenv("SHUNT_TIMEOUT", "300ms", 1);
	expected_text = text;
	expected_result = result;
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_fault), 0);
	unsetenv("SHUNT_CHECK");
	unsetenv("SHUNT_TIMEOUT");
}

TEST(test_faults_name_the_plugin)
{
	fault("failing", "0", ncclSystemError, "plug-in failing: its enqueue gave -28");
	expected_dump = "\"path\": \"for_ever\"";
	fault("for_ever", "0", ncclRemoteError, "plug-in for_ever: rank ");
	expected_dump = NULL;
	fault("past_scratch", "1", ncclUnhandledCudaError, "of its scratch, behind the last");
	fault("past_output", "1", ncclUnhandledCudaError, "of the output, behind the last");
}

/* Rank 0 takes the plug-in, rank 1 does not, once both have it. */
static int body_unequal(struct rank *r)
{
	ncclResult_t result = ncclSuccess;
	float *buf;

	if (begin_with_a_sum(r, &buf))
		return 1;
	if (r->rank)
		CHECK(shunt_algo_force("allreduce:0-inf:oneshot") == 0);
	for (int i = 0; i < 2 && !result; i++) {
		result = sum(r, r->comm, buf);
		shunt_stream_synchronize(r->stream);
	}
	CHECK(result && strstr(ncclGetLastError(r->comm), "by a plug-in"));
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_a_rank_that_chose_otherwise_is_told)
{
	setenv("SHUNT_ALGO", "allreduce:0-inf:sound", 1);
	setenv("SHUNT_CHECK", "1", 1);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_unequal), 0);
	unsetenv("SHUNT_CHECK");
}

/* Rank 1 does not come; no_limit's kernel on rank 0 does not end, and rank 0 goes on. */
RANKS_TEST(test_a_kernel_that_ignores_abort_is_left_behind, run("no_limit", RANKS_PROCESSES, 2, body))
{
	float *buf;

	if (begin_with_a_sum(r, &buf))
		return 1;
	if (r->rank)
		return 0;
	NCCL(sum(r, r->comm, buf));
	ncclCommAbort(r->comm);
	CHECK(strstr(ncclGetLastError(NULL), "plug-in no_limit has not ended"));
	_exit(0); /* its stream is the process's */
}

static int body_dies(struct rank *r)
{
	ncclResult_t result = ncclSuccess;
	float *buf;

	if (begin_with_a_sum(r, &buf))
		return 1;
	if (r->rank == 1)
		raise(SIGKILL);
	for (int i = 0; i < 2 && !result; i++) {
		result = sum(r, r->comm, buf);
		shunt_stream_synchronize(r->stream);
	}
	CHECK(result == ncclRemoteError && strstr(ncclGetLastError(r->comm), "rank 1 died"));
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_a_rank_dies)
{
	setenv("SHUNT_ALGO", "allreduce:0-inf:sound", 1);
	assert_int_equal(ranks_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body_dies, .dies = 2 }), 0);
}

/* ---- lives */

static atomic_int dropped;

static void drop(void *arg)
{
	atomic_fetch_add(&dropped, 1);
}

static int copy_nothing(void *arg, const struct shunt_plugin_call *call, void *stream)
{
	return call->host->barrier(call, stream);
}

/* A graph has the plug-in when nobody else has it any more. */
RANKS_TEST(test_a_graph_keeps_its_plugin, run("own", RANKS_PROCESSES, 2, body))
{
	struct shunt_plugin own = plugin_table("own");
	void *graph;
	float *buf;
	char why[256];

	own.enqueue = copy_nothing;
	own.drop = drop;
	CHECK(shunt_plugin_register(&own, why, sizeof(why)) == 0);
	if (begin(r, &buf))
		return 1;
	NCCL(sum(r, r->comm, buf));
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_capture_begin(r->stream) == 0);
	NCCL(ncclAllReduce(buf, buf, COUNT, ncclFloat32, ncclSum, r->comm, r->stream));
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	CHECK(shunt_plugin_unregister("own") == 0);
	for (int i = 0; i < 100; i++)
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(path_is(r, r->comm, "own") == 0 && atomic_load(&dropped) == 0);
	NCCL(ncclCommDestroy(r->comm));
	CHECK(atomic_load(&dropped) == 0);
	CHECK(shunt_graph_destroy(graph) == 0);
	shunt_plugin_unregister("nobody"); /* the next that may call drop */
	CHECK(atomic_load(&dropped) == 1);
	return 0;
}

static atomic_int waiting; /* ranks whose kernel waits for the others */

/* Plug-ins come and go, images and functions, while the kernel of rank 0 waits for rank 1. */
RANKS_TEST(test_plugins_come_and_go_while_kernels_wait, run("sound", RANKS_THREADS, 2, body))
{
	static const char text[] = ".version 9.0\n.target sm_90\n.visible .entry guest() { ret; }\n";
	struct shunt_plugin guest = plugin_table("guest");
	char why[256];
	float *buf;

	guest.drop = drop;
	if (begin_with_a_sum(r, &buf))
		return 1;
	if (r->rank == 0) {
		NCCL(sum(r, r->comm, buf));
		atomic_store(&waiting, 1);
		return sum_is_right(r, buf) || path_is(r, r->comm, "sound") || end(r);
	}
	while (!atomic_load(&waiting))
		pause_us(PAUSE_POLL, 100);
	atomic_store(&dropped, 0);
	for (int i = 0; i < 100; i++) {
		guest.image = i % 2 ? text : NULL;
		guest.image_bytes = i % 2 ? sizeof(text) - 1 : 0;
		guest.enqueue = i % 2 ? NULL : enqueue_nothing;
		CHECK(shunt_plugin_register(&guest, why, sizeof(why)) == 0);
		CHECK(shunt_plugin_load(defects, why, sizeof(why)) == -EEXIST);
		CHECK(shunt_plugin_unregister("guest") == 0 && atomic_load(&dropped) == i + 1);
	}
	/* The communicator keeps the one that runs. */
	CHECK(shunt_plugin_unregister("sound") == 0 && shunt_plugin_unregister("no_tail") == 0);
	NCCL(sum(r, r->comm, buf));
	return sum_is_right(r, buf) || path_is(r, r->comm, "sound") || end(r);
}

/* Two communicators have the plug-in; calls of the second are captured, and replayed between eager ones of the first.
 */
static int body_captures(struct rank *r)
{
	ncclComm_t second;
	void *graph;
	float *buf;

	if (begin(r, &buf))
		return 1;
	NCCL(ncclCommSplit(r->comm, 0, r->rank, &second, NULL));
	NCCL(sum(r, second, buf));
	for (int i = 0; i < 3; i++) {
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_capture_begin(r->stream) == 0);
		NCCL(ncclAllReduce(buf, buf, COUNT, ncclFloat32, ncclSum, second, r->stream));
		CHECK(shunt_capture_end(r->stream, &graph) == 0);
		NCCL(sum(r, r->comm, buf));
		if (sum_is_right(r, buf))
			return 1;
		CHECK(shunt_graph_launch(graph, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
		CHECK(shunt_graph_destroy(graph) == 0);
	}
	if (path_is(r, r->comm, "sound") || path_is(r, second, "sound"))
		return 1;
	NCCL(ncclCommDestroy(second));
	return end(r);
}

/* 1,000 replays between eager calls. */
static int body_replays(struct rank *r)
{
	void *graph;
	float *buf;

	if (begin(r, &buf))
		return 1;
	NCCL(sum(r, r->comm, buf));
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_capture_begin(r->stream) == 0);
	NCCL(ncclAllReduce(buf, buf, COUNT, ncclFloat32, ncclSum, r->comm, r->stream));
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	for (int i = 0; i < 1000; i++) {
		CHECK(shunt_memset_async(buf, 0, COUNT * sizeof(float), r->stream) == 0);
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
		if (i % 250)
			continue;
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		NCCL(sum(r, r->comm, buf));
		if (sum_is_right(r, buf))
			return 1;
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_graph_destroy(graph) == 0);
	return path_is(r, r->comm, "sound") || end(r);
}

/* What SHUNT_CHECK does not look at is said once. */
static int body_replays_unwatched(struct rank *r)
{
	struct stderr_kept kept;
	int bad;

	CHECK(stderr_keep(&kept));
	bad = body_captures(r) || stderr_count(&kept, "plug-ins that are captured into graphs") != !r->rank;
	return stderr_give_back(&kept, bad);
}

TEST(test_graphs_replay)
{
	assert_int_equal(run("sound", RANKS_PROCESSES, 2, body_replays), 0);
	setenv("SHUNT_CHECK", "2", 1);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_replays_unwatched), 0);
	unsetenv("SHUNT_CHECK");
}

static int no_geometry(void *arg, const struct shunt_plugin_request *request, struct shunt_plugin_launch *launch)
{
	launch->blocks = request->max_blocks + 1;
	return request->count == COUNT ? -ERANGE : 0;
}

static size_t geometry_count;

/* Too many blocks, or an error: nothing is launched. */
static int body_geometry(struct rank *r)
{
	struct shunt_plugin lost = plugin_table("lost");
	char why[256];
	float *buf;

	lost.sim = not_reached;
	lost.geometry = no_geometry;
	CHECK(shunt_plugin_register(&lost, why, sizeof(why)) == 0);
	if (begin(r, &buf))
		return 1;
	CHECK(ncclAllReduce(buf, buf, geometry_count, ncclFloat32, ncclSum, r->comm, r->stream) != ncclSuccess);
	CHECK(strstr(ncclGetLastError(r->comm), "plug-in lost: its geometry for allreduce of "));
	CHECK(strstr(ncclGetLastError(r->comm), geometry_count == COUNT ? "400 bytes gave -34" : "396 bytes gave -22"));
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_a_geometry_that_cannot_be_names_the_plugin)
{
	setenv("SHUNT_ALGO", "allreduce:0-inf:lost", 1);
	for (geometry_count = COUNT - 1; geometry_count <= COUNT; geometry_count++)
		assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_geometry), 0);
}

/* A child has the plug-ins, and what it does with them is its own. */
RANKS_TEST(test_a_fork_has_plugins_of_its_own, run("sound", RANKS_PROCESSES, 2, body))
{
	char why[64];

	CHECK(shunt_plugin_load(defects, why, sizeof(why)) == 0);
	CHECK(!IN_CHILD(shunt_plugin_unregister("sound") != 0));
	CHECK(shunt_plugin_load(defects, why, sizeof(why)) == -EEXIST);
	return body_runs(r);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	defects = argv[1];
	own_standalone();
	return tests_run(NULL, NULL);
}

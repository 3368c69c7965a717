/* SPDX-License-Identifier: MIT */
/*
 * Plans over two hosts, one for each operation on ports: all-gathers of two ranks, each of which sends its input to the
 * other's output through the port. Every size has other data, and its own chunks, in each of a few calls. And the
 * default plans for two hosts of two ranks. With the argument "verbs" by the libibverbs of tests/fake_ibverbs, else by
 * tcp.
 */
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/world.h"
#include "tests/support/child.h"
#include "tests/support/own.h"
#include "tests/support/test.h"

enum { MOST = 70000, CALLS = 2 };

/* Operations. %o: this rank's chunk of the output, %p: the peer's; in remote buffer 0, the peer's output or scratch. */
#define ON_PORT "\"channel_type\": \"port\", \"channel_ids\": [0]"
#define SIGNAL(op) "{\"name\": \"" op "\", " ON_PORT "}"
#define NOP "{\"name\": \"nop\"}"
#define OWN(buffer, index) "[{\"type\": \"" buffer "\", \"index\": " index ", \"size\": 1}]"
#define FAR(index) "[{\"buffer_id\": 0, \"index\": " index ", \"size\": 1}]"
#define DATA(op, channel, src, dst) "{\"name\": \"" op "\", " channel "\"src_buff\": " src ", \"dst_buff\": " dst "}"
#define PUT(op, src, dst) DATA(op, ON_PORT ", ", src, dst)
#define LOCAL(op, src, dst) DATA(op, "", src, dst)
#define KEEP LOCAL("copy", OWN("i", "0"), OWN("o", "%o"))
#define PACK LOCAL("cpkt", OWN("i", "0"), OWN("s", "0"))
#define UNPACK LOCAL("upkt", OWN("s", "1"), OWN("o", "%p"))

struct row {
	const char *name, *ops, *remote; /* remote: the type of the peer's buffer */
	const char *head;                /* of the plan */
};

#define PLAIN "\"protocol\": \"Simple\""
#define LL "\"protocol\": \"LL\", \"use_double_scratch_buffer\": true"

static const struct row rows[] = {
	{ "put",
	    PUT("put", OWN("i", "0"), FAR("%o")) ", " SIGNAL("signal") ", " SIGNAL("wait") ", " SIGNAL(
	        "flush") ", " KEEP,
	    "o", PLAIN },
	{ "pws", PUT("pws", OWN("i", "0"), FAR("%o")) ", " KEEP ", " SIGNAL("wait"), "o", PLAIN },
	{ "pwsf", PUT("pwsf", OWN("i", "0"), FAR("%o")) ", " SIGNAL("wait") ", " KEEP, "o", PLAIN },
	{ "relaxed",
	    SIGNAL("rlxsignal") ", " SIGNAL("rlxwait") ", " NOP ", " PUT("pws", OWN("i", "0"), FAR("%o")) ", " SIGNAL(
	        "wait") ", " KEEP,
	    "o", PLAIN },
	/* What is put was written in the launch, and is written again. */
	{ "again",
	    LOCAL("copy", OWN("i", "0"), OWN("s", "0")) ", " NOP ", " PUT("pws", OWN("s", "0"),
	        FAR("%o")) ", " NOP ", " LOCAL("copy", OWN("o", "%o"), OWN("s", "0")) ", " NOP ", " KEEP
	                                                                              ", " SIGNAL("wait"),
	    "o", PLAIN },
	{ "pipeline",
	    "{\"name\": \"pipeline\", \"iter_context\": {\"unit_size\": 4096, \"num_chunks\": 1}, \"ops\": [" PUT(
	        "pws", OWN("i", "0"), FAR("%o")) ", " SIGNAL("wait") "]}, " KEEP,
	    "o", PLAIN },
	{ "rppkt", PACK ", " PUT("rppkt", OWN("s", "0"), FAR("1")) ", " KEEP ", " UNPACK, "s", LL },
	{ "ppkt", PACK ", " NOP ", " PUT("ppkt", OWN("s", "0"), FAR("1")) ", " KEEP ", " UNPACK, "s", LL },
	/* One half of scratch: the ranks wait for each other in each launch. */
	{ "single",
	    SIGNAL("signal") ", " SIGNAL("wait") ", " NOP ", " PACK
	                                         ", " PUT("rppkt", OWN("s", "0"), FAR("1")) ", " KEEP ", " UNPACK,
	    "s", "\"protocol\": \"LL\"" },
};

static const struct row *current;
static const char *network = "tcp"; /* the provider of the hosts with names */
static char folder[64], fabric[96]; /* of verbs */

/* Appends the operations of a rank, with its chunks. */
static size_t write_ops(char *at, const char *ops, int rank)
{
	size_t n = 0;

	for (; *ops; ops++)
		if (ops[0] == '%') {
			at[n++] = (char)('0' + (*++ops == 'o' ? rank : 1 - rank));
		} else {
			at[n++] = *ops;
		}
	at[n] = 0;
	return n;
}

static void write_plan(const struct row *row, char *text, size_t bytes)
{
	size_t at = (size_t)snprintf(text, bytes,
	    "{\"name\": \"%s\", \"collective\": \"allgather\", %s, \"inplace\": false, \"num_threads_per_block\": 64, "
	    "\"gpus\": [",
	    row->name, row->head);

	for (int r = 0; r < 2; r++) {
		at += (size_t)snprintf(text + at, bytes - at,
		    "%s{\"id\": %d, \"input_chunks\": 1, \"output_chunks\": 2, \"scratch_chunks\": 2, \"channels\": "
		    "[{\"channel_type\": \"port\", \"connected_to\": [%d]}], \"remote_buffers\": [{\"rank\": %d, "
		    "\"type\": "
		    "\"%s\", \"access_channel_types\": [\"port\"]}], \"semaphores\": [], \"threadblocks\": [{\"id\": "
		    "0, "
		    "\"channels\": [{\"channel_type\": \"port\", \"channel_ids\": [0]}], \"remote_buffer_refs\": "
		    "[{\"access_channel_type\": \"port\", \"remote_buffer_ids\": [0]}], \"ops\": [",
		    r ? ", " : "", r, 1 - r, 1 - r, row->remote);
		at += write_ops(text + at, row->ops, r);
		at += (size_t)snprintf(text + at, bytes - at, "]}]}");
	}
	snprintf(text + at, bytes - at, "]}");
}

static uint8_t byte_of(int rank, size_t i, int call)
{
	return (uint8_t)(i * 7 + i / 251 + (size_t)rank * 101 + (size_t)call * 13);
}

static int check_network(const struct rank *r, ncclComm_t comm)
{
	struct shunt_comm_info info = { .size = sizeof(info) };

	CHECK(!shunt_comm_describe(comm, &info));
	if (info.hosts > 1 && strcmp(info.network, network) != 0) {
		fprintf(stderr, "%s, and not %s\n", info.network, network);
		return 1;
	}
	return 0;
}

/* Sets the environment of hosts with names, and runs. */
static int run_named(struct world w)
{
	const char *const env[][2] = { { "NCCL_SOCKET_IFNAME", "lo" }, { "SHUNT_NET", network },
		{ "FAKE_IBV_FABRIC", fabric }, { "FAKE_IBV_DEVICES", "mlx0 link=roce" } };
	int n = 0, failed;

	while (w.env[n][0])
		n++;
	for (size_t i = 0; i < (strcmp(network, "verbs") ? 2 : 4); i++, n++)
		memcpy(w.env[n], env[i], sizeof(env[i]));
	w.named = true;
	unlink(fabric);
	failed = world_run(&w);
	unlink(fabric);
	return failed;
}

static int run_size(struct rank *r, ncclComm_t comm, uint8_t *send, uint8_t *recv, size_t bytes)
{
	for (int call = 0; call < CALLS; call++) {
		struct shunt_plan_run run = { .size = sizeof(run),
			.name = current->name,
			.send = send,
			.recv = recv,
			.send_bytes = bytes,
			.recv_bytes = 2 * bytes,
			.dtype = ncclUint8,
			.stream = r->stream };

		for (size_t i = 0; i < bytes; i++)
			send[i] = byte_of(r->rank, i, call);
		memset(recv, 0xee, 2 * bytes + 16);
		CHECK(!shunt_plan_run(comm, &run));
		CHECK(!shunt_stream_synchronize(r->stream));
		for (size_t i = 0; i < 2 * bytes; i++)
			if (recv[i] != byte_of(i >= bytes, i % bytes, call)) {
				fprintf(stderr, "rank %d: %s of %zu bytes, call %d: byte %zu is %u\n", r->rank,
				    current->name, bytes, call, i, recv[i]);
				return 1;
			}
		CHECK(recv[2 * bytes] == 0xee);
	}
	return 0;
}

static int plan_body(struct rank *r)
{
	static const size_t sizes[] = { 1000, MOST, 20001, 16 }; /* the second needs larger regions */
	char text[8192], why[512];
	uint8_t *send = ranks_memory(r, MOST + 16), *recv = ranks_memory(r, 2 * MOST + 16);
	ncclComm_t comm;
	int held = child_holds("shunt-region"), holds;

	write_plan(current, text, sizeof(text));
	if (shunt_plan_register(current->name, text, strlen(text), why, sizeof(why))) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		CHECK(!run_size(r, comm, send, recv, sizes[i]));
	CHECK(!check_network(r, comm));
	/* A child has neither connections nor memory of the communicator. What libibverbs opened for itself it keeps.
	 */
	holds = child_holds("shunt-region");
	CHECK(held > 0 && (strcmp(network, "verbs") ? holds == held : holds >= held));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* Every step-th row. The host of each rank is a name, or a network namespace. */
static void run_rows(bool named, size_t step)
{
	for (size_t i = 1; i <= sizeof(rows) / sizeof(rows[0]); i += step) {
		struct world w = { .place = "01", .body = plan_body };
		int failed;

		current = &rows[i - 1];
		failed = named ? run_named(w) : world_run(&w);
		if (failed == -EPERM)
			skip();
		if (failed)
			fail_msg("%s", current->name);
	}
}

TEST(test_plans_run_over_hosts_by_name)
{
	(void)state;
	run_rows(true, 1);
}

TEST(test_plans_run_over_hosts_of_namespaces)
{
	(void)state;
	run_rows(false, 6);
}

TEST(test_plans_run_inside_one_host_as_before)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		current = &rows[i];
		assert_int_equal(world_run(&(struct world){ .place = "00", .named = true, .body = plan_body }), 0);
	}
}

/* ---- a plan that does not fit */

static int misfit_body(struct rank *r)
{
	static const char memory[] =
	    "{\"name\": \"misfit\", \"collective\": \"custom\", \"protocol\": \"Simple\", \"inplace\": false, "
	    "\"gpus\": ["
	    "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 2, \"scratch_chunks\": 0, \"channels\": "
	    "[{\"channel_type\": "
	    "\"memory\", \"connected_to\": [1]}], \"remote_buffers\": [], \"threadblocks\": []}, "
	    "{\"id\": 1, \"input_chunks\": 1, \"output_chunks\": 2, \"scratch_chunks\": 0, \"channels\": "
	    "[{\"channel_type\": "
	    "\"memory\", \"connected_to\": [0]}], \"remote_buffers\": [], \"threadblocks\": []}]}";
	struct shunt_plan_run run = { .size = sizeof(run),
		.name = "misfit",
		.send_bytes = 16,
		.recv_bytes = 32,
		.dtype = ncclUint8,
		.stream = r->stream };
	char why[512];
	ncclComm_t comm;
	int err;

	err = shunt_plan_register("misfit", memory, strlen(memory), why, sizeof(why));
	if (err) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	CHECK(!shunt_malloc((void **)(uintptr_t)&run.send, 16) && !shunt_malloc(&run.recv, 32));
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(shunt_plan_run(comm, &run) == -ENOENT);
	NCCL(ncclCommDestroy(comm));
	shunt_free((void *)(uintptr_t)run.send);
	shunt_free(run.recv);
	return 0;
}

TEST(test_plan_that_does_not_fit_is_none)
{
	(void)state;
	assert_int_equal(run_named((struct world){ .place = "01", .body = misfit_body }), 0);
}

/* ---- the default plans */

enum { DEFAULT_MOST = 500000 }; /* floats of a message: 2 MB at most */

static bool wants_plans; /* SHUNT_ALGO says so */

struct buffers {
	float *send, *recv;
};

/* A sum of these depends on its order. */
static float float_of(int rank, size_t i)
{
	return (float)(i % 89 + 1) / (float)(3 + 2 * rank) + (float)rank * 1000.0f;
}

static float sum_of(const struct rank *r, size_t i)
{
	float s = 0;

	for (int k = 0; k < r->nranks; k++)
		s += float_of(k, i);
	return s;
}

/* The call runs as a default plan if that is wanted, for the size of its message. */
static int check_path(const struct rank *r, ncclComm_t comm, const char *op, const char *plan, size_t count)
{
	size_t bytes = count * sizeof(float) * (strcmp(op, "allreduce") ? (size_t)r->nranks : 1);
	char name[64] = "hierarchical";
	const char *path;

	if (wants_plans)
		snprintf(name, sizeof(name), "%s_hierarchical%s_2x2", plan, bytes <= 16384 ? "-ll" : "");
	CHECK(!shunt_path_of(comm, op, count, ncclFloat32, ncclSum, &path));
	if (strcmp(path, name) != 0) {
		fprintf(stderr, "%s of %zu is %s, and not %s\n", op, count, path, name);
		return 1;
	}
	return 0;
}

static int check_sums(const struct rank *r, const float *got, size_t first, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float want = sum_of(r, first + i);

		if (!(got[i] > want * 0.999f && got[i] < want * 1.001f)) {
			fprintf(
			    stderr, "rank %d: sum %zu is %g, and not %g\n", r->rank, i, (double)got[i], (double)want);
			return 1;
		}
	}
	return 0;
}

/* All ranks have the same bits. */
static int check_same(struct rank *r, ncclComm_t comm, const struct buffers *b, size_t n)
{
	uint64_t hash = 14695981039346656037u, *all = (uint64_t *)(void *)b->send;

	for (size_t i = 0; i < n * sizeof(float); i++)
		hash = (hash ^ ((const uint8_t *)b->recv)[i]) * 1099511628211u;
	all[r->rank] = hash;
	NCCL(ncclAllGather(&all[r->rank], all, 1, ncclUint64, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int k = 0; k < r->nranks; k++)
		CHECK(all[k] == hash);
	return 0;
}

static int default_calls(struct rank *r, ncclComm_t comm, const struct buffers *b, size_t n, bool in_place)
{
	size_t all = n * (size_t)r->nranks, mine = n * (size_t)r->rank;
	float *recv = in_place ? b->send : b->recv;

	for (size_t i = 0; i < all; i++)
		b->send[i] = float_of(r->rank, i);
	NCCL(ncclAllReduce(b->send, recv, all, ncclFloat32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	CHECK(!check_path(r, comm, "allreduce", "all_reduce", all) && !check_sums(r, recv, 0, all));
	memmove(b->recv, recv, all * sizeof(float));
	CHECK(!check_same(r, comm, b, all));
	for (size_t i = 0; i < all; i++)
		b->send[i] = float_of(r->rank, i);
	recv = in_place ? b->send + mine : b->recv;
	NCCL(ncclReduceScatter(b->send, recv, n, ncclFloat32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	CHECK(!check_path(r, comm, "reducescatter", "reduce_scatter", n) && !check_sums(r, recv, mine, n));
	for (size_t i = 0; i < n; i++)
		b->send[i] = b->recv[mine + i] = float_of(r->rank, i);
	NCCL(ncclAllGather(in_place ? b->recv + mine : b->send, b->recv, n, ncclFloat32, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	CHECK(!check_path(r, comm, "allgather", "all_gather", n));
	for (size_t i = 0; i < all; i++)
		CHECK(b->recv[i] == float_of((int)(i / n), i % n));
	return 0;
}

static int default_body(struct rank *r)
{
	static const size_t counts[] = { 63, 4096, 4097, DEFAULT_MOST / 4, 1 };
	struct buffers b;
	ncclComm_t comm;

	CHECK(!shunt_malloc((void **)&b.send, DEFAULT_MOST * 4) && !shunt_malloc((void **)&b.recv, DEFAULT_MOST * 4));
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		CHECK(!default_calls(r, comm, &b, counts[i], i % 2));
	CHECK(!check_network(r, comm));
	NCCL(ncclCommDestroy(comm));
	shunt_free(b.send);
	shunt_free(b.recv);
	return 0;
}

TEST(test_default_plans_run_where_they_are_wanted)
{
	(void)state;
	if (!getenv("SHUNT_DEFAULT_PLANS"))
		skip(); /* a build whose command does not run writes none */
	wants_plans = true;
	assert_int_equal(run_named((struct world){ .place = "0011",
	                     .env = { { "SHUNT_ALGO", "allreduce:0-:plan,allgather:0-:plan,reducescatter:0-:plan" } },
	                     .body = default_body }),
	    0);
	wants_plans = false;
	assert_int_equal(run_named((struct world){ .place = "0011", .body = default_body }), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest by_verbs[] = {
		cmocka_unit_test(test_plans_run_over_hosts_by_name),
		cmocka_unit_test(test_default_plans_run_where_they_are_wanted),
	};
	int failed;

	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_LOG", "error", 0);
	if (argc < 2)
		return tests_run(NULL, NULL);
	network = argv[1];
	if (!own_folder(folder))
		return 1;
	snprintf(fabric, sizeof(fabric), "%s/fabric", folder);
	failed = cmocka_run_group_tests_name("hosts_plans_verbs", by_verbs, NULL, NULL);
	own_folder_end(folder);
	return failed;
}

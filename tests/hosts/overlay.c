/* SPDX-License-Identifier: MIT */
/*
 * Overlay over several hosts: ranks find each other through the directory whose address is in the unique id, before the
 * real init returns, and forward alike, with a line that says why. The fake NCCL's init returns when all ranks are
 * there.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/world.h"
#include "tests/support/clock.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "transport/rendezvous/directory.h"

/* Under ThreadSanitizer the large parts are several chunks, else more than all slots hold. */
enum { LARGE_PART = WORLD_TSAN ? 20011 : 70001 };

static int call(const struct rank *r, ncclComm_t comm)
{
	uint32_t *buf;

	CHECK(!shunt_malloc((void **)&buf, 4096));
	memset(buf, 0, 4096);
	NCCL(ncclAllReduce(buf, buf, 64, ncclUint32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	shunt_free(buf);
	return 0;
}

static int expect_forward(const struct rank *r, ncclComm_t comm, const char *reason)
{
	struct shunt_comm_info info = { .size = sizeof(info) };

	CHECK(!call(r, comm));
	CHECK(!shunt_comm_describe(comm, &info));
	if (strcmp(info.state, "forwarding") || !strstr(info.reason, reason)) {
		fprintf(stderr, "rank %d: %s: \"%s\", and not \"%s\"\n", r->rank, info.state, info.reason, reason);
		return 1;
	}
	return 0;
}

static int expect_ready(const struct rank *r, ncclComm_t comm)
{
	struct shunt_comm_info info = { .size = sizeof(info) };

	CHECK(!call(r, comm));
	CHECK(!shunt_comm_describe(comm, &info));
	if (strcmp(info.state, "ready") != 0) {
		fprintf(stderr, "rank %d: %s: \"%s\", and not ready\n", r->rank, info.state, info.reason);
		return 1;
	}
	return 0;
}

/* The directory ends with rank 0's process. */
static int end_together(const struct rank *r)
{
	atomic_fetch_add(&world_shared()->step[7], 1);
	return world_await(7, r->nranks);
}

static int count_hosts(const struct rank *r)
{
	int n = 0;

	for (int k = 0; k < r->nranks; k++)
		n = world_host(k) >= n ? world_host(k) + 1 : n;
	return n;
}

/* All-gathers and reduce-scatters are Shunt's up to a size, and their values are right, in place and not. */
static int expect_parts(const struct rank *r, ncclComm_t comm)
{
	static const size_t parts[] = { 1, 1000, LARGE_PART };
	size_t n = (size_t)r->nranks, me = (size_t)r->rank;
	uint32_t *all, *own;

	for (size_t k = 0; k < 3; k++) {
		size_t part = parts[k];

		CHECK(!shunt_malloc((void **)&all, n * part * 4) && !shunt_malloc((void **)&own, part * 4));
		memset(all, 0, n * part * 4);
		for (size_t i = 0; i < part; i++)
			own[i] = all[me * part + i] = (uint32_t)(me * 1000003 + i);
		NCCL(ncclAllGather(k % 2 ? all + me * part : own, all, part, ncclUint32, comm, r->stream));
		CHECK(!shunt_stream_synchronize(r->stream));
		for (size_t p = 0; p < n; p++)
			for (size_t i = 0; i < part; i++)
				CHECK(all[p * part + i] == (uint32_t)(p * 1000003 + i));
		for (size_t i = 0; i < n * part; i++)
			all[i] = (uint32_t)(i + me);
		NCCL(ncclReduceScatter(all, k % 2 ? all + me * part : own, part, ncclUint32, ncclSum, comm, r->stream));
		CHECK(!shunt_stream_synchronize(r->stream));
		for (size_t i = 0; i < part; i++)
			CHECK((k % 2 ? all + me * part : own)[i] == (uint32_t)(n * (me * part + i) + n * (n - 1) / 2));
		shunt_free(all);
		shunt_free(own);
	}
	CHECK(ranks_count_calls(comm, "allgather", RANKS_NATIVE) == 3 &&
	    ranks_count_calls(comm, "reducescatter", RANKS_NATIVE) == 3);
	return 0;
}

/* The call itself is Shunt's, and its sum is right. */
static int expect_sum(const struct rank *r, ncclComm_t comm, int count)
{
	uint32_t *buf;

	CHECK(!shunt_malloc((void **)&buf, (size_t)count * 4));
	for (int i = 0; i < count; i++)
		buf[i] = (uint32_t)(r->rank + i);
	NCCL(ncclAllReduce(buf, buf, (size_t)count, ncclUint32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int i = 0; i < count; i++)
		CHECK(buf[i] == (uint32_t)(r->nranks * i + r->nranks * (r->nranks - 1) / 2));
	shunt_free(buf);
	return 0;
}

/* Between all ranks, if all pairs are connected: each is alone on its host, or a rule has asked for that. */
static int expect_exchange(const struct rank *r, ncclComm_t comm)
{
	enum { COUNT = 2003 };
	static const char *const kinds[] = { "alltoall", "gather", "scatter", "send" };
	size_t n = (size_t)r->nranks, me = (size_t)r->rank, rule = getenv("SHUNT_ALGO") != NULL;
	bool connected = rule || count_hosts(r) == r->nranks;
	uint32_t *in, *out;
	const char *path;

	for (int k = 0; k < 4; k++) {
		bool ours = kinds[k][0] == 's' && kinds[k][1] == 'e' ? rule : connected && (rule || !k);

		CHECK(!shunt_path_of(comm, kinds[k], COUNT, ncclUint32, ncclSum, &path));
		CHECK(!strcmp(path, ours ? "hierarchical" : "nccl"));
	}
	if (!connected)
		return 0;
	CHECK(!shunt_malloc((void **)&in, n * COUNT * 4) && !shunt_malloc((void **)&out, n * COUNT * 4));
	for (size_t i = 0; i < n * COUNT; i++)
		in[i] = (uint32_t)(me * 1000003 + i);
	NCCL(ncclAlltoAll(in, out, COUNT, ncclUint32, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	for (size_t p = 0; p < n; p++)
		for (size_t i = 0; i < COUNT; i++)
			CHECK(out[p * COUNT + i] == (uint32_t)(p * 1000003 + me * COUNT + i));
	shunt_free(in);
	shunt_free(out);
	return 0;
}

/* From and to any root, through the rail of the root. */
static int expect_roots(const struct rank *r, ncclComm_t comm)
{
	enum { COUNT = 2003 };
	size_t n = (size_t)r->nranks, me = (size_t)r->rank;
	uint32_t *in, *out;

	CHECK(!shunt_malloc((void **)&in, n * COUNT * 4) && !shunt_malloc((void **)&out, n * COUNT * 4));
	for (int root = 0; root < r->nranks; root++) {
		for (size_t i = 0; i < n * COUNT; i++)
			in[i] = (uint32_t)(me * 1000003 + i);
		NCCL(ncclBroadcast(in, out, COUNT, ncclUint32, root, comm, r->stream));
		CHECK(!shunt_stream_synchronize(r->stream));
		for (size_t i = 0; i < COUNT; i++)
			CHECK(out[i] == (uint32_t)((size_t)root * 1000003 + i));
		NCCL(ncclReduce(in, out, COUNT, ncclUint32, ncclSum, root, comm, r->stream));
		CHECK(!shunt_stream_synchronize(r->stream));
		for (size_t i = 0; i < COUNT && r->rank == root; i++)
			CHECK(out[i] == (uint32_t)(n * (n - 1) / 2 * 1000003 + n * i));
	}
	CHECK(ranks_count_calls(comm, "broadcast", RANKS_NATIVE) == (int)n &&
	    ranks_count_calls(comm, "reduce", RANKS_NATIVE) == (int)n);
	shunt_free(in);
	shunt_free(out);
	return 0;
}

static bool is_regular(const struct rank *r)
{
	int ranks[16] = { 0 }, hosts = count_hosts(r);

	for (int k = 0; k < r->nranks; k++)
		ranks[world_host(k)]++;
	for (int h = 1; h < hosts; h++)
		if (ranks[h] != ranks[0])
			return false;
	return true;
}

/*
 * A communicator over all hosts, one for each host, and one over hosts that is a child with its ranks in another order.
 * Where hosts have different numbers of ranks, the calls over all of them stay with NCCL.
 */
static int over_hosts_body(struct rank *r)
{
	struct rank turned = *r;
	ncclComm_t comm, own, half;
	int mine = 0;

	for (int k = 0; k < r->nranks; k++)
		mine += world_host(k) == world_host(r->rank);
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	NCCL(ncclCommSplit(comm, world_host(r->rank), -r->rank, &own, NULL));
	NCCL(ncclCommSplit(comm, 0, -r->rank, &half, NULL));
	if (is_regular(r)) {
		CHECK(!expect_ready(r, comm));
		CHECK(!expect_sum(r, comm, 1024));
		CHECK(!expect_parts(r, comm));
		CHECK(!expect_roots(r, comm));
	} else {
		CHECK(!call(r, comm));
	}
	if (getenv("SHUNT_ALGO") || is_regular(r))
		CHECK(!expect_exchange(r, comm));
	turned.rank = r->nranks - 1 - r->rank;
	if (is_regular(r)) {
		CHECK(!expect_ready(&turned, half));
		CHECK(!expect_sum(&turned, half, 1024));
		CHECK(!expect_parts(&turned, half));
	} else {
		CHECK(!call(&turned, half));
	}
	if (mine > 1)
		CHECK(!expect_ready(r, own));
	NCCL(ncclCommDestroy(half));
	NCCL(ncclCommDestroy(own));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

/* Ranks of different rails are connected where a rule has data go between them, and hosts may differ in size. */
TEST(test_rules_connect_any_two_ranks)
{
	static const char *const places[] = { "0011", "1000" };

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		run_world(&(struct world){ .place = places[i],
		    .named = true,
		    .plain = i > 0,
		    .env = { { "SHUNT_ALGO",
		        "alltoall:0-inf:hierarchical,gather:0-inf:hierarchical,scatter:0-inf:hierarchical,"
		        "send:0-inf:hierarchical" } },
		    .body = over_hosts_body });
}

TEST(test_hosts_by_name_run_our_kernels)
{
	static const char *const places[] = { "01", "0011", "1000", "0123", "01010101" };

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		run_world(
		    &(struct world){ .place = places[i], .named = true, .plain = i != 2, .body = over_hosts_body });
}

/* What Shunt takes is right on a child, as which this rank is number `rank` of `nranks`. */
static int expect_child(const struct rank *r, ncclComm_t child, int rank, int nranks)
{
	struct rank as = *r;

	as.rank = rank;
	as.nranks = nranks;
	CHECK(!expect_ready(&as, child));
	CHECK(!expect_sum(&as, child, 5000));
	CHECK(!expect_parts(&as, child));
	return 0;
}

/* Twice two children, of even and of odd ranks, which turn around, and a child of each; then one of the even ranks. */
HOSTS_TEST(test_children_of_some_ranks_run_our_kernels, { .place = "0011", .named = true, .plain = true },
    { .place = "001122", .named = true, .plain = true }, { .place = "1001" },
    { .place = "00001111", .named = true, .plain = true })
{
	int odd = r->rank % 2, half = r->nranks / 2, number = r->rank / 2, excluded[16];
	ncclComm_t comm, part, again, left;

	for (int i = 0; i < half; i++)
		excluded[i] = 2 * i + 1;
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int round = 0; round < 2; round++) {
		NCCL(ncclCommSplit(comm, odd, odd ? -r->rank : r->rank, &part, NULL));
		CHECK(!expect_child(r, part, odd ? half - 1 - number : number, half));
		NCCL(ncclCommSplit(part, 7, number, &again, NULL));
		NCCL(ncclCommDestroy(part));
		CHECK(!expect_child(r, again, number, half));
		ranks_barrier(r, &world_shared()->step[round]); /* an abort would reach who has not received all */
		NCCL(round ? ncclCommAbort(again) : ncclCommDestroy(again));
	}
	if (!odd) {
		NCCL(ncclCommShrink(comm, excluded, half, &left, NULL, NCCL_SHRINK_DEFAULT));
		CHECK(!expect_child(r, left, number, half));
		NCCL(ncclCommDestroy(left));
	}
	CHECK(!expect_ready(r, comm));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

/* The last rank comes later. */
HOSTS_TEST(test_a_grown_communicator_runs_our_kernels, { .place = "0011", .named = true, .plain = true },
    { .place = "0110" }, { .place = "01", .named = true, .plain = true })
{
	int old = r->nranks - 1;
	struct world_shared *s = world_shared();
	ncclComm_t comm = NULL, grown;
	ncclUniqueId id = r->id;

	if (r->rank < old) {
		NCCL(ncclCommInitRank(&comm, old, id, r->rank));
		CHECK(!call(r, comm));
	}
	if (!r->rank) {
		NCCL(ncclCommGetUniqueId(comm, &id));
		s->id[1] = id;
	}
	ranks_barrier(r, &s->step[0]);
	id = s->id[1];
	NCCL(ncclCommGrow(comm, r->nranks, r->rank && comm ? NULL : &id, comm ? -1 : r->rank, &grown, NULL));
	CHECK(!expect_child(r, grown, r->rank, r->nranks));
	NCCL(ncclCommDestroy(grown));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

/* Default plans, whose ports join ranks of one rail only: no others are connected here. */
static int planned_body(struct rank *r)
{
	static const struct {
		int count;
		const char *path;
	} calls[] = { { 1024, "all_reduce_hierarchical-ll_" }, { 100000, "all_reduce_hierarchical_" } };
	ncclComm_t comm;
	const char *path;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!expect_ready(r, comm));
	for (int i = 0; i < 2; i++) {
		CHECK(!expect_sum(r, comm, calls[i].count));
		CHECK(!shunt_path_of(comm, "allreduce", (size_t)calls[i].count, ncclUint32, ncclSum, &path));
		CHECK(!strncmp(path, calls[i].path, strlen(calls[i].path)));
	}
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

TEST(test_default_plans_run_over_rails)
{
	static const char *const places[] = { "01", "0011", "0123" };

	if (!getenv("SHUNT_DEFAULT_PLANS"))
		skip(); /* a build whose command does not run writes none */
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		run_world(&(struct world){ .place = places[i],
		    .named = true,
		    .plain = i != 1,
		    .env = { { "SHUNT_ALGO", "allreduce:0-inf:plan" } },
		    .body = planned_body });
}

TEST(test_hosts_of_namespaces_run_our_kernels)
{
	run_world(&(struct world){ .place = "0011", .body = over_hosts_body });
	run_world(&(struct world){
	    .place = "0120", .plain = true, .env = { { "NCCL_SOCKET_FAMILY", "AF_INET6" } }, .body = over_hosts_body });
	run_world(&(struct world){ .place = "01", .link_local = true, .plain = true, .body = over_hosts_body });
}

/* Its settings keep it apart, or it cannot reach the directory: all others find that, with the same line. */
HOSTS_TEST(test_hosts_a_rank_with_other_settings_is_missing_for_all,
    { .place = "0110", .named = true, .odd = 3, .odd_env = { "SHUNT_FORCE_NCCL", "broadcast" } },
    { .place = "0011", .named = true, .odd = 3, .odd_env = { "SHUNT_FORCE_NCCL", "broadcast" } })
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank < 3)
		CHECK(!expect_forward(r, comm, "rank 3 has no Shunt"));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

/* The rank calls the real library, as a program without Shunt does. */
#define FAKE(symbol) ((__typeof__(symbol) *)dlsym(dlopen(getenv("SHUNT_NCCL_LIB"), RTLD_NOW | RTLD_LOCAL), #symbol))

static int rank_without; /* this rank has no Shunt */

static int without_body(struct rank *r)
{
	ncclComm_t comm;
	char reason[40];

	/* The harness's id is Shunt's; rank 0 without Shunt makes one that has no directory. */
	if (!r->rank && !rank_without)
		NCCL(FAKE(ncclGetUniqueId)(&world_shared()->id[0]));
	else if (!r->rank)
		world_shared()->id[0] = r->id;
	if (!r->rank)
		world_shared()->step[0] = 1;
	CHECK(!world_await(0, 1));
	if (r->rank == rank_without) {
		static uint32_t buf[64];

		NCCL(FAKE(ncclCommInitRank)(&comm, r->nranks, world_shared()->id[0], r->rank));
		NCCL(FAKE(ncclAllReduce)(buf, buf, 64, ncclUint32, ncclSum, comm, NULL));
		NCCL(FAKE(ncclCommDestroy)(comm));
		return end_together(r);
	}
	NCCL(ncclCommInitRank(&comm, r->nranks, world_shared()->id[0], r->rank));
	/* Without a directory who is missing depends on the host that asks. */
	snprintf(reason, sizeof(reason), rank_without ? "rank %d has no Shunt" : "has no Shunt", rank_without);
	CHECK(!expect_forward(r, comm, reason));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

TEST(test_hosts_a_rank_without_shunt_is_missing_for_all)
{
	for (rank_without = 3; rank_without >= 0; rank_without -= 3)
		run_world(&(struct world){ .place = "0011", .named = true, .body = without_body });
}

/* A rank that alone has a name for its host is a host of its own, and no rail has as many ranks as another. */
HOSTS_TEST(test_hosts_a_rank_with_a_name_of_its_own_is_a_host,
    { .place = "0011", .odd = 3, .odd_env = { "NCCL_HOSTID", "apart" } })
{
	struct shunt_comm_info info = { .size = sizeof(info) };
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!call(r, comm));
	CHECK(!shunt_comm_describe(comm, &info));
	CHECK(info.hosts == 3);
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

static void cut_host_1(struct netns *netns)
{
	netns_link(netns, 1)->cut_out = true;
}

static int cut_body(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!expect_forward(r, comm, world_host(r->rank) ? "has no Shunt" : "rank 1 has no Shunt"));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

TEST(test_hosts_a_host_that_cannot_be_reached_is_missing_for_all)
{
	run_world(&(struct world){
	    .place = "010", .env = { { "SHUNT_SETUP_TIMEOUT", "12s" } }, .body = cut_body, .meanwhile = cut_host_1 });
}

TEST(test_hosts_of_one_name_are_missing_for_all)
{
	run_world(&(struct world){ .place = "010", .env = { { "SHUNT_HOSTID", "same" } }, .body = cut_body });
}

/* The directory's process dies: who asks afterwards forwards, too. */
HOSTS_TEST(test_hosts_the_directory_s_death_is_noticed,
    { .place = "0112", .named = true, .dies = 1, .env = { { "SHUNT_SETUP_TIMEOUT", "2h" } } })
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	atomic_fetch_add(&world_shared()->step[0], 1);
	if (!r->rank) {
		CHECK(!world_await(0, r->nranks));
		world_shared()->step[1] = 1;
		raise(SIGKILL);
	}
	CHECK(!world_await(1, 1));
	CHECK(!expect_forward(r, comm, ""));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* Rubbish, silence and a wrong secret at the directory's address do not disturb the ranks. */
HOSTS_TEST(test_hosts_strangers_at_the_directory_do_not_disturb,
    { .place = "0101", .env = { { "NCCL_SOCKET_FAMILY", "AF_INET" } }, .named = true })
{
	struct sockaddr_in sin = { .sin_family = AF_INET };
	struct shunt_directory_tail tail;
	int fds[300];

	memcpy(&tail, r->id.internal + SHUNT_DIRECTORY_TAIL_OFFSET, sizeof(tail));
	sin.sin_port = tail.port;
	memcpy(&sin.sin_addr, tail.addr, 4);
	CHECK(tail.family == 4);
	for (int i = 0; i < 300 && r->rank == 1; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!connect(fds[i], (struct sockaddr *)&sin, sizeof(sin)));
		if (i % 2)
			(void)!send(fds[i], "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 36, MSG_NOSIGNAL);
	}
	return over_hosts_body(r);
}

TESTS_BEGIN
{
	void *shared = mmap(NULL, FAKE_NCCL_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char text[32];

	world_most = argc > 1 ? 8 : 4; /* with a filter more, which say little more and take the most of the time */
	snprintf(text, sizeof(text), "%p", shared);
	setenv("FAKE_NCCL_SHARED", text, 1);
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_LOG", "error", 0);
}

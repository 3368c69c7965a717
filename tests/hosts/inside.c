/* SPDX-License-Identifier: MIT */
/*
 * Calls over several hosts, with the library linked statically, so that a test can look into the sim and the library:
 * what a graph has, how many blocks a call takes, what a communicator leaves behind, and a rank of another build.
 * Standalone, or in front of the fake NCCL, as SHUNT_NCCL_LIB says.
 */
#include <sys/socket.h>
#include "base/log.h"
#include "comm/core/communicator.h"
#include "device/sim/hooks.h"
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/world.h"
#include "tests/support/clock.h"
#include "tests/support/entries.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/limits.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"
#include "transport/rendezvous/wire/wire.h"

static bool overlay;

/* In front of NCCL the directory ends with rank 0's process. */
static int end_together(const struct rank *r)
{
	atomic_fetch_add(&world_shared()->step[7], 1);
	return world_await(7, r->nranks);
}

/* ---- calls */

enum { COUNT = WORLD_TSAN ? 20000 : 50000 }; /* several chunks */

static int one_call(const struct rank *r, ncclComm_t comm, uint32_t *buf, int kind)
{
	uint32_t *part = buf + (size_t)r->rank * (COUNT / 8);

	switch (kind) {
	case 0:
		return ncclAllReduce(buf, buf, COUNT, ncclUint32, ncclSum, comm, r->stream);
	case 1:
		return ncclAllGather(part, buf, COUNT / 8, ncclUint32, comm, r->stream);
	case 2:
		return ncclReduceScatter(buf, part, COUNT / 8, ncclUint32, ncclSum, comm, r->stream);
	case 3:
		return ncclBroadcast(buf, buf, COUNT, ncclUint32, 1, comm, r->stream);
	case 4:
		return ncclReduce(buf, buf, COUNT, ncclUint32, ncclMax, 1, comm, r->stream);
	default:
		return ncclAlltoAll(buf, buf + COUNT, COUNT / 8, ncclUint32, comm, r->stream);
	}
}

/* In front of NCCL the first three are Shunt's. */
static int kinds(void)
{
	return overlay ? 3 : 6;
}

/* ---- graphs */

/*
 * A captured call is one kernel, and nothing else. The order of graphs among each other, which the communicator keeps
 * unless NCCL_GRAPH_MIXING_SUPPORT is 0, has two nodes of a graph for itself.
 */
HOSTS_TEST(test_a_captured_call_is_one_kernel, { .place = "0011", .named = true },
    { .place = overlay ? "0101" : "001",
        .named = true,
        .plain = true,
        .env = { { "NCCL_GRAPH_MIXING_SUPPORT", "0" } } })
{
	unsigned events = getenv("NCCL_GRAPH_MIXING_SUPPORT") ? 0 : 2;
	struct shunt_sim_nodes nodes;
	uint32_t *buf = ranks_memory(r, 2 * COUNT * sizeof(*buf));
	ncclComm_t comm;
	void *graph;

	memset(buf, 0, 2 * COUNT * sizeof(*buf));
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int eager = 0; eager < 2; eager++) { /* the first call that a communicator has may be a captured one */
		for (int kind = 0; kind < kinds(); kind++) {
			CHECK(!shunt_capture_begin(r->stream));
			for (int i = 0; i <= kind; i++)
				NCCL(one_call(r, comm, buf, kind));
			CHECK(!shunt_capture_end(r->stream, &graph));
			nodes = shunt_sim_graph_nodes(graph);
			if (nodes.kernels != (unsigned)kind + 1 || nodes.others || nodes.events > events)
				fprintf(stderr, "rank %d: kind %d: %u kernels, %u events and %u others for %d calls\n",
				    r->rank, kind, nodes.kernels, nodes.events, nodes.others, kind + 1);
			CHECK(nodes.kernels == (unsigned)kind + 1 && !nodes.others && nodes.events <= events);
			CHECK(!shunt_graph_launch(graph, r->stream));
			CHECK(!shunt_stream_synchronize(r->stream));
			CHECK(!shunt_graph_destroy(graph));
		}
		NCCL(one_call(r, comm, buf, 0));
	}
	CHECK(!shunt_stream_synchronize(r->stream));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

/* ---- a call's own limit */

static ncclCollConfig_t at_most(int blocks)
{
	return (ncclCollConfig_t){ .size = sizeof(ncclCollConfig_t),
		.magic = SHUNT_NCCL_CONFIG_MAGIC,
		.version = 23200,
		.minCTAs = NCCL_CONFIG_UNDEF_INT,
		.maxCTAs = blocks,
		.nvlsCTAs = NCCL_CONFIG_UNDEF_INT,
		.cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
		.CTAPolicy = NCCL_CONFIG_UNDEF_INT };
}

/* Blocks of the call, whose values are right. Ranks may have other limits. */
static int limited_call(const struct rank *r, ncclComm_t comm, uint32_t *buf, int limit, unsigned *blocks_p)
{
	ncclCollConfig_t config = at_most(limit);
	uint32_t sum = (uint32_t)(r->nranks * (r->nranks + 1) / 2);
	void *graph;

	for (uint32_t i = 0; i < COUNT; i++)
		buf[i] = (uint32_t)(r->rank + 1) * i;
	CHECK(!shunt_capture_begin(r->stream));
	NCCL(ncclAllReduceConfig(buf, buf, COUNT, ncclUint32, ncclSum, comm, r->stream, &config));
	CHECK(!shunt_capture_end(r->stream, &graph));
	*blocks_p = shunt_sim_graph_nodes(graph).blocks;
	CHECK(!shunt_graph_launch(graph, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	CHECK(!shunt_graph_destroy(graph));
	for (uint32_t i = 0; i < COUNT; i++)
		CHECK(buf[i] == sum * i);
	return 0;
}

HOSTS_TEST(test_a_call_s_own_limit_on_blocks_holds, { .place = "0011", .named = true })
{
	unsigned wide, narrow, mixed;
	uint32_t *buf = ranks_memory(r, COUNT * sizeof(*buf));
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!limited_call(r, comm, buf, 32, &wide));
	CHECK(!limited_call(r, comm, buf, 1, &narrow));
	CHECK(!limited_call(r, comm, buf, r->rank % 2 ? 1 : 32, &mixed));
	CHECK(wide > 1 && narrow == 1 && mixed == (r->rank % 2 ? 1 : wide));
	NCCL(ncclCommDestroy(comm));
	return end_together(r);
}

/* ---- what a communicator leaves behind */

struct holdings {
	int fds, threads;
	size_t objects; /* of the sim: streams, events, graphs, memory of the device and page-locked memory */
};

static struct holdings holdings(void)
{
	return (struct holdings){ entries("/proc/self/fd"), entries("/proc/self/task"), shunt_sim_live() };
}

/* What the descriptors are of. */
static void show_descriptors(void)
{
	for (int fd = 0; fd < 256; fd++) {
		char path[64], of[128];
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, of, sizeof(of) - 1);
		if (n > 0)
			fprintf(stderr, "%d: %.*s\n", fd, (int)n, of);
	}
}

static bool holds_at_most(const struct holdings *now_, const struct holdings *then)
{
	return now_->fds <= then->fds && now_->threads <= then->threads && now_->objects <= then->objects;
}

/* A communicator of this rank alone, whose end frees what lingers of earlier ones. */
static int reap(const struct rank *r, uint32_t *buf)
{
	ncclUniqueId id;
	ncclComm_t alone;

	NCCL(ncclGetUniqueId(&id));
	NCCL(ncclCommInitRank(&alone, 1, id, 0));
	NCCL(ncclAllReduce(buf, buf, 64, ncclUint32, ncclSum, alone, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	NCCL(ncclCommDestroy(alone));
	return 0;
}

HOSTS_TEST(test_a_communicator_leaves_nothing_behind, { .place = "0011", .named = true })
{
	struct holdings then = { 0 }, later = { 0 };
	double end;
	uint32_t *buf = ranks_memory(r, 2 * COUNT * sizeof(*buf));
	ncclComm_t comm;
	int looks;

	memset(buf, 0, 2 * COUNT * sizeof(*buf));
	/* The first round has what stays: the sim's threads, and the library's own. */
	for (int round = 0; round < (WORLD_TSAN ? 3 : 5); round++) {
		if (!r->rank) {
			NCCL(ncclGetUniqueId(&world_shared()->id[round]));
			world_shared()->step[0] = round + 1;
		}
		CHECK(!world_await(0, round + 1));
		NCCL(ncclCommInitRank(&comm, r->nranks, world_shared()->id[round], r->rank));
		for (int kind = 0; kind < kinds(); kind++)
			NCCL(one_call(r, comm, buf, kind));
		CHECK(!shunt_stream_synchronize(r->stream));
		NCCL(ncclCommDestroy(comm));
		atomic_fetch_add(&world_shared()->step[1], 1);
		CHECK(!world_await(1, (round + 1) * r->nranks));
		end = now() + AT_ONCE_S;
		looks = 0;
		do {
			CHECK(!reap(r, buf));
			looks++;
			later = holdings();
			pause_us(PAUSE_POLL, 1000);
		} while (round && !holds_at_most(&later, &then) && now() < end);
		if (!round)
			then = later;
		if (!holds_at_most(&later, &then))
			fprintf(stderr,
			    "rank %d, round %d, after %d looks: %d descriptors, %d threads, %zu objects; before %d, "
			    "%d, %zu\n",
			    r->rank, round, looks, later.fds, later.threads, later.objects, then.fds, then.threads,
			    then.objects);
		if (!holds_at_most(&later, &then))
			show_descriptors();
		CHECK(holds_at_most(&later, &then));
		atomic_fetch_add(&world_shared()->step[2], 1);
		CHECK(!world_await(2, (round + 1) * r->nranks));
	}
	return end_together(r);
}

/* ---- a rank of another build */

/* Changes this process's number of the set-up's protocol, as if it had been built of other sources. */
static int be_of_another_build(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)&shunt_setup_protocol / page * page;

	if (mprotect((void *)at, page, PROT_READ | PROT_WRITE))
		return -errno;
	*(volatile uint32_t *)(uintptr_t)&shunt_setup_protocol ^= 1;
	return 0;
}

HOSTS_TEST(test_a_rank_of_another_build_is_noticed_by_all, { .place = "0110", .named = true })
{
	struct shunt_comm_info info = { .size = sizeof(info) };
	ncclResult_t res;
	uint32_t *buf = ranks_memory(r, 2 * COUNT * sizeof(*buf));
	ncclComm_t comm;

	if (r->rank == 3)
		CHECK(!be_of_another_build());
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	res = one_call(r, comm, buf, 0);
	if (overlay) {
		NCCL(res);
		CHECK(!shunt_comm_describe(comm, &info));
		CHECK(!strcmp(info.state, "forwarding"));
		if (r->rank != 3 && !strstr(info.reason, "rank 3 has no Shunt, another version")) {
			fprintf(stderr, "rank %d: \"%s\"\n", r->rank, info.reason);
			return 1;
		}
		NCCL(ncclCommDestroy(comm));
	} else {
		CHECK(res != ncclSuccess);
		CHECK(!shunt_comm_describe(comm, &info));
		CHECK(strstr(info.reason, "rank 3 has Shunt " SHUNT_VERSION " (set-up protocol "));
		ncclCommAbort(comm);
	}
	return end_together(r);
}

/* Says to the unique id's process what a rank of version 0.0.1 would. */
static int be_of_another_version(const struct rank *r)
{
	struct rdzv_unique_id id;
	struct shunt_host_address at = { 0 };
	struct shunt_netaddr addr;
	struct rdzv_challenge challenge;
	struct rdzv_hello hello;
	struct rdzv_answer answer;
	struct rdzv_key key;
	int fd = -1;

	memcpy(&id, &r->id, sizeof(id));
	at.family = id.family;
	at.port = id.port;
	memcpy(at.addr, id.addr, sizeof(at.addr));
	addr = shunt_host_netaddr(&at);
	key = rdzv_key(id.secret, sizeof(id.secret));
	fd = socket(addr.ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&addr.ss, addr.len));
	CHECK(recv(fd, &challenge, sizeof(challenge), MSG_WAITALL) == sizeof(challenge));
	CHECK(!rdzv_hello_init(&hello, RDZV_HELLO, &key));
	hello.member = hello.rank = r->rank;
	hello.nmembers = hello.nranks = r->nranks;
	memset(hello.shunt, 0, sizeof(hello.shunt));
	memcpy(hello.shunt, "0.0.1", 5);
	rdzv_hello_sign(&hello, &key, challenge.nonce);
	CHECK(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello));
	CHECK(recv(fd, &answer, sizeof(answer), MSG_WAITALL) == sizeof(answer));
	CHECK(answer.status == -EPROTO && strstr(answer.text, "rank 3 has Shunt 0.0.1"));
	close(fd);
	return 0;
}

static int other_version_body(struct rank *r)
{
	double start = now();
	ncclComm_t comm;

	if (r->rank == 3) {
		CHECK(!be_of_another_version(r));
	} else {
		CHECK(ncclCommInitRank(&comm, r->nranks, r->id, r->rank) != ncclSuccess);
		CHECK(strstr(world_error(), "rank 3 has Shunt 0.0.1") && strstr(world_error(), SHUNT_VERSION));
		CHECK(now() - start < AT_ONCE_S);
	}
	return end_together(r);
}

TEST(test_a_rank_of_another_version_is_noticed_by_all)
{
	if (overlay)
		return; /* there such a rank has another unique id's tail, or none */
	run_world(&(struct world){ .place = "0011", .named = true, .body = other_version_body });
}

/* ---- an error and its text */

static _Atomic(ncclComm_t) asks_for;
static atomic_int lines, early;

/* The linker leads the library's lines here. While the line of a broken connection is written, no call tells the error.
 */
void __real_shunt_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void __wrap_shunt_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void __wrap_shunt_error(const char *fmt, ...)
{
	ncclComm_t comm = atomic_load(&asks_for);
	ncclResult_t async = ncclSuccess;
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (comm && strstr(text, "has given up")) {
		if (ncclCommGetAsyncError(comm, &async) != ncclSuccess || async != ncclSuccess)
			atomic_fetch_add(&early, 1);
		atomic_fetch_add(&lines, 1);
	}
	__real_shunt_error("%s", text);
}

/* A communicator that has made a call. */
static int use(const struct rank *r, ncclComm_t *comm, uint32_t **buf)
{
	CHECK(!shunt_malloc((void **)buf, 2 * COUNT * sizeof(**buf)));
	NCCL(ncclCommInitRank(comm, r->nranks, r->id, r->rank));
	NCCL(one_call(r, *comm, *buf, 0));
	CHECK(!shunt_stream_synchronize(r->stream));
	return 0;
}

static int told_body(struct rank *r)
{
	ncclResult_t async = ncclSuccess;
	uint32_t *buf;
	ncclComm_t comm;

	CHECK(!use(r, &comm, &buf));
	if (r->rank == 0)
		atomic_store(&asks_for, comm);
	atomic_fetch_add(&world_shared()->step[1], 1);
	CHECK(!world_await(1, r->nranks));
	if (r->rank == 0) {
		CHECK(until_counted(&lines, 1, "lines of a broken connection"));
		for (double end = now() + AT_ONCE_S; !async && now() < end;)
			NCCL(ncclCommGetAsyncError(comm, &async));
		CHECK(async == ncclRemoteError && strstr(world_error(), "rank 1"));
		CHECK(!atomic_load(&early));
		atomic_store(&asks_for, NULL);
	}
	NCCL(ncclCommAbort(comm));
	shunt_free(buf);
	return 0;
}

TEST(test_an_error_has_its_text)
{
	if (overlay)
		return; /* the same connections carry calls there */
	run_world(&(struct world){ .place = "01", .named = true, .body = told_body });
}

/* The linker leads the library here when it makes an error a communicator's. */
bool __real_shunt_comm_life_failed(struct shunt_comm_life *life, int err);
bool __wrap_shunt_comm_life_failed(struct shunt_comm_life *life, int err);
bool __wrap_shunt_comm_life_failed(struct shunt_comm_life *life, int err)
{
	if (err == -EOWNERDEAD && atomic_fetch_add(&lines, 1) == 0 && !strstr(shunt_last_error(), "rank 1 died"))
		atomic_fetch_add(&early, 1);
	return __real_shunt_comm_life_failed(life, err);
}

static int dead_body(struct rank *r)
{
	ncclResult_t async = ncclSuccess;
	uint32_t *buf;
	ncclComm_t comm;

	CHECK(!use(r, &comm, &buf));
	atomic_fetch_add(&world_shared()->step[1], 1);
	CHECK(!world_await(1, r->nranks));
	if (r->rank == 1)
		raise(SIGKILL);
	NCCL(one_call(r, comm, buf, 0));
	for (double end = now() + AT_ONCE_S; !async && now() < end;)
		NCCL(ncclCommGetAsyncError(comm, &async));
	CHECK(async == ncclRemoteError && strstr(world_error(), "rank 1 died"));
	CHECK(atomic_load(&lines) && !atomic_load(&early));
	NCCL(ncclCommAbort(comm));
	shunt_free(buf);
	return 0;
}

TEST(test_a_death_has_its_text)
{
	if (overlay)
		return; /* NCCL's part of the communicator knows nothing of the death */
	run_world(&(struct world){ .place = "00", .named = true, .dies = 1u << 1, .body = dead_body });
}

/* ---- a rank that does not come */

enum making { SPLIT, SPLIT_IN_GROUP, SHRINK, GROW };

static const struct absence {
	enum making making; /* SHRINK: without rank 0; GROW: by a rank that does not come */
	const char *place;
	int absent;
	const char *says;
} absences[] = {
	/* By the sockets of one host. */
	{ SPLIT, "000", 2, " 2 (of the parent)" },
	{ SPLIT_IN_GROUP, "000", 2, " 2 (of the parent)" },
	{ SHRINK, "000", 2, "missing: 2 (of the parent)" },
	{ GROW, "0", -1, "missing: 1" },
	/* As the root of several hosts; there only the root comes, since others may be late for its limit. */
	{ SPLIT, "01", 1, "missing: 1 (of the parent)" },
	{ SPLIT_IN_GROUP, "01", 1, "missing: 1 (of the parent)" },
	{ SHRINK, "012", 2, "missing: 2 (of the parent)" },
	{ GROW, "01", 1, "missing: 1 2" },
	/* By calls of a root on another host. */
	{ SPLIT, "01", 0, ": rank 0 (of the parent) at 127.0.0.1:" },
	{ SHRINK, "012", 1, ": rank 1 (of the parent) at 127.0.0.1:" },
	{ GROW, "01", 0, ": rank 0 at 127.0.0.1:" },
}, *absence;

static ncclResult_t make_child(const struct rank *r, ncclComm_t comm, ncclComm_t *child)
{
	ncclUniqueId id;
	ncclResult_t res;

	switch (absence->making) {
	case SPLIT:
		return ncclCommSplit(comm, 0, r->rank, child, NULL);
	case SPLIT_IN_GROUP:
		ncclGroupStart();
		res = ncclCommSplit(comm, 0, r->rank, child, NULL);
		return res ? res : ncclGroupEnd();
	case SHRINK:
		return ncclCommShrink(comm, (int[]){ 0 }, 1, child, NULL, NCCL_SHRINK_DEFAULT);
	default:
		res = r->rank ? ncclSuccess : ncclCommGetUniqueId(comm, &id);
		return res ? res : ncclCommGrow(comm, r->nranks + 1, r->rank ? NULL : &id, -1, child, NULL);
	}
}

static int absent_body(struct rank *r)
{
	bool comes = r->rank != absence->absent && (absence->making != SHRINK || r->rank);
	ncclComm_t comm, child = NULL;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	ranks_barrier(r, &world_shared()->step[0]);
	if (comes) {
		limits_set(100, 100);
		CHECK(make_child(r, comm, &child) == ncclRemoteError && !child);
		if (!strstr(world_error(), " did not come together on rank ") ||
		    !strstr(world_error(), absence->says)) {
			fprintf(stderr, "rank %d of %s: not \"%s\" but \"%s\"\n", r->rank, absence->place,
			    absence->says, world_error());
			return 1;
		}
		limits_set(LIMIT_LONG_MS, LIMIT_LONG_MS);
	}
	NCCL(ncclCommDestroy(comm));
	ranks_barrier(r, &world_shared()->step[1]);
	return 0;
}

TEST(test_a_rank_that_does_not_come_is_named)
{
	if (overlay)
		return; /* there NCCL makes communicators of others */
	for (size_t i = 0; i < sizeof(absences) / sizeof(absences[0]); i++) {
		absence = &absences[i];
		run_world(&(struct world){ .place = absence->place, .named = true, .body = absent_body });
	}
}

/* Rank 3 is stopped before the first use. Rank 2, the root of its host, names it by its number among all ranks. */
static int stopped_body(struct rank *r)
{
	ncclResult_t res;
	uint32_t *buf;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank == 3)
		world_shared()->step[2] = (int)getpid();
	ranks_barrier(r, &world_shared()->step[0]);
	if (r->rank == 3)
		raise(SIGSTOP);
	if (r->rank == 2) {
		CHECK(!shunt_malloc((void **)&buf, 2 * COUNT * sizeof(*buf)));
		CHECK(until_process_stops(world_shared()->step[2]));
		limits_set(100, 100);
		res = one_call(r, comm, buf, 0);
		kill(world_shared()->step[2], SIGCONT);
		CHECK(res == ncclRemoteError);
		if (!strstr(world_error(), "missing: 3"))
			fprintf(stderr, "%s\n", world_error());
		CHECK(strstr(world_error(), "missing: 3"));
		shunt_free(buf);
	}
	ranks_barrier(r, &world_shared()->step[1]);
	NCCL(ncclCommAbort(comm));
	return 0;
}

TEST(test_a_stopped_rank_of_another_host_has_its_own_number)
{
	if (!overlay)
		run_world(&(struct world){ .place = "0011", .named = true, .body = stopped_body });
}

/* Nobody listens at port 1, where NCCL_COMM_ID wants rank 0. */
static int no_root_body(struct rank *r)
{
	ncclComm_t comm;

	limits_set(100, 100);
	CHECK(ncclCommInitRank(&comm, 2, r->id, 1) == ncclRemoteError);
	CHECK(strstr(world_error(), "rank 1 waited for rank 0 to listen at 127.0.0.1:1"));
	return 0;
}

TEST(test_rank_0_that_NCCL_COMM_ID_names_is_named)
{
	if (!overlay)
		run_world(&(struct world){
		    .place = "0", .named = true, .env = { { "NCCL_COMM_ID", "127.0.0.1:1" } }, .body = no_root_body });
}

/* A call on a communicator that has failed says so; the last error is still why it failed. */
static int failed_before_body(struct rank *r)
{
	ncclConfig_t config = nccl_config_nonblocking();
	ncclComm_t comm, grown, child;
	ncclUniqueId id;

	NCCL(ncclCommInitRank(&comm, 1, r->id, 0));
	NCCL(ncclCommGetUniqueId(comm, &id));
	limits_set(100, 100);
	CHECK(ncclCommGrow(comm, 2, &id, -1, &grown, &config) == ncclInProgress);
	CHECK(ranks_settled(grown) == ncclRemoteError);
	CHECK(strstr(world_error(), "missing: 1"));
	CHECK(ncclCommSplit(grown, 0, 0, &child, NULL) != ncclSuccess);
	CHECK(strstr(world_error(), "missing: 1"));
	NCCL(ncclCommAbort(grown));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_a_call_after_an_error_leaves_its_text)
{
	if (!overlay)
		run_world(&(struct world){ .place = "0", .named = true, .body = failed_before_body });
}

TESTS_BEGIN
{
	void *shared = mmap(NULL, FAKE_NCCL_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char text[32];

	snprintf(text, sizeof(text), "%p", shared);
	setenv("FAKE_NCCL_SHARED", text, 1);
	setenv("SHUNT_NCCL_LIB", "none", 0);
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_LOG", "error", 0);
	overlay = strcmp(getenv("SHUNT_NCCL_LIB"), "none") != 0;
}

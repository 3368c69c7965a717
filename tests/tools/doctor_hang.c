/* SPDX-License-Identifier: MIT */
/*
 * doctor_hang SCENARIO NRANKS [NHOSTS]: ranks as processes that come to hang, for shunt doctor to look at; with NHOSTS
 * on so many hosts, which are network namespaces and need root. Prints "pids P0 P1 ..." and, when every rank has made
 * the call that it hangs in, "hanging". Goes on until it is killed, and its ranks with it.
 */
#include "tools/common/libc.h"
#include "tests/support/child.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "shim/nccl/abi.h"
#include "shunt/device.h"
#include "tests/support/pause.h"
#include "tools/common/netns/netns.h"

#define COUNT 1000
#define BEFORE 5 /* collectives that all ranks make before anything goes wrong */

struct shared {
	ncclUniqueId id;
	int have_id, hanging;
};

struct rank {
	int rank, n, hangs;
	int *hanging; /* ranks */
	ncclComm_t comm, other;
	void *stream, *buffer, *out;
};

static void require(int failed, const char *what)
{
	if (!failed)
		return;
	fprintf(stderr, "doctor_hang: %s: %d\n", what, failed);
	_exit(1);
}

/* Has made its last call, or is about to stop. */
static void hangs(struct rank *r)
{
	if (!r->hangs++)
		__atomic_add_fetch(r->hanging, 1, __ATOMIC_ACQ_REL);
}

static void reduce(struct rank *r, ncclComm_t comm, size_t count)
{
	require(ncclAllReduce(r->buffer, r->out, count, ncclFloat32, ncclSum, comm, r->stream), "ncclAllReduce");
}

static void skip(struct rank *r)
{
	if (r->rank != 1)
		reduce(r, r->comm, COUNT);
}

static void skip_last_of_many(struct rank *r)
{
	for (int i = 0; i < 3; i++)
		if (r->rank != 1 || i)
			reduce(r, r->comm, COUNT + (size_t)i);
}

static void other_count(struct rank *r)
{
	reduce(r, r->comm, r->rank == 1 ? 100000 : COUNT);
}

static void other_kind(struct rank *r)
{
	if (r->rank == 2)
		require(ncclBroadcast(r->buffer, r->out, COUNT, ncclFloat32, 2, r->comm, r->stream), "ncclBroadcast");
	else
		reduce(r, r->comm, COUNT);
}

static void other_type(struct rank *r)
{
	require(ncclAllReduce(
	            r->buffer, r->out, COUNT, r->rank == 1 ? ncclInt32 : ncclFloat32, ncclSum, r->comm, r->stream),
	    "ncclAllReduce");
}

static void other_root(struct rank *r)
{
	require(
	    ncclBroadcast(r->buffer, r->out, COUNT, ncclFloat32, r->rank == 1, r->comm, r->stream), "ncclBroadcast");
}

/* One rank never comes to it. */
static void forgotten_split(struct rank *r)
{
	ncclComm_t child;

	hangs(r);
	if (r->rank != 1)
		require(ncclCommSplit(r->comm, 0, r->rank, &child, NULL), "ncclCommSplit");
}

static void stopped_process(struct rank *r)
{
	if (r->rank == 1) {
		hangs(r);
		raise(SIGSTOP);
	}
	reduce(r, r->comm, COUNT);
}

/* Two communicators in another order. A real stream would not come to its end; behind the fake NCCL's it waits all the
 * same. */
static void crossed(struct rank *r)
{
	require(ncclGroupStart(), "ncclGroupStart");
	reduce(r, r->rank == 1 ? r->other : r->comm, COUNT);
	require(ncclGroupEnd(), "ncclGroupEnd");
	hangs(r);
	require(shunt_stream_synchronize(r->stream), "the stream");
	pause();
}

static void missing_send(struct rank *r)
{
	if (r->rank == 1)
		require(ncclSend(r->buffer, COUNT, ncclFloat32, 0, r->comm, r->stream), "ncclSend");
	for (int i = 0; r->rank == 0 && i < 2; i++)
		require(ncclRecv(r->out, COUNT, ncclFloat32, 1, r->comm, r->stream), "ncclRecv");
}

/* All replay a graph twice, then one leaves a replay out. */
static void graph(struct rank *r)
{
	void *exec;

	require(shunt_capture_begin(r->stream), "the capture");
	reduce(r, r->comm, COUNT);
	require(shunt_capture_end(r->stream, &exec), "the capture");
	for (int i = 0; i < (r->rank == 1 ? 2 : 3); i++)
		require(shunt_graph_launch(exec, r->stream), "the graph");
}

/* One communicator was given up in the middle of a call, and the other lives on. */
static void aborted(struct rank *r)
{
	if (r->rank != 1)
		reduce(r, r->other, COUNT);
	require(ncclCommAbort(r->other), "ncclCommAbort");
	require(shunt_stream_synchronize(r->stream), "the stream");
}

static void idle(struct rank *r)
{
}

/* From now on the communicator's buffers are windows: with SHUNT_ALGO=allreduce:0-:direct kernels wait in barriers. */
static void use_windows(struct rank *r)
{
	ncclWindow_t in, out;

	require(shunt_malloc_shared(&r->buffer, 1 << 20) || shunt_malloc_shared(&r->out, 1 << 20), "shared memory");
	require(ncclCommWindowRegister(r->comm, r->buffer, 1 << 20, &in, NCCL_WIN_COLL_SYMMETRIC), "a window");
	require(ncclCommWindowRegister(r->comm, r->out, 1 << 20, &out, NCCL_WIN_COLL_SYMMETRIC), "a window");
}

/* Nothing hangs, but rank 1 comes late to each call. */
static void late(struct rank *r)
{
	use_windows(r);
	for (;;) {
		if (r->rank == 1)
			pause_us(PAUSE_LATE, 100000);
		reduce(r, r->comm, COUNT);
		require(shunt_stream_synchronize(r->stream), "the stream");
		hangs(r);
	}
}

/* The real NCCL, a fake, never returns from a function on rank 1. */
static void hold(struct rank *r, const char *function)
{
	hangs(r);
	if (r->rank == 1)
		setenv("FAKE_NCCL_HOLD", function, 1);
}

static void held_call(struct rank *r)
{
	hold(r, "AllReduce");
	reduce(r, r->comm, COUNT);
}

static void held_group(struct rank *r)
{
	hold(r, "GroupEnd");
	require(ncclGroupStart(), "ncclGroupStart");
	reduce(r, r->comm, COUNT);
	require(ncclGroupEnd(), "ncclGroupEnd");
}

static void held_split(struct rank *r)
{
	ncclComm_t child;

	hold(r, "CommSplit");
	require(ncclCommSplit(r->comm, 0, r->rank, &child, NULL), "ncclCommSplit");
}

static void held_init(struct rank *r)
{
	ncclUniqueId id;
	ncclComm_t alone;

	require(ncclGetUniqueId(&id), "ncclGetUniqueId");
	hold(r, "CommInitRank");
	require(ncclCommInitRank(&alone, 1, id, 0), "ncclCommInitRank");
}

/* Rank 1's stream waits in a kernel of Shunt's, and NCCL's call comes behind that. With SHUNT_FORCE_NCCL=allreduce. */
static void held_before(struct rank *r)
{
	require(ncclAllGather(r->buffer, r->out, COUNT, ncclFloat32, r->other, r->stream), "ncclAllGather");
	require(shunt_stream_synchronize(r->stream), "the stream");
	if (r->rank == 1)
		require(ncclAllGather(r->buffer, r->out, COUNT, ncclFloat32, r->other, r->stream), "ncclAllGather");
}

static void held_device(struct rank *r)
{
	held_before(r);
	reduce(r, r->comm, COUNT);
}

static void held_device_group(struct rank *r)
{
	held_before(r);
	require(ncclGroupStart(), "ncclGroupStart");
	reduce(r, r->comm, COUNT);
	require(ncclGroupEnd(), "ncclGroupEnd");
}

/* A graph that is never launched. */
static void captured(struct rank *r)
{
	void *exec;

	require(shunt_capture_begin(r->stream), "the capture");
	reduce(r, r->comm, COUNT);
	require(shunt_capture_end(r->stream, &exec), "the capture");
}

static const struct {
	const char *name;
	void (*fn)(struct rank *r);
} scenarios[] = {
	{ "skip", skip },
	{ "skip_last_of_many", skip_last_of_many },
	{ "count", other_count },
	{ "kind", other_kind },
	{ "type", other_type },
	{ "root", other_root },
	{ "split", forgotten_split },
	{ "stop", stopped_process },
	{ "crossed", crossed },
	{ "send", missing_send },
	{ "graph", graph },
	{ "aborted", aborted },
	{ "idle", idle },
	{ "late", late },
	{ "held_call", held_call },
	{ "held_group", held_group },
	{ "held_split", held_split },
	{ "held_init", held_init },
	{ "held_device", held_device },
	{ "held_device_group", held_device_group },
	{ "captured", captured },
};

static void run(struct shared *shared, int rank, int n, void (*fn)(struct rank *r))
{
	struct rank r = { .rank = rank, .n = n, .hanging = &shared->hanging };
	ncclResult_t state = ncclSuccess;

	shunt_device_set(rank);
	if (rank == 0) {
		require(ncclGetUniqueId(&shared->id), "ncclGetUniqueId");
		__atomic_store_n(&shared->have_id, 1, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&shared->have_id, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 1000);
	require(ncclCommInitRank(&r.comm, n, shared->id, rank), "ncclCommInitRank");
	require(ncclCommSplit(r.comm, 0, rank, &r.other, NULL), "ncclCommSplit");
	require(shunt_stream_create(&r.stream), "the stream");
	require(shunt_malloc(&r.buffer, 1 << 20) || shunt_malloc(&r.out, 1 << 20), "memory");
	for (int i = 0; i < BEFORE; i++)
		reduce(&r, r.comm, COUNT);
	reduce(&r, r.other, COUNT);
	require(shunt_stream_synchronize(r.stream), "the stream");
	fn(&r);
	hangs(&r);
	for (;;) { /* as a watchdog does */
		pause_us(PAUSE_POLL, 20000);
		if (ncclCommGetAsyncError(r.comm, &state) || state)
			pause();
	}
}

int main(int argc, char **argv)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int n = argc > 2 ? atoi(argv[2]) : 0, nhosts = argc > 3 ? atoi(argv[3]) : 0, err;
	void *nccl = mmap(NULL, FAKE_NCCL_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct netns *netns = NULL;
	char address[32];
	size_t which = 0;

	while (argc > 1 && which < sizeof(scenarios) / sizeof(scenarios[0]) && strcmp(scenarios[which].name, argv[1]))
		which++;
	if (n < 2 || n > 8 || which == sizeof(scenarios) / sizeof(scenarios[0]))
		return 2;
	err = nhosts ? netns_start(nhosts, 1, &netns) : 0;
	if (err == -EPERM)
		return 77;
	require(err || (nhosts && setenv("NCCL_SOCKET_IFNAME", "eth0", 1)), "hosts");
	snprintf(address, sizeof(address), "%p", nccl);
	require(setenv("FAKE_NCCL_SHARED", address, 1), "the fake NCCL");
	printf("pids");
	for (int rank = 0; rank < n; rank++) {
		pid_t pid;

		fflush(stdout);
		pid = child_fork();
		if (pid == 0 && netns)
			require(netns_enter(netns, rank * nhosts / n), "the host");
		if (pid == 0)
			run(shared, rank, n, scenarios[which].fn);
		printf(" %d", (int)pid);
	}
	printf("\n");
	fflush(stdout);
	while (__atomic_load_n(&shared->hanging, __ATOMIC_ACQUIRE) < n && waitpid(-1, NULL, WNOHANG) == 0)
		pause_us(PAUSE_POLL, 1000);
	if (__atomic_load_n(&shared->hanging, __ATOMIC_ACQUIRE) < n)
		return 1; /* a rank failed, and said why */
	puts("hanging");
	fflush(stdout);
	pause();
	return 0;
}

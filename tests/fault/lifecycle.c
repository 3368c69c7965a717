/* SPDX-License-Identifier: MIT */
#include "tests/fault/lifecycle.h"
#include "tools/common/libc.h"
#include "tools/common/nccl_config.h"
#include "tests/support/own.h"
#include "shunt/device.h"
#include "tests/support/pause.h"

enum { COUNT = 6000, PART = 500 };

void lifecycle_environment(const char *timeout, const char *setup_timeout)
{
	own_standalone();
	setenv("SHUNT_TIMEOUT", timeout, 1);
	setenv("SHUNT_SETUP_TIMEOUT", setup_timeout, 1);
	setenv("SHUNT_ALGO", "allgather:0-:ce", 1);
	if (!getenv("SHUNT_LOG"))
		setenv("SHUNT_LOG", "none", 1);
}

int lifecycle_prepare(struct lifecycle *l, int rank, int nranks)
{
	*l = (struct lifecycle){ .rank = rank, .nranks = nranks };
	if (shunt_device_set(rank) || shunt_stream_create(&l->stream[0]) || shunt_stream_create(&l->stream[1]))
		return -1;
	if (shunt_malloc_shared((void **)&l->window, LIFECYCLE_MAX * PART * sizeof(int32_t)))
		return -1;
	return shunt_malloc((void **)&l->dev, 2 * COUNT * sizeof(int32_t)) ? -1 : 0;
}

void lifecycle_finish(struct lifecycle *l)
{
	shunt_stream_destroy(l->stream[0]);
	shunt_stream_destroy(l->stream[1]);
	shunt_free(l->dev);
	shunt_free(l->window);
}

static int failed(struct lifecycle *l, ncclResult_t res)
{
	if (res && !l->error)
		l->error = res;
	return res != ncclSuccess;
}

/* What was issued on stream is done, and the communicator has no error. */
static int settle(struct lifecycle *l, ncclComm_t comm, void *stream)
{
	ncclResult_t async = ncclSuccess;

	if (shunt_stream_synchronize(stream))
		return failed(l, ncclUnhandledCudaError);
	return failed(l, ncclCommGetAsyncError(comm, &async)) || failed(l, async);
}

static int fill(struct lifecycle *l, int rank, size_t count)
{
	int32_t host[COUNT];

	for (size_t i = 0; i < count; i++)
		host[i] = (int32_t)i * (rank + 1);
	return shunt_memcpy(l->dev, host, count * sizeof(*host)) ? failed(l, ncclSystemError) : 0;
}

static int check_sum(struct lifecycle *l, int n, size_t count)
{
	int32_t host[COUNT];

	if (shunt_memcpy(host, l->dev, count * sizeof(*host)))
		return failed(l, ncclSystemError);
	for (size_t i = 0; i < count; i++)
		if (host[i] != (int32_t)i * n * (n + 1) / 2) {
			snprintf(l->wrong, sizeof(l->wrong),
			    "rank %d, step %d: sum[%zu] of %zu over %d ranks is %d and not %d", l->rank, l->step, i,
			    count, n, host[i], (int32_t)i * n * (n + 1) / 2);
			return -1;
		}
	return 0;
}

int lifecycle_sum(struct lifecycle *l, ncclComm_t comm, int rank, int n, size_t count, void *stream)
{
	if (fill(l, rank, count) || failed(l, ncclAllReduce(l->dev, l->dev, count, ncclInt32, ncclSum, comm, stream)) ||
	    settle(l, comm, stream))
		return 1;
	return check_sum(l, n, count);
}

/* Each sends to the next, and all get what rank 0 has, in one group. */
static int ring_and_broadcast(struct lifecycle *l)
{
	int next = (l->rank + 1) % l->nranks, prev = (l->rank + l->nranks - 1) % l->nranks;
	int32_t host[100], *in = l->dev, *out = l->dev + COUNT, *all = l->dev + 200;
	ncclResult_t res, end;

	if (fill(l, l->rank, 300) || failed(l, ncclGroupStart()))
		return 1;
	res = ncclSend(in, 100, ncclInt32, next, l->comm, l->stream[0]);
	if (!res)
		res = ncclRecv(out, 100, ncclInt32, prev, l->comm, l->stream[0]);
	if (!res)
		res = ncclBroadcast(all, all, 100, ncclInt32, 0, l->comm, l->stream[0]);
	end = ncclGroupEnd(); /* in any case: the thread's group must not stay open */
	if (failed(l, res) || failed(l, end) || settle(l, l->comm, l->stream[0]))
		return 1;
	if (shunt_memcpy(host, out, sizeof(host)))
		return failed(l, ncclSystemError);
	for (int i = 0; i < 100; i++)
		if (host[i] != i * (prev + 1)) {
			snprintf(l->wrong, sizeof(l->wrong), "rank %d: got %d at %d from rank %d", l->rank, host[i], i,
			    prev);
			return -1;
		}
	if (shunt_memcpy(host, all, sizeof(host)))
		return failed(l, ncclSystemError);
	for (int i = 0; i < 100; i++)
		if (host[i] != i + 200) {
			snprintf(l->wrong, sizeof(l->wrong), "rank %d: broadcast gave %d at %d", l->rank, host[i], i);
			return -1;
		}
	return 0;
}

/* A captured sum, replayed twice on the other stream. */
static int graph(struct lifecycle *l)
{
	ncclResult_t res;
	void *graph = NULL;
	int err;

	if (shunt_capture_begin(l->stream[0]))
		return failed(l, ncclUnhandledCudaError);
	res = ncclAllReduce(l->dev, l->dev, 500, ncclInt32, ncclSum, l->comm, l->stream[0]);
	err = shunt_capture_end(l->stream[0], &graph);
	if (failed(l, res) || failed(l, err ? ncclUnhandledCudaError : ncclSuccess)) {
		if (graph)
			shunt_graph_destroy(graph);
		return 1;
	}
	for (int i = 0; i < 2; i++) {
		err = fill(l, l->rank, 500);
		if (!err && shunt_graph_launch(graph, l->stream[1]))
			err = failed(l, ncclUnhandledCudaError);
		if (!err)
			err = settle(l, l->comm, l->stream[1]);
		if (!err)
			err = check_sum(l, l->nranks, 500);
		if (err)
			break;
	}
	shunt_graph_destroy(graph);
	return err;
}

/* All parts gathered: in place on the one stream, from elsewhere on the other. */
static int gather(struct lifecycle *l, int from_elsewhere)
{
	int32_t host[LIFECYCLE_MAX * PART], *mine = l->window + (size_t)l->rank * PART;
	void *stream = l->stream[from_elsewhere];

	if (fill(l, l->rank, PART) || (!from_elsewhere && shunt_memcpy(mine, l->dev, PART * sizeof(*host))))
		return failed(l, ncclSystemError);
	if (failed(l, ncclAllGather(from_elsewhere ? l->dev : mine, l->window, PART, ncclInt32, l->comm, stream)) ||
	    settle(l, l->comm, stream))
		return 1;
	if (shunt_memcpy(host, l->window, (size_t)l->nranks * PART * sizeof(*host)))
		return failed(l, ncclSystemError);
	for (int k = 0; k < l->nranks * PART; k++)
		if (host[k] != k % PART * (k / PART + 1)) {
			snprintf(l->wrong, sizeof(l->wrong), "rank %d: gathered %d at %d", l->rank, host[k], k);
			return -1;
		}
	return 0;
}

/*
 * Staged first: a window that is refused is, and what a stream needs for that is to have been made in every lifecycle.
 */
static int window(struct lifecycle *l)
{
	ncclWindow_t win;
	int err = 0;

	for (int i = 0; i < 4 && !err; i++) {
		if (i == 2 &&
		    failed(l,
		        ncclCommWindowRegister(l->comm, l->window, (size_t)l->nranks * PART * sizeof(*l->window), &win,
		            NCCL_WIN_COLL_SYMMETRIC)))
			return 1;
		err = gather(l, i % 2);
	}
	return err ? err : failed(l, ncclCommWindowDeregister(l->comm, win));
}

static int child(struct lifecycle *l)
{
	ncclComm_t comm = NULL;
	int err;

	if (failed(l, ncclCommSplit(l->comm, 0, l->rank, &comm, NULL)))
		return 1;
	err = lifecycle_sum(l, comm, l->rank, l->nranks, 700, l->stream[1]);
	if (err ? ncclCommAbort(comm) : ncclCommDestroy(comm)) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: the child cannot be %s", l->rank,
		    err ? "aborted" : "destroyed");
		return -1;
	}
	return err;
}

/* Ends a child as its use went. */
static int end_child(struct lifecycle *l, ncclComm_t comm, int err)
{
	if (err ? ncclCommAbort(comm) : ncclCommDestroy(comm)) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d, step %d: a child cannot be %s", l->rank, l->step,
		    err ? "aborted" : "destroyed");
		return -1;
	}
	return err;
}

/* An operator is made and ends, and memory comes and goes. */
static int operator_and_memory(struct lifecycle *l)
{
	int32_t two = 2, host[100];
	void *mem = NULL, *handle = NULL;
	ncclRedOp_t op;
	int err = 0;

	if (fill(l, l->rank, 100) ||
	    failed(l, ncclRedOpCreatePreMulSum(&op, &two, ncclInt32, ncclScalarHostImmediate, l->comm)))
		return 1;
	if (failed(l, ncclAllReduce(l->dev, l->dev, 100, ncclInt32, op, l->comm, l->stream[0])) ||
	    settle(l, l->comm, l->stream[0]))
		err = 1;
	if (failed(l, ncclRedOpDestroy(op, l->comm)) || err)
		return 1;
	if (shunt_memcpy(host, l->dev, sizeof(host)))
		return failed(l, ncclSystemError);
	for (int i = 0; i < 100; i++)
		if (host[i] != i * l->nranks * (l->nranks + 1)) {
			snprintf(l->wrong, sizeof(l->wrong), "rank %d: twice the sum is %d at %d", l->rank, host[i], i);
			return -1;
		}
	if (failed(l, ncclMemAlloc(&mem, 10000)))
		return 1;
	err =
	    failed(l, ncclCommRegister(l->comm, mem, 10000, &handle)) || failed(l, ncclCommDeregister(l->comm, handle));
	return failed(l, ncclMemFree(mem)) || err;
}

/* A window whose memory goes first. */
static int freed_window(struct lifecycle *l)
{
	size_t bytes = (size_t)l->nranks * PART * sizeof(*l->window);
	int32_t *before = l->window;
	ncclWindow_t win;
	void *mem;
	int err;

	err = gather(l, 0); /* staged first, as in window() */
	if (err)
		return err;
	if (failed(l, ncclMemAlloc(&mem, bytes)))
		return 1;
	err = failed(l, ncclCommWindowRegister(l->comm, mem, bytes, &win, NCCL_WIN_COLL_SYMMETRIC));
	if (err) {
		ncclMemFree(mem);
		return err;
	}
	l->window = mem;
	err = gather(l, 0);
	l->window = before;
	if (failed(l, ncclMemFree(mem)) || failed(l, ncclCommWindowDeregister(l->comm, win)))
		return err < 0 ? err : 1;
	return err;
}

static ncclResult_t async_result(ncclComm_t comm)
{
	ncclResult_t state;

	do {
		pause_us(PAUSE_POLL, 200);
		if (ncclCommGetAsyncError(comm, &state))
			return ncclInvalidArgument;
	} while (state == ncclInProgress);
	return state;
}

/* A non-blocking grandchild, made in a group with one that not all ranks get, and finalized. */
static int lazy_children(struct lifecycle *l)
{
	ncclComm_t one = NULL, two = NULL, other = NULL;
	ncclConfig_t config = nccl_config_nonblocking();
	ncclResult_t res, end;
	int err = 0;

	if (failed(l, ncclCommSplit(l->comm, 0, l->rank, &one, &config)))
		return 1;
	if (failed(l, ncclGroupStart()))
		return end_child(l, one, 1);
	res = ncclCommSplit(one, 0, -l->rank, &two, NULL);
	if (!res || res == ncclInProgress)
		res = ncclCommSplit(one, l->rank ? 0 : NCCL_SPLIT_NOCOLOR, l->rank, &other, NULL);
	end = ncclGroupEnd();
	if ((res != ncclInProgress && failed(l, res)) || (end != ncclInProgress && failed(l, end)))
		err = 1;
	if (failed(l, async_result(one)) || err)
		err = 1;
	if (!err)
		err = lifecycle_sum(l, two, l->rank, l->nranks, 300, l->stream[1]);
	if (!err) {
		end = ncclCommFinalize(two);
		err = (end != ncclInProgress && failed(l, end)) || failed(l, async_result(two));
	}
	if (two)
		err = end_child(l, two, err);
	if (other)
		err = end_child(l, other, err);
	return end_child(l, one, err);
}

/* Without the last rank. */
static int shrunk(struct lifecycle *l)
{
	ncclComm_t small = NULL;
	int last = l->nranks - 1, err;

	if (l->rank == last)
		return 0;
	if (failed(l, ncclCommShrink(l->comm, &last, 1, &small, NULL, NCCL_SHRINK_DEFAULT)))
		return 1;
	err = lifecycle_sum(l, small, l->rank, l->nranks - 1, 900, l->stream[0]);
	return end_child(l, small, err);
}

/* Revoked in the middle, and split afterwards. */
static int revoked(struct lifecycle *l)
{
	ncclComm_t comm = NULL, after = NULL;
	int err;

	if (failed(l, ncclCommSplit(l->comm, 0, l->rank, &comm, NULL)))
		return 1;
	err = lifecycle_sum(l, comm, l->rank, l->nranks, 700, l->stream[1]);
	if (!err && l->rank)
		err = failed(l, ncclAllReduce(l->dev, l->dev, 700, ncclInt32, ncclSum, comm, l->stream[1]));
	if (!err)
		err = failed(l, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT)) ||
		    failed(l, ncclCommSplit(comm, 0, l->rank, &after, NULL));
	if (after)
		err = end_child(l, after, lifecycle_sum(l, after, l->rank, l->nranks, 700, l->stream[0]));
	return end_child(l, comm, err);
}

static int second_stream(struct lifecycle *l)
{
	return lifecycle_sum(l, l->comm, l->rank, l->nranks, 3000, l->stream[1]);
}

static int small_sum(struct lifecycle *l)
{
	return lifecycle_sum(l, l->comm, l->rank, l->nranks, 100, l->stream[0]);
}

int lifecycle_begin(struct lifecycle *l)
{
	return ncclCommInitRank(&l->comm, l->nranks, l->id, l->rank) || small_sum(l);
}

static int large_sum(struct lifecycle *l)
{
	return lifecycle_sum(l, l->comm, l->rank, l->nranks, COUNT, l->stream[0]);
}

enum lifecycle_result lifecycle_run(struct lifecycle *l)
{
	static int (*const steps[])(
	    struct lifecycle *l) = { small_sum, ring_and_broadcast, large_sum, second_stream, graph, window, child };
	static int (*const other_steps[])(
	    struct lifecycle *l) = { small_sum, operator_and_memory, freed_window, shrunk, revoked, lazy_children };
	int err, n = l->full == 2 ? 6 : l->full ? 7 : 3;

	l->error = ncclSuccess;
	l->wrong[0] = '\0';
	l->comm = NULL;
	l->step = -1;
	shunt_device_set(l->rank);
	if (failed(l, ncclCommInitRank(&l->comm, l->nranks, l->id, l->rank))) {
		if (!l->comm)
			return LIFECYCLE_FAILED;
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: a failed init left a communicator", l->rank);
		return LIFECYCLE_WRONG;
	}
	for (err = 0, l->step = 0; !err && l->step < n; l->step++)
		err = l->full == 2 ? other_steps[l->step](l) : steps[l->step](l);
	if (err ? ncclCommAbort(l->comm) : ncclCommDestroy(l->comm)) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: %s", l->rank, err ? "abort failed" : "destroy failed");
		err = -1;
	}
	return err < 0 ? LIFECYCLE_WRONG : err ? LIFECYCLE_FAILED : LIFECYCLE_OK;
}

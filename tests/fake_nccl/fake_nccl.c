/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fake_nccl.h"

#define VERSION 22809

struct ncclComm {
	uint64_t magic;
	int rank, nranks, device;
	bool blocking;
	ncclResult_t state;
	int next_op;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];
static char log_copy[1 << 16];
static size_t log_size;
static char fail_name[64];
static ncclResult_t fail_result;
static int late_ms = -1;
static unsigned char next_id = 1;
static _Thread_local int group_depth;
static _Thread_local ncclResult_t group_error;

/* Children of the open group: written when it ends. */
struct birth {
	ncclComm_t *where, child, parent;
	int ms;
};
static _Thread_local struct birth births[16];
static _Thread_local int nbirths;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
	va_list ap;

	pthread_mutex_lock(&lock);
	va_start(ap, format);
	log_size += vsnprintf(log_text + log_size, sizeof(log_text) - log_size, format, ap);
	va_end(ap);
	if (log_size > sizeof(log_text) - 256)
		log_size = 0;
	pthread_mutex_unlock(&lock);
}

const char *fake_nccl_log(void)
{
	pthread_mutex_lock(&lock);
	memcpy(log_copy, log_text, log_size);
	log_copy[log_size] = 0;
	pthread_mutex_unlock(&lock);
	return log_copy;
}

void fake_nccl_reset(void)
{
	pthread_mutex_lock(&lock);
	log_size = 0;
	log_text[0] = 0;
	fail_name[0] = 0;
	pthread_mutex_unlock(&lock);
	late_ms = -1;
}

void fake_nccl_fail_next(const char *name, ncclResult_t result)
{
	pthread_mutex_lock(&lock);
	snprintf(fail_name, sizeof(fail_name), "%s", name);
	fail_result = result;
	pthread_mutex_unlock(&lock);
}

void fake_nccl_late(int ms)
{
	late_ms = ms;
}

/* As ncclGroupErrCheck: an error sticks to an open group. */
static ncclResult_t keep(ncclResult_t result)
{
	if (group_depth && !group_error && result != ncclInProgress)
		group_error = result;
	return result;
}

static ncclResult_t planned(const char *name)
{
	ncclResult_t result = ncclSuccess;

	pthread_mutex_lock(&lock);
	if (!strcmp(fail_name, name)) {
		result = fail_result;
		fail_name[0] = 0;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return ncclInvalidArgument;
	*version = VERSION;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	return result == ncclSuccess ? "fake: no error" : "fake: error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	return "fake: last error";
}

void ncclResetDebugInit(void)
{
	note("ResetDebugInit\n");
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	note("GetUniqueId\n");
	if (!id)
		return ncclInvalidArgument;
	memset(id, 0, sizeof(*id));
	id->internal[0] = (char)next_id++;
	id->internal[1] = (char)getpid();
	id->internal[2] = (char)(getpid() >> 8);
	return ncclSuccess;
}

static ncclComm_t new_comm(int rank, int nranks, int device, bool blocking)
{
	ncclComm_t comm = calloc(1, sizeof(*comm));

	*comm = (struct ncclComm){SHUNT_NCCL_COMM_MAGIC, rank, nranks, device, blocking, ncclSuccess, 5};
	return comm;
}

static ncclResult_t init(const char *name, ncclComm_t *newcomm, int nranks, int rank, ncclConfig_t *config)
{
	ncclResult_t result = planned(name);

	note("%s %d/%d\n", name, rank, nranks);
	if (!result && (!newcomm || nranks < 1 || rank < 0 || rank >= nranks || (config && config->magic != 0xcafebeef)))
		result = ncclInvalidArgument;
	if (result)
		return keep(result);
	*newcomm = new_comm(rank, nranks, rank, !config || config->blocking != 0);
	return (*newcomm)->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank)
{
	return init("CommInitRank", newcomm, nranks, rank, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	return init("CommInitRankConfig", newcomm, nranks, rank, config);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	return init("CommInitRankScalable", newcomm, nranks, rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
	ncclUniqueId id;

	note("CommInitAll %d\n", ndev);
	if (!comms || ndev < 1)
		return ncclInvalidArgument;
	ncclGetUniqueId(&id); /* through the PLT, as the real one */
	for (int i = 0; i < ndev; i++)
		comms[i] = new_comm(i, ndev, devlist ? devlist[i] : i, true);
	return ncclSuccess;
}

static void *write_late(void *arg)
{
	struct birth *b = arg;

	usleep(1000 * (useconds_t)b->ms);
	__atomic_store_n(b->where, b->child, __ATOMIC_RELEASE);
	__atomic_store_n(&b->parent->state, ncclSuccess, __ATOMIC_RELEASE);
	free(b);
	return NULL;
}

/* Now, later, or at the end of the group. */
static ncclResult_t bear(struct birth birth)
{
	struct birth *b;
	pthread_t thread;

	if (birth.ms < 0) {
		*birth.where = birth.child;
		return ncclSuccess;
	}
	birth.parent->state = ncclInProgress;
	b = malloc(sizeof(*b));
	*b = birth;
	pthread_create(&thread, NULL, write_late, b);
	pthread_detach(thread);
	return ncclInProgress;
}

static ncclResult_t child_of(const char *name, ncclComm_t parent, ncclComm_t *newcomm, int rank, int nranks, bool member)
{
	ncclResult_t result = planned(name);
	struct birth birth = {newcomm, NULL, parent, late_ms};

	if (result)
		return keep(result);
	if (!parent || !newcomm)
		return keep(ncclInvalidArgument);
	*newcomm = NULL;
	if (!member)
		return ncclSuccess;
	birth.child = new_comm(rank, nranks, parent->device, parent->blocking);
	if (group_depth) {
		births[nbirths++] = birth;
		return ncclSuccess;
	}
	return bear(birth);
}

/* Nobody to ask: a child has half of the parent's ranks and keeps their order. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	note("CommSplit color %d\n", color);
	return child_of("CommSplit", comm, newcomm, comm ? comm->rank / 2 : 0, comm ? (comm->nranks + 1) / 2 : 0, color >= 0);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	note("CommShrink %d\n", n);
	return child_of("CommShrink", comm, newcomm, comm ? comm->rank : 0, comm ? comm->nranks - n : 0, true);
}

static ncclResult_t end(const char *name, ncclComm_t comm, bool dies)
{
	ncclResult_t result = planned(name);

	note("%s\n", name);
	if (result || !comm)
		return result;
	if (dies)
		free(comm);
	return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	return end("CommFinalize", comm, false);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	return end("CommDestroy", comm, true);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	return end("CommAbort", comm, true);
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
	return end("CommRevoke", comm, false);
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
	return end("CommSuspend", comm, false);
}

ncclResult_t ncclCommResume(ncclComm_t comm)
{
	return end("CommResume", comm, false);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	ncclResult_t result = planned("CommGetAsyncError");

	if (result)
		return result;
	if (!comm || !state)
		return ncclInvalidArgument;
	*state = __atomic_load_n(&comm->state, __ATOMIC_ACQUIRE);
	return ncclSuccess;
}

static ncclResult_t ask(ncclComm_t comm, int value, int *out)
{
	if (!comm || !out || comm->magic != SHUNT_NCCL_COMM_MAGIC)
		return ncclInvalidArgument;
	*out = value;
	return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return ask(comm, comm ? comm->nranks : 0, count);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return ask(comm, comm ? comm->device : 0, device);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return ask(comm, comm ? comm->rank : 0, rank);
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	note("MemAlloc %zu\n", size);
	*ptr = malloc(size);
	return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
	note("MemFree\n");
	free(ptr);
	return ncclSuccess;
}

/* NCCL's numbers look like this: a slot mixed with the communicator's address. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence,
	ncclComm_t comm)
{
	note("RedOpCreatePreMulSum\n");
	if (!op || !scalar || !comm)
		return ncclInvalidArgument;
	*op = (ncclRedOp_t)(0x1000 + comm->next_op++);
	return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	note("RedOpDestroy %d\n", (int)op);
	return ncclSuccess;
}

static ncclResult_t collective(const char *name, size_t count, ncclDataType_t dtype, ncclComm_t comm)
{
	ncclResult_t result = planned(name);

	note("%s %zu %d%s\n", name, count, (int)dtype, group_depth ? " grouped" : "");
	if (!result && (!comm || (unsigned)dtype >= ncclNumTypes))
		result = ncclInvalidArgument;
	return keep(result);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
	cudaStream_t stream)
{
	ncclResult_t result = collective("AllReduce", count, dtype, comm);

	return result ? result : keep((unsigned)op > 4 && (unsigned)op < 0x1000 ? ncclInvalidArgument : ncclSuccess);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root, ncclComm_t comm,
	cudaStream_t stream)
{
	return collective("Reduce", count, dtype, comm);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
	cudaStream_t stream)
{
	return collective("Broadcast", count, dtype, comm);
}

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	note("Bcast\n");
	return ncclBroadcast(buff, buff, count, dtype, root, comm, stream); /* through the PLT, as the real one */
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
	cudaStream_t stream)
{
	return collective("ReduceScatter", count, dtype, comm);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream)
{
	return collective("AllGather", count, dtype, comm);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)
{
	return collective("Send", count, dtype, comm);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)
{
	return collective("Recv", count, dtype, comm);
}

ncclResult_t ncclGroupStart(void)
{
	note("GroupStart\n");
	group_depth++;
	return ncclSuccess;
}

static ncclResult_t group_end(const char *name)
{
	ncclResult_t result = planned(name);

	note("%s\n", name);
	if (!group_depth)
		return ncclInvalidUsage;
	if (--group_depth)
		return ncclSuccess;
	if (!result)
		result = group_error;
	group_error = ncclSuccess;
	for (int i = 0; i < nbirths; i++) {
		ncclResult_t born = result ? result : bear(births[i]);
		if (born == ncclInProgress)
			result = born;
	}
	nbirths = 0;
	return result;
}

ncclResult_t ncclGroupEnd(void)
{
	return group_end("GroupEnd");
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	return group_end("GroupSimulateEnd");
}

#pragma GCC visibility push(default)
fake_nccl_16_args ncclPutSignal;
fake_nccl_team ncclTeamWorld;
fake_nccl_large ncclGetPeerDevicePointer;
#pragma GCC visibility pop

double ncclPutSignal(long a, long b, long c, long d, long e, long f, long g, long h, double p, double q, double r, double s, double t,
	double u, double v, double w)
{
	return (double)(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h) + 100 * p + 200 * q + 300 * r + 400 * s + 500 * t +
		600 * u + 700 * v + 800 * w;
}

struct fake_team ncclTeamWorld(ncclComm_t comm)
{
	return (struct fake_team){comm->nranks, comm->rank, 1};
}

struct fake_large ncclGetPeerDevicePointer(long a, double b)
{
	return (struct fake_large){{a, (long)b, 3, 4, 5}};
}

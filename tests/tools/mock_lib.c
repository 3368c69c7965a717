/* SPDX-License-Identifier: MIT */
/*
 * A library that shunt bench and shunt conform take for libshunt.so: "devices" whose memory is malloc's, streams that run at once,
 * and every data call of NCCL's in the plainest way: each is a set of messages through boxes in a file in /dev/shm, in a group
 * first all that are sent and then all that are received.
 *
 * MOCK_FAULT makes rank 1 misbehave in calls of MOCK_FAULT_IN (a name of shunt_kind_name's; allreduce) that have a result of 1024
 * bytes or more: die, hang, wrong (one element), last (one bit of the last element), beyond (writes behind the result), before (in
 * front of it), input (writes to the input), fail (an error code). On all ranks: none (that call is "invalid usage"), code (an
 * unknown data type is taken), group (the group's end forgets its error), reverse (it reduces from the last rank to the first),
 * hops (sums and products are rounded after every rank). With MOCK_FAULT_FILE only in the library whose path contains it.
 * MOCK_REAL: what shunt_real_nccl_path says.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>
#include "core/coll.h"
#include "lib/reference.h"
#include "shim/nccl_abi.h"
#include "shunt/device.h"
#include "shunt/shunt.h"

#define EXPORT __attribute__((visibility("default")))
enum { BOX_BYTES = 4 << 20, MAX_RANKS = 8, MAX_OPS = 16 };
enum { COLLECTIVE, PEER, NCHANNELS }; /* two orders of messages that do not mix */

/* Bytes from one rank to another. */
struct box {
	atomic_ullong in, out;
	char data[BOX_BYTES];
};

struct room {
	struct box box[NCHANNELS][MAX_RANKS][MAX_RANKS]; /* from, to */
};

struct op {
	bool used;
	ncclDataType_t dtype;
	uint64_t scalar;
};

struct ncclComm {
	int rank, nranks, splits;
	char name[96];
	struct room *room;
	struct op ops[MAX_OPS];
};

struct job {
	struct shunt_coll coll;
	ncclComm_t comm;
};

struct jobs {
	struct job *v;
	size_t n;
};

struct stream {
	struct jobs *capturing;
};

static _Thread_local struct {
	int depth;
	ncclResult_t error;
	struct jobs jobs;
} group;

static const char *fault(void)
{
	const char *name = getenv("MOCK_FAULT"), *file = getenv("MOCK_FAULT_FILE");
	Dl_info info;

	if (!name || (file && (!dladdr((void *)ncclGetVersion, &info) || !strstr(info.dli_fname, file))))
		return "";
	return name;
}

static const char *fault_of(enum shunt_kind kind)
{
	const char *in = getenv("MOCK_FAULT_IN");

	return strcmp(in ? in : "allreduce", shunt_kind_name(kind)) ? "" : fault();
}

/* ---- messages ---- */

static void put(ncclComm_t c, int channel, int to, const void *data, size_t bytes)
{
	struct box *b = &c->room->box[channel][c->rank][to];
	const char *p = data;

	while (bytes) {
		unsigned long long in = atomic_load(&b->in), room = BOX_BYTES - (in - atomic_load(&b->out));
		size_t at = in % BOX_BYTES, n = bytes < room ? bytes : room;

		n = n < BOX_BYTES - at ? n : BOX_BYTES - at;
		if (!n) {
			sched_yield();
			continue;
		}
		memcpy(b->data + at, p, n);
		atomic_store(&b->in, in + n);
		p += n;
		bytes -= n;
	}
}

static void get(ncclComm_t c, int channel, int from, void *data, size_t bytes)
{
	struct box *b = &c->room->box[channel][from][c->rank];
	char *p = data;

	while (bytes) {
		unsigned long long out = atomic_load(&b->out), there = atomic_load(&b->in) - out;
		size_t at = out % BOX_BYTES, n = bytes < there ? bytes : there;

		n = n < BOX_BYTES - at ? n : BOX_BYTES - at;
		if (!n) {
			sched_yield();
			continue;
		}
		memcpy(p, b->data + at, n);
		atomic_store(&b->out, out + n);
		p += n;
		bytes -= n;
	}
}

/* ---- calls ---- */

static size_t bytes_of(const struct shunt_coll *c)
{
	return c->count * shunt_dtype_bytes[c->dtype];
}

static void job_send(const struct job *j)
{
	const struct shunt_coll *c = &j->coll;
	size_t bytes = bytes_of(c);
	ncclComm_t comm = j->comm;

	for (int to = 0; to < comm->nranks; to++) {
		switch (c->kind) {
		case SHUNT_ALLREDUCE:
		case SHUNT_REDUCE:
		case SHUNT_REDUCESCATTER:
			if (c->kind == SHUNT_REDUCE && to != c->root)
				break;
			put(comm, COLLECTIVE, to, &c->scalar, sizeof(c->scalar));
			put(comm, COLLECTIVE, to, (const char *)c->send + (c->kind == SHUNT_REDUCESCATTER ? (size_t)to * bytes : 0),
				bytes);
			break;
		case SHUNT_BROADCAST:
			if (comm->rank == c->root)
				put(comm, COLLECTIVE, to, c->send, bytes);
			break;
		case SHUNT_ALLGATHER:
			put(comm, COLLECTIVE, to, c->send, bytes);
			break;
		case SHUNT_GATHER:
			if (to == c->root)
				put(comm, COLLECTIVE, to, c->send, bytes);
			break;
		case SHUNT_SCATTER:
			if (comm->rank == c->root)
				put(comm, COLLECTIVE, to, (const char *)c->send + (size_t)to * bytes, bytes);
			break;
		case SHUNT_ALLTOALL:
			put(comm, COLLECTIVE, to, (const char *)c->send + (size_t)to * bytes, bytes);
			break;
		case SHUNT_SEND:
			if (to == c->root)
				put(comm, PEER, to, c->send, bytes);
			break;
		default:
			break;
		}
	}
}

static void reduce(const struct job *j)
{
	const struct shunt_coll *c = &j->coll;
	uint64_t scalar[MAX_RANKS];
	const void *in[MAX_RANKS], *scalars[MAX_RANKS];
	size_t bytes = bytes_of(c);
	int n = j->comm->nranks;

	for (int from = 0; from < n; from++) {
		int at = strcmp(fault_of(c->kind), "reverse") ? from : n - 1 - from;
		void *data = malloc(bytes + 1);

		get(j->comm, COLLECTIVE, from, &scalar[at], sizeof(scalar[at]));
		get(j->comm, COLLECTIVE, from, data, bytes);
		in[at] = data;
		scalars[at] = &scalar[at];
	}
	if (!strcmp(fault_of(c->kind), "hops") && n > 1 && (c->redop == SHUNT_SUM || c->redop == SHUNT_PROD)) {
		for (int i = 1; i < n; i++)
			ref_allreduce(
				c->recv, (const void *[]){i > 1 ? c->recv : in[0], in[i]}, 2, c->count, c->dtype, c->redop, NULL);
	} else {
		ref_allreduce(c->recv, in, n, c->count, c->dtype, c->redop, scalars);
	}
	for (int from = 0; from < n; from++)
		free((void *)in[from]);
}

/* Returns the bytes of the result. */
static size_t job_receive(const struct job *j)
{
	const struct shunt_coll *c = &j->coll;
	size_t bytes = bytes_of(c);

	switch (c->kind) {
	case SHUNT_REDUCE:
		if (j->comm->rank != c->root)
			return 0;
		/* fall through */
	case SHUNT_ALLREDUCE:
	case SHUNT_REDUCESCATTER:
		reduce(j);
		return bytes;
	case SHUNT_BROADCAST:
	case SHUNT_SCATTER:
		get(j->comm, COLLECTIVE, c->root, c->recv, bytes);
		return bytes;
	case SHUNT_GATHER:
		if (j->comm->rank != c->root)
			return 0;
		/* fall through */
	case SHUNT_ALLGATHER:
	case SHUNT_ALLTOALL:
		for (int from = 0; from < j->comm->nranks; from++)
			get(j->comm, COLLECTIVE, from, (char *)c->recv + (size_t)from * bytes, bytes);
		return bytes * (size_t)j->comm->nranks;
	case SHUNT_RECV:
		get(j->comm, PEER, c->root, c->recv, bytes);
		return bytes;
	default:
		return 0;
	}
}

static void misbehave(const struct job *j, size_t bytes)
{
	const char *f = fault_of(j->coll.kind);
	char *recv = j->coll.recv;

	if (j->comm->rank != 1 || bytes < 1024)
		return;
	if (!strcmp(f, "die"))
		raise(SIGSEGV);
	while (!strcmp(f, "hang"))
		sleep(1);
	if (!strcmp(f, "wrong"))
		((unsigned *)recv)[bytes / 8]++;
	if (!strcmp(f, "last"))
		recv[bytes - 1] ^= 1;
	if (!strcmp(f, "beyond"))
		recv[bytes + 3] = 0;
	if (!strcmp(f, "before"))
		recv[-1] = 0;
	if (!strcmp(f, "input") && j->coll.send != j->coll.recv)
		((unsigned *)j->coll.send)[7]++;
}

static void jobs_run(const struct jobs *jobs)
{
	for (size_t i = 0; i < jobs->n; i++)
		job_send(&jobs->v[i]);
	for (size_t i = 0; i < jobs->n; i++)
		misbehave(&jobs->v[i], job_receive(&jobs->v[i]));
}

static void job_add(struct jobs *jobs, const struct job *job)
{
	jobs->v = realloc(jobs->v, (jobs->n + 1) * sizeof(*job));
	jobs->v[jobs->n++] = *job;
}

/* Of one group, or of a call without. A graph is a list of them, apart by a job of no communicator. */
static ncclResult_t jobs_end(struct jobs *jobs)
{
	struct stream *s = jobs->n ? jobs->v[0].coll.stream : NULL;
	int self = 0;

	for (size_t i = 0; i < jobs->n; i++)
		if (jobs->v[i].coll.root == jobs->v[i].comm->rank)
			self += (jobs->v[i].coll.kind == SHUNT_SEND) - (jobs->v[i].coll.kind == SHUNT_RECV);
	if (self)
		return ncclInvalidUsage;
	if (s && s->capturing) {
		for (size_t i = 0; i < jobs->n; i++)
			job_add(s->capturing, &jobs->v[i]);
		job_add(s->capturing, &(struct job){ 0 });
	} else {
		jobs_run(jobs);
	}
	return ncclSuccess;
}

static ncclResult_t check(const struct shunt_coll *c, ncclComm_t comm, uint64_t *scalar_p, enum shunt_redop *redop_p)
{
	const char *f = fault_of(c->kind);
	int op = (int)c->redop;

	if (!strcmp(f, "none"))
		return ncclInvalidUsage;
	if (!comm || c->root < 0 || c->root >= comm->nranks || op < 0)
		return ncclInvalidArgument;
	if ((unsigned)c->dtype >= SHUNT_NDTYPES)
		return !strcmp(f, "code") ? ncclSuccess : ncclInvalidArgument;
	if (!strcmp(f, "fail") && comm->rank == 1 && c->count >= 256)
		return ncclSystemError;
	if (op < ncclNumOps)
		return ncclSuccess;
	op -= ncclNumOps;
	if (op >= MAX_OPS || !comm->ops[op].used || comm->ops[op].dtype != (ncclDataType_t)c->dtype)
		return ncclInvalidArgument;
	*scalar_p = comm->ops[op].scalar;
	*redop_p = SHUNT_PREMUL;
	return ncclSuccess;
}

static ncclResult_t job_call(struct shunt_coll coll, ncclComm_t comm)
{
	struct job job = { coll, comm };
	ncclResult_t result = check(&coll, comm, &job.coll.scalar, &job.coll.redop);

	if (result && group.depth && !group.error)
		group.error = result;
	if (result || (unsigned)coll.dtype >= SHUNT_NDTYPES)
		return result;
	if (!coll.count && coll.kind != SHUNT_SEND && coll.kind != SHUNT_RECV)
		return ncclSuccess;
	if (group.depth) {
		job_add(&group.jobs, &job);
		return ncclSuccess;
	}
	return jobs_end(&(struct jobs){ &job, 1 });
}

#define HEAD const void *send, void *recv, size_t count, ncclDataType_t dtype
#define TAIL ncclComm_t comm, cudaStream_t stream
#define ENTRY(name, kind_, params, ...)                                                                                            \
	EXPORT ncclResult_t nccl##name params                                                                                      \
	{                                                                                                                          \
		return job_call(                                                                                                   \
			(struct shunt_coll){                                                                                           \
				.kind = kind_, .count = count, .dtype = (enum shunt_dtype)dtype, .stream = stream, __VA_ARGS__},           \
			comm);                                                                                                         \
	}
#define BOTH .send = send, .recv = recv
ENTRY(AllReduce, SHUNT_ALLREDUCE, (HEAD, ncclRedOp_t op, TAIL), BOTH, .redop = (enum shunt_redop)op)
ENTRY(Reduce, SHUNT_REDUCE, (HEAD, ncclRedOp_t op, int root, TAIL), BOTH, .redop = (enum shunt_redop)op, .root = root)
ENTRY(ReduceScatter, SHUNT_REDUCESCATTER, (HEAD, ncclRedOp_t op, TAIL), BOTH, .redop = (enum shunt_redop)op)
ENTRY(AllGather, SHUNT_ALLGATHER, (HEAD, TAIL), BOTH)
ENTRY(AlltoAll, SHUNT_ALLTOALL, (HEAD, TAIL), BOTH)
ENTRY(Broadcast, SHUNT_BROADCAST, (HEAD, int root, TAIL), BOTH, .root = root)
ENTRY(Gather, SHUNT_GATHER, (HEAD, int root, TAIL), BOTH, .root = root)
ENTRY(Scatter, SHUNT_SCATTER, (HEAD, int root, TAIL), BOTH, .root = root)
ENTRY(
	Bcast, SHUNT_BROADCAST, (void *buf, size_t count, ncclDataType_t dtype, int root, TAIL), .send = buf, .recv = buf, .root = root)
ENTRY(Send, SHUNT_SEND, (const void *send, size_t count, ncclDataType_t dtype, int peer, TAIL), .send = send, .root = peer)
ENTRY(Recv, SHUNT_RECV, (void *recv, size_t count, ncclDataType_t dtype, int peer, TAIL), .recv = recv, .root = peer)

EXPORT ncclResult_t ncclGroupStart(void)
{
	group.depth++;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
	ncclResult_t result = group.error;

	if (!group.depth)
		return ncclInvalidUsage;
	if (--group.depth)
		return ncclSuccess;
	if (!result)
		result = jobs_end(&group.jobs);
	else if (!strcmp(fault(), "group"))
		result = ncclSuccess;
	free(group.jobs.v);
	memset(&group, 0, sizeof(group));
	return result;
}

EXPORT ncclResult_t ncclRedOpCreatePreMulSum(
	ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t where, ncclComm_t comm)
{
	if (!comm || where != ncclScalarHostImmediate || (unsigned)dtype >= SHUNT_NDTYPES)
		return ncclInvalidArgument;
	for (int i = 0; i < MAX_OPS; i++) {
		if (comm->ops[i].used)
			continue;
		comm->ops[i] = (struct op){ .used = true, .dtype = dtype };
		memcpy(&comm->ops[i].scalar, scalar, shunt_dtype_bytes[dtype]);
		*op = (ncclRedOp_t)(ncclNumOps + i);
		return ncclSuccess;
	}
	return ncclInternalError;
}

EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	int i = (int)op - ncclNumOps;

	if (i < 0 || i >= MAX_OPS || !comm->ops[i].used)
		return ncclInvalidArgument;
	comm->ops[i].used = false;
	return ncclSuccess;
}

/* ---- communicators ---- */

EXPORT ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return ncclInvalidArgument;
	*version = 22809;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	unsigned long long number;

	if (!id)
		return ncclInvalidArgument;
	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return ncclSystemError;
	memset(id, 0, sizeof(*id));
	snprintf(id->internal, sizeof(id->internal), "/dev/shm/shunt-mock-%llx", number);
	return ncclSuccess;
}

static void wait_all(ncclComm_t c)
{
	char byte = 0;

	for (int r = 0; r < c->nranks; r++)
		put(c, COLLECTIVE, r, &byte, 1);
	for (int r = 0; r < c->nranks; r++)
		get(c, COLLECTIVE, r, &byte, 1);
}

static ncclResult_t join(ncclComm_t *comm_p, const char *name, int rank, int nranks)
{
	ncclComm_t c = calloc(1, sizeof(*c));
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (!c || fd < 0 || nranks > MAX_RANKS || ftruncate(fd, sizeof(struct room)))
		return ncclSystemError;
	snprintf(c->name, sizeof(c->name), "%s", name);
	c->rank = rank;
	c->nranks = nranks;
	c->room = mmap(NULL, sizeof(struct room), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	close(fd);
	if (c->room == MAP_FAILED)
		return ncclSystemError;
	wait_all(c);
	if (!rank)
		unlink(name);
	*comm_p = c;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm_p, int nranks, ncclUniqueId id, int rank)
{
	if (!comm_p || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	return join(comm_p, id.internal, rank, nranks);
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *comm_p, ncclConfig_t *config)
{
	int mine[2] = { color, key }, all[MAX_RANKS][2], rank = 0, nranks = 0;
	char name[160];

	for (int r = 0; r < comm->nranks; r++)
		put(comm, COLLECTIVE, r, mine, sizeof(mine));
	for (int r = 0; r < comm->nranks; r++)
		get(comm, COLLECTIVE, r, all[r], sizeof(all[r]));
	for (int r = 0; r < comm->nranks; r++) {
		nranks += all[r][0] == color;
		rank += all[r][0] == color && (all[r][1] < key || (all[r][1] == key && r < comm->rank));
	}
	snprintf(name, sizeof(name), "%s-%d-%d", comm->name, comm->splits++, color);
	return join(comm_p, name, rank, nranks);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	munmap(comm->room, sizeof(struct room));
	free(comm);
	return ncclSuccess;
}

static ncclResult_t number(ncclComm_t comm, int value, int *value_p)
{
	if (!comm || !value_p)
		return ncclInvalidArgument;
	*value_p = value;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return number(comm, comm ? comm->nranks : 0, count);
}

EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return number(comm, comm ? comm->rank : 0, rank);
}

EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return number(comm, comm ? comm->rank : 0, device);
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	if (!comm || !state)
		return ncclInvalidArgument;
	*state = ncclSuccess;
	return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
	return result ? "mock error" : "no error";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
	return "because it was told to";
}

EXPORT const char *shunt_version(void)
{
	return "mock";
}

EXPORT const char *shunt_real_nccl_path(void)
{
	return getenv("MOCK_REAL");
}

EXPORT int shunt_counters(const void *comm, struct shunt_counter *rows, size_t cap, size_t *count_p)
{
	rows[0] = (struct shunt_counter){ "allreduce", "mock", "", 7, 1234 };
	*count_p = 1;
	return 0;
}

EXPORT int shunt_path_of(const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p)
{
	*path_p = count < 256 ? "small" : "large";
	return 0;
}

EXPORT const char *shunt_device_kind(void)
{
	return "sim";
}

EXPORT int shunt_device_name(int device, char *name, size_t bytes)
{
	snprintf(name, bytes, "mock device");
	return 0;
}

EXPORT int shunt_device_count(int *count_p)
{
	*count_p = MAX_RANKS;
	return 0;
}

EXPORT int shunt_device_set(int device)
{
	return device < MAX_RANKS ? 0 : -ENODEV;
}

EXPORT int shunt_stream_create(void **stream_p)
{
	*stream_p = calloc(1, sizeof(struct stream));
	return *stream_p ? 0 : -ENOMEM;
}

EXPORT int shunt_stream_synchronize(void *stream)
{
	return 0;
}

EXPORT int shunt_stream_destroy(void *stream)
{
	free(stream);
	return 0;
}

EXPORT int shunt_malloc(void **ptr_p, size_t bytes)
{
	*ptr_p = malloc(bytes);
	return *ptr_p ? 0 : -ENOMEM;
}

EXPORT int shunt_free(void *ptr)
{
	free(ptr);
	return 0;
}

EXPORT int shunt_memcpy(void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
	return 0;
}

EXPORT int shunt_memset_async(void *dst, int value, size_t bytes, void *stream)
{
	memset(dst, value, bytes);
	return 0;
}

EXPORT int shunt_mem_info(size_t *free_p, size_t *total_p)
{
	*free_p = *total_p = 0;
	return 0;
}

EXPORT int shunt_capture_begin(void *stream)
{
	struct stream *s = stream;

	s->capturing = calloc(1, sizeof(*s->capturing));
	return s->capturing ? 0 : -ENOMEM;
}

EXPORT int shunt_capture_end(void *stream, void **graph_p)
{
	struct stream *s = stream;

	*graph_p = s->capturing;
	s->capturing = NULL;
	return 0;
}

EXPORT int shunt_graph_launch(void *graph, void *stream)
{
	const struct jobs *g = graph;

	for (size_t first = 0, i = 0; i < g->n; i++) {
		if (g->v[i].comm)
			continue;
		jobs_run(&(struct jobs){ g->v + first, i - first });
		first = i + 1;
	}
	return 0;
}

EXPORT int shunt_graph_destroy(void *graph)
{
	struct jobs *g = graph;

	free(g->v);
	free(g);
	return 0;
}

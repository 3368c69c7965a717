/* SPDX-License-Identifier: MIT */
/*
 * A library that shunt bench and shunt conform take for libshunt.so: "devices" whose memory is malloc's, streams that
 * run at once, and every data call of NCCL's in the plainest way: each is a set of messages through boxes in a file in
 * /dev/shm, in a group first all that are sent and then all that are received.
 *
 * MOCK_FAULT makes rank 1 misbehave in calls of MOCK_FAULT_IN (a name of shunt_kind_name's; allreduce) that have a
 * result of 1024 bytes or more: die, hang, broken (as wrong, and the communicator says that it has an error), wrong
 * (one element), last (one bit of the last element), beyond (writes behind the result), before (in front of it), input
 * (writes to the input), fail (an error code). On all ranks: none (that call is "invalid usage"), fail_all (an error
 * code), code (an unknown data type is taken), group (the group's end forgets its error), reverse (it reduces from the
 * last rank to the first), hops (sums and products are rounded after every rank), size (as reverse, in large calls
 * only), launch (a simulated group is launched), ties (a split puts equal keys in the wrong order), scalar (a device
 * scalar is read when the operator is made), leak (a communicator leaves a descriptor behind). With MOCK_FAULT_FILE
 * only in the library whose path contains it. MOCK_REAL: what shunt_real_nccl_path says, MOCK_PATH: the path of all
 * calls ("small" or "large", by their count), MOCK_KIND: shunt_device_kind ("sim"). MOCK_WINDOW: none (registering a
 * buffer gives no window), fail (on rank 1). A buffer that is freed while it is registered, or a window that stays,
 * ends the process. Compiled with MOCK_OLD it is a library that lacks the calls of later versions.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include "base/coll.h"
#include "tools/common/reference.h"
#include "shim/nccl/abi.h"
#include "shim/nccl/coll_params.h"
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"

#define EXPORT __attribute__((visibility("default")))
enum { FIFO_BYTES = 4 << 20, MAX_RANKS = 8, MAX_OPS = 16 };
enum { COLL_CHANNEL, P2P_CHANNEL, NCHANNELS }; /* two orders of messages that do not mix */

/* Bytes from one rank to another. */
struct fifo {
	atomic_ullong in, out;
	char data[FIFO_BYTES];
};

struct comm_shm {
	struct fifo fifo[NCHANNELS][MAX_RANKS][MAX_RANKS]; /* from, to */
};

struct op {
	bool used;
	ncclDataType_t dtype;
	uint64_t scalar;
	const void *scalar_at; /* device scalar */
};

struct ncclComm {
	int rank, nranks, device, splits, shrinks;
	int windows; /* that are registered with it */
	bool async;
	int in_progress; /* how often ncclCommGetAsyncError says "in progress" still */
	bool broken;     /* it says that there is an error */
	char name[200];
	struct comm_shm *shm;
	struct op ops[MAX_OPS];
	struct {
		uint64_t calls, bytes;
	} counters[SHUNT_NKINDS][2]; /* small and large ones */
};

struct call {
	struct shunt_coll coll;
	ncclComm_t comm;
	const void *scalar_at;
};

struct calls {
	struct call *v;
	size_t n;
};

struct stream {
	struct calls *capturing;
	unsigned synchronized;
};

/* Not complete before the stream is synchronised. */
struct event {
	struct stream *stream;
	unsigned synchronized;
	double us;
};

/* A communicator that a call, or a group of calls, makes. */
struct comm_init {
	ncclComm_t *comm_p, comm, parent; /* parent: the others' votes say rank and nranks */
	int color, key;
	char name[256];
	int rank, nranks, device;
	bool async;
};

struct comm_inits {
	struct comm_init *v;
	size_t n;
};

static _Thread_local struct {
	int depth;
	ncclResult_t error;
	struct calls calls;
	struct comm_inits comm_inits;
} group;
static _Thread_local int device;

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

/* Another rank is to do something; the tool ends it if it does not. Ranks share few CPUs. */
static void await_rank(unsigned *looks)
{
	if (++*looks < 20)
		sched_yield();
	else
		pause_us(PAUSE_POLL, 50);
}

static void fifo_put(ncclComm_t c, int channel, int to, const void *data, size_t bytes)
{
	struct fifo *b = &c->shm->fifo[channel][c->rank][to];
	const char *p = data;
	unsigned looks = 0;

	while (bytes) {
		unsigned long long in = atomic_load(&b->in), room = FIFO_BYTES - (in - atomic_load(&b->out));
		size_t at = in % FIFO_BYTES, n = bytes < room ? bytes : room;

		n = n < FIFO_BYTES - at ? n : FIFO_BYTES - at;
		if (!n) {
			await_rank(&looks);
			continue;
		}
		memcpy(b->data + at, p, n);
		atomic_store(&b->in, in + n);
		p += n;
		bytes -= n;
		looks = 0;
	}
}

static void fifo_get(ncclComm_t c, int channel, int from, void *data, size_t bytes)
{
	struct fifo *b = &c->shm->fifo[channel][from][c->rank];
	char *p = data;
	unsigned looks = 0;

	while (bytes) {
		unsigned long long out = atomic_load(&b->out), there = atomic_load(&b->in) - out;
		size_t at = out % FIFO_BYTES, n = bytes < there ? bytes : there;

		n = n < FIFO_BYTES - at ? n : FIFO_BYTES - at;
		if (!n) {
			await_rank(&looks);
			continue;
		}
		memcpy(p, b->data + at, n);
		atomic_store(&b->out, out + n);
		p += n;
		bytes -= n;
		looks = 0;
	}
}

/* ---- calls ---- */

static size_t bytes_of(const struct shunt_coll *c)
{
	return c->count * shunt_dtype_bytes[c->dtype];
}

/* What a rank sends beside its input to a reduction: its factor, in 8 bytes. */
static void scalar_send(const struct call *j, int to)
{
	const struct shunt_coll *c = &j->coll;
	size_t bytes = j->scalar_at ? shunt_dtype_bytes[c->dtype] : sizeof(c->scalar);

	fifo_put(j->comm, COLL_CHANNEL, to, j->scalar_at ? j->scalar_at : &c->scalar, bytes);
	fifo_put(j->comm, COLL_CHANNEL, to, &(uint64_t){ 0 }, sizeof(c->scalar) - bytes);
}

static void call_send(const struct call *j)
{
	const struct shunt_coll *c = &j->coll;
	size_t bytes = bytes_of(c);
	ncclComm_t comm = j->comm;

	if (c->kind == SHUNT_SEND)
		fifo_put(comm, P2P_CHANNEL, c->root, c->send, bytes);
	if (shunt_kind_is_p2p(c->kind) || !shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, comm->rank == c->root))
		return;
	for (int to = 0; to < comm->nranks; to++) {
		if (!shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, to == c->root))
			continue;
		if (shunt_kind_reduces(c->kind))
			scalar_send(j, to);
		fifo_put(comm, COLL_CHANNEL, to,
		    (const char *)c->send + shunt_kind_part_of(c->kind, SHUNT_SIDE_SEND, to) * bytes, bytes);
	}
}

static void reduce(const struct call *j)
{
	const struct shunt_coll *c = &j->coll;
	uint64_t scalar[MAX_RANKS];
	const void *in[MAX_RANKS], *scalars[MAX_RANKS];
	size_t bytes = bytes_of(c);
	int n = j->comm->nranks;
	const char *f = fault_of(c->kind);
	bool reverse = !strcmp(f, "reverse") || (!strcmp(f, "size") && c->count > 4000);

	for (int from = 0; from < n; from++) {
		int at = reverse ? n - 1 - from : from;
		void *data = malloc(bytes + 1);

		fifo_get(j->comm, COLL_CHANNEL, from, &scalar[at], sizeof(scalar[at]));
		fifo_get(j->comm, COLL_CHANNEL, from, data, bytes);
		in[at] = data;
		scalars[at] = &scalar[at];
	}
	if (!strcmp(fault_of(c->kind), "hops") && n > 1 && (c->redop == SHUNT_SUM || c->redop == SHUNT_PROD)) {
		for (int i = 1; i < n; i++)
			ref_allreduce(c->recv, (const void *[]){ i > 1 ? c->recv : in[0], in[i] }, 2, c->count,
			    c->dtype, c->redop, NULL);
	} else {
		ref_allreduce(c->recv, in, n, c->count, c->dtype, c->redop, scalars);
	}
	for (int from = 0; from < n; from++)
		free((void *)in[from]);
}

/* Returns the bytes of the result. */
static size_t call_receive(const struct call *j)
{
	const struct shunt_coll *c = &j->coll;
	size_t bytes = bytes_of(c);

	if (c->kind == SHUNT_RECV)
		fifo_get(j->comm, P2P_CHANNEL, c->root, c->recv, bytes);
	else if (!shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, j->comm->rank == c->root))
		return 0;
	else if (shunt_kind_reduces(c->kind))
		reduce(j);
	else
		for (int from = 0; from < j->comm->nranks; from++)
			if (shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, from == c->root))
				fifo_get(j->comm, COLL_CHANNEL, from,
				    (char *)c->recv + shunt_kind_part_of(c->kind, SHUNT_SIDE_RECV, from) * bytes,
				    bytes);
	return bytes * shunt_kind_parts(c->kind, SHUNT_SIDE_RECV, j->comm->nranks);
}

static void fault_inject(const struct call *j, size_t bytes)
{
	const char *f = fault_of(j->coll.kind);
	char *recv = j->coll.recv;

	if (j->comm->rank != 1 || bytes < 1024)
		return;
	if (!strcmp(f, "die"))
		raise(SIGSEGV);
	while (!strcmp(f, "hang"))
		pause_us(PAUSE_LATE, 1000000);
	if (!strcmp(f, "broken"))
		j->comm->broken = true;
	if (!strcmp(f, "wrong") || !strcmp(f, "broken"))
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

static void calls_run(const struct calls *calls)
{
	for (size_t i = 0; i < calls->n; i++)
		call_send(&calls->v[i]);
	for (size_t i = 0; i < calls->n; i++)
		fault_inject(&calls->v[i], call_receive(&calls->v[i]));
}

static void call_add(struct calls *calls, const struct call *call)
{
	calls->v = realloc(calls->v, (calls->n + 1) * sizeof(*call));
	calls->v[calls->n++] = *call;
}

static ncclResult_t in_progress(ncclComm_t comm)
{
	if (!comm->async)
		return ncclSuccess;
	comm->in_progress = 2;
	return ncclInProgress;
}

/* Of one group, or of a call without. A graph is a list of them, apart by a call of no communicator. */
static ncclResult_t calls_launch(struct calls *calls)
{
	struct stream *s = calls->n ? calls->v[0].coll.stream : NULL;
	ncclResult_t result = ncclSuccess;
	long long self = 0;

	for (size_t i = 0; i < calls->n; i++) {
		const struct shunt_coll *c = &calls->v[i].coll;

		if (c->root == calls->v[i].comm->rank)
			self += ((long long)bytes_of(c) + 1) * ((c->kind == SHUNT_SEND) - (c->kind == SHUNT_RECV));
		if (in_progress(calls->v[i].comm))
			result = ncclInProgress;
	}
	if (self)
		return ncclInvalidUsage;
	if (s && s->capturing) {
		for (size_t i = 0; i < calls->n; i++)
			call_add(s->capturing, &calls->v[i]);
		call_add(s->capturing, &(struct call){ 0 });
	} else {
		calls_run(calls);
	}
	return result;
}

static ncclResult_t check(const struct shunt_coll *c, ncclComm_t comm, uint64_t *scalar_p, const void **scalar_at_p,
    enum shunt_redop *redop_p)
{
	const char *f = fault_of(c->kind);
	int op = (int)c->redop;

	if (!strcmp(f, "none"))
		return ncclInvalidUsage;
	if (!comm || c->root < 0 || c->root >= comm->nranks || op < 0)
		return ncclInvalidArgument;
	if ((unsigned)c->dtype >= SHUNT_NDTYPES)
		return !strcmp(f, "code") ? ncclSuccess : ncclInvalidArgument;
	if (c->count >= 256 && ((!strcmp(f, "fail") && comm->rank == 1) || !strcmp(f, "fail_all")))
		return ncclSystemError;
	if (op < ncclNumOps)
		return ncclSuccess;
	op -= ncclNumOps;
	if (op >= MAX_OPS || !comm->ops[op].used || comm->ops[op].dtype != (ncclDataType_t)c->dtype)
		return ncclInvalidArgument;
	*scalar_p = comm->ops[op].scalar;
	*scalar_at_p = comm->ops[op].scalar_at;
	*redop_p = SHUNT_PREMUL;
	return ncclSuccess;
}

static bool is_large(size_t count)
{
	return count >= 256;
}

static const char *path_name(bool large)
{
	return getenv("MOCK_PATH") ? getenv("MOCK_PATH") : large ? "large" : "small";
}

static ncclResult_t call_enqueue(struct shunt_coll coll, ncclComm_t comm)
{
	struct call call = { coll, comm, NULL };
	ncclResult_t result = check(&coll, comm, &call.coll.scalar, &call.scalar_at, &call.coll.redop);

	if (result && group.depth && !group.error)
		group.error = result;
	if (result || (unsigned)coll.dtype >= SHUNT_NDTYPES)
		return result;
	if (!coll.count && coll.kind != SHUNT_SEND && coll.kind != SHUNT_RECV)
		return ncclSuccess;
	comm->counters[coll.kind][is_large(coll.count)].calls++;
	comm->counters[coll.kind][is_large(coll.count)].bytes += coll.count * shunt_dtype_bytes[coll.dtype];
	if (group.depth) {
		call_add(&group.calls, &call);
		return ncclSuccess;
	}
	return calls_launch(&(struct calls){ &call, 1 });
}

/* The arguments of a collective; a default for what it has not. */
struct values {
	const void *send;
	void *recv;
	size_t count;
	ncclDataType_t dtype;
	ncclRedOp_t op;
	int root;
};

static ncclResult_t values_enqueue(enum shunt_kind kind, struct values v, ncclComm_t comm, cudaStream_t stream)
{
	return call_enqueue((struct shunt_coll){ .kind = kind,
	                        .send = v.send,
	                        .recv = v.recv,
	                        .count = v.count,
	                        .dtype = (enum shunt_dtype)v.dtype,
	                        .redop = (enum shunt_redop)v.op,
	                        .root = v.root,
	                        .stream = stream },
	    comm);
}

#define ENTRY(id, text, long_text, name, ranks, sends, recvs, operator, ...) \
	EXPORT ncclResult_t nccl##name(SHUNT_COLL_PARAMS(ranks, operator)) \
	{ \
		return values_enqueue( \
		    SHUNT_##id, (struct values){ SHUNT_COLL_VALUES(ranks, operator) }, comm, stream); \
	}
SHUNT_COLLECTIVE_LIST(ENTRY)

EXPORT ncclResult_t ncclBcast(
    void *buf, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	return values_enqueue(SHUNT_BROADCAST, (struct values){ buf, buf, count, dtype, ncclSum, root }, comm, stream);
}

#ifndef MOCK_OLD
/* Configured calls are plain ones; the configuration has to be one. */
#define CONFIGURED(name, ranks, operator) \
	EXPORT ncclResult_t nccl##name##Config(SHUNT_COLL_PARAMS(ranks, operator), const ncclCollConfig_t *config) \
	{ \
		if (config && (config->size != sizeof(*config) || config->magic != SHUNT_NCCL_CONFIG_MAGIC)) \
			return ncclInvalidArgument; \
		return nccl##name(SHUNT_COLL_ARGS(ranks, operator)); \
	}
#define ROW(id, text, long_text, name, ranks, sends, recvs, operator, ...) \
	SHUNT_IF_CONFIG(ranks, CONFIGURED(name, ranks, operator))
SHUNT_COLLECTIVE_LIST(ROW)
#undef ROW
#endif

EXPORT ncclResult_t ncclGroupStart(void)
{
	group.depth++;
	return ncclSuccess;
}

static ncclResult_t comm_inits_run(struct comm_inits *comm_inits);

static ncclResult_t group_end(bool launch)
{
	ncclResult_t result = group.error, born = ncclSuccess;

	if (!group.depth)
		return ncclInvalidUsage;
	if (--group.depth)
		return ncclSuccess;
	if (!result && launch)
		born = comm_inits_run(&group.comm_inits);
	if (!result && launch)
		result = calls_launch(&group.calls);
	else if (result && !strcmp(fault(), "group"))
		result = ncclSuccess;
	free(group.calls.v);
	free(group.comm_inits.v);
	memset(&group, 0, sizeof(group));
	return result ? result : born;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
	return group_end(true);
}

#ifndef MOCK_OLD
EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	if (group.depth == 1 && info && info->magic != SHUNT_NCCL_SIM_MAGIC && !group.error)
		group.error = ncclInvalidArgument;
	return group_end(!strcmp(fault(), "launch"));
}
#endif

EXPORT ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t where, ncclComm_t comm)
{
	if (!comm || !op || !scalar || (unsigned)dtype >= SHUNT_NDTYPES)
		return ncclInvalidArgument;
	for (int i = 0; i < MAX_OPS; i++) {
		if (comm->ops[i].used)
			continue;
		comm->ops[i] = (struct op){ .used = true, .dtype = dtype };
		memcpy(&comm->ops[i].scalar, scalar, shunt_dtype_bytes[dtype]);
		if (where == ncclScalarDevice && strcmp(fault(), "scalar"))
			comm->ops[i].scalar_at = scalar;
		*op = (ncclRedOp_t)(ncclNumOps + i);
		return ncclSuccess;
	}
	return ncclInternalError;
}

EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	int i = (int)op - ncclNumOps;

	if (!comm || i < 0 || i >= MAX_OPS || !comm->ops[i].used)
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
	unsigned long long value_get;

	if (!id)
		return ncclInvalidArgument;
	if (getrandom(&value_get, sizeof(value_get), 0) != sizeof(value_get))
		return ncclSystemError;
	memset(id, 0, sizeof(*id));
	snprintf(id->internal, sizeof(id->internal), "/dev/shm/shunt-mock-%llx", value_get);
	return ncclSuccess;
}

static void split_votes_count(struct comm_init *b)
{
	ncclComm_t parent = b->parent;
	int votes[MAX_RANKS][2];

	for (int r = 0; r < parent->nranks; r++)
		fifo_get(parent, COLL_CHANNEL, r, votes[r], sizeof(votes[r]));
	for (int r = 0; r < parent->nranks; r++) {
		bool tie = votes[r][1] == b->key && (strcmp(fault(), "ties") ? r < parent->rank : r > parent->rank);

		b->nranks += votes[r][0] == b->color;
		b->rank += votes[r][0] == b->color && (votes[r][1] < b->key || tie);
	}
}

static ncclResult_t comm_join(struct comm_init *b)
{
	ncclComm_t c = calloc(1, sizeof(*c));
	int fd = open(b->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (!c || fd < 0 || b->nranks > MAX_RANKS || ftruncate(fd, sizeof(struct comm_shm)))
		return ncclSystemError;
	snprintf(c->name, sizeof(c->name), "%.199s", b->name);
	c->rank = b->rank;
	c->nranks = b->nranks;
	c->device = b->device;
	c->async = b->async;
	c->shm = mmap(NULL, sizeof(struct comm_shm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	close(fd);
	if (c->shm == MAP_FAILED)
		return ncclSystemError;
	b->comm = c;
	return ncclSuccess;
}

/* All of a group at once, in steps: one thread may make several ranks of a communicator. */
static ncclResult_t comm_inits_run(struct comm_inits *comm_inits)
{
	ncclResult_t result = ncclSuccess;
	char byte = 0;

	for (size_t i = 0; i < comm_inits->n; i++)
		for (int r = 0; comm_inits->v[i].parent && r < comm_inits->v[i].parent->nranks; r++)
			fifo_put(comm_inits->v[i].parent, COLL_CHANNEL, r,
			    (int[]){ comm_inits->v[i].color, comm_inits->v[i].key }, 2 * sizeof(int));
	for (size_t i = 0; i < comm_inits->n; i++)
		if (comm_inits->v[i].parent)
			split_votes_count(&comm_inits->v[i]);
	for (size_t i = 0; i < comm_inits->n; i++)
		if (comm_inits->v[i].color != NCCL_SPLIT_NOCOLOR && comm_join(&comm_inits->v[i]))
			return ncclSystemError;
	for (size_t i = 0; i < comm_inits->n; i++)
		for (int r = 0; comm_inits->v[i].comm && r < comm_inits->v[i].nranks; r++)
			fifo_put(comm_inits->v[i].comm, COLL_CHANNEL, r, &byte, 1);
	for (size_t i = 0; i < comm_inits->n; i++) {
		struct comm_init *b = &comm_inits->v[i];

		for (int r = 0; b->comm && r < b->nranks; r++)
			fifo_get(b->comm, COLL_CHANNEL, r, &byte, 1);
		if (b->comm && !b->rank)
			unlink(b->name);
		*b->comm_p = b->comm;
		if (b->comm && in_progress(b->comm))
			result = ncclInProgress;
		if (b->parent && in_progress(b->parent))
			result = ncclInProgress;
	}
	return result;
}

static ncclResult_t comm_init_add(const struct comm_init *b)
{
	struct comm_init only = *b;

	if (!group.depth)
		return comm_inits_run(&(struct comm_inits){ &only, 1 });
	group.comm_inits.v = realloc(group.comm_inits.v, (group.comm_inits.n + 1) * sizeof(*b));
	group.comm_inits.v[group.comm_inits.n++] = *b;
	return ncclSuccess;
}

static struct comm_init comm_init_of_id(ncclComm_t *comm_p, int nranks, const ncclUniqueId *id, int rank)
{
	struct comm_init b = { .comm_p = comm_p, .rank = rank, .nranks = nranks, .device = device };

	snprintf(b.name, sizeof(b.name), "%.96s", id->internal);
	return b;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm_p, int nranks, ncclUniqueId id, int rank)
{
	struct comm_init b;

	if (!comm_p || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	b = comm_init_of_id(comm_p, nranks, &id, rank);
	return comm_init_add(&b);
}

EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
	struct comm_init v[MAX_RANKS];
	ncclUniqueId id;

	if (!comms || n < 1 || n > MAX_RANKS)
		return ncclInvalidArgument;
	for (int i = 0; i < n && devices; i++) {
		if (devices[i] < 0 || devices[i] >= MAX_RANKS)
			return ncclInvalidArgument;
		for (int k = 0; k < i; k++)
			if (devices[k] == devices[i])
				return ncclInvalidUsage;
	}
	ncclGetUniqueId(&id);
	for (int i = 0; i < n; i++) {
		v[i] = comm_init_of_id(&comms[i], n, &id, i);
		v[i].device = devices ? devices[i] : i;
	}
	return comm_inits_run(&(struct comm_inits){ v, (size_t)n });
}

#ifndef MOCK_OLD
EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *comm_p, ncclConfig_t *config)
{
	struct comm_init b;

	if (!comm || !comm_p)
		return ncclInvalidArgument;
	b = (struct comm_init){ .comm_p = comm_p,
		.parent = comm,
		.color = color,
		.key = key,
		.device = comm->device,
		.async = comm->async };
	snprintf(b.name, sizeof(b.name), "%s-%d-%d", comm->name, comm->splits++, color);
	return comm_init_add(&b);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *comm_p, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct comm_init b;

	if (!comm_p || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	if (config &&
	    (config->magic != SHUNT_NCCL_CONFIG_MAGIC ||
	        (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)))
		return ncclInvalidArgument;
	b = comm_init_of_id(comm_p, nranks, &id, rank);
	b.async = config && !config->blocking;
	return comm_init_add(&b);
}

EXPORT ncclResult_t ncclCommShrink(
    ncclComm_t comm, int *excluded, int n, ncclComm_t *comm_p, ncclConfig_t *config, int flags)
{
	struct comm_init b;

	if (!comm || !comm_p || !excluded || n < 1)
		return ncclInvalidArgument;
	b = (struct comm_init){ .comm_p = comm_p,
		.rank = comm->rank,
		.nranks = comm->nranks - n,
		.device = comm->device,
		.async = comm->async };
	for (int i = 0; i < n; i++)
		b.rank -= excluded[i] < comm->rank;
	snprintf(b.name, sizeof(b.name), "%s-shrunk%d", comm->name, comm->shrinks++);
	return comm_init_add(&b);
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	return ncclSuccess;
}
#endif

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	if (comm->windows)
		abort();
	munmap(comm->shm, sizeof(struct comm_shm));
	free(comm);
	if (!strcmp(fault(), "leak"))
		open("/dev/null", O_RDONLY | O_CLOEXEC);
	return ncclSuccess;
}

static ncclResult_t value_get(ncclComm_t comm, int value, int *value_p)
{
	if (!comm || !value_p)
		return ncclInvalidArgument;
	*value_p = value;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return value_get(comm, comm ? comm->nranks : 0, count);
}

EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return value_get(comm, comm ? comm->rank : 0, rank);
}

EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device_p)
{
	return value_get(comm, comm ? comm->device : 0, device_p);
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	if (!comm || !state)
		return ncclInvalidArgument;
	*state = comm->broken ? ncclRemoteError : comm->in_progress ? ncclInProgress : ncclSuccess;
	comm->in_progress -= comm->in_progress > 0;
	return ncclSuccess;
}

#ifndef MOCK_OLD
/* Memory of ncclMemAlloc begins with a header, so that other memory is seen. */
struct allocation {
	alignas(64) uint64_t magic;
	unsigned windows;
};
#define ALLOCATED 0x6d6f636b6d656dull

static struct allocation *allocation_find(void *ptr)
{
	struct allocation *a = (struct allocation *)ptr - 1;

	if (a->magic != ALLOCATED)
		abort();
	return a;
}

EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	struct allocation *a = aligned_alloc(64, (sizeof(*a) + size + 63) / 64 * 64);

	if (!a)
		return ncclSystemError;
	*a = (struct allocation){ .magic = ALLOCATED };
	*ptr = a + 1;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *ptr)
{
	struct allocation *a = allocation_find(ptr);

	if (a->windows)
		abort();
	a->magic = 0;
	free(a);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	const char *how = getenv("MOCK_WINDOW");

	*win = NULL;
	if (flags != NCCL_WIN_COLL_SYMMETRIC || size % 4096)
		return ncclInvalidArgument;
	if (how && !strcmp(how, "fail") && comm->rank == 1)
		return ncclInvalidUsage;
	if (how && !strcmp(how, "none"))
		return ncclSuccess;
	allocation_find(buff)->windows++;
	comm->windows++;
	*win = (ncclWindow_t)allocation_find(buff);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	((struct allocation *)win)->windows--;
	comm->windows--;
	return ncclSuccess;
}
#endif

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
	const struct ncclComm *c = comm;
	size_t n = 0;

	for (int kind = 0; kind < SHUNT_NKINDS; kind++)
		for (int large = 0; large < 2; large++)
			if (c->counters[kind][large].calls && n++ < cap)
				rows[n - 1] =
				    (struct shunt_counter){ shunt_kind_name((enum shunt_kind)kind), path_name(large),
					    "", c->counters[kind][large].calls, c->counters[kind][large].bytes };
	*count_p = n;
	return 0;
}

EXPORT int shunt_path_of(const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p)
{
	*path_p = path_name(is_large(count));
	return 0;
}

EXPORT const char *shunt_device_kind(void)
{
	return getenv("MOCK_KIND") ? getenv("MOCK_KIND") : "sim";
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

EXPORT int shunt_device_set(int wanted)
{
	if (wanted >= MAX_RANKS)
		return -ENODEV;
	device = wanted;
	return 0;
}

EXPORT int shunt_stream_create(void **stream_p)
{
	*stream_p = calloc(1, sizeof(struct stream));
	return *stream_p ? 0 : -ENOMEM;
}

EXPORT int shunt_stream_synchronize(void *stream)
{
	if (stream)
		((struct stream *)stream)->synchronized++;
	return 0;
}

EXPORT int shunt_event_create(void **event_p)
{
	*event_p = calloc(1, sizeof(struct event));
	return *event_p ? 0 : -ENOMEM;
}

EXPORT int shunt_event_record(void *event, void *stream)
{
	struct event *e = event;
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	e->stream = stream;
	e->synchronized = e->stream->synchronized;
	e->us = (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
	return 0;
}

EXPORT int shunt_event_elapsed_us(void *start, void *stop, float *us_p)
{
	struct event *from = start, *to = stop;

	if (to->stream->synchronized == to->synchronized)
		return -EAGAIN;
	*us_p = (float)(to->us - from->us);
	return 0;
}

EXPORT int shunt_event_destroy(void *event)
{
	free(event);
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
	const struct calls *g = graph;

	for (size_t first = 0, i = 0; i < g->n; i++) {
		if (g->v[i].comm)
			continue;
		calls_run(&(struct calls){ g->v + first, i - first });
		first = i + 1;
	}
	return 0;
}

EXPORT int shunt_graph_destroy(void *graph)
{
	struct calls *g = graph;

	free(g->v);
	free(g);
	return 0;
}

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
#include "tests/tools/mock.h"
#include <sched.h>
#include "tools/common/libc.h"
#include "tools/common/reference.h"
#include "shim/nccl/coll_params.h"
#include "tests/support/pause.h"

_Thread_local struct mock_group mock_group;
_Thread_local int mock_current_device;

const char *mock_fault(void)
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

	return strcmp(in ? in : "allreduce", shunt_kind_name(kind)) ? "" : mock_fault();
}

/* ---- messages ---- */

/* Another rank is to do something; the tool ends it if it does not. Ranks share few CPUs, and one may hang. */
static void await_rank(unsigned *looks)
{
	if (++*looks < 20)
		sched_yield();
	else
		pause_us(PAUSE_POLL, *looks < 200 ? 50 : 5000);
}

void mock_fifo_put(ncclComm_t c, int channel, int to, const void *data, size_t bytes)
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

void mock_fifo_get(ncclComm_t c, int channel, int from, void *data, size_t bytes)
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

	mock_fifo_put(j->comm, COLL_CHANNEL, to, j->scalar_at ? j->scalar_at : &c->scalar, bytes);
	mock_fifo_put(j->comm, COLL_CHANNEL, to, &(uint64_t){ 0 }, sizeof(c->scalar) - bytes);
}

static void call_send(const struct call *j)
{
	const struct shunt_coll *c = &j->coll;
	size_t bytes = bytes_of(c);
	ncclComm_t comm = j->comm;

	if (c->kind == SHUNT_SEND)
		mock_fifo_put(comm, P2P_CHANNEL, c->root, c->send, bytes);
	if (shunt_kind_is_p2p(c->kind) || !shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, comm->rank == c->root))
		return;
	for (int to = 0; to < comm->nranks; to++) {
		if (!shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, to == c->root))
			continue;
		if (shunt_kind_reduces(c->kind))
			scalar_send(j, to);
		mock_fifo_put(comm, COLL_CHANNEL, to,
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

		mock_fifo_get(j->comm, COLL_CHANNEL, from, &scalar[at], sizeof(scalar[at]));
		mock_fifo_get(j->comm, COLL_CHANNEL, from, data, bytes);
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
		mock_fifo_get(j->comm, P2P_CHANNEL, c->root, c->recv, bytes);
	else if (!shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, j->comm->rank == c->root))
		return 0;
	else if (shunt_kind_reduces(c->kind))
		reduce(j);
	else
		for (int from = 0; from < j->comm->nranks; from++)
			if (shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, from == c->root))
				mock_fifo_get(j->comm, COLL_CHANNEL, from,
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

void mock_calls_run(const struct calls *calls)
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

ncclResult_t mock_in_progress(ncclComm_t comm)
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
		if (mock_in_progress(calls->v[i].comm))
			result = ncclInProgress;
	}
	if (self)
		return ncclInvalidUsage;
	if (s && s->capturing) {
		for (size_t i = 0; i < calls->n; i++)
			call_add(s->capturing, &calls->v[i]);
		call_add(s->capturing, &(struct call){ 0 });
	} else {
		mock_calls_run(calls);
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
	if ((unsigned)c->dtype >= SHUNT_NDTYPES) {
		fprintf(stderr, "mock WARN there is no type %d\nmock: a line that is no warning\n", (int)c->dtype);
		return !strcmp(f, "code") ? ncclSuccess : ncclInvalidArgument;
	}
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

bool mock_is_large(size_t count)
{
	return count >= 256;
}

const char *mock_path_name(bool large)
{
	return getenv("MOCK_PATH") ? getenv("MOCK_PATH") : large ? "large" : "small";
}

static ncclResult_t call_enqueue(struct shunt_coll coll, ncclComm_t comm)
{
	struct call call = { coll, comm, NULL };
	ncclResult_t result = check(&coll, comm, &call.coll.scalar, &call.scalar_at, &call.coll.redop);

	if (result && mock_group.depth && !mock_group.error)
		mock_group.error = result;
	if (result || (unsigned)coll.dtype >= SHUNT_NDTYPES)
		return result;
	if (!coll.count && coll.kind != SHUNT_SEND && coll.kind != SHUNT_RECV)
		return ncclSuccess;
	comm->counters[coll.kind][mock_is_large(coll.count)].calls++;
	comm->counters[coll.kind][mock_is_large(coll.count)].bytes += coll.count * shunt_dtype_bytes[coll.dtype];
	if (mock_group.depth) {
		call_add(&mock_group.calls, &call);
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
	mock_group.depth++;
	return ncclSuccess;
}

static ncclResult_t group_end(bool launch)
{
	ncclResult_t result = mock_group.error, born = ncclSuccess;

	if (!mock_group.depth)
		return ncclInvalidUsage;
	if (--mock_group.depth)
		return ncclSuccess;
	if (!result && launch)
		born = mock_comm_inits_run(&mock_group.comm_inits);
	if (!result && launch)
		result = calls_launch(&mock_group.calls);
	else if (result && !strcmp(mock_fault(), "group"))
		result = ncclSuccess;
	free(mock_group.calls.v);
	free(mock_group.comm_inits.v);
	memset(&mock_group, 0, sizeof(mock_group));
	return result ? result : born;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
	return group_end(true);
}

#ifndef MOCK_OLD
EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	if (mock_group.depth == 1 && info && info->magic != SHUNT_NCCL_SIM_MAGIC && !mock_group.error)
		mock_group.error = ncclInvalidArgument;
	return group_end(!strcmp(mock_fault(), "launch"));
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
		if (where == ncclScalarDevice && strcmp(mock_fault(), "scalar"))
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

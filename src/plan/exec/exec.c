/* SPDX-License-Identifier: MIT */
#include "plan/exec/exec.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "transport/symm/symm.h"
#include "kernels/formats.h"
#include "plan/compile/program.h"

/* Devices round allocations up to this anyway. */
#define ALLOC_GRANULARITY ((uint64_t)2 << 20)

/* Memory that is kept until the exec is destroyed, because a graph may use it. */
struct resources {
	struct resources *next;
	uint64_t units;  /* of the largest chunk */
	char *bytecodes; /* one allocation with the bounce buffers */
	char *bounce;    /* private memory for input and output where the caller's cannot be used; one launch after the
	                    other */
	uint64_t staging_at[2];          /* as in its bytecode */
	struct shunt_plan_region region; /* over hosts */
	struct shunt_gpu_mem mem[];      /* of each rank that this one maps */
};

struct shunt_plan_exec {
	struct shunt_plan_exec_config host;
	bool inputs_readonly; /* no rank writes to any input */
	struct shunt_plan *plan;
	struct shunt_program *program;
	struct resources *resources_list; /* the newest first */
	uint64_t refused_units;           /* units of the smallest chunks that were refused */
	char reason[144];                 /* as long as shunt_symm.refusal */
};

/* The number of ranks that map each other's memory, and this rank's index among them. */
static int nmates(const struct shunt_plan_exec *e)
{
	return e->host.hosts ? e->host.hosts->nmates : e->host.ranks.nranks;
}

static int own(const struct shunt_plan_exec *e)
{
	return e->host.hosts ? e->host.hosts->own : e->host.ranks.rank;
}

bool shunt_plan_call_from_coll(const struct shunt_coll *coll, int nranks, struct shunt_plan_call *call_p)
{
	uint64_t bytes = shunt_coll_bytes(coll);

	if (!shunt_kind_rows[coll->kind].planned)
		return false;
	*call_p = (struct shunt_plan_call){ .send = coll->send,
		.recv = coll->recv,
		.dtype = coll->dtype,
		.redop = coll->redop,
		.scalar = coll->scalar,
		.scalar_on_device = coll->scalar_on_device,
		.stream = coll->stream };
	call_p->send_bytes = bytes * shunt_kind_parts(coll->kind, SHUNT_SIDE_SEND, nranks);
	call_p->recv_bytes = bytes * shunt_kind_parts(coll->kind, SHUNT_SIDE_RECV, nranks);
	return true;
}

static bool inputs_readonly(const struct shunt_plan *plan)
{
	for (uint32_t r = 0; r < plan->nranks; r++)
		for (uint32_t k = 0; k < plan->gpus[r].nblocks; k++)
			for (uint32_t i = 0; i < plan->gpus[r].blocks[k].nops; i++) {
				const struct shunt_plan_op *op = &plan->gpus[r].blocks[k].ops[i];

				for (uint32_t j = 0; j < op->ndst; j++)
					if (op->dst[j].buffer == SHUNT_PLAN_INPUT)
						return false;
			}
	return true;
}

/*
 * Only buffers that lie at one place on all ranks, in place or not: neither the send buffer of an all-gather nor the
 * receive buffer of a reduce-scatter. A merged buffer is the receive buffer, except for a reduce-scatter.
 */
void shunt_plan_exec_wants_direct(const struct shunt_plan_exec *e, bool wants[2])
{
	const struct shunt_program *p = e->program;
	bool scatter = shunt_plan_scatters(e->plan->collective), gather = shunt_plan_gathers(e->plan->collective);

	wants[0] = !p->over_hosts && !gather && !p->merged && p->staging[0] && e->inputs_readonly;
	wants[1] = !p->over_hosts && !scatter && p->staging[p->merged ? p->merged_into : 1];
}

int shunt_plan_exec_create(
    const struct shunt_plan_exec_config *host, struct shunt_plan *plan, struct shunt_plan_exec **exec_p)
{
	struct shunt_plan_exec *e;
	int err;

	if (plan->nranks != (uint32_t)host->ranks.nranks)
		return -EINVAL;
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	err = shunt_program_create(plan, (uint32_t)host->ranks.rank, host->hosts ? host->hosts->host_of : NULL,
	    host->ll_format == SHUNT_PLAN_LL_FORMAT_LL128, &e->program);
	if (err) {
		free(e);
		return err;
	}
	e->host = *host;
	e->inputs_readonly = inputs_readonly(plan);
	e->plan = shunt_plan_ref(plan);
	e->refused_units = UINT64_MAX;
	*exec_p = e;
	return 0;
}

static void resources_destroy(struct shunt_plan_exec *e, struct resources *a)
{
	const struct shunt_gpu_ops *gpu = e->host.gpu;

	shunt_symm_free(gpu, a->mem, nmates(e));
	if (a->bytecodes)
		gpu->mem_free(a->bytecodes);
	free(a);
}

void shunt_plan_exec_destroy(struct shunt_plan_exec *e)
{
	if (!e)
		return;
	while (e->resources_list) {
		struct resources *a = e->resources_list;

		e->resources_list = a->next;
		resources_destroy(e, a);
	}
	shunt_program_destroy(e->program);
	shunt_plan_unref(e->plan);
	free(e);
}

struct shunt_plan *shunt_plan_exec_plan(const struct shunt_plan_exec *e)
{
	return e->plan;
}

void *shunt_plan_exec_resources(const struct shunt_plan_exec *e)
{
	return e->resources_list ? e->resources_list->mem[own(e)].ptr : NULL;
}

/* ---- resources */

/*
 * Bytes of bounce buffers for all buffers that peers do not reach. Each rank decides alone whether a call needs them,
 * when other ranks may be launching already. So they are always allocated.
 */
static bool bounce_bytes(const struct shunt_plan_exec *e, uint64_t units, uint64_t *bytes_p)
{
	const struct shunt_program *p = e->program;
	uint64_t chunks = 0;

	for (int i = 0; i < 2; i++)
		chunks += p->used[i] && !p->staging[i] ? p->extent[i] : 0;
	return !__builtin_mul_overflow(chunks, units * e->plan->alignment, bytes_p) && *bytes_p <= (uint64_t)1 << 56;
}

/*
 * The next power of two, so that a few allocations serve all sizes; or more, if ALLOC_GRANULARITY bytes hold it. The
 * same on all ranks.
 */
static uint64_t round_units(const struct shunt_plan_exec *e, uint64_t units)
{
	struct shunt_program_bytes bytes;
	uint64_t up = 1, bounce;

	while (up < units)
		up *= 2;
	while (shunt_program_resources_bytes(e->program, e->plan, 2 * up, &bytes) && bounce_bytes(e, 2 * up, &bounce) &&
	    bytes.resources + bytes.region + bounce <= ALLOC_GRANULARITY && up < ((uint64_t)1 << 40))
		up *= 2;
	return up;
}

/* Bytes of the bytecodes, and of the copies behind them. */
static uint64_t bytecodes_bytes(const struct shunt_plan_exec *e)
{
	const struct shunt_program *p = e->program;
	unsigned sets = p->bytecode_bytes > SHUNT_PLAN_SHARED_BYTECODE ? 2 : 1;

	return ((uint64_t)p->nblocks * p->bytecode_bytes * sets + 511) / 512 * 512;
}

/* Allocates this rank's resources. A failure becomes its vote. */
static void resources_alloc(struct shunt_plan_exec *e, struct resources *a, struct shunt_symm *symm)
{
	const struct shunt_gpu_ops *gpu = e->host.gpu;
	struct shunt_gpu_info info;
	const struct shunt_program *p = e->program;
	uint64_t bytecodes = bytecodes_bytes(e) + (p->over_hosts ? 512 : 0), bounce = 0;
	struct shunt_program_bytes bytes = { 0 };
	unsigned most;

	_Static_assert(sizeof(struct shunt_plan_ports) <= 512, "the ports lie behind the bytecodes");

	if (gpu->device_info(e->host.device, &info)) {
		shunt_vote_refuse(&symm->vote, "its device cannot be asked");
		return;
	}
	most = info.sim ? 1024 : info.sms;
	if (e->host.max_blocks && e->host.max_blocks < most)
		most = e->host.max_blocks;
	if (e->plan->max_blocks > most)
		shunt_vote_refuse(&symm->vote, "its device runs at most %u blocks at once", most);
	else if (!shunt_program_resources_bytes(p, e->plan, a->units, &bytes) || !bounce_bytes(e, a->units, &bounce))
		shunt_vote_refuse(&symm->vote, "chunks of %llu units are too large", (unsigned long long)a->units);
	if (!symm->vote.ok || shunt_symm_alloc(symm, bytes.resources))
		return;
	if (gpu->mem_alloc(e->host.device, bytecodes + bounce, (void **)&a->bytecodes))
		shunt_vote_refuse(&symm->vote, "%llu bytes of memory of its own cannot be allocated",
		    (unsigned long long)(bytecodes + bounce));
	else
		a->bounce = a->bytecodes + bytecodes;
}

struct fill {
	struct shunt_plan_exec *e;
	struct resources *resources;
};

/* Over hosts: completes the table of addresses. 0 or -errno. */
static int fill_ports(struct shunt_plan_exec *e, struct resources *a, char **table)
{
	const struct shunt_plan_exec_hosts *hosts = e->host.hosts;
	unsigned n = (unsigned)e->host.ranks.nranks;
	char *at = a->bytecodes + bytecodes_bytes(e);
	struct shunt_plan_ports ports = { .raised = (const uint64_t *)a->region.at[hosts->own],
		.region = a->region.number,
		.first_channel = a->region.first_channel,
		.slots = e->program->slots };

	memcpy(ports.reach, e->program->reach, sizeof(ports.reach));
	for (unsigned r = 0; r < n; r++)
		table[n + r] = (char *)(uintptr_t)SHUNT_PLAN_FAR;
	for (int i = 0; i < hosts->nmates; i++)
		table[n + hosts->mates[i]] = a->region.at[i];
	table[2 * n] = at;
	return e->host.gpu->copy(e->host.device, at, &ports, sizeof(ports));
}

/* Writes the bytecode, and the semaphores' first values; all else is zero. */
static int resources_fill(void *ctx)
{
	struct shunt_plan_exec *e = ((struct fill *)ctx)->e;
	struct resources *a = ((struct fill *)ctx)->resources;
	const struct shunt_program *p = e->program;
	char **bases = calloc(p->table, sizeof(*bases)), *mine = a->mem[own(e)].ptr;
	uint64_t *values = calloc(p->nsemaphores ? p->nsemaphores : 1, 64);
	int err = bases && values ? 0 : -ENOMEM;

	for (int i = 0; i < nmates(e) && !err; i++)
		bases[e->host.hosts ? e->host.hosts->mates[i] : i] = a->mem[i].ptr;
	if (!err && p->over_hosts)
		err = fill_ports(e, a, bases);
	for (uint32_t i = 0; i < p->nsemaphores && !err; i++)
		values[i * 8] = p->semaphores[i];
	if (!err) {
		shunt_program_bind(e->program, e->plan, a->units, bases);
		memcpy(
		    a->staging_at, ((const struct shunt_prog_head *)p->bytecodes)->staging_at, sizeof(a->staging_at));
		err = e->host.gpu->copy(
		    e->host.device, a->bytecodes, p->bytecodes, (size_t)p->nblocks * p->bytecode_bytes);
	}
	if (!err && p->nsemaphores)
		err = e->host.gpu->copy(e->host.device, mine + p->semaphores_at, values, (size_t)p->nsemaphores * 64);
	free(bases);
	free(values);
	return err;
}

/* A failure becomes this rank's vote. 0, or an error of a round. */
static int make_region(struct shunt_plan_exec *e, struct resources *a, struct shunt_vote *vote)
{
	const struct shunt_plan_exec_hosts *hosts = e->host.hosts;
	struct shunt_program_bytes bytes;

	if (!shunt_program_resources_bytes(e->program, e->plan, a->units, &bytes))
		return 0; /* on all ranks; resources_alloc refuses */
	return hosts->region(hosts->ctx, bytes.region,
	    SHUNT_PLAN_PORTS_CHANNELS(e->program->slots, (uint32_t)e->host.ranks.nranks), vote, &a->region);
}

/* 0; -EOPNOTSUPP, the same on all ranks, and e->reason has a text; or an error of a round. */
static int exchange_resources(struct shunt_plan_exec *e, struct resources *a)
{
	struct fill fill = { e, a };
	struct shunt_symm symm;
	int err;

	shunt_symm_init(&symm,
	    &(struct shunt_symm_config){ .ranks = e->host.ranks,
	        .mates = e->host.hosts ? e->host.hosts->mates : NULL,
	        .nmates = nmates(e),
	        .own = own(e),
	        .gpu = e->host.gpu,
	        .device = e->host.device,
	        .process = e->host.process,
	        .what = "memory",
	        .mem = a->mem,
	        .value = { e->plan->hash, a->units },
	        .differs = { "it has another plan of this name than rank 0",
	            "it wants another amount of memory than rank 0" },
	        .fill = resources_fill,
	        .ctx = &fill });
	err = e->host.hosts ? make_region(e, a, &symm.vote) : 0;
	if (err)
		return err;
	resources_alloc(e, a, &symm);
	err = shunt_symm_agree(&symm);
	if (err == -EOPNOTSUPP)
		snprintf(e->reason, sizeof(e->reason), "%s", symm.refusal);
	return err;
}

static int grow_resources(struct shunt_plan_exec *e, uint64_t units)
{
	struct resources *a = calloc(1, sizeof(*a) + (unsigned)nmates(e) * sizeof(a->mem[0]));
	int err;

	if (!a)
		return shunt_rendezvous_lacks_memory(&e->host.ranks);
	a->units = round_units(e, units);
	err = exchange_resources(e, a);
	if (!err) {
		a->next = e->resources_list;
		e->resources_list = a;
		return 0;
	}
	resources_destroy(e, a);
	if (err == -EOPNOTSUPP) {
		e->refused_units = units < e->refused_units ? units : e->refused_units;
		if (!e->host.ranks.rank)
			shunt_warn("plan %s cannot run at this size: %s", e->plan->name, e->reason);
	}
	return err;
}

static int prepare_units(struct shunt_plan_exec *e, uint64_t units)
{
	if (e->resources_list && e->resources_list->units >= units)
		return 0;
	/* Do not ask again: all ranks know the same answer. */
	if (units >= e->refused_units)
		return -EOPNOTSUPP;
	if (units > (uint64_t)1 << 48)
		return -EOPNOTSUPP;
	return grow_resources(e, units);
}

static uint64_t chunk_units(const struct shunt_plan_exec *e, uint64_t message_bytes)
{
	uint64_t units = shunt_plan_chunk_units(e->plan, message_bytes);

	return units ? units : 1;
}

int shunt_plan_exec_prepare(struct shunt_plan_exec *e, uint64_t message_bytes, const char **reason_p)
{
	int err = prepare_units(e, chunk_units(e, message_bytes));

	*reason_p = e->reason;
	return err;
}

/* ---- calls */

bool shunt_plan_call_fits(const struct shunt_plan *plan, const struct shunt_plan_call *call)
{
	const uint32_t *parts = plan->parts; /* of each of the caller's buffers */
	const uint64_t element = shunt_dtype_bytes[call->dtype];

	if (call->send_bytes % (parts[0] * element) || call->recv_bytes % (parts[1] * element))
		return false;
	return shunt_plan_is_custom(plan->collective) || call->send_bytes / parts[0] == call->recv_bytes / parts[1];
}

static bool buffers_overlap(const struct shunt_plan_call *call)
{
	return call->send_bytes && call->recv_bytes &&
	    shunt_overlap((uintptr_t)call->send, call->send_bytes, (uintptr_t)call->recv, call->recv_bytes);
}

static bool is_aligned(const void *p)
{
	return !((uintptr_t)p & 15);
}

/* AVG and PREMUL with a plan that sums: scale operands before, or divide the sum after. */
static void operator_flags(const struct shunt_plan *plan, const struct shunt_plan_call *call, struct shunt_kargs *k)
{
	if (!plan->redops)
		return;
	if (call->redop == SHUNT_PREMUL) {
		k->flags |= SHUNT_K_PREMUL | (call->scalar_on_device ? SHUNT_K_SCALAR_ON_DEVICE : 0);
		k->scalar = call->scalar;
	} else if (call->redop == SHUNT_AVG && !shunt_dtype_is_float(call->dtype)) {
		k->flags |= SHUNT_K_DIVIDE | (shunt_dtype_is_signed(call->dtype) ? SHUNT_K_SIGNED : 0);
	} else if (call->redop == SHUNT_AVG) {
		k->flags |= SHUNT_K_PREMUL;
		k->scalar = shunt_dtype_reciprocal(call->dtype, (int)plan->nranks);
	}
}

/* True if input and output overlap. The same on all ranks, as both lie in windows. */
static bool windows_overlap(const struct shunt_plan_call *call)
{
	return shunt_overlap(call->place[0], call->send_bytes, call->place[1], call->recv_bytes);
}

/*
 * Chooses the buffers that peers reach in the callers' memory, by values that are the same on all ranks. exact: as
 * below.
 */
static void choose_direct(
    const struct shunt_plan_exec *e, const struct shunt_plan_call *call, bool exact, struct shunt_kargs_plan *a)
{
	const struct shunt_program *p = e->program;
	bool wants[2], direct[2];

	shunt_plan_exec_wants_direct(e, wants);
	direct[0] = exact && wants[0] && call->remote[0] && call->remote[1] && !(a->k.flags & SHUNT_K_PREMUL) &&
	    !windows_overlap(call);
	direct[1] = exact && wants[1] && call->remote[1];
	for (int i = 0; i < 2; i++) {
		int buffer = p->merged ? p->merged_into : i;

		if (!direct[i])
			continue;
		a->k.flags |= SHUNT_PLAN_DIRECT0 << buffer;
		memcpy(a->remote[buffer], call->remote[i], (unsigned)e->host.ranks.nranks * sizeof(char *));
		a->place = a->place * 0x9e3779b97f4a7c15u + call->place[i] + (uint64_t)i;
	}
}

/*
 * Chooses the memory of each buffer that the plan uses, and the copies. exact: the message fills all chunks. The memory
 * is the staging buffer, the caller's, or (NULL here) a bounce buffer. choose_direct has chosen what peers reach
 * directly.
 */
static void choose_memory(const struct shunt_plan_exec *e, const struct shunt_plan_call *call, bool exact,
    uint64_t chunk_bytes, struct shunt_kargs_plan *a)
{
	const struct shunt_program *p = e->program;
	const struct resources *resources = e->resources_list;
	char *mine[2] = { resources->mem[own(e)].ptr, resources->region.at[own(e)] };
	char *caller[2] = { (char *)(uintptr_t)call->send, call->recv };
	bool scaled = a->k.flags & SHUNT_K_PREMUL, divided = a->k.flags & SHUNT_K_DIVIDE;
	uint64_t part = e->plan->part_chunks * chunk_bytes * (uint64_t)e->host.ranks.rank;

	for (int i = 0; i < 2; i++) {
		if (a->k.flags & SHUNT_PLAN_DIRECT0 << i)
			a->buffer[i] = caller[p->merged ? 1 : i];
		else if (!p->used[i] || p->staging[i])
			a->buffer[i] = p->used[i] ? mine[p->ported[i]] + resources->staging_at[i] : NULL;
		else
			a->buffer[i] = exact && is_aligned(caller[i]) ? caller[i] : NULL;
	}
	if (!p->merged) {
		/* The caller's input is read in place only if the launch does not change it meanwhile. */
		if (p->used[0] && !p->staging[0] && (scaled || !p->preserves_input || buffers_overlap(call)))
			a->buffer[0] = NULL;
		if (p->used[0] && a->buffer[0] != caller[0])
			a->k.flags |= SHUNT_PLAN_LOAD0;
		if (p->used[1] && (a->buffer[1] != caller[1] || divided))
			a->k.flags |= SHUNT_PLAN_STORE0 << 1;
		if (p->loads_output && a->buffer[1] != caller[1])
			a->k.flags |= SHUNT_PLAN_LOAD0 << 1;
		return;
	}

	bool scatter = shunt_plan_scatters(e->plan->collective), gather = shunt_plan_gathers(e->plan->collective);
	char **w = &a->buffer[p->merged_into];
	if (!p->used[p->merged_into])
		return;
	if (!p->staging[p->merged_into]) {
		char *place = scatter ? caller[0] : caller[1];
		bool in_place = scatter && caller[0] + part == caller[1];

		*w = exact && is_aligned(place) && (!scatter || (in_place && p->preserves_input && !scaled)) ? place :
		                                                                                               NULL;
	}
	if (scaled || !*w || (gather ? *w + part : *w) != caller[0])
		a->k.flags |= SHUNT_PLAN_LOAD0 << p->merged_into;
	if (divided || !*w || (scatter ? *w + part : *w) != caller[1])
		a->k.flags |= SHUNT_PLAN_STORE0 << p->merged_into;
}

/* How many threads of a block the plan asks for, as far as they help on this device. */
static unsigned block_threads(const struct shunt_plan_exec *e)
{
	unsigned most = e->host.gpu->helpful_threads, threads = (e->plan->threads + 31) / 32 * 32;

	most = most && most < SHUNT_MAX_THREADS ? most : SHUNT_MAX_THREADS;
	return threads < most ? threads : most;
}

int shunt_plan_exec_work(struct shunt_plan_exec *e, const struct shunt_plan_call *call, struct shunt_work *work)
{
	const struct shunt_program *p = e->program;
	const struct shunt_plan *plan = e->plan;
	const uint32_t *parts = plan->parts;
	uint64_t chunk, units;
	struct shunt_kargs_plan *a = &work->args.plan;
	unsigned shape = p->over_hosts  ? SHUNT_SHAPE_plan_hosts :
	    p->flags & SHUNT_PROG_LL128 ? SHUNT_SHAPE_plan_ll128 :
	                                  SHUNT_SHAPE_plan;
	const struct shunt_prog_head *head = (const struct shunt_prog_head *)p->bytecodes;
	bool exact = true;
	char *copy;
	int err;

	if (!shunt_plan_call_fits(plan, call))
		return -EINVAL;
	units = chunk_units(
	    e, shunt_plan_gathers(plan->collective) || !call->send_bytes ? call->recv_bytes : call->send_bytes);
	err = prepare_units(e, units);
	if (err)
		return err;
	chunk = units * plan->alignment;
	copy = e->resources_list->bounce;
	*a = (struct shunt_kargs_plan){ .k.send = call->send,
		.k.recv = call->recv,
		.k.rank = (uint16_t)e->host.ranks.rank,
		.k.nranks = (uint16_t)p->table,
		.k.op = call->op,
		.k.check = call->check,
		.k.count = call->count,
		.k.flags = e->host.ll_format == SHUNT_PLAN_LL_FORMAT_LL8 ? SHUNT_PLAN_LL8 : 0,
		.ctrl = e->host.ctrl,
		.bytecodes = e->resources_list->bytecodes,
		.bytecode_bytes = p->bytecode_bytes,
		.resources = e->resources_list->mem[own(e)].ptr,
		.chunk = units,
		.part_bytes = { call->send_bytes / parts[0], call->recv_bytes / parts[1] } };
	for (int i = 0; i < 2; i++)
		exact &= (!p->merged && !p->used[i]) || a->part_bytes[i] == head->chunks[i] * chunk;
	operator_flags(plan, call, &a->k);
	a->k.flags |= shunt_format_flags(call->dtype);
	choose_direct(e, call, exact, a);
	choose_memory(e, call, exact, chunk, a);
	for (int i = 0; i < 2; i++)
		if (p->used[i] && !a->buffer[i]) {
			a->buffer[i] = copy;
			copy += p->extent[i] * chunk;
		}
	work->kernel = SHUNT_KERNEL(shape, 0, shunt_kernel_type(call->dtype));
	work->blocks = p->nblocks;
	work->threads = block_threads(e);
	work->cluster = work->shared = 0;
	work->uncounted = false;
	return 0;
}

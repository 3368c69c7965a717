/* SPDX-License-Identifier: MIT */
/* One rank of a conformance run on its device: its buffers, the steps of a program, and their results. */
#include "tools/common/libc.h"
#include "tools/conform/conform.h"

void conform_rank_progress(struct conform_rank *r, enum ranks_stage stage, int lib)
{
	ranks_progress_set(r->progress, stage, lib, -1);
}

void conform_outcome_set(struct conform_outcome *out, enum conform_status status, const char *fmt, ...)
{
	va_list args;

	if (out->status > (int)status || (out->status == (int)status && *out->text))
		return;
	out->status = status;
	va_start(args, fmt);
	vsnprintf(out->text, sizeof(out->text), fmt, args);
	va_end(args);
}

static bool device_ok(struct conform_outcome *out, const char *label, const char *what, int err)
{
	if (err)
		conform_outcome_set(out, CONFORM_FAIL, "%s: %s: %s", label, what, strerror(-err));
	return !err;
}

/* ---- set-up ---- */

int conform_workspace_grow(struct conform_rank *r, void **workspace, size_t *have, size_t bytes)
{
	if (*have >= bytes)
		return 0;
	if (*workspace)
		r->lib.free(*workspace);
	*workspace = NULL;
	*have = 0;
	int err = r->lib.malloc(workspace, 2 * bytes);

	*have = err ? 0 : 2 * bytes;
	return err;
}

int conform_rank_open(struct conform_rank *r)
{
	int err = tool_lib_open(&r->lib);

	if (!err)
		err = r->lib.device_set(r->device);
	for (int i = 0; !err && i < 2; i++)
		err = r->lib.stream_create(&r->stream[i]);
	if (!err)
		err = conform_workspace_grow(r, &r->send, &r->send_bytes, CONFORM_INVALID_BYTES);
	if (!err)
		err = conform_workspace_grow(r, &r->recv, &r->recv_bytes, CONFORM_INVALID_BYTES);
	if (err)
		tool_error("rank %d: device %d cannot be used: %s", r->rank, r->device, strerror(-err));
	for (int i = 0; !err && i < r->o->ranks.nlibs; i++) {
		struct conform_side *s = &r->side[i];

		err = bench_nccl_open(&s->nccl, r->o->ranks.libs[i], &r->lib);
		if (err)
			break;
		s->strict = bench_nccl_is_alone(&s->nccl);
	}
	return err;
}

void conform_rank_close(struct conform_rank *r)
{
	r->lib.free(r->send);
	r->lib.free(r->recv);
	if (r->scalars)
		r->lib.free(r->scalars);
	for (int i = 0; i < 2; i++)
		r->lib.stream_destroy(r->stream[i]);
}

/* ---- plans ---- */

int conform_fixture_create(struct conform_fixture *fixture, const struct conform_case *c, int nranks)
{
	*fixture = (struct conform_fixture){ .c = c, .nranks = nranks };
	for (int i = 0; i < nranks; i++) {
		struct conform_program *s = &fixture->program[i];
		struct conform_build b = { .program = s,
			.rank = i,
			.nranks = nranks,
			.seed = c->seed,
			.dtype = c->dtype,
			.redop = c->redop,
			.comm = c->comm,
			.config = c->config,
			.scalar_on_device = c->scalar_on_device,
			.place = c->place,
			.misalign = c->misalign };

		c->build(&b, c);
		s->send_bytes += CONFORM_GAP;
		s->recv_bytes += CONFORM_GAP;
		fixture->image[i].send = malloc(s->send_bytes);
		fixture->image[i].recv = malloc(s->recv_bytes);
		if (s->failed || !fixture->image[i].send || !fixture->image[i].recv)
			return -ENOMEM;
		conform_image_fill(c, s, i, &fixture->image[i]);
	}
	return 0;
}

void conform_fixture_destroy(struct conform_fixture *fixture)
{
	for (int i = 0; i < fixture->nranks; i++) {
		conform_program_finish(&fixture->program[i]);
		free(fixture->image[i].send);
		free(fixture->image[i].recv);
	}
}

int conform_memory_create(struct conform_memory *m, struct conform_rank *r, const struct conform_fixture *fixture)
{
	const struct conform_program *mine = &fixture->program[r->rank];
	const struct conform_member place = { r->rank, r->nranks, r->o->ranks.nhosts };
	int err;

	m->got.send = malloc(mine->send_bytes);
	m->got.recv = malloc(mine->recv_bytes);
	m->expected = malloc(mine->recv_bytes);
	m->like = malloc(mine->recv_bytes);
	if (!m->got.send || !m->got.recv || !m->expected || !m->like)
		return -ENOMEM;
	err = conform_workspace_grow(r, &r->send, &r->send_bytes, mine->send_bytes);
	if (!err)
		err = conform_workspace_grow(r, &r->recv, &r->recv_bytes, mine->recv_bytes);
	return err ? err : conform_expect(fixture->program, fixture->image, &place, m->expected);
}

void conform_memory_destroy(struct conform_memory *m)
{
	free(m->got.send);
	free(m->got.recv);
	free(m->expected);
	free(m->like);
}

static const char *step_lacks(const struct conform_side *side, const struct conform_step *step)
{
	const struct bench_coll *coll = &bench_colls[step->coll];
	const struct bench_nccl *n = &side->nccl;

	if (step->kind == CONFORM_GROUP_START)
		return n->GroupStart && n->GroupEnd ? NULL : "groups";
	if (step->kind == CONFORM_GROUP_SIMULATE)
		return n->GroupSimulateEnd ? NULL : "ncclGroupSimulateEnd";
	if (step->kind != CONFORM_CALL)
		return NULL;
	if (side->lacks >> step->coll & 1)
		return coll->name;
	if (shunt_dtype_is_format(step->dtype) && !dlsym(n->handle, "shunt_redop_create"))
		return "formats";
	if (coll->reduces && step->redop == SHUNT_PREMUL && (!n->RedOpCreatePreMulSum || !n->RedOpDestroy))
		return "PreMulSum";
	/* NCCL 2.28 has no such kernel, and says that the argument is invalid. */
	if (coll->reduces && (step->redop == SHUNT_PREMUL || step->redop == SHUNT_AVG) && step->comm == CONFORM_SELF &&
	    (step->dtype == SHUNT_F8E4M3 || step->dtype == SHUNT_F8E5M2) && !bench_nccl_is_alone(n))
		return "averages and pre-multiplied sums of float8 of one rank";
	if (step->config != CONFORM_CONFIG_NONE) {
		char name[64];

		snprintf(name, sizeof(name), "nccl%s", coll->configured_name);
		if (!dlsym(n->handle, name))
			return coll->configured_name;
	}
	return conform_comm_lacks(n, step->comm);
}

const char *conform_fixture_lacks(const struct conform_fixture *fixture, const struct conform_side *side)
{
	const char *what = NULL;

	for (int rank = 0; rank < fixture->nranks; rank++)
		for (size_t i = 0; !what && i < fixture->program[rank].n; i++)
			what = step_lacks(side, &fixture->program[rank].steps[i]);
	return what;
}

/* ---- a program ---- */

/*
 * Uploads the scalars that operators read at run time, one for each step; or wrong values, which no operator may read.
 */
static bool premul_scalars_upload(
    struct conform_rank *r, int lib, const struct conform_program *program, bool right, struct conform_outcome *out)
{
	const char *label = r->side[lib].nccl.label;

	for (size_t i = 0; i < program->n; i++) {
		uint64_t scalar = 0;

		if (!program->steps[i].scalar_on_device)
			continue;
		if (right)
			conform_scalar(program->steps[i].dtype, r->rank, &scalar);
		if (!device_ok(out, label, "memory",
		        conform_workspace_grow(r, &r->scalars, &r->scalar_bytes, program->n * sizeof(scalar))) ||
		    !device_ok(out, label, "copy",
		        r->lib.memcpy((char *)r->scalars + i * sizeof(scalar), &scalar, sizeof(scalar))))
			return false;
	}
	return true;
}

bool conform_rank_upload(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, struct conform_outcome *out)
{
	const struct conform_program *program = &fixture->program[r->rank];
	const struct conform_image *image = &fixture->image[r->rank];
	const char *label = r->side[lib].nccl.label;

	return premul_scalars_upload(r, lib, program, true, out) &&
	    device_ok(out, label, "copy", r->lib.memcpy(r->send, image->send, program->send_bytes)) &&
	    device_ok(out, label, "copy", r->lib.memcpy(r->recv, image->recv, program->recv_bytes));
}

static ncclResult_t call_run(struct conform_rank *r, struct conform_side *s, const struct conform_step *step, size_t i)
{
	const struct bench_coll *coll = &bench_colls[step->coll];
	struct bench_args a = { .count = step->count,
		.dtype = bench_nccl_dtype(step->dtype),
		.redop = (ncclRedOp_t)step->redop,
		.root = step->root,
		.comm = s->comm[step->comm],
		.stream = r->stream[step->stream] };
	bool made = coll->reduces && step->redop == SHUNT_PREMUL, format = shunt_dtype_is_format(step->dtype);
	ncclResult_t result, end;
	ncclRedOp_t base;
	ncclCollConfig_t config;
	uint64_t scalar;

	if (step->send != CONFORM_NULL)
		a.send = (char *)(step->in_place ? r->recv : r->send) + step->send;
	if (step->recv != CONFORM_NULL)
		a.recv = (char *)r->recv + step->recv;
	if (made) {
		conform_scalar(step->dtype, r->rank, &scalar);
		result = step->scalar_on_device ?
		    s->nccl.RedOpCreatePreMulSum(
		        &a.redop, (char *)r->scalars + i * sizeof(scalar), a.dtype, ncclScalarDevice, a.comm) :
		    s->nccl.RedOpCreatePreMulSum(&a.redop, &scalar, a.dtype, ncclScalarHostImmediate, a.comm);
		if (result)
			return result;
	}
	base = a.redop;
	result = bench_nccl_format(&s->nccl, a.comm, step->dtype, &a.redop);
	if (result)
		return result;
	if (step->config == CONFORM_CONFIG_NONE) {
		result = coll->call(&s->nccl, &a);
	} else {
		if (conform_config(step->config)) { /* a copy that ends with the call, also inside a group */
			config = *conform_config(step->config);
			a.config = &config;
		}
		result = coll->configured(&s->nccl, &a);
		memset(&config, 0xff, sizeof(config));
	}
	if (format) { /* at once, as torch does; earlier calls keep the operator */
		end = s->nccl.RedOpDestroy(a.redop, a.comm);
		result = result ? result : end;
	}
	if (made) {
		end = s->nccl.RedOpDestroy(base, a.comm);
		result = result ? result : end;
	}
	return result;
}

ncclResult_t conform_group_call(const struct bench_nccl *nccl, enum conform_step_kind kind)
{
	ncclSimInfo_t info = { sizeof(info), SHUNT_NCCL_SIM_MAGIC, 22200, NCCL_UNDEF_FLOAT };

	switch (kind) {
	case CONFORM_GROUP_START:
		return nccl->GroupStart();
	case CONFORM_GROUP_END:
		return nccl->GroupEnd();
	default:
		return nccl->GroupSimulateEnd(&info);
	}
}

/* Waits for background work of a non-blocking communicator. */
static ncclResult_t async_wait(
    struct conform_side *s, const struct conform_fixture *fixture, int rank, ncclResult_t result)
{
	bool used[CONFORM_NCOMMS] = { false };
	ncclResult_t first = ncclSuccess;

	if (result != ncclInProgress)
		return result;
	for (size_t i = 0; i < fixture->program[rank].n; i++)
		used[fixture->program[rank].steps[i].comm] |= fixture->program[rank].steps[i].kind == CONFORM_CALL;
	for (int comm = 0; comm < CONFORM_NCOMMS; comm++) {
		if (!used[comm] || !conform_comm_is_async(comm))
			continue;
		result = conform_comm_wait(&s->nccl, s->comm[comm], ncclInProgress);
		if (!first)
			first = result;
	}
	return first;
}

void conform_rank_step(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, size_t i, struct conform_outcome *out)
{
	const struct conform_step *step = &fixture->program[r->rank].steps[i];
	struct conform_side *s = &r->side[lib];
	const char *name = bench_colls[step->coll].name;
	ncclResult_t result = ncclSuccess;

	switch (step->kind) {
	case CONFORM_CALL:
		result = call_run(r, s, step, i);
		break;
	case CONFORM_GROUP_START:
	case CONFORM_GROUP_END:
	case CONFORM_GROUP_SIMULATE:
		name = step->kind == CONFORM_GROUP_START ? "ncclGroupStart" :
		    step->kind == CONFORM_GROUP_END      ? "ncclGroupEnd" :
		                                           "ncclGroupSimulateEnd";
		result = conform_group_call(&s->nccl, step->kind);
		break;
	case CONFORM_DELAY:
		nanosleep(&(struct timespec){ .tv_nsec = (long)step->delay_us * 1000 }, NULL);
		break;
	}
	result = async_wait(s, fixture, r->rank, result);
	/* The rank continues: the others may wait for its next calls. */
	if (result)
		conform_outcome_set(out, CONFORM_FAIL, "%s: step %zu (%s) returned %d: %s", s->nccl.label, i, name,
		    (int)result, s->nccl.GetErrorString(result));
}

void conform_rank_sync(struct conform_rank *r, int lib, struct conform_outcome *out)
{
	for (int i = 0; i < 2; i++)
		device_ok(
		    out, r->side[lib].nccl.label, "waiting for the device", r->lib.stream_synchronize(r->stream[i]));
}

static void steps_run(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, struct conform_outcome *out)
{
	for (size_t i = 0; i < fixture->program[r->rank].n; i++)
		conform_rank_step(r, lib, fixture, i, out);
}

static void graph_run(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, struct conform_outcome *out)
{
	const struct conform_program *program = &fixture->program[r->rank];
	const char *label = r->side[lib].nccl.label;
	void *graph = NULL;
	bool in_place = false;

	for (size_t i = 0; i < program->n; i++)
		in_place |= program->steps[i].in_place;
	/* A captured operator has the address of its scalar, and reads it when the graph runs. */
	premul_scalars_upload(r, lib, program, false, out);
	if (!device_ok(out, label, "capture", r->lib.capture_begin(r->stream[0])))
		return;
	steps_run(r, lib, fixture, out);
	if (!device_ok(out, label, "capture", r->lib.capture_end(r->stream[0], &graph)))
		return;
	premul_scalars_upload(r, lib, program, true, out);
	/* Two runs; one in place, where a second run would have results for its inputs. */
	for (int i = 0; i < (in_place ? 1 : 2) && out->status != CONFORM_FAIL; i++)
		device_ok(out, label, "graph launch", r->lib.graph_launch(graph, r->stream[0]));
	conform_rank_sync(r, lib, out);
	r->lib.graph_destroy(graph);
}

void conform_rank_run(
    struct conform_rank *r, int lib, const struct conform_fixture *fixture, bool graph, struct conform_outcome *out)
{
	if (graph) {
		graph_run(r, lib, fixture, out);
	} else {
		steps_run(r, lib, fixture, out);
		conform_rank_sync(r, lib, out);
	}
}

bool conform_rank_download(struct conform_rank *r, int lib, const struct conform_fixture *fixture,
    struct conform_memory *m, struct conform_outcome *out)
{
	const struct conform_program *program = &fixture->program[r->rank];
	const char *label = r->side[lib].nccl.label;

	return device_ok(out, label, "copy", r->lib.memcpy(m->got.send, r->send, program->send_bytes)) &&
	    device_ok(out, label, "copy", r->lib.memcpy(m->got.recv, r->recv, program->recv_bytes));
}

void conform_rank_check(struct conform_rank *r, int lib, const struct conform_fixture *fixture,
    struct conform_memory *m, struct conform_outcome *out)
{
	const struct conform_program *program = &fixture->program[r->rank];
	const struct conform_side *s = &r->side[lib];
	struct conform_claim claim = { .programs = fixture->program,
		.images = fixture->image,
		.rank = r->rank,
		.nranks = r->nranks,
		.strict = s->strict,
		.expected = m->expected,
		.like = m->like,
		.like_name = r->side[0].nccl.label,
		.got = &m->got };
	char text[400];

	if (!conform_rank_download(r, lib, fixture, m, out) || out->status)
		return;
	if (lib && !conform_check(&claim, text, sizeof(text)))
		conform_outcome_set(out, CONFORM_FAIL, "%s: %s", s->nccl.label, text);
	else if (!lib)
		memcpy(m->like, m->got.recv, program->recv_bytes);
	r->lib.memcpy(m->got.recv, r->recv, program->recv_bytes); /* the check has changed it */
	claim.like = NULL;
	if (!conform_check(&claim, text, sizeof(text)))
		conform_outcome_set(out, CONFORM_FAIL, "%s: %s", s->nccl.label, text);
}

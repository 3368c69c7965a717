/* SPDX-License-Identifier: MIT */
#include "tests/plan/model.h"
#include "plan/load.h"
#include "tools/common/libc.h"

#define WANT(condition) \
	do { \
		if (!(condition)) \
			return #condition; \
	} while (0)

static const char *slice_wrong(
    const struct shunt_plan *p, uint32_t rank, const struct shunt_plan_slice *s, uint64_t size, bool write)
{
	const struct shunt_plan_gpu *own = &p->gpus[rank];

	WANT(s->buffer < SHUNT_PLAN_NBUFFERS);
	WANT(s->size == size && size >= 1);
	WANT(p->part_chunks > 0);
	WANT(!s->packet || (s->buffer == SHUNT_PLAN_SCRATCH && p->ll));
	if (s->place == SHUNT_PLAN_MULTICAST) {
		WANT(s->target < own->nswitches);
		WANT(own->switches[s->target].buffer == s->buffer);
		for (uint32_t m = 0; m < own->switches[s->target].nranks; m++) {
			const struct shunt_plan_gpu *gpu = &p->gpus[own->switches[s->target].ranks[m]];

			WANT(s->index <= gpu->chunks[s->buffer] && s->size <= gpu->chunks[s->buffer] - s->index);
			WANT(gpu->nblocks);
			WANT((write ? gpu->peers_write : gpu->peers_read) >> s->buffer & 1);
			WANT((write ? gpu->written : gpu->read) >> s->buffer & 1);
		}
	} else {
		const struct shunt_plan_gpu *gpu;

		WANT(s->target < p->nranks);
		gpu = &p->gpus[s->target];
		WANT(s->place == SHUNT_PLAN_REMOTE || (s->place == SHUNT_PLAN_LOCAL && s->target == rank));
		WANT(s->index <= gpu->chunks[s->buffer] && s->size <= gpu->chunks[s->buffer] - s->index);
		WANT(s->place == SHUNT_PLAN_LOCAL || (write ? gpu->peers_write : gpu->peers_read) >> s->buffer & 1);
		WANT((write ? gpu->written : gpu->read) >> s->buffer & 1);
	}
	WANT(s->place == SHUNT_PLAN_LOCAL || !p->reuse_resources || s->buffer == SHUNT_PLAN_SCRATCH);
	return NULL;
}

static bool takes_channels(uint8_t code)
{
	return code >= SHUNT_PLAN_SIGNAL && code <= SHUNT_PLAN_FLUSH;
}

static const char *op_wrong(const struct shunt_plan *p, uint32_t rank, const struct shunt_plan_block *block, uint32_t i)
{
	const struct shunt_plan_gpu *gpu = &p->gpus[rank];
	const struct shunt_plan_op *op = &block->ops[i];
	uint64_t size = op->nsrc ? op->src[0].size : op->ndst ? op->dst[0].size : 0;
	bool semaphores = op->code == SHUNT_PLAN_SEM_ACQUIRE || op->code == SHUNT_PLAN_SEM_RELEASE;
	const char *wrong = NULL;

	WANT(op->code < SHUNT_PLAN_NOPCODES);
	WANT(op->type <= SHUNT_PLAN_NONE);
	WANT(op->redop <= SHUNT_AVG);
	WANT(op->parts >= 1 && op->part < op->parts);
	WANT(!op->nsrc == !op->ndst);
	for (uint32_t s = 0; !wrong && s < op->nsrc; s++)
		wrong = slice_wrong(p, rank, &op->src[s], size, false);
	for (uint32_t s = 0; !wrong && s < op->ndst; s++)
		wrong = slice_wrong(p, rank, &op->dst[s], size, true);
	if (wrong)
		return wrong;
	if (takes_channels(op->code) || semaphores)
		WANT(op->nids >= 1);
	else if (op->type == SHUNT_PLAN_PORT)
		WANT(op->nids == op->ndst);
	else
		WANT(op->nids == 0);
	for (uint32_t j = 0; j < op->nids; j++) {
		if (semaphores) {
			WANT(op->ids[j] < gpu->nsemaphores);
			continue;
		}
		WANT(op->type == SHUNT_PLAN_MEMORY || op->type == SHUNT_PLAN_PORT);
		WANT(op->ids[j] < gpu->nchannels[op->type]);
		if (!takes_channels(op->code))
			WANT(gpu->channels[op->type][op->ids[j]].peer == op->dst[j].target);
		else if (op->code != SHUNT_PLAN_FLUSH)
			WANT(gpu->channels[op->type][op->ids[j]].pair != SHUNT_PLAN_NIL);
	}
	if (op->code == SHUNT_PLAN_BARRIER)
		WANT(op->barrier < gpu->nbarriers && op->nblocks >= 1 && op->nblocks <= gpu->nblocks);
	if (op->code == SHUNT_PLAN_PIPELINE) {
		WANT(op->unit_size && op->unit_size % p->alignment == 0 && op->num_chunks);
		WANT(op->nbody >= 1 && op->nbody <= block->nops - i - 1);
		for (uint32_t k = 1; k <= op->nbody; k++)
			WANT(op[k].code != SHUNT_PLAN_PIPELINE && op[k].inner == k - 1 && op[k].at == op->at);
	} else {
		WANT(op->nbody == 0);
	}
	return NULL;
}

static const char *gpu_wrong(const struct shunt_plan *p, uint32_t rank)
{
	const struct shunt_plan_gpu *gpu = &p->gpus[rank];

	WANT(gpu->chunks[0] == p->gpus[0].chunks[0] && gpu->chunks[1] == p->gpus[0].chunks[1]);
	WANT(gpu->chunks[SHUNT_PLAN_SCRATCH] <= p->scratch_chunks && gpu->nblocks <= p->max_blocks);
	for (int t = 0; t < 2; t++)
		for (uint32_t c = 0; c < gpu->nchannels[t]; c++) {
			const struct shunt_plan_channel *a = &gpu->channels[t][c], *b;

			WANT(a->peer < p->nranks);
			if (a->pair == SHUNT_PLAN_NIL)
				continue;
			WANT(a->pair < p->gpus[a->peer].nchannels[t]);
			b = &p->gpus[a->peer].channels[t][a->pair];
			WANT(b->peer == rank && b->pair == c);
		}
	for (uint32_t s = 0; s < gpu->nswitches; s++) {
		uint32_t own = 0;

		for (uint32_t m = 0; m < gpu->switches[s].nranks; m++) {
			WANT(gpu->switches[s].ranks[m] < p->nranks);
			own += gpu->switches[s].ranks[m] == rank;
		}
		WANT(own == 1 && gpu->switches[s].buffer < SHUNT_PLAN_NBUFFERS);
	}
	for (uint32_t s = 0; s < gpu->nsemaphores; s++)
		WANT(gpu->semaphores[s] <= INT32_MAX);
	for (uint32_t b = 0; b < gpu->nblocks; b++)
		for (uint32_t i = 0; i < gpu->blocks[b].nops; i++) {
			const char *wrong = op_wrong(p, rank, &gpu->blocks[b], i);

			if (wrong)
				return wrong;
		}
	return NULL;
}

const char *plan_model_wrong(const struct shunt_plan *p)
{
	WANT(p->name && *p->name && p->source);
	WANT((unsigned)p->collective < SHUNT_PLAN_NCOLLECTIVES);
	WANT(p->alignment >= 16 && p->alignment % 16 == 0 && p->threads >= 1 && p->threads <= 1024);
	WANT(p->min_bytes <= p->max_bytes);
	WANT(p->nranks >= 1 && p->nranks <= SHUNT_PLAN_MAX_RANKS);
	WANT(p->parts[0] >= 1 && p->parts[1] >= 1);
	for (int b = 0; b < 2 && p->collective < SHUNT_PLAN_TEST; b++)
		WANT(!p->gpus[0].chunks[b] || p->gpus[0].chunks[b] == p->parts[b] * p->part_chunks);
	WANT(p->hash != 0 && p->dtypes != 0 && p->dtypes < 1u << SHUNT_NFORMATS && p->redops < 1u << SHUNT_PREMUL);
	for (uint32_t r = 0; r < p->nranks; r++) {
		const char *wrong = gpu_wrong(p, r);

		if (wrong)
			return wrong;
	}
	return NULL;
}

int plan_model_try(const void *text, size_t bytes)
{
	struct shunt_plan *plan = NULL;
	char reason[600] = "untouched";
	int err = shunt_plan_load_buffer("fuzz", text, bytes, &plan, reason, sizeof(reason));
	const char *wrong = NULL;

	if (!err)
		wrong = plan_model_wrong(plan);
	else if (plan || err > 0 || strncmp(reason, "fuzz: ", 6) || strlen(reason) < 10 || strchr(reason, '\n'))
		wrong = reason;
	if (wrong) {
		fprintf(stderr, "plan %s: %s\n", err ? "refused" : "loaded", wrong);
		abort();
	}
	shunt_plan_unref(plan);
	return err;
}

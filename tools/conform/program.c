/* SPDX-License-Identifier: MIT */
/* Builds a program: calls in order; each has regions in the buffers that no other call touches. */
#include <stdlib.h>
#include "tools/conform/conform.h"

const char *const conform_place_names[CONFORM_NPLACES] = { "out", "in", "nulls" };
const char *const conform_config_names[CONFORM_NCONFIGS] = { "plain", "null", "unset", "ctas", "tag" };

const ncclCollConfig_t *conform_config(enum conform_config config)
{
#define UNSET \
	.size = sizeof(ncclCollConfig_t), .magic = SHUNT_NCCL_CONFIG_MAGIC, .version = 23200, \
	.nvlsCTAs = NCCL_CONFIG_UNDEF_INT, .cgaClusterSize = NCCL_CONFIG_UNDEF_INT, .forceAlgSelection = 1, \
	.CTAPolicy = NCCL_CONFIG_UNDEF_INT
#define ANY_CTAS .minCTAs = NCCL_CONFIG_UNDEF_INT, .maxCTAs = NCCL_CONFIG_UNDEF_INT
	static const ncclCollConfig_t configs[CONFORM_NCONFIGS] = {
		[CONFORM_CONFIG_UNSET] = { UNSET, ANY_CTAS },
		[CONFORM_CONFIG_CTAS] = { UNSET, .minCTAs = 1, .maxCTAs = 2 },
		[CONFORM_CONFIG_TAG] = { UNSET, ANY_CTAS, .userProfilerTag = 12345 },
	};
#undef UNSET
#undef ANY_CTAS

	return config == CONFORM_CONFIG_NONE || config == CONFORM_CONFIG_NULL ? NULL : &configs[config];
}

uint64_t conform_hash_mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

uint64_t conform_random(const struct conform_build *b, unsigned i, unsigned j)
{
	return conform_hash_mix(b->seed ^ conform_hash_mix(((uint64_t)i << 32 | j) + 1));
}

static struct conform_step *step_add(struct conform_build *b, enum conform_step_kind kind)
{
	static struct conform_step nowhere;
	struct conform_program *s = b->program;

	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 16;
		struct conform_step *steps = realloc(s->steps, cap * sizeof(*steps));

		if (!steps) {
			s->failed = true;
			return &nowhere;
		}
		s->steps = steps;
		s->cap = cap;
	}
	s->steps[s->n] = (struct conform_step){ .kind = kind };
	return &s->steps[s->n++];
}

/* Before and behind each region is a gap: poison, or bytes that must not change. */
static size_t region(size_t *workspace, size_t bytes, size_t offset)
{
	size_t at = (*workspace + CONFORM_GAP + 255) / 256 * 256 + offset;

	*workspace = at + bytes + CONFORM_GAP;
	return at;
}

struct conform_step *conform_call(struct conform_build *b, enum bench_coll_id id, int root, size_t count)
{
	static struct conform_step nothing;
	const struct bench_coll *coll = &bench_colls[id];
	struct conform_program *s = b->program;
	struct conform_step *step;
	size_t element = shunt_dtype_bytes[b->dtype], offset;
	int members[RANKS_MAX], me = 0, n = conform_comm_members(b->comm, b->rank, b->nranks, members, &me);
	size_t send = count * element * (size_t)(coll->send_many ? n : 1),
	       recv = count * element * (size_t)(coll->recv_many ? n : 1);

	if (!n)
		return &nothing;
	step = step_add(b, CONFORM_CALL);
	*step = (struct conform_step){ .kind = CONFORM_CALL,
		.coll = id,
		.dtype = b->dtype,
		.redop = b->redop,
		.comm = b->comm,
		.config = coll->configured ? b->config : CONFORM_CONFIG_NONE,
		.scalar_on_device = b->scalar_on_device && coll->reduces && b->redop == SHUNT_PREMUL,
		.stream = b->stream,
		.root = root,
		.count = count,
		.in_place = id == BENCH_COLL_BCAST || (b->place == CONFORM_IN && coll->in_place),
		.send = CONFORM_NULL,
		.recv = CONFORM_NULL };
	offset = element * (size_t)(b->misalign < 0 ? (b->rank * 5 + 1) % 16 : b->misalign);
	if (step->in_place) {
		size_t at = region(&s->recv_bytes, send > recv ? send : recv, offset);

		step->send = at + element * bench_coll_send_offset(coll, count, me);
		step->recv = at + element * bench_coll_recv_offset(coll, count, me);
		return step;
	}
	if (id != BENCH_COLL_RECV && (b->place != CONFORM_NULL_UNUSED || bench_coll_has_send(coll, me, root)))
		step->send = region(&s->send_bytes, send, offset);
	if (b->misalign < 0) /* another offset for each side */
		offset = element * (size_t)((b->rank * 3 + 2) % 16);
	if (id != BENCH_COLL_SEND && (b->place != CONFORM_NULL_UNUSED || bench_coll_has_recv(coll, me, root)))
		step->recv = region(&s->recv_bytes, recv, offset);
	return step;
}

void conform_group_start(struct conform_build *b)
{
	step_add(b, CONFORM_GROUP_START);
}

void conform_group_end(struct conform_build *b)
{
	step_add(b, CONFORM_GROUP_END);
}

void conform_group_simulate(struct conform_build *b)
{
	struct conform_program *s = b->program;
	int depth = 1;

	for (size_t i = s->n; i-- > 0 && depth;) {
		depth += (s->steps[i].kind == CONFORM_GROUP_END) - (s->steps[i].kind == CONFORM_GROUP_START);
		s->steps[i].simulated = true;
	}
	step_add(b, CONFORM_GROUP_SIMULATE);
}

void conform_delay(struct conform_build *b, unsigned us)
{
	step_add(b, CONFORM_DELAY)->delay_us = us;
}

void conform_program_finish(struct conform_program *s)
{
	free(s->steps);
	*s = (struct conform_program){ 0 };
}

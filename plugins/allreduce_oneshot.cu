/* SPDX-License-Identifier: MIT */
/*
 * An all-reduce as a plug-in: every rank sends all it has to all others, in packets of 8 bytes and their flag, and adds
 * up what comes, in the ranks' order. docs/plugins.md explains each part of it.
 */
#include "shunt/kernel.h"

enum { INT32 = 2, FLOAT32 = 7, BFLOAT16 = 9 }; /* NCCL's numbers */
#define MOST (256u << 10)                      /* bytes */
#define PACKETS (MOST / 8)

/* 8 bytes at p, or the `left` that are there. */
SHUNT_K_FN uint64_t load(const char *p, uint64_t left)
{
	uint64_t v = 0;

	if (left >= 8 && !((uintptr_t)p & 7))
		return *(const uint64_t *)p;
	for (uint32_t i = 0; i < 8 && i < left; i++)
		v |= (uint64_t)(unsigned char)p[i] << 8 * i;
	return v;
}

SHUNT_K_FN void store(char *p, uint64_t left, uint64_t v)
{
	if (left >= 8 && !((uintptr_t)p & 7))
		*(uint64_t *)p = v;
	else
		for (uint32_t i = 0; i < 8 && i < left; i++)
			p[i] = (char)(v >> 8 * i);
}

/* The sums of up to four numbers, in 32 bits. */
struct sums {
	uint32_t x[4];
};

SHUNT_K_FN void add(struct sums *s, uint32_t dtype, uint64_t v, bool first)
{
	for (uint32_t i = 0; i < (dtype == BFLOAT16 ? 4 : 2); i++) {
		uint32_t x = dtype == BFLOAT16 ? (uint32_t)(v >> 16 * i) << 16 : (uint32_t)(v >> 32 * i);

		if (!first && dtype == INT32)
			x += s->x[i];
		else if (!first)
			x = shunt_k_bits(shunt_k_float(s->x[i]) + shunt_k_float(x));
		s->x[i] = x;
	}
}

SHUNT_K_FN uint64_t pack(const struct sums *s, uint32_t dtype)
{
	if (dtype != BFLOAT16)
		return s->x[0] | (uint64_t)s->x[1] << 32;
	return shunt_k_to_bf16(shunt_k_float(s->x[0])) | (uint64_t)shunt_k_to_bf16(shunt_k_float(s->x[1])) << 16 |
	    (uint64_t)shunt_k_to_bf16(shunt_k_float(s->x[2])) << 32 |
	    (uint64_t)shunt_k_to_bf16(shunt_k_float(s->x[3])) << 48;
}

/* Packet i from rank `from` in rank `at`'s scratch. Two sets alternate: a rank is at most one call ahead. */
SHUNT_K_FN char *packet(const struct shunt_plugin_call &call, uint64_t epoch, uint32_t at, uint32_t from, uint64_t i)
{
	return call.scratch[at] + (((epoch & 1) * SHUNT_PLUGIN_RANKS + from) * PACKETS + i) * 16;
}

SHUNT_PLUGIN_KERNEL(allreduce_oneshot)
{
	const char *in = (const char *)call.send;
	char *out = (char *)call.recv;
	const uint64_t n = (call.bytes + 7) / 8, step = shunt_k_nbid() * shunt_k_ntid();
	const uint64_t mine = shunt_k_bid() * shunt_k_ntid() + shunt_k_tid();
	const uint32_t flag = (uint32_t)(epoch % 0xffffffffu) + 1;

	for (uint64_t i = mine; i < n; i += step) {
		uint64_t v = load(in + 8 * i, call.bytes - 8 * i);

		for (uint32_t r = 1; r < call.nranks; r++) {
			uint32_t peer = (call.rank + r) % call.nranks;

			shunt_k_packet_store(packet(call, epoch, peer, call.rank, i), v, flag);
		}
	}
	for (uint64_t i = mine; i < n; i += step) {
		struct sums s = {};

		for (uint32_t r = 0; r < call.nranks; r++) {
			uint64_t v = load(in + 8 * i, call.bytes - 8 * i);

			if (r != call.rank &&
			    !shunt_k_packet_wait(call, packet(call, epoch, call.rank, r, i), flag, &v))
				return;
			add(&s, call.dtype, v, r == 0);
		}
		store(out + 8 * i, call.bytes - 8 * i, pack(&s, call.dtype));
	}
}

/* ---- the table, which the host's compiler builds: as C++, with the image if nvcc has made one */
#if !defined(__CUDACC__)
#if defined(IMAGE)
SHUNT_PLUGIN_IMAGE(allreduce_oneshot, IMAGE)
#else
static const void *allreduce_oneshot_image()
{
	return nullptr;
}
static uint64_t allreduce_oneshot_image_bytes()
{
	return 0;
}
#endif

/* A packet for each thread, as far as there is room. */
static int geometry(void *, const struct shunt_plugin_request *request, struct shunt_plugin_launch *launch)
{
	uint64_t packets = (request->bytes + 7) / 8, blocks = (packets + launch->threads - 1) / launch->threads;

	launch->blocks = (uint32_t)(!blocks ? 1 : blocks < request->max_blocks ? blocks : request->max_blocks);
	return 0;
}

static struct shunt_plugin table()
{
	struct shunt_plugin p = {};

	p.size = sizeof(p);
	p.abi = SHUNT_PLUGIN_ABI;
	p.name = "allreduce_oneshot";
	p.doc = "an example: every rank sends all it has to all, in packets";
	p.collectives = "allreduce";
	p.dtypes = 1u << INT32 | 1u << FLOAT32 | 1u << BFLOAT16;
	p.redops = 1; /* ncclSum */
	p.max_bytes = MOST;
	p.scratch_bytes = 2ull * SHUNT_PLUGIN_RANKS * PACKETS * 16;
	p.min_ranks = 2;
	p.max_ranks = SHUNT_PLUGIN_RANKS;
	p.flags = SHUNT_PLUGIN_COUNTED;
	p.image = allreduce_oneshot_image();
	p.image_bytes = allreduce_oneshot_image_bytes();
	p.launch = { nullptr, 1, 512, 0, 0 };
	p.sim = allreduce_oneshot_sim;
	p.geometry = geometry;
	return p;
}

static const struct shunt_plugin plugin = table();
extern "C" SHUNT_API const struct shunt_plugin *const shunt_plugins_1[] = { &plugin, nullptr };
#endif

/* SPDX-License-Identifier: MIT */
/*
 * An all-reduce as a plug-in: every rank sends all it has to all others, in slots whose lines carry a flag, and adds
 * up what comes, in the ranks' order. docs/plugins.md explains each part of it.
 */
#include "shunt/kernel.h"

enum { INT32 = 2, FLOAT32 = 7, BFLOAT16 = 9 }; /* NCCL's numbers */
#define MOST (256u << 10)                      /* bytes */
#define SLOTS_OF(bytes) (uint32_t)(((bytes) + SHUNT_K_SLOT_DATA - 1) / SHUNT_K_SLOT_DATA)

/* The sum of 32 bits of each rank: of one number, or of two. */
template <uint32_t DTYPE, uint32_t N> SHUNT_K_FN uint32_t add(const uint32_t (&x)[N], uint32_t nranks)
{
	float low = shunt_k_from_bf16(x[0] & 0xffff), high = shunt_k_from_bf16(x[0] >> 16);
	uint32_t sum = x[0];

	SHUNT_K_UNROLL for (uint32_t r = 1; r < N; r++)
	{
		if (r >= nranks)
			continue;
		low += shunt_k_from_bf16(x[r] & 0xffff);
		high += shunt_k_from_bf16(x[r] >> 16);
		sum = DTYPE == INT32 ? sum + x[r] : shunt_k_bits(shunt_k_float(sum) + shunt_k_float(x[r]));
	}
	return DTYPE == BFLOAT16 ? shunt_k_to_bf16(low) | shunt_k_to_bf16(high) << 16 : sum;
}

template <uint32_t DTYPE, uint32_t N> SHUNT_K_FN uint64_t add_both(const uint64_t (&x)[N], uint32_t nranks)
{
	uint32_t low[N], high[N];

	SHUNT_K_UNROLL for (uint32_t r = 0; r < N; r++)
	{
		low[r] = (uint32_t)x[r];
		high[r] = (uint32_t)(x[r] >> 32);
	}
	return add<DTYPE, N>(low, nranks) | (uint64_t)add<DTYPE, N>(high, nranks) << 32;
}

SHUNT_K_FN struct shunt_k_v16 load(const struct shunt_plugin_call &call, uint32_t slot)
{
	const uint64_t at = (uint64_t)slot * SHUNT_K_SLOT_DATA;

	return shunt_k_slot_get((const char *)call.send + at, call.bytes - at, call.flags & SHUNT_PLUGIN_ALIGNED);
}

SHUNT_K_FN void store(const struct shunt_plugin_call &call, uint32_t slot, struct shunt_k_v16 v)
{
	const uint64_t at = (uint64_t)slot * SHUNT_K_SLOT_DATA;

	shunt_k_slot_put((char *)call.recv + at, call.bytes - at, call.flags & SHUNT_PLUGIN_ALIGNED, v);
}

/* Where a slot of one rank lies at another. Two sets alternate: a rank is at most one call ahead. */
SHUNT_K_FN char *box(const struct shunt_plugin_call &call, uint64_t epoch, uint32_t at, uint32_t from, uint32_t slot)
{
	const uint32_t set = (uint32_t)(epoch & 1) * SHUNT_PLUGIN_RANKS;

	return call.scratch[at] + ((set + from) * SLOTS_OF(MOST) + slot) * SHUNT_K_SLOT_WIRE;
}

/* For up to N ranks: every index into registers is a constant. False: a rank is gone. */
template <uint32_t DTYPE, uint32_t N>
SHUNT_K_FN bool exchange(const struct shunt_plugin_call &call, uint64_t epoch, uint32_t slot, struct shunt_k_v16 own)
{
	const char *from[N];
	struct shunt_k_v16 v[N];
	uint64_t low[N], high[N];

	SHUNT_K_ROLL for (uint32_t k = 1, peer = call.rank; k < call.nranks; k++)
	{
		peer = peer + 1 == call.nranks ? 0 : peer + 1; /* not all to one peer at a time */
		shunt_k_slot_store(box(call, epoch, peer, call.rank, slot), own, epoch);
	}
	/* In place of this rank, and of ranks that do not exist, another one again: no load has a condition. */
	SHUNT_K_UNROLL for (uint32_t r = 0; r < N; r++) from[r] =
	    box(call, epoch, call.rank, r < call.nranks && r != call.rank ? r : !call.rank, slot);
	if (!shunt_k_slots_wait(call, from, epoch, v))
		return false;
	SHUNT_K_UNROLL for (uint32_t r = 0; r < N; r++)
	{
		low[r] = r == call.rank ? own.lo : v[r].lo;
		high[r] = r == call.rank ? own.hi : v[r].hi;
	}
	store(call, slot, { add_both<DTYPE, N>(low, call.nranks), add_both<DTYPE, N>(high, call.nranks) });
	return true;
}

template <uint32_t DTYPE>
SHUNT_K_FN bool exchange_of(const struct shunt_plugin_call &call, uint64_t epoch, uint32_t slot, struct shunt_k_v16 own)
{
	if (call.nranks == 2)
		return exchange<DTYPE, 2>(call, epoch, slot, own);
	if (call.nranks <= 4)
		return exchange<DTYPE, 4>(call, epoch, slot, own);
	return exchange<DTYPE, SHUNT_PLUGIN_RANKS>(call, epoch, slot, own);
}

/* A warp has a slot at a time. Its load comes before the first use of the epoch, so both are under way together. */
SHUNT_PLUGIN_KERNEL(allreduce_oneshot)
{
	const uint32_t slots = SLOTS_OF((uint32_t)call.bytes), step = shunt_k_nbid() * shunt_k_ntid() / 32;
	uint32_t slot = (shunt_k_bid() * shunt_k_ntid() + shunt_k_tid()) / 32;

	if (slot >= slots)
		return;
	for (struct shunt_k_v16 own = load(call, slot);; own = load(call, slot)) {
		bool ok = call.dtype == FLOAT32 ? exchange_of<FLOAT32>(call, epoch, slot, own) :
		    call.dtype == INT32         ? exchange_of<INT32>(call, epoch, slot, own) :
		                                  exchange_of<BFLOAT16>(call, epoch, slot, own);
		slot += step;
		if (!ok || slot >= slots)
			return;
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

/* A slot for each warp, and a warp for each block as far as there is room: multiprocessors have links of their own. */
static int geometry(void *, const struct shunt_plugin_request *request, struct shunt_plugin_launch *launch)
{
	const uint32_t slots = SLOTS_OF(request->bytes ? request->bytes : 1), most = SHUNT_PLUGIN_MAX_THREADS / 32;
	const uint32_t blocks = slots < request->max_blocks ? slots : request->max_blocks;
	const uint32_t warps = (slots + blocks - 1) / blocks;

	launch->blocks = blocks;
	launch->threads = 32 * (warps < most ? warps : most);
	return 0;
}

static struct shunt_plugin table()
{
	struct shunt_plugin p = {};

	p.size = sizeof(p);
	p.abi = SHUNT_PLUGIN_ABI;
	p.name = "allreduce_oneshot";
	p.doc = "an example: every rank sends all it has to all";
	p.collectives = "allreduce";
	p.dtypes = 1u << INT32 | 1u << FLOAT32 | 1u << BFLOAT16;
	p.redops = 1; /* ncclSum */
	p.max_bytes = MOST;
	p.scratch_bytes = 2ull * SHUNT_PLUGIN_RANKS * SLOTS_OF(MOST) * SHUNT_K_SLOT_WIRE;
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

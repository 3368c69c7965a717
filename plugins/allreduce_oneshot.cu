/* SPDX-License-Identifier: MIT */
/*
 * An all-reduce as a plug-in: every rank sends all it has to all others, in slots whose lines carry a flag, and adds
 * up what comes, in the ranks' order. docs/plugins.md explains each part of it.
 */
#include "shunt/kernel.h"

enum { INT32 = 2, FLOAT32 = 7, BFLOAT16 = 9 }; /* NCCL's numbers */
#define MOST (256u << 10)                      /* bytes */
#define SLOTS_OF(bytes) (uint32_t)(((bytes) + SHUNT_K_SLOT_DATA - 1) / SHUNT_K_SLOT_DATA)

/* The sum of 64 bits of each rank: of two numbers, or of four, in the ranks' order. */
template <uint32_t DTYPE, uint32_t N> SHUNT_K_FN uint64_t add(const uint64_t (&x)[N], uint32_t nranks)
{
	const uint32_t parts = DTYPE == BFLOAT16 ? 4 : 2, bits = 64 / parts;
	uint64_t sums = 0;

	SHUNT_K_UNROLL for (uint32_t part = 0; part < parts; part++)
	{
		uint32_t sum = (uint32_t)(x[0] >> part * bits);
		float bf16 = shunt_k_from_bf16(sum & 0xffff);

		SHUNT_K_UNROLL for (uint32_t r = 1; r < N; r++)
		{
			const uint32_t of_rank = (uint32_t)(x[r] >> part * bits);

			if (r >= nranks)
				continue;
			bf16 += shunt_k_from_bf16(of_rank & 0xffff);
			sum =
			    DTYPE == INT32 ? sum + of_rank : shunt_k_bits(shunt_k_float(sum) + shunt_k_float(of_rank));
		}
		sums |= (uint64_t)(DTYPE == BFLOAT16 ? shunt_k_to_bf16(bf16) : sum) << part * bits;
	}
	return sums;
}

/* The type is asked here, behind the exchange, which is the same for all: short code is fetched sooner. */
template <uint32_t N>
SHUNT_K_FN struct shunt_k_v16 add_as(
    uint32_t dtype, const uint64_t (&low)[N], const uint64_t (&high)[N], uint32_t nranks)
{
	if (dtype == BFLOAT16)
		return { add<BFLOAT16, N>(low, nranks), add<BFLOAT16, N>(high, nranks) };
	if (dtype == INT32)
		return { add<INT32, N>(low, nranks), add<INT32, N>(high, nranks) };
	return { add<FLOAT32, N>(low, nranks), add<FLOAT32, N>(high, nranks) };
}

/* Where a slot of one rank lies at another. Two sets alternate: a rank is at most one call ahead. */
SHUNT_K_FN char *box(const struct shunt_plugin_call &call, uint64_t epoch, uint32_t at, uint32_t from, uint32_t slot)
{
	const uint32_t set = (uint32_t)(epoch & 1) * SHUNT_PLUGIN_RANKS;

	return call.scratch[at] + ((set + from) * SLOTS_OF(MOST) + slot) * SHUNT_K_SLOT_WIRE;
}

/*
 * One slot of a message, for up to N ranks: every index into registers is a constant. All conditions are known before
 * it begins, so all that does not hang on the message is worked out while its load is under way. False: a rank is gone.
 */
template <uint32_t N, bool ALIGNED>
SHUNT_K_FN bool exchange(const struct shunt_plugin_call &call, struct shunt_k_epoch count, uint32_t slot)
{
	const uint32_t nranks = N == 2 ? N : call.nranks, sources = N == 2 ? 1 : N;
	const uint64_t at = (uint64_t)slot * SHUNT_K_SLOT_DATA;
	const struct shunt_k_v16 own = shunt_k_slot_get((const char *)call.send + at, call.bytes - at, ALIGNED);
	const uint64_t epoch = count;
	const char *from[sources];
	struct shunt_k_v16 v[sources];
	uint64_t low[N], high[N];

	SHUNT_K_ROLL for (uint32_t k = 1, peer = call.rank; k < nranks; k++)
	{
		peer = peer + 1 == nranks ? 0 : peer + 1; /* not all to one peer at a time */
		shunt_k_slot_store(box(call, epoch, peer, call.rank, slot), own, epoch);
	}
	/* In place of this rank, and of ranks that do not exist, another one again: no load has a condition. */
	SHUNT_K_UNROLL for (uint32_t r = 0; r < sources; r++) from[r] =
	    box(call, epoch, call.rank, r < nranks && r != call.rank ? r : !call.rank, slot);
	if (!shunt_k_slots_wait(call, from, epoch, v))
		return false;
	SHUNT_K_UNROLL for (uint32_t r = 0; r < N; r++)
	{
		low[r] = r == call.rank ? own.lo : v[r % sources].lo;
		high[r] = r == call.rank ? own.hi : v[r % sources].hi;
	}
	shunt_k_slot_put((char *)call.recv + at, call.bytes - at, ALIGNED, add_as<N>(call.dtype, low, high, nranks));
	return true;
}

/* A warp has a slot at a time. */
template <uint32_t N, bool ALIGNED>
SHUNT_K_FN void exchange_all(const struct shunt_plugin_call &call, struct shunt_k_epoch epoch)
{
	const uint32_t slots = SLOTS_OF((uint32_t)call.bytes), step = shunt_k_nbid() * shunt_k_ntid() / 32;
	uint32_t slot = (shunt_k_bid() * shunt_k_ntid() + shunt_k_tid()) / 32;

	SHUNT_K_ROLL while (slot < slots && exchange<N, ALIGNED>(call, epoch, slot)) slot += step;
}

SHUNT_PLUGIN_KERNEL(allreduce_oneshot)
{
	if (!(call.flags & SHUNT_PLUGIN_ALIGNED))
		exchange_all<SHUNT_PLUGIN_RANKS, false>(call, epoch);
	else if (call.nranks > 4)
		exchange_all<SHUNT_PLUGIN_RANKS, true>(call, epoch);
	else if (call.nranks > 2)
		exchange_all<4, true>(call, epoch);
	else
		exchange_all<2, true>(call, epoch);
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

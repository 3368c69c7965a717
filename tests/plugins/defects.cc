/* SPDX-License-Identifier: MIT */
/*
 * Plug-ins with one defect each, and `sound` with none, for the sim: what `shunt plugin check` has to tell by name, and
 * what communicators have to bear. All are all-reduces of int32 and float32: every rank stores its input into all
 * ranks' scratch, waits for all, adds up, and waits for all again.
 */
#include <atomic>
#include <errno.h>
#include <unistd.h>
#include "shunt/kernel.h"
#include "tests/support/pause.h"

enum defect {
	SOUND,
	PAST_SCRATCH,
	PAST_PEER,
	PAST_OUTPUT,
	NO_BARRIER,
	OWN_ORDER,
	OLD_EPOCH,
	NO_LIMIT,
	FOR_EVER,
	NO_TAIL,
	NO_PLACE,
	ONE_OPERATOR,
	UNALIGNED,
	ORDERED,
	UNORDERED
};
enum { INT32 = 2, FLOAT32 = 7, MAX = 2 };
#define MOST (64u << 10)
#define PACKETS 32u

static uint32_t reduce(uint32_t dtype, bool max, uint32_t a, uint32_t b)
{
	if (dtype == INT32)
		return !max ? a + b : (int32_t)a > (int32_t)b ? a : b;
	float x = shunt_k_float(a), y = shunt_k_float(b);
	return shunt_k_bits(!max ? x + y : x > y ? x : y);
}

static uint32_t load(const char *p)
{
	uint32_t v;

	__builtin_memcpy(&v, p, 4);
	return v;
}

static void store(char *p, uint32_t v)
{
	__builtin_memcpy(p, &v, 4);
}

/* As the barrier, but a rank that sees the others' words may not see yet what they stored before. */
static bool tell_without_order(const struct shunt_plugin_call &call, uint64_t epoch)
{
	shunt_k_sync();
	for (uint32_t r = 0; r < call.nranks && shunt_k_tid() == 0; r++)
		shunt_k_store(&call.signals[r][call.rank * SHUNT_PLUGIN_SIGNALS], epoch);
	for (uint32_t r = 0; r < call.nranks && shunt_k_tid() == 0; r++)
		while (
		    shunt_k_load(&call.signals[call.rank][r * SHUNT_PLUGIN_SIGNALS]) < epoch && !shunt_k_aborted(call))
			shunt_k_relax();
	return shunt_k_sync_all(!shunt_k_aborted(call));
}

/* All blocks' first thread: the others need not come. */
static bool wait_for_all(const struct shunt_plugin_call &call, uint64_t epoch, enum defect defect)
{
	bool ok = true;

	if (defect == NO_BARRIER)
		return true;
	if (defect == UNORDERED)
		return tell_without_order(call, epoch);
	if (defect != OLD_EPOCH && defect != NO_LIMIT)
		return shunt_k_barrier(call);
	shunt_k_sync();
	for (uint32_t r = 0; r < call.nranks && shunt_k_tid() == 0; r++)
		shunt_k_signal(call, r, 0, defect == OLD_EPOCH ? 1 : epoch);
	for (uint32_t r = 0; r < call.nranks && shunt_k_tid() == 0; r++)
		if (defect == OLD_EPOCH)
			ok = ok && shunt_k_await(call, r, 0, 1);
		else
			while (shunt_k_acquire(&call.signals[call.rank][r * SHUNT_PLUGIN_SIGNALS]) < epoch)
				shunt_k_relax();
	return shunt_k_sync_all(ok);
}

/* A packet to the next rank, and from the one before; by one thread. */
static bool packets_come(const struct shunt_plugin_call &call, uint64_t epoch)
{
	const uint64_t at = call.scratch_bytes - PACKETS + (epoch & 1) * 16;
	uint64_t from;

	shunt_k_packet_store(call.scratch[(call.rank + 1) % call.nranks] + at, ~(uint64_t)call.rank, (uint32_t)epoch);
	return shunt_k_packet_wait(call, call.scratch[call.rank] + at, (uint32_t)epoch, &from) &&
	    ~from == (call.rank + call.nranks - 1) % call.nranks;
}

static void body(const struct shunt_plugin_call &call, uint64_t epoch, enum defect defect)
{
	const char *in = (const char *)call.send;
	char *out = (char *)call.recv;
	const bool max = call.redop == MAX && defect != ONE_OPERATOR;
	const uint64_t n = call.count - (defect == NO_TAIL && call.count % 2), step = shunt_k_ntid();
	const uint64_t half = (epoch & 1) * call.nranks * MOST; /* a rank may be a call ahead */

	if (shunt_k_bid()) /* has nothing to do */
		return;
	if (defect == UNALIGNED && call.bytes >= 16)
		(void)shunt_k_load16(in);
	if (defect == NO_PLACE)
		for (uint64_t i = shunt_k_tid(); i < n; i += step)
			store(out + 4 * i, 0);
	if (defect == NO_PLACE)
		shunt_k_sync();
	for (uint64_t i = shunt_k_tid(); i < n; i += step)
		for (uint32_t r = 0; r < call.nranks; r++)
			store(call.scratch[r] + half + call.rank * MOST + 4 * i, load(in + 4 * i));
	if (!shunt_k_tid() && defect == PAST_SCRATCH)
		call.scratch[call.rank][call.scratch_bytes + 5] = 1;
	if (!shunt_k_tid() && defect == PAST_PEER)
		call.scratch[(call.rank + 1) % call.nranks][-3] = 1;
	if (!shunt_k_tid() && defect == PAST_OUTPUT)
		store(out + call.bytes, 1);
	if (defect == FOR_EVER && !shunt_k_sync_all(shunt_k_tid() || shunt_k_await(call, 1, 7, 1)))
		return;
	if (!wait_for_all(call, epoch, defect))
		return;
	if (defect == SOUND && !shunt_k_sync_all(shunt_k_tid() || packets_come(call, epoch)))
		return;
	for (uint64_t i = shunt_k_tid(); i < n; i += step) {
		const char *slots = call.scratch[call.rank] + half + 4 * i;
		uint32_t first = defect == OWN_ORDER ? call.rank : 0, v = load(slots + first * MOST);

		for (uint32_t k = 1; k < call.nranks; k++)
			v = reduce(call.dtype, max, v, load(slots + (first + k) % call.nranks * MOST));
		store(out + 4 * i, v);
	}
}

#define KERNEL(name, defect) \
	SHUNT_PLUGIN_KERNEL(name) \
	{ \
		body(call, epoch, defect); \
	}
KERNEL(sound, SOUND)
KERNEL(past_scratch, PAST_SCRATCH)
KERNEL(past_peer, PAST_PEER)
KERNEL(past_output, PAST_OUTPUT)
KERNEL(no_barrier, NO_BARRIER)
KERNEL(own_order, OWN_ORDER)
KERNEL(old_epoch, OLD_EPOCH)
KERNEL(no_limit, NO_LIMIT)
KERNEL(for_ever, FOR_EVER)
KERNEL(no_tail, NO_TAIL)
KERNEL(no_place, NO_PLACE)
KERNEL(one_operator, ONE_OPERATOR)
KERNEL(unaligned, UNALIGNED)
KERNEL(ordered, ORDERED)
KERNEL(unordered, UNORDERED)

/* Right, but it does not count its warps, and says that it does. */
static void uncounted_sim(const struct shunt_sim_ops *ops, const struct shunt_plugin_call *call)
{
	__atomic_store_n(&shunt_k_sim, ops, __ATOMIC_RELAXED);
	uint64_t epoch = shunt_k_load(call->epoch) + 1;

	body(*call, epoch, SOUND);
	shunt_k_sync();
	if (!shunt_k_tid())
		shunt_k_store(call->epoch, epoch);
}

/* Another answer on each second thread that asks. */
static int support_some(void *, const struct shunt_plugin_request *)
{
	static std::atomic<int> threads;
	static thread_local int me = threads++;

	return getpid() % 2 ? me % 2 == 0 : me % 2;
}

static int fail(void *, const struct shunt_plugin_call *, void *)
{
	return -ENOSPC;
}

/* An all-gather by copies, that waits until all ranks are in the call. */
static int wait_in_enqueue(void *, const struct shunt_plugin_call *call, void *stream)
{
	static std::atomic<uint32_t> here;
	uint32_t until = (here++ / call->nranks + 1) * call->nranks;
	int err = call->host->barrier(call, stream);

	while (here < until)
		pause_us(PAUSE_POLL, 1000);
	for (uint32_t r = 0; r < call->nranks && !err; r++)
		err = call->host->copy(
		    call, call->scratch[r] + call->rank * call->bytes, call->send, call->bytes, stream);
	if (!err)
		err = call->host->barrier(call, stream);
	return err ? err :
	             call->host->copy(call, call->recv, call->scratch[call->rank], call->nranks * call->bytes, stream);
}

static struct shunt_plugin table(
    const char *name, void (*sim)(const struct shunt_sim_ops *, const struct shunt_plugin_call *))
{
	struct shunt_plugin p = {};

	p.size = sizeof(p);
	p.abi = SHUNT_PLUGIN_ABI;
	p.name = name;
	p.collectives = "allreduce";
	p.dtypes = 1u << INT32 | 1u << FLOAT32;
	p.redops = 1 | 1u << MAX;
	p.max_bytes = MOST;
	p.scratch_bytes = 2ull * SHUNT_PLUGIN_RANKS * MOST + PACKETS;
	p.min_ranks = 2;
	p.max_ranks = SHUNT_PLUGIN_RANKS;
	p.flags = SHUNT_PLUGIN_COUNTED;
	p.launch = { nullptr, 1, 64, 0, 0 };
	p.sim = sim;
	return p;
}

static struct shunt_plugin enqueues(
    const char *name, const char *collectives, int (*enqueue)(void *, const struct shunt_plugin_call *, void *))
{
	struct shunt_plugin p = table(name, nullptr);

	p.flags = 0;
	p.launch = {};
	p.collectives = collectives;
	p.enqueue = enqueue;
	return p;
}

static struct shunt_plugin unequal_table()
{
	struct shunt_plugin p = table("unequal", sound_sim);

	p.supports = support_some;
	return p;
}

/* Of few cases, and with more blocks and threads than ThreadSanitizer has room for. */
static struct shunt_plugin large_table(
    const char *name, void (*sim)(const struct shunt_sim_ops *, const struct shunt_plugin_call *))
{
	struct shunt_plugin p = table(name, sim);

	p.dtypes = 1u << FLOAT32;
	p.redops = 1;
	p.launch.blocks = SHUNT_PLUGIN_MAX_BLOCKS;
	p.launch.threads = SHUNT_PLUGIN_MAX_THREADS;
	return p;
}

static const struct shunt_plugin plugins[] = { table("sound", sound_sim), table("past_scratch", past_scratch_sim),
	table("past_peer", past_peer_sim), table("past_output", past_output_sim), table("no_barrier", no_barrier_sim),
	table("own_order", own_order_sim), table("old_epoch", old_epoch_sim), table("no_limit", no_limit_sim),
	table("for_ever", for_ever_sim), table("no_tail", no_tail_sim), table("no_place", no_place_sim),
	table("one_operator", one_operator_sim), table("unaligned", unaligned_sim), table("uncounted", uncounted_sim),
	unequal_table(), enqueues("failing", "allreduce", fail), enqueues("waiting", "allgather", wait_in_enqueue),
	large_table("ordered", ordered_sim), large_table("unordered", unordered_sim) };

extern "C" SHUNT_API const struct shunt_plugin *const shunt_plugins_1[] = { &plugins[0], &plugins[1], &plugins[2],
	&plugins[3], &plugins[4], &plugins[5], &plugins[6], &plugins[7], &plugins[8], &plugins[9], &plugins[10],
	&plugins[11], &plugins[12], &plugins[13], &plugins[14], &plugins[15], &plugins[16],
#if defined(__SANITIZE_THREAD__) /* what is wrong with the last one no other build can see */
	&plugins[17], &plugins[18],
#endif
	nullptr };

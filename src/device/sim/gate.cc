/* SPDX-License-Identifier: MIT */
/* Gates: tests hold a stream at a point, and learn that a kernel can go no further, without a sleep. */
#include "device/sim/hooks.h"
#include "device/sim/sim.h"
#include "device/sim/sync.h"

struct gate_args {
	const uint32_t *gate;
};

static void wait_at_gate(const void *args)
{
	while (!__atomic_load_n(((const struct gate_args *)args)->gate, __ATOMIC_RELAXED))
		shunt_sim_relax();
}

int shunt_sim_gate(int device, void *stream, const uint32_t *gate)
{
	struct gate_args args = { gate };
	struct shunt_sim_launch launch = { wait_at_gate, 1, SIM_LANES, &args, sizeof(args) };

	return shunt_sim_launch_fn(device, &launch, stream);
}

void shunt_sim_gate_open(uint32_t *gate) { __atomic_store_n(gate, 1u, __ATOMIC_RELAXED); }

bool shunt_sim_wait_stuck(int device, void *handle)
{
	struct sim_stream *stream = sim_stream_get(device, handle);
	uint32_t completed;

	if (!stream)
		return false;
	while ((completed = __atomic_load_n(&stream->completed, __ATOMIC_ACQUIRE)) !=
	    __atomic_load_n(&stream->submitted, __ATOMIC_ACQUIRE)) {
		if (sim_pool_stuck(&stream->pool) && completed == __atomic_load_n(&stream->completed, __ATOMIC_ACQUIRE))
			return true;
		sim_sleep_us(100);
	}
	return false;
}

/* SPDX-License-Identifier: MIT */
#include "plan/format/ops.h"

#define MEM (1u << SHUNT_PLAN_MEMORY)
#define PORT (1u << SHUNT_PLAN_PORT)
#define SWITCH (1u << SHUNT_PLAN_SWITCH)
#define CHANNELS SHUNT_PLAN_IDS_CHANNELS
#define PORTS SHUNT_PLAN_IDS_PORTS
#define SEMAPHORES SHUNT_PLAN_IDS_SEMAPHORES

/* code, name, types, src, dst, src of port, ids, pairwise, reduces */
#define ROWS(ROW) \
	ROW(NOP, "nop", 0, "", "", 0, 0, 0, 0) \
	ROW(BARRIER, "barrier", 0, "", "", 0, 0, 0, 0) \
	ROW(SIGNAL, "signal", MEM | PORT, "", "", 0, CHANNELS, 0, 0) \
	ROW(WAIT, "wait", MEM | PORT, "", "", 0, CHANNELS, 0, 0) \
	ROW(RLXSIGNAL, "rlxsignal", MEM | PORT, "", "", 0, CHANNELS, 0, 0) \
	ROW(RLXWAIT, "rlxwait", MEM | PORT, "", "", 0, CHANNELS, 0, 0) \
	ROW(FLUSH, "flush", PORT, "", "", 0, CHANNELS, 0, 0) \
	ROW(SEM_ACQUIRE, "sem_acquire", 0, "", "", 0, SEMAPHORES, 0, 0) \
	ROW(SEM_RELEASE, "sem_release", 0, "", "", 0, SEMAPHORES, 0, 0) \
	ROW(COPY, "copy", 0, "l", "l", 0, 0, 0, 0) \
	ROW(PUT, "put", MEM | PORT, "l+", "r+", 0, PORTS, 1, 0) \
	ROW(PWS, "pws", PORT, "l+", "r+", 0, PORTS, 1, 0) \
	ROW(PWSF, "pwsf", PORT, "l+", "r+", 0, PORTS, 1, 0) \
	ROW(GET, "get", MEM, "r+", "l+", 0, 0, 1, 0) \
	ROW(CPKT, "cpkt", 0, "l", "p", 0, 0, 0, 0) \
	ROW(UPKT, "upkt", 0, "p", "l", 0, 0, 0, 0) \
	ROW(PPKT, "ppkt", MEM | PORT, "l+", "q+", "p+", PORTS, 1, 0) \
	ROW(RPPKT, "rppkt", MEM | PORT, "p", "q+", 0, PORTS, 0, 0) \
	ROW(RE, "re", 0, "ll+", "l", 0, 0, 0, 1) \
	ROW(RES, "res", MEM, "ll+", "lr+", 0, 0, 0, 1) \
	ROW(RRE, "rre", MEM, "lr+", "l", 0, 0, 0, 1) \
	ROW(RRES, "rres", MEM, "lr+", "lr+", 0, 0, 0, 1) \
	ROW(REPKT, "repkt", 0, "lp+", "l", 0, 0, 0, 1) \
	ROW(RESPKT, "respkt", MEM, "lp+", "lq+", 0, 0, 0, 1) \
	ROW(RECPKT, "recpkt", 0, "lp+", "lp", 0, 0, 0, 1) \
	ROW(RECSPKT, "recspkt", MEM, "lp+", "lpq+", 0, 0, 0, 1) \
	ROW(GLRES, "glres", SWITCH, "w", "w", 0, 0, 0, 1) \
	ROW(GSTORE, "gstore", SWITCH, "l", "w", 0, 0, 0, 0) \
	ROW(GSTOREPKT, "gstorepkt", SWITCH, "p", "x", 0, 0, 0, 0) \
	ROW(GLRE, "glre", SWITCH, "w", "l", 0, 0, 0, 1) \
	ROW(PIPELINE, "pipeline", 0, "", "", 0, 0, 0, 0)

#define ROW(code, name, types, src, dst, port_src, ids, pairwise, reduces) \
	[SHUNT_PLAN_##code] = { name, types, src, dst, port_src, ids, pairwise, reduces },
const struct shunt_plan_op_row shunt_plan_op_rows[SHUNT_PLAN_NOPCODES] = { ROWS(ROW) };
#undef ROW
#define ROW(code, name, types, src, dst, port_src, ids, pairwise, reduces) [SHUNT_PLAN_##code] = name,
const char *const shunt_plan_op_names[] = { ROWS(ROW)[SHUNT_PLAN_NOPCODES] = NULL };
#undef ROW

#define ROW_UNPLANNED(name)
#define ROW_PLANNED(name) name,
#define ROW(id, name, long_name, function, ranks, send, recv, op, place, nccl, plans) ROW_##plans(name)
const char *const shunt_plan_collective_names[] = { SHUNT_COLLECTIVE_LIST(ROW) "sendrecv", "test", "custom", NULL };
#undef ROW
#define ROW(id, number, name, nccl, kernel, plans) ROW_##plans(name)
const char *const shunt_plan_redop_names[] = { SHUNT_REDOP_LIST(ROW) NULL };
#undef ROW
/* In the order of the enums. */
const char *const shunt_plan_buffer_letters[] = { "i", "o", "s", NULL };
const char *const shunt_plan_type_names[] = { "memory", "port", "switch", "none", NULL };

const char *shunt_plan_collective_name(enum shunt_plan_collective collective)
{
	return (unsigned)collective < SHUNT_PLAN_NCOLLECTIVES ? shunt_plan_collective_names[collective] : "unknown";
}

const char *shunt_plan_op_name(enum shunt_plan_opcode code)
{
	return (unsigned)code < SHUNT_PLAN_NOPCODES ? shunt_plan_op_names[code] : "unknown";
}

const char *shunt_plan_buffer_name(enum shunt_plan_buffer buffer)
{
	static const char *const names[] = { "input", "output", "scratch" };

	return (unsigned)buffer < SHUNT_PLAN_NBUFFERS ? names[buffer] : "unknown";
}

const char *shunt_plan_channel_type_name(enum shunt_plan_channel_type type)
{
	return (unsigned)type <= SHUNT_PLAN_NONE ? shunt_plan_type_names[type] : "unknown";
}

bool shunt_plan_op_reduces(enum shunt_plan_opcode code)
{
	return (unsigned)code < SHUNT_PLAN_NOPCODES && shunt_plan_op_rows[code].reduces;
}

bool shunt_plan_op_signals(enum shunt_plan_opcode code)
{
	return code == SHUNT_PLAN_SIGNAL || code == SHUNT_PLAN_RLXSIGNAL || code == SHUNT_PLAN_PWS ||
	    code == SHUNT_PLAN_PWSF;
}

uint32_t shunt_plan_slice_ranks(
    const struct shunt_plan_gpu *gpu, const struct shunt_plan_slice *slice, const uint32_t **ranks_p)
{
	if (slice->place != SHUNT_PLAN_MULTICAST) {
		*ranks_p = &slice->target;
		return 1;
	}
	*ranks_p = gpu->switches[slice->target].ranks;
	return gpu->switches[slice->target].nranks;
}

/* SPDX-License-Identifier: MIT */
#include "shim/range.h"

bool shunt_ranges;

#ifdef SHUNT_NVTX
#include <nvtx3/nvToolsExt.h>
#include "core/config.h"

enum { GROUP = SHUNT_NKINDS, NNAMES };

static const char *const texts[NNAMES] = {
	[SHUNT_ALLREDUCE] = "ncclAllReduce",
	[SHUNT_REDUCE] = "ncclReduce",
	[SHUNT_BROADCAST] = "ncclBroadcast",
	[SHUNT_ALLGATHER] = "ncclAllGather",
	[SHUNT_REDUCESCATTER] = "ncclReduceScatter",
	[SHUNT_ALLTOALL] = "ncclAlltoAll",
	[SHUNT_GATHER] = "ncclGather",
	[SHUNT_SCATTER] = "ncclScatter",
	[SHUNT_SEND] = "ncclSend",
	[SHUNT_RECV] = "ncclRecv",
	[GROUP] = "ncclGroupEnd",
};
static nvtxDomainHandle_t domain;
static nvtxStringHandle_t names[NNAMES];

void shunt_range_init(void)
{
	if (shunt_nccl_env()->nvtx_disable)
		return;
	domain = nvtxDomainCreateA("NCCL"); /* NULL: no tool */
	shunt_ranges = domain;
	for (int i = 0; shunt_ranges && i < NNAMES; i++)
		names[i] = nvtxDomainRegisterStringA(domain, texts[i]);
}

static void begin(int name, uint64_t payload)
{
	const nvtxEventAttributes_t range = {
		.version = NVTX_VERSION,
		.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
		.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
		.payload.ullValue = payload,
		.messageType = NVTX_MESSAGE_TYPE_REGISTERED,
		.message.registered = names[name],
	};

	nvtxDomainRangePushEx(domain, &range);
}

void shunt_range_begin(const struct shunt_coll *coll)
{
	begin((int)coll->kind, shunt_coll_bytes(coll));
}

void shunt_range_begin_group(size_t calls)
{
	begin(GROUP, calls);
}

void shunt_range_end(void)
{
	nvtxDomainRangePop(domain);
}
#else
void shunt_range_init(void)
{
}

void shunt_range_begin(const struct shunt_coll *coll)
{
}

void shunt_range_begin_group(size_t calls)
{
}

void shunt_range_end(void)
{
}
#endif

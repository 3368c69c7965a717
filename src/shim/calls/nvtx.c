/* SPDX-License-Identifier: MIT */
#include "shim/calls/nvtx.h"

bool shunt_nvtx_enabled;

#ifdef SHUNT_NVTX
#include <nvtx3/nvToolsExt.h>
#include "base/config.h"

enum { NVTX_GROUP = SHUNT_NKINDS, NVTX_NNAMES };

static nvtxDomainHandle_t domain;
static nvtxStringHandle_t range_names[NVTX_NNAMES];

void shunt_nvtx_init(void)
{
	if (shunt_nccl_env()->nvtx_disable)
		return;
	domain = nvtxDomainCreateA("NCCL"); /* NULL: no tool */
	shunt_nvtx_enabled = domain;
	for (int i = 0; shunt_nvtx_enabled && i < NVTX_NNAMES; i++)
		range_names[i] =
		    nvtxDomainRegisterStringA(domain, i == NVTX_GROUP ? "ncclGroupEnd" : shunt_kind_rows[i].function);
}

static void range_push(int name, uint64_t payload)
{
	const nvtxEventAttributes_t range = {
		.version = NVTX_VERSION,
		.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
		.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
		.payload.ullValue = payload,
		.messageType = NVTX_MESSAGE_TYPE_REGISTERED,
		.message.registered = range_names[name],
	};

	nvtxDomainRangePushEx(domain, &range);
}

void shunt_nvtx_range_push(const struct shunt_coll *coll)
{
	range_push((int)coll->kind, shunt_coll_bytes(coll));
}

void shunt_nvtx_range_push_group(size_t calls)
{
	range_push(NVTX_GROUP, calls);
}

void shunt_nvtx_range_pop(void)
{
	nvtxDomainRangePop(domain);
}
#else
void shunt_nvtx_init(void)
{
}

void shunt_nvtx_range_push(const struct shunt_coll *coll)
{
}

void shunt_nvtx_range_push_group(size_t calls)
{
}

void shunt_nvtx_range_pop(void)
{
}
#endif

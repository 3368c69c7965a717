/* SPDX-License-Identifier: MIT */
/* Without a real NCCL. */
#include <errno.h>
#include <string.h>
#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/standalone.h"
#include "transport/rendezvous/host_table.h"

ncclResult_t shunt_standalone_GetVersion(int *number)
{
	if (!number)
		return shunt_to_nccl(-EINVAL);
	*number = (int)shunt_config()->nccl_version;
	return ncclSuccess;
}

const char *shunt_standalone_GetErrorString(ncclResult_t result)
{
	static const char *const texts[] = {
		[ncclSuccess] = "no error",
		[ncclUnhandledCudaError] = "a CUDA call failed (see the log; NCCL_DEBUG=INFO tells more)",
		[ncclSystemError] = "a system call failed (see the log; NCCL_DEBUG=INFO tells more)",
		[ncclInternalError] = "internal error",
		[ncclInvalidArgument] = "invalid argument (see the log; NCCL_DEBUG=WARN tells more)",
		[ncclInvalidUsage] = "invalid usage (see the log; NCCL_DEBUG=WARN tells more)",
		[ncclRemoteError] = "a remote process exited or the connection to it failed",
		[ncclInProgress] = "operation in progress",
		[ncclTimeout] = "operation timed out",
	};

	if ((unsigned)result >= sizeof(texts) / sizeof(texts[0]))
		return "unknown result code";
	return texts[result];
}

const char *shunt_standalone_GetLastError(ncclComm_t comm)
{
	const char *ours = shunt_last_error();

	return ours ? ours : "";
}

/* Queries a number of the communicator. */
static ncclResult_t query(ncclComm_t comm, const char *what, int (*read)(const struct shunt_comm *comm), int *out)
{
	ncclResult_t result = ncclSuccess;
	struct shunt_entry *e;

	if (!out) {
		shunt_warn("%s: the place for the result is NULL", what);
		return shunt_to_nccl(-EINVAL);
	}
	e = shunt_standalone_find(comm, what, &result);
	if (e)
		*out = read(e->comm);
	shunt_entry_put(e);
	return result;
}

ncclResult_t shunt_standalone_CommCount(const ncclComm_t comm, int *count)
{
	return query(comm, "ncclCommCount", shunt_comm_nranks, count);
}

ncclResult_t shunt_standalone_CommCuDevice(const ncclComm_t comm, int *device)
{
	return query(comm, "ncclCommCuDevice", shunt_comm_device, device);
}

ncclResult_t shunt_standalone_CommUserRank(const ncclComm_t comm, int *rank)
{
	return query(comm, "ncclCommUserRank", shunt_comm_rank, rank);
}

/*
 * As much of it as the caller's header has. There is no device API, no multicast and no one-sided call without a real
 * NCCL, and what is 0 here says so. The number of a device for NVML is not known: -1.
 */
ncclResult_t shunt_standalone_CommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties)
{
	const size_t head = offsetof(ncclCommProperties_t, rank);
	const struct shunt_hosts *hosts;
	ncclCommProperties_t p = { 0 };
	ncclResult_t result;
	struct shunt_entry *e;
	size_t size;

	if (!properties || properties->magic != SHUNT_NCCL_CONFIG_MAGIC || properties->size < head) {
		shunt_warn("ncclCommQueryProperties: the structure was not initialized with "
		           "NCCL_COMM_PROPERTIES_INITIALIZER");
		return shunt_to_nccl(-EINVAL);
	}
	e = shunt_standalone_find(comm, "ncclCommQueryProperties", &result);
	if (!e)
		return result;
	hosts = shunt_comm_hosts(e->comm);
	p.rank = shunt_comm_rank(e->comm);
	p.nRanks = shunt_comm_nranks(e->comm);
	p.cudaDev = shunt_comm_device(e->comm);
	p.nvmlDev = -1;
	p.nLsaTeams = hosts ? hosts->nhosts : 1;
	p.commHash = shunt_fnv1a(0, e->id.b, sizeof(e->id.b));
	shunt_entry_put(e);
	size = properties->size < sizeof(p) ? properties->size : sizeof(p);
	memcpy((char *)properties + head, (char *)&p + head, size - head);
	return ncclSuccess;
}

const struct shunt_mode_ops shunt_standalone_ops = {
	.coll = shunt_standalone_coll,
#define MODE(name, params, args) .name = shunt_standalone_##name,
#define TEXT(name, params, args) .name = shunt_standalone_##name,
#include "shim/nccl/symbols.def"
};

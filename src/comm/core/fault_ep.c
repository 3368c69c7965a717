/* SPDX-License-Identifier: MIT */
#include "comm/core/fault_ep.h"
#include "comm/core/communicator.h"
#include "kernels/ep.h"

void shunt_fault_expert(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	shunt_comm_fail_saying(comm, err,
	    "%s %s: on rank %u token %u names expert %lld at place %u, and there are %llu; -1 stands for none",
	    shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, f->rank, f->channel, (long long)f->seen, f->pad,
	    (unsigned long long)f->expected);
}

/* The first value of SHUNT_EP_VALUES that differs. */
void shunt_fault_differs(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	static const struct {
		const char *name;
		int at, bits;
	} values[] = { { "max_tokens", 0, 16 }, { "hidden", 16, 16 }, { "experts", 32, 16 }, { "topk", 48, 8 },
		{ "form", 56, 8 } };
	size_t i = 0;
	uint64_t mask;

	while (i + 1 < sizeof(values) / sizeof(values[0]) &&
	    !((f->expected ^ f->seen) >> values[i].at & ((UINT64_C(1) << values[i].bits) - 1)))
		i++;
	mask = (UINT64_C(1) << values[i].bits) - 1;
	shunt_comm_fail_saying(comm, err,
	    "%s %s: rank %u calls ep_ll_dispatch with %s %llu where rank %u has %llu; it must be alike on all ranks",
	    shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, f->rank, values[i].name,
	    (unsigned long long)(f->expected >> values[i].at & mask), f->peer,
	    (unsigned long long)(f->seen >> values[i].at & mask));
}

void shunt_fault_under_way(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	const char *kind = f->channel == SHUNT_EP_DISPATCH ? "dispatch" : "combine";

	if (f->seen)
		shunt_comm_fail_saying(comm, err,
		    "%s %s: rank %u sends a third low latency %s before it has received the first; two may be under "
		    "way",
		    shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, f->rank, kind);
	else
		shunt_comm_fail_saying(comm, err,
		    "%s %s: rank %u receives a low latency %s that it has not sent, or has received before",
		    shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, f->rank, kind);
}

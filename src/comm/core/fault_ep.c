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

static const char *const normal_calls[] = { "ep_notify", "ep_dispatch", "ep_combine" };

static void differs(struct shunt_comm *comm, int err, const struct shunt_fault *f, const char *call, const char *name,
    uint64_t mine, uint64_t theirs)
{
	shunt_comm_fail_saying(comm, err,
	    "%s %s: rank %u calls %s with %s %llu where rank %u has %llu; it must be alike on all ranks",
	    shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, f->rank, call, name, (unsigned long long)mine, f->peer,
	    (unsigned long long)theirs);
}

/* A value of struct shunt_ep_head. */
static void normal_differs(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	static const char *const names[][SHUNT_EP_SAME] = {
		{ "kind", "", "", "", "", "experts" },
		{ "kind", "blocks", "row_bytes", "topk", "nscales", "experts" },
		{ "kind", "blocks", "hidden", "topk", "dtype", "" },
	};

	if (f->pad)
		differs(comm, err, f, normal_calls[f->channel], names[f->channel][f->pad], f->expected, f->seen);
	else
		shunt_comm_fail_saying(comm, err,
		    "%s %s: rank %u calls %s where rank %u calls %s; all ranks must make the same calls in the same "
		    "order",
		    shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, f->rank, normal_calls[f->channel], f->peer,
		    normal_calls[f->seen % 3]);
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

	if (f->channel != SHUNT_CHECK_CHANNEL) {
		normal_differs(comm, err, f);
		return;
	}
	while (i + 1 < sizeof(values) / sizeof(values[0]) &&
	    !((f->expected ^ f->seen) >> values[i].at & ((UINT64_C(1) << values[i].bits) - 1)))
		i++;
	mask = (UINT64_C(1) << values[i].bits) - 1;
	differs(comm, err, f, "ep_ll_dispatch", values[i].name, f->expected >> values[i].at & mask,
	    f->seen >> values[i].at & mask);
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

void shunt_fault_overflow(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	shunt_comm_fail_saying(comm, err,
	    f->channel == SHUNT_EP_NORMAL_COMBINE ? "%s %s: in %s rank %u gives %llu of %llu rows" :
	                                            "%s %s: in %s rank %u has room for %llu of %llu rows",
	    shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, normal_calls[f->channel], f->peer,
	    (unsigned long long)f->expected, (unsigned long long)f->seen);
}

/* SPDX-License-Identifier: MIT */
#include "comm/setup/island_memory.h"
#include <errno.h>
#include <stdlib.h>
#include "base/config.h"
#include "base/log.h"
#include "base/os.h"
#include "base/rlimits.h"
#include "comm/core/communicator.h"
#include "transport/symm/shared.h"
#include "transport/symm/symm.h"

/* The ranks of a part, while they share memory. */
struct sharing {
	struct shunt_comm *comm;
	enum shunt_part_kind kind;
	bool on_host;
};

/* Once this rank has mapped the memory of the others. */
static int fill(void *ctx)
{
	const struct sharing *s = ctx;
	struct shunt_comm *comm = s->comm;
	struct shunt_gpu_mem *mem = comm->islands->mem[s->kind];
	struct shunt_part *part = &comm->islands->part[s->kind];
	struct shunt_kargs *k = &part->kargs;
	int own = part->topology.rank, err;
	uint64_t number = SHUNT_PART_OP(s->kind);
	struct shunt_ctrl *ctrl;

	part->room = (char *)mem[own].ptr + SHUNT_SCRATCH_BYTES(part->key.nranks);
	k->rank = (uint16_t)own;
	k->nranks = (uint16_t)part->key.nranks;
	for (int i = 0; i < part->key.nranks; i++)
		k->peer[i] = mem[i].ptr;
	if (s->on_host)
		k->peer[own] = comm->islands->ctrl.ptr;
	ctrl = (struct shunt_ctrl *)k->peer[own];
	err = comm->gpu->copy(comm->device, &ctrl->host_ctrl, &comm->words_dev, sizeof(comm->words_dev));
	if (!err)
		err = comm->gpu->copy(comm->device, &ctrl->rank_of, part->rank_of, sizeof(ctrl->rank_of));
	if (!err && part->key.staged)
		err = comm->gpu->copy(comm->device, &ctrl->inbox, &mem[own].ptr, sizeof(mem[own].ptr));
	return err ? err : comm->gpu->copy(comm->device, &ctrl->progress.now, &number, sizeof(number));
}

static void alloc(struct sharing *s, struct shunt_symm *symm)
{
	struct shunt_comm *comm = s->comm;
	int n = comm->islands->part[s->kind].key.nranks, err;
	uint64_t limit = shunt_config()->shared_bytes,
	         bytes = comm->islands->part[s->kind].key.staged ?
	    SHUNT_SEGMENT_BYTES(n) :
	    SHUNT_SCRATCH_BYTES(n) + SHUNT_PARTS_ROOM(comm->sel_key.sim);

	if (s->on_host && limit && bytes + SHUNT_SEGMENT_BYTES(comm->nranks) > limit) {
		shunt_vote_refuse(&symm->vote, "SHUNT_SHARED_BYTES allows %llu bytes, and that takes %llu",
		    (unsigned long long)limit, (unsigned long long)(bytes + SHUNT_SEGMENT_BYTES(comm->nranks)));
		return;
	}
	if (shunt_symm_alloc(symm, bytes) || !s->on_host)
		return;
	err = shunt_shared_alloc(comm->gpu, comm->device, false, SHUNT_CTRL_BYTES, &comm->islands->ctrl);
	if (err)
		shunt_vote_refuse(&symm->vote, "scratch cannot be allocated: %s", shunt_error_text(err).s);
}

static int share(struct shunt_comm *comm, enum shunt_part_kind kind)
{
	struct shunt_part *part = &comm->islands->part[kind];
	struct sharing s = { comm, kind, part->key.staged && comm->topology.within == SHUNT_LINK_SHARED };
	struct shunt_symm symm;
	int err;

	shunt_symm_init(&symm,
	    &(struct shunt_symm_config){ .ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout),
	        .mates = part->rank_of,
	        .nmates = part->key.nranks,
	        .own = part->topology.rank,
	        .gpu = comm->gpu,
	        .device = comm->device,
	        .process = shunt_process_token(),
	        .on_host = s.on_host,
	        .what = "memory for islands",
	        .mem = comm->islands->mem[kind],
	        .fill = fill,
	        .ctx = &s });
	alloc(&s, &symm);
	err = shunt_symm_agree(&symm);
	if (err == -EOPNOTSUPP && !comm->rank)
		shunt_info(
		    SHUNT_LOG_INIT, "communicator of %d ranks: islands are not used: %s", comm->nranks, symm.refusal);
	return err;
}

int shunt_comm_islands_share(struct shunt_comm *comm)
{
	struct shunt_comm_islands *islands;
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	int err = 0;

	if (comm->checks || !comm->sel_key.staged)
		return 0;
	islands = calloc(1, sizeof(*islands));
	if (!islands) {
		shunt_rendezvous_lacks_memory(&ranks);
		return -ENOMEM;
	}
	if (!shunt_parts_make(islands->part, &comm->sel_key)) {
		free(islands);
		return 0;
	}
	comm->islands = islands;
	islands->ctrl.fd = -1;
	for (int kind = 0; kind < SHUNT_PARTS; kind++)
		for (int i = 0; i < SHUNT_MAX_RANKS; i++)
			islands->mem[kind][i].fd = -1;
	for (int kind = 0; kind < SHUNT_PARTS && !err; kind++)
		err = share(comm, (enum shunt_part_kind)kind);
	if (!err)
		comm->sel_key.parts = islands->part;
	else if (err == -EOPNOTSUPP)
		shunt_comm_islands_drop(comm);
	return err == -EOPNOTSUPP ? 0 : err;
}

void shunt_comm_islands_drop(struct shunt_comm *comm)
{
	struct shunt_comm_islands *islands = comm->islands;

	if (!islands)
		return;
	comm->islands = NULL;
	for (int kind = 0; kind < SHUNT_PARTS; kind++)
		shunt_symm_free(comm->gpu, islands->mem[kind], SHUNT_MAX_RANKS);
	shunt_shared_free(comm->gpu, &islands->ctrl);
	free(islands);
}

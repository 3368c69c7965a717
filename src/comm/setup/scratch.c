/* SPDX-License-Identifier: MIT */
#include "comm/setup/scratch.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/rlimits.h"
#include "base/config.h"
#include "base/os.h"
#include "comm/core/communicator.h"
#include "comm/core/shared_gpu.h"
#include "comm/setup/hello.h"
#include "transport/symm/shared.h"
#include "transport/symm/symm.h"

/* True: the rank is on this rank's host. */
static bool is_local(const struct shunt_comm *comm, int r)
{
	return shunt_topology_is_joint(&comm->topology, r, comm->rank);
}

/*
 * The number of ranks of this process that share this rank's GPU, itself included; 1 on the sim, whose devices are
 * never full.
 */
static int threads_on_gpu(const struct shunt_comm *comm, const struct shunt_hello *h)
{
	const struct shunt_hello *mine = &h[comm->rank];
	int n = 0;

	for (int r = 0; r < comm->nranks; r++)
		n += r == comm->rank ||
		    (is_local(comm, r) && !mine->gpu.sim && mine->process == h[r].process &&
		        shunt_hello_same_gpu(mine, &h[r]));
	return n;
}

/* True: this rank may use its GPU. */
static bool may_share_gpu(struct shunt_comm *comm, const struct shunt_hello *hellos, struct shunt_vote *vote)
{
	for (int r = 0; r < comm->nranks && vote->ok; r++) {
		if (r == comm->rank || !is_local(comm, r))
			continue;
		if (shunt_hello_same_gpu(&hellos[comm->rank], &hellos[r]) && !shunt_config()->multi_rank_gpu)
			shunt_vote_refuse(
			    vote, "it shares its GPU with rank %d, which SHUNT_MULTI_RANK_GPU=1 would let it do", r);
	}
	if (vote->ok && shunt_config()->multi_rank_gpu < 2 && threads_on_gpu(comm, hellos) > 1 &&
	    !shunt_shared_gpu_take(comm))
		shunt_vote_refuse(vote,
		    "threads that share GPU %d have a communicator there; SHUNT_MULTI_RANK_GPU=2 allows it",
		    comm->device);
	return vote->ok;
}

/* True: the segments are on the host. Over PCIe the scratch is the segment. */
static bool is_shared(const struct shunt_comm *comm)
{
	return comm->topology.within == SHUNT_LINK_SHARED;
}

static size_t scratch_bytes(struct shunt_comm *comm)
{
	if (comm->own.bytes)
		return SHUNT_CTRL_BYTES + comm->own.bytes;
	if (comm->sel_key.staged)
		return SHUNT_SEGMENT_BYTES(comm->nranks) +
		    (comm->sel_key.ce_shared ? 2 * SHUNT_COPY_BYTES(comm->sel_key.sim) : 0);
	if (!shunt_comm_spans_hosts(comm))
		return SHUNT_SCRATCH_BYTES(comm->nranks);
	/* The same on all hosts. */
	return SHUNT_NET_SCRATCH_BYTES((unsigned)shunt_topology_largest(&comm->topology), comm->net.slot_bytes);
}

/* A failure becomes this rank's vote. */
static void make_scratch(struct shunt_comm *comm, const struct shunt_hello *hellos, struct shunt_symm *symm)
{
	const struct shunt_gpu_ops *gpu = comm->gpu;
	uint8_t rank_of[SHUNT_KARGS_MAX_RANKS];
	struct shunt_ctrl *ctrl;
	size_t bytes = scratch_bytes(comm);
	void *host, *dev;
	int err;

	if (!may_share_gpu(comm, hellos, &symm->vote))
		return;
	if (is_shared(comm) && shunt_config()->shared_bytes && bytes > shunt_config()->shared_bytes) {
		shunt_vote_refuse(&symm->vote,
		    "it needs %zu bytes of shared memory, and SHUNT_SHARED_BYTES allows %llu", bytes,
		    (unsigned long long)shunt_config()->shared_bytes);
		return;
	}
	err = gpu->kernels_load(comm->device);
	if (err) {
		shunt_vote_refuse(&symm->vote, "kernels cannot be loaded: %s", shunt_error_text(err).s);
		return;
	}
	if (shunt_symm_alloc(symm, bytes))
		return;
	if (is_shared(comm)) { /* what no peer writes stays in the GPU's memory */
		err = shunt_shared_alloc(
		    gpu, comm->device, false, SHUNT_CTRL_BYTES, &comm->mem[shunt_comm_local_rank(comm)]);
		if (err) {
			shunt_vote_refuse(&symm->vote, "scratch cannot be allocated: %s", shunt_error_text(err).s);
			return;
		}
	}
	err = gpu->host_alloc(
	    sizeof(*comm->words) + (comm->own.host_bytes ? comm->own.host_bytes : SHUNT_SELFTEST_STATUS_BYTES), &host,
	    &dev);
	if (err) {
		shunt_vote_refuse(&symm->vote, "page-locked memory cannot be allocated: %s", shunt_error_text(err).s);
		return;
	}
	comm->words = host;
	comm->words_dev = dev;
	comm->words->limit_ns = shunt_comm_spin_limit(comm);
	ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr;
	for (int r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
		rank_of[r] = (uint8_t)r;
	err = gpu->copy(comm->device, &ctrl->host_ctrl, &dev, sizeof(dev));
	if (!err)
		err = gpu->copy(comm->device, &ctrl->rank_of, rank_of, sizeof(rank_of));
	if (err)
		shunt_vote_refuse(&symm->vote, "its scratch cannot be written: %s", shunt_error_text(err).s);
}

/*
 * For SHUNT_CHECK: a plan's launch has no other way to find the peers' scratch. Without NVLink, kernels also have no
 * other way to find what peers write.
 */
static int write_peers(void *ctx)
{
	struct shunt_comm *comm = ctx;
	int own = shunt_comm_local_rank(comm), err;
	struct shunt_ctrl *ctrl = comm->mem[own].ptr;
	char *peer[SHUNT_KARGS_MAX_RANKS] = { NULL };

	for (int r = 0; r < shunt_comm_local_ranks(comm); r++)
		peer[r] = is_shared(comm) ? comm->segment[r].ptr : comm->mem[r].ptr;
	err = comm->gpu->copy(comm->device, ctrl->check.peer, peer, sizeof(peer));
	return err || !comm->sel_key.staged ?
	    err :
	    comm->gpu->copy(comm->device, &ctrl->inbox, &peer[own], sizeof(peer[own]));
}

static void begin_scratch(struct shunt_comm *comm, struct shunt_symm *symm, struct shunt_symm_terms *terms)
{
	shunt_symm_init(symm,
	    &(struct shunt_symm_config){ .ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout),
	        .mates = shunt_comm_spans_hosts(comm) ? shunt_topology_locals(&comm->topology) : NULL,
	        .nmates = shunt_comm_local_ranks(comm),
	        .own = shunt_comm_local_rank(comm),
	        .gpu = comm->gpu,
	        .device = comm->device,
	        .process = shunt_process_token(),
	        .on_host = is_shared(comm),
	        .what = is_shared(comm) ? "shared memory" : "scratch",
	        .mem = is_shared(comm) ? comm->segment : comm->mem,
	        .value = { comm->own.value[0], comm->own.value[1] },
	        .differs = { comm->own.differs[0], comm->own.differs[1] },
	        .terms = terms,
	        .fill = comm->checks || comm->sel_key.staged ? write_peers : NULL,
	        .ctx = comm });
}

int shunt_scratch_share(struct shunt_comm *comm, const struct shunt_hello *hellos, char *reason, size_t bytes)
{
	struct shunt_symm_terms terms[SHUNT_NET_MAX_RANKS];
	struct shunt_symm symm;
	int err;

	begin_scratch(comm, &symm, terms);
	make_scratch(comm, hellos, &symm);
	err = shunt_symm_agree(&symm);
	if (err == -EOPNOTSUPP)
		snprintf(reason, bytes, "%s", symm.refusal);
	for (int r = 0; r < comm->nranks && err == -EOPNOTSUPP; r++)
		comm->own_differs |= memcmp(terms[r].value, terms[0].value, sizeof(terms[r].value)) != 0;
	return err;
}

void shunt_scratch_drop(struct shunt_comm *comm)
{
	shunt_shared_gpu_release(comm);
	shunt_symm_free(comm->gpu, comm->mem, SHUNT_MAX_RANKS);
	shunt_symm_free(comm->gpu, comm->segment, SHUNT_MAX_RANKS);
	if (comm->words)
		comm->gpu->host_free(comm->words);
	comm->words = NULL;
}

void shunt_scratch_leave(struct shunt_comm *comm)
{
	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		comm->mem[r] = comm->segment[r] = (struct shunt_gpu_mem){ .fd = -1 };
	comm->words = NULL;
}

int shunt_scratch_make_single(struct shunt_comm *comm)
{
	int err = comm->gpu->kernels_load(comm->device);
	struct shunt_symm symm;

	begin_scratch(comm, &symm, NULL);
	if (!err)
		err = shunt_symm_alloc(&symm, sizeof(struct shunt_ctrl));
	return err ? err : shunt_symm_agree(&symm);
}

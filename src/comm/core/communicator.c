/* SPDX-License-Identifier: MIT */
/* Functions for the floors above that concern a whole communicator: break it, stop its kernels, forward a call. */
#include <stdarg.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/observe/dump.h"
#include "kernels/set.h"

bool shunt_comm_fail(struct shunt_comm *comm, int err)
{
	if (!shunt_comm_life_failed(&comm->life, err))
		return false;
	shunt_dump_error(comm->recorder, err);
	return true;
}

void shunt_comm_keep_text(struct shunt_comm *comm, const char *text)
{
	char *none = NULL, *copy = comm->own.bytes ? strdup(text) : NULL;

	if (copy && !atomic_compare_exchange_strong(&comm->error_text, &none, copy))
		free(copy);
}

const char *shunt_comm_error_text(const struct shunt_comm *comm)
{
	return atomic_load(&comm->error_text);
}

bool shunt_comm_fail_saying(struct shunt_comm *comm, int err, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	if (shunt_comm_life_error(&comm->life))
		return false;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	shunt_last_error_set(text);
	shunt_comm_keep_text(comm, text);
	if (!shunt_comm_fail(comm, err))
		return false;
	shunt_error("%s", text);
	return true;
}

int shunt_comm_fail_round(struct shunt_comm *comm, int err, const char *what)
{
	if (err == -ECANCELED)
		shunt_comm_fail(comm, err);
	else
		shunt_comm_fail_saying(comm, err, "%s of %d ranks, rank %d: %s: %s", shunt_comm_noun(comm),
		    comm->nranks, comm->rank, what, shunt_rendezvous_why(comm->rendezvous, err));
	return err;
}

uint64_t shunt_comm_spin_limit(const struct shunt_comm *comm)
{
	return comm->own.bytes ? comm->own.limit_ns : (uint64_t)shunt_config()->timeout * 1000000;
}

void shunt_comm_miss(struct shunt_comm *comm, int rank, const char *fmt, ...)
{
	char why[512];
	va_list ap;

	if (atomic_fetch_or(&comm->missed, UINT64_C(1) << rank) >> rank & 1)
		return;
	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	shunt_warn("%s: %s %s goes on without it on rank %d", why, shunt_comm_noun(comm), shunt_id_text(comm->id.b).s,
	    comm->rank);
}

void shunt_comm_stop_kernels(struct shunt_comm *comm)
{
	struct shunt_ctrl *ctrl = comm->mem[shunt_comm_local_rank(comm)].ptr;
	uint32_t one = 1;

	if (!comm->words) /* kernels of a single rank wait for no peer */
		return;
	/*
	 * Kernels check both words alike. limit_ns reaches them even where the copy has to wait until they have ended.
	 */
	__atomic_store_n(&comm->words->limit_ns, SHUNT_LIMIT_ABORT, __ATOMIC_RELEASE);
	comm->gpu->copy(comm->device, &ctrl->abort, &one, sizeof(one));
}

void shunt_comm_log_forward(const struct shunt_comm *comm, const char *reason)
{
	shunt_warn("communicator of %d ranks stays with NCCL%s: %s", comm->nranks,
	    comm->sel_key.deterministic ? ", its sums in NCCL's order in spite of SHUNT_DETERMINISTIC" : "", reason);
}

__attribute__((cold, noinline)) static void count_with_care(
    struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_reason reason)
{
	const struct shunt_gpu_ops *gpu = shunt_config()->marks ? shunt_gpu() : NULL;
	enum shunt_capture state = SHUNT_CAPTURE_ACTIVE;

	if (comm->checks)
		shunt_check_forward(&comm->check, comm->device, coll);
	if (gpu && comm->device >= 0)
		gpu->stream_capture(comm->device, coll->stream, &state);
	if (gpu)
		shunt_recorder_add_marked(comm->recorder, coll, reason, state != SHUNT_CAPTURE_NONE);
	else
		shunt_recorder_add_forward(comm->recorder, coll, reason);
	shunt_counters_add(&comm->counters, coll->kind, NULL, reason, shunt_coll_bytes(coll));
}

void shunt_comm_count_forward(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_reason reason)
{
	/* A reason from before the set-up is logged once the first call is forwarded for it. */
	if (reason == SHUNT_REASON_COMM && comm->rank == 0 && shunt_comm_life_tell(&comm->life))
		shunt_comm_log_forward(comm, comm->life.reason);
	if (comm->follows_forwarded) {
		count_with_care(comm, coll, reason);
		return;
	}
	shunt_recorder_add_forward(comm->recorder, coll, reason);
	shunt_counters_add(&comm->counters, coll->kind, NULL, reason, shunt_coll_bytes(coll));
}

void shunt_comm_note_function(struct shunt_comm *comm)
{
	shunt_recorder_note_function(comm->recorder);
}

void shunt_comm_phase(struct shunt_comm *comm, const char *phase)
{
	shunt_recorder_phase(comm->recorder, phase);
}

void shunt_comm_nccl_failed(struct shunt_comm *comm, int result)
{
	shunt_recorder_nccl_failed(comm->recorder, result);
}

const struct shunt_hosts *shunt_comm_hosts(const struct shunt_comm *comm)
{
	const struct shunt_hosts *hosts = atomic_load(&comm->hosts);

	return hosts || !comm->rendezvous ? hosts : shunt_rendezvous_hosts(comm->rendezvous);
}

/* SPDX-License-Identifier: MIT */
#include "comm/calls/copies.h"
#include <errno.h>
#include "base/log.h"
#include "comm/core/communicator.h"

/* False: it could not be created, and all copies go onto the launch's stream. */
static bool create_side_stream(struct shunt_comm *comm)
{
	struct shunt_ce *c = &comm->ce;
	const struct shunt_gpu_ops *gpu = comm->gpu;

	if (c->side_stream)
		return true;
	if (!c->fork && gpu->event_create(comm->device, false, &c->fork))
		return false;
	if (!c->join && gpu->event_create(comm->device, false, &c->join))
		return false;
	return !gpu->stream_create(comm->device, &c->side_stream);
}

/*
 * A stream that was forked inside a capture belongs to that capture until it ends, which the driver does not report.
 * Meanwhile another capture, or an eager call, may come.
 */
static bool side_stream_is_free(struct shunt_comm *comm)
{
	struct shunt_gpu_capture info;

	if (comm->gpu->capture_info(comm->device, comm->ce.side_stream, &info))
		return false;
	if (info.state == SHUNT_CAPTURE_NONE)
		return true;
	return info.state == SHUNT_CAPTURE_ACTIVE && comm->order.current && comm->order.current->id == info.id;
}

static int fork_side_stream(struct shunt_comm *comm, void *stream)
{
	struct shunt_ce *c = &comm->ce;
	int err;

	if (c->forked || !create_side_stream(comm) || !side_stream_is_free(comm))
		return 0;
	err = comm->gpu->event_record(comm->device, c->fork, stream);
	if (!err)
		err = comm->gpu->event_wait(comm->device, c->fork, c->side_stream);
	c->forked = !err;
	return err;
}

int shunt_ce_copy(struct shunt_comm *comm, void *stream, const struct shunt_copy *copy)
{
	bool shared = !copy->to || !copy->from;
	char *there =
	    shared ? (char *)comm->segment[copy->peer].ptr + SHUNT_SEGMENT_BYTES(comm->nranks) + copy->at : NULL;
	void *to = copy->to ? copy->to : there;
	const void *from = copy->from ? copy->from : there;
	int err = 0;

	if (copy->peer == comm->rank) {
		err = fork_side_stream(comm, stream);
		if (comm->ce.forked)
			stream = comm->ce.side_stream;
	} else if (copy->is_get && !shared) {
		from = shunt_symmem_peer_ptr(comm, from, copy->bytes, copy->peer);
	} else if (!shared) {
		to = shunt_symmem_peer_ptr(comm, to, copy->bytes, copy->peer);
	}
	if (!to || !from) {
		shunt_error("communicator of %d ranks, rank %d: %llu bytes at %p lie in no window; the buffers of a "
		            "call must lie in one as a whole",
		    comm->nranks, comm->rank, (unsigned long long)copy->bytes, copy->is_get ? copy->from : copy->to);
		return -EINVAL;
	}
	return err ? err : comm->gpu->copy_async(comm->device, to, from, copy->bytes, stream);
}

int shunt_ce_join(struct shunt_comm *comm, void *stream)
{
	struct shunt_ce *c = &comm->ce;
	int err;

	if (!c->forked)
		return 0;
	c->forked = false;
	err = comm->gpu->event_record(comm->device, c->join, c->side_stream);
	return err ? err : comm->gpu->event_wait(comm->device, c->join, stream);
}

void shunt_ce_finish(struct shunt_comm *comm)
{
	struct shunt_ce *c = &comm->ce;

	if (c->side_stream)
		comm->gpu->stream_destroy(comm->device, c->side_stream);
	if (c->fork)
		comm->gpu->event_destroy(comm->device, c->fork);
	if (c->join)
		comm->gpu->event_destroy(comm->device, c->join);
	*c = (struct shunt_ce){ 0 };
}

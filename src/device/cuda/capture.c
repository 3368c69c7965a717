/* SPDX-License-Identifier: MIT */
/*
 * Captures in progress on CUDA devices: queries, and nodes and edges added by hand. During a capture the driver
 * allows all changes to its graph but the removal of nodes. A node that no stream follows need not be joined.
 */
#include "device/cuda/dev.h"

int shunt_cu_capture_info(int device, void *stream, struct shunt_gpu_capture *info_p)
{
	struct shunt_gpu_capture info = { .state = SHUNT_CAPTURE_NONE };
	int status = SHUNT_CU_CAPTURE_STATUS_NONE, res, err;
	struct shunt_cu_ctx_guard guard;
	unsigned long long id;
	void *const *nodes;
	size_t nnodes;

	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.StreamGetCaptureInfo(stream, &status, &id, &info.graph, &nodes, &nnodes);
	if (shunt_cu_capture_error(res)) {
		info.state = SHUNT_CAPTURE_INVALID; /* as for shunt_cu_stream_capture */
	} else if (res == SHUNT_CU_LOSSY_QUERY) {
		/*
		 * An edge to the next operation is of a kind that this version of the call cannot name. Query without
		 * the edges.
		 */
		nnodes = 0;
		res = shunt_cu.StreamGetCaptureInfo(stream, &status, &id, &info.graph, NULL, NULL);
	}
	/* The driver owns the list of nodes until the next call on this stream, which only the caller uses. */
	if (res && info.state != SHUNT_CAPTURE_INVALID) {
		err = shunt_cu_error(res, "cuStreamGetCaptureInfo on device %d", device);
	} else if (!res && status == SHUNT_CU_CAPTURE_STATUS_ACTIVE) {
		info.state = SHUNT_CAPTURE_ACTIVE;
		info.id = id;
		info.node = nnodes == 1 ? nodes[0] : NULL;
	} else if (!res && status != SHUNT_CU_CAPTURE_STATUS_NONE) {
		info.state = SHUNT_CAPTURE_INVALID;
	}
	shunt_cu_leave(&guard);
	if (!err)
		*info_p = info;
	return err;
}

int shunt_cu_capture_wait(int device, void *event, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter_fast(device, &guard);

	if (err)
		return err;
	return shunt_cu_leave_with(&guard, device,
	    shunt_cu.StreamWaitEvent(stream, event, SHUNT_CU_EVENT_WAIT_EXTERNAL),
	    "cuStreamWaitEvent of an external event");
}

int shunt_cu_capture_join(int device, void *stream, void *node)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter_fast(device, &guard);

	if (err)
		return err;
	return shunt_cu_leave_with(&guard, device,
	    shunt_cu.StreamUpdateCaptureDependencies(stream, &node, 1, SHUNT_CU_STREAM_ADD_CAPTURE_DEPENDENCIES),
	    "cuStreamUpdateCaptureDependencies");
}

int shunt_cu_capture_record(int device, const struct shunt_gpu_capture *info, void *event, void **record_p)
{
	struct shunt_cu_ctx_guard guard;
	void *record;
	int res, err;

	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.GraphAddEventRecordNode(&record, info->graph, &info->node, 1, event);
	if (!res)
		*record_p = record;
	return shunt_cu_leave_with(&guard, device, res, "cuGraphAddEventRecordNode");
}

int shunt_cu_capture_move_record(int device, const struct shunt_gpu_capture *info, void *from, void *record)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;

	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.GraphAddDependencies(info->graph, &info->node, &record, 1);
	if (!res) /* a surplus edge is no error */
		shunt_cu.GraphRemoveDependencies(info->graph, &from, &record, 1);
	return shunt_cu_leave_with(&guard, device, res, "cuGraphAddDependencies");
}

int shunt_cu_capture_retain(int device, const struct shunt_gpu_capture *info, void (*drop)(void *arg), void *arg)
{
	struct shunt_cu_ctx_guard guard;
	void *object;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err) {
		drop(arg);
		return err;
	}
	res = shunt_cu.UserObjectCreate(&object, arg, drop, 1, SHUNT_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	if (res) {
		err = shunt_cu_error(res, "cuUserObjectCreate on device %d", device);
		drop(arg);
		goto out_leave;
	}
	res = shunt_cu.GraphRetainUserObject(info->graph, object, 1, SHUNT_CU_GRAPH_USER_OBJECT_MOVE);
	if (res) {
		err = shunt_cu_error(res, "cuGraphRetainUserObject on device %d", device);
		shunt_cu.UserObjectRelease(object, 1); /* calls drop, now or later */
	}
out_leave:
	shunt_cu_leave(&guard);
	return err;
}

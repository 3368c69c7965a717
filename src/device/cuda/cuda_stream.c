/* SPDX-License-Identifier: MIT */
/* Streams, events and graphs on CUDA devices. */
#include "device/cuda/dev.h"

int shunt_cu_stream_create(int device, void **stream_p)
{
	struct shunt_cu_ctx_guard guard;
	void *stream;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.StreamCreate(&stream, SHUNT_CU_STREAM_NON_BLOCKING);
	if (!res)
		*stream_p = stream;
	return shunt_cu_leave_with(&guard, device, res, "cuStreamCreate");
}

int shunt_cu_stream_sync(int device, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter(device, &guard);

	return err ? err :
	             shunt_cu_leave_with(&guard, device, shunt_cu.StreamSynchronize(stream), "cuStreamSynchronize");
}

int shunt_cu_mark(int device, void *stream, uint64_t *word, uint64_t value)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;

	if (!shunt_cu.StreamWriteValue64)
		return -EOPNOTSUPP;
	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.StreamWriteValue64(stream, (unsigned long long)(uintptr_t)word, value, 0);
	shunt_cu_leave(&guard);
	return res ? -EOPNOTSUPP : 0;
}

/* Asks the driver without waiting whether an object's work is done. */
static int query_done(int device, int (*query)(void *), const char *name, void *what, bool *done_p)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = query(what);
	if (!res || res == SHUNT_CU_NOT_READY) {
		*done_p = !res;
		res = 0;
	}
	return shunt_cu_leave_with(&guard, device, res, name);
}

int shunt_cu_stream_idle(int device, void *stream, bool *idle_p)
{
	return query_done(device, shunt_cu.StreamQuery, "cuStreamQuery", stream, idle_p);
}

int shunt_cu_device_sync(int device)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter(device, &guard);

	return err ? err : shunt_cu_leave_with(&guard, device, shunt_cu.CtxSynchronize(), "cuCtxSynchronize");
}

void shunt_cu_stream_destroy(int device, void *stream)
{
	struct shunt_cu_ctx_guard guard;

	if (stream && !shunt_cu_enter(device, &guard))
		shunt_cu_leave_with(&guard, device, shunt_cu.StreamDestroy(stream), "cuStreamDestroy");
}

int shunt_cu_stream_capture(int device, void *stream, enum shunt_capture *state_p)
{
	static const enum shunt_capture states[] = {
		[SHUNT_CU_CAPTURE_STATUS_NONE] = SHUNT_CAPTURE_NONE,
		[SHUNT_CU_CAPTURE_STATUS_ACTIVE] = SHUNT_CAPTURE_ACTIVE,
		[SHUNT_CU_CAPTURE_STATUS_INVALIDATED] = SHUNT_CAPTURE_INVALID,
	};
	struct shunt_cu_ctx_guard guard;
	int res, status, err;

	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.StreamIsCapturing(stream, &status);
	shunt_cu_leave(&guard);
	if (!res) {
		*state_p = (unsigned)status < 3 ? states[status] : SHUNT_CAPTURE_INVALID;
		return 0;
	}
	/* The legacy stream has no state while a blocking stream captures: work on it would spoil that capture. */
	if (shunt_cu_capture_error(res)) {
		*state_p = SHUNT_CAPTURE_INVALID;
		return 0;
	}
	return shunt_cu_error(res, "cuStreamIsCapturing on device %d", device);
}

int shunt_cu_event_create(int device, bool timing, void **event_p)
{
	struct shunt_cu_ctx_guard guard;
	void *event;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.EventCreate(&event, timing ? 0 : SHUNT_CU_EVENT_DISABLE_TIMING);
	if (!res)
		*event_p = event;
	return shunt_cu_leave_with(&guard, device, res, "cuEventCreate");
}

int shunt_cu_event_record(int device, void *event, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter_fast(device, &guard);

	return err ? err : shunt_cu_leave_with(&guard, device, shunt_cu.EventRecord(event, stream), "cuEventRecord");
}

int shunt_cu_event_wait(int device, void *event, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter_fast(device, &guard);

	return err ?
	    err :
	    shunt_cu_leave_with(&guard, device, shunt_cu.StreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

int shunt_cu_event_done(int device, void *event, bool *done_p)
{
	return query_done(device, shunt_cu.EventQuery, "cuEventQuery", event, done_p);
}

int shunt_cu_event_elapsed_us(int device, void *start, void *stop, float *us_p)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;
	float ms;

	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.EventElapsedTime(&ms, start, stop);
	if (res == SHUNT_CU_NOT_READY)
		err = -EAGAIN;
	else if (res)
		err = shunt_cu_error(res, "cuEventElapsedTime on device %d", device);
	else
		*us_p = ms * 1000.0f;
	shunt_cu_leave(&guard);
	return err;
}

void shunt_cu_event_destroy(int device, void *event)
{
	struct shunt_cu_ctx_guard guard;

	if (event && !shunt_cu_enter(device, &guard))
		shunt_cu_leave_with(&guard, device, shunt_cu.EventDestroy(event), "cuEventDestroy");
}

int shunt_cu_capture_begin(int device, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter_fast(device, &guard);

	if (err)
		return err;
	return shunt_cu_leave_with(&guard, device,
	    shunt_cu.StreamBeginCapture(stream, SHUNT_CU_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
}

int shunt_cu_capture_end(int device, void *stream, void **graph_p)
{
	void *graph = NULL, *exec;
	struct shunt_cu_ctx_guard guard;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.StreamEndCapture(stream, &graph);
	if (res || !graph) {
		/* A spoiled capture ends without a graph. */
		err = shunt_cu_error(
		    res ? res : SHUNT_CU_STREAM_CAPTURE_INVALIDATED, "cuStreamEndCapture on device %d", device);
		goto out_leave;
	}
	res = shunt_cu.GraphInstantiateWithFlags(&exec, graph, 0);
	if (res)
		err = shunt_cu_error(res, "cuGraphInstantiate on device %d", device);
	else
		*graph_p = exec;
	shunt_cu.GraphDestroy(graph);
out_leave:
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_graph_launch(int device, void *graph, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter_fast(device, &guard);

	return err ? err : shunt_cu_leave_with(&guard, device, shunt_cu.GraphLaunch(graph, stream), "cuGraphLaunch");
}

void shunt_cu_graph_destroy(int device, void *graph)
{
	struct shunt_cu_ctx_guard guard;

	if (graph && !shunt_cu_enter(device, &guard))
		shunt_cu_leave_with(&guard, device, shunt_cu.GraphExecDestroy(graph), "cuGraphExecDestroy");
}

/* SPDX-License-Identifier: MIT */
/* The fake driver: streams, what is put on them, graphs and events. */
#include "tests/support/fake_cuda/state.h"
#include "tools/common/libc.h"

int cuStreamCreate(void **stream, unsigned flags)
{
	ENTER();
	NEED_CONTEXT();
	if (flags != SHUNT_CU_STREAM_NON_BLOCKING)
		return SHUNT_CU_INVALID_VALUE;
	*stream = (void *)fake_object_add(STREAM, 0, 0)->addr;
	return 0;
}

int cuStreamDestroy_v2(void *stream)
{
	ENTER_CLEANUP();
	return fake_object_drop(STREAM, (uintptr_t)stream);
}

int cuStreamSynchronize(void *stream)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream);

	ENTER();
	UNSAFE();
	return o && o->capturing ? SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED : 0;
}

int cuStreamQuery(void *stream)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream);

	ENTER();
	UNSAFE();
	if (o && o->capturing)
		return SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED;
	return fake_cuda.busy ? SHUNT_CU_NOT_READY : 0;
}

int cuCtxSynchronize(void)
{
	ENTER();
	UNSAFE();
	return fake_device() < 0 ? SHUNT_CU_INVALID_CONTEXT : 0;
}

int fake_work_enqueue(void *stream, struct fake_object **o_p)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream);

	*o_p = o && o->capturing ? o : NULL;
	if (fake_device() < 0)
		return SHUNT_CU_INVALID_CONTEXT;
	if (stream && (!o || o->device != fake_device()))
		return SHUNT_CU_INVALID_HANDLE;
	return 0;
}

/* A new node at the end of what the stream captures. */
static uintptr_t tail_node(struct fake_object *capture)
{
	static uintptr_t nodes = 1;

	pthread_mutex_lock(&fake_lock);
	capture->tip = nodes += 2;
	pthread_mutex_unlock(&fake_lock);
	return capture->tip;
}

static void append_node(struct fake_object *capture, struct work w)
{
	struct work **p;

	if (!capture) {
		if (w.src)
			memcpy(w.dst, w.src, w.bytes);
		else if (w.value || !fake_cuda.untouched)
			memset(w.dst, w.value, w.bytes);
		return;
	}
	tail_node(capture);
	for (p = &capture->work; *p; p = &(*p)->next)
		;
	*p = malloc(sizeof(w));
	**p = w;
}

int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t bytes, void *stream)
{
	struct fake_object *capture;
	int res;

	ENTER();
	res = fake_work_enqueue(stream, &capture);
	if (!res)
		append_node(capture,
		    (struct work){ .dst = (void *)(uintptr_t)dst, .src = (void *)(uintptr_t)src, .bytes = bytes });
	return res;
}

int cuMemsetD8Async(unsigned long long dst, unsigned char value, size_t bytes, void *stream)
{
	struct fake_object *capture;
	int res;

	ENTER();
	res = fake_work_enqueue(stream, &capture);
	if (!res)
		append_node(capture, (struct work){ .dst = (void *)(uintptr_t)dst, .value = value, .bytes = bytes });
	return res;
}

int cuStreamWriteValue64_v2(void *stream, unsigned long long ptr, unsigned long long value, unsigned flags)
{
	struct fake_object *capture;
	int res;

	ENTER();
	if (fake_cuda.no_marks)
		return SHUNT_CU_NOT_SUPPORTED;
	res = fake_work_enqueue(stream, &capture);
	if (!res && !capture)
		*(volatile unsigned long long *)(uintptr_t)ptr = value;
	return res;
}

int cuStreamIsCapturing(void *stream, int *status)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream);

	ENTER();
	if (fake_cuda.capturing_result)
		return fake_cuda.capturing_result;
	*status = o && o->capturing ? SHUNT_CU_CAPTURE_STATUS_ACTIVE : SHUNT_CU_CAPTURE_STATUS_NONE;
	return 0;
}

static unsigned long long last_capture;

int cuStreamBeginCapture_v2(void *stream, int capture_mode)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream);

	ENTER();
	if (!o || o->capturing || capture_mode != SHUNT_CU_CAPTURE_MODE_THREAD_LOCAL)
		return SHUNT_CU_INVALID_VALUE;
	o->capturing = true;
	o->capture = __atomic_add_fetch(&last_capture, 1, __ATOMIC_RELAXED);
	o->tip = 0;
	memset(o->edges, 0, sizeof(o->edges));
	fake_captures++;
	return 0;
}

int cuStreamGetCaptureInfo_v2(
    void *stream, int *status, unsigned long long *id, void **graph, void *const **nodes, size_t *nnodes)
{
	static __thread void *node;
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream);

	ENTER();
	if (fake_cuda.capturing_result)
		return fake_cuda.capturing_result;
	if (fake_cuda.edges_hidden && nodes)
		return SHUNT_CU_LOSSY_QUERY;
	*status = o && o->capturing ? SHUNT_CU_CAPTURE_STATUS_ACTIVE : SHUNT_CU_CAPTURE_STATUS_NONE;
	if (!o || !o->capturing)
		return 0;
	*id = o->capture;
	*graph = o;
	node = (void *)o->tip;
	if (nodes) {
		*nodes = &node;
		*nnodes = o->tip ? 1 : 0;
	}
	return 0;
}

int cuStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t nnodes, unsigned flags)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream);

	ENTER();
	if (!o || !o->capturing || nnodes != 1 || !nodes[0] || flags != SHUNT_CU_STREAM_ADD_CAPTURE_DEPENDENCIES)
		return SHUNT_CU_INVALID_VALUE;
	fake_cuda.added_dependencies++;
	return 0;
}

/* A graph that is being captured, by the handle that cuStreamGetCaptureInfo gave. */
static struct fake_object *find_capture(void *graph)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)graph);

	return o && o->capturing ? o : NULL;
}

static bool set_edge(struct fake_object *o, uintptr_t from, uintptr_t to, uintptr_t new_from, uintptr_t new_to)
{
	for (unsigned i = 0; i < MAX_EDGES; i++) {
		if (o->edges[i].from != from || o->edges[i].to != to)
			continue;
		o->edges[i].from = new_from;
		o->edges[i].to = new_to;
		return true;
	}
	return false;
}

long fake_cuda_edges(void *graph, void *node)
{
	struct fake_object *o = find_capture(graph);
	long count = 0;

	for (unsigned i = 0; o && i < MAX_EDGES; i++)
		count += o->edges[i].to == (uintptr_t)node;
	return count;
}

int cuGraphAddEventRecordNode(void **node, void *graph, void *const *after, size_t nafter, void *event)
{
	struct fake_object *o = find_capture(graph);
	uintptr_t tip;

	ENTER();
	if (!o || nafter != 1 || !after[0] || !fake_object_find(EVENT, (uintptr_t)event))
		return SHUNT_CU_INVALID_VALUE;
	tip = o->tip;
	*node = (void *)tail_node(o);
	o->tip = tip; /* no stream follows it */
	return set_edge(o, 0, 0, (uintptr_t)after[0], (uintptr_t)*node) ? 0 : SHUNT_CU_OUT_OF_MEMORY;
}

int cuGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t count)
{
	struct fake_object *o = find_capture(graph);

	ENTER();
	if (!o || count != 1 || !from[0] || !to[0])
		return SHUNT_CU_INVALID_VALUE;
	if (set_edge(o, (uintptr_t)from[0], (uintptr_t)to[0], (uintptr_t)from[0], (uintptr_t)to[0]))
		return SHUNT_CU_INVALID_VALUE; /* it is there */
	return set_edge(o, 0, 0, (uintptr_t)from[0], (uintptr_t)to[0]) ? 0 : SHUNT_CU_OUT_OF_MEMORY;
}

int cuGraphRemoveDependencies(void *graph, void *const *from, void *const *to, size_t count)
{
	struct fake_object *o = find_capture(graph);

	ENTER();
	if (!o || count != 1 || !set_edge(o, (uintptr_t)from[0], (uintptr_t)to[0], 0, 0))
		return SHUNT_CU_INVALID_VALUE;
	return 0;
}

int cuUserObjectCreate(void **object, void *arg, void (*drop_arg)(void *), unsigned count, unsigned flags)
{
	struct fake_object *u;

	ENTER();
	if (!drop_arg || !count || flags != SHUNT_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return SHUNT_CU_INVALID_VALUE;
	u = fake_object_add(USER_OBJECT, 0, 0);
	u->drop_object = drop_arg;
	u->arg = arg;
	u->refs = count;
	*object = (void *)u->addr;
	return 0;
}

int cuUserObjectRelease(void *object, unsigned count)
{
	struct fake_object *u = fake_object_find(USER_OBJECT, (uintptr_t)object);

	ENTER_CLEANUP();
	if (!u || u->refs < (long)count)
		return SHUNT_CU_INVALID_VALUE;
	fake_object_release(u, count);
	return 0;
}

static bool retain_object(struct fake_object *o, struct fake_object *u)
{
	for (unsigned i = 0; i < MAX_KEPT; i++) {
		if (o->retained[i])
			continue;
		o->retained[i] = u;
		return true;
	}
	return false;
}

int cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags)
{
	struct fake_object *o = find_capture(graph), *u = fake_object_find(USER_OBJECT, (uintptr_t)object);

	ENTER();
	if (!o || !u || count != 1 || flags != SHUNT_CU_GRAPH_USER_OBJECT_MOVE)
		return SHUNT_CU_INVALID_VALUE;
	return retain_object(o, u) ? 0 : SHUNT_CU_OUT_OF_MEMORY;
}

int cuStreamEndCapture(void *stream, void **graph)
{
	struct fake_object *o = fake_object_find(STREAM, (uintptr_t)stream), *g;
	bool fail = fake_fails_now(__func__);

	if (!o || !o->capturing)
		return SHUNT_CU_INVALID_VALUE;
	/* Whatever the result, the capture is over. */
	o->capturing = false;
	fake_captures--;
	*graph = NULL;
	if (fail) {
		fake_work_drop(o);
		fake_retained_drop(o);
		return fake_cuda.fail_with;
	}
	g = fake_object_add(GRAPH, 0, 0);
	g->work = o->work;
	o->work = NULL;
	memcpy(g->retained, o->retained, sizeof(g->retained));
	memset(o->retained, 0, sizeof(o->retained));
	*graph = (void *)g->addr;
	return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
	struct fake_object *g = fake_object_find(GRAPH, (uintptr_t)graph), *x;

	ENTER();
	UNSAFE();
	if (!g || flags)
		return SHUNT_CU_INVALID_VALUE;
	x = fake_object_add(EXEC, 0, 0);
	for (struct work *w = g->work; w; w = w->next) {
		struct work copy = *w;

		copy.next = NULL;
		append_node(x, copy);
	}
	for (unsigned i = 0; i < MAX_KEPT; i++)
		if ((x->retained[i] = g->retained[i]))
			x->retained[i]->refs++;
	*exec = (void *)x->addr;
	return 0;
}

int cuGraphDestroy(void *graph)
{
	ENTER_CLEANUP();
	return fake_object_drop(GRAPH, (uintptr_t)graph);
}

int cuGraphLaunch(void *exec, void *stream)
{
	struct fake_object *x = fake_object_find(EXEC, (uintptr_t)exec), *capture;
	int res;

	ENTER();
	res = x ? fake_work_enqueue(stream, &capture) : SHUNT_CU_INVALID_HANDLE;
	if (res)
		return res;
	for (struct work *w = x->work; w; w = w->next) {
		struct work copy = *w;

		copy.next = NULL;
		append_node(capture, copy);
	}
	return 0;
}

int cuGraphExecDestroy(void *exec)
{
	ENTER_CLEANUP();
	return fake_object_drop(EXEC, (uintptr_t)exec);
}

int cuEventCreate(void **event, unsigned flags)
{
	struct fake_object *o;

	ENTER();
	NEED_CONTEXT();
	o = fake_object_add(EVENT, 0, 0);
	o->bytes = flags;
	*event = (void *)o->addr;
	return 0;
}

int cuEventDestroy_v2(void *event)
{
	ENTER_CLEANUP();
	return fake_object_drop(EVENT, (uintptr_t)event);
}

int cuEventRecord(void *event, void *stream)
{
	struct fake_object *o = fake_object_find(EVENT, (uintptr_t)event), *capture;
	int res;

	ENTER();
	res = o ? fake_work_enqueue(stream, &capture) : SHUNT_CU_INVALID_HANDLE;
	if (!res)
		o->recorded = true;
	return res;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	struct fake_object *capture;

	int res;

	ENTER();
	res = fake_object_find(EVENT, (uintptr_t)event) ? fake_work_enqueue(stream, &capture) : SHUNT_CU_INVALID_HANDLE;
	if (!res && flags && (flags != SHUNT_CU_EVENT_WAIT_EXTERNAL || !capture))
		return SHUNT_CU_INVALID_VALUE;
	if (!res && capture && flags)
		tail_node(capture);
	return res;
}

int cuEventQuery(void *event)
{
	ENTER();
	UNSAFE();
	if (!fake_object_find(EVENT, (uintptr_t)event))
		return SHUNT_CU_INVALID_HANDLE;
	return fake_cuda.busy ? SHUNT_CU_NOT_READY : 0;
}

int cuEventElapsedTime(float *ms, void *start, void *stop)
{
	struct fake_object *a = fake_object_find(EVENT, (uintptr_t)start),
	                   *b = fake_object_find(EVENT, (uintptr_t)stop);

	ENTER();
	if (!a || !b || a->bytes || b->bytes)
		return SHUNT_CU_INVALID_HANDLE;
	if (!a->recorded || !b->recorded)
		return SHUNT_CU_NOT_READY;
	*ms = 1.5f;
	return 0;
}

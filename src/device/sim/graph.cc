/* SPDX-License-Identifier: MIT */
/*
 * A capture records operations in the order of enqueueing. A launch of the graph is one operation that runs them in
 * that order.
 */
#include <errno.h>
#include "base/rlimits.h"
#include "device/sim/hooks.h"
#include "device/sim/sim.h"

void sim_graph_append(struct sim_graph *graph, struct sim_op *op)
{
	unsigned blocks = 0, threads = 0;

	if (op->kind == &sim_op_launch) {
		blocks = op->launch.blocks;
		threads = op->launch.threads;
	} else if (op->kind == &sim_op_graph_launch) {
		blocks = op->graph_launch.graph->blocks;
		threads = op->graph_launch.graph->threads;
		graph->external_nodes += op->graph_launch.graph->external_nodes;
	} else if (op->kind == &sim_op_external_record || op->kind == &sim_op_external_wait) {
		graph->external_nodes++;
	}
	graph->blocks = blocks > graph->blocks ? blocks : graph->blocks;
	graph->threads = threads > graph->threads ? threads : graph->threads;
	*graph->last = op;
	graph->last = &op->next;
	graph->last_node = op;
}

void sim_graph_put(struct sim_graph *graph)
{
	if (__atomic_sub_fetch(&graph->refs, 1, __ATOMIC_ACQ_REL))
		return;
	for (struct sim_op *op = graph->first, *next; op; op = next) {
		next = op->next;
		sim_op_destroy(op);
	}
	for (struct sim_user_object *k = graph->user_objects, *next; k; k = next) {
		next = k->next;
		k->drop(k->arg);
		sim_delete(k);
	}
	sim_delete(graph);
}

int sim_capture_begin(int device, void *handle)
{
	static uint64_t captures;
	struct sim_stream *s = sim_stream_get(device, handle);
	struct sim_graph *graph;
	bool taken;

	if (!s)
		return -EINVAL;
	if (s->is_default) {
		shunt_error("sim: the default stream cannot be captured");
		return -EINVAL;
	}
	graph = (struct sim_graph *)sim_new(sizeof(*graph));
	if (!graph)
		return -ENOMEM;
	graph->refs = 1;
	graph->origin = s;
	graph->capture = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
	graph->last = &graph->first;
	sim_lock(&s->lock);
	taken = s->capture;
	if (!taken)
		s->capture = graph;
	sim_unlock(&s->lock);
	if (taken) {
		shunt_error("sim: stream %p is being captured already", handle);
		sim_graph_put(graph);
		return -EINVAL;
	}
	return 0;
}

int sim_capture_end(int device, void *handle, void **graph_p)
{
	struct sim_stream *s = sim_stream_get(device, handle);
	struct sim_graph *graph;
	int err;

	if (!s)
		return -EINVAL;
	graph = sim_stream_graph(s);
	if (!graph || graph->origin != s) {
		shunt_error("sim: stream %p is not being captured, or by another stream's capture", handle);
		if (graph)
			sim_graph_put(graph);
		return -EINVAL;
	}
	sim_stream_release(graph);
	if (graph->invalidated)
		shunt_error("sim: the capture of stream %p was spoiled", handle);
	err = graph->invalidated ? -EBUSY : sim_handle_add(graph, SIM_GRAPH);
	if (err) {
		sim_graph_put(graph);
		return err;
	}
	*graph_p = graph;
	return 0;
}

int sim_capture_info(int device, void *handle, struct shunt_gpu_capture *info_p)
{
	struct sim_stream *s = sim_stream_get(device, handle);
	struct sim_graph *graph;

	if (!s)
		return -EINVAL;
	*info_p = {};
	graph = sim_stream_graph(s);
	if (!graph)
		return 0;
	if (__atomic_load_n(&graph->invalidated, __ATOMIC_RELAXED)) {
		info_p->state = SHUNT_CAPTURE_INVALID;
		sim_graph_put(graph);
		return 0;
	}
	sim_lock(&graph->lock);
	info_p->state = SHUNT_CAPTURE_ACTIVE;
	info_p->id = graph->capture;
	info_p->graph = graph;
	info_p->node = graph->last_node;
	sim_unlock(&graph->lock);
	sim_graph_put(graph);
	return 0;
}

/* The queue orders it already: an operation captured later runs later. */
int sim_capture_join(int device, void *handle, void *node)
{
	struct shunt_gpu_capture info;
	int err = sim_capture_info(device, handle, &info);

	if (!err && (info.state != SHUNT_CAPTURE_ACTIVE || !node)) {
		shunt_error("sim: stream %p cannot follow node %p: it is not being captured", handle, node);
		err = -EINVAL;
	}
	return err;
}

/* Puts the record at the end of the queue, so behind info->node. */
int sim_capture_move_record(int device, const struct shunt_gpu_capture *info, void *from, void *record)
{
	struct sim_graph *graph = (struct sim_graph *)info->graph;
	struct sim_op *op = (struct sim_op *)record, **at;

	if (!sim_device_ok(device) || !info->node || !from)
		return -EINVAL;
	sim_lock(&graph->lock);
	for (at = &graph->first; *at && *at != op; at = &(*at)->next)
		;
	if (*at && op->next) {
		*at = op->next;
		op->next = nullptr;
		*graph->last = op;
		graph->last = &op->next;
	}
	sim_unlock(&graph->lock);
	return 0;
}

int sim_capture_retain(int device, const struct shunt_gpu_capture *info, void (*drop)(void *arg), void *arg)
{
	struct sim_graph *graph = (struct sim_graph *)info->graph;
	struct sim_user_object *user_object = (struct sim_user_object *)sim_new(sizeof(*user_object));

	if (!user_object || !sim_device_ok(device)) {
		sim_delete(user_object);
		drop(arg);
		return user_object ? -EINVAL : -ENOMEM;
	}
	user_object->drop = drop;
	user_object->arg = arg;
	sim_lock(&graph->lock);
	user_object->next = graph->user_objects;
	graph->user_objects = user_object;
	sim_unlock(&graph->lock);
	return 0;
}

int sim_graph_launch(int device, void *handle, void *stream)
{
	struct sim_stream *s = sim_stream_get(device, stream);
	struct sim_graph *graph = (struct sim_graph *)handle, *outer;
	struct sim_op *op;
	int err;

	if (!s || !sim_handle_ok(handle, SIM_GRAPH))
		return -EINVAL;
	err = sim_pool_reserve(&s->pool, graph->blocks, graph->threads);
	if (err) {
		shunt_error("sim: no resources for %u blocks of %u threads: %s", graph->blocks, graph->threads,
		    shunt_thread_error_text(err).s);
		return err;
	}
	op = sim_op_create(&sim_op_graph_launch);
	if (!op)
		return -ENOMEM;
	__atomic_add_fetch(&graph->refs, 1, __ATOMIC_RELAXED);
	op->graph_launch = { graph, nullptr };
	outer = sim_stream_graph(s);
	if (outer)
		sim_graph_put(outer); /* the launch of the outer graph brings the completions */
	if (outer || !graph->external_nodes)
		return sim_stream_submit(s, op);
	op->graph_launch.completions =
	    (struct sim_completion **)sim_new(graph->external_nodes * sizeof(*op->graph_launch.completions));
	if (!op->graph_launch.completions) {
		sim_op_destroy(op);
		return -ENOMEM;
	}
	sim_lock(&sim_enqueue_lock);
	err = sim_graph_bind(graph, op->graph_launch.completions);
	if (err)
		sim_op_destroy(op);
	else
		err = sim_stream_submit(s, op);
	sim_unlock(&sim_enqueue_lock);
	return err;
}

void sim_graph_destroy(int device, void *handle)
{
	if (handle && sim_handle_remove(handle, SIM_GRAPH))
		sim_graph_put((struct sim_graph *)handle);
}

static void count_nodes(const struct sim_graph *graph, struct shunt_sim_nodes *nodes)
{
	for (const struct sim_op *op = graph->first; op; op = op->next)
		if (op->kind == &sim_op_graph_launch)
			count_nodes(op->graph_launch.graph, nodes);
		else if (op->kind == &sim_op_launch)
			nodes->kernels++;
		else if (op->kind == &sim_op_external_record || op->kind == &sim_op_external_wait)
			nodes->events++;
		else
			nodes->others++;
}

struct shunt_sim_nodes shunt_sim_graph_nodes(const void *graph)
{
	const struct sim_graph *g = (const struct sim_graph *)graph;
	struct shunt_sim_nodes nodes = { 0, 0, 0, g->blocks };

	count_nodes(g, &nodes);
	return nodes;
}

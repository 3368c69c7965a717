/* SPDX-License-Identifier: MIT */
/* Capture records operations in the order of enqueueing; a launch of the graph is one operation that runs them in that order. */
#include <errno.h>
#include "gpu/sim.h"

void sim_graph_append(struct sim_graph *graph, struct sim_op *op)
{
	unsigned blocks = 0, threads = 0;

	if (op->kind == &sim_op_launch) {
		blocks = op->launch.blocks;
		threads = op->launch.threads;
	} else if (op->kind == &sim_op_graph) {
		blocks = op->graph->blocks;
		threads = op->graph->threads;
	}
	graph->blocks = blocks > graph->blocks ? blocks : graph->blocks;
	graph->threads = threads > graph->threads ? threads : graph->threads;
	*graph->last = op;
	graph->last = &op->next;
}

void sim_graph_put(struct sim_graph *graph)
{
	if (__atomic_sub_fetch(&graph->refs, 1, __ATOMIC_ACQ_REL))
		return;
	for (struct sim_op *op = graph->first, *next; op; op = next) {
		next = op->next;
		sim_op_destroy(op);
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
	sim_lock(&s->lock);
	graph = s->capture;
	s->capture = nullptr;
	sim_unlock(&s->lock);
	if (!graph) {
		shunt_error("sim: stream %p is not being captured", handle);
		return -EINVAL;
	}
	err = sim_handle_add(graph, SIM_GRAPH);
	if (err) {
		sim_graph_put(graph);
		return err;
	}
	*graph_p = graph;
	return 0;
}

int sim_graph_launch(int device, void *handle, void *stream)
{
	struct sim_stream *s = sim_stream_get(device, stream);
	struct sim_graph *graph = (struct sim_graph *)handle;
	struct sim_op *op;
	int err;

	if (!s || !sim_handle_ok(handle, SIM_GRAPH))
		return -EINVAL;
	err = sim_team_reserve(&s->team, graph->blocks, graph->threads);
	if (err) {
		shunt_error("sim: no resources for %u blocks of %u threads: %s", graph->blocks, graph->threads, strerror(-err));
		return err;
	}
	op = sim_op_create(&sim_op_graph);
	if (!op)
		return -ENOMEM;
	__atomic_add_fetch(&graph->refs, 1, __ATOMIC_RELAXED);
	op->graph = graph;
	return sim_stream_submit(s, op);
}

void sim_graph_destroy(int device, void *handle)
{
	if (handle && sim_handle_remove(handle, SIM_GRAPH))
		sim_graph_put((struct sim_graph *)handle);
}

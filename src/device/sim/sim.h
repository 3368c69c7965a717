/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Internals of the sim device. Files, from the bottom up:
 *
 *   File           Implements
 *   device.cc      devices, and the set of kernels
 *   fiber.cc       contexts of execution
 *   block.cc       a block's threads
 *   pool.cc        a launch's blocks
 *   handle.cc      the table of live objects
 *   sim_stream.cc  a queue with a thread
 *   op.cc          the operations of a queue
 *   event.cc       events
 *   graph.cc       recorded queues
 *   sim_mem.cc     memory
 *   gate.cc        gates, for tests
 *   sim.cc         the table of operations
 *
 * No object exists before the first use, and none is torn down at exit.
 */
#include <stdbool.h>
#include <stdint.h>
#include "device/gpu_ops.h"
#include "device/sim/pool.h"
extern "C" {
#include "base/log.h"
}

enum { SIM_MAX_DEVICES = 8 };

/* device.cc */
int sim_device_total(void);
/* Logs when false. */
bool sim_device_ok(int device);
/* Of the kernel set that sim_open() was given. NULL: not in this build, or no such index. */
const struct shunt_kernel_desc *sim_kernel_desc(unsigned kernel);
shunt_sim_kernel *sim_kernel(unsigned kernel);

/* handle.cc: a table of live objects, so that a wrong handle is an error and not a crash. */
enum sim_kind { SIM_STREAM, SIM_EVENT, SIM_GRAPH, SIM_DEVICE_MEM, SIM_HOST_MEM };
int sim_handle_add(const void *object, enum sim_kind kind);
/* False (logged): not a live object of this kind. */
bool sim_handle_ok(const void *object, enum sim_kind kind);
/* The same, and removes it: if two callers free one object, one of them gets false. */
bool sim_handle_remove(const void *object, enum sim_kind kind);
/* sim_..._forget: in a forked child, streams, events and graphs are its parent's, and the locks are free. */
void sim_handle_forget(void);
void sim_stream_forget(void);
void sim_mem_forget(void);
/*
 * Links that are not as good as memory (sim_link.cc): reads SHUNT_SIM_LINKS; before a launch, looks whose memory is
 * mapped where; stores of a block that are under way arrive, half of them or all.
 */
void sim_link_open(void);
void sim_link_look(void);
void sim_link_drain(struct sim_block *b, bool all);
void sim_link_forget(void);

/* op.cc: one operation of a stream. Run never changes it: a graph runs it again and again. */
struct sim_op;
struct sim_stream;
struct sim_op_kind {
	int (*run)(struct sim_stream *stream, struct sim_op *op);
	void (*drop)(struct sim_op *op); /* frees the objects that op holds; NULL: none */
};
/* A point that one stream passes once. Reference-counted. */
struct sim_completion {
	uint32_t refs, done; /* done: futex */
	uint64_t ns;
};
struct sim_graph;
struct sim_event;
struct sim_copy {
	void *dst;
	const void *src;
	size_t bytes;
	int value; /* of a memset, where src is dst */
};
struct sim_op {
	const struct sim_op_kind *kind;
	struct sim_op *next;
	union {
		struct sim_launch launch;
		struct sim_copy copy;
		struct {
			uint64_t *word, value;
		} mark;
		struct sim_completion *completion;
		struct sim_event *event; /* of a node for an external event; a reference */
		struct {
			struct sim_graph *graph;
			struct sim_completion **completions;
		} graph_launch; /* completions: graph->external_nodes of them, of this launch */
	};
};
extern const struct sim_op_kind sim_op_launch, sim_op_copy, sim_op_memset, sim_op_mark, sim_op_record, sim_op_wait,
    sim_op_graph_launch;
/* Only in graphs. The launch of the graph brings the completions. */
extern const struct sim_op_kind sim_op_external_record, sim_op_external_wait;
/* NULL: no memory (logged). */
struct sim_op *sim_op_create(const struct sim_op_kind *kind);
void sim_op_destroy(struct sim_op *op);
struct sim_completion *sim_completion_create(void);
void sim_completion_put(struct sim_completion *completion); /* NULL is allowed */

/* event.cc */
void sim_event_put(struct sim_event *event);
/*
 * Held from a record or wait, or the launch of a graph with such nodes, until the operation is in a queue: a wait is
 * never queued before its record.
 */
extern struct sim_lock sim_enqueue_lock;
/*
 * The event refers to a new completion, which a launch on the stream is to signal; *completion_p: a reference to it, or
 * NULL in a capture, where the order of the queue says all. The caller holds sim_enqueue_lock. -EINVAL, -ENOMEM.
 */
int sim_event_launched(void *event, struct sim_stream *stream, struct sim_completion **completion_p);
/*
 * Fills `completions` with those that this launch of a graph waits for and records, in the order of its nodes.
 * Recorded events then refer to the new completions. -ENOMEM.
 */
int sim_graph_bind(struct sim_graph *graph, struct sim_completion **completions);

/*
 * graph.cc: the operations that a capture recorded. Reference-counted. blocks, threads: of the widest launch, for
 * sim_pool_reserve.
 */
struct sim_user_object {
	void (*drop)(void *arg);
	void *arg;
	struct sim_user_object *next;
};
struct sim_graph {
	uint32_t refs;
	uint64_t capture;          /* unique number of the capture */
	struct sim_stream *origin; /* stream on which the capture began */
	struct sim_lock lock;      /* for all fields below, during the capture */
	unsigned blocks, threads;
	unsigned external_nodes; /* nodes for external events, including those of nested graphs */
	struct sim_op *first, **last;
	struct sim_op *last_node; /* the last operation that a stream added */
	struct sim_user_object *user_objects;
	bool invalidated; /* a wait for the device spoiled the capture, which gives no graph */
};
void sim_graph_append(struct sim_graph *graph, struct sim_op *op);
void sim_graph_put(struct sim_graph *graph);

/* sim_stream.cc */
struct sim_stream {
	int device;
	bool is_default;
	struct sim_stream *next; /* in the list of all streams */
	uint32_t drainers;       /* threads in sim_device_drain that wait for this stream; futex */
	struct sim_lock lock;    /* for all fields below but pool */
	bool started, stop;
	pthread_t thread;
	struct sim_op *first, **last;
	/* Counts; futexes. Their difference is the number of operations that are queued or run. */
	uint32_t submitted;
	uint32_t completed;
	int err; /* sticky */
	struct sim_graph *capture;
	char order; /* TSan's token for the order between the stream and a host that synchronised */
	struct sim_pool pool;
};
/* The stream of a handle (NULL, 1 and 2: the device's default stream), or NULL with a log line. */
struct sim_stream *sim_stream_get(int device, void *handle);
/* Queues or records op, and owns it in any case. */
int sim_stream_submit(struct sim_stream *stream, struct sim_op *op);
/* The stream joins a capture in progress. -EINVAL: no capture has this number, or the stream cannot be captured. */
int sim_stream_join(struct sim_stream *stream, uint64_t capture);
/* Ends the capture into graph on all streams. */
void sim_stream_release(struct sim_graph *graph);
/* A reference to the graph that the stream captures into, or NULL. */
struct sim_graph *sim_stream_graph(struct sim_stream *stream);
/* Waits for all streams of the device, except for captured operations. */
int sim_device_drain(int device);

/* The operations, each in the file of its subject. */
#define OP(result, name, params) result sim_##name params;
#include "device/gpu_ops.def"

/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_STREAM_ORDER_H
#define SHUNT_COMM_STREAM_ORDER_H
/*
 * The launches of one communicator run one after another, in the order in which the program issues them: eager calls on
 * whatever stream, and graphs that captured some. Issuing a graph means launching it, a call that we do not see, so the
 * nodes that order it are put into it when it is captured.
 *
 * Eager, no graph alive   The same stream as the last time: nothing. Another one: it waits for an event that is
 * recorded on the old one. The program may have destroyed that one, and the driver crashes when it is asked about it:
 * so nothing is recorded if the launch is done, which the device's account of warps tells, and after a change the next
 *                         SHUNT_ORDER_KEEP calls each record the event behind themselves. In any case the driver is
 * asked once whether the new stream captures; nothing else could tell, since programs warm up on a stream and then
 * capture that very stream. Captured                The communicator's event is waited for before the first of the
 * communicator's launches in a graph, and recorded after the last: one node each per graph, not per call. Which launch
 * is the last is not known while capturing, so the record hangs beside the streams, and its one edge is moved from
 * launch to launch. Nothing of the graph follows it: it delays no node. The wait stands in the stream, in front of the
 * first launch. A launch on another stream of the same capture gets an edge from the one before. Eager, graphs alive
 * Any of them may have been launched since the last call, from any stream: each call waits for the event and records it
 * again, two calls of the driver. It ends when the last graph is destroyed and what it launched is done.
 *
 * Why events, and not a lock that the kernels take on the device: all ranks must come to the same order, or each waits
 * for the other. The order of issue is the same on all ranks, if the program is right; the order in which launches of
 * two streams reach a device is not. A kernel that spins for its turn would also hold the multiprocessors that the one
 * before may need. A graph's nodes for an external event go by the order of issue: the driver binds wait and record
 * when the graph is launched.
 *
 * NCCL_GRAPH_MIXING_SUPPORT=0 says that the program orders graphs against everything else: then no node is added, the
 * edges within a capture remain, and eager calls never pay for graphs. A graph for conditional nodes, or to be launched
 * from the device, needs it: CUDA refuses event nodes there.
 *
 * What stays with the program
 * - A graph that is launched on a stream which is not ordered after eager calls that were made, before the
 * communicator's first capture, on the very stream that was then captured: nothing can be recorded on a stream that
 * captures. Frameworks wait for the device before a capture.
 * - An eager call on another stream, while the stream of the last eager call captures and no graph is alive: likewise.
 * - A stream that is destroyed while a collective runs on it, if the next call is the first one on another stream.
 *
 * One thread at a time, except shunt_order_graphs.
 */
#include <stdbool.h>
#include <stdint.h>
#include "device/gpu_ops.h"
#include "kernels/kargs.h"

struct shunt_order_event;

/* A stream as it is: NULL is the legacy stream, and 2 is another stream in each thread. */
struct shunt_order_stream {
	void *handle;
	uint64_t thread; /* 0 unless the handle is 2 */
};

/* A capture in progress that has launches of ours. */
struct shunt_order_capture {
	uint64_t id;                      /* 0: free */
	struct shunt_order_stream stream; /* of the last launch */
	void *last_node;                  /* the last launch, or the wait before the first */
	void *record;                     /* follows the last_node; NULL: not added yet */
};

enum { SHUNT_ORDER_CAPTURES = 4 }; /* captures in progress at once that are told apart */
enum { SHUNT_ORDER_KEEP = 32 };

struct shunt_order {
	bool mixing;   /* graphs are ordered against all else */
	bool launched; /* there was an eager launch, on `last` */
	bool covered;  /* the event's last record, or one that follows it, covers that launch */
	struct shunt_order_stream last;
	struct shunt_order_event *event; /* NULL until needed */
	struct shunt_order_capture captures[SHUNT_ORDER_CAPTURES],
	    *current; /* current: the launch between begin and end goes into it */
	unsigned next_capture;
	const struct shunt_progress
	    *progress;  /* the device's account of the communicator's warps; NULL: there is none */
	uint64_t warps; /* that eager launches have had: so many end ... */
	bool uncounted; /* ... unless graphs had some, too */
	bool partial;   /* a call failed half-way: the event alone covers what was launched */
	unsigned keep;  /* so many more eager calls record the event because the stream has changed */
};

void shunt_order_init(struct shunt_order *order, bool mixing);
/* From now on the device keeps account, and shunt_order_add_warps follows each launch between begin and end. */
void shunt_order_set_progress(struct shunt_order *order, const struct shunt_progress *progress);
void shunt_order_add_warps(struct shunt_order *order, uint64_t warps);
/*
 * begin before a launch on stream, or several on the same, and end after it; no end if the launch fails, and no harm if
 * nothing was launched. On an error of begin the launch must not be made: -EBUSY if the stream's capture was
 * invalidated, or if it is the legacy stream, which a capture on a blocking stream rules out.
 */
int shunt_order_begin(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream);
int shunt_order_end(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream);
/*
 * In the place of end, where some of the launches were made, and the rest could not. Nothing is to be launched any
 * more.
 */
void shunt_order_end_partial(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream);
/*
 * Are all launches so far done, those of graphs too? Does not wait, and asks no stream and not the device as a whole:
 * CUDA refuses to wait for that while any of its streams captures, and spoils the capture. Only where graphs are not
 * ordered (no mixing) and some were captured, or nobody keeps account, it waits for the whole device.
 */
int shunt_order_done(const struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, bool *done_p);
/*
 * Are all launches of graphs done? Does not wait. *idle_p is false where nobody can tell: graphs that are not ordered
 * (no mixing). Eager launches are not looked at.
 */
int shunt_order_graphs_idle(const struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, bool *idle_p);
/* Graphs may live on; a launch of one of them waits for nothing of this communicator any more. */
void shunt_order_finish(struct shunt_order *order);
/*
 * How many graphs with launches of ours are alive: captures in progress, graphs, what was instantiated from them,
 * launches that run. An estimate that may be too high for a moment. Always 0 without mixing. Any thread, but not beside
 * finish.
 */
unsigned shunt_order_graphs(const struct shunt_order *order);
#endif

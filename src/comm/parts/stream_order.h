/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The launches of one communicator run one after another, in the order in which the program issues them: eager calls on
 * any stream, and graphs that captured such calls. The program issues a graph by launching it, which Shunt does not
 * see. So the nodes that order a graph are put into it while it is captured.
 *
 * - Eager call, no graph alive: on the same stream as last time there is nothing to do. Another stream waits for an
 *   event that is recorded on the old one. The program may have destroyed the old stream, and the driver crashes when
 *   it is asked about it. So nothing is recorded there if the last launch is done, which the device's account of warps
 *   tells, and after a change of stream the next SHUNT_ORDER_KEEP calls each record the event behind themselves. In any
 *   case the driver is asked once whether the new stream captures: programs warm up on a stream and then capture that
 *   very stream, so nothing else can tell.
 * - Captured call: the stream waits for the communicator's event before the communicator's first launch in a graph, and
 *   the event is recorded after the last one. That is one node each per graph, not per call. Which launch is the last
 *   is not known while capturing, so the record node is in no stream, and its one edge moves from launch to launch. No
 *   node of the graph follows it, so it delays none. A launch on another stream of the same capture gets an edge from
 *   the launch before.
 * - Eager call, graphs alive: any graph may have been launched since the last call, from any stream. Each call waits
 *   for the event and records it again: two calls of the driver. This ends when the last graph is destroyed and its
 *   last launch is done.
 *
 * Why events, and not a lock that kernels take on the device: all ranks must come to the same order, or each waits for
 * the other. The order of issue is the same on all ranks, if the program is right; the order in which launches of two
 * streams reach a device is not. A kernel that spins for its turn would also hold the multiprocessors that the kernel
 * before it may need. A graph's nodes for an external event follow the order of issue: the driver binds wait and record
 * when the graph is launched.
 *
 * NCCL_GRAPH_MIXING_SUPPORT=0 says that the program orders graphs against everything else. Then no node is added, the
 * edges within a capture remain, and eager calls wait for no graph. A graph for conditional nodes, or to be launched
 * from the device, needs this setting: CUDA refuses event nodes there.
 *
 * The program has to take care of these cases itself:
 * - A graph is launched on a stream that is not ordered after eager calls, and those were made before the
 *   communicator's first capture on the very stream that was then captured. Nothing can be recorded on a stream that
 *   captures. Frameworks wait for the device before a capture.
 * - An eager call comes on another stream, while the stream of the last eager call captures and no graph is alive.
 * - A stream is destroyed while a collective runs on it, and the next call is the first one on another stream.
 *
 * One thread at a time, except shunt_order_graphs.
 */
#include <stdbool.h>
#include <stdint.h>
#include "device/gpu_ops.h"
#include "kernels/kargs.h"

struct shunt_order_event;

/* A stream. Handle NULL is the legacy stream; handle 2 is another stream in each thread. */
struct shunt_order_stream {
	void *handle;
	uint64_t thread; /* 0 unless the handle is 2 */
};

/* A capture in progress that has launches of this communicator. */
struct shunt_order_capture {
	uint64_t id;                      /* 0: free */
	struct shunt_order_stream stream; /* of the last launch */
	void *last_node;                  /* the last launch, or the wait before the first */
	void *record;                     /* the record node, which follows last_node; NULL: not added yet */
};

enum { SHUNT_ORDER_CAPTURES = 4 }; /* captures in progress at once */
enum { SHUNT_ORDER_KEEP = 32 };

/*
 * The state of the last eager launch, for a launch on another stream.
 *
 * | event                                                     | NONE | BARE    | COVERED |
 * |-----------------------------------------------------------|------|---------|---------|
 * | launched: an eager launch was made                        | BARE | BARE    | BARE    |
 * | covered: the event was recorded behind it                 |      | COVERED | COVERED |
 * | ended: the device said that it is done, or was waited for | NONE | NONE    | NONE    |
 */
enum shunt_order_last {
	SHUNT_ORDER_NONE,    /* there is none to wait for */
	SHUNT_ORDER_BARE,    /* it is on the stream `last`, and the event says nothing about it */
	SHUNT_ORDER_COVERED, /* the event's last record comes after it */
};

/*
 * The launches that the device's account of warps covers.
 *
 * | event                                               | NONE  | EXACT  | GRAPHS | EVENT |
 * |-----------------------------------------------------|-------|--------|--------|-------|
 * | opened: the device keeps an account from now on     | EXACT |        |        |       |
 * | captured: a graph got its first launch, or a launch keeps no account | NONE  | GRAPHS | GRAPHS |       |
 * | restarted: all graphs are gone, and their work done | NONE  | EXACT  | EXACT  |       |
 * | failed: a call launched only a part of its kernels  | NONE  | EVENT  | EVENT  | EVENT |
 * | lost: ... and the event cannot tell when they end   | NONE  | NONE   | NONE   | NONE  |
 */
enum shunt_order_account {
	SHUNT_ACCOUNT_NONE,   /* nothing: only the device as a whole can be asked */
	SHUNT_ACCOUNT_EXACT,  /* they are eager launches, and all done once `ended` reaches `warps` */
	SHUNT_ACCOUNT_GRAPHS, /* graphs have added warps of their own: once `ended` reaches `warps`, the event knows the
	                         rest */
	SHUNT_ACCOUNT_EVENT,  /* the event alone covers what was launched; nothing is launched any more */
};

struct shunt_order {
	bool mixing; /* graphs are ordered against all else */
	enum shunt_order_last last_state;
	enum shunt_order_account account;
	struct shunt_order_stream last;
	struct shunt_order_event *event; /* NULL until needed */
	struct shunt_order_capture captures[SHUNT_ORDER_CAPTURES],
	    *current; /* current: of the launch between begin and end; NULL: eager */
	unsigned next_capture;
	const struct shunt_progress *progress; /* the device's account of the communicator's warps */
	uint64_t warps;                        /* of all eager launches */
	unsigned keep; /* how many more eager calls record the event because the stream has changed */
};

void shunt_order_init(struct shunt_order *order, bool mixing);
/*
 * From now on the device keeps an account of warps, and shunt_order_add_warps follows each launch between begin and
 * end.
 */
void shunt_order_set_progress(struct shunt_order *order, const struct shunt_progress *progress);
void shunt_order_add_warps(struct shunt_order *order, uint64_t warps);
/* In its place, for a launch that keeps no account: the event has to cover it. */
void shunt_order_uncounted(struct shunt_order *order);
/*
 * begin comes before a launch on stream, or several on the same stream; end comes after it. No end if the launch fails;
 * no harm if nothing was launched. After an error of begin the launch must not be made. -EBUSY: the stream's capture
 * was invalidated, or the stream is the legacy one, which a capture on a blocking stream rules out.
 */
int shunt_order_begin(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream);
int shunt_order_end(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream);
/* In place of end, if some of the launches were made and the others failed. Nothing may be launched after it. */
void shunt_order_end_partial(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream);
/*
 * *done_p: all launches so far are done, those of graphs too. Does not wait, and asks neither a stream nor the whole
 * device: CUDA refuses that while any stream of the device captures, and spoils the capture. It waits for the whole
 * device only if graphs are not ordered (no mixing) and some were captured, or if kernels keep no account of their
 * warps.
 */
int shunt_order_done(const struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, bool *done_p);
/*
 * *idle_p: all launches of graphs are done; false if that cannot be known: graphs that are not ordered (no mixing).
 * Does not wait, and ignores eager launches.
 */
int shunt_order_graphs_idle(const struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, bool *idle_p);
/* Graphs may outlive this; their launches then wait for nothing of this communicator. */
void shunt_order_finish(struct shunt_order *order);
/*
 * How many graphs with launches of this communicator are alive: captures in progress, graphs, their instances, launches
 * that run. An estimate, too high for a moment at times; always 0 without mixing. Any thread, but not during finish.
 */
unsigned shunt_order_graphs(const struct shunt_order *order);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A device that only keeps books, for the order of a communicator's launches. Launches are numbered in the order of
 * issue; a stream, an event and a node know the highest number that precedes them. A launch that is not preceded by the
 * one before it fails the test, and so, by induction, each is known to follow all before it.
 */
#include "comm/parts/stream_order.h"
#include "tests/support/choices.h"
#include "tests/support/unit.h"

enum { STREAMS = 5, GRAPHS = 6, NODES = 64, EDGES = 16, EVENTS = 8, WARPS = 4 };

enum node_kind { KERNEL, OTHER, WAIT, RECORD };

struct event {
	bool live;
	long clock;
};

struct node {
	enum node_kind kind;
	struct event *event;
	struct node *preds[EDGES];
	unsigned npreds;
	long clock; /* of the current launch */
};

struct graph {
	uint64_t id;
	bool capturing, ready;
	struct node nodes[NODES];
	unsigned nnodes;
	void (*drop)(void *);
	void *arg;
	unsigned drops;
	long last; /* number of its latest launch */
};

struct stream {
	struct graph *graph; /* into which it captures */
	struct node *tips[EDGES];
	unsigned ntips;
	long clock;
	bool gone;
};

struct books {
	long issued, done; /* launches */
	struct shunt_progress progress;
	uint64_t captures;
	struct stream streams[STREAMS], legacy, mine, theirs;
	struct graph graphs[GRAPHS];
	struct event events[EVENTS];
	enum shunt_capture state; /* what every stream says, unless it is none */
	bool check;               /* that launches follow each other */
	long broken;
	/* calls of the driver */
	long calls, captures_asked, records, waits, creates, syncs, infos, nodes, joins, moves, looks;
	long fail_at;
	long eager;   /* number of the last eager launch */
	long settled; /* all launches up to this number have ended, or were waited for with the device */
};

extern struct books books;
extern __thread bool books_other_thread; /* stream 2 is another one here */
extern const struct shunt_gpu_ops books_ops;

/* Everything is new, and launches are checked. */
void books_reset(void);
void books_calls_reset(void);
int books_live_events(void);
/* The device comes to the end of all that was issued. */
void books_finish(void);
/* All streams come after launch `number`. */
void books_wait_for_all(long number);
/* A node behind what the stream holds. */
struct node *books_add_node(struct stream *s, enum node_kind kind, struct event *event);
/* An eager launch behind *clock. */
void books_run(long *clock);
/* A collective, as a communicator makes it; each step's change of state is checked against the tables of the header. */
int books_collective(struct shunt_order *order, void *stream);
/* A collective that fails after its first launch. */
int books_collective_partial(struct shunt_order *order, void *stream);
/* NULL: all graphs are in use. */
struct graph *books_capture_begin(struct stream *s);
void books_capture_end(struct graph *g);
/* The program's own fork within a capture. */
void books_fork_to(struct stream *from, struct stream *to);
void books_graph_launch(struct graph *g, struct stream *s);
void books_graph_destroy(struct graph *g);
/*
 * What a program may do, as the choices say, until they end or `steps` are made. Returns how often the order was
 * broken: without mixing it is, which shows that the books can tell.
 */
long books_walk(struct choices *choices, int steps, bool mixing);

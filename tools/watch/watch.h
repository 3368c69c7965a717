/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Watches the jobs of a host from outside. A look asks all processes that have libshunt.so for their state; what did
 * not change over many looks hangs.
 */
#include "tools/doctor/doctor.h"

enum { WATCH_TEXT = 80, WATCH_PEERS = 64 };

struct watch_opts {
	double every_s, hang_s, straggler_s;
	unsigned straggler;  /* percent; 0: no such events */
	int on_hang;         /* enum watch_on_hang */
	const char *command; /* of exec: */
	const char *events, *prometheus, *listen, *dumps;
	int ancestor;            /* look at what descends from this process; 0: at all of this user, root: of all */
	bool silent, namespaces; /* silent: no events */
};
enum watch_on_hang { WATCH_REPORT, WATCH_DUMP, WATCH_EXIT, WATCH_EXEC };
int watch_on_hang_apply(void *opts, const struct option_row *row, const char *text); /* struct watch_opts is first */
int watch_seconds_apply(void *opts, const struct option_row *row, const char *text);
#define WATCH_OPTION_BELOW \
	{ "below", 0, OPTION_NUMBER, "PID", offsetof(struct watch_opts, ancestor), 1, 1 << 30, \
		.help = "look only at this process and all that descend from it" }
#define WATCH_OPTION_NAMESPACES \
	{ "namespaces", 0, OPTION_FLAG, .at = offsetof(struct watch_opts, namespaces), \
		.help = "also at processes in other network namespaces of this host, such as containers (root)" }
/* A command's rows for struct watch_opts, which is the first member of its struct. alone: it has no program to end. */
/* clang-format off */
#define WATCH_OPTIONS(prefix, alone) \
	{ "hang", 0, OPTION_CALL, "TIME", offsetof(struct watch_opts, hang_s), .call = watch_seconds_apply, \
	    .help = prefix "a call that has not moved for so long hangs: 30s, 10m (the default), 2h" }, \
	{ "on-hang", 0, OPTION_CALL, "WHAT", .low = alone, .call = watch_on_hang_apply, \
	    .help = prefix "report (the default): an event and a line; dump: also the dumps of all ranks of this " \
	    "host; exec:COMMAND: a shell gets the event on its input" }, \
	{ "every", 0, OPTION_CALL, "TIME", offsetof(struct watch_opts, every_s), .call = watch_seconds_apply, \
	    .help = prefix "time between two looks (10s)" }, \
	{ "straggler", 0, OPTION_NUMBER, "PERCENT", offsetof(struct watch_opts, straggler), 0, 100, \
	    .help = prefix "a rank is late if a peer's kernels wait for it in more of the time than this, and for " \
	    "all others together less (25; 0: no such events)" }, \
	{ "straggler-time", 0, OPTION_CALL, "TIME", offsetof(struct watch_opts, straggler_s), \
	    .call = watch_seconds_apply, .help = prefix "the time over which that is added up (1m)" }, \
	{ "events", 0, OPTION_TEXT, "FILE", offsetof(struct watch_opts, events), \
	    .help = prefix "add a line of JSON for each event; -: to the output" }, \
	{ "prometheus", 0, OPTION_TEXT, "DIR", offsetof(struct watch_opts, prometheus), \
	    .help = prefix "write metrics to DIR/shunt.prom, for node_exporter's textfile collector" }, \
	{ "listen", 0, OPTION_TEXT, "127.0.0.1:PORT", offsetof(struct watch_opts, listen), \
	    .help = prefix "serve the same metrics by HTTP, on this host only" }, \
	{ "dumps", 0, OPTION_TEXT, "DIR", offsetof(struct watch_opts, dumps), \
	    .help = prefix "where a hang's dumps go (shunt-dumps)" }
/* clang-format on */
#define WATCH_OPTS { .every_s = 10, .hang_s = 600, .straggler = 25, .straggler_s = 60 }

/* ---- one look (look.c) */

/*
 * Asks the processes that run Shunt: d gets those that answered, and f a finding for each of the others. request: as
 * for ask_all(). dir: keeps the answers. everywhere: as for ask_find().
 */
int look_take(
    struct dumps *d, struct findings *f, pid_t ancestor, const char *request, const char *dir, bool everywhere);
/* Process and all that descends from it, without this process; the caller frees *pids_p. Number, or -errno. */
int look_descendants(pid_t ancestor, pid_t **pids_p);
/* The cause that the doctor finds for a communicator, or "". */
void look_cause(const struct dumps *d, const char *id, int nranks, char *text, size_t bytes);

/* ---- what many looks together say (track.c) */

/* One rank of one communicator. */
struct watch_rank {
	char key[WATCH_TEXT], host[WATCH_TEXT];
	int rank, nranks, pid;
	bool here;    /* in the last look */
	size_t group; /* ... its communicator's */
	uint64_t calls, nccl, bytes, fresh_calls, fresh_nccl, fresh_bytes;
	const struct dump_comm *now;           /* of the last look */
	uint64_t waits[WATCH_PEERS], waits_ns; /* its waits for peers when they were last compared, and when that was */
};

struct watch_group {
	char key[WATCH_TEXT], id[WATCH_TEXT], job[WATCH_TEXT];
	int nranks;
	size_t number;                   /* of its job in the last look */
	int64_t moved_ms;                /* when a rank of it was seen to have changed last */
	bool here, waits, hangs, broken; /* waits: a call is unfinished */
	int64_t compared_ms;             /* when its waits were last compared */
	int late;                        /* the rank that was late then, or -1 */
};

struct watch {
	const struct watch_opts *o;
	struct dumps last;
	struct dumps whole; /* what was asked for at the last hang */
	struct watch_rank *ranks;
	struct watch_group *groups;
	struct watch_process {
		int pid;
		bool here, silent, hangs; /* hangs: in a creation, which no communicator tells of */
	} *processes;
	size_t nranks, ngroups, nprocesses;
	int64_t look_ms, before_ms;
	bool hung; /* a hang was found by the last look */
	int64_t events_said_ms, metrics_said_ms;
};

/* Takes a look, and reports what is new in it. 0 or -ENOMEM. */
int watch_look(struct watch *w);
void watch_finish(struct watch *w);
/* The call that a rank has waited in for longest; NULL: none. */
const struct dump_op *watch_unfinished(const struct dump_comm *c);

/* ---- output */

enum watch_event {
	EVENT_START,
	EVENT_END,
	EVENT_COMMUNICATOR,
	EVENT_BROKEN,
	EVENT_HANG,
	EVENT_MOVED,
	EVENT_MISMATCH,
	EVENT_GONE,
	EVENT_STRAGGLER
};
/* g: its communicator, or NULL. behind: of a hang or a straggler. waiting: of a hang. Adds a line to the events, and
 * tells the user. */
void watch_event(struct watch *w, enum watch_event event, const struct watch_group *g, const char *where,
    const bool *behind, const bool *waiting, const char *text);
/* The metrics as Prometheus' text. 0 or -ENOMEM; the caller frees *text_p. */
int metrics_text(const struct watch *w, char **text_p, size_t *bytes_p);
void metrics_write(struct watch *w);
void metrics_remove(const struct watch *w);
/* A listening socket, or -1 after a message. */
int listen_open(const char *address);
void listen_answer(int listener, const struct watch *w);

/* Looks until a signal comes. notify: a descriptor that gets a byte at each hang, or -1. Exit status. */
int watch_run(const struct watch_opts *o, int notify);
/* Runs a program, watched; exit status. options: as given to shunt run. */
int watch_program(struct watch_opts *o, char **argv);

/* SPDX-License-Identifier: MIT */
#pragma once
/* shunt doctor: findings, and functions that look for them. One file per subject. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <jansson.h>
#include "base/json.h"
#include "tools/common/ask.h"
#include "tools/common/options.h"
#include "tools/common/ranks/ranks.h"
#include "tools/common/tool.h"

/*
 * Level   Meaning
 * OK      checked, and right
 * INFO    good to know
 * WARN    works, but worse than it could, or not as asked
 * ERROR   will not work
 */
enum finding_level { FINDING_OK, FINDING_INFO, FINDING_WARN, FINDING_ERROR };

struct finding {
	enum finding_level level;
	const char *topic;   /* "variables"; static */
	char *text, *advice; /* advice: "" for none */
};

struct findings {
	struct finding *rows;
	size_t n;
	bool failed; /* out of memory: findings are missing */
};

/* Adds a finding. advice: what to do, or "". Both texts may be cut at 2 kB. */
void finding_add(struct findings *f, enum finding_level level, const char *topic, const char *advice, const char *fmt,
    ...) __attribute__((format(printf, 5, 6)));
/*
 * Prints the findings, and "dumps" or the like, as text or JSON. Returns the exit status: 0 nothing, 1 warnings, 2
 * errors.
 */
int findings_print(const struct findings *f, bool json);
void findings_finish(struct findings *f);

/* ---- before a run. program: path of the program to run, or NULL */
void doctor_variables(struct findings *f, char *const *environment, bool real_nccl);
/* Adds a finding if a variable's value is wrong. Returns true in this case. */
struct shunt_config_row;
struct shunt_settings;
bool doctor_value(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s);
void doctor_host(struct findings *f);
void doctor_nics(struct findings *f);
void doctor_devices(struct findings *f, bool real_nccl);
/* shunt doctor --links. Exit status. */
int doctor_links(bool json);
/* Returns true if a real NCCL would be used. */
bool doctor_libraries(struct findings *f, const char *program);
void doctor_plans(struct findings *f);
/*
 * Each folder of packages of the Python that a shell would start here, in the order in which Python looks: PYTHONPATH,
 * VIRTUAL_ENV, the python3 on the PATH.
 */
void doctor_packages_each(void (*fn)(const char *dir, void *arg), void *arg);
/* True if the name is an engine's of engines.def. */
bool doctor_is_engine(const char *name);
/* What of an engine, which is installed beside that Python, stands before NCCL. */
void doctor_engine(struct findings *f, const char *name);

/*
 * NCCL in an ELF file. 0, or -errno: the file cannot be read; or no program or library that this machine could load
 * (-ENOEXEC); or cut short, or without the table of sections, so that its symbols are not known (-ENODATA).
 */
struct doctor_elf {
	bool needs_nccl;       /* is linked with libnccl.so* */
	bool imports;          /* imports a function of NCCL's */
	bool exports;          /* exports ncclAllReduce */
	bool contains;         /* has a hidden NCCL of its own, linked statically */
	bool stubs;            /* has hidden functions of NCCL's names which are not NCCL: they open a libnccl.so */
	bool mentions_nccl;    /* contains the text libnccl.so, so it may dlopen it */
	bool has_api;          /* has the functions of shunt/shunt.h */
	bool imports_api;      /* imports one of them */
	bool needs_api;        /* is linked with libshunt_api.so* */
	bool is_shunt;         /* libshunt.so, under whatever name */
	bool is_python_module; /* an extension of Python, which is loaded after what it needs */
	char renamed[64];      /* a function of an NCCL in it that has another name, "torchcomms_ncclAllReduce"; "" */
	char needs_later[64];  /* an imported function of NCCL's that Shunt does not know, or "" */
	char has_later[64];    /* the same for an exported function */
	char interpreter[PATH_MAX]; /* "" for a library */
	char version[64];           /* of the NCCL in the file, such as "2.28.9+cuda13.0"; "" if there is none */
	/* Of a libshunt.so: the compiler of its kernels, "nvcc 13.0 for sm_90"; "" without kernels for GPUs */
	char kernels[64];
};
int doctor_elf_read(const char *path, struct doctor_elf *elf);

/* ---- during and after a run */

struct dump_op {
	uint64_t seq, number, count, time_ns;
	const char *kind, *dtype, *op, *path, *stream, *state; /* op: "" for none */
	const char *reason;                                    /* the reason why it went to NCCL; "" for none */
	int root;                                              /* or the peer of a message; -1: none */
	bool captured, message;
};

/* Calls of one kind, by who made them, and why NCCL. */
struct dump_counter {
	const char *op, *path, *reason; /* reason: "" for none */
	uint64_t calls, bytes;
};

/* The rank that others have waited for most between two looks. */
struct dump_wait {
	int rank;         /* -1: nobody has waited */
	unsigned percent; /* of the time */
};

struct dump_comm {
	const struct dump_process *process;
	const char *id, *key, *state, *reason, *error, *phase; /* "" for none */
	int rank, nranks, device;
	uint64_t phase_time_ns, calls, collectives, replays, last;
	uint64_t nccl_finished; /* seq of the last call whose mark has come; 0: none */
	bool has_progress, running, last_captured;
	bool aborted;                /* its kernels were told to give up */
	bool moved;                  /* between two looks */
	uint64_t new_calls;          /* ... and so many calls */
	struct dump_wait waited;     /* ... and for which rank most */
	bool silent;                 /* its device could not be read: another call holds the driver */
	int fault_peer;              /* -1: no fault */
	const char *fault_peer_call; /* the peer's call if it differs from this rank's, else "" */
	uint64_t fault_op;           /* seq; 0: unknown */
	size_t nops, ncollectives, npeers, nwaits;
	uint64_t *waits;            /* ns, nwaits of them: for how long its kernels have waited for each rank */
	struct dump_op *ops;        /* collectives by number, then messages by number */
	unsigned *sends, *receives; /* of npeers */
	size_t ncounters;
	struct dump_counter *counters; /* all calls so far; none before format 3 */
};

/* A thread that is inside NCCL. */
struct dump_thread {
	const char *function, *key; /* key: "" for none */
	uint64_t seq, since_ns;
};

struct dump_process {
	json_t *json; /* owner of the strings */
	char *file;
	const char *host, *program, *reason;
	int pid;
	unsigned format;
	uint64_t pid_namespace; /* containers have pids of their own; 0: unknown */
	uint64_t time_ns;
	size_t ncomms;
	struct dump_comm *comms;
	size_t nthreads;
	struct dump_thread *threads;
};

struct dumps {
	struct dump_process **processes;
	size_t n;
};

/*
 * Adds one dump. name: the file, for messages. Of several dumps of a process the newest is kept. 0; -EINVAL after a
 * message: not a dump of this format; -ENOMEM.
 */
int dumps_add(struct dumps *d, const char *name, const char *text, size_t bytes);
/* The same of a JSON that is read; it is d's then, or gone. */
int dumps_add_json(struct dumps *d, struct shunt_json_log *log, json_t *json);
/*
 * Adds a file, or all shunt-*.json of a directory; f gets a finding for each file of the directory that cannot be used.
 * 0, or -errno after a message if no file could be used.
 */
int dumps_add_path(struct findings *f, struct dumps *d, const char *path);
void dumps_finish(struct dumps *d);

/*
 * Processes asked twice: what has moved meanwhile does not hang. f gets why a process has not answered. The second
 * answers are kept in the directory `output` if that is not NULL.
 */
struct look {
	struct findings *f;
	struct ask_process *processes;
	size_t n, silent;             /* those that have not answered are the first ones */
	const char *request, *output; /* of the second look */
	struct dumps before, now;
	bool waits;  /* a second look may tell more */
	bool unkept; /* a dump could not be kept, and a message was printed */
};
void doctor_look_first(struct look *look);
void doctor_look_sleep(unsigned seconds);
void doctor_look_again(struct look *look);
void doctor_look_finish(struct look *look);
/* Rank 0 gets the looks of all; 0, or -errno after a message. */
int doctor_hosts_gather(struct ranks *ranks, const struct ranks_slot *slot, struct look *look);
/* The look as a line; exit status. */
int doctor_answers_print(const struct look *look);
/* Adds the lines of a file. 0, or -errno after a message. */
int doctor_answers_file(struct look *look, const char *path);

/*
 * Marks the communicators of `d` that have moved since the look before: those that are new, too, and those that one of
 * their ranks has left.
 */
void doctor_moved_mark(struct dumps *d, const struct dumps *before);
/* Creates the directory of an option, such as --output. 0, or -errno after a message. */
int doctor_directory_create(const char *option, const char *dir);
/*
 * Adds an answer. dir: also keeps it there, unchanged, in a file whose name has the occasion; NULL: not. 0; -EINVAL, or
 * -EIO where it is not kept, after a message; -ENOMEM.
 */
int doctor_answer_add(struct dumps *d, const struct ask_process *p, const char *dir, const char *occasion);
/* Gives each process, in job[d->n], the number of the first one of its job: processes that share communicators, also
 * over others. */
void doctor_jobs_find(const struct dumps *d, size_t *job);
int doctor_job_main(int argc, char **argv);
extern const struct option_table doctor_job_options;

/* Finds the causes of hangs from all dumps together. */
void doctor_hangs(struct findings *f, const struct dumps *d);

/* A thread that is inside NCCL with this communicator; NULL: none, or c is NULL. */
const struct dump_thread *doctor_thread_inside(const struct dump_comm *c);
/*
 * The next thread, from number *at on, that has been inside NCCL for longer than ns with a communicator that the
 * process does not know, such as one that is being created; NULL: none.
 */
const struct dump_thread *doctor_thread_unknown(const struct dump_process *p, size_t *at, uint64_t ns);
void doctor_unknown_tell(const struct dump_process *p, const struct dump_thread *thread, char *text, size_t bytes);
/* Adds a finding that says why a process has not answered. */
void doctor_silence_explain(struct findings *f, const struct ask_process *p);
/* Prints the table of a dump's fields, for docs/doctor.md. */
void dumps_fields_print(void);
/* The subcommands' main functions: argv[0] is their name. */
int doctor_dumps_main(int argc, char **argv);
extern const struct option_table doctor_dumps_options;

/* --net (net.c): tests the network between the ranks. argv: of the command. Exit status. */
struct doctor_net {
	const struct ranks_opts *ranks;
	bool json;
};
int doctor_net(const struct doctor_net *o, int argc, char **argv);

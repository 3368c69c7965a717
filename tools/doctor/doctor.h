/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_DOCTOR_DOCTOR_H
#define SHUNT_TOOLS_DOCTOR_DOCTOR_H
/* shunt doctor: what is found, and who looks for it. One file per subject. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <jansson.h>
#include "tools/common/tool.h"

/*
 * OK: looked at and right. INFO: good to know. WARN: works, but worse than it could, or not as asked. ERROR: will not
 * work.
 */
enum finding_level { FINDING_OK, FINDING_INFO, FINDING_WARN, FINDING_ERROR };

struct finding {
	enum finding_level level;
	const char *topic;   /* "variables"; static */
	char *text, *advice; /* advice may be "" */
};

struct findings {
	struct finding *rows;
	size_t n;
	bool failed; /* no memory: something is missing */
};

/* Adds one. advice: what to do, "" if there is nothing. Both may be cut at 2 kB. */
void finding_add(struct findings *f, enum finding_level level, const char *topic, const char *advice, const char *fmt,
    ...) __attribute__((format(printf, 5, 6)));
/* Prints them, and "dumps" or the like as text or JSON; returns the exit status: 0 nothing, 1 warnings, 2 errors. */
int findings_print(const struct findings *f, bool json);
void findings_finish(struct findings *f);

/* ---- before a run. program: path of what is to run, or NULL */
void doctor_variables(struct findings *f, char *const *environment, bool real_nccl);
/* Adds what is wrong with the value that one variable has, and returns whether anything is. */
struct shunt_config_row;
struct shunt_settings;
bool doctor_value(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s);
void doctor_host(struct findings *f);
void doctor_devices(struct findings *f, bool real_nccl);
/* Returns whether a real NCCL would be used. */
bool doctor_libraries(struct findings *f, const char *program);
void doctor_plans(struct findings *f);

/*
 * What an ELF file says of NCCL. 0, or -errno: it cannot be read, or is no 64-bit ELF file of this byte order
 * (-ENOEXEC).
 */
struct doctor_elf {
	bool needs_nccl;    /* libnccl.so* is among what it is linked with */
	bool imports;       /* takes ncclAllReduce from elsewhere */
	bool exports;       /* offers ncclAllReduce to others */
	bool contains;      /* has one that only it can use: linked in statically, and hidden */
	bool mentions_nccl; /* has the text libnccl.so, so it may dlopen it */
	bool is_shunt;
	char needs_later[64]; /* a function of NCCL's that it takes from elsewhere and Shunt does not know, or "" */
	char has_later[64];   /* ... that it offers */
	char interpreter[PATH_MAX]; /* "" for a library */
	char version[64];           /* of the NCCL inside, as "2.28.9+cuda13.0"; "" if there is none */
};
int doctor_elf_read(const char *path, struct doctor_elf *elf);

/* ---- while it runs, and after */

struct dump_op {
	uint64_t seq, number, count, time_ns;
	const char *kind, *dtype, *op, *path, *stream, *state; /* op: "" where there is none */
	const char *reason;                                    /* it went to NCCL; "" for none */
	int root;                                              /* or the peer of a message; -1: none */
	bool captured, message;
};

struct dump_comm {
	const struct dump_process *process;
	const char *id, *key, *state, *reason, *error, *phase; /* "" for none */
	int rank, nranks;
	uint64_t phase_time_ns, calls, collectives, replays, last;
	bool has_progress, running, last_captured;
	bool silent;                 /* its device could not be read: something holds the driver */
	int fault_peer;              /* -1: no fault */
	const char *fault_peer_call; /* "", or what the peer calls that is not what this rank calls */
	uint64_t fault_op;           /* seq; 0: not known */
	size_t nops, ncollectives, npeers;
	struct dump_op *ops;        /* collectives by their numbers, then messages by theirs */
	unsigned *sends, *receives; /* of npeers */
};

struct dump_process {
	json_t *json; /* what the strings belong to */
	char *file;
	const char *host, *program, *reason;
	int pid;
	uint64_t pid_namespace; /* containers have pids of their own; 0: not known */
	uint64_t time_ns;
	size_t ncomms;
	struct dump_comm *comms;
};

struct dumps {
	struct dump_process **processes;
	size_t n;
};

/*
 * Takes one dump, and json with it. name: the file, for messages. An older dump of the same process is replaced, one
 * that is older is left out. 0; -EINVAL after a message: it is no dump; -ENOMEM.
 */
int dumps_add(struct dumps *d, json_t *json, const char *name);
/*
 * A file, or all shunt-*.json of a directory: of these, f tells which cannot be used. 0, or -errno after a message if
 * nothing could be.
 */
int dumps_add_path(struct findings *f, struct dumps *d, const char *path);
void dumps_finish(struct dumps *d);

/* Who waits for whom, from all dumps together. */
void doctor_hangs(struct findings *f, const struct dumps *d);

/* Asks a running process. 0 and its dump, to be freed; -errno after a finding says what is the matter. */
int doctor_dump_request(struct findings *f, pid_t pid, json_t **dump_p);
/* The subcommands' main functions: argv[0] is their name. */
int doctor_dumps_main(int argc, char **argv);
#endif

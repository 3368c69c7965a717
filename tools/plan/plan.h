/* SPDX-License-Identifier: MIT */
#pragma once
/* shunt plan: declarations for the files of this folder. check, show, run, new and build have a file each. */
#include <stdio.h>
#include "plan/format/plan.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

/* argv[0] is the action's name; returns the exit status. */
int plan_check_main(int argc, char **argv);
int plan_show_main(int argc, char **argv);
int plan_run_main(int argc, char **argv);
int plan_new_main(int argc, char **argv);
int plan_build_main(int argc, char **argv);
extern const struct option_table plan_check_options, plan_show_options, plan_run_options, plan_new_options,
    plan_build_options;

enum { PLAN_REASON_BYTES = 1024 };

/* The plan in a file, or NULL after a message. The caller drops it. */
struct shunt_plan *plan_open(const char *path);
/* "1K to 64M bytes" and similar; buf: 64 bytes. */
const char *plan_range_text(const struct shunt_plan *plan, char *buf);

/* ---- operations as text (text.c) ---- */

/* "output[1] = input[0] + packets scratch[1]". Always terminated. */
void plan_op_describe(
    const struct shunt_plan *plan, uint32_t rank, const struct shunt_plan_op *op, char *text, size_t bytes);

/* ---- a launch, simulated with made-up durations (timeline.c) ---- */

enum plan_arrow_kind { PLAN_ARROW_SIGNAL, PLAN_ARROW_SEMAPHORE, PLAN_ARROW_BARRIER, PLAN_ARROW_DATA };

/* One run of an operation; in a pipeline one for each window. */
struct plan_step {
	const struct shunt_plan_op *op;
	uint32_t row;                /* block, counted over all ranks */
	uint32_t window;             /* from 0; 0 outside of pipelines */
	double ready_at, start, end; /* it waits from ready_at to start */
};

struct plan_arrow {
	enum plan_arrow_kind kind;
	uint32_t from, to; /* steps */
};

struct plan_row {
	uint32_t rank, block;
};

struct plan_timeline {
	struct plan_row *rows;
	uint32_t nrows;
	struct plan_step *steps;
	size_t nsteps;
	struct plan_arrow *arrows;
	size_t narrows;
	double end;
};

/* 0; -EFBIG: too many steps for a picture; -ENOMEM. Finish it in every case. */
int plan_timeline_init(struct plan_timeline *t, const struct shunt_plan *plan);
void plan_timeline_finish(struct plan_timeline *t);

/* What a picture shows; -1: all. */
struct plan_view {
	bool all;      /* a row for each block, else one for each kind of block */
	int64_t rank;  /* only arrows from and to this rank */
	int64_t block; /* only arrows from and to this block of each rank */
	int64_t chunk; /* only rows that handle this chunk of the message, and arrows between the steps that do */
};
/* Writes the picture (svg.c). 0 or -errno; write errors are in `out` only. */
int plan_svg_write(FILE *out, const struct shunt_plan *plan, const struct plan_view *view);

/* ---- new plans (new.c, shapes/, write.c) ---- */

struct plan_recipe {
	const struct plan_shape *shape;
	const char *name;
	unsigned nranks, blocks, threads, instances;
	unsigned nhosts; /* each with as many of the ranks, in their order; 0: one host */
	bool inplace;
	const char *redop;
	uint64_t unit; /* pipelines: bytes of a window */
	uint64_t min_bytes, max_bytes;
	int priority;
	bool by_name; /* the plan is not chosen by itself */
};

struct plan_writer;

/* An algorithm for a collective. */
struct plan_shape {
	const char *collective;      /* the command's name: "all_reduce" */
	const char *plan_collective; /* the name in plans */
	const char *name, *summary;
	bool reduces, can_inplace, inplace; /* inplace: by default */
	bool ll, pipelined;
	bool over_hosts; /* for several hosts, and for no others */
	unsigned roles;  /* blocks of an instance, each with its own operations; 0: all blocks share all slices */
	unsigned blocks; /* by default */
	uint64_t min_bytes, max_bytes;
	int priority;
	void (*write)(struct plan_writer *w, const struct plan_recipe *r);
};
extern const struct plan_shape plan_shapes[]; /* ends with a NULL name */
/* The plan as JSON text; NULL: out of memory. Equal recipes give equal texts. */
char *plan_recipe_text(const struct plan_recipe *r);

/* A slice of a buffer of this rank or, with peer >= 0, of a peer: of its scratch, on this host also of others. */
struct plan_slice {
	char buffer; /* 'i', 'o', 's' */
	int peer;    /* -1: this rank */
	unsigned index, size;
};

/* Writes the ranks' parts in order (write.c). Errors are kept in the stream. */
struct plan_writer {
	FILE *out;
	const struct plan_recipe *recipe;
	unsigned rank;
	const char *comma; /* before the next rank, block or operation */
	bool in_pipeline;
	unsigned nlinks;   /* channels of the rank: sets with one to each of its peers */
	int part, parts;   /* of a thread-block group; parts 1: no group */
	const char *mates; /* buffers of the other ranks of its host that the rank's blocks may use: "s", "io" */
	bool ring;
};
/* Ranks of a host; the rank of host h with the same index on it. */
unsigned plan_locals(const struct plan_writer *w);
unsigned plan_rail_rank(const struct plan_writer *w, unsigned h);
/*
 * chunks: of input, output and scratch. links: sets of channels; each set goes to all peers, on a ring to the next and
 * the previous rank, over hosts to the other ranks of the host and, through ports, to those with the same index on the
 * other hosts.
 */
void plan_write_rank(struct plan_writer *w, unsigned rank, const unsigned chunks[3], bool ring, unsigned links);
void plan_write_rank_end(struct plan_writer *w);
/* The block may use link sets first .. first + n - 1, as its sets 0 .. n - 1. */
void plan_write_block(struct plan_writer *w, unsigned block, unsigned first, unsigned n);
void plan_write_block_end(struct plan_writer *w);
/* peers: ranks, all of this host or all of others. */
void plan_write_sync(struct plan_writer *w, const char *op, unsigned link, const unsigned *peers, unsigned n);
void plan_write_nop(struct plan_writer *w);
/* Slices at peers are all of this host or all of others; to these the operation goes through ports of the block's set
 * 0. */
void plan_write_data(struct plan_writer *w, const char *op, const struct plan_slice *src, unsigned nsrc,
    const struct plan_slice *dst, unsigned ndst);
void plan_write_pipeline(struct plan_writer *w);
void plan_write_pipeline_end(struct plan_writer *w);

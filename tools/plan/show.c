/* SPDX-License-Identifier: MIT */
/* shunt plan show: a plan as text, or as a picture. */
#include "tools/common/libc.h"
#include "base/json.h"
#include "plan/format/hosts.h"
#include "plan/plan_report.h"
#include "tools/plan/plan.h"

enum { ANY = -1 };

/* The hosts over which the plan can be spread: islands of ranks are never divided. */
static void hosts_print(const struct shunt_plan *p)
{
	uint32_t island_of[SHUNT_PLAN_MAX_RANKS], n = shunt_plan_islands(p, island_of), begin = 0;
	bool apart = true;

	if (n == 1) {
		printf("  all ranks on one host\n");
		return;
	}
	for (uint32_t r = 1; r < p->nranks; r++)
		apart &= island_of[r] >= island_of[r - 1];
	if (!apart) {
		printf("  all ranks on one host: ranks that memory joins do not follow each other\n");
		return;
	}
	printf("  over up to %u hosts: ranks ", n);
	for (uint32_t r = 1; r <= p->nranks; r++)
		if (r == p->nranks || island_of[r] != island_of[begin]) {
			if (r - begin > 1)
				printf("%s%u-%u", begin ? " | " : "", begin, r - 1);
			else
				printf("%s%u", begin ? " | " : "", begin);
			begin = r;
		}
	printf("; ports lead from one to another\n");
}

static void head_print(const struct shunt_plan *p)
{
	char range[64];

	printf("%s: %s of %u ranks, %s, %s%s\n", p->name, shunt_plan_collective_name(p->collective), p->nranks,
	    p->inplace ? "in place" : "out of place", plan_range_text(p, range), p->ll ? ", packets" : "");
	printf("  %u threads a block, a chunk is a multiple of %u bytes%s%s\n", p->threads, p->alignment,
	    p->double_scratch ? ", two scratch halves in turns" : "",
	    p->reuse_resources ? ", peers are reached through scratch only" : "");
	if (p->ll)
		printf("  packets travel as %s\n",
		    p->ll128 ? "LL128, 120 bytes of data in 128: all that are read are read as they were written" :
		               "LL, 8 bytes of data in 16");
	hosts_print(p);
	if (p->priority || !p->automatic)
		printf("  priority %d%s\n", p->priority, p->automatic ? "" : ", run by name only");
	printf("  hash %016" PRIx64 "\n", p->hash);
}

static void op_print(const struct shunt_plan *p, uint32_t rank, const struct shunt_plan_op *op)
{
	char text[2048], number[32];

	if (op->inner == SHUNT_PLAN_NIL)
		snprintf(number, sizeof(number), "%u", op->at);
	else
		snprintf(number, sizeof(number), "%u.%u", op->at, op->inner);
	plan_op_describe(p, rank, op, text, sizeof(text));
	printf("    %6s  %s%-11s %s\n", number, op->inner == SHUNT_PLAN_NIL ? "" : "  ", shunt_plan_op_name(op->code),
	    text);
}

static void rank_print(const struct shunt_plan *p, uint32_t rank, int64_t block)
{
	const struct shunt_plan_gpu *g = &p->gpus[rank];

	printf("\nrank %u: %u blocks; chunks: input %" PRIu64 ", output %" PRIu64 ", scratch %" PRIu64, rank,
	    g->nblocks, g->chunks[0], g->chunks[1], g->chunks[2]);
	if (g->nchannels[0] || g->nchannels[1] || g->nswitches)
		printf("; channels: memory %u, port %u, switch %u", g->nchannels[0], g->nchannels[1], g->nswitches);
	if (g->nsemaphores || g->nbarriers)
		printf("; semaphores %u, barriers %u", g->nsemaphores, g->nbarriers);
	putchar('\n');
	for (uint32_t b = 0; b < g->nblocks; b++) {
		if (block != ANY && block != b)
			continue;
		printf("  block %u\n", b);
		for (uint32_t i = 0; i < g->blocks[b].nops; i++)
			op_print(p, rank, &g->blocks[b].ops[i]);
	}
}

static void json_block(struct shunt_json_writer *w, const struct shunt_plan *p, uint32_t rank, uint32_t block)
{
	const struct shunt_plan_block *b = &p->gpus[rank].blocks[block];
	char text[2048];

	shunt_json_write_object(w, NULL);
	shunt_json_write_uint(w, "rank", rank);
	shunt_json_write_uint(w, "block", block);
	shunt_json_write_array(w, "operations");
	for (uint32_t i = 0; i < b->nops; i++) {
		const struct shunt_plan_op *op = &b->ops[i];

		plan_op_describe(p, rank, op, text, sizeof(text));
		shunt_json_write_object(w, NULL);
		shunt_json_write_uint(w, "at", op->at);
		if (op->inner == SHUNT_PLAN_NIL)
			shunt_json_write_null(w, "inner");
		else
			shunt_json_write_uint(w, "inner", op->inner);
		shunt_json_write_text(w, "name", shunt_plan_op_name(op->code));
		shunt_json_write_text(w, "does", text);
		if (op->lines)
			shunt_json_write_text(w, "lines", op->lines);
		shunt_json_write_object_end(w);
	}
	shunt_json_write_array_end(w);
	shunt_json_write_object_end(w);
}

static void json_print(const char *path, const struct shunt_plan *p, int64_t rank, int64_t block)
{
	struct shunt_json_writer w = { .out = stdout, .lines = 3 };

	shunt_json_write_object(&w, NULL);
	shunt_plan_report(&w, "plan", path, p, "");
	shunt_json_write_array(&w, "blocks");
	for (uint32_t r = 0; r < p->nranks; r++)
		for (uint32_t b = 0; b < p->gpus[r].nblocks; b++)
			if ((rank == ANY || rank == r) && (block == ANY || block == b))
				json_block(&w, p, r, b);
	shunt_json_write_array_end(&w);
	shunt_json_write_object_end(&w);
	putchar('\n');
}

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int svg_print(const struct shunt_plan *p, const char *path, const struct plan_view *view)
{
	struct tool_file f;
	int err;

	if (tool_file_begin(&f, path))
		return TOOL_FAIL;
	err = plan_svg_write(f.out, p, view);
	if (err == -EFBIG)
		tool_error("%s has too many steps for a picture", p->name);
	else if (err)
		tool_error("cannot draw %s: %s", p->name, strerror(-err));
	return tool_file_end(&f, err) ? TOOL_FAIL : TOOL_OK;
}

/* Of a message: the larger of both buffers. */
static uint64_t chunks_of(const struct shunt_plan *plan)
{
	const uint64_t *n = plan->gpus[0].chunks;

	return n[SHUNT_PLAN_INPUT] > n[SHUNT_PLAN_OUTPUT] ? n[SHUNT_PLAN_INPUT] : n[SHUNT_PLAN_OUTPUT];
}

struct show_opts {
	const char *svg;
	unsigned rank, block, chunk;
	bool rank_given, block_given, chunk_given, all, json;
};

#define AT(field) .at = offsetof(struct show_opts, field)
#define GIVEN(field) .given = offsetof(struct show_opts, field)
static const struct option_row rows[] = {
	{ "rank", 'r', OPTION_NUMBER, "R", AT(rank), 0, INT_MAX, GIVEN(rank_given),
	    .help = "only this rank; in the picture only its arrows" },
	{ "block", 'b', OPTION_NUMBER, "B", AT(block), 0, INT_MAX, GIVEN(block_given),
	    .help = "only this block of each rank; in the picture only its arrows" },
	{ "svg", 0, OPTION_TEXT, "OUT", AT(svg),
	    .help = "a picture instead: time goes to the right, a row for each kind of block, arrows for signals, "
	            "semaphores, "
	            "barriers and data. How long things take is made up; what waits for what is not" },
	{ "all", 0, OPTION_FLAG, AT(all),
	    .help = "in the picture a row for each block, also for those that do the same to other parts or chunks" },
	{ "chunk", 0, OPTION_NUMBER, "C", AT(chunk), 0, INT_MAX, GIVEN(chunk_given),
	    .help = "in the picture only the way of this chunk of the message, from rank to rank" },
	{ "json", 0, OPTION_FLAG, AT(json), .help = "the same as JSON, with what shunt plan check --json says" },
	{ .type = OPTION_END },
};
const struct option_table plan_show_options = {
	"usage: shunt plan show [--rank R] [--block B] [--json] FILE\n"
	"       shunt plan show --svg OUT [--all] [--rank R] [--block B] [--chunk C] FILE\n\n"
	"What each block of each rank does, step by step. Buffers are counted "
	"in chunks: input[2..3] are two of them.\n\n",
	rows, "Exit status: 0, 1 if the plan is wrong or a file cannot be read or written, 2 for a wrong option.\n"
};

int plan_show_main(int argc, char **argv)
{
	struct show_opts o = { 0 };
	struct shunt_plan *plan;
	int64_t rank, block;
	int first, status = options_parse(&plan_show_options, &o, argc, argv, &first);

	if (status >= 0)
		return status;
	status = TOOL_OK;
	rank = o.rank_given ? (int64_t)o.rank : ANY;
	block = o.block_given ? (int64_t)o.block : ANY;
	if (first == argc)
		return tool_usage_error("which plan?");
	if (first + 1 < argc)
		return tool_usage_error("it takes one plan; \"%s\" is one too many", argv[first + 1]);
	if (o.all && !o.svg)
		return tool_usage_error("--all goes with --svg");
	if (o.chunk_given && !o.svg)
		return tool_usage_error("--chunk goes with --svg");
	if (o.json && o.svg)
		return tool_usage_error("--json does not go with --svg");
	if (o.svg && same_file(o.svg, argv[first]))
		return tool_usage_error("--svg: %s is the plan itself", o.svg);
	plan = plan_open(argv[first]);
	if (!plan)
		return TOOL_FAIL;
	if (rank >= (int64_t)plan->nranks) {
		tool_error(
		    "there is no rank %lld: %s has ranks 0 to %u", (long long)rank, plan->name, plan->nranks - 1);
		status = TOOL_FAIL;
	} else if (block >= (int64_t)plan->max_blocks) {
		tool_error(
		    "there is no block %lld: %s has %u blocks at most", (long long)block, plan->name, plan->max_blocks);
		status = TOOL_FAIL;
	} else if (o.chunk_given && o.chunk >= chunks_of(plan)) {
		tool_error(
		    "there is no chunk %u: %s has chunks 0 to %" PRIu64, o.chunk, plan->name, chunks_of(plan) - 1);
		status = TOOL_FAIL;
	} else if (o.svg) {
		status = svg_print(
		    plan, o.svg, &(struct plan_view){ o.all, rank, block, o.chunk_given ? (int64_t)o.chunk : ANY });
	} else if (o.json) {
		json_print(argv[first], plan, rank, block);
	} else {
		head_print(plan);
		for (uint32_t r = 0; r < plan->nranks; r++)
			if (rank == ANY || rank == r)
				rank_print(plan, r, block);
	}
	shunt_plan_unref(plan);
	return status;
}

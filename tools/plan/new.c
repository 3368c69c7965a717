/* SPDX-License-Identifier: MIT */
/* shunt plan new: writes a plan of a known shape. */
#include "tools/common/libc.h"
#include "base/nearest.h"
#include "plan/load.h"
#include "tools/plan/plan.h"
#include "plan/format/op_rows.h"

static const char usage[] = "usage: shunt plan new COLLECTIVE SHAPE -n RANKS [options] [-o FILE]\n"
                            "       shunt plan new COLLECTIVE [SHAPE] --hosts HOSTS --local RANKS [options] [-o FILE]\n"
                            "       shunt plan new --list\n\n"
                            "Writes a plan, to standard output or to FILE. The same arguments give the same bytes.\n\n"
                            "                   one host                                over hosts\n"
                            "  all_reduce       oneshot-ll, twoshot-ll, pipelined, ring hierarchical, hierarchical-ll\n"
                            "  all_gather       oneshot-ll, pipelined, ring             the same\n"
                            "  reduce_scatter   oneshot-ll, pipelined, ring             the same\n"
                            "  all_to_all       oneshot-ll, pipelined\n\n";

struct new_opts {
	struct plan_recipe recipe;
	unsigned locals; /* over hosts: ranks of each */
	bool min_given, max_given, place_given, priority_given, unit_given, op_given, list;
	const char *output;
};

static void list_print(void)
{
	for (const struct plan_shape *s = plan_shapes; s->name; s++) {
		struct shunt_plan range = { .min_bytes = s->min_bytes, .max_bytes = s->max_bytes };
		char text[64];

		printf("%-15s %-15s %2u blocks, %s: %s\n", s->collective, s->name, s->blocks,
		    plan_range_text(&range, text), s->summary);
	}
}

static int priority_apply(void *opts, const struct option_row *row, const char *text)
{
	char *end;
	long value;

	(void)row;
	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end || errno || value < INT_MIN || value > INT_MAX)
		return tool_refuse(-EINVAL, text, "\"%.64s\" is no whole number from %d to %d", text, INT_MIN, INT_MAX);
	((struct new_opts *)opts)->recipe.priority = (int)value;
	return 0;
}

static int max_apply(void *opts, const struct option_row *row, const char *text)
{
	struct new_opts *o = opts;

	(void)row;
	o->recipe.max_bytes = UINT64_MAX;
	return strcmp(text, "any") ? tool_parse_size(text, 0, UINT64_MAX, &o->recipe.max_bytes) : 0;
}

static int op_apply(void *opts, const struct option_row *row, const char *text)
{
	(void)row;
	((struct new_opts *)opts)->recipe.redop = text;
	return tool_lookup(text, shunt_plan_redop_names, 5) < 0 ? -EINVAL : 0;
}

#define AT(field) .at = offsetof(struct new_opts, field)
#define GIVEN(field) .given = offsetof(struct new_opts, field)
static const struct option_row rows[] = {
	{ "ranks", 'n', OPTION_NUMBER, "N", AT(recipe.nranks), 2, 8, .help = "on one host: 2 to 8" },
	{ "hosts", 0, OPTION_NUMBER, "N", AT(recipe.nhosts), 2, 8,
	    .help = "2 to 8, with as many ranks each; the shape is hierarchical unless given" },
	{ "local", 0, OPTION_NUMBER, "N", AT(locals), 1, 8, .help = "with --hosts: ranks of a host, 1 to 8" },
	{ "blocks", 'B', OPTION_NUMBER, "N", AT(recipe.blocks), 1, 128,
	    .help =
	        "thread blocks of a rank; of pipelined a multiple of its stages, 3 for all_reduce and 2 for others" },
	{ "threads", 't', OPTION_NUMBER, "N", AT(recipe.threads), 1, 1024, .help = "threads of a block (512)" },
	{ "min", 0, OPTION_SIZE, "SIZE", AT(recipe.min_bytes), 0, UINT64_MAX, GIVEN(min_given),
	    .help = "smallest message (bytes received by all_gather, sent by others)" },
	{ "max", 0, OPTION_CALL, "SIZE", .call = max_apply, GIVEN(max_given),
	    .help = "largest message; any: no limit" },
	{ "unit", 0, OPTION_SIZE, "SIZE", AT(recipe.unit), 16, UINT64_MAX, .step = 16, GIVEN(unit_given),
	    .help = "pipelined: bytes of a window (64K)" },
	{ "op", 0, OPTION_CALL, "OP", .call = op_apply, GIVEN(op_given), .help = "sum (default), prod, max, min, avg" },
	{ "in-place", 0, OPTION_FLAG, AT(recipe.inplace), GIVEN(place_given),
	    .help = "for calls with one buffer (default of all_reduce). Calls of the other kind run too, with a copy" },
	{ "out-of-place", 0, OPTION_FLAG, AT(recipe.inplace), .clear = true, GIVEN(place_given),
	    .help = "for calls with two" },
	{ "priority", 0, OPTION_CALL, "N", .call = priority_apply, GIVEN(priority_given),
	    .help = "among plans that fit a call, those of higher priority are tried first (0; ring -1)" },
	{ "by-name", 0, OPTION_FLAG, AT(recipe.by_name),
	    .help = "runs only where a selector names it or, over hosts, SHUNT_ALGO or a tuning file says plan" },
	{ "name", 0, OPTION_TEXT, "NAME", AT(recipe.name), 1, 255,
	    .help = "COLLECTIVE_SHAPE_RANKS, over hosts COLLECTIVE_SHAPE_HOSTSxLOCAL" },
	{ "output", 'o', OPTION_TEXT, "FILE", AT(output), .help = "instead of standard output" },
	{ "list", 0, OPTION_FLAG, AT(list),
	    .help = "shapes, and the sizes and blocks that they have unless told otherwise" },
	{ .type = OPTION_END },
};
const struct option_table plan_new_options = { usage, rows,
	"Exit status: 0, 1 if the file cannot be written, 2 for a wrong option.\n" };

static int shape_find(struct new_opts *o, const char *collective, const char *name)
{
	struct shunt_nearest near_shape = { .text = name }, near_collective = { .text = collective };
	bool known = false;
	char maybe[64];

	for (const struct plan_shape *s = plan_shapes; s->name; s++) {
		shunt_nearest_try(&near_collective, s->collective);
		if (!shunt_names_equal(collective, strlen(collective), s->collective))
			continue;
		known = true;
		shunt_nearest_try(&near_shape, s->name);
		if (!strcmp(s->name, name)) {
			o->recipe.shape = s;
			return 0;
		}
	}
	if (known)
		tool_usage_error("there is no shape \"%s\" of %s%s", name, collective, tool_maybe(&near_shape, maybe));
	else
		tool_usage_error("\"%s\" is not one of all_reduce, all_gather, reduce_scatter and all_to_all%s",
		    collective, tool_maybe(&near_collective, maybe));
	return -EINVAL;
}

/* Fills in the ranks and where they are. 0 or an exit status. */
static int place_complete(struct new_opts *o)
{
	struct plan_recipe *r = &o->recipe;

	if (r->shape->over_hosts != (r->nhosts > 0))
		return r->nhosts ? tool_usage_error("%s %s is for one host: it takes -n, not --hosts",
		                       r->shape->collective, r->shape->name) :
		                   tool_usage_error("%s %s is for several hosts: it takes --hosts and --local, not -n",
		                       r->shape->collective, r->shape->name);
	if (!r->nhosts)
		return o->locals ? tool_usage_error("--local: it goes with --hosts") :
		    r->nranks    ? TOOL_OK :
		                   tool_usage_error("for how many ranks? -n is missing");
	if (!o->locals)
		return tool_usage_error("with how many ranks on each of the %u hosts? --local is missing", r->nhosts);
	if (r->nranks)
		return tool_usage_error("--ranks: over hosts they follow from --hosts and --local");
	r->nranks = r->nhosts * o->locals;
	return TOOL_OK;
}

/* Fills in missing values, and checks that the options fit together. 0 or an exit status. */
static int recipe_complete(struct new_opts *o, char name[300])
{
	struct plan_recipe *r = &o->recipe;
	const struct plan_shape *s = r->shape;
	int status = place_complete(o);

	if (status)
		return status;
	r->blocks = r->blocks ? r->blocks : s->blocks;
	if (s->roles && r->blocks % s->roles)
		return tool_usage_error("--blocks: %u is not a multiple of the %u stages of %s %s", r->blocks, s->roles,
		    s->collective, s->name);
	r->instances = s->roles ? r->blocks / s->roles : 1;
	if (o->unit_given && !s->pipelined)
		return tool_usage_error("--unit: only pipelined has windows");
	if (o->op_given && !s->reduces)
		return tool_usage_error("--op: %s reduces nothing", s->collective);
	if (!o->place_given)
		r->inplace = s->inplace;
	else if (r->inplace && !s->can_inplace)
		return tool_usage_error("--in-place: NCCL has no %s in place", s->collective);
	if (!o->min_given)
		r->min_bytes = s->min_bytes;
	if (!o->max_given)
		r->max_bytes = s->max_bytes;
	if (r->min_bytes > r->max_bytes)
		return tool_usage_error("the smallest message has %llu bytes, the largest %llu: give --min and --max",
		    (unsigned long long)r->min_bytes, (unsigned long long)r->max_bytes);
	if (!o->priority_given)
		r->priority = s->priority;
	if (!r->name) {
		if (r->nhosts)
			snprintf(name, 300, "%s_%s_%ux%u", s->collective, s->name, r->nhosts, o->locals);
		else
			snprintf(name, 300, "%s_%s_%u", s->collective, s->name, r->nranks);
		r->name = name;
	}
	return TOOL_OK;
}

static int text_write(const char *text, const char *path)
{
	struct tool_file f;

	/* The command checks standard output at its end. */
	if (!path) {
		fputs(text, stdout);
		return TOOL_OK;
	}
	if (tool_file_begin(&f, path))
		return TOOL_FAIL;
	fputs(text, f.out);
	return tool_file_end(&f, 0) ? TOOL_FAIL : TOOL_OK;
}

int plan_new_main(int argc, char **argv)
{
	struct new_opts o = { .recipe = { .threads = 512, .redop = "sum", .unit = 64 << 10 } };
	char name[300], reason[PLAN_REASON_BYTES], *text;
	struct shunt_plan *plan;
	int first, status;

	status = options_parse(&plan_new_options, &o, argc, argv, &first);
	if (status >= 0)
		return status;
	if (o.list) {
		list_print();
		return TOOL_OK;
	}
	if (first + 2 != argc && (first + 1 != argc || !o.recipe.nhosts))
		return tool_usage_error("a collective and a shape, please; --list has them");
	if (shape_find(&o, argv[first], first + 1 < argc ? argv[first + 1] : "hierarchical"))
		return TOOL_USAGE;
	status = recipe_complete(&o, name);
	if (status)
		return status;
	text = plan_recipe_text(&o.recipe);
	if (!text) {
		tool_error("out of memory");
		return TOOL_FAIL;
	}
	/* No plan that the library refuses is written. */
	if (shunt_plan_load_buffer(o.recipe.name, text, strlen(text), &plan, reason, sizeof(reason)) ||
	    shunt_plan_prove(plan, reason, sizeof(reason))) {
		tool_error("the plan would be refused: %s", reason);
		status = TOOL_FAIL;
	} else {
		shunt_plan_unref(plan);
		status = text_write(text, o.output);
	}
	free(text);
	return status;
}

/* SPDX-License-Identifier: MIT */
/* shunt plan new: writes a plan of a known shape. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include "tools/plan/plan.h"
#include "plan/format/ops.h"

const char plan_new_help[] =
    "usage: shunt plan new COLLECTIVE SHAPE -n RANKS [options] [-o FILE]\n"
    "       shunt plan new --list\n\n"
    "Writes a plan, to standard output or to FILE. The same arguments give the same bytes.\n\n"
    "  all_reduce       oneshot-ll, twoshot-ll, pipelined, ring\n"
    "  all_gather       oneshot-ll, pipelined, ring\n"
    "  reduce_scatter   oneshot-ll, pipelined, ring\n"
    "  all_to_all       oneshot-ll, pipelined\n\n"
    "  -n, --ranks N       2 to 8\n"
    "  -B, --blocks N      thread blocks of a rank; of pipelined a multiple of its stages, 3 for all_reduce and 2 for "
    "others\n"
    "  -t, --threads N     threads of a block (512)\n"
    "      --min SIZE      smallest message (bytes received by all_gather, sent by others)\n"
    "      --max SIZE      largest message; any: no limit\n"
    "      --unit SIZE     pipelined: bytes of a window (64K)\n"
    "      --op OP         sum (default), prod, max, min, avg\n"
    "      --in-place      for calls with one buffer (default of all_reduce); --out-of-place: for two. Calls of the "
    "other kind\n"
    "                      run too, with a copy\n"
    "      --priority N    among plans that fit a call, those of higher priority are tried first (0; ring -1)\n"
    "      --name NAME     COLLECTIVE_SHAPE_RANKS\n"
    "  -o, --output FILE\n"
    "      --list          shapes, and the sizes and blocks that they have unless told otherwise\n\n"
    "Exit status: 0, 1 if the file cannot be written, 2 for a wrong option.\n";

enum { OPT_MIN = 256, OPT_MAX, OPT_UNIT, OPT_OP, OPT_IN_PLACE, OPT_OUT_OF_PLACE, OPT_PRIORITY, OPT_NAME, OPT_LIST };

struct new_opts {
	struct plan_recipe recipe;
	bool min_given, max_given, place_given, priority_given, unit_given, op_given;
	const char *output;
};

static void list_print(void)
{
	for (const struct plan_shape *s = plan_shapes; s->name; s++) {
		struct shunt_plan range = { .min_bytes = s->min_bytes, .max_bytes = s->max_bytes };
		char text[64];

		printf("%-15s %-11s %2u blocks, %s: %s\n", s->collective, s->name, s->blocks,
		    plan_range_text(&range, text), s->summary);
	}
}

static int int_parse(const char *text, int *value_p)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end || errno || value < INT_MIN || value > INT_MAX)
		return tool_refuse(-EINVAL, text, "\"%.64s\" is no whole number from %d to %d", text, INT_MIN, INT_MAX);
	*value_p = (int)value;
	return 0;
}

static int option_apply(struct new_opts *o, int opt, const char *arg)
{
	struct plan_recipe *r = &o->recipe;
	int err;

	switch (opt) {
	case 'n':
		return tool_parse_uint(arg, 2, 8, &r->nranks);
	case 'B':
		return tool_parse_uint(arg, 1, 128, &r->blocks);
	case 't':
		return tool_parse_uint(arg, 1, 1024, &r->threads);
	case OPT_MIN:
		o->min_given = true;
		return tool_parse_size(arg, 0, UINT64_MAX, &r->min_bytes);
	case OPT_MAX:
		o->max_given = true;
		r->max_bytes = UINT64_MAX;
		return strcmp(arg, "any") ? tool_parse_size(arg, 0, UINT64_MAX, &r->max_bytes) : 0;
	case OPT_UNIT:
		o->unit_given = true;
		err = tool_parse_size(arg, 16, UINT64_MAX, &r->unit);
		return err || !(r->unit % 16) ? err : tool_refuse(-EINVAL, arg, "%.64s is no multiple of 16", arg);
	case OPT_OP:
		o->op_given = true;
		r->redop = arg;
		return tool_lookup(arg, shunt_plan_redop_names, 5) < 0 ? -EINVAL : 0;
	case OPT_IN_PLACE:
	case OPT_OUT_OF_PLACE:
		o->place_given = true;
		r->inplace = opt == OPT_IN_PLACE;
		return 0;
	case OPT_PRIORITY:
		o->priority_given = true;
		return int_parse(arg, &r->priority);
	case OPT_NAME:
		r->name = arg;
		return *arg && strlen(arg) < 256 ? 0 : tool_refuse(-EINVAL, arg, "a name has 1 to 255 letters");
	case 'o':
		o->output = arg;
		return 0;
	}
	return -EINVAL;
}

static int shape_find(struct new_opts *o, const char *collective, const char *name)
{
	bool known = false;

	for (const struct plan_shape *s = plan_shapes; s->name; s++) {
		if (!shunt_names_equal(collective, strlen(collective), s->collective))
			continue;
		known = true;
		if (!strcmp(s->name, name)) {
			o->recipe.shape = s;
			return 0;
		}
	}
	if (known)
		tool_usage_error("there is no shape \"%s\" of %s", name, collective);
	else
		tool_usage_error(
		    "\"%s\" is not one of all_reduce, all_gather, reduce_scatter and all_to_all", collective);
	return -EINVAL;
}

/* Fills in missing values, and checks that the options fit together. 0 or an exit status. */
static int recipe_complete(struct new_opts *o, char name[300])
{
	struct plan_recipe *r = &o->recipe;
	const struct plan_shape *s = r->shape;

	if (!r->nranks)
		return tool_usage_error("for how many ranks? -n is missing");
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
	static const struct option options[] = { { "ranks", required_argument, NULL, 'n' },
		{ "blocks", required_argument, NULL, 'B' }, { "threads", required_argument, NULL, 't' },
		{ "min", required_argument, NULL, OPT_MIN }, { "max", required_argument, NULL, OPT_MAX },
		{ "unit", required_argument, NULL, OPT_UNIT }, { "op", required_argument, NULL, OPT_OP },
		{ "in-place", no_argument, NULL, OPT_IN_PLACE },
		{ "out-of-place", no_argument, NULL, OPT_OUT_OF_PLACE },
		{ "priority", required_argument, NULL, OPT_PRIORITY }, { "name", required_argument, NULL, OPT_NAME },
		{ "output", required_argument, NULL, 'o' }, { "list", no_argument, NULL, OPT_LIST }, { 0 } };
	struct new_opts o = { .recipe = { .threads = 512, .redop = "sum", .unit = 64 << 10 } };
	char name[300], reason[PLAN_REASON_BYTES], *text;
	struct shunt_plan *plan;
	int opt, err, status;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":n:B:t:o:", options, NULL)) != -1) {
		if (opt == OPT_LIST) {
			list_print();
			return TOOL_OK;
		}
		if (opt == ':' || opt == '?')
			return tool_option_error(opt, argv[optind - 1]);
		err = option_apply(&o, opt, optarg);
		if (err)
			return tool_value_error(options, opt, optarg, err);
	}
	if (optind + 2 != argc)
		return tool_usage_error("a collective and a shape, please; --list has them");
	if (shape_find(&o, argv[optind], argv[optind + 1]))
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
	if (shunt_plan_load_buffer(o.recipe.name, text, strlen(text), &plan, reason, sizeof(reason))) {
		tool_error("the plan would be refused: %s", reason);
		status = TOOL_FAIL;
	} else {
		shunt_plan_unref(plan);
		status = text_write(text, o.output);
	}
	free(text);
	return status;
}

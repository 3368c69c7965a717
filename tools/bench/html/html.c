/* SPDX-License-Identifier: MIT */
/* The options of shunt bench report. */
#include <math.h>
#include "tools/common/libc.h"
#include "tools/bench/html/html.h"

static int limit_refuse(const char *text)
{
	return tool_refuse(-EINVAL, text, "\"%.64s\" is not GB/S or COLLECTIVE:GB/S", text);
}

static int limit_apply(void *opts, const struct option_row *row, const char *text)
{
	struct html_report *r = opts;
	const char *colon = strchr(text, ':');
	struct html_limit *l = &r->limits[r->nlimits];
	const struct bench_coll *coll;
	char *end;

	(void)row;
	if (r->nlimits == HTML_MAX_LIMITS)
		return tool_refuse(-EINVAL, text, "there may be %d limits", HTML_MAX_LIMITS);
	if (colon && (size_t)(colon - text) >= sizeof(l->coll))
		return limit_refuse(text);
	snprintf(l->coll, sizeof(l->coll), "%.*s", colon ? (int)(colon - text) : 0, text);
	l->gbps = strtod(colon ? colon + 1 : text, &end);
	coll = bench_coll_find(l->coll);
	if ((colon && !coll) || *end || !(l->gbps > 0) || isinf(l->gbps))
		return limit_refuse(text);
	if (colon)
		snprintf(l->coll, sizeof(l->coll), "%s", coll->name);
	r->nlimits++;
	return 0;
}

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return !stat(a, &x) && !stat(b, &y) && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

#define AT(field) .at = offsetof(struct html_report, field)
static const struct option_row rows[] = {
	{ "output", 'o', OPTION_TEXT, "FILE", AT(output), .help = "the HTML file" },
	{ "limit", 0, OPTION_CALL, "[COLL:]GB/S", .call = limit_apply,
	    .help = "what the fabric gives, as a line; of one collective or of all that have none of their own" },
	{ "title", 0, OPTION_TEXT, "TEXT", AT(title), .help = "title of the page" },
	{ .type = OPTION_END },
};
const struct option_table bench_html_options = {
	"usage: shunt bench report FILE.json... -o FILE.html [options]\n\n"
	"Makes one HTML file of what shunt bench has written with --json: charts of times and bandwidths over sizes, "
	"both\n"
	"logarithmic, every library a line, and the numbers. It refers to nothing outside of itself.\n\n",
	rows, "Exit status: 0; 1 after an error; 2 for a wrong option.\n"
};

int bench_html_main(int argc, char **argv)
{
	struct html_report r = { .title = "shunt bench" };
	int first, err, status;

	status = options_parse(&bench_html_options, &r, argc, argv, &first);
	if (status >= 0)
		return status;
	if (first == argc)
		return tool_usage_error("which files? They are those of shunt bench --json");
	if (!r.output)
		return tool_usage_error("--output is missing");
	r.names = (const char *const *)argv + first;
	r.nfiles = argc - first;
	for (int i = 0; i < r.nfiles; i++)
		if (same_file(r.names[i], r.output))
			return tool_usage_error("--output: %s is a file to read as well", r.output);
	err = html_read(&r);
	if (!err)
		err = html_write(&r);
	if (err == -ENOMEM)
		tool_error("out of memory");
	html_free(&r);
	return err ? TOOL_FAIL : TOOL_OK;
}

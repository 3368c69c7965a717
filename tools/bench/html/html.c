/* SPDX-License-Identifier: MIT */
/* The options of shunt bench report. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/bench/html/html.h"

static const char html_help[] =
    "usage: shunt bench report FILE.json... -o FILE.html [options]\n\n"
    "Makes one HTML file of what shunt bench has written with --json: charts of times and bandwidths over sizes, both\n"
    "logarithmic, every library a line, and the numbers. It refers to nothing outside of itself.\n\n"
    "  -o, --output FILE    the HTML file\n"
    "  --limit [COLL:]GB/S  what the fabric gives, as a line; of one collective or of all that have none of their own\n"
    "  --title TEXT         title of the page\n\n"
    "Exit status: 0; 1 after an error; 2 for a wrong option.\n";

static int limit_parse(struct html_report *r, const char *text)
{
	const char *colon = strchr(text, ':');
	struct html_limit *l = &r->limits[r->nlimits];
	const struct bench_coll *coll;
	char *end;

	if (r->nlimits == HTML_MAX_LIMITS || (colon && (size_t)(colon - text) >= sizeof(l->coll)))
		return -EINVAL;
	snprintf(l->coll, sizeof(l->coll), "%.*s", colon ? (int)(colon - text) : 0, text);
	l->gbps = strtod(colon ? colon + 1 : text, &end);
	coll = bench_coll_find(l->coll);
	if ((colon && !coll) || *end || !(l->gbps > 0) || isinf(l->gbps))
		return -EINVAL;
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

int bench_html_main(int argc, char **argv)
{
	enum { OPT_LIMIT = 256, OPT_TITLE };
	static const struct option options[] = {
		{ "output", required_argument, NULL, 'o' },
		{ "limit", required_argument, NULL, OPT_LIMIT },
		{ "title", required_argument, NULL, OPT_TITLE },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct html_report r = { .title = "shunt bench" };
	int opt, err;

	tool_action_set("report");
	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":o:h", options, NULL)) != -1) {
		switch (opt) {
		case 'h':
			fputs(html_help, stdout);
			return TOOL_OK;
		case 'o':
			r.output = optarg;
			break;
		case OPT_LIMIT:
			if (limit_parse(&r, optarg))
				return tool_usage_error("--limit: \"%s\" is not GB/S or COLLECTIVE:GB/S", optarg);
			break;
		case OPT_TITLE:
			r.title = optarg;
			break;
		default:
			return tool_option_error(opt, argv[optind - 1]);
		}
	}
	if (optind == argc)
		return tool_usage_error("which files? They are those of shunt bench --json");
	if (!r.output)
		return tool_usage_error("--output is missing");
	r.names = (const char *const *)argv + optind;
	r.nfiles = argc - optind;
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

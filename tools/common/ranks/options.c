/* SPDX-License-Identifier: MIT */
/* The options of every command that runs ranks. */
#include <errno.h>
#include "tools/common/ranks/ranks.h"

int ranks_option_vs(void *opts, const struct option_row *row, const char *text)
{
	struct ranks_opts *o = opts;

	(void)row;
	if (o->nlibs == RANKS_MAX_LIBS)
		return tool_refuse(-ERANGE, text, "at most %d libraries can be compared", RANKS_MAX_LIBS);
	o->libs[o->nlibs++] = text;
	return 0;
}

int ranks_option_worker(void *opts, const struct option_row *row, const char *text)
{
	struct ranks_opts *o = opts;

	(void)row;
	if (sscanf(text, "%d:%d", &o->worker_fd, &o->worker_index) == 2)
		return 0;
	return tool_refuse(-EINVAL, text, "it is not for you: the command gives it to the processes that it starts");
}

const char *const ranks_devices[] = { "auto", "cuda", "sim", NULL };

int ranks_option_device(void *opts, const struct option_row *row, const char *text)
{
	((struct ranks_opts *)opts)->device = text;
	return tool_lookup(text, row->names, 3) < 0 ? -EINVAL : 0;
}

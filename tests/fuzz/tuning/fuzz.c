/* SPDX-License-Identifier: MIT */
/*
 * Any text as a tuning file: refused with one line, or a table that holds what tuning.h promises. What does not begin
 * as a file does is a list of rules for SHUNT_ALGO. For libFuzzer, and for fuzz_drive.c of the plans.
 */
#include "algos/select/forced.c"
#include "algos/select/tuning.h"
#include "base/log.h"
#include "tests/support/fuzz_try.h"

static void require_geometry(const struct shunt_geometry *g)
{
	require(g->blocks <= SHUNT_MAX_BLOCKS && g->threads <= SHUNT_MAX_THREADS && g->threads % 32 == 0 &&
	        g->channels <= SHUNT_P2P_CHANNELS,
	    "a geometry that no kernel has");
}

static void require_table(struct shunt_tuning *t)
{
	const struct shunt_machine *m = &t->machine;
	uint64_t hash = t->hash;

	require(m->nranks >= 2 && m->nranks <= SHUNT_MAX_RANKS * (m->nhosts ? m->nhosts : 1) &&
	        memchr(m->gpu, 0, sizeof(m->gpu)),
	    "a machine that is none");
	require(!t->builtin && t->hash && !strcmp(t->source, "fuzz"), "a table that does not say whose it is");
	require(t->first[0] == 0 && t->first[SHUNT_NKINDS] == t->nrows, "rows outside all kinds");
	for (int k = 0; k < SHUNT_NKINDS; k++) {
		unsigned from = t->first[k], to = t->first[k + 1];

		require(from <= to, "kinds overlap");
		require(from == to || t->rows[to - 1].upto == UINT64_MAX, "sizes without a row");
		for (unsigned i = from; i < to; i++) {
			const struct shunt_tuning_row *r = &t->rows[i];

			require((int)r->kind == k && (i == from || r[-1].upto < r->upto), "rows out of order");
			require(r->algo && shunt_algo_find(r->kind, r->algo->name) == r->algo,
			    "an algorithm of another kind");
			require_geometry(&r->geometry);
			require(shunt_tuning_row(t, r->kind, r->upto) == r, "a row that is not found");
		}
	}
	require(!shunt_tuning_finalize(t) && t->hash == hash, "another table when it is sealed again");
}

static int try_file(const char *text, size_t bytes)
{
	struct shunt_tuning *t = NULL;
	char reason[200] = "";
	int err = shunt_tuning_parse("fuzz", text, bytes, &t, reason, sizeof(reason));

	if (err) {
		require(!t && !strncmp(reason, "fuzz", 4) && strlen(reason) > 6, "refused without a reason");
		for (const char *c = reason; *c; c++)
			require(*c >= ' ' && *c <= '~', "a reason that a terminal cannot print");
		return err;
	}
	require_table(t);
	shunt_tuning_free(t);
	return 0;
}

static int try_rules(const char *text, size_t bytes)
{
	char *copy = strndup(text, bytes), *save = NULL;
	int taken = 0;

	require(copy, "memory");
	for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
		struct rule r;

		if (parse_rule(one, &r)) /* why it cannot be used */
			continue;
		require_geometry(&r.path.geometry);
		require(!r.path.algo || shunt_algo_find(r.kind, r.path.algo->name) == r.path.algo,
		    "an algorithm of another kind");
		taken++;
	}
	free(copy);
	return taken ? 0 : -EINVAL;
}

int fuzz_try(const void *text, size_t bytes)
{
	size_t space = 0;

	while (space < bytes && strchr(" \t\r\n", ((const char *)text)[space]))
		space++;
	return space < bytes && ((const char *)text)[space] == '{' ? try_file(text, bytes) : try_rules(text, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	fuzz_try(data, bytes);
	return 0;
}

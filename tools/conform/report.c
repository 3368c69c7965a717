/* SPDX-License-Identifier: MIT */
/* Results: a line for each failure at once, the counts at the end, and everything as JSON. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "tools/common/where.h"
#include "tools/conform/conform.h"

enum { MAX_REASONS = 32 };

struct conform_report {
	const struct conform_opts *o;
	const struct ranks_launch *l;
	struct ranks_progress *progress; /* of rank 0 */
	json_t *root, *cases;
	uint64_t counts[3];                     /* by status */
	uint64_t bits[RANKS_MAX_LIBS], remarks; /* of the determinism cases */
	struct {
		char text[sizeof(((struct conform_outcome *)0)->text)];
		uint64_t cases;
	} skipped[MAX_REASONS];
};

static const char *const status_names[] = { "passed", "skipped", "failed" };

struct conform_report *conform_report_create(const struct conform_opts *o, struct ranks_shared *shared,
    const struct bench_nccl *libs, const struct tool_lib *lib)
{
	const struct ranks_launch *l = &shared->launch;
	struct conform_report *r = calloc(1, sizeof(*r));
	json_t *list = json_array();

	if (!r)
		return NULL;
	r->o = o;
	r->l = l;
	r->progress = &shared->progress[0];
	printf("# shunt conform, %d ranks as %s, %s, seed %llu\n", l->nranks,
	    l->external          ? "launched from outside" :
	        o->single_thread ? "one thread" :
	        o->ranks.threads ? "threads" :
	                           "processes",
	    l->kind, (unsigned long long)o->seed);
	for (int i = 0; i < o->ranks.nlibs; i++) {
		printf("# %c = %s: %s, NCCL ABI %d\n", 'A' + i, libs[i].label, libs[i].path, libs[i].version);
		json_array_append_new(list,
		    json_pack("{s:o, s:o, s:i}", "label", json_string_nocheck(libs[i].label), "path",
		        json_string_nocheck(libs[i].path), "version", libs[i].version));
	}
	fflush(stdout);
	r->cases = json_array();
	r->root = json_pack("{s:i, s:s, s:b, s:I, s:o, s:O}", "ranks", l->nranks, "device", l->kind, "threads",
	    o->ranks.threads, "seed", (json_int_t)o->seed, "libraries", list, "cases", r->cases);
	if (!r->root) {
		conform_report_destroy(r);
		return NULL;
	}
	json_object_set_new(r->root, "where", tool_where_json(lib->build(), lib, true));
	return r;
}

/* The command that runs this case by itself. */
static void reproducer_print(const struct conform_report *r, const struct conform_case *c)
{
	const struct ranks_opts *o = &r->o->ranks;

	printf("      again: shunt conform");
	if (!r->l->external)
		printf(" -n %d%s", r->l->nranks,
		    r->o->single_thread ? " --one-thread" :
		        o->threads      ? " --threads" :
		                          "");
	printf(" --device %s --lib %s", r->l->kind, o->libs[0]);
	for (int i = 1; i < o->nlibs; i++)
		printf(" --vs %s", o->libs[i]);
	if (c->kind == CONFORM_HUGE)
		printf(" --huge=%llu", (unsigned long long)r->o->huge);
	printf(" --seed %llu --case %s\n", (unsigned long long)r->o->seed, c->name);
}

static void skip_add(struct conform_report *r, const char *text)
{
	for (int i = 0; i < MAX_REASONS; i++) {
		if (*r->skipped[i].text && strcmp(r->skipped[i].text, text))
			continue;
		snprintf(r->skipped[i].text, sizeof(r->skipped[i].text), "%s", text);
		r->skipped[i].cases++;
		return;
	}
}

void conform_report_case(
    struct conform_report *r, const struct conform_list *list, size_t i, const struct conform_outcome *outcomes)
{
	const struct conform_case *c = &list->cases[i];
	int worst = 0, status;
	json_t *row;

	for (int rank = 1; rank < r->l->nranks; rank++)
		if (outcomes[rank].status > outcomes[worst].status)
			worst = rank;
	status = outcomes[worst].status;
	/* A remark is printed only if nothing is worse. */
	for (int rank = 0; !status && !*outcomes[worst].text && rank < r->l->nranks; rank++)
		worst = *outcomes[rank].text ? rank : worst;
	r->remarks += !status && *outcomes[worst].text;
	for (int lib = 0; lib < r->o->ranks.nlibs; lib++)
		for (int rank = 0; rank < r->l->nranks; rank++)
			if (outcomes[rank].bits[lib])
				r->bits[lib] = conform_hash_mix(r->bits[lib] + outcomes[rank].bits[lib]);
	r->counts[status]++;
	snprintf(r->progress->so_far, sizeof(r->progress->so_far),
	    "[conform %zu of %zu] %s: %llu passed, %llu skipped, %llu failed", i + 1, list->n, c->name,
	    (unsigned long long)r->counts[CONFORM_PASS], (unsigned long long)r->counts[CONFORM_SKIP],
	    (unsigned long long)r->counts[CONFORM_FAIL]);
	if (status == CONFORM_SKIP)
		skip_add(r, outcomes[worst].text);
	if (status == CONFORM_FAIL) {
		printf("FAIL  %s: rank %d: %s\n", c->name, worst, outcomes[worst].text);
		reproducer_print(r, c);
	} else if (r->o->verbose) {
		printf("%-5s %s%s%s\n", status == CONFORM_SKIP ? "skip" : "ok", c->name,
		    *outcomes[worst].text ? ": " : "", outcomes[worst].text);
	}
	fflush(stdout);
	row = json_pack("{s:s, s:s}", "name", c->name, "status", status_names[status]);
	if (*outcomes[worst].text)
		json_object_set_new(row, "text", json_string_nocheck(outcomes[worst].text));
	if (status == CONFORM_FAIL)
		json_object_set_new(row, "rank", json_integer(worst));
	json_array_append_new(r->cases, row);
}

int conform_report_finish(struct conform_report *r)
{
	bool fail = r->counts[CONFORM_FAIL] || (r->o->strict_missing && r->counts[CONFORM_SKIP]);
	int status = fail ? TOOL_FAIL : TOOL_OK;

	for (int i = 0; i < MAX_REASONS && *r->skipped[i].text; i++)
		printf("# skipped %llu: %s\n", (unsigned long long)r->skipped[i].cases, r->skipped[i].text);
	if (r->remarks)
		printf("# remarks on %llu cases that passed; --verbose or --json has them\n",
		    (unsigned long long)r->remarks);
	for (int i = 0; i < r->o->ranks.nlibs; i++)
		if (r->bits[i]) {
			char text[20];

			snprintf(text, sizeof(text), "%016llx", (unsigned long long)r->bits[i]);
			printf("# results of the determinism cases, %c: %s\n", 'A' + i, text);
			json_object_set_new(json_array_get(json_object_get(r->root, "libraries"), (size_t)i),
			    "determinism", json_string(text));
		}
	for (int i = 0; i < 3; i++)
		json_object_set_new(r->root, status_names[i], json_integer((json_int_t)r->counts[i]));
	if (r->o->ranks.json && tool_file_json(r->o->ranks.json, r->root))
		status = TOOL_FAIL;
	printf("%llu passed, %llu failed, %llu skipped\n", (unsigned long long)r->counts[CONFORM_PASS],
	    (unsigned long long)r->counts[CONFORM_FAIL], (unsigned long long)r->counts[CONFORM_SKIP]);
	if (!r->counts[CONFORM_PASS] && !fail) {
		if (r->o->only)
			tool_error("nothing was compared: --case %s; --list prints the names", r->o->only);
		else if (r->o->filter)
			tool_error("nothing was compared: --filter %s; --list prints the names", r->o->filter);
		else
			tool_error("nothing was compared");
		status = TOOL_FAIL;
	}
	fflush(stdout);
	return status;
}

void conform_report_destroy(struct conform_report *r)
{
	if (!r)
		return;
	json_decref(r->cases);
	json_decref(r->root);
	free(r);
}

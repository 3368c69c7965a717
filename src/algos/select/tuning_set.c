/* SPDX-License-Identifier: MIT */
/* The tuning files of a process, and the one for this machine. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/plugins.h"
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/files.h"
#include "base/log.h"
#include "base/place.h"

enum { MAX_FILES = 256 };

static void add_file(void *ctx, const char *path)
{
	struct shunt_tuning_set *set = ctx;
	struct shunt_tuning *t, **tables;
	char reason[512];

	if (set->n == MAX_FILES) {
		shunt_warn("tuning file refused: %s: there are more than %d", path, MAX_FILES);
		return;
	}
	if (shunt_tuning_read(path, &t, reason, sizeof(reason))) {
		shunt_warn("tuning file refused: %s", reason);
		return;
	}
	tables = reallocarray(set->tables, set->n + 1, sizeof(struct shunt_tuning *));
	if (!tables) {
		shunt_tuning_free(t);
		return;
	}
	set->tables = tables;
	set->tables[set->n++] = t;
	shunt_info(SHUNT_LOG_INIT, "tuning file %s: for %d ranks on %s", path, t->machine.nranks, t->machine.gpu);
}

static void warned_make(struct shunt_tuning_set *set)
{
	set->warned = calloc(set->n ? set->n : 1, sizeof(*set->warned));
	if (!set->warned)
		shunt_tuning_set_finish(set);
}

void shunt_tuning_set_load(struct shunt_tuning_set *set, const char *list, const char *cache_dir)
{
	const struct shunt_files files = { .what = "tuning", .one = "tuning file", .add = add_file, .ctx = set };

	*set = (struct shunt_tuning_set){ 0 };
	if (!strcmp(list, "none"))
		return;
	shunt_files_list(&files, list);
	shunt_files_cached(&files, cache_dir, "tuning");
	warned_make(set);
}

void shunt_tuning_set_load_ready(struct shunt_tuning_set *set)
{
	const struct shunt_files files = { .what = "tuning", .one = "tuning file", .add = add_file, .ctx = set };
	char dir[PATH_MAX];

	*set = (struct shunt_tuning_set){ 0 };
	if (shunt_place_find(SHUNT_PLACE_TUNING, NULL, dir))
		shunt_files_path(&files, dir, false);
	warned_make(set);
}

void shunt_tuning_set_finish(struct shunt_tuning_set *set)
{
	for (size_t i = 0; i < set->n; i++)
		shunt_tuning_free(set->tables[i]);
	free(set->tables);
	free(set->warned);
	*set = (struct shunt_tuning_set){ 0 };
}

static struct shunt_tuning_set process;
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static void process_load(void)
{
	shunt_tuning_set_load(&process, shunt_config()->tuning_file, shunt_config()->cache_dir);
}

struct shunt_tuning_set *shunt_tuning_files(void)
{
	pthread_once(&process_once, process_load);
	return &process;
}

void shunt_machine_describe(const struct shunt_gpu_info *gpu, int nranks, int nccl, bool nvls, struct shunt_machine *m)
{
	*m = (struct shunt_machine){
		.cc = gpu->cc, .driver = gpu->driver, .nranks = nranks, .sim = gpu->sim, .nccl = nccl, .nvls = nvls
	};
	snprintf(m->gpu, sizeof(m->gpu), "%s", gpu->sim ? "Shunt sim" : gpu->name); /* the sim's names have numbers */
}

void shunt_machine_join(struct shunt_machine *m, const struct shunt_topology *t)
{
	struct shunt_topology islands;

	m->link = m->islands = 0;
	if (shunt_topology_within(t) <= SHUNT_LINK_NVLINK)
		return;
	m->nvls = 0; /* multicast needs NVLink */
	m->link = (uint8_t)shunt_topology_within(t);
	m->islands = shunt_topology_find_islands(t, &islands) ? (uint8_t)islands.nislands : 0;
}

/* As many ranks, placed and connected alike. */
static bool same_ranks(const struct shunt_machine *a, const struct shunt_machine *b)
{
	return a->nranks == b->nranks && a->nhosts == b->nhosts && !strcmp(a->net, b->net) && a->link == b->link &&
	    a->islands == b->islands;
}

static bool same_machine(const struct shunt_machine *a, const struct shunt_machine *b)
{
	return same_ranks(a, b) && a->sim == b->sim && a->cc == b->cc && a->driver == b->driver &&
	    !strcmp(a->gpu, b->gpu);
}

/* file: of a table that was read; m: of this machine. */
static bool same_nccl(const struct shunt_machine *file, const struct shunt_machine *m)
{
	return file->nvls < 0 ? !m->nvls : file->nvls == m->nvls && file->nccl == m->nccl;
}

static bool fits(const struct shunt_tuning *t, const struct shunt_machine *m, bool takes_all)
{
	return same_machine(&t->machine, m) && (takes_all || (t->vs_nccl ? same_nccl(&t->machine, m) : m->sim));
}

static void warn_other_nccl(const struct shunt_tuning *t, const struct shunt_machine *m)
{
	static const char *const words[] = { "of which it does not say whether it used NVLink multicast",
		"without NVLink multicast", "with NVLink multicast" };
	int file = t->machine.nccl ? t->machine.nccl : m->nccl;

	shunt_warn(
	    "tuning file refused: %s: it was made with NCCL %d.%d.%d, %s, and here is %d.%d.%d, %s; the built-in "
	    "table is used (run `shunt tune` here)",
	    t->source, file / 10000, file / 100 % 100, file % 100, words[t->machine.nvls + 1], m->nccl / 10000,
	    m->nccl / 100 % 100, m->nccl % 100, words[m->nvls + 1]);
}

static void warn_mismatch(const struct shunt_tuning *t, const struct shunt_machine *m)
{
	if (same_machine(&t->machine, m) && t->vs_nccl)
		warn_other_nccl(t, m);
	else if (same_machine(&t->machine, m))
		shunt_warn("tuning file refused: %s: it was made without the real NCCL, and here is one; the built-in "
		           "table is used (run `shunt tune` here)",
		    t->source);
	else
		shunt_warn("tuning file refused: %s: it was made on %s (compute capability %u.%u, driver for CUDA "
		           "%u.%u), and this is %s (%u.%u, "
		           "CUDA %u.%u); the built-in table is used (run `shunt tune` here)",
		    t->source, t->machine.gpu, t->machine.cc / 10, t->machine.cc % 10, t->machine.driver / 1000,
		    t->machine.driver % 1000 / 10, m->gpu, m->cc / 10, m->cc % 10, m->driver / 1000,
		    m->driver % 1000 / 10);
}

const struct shunt_tuning *shunt_tuning_match(
    struct shunt_tuning_set *set, const struct shunt_machine *m, bool takes_all, bool logs)
{
	for (size_t i = 0; i < set->n; i++)
		if (fits(set->tables[i], m, takes_all))
			return set->tables[i];
	for (size_t i = 0; i < set->n && logs; i++)
		if (same_ranks(&set->tables[i]->machine, m) &&
		    !__atomic_exchange_n(&set->warned[i], true, __ATOMIC_RELAXED))
			warn_mismatch(set->tables[i], m);
	return NULL;
}

void shunt_tuning_tell_missing(const struct shunt_tuning *table, const struct shunt_plugin_set *plugins)
{
	const struct shunt_tuning_set *set = shunt_tuning_files();
	size_t number = 0;

	while (number < set->n && set->tables[number] != table)
		number++;
	for (size_t i = 0; number < set->n && i < table->nrows; i++) {
		const struct shunt_algo *algo = table->rows[i].algo;

		if (!algo->plugin || shunt_plugin_set_find(plugins, algo->name) ||
		    __atomic_exchange_n(&set->warned[number], true, __ATOMIC_RELAXED))
			continue;
		shunt_warn(
		    "tuning file %s: its plug-in %s is not there, and the built-in table has its sizes: name the "
		    "plug-in's file in SHUNT_PLUGINS, or register it",
		    table->source, algo->name);
		return;
	}
}

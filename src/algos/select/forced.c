/* SPDX-License-Identifier: MIT */
/* SHUNT_ALGO: rules that go before any table. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "algos/plugins.h"
#include "algos/select/forced.h"
#include "base/config.h"
#include "base/log.h"
#include "base/renamed.h"
#include "base/lock.h"
#include "shunt/shunt.h"

/* kind:from-to:name[@blocks[xthreads[xchannels]]]. A missing end of a range is open. */
struct rule {
	enum shunt_kind kind;
	uint64_t from, to;
	struct shunt_path path; /* without an algorithm: nccl */
};

/* Never freed, because another thread may still read rules that were replaced. Each text has one struct. */
struct rules {
	struct rules *next;
	char *text;
	size_t n;
	struct rule rule[];
};

static const struct rules unread; /* SHUNT_ALGO was not read yet */
static struct rules *all, *variable;
static _Atomic(const struct rules *) current = &unread;
_Atomic uint32_t shunt_select_version;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool named_plans, named_pairs;

/* "64k", "1m", "" (open). */
static bool parse_bytes(const char *s, uint64_t open, uint64_t *bytes_p)
{
	static const char units[] = "kmg";
	char *end;

	if (!*s || !strcmp(s, "inf")) {
		*bytes_p = open;
		return true;
	}
	errno = 0;
	uint64_t v = strtoull(s, &end, 10);
	if (end == s || errno || *s == '-')
		return false;
	if (*end) {
		const char *u = strchr(units, *end | 0x20);

		if (!u || end[1])
			return false;
		int shift = 10 * (int)(u - units + 1);
		if (v > UINT64_MAX >> shift)
			return false;
		v <<= shift;
	}
	*bytes_p = v;
	return true;
}

/* "32", "32x256", "32x256x8"; 0 leaves a number to the algorithm. */
static bool parse_geometry(const char *s, struct shunt_geometry *g)
{
	const uint16_t most[3] = { SHUNT_MAX_BLOCKS, SHUNT_MAX_THREADS, SHUNT_P2P_CHANNELS };
	uint16_t v[3] = { 0 };

	for (int i = 0; i < 3; i++) {
		char *end;
		unsigned long n;

		if (*s < '0' || *s > '9')
			return false;
		n = strtoul(s, &end, 10);
		if (n > most[i] || (i == 1 && n % 32))
			return false;
		v[i] = (uint16_t)n;
		if (!*end)
			break;
		if (*end != 'x' || i == 2)
			return false;
		s = end + 1;
	}
	*g = (struct shunt_geometry){ v[0], v[1], v[2] };
	return true;
}

/* Reads name[@blocks[xthreads[xchannels]]]. NULL, or what is wrong with it; algo is NULL for an unknown name. Changes
 * text.
 */
static const char *parse_path(enum shunt_kind kind, char *text, struct shunt_path *path, bool *geometry_p)
{
	char *at = strchr(text, '@');

	*path = (struct shunt_path){ 0 };
	*geometry_p = at;
	if (at) {
		*at++ = 0;
		if (!parse_geometry(at, &path->geometry))
			return "its blocks, threads or channels cannot be used";
	}
	path->algo = shunt_algo_find(kind, text);
	return NULL;
}

bool shunt_path_parse(enum shunt_kind kind, const char *text, struct shunt_path *path_p)
{
	char copy[64];
	bool geometry;

	if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy))
		return false;
	return !parse_path(kind, copy, path_p, &geometry) && path_p->algo;
}

/* NULL, or what is wrong with the rule. Changes text. */
static const char *parse_rule(char *text, struct rule *r)
{
	char *range = strchr(text, ':'), *name = range ? strchr(range + 1, ':') : NULL, *dash;
	const char *now, *wrong;
	bool geometry;
	int kind;

	if (!name)
		return "it is not of the form kind:from-to:name";
	*range++ = 0;
	*name++ = 0;
	dash = strchr(range, '-');
	if (!dash)
		return "there is no - between its sizes";
	*dash++ = 0;
	*r = (struct rule){ 0 };
	kind = shunt_kind_find(text, strlen(text));
	if (kind < 0)
		return "there is no such collective";
	r->kind = (enum shunt_kind)kind;
	if (!parse_bytes(range, 0, &r->from) || !parse_bytes(dash, UINT64_MAX, &r->to))
		return "its sizes cannot be read";
	if (r->from >= r->to)
		return "no size is in it: a rule holds for from <= size < to";
	wrong = parse_path(r->kind, name, &r->path, &geometry);
	if (wrong || r->path.algo || (!strcmp(name, "nccl") && !geometry))
		return wrong;
	now = shunt_renamed(SHUNT_RENAMED_ALGORITHM, name);
	return now ? now : "the collective has no such algorithm";
}

bool shunt_forced_check(const char *text, char *reason, size_t bytes)
{
	char *copy = strdup(text), *save = NULL;
	const char *wrong = NULL;
	struct rule r;

	for (char *rule = copy ? strtok_r(copy, ",", &save) : NULL; rule && !wrong; rule = strtok_r(NULL, ",", &save)) {
		size_t at = (size_t)(rule - copy), len = strlen(rule);

		wrong = parse_rule(rule, &r);
		if (wrong)
			snprintf(reason, bytes, "\"%.*s\": %s", (int)len, text + at, wrong);
	}
	free(copy);
	return !wrong;
}

bool shunt_forced_nccl_adds(const char *text)
{
	char *copy = strdup(text), *save = NULL;
	bool adds = false;
	struct rule r;

	for (char *rule = copy ? strtok_r(copy, ",", &save) : NULL; rule && !adds; rule = strtok_r(NULL, ",", &save))
		adds = !parse_rule(rule, &r) && !r.path.algo && shunt_kind_reduces(r.kind);
	free(copy);
	return adds;
}

/* Puts the rules into the list of all, unless the same are in it: then these are freed. Gives those of the list. */
static struct rules *keep(struct rules *r)
{
	struct rules *same;

	shunt_lock_acquire(SHUNT_LOCK_FORCED);
	for (same = all; same && (same->n != r->n || strcmp(same->text, r->text)); same = same->next)
		;
	if (!same) {
		r->next = all;
		all = r;
	}
	shunt_lock_release(SHUNT_LOCK_FORCED);
	if (!same)
		return r;
	free(r->text);
	free(r);
	return same;
}

/*
 * SHUNT_ALGO: unreadable rules are logged and left out; AGAIN: they were logged before. Else they are -EINVAL.
 */
enum source { FORCE, VARIABLE, AGAIN };
static int parse(const char *text, enum source source, struct rules **rules_p)
{
	struct rules *r;
	char *copy, *rule, *save = NULL;

	copy = strdup(text);
	r = calloc(1, sizeof(*r) + (strlen(text) / 2 + 1) * sizeof(r->rule[0]));
	if (r)
		r->text = strdup(text);
	if (!copy || !r || !r->text)
		goto err_free;
	for (rule = strtok_r(copy, ",", &save); rule; rule = strtok_r(NULL, ",", &save)) {
		size_t at = (size_t)(rule - copy), len = strlen(rule);

		const char *wrong = parse_rule(rule, &r->rule[r->n]);

		if (!wrong) {
			if (r->rule[r->n].path.algo && r->rule[r->n].path.algo->planned)
				atomic_store(&named_plans, true);
			if (r->rule[r->n].path.algo && shunt_algo_needs_pairs(r->rule[r->n].path.algo))
				atomic_store(&named_pairs, true);
			r->n++;
			continue;
		}
		if (source == AGAIN)
			continue;
		shunt_warn("%s: cannot use \"%.*s\"%s: %s; wanted kind:from-to:name, e.g. allreduce:0-64k:oneshot or "
		           "allreduce:0-64k:oneshot@16x256, with a name that `shunt info -a` lists for the kind, or "
		           "nccl; at most %d blocks, and %d "
		           "threads in multiples of 32",
		    source == VARIABLE ? "SHUNT_ALGO" : "forced algorithms", (int)len, text + at,
		    source == VARIABLE ? ", which is left out" : "", wrong, SHUNT_MAX_BLOCKS, SHUNT_MAX_THREADS);
		if (source == VARIABLE)
			continue;
		free(copy);
		free(r->text);
		free(r);
		return -EINVAL;
	}
	free(copy);
	*rules_p = keep(r);
	return 0;
err_free:
	if (r)
		free(r->text);
	free(r);
	free(copy);
	return -ENOMEM;
}

static void parse_variable(void)
{
	const char *text = shunt_config()->algo;

	shunt_plugin_files_load(); /* whose names rules may have */
	if (*text)
		parse(text, VARIABLE, &variable);
	if (shunt_config()->deterministic && shunt_forced_nccl_adds(text))
		shunt_warn(
		    "SHUNT_ALGO=%s wins over SHUNT_DETERMINISTIC, because it names nccl: a real NCCL adds in an order "
		    "of its own",
		    text);
	atomic_store(&current, variable);
}

void shunt_forced_reread(void)
{
	struct rules *r = NULL, *old;

	pthread_once(&once, parse_variable);
	if (*shunt_config()->algo && !parse(shunt_config()->algo, AGAIN, &r) && r != (old = variable)) {
		variable = r;
		atomic_compare_exchange_strong(&current, (const struct rules **)&old, r);
	}
	atomic_fetch_add_explicit(&shunt_select_version, 1, memory_order_release);
}

int shunt_algo_force(const char *rules)
{
	struct rules *r;
	int err = 0;

	pthread_once(&once, parse_variable);
	r = variable;
	if (rules)
		err = parse(rules, FORCE, &r);
	if (err)
		return err;
	atomic_store(&current, r);
	atomic_fetch_add_explicit(&shunt_select_version, 1, memory_order_release);
	return 0;
}

/* Out of line, so that a call without rules costs next to nothing. */
static __attribute__((noinline)) bool find_rule(
    enum shunt_kind kind, uint64_t bytes, const struct shunt_algo **algo_p, struct shunt_geometry *geometry_p)
{
	const struct rules *r = atomic_load_explicit(&current, memory_order_acquire);

	if (r == &unread) {
		pthread_once(&once, parse_variable);
		r = atomic_load_explicit(&current, memory_order_acquire);
	}
	for (size_t i = 0; r && i < r->n; i++)
		if (r->rule[i].kind == kind && bytes >= r->rule[i].from && bytes < r->rule[i].to) {
			*algo_p = r->rule[i].path.algo;
			*geometry_p = r->rule[i].path.geometry;
			return true;
		}
	return false;
}

bool shunt_forced_find(
    enum shunt_kind kind, uint64_t bytes, const struct shunt_algo **algo_p, struct shunt_geometry *geometry_p)
{
	return atomic_load_explicit(&current, memory_order_relaxed) && find_rule(kind, bytes, algo_p, geometry_p);
}

bool shunt_forced_plans(void)
{
	pthread_once(&once, parse_variable);
	return atomic_load(&named_plans);
}

bool shunt_forced_pairs(void)
{
	pthread_once(&once, parse_variable);
	return atomic_load(&named_pairs);
}

void shunt_forced_crossovers(enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx)
{
	const struct rules *r;

	pthread_once(&once, parse_variable);
	r = atomic_load_explicit(&current, memory_order_acquire);
	for (size_t i = 0; r && i < r->n; i++)
		if (r->rule[i].kind == kind) {
			add(ctx, r->rule[i].from);
			add(ctx, r->rule[i].to);
		}
}

/* SPDX-License-Identifier: MIT */
#include "algos/plugins.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "base/hash.h"
#include "base/lock.h"
#include "base/log.h"
#include "shunt/shunt.h"

enum { MAX_NAME = 31 };

/* Of a name and a kind. Never freed. */
struct row {
	struct row *next;
	char name[MAX_NAME + 1];
	unsigned nplugins; /* that have it: the registered one, and those that communicators and graphs keep */
	struct shunt_algo algo;
};

static struct shunt_plugin_entry *_Atomic dead; /* by shunt_plugin_unref_later */
static struct shunt_plugin_entry *entries;      /* newest first; each change is one store */
static struct row *rows;

static int refuse(char *why, size_t bytes, int err, const char *fmt, ...) SHUNT_LOG_PRINTF(4, 5);
static int refuse(char *why, size_t bytes, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (why && bytes)
		vsnprintf(why, bytes, fmt, ap);
	va_end(ap);
	return err;
}

/* ---- what may be registered */

static bool is_name(const char *name)
{
	size_t n = strnlen(name, MAX_NAME + 1);

	return n && n <= MAX_NAME && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

/* A name by which rules mean something else. */
static bool is_ours(const char *name)
{
	const struct shunt_algo *a;

	for (size_t i = 0; (a = shunt_algo_row(i)); i++)
		if (!strcmp(a->name, name))
			return true;
	return !strcmp(name, "nccl") || !strcmp(name, "native") || !strcmp(name, shunt_local_algo.name);
}

/* Bits of the kinds in "allreduce,allgather"; 0: a word of it is none that a plug-in may have. */
static uint32_t kinds_of(const char *list)
{
	uint32_t kinds = 0;

	while (list && *list) {
		size_t n = strcspn(list, ",");
		int kind = shunt_kind_find(list, n);

		if (kind < 0 || shunt_kind_is_p2p((enum shunt_kind)kind))
			return 0;
		kinds |= 1u << kind;
		list += n + (list[n] == ',');
	}
	return kinds;
}

static int check_launch(const struct shunt_plugin *p, char *why, size_t bytes)
{
	const struct shunt_plugin_launch *l = &p->launch;

	if (p->enqueue && !p->image && !p->sim)
		return 0;
	if (!l->blocks || l->blocks > SHUNT_PLUGIN_MAX_BLOCKS)
		return refuse(why, bytes, -EINVAL, "plug-in %s: launch.blocks is %u, expected 1 to %u", p->name,
		    l->blocks, SHUNT_PLUGIN_MAX_BLOCKS);
	if (!l->threads || l->threads % 32 || l->threads > SHUNT_PLUGIN_MAX_THREADS)
		return refuse(why, bytes, -EINVAL,
		    "plug-in %s: launch.threads is %u, expected a multiple of 32 up to %u", p->name, l->threads,
		    SHUNT_PLUGIN_MAX_THREADS);
	if (l->shared_bytes > 200u << 10)
		return refuse(why, bytes, -EINVAL, "plug-in %s: launch.shared_bytes is %u, expected at most %u",
		    p->name, l->shared_bytes, 200u << 10);
	if (l->cluster > 8 || (l->cluster && l->blocks % l->cluster))
		return refuse(why, bytes, -EINVAL,
		    "plug-in %s: launch.cluster is %u, expected 0, or at most 8 and a divisor of launch.blocks, %u",
		    p->name, l->cluster, l->blocks);
	return 0;
}

static bool is_param(uint16_t word)
{
	unsigned at = word & 0xfff;

	if (word & SHUNT_PLUGIN_PARAM_AFTER(0))
		return at == SHUNT_PLUGIN_PARAM(scratch) || at == SHUNT_PLUGIN_PARAM(signals);
	return !(word >> 12) && at % 4 == 0 && at < sizeof(struct shunt_plugin_call);
}

static int check(const struct shunt_plugin *p, char *why, size_t bytes)
{
	const char *fault =
	    p->size == sizeof(*p) && p->image ? shunt_plugin_image_fault(p->image, p->image_bytes) : NULL;

	if (p->size != sizeof(*p) || p->abi != SHUNT_PLUGIN_ABI)
		return refuse(why, bytes, -EINVAL, "plug-in of size %u and abi %u, expected %zu and %u: build it anew",
		    p->size, p->abi, sizeof(*p), SHUNT_PLUGIN_ABI);
	if (!p->name || !is_name(p->name))
		return refuse(why, bytes, -EINVAL, "name is %.40s, expected a-z, 0-9 and _, at most %d letters",
		    p->name ? p->name : "NULL", MAX_NAME);
	if (is_ours(p->name))
		return refuse(why, bytes, -EEXIST, "name is %s, which Shunt has already: choose another", p->name);
	if (!kinds_of(p->collectives))
		return refuse(why, bytes, -EINVAL,
		    "plug-in %s: collectives is %.64s, expected names such as allreduce,allgather (`shunt info -a`)",
		    p->name, p->collectives ? p->collectives : "NULL");
	if (!p->dtypes || p->dtypes >> SHUNT_NDTYPES)
		return refuse(why, bytes, -EINVAL, "plug-in %s: dtypes is %#llx, expected some of the bits %#x",
		    p->name, (unsigned long long)p->dtypes, (1u << SHUNT_NDTYPES) - 1);
	if ((!p->redops && kinds_of(p->collectives) & SHUNT_KINDS_REDUCE) || p->redops >> SHUNT_NREDOPS)
		return refuse(why, bytes, -EINVAL, "plug-in %s: redops is %#llx, expected some of the bits %#x",
		    p->name, (unsigned long long)p->redops, (1u << SHUNT_NREDOPS) - 1);
	if (p->max_bytes < p->min_bytes)
		return refuse(why, bytes, -EINVAL, "plug-in %s: max_bytes is %llu, less than min_bytes, %llu", p->name,
		    (unsigned long long)p->max_bytes, (unsigned long long)p->min_bytes);
	if (p->scratch_bytes > SHUNT_PLUGIN_MAX_SCRATCH)
		return refuse(why, bytes, -EINVAL, "plug-in %s: scratch_bytes is %llu, expected at most %llu", p->name,
		    (unsigned long long)p->scratch_bytes, SHUNT_PLUGIN_MAX_SCRATCH);
	if (p->min_ranks < 2 || p->max_ranks < p->min_ranks || p->max_ranks > SHUNT_PLUGIN_RANKS)
		return refuse(why, bytes, -EINVAL,
		    "plug-in %s: min_ranks to max_ranks is %u to %u, expected 2 to %u or a part of that", p->name,
		    p->min_ranks, p->max_ranks, SHUNT_PLUGIN_RANKS);
	if (p->flags & ~(uint32_t)SHUNT_PLUGIN_COUNTED)
		return refuse(why, bytes, -EINVAL, "plug-in %s: flags is %#x, expected some of the bits %#x", p->name,
		    p->flags, SHUNT_PLUGIN_COUNTED);
	if (!p->image && !p->sim && !p->enqueue)
		return refuse(
		    why, bytes, -EINVAL, "plug-in %s: image, sim and enqueue are NULL, expected one", p->name);
	if (p->image && p->enqueue)
		return refuse(
		    why, bytes, -EINVAL, "plug-in %s: image and enqueue are both there, expected one", p->name);
	if (fault)
		return refuse(why, bytes, -ENOEXEC, "plug-in %s: its image of %llu bytes %s", p->name,
		    (unsigned long long)p->image_bytes, fault);
	if (p->nparams > SHUNT_PLUGIN_MAX_PARAMS || (p->nparams && (!p->image || !p->params)))
		return refuse(why, bytes, -EINVAL,
		    "plug-in %s: nparams is %llu, expected at most %u, and only with image", p->name,
		    (unsigned long long)p->nparams, SHUNT_PLUGIN_MAX_PARAMS);
	for (uint64_t i = 0; i < p->nparams; i++)
		if (!is_param(p->params[i]))
			return refuse(why, bytes, -EINVAL,
			    "plug-in %s: params[%llu] is %#x, expected the offset of a field of struct "
			    "shunt_plugin_call",
			    p->name, (unsigned long long)i, p->params[i]);
	return check_launch(p, why, bytes);
}

/* ---- copies */

static char *copy_text(const char *text)
{
	return strdup(text ? text : "");
}

/* With the lock held. */
static struct row *find_row(enum shunt_kind kind, const char *name)
{
	struct row *r = rows;

	while (r && (r->algo.kind != kind || strcmp(r->name, name)))
		r = r->next;
	return r;
}

/* With the lock held: its rows have a plug-in more, or less. */
static void count_in_rows(const struct shunt_plugin_entry *e, int more)
{
	struct row *r;

	for (int k = 0; k < SHUNT_NKINDS; k++)
		if (e->kinds >> k & 1 && (r = find_row((enum shunt_kind)k, e->plugin.name)))
			r->nplugins += (unsigned)more;
}

static void entry_free(struct shunt_plugin_entry *e)
{
	if (e->counted) {
		shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
		count_in_rows(e, -1);
		shunt_lock_release(SHUNT_LOCK_PLUGINS);
	}
	free((void *)(uintptr_t)e->plugin.name);
	free((void *)(uintptr_t)e->plugin.doc);
	free((void *)(uintptr_t)e->plugin.collectives);
	free((void *)(uintptr_t)e->plugin.launch.symbol);
	free((void *)(uintptr_t)e->plugin.image);
	free((void *)(uintptr_t)e->plugin.params);
	if (e->hash)
		shunt_callback_remove(&e->functions);
	free(e);
}

struct shunt_plugin_entry *shunt_plugin_ref(struct shunt_plugin_entry *e)
{
	atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
	return e;
}

void shunt_plugin_unref(struct shunt_plugin_entry *e)
{
	struct shunt_callback_inside here;

	if (!e || atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (e->plugin.drop && shunt_callback_enter(&e->functions, &here))
		e->plugin.drop(e->plugin.arg);
	if (e->plugin.drop)
		shunt_callback_leave(&here);
	entry_free(e);
}

void shunt_plugin_unref_later(void *entry)
{
	struct shunt_plugin_entry *e = entry;

	if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1)
		return;
	e->next = atomic_load(&dead);
	while (!atomic_compare_exchange_weak(&dead, &e->next, e))
		;
}

static void drop_dead(void)
{
	struct shunt_plugin_entry *e = atomic_exchange(&dead, NULL), *next;

	for (; e; e = next) {
		next = e->next;
		atomic_store(&e->refs, 1);
		shunt_plugin_unref(e);
	}
}

/* All but pointers: texts by what they say, functions by whether they are there. */
static uint64_t hash_of(const struct shunt_plugin *p, uint64_t file_hash)
{
	static const char key[16] = "shunt plug-in 1";
	const struct shunt_plugin_launch *l = &p->launch;
	uint8_t mac[SHUNT_MAC_BYTES];
	char *text = NULL;
	uint64_t hash = 0;
	int n = asprintf(&text, "%u %s %s %llx %llx %llx %llx %llx %u %u %u %u %s %u %u %u %u %d%d%d%d %llx %llx",
	    p->abi, p->name, p->collectives, (unsigned long long)p->dtypes, (unsigned long long)p->redops,
	    (unsigned long long)p->min_bytes, (unsigned long long)p->max_bytes, (unsigned long long)p->scratch_bytes,
	    p->min_ranks, p->max_ranks, p->min_cc, p->flags, l->symbol, l->blocks, l->threads, l->shared_bytes,
	    l->cluster, p->sim != NULL, p->supports != NULL, p->geometry != NULL, p->enqueue != NULL,
	    (unsigned long long)p->identity, (unsigned long long)file_hash);

	if (n < 0)
		return 0;
	shunt_mac(mac, shunt_bytes(key, sizeof(key)), "plug-in", shunt_bytes(text, (size_t)n),
	    shunt_bytes(p->image, p->image_bytes));
	free(text);
	memcpy(&hash, mac, sizeof(hash));
	for (uint64_t i = 0; i < p->nparams; i++)
		hash = (hash ^ p->params[i]) * 0x9e3779b97f4a7c15u;
	return hash ? hash : 1;
}

static struct shunt_plugin_entry *entry_create(const struct shunt_plugin *p, uint64_t file_hash)
{
	struct shunt_plugin_entry *e = calloc(1, sizeof(*e));
	void *image = p->image ? malloc(p->image_bytes + 1) : NULL; /* PTX ends with a NUL */
	uint16_t *params = p->nparams ? malloc(p->nparams * sizeof(*params)) : NULL;
	struct shunt_plugin *copy;

	if (!e || (p->image && !image) || (p->nparams && !params)) {
		free(e);
		free(image);
		free(params);
		return NULL;
	}
	copy = &e->plugin;
	*copy = *p;
	copy->name = copy_text(p->name);
	copy->doc = copy_text(p->doc && *p->doc ? p->doc : "a plug-in");
	copy->collectives = copy_text(p->collectives);
	copy->launch.symbol = copy_text(p->launch.symbol ? p->launch.symbol : p->name);
	copy->image = image;
	copy->params = params;
	if (params)
		memcpy(params, p->params, p->nparams * sizeof(*params));
	if (image) {
		memcpy(image, p->image, p->image_bytes);
		((char *)image)[p->image_bytes] = '\0';
	} else {
		copy->image_bytes = 0;
	}
	e->kinds = kinds_of(p->collectives);
	atomic_init(&e->refs, 1);
	if (copy->name && copy->doc && copy->collectives && copy->launch.symbol)
		e->hash = hash_of(copy, file_hash);
	if (!e->hash) {
		entry_free(e);
		return NULL;
	}
	shunt_callback_add(&e->functions, NULL, p->arg);
	return e;
}

/* ---- the registry. With the lock held, as the following functions. */

static struct shunt_plugin_entry *find(const char *name)
{
	struct shunt_plugin_entry *e = entries;

	while (e && strcmp(e->plugin.name, name))
		e = e->next;
	return e;
}

static int plugin_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	(void)ncalls; /* calls of plug-ins do not fuse */
	return enqueue->plugin ? enqueue->plugin(enqueue, decisions, calls[0]) : -EOPNOTSUPP;
}

/* doc: for a new row; NULL: the plug-in is not there. */
static struct row *row_of(enum shunt_kind kind, const char *name, const char *doc)
{
	struct row *r = find_row(kind, name);

	if (r || !(r = calloc(1, sizeof(*r))))
		return r;
	snprintf(r->name, sizeof(r->name), "%s", name);
	r->algo = (struct shunt_algo){ .name = r->name,
		.doc = doc ? strdup(doc) : NULL,
		.kind = kind,
		.fuse = SHUNT_FUSE_NONE,
		.enqueue = plugin_enqueue,
		.links = 1u << SHUNT_LINK_SELF | 1u << SHUNT_LINK_NVLINK,
		.plugin = true };
	if (!r->algo.doc)
		r->algo.doc = "a plug-in";
	r->next = rows;
	rows = r;
	return r;
}

int shunt_plugin_add(const struct shunt_plugin *plugin, uint64_t file_hash, char *why, size_t bytes)
{
	struct shunt_plugin_entry *e;
	int err;

	drop_dead();
	if (!plugin)
		return refuse(why, bytes, -EINVAL, "plugin is NULL");
	err = check(plugin, why, bytes);
	if (err)
		return err;
	e = entry_create(plugin, file_hash);
	if (!e)
		return refuse(why, bytes, -ENOMEM, "plug-in %s: no memory", plugin->name);
	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	err = find(e->plugin.name) ? -EEXIST : 0;
	for (int k = 0; k < SHUNT_NKINDS && !err; k++)
		if (e->kinds >> k & 1 && !row_of((enum shunt_kind)k, e->plugin.name, e->plugin.doc))
			err = -ENOMEM;
	if (!err) {
		count_in_rows(e, 1);
		e->counted = true;
		e->next = entries;
		entries = e;
	}
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	if (!err)
		return 0;
	entry_free(e); /* not dropped: the caller goes on owning arg */
	return refuse(why, bytes, err,
	    err == -EEXIST ? "name is %s, which another plug-in has" : "plug-in %s: no memory", plugin->name);
}

int shunt_plugin_remove(const char *name)
{
	struct shunt_plugin_entry **at, *e;

	drop_dead();
	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	for (at = &entries; (e = *at) && strcmp(e->plugin.name, name); at = &e->next)
		;
	if (e)
		*at = e->next;
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	shunt_plugin_unref(e);
	return e ? 0 : -ENOENT;
}

void shunt_plugin_forget(const char *name)
{
	struct shunt_plugin_entry *e;

	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	e = find(name);
	if (e)
		e->plugin.drop = NULL;
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	shunt_plugin_remove(name);
}

static int compare_names(const void *a, const void *b)
{
	const struct shunt_plugin_use *x = a, *y = b;

	return strcmp(x->entry->plugin.name, y->entry->plugin.name);
}

struct shunt_plugin_set *shunt_plugin_set_get(void)
{
	struct shunt_plugin_set *set = NULL;
	size_t n = 0;

	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	for (struct shunt_plugin_entry *e = entries; e; e = e->next)
		n++;
	if (n && (set = calloc(1, sizeof(*set) + n * sizeof(set->use[0]))))
		for (struct shunt_plugin_entry *e = entries; e; e = e->next) {
			set->use[set->n++].entry = shunt_plugin_ref(e);
			set->hash += e->hash;
		}
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	if (n && !set)
		shunt_warn("a communicator has no plug-ins: out of memory");
	if (set) {
		qsort(set->use, set->n, sizeof(set->use[0]), compare_names);
		set->hash += !set->hash;
	}
	return set;
}

void shunt_plugin_set_free(struct shunt_plugin_set *set)
{
	for (size_t i = 0; set && i < set->n; i++)
		shunt_plugin_unref(set->use[i].entry);
	free(set);
}

struct shunt_plugin_use *shunt_plugin_set_find(const struct shunt_plugin_set *set, const char *name)
{
	for (size_t i = 0; set && i < set->n; i++)
		if (!strcmp(set->use[i].entry->plugin.name, name))
			return (struct shunt_plugin_use *)(uintptr_t)&set->use[i];
	return NULL;
}

void shunt_plugin_set_summary(const struct shunt_plugin_set *set, struct shunt_plugin_summary *s)
{
	memset(s, 0, sizeof(*s));
	s->n = set ? (uint32_t)set->n : 0;
	for (size_t i = 0; set && i < set->n && i < sizeof(s->row) / sizeof(s->row[0]); i++) {
		snprintf(s->row[i].name, sizeof(s->row[i].name), "%s", set->use[i].entry->plugin.name);
		s->row[i].hash = set->use[i].entry->hash;
	}
}

/* The hash of a name in a summary; 0: it is not there. */
static uint64_t summary_find(const struct shunt_plugin_summary *s, const char *name)
{
	for (size_t i = 0; i < sizeof(s->row) / sizeof(s->row[0]); i++)
		if (*name && !strncmp(s->row[i].name, name, sizeof(s->row[i].name)))
			return s->row[i].hash;
	return 0;
}

void shunt_plugin_summaries_differ(const struct shunt_plugin_summary *all, int n, char *text, size_t bytes)
{
	snprintf(text, bytes, "the ranks have different ones");
	for (int r = 1; r < n; r++)
		for (size_t i = 0; i < 2 * sizeof(all->row) / sizeof(all->row[0]); i++) {
			/* Names of rank 0, then of rank r: each has the other's? */
			const struct shunt_plugin_summary *of = i % 2 ? &all[r] : &all[0];
			const char *name = of->row[i / 2].name;
			uint64_t first = summary_find(&all[0], name), mine = summary_find(&all[r], name);

			if (first == mine)
				continue;
			snprintf(text, bytes, "plug-in %.31s: rank %d has %s", name, first ? r : 0,
			    first && mine ? "another one than rank 0" : "none");
			return;
		}
}

/* ---- rows and selection */

const struct shunt_algo *shunt_plugin_row(enum shunt_kind kind, const char *name)
{
	struct row *r;

	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	r = find_row(kind, name);
	if (r && !r->nplugins)
		r = NULL;
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	return r ? &r->algo : NULL;
}

const struct shunt_algo *shunt_plugin_row_of_any(enum shunt_kind kind, const char *name)
{
	struct row *r;

	if (!is_name(name) || is_ours(name) || shunt_kind_is_p2p(kind))
		return NULL;
	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	r = row_of(kind, name, NULL);
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	return r ? &r->algo : NULL;
}

const struct shunt_algo *shunt_plugin_row_at(size_t i)
{
	const struct shunt_algo *found = NULL;

	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	for (const struct shunt_plugin_entry *e = entries; e && !found; e = e->next)
		for (int k = 0; k < SHUNT_NKINDS && !found; k++)
			if (e->kinds >> k & 1 && !i--) {
				struct row *r = row_of((enum shunt_kind)k, e->plugin.name, e->plugin.doc);

				found = r ? &r->algo : NULL;
			}
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	return found;
}

int shunt_algo_at(size_t i, struct shunt_algo_info *info)
{
	const struct shunt_algo *algo = shunt_algo_row(i);
	size_t n = 0;

	while (!algo && shunt_algo_row(n))
		n++;
	if (!algo)
		algo = shunt_plugin_row_at(i - n);
	if (!info || info->size < sizeof(*info))
		return -EINVAL;
	if (!algo)
		return -ENOENT;
	info->collective = shunt_kind_name(algo->kind);
	info->name = algo->name;
	info->description = algo->doc;
	return 0;
}

const struct shunt_algo *shunt_algo_find(enum shunt_kind kind, const char *name)
{
	const struct shunt_algo *a = shunt_algo_row_find(kind, name);

	return a ? a : shunt_plugin_row(kind, name);
}

void shunt_plugin_request_init(const struct shunt_sel_key *key, const struct shunt_coll *coll,
    const struct shunt_limits *limits, struct shunt_plugin_request *request)
{
	*request = (struct shunt_plugin_request){ .size = sizeof(*request),
		.collective = shunt_kind_name(coll->kind),
		.dtype = coll->dtype,
		.redop = shunt_kind_reduces(coll->kind) ? coll->redop : 0,
		.root = shunt_kind_has_root(coll->kind) ? (uint32_t)coll->root : 0,
		.nranks = (uint32_t)key->nranks,
		.cc = key->cc,
		.max_blocks = shunt_grid_max_blocks(limits),
		.count = coll->count,
		.bytes = shunt_coll_bytes(coll) };
	if (limits->max_ctas && (unsigned)limits->max_ctas < request->max_blocks)
		request->max_blocks = (unsigned)limits->max_ctas;
}

static bool takes(const struct shunt_sel_key *key, const struct shunt_coll *coll, struct shunt_plugin_entry *e)
{
	const struct shunt_plugin *p = &e->plugin;
	const struct shunt_limits limits = shunt_limits_of(key);
	uint64_t bytes = shunt_coll_bytes(coll);
	struct shunt_plugin_request request;
	struct shunt_callback_inside here;
	bool supported;

	if (!(e->kinds >> coll->kind & 1) || !(p->dtypes >> coll->dtype & 1) ||
	    (shunt_kind_reduces(coll->kind) && !(p->redops >> coll->redop & 1)) || bytes < p->min_bytes ||
	    bytes > p->max_bytes || (unsigned)key->nranks < p->min_ranks || (unsigned)key->nranks > p->max_ranks)
		return false;
	/* Not known before the set-up. */
	if (!key->early && (key->sim ? !p->sim && !p->enqueue : !p->image && !p->enqueue))
		return false;
	if (!key->early && !key->sim && key->cc < p->min_cc)
		return false;
	if (!p->supports)
		return true;
	shunt_plugin_request_init(key, coll, &limits, &request);
	supported = shunt_callback_enter(&e->functions, &here) && p->supports(p->arg, &request) == 1;
	shunt_callback_leave(&here);
	return supported;
}

bool shunt_plugin_fits(const struct shunt_sel_key *key, const struct shunt_coll *coll, const struct shunt_algo *row)
{
	struct shunt_plugin_entry *e = NULL;
	const struct shunt_plugin_use *use;
	bool fits;

	if (key->staged || shunt_topology_is_split(key->topology) || coll->kind != row->kind)
		return false;
	if (!key->early) {
		use = shunt_plugin_set_find(key->plugins, row->name);
		return use && !atomic_load_explicit(&use->refused, memory_order_relaxed) &&
		    takes(key, coll, use->entry);
	}
	shunt_lock_acquire(SHUNT_LOCK_PLUGINS);
	e = find(row->name);
	if (e)
		shunt_plugin_ref(e);
	shunt_lock_release(SHUNT_LOCK_PLUGINS);
	fits = e && takes(key, coll, e);
	shunt_plugin_unref(e);
	return fits;
}

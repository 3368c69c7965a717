/* SPDX-License-Identifier: MIT */
#include "comm/core/plugin_check.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "algos/plugins.h"
#include "base/io.h"
#include "comm/core/communicator.h"

#define GRACE_MS 2000 /* of a kernel whose limit has passed: it looks at the clock now and then */

/* Device memory of a watched call: guard | output | guard | reference | largest inputs | smallest inputs. */
struct shunt_plugin_watch {
	struct shunt_plugin_watch *next;
	char *block;
	uint64_t block_bytes;
	void *event;
	bool used;
	const struct shunt_plugin_use *use;
	struct shunt_coll coll;
	uint64_t out_bytes, out_at, each; /* of the output; where it begins; of each of the three others */
	unsigned references;              /* how many of them there are */
	uint64_t warps;                   /* of the communicator's launches up to this one */
};

static uint64_t round_up(uint64_t n)
{
	return (n + 511) / 256 * 256;
}

int shunt_plugin_guard(struct shunt_comm *comm, char *at, uint64_t bytes)
{
	unsigned char pattern[SHUNT_PLUGIN_GUARD];
	int err;

	memset(pattern, SHUNT_PLUGIN_PATTERN, sizeof(pattern));
	err = comm->gpu->copy(comm->device, at - sizeof(pattern), pattern, sizeof(pattern));
	return err ? err : comm->gpu->copy(comm->device, at + bytes, pattern, sizeof(pattern));
}

/*
 * A watch with so much memory. None is freed before the end: freeing waits for the device, where ranks of this thread
 * may wait for each other.
 */
static int watch_get(struct shunt_comm *comm, uint64_t bytes, struct shunt_plugin_watch **watch_p)
{
	struct shunt_plugin_watch *w = comm->plugins.watches;
	void *block;
	int err;

	for (; w && (w->used || w->block_bytes < bytes); w = w->next)
		;
	*watch_p = w;
	if (w)
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	err = comm->gpu->event_create(comm->device, false, &w->event);
	if (!err && (err = comm->gpu->mem_alloc(comm->device, bytes, &block)))
		comm->gpu->event_destroy(comm->device, w->event);
	if (err) {
		free(w);
		return err;
	}
	w->block = block;
	w->block_bytes = bytes;
	w->next = comm->plugins.watches;
	comm->plugins.watches = w;
	*watch_p = w;
	return 0;
}

/* Whether sums have a bound that the largest and smallest inputs tell. */
static bool is_float_sum(const struct shunt_coll *c)
{
	return shunt_kind_reduces(c->kind) && shunt_dtype_is_float(c->dtype) &&
	    (c->redop == SHUNT_SUM || c->redop == SHUNT_AVG);
}

/* Shunt's own way to do the call, with this operator, into memory of ours. */
static int reference(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *coll, enum shunt_redop redop,
    void *to, bool *done_p)
{
	struct shunt_sel_key key = *enqueue->sel_key;
	struct shunt_coll c = *coll;
	const struct shunt_coll *calls[] = { &c };
	struct shunt_decision decision = { 0 };

	key.plugins = NULL;
	key.takes_all = true;
	c.recv = to;
	c.redop = redop;
	c.algo = NULL;
	c.only_algo = false;
	*done_p = shunt_select(&(struct shunt_sel){ .key = &key }, &c, &decision) && !decision.algo->plugin &&
	    !decision.algo->planned;
	return *done_p ? decision.algo->enqueue(enqueue, &decision, calls, 1) : 0;
}

static int run_references(
    const struct shunt_enqueue_ctx *enqueue, struct shunt_plugin_watch *w, const struct shunt_coll *coll)
{
	const enum shunt_redop redops[] = { coll->redop, SHUNT_MAX, SHUNT_MIN };
	unsigned n = coll->redop == SHUNT_PREMUL && shunt_kind_reduces(coll->kind) ? 0 : is_float_sum(coll) ? 3 : 1;
	char *at = w->block + w->out_at + w->out_bytes + SHUNT_PLUGIN_GUARD;
	bool done = true;
	int err = 0;

	at += (512 - ((uintptr_t)at & 255)) & 255;
	for (unsigned i = 0; i < n && done && !err; i++, at += w->each)
		err = reference(enqueue, coll, redops[i], at, &done);
	w->references = done ? n : 0;
	return err;
}

int shunt_plugin_watch_begin(const struct shunt_enqueue_ctx *enqueue, struct shunt_comm *comm, void *stream,
    const struct shunt_plugin_use *use, const struct shunt_coll *coll, struct shunt_coll *staged_p,
    struct shunt_plugin_watch **watch_p)
{
	bool receives = shunt_kind_has_side(coll->kind, SHUNT_SIDE_RECV, comm->rank == coll->root) ||
	    !shunt_kind_has_root(coll->kind);
	uint64_t parts = shunt_kind_parts(coll->kind, SHUNT_SIDE_RECV, comm->nranks);
	uint64_t bytes = receives ? shunt_coll_bytes(coll) * parts : 0, each = round_up(shunt_coll_bytes(coll) * parts);
	uint64_t in = shunt_coll_bytes(coll) * shunt_kind_parts(coll->kind, SHUNT_SIDE_SEND, comm->nranks);
	const char *send = coll->send;
	struct shunt_plugin_watch *w;
	int err = watch_get(comm, round_up(2 * SHUNT_PLUGIN_GUARD + bytes + 16) + 3 * each + 512, &w);

	*staged_p = *coll;
	*watch_p = NULL;
	if (err)
		return err;
	w->used = true;
	w->use = use;
	w->coll = *coll;
	w->out_bytes = bytes;
	w->out_at = SHUNT_PLUGIN_GUARD + ((uintptr_t)coll->recv & 15); /* as aligned as the call's */
	w->each = each;
	w->references = 0;
	if (comm->checks > 1)
		err = run_references(enqueue, w, coll);
	if (!err)
		err = comm->gpu->memset_async(
		    comm->device, w->block, SHUNT_PLUGIN_PATTERN, w->out_at + bytes + SHUNT_PLUGIN_GUARD, stream);
	if (!err && bytes) {
		staged_p->recv = w->block + w->out_at;
		/* In place, the input moves along. */
		if (shunt_overlap((uintptr_t)send, in, (uintptr_t)coll->recv, bytes)) {
			staged_p->send = w->block + w->out_at + (send - (char *)coll->recv);
			err = send < (char *)coll->recv || send + in > (char *)coll->recv + bytes ?
			    0 :
			    comm->gpu->copy_async(comm->device, (void *)(uintptr_t)staged_p->send, send, in, stream);
		}
	}
	*watch_p = w;
	return err;
}

int shunt_plugin_watch_launched(struct shunt_comm *comm, void *stream, struct shunt_plugin_watch *w)
{
	int err = 0;

	if (!w)
		return 0;
	w->warps = comm->order.warps;
	if (w->out_bytes)
		err = comm->gpu->copy_async(comm->device, w->coll.recv, w->block + w->out_at, w->out_bytes, stream);
	return err ? err : comm->gpu->event_record(comm->device, w->event, stream);
}

/* ---- what the host sees afterwards */

/* NaN if one of them is, so that a bound is none. */
static double largest(double a, double b)
{
	return isnan(a) || a > b ? a : b;
}

static double decode(enum shunt_dtype dtype, const unsigned char *at)
{
	const struct shunt_dtype_row *row = &shunt_dtype_rows[dtype];
	unsigned m = row->mantissa, e = row->exponent;
	uint64_t bits = 0, mantissa, exponent, ones = ((uint64_t)1 << e) - 1;
	double v;

	memcpy(&bits, at, shunt_dtype_bytes[dtype]);
	mantissa = bits & (((uint64_t)1 << m) - 1);
	exponent = bits >> m & ones;
	if (exponent == ones && (row->has_infinity || mantissa == ((uint64_t)1 << m) - 1))
		v = mantissa ? NAN : INFINITY;
	else
		v = ldexp((double)(mantissa + (exponent ? (uint64_t)1 << m : 0)),
		    (int)(exponent ? exponent : 1) - (int)(ones / 2) - (int)m);
	return bits >> (m + e) & 1 ? -v : v;
}

/* The bound of an element's error: a rounding for each rank, of the largest sum that there can be. */
static bool is_near(const struct shunt_comm *comm, const struct shunt_plugin_watch *w, const unsigned char *mine,
    const unsigned char *theirs, uint64_t at)
{
	enum shunt_dtype dtype = w->coll.dtype;
	double a, b, eps, bound;

	if (!shunt_dtype_is_float(dtype) || !shunt_kind_reduces(w->coll.kind))
		return false;
	a = decode(dtype, mine + at);
	b = decode(dtype, theirs + at);
	if (a == b || (isnan(a) && isnan(b)))
		return true;
	eps = ldexp(comm->nranks, -shunt_dtype_rows[dtype].mantissa);
	bound = largest(fabs(a), fabs(b)) * eps;
	if (w->references == 3)
		bound = largest(fabs(decode(dtype, theirs + w->each + at)),
		            fabs(decode(dtype, theirs + 2 * w->each + at))) *
		    eps * (w->coll.redop == SHUNT_SUM ? comm->nranks : 1);
	else if (w->coll.redop != SHUNT_PROD)
		return false;
	return isnan(bound) || fabs(a - b) <= bound;
}

/* One line about the call. */
static void say(struct shunt_comm *comm, const struct shunt_plugin_watch *w, int err, const char *what)
{
	const struct shunt_coll *c = &w->coll;
	bool reduces = shunt_kind_reduces(c->kind);

	shunt_comm_fail_saying(comm, err, "plug-in %s: in %s of %zu %s%s%s rank %d %s", w->use->entry->plugin.name,
	    shunt_kind_name(c->kind), c->count, shunt_dtype_name(c->dtype), reduces ? ", " : "",
	    reduces ? shunt_redop_name(c->redop) : "", comm->rank, what);
}

/* Compares a guard. first: offset of its first byte in what it guards. */
static int look_at_guard(struct shunt_comm *comm, const struct shunt_plugin_watch *w, const char *guard, uint64_t n,
    int64_t first, const char *of)
{
	unsigned char seen[SHUNT_PLUGIN_GUARD + 16];
	char what[128];
	int err = comm->gpu->copy(comm->device, seen, guard, n);

	for (uint64_t i = 0; i < n && !err; i++)
		if (seen[i] != SHUNT_PLUGIN_PATTERN) {
			snprintf(what, sizeof(what), "wrote at byte %lld of %s", (long long)(first + (int64_t)i), of);
			say(comm, w, err = -EFAULT, what);
		}
	return err;
}

static int compare(struct shunt_comm *comm, const struct shunt_plugin_watch *w)
{
	const char *from = w->block + w->out_at + w->out_bytes + SHUNT_PLUGIN_GUARD;
	uint64_t size = shunt_dtype_bytes[w->coll.dtype];
	unsigned char *mine = malloc(w->out_bytes + 1), *theirs = malloc(w->references * w->each + 1);
	char what[128];
	int err = mine && theirs ? 0 : -ENOMEM;

	from += (512 - ((uintptr_t)from & 255)) & 255;
	if (!err)
		err = comm->gpu->copy(comm->device, mine, w->block + w->out_at, w->out_bytes);
	if (!err)
		err = comm->gpu->copy(comm->device, theirs, from, w->references * w->each);
	for (uint64_t at = 0; at < w->out_bytes && !err; at += size)
		if (memcmp(mine + at, theirs + at, size) && !is_near(comm, w, mine, theirs, at)) {
			snprintf(what, sizeof(what), "has a result that is not Shunt's, from element %llu on",
			    (unsigned long long)(at / size));
			say(comm, w, err = -EBADE, what);
		}
	free(mine);
	free(theirs);
	return err;
}

/* The plug-in says that its kernel counts its warps, and no other launch came after this one. */
static int look_at_account(struct shunt_comm *comm, const struct shunt_plugin_watch *w)
{
	char what[128];
	uint64_t ended;
	int err;

	if (!(w->use->entry->plugin.flags & SHUNT_PLUGIN_COUNTED) || comm->order.account != SHUNT_ACCOUNT_EXACT ||
	    comm->order.warps != w->warps)
		return 0;
	err = comm->gpu->copy(comm->device, &ended, &comm->order.progress->ended, sizeof(ended));
	if (err || ended == w->warps)
		return err;
	snprintf(what, sizeof(what),
	    "ended %llu warps where %llu are to be counted: SHUNT_PLUGIN_COUNTED is for kernels that "
	    "run shunt_k_begin() and shunt_k_end()",
	    (unsigned long long)ended, (unsigned long long)w->warps);
	say(comm, w, -EBADE, what);
	return -EBADE;
}

static int look(struct shunt_comm *comm, const struct shunt_plugin_watch *w)
{
	const struct shunt_plugin *p = &w->use->entry->plugin;
	const char *scratch = comm->plugins.state[w->use - comm->plugins.set->use].scratch;
	int err = look_at_guard(comm, w, scratch - SHUNT_PLUGIN_GUARD, SHUNT_PLUGIN_GUARD, -(int64_t)SHUNT_PLUGIN_GUARD,
	    "its scratch, before the first");

	if (!err)
		err = look_at_guard(comm, w, scratch + p->scratch_bytes, SHUNT_PLUGIN_GUARD, (int64_t)p->scratch_bytes,
		    "its scratch, behind the last");
	if (!err)
		err = look_at_guard(comm, w, w->block, w->out_at, -(int64_t)w->out_at, "the output, before the first");
	if (!err)
		err = look_at_guard(comm, w, w->block + w->out_at + w->out_bytes, SHUNT_PLUGIN_GUARD,
		    (int64_t)w->out_bytes, "the output, behind the last");
	if (!err)
		err = look_at_account(comm, w);
	return err || !w->references ? err : compare(comm, w);
}

/* Waits until the call has ended, or the communicator is broken. */
static int wait_for(struct shunt_comm *comm, const struct shunt_plugin_watch *w)
{
	uint64_t limit = shunt_comm_spin_limit(comm);
	int64_t end = limit ? shunt_deadline_ms((int64_t)(limit / 1000000) + GRACE_MS) : INT64_MAX;
	char what[96];
	bool done = false;
	int err;

	while (
	    !(err = shunt_comm_error(comm)) && !(err = comm->gpu->event_done(comm->device, w->event, &done)) && !done) {
		if (shunt_now_ms() >= end) {
			snprintf(what, sizeof(what),
			    "has not ended after its limit of %llu ms, which its kernel must keep",
			    (unsigned long long)(limit / 1000000));
			say(comm, w, -ETIMEDOUT, what);
		}
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	}
	return err;
}

int shunt_plugin_watches_look(struct shunt_comm *comm)
{
	int err = 0;

	for (struct shunt_plugin_watch *w = comm->plugins.watches; w && !err; w = w->next) {
		if (!w->used)
			continue;
		err = wait_for(comm, w);
		if (!err)
			err = look(comm, w);
		w->used = false;
	}
	return err;
}

void shunt_plugin_watches_finish(struct shunt_comm *comm)
{
	struct shunt_plugin_watch *w, *next;

	for (w = comm->plugins.watches; w; w = next) {
		next = w->next;
		comm->gpu->event_destroy(comm->device, w->event);
		comm->gpu->mem_free(w->block);
		free(w);
	}
	comm->plugins.watches = NULL;
}

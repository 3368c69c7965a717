/* SPDX-License-Identifier: MIT */
/*
 * Collectives in windows, on the sim: which calls copy engines or pulling kernels take, with which values, and what
 * becomes of the memory. In standalone and, where SHUNT_NCCL_LIB names tests/fake_nccl, in front of an NCCL that has
 * windows of its own.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/clock.h"
#include "tools/common/reference.h"
#include "tests/plan/exec_plans.h"
#include "tests/support/own.h"
#include "tests/e2e/ranks.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

#define EVERY_KIND \
	"allgather:0-:ce,alltoall:0-:ce,broadcast:0-:ce,gather:0-:ce,scatter:0-:ce," \
	"allreduce:0-:direct,reducescatter:0-:direct,reduce:0-:direct"
enum { ROOM = 1 << 20, GUARD = 64 };

static bool symm_overlay;

/* Zeroed before each run; mapped before the ranks are forked. */
static struct {
	char fake[FAKE_NCCL_SHARED_BYTES];
	atomic_int barrier[16];
	int odd; /* the rank that differs, or a variant */
} *symm_shared;

static int symm_run_with(enum ranks_how how, int n, rank_fn body, int odd, void (*prepare)(int rank))
{
	memset(symm_shared, 0, sizeof(*symm_shared));
	symm_shared->odd = odd;
	return ranks_run_as(&(struct ranks){ .how = how, .n = n, .raw = 1, .body = body, .prepare = prepare });
}

static int symm_run(enum ranks_how how, int n, rank_fn body)
{
	return symm_run_with(how, n, body, -1, NULL);
}

/* All ranks; each place once per run. */
static void symm_barrier(struct rank *r, int place)
{
	ranks_barrier(r, &symm_shared->barrier[place]);
}

/* ------------------------------------------------------------------------------------------------------ one call */

enum kind { ALLGATHER, ALLTOALL, BROADCAST, GATHER, SCATTER, KINDS };
static const char *const symm_names[] = { "allgather", "alltoall", "broadcast", "gather", "scatter" };

/* A communicator as a rank sees it, and memory of it that may lie in a window. */
struct place {
	ncclComm_t comm;
	void *stream;
	int rank, n;
	char *window, *plain; /* ROOM bytes each */
};

struct call {
	enum kind kind;
	int root;
	size_t part, at; /* bytes; where in the window */
	bool in_place;
	unsigned char salt;
};

static unsigned char symm_pattern(const struct call *c, int from, int part, size_t i)
{
	return (unsigned char)(c->salt + 37 * from + 101 * part + i * 7 + i / 251);
}

/* Where rank p sends from and receives to; NULL where it has no part. parts: how many each has. */
struct buffers {
	char *send, *recv;
	int sends, receives;
};

static struct buffers symm_buffers_of(const struct place *p, const struct call *c)
{
	char *in = p->window + c->at, *out = p->plain + c->at;
	size_t own = c->part * (size_t)p->rank;
	bool root = p->rank == c->root;

	switch (c->kind) {
	case ALLGATHER:
		return (struct buffers){ c->in_place ? in + own : out, in, 1, p->n };
	case ALLTOALL:
		return (struct buffers){ out, in, p->n, p->n };
	case BROADCAST:
		return (struct buffers){ c->in_place ? in : root ? out : NULL, in, root, 1 };
	case GATHER:
		if (c->in_place)
			return (struct buffers){ in + own, in, 1, root ? p->n : 0 };
		return (struct buffers){ in, root ? out : NULL, 1, root ? p->n : 0 };
	default:
		if (c->in_place)
			return (struct buffers){ in, in + own, root ? p->n : 0, 1 };
		return (struct buffers){ root ? out : NULL, in, root ? p->n : 0, 1 };
	}
}

static int symm_fill(struct rank *r, const struct place *p, const struct call *c)
{
	struct buffers b = symm_buffers_of(p, c);
	char *host = malloc(ROOM);

	memset(host, 0x5a, ROOM);
	CHECK(shunt_memcpy(p->window, host, ROOM) == 0 && shunt_memcpy(p->plain, host, ROOM) == 0);
	for (int q = 0; q < b.sends; q++) {
		for (size_t i = 0; i < c->part; i++)
			host[i] = (char)symm_pattern(c, p->rank, q, i);
		CHECK(shunt_memcpy(b.send + (size_t)q * c->part, host, c->part) == 0);
	}
	free(host);
	return 0;
}

/* Where part q of what we receive comes from, and which part of theirs it is. */
static int symm_check(struct rank *r, const struct place *p, const struct call *c)
{
	struct buffers b = symm_buffers_of(p, c);
	unsigned char *host = malloc(ROOM);
	size_t bytes = (size_t)b.receives * c->part;

	CHECK(!b.receives || shunt_memcpy(host, b.recv - GUARD, bytes + 2 * GUARD) == 0);
	for (int q = 0; q < b.receives; q++) {
		int from = c->kind == ALLGATHER || c->kind == ALLTOALL || c->kind == GATHER ? q : c->root;
		int part = c->kind == ALLTOALL || c->kind == SCATTER ? p->rank : 0;

		for (size_t i = 0; i < c->part; i++) {
			unsigned char want = symm_pattern(c, from, part, i),
			              got = host[GUARD + (size_t)q * c->part + i];

			if (got != want)
				fprintf(stderr,
				    "rank %d of %d: %s of %zu at %zu%s, root %d: byte %zu of part %d is %d and not "
				    "%d\n",
				    p->rank, p->n, symm_names[c->kind], c->part, c->at, c->in_place ? ", in place" : "",
				    c->root, i, q, got, want);
			CHECK(got == want);
		}
	}
	/* What lies around is as it was, where it is not the rest of what was sent. */
	for (int i = 0; i < GUARD && b.receives && !(c->in_place && c->kind == SCATTER); i++)
		CHECK(host[i] == 0x5a && host[GUARD + bytes + (size_t)i] == 0x5a);
	free(host);
	return 0;
}

static ncclResult_t symm_enqueue(const struct place *p, const struct call *c)
{
	struct buffers b = symm_buffers_of(p, c);

	switch (c->kind) {
	case ALLGATHER:
		return ncclAllGather(b.send, b.recv, c->part, ncclInt8, p->comm, p->stream);
	case ALLTOALL:
		return ncclAlltoAll(b.send, b.recv, c->part, ncclInt8, p->comm, p->stream);
	case BROADCAST:
		return ncclBroadcast(b.send, b.recv, c->part, ncclInt8, c->root, p->comm, p->stream);
	case GATHER:
		return ncclGather(b.send, b.recv, c->part, ncclInt8, c->root, p->comm, p->stream);
	default:
		return ncclScatter(b.send, b.recv, c->part, ncclInt8, c->root, p->comm, p->stream);
	}
}

static int symm_settle(struct rank *r, const struct place *p)
{
	ncclResult_t async = ncclSuccess;

	CHECK(shunt_stream_synchronize(p->stream) == 0);
	NCCL(ncclCommGetAsyncError(p->comm, &async));
	CHECK(async == ncclSuccess);
	return 0;
}

#define STAGED NULL /* as small calls go on the sim that are not made in windows */

static int symm_run_call(struct rank *r, const struct place *p, const struct call *c, const char *path)
{
	long before;

	if (!path)
		path = p->n == 2 && c->kind <= ALLTOALL ? "pairwise" : "ll128";
	before = ranks_count_calls(p->comm, symm_names[c->kind], path);

	if (symm_fill(r, p, c))
		return 1;
	NCCL(symm_enqueue(p, c));
	if (symm_settle(r, p))
		return 1;
	if (ranks_count_calls(p->comm, symm_names[c->kind], path) != before + 1)
		fprintf(stderr, "rank %d of %d: %s of %zu did not take the path %s\n", p->rank, p->n,
		    symm_names[c->kind], c->part, path);
	CHECK(ranks_count_calls(p->comm, symm_names[c->kind], path) == before + 1);
	return strcmp(path, "nccl") ? symm_check(r, p, c) : 0;
}

#define RUN_CALL(place, path, ...) \
	do { \
		if (symm_run_call(r, place, &(struct call){ __VA_ARGS__ }, path)) { \
			fprintf(stderr, "rank %d: from line %d\n", r->rank, __LINE__); \
			return 1; \
		} \
	} while (0)

static int symm_begin(struct rank *r, struct place *p)
{
	*p = (struct place){ .stream = r->stream, .rank = r->rank, .n = r->nranks };
	NCCL(ncclCommInitRank(&p->comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc_shared((void **)&p->window, ROOM) == 0 && shunt_malloc((void **)&p->plain, ROOM) == 0);
	return 0;
}

static int symm_end(struct rank *r, struct place *p)
{
	NCCL(ncclCommDestroy(p->comm));
	CHECK(shunt_free(p->window) == 0 && shunt_free(p->plain) == 0);
	return 0;
}

/* Of a communicator with an error; aborted: somebody did that already. */
static int symm_end_broken(struct rank *r, struct place *p, bool aborted)
{
	if (!aborted)
		NCCL(ncclCommAbort(p->comm));
	CHECK(shunt_free(p->window) == 0 && shunt_free(p->plain) == 0);
	return 0;
}

/* --------------------------------------------------------------------------------------------------------- tests */

static int body_every_kind(struct rank *r)
{
	static const size_t parts[] = { 1, 3, 128, 1000, 4099, 30001 };
	ncclWindow_t win = NULL;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	CHECK(win);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		for (enum kind kind = 0; kind < KINDS; kind++)
			for (int in_place = 0; in_place < 2; in_place++)
				if (!in_place || kind != ALLTOALL)
					RUN_CALL(&p, "ce", .kind = kind, .root = (int)(i + kind) % p.n,
					    .part = parts[i], .at = GUARD + i * 13, .in_place = in_place,
					    .salt = (unsigned char)(i * 5 + kind));
	NCCL(ncclCommWindowDeregister(p.comm, win));
	/* From here on they are staged, or NCCL's. */
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 1000, .at = GUARD);
	return symm_end(r, &p);
}

static void test_every_kind_uses_ce_in_windows(void **state)
{
	for (int n = 2; n <= 4; n++)
		assert_int_equal(symm_run(RANKS_PROCESSES, n, body_every_kind), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 3, body_every_kind), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 8, body_every_kind), 0);
}

static void symm_set_check(int rank)
{
	setenv("SHUNT_CHECK", "1", 1);
}

static void test_every_kind_is_compared_with_shunt_check(void **state)
{
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_every_kind, -1, symm_set_check), 0);
}

/* Memory of NCCL's own allocator, in the middle of which the window begins. */
static int body_mem_alloc(struct rank *r)
{
	ncclWindow_t win, second;
	struct place p;
	char *memory;
	void *base = NULL;

	if (symm_begin(r, &p))
		return 1;
	CHECK(shunt_free(p.window) == 0);
	NCCL(ncclMemAlloc((void **)&memory, 3 * ROOM));
	p.window = memory + 12288;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclWinGetUserPtr(p.comm, win, &base));
	CHECK(base == p.window);
	RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 5000, .at = GUARD);
	/* A call that reaches over the window's end, and one beside it. */
	p.window += ROOM - 3 * GUARD;
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 5000, .at = GUARD);
	p.window = memory;
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 1000, .at = GUARD);
	/* Freed while it is registered. */
	NCCL(ncclMemFree(memory));
	CHECK(ncclWinGetUserPtr(p.comm, win, &base) == ncclInvalidArgument);
	NCCL(ncclMemAlloc((void **)&memory, 3 * ROOM));
	p.window = memory + 12288;
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 5000, .at = GUARD);
	/* Deregistered only when there is another one, which is left alone. */
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &second, NCCL_WIN_COLL_SYMMETRIC));
	CHECK(second != win);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	CHECK(ncclCommWindowDeregister(p.comm, win) == ncclInvalidArgument);
	RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 5000, .at = GUARD);
	NCCL(ncclCommWindowDeregister(p.comm, second));
	NCCL(ncclCommDestroy(p.comm));
	NCCL(ncclMemFree(memory));
	CHECK(shunt_free(p.plain) == 0);
	return 0;
}

static void test_memory_of_nccl_is_used_in_place_until_it_is_freed(void **state)
{
	if (symm_overlay)
		skip(); /* the fake's memory is not the sim's */
	assert_int_equal(symm_run(RANKS_PROCESSES, 2, body_mem_alloc), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 3, body_mem_alloc), 0);
}

/* Mappings of device memory that peers can map, in this process. */
static int symm_mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:shunt-sim") != NULL;
	if (f)
		fclose(f);
	return n;
}

/* The same address again and again, with other memory behind it. */
static int body_again(struct rank *r)
{
	int at_first = 0, same = 0, processes = symm_shared->odd < 0;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 100, .at = GUARD);
	symm_barrier(r, 0);
	at_first = symm_mappings();
	symm_barrier(r, 1);
	for (int i = 0; i < 6; i++) {
		ncclWindow_t win;
		char *was = p.window;

		NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
		RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 5000, .at = GUARD, .salt = (unsigned char)i);
		RUN_CALL(&p, "ce", .kind = BROADCAST, .part = 5000, .at = GUARD, .salt = (unsigned char)i);
		CHECK(!processes || symm_mappings() == at_first + p.n - 1);
		NCCL(ncclCommWindowDeregister(p.comm, win));
		/* The work was done: so is the unmapping. */
		CHECK(!processes || symm_mappings() == at_first);
		CHECK(shunt_free(p.window) == 0 && shunt_malloc_shared((void **)&p.window, ROOM) == 0);
		same += was == p.window;
		RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 5000, .at = GUARD);
	}
	CHECK(!processes || same > 0); /* else the test shows nothing */
	return symm_end(r, &p);
}

static void test_address_registered_again_leads_to_the_new_memory(void **state)
{
	assert_int_equal(symm_run(RANKS_PROCESSES, 3, body_again), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_again, 0, NULL), 0);
}

/* One rank's memory cannot be passed on, or its window is another one: nobody uses it. */
static int body_odd(struct rank *r)
{
	ncclWindow_t win, more = NULL;
	struct place p;
	void *spare;

	if (symm_begin(r, &p))
		return 1;
	if (r->rank == symm_shared->odd % 8 && symm_shared->odd < 8) {
		CHECK(shunt_free(p.window) == 0 && shunt_malloc((void **)&p.window, ROOM) == 0);
	} else if (r->rank == symm_shared->odd % 8 && symm_shared->odd < 16) { /* two windows, in another order */
		CHECK(shunt_malloc_shared(&spare, ROOM) == 0);
		NCCL(ncclCommWindowRegister(p.comm, spare, ROOM, &more, NCCL_WIN_COLL_SYMMETRIC));
	}
	NCCL(ncclCommWindowRegister(p.comm, p.window,
	    symm_shared->odd >= 16 && r->rank == symm_shared->odd % 8 ? ROOM / 2 : ROOM, &win,
	    NCCL_WIN_COLL_SYMMETRIC));
	for (enum kind kind = 0; kind < KINDS; kind++)
		RUN_CALL(&p, STAGED, .kind = kind, .part = 700, .at = GUARD, .root = 1);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	if (more) {
		NCCL(ncclCommWindowDeregister(p.comm, more));
		CHECK(shunt_free(spare) == 0);
	}
	return symm_end(r, &p);
}

static void test_window_that_one_rank_cannot_use_is_used_by_none(void **state)
{
	for (int odd = 0; odd < 3; odd++)
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_odd, odd, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_odd, 8 + 1, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_odd, 16 + 2, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_odd, 1, NULL), 0);
}

/* Not promised to be symmetric, or of another communicator. */
static int body_not_ours(struct rank *r)
{
	ncclWindow_t win;
	struct place p, child;
	ncclComm_t parent;

	if (symm_begin(r, &p))
		return 1;
	if (!symm_overlay) { /* NCCL judges its windows itself */
		CHECK(
		    ncclCommWindowRegister(p.comm, p.window, SIZE_MAX, &win, NCCL_WIN_DEFAULT) == ncclInvalidArgument);
		CHECK(ncclCommWindowRegister(p.comm, p.window, (size_t)1 << 40, &win, NCCL_WIN_DEFAULT) ==
		    ncclInvalidArgument);
		CHECK(!win);
	}
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_DEFAULT));
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	child = p;
	NCCL(ncclCommSplit(p.comm, 0, r->rank, &child.comm, NULL));
	RUN_CALL(&child, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 700, .at = GUARD);
	RUN_CALL(&child, STAGED, .kind = SCATTER, .part = 700, .at = GUARD);
	/* The child's own window on the same memory, and the parent goes first. */
	NCCL(ncclCommWindowRegister(child.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	RUN_CALL(&child, "ce", .kind = SCATTER, .part = 700, .at = GUARD);
	parent = p.comm;
	NCCL(ncclCommDestroy(parent));
	RUN_CALL(&child, "ce", .kind = ALLTOALL, .part = 700, .at = GUARD);
	return symm_end(r, &child);
}

static void test_window_belongs_to_one_communicator(void **state)
{
	assert_int_equal(symm_run(RANKS_PROCESSES, 3, body_not_ours), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 3, body_not_ours), 0);
}

/* Two communicators at the same time, on streams of their own. */
static int body_two(struct rank *r)
{
	enum { TIMES = 20 };
	struct place p[2];
	struct call c[2] = { { .kind = ALLGATHER, .part = 20000, .at = GUARD },
		{ .kind = ALLTOALL, .part = 9001, .at = GUARD } };
	ncclWindow_t win[2];

	if (symm_begin(r, &p[0]))
		return 1;
	p[1] = p[0];
	NCCL(ncclCommSplit(p[0].comm, 0, -r->rank, &p[1].comm, NULL));
	p[1].rank = p[0].n - 1 - p[0].rank;
	CHECK(shunt_stream_create(&p[1].stream) == 0);
	CHECK(shunt_malloc_shared((void **)&p[1].window, ROOM) == 0 && shunt_malloc((void **)&p[1].plain, ROOM) == 0);
	for (int k = 0; k < 2; k++)
		NCCL(ncclCommWindowRegister(p[k].comm, p[k].window, ROOM, &win[k], NCCL_WIN_COLL_SYMMETRIC));
	for (int k = 0; k < 2; k++)
		if (symm_fill(r, &p[k], &c[k]))
			return 1;
	for (int t = 0; t < TIMES; t++)
		for (int k = 0; k < 2; k++)
			NCCL(symm_enqueue(&p[k], &c[k]));
	for (int k = 0; k < 2; k++)
		if (symm_settle(r, &p[k]) || symm_check(r, &p[k], &c[k]))
			return 1;
	CHECK(ranks_count_calls(p[0].comm, "allgather", "ce") == TIMES &&
	    ranks_count_calls(p[1].comm, "alltoall", "ce") == TIMES);
	/* Both for the first time in one group, with new windows. */
	for (int k = 0; k < 2; k++) {
		NCCL(ncclCommWindowDeregister(p[k].comm, win[k]));
		NCCL(ncclCommWindowRegister(p[k].comm, p[k].window, ROOM, &win[k], NCCL_WIN_COLL_SYMMETRIC));
		c[k].salt = 77;
		if (symm_fill(r, &p[k], &c[k]))
			return 1;
	}
	NCCL(ncclGroupStart());
	for (int k = 0; k < 2; k++)
		NCCL(symm_enqueue(&p[k], &c[k]));
	NCCL(ncclGroupEnd());
	for (int k = 0; k < 2; k++)
		if (symm_settle(r, &p[k]) || symm_check(r, &p[k], &c[k]))
			return 1;
	CHECK(ranks_count_calls(p[0].comm, "allgather", "ce") == TIMES + 1 &&
	    ranks_count_calls(p[1].comm, "alltoall", "ce") == TIMES + 1);
	CHECK(shunt_stream_destroy(p[1].stream) == 0);
	return symm_end(r, &p[1]) || symm_end(r, &p[0]);
}

static void test_two_communicators_use_ce_at_once(void **state)
{
	assert_int_equal(symm_run(RANKS_PROCESSES, 3, body_two), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 3, body_two), 0);
}

/* Several calls of a group share the barriers; one that is not for windows is beside them. */
static int body_group(struct rank *r)
{
	struct place p;
	ncclWindow_t win;
	struct call c[KINDS];
	int32_t *sum, host[100];

	if (symm_begin(r, &p))
		return 1;
	CHECK(shunt_malloc((void **)&sum, sizeof(host)) == 0);
	/* Registered inside a group, too. */
	NCCL(ncclGroupStart());
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclGroupEnd());
	for (int t = 0; t < 3; t++) {
		struct place at[KINDS];

		for (int i = 0; i < 100; i++)
			host[i] = i + r->rank;
		CHECK(shunt_memcpy(sum, host, sizeof(host)) == 0);
		for (enum kind kind = KINDS; kind-- > 0;) {
			c[kind] = (struct call){ .kind = kind,
				.root = (int)kind % p.n,
				.part = 3000 + (size_t)t,
				.at = GUARD + kind * 60000,
				.salt = (unsigned char)t };
			at[kind] = p;
		}
		char *host_bytes = malloc(ROOM);
		memset(host_bytes, 0x5a, ROOM);
		CHECK(shunt_memcpy(p.window, host_bytes, ROOM) == 0 && shunt_memcpy(p.plain, host_bytes, ROOM) == 0);
		for (enum kind kind = 0; kind < KINDS; kind++) {
			struct buffers b = symm_buffers_of(&p, &c[kind]);

			for (int q = 0; q < b.sends; q++) {
				for (size_t i = 0; i < c[kind].part; i++)
					host_bytes[i] = (char)symm_pattern(&c[kind], p.rank, q, i);
				CHECK(shunt_memcpy(b.send + (size_t)q * c[kind].part, host_bytes, c[kind].part) == 0);
			}
		}
		free(host_bytes);
		NCCL(ncclGroupStart());
		for (enum kind kind = 0; kind < KINDS; kind++) {
			NCCL(symm_enqueue(&at[kind], &c[kind]));
			if (kind == BROADCAST)
				NCCL(ncclAllReduce(sum, sum, 100, ncclInt32, ncclSum, p.comm, p.stream));
		}
		NCCL(ncclGroupEnd());
		if (symm_settle(r, &p))
			return 1;
		for (enum kind kind = 0; kind < KINDS; kind++)
			if (symm_check(r, &at[kind], &c[kind]))
				return 1;
		CHECK(shunt_memcpy(host, sum, sizeof(host)) == 0);
		for (int i = 0; i < 100; i++)
			CHECK(host[i] == p.n * i + p.n * (p.n - 1) / 2);
	}
	for (enum kind kind = 0; kind < KINDS; kind++)
		CHECK(ranks_count_calls(p.comm, symm_names[kind], "ce") == 3);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 100, .at = GUARD);
	CHECK(shunt_free(sum) == 0);
	return symm_end(r, &p);
}

static void test_calls_of_a_group_share_barriers(void **state)
{
	assert_int_equal(symm_run(RANKS_PROCESSES, 4, body_group), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 3, body_group), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_group, -1, symm_set_check), 0);
}

/* The agreement happens inside the capture; replays are mixed with eager calls, on another stream. */
static int body_graph(struct rank *r)
{
	enum { REPLAYS = 60 };
	struct call c = { .kind = ALLGATHER, .part = 3001, .at = GUARD },
	            b = { .kind = BROADCAST, .root = 1, .part = 5003, .at = GUARD + 100000 };
	struct place p, other;
	void *graph;
	ncclWindow_t win;

	if (symm_begin(r, &p))
		return 1;
	other = p;
	CHECK(shunt_stream_create(&other.stream) == 0);
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	CHECK(shunt_capture_begin(p.stream) == 0);
	NCCL(symm_enqueue(&p, &c));
	NCCL(symm_enqueue(&p, &b));
	/* An eager call while the other stream captures: its own part must not become the graph's. */
	NCCL(symm_enqueue(&other, &c));
	CHECK(shunt_stream_synchronize(other.stream) == 0);
	CHECK(shunt_capture_end(p.stream, &graph) == 0);
	for (int t = 0; t < REPLAYS; t++) {
		struct buffers to = symm_buffers_of(&p, &c);
		char *host = malloc(ROOM);

		c.salt = (unsigned char)t;
		for (size_t i = 0; i < c.part; i++)
			host[i] = (char)symm_pattern(&c, p.rank, 0, i);
		CHECK(shunt_memcpy(to.send, host, c.part) == 0);
		to = symm_buffers_of(&p, &b);
		b.salt = (unsigned char)(t + 9);
		for (size_t i = 0; i < b.part; i++)
			host[i] = (char)symm_pattern(&b, p.rank, 0, i);
		CHECK(!to.sends || shunt_memcpy(to.send, host, b.part) == 0);
		CHECK(shunt_graph_launch(graph, p.stream) == 0);
		if (t % 7 == 0)
			NCCL(symm_enqueue(&other, &c));
		if (t % 5 == 0)
			CHECK(shunt_graph_launch(graph, p.stream) == 0);
		CHECK(shunt_stream_synchronize(other.stream) == 0);
		if (symm_settle(r, &p))
			return 1;
		memset(host, 0x5a, GUARD);
		for (int k = 0; k < 2; k++) { /* the guards are the first call's to have filled */
			const struct call *call = k ? &b : &c;
			struct buffers at = symm_buffers_of(&p, call);

			CHECK(shunt_memcpy(at.recv - GUARD, host, GUARD) == 0);
			CHECK(shunt_memcpy(at.recv + (size_t)at.receives * call->part, host, GUARD) == 0);
			if (symm_check(r, &p, call))
				return 1;
		}
		free(host);
	}
	CHECK(shunt_graph_destroy(graph) == 0);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	CHECK(shunt_stream_destroy(other.stream) == 0);
	return symm_end(r, &p);
}

static void test_graphs_replay_ce_mixed_with_eager_calls(void **state)
{
	assert_int_equal(symm_run(RANKS_PROCESSES, 3, body_graph), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 2, body_graph), 0);
}

/* Rank 1 has its buffer elsewhere in the window than it promised. */
static int body_misplaced(struct rank *r)
{
	struct call c = {
		.kind = (enum kind)symm_shared->odd, .root = 0, .part = 1000, .at = r->rank == 1 ? 2 * GUARD : GUARD
	};
	ncclResult_t async = ncclSuccess;
	ncclWindow_t win;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 700, .at = GUARD);
	if (symm_fill(r, &p, &c))
		return 1;
	NCCL(symm_enqueue(&p, &c));
	CHECK(shunt_stream_synchronize(p.stream) == 0);
	/* The root of a gather or scatter finds it; the others wait for the root in vain until they are aborted. */
	for (double until = now() + AT_ONCE_S; r->rank == 0 && !async && now() < until; pause_us(PAUSE_POLL, 500))
		NCCL(ncclCommGetAsyncError(p.comm, &async));
	if (r->rank == 0)
		CHECK(async == ncclInvalidUsage && strstr(ncclGetLastError(p.comm), "another offset of its window"));
	symm_barrier(r, 0);
	return symm_end_broken(r, &p, false);
}

static void symm_set_patience(int rank)
{
	setenv("SHUNT_TIMEOUT", "2s", 1);
}

static void test_buffer_at_another_offset_than_promised_is_an_error(void **state)
{
	for (int kind = 0; kind < KINDS; kind++)
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_misplaced, kind, symm_set_patience), 0);
}

/* A call that the other ranks do not make: another thread aborts it, or its deadline passes. */
struct symm_lone_call {
	double began;
	ncclComm_t comm;
	const char *waits; /* what the process's dump says when the call waits; NULL: it is not aborted */
	pthread_t thread;
};

#define KERNEL_WAITS "\"running\": true"
#define HOST_WAITS "\"phase\": \"agreement on a window\""

static void *abort_when_it_waits(void *arg)
{
	const struct symm_lone_call *l = arg;
	bool waits = until_dump_has(getpid(), l->waits);

	return (void *)(uintptr_t)(ncclCommAbort(l->comm) != ncclSuccess || !waits);
}

static void symm_lone_call_begin(struct symm_lone_call *l, ncclComm_t comm, const char *waits)
{
	*l = (struct symm_lone_call){ .began = now(), .comm = comm, .waits = waits };
	if (waits)
		pthread_create(&l->thread, NULL, abort_when_it_waits, l);
}

static int symm_lone_call_end(struct rank *r, struct symm_lone_call *l, void *stream)
{
	void *failed = NULL;

	CHECK(shunt_stream_synchronize(stream) == 0);
	CHECK(now() < l->began + AT_ONCE_S);
	if (l->waits)
		pthread_join(l->thread, &failed);
	CHECK(!failed);
	return 0;
}

/* odd: 0: the kernel waits; 1: the host, for the agreement. */
static int body_abort(struct rank *r)
{
	struct call c = { .kind = ALLTOALL, .part = 1000, .at = GUARD };
	struct symm_lone_call lone;
	ncclResult_t res;
	ncclWindow_t win;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	if (symm_shared->odd == 0)
		RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 700, .at = GUARD);
	if (symm_fill(r, &p, &c))
		return 1;
	symm_barrier(r, 1); /* what rank 0 has enqueued is copied all the same when its barrier gives up */
	if (r->rank == 0) {
		symm_lone_call_begin(&lone, p.comm, symm_shared->odd ? HOST_WAITS : KERNEL_WAITS);
		res = symm_enqueue(&p, &c);
		CHECK(symm_shared->odd ? res != ncclSuccess : res == ncclSuccess);
		if (symm_lone_call_end(r, &lone, p.stream))
			return 1;
	}
	symm_barrier(r, 0);
	return symm_end_broken(r, &p, r->rank == 0);
}

static void test_abort_ends_a_barrier_and_an_agreement(void **state)
{
	for (int odd = 0; odd < 2; odd++) {
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_abort, odd, NULL), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_abort, odd, NULL), 0);
	}
}

static void set_default(int rank)
{
	unsetenv("SHUNT_ALGO");
}

static ncclConfig_t config_of(int policy)
{
	ncclConfig_t c = ranks_config();

	c.CTAPolicy = policy;
	return c;
}

/* Without a rule: from 64 MB of a message on, or at any size for who wants no SM used, if all ranks do. */
static int body_default(struct rank *r)
{
	enum { LARGE = 64 << 20 };
	ncclConfig_t config = config_of(
	    symm_shared->odd < 0 || r->rank == symm_shared->odd ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_DEFAULT);
	ncclWindow_t win[2];
	ncclComm_t parent;
	struct place p;
	char *large;

	if (symm_begin(r, &p))
		return 1;
	CHECK(shunt_malloc_shared((void **)&large, 3 * (size_t)LARGE) == 0);
	NCCL(ncclCommWindowRegister(p.comm, large, 2 * (size_t)LARGE, &win[0], NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win[1], NCCL_WIN_COLL_SYMMETRIC));
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	NCCL(ncclAllGather(large + 2 * LARGE, large, LARGE - 1, ncclInt8, p.comm, p.stream));
	CHECK(ranks_count_calls(p.comm, "allgather", "ce") == 0);
	NCCL(ncclAllGather(large + 2 * LARGE, large, LARGE, ncclInt8, p.comm, p.stream));
	CHECK(ranks_count_calls(p.comm, "allgather", "ce") == 1);
	if (symm_settle(r, &p))
		return 1;
	parent = p.comm;
	NCCL(ncclCommSplit(parent, 0, r->rank, &p.comm, &config));
	NCCL(ncclCommDestroy(parent));
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win[1], NCCL_WIN_COLL_SYMMETRIC));
	for (enum kind kind = 0; kind < KINDS; kind++)
		RUN_CALL(&p, symm_shared->odd < 0 ? "ce" : STAGED, .kind = kind, .part = 700, .at = GUARD);
	CHECK(shunt_free(large) == 0);
	return symm_end(r, &p);
}

static void test_large_messages_and_zero_ctas_take_ce(void **state)
{
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_default, -1, set_default), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_default, 1, set_default), 0);
}

/* Pieces and shares of a broadcast: more than one of each, and a last run_call that is short. */
static int body_large_broadcast(struct rank *r)
{
	enum { BYTES = (40 << 20) + 77 };
	unsigned char *window, *host = malloc(BYTES);
	ncclWindow_t win;
	struct place p;
	int root = 1;

	if (symm_begin(r, &p))
		return 1;
	CHECK(shunt_malloc_shared((void **)&window, BYTES) == 0);
	NCCL(ncclCommWindowRegister(p.comm, window, BYTES, &win, NCCL_WIN_COLL_SYMMETRIC));
	for (size_t i = 0; i < BYTES; i++)
		host[i] = (unsigned char)(r->rank == root ? i * 11 + i / 4093 : 0);
	CHECK(shunt_memcpy(window, host, BYTES) == 0);
	NCCL(ncclBroadcast(window, window, BYTES, ncclInt8, root, p.comm, p.stream));
	CHECK(ranks_count_calls(p.comm, "broadcast", "ce") == 1);
	if (symm_settle(r, &p))
		return 1;
	CHECK(shunt_memcpy(host, window, BYTES) == 0);
	for (size_t i = 0; i < BYTES; i++)
		CHECK(host[i] == (unsigned char)(i * 11 + i / 4093));
	NCCL(ncclCommWindowDeregister(p.comm, win));
	CHECK(shunt_free(window) == 0);
	free(host);
	return symm_end(r, &p);
}

static void test_large_broadcast_goes_in_segments(void **state)
{
	assert_int_equal(symm_run(RANKS_PROCESSES, 3, body_large_broadcast), 0);
}

static char plan_folder[] = "/tmp/shunt-windows-XXXXXX";

static void set_plan(int rank)
{
	unsetenv("SHUNT_ALGO");
	setenv("SHUNT_PLAN_DIR", plan_folder, 1);
}

/*
 * Plans whose peers reach input and output: in windows without shadows, eager, in graphs, and as soon as the agreement
 * was inside a capture.
 */
static int body_plan(struct rank *r)
{
	struct call c = { .kind = ALLGATHER, .part = 4800, .at = 256 };
	ncclWindow_t win;
	struct place p;
	void *graph;
	int before;

	if (symm_begin(r, &p))
		return 1;
	RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 256);
	before = symm_mappings();
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	if (symm_shared->odd == 1) {
		if (symm_fill(r, &p, &c))
			return 1;
		CHECK(shunt_capture_begin(p.stream) == 0);
		NCCL(symm_enqueue(&p, &c));
		CHECK(shunt_capture_end(p.stream, &graph) == 0);
		for (int t = 0; t < 5; t++) {
			c.salt = (unsigned char)t;
			if (symm_fill(r, &p, &c))
				return 1;
			symm_barrier(r,
			    2 + t); /* a peer's data may come as soon as we fill: it is all there is in this window */
			CHECK(shunt_graph_launch(graph, p.stream) == 0);
			if (symm_settle(r, &p) || symm_check(r, &p, &c))
				return 1;
			symm_barrier(r, 8 + t);
		}
		CHECK(shunt_graph_destroy(graph) == 0);
	}
	for (int t = 0; t < 10; t++) {
		RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 256 + 16 * (size_t)t, .in_place = t % 2,
		    .salt = (unsigned char)t);
		RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4801, .at = 256,
		    .salt = (unsigned char)t); /* chunks that are not full */
		RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 257, .salt = (unsigned char)t);
	}
	CHECK(symm_shared->odd < 0 || symm_mappings() == before + p.n - 1);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	CHECK(symm_shared->odd < 0 || symm_mappings() == before);
	RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 256);
	return symm_end(r, &p);
}

static void test_plans_reach_windows_in_place(void **state)
{
	char path[80], *text;
	FILE *f;

	assert_non_null(mkdtemp(plan_folder));
	snprintf(path, sizeof(path), "%s/port.json", plan_folder);
	for (int inplace = 0; inplace < 2; inplace++) {
		text = plan_port(3, inplace);
		f = fopen(path, "w");
		assert_non_null(f);
		fputs(text, f);
		fclose(f);
		free(text);
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_plan, 0, set_plan), 0);
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_plan, 1, set_plan), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_plan, -1, set_plan), 0);
	}
	unlink(path);
	rmdir(plan_folder);
}

/*
 * Overlay: a handle that NCCL does not give, in a group or not. What was so registered lasts until somebody deregisters
 * NULL.
 */
static int body_no_handle(struct rank *r)
{
	void *lib = dlopen(getenv("SHUNT_NCCL_LIB"), RTLD_NOW | RTLD_LOCAL);
	ncclWindow_t win = (ncclWindow_t)1;
	struct place p;

	((__typeof__(fake_nccl_no_windows) *)dlsym(lib, "fake_nccl_no_windows"))(1);
	if (symm_begin(r, &p))
		return 1;
	for (int grouped = 0; grouped < 2; grouped++) {
		if (grouped)
			NCCL(ncclGroupStart());
		NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
		if (grouped)
			NCCL(ncclGroupEnd());
		CHECK(!win);
		RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 700, .at = GUARD);
		NCCL(ncclCommWindowDeregister(p.comm, win));
		RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	}
	/* A registration that NCCL refuses is none. */
	((__typeof__(fake_nccl_fail_next) *)dlsym(lib, "fake_nccl_fail_next"))(
	    "CommWindowRegister", ncclInvalidArgument);
	CHECK(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC) == ncclInvalidArgument);
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	NCCL(ncclGroupStart());
	((__typeof__(fake_nccl_fail_next) *)dlsym(lib, "fake_nccl_fail_next"))("GroupEnd", ncclInternalError);
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	CHECK(ncclGroupEnd() == ncclInternalError);
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	return symm_end(r, &p);
}

static void test_window_without_a_handle_is_used(void **state)
{
	if (!symm_overlay)
		skip();
	assert_int_equal(symm_run(RANKS_PROCESSES, 2, body_no_handle), 0);
}

/* ---------------------------------------------------------------------------------------------------- reductions */

/* A call whose input lies in a window; the output of an all-reduce, too. */
struct reduction {
	enum shunt_kind kind;
	int dtype, op; /* enum shunt_dtype, enum shunt_redop */
	int root;
	size_t count, at;      /* elements of a result; bytes */
	bool in_place, staged; /* staged: in memory that is no window */
	uint64_t seed;
};

static size_t reduction_bytes(const struct reduction *f)
{
	return f->count * shunt_dtype_bytes[f->dtype];
}

static size_t reduction_inputs(const struct place *p, const struct reduction *f)
{
	return f->count * shunt_kind_parts(f->kind, SHUNT_SIDE_SEND, p->n);
}

static char *reduction_in(const struct place *p, const struct reduction *f)
{
	return (f->staged ? p->plain : p->window) + f->at;
}

static char *reduction_out(const struct place *p, const struct reduction *f)
{
	if (f->in_place)
		return reduction_in(p, f) + shunt_kind_part_of(f->kind, SHUNT_SIDE_SEND, p->rank) * reduction_bytes(f);
	return (f->staged || f->kind != SHUNT_ALLREDUCE ? p->plain : p->window) + ROOM / 2 + f->at;
}

static bool reduction_receives(const struct place *p, const struct reduction *f)
{
	return f->kind != SHUNT_REDUCE || p->rank == f->root;
}

/* What each rank sends; every rank can tell. Freed by free_inputs. */
static void make_inputs(const struct place *p, const struct reduction *f, void *in[8])
{
	uint64_t seed = f->seed + 1;

	for (int q = 0; q < p->n; q++) {
		in[q] = malloc(reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype]);
		ref_fill(in[q], reduction_inputs(p, f), f->dtype, &seed);
	}
}

static void free_inputs(const struct place *p, void *in[8])
{
	for (int q = 0; q < p->n; q++)
		free(in[q]);
}

/* What a call may write, and what lies around it. */
static int reduction_wipe(struct rank *r, const struct place *p, const struct reduction *f)
{
	size_t bytes = f->at + reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype] + 2 * GUARD;
	char *host = malloc(bytes);

	memset(host, 0x5a, bytes);
	for (size_t at = 0; at < ROOM; at += ROOM / 2)
		CHECK(shunt_memcpy(p->window + at, host, bytes) == 0 && shunt_memcpy(p->plain + at, host, bytes) == 0);
	free(host);
	return 0;
}

/* A call that failed wrote nothing. */
static int reduction_untouched(struct rank *r, const struct place *p, const struct reduction *f)
{
	size_t bytes = f->count * shunt_dtype_bytes[f->dtype];
	char *host = malloc(bytes);

	CHECK(shunt_memcpy(host, reduction_out(p, f), bytes) == 0);
	for (size_t i = 0; i < bytes; i++)
		CHECK(host[i] == 0x5a);
	free(host);
	return 0;
}

static int reduction_fill(struct rank *r, const struct place *p, const struct reduction *f)
{
	void *in[8];

	make_inputs(p, f, in);
	CHECK(shunt_memcpy(reduction_in(p, f), in[p->rank], reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype]) == 0);
	free_inputs(p, in);
	return 0;
}

/* result (may be NULL): what came out. */
static int reduction_check(struct rank *r, const struct place *p, const struct reduction *f, char *result)
{
	size_t bytes = reduction_bytes(f), in_bytes = reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype], first = 0,
	       wrong;
	char *host = malloc(in_bytes + 2 * GUARD), *want = malloc(in_bytes);
	void *in[8];

	make_inputs(p, f, in);
	ref_allreduce(want, (const void *const *)in, p->n, reduction_inputs(p, f), f->dtype, f->op, NULL);
	if (reduction_receives(p, f)) {
		CHECK(shunt_memcpy(host, reduction_out(p, f) - GUARD, bytes + 2 * GUARD) == 0);
		wrong = ref_compare(host + GUARD, want + shunt_kind_part_of(f->kind, SHUNT_SIDE_SEND, p->rank) * bytes,
		    f->count, f->dtype, &first);
		if (wrong)
			fprintf(stderr,
			    "rank %d of %d: %s of %zu %s, %s, at %zu%s%s: %zu elements differ, the first is %zu\n",
			    p->rank, p->n, shunt_kind_name(f->kind), f->count, shunt_dtype_name(f->dtype),
			    shunt_redop_name(f->op), f->at, f->in_place ? ", in place" : "",
			    f->staged ? ", staged" : "", wrong, first);
		CHECK(!wrong);
		/* What lies around is as it was, where it is not the other parts of what was sent. */
		for (int i = 0; i < GUARD && !(f->in_place && f->kind == SHUNT_REDUCESCATTER); i++)
			CHECK(host[i] == 0x5a && host[GUARD + bytes + (size_t)i] == 0x5a);
		if (result)
			memcpy(result, host + GUARD, bytes);
	}
	CHECK(shunt_memcpy(host, reduction_in(p, f), in_bytes) == 0);
	if (f->in_place && reduction_receives(p, f)) /* the rest of the input is as it was */
		memcpy((char *)in[p->rank] + (reduction_out(p, f) - reduction_in(p, f)),
		    host + (reduction_out(p, f) - reduction_in(p, f)), bytes);
	CHECK(!memcmp(host, in[p->rank], in_bytes));
	free_inputs(p, in);
	free(host);
	free(want);
	return 0;
}

static ncclResult_t reduction_enqueue(const struct place *p, const struct reduction *f)
{
	void *in = reduction_in(p, f), *out = reduction_receives(p, f) || f->in_place ? reduction_out(p, f) : NULL;

	switch (f->kind) {
	case SHUNT_ALLREDUCE:
		return ncclAllReduce(in, out, f->count, f->dtype, f->op, p->comm, p->stream);
	case SHUNT_REDUCESCATTER:
		return ncclReduceScatter(in, out, f->count, f->dtype, f->op, p->comm, p->stream);
	default:
		return ncclReduce(in, out, f->count, f->dtype, f->op, f->root, p->comm, p->stream);
	}
}

static int run_reduction(
    struct rank *r, const struct place *p, const struct reduction *f, const char *path, char *result)
{
	long before = ranks_count_calls(p->comm, shunt_kind_name(f->kind), path);

	if (reduction_wipe(r, p, f) || reduction_fill(r, p, f))
		return 1;
	NCCL(reduction_enqueue(p, f));
	if (symm_settle(r, p))
		return 1;
	if (ranks_count_calls(p->comm, shunt_kind_name(f->kind), path) != before + 1)
		fprintf(stderr, "rank %d of %d: %s of %zu did not take the path %s\n", p->rank, p->n,
		    shunt_kind_name(f->kind), f->count, path);
	CHECK(ranks_count_calls(p->comm, shunt_kind_name(f->kind), path) == before + 1);
	return reduction_check(r, p, f, result);
}

#define REDUCTION(place, path, ...) \
	do { \
		if (run_reduction(r, place, &(struct reduction){ __VA_ARGS__ }, path, NULL)) { \
			fprintf(stderr, "rank %d: from line %d\n", r->rank, __LINE__); \
			return 1; \
		} \
	} while (0)

static const enum shunt_kind reduce_kinds[] = { SHUNT_ALLREDUCE, SHUNT_REDUCESCATTER, SHUNT_REDUCE };
enum { REDUCE_KINDS = sizeof(reduce_kinds) / sizeof(reduce_kinds[0]), SIM_ONESHOT = 16 << 10 };

/* On the sim. */
static const char *staged_path(const struct reduction *f)
{
	size_t bytes = reduction_bytes(f);

	if (bytes <= SIM_ONESHOT)
		return f->kind == SHUNT_REDUCE ? "ll128" : "oneshot";
	if (f->kind == SHUNT_ALLREDUCE && bytes <= 4 * SIM_ONESHOT)
		return "twoshot";
	if (f->kind == SHUNT_ALLREDUCE || bytes > 2 * SIM_ONESHOT)
		return "simple";
	return f->kind == SHUNT_REDUCE ? "twoshot" : "ll128";
}

/* From windows and by way of the scratch: one result, to the bit. */
static int both_ways(struct rank *r, const struct place *p, struct reduction f)
{
	char *direct = calloc(1, reduction_bytes(&f)), *staged = calloc(1, reduction_bytes(&f));

	if (run_reduction(r, p, &f, "direct", direct))
		return 1;
	f.staged = true;
	if (run_reduction(r, p, &f, staged_path(&f), staged))
		return 1;
	CHECK(!memcmp(direct, staged, reduction_bytes(&f)));
	free(direct);
	free(staged);
	return 0;
}

/* odd: sizes and places with the types of training; else every type and operator. */
static int body_reductions(struct rank *r)
{
	static const size_t counts[] = { 1, 3, 16, 63, 1000, 4099, 9001 };
	static const int hot[] = { SHUNT_F32, SHUNT_BF16, SHUNT_F16 };
	ncclWindow_t win;
	struct place p;
	int n = 0;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	for (size_t i = 0; symm_shared->odd == 1 && i < sizeof(counts) / sizeof(counts[0]); i++)
		for (int k = 0; k < REDUCE_KINDS; k++)
			for (int in_place = 0; in_place < 2; in_place++)
				for (int off = 0; off < 2; off++, n++)
					if ((reduce_kinds[k] != SHUNT_REDUCESCATTER || counts[i] < 5000) &&
					    both_ways(r, &p,
					        (struct reduction){ reduce_kinds[k], hot[n / 2 % 3],
					            n % 5 ? SHUNT_SUM : SHUNT_AVG, n % p.n, counts[i],
					            GUARD + (off ? 4 * (size_t)(n % 16) : 0), in_place,
					            .seed = (uint64_t)n }))
						return 1;
	for (int dtype = 0; symm_shared->odd != 1 && dtype < SHUNT_NDTYPES; dtype++)
		for (int op = 0; op < SHUNT_PREMUL; op++, n++)
			if (both_ways(r, &p,
			        (struct reduction){ reduce_kinds[n % REDUCE_KINDS], dtype, op, n % p.n,
			            777 + 8 * (size_t)(n % 3), GUARD + (size_t)(n % 4 ? 0 : 8), n & 4,
			            .seed = (uint64_t)n }))
				return 1;
	NCCL(ncclCommWindowDeregister(p.comm, win));
	REDUCTION(&p, "oneshot", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 1000, .at = GUARD);
	return symm_end(r, &p);
}

static void test_direct_of_any_size_and_offset_matches_staged_reductions(void **state)
{
	for (int n = 2; n <= 4; n++)
		assert_int_equal(symm_run_with(RANKS_PROCESSES, n, body_reductions, 1, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 5, body_reductions, 1, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 8, body_reductions, 1, NULL), 0);
}

static void test_direct_of_every_type_and_operator_matches_staged_reductions(void **state)
{
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_reductions, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_reductions, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 8, body_reductions, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_reductions, 0, symm_set_check), 0);
}

/* Input and output in windows of their own, and what is staged for want of one; a factor that is each rank's own. */
static int body_reduction_windows(struct rank *r)
{
	struct reduction f = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, .count = 6001, .at = GUARD };
	ncclWindow_t in, out;
	struct place p;
	ncclRedOp_t op;
	float factor = (float)(1 + r->rank), host[100];

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM / 2, &in, NCCL_WIN_COLL_SYMMETRIC));
	if (run_reduction(r, &p, &f, staged_path(&f), NULL)) /* the output lies in none */
		return 1;
	REDUCTION(&p, "direct", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 3001, .at = GUARD);
	NCCL(ncclCommWindowRegister(p.comm, p.window + ROOM / 2, ROOM / 2, &out, NCCL_WIN_COLL_SYMMETRIC));
	if (run_reduction(r, &p, &f, "direct", NULL))
		return 1;
	NCCL(ncclCommWindowDeregister(p.comm, in));
	if (run_reduction(r, &p, &f, staged_path(&f), NULL))
		return 1;
	/* Both for the first time in one call. */
	NCCL(ncclCommWindowDeregister(p.comm, out));
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM / 2, &in, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclCommWindowRegister(p.comm, p.window + ROOM / 2, ROOM / 2, &out, NCCL_WIN_COLL_SYMMETRIC));
	if (run_reduction(r, &p, &f, "direct", NULL))
		return 1;
	NCCL(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, p.comm));
	for (int i = 0; i < 100; i++)
		host[i] = (float)i;
	CHECK(shunt_memcpy(p.window, host, sizeof(host)) == 0);
	NCCL(ncclAllReduce(p.window, p.window, 100, ncclFloat32, op, p.comm, p.stream));
	if (symm_settle(r, &p))
		return 1;
	CHECK(ranks_count_calls(p.comm, "allreduce", "direct") == 2);
	CHECK(shunt_memcpy(host, p.window, sizeof(host)) == 0);
	for (int i = 0; i < 100; i++)
		CHECK(host[i] == (float)(i * p.n * (p.n + 1) / 2));
	NCCL(ncclRedOpDestroy(op, p.comm));
	return symm_end(r, &p);
}

static void test_direct_needs_windows_for_all_that_peers_reach(void **state)
{
	assert_int_equal(symm_run(RANKS_PROCESSES, 3, body_reduction_windows), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 2, body_reduction_windows), 0);
}

/* Eager, in a group with copies, and in a graph that is replayed. */
static int body_reduction_group(struct rank *r)
{
	enum { REPLAYS = 20, EACH = 60000 };
	struct reduction f[] = {
		{ SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 1003, .at = GUARD, .in_place = true },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, .count = 2500, .at = GUARD + EACH },
		{ SHUNT_REDUCE, SHUNT_F32, SHUNT_SUM, 1, .count = 2500, .at = GUARD + 2 * EACH },
		{ SHUNT_REDUCE, SHUNT_I32, SHUNT_MAX, 0, .count = 99, .at = GUARD + 3 * EACH },
		{ SHUNT_ALLREDUCE, SHUNT_BF16, SHUNT_AVG, .count = 5001, .at = GUARD + 4 * EACH, .in_place = true },
	};
	enum { CALLS = sizeof(f) / sizeof(f[0]) };
	struct call c = { .kind = ALLTOALL, .part = 3000, .at = GUARD + 6 * EACH };
	ncclWindow_t win;
	struct place p;
	void *graph = NULL;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	if (symm_shared->odd == 1)
		CHECK(shunt_capture_begin(p.stream) == 0);
	for (int t = 0; t < REPLAYS; t++) {
		if (t || symm_shared->odd != 1) {
			if (symm_fill(r, &p, &c))
				return 1;
			for (int i = 0; i < CALLS; i++) {
				f[i].seed = (uint64_t)(t * CALLS + i);
				if (reduction_fill(r, &p, &f[i]))
					return 1;
			}
		}
		if (graph) {
			CHECK(shunt_graph_launch(graph, p.stream) == 0);
		} else {
			NCCL(ncclGroupStart());
			for (int i = 0; i < CALLS; i++) {
				NCCL(reduction_enqueue(&p, &f[i]));
				if (i == 1)
					NCCL(symm_enqueue(&p, &c));
			}
			NCCL(ncclGroupEnd());
		}
		if (symm_shared->odd == 1 && !t) {
			CHECK(shunt_capture_end(p.stream, &graph) == 0);
			continue;
		}
		if (symm_settle(r, &p) || symm_check(r, &p, &c))
			return 1;
		for (int i = 0; i < CALLS; i++)
			if (reduction_check(r, &p, &f[i], NULL))
				return 1;
	}
	if (graph)
		CHECK(shunt_graph_destroy(graph) == 0);
	else
		CHECK(ranks_count_calls(p.comm, "reduce", "direct") == 2 * REPLAYS &&
		    ranks_count_calls(p.comm, "alltoall", "ce") == REPLAYS);
	return symm_end(r, &p);
}

static void test_direct_in_groups_and_graphs_works_with_ce(void **state)
{
	for (int graph = 0; graph < 2; graph++) {
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_reduction_group, graph, NULL), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 4, body_reduction_group, graph, NULL), 0);
	}
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_reduction_group, 0, symm_set_check), 0);
}

/*
 * Rank 1 has its input elsewhere, or (odd REDUCE_KINDS) only the output of an all-reduce: all ranks know, and none
 * touches another's memory.
 */
static int body_reduction_misplaced(struct rank *r)
{
	struct reduction f = { reduce_kinds[symm_shared->odd % REDUCE_KINDS], SHUNT_F32, SHUNT_SUM, .count = 1000,
		.at = GUARD };
	ncclResult_t async = ncclSuccess;
	ncclWindow_t win;
	struct place p;
	char *in, *out;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	REDUCTION(&p, "direct", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 700, .at = GUARD);
	if (reduction_wipe(r, &p, &f) || reduction_fill(r, &p, &f))
		return 1;
	in = reduction_in(&p, &f);
	out = reduction_out(&p, &f);
	in += r->rank == 1 && symm_shared->odd < REDUCE_KINDS ? GUARD : 0;
	out += r->rank == 1 && symm_shared->odd >= REDUCE_KINDS ? GUARD : 0;
	if (f.kind == SHUNT_ALLREDUCE)
		NCCL(ncclAllReduce(in, out, f.count, f.dtype, f.op, p.comm, p.stream));
	else if (f.kind == SHUNT_REDUCE)
		NCCL(ncclReduce(in, out, f.count, f.dtype, f.op, 0, p.comm, p.stream));
	else
		NCCL(ncclReduceScatter(in, out, f.count, f.dtype, f.op, p.comm, p.stream));
	CHECK(shunt_stream_synchronize(p.stream) == 0);
	NCCL(ncclCommGetAsyncError(p.comm, &async));
	CHECK(async == ncclInvalidUsage && strstr(ncclGetLastError(p.comm), "another offset of its window"));
	symm_barrier(r, 0);
	return reduction_untouched(r, &p, &f) || symm_end_broken(r, &p, false);
}

static void test_direct_from_another_offset_than_promised_is_an_error(void **state)
{
	for (int odd = 0; odd <= REDUCE_KINDS; odd++) {
		assert_int_equal(
		    symm_run_with(RANKS_PROCESSES, 2, body_reduction_misplaced, odd, symm_set_patience), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 2, body_reduction_misplaced, odd, NULL), 0);
	}
}

/* Rank 0 calls alone, is aborted, and has changed nothing; or its deadline passes. */
static int body_reduction_abort(struct rank *r)
{
	struct reduction f = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, .count = 1000, .at = GUARD };
	ncclResult_t async = ncclSuccess;
	struct symm_lone_call lone;
	ncclWindow_t win;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	REDUCTION(&p, "direct", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 700, .at = GUARD);
	if (reduction_wipe(r, &p, &f) || reduction_fill(r, &p, &f))
		return 1;
	symm_barrier(r, 1);
	if (r->rank == 0) {
		symm_lone_call_begin(&lone, p.comm, symm_shared->odd ? NULL : KERNEL_WAITS);
		NCCL(reduction_enqueue(&p, &f));
		if (symm_lone_call_end(r, &lone, p.stream))
			return 1;
		if (symm_shared->odd) {
			NCCL(ncclCommGetAsyncError(p.comm, &async));
			CHECK(async == ncclRemoteError);
		}
	}
	symm_barrier(r, 0);
	return reduction_untouched(r, &p, &f) || symm_end_broken(r, &p, r->rank == 0 && symm_shared->odd == 0);
}

static void test_direct_ends_with_abort_and_deadline_and_changes_nothing(void **state)
{
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_reduction_abort, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_reduction_abort, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_reduction_abort, 1, symm_set_patience), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_kind_uses_ce_in_windows),
		cmocka_unit_test(test_every_kind_is_compared_with_shunt_check),
		cmocka_unit_test(test_memory_of_nccl_is_used_in_place_until_it_is_freed),
		cmocka_unit_test(test_address_registered_again_leads_to_the_new_memory),
		cmocka_unit_test(test_window_that_one_rank_cannot_use_is_used_by_none),
		cmocka_unit_test(test_window_belongs_to_one_communicator),
		cmocka_unit_test(test_two_communicators_use_ce_at_once),
		cmocka_unit_test(test_calls_of_a_group_share_barriers),
		cmocka_unit_test(test_graphs_replay_ce_mixed_with_eager_calls),
		cmocka_unit_test(test_buffer_at_another_offset_than_promised_is_an_error),
		cmocka_unit_test(test_abort_ends_a_barrier_and_an_agreement),
		cmocka_unit_test(test_large_messages_and_zero_ctas_take_ce),
		cmocka_unit_test(test_large_broadcast_goes_in_segments),
		cmocka_unit_test(test_plans_reach_windows_in_place),
		cmocka_unit_test(test_window_without_a_handle_is_used),
		cmocka_unit_test(test_direct_of_any_size_and_offset_matches_staged_reductions),
		cmocka_unit_test(test_direct_of_every_type_and_operator_matches_staged_reductions),
		cmocka_unit_test(test_direct_needs_windows_for_all_that_peers_reach),
		cmocka_unit_test(test_direct_in_groups_and_graphs_works_with_ce),
		cmocka_unit_test(test_direct_from_another_offset_than_promised_is_an_error),
		cmocka_unit_test(test_direct_ends_with_abort_and_deadline_and_changes_nothing),
	};
	char address[32];

	symm_shared = mmap(NULL, sizeof(*symm_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(address, sizeof(address), "%p", (void *)symm_shared->fake);
	own_environment();
	symm_overlay = getenv("SHUNT_NCCL_LIB") != NULL;
	setenv("FAKE_NCCL_SHARED", address, 1);
	setenv("SHUNT_NCCL_LIB", "none", 0);
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_TIMEOUT", "60s", 1);
	setenv("SHUNT_ALGO", EVERY_KIND, 0);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

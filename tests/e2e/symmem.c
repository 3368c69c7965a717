/* SPDX-License-Identifier: MIT */
/* Collectives in windows: memory that is registered, used in place, and freed. */
#include "tests/e2e/symmem_job.h"
#include "shunt/shunt.h"
#include "tests/support/until.h"

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

TEST(test_every_kind_uses_ce_in_windows)
{
	for (int n = 2; n <= 4; n++)
		assert_int_equal(symm_run(RANKS_PROCESSES, n, body_every_kind), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 3, body_every_kind), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 8, body_every_kind), 0);
}

TEST_CALL(test_every_kind_is_compared_with_shunt_check,
    assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_every_kind, -1, symm_set_check), 0))

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

TEST(test_memory_of_nccl_is_used_in_place_until_it_is_freed)
{
	if (symm_overlay)
		skip(); /* the fake's memory is not the sim's */
	assert_int_equal(symm_run(RANKS_PROCESSES, 2, body_mem_alloc), 0);
	assert_int_equal(symm_run(RANKS_THREADS, 3, body_mem_alloc), 0);
}

/* The same address again and again, with other memory behind it. */
RANKS_TEST(test_address_registered_again_leads_to_the_new_memory,
    symm_run(RANKS_PROCESSES, 3, body) + symm_run_with(RANKS_THREADS, 3, body, 0, NULL))
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

TEST(test_window_that_one_rank_cannot_use_is_used_by_none)
{
	for (int odd = 0; odd < 3; odd++)
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_odd, odd, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_odd, 8 + 1, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_odd, 16 + 2, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_odd, 1, NULL), 0);
}

/* Not promised to be symmetric, or of another communicator. */
RANKS_TEST(
    test_window_belongs_to_one_communicator, symm_run(RANKS_PROCESSES, 3, body) + symm_run(RANKS_THREADS, 3, body))
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

/* Two communicators at the same time, on streams of their own. */
RANKS_TEST(test_two_communicators_use_ce_at_once, symm_run(RANKS_PROCESSES, 3, body) + symm_run(RANKS_THREADS, 3, body))
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

TESTS_BEGIN
{
	symm_begin_all();
}

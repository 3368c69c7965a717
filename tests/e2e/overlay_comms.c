/* SPDX-License-Identifier: MIT */
/* The overlay: every way to make a communicator, and to end one. */
#include "tests/e2e/overlay_job.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"

RANKS_TEST(test_every_init_is_accelerated, overlay_run(RANKS_PROCESSES, 3, body) + overlay_run(RANKS_THREADS, 3, body))
{
	ncclConfig_t config = overlay_config(1, 1), lazy = overlay_config(0, NCCL_CONFIG_UNDEF_INT);
	ncclComm_t comm[4];
	ncclUniqueId id = ranks_id(r, &overlay_shared->ids, 2);
	ncclResult_t res;

	NCCL(ncclCommInitRank(&comm[0], r->nranks, ranks_id(r, &overlay_shared->ids, 0), r->rank));
	NCCL(ncclCommInitRankConfig(&comm[1], r->nranks, ranks_id(r, &overlay_shared->ids, 1), r->rank, &config));
	NCCL(ncclCommInitRankScalable(&comm[2], r->nranks, r->rank, 1, &id, NULL));
	res = ncclCommInitRankConfig(&comm[3], r->nranks, ranks_id(r, &overlay_shared->ids, 3), r->rank, &lazy);
	CHECK(res == ncclInProgress);
	CHECK(ranks_settled(comm[3]) == ncclSuccess);
	for (int k = 0; k < 4; k++) {
		REDUCE(comm[k], r->rank, r->nranks, 100, NATIVE);
		REDUCE(comm[k], r->rank, r->nranks, 20000, NATIVE);
		REDUCE(comm[k], r->rank, r->nranks, 100000, NATIVE);
	}
	CHECK(overlay_forwarded("AllReduce") == 0);
	for (int k = 0; k < 4; k++)
		NCCL(ncclCommDestroy(comm[k]));
	return 0;
}

/* One thread, all devices. */
RANKS_TEST(test_init_all_first_used_in_a_group_of_several_communicators, overlay_run(RANKS_PROCESSES, 1, body))
{
	enum { N = 4, COUNT = 1000 };
	ncclComm_t comms[2][N];
	void *stream[N], *buf[2][N];
	int32_t host[COUNT];

	/* Two communicators, so that their first use is in one group. */
	for (int c = 0; c < 2; c++)
		NCCL(ncclCommInitAll(comms[c], N, NULL));
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		CHECK(shunt_stream_create(&stream[d]) == 0);
		for (int c = 0; c < 2; c++) {
			for (int i = 0; i < COUNT; i++)
				host[i] = i * (d + 1) + c;
			CHECK(shunt_malloc(&buf[c][d], sizeof(host)) == 0 &&
			    shunt_memcpy(buf[c][d], host, sizeof(host)) == 0);
		}
	}
	for (int t = 0; t < 3; t++) {
		NCCL(ncclGroupStart());
		for (int c = 0; c < 2; c++)
			for (int d = 0; d < N; d++)
				NCCL(ncclAllReduce(buf[c][d], buf[c][d], COUNT, ncclInt32, t ? ncclMax : ncclSum,
				    comms[c][d], stream[d]));
		NCCL(ncclGroupEnd());
	}
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		CHECK(shunt_stream_synchronize(stream[d]) == 0);
		for (int c = 0; c < 2; c++) {
			CHECK(shunt_memcpy(host, buf[c][d], sizeof(host)) == 0);
			for (int i = 0; i < COUNT; i++)
				CHECK(host[i] == i * 10 + 4 * c);
			CHECK(overlay_count_calls(comms[c][d], 1) == 3);
		}
	}
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		for (int c = 0; c < 2; c++) {
			NCCL(ncclCommDestroy(comms[c][d]));
			CHECK(shunt_free(buf[c][d]) == 0);
		}
		CHECK(shunt_stream_destroy(stream[d]) == 0);
	}
	return 0;
}

RANKS_TEST(test_children_of_all_kinds_are_accelerated,
    overlay_run(RANKS_PROCESSES, 4, body) + overlay_run(RANKS_THREADS, 4, body))
{
	int rank = r->rank, n = r->nranks, v, excluded[1] = { n - 1 };
	ncclComm_t parent, half, reversed, none = (ncclComm_t)1, grandchild, grouped[2], shrunk;

	NCCL(ncclCommInitRank(&parent, n, r->id, rank));
	NCCL(ncclCommSplit(parent, rank % 2, rank, &half, NULL));
	NCCL(ncclCommSplit(parent, 7, -rank, &reversed, NULL));
	NCCL(ncclCommSplit(parent, rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL));
	CHECK(rank == 0 ? !none : none != NULL);
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(parent, 1, rank, &grouped[0], NULL));
	NCCL(ncclCommSplit(parent, 1, rank, &grouped[1], NULL));
	CHECK(!grouped[0] && !grouped[1]);
	NCCL(ncclGroupEnd());
	REDUCE(parent, rank, n, 100, NATIVE);
	REDUCE(half, rank / 2, rank % 2 ? n / 2 : (n + 1) / 2, 1000, NATIVE);
	NCCL(ncclCommUserRank(reversed, &v));
	CHECK(v == n - 1 - rank);
	REDUCE(reversed, v, n, 1000, NATIVE);
	if (none)
		REDUCE(none, rank - 1, n - 1, 1000, NATIVE);
	REDUCE(grouped[1], rank, n, 500, NATIVE);
	REDUCE(grouped[0], rank, n, 500, NATIVE);

	NCCL(ncclCommSplit(half, 0, 0, &grandchild, NULL));
	NCCL(ncclCommDestroy(half));
	REDUCE(grandchild, rank / 2, rank % 2 ? n / 2 : (n + 1) / 2, 1000, NATIVE);
	if (rank != n - 1) {
		NCCL(ncclCommShrink(parent, excluded, 1, &shrunk, NULL, NCCL_SHRINK_DEFAULT));
		REDUCE(shrunk, rank, n - 1, 700, NATIVE);
		NCCL(ncclCommDestroy(shrunk));
		NCCL(ncclCommShrink(parent, excluded, 1, &shrunk, NULL, NCCL_SHRINK_ABORT));
		REDUCE(shrunk, rank, n - 1, 700, NATIVE);
		NCCL(ncclCommDestroy(shrunk));
	}
	CHECK(overlay_forwarded("AllReduce") == 0);
	overlay_barrier(r, 0);
	NCCL(ncclCommDestroy(grandchild));
	NCCL(ncclCommDestroy(reversed));
	NCCL(ncclCommDestroy(grouped[0]));
	NCCL(ncclCommDestroy(grouped[1]));
	NCCL(ncclCommDestroy(none));
	NCCL(ncclCommDestroy(parent));
	return 0;
}

/* The child's handle is written by a thread of NCCL's, after the call has returned. */
RANKS_TEST(test_child_whose_handle_comes_late_is_accelerated,
    overlay_run(RANKS_PROCESSES, 3, body) + overlay_run(RANKS_THREADS, 2, body))
{
	ncclConfig_t lazy = overlay_config(0, NCCL_CONFIG_UNDEF_INT);
	ncclComm_t parent, child = NULL, second = NULL;
	ncclResult_t res = ncclCommInitRankConfig(&parent, r->nranks, r->id, r->rank, &lazy);

	CHECK(res == ncclInProgress && ranks_settled(parent) == ncclSuccess);
	FAKE(fake_nccl_late)(30);
	CHECK(ncclCommSplit(parent, 0, r->rank, &child, NULL) == ncclInProgress);
	CHECK(ranks_settled(parent) == ncclSuccess);
	CHECK(child);
	REDUCE(child, r->rank, r->nranks, 1000, NATIVE);
	/* Not asking the parent: the handle alone shows that it is there. */
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(parent, 0, r->rank, &second, NULL));
	CHECK(ncclGroupEnd() == ncclInProgress);
	while (!__atomic_load_n(&second, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 1000);
	REDUCE(second, r->rank, r->nranks, 1000, NATIVE);
	CHECK(ranks_settled(parent) == ncclSuccess);
	NCCL(ncclCommDestroy(second));
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(parent));
	return 0;
}

/* The program moves the handle and frees its place as soon as it is there, and calls nothing of NCCL's in between. */
RANKS_TEST(test_child_whose_handle_was_moved_is_accelerated,
    overlay_run(RANKS_PROCESSES, 3, body) + overlay_run(RANKS_THREADS, 2, body))
{
	ncclConfig_t lazy = overlay_config(0, NCCL_CONFIG_UNDEF_INT);
	ncclComm_t parent, moved[4];
	ncclResult_t res = ncclCommInitRankConfig(&parent, r->nranks, r->id, r->rank, &lazy);

	CHECK(res == ncclInProgress && ranks_settled(parent) == ncclSuccess);
	for (int k = 0; k < 4; k++) {
		ncclComm_t *place = malloc(sizeof(*place));

		FAKE(fake_nccl_late)(5 * k * (r->rank + 1));
		if (k % 2)
			NCCL(ncclGroupStart());
		CHECK(ncclCommSplit(parent, 0, k < 2 ? r->rank : -r->rank, place, NULL) ==
		    (k % 2 ? ncclSuccess : ncclInProgress));
		CHECK(!(k % 2) || ncclGroupEnd() == ncclInProgress);
		while (!(moved[k] = __atomic_load_n(place, __ATOMIC_ACQUIRE)))
			pause_us(PAUSE_POLL, 100);
		free(place);
		REDUCE(moved[k], k < 2 ? r->rank : r->nranks - 1 - r->rank, r->nranks, 1000, NATIVE);
		CHECK(ranks_settled(parent) == ncclSuccess);
	}
	for (int k = 0; k < 4; k++)
		NCCL(ncclCommDestroy(moved[k]));
	NCCL(ncclCommDestroy(parent));
	return 0;
}

/* The last rank is new; what its unique id says decides. */
RANKS_TEST(test_grown_communicator_is_accelerated,
    overlay_run(RANKS_PROCESSES, 3, body) + overlay_run(RANKS_THREADS, 3, body) +
        overlay_run_as(&(struct ranks){ .n = 3, .raw = 1, .body = body }, 1))
{
	ncclComm_t small = NULL, grown[2];
	ncclUniqueId id;

	ranks_id(r, &overlay_shared->ids, 1);
	if (r->rank < r->nranks - 1)
		NCCL(ncclCommInitRank(&small, r->nranks - 1, overlay_shared->ids.id[0], r->rank));
	for (int round = 0; round < 2; round++) {
		if (r->rank == 0) {
			NCCL(ncclCommGetUniqueId(small, &id));
			overlay_shared->ids.id[2 + round] = id;
		}
		overlay_barrier(r, 2 * round);
		id = overlay_shared->ids.id[2 + round];
		if (overlay_shared->odd) /* made by a rank without Shunt */
			memset(id.internal + 64, 0, 64);
		NCCL(ncclCommGrow(
		    small, r->nranks, small && r->rank ? NULL : &id, small ? -1 : r->rank, &grown[round], NULL));
		REDUCE(grown[round], r->rank, r->nranks, 500, overlay_shared->odd ? FORWARDED : NATIVE);
		overlay_barrier(r, 2 * round + 1);
	}
	if (!overlay_shared->odd)
		REDUCE(grown[0], r->rank, r->nranks, 700, NATIVE);
	for (int round = 0; round < 2; round++)
		NCCL(ncclCommDestroy(grown[round]));
	NCCL(ncclCommDestroy(small));
	return 0;
}

/* ---- ways to end */

RANKS_TEST(test_handle_address_used_again_is_a_new_communicator, overlay_run(RANKS_PROCESSES, 2, body))
{
	ncclComm_t comm, before = NULL;
	int reused = 0;

	for (int k = 0; k < 12; k++) {
		NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &overlay_shared->ids, k), r->rank));
		reused += comm == before;
		before = comm;
		CHECK(overlay_count_calls(comm, 1) == 0 && overlay_count_calls(comm, 0) == 0);
		REDUCE(comm, r->rank, r->nranks, 100 + k, NATIVE);
		if (k % 3 == 0) {
			NCCL(ncclCommDestroy(comm));
		} else if (k % 3 == 1) {
			NCCL(ncclCommAbort(comm));
		} else {
			NCCL(ncclCommFinalize(comm));
			CHECK(overlay_count_calls(comm, 1) ==
			    1); /* known until it is destroyed, but not ours to run any more */
			REDUCE(comm, r->rank, r->nranks, 100 + k, FORWARDED);
			NCCL(ncclCommDestroy(comm));
		}
		CHECK(overlay_count_calls(comm, 1) == -1);
	}
	CHECK(reused > 0);
	NCCL(ncclCommDestroy(NULL));
	return 0;
}

/* ---- equal ids */

RANKS_TEST(test_second_use_of_an_id_does_not_mix, overlay_run(RANKS_PROCESSES, 3, body))
{
	ncclComm_t first, second;

	NCCL(ncclCommInitRank(&first, r->nranks, r->id, r->rank));
	NCCL(ncclCommInitRank(&second, r->nranks, r->id, r->rank));
	REDUCE(first, r->rank, r->nranks, 1000, NATIVE);
	REDUCE(second, r->rank, r->nranks, 1000, FORWARDED);
	REDUCE(first, r->rank, r->nranks, 500, NATIVE);
	NCCL(ncclCommDestroy(second));
	NCCL(ncclCommDestroy(first));
	NCCL(ncclCommInitRank(&first, r->nranks, r->id, r->rank));
	REDUCE(first, r->rank, r->nranks, 1000, NATIVE);
	NCCL(ncclCommDestroy(first));
	return 0;
}

/* All communicators of the job have this id. Some ranks still have an old one when they make the next. */
RANKS_TEST(test_equal_ids_of_nccl_comm_id_do_not_mix, overlay_run_set(2, "NCCL_COMM_ID", "127.0.0.1:29999", body))
{
	ncclComm_t first, second, third, child;

	NCCL(ncclCommInitRank(&first, r->nranks, r->id, r->rank));
	REDUCE(first, r->rank, r->nranks, 1000, FORWARDED);
	if (r->rank == 0)
		NCCL(ncclCommDestroy(first));
	NCCL(ncclCommInitRank(&second, r->nranks, ranks_id(r, &overlay_shared->ids, 0), r->rank));
	NCCL(ncclCommInitRank(&third, r->nranks, ranks_id(r, &overlay_shared->ids, 1), r->rank));
	REDUCE(third, r->rank, r->nranks, 1000, FORWARDED);
	REDUCE(second, r->rank, r->nranks, 1000, FORWARDED);
	NCCL(ncclCommSplit(second, 0, r->rank, &child, NULL));
	REDUCE(child, r->rank, r->nranks, 1000, FORWARDED);
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(second));
	NCCL(ncclCommDestroy(third));
	if (r->rank != 0)
		NCCL(ncclCommDestroy(first));
	return 0;
}

TESTS_BEGIN
{
	overlay_begin();
}

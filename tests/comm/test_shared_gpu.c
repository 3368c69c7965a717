/* SPDX-License-Identifier: MIT */
/* Threads of a process that share a GPU have it for one communicator at a time. */
#include "tests/support/test.h"
#include "comm/core/communicator.h"
#include "comm/core/shared_gpu.h"

enum { THREADS = 8 };

/* A rank of communicator number `id`. */
static struct shunt_comm *rank_on(int device, unsigned char id)
{
	struct shunt_comm *comm = calloc(1, sizeof(*comm));

	assert_non_null(comm);
	comm->device = device;
	comm->id.b[0] = id;
	shunt_registry_add(&comm->registration, comm, NULL);
	return comm;
}

static void rank_free(struct shunt_comm *comm)
{
	shunt_registry_remove(&comm->registration);
	free(comm);
}

TEST(test_shared_gpu_has_all_ranks_of_one_communicator)
{
	struct shunt_comm *a[2] = { rank_on(0, 1), rank_on(0, 1) }, *b = rank_on(0, 2), *elsewhere = rank_on(1, 3);

	assert_true(shunt_shared_gpu_take(a[0]));
	assert_true(shunt_shared_gpu_take(a[1]));
	assert_true(shunt_shared_gpu_take(elsewhere));
	assert_false(shunt_shared_gpu_take(b));
	shunt_shared_gpu_release(b); /* has none */
	shunt_shared_gpu_release(a[0]);
	assert_false(shunt_shared_gpu_take(b)); /* a rank of the first one is still there */
	rank_free(a[1]);
	assert_true(shunt_shared_gpu_take(b));
	assert_false(shunt_shared_gpu_take(a[0]));
	rank_free(a[0]);
	rank_free(b);
	rank_free(elsewhere);
}

static void *take(void *rank)
{
	return shunt_shared_gpu_take(rank) ? rank : NULL;
}

TEST(test_shared_gpu_goes_to_one_of_many_threads)
{
	struct shunt_comm *rank[THREADS];
	pthread_t threads[THREADS];
	int taken = 0;

	for (int t = 0; t < THREADS; t++)
		rank[t] = rank_on(0, (unsigned char)(t + 1));
	for (int t = 0; t < THREADS; t++)
		assert_int_equal(pthread_create(&threads[t], NULL, take, rank[t]), 0);
	for (int t = 0; t < THREADS; t++) {
		void *got;

		pthread_join(threads[t], &got);
		taken += got != NULL;
	}
	assert_int_equal(taken, 1);
	for (int t = 0; t < THREADS; t++)
		rank_free(rank[t]);
}

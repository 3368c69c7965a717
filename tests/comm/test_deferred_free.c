/* SPDX-License-Identifier: MIT */
/* Which communicators live on a device, and who frees those that were aborted. */
#include "tests/support/test.h"
#include "comm/core/communicator.h"
#include "comm/core/deferred_free.h"

static struct shunt_comm *comm_on(int device)
{
	struct shunt_comm *comm = calloc(1, sizeof(*comm));

	assert_non_null(comm);
	comm->device = device;
	comm->mem[0].ptr = comm;
	shunt_registry_add(&comm->registration, comm, NULL);
	return comm;
}

static void comm_free(struct shunt_comm *comm)
{
	shunt_registry_remove(&comm->registration);
	free(comm);
}

TEST(test_deferred_free_alone_is_who_has_the_device_for_itself)
{
	struct shunt_comm *a = comm_on(0), *b = comm_on(0), *c = comm_on(1);

	assert_true(shunt_deferred_free_alone(a));
	shunt_deferred_free_enter(a);
	shunt_deferred_free_enter(c);
	assert_true(shunt_deferred_free_alone(a));
	assert_false(shunt_deferred_free_alone(b)); /* which is not there yet */
	shunt_deferred_free_enter(b);
	assert_false(shunt_deferred_free_alone(a));
	assert_false(shunt_deferred_free_alone(b));
	assert_true(shunt_deferred_free_alone(c));
	assert_true(shunt_deferred_free_leave(a));
	assert_true(shunt_deferred_free_alone(b));
	assert_true(shunt_deferred_free_leave(b));
	assert_true(shunt_deferred_free_leave(c));
	comm_free(a);
	comm_free(b);
	comm_free(c);
}

TEST(test_deferred_free_aborted_memory_waits_for_the_last_on_its_device)
{
	struct shunt_comm *a = comm_on(0), *b = comm_on(0);

	shunt_deferred_free_enter(a);
	shunt_deferred_free_enter(b);
	shunt_comm_life_abort(&a->life);
	assert_false(shunt_deferred_free_leave(a));
	shunt_deferred_free_push(a);
	assert_null(shunt_deferred_free_pop(0, false)); /* b lives */
	assert_null(shunt_deferred_free_pop(1, true));
	assert_ptr_equal(shunt_deferred_free_pop(0, true), a);
	shunt_deferred_free_push(a);
	assert_true(shunt_deferred_free_alone(b));
	assert_true(shunt_deferred_free_leave(b));
	assert_ptr_equal(shunt_deferred_free_pop(0, false), a);
	assert_null(shunt_deferred_free_pop(0, false));
	comm_free(a);
	comm_free(b);
}

TEST(test_deferred_free_memory_without_kernels_waits_too)
{
	struct shunt_comm *alone = comm_on(0), *other = comm_on(0), *bare = comm_on(0);

	shunt_deferred_free_enter(other);
	shunt_comm_life_abort(&alone->life);
	assert_false(shunt_deferred_free_leave(alone));
	shunt_deferred_free_push(alone);
	bare->mem[0].ptr = NULL;
	shunt_comm_life_abort(&bare->life);
	assert_true(shunt_deferred_free_leave(bare)); /* there is nothing to wait for */
	assert_true(shunt_deferred_free_leave(other));
	assert_ptr_equal(shunt_deferred_free_pop(0, false), alone);
	comm_free(alone);
	comm_free(other);
	comm_free(bare);
}

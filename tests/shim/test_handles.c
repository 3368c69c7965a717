/* SPDX-License-Identifier: MIT */
/*
 * The side table alone, with threads that look up while another one creates and destroys. Built with -fsanitize=thread
 * in CI.
 */
#include <malloc.h>
#include <sched.h>
#include <sys/socket.h>
#include "base/fd.h"
#include "shim/handles/handles.h"
#include "tests/support/child.h"
#include "tests/support/test.h"

struct shunt_comm {
	uint64_t alive;
};
static atomic_int alive;

/* What the table needs of the core. */
int shunt_comm_create(const struct shunt_comm_desc *desc, struct shunt_comm **comm_p)
{
	*comm_p = calloc(1, sizeof(**comm_p));
	(*comm_p)->alive = 1;
	alive++;
	return 0;
}

void shunt_comm_destroy(struct shunt_comm *comm)
{
	if (!comm)
		return;
	comm->alive = 0;
	alive--;
	free(comm);
}

static struct shunt_entry *new_entry(void)
{
	const struct shunt_comm_desc desc = { .rank = -1 };
	const struct shunt_comm_config config = { .blocking = true };

	return shunt_entry_create(&desc, &config, NULL);
}

static ncclComm_t handle(size_t i)
{
	return (ncclComm_t)(0x10000 + 64 * i);
}

TEST(test_handles_find_what_was_published)
{
	enum { N = 1000 };
	struct shunt_entry *e[N];

	assert_null(shunt_entry_get(handle(0)));
	assert_null(shunt_entry_get(NULL));
	for (size_t i = 0; i < N; i++) {
		e[i] = new_entry();
		assert_int_equal(shunt_entry_publish(e[i], handle(i)), 0);
	}
	for (size_t i = 0; i < N; i++) {
		struct shunt_entry *got = shunt_entry_get(handle(i));
		assert_ptr_equal(got, e[i]);
		shunt_entry_put(got);
	}
	for (size_t i = 0; i < N; i += 2) /* gaps must not hide what lies behind them */
		shunt_entry_put(shunt_entry_remove(handle(i)));
	for (size_t i = 0; i < N; i++) {
		struct shunt_entry *got = shunt_entry_get(handle(i));
		assert_true(i % 2 ? got == e[i] : !got);
		shunt_entry_put(got);
	}
	assert_int_equal(alive, N / 2);
	for (size_t i = 1; i < N; i += 2)
		shunt_entry_put(shunt_entry_remove(handle(i)));
	assert_int_equal(alive, 0);
	assert_null(shunt_entry_remove(handle(1)));
}

TEST(test_handles_same_address_again_replaces)
{
	struct shunt_entry *old = new_entry(), *fresh = new_entry(), *got;

	shunt_entry_publish(old, handle(7));
	shunt_entry_publish(fresh, handle(7));
	assert_int_equal(alive, 1);
	got = shunt_entry_get(handle(7));
	assert_ptr_equal(got, fresh);
	shunt_entry_put(got);
	shunt_entry_put(shunt_entry_remove(handle(7)));
	assert_int_equal(alive, 0);
}

TEST(test_handles_held_entry_outlives_remove)
{
	struct shunt_entry *kept_entry;

	shunt_entry_publish(new_entry(), handle(1));
	kept_entry = shunt_entry_get(handle(1));
	shunt_entry_put(shunt_entry_remove(handle(1)));
	assert_null(shunt_entry_get(handle(1)));
	assert_int_equal(kept_entry->comm->alive, 1);
	shunt_entry_put(kept_entry);
	assert_int_equal(alive, 0);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* mallinfo knows nothing there */
TEST(test_handles_many_cycles_need_no_more_memory)
{
	size_t before = 0;

	for (size_t i = 0; i < 20000; i++) {
		ncclComm_t h = handle((i * 7919) % 100003); /* other addresses all the time */
		shunt_entry_publish(new_entry(), h);
		shunt_entry_put(shunt_entry_remove(h));
		if (i == 100)
			before = mallinfo2().uordblks;
	}
	assert_true(mallinfo2().uordblks <= before + 4096);
}
#endif

enum { NHANDLES = 300, CYCLES = 3000 };
static atomic_bool stop;
static atomic_size_t found, lost;

/* Handles 0..9 are always there and must always be found, whatever moves around them. */
static void *reader(void *arg)
{
	for (size_t i = (uintptr_t)arg; !stop; i++) {
		struct shunt_entry *e = shunt_entry_get(handle(i % NHANDLES));
		if (e) {
			found++;
			if (e->comm->alive != 1)
				lost++;
			shunt_entry_put(e);
		} else if (i % NHANDLES < 10) {
			lost++;
		}
	}
	return NULL;
}

TEST(test_handles_readers_beside_a_writer)
{
	pthread_t threads[3];

	for (size_t i = 0; i < 10; i++)
		shunt_entry_publish(new_entry(), handle(i));
	for (size_t i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, reader, (void *)(i * 97));
	while (!found) /* they run */
		sched_yield();
	for (size_t c = 0; c < CYCLES; c++) {
		ncclComm_t h = handle(10 + (c * 31) % (NHANDLES - 10));
		struct shunt_entry *e = shunt_entry_remove(h);
		if (e)
			shunt_entry_put(e);
		else
			shunt_entry_publish(new_entry(), h);
	}
	stop = true;
	for (size_t i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_true(found > 0);
	assert_int_equal(lost, 0);
	for (size_t i = 0; i < NHANDLES; i++)
		shunt_entry_put(shunt_entry_remove(handle(i)));
	assert_int_equal(alive, 0);
}

static int parents_fd;

/* A child of a process in which another thread was at an entry, which a handler of the exit then ends. */
static int end_in_child(struct shunt_entry *e)
{
	/* The child's own, under the number that its parent's socket has. */
	int own = SHUNT_FD(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
	struct shunt_user_op op;

	alarm(60);
	if (own != parents_fd)
		return 3;
	if (shunt_entry_is_ours(e) || shunt_entry_list(NULL, 0) || shunt_entry_op_find(e, ncclNumOps, &op) ||
	    shunt_entry_count_set(e, 1))
		return 1;
	shunt_entry_put(shunt_entry_remove(handle(1)));
	return shunt_entry_get(handle(1)) || fcntl(own, F_GETFD) < 0 ? 2 : 0;
}

TEST(test_handles_of_the_parent_end_in_a_child_without_a_trace)
{
	const struct shunt_comm_desc desc = { .rank = -1 };
	const struct shunt_comm_config config = { .blocking = true };
	struct shunt_standalone_comm *scomm = shunt_standalone_comm_create();
	struct shunt_user_op op = { .op = ncclNumOps }, found;
	struct shunt_entry *e;
	int pair[2], status;
	pid_t child;
	char x;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	shunt_fd_note(pair[0]);
	scomm->grow_root.fd = parents_fd = pair[0];
	e = shunt_entry_create(&desc, &config, scomm);
	assert_int_equal(shunt_entry_publish(e, handle(1)), 0);
	assert_int_equal(shunt_entry_op_add(e, &op), 0);
	assert_int_equal(shunt_entry_count_set(e, 1), 0);
	shunt_mutex_lock(&e->lock);
	child = child_fork();
	if (!child) {
		int failed = end_in_child(e);

		/* What the child forgot is no leak: another program has no memory of this one. */
		if (!failed)
			execl("/bin/true", "true", (char *)NULL);
		_exit(failed ? failed : 3);
	}
	shunt_mutex_unlock(&e->lock);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(read(pair[1], &x, 1), -1);
	assert_int_equal(errno, EAGAIN);
	assert_true(shunt_entry_op_find(e, ncclNumOps, &found));
	assert_int_equal(shunt_entry_list(NULL, 0), 1);
	shunt_entry_put(shunt_entry_remove(handle(1)));
	assert_int_equal(read(pair[1], &x, 1), 0);
	close(pair[1]);
}

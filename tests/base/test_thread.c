/* SPDX-License-Identifier: MIT */
/* Threads of ours, and what tells a process from its children. */
#include "tests/support/child.h"
#include "tests/support/test.h"
#include "base/os.h"

static void *mask_tell(void *arg)
{
	pthread_sigmask(SIG_SETMASK, NULL, arg);
	return NULL;
}

TEST(test_thread_blocks_signals_and_leaves_its_makers)
{
	sigset_t before, after, theirs;
	pthread_t thread;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	assert_int_equal(shunt_thread_start(&thread, 0, mask_tell, &theirs), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (int s = 1; s < 32; s++) {
		assert_int_equal(sigismember(&after, s), sigismember(&before, s));
		assert_true(sigismember(&theirs, s) || s == SIGKILL || s == SIGSTOP);
	}
}

static void *word_write(void *arg)
{
	int one = 1;

	return (void *)write(*(int *)arg, &one, sizeof(one));
}

TEST(test_thread_that_nobody_joins_runs)
{
	int fds[2], word = 0;

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(shunt_thread_start(NULL, 64 << 10, word_write, &fds[1]), 0);
	assert_int_equal(read(fds[0], &word, sizeof(word)), sizeof(word));
	assert_int_equal(word, 1);
	close(fds[0]);
	close(fds[1]);
}

/* As some programs have them, and their libraries: on the stack of every thread. */
static _Thread_local volatile char large[300 << 10];

static void *stack_use(void *arg)
{
	volatile char room[100 << 10];

	for (size_t i = 0; i < sizeof(room); i += 1024)
		room[i] = 1;
	large[0] = room[0];
	*(char *)arg = large[0];
	return NULL;
}

TEST(test_thread_has_room_beside_large_thread_local_variables)
{
	pthread_t thread;
	char done = 0;

	assert_int_equal(shunt_thread_start(&thread, 128 << 10, stack_use, &done), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(done, 1);
}

TEST(test_process_is_not_taken_for_its_child)
{
	uint64_t ours = shunt_process_token();

	assert_true(ours == shunt_process_token());
	assert_int_equal(IN_CHILD(shunt_process_token() == ours), 0);
}

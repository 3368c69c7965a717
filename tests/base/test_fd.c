/* SPDX-License-Identifier: MIT */
/* A forked child closes its copies of what was noted, and nothing else. */
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include "base/fd.h"
#include "base/inet/socket.h"
#include "base/io.h"
#include "tests/support/child.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static int pair[2]; /* connected sockets */

static void make_pair(void)
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	shunt_fd_note(pair[0]);
}

/* arg: -1, or a descriptor that is not Shunt's. */
static int has_no_copies(void *arg)
{
	int other = *(int *)arg, again, stale;

	if (is_open(pair[0]) || !is_open(pair[1]) || (other >= 0 && !is_open(other)))
		return 1;
	/* The program opens something, which gets the number; what the parent had is closed late, as by an object's
	 * end. */
	again = dup(pair[1]);
	stale = pair[0];
	if (again != pair[0])
		return 2;
	shunt_close_fd(&stale);
	stale = pair[0];
	shunt_close_socket(&stale);
	stale = pair[0];
	shunt_io_close_all(&stale, 1);
	return is_open(again) ? 0 : 3;
}

TEST(test_a_child_has_no_copies)
{
	int none = -1;
	char x;

	make_pair();
	for (int i = 0; i < 2; i++)
		assert_int_equal(IN_CHILD(has_no_copies(&none)), 0);
	assert_true(is_open(pair[0]));
	/* Nor did it end the connection. */
	assert_int_equal(read(pair[1], &x, 1), -1);
	assert_int_equal(errno, EAGAIN);
	shunt_close_socket(&pair[0]);
	assert_int_equal(pair[0], -1);
	assert_int_equal(read(pair[1], &x, 1), 0);
	close(pair[1]);
}

/* A child of a child has the same notes as any process. */
TEST_OF(int, (void *arg), test_a_child_has_notes_of_its_own, IN_CHILD(body(NULL)))
{
	int fd, other;

	make_pair();
	fd = SHUNT_FD(eventfd(0, EFD_CLOEXEC));
	other = dup(fd);
	if (IN_CHILD(has_no_copies(&other)) || !is_open(fd))
		return 1;
	shunt_close_fd(&fd);
	return fd == -1 ? 0 : 2;
}

/* What the program opens after us under the same number is the program's. */
TEST(test_a_number_that_is_used_again_is_not_closed)
{
	int ours = SHUNT_FD(eventfd(0, EFD_CLOEXEC)), number = ours, theirs;

	make_pair();
	shunt_close_fd(&ours);
	theirs = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(theirs, number);
	assert_int_equal(IN_CHILD(has_no_copies(&theirs)), 0);
	shunt_fd_note(theirs);
	shunt_fd_forget(theirs); /* as before a library closes it */
	assert_int_equal(IN_CHILD(has_no_copies(&theirs)), 0);
	close(theirs);
	shunt_close_fd(&pair[0]);
	close(pair[1]);
}

TEST(test_errors_pass_through)
{
	int fd = SHUNT_FD(fcntl(-1, F_DUPFD_CLOEXEC, 0));

	assert_int_equal(fd, -1);
	assert_int_equal(errno, EBADF);
	shunt_close_fd(&fd);
	assert_int_equal(fd, -1);
}

TEST(test_what_is_closed_leaves_its_epoll_set)
{
	struct epoll_event event = { .events = EPOLLOUT }, told;
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC), copy;

	make_pair();
	copy = dup(pair[0]); /* as a child has it */
	assert_int_equal(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pair[0], &event), 0);
	assert_int_equal(epoll_wait(epoll_fd, &told, 1, 0), 1);
	shunt_close_watched(epoll_fd, &pair[0]);
	assert_int_equal(epoll_wait(epoll_fd, &told, 1, 0), 0);
	close(copy);
	close(pair[1]);
	close(epoll_fd);
}

/* ---- a fork while another thread makes a descriptor */

static struct {
	atomic_bool armed;
	sem_t forks, made;
	atomic_int fd;
	atomic_bool forked; /* before the descriptor is noted: the fork did not wait */
	pid_t main;
} race;

/* Before the library's own: the maker holds the lock now, and goes on when the fork waits for it. */
static void fork_begins(void)
{
	if (!atomic_exchange(&race.armed, false))
		return;
	sem_post(&race.forks);
	while (sem_wait(&race.made))
		;
}

static bool main_sleeps(void)
{
	char path[64], text[512] = "", *state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)race.main);
	f = fopen(path, "re");
	if (f && !fgets(text, sizeof(text), f))
		text[0] = '\0';
	if (f)
		fclose(f);
	state = strrchr(text, ')');
	return state && state[1] && state[2] == 'S';
}

static void *make_one(void *arg)
{
	int fd;

	shunt_fd_begin();
	atomic_store(&race.armed, true);
	while (sem_wait(&race.forks))
		;
	fd = eventfd(0, EFD_CLOEXEC);
	atomic_store(&race.fd, fd);
	sem_post(&race.made);
	while (!atomic_load(&race.forked) && !main_sleeps())
		pause_us(PAUSE_POLL, 1000);
	shunt_fd_end(fd);
	/* ThreadSanitizer would take a thread that ends before the fork for a leak of the child. */
	while (!atomic_load(&race.forked))
		pause_us(PAUSE_POLL, 1000);
	return NULL;
}

static int has_not_what_was_made(void *arg)
{
	return is_open(atomic_load(&race.fd));
}

TEST(test_a_fork_waits_for_who_makes_a_descriptor)
{
	pthread_t thread;
	pid_t child;
	int fd;

	race.main = getpid();
	sem_init(&race.forks, 0, 0);
	sem_init(&race.made, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, make_one, NULL), 0);
	while (!atomic_load(&race.armed))
		pause_us(PAUSE_POLL, 1000);
	child = child_fork();
	if (!child)
		_exit(has_not_what_was_made(NULL));
	atomic_store(&race.forked, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(child_wait(child), 0);
	fd = atomic_load(&race.fd);
	shunt_close_fd(&fd);
}

/* In a handler of a signal, a thread may hold the lock itself. */
TEST(test_a_thread_that_makes_a_descriptor_may_fork)
{
	pid_t child;

	alarm(60);
	shunt_fd_begin();
	child = child_fork();
	if (!child)
		_exit(0);
	shunt_fd_end(-1);
	assert_int_equal(child_wait(child), 0);
	alarm(0);
}

TESTS_BEGIN
{
	pthread_atfork(fork_begins, NULL, NULL);
}

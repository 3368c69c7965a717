/* SPDX-License-Identifier: MIT */
#include "tests/support/unit.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "tests/support/own.h"
#include "transport/rendezvous/bootstrap.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wire.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/inet/socket.h"
#include "base/log.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

struct world {
	uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES];
	int nranks;
	int says_rank[UNIT_MAX_RANKS], says_nranks[UNIT_MAX_RANKS];
	int delay_ms[UNIT_MAX_RANKS];
	bool comes_after_0[UNIT_MAX_RANKS];
	atomic_int out[UNIT_MAX_RANKS]; /* 1: has come back */
	atomic_int cancel[UNIT_MAX_RANKS];
	char text[UNIT_MAX_RANKS][256]; /* last error of each */
};

static struct shunt_hosts *hosts; /* of the last join: NULL, as all ranks are here */

static int errs[UNIT_MAX_RANKS]; /* what the ranks of a run returned */

static struct world *world_create(int nranks)
{
	struct world *w = unit_shared(sizeof(*w));

	w->nranks = nranks;
	for (int r = 0; r < UNIT_MAX_RANKS; r++) {
		w->says_rank[r] = r;
		w->says_nranks[r] = nranks;
	}
	assert_int_equal(shunt_bootstrap_new_id(w->id), 0);
	return w;
}

static int rank_body(int rank, void *arg)
{
	struct world *w = arg;
	struct shunt_hosts *rank_hosts;
	int err;

	pause_us(PAUSE_LATE, (unsigned)w->delay_ms[rank] * 1000);
	if (w->comes_after_0[rank] && !until_counted(&w->out[0], 1, "joins of rank 0 are over"))
		return -ETIME;
	err =
	    shunt_bootstrap_join(w->id, w->says_rank[rank], w->says_nranks[rank], &w->cancel[rank], &rank_hosts, NULL);
	atomic_store(&w->out[rank], 1);
	snprintf(w->text[rank], sizeof(w->text[rank]), "%.255s", shunt_last_error());
	return err;
}

static void expect_all(const int *errs, int n, int err)
{
	for (int r = 0; r < n; r++)
		assert_int_equal(errs[r], err);
}

/* A plain connection to the root of an id, as a stranger would make it. */
static int connect_to_root(const struct world *w)
{
	struct rdzv_unique_id id;
	struct sockaddr_in sin = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	memcpy(&id, w->id, sizeof(id));
	assert_int_equal(id.family, 4);
	sin.sin_port = id.port;
	memcpy(&sin.sin_addr, id.addr, 4);
	assert_int_equal(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	return fd;
}

/* These first: their processes start a root, which ThreadSanitizer forbids after a fork beside other threads. */

/* Rank 0's process made the id and ends as soon as its join has returned: the others must have had their answer. */
static int ending_body(int rank, void *arg)
{
	int *pipe_fds = arg;
	struct world w = { .nranks = 4 };

	for (int r = 0; r < 4; r++) {
		w.says_rank[r] = r;
		w.says_nranks[r] = 4;
	}
	if (rank == 0) {
		if (shunt_bootstrap_new_id(w.id))
			return -EIO;
		for (int r = 1; r < 4; r++)
			if (write(pipe_fds[1], w.id, sizeof(w.id)) != sizeof(w.id))
				return -EIO;
	} else if (read(pipe_fds[0], w.id, sizeof(w.id)) != sizeof(w.id)) {
		return -EIO;
	}
	return rank_body(rank, &w);
}

TEST(test_bootstrap_root_process_that_ends_early_has_served_all)
{
	for (int i = 0; i < 10; i++) {
		int fds[2], errs[UNIT_MAX_RANKS];

		assert_int_equal(pipe(fds), 0);
		unit_run_processes(4, ending_body, fds, errs);
		expect_all(errs, 4, 0);
		close(fds[0]);
		close(fds[1]);
	}
}

/* Every process makes the id itself; rank 0 comes last. */
static int comm_id_body(int rank, void *arg)
{
	struct world *w = arg, mine = *w;
	int err = shunt_bootstrap_new_id(mine.id);

	if (err)
		return err;
	for (int i = 0; i < 2 && !err; i++) { /* and again: the variable is the only id there is */
		if (rank == 0)
			pause_us(PAUSE_LATE, 200000);
		err = shunt_bootstrap_join(mine.id, rank, w->nranks, NULL, &hosts, NULL);
	}
	return err;
}

TEST(test_bootstrap_comm_id_serves_on_rank_0)
{
	struct world w = { .nranks = 3 };

	assert_true(own_comm_id());
	unit_run_processes(3, comm_id_body, &w, errs);
	expect_all(errs, 3, 0);
	setenv("NCCL_COMM_ID", "127.0.0.1", 1);
	assert_int_equal(shunt_bootstrap_new_id(w.id), -EINVAL);
	unsetenv("NCCL_COMM_ID");
}

static int self_connects;     /* so many of this process's next connections, but for the last one */
static int self_connected[2]; /* a pipe, which says that the last one begins, and the others are closed */

/*
 * The kernel takes any free port for this end, the one that is connected to as well. Then the two SYNs of one socket
 * cross, and it is connected to itself. Here that does not take chance.
 */
int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	if (self_connects && addr->sa_family == AF_INET) {
		if (--self_connects ? bind(fd, addr, len) : write(self_connected[1], "", 1) != 1)
			return -1;
	}
	return (int)syscall(SYS_connect, fd, addr, len);
}

static int self_connect_body(int rank, void *arg)
{
	uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES];
	int err = shunt_bootstrap_new_id(id);
	char byte;

	if (rank)
		self_connects = 3;
	else if (read(self_connected[0], &byte, 1) != 1)
		return -EIO;
	if (!err)
		err = shunt_bootstrap_join(id, rank, 2, NULL, &hosts, NULL);
	return err ? err : -self_connects;
}

TEST(test_bootstrap_comm_id_waits_on_after_self_connect)
{
	int64_t start = unit_now_ms();

	assert_true(own_comm_id());
	assert_int_equal(pipe(self_connected), 0);
	unit_run_processes(2, self_connect_body, NULL, errs);
	unsetenv("NCCL_COMM_ID");
	close(self_connected[0]);
	close(self_connected[1]);
	expect_all(errs, 2, 0);
	assert_true(unit_now_ms() - start < AT_ONCE_MS);
}

TEST(test_bootstrap_all_ranks_join)
{
	for (int n = 1; n <= 8; n++) {
		for (int processes = 0; processes < 2; processes++) {
			struct world *w = world_create(n);

			w->delay_ms[n / 2] = 50;
			(processes ? unit_run_processes : unit_run_threads)(n, rank_body, w, errs);
			expect_all(errs, n, 0);
		}
	}
}

TEST(test_bootstrap_ids_are_distinct)
{
	struct world *a = world_create(1), *b = world_create(1);

	assert_int_not_equal(memcmp(a->id + 32, b->id + 32, 32), 0);
	assert_int_equal(rank_body(0, b), 0);
	assert_int_equal(rank_body(0, a), 0);
}

TEST(test_bootstrap_different_nranks_is_einval_on_all)
{
	for (int processes = 0; processes < 2; processes++) {
		struct world *w = world_create(4);

		w->says_nranks[2] = 5;
		w->delay_ms[2] = 100;
		w->comes_after_0[3] = true; /* late for the failure */
		(processes ? unit_run_processes : unit_run_threads)(4, rank_body, w, errs);
		expect_all(errs, 4, -EINVAL);
		if (processes)
			for (int r = 0; r < 4; r++)
				assert_true(strstr(w->text[r], "rank 2 says that there are 5 ranks") ||
				    strstr(w->text[r], "rank 2 says 5")); /* it came first after all */
	}
}

TEST(test_bootstrap_rank_twice_is_eexist_on_all)
{
	struct world *w = world_create(3);

	w->says_rank[2] = 1;
	unit_run_processes(3, rank_body, w, errs);
	expect_all(errs, 3, -EEXIST);
	assert_non_null(strstr(w->text[0], "joined as rank 1"));
}

TEST(test_bootstrap_bad_arguments_are_einval)
{
	struct world *w = world_create(2);
	uint8_t not_an_id[SHUNT_BOOTSTRAP_ID_BYTES] = { 1, 2, 3 };

	assert_int_equal(shunt_bootstrap_join(w->id, 2, 2, NULL, &hosts, NULL), -EINVAL);
	assert_int_equal(shunt_bootstrap_join(w->id, -1, 2, NULL, &hosts, NULL), -EINVAL);
	assert_int_equal(shunt_bootstrap_join(w->id, 0, 0, NULL, &hosts, NULL), -EINVAL);
	assert_int_equal(shunt_bootstrap_join(w->id, 0, SHUNT_BOOTSTRAP_MAX_RANKS + 1, NULL, &hosts, NULL), -EINVAL);
	assert_int_equal(shunt_bootstrap_join(not_an_id, 0, 1, NULL, &hosts, NULL), -EINVAL);
}

TEST(test_bootstrap_second_use_is_eexist)
{
	struct world *w = world_create(2);

	unit_run_threads(2, rank_body, w, errs);
	expect_all(errs, 2, 0);
	unit_run_threads(2, rank_body, w, errs);
	expect_all(errs, 2, -EEXIST);
	unit_run_processes(2, rank_body, w, errs);
	expect_all(errs, 2, -EEXIST);
	assert_non_null(strstr(w->text[0], "used already"));
}

TEST(test_bootstrap_wrong_secret_is_refused_without_harm)
{
	struct world *w = world_create(2), *thief = world_create(1);
	int err;

	/* Right address, wrong secret. */
	memcpy(thief->id, w->id, sizeof(w->id));
	thief->id[offsetof(struct rdzv_unique_id, secret) + 5] ^= 1;
	memcpy(thief->id + offsetof(struct rdzv_unique_id, host), (uint8_t[SHUNT_HOST_BYTES]){ 0 }, SHUNT_HOST_BYTES);
	err = rank_body(0, thief);
	assert_int_equal(err, -EOWNERDEAD);
	unit_run_threads(2, rank_body, w, errs);
	expect_all(errs, 2, 0);
}

TEST(test_bootstrap_root_of_another_host_that_is_gone_is_eexist)
{
	struct world *w = world_create(1);
	struct rdzv_unique_id id;

	assert_int_equal(rank_body(0, w), 0); /* from now on nobody answers */
	memcpy(&id, w->id, sizeof(id));
	id.host[0] ^= 1;
	memcpy(w->id, &id, sizeof(id));
	assert_int_equal(rank_body(0, w), -EEXIST);
	assert_non_null(strstr(shunt_last_error(), "cannot reach the host where the unique id was made"));
}

static struct rdzv_hello hello_of_rank_1(void)
{
	return (struct rdzv_hello){ .head = rdzv_head(RDZV_HELLO),
		.member = 1,
		.nmembers = 2,
		.rank = 1,
		.nranks = 2,
		.shunt = SHUNT_VERSION };
}

/* What a rank with other contents than ours would say, correctly signed. */
static void say_hello(const struct world *w, int fd, struct rdzv_hello *hello)
{
	struct rdzv_challenge challenge;
	struct rdzv_unique_id id;
	struct rdzv_key key;

	memcpy(&id, w->id, sizeof(id));
	assert_int_equal(recv(fd, &challenge, sizeof(challenge), MSG_WAITALL), sizeof(challenge));
	key = rdzv_key(id.secret, sizeof(id.secret));
	rdzv_hello_sign(hello, &key, challenge.nonce);
	assert_int_equal(send(fd, hello, sizeof(*hello), MSG_NOSIGNAL), sizeof(*hello));
}

TEST(test_bootstrap_other_version_fails_on_all)
{
	for (int i = 0; i < 2; i++) {
		struct world *w = world_create(2);
		struct rdzv_hello hello = hello_of_rank_1();
		struct rdzv_answer answer;
		struct rdzv_unique_id id;
		int fd = connect_to_root(w);

		memcpy(&id, w->id, sizeof(id));
		shunt_host_id(hello.host, id.secret, sizeof(id.secret));
		if (i == 0)
			hello.head.version++;
		else
			strcpy(hello.shunt, "99.0");
		say_hello(w, fd, &hello);
		assert_int_equal(recv(fd, &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
		assert_int_equal(answer.head.kind, RDZV_DONE);
		assert_int_equal(answer.status, -EPROTO);
		assert_int_equal(rank_body(0, w), -EPROTO);
		close(fd);
	}
}

TEST(test_bootstrap_replayed_hello_is_refused)
{
	struct world *w = world_create(2);
	struct rdzv_hello hello = hello_of_rank_1();
	struct rdzv_challenge challenge;
	int fd = connect_to_root(w), again = connect_to_root(w), errs[UNIT_MAX_RANKS];
	struct rdzv_unique_id id;
	struct rdzv_key key;
	char byte;

	memcpy(&id, w->id, sizeof(id));
	assert_int_equal(recv(again, &challenge, sizeof(challenge), MSG_WAITALL), sizeof(challenge));
	shunt_host_id(hello.host, id.secret, sizeof(id.secret));
	/* Signed for the nonce of another connection. */
	assert_int_equal(recv(fd, &challenge, sizeof(challenge), MSG_WAITALL), sizeof(challenge));
	key = rdzv_key(id.secret, sizeof(id.secret));
	rdzv_hello_sign(&hello, &key, challenge.nonce);
	assert_int_equal(send(again, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
	assert_true(recv(again, &byte, 1, 0) <= 0);
	close(fd);
	close(again);
	unit_run_threads(2, rank_body, w, errs);
	expect_all(errs, 2, 0);
}

/* A rank whose connection broke behind its hello calls again, which the root may not have noticed. */
TEST(test_bootstrap_second_call_takes_the_place_of_the_first)
{
	for (uint32_t other = 0; other < 2; other++) {
		struct world *w = world_create(2);
		struct rdzv_hello hello = hello_of_rank_1();
		struct rdzv_answer answer = { .status = 1 };
		struct rdzv_unique_id id;
		int fd[2], err;
		char byte;

		memcpy(&id, w->id, sizeof(id));
		shunt_host_id(hello.host, id.secret, sizeof(id.secret));
		for (uint32_t i = 0; i < 2; i++) {
			hello.caller = 4711 + i * other;
			fd[i] = connect_to_root(w);
			say_hello(w, fd[i], &hello);
		}
		err = rank_body(0, w);
		assert_int_equal(recv(fd[1], &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
		assert_int_equal(answer.head.kind, RDZV_DONE);
		assert_int_equal(err, other ? -EEXIST : 0);
		assert_int_equal(answer.status, err);
		if (!other)
			assert_true(recv(fd[0], &byte, 1, 0) <= 0);
		close(fd[0]);
		close(fd[1]);
	}
}

TEST(test_bootstrap_strangers_do_not_disturb)
{
	struct world *w = world_create(4);
	char rubbish[4096] = "GET / HTTP/1.1\r\n\r\n";
	int fds[60], errs[UNIT_MAX_RANKS];
	int64_t start = unit_now_ms();

	for (int i = 0; i < 60; i++) {
		fds[i] = connect_to_root(w);
		if (i % 3 == 0) /* rubbish */
			(void)!send(fds[i], rubbish, sizeof(rubbish), MSG_NOSIGNAL);
		else if (i % 3 == 1) /* a few bytes, then silence */
			(void)!send(fds[i], rubbish, 3, MSG_NOSIGNAL);
		if (i % 7 == 0)
			shutdown(fds[i], SHUT_WR);
	}
	for (int i = 0; i < 20; i++)
		close(connect_to_root(w));
	unit_run_threads(4, rank_body, w, errs);
	expect_all(errs, 4, 0);
	assert_true(unit_now_ms() - start < AT_ONCE_MS);
	for (int i = 0; i < 60; i++)
		close(fds[i]);
}

/* More half-open connections than the root has places for: the oldest of them make room for the ranks. */
TEST(test_bootstrap_many_silent_peers_only_delay)
{
	enum { SILENT = RDZV_LOBBY_PLACES + 44 };
	struct world *w = world_create(2);
	int fds[SILENT], errs[UNIT_MAX_RANKS];
	int64_t start = unit_now_ms();

	for (int i = 0; i < SILENT; i++)
		fds[i] = connect_to_root(w);
	unit_run_threads(2, rank_body, w, errs);
	expect_all(errs, 2, 0);
	assert_true(unit_now_ms() - start < AT_ONCE_MS);
	for (int i = 0; i < SILENT; i++)
		close(fds[i]);
}

static int connect_to_lobby(const struct shunt_netaddr *addr)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(connect(fd, (const struct sockaddr *)&addr->ss, addr->len), 0);
	return fd;
}

static void expect_said(int fd, enum rdzv_kind kind)
{
	struct rdzv_challenge challenge;
	size_t bytes = kind == RDZV_BUSY ? sizeof(challenge.head) : sizeof(challenge);

	assert_int_equal(recv(fd, &challenge, bytes, MSG_WAITALL), bytes);
	assert_true(rdzv_head_is(&challenge.head, kind));
}

/* The oldest connections make room at once, one for each that comes: nobody waits for a time to be over. */
TEST(test_bootstrap_oldest_stranger_makes_room_at_once)
{
	enum { MORE = 3 };
	struct rdzv_lobby lobby = { .kind = &shunt_socket_tcp, .listen_fd = -1, .event_fd = -1 };
	int fds[RDZV_LOBBY_PLACES + MORE];
	struct shunt_netaddr addr;
	char byte;

	assert_int_equal(shunt_netif_select(&(struct shunt_netif_rules){ "lo", "AF_INET", NULL }, &addr), 0);
	assert_int_equal(shunt_socket_listen(lobby.kind, &addr, &lobby.listen_fd), 0);
	for (int i = 0; i < RDZV_LOBBY_PLACES + MORE; i++) {
		fds[i] = connect_to_lobby(&addr);
		while (lobby.turns <= (uint64_t)i) /* the connection may come to our side a little later */
			assert_int_equal(rdzv_lobby_accept(&lobby), 0);
		expect_said(fds[i], RDZV_CHALLENGE);
	}
	assert_int_equal(lobby.nconns, RDZV_LOBBY_PLACES);
	for (int i = 0; i < RDZV_LOBBY_PLACES + MORE; i++) {
		if (i < MORE)
			expect_said(fds[i], RDZV_BUSY);
		else
			assert_int_equal(recv(fds[i], &byte, 1, MSG_DONTWAIT), -1);
		close(fds[i]);
	}
	rdzv_lobby_finish(&lobby);
}

enum { CROWD = 3000 };

/* Keeps a crowd of silent connections, and makes a new one for each that is closed. */
static void crowd_main(const struct world *w, atomic_int *is_complete)
{
	static struct pollfd fds[CROWD];
	struct rdzv_unique_id id;
	struct sockaddr_in sin = { .sin_family = AF_INET };
	int n = 0;

	memcpy(&id, w->id, sizeof(id));
	sin.sin_port = id.port;
	memcpy(&sin.sin_addr, id.addr, 4);
	for (int i = 0; i < CROWD; i++)
		fds[i].fd = -1;
	for (;;) {
		for (int i = 0; i < CROWD; i++) {
			if (fds[i].fd >= 0 && !(fds[i].revents & (POLLRDHUP | POLLERR | POLLHUP)))
				continue;
			if (fds[i].fd >= 0)
				close(fds[i].fd);
			fds[i] = (struct pollfd){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0),
				.events = POLLRDHUP };
			if (fds[i].fd >= 0)
				(void)syscall(SYS_connect, fds[i].fd, &sin, sizeof(sin));
			atomic_store(is_complete, ++n >= CROWD);
		}
		poll(fds, CROWD, 5);
	}
}

/*
 * Strangers who call again and again, ten times as many as there are places: the oldest goes, so each of them has a
 * moment only, and the ranks call until they get through.
 */
TEST(test_bootstrap_crowd_that_comes_again_only_delays)
{
	struct rlimit files;
	atomic_int *is_complete = unit_shared(sizeof(*is_complete));
	struct world *w = world_create(2);
	pid_t pid;

	getrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_max < CROWD + 64) {
		print_message(
		    "the limit of open files is %lu, this test needs %d\n", (unsigned long)files.rlim_max, CROWD + 64);
		skip();
	}
	pid = child_fork();
	if (pid == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
		crowd_main(w, is_complete);
	}
	while (!atomic_load(is_complete))
		pause_us(PAUSE_POLL, 5000);
	unit_run_threads(2, rank_body, w, errs);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	expect_all(errs, 2, 0);
}

struct loris {
	int fd;
	atomic_int stop;
};

static void *loris_main(void *arg)
{
	struct loris *l = arg;

	while (!atomic_load(&l->stop)) {
		(void)!send(l->fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		pause_us(PAUSE_POLL, 150000);
	}
	return NULL;
}

TEST(test_bootstrap_slow_loris_is_dropped)
{
	struct world *w = world_create(2);
	struct loris l = { .fd = connect_to_root(w) };
	pthread_t thread;
	struct timeval recv_timeout = { AT_ONCE_MS / 1000, 0 };
	char buf[256];
	ssize_t n;

	assert_int_equal(pthread_create(&thread, NULL, loris_main, &l), 0);
	/* It never completes a hello within the root's ten seconds; a silent one alike. */
	setsockopt(l.fd, SOL_SOCKET, SO_RCVTIMEO, &recv_timeout, sizeof(recv_timeout));
	while ((n = recv(l.fd, buf, sizeof(buf), 0)) > 0)
		;
	assert_false(n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)); /* hung up on, not timed out */
	unit_run_threads(2, rank_body, w, errs);
	expect_all(errs, 2, 0);
	atomic_store(&l.stop, 1);
	pthread_join(thread, NULL);
	close(l.fd);
}

static int dying_body(int rank, void *arg)
{
	struct world *w = arg;

	if (rank == 1) {
		/* Joins as a thread of a process that is killed. */
		alarm(1);
		signal(SIGALRM, SIG_DFL);
		return rank_body(rank, w);
	}
	return rank_body(rank, w);
}

TEST(test_bootstrap_dead_rank_is_eownerdead_on_the_others)
{
	struct world *w = world_create(4);
	int64_t start = unit_now_ms();

	w->comes_after_0[3] = true; /* comes when it is all over */
	unit_run_processes(4, dying_body, w, errs);
	for (int r = 0; r < 4; r++)
		assert_int_equal(errs[r], r == 1 ? -1000 - SIGALRM : -EOWNERDEAD);
	assert_non_null(strstr(w->text[3], "rank 1 died"));
	assert_true(unit_now_ms() - start < AT_ONCE_MS);
}

static void *cancel_later(void *arg)
{
	bool waits = until_all_threads_wait();

	atomic_store((atomic_int *)arg, 1);
	return waits ? NULL : arg;
}

TEST(test_bootstrap_cancel_returns_and_tells_the_others)
{
	struct world *w = world_create(3);
	void *missed;
	pthread_t thread;
	int64_t start = unit_now_ms();

	w->comes_after_0[2] = true;
	assert_int_equal(pthread_create(&thread, NULL, cancel_later, &w->cancel[0]), 0);
	unit_run_threads(3, rank_body, w, errs);
	pthread_join(thread, &missed);
	assert_null(missed);
	assert_int_equal(errs[0], -ECANCELED);
	assert_int_equal(errs[1], -EOWNERDEAD);
	assert_int_equal(errs[2], -EOWNERDEAD);
	assert_true(unit_now_ms() - start < AT_ONCE_MS);
}

TEST(test_bootstrap_something_else_at_the_address_is_eproto)
{
	struct world *w = world_create(1);
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM, 0), peer;
	char hello[] = "220 mail.example.org ESMTP ready, and quite a few more words";
	struct rdzv_unique_id id;

	assert_int_equal(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	assert_int_equal(listen(fd, 4), 0);
	getsockname(fd, (struct sockaddr *)&sin, &len);
	memcpy(&id, w->id, sizeof(id));
	id.port = sin.sin_port;
	memcpy(id.addr, &sin.sin_addr, 4);
	memcpy(w->id, &id, sizeof(id));
	pid_t pid = child_fork();
	if (pid == 0) {
		peer = accept(fd, NULL, NULL);
		(void)!write(peer, hello, sizeof(hello));
		for (;;)
			pause();
	}
	assert_int_equal(rank_body(0, w), -EPROTO);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(fd);
}

TEST(test_bootstrap_interface_variable_chooses_the_address)
{
	struct rdzv_unique_id id;
	uint8_t bytes[SHUNT_BOOTSTRAP_ID_BYTES];

	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	assert_int_equal(shunt_bootstrap_new_id(bytes), 0);
	memcpy(&id, bytes, sizeof(id));
	assert_int_equal(id.family, 4);
	assert_int_equal(id.addr[0], 127);
	assert_int_equal(shunt_bootstrap_join(bytes, 0, 1, NULL, &hosts, NULL), 0);
	setenv("NCCL_SOCKET_IFNAME", "=nothing_like_it", 1);
	assert_int_equal(shunt_bootstrap_new_id(bytes), -EADDRNOTAVAIL);
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	unsetenv("NCCL_SOCKET_FAMILY");
}

TESTS_BEGIN
{
	own_environment();
	/* An IPv4 address, which the strangers of these tests can reach. */
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	setenv("SHUNT_SETUP_TIMEOUT", "2m", 1);
}

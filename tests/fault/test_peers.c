/* SPDX-License-Identifier: MIT */
/*
 * Others at our sockets: strangers of every kind while ranks make a communicator and use it; processes of another user;
 * a member that lies. And what a killed job leaves behind.
 */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "transport/rendezvous/wire/wire.h"
#include "comm/core/communicator.h"
#include "base/dump_address.h"
#include "base/os.h"
#include "tests/fault/job.h"
#include "tests/support/child.h"
#include "tests/support/clock.h"
#include "tests/support/rendezvous_name.h"
#include "transport/rendezvous/rendezvous.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

enum { RANKS = 3, HELD = 90, DEADLINE_S = 60 };

/* For jobs that are to do well, however busy the machine is; the others end by the short ones, if nothing else ends
 * them. */
static void long_limits(void)
{
	lifecycle_environment("120s", "60s");
}

static void short_limits(void)
{
	lifecycle_environment("3s", "3s");
}

static int call_tcp(const ncclUniqueId *id)
{
	struct rdzv_unique_id bootstrap;
	struct sockaddr_in addr = { .sin_family = AF_INET };
	int fd;

	memcpy(&bootstrap, id, sizeof(bootstrap));
	addr.sin_port = bootstrap.port;
	memcpy(&addr.sin_addr, bootstrap.addr, 4);
	if (bootstrap.family != 4)
		return -1;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) && errno != EINPROGRESS) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* The socket by which this process's dump is asked for. */
static int call_doctor(void)
{
	struct sockaddr_un address;
	socklen_t bytes = shunt_dump_address(&address, geteuid(), shunt_dump_namespace("self"), getpid());
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, bytes)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

enum attack { GARBAGE, SILENT, DRIP, FLOOD, DESCRIPTORS, HANG_UP, ATTACKS };
static const char *const attack_names[] = { "garbage", "silent", "drip", "flood", "descriptors", "hang up" };

struct attacker {
	ncclUniqueId id;
	enum attack attack;
	atomic_int stop;
	atomic_long calls;
};

static void send_descriptors(int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(8 * sizeof(int))];
	} control = { 0 };
	char text[200] = "descriptors for you";
	struct iovec iov = { text, sizeof(text) };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	int fds[8] = { 0, 1, 2, 0, 1, 2, 0, 1 };

	*CMSG_FIRSTHDR(&m) =
	    (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(fds)) };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, sizeof(fds));
	sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *attacker_main(void *arg)
{
	static _Thread_local char junk[65536];
	struct attacker *a = arg;
	struct shunt_id id = shunt_id_derive(a->id.internal, sizeof(a->id.internal), "init", 0, 0);
	int held[HELD], n = 0, most = a->attack == SILENT ? HELD : 12;
	unsigned seed = 5;

	for (size_t i = 0; i < sizeof(junk); i++)
		junk[i] = (char)rand_r(&seed);
	for (int turn = 0; !atomic_load(&a->stop); turn++) {
		int fd = turn % 3 == 0 ? call_doctor() :
		    turn % 3 == 1      ? call_tcp(&a->id) :
		                         rendezvous_call(&id, turn / 3 % RANKS);

		if (fd >= 0) {
			a->calls++;
			if (a->attack == GARBAGE)
				send(fd, junk, 300, MSG_NOSIGNAL | MSG_DONTWAIT);
			else if (a->attack == FLOOD)
				for (int i = 0; i < 64 && send(fd, junk, sizeof(junk), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
				    i++)
					;
			else if (a->attack == DESCRIPTORS)
				send_descriptors(fd);
			if (a->attack == HANG_UP || n == most)
				close(fd);
			else
				held[n++] = fd;
		}
		for (int i = 0; a->attack == DRIP && i < n; i++)
			send(held[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		pause_us(PAUSE_POLL, n < most ? 500 : 20000);
	}
	while (n)
		close(held[--n]);
	return NULL;
}

/* All ranks live under attack from a thread of rank 0, which is of the same user. */
static enum lifecycle_result under_attack(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	struct attacker a = { .id = l->id, .attack = (enum attack)c->at };
	enum { CROWD = 5 };
	atomic_int *crowd = &at->waiting; /* is there first */
	enum lifecycle_result end;
	pthread_t thread;

	if (l->rank == 0 && pthread_create(&thread, NULL, attacker_main, &a))
		return LIFECYCLE_WRONG;
	while (l->rank == 0 && atomic_load(&a.calls) < CROWD)
		pause_us(PAUSE_POLL, 500);
	if (l->rank == 0)
		atomic_store(crowd, CROWD);
	else if (!until_counted(crowd, CROWD, "strangers have called"))
		return LIFECYCLE_WRONG;
	end = lifecycle_run(l);
	if (l->rank == 0) {
		atomic_store(&a.stop, 1);
		pthread_join(thread, NULL);
		if (!until_dump_has(getpid(), "communicators"))
			return LIFECYCLE_WRONG;
	}
	return end;
}

TEST(test_peers_strangers_do_not_disturb_a_lifecycle)
{
	long_limits();
	for (int attack = 0; attack < ATTACKS; attack++) {
		struct job c = { .n = RANKS, .victim = -1, .full = 1, .at = attack, .body = under_attack };
		const char *reason = job_run(&c);

		for (int r = 0; r < RANKS; r++)
			if (reason || c.rank[r].end != LIFECYCLE_OK)
				fail_msg("%s: %s, rank %d ends with %d, error %d in step %d, after %.1f s",
				    attack_names[attack], reason ? reason : "", r, (int)c.rank[r].end,
				    (int)c.rank[r].error, c.rank[r].step, c.rank[r].seconds);
	}
	short_limits();
}

struct joiner {
	struct shunt_rendezvous *rdzv;
	int rank, err;
};

static void *joiner_main(void *arg)
{
	struct joiner *j = arg;

	j->err = shunt_rendezvous_join(j->rdzv, 2, j->rank, 2, NULL, NULL);
	return NULL;
}

TEST(test_peers_of_another_user_get_not_even_a_challenge)
{
	struct shunt_id id = { { 0 } };
	struct joiner j[2];
	pthread_t thread[2];
	int called[2], status;
	pid_t pid, parent = getpid();

	if (geteuid())
		skip(); /* to become another user */
	assert_int_equal(pipe(called), 0);
	assert_int_equal(shunt_random(&id, sizeof(id)), 0);
	for (int r = 0; r < 2; r++) {
		j[r].rank = r;
		assert_int_equal(shunt_rendezvous_bind(&id, r, &j[r].rdzv), 0);
	}
	pid = child_fork();
	if (!pid) {
		char buf[64];
		ssize_t n;
		int fd;

		if (setresuid(65534, 65534, 65534))
			_exit(2);
		child_end_with(parent);
		fd = rendezvous_call(&id, 0);
		if (write(called[1], "x", 1) != 1)
			_exit(6);
		for (double end = now() + DEADLINE_S;
		    fd >= 0 && (n = recv(fd, buf, sizeof(buf), 0)) < 0 && errno == EAGAIN && now() < end;)
			pause_us(PAUSE_POLL, 1000);
		_exit(fd < 0 ? 3 : n > 0 ? 4 : n < 0 && errno == EAGAIN ? 5 : 0);
	}
	close(called[1]);
	(void)!read(
	    called[0], &status, 1); /* it waits in the backlog, before all others; or it died, and says so below */
	close(called[0]);
	for (int r = 0; r < 2; r++)
		assert_int_equal(pthread_create(&thread[r], NULL, joiner_main, &j[r]), 0);
	for (int r = 0; r < 2; r++) {
		pthread_join(thread[r], NULL);
		assert_int_equal(j[r].err, 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	for (int r = 0; r < 2; r++)
		shunt_rendezvous_destroy(j[r].rdzv);
}

/* A process with two ranks of a communicator that has not been used. It says over said[1] that they are there. */
static int unused_ranks(const struct shunt_id *id, const int *said, const int *go)
{
	struct shunt_comm *comm[2];
	int err;
	char byte;

	long_limits();
	for (int r = 0; r < 2; r++) {
		struct shunt_comm_desc desc = { .id = *id,
			.member = r,
			.nmembers = 2,
			.rank = r,
			.nranks = 2,
			.device = r,
			.takes_all = true,
			.joined = true };

		if (shunt_comm_create(&desc, &comm[r]))
			return 2;
	}
	if (write(said[1], "x", 1) != 1 || read(go[0], &byte, 1) != 1)
		return 3;
	if (shunt_comm_memory(comm[0]) || shunt_comm_memory(comm[1]))
		return 4;
	/* One rank alone wants a set-up: the other one comes to it because a member has called. */
	shunt_mutex_lock(&comm[1]->lock);
	err = shunt_comm_setup_locked(comm[1]);
	shunt_mutex_unlock(&comm[1]->lock);
	for (double end = now() + DEADLINE_S; !err && !shunt_comm_memory(comm[0]) && now() < end;)
		pause_us(PAUSE_POLL, 1000);
	if (err || !shunt_comm_memory(comm[0]) || !shunt_comm_memory(comm[1]))
		return 5;
	for (int r = 0; r < 2; r++)
		shunt_comm_destroy(comm[r]);
	return 0;
}

/* How many bytes we are told before the connection is closed or, with `most`, before they have come. */
static long told(int fd, size_t most)
{
	char buf[256];
	size_t got = 0;

	for (double end = now() + DEADLINE_S; now() < end; pause_us(PAUSE_POLL, 1000)) {
		ssize_t n = recv(fd, buf, sizeof(buf), 0);

		if (n == 0 || (n < 0 && errno != EAGAIN))
			return (long)got;
		got += n > 0 ? (size_t)n : 0;
		if (most && got >= most)
			return (long)got;
	}
	return -1;
}

/* Connections to both ranks: of another user, which are closed without a word, or ours, which get a challenge. */
static int call_unused_ranks(const struct shunt_id *id, bool other_user, pid_t parent)
{
	const char rubbish[sizeof(struct rdzv_hello)] = "let me in";

	if (other_user && setresuid(65534, 65534, 65534))
		return 2;
	if (other_user)
		child_end_with(parent);
	for (int r = 0; r < 2; r++) {
		int fd = rendezvous_call(id, r), silent = rendezvous_call(id, r);

		if (fd < 0 || silent < 0)
			return 3;
		if (!other_user && told(silent, sizeof(struct rdzv_challenge)) != sizeof(struct rdzv_challenge))
			return 4;
		if (!other_user && send(fd, rubbish, sizeof(rubbish), MSG_NOSIGNAL) != sizeof(rubbish))
			return 5;
		if (told(fd, 0) != (other_user ? 0 : (long)sizeof(struct rdzv_challenge)))
			return 6;
		if (other_user && told(silent, 0))
			return 7;
		close(fd); /* the silent one stays */
	}
	return 0;
}

static void stranger_starts_nothing(bool other_user)
{
	struct shunt_id id = { { 0 } };
	int said[2], go[2], status;
	pid_t ranks, stranger, parent = getpid();
	char byte;

	assert_int_equal(shunt_random(&id, sizeof(id)), 0);
	assert_int_equal(pipe(said), 0);
	assert_int_equal(pipe(go), 0);
	ranks = child_fork();
	if (!ranks)
		_exit(unused_ranks(&id, said, go));
	close(said[1]);
	assert_int_equal(read(said[0], &byte, 1), 1);
	stranger = child_fork();
	if (!stranger) {
		status = call_unused_ranks(&id, other_user, parent);
		_exit(status ? status : write(go[1], "x", 1) != 1);
	}
	assert_int_equal(waitpid(stranger, &status, 0), stranger);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(waitpid(ranks, &status, 0), ranks);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close(said[0]);
	close(go[0]);
	close(go[1]);
}

TEST_CALL(test_peers_without_a_proof_start_no_set_up, stranger_starts_nothing(false))

TEST(test_peers_of_another_user_start_no_set_up)
{
	if (geteuid())
		skip(); /* to become another user */
	stranger_starts_nothing(true);
}

/* Another user holds the name of member 1: it is as if nobody were there, and nothing is told to him. */
TEST(test_peers_name_taken_by_another_user_counts_as_nobody)
{
	struct shunt_id id = { { 0 } };
	struct shunt_rendezvous *rdzv;
	int ready[2], over[2], missing = -1, status;
	char byte;
	pid_t pid, parent = getpid();

	if (geteuid())
		skip();
	assert_int_equal(shunt_random(&id, sizeof(id)), 0);
	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe2(over, O_NONBLOCK), 0);
	pid = child_fork();
	if (!pid) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), peer, told = 0;
		bool last = false;
		struct sockaddr_un addr;
		socklen_t len = rendezvous_name(&id, 1, &addr);
		char buf[64];

		if (setresuid(65534, 65534, 65534) || bind(fd, (struct sockaddr *)&addr, len) || listen(fd, 8))
			_exit(2);
		child_end_with(parent);
		if (write(ready[1], "x", 1) != 1)
			_exit(2);
		for (double end = now() + DEADLINE_S; !last && now() < end; pause_us(PAUSE_POLL, 1000)) {
			last = read(over[0], buf, 1) == 1; /* what was said is in the sockets by then */
			while ((peer = accept(fd, NULL, NULL)) >= 0)
				told += recv(peer, buf, sizeof(buf), MSG_DONTWAIT) > 0;
		}
		_exit(told ? 3 : 0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(shunt_rendezvous_bind(&id, 0, &rdzv), 0);
	assert_int_equal(shunt_rendezvous_join(rdzv, 2, 0, 2, NULL, &missing), -ENOENT);
	assert_int_equal(missing, 1);
	assert_int_equal(write(over[1], "x", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	shunt_rendezvous_destroy(rdzv);
	for (int i = 0; i < 2; i++) {
		close(ready[i]);
		close(over[i]);
	}
}

static enum lifecycle_result run_forged(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	enum lifecycle_result end;

	if (l->rank == c->victim)
		fault_forge((enum fault_forgery)c->at);
	end = lifecycle_run(l);
	fault_forge(FORGE_NOTHING);
	return end;
}

TEST(test_peers_descriptor_that_was_not_asked_for_is_refused)
{
	for (int victim = 0; victim < 2; victim++)
		for (int f = FORGE_OTHER_FILE; f < FORGERIES; f++) {
			struct job c = { .n = RANKS, .victim = victim, .at = f, .body = run_forged };
			const char *reason = job_run(&c);

			/* The first to send a message is a member, with its part of a round. */
			if (victim == 0 && f == FORGE_UNASKED && !reason && c.rank[1].end == LIFECYCLE_FAILED)
				continue;
			for (int r = 0; r < RANKS; r++)
				if (reason || (c.rank[r].end != LIFECYCLE_FAILED && !(victim == 0 && f == FORGE_TWO)))
					fail_msg("rank %d, forgery %d: %s, rank %d ends with %d", victim, f,
					    reason ? reason : "", r, (int)c.rank[r].end);
		}
}

/*
 * One byte of one message is another one: what proves the id is refused, what is only a table gives an outcome on all
 * ranks.
 */
TEST(test_peers_corrupted_messages_end_in_an_outcome)
{
	long points, corrupted = 0, failures = 0, step = getenv("FAULT_ALL") ? 1 : 7;
	struct job c = { .n = RANKS, .victim = 1, .kinds = FAULT_SEND };
	const char *reason;

	long_limits();
	reason = job_run(&c);
	short_limits();
	if (reason)
		fail_msg("without a fault: %s", reason);
	points = c.points;
	assert_true(points >= 4);
	c.action = FAULT_CORRUPT;
	for (long k = 0; k < 6 * points; k += step) {
		c.at = 1 + k % points;
		c.salt = (unsigned)k * 2654435761u;
		reason = job_run(&c);
		if (reason)
			fail_msg("send %ld of %ld, salt %u: %s", c.at, points, c.salt, reason);
		corrupted += *c.hit != '\0';
		for (int r = 0; r < RANKS; r++)
			failures += c.rank[r].end == LIFECYCLE_FAILED;
	}
	print_message("%ld sends, %ld corrupted, %ld ranks failed\n", points, corrupted, failures);
	assert_true(corrupted > 0 && failures > 0);
}

static enum lifecycle_result die_in_use(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	if (lifecycle_begin(l) || !job_all_ready(l, c, at))
		return LIFECYCLE_WRONG;
	if (l->rank == c->victim)
		kill(getpid(), SIGKILL);
	return ncclCommAbort(l->comm) ? LIFECYCLE_WRONG : LIFECYCLE_FAILED;
}

static bool listed(const char *file, const char *text)
{
	FILE *f = fopen(file, "re");
	char line[512];
	bool found = false;

	while (f && fgets(line, sizeof(line), f))
		found = found || strstr(line, text);
	if (f)
		fclose(f);
	return found;
}

TEST(test_peers_killed_job_leaves_nothing_behind)
{
	struct job c = { .n = RANKS, .victim = 1, .action = FAULT_KILL, .once = 1, .body = die_in_use };
	struct sockaddr_un addr;
	struct shunt_id id;
	const char *reason;

	long_limits();
	reason = job_run(&c);
	short_limits();
	job_assert(reason ? reason : c.killed ? NULL : "it lives");
	id = shunt_id_derive(c.id.internal, sizeof(c.id.internal), "init", 0, 0);
	for (int r = 0; r < RANKS; r++) {
		rendezvous_name(&id, r, &addr);
		assert_false(listed("/proc/net/unix", addr.sun_path + 1));
		assert_int_equal(rendezvous_call(&id, r), -1);
	}
}

TESTS_BEGIN
{
	short_limits();
}

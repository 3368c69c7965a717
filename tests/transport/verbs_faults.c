/* SPDX-License-Identifier: MIT */
/* Errors of NICs, of processes and of the network. */
#include "tests/transport/verbs_suite.h"
#include <sys/socket.h>

/* ---- errors of NICs */

/*
 * The error may meet the sender of the data, or the other end, which returns credits; the sender dies of either. The
 * end that it meets says one text or the other: a completion and an event of the NIC come in any order.
 */
static void dies_of(int err, const char *text, const char *other)
{
	const struct end *met;

	begin();
	UNTIL(ends[0].ready && ends[1].ready);
	put_many(5000);
	CHECK(ends[0].dead);
	met = ends[0].err == err ? &ends[0] : &ends[1];
	CHECK(met->dead && met->err == err);
	CHECK(strstr(met->text, "rank 3 on node2") && strstr(met->text, "mlx0 port 1"));
	CHECK(strstr(met->text, text) || strstr(met->text, other));
}

TEST_CALL(test_a_refused_write_kills_the_endpoint,
    CASE(dies_of(-EACCES, "status 10", "the NIC reports: local access violation"), { "FAKE_IBV_ACCESS_ERRORS", "20" }))

/* A process that the script kills, with this one's peer. */
static void peer_process(int pipe_fd)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };
	struct shunt_net_blob theirs;

	CHECK(!ops->open(0, &ends[0].device));
	CHECK(!ops->endpoint_create(ends[0].device, &peer, &ends[0].endpoint, &ends[0].blob));
	CHECK(write(pipe_fd, &ends[0].blob, sizeof(theirs)) == sizeof(theirs));
	CHECK(recv(pipe_fd, &theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs));
	CHECK(!ops->endpoint_connect(ends[0].endpoint, &theirs));
}

static void peer_is_killed(void)
{
	char fabric[] = "/dev/shm/shunt-test-verbs-XXXXXX";
	int fds[2], file = mkstemp(fabric), status;
	struct shunt_net_put signal = { .count = 1 };
	int64_t stop = unit_now_ms() + AT_ONCE_MS;
	pid_t pid;

	CHECK(file >= 0 && !close(file) && !unlink(fabric)); /* who comes first makes it */
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	setenv("FAKE_IBV_FABRIC", fabric, 1);
	pid = child_fork();
	CHECK(pid >= 0);
	if (!pid) {
		setenv("FAKE_IBV_HOST", "host1", 1);
		peer_process(fds[1]);
		while (unit_now_ms() < stop)
			step(&ends[0]);
		child_exit(0);
	}
	peer_process(fds[0]);
	unlink(fabric);
	while (!ends[0].dead && unit_now_ms() < stop) {
		if (ends[0].ready)
			ops->post(ends[0].endpoint, &signal, 1);
		step(&ends[0]);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK(ends[0].dead && ends[0].err == -EOWNERDEAD && strstr(ends[0].text, "rank 3 on node2"));
	ops->endpoint_close(ends[0].endpoint);
	ops->close(ends[0].device);
}

TEST(test_a_killed_process_is_told)
{
	write_script("at=500 link=host1:mlx0 action=kill\n");
	CASE(peer_is_killed(), { "FAKE_IBV_FAULTS", script }, { "NCCL_IB_TIMEOUT", "14" });
}

TEST(test_errors_of_nics_are_told)
{
	write_script("at=300 link=host0:mlx0 action=corrupt-status 11\n");
	CASE(dies_of(-EIO, "status 11", "status 11"), { "FAKE_IBV_FAULTS", script });
	write_script("at=300 link=host0:mlx0 action=fatal\n");
	CASE(dies_of(-EIO, "the NIC reports", "the NIC reports"), { "FAKE_IBV_FAULTS", script });
	write_script("at=300 link=host0:mlx0 action=down\n");
	CASE(
	    dies_of(-EOWNERDEAD, "status 12", "status 12"), { "FAKE_IBV_FAULTS", script }, { "NCCL_IB_TIMEOUT", "14" });
}

TEST(test_short_faults_are_survived)
{
	write_script("at=300 link=host0:mlx0 action=flap 50ms\nat=900 link=host0:mlx0 action=drop 3\n"
	             "at=1500 link=host0:mlx0 action=stall 100ms\nat=2000 link=host0:mlx0 action=gid-change\n");
	CASE(works(), { "FAKE_IBV_FAULTS", script });
	/* Longer than one time-out, and not as long as all. */
	write_script("at=300 link=host0:mlx0 action=down\nat=600 link=host0:mlx0 action=up\n");
	CASE(works(), { "FAKE_IBV_FAULTS", script });
}

TEST(test_packets_that_are_lost_come_again)
{
	CASE(works(), { "FAKE_IBV_DROP", "5" });
	CASE(works(), { "FAKE_IBV_DROP", "5" }, { "FAKE_IBV_PIECE_US", "1" });
}

TEST_CALL(test_a_receive_that_is_late_is_waited_for, CASE(works(), { "FAKE_IBV_RNR", "20" }))

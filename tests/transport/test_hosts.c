/* SPDX-License-Identifier: MIT */
/* Rounds among ranks of several hosts, which are names of SHUNT_HOSTID: a round in each host, and one among them. */
#include "tests/support/unit.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "tests/support/until.h"
#include "transport/rendezvous/bootstrap.h"
#include "transport/rendezvous/host_table.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/rendezvous.h"
#include "transport/rendezvous/wire/wire.h"

enum what { ALL_WELL, BYTES_DIFFER, DIES };

struct world {
	uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES];
	struct shunt_id rendezvous_id; /* random: a second copy of this test may run */
	const char *place;             /* the host of each rank */
	const int *member;             /* of each rank; NULL: its number */
	enum what what;
	int who; /* whom it happens to */
	atomic_int joined, has_id;
};

static struct world *world_create(const char *place, const int *member)
{
	struct world *w = unit_shared(sizeof(*w));

	w->place = place;
	assert_int_equal(shunt_random(&w->rendezvous_id, sizeof(w->rendezvous_id)), 0);
	w->member = member;
	return w;
}

/* Ranks of our host get our descriptor, the others do not. */
static int check_round(const struct world *w, const struct shunt_ranks *ranks, size_t bytes)
{
	uint8_t mine[4096], all[8 * 4096];
	int fd = memfd_create("rank", MFD_CLOEXEC), fds[8], err, n = ranks->nranks;

	memset(mine, 'a' + ranks->rank, sizeof(mine));
	err = ftruncate(fd, 100 + ranks->rank) ? -errno : 0;
	err = err ? err : shunt_rendezvous_allgather(ranks, mine, bytes, all, fd, fds);
	close(fd);
	for (int r = 0; r < n && !err; r++) {
		bool here = w->place[r] == w->place[ranks->rank] && r != ranks->rank;
		struct stat st;

		for (size_t i = 0; i < bytes; i++)
			if (all[(size_t)r * bytes + i] != 'a' + r)
				return -EBADMSG;
		if ((fds[r] >= 0) != here || (here && (fstat(fds[r], &st) || st.st_size != 100 + r)))
			return -EBADF;
		if (here)
			close(fds[r]);
	}
	return err;
}

static int rounds(struct world *w, const struct shunt_ranks *ranks)
{
	int err = 0;

	for (size_t bytes = 0; bytes <= 4096 && !err; bytes = bytes ? bytes * 8 : 1)
		err = check_round(w, ranks, bytes);
	if (err || w->what == ALL_WELL)
		return err;
	atomic_fetch_add(&w->joined, 1);
	if (!until_counted(&w->joined, ranks->nranks, "ranks have had their first rounds"))
		return -ETIME;
	if (ranks->rank == w->who && w->what == DIES)
		raise(SIGKILL);
	return check_round(w, ranks, ranks->rank == w->who && w->what == BYTES_DIFFER ? 8 : 16);
}

static int rank_body(int rank, void *arg)
{
	struct world *w = arg;
	int n = (int)strlen(w->place), members = 0, err;
	struct shunt_ranks ranks = { .rank = rank, .nranks = n, .timeout_ms = 20000 };
	struct shunt_hosts *hosts = NULL;
	char name[8];

	for (int r = 0; r < n; r++)
		members = (w->member ? w->member[r] : r) >= members ? (w->member ? w->member[r] : r) + 1 : members;
	snprintf(name, sizeof(name), "%c", w->place[rank]);
	setenv("SHUNT_HOSTID", name, 1);
	/* Here: this test's own process has no settings, so that each rank reads its own. */
	if (!rank && !shunt_bootstrap_new_id(w->id))
		atomic_store(&w->has_id, 1);
	if (!until_counted(&w->has_id, 1, "ids are there"))
		return -ETIME;
	err = shunt_rendezvous_bind(&w->rendezvous_id, w->member ? w->member[rank] : rank, &ranks.rendezvous);
	if (!err)
		err = shunt_bootstrap_join(w->id, rank, n, NULL, &hosts, NULL);
	/* A child's table: the members are those of the parent. */
	for (int r = 0; hosts && r < n; r++)
		hosts->rank[r].row.member = w->member ? w->member[r] : r;
	if (hosts)
		shunt_hosts_select(hosts, (int[]){ 0, 1, 2, 3, 4, 5, 6, 7 }, n);
	if (hosts)
		err = shunt_rendezvous_set_hosts(ranks.rendezvous, hosts, rank);
	if (!err)
		err = shunt_rendezvous_join(ranks.rendezvous, members, rank, n, NULL, NULL);
	if (!err)
		err = rounds(w, &ranks);
	shunt_rendezvous_destroy(ranks.rendezvous);
	return err;
}

/* In a process of its own: settings are read once. */
static int identity_body(int rank, void *arg)
{
	uint8_t *ids = arg;

	if (rank == 1 || rank == 2)
		setenv(rank == 1 ? "SHUNT_HOSTID" : "NCCL_HOSTID", "one", 1);
	if (rank == 3)
		setenv("MSCCLPP_HOSTID", "other", 1);
	shunt_host_id(ids + rank * 64, "0123456789abcdef", 16);
	shunt_host_machine_id(ids + rank * 64 + 32, "0123456789abcdef", 16);
	return 0;
}

TEST(test_hosts_identity_follows_the_variables)
{
	uint8_t *ids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int errs[UNIT_MAX_RANKS];

	unit_run_processes(5, identity_body, ids, errs);
	assert_memory_equal(ids, ids + 4 * 64, SHUNT_HOST_BYTES);      /* no variable */
	assert_memory_equal(ids + 64, ids + 2 * 64, SHUNT_HOST_BYTES); /* one name by two variables */
	assert_memory_not_equal(ids, ids + 64, SHUNT_HOST_BYTES);
	assert_memory_not_equal(ids + 64, ids + 3 * 64, SHUNT_HOST_BYTES);
	for (int r = 1; r < 5; r++)
		assert_memory_equal(ids + 32, ids + r * 64 + 32, SHUNT_HOST_BYTES);
	munmap(ids, 4096);
}

TEST(test_hosts_rounds)
{
	static const char *const places[] = { "00", "01", "0011", "0101", "0001", "1000", "0123", "01230120" };

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		struct world *w = world_create(places[i], NULL);
		int errs[UNIT_MAX_RANKS], n = (int)strlen(places[i]);

		unit_run_processes(n, rank_body, w, errs);
		for (int r = 0; r < n; r++)
			assert_int_equal(errs[r], 0);
	}
}

/* A child's ranks may be in another order than its members: a host's root is not its lowest rank then. */
TEST(test_hosts_rounds_of_a_child)
{
	static const int members[] = { 5, 3, 4, 0 };
	struct world *w = world_create("0110", members);
	int errs[UNIT_MAX_RANKS];

	unit_run_processes(4, rank_body, w, errs);
	for (int r = 0; r < 4; r++)
		assert_int_equal(errs[r], 0);
}

/* The error tells that no rank waited for its deadline. */
static void expect_failure(enum what what, int who, int err)
{
	struct world *w = world_create("00112", NULL);
	int errs[UNIT_MAX_RANKS];

	w->what = what;
	w->who = who;
	unit_run_processes(5, rank_body, w, errs);
	for (int r = 0; r < 5; r++)
		assert_int_equal(errs[r], what == DIES && r == who ? -1000 - SIGKILL : err);
}

TEST(test_hosts_different_bytes_fail_on_all)
{
	for (int who = 0; who < 5; who++)
		expect_failure(BYTES_DIFFER, who, -EINVAL);
}

TEST(test_hosts_a_death_fails_on_all)
{
	for (int who = 0; who < 5; who++)
		expect_failure(DIES, who, -EOWNERDEAD);
}

struct side {
	struct shunt_rendezvous *rdzv;
	int rank, err;
};

static void *round_main(void *arg)
{
	struct side *s = arg;
	struct shunt_ranks ranks = { s->rdzv, s->rank, 2, 5000, NULL };
	uint8_t mine[8] = { (uint8_t)s->rank }, both[16];

	s->err = shunt_rendezvous_allgather(&ranks, mine, sizeof(mine), both, -1, NULL);
	return NULL;
}

/* A round over a connection whose sides have these keys; errs of root and member. */
static void round_with_keys(uint8_t roots, uint8_t members, int errs[2])
{
	struct side side[2];
	pthread_t thread[2];
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	for (int r = 0; r < 2; r++) {
		struct shunt_rendezvous *rdzv = rdzv_create(&shunt_socket_tcp, rdzv_key("0123456789abcdef", 16));

		rdzv->nranks = 2;
		rdzv->rank = r;
		rdzv->is_root = !r;
		rdzv->joined = true;
		rdzv->session = calloc(2, sizeof(*rdzv->session));
		if (!r) {
			rdzv->peer_fds = malloc(2 * sizeof(int));
			memcpy(rdzv->peer_fds, (int[]){ -1, pair[0] }, 2 * sizeof(int));
			rdzv->session[1][0] = roots;
		} else {
			rdzv->root_fd = pair[1];
			rdzv->session[0][0] = members;
		}
		side[r] = (struct side){ rdzv, r, 0 };
		assert_int_equal(pthread_create(&thread[r], NULL, round_main, &side[r]), 0);
	}
	for (int r = 0; r < 2; r++) {
		pthread_join(thread[r], NULL);
		errs[r] = side[r].err;
		shunt_rendezvous_destroy(side[r].rdzv);
	}
}

/* What is said over TCP counts only with the proof that belongs to the connection. */
TEST(test_hosts_messages_are_proven)
{
	int errs[2];

	round_with_keys(1, 1, errs);
	assert_int_equal(errs[0], 0);
	assert_int_equal(errs[1], 0);
	round_with_keys(1, 2, errs);
	assert_int_equal(errs[0], -EPROTO);
	assert_int_equal(errs[1], -EPROTO);
}

/* ---- calls that lead nowhere */

struct callee {
	struct shunt_rendezvous *rdzv;
	int resets, fails; /* fails: what it tells whoever comes, before it goes */
	int err;
};

static void *callee_main(void *arg)
{
	struct callee *c = arg;
	struct rdzv_root root = {
		.lobby = &c->rdzv->lobby, .limit = "SHUNT_TIMEOUT", .nranks = 2, .nmembers = 2, .timeout_ms = 20000
	};
	struct linger reset = { .l_onoff = 1 };

	for (; c->resets; c->resets--) {
		struct pollfd pfd = { .fd = c->rdzv->lobby.listen_fd, .events = POLLIN };
		int fd = shunt_io_poll(&pfd, 1, shunt_deadline_ms(20000), NULL) > 0 ? accept(pfd.fd, NULL, NULL) : -1;

		/* As the host does that has never got the last packet of the handshake, and has forgotten the first. */
		if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)))
			c->err = -EIO;
		close(fd);
	}
	if (!c->err && c->fails) {
		root.nranks = root.nmembers = 3;
		c->err = rdzv_root_init(&root);
		while (!c->err && root.arrived < 2 && root.status == RDZV_OPEN)
			rdzv_root_step(&root);
		rdzv_root_fail(&root, c->fails, "rank 2 has not come");
		rdzv_root_answer_all(&root, false);
		rdzv_root_finish(&root);
		rdzv_lobby_close(&c->rdzv->lobby);
	}
	c->err = c->err || c->fails ? c->err : rdzv_root_run(&root, c->rdzv);
	return NULL;
}

/* What a call says to a root that is there after so many resets, or (-1) not at all. */
static int call_after(int resets, int fails)
{
	struct shunt_rendezvous *root, *member;
	struct rdzv_key key = rdzv_key("0123456789abcdef", 16);
	struct shunt_netaddr addr;
	struct rdzv_ask ask = { .key = &key,
		.what = "a test's join",
		.member = 1,
		.nmembers = 2,
		.rank = 1,
		.nranks = 2,
		.challenge_deadline = shunt_deadline_ms(20000),
		.deadline = shunt_deadline_ms(20000) };
	struct callee callee;
	pthread_t thread;
	int err;

	root = rdzv_create(&shunt_socket_tcp, key);
	member = rdzv_create(&shunt_socket_tcp, key);
	assert_true(root && member);
	member->nranks = root->nranks = 2;
	member->rank = 1;
	ask.rdzv = member;
	ask.nranks = ask.nmembers = fails ? 3 : 2;
	assert_int_equal(shunt_netif_select(&(struct shunt_netif_rules){ "lo", "AF_INET", NULL }, &addr), 0);
	assert_int_equal(shunt_socket_listen(&shunt_socket_tcp, &addr, &root->lobby.listen_fd), 0);
	callee = (struct callee){ root, resets, fails, 0 };
	if (resets < 0)
		rdzv_lobby_close(&root->lobby);
	else
		assert_int_equal(pthread_create(&thread, NULL, callee_main, &callee), 0);
	err = rdzv_call_root(member, &addr, &ask);
	if (resets >= 0) {
		pthread_join(thread, NULL);
		assert_int_equal(callee.err, 0);
	}
	member->err = err;
	if (fails)
		assert_string_equal(shunt_rendezvous_why(member, err), "rank 2 has not come");
	shunt_rendezvous_destroy(member);
	shunt_rendezvous_destroy(root);
	return err;
}

TEST(test_hosts_calls_are_made_again)
{
	assert_int_equal(call_after(0, 0), 0);
	assert_int_equal(call_after(3, 0), 0);
	assert_int_equal(call_after(-1, 0), -ECONNREFUSED);
}

/* The outcome that a root tells is final, also where it looks like a network's error: the next call would be refused.
 */
TEST(test_hosts_what_the_root_tells_is_final)
{
	assert_int_equal(call_after(0, -ETIMEDOUT), -ETIMEDOUT);
	assert_int_equal(call_after(3, -ETIMEDOUT), -ETIMEDOUT);
}

/* Each probe of a connection on which nobody speaks may be lost: there are many until it counts as broken. */
TEST(test_hosts_idle_connections_survive_lost_probes)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), idle = 0, interval = 0, probes = 0;
	socklen_t len = sizeof(int);

	shunt_socket_tcp.prepare(fd, AF_INET);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &len), 0);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, &len), 0);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, &len), 0);
	assert_int_equal(idle + interval * probes, SHUNT_TCP_SILENCE_MS / 1000);
	assert_true(probes >= 12);
	close(fd);
}

TEST(test_hosts_are_placed_and_described)
{
	struct shunt_hosts hosts = { .nranks = 5 };
	char text[256];

	for (int r = 0; r < 5; r++) {
		hosts.rank[r].row.host[0] = (uint8_t)(r == 1 || r == 4);
		hosts.rank[r].row.member = r ? r : 9;
		hosts.rank[r].at = (struct shunt_host_address){ .family = 4, .addr = { 10, 0, 0, (uint8_t)r } };
		snprintf(hosts.rank[r].name, sizeof(hosts.rank[r].name), "node%d", r == 1 || r == 4);
	}
	shunt_hosts_select(&hosts, (int[]){ 0, 1, 2, 3, 4 }, 5);
	assert_int_equal(hosts.nhosts, 2);
	assert_int_equal(hosts.largest, 3);
	assert_int_equal(hosts.leader[0], 2); /* the lowest member speaks */
	assert_int_equal(hosts.local_of[3], 2);
	assert_int_equal(shunt_hosts_rank(&hosts, 1, 1), 4);
	assert_int_equal(shunt_hosts_rank(&hosts, 1, 2), -1);
	shunt_hosts_describe(&hosts, text, sizeof(text));
	assert_string_equal(text, "ranks 0+2-3 on node0 (10.0.0.2), ranks 1+4 on node1 (10.0.0.1)");
	shunt_hosts_describe(&hosts, text, 12);
	assert_string_equal(text, "ranks 0+2-3");
}

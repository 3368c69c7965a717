/* SPDX-License-Identifier: MIT */
/* The directory of hosts: who is registered, what all are told, and who is refused. Hosts are names (SHUNT_HOSTID). */
#include "tests/support/unit.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include "base/host.h"
#include "base/io.h"
#include "base/os.h"
#include "shunt/shunt.h"
#include "tests/support/until.h"
#include "transport/rendezvous/directory.h"
#include "transport/rendezvous/directory_wire.h"
#include "transport/rendezvous/wire/wire.h"

enum { MEMBERS = 4 };

struct world {
	uint8_t id[SHUNT_DIRECTORY_ID_BYTES];
	struct shunt_id rendezvous_id; /* random: a second copy of this test may run */
	const char *place;             /* the host of each member; '-': it does not register, nor has a socket */
	bool dies;                     /* member 3, after its registration */
	atomic_int has_id, ready, asked;
	struct shunt_directory_table table[MEMBERS];
	struct shunt_hosts hosts[MEMBERS];
};

static struct world *world_create(const char *place)
{
	struct world *w = unit_shared(sizeof(*w));

	w->place = place;
	assert_int_equal(shunt_random(&w->rendezvous_id, sizeof(w->rendezvous_id)), 0);
	return w;
}

/* Member 0 has the directory. All wait until all have registered, as NCCL's init does. */
static int member_body(int rank, void *arg)
{
	struct world *w = arg;
	struct shunt_directory_member me = { .id = w->rendezvous_id, .member = rank, .nmembers = MEMBERS };
	struct shunt_directory_link *link = NULL;
	struct shunt_directory_tail tail;
	struct shunt_rendezvous *rdzv = NULL;
	char name[8];
	struct shunt_directory_member one_of_many = { .id = w->rendezvous_id, .member = rank, .nmembers = 65 };
	int err = 0;

	snprintf(name, sizeof(name), "%c", w->place[rank]);
	setenv("SHUNT_HOSTID", name, 1);
	if (!rank) {
		shunt_directory_mark(w->id);
		atomic_store(&w->has_id, 1);
	}
	if (!until_counted(&w->has_id, 1, "ids are there"))
		return -ETIME;
	tail = shunt_directory_tail_of(w->id);
	if (w->place[rank] != '-') {
		err = tail.magic ? shunt_rendezvous_bind(&me.id, rank, &rdzv) : -EBADMSG;
		me.listen_fd = err ? -1 : shunt_rendezvous_socket(rdzv);
		err = err ? err : shunt_directory_register(&tail, &me, &link);
	}
	/* Only who is elsewhere has a connection. */
	if (!err && w->place[rank] != '-' && (link != NULL) != (w->place[rank] != w->place[0]))
		err = -EBADF;
	if (w->dies && rank == 3)
		raise(SIGKILL);
	atomic_fetch_add(&w->ready, 1);
	if (!until_counted(&w->ready, MEMBERS - w->dies, "members are ready"))
		return -ETIME;
	/* A directory would drop the process, and with it what else is registered there. */
	if (!err && w->place[rank] != '-')
		err = shunt_directory_ask(&tail, link, &one_of_many, NULL, &w->table[rank]) == -E2BIG ? 0 : -EBADMSG;
	if (!err && w->place[rank] != '-')
		err = shunt_directory_ask(&tail, link, &me, NULL, &w->table[rank]);
	if (!err && w->table[rank].hosts) {
		w->hosts[rank] = *w->table[rank].hosts;
		shunt_hosts_destroy(w->table[rank].hosts);
	}
	/* At once: who asks later must be told the same. */
	shunt_directory_leave(link, &me);
	shunt_rendezvous_destroy(rdzv);
	atomic_fetch_add(&w->asked, 1);
	return until_counted(&w->asked, MEMBERS - w->dies, "members have asked") ? err : -ETIME;
}

static void expect(const char *place, int present, int missing, int nhosts)
{
	struct world *w = world_create(place);
	int errs[UNIT_MAX_RANKS];

	unit_run_processes(MEMBERS, member_body, w, errs);
	for (int r = 0; r < MEMBERS; r++) {
		assert_int_equal(errs[r], 0);
		if (place[r] == '-')
			continue;
		assert_int_equal(w->table[r].present, present);
		assert_int_equal(w->table[r].missing, missing);
		assert_int_equal(w->hosts[r].nhosts, nhosts);
		assert_memory_equal(w->hosts[r].host_of, w->hosts[0].host_of, sizeof(w->hosts[0].host_of));
	}
}

TEST(test_directory_tells_all_the_same)
{
	expect("0000", 4, -1, 1);
	expect("0011", 4, -1, 2);
	expect("0123", 4, -1, 4);
	expect("0110", 4, -1, 2);
	expect("01-1", 3, 2, 2);
	expect("0--1", 2, 1, 2);
}

TEST(test_directory_a_registration_ends_with_its_process)
{
	struct world *w = world_create("0011");
	int errs[UNIT_MAX_RANKS];

	w->dies = true;
	unit_run_processes(MEMBERS, member_body, w, errs);
	assert_int_equal(errs[3], -1000 - SIGKILL);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(errs[r], 0);
		/* Its end may come later than a question, but all get the same answer. */
		assert_int_equal(w->table[r].present, w->table[0].present);
	}
}

TEST(test_directory_leaves_an_id_without_room_alone)
{
	uint8_t id[SHUNT_DIRECTORY_ID_BYTES] = { 0 }, before[sizeof(id)];

	id[SHUNT_DIRECTORY_TAIL_OFFSET + 39] = 1;
	memcpy(before, id, sizeof(id));
	shunt_directory_mark(id);
	assert_memory_equal(id, before, sizeof(id));
	assert_int_equal(shunt_directory_tail_of(id).magic, 0);
}

static int connect_to(const struct shunt_directory_tail *tail, struct rdzv_challenge *challenge)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = tail->port };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(tail->family, 4);
	memcpy(&sin.sin_addr, tail->addr, 4);
	assert_int_equal(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	assert_int_equal(recv(fd, challenge, sizeof(*challenge), MSG_WAITALL), sizeof(*challenge));
	return fd;
}

static struct shunt_directory_tail own_tail(void)
{
	uint8_t id[SHUNT_DIRECTORY_ID_BYTES] = { 0 };

	shunt_directory_mark(id);
	return shunt_directory_tail_of(id);
}

/* Returns the connection after the answer; *answer has what the directory says. */
static int say_hello(struct rdzv_hello *hello, struct rdzv_answer *answer, uint8_t session[RDZV_SECRET])
{
	struct shunt_directory_tail tail = own_tail();
	struct rdzv_key key = rdzv_directory_key(&tail);
	struct rdzv_challenge challenge;
	int fd = connect_to(&tail, &challenge);

	hello->nmembers = hello->nranks = 1;
	rdzv_hello_sign(hello, &key, challenge.nonce);
	rdzv_session(session, &key, challenge.nonce, hello->nonce);
	assert_int_equal(send(fd, hello, sizeof(*hello), MSG_NOSIGNAL), sizeof(*hello));
	assert_int_equal(recv(fd, answer, sizeof(*answer), MSG_WAITALL), sizeof(*answer));
	return fd;
}

static struct rdzv_hello good_hello(void)
{
	struct rdzv_key key = { .n = 16 };
	struct rdzv_hello hello;

	assert_int_equal(rdzv_hello_init(&hello, RDZV_HELLO, &key), 0);
	return hello;
}

TEST(test_directory_tells_other_versions_apart)
{
	for (int i = 0; i < 2; i++) {
		struct rdzv_hello hello = good_hello();
		uint8_t session[RDZV_SECRET];
		struct rdzv_answer answer;
		int fd;

		if (i)
			strcpy(hello.shunt, "99.0");
		else
			hello.head.version++;
		fd = say_hello(&hello, &answer, session);
		assert_int_equal(answer.head.kind, RDZV_DONE);
		assert_int_equal(answer.status, -EPROTO);
		close(fd);
	}
}

/* A request without a proof, twice the same, or of a member that there is not, ends the connection. */
TEST(test_directory_drops_who_asks_wrongly)
{
	for (int i = 0; i < 4; i++) {
		struct rdzv_directory_request q = { .what = RDZV_DIRECTORY_ASK, .number = 1, .nmembers = 2 };
		struct rdzv_hello hello = good_hello();
		struct shunt_rendezvous_row row;
		struct rdzv_directory_reply reply;
		uint8_t session[RDZV_SECRET];
		struct rdzv_answer answer;
		int fd = say_hello(&hello, &answer, session);

		assert_int_equal(answer.status, 0);
		assert_int_equal(recv(fd, &row, sizeof(row), MSG_WAITALL), sizeof(row));
		q.nmembers = i == 1 ? 65 : 2;
		q.member = i == 2 ? 2 : 0;
		rdzv_message_mac(q.mac, session, shunt_bytes(&q, offsetof(struct rdzv_directory_request, mac)),
		    (struct shunt_bytes){ 0 });
		q.mac[0] ^= i == 0;
		assert_int_equal(send(fd, &q, sizeof(q), MSG_NOSIGNAL), sizeof(q));
		if (i == 3) { /* it is right once */
			assert_int_equal(recv(fd, &reply, sizeof(reply), MSG_WAITALL), sizeof(reply));
			assert_int_equal(reply.status, 0);
			assert_int_equal(reply.nrows, 2);
			assert_int_equal(send(fd, &q, sizeof(q), MSG_NOSIGNAL), sizeof(q));
		}
		assert_true(recv(fd, &reply, sizeof(reply), 0) <= 0);
		close(fd);
	}
}

TESTS_BEGIN
{
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
}

/* SPDX-License-Identifier: MIT */
/* The provider "tcp": strangers, hosts that do not answer, and peers that have the key and lie. */
#include "tests/transport/net_ends.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include "tests/support/own.h"
#include "base/inet/netif.h"
#include "base/inet/socket.h"
#include "transport/net/providers.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/tcp/tcp_priv.h"

static const struct shunt_net_ops *const ops = &shunt_net_tcp_ops;

static struct sockaddr_in listener_of(const struct shunt_net_blob *blob)
{
	struct sockaddr_in sin = { .sin_family = AF_INET };
	struct tcp_blob b;

	memcpy(&b, blob->bytes, sizeof(b));
	assert_int_equal(b.family, AF_INET);
	sin.sin_port = b.port;
	memcpy(&sin.sin_addr, b.address, 4);
	assert_int_equal(ntohl(sin.sin_addr.s_addr) >> 24, 127);
	return sin;
}

static int connect_to(const struct shunt_net_blob *blob)
{
	struct sockaddr_in sin = listener_of(blob);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	return fd;
}

/* The other side has ended this connection; what came before is thrown away. */
static bool is_ended(int fd)
{
	char bytes[256];
	ssize_t n;

	do
		n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	while (n > 0);
	return n == 0 || errno == ECONNRESET;
}

static unsigned bit_of(const char *name)
{
	for (unsigned i = 0; shunt_net_providers()[i]; i++)
		if (!strcmp(shunt_net_providers()[i]->name, name))
			return 1u << i;
	return 0;
}

/* In processes of their own: the variables are read once. No NIC of verbs is here, or NCCL_IB_DISABLE hides it. */
static int what_is_usable(int rank, void *arg)
{
	static const char *const choices[] = { "auto", "verbs", "tcp" };

	setenv("SHUNT_NET", choices[rank], 1);
	setenv("NCCL_IB_DISABLE", "1", 1);
	return shunt_net_usable() == bit_of("tcp") ? 0 : -2;
}

TEST(test_tcp_is_usable_whatever_is_chosen)
{
	int errs[3];

	assert_ptr_equal(shunt_net_find("tcp"), ops);
	assert_null(shunt_net_find("pigeons"));
	unit_run_processes(3, what_is_usable, NULL, errs);
	for (int i = 0; i < 3; i++)
		assert_int_equal(errs[i], 0);
}

/* ---- strangers */

TEST(test_a_crowd_of_strangers_keeps_nobody_out)
{
	enum { CROWD = 500 };
	struct net_pair pair = { .ops = ops };
	int fds[CROWD], before;

	for (int i = 0; i < 2; i++) {
		pair.device[i] = net_open(ops);
		net_create(ops, pair.device[i], &pair.end[i], 5, AT_ONCE_MS);
	}
	before = net_descriptors();
	for (int i = 0; i < CROWD; i++) {
		fds[i] = connect_to(&pair.end[i % 2].blob);
		net_pair_step(&pair);
	}
	assert_true(net_descriptors() - before <= CROWD + 2 * TCP_STRANGERS);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ops->endpoint_connect(pair.end[i].endpoint, &pair.end[!i].blob), 0);
	NET_UNTIL(pair.end[0].ready && pair.end[1].ready, net_pair_step(&pair));
	for (int i = 0; i < CROWD; i++)
		close(fds[i]);
	net_pair_close(&pair);
}

TEST(test_strangers_that_talk_are_thrown_out)
{
	struct shunt_net_device *device = net_open(ops);
	struct net_end end = { 0 };
	static const char request[100] = "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n";
	int silent, garbage, early;

	net_create(ops, device, &end, 5, AT_ONCE_MS);
	silent = connect_to(&end.blob);
	garbage = connect_to(&end.blob);
	early = connect_to(&end.blob);
	assert_int_equal(send(garbage, request, sizeof(struct tcp_hello), MSG_NOSIGNAL), sizeof(struct tcp_hello));
	assert_int_equal(send(early, "Sh", 2, MSG_NOSIGNAL), 2);
	shutdown(early, SHUT_WR);
	NET_UNTIL(is_ended(garbage), net_step(ops, device));
	NET_UNTIL(is_ended(early), net_step_or_sleep(ops, device, 100));
	/* After ten seconds; the device wakes by itself. */
	NET_UNTIL(is_ended(silent), net_step_or_sleep(ops, device, 2 * TCP_STRANGER_MS));
	assert_false(end.dead);
	NET_UNTIL(ops->arm(device), net_step(ops, device));
	close(silent);
	close(garbage);
	close(early);
	ops->endpoint_close(end.endpoint);
	ops->close(device);
}

/* A listener that never speaks, as if each connection's handshake were incomplete there: others are tried. */
TEST(test_a_connection_without_a_challenge_is_made_again)
{
	struct shunt_net_device *device = net_open(ops);
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sin);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), first, again = 0, fd;
	struct shunt_net_blob theirs;
	struct tcp_blob blob;
	struct net_end end;

	net_create(ops, device, &end, 5, 3 * TCP_CONNECT_MS);
	assert_int_equal(bind(listener, (struct sockaddr *)&sin, sizeof(sin)), 0);
	assert_int_equal(listen(listener, 64), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&sin, &len), 0);
	memcpy(&blob, end.blob.bytes, sizeof(blob));
	first = 1 + (int)blob.data_sockets;
	blob.id = UINT64_MAX; /* the lower one connects */
	blob.port = sin.sin_port;
	memset(&theirs, 0, sizeof(theirs));
	memcpy(theirs.bytes, &blob, sizeof(blob));
	assert_int_equal(ops->endpoint_connect(end.endpoint, &theirs), 0);
	while (!end.dead) {
		net_step_or_sleep(ops, device, 100);
		fd = accept(listener, NULL, NULL);
		again += fd >= 0; /* stays open: only the other side gives up */
	}
	assert_in_range(again, 2 * first, 3 * first);
	assert_int_equal(end.err, -ETIMEDOUT);
	ops->endpoint_close(end.endpoint);
	ops->close(device);
	close(listener);
}

/* ---- a peer that has the key, or not, played by the test */

struct liar {
	struct shunt_net_device *device;
	struct net_end end;
	struct shunt_net_memory *memory;
	uint8_t bytes[4096]; /* half of it is registered */
	int fd[2];
};

static void say_hello(struct liar *liar, int fd, uint32_t index, uint8_t key_byte, uint64_t to)
{
	struct tcp_challenge challenge;
	struct tcp_hello hello = { .magic = TCP_MAGIC,
		.version = TCP_VERSION,
		.to = to,
		.from = 1,
		.index = index,
		.sockets = 2,
		.nonce = { 3 } };
	uint8_t key[SHUNT_NET_KEY_BYTES];
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	NET_UNTIL(poll(&pfd, 1, 0) == 1, net_step(ops, liar->device));
	assert_int_equal(recv(fd, &challenge, sizeof(challenge), MSG_WAITALL), sizeof(challenge));
	memset(key, key_byte, sizeof(key));
	shunt_mac(hello.mac, shunt_bytes(key, sizeof(key)), "shunt net tcp hello",
	    shunt_bytes(challenge.nonce, sizeof(challenge.nonce)),
	    shunt_bytes(&hello, offsetof(struct tcp_hello, mac)));
	assert_int_equal(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
}

static uint32_t answer_status(struct liar *liar, int fd)
{
	struct tcp_answer answer;
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	NET_UNTIL(poll(&pfd, 1, 0) == 1, net_step(ops, liar->device));
	assert_int_equal(recv(fd, &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
	return answer.status;
}

static uint64_t id_of(const struct shunt_net_blob *blob)
{
	struct tcp_blob b;

	memcpy(&b, blob->bytes, sizeof(b));
	return b.id;
}

/* Two connected sockets of an endpoint whose peer is the test: it has id 1, so it connects. */
static void liar_open(struct liar *liar)
{
	struct tcp_blob ours = { .magic = TCP_MAGIC,
		.version = TCP_VERSION,
		.id = 1,
		.family = AF_INET,
		.port = 1,
		.data_sockets = 1,
		.address = { 127, 0, 0, 1 } };
	struct shunt_net_blob blob = { { 0 } };

	memset(liar, 0, sizeof(*liar));
	liar->device = net_open(ops);
	memset(liar->bytes, 0xee, sizeof(liar->bytes));
	liar->memory = net_register(ops, liar->device, liar->bytes + 1024, 2048);
	net_create(ops, liar->device, &liar->end, 5, AT_ONCE_MS);
	memcpy(blob.bytes, &ours, sizeof(ours));
	assert_int_equal(ops->endpoint_connect(liar->end.endpoint, &blob), 0);
	for (uint32_t i = 0; i < 2; i++) {
		liar->fd[i] = connect_to(&liar->end.blob);
		say_hello(liar, liar->fd[i], i, 5, id_of(&liar->end.blob));
		assert_int_equal(answer_status(liar, liar->fd[i]), TCP_WELCOME);
	}
	NET_UNTIL(liar->end.ready, net_step(ops, liar->device));
}

static void liar_close(struct liar *liar)
{
	close(liar->fd[0]);
	close(liar->fd[1]);
	ops->endpoint_close(liar->end.endpoint);
	ops->mem_deregister(liar->memory);
	ops->close(liar->device);
}

TEST(test_hellos_that_prove_nothing_are_refused)
{
	struct liar liar;
	int fd;

	liar_open(&liar);
	fd = connect_to(&liar.end.blob);
	say_hello(&liar, fd, 0, 6, id_of(&liar.end.blob));
	assert_int_equal(answer_status(&liar, fd), TCP_NO_PROOF);
	NET_UNTIL(is_ended(fd), net_step(ops, liar.device));
	close(fd);
	fd = connect_to(&liar.end.blob);
	say_hello(&liar, fd, 0, 5, 4711);
	assert_int_equal(answer_status(&liar, fd), TCP_NO_ENDPOINT);
	close(fd);
	/* The right key, but the endpoint has all its connections. */
	fd = connect_to(&liar.end.blob);
	say_hello(&liar, fd, 0, 5, id_of(&liar.end.blob));
	assert_int_not_equal(answer_status(&liar, fd), TCP_WELCOME);
	close(fd);
	for (int i = 0; i < 10; i++)
		net_step(ops, liar.device);
	assert_false(liar.end.dead);
	liar_close(&liar);
}

TEST(test_heads_that_there_are_not_kill_the_endpoint)
{
	static const struct {
		int socket;
		struct tcp_head head[2];
	} cases[] = {
		{ 0, { { .kind = 0 } } },
		{ 0, { { .kind = 5 } } },
		{ 0, { { .kind = TCP_PUT, .flags = 2 } } },
		{ 0, { { .kind = TCP_PUT, .count = 0x8000 } } },
		{ 0, { { .kind = TCP_PUT, .count = 1, .channel = 65535 } } },
		{ 0, { { .kind = TCP_PUT, .bytes = 8, .memory = 1 } } },
		{ 0, { { .kind = TCP_PUT, .bytes = 8, .offset_high = 1 } } },
		{ 0, { { .kind = TCP_PIECE, .bytes = 8 } } },
		{ 0, { { .kind = TCP_LARGE, .bytes = 0 } } },
		{ 0, { { .kind = TCP_LARGE, .bytes = 100, .put = 7 } } },
		{ 0, { { .kind = TCP_END, .bytes = 1 } } },
		{ 0, { { .kind = TCP_END }, { .kind = TCP_END } } },
		{ 0, { { .kind = TCP_END }, { .kind = TCP_PUT, .count = 1 } } },
		{ 1, { { .kind = TCP_PUT, .count = 1 } } },
		{ 1, { { .kind = TCP_END } } },
		{ 1, { { .kind = TCP_PIECE } } },
		{ 1, { { .kind = TCP_PIECE, .bytes = 1, .put = 0xffffffff } } },
		{ 1, { { .kind = TCP_PIECE, .bytes = 1, .offset_low = 2048 } } },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct liar liar;
		size_t n = cases[i].head[1].kind ? 2 : 1;
		uint64_t name;

		liar_open(&liar);
		name = ops->mem_remote(liar.memory).word[0];
		for (size_t h = 0; h < n; h++) {
			struct tcp_head head = cases[i].head[h];

			head.memory = (uint32_t)name ^ head.memory;
			assert_int_equal(
			    send(liar.fd[cases[i].socket], &head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
		}
		NET_UNTIL(liar.end.dead, net_step(ops, liar.device));
		if (liar.end.err != -EPROTO)
			print_error("case %zu: %s\n", i, liar.end.text);
		assert_int_equal(liar.end.err, -EPROTO);
		assert_int_equal(liar.end.signalled, 0);
		for (size_t b = 0; b < sizeof(liar.bytes); b++)
			assert_int_equal(liar.bytes[b], 0xee);
		liar_close(&liar);
	}
}

static void send_head(struct liar *liar, int socket, struct tcp_head head, const void *payload)
{
	head.memory = (uint32_t)ops->mem_remote(liar->memory).word[0];
	assert_int_equal(send(liar->fd[socket], &head, sizeof(head), MSG_NOSIGNAL | MSG_MORE), sizeof(head));
	if (payload)
		assert_int_equal(send(liar->fd[socket], payload, head.bytes, MSG_NOSIGNAL), head.bytes);
	else
		assert_int_equal(send(liar->fd[socket], "", 0, MSG_NOSIGNAL), 0);
}

TEST(test_pieces_come_before_and_after_their_put)
{
	static const uint8_t data[1024] = { [0] = 1, [1023] = 9 };
	struct liar liar;

	liar_open(&liar);
	/* The signal of put 1, which is complete, waits for put 0. */
	send_head(&liar, 1, (struct tcp_head){ .kind = TCP_PIECE, .bytes = 1024, .put = 1, .offset_low = 1024 }, data);
	send_head(
	    &liar, 0, (struct tcp_head){ .kind = TCP_LARGE, .bytes = 1024, .put = 0, .count = 1, .channel = 1 }, NULL);
	send_head(
	    &liar, 0, (struct tcp_head){ .kind = TCP_LARGE, .bytes = 1024, .put = 1, .count = 1, .channel = 2 }, NULL);
	send_head(&liar, 0, (struct tcp_head){ .kind = TCP_PUT, .count = 1, .channel = 3 }, NULL);
	send_head(&liar, 0, (struct tcp_head){ .kind = TCP_END }, NULL);
	NET_UNTIL(liar.bytes[1024 + 2047] == 9, net_step(ops, liar.device));
	for (int i = 0; i < 50; i++)
		net_step(ops, liar.device);
	assert_int_equal(liar.end.signalled, 0);
	assert_false(liar.end.ended);
	send_head(&liar, 1, (struct tcp_head){ .kind = TCP_PIECE, .bytes = 1000, .put = 0 }, data);
	for (int i = 0; i < 50; i++)
		net_step(ops, liar.device);
	assert_int_equal(liar.end.signalled, 0);
	send_head(
	    &liar, 1, (struct tcp_head){ .kind = TCP_PIECE, .bytes = 24, .put = 0, .offset_low = 1000 }, data + 1000);
	NET_UNTIL(liar.end.ended, net_step(ops, liar.device));
	for (int c = 1; c <= 3; c++)
		assert_int_equal(liar.end.signals[c], 1);
	assert_memory_equal(liar.bytes + 1024, data, 1024);
	liar_close(&liar);
}

/* However the network cuts them. */
TEST(test_packets_are_stored_by_whole_words)
{
	static const uint8_t data[24] = { [3] = 1, [11] = 2, [15] = 3, [23] = 4 };
	struct tcp_head head = { .kind = TCP_PUT, .flags = TCP_PACKETS, .bytes = 24, .count = 1 };
	struct liar liar;

	liar_open(&liar);
	head.memory = (uint32_t)ops->mem_remote(liar.memory).word[0];
	assert_int_equal(send(liar.fd[0], &head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
	for (size_t at = 0; at < sizeof(data); at += 4) {
		assert_int_equal(send(liar.fd[0], data + at, 4, MSG_NOSIGNAL), 4);
		if (at % 8)
			NET_UNTIL(!memcmp(liar.bytes + 1024 + at - 4, data + at - 4, 8), net_step(ops, liar.device));
		else
			NET_UNTIL(tcp_endpoint_of(liar.end.endpoint)->socket[0].in_to == 4, net_step(ops, liar.device));
		assert_int_equal(liar.bytes[1024 + at + (at % 8 ? 4 : 0)], 0xee);
	}
	NET_UNTIL(liar.end.signalled == 1, net_step(ops, liar.device));
	assert_memory_equal(liar.bytes + 1024, data, sizeof(data));
	liar_close(&liar);
}

/* Data sockets that have no room for long see none of the small puts that pass them by. */
TEST(test_small_puts_pass_data_sockets_without_room)
{
	enum { BYTES = 300000 };
	struct shunt_net_put signal = { .count = 1 }, large = { .bytes = BYTES, .count = 1 };
	struct shunt_net_memory *memory[2];
	struct net_pair pair;
	uint8_t *bytes[2];
	struct tcp_endpoint *ep;

	net_pair_open(&pair, ops);
	ep = tcp_endpoint_of(pair.end[0].endpoint);
	for (int i = 0; i < 2; i++) {
		bytes[i] = calloc(1, BYTES);
		assert_non_null(bytes[i]);
		memory[i] = net_register(ops, pair.device[i], bytes[i], BYTES);
	}
	for (uint32_t i = 1; i < ep->nsockets; i++)
		ep->socket[i].writable = false;
	for (uint32_t i = 1; i <= TCP_MAX_PUTS; i++) {
		net_put(ops, pair.device[0], &pair.end[0], &signal);
		NET_UNTIL(pair.end[1].signalled == i && pair.end[0].done == i, net_pair_step(&pair));
	}
	large.source = bytes[0];
	large.memory = memory[0];
	large.remote = ops->mem_remote(memory[1]);
	net_put(ops, pair.device[0], &pair.end[0], &large);
	for (uint32_t i = 1; i < ep->nsockets; i++)
		ep->socket[i].writable = true;
	NET_UNTIL(pair.end[1].signalled == TCP_MAX_PUTS + 1, net_pair_step(&pair));
	/* Of the data sockets one alone took pieces: nothing tells yet that the network has room for more. */
	assert_true(ep->nsockets > 2 && ep->socket[1].out.bytes);
	for (uint32_t i = 2; i < ep->nsockets; i++)
		assert_int_equal(ep->socket[i].out.bytes, 0);
	for (int i = 0; i < 100; i++)
		net_pair_step(&pair);
	assert_false(pair.end[0].dead || pair.end[1].dead);
	for (int i = 0; i < 2; i++) {
		ops->endpoint_close(pair.end[i].endpoint);
		ops->mem_deregister(memory[i]);
		ops->close(pair.device[i]);
		free(bytes[i]);
	}
}

/* Carries so many bytes, of which so many packets of each MB are sent again. */
static uint32_t paced(struct tcp_pace *pace, uint32_t most, uint64_t bytes, uint32_t again)
{
	for (uint64_t at = 0; at < bytes; at += TCP_LOOK_BYTES)
		shunt_tcp_pace(pace, most, TCP_LOOK_BYTES, at % (1 << 20) ? 0 : again);
	return pace->open;
}

/* However many sockets there are: so many take pieces as lose nothing, and after each loss fewer, for longer. */
TEST(test_sockets_take_pieces_as_long_as_nothing_is_lost)
{
	struct tcp_pace pace = { .open = 1 };
	uint64_t need;

	assert_int_equal(paced(&pace, 16, 1 << 20, 0), 2);
	assert_int_equal(paced(&pace, 16, 2 << 20, 0), 4);
	assert_int_equal(paced(&pace, 16, 4 << 20, 0), 8);
	assert_int_equal(paced(&pace, 16, 1 << 30, 2), 16); /* a bad link, no queue */
	assert_int_equal(paced(&pace, 16, (uint64_t)1 << 33, 2), 16);
	/* A queue that is full. */
	pace.carried = 0;
	assert_int_equal(paced(&pace, 16, TCP_LOOK_BYTES, 100), 8);
	assert_int_equal(paced(&pace, 16, TCP_PACE_AGAIN - TCP_LOOK_BYTES, 0), 8);
	assert_int_equal(paced(&pace, 16, TCP_LOOK_BYTES, 0), 9);
	for (int i = 0; i < 100; i++) {
		static const uint32_t fewer[] = { 5, 3, 2, 1 };

		need = pace.need;
		assert_int_equal(paced(&pace, 16, TCP_LOOK_BYTES, 100), fewer[i < 3 ? i : 3]);
		assert_int_equal(pace.need, need < TCP_PACE_LEAST_OFTEN ? 2 * need : need);
	}
	assert_int_equal(paced(&pace, 16, pace.need, 0), 2);
	/* No more than there are. */
	pace = (struct tcp_pace){ .open = 1 };
	assert_int_equal(paced(&pace, 3, 1 << 30, 0), 3);
	pace = (struct tcp_pace){ .open = 1 };
	assert_int_equal(paced(&pace, 1, 1 << 30, 0), 1);
}

/* Ends whose puts are small have one socket; a large put comes all the same. One end's word is enough. */
TEST(test_small_puts_need_one_socket)
{
	enum { BYTES = 3000000 };
	struct shunt_net_put put = { .bytes = BYTES, .count = 1 };
	struct shunt_net_memory *memory[2];
	struct net_pair pair = { .ops = ops };
	uint8_t *bytes[2];

	for (int i = 0; i < 2; i++) {
		struct shunt_net_peer peer = { .name = "the other",
			.connect_ms = 10000,
			.user = &pair.end[i],
			.largest = i ? 0 : TCP_SMALL_BYTES_SPREAD };

		pair.device[i] = net_open(ops);
		assert_int_equal(
		    ops->endpoint_create(pair.device[i], &peer, &pair.end[i].endpoint, &pair.end[i].blob), 0);
		bytes[i] = malloc(BYTES);
		assert_non_null(bytes[i]);
		memset(bytes[i], i, BYTES);
		memory[i] = net_register(ops, pair.device[i], bytes[i], BYTES);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(ops->endpoint_connect(pair.end[i].endpoint, &pair.end[!i].blob), 0);
	NET_UNTIL(pair.end[0].ready && pair.end[1].ready, net_pair_step(&pair));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tcp_endpoint_of(pair.end[i].endpoint)->nsockets, 1);
		put.source = bytes[i];
		put.memory = memory[i];
		put.remote = ops->mem_remote(memory[!i]);
		net_put(ops, pair.device[i], &pair.end[i], &put);
		NET_UNTIL(pair.end[!i].signalled == 1, net_pair_step(&pair));
		assert_memory_equal(bytes[!i], bytes[i], BYTES);
	}
	for (int i = 0; i < 2; i++) {
		ops->endpoint_close(pair.end[i].endpoint);
		ops->mem_deregister(memory[i]);
		ops->close(pair.device[i]);
		free(bytes[i]);
	}
}

TEST(test_more_pieces_than_the_put_has_kill_the_endpoint)
{
	static const uint8_t data[1024];
	struct liar liar;

	liar_open(&liar);
	send_head(&liar, 0, (struct tcp_head){ .kind = TCP_LARGE, .bytes = 1000, .put = 0, .count = 1 }, NULL);
	send_head(&liar, 1, (struct tcp_head){ .kind = TCP_PIECE, .bytes = 999, .put = 0 }, data);
	send_head(&liar, 1, (struct tcp_head){ .kind = TCP_PIECE, .bytes = 2, .put = 0 }, data);
	NET_UNTIL(liar.end.dead, net_step(ops, liar.device));
	assert_int_equal(liar.end.err, -EPROTO);
	assert_int_equal(liar.end.signalled, 0);
	liar_close(&liar);
}

/* What the socket takes, and a step of the other end. */
static void send_some(struct liar *liar, const void *bytes, size_t n, size_t *sent)
{
	ssize_t now =
	    *sent < n ? send(liar->fd[0], (const uint8_t *)bytes + *sent, n - *sent, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;

	*sent += now > 0 ? (size_t)now : 0;
	net_step(ops, liar->device);
}

/* A peer may send more signals than are waited for; what does not fit stays in the socket. */
TEST(test_signals_that_wait_are_bounded_and_not_lost)
{
	enum { SIGNALS = 3 * TCP_MAX_SIGNALS };
	static struct tcp_head heads[SIGNALS];
	static const uint8_t data[1024];
	struct liar liar;
	size_t sent = 0;

	liar_open(&liar);
	send_head(
	    &liar, 0, (struct tcp_head){ .kind = TCP_LARGE, .bytes = 1024, .put = 0, .count = 1, .channel = 1 }, NULL);
	for (int i = 0; i < SIGNALS; i++)
		heads[i] = (struct tcp_head){ .kind = TCP_PUT, .count = 1, .channel = (uint16_t)(2 + i % 2) };
	NET_UNTIL(tcp_endpoint_of(liar.end.endpoint)->nsignals == TCP_MAX_SIGNALS,
	    send_some(&liar, heads, sizeof(heads), &sent));
	for (int i = 0; i < 100; i++)
		send_some(&liar, heads, sizeof(heads), &sent);
	assert_int_equal(liar.end.signalled, 0);
	assert_int_equal(tcp_endpoint_of(liar.end.endpoint)->nsignals, TCP_MAX_SIGNALS);
	NET_UNTIL(ops->arm(liar.device), net_step(ops, liar.device));
	send_head(&liar, 1, (struct tcp_head){ .kind = TCP_PIECE, .bytes = 1024, .put = 0 }, data);
	NET_UNTIL(liar.end.signalled == 1 + SIGNALS, send_some(&liar, heads, sizeof(heads), &sent));
	assert_int_equal(liar.end.signals[2], SIGNALS / 2);
	assert_int_equal(liar.end.signals[3], SIGNALS / 2);
	liar_close(&liar);
}

TEST(test_a_connection_cut_in_a_message_is_an_error)
{
	struct tcp_head head = { .kind = TCP_PUT, .bytes = 100, .count = 1 };
	struct liar liar;

	for (int socket = 0; socket < 2; socket++) {
		liar_open(&liar);
		head.kind = socket ? TCP_PIECE : TCP_PUT;
		head.count = socket ? 0 : 1;
		head.memory = (uint32_t)ops->mem_remote(liar.memory).word[0];
		assert_int_equal(send(liar.fd[socket], &head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
		assert_int_equal(send(liar.fd[socket], "half", 4, MSG_NOSIGNAL), 4);
		shutdown(liar.fd[socket], SHUT_WR);
		NET_UNTIL(liar.end.dead, net_step_or_sleep(ops, liar.device, AT_ONCE_MS));
		assert_int_equal(liar.end.err, -EOWNERDEAD);
		assert_int_equal(liar.end.signalled, 0);
		liar_close(&liar);
	}
}

/* ---- hosts that do not answer */

/* A listener whose queue is full drops what comes, as a host that is gone does. */
TEST(test_connecting_to_a_black_hole_has_an_end)
{
	struct shunt_net_device *device = net_open(ops);
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct tcp_blob hole = { .magic = TCP_MAGIC,
		.version = TCP_VERSION,
		.id = UINT64_MAX,
		.family = AF_INET,
		.data_sockets = 4,
		.address = { 127, 0, 0, 1 } };
	struct shunt_net_blob blob = { { 0 } };
	socklen_t len = sizeof(sin);
	struct net_end end = { 0 };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fds[4];
	int64_t start;

	assert_int_equal(bind(listener, (struct sockaddr *)&sin, sizeof(sin)), 0);
	assert_int_equal(listen(listener, 0), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&sin, &len), 0);
	for (int i = 0; i < 4; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)!connect(fds[i], (struct sockaddr *)&sin, sizeof(sin));
	}
	hole.port = sin.sin_port;
	memcpy(blob.bytes, &hole, sizeof(hole));
	net_create(ops, device, &end, 1, 400);
	start = unit_now_ms();
	assert_int_equal(ops->endpoint_connect(end.endpoint, &blob), 0);
	NET_UNTIL(end.dead, net_step_or_sleep(ops, device, AT_ONCE_MS));
	assert_true(unit_now_ms() - start >= 390);
	assert_int_equal(end.err, -ETIMEDOUT);
	assert_non_null(strstr(end.text, "rank 3 on node2 (127.0.0.1:"));
	ops->endpoint_close(end.endpoint);
	ops->close(device);
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	close(listener);
}

/* Between two tries of the kernel, in ms; 0: it has no such limit. */
static int longest_wait(int fd)
{
	socklen_t len = sizeof(int);
	int ms = 0;

	return getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &ms, &len) ? 0 : ms;
}

/* Looks at a connection that sends again each time, as one does that loses much: what is heard counts. */
TEST(test_a_connection_that_gets_on_is_not_gone)
{
	struct tcp_socket s = { .state = TCP_OPEN, .fd = socket(AF_INET, SOCK_STREAM, 0) };
	struct tcp_info info = { .tcpi_unacked = 1, .tcpi_retransmits = 2 };
	int64_t now = 1000000, end = now + 2 * TCP_GONE_MS + TCP_CHECK_MS;
	int most = longest_wait(s.fd);

	for (; now < end; now += TCP_CHECK_MS) {
		info.tcpi_last_ack_recv = (uint32_t)(now % 7 * 100);
		info.tcpi_last_data_recv = UINT32_MAX;
		assert_false(shunt_tcp_look(&s, &info, now));
		assert_int_equal(longest_wait(s.fd), most);
	}
	/* Nothing more is heard. It had been silent for long before it sent, which does not count. */
	s.stuck_since = 0;
	info.tcpi_last_ack_recv = 3600000;
	for (end = now + TCP_GONE_MS; now < end; now += TCP_CHECK_MS, info.tcpi_last_ack_recv += TCP_CHECK_MS)
		assert_false(shunt_tcp_look(&s, &info, now));
	assert_true(shunt_tcp_look(&s, &info, now));
	/* So that the last of few tries is not what it dies of. */
	assert_int_equal(longest_wait(s.fd), most ? SHUNT_TCP_AGAIN_MS : 0);
	info.tcpi_last_ack_recv = 10;
	assert_false(shunt_tcp_look(&s, &info, now));
	assert_int_equal(longest_wait(s.fd), most);
	close(s.fd);
}

TEST(test_nobody_listens)
{
	struct shunt_net_device *device = net_open(ops), *gone = net_open(ops);
	struct net_end end = { 0 }, other = { 0 };
	struct tcp_blob b;

	net_create(ops, gone, &other, 1, 400);
	memcpy(&b, other.blob.bytes, sizeof(b));
	b.id = UINT64_MAX;
	memcpy(other.blob.bytes, &b, sizeof(b));
	ops->endpoint_close(other.endpoint);
	ops->close(gone);
	net_create(ops, device, &end, 1, AT_ONCE_MS);
	assert_int_equal(ops->endpoint_connect(end.endpoint, &other.blob), 0);
	NET_UNTIL(end.dead, net_step_or_sleep(ops, device, AT_ONCE_MS));
	assert_int_equal(end.err, -ECONNREFUSED);
	ops->endpoint_close(end.endpoint);
	ops->close(device);
}

TEST(test_ipv6)
{
	struct net_pair pair = { .ops = ops };
	struct shunt_netaddr addr;

	if (shunt_netif_list(&(struct shunt_netif_rules){ "=lo", "AF_INET6", NULL }, &addr, 1) != 1)
		skip();
	for (int i = 0; i < 2; i++) {
		struct tcp_device *device;

		pair.device[i] = net_open(ops);
		device = tcp_device_of(pair.device[i]);
		/* The variables are read once: the device is moved to the other family. */
		close(device->listen_fd);
		device->addr = addr;
		assert_int_equal(shunt_tcp_listen(device), 0);
		net_create(ops, pair.device[i], &pair.end[i], 5, AT_ONCE_MS);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(ops->endpoint_connect(pair.end[i].endpoint, &pair.end[!i].blob), 0);
	NET_UNTIL(pair.end[0].ready && pair.end[1].ready, net_pair_step(&pair));
	net_pair_close(&pair);
}

TESTS_BEGIN
{
	own_environment();
}

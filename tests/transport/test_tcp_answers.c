/* SPDX-License-Identifier: MIT */
/*
 * Description: a peer answers what a socket's thread has sent, while that thread is still in its call. The memory may
 * be written anew then, and ThreadSanitizer, which sees no order in the program, must know of the one by the network.
 */
#include <pthread.h>
#include <sys/socket.h>
#include "tests/support/own.h"
#include "tests/transport/net_ends.h"
#include "transport/net/tcp/tcp.h"

enum { BYTES = 32768 }; /* a put in one piece, and too large for the device's own thread */

static const struct shunt_net_ops *const ops = &shunt_net_tcp_ops;
static atomic_bool holds;

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	ssize_t n = __real_sendmsg(fd, msg, flags);
	int err = errno;
	char name[16] = "";

	pthread_getname_np(pthread_self(), name, sizeof(name));
	while (!strcmp(name, "shunt-socket") && atomic_load(&holds))
		pause_us(PAUSE_POLL, 1000);
	errno = err;
	return n;
}

TEST(test_memory_is_free_once_its_put_is_answered)
{
	uint8_t *bytes[2] = { malloc(BYTES), malloc(BYTES) };
	struct shunt_net_put put = { .bytes = BYTES, .count = 1 }, answer = { .count = 1 };
	struct shunt_net_memory *memory[2];
	struct net_pair pair;

	net_pair_open(&pair, ops);
	for (int i = 0; i < 2; i++) {
		assert_non_null(bytes[i]);
		memset(bytes[i], 1 + i, BYTES);
		memory[i] = net_register(ops, pair.device[i], bytes[i], BYTES);
	}
	put.source = bytes[0];
	put.memory = memory[0];
	put.remote = ops->mem_remote(memory[1]);
	atomic_store(&holds, true);
	net_put(ops, pair.device[0], &pair.end[0], &put);
	NET_UNTIL(pair.end[1].signalled == 1, net_pair_step(&pair));
	net_put(ops, pair.device[1], &pair.end[1], &answer);
	NET_UNTIL(pair.end[0].signalled == 1, net_pair_step(&pair));
	assert_int_equal(pair.end[0].done, 0); /* the thread is still in its call */
	memset(bytes[0], 3, BYTES);
	atomic_store(&holds, false);
	NET_UNTIL(pair.end[0].done == 1 && pair.end[1].done == 1, net_pair_step(&pair));
	net_expect_only(1, bytes[1], BYTES);
	for (int i = 0; i < 2; i++)
		net_end_close(ops, &pair.end[i]);
	for (int i = 0; i < 2; i++) {
		ops->mem_deregister(memory[i]);
		ops->close(pair.device[i]);
		free(bytes[i]);
	}
}

TESTS_BEGIN
{
	own_environment();
}

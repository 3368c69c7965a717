/* SPDX-License-Identifier: MIT */
/*
 * What a put over TCP costs on the host, beside a bare send() of as many bytes, and how fast large puts are, over
 * loopback: `meson test --benchmark net_cost`. Nothing is compared with a limit: the times are those of the machine.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "tests/transport/net_ends.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/tcp/tcp_wire.h"

enum { ROUNDS = 400, EACH = 256, BATCH = 16, PAYLOAD = 64, LARGE = 4 << 20, LARGE_PUTS = 512, IN_FLIGHT = 8 };

static const struct shunt_net_ops *const ops = &shunt_net_tcp_ops;
static struct net_pair pair;
static const struct net_end *const end = pair.end;
static uint8_t bytes[2][LARGE];
static struct shunt_net_memory *memory[2];

static void step(int i)
{
	net_step(ops, pair.device[i]);
	assert_false(end[i].dead);
}

/* ns of a send() of as many bytes as a put has with its head. The other end reads between rounds. */
static double bare_send(void)
{
	char packet[sizeof(struct tcp_head) + PAYLOAD] = { 0 }, sink[65536];
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	int from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), to;
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sin);
	double spent = 0;

	assert_true(!bind(listener, (struct sockaddr *)&sin, sizeof(sin)) && !listen(listener, 1));
	assert_true(!getsockname(listener, (struct sockaddr *)&sin, &len));
	assert_true(!connect(from, (struct sockaddr *)&sin, sizeof(sin)));
	to = accept(listener, NULL, NULL);
	setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	for (int r = 0; r < ROUNDS; r++) {
		double start = now();

		for (int i = 0; i < EACH; i++)
			assert_true(send(from, packet, sizeof(packet), MSG_DONTWAIT) == sizeof(packet));
		spent += now() - start;
		for (size_t got = 0; got < EACH * sizeof(packet);) {
			ssize_t n = recv(to, sink, sizeof(sink), 0);

			assert_true(n > 0);
			got += (size_t)n;
		}
	}
	close(listener);
	close(from);
	close(to);
	return spent / ROUNDS / EACH * 1e9;
}

/* ns of a put with its signal, `batch` in one call, with the progress that tells that they are done. */
static double small_puts(int batch)
{
	uint64_t posted = end[0].done, signals = end[1].signalled;
	struct shunt_net_put puts[BATCH];
	double spent = 0;

	for (int i = 0; i < batch; i++)
		puts[i] = (struct shunt_net_put){ .source = bytes[0] + i * PAYLOAD,
			.memory = memory[0],
			.remote = ops->mem_remote(memory[1]),
			.remote_offset = (uint64_t)i * PAYLOAD,
			.bytes = PAYLOAD,
			.count = 1 };
	for (int r = 0; r < ROUNDS; r++) {
		double start = now();

		for (int i = 0; i < EACH; i += batch) {
			assert_int_equal(ops->post(end[0].endpoint, puts, batch), batch);
			step(0);
		}
		posted += EACH;
		while (end[0].done < posted)
			step(0);
		spent += now() - start;
		signals += EACH;
		while (end[1].signalled < signals)
			step(1);
	}
	return spent / ROUNDS / EACH * 1e9;
}

static void *receive_large(void *arg)
{
	uint64_t signals = end[1].signalled + LARGE_PUTS;

	while (end[1].signalled < signals)
		step(1);
	return NULL;
}

/* GB/s, each end in a thread. */
static double large_puts(void)
{
	struct shunt_net_put put = { .source = bytes[0],
		.memory = memory[0],
		.remote = ops->mem_remote(memory[1]),
		.bytes = LARGE,
		.count = 1 };
	uint64_t posted = end[0].done, last = posted + LARGE_PUTS;
	pthread_t thread;
	double start = now();

	assert_true(!pthread_create(&thread, NULL, receive_large, NULL));
	while (end[0].done < last) {
		if (posted < last && posted - end[0].done < IN_FLIGHT && ops->post(end[0].endpoint, &put, 1) == 1)
			posted++;
		step(0);
	}
	pthread_join(thread, NULL);
	return (double)LARGE_PUTS * LARGE / (now() - start) / 1e9;
}

int main(void)
{
	own_environment();
	net_pair_open(&pair, ops);
	for (int i = 0; i < 2; i++)
		memory[i] = net_register(ops, pair.device[i], bytes[i], LARGE);
	small_puts(1); /* the first ones are slower */
	printf("send() of %zu bytes: %.0f ns\n", sizeof(struct tcp_head) + PAYLOAD, bare_send());
	printf("put of %d bytes with a signal: %.0f ns\n", PAYLOAD, small_puts(1));
	printf("... in batches of %d: %.0f ns each\n", BATCH, small_puts(BATCH));
	printf("puts of %d MiB: %.2f GB/s\n", LARGE >> 20, large_puts());
	for (int i = 0; i < 2; i++) {
		net_end_close(ops, &pair.end[i]);
		ops->mem_deregister(memory[i]);
		ops->close(pair.device[i]);
	}
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * What a put over TCP costs on the host, beside a bare send() of as many bytes, and how fast large puts are, over
 * loopback: `meson test --benchmark net_cost`. Nothing is compared with a limit: the times are those of the machine.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/tcp/tcp_wire.h"

enum { ROUNDS = 400, EACH = 256, BATCH = 16, PAYLOAD = 64, LARGE = 4 << 20, LARGE_PUTS = 512, IN_FLIGHT = 8 };

static const struct shunt_net_ops *const ops = &shunt_net_tcp_ops;

static void require(int cond, const char *what)
{
	if (cond)
		return;
	perror(what);
	exit(1);
}

struct end {
	struct shunt_net_device *device;
	struct shunt_net_endpoint *endpoint;
	struct shunt_net_blob blob;
	struct shunt_net_memory *memory;
	uint8_t *bytes;
	bool ready;
	uint64_t done, signalled;
};

static void step(struct end *end)
{
	struct shunt_net_event events[16];
	int n = ops->progress(end->device, events, 16);

	for (int i = 0; i < n; i++) {
		require(events[i].kind != SHUNT_NET_ERROR, "the endpoint died");
		end->ready |= events[i].kind == SHUNT_NET_READY;
		end->done += events[i].kind == SHUNT_NET_PUT_DONE ? events[i].count : 0;
		end->signalled += events[i].kind == SHUNT_NET_SIGNAL ? events[i].count : 0;
	}
}

static void open_ends(struct end end[2])
{
	struct shunt_net_peer peer = { .name = "the other end", .connect_ms = 10000 };

	for (int i = 0; i < 2; i++) {
		struct shunt_net_region region = { .bytes = LARGE, .dmabuf_fd = -1 };

		end[i].bytes = region.start = calloc(1, LARGE);
		require(region.start && !ops->open(0, &end[i].device), "open");
		require(!ops->mem_register(end[i].device, &region, &end[i].memory), "register");
		require(!ops->endpoint_create(end[i].device, &peer, &end[i].endpoint, &end[i].blob), "create");
	}
	for (int i = 0; i < 2; i++)
		require(!ops->endpoint_connect(end[i].endpoint, &end[!i].blob), "connect");
	while (!end[0].ready || !end[1].ready) {
		step(&end[0]);
		step(&end[1]);
	}
}

static void close_ends(struct end end[2])
{
	for (int i = 0; i < 2; i++) {
		ops->endpoint_close(end[i].endpoint);
		ops->mem_deregister(end[i].memory);
		ops->close(end[i].device);
		free(end[i].bytes);
	}
}

/* ns of a send() of as many bytes as a put has with its head. The other end reads between rounds. */
static double bare_send(void)
{
	char bytes[sizeof(struct tcp_head) + PAYLOAD] = { 0 }, sink[65536];
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	int from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), to;
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sin);
	double spent = 0;

	require(!bind(listener, (struct sockaddr *)&sin, sizeof(sin)) && !listen(listener, 1), "listen");
	require(!getsockname(listener, (struct sockaddr *)&sin, &len), "getsockname");
	require(!connect(from, (struct sockaddr *)&sin, sizeof(sin)), "connect");
	to = accept(listener, NULL, NULL);
	setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	for (int r = 0; r < ROUNDS; r++) {
		double start = now();

		for (int i = 0; i < EACH; i++)
			require(send(from, bytes, sizeof(bytes), MSG_DONTWAIT) == sizeof(bytes), "send");
		spent += now() - start;
		for (size_t got = 0; got < EACH * sizeof(bytes);) {
			ssize_t n = recv(to, sink, sizeof(sink), 0);

			require(n > 0, "recv");
			got += (size_t)n;
		}
	}
	close(listener);
	close(from);
	close(to);
	return spent / ROUNDS / EACH * 1e9;
}

/* ns of a put with its signal, `batch` in one call, with the progress that tells that they are done. */
static double small_puts(struct end end[2], int batch)
{
	uint64_t posted = end[0].done, signals = end[1].signalled;
	struct shunt_net_put puts[BATCH];
	double spent = 0;

	for (int i = 0; i < batch; i++)
		puts[i] = (struct shunt_net_put){ .source = end[0].bytes + i * PAYLOAD,
			.memory = end[0].memory,
			.remote = ops->mem_remote(end[1].memory),
			.remote_offset = (uint64_t)i * PAYLOAD,
			.bytes = PAYLOAD,
			.count = 1 };
	for (int r = 0; r < ROUNDS; r++) {
		double start = now();

		for (int i = 0; i < EACH; i += batch) {
			require(ops->post(end[0].endpoint, puts, batch) == batch, "post");
			step(&end[0]);
		}
		posted += EACH;
		while (end[0].done < posted)
			step(&end[0]);
		spent += now() - start;
		signals += EACH;
		while (end[1].signalled < signals)
			step(&end[1]);
	}
	return spent / ROUNDS / EACH * 1e9;
}

static void *receive_large(void *arg)
{
	struct end *end = arg;
	uint64_t signals = end->signalled + LARGE_PUTS;

	while (end->signalled < signals)
		step(end);
	return NULL;
}

/* GB/s, each end in a thread. */
static double large_puts(struct end end[2])
{
	struct shunt_net_put put = { .source = end[0].bytes,
		.memory = end[0].memory,
		.remote = ops->mem_remote(end[1].memory),
		.bytes = LARGE,
		.count = 1 };
	uint64_t posted = end[0].done, last = posted + LARGE_PUTS;
	pthread_t thread;
	double start = now();

	require(!pthread_create(&thread, NULL, receive_large, &end[1]), "thread");
	while (end[0].done < last) {
		if (posted < last && posted - end[0].done < IN_FLIGHT && ops->post(end[0].endpoint, &put, 1) == 1)
			posted++;
		step(&end[0]);
	}
	pthread_join(thread, NULL);
	return (double)LARGE_PUTS * LARGE / (now() - start) / 1e9;
}

int main(void)
{
	struct end end[2] = { 0 };

	own_environment();
	open_ends(end);
	small_puts(end, 1); /* the first ones are slower */
	printf("send() of %zu bytes: %.0f ns\n", sizeof(struct tcp_head) + PAYLOAD, bare_send());
	printf("put of %d bytes with a signal: %.0f ns\n", PAYLOAD, small_puts(end, 1));
	printf("... in batches of %d: %.0f ns each\n", BATCH, small_puts(end, BATCH));
	printf("puts of %d MiB: %.2f GB/s\n", LARGE >> 20, large_puts(end));
	close_ends(end);
	return 0;
}

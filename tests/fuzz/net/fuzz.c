/* SPDX-License-Identifier: MIT */
/*
 * Any bytes from a peer of the provider "tcp" that has proved itself: heads and payloads on a socket for signals and on
 * one for data. Nothing but the registered memory may be written, and each signal is told once at most. For libFuzzer
 * and for bytes_drive.c. The sockets are a pair in this process; nothing goes out to the network.
 */
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/tcp/tcp_priv.h"
#include "tests/support/fuzz_try.h"

enum { GUARD = 512, MEMORY = 4096 };

static uint8_t place[GUARD + MEMORY + GUARD] __attribute__((aligned(8)));

struct subject {
	struct shunt_net_device *device;
	struct shunt_net_endpoint *endpoint;
	struct shunt_net_memory *memory;
	int peer[2];
};

static void subject_open(struct subject *s)
{
	struct shunt_net_region region = { .start = place + GUARD, .bytes = MEMORY, .dmabuf_fd = -1 };
	struct shunt_net_peer peer = { .name = "fuzz", .connect_ms = 1000 };
	struct shunt_net_blob blob;
	struct tcp_endpoint *ep;

	require(!shunt_net_tcp_ops.open(0, &s->device), "no device");
	require(!shunt_net_tcp_ops.mem_register(s->device, &region, &s->memory), "memory");
	require(!shunt_net_tcp_ops.endpoint_create(s->device, &peer, &s->endpoint, &blob), "endpoint");
	ep = tcp_endpoint_of(s->endpoint);
	ep->state = TCP_CONNECTED;
	ep->device->nconnected++;
	ep->device->check_at = INT64_MAX;
	ep->nsockets = 2;
	for (int i = 0; i < 2; i++) {
		int pair[2];

		require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), "socketpair");
		ep->socket[i].fd = pair[0];
		ep->socket[i].state = TCP_OPEN;
		ep->socket[i].in_bytes = i ? 64 : 256; /* small, so that borders are near */
		ep->socket[i].in = malloc(ep->socket[i].in_bytes);
		require(ep->socket[i].in != NULL, "memory");
		s->peer[i] = pair[1];
	}
}

static void subject_close(struct subject *s)
{
	for (int i = 0; i < 2; i++)
		close(s->peer[i]);
	shunt_net_tcp_ops.endpoint_close(s->endpoint);
	shunt_net_tcp_ops.mem_deregister(s->memory);
	shunt_net_tcp_ops.close(s->device);
}

/*
 * A turn: which socket, how many bytes, and the bytes. Of a head that begins a turn the kind is made one that there is,
 * and the memory one that may be there, unless its first byte says otherwise: deeper than bytes at random come.
 */
static size_t say(struct subject *s, const uint8_t *data, size_t bytes)
{
	uint8_t message[256];
	size_t n = data[1];
	int socket = data[0] & 1;
	ssize_t sent;

	if (n > bytes - 2)
		n = bytes - 2;
	memcpy(message, data + 2, n);
	if ((data[0] & 2) && n >= sizeof(struct tcp_head)) {
		struct tcp_head head;

		memcpy(&head, message, sizeof(head));
		head.kind = 1 + head.kind % 4;
		head.flags &= 1;
		head.memory = tcp_memory_of(s->memory)->id;
		head.offset_high = 0;
		head.offset_low %= MEMORY + 8;
		head.bytes %= 200;
		head.count %= 4;
		head.put %= 8;
		memcpy(message, &head, sizeof(head));
	}
	sent = send(s->peer[socket], message, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	(void)sent; /* to an endpoint that is dead nothing goes */
	return 2 + n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct subject s;
	struct tcp_endpoint *ep;
	bool ended = false, dead = false;

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	memset(place, 0xee, sizeof(place));
	subject_open(&s);
	ep = tcp_endpoint_of(s.endpoint);
	while (bytes > 2) {
		struct shunt_net_event events[4];
		size_t n = say(&s, data, bytes);
		int told;

		data += n;
		bytes -= n;
		for (int i = 0; i < 2; i++)
			ep->socket[i].readable = ep->socket[i].fd >= 0;
		shunt_tcp_queue(ep);
		told = shunt_net_tcp_ops.progress(s.device, events, 4);
		for (int i = 0; i < told; i++) {
			require(!dead, "an event after the error");
			require(!ended || events[i].kind != SHUNT_NET_SIGNAL, "a signal after the end");
			ended |= events[i].kind == SHUNT_NET_END;
			dead |= events[i].kind == SHUNT_NET_ERROR;
			require(events[i].kind != SHUNT_NET_ERROR || events[i].text[0], "an error without a text");
		}
	}
	subject_close(&s);
	for (size_t i = 0; i < GUARD; i++)
		require(
		    place[i] == 0xee && place[GUARD + MEMORY + i] == 0xee, "memory that is not registered was written");
	return 0;
}

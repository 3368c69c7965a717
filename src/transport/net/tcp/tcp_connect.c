/* SPDX-License-Identifier: MIT */
/*
 * How two endpoints connect. Each has the other's blob. The endpoint with the smaller id connects to the device of the
 * other, once for each socket. The device sends a challenge, gets a hello that names the endpoint and proves the key,
 * and answers with a proof of its own. A stranger holds one of a few places for a while, and gets nothing but random
 * bytes. A connection that a crowd has pushed out is made again.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include "base/inet/socket.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/net/tcp/tcp_priv.h"

#define MAX_ACCEPTS 64 /* in one progress */
#define STUCK_MS 1000
#define KERNEL_AGAIN_MS 120000 /* the kernel's default of TCP_RTO_MAX_MS */
#define IN_BYTES_HEADS 16384u
#define IN_BYTES_DATA 2048u

static int watch_fd(struct tcp_device *device, int op, int fd, struct tcp_watch *watch)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = watch };

	return epoll_ctl(device->base.epoll_fd, op, fd, &event) ? -errno : 0;
}

/*
 * A peer that does not read for long, because it is stopped, is no reason to end the connection, so the time that
 * unacknowledged data may take is left to shunt_tcp_time: TCP_USER_TIMEOUT would count a closed window as well.
 */
static void prepare_socket(int fd, sa_family_t family)
{
	unsigned zero = 0;
	int again = KERNEL_AGAIN_MS;

	shunt_socket_tcp.prepare(fd, family);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &zero, sizeof(zero));
	setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &again, sizeof(again));
}

int shunt_tcp_listen(struct tcp_device *device)
{
	int err = shunt_socket_listen(&shunt_socket_tcp, &device->addr, &device->listen_fd);

	if (err)
		return err;
	return watch_fd(device, EPOLL_CTL_ADD, device->listen_fd, &device->listener);
}

/* ---- proofs */

static void mac_hello(
    uint8_t mac[SHUNT_MAC_BYTES], const struct tcp_endpoint *ep, const uint8_t *nonce, const struct tcp_hello *hello)
{
	shunt_mac(mac, shunt_bytes(ep->base.key, sizeof(ep->base.key)), "shunt net tcp hello",
	    shunt_bytes(nonce, TCP_NONCE), shunt_bytes(hello, offsetof(struct tcp_hello, mac)));
}

static void mac_answer(uint8_t mac[SHUNT_MAC_BYTES], const struct tcp_endpoint *ep, const struct tcp_hello *hello)
{
	shunt_mac(mac, shunt_bytes(ep->base.key, sizeof(ep->base.key)), "shunt net tcp answer",
	    shunt_bytes(hello->nonce, TCP_NONCE), shunt_bytes(hello->mac, sizeof(hello->mac)));
}

/* ---- blobs */

void shunt_tcp_blob(const struct tcp_endpoint *ep, struct shunt_net_blob *blob_p)
{
	const struct shunt_netaddr *addr = &ep->device->addr;
	struct tcp_blob blob = { .magic = TCP_MAGIC, .version = TCP_VERSION, .id = ep->id };

	blob.data_sockets = (uint16_t)ep->data_sockets;
	blob.family = addr->ss.ss_family;
	if (blob.family == AF_INET) {
		const struct sockaddr_in *sin = (const struct sockaddr_in *)&addr->ss;

		blob.port = sin->sin_port;
		memcpy(blob.address, &sin->sin_addr, sizeof(sin->sin_addr));
	} else {
		const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)&addr->ss;

		blob.port = sin6->sin6_port;
		memcpy(blob.address, &sin6->sin6_addr, sizeof(sin6->sin6_addr));
	}
	memset(blob_p, 0, sizeof(*blob_p));
	memcpy(blob_p->bytes, &blob, sizeof(blob));
}

static bool blob_address(const struct tcp_device *device, const struct tcp_blob *blob, struct shunt_netaddr *addr)
{
	*addr = (struct shunt_netaddr){ 0 };
	if (blob->family == AF_INET) {
		struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = blob->port };

		memcpy(&sin.sin_addr, blob->address, sizeof(sin.sin_addr));
		memcpy(&addr->ss, &sin, sizeof(sin));
		addr->len = sizeof(sin);
	} else if (blob->family == AF_INET6) {
		struct sockaddr_in6 sin6 = { .sin6_family = AF_INET6, .sin6_port = blob->port };

		memcpy(&sin6.sin6_addr, blob->address, sizeof(sin6.sin6_addr));
		/* The peer is on our link: the scope is the index of our interface, not of the peer's. */
		if (IN6_IS_ADDR_LINKLOCAL(&sin6.sin6_addr))
			sin6.sin6_scope_id = if_nametoindex(device->addr.ifname);
		memcpy(&addr->ss, &sin6, sizeof(sin6));
		addr->len = sizeof(sin6);
	}
	return addr->len && blob->port && blob->data_sockets <= TCP_MAX_DATA_SOCKETS && blob->id;
}

/* ---- sockets of an endpoint */

static int make_buffers(struct tcp_endpoint *ep, uint32_t nsockets)
{
	for (uint32_t i = 0; i < nsockets; i++) {
		struct tcp_socket *s = &ep->socket[i];

		s->in_bytes = i ? IN_BYTES_DATA : IN_BYTES_HEADS;
		if (!s->in)
			s->in = malloc(s->in_bytes);
		if (!s->in)
			return -ENOMEM;
	}
	ep->nsockets = nsockets;
	return 0;
}

/* Gives the data sockets to threads, if there are some. */
static void give_sockets(struct tcp_endpoint *ep)
{
	struct tcp_device *device = ep->device;
	int err = 0;

	for (uint32_t i = 1; i < ep->nsockets && device->workers && !err; i++) {
		struct tcp_socket *s = &ep->socket[i];

		(void)epoll_ctl(device->base.epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
		err = shunt_tcp_load_give(device->workers, &s->load, s->fd);
	}
	if (err)
		shunt_tcp_fail(ep, err, "no thread can wait for its data: %s", strerror(-err));
}

/* Connected, if all sockets are and the program has asked for it. */
static void check_connected(struct tcp_endpoint *ep)
{
	if (!ep->asked)
		return;
	for (uint32_t i = 0; i < ep->nsockets; i++)
		if (ep->socket[i].state != TCP_OPEN)
			return;
	ep->state = TCP_CONNECTED;
	ep->device->njoining--;
	if (!ep->device->nconnected++)
		ep->device->check_at = shunt_now_ms() + TCP_CHECK_MS;
	/* epoll tells no new edge for bytes that came before this. */
	for (uint32_t i = 0; i < ep->nsockets; i++)
		ep->socket[i].writable = ep->socket[i].readable = true;
	give_sockets(ep);
	shunt_tcp_queue(ep);
}

static void retry(struct tcp_socket *s)
{
	shunt_net_device_close_socket(&s->endpoint->device->base, &s->fd);
	s->state = TCP_RETRY;
	s->retry_at = shunt_now_ms() + TCP_RETRY_MS;
	s->writable = s->readable = s->hangup = false;
	s->in_to = 0;
}

/* Of a network that does not carry to the peer. */
static void not_reached(struct tcp_endpoint *ep, int err)
{
	const struct shunt_netaddr *ours = &ep->device->addr;
	char at[80];

	shunt_netaddr_show_host(ours, at, sizeof(at));
	shunt_tcp_fail(ep, err,
	    "no connection from %s (%s): %s; NCCL_SOCKET_IFNAME must name networks that join the hosts", at,
	    ours->ifname, strerror(-err));
}

/* An attempt has failed: for good, or because a crowd of connections pushed it out. */
static void connect_failed(struct tcp_socket *s, int err)
{
	if (err == -EAGAIN || err == -ETIMEDOUT || err == -EINTR || err == -EOWNERDEAD || err == -EADDRNOTAVAIL)
		retry(s);
	else if (err == -EHOSTUNREACH || err == -ENETUNREACH)
		not_reached(s->endpoint, err);
	else
		shunt_tcp_fail(s->endpoint, err, "no connection: %s%s", strerror(-err),
		    err == -ECONNREFUSED ? "; its process has gone" : "");
}

static void start_connect(struct tcp_socket *s)
{
	struct tcp_device *device = s->endpoint->device;
	struct shunt_netaddr ours = device->addr;
	const struct shunt_netaddr *theirs = &s->endpoint->peer_addr;
	int one = 1, err;

	s->fd = SHUNT_FD(socket(theirs->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (s->fd < 0) {
		connect_failed(s, -errno);
		return;
	}
	prepare_socket(s->fd, theirs->ss.ss_family);
	/* From this device, not whichever the routes prefer. */
	if (ours.ss.ss_family == theirs->ss.ss_family) {
		if (ours.ss.ss_family == AF_INET)
			((struct sockaddr_in *)&ours.ss)->sin_port = 0;
		else
			((struct sockaddr_in6 *)&ours.ss)->sin6_port = 0;
		setsockopt(s->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
		if (bind(s->fd, (const struct sockaddr *)&ours.ss, ours.len)) {
			connect_failed(s, -errno);
			return;
		}
	}
	s->state = TCP_CONNECTING;
	s->retry_at = shunt_now_ms() + TCP_CONNECT_MS;
	err = connect(s->fd, (const struct sockaddr *)&theirs->ss, theirs->len) ? -errno : 0;
	if (err && err != -EINPROGRESS) {
		connect_failed(s, err);
		return;
	}
	err = watch_fd(device, EPOLL_CTL_ADD, s->fd, &s->watch);
	if (err)
		connect_failed(s, err);
}

/* Reads until there are `bytes` in the buffer. */
static bool read_exactly(struct tcp_socket *s, size_t bytes)
{
	ssize_t n = recv(s->fd, s->in + s->in_to, bytes - s->in_to, MSG_DONTWAIT);

	if (n > 0)
		s->in_to += (uint32_t)n;
	else if (n == 0)
		connect_failed(s, -EOWNERDEAD);
	else if (errno == EAGAIN || errno == EINTR)
		s->readable = errno == EINTR;
	else
		connect_failed(s, shunt_io_error(errno));
	return s->state != TCP_RETRY && s->endpoint->state != TCP_DEAD && s->in_to == bytes;
}

static void say_hello(struct tcp_socket *s)
{
	struct tcp_endpoint *ep = s->endpoint;
	struct tcp_challenge challenge;
	struct tcp_hello hello = { .magic = TCP_MAGIC,
		.version = TCP_VERSION,
		.to = ep->peer_id,
		.from = ep->id,
		.index = s->index,
		.sockets = ep->nsockets };

	if (!read_exactly(s, sizeof(challenge)))
		return;
	memcpy(&challenge, s->in, sizeof(challenge));
	s->in_to = 0;
	if (challenge.magic != TCP_MAGIC || challenge.version != TCP_VERSION) {
		shunt_tcp_fail(ep, -EPROTO, "something else listens there, or another version");
		return;
	}
	if (shunt_random(hello.nonce, sizeof(hello.nonce))) {
		shunt_tcp_fail(ep, -EIO, "no random bytes");
		return;
	}
	mac_hello(hello.mac, ep, challenge.nonce, &hello);
	/* An empty socket has room for the hello; a short write means that the connection has broken. */
	if (send(s->fd, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(hello)) {
		retry(s);
		return;
	}
	s->state = TCP_AWAITS_ANSWER;
	/* The expected answer. */
	mac_answer(s->proof, ep, &hello);
}

static void take_answer(struct tcp_socket *s)
{
	struct tcp_endpoint *ep = s->endpoint;
	struct tcp_answer answer;

	if (!read_exactly(s, sizeof(answer)))
		return;
	memcpy(&answer, s->in, sizeof(answer));
	s->in_to = 0;
	if (answer.magic == TCP_MAGIC && answer.status == TCP_NO_ENDPOINT)
		shunt_tcp_fail(ep, -EOWNERDEAD, "its endpoint is closed already");
	else if (answer.magic == TCP_MAGIC && answer.status == TCP_NOT_NOW)
		retry(s);
	else if (answer.magic == TCP_MAGIC && answer.status == TCP_NO_PROOF)
		shunt_tcp_fail(ep, -EACCES, "it refuses the connection: the two have different keys");
	else if (answer.magic != TCP_MAGIC || answer.status != TCP_WELCOME || !shunt_mac_equal(answer.mac, s->proof))
		shunt_tcp_fail(ep, -EACCES, "it does not prove that it has the key");
	else
		s->state = TCP_OPEN;
	if (s->state == TCP_OPEN)
		check_connected(ep);
}

static void step_socket(struct tcp_socket *s)
{
	int pending = 0;
	socklen_t len = sizeof(pending);

	if (s->state == TCP_CONNECTING && (s->writable || s->hangup)) {
		if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &pending, &len))
			pending = errno;
		if (pending) {
			connect_failed(s, shunt_io_error(pending));
			return;
		}
		s->state = TCP_AWAITS_CHALLENGE;
		s->retry_at = shunt_now_ms() + TCP_CONNECT_MS;
	}
	if (s->state == TCP_AWAITS_CHALLENGE && s->readable)
		say_hello(s);
	if (s->state == TCP_AWAITS_ANSWER && s->readable)
		take_answer(s);
}

void shunt_tcp_join(struct tcp_endpoint *ep)
{
	for (uint32_t i = 0; i < ep->nsockets && (ep->state == TCP_CREATED || ep->state == TCP_JOINING); i++) {
		struct tcp_socket *s = &ep->socket[i];

		if (s->state == TCP_OPEN && s->hangup)
			shunt_tcp_fail(ep, -EOWNERDEAD, "it connected and has gone again");
		else if (s->state != TCP_OPEN)
			step_socket(s);
	}
}

int shunt_tcp_connect(struct shunt_net_endpoint *endpoint, const struct shunt_net_blob *theirs)
{
	struct tcp_endpoint *ep = tcp_endpoint_of(endpoint);
	struct tcp_blob blob;
	uint32_t ndata = ep->data_sockets;

	memcpy(&blob, theirs->bytes, sizeof(blob));
	if (blob.magic != TCP_MAGIC || blob.version != TCP_VERSION ||
	    !blob_address(ep->device, &blob, &ep->peer_addr) || blob.id == ep->id) {
		shunt_error("%s: %s; let all ranks use the same version of Shunt", ep->base.name,
		    blob.magic == TCP_MAGIC ? "its word on how to connect to it is of another version" :
		                              "what it sent does not say how to connect to it");
		return -EPROTO;
	}
	if (ep->asked)
		return -EINVAL;
	ep->asked = true;
	shunt_netaddr_show(&ep->peer_addr, ep->where, sizeof(ep->where));
	if (ep->state == TCP_DEAD)
		return 0;
	ep->deadline = shunt_deadline_ms(ep->base.connect_ms);
	ep->active = ep->id < blob.id;
	ep->state = TCP_JOINING;
	ep->device->njoining++;
	shunt_tcp_queue(ep);
	if (ep->peer_id && (ep->peer_id != blob.id || ep->active)) {
		shunt_tcp_fail(ep, -EPROTO, "another endpoint has connected to this one");
		return 0;
	}
	ep->peer_id = blob.id;
	if (blob.data_sockets < ndata)
		ndata = blob.data_sockets;
	if (ep->nsockets && ep->nsockets != 1 + ndata) {
		shunt_tcp_fail(ep, -EPROTO, "it makes %u connections instead of %u", ep->nsockets, 1 + ndata);
		return 0;
	}
	if (make_buffers(ep, 1 + ndata)) {
		shunt_tcp_fail(ep, -ENOMEM, "no memory");
		return 0;
	}
	for (uint32_t i = 0; ep->active && i < ep->nsockets && ep->state == TCP_JOINING; i++)
		start_connect(&ep->socket[i]);
	if (ep->state == TCP_JOINING)
		check_connected(ep);
	return 0;
}

/* ---- strangers */

void shunt_tcp_stranger_drop(struct tcp_device *device, struct tcp_stranger *stranger)
{
	if (stranger->fd < 0)
		return;
	shunt_net_device_close_socket(&device->base, &stranger->fd);
	device->nstrangers--;
}

static void refuse(struct tcp_device *device, struct tcp_stranger *stranger, enum tcp_status status)
{
	struct tcp_answer answer = { .magic = TCP_MAGIC, .status = status };
	ssize_t n = send(stranger->fd, &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT);

	(void)n; /* it is told again by the end of the connection */
	shunt_tcp_stranger_drop(device, stranger);
}

static struct tcp_endpoint *find_endpoint(const struct tcp_device *device, uint64_t id)
{
	struct tcp_endpoint *ep = device->endpoints;

	while (ep && ep->id != id)
		ep = ep->next;
	return ep;
}

/* The proof is right: the connection becomes a socket of the endpoint. */
static void admit(struct tcp_endpoint *ep, struct tcp_stranger *stranger)
{
	struct tcp_device *device = ep->device;
	struct tcp_hello *hello = &stranger->hello;
	struct tcp_answer answer = { .magic = TCP_MAGIC, .status = TCP_WELCOME };
	struct tcp_socket *s;

	if (ep->state == TCP_DEAD) {
		refuse(device, stranger, TCP_NO_ENDPOINT);
		return;
	}
	if (ep->state == TCP_CONNECTED || hello->from >= ep->id || (ep->peer_id && ep->peer_id != hello->from) ||
	    hello->sockets < 1 || hello->sockets > 1 + ep->data_sockets || hello->index >= hello->sockets ||
	    (ep->nsockets && ep->nsockets != hello->sockets) || ep->socket[hello->index].state == TCP_OPEN) {
		refuse(device, stranger, TCP_NO_PROOF);
		return;
	}
	s = &ep->socket[hello->index];
	mac_answer(answer.mac, ep, hello);
	if (make_buffers(ep, hello->sockets) || watch_fd(device, EPOLL_CTL_MOD, stranger->fd, &s->watch) ||
	    send(stranger->fd, &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(answer)) {
		refuse(device, stranger, TCP_NOT_NOW);
		return;
	}
	s->fd = stranger->fd;
	s->state = TCP_OPEN;
	s->hangup = false;
	stranger->fd = -1;
	device->nstrangers--;
	ep->peer_id = hello->from;
	check_connected(ep);
	shunt_tcp_queue(ep);
}

static void read_stranger(struct tcp_device *device, struct tcp_stranger *stranger)
{
	struct tcp_hello *hello = &stranger->hello;
	struct tcp_endpoint *ep;
	uint8_t mac[SHUNT_MAC_BYTES];
	ssize_t n;

	stranger->readable = false;
	n = recv(stranger->fd, (uint8_t *)hello + stranger->got, sizeof(*hello) - stranger->got, MSG_DONTWAIT);
	if (n <= 0) {
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			shunt_tcp_stranger_drop(device, stranger);
		return;
	}
	stranger->got += (uint32_t)n;
	if (stranger->got < sizeof(*hello))
		return;
	if (hello->magic != TCP_MAGIC || hello->version != TCP_VERSION) {
		shunt_tcp_stranger_drop(device, stranger);
		return;
	}
	ep = find_endpoint(device, hello->to);
	if (!ep) {
		refuse(device, stranger, TCP_NO_ENDPOINT);
		return;
	}
	mac_hello(mac, ep, stranger->nonce, hello);
	if (!shunt_mac_equal(mac, hello->mac)) {
		ep->refused++;
		refuse(device, stranger, TCP_NO_PROOF);
		return;
	}
	admit(ep, stranger);
}

static struct tcp_stranger *free_place(struct tcp_device *device)
{
	struct tcp_stranger *oldest = NULL;

	for (size_t i = 0; i < TCP_STRANGERS; i++) {
		struct tcp_stranger *stranger = &device->stranger[i];

		if (stranger->fd < 0)
			return stranger;
		if (!oldest || stranger->since < oldest->since)
			oldest = stranger;
	}
	/* Whoever has the key answers at once. */
	shunt_tcp_stranger_drop(device, oldest);
	return oldest;
}

static void greet(struct tcp_device *device, int fd, int64_t now)
{
	struct tcp_stranger *stranger = free_place(device);
	struct tcp_challenge challenge = { .magic = TCP_MAGIC, .version = TCP_VERSION };

	*stranger = (struct tcp_stranger){ .watch.kind = TCP_WATCH_STRANGER, .fd = fd, .since = now };
	device->nstrangers++;
	prepare_socket(fd, device->addr.ss.ss_family);
	if (shunt_random(stranger->nonce, sizeof(stranger->nonce)) ||
	    watch_fd(device, EPOLL_CTL_ADD, fd, &stranger->watch)) {
		shunt_tcp_stranger_drop(device, stranger);
		return;
	}
	memcpy(challenge.nonce, stranger->nonce, sizeof(challenge.nonce));
	if (send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(challenge))
		shunt_tcp_stranger_drop(device, stranger);
}

void shunt_tcp_strangers(struct tcp_device *device)
{
	int64_t now = shunt_now_ms();

	for (size_t i = 0; i < TCP_STRANGERS && device->nstrangers; i++)
		if (device->stranger[i].fd >= 0 && device->stranger[i].readable)
			read_stranger(device, &device->stranger[i]);
	if (now < device->accept_at)
		return;
	for (int i = 0; i < MAX_ACCEPTS && device->listener_readable; i++) {
		int fd = SHUNT_FD(accept4(device->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

		if (fd >= 0) {
			greet(device, fd, now);
		} else if (errno == EAGAIN) {
			device->listener_readable = false;
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			device->accept_at = now + TCP_RETRY_MS;
			break;
		} /* else the connection, or its network, has gone again: take the next connection */
	}
}

/* ---- time */

static void expire_strangers(struct tcp_device *device, int64_t now, int64_t *next)
{
	for (size_t i = 0; i < TCP_STRANGERS && device->nstrangers; i++) {
		struct tcp_stranger *stranger = &device->stranger[i];

		if (stranger->fd < 0)
			continue;
		if (now >= stranger->since + TCP_STRANGER_MS)
			shunt_tcp_stranger_drop(device, stranger);
		else if (stranger->since + TCP_STRANGER_MS < *next)
			*next = stranger->since + TCP_STRANGER_MS;
	}
}

static void join_time(struct tcp_endpoint *ep, int64_t now, int64_t *next)
{
	if (now >= ep->deadline) {
		if (ep->active)
			not_reached(ep, -ETIMEDOUT);
		else
			shunt_tcp_fail(ep, -ETIMEDOUT,
			    "it has not connected to this endpoint within %lld ms; %u "
			    "connections had another key",
			    (long long)ep->base.connect_ms, ep->refused);
		return;
	}
	if (ep->deadline < *next)
		*next = ep->deadline;
	for (uint32_t i = 0; ep->active && i < ep->nsockets && ep->state == TCP_JOINING; i++) {
		struct tcp_socket *s = &ep->socket[i];

		bool waits = s->state == TCP_CONNECTING || s->state == TCP_AWAITS_CHALLENGE;

		if (waits && now >= s->retry_at)
			retry(s);
		if (s->state == TCP_RETRY && now >= s->retry_at)
			start_connect(s);
		if ((s->state == TCP_RETRY || waits) && s->retry_at < *next)
			*next = s->retry_at;
	}
}

/*
 * In the time that a host may be silent the kernel makes few tries, which may all be lost. More of them are only for
 * sockets that are stuck: with its limit the kernel also lowers that for a window that was closed over data on its way.
 */
static void hurry(struct tcp_socket *s, bool on)
{
	int ms = on ? SHUNT_TCP_AGAIN_MS : KERNEL_AGAIN_MS;

	if (s->hurries == on)
		return;
	s->hurries = on;
	setsockopt(s->fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &ms, sizeof(ms)); /* older kernels have it not */
}

/*
 * A connection with many losses retransmits at most looks, and still makes progress: the host is gone only if nothing
 * was heard from it for long.
 */
bool shunt_tcp_look(struct tcp_socket *s, const struct tcp_info *info, int64_t now)
{
	uint32_t silent_ms =
	    info->tcpi_last_ack_recv < info->tcpi_last_data_recv ? info->tcpi_last_ack_recv : info->tcpi_last_data_recv;

	if (!(info->tcpi_unacked && info->tcpi_retransmits) && info->tcpi_probes < 2)
		s->stuck_since = 0;
	else if (!s->stuck_since)
		s->stuck_since = now;
	else if (now - silent_ms > s->stuck_since)
		s->stuck_since = now - silent_ms;
	s->tries = info->tcpi_unacked ? info->tcpi_retransmits : info->tcpi_probes;
	hurry(s, s->stuck_since && silent_ms >= STUCK_MS);
	return s->stuck_since && now - s->stuck_since >= TCP_GONE_MS;
}

static bool is_gone(struct tcp_socket *s, int64_t now)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	return s->state == TCP_OPEN && !getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) &&
	    shunt_tcp_look(s, &info, now);
}

static void check_peers(struct tcp_device *device, int64_t now, int64_t *next)
{
	if (!device->nconnected)
		return;
	if (now >= device->check_at) {
		device->check_at = now + TCP_CHECK_MS;
		for (struct tcp_endpoint *ep = device->endpoints; ep; ep = ep->next)
			for (uint32_t i = 0; i < ep->nsockets && ep->state == TCP_CONNECTED; i++)
				if (is_gone(&ep->socket[i], now))
					shunt_tcp_fail(ep, -ETIMEDOUT, "its host has not answered for %d s (%u tries)",
					    TCP_GONE_MS / 1000, ep->socket[i].tries);
	}
	if (device->check_at < *next)
		*next = device->check_at;
}

void shunt_tcp_time(struct tcp_device *device)
{
	int64_t next = SHUNT_NEVER, now;

	if (!device->njoining && !device->nstrangers && !device->accept_at &&
	    (device->nconnected ? device->timer_at == device->check_at : device->timer_at == SHUNT_NEVER))
		return;
	now = shunt_now_ms();
	expire_strangers(device, now, &next);
	for (struct tcp_endpoint *ep = device->endpoints; ep && device->njoining; ep = ep->next)
		if (ep->state == TCP_JOINING)
			join_time(ep, now, &next);
	check_peers(device, now, &next);
	if (device->accept_at && now >= device->accept_at)
		device->accept_at = 0;
	if (device->accept_at && device->accept_at < next)
		next = device->accept_at;
	if (next == device->timer_at)
		return;
	device->timer_at = next;
	shunt_net_device_set_timer(&device->base, next);
}

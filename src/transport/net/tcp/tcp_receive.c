/* SPDX-License-Identifier: MIT */
/*
 * Incoming data. A head is looked at before a byte of its payload is stored: only registered memory is written. A
 * payload goes from the kernel straight to its target, except for bytes that came together with heads into the socket's
 * buffer, and for packets, which are stored 8 bytes at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include "base/io.h"
#include "transport/net/tcp/tcp_priv.h"

/* ---- signals in the order of their puts */

static bool is_before(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0;
}

bool shunt_tcp_signal_due(const struct tcp_endpoint *ep)
{
	return ep->nsignals && !is_before(ep->large_done, ep->signal[ep->signal_first].after);
}

struct tcp_signal shunt_tcp_signal_take(struct tcp_endpoint *ep)
{
	struct tcp_signal signal = ep->signal[ep->signal_first];

	ep->signal_first = (ep->signal_first + 1) % ep->signal_cap;
	ep->nsignals--;
	return signal;
}

bool shunt_tcp_ended(const struct tcp_endpoint *ep)
{
	return ep->end_come && !ep->nsignals && ep->large_done == ep->large_announced;
}

/* The new room; 0: no memory. */
static uint32_t grow_signals(struct tcp_socket *s)
{
	struct tcp_endpoint *ep = s->endpoint;
	uint32_t cap = ep->signal_cap ? 2 * ep->signal_cap : 64;
	struct tcp_signal *ring = malloc(cap * sizeof(*ring));

	if (!ring) {
		shunt_tcp_fail_socket(s, -ENOMEM, "no memory for %u signals", cap);
		return 0;
	}
	for (uint32_t i = 0; ep->signal_cap && i < ep->nsignals; i++)
		ring[i] = ep->signal[(ep->signal_first + i) % ep->signal_cap];
	free(ep->signal);
	ep->signal = ring;
	ep->signal_cap = cap;
	ep->signal_first = 0;
	return cap;
}

/* Fails where there is no memory. */
static void add_signal(struct tcp_socket *s, const struct tcp_head *head)
{
	struct tcp_endpoint *ep = s->endpoint;
	uint32_t cap = ep->signal_cap;
	struct tcp_signal *last;

	if (!head->count)
		return;
	if (ep->nsignals) {
		last = &ep->signal[(ep->signal_first + ep->nsignals - 1) % ep->signal_cap];
		if (last->channel == head->channel && last->after == ep->large_announced &&
		    last->count <= UINT32_MAX - head->count) {
			last->count += head->count;
			return;
		}
	}
	if (ep->nsignals == cap)
		cap = grow_signals(s);
	if (cap)
		ep->signal[(ep->signal_first + ep->nsignals++) % cap] =
		    (struct tcp_signal){ head->channel, head->count, ep->large_announced };
}

/* ---- large puts */

/* Under the lock. NULL: no memory. */
static struct tcp_in_large *in_large(struct tcp_endpoint *ep, uint32_t number)
{
	if (!ep->large)
		ep->large = calloc(TCP_WINDOW, sizeof(*ep->large));
	return ep->large ? &ep->large[number % TCP_WINDOW] : NULL;
}

/* Under the lock. True: puts are complete. */
static bool advance_large(struct tcp_endpoint *ep)
{
	uint32_t done = ep->large_done, was = done;

	for (; done != ep->large_announced; done++) {
		struct tcp_in_large *large = &ep->large[done % TCP_WINDOW];

		if (large->arrived != large->bytes)
			break;
		*large = (struct tcp_in_large){ 0 };
	}
	atomic_store(&ep->large_done, done);
	return done != was;
}

/* Puts are complete: for the device's own thread, and for sockets that wait for room in the window. */
static void large_are_done(struct tcp_endpoint *ep)
{
	shunt_tcp_tell(ep);
	for (uint32_t i = 1; atomic_load(&ep->may_block) && i < ep->nsockets; i++)
		shunt_tcp_load_wake(&ep->socket[i].load);
}

static void announce(struct tcp_socket *s, const struct tcp_head *head)
{
	struct tcp_endpoint *ep = s->endpoint;
	struct tcp_in_large *large;
	bool right, done;

	shunt_mutex_lock(&ep->lock);
	large = in_large(ep, head->put);
	right = large && head->put == ep->large_announced && large->arrived <= head->bytes;
	if (right) {
		large->bytes = head->bytes;
		large->announced = true;
		ep->large_announced++;
	}
	done = right && advance_large(ep);
	shunt_mutex_unlock(&ep->lock);
	if (!large)
		shunt_tcp_fail_socket(s, -ENOMEM, "no memory to count large puts");
	else if (!right)
		shunt_tcp_fail_socket(
		    s, -EPROTO, "it counts large puts wrong (%u of %u bytes)", head->put, head->bytes);
	else
		add_signal(s, head);
	if (done)
		large_are_done(ep);
}

static void piece_arrived(struct tcp_socket *s, const struct tcp_head *head)
{
	struct tcp_endpoint *ep = s->endpoint;
	struct tcp_in_large *large;
	bool right, done;

	shunt_mutex_lock(&ep->lock);
	large = in_large(ep, head->put);
	right = large && head->bytes <= UINT32_MAX - large->arrived &&
	    (!large->announced || large->arrived + head->bytes <= large->bytes);
	if (right)
		large->arrived += head->bytes;
	done = right && advance_large(ep);
	shunt_mutex_unlock(&ep->lock);
	if (!large)
		shunt_tcp_fail_socket(s, -ENOMEM, "no memory to count large puts");
	else if (!right)
		shunt_tcp_fail_socket(s, -EPROTO, "it sends more of large put %u than it has", head->put);
	if (done)
		large_are_done(ep);
}

/* ---- heads */

static bool head_fits_socket(const struct tcp_endpoint *ep, const struct tcp_socket *s, const struct tcp_head *head)
{
	if (head->flags & ~TCP_PACKETS || head->count > SHUNT_NET_MAX_COUNT ||
	    (head->count && head->channel >= SHUNT_NET_MAX_CHANNELS))
		return false;
	switch (head->kind) {
	case TCP_PUT:
		return s->index == 0 && !ep->end_come;
	case TCP_LARGE:
		return s->index == 0 && !ep->end_come && ep->nsockets > 1 && head->bytes;
	case TCP_PIECE:
		return s->index > 0 && head->bytes && !head->count;
	case TCP_END:
		return s->index == 0 && !ep->end_come && !head->bytes && !head->count;
	default:
		return false;
	}
}

/* The message has to wait until others have come or have been told. */
static bool head_must_wait(const struct tcp_endpoint *ep, const struct tcp_head *head)
{
	if (head->kind == TCP_PIECE)
		return head->put - ep->large_done >= TCP_WINDOW && !is_before(head->put, ep->large_done);
	if (head->kind == TCP_LARGE && ep->large_announced - ep->large_done >= TCP_WINDOW)
		return true;
	return head->count && ep->nsignals >= TCP_MAX_SIGNALS;
}

/* The place of a payload, looked up before it comes. */
static bool aim(struct tcp_socket *s, const struct tcp_head *head)
{
	struct tcp_endpoint *ep = s->endpoint;
	uint64_t offset = tcp_head_offset(head);
	struct tcp_memory *memory = shunt_tcp_memory_find(ep->device, head);

	if (!memory) {
		shunt_tcp_fail_socket(s, -EPROTO,
		    "it put %u bytes at offset %llu of memory %08x, which is not registered here or is smaller",
		    head->bytes, (unsigned long long)offset, head->memory);
		return false;
	}
	if ((head->flags & TCP_PACKETS) && (((uintptr_t)memory->base.start + offset) & 7 || head->bytes & 7)) {
		shunt_tcp_fail_socket(s, -EPROTO,
		    "it put packets at offset %llu of memory %08x, which is not aligned to 8",
		    (unsigned long long)offset, head->memory);
		return false;
	}
	s->memory = memory;
	s->target = memory->base.start + offset;
	return true;
}

static void message_done(struct tcp_socket *s)
{
	struct tcp_head head = s->head;

	s->receiving = false;
	s->memory = NULL;
	if (head.kind == TCP_PIECE)
		piece_arrived(s, &head);
	else
		add_signal(s, &head);
}

/* False: it waits, or the socket has failed. */
static bool begin_message(struct tcp_socket *s, const struct tcp_head *head)
{
	struct tcp_endpoint *ep = s->endpoint;

	if (!head_fits_socket(ep, s, head) || (head->kind == TCP_PIECE && is_before(head->put, ep->large_done))) {
		shunt_tcp_fail_socket(
		    s, -EPROTO, "a message that there is not: kind %u on socket %u", head->kind, s->index);
		return false;
	}
	s->blocked = head_must_wait(ep, head);
	if (s->blocked && s->index) {
		/* Whoever completes a put after this look wakes the thread. */
		atomic_store(&ep->may_block, true);
		s->blocked = head_must_wait(ep, head);
	}
	if (s->blocked)
		return false;
	s->in_from += sizeof(*head);
	if (head->kind == TCP_LARGE) {
		announce(s, head);
	} else if (head->kind == TCP_END) {
		ep->end_come = true;
	} else {
		s->head = *head;
		s->target_left = head->bytes;
		s->receiving = true;
		if (head->bytes && !aim(s, head))
			return false;
		if (!head->bytes)
			message_done(s);
	}
	return !s->failed;
}

/* ---- bytes */

/*
 * Each aligned 8 bytes at once. Their order among each other does not matter. But a reader that sees them may overwrite
 * memory that this thread has read for the peer before they came (kernels/net_check.h): so release.
 */
static void store_packets(uint8_t *target, const uint8_t *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word;

		memcpy(&word, from + i, sizeof(word));
		/* NOLINTNEXTLINE(bugprone-casting-through-void): a multiple of 8 */
		__atomic_store_n((uint64_t *)(void *)(target + i), word, __ATOMIC_RELEASE);
	}
}

static bool take_payload(struct tcp_socket *s)
{
	uint32_t n = s->in_to - s->in_from;

	if (n > s->target_left)
		n = s->target_left;
	if (s->head.flags & TCP_PACKETS) {
		n &= ~7u;
		store_packets(s->target, s->in + s->in_from, n);
	} else {
		memcpy(s->target, s->in + s->in_from, n);
	}
	s->in_from += n;
	s->target += n;
	s->target_left -= n;
	if (s->target_left)
		return false;
	message_done(s);
	return !s->failed;
}

/* Reads the messages in the buffer. */
static void parse(struct tcp_socket *s)
{
	struct tcp_head head;
	bool go = true;

	s->blocked = false;
	while (go) {
		if (s->receiving) {
			go = take_payload(s);
		} else if (s->in_to - s->in_from >= sizeof(head)) {
			memcpy(&head, s->in + s->in_from, sizeof(head));
			go = begin_message(s, &head);
		} else {
			break;
		}
	}
	if (s->in_from) {
		memmove(s->in, s->in + s->in_from, s->in_to - s->in_from);
		s->in_to -= s->in_from;
		s->in_from = 0;
	}
}

static void at_end(struct tcp_socket *s)
{
	struct tcp_endpoint *ep = s->endpoint;

	s->at_end = true;
	s->readable = false;
	if (s->receiving || s->in_to) {
		shunt_tcp_fail_socket(s, -EOWNERDEAD,
		    "the connection ended in the middle of a message: the other process has "
		    "gone");
	} else if (s->index == 0 && !(ep->end_come && ep->end_sent && ep->done == ep->posted)) {
		shunt_tcp_fail_socket(
		    s, -EOWNERDEAD, "the connection ended: the other process has gone, or has given up");
	}
	/* The end of a data socket says nothing: that of socket 0 comes as well. */
}

/* The payload goes from the kernel to where it belongs. */
static bool is_direct(const struct tcp_socket *s)
{
	return s->receiving && !(s->head.flags & TCP_PACKETS);
}

static size_t read_room(const struct tcp_socket *s)
{
	return (is_direct(s) ? s->target_left : 0) + s->in_bytes - s->in_to;
}

/* So many bytes came, 0 at the end of all. err: 0, or errno after them. more: the next read may find some. */
static void note_read(struct tcp_socket *s, size_t got, int err, bool more)
{
	bool direct = is_direct(s);
	size_t first = !direct ? 0 : got < s->target_left ? got : s->target_left;

	if (more)
		s->readable = true;
	if (direct) {
		s->target += first;
		s->target_left -= (uint32_t)first;
	}
	s->in_to += (uint32_t)(got - first);
	if (direct && got && !s->target_left)
		message_done(s);
	if (!got && !err) {
		at_end(s);
	} else if (err && err != EAGAIN && err != EWOULDBLOCK) {
		err = shunt_io_error(err);
		shunt_tcp_fail_socket(s, err, "the connection broke: %s",
		    err == -EOWNERDEAD ? "the other process has gone" : strerror(-err));
	}
}

/* Bytes that came; 0: no bytes now, or the end. */
static size_t read_in(struct tcp_socket *s)
{
	size_t want = read_room(s);
	struct iovec iov[2];
	int n = 0;
	ssize_t got;

	if (is_direct(s))
		iov[n++] = (struct iovec){ s->target, s->target_left };
	iov[n++] = (struct iovec){ s->in + s->in_to, s->in_bytes - s->in_to };
	s->readable = false;
	do
		got = readv(s->fd, iov, n);
	while (got < 0 && errno == EINTR);
	/*
	 * Fewer bytes than wanted: the socket is empty. After an end, which epoll tells only once, the socket is read
	 * again.
	 */
	note_read(s, got < 0 ? 0 : (size_t)got, got < 0 ? errno : 0, got >= 0 && ((size_t)got == want || s->hangup));
	return got < 0 ? 0 : (size_t)got;
}

bool shunt_tcp_receive(struct tcp_socket *s)
{
	size_t budget = s->index ? TCP_PIECE_MOST_SPREAD : TCP_BUDGET;
	bool any = false;

	if (s->blocked) {
		parse(s);
		any = !s->blocked;
	}
	while (s->readable && !s->failed && !s->blocked && budget) {
		size_t got = read_in(s);

		if (!got)
			break;
		any = true;
		TCP_HEARS(s->endpoint);
		if (!s->failed)
			parse(s);
		budget -= got < budget ? got : budget;
	}
	return any;
}

bool shunt_tcp_can_receive(const struct tcp_endpoint *ep)
{
	for (uint32_t i = 0; ep->state == TCP_CONNECTED && i < shunt_tcp_own_sockets(ep); i++) {
		const struct tcp_socket *s = &ep->socket[i];
		struct tcp_head head;

		if (s->readable && !s->blocked)
			return true;
		if (!s->blocked)
			continue;
		memcpy(&head, s->in, sizeof(head));
		if (!head_must_wait(ep, &head))
			return true;
	}
	return false;
}

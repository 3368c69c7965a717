/* SPDX-License-Identifier: MIT */
/* Puts go out: small ones with their heads on socket 0, the pieces of large ones on whatever data socket has room. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "base/io.h"
#include "transport/net/tcp/tcp_priv.h"

#define MAX_IOV 64 /* 32 small puts in one call */

static struct tcp_out_put *out_put(const struct tcp_endpoint *ep, uint64_t number)
{
	return &ep->put[number % TCP_MAX_PUTS];
}

/* ---- what a put may be */

static bool put_is_valid(const struct tcp_device *device, const struct shunt_net_put *put)
{
	const uint8_t *source = put->source;
	const struct tcp_memory *memory = tcp_memory_of(put->memory);

	if (!shunt_net_put_is_formed(put, false))
		return false;
	if (!put->bytes)
		return true;
	return memory && memory->device == device && source >= memory->base.start &&
	    (size_t)(source - memory->base.start) <= memory->base.bytes &&
	    put->bytes <= memory->base.bytes - (size_t)(source - memory->base.start);
}

static void put_fill(struct tcp_endpoint *ep, const struct shunt_net_put *put, struct tcp_out_put *out)
{
	uint32_t small = shunt_tcp_small(ep->device);
	bool large = put->bytes > small && ep->nsockets > 1;

	*out = (struct tcp_out_put){ .source = put->source, .left = put->bytes, .large = large };
	out->head = (struct tcp_head){
		.kind = large ? TCP_LARGE : TCP_PUT,
		.flags = put->flags & SHUNT_NET_PACKETS ? TCP_PACKETS : 0,
		.channel = put->count ? put->channel : 0,
		.count = put->count,
		.bytes = put->bytes,
	};
	out->memory = (uint32_t)put->remote.word[0];
	out->offset = put->remote_offset;
	if (large) {
		out->head.put = ep->nlarge++;
	} else if (put->bytes) {
		out->head.memory = out->memory;
		tcp_head_set_offset(&out->head, out->offset);
	}
}

/* These bytes of large puts, up to the last put, may go out in pieces. */
static void release_pieces(struct tcp_endpoint *ep, uint64_t bytes)
{
	uint64_t waiting;

	shunt_mutex_lock(&ep->lock);
	if (ep->pieces < ep->done) { /* those between are small, and their places have others now */
		ep->pieces = ep->done;
		ep->piece_offset = 0;
	}
	ep->pieces_end = ep->posted;
	waiting = atomic_fetch_add(&ep->waiting, bytes) + bytes;
	shunt_mutex_unlock(&ep->lock);
	shunt_tcp_wake_writers(ep, waiting / TCP_PIECE_LEAST_SPREAD + 1);
}

int shunt_tcp_post(struct shunt_net_endpoint *endpoint, const struct shunt_net_put *puts, int n)
{
	struct tcp_endpoint *ep = tcp_endpoint_of(endpoint);
	/* Puts that are done but not told take room, too: telling them makes room. */
	uint64_t room = TCP_MAX_PUTS - (ep->posted - ep->done) - ep->puts_done, large = 0;
	bool more = false;

	if (ep->state != TCP_CONNECTED || !ep->ready_told || ep->finished)
		return -ENOTCONN;
	for (int i = 0; i < n; i++)
		if (!put_is_valid(ep->device, &puts[i]))
			return -EINVAL;
	if (n > 0 && (uint64_t)n > room)
		n = (int)room;
	for (int i = 0; i < n; i++) {
		struct tcp_out_put *out = out_put(ep, ep->posted++);

		put_fill(ep, &puts[i], out);
		large += out->large ? puts[i].bytes : 0;
		more = puts[i].flags & SHUNT_NET_MORE;
	}
	if (large)
		release_pieces(ep, large);
	/*
	 * Puts that wait for more go out with the next post or progress. A full ring takes no more puts, so send now.
	 */
	if (n > 0 && (!more || (uint64_t)n == room))
		shunt_tcp_send(ep);
	if (n > 0 || room == 0)
		shunt_tcp_queue(ep);
	return n > 0 ? n : 0;
}

/* ---- sending */

void shunt_tcp_count_done(struct tcp_endpoint *ep)
{
	while (ep->done < ep->posted && out_put(ep, ep->done)->told && !atomic_load(&out_put(ep, ep->done)->left)) {
		ep->done++;
		ep->puts_done++;
	}
}

/* So many bytes of `want` went out. err: 0, or errno after them. */
static void note_sent(struct tcp_socket *s, size_t sent, size_t want, int err)
{
	if (sent == want)
		s->writable = true;
	if (!err || err == EAGAIN || err == EWOULDBLOCK)
		return;
	err = shunt_io_error(err);
	shunt_tcp_fail_socket(s, err, "the connection broke while sending: %s",
	    err == -EOWNERDEAD ? "the other process has gone" : strerror(-err));
}

/* Tells ThreadSanitizer of the reads before they are made (tcp_priv.h). */
static ssize_t send_message(const struct tcp_socket *s, const struct msghdr *msg)
{
	ssize_t sent;

	for (size_t i = 0; i < msg->msg_iovlen; i++)
		TCP_READS(msg->msg_iov[i].iov_base, msg->msg_iov[i].iov_len);
	TCP_SENDS(s->endpoint);
	sent = sendmsg(s->fd, msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	TCP_HAS_SENT();
	return sent;
}

/* False: not now, or never. */
static bool write_out(struct tcp_socket *s, struct iovec *iov, size_t n, size_t want, size_t *sent_p)
{
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = n };
	ssize_t sent;

	s->writable = false;
	do
		sent = send_message(s, &msg);
	while (sent < 0 && errno == EINTR);
	note_sent(s, sent < 0 ? 0 : (size_t)sent, want, sent < 0 ? errno : 0);
	if (sent < 0)
		return false;
	*sent_p = (size_t)sent;
	return true;
}

static bool is_silent(const struct tcp_out_put *put)
{
	return !put->head.bytes && !put->head.count;
}

/* Heads and payloads of puts from `sent` on; the first may be sent in part. The bytes of all. */
static size_t gather(struct tcp_endpoint *ep, struct iovec *iov, size_t *n_p)
{
	uint32_t skip = ep->sent_bytes;
	size_t n = 0, bytes = 0;

	for (uint64_t i = ep->sent; i < ep->posted && n + 2 <= MAX_IOV; i++) {
		struct tcp_out_put *put = out_put(ep, i);

		if (is_silent(put))
			continue;
		if (skip < sizeof(put->head)) {
			iov[n++] = (struct iovec){ (uint8_t *)&put->head + skip, sizeof(put->head) - skip };
			bytes += sizeof(put->head) - skip;
		}
		skip = 0;
		if (put->left && !put->large) {
			iov[n++] =
			    (struct iovec){ (void *)(uintptr_t)(put->source + put->head.bytes - put->left), put->left };
			bytes += put->left;
		}
		if (bytes >= TCP_BUDGET)
			break;
	}
	*n_p = n;
	return bytes;
}

/* The kernel has taken so many of the bytes that gather collected. */
static void advance(struct tcp_endpoint *ep, size_t sent)
{
	for (; ep->sent < ep->posted; ep->sent++, ep->sent_bytes = 0) {
		struct tcp_out_put *put = out_put(ep, ep->sent);
		size_t head = sizeof(put->head) - ep->sent_bytes, now;

		if (!is_silent(put)) {
			now = sent < head ? sent : head;
			ep->sent_bytes += (uint32_t)now;
			sent -= now;
			if (now < head)
				return;
			if (!put->large) {
				now = sent < put->left ? sent : put->left;
				put->left -= (uint32_t)now;
				sent -= now;
				if (put->left)
					return;
			}
		}
		put->told = true;
	}
}

static void send_end(struct tcp_endpoint *ep)
{
	struct tcp_socket *s = &ep->socket[0];
	struct iovec iov = { (uint8_t *)&ep->end_head + ep->sent_bytes, sizeof(ep->end_head) - ep->sent_bytes };
	size_t sent;

	ep->end_head = (struct tcp_head){ .kind = TCP_END };
	if (!write_out(s, &iov, 1, iov.iov_len, &sent))
		return;
	ep->sent_bytes += (uint32_t)sent;
	ep->end_sent = ep->sent_bytes == sizeof(ep->end_head);
}

static void send_heads(struct tcp_endpoint *ep)
{
	struct tcp_socket *s = &ep->socket[0];
	size_t budget = TCP_BUDGET;

	while (s->writable && ep->sent < ep->posted && budget) {
		struct iovec iov[MAX_IOV];
		size_t n, bytes = gather(ep, iov, &n), sent = 0;

		if (bytes && !write_out(s, iov, n, bytes, &sent))
			break;
		advance(ep, sent);
		budget -= sent < budget ? sent : budget;
	}
	if (s->writable && ep->finished && !ep->end_sent && ep->sent == ep->posted)
		send_end(ep);
}

void shunt_tcp_pace(struct tcp_pace *pace, uint32_t most, uint32_t bytes, uint32_t again)
{
	uint32_t open = pace->open;

	pace->carried += bytes;
	pace->lost += again;
	if (pace->lost >= TCP_PACE_LOST && (uint64_t)pace->lost * TCP_PACE_LOST_BYTES > pace->carried) {
		pace->open -= open / 2;
		pace->need = !pace->need              ? TCP_PACE_AGAIN :
		    pace->need < TCP_PACE_LEAST_OFTEN ? 2 * pace->need :
		                                        pace->need;
	} else if (pace->carried >= (pace->need ? pace->need : (uint64_t)open * TCP_PACE_FIRST)) {
		pace->open = pace->need ? open + 1 : 2 * open;
	} else {
		return;
	}
	pace->open = pace->open < most ? pace->open : most;
	pace->carried = pace->lost = 0;
}

static void look_at_losses(struct tcp_endpoint *ep, struct tcp_socket *s, size_t sent)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	s->unlooked += (uint32_t)sent;
	if (s->unlooked < TCP_LOOK_BYTES || getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return;
	shunt_mutex_lock(&ep->lock);
	shunt_tcp_pace(&ep->pace, ep->nsockets - 1, s->unlooked, info.tcpi_total_retrans - s->retransmitted);
	shunt_mutex_unlock(&ep->lock);
	s->retransmitted = info.tcpi_total_retrans;
	s->unlooked = 0;
}

/* Of a piece, at most. */
static uint32_t piece_bytes(const struct tcp_endpoint *ep)
{
	uint64_t share = (ep->waiting / (2 * ep->pace.open) + 4095) & ~(uint64_t)4095;

	if (!ep->device->workers)
		return TCP_PIECE_BYTES;
	if (share < TCP_PIECE_LEAST_SPREAD)
		return TCP_PIECE_LEAST_SPREAD;
	return share < TCP_PIECE_MOST_SPREAD ? (uint32_t)share : TCP_PIECE_MOST_SPREAD;
}

/* The next piece of the oldest large put with unsent bytes. Under the lock. */
static bool next_piece(struct tcp_endpoint *ep, struct tcp_socket *s)
{
	struct tcp_out_put *put;
	uint32_t bytes, most;

	for (; ep->pieces < ep->pieces_end; ep->pieces++, ep->piece_offset = 0) {
		put = out_put(ep, ep->pieces);
		if (put->large && ep->piece_offset < put->head.bytes)
			break;
	}
	if (ep->pieces >= ep->pieces_end)
		return false;
	bytes = put->head.bytes - ep->piece_offset;
	most = piece_bytes(ep);
	if (bytes > most)
		bytes = most;
	ep->waiting -= bytes;
	s->out = (struct tcp_head){
		.kind = TCP_PIECE, .flags = put->head.flags, .memory = put->memory, .bytes = bytes, .put = put->head.put
	};
	tcp_head_set_offset(&s->out, put->offset > TCP_MAX_OFFSET ? TCP_MAX_OFFSET : put->offset + ep->piece_offset);
	s->out_head_left = sizeof(s->out);
	s->out_at = put->source + ep->piece_offset;
	s->out_left = bytes;
	s->out_put = ep->pieces;
	ep->piece_offset += bytes;
	return true;
}

static bool has_piece(const struct tcp_endpoint *ep, const struct tcp_socket *s)
{
	return s->out_head_left || s->out_left || (atomic_load(&ep->waiting) && s->index <= ep->pace.open);
}

/* The socket has a piece, or takes one. */
static bool take_piece(struct tcp_endpoint *ep, struct tcp_socket *s)
{
	bool taken;

	if (s->out_head_left || s->out_left || !has_piece(ep, s))
		return s->out_head_left || s->out_left;
	shunt_mutex_lock(&ep->lock);
	taken = next_piece(ep, s);
	shunt_mutex_unlock(&ep->lock);
	return taken;
}

/* So many bytes of the socket's piece went out. */
static void piece_sent(struct tcp_endpoint *ep, struct tcp_socket *s, size_t sent)
{
	size_t head = sent < s->out_head_left ? sent : s->out_head_left;

	s->out_head_left -= (uint32_t)head;
	sent -= head;
	s->out_at += sent;
	s->out_left -= (uint32_t)sent;
	if (sent && atomic_fetch_sub(&out_put(ep, s->out_put)->left, (uint32_t)sent) == sent)
		shunt_tcp_tell(ep);
	look_at_losses(ep, s, sent);
}

bool shunt_tcp_send_pieces(struct tcp_socket *s)
{
	struct tcp_endpoint *ep = s->endpoint;
	size_t budget = TCP_PIECE_MOST_SPREAD, sent;
	bool any = false, had_room = s->writable;

	while (s->writable && !s->failed && budget && take_piece(ep, s)) {
		struct iovec iov[2] = { { (uint8_t *)&s->out + sizeof(s->out) - s->out_head_left, s->out_head_left },
			{ (void *)(uintptr_t)s->out_at, s->out_left } };

		if (!write_out(s, iov, 2, s->out_head_left + s->out_left, &sent))
			break;
		piece_sent(ep, s, sent);
		any = true;
		budget -= sent < budget ? sent : budget;
	}
	/* No room any more: others may have some, whose threads sleep. */
	if (had_room && !s->writable && atomic_load(&ep->waiting))
		shunt_tcp_wake_writers(ep, ep->nsockets);
	return any;
}

void shunt_tcp_send(struct tcp_endpoint *ep)
{
	if (ep->state == TCP_CONNECTED)
		send_heads(ep);
}

bool shunt_tcp_can_send(const struct tcp_endpoint *ep)
{
	if (ep->state != TCP_CONNECTED)
		return false;
	if (ep->socket[0].writable && (ep->sent < ep->posted || (ep->finished && !ep->end_sent)))
		return true;
	for (uint32_t i = 1; i < shunt_tcp_own_sockets(ep); i++)
		if (ep->socket[i].writable && has_piece(ep, &ep->socket[i]))
			return true;
	return false;
}

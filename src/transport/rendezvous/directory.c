/* SPDX-License-Identifier: MIT */
/* A process's side of directories: its own directory, and its connections to those of other processes. */
#include "transport/rendezvous/directory.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/io.h"
#include "base/lock.h"
#include "base/log.h"
#include "transport/rendezvous/address.h"
#include "transport/rendezvous/directory_wire.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/wire/fd_message.h"
#include "transport/rendezvous/wire/wire.h"

#define FIND_FIRST_MS 1 /* between two questions for an offer */
#define FIND_LAST_MS 32
#define CONNECT_MS 5000 /* a host that is up answers at once; a lost packet costs a second */

struct shunt_directory_link {
	struct shunt_directory_link *next;
	struct shunt_directory_tail tail;
	unsigned users;          /* with the list's lock */
	struct shunt_mutex lock; /* of the connection */
	int fd, err;             /* err: the connection is over */
	uint32_t number;
	uint8_t session[RDZV_SECRET];
};

static struct shunt_directory_tail own_directory; /* where this process's directory is; magic 0: there is none */
static struct shunt_directory_link *links;

/* A forked child has neither the thread nor the connections. */
static void forget_all(void)
{
	own_directory.magic = 0;
	links = NULL;
}
SHUNT_IN_FORKED_CHILD(forget_all)

/* ---- ids */

static bool has_room(const uint8_t *tail)
{
	static const uint8_t zero[sizeof(struct shunt_directory_tail)];

	return !memcmp(tail, zero, sizeof(zero));
}

void shunt_directory_mark(uint8_t id[SHUNT_DIRECTORY_ID_BYTES])
{
	struct shunt_directory_tail tail, mine;
	int err;

	if (!has_room(id + SHUNT_DIRECTORY_TAIL_OFFSET))
		return;
	shunt_lock_acquire(SHUNT_LOCK_DIRECTORY);
	tail = own_directory;
	shunt_lock_release(SHUNT_LOCK_DIRECTORY);
	if (!tail.magic) {
		err = rdzv_directory_start(&mine);
		if (err) {
			shunt_warn(
			    "no directory for ranks of other hosts, so communicators over several hosts stay with NCCL "
			    "for that reason: %s",
			    strerror(-err));
			return;
		}
		shunt_lock_acquire(SHUNT_LOCK_DIRECTORY);
		own_directory =
		    own_directory.magic ? own_directory : mine; /* of two that begin at once, one has no ids */
		tail = own_directory;
		shunt_lock_release(SHUNT_LOCK_DIRECTORY);
	}
	shunt_directory_copy(id, &tail);
}

void shunt_directory_copy(uint8_t id[SHUNT_DIRECTORY_ID_BYTES], const struct shunt_directory_tail *tail)
{
	if (has_room(id + SHUNT_DIRECTORY_TAIL_OFFSET))
		memcpy(id + SHUNT_DIRECTORY_TAIL_OFFSET, tail, sizeof(*tail));
}

struct shunt_directory_tail shunt_directory_tail_of(const uint8_t id[SHUNT_DIRECTORY_ID_BYTES])
{
	struct shunt_directory_tail tail;

	memcpy(&tail, id + SHUNT_DIRECTORY_TAIL_OFFSET, sizeof(tail));
	if (tail.magic != RDZV_DIRECTORY_MAGIC || tail.version != RDZV_DIRECTORY_VERSION ||
	    (tail.family != 4 && tail.family != 6))
		tail.magic = 0;
	return tail;
}

static struct shunt_netaddr address_of(const struct shunt_directory_tail *tail)
{
	struct shunt_host_address at = { .family = tail->family, .port = tail->port };

	memcpy(at.addr, tail->addr, sizeof(at.addr));
	return shunt_host_netaddr(&at);
}

/* ---- connections */

static struct shunt_directory_link *link_take(const struct shunt_directory_tail *tail)
{
	struct shunt_directory_link *fresh = calloc(1, sizeof(*fresh)), *link;

	if (!fresh)
		return NULL;
	shunt_lock_acquire(SHUNT_LOCK_DIRECTORY);
	for (link = links; link && memcmp(&link->tail, tail, sizeof(*tail)); link = link->next)
		;
	if (!link) {
		link = fresh;
		fresh = NULL;
		*link = (struct shunt_directory_link){ .next = links, .tail = *tail, .fd = -1 };
		shunt_mutex_init(&link->lock, SHUNT_LOCK_LINK);
		links = link;
	}
	link->users++;
	shunt_lock_release(SHUNT_LOCK_DIRECTORY);
	free(fresh);
	return link;
}

static void link_put(struct shunt_directory_link *link)
{
	struct shunt_directory_link **place = &links;
	bool last;

	shunt_lock_acquire(SHUNT_LOCK_DIRECTORY);
	last = !--link->users;
	while (*place && *place != link)
		place = &(*place)->next;
	if (last && *place)
		*place = link->next;
	shunt_lock_release(SHUNT_LOCK_DIRECTORY);
	if (!last)
		return;
	shunt_close_socket(&link->fd);
	shunt_mutex_destroy(&link->lock);
	free(link);
}

static int64_t deadline(void)
{
	return shunt_deadline_ms(shunt_config()->setup_timeout);
}

/* With the connection's lock. */
static int link_open(struct shunt_directory_link *link, const atomic_int *cancel)
{
	int64_t silent = shunt_now_ms() + CONNECT_MS, until = deadline();
	struct rdzv_key key = rdzv_directory_key(&link->tail);
	struct shunt_netaddr addr = address_of(&link->tail);
	struct shunt_rendezvous_row *rows = NULL;
	struct rdzv_ask ask = { .key = &key,
		.what = "registration of a rank",
		.nmembers = 1,
		.nranks = 1,
		.challenge_deadline = silent < until ? silent : until,
		.deadline = until,
		.cancel = cancel,
		.calls_again = true };
	int err;

	if (link->fd >= 0 || link->err)
		return link->err;
	do {
		shunt_close_socket(&link->fd);
		err = shunt_socket_connect(&shunt_socket_tcp, &addr, -1, ask.challenge_deadline, cancel, &link->fd);
		if (!err)
			err = rdzv_member_join(link->fd, &ask, &rows);
	} while (err == -EAGAIN && shunt_now_ms() < until);
	free(rows);
	memcpy(link->session, ask.session, sizeof(link->session));
	link->err = err;
	return err;
}

/* One request; reply NULL: there is none. */
static int exchange(struct shunt_directory_link *link, struct rdzv_directory_request *q,
    struct rdzv_directory_reply *reply, const atomic_int *cancel)
{
	struct rdzv_recv in = { .fd = link->fd };
	uint8_t mac[SHUNT_MAC_BYTES];
	int err;

	q->number = ++link->number;
	rdzv_message_mac(q->mac, link->session, shunt_bytes(q, offsetof(struct rdzv_directory_request, mac)),
	    (struct shunt_bytes){ 0 });
	err = shunt_io_write(link->fd, q, sizeof(*q), deadline(), cancel);
	if (err || !reply)
		return err;
	err = rdzv_recv_fill(&in, reply, sizeof(*reply), deadline(), cancel);
	if (err)
		return err;
	rdzv_message_mac(mac, link->session, shunt_bytes(reply, offsetof(struct rdzv_directory_reply, mac)),
	    (struct shunt_bytes){ 0 });
	return shunt_mac_equal(mac, reply->mac) && reply->number == q->number && reply->status <= 0 ? 0 : -EPROTO;
}

/* q: its `what`, and what belongs to that. */
static int request_with(struct shunt_directory_link *link, struct rdzv_directory_request *q,
    const struct shunt_directory_member *member, struct rdzv_directory_reply *reply, const atomic_int *cancel)
{
	int err;

	q->id = member->id;
	q->member = member->member;
	q->nmembers = member->nmembers;
	shunt_host_name(q->name, sizeof(q->name));
	shunt_mutex_lock(&link->lock);
	err = q->what == RDZV_DIRECTORY_LEAVE ? (link->fd < 0 ? -ENOTCONN : link->err) : link_open(link, cancel);
	if (!err) {
		err = exchange(link, q, reply, cancel);
		link->err = err;
	}
	shunt_mutex_unlock(&link->lock);
	return !err && reply ? reply->status : err;
}

static int request(struct shunt_directory_link *link, enum rdzv_directory_what what,
    const struct shunt_directory_member *member, struct rdzv_directory_reply *reply, const atomic_int *cancel)
{
	return request_with(link, &(struct rdzv_directory_request){ .what = what }, member, reply, cancel);
}

/* ---- members */

static bool is_here(const struct shunt_directory_tail *tail, int listen_fd)
{
	struct shunt_id id = rdzv_directory_id(tail);
	struct shunt_netaddr addr;
	int fd = -1, err;

	rdzv_unix_address(&id, 0, &addr);
	err = shunt_socket_connect(&shunt_socket_unix, &addr, listen_fd, SHUNT_NEVER, NULL, &fd);
	shunt_close_fd(&fd);
	return !err || err == -EAGAIN;
}

int shunt_directory_register(const struct shunt_directory_tail *tail, const struct shunt_directory_member *member,
    struct shunt_directory_link **link_p)
{
	struct shunt_netaddr addr = address_of(tail);
	struct rdzv_directory_reply reply;
	struct shunt_directory_link *link;
	char at[80], name[64], why[168];
	int err;

	*link_p = NULL;
	if (member->nmembers > SHUNT_DIRECTORY_MAX_MEMBERS || is_here(tail, member->listen_fd))
		return 0;
	link = link_take(tail);
	if (!link)
		return -ENOMEM;
	err = request(link, RDZV_DIRECTORY_REGISTER, member, &reply, NULL);
	if (!err) {
		*link_p = link;
		return 0;
	}
	link_put(link);
	shunt_netaddr_show(&addr, at, sizeof(at));
	shunt_host_name(name, sizeof(name));
	(void)shunt_netif_explain(&addr, why, sizeof(why));
	if (err == -EXDEV)
		shunt_warn("rank %d is not where the unique id was made (%s), but SHUNT_HOSTID=%s is the same on both "
		           "hosts: the communicator stays with NCCL",
		    member->member, at, name);
	else
		shunt_warn(
		    "rank %d cannot register at the host where the unique id was made (%s): %s; the communicator "
		    "stays with NCCL; %s",
		    member->member, at, strerror(-err), why);
	return err;
}

void shunt_directory_leave(struct shunt_directory_link *link, const struct shunt_directory_member *member)
{
	if (!link)
		return;
	(void)request(link, RDZV_DIRECTORY_LEAVE, member, NULL, NULL);
	link_put(link);
}

static int read_table(const struct rdzv_directory_reply *reply, int nmembers, struct shunt_directory_table *table)
{
	static const uint8_t nowhere[SHUNT_HOST_BYTES];
	struct shunt_hosts *hosts = reply->nrows == (uint32_t)nmembers ? calloc(1, sizeof(*hosts)) : NULL;
	int order[SHUNT_HOSTS_MAX_RANKS];

	if (!hosts)
		return reply->nrows == (uint32_t)nmembers ? -ENOMEM : -EPROTO;
	*table = (struct shunt_directory_table){ .hosts = hosts, .missing = -1 };
	hosts->listen_fd = hosts->group_fd = -1;
	for (int m = 0; m < nmembers; m++) {
		const struct rdzv_directory_row *row = &reply->rows[m];

		if (!memcmp(row->host, nowhere, sizeof(nowhere))) {
			table->missing = table->missing < 0 ? m : table->missing;
			continue;
		}
		order[table->present++] = m;
		hosts->rank[m] = (struct shunt_host_rank){ .row.member = m, .at = row->at };
		memcpy(hosts->rank[m].row.host, row->host, sizeof(row->host));
		memcpy(hosts->rank[m].name, row->name, sizeof(row->name) - 1);
	}
	shunt_hosts_select(hosts, order, table->present);
	return 0;
}

int shunt_directory_offer(const struct shunt_directory_tail *tail, struct shunt_directory_link **link_p,
    const struct shunt_directory_member *member, const struct shunt_host_address *at)
{
	struct rdzv_directory_request q = { .what = RDZV_DIRECTORY_OFFER, .at = *at };
	struct shunt_directory_link *link = *link_p ? *link_p : link_take(tail);
	struct rdzv_directory_reply *reply = malloc(sizeof(*reply));
	int err = reply && link ? request_with(link, &q, member, reply, NULL) : -ENOMEM;

	free(reply);
	if (err && link && !*link_p)
		link_put(link);
	else
		*link_p = link;
	return err;
}

int shunt_directory_find(const struct shunt_directory_tail *tail, struct shunt_directory_link *link,
    const struct shunt_directory_member *member, int wanted, const atomic_int *cancel, struct shunt_host_address *at_p)
{
	struct shunt_directory_link *own_link = link ? NULL : link_take(tail);
	struct rdzv_directory_reply *reply = malloc(sizeof(*reply));
	int64_t end = shunt_deadline_ms(shunt_config()->timeout);
	int err = reply && (link || own_link) ? -EAGAIN : -ENOMEM;

	for (int64_t pause = FIND_FIRST_MS; err == -EAGAIN; pause = pause < FIND_LAST_MS ? 2 * pause : pause) {
		struct rdzv_directory_request q = { .what = RDZV_DIRECTORY_FIND, .wanted = wanted };

		err = request_with(link ? link : own_link, &q, member, reply, cancel);
		if (err != -EAGAIN)
			break;
		if (shunt_now_ms() >= end)
			err = -ETIMEDOUT;
		else if (shunt_io_poll(NULL, 0, shunt_now_ms() + pause, cancel) == -ECANCELED)
			err = -ECANCELED;
	}
	if (!err)
		*at_p = reply->rows[0].at;
	if (own_link)
		link_put(own_link);
	free(reply);
	return err;
}

int shunt_directory_ask(const struct shunt_directory_tail *tail, struct shunt_directory_link *link,
    const struct shunt_directory_member *member, const atomic_int *cancel, struct shunt_directory_table *table)
{
	struct shunt_directory_link *own_link;
	struct rdzv_directory_reply *reply;
	int err;

	if (member->nmembers > SHUNT_DIRECTORY_MAX_MEMBERS)
		return -E2BIG;
	own_link = link ? NULL : link_take(tail);
	reply = malloc(sizeof(*reply));
	err = reply && (link || own_link) ? 0 : -ENOMEM;
	if (!err)
		err = request(link ? link : own_link, RDZV_DIRECTORY_ASK, member, reply, cancel);
	if (!err)
		err = read_table(reply, member->nmembers, table);
	if (own_link)
		link_put(own_link);
	free(reply);
	return err;
}

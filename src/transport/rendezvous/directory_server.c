/* SPDX-License-Identifier: MIT */
/* The directory: one thread of the process that makes unique ids, which lives as long as the process. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/fd.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/io.h"
#include "base/os.h"
#include "transport/rendezvous/address.h"
#include "transport/rendezvous/directory_wire.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wire.h"

#define STACK_BYTES (256 * 1024)
#define TICK_MS 1000
#define PAUSE_MS 200 /* out of descriptors: connections stay in the backlog */
_Static_assert(SHUNT_DIRECTORY_MAX_MEMBERS <= 64, "a bit for each member");
#define ANSWERS 1024 /* that are kept at most: 5 MB */
#define SEND_MS 1000 /* a reply fits the socket's empty buffer */

/* A member of another host. */
struct entry {
	struct entry *next;
	struct shunt_id id;
	int member, client;
	char name[32];
};

/* The answer about a communicator, once it was given. */
struct answer {
	struct answer *next;
	struct shunt_id id;
	uint64_t left; /* bits of members that are present and have not asked */
	struct rdzv_directory_row rows[SHUNT_DIRECTORY_MAX_MEMBERS];
};

/* A process that has proved itself. */
struct client {
	int fd;
	uint32_t number; /* of its last request */
	size_t got;
	struct rdzv_directory_request request;
	struct shunt_host_address at;
	uint8_t host[SHUNT_HOST_BYTES];
	uint8_t session[RDZV_SECRET];
};

/* Where a member listens. */
struct offer {
	struct offer *next;
	struct shunt_id id;
	int member, client;
	struct shunt_host_address at;
};

struct directory {
	struct rdzv_lobby lobby;
	int unix_fd;
	struct shunt_host_address at;
	uint8_t host[SHUNT_HOST_BYTES];
	struct client *clients; /* fd -1: a free place */
	struct pollfd *pfds;
	int nclients;
	struct entry *entries;
	struct answer *answers;
	int nanswers;
	struct offer *offers;
};

/* ---- what is registered */

static struct entry **find(struct directory *d, const struct shunt_id *id, int member)
{
	struct entry **at = &d->entries;

	while (*at && ((*at)->member != member || memcmp(&(*at)->id, id, sizeof(*id))))
		at = &(*at)->next;
	return at;
}

static void forget(struct entry **at)
{
	struct entry *e = *at;

	*at = e->next;
	free(e);
}

/* Of this client, of this communicator and member if id is given. */
static void forget_offers(struct directory *d, int c, const struct shunt_id *id, int member)
{
	for (struct offer **at = &d->offers; *at;) {
		struct offer *o = *at;

		if (o->client != c || (id && (o->member != member || memcmp(&o->id, id, sizeof(*id))))) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		free(o);
	}
}

static void forget_client(struct directory *d, int c)
{
	forget_offers(d, c, NULL, 0);
	for (struct entry **at = &d->entries; *at;) {
		if ((*at)->client == c)
			forget(at);
		else
			at = &(*at)->next;
	}
	shunt_close_socket(&d->clients[c].fd);
}

static int add(struct directory *d, int c)
{
	const struct rdzv_directory_request *q = &d->clients[c].request;
	struct entry *e;

	/* It did not find us where its host's name says that we are. */
	if (!memcmp(d->clients[c].host, d->host, sizeof(d->host)))
		return -EXDEV;
	if (*find(d, &q->id, q->member))
		return -EEXIST;
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	*e = (struct entry){ .next = d->entries, .id = q->id, .member = q->member, .client = c };
	memcpy(e->name, q->name, sizeof(e->name) - 1);
	d->entries = e;
	return 0;
}

/* True: a member on our own host has its socket. */
static bool is_here(const struct directory *d, const struct shunt_id *id, int member)
{
	struct shunt_netaddr addr;
	int fd = -1, err;

	rdzv_unix_address(id, member, &addr);
	err = shunt_socket_connect(&shunt_socket_unix, &addr, d->unix_fd, SHUNT_NEVER, NULL, &fd);
	shunt_close_fd(&fd);
	return !err || err == -EAGAIN; /* a backlog that is full is one */
}

/* Bits of the members that are present. */
static uint64_t look(struct directory *d, const struct rdzv_directory_request *q, struct rdzv_directory_row *rows)
{
	uint64_t present = 0;

	for (int m = 0; m < q->nmembers; m++) {
		const struct entry *e = *find(d, &q->id, m);

		if (e) {
			memcpy(rows[m].host, d->clients[e->client].host, sizeof(rows[m].host));
			memcpy(rows[m].name, e->name, sizeof(rows[m].name));
			rows[m].at = d->clients[e->client].at;
		} else if (is_here(d, &q->id, m)) {
			memcpy(rows[m].host, d->host, sizeof(rows[m].host));
			shunt_host_name(rows[m].name, sizeof(rows[m].name));
			rows[m].at = d->at;
		} else {
			continue;
		}
		present |= UINT64_C(1) << m;
	}
	return present;
}

static int keep_offer(struct directory *d, int c)
{
	const struct rdzv_directory_request *q = &d->clients[c].request;
	struct offer *o = calloc(1, sizeof(*o));

	if (!o)
		return -ENOMEM;
	forget_offers(d, c, &q->id, q->member);
	*o = (struct offer){ .next = d->offers, .id = q->id, .member = q->member, .client = c, .at = q->at };
	d->offers = o;
	return 0;
}

static int find_offer(struct directory *d, const struct rdzv_directory_request *q, struct shunt_host_address *at_p)
{
	for (const struct offer *o = d->offers; o; o = o->next)
		if (o->member == q->wanted && !memcmp(&o->id, &q->id, sizeof(q->id))) {
			*at_p = o->at;
			return 0;
		}
	return *find(d, &q->id, q->wanted) || is_here(d, &q->id, q->wanted) ? -EAGAIN : -EOWNERDEAD;
}

/* Makes room for a new answer: the oldest is given up, whoever may still ask for it. */
static void forget_answer(struct directory *d, const struct answer *only)
{
	struct answer **at = &d->answers;

	while (*at && (only ? *at != only : (*at)->next != NULL))
		at = &(*at)->next;
	if (*at) {
		struct answer *gone = *at;

		*at = gone->next;
		free(gone);
		d->nanswers--;
	}
}

/*
 * All ranks that ask for a communicator get the answer of the first: a rank that has had its answer may have destroyed
 * the communicator by now.
 */
static void tell(struct directory *d, const struct rdzv_directory_request *q, struct rdzv_directory_reply *reply)
{
	struct answer *a = d->answers;

	reply->nrows = (uint32_t)q->nmembers;
	while (a && memcmp(&a->id, &q->id, sizeof(q->id)))
		a = a->next;
	if (!a && (a = calloc(1, sizeof(*a)))) {
		if (d->nanswers == ANSWERS)
			forget_answer(d, NULL);
		a->id = q->id;
		a->left = look(d, q, a->rows);
		a->next = d->answers;
		d->answers = a;
		d->nanswers++;
	}
	if (!a) {
		reply->status = -ENOMEM;
		return;
	}
	memcpy(reply->rows, a->rows, sizeof(a->rows));
	a->left &= ~(UINT64_C(1) << q->member);
	if (!a->left) /* nobody else will ask */
		forget_answer(d, a);
}

/* ---- requests */

static void serve(struct directory *d, int c)
{
	struct client *client = &d->clients[c];
	const struct rdzv_directory_request *q = &client->request;
	struct rdzv_directory_reply reply = { .number = q->number, .status = -EPROTO };
	uint8_t mac[SHUNT_MAC_BYTES];

	rdzv_message_mac(mac, client->session, shunt_bytes(q, offsetof(struct rdzv_directory_request, mac)),
	    (struct shunt_bytes){ 0 });
	if (!shunt_mac_equal(mac, q->mac) || q->number != client->number + 1 || q->nmembers < 1 ||
	    q->nmembers > SHUNT_DIRECTORY_MAX_MEMBERS || q->member < 0 || q->member >= q->nmembers) {
		forget_client(d, c);
		return;
	}
	client->number = q->number;
	if (q->what == RDZV_DIRECTORY_REGISTER)
		reply.status = add(d, c);
	else if (q->what == RDZV_DIRECTORY_ASK)
		reply.status = 0;
	else if (q->what == RDZV_DIRECTORY_OFFER)
		reply.status = keep_offer(d, c);
	else if (q->what == RDZV_DIRECTORY_FIND)
		reply.status = find_offer(d, q, &reply.rows[0].at);
	if (q->what == RDZV_DIRECTORY_ASK)
		tell(d, q, &reply);
	if (q->what == RDZV_DIRECTORY_LEAVE) {
		struct entry **at = find(d, &q->id, q->member);

		if (*at && (*at)->client == c)
			forget(at);
		return; /* nobody waits */
	}
	rdzv_message_mac(reply.mac, client->session, shunt_bytes(&reply, offsetof(struct rdzv_directory_reply, mac)),
	    (struct shunt_bytes){ 0 });
	if (shunt_io_write(client->fd, &reply, sizeof(reply), shunt_now_ms() + SEND_MS, NULL))
		forget_client(d, c);
}

static void hear(struct directory *d, int c)
{
	struct client *client = &d->clients[c];
	ssize_t n = recv(
	    client->fd, (char *)&client->request + client->got, sizeof(client->request) - client->got, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		forget_client(d, c);
		return;
	}
	client->got += (size_t)n;
	if (client->got < sizeof(client->request))
		return;
	client->got = 0;
	serve(d, c);
}

/* ---- connections */

static int new_place(struct directory *d)
{
	struct client *clients;
	struct pollfd *pfds;
	int c = 0;

	while (c < d->nclients && d->clients[c].fd >= 0)
		c++;
	if (c < d->nclients)
		return c;
	clients = realloc(d->clients, (size_t)(c + 16) * sizeof(*clients));
	d->clients = clients ? clients : d->clients;
	pfds = clients ? realloc(d->pfds, (size_t)(2 + RDZV_LOBBY_PLACES + c + 16) * sizeof(*pfds)) : NULL;
	if (!pfds)
		return -ENOMEM;
	d->pfds = pfds;
	d->nclients = c + 16;
	for (int i = c; i < d->nclients; i++)
		d->clients[i].fd = -1;
	return c;
}

/* The outcome of a join of one rank: the table has its row. */
static int welcome(const struct directory *d, const struct rdzv_conn *conn)
{
	const struct rdzv_hello *h = &conn->hello;
	bool same = h->head.version == RDZV_VERSION && !strcmp(h->shunt, SHUNT_VERSION);
	struct shunt_rendezvous_row row = { .member = h->member, .pid = h->pid };
	struct rdzv_answer answer = { .head = rdzv_head(RDZV_DONE), .nrows = same, .status = same ? 0 : -EPROTO };

	snprintf(answer.text, sizeof(answer.text),
	    "a rank has Shunt %s (rendezvous protocol %u), the directory %s (%u)", h->shunt, h->head.version,
	    SHUNT_VERSION, (uint32_t)RDZV_VERSION);
	memcpy(row.host, h->host, sizeof(row.host));
	rdzv_answer_sign(&answer, &row, &d->lobby.key, h->nonce);
	if (shunt_io_write(conn->fd, &answer, sizeof(answer), shunt_now_ms() + SEND_MS, NULL) ||
	    (same && shunt_io_write(conn->fd, &row, sizeof(row), shunt_now_ms() + SEND_MS, NULL)))
		return -EPIPE;
	return same ? 0 : -EPROTO;
}

static void admit(struct directory *d, const struct rdzv_conn *conn)
{
	struct shunt_netaddr addr = { .len = sizeof(addr.ss) };
	int fd = conn->fd, c = new_place(d);
	struct client *client;

	if (c < 0 || getpeername(fd, (struct sockaddr *)&addr.ss, &addr.len) || welcome(d, conn)) {
		shunt_close_socket(&fd);
		return;
	}
	client = &d->clients[c];
	*client = (struct client){ .fd = fd, .at = shunt_host_address(&addr) };
	memcpy(client->host, conn->hello.host, sizeof(client->host));
	rdzv_session(client->session, &d->lobby.key, conn->nonce, conn->hello.nonce);
}

static void admit_proven(struct directory *d)
{
	for (int i = d->lobby.nconns - 1; i >= 0; i--) /* backwards: the last one takes the place */
		if (d->lobby.conn[i].proven) {
			struct rdzv_conn conn = d->lobby.conn[i];

			rdzv_lobby_take(&d->lobby, i);
			admit(d, &conn);
		}
}

/* Who connects here only wants to know whether we are on its host. */
static void accept_here(const struct directory *d)
{
	int fd;

	while ((fd = SHUNT_FD(accept4(d->unix_fd, NULL, NULL, SOCK_CLOEXEC))) >= 0)
		shunt_close_fd(&fd);
}

static void step(struct directory *d)
{
	struct rdzv_lobby *lobby = &d->lobby;
	int n = 0, nconns = lobby->nconns, nclients = d->nclients;

	d->pfds[n++] = (struct pollfd){ .fd = lobby->listen_fd, .events = POLLIN };
	d->pfds[n++] = (struct pollfd){ .fd = d->unix_fd, .events = POLLIN };
	for (int i = 0; i < nconns; i++)
		d->pfds[n++] = (struct pollfd){ .fd = lobby->conn[i].fd, .events = POLLIN };
	for (int c = 0; c < nclients; c++)
		d->pfds[n++] = (struct pollfd){ .fd = d->clients[c].fd, .events = POLLIN };
	if (poll(d->pfds, (nfds_t)n, nconns ? TICK_MS : -1) > 0) {
		for (int c = 0; c < nclients; c++)
			if (d->pfds[2 + nconns + c].revents)
				hear(d, c);
		for (int i = nconns - 1; i >= 0; i--)
			if (d->pfds[2 + i].revents)
				rdzv_lobby_read(lobby, i);
		if (d->pfds[1].revents)
			accept_here(d);
		if (d->pfds[0].revents && rdzv_lobby_accept(lobby))
			(void)poll(NULL, 0, PAUSE_MS);
		admit_proven(d);
	}
	rdzv_lobby_expire(lobby, shunt_now_ms());
}

static void *directory_main(void *arg)
{
	for (;;)
		step(arg);
	return NULL;
}

static void destroy(struct directory *d)
{
	rdzv_lobby_finish(&d->lobby);
	shunt_close_socket(&d->unix_fd);
	free(d->clients);
	free(d->pfds);
	free(d);
}

static int start(struct directory *d, struct shunt_directory_tail *tail)
{
	struct shunt_netaddr addr, here;
	struct shunt_id id;
	int err = shunt_netif_here(&addr);

	err = err ? err : shunt_random(tail->secret, sizeof(tail->secret));
	err = err ? err : shunt_socket_listen(&shunt_socket_tcp, &addr, &d->lobby.listen_fd);
	if (err)
		return err;
	d->lobby.key = rdzv_directory_key(tail);
	d->at = shunt_host_address(&addr);
	tail->family = d->at.family;
	tail->port = d->at.port;
	memcpy(tail->addr, d->at.addr, sizeof(tail->addr));
	id = rdzv_directory_id(tail);
	rdzv_unix_address(&id, 0, &here);
	err = shunt_socket_listen(&shunt_socket_unix, &here, &d->unix_fd);
	err = err ? err : shunt_host_id(d->host, d->lobby.key.bytes, d->lobby.key.n);
	err = err || new_place(d) >= 0 ? err : -ENOMEM;
	return err ? err : shunt_thread_start(NULL, STACK_BYTES, directory_main, d);
}

int rdzv_directory_start(struct shunt_directory_tail *tail)
{
	struct directory *d = calloc(1, sizeof(*d));
	int err;

	if (!d)
		return -ENOMEM;
	d->lobby = (struct rdzv_lobby){ .kind = &shunt_socket_tcp, .listen_fd = -1, .event_fd = -1 };
	d->unix_fd = -1;
	*tail = (struct shunt_directory_tail){ .magic = RDZV_DIRECTORY_MAGIC, .version = RDZV_DIRECTORY_VERSION };
	err = start(d, tail);
	if (err)
		destroy(d);
	return err;
}

/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/bootstrap.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/env.h"
#include "base/fd.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/io.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/rendezvous/bootstrap_server.h"
#include "transport/rendezvous/host_table.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/wait.h"
#include "transport/rendezvous/wire/wire.h"

#define ATTEMPT_MS 2000 /* a backlog that is full drops a call, and the system calls again ever more rarely */
#define AGAIN_MS 5      /* after a crowd has pushed us out */
#define RETRY_MS 100
#define WAIT_LOG_MS 30000
#define BIND_WAIT_MS 10000

static void id_from_address(struct rdzv_unique_id *id, const struct shunt_netaddr *addr)
{
	struct shunt_host_address at = shunt_host_address(addr);

	id->family = at.family;
	id->port = at.port;
	id->scope = at.scope;
	memcpy(id->addr, at.addr, sizeof(id->addr));
}

static void id_to_address(const struct rdzv_unique_id *id, struct shunt_netaddr *addr)
{
	struct shunt_host_address at = { .family = id->family, .port = id->port, .scope = id->scope };

	memcpy(at.addr, id->addr, sizeof(at.addr));
	*addr = shunt_host_netaddr(&at);
}

static int id_from_env(const char *text, struct rdzv_unique_id *id)
{
	struct shunt_netaddr addr;
	uint8_t mac[SHUNT_MAC_BYTES];
	int err = shunt_netif_parse(text, shunt_env("NCCL_SOCKET_FAMILY"), &addr);

	if (err)
		return err;
	id->from_env = 1;
	id_from_address(id, &addr);
	shunt_mac(mac, shunt_bytes("shunt NCCL_COMM_ID", 18), "shunt bootstrap secret", shunt_bytes(text, strlen(text)),
	    (struct shunt_bytes){ 0 });
	memcpy(id->secret, mac, sizeof(id->secret));
	return 0;
}

int shunt_bootstrap_new_id(uint8_t out[SHUNT_BOOTSTRAP_ID_BYTES])
{
	const char *fixed = shunt_env("NCCL_COMM_ID");
	struct rdzv_unique_id id = { .magic = RDZV_MAGIC, .version = RDZV_VERSION };
	struct shunt_netaddr addr;
	char text[128];
	int fd, err;

	if (fixed && *fixed) {
		err = id_from_env(fixed, &id);
		if (!err)
			memcpy(out, &id, sizeof(id));
		return err;
	}
	err = shunt_netif_here(&addr);
	if (err)
		return err;
	err = shunt_socket_listen(&shunt_socket_tcp, &addr, &fd);
	shunt_netaddr_show(&addr, text, sizeof(text));
	if (err) {
		shunt_error("cannot listen at %s (%s) for the ranks of a new communicator: %s", text, addr.ifname,
		    shunt_error_text(err).s);
		return err;
	}
	id_from_address(&id, &addr);
	err = shunt_random(id.secret, sizeof(id.secret));
	if (!err)
		err = shunt_host_id(id.host, id.secret, sizeof(id.secret));
	if (err) {
		shunt_close_fd(&fd);
		return err;
	}
	err = rdzv_server_start(&id, fd);
	if (err)
		return err;
	shunt_info(SHUNT_LOG_BOOTSTRAP, "bootstrap of a new communicator at %s (%s)", text, addr.ifname);
	memcpy(out, &id, sizeof(id));
	return 0;
}

/*
 * Starts the server in rank 0's process, for an id from NCCL_COMM_ID. The previous communicator's server may still hold
 * the port for a moment.
 */
static int start_env_root(const struct rdzv_unique_id *id, const atomic_int *cancel)
{
	int64_t deadline = shunt_deadline_ms(BIND_WAIT_MS);
	struct shunt_netaddr addr;
	char text[128];
	int fd, err;

	id_to_address(id, &addr);
	shunt_netaddr_show(&addr, text, sizeof(text));
	while ((err = shunt_socket_listen(&shunt_socket_tcp, &addr, &fd)) == -EADDRINUSE && shunt_now_ms() < deadline) {
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + RETRY_MS, cancel);
		if (err != -ETIMEDOUT)
			return err;
	}
	if (err) {
		shunt_error("cannot listen at %s, where NCCL_COMM_ID wants rank 0: %s", text, shunt_error_text(err).s);
		return err;
	}
	return rdzv_server_start(id, fd);
}

/* The ranks of several hosts tell each other where they listen, over the root's connections. */
static int learn_hosts(
    int fd, const struct rdzv_ask *ask, struct shunt_rendezvous_row *rows, struct shunt_hosts **hosts_p)
{
	struct shunt_rendezvous *rdzv = rdzv_create(&shunt_socket_tcp, *ask->key);
	struct shunt_ranks ranks = { rdzv, ask->rank, ask->nranks, shunt_config()->setup_timeout, ask->cancel };
	int err;

	if (!rdzv) {
		free(rows);
		shunt_close_socket(&fd);
		return -ENOMEM;
	}
	rdzv->rows = rows;
	rdzv->root_fd = fd;
	rdzv->rank = ask->rank;
	rdzv->nranks = ask->nranks;
	rdzv->joined = true;
	err = rdzv_keep_session(rdzv, ask);
	if (!err)
		err = shunt_hosts_exchange(&ranks, hosts_p);
	if (err && err != -ECANCELED)
		shunt_error("bootstrap failed: rank %d did not learn where those of other hosts listen: %s", ask->rank,
		    shunt_rendezvous_why(rdzv, err));
	shunt_rendezvous_destroy(rdzv);
	return err;
}

/* One call of the root, whose first message must come within this time. */
static int call_root(const struct shunt_netaddr *addr, struct rdzv_ask *ask, int64_t attempt_ms,
    struct shunt_hosts **hosts_p, struct shunt_id *own_p)
{
	struct shunt_rendezvous_row *rows = NULL;
	int fd, err;

	ask->said_hello = false;
	ask->challenge_deadline = shunt_now_ms() + attempt_ms;
	err = shunt_socket_connect(&shunt_socket_tcp, addr, -1, ask->challenge_deadline, ask->cancel, &fd);
	if (err)
		return err;
	err = rdzv_member_join(fd, ask, &rows);
	if (!err && own_p) /* the rows have a random number of each rank */
		*own_p = shunt_id_derive(rows, (size_t)ask->nranks * sizeof(*rows), "join", 0, 0);
	if (!err && shunt_hosts_count(rows, ask->nranks) > 1)
		return learn_hosts(fd, ask, rows, hosts_p);
	free(rows);
	shunt_close_socket(&fd);
	return err;
}

/*
 * True if no process listens, or the listener closes the connection. This is final for an id that has a server; for an
 * id from NCCL_COMM_ID rank 0 may still come.
 */
static bool root_is_absent(int err)
{
	return err == -ECONNREFUSED || err == -EOWNERDEAD || err == -ECONNRESET;
}

/* Nothing was said to us that is an outcome: the reason, from the last attempt. */
static int log_unreached(const struct rdzv_unique_id *id, int rank, bool said_hello, const char *text, int err)
{
	const char *maker = id->from_env ? "rank 0" : RDZV_ID_MAKER;
	uint8_t host[SHUNT_HOST_BYTES];
	struct shunt_netaddr addr;
	char why[168];

	if (err == -EMFILE || err == -ENFILE || err == -ENOMEM) {
		shunt_error("rank %d cannot call the bootstrap at %s: %s", rank, text, shunt_error_text(err).s);
		return err;
	}
	shunt_host_id(host, id->secret, sizeof(id->secret));
	if (!id->from_env && memcmp(host, id->host, sizeof(host)) && !said_hello) {
		id_to_address(id, &addr);
		(void)shunt_netif_explain(&addr, why, sizeof(why));
		shunt_error("rank %d cannot reach the host where the unique id was made, at %s: %s; does a firewall "
		            "let it through (SHUNT_PORT_RANGE), has the process ended? %s",
		    rank, text, strerror(err == -EAGAIN ? ETIMEDOUT : -err), why);
		return root_is_absent(err) ? -EEXIST : -EHOSTUNREACH;
	}
	if (root_is_absent(err) && said_hello) {
		shunt_error("bootstrap failed: %s has ended, or refused rank %d", maker, rank);
		return -EOWNERDEAD;
	}
	if (root_is_absent(err) && id->from_env) {
		shunt_error("rank %d waited for rank 0 to listen at %s, where NCCL_COMM_ID wants it: it has not come "
		            "within SHUNT_TIMEOUT, has ended, or is in another container",
		    rank, text);
		return -ETIMEDOUT;
	}
	if (root_is_absent(err)) {
		shunt_error("nobody answers for the unique id at %s: it was used already, or " RDZV_ID_MAKER
		            " has ended or is in another container",
		    text);
		return -EEXIST;
	}
	err = err == -EAGAIN ? -ETIMEDOUT : err;
	id_to_address(id, &addr);
	(void)shunt_netif_explain(&addr, why, sizeof(why));
	shunt_error("rank %d cannot reach %s, which has the bootstrap at %s: %s%s%s", rank, maker, text, strerror(-err),
	    id->from_env ? "; " : "", id->from_env ? why : "");
	return err;
}

/* When to give up what, in a row of calls. */
struct calls {
	int64_t start, end; /* of all */
	int64_t reach_end;  /* if the root says nothing until then */
	int64_t attempt_ms;
	int64_t next_log;
	bool said_hello; /* in one of them */
};

/*
 * True: another call may get through. A root without a place for us is called again at once. A root with a full backlog
 * is called again after the time of an attempt, which grows. With NCCL_COMM_ID we wait until rank 0 listens.
 */
static bool calls_again(struct calls *c, const struct rdzv_unique_id *id, const char *text, int err)
{
	int64_t now = shunt_now_ms();

	if (now >= c->end)
		return false;
	if (err == -EAGAIN) {
		c->reach_end = shunt_deadline_ms(shunt_config()->setup_timeout);
		return true;
	}
	if (err == -ETIMEDOUT) {
		c->attempt_ms *= 2;
		return now < c->reach_end;
	}
	/* A link that is down comes back, and where there is no process, the next call is refused. */
	if (err == -EHOSTUNREACH || (err == -ECONNRESET && !id->from_env))
		return now < c->reach_end;
	if (!root_is_absent(err) || !id->from_env || c->said_hello)
		return false;
	if (now >= c->next_log) {
		shunt_warn("still waiting for rank 0 to listen at %s (NCCL_COMM_ID)", text);
		c->next_log = now + (now - c->start);
	}
	return true;
}

static int join_root(
    const struct rdzv_unique_id *id, struct rdzv_ask *ask, struct shunt_hosts **hosts_p, struct shunt_id *own_p)
{
	struct calls calls = { .start = shunt_now_ms(),
		.end = shunt_deadline_ms(shunt_config()->timeout),
		.reach_end = shunt_deadline_ms(shunt_config()->setup_timeout),
		.attempt_ms = ATTEMPT_MS };
	struct shunt_netaddr addr;
	char text[128];
	int err;

	calls.next_log = calls.start + WAIT_LOG_MS;
	id_to_address(id, &addr);
	shunt_netaddr_show(&addr, text, sizeof(text));
	for (;;) {
		int64_t left = calls.reach_end - shunt_now_ms();

		err = call_root(
		    &addr, ask, left > 0 && left < calls.attempt_ms ? left : calls.attempt_ms, hosts_p, own_p);
		/* After a hello only "come again" leaves the outcome open; all else is the outcome, and is logged. */
		if (!err || err == -ECANCELED || err == -EPROTO || (ask->said_hello && err != -EAGAIN))
			return err;
		calls.said_hello = calls.said_hello || ask->said_hello;
		if (!calls_again(&calls, id, text, err))
			return log_unreached(id, ask->rank, calls.said_hello, text, err);
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + (err == -EAGAIN ? AGAIN_MS : RETRY_MS), ask->cancel);
		if (err != -ETIMEDOUT)
			return err;
	}
}

int shunt_bootstrap_join(const uint8_t id_bytes[SHUNT_BOOTSTRAP_ID_BYTES], int rank, int nranks,
    const atomic_int *cancel, struct shunt_hosts **hosts_p, struct shunt_id *own_p)
{
	struct rdzv_unique_id id;
	struct rdzv_ask ask = { .what = "bootstrap",
		.who = RDZV_ID_MAKER,
		.member = rank,
		.nmembers = nranks,
		.rank = rank,
		.nranks = nranks,
		.deadline = rdzv_member_deadline(shunt_config()->timeout),
		.cancel = cancel };
	struct rdzv_key key;
	int err;

	*hosts_p = NULL;
	memcpy(&id, id_bytes, sizeof(id));
	if (id.magic != RDZV_MAGIC || (id.family != 4 && id.family != 6)) {
		shunt_error("the unique id was not made by Shunt");
		return -EINVAL;
	}
	if (id.version != RDZV_VERSION) {
		shunt_error("the unique id was made by another version of Shunt (rendezvous protocol %u, ours is %u)",
		    id.version, RDZV_VERSION);
		return -EPROTO;
	}
	if (nranks < 1 || nranks > SHUNT_BOOTSTRAP_MAX_RANKS || rank < 0 || rank >= nranks) {
		shunt_error(
		    "rank %d of %d is out of range (at most %d ranks)", rank, nranks, SHUNT_BOOTSTRAP_MAX_RANKS);
		return -EINVAL;
	}
	key = rdzv_key(id.secret, sizeof(id.secret));
	ask.key = &key;
	if (id.from_env)
		ask.who = "rank 0";
	err = id.from_env && rank == 0 ? start_env_root(&id, cancel) : 0;
	return err ? err : join_root(&id, &ask, hosts_p, own_p);
}

bool shunt_bootstrap_id_is_shared(const uint8_t id_bytes[SHUNT_BOOTSTRAP_ID_BYTES])
{
	struct rdzv_unique_id id;

	memcpy(&id, id_bytes, sizeof(id));
	return id.magic == RDZV_MAGIC && id.from_env;
}

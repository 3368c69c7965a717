/* SPDX-License-Identifier: MIT */
/* The server: one thread per unique id, a root that is no rank itself. */
#include "transport/rendezvous/bootstrap_server.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/io.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/rendezvous/allgather.h"
#include "transport/rendezvous/host_table.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wire.h"

#define STACK_BYTES (256 * 1024)
#define IDLE_MS (3600 * 1000) /* lifetime of an id that no rank uses */
#define LINGER_MS 60000       /* after a failure, at most: time to tell late ranks */
#define LINGER_ENV_MS 2000    /* the same for NCCL_COMM_ID, whose port is needed again */

struct server {
	struct rdzv_lobby lobby;
	struct rdzv_root root;
	bool from_env;
};

static void server_destroy(struct server *server)
{
	rdzv_root_finish(&server->root);
	rdzv_lobby_finish(&server->lobby);
	free(server);
}

/* How long the outcome is told to ranks that come late. */
static int64_t linger_ms(const struct server *server)
{
	int64_t setup_timeout = shunt_config()->setup_timeout,
	        linger = setup_timeout > 0 && setup_timeout < LINGER_MS ? setup_timeout : LINGER_MS;

	return server->from_env && linger > LINGER_ENV_MS ? LINGER_ENV_MS : linger;
}

/* One round of the ranks, with us in the middle. An error reaches the ranks, which say it. */
static int serve_round(struct shunt_rendezvous *rdzv, size_t bytes, int64_t timeout_ms)
{
	void *all = malloc(bytes * (size_t)rdzv->nranks);
	struct rdzv_round round = { .bytes = bytes,
		.all = all,
		.fd = -1,
		.deadline = shunt_deadline_ms(timeout_ms),
		.status = all ? 0 : -ENOMEM,
		.culprit = -1 };
	int err = rdzv_root_allgather(rdzv, &round);

	rdzv->round++;
	free(all);
	return err;
}

/*
 * Ranks of several hosts tell each other where they listen, and whether they reach each other. False: they are on one
 * host, and need no such thing.
 */
static bool serve_hosts(struct server *server)
{
	struct rdzv_root *root = &server->root;
	struct shunt_rendezvous *rdzv = rdzv_create(&shunt_socket_tcp, server->lobby.key);
	int64_t timeout_ms = shunt_config()->setup_timeout;
	bool several = rdzv && !rdzv_root_hand_over(root, rdzv) && shunt_hosts_count(rdzv->rows, root->nranks) > 1;

	if (several && root->nranks <= SHUNT_HOSTS_MAX_RANKS) {
		rdzv_root_answer_all(root, true);
		rdzv->rank = -1;
		rdzv->nranks = root->nranks;
		rdzv->is_root = true;
		for (int r = 0; r < root->nranks; r++)
			rdzv->peer_fds[r] = root->peer[r].fd;
		if (!serve_round(rdzv, shunt_hosts_said_bytes(), timeout_ms))
			(void)serve_round(rdzv, shunt_hosts_reached_bytes(), shunt_hosts_reached_ms(timeout_ms));
		for (int r = 0; r < root->nranks; r++)
			rdzv->peer_fds[r] = -1; /* root has them */
	} else {
		several = false; /* too many, which the ranks find, too */
	}
	shunt_rendezvous_destroy(rdzv);
	return several;
}

static void collect(struct server *server)
{
	struct rdzv_root *root = &server->root;

	while (root->status == RDZV_OPEN) {
		rdzv_root_step(root);
		if (!root->arrived && shunt_now_ms() - root->last_event > IDLE_MS)
			rdzv_root_fail(root, -ETIMEDOUT, "no rank came within an hour");
	}
	/* Before any rank learns of the success: later connections are meant for another communicator. */
	if (!root->status)
		rdzv_lobby_close(&server->lobby);
	if (root->status || !serve_hosts(server))
		rdzv_root_answer_all(root, false);
}

static void *server_main(void *arg)
{
	struct server *server = arg;
	struct rdzv_root *root = &server->root;

	collect(server);
	while (root->status && (!root->nranks || root->answered < root->nranks) &&
	    shunt_now_ms() - root->last_event <= linger_ms(server))
		rdzv_root_step(root);
	server_destroy(server);
	return NULL;
}

int rdzv_server_start(const struct rdzv_unique_id *id, int listen_fd)
{
	struct server *server = calloc(1, sizeof(*server));
	int err;

	shunt_limits_raise_files(); /* as many connections as ranks */
	if (!server) {
		shunt_close_fd(&listen_fd);
		return -ENOMEM;
	}
	server->from_env = id->from_env;
	server->lobby = (struct rdzv_lobby){ .kind = &shunt_socket_tcp,
		.key = rdzv_key(id->secret, sizeof(id->secret)),
		.listen_fd = listen_fd,
		.event_fd = -1 };
	server->root = (struct rdzv_root){ .lobby = &server->lobby,
		.limit = "SHUNT_TIMEOUT",
		.rank = -1,
		.member = -1,
		.timeout_ms = shunt_config()->timeout };
	err = rdzv_root_init(&server->root);
	if (!err)
		err = shunt_thread_start(NULL, STACK_BYTES, server_main, server);
	if (err) {
		shunt_error("cannot start the bootstrap's thread: %s", shunt_thread_error_text(err).s);
		server_destroy(server);
	}
	return err;
}

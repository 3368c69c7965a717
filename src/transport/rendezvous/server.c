/* SPDX-License-Identifier: MIT */
/* The server: one thread per unique id, a root that is no rank itself. */
#include "transport/rendezvous/server.h"
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/rendezvous/priv.h"

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
	shunt_rendezvous_root_finish(&server->root);
	shunt_rendezvous_lobby_finish(&server->lobby);
	free(server);
}

/* How long the outcome is told to ranks that come late. */
static int64_t linger_ms(const struct server *server)
{
	int64_t setup_timeout = shunt_config()->setup_timeout,
	        linger = setup_timeout > 0 && setup_timeout < LINGER_MS ? setup_timeout : LINGER_MS;

	return server->from_env && linger > LINGER_ENV_MS ? LINGER_ENV_MS : linger;
}

static void collect(struct server *server)
{
	struct rdzv_root *root = &server->root;

	while (root->status == RDZV_OPEN) {
		shunt_rendezvous_root_step(root);
		if (!root->arrived && shunt_now_ms() - root->last_event > IDLE_MS)
			shunt_rendezvous_root_fail(root, -ETIMEDOUT, "no rank came within an hour");
	}
	/* Before any rank learns of the success: later connections are meant for another communicator. */
	if (!root->status)
		shunt_rendezvous_lobby_close(&server->lobby);
	shunt_rendezvous_root_answer_all(root, false);
}

static void *server_main(void *arg)
{
	struct server *server = arg;
	struct rdzv_root *root = &server->root;

	collect(server);
	while (root->status && (!root->nranks || root->answered < root->nranks) &&
	    shunt_now_ms() - root->last_event <= linger_ms(server))
		shunt_rendezvous_root_step(root);
	server_destroy(server);
	return NULL;
}

int shunt_rendezvous_server_start(const struct rdzv_unique_id *id, int listen_fd)
{
	struct server *server = calloc(1, sizeof(*server));
	int err;

	if (!server) {
		close(listen_fd);
		return -ENOMEM;
	}
	server->from_env = id->from_env;
	server->lobby = (struct rdzv_lobby){ .kind = &shunt_rendezvous_tcp,
		.key = shunt_rendezvous_key(id->secret, sizeof(id->secret)),
		.listen_fd = listen_fd,
		.event_fd = -1 };
	server->root = (struct rdzv_root){ .lobby = &server->lobby,
		.what = "bootstrap",
		.limit = "SHUNT_TIMEOUT",
		.rank = -1,
		.member = -1,
		.one_host = true,
		.timeout_ms = shunt_config()->timeout };
	shunt_host_id(server->root.host, id->secret, sizeof(id->secret));
	err = shunt_rendezvous_root_init(&server->root);
	if (!err)
		err = shunt_thread_start(NULL, STACK_BYTES, server_main, server);
	if (err) {
		errno = -err;
		shunt_error("cannot start the bootstrap's thread: %m");
		server_destroy(server);
	}
	return err;
}

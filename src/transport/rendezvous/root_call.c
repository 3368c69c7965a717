/* SPDX-License-Identifier: MIT */
/*
 * Calls of a root over TCP. Packets get lost: those that make a connection as well, whose repetitions the kernel sends
 * ever more rarely, and the last of them in particular, without which the root has no connection and the caller has. So
 * a caller calls again, for as long as the set-up lasts; a root that has got a hello of the same caller takes the new
 * hello in place of the old.
 */
#include <errno.h>
#include "base/config.h"
#include "base/io.h"
#include "transport/rendezvous/address.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/object.h"

#define ATTEMPT_MS 2500 /* then a new call: it begins with a packet at once */
#define AGAIN_MS 20

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int rdzv_call_root(struct shunt_rendezvous *rdzv, const struct shunt_netaddr *addr, struct rdzv_ask *ask)
{
	int64_t end = shunt_deadline_ms(shunt_config()->setup_timeout), until;
	int err;

	for (;;) {
		shunt_close_socket(&rdzv->root_fd);
		ask->said_hello = false;
		rdzv->why[0] = '\0'; /* of the call before */
		until = earlier(shunt_now_ms() + ATTEMPT_MS, earlier(end, ask->deadline));
		err = shunt_socket_connect(&shunt_socket_tcp, addr, -1, until, ask->cancel, &rdzv->root_fd);
		if (!err) {
			err = rdzv_member_join(rdzv->root_fd, ask, &rdzv->rows);
			end = shunt_deadline_ms(shunt_config()->setup_timeout); /* it was there */
		}
		if (!err)
			return rdzv_keep_session(rdzv, ask);
		/* What the root has told is the outcome, though its error may look like a network's. */
		if (ask->told || !rdzv_may_call_again(err) || shunt_now_ms() >= earlier(end, ask->deadline))
			return err == -EAGAIN ? -ETIMEDOUT : err;
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + AGAIN_MS, ask->cancel);
		if (err != -ETIMEDOUT)
			return err;
	}
}

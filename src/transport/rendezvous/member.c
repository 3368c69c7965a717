/* SPDX-License-Identifier: MIT */
/* A member's side of a join: it proves its knowledge of the id to the root, and waits for the outcome. */
#include <errno.h>
#include <stdio.h>
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/rendezvous/priv.h"
#include "transport/rendezvous/wire.h"

static int read_from_root(int fd, void *buf, size_t bytes, const char *what, struct rdzv_wait_log *wait_log,
    int64_t deadline, const atomic_int *cancel)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	int64_t next_check = 0;
	int err;

	while ((err = shunt_rendezvous_poll(&pfd, 1, &next_check,
	            wait_log->next_log < deadline ? wait_log->next_log : deadline, cancel)) == -ETIMEDOUT) {
		if (shunt_now_ms() >= deadline) {
			shunt_error("communicator set-up gave up waiting for %s: stopped or hanging? SHUNT_TIMEOUT "
			            "limits this wait",
			    what);
			return err;
		}
		shunt_rendezvous_log_waiting(wait_log, what);
	}
	if (err < 0)
		return err;
	return shunt_io_read(fd, buf, bytes, shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
}

int shunt_rendezvous_member_join(struct shunt_rendezvous *rdzv, int nmembers, int root_member, const atomic_int *cancel)
{
	int64_t deadline = shunt_rendezvous_join_deadline(false);
	struct rdzv_wait_log wait_log = shunt_rendezvous_wait_log();
	struct rdzv_challenge challenge;
	struct rdzv_welcome welcome;
	struct rdzv_hello hello = { .magic = RDZV_MAGIC,
		.version = RDZV_VERSION,
		.member = rdzv->member,
		.nmembers = nmembers,
		.rank = rdzv->rank,
		.nranks = rdzv->nranks };
	uint8_t mac[SHUNT_MAC_BYTES];
	char what[64];
	int err;

	snprintf(what, sizeof(what), "member %d to begin", root_member);
	err = read_from_root(rdzv->root_fd, &challenge, sizeof(challenge), what, &wait_log, deadline, cancel);
	if (err)
		return err;
	if (challenge.magic != RDZV_MAGIC || challenge.version != RDZV_VERSION)
		return -EPROTO;
	err = shunt_random(hello.nonce, sizeof(hello.nonce));
	if (err)
		return err;
	shunt_rendezvous_mac_hello(hello.mac, &rdzv->id, challenge.nonce, &hello);
	err = shunt_io_write(
	    rdzv->root_fd, &hello, sizeof(hello), shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
	if (!err) /* the root's log names the missing ranks */
		err = read_from_root(
		    rdzv->root_fd, &welcome, sizeof(welcome), "other ranks", &wait_log, deadline, cancel);
	if (err)
		return err;
	shunt_rendezvous_mac_welcome(mac, &rdzv->id, hello.nonce, &welcome);
	if (welcome.magic != RDZV_MAGIC || welcome.version != RDZV_VERSION || !shunt_mac_equal(mac, welcome.mac) ||
	    welcome.status > 0)
		return -EPROTO;
	return welcome.status;
}

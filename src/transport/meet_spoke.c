/* SPDX-License-Identifier: MIT */
/* A spoke's side of a join: it proves to the hub that it belongs here, and waits for the outcome. */
#include <errno.h>
#include <stdio.h>
#include "core/config.h"
#include "core/io.h"
#include "core/log.h"
#include "core/random.h"
#include "transport/meet_priv.h"
#include "transport/meet_wire.h"

static int wait_for_hub(int fd, void *buf, size_t bytes, const char *what, struct meet_patience *patience,
    int64_t deadline, const atomic_int *cancel)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	int64_t look = 0;
	int err;

	while ((err = shunt_meet_poll(&pfd, 1, &look, patience->next_log < deadline ? patience->next_log : deadline,
	            cancel)) == -ETIMEDOUT) {
		if (shunt_now_ms() >= deadline) {
			shunt_error("communicator set-up gave up waiting for %s: stopped or hanging? SHUNT_TIMEOUT "
			            "limits this wait",
			    what);
			return err;
		}
		shunt_meet_still_waiting(patience, what);
	}
	if (err < 0)
		return err;
	return shunt_io_read(fd, buf, bytes, shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
}

int shunt_meet_spoke_join(struct shunt_meet *meet, int nslots, int hub_slot, const atomic_int *cancel)
{
	int64_t deadline = shunt_meet_join_deadline(false);
	struct meet_patience patience = shunt_meet_patience();
	struct meet_challenge challenge;
	struct meet_welcome welcome;
	struct meet_hello hello = { .magic = MEET_MAGIC,
		.version = MEET_VERSION,
		.slot = meet->slot,
		.nslots = nslots,
		.rank = meet->rank,
		.nranks = meet->nranks };
	uint8_t mac[SHUNT_MAC_BYTES];
	char what[64];
	int err;

	snprintf(what, sizeof(what), "the member in slot %d to begin", hub_slot);
	err = wait_for_hub(meet->hub_fd, &challenge, sizeof(challenge), what, &patience, deadline, cancel);
	if (err)
		return err;
	if (challenge.magic != MEET_MAGIC || challenge.version != MEET_VERSION)
		return -EPROTO;
	err = shunt_random(hello.nonce, sizeof(hello.nonce));
	if (err)
		return err;
	shunt_meet_prove_hello(hello.mac, &meet->id, challenge.nonce, &hello);
	err = shunt_io_write(
	    meet->hub_fd, &hello, sizeof(hello), shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
	if (!err) /* the hub's log names the ranks */
		err = wait_for_hub(meet->hub_fd, &welcome, sizeof(welcome), "other ranks", &patience, deadline, cancel);
	if (err)
		return err;
	shunt_meet_prove_welcome(mac, &meet->id, hello.nonce, &welcome);
	if (welcome.magic != MEET_MAGIC || welcome.version != MEET_VERSION || !shunt_mac_equal(mac, welcome.mac) ||
	    welcome.status > 0)
		return -EPROTO;
	return welcome.status;
}

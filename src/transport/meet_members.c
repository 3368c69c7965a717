/* SPDX-License-Identifier: MIT */
/* Who is here: counting the members by their sockets. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/io.h"
#include "core/log.h"
#include "transport/meet_priv.h"

#define AWAIT_MIN_MS 1
#define AWAIT_MAX_MS 32

/*
 * The connection to the hub is made and held before the rest is looked at. So whoever counts the members and finds one
 * missing can tell all who counted before by closing what waits in its backlog; nobody waits for a hub that has given
 * up.
 */
int shunt_meet_count(
    struct shunt_meet *meet, int nslots, int *watch, const atomic_int *cancel, int *hub_p, int *missing_p)
{
	int64_t deadline = shunt_meet_join_deadline(true);
	int count = 0, hub = -1, missing = -1, err;

	for (int s = 0; s < nslots; s++) {
		int fd = -1;

		watch[s] = -1;
		if (s == meet->slot) {
			err = 0;
		} else {
			err = shunt_meet_probe(meet, s, &fd);
			while (!err && fd < 0 && hub < 0) { /* the hub's backlog is full */
				err = shunt_io_poll(NULL, 0, shunt_now_ms() + 20, cancel);
				if (err == -ETIMEDOUT && shunt_now_ms() < deadline)
					err = shunt_meet_probe(meet, s, &fd);
			}
		}
		if (err == -ECONNREFUSED) {
			missing = missing < 0 ? s : missing;
			continue;
		}
		if (err)
			return err;
		count++;
		if (hub < 0) {
			hub = s;
			meet->hub_fd = fd;
		} else if (hub == meet->slot && s != meet->slot && count <= meet->nranks) {
			watch[s] = fd >= 0 ? fd : MEET_WATCH_LATER;
		} else {
			meet_close_fd(&fd);
		}
	}
	meet->miscounted = count != meet->nranks;
	meet->leads = hub == meet->slot && count > 1;
	if (count > meet->nranks) {
		shunt_error("the communicator has %d ranks, but %d members are here", meet->nranks, count);
		return -EINVAL;
	}
	if (count < meet->nranks) {
		*missing_p = missing;
		return -ENOENT;
	}
	*hub_p = hub;
	return 0;
}

/* One connection to each is enough: it is dropped at once, and takes no place once the member has looked at it. */
int shunt_meet_await(struct shunt_meet *meet, int nslots, int nranks, int64_t timeout_ms, const atomic_int *cancel)
{
	int64_t end = timeout_ms > 0 ? shunt_deadline_ms(timeout_ms) : SHUNT_NEVER, pause = AWAIT_MIN_MS;
	bool *here = nslots > 0 ? calloc((size_t)nslots, sizeof(*here)) : NULL;
	struct meet_patience patience = shunt_meet_patience();
	char what[64];
	int count = 1, err = here ? 0 : -ENOMEM;

	if (!err && meet->slot >= nslots)
		err = -EINVAL;
	while (!err) {
		for (int s = 0; s < nslots && !err; s++) {
			int fd = -1;

			if (s == meet->slot || here[s])
				continue;
			err = shunt_meet_probe(meet, s, &fd);
			meet_close_fd(&fd);
			here[s] = !err;
			count += !err;
			err = err == -ECONNREFUSED ? 0 : err;
		}
		if (err || count >= nranks)
			break;
		if (shunt_now_ms() >= end) {
			err = -ETIMEDOUT;
			break;
		}
		snprintf(what, sizeof(what), "%d of %d ranks", nranks - count, nranks);
		shunt_meet_still_waiting(&patience, what);
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + pause, cancel);
		err = err == -ETIMEDOUT ? 0 : err;
		pause = pause < AWAIT_MAX_MS ? 2 * pause : pause;
	}
	free(here);
	return err;
}

/* SPDX-License-Identifier: MIT */
/* Counts the members that are present, by their sockets. */
#include "transport/rendezvous/presence.h"
#include <errno.h>
#include <stdlib.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/io.h"
#include "base/log.h"
#include "transport/rendezvous/address.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/wait.h"

#define BACKOFF_MIN_MS 1
#define BACKOFF_MAX_MS 32

/*
 * The connection to the root is made, and held, before the other members are probed. So a member that finds another one
 * missing can tell all members that counted before: it closes the connections in its backlog. No member waits for a
 * root that has given up.
 */
int rdzv_count_members(
    struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel, int *root_p, int *missing_p)
{
	int64_t deadline = shunt_deadline_ms(shunt_config()->timeout);
	int count = 0, root = -1, missing = -1, err;

	for (int s = 0; s < nmembers; s++) {
		int fd = -1;

		watch[s] = -1;
		if (s == rdzv->member) {
			err = 0;
		} else {
			err = rdzv_probe(rdzv, s, &fd);
			while (!err && fd < 0 && root < 0) { /* the root's backlog is full */
				err = shunt_io_poll(NULL, 0, shunt_now_ms() + 20, cancel);
				if (err == -ETIMEDOUT && shunt_now_ms() < deadline)
					err = rdzv_probe(rdzv, s, &fd);
			}
		}
		if (err == -ECONNREFUSED) {
			missing = missing < 0 ? s : missing;
			continue;
		}
		if (err)
			return err;
		count++;
		if (root < 0) {
			root = s;
			rdzv->root_fd = fd;
		} else if (root == rdzv->member && s != rdzv->member && count <= rdzv->nranks) {
			watch[s] = fd >= 0 ? fd : RDZV_WATCH_LATER;
		} else {
			shunt_close_fd(&fd);
		}
	}
	rdzv->count_mismatch = count != rdzv->nranks;
	rdzv->is_leader = root == rdzv->member && count > 1;
	if (count > rdzv->nranks) {
		rdzv_because(rdzv, "the communicator has %d ranks, but %d members are present", rdzv->nranks, count);
		return -EINVAL;
	}
	if (count < rdzv->nranks) {
		*missing_p = missing;
		return -ENOENT;
	}
	*root_p = root;
	return 0;
}

int shunt_rendezvous_present(struct shunt_rendezvous *rdzv, int nmembers, int *missing_p)
{
	int count = 0, first = -1;

	*missing_p = -1;
	for (int s = 0; s < nmembers; s++) {
		int fd = -1, err = s == rdzv->member ? 0 : rdzv_probe(rdzv, s, &fd);

		shunt_close_fd(&fd);
		if (err && err != -ECONNREFUSED)
			return err;
		count += !err;
		if (err && *missing_p < 0)
			*missing_p = s;
		if (!err && first < 0)
			first = s;
	}
	rdzv->is_leader = first == rdzv->member && count > 1;
	return count;
}

/*
 * One connection to each member is enough. It is closed at once, and takes no place in the backlog once the member has
 * accepted it.
 */
int shunt_rendezvous_await(
    struct shunt_rendezvous *rdzv, const struct shunt_members *members, int64_t timeout_ms, const atomic_int *cancel)
{
	int64_t end = timeout_ms > 0 ? shunt_deadline_ms(timeout_ms) : SHUNT_NEVER, backoff_ms = BACKOFF_MIN_MS;
	bool *present = members->n > 0 ? calloc((size_t)members->n, sizeof(*present)) : NULL;
	struct rdzv_wait_log wait_log = rdzv_wait_log_begin();
	char missing[96];
	int count = 0, err = present ? 0 : -ENOMEM;

	while (!err) {
		for (int r = 0; r < members->n && !err; r++) {
			int s = members->member ? members->member[r] : r, fd = -1;

			if (present[r])
				continue;
			if (s != rdzv->member)
				err = rdzv_probe(rdzv, s, &fd);
			shunt_close_fd(&fd);
			present[r] = !err;
			count += !err;
			err = err == -ECONNREFUSED ? 0 : err;
		}
		if (err || count >= members->n)
			break;
		rdzv_show_missing(members, present, members->n, missing, sizeof(missing));
		if (shunt_now_ms() >= end) {
			rdzv_because(rdzv, "not all ranks came within %lld s (SHUNT_TIMEOUT), %s",
			    (long long)(timeout_ms / 1000), missing);
			err = -ETIMEDOUT;
			break;
		}
		if (rdzv_wait_log_due(&wait_log))
			shunt_warn("a new communicator waits for ranks: %s", missing);
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + backoff_ms, cancel);
		err = err == -ETIMEDOUT ? 0 : err;
		backoff_ms = backoff_ms < BACKOFF_MAX_MS ? 2 * backoff_ms : backoff_ms;
	}
	rdzv_set_error(rdzv, err);
	free(present);
	return err;
}

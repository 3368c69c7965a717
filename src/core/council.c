/* SPDX-License-Identifier: MIT */
#include "core/council.h"
#include <errno.h>
#include <string.h>
#include "core/config.h"
#include "core/log.h"
#include "transport/meet.h"

int shunt_council_meet(const struct shunt_council *c, const void *mine, size_t bytes, void *all)
{
	struct shunt_id id = shunt_id_derive(&c->id, sizeof(c->id), "council", 0, 0);
	int64_t timeout = shunt_config()->timeout;
	struct shunt_meet *meet;
	int err;

	if (c->nranks == 1) {
		if (bytes)
			memcpy(all, mine, bytes);
		return 0;
	}
	err = shunt_meet_bind(&id, c->slot, &meet);
	if (err)
		goto out;
	err = shunt_meet_await(meet, c->nslots, c->nranks, timeout, c->cancel);
	if (!err)
		err = shunt_meet_join(meet, c->nslots, c->rank, c->nranks, c->cancel, NULL);
	if (!err)
		err = shunt_meet_gather(meet, mine, bytes, all, -1, NULL, timeout, c->cancel);
	shunt_meet_destroy(meet);
out:
	if (err == -ENOENT)
		err = -EOWNERDEAD; /* it was there a moment ago */
	if (err && err != -ECANCELED)
		shunt_error("the %d ranks of a new communicator did not come together on rank %d: %s", c->nranks,
		    c->rank, strerror(-err));
	return err;
}

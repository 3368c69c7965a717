/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/group.h"
#include <errno.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "transport/rendezvous/rendezvous.h"

int shunt_bootstrap_allgather(const struct shunt_bootstrap_group *c, const void *mine, size_t bytes, void *all)
{
	struct shunt_id id = shunt_id_derive(&c->id, sizeof(c->id), "bootstrap_group", 0, 0);
	int64_t timeout = shunt_config()->timeout;
	struct shunt_rendezvous *rdzv;
	int err;

	if (c->nranks == 1) {
		if (bytes)
			memcpy(all, mine, bytes);
		return 0;
	}
	err = shunt_rendezvous_bind(&id, c->member, &rdzv);
	if (err)
		goto out;
	err = shunt_rendezvous_await(rdzv, c->nmembers, c->nranks, timeout, c->cancel);
	if (!err)
		err = shunt_rendezvous_join(rdzv, c->nmembers, c->rank, c->nranks, c->cancel, NULL);
	if (!err)
		err = shunt_rendezvous_allgather(rdzv, mine, bytes, all, -1, NULL, timeout, c->cancel);
	shunt_rendezvous_destroy(rdzv);
out:
	if (err == -ENOENT)
		err = -EOWNERDEAD; /* the member was present a moment ago: it has died */
	if (err && err != -ECANCELED)
		shunt_error("the %d ranks of a new communicator did not come together on rank %d: %s", c->nranks,
		    c->rank, strerror(-err));
	return err;
}

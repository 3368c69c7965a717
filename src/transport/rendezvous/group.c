/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/group.h"
#include <errno.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "transport/rendezvous/rendezvous.h"

static int join_group(const struct shunt_bootstrap_group *c, const struct shunt_id *id, struct shunt_ranks *ranks)
{
	int err = shunt_rendezvous_bind(id, c->member, &ranks->rendezvous);

	if (!err)
		err = shunt_rendezvous_await(ranks->rendezvous, c->nmembers, c->nranks, ranks->timeout_ms, c->cancel);
	if (!err)
		err = shunt_rendezvous_join(ranks->rendezvous, c->nmembers, c->rank, c->nranks, c->cancel, NULL);
	return err;
}

int shunt_bootstrap_allgather(const struct shunt_bootstrap_group *c, const void *mine, size_t bytes, void *all)
{
	struct shunt_id id = shunt_id_derive(&c->id, sizeof(c->id), "bootstrap_group", 0, 0);
	struct shunt_ranks ranks = {
		.rank = c->rank, .nranks = c->nranks, .timeout_ms = shunt_config()->timeout, .cancel = c->cancel
	};
	int err = c->nranks > 1 ? join_group(c, &id, &ranks) : 0;

	if (!err)
		err = shunt_rendezvous_allgather(&ranks, mine, bytes, all, -1, NULL);
	shunt_rendezvous_destroy(ranks.rendezvous);
	if (err == -ENOENT)
		err = -EOWNERDEAD; /* the member was present a moment ago: it has died */
	if (err && err != -ECANCELED)
		shunt_error("the %d ranks of a new communicator did not come together on rank %d: %s", c->nranks,
		    c->rank, strerror(-err));
	return err;
}

/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/bootstrap_group.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "base/inet/netif.h"
#include "base/log.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/wait.h"

static struct shunt_members members_of(const struct shunt_bootstrap_group *c)
{
	return (struct shunt_members){ c->nranks, c->members, c->of_parent ? " (of the parent)" : "" };
}

static int join_here(const struct shunt_bootstrap_group *c, const struct shunt_id *id, struct shunt_ranks *ranks)
{
	const struct shunt_members members = members_of(c);
	int missing, err = shunt_rendezvous_bind(id, c->member, &ranks->rendezvous);

	if (!err)
		err = shunt_rendezvous_await(ranks->rendezvous, &members, ranks->timeout_ms, c->cancel);
	if (!err)
		err = shunt_rendezvous_join(ranks->rendezvous, c->nmembers, c->rank, c->nranks, c->cancel, &missing);
	if (err == -ENOENT) { /* the member was present a moment ago */
		rdzv_because(ranks->rendezvous, "rank %d%s died or gave up", missing, members.whose);
		ranks->rendezvous->err = err = -EOWNERDEAD;
	}
	return err;
}

/* ---- over several hosts */

/* The socket stays the parent's. */
static int collect(const struct shunt_bootstrap_group *c, struct shunt_rendezvous *rdzv)
{
	const struct shunt_members members = members_of(c);
	struct rdzv_root root = { .lobby = &rdzv->lobby,
		.limit = "SHUNT_TIMEOUT",
		.members = &members,
		.rank = c->rank,
		.member = c->member,
		.nranks = c->nranks,
		.nmembers = c->nmembers,
		.timeout_ms = shunt_config()->timeout,
		.cancel = c->cancel };
	int err;

	rdzv->lobby.listen_fd = c->root.fd;
	rdzv->is_root = true;
	err = rdzv_root_run(&root, rdzv);
	rdzv_lobby_clear(&rdzv->lobby, err != 0);
	rdzv->lobby.listen_fd = -1;
	return err;
}

static int call(const struct shunt_bootstrap_group *c, struct shunt_rendezvous *rdzv)
{
	int64_t deadline = rdzv_member_deadline(shunt_config()->timeout);
	struct shunt_netaddr addr = shunt_host_netaddr(&c->root.at);
	char at[96], root[160], why[168];
	struct rdzv_ask ask = { .key = &rdzv->lobby.key,
		.what = "a communicator made of another one",
		.member = c->member,
		.nmembers = c->nmembers,
		.rank = c->rank,
		.nranks = c->nranks,
		.challenge_deadline = deadline,
		.deadline = deadline,
		.root = root,
		.who = root,
		.rdzv = rdzv,
		.cancel = c->cancel };
	int err;

	shunt_netaddr_show(&addr, at, sizeof(at));
	if (c->root.member < 0)
		snprintf(root, sizeof(root), "the rank at %s, to which the others come,", at);
	else
		snprintf(root, sizeof(root), "rank %d%s at %s, to which the others come,", c->root.member,
		    members_of(c).whose, at);
	/* A root that has given up another group lets the calls for this one fall, too: then again. */
	err = rdzv_call_root(rdzv, &addr, &ask);
	if (err == -ECONNREFUSED || err == -ECONNRESET || err == -EOWNERDEAD) {
		rdzv_because(rdzv, "%s has ended or given up", root);
		return -EOWNERDEAD;
	}
	if (err) {
		(void)shunt_netif_explain(&addr, why, sizeof(why));
		rdzv_because(rdzv, "%s cannot be reached: %s; %s", root, strerror(-err), why);
	}
	return err;
}

static int join_over_hosts(const struct shunt_bootstrap_group *c, const struct shunt_id *id, struct shunt_ranks *ranks)
{
	struct shunt_rendezvous *rdzv = rdzv_create(&shunt_socket_tcp, rdzv_key(id, sizeof(*id)));
	int err;

	ranks->rendezvous = rdzv;
	if (!rdzv)
		return -ENOMEM;
	rdzv->rank = c->rank;
	rdzv->member = c->member;
	rdzv->nranks = c->nranks;
	err = c->root.fd >= 0 ? collect(c, rdzv) : call(c, rdzv);
	rdzv->joined = !err;
	rdzv->err = err;
	return err;
}

/* ---- */

int shunt_bootstrap_allgather(
    const struct shunt_bootstrap_group *c, const void *mine, size_t bytes, void *all, struct shunt_hosts **hosts_p)
{
	struct shunt_id id = shunt_id_derive(&c->id, sizeof(c->id), "bootstrap_group", 0, 0);
	struct shunt_ranks ranks = {
		.rank = c->rank, .nranks = c->nranks, .timeout_ms = shunt_config()->timeout, .cancel = c->cancel
	};
	bool over_hosts = c->root.at.family && c->nranks > 1;
	int err = 0;

	*hosts_p = NULL;
	if (over_hosts)
		err = join_over_hosts(c, &id, &ranks);
	else if (c->nranks > 1)
		err = join_here(c, &id, &ranks);
	if (!err)
		err = shunt_rendezvous_allgather(&ranks, mine, bytes, all, -1, NULL);
	if (!err && over_hosts)
		err = shunt_hosts_exchange(&ranks, hosts_p);
	if (err && err != -ECANCELED)
		shunt_error("the %d ranks of a new communicator did not come together on rank %d: %s", c->nranks,
		    c->rank, shunt_rendezvous_why(ranks.rendezvous, err));
	shunt_rendezvous_destroy(ranks.rendezvous);
	return err;
}

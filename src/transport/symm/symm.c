/* SPDX-License-Identifier: MIT */
#include "transport/symm/symm.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rlimits.h"
#include "base/io.h"
#include "topology/pci.h"
#include "transport/symm/host_memory.h"
#include "transport/symm/shared.h"

/* A rank's message in the first round. */
struct offer {
	struct shunt_vote vote;
	struct shunt_symm_terms terms;
	uint64_t process;
	uint64_t ptr, whole; /* the allocation; ptr is valid in the same process only */
	uint64_t at;
	char pci[16]; /* of the rank's device */
};

/* The messages of all ranks, by rank. */
struct tables {
	struct offer *offers;
	struct shunt_vote *votes;
	int *fds; /* of the peers' memory; -1: none */
};

static int tables_create(struct tables *t, int nranks)
{
	size_t n = (size_t)nranks;

	*t = (struct tables){ calloc(n, sizeof(*t->offers)), calloc(n, sizeof(*t->votes)), calloc(n, sizeof(*t->fds)) };
	for (int r = 0; t->fds && r < nranks; r++)
		t->fds[r] = -1;
	return t->offers && t->votes && t->fds ? 0 : -ENOMEM;
}

static void tables_destroy(struct tables *t, int nranks)
{
	if (t->fds)
		shunt_io_close_all(t->fds, nranks);
	free(t->offers);
	free(t->votes);
	free(t->fds);
}

void shunt_symm_init(struct shunt_symm *symm, const struct shunt_symm_config *config)
{
	*symm = (struct shunt_symm){ .config = *config, .vote = { .ok = 1 }, .fd = -1 };
	if (!config->mates) {
		symm->config.nmates = config->ranks.nranks;
		symm->config.own = config->ranks.rank;
	}
	for (int i = 0; i < symm->config.nmates; i++)
		config->mem[i] = (struct shunt_gpu_mem){ .fd = -1 };
}

int shunt_symm_alloc(struct shunt_symm *symm, size_t bytes)
{
	const struct shunt_symm_config *c = &symm->config;
	struct shunt_gpu_mem *own = &c->mem[c->own];
	int err = shunt_shared_alloc(c->gpu, c->device, c->on_host, bytes, own);

	symm->allocated = true;
	symm->bytes = bytes;
	if (err) {
		shunt_vote_refuse(
		    &symm->vote, "%zu bytes of %s cannot be allocated: %s", bytes, c->what, shunt_error_text(err).s);
		return err;
	}
	symm->base = own->ptr;
	symm->whole = own->bytes;
	symm->fd = own->fd;
	return 0;
}

int shunt_symm_register(struct shunt_symm *symm, void *base, size_t bytes)
{
	const struct shunt_symm_config *c = &symm->config;
	struct shunt_gpu_export memory;
	const char *reason;
	int err = c->gpu->share_export(c->device, base, bytes, &memory, &reason);

	symm->bytes = bytes;
	if (err) {
		shunt_vote_refuse(&symm->vote, "%s", err == -EOPNOTSUPP ? reason : shunt_error_text(err).s);
		return err;
	}
	symm->base = memory.base;
	symm->whole = memory.bytes;
	symm->at = (uintptr_t)base - (uintptr_t)memory.base;
	symm->fd = memory.fd;
	return 0;
}

/* By now each rank that needs our descriptor has it, or will never get it. */
static void close_fd(struct shunt_symm *symm)
{
	if (symm->fd < 0)
		return;
	if (symm->allocated)
		shunt_shared_close_fd(&symm->config.mem[symm->config.own]);
	else
		shunt_io_close_all(&symm->fd, 1);
	symm->fd = -1;
}

static int refused_by(struct shunt_symm *symm, int rank, const char *reason)
{
	snprintf(
	    symm->refusal, sizeof(symm->refusal), "rank %d: %.*s", rank, (int)sizeof(symm->vote.reason) - 1, reason);
	return -EOPNOTSUPP;
}

/* First round. */
static int exchange_offers(struct shunt_symm *symm, struct tables *t)
{
	const struct shunt_symm_config *c = &symm->config;
	bool with_fds = shunt_rendezvous_passes_fds(&c->ranks);
	struct shunt_gpu_info own;
	struct offer mine;
	int err;

	memset(&mine, 0, sizeof(mine)); /* padding is sent, too */
	mine.vote = symm->vote;
	mine.terms = (struct shunt_symm_terms){ { c->value[0], c->value[1] }, symm->bytes };
	mine.process = c->process;
	mine.ptr = (uintptr_t)symm->base;
	mine.whole = symm->whole;
	mine.at = symm->at;
	if (!c->gpu->device_info(c->device, &own))
		memcpy(mine.pci, own.pci, sizeof(mine.pci));
	err = shunt_rendezvous_allgather(&c->ranks, &mine, sizeof(mine), t->offers,
	    with_fds && symm->vote.ok ? symm->fd : -1, with_fds ? t->fds : NULL);
	for (int r = 0; r < c->ranks.nranks && c->terms && !err; r++)
		c->terms[r] = t->offers[r].terms;
	return err;
}

/* 0 or -EOPNOTSUPP, the same on all ranks. */
static int compare_offers(struct shunt_symm *symm, const struct offer *o)
{
	const struct shunt_symm_config *c = &symm->config;
	char text[96];

	for (int r = 0; r < c->ranks.nranks; r++) {
		if (!o[r].vote.ok)
			return refused_by(symm, r, o[r].vote.reason);
		for (int i = 0; i < 2; i++)
			if (o[r].terms.value[i] != o[0].terms.value[i])
				return refused_by(symm, r, c->differs[i]);
		if (o[r].terms.bytes != o[0].terms.bytes) {
			snprintf(text, sizeof(text), "its %s has another size than that of rank 0", c->what);
			return refused_by(symm, r, text);
		}
	}
	return 0;
}

static int map_peer(const struct shunt_symm *symm, const struct offer *o, int fd, struct shunt_gpu_mem *mem_p)
{
	const struct shunt_symm_config *c = &symm->config;
	void *ptr = (void *)(uintptr_t)o->ptr;

	if (o->process == c->process)
		return symm->allocated ? shunt_shared_borrow(c->gpu, c->device, ptr, o->whole, mem_p) :
		                         c->gpu->share_alias(c->device, ptr, o->whole, mem_p);
	if (!shunt_rendezvous_passes_fds(&c->ranks))
		return -EREMOTE;
	if (fd < 0)
		return -EBADF;
	return c->on_host ? shunt_host_memory_map(c->gpu, fd, o->whole, mem_p) :
	                    c->gpu->share_map(c->device, fd, o->whole, mem_p);
}

/* Why the driver does not map another rank's memory, if that is known. */
static struct cause {
	char text[80];
} find_cause(const struct shunt_symm_config *c, const struct offer *o, int err)
{
	struct cause cause = { "; " };

	if (!c->on_host && (err == -EIO || err == -ENOMEM))
		shunt_pci_small_bar(o->pci, cause.text + 2, sizeof(cause.text) - 2);
	if (!cause.text[2])
		cause.text[0] = '\0';
	return cause;
}

static void map_peers(struct shunt_symm *symm, const struct tables *t)
{
	const struct shunt_symm_config *c = &symm->config;
	int err;

	for (int i = 0; i < c->nmates && symm->vote.ok; i++) {
		int r = c->mates ? c->mates[i] : i;

		if (c->at)
			c->at[i] = t->offers[r].at;
		err = i == c->own ? 0 : map_peer(symm, &t->offers[r], t->fds[r], &c->mem[i]);
		if (err)
			shunt_vote_refuse(&symm->vote, "rank %d's %s cannot be mapped: %s%s", r, c->what,
			    shunt_error_text(err).s, find_cause(c, &t->offers[r], err).text);
	}
	err = symm->vote.ok && c->fill ? c->fill(c->ctx) : 0;
	if (err)
		shunt_vote_refuse(&symm->vote, "its %s cannot be written: %s", c->what, shunt_error_text(err).s);
}

/* Second round. */
static int exchange_votes(struct shunt_symm *symm, struct tables *t)
{
	const struct shunt_ranks *ranks = &symm->config.ranks;
	int err = shunt_rendezvous_allgather(ranks, &symm->vote, sizeof(symm->vote), t->votes, -1, NULL), who;

	if (err)
		return err;
	who = shunt_vote_find_refusal(t->votes, ranks->nranks);
	return who < 0 ? 0 : refused_by(symm, who, t->votes[who].reason);
}

int shunt_symm_agree(struct shunt_symm *symm)
{
	const struct shunt_ranks *ranks = &symm->config.ranks;
	struct tables t;
	int err = tables_create(&t, ranks->nranks);

	if (err)
		shunt_rendezvous_lacks_memory(ranks);
	else
		err = exchange_offers(symm, &t);
	close_fd(symm);
	if (!err)
		err = compare_offers(symm, t.offers);
	if (!err) {
		map_peers(symm, &t);
		err = exchange_votes(symm, &t);
	}
	tables_destroy(&t, ranks->nranks);
	return err;
}

void shunt_symm_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem, int nranks)
{
	for (int r = 0; r < nranks; r++)
		shunt_shared_free(gpu, &mem[r]);
}

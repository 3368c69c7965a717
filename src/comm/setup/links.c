/* SPDX-License-Identifier: MIT */
#include "comm/setup/links.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "base/rlimits.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"
#include "comm/setup/scratch.h"
#include "comm/setup/selftest.h"
#include "topology/claim.h"
#include "topology/pci.h"
#include "topology/trust.h"

/* A rank's word: its links by index on its island, and the reason for the slowest. */
struct claims {
	uint8_t link[SHUNT_TOPOLOGY_LOCAL];
	/* Links as bits: those that need no self-test or have passed one; those that one has refused. */
	uint8_t good[SHUNT_TOPOLOGY_LOCAL], bad[SHUNT_TOPOLOGY_LOCAL];
	uint8_t is_long;
	char reason[SHUNT_LINK_WHY];
};

/* True: this rank wants a self-test of such a link. Those of the sim need none, unless they lie. */
static bool wants_test(const struct shunt_comm *comm, const struct shunt_gpu_info *theirs, enum shunt_link link)
{
	enum shunt_selftest_mode mode = shunt_config()->selftest;

	if (comm->own.bytes || shunt_comm_spans_hosts(comm) || mode == SHUNT_SELFTEST_OFF)
		return false;
	if (mode >= SHUNT_SELFTEST_ALWAYS)
		return true;
	return link > SHUNT_LINK_NVLINK &&
	    (!theirs->sim || shunt_link_rules_look(shunt_config()->sim_links, comm->device, theirs->uuid[3]).play);
}

/* What is known of the links to a rank with this device. why: of the slowest refused link. */
static void claim_trust(const struct shunt_comm *comm, const struct shunt_gpu_info *own,
    const struct shunt_gpu_info *theirs, uint8_t *good, uint8_t *bad, char why[SHUNT_TRUST_WHY])
{
	bool anew = shunt_config()->selftest == SHUNT_SELFTEST_LONG && !comm->untested.tries;

	for (int link = SHUNT_LINK_NVLINK; link <= SHUNT_LINK_SHARED; link++) {
		enum shunt_trust trust = SHUNT_TRUST_GOOD;
		char text[SHUNT_TRUST_WHY];

		if (wants_test(comm, theirs, (enum shunt_link)link))
			trust = anew ? SHUNT_TRUST_UNKNOWN : shunt_trust_find(own, theirs, (enum shunt_link)link, text);
		*good |= (trust == SHUNT_TRUST_GOOD) << link;
		*bad |= (trust == SHUNT_TRUST_BAD) << link;
		if (trust == SHUNT_TRUST_BAD)
			memcpy(why, text, SHUNT_TRUST_WHY);
	}
}

/* The next link, from `link` on, that is served and that no self-test has refused. */
static uint8_t next_link(uint8_t link, unsigned served, unsigned bad)
{
	while (link > SHUNT_LINK_SELF && link < SHUNT_LINK_NET && (!(served >> link & 1) || bad >> link & 1))
		link++;
	return link;
}

/* The devices that ranks of this host have. */
static int devices(const struct shunt_comm *comm, const struct shunt_hello *hellos)
{
	const uint8_t *locals = shunt_topology_locals(&comm->topology);
	const struct shunt_gpu_info *info[SHUNT_MAX_RANKS];
	int n = shunt_comm_local_ranks(comm);

	for (int i = 0; i < n; i++)
		info[i] = &hellos[locals[i]].gpu;
	return shunt_link_devices(info, n);
}

static void claim(struct shunt_comm *comm, const struct shunt_hello *hellos, unsigned served, struct claims *mine)
{
	const uint8_t *locals = shunt_topology_locals(&comm->topology);
	uint8_t slowest = SHUNT_LINK_NVLINK;
	int ndevices = served >> SHUNT_LINK_SHARED & 1 ? devices(comm, hellos) : 0;

	memset(mine, 0, sizeof(*mine));
	mine->is_long = shunt_config()->selftest == SHUNT_SELFTEST_LONG;
	for (int i = 0; i < shunt_comm_local_ranks(comm); i++) {
		const struct shunt_gpu_info *theirs = &hellos[locals[i]].gpu;
		char why[SHUNT_TRUST_WHY], reason[SHUNT_LINK_WHY];
		uint8_t link;

		if (locals[i] == comm->rank)
			continue;
		mine->link[i] =
		    (uint8_t)shunt_link_claim(comm->gpu, comm->device, theirs, comm->rank, locals[i], ndevices, reason);
		claim_trust(comm, &hellos[comm->rank].gpu, theirs, &mine->good[i], &mine->bad[i], why);
		link = next_link(mine->link[i], served, mine->bad[i]);
		if (link > slowest && mine->bad[i] >> (link - 1) & 1)
			snprintf(mine->reason, sizeof(mine->reason), "the self-test of %.10s links found that %.70s",
			    shunt_link_names[link - 1], why);
		else if (mine->link[i] > slowest)
			snprintf(mine->reason, sizeof(mine->reason), "%s", reason);
		slowest = link > slowest ? link : slowest;
		if (mine->bad[i] && !*mine->reason) /* a link that other pairs may make it use */
			snprintf(mine->reason, sizeof(mine->reason), "a self-test found that %.80s", why);
	}
}

/*
 * All pairs use the slowest link, also those whose self-test has refused it. True: there are such, and their links are
 * the next slower ones now.
 */
static bool leave_refused(
    const struct shunt_topology *t, const struct claims *all, unsigned served, uint8_t links[][SHUNT_TOPOLOGY_LOCAL])
{
	bool found = false;

	for (int r = 0; r < t->nranks; r++)
		for (int i = 0; i < t->nlocal[t->island_of[r]]; i++) {
			unsigned bad = all[r].bad[i] | all[t->rank_at[t->island_of[r]][i]].bad[t->local_of[r]];

			if (t->link[r][i] == SHUNT_LINK_SELF || !(bad >> t->within & 1))
				continue;
			links[r][i] = next_link(t->within, served, bad);
			found = true;
		}
	return found;
}

int shunt_comm_links_agree(struct shunt_comm *comm, const struct shunt_hello *hellos, char *reason, size_t bytes)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	unsigned served = comm->own.bytes ? 1u << SHUNT_LINK_SELF | 1u << SHUNT_LINK_NVLINK :
	                                    shunt_algo_links(shunt_comm_spans_hosts(comm));
	uint8_t links[SHUNT_NET_MAX_RANKS][SHUNT_TOPOLOGY_LOCAL];
	struct shunt_topology *t = &comm->topology;
	struct claims mine, all[SHUNT_NET_MAX_RANKS];
	int err, a, b;

	claim(comm, hellos, served, &mine);
	err = shunt_rendezvous_allgather(&ranks, &mine, sizeof(mine), all, -1, NULL);
	if (err)
		return err;
	for (int r = 0; r < comm->nranks; r++)
		for (int i = 0; i < t->nlocal[t->island_of[r]]; i++)
			links[r][i] = next_link(all[r].link[i], served,
			    all[r].bad[i] | all[t->rank_at[t->island_of[r]][i]].bad[t->local_of[r]]);
	do {
		if (!shunt_topology_agree(t, links, served, &a, &b)) {
			snprintf(reason, bytes, "rank %d: its device cannot reach rank %d's: %s", a, b, all[a].reason);
			return -EOPNOTSUPP;
		}
	} while (leave_refused(t, all, served, links));
	comm->untested.is_long = false;
	for (int r = 0; r < comm->nranks; r++) {
		comm->untested.peers[r] = 0;
		comm->untested.is_long |= all[r].is_long;
		for (int i = 0; i < t->nlocal[t->island_of[r]]; i++)
			if (t->link[r][i] > SHUNT_LINK_SELF &&
			    !(all[r].good[i] & all[t->rank_at[t->island_of[r]][i]].good[t->local_of[r]] &
			        1 << t->within))
				comm->untested.peers[r] |= (uint8_t)(1 << i);
	}
	return 0;
}

/* ---- the self-test */

/* A rank's word after the test: the first mistake in what came from each peer. */
struct outcome {
	struct shunt_selftest_status from[SHUNT_TOPOLOGY_LOCAL];
	int64_t err;
};

static int run_test(struct shunt_comm *comm, struct outcome *mine)
{
	const struct shunt_gpu_mem *mem = comm->topology.within == SHUNT_LINK_SHARED ? comm->segment : comm->mem;
	size_t at = (comm->sel_key.staged ? SHUNT_SEGMENT_BYTES(comm->nranks) : SHUNT_SCRATCH_BYTES(comm->nranks)) -
	    SHUNT_SELFTEST_BYTES;
	struct shunt_selftest t = { .gpu = comm->gpu,
		.device = comm->device,
		.nranks = shunt_comm_local_ranks(comm),
		.args = { .rank = (uint32_t)shunt_comm_local_rank(comm), .peers = comm->untested.peers[comm->rank] },
		.status = (struct shunt_selftest_status *)(comm->words + 1) };
	int err;

	for (int r = 0; r < t.nranks; r++)
		t.args.area[r] = (char *)mem[r].ptr + at;
	t.args.status = (struct shunt_selftest_status *)(comm->words_dev + 1);
	shunt_selftest_limits(&t, comm->sel_key.sim, comm->untested.is_long);
	err = t.args.peers ? shunt_selftest_start(&t) : 0;
	if (err || !t.args.peers)
		return err;
	err = shunt_selftest_finish(&t, &comm->life.cancel, mine->from);
	if (err)
		shunt_scratch_leave(comm);
	return err;
}

static void describe(const struct shunt_selftest_status *v, char why[SHUNT_TRUST_WHY])
{
	if (v->kind == SHUNT_SELFTEST_SILENT)
		snprintf(why, SHUNT_TRUST_WHY, "nothing arrives in round %u", v->round);
	else
		snprintf(why, SHUNT_TRUST_WHY, "word %u of a %s of round %u is %" PRIx64 " instead of %" PRIx64,
		    v->word, v->kind == SHUNT_SELFTEST_PACKET ? "packet" : "chunk", v->round, v->seen, v->expected);
}

static void log_refusal(const struct shunt_comm *comm, const struct shunt_hello *hellos, int a, int b,
    enum shunt_link link, const char *why)
{
	const char *const over[] = { "itself", "NVLink", "PCIe", "shared memory of the host" };
	char cause[160] = "";

	shunt_pci_suspect(hellos[a].gpu.pci, cause, sizeof(cause));
	if (!*cause)
		shunt_pci_suspect(hellos[b].gpu.pci, cause, sizeof(cause));
	shunt_warn("GPUs %s of rank %d and %s of rank %d do not exchange data right over %s: %s. %s%s; %s%s",
	    *hellos[a].gpu.pci ? hellos[a].gpu.pci : hellos[a].gpu.name, a,
	    *hellos[b].gpu.pci ? hellos[b].gpu.pci : hellos[b].gpu.name, b, over[link], why,
	    *cause ? "Perhaps because " : "Look at the IOMMU, at ACS and at dmesg", cause,
	    link < SHUNT_LINK_SHARED ? "a slower link serves them" : "no slower link does",
	    comm->sel_key.takes_all || link > SHUNT_LINK_PEER ? "" : "; set NCCL_P2P_DISABLE=1 for NCCL's own calls");
}

/* Keeps what was found of a pair. True: it was refused. */
static bool judge(
    struct shunt_comm *comm, const struct shunt_hello *hellos, const struct outcome *all, int a, int i, bool logs)
{
	const struct shunt_topology *t = &comm->topology;
	int b = t->rank_at[t->island_of[a]][i];
	const struct shunt_selftest_status *v = &all[a].from[i];
	enum shunt_link link = (enum shunt_link)t->within;
	char why[SHUNT_TRUST_WHY] = "";

	v = v->kind ? v : &all[b].from[t->local_of[a]];
	if (v->kind)
		describe(v, why);
	shunt_trust_keep(
	    &hellos[a].gpu, &hellos[b].gpu, link, v->kind ? SHUNT_TRUST_BAD : SHUNT_TRUST_GOOD, why, comm->rank == a);
	if (v->kind && logs)
		log_refusal(comm, hellos, a, b, link, why);
	return v->kind;
}

int shunt_comm_links_test(
    struct shunt_comm *comm, const struct shunt_hello *hellos, bool logs, char *reason, size_t bytes)
{
	const struct shunt_topology *t = &comm->topology;
	int64_t timeout = shunt_config()->setup_timeout, begun = shunt_now_ms();
	struct shunt_ranks ranks = shunt_comm_ranks(comm, timeout > 0 ? 2 * timeout + 40000 : timeout);
	struct outcome mine = { 0 }, all[SHUNT_NET_MAX_RANKS];
	int pairs = 0, refused = 0, err;

	for (int r = 0; r < comm->nranks; r++)
		pairs += __builtin_popcount(comm->untested.peers[r]);
	if (!pairs)
		return 0;
	comm->untested.tries++;
	mine.err = run_test(comm, &mine);
	err = shunt_rendezvous_allgather(&ranks, &mine, sizeof(mine), all, -1, NULL);
	for (int r = 0; r < comm->nranks && !err; r++)
		if (all[r].err && !err) {
			snprintf(reason, bytes, "rank %d: the self-test of its links (SHUNT_SELFTEST) did not %s: %s",
			    r, all[r].err == -ETIMEDOUT ? "end, perhaps because its GPU is busy" : "begin",
			    shunt_error_text((int)all[r].err).s);
			err = -EOPNOTSUPP;
		}
	if (err)
		return err;
	for (int a = 0; a < comm->nranks; a++)
		for (int i = 0; i < t->nlocal[t->island_of[a]]; i++)
			if (comm->untested.peers[a] >> i & 1 && a < t->rank_at[t->island_of[a]][i])
				refused += judge(comm, hellos, all, a, i, logs);
	shunt_info(SHUNT_LOG_INIT,
	    "communicator of %d ranks, rank %d: the self-test of %d pairs' links took %d ms, and refused %d",
	    comm->nranks, comm->rank, pairs / 2, (int)(shunt_now_ms() - begun), refused);
	return refused ? -EAGAIN : 0;
}

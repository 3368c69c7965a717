/* SPDX-License-Identifier: MIT */
/* One rank of shunt tune: machine, communicators and buffers. */
#include "tools/common/libc.h"
#include "algos/plugins.h"
#include "algos/select/nvls.h"
#include "base/config.h"
#include "base/host.h"
#include "device/gpu_ops.h"
#include "tools/tune/rank.h"
#include "topology/claim.h"
#include "transport/net/providers.h"

/* ---- set-up ---- */

/* Clears all settings that could come between a call and the algorithm to be measured. */
static void environment_clear(struct tune_rank *r)
{
	r->cache_dir = strdup(shunt_config()->cache_dir); /* from the command's own copy of the configuration */
	setenv("SHUNT_TUNING_FILE", "none", 1);
	setenv("SHUNT_CACHE_DIR", "/dev/null", 1);
	unsetenv("SHUNT_ALGO");
	unsetenv("SHUNT_DETERMINISTIC");
	unsetenv("SHUNT_FORCE_NCCL");
	unsetenv("SHUNT_PLAN_DIR");
}

static void defaults_fill(struct tune_opts *o, bool sim)
{
	static const unsigned blocks[] = { 8, 16, 32, 64 }, quick_blocks[] = { 16, 64 }, threads[] = { 128, 256, 512 },
	                      quick_threads[] = { 256, 512 };
	struct bench_opts *b = &o->base;

	b->first = b->first ? b->first : sim ? 256 : 1 << 10;
	b->last = b->last ? b->last : sim ? 4 << 10 : 256 << 20;
	b->last = b->last < b->first ? b->first : b->last;
	b->factor = b->factor ? b->factor : sim || o->quick ? 4 : 2;
	b->rounds = b->rounds > 0 ? b->rounds : sim ? 1 : o->quick ? 7 : 15;
	o->minutes = o->minutes > 0 ? o->minutes : o->quick ? 4 : 0;
	if (!o->blocks.n) {
		o->blocks.n = sim || o->quick ? 2 : 4;
		for (int i = 0; i < o->blocks.n; i++)
			o->blocks.at[i] = sim ? (unsigned)i + 1 : o->quick ? quick_blocks[i] : blocks[i];
	}
	if (!o->threads.n) {
		o->threads.n = sim ? 1 : o->quick ? 2 : 3;
		for (int i = 0; i < o->threads.n; i++)
			o->threads.at[i] = sim ? 64 : o->quick ? quick_threads[i] : threads[i];
	}
}

/* As the set-up would agree it for ranks on devices of one kind: each has its own. */
static bool nvls_agrees(const struct shunt_device_identity *device, int version)
{
	const struct shunt_gpu_info gpu = { .cc = (uint16_t)device->cc, .multicast = device->multicast };
	const struct shunt_nvls_nccl nccl = { .version = version };

	return !shunt_nvls_of_rank(&gpu, &nccl, shunt_nccl_env()->nvls_enable);
}

/* Over several hosts: how many, and what will carry data between them. nets: that all ranks may use, as bits. */
static int hosts_identify(struct tune_rank *r, const uint8_t *const *hosts, unsigned nets)
{
	struct shunt_machine *m = &r->results->machine;
	int nlocal[RANKS_MAX] = { 0 }, n = 0;

	for (int i = 0; i < r->nranks; i++) {
		int first = 0;

		while (memcmp(hosts[first], hosts[i], SHUNT_HOST_BYTES))
			first++;
		n += !nlocal[first]++;
	}
	for (int i = 0; i < r->nranks; i++)
		if (nlocal[i] && (nlocal[i] * n != r->nranks || nlocal[i] > SHUNT_MAX_RANKS)) {
			if (!r->bench.rank)
				tool_error("a host has %d of %d ranks on %d hosts: tables are for as many on each, at "
				           "most %d",
				    nlocal[i], r->nranks, n, SHUNT_MAX_RANKS);
			return -EINVAL;
		}
	if (n == 1)
		return 0;
	if (!r->have_nccl) {
		if (!r->bench.rank)
			tool_error("over several hosts a table says what is left to NCCL, and there is no real NCCL to "
			           "measure: set SHUNT_NCCL_LIB to its path");
		return -ENOENT;
	}
	r->opts.over_hosts = true;
	/* A communicator takes default plans, and connects all pairs, if a rule has wanted that by then. */
	if (r->force("allreduce:0-1:plan,send:0-1:hierarchical") || r->force(NULL))
		return -EINVAL;
	m->nhosts = n;
	m->nvls = 0; /* no windows over hosts */
	snprintf(m->net, sizeof(m->net), "%s", shunt_net_providers()[__builtin_ctz(nets)]->name);
	return 0;
}

/*
 * On one host: what joins the ranks, as their set-up will agree it. A self-test that refuses a link is no part of
 * this: the communicator then takes no table that is for it.
 */
static int links_identify(struct tune_rank *r)
{
	const struct shunt_gpu_ops *gpu = r->sim ? &shunt_gpu_sim_ops : &shunt_gpu_cuda_ops;
	struct shunt_gpu_info mine, all[RANKS_MAX];
	const struct shunt_gpu_info *info[RANKS_MAX];
	uint8_t own[SHUNT_TOPOLOGY_LOCAL] = { SHUNT_LINK_SELF }, claims[RANKS_MAX][SHUNT_TOPOLOGY_LOCAL];
	struct shunt_machine *m = &r->results->machine;
	struct shunt_topology t;
	char why[SHUNT_LINK_WHY];
	int err = gpu->open(NULL), a, b;

	memset(&mine, 0, sizeof(mine));
	err = bench_rank_check(&r->bench, "cannot be asked", err ? err : gpu->device_info(r->bench.device, &mine));
	if (!err)
		err = bench_allgather(&r->bench, &mine, sizeof(mine), all);
	shunt_topology_join(&t, r->nranks, r->bench.rank);
	for (int i = 0; i < r->nranks; i++)
		info[i] = &all[i];
	for (int i = 0; !err && i < r->nranks; i++)
		if (i != r->bench.rank)
			own[i] = (uint8_t)shunt_link_claim(
			    gpu, r->bench.device, info[i], r->bench.rank, i, shunt_link_devices(info, r->nranks), why);
	if (!err)
		err = bench_allgather(&r->bench, own, sizeof(own), claims);
	if (err ||
	    !shunt_topology_agree(&t, claims, shunt_algo_links(false), &a, &b)) /* then it forwards, and says so */
		return err;
	shunt_machine_join(m, &t);
	r->opts.link = m->link;
	r->opts.islands = m->islands;
	return 0;
}

/* All ranks must have devices of one kind, and either all ranks have a real NCCL or none has. */
static int machine_identify(struct tune_rank *r)
{
	struct identity {
		struct shunt_device_identity device;
		int nccl, version;
		uint8_t host[SHUNT_HOST_BYTES];
		unsigned nets; /* providers, as bits */
	} mine, all[RANKS_MAX];
	__typeof__(shunt_device_identify) *identify =
	    (__typeof__(shunt_device_identify) *)dlsym(r->bench.lib.handle, "shunt_device_identify");
	__typeof__(ncclGetVersion) *get_version =
	    (__typeof__(ncclGetVersion) *)dlsym(r->bench.lib.handle, "ncclGetVersion");
	struct shunt_machine *m = &r->results->machine;
	const uint8_t *hosts[RANKS_MAX];
	unsigned nets = ~0u;
	bool nvls;
	int err;

	memset(&mine, 0, sizeof(mine));
	mine.device.size = sizeof(mine.device);
	r->force = (__typeof__(shunt_algo_force) *)dlsym(r->bench.lib.handle, "shunt_algo_force");
	if (!identify || !r->force) {
		tool_error("%s has no %s: it is not the libshunt.so of this version", r->bench.lib.path,
		    identify ? "shunt_algo_force" : "shunt_device_identify");
		return -ELIBBAD;
	}
	err = bench_rank_check(&r->bench, "cannot be asked", identify(r->bench.device, &mine.device));
	if (err)
		return err;
	if (get_version)
		get_version(&mine.version); /* this call also searches for the real NCCL */
	mine.nccl = r->bench.lib.real_nccl_path() && !r->o->no_nccl;
	mine.nets = shunt_net_usable();
	err = shunt_host_id(mine.host, "shunt tune", sizeof("shunt tune"));
	if (err)
		return bench_rank_check(&r->bench, "cannot tell its host", err);
	err = bench_allgather(&r->bench, &mine, sizeof(mine), all);
	for (int i = 0; !err && i < r->nranks; i++) {
		if (strcmp(all[i].device.name, mine.device.name) || all[i].device.cc != mine.device.cc ||
		    all[i].device.driver != mine.device.driver) {
			tool_error("rank %d is on %s, rank %d on %s: a table is for devices of one kind", r->bench.rank,
			    mine.device.name, i, all[i].device.name);
			err = -EXDEV;
		} else if (all[i].nccl != mine.nccl) {
			tool_error("rank %d has %s real NCCL, rank %d has %s", r->bench.rank, mine.nccl ? "a" : "no", i,
			    all[i].nccl ? "one" : "none");
			err = -EXDEV;
		}
	}
	if (err)
		return err;
	if (!mine.nccl && !r->sim && !r->o->no_nccl) {
		tool_error("there is no real NCCL to measure: set SHUNT_NCCL_LIB to its path, or give --no-nccl for a "
		           "file that is "
		           "for standalone only");
		return -ENOENT;
	}
	r->have_nccl = mine.nccl;
	nvls = mine.nccl && nvls_agrees(&mine.device, mine.version);
	for (int i = 0; i < r->nranks; i++)
		nvls = nvls && all[i].device.multicast;
	*m = (struct shunt_machine){ .cc = mine.device.cc,
		.driver = mine.device.driver,
		.nranks = r->nranks,
		.sim = r->sim,
		.nccl = mine.nccl ? mine.version : 0,
		.nvls = nvls };
	memcpy(m->gpu, mine.device.name, sizeof(m->gpu));
	for (int i = 0; i < r->nranks; i++) {
		hosts[i] = all[i].host;
		nets &= all[i].nets;
	}
	err = hosts_identify(r, hosts, nets);
	if (!err && !r->opts.over_hosts)
		err = links_identify(r);
	if (err)
		return err;
	if (mine.nccl)
		snprintf(r->results->nccl, sizeof(r->results->nccl), "%d.%d.%d", mine.version / 10000,
		    mine.version / 100 % 100, mine.version % 100);
	snprintf(r->results->dtype, sizeof(r->results->dtype), "%s", shunt_dtype_name(r->o->dtype));
	return 0;
}

static int comms_create(struct tune_rank *r)
{
	int err = bench_nccl_open(&r->bench.nccl[TUNE_SHUNT], "shunt", &r->bench.lib);

	if (!err && r->have_nccl)
		err = bench_nccl_open(&r->bench.nccl[TUNE_NCCL], "nccl", &r->bench.lib);
	for (int i = 0; !err && i < (r->have_nccl ? TUNE_WINDOWS : TUNE_NCCL); i++)
		err = bench_comm_create(&r->bench, i, &r->bench.comm[i], NULL);
	r->bench.nccl[TUNE_WINDOWS] = r->bench.nccl[TUNE_NCCL];
	r->bench.comm[TUNE_WINDOWS] = r->bench.comm[TUNE_NCCL];
	return err;
}

static void windows_close(struct tune_rank *r)
{
	const struct bench_nccl *nccl = &r->bench.nccl[TUNE_NCCL];

	for (int i = 0; i < 2; i++) {
		if (r->window[i])
			nccl->CommWindowDeregister(r->bench.comm[TUNE_NCCL], r->window[i]);
		if (r->in_window[i])
			nccl->MemFree(r->in_window[i]);
		r->window[i] = NULL;
		r->in_window[i] = NULL;
	}
}

static int buffers_alloc(struct tune_rank *r)
{
	int err = bench_buffers_alloc(&r->bench);

	bench_buffers_layout(&r->bench, r->o->base.last);
	r->bench.buffers[TUNE_NCCL] = &r->bench.plain;
	r->registered = (struct bench_buffers){ .n = 1, .send = &r->in_window[0], .recv = &r->in_window[1] };
	r->bench.buffers[TUNE_WINDOWS] = &r->registered;
	r->bench.block = malloc(BENCH_BLOCK_BYTES);
	return !err && !r->bench.block ? bench_rank_check(&r->bench, "host memory", -ENOMEM) : err;
}

/*
 * Buffers of NCCL's that are registered with it, on all ranks or on none: for a few versions, and on some machines, it
 * refuses. That does not end the run.
 */
static int windows_open(struct tune_rank *r)
{
	uint64_t bytes = (r->o->base.last + BENCH_GUARD_BYTES + 4095) / 4096 * 4096;
	const struct bench_nccl *nccl = &r->bench.nccl[TUNE_NCCL];
	bool mine = true, all[RANKS_MAX], here = true;
	int err;

	if (!r->have_nccl || r->o->over_hosts || !nccl->MemAlloc || !nccl->MemFree || !nccl->CommWindowRegister ||
	    !nccl->CommWindowDeregister)
		return 0;
	for (int i = 0; i < 2; i++)
		mine = !nccl->MemAlloc(&r->in_window[i], bytes) && mine;
	err = bench_allgather(&r->bench, &mine, sizeof(mine), all);
	for (int i = 0; i < r->nranks; i++)
		here = here && (err || all[i]);
	for (int i = 0; !err && here && i < 2; i++) /* all ranks make both calls */
		mine = !nccl->CommWindowRegister(
		           r->bench.comm[TUNE_NCCL], r->in_window[i], bytes, &r->window[i], NCCL_WIN_COLL_SYMMETRIC) &&
		    r->window[i] && mine;
	if (!err)
		err = bench_allgather(&r->bench, &mine, sizeof(mine), all);
	for (int i = 0; i < r->nranks; i++)
		here = here && (err || all[i]);
	if (err || here)
		return err;
	if (!r->bench.rank)
		puts("# NCCL is not measured with registered buffers: it refuses them here");
	windows_close(r);
	return 0;
}

static int rank_open(struct tune_rank *r)
{
	int err = bench_rank_join(&r->bench, &r->o->base.ranks);

	if (!err)
		err = machine_identify(r);
	if (!err)
		err = tune_tasks_open(r);
	if (!err)
		err = buffers_alloc(r);
	if (!err)
		err = comms_create(r);
	return err ? err : windows_open(r);
}

static void rank_close(struct tune_rank *r, bool clean)
{
	bench_rank_progress(&r->bench, RANKS_DESTROY, -1, -1);
	/* After an error a library may wait for ranks that will not come. The process ends anyway. */
	if (clean) {
		windows_close(r);
		for (int i = 0; i < TUNE_WINDOWS; i++)
			if (r->bench.comm[i])
				bench_nccl_check(&r->bench.nccl[i], r->bench.rank, "ncclCommDestroy",
				    r->bench.nccl[i].CommDestroy(r->bench.comm[i]));
		bench_buffers_free(&r->bench);
		r->bench.lib.stream_destroy(r->bench.stream);
	}
	bench_buffers_free_host(&r->bench);
	free(r->bench.block);
	bench_rank_progress(&r->bench, RANKS_DONE, -1, -1);
	ranks_leave(r->bench.ranks);
}

static int rank_run(const void *arg, const struct ranks_slot *rank_slot)
{
	struct tune_rank *r = calloc(1, sizeof(*r));
	int err = -ENOMEM;

	if (r)
		r->results = calloc(1, sizeof(*r->results));
	if (!r || !r->results) {
		ranks_abort(NULL, rank_slot->shared);
		free(r);
		return TOOL_FAIL;
	}
	r->opts = *(const struct tune_opts *)arg;
	r->o = &r->opts;
	bench_rank_slot(&r->bench, rank_slot);
	r->nranks = rank_slot->shared->launch.nranks;
	r->sim = !strcmp(rank_slot->shared->launch.kind, "sim");
	r->start_us = ranks_now_us();
	environment_clear(r);
	shunt_plugin_files_load(); /* what is to be measured, too; the library loads them for itself */
	defaults_fill(&r->opts, r->sim);
	r->bench.opts = r->opts.base;
	r->bench.o = &r->bench.opts;
	if (r->nranks < 2 || r->nranks > RANKS_MAX) {
		if (!r->bench.rank)
			tool_error("there are tables for 2 to %d ranks, and these are %d", RANKS_MAX, r->nranks);
		err = -EINVAL;
	} else {
		err = rank_open(r);
	}
	if (!err)
		err = tune_tasks_run(r);
	/* No rank destroys a communicator that others still use. */
	if (!err)
		err = bench_barrier(&r->bench);
	if (!err)
		err = tune_tasks_finish(r);
	if (err)
		ranks_abort(r->bench.ranks, r->bench.shared);
	tune_partial_close(r->partial, false);
	rank_close(r, !err);
	free((char *)r->cache_dir);
	free(r->results);
	free(r);
	return err ? TOOL_FAIL : TOOL_OK;
}

int tune_worker(const struct tune_opts *o)
{
	return ranks_slots_run(&o->base.ranks, rank_run, o);
}

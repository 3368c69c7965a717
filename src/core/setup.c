/* SPDX-License-Identifier: MIT */
/*
 * First use of a communicator. Three rounds among all ranks: who are you (decides whether to try), here is my scratch,
 * could you map everybody's. Every rank judges the same tables, so all come to the same outcome: our kernels, or
 * forward-only with one line that says why.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "algos/tuning.h"
#include "core/comm_priv.h"
#include "core/config.h"
#include "core/gpu.h"
#include "core/hash.h"
#include "core/io.h"
#include "core/log.h"
#include "core/peers.h"
#include "core/process.h"
#include "core/retire.h"
#include "core/scratch.h"
#include "core/verdict.h"

struct hello {
	uint32_t protocol;
	char version[16];
	struct shunt_verdict verdict;
	uint64_t fingerprint; /* of the configuration */
	uint64_t plans;       /* hash of the execution plans */
	uint64_t tuning;      /* of the tuning file for this machine; 0: none */
	uint64_t process;     /* random, per process: peers in one process borrow */
	int32_t max_ctas;
	uint32_t standalone;
	uint32_t no_sms; /* CTAPolicy zero */
	uint32_t bulk;   /* its kernels can and may send chunks by bulk copies */
	int32_t pid;
	struct shunt_gpu_info gpu;
};

struct offer {
	struct shunt_verdict verdict;
	uint64_t ptr, bytes; /* of the scratch; ptr means something in the same process only */
};

/* speaks: this rank is the one that says so. */
static int forward(struct shunt_comm *comm, bool speaks, const char *why)
{
	snprintf(comm->why, sizeof(comm->why), "%s", why);
	shunt_recorder_forward(comm->recorder, comm->why);
	if (!speaks)
		shunt_info(
		    SHUNT_LOG_INIT, "communicator of %d ranks, rank %d: %s", comm->nranks, comm->rank, comm->why);
	else if (comm->scope.standalone)
		shunt_error("communicator of %d ranks cannot run: %s", comm->nranks, comm->why);
	else
		shunt_comm_say_forward(comm);
	shunt_comm_unset(comm);
	atomic_store_explicit(&comm->state, COMM_FORWARD, memory_order_release);
	return 0;
}

static int gather(struct shunt_comm *comm, const void *mine, size_t bytes, void *all, int fd, int *fds)
{
	if (comm->nranks == 1) {
		memcpy(all, mine, bytes);
		return 0;
	}
	return shunt_meet_gather(comm->meet, mine, bytes, all, fd, fds, shunt_config()->setup_timeout, &comm->cancel);
}

static const struct shunt_tuning *own_tuning(const struct shunt_comm *comm, const struct shunt_gpu_info *gpu)
{
	struct shunt_machine machine;

	shunt_machine_of(gpu, comm->nranks, &machine);
	return shunt_tuning_match(shunt_tuning_files(), &machine, comm->scope.standalone, comm->rank == 0);
}

static uint64_t tuning_hash(const struct shunt_comm *comm, const struct shunt_gpu_info *gpu)
{
	const struct shunt_tuning *t = own_tuning(comm, gpu);

	return t ? t->hash : 0;
}

/* A file's table if all ranks have it, else the built-in one. */
static void agree_on_tuning(struct shunt_comm *comm, const struct hello *hellos)
{
	uint16_t cc = hellos[0].gpu.cc;
	bool same = true;

	for (int r = 1; r < comm->nranks; r++) {
		if (hellos[r].gpu.cc < cc)
			cc = hellos[r].gpu.cc;
		if (same && hellos[r].tuning != hellos[0].tuning && comm->rank == 0)
			shunt_warn("communicator of %d ranks uses the built-in tuning: rank %d has %s tuning file, "
			           "rank 0 has %s",
			    comm->nranks, r,
			    !hellos[r].tuning    ? "no" :
			        hellos[0].tuning ? "another" :
			                           "a",
			    hellos[0].tuning ? "one" : "none");
		same = same && hellos[r].tuning == hellos[0].tuning;
	}
	comm->scope.cc = cc;
	if (same && hellos[0].tuning)
		comm->scope.tuning = own_tuning(comm, &hellos[comm->rank].gpu);
	else /* found here, and not anew for every call */
		comm->scope.tuning = shunt_tuning_builtin(hellos[0].gpu.sim, cc, comm->nranks);
}

static void say_hello(struct shunt_comm *comm, struct hello *h)
{
	int err;

	memset(h, 0, sizeof(*h));
	h->protocol = SHUNT_SETUP_PROTOCOL;
	h->verdict.ok = 1;
	snprintf(h->version, sizeof(h->version), "%s", SHUNT_VERSION);
	h->fingerprint = shunt_config_fingerprint() ^ shunt_tuning_builtin_hash();
	h->process = shunt_process();
	h->pid = (int32_t)getpid();
	h->plans = shunt_comm_plans_take(comm);
	h->max_ctas = comm->scope.max_ctas;
	h->standalone = comm->scope.standalone;
	h->no_sms = comm->no_sms;
	comm->gpu = shunt_gpu();
	if (!comm->gpu)
		shunt_verdict_refuse(&h->verdict, "no device layer");
	else if (comm->device < 0)
		shunt_verdict_refuse(&h->verdict, "its device is not known");
	else if ((err = comm->gpu->device_info(comm->device, &h->gpu)))
		shunt_verdict_refuse(&h->verdict, "device %d cannot be asked: %s", comm->device, strerror(-err));
	else
		h->tuning = tuning_hash(comm, &h->gpu);
	h->bulk = h->gpu.bulk && shunt_config()->bulk_copies;
}

/* What is wrong with the table of hellos; false with a text. Judged alike by all ranks. */
static bool hellos_agree(const struct hello *h, int n, char *why, size_t bytes)
{
	for (int r = 0; r < n; r++) {
		if (h[r].protocol != h[0].protocol || strncmp(h[r].version, h[0].version, sizeof(h[r].version))) {
			snprintf(
			    why, bytes, "rank %d has Shunt %.15s, rank 0 has %.15s", r, h[r].version, h[0].version);
			return false;
		}
		if (!h[r].verdict.ok) {
			snprintf(why, bytes, "rank %d: %.95s", r, h[r].verdict.why);
			return false;
		}
		if (h[r].fingerprint != h[0].fingerprint) {
			snprintf(why, bytes,
			    "rank %d has other SHUNT_ or NCCL_ settings than rank 0 (compare `shunt info -c` on both)",
			    r);
			return false;
		}
		if (h[r].standalone != h[0].standalone) {
			snprintf(why, bytes, "rank %d has %s real NCCL, rank 0 has %s", r, h[r].standalone ? "no" : "a",
			    h[0].standalone ? "none" : "one");
			return false;
		}
		if (h[r].gpu.sim != h[0].gpu.sim) {
			snprintf(why, bytes, "rank %d is on the %s, rank 0 is not", r, h[r].gpu.sim ? "sim" : "GPU");
			return false;
		}
	}
	return true;
}

static bool one_gpu(const struct shunt_gpu_info *a, const struct shunt_gpu_info *b)
{
	return !memcmp(a->uuid, b->uuid, sizeof(a->uuid));
}

/*
 * Kernels that wait for each other on one GPU must all find room there, those of another communicator of the same ranks
 * beside them.
 */
static void share_gpus(struct shunt_comm *comm, const struct hello *h)
{
	for (int r = 0; r < comm->nranks; r++) {
		unsigned sharing = 1;

		for (int peer = 0; peer < comm->nranks; peer++)
			sharing += peer != r && one_gpu(&h[r].gpu, &h[peer].gpu);
		if (sharing > 1)
			comm->scope.max_ctas = shunt_lesser_limit(
			    comm->scope.max_ctas, (int)shunt_blocks_beside(h[r].gpu.sms, 2 * sharing));
	}
}

static int make_scratch(struct shunt_comm *comm, const struct hello *hellos, struct offer *o)
{
	const struct shunt_gpu_ops *gpu = comm->gpu;
	void *host, *dev;
	int err;

	memset(o, 0, sizeof(*o));
	o->verdict.ok = 1;
	for (int r = 0; r < comm->nranks && o->verdict.ok; r++) {
		const char *why = "no peer access";

		if (r == comm->rank)
			continue;
		if (one_gpu(&hellos[comm->rank].gpu, &hellos[r].gpu) && !shunt_config()->multi_rank_gpu)
			shunt_verdict_refuse(&o->verdict,
			    "it shares its GPU with rank %d, which SHUNT_MULTI_RANK_GPU=1 would let it do", r);
		else if (gpu->peer_check(comm->device, &hellos[r].gpu, &why))
			shunt_verdict_refuse(&o->verdict, "its device cannot reach rank %d's: %s", r, why);
	}
	if (!o->verdict.ok)
		return 0;
	err = gpu->kernels_load(comm->device);
	if (err) {
		shunt_verdict_refuse(&o->verdict, "kernels cannot be loaded: %s", strerror(-err));
		return 0;
	}
	err = shunt_scratch_alloc(gpu, comm->device, SHUNT_SCRATCH_BYTES(comm->nranks), &comm->mem[comm->rank]);
	if (err) {
		shunt_verdict_refuse(&o->verdict, "%llu bytes of scratch cannot be allocated: %s",
		    (unsigned long long)SHUNT_SCRATCH_BYTES(comm->nranks), strerror(-err));
		return 0;
	}
	err = gpu->host_alloc(sizeof(*comm->words), &host, &dev);
	if (err) {
		shunt_verdict_refuse(&o->verdict, "page-locked memory cannot be allocated: %s", strerror(-err));
		return 0;
	}
	comm->words = host;
	comm->words->limit_ns = shunt_comm_spin_limit();

	struct shunt_ctrl *ctrl = comm->mem[comm->rank].ptr;
	err = gpu->copy(comm->device, &ctrl->words, &dev, sizeof(dev));
	if (err)
		shunt_verdict_refuse(&o->verdict, "its scratch cannot be written: %s", strerror(-err));
	o->ptr = (uintptr_t)ctrl;
	o->bytes = comm->mem[comm->rank].bytes;
	return 0;
}

/* SHUNT_CHECK: a plan's launch has no other way to find the peers' scratch. */
static int note_peers(struct shunt_comm *comm)
{
	struct shunt_ctrl *ctrl = comm->mem[comm->rank].ptr;
	char *peer[SHUNT_KARGS_MAX_RANKS] = { NULL };

	for (int r = 0; r < comm->nranks; r++)
		peer[r] = comm->mem[r].ptr;
	return comm->gpu->copy(comm->device, ctrl->check.peer, peer, sizeof(peer));
}

static void map_peers(struct shunt_comm *comm, const struct hello *hellos, const struct offer *offers, const int *fds,
    struct shunt_verdict *v)
{
	memset(v, 0, sizeof(*v));
	v->ok = 1;
	for (int r = 0; r < comm->nranks && v->ok; r++) {
		int err;

		if (r == comm->rank)
			continue;
		if (hellos[r].process == hellos[comm->rank].process)
			err = shunt_scratch_borrow(
			    comm->gpu, comm->device, (void *)(uintptr_t)offers[r].ptr, offers[r].bytes, &comm->mem[r]);
		else if (fds[r] < 0)
			err = -EBADF;
		else
			err = comm->gpu->share_map(comm->device, fds[r], offers[r].bytes, &comm->mem[r]);
		if (err)
			shunt_verdict_refuse(v, "rank %d's scratch cannot be mapped: %s", r, strerror(-err));
	}
	if (v->ok && comm->checks && note_peers(comm))
		shunt_verdict_refuse(v, "its scratch cannot be written");
}

/* why: more than the error says, or empty. */
static int broken(struct shunt_comm *comm, const char *step, const char *why, int err)
{
	if (why[0])
		shunt_error("setting up a communicator of %d ranks on rank %d: %s", comm->nranks, comm->rank, why);
	else if (err != -ECANCELED)
		shunt_error("setting up a communicator of %d ranks: %s on rank %d: %s", comm->nranks, step, comm->rank,
		    strerror(-err));
	/*
	 * Another communicator's kernels may hang on the device until that one is aborted: then the memory goes with
	 * this one.
	 */
	if (shunt_retire_alone(comm))
		shunt_comm_unset(comm);
	shunt_comm_fail(comm, err);
	return err;
}

/* Kernels that nobody identifies keep no account. */
static void keep_account(struct shunt_comm *comm)
{
	const struct shunt_ctrl *ctrl = comm->mem[comm->rank].ptr;

	if (comm->recorder)
		shunt_order_account(&comm->order, &ctrl->progress);
}

/* A rank by itself has nobody to agree with. Its kernels find their counters in a little memory of their own. */
static int setup_alone(struct shunt_comm *comm)
{
	void *ctrl;
	int err;

	comm->gpu = shunt_gpu();
	if (!comm->gpu)
		return -ENODEV;
	err = comm->gpu->kernels_load(comm->device);
	if (!err)
		err = comm->gpu->share_alloc(comm->device, sizeof(struct shunt_ctrl), &comm->mem[0]);
	if (err)
		return err;
	shunt_scratch_passed_on(&comm->mem[0]); /* there is nobody */
	ctrl = comm->mem[0].ptr;
	comm->kargs = (struct shunt_kargs){ .peer = { ctrl }, .nranks = 1 };
	shunt_recorder_ready(comm->recorder, comm->gpu, ctrl, NULL);
	keep_account(comm);
	atomic_store_explicit(&comm->state, COMM_READY, memory_order_release);
	return 0;
}

/* A set-up under way. */
struct setup {
	struct hello hello, hellos[SHUNT_MAX_RANKS];
	struct offer offers[SHUNT_MAX_RANKS];
	int fds[SHUNT_MAX_RANKS]; /* of the newest round; -1: none */
	bool speaks;              /* this rank says what came of it */
	char why[160];            /* of -EOPNOTSUPP, and of a rank that cannot be met */
	struct timespec begun, met;
};

static int meet(struct shunt_comm *comm, struct setup *s)
{
	int err = 0, missing = -1;

	clock_gettime(CLOCK_MONOTONIC, &s->begun);
	say_hello(comm, &s->hello); /* before the join: what one rank can do alone should not be waited for by all */
	if (comm->nranks > 1)
		err = shunt_meet_join(comm->meet, comm->nslots, comm->rank, comm->nranks, &comm->cancel, &missing);
	clock_gettime(CLOCK_MONOTONIC, &s->met);
	if (err != -ENOENT)
		return err;
	if (comm->scope.standalone) { /* it was there at init, which TCP reached */
		snprintf(s->why, sizeof(s->why),
		    "rank %d has ended, or runs as another user, or in another network namespace, as containers have",
		    missing);
		return -EOWNERDEAD;
	}
	snprintf(s->why, sizeof(s->why),
	    "%s %d has no Shunt, another version or other SHUNT_ or NCCL_ settings, or is on another host or in "
	    "another container",
	    comm->nslots == comm->nranks ? "rank" : "the parent's rank", missing);
	s->speaks = s->speaks || shunt_meet_leads(comm->meet); /* rank 0 may have no Shunt, and then cannot say so */
	return -EOPNOTSUPP;
}

/* What the ranks have in common. */
static void agree_on_scope(struct shunt_comm *comm, const struct hello *h)
{
	struct shunt_scope *scope = &comm->scope;

	scope->no_sms = scope->bulk = true;
	for (int r = 0; r < comm->nranks; r++) {
		scope->max_ctas = shunt_lesser_limit(scope->max_ctas, h[r].max_ctas);
		scope->sms = (uint32_t)shunt_lesser_limit((int)scope->sms, h[r].gpu.sim ? 0 : (int)h[r].gpu.sms);
		scope->no_sms &= h[r].no_sms != 0;
		scope->bulk &= h[r].bulk != 0;
	}
	share_gpus(comm, h);
	scope->sim = h[0].gpu.sim;
	agree_on_tuning(comm, h);
}

/* First round. */
static int introduce(struct shunt_comm *comm, struct setup *s)
{
	struct shunt_peer peers[SHUNT_MAX_RANKS];
	int self = shunt_peers_self(), err = gather(comm, &s->hello, sizeof(s->hello), s->hellos, self, s->fds);

	if (self >= 0)
		close(self);
	if (err)
		return err;
	if (!hellos_agree(s->hellos, comm->nranks, s->why, sizeof(s->why)))
		return -EOPNOTSUPP;
	agree_on_scope(comm, s->hellos);
	for (int r = 0; r < comm->nranks; r++) {
		peers[r] = (struct shunt_peer){ s->hellos[r].process, s->hellos[r].pid, s->fds[r] };
		s->fds[r] = -1;
	}
	shunt_peers_watch(comm, peers);
	return 0;
}

static int compare_plans(struct shunt_comm *comm, struct setup *s)
{
	uint64_t plans[SHUNT_MAX_RANKS];

	for (int r = 0; r < comm->nranks; r++)
		plans[r] = s->hellos[r].plans;
	return shunt_comm_plans_agree(comm, plans);
}

static int refused(struct setup *s, int rank, const struct shunt_verdict *verdict)
{
	snprintf(s->why, sizeof(s->why), "rank %d: %.95s", rank, verdict->why);
	return -EOPNOTSUPP;
}

/* Second round. */
static int exchange_scratch(struct shunt_comm *comm, struct setup *s)
{
	struct offer offer;
	int err;

	make_scratch(comm, s->hellos, &offer);
	err = gather(comm, &offer, sizeof(offer), s->offers, offer.verdict.ok ? comm->mem[comm->rank].fd : -1, s->fds);
	if (!err && offer.verdict.ok)
		shunt_scratch_passed_on(&comm->mem[comm->rank]);
	for (int r = 0; r < comm->nranks && !err; r++)
		if (!s->offers[r].verdict.ok)
			err = refused(s, r, &s->offers[r].verdict);
	return err;
}

/* Third round. */
static int map_scratch(struct shunt_comm *comm, struct setup *s)
{
	struct shunt_verdict verdict, verdicts[SHUNT_MAX_RANKS];
	int err, who;

	map_peers(comm, s->hellos, s->offers, s->fds, &verdict);
	err = gather(comm, &verdict, sizeof(verdict), verdicts, -1, NULL);
	if (err)
		return err;
	who = shunt_verdict_find(verdicts, comm->nranks);
	return who < 0 ? 0 : refused(s, who, &verdicts[who]);
}

static double ms_between(const struct timespec *from, const struct timespec *to)
{
	return (to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) / 1e6;
}

static void become_ready(struct shunt_comm *comm, const struct setup *s)
{
	struct timespec now;

	for (int r = 0; r < comm->nranks; r++)
		comm->kargs.peer[r] = comm->mem[r].ptr;
	comm->kargs.rank = (uint16_t)comm->rank;
	comm->kargs.nranks = (uint16_t)comm->nranks;
	shunt_recorder_ready(comm->recorder, comm->gpu, comm->mem[comm->rank].ptr, &comm->words->fault);
	keep_account(comm);
	shunt_retire_later(comm);
	atomic_store_explicit(&comm->state, COMM_READY, memory_order_release);
	clock_gettime(CLOCK_MONOTONIC, &now);
	shunt_info(SHUNT_LOG_INIT,
	    "communicator %s rank %d of %d on device %d (%s): ready in %.1f ms after %.1f ms of waiting, %.1f MiB",
	    shunt_id_text(comm->id.b).s, comm->rank, comm->nranks, comm->device, comm->gpu->name,
	    ms_between(&s->met, &now), ms_between(&s->begun, &s->met), comm->mem[comm->rank].bytes / 1048576.0);
	/* An abort that came between the last check and READY found nothing to raise. */
	if (atomic_load(&comm->cancel))
		shunt_comm_abort(comm);
}

/* -EOPNOTSUPP of a step: all ranks come to that, and forward. Another error breaks the communicator. */
static int setup_together(struct shunt_comm *comm)
{
	static const struct {
		int (*run)(struct shunt_comm *comm, struct setup *s);
		const char *what;
	} steps[] = {
		{ meet, "meeting the other ranks" },
		{ introduce, "exchanging capabilities" },
		{ compare_plans, "comparing execution plans" },
		{ exchange_scratch, "exchanging scratch memory" },
		{ map_scratch, "mapping scratch memory" },
	};
	struct setup s = { .speaks = comm->rank == 0 };
	const char *what = NULL;
	int err = 0;

	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		s.fds[r] = -1;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !err; i++) {
		what = steps[i].what;
		err = steps[i].run(comm, &s);
	}
	shunt_io_close_all(s.fds, SHUNT_MAX_RANKS);
	if (err)
		return err == -EOPNOTSUPP ? forward(comm, s.speaks, s.why) : broken(comm, what, s.why, err);
	become_ready(comm, &s);
	return 0;
}

int shunt_comm_setup_locked(struct shunt_comm *comm)
{
	int err;

	if (atomic_load_explicit(&comm->state, memory_order_relaxed) != COMM_NEW)
		return 0;
	shunt_recorder_phase(comm->recorder, "set-up");
	err = comm->nranks == 1 && comm->scope.standalone ? setup_alone(comm) : setup_together(comm);
	shunt_recorder_phase(comm->recorder, NULL);
	return err;
}

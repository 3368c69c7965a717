/* SPDX-License-Identifier: MIT */
/*
 * First use of a communicator. Three rounds among all ranks: who are you (decides whether to try), here is my scratch, could
 * you map everybody's. Every rank judges the same tables, so all come to the same outcome: our kernels, or forward-only with one line
 * that says why.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "algos/tuning.h"
#include "core/comm_priv.h"
#include "core/config.h"
#include "core/hash.h"
#include "core/io.h"
#include "core/log.h"
#include "core/peers.h"
#include "core/process.h"
#include "core/retire.h"
#include "core/scratch.h"
#include "core/verdict.h"

#define ASK_DEVICE_MS 20000
#define REVOKE_MS 5000 /* a revoked communicator's kernels end within milliseconds, unless others are ahead of them */

struct hello {
	uint32_t protocol;
	char version[16];
	struct shunt_verdict verdict;
	uint64_t fingerprint;    /* of the configuration */
	uint64_t plans;          /* hash of the execution plans */
	uint64_t tuning;         /* of the tuning file for this machine; 0: none */
	uint64_t process;        /* random, per process: peers in one process borrow */
	int32_t max_ctas;
	uint32_t standalone;
	uint32_t no_sms;         /* CTAPolicy zero */
	uint32_t bulk;           /* its kernels can and may send chunks by bulk copies */
	int32_t pid;
	struct shunt_gpu_info gpu;
};

struct offer {
	struct shunt_verdict verdict;
	uint64_t ptr, bytes;     /* of the scratch; ptr means something in the same process only */
};

/* speaks: this rank is the one that says so. */
static int forward(struct shunt_comm *comm, bool speaks, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int forward(struct shunt_comm *comm, bool speaks, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(comm->why, sizeof(comm->why), fmt, ap);
	shunt_recorder_forward(comm->recorder, comm->why);
	va_end(ap);
	if (!speaks)
		shunt_info(SHUNT_LOG_INIT, "communicator of %d ranks, rank %d: %s", comm->nranks, comm->rank, comm->why);
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

int shunt_comm_join_locked(struct shunt_comm *comm)
{
	int err, missing = -1;

	if (comm->joined || comm->nranks == 1)
		return 0;
	if (!comm->meet)
		return -ENOENT;
	err = shunt_meet_join(comm->meet, comm->nslots, comm->rank, comm->nranks, &comm->cancel, &missing);
	if (err == -ENOENT)
		snprintf(comm->why, sizeof(comm->why),
		    "%s %d has no Shunt, another version or other SHUNT_ or NCCL_ settings, or is on another host",
		    comm->nslots == comm->nranks ? "rank" : "the parent's rank", missing);
	if (!err)
		comm->joined = true;
	return err;
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
			shunt_warn("communicator of %d ranks uses the built-in tuning: rank %d has %s tuning file, rank 0 has %s", comm->nranks, r,
			    !hellos[r].tuning ? "no" : hellos[0].tuning ? "another" : "a", hellos[0].tuning ? "one" : "none");
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
			snprintf(why, bytes, "rank %d has Shunt %.15s, rank 0 has %.15s", r, h[r].version, h[0].version);
			return false;
		}
		if (!h[r].verdict.ok) {
			snprintf(why, bytes, "rank %d: %.95s", r, h[r].verdict.why);
			return false;
		}
		if (h[r].fingerprint != h[0].fingerprint) {
			snprintf(why, bytes, "rank %d has other SHUNT_ or NCCL_ settings than rank 0 (compare `shunt info -c` on both)", r);
			return false;
		}
		if (h[r].standalone != h[0].standalone) {
			snprintf(why, bytes, "rank %d has %s real NCCL, rank 0 has %s", r, h[r].standalone ? "no" : "a", h[0].standalone ? "none" : "one");
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

/* Kernels that wait for each other on one GPU must all find room there, those of another communicator of the same ranks beside them. */
static void share_gpus(struct shunt_comm *comm, const struct hello *h)
{
	for (int r = 0; r < comm->nranks; r++) {
		int sharing = 1, room;

		for (int peer = 0; peer < comm->nranks; peer++)
			sharing += peer != r && one_gpu(&h[r].gpu, &h[peer].gpu);
		room = (int)h[r].gpu.sms / (2 * sharing);
		room = room > 1 ? room : 1;
		if (sharing > 1)
			comm->scope.max_ctas = shunt_lesser_limit(comm->scope.max_ctas, room);
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
			shunt_verdict_refuse(&o->verdict, "it shares its GPU with rank %d, which SHUNT_MULTI_RANK_GPU=1 would let it do", r);
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
		shunt_verdict_refuse(&o->verdict, "%llu bytes of scratch cannot be allocated: %s", (unsigned long long)SHUNT_SCRATCH_BYTES(comm->nranks), strerror(-err));
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

static void map_peers(struct shunt_comm *comm, const struct hello *hellos, const struct offer *offers, const int *fds, struct shunt_verdict *v)
{
	memset(v, 0, sizeof(*v));
	v->ok = 1;
	for (int r = 0; r < comm->nranks && v->ok; r++) {
		int err;

		if (r == comm->rank)
			continue;
		if (hellos[r].process == hellos[comm->rank].process)
			err = shunt_scratch_borrow(comm->gpu, comm->device, (void *)(uintptr_t)offers[r].ptr, offers[r].bytes, &comm->mem[r]);
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

static int broken(struct shunt_comm *comm, const char *step, int err)
{
	if (err != -ECANCELED)
		shunt_error("setting up a communicator of %d ranks: %s on rank %d: %s", comm->nranks, step, comm->rank, strerror(-err));
	shunt_comm_unset(comm);
	shunt_comm_fail(comm, err);
	return err;
}

int shunt_comm_setup_locked(struct shunt_comm *comm)
{
	struct hello hello, hellos[SHUNT_MAX_RANKS];
	struct offer offer, offers[SHUNT_MAX_RANKS];
	struct shunt_verdict verdict, verdicts[SHUNT_MAX_RANKS];
	int fds[SHUNT_MAX_RANKS], self, who, err;
	uint64_t plans[SHUNT_MAX_RANKS];
	struct shunt_peer peers[SHUNT_MAX_RANKS];
	struct timespec t0, t1, t2;
	char why[160];

	if (atomic_load(&comm->state) != COMM_NEW)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &t0);
	say_hello(comm, &hello); /* before the join: what one rank can do alone should not be waited for by all */
	err = shunt_comm_join_locked(comm);
	if (err == -ENOENT && comm->scope.standalone)
		err = -EOWNERDEAD; /* it was there at init */
	if (err == -ENOENT) {
		snprintf(why, sizeof(why), "%s", comm->why);
		/* Rank 0 may have no Shunt, and then cannot say so. */
		return forward(comm, comm->rank == 0 || shunt_meet_leads(comm->meet), "%s", why);
	}
	if (err)
		return broken(comm, "meeting the other ranks", err);
	clock_gettime(CLOCK_MONOTONIC, &t1);

	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		fds[r] = -1;
	self = shunt_peers_self();
	err = gather(comm, &hello, sizeof(hello), hellos, self, fds);
	if (self >= 0)
		close(self);
	if (err)
		return broken(comm, "exchanging capabilities", err);
	if (!hellos_agree(hellos, comm->nranks, why, sizeof(why)))
		goto out_forward;
	for (int r = 0; r < comm->nranks; r++) {
		comm->scope.max_ctas = shunt_lesser_limit(comm->scope.max_ctas, hellos[r].max_ctas);
		comm->scope.sms = (uint32_t)shunt_lesser_limit((int)comm->scope.sms, hellos[r].gpu.sim ? 0 : (int)hellos[r].gpu.sms);
	}
	share_gpus(comm, hellos);
	comm->scope.no_sms = comm->scope.bulk = true;
	for (int r = 0; r < comm->nranks; r++) {
		comm->scope.no_sms &= hellos[r].no_sms != 0;
		comm->scope.bulk &= hellos[r].bulk != 0;
	}
	comm->scope.sim = hellos[0].gpu.sim;
	agree_on_tuning(comm, hellos);
	for (int r = 0; r < comm->nranks; r++) {
		plans[r] = hellos[r].plans;
		peers[r] = (struct shunt_peer){ hellos[r].process, hellos[r].pid, fds[r] };
		fds[r] = -1;
	}
	shunt_peers_watch(comm, peers);
	err = shunt_comm_plans_agree(comm, plans);
	if (err)
		return broken(comm, "comparing execution plans", err);

	make_scratch(comm, hellos, &offer);
	err = gather(comm, &offer, sizeof(offer), offers, offer.verdict.ok ? comm->mem[comm->rank].fd : -1, fds);
	if (err)
		return broken(comm, "exchanging scratch memory", err);
	for (int r = 0; r < comm->nranks; r++)
		if (!offers[r].verdict.ok) {
			snprintf(why, sizeof(why), "rank %d: %.95s", r, offers[r].verdict.why);
			goto out_forward;
		}

	map_peers(comm, hellos, offers, fds, &verdict);
	err = gather(comm, &verdict, sizeof(verdict), verdicts, -1, NULL);
	shunt_io_close_all(fds, comm->nranks);
	if (err)
		return broken(comm, "mapping scratch memory", err);
	who = shunt_verdict_find(verdicts, comm->nranks);
	if (who >= 0)
		return forward(comm, comm->rank == 0, "rank %d: %.95s", who, verdicts[who].why);

	for (int r = 0; r < comm->nranks; r++)
		comm->kargs.peer[r] = comm->mem[r].ptr;
	comm->kargs.rank = (uint16_t)comm->rank;
	comm->kargs.nranks = (uint16_t)comm->nranks;
	shunt_recorder_ready(comm->recorder, comm->gpu, comm->mem[comm->rank].ptr, &comm->words->fault);
	shunt_comm_account(comm);
	shunt_retire_later(comm);
	atomic_store_explicit(&comm->state, COMM_READY, memory_order_release);
	clock_gettime(CLOCK_MONOTONIC, &t2);
	shunt_info(SHUNT_LOG_INIT, "communicator %s rank %d of %d on device %d (%s): ready in %.1f ms after %.1f ms of waiting, %.1f MiB",
	    shunt_id_text(comm->id.b).s, comm->rank, comm->nranks, comm->device, comm->gpu->name,
	    (t2.tv_sec - t1.tv_sec) * 1e3 + (t2.tv_nsec - t1.tv_nsec) / 1e6, (t1.tv_sec - t0.tv_sec) * 1e3 + (t1.tv_nsec - t0.tv_nsec) / 1e6,
	    comm->mem[comm->rank].bytes / 1048576.0);
	/* An abort that came between the last check and READY found nothing to raise. */
	if (atomic_load(&comm->cancel))
		shunt_comm_abort(comm);
	return 0;

out_forward:
	shunt_io_close_all(fds, comm->nranks);
	return forward(comm, comm->rank == 0, "%s", why);
}

/* One look after the other, ever more seldom. */
static void rest(long *ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = *ns }, NULL);
	*ns = *ns < 1000000 ? 2 * *ns : *ns;
}

/*
 * Was the wait a long one, and runs no kernel of ours? Then the device is to have the last word: should the account be wrong, nobody waits for good.
 * What it waits for besides is ahead of our kernels, or another communicator's.
 */
static bool asks_device(const struct shunt_comm *comm, int64_t from)
{
	const struct shunt_ctrl *ctrl = comm->mem[comm->rank].ptr;
	struct shunt_progress p;

	return shunt_now_ms() >= from && !comm->gpu->copy(comm->device, &p, &ctrl->progress, sizeof(p)) && p.begun == p.ended;
}

/*
 * Until none of our kernels runs, those of graphs included. Others are not waited for: they may hang for reasons of their own, or their stream capture.
 * shared: other threads use the communicator meanwhile, and one that aborts it ends this with -ECANCELED, as what is ahead of our kernels may hang. If
 * it was aborted before, which is how it is revoked, it ends after a while.
 */
static int wait_for_kernels(struct shunt_comm *comm, bool shared)
{
	bool aborted = atomic_load(&comm->cancel), done = false;
	int64_t end = shunt_deadline_ms(ASK_DEVICE_MS), revoked = shunt_deadline_ms(REVOKE_MS);
	long ns = 10000;
	int err;

	for (;;) {
		if (shared)
			pthread_mutex_lock(&comm->lock);
		err = shunt_order_done(&comm->order, comm->gpu, comm->device, &done);
		if (shared)
			pthread_mutex_unlock(&comm->lock);
		if (err || done)
			return err;
		if (shared && !aborted && atomic_load(&comm->cancel))
			return -ECANCELED;
		/* A kernel of another communicator of ours may hang, and who is to abort that one waits here. */
		if (shared && !shunt_retire_alone(comm)) {
			if (aborted && shunt_now_ms() >= revoked)
				return 0;
		} else if (asks_device(comm, end)) {
			return comm->gpu->device_sync(comm->device);
		}
		rest(&ns);
	}
}

int shunt_comm_quiet(struct shunt_comm *comm)
{
	return atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_READY ? wait_for_kernels(comm, true) : 0;
}

size_t shunt_comm_memory(struct shunt_comm *comm)
{
	return atomic_load_explicit(&comm->state, memory_order_acquire) == COMM_READY ? comm->mem[comm->rank].bytes : 0;
}

void shunt_comm_unset(struct shunt_comm *comm)
{
	long stored = 50000; /* a warp counts itself last, but what it stored in host memory may still be on its way */

	if (!comm->gpu)
		return;
	if (atomic_load(&comm->state) == COMM_READY) {
		wait_for_kernels(comm, false); /* nothing may run in memory that is about to go */
		rest(&stored);
		shunt_comm_error(comm); /* what nobody has asked for yet is to be told at least */
	}
	shunt_peers_unwatch(comm);
	shunt_recorder_unready(comm->recorder);
	shunt_order_finish(&comm->order);
	shunt_comm_plans_drop(comm);
	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		shunt_scratch_free(comm->gpu, &comm->mem[r]);
	if (comm->words)
		comm->gpu->host_free(comm->words);
	comm->words = NULL;
}

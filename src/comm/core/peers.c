/* SPDX-License-Identifier: MIT */
#include "comm/core/net_tell.h"
#include "comm/core/peers.h"
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/fd.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "comm/core/communicator.h"
#include "comm/core/fault.h"
#include "comm/parts/service.h"

#define POLLS 10           /* in the grace */
#define DEVICE_WAIT_MS 200 /* for a device; after one that did not answer, the time below */
#define UNRESPONSIVE_WAIT_MS 20
#define IDLE_MS 30000 /* between two reads of a device that has nothing to do */

struct process {
	struct process *next;
	uint64_t token; /* shunt_process_token() there */
	pid_t pid;      /* in its own namespace */
	uint64_t key;   /* reported by the service */
	int fd;
	unsigned users;
	bool dead;
	int64_t died_ms; /* when the death was noticed */
};

/* The processes of a communicator's ranks. While a poll looks at the communicator, the lock is not held. */
struct shunt_peers {
	struct shunt_comm *comm;
	struct process *of[SHUNT_NET_MAX_RANKS]; /* NULL: this process, on another host, or not watched */
	uint64_t told; /* bits of the dead ranks of which the ranks of other hosts were told */
	bool failed;
	bool driver_held;      /* progress could not be seen, and that was logged */
	uint64_t begun, ended; /* warps, at the last poll */
	int64_t since_ms;      /* when they last changed */
	bool idle;             /* the device has done all of `issued`, and no graph is alive */
	int64_t idle_ms;       /* when the device was last read and said so */
	struct shunt_recorder_issued issued;
};

/* With the registry's lock. */
static struct process *processes;
static uint64_t keys;

/* A forked child has no peers. */
static void drop_processes(void)
{
	processes = NULL;
}
SHUNT_IN_FORKED_CHILD(drop_processes)

int shunt_peers_self(void)
{
	return SHUNT_FD((int)syscall(SYS_pidfd_open, getpid(), 0));
}

/* For the service's thread. */
static void note_death(uint64_t key);
static int poll_all(void);
static const struct shunt_service_deaths deaths = { note_death, poll_all };

/* With the lock held. Takes over the descriptor. NULL: the process is not watched. */
static struct process *process_get(const struct shunt_peer *peer)
{
	struct process *p;
	int fd = peer->fd;

	for (p = processes; p && p->token != peer->process; p = p->next)
		;
	if (p) {
		p->users++;
		shunt_close_fd(&fd);
		return p;
	}
	p = fd >= 0 ? calloc(1, sizeof(*p)) : NULL;
	if (p)
		*p = (struct process){ .token = peer->process, .pid = peer->pid, .key = ++keys, .users = 1, .fd = fd };
	if (!p || shunt_service_watch_process_locked(p->fd, p->key, &deaths)) {
		shunt_info(SHUNT_LOG_INIT,
		    "process %d of a peer cannot be watched: its death is noticed after SHUNT_TIMEOUT only",
		    (int)peer->pid);
		shunt_close_fd(&fd);
		free(p);
		return NULL;
	}
	p->next = processes;
	processes = p;
	return p;
}

static void process_put(struct process *p)
{
	struct process **at;

	if (!p || --p->users)
		return;
	for (at = &processes; *at != p; at = &(*at)->next)
		;
	*at = p->next;
	shunt_service_unwatch_process_locked(&p->fd);
	free(p);
}

void shunt_peers_watch(struct shunt_comm *comm, const struct shunt_peer *peers)
{
	uint64_t self = shunt_process_token();
	struct shunt_peers *m = calloc(1, sizeof(*m));

	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	for (int r = 0; r < comm->nranks; r++) {
		int fd = peers[r].fd;

		if (m && peers[r].process != self && shunt_topology_is_joint(&comm->topology, r, comm->rank))
			m->of[r] = process_get(&peers[r]);
		else
			shunt_close_fd(&fd);
	}
	if (m)
		m->comm = comm;
	comm->registration.peers = m;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	shunt_log_flush();
}

void shunt_peers_unwatch(struct shunt_comm *comm)
{
	struct shunt_peers *m;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	shunt_registry_wait_unseen(&comm->registration);
	m = comm->registration.peers;
	comm->registration.peers = NULL;
	for (unsigned r = 0; m && r < SHUNT_NET_MAX_RANKS; r++)
		process_put(m->of[r]);
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	free(m);
}

static void note_death(uint64_t key)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	for (struct process *p = processes; p; p = p->next)
		if (p->key == key) {
			p->dead = true;
			p->died_ms = shunt_now_ms();
		}
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

/* True: the rank died so long ago that what it left must have been used. */
static bool long_dead(const struct shunt_peers *m, int rank)
{
	const struct process *p = m->of[rank];

	return p && p->dead && shunt_now_ms() - p->died_ms >= shunt_peers_grace_ms();
}

static uint64_t grace_ns(void)
{
	return (uint64_t)shunt_peers_grace_ms() * 1000000;
}

/* The lowest dead rank; -1: none. */
static int first_dead(const struct shunt_peers *m)
{
	for (int r = 0; r < m->comm->nranks; r++)
		if (long_dead(m, r))
			return r;
	return -1;
}

/*
 * True: a rank that has died without a farewell is told by ranks of other hosts, all of which have connections with it.
 * A collective that waits may then wait for another rank, and this one may have ended in peace.
 */
static bool others_tell(const struct shunt_comm *comm)
{
	return shunt_comm_spans_hosts(comm) && comm->sel_key.pairs;
}

/*
 * The dead rank that the operation of this word waits for; -1: none, or none that this rank can know. A group's
 * launches carry the word of its last call.
 */
static int awaited_rank(const struct shunt_peers *m, uint64_t word)
{
	struct shunt_operation *ops = malloc(SHUNT_RECORDER_OPERATIONS * sizeof(*ops));
	bool known = false;
	int dead = others_tell(m->comm) ? -1 : first_dead(m), found = -1;
	size_t n;

	n = ops ? shunt_recorder_read(m->comm->recorder, word & SHUNT_OP_CAPTURED, ops, SHUNT_RECORDER_OPERATIONS) : 0;
	for (size_t i = 0; i < n && found < 0; i++) {
		const struct shunt_operation *o = &ops[i];

		if (o->last != (word & ~SHUNT_OP_CAPTURED))
			continue;
		known = true;
		if (!shunt_kind_is_p2p(o->kind))
			found = dead;
		else if (o->root >= 0 && o->root < m->comm->nranks && long_dead(m, o->root))
			found = o->root;
	}
	free(ops);
	return known ? found : dead;
}

static void fail(struct shunt_peers *m, int rank, uint64_t word)
{
	m->failed = true;
	shunt_fault_died(m->comm, rank, (int)m->of[rank]->pid, word);
	shunt_comm_stop_kernels(m->comm);
	shunt_comm_net_abort(m->comm, rank);
}

/* The connections of the dead ranks with those of other hosts may not tell. */
static void tell_other_hosts(struct shunt_peers *m)
{
	for (int r = 0; r < m->comm->nranks; r++) {
		if (!m->of[r] || !m->of[r]->dead || m->told >> r & 1)
			continue;
		m->told |= 1ull << r;
		shunt_comm_net_died(m->comm, r);
	}
}

/* Changes the limit unless it is another one, such as an abort's. */
static void change_limit(struct shunt_comm *comm, uint64_t from, uint64_t to)
{
	__atomic_compare_exchange_n(&comm->words->limit_ns, &from, to, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* Another call holds the driver. */
static void driver_blocked(struct shunt_peers *m)
{
	struct shunt_comm *comm = m->comm;
	uint64_t limit = shunt_comm_spin_limit(comm);
	bool pair = comm->nranks == 2;
	int rank = first_dead(m), pid;

	if (rank < 0 || m->driver_held)
		return;
	m->driver_held = true;
	pid = (int)m->of[rank]->pid;
	shunt_warn("rank %d died (pid %d), and a call that waits for the GPU, such as cudaFree, keeps rank %d from "
	           "seeing what its kernels wait for (communicator %s): %s",
	    rank, pid, comm->rank, shunt_id_text(comm->id.b).s,
	    pair ? "those that wait for that rank give up" : "if nothing goes on, abort it");
	if (!pair)
		return;
	shunt_comm_life_lost(&comm->life, rank, pid);
	if (!limit || limit > grace_ns())
		change_limit(comm, limit, grace_ns());
}

/* The device can be read again: see whether a kernel gave up meanwhile. */
static void driver_released(struct shunt_peers *m)
{
	m->driver_held = false;
	if (shunt_comm_error(m->comm))
		m->failed = true;
	else
		change_limit(m->comm, grace_ns(), shunt_comm_spin_limit(m->comm));
	shunt_comm_life_found(&m->comm->life);
}

/* True: a graph with launches of this communicator may be launched at any time, which the host does not see. */
static bool graphs_alive(const struct shunt_comm *comm, const struct shunt_recorder_issued *issued)
{
	return issued->ncaptured && (!comm->order.mixing || shunt_order_graphs(&comm->order));
}

/*
 * True: nothing of the communicator was launched since its device had done everything. A device is not read then: a
 * read takes a thread and a call of the driver, and a program that goes on for hours after a peer has left in peace
 * would pay for it five times a second.
 */
static bool still_idle(const struct shunt_peers *m, const struct shunt_recorder_issued *issued)
{
	return m->idle && issued->eager == m->issued.eager && !graphs_alive(m->comm, issued) &&
	    shunt_now_ms() - m->idle_ms < IDLE_MS;
}

/* issued: from before p was read. Calls that were launched in the meantime count as launched after it. */
static void check_idle(
    struct shunt_peers *m, const struct shunt_progress *p, const struct shunt_recorder_issued *issued)
{
	m->idle = p->begun == p->ended && p->eager == issued->eager && !graphs_alive(m->comm, issued);
	m->idle_ms = shunt_now_ms();
	m->issued = *issued;
}

static void check_progress(struct shunt_peers *m, const struct shunt_progress *p)
{
	int rank;

	if (p->begun == p->ended || p->begun != m->begun || p->ended != m->ended || !m->since_ms) {
		m->begun = p->begun;
		m->ended = p->ended;
		m->since_ms = shunt_now_ms();
	} else if (shunt_now_ms() - m->since_ms >= shunt_peers_grace_ms()) {
		rank = awaited_rank(m, p->now);
		if (rank >= 0)
			fail(m, rank, p->now);
	}
}

/*
 * Of a communicator that goes on without dead ranks: tells its kernels, which then wait for these no more. What a rank
 * left before its end is still used. True: a death is too young for that; poll again.
 */
static bool tell_kernels(struct shunt_peers *m)
{
	struct shunt_comm *comm = m->comm;
	uint64_t gone = 0;
	bool again = false;

	for (unsigned i = 0; i < (unsigned)comm->nranks; i++) {
		int r = shunt_comm_rank_of_ordinal(comm, i);

		if (long_dead(m, r)) {
			gone |= UINT64_C(1) << i;
			shunt_comm_miss(comm, r, "rank %d died (pid %d)", r, (int)m->of[r]->pid);
		} else {
			again |= m->of[r] && m->of[r]->dead;
		}
	}
	if (comm->words)
		__atomic_fetch_or(&comm->words->gone, gone, __ATOMIC_RELEASE);
	return again || !comm->words;
}

/* True: poll again. *unresponsive: a device did not answer. */
static bool poll_peers(struct shunt_peers *m, bool *unresponsive)
{
	struct shunt_comm *comm = m->comm;
	struct shunt_recorder_snapshot snapshot;
	struct shunt_recorder_issued issued;
	bool dead = false;

	for (int r = 0; r < comm->nranks; r++)
		dead = dead || (m->of[r] && m->of[r]->dead);
	if (!dead || m->failed)
		return false;
	if (shunt_comm_life_state(&comm->life) != COMM_READY)
		return true;
	tell_other_hosts(m);
	if (comm->own.tolerates)
		return tell_kernels(m);
	if (!comm->recorder)
		return false;
	issued = shunt_recorder_issued(comm->recorder);
	if (still_idle(m, &issued) ||
	    shunt_recorder_snapshot(
	        comm->recorder, SHUNT_READ_ALL, *unresponsive ? UNRESPONSIVE_WAIT_MS : DEVICE_WAIT_MS, &snapshot))
		return true;
	*unresponsive |= snapshot.unresponsive;
	if (snapshot.unresponsive)
		driver_blocked(m);
	else if (m->driver_held)
		driver_released(m);
	m->idle = false;
	if (snapshot.ctrl && !m->failed) {
		check_idle(m, &snapshot.ctrl->progress, &issued);
		check_progress(m, &snapshot.ctrl->progress);
	}
	shunt_recorder_snapshot_finish(&snapshot);
	return !m->failed;
}

static bool has_peers(const struct shunt_registration *r)
{
	return r->peers;
}

static int poll_all(void)
{
	bool again = false, unresponsive = false;
	struct shunt_registration *r = NULL;

	/* The end of a communicator waits for the look at it, and so must not wait for lines of log. */
	shunt_log_hold();
	while ((r = shunt_registry_next(r, has_peers)))
		again |= poll_peers(r->peers, &unresponsive);
	shunt_log_flush();
	return !again ? -1 : shunt_peers_grace_ms() / POLLS * (unresponsive ? 5 : 1);
}

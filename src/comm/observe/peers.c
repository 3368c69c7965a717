/* SPDX-License-Identifier: MIT */
#include "comm/observe/peers.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "comm/comm_priv.h"
#include "comm/observe/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "base/lock.h"
#include "comm/service.h"

#define POLL_MS 200
#define DEVICE_WAIT_MS 200 /* for a device; after one that did not answer, the time below */
#define UNRESPONSIVE_WAIT_MS 20
#define GRACE_NS ((uint64_t)SHUNT_PEERS_GRACE_MS * 1000000)

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

struct member {
	struct member *next;
	struct shunt_comm *comm;
	struct process *of[SHUNT_MAX_RANKS]; /* NULL: this process, or not watched */
	bool failed;
	bool driver_held;      /* progress could not be seen, and that was logged */
	uint64_t begun, ended; /* warps, at the last poll */
	int64_t since_ms;      /* when they last changed */
	bool busy;             /* a poll looks at it, without the lock */
};

/* A line of log. It is written when neither the lock is held nor a member is busy: writing may block for ever. */
struct notice {
	struct notice *next;
	bool error; /* else a warning */
	char text[SHUNT_FAULT_TEXT];
};

static void drop_lists(void);
static struct shunt_lock lock = SHUNT_LOCK(drop_lists);
static struct process *processes;
static struct member *members;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER; /* a member is not busy any more */
static uint64_t keys;

/* A forked child has none of what these stand for. */
static void drop_lists(void)
{
	processes = NULL;
	members = NULL;
	pthread_cond_init(&idle, NULL);
}

int shunt_peers_self(void)
{
	return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

/* Takes over the descriptor. NULL: the process is not watched. */
static struct process *process_get(const struct shunt_peer *peer)
{
	struct process *p;

	for (p = processes; p && p->token != peer->process; p = p->next)
		;
	if (p) {
		p->users++;
		if (peer->fd >= 0)
			close(peer->fd);
		return p;
	}
	p = peer->fd >= 0 ? calloc(1, sizeof(*p)) : NULL;
	if (p)
		*p = (struct process){
			.token = peer->process, .pid = peer->pid, .key = ++keys, .users = 1, .fd = peer->fd
		};
	if (!p || shunt_service_watch_process(p->fd, p->key)) {
		shunt_info(SHUNT_LOG_INIT,
		    "process %d of a peer cannot be watched: its death is noticed after SHUNT_TIMEOUT only",
		    (int)peer->pid);
		if (peer->fd >= 0)
			close(peer->fd);
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
	close(p->fd);
	free(p);
}

void shunt_peers_watch(struct shunt_comm *comm, const struct shunt_peer *peers)
{
	uint64_t self = shunt_process_token();
	struct member *m = calloc(1, sizeof(*m));

	shunt_lock_acquire(&lock);
	for (int r = 0; r < comm->nranks; r++) {
		if (m && peers[r].process != self)
			m->of[r] = process_get(&peers[r]);
		else if (peers[r].fd >= 0)
			close(peers[r].fd);
	}
	if (m) {
		m->comm = comm;
		m->next = members;
		members = m;
	}
	shunt_lock_release(&lock);
}

void shunt_peers_unwatch(struct shunt_comm *comm)
{
	struct member **at, *m;

	shunt_lock_acquire(&lock);
	for (at = &members; *at && (*at)->comm != comm; at = &(*at)->next)
		;
	m = *at;
	while (m && m->busy)
		pthread_cond_wait(&idle, &lock.mutex);
	if (m) {
		for (at = &members; *at != m; at = &(*at)->next)
			;
		*at = m->next;
		for (int r = 0; r < SHUNT_MAX_RANKS; r++)
			process_put(m->of[r]);
		free(m);
	}
	shunt_lock_release(&lock);
}

void shunt_peers_died(uint64_t key)
{
	shunt_lock_acquire(&lock);
	for (struct process *p = processes; p; p = p->next)
		if (p->key == key) {
			p->dead = true;
			p->died_ms = shunt_now_ms();
		}
	shunt_lock_release(&lock);
}

/* True: the rank died so long ago that what it left must have been used. */
static bool long_dead(const struct member *m, int rank)
{
	const struct process *p = m->of[rank];

	return p && p->dead && shunt_now_ms() - p->died_ms >= SHUNT_PEERS_GRACE_MS;
}

/* The lowest dead rank; -1: none. */
static int first_dead(const struct member *m)
{
	for (int r = 0; r < m->comm->nranks; r++)
		if (long_dead(m, r))
			return r;
	return -1;
}

/*
 * The dead rank that the operation of this word waits for; -1: none. A group's launches carry the word of its last
 * call.
 */
static int awaited_rank(const struct member *m, uint64_t word)
{
	struct shunt_operation *ops = malloc(SHUNT_RECORDER_OPERATIONS * sizeof(*ops));
	bool known = false;
	int dead = first_dead(m), found = -1;
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

static void notice_push(struct notice **notices, bool error, const char *text)
{
	struct notice *n = calloc(1, sizeof(*n));

	if (!n)
		return;
	n->error = error;
	snprintf(n->text, sizeof(n->text), "%s", text);
	n->next = *notices;
	*notices = n;
}

static void notices_log(struct notice *notices)
{
	for (struct notice *n = notices, *next; n; n = next) {
		next = n->next;
		if (n->error)
			shunt_error("%s", n->text);
		else
			shunt_warn("%s", n->text);
		free(n);
	}
}

static void fail(struct member *m, int rank, uint64_t word, struct notice **notices)
{
	char text[SHUNT_FAULT_TEXT];

	m->failed = true;
	if (shunt_fault_set_died(m->comm, rank, (int)m->of[rank]->pid, word, text, sizeof(text)))
		notice_push(notices, true, text);
	shunt_comm_stop_kernels(m->comm);
}

/* Changes the limit unless it is another one, such as an abort's. */
static void change_limit(struct shunt_comm *comm, uint64_t from, uint64_t to)
{
	__atomic_compare_exchange_n(&comm->words->limit_ns, &from, to, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* Another call holds the driver. */
static void driver_blocked(struct member *m, struct notice **notices)
{
	char text[SHUNT_FAULT_TEXT];
	struct shunt_comm *comm = m->comm;
	uint64_t limit = shunt_comm_spin_limit();
	bool pair = comm->nranks == 2;
	int rank = first_dead(m), pid;

	if (rank < 0 || m->driver_held)
		return;
	m->driver_held = true;
	pid = (int)m->of[rank]->pid;
	snprintf(text, sizeof(text),
	    "rank %d died (pid %d), and a call that waits for the GPU, such as cudaFree, keeps rank %d from seeing "
	    "what its "
	    "kernels wait for (communicator %s): %s",
	    rank, pid, comm->rank, shunt_id_text(comm->id.b).s,
	    pair ? "those that wait for that rank give up" : "if nothing goes on, abort it");
	notice_push(notices, false, text);
	if (!pair)
		return;
	shunt_comm_life_lost(&comm->life, rank, pid);
	if (!limit || limit > GRACE_NS)
		change_limit(comm, limit, GRACE_NS);
}

/* The device can be read again: see whether a kernel gave up meanwhile. */
static void driver_released(struct member *m, struct notice **notices)
{
	char text[SHUNT_FAULT_TEXT];

	m->driver_held = false;
	if (shunt_fault_take(m->comm, text, sizeof(text)))
		notice_push(notices, true, text);
	if (shunt_comm_life_error(&m->comm->life))
		m->failed = true;
	else
		change_limit(m->comm, GRACE_NS, shunt_comm_spin_limit());
	shunt_comm_life_found(&m->comm->life);
}

static void check_progress(struct member *m, const struct shunt_progress *p, struct notice **notices)
{
	int rank;

	if (p->begun == p->ended || p->begun != m->begun || p->ended != m->ended || !m->since_ms) {
		m->begun = p->begun;
		m->ended = p->ended;
		m->since_ms = shunt_now_ms();
	} else if (shunt_now_ms() - m->since_ms >= SHUNT_PEERS_GRACE_MS) {
		rank = awaited_rank(m, p->now);
		if (rank >= 0)
			fail(m, rank, p->now, notices);
	}
}

/* True: poll again. *unresponsive: a device did not answer. */
static bool poll_member(struct member *m, bool *unresponsive, struct notice **notices)
{
	struct shunt_comm *comm = m->comm;
	struct shunt_recorder_snapshot snapshot;
	bool dead = false;

	for (int r = 0; r < comm->nranks; r++)
		dead = dead || (m->of[r] && m->of[r]->dead);
	if (!dead || m->failed || !comm->recorder)
		return false;
	if (shunt_comm_life_state(&comm->life) != COMM_READY ||
	    shunt_recorder_snapshot(comm->recorder, *unresponsive ? UNRESPONSIVE_WAIT_MS : DEVICE_WAIT_MS, &snapshot))
		return true;
	*unresponsive |= snapshot.unresponsive;
	if (snapshot.unresponsive)
		driver_blocked(m, notices);
	else if (m->driver_held)
		driver_released(m, notices);
	if (snapshot.ctrl && !m->failed)
		check_progress(m, &snapshot.ctrl->progress, notices);
	shunt_recorder_snapshot_finish(&snapshot);
	return !m->failed;
}

int shunt_peers_poll(void)
{
	bool again = false, unresponsive = false;
	struct notice *notices = NULL;

	shunt_lock_acquire(&lock);
	for (struct member *m = members; m; m = m->next) {
		/* A device is read, and a dump written, without the lock. The member stays in the list meanwhile. */
		m->busy = true;
		shunt_lock_release(&lock);
		again |= poll_member(m, &unresponsive, &notices);
		shunt_lock_acquire(&lock);
		m->busy = false;
		pthread_cond_broadcast(&idle);
	}
	shunt_lock_release(&lock);
	notices_log(notices);
	return !again ? -1 : unresponsive ? 5 * POLL_MS : POLL_MS;
}

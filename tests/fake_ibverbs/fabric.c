/* SPDX-License-Identifier: MIT */
#include "fabric.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include "tools/common/libc.h"

/* Bytes that processes lock, behind the end of the file. */
enum { LOCK_ALL = 0, LOCK_NICS = 1 };
static const off_t lock_base = (off_t)1 << 40;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct fabric *) fabric;
static int fabric_fd = -1;
static _Atomic bool nic_is_ours[FABRIC_NICS]; /* a process does not see its own locks */

int64_t fabric_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int file_lock(int command, short type, off_t byte, pid_t *holder_p)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = lock_base + byte, .l_len = 1 };
	int err;

	do
		err = fcntl(fabric_fd, command, &l) ? -errno : 0;
	while (err == -EINTR);
	if (holder_p)
		*holder_p = l.l_type == F_UNLCK ? 0 : l.l_pid ? l.l_pid : -1;
	return err;
}

static void all_lock(void)
{
	pthread_mutex_lock(&mutex);
	if (fabric_fd >= 0)
		file_lock(F_SETLKW, F_WRLCK, LOCK_ALL, NULL);
}

static void all_unlock(void)
{
	if (fabric_fd >= 0)
		file_lock(F_SETLK, F_UNLCK, LOCK_ALL, NULL);
	pthread_mutex_unlock(&mutex);
}

/* A child has none of its parent's NICs, and must not wait for what its parent's threads held. */
static void in_child(void)
{
	mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (int i = 0; i < FABRIC_NICS; i++)
		atomic_store(&nic_is_ours[i], false);
}

static struct fabric *fabric_map(void)
{
	const char *path = getenv("FAKE_IBV_FABRIC");
	struct fabric *f;
	struct stat st;

	fabric_fd =
	    path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : memfd_create("fake_ibv", MFD_CLOEXEC);
	if (fabric_fd < 0) {
		fprintf(stderr, "fake_ibverbs: FAKE_IBV_FABRIC=%s: %s\n", path ? path : "", strerror(errno));
		return NULL;
	}
	file_lock(F_SETLKW, F_WRLCK, LOCK_ALL, NULL);
	f = MAP_FAILED;
	if (!fstat(fabric_fd, &st) && (st.st_size || !ftruncate(fabric_fd, sizeof(*f))))
		f = mmap(NULL, sizeof(*f), PROT_READ | PROT_WRITE, MAP_SHARED, fabric_fd, 0);
	if (f != MAP_FAILED && !atomic_load(&f->ready)) {
		f->bytes = sizeof(*f);
		f->began = fabric_now();
		atomic_store(&f->ready, 1);
	}
	file_lock(F_SETLK, F_UNLCK, LOCK_ALL, NULL);
	if (f == MAP_FAILED || f->bytes != sizeof(*f)) {
		fprintf(stderr, "fake_ibverbs: FAKE_IBV_FABRIC=%s: not a fabric of this library\n", path ? path : "");
		close(fabric_fd);
		fabric_fd = -1;
		return NULL;
	}
	pthread_atfork(NULL, NULL, in_child);
	return f;
}

struct fabric *fabric_get(void)
{
	struct fabric *f = atomic_load_explicit(&fabric, memory_order_acquire);

	if (f)
		return f;
	pthread_mutex_lock(&mutex);
	f = atomic_load(&fabric);
	if (!f) {
		f = fabric_map();
		atomic_store(&fabric, f);
	}
	pthread_mutex_unlock(&mutex);
	return f;
}

int fabric_port(const char *host, const char *device, uint32_t number)
{
	struct fabric *f = fabric_get();
	int found = -ENOSPC;

	all_lock();
	for (int i = 0; i < FABRIC_PORTS; i++) {
		struct fabric_port *p = &f->ports[i];

		if (!atomic_load(&p->used)) {
			snprintf(p->host, sizeof(p->host), "%s", host);
			snprintf(p->device, sizeof(p->device), "%s", device);
			p->number = number;
			atomic_store(&p->lid, (uint32_t)i + 1);
			atomic_store(&p->used, 1);
		}
		if (!strcmp(p->host, host) && !strcmp(p->device, device) && p->number == number) {
			found = i;
			break;
		}
	}
	all_unlock();
	if (found < 0)
		fprintf(stderr, "fake_ibverbs: no room for port %s:%s:%u in the fabric\n", host, device, number);
	return found;
}

bool fabric_nic_ours(uint32_t nic)
{
	return atomic_load(&nic_is_ours[nic]);
}

static bool nic_alive(uint32_t nic)
{
	pid_t holder = 0;

	if (!atomic_load(&fabric->nics[nic].used))
		return false;
	if (fabric_nic_ours(nic))
		return true;
	file_lock(F_GETLK, F_WRLCK, LOCK_NICS + (off_t)nic, &holder);
	return holder != 0;
}

int fabric_nic_take(void)
{
	struct fabric *f = fabric_get();
	int found = -ENOSPC;

	all_lock();
	for (uint32_t i = 0; i < FABRIC_NICS; i++) {
		if (nic_alive(i))
			continue;
		file_lock(F_SETLK, F_WRLCK, LOCK_NICS + (off_t)i, NULL);
		for (uint32_t q = 0; q < FABRIC_QPS; q++) /* of who had the entry and died */
			if (atomic_load(&f->qps[q].number) && atomic_load(&f->qps[q].nic) == i) {
				atomic_store(&f->qps[q].freed, fabric_now());
				atomic_store(&f->qps[q].ready, FABRIC_QP_DEAF);
				atomic_store(&f->qps[q].number, 0);
			}
		atomic_store(&f->nics[i].used, 1);
		atomic_store(&nic_is_ours[i], true);
		found = (int)i;
		break;
	}
	all_unlock();
	if (found < 0)
		fprintf(stderr, "fake_ibverbs: all %d NICs of the fabric are open\n", FABRIC_NICS);
	return found;
}

void fabric_nic_give(uint32_t nic)
{
	all_lock();
	atomic_store(&fabric->nics[nic].used, 0);
	atomic_store(&nic_is_ours[nic], false);
	file_lock(F_SETLK, F_UNLCK, LOCK_NICS + (off_t)nic, NULL);
	all_unlock();
}

/* Under all_lock(): an entry that is free, long enough unless `hurry`. */
static int qp_free(bool hurry, int64_t now)
{
	for (uint32_t i = 0; i < FABRIC_QPS; i++) {
		struct fabric_qp *q = &fabric->qps[i];
		int64_t freed = atomic_load(&q->freed);

		if (atomic_load(&q->number)) {
			if (!hurry || nic_alive(atomic_load(&q->nic)))
				continue;
			return (int)i;
		}
		if (!freed || now - freed > 1000000000)
			return (int)i;
	}
	return -ENOSPC;
}

int fabric_qp_take(uint32_t nic, uint32_t port)
{
	struct fabric *f = fabric_get();
	int64_t now = fabric_now();
	int i;

	all_lock();
	i = qp_free(false, now);
	if (i < 0)
		i = qp_free(true, now);
	if (i >= 0) {
		struct fabric_qp *q = &f->qps[i];
		uint32_t generation = (atomic_load(&q->generation) + 1) & 0x7ff;

		atomic_store(&q->generation, generation ? generation : 1);
		atomic_store(&q->ready, FABRIC_QP_DEAF);
		atomic_store(&q->nic, nic);
		atomic_store(&q->port, port);
		atomic_fetch_add(&q->life, 1);
		atomic_store(&q->dest, 0);
		atomic_store(&q->head, atomic_load(&q->tail));
		atomic_store(&q->number, (generation ? generation : 1) << 12 | (uint32_t)i);
	}
	all_unlock();
	if (i < 0)
		fprintf(stderr, "fake_ibverbs: no room for a QP: the fabric has %d\n", FABRIC_QPS);
	return i;
}

void fabric_qp_give(uint32_t qp)
{
	all_lock();
	atomic_store(&fabric->qps[qp].ready, FABRIC_QP_DEAF);
	atomic_store(&fabric->qps[qp].freed, fabric_now());
	atomic_store(&fabric->qps[qp].number, 0);
	all_unlock();
}

struct fabric_qp *fabric_qp_find(uint32_t number)
{
	struct fabric_qp *q = &fabric_get()->qps[number & (FABRIC_QPS - 1)];

	return number && atomic_load(&q->number) == number ? q : NULL;
}

struct fabric_qp *fabric_qp_last(uint32_t number)
{
	struct fabric_qp *q = &fabric_get()->qps[number & (FABRIC_QPS - 1)];

	return number && atomic_load(&q->generation) == number >> 12 ? q : NULL;
}

/*
 * Who rings gets nothing of what the NIC did: the orders are as weak as that, or ThreadSanitizer would take a post for
 * what only a completion is, proof that data has come. A wake that is lost for it, where the machine's order is weak,
 * costs the longest sleep (nic.c).
 */
void fabric_ring(uint32_t nic)
{
	struct fabric_nic *n = &fabric_get()->nics[nic];

	atomic_fetch_add_explicit(&n->bell, 1, memory_order_release);
	if (atomic_load_explicit(&n->asleep, memory_order_relaxed))
		syscall(SYS_futex, &n->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fabric_sleep(uint32_t nic, uint32_t bell, int64_t until)
{
	struct fabric_nic *n = &fabric_get()->nics[nic];
	int64_t left = until - fabric_now();
	struct timespec t = { left / 1000000000, left % 1000000000 };

	if (left <= 0)
		return;
	atomic_exchange_explicit(&n->asleep, 1, memory_order_acquire);
	if (atomic_load_explicit(&n->bell, memory_order_acquire) == bell)
		syscall(SYS_futex, &n->bell, FUTEX_WAIT, bell, &t, NULL, 0);
	atomic_store_explicit(&n->asleep, 0, memory_order_relaxed);
}

bool fabric_up(const struct fabric_port *port, int64_t now)
{
	return !atomic_load(&port->down) && now >= atomic_load(&port->down_until);
}

bool fabric_unread(struct fabric_qp *from, struct fabric_qp *to, int64_t now)
{
	return to && atomic_load(&to->ready) == FABRIC_QP_READY &&
	    atomic_load(&from->head) != atomic_load_explicit(&from->tail, memory_order_relaxed) &&
	    now >= atomic_load(&fabric->ports[atomic_load(&to->port)].stall_until) && nic_alive(atomic_load(&to->nic));
}

/* The address that `from` was given leads to the port of `to`. */
static bool addresses(struct fabric_qp *from, struct fabric_qp *to)
{
	struct fabric_port *port = &fabric_get()->ports[atomic_load(&to->port)];
	bool ethernet = atomic_load(&port->link_layer) == 2;

	if (atomic_load(&from->dest) != atomic_load(&to->number))
		return false;
	if (!atomic_load(&from->global))
		return !ethernet && atomic_load(&from->dest_lid) == atomic_load(&port->lid);
	if (ethernet && atomic_load(&from->sgid_type) != atomic_load(&to->sgid_type))
		return false;
	for (int i = 0; i < FABRIC_GIDS; i++) {
		struct fabric_gid *g = &port->gids[i];

		if (atomic_load(&g->type) != GID_NONE && atomic_load(&g->high) == atomic_load(&from->dgid_high) &&
		    atomic_load(&g->low) == atomic_load(&from->dgid_low) &&
		    atomic_load(&g->type) == atomic_load(&from->sgid_type))
			return true;
	}
	return false;
}

/* One of the packets that a fault script takes from this link. */
static bool dropped(struct fabric_port *port)
{
	uint32_t left = atomic_load(&port->drop);

	while (left)
		if (atomic_compare_exchange_weak(&port->drop, &left, left - 1))
			return true;
	return false;
}

bool fabric_reaches(struct fabric_qp *from, struct fabric_qp *to, uint32_t bytes)
{
	struct fabric *f = fabric_get();
	struct fabric_port *here = &f->ports[atomic_load(&from->port)];
	struct fabric_port *there = to ? &f->ports[atomic_load(&to->port)] : NULL;
	int64_t now = fabric_now();

	atomic_fetch_add(&here->packets, 1);
	if (there && there != here)
		atomic_fetch_add(&there->packets, 1);
	if (!there || !fabric_up(here, now) || !fabric_up(there, now))
		return false;
	if (dropped(here) || (there != here && dropped(there)))
		return false;
	if (atomic_load(&to->ready) != FABRIC_QP_READY || !addresses(from, to) || !addresses(to, from))
		return false;
	return bytes <= atomic_load(&to->mtu) && bytes <= atomic_load(&there->active_mtu) &&
	    atomic_load(&from->pkey) == atomic_load(&to->pkey);
}

bool fabric_room(struct fabric_qp *from, const struct packet *p)
{
	uint64_t end =
	    atomic_load_explicit(&from->tail, memory_order_relaxed) + PACKET_HEADER_WORDS + (p->bytes + 7) / 8;

	if (end - atomic_load(&from->head) <= FABRIC_RING_WORDS)
		return true;
	atomic_store(&from->blocked, 1);
	return end - atomic_load(&from->head) <= FABRIC_RING_WORDS;
}

void fabric_put(struct fabric_qp *from, struct packet *p)
{
	_Atomic uint64_t *ring = fabric->rings[from - fabric->qps];
	uint64_t tail = atomic_load_explicit(&from->tail, memory_order_relaxed);
	const char *raw = (const char *)p;

	p->words = PACKET_HEADER_WORDS + (p->bytes + 7) / 8;
	for (uint32_t i = 0; i < p->words; i++) {
		uint64_t word;

		memcpy(&word, raw + 8 * (size_t)i, 8);
		atomic_store_explicit(&ring[(tail + i) % FABRIC_RING_WORDS], word, memory_order_relaxed);
	}
	atomic_store_explicit(&from->tail, tail + p->words, memory_order_release);
}

bool fabric_take(struct fabric_qp *from, uint32_t number, uint64_t *head_p, struct packet *p)
{
	_Atomic uint64_t *ring = fabric->rings[from - fabric->qps];
	uint64_t tail = atomic_load_explicit(&from->tail, memory_order_acquire), head = *head_p;
	uint32_t words;

	if (head == tail)
		return false;
	words = (uint32_t)atomic_load_explicit(&ring[head % FABRIC_RING_WORDS], memory_order_relaxed);
	if (tail - head > FABRIC_RING_WORDS || words < PACKET_HEADER_WORDS || words > sizeof(*p) / 8 ||
	    words > tail - head) {
		*head_p = tail; /* the entry has another owner by now */
		return false;
	}
	for (uint32_t i = 0; i < words; i++) {
		uint64_t word = atomic_load_explicit(&ring[(head + i) % FABRIC_RING_WORDS], memory_order_relaxed);

		memcpy((char *)p + 8 * (size_t)i, &word, 8);
	}
	if (atomic_load(&from->generation) != number >> 12)
		return false;
	*head_p = head + words;
	atomic_store(&from->head, *head_p);
	if (atomic_exchange(&from->blocked, 0))
		fabric_ring(atomic_load(&from->nic));
	return true;
}

/* SPDX-License-Identifier: MIT */
#include "tests/support/unit.h"
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include "tests/support/rendezvous_name.h"
#include "base/config.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/rendezvous/rendezvous.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

#define NMEMBERS 40
#define TIMEOUT_MS 120000

/*
 * One communicator of the tests. Sockets are bound before the ranks start, as init does: by the parent for threads, or
 * each by its own process, with a barrier in shared memory.
 */
struct world {
	struct shunt_id id;
	int nranks, nmembers;
	int member[UNIT_MAX_RANKS];
	atomic_int bound; /* how many sockets are bound */
	atomic_int finished;
	atomic_int cancel[UNIT_MAX_RANKS];
	int delay_ms[UNIT_MAX_RANKS]; /* before join */
	int guests[UNIT_MAX_RANKS];  /* before join it waits until so many others are in theirs and have called it; then
	                              */
	int cancels[UNIT_MAX_RANKS]; /* it cancels this rank, or -1, */
	int outs[UNIT_MAX_RANKS];    /* and waits until so many have come out of it */
	bool buries[UNIT_MAX_RANKS]; /* before join it waits until who is to kill_self is dead */
	atomic_int task[UNIT_MAX_RANKS];
	atomic_int dying; /* the process that is about to kill_self */
	atomic_int out;   /* how many have come out of join */
	pid_t test;
	int missing[UNIT_MAX_RANKS];
	char said[UNIT_MAX_RANKS][256]; /* why, if the join or a round failed */
	int says_rank[UNIT_MAX_RANKS], says_nranks[UNIT_MAX_RANKS];
	int dies_in_join, dies_in_gather; /* a rank, or -1 */
	int leaves;                       /* a rank that destroys its rendezvous instead of joining, or -1 */
	unsigned drops_uid;               /* bits of the ranks that become another user before they join */
	bool leaves_child;                /* who dies leaves a child behind, which lives until over */
	atomic_int over;
	int rounds;
};

static int errs[UNIT_MAX_RANKS]; /* what the ranks of a run returned */

static struct world *world_create(int nranks)
{
	struct world *w = unit_shared(sizeof(*w));

	w->nranks = nranks;
	w->nmembers = NMEMBERS;
	shunt_random(&w->id, sizeof(w->id));
	for (int r = 0; r < UNIT_MAX_RANKS; r++) {
		w->member[r] = (r * 7 + 3) % NMEMBERS; /* the lowest member is not always rank 0's */
		w->says_rank[r] = r;
		w->says_nranks[r] = nranks;
		w->cancels[r] = -1;
	}
	w->test = getpid();
	w->dies_in_join = w->dies_in_gather = w->leaves = -1;
	w->rounds = 3;
	return w;
}

static void barrier(atomic_int *count, int n)
{
	atomic_fetch_add(count, 1);
	while (atomic_load(count) < n)
		pause_us(PAUSE_POLL, 1000);
}

static int gather_numbers(struct world *w, struct shunt_rendezvous *rdzv, int rank, int round)
{
	uint32_t all[UNIT_MAX_RANKS], mine = (uint32_t)(rank * 1000 + round);
	struct shunt_ranks ranks = { rdzv, rank, w->nranks, TIMEOUT_MS, &w->cancel[rank] };
	int err = shunt_rendezvous_allgather(&ranks, &mine, sizeof(mine), all, -1, NULL);

	for (int r = 0; !err && r < w->nranks; r++)
		if (all[r] != (uint32_t)(r * 1000 + round))
			err = -EBADMSG;
	return err;
}

static int make_memfd(int number)
{
	int fd = memfd_create("part", MFD_CLOEXEC);

	if (fd >= 0 && pwrite(fd, &number, sizeof(number), 0) != sizeof(number)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Every rank but those divisible by 3 gives a memfd that holds its number. */
static int gather_memfds(struct world *w, struct shunt_rendezvous *rdzv, int rank)
{
	int fds[UNIT_MAX_RANKS], fd = rank % 3 ? make_memfd(rank) : -1;
	uint8_t big[5000], *all = malloc(sizeof(big) * (size_t)w->nranks);
	struct shunt_ranks ranks = { rdzv, rank, w->nranks, TIMEOUT_MS, &w->cancel[rank] };
	int err;

	memset(big, rank + 1, sizeof(big));
	err = shunt_rendezvous_allgather(&ranks, big, sizeof(big), all, fd, fds);
	for (int r = 0; !err && r < w->nranks; r++) {
		int number = -1;

		if (all[(size_t)r * sizeof(big)] != r + 1 || all[(size_t)(r + 1) * sizeof(big) - 1] != r + 1)
			err = -EBADMSG;
		if (r == rank || r % 3 == 0) {
			if (fds[r] != -1)
				err = -EBADF;
			continue;
		}
		if (pread(fds[r], &number, sizeof(number), 0) != sizeof(number) || number != r ||
		    !(fcntl(fds[r], F_GETFD) & FD_CLOEXEC))
			err = -EBADF;
		close(fds[r]);
	}
	if (fd >= 0)
		close(fd);
	free(all);
	return err;
}

/* Our end of a member's socket. */
static int listener(struct world *w, int rank)
{
	struct sockaddr_un want, addr;
	socklen_t bytes = rendezvous_name(&w->id, w->member[rank], &want), len;

	for (int fd = 0; fd < 512; fd++) {
		int listens = 0;

		len = sizeof(listens);
		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens)
			continue;
		len = sizeof(addr);
		if (!getsockname(fd, (struct sockaddr *)&addr, &len) && len == bytes && !memcmp(&addr, &want, bytes))
			return fd;
	}
	return -1;
}

static bool sleeps(pid_t task)
{
	char path[64], line[512] = "", *state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)task);
	f = fopen(path, "re");
	if (!f)
		return true;
	state = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	fclose(f);
	return state && state[2] == 'S';
}

/*
 * Who has called, and sleeps, has looked at all members and waits for the others. That nobody answers makes no
 * difference to it.
 */
static void await_guests(struct world *w, int rank)
{
	struct pollfd p = { .fd = listener(w, rank), .events = POLLIN };
	int fds[UNIT_MAX_RANKS], n = 0;

	while (n < w->guests[rank] && poll(&p, 1, AT_ONCE_MS) > 0) {
		fds[n] = accept4(p.fd, NULL, NULL, SOCK_CLOEXEC);
		n += fds[n] >= 0;
	}
	for (int r = 0; r < w->nranks; r++)
		while (n == w->nranks - 1 && r != rank && !sleeps(atomic_load(&w->task[r])))
			pause_us(PAUSE_POLL, 1000);
	if (n == w->guests[rank] && w->cancels[rank] >= 0)
		atomic_store(&w->cancel[w->cancels[rank]], 1);
	for (int64_t end = unit_now_ms() + AT_ONCE_MS; atomic_load(&w->out) < w->outs[rank] && unit_now_ms() < end;)
		pause_us(PAUSE_POLL, 1000);
	if (w->dies_in_join == rank)
		return; /* they end with it */
	while (n)
		close(fds[--n]);
}

static void await_death(struct world *w)
{
	struct pollfd p = { .events = POLLIN };
	pid_t pid;

	while (!(pid = atomic_load(&w->dying)))
		pause_us(PAUSE_POLL, 1000);
	p.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (p.fd < 0) /* the parent has it already */
		return;
	poll(&p, 1, AT_ONCE_MS);
	close(p.fd);
}

static void kill_self(struct world *w)
{
	if (w->leaves_child && !_Fork()) { /* no handler closes its copies of all sockets */
		for (int ms = 0; ms < AT_ONCE_MS && !atomic_load(&w->over) && !kill(w->test, 0); ms += 10)
			pause_us(PAUSE_POLL, 10000);
		_exit(0);
	}
	atomic_store(&w->dying, getpid());
	raise(SIGKILL);
}

static int rank_body(int rank, void *arg)
{
	struct world *w = arg;
	struct shunt_rendezvous *rdzv;
	int err = shunt_rendezvous_bind(&w->id, w->member[rank], &rdzv);

	if (err) {
		barrier(&w->bound, w->nranks);
		return err;
	}
	atomic_store(&w->task[rank], (int)syscall(SYS_gettid));
	barrier(&w->bound, w->nranks);
	pause_us(PAUSE_LATE, (unsigned)w->delay_ms[rank] * 1000);
	if (w->guests[rank])
		await_guests(w, rank);
	if (w->buries[rank])
		await_death(w);
	if (w->drops_uid >> rank & 1) {
		if (setresuid(65534, 65534, 65534))
			return -errno;
		child_end_with(w->test);
	}
	if (w->dies_in_join == rank)
		kill_self(w);
	if (w->leaves == rank) {
		shunt_rendezvous_destroy(rdzv);
		barrier(&w->finished, w->nranks);
		return 0;
	}
	err = shunt_rendezvous_join(
	    rdzv, w->nmembers, w->says_rank[rank], w->says_nranks[rank], &w->cancel[rank], &w->missing[rank]);
	atomic_fetch_add(&w->out, 1);
	for (int round = 0; !err && round < w->rounds; round++) {
		if (w->dies_in_gather == rank && round == 1)
			kill_self(w);
		err = gather_numbers(w, rdzv, rank, round);
		if (!err)
			err = gather_memfds(w, rdzv, rank);
	}
	if (err)
		snprintf(w->said[rank], sizeof(w->said[rank]), "%s", shunt_rendezvous_why(rdzv, err));
	/* Nobody leaves before all are done: a peer that looks later must find the same members. */
	if (w->dies_in_join < 0 && w->dies_in_gather < 0)
		barrier(&w->finished, w->nranks);
	shunt_rendezvous_destroy(rdzv);
	return err;
}

static void all_join(unit_run *run)
{
	for (int n = 1; n <= 8; n++) {
		struct world *w = world_create(n);
		int before = entries("/proc/self/fd");

		w->delay_ms[n / 2] = 30;
		run(n, rank_body, w, errs);
		for (int r = 0; r < n; r++) {
			assert_int_equal(errs[r], 0);
			assert_int_equal(w->missing[r], -1);
		}
		assert_int_equal(entries("/proc/self/fd"), before);
	}
}

TEST_CALL(test_rendezvous_threads_gather_numbers_and_memfds, all_join(unit_run_threads))
TEST_CALL(test_rendezvous_processes_gather_numbers_and_memfds, all_join(unit_run_processes))

TEST(test_rendezvous_missing_member_is_enoent_on_all)
{
	for (int processes = 0; processes < 2; processes++) {
		struct world *w = world_create(3);

		/* A fourth rank, which has no socket; members are 3, 10, 17 and (missing) 0. */
		for (int r = 0; r < 3; r++)
			w->says_nranks[r] = 4;
		w->delay_ms[1] = 100;
		(processes ? unit_run_processes : unit_run_threads)(3, rank_body, w, errs);
		for (int r = 0; r < 3; r++) {
			assert_int_equal(errs[r], -ENOENT);
			assert_int_equal(w->missing[r], 0);
		}
	}
}

/* As programs do that begin as root. When each does so is its own matter. */
TEST(test_rendezvous_members_that_become_another_user_are_the_same_members)
{
	static const struct {
		unsigned drops_uid;
		bool rdzv;
	} cases[] = { { 7, true }, { 1, true },
		{ 4, false } }; /* rank 0 is the root: it takes in who is what it was, or is, but nobody waits */

	if (geteuid())
		skip();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct world *w = world_create(3);

		w->drops_uid = cases[i].drops_uid;
		unit_run_processes(3, rank_body, w, errs);
		for (int r = 0; r < 3; r++)
			assert_int_equal(!errs[r], cases[i].rdzv);
	}
}

TEST(test_rendezvous_many_slots_are_probed)
{
	struct world *w = world_create(4);

	w->nmembers = 4096;
	for (int r = 0; r < 4; r++)
		w->member[r] = 4095 - r * 1000;
	unit_run_threads(4, rank_body, w, errs);
	for (int r = 0; r < 4; r++)
		assert_int_equal(errs[r], 0);
}

TEST(test_rendezvous_more_members_than_ranks_is_einval)
{
	struct world *w = world_create(3);

	for (int r = 0; r < 3; r++) {
		w->says_nranks[r] = 2;
		w->says_rank[r] = r % 2;
	}
	unit_run_threads(3, rank_body, w, errs);
	for (int r = 0; r < 3; r++)
		assert_int_equal(errs[r], -EINVAL);
}

TEST(test_rendezvous_colliding_ranks_fail_on_all)
{
	struct world *w = world_create(4);

	w->says_rank[2] = 1;
	unit_run_threads(4, rank_body, w, errs);
	for (int r = 0; r < 4; r++)
		assert_true(errs[r] == -EINVAL || errs[r] == -EOWNERDEAD || errs[r] == -ENOENT);
	assert_int_equal(errs[0], -EINVAL); /* the root, member 3 */
}

TEST(test_rendezvous_member_bound_twice_is_eaddrinuse)
{
	struct shunt_id id = { { 1 } };
	struct shunt_rendezvous *a, *b;

	shunt_random(&id, sizeof(id));
	assert_int_equal(shunt_rendezvous_bind(&id, 5, &a), 0);
	assert_int_equal(shunt_rendezvous_bind(&id, 5, &b), -EADDRINUSE);
	assert_int_equal(shunt_rendezvous_bind(&id, 6, &b), 0);
	shunt_rendezvous_destroy(a);
	assert_int_equal(shunt_rendezvous_bind(&id, 5, &a), 0);
	shunt_rendezvous_destroy(a);
	shunt_rendezvous_destroy(b);
	shunt_rendezvous_destroy(NULL);
}

TEST(test_rendezvous_wrong_id_finds_nobody)
{
	struct shunt_id id, other;
	struct shunt_rendezvous *a, *b;
	int missing;

	shunt_random(&id, sizeof(id));
	other = id;
	other.b[15] ^= 1;
	assert_int_equal(shunt_rendezvous_bind(&id, 0, &a), 0);
	assert_int_equal(shunt_rendezvous_bind(&other, 1, &b), 0);
	assert_int_equal(shunt_rendezvous_join(b, 2, 1, 2, NULL, &missing), -ENOENT);
	assert_int_equal(missing, 0);
	shunt_rendezvous_destroy(a);
	shunt_rendezvous_destroy(b);
}

/* All ranks but the dead one. */
static void assert_all_name(const struct world *w, int dead, int as)
{
	char name[32];

	snprintf(name, sizeof(name), "rank %d", as);
	for (int r = 0; r < w->nranks; r++) {
		if (r != dead && !strstr(w->said[r], name))
			print_error("rank %d names not %s: %s\n", r, name, w->said[r]);
		assert_true(r == dead || strstr(w->said[r], name));
	}
}

/* The dead one's peers: whichever member it has (root or not), before it joins and between two rounds. */
static void dead_peer_ends_join_and_gather(bool leaves_child)
{
	for (int dead = 0; dead < 4; dead++) {
		for (int in_gather = 0; in_gather < 2; in_gather++) {
			struct world *w = world_create(4);
			int64_t start = unit_now_ms();

			if (in_gather)
				w->dies_in_gather = dead;
			else
				w->dies_in_join = dead;
			w->leaves_child = leaves_child;
			w->guests[dead] = in_gather ? 0 : 3;
			unit_run_processes(4, rank_body, w, errs);
			atomic_store(&w->over, 1);
			for (int r = 0; r < 4; r++)
				assert_int_equal(errs[r], r == dead ? -1000 - SIGKILL : -EOWNERDEAD);
			assert_true(unit_now_ms() - start < AT_ONCE_MS);
			assert_all_name(w, dead, in_gather ? dead : w->member[dead]);
		}
	}
}

TEST_CALL(test_rendezvous_dead_peer_ends_join_and_gather, dead_peer_ends_join_and_gather(false))

/* Its sockets stay open then. */
TEST_CALL(test_rendezvous_dead_peer_whose_child_lives_ends_join_and_gather, dead_peer_ends_join_and_gather(true))

/* All see its socket, and nobody answers there. */
TEST(test_rendezvous_peer_that_is_long_dead_ends_join_though_its_child_lives)
{
	for (int dead = 0; dead < 3; dead++) {
		struct world *w = world_create(3);
		int64_t start = unit_now_ms();

		w->dies_in_join = dead;
		w->leaves_child = true;
		for (int r = 0; r < 3; r++)
			w->buries[r] = r != dead;
		unit_run_processes(3, rank_body, w, errs);
		atomic_store(&w->over, 1);
		for (int r = 0; r < 3; r++)
			assert_int_equal(errs[r], r == dead ? -1000 - SIGKILL : -EOWNERDEAD);
		assert_true(unit_now_ms() - start < AT_ONCE_MS);
	}
}

TEST(test_rendezvous_member_that_leaves_ends_join)
{
	for (int leaver = 0; leaver < 3; leaver++) {
		struct world *w = world_create(3);

		w->leaves = leaver;
		w->guests[leaver] = 2;
		unit_run_threads(3, rank_body, w, errs);
		for (int r = 0; r < 3; r++)
			assert_int_equal(errs[r], r == leaver ? 0 : -EOWNERDEAD);
	}
}

/* A late rank that finds a member dead must not leave those waiting who counted it as alive. */
TEST(test_rendezvous_late_rank_tells_those_who_wait)
{
	struct world *w = world_create(3);

	w->dies_in_join = 2;
	w->guests[2] = 1;
	w->buries[0] = true; /* member 3: the root */
	unit_run_processes(3, rank_body, w, errs);
	assert_int_equal(errs[0], -ENOENT);
	assert_int_equal(w->missing[0], 0); /* the lowest that is not there: member 0 was never used */
	assert_int_equal(errs[1], -EOWNERDEAD);
}

TEST(test_rendezvous_cancel_ends_join_for_all)
{
	for (int canceled = 0; canceled < 2; canceled++) {
		struct world *w = world_create(3);
		int64_t start = unit_now_ms();

		w->guests[2] = w->outs[2] = 2; /* meanwhile the others wait: rank 0 is the root */
		w->cancels[2] = canceled;
		unit_run_threads(3, rank_body, w, errs);
		for (int r = 0; r < 2; r++)
			assert_int_equal(errs[r], r == canceled ? -ECANCELED : -EOWNERDEAD);
		assert_int_equal(errs[2], -ENOENT);
		assert_true(unit_now_ms() - start < AT_ONCE_MS);
	}
}

struct pair {
	struct shunt_rendezvous *rdzv[2];
	atomic_int cancel;
	int timeout_ms, errs[2];
	size_t bytes[2];
	bool uses_fds[2], absent[2];
};

static void *cancel_later(void *arg)
{
	bool waits = until_all_threads_wait();

	atomic_store((atomic_int *)arg, 1);
	return waits ? NULL : arg;
}

static int join_pair(int rank, void *arg)
{
	return shunt_rendezvous_join(((struct pair *)arg)->rdzv[rank], 2, rank, 2, NULL, NULL);
}

static int gather_pair(int rank, void *arg)
{
	struct pair *p = arg;
	struct shunt_ranks ranks = { p->rdzv[rank], rank, 2, p->timeout_ms, &p->cancel };
	int fds[2], err;
	void *all;

	if (p->absent[rank])
		return 0;
	all = calloc(2, p->bytes[rank] + 1);
	err = shunt_rendezvous_allgather(&ranks, all, p->bytes[rank], all, -1, p->uses_fds[rank] ? fds : NULL);
	free(all);
	return err;
}

static void pair_init(struct pair *p)
{
	struct shunt_id id;
	int errs[2];

	*p = (struct pair){ .timeout_ms = TIMEOUT_MS };
	shunt_random(&id, sizeof(id));
	for (int r = 0; r < 2; r++)
		assert_int_equal(shunt_rendezvous_bind(&id, r, &p->rdzv[r]), 0);
	unit_run_threads(2, join_pair, p, errs);
	assert_int_equal(errs[0], 0);
	assert_int_equal(errs[1], 0);
}

static void pair_finish(struct pair *p)
{
	shunt_rendezvous_destroy(p->rdzv[0]);
	shunt_rendezvous_destroy(p->rdzv[1]);
}

TEST(test_rendezvous_gather_that_differs_is_einval_on_all)
{
	for (int i = 0; i < 2; i++) {
		struct pair p;
		int errs[2];

		pair_init(&p);
		p.bytes[0] = 1000;
		p.bytes[1] = i ? 1000 : 1001;
		p.uses_fds[0] = i;
		unit_run_threads(2, gather_pair, &p, errs);
		assert_int_equal(errs[0], -EINVAL);
		assert_int_equal(errs[1], -EINVAL);
		/* Sticky. */
		assert_int_equal(gather_pair(0, &p), -EINVAL);
		pair_finish(&p);
	}
}

TEST(test_rendezvous_gather_without_memory_ends_on_all)
{
	for (int lacking = 0; lacking < 2; lacking++) {
		struct pair p;
		int errs[2];

		pair_init(&p);
		p.bytes[1 - lacking] = 1000;
		p.uses_fds[1 - lacking] = true;
		unit_run_threads(2, gather_pair, &p, errs);
		assert_int_equal(errs[0], -ENOMEM);
		assert_int_equal(errs[1], -ENOMEM);
		pair_finish(&p);
	}
}

TEST(test_rendezvous_gather_of_megabytes_and_of_nothing)
{
	struct pair p;
	int errs[2];

	pair_init(&p);
	p.bytes[0] = p.bytes[1] = 8 << 20;
	unit_run_threads(2, gather_pair, &p, errs);
	assert_int_equal(errs[0] | errs[1], 0);
	p.bytes[0] = p.bytes[1] = 0;
	p.uses_fds[0] = p.uses_fds[1] = true;
	unit_run_threads(2, gather_pair, &p, errs);
	assert_int_equal(errs[0] | errs[1], 0);
	p.bytes[0] = p.bytes[1] = SHUNT_RENDEZVOUS_MAX_BYTES / 2 + 1;
	unit_run_threads(2, gather_pair, &p, errs);
	assert_int_equal(errs[0], -EINVAL);
	assert_int_equal(errs[1], -EINVAL);
	pair_finish(&p);
}

TEST(test_rendezvous_gather_times_out_or_is_cancelled)
{
	struct shunt_config *config = (struct shunt_config *)shunt_config();
	int64_t setup_timeout = config->setup_timeout;

	config->setup_timeout = 0; /* without it a round's own limit still ends the wait for a silent root */
	for (int absent = 0; absent < 2; absent++) {
		for (int cancel = 0; cancel < 2; cancel++) {
			int64_t start = unit_now_ms();
			void *missed = NULL;
			pthread_t thread;
			struct pair p;
			char says[80];
			int errs[2];

			pair_init(&p);
			p.absent[absent] = true;
			p.timeout_ms = cancel ? 0 : 200;
			p.bytes[0] = p.bytes[1] = 4;
			if (cancel)
				assert_int_equal(pthread_create(&thread, NULL, cancel_later, &p.cancel), 0);
			unit_run_threads(2, gather_pair, &p, errs);
			if (cancel)
				pthread_join(thread, &missed);
			assert_null(missed);
			assert_int_equal(errs[!absent], cancel ? -ECANCELED : -ETIMEDOUT);
			assert_true(unit_now_ms() - start < AT_ONCE_MS);
			if (!cancel) { /* the rank is named, root or not */
				snprintf(says, sizeof(says), "rank %d%s says nothing", absent,
				    absent ? "" : ", to which all ranks give their parts,");
				assert_non_null(strstr(shunt_rendezvous_why(p.rdzv[!absent], -ETIMEDOUT), says));
			}
			/* The other comes late and learns it at once. */
			p.absent[absent] = false;
			p.timeout_ms = TIMEOUT_MS;
			atomic_store(&p.cancel, 0);
			start = unit_now_ms();
			assert_int_equal(gather_pair(absent, &p), absent == 0 || cancel ? -EOWNERDEAD : -ETIMEDOUT);
			assert_true(unit_now_ms() - start < AT_ONCE_MS);
			pair_finish(&p);
		}
	}
	config->setup_timeout = setup_timeout;
}

/* Rank 1 gives no part. The root gives up soon, and tells rank 2, which has a minute, who is missing. */
static int gather_without_one(int rank, void *arg)
{
	struct shunt_rendezvous *const *rdzv = arg;
	struct shunt_ranks ranks = { rdzv[rank], rank, 3, rank ? 60000 : 100, NULL };
	int all[3];

	return rank == 1 ? 0 : shunt_rendezvous_allgather(&ranks, &rank, sizeof(rank), all, -1, NULL);
}

static int join_three(int rank, void *arg)
{
	return shunt_rendezvous_join(((struct shunt_rendezvous **)arg)[rank], 3, rank, 3, NULL, NULL);
}

TEST(test_rendezvous_gather_names_who_is_missing_to_all)
{
	struct shunt_rendezvous *rdzv[3];
	struct shunt_id id;
	int errs[3];

	shunt_random(&id, sizeof(id));
	for (int r = 0; r < 3; r++)
		assert_int_equal(shunt_rendezvous_bind(&id, r, &rdzv[r]), 0);
	unit_run_threads(3, join_three, rdzv, errs);
	assert_int_equal(errs[0] | errs[1] | errs[2], 0);
	unit_run_threads(3, gather_without_one, rdzv, errs);
	for (int r = 0; r < 3; r += 2) {
		assert_int_equal(errs[r], -ETIMEDOUT);
		assert_string_equal(shunt_rendezvous_why(rdzv[r], -ETIMEDOUT), "rank 1 says nothing: is it stopped?");
	}
	for (int r = 0; r < 3; r++)
		shunt_rendezvous_destroy(rdzv[r]);
}

/* Somebody of our own user who does not know the id, but found the sockets: connects, and sends rubbish or nothing. */
TEST(test_rendezvous_strangers_do_not_disturb)
{
	struct shunt_id id;
	struct pair p = { 0 };
	int fds[8], n = 0, errs[2];
	char rubbish[4096];

	shunt_random(&id, sizeof(id));
	shunt_random(rubbish, sizeof(rubbish));
	for (int r = 0; r < 2; r++)
		assert_int_equal(shunt_rendezvous_bind(&id, r, &p.rdzv[r]), 0);
	for (; n < 8; n++) {
		fds[n] = rendezvous_call(&id, n % 2);
		assert_true(fds[n] >= 0);
		if (n / 2 % 3 != 2)
			(void)!send(fds[n], rubbish, n / 2 % 3 ? 20 : sizeof(rubbish), MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	/* And many that come and go. */
	for (int i = 0; i < 160; i++) {
		int more = rendezvous_call(&id, i % 2);

		if (more >= 0)
			close(more);
	}
	unit_run_threads(2, join_pair, &p, errs);
	assert_int_equal(errs[0], 0);
	assert_int_equal(errs[1], 0);
	p.bytes[0] = p.bytes[1] = 4;
	p.timeout_ms = TIMEOUT_MS;
	unit_run_threads(2, gather_pair, &p, errs);
	assert_int_equal(errs[0] | errs[1], 0);
	while (n)
		close(fds[--n]);
	pair_finish(&p);
}

/* Silent ones of our own user, more than the root has places for. A member that has to go for them comes again. */
TEST(test_rendezvous_crowd_only_delays)
{
	struct shunt_id id;
	struct pair p = { 0 };
	int fds[300], errs[2];

	shunt_random(&id, sizeof(id));
	for (int r = 0; r < 2; r++)
		assert_int_equal(shunt_rendezvous_bind(&id, r, &p.rdzv[r]), 0);
	for (int i = 0; i < 300; i++) {
		fds[i] = rendezvous_call(&id, 0);
		assert_true(fds[i] >= 0);
		if (i == 150) /* half of them while nobody has called join: none is a member */
			for (int k = 0; k < 5; k++)
				assert_false(shunt_rendezvous_answer(p.rdzv[0]));
	}
	unit_run_threads(2, join_pair, &p, errs);
	assert_int_equal(errs[0] | errs[1], 0);
	for (int i = 0; i < 300; i++)
		close(fds[i]);
	pair_finish(&p);
}

/* The table tells hosts and members of all ranks, and is the same on all. */
TEST(test_rendezvous_rows_name_host_and_member)
{
	const struct shunt_rendezvous_row *rows[2];
	struct pair p;

	pair_init(&p);
	for (int r = 0; r < 2; r++)
		rows[r] = shunt_rendezvous_rows(p.rdzv[r]);
	assert_memory_equal(rows[0], rows[1], 2 * sizeof(*rows[0]));
	assert_memory_equal(rows[0][0].host, rows[0][1].host, SHUNT_HOST_BYTES);
	for (int r = 0; r < 2; r++) {
		assert_int_equal(rows[0][r].member, r);
		assert_int_equal(rows[0][r].pid, getpid());
	}
	pair_finish(&p);
}

TESTS_BEGIN
{
	setenv("SHUNT_SETUP_TIMEOUT", "2m", 1);
}

/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory on the sim, over real rendezvous: ranks as threads that use one address, as threads that map each
 * other's memory as processes do, and as processes. One rank fails at each step; all must come to the same outcome, and
 * no descriptor and no mapping may be left.
 */
#include "tests/support/unit.h"
#include <arpa/inet.h>
#include "base/os.h"
#include "base/rlimits.h"
#include "device/gpu_ops.h"
#include "tests/support/entries.h"
#include "tests/support/fake_pci.h"
#include "tests/support/pause.h"
#include "transport/rendezvous/star.h"
#include "transport/symm/symm.h"

#define NRANKS 3
#define BYTES 65536
#define TIMEOUT_MS 120000

static const struct shunt_gpu_ops *const sim = &shunt_gpu_sim_ops;

enum kind { ALLOCATED, REGISTERED };
enum how { ONE_ADDRESS, MAPPED, PROCESSES, NHOWS };

/* What the faulty rank does. */
enum fault {
	NONE,
	FAIL_ALLOC,
	FAIL_SECOND_STEP, /* what its caller does with the memory before it agrees */
	FAIL_EXPORT,
	FOREIGN_MEMORY, /* that cannot be passed on */
	OTHER_SIZE,
	OTHER_VALUE,
	FAIL_MAP,
	FAIL_REGISTER, /* of memory of the host */
	FAIL_FILL,
	/* The others' rounds fail, too. */
	NO_MEMORY,
	IS_LATE,
	IS_CANCELLED,
	DIES,
	LATE_IN_FILL,
	CANCELLED_IN_FILL,
	DIES_IN_FILL,
};

/* Of one run; shared with the ranks' processes. */
struct world {
	struct shunt_id id;
	int n, faulty;
	enum how how;
	enum kind kind;
	enum fault fault;
	bool over_tcp;
	struct shunt_netaddr addr;
	atomic_int bound, out, agreed, freed, read;
	atomic_int cancel[NRANKS];
	int err[NRANKS];
	char refusal[NRANKS][144];
	bool wrong[NRANKS], leaks[NRANKS];
};

struct rank {
	struct world *w;
	int rank;
	struct shunt_ranks ranks;
	struct shunt_gpu_mem mem[NRANKS];
	uint64_t at[NRANKS];
	char *own, *block; /* the memory, and what it was allocated as if registered */
};

/* ---- what may leak */

struct usage {
	int fds, maps;
};

static struct usage usage_now(void)
{
	struct usage u = { entries("/proc/self/fd"), 0 };
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		u.maps += strstr(line, "memfd:shunt-") != NULL;
	fclose(maps);
	return u;
}

static bool usage_differs(struct usage before)
{
	struct usage now = usage_now();

	return now.fds != before.fds || now.maps != before.maps;
}

/* ---- faults */

static int no_alloc(int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	return -ENOMEM;
}

static int no_export(
    int device, const void *ptr, size_t bytes, struct shunt_gpu_export *export_p, const char **reason_p)
{
	return -EMFILE;
}

static int map_error = -EMFILE; /* of FAIL_MAP */

static int no_map(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	return map_error;
}

static int no_register(void *host, size_t bytes, void **dev_p)
{
	return -ENOMEM;
}

static int no_borrow(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	return map_error;
}

/* As of a GPU behind PCIe. */
#define PCI "ffff:ff:1f.7"
static int info_on_pci(int device, struct shunt_gpu_info *info_p)
{
	int err = sim->device_info(device, info_p);

	snprintf(info_p->pci, sizeof(info_p->pci), PCI);
	return err;
}

/* These live longer than any rank: the last user of memory calls them. */
static struct shunt_gpu_ops healthy, failing;

static const struct shunt_gpu_ops *ops_of(const struct rank *r)
{
	bool faulty = r->rank == r->w->faulty;

	switch (faulty ? r->w->fault : NONE) {
	case FAIL_ALLOC:
	case FAIL_EXPORT:
	case FAIL_MAP:
	case FAIL_REGISTER:
		return &failing;
	default:
		return &healthy;
	}
}

static void prepare_failing(enum fault fault)
{
	healthy = *sim;
	healthy.device_info = info_on_pci;
	failing = healthy;
	if (fault == FAIL_ALLOC)
		failing.share_alloc = no_alloc;
	if (fault == FAIL_EXPORT)
		failing.share_export = no_export;
	if (fault == FAIL_REGISTER)
		failing.host_register = no_register;
	if (fault == FAIL_MAP) {
		failing.share_map = no_map;
		failing.share_borrow = failing.share_alias = no_borrow;
	}
}

/* ---- ranks */

static void await(atomic_int *count, int n)
{
	int64_t end = unit_now_ms() + AT_ONCE_MS;

	while (atomic_load(count) < n && unit_now_ms() < end)
		pause_us(PAUSE_POLL, 100);
}

static void synchronize(atomic_int *count, int n)
{
	atomic_fetch_add(count, 1);
	await(count, n);
}

static int fill(void *ctx)
{
	struct rank *r = ctx;
	struct world *w = r->w;
	enum fault fault = r->rank == w->faulty ? w->fault : NONE;

	if (fault == FAIL_FILL)
		return -EIO;
	if (fault == LATE_IN_FILL)
		await(&w->out, w->n - 1);
	if (fault == CANCELLED_IN_FILL)
		atomic_store(&w->cancel[r->rank], 1);
	if (fault == DIES_IN_FILL)
		raise(SIGKILL);
	memset(r->own, r->rank + 1, BYTES);
	return 0;
}

static void bring_memory(struct rank *r, struct shunt_symm *symm)
{
	struct world *w = r->w;
	enum fault fault = r->rank == w->faulty ? w->fault : NONE;
	size_t bytes = fault == OTHER_SIZE ? 2 * BYTES : BYTES, at = 4096 + 64 * (size_t)r->rank;
	void *block;

	if (w->kind == ALLOCATED) {
		shunt_symm_alloc(symm, bytes);
		r->own = r->mem[r->rank].ptr;
	} else {
		if (!sim->mem_alloc_shared(r->rank, 4 * BYTES, &block))
			r->block = block;
		r->own = r->block + at;
		shunt_symm_register(symm, fault == FOREIGN_MEMORY ? (char *)r : r->own, bytes);
	}
	if (fault == FAIL_SECOND_STEP)
		shunt_vote_refuse(&symm->vote, "it has only %d hands", 2);
}

static uint64_t process_of(const struct rank *r)
{
	static const uint64_t one = 7;

	return r->w->how == ONE_ADDRESS ? one : r->w->how == MAPPED ? (uint64_t)r->rank + 1 : shunt_process_token();
}

static void agree(struct rank *r)
{
	struct world *w = r->w;
	enum fault fault = r->rank == w->faulty ? w->fault : NONE;
	struct shunt_symm_terms terms[NRANKS];
	struct shunt_symm symm;
	int err;

	shunt_symm_init(&symm,
	    &(struct shunt_symm_config){ .ranks = r->ranks,
	        .gpu = ops_of(r),
	        .device = r->rank,
	        .process = process_of(r),
	        .on_host = w->fault == FAIL_REGISTER,
	        .what = "scratch",
	        .mem = r->mem,
	        .at = w->kind == REGISTERED ? r->at : NULL,
	        .value = { 40, fault == OTHER_VALUE ? 2 : 1 },
	        .differs = { "its first value differs", "its second value differs" },
	        .terms = terms,
	        .fill = fill,
	        .ctx = r });
	bring_memory(r, &symm);
	if (fault == IS_LATE)
		await(&w->out, w->n - 1);
	if (fault == IS_CANCELLED)
		atomic_store(&w->cancel[r->rank], 1);
	if (fault == DIES)
		raise(SIGKILL);
	if (fault == NO_MEMORY) {
		err = shunt_rendezvous_lacks_memory(&r->ranks);
		if (symm.fd >= 0 && w->kind == REGISTERED)
			close(symm.fd);
	} else {
		err = shunt_symm_agree(&symm);
	}
	w->err[r->rank] = err;
	snprintf(w->refusal[r->rank], sizeof(w->refusal[0]), "%s", symm.refusal);
	for (int i = 0; i < w->n && (!err || err == -EOPNOTSUPP); i++)
		w->wrong[r->rank] |= terms[i].value[0] != 40 || (terms[i].bytes != BYTES && i != w->faulty);
	atomic_fetch_add(&w->out, 1);
}

/* All ranks can read what the others' fill has written, also where the owner has let go of its memory. */
static void read_peers(struct rank *r)
{
	struct world *w = r->w;

	synchronize(&w->agreed, w->n);
	if (r->rank == 0) {
		shunt_symm_free(sim, r->mem, w->n);
		if (r->block)
			sim->mem_free(r->block);
		r->block = NULL;
	}
	synchronize(&w->freed, w->n);
	for (int i = 0; i < w->n && r->rank; i++) {
		const char *at = i == r->rank ? r->own : (char *)r->mem[i].ptr + r->at[i];

		w->wrong[r->rank] |= at[0] != i + 1 || at[BYTES - 1] != i + 1;
	}
	synchronize(&w->read, w->n);
}

static int join_tcp(struct rank *r)
{
	struct world *w = r->w;
	struct shunt_star star = { .secret = &w->id,
		.secret_bytes = sizeof(w->id),
		.what = "test",
		.limit = "the test's limit",
		.rank = r->rank,
		.nranks = w->n,
		.timeout_ms = TIMEOUT_MS };
	int err;

	if (r->rank == 0) {
		err = shunt_star_listen(&star, &w->addr, &r->ranks.rendezvous);
		atomic_fetch_add(&w->bound, 1);
		return err ? err : shunt_star_collect(&star, r->ranks.rendezvous);
	}
	await(&w->bound, 1);
	do
		err = shunt_star_call(&star, &w->addr, &r->ranks.rendezvous);
	while (err == -EAGAIN);
	return err;
}

static int join(struct rank *r)
{
	struct world *w = r->w;
	int err;

	if (w->n == 1) /* a child of a larger parent has a rendezvous, but nobody to join */
		return shunt_rendezvous_bind(&w->id, 0, &r->ranks.rendezvous);
	if (w->over_tcp)
		return join_tcp(r);
	err = shunt_rendezvous_bind(&w->id, r->rank, &r->ranks.rendezvous);
	synchronize(&w->bound, w->n);
	return err ? err : shunt_rendezvous_join(r->ranks.rendezvous, w->n, r->rank, w->n, NULL, NULL);
}

static bool is_late(enum fault fault)
{
	return fault == IS_LATE || fault == LATE_IN_FILL;
}

static int rank_body(int rank, void *arg)
{
	struct world *w = arg;
	struct rank r = { .w = w, .rank = rank };
	struct usage before = { 0, 0 };
	int err;

	if (w->how == PROCESSES)
		before = usage_now();
	r.ranks = (struct shunt_ranks){ NULL, rank, w->n, is_late(w->fault) ? 200 : TIMEOUT_MS, &w->cancel[rank] };
	err = join(&r);
	if (!err) {
		agree(&r);
		if (!w->err[rank])
			read_peers(&r);
		shunt_symm_free(sim, r.mem, w->n);
		if (r.block)
			sim->mem_free(r.block);
	}
	shunt_rendezvous_destroy(r.ranks.rendezvous);
	if (w->how == PROCESSES)
		w->leaks[rank] = usage_differs(before);
	return err;
}

/* ---- runs */

static struct world *world_create(enum how how, enum kind kind)
{
	struct world *w = unit_shared(sizeof(*w));

	shunt_random(&w->id, sizeof(w->id));
	w->n = NRANKS;
	w->how = how;
	w->kind = kind;
	w->faulty = -1;
	return w;
}

static bool dies(const struct world *w, int rank)
{
	return rank == w->faulty && (w->fault == DIES || w->fault == DIES_IN_FILL);
}

/* The ranks' outcomes are in w->err and w->refusal. */
static void run(struct world *w)
{
	struct usage before = usage_now();
	int errs[NRANKS];

	prepare_failing(w->fault);
	(w->how == PROCESSES ? unit_run_processes : unit_run_threads)(w->n, rank_body, w, errs);
	for (int r = 0; r < w->n; r++) {
		assert_int_equal(errs[r], dies(w, r) ? -1000 - SIGKILL : 0);
		assert_false(w->wrong[r]);
		assert_false(w->leaks[r]);
	}
	assert_false(usage_differs(before));
}

TEST(test_symm_all_ranks_map_all_memory)
{
	for (int how = 0; how < NHOWS; how++)
		for (int kind = ALLOCATED; kind <= REGISTERED; kind++) {
			struct world *w = world_create(how, kind);

			run(w);
			for (int r = 0; r < w->n; r++)
				assert_int_equal(w->err[r], 0);
		}
}

TEST(test_symm_one_rank_alone_joins_nobody)
{
	static const enum fault faults[] = { NONE, FAIL_ALLOC, FAIL_FILL };

	for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
		struct world *w = world_create(ONE_ADDRESS, ALLOCATED);

		w->n = 1;
		w->faulty = 0;
		w->fault = faults[f];
		run(w);
		assert_int_equal(w->err[0], faults[f] ? -EOPNOTSUPP : 0);
	}
}

/* reason: what follows "rank N: "; %d in it is the lowest other rank. */
static void check_refusal(struct world *w, enum fault fault, const char *reason)
{
	for (w->faulty = 0; w->faulty < NRANKS; w->faulty++) {
		struct world *run_of = world_create(w->how, w->kind);
		char other[256], want[280];
		/* The others differ from rank 0 then. */
		int says = w->faulty == 0 && (fault == OTHER_SIZE || fault == OTHER_VALUE) ? 1 : w->faulty;

		run_of->faulty = w->faulty;
		run_of->fault = fault;
		run(run_of);
		snprintf(other, sizeof(other), reason, w->faulty == 0);
		snprintf(want, sizeof(want), "rank %d: %s", says, other);
		for (int r = 0; r < NRANKS; r++) {
			assert_int_equal(run_of->err[r], -EOPNOTSUPP);
			assert_string_equal(run_of->refusal[r], want);
		}
	}
}

TEST(test_symm_refusal_of_one_rank_is_that_of_all)
{
	struct shunt_error_text no_files = shunt_error_text(-EMFILE);
	char not_mapped[256];
	const struct {
		enum fault fault;
		const char *reason;
		bool not_allocated, not_registered;
	} cases[] = {
		{ FAIL_ALLOC, "65536 bytes of scratch cannot be allocated: Cannot allocate memory", false, true },
		{ FAIL_REGISTER, "65536 bytes of scratch cannot be allocated: Cannot allocate memory", false, true },
		{ FAIL_SECOND_STEP, "it has only 2 hands", false, false },
		{ FAIL_EXPORT, no_files.s, true, false },
		{ FOREIGN_MEMORY, "it is not from ncclMemAlloc", true, false },
		{ OTHER_SIZE, "its scratch has another size than that of rank 0", false, false },
		{ OTHER_VALUE, "its second value differs", false, false },
		{ FAIL_MAP, not_mapped, false, false },
		{ FAIL_FILL, "its scratch cannot be written: Input/output error", false, false },
	};

	snprintf(not_mapped, sizeof(not_mapped), "rank %%d's scratch cannot be mapped: %s", no_files.s);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (int how = 0; how < NHOWS; how++) {
			struct world w = { .how = how };

			for (w.kind = ALLOCATED; w.kind <= REGISTERED; w.kind++)
				if (w.kind == ALLOCATED ? !cases[i].not_allocated : !cases[i].not_registered)
					check_refusal(&w, cases[i].fault, cases[i].reason);
		}
}

TEST(test_symm_names_a_small_bar)
{
	char reason[320];
	struct fake_pci pci;

	snprintf(reason, sizeof(reason),
	    "rank %%d's scratch cannot be mapped: %s; " PCI " has a BAR1 of 256 MiB only: turn on resizable BAR",
	    shunt_error_text(-EIO).s);
	fake_pci_begin(&pci, PCI, 256 << 20);
	map_error = -EIO;
	for (int how = 0; how < NHOWS; how++)
		check_refusal(&(struct world){ .how = how, .kind = ALLOCATED }, FAIL_MAP, reason);
	map_error = -EMFILE;
	fake_pci_end(&pci);
}

/* What the other ranks, and the faulty one itself, may end with. */
static bool is_expected(const struct world *w, int rank)
{
	int err = w->err[rank];

	switch (w->fault) {
	case NO_MEMORY:
		return err == -ENOMEM;
	case IS_LATE:
	case LATE_IN_FILL:
		/* Who gives up first is dead to the others. */
		return err == -ETIMEDOUT || err == -EOWNERDEAD;
	case IS_CANCELLED:
	case CANCELLED_IN_FILL:
		return err == (rank == w->faulty ? -ECANCELED : -EOWNERDEAD);
	default:
		return dies(w, rank) || err == -EOWNERDEAD;
	}
}

TEST(test_symm_round_that_one_rank_ends_fails_on_all)
{
	for (int fault = NO_MEMORY; fault <= DIES_IN_FILL; fault++)
		for (int how = 0; how < NHOWS; how++)
			for (int kind = ALLOCATED; kind <= REGISTERED; kind++)
				for (int faulty = 0; faulty < NRANKS; faulty += NRANKS - 1) {
					struct world *w = world_create(how, kind);

					w->fault = fault;
					w->faulty = faulty;
					if (how == PROCESSES || !dies(w, faulty)) {
						run(w);
						for (int r = 0; r < NRANKS; r++)
							if (!is_expected(w, r))
								fail_msg("fault %d of rank %d: rank %d has %d", fault,
								    faulty, r, w->err[r]);
					}
				}
}

/* A rendezvous over TCP passes no descriptors: its ranks may be on other hosts. */
TEST(test_symm_without_descriptors_only_one_process_maps)
{
	for (int how = ONE_ADDRESS; how <= MAPPED; how++) {
		struct world *w = world_create(how, ALLOCATED);
		struct sockaddr_in *in = (struct sockaddr_in *)&w->addr;

		w->over_tcp = true;
		in->sin_family = AF_INET;
		in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		w->addr.len = sizeof(*in);
		run(w);
		for (int r = 0; r < w->n; r++) {
			assert_int_equal(w->err[r], how == MAPPED ? -EOPNOTSUPP : 0);
			if (how == MAPPED)
				assert_string_equal(
				    w->refusal[r], "rank 0: rank 1's scratch cannot be mapped: Object is remote");
		}
	}
}

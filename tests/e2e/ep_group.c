/* SPDX-License-Identifier: MIT */
/*
 * Expert parallel groups: how they are made, refused, broken and ended. Ranks as processes and threads, on the sim;
 * with SHUNT_NCCL_LIB in front of the fake NCCL; with "hosts2" and the like (ep_ranks.h) over hosts.
 */
#include "tests/e2e/ep_ranks.h"
#include "tests/support/entries.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

static struct {
	_Alignas(64) char fake[FAKE_NCCL_SHARED_BYTES]; /* for the fake NCCL */
	atomic_int made;                                /* test_names_that_are_none, test_refused_on_all_ranks */
	atomic_int begun;                               /* test_abort */
} *shared;

static const struct ep_job job = {
	.experts = 6, .topk = 2, .hidden = 64, .max_tokens = 4, .dtype = 9, .tokens = { 4, 2, 3 }, .seed = 3
};

static int run(enum ranks_how how, int n, rank_fn body)
{
	memset(shared, 0, sizeof(*shared));
	return ep_ranks_run(how, n, 0, body);
}

/*
 * REFUSED_SAYING(call, expected, words): the call gives this error, and the log of this process one line, which has the
 * words.
 */
static int log_fd, stderr_fd;

static bool hear(void)
{
	log_fd = memfd_create("log", MFD_CLOEXEC);
	stderr_fd = dup(STDERR_FILENO);
	return log_fd >= 0 && stderr_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0;
}

static bool heard(const char *words)
{
	char text[1024] = "";
	ssize_t n = pread(log_fd, text, sizeof(text) - 1, 0);
	bool one_line = n > 0 && strchr(text, '\n') == text + n - 1;

	dup2(stderr_fd, STDERR_FILENO);
	close(stderr_fd);
	close(log_fd);
	if (!one_line || !strstr(text, words))
		fprintf(stderr, "\"%s\" is not one line with \"%s\"\n", text, words);
	return one_line && strstr(text, words);
}

#define REFUSED_SAYING(call, expected, words) \
	do { \
		CHECK(hear()); \
		int refused = (call); \
		CHECK(heard(words)); \
		CHECK(refused == (expected)); \
	} while (0)

/* A dispatch and a combine, checked. */
static int use(struct rank *r, struct shunt_ep *group)
{
	struct ep_job mine = job;
	struct ep_run call;

	mine.nranks = r->nranks;
	ep_run_prepare(&call, &mine, r);
	CHECK(ep_run_fill_rows(&call, r) == 0);
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
	CHECK(shunt_ep_ll_combine(group, &call.combine) == 0);
	CHECK(shunt_ep_barrier(group, r->stream) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(ep_run_check_dispatch(&call, r) == 0 && ep_run_check_combine(&call, r) == 0);
	ep_run_finish(&call);
	return 0;
}

static int make(struct rank *r, int k, uint32_t flags, struct shunt_ep **group_p)
{
	struct ep_job mine = job;

	mine.nranks = r->nranks;
	return ep_group_make(r, k, &mine, flags, 0, group_p);
}

RANKS_TEST(test_groups_of_an_id_and_of_a_communicator,
    run(RANKS_PROCESSES, 3, body) + run(RANKS_THREADS, 2, body) + run(RANKS_PROCESSES, 1, body))
{
	struct ep_job mine = job;
	struct shunt_ep_config config = { .size = sizeof(config), .topk = job.topk };
	struct shunt_ep *by_id, *first, *second;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(make(r, 0, 0, &by_id) == 0);
	mine.nranks = r->nranks;
	config.comm = comm;
	config.ll_bytes = ep_job_bytes(&mine, 0);
	CHECK(shunt_ep_create(&config, &first) == 0 && shunt_ep_create(&config, &second) == 0);
	CHECK(first != second && first != by_id);
	CHECK(use(r, first) == 0 && use(r, by_id) == 0 && use(r, second) == 0);
	CHECK(shunt_ep_destroy(first, 0) == 0);
	NCCL(ncclCommDestroy(comm)); /* the groups need it no more */
	CHECK(use(r, second) == 0);
	CHECK(shunt_ep_destroy(second, 0) == 0 && shunt_ep_destroy(by_id, 0) == 0);
	return 0;
}

/* Names of groups that are none, or have ended, or are the parent's. */
RANKS_TEST(test_names_that_are_none, run(RANKS_PROCESSES, 2, body))
{
	struct shunt_ep *group, *next, *none = (struct shunt_ep *)&group;
	char text[200];
	int32_t masks[8];
	pid_t child;
	int status;

	CHECK(shunt_ep_destroy(NULL, 0) == 0);
	snprintf(text, sizeof(text), "group is %p", (void *)none);
	REFUSED_SAYING(shunt_ep_destroy(none, 0), -EINVAL, text);
	REFUSED_SAYING(shunt_ep_error(none, NULL, 0), -EINVAL, text);
	REFUSED_SAYING(shunt_ep_barrier(NULL, NULL), -EINVAL, "ep_barrier: group is ");
	REFUSED_SAYING(shunt_ep_ll_dispatch(none, NULL), -EINVAL, text);
	CHECK(make(r, 0, SHUNT_EP_MASKS, &group) == 0);
	REFUSED_SAYING(shunt_ep_masks(group, NULL, NULL), -EINVAL, "masks is NULL");
	REFUSED_SAYING(shunt_ep_mask(group, 2, 1, NULL), -EINVAL, "rank is 2, which is not between 0 and 1");
	CHECK(shunt_ep_destroy(group, 0) == 0);
	CHECK(make(r, 1, 0, &group) == 0);
	REFUSED_SAYING(shunt_ep_ll_combine(group, NULL), -EINVAL, "ep_ll_combine: call is NULL");
	REFUSED_SAYING(shunt_ep_ll_dispatch(group, NULL), -EINVAL, "ep_ll_dispatch: call is NULL");
	REFUSED_SAYING(shunt_ep_mask(group, 0, 1, NULL), -EINVAL, "without SHUNT_EP_MASKS");
	REFUSED_SAYING(shunt_ep_masks(group, masks, NULL), -EINVAL, "without SHUNT_EP_MASKS");
	REFUSED_SAYING(shunt_ep_masks_clear(group, NULL), -EINVAL, "without SHUNT_EP_MASKS");
	child = fork();
	if (!child) {
		int bad = shunt_ep_error(group, NULL, 0) != -EINVAL || shunt_ep_destroy(group, 0) != -EINVAL;

		_exit(bad);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(use(r, group) == 0);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	snprintf(text, sizeof(text), "group is %p", (void *)group);
	REFUSED_SAYING(shunt_ep_error(group, NULL, 0), -EINVAL, text);
	REFUSED_SAYING(shunt_ep_destroy(group, 1), -EINVAL, text);
	CHECK(make(r, 2, 0, &next) == 0 && next != group);
	ranks_barrier(r, &shared->made); /* as in body_abort() */
	CHECK(shunt_ep_destroy(next, 1) == 0);
	return 0;
}

/* Each of these on one rank, or on all. All ranks get an error, none waits for ever. */
RANKS_TEST(test_refused_on_all_ranks, run(RANKS_PROCESSES, 2, body))
{
	struct ep_job mine = job;
	struct shunt_ep_config good = {
		.size = sizeof(good), .nranks = r->nranks, .rank = r->rank, .device = -1, .topk = job.topk
	};
	bool one = r->rank == 1;
	struct shunt_ep *group = (struct shunt_ep *)16;
	struct shunt_ep_config bad;
	int k = 0;

	mine.nranks = r->nranks;
	good.ll_bytes = ep_job_bytes(&mine, 0);
#define REFUSED(change, expected) \
	do { \
		bad = good; \
		bad.id = ep_id(r, k++); \
		change; \
		CHECK(shunt_ep_create(&bad, &group) == (expected) && !group); \
	} while (0)
	REFUSED(bad.ll_bytes += one ? 4096 : 0, -EINVAL);
	REFUSED(bad.normal_bytes += one ? 1 << 20 : 0, -EINVAL);
	REFUSED(bad.flags = one ? SHUNT_EP_MASKS : 0, -EINVAL);
	REFUSED(bad.topk = one ? 3 : 2, -EINVAL);
	REFUSED(bad.flags = one ? 64 : 0, one ? -EINVAL : -EOPNOTSUPP);
	REFUSED(bad.topk = one ? 17 : 2, one ? -EINVAL : -EOPNOTSUPP);
	REFUSED(bad.nranks += one, -EINVAL);
	REFUSED(bad.nranks = 65, -EOPNOTSUPP);
	REFUSED(bad.rank = bad.nranks, -EINVAL);
	REFUSED(bad.id = NULL, -EINVAL);
	bad = good;
	bad.comm = &bad;
	REFUSED_SAYING(shunt_ep_create(&bad, &group), -EINVAL, "comm is no communicator");
	CHECK(!group);
	bad.size = 16;
	REFUSED_SAYING(shunt_ep_create(&bad, &group), -EINVAL, "size of config is 16");
	REFUSED_SAYING(shunt_ep_create(NULL, &group), -EINVAL, "config is NULL");
	REFUSED_SAYING(shunt_ep_create(&good, NULL), -EINVAL, "group_p is NULL");
	REFUSED_SAYING(shunt_ep_id(NULL), -EINVAL, "host is NULL");
	REFUSED_SAYING(shunt_ep_bytes(NULL, NULL, NULL), -EINVAL, "shape is NULL");
	REFUSED_SAYING(
	    shunt_ep_bytes(&(struct shunt_ep_shape){ .size = 4 }, NULL, NULL), -EINVAL, "size of shape is 4");
	REFUSED_SAYING(
	    shunt_ep_bytes(&(struct shunt_ep_shape){ .size = sizeof(struct shunt_ep_shape), .nranks = 9 }, NULL, NULL),
	    -EINVAL, "nranks is 9");
	/* The id's server, which tells the others, ends with the process that made the id. */
	ranks_barrier(r, &shared->made);
	return 0;
}

/* SHUNT_EP_SUM is read once in a process: one rank has another. */
static void prepare_other_sum(int rank)
{
	if (rank == 1)
		setenv("SHUNT_EP_SUM", "rank", 1);
}

static int body_other_sum(struct rank *r)
{
	struct shunt_ep *group;

	if (r->rank)
		CHECK(make(r, 0, 0, &group) == -EINVAL);
	else
		REFUSED_SAYING(make(r, 0, 0, &group), -EINVAL, "SHUNT_EP_SUM are not those of rank 0");
	return 0;
}

TEST(test_sums_that_differ)
{
	struct ranks ranks = { .n = 2, .raw = 1, .body = body_other_sum, .prepare = prepare_other_sum };

	if (ep_hosts)
		skip(); /* another preparation */
	assert_int_equal(ep_ranks_run_as(&ranks), 0);
}

/* Calls that are wrong: refused at once, and the group goes on. */
RANKS_TEST(test_bad_calls, run(RANKS_PROCESSES, 2, body))
{
	struct ep_job mine = job;
	struct shunt_ep *group;
	struct ep_run run;

	mine.nranks = r->nranks;
	CHECK(make(r, 0, 0, &group) == 0);
	ep_run_prepare(&run, &mine, r);
#define BAD(kind, change, expected, words) \
	do { \
		struct shunt_ep_ll_##kind bad = run.kind; \
		change; \
		REFUSED_SAYING(shunt_ep_ll_##kind(group, &bad), expected, "shunt_ep_ll_" #kind " "); \
		REFUSED_SAYING(shunt_ep_ll_##kind(group, &bad), expected, words); \
	} while (0)
	BAD(dispatch, bad.tokens = bad.max_tokens + 1, -EINVAL, "tokens is 5");
	BAD(dispatch, bad.tokens = -1, -EINVAL, "tokens is -1");
	BAD(dispatch, bad.hidden = 12, -EINVAL, "hidden is 12");
	BAD(dispatch, bad.hidden = 0, -EINVAL, "hidden is 0");
	BAD(dispatch, bad.topk = 3, -EINVAL, "topk is 3"); /* the group has memory for 2 */
	BAD(dispatch, bad.topk = 0, -EINVAL, "topk is 0");
	BAD(dispatch, bad.experts = 7, -EINVAL, "experts is 7");
	BAD(dispatch, bad.experts = 32768, -EINVAL, "experts is 32768");
	BAD(dispatch, bad.experts = -2, -EINVAL, "experts is -2");
	BAD(dispatch, bad.form = 4, -EINVAL, "form is 4");
	BAD(dispatch, bad.form = SHUNT_EP_FP8, -EINVAL, "hidden is 64"); /* 64 elements */
	BAD(dispatch, bad.phases = 0, -EINVAL, "phases is 0");
	BAD(dispatch, bad.phases = 4, -EINVAL, "phases is 4");
	BAD(dispatch, bad.max_tokens = 5000, -EINVAL, "max_tokens is 5000");
	BAD(dispatch, bad.tokens = bad.max_tokens = 8192, -EINVAL, "max_tokens is 8192");
	BAD(dispatch, bad.max_tokens = 64, -ENOSPC, "calls of 64 tokens");
	BAD(dispatch, bad.recv_x = NULL, -EINVAL, "recv_x is NULL");
	BAD(dispatch, bad.routing = NULL, -EINVAL, "routing is NULL");
	REFUSED_SAYING(
	    shunt_ep_ll_dispatch(group, &(struct shunt_ep_ll_dispatch){ .size = 8 }), -EINVAL, "size of call is 8");
	BAD(dispatch, bad.blocks = 65, -EINVAL, "blocks is 65");
	BAD(combine, bad.blocks = -1, -EINVAL, "blocks is -1");
	BAD(dispatch, bad.phases = SHUNT_EP_RECEIVE, -EINVAL, "no call with this recv_x"); /* nothing was sent */
	BAD(combine, bad.dtype = 7, -EINVAL, "dtype is 7");
	BAD(combine, bad.hidden = 8192, -ENOSPC, "of 8192 elements");
	BAD(combine, bad.ranges = NULL, -EINVAL, "ranges is NULL");
	BAD(combine, bad.phases = SHUNT_EP_RECEIVE, -EINVAL, "no call with this out");
	/* A caller that does not know the last field. */
	run.dispatch.size = offsetof(struct shunt_ep_ll_dispatch, blocks);
	run.dispatch.blocks = 65;
	CHECK(shunt_ep_ll_dispatch(group, &run.dispatch) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	ep_run_finish(&run);
	CHECK(shunt_ep_error(group, NULL, 0) == 0 && use(r, group) == 0);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/* Mappings of memory that the sim's devices share. */
static int mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	if (f)
		fclose(f);
	return n;
}

RANKS_TEST(test_lives_leave_nothing, run(RANKS_PROCESSES, 2, body))
{
	enum { LIVES = 200, WARM = 20 };
	struct ep_job mine = job;
	struct shunt_ep_config config = { .size = sizeof(config), .topk = job.topk };
	struct shunt_ep *group;
	int before = 0, memory = 0;

	NCCL(ncclCommInitRank((ncclComm_t *)&config.comm, r->nranks, r->id, r->rank));
	mine.nranks = r->nranks;
	config.ll_bytes = ep_job_bytes(&mine, 0);
	for (int i = 0; i < LIVES; i++) {
		CHECK(shunt_ep_create(&config, &group) == 0);
		if (i % 20 == 0)
			CHECK(use(r, group) == 0);
		/* Over hosts an abort may reach a rank that is still in create. */
		CHECK(shunt_ep_destroy(group, ep_hosts ? 0 : i % 2) == 0);
		if (i == WARM) {
			before = entries("/proc/self/fd");
			memory = mapped();
		}
	}
	/* Other threads may be about to close some. What each second life left would be more than this. */
	CHECK(entries("/proc/self/fd") < before + (LIVES - WARM) / 4);
	CHECK(mapped() < memory + (LIVES - WARM) / 4);
	NCCL(ncclCommDestroy((ncclComm_t)config.comm));
	return 0;
}

/* An abort on one rank ends its calls, and not the other's process. */
static int body_abort(struct rank *r)
{
	struct ep_job mine = job;
	struct shunt_ep *group;
	struct ep_run call;
	char text[200];

	mine.nranks = r->nranks;
	CHECK(make(r, 0, 0, &group) == 0);
	ep_run_prepare(&call, &mine, r);
	if (r->rank == 0) {
		CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0); /* rank 1 never comes */
		CHECK(until_begun(getpid(), 1));
	}
	ranks_barrier(r, &shared->begun); /* over hosts an abort would end a create or a call of the other at once */
	CHECK(shunt_ep_destroy(group, 1) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_ep_error(group, text, sizeof(text)) == -EINVAL);
	ep_run_finish(&call);
	return 0;
}

TEST_CALL(test_abort, assert_int_equal(run(RANKS_PROCESSES, 2, body_abort), 0))

int main(int argc, char **argv)
{
	char address[32];

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(address, sizeof(address), "%p", (void *)shared->fake);
	setenv("FAKE_NCCL_SHARED", address, 1);
	return ep_main(argc, argv, false);
}

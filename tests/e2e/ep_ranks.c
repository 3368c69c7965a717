/* SPDX-License-Identifier: MIT */
#include "tests/e2e/ep_ranks.h"
#include "base/coll.h"
#include "kernels/ep.h"
#include "tests/support/own.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

static char folder[64];       /* of verbs */
static struct ranks_ids *ids; /* shared by the ranks of a run */

/* False: there is no place for what the ranks share. *argv_p: without the hosts. */
static bool take_hosts(int *argc_p, char ***argv_p)
{
	const char *how = *argc_p > 1 ? (*argv_p)[1] : "";
	char fabric[96];

	ids = mmap(NULL, sizeof(*ids), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ids == MAP_FAILED || (strncmp(how, "hosts", 5) && strncmp(how, "verbs", 5)))
		return ids != MAP_FAILED;
	ep_hosts = atoi(how + 5);
	--*argc_p;
	++*argv_p;
	setenv("SHUNT_NET", *how == 'v' ? "verbs" : "tcp", 1);
	if (*how == 'h')
		return true;
	if (!own_folder(folder))
		return false;
	snprintf(fabric, sizeof(fabric), "%s/fabric", folder);
	setenv("FAKE_IBV_FABRIC", fabric, 1);
	setenv("FAKE_IBV_DEVICES", "mlx0 link=roce", 1);
	return true;
}

/* In the rank's process, before the library is touched. */
static void enter_host(int rank)
{
	char name[16];

	snprintf(name, sizeof(name), "host%d", rank % ep_hosts);
	setenv("SHUNT_HOSTID", name, 1);
	setenv("SHUNT_MULTI_RANK_GPU", "1", 1); /* more ranks than the sim has devices */
}

/* Then a call of CUDA by one thread may wait for another thread's kernel, which waits for a call of the first one. */
static bool gpus_are_shared(void)
{
	const char *device = getenv("SHUNT_DEVICE"), *shared = getenv("SHUNT_MULTI_RANK_GPU");

	return shared && strcmp(shared, "0") && device && strcmp(device, "sim");
}

int ep_ranks_run_as(struct ranks *ranks)
{
	memset(ids, 0, sizeof(*ids));
	if (ep_hosts)
		ranks->prepare = enter_host;
	if (ep_hosts || gpus_are_shared())
		ranks->how = RANKS_PROCESSES;
	return ranks_run_as(ranks);
}

int ep_ranks_run(enum ranks_how how, int n, unsigned dies, rank_fn body)
{
	return ep_ranks_run_as(&(struct ranks){ .how = how, .n = n, .raw = 1, .body = body, .dies = dies });
}

int ep_main(int argc, char **argv, bool alone)
{
	int failed;

	own_environment();
	if (!take_hosts(&argc, &argv))
		return 1;
	setenv("SHUNT_NCCL_LIB", "none", alone);
	setenv("SHUNT_DEVICE", "sim", 0);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	else
		cmocka_set_skip_filter("test_long_*");
	failed = tests_run(NULL, NULL);
	if (*folder)
		own_folder_end(folder);
	return failed;
}

const void *ep_id(const struct rank *r, int k)
{
	for (; r->rank == 0 && ids->n <= k; ids->n++)
		if (shunt_ep_id(&ids->id[ids->n]))
			abort();
	while (ids->n <= k)
		pause_us(PAUSE_POLL, 200);
	return &ids->id[k];
}

uint64_t ep_job_bytes(const struct ep_job *j, uint32_t flags)
{
	int hosts = ep_hosts_of(j);
	struct shunt_ep_shape shape = { .size = sizeof(shape),
		.nranks = hosts > 1 ? (j->nranks + hosts - 1) / hosts * hosts : j->nranks,
		.hosts = hosts,
		.topk = j->topk,
		.hidden = j->hidden,
		.element_bytes = 2,
		.ll_tokens = j->max_tokens,
		.flags = flags };
	uint64_t bytes = 0;

	return shunt_ep_bytes(&shape, NULL, &bytes) ? 0 : bytes;
}

uint64_t ep_normal_bytes(const struct ep_normal_job *j, int blocks)
{
	uint64_t widest = (uint64_t)j->job.hidden * shunt_dtype_bytes[j->job.dtype];
	uint64_t slot, notify = SHUNT_EP_NOTIFY_BYTES(j->job.nranks), calls;

	if ((uint64_t)(j->row_bytes + 4 * j->nscales) > widest)
		widest = (uint64_t)(j->row_bytes + 4 * j->nscales);
	slot = shunt_ep_wire(widest + 32 + 8 * (uint64_t)j->job.topk);
	if (ep_hosts > 1 && j->job.nranks > 1) { /* a part for each rank of the host, two for each other one */
		int hosts = ep_hosts_of(&j->job);
		int local = (j->job.nranks + hosts - 1) / hosts, sources = j->job.nranks - j->job.nranks / hosts;

		notify = shunt_ep_wire(4 * (SHUNT_EP_ALL_EXPERTS + (uint64_t)j->job.nranks));
		calls = SHUNT_EP_FAR_HEADS + (uint64_t)blocks * (SHUNT_EP_LINE + 2 * slot);
		return (uint64_t)(local + 2 * sources) * (SHUNT_EP_FAR_HEADS + (calls > notify ? calls : notify));
	}
	/* A block of the sim is one channel. */
	calls = (uint64_t)blocks * (getenv("SHUNT_DEVICE") && strcmp(getenv("SHUNT_DEVICE"), "sim") ? 8 : 1) *
	    ((uint64_t)j->job.nranks * SHUNT_EP_LINE + (uint64_t)(j->job.nranks - 1) * 2 * slot);
	return calls > notify ? calls : notify;
}

static int make_group(const struct rank *r, int k, struct shunt_ep_config config, struct shunt_ep **group_p)
{
	config.size = sizeof(config);
	config.id = ep_id(r, k);
	config.nranks = r->nranks;
	config.rank = r->rank;
	config.device = -1;
	return shunt_ep_create(&config, group_p);
}

int ep_group_make(const struct rank *r, int k, const struct ep_job *job, uint32_t flags, uint64_t timeout_ns,
    struct shunt_ep **group_p)
{
	return make_group(r, k,
	    (struct shunt_ep_config){
	        .flags = flags, .ll_bytes = ep_job_bytes(job, flags), .topk = job->topk, .timeout_ns = timeout_ns },
	    group_p);
}

int ep_normal_group(
    const struct rank *r, int k, uint64_t bytes, uint32_t flags, uint64_t timeout_ns, struct shunt_ep **group_p)
{
	return make_group(
	    r, k, (struct shunt_ep_config){ .flags = flags, .normal_bytes = bytes, .timeout_ns = timeout_ns }, group_p);
}

int ep_normal_route(struct ep_normal_run *n, struct shunt_ep *group, const struct rank *r)
{
	const struct ep_job *j = &n->run.job;
	int32_t rows = -1, experts[64];

	CHECK(shunt_ep_layout(group, &n->layout) == 0);
	CHECK(shunt_ep_notify(group, &n->notify, &n->ticket) == 0);
	if (!n->notify.counts)
		return 0;
	CHECK(shunt_ep_counts(group, n->ticket, &rows, j->experts / j->nranks <= 64 ? experts : NULL) == 0);
	CHECK(rows == n->rows);
	for (int e = 0; e < j->experts / j->nranks && j->experts / j->nranks <= 64; e++) {
		int count = ep_normal_tokens(n, r->rank * (j->experts / j->nranks) + e), a = n->notify.alignment;

		CHECK(experts[e] == (count + a - 1) / a * a);
	}
	return 0;
}

int ep_normal_go(struct ep_normal_run *n, struct shunt_ep *group, const struct rank *r)
{
	CHECK(shunt_ep_dispatch(group, &n->dispatch) == 0);
	CHECK(shunt_ep_combine(group, &n->combine) == 0);
	return 0;
}

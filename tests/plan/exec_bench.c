/* SPDX-License-Identifier: MIT */
/*
 * exec_bench PLAN.json|twoshot:RANKS:BLOCKS [MIN [MAX [ll128|ll16|ll8]]]: times a plan of all-reduce, and our own
 * two-shot kernel in turns with it, on the devices of this machine (SHUNT_DEVICE=cuda or sim), ranks as threads of one
 * process, in graphs of many launches; sizes in bytes, doubled from MIN to MAX. Values are checked, eager and in the
 * graph. For each size: microseconds per launch, of the slowest rank, the median of some rounds; and how many times the
 * kernel's the plan's are. Exit status 1: wrong values, 77: too few devices, of which ranks share what there is with
 * SHUNT_MULTI_RANK_GPU=1.
 */
#include "tools/common/libc.h"
#include "base/config.h"
#include "base/os.h"
#include "device/gpu_ops.h"
#include "kernels/kargs.h"
#include "kernels/kernel_list.h"
#include "tests/plan/exec_plans.h"
#include "plan/exec/exec.h"
#include "kernels/set.h"
#include "plan/load.h"
#include "transport/symm/symm.h"

enum { MAX = 8, ROUNDS = 9, PLAN = 0, KERNEL, NWAYS };
static const char *const way_names[NWAYS] = { "plan", "kernel" };

static const struct shunt_gpu_ops *gpu;
static struct shunt_plan *plan;
static pthread_barrier_t barrier;
static uint64_t min_bytes = 1024, max_bytes = 1 << 20;
static unsigned per_graph = 50, replays = 20, blocks = 64, threads = 512;
static enum shunt_plan_ll_format ll_format;
static int n, bad;
static double micros[MAX][NWAYS][ROUNDS];

struct rank {
	int rank, device;
	void *stream, *ctrl, *words_dev, *buf, *start, *stop;
	struct shunt_host_ctrl *words;
	struct shunt_plan_exec *exec;
	struct shunt_gpu_mem peer[MAX];
	struct shunt_ranks ranks;
};

static void check_err(int err, const char *what)
{
	if (!err)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(-err));
	exit(1);
}

static void launch_kernel(struct rank *r, uint64_t bytes)
{
	struct shunt_kargs a = { .send = r->buf,
		.recv = r->buf,
		.count = bytes / 4,
		.flags = SHUNT_K_ALIGNED,
		.rank = (uint16_t)r->rank,
		.nranks = (uint16_t)n };
	struct shunt_gpu_launch l = { .kernel = SHUNT_KERNEL(n <= 4 ? SHUNT_SHAPE_twoshot4_packs : SHUNT_SHAPE_twoshot8,
		                          SHUNT_KOP_SUM, SHUNT_F32),
		.args = &a,
		.blocks = blocks,
		.threads = threads,
		.stream = r->stream };

	for (int i = 0; i < n; i++)
		a.peer[i] = r->peer[i].ptr;
	check_err(gpu->launch(r->device, &l), "launch");
}

static void launch(struct rank *r, int way, uint64_t bytes)
{
	if (way == KERNEL) {
		launch_kernel(r, bytes);
		return;
	}
	struct shunt_plan_call call = { .send = r->buf,
		.recv = r->buf,
		.send_bytes = bytes,
		.recv_bytes = bytes,
		.dtype = SHUNT_F32,
		.redop = SHUNT_SUM,
		.stream = r->stream };

	struct shunt_work work;

	check_err(shunt_plan_exec_work(r->exec, &call, &work), "plan");
	check_err(gpu->launch(r->device,
	              &(struct shunt_gpu_launch){ .kernel = work.kernel,
	                  .blocks = work.blocks,
	                  .threads = work.threads,
	                  .args = &work.args,
	                  .stream = r->stream }),
	    "launch");
}

/* Element i of rank r is r + i % 7; after k sums of n ranks each. */
static void fill(struct rank *r, uint64_t bytes, float *host)
{
	for (uint64_t i = 0; i < bytes / 4; i++)
		host[i] = (float)(r->rank + (int)(i % 7));
	check_err(gpu->copy(r->device, r->buf, host, bytes), "copy");
}

static void check(struct rank *r, uint64_t bytes, float *host, unsigned launches, const char *how)
{
	check_err(gpu->stream_sync(r->device, r->stream), "stream");
	check_err(gpu->copy(r->device, host, r->buf, bytes), "copy");
	for (uint64_t i = 0; i < bytes / 4; i++) {
		float want = (float)(n * (n - 1) / 2) + (float)n * (float)(i % 7);

		for (unsigned k = 1; k < launches; k++)
			want *= (float)n;
		if (host[i] != want) {
			fprintf(stderr, "%s, %llu bytes, rank %d, element %llu: %g, wanted %g\n", how,
			    (unsigned long long)bytes, r->rank, (unsigned long long)i, host[i], want);
			bad = 1;
			return;
		}
	}
	if (r->words->fault.set) {
		fprintf(stderr, "%s: rank %d gave up\n", how, r->rank);
		bad = 1;
	}
}

static void *capture(struct rank *r, int way, uint64_t bytes, unsigned launches)
{
	void *graph;

	check_err(gpu->capture_begin(r->device, r->stream), "capture");
	for (unsigned i = 0; i < launches; i++)
		launch(r, way, bytes);
	check_err(gpu->capture_end(r->device, r->stream, &graph), "capture");
	return graph;
}

static void check_way(struct rank *r, int way, uint64_t bytes, float *host)
{
	void *graph;

	fill(r, bytes, host);
	launch(r, way, bytes);
	launch(r, way, bytes);
	check(r, bytes, host, 2, way_names[way]);
	graph = capture(r, way, bytes, 3);
	for (int i = 0; i < 4; i++) {
		fill(r, bytes, host);
		check_err(gpu->graph_launch(r->device, graph, r->stream), "graph");
		check(r, bytes, host, 3, way_names[way]);
	}
	gpu->graph_destroy(r->device, graph);
}

static double time_graph(struct rank *r, void *graph)
{
	float us;

	check_err(gpu->graph_launch(r->device, graph, r->stream), "graph");
	check_err(gpu->stream_sync(r->device, r->stream), "stream");
	pthread_barrier_wait(&barrier);
	check_err(gpu->event_record(r->device, r->start, r->stream), "event");
	for (unsigned i = 0; i < replays; i++)
		check_err(gpu->graph_launch(r->device, graph, r->stream), "graph");
	check_err(gpu->event_record(r->device, r->stop, r->stream), "event");
	check_err(gpu->stream_sync(r->device, r->stream), "stream");
	check_err(gpu->event_elapsed_us(r->device, r->start, r->stop, &us), "event");
	return (double)us / replays / per_graph;
}

static int by_size(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return a < b ? -1 : a > b;
}

/* The median over rounds of the slowest rank's time. */
static double median_us(int way)
{
	double worst[ROUNDS] = { 0 };

	for (int k = 0; k < ROUNDS; k++)
		for (int i = 0; i < n; i++)
			worst[k] = micros[i][way][k] > worst[k] ? micros[i][way][k] : worst[k];
	qsort(worst, ROUNDS, sizeof(worst[0]), by_size);
	return worst[ROUNDS / 2];
}

static void run_size(struct rank *r, uint64_t bytes, float *host)
{
	void *graph[NWAYS];

	for (int way = 0; way < NWAYS; way++) {
		check_way(r, way, bytes, host);
		graph[way] = capture(r, way, bytes, per_graph);
	}
	memset(host, 0, bytes);
	check_err(gpu->copy(r->device, r->buf, host, bytes), "copy");
	for (int k = 0; k < ROUNDS; k++)
		for (int way = 0; way < NWAYS; way++)
			micros[r->rank][way][k] = time_graph(r, graph[way]);
	pthread_barrier_wait(&barrier);
	if (!r->rank) {
		printf("%10llu bytes  plan %8.2f us  kernel %8.2f us  %.2f times\n", (unsigned long long)bytes,
		    median_us(PLAN), median_us(KERNEL), median_us(PLAN) / median_us(KERNEL));
		fflush(stdout);
	}
	pthread_barrier_wait(&barrier);
	for (int way = 0; way < NWAYS; way++)
		gpu->graph_destroy(r->device, graph[way]);
}

/* Scratch of our own kernels, with its control words. */
static void share_scratch(struct rank *r, const struct shunt_ctrl *ctrl)
{
	struct shunt_symm symm;

	shunt_symm_init(&symm,
	    &(struct shunt_symm_config){
	        .ranks = r->ranks, .gpu = gpu, .device = r->device, .process = 1, .what = "scratch", .mem = r->peer });
	check_err(shunt_symm_alloc(&symm, SHUNT_SCRATCH_BYTES(n)), "scratch");
	check_err(gpu->copy(r->device, r->peer[r->rank].ptr, ctrl, sizeof(*ctrl)), "copy");
	check_err(shunt_symm_agree(&symm), "scratch");
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct shunt_plan_exec_config host = { .gpu = gpu, .device = r->device, .process = 1, .ll_format = ll_format };
	static const struct shunt_ctrl zero;
	struct shunt_ctrl ctrl = zero;
	float *values = malloc(max_bytes);
	const char *reason;
	void *p;

	check_err(shunt_rendezvous_join(r->ranks.rendezvous, n, r->rank, n, NULL, NULL), "rendezvous");
	host.ranks = r->ranks;
	check_err(gpu->kernels_load(r->device), "kernels");
	check_err(gpu->stream_create(r->device, &r->stream), "stream");
	check_err(gpu->event_create(r->device, true, &r->start), "event");
	check_err(gpu->event_create(r->device, true, &r->stop), "event");
	check_err(gpu->host_alloc(sizeof(*r->words), &p, &r->words_dev), "memory");
	r->words = p;
	r->words->limit_ns = 20ull * 1000000000;
	ctrl.host_ctrl = r->words_dev;
	check_err(gpu->mem_alloc(r->device, sizeof(ctrl), &r->ctrl), "memory");
	check_err(gpu->copy(r->device, r->ctrl, &ctrl, sizeof(ctrl)), "copy");
	check_err(gpu->mem_alloc(r->device, max_bytes, &r->buf), "memory");
	share_scratch(r, &ctrl);
	host.ctrl = r->ctrl;
	check_err(shunt_plan_exec_create(&host, plan, &r->exec), "exec");
	check_err(shunt_plan_exec_prepare(r->exec, max_bytes, &reason), "prepare");
	for (uint64_t bytes = min_bytes; bytes <= max_bytes; bytes *= 2)
		run_size(r, bytes, values);
	pthread_barrier_wait(&barrier);
	shunt_plan_exec_destroy(r->exec);
	shunt_symm_free(gpu, r->peer, n);
	shunt_rendezvous_destroy(r->ranks.rendezvous);
	gpu->event_destroy(r->device, r->start);
	gpu->event_destroy(r->device, r->stop);
	gpu->stream_destroy(r->device, r->stream);
	gpu->mem_free(r->buf);
	gpu->mem_free(r->ctrl);
	gpu->host_free(r->words);
	free(values);
	return NULL;
}

int main(int argc, char **argv)
{
	struct rank rank[MAX];
	pthread_t thread[MAX];
	struct shunt_gpu_info info;
	char reason[256], *text;
	struct shunt_id id;
	static const char *const ll_formats[] = { "ll128", "ll16", "ll8" };
	int ranks, plan_blocks, devices = 0;

	if (argc < 2)
		return 2;
	if (argc > 2)
		min_bytes = strtoull(argv[2], NULL, 0);
	if (argc > 3)
		max_bytes = strtoull(argv[3], NULL, 0);
	for (int i = 0; i < 3 && argc > 4; i++)
		if (!strcmp(argv[4], ll_formats[i]))
			ll_format = (enum shunt_plan_ll_format)i;
	if (sscanf(argv[1], "twoshot:%d:%d", &ranks, &plan_blocks) == 2) {
		text = plan_twoshot(ranks, plan_blocks, "sum");
		if (shunt_plan_load_buffer("twoshot", text, strlen(text), &plan, reason, sizeof(reason)))
			plan = NULL;
		free(text);
	} else if (shunt_plan_load_file(argv[1], &plan, reason, sizeof(reason))) {
		plan = NULL;
	}
	if (!plan) {
		fprintf(stderr, "%s\n", reason);
		return 2;
	}
	n = (int)plan->nranks;
	gpu = shunt_gpu_open(&shunt_kernels);
	if (!gpu || gpu->device_count(&devices) || (devices < n && !shunt_config()->multi_rank_gpu) || n > MAX ||
	    gpu->device_info(0, &info))
		return 77;
	if (info.sim) {
		per_graph = replays = 3;
		blocks = 2;
		threads = 64;
	}
	printf("plan %s, %d ranks on %d %s, packets as %s\n", plan->name, n, devices < n ? devices : n, info.name,
	    ll_format == SHUNT_PLAN_LL_FORMAT_LL128 && !plan->ll128 ? "ll16" : ll_formats[ll_format]);
	pthread_barrier_init(&barrier, NULL, (unsigned)n);
	shunt_random(&id, sizeof(id));
	for (int r = 0; r < n; r++) {
		rank[r] = (struct rank){ .rank = r, .device = r % devices, .ranks = { .rank = r, .nranks = n } };
		check_err(shunt_rendezvous_bind(&id, r, &rank[r].ranks.rendezvous), "rendezvous");
	}
	for (int r = 0; r < n; r++) {
		check_err(-pthread_create(&thread[r], NULL, rank_main, &rank[r]), "thread");
	}
	for (int r = 0; r < n; r++)
		pthread_join(thread[r], NULL);
	shunt_plan_unref(plan);
	return bad;
}

/* SPDX-License-Identifier: MIT */
/*
 * exec_bench PLAN.json|twoshot:RANKS:BLOCKS [MIN [MAX]]: times a plan of all-reduce on the devices of this machine (SHUNT_DEVICE=cuda or
 * sim), ranks as threads of one process, in graphs of many launches; sizes in bytes, doubled from MIN to MAX. Values are checked, eager and
 * in the graph. For each size: microseconds per launch, of the slowest rank. Exit status 1: wrong values, 77: too few devices.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpu/gpu_ops.h"
#include "kernels/kargs.h"
#include "plan/exec_plans.h"
#include "plan/run.h"

#define MAX 8

static const struct shunt_gpu_ops *gpu;
static struct shunt_plan *plan;
static pthread_barrier_t barrier;
static const void *mine[MAX];
static uint64_t min_bytes = 1024, max_bytes = 1 << 20;
static unsigned per_graph = 50, replays = 20;
static int n, bad;
static double micros[MAX];

struct rank {
	int rank;
	void *stream, *ctrl, *fault_dev, *buf, *start, *stop;
	struct shunt_fault *fault;
	struct shunt_plan_exec *exec;
};

static void must(int err, const char *what)
{
	if (!err)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(-err));
	exit(1);
}

static int gather(void *ctx, const void *data, size_t bytes, void *all, int fd, int *fds)
{
	struct rank *r = ctx;

	mine[r->rank] = data;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < n; i++) {
		memcpy((char *)all + i * bytes, mine[i], bytes);
		if (fds)
			fds[i] = -1;
	}
	pthread_barrier_wait(&barrier);
	return 0;
}

static void launch(struct rank *r, uint64_t bytes)
{
	struct shunt_plan_call call = { .send = r->buf, .recv = r->buf, .send_bytes = bytes, .recv_bytes = bytes, .dtype = SHUNT_F32,
		.redop = SHUNT_SUM, .stream = r->stream };

	must(shunt_plan_exec_launch(r->exec, &call), "launch");
}

/* Element i of rank r is r + i % 7; after k sums of n ranks each. */
static void fill(struct rank *r, uint64_t bytes, float *host)
{
	for (uint64_t i = 0; i < bytes / 4; i++)
		host[i] = (float)(r->rank + (int)(i % 7));
	must(gpu->copy(r->rank, r->buf, host, bytes), "copy");
}

static void check(struct rank *r, uint64_t bytes, float *host, unsigned launches, const char *how)
{
	must(gpu->stream_sync(r->rank, r->stream), "stream");
	must(gpu->copy(r->rank, host, r->buf, bytes), "copy");
	for (uint64_t i = 0; i < bytes / 4; i++) {
		float want = (float)(n * (n - 1) / 2) + (float)n * (float)(i % 7);

		for (unsigned k = 1; k < launches; k++)
			want *= (float)n;
		if (host[i] != want) {
			fprintf(stderr, "%s, %llu bytes, rank %d, element %llu: %g, wanted %g\n", how, (unsigned long long)bytes, r->rank,
			    (unsigned long long)i, host[i], want);
			bad = 1;
			return;
		}
	}
	if (r->fault->set) {
		fprintf(stderr, "%s: rank %d gave up\n", how, r->rank);
		bad = 1;
	}
}

static void one_size(struct rank *r, uint64_t bytes, float *host)
{
	void *graph, *check_graph;
	float us;

	fill(r, bytes, host);
	launch(r, bytes);
	launch(r, bytes);
	check(r, bytes, host, 2, "eager");

	must(gpu->capture_begin(r->rank, r->stream), "capture");
	for (int i = 0; i < 3; i++)
		launch(r, bytes);
	must(gpu->capture_end(r->rank, r->stream, &check_graph), "capture");
	must(gpu->capture_begin(r->rank, r->stream), "capture");
	for (unsigned i = 0; i < per_graph; i++)
		launch(r, bytes);
	must(gpu->capture_end(r->rank, r->stream, &graph), "capture");
	for (int i = 0; i < 4; i++) {
		fill(r, bytes, host);
		must(gpu->graph_launch(r->rank, check_graph, r->stream), "graph");
		check(r, bytes, host, 3, "graph");
	}
	memset(host, 0, bytes);
	must(gpu->copy(r->rank, r->buf, host, bytes), "copy");
	must(gpu->graph_launch(r->rank, graph, r->stream), "graph");
	must(gpu->stream_sync(r->rank, r->stream), "stream");
	pthread_barrier_wait(&barrier);
	must(gpu->event_record(r->rank, r->start, r->stream), "event");
	for (unsigned i = 0; i < replays; i++)
		must(gpu->graph_launch(r->rank, graph, r->stream), "graph");
	must(gpu->event_record(r->rank, r->stop, r->stream), "event");
	must(gpu->stream_sync(r->rank, r->stream), "stream");
	must(gpu->event_elapsed_us(r->rank, r->start, r->stop, &us), "event");
	micros[r->rank] = (double)us / replays / per_graph;
	pthread_barrier_wait(&barrier);
	if (!r->rank) {
		double worst = 0;

		for (int i = 0; i < n; i++)
			worst = micros[i] > worst ? micros[i] : worst;
		printf("%10llu bytes  %8.2f us\n", (unsigned long long)bytes, worst);
		fflush(stdout);
	}
	gpu->graph_destroy(r->rank, graph);
	gpu->graph_destroy(r->rank, check_graph);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct shunt_plan_host host = { .gpu = gpu, .device = r->rank, .rank = r->rank, .nranks = n, .process = 1, .gather = gather, .ctx = r };
	static const struct shunt_ctrl zero;
	struct shunt_ctrl ctrl = zero;
	float *values = malloc(max_bytes);
	const char *why;
	void *p;

	must(gpu->kernels_load(r->rank), "kernels");
	must(gpu->stream_create(r->rank, &r->stream), "stream");
	must(gpu->event_create(r->rank, true, &r->start), "event");
	must(gpu->event_create(r->rank, true, &r->stop), "event");
	must(gpu->host_alloc(sizeof(*r->fault), &p, &r->fault_dev), "memory");
	r->fault = p;
	ctrl.timeout_ns = 20ull * 1000000000;
	ctrl.fault = r->fault_dev;
	must(gpu->mem_alloc(r->rank, sizeof(ctrl), &r->ctrl), "memory");
	must(gpu->copy(r->rank, r->ctrl, &ctrl, sizeof(ctrl)), "copy");
	must(gpu->mem_alloc(r->rank, max_bytes, &r->buf), "memory");
	host.ctrl = r->ctrl;
	must(shunt_plan_exec_create(&host, plan, &r->exec), "exec");
	must(shunt_plan_exec_prepare(r->exec, max_bytes, &why), "prepare");
	for (uint64_t bytes = min_bytes; bytes <= max_bytes; bytes *= 2)
		one_size(r, bytes, values);
	pthread_barrier_wait(&barrier);
	shunt_plan_exec_destroy(r->exec);
	gpu->event_destroy(r->rank, r->start);
	gpu->event_destroy(r->rank, r->stop);
	gpu->stream_destroy(r->rank, r->stream);
	gpu->mem_free(r->buf);
	gpu->mem_free(r->ctrl);
	gpu->host_free(r->fault);
	free(values);
	return NULL;
}

int main(int argc, char **argv)
{
	struct rank rank[MAX];
	pthread_t thread[MAX];
	struct shunt_gpu_info info;
	char why[256], *text;
	int ranks, blocks, devices = 0;

	if (argc < 2)
		return 2;
	if (argc > 2)
		min_bytes = strtoull(argv[2], NULL, 0);
	if (argc > 3)
		max_bytes = strtoull(argv[3], NULL, 0);
	if (sscanf(argv[1], "twoshot:%d:%d", &ranks, &blocks) == 2) {
		text = plan_twoshot(ranks, blocks, "sum");
		if (shunt_plan_load_buffer("twoshot", text, strlen(text), &plan, why, sizeof(why)))
			plan = NULL;
		free(text);
	} else if (shunt_plan_load_file(argv[1], &plan, why, sizeof(why))) {
		plan = NULL;
	}
	if (!plan) {
		fprintf(stderr, "%s\n", why);
		return 2;
	}
	n = (int)plan->nranks;
	gpu = shunt_gpu();
	if (!gpu || gpu->device_count(&devices) || devices < n || n > MAX || gpu->device_info(0, &info))
		return 77;
	if (info.sim)
		per_graph = replays = 3;
	printf("plan %s on %d %s\n", plan->name, n, info.name);
	pthread_barrier_init(&barrier, NULL, (unsigned)n);
	for (int r = 0; r < n; r++) {
		rank[r] = (struct rank){ .rank = r };
		must(-pthread_create(&thread[r], NULL, rank_main, &rank[r]), "thread");
	}
	for (int r = 0; r < n; r++)
		pthread_join(thread[r], NULL);
	shunt_plan_drop(plan);
	return bad;
}

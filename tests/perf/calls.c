/* SPDX-License-Identifier: MIT */
/*
 * calls N [WHAT]: makes every kind of call, or one, N times, between fakes of the CUDA driver and of NCCL, and prints
 * how long one takes on the host. Under callgrind, count.py looks at function measured(), which runs once for each
 * kind.
 */
#include "tools/common/libc.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "shim/nccl/abi.h"
#include "shunt/shunt.h"

static ncclComm_t comms[2];
static char _Alignas(256) in[4096], out[4096]; /* the fakes do not look into them */

static ncclResult_t allreduce(void)
{
	return ncclAllReduce(in, out, 64, ncclFloat32, ncclSum, comms[0], NULL);
}

static ncclResult_t forwarded(void)
{
	return ncclReduce(in, out, (size_t)1 << 30, ncclFloat32, ncclSum, 0, comms[0], NULL);
}

static ncclResult_t empty_group(void)
{
	ncclGroupStart();
	return ncclGroupEnd();
}

static ncclResult_t send_recv(int n)
{
	ncclGroupStart();
	for (int i = 0; i < n; i++) {
		ncclSend(in, 64, ncclFloat32, 1, comms[0], NULL);
		ncclRecv(out, 64, ncclFloat32, 1, comms[0], NULL);
	}
	return ncclGroupEnd();
}

static ncclResult_t messages(void)
{
	return send_recv(1);
}

/* As many as an all-to-all of 8 ranks has. */
static ncclResult_t messages8(void)
{
	return send_recv(8);
}

static ncclResult_t forwarded_group(void)
{
	ncclGroupStart();
	forwarded();
	return ncclGroupEnd();
}

static const struct row {
	const char *name;
	ncclResult_t (*call)(void);
	const char *op; /* in the counters; NULL: nothing is counted */
	int ops;        /* of a call */
	bool native;
} rows[] = {
	{ "allreduce", allreduce, "allreduce", 1, true },
	{ "messages", messages, "send", 1, true },
	{ "messages8", messages8, "send", 8, true },
	{ "forwarded", forwarded, "reduce", 1, false },
	{ "forwarded_group", forwarded_group, "reduce", 1, false },
	{ "empty_group", empty_group },
};

/* How many calls of the row's kind went the way that it is there for. */
static long count_calls(const struct row *row)
{
	struct shunt_counter all[32];
	size_t n = 0;
	long calls = 0;

	if (!row->op || shunt_counters(comms[0], all, 32, &n))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (!strcmp(all[i].op, row->op) && (strcmp(all[i].path, "nccl") != 0) == row->native)
			calls += (long)all[i].calls;
	return calls;
}

__attribute__((noinline)) static ncclResult_t measured(const struct row *row, long n)
{
	ncclResult_t result = ncclSuccess;

	while (n-- && result == ncclSuccess)
		result = row->call();
	return result;
}

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* 0, or 1: the calls did not go the way that they are here for. */
static int run_row(const struct row *row, long n)
{
	ncclResult_t result = ncclSuccess;
	long before, launches;
	double start;

	for (int i = 0; i < 2 && result == ncclSuccess; i++) /* whatever comes with the first call */
		result = row->call();
	before = count_calls(row);
	launches = fake_cuda.launch.count;
	start = now_ns();
	if (result == ncclSuccess)
		result = measured(row, n);
	printf("%s: %.0f ns\n", row->name, (now_ns() - start) / (double)n);
	launches = fake_cuda.launch.count - launches;
	if (result == ncclSuccess && (!row->op || count_calls(row) - before == n * row->ops) &&
	    launches == (row->native ? n : 0))
		return 0;
	fprintf(stderr, "%s: result %d, %ld of %ld calls went the right way, %ld launches\n", row->name, (int)result,
	    count_calls(row) - before, n * row->ops, launches);
	return 1;
}

int main(int argc, char **argv)
{
	long n = argc > 1 ? atol(argv[1]) : 0;
	ncclResult_t result;
	int bad = 0;

	if (n < 1 || argc > 3) {
		fprintf(stderr, "usage: calls N [WHAT]\n");
		return 2;
	}
	fake_nvml.no_nvlink = false; /* named here, it is linked and so found by the library */
	result = ncclCommInitAll(comms, 2, NULL);
	ncclGroupStart();
	for (int i = 0; i < 2 && result == ncclSuccess; i++) /* sets them up */
		result = ncclAllReduce(in, out, 64, ncclFloat32, ncclSum, comms[i], NULL);
	if (ncclGroupEnd() != ncclSuccess || result != ncclSuccess) {
		fprintf(stderr, "the communicators could not be made\n");
		return 1;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (argc == 2 || !strcmp(argv[2], rows[i].name))
			bad += run_row(&rows[i], n);
	return bad != 0;
}

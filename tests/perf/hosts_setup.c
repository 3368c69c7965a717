/* SPDX-License-Identifier: MIT */
/*
 * How long ranks on two hosts take to find each other, and to set up a communicator, standalone on the sim: `meson test
 * --benchmark hosts_setup`. Hosts are names on loopback, then network namespaces (root only), then namespaces with a
 * delay, which tells how many round trips there are. Nothing is compared with a limit: the times are those of the
 * machine, whose CPUs all ranks share.
 *
 * Arguments: the place of each rank, a digit each (else 16 ranks on two hosts), and how often.
 */
#include "tools/common/libc.h"
#include "shunt/device.h"
#include "tests/hosts/world.h"
#include "tests/support/clock.h"
#include "tests/support/own.h"

enum { MOST_RANKS = 64, MOST_ROUNDS = 50, WARM = 2, SKIPPED = 77 };

static int rounds = 7;

/* Of all ranks: seconds, by round and rank. */
static struct times {
	double init[MOST_ROUNDS][MOST_RANKS], first[MOST_ROUNDS][MOST_RANKS], next[MOST_ROUNDS][MOST_RANKS];
	double end[MOST_ROUNDS][MOST_RANKS];
	atomic_int here[MOST_ROUNDS][4];
	ncclUniqueId id[MOST_ROUNDS];
} *times;

/*
 * A set-up is over when the first call returns. The call is captured, so that no kernel of the sim spins on a CPU that
 * a rank needs for its set-up.
 */
static int set_up(const struct rank *r, ncclComm_t comm, uint32_t *buf, double *spent_p)
{
	double start;
	void *graph;

	CHECK(!shunt_capture_begin(r->stream));
	start = now();
	NCCL(ncclAllReduce(buf, buf, 64, ncclUint32, ncclSum, comm, r->stream));
	*spent_p = now() - start;
	CHECK(!shunt_capture_end(r->stream, &graph));
	CHECK(!shunt_graph_destroy(graph));
	return 0;
}

static int all_reduce(const struct rank *r, ncclComm_t comm, uint32_t *buf, double *spent_p)
{
	double start = now();

	NCCL(ncclAllReduce(buf, buf, 64, ncclUint32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	*spent_p = now() - start;
	return 0;
}

static int body(struct rank *r)
{
	ncclComm_t comm;
	uint32_t *buf;
	double start;

	CHECK(!shunt_malloc((void **)&buf, 4096));
	memset(buf, 0, 4096);
	for (int k = 0; k < rounds; k++) {
		if (!r->rank)
			NCCL(ncclGetUniqueId(&times->id[k]));
		ranks_barrier(r, &times->here[k][0]);
		start = now();
		NCCL(ncclCommInitRank(&comm, r->nranks, times->id[k], r->rank));
		times->init[k][r->rank] = now() - start;
		ranks_barrier(r, &times->here[k][1]);
		CHECK(!set_up(r, comm, buf, &times->first[k][r->rank]));
		ranks_barrier(r, &times->here[k][2]);
		CHECK(!all_reduce(r, comm, buf, &times->next[k][r->rank]));
		ranks_barrier(r, &times->here[k][3]);
		start = now();
		NCCL(ncclCommDestroy(comm));
		times->end[k][r->rank] = now() - start;
	}
	shunt_free(buf);
	return 0;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Of the slowest rank, in ms: the median of the rounds, and the smallest. */
static void print_slowest(const char *what, double (*spent)[MOST_RANKS], int n)
{
	double slowest[MOST_ROUNDS] = { 0 };
	int count = rounds - WARM;

	for (int k = 0; k < count; k++)
		for (int r = 0; r < n; r++)
			slowest[k] = spent[k + WARM][r] > slowest[k] ? spent[k + WARM][r] : slowest[k];
	qsort(slowest, (size_t)count, sizeof(*slowest), by_size);
	printf("  %-28s %7.2f ms (best %.2f)\n", what, slowest[count / 2] * 1e3, slowest[0] * 1e3);
}

static void make_far(struct netns *netns)
{
	netns_link(netns, 0)->delay_us = netns_link(netns, 1)->delay_us = 5000;
}

static int measure(const char *what, const struct world *world)
{
	int n = (int)strlen(world->place), failed;

	memset(times, 0, sizeof(*times));
	failed = world_run(world);
	if (failed)
		return failed;
	printf("%s, %d ranks\n", what, n);
	print_slowest("rendezvous (init)", times->init, n);
	print_slowest("set-up (first call)", times->first, n);
	print_slowest("first result after that", times->next, n);
	print_slowest("end", times->end, n);
	fflush(stdout);
	return 0;
}

int main(int argc, char **argv)
{
	const char *place = argc > 1 ? argv[1] : "0000000011111111";
	int err;

	own_standalone();
	setenv("SHUNT_LOG", "error", 0);
	if (argc > 2)
		rounds = atoi(argv[2]) + WARM;
	if (strlen(place) > MOST_RANKS || rounds <= WARM || rounds > MOST_ROUNDS)
		return 2;
	times = mmap(NULL, sizeof(*times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (times == MAP_FAILED ||
	    measure("hosts by name", &(struct world){ .place = place, .named = true, .body = body }))
		return 1;
	err = measure("hosts of namespaces", &(struct world){ .place = place, .body = body });
	if (!err)
		err = measure("... and 10 ms a round trip",
		    &(struct world){ .place = place, .body = body, .meanwhile = make_far });
	return err == -EPERM ? SKIPPED : err != 0;
}

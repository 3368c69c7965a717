/* SPDX-License-Identifier: MIT */
/*
 * Many communicators: one after another, where nothing may be left over; and at once from many threads, where nothing
 * may mix.
 */
#include "tests/fault/inject.h"
#include "tests/fault/lifecycle.h"
#include "shunt/device.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

#ifdef __SANITIZE_THREAD__
enum { RANKS = 2, AT_ONCE = 4, SUMS = 10 }; /* each thread of a kernel counts, and those of all are ordered */
#else
enum { RANKS = 2, AT_ONCE = 24, SUMS = 20 };
#endif

static int pairs = 500; /* of communicators, one after another */

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	long size = 0, resident = 0;

	if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Those of the sim's device memory. */
static int memory_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	char to[64];
	int n = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		ssize_t bytes = readlinkat(dirfd(dir), entry->d_name, to, sizeof(to) - 1);

		to[bytes > 0 ? bytes : 0] = '\0';
		n += strstr(to, "memfd:shunt-sim") != NULL;
	}
	closedir(dir);
	return n;
}

/* One thread drives both ranks; use: with a sum. What a communicator has on a device needs no descriptor any more. */
static void make_and_end(struct lifecycle *l, bool use)
{
	int before = memory_descriptors();
	ncclComm_t comm[RANKS];
	int32_t host[100];

	assert_int_equal(ncclCommInitAll(comm, RANKS, NULL), ncclSuccess);
	if (use) {
		for (int r = 0; r < RANKS; r++) {
			assert_int_equal(shunt_device_set(r), 0);
			for (int i = 0; i < 100; i++)
				host[i] = i * (r + 1);
			assert_int_equal(shunt_memcpy(l[r].dev, host, sizeof(host)), 0);
		}
		assert_int_equal(ncclGroupStart(), 0);
		for (int r = 0; r < RANKS; r++)
			assert_int_equal(
			    ncclAllReduce(l[r].dev, l[r].dev, 100, ncclInt32, ncclSum, comm[r], l[r].stream[0]), 0);
		assert_int_equal(ncclGroupEnd(), 0);
		for (int r = 0; r < RANKS; r++) {
			assert_int_equal(shunt_device_set(r), 0);
			assert_int_equal(shunt_stream_synchronize(l[r].stream[0]), 0);
			assert_int_equal(shunt_memcpy(host, l[r].dev, sizeof(host)), 0);
			for (int i = 0; i < 100; i++)
				assert_int_equal(host[i], 3 * i);
		}
		assert_int_equal(memory_descriptors(), before);
	}
	for (int r = 0; r < RANKS; r++)
		assert_int_equal(ncclCommDestroy(comm[r]), ncclSuccess);
}

TEST(test_many_one_after_another_leave_nothing)
{
	struct fault_balance mark;
	struct lifecycle l[RANKS];
	long before, after;
	bool back;

	for (int r = 0; r < RANKS; r++)
		assert_int_equal(lifecycle_prepare(&l[r], r, RANKS), 0);
	for (int i = 0; i < 40; i++)
		make_and_end(l, i % 2);
	assert_true(until_all_threads_wait()); /* none of ours is about to begin or to end */
	mark = fault_balance();
	before = resident_kib();
	for (int i = 0; i < pairs; i++)
		make_and_end(l, i % 5 == 0);
	back = fault_back_to(&mark, 30000);
	after = resident_kib();
	print_message(
	    "%d communicators left %s, %+ld KiB of memory\n", RANKS * pairs, fault_left_since(&mark), after - before);
	assert_true(back);
	assert_true(getenv("FAULT_SLOW") || after - before < 4096); /* a sanitizer keeps what was freed */
	for (int r = 0; r < RANKS; r++)
		lifecycle_finish(&l[r]);
}

struct member {
	int rank, failed;
	ncclUniqueId id;
	pthread_t thread;
};

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct lifecycle l;
	ncclComm_t comm;

	m->failed = 1;
	if (lifecycle_prepare(&l, m->rank, RANKS) || ncclCommInitRank(&comm, RANKS, m->id, m->rank))
		return NULL;
	for (int i = 0; i < SUMS; i++)
		if (lifecycle_sum(&l, comm, m->rank, RANKS, 50 + 37 * (size_t)i, l.stream[i % 2])) {
			fprintf(stderr, "rank %d, sum %d: error %d, %s\n", m->rank, i, (int)l.error, l.wrong);
			return NULL;
		}
	if (ncclCommDestroy(comm))
		return NULL;
	lifecycle_finish(&l);
	m->failed = 0;
	return NULL;
}

TEST(test_many_at_once_from_threads_do_not_mix)
{
	static struct member member[AT_ONCE][RANKS];

	for (int c = 0; c < AT_ONCE; c++) {
		ncclUniqueId id;

		assert_int_equal(ncclGetUniqueId(&id), 0);
		for (int r = 0; r < RANKS; r++) {
			member[c][r] = (struct member){ .rank = r, .id = id };
			assert_int_equal(pthread_create(&member[c][r].thread, NULL, member_main, &member[c][r]), 0);
		}
	}
	for (int c = 0; c < AT_ONCE; c++)
		for (int r = 0; r < RANKS; r++)
			pthread_join(member[c][r].thread, NULL);
	for (int c = 0; c < AT_ONCE; c++)
		for (int r = 0; r < RANKS; r++)
			if (member[c][r].failed)
				fail_msg("communicator %d, rank %d failed", c, r);
}

TESTS_BEGIN
{
	if (getenv("FAULT_SLOW"))
		pairs = 60;
	lifecycle_environment("100s", "60s");
}

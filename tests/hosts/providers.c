/* SPDX-License-Identifier: MIT */
/*
 * What carries data between hosts: verbs, on the libibverbs of tests/fake_ibverbs, where every rank has a NIC and all
 * connections are proven; else tcp, for all ranks alike. Sums are the same either way.
 */
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/world.h"
#include "tests/support/own.h"
#include "tests/support/test.h"

static char folder[64], fabric[96], memory_file[96];
static const char *wanted; /* the provider */

static int sum(const struct rank *r, ncclComm_t comm, size_t count)
{
	float *buf;

	CHECK(!shunt_malloc((void **)&buf, count * sizeof(*buf)));
	for (size_t i = 0; i < count; i++)
		buf[i] = (float)(r->rank + 1) + (float)(i % 7);
	NCCL(ncclAllReduce(buf, buf, count, ncclFloat32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	for (size_t i = 0; i < count; i++)
		CHECK(buf[i] == (float)(r->nranks * (r->nranks + 1) / 2) + (float)(r->nranks * (int)(i % 7)));
	shunt_free(buf);
	return 0;
}

static int body(struct rank *r)
{
	struct shunt_comm_info info = { .size = sizeof(info) };
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!sum(r, comm, 1));
	CHECK(!sum(r, comm, 300001));
	CHECK(!shunt_comm_describe(comm, &info));
	CHECK(info.hosts == 2);
	if (strcmp(info.network, wanted) != 0) {
		fprintf(stderr, "rank %d: %s, and not %s\n", r->rank, info.network, wanted);
		return 1;
	}
	if (r->rank == 0) {
		FILE *file = fopen(memory_file, "w");

		CHECK(file);
		fprintf(file, "%llu", (unsigned long long)info.memory);
		CHECK(!fclose(file));
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* Bytes of device memory that rank 0 had. */
static unsigned long long run(const char *network, struct world world)
{
	unsigned long long memory = 0;
	FILE *file;
	int failed;

	wanted = network;
	world.place = "0011";
	world.named = true;
	world.body = body;
	failed = world_run(&world);
	unlink(fabric);
	file = fopen(memory_file, "r");
	assert_true(failed || (file && fscanf(file, "%llu", &memory) == 1));
	if (file)
		fclose(file);
	unlink(memory_file);
	assert_int_equal(failed, 0);
	return memory;
}

#define FAKE \
	{ "FAKE_IBV_FABRIC", fabric }, { "FAKE_IBV_DEVICES", "mlx0 link=roce; mlx1 link=roce" }, \
	    { "SHUNT_SETUP_TIMEOUT", "20s" }

TEST(test_ranks_with_nics_use_verbs)
{
	run("verbs", (struct world){ .env = { FAKE } });
	run("verbs", (struct world){ .env = { FAKE, { "SHUNT_NET", "verbs" } } });
}

/* Where a NIC can have no such memory, and with tcp, data lands in the host's as before. */
TEST(test_data_lands_in_the_gpus_memory_where_it_is_asked_for)
{
	unsigned long long plain = run("verbs", (struct world){ .env = { FAKE } });

	assert_true(run("verbs", (struct world){ .env = { FAKE, { "SHUNT_NET_GPU_MEMORY", "1" } } }) > plain);
	assert_true(run("verbs",
	                (struct world){ .env = { { "FAKE_IBV_FABRIC", fabric }, { "SHUNT_SETUP_TIMEOUT", "20s" },
	                                    { "FAKE_IBV_DEVICES", "mlx0 link=roce dmabuf=0; mlx1 link=roce dmabuf=0" },
	                                    { "SHUNT_NET_GPU_MEMORY", "1" } } }) == plain);
	run("tcp", (struct world){ .env = { FAKE, { "SHUNT_NET", "tcp" }, { "SHUNT_NET_GPU_MEMORY", "1" } } });
	/* One rank's lands elsewhere than its peers'. */
	run("verbs", (struct world){ .env = { FAKE }, .odd = 2, .odd_env = { "SHUNT_NET_GPU_MEMORY", "1" } });
}

TEST(test_signals_are_atomics_where_all_ranks_want_and_have_them)
{
	run("verbs", (struct world){ .env = { FAKE, { "SHUNT_IBV_MODE", "host" } } });
	run("verbs",
	    (struct world){ .env = { FAKE, { "SHUNT_IBV_MODE", "host" } },
	        .odd = 1,
	        .odd_env = { "FAKE_IBV_DEVICES", "mlx0 link=roce atomic=none" } });
	run("verbs",
	    (struct world){
	        .env = { FAKE, { "SHUNT_IBV_MODE", "host" } }, .odd = 3, .odd_env = { "SHUNT_IBV_MODE", "" } });
}

TEST(test_ranks_use_several_nics)
{
	run("verbs", (struct world){ .env = { FAKE, { "SHUNT_IB_RAILS", "2" }, { "SHUNT_IB_QPS", "2" } } });
}

TEST(test_tcp_is_taken_where_it_is_asked_for)
{
	run("tcp", (struct world){ .env = { FAKE, { "SHUNT_NET", "tcp" } } });
}

TEST(test_a_rank_without_a_nic_makes_all_take_tcp)
{
	run("tcp", (struct world){ .env = { FAKE }, .odd = 2, .odd_env = { "NCCL_IB_DISABLE", "1" } });
}

/* InfiniBand and RoCE do not reach each other. */
TEST(test_a_connection_that_fails_makes_all_take_tcp)
{
	run("tcp", (struct world){ .env = { FAKE }, .odd = 3, .odd_env = { "FAKE_IBV_DEVICES", "mlx0 link=ib" } });
}

int main(void)
{
	int failed;

	if (!own_folder(folder))
		return 1;
	snprintf(fabric, sizeof(fabric), "%s/fabric", folder);
	snprintf(memory_file, sizeof(memory_file), "%s/memory", folder);
	failed = tests_run(NULL, NULL);
	own_folder_end(folder);
	return failed;
}

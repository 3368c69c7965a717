/* SPDX-License-Identifier: MIT */
#include "tests/e2e/overlay_job.h"
#include "tests/support/own.h"

struct overlay_shared *overlay_shared;
const char *overlay_odd_name, *overlay_odd_value;

int overlay_run(enum ranks_how how, int n, rank_fn body)
{
	memset(overlay_shared, 0, sizeof(*overlay_shared));
	return ranks_run(how, n, 1, body);
}

int overlay_run_as(const struct ranks *ranks, int odd)
{
	memset(overlay_shared, 0, sizeof(*overlay_shared));
	overlay_shared->odd = odd;
	return ranks_run_as(ranks);
}

void overlay_barrier(struct rank *r, int place)
{
	ranks_barrier(r, &overlay_shared->barrier[place]);
}

void overlay_set_odd(int rank)
{
	if (rank == overlay_shared->odd)
		setenv(overlay_odd_name, overlay_odd_value, 1);
}

void overlay_set_all(int rank)
{
	setenv(overlay_odd_name, overlay_odd_value, 1);
}

int overlay_run_set(int n, const char *name, const char *value, rank_fn body)
{
	overlay_odd_name = name;
	overlay_odd_value = value;
	return overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body, .prepare = overlay_set_all }, 0);
}

void overlay_only_allreduce(int rank)
{
	setenv("SHUNT_FORCE_NCCL", "reduce,broadcast,allgather,reducescatter,alltoall,gather,scatter,send,recv", 1);
}

void *overlay_fake_lib(void)
{
	return dlopen(getenv("SHUNT_NCCL_LIB"), RTLD_NOW | RTLD_LOCAL);
}

int overlay_forwarded(const char *name)
{
	const char *at = FAKE(fake_nccl_log)();
	char want[64];
	int n = 0;

	snprintf(want, sizeof(want), "%s ", name);
	for (; at && *at; at = strchr(at, '\n'), at += at != NULL)
		n += !strncmp(at, want, strlen(want));
	return n;
}

long overlay_count_calls(ncclComm_t comm, int native)
{
	return ranks_count_calls(comm, "allreduce", native ? RANKS_NATIVE : "nccl");
}

int overlay_reduce(struct rank *r, ncclComm_t comm, int rank, int n, size_t count, enum how how)
{
	long native = overlay_count_calls(comm, 1);
	int to_nccl = overlay_forwarded("AllReduce");
	int32_t *host = malloc(count * 4), *dev;

	CHECK(shunt_malloc((void **)&dev, count * 4) == 0);
	for (size_t i = 0; i < count; i++)
		host[i] = (int32_t)i * (rank + 1);
	CHECK(shunt_memcpy(dev, host, count * 4) == 0);
	NCCL(ncclAllReduce(dev, dev, count, ncclInt32, ncclSum, comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_memcpy(host, dev, count * 4) == 0);
	for (size_t i = 0; i < count; i++) {
		int32_t want = (int32_t)i * (how == NATIVE ? n * (n + 1) / 2 : rank + 1);

		if (host[i] != want)
			fprintf(stderr, "rank %d of %d: element %zu is %d, not %d\n", rank, n, i, host[i], want);
		CHECK(host[i] == want);
	}
	CHECK(overlay_count_calls(comm, 1) == native + (how == NATIVE));
	CHECK(how == NATIVE || overlay_forwarded("AllReduce") > to_nccl); /* > : other threads may count here */
	CHECK(shunt_free(dev) == 0);
	free(host);
	return 0;
}

ncclConfig_t overlay_config(int blocking, int max_ctas)
{
	ncclConfig_t c = nccl_config_unset();

	c.blocking = blocking;
	c.maxCTAs = max_ctas;
	return c;
}

void overlay_begin(void)
{
	char address[32];

	overlay_shared = mmap(NULL, sizeof(*overlay_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(address, sizeof(address), "%p", (void *)overlay_shared->fake);
	setenv("FAKE_NCCL_SHARED", address, 1);
	own_environment();
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_TIMEOUT", PATIENCE, 1);
}

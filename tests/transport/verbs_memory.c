/* SPDX-License-Identifier: MIT */
/* Additions to words, and memory of the host and of GPUs. */
#include "tests/transport/verbs_suite.h"
#include <sys/resource.h>
#include "transport/net/providers.h"

/* ---- additions to words */

static uint64_t words[8];

static void additions(void)
{
	struct shunt_net_put put = { .count = 3, .flags = SHUNT_NET_ADD };

	begin();
	CHECK(!ops->mem_register(ends[1].device, &REGION(words, SHUNT_NET_MEMORY_WORDS), &ends[1].memory));
	put.words = ops->mem_remote(ends[1].memory);
	UNTIL(ends[0].ready && ends[1].ready);
	for (uint64_t i = 0; i < 2000; i++) {
		put.word_offset = 8 * (i % 8);
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
	}
	UNTIL(ends[0].done == 2000);
	for (int i = 0; i < 8; i++)
		CHECK(__atomic_load_n(&words[i], __ATOMIC_ACQUIRE) == 750);
	CHECK(!ends[0].dead && !ends[1].dead && !ends[1].signalled);
	end_all();
}

TEST(test_additions_happen_once)
{
	CASE(additions(), { "SHUNT_IBV_MODE", "host" }, { "FAKE_IBV_DROP", "10" });
	CASE(additions(), { "MSCCLPP_IBV_MODE", "host" }, { "FAKE_IBV_DEVICES", "mlx0 atomic=glob rd=1; mlx1 rd=4" });
}

static void no_additions(void)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS, .adds = true };
	struct shunt_net_memory *memory;
	struct shunt_net_info info[1];
	struct unit_capture c;

	CHECK(ops->devices(info, 1) == 1 && !info[0].adds);
	unit_capture_begin(&c);
	CHECK(!(shunt_net_usable() & SHUNT_NET_USABLE_ADDS) && shunt_net_usable() == 3);
	unit_capture_end(&c);
	CHECK(unit_count(c.text, "no atomics") == 1 && strstr(c.text, "mlx0 port 1"));
	CHECK(!ops->open(0, &ends[0].device));
	CHECK(ops->mem_register(ends[0].device, &REGION(words, SHUNT_NET_MEMORY_WORDS), &memory) == -EOPNOTSUPP);
	CHECK(ops->endpoint_create(ends[0].device, &peer, &ends[0].endpoint, &ends[0].blob) == -EOPNOTSUPP);
	ops->close(ends[0].device);
}

static void may_add(void)
{
	struct unit_capture c;
	bool host = getenv("SHUNT_IBV_MODE") && !strcmp(getenv("SHUNT_IBV_MODE"), "host");

	unit_capture_begin(&c);
	CHECK(!(shunt_net_usable() & SHUNT_NET_USABLE_ADDS) == !host);
	unit_capture_end(&c);
	CHECK(unit_count(c.text, "is not host-no-atomic or host") ==
	    (getenv("SHUNT_IBV_MODE") && !strcmp(getenv("SHUNT_IBV_MODE"), "hots")));
}

static void lands_in_gpus(void)
{
	struct unit_capture c;

	unit_capture_begin(&c);
	CHECK(!(shunt_net_usable() & SHUNT_NET_USABLE_ADDS) && shunt_net_usable() == 3);
	unit_capture_end(&c);
	CHECK(unit_count(c.text, "SHUNT_NET_GPU_MEMORY") == 1);
}

static void another_mode(void)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };

	for (int i = 0; i < 2; i++) {
		CHECK(!ops->open(0, &ends[i].device));
		peer.adds = i;
		CHECK(!ops->endpoint_create(ends[i].device, &peer, &ends[i].endpoint, &ends[i].blob));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ops->endpoint_connect(ends[i].endpoint, &ends[!i].blob));
	UNTIL(ends[0].dead && ends[1].dead);
	CHECK(ends[0].err == -EPROTO && strstr(ends[0].text, "SHUNT_IBV_MODE"));
	end_all();
}

TEST(test_additions_need_atomics_at_both_ends)
{
	CASE(no_additions(), { "FAKE_IBV_DEVICES", "mlx0 atomic=none" }, { "SHUNT_IBV_MODE", "host" });
	CASE(may_add(), { "SHUNT_IBV_MODE", "host" });
	CASE(may_add(), { "SHUNT_IBV_MODE", "host-no-atomic" });
	CASE(may_add(), { "SHUNT_IBV_MODE", "hots" });
	CASE(lands_in_gpus(), { "SHUNT_IBV_MODE", "host" }, { "SHUNT_NET_GPU_MEMORY", "1" });
	CASE(another_mode(), { "FAKE_IBV_DEVICES", "mlx0" });
}

/* ---- memory */

static void too_much_memory(void)
{
	struct rlimit limit = { 8 << 20, 8 << 20 };
	struct shunt_net_memory *memory;
	struct unit_capture c;

	setrlimit(RLIMIT_MEMLOCK, &limit);
	CHECK(!ops->open(0, &ends[0].device));
	unit_capture_begin(&c);
	CHECK(ops->mem_register(ends[0].device, &REGION(from, 0), &memory) == -ENOMEM);
	unit_capture_end(&c);
	CHECK(strstr(c.text, "ulimit -l") && strstr(c.text, "8192 KiB") && unit_count(c.text, "\n") == 1);
	ops->close(ends[0].device);
}

TEST_CALL(test_the_limit_of_locked_memory_is_named, CASE(too_much_memory(), { "FAKE_IBV_MEMLOCK", "40000" }))

#define GPU_BYTES 65536

/* A GPU's memory: a dma-buf, which the NIC writes to, and which is seen here through another mapping. */
static struct shunt_net_region gpu_region(unsigned more_flags)
{
	int fd = memfd_create("shunt-test-gpu", MFD_CLOEXEC);
	struct shunt_net_region region = { NULL, GPU_BYTES, fd, 0, SHUNT_NET_MEMORY_GPU | more_flags };

	CHECK(!ftruncate(fd, GPU_BYTES));
	region.start = mmap(NULL, GPU_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(region.start != MAP_FAILED);
	return region;
}

static void gpu_memory(void)
{
	struct shunt_net_region target = gpu_region(0);
	struct shunt_net_put put = begin_put(REGION(from, 0), target);
	struct shunt_net_info info[1];

	CHECK(ops->devices(info, 1) == 1 && info[0].gpu_memory);
	put.count = 1;
	for (uint32_t turn = 1; turn <= 200; turn++) {
		put.bytes = 1 + turn * 317 % GPU_BYTES;
		memset(from, (int)(turn & 0xff), sizeof(from));
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		UNTIL(ends[1].signalled == turn);
		CHECK(!memcmp(target.start, from, put.bytes));
		UNTIL(ends[0].done == turn);
	}
	end_all();
}

/* The same, with signals that are words of that memory. */
static void words_of_a_gpu(void)
{
	struct shunt_net_region target = gpu_region(SHUNT_NET_MEMORY_WORDS);
	struct shunt_net_put put = begin_put(REGION(from, 0), target);
	struct shunt_net_memory *unused;
	uint64_t *word = target.start;

	/* An addition in the host's memory would not wait for the GPU's. */
	CHECK(ops->mem_register(ends[1].device, &REGION(words, SHUNT_NET_MEMORY_WORDS), &unused) == -EOPNOTSUPP);
	put.words = put.remote;
	put.remote_offset = 8;
	put.count = 1;
	put.flags = SHUNT_NET_ADD;
	for (uint32_t turn = 1; turn <= 200; turn++) {
		put.bytes = 1 + turn * 317 % (GPU_BYTES - 8);
		memset(from, (int)(turn & 0xff), sizeof(from));
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		UNTIL(__atomic_load_n(word, __ATOMIC_ACQUIRE) == turn);
		CHECK(!memcmp((char *)target.start + 8, from, put.bytes));
		UNTIL(ends[0].done == turn);
	}
	end_all();
}

/* A GPU's memory by its address, which the kernel's module for it must know. */
static void gpu_memory_by_address(void)
{
	bool may = getenv("FAKE_IBV_PEERMEM");
	struct shunt_net_region region = gpu_region(0);
	struct shunt_net_memory *memory = NULL;

	region.dmabuf_fd = -1;
	CHECK(!ops->open(0, &ends[0].device));
	CHECK(ops->mem_register(ends[0].device, &region, &memory) == (may ? 0 : -EOPNOTSUPP));
	ops->mem_deregister(memory);
	ops->close(ends[0].device);
}

TEST(test_a_gpus_memory_by_its_address)
{
	CASE(gpu_memory_by_address(), { "FAKE_IBV_DEVICE_MAPS", "shunt-test-gpu" });
	CASE(gpu_memory_by_address(), { "FAKE_IBV_DEVICE_MAPS", "shunt-test-gpu" }, { "FAKE_IBV_PEERMEM", "1" });
}

static void no_gpu_memory(void)
{
	struct shunt_net_memory *memory;
	struct shunt_net_info info[1];

	CHECK(ops->devices(info, 1) == 1 && !info[0].gpu_memory);
	CHECK(!ops->open(0, &ends[0].device));
	CHECK(ops->mem_register(ends[0].device, &REGION(from, SHUNT_NET_MEMORY_GPU), &memory) == -EOPNOTSUPP);
	ops->close(ends[0].device);
}

TEST(test_signals_wait_until_gpus_see_the_data)
{
	CASE(gpu_memory(), { "FAKE_IBV_ORDERING", "none" }, { "FAKE_IBV_PARK_US", "3000000" });
	CASE(gpu_memory(), { "FAKE_IBV_ORDERING", "none" }, { "FAKE_IBV_DEVICES", "mlx0 link=ib" });
	CASE(words_of_a_gpu(), { "FAKE_IBV_ORDERING", "none" }, { "FAKE_IBV_PARK_US", "3000000" },
	    { "SHUNT_IBV_MODE", "host" });
	CASE(no_gpu_memory(), { "FAKE_IBV_DEVICES", "mlx0 dmabuf=0" });
	CASE(no_gpu_memory(), { "FAKE_IBV_HIDE", "reg_dmabuf_mr" });
}

/* Without relaxed ordering what is written first is seen first: packets and words rely on it. */
static void ordered_memory(void)
{
	struct shunt_net_put put = begin_put(REGION(from, 0), REGION(to, SHUNT_NET_MEMORY_ORDERED));
	const uint64_t *first = (const uint64_t *)(void *)to, *last = first + 1023;
	int64_t stop;

	put.bytes = 8192;
	for (int turn = 1; turn <= 30; turn++) {
		memset(from, turn, 8192);
		CHECK(ops->post(ends[0].endpoint, &put, 1) == 1);
		stop = unit_now_ms() + AT_ONCE_MS;
		while ((uint8_t)__atomic_load_n(last, __ATOMIC_ACQUIRE) != turn)
			CHECK(unit_now_ms() < stop);
		CHECK((uint8_t)__atomic_load_n(first, __ATOMIC_RELAXED) == turn);
		UNTIL(ends[0].done == (uint64_t)turn);
	}
	end_all();
}

TEST_CALL(test_ordered_memory_has_its_order, CASE(ordered_memory(), { "FAKE_IBV_PIECE_US", "20" }))

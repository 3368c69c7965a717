/* SPDX-License-Identifier: MIT */
/*
 * What only the provider verbs has: the library and its absence, the choice of NICs and addresses, errors of NICs,
 * memory of GPUs. The settings are read once for a process, so that each case has its own.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <ftw.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "base/config.h"
#include "tests/support/own.h"
#include "tests/support/unit.h"
#include "transport/net/nic.h"
#include "transport/net/providers.h"
#include "transport/net/verbs/verbs.h"
#include "transport/net/verbs/verbs_priv.h"

static const struct shunt_net_ops *const ops = &shunt_net_verbs_ops;
static const char *fake, *old; /* paths of the libraries of tests/fake_ibverbs */

/* In the process of a case. */
#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #cond); \
			child_exit(1); \
		} \
	} while (0)

struct setting {
	const char *name, *value;
};
#define NONE { NULL, NULL }

/* Runs body in a process with these settings: its status. */
static int in_process(const struct setting *settings, void (*body)(void))
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = child_fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		setenv("SHUNT_IBV_LIB", fake, 1);
		setenv("FAKE_IBV_TIME_SCALE", "100", 1);
		setenv("NCCL_DEBUG", "INFO", 1);
		setenv("NCCL_DEBUG_SUBSYS", "NET", 1);
		for (; settings->name; settings++)
			setenv(settings->name, settings->value, 1);
		body();
		child_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
#define CASE(body, ...) \
	assert_int_equal(in_process((const struct setting[]){ __VA_ARGS__ __VA_OPT__(, ) NONE }, body), 0)

/* What devices says, and how many lines it logs, also when it is asked twice. */
static int devices_and_lines(struct shunt_net_info *info, struct unit_capture *capture)
{
	int n;

	unit_capture_begin(capture);
	n = ops->devices(info, SHUNT_NET_MAX_DEVICES);
	ops->devices(info, SHUNT_NET_MAX_DEVICES);
	unit_capture_end(capture);
	fprintf(stderr, "%s", capture->text);
	return n;
}

/* ---- the library */

static void no_such_library(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct unit_capture c;

	CHECK(devices_and_lines(info, &c) == -ELIBACC);
	CHECK(unit_count(c.text, "\n") == 1);
	CHECK(strstr(c.text,
	    getenv("SHUNT_IBV_LIB") && *getenv("SHUNT_IBV_LIB") ? "SHUNT_IBV_LIB=/nonexistent" :
	                                                          "MSCCLPP_IBV_SO=/nonexistent"));
}

static void another_library(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct unit_capture c;

	CHECK(devices_and_lines(info, &c) == -ELIBBAD);
	CHECK(unit_count(c.text, "\n") == 1);
	CHECK(strstr(c.text, "ibv_get_device_list"));
}

static void test_a_path_that_fails_is_one_line(void **state)
{
	CASE(no_such_library, { "SHUNT_IBV_LIB", "/nonexistent/libibverbs.so.1" });
	CASE(no_such_library, { "SHUNT_IBV_LIB", "" }, { "MSCCLPP_IBV_SO", "/nonexistent/libibverbs.so.1" },
	    { "NCCL_IBVERBS_LIB", fake });
	CASE(another_library, { "SHUNT_IBV_LIB", "libm.so.6" });
}

static void nothing_there(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct unit_capture c;

	CHECK(devices_and_lines(info, &c) == 0);
	CHECK(unit_count(c.text, "no verbs") == 1);
}

static void test_the_real_library_without_devices(void **state)
{
	DIR *d = opendir("/sys/class/infiniband");
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (d)
		closedir(d);
	if (lib)
		dlclose(lib);
	if (d || !lib) {
		print_message(
		    "skipped: the real library without devices: %s\n", d ? "there are devices" : "it is not installed");
		skip();
	}
	CASE(nothing_there, { "SHUNT_IBV_LIB", "" });
}

static void disabled(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_net_device *device;

	CHECK(ops->devices(info, SHUNT_NET_MAX_DEVICES) == 0);
	CHECK(ops->open(0, &device) == -ENODEV);
}

static void test_no_devices(void **state)
{
	CASE(disabled, { "NCCL_IB_DISABLE", "1" });
	CASE(nothing_there, { "FAKE_IBV_DEVICES", "" });
	CASE(nothing_there, { "FAKE_IBV_DEVICES", "mlx0 state=down" });
	CASE(nothing_there, { "NCCL_IB_HCA", "=mlx5_0" });
	/* Too few entries of a queue for what a connection needs. */
	CASE(nothing_there, { "FAKE_IBV_DEVICES", "mlx0 depth=100" });
}

/* ---- which NICs */

#define NICS "mlx10 speed=1000; mlx0; mlx1 ports=2; mlx2 state=down"

static void expect_names(const char *names)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	char got[256] = "";
	int n = ops->devices(info, SHUNT_NET_MAX_DEVICES);

	for (int i = 0; i < n; i++) {
		strcat(got, info[i].name);
		strcat(got, " ");
	}
	if (strcmp(got, names))
		fprintf(stderr, "%s\n", got);
	CHECK(!strcmp(got, names));
}

static void all_nics(void)
{
	expect_names("mlx0 mlx1 mlx1:2 mlx10 ");
}

static void some_nics(void)
{
	expect_names("mlx1 mlx1:2 ");
}

static void listed_nics(void)
{
	expect_names("mlx10 mlx1:2 ");
}

static void test_nics_are_chosen_by_name(void **state)
{
	CASE(all_nics, { "FAKE_IBV_DEVICES", NICS });
	CASE(some_nics, { "FAKE_IBV_DEVICES", NICS }, { "NCCL_IB_HCA", "^=mlx0,mlx10" });
	CASE(some_nics, { "FAKE_IBV_DEVICES", NICS }, { "NCCL_IB_HCA", "=mlx1:1,mlx1:2" });
	CASE(listed_nics, { "FAKE_IBV_DEVICES", NICS }, { "MSCCLPP_HCA_DEVICES", "mlx10,mlx2,mlx1:2" },
	    { "NCCL_IB_HCA", "x" });
	CASE(listed_nics, { "FAKE_IBV_DEVICES", NICS }, { "SHUNT_IB_DEVICES", "mlx10,mlx1:2" },
	    { "MSCCLPP_HCA_DEVICES", "mlx0" });
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	return remove(path);
}

static void nic_in_sysfs(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];

	shunt_nic_sysfs(getenv("SHUNT_SYSFS_ROOT"));
	CHECK(ops->devices(info, SHUNT_NET_MAX_DEVICES) == 1);
	CHECK(strstr(info[0].pci, "/devices/pci0000:16/0000:16:01.0/0000:17:00.0") == info[0].pci);
	CHECK(info[0].numa == 1);
}

/* ---- connections */

struct end {
	struct shunt_net_device *device;
	struct shunt_net_endpoint *endpoint;
	struct shunt_net_blob blob;
	bool ready, ended, dead;
	int err;
	char text[512];
	uint64_t done, signalled;
};

static void step(struct end *end)
{
	struct shunt_net_event e[16];
	struct pollfd fd = { .fd = ops->fd(end->device), .events = POLLIN };
	int n = ops->progress(end->device, e, 16);

	for (int i = 0; i < n; i++) {
		end->ready |= e[i].kind == SHUNT_NET_READY;
		end->ended |= e[i].kind == SHUNT_NET_END;
		CHECK(!end->dead);
		end->done += e[i].kind == SHUNT_NET_PUT_DONE ? e[i].count : 0;
		end->signalled += e[i].kind == SHUNT_NET_SIGNAL ? e[i].count : 0;
		if (e[i].kind != SHUNT_NET_ERROR)
			continue;
		end->dead = true;
		end->err = e[i].err;
		snprintf(end->text, sizeof(end->text), "%s", e[i].text);
		fprintf(stderr, "%s\n", e[i].text);
	}
	if (!n && ops->arm(end->device))
		poll(&fd, 1, 1);
}

#define UNTIL(cond) \
	do { \
		int64_t until_ms = unit_now_ms() + AT_ONCE_MS; \
		while (!(cond)) { \
			step(&ends[0]); \
			step(&ends[1]); \
			CHECK(unit_now_ms() < until_ms); \
		} \
	} while (0)

static struct end ends[2];

/* End i on device i, or both on one; on so many rails, and with additions to words, if the settings say so. */
static void begin_within(int64_t connect_ms)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_net_peer peer = {
		.name = "rank 3 on node2", .connect_ms = connect_ms, .adds = shunt_config()->ibv_mode == SHUNT_IBV_HOST
	};
	int n = ops->devices(info, SHUNT_NET_MAX_DEVICES);

	CHECK(n >= 1);
	for (int i = 0; i < 2; i++) {
		int rails = (int)shunt_config()->ib_rails;

		CHECK(!ops->open(i < n ? i * rails : 0, &ends[i].device));
		for (int j = 1; j < rails; j++)
			CHECK(!ops->add_rail(ends[i].device, i * rails + j));
		CHECK(!ops->endpoint_create(ends[i].device, &peer, &ends[i].endpoint, &ends[i].blob));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ops->endpoint_connect(ends[i].endpoint, &ends[!i].blob));
}

static void begin(void)
{
	begin_within(AT_ONCE_MS);
}

/* memory: of each end, or NULL. */
static void end_with(struct shunt_net_memory *const memory[2])
{
	for (int i = 0; i < 2; i++)
		ops->endpoint_close(ends[i].endpoint);
	for (int i = 0; i < 2; i++) {
		ops->mem_deregister(memory[i]);
		ops->close(ends[i].device);
	}
}

static _Alignas(64) uint8_t from[65536], to[65536];

/* Puts with signals, n of them, as long as end 0 lives. */
static void put_many(int n)
{
	struct shunt_net_region source = { from, sizeof(from), -1, 0, 0 }, target = { to, sizeof(to), -1, 0, 0 };
	struct shunt_net_memory *memory[2];
	struct shunt_net_put put;

	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	put = (struct shunt_net_put){ .memory = memory[0], .remote = ops->mem_remote(memory[1]), .count = 1 };
	for (int i = 0; i < n && !ends[0].dead; i++) {
		put.source = from + i % 1000;
		put.bytes = 1 + (uint32_t)(i * 37 % 60000);
		UNTIL(ends[0].dead || ops->post(ends[0].endpoint, &put, 1));
	}
	UNTIL(ends[0].dead || (ends[0].done == (uint64_t)n && ends[1].signalled == (uint64_t)n));
	if (ends[0].dead)
		UNTIL(ends[1].dead);
	else
		CHECK(!memcmp(to, put.source, put.bytes));
	end_with(memory);
}

static void works(void)
{
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (uint8_t)(i * 7 + i / 251);
	begin();
	UNTIL(ends[0].ready && ends[1].ready);
	put_many(300);
	CHECK(!ends[0].dead && !ends[1].dead);
}

static void test_ends_agree(void **state)
{
	CASE(works, { "FAKE_IBV_DEVICES", "mlx0 link=roce mtu=4096; mlx1 link=roce mtu=512" });
	CASE(works,
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v1@10.0.0.1,v2@10.0.0.1,v2@fd00::1; mlx1 link=roce gids=v2@fd00::2,v1@10.0.0.2" });
	CASE(works,
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v1@10.0.0.1,v2@10.0.0.1; mlx1 link=roce gids=none,none,v1@10.0.0.2" });
	CASE(works, { "FAKE_IBV_DEVICES", "mlx0 link=ib; mlx1 link=ib mtu=2048" });
	CASE(works, { "NCCL_IB_SL", "3" }, { "NCCL_IB_TC", "106" }, { "NCCL_IB_TIMEOUT", "22" });
	CASE(works, { "NCCL_IB_PCI_RELAXED_ORDERING", "0" }, { "FAKE_IBV_PIECE_US", "1" });
	CASE(works, { "FAKE_IBV_HIDE", "reg_mr_iova2,reg_dmabuf_mr,ece" }, { "NCCL_IB_PCI_RELAXED_ORDERING", "0" });
	CASE(works,
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v2@10.0.0.1,v1@10.0.0.1; mlx1 link=roce gids=v2@10.0.0.2,v1@10.0.0.2" },
	    { "SHUNT_IB_GID_INDEX", "1" });
}

static void works_by_sysfs(void)
{
	shunt_nic_sysfs(getenv("SHUNT_SYSFS_ROOT"));
	works();
}

/* Where a NIC is, and, for a library that does not tell, which version of RoCE a GID has. */
static void test_sysfs_is_read(void **state)
{
	char root[2][32] = { "/tmp/shunt_verbs_XXXXXX", "/tmp/shunt_verbs_XXXXXX" };
	int status[2];

	for (int i = 0; i < 2; i++)
		assert_non_null(mkdtemp(root[i]));
	status[0] =
	    in_process((const struct setting[]){ { "SHUNT_SYSFS_ROOT", root[0] },
	                   { "FAKE_IBV_DEVICES", "mlx0 pci=0000:17:00.0 path=pci0000:16/0000:16:01.0 numa=1" }, NONE },
	        nic_in_sysfs);
	status[1] = in_process(
	    (const struct setting[]){ { "SHUNT_SYSFS_ROOT", root[1] }, { "SHUNT_IBV_LIB", old },
	        { "FAKE_IBV_DEVICES",
	            "mlx0 link=roce gids=v1@10.0.0.1,v2@10.0.0.1; mlx1 link=roce gids=v2@10.0.0.2,v1@10.0.0.3" },
	        NONE },
	    works_by_sysfs);
	for (int i = 0; i < 2; i++)
		nftw(root[i], remove_one, 16, FTW_DEPTH | FTW_PHYS);
	assert_int_equal(status[0], 0);
	assert_int_equal(status[1], 0);
}

static void expect_dead(const char *text)
{
	begin();
	UNTIL(ends[0].dead && ends[1].dead);
	for (int i = 0; i < 2; i++) {
		CHECK(!ends[i].ready && ends[i].err == -EADDRNOTAVAIL);
		CHECK(strstr(ends[i].text, "rank 3 on node2") && strstr(ends[i].text, "mlx") &&
		    strstr(ends[i].text, text));
	}
	end_with((struct shunt_net_memory *const[2]){ NULL, NULL });
}

static void no_common_gid(void)
{
	expect_dead("no GID of this end");
}

static void two_kinds(void)
{
	expect_dead("RoCE");
}

static void two_partitions(void)
{
	expect_dead("partition keys differ");
}

static void no_gid(void)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };
	struct unit_capture c;

	CHECK(!ops->open(0, &ends[0].device));
	unit_capture_begin(&c);
	CHECK(ops->endpoint_create(ends[0].device, &peer, &ends[0].endpoint, &ends[0].blob) == -EADDRNOTAVAIL);
	unit_capture_end(&c);
	CHECK(strstr(c.text, "SHUNT_IB_GID_INDEX=77") && unit_count(c.text, "\n") == 1);
	ops->close(ends[0].device);
}

static void no_partition(void)
{
	CHECK(ops->open(0, &ends[0].device) == -EINVAL);
}

static void test_ends_that_cannot_meet_say_why(void **state)
{
	CASE(no_common_gid, { "FAKE_IBV_DEVICES", "mlx0 link=roce gids=v2@10.0.0.1; mlx1 link=roce gids=v1@10.0.0.2" });
	CASE(no_common_gid, { "FAKE_IBV_DEVICES", "mlx0 link=roce gids=v2@fd00::1; mlx1 link=roce gids=v2@10.0.0.2" });
	CASE(no_common_gid,
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v2@10.0.0.1,v2@fd00::1; mlx1 link=roce gids=v2@10.1.0.2,v2@fd00::2,v1@10.0.0.2" },
	    { "NCCL_IB_ADDR_RANGE", "10.0.0.0/16" });
	CASE(two_kinds, { "FAKE_IBV_DEVICES", "mlx0 link=ib; mlx1 link=roce" });
	CASE(two_partitions, { "FAKE_IBV_DEVICES", "mlx0 pkeys=0xffff; mlx1 pkeys=0x8001" });
	CASE(no_gid, { "NCCL_IB_GID_INDEX", "77" });
	CASE(no_partition, { "NCCL_IB_PKEY", "99" });
}

static void says_nothing(void)
{
	begin_within(400);
	UNTIL(ends[0].dead && ends[1].dead);
	for (int i = 0; i < 2; i++)
		CHECK(
		    !ends[i].ready && ends[i].err == -ETIMEDOUT && strstr(ends[i].text, "does the network carry RDMA"));
	end_with((struct shunt_net_memory *const[2]){ NULL, NULL });
}

/* What is lost without a word: another service level than the network has, another partition at the peer's place. */
static void test_a_silent_network_is_found(void **state)
{
	CASE(says_nothing, { "FAKE_IBV_DEVICES", "mlx0 link=roce sls=1" }, { "NCCL_IB_SL", "3" });
	CASE(says_nothing, { "FAKE_IBV_DROP", "1000" });
}

/* ---- what NICs of one vendor can do */

static uint32_t options_of(int end)
{
	struct verbs_endpoint *ep = verbs_endpoint_of(ends[end].endpoint);
	struct shunt_ibv_ece ece = { 0 };

	CHECK(!ep->device->ibv->query_ece(ep->lane->qp, &ece));
	return ece.options;
}

static void expect_options(uint32_t first, uint32_t second)
{
	begin();
	UNTIL(ends[0].ready && ends[1].ready);
	CHECK(options_of(0) == first && options_of(1) == second);
	put_many(50);
	CHECK(!ends[0].dead);
}

static void common_options(void)
{
	expect_options(0x0c, 0x0c);
}

/* Nobody has set any. */
static void own_options(void)
{
	expect_options(0x3c, 0x0f);
}

static void test_ends_use_what_both_nics_can_do(void **state)
{
	CASE(common_options, { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0x77:0x0f" });
	CASE(own_options, { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0x78:0x0f" });
	CASE(own_options, { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0x77:0x0f" },
	    { "NCCL_IB_ECE_ENABLE", "0" });
	CASE(works, { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0" });
	CASE(works, { "FAKE_IBV_HIDE", "ece" });
	CASE(works, { "SHUNT_IBV_LIB", old });
}

/* ---- what NICs may do with data */

#define WIDE ((size_t)1 << 20)
static uint8_t wide_from[WIDE], wide_to[WIDE];

/* A source is written anew at the moment at which it may be. With several queue pairs most puts have parts on all. */
static void sources_change(void)
{
	struct shunt_net_region source = { wide_from, WIDE, -1, 0, 0 }, target = { wide_to, WIDE, -1, 0, 0 };
	uint32_t most = shunt_config()->ib_qps > 1 ? WIDE : 65536;
	struct shunt_net_memory *memory[2];
	struct shunt_net_put put = { .source = wide_from, .count = 1 };

	begin();
	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	UNTIL(ends[0].ready && ends[1].ready);
	put.memory = memory[0];
	put.remote = ops->mem_remote(memory[1]);
	for (uint32_t turn = 1; turn <= 100; turn++) {
		put.bytes = turn % 3 ? 1 + turn * 104729 % most : turn;
		memset(wide_from, (int)(turn & 0x7f), put.bytes);
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		for (int64_t stop = unit_now_ms() + AT_ONCE_MS; ends[0].done != turn; step(&ends[0]))
			CHECK(unit_now_ms() < stop);
		memset(wide_from, 0xff, put.bytes);
		UNTIL(ends[1].signalled == turn);
		for (uint32_t i = 0; i < put.bytes; i++)
			CHECK(wide_to[i] == (turn & 0x7f));
	}
	end_with(memory);
}

static void test_data_may_land_late_and_in_pieces(void **state)
{
	CASE(works, { "FAKE_IBV_PIECE_US", "2" });
	CASE(sources_change, { "FAKE_IBV_PIECE_US", "2" });
}

static void test_sources_are_read_late(void **state)
{
	CASE(sources_change, { "FAKE_IBV_LATE_READ_US", "500" });
	/* What is small is copied when it is posted. */
	CASE(sources_change, { "FAKE_IBV_LATE_READ_US", "500" }, { "FAKE_IBV_DEVICES", "mlx0 inline=0" });
	CASE(sources_change, { "FAKE_IBV_LATE_READ_US", "500" }, { "FAKE_IBV_DEVICES", "mlx0 inline=64" });
	CASE(sources_change, { "FAKE_IBV_LATE_READ_US", "500" }, { "SHUNT_IB_QPS", "3" });
}

static void test_completions_come_late_and_in_batches(void **state)
{
	CASE(works, { "FAKE_IBV_CQ_DELAY_US", "1000" });
	CASE(works, { "FAKE_IBV_CQ_PERIOD_US", "700" });
	CASE(works, { "FAKE_IBV_CQ_PERIOD_US", "500" }, { "FAKE_IBV_CQ_DELAY_US", "300" });
}

/* Puts without signals, more than a queue holds: most have no completion of their own, which would give a slot back. */
static void many_without_signals(void)
{
	struct shunt_net_region source = { from, sizeof(from), -1, 0, 0 }, target = { to, sizeof(to), -1, 0, 0 };
	struct shunt_net_memory *memory[2];
	struct shunt_net_put put = { .source = from, .bytes = 100 };
	uint64_t posted = 0;

	begin();
	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	UNTIL(ends[0].ready && ends[1].ready);
	put.memory = memory[0];
	put.remote = ops->mem_remote(memory[1]);
	/* As fast as it takes them, and the NIC is looked at only when it takes none. */
	for (int64_t stop = unit_now_ms() + AT_ONCE_MS; posted < 20 * VERBS_SENDS;) {
		int taken = ops->post(ends[0].endpoint, &put, 1);

		CHECK(taken >= 0 && unit_now_ms() < stop);
		posted += (unsigned)taken;
		if (!taken)
			step(&ends[0]);
	}
	UNTIL(ends[0].done == posted);
	CHECK(!ends[0].dead);
	end_with(memory);
}

static void test_a_full_queue_has_room_again(void **state)
{
	char shortest[64], queues[64];

	snprintf(shortest, sizeof(shortest), "mlx0 depth=%d", VERBS_RECEIVES);
	snprintf(queues, sizeof(queues), "mlx0 cqes=%d", VERBS_CQ_ENTRIES(1) + VERBS_MAX_GPU_MEMORY);
	CASE(many_without_signals, { "FAKE_IBV_DEVICES", shortest });
	CASE(many_without_signals, { "FAKE_IBV_DEVICES", queues });
}

/* Everything of 32 endpoints fails at once, in completion queues that are as short as they may be: none is too short.
 */
static void all_fail_at_once(void)
{
	enum { N = 32 };
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };
	struct shunt_net_put signal = { .count = 1 };
	struct shunt_net_event events[16];
	struct shunt_net_endpoint *endpoint[2 * N];
	struct shunt_net_blob blob[2 * N];
	struct shunt_net_device *device;
	int ready = 0, dead = 0;
	int64_t stop = unit_now_ms() + AT_ONCE_MS;

	CHECK(!ops->open(0, &device));
	for (int i = 0; i < 2 * N; i++)
		CHECK(!ops->endpoint_create(device, &peer, &endpoint[i], &blob[i]));
	for (int i = 0; i < 2 * N; i++)
		CHECK(!ops->endpoint_connect(endpoint[i], &blob[i ^ 1]));
	while (ready < 2 * N) {
		for (int n = ops->progress(device, events, 16); n; n--)
			ready += events[n - 1].kind == SHUNT_NET_READY;
		CHECK(unit_now_ms() < stop);
	}
	for (int i = 0; i < 2 * N; i++)
		for (int n = 0; n < VERBS_PUTS; n++)
			CHECK(ops->post(endpoint[i], &signal, 1) == 1);
	for (int i = 0; i < 2 * N; i++)
		CHECK(!verbs_qp_state(
		    verbs_device_of(device)->rail, verbs_endpoint_of(endpoint[i])->lane->qp, SHUNT_IBV_QPS_ERR));
	while (dead < 2 * N) {
		for (int n = ops->progress(device, events, 16); n; n--) {
			dead += events[n - 1].kind == SHUNT_NET_ERROR;
			CHECK(events[n - 1].kind != SHUNT_NET_ERROR || !strstr(events[n - 1].text, "CQ"));
		}
		CHECK(unit_now_ms() < stop);
	}
	for (int i = 0; i < 2 * N; i++)
		ops->endpoint_close(endpoint[i]);
	ops->close(device);
}

static void test_completion_queues_do_not_overrun(void **state)
{
	CASE(all_fail_at_once, { "FAKE_IBV_CQ_PERIOD_US", "3000" });
}

/* ---- signals */

/* Work of a sender whose peer takes nothing: it stops while the peer still has receives, so that none is missing. */
static void signals_alone(void)
{
	struct shunt_net_put signal = { .channel = 7, .count = 1 };
	uint64_t posted = 0;
	int64_t stop;

	begin();
	UNTIL(ends[0].ready && ends[1].ready);
	for (stop = unit_now_ms() + AT_ONCE_MS; ends[0].done < VERBS_SIGNALS;) {
		CHECK(unit_now_ms() < stop);
		posted += (uint64_t)ops->post(ends[0].endpoint, &signal, 1);
		step(&ends[0]);
	}
	while (ops->post(ends[0].endpoint, &signal, 1) == 1)
		posted++;
	CHECK(posted == VERBS_SIGNALS + VERBS_PUTS);
	/* What must not happen would have by then. */
	for (stop = unit_now_ms() + 200; unit_now_ms() < stop;)
		step(&ends[0]);
	CHECK(ends[0].done == VERBS_SIGNALS);
	UNTIL(ends[0].done == posted && ends[1].signalled == posted);
	end_with((struct shunt_net_memory *const[2]){ NULL, NULL });
}

static void test_a_signal_always_finds_a_receive(void **state)
{
	CASE(signals_alone, { "FAKE_IBV_DEVICES", "mlx0 link=roce" });
}

/* ---- errors of NICs */

static char script[] = "/tmp/shunt_faults_XXXXXX";

static void write_script(const char *text)
{
	int fd = open(script, O_WRONLY | O_TRUNC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

/*
 * The error may meet the sender of the data, or the other end, which returns credits; the sender dies of either. The
 * end that it meets says one text or the other: a completion and an event of the NIC come in any order.
 */
static void dies_of(int err, const char *text, const char *other)
{
	const struct end *met;

	begin();
	UNTIL(ends[0].ready && ends[1].ready);
	put_many(5000);
	CHECK(ends[0].dead);
	met = ends[0].err == err ? &ends[0] : &ends[1];
	CHECK(met->dead && met->err == err);
	CHECK(strstr(met->text, "rank 3 on node2") && strstr(met->text, "mlx0 port 1"));
	CHECK(strstr(met->text, text) || strstr(met->text, other));
}

static void bad_status(void)
{
	dies_of(-EIO, "status 11", "status 11");
}

static void fatal(void)
{
	dies_of(-EIO, "the NIC reports", "the NIC reports");
}

static void link_lost(void)
{
	dies_of(-EOWNERDEAD, "status 12", "status 12");
}

static void refused(void)
{
	dies_of(-EACCES, "status 10", "the NIC reports: local access violation");
}

static void test_a_refused_write_kills_the_endpoint(void **state)
{
	CASE(refused, { "FAKE_IBV_ACCESS_ERRORS", "20" });
}

/* A process that the script kills, with this one's peer. */
static void peer_process(int pipe_fd)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };
	struct shunt_net_blob theirs;

	CHECK(!ops->open(0, &ends[0].device));
	CHECK(!ops->endpoint_create(ends[0].device, &peer, &ends[0].endpoint, &ends[0].blob));
	CHECK(write(pipe_fd, &ends[0].blob, sizeof(theirs)) == sizeof(theirs));
	CHECK(recv(pipe_fd, &theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs));
	CHECK(!ops->endpoint_connect(ends[0].endpoint, &theirs));
}

static void peer_is_killed(void)
{
	char fabric[] = "/dev/shm/shunt-test-verbs-XXXXXX";
	int fds[2], file = mkstemp(fabric), status;
	struct shunt_net_put signal = { .count = 1 };
	int64_t stop = unit_now_ms() + AT_ONCE_MS;
	pid_t pid;

	CHECK(file >= 0 && !close(file) && !unlink(fabric)); /* who comes first makes it */
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	setenv("FAKE_IBV_FABRIC", fabric, 1);
	pid = child_fork();
	CHECK(pid >= 0);
	if (!pid) {
		setenv("FAKE_IBV_HOST", "host1", 1);
		peer_process(fds[1]);
		while (unit_now_ms() < stop)
			step(&ends[0]);
		child_exit(0);
	}
	peer_process(fds[0]);
	unlink(fabric);
	while (!ends[0].dead && unit_now_ms() < stop) {
		if (ends[0].ready)
			ops->post(ends[0].endpoint, &signal, 1);
		step(&ends[0]);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK(ends[0].dead && ends[0].err == -EOWNERDEAD && strstr(ends[0].text, "rank 3 on node2"));
	ops->endpoint_close(ends[0].endpoint);
	ops->close(ends[0].device);
}

static void test_a_killed_process_is_told(void **state)
{
	write_script("at=500 link=host1:mlx0 action=kill\n");
	CASE(peer_is_killed, { "FAKE_IBV_FAULTS", script }, { "NCCL_IB_TIMEOUT", "14" });
}

static void test_errors_of_nics_are_told(void **state)
{
	write_script("at=300 link=host0:mlx0 action=corrupt-status 11\n");
	CASE(bad_status, { "FAKE_IBV_FAULTS", script });
	write_script("at=300 link=host0:mlx0 action=fatal\n");
	CASE(fatal, { "FAKE_IBV_FAULTS", script });
	write_script("at=300 link=host0:mlx0 action=down\n");
	CASE(link_lost, { "FAKE_IBV_FAULTS", script }, { "NCCL_IB_TIMEOUT", "14" });
}

static void test_short_faults_are_survived(void **state)
{
	write_script("at=300 link=host0:mlx0 action=flap 50ms\nat=900 link=host0:mlx0 action=drop 3\n"
	             "at=1500 link=host0:mlx0 action=stall 100ms\nat=2000 link=host0:mlx0 action=gid-change\n");
	CASE(works, { "FAKE_IBV_FAULTS", script });
	/* Longer than one time-out, and not as long as all. */
	write_script("at=300 link=host0:mlx0 action=down\nat=600 link=host0:mlx0 action=up\n");
	CASE(works, { "FAKE_IBV_FAULTS", script });
}

static void test_packets_that_are_lost_come_again(void **state)
{
	CASE(works, { "FAKE_IBV_DROP", "5" });
	CASE(works, { "FAKE_IBV_DROP", "5" }, { "FAKE_IBV_PIECE_US", "1" });
}

static void test_a_receive_that_is_late_is_waited_for(void **state)
{
	CASE(works, { "FAKE_IBV_RNR", "20" });
}

/* ---- several rails and queue pairs */

/* Large puts, some without a signal of their own; a signal, of whatever put, says that all before it are there. */
static void many_lanes(void)
{
	struct shunt_net_region source = { wide_from, WIDE, -1, 0, 0 }, target = { wide_to, WIDE, -1, 0, 0 };
	int nlanes = atoi(getenv("LANES"));
	struct shunt_net_memory *memory[2];
	struct shunt_net_put put;

	begin();
	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	UNTIL(ends[0].ready && ends[1].ready);
	for (int i = 0; i < 2; i++)
		CHECK(verbs_endpoint_of(ends[i].endpoint)->nlanes == nlanes);
	put = (struct shunt_net_put){ .memory = memory[0], .remote = ops->mem_remote(memory[1]) };
	for (uint32_t turn = 1; turn <= 100; turn++) {
		uint32_t large = 1 + turn * 104729 % (WIDE - 100), done = 2 * (turn - 1);

		for (uint32_t i = 0; i < large; i++)
			wide_from[i] = (uint8_t)(i * 7 + i / 251 + turn);
		memset(wide_from + large, (int)turn, 64);
		put.source = wide_from;
		put.bytes = large;
		put.remote_offset = 0;
		put.count = turn % 2;
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		put.source = wide_from + large;
		put.bytes = turn % 3 ? 64 : 0;
		put.remote_offset = large;
		put.count = 1;
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		UNTIL(ends[1].signalled == turn + (turn + 1) / 2);
		CHECK(!memcmp(wide_from, wide_to, large + put.bytes));
		UNTIL(ends[0].done == done + 2);
	}
	for (int i = 0; i < 2; i++)
		ops->finish(ends[i].endpoint);
	UNTIL(ends[0].ended && ends[1].ended);
	CHECK(!ends[0].dead && !ends[1].dead);
	end_with(memory);
}

#define FOUR_NICS "mlx0 link=roce; mlx1 link=roce; mlx2 link=roce; mlx3 link=roce mtu=512"

static void test_large_puts_go_over_rails_and_queue_pairs(void **state)
{
	CASE(many_lanes, { "LANES", "1" });
	CASE(many_lanes, { "LANES", "4" }, { "NCCL_IB_QPS_PER_CONNECTION", "4" });
	CASE(many_lanes, { "LANES", "8" }, { "SHUNT_IB_QPS", "100" });
	CASE(many_lanes, { "LANES", "2" }, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" });
	CASE(many_lanes, { "LANES", "4" }, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" },
	    { "SHUNT_IB_QPS", "2" }, { "FAKE_IBV_PIECE_US", "2" }, { "FAKE_IBV_CQ_DELAY_US", "300" });
	/* Additions would not wait for the other lanes. */
	CASE(many_lanes, { "LANES", "1" }, { "SHUNT_IBV_MODE", "host" }, { "SHUNT_IB_QPS", "4" });
	/* Queues that have no room for more. */
	CASE(many_lanes, { "LANES", "2" }, { "SHUNT_IB_QPS", "8" }, { "FAKE_IBV_DEVICES", "mlx0 cqes=2000" });
	write_script("at=2000 link=host0:mlx1 action=stall 100ms\nat=5000 link=host0:mlx1 action=flap 50ms\n");
	CASE(many_lanes, { "LANES", "2" }, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" },
	    { "FAKE_IBV_FAULTS", script });
}

/* The end with more of both takes as many as the other one. */
static void uneven(void)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };

	for (int i = 0; i < 2; i++) {
		CHECK(!ops->open(2 * i, &ends[i].device));
		CHECK(i || !ops->add_rail(ends[i].device, 1));
		CHECK(!ops->endpoint_create(ends[i].device, &peer, &ends[i].endpoint, &ends[i].blob));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ops->endpoint_connect(ends[i].endpoint, &ends[!i].blob));
	UNTIL(ends[0].ready && ends[1].ready);
	for (int i = 0; i < 2; i++)
		CHECK(verbs_endpoint_of(ends[i].endpoint)->nlanes == 2);
	put_many(100);
	CHECK(!ends[0].dead);
}

static void test_ends_take_as_many_lanes_as_both_have(void **state)
{
	CASE(uneven, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_QPS", "2" });
}

/* Names the rail, once. */
static void rail_lost(void)
{
	struct shunt_net_region source = { wide_from, WIDE, -1, 0, 0 }, target = { wide_to, WIDE, -1, 0, 0 };
	struct shunt_net_memory *memory[2];
	struct shunt_net_put put;
	const struct end *met;
	int64_t stop = unit_now_ms() + AT_ONCE_MS;

	begin();
	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	UNTIL(ends[0].ready && ends[1].ready);
	put = (struct shunt_net_put){ .source = wide_from,
		.bytes = WIDE,
		.memory = memory[0],
		.remote = ops->mem_remote(memory[1]),
		.count = 1 };
	while (!ends[0].dead || !ends[1].dead) {
		if (!ends[0].dead)
			ops->post(ends[0].endpoint, &put, 1);
		CHECK(unit_now_ms() < stop);
		step(&ends[0]);
		step(&ends[1]);
	}
	met = strstr(ends[0].text, "mlx1") ? &ends[0] : &ends[1];
	CHECK(strstr(met->text, met == ends ? "mlx1 port 1" : "mlx3 port 1") && strstr(met->text, "status 12"));
	end_with(memory);
}

static void no_gid_on_a_rail(void)
{
	begin();
	UNTIL(ends[0].dead && ends[1].dead);
	CHECK(!ends[0].ready && !ends[1].ready);
	CHECK((strstr(ends[0].text, "mlx1 port 1") && strstr(ends[0].text, "no GID of this end")) ||
	    (strstr(ends[1].text, "mlx3 port 1") && strstr(ends[1].text, "no GID of this end")));
	end_with((struct shunt_net_memory *const[2]){ NULL, NULL });
}

static void silent_rail(void)
{
	begin_within(700);
	UNTIL(ends[0].dead && ends[1].dead);
	CHECK(!ends[0].ready && !ends[1].ready);
	CHECK(strstr(ends[0].text, "mlx1 port 1") || strstr(ends[1].text, "mlx3 port 1"));
	end_with((struct shunt_net_memory *const[2]){ NULL, NULL });
}

static void test_a_rail_that_fails_ends_the_endpoint(void **state)
{
	write_script("at=3000 link=host0:mlx1 action=down\n");
	CASE(rail_lost, { "FAKE_IBV_DEVICES", FOUR_NICS }, { "SHUNT_IB_RAILS", "2" }, { "FAKE_IBV_FAULTS", script },
	    { "NCCL_IB_TIMEOUT", "14" });
	CASE(no_gid_on_a_rail,
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce; mlx1 link=roce gids=v1@10.0.0.1; mlx2 link=roce; mlx3 link=roce gids=v2@10.0.0.2" },
	    { "SHUNT_IB_RAILS", "2" });
	CASE(silent_rail,
	    { "FAKE_IBV_DEVICES", "mlx0 link=roce; mlx1 link=roce sls=1; mlx2 link=roce; mlx3 link=roce sls=1" },
	    { "SHUNT_IB_RAILS", "2" }, { "NCCL_IB_SL", "1" });
}

/* ---- additions to words */

static uint64_t words[8];

static void additions(void)
{
	struct shunt_net_region region = { words, sizeof(words), -1, 0, SHUNT_NET_MEMORY_WORDS };
	struct shunt_net_memory *memory[2] = { NULL };
	struct shunt_net_put put = { .count = 3, .flags = SHUNT_NET_ADD };

	begin();
	CHECK(!ops->mem_register(ends[1].device, &region, &memory[1]));
	put.words = ops->mem_remote(memory[1]);
	UNTIL(ends[0].ready && ends[1].ready);
	for (uint64_t i = 0; i < 2000; i++) {
		put.word_offset = 8 * (i % 8);
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
	}
	UNTIL(ends[0].done == 2000);
	for (int i = 0; i < 8; i++)
		CHECK(__atomic_load_n(&words[i], __ATOMIC_ACQUIRE) == 750);
	CHECK(!ends[0].dead && !ends[1].dead && !ends[1].signalled);
	end_with(memory);
}

static void test_additions_happen_once(void **state)
{
	CASE(additions, { "SHUNT_IBV_MODE", "host" }, { "FAKE_IBV_DROP", "10" });
	CASE(additions, { "MSCCLPP_IBV_MODE", "host" }, { "FAKE_IBV_DEVICES", "mlx0 atomic=glob rd=1; mlx1 rd=4" });
}

static void no_additions(void)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS, .adds = true };
	struct shunt_net_region region = { words, sizeof(words), -1, 0, SHUNT_NET_MEMORY_WORDS };
	struct shunt_net_memory *memory;
	struct shunt_net_info info[1];
	struct unit_capture c;

	CHECK(ops->devices(info, 1) == 1 && !info[0].adds);
	unit_capture_begin(&c);
	CHECK(!(shunt_net_usable() & SHUNT_NET_USABLE_ADDS) && shunt_net_usable() == 3);
	unit_capture_end(&c);
	CHECK(unit_count(c.text, "no atomics") == 1 && strstr(c.text, "mlx0 port 1"));
	CHECK(!ops->open(0, &ends[0].device));
	CHECK(ops->mem_register(ends[0].device, &region, &memory) == -EOPNOTSUPP);
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
	end_with((struct shunt_net_memory *const[2]){ NULL, NULL });
}

static void test_additions_need_atomics_at_both_ends(void **state)
{
	CASE(no_additions, { "FAKE_IBV_DEVICES", "mlx0 atomic=none" }, { "SHUNT_IBV_MODE", "host" });
	CASE(may_add, { "SHUNT_IBV_MODE", "host" });
	CASE(may_add, { "SHUNT_IBV_MODE", "host-no-atomic" });
	CASE(may_add, { "SHUNT_IBV_MODE", "hots" });
	CASE(lands_in_gpus, { "SHUNT_IBV_MODE", "host" }, { "SHUNT_NET_GPU_MEMORY", "1" });
	CASE(another_mode, { "FAKE_IBV_DEVICES", "mlx0" });
}

/* ---- memory */

static void too_much_memory(void)
{
	struct rlimit limit = { 8 << 20, 8 << 20 };
	struct shunt_net_region region = { from, sizeof(from), -1, 0, 0 };
	struct shunt_net_memory *memory;
	struct unit_capture c;

	setrlimit(RLIMIT_MEMLOCK, &limit);
	CHECK(!ops->open(0, &ends[0].device));
	unit_capture_begin(&c);
	CHECK(ops->mem_register(ends[0].device, &region, &memory) == -ENOMEM);
	unit_capture_end(&c);
	CHECK(strstr(c.text, "ulimit -l") && strstr(c.text, "8192 KiB") && unit_count(c.text, "\n") == 1);
	ops->close(ends[0].device);
}

static void test_the_limit_of_locked_memory_is_named(void **state)
{
	CASE(too_much_memory, { "FAKE_IBV_MEMLOCK", "40000" });
}

#define GPU_BYTES 65536

/* A GPU's memory: a dma-buf, which the NIC writes to, and which is seen here through another mapping. */
static void gpu_memory(void)
{
	int fd = memfd_create("gpu", MFD_CLOEXEC);
	struct shunt_net_region target = { NULL, GPU_BYTES, fd, 0, SHUNT_NET_MEMORY_GPU },
	                        source = { from, sizeof(from), -1, 0, 0 };
	struct shunt_net_memory *memory[2];
	struct shunt_net_put put = { 0 };
	struct shunt_net_info info[1];

	CHECK(!ftruncate(fd, GPU_BYTES));
	target.start = mmap(NULL, GPU_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(target.start != MAP_FAILED);
	begin();
	CHECK(ops->devices(info, 1) == 1 && info[0].gpu_memory);
	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	UNTIL(ends[0].ready && ends[1].ready);
	put.memory = memory[0];
	put.remote = ops->mem_remote(memory[1]);
	put.count = 1;
	for (uint32_t turn = 1; turn <= 200; turn++) {
		put.source = from;
		put.bytes = 1 + turn * 317 % GPU_BYTES;
		memset(from, (int)(turn & 0xff), sizeof(from));
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		UNTIL(ends[1].signalled == turn);
		CHECK(!memcmp(target.start, from, put.bytes));
		UNTIL(ends[0].done == turn);
	}
	end_with(memory);
}

/* The same, with signals that are words of that memory. */
static void words_of_a_gpu(void)
{
	int fd = memfd_create("gpu", MFD_CLOEXEC);
	struct shunt_net_region target = { NULL, GPU_BYTES, fd, 0, SHUNT_NET_MEMORY_GPU | SHUNT_NET_MEMORY_WORDS },
	                        source = { from, sizeof(from), -1, 0, 0 },
	                        elsewhere = { words, sizeof(words), -1, 0, SHUNT_NET_MEMORY_WORDS };
	struct shunt_net_memory *memory[2], *unused;
	struct shunt_net_put put = { .source = from, .remote_offset = 8, .count = 1, .flags = SHUNT_NET_ADD };
	uint64_t *word;

	CHECK(!ftruncate(fd, GPU_BYTES));
	target.start = mmap(NULL, GPU_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(target.start != MAP_FAILED);
	word = target.start;
	begin();
	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	/* An addition in the host's memory would not wait for the GPU's. */
	CHECK(ops->mem_register(ends[1].device, &elsewhere, &unused) == -EOPNOTSUPP);
	UNTIL(ends[0].ready && ends[1].ready);
	put.memory = memory[0];
	put.remote = put.words = ops->mem_remote(memory[1]);
	for (uint32_t turn = 1; turn <= 200; turn++) {
		put.bytes = 1 + turn * 317 % (GPU_BYTES - 8);
		memset(from, (int)(turn & 0xff), sizeof(from));
		UNTIL(ops->post(ends[0].endpoint, &put, 1));
		UNTIL(__atomic_load_n(word, __ATOMIC_ACQUIRE) == turn);
		CHECK(!memcmp((char *)target.start + 8, from, put.bytes));
		UNTIL(ends[0].done == turn);
	}
	end_with(memory);
}

/* A GPU's memory by its address, which the kernel's module for it must know. */
static void gpu_memory_by_address(void)
{
	bool may = getenv("FAKE_IBV_PEERMEM");
	int fd = memfd_create("shunt-test-gpu", MFD_CLOEXEC);
	struct shunt_net_region region = { NULL, GPU_BYTES, -1, 0, SHUNT_NET_MEMORY_GPU };
	struct shunt_net_memory *memory = NULL;

	CHECK(!ftruncate(fd, GPU_BYTES));
	region.start = mmap(NULL, GPU_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(region.start != MAP_FAILED && !ops->open(0, &ends[0].device));
	CHECK(ops->mem_register(ends[0].device, &region, &memory) == (may ? 0 : -EOPNOTSUPP));
	ops->mem_deregister(memory);
	ops->close(ends[0].device);
}

static void test_a_gpus_memory_by_its_address(void **state)
{
	CASE(gpu_memory_by_address, { "FAKE_IBV_DEVICE_MAPS", "shunt-test-gpu" });
	CASE(gpu_memory_by_address, { "FAKE_IBV_DEVICE_MAPS", "shunt-test-gpu" }, { "FAKE_IBV_PEERMEM", "1" });
}

static void no_gpu_memory(void)
{
	struct shunt_net_region region = { from, sizeof(from), -1, 0, SHUNT_NET_MEMORY_GPU };
	struct shunt_net_memory *memory;
	struct shunt_net_info info[1];

	CHECK(ops->devices(info, 1) == 1 && !info[0].gpu_memory);
	CHECK(!ops->open(0, &ends[0].device));
	CHECK(ops->mem_register(ends[0].device, &region, &memory) == -EOPNOTSUPP);
	ops->close(ends[0].device);
}

static void test_signals_wait_until_gpus_see_the_data(void **state)
{
	CASE(gpu_memory, { "FAKE_IBV_ORDERING", "none" }, { "FAKE_IBV_PARK_US", "3000000" });
	CASE(gpu_memory, { "FAKE_IBV_ORDERING", "none" }, { "FAKE_IBV_DEVICES", "mlx0 link=ib" });
	CASE(words_of_a_gpu, { "FAKE_IBV_ORDERING", "none" }, { "FAKE_IBV_PARK_US", "3000000" },
	    { "SHUNT_IBV_MODE", "host" });
	CASE(no_gpu_memory, { "FAKE_IBV_DEVICES", "mlx0 dmabuf=0" });
	CASE(no_gpu_memory, { "FAKE_IBV_HIDE", "reg_dmabuf_mr" });
}

/* Without relaxed ordering what is written first is seen first: packets and words rely on it. */
static void ordered_memory(void)
{
	struct shunt_net_region source = { from, sizeof(from), -1, 0, 0 },
	                        target = { to, sizeof(to), -1, 0, SHUNT_NET_MEMORY_ORDERED };
	const uint64_t *first = (const uint64_t *)(void *)to, *last = first + 1023;
	struct shunt_net_memory *memory[2];
	struct shunt_net_put put = { 0 };
	int64_t stop;

	begin();
	CHECK(!ops->mem_register(ends[0].device, &source, &memory[0]));
	CHECK(!ops->mem_register(ends[1].device, &target, &memory[1]));
	UNTIL(ends[0].ready && ends[1].ready);
	put = (struct shunt_net_put){
		.source = from, .memory = memory[0], .remote = ops->mem_remote(memory[1]), .bytes = 8192
	};
	for (int turn = 1; turn <= 30; turn++) {
		memset(from, turn, 8192);
		CHECK(ops->post(ends[0].endpoint, &put, 1) == 1);
		stop = unit_now_ms() + AT_ONCE_MS;
		while ((uint8_t)__atomic_load_n(last, __ATOMIC_ACQUIRE) != turn)
			CHECK(unit_now_ms() < stop);
		CHECK((uint8_t)__atomic_load_n(first, __ATOMIC_RELAXED) == turn);
		UNTIL(ends[0].done == (uint64_t)turn);
	}
	end_with(memory);
}

static void test_ordered_memory_has_its_order(void **state)
{
	CASE(ordered_memory, { "FAKE_IBV_PIECE_US", "20" });
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_a_path_that_fails_is_one_line),
	cmocka_unit_test(test_the_real_library_without_devices),
	cmocka_unit_test(test_no_devices),
	cmocka_unit_test(test_nics_are_chosen_by_name),
	cmocka_unit_test(test_ends_agree),
	cmocka_unit_test(test_sysfs_is_read),
	cmocka_unit_test(test_ends_that_cannot_meet_say_why),
	cmocka_unit_test(test_a_silent_network_is_found),
	cmocka_unit_test(test_ends_use_what_both_nics_can_do),
	cmocka_unit_test(test_data_may_land_late_and_in_pieces),
	cmocka_unit_test(test_sources_are_read_late),
	cmocka_unit_test(test_completions_come_late_and_in_batches),
	cmocka_unit_test(test_a_full_queue_has_room_again),
	cmocka_unit_test(test_completion_queues_do_not_overrun),
	cmocka_unit_test(test_a_signal_always_finds_a_receive),
	cmocka_unit_test(test_a_refused_write_kills_the_endpoint),
	cmocka_unit_test(test_a_killed_process_is_told),
	cmocka_unit_test(test_errors_of_nics_are_told),
	cmocka_unit_test(test_short_faults_are_survived),
	cmocka_unit_test(test_packets_that_are_lost_come_again),
	cmocka_unit_test(test_a_receive_that_is_late_is_waited_for),
	cmocka_unit_test(test_large_puts_go_over_rails_and_queue_pairs),
	cmocka_unit_test(test_ends_take_as_many_lanes_as_both_have),
	cmocka_unit_test(test_a_rail_that_fails_ends_the_endpoint),
	cmocka_unit_test(test_additions_happen_once),
	cmocka_unit_test(test_additions_need_atomics_at_both_ends),
	cmocka_unit_test(test_the_limit_of_locked_memory_is_named),
	cmocka_unit_test(test_a_gpus_memory_by_its_address),
	cmocka_unit_test(test_signals_wait_until_gpus_see_the_data),
	cmocka_unit_test(test_ordered_memory_has_its_order),
};

int main(int argc, char **argv)
{
	int fd = mkstemp(script), failed;

	own_environment();
	if (fd < 0 || argc < 3)
		return 2;
	fake = argv[1];
	old = argv[2];
	if (argc > 3)
		cmocka_set_test_filter(argv[3]);
	close(fd);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(script);
	return failed;
}

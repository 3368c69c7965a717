/* SPDX-License-Identifier: MIT */
/* How two ends of the provider verbs agree on addresses, keys and what their NICs can do. */
#include "tests/transport/verbs_suite.h"
#include <ftw.h>
#include "tests/support/own.h"
#include "transport/net/nic.h"

/* ---- connections */
static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	return remove(path);
}

static void nic_in_sysfs(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];

	shunt_pci_sysfs(getenv("SHUNT_SYSFS_ROOT"));
	CHECK(ops->devices(info, SHUNT_NET_MAX_DEVICES) == 1);
	CHECK(strstr(info[0].pci, "/devices/pci0000:16/0000:16:01.0/0000:17:00.0") == info[0].pci);
	CHECK(info[0].numa == 1);
}

TEST(test_ends_agree)
{
	CASE(works(), { "FAKE_IBV_DEVICES", "mlx0 link=roce mtu=4096; mlx1 link=roce mtu=512" });
	CASE(works(),
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v1@10.0.0.1,v2@10.0.0.1,v2@fd00::1; mlx1 link=roce gids=v2@fd00::2,v1@10.0.0.2" });
	CASE(works(),
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v1@10.0.0.1,v2@10.0.0.1; mlx1 link=roce gids=none,none,v1@10.0.0.2" });
	CASE(works(), { "FAKE_IBV_DEVICES", "mlx0 link=ib; mlx1 link=ib mtu=2048" });
	CASE(works(), { "NCCL_IB_SL", "3" }, { "NCCL_IB_TC", "106" }, { "NCCL_IB_TIMEOUT", "22" });
	CASE(works(), { "NCCL_IB_PCI_RELAXED_ORDERING", "0" }, { "FAKE_IBV_PIECE_US", "1" });
	CASE(works(), { "FAKE_IBV_HIDE", "reg_mr_iova2,reg_dmabuf_mr,ece" }, { "NCCL_IB_PCI_RELAXED_ORDERING", "0" });
	CASE(works(),
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v2@10.0.0.1,v1@10.0.0.1; mlx1 link=roce gids=v2@10.0.0.2,v1@10.0.0.2" },
	    { "SHUNT_IB_GID_INDEX", "1" });
}

static void works_by_sysfs(void)
{
	shunt_pci_sysfs(getenv("SHUNT_SYSFS_ROOT"));
	works();
}

/* Where a NIC is, and, for a library that does not tell, which version of RoCE a GID has. */
TEST(test_sysfs_is_read)
{
	char root[2][32] = { "/tmp/shunt_verbs_XXXXXX", "/tmp/shunt_verbs_XXXXXX" };
	int status[2];

	for (int i = 0; i < 2; i++)
		assert_non_null(mkdtemp(root[i]));
	status[0] = IN_PROCESS(nic_in_sysfs(), { "SHUNT_SYSFS_ROOT", root[0] },
	    { "FAKE_IBV_DEVICES", "mlx0 pci=0000:17:00.0 path=pci0000:16/0000:16:01.0 numa=1" });
	status[1] = IN_PROCESS(works_by_sysfs(), { "SHUNT_SYSFS_ROOT", root[1] }, { "SHUNT_IBV_LIB", old },
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v1@10.0.0.1,v2@10.0.0.1; mlx1 link=roce gids=v2@10.0.0.2,v1@10.0.0.3" });
	for (int i = 0; i < 2; i++)
		nftw(root[i], remove_one, 16, FTW_DEPTH | FTW_PHYS);
	assert_int_equal(status[0], 0);
	assert_int_equal(status[1], 0);
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

TEST(test_ends_that_cannot_connect_say_why)
{
	CASE(expect_dead("no GID of this end"),
	    { "FAKE_IBV_DEVICES", "mlx0 link=roce gids=v2@10.0.0.1; mlx1 link=roce gids=v1@10.0.0.2" });
	CASE(expect_dead("no GID of this end"),
	    { "FAKE_IBV_DEVICES", "mlx0 link=roce gids=v2@fd00::1; mlx1 link=roce gids=v2@10.0.0.2" });
	CASE(expect_dead("no GID of this end"),
	    { "FAKE_IBV_DEVICES",
	        "mlx0 link=roce gids=v2@10.0.0.1,v2@fd00::1; mlx1 link=roce gids=v2@10.1.0.2,v2@fd00::2,v1@10.0.0.2" },
	    { "NCCL_IB_ADDR_RANGE", "10.0.0.0/16" });
	CASE(expect_dead("RoCE"), { "FAKE_IBV_DEVICES", "mlx0 link=ib; mlx1 link=roce" });
	CASE(expect_dead("partition keys differ"), { "FAKE_IBV_DEVICES", "mlx0 pkeys=0xffff; mlx1 pkeys=0x8001" });
	CASE(no_gid(), { "NCCL_IB_GID_INDEX", "77" });
	CASE(CHECK(ops->open(0, &ends[0].device) == -EINVAL), { "NCCL_IB_PKEY", "99" });
}

static void says_nothing(void)
{
	begin_within(400);
	UNTIL(ends[0].dead && ends[1].dead);
	for (int i = 0; i < 2; i++)
		CHECK(
		    !ends[i].ready && ends[i].err == -ETIMEDOUT && strstr(ends[i].text, "does the network carry RDMA"));
	end_all();
}

/* What is lost without a word: another service level than the network has, another partition at the peer's place. */
TEST(test_a_silent_network_is_found)
{
	CASE(says_nothing(), { "FAKE_IBV_DEVICES", "mlx0 link=roce sls=1" }, { "NCCL_IB_SL", "3" });
	CASE(says_nothing(), { "FAKE_IBV_DROP", "1000" });
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

TEST(test_ends_use_what_both_nics_can_do)
{
	CASE(expect_options(0x0c, 0x0c), { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0x77:0x0f" });
	/* Nobody has set any. */
	CASE(expect_options(0x3c, 0x0f), { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0x78:0x0f" });
	CASE(expect_options(0x3c, 0x0f), { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0x77:0x0f" },
	    { "NCCL_IB_ECE_ENABLE", "0" });
	CASE(works(), { "FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c; mlx1 ece=0" });
	CASE(works(), { "FAKE_IBV_HIDE", "ece" });
	CASE(works(), { "SHUNT_IBV_LIB", old });
}

/* SPDX-License-Identifier: MIT */
/* What a program meets before there are connections: devices, ports, addresses, states, regions, versions. */
#include "pair.h"
#include "tests/support/unit.h"

#define ENV(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}

static struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c;

	CHECK(list && *list);
	c = ibv_open_device(*list);
	CHECK(c);
	ibv_free_device_list(list); /* an open device stays */
	return c;
}

/* ---- devices and addresses ---- */

TEST_OF(void, (void), test_several_devices,
    pair_alone(ENV("FAKE_IBV_DEVICES", "ib; eth link=roce mtu=1024 ports=2 gids=none,v2@10.0.0.7,v1@fe80::1"), body))
{
	struct ibv_device **list;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, table[64];
	struct ibv_context *c;
	union ibv_gid gid;
	int n;

	list = ibv_get_device_list(&n);
	CHECK(list && n == 2 && !list[2]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "ib") && !strcmp(ibv_get_device_name(list[1]), "eth"));
	CHECK(ibv_get_device_guid(list[0]) != ibv_get_device_guid(list[1]));
	c = ibv_open_device(list[1]);
	CHECK(c);
	ibv_free_device_list(list); /* an open device stays */
	CHECK(!ibv_query_port(c, 2, &port));
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.active_mtu == IBV_MTU_1024 && port.lid == 0);
	CHECK(port.state == IBV_PORT_ACTIVE && ibv_query_port(c, 3, &port) == EINVAL);
	CHECK(!ibv_query_gid_ex(c, 1, 1, &entry, 0) && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(entry.gid.raw[10] == 0xff && entry.gid.raw[12] == 10 && entry.gid.raw[15] == 7);
	CHECK(ibv_query_gid_ex(c, 1, 0, &entry, 0) == ENODATA);
	CHECK(!ibv_query_gid(c, 1, 2, &gid) && gid.raw[0] == 0xfe);
	CHECK(ibv_query_gid_table(c, table, 64, 0) == 4); /* two of each port */
	CHECK(ibv_query_gid_table(c, table, 3, 0) == -EINVAL);
	CHECK(!ibv_close_device(c));
}

TEST_OF(void, (void), test_no_device, pair_alone(ENV("FAKE_IBV_DEVICES", ""), body))
{
	int n = 5;
	struct ibv_device **list = ibv_get_device_list(&n);

	CHECK(list && n == 0 && !list[0]);
	ibv_free_device_list(list);
}

TEST_OF(void, (void), test_wrong_setting, pair_alone(ENV("FAKE_IBV_DEVICES", "mlx0 colour=red"), body))
{
	CHECK(!ibv_get_device_list(NULL) && errno == ENOENT);
}

TEST_OF(void, (void), test_attributes,
    pair_alone(ENV("FAKE_IBV_DEVICES", "mlx0 atomic=none depth=32 sges=2 rd=4 cqes=100 pkeys=0xffff,0x8002"), body))
{
	struct ibv_context *c = open_first();
	struct ibv_device_attr_ex ex;
	struct ibv_device_attr a;
	__be16 pkey;

	CHECK(!ibv_query_device(c, &a));
	CHECK(a.atomic_cap == IBV_ATOMIC_NONE && a.max_qp_wr == 32 && a.max_sge == 2 && a.max_qp_rd_atom == 4);
	CHECK(!ibv_query_device_ex(c, NULL, &ex) && ex.orig_attr.max_cqe == 100);
	CHECK(!ibv_query_pkey(c, 1, 1, &pkey) && pkey == htobe16(0x8002));
	CHECK(!ibv_close_device(c));
}

/* The symbol, which old programs call, leaves alone what came later. */
TEST_OF(void, (void), test_query_port_is_short, pair_alone(NULL, body))
{
	int (*query)(struct ibv_context *, uint8_t, struct ibv_port_attr *) = (int (*)(struct ibv_context *, uint8_t,
	    struct ibv_port_attr *))dlvsym(RTLD_DEFAULT, "ibv_query_port", "IBVERBS_1.1");
	struct ibv_context *c = open_first();
	struct ibv_port_attr port;

	memset(&port, 0x77, sizeof(port));
	CHECK(query && !query(c, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE && port.flags == 0x77 && port.port_cap_flags2 == 0x7777);
	CHECK(!ibv_close_device(c));
}

/* ---- versions ---- */

TEST_OF(void, (void), test_versions, pair_alone(NULL, body))
{
	static const struct {
		const char *name, *version;
	} calls[] = { { "ibv_get_device_list", "IBVERBS_1.1" }, { "ibv_create_comp_channel", "IBVERBS_1.0" },
		{ "ibv_reg_mr_iova2", "IBVERBS_1.8" }, { "ibv_query_ece", "IBVERBS_1.10" },
		{ "ibv_set_ece", "IBVERBS_1.10" }, { "_ibv_query_gid_ex", "IBVERBS_1.11" },
		{ "ibv_reg_dmabuf_mr", "IBVERBS_1.12" }, { "ibv_is_fork_initialized", "IBVERBS_1.13" },
		{ "ibv_query_port_speed", "IBVERBS_1.16" } };
	void *old = dlopen(FAKE_OLD, RTLD_NOW | RTLD_LOCAL);

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		CHECK(dlvsym(RTLD_DEFAULT, calls[i].name, calls[i].version));
		CHECK(old && !dlvsym(old, calls[i].name, calls[i].version) == (i >= 2));
	}
}

TEST_OF(void, (void), test_hidden_calls, pair_alone(ENV("FAKE_IBV_HIDE", "reg_mr_iova2,reg_dmabuf_mr"), body))
{
	static char memory[4096];
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);

	CHECK(!ibv_reg_mr_iova2(pd, memory, 4096, 0, 0) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0) && errno == EOPNOTSUPP);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

/* ---- regions ---- */

TEST_OF(void, (void), test_regions, pair_alone(ENV("FAKE_IBV_MEMLOCK", "65000"), body))
{
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, 65536 + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *a, *b;

	CHECK(pd && memory != MAP_FAILED);
	CHECK(!ibv_reg_mr(pd, memory, 40000, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL); /* needs LOCAL_WRITE */
	a = ibv_reg_mr(pd, memory, 40000, IBV_ACCESS_LOCAL_WRITE);
	CHECK(a && a->addr == memory && a->length == 40000 && a->lkey != a->rkey);
	CHECK(!ibv_reg_mr(pd, memory, 25001, 0) && errno == ENOMEM); /* over the limit of locked memory */
	b = ibv_reg_mr(pd, memory, 25000, IBV_ACCESS_RELAXED_ORDERING);
	CHECK(b && b->rkey != a->rkey);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_dereg_mr(b));
	CHECK(!mprotect(memory + page, page, PROT_READ));
	CHECK(!ibv_reg_mr(pd, memory + page - 4096, 8192, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!munmap(memory + page, page));
	CHECK(!ibv_reg_mr(pd, memory + page - 4096, 8192, 0) && errno == EFAULT);
	CHECK(!ibv_dereg_mr(a));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

/* Memory of the sim's kind: a memfd. */
TEST_OF(void, (void), test_device_memory,
    pair_alone(ENV("FAKE_IBV_DEVICE_MAPS", "memfd:a_gpu"), body) +
        pair_alone(ENV("FAKE_IBV_DEVICE_MAPS", "memfd:a_gpu", "FAKE_IBV_PEERMEM", "1"), body))
{
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	int fd = memfd_create("a_gpu", 0), all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	bool peermem = getenv("FAKE_IBV_PEERMEM");
	struct ibv_mr *mr;
	char *memory;

	CHECK(pd && fd >= 0 && !ftruncate(fd, 65536));
	memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(memory != MAP_FAILED);
	mr = ibv_reg_mr(pd, memory, 65536, all);
	CHECK(peermem ? mr != NULL : !mr && errno == EFAULT);
	CHECK(!mr || !ibv_dereg_mr(mr));
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 65536, 0, -1, all) && errno == EBADF);
	mr = ibv_reg_dmabuf_mr(pd, 4096, 8192, 0x7000000, fd, all);
	CHECK(mr && mr->length == 8192);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

TEST_OF(void, (void), test_no_dmabuf, pair_alone(ENV("FAKE_IBV_DEVICES", "mlx0 dmabuf=0"), body))
{
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);

	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0) && errno == EOPNOTSUPP);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

/* ---- states ---- */

enum {
	INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	    IBV_QP_MAX_QP_RD_ATOMIC
};

/* Each bit of the mask is needed, and none besides is taken. */
static void exact_mask(struct ibv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	struct ibv_qp_attr copy = *a;

	for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
		if (mask & bit && bit != IBV_QP_STATE)
			CHECK(ibv_modify_qp(qp, &copy, mask & ~bit) == EINVAL);
	CHECK(ibv_modify_qp(qp, &copy, mask | IBV_QP_QKEY) == EINVAL);
	CHECK(ibv_modify_qp(qp, &copy, mask | IBV_QP_CAP) == EINVAL);
	CHECK(!ibv_modify_qp(qp, &copy, mask));
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &init);
}

TEST_OF(void, (void), test_exact_masks, pair_alone(NULL, body))
{
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = ibv_create_cq(c, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = { .num_sge = 0 }, *bad_recv;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(pd && cq && qp);
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
	exact_mask(qp, &a, INIT_MASK);
	CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	CHECK(ibv_modify_qp(qp, &a, RTS_MASK) == EINVAL); /* not from INIT */
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 17,
		.ah_attr = { .dlid = 1, .port_num = 1 } };
	CHECK(ibv_modify_qp(qp, &a, RTR_MASK) == EINVAL); /* more reads than the device has */
	a.max_dest_rd_atomic = 1;
	exact_mask(qp, &a, RTR_MASK);
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
	};
	exact_mask(qp, &a, RTS_MASK);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	CHECK(pair_poll(cq).status == IBV_WC_WR_FLUSH_ERR);
	a.qp_state = IBV_QPS_RESET;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

/* On Ethernet there is no address without a GID, and an empty entry of the own table has none. */
TEST_OF(void, (void), test_roce_address, pair_alone(ENV("FAKE_IBV_DEVICES", "mlx0 link=roce"), body))
{
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = ibv_create_cq(c, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(!ibv_modify_qp(qp, &a, INIT_MASK));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = 1,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .dlid = 1, .port_num = 1 } };
	CHECK(ibv_modify_qp(qp, &a, RTR_MASK) == EINVAL);
	a.ah_attr.is_global = 1;
	a.ah_attr.grh.sgid_index = 9;
	CHECK(ibv_modify_qp(qp, &a, RTR_MASK) == ENODEV);
	a.ah_attr.grh.sgid_index = 3;
	CHECK(!ibv_modify_qp(qp, &a, RTR_MASK));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

TEST_OF(void, (void), test_limits, pair_alone(ENV("FAKE_IBV_DEVICES", "mlx0 depth=32 cqes=100 inline=64"), body))
{
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = ibv_create_cq(c, 100, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };

	CHECK(!ibv_create_cq(c, 101, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(c, 0, NULL, NULL, 0) && errno == EINVAL);
	init.cap.max_send_wr = 33;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.cap.max_send_wr = 32;
	init.cap.max_inline_data = 65;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.cap.max_inline_data = 0;
	init.qp_type = IBV_QPT_UD;
	CHECK(!ibv_create_qp(pd, &init) && errno == EOPNOTSUPP);
	CHECK(ibv_resize_cq(cq, 101) == EINVAL && !ibv_resize_cq(cq, 10) && cq->cqe == 10);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

TEST_OF(void, (void), test_ece,
    pair_alone(ENV("FAKE_IBV_DEVICES", "mlx0 ece=0x77:0x3c"), body) +
        pair_alone(ENV("FAKE_IBV_DEVICES", "mlx0 ece=0", "NO_ECE", "1"), body))
{
	struct ibv_context *c = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = ibv_create_cq(c, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_ece e;

	if (getenv("NO_ECE")) {
		CHECK(ibv_query_ece(qp, &e) == EOPNOTSUPP && ibv_set_ece(qp, &e) == EOPNOTSUPP);
	} else {
		CHECK(!ibv_query_ece(qp, &e) && e.vendor_id == 0x77 && e.options == 0x3c);
		e.options = 0x0f;
		CHECK(!ibv_set_ece(qp, &e) && !ibv_query_ece(qp, &e) && e.options == 0x0c); /* what both have */
		e.vendor_id = 0x78;
		CHECK(ibv_set_ece(qp, &e) == EINVAL);
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(c));
}

/* ---- sysfs ---- */

static bool file_is(const char *root, const char *name, const char *text)
{
	char path[300], got[100] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	f = fopen(path, "r");
	if (!f)
		return false;
	if (!fgets(got, sizeof(got), f))
		got[0] = '\0';
	fclose(f);
	got[strcspn(got, "\n")] = '\0';
	return !strcmp(got, text);
}

static void sysfs(void)
{
	const char *root = getenv("SHUNT_SYSFS_ROOT");
	char path[300], real[4096];

	ibv_free_device_list(ibv_get_device_list(NULL));
	CHECK(file_is(root, "class/infiniband/mlx0/ports/1/gid_attrs/types/3", "RoCE v2"));
	CHECK(file_is(root, "class/infiniband/mlx0/ports/1/gid_attrs/types/2", "IB/RoCE v1"));
	CHECK(!file_is(root, "class/infiniband/mlx0/ports/1/gid_attrs/types/4", ""));
	CHECK(file_is(root, "class/infiniband/mlx0/ports/1/link_layer", "Ethernet"));
	CHECK(file_is(root, "class/infiniband/mlx0/device/numa_node", "1"));
	CHECK(file_is(root, "bus/pci/devices/0000:3b:00.0/numa_node", "1"));
	snprintf(path, sizeof(path), "%s/class/infiniband/mlx0/device", root);
	CHECK(realpath(path, real));
	CHECK(strstr(real, "/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0"));
}

TEST(test_sysfs)
{
	char root[] = "/dev/shm/fake_ibv_sysfs.XXXXXX", command[100];

	assert_non_null(mkdtemp(root));
	assert_int_equal(pair_alone(ENV("SHUNT_SYSFS_ROOT", root, "FAKE_IBV_DEVICES",
	                                "mlx0 link=roce numa=1 pci=0000:3b:00.0 path=pci0000:3a/0000:3a:01.0"),
	                     sysfs),
	    0);
	snprintf(command, sizeof(command), "rm -r %s", root);
	assert_int_equal(system(command), 0);
}

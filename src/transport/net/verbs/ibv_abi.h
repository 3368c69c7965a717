/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The part of libibverbs' binary interface that Shunt uses, so that a build needs neither its headers nor the library.
 * Names are those of the library with shunt_ in front. Fields that nobody here reads are in arrays named unused.
 * tests/transport/test_ibv_abi.c compares sizes, offsets and values with <infiniband/verbs.h>, where there is one.
 */
#include <stddef.h>
#include <stdint.h>

enum shunt_ibv_value {
	SHUNT_IBV_TRANSPORT_IB = 0, /* RoCE as well */
	SHUNT_IBV_LINK_LAYER_INFINIBAND = 1,
	SHUNT_IBV_LINK_LAYER_ETHERNET = 2,
	SHUNT_IBV_PORT_ACTIVE = 4,
	SHUNT_IBV_GID_TYPE_IB = 0,
	SHUNT_IBV_GID_TYPE_ROCE_V1 = 1,
	SHUNT_IBV_GID_TYPE_ROCE_V2 = 2,

	SHUNT_IBV_ACCESS_LOCAL_WRITE = 1,
	SHUNT_IBV_ACCESS_REMOTE_WRITE = 2,
	SHUNT_IBV_ACCESS_REMOTE_READ = 4,
	SHUNT_IBV_ACCESS_REMOTE_ATOMIC = 8,
	SHUNT_IBV_ACCESS_RELAXED_ORDERING = 1 << 20,

	SHUNT_IBV_ATOMIC_NONE = 0,
	SHUNT_IBV_QPT_RC = 2,
	SHUNT_IBV_QPS_RESET = 0,
	SHUNT_IBV_QPS_INIT = 1,
	SHUNT_IBV_QPS_RTR = 2,
	SHUNT_IBV_QPS_RTS = 3,
	SHUNT_IBV_QPS_ERR = 6,
	SHUNT_IBV_QP_STATE = 1 << 0,
	SHUNT_IBV_QP_ACCESS_FLAGS = 1 << 3,
	SHUNT_IBV_QP_PKEY_INDEX = 1 << 4,
	SHUNT_IBV_QP_PORT = 1 << 5,
	SHUNT_IBV_QP_AV = 1 << 7,
	SHUNT_IBV_QP_PATH_MTU = 1 << 8,
	SHUNT_IBV_QP_TIMEOUT = 1 << 9,
	SHUNT_IBV_QP_RETRY_CNT = 1 << 10,
	SHUNT_IBV_QP_RNR_RETRY = 1 << 11,
	SHUNT_IBV_QP_RQ_PSN = 1 << 12,
	SHUNT_IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	SHUNT_IBV_QP_MIN_RNR_TIMER = 1 << 15,
	SHUNT_IBV_QP_SQ_PSN = 1 << 16,
	SHUNT_IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	SHUNT_IBV_QP_DEST_QPN = 1 << 20,

	SHUNT_IBV_WR_RDMA_WRITE = 0,
	SHUNT_IBV_WR_RDMA_WRITE_WITH_IMM = 1,
	SHUNT_IBV_WR_RDMA_READ = 4,
	SHUNT_IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
	SHUNT_IBV_SEND_FENCE = 1 << 0,
	SHUNT_IBV_SEND_SIGNALED = 1 << 1,
	SHUNT_IBV_SEND_INLINE = 1 << 3,

	SHUNT_IBV_WC_SUCCESS = 0,
	SHUNT_IBV_WC_LOC_PROT_ERR = 4,
	SHUNT_IBV_WC_WR_FLUSH_ERR = 5,
	SHUNT_IBV_WC_REM_INV_REQ_ERR = 9,
	SHUNT_IBV_WC_REM_ACCESS_ERR = 10,
	SHUNT_IBV_WC_REM_OP_ERR = 11,
	SHUNT_IBV_WC_RETRY_EXC_ERR = 12,
	SHUNT_IBV_WC_RNR_RETRY_EXC_ERR = 13,

	SHUNT_IBV_EVENT_CQ_ERR = 0,
	SHUNT_IBV_EVENT_QP_FATAL = 1,
	SHUNT_IBV_EVENT_QP_REQ_ERR = 2,
	SHUNT_IBV_EVENT_QP_ACCESS_ERR = 3,
	SHUNT_IBV_EVENT_DEVICE_FATAL = 8,
	SHUNT_IBV_EVENT_PORT_ACTIVE = 9,
	SHUNT_IBV_EVENT_PORT_ERR = 10,
};

struct shunt_ibv_pd;
struct shunt_ibv_comp_channel;
struct shunt_ibv_cq;
struct shunt_ibv_qp;
struct shunt_ibv_wc;
struct shunt_ibv_send_wr;
struct shunt_ibv_recv_wr;

struct shunt_ibv_device {
	void *unused[2];
	int node_type, transport_type;
	char name[64];
};

/* Sending, receiving and polling are no symbols of the library: the device's driver is called through its context. */
struct shunt_ibv_context {
	struct shunt_ibv_device *device;
	void *unused[11];
	int (*poll_cq)(struct shunt_ibv_cq *cq, int n, struct shunt_ibv_wc *wc);
	int (*req_notify_cq)(struct shunt_ibv_cq *cq, int solicited_only);
	void *unused2[12];
	int (*post_send)(struct shunt_ibv_qp *qp, struct shunt_ibv_send_wr *wr, struct shunt_ibv_send_wr **bad_p);
	int (*post_recv)(struct shunt_ibv_qp *qp, struct shunt_ibv_recv_wr *wr, struct shunt_ibv_recv_wr **bad_p);
	void *unused3[5];
	int cmd_fd, async_fd;
	int num_comp_vectors;
};

struct shunt_ibv_comp_channel {
	struct shunt_ibv_context *context;
	int fd;
};

struct shunt_ibv_cq {
	struct shunt_ibv_context *context;
};

struct shunt_ibv_mr {
	struct shunt_ibv_context *context;
	struct shunt_ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
};

struct shunt_ibv_qp {
	struct shunt_ibv_context *context;
	void *qp_context;
	void *unused[4];
	uint32_t handle, qp_num;
};

struct shunt_ibv_device_attr {
	char fw_ver[64];
	uint64_t unused[4];
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned device_cap_flags;
	int max_sge, max_sge_rd, max_cq, max_cqe;
	int max_mr, max_pd;
	int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
	int atomic_cap;
	int unused2[14];
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
	/* The library may know more than this. */
	uint64_t spare[4];
};

struct shunt_ibv_port_attr {
	int state, max_mtu, active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz;
	uint32_t unused[2];
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
	uint8_t active_width, active_speed, phys_state, link_layer, flags;
	uint16_t port_cap_flags2;
	/* The library may know more than this. */
	uint64_t spare[4];
};

struct shunt_ibv_gid_entry {
	uint8_t gid[16];
	uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

struct shunt_ibv_qp_cap {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct shunt_ibv_qp_init_attr {
	void *qp_context;
	struct shunt_ibv_cq *send_cq, *recv_cq;
	void *srq;
	struct shunt_ibv_qp_cap cap;
	int qp_type, sq_sig_all;
};

struct shunt_ibv_ah_attr {
	_Alignas(8) uint8_t dgid[16];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct shunt_ibv_qp_attr {
	int qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned qp_access_flags;
	struct shunt_ibv_qp_cap cap;
	struct shunt_ibv_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num;
	uint8_t timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
	uint32_t rate_limit;
};

struct shunt_ibv_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct shunt_ibv_send_wr {
	uint64_t wr_id;
	struct shunt_ibv_send_wr *next;
	struct shunt_ibv_sge *sg_list;
	int num_sge, opcode;
	unsigned send_flags;
	uint32_t imm_data; /* in network order */
	uint64_t remote_addr;
	union {
		uint32_t rkey;        /* of writes and reads */
		uint64_t compare_add; /* of atomics: the addend */
	};
	uint64_t unused1;
	uint32_t atomic_rkey;
	uint64_t unused[7];
};

struct shunt_ibv_recv_wr {
	uint64_t wr_id;
	struct shunt_ibv_recv_wr *next;
	struct shunt_ibv_sge *sg_list;
	int num_sge;
};

struct shunt_ibv_wc {
	uint64_t wr_id;
	int status, opcode;
	uint32_t vendor_err, byte_len;
	uint32_t imm_data; /* in network order */
	uint32_t qp_num, src_qp;
	unsigned wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};

struct shunt_ibv_ece {
	uint32_t vendor_id, options, comp_mask;
};

struct shunt_ibv_async_event {
	union {
		struct shunt_ibv_cq *cq;
		struct shunt_ibv_qp *qp;
		int port_num;
	} element;
	int event_type;
};

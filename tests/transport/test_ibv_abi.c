/* SPDX-License-Identifier: MIT */
/* src/transport/net/verbs/ibv_abi.h is what the real header says, where there is one. */
#include <stdio.h>
#include "transport/net/verbs/ibv_abi.h"
#ifdef HAVE_VERBS_H
#include <infiniband/verbs.h>
#endif

#ifdef HAVE_VERBS_H
static int checks, differences;

static void same(const char *what, size_t ours, size_t theirs)
{
	checks++;
	if (ours == theirs)
		return;
	differences++;
	printf("%s: %zu here, %zu in infiniband/verbs.h\n", what, ours, theirs);
}

#define SAME_AS(type, ours, theirs) \
	do { \
		same(#type "." #ours, offsetof(struct shunt_ibv_##type, ours), offsetof(struct ibv_##type, theirs)); \
		same("size of " #type "." #ours, sizeof(((struct shunt_ibv_##type *)0)->ours), \
		    sizeof(((struct ibv_##type *)0)->theirs)); \
	} while (0)
#define SAME(type, field) SAME_AS(type, field, field)
#define SAME_SIZE(type) same("size of " #type, sizeof(struct shunt_ibv_##type), sizeof(struct ibv_##type))
#define NOT_SMALLER(type) same("room for " #type, sizeof(struct shunt_ibv_##type) >= sizeof(struct ibv_##type), 1)
#define VALUE(name) same(#name, (size_t)SHUNT_##name, (size_t)name)

static void structs_of_devices(void)
{
	SAME(device, node_type);
	SAME(device, transport_type);
	SAME(device, name);
	SAME(context, device);
	SAME_AS(context, poll_cq, ops.poll_cq);
	SAME_AS(context, req_notify_cq, ops.req_notify_cq);
	SAME_AS(context, post_send, ops.post_send);
	SAME_AS(context, post_recv, ops.post_recv);
	SAME(context, async_fd);
	SAME(context, num_comp_vectors);
	SAME(comp_channel, context);
	SAME(comp_channel, fd);
	SAME(cq, context);
	NOT_SMALLER(device_attr);
	SAME(device_attr, vendor_id);
	SAME(device_attr, max_qp);
	SAME(device_attr, max_qp_wr);
	SAME(device_attr, max_cqe);
	SAME(device_attr, max_qp_rd_atom);
	SAME(device_attr, max_qp_init_rd_atom);
	SAME(device_attr, atomic_cap);
	SAME(device_attr, phys_port_cnt);
	NOT_SMALLER(port_attr);
	SAME(port_attr, state);
	SAME(port_attr, active_mtu);
	SAME(port_attr, gid_tbl_len);
	SAME(port_attr, max_msg_sz);
	SAME(port_attr, pkey_tbl_len);
	SAME(port_attr, lid);
	SAME(port_attr, active_width);
	SAME(port_attr, active_speed);
	SAME(port_attr, link_layer);
	SAME(port_attr, flags);
	SAME_SIZE(gid_entry);
	SAME(gid_entry, gid);
	SAME(gid_entry, gid_index);
	SAME(gid_entry, port_num);
	SAME(gid_entry, gid_type);
	SAME(mr, lkey);
	SAME(mr, rkey);
	SAME_SIZE(async_event);
	SAME_AS(async_event, element, element);
	SAME(async_event, event_type);
}

static void structs_of_queue_pairs(void)
{
	SAME(qp, context);
	SAME(qp, qp_num);
	SAME_SIZE(qp_cap);
	SAME(qp_cap, max_send_wr);
	SAME(qp_cap, max_inline_data);
	SAME_SIZE(qp_init_attr);
	SAME(qp_init_attr, send_cq);
	SAME(qp_init_attr, recv_cq);
	SAME(qp_init_attr, cap);
	SAME(qp_init_attr, qp_type);
	SAME(qp_init_attr, sq_sig_all);
	SAME_SIZE(ah_attr);
	SAME_AS(ah_attr, dgid, grh.dgid);
	SAME_AS(ah_attr, sgid_index, grh.sgid_index);
	SAME_AS(ah_attr, hop_limit, grh.hop_limit);
	SAME_AS(ah_attr, traffic_class, grh.traffic_class);
	SAME(ah_attr, dlid);
	SAME(ah_attr, sl);
	SAME(ah_attr, is_global);
	SAME(ah_attr, port_num);
	SAME_SIZE(qp_attr);
	SAME(qp_attr, qp_state);
	SAME(qp_attr, path_mtu);
	SAME(qp_attr, rq_psn);
	SAME(qp_attr, sq_psn);
	SAME(qp_attr, dest_qp_num);
	SAME(qp_attr, qp_access_flags);
	SAME(qp_attr, ah_attr);
	SAME(qp_attr, pkey_index);
	SAME(qp_attr, max_rd_atomic);
	SAME(qp_attr, max_dest_rd_atomic);
	SAME(qp_attr, min_rnr_timer);
	SAME(qp_attr, port_num);
	SAME(qp_attr, timeout);
	SAME(qp_attr, retry_cnt);
	SAME(qp_attr, rnr_retry);
}

static void structs_of_requests(void)
{
	SAME_SIZE(sge);
	SAME(sge, addr);
	SAME(sge, length);
	SAME(sge, lkey);
	SAME_SIZE(send_wr);
	SAME(send_wr, wr_id);
	SAME(send_wr, next);
	SAME(send_wr, sg_list);
	SAME(send_wr, num_sge);
	SAME(send_wr, opcode);
	SAME(send_wr, send_flags);
	SAME(send_wr, imm_data);
	SAME_AS(send_wr, remote_addr, wr.rdma.remote_addr);
	SAME_AS(send_wr, rkey, wr.rdma.rkey);
	SAME_AS(send_wr, remote_addr, wr.atomic.remote_addr);
	SAME_AS(send_wr, compare_add, wr.atomic.compare_add);
	SAME_AS(send_wr, atomic_rkey, wr.atomic.rkey);
	SAME_SIZE(recv_wr);
	SAME(recv_wr, wr_id);
	SAME(recv_wr, next);
	SAME(recv_wr, sg_list);
	SAME(recv_wr, num_sge);
	SAME_SIZE(ece);
	SAME(ece, vendor_id);
	SAME(ece, options);
	SAME(ece, comp_mask);
	SAME_SIZE(wc);
	SAME(wc, wr_id);
	SAME(wc, status);
	SAME(wc, opcode);
	SAME(wc, vendor_err);
	SAME(wc, imm_data);
	SAME(wc, qp_num);
	SAME(wc, wc_flags);
}

static void values(void)
{
	VALUE(IBV_TRANSPORT_IB);
	VALUE(IBV_LINK_LAYER_INFINIBAND);
	VALUE(IBV_LINK_LAYER_ETHERNET);
	VALUE(IBV_PORT_ACTIVE);
	VALUE(IBV_GID_TYPE_IB);
	VALUE(IBV_GID_TYPE_ROCE_V1);
	VALUE(IBV_GID_TYPE_ROCE_V2);
	VALUE(IBV_ACCESS_LOCAL_WRITE);
	VALUE(IBV_ACCESS_REMOTE_WRITE);
	VALUE(IBV_ACCESS_REMOTE_READ);
	VALUE(IBV_ACCESS_REMOTE_ATOMIC);
	VALUE(IBV_ATOMIC_NONE);
	VALUE(IBV_ACCESS_RELAXED_ORDERING);
	VALUE(IBV_QPT_RC);
	VALUE(IBV_QPS_RESET);
	VALUE(IBV_QPS_INIT);
	VALUE(IBV_QPS_RTR);
	VALUE(IBV_QPS_RTS);
	VALUE(IBV_QPS_ERR);
	VALUE(IBV_QP_STATE);
	VALUE(IBV_QP_ACCESS_FLAGS);
	VALUE(IBV_QP_PKEY_INDEX);
	VALUE(IBV_QP_PORT);
	VALUE(IBV_QP_AV);
	VALUE(IBV_QP_PATH_MTU);
	VALUE(IBV_QP_TIMEOUT);
	VALUE(IBV_QP_RETRY_CNT);
	VALUE(IBV_QP_RNR_RETRY);
	VALUE(IBV_QP_RQ_PSN);
	VALUE(IBV_QP_MAX_QP_RD_ATOMIC);
	VALUE(IBV_QP_MIN_RNR_TIMER);
	VALUE(IBV_QP_SQ_PSN);
	VALUE(IBV_QP_MAX_DEST_RD_ATOMIC);
	VALUE(IBV_QP_DEST_QPN);
	VALUE(IBV_WR_RDMA_WRITE);
	VALUE(IBV_WR_RDMA_WRITE_WITH_IMM);
	VALUE(IBV_WR_RDMA_READ);
	VALUE(IBV_WR_ATOMIC_FETCH_AND_ADD);
	VALUE(IBV_SEND_FENCE);
	VALUE(IBV_SEND_SIGNALED);
	VALUE(IBV_SEND_INLINE);
	VALUE(IBV_WC_SUCCESS);
	VALUE(IBV_WC_LOC_PROT_ERR);
	VALUE(IBV_WC_WR_FLUSH_ERR);
	VALUE(IBV_WC_REM_INV_REQ_ERR);
	VALUE(IBV_WC_REM_ACCESS_ERR);
	VALUE(IBV_WC_REM_OP_ERR);
	VALUE(IBV_WC_RETRY_EXC_ERR);
	VALUE(IBV_WC_RNR_RETRY_EXC_ERR);
	VALUE(IBV_EVENT_CQ_ERR);
	VALUE(IBV_EVENT_QP_FATAL);
	VALUE(IBV_EVENT_QP_REQ_ERR);
	VALUE(IBV_EVENT_QP_ACCESS_ERR);
	VALUE(IBV_EVENT_DEVICE_FATAL);
	VALUE(IBV_EVENT_PORT_ACTIVE);
	VALUE(IBV_EVENT_PORT_ERR);
}

int main(void)
{
	structs_of_devices();
	structs_of_queue_pairs();
	structs_of_requests();
	values();
	printf("%d checks, %d differences\n", checks, differences);
	return differences != 0;
}
#else
int main(void)
{
	printf("skipped: ibv_abi: there is no infiniband/verbs.h (libibverbs-dev)\n");
	return 77;
}
#endif

/* SPDX-License-Identifier: MIT */
/*
 * What perftest, its libmlx5, libefa and librdmacm, and pyverbs are linked with at load time, and never call where no
 * driver's device and no /dev/infiniband is there: drivers' calls to the kernel, shared receive queues, multicast,
 * imports. Whoever calls them all the same gets EOPNOTSUPP, as from a device without these. Names are aliases of one
 * function for each kind of result, so that their many prototypes need not be known.
 */
#include "tools/common/libc.h"

#define EXPORT __attribute__((visibility("default")))

int fake_no_number(void);
void *fake_no_pointer(void);
void fake_nothing(void);

int fake_no_number(void)
{
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

void *fake_no_pointer(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

/* A driver that registers itself, or frees what it could not get. */
void fake_nothing(void)
{
}

/* A variable of libibverbs that libmlx5 sets. */
EXPORT extern bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy;

#define NUMBER(name) EXPORT extern int name(void) __attribute__((alias("fake_no_number")));
#define POINTER(name) EXPORT extern void *name(void) __attribute__((alias("fake_no_pointer")));
#define NOTHING(name) EXPORT extern void name(void) __attribute__((alias("fake_nothing")));

NUMBER(ibv_attach_mcast)
NUMBER(ibv_detach_mcast)
NUMBER(ibv_destroy_srq)
NUMBER(ibv_modify_srq)
NUMBER(ibv_query_srq)
NUMBER(ibv_init_ah_from_wc)
NUMBER(ibv_resolve_eth_l2_from_gid)
NUMBER(ibv_dofork_range)
NUMBER(ibv_dontfork_range)
NUMBER(execute_ioctl)
NUMBER(ibv_cmd_advise_mr)
NUMBER(ibv_cmd_alloc_dm)
NUMBER(ibv_cmd_alloc_mw)
NUMBER(ibv_cmd_alloc_pd)
NUMBER(ibv_cmd_attach_mcast)
NUMBER(ibv_cmd_close_xrcd)
NUMBER(ibv_cmd_create_ah)
NUMBER(ibv_cmd_create_counters)
NUMBER(ibv_cmd_create_cq_ex)
NUMBER(ibv_cmd_create_flow)
NUMBER(ibv_cmd_create_flow_action_esp)
NUMBER(ibv_cmd_create_qp_ex)
NUMBER(ibv_cmd_create_qp_ex2)
NUMBER(ibv_cmd_create_rwq_ind_table)
NUMBER(ibv_cmd_create_srq)
NUMBER(ibv_cmd_create_srq_ex)
NUMBER(ibv_cmd_create_wq)
NUMBER(ibv_cmd_dealloc_mw)
NUMBER(ibv_cmd_dealloc_pd)
NUMBER(ibv_cmd_dereg_mr)
NUMBER(ibv_cmd_destroy_ah)
NUMBER(ibv_cmd_destroy_counters)
NUMBER(ibv_cmd_destroy_cq)
NUMBER(ibv_cmd_destroy_flow)
NUMBER(ibv_cmd_destroy_flow_action)
NUMBER(ibv_cmd_destroy_qp)
NUMBER(ibv_cmd_destroy_rwq_ind_table)
NUMBER(ibv_cmd_destroy_srq)
NUMBER(ibv_cmd_destroy_wq)
NUMBER(ibv_cmd_detach_mcast)
NUMBER(ibv_cmd_free_dm)
NUMBER(ibv_cmd_get_context)
NUMBER(ibv_cmd_modify_cq)
NUMBER(ibv_cmd_modify_flow_action_esp)
NUMBER(ibv_cmd_modify_qp)
NUMBER(ibv_cmd_modify_qp_ex)
NUMBER(ibv_cmd_modify_srq)
NUMBER(ibv_cmd_modify_wq)
NUMBER(ibv_cmd_open_qp)
NUMBER(ibv_cmd_open_xrcd)
NUMBER(ibv_cmd_query_context)
NUMBER(ibv_cmd_query_device_any)
NUMBER(ibv_cmd_query_mr)
NUMBER(ibv_cmd_query_port)
NUMBER(ibv_cmd_query_qp)
NUMBER(ibv_cmd_query_srq)
NUMBER(ibv_cmd_read_counters)
NUMBER(ibv_cmd_reg_dm_mr)
NUMBER(ibv_cmd_reg_dmabuf_mr)
NUMBER(ibv_cmd_reg_mr)
NUMBER(ibv_cmd_rereg_mr)
NUMBER(ibv_cmd_resize_cq)
NUMBER(verbs_init_cq)
POINTER(ibv_create_srq)
POINTER(ibv_create_ah_from_wc)
POINTER(ibv_import_device)
POINTER(ibv_import_mr)
POINTER(ibv_import_pd)
POINTER(ibv_import_dm)
POINTER(ibv_qp_to_qp_ex)
POINTER(_verbs_init_and_alloc_context)
POINTER(verbs_open_device)
NOTHING(ibv_unimport_mr)
NOTHING(ibv_unimport_pd)
NOTHING(ibv_unimport_dm)
NOTHING(ibv_copy_ah_attr_from_kern)
NOTHING(ibv_copy_qp_attr_from_kern)
NOTHING(ibv_copy_path_rec_from_kern)
NOTHING(ibv_copy_path_rec_to_kern)
NOTHING(__verbs_log)
NOTHING(verbs_register_driver_34)
NOTHING(verbs_set_ops)
NOTHING(verbs_uninit_context)

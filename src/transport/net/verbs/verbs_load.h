/* SPDX-License-Identifier: MIT */
#pragma once
/* libibverbs, opened at the first need: Shunt is not linked with it. Any thread. */
#include <sys/types.h>
#include "transport/net/verbs/ibv_abi.h"

/*
 * X(required, field, symbol, version, result, arguments). Each symbol is asked for in one version: without it the
 * library would give some callers its old structs. Functions that are not required may be NULL.
 */
#define SHUNT_IBV_CALLS(X) \
	X(1, get_device_list, "ibv_get_device_list", "IBVERBS_1.1", struct shunt_ibv_device **, (int *n_p)) \
	X(1, free_device_list, "ibv_free_device_list", "IBVERBS_1.1", void, (struct shunt_ibv_device * *list)) \
	X(1, open_device, "ibv_open_device", "IBVERBS_1.1", struct shunt_ibv_context *, \
	    (struct shunt_ibv_device * device)) \
	X(1, close_device, "ibv_close_device", "IBVERBS_1.1", int, (struct shunt_ibv_context * context)) \
	X(1, query_device, "ibv_query_device", "IBVERBS_1.1", int, \
	    (struct shunt_ibv_context * context, struct shunt_ibv_device_attr * attr)) \
	X(1, query_port, "ibv_query_port", "IBVERBS_1.1", int, \
	    (struct shunt_ibv_context * context, uint8_t port, struct shunt_ibv_port_attr *attr)) \
	X(1, query_gid, "ibv_query_gid", "IBVERBS_1.1", int, \
	    (struct shunt_ibv_context * context, uint8_t port, int index, uint8_t gid[16])) \
	X(0, query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11", ssize_t, \
	    (struct shunt_ibv_context * context, struct shunt_ibv_gid_entry * entries, size_t max, uint32_t flags, \
	        size_t entry_bytes)) \
	X(1, query_pkey, "ibv_query_pkey", "IBVERBS_1.1", int, \
	    (struct shunt_ibv_context * context, uint8_t port, int index, uint16_t *pkey)) \
	X(1, alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1", struct shunt_ibv_pd *, (struct shunt_ibv_context * context)) \
	X(1, dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1", int, (struct shunt_ibv_pd * pd)) \
	X(1, reg_mr, "ibv_reg_mr", "IBVERBS_1.1", struct shunt_ibv_mr *, \
	    (struct shunt_ibv_pd * pd, void *at, size_t bytes, int access)) \
	X(0, reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8", struct shunt_ibv_mr *, \
	    (struct shunt_ibv_pd * pd, void *at, size_t bytes, uint64_t iova, unsigned access)) \
	X(0, reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", struct shunt_ibv_mr *, \
	    (struct shunt_ibv_pd * pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)) \
	X(1, dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1", int, (struct shunt_ibv_mr * mr)) \
	X(1, create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0", struct shunt_ibv_comp_channel *, \
	    (struct shunt_ibv_context * context)) \
	X(1, destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0", int, \
	    (struct shunt_ibv_comp_channel * channel)) \
	X(1, create_cq, "ibv_create_cq", "IBVERBS_1.1", struct shunt_ibv_cq *, \
	    (struct shunt_ibv_context * context, int entries, void *user, struct shunt_ibv_comp_channel *channel, \
	        int vector)) \
	X(1, destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1", int, (struct shunt_ibv_cq * cq)) \
	X(1, get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1", int, \
	    (struct shunt_ibv_comp_channel * channel, struct shunt_ibv_cq * *cq_p, void **user_p)) \
	X(1, ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1", void, (struct shunt_ibv_cq * cq, unsigned n)) \
	X(1, create_qp, "ibv_create_qp", "IBVERBS_1.1", struct shunt_ibv_qp *, \
	    (struct shunt_ibv_pd * pd, struct shunt_ibv_qp_init_attr * attr)) \
	X(1, modify_qp, "ibv_modify_qp", "IBVERBS_1.1", int, \
	    (struct shunt_ibv_qp * qp, struct shunt_ibv_qp_attr * attr, int mask)) \
	X(1, destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1", int, (struct shunt_ibv_qp * qp)) \
	X(0, query_ece, "ibv_query_ece", "IBVERBS_1.10", int, (struct shunt_ibv_qp * qp, struct shunt_ibv_ece * ece)) \
	X(0, set_ece, "ibv_set_ece", "IBVERBS_1.10", int, (struct shunt_ibv_qp * qp, struct shunt_ibv_ece * ece)) \
	X(1, get_async_event, "ibv_get_async_event", "IBVERBS_1.1", int, \
	    (struct shunt_ibv_context * context, struct shunt_ibv_async_event * event)) \
	X(1, ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1", void, (struct shunt_ibv_async_event * event)) \
	X(0, fork_init, "ibv_fork_init", "IBVERBS_1.1", int, (void)) \
	X(0, wc_status_str, "ibv_wc_status_str", "IBVERBS_1.1", const char *, (int status)) \
	X(0, event_type_str, "ibv_event_type_str", "IBVERBS_1.1", const char *, (int type))

struct shunt_ibv {
#define SHUNT_IBV_FIELD(required, field, symbol, version, result, arguments) result(*field) arguments;
	SHUNT_IBV_CALLS(SHUNT_IBV_FIELD)
#undef SHUNT_IBV_FIELD
};

/*
 * The library, of the first of these that is set or found: SHUNT_IBV_LIB, MSCCLPP_IBV_SO, NCCL_IBVERBS_LIB,
 * libibverbs.so.1, libibverbs.so. 0; -ENOENT: there is no library, not logged; -ELIBACC, -ELIBBAD: the library that a
 * variable names cannot be used, or the library that was found is too old (logged once). The library stays open.
 */
int shunt_ibv_load(const struct shunt_ibv **ibv_p);
/* Why the library cannot be used, in words: the path, and the loader's message. "": it can be used. */
const char *shunt_ibv_problem(void);

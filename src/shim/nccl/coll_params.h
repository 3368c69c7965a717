/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The parameters of NCCL's collectives, which follow from two columns of collectives.def: ranks and operator. For a
 * message, root is the peer. Only macros: the assembler reads this file, too.
 */

/* As in a prototype: const void *send, void *recv, ... stream. */
#define SHUNT_COLL_PARAMS(ranks, op) SHUNT_PARAMS_##ranks##_##op, ncclComm_t comm, cudaStream_t stream
/* As in a call: send, recv, ... stream. */
#define SHUNT_COLL_ARGS(ranks, op) SHUNT_ARGS_##ranks##_##op, comm, stream
/*
 * The same six values for every collective: send, recv, count, dtype, op, root, with a default for those that it does
 * not have.
 */
#define SHUNT_COLL_VALUES(ranks, op) SHUNT_VALUES_##ranks##_##op
/* Its arguments for a collective; nothing for a message, which has no function with a configuration. */
#define SHUNT_IF_CONFIG(ranks, ...) SHUNT_IF_CONFIG_##ranks(__VA_ARGS__)

#define SHUNT_PARAMS_BOTH const void *send, void *recv, size_t count, ncclDataType_t dtype
#define SHUNT_PARAMS_ALL_MOVES SHUNT_PARAMS_BOTH
#define SHUNT_PARAMS_ALL_REDUCES SHUNT_PARAMS_BOTH, ncclRedOp_t op
#define SHUNT_PARAMS_FROM_ROOT_MOVES SHUNT_PARAMS_BOTH, int root
#define SHUNT_PARAMS_TO_ROOT_MOVES SHUNT_PARAMS_BOTH, int root
#define SHUNT_PARAMS_TO_ROOT_REDUCES SHUNT_PARAMS_BOTH, ncclRedOp_t op, int root
#define SHUNT_PARAMS_TO_PEER_MOVES const void *send, size_t count, ncclDataType_t dtype, int root
#define SHUNT_PARAMS_FROM_PEER_MOVES void *recv, size_t count, ncclDataType_t dtype, int root

#define SHUNT_ARGS_ALL_MOVES send, recv, count, dtype
#define SHUNT_ARGS_ALL_REDUCES send, recv, count, dtype, op
#define SHUNT_ARGS_FROM_ROOT_MOVES send, recv, count, dtype, root
#define SHUNT_ARGS_TO_ROOT_MOVES send, recv, count, dtype, root
#define SHUNT_ARGS_TO_ROOT_REDUCES send, recv, count, dtype, op, root
#define SHUNT_ARGS_TO_PEER_MOVES send, count, dtype, root
#define SHUNT_ARGS_FROM_PEER_MOVES recv, count, dtype, root

#define SHUNT_VALUES_ALL_MOVES send, recv, count, dtype, ncclSum, 0
#define SHUNT_VALUES_ALL_REDUCES send, recv, count, dtype, op, 0
#define SHUNT_VALUES_FROM_ROOT_MOVES send, recv, count, dtype, ncclSum, root
#define SHUNT_VALUES_TO_ROOT_MOVES send, recv, count, dtype, ncclSum, root
#define SHUNT_VALUES_TO_ROOT_REDUCES send, recv, count, dtype, op, root
#define SHUNT_VALUES_TO_PEER_MOVES send, NULL, count, dtype, ncclSum, root
#define SHUNT_VALUES_FROM_PEER_MOVES NULL, recv, count, dtype, ncclSum, root

#define SHUNT_IF_CONFIG_ALL(...) __VA_ARGS__
#define SHUNT_IF_CONFIG_FROM_ROOT(...) __VA_ARGS__
#define SHUNT_IF_CONFIG_TO_ROOT(...) __VA_ARGS__
#define SHUNT_IF_CONFIG_TO_PEER(...)
#define SHUNT_IF_CONFIG_FROM_PEER(...)

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Arguments of libnccl_ep's functions. The first check that fails writes a line with the function, the name and the
 * value, and the checks behind it do nothing, so that a function has its checks in a row and one look at the result.
 */
#include "shim/nccl_ep/ep_abi.h"

struct arg_check {
	const char *call;
	ncclResult_t result;
};

__attribute__((format(printf, 3, 4))) void arg_refuse(struct arg_check *c, ncclResult_t result, const char *fmt, ...);
/* What Shunt, or this call, does not have. */
void arg_forbid(struct arg_check *c, bool used, const char *why);
void arg_need(struct arg_check *c, const char *name, const void *pointer);
void arg_range(struct arg_check *c, const char *name, uint64_t value, uint64_t from, uint64_t to);
void arg_header(struct arg_check *c, const char *name, const void *from, unsigned least, unsigned magic);

/* Makes a call of Shunt, which has lines of its own, unless something is wrong. */
#define ARG_CALL(c, call) \
	do { \
		if (!(c)->result) \
			(c)->result = arg_result(call); \
	} while (0)
ncclResult_t arg_result(int err);

/* Copies the caller's struct; fields that the caller does not know are 0. */
void arg_take(struct arg_check *c, const char *name, const void *from, unsigned least, void *to, size_t bytes);
#define ARG_TAKE(c, type, name, copy) arg_take(c, #name, name, size_1_of_##type, copy, sizeof(type))
/* Of one that may be NULL: all is 0. */
#define ARG_TAKE_OR_NONE(c, type, name, copy) \
	do { \
		*(copy) = (type){ 0 }; \
		if (name) \
			ARG_TAKE(c, type, name, copy); \
	} while (0)

#define ARG_OWN_TENSOR 0x5ca1ab1eu /* magic number of those of ncclEpTensorAlloc */
#define ARG_TYPE(id) (1u << (id))
#define ARG_ANY SIZE_MAX
/* Number of dimensions and extents: the first is the least that a tensor may have, the others what it must have. */
#define ARG_SHAPE(...) (sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t)), ((const size_t[]){ __VA_ARGS__ })
/* The tensor's memory. types: as bits. An empty one may have no memory. */
void *arg_tensor(
    struct arg_check *c, const char *name, const ncclEpTensor_t *t, unsigned types, size_t ndim, const size_t *extents);
/* Bytes of the last dimension of a tensor that has passed. */
size_t arg_row_bytes(const ncclEpTensor_t *t);

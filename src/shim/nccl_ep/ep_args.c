/* SPDX-License-Identifier: MIT */
#include "shim/nccl_ep/ep_args.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/coll.h"
#include "shim/nccl/result.h"

void arg_refuse(struct arg_check *c, ncclResult_t result, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	if (c->result)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	c->result = result;
	fprintf(stderr, "shunt: %s: %s\n", c->call, text);
}

void arg_forbid(struct arg_check *c, bool used, const char *why)
{
	if (used)
		arg_refuse(c, ncclInvalidUsage, "%s", why);
}

void arg_need(struct arg_check *c, const char *name, const void *pointer)
{
	if (!pointer)
		arg_refuse(c, ncclInvalidArgument, "%s is NULL, and is needed", name);
}

void arg_range(struct arg_check *c, const char *name, uint64_t value, uint64_t from, uint64_t to)
{
	if (value < from || value > to)
		arg_refuse(c, ncclInvalidArgument, "%s is %llu, which is not between %llu and %llu", name,
		    (unsigned long long)value, (unsigned long long)from, (unsigned long long)to);
}

void arg_header(struct arg_check *c, const char *name, const void *from, unsigned least, unsigned magic)
{
	const unsigned *head = from; /* size, magic */

	arg_need(c, name, from);
	if (c->result || !from)
		return;
	if (head[0] < least || head[1] != magic)
		arg_refuse(c, ncclInvalidArgument,
		    "%s has size %u and magic number 0x%x, and should have %u or more and 0x%x", name, head[0], head[1],
		    least, magic);
}

ncclResult_t arg_result(int err)
{
	return err == -ENOSPC || err == -EDEADLK ? ncclInvalidUsage : shunt_to_nccl(err);
}

void arg_take(struct arg_check *c, const char *name, const void *from, unsigned least, void *to, size_t bytes)
{
	unsigned size;

	memset(to, 0, bytes);
	arg_header(c, name, from, least, NCCL_EP_MAGIC);
	if (c->result)
		return;
	memcpy(&size, from, sizeof(size));
	memcpy(to, from, size < bytes ? size : bytes);
}

void *arg_tensor(
    struct arg_check *c, const char *name, const ncclEpTensor_t *t, unsigned types, size_t ndim, const size_t *extents)
{
	bool empty = false;

	if (!t || t->magic != ARG_OWN_TENSOR)
		arg_header(c, name, t, size_1_of_ncclEpTensor_t, NCCL_EP_TENSOR_MAGIC);
	if (c->result || !t)
		return NULL;
	if (t->ndim != ndim || !t->sizes) {
		arg_refuse(c, ncclInvalidArgument, "%s has %u dimensions, and should have %zu", name,
		    t->sizes ? t->ndim : 0, ndim);
		return NULL;
	}
	if ((unsigned)t->datatype >= SHUNT_NDTYPES || !(types & ARG_TYPE(t->datatype)))
		arg_refuse(c, ncclInvalidArgument, "%s is of type %d, and should be of one of the bits of 0x%x", name,
		    t->datatype, types);
	for (size_t i = 0; !c->result && i < ndim; i++) {
		empty |= !t->sizes[i];
		if (extents[i] != ARG_ANY && (i ? t->sizes[i] != extents[i] : t->sizes[i] < extents[i]))
			arg_refuse(c, ncclInvalidArgument,
			    "%s has %zu elements in dimension %zu, and should have %zu%s", name, t->sizes[i], i,
			    extents[i], i ? "" : " or more");
	}
	if (!empty && !t->data)
		arg_refuse(c, t->win_hdl ? ncclInvalidUsage : ncclInvalidArgument,
		    t->win_hdl ? "%s: Shunt takes no tensors of windows, and data is NULL" : "%s has no data", name);
	return c->result ? NULL : t->data;
}

size_t arg_row_bytes(const ncclEpTensor_t *t)
{
	return t->sizes[t->ndim - 1] * shunt_dtype_bytes[t->datatype];
}

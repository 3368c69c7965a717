/* SPDX-License-Identifier: MIT */
#include "transport/net/verbs/verbs.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include "base/config.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

static int devices(struct shunt_net_info *info, int max)
{
	const struct verbs_port *ports;
	const struct shunt_ibv *ibv;
	int n = verbs_ports(&ibv, &ports);

	if (n > max)
		n = max;
	for (int i = 0; i < n; i++)
		info[i] = ports[i].info;
	return n;
}

/* Waits for the last messages of endpoints that are closed. */
static void wait_for_last_messages(struct verbs_device *device)
{
	static const struct timespec nap = { 0, 100000 };
	struct shunt_net_event events[16];

	/* Each has a deadline. */
	while (device->timed) {
		verbs_progress(&device->base, events, 16);
		if (device->timed)
			nanosleep(&nap, NULL);
	}
}

static void close_rail(struct verbs_rail *rail)
{
	verbs_wait_remove(rail->device, rail);
	for (int i = 0; i < rail->ncqs; i++)
		rail->ibv->destroy_cq(rail->cqs[i].cq);
	if (rail->channel)
		rail->ibv->destroy_comp_channel(rail->channel);
	if (rail->pd)
		rail->ibv->dealloc_pd(rail->pd);
	if (rail->context)
		rail->ibv->close_device(rail->context);
}

static void close_device(struct shunt_net_device *net_device)
{
	struct verbs_device *device = verbs_device_of(net_device);

	if (!device)
		return;
	wait_for_last_messages(device);
	if (device->nrails) {
		verbs_flush_close(device);
		verbs_disarm(device);
	}
	for (int i = 0; i < device->nrails; i++)
		close_rail(&device->rail[i]);
	shunt_net_device_finish(&device->base);
	free(device->slots);
	free(device);
}

/* A limit of the NIC, cut to VERBS_MOST_ATOMICS. */
static uint8_t atomics(int limit)
{
	return (uint8_t)(limit < 1 ? 1 : limit > VERBS_MOST_ATOMICS ? VERBS_MOST_ATOMICS : limit);
}

/* Limits of the NIC, and the port as it is now. */
static int look(struct verbs_rail *rail)
{
	struct shunt_ibv_device_attr attr = { 0 };
	const struct shunt_nccl_env *env = shunt_nccl_env();
	int err = rail->ibv->query_device(rail->context, &attr);

	if (!err)
		err = rail->ibv->query_port(rail->context, (uint8_t)rail->port->number, &rail->attr);
	if (err)
		return err < 0 ? -EIO : -err;
	if (rail->port->info.adds) {
		rail->atomics_out = atomics(attr.max_qp_init_rd_atom);
		rail->atomics_in = atomics(attr.max_qp_rd_atom);
	}
	rail->max_cqe = attr.max_cqe;
	while (rail->device->qps > 1 && VERBS_CQ_ENTRIES(rail->device->qps) + VERBS_MAX_GPU_MEMORY > attr.max_cqe)
		rail->device->qps--;
	if (rail->ibv->query_pkey(rail->context, (uint8_t)rail->port->number, env->ib_pkey, &rail->pkey)) {
		shunt_error("%s has no partition key %d (NCCL_IB_PKEY)", rail->port->info.where, env->ib_pkey);
		return -EINVAL;
	}
	/* The order of the network. */
	rail->pkey = (uint16_t)(rail->pkey << 8 | rail->pkey >> 8);
	return 0;
}

static int open_rail(struct verbs_device *device, struct verbs_rail *rail)
{
	int err;

	rail->context = verbs_open_nic(rail->ibv, rail->port->name);
	if (!rail->context)
		return -errno;
	err = look(rail);
	if (err)
		return err;
	errno = ENOMEM;
	rail->pd = rail->ibv->alloc_pd(rail->context);
	rail->channel = rail->pd ? rail->ibv->create_comp_channel(rail->context) : NULL;
	return rail->channel ? verbs_wait_add(device, rail) : -errno;
}

/* Opens the port with this index as one more rail. */
static int add_rail(struct shunt_net_device *net_device, int index)
{
	struct verbs_device *device = verbs_device_of(net_device);
	const struct verbs_port *ports;
	const struct shunt_ibv *ibv;
	int n = verbs_ports(&ibv, &ports), err = -ENODEV;
	struct verbs_rail *rail = &device->rail[device->nrails % VERBS_RAILS];

	if (device->nrails == VERBS_RAILS)
		return -ENOSPC;
	if (index >= 0 && index < n) {
		*rail = (struct verbs_rail){ .device = device, .ibv = ibv, .port = &ports[index] };
		device->ibv = ibv;
		err = open_rail(device, rail);
	}
	if (!err) {
		device->nrails++;
		return 0;
	}
	shunt_error("cannot open NIC %d of %d: %s", index, n, strerror(-err));
	if (index >= 0 && index < n)
		close_rail(rail);
	return err;
}

static int open_device(int index, struct shunt_net_device **device_p)
{
	struct verbs_device *device = calloc(1, sizeof(*device));
	int err;

	if (!device)
		return -ENOMEM;
	device->base.epoll_fd = device->base.timer_fd = -1;
	device->qps = (int)shunt_config()->ib_qps;
	device->qps = device->qps < 1 ? 1 : device->qps > VERBS_MOST_LANES ? VERBS_MOST_LANES : device->qps;
	err = shunt_net_device_init(&device->base, &(struct epoll_event){ .events = EPOLLIN });
	if (err)
		shunt_error("cannot wait for NICs: %s", shunt_error_text(err).s);
	else
		err = add_rail(&device->base, index);
	if (err) {
		close_device(&device->base);
		return err;
	}
	*device_p = &device->base;
	return 0;
}

/* Signals wait for a read of each GPU's memory: the flush knows all that is registered. */
static int mem_register(
    struct shunt_net_device *net_device, const struct shunt_net_region *region, struct shunt_net_memory **memory_p)
{
	struct verbs_device *device = verbs_device_of(net_device);
	struct verbs_memory *memory;
	int err = verbs_mem_register(device, region, &memory);

	if (!err && memory->gpu) {
		err = verbs_flush_open(device);
		if (err) {
			verbs_mem_deregister(&memory->base);
		} else {
			memory->next_gpu = device->gpu_memory;
			device->gpu_memory = memory;
		}
	}
	if (!err)
		*memory_p = &memory->base;
	return err;
}

const struct shunt_net_ops shunt_net_verbs_ops = {
	.name = "verbs",
	.blob_bytes = SHUNT_NET_BLOB_BYTES,
	.devices = devices,
	.open = open_device,
	.add_rail = add_rail,
	.close = close_device,
	.mem_register = mem_register,
	.mem_deregister = verbs_mem_deregister,
	.mem_remote = verbs_mem_remote,
	.endpoint_create = verbs_endpoint_create,
	.endpoint_connect = verbs_endpoint_connect,
	.post = verbs_post,
	.finish = verbs_finish,
	.end_is_out = verbs_end_is_out,
	.endpoint_close = verbs_endpoint_close,
	.progress = verbs_progress,
	.arm = verbs_arm,
	.fd = shunt_net_device_fd,
};

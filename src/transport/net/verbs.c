/* SPDX-License-Identifier: MIT */
#include "transport/net/verbs.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "transport/net/verbs_priv.h"

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

/* What the messages of the device's closed endpoints still need. */
static void wait_for_last_messages(struct shunt_net_device *device)
{
	static const struct timespec nap = { 0, 100000 };
	struct shunt_net_event events[16];

	/* Each has a deadline. */
	while (device->timed) {
		verbs_progress(device, events, 16);
		if (device->timed)
			nanosleep(&nap, NULL);
	}
}

static void close_device(struct shunt_net_device *device)
{
	if (!device)
		return;
	wait_for_last_messages(device);
	if (device->pd)
		verbs_flush_close(device);
	if (device->channel && device->ncqs)
		verbs_disarm(device);
	for (int i = 0; i < device->ncqs; i++)
		device->ibv->destroy_cq(device->cqs[i].cq);
	if (device->channel)
		device->ibv->destroy_comp_channel(device->channel);
	if (device->pd)
		device->ibv->dealloc_pd(device->pd);
	if (device->context)
		device->ibv->close_device(device->context);
	shunt_io_close_all((const int[]){ device->epoll_fd, device->timer_fd }, 2);
	free(device->slots);
	free(device);
}

/* How many endpoints a completion queue of this NIC has room for, and the port as it is now. */
static int look(struct shunt_net_device *device)
{
	struct shunt_ibv_device_attr attr = { 0 };
	const struct shunt_nccl_env *env = shunt_nccl_env();
	int err = device->ibv->query_device(device->context, &attr);

	if (!err)
		err = device->ibv->query_port(device->context, (uint8_t)device->port->number, &device->attr);
	if (err)
		return err < 0 ? -EIO : -err;
	device->cq_endpoints = (attr.max_cqe - VERBS_MAX_GPU_MEMORY) / VERBS_CQ_ENTRIES;
	if (device->cq_endpoints > VERBS_CQ_ENDPOINTS)
		device->cq_endpoints = VERBS_CQ_ENDPOINTS;
	if (device->ibv->query_pkey(device->context, (uint8_t)device->port->number, env->ib_pkey, &device->pkey)) {
		shunt_error("%s has no partition key %d (NCCL_IB_PKEY)", device->port->info.where, env->ib_pkey);
		return -EINVAL;
	}
	/* The order of the network. */
	device->pkey = (uint16_t)(device->pkey << 8 | device->pkey >> 8);
	return 0;
}

static int open_port(const struct shunt_ibv *ibv, const struct verbs_port *port, struct shunt_net_device *device)
{
	int err;

	device->context = verbs_open_nic(ibv, port->name);
	if (!device->context)
		return -errno;
	err = look(device);
	if (err)
		return err;
	errno = ENOMEM;
	device->pd = ibv->alloc_pd(device->context);
	device->channel = device->pd ? ibv->create_comp_channel(device->context) : NULL;
	return device->channel ? verbs_wait_open(device) : -errno;
}

static int open_device(int index, struct shunt_net_device **device_p)
{
	const struct verbs_port *ports;
	const struct shunt_ibv *ibv;
	int n = verbs_ports(&ibv, &ports), err = -ENODEV;
	struct shunt_net_device *device = calloc(1, sizeof(*device));

	if (!device)
		return -ENOMEM;
	*device = (struct shunt_net_device){ .ibv = ibv, .port = &ports[index], .epoll_fd = -1, .timer_fd = -1 };
	if (index >= 0 && index < n)
		err = open_port(ibv, &ports[index], device);
	if (err) {
		shunt_error("cannot open NIC %d of %d: %s", index, n, strerror(-err));
		close_device(device);
		return err;
	}
	*device_p = device;
	return 0;
}

const struct shunt_net_ops shunt_net_verbs_ops = {
	.name = "verbs",
	.blob_bytes = SHUNT_NET_BLOB_BYTES,
	.devices = devices,
	.open = open_device,
	.close = close_device,
	.mem_register = verbs_mem_register,
	.mem_deregister = verbs_mem_deregister,
	.mem_remote = verbs_mem_remote,
	.endpoint_create = verbs_endpoint_create,
	.endpoint_connect = verbs_endpoint_connect,
	.post = verbs_post,
	.finish = verbs_finish,
	.endpoint_close = verbs_endpoint_close,
	.progress = verbs_progress,
	.arm = verbs_arm,
	.fd = verbs_fd,
};

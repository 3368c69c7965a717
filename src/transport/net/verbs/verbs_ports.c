/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/config.h"
#include "base/inet/device_list.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct shunt_ibv *ibv;
static struct verbs_port ports[SHUNT_NET_MAX_DEVICES];
static int nports; /* or -errno */
static char left_out[SHUNT_NET_MAX_DEVICES][160];
static int nleft_out;

/* A NIC, or one of its ports, that is there and not used, and why. */
__attribute__((format(printf, 1, 2))) static void leave_out(const char *fmt, ...)
{
	char text[sizeof(left_out[0])];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	shunt_info(SHUNT_LOG_NET, "%s", text);
	if (nleft_out < SHUNT_NET_MAX_DEVICES)
		memcpy(left_out[nleft_out++], text, sizeof(text));
}

struct shunt_ibv_context *verbs_open_nic(const struct shunt_ibv *lib, const char *name)
{
	struct shunt_ibv_device **list;
	struct shunt_ibv_context *context = NULL;
	int n = 0, err = ENODEV;

	list = lib->get_device_list(&n);
	for (int i = 0; list && i < n && !context; i++) {
		if (strcmp(list[i]->name, name))
			continue;
		context = lib->open_device(list[i]);
		err = context ? 0 : errno ? errno : EIO;
	}
	if (list)
		lib->free_device_list(list);
	errno = err;
	return context;
}

bool verbs_has_gpu_memory(const struct shunt_ibv *lib, struct shunt_ibv_context *context)
{
	static const char *const modules[] = { "/sys/module/nvidia_peermem/version",
		"/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version" };
	struct shunt_ibv_pd *pd;
	struct shunt_ibv_mr *mr;
	bool has = false;

	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
		has |= !access(modules[i], R_OK);
	pd = has || !lib->reg_dmabuf_mr ? NULL : lib->alloc_pd(context);
	if (!pd)
		return has;
	/* A driver that knows dma-bufs finds that -1 is no descriptor. */
	errno = 0;
	mr = lib->reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0);
	has = mr || errno == EBADF;
	if (mr)
		lib->dereg_mr(mr);
	lib->dealloc_pd(pd);
	return has;
}

static unsigned rate(const struct shunt_ibv_port_attr *attr)
{
	static const struct {
		uint8_t code;
		unsigned mbit;
	} lanes[] = { { 1, 2500 }, { 2, 5000 }, { 4, 10000 }, { 8, 10000 }, { 16, 14000 }, { 32, 25000 }, { 64, 50000 },
		{ 128, 100000 } };
	unsigned width = attr->active_width == 2 ? 4 :
	    attr->active_width == 4              ? 8 :
	    attr->active_width == 8              ? 12 :
	    attr->active_width == 16             ? 2 :
	                                           1;

	for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++)
		if (lanes[i].code == attr->active_speed)
			return lanes[i].mbit * width;
	return 0;
}

/* Takes a port into the list, if it is up and the settings allow it. */
static void take_port(struct shunt_ibv_context *context, const char *name, int number, const struct shunt_net_info *nic)
{
	const char *listed = shunt_config()->ib_devices;
	struct verbs_port *port = &ports[nports];
	struct shunt_pci_place place;
	/* The library may write fewer fields than there are. */
	struct shunt_ibv_port_attr attr = { 0 };

	if (*listed ? shunt_device_list_index(listed, name, number) < 0 :
	              !shunt_device_list_match(shunt_nccl_env()->ib_hca, name, number)) {
		leave_out("%s port %d is not used: %s leaves it out", name, number,
		    *listed ? "SHUNT_IB_DEVICES" : "NCCL_IB_HCA");
		return;
	}
	if (nports == SHUNT_NET_MAX_DEVICES || ibv->query_port(context, (uint8_t)number, &attr)) {
		leave_out("%s port %d is not used: %s", name, number,
		    nports == SHUNT_NET_MAX_DEVICES ? "there are enough" : "it cannot be asked");
		return;
	}
	if (attr.state != SHUNT_IBV_PORT_ACTIVE ||
	    (attr.link_layer != SHUNT_IBV_LINK_LAYER_INFINIBAND && attr.link_layer != SHUNT_IBV_LINK_LAYER_ETHERNET)) {
		leave_out("%s port %d is not used: it is not active", name, number);
		return;
	}
	*port = (struct verbs_port){ .number = number };
	snprintf(port->name, sizeof(port->name), "%.55s", name);
	shunt_nic_place(name, &place);
	port->info = *nic;
	port->info.numa = place.numa;
	port->info.rate_mbit = rate(&attr);
	/* Names of devices that do not fit would be taken for others. */
	if (strlen(place.pci) < sizeof(port->info.pci))
		memcpy(port->info.pci, place.pci, strlen(place.pci) + 1);
	if (number == 1)
		snprintf(port->info.name, sizeof(port->info.name), "%.31s", name);
	else
		snprintf(port->info.name, sizeof(port->info.name), "%.26s:%d", name, number);
	snprintf(port->info.where, sizeof(port->info.where), "%.40s port %d, %s", name, number,
	    attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand");
	nports++;
}

static void take_nic(struct shunt_ibv_device *device)
{
	struct shunt_ibv_context *context;
	struct shunt_ibv_device_attr attr = { 0 };
	struct shunt_net_info info = { 0 };

	/* iWARP writes no immediate values. */
	if (device->transport_type != SHUNT_IBV_TRANSPORT_IB) {
		leave_out("%s is not used: it is neither InfiniBand nor RoCE", device->name);
		return;
	}
	context = ibv->open_device(device);
	if (!context) {
		leave_out("%s is not used: it cannot be opened: %s", device->name, strerror(errno));
		return;
	}
	if (ibv->query_device(context, &attr) || attr.max_qp_wr < VERBS_RECEIVES ||
	    attr.max_cqe < VERBS_CQ_ENTRIES(1)) {
		leave_out("%s is not used: its queues are too short", device->name);
	} else {
		info.gpu_memory = verbs_has_gpu_memory(ibv, context);
		info.adds = attr.atomic_cap != SHUNT_IBV_ATOMIC_NONE;
		for (int number = 1; number <= attr.phys_port_cnt; number++)
			take_port(context, device->name, number, &info);
	}
	ibv->close_device(context);
}

static int by_list(const void *a, const void *b)
{
	const char *listed = shunt_config()->ib_devices;
	const struct verbs_port *pa = a, *pb = b;

	return shunt_device_list_index(listed, pa->name, pa->number) -
	    shunt_device_list_index(listed, pb->name, pb->number);
}

static int by_name(const void *a, const void *b)
{
	const struct verbs_port *pa = a, *pb = b;
	int order = strverscmp(pa->name, pb->name);

	return order ? order : pa->number - pb->number;
}

static void find_ports(void)
{
	struct shunt_ibv_device **list;
	int n = 0, err;

	if (shunt_nccl_env()->ib_disable)
		return;
	err = shunt_ibv_load(&ibv);
	if (err) {
		nports = err == -ENOENT ? 0 : err;
		return;
	}
	list = ibv->get_device_list(&n);
	for (int i = 0; list && i < n; i++)
		take_nic(list[i]);
	if (list)
		ibv->free_device_list(list);
	qsort(ports, (size_t)nports, sizeof(ports[0]), *shunt_config()->ib_devices ? by_list : by_name);
	if (!nports)
		shunt_info(SHUNT_LOG_INIT | SHUNT_LOG_NET,
		    "no verbs: libibverbs shows %d devices, of which none can be used", n);
}

int verbs_ports(const struct shunt_ibv **ibv_p, const struct verbs_port **ports_p)
{
	pthread_once(&once, find_ports);
	*ibv_p = ibv;
	*ports_p = ports;
	return nports;
}

int verbs_left_out(const char (**texts_p)[160])
{
	pthread_once(&once, find_ports);
	*texts_p = left_out;
	return nleft_out;
}

/* SPDX-License-Identifier: MIT */
/* Lists this machine's NICs and the reasons why some cannot be used, for shunt info and shunt doctor. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "base/config.h"
#include "transport/net/verbs/verbs.h"
#include "transport/net/verbs/verbs_priv.h"

void shunt_verbs_address(struct shunt_net_device *net_device, char *text, size_t bytes)
{
	struct verbs_device *device = verbs_device_of(net_device);
	static const char *const types[] = {
		[SHUNT_GID_IB] = "InfiniBand", [SHUNT_GID_ROCE_V1] = "RoCE v1", [SHUNT_GID_ROCE_V2] = "RoCE v2"
	};
	struct shunt_gid offered[SHUNT_GID_MAX_OFFERED];
	char address[64];
	int n = verbs_gids(device->rail, offered);

	*text = '\0';
	if (n < 0)
		return;
	if (!n) {
		snprintf(text, bytes, "InfiniBand, LID %u", device->rail[0].attr.lid);
		return;
	}
	shunt_gid_show(&offered[0], address, sizeof(address));
	snprintf(text, bytes, "%s, GID %u, %s", types[offered[0].type], offered[0].index, address);
}

/* A communicator's memory would be registered like this. */
static int try_memory(struct verbs_device *device, size_t bytes)
{
	/* cppcheck-suppress invalidFunctionArg; without a file it is -1 */
	void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const struct shunt_net_region region = { .start = start, .bytes = bytes, .dmabuf_fd = -1 };
	struct verbs_memory *memory;
	int err;

	if (start == MAP_FAILED)
		return -errno;
	err = verbs_mem_register(device, &region, &memory);
	if (!err)
		verbs_mem_deregister(&memory->base);
	munmap(start, bytes);
	return err;
}

static void look_at(int index, size_t bytes, struct shunt_verbs_port *port)
{
	struct shunt_net_device *device;

	port->fails = "be opened";
	port->err = shunt_net_verbs_ops.open(index, &device);
	if (port->err)
		return;
	port->fails = "find an address";
	shunt_verbs_address(device, port->gid, sizeof(port->gid));
	port->err = *port->gid ? 0 : -EADDRNOTAVAIL;
	if (!port->err) {
		port->fails = "register memory";
		port->err = try_memory(verbs_device_of(device), bytes);
	}
	if (!port->err)
		port->fails = NULL;
	shunt_net_verbs_ops.close(device);
}

void shunt_verbs_look(size_t bytes, struct shunt_verbs_look *look_p)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	const char (*texts)[160];
	int n;

	*look_p = (struct shunt_verbs_look){ 0 };
	if (shunt_nccl_env()->ib_disable) {
		snprintf(look_p->none, sizeof(look_p->none), "NCCL_IB_DISABLE=1");
		return;
	}
	n = shunt_net_verbs_ops.devices(info, SHUNT_NET_MAX_DEVICES);
	look_p->n = n > 0 ? n : 0;
	look_p->nleft_out = verbs_left_out(&texts);
	memcpy(look_p->left_out, texts, sizeof(look_p->left_out));
	if (*shunt_ibv_problem())
		snprintf(look_p->none, sizeof(look_p->none), "%s", shunt_ibv_problem());
	else if (n <= 0)
		snprintf(look_p->none, sizeof(look_p->none), "libibverbs shows %s",
		    look_p->nleft_out ? "no port that can be used" : "no NIC");
	for (int i = 0; i < look_p->n; i++) {
		look_p->ports[i].info = info[i];
		look_at(i, bytes, &look_p->ports[i]);
	}
}

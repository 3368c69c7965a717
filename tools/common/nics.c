/* SPDX-License-Identifier: MIT */
#include "tools/common/nics.h"
#include "tools/common/libc.h"
#include "device/gpu_ops.h"

int tool_gpus_find(struct tool_gpus *gpus_p)
{
	const struct shunt_gpu_ops *gpu = &shunt_gpu_cuda_ops;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int n = 0;

	*gpus_p = (struct tool_gpus){ 0 };
	if (!driver || gpu->open(NULL) || gpu->device_count(&n) || n <= 0)
		return 0; /* cppcheck-suppress resourceLeak; a driver is not unloaded */
	gpus_p->at = calloc((size_t)n, sizeof(*gpus_p->at));
	if (!gpus_p->at)
		return -ENOMEM; /* cppcheck-suppress resourceLeak; as above */
	for (int i = 0; i < n; i++) {
		struct shunt_gpu_info info;

		gpus_p->at[i].numa = -1;
		if (!gpu->device_info(i, &info))
			shunt_pci_place(info.pci, &gpus_p->at[i]);
	}
	gpus_p->n = n;
	return 0;
}

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t bytes, const char *fmt, ...)
{
	size_t at = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + at, bytes - at, fmt, ap);
	va_end(ap);
}

static void append_link(const struct shunt_net_info *info, char *text, size_t bytes)
{
	if (info->rate_mbit >= 1000)
		append(text, bytes, ", %.4g Gb/s", info->rate_mbit / 1000.0);
	else if (info->rate_mbit)
		append(text, bytes, ", %u Mb/s", info->rate_mbit);
	if (info->numa >= 0)
		append(text, bytes, ", NUMA node %d", info->numa);
}

void tool_interface_show(const struct shunt_net_info *info, char *text, size_t bytes)
{
	snprintf(text, bytes, "%s, %s", info->name, info->where);
	append_link(info, text, bytes);
}

void tool_nic_show(const struct shunt_verbs_look *look, int i, const struct tool_gpus *gpus, char *text, size_t bytes)
{
	const struct shunt_verbs_port *port = &look->ports[i];
	struct shunt_pci_place nics[SHUNT_NET_MAX_DEVICES];
	int found = 0;

	snprintf(text, bytes, "%s", port->info.where);
	if (*port->gid)
		snprintf(text, bytes, "%.*s, %s", (int)strcspn(port->info.where, ","), port->info.where, port->gid);
	append_link(&port->info, text, bytes);
	for (int k = 0; k < look->n; k++) {
		memcpy(nics[k].pci, look->ports[k].info.pci, sizeof(nics[k].pci));
		nics[k].numa = look->ports[k].info.numa;
	}
	for (int g = 0; g < gpus->n; g++)
		if (shunt_nic_pair(gpus->at, gpus->n, g, nics, look->n) == i)
			append(text, bytes, "%s %d", found++ ? "" : ", for GPU", g);
}

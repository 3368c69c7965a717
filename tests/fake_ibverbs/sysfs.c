/* SPDX-License-Identifier: MIT */
/*
 * What the kernel would say of a device: devices/PATH/PCI/{numa_node,vendor,device,class}, and class/infiniband/NAME
 * with a link `device` to it and what is known of each port. Written anew, each file at once, so that several processes
 * may do it.
 */
#include <arpa/inet.h>
#include "tools/common/libc.h"
#include "fake.h"

/* All folders above the last slash. */
static void make_folders(const char *path)
{
	char part[1024];

	for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
		mkdir(part, 0777);
	}
}

__attribute__((format(printf, 2, 3))) static void put(const char *path, const char *format, ...)
{
	char other[1100];
	va_list args;
	FILE *f;

	make_folders(path);
	snprintf(other, sizeof(other), "%s.%d", path, (int)getpid());
	f = fopen(other, "w");
	if (!f) {
		fprintf(stderr, "fake_ibverbs: SHUNT_SYSFS_ROOT: %s: %s\n", path, strerror(errno));
		return;
	}
	va_start(args, format);
	vfprintf(f, format, args);
	va_end(args);
	fclose(f);
	rename(other, path);
}

static void write_port(const struct fake_spec *s, const char *folder, uint32_t port)
{
	static const char *const states[] = { "", "1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE" };
	static const char *const types[] = { "", "IB/RoCE v1", "IB/RoCE v1", "RoCE v2" };
	char path[1000];

	snprintf(path, sizeof(path), "%s/ports/%u/state", folder, port);
	put(path, "%s\n", states[s->state]);
	snprintf(path, sizeof(path), "%s/ports/%u/link_layer", folder, port);
	put(path, "%s\n", s->link_layer == 2 ? "Ethernet" : "InfiniBand");
	snprintf(path, sizeof(path), "%s/ports/%u/rate", folder, port);
	put(path, "%llu Gb/sec (4X)\n", (unsigned long long)s->speed / 10);
	for (uint32_t i = 0; i < FABRIC_GIDS; i++) {
		union ibv_gid entry = fake_spec_gid(s, port, i);
		char gid[48] = "";

		for (int b = 0; b < 16; b += 2)
			snprintf(gid + strlen(gid), sizeof(gid) - strlen(gid), "%s%02x%02x", b ? ":" : "", entry.raw[b],
			    entry.raw[b + 1]);
		snprintf(path, sizeof(path), "%s/ports/%u/gids/%u", folder, port, i);
		put(path, "%s\n", gid);
		if (!s->gids[i].type)
			continue;
		snprintf(path, sizeof(path), "%s/ports/%u/gid_attrs/types/%u", folder, port, i);
		put(path, "%s\n", types[s->gids[i].type]);
	}
}

void fake_sysfs_write(const struct fake_spec *s)
{
	const char *root = fake_config()->sysfs;
	char folder[700], path[1000], target[600];

	if (!*root)
		return;
	snprintf(folder, sizeof(folder), "%s/devices/%s/%s", root, s->path, s->pci);
	snprintf(path, sizeof(path), "%s/numa_node", folder);
	put(path, "%d\n", s->numa);
	snprintf(path, sizeof(path), "%s/vendor", folder);
	put(path, "0x15b3\n");
	snprintf(path, sizeof(path), "%s/device", folder);
	put(path, "0x1021\n");
	snprintf(path, sizeof(path), "%s/class", folder);
	put(path, "0x020700\n");
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", root, s->pci);
	snprintf(target, sizeof(target), "../../../devices/%s/%s", s->path, s->pci);
	make_folders(path);
	if (symlink(target, path) && errno != EEXIST)
		fprintf(stderr, "fake_ibverbs: SHUNT_SYSFS_ROOT: %s: %s\n", path, strerror(errno));
	snprintf(folder, sizeof(folder), "%s/class/infiniband/%s", root, s->name);
	snprintf(path, sizeof(path), "%s/node_guid", folder);
	put(path, "0200:0000:0000:%04x\n", s->guid);
	snprintf(path, sizeof(path), "%s/node_type", folder);
	put(path, "1: CA\n");
	snprintf(path, sizeof(path), "%s/board_id", folder);
	put(path, "FAKE0000000001\n");
	snprintf(path, sizeof(path), "%s/fw_ver", folder);
	put(path, "1.0.0\n");
	snprintf(path, sizeof(path), "%s/device", folder);
	snprintf(target, sizeof(target), "../../../devices/%s/%s", s->path, s->pci);
	if (symlink(target, path) && errno != EEXIST)
		fprintf(stderr, "fake_ibverbs: SHUNT_SYSFS_ROOT: %s: %s\n", path, strerror(errno));
	for (uint32_t port = 1; port <= s->ports; port++)
		write_port(s, folder, port);
}

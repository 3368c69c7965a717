/* SPDX-License-Identifier: MIT */
/* The devices of the provider "tcp": interfaces, and what sysfs says of them. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/files.h"
#include "base/inet/netif.h"
#include "transport/net/tcp/tcp_priv.h"

static int list_interfaces(struct shunt_netaddr *addrs, int max)
{
	const struct shunt_nccl_env *env = shunt_nccl_env();

	struct shunt_netif_rules rules = { env->socket_ifname, env->socket_family, env->comm_id };

	return shunt_netif_list(&rules, addrs, max);
}

static long read_number(const char *path, long otherwise)
{
	char text[32], *end;
	long value = shunt_files_line(path, text, sizeof(text)) ? strtol(text, &end, 10) : otherwise;

	return value != otherwise && end == text ? otherwise : value;
}

/* "0000:3b:00.1" */
static bool is_pci_name(const char *name, size_t n)
{
	static const char form[] = "xxxx:xx:xx.x";

	if (n != sizeof(form) - 1)
		return false;
	for (size_t i = 0; i < n; i++)
		if (form[i] == 'x' ? !strchr("0123456789abcdef", name[i]) : name[i] != form[i])
			return false;
	return true;
}

/* Cuts the path of a device behind its last PCI function; "" if there is none. */
static void cut_to_pci(char *path)
{
	size_t end = 0;

	for (size_t begin = 0, n; path[begin]; begin += n) {
		begin += path[begin] == '/';
		n = strcspn(path + begin, "/");
		if (is_pci_name(path + begin, n))
			end = begin + n;
	}
	path[end] = '\0';
}

static void look_up(const char *ifname, struct shunt_net_info *info)
{
	char path[PATH_MAX], real[PATH_MAX];
	long speed;

	snprintf(path, sizeof(path), "/sys/class/net/%s/speed", ifname);
	speed = read_number(path, 0);
	info->rate_mbit = speed > 0 && speed < INT_MAX ? (unsigned)speed : 0;
	info->numa = -1;
	snprintf(path, sizeof(path), "/sys/class/net/%s/device", ifname);
	if (!realpath(path, real))
		return;
	cut_to_pci(real);
	if (!*real || strlen(real) >= sizeof(info->pci))
		return;
	snprintf(info->pci, sizeof(info->pci), "%s", real);
	if ((size_t)snprintf(path, sizeof(path), "%s/numa_node", info->pci) < sizeof(path))
		info->numa = (int)read_number(path, -1);
}

int shunt_tcp_devices(struct shunt_net_info *info, int max)
{
	struct shunt_netaddr addrs[SHUNT_NET_MAX_DEVICES];
	int n = list_interfaces(addrs, max < SHUNT_NET_MAX_DEVICES ? max : SHUNT_NET_MAX_DEVICES);

	for (int i = 0; i < n; i++) {
		info[i] = (struct shunt_net_info){ 0 };
		snprintf(info[i].name, sizeof(info[i].name), "%s", addrs[i].ifname);
		shunt_netaddr_show_host(&addrs[i], info[i].where, sizeof(info[i].where));
		look_up(addrs[i].ifname, &info[i]);
	}
	return n;
}

int shunt_tcp_device_address(int index, struct shunt_netaddr *addr)
{
	struct shunt_netaddr addrs[SHUNT_NET_MAX_DEVICES];
	int n = list_interfaces(addrs, SHUNT_NET_MAX_DEVICES);

	if (n < 0)
		return n;
	if (index < 0 || index >= n)
		return -ENODEV;
	*addr = addrs[index];
	return 0;
}

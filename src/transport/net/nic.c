/* SPDX-License-Identifier: MIT */
#include "transport/net/nic.h"
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *sysfs = "/sys";

void shunt_nic_sysfs(const char *root)
{
	sysfs = root;
}

static bool read_line(const char *path, char *text, size_t bytes)
{
	FILE *f = fopen(path, "re");
	bool ok;

	if (!f)
		return false;
	ok = fgets(text, (int)bytes, f);
	fclose(f);
	if (ok)
		text[strcspn(text, "\n")] = '\0';
	return ok;
}

bool shunt_nic_read(const char *name, const char *file, char *text, size_t bytes)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/class/infiniband/%s/%s", sysfs, name, file) < (int)sizeof(path) &&
	    read_line(path, text, bytes);
}

/* link: of the device in sysfs. */
static void place(const char *link, struct shunt_nic_place *place_p)
{
	char root[PATH_MAX], path[PATH_MAX], numa[PATH_MAX + 16], text[16];
	size_t n;

	*place_p = (struct shunt_nic_place){ .numa = -1 };
	if (!realpath(sysfs, root) || !realpath(link, path))
		return;
	n = strlen(root);
	if (strncmp(path, root, n) || strlen(path + n) >= sizeof(place_p->pci))
		return;
	memcpy(place_p->pci, path + n, strlen(path + n) + 1);
	snprintf(numa, sizeof(numa), "%s/numa_node", path);
	if (read_line(numa, text, sizeof(text)))
		place_p->numa = atoi(text);
}

void shunt_nic_place(const char *name, struct shunt_nic_place *place_p)
{
	char link[PATH_MAX];

	snprintf(link, sizeof(link), "%s/class/infiniband/%s/device", sysfs, name);
	place(link, place_p);
}

void shunt_nic_pci_place(const char *bdf, struct shunt_nic_place *place_p)
{
	char link[PATH_MAX];

	snprintf(link, sizeof(link), "%s/bus/pci/devices/%s", sysfs, bdf);
	place(link, place_p);
}

/* Where the parts behind the root complex ("/devices/pci0000:16") begin. NULL: this is no path of a PCI device. */
static const char *behind_root(const char *path)
{
	static const char head[] = "/devices/pci";

	return strncmp(path, head, sizeof(head) - 1) ? NULL : strchr(path + sizeof(head) - 1, '/');
}

static int parts(const char *path)
{
	int n = 0;

	for (; *path; path++)
		n += *path == '/';
	return n;
}

enum shunt_nic_distance shunt_nic_distance(const struct shunt_nic_place *a, const struct shunt_nic_place *b)
{
	const char *pa = behind_root(a->pci), *pb = behind_root(b->pci);
	bool same_node = a->numa >= 0 && a->numa == b->numa;
	int shared = 0;

	if (!pa || !pb || pa - a->pci != pb - b->pci || strncmp(a->pci, b->pci, (size_t)(pa - a->pci)))
		return same_node ? SHUNT_NIC_NODE : SHUNT_NIC_SYSTEM;
	while (*pa && *pb) {
		size_t na = 1 + strcspn(pa + 1, "/"), nb = 1 + strcspn(pb + 1, "/");

		if (na != nb || strncmp(pa, pb, na))
			break;
		pa += na;
		pb += nb;
		shared++;
	}
	if (!shared)
		return SHUNT_NIC_BRIDGE;
	/* Below one switch the paths share the switch's upstream port and differ from the downstream port on. */
	return parts(pa) <= 2 && parts(pb) <= 2 ? SHUNT_NIC_SWITCH : SHUNT_NIC_SWITCHES;
}

/* The NICs nearest to a GPU, as bits. */
static uint64_t nearest(const struct shunt_nic_place *gpu, const struct shunt_nic_place *nics, int nnics)
{
	enum shunt_nic_distance best = SHUNT_NIC_SYSTEM;
	uint64_t set = 0;

	for (int i = 0; i < nnics && i < 64; i++) {
		enum shunt_nic_distance d = shunt_nic_distance(gpu, &nics[i]);

		if (d < best) {
			best = d;
			set = 0;
		}
		if (d == best)
			set |= 1ull << i;
	}
	return set;
}

int shunt_nic_pair(
    const struct shunt_nic_place *gpus, int ngpus, int gpu, const struct shunt_nic_place *nics, int nnics)
{
	uint64_t set = nearest(&gpus[gpu], nics, nnics);
	int turn = 0, nic;

	for (int i = 0; i < gpu && i < ngpus; i++)
		turn += nearest(&gpus[i], nics, nnics) == set;
	turn %= __builtin_popcountll(set);
	for (nic = 0; turn || !(set >> nic & 1); nic++)
		turn -= (int)(set >> nic & 1);
	return nic;
}

int shunt_nic_rails(const struct shunt_nic_place *gpus, int ngpus, int gpu, const struct shunt_nic_place *nics,
    int nnics, int most, int *rails)
{
	int first = shunt_nic_pair(gpus, ngpus, gpu, nics, nnics), n = 0;

	rails[n++] = first;
	for (int d = SHUNT_NIC_SWITCH; d <= SHUNT_NIC_SYSTEM; d++)
		for (int i = 1; i < nnics && n < most; i++) {
			int nic = (first + i) % nnics;

			if ((int)shunt_nic_distance(&gpus[gpu], &nics[nic]) == d)
				rails[n++] = nic;
		}
	return n;
}

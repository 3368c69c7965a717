/* SPDX-License-Identifier: MIT */
#include "transport/net/nic.h"
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool shunt_nic_read(const char *name, const char *file, char *text, size_t bytes)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "class/infiniband/%s/%s", name, file) < (int)sizeof(path) &&
	    shunt_pci_read(path, text, bytes);
}

void shunt_nic_place(const char *name, struct shunt_pci_place *place_p)
{
	char file[PATH_MAX];

	snprintf(file, sizeof(file), "class/infiniband/%s/device", name);
	shunt_pci_place_at(file, place_p);
}

/* The NICs nearest to a GPU, as bits. */
static uint64_t nearest(const struct shunt_pci_place *gpu, const struct shunt_pci_place *nics, int nnics)
{
	enum shunt_pci_distance best = SHUNT_PCI_SYSTEM;
	uint64_t set = 0;

	for (int i = 0; i < nnics && i < 64; i++) {
		enum shunt_pci_distance d = shunt_pci_distance(gpu, &nics[i]);

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
    const struct shunt_pci_place *gpus, int ngpus, int gpu, const struct shunt_pci_place *nics, int nnics)
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

int shunt_nic_rails(const struct shunt_pci_place *gpus, int ngpus, int gpu, const struct shunt_pci_place *nics,
    int nnics, int most, int *rails)
{
	int first = shunt_nic_pair(gpus, ngpus, gpu, nics, nnics), n = 0;

	rails[n++] = first;
	for (int d = SHUNT_PCI_SWITCH; d <= SHUNT_PCI_SYSTEM; d++)
		for (int i = 1; i < nnics && n < most; i++) {
			int nic = (first + i) % nnics;

			if ((int)shunt_pci_distance(&gpus[gpu], &nics[nic]) == d)
				rails[n++] = nic;
		}
	return n;
}

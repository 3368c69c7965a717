/* SPDX-License-Identifier: MIT */
#pragma once
/* Which NICs to use, where they are, and which of them is near a GPU. No library is needed. Any thread. */
#include <stdbool.h>
#include <stddef.h>
#include "topology/pci.h"

/* Where the RDMA device `name` is. */
void shunt_nic_place(const char *name, struct shunt_pci_place *place_p);
/* First line of /sys/class/infiniband/NAME/FILE. False: there is none, or it cannot be read. */
bool shunt_nic_read(const char *name, const char *file, char *text, size_t bytes);
/*
 * Index of the NIC for GPU `gpu` of the GPUs of a host: the nearest NIC. GPUs that share their nearest NICs take them
 * in turn, by index. So all processes of the host find the same pairs. nnics >= 1.
 */
int shunt_nic_pair(
    const struct shunt_pci_place *gpus, int ngpus, int gpu, const struct shunt_pci_place *nics, int nnics);
/*
 * Indices of up to `most` NICs for that GPU: the NIC of shunt_nic_pair, then the rest by distance; ties in index order,
 * beginning behind that NIC. Their number.
 */
int shunt_nic_rails(const struct shunt_pci_place *gpus, int ngpus, int gpu, const struct shunt_pci_place *nics,
    int nnics, int most, int *rails);

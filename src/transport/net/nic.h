/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_NET_NIC_H
#define SHUNT_TRANSPORT_NET_NIC_H
/* Which NICs to use, where they are, and which of them is near a GPU. No library is needed. Any thread. */
#include <stdbool.h>
#include <stddef.h>

struct shunt_nic_place {
	char pci[256]; /* path in sysfs, without /sys: "/devices/pci0000:00/..."; "": unknown */
	int numa;      /* -1: unknown */
};

/* Where the RDMA device `name` is, or the PCI device with the address "0000:19:00.0". */
void shunt_nic_place(const char *name, struct shunt_nic_place *place_p);
void shunt_nic_pci_place(const char *bdf, struct shunt_nic_place *place_p);
/* First line of /sys/class/infiniband/NAME/FILE. False: there is none, or it cannot be read. */
bool shunt_nic_read(const char *name, const char *file, char *text, size_t bytes);
/* Reads this directory instead of /sys. For tests alone; call it before the other functions of this file. */
void shunt_nic_sysfs(const char *root);

/* How two PCI devices reach each other, nearest first. */
enum shunt_nic_distance {
	SHUNT_NIC_SWITCH,   /* through one switch */
	SHUNT_NIC_SWITCHES, /* through several */
	SHUNT_NIC_BRIDGE,   /* through one host bridge */
	SHUNT_NIC_NODE,     /* through the processors of one NUMA node */
	SHUNT_NIC_SYSTEM,   /* between NUMA nodes, or unknown */
};
enum shunt_nic_distance shunt_nic_distance(const struct shunt_nic_place *a, const struct shunt_nic_place *b);
/*
 * Index of the NIC for GPU `gpu` of the GPUs of a host: the nearest NIC. GPUs that share their nearest NICs take them
 * in turn, by index. So all processes of the host find the same pairs. nnics >= 1.
 */
int shunt_nic_pair(
    const struct shunt_nic_place *gpus, int ngpus, int gpu, const struct shunt_nic_place *nics, int nnics);
/*
 * Indices of up to `most` NICs for that GPU: the NIC of shunt_nic_pair, then the rest by distance; ties in index order,
 * beginning behind that NIC. Their number.
 */
int shunt_nic_rails(const struct shunt_nic_place *gpus, int ngpus, int gpu, const struct shunt_nic_place *nics,
    int nnics, int most, int *rails);
#endif

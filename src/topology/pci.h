/* SPDX-License-Identifier: MIT */
#pragma once
/* Where PCI devices are, how they reach each other, and what may stand between them. From /sys; any thread. */
#include <stdbool.h>
#include <stddef.h>

struct shunt_pci_place {
	char pci[256]; /* path in sysfs, without /sys: "/devices/pci0000:00/..."; "": unknown */
	int numa;      /* -1: unknown */
};

/* Where the PCI device with the address "0000:19:00.0" is, or the one that /sys/FILE leads to. */
void shunt_pci_place(const char *bdf, struct shunt_pci_place *place_p);
void shunt_pci_place_at(const char *file, struct shunt_pci_place *place_p);
/* First line of /sys/FILE. False: there is none, or it cannot be read. */
bool shunt_pci_read(const char *file, char *text, size_t bytes);
/* True: the processors are AMD's. */
bool shunt_pci_amd(void);
/* Reads this directory instead of /sys. For tests alone; call it before the other functions of this file. */
void shunt_pci_sysfs(const char *root);

/* How two PCI devices reach each other, nearest first. */
enum shunt_pci_distance {
	SHUNT_PCI_SWITCH,   /* through one switch */
	SHUNT_PCI_SWITCHES, /* through several */
	SHUNT_PCI_BRIDGE,   /* through one host bridge */
	SHUNT_PCI_NODE,     /* through the processors of one NUMA node */
	SHUNT_PCI_SYSTEM,   /* between NUMA nodes, or unknown */
};
enum shunt_pci_distance shunt_pci_distance(const struct shunt_pci_place *a, const struct shunt_pci_place *b);
/*
 * What lies between this device and its peers that is known to break or redirect their stores, as a clause: the IOMMU,
 * or ACS, which only root can see. "": nothing that this process can see.
 */
void shunt_pci_suspect(const char *bdf, char *text, size_t bytes);
/*
 * A clause if no more of the GPU's memory can be mapped at once than without resizable BAR; "": more can, or /sys does
 * not say.
 */
void shunt_pci_small_bar(const char *bdf, char *text, size_t bytes);

/* SPDX-License-Identifier: MIT */
#pragma once
/* A /sys with one GPU, for src/topology/pci.c. */
#include <inttypes.h>
#include <sys/stat.h>
#include "tests/support/unit.h"
#include "topology/pci.h"

struct fake_pci {
	char root[32], dir[64];
};

/* bar1: its bytes. 0: it has none. */
static inline void fake_pci_begin(struct fake_pci *pci, const char *bdf, uint64_t bar1)
{
	static const char *const parents[] = { "bus", "bus/pci", "bus/pci/devices" };
	const uint64_t at = UINT64_C(0x38000000000);
	char text[400];

	strcpy(pci->root, "/tmp/shunt-pci-XXXXXX");
	assert_non_null(mkdtemp(pci->root));
	for (size_t i = 0; i < sizeof(parents) / sizeof(parents[0]); i++) {
		snprintf(pci->dir, sizeof(pci->dir), "%s/%s", pci->root, parents[i]);
		assert_int_equal(mkdir(pci->dir, 0700), 0);
	}
	snprintf(pci->dir, sizeof(pci->dir), "%s/bus/pci/devices/%s", pci->root, bdf);
	assert_int_equal(mkdir(pci->dir, 0700), 0);
	/* Registers; memory; nothing; the aperture for channels; ports; and, behind the six, a ROM. */
	snprintf(text, sizeof(text),
	    "0x00000000fa000000 0x00000000faffffff 0x0000000000040200\n"
	    "0x%016" PRIx64 " 0x%016" PRIx64 " 0x%016x\n"
	    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
	    "0x0000038010000000 0x0000038011ffffff 0x000000000014220c\n"
	    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
	    "0x0000000000005000 0x000000000000507f 0x0000000000040101\n"
	    "0x0000000100000000 0x00000002ffffffff 0x0000000000046200\n",
	    bar1 ? at : 0, bar1 ? at + bar1 - 1 : 0, bar1 ? 0x14220c : 0);
	unit_write_file(pci->dir, "resource", text);
	shunt_pci_sysfs(pci->root);
}

static inline void fake_pci_end(const struct fake_pci *pci)
{
	char command[64];

	shunt_pci_sysfs("/sys");
	snprintf(command, sizeof(command), "rm -r '%s'", pci->root);
	assert_int_equal(system(command), 0);
}

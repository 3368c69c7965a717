/* SPDX-License-Identifier: MIT */
#include "topology/pci.h"
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "base/files.h"

static const char *sysfs = "/sys";

void shunt_pci_sysfs(const char *root)
{
	sysfs = root;
}

bool shunt_pci_read(const char *file, char *text, size_t bytes)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s", sysfs, file) < (int)sizeof(path) &&
	    shunt_files_line(path, text, bytes);
}

void shunt_pci_place_at(const char *file, struct shunt_pci_place *place_p)
{
	char link[PATH_MAX], root[PATH_MAX], path[PATH_MAX], numa[PATH_MAX + 16], text[16];
	size_t n;

	*place_p = (struct shunt_pci_place){ .numa = -1 };
	snprintf(link, sizeof(link), "%s/%s", sysfs, file);
	if (!realpath(sysfs, root) || !realpath(link, path))
		return;
	n = strlen(root);
	if (strncmp(path, root, n) || strlen(path + n) >= sizeof(place_p->pci))
		return;
	memcpy(place_p->pci, path + n, strlen(path + n) + 1);
	snprintf(numa, sizeof(numa), "%s/numa_node", path);
	if (shunt_files_line(numa, text, sizeof(text)))
		place_p->numa = atoi(text);
}

void shunt_pci_place(const char *bdf, struct shunt_pci_place *place_p)
{
	char file[64];

	snprintf(file, sizeof(file), "bus/pci/devices/%s", bdf);
	shunt_pci_place_at(file, place_p);
}

bool shunt_pci_amd(void)
{
#if defined(__x86_64__)
	unsigned most, b = 0, c = 0, d = 0;

	return __get_cpuid(0, &most, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx &&
	    d == signature_AMD_edx;
#else
	return false;
#endif
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

enum shunt_pci_distance shunt_pci_distance(const struct shunt_pci_place *a, const struct shunt_pci_place *b)
{
	const char *pa = behind_root(a->pci), *pb = behind_root(b->pci);
	bool same_node = a->numa >= 0 && a->numa == b->numa;
	int shared = 0;

	if (!pa || !pb || pa - a->pci != pb - b->pci || strncmp(a->pci, b->pci, (size_t)(pa - a->pci)))
		return same_node ? SHUNT_PCI_NODE : SHUNT_PCI_SYSTEM;
	while (*pa && *pb) {
		size_t na = 1 + strcspn(pa + 1, "/"), nb = 1 + strcspn(pb + 1, "/");

		if (na != nb || strncmp(pa, pb, na))
			break;
		pa += na;
		pb += nb;
		shared++;
	}
	if (!shared)
		return SHUNT_PCI_BRIDGE;
	/* Below one switch the paths share the switch's upstream port and differ from the downstream port on. */
	return parts(pa) <= 2 && parts(pb) <= 2 ? SHUNT_PCI_SWITCH : SHUNT_PCI_SWITCHES;
}

/* Control bits of the capability ACS of a bridge: redirect of requests or completions. 0: none, or it cannot be read.
 */
static unsigned acs_redirects(const char *path)
{
	enum { REDIRECTS = 1 << 2 | 1 << 3 };
	char file[PATH_MAX];
	uint8_t config[4096];
	size_t n = 0;
	FILE *f;

	snprintf(file, sizeof(file), "%s%s/config", sysfs, path);
	f = fopen(file, "re");
	if (f) {
		n = fread(config, 1, sizeof(config), f); /* only root gets more than 64 bytes */
		fclose(f);
	}
	for (unsigned at = 256, steps = 0; at >= 256 && at + 8 <= n && steps < 960; steps++) {
		unsigned head = config[at] | config[at + 1] << 8, next = config[at + 2] | config[at + 3] << 8;

		if (head == 0x0d)
			return (config[at + 6] | config[at + 7] << 8) & REDIRECTS;
		at = next >> 4;
	}
	return 0;
}

/* The bridges above a device, one after the other. False: there is none with such bits; else path is cut behind it. */
static bool find_redirect(char *path)
{
	char *end;

	while ((end = strrchr(path, '/')) && end != path && strchr(end, ':')) {
		if (acs_redirects(path))
			return true;
		*end = '\0';
	}
	return false;
}

void shunt_pci_suspect(const char *bdf, char *text, size_t bytes)
{
	struct shunt_pci_place place;
	char file[64], type[32] = "";

	*text = '\0';
	snprintf(file, sizeof(file), "bus/pci/devices/%s/iommu_group/type", bdf);
	shunt_pci_place(bdf, &place);
	if (find_redirect(place.pci))
		snprintf(text, bytes, "ACS redirects peers' packets at %s", strrchr(place.pci, '/') + 1);
	else if (shunt_pci_read(file, type, sizeof(type)) && !strncmp(type, "DMA", 3))
		snprintf(text, bytes, "the IOMMU translates the addresses of %s (iommu=pt turns that off)", bdf);
}

void shunt_pci_small_bar(const char *bdf, char *text, size_t bytes)
{
	enum { BARS = 6, IS_MEMORY = 0x200, SMALL_MIB = 256 };
	uint64_t first, last, flags, most = 0; /* GPUs have their memory behind their largest BAR */
	char file[PATH_MAX];
	FILE *f;

	*text = '\0';
	snprintf(file, sizeof(file), "%s/bus/pci/devices/%s/resource", sysfs, bdf);
	f = fopen(file, "re");
	if (!f)
		return;
	for (int i = 0; i < BARS && fscanf(f, "%" SCNx64 " %" SCNx64 " %" SCNx64, &first, &last, &flags) == 3; i++)
		if (flags & IS_MEMORY && last - first >= most)
			most = last - first + 1;
	fclose(f);
	if (most && most >> 20 <= SMALL_MIB)
		snprintf(
		    text, bytes, "%s has a BAR1 of %u MiB only: turn on resizable BAR", bdf, (unsigned)(most >> 20));
}

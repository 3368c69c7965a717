/* SPDX-License-Identifier: MIT */
/* Self-tests of links on the sim's links: those that lie are refused, whichever way they lie, and honest ones pass. */
#include "tests/support/test.h"
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include "comm/setup/selftest.h"
#include "kernels/set.h"
#include "topology/pci.h"
#include "topology/trust.h"
#include "transport/symm/host_memory.h"

static const struct shunt_gpu_ops *gpu;
static bool many;

/* ThreadSanitizer has nothing to say about what a link does. */
#ifdef __SANITIZE_THREAD__
enum { SOME = 12 };
#else
enum { SOME = 60 };
#endif

/* Device 0 with the others, by number; 2 and 3, 3 and 4 are honest. */
static const char links[] =
    "0-1:none,lie=old;0-2:peer,lie=swap;0-3:peer,lie=lost;0-4:none,lie=oneway;0-5:peer,lie=silent;"
    "0-6:none,dies=300;2-3:none;3-4:peer;0-7:none,lie=swap;5-6:none,stores=posted;6-7:peer,stores=posted";

/* The mistakes that two devices see in what comes from the other one. */
static void test_pair(const int device[2], bool on_host, uint64_t limit_ms, struct shunt_selftest_status seen[2])
{
	struct shunt_gpu_mem area[2], words[2];
	struct shunt_selftest t[2];
	struct shunt_selftest_status worst[SHUNT_KARGS_MAX_RANKS];

	for (int r = 0; r < 2; r++) {
		void *host, *dev;

		if (on_host)
			assert_int_equal(shunt_host_memory_create(gpu, device[r], SHUNT_SELFTEST_BYTES, &area[r]), 0);
		else
			assert_int_equal(gpu->share_alloc(device[r], SHUNT_SELFTEST_BYTES, &area[r]), 0);
		assert_int_equal(gpu->host_alloc(SHUNT_SELFTEST_STATUS_BYTES, &host, &dev), 0);
		words[r].ptr = host;
		t[r] = (struct shunt_selftest){ .gpu = gpu, .device = device[r], .nranks = 2, .status = host };
		shunt_selftest_limits(&t[r], true, false);
		t[r].args.rank = (uint32_t)r;
		t[r].args.peers = 2u >> r;
		t[r].args.status = dev;
		if (limit_ms)
			t[r].args.first_ns = t[r].args.wait_ns = limit_ms * 1000000;
	}
	for (int r = 0; r < 2; r++) {
		for (int p = 0; p < 2; p++)
			t[r].args.area[p] = area[p].ptr;
		assert_int_equal(shunt_selftest_start(&t[r]), 0);
	}
	for (int r = 0; r < 2; r++) {
		assert_int_equal(shunt_selftest_finish(&t[r], NULL, worst), 0);
		seen[r] = worst[1 - r];
	}
	for (int r = 0; r < 2; r++) {
		gpu->device_sync(device[r]);
		gpu->host_free(words[r].ptr);
		if (on_host)
			shunt_host_memory_free(gpu, &area[r]);
		else
			gpu->share_free(&area[r]);
	}
}

TEST(test_honest_links_pass)
{
	struct shunt_selftest_status seen[2];

	for (int i = 0; i < 8; i++) {
		test_pair(i & 1 ? (const int[]){ 2, 3 } : (const int[]){ 4, 3 }, i & 1, 0, seen);
		assert_int_equal(seen[0].kind, SHUNT_SELFTEST_RIGHT);
		assert_int_equal(seen[1].kind, SHUNT_SELFTEST_RIGHT);
	}
	for (int i = 0; i < 2; i++) { /* whatever the order is in which PCIe brings stores */
		test_pair(i ? (const int[]){ 5, 6 } : (const int[]){ 7, 6 }, i, 0, seen);
		assert_int_equal(seen[0].kind | seen[1].kind, SHUNT_SELFTEST_RIGHT);
	}
	/* The rule is about peers; what goes through the host's memory is honest. */
	test_pair((const int[]){ 0, 2 }, true, 0, seen);
	assert_int_equal(seen[0].kind | seen[1].kind, SHUNT_SELFTEST_RIGHT);
}

/* None is accepted. What never arrives takes the limit, so there are fewer tests of that. */
TEST(test_lying_links_are_refused)
{
	static const struct {
		int with;
		bool on_host;
		unsigned kinds; /* that a reader may see */
		int some, all;
	} lies[] = {
		{ 1, true, 1 << SHUNT_SELFTEST_CHUNK, SOME, 2400 },
		{ 2, false, 1 << SHUNT_SELFTEST_CHUNK, SOME, 2400 },
		{ 3, false, 1 << SHUNT_SELFTEST_CHUNK, SOME, 2400 },
		{ 7, true, 1 << SHUNT_SELFTEST_CHUNK, SOME, 2400 },
		{ 4, true, 1 << SHUNT_SELFTEST_SILENT, 3, 150 },
		{ 5, false, 1 << SHUNT_SELFTEST_SILENT, 3, 150 },
		{ 6, true, 1 << SHUNT_SELFTEST_SILENT, 3, 150 },
	};
	int tests = 0;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
		for (int k = 0; k < (many ? lies[i].all : lies[i].some); k++, tests++) {
			struct shunt_selftest_status seen[2];
			bool silent = lies[i].kinds == 1 << SHUNT_SELFTEST_SILENT;

			test_pair((const int[]){ k & 1 ? lies[i].with : 0, k & 1 ? 0 : lies[i].with }, lies[i].on_host,
			    silent ? 20 : 0, seen);
			assert_true(seen[0].kind || seen[1].kind);
			for (int r = 0; r < 2 && !silent; r++)
				assert_true(!seen[r].kind || lies[i].kinds >> seen[r].kind & 1);
		}
	print_message("%d self-tests of lying pairs, none accepted\n", tests);
}

/* ---- what is kept */

static void write_text(const char *path, const char *text, size_t bytes)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, bytes, f), bytes);
	fclose(f);
}

TEST(test_findings_are_kept_whole)
{
	struct shunt_gpu_info a, b;
	char why[SHUNT_TRUST_WHY], text[4096], path[600], other[700], command[700];
	FILE *f;
	size_t n;

	gpu->device_info(1, &a);
	gpu->device_info(2, &b);
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), SHUNT_TRUST_UNKNOWN);
	shunt_trust_keep(&a, &b, SHUNT_LINK_PEER, SHUNT_TRUST_BAD, "word 3 is 4", true);
	assert_int_equal(shunt_trust_find(&b, &a, SHUNT_LINK_PEER, why), SHUNT_TRUST_BAD);
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_SHARED, why), SHUNT_TRUST_UNKNOWN);
	shunt_trust_forget(); /* as another process */
	assert_int_equal(shunt_trust_find(&b, &a, SHUNT_LINK_PEER, why), SHUNT_TRUST_BAD);
	assert_string_equal(why, "word 3 is 4");
	/* A later test says otherwise. */
	shunt_trust_keep(&b, &a, SHUNT_LINK_PEER, SHUNT_TRUST_GOOD, "", true);
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), SHUNT_TRUST_GOOD);
	shunt_trust_forget();
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), SHUNT_TRUST_GOOD);

	snprintf(command, sizeof(command), "ls %s/links/*", getenv("SHUNT_CACHE_DIR"));
	f = popen(command, "r");
	assert_non_null(fgets(path, sizeof(path), f));
	path[strcspn(path, "\n")] = '\0';
	assert_null(fgets(text, sizeof(text), f)); /* one file for a pair and a link */
	pclose(f);
	f = fopen(path, "r");
	n = fread(text, 1, sizeof(text), f);
	fclose(f);
	/* Torn anywhere, of another boot, or with more behind it, a file says nothing. */
	for (size_t cut = 0; cut <= n; cut += cut + 40 < n ? 40 : 1) {
		shunt_trust_forget();
		write_text(path, text, cut);
		assert_int_equal(
		    shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), cut == n ? SHUNT_TRUST_GOOD : SHUNT_TRUST_UNKNOWN);
	}
	shunt_trust_forget();
	text[n] = 'x';
	write_text(path, text, n + 1);
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), SHUNT_TRUST_UNKNOWN);
	strstr(text, "boot ")[6] ^= 1;
	write_text(path, text, n);
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), SHUNT_TRUST_UNKNOWN);
	strstr(text, "boot ")[6] ^= 1;
	/* A link in its place leads to somebody's file. */
	snprintf(other, sizeof(other), "%s.other", path);
	write_text(other, text, n);
	unlink(path);
	assert_int_equal(symlink(other, path), 0);
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), SHUNT_TRUST_UNKNOWN);
	/* Half of a reason is none. */
	unlink(path);
	shunt_trust_keep(&a, &b, SHUNT_LINK_PEER, SHUNT_TRUST_BAD, "word 3 is 4", true);
	f = fopen(path, "r");
	n = fread(text, 1, sizeof(text), f);
	fclose(f);
	shunt_trust_forget();
	write_text(path, text, n - 2);
	assert_int_equal(shunt_trust_find(&a, &b, SHUNT_LINK_PEER, why), SHUNT_TRUST_UNKNOWN);
}

/* ---- what is known of causes */

static void make(const char *root, const char *path)
{
	char command[600];

	snprintf(command, sizeof(command), "mkdir -p '%s/%s'", root, path);
	assert_int_equal(system(command), 0);
}

TEST(test_iommu_and_acs_are_named)
{
	static const char bridge[] = "devices/pci0000:3a/0000:3a:00.0";
	char root[] = "/tmp/shunt-selftest-XXXXXX", path[600], link[600], text[160];
	uint8_t config[4096] = { [256] = 1, [258] = 1, [259] = 0x20, [0x200] = 0x0d, [0x206] = 0x0c };

	assert_non_null(mkdtemp(root));
	make(root, "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/iommu_group");
	make(root, "bus/pci/devices");
	snprintf(path, sizeof(path), "%s/%s/0000:3b:00.0", root, bridge);
	snprintf(link, sizeof(link), "%s/bus/pci/devices/0000:3b:00.0", root);
	assert_int_equal(symlink(path, link), 0);
	shunt_pci_sysfs(root);
	shunt_pci_suspect("0000:3b:00.0", text, sizeof(text));
	assert_string_equal(text, "");
	strcat(path, "/iommu_group/type");
	write_text(path, "DMA-FQ\n", 7);
	shunt_pci_suspect("0000:3b:00.0", text, sizeof(text));
	assert_non_null(strstr(text, "the IOMMU translates the addresses of 0000:3b:00.0"));
	snprintf(path, sizeof(path), "%s/%s/config", root, bridge);
	write_text(path, (const char *)config, 64); /* what others than root may read */
	shunt_pci_suspect("0000:3b:00.0", text, sizeof(text));
	assert_non_null(strstr(text, "IOMMU"));
	write_text(path, (const char *)config, sizeof(config));
	shunt_pci_suspect("0000:3b:00.0", text, sizeof(text));
	assert_string_equal(text, "ACS redirects peers' packets at 0000:3a:00.0");
	shunt_pci_sysfs("/sys");
	snprintf(path, sizeof(path), "rm -r '%s'", root);
	assert_int_equal(system(path), 0);
}

/* ---- where memory of the host lies */

static int info_on_a_bus(int device, struct shunt_gpu_info *info)
{
	memset(info, 0, sizeof(*info));
	strcpy(info->pci, "0000:3b:00.0");
	return 0;
}

/* On the node of its device; a node that is not there, or is not known, takes nothing away. */
TEST(test_memory_of_the_host_is_near_its_device)
{
	static const struct {
		const char *text;
		int mode;
	} nodes[] = { { "0\n", MPOL_PREFERRED }, { "60\n", MPOL_DEFAULT }, { "-1\n", MPOL_DEFAULT },
		{ "", MPOL_DEFAULT } };
	char root[] = "/tmp/shunt-selftest-XXXXXX", path[600], link[600];
	struct shunt_gpu_ops at_a_place = *gpu;

	at_a_place.device_info = info_on_a_bus;
	assert_non_null(mkdtemp(root));
	make(root, "devices/pci0000:3a/0000:3b:00.0");
	make(root, "bus/pci/devices");
	snprintf(path, sizeof(path), "%s/devices/pci0000:3a/0000:3b:00.0", root);
	snprintf(link, sizeof(link), "%s/bus/pci/devices/0000:3b:00.0", root);
	assert_int_equal(symlink(path, link), 0);
	strcat(path, "/numa_node");
	shunt_pci_sysfs(root);
	for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
		unsigned long mask = 0;
		struct shunt_gpu_mem mem;
		int mode = MPOL_DEFAULT;

		write_text(path, nodes[i].text, strlen(nodes[i].text));
		assert_int_equal(shunt_host_memory_create(&at_a_place, 0, 8192, &mem), 0);
		assert_int_equal(((char *)mem.host)[8191], 0);
		/* Containers may forbid both calls. */
		if (!syscall(SYS_get_mempolicy, &mode, &mask, 8 * sizeof(mask), mem.host, MPOL_F_ADDR) &&
		    !syscall(SYS_mbind, mem.host, 0, MPOL_DEFAULT, NULL, 0, 0)) {
			assert_int_equal(mode, nodes[i].mode);
			assert_int_equal(mask, mode == MPOL_PREFERRED);
		}
		shunt_host_memory_free(gpu, &mem);
	}
	shunt_pci_sysfs("/sys");
	snprintf(path, sizeof(path), "rm -r '%s'", root);
	assert_int_equal(system(path), 0);
}

int main(int argc, char **argv)
{
	char cache[] = "/tmp/shunt-trust-XXXXXX", command[100];
	int failed;

	many = argc > 1;
	if (!mkdtemp(cache))
		return 1;
	setenv("SHUNT_CACHE_DIR", cache, 1);
	setenv("SHUNT_SIM_LINKS", links, 1);
	setenv("SHUNT_DEVICE", "sim", 1);
	gpu = shunt_gpu_open(&shunt_kernels);
	failed = tests_run(NULL, NULL);
	snprintf(command, sizeof(command), "rm -r '%s'", cache);
	return failed | system(command);
}

/* SPDX-License-Identifier: MIT */
/* shunt doctor --links: the long self-test of every link between the devices of this machine. */
#include "tools/common/libc.h"
#include "base/config.h"
#include "tools/common/links.h"
#include "tools/doctor/doctor.h"
#include "topology/trust.h"

static const char topic[] = "links";

/*
 * Ranks on all devices make a communicator, whose set-up tests its links and keeps what it finds.
 * links: SHUNT_LINKS, or NULL.
 */
static bool run_ranks(int n, const char *device, const char *links)
{
	char number[16];
	pid_t pid;
	int status;

	snprintf(number, sizeof(number), "%d", n);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

		if (null < 0)
			_exit(127);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		setenv("SHUNT_SELFTEST", "long", 1);
		setenv("SHUNT_NCCL_LIB", "none", 1);
		if (links)
			setenv("SHUNT_LINKS", links, 1);
		execl("/proc/self/exe", "shunt", "bench", "all_reduce", "-n", number, "--device", device, "-b", "1K",
		    "-e", "1K", (char *)NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
}

/* A row of the matrix. Returns the tests that are known; *bad_p grows by the refused ones. */
static int show_row(
    struct findings *f, const struct shunt_gpu_ops *gpu, const struct shunt_gpu_info *info, int n, int from, int *bad_p)
{
	char row[1024] = "", claims[768], why[SHUNT_LINK_WHY];
	enum shunt_link slowest;
	int known = 0;

	for (int k = 0; k < n; k++) {
		char cell[128] = "";

		for (int link = SHUNT_LINK_NVLINK; link <= SHUNT_LINK_SHARED && k != from; link++) {
			char why[SHUNT_TRUST_WHY];
			enum shunt_trust trust = shunt_trust_find(&info[from], &info[k], (enum shunt_link)link, why);

			if (trust == SHUNT_TRUST_UNKNOWN)
				continue;
			known++;
			snprintf(cell + strlen(cell), sizeof(cell) - strlen(cell), " %s %s", shunt_link_names[link],
			    trust == SHUNT_TRUST_GOOD ? "right" : "WRONG");
			if (trust == SHUNT_TRUST_BAD && k > from) {
				(*bad_p)++;
				finding_add(f, FINDING_WARN, topic,
				    "look at the IOMMU (iommu=pt), at ACS and at dmesg; for NCCL's own calls set "
				    "NCCL_P2P_DISABLE=1",
				    "devices %d and %d do not exchange data right by %s: %s", from, k,
				    shunt_link_names[link], why);
			}
		}
		if (k != from)
			snprintf(row + strlen(row), sizeof(row) - strlen(row), "%s %d%s", *row ? "," : "", k,
			    *cell ? cell : " not tested");
	}
	tool_links_show(gpu, info, n, from, claims, sizeof(claims), &slowest, why);
	finding_add(f, FINDING_INFO, topic, "", "device %d with%s%s%s", from, row,
	    slowest > SHUNT_LINK_PEER ? "; " : "", slowest > SHUNT_LINK_PEER ? why : "");
	return known;
}

int doctor_links(bool json)
{
	bool sim = shunt_config()->device == SHUNT_DEVICE_SIM;
	const struct shunt_gpu_ops *gpu = sim ? &shunt_gpu_sim_ops : &shunt_gpu_cuda_ops;
	struct shunt_gpu_info info[TOOL_LINKS_MOST];
	struct findings f = { 0 };
	int n = tool_links_find(gpu, info), known = 0, bad = 0, status;
	bool ran;

	if (n < 2) {
		finding_add(&f, n < 0 ? FINDING_ERROR : FINDING_INFO, topic, "",
		    n < 0 ? "there is no GPU that can be used" : "one device: there are no links");
	} else {
		n = n < 8 ? n : 8;
		ran = run_ranks(n, sim ? "sim" : "cuda", NULL);
		ran &= run_ranks(n, sim ? "sim" : "cuda", "*:shared");
		for (int i = 0; i < n; i++)
			known += show_row(&f, gpu, info, n, i, &bad);
		if (!known)
			finding_add(&f, FINDING_ERROR, topic,
			    "see the lines above; what is found must be kept in SHUNT_CACHE_DIR, or in the home of "
			    "this user",
			    "no link was tested");
		else if (!bad && ran)
			finding_add(&f, FINDING_OK, topic, "", "all links exchange data right");
	}
	status = findings_print(&f, json);
	findings_finish(&f);
	return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * What only the provider verbs has: the library and its absence, the choice of NICs and addresses, errors of NICs,
 * memory of GPUs. The settings are read once for a process, so that each case has its own. Here are the library
 * and the choice of NICs, the rest stands in verbs_*.c.
 */
#include "tests/transport/verbs_suite.h"
#include "tests/support/own.h"

/* What devices says, and how many lines it logs, also when it is asked twice. */
static int devices_and_lines(struct shunt_net_info *info, struct unit_capture *capture)
{
	int n;

	unit_capture_begin(capture);
	n = ops->devices(info, SHUNT_NET_MAX_DEVICES);
	ops->devices(info, SHUNT_NET_MAX_DEVICES);
	unit_capture_end(capture);
	fprintf(stderr, "%s", capture->text);
	return n;
}

/* ---- the library */

static void no_such_library(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct unit_capture c;

	CHECK(devices_and_lines(info, &c) == -ELIBACC);
	CHECK(unit_count(c.text, "\n") == 1);
	CHECK(strstr(c.text,
	    getenv("SHUNT_IBV_LIB") && *getenv("SHUNT_IBV_LIB") ? "SHUNT_IBV_LIB=/nonexistent" :
	                                                          "MSCCLPP_IBV_SO=/nonexistent"));
}

static void another_library(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct unit_capture c;

	CHECK(devices_and_lines(info, &c) == -ELIBBAD);
	CHECK(unit_count(c.text, "\n") == 1);
	CHECK(strstr(c.text, "ibv_get_device_list"));
}

TEST(test_a_path_that_fails_is_one_line)
{
	CASE(no_such_library(), { "SHUNT_IBV_LIB", "/nonexistent/libibverbs.so.1" });
	CASE(no_such_library(), { "SHUNT_IBV_LIB", "" }, { "MSCCLPP_IBV_SO", "/nonexistent/libibverbs.so.1" },
	    { "NCCL_IBVERBS_LIB", fake });
	CASE(another_library(), { "SHUNT_IBV_LIB", "libm.so.6" });
}

static void nothing_there(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct unit_capture c;

	CHECK(devices_and_lines(info, &c) == 0);
	CHECK(unit_count(c.text, "no verbs") == 1);
}

TEST(test_the_real_library_without_devices)
{
	DIR *d = opendir("/sys/class/infiniband");
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (d)
		closedir(d);
	if (lib)
		dlclose(lib);
	if (d || !lib) {
		print_message(
		    "skipped: the real library without devices: %s\n", d ? "there are devices" : "it is not installed");
		skip();
	}
	CASE(nothing_there(), { "SHUNT_IBV_LIB", "" });
}

static void disabled(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_net_device *device;

	CHECK(ops->devices(info, SHUNT_NET_MAX_DEVICES) == 0);
	CHECK(ops->open(0, &device) == -ENODEV);
}

TEST(test_no_devices)
{
	CASE(disabled(), { "NCCL_IB_DISABLE", "1" });
	CASE(nothing_there(), { "FAKE_IBV_DEVICES", "" });
	CASE(nothing_there(), { "FAKE_IBV_DEVICES", "mlx0 state=down" });
	CASE(nothing_there(), { "NCCL_IB_HCA", "=mlx5_0" });
	/* Too few entries of a queue for what a connection needs. */
	CASE(nothing_there(), { "FAKE_IBV_DEVICES", "mlx0 depth=100" });
}

/* ---- which NICs */

#define NICS "mlx10 speed=1000; mlx0; mlx1 ports=2; mlx2 state=down"

static void expect_names(const char *names)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	char got[256] = "";
	int n = ops->devices(info, SHUNT_NET_MAX_DEVICES);

	for (int i = 0; i < n; i++) {
		strcat(got, info[i].name);
		strcat(got, " ");
	}
	if (strcmp(got, names))
		fprintf(stderr, "%s\n", got);
	CHECK(!strcmp(got, names));
}

TEST(test_nics_are_chosen_by_name)
{
	CASE(expect_names("mlx0 mlx1 mlx1:2 mlx10 "), { "FAKE_IBV_DEVICES", NICS });
	CASE(expect_names("mlx1 mlx1:2 "), { "FAKE_IBV_DEVICES", NICS }, { "NCCL_IB_HCA", "^=mlx0,mlx10" });
	CASE(expect_names("mlx1 mlx1:2 "), { "FAKE_IBV_DEVICES", NICS }, { "NCCL_IB_HCA", "=mlx1:1,mlx1:2" });
	CASE(expect_names("mlx10 mlx1:2 "), { "FAKE_IBV_DEVICES", NICS },
	    { "MSCCLPP_HCA_DEVICES", "mlx10,mlx2,mlx1:2" }, { "NCCL_IB_HCA", "x" });
	CASE(expect_names("mlx10 mlx1:2 "), { "FAKE_IBV_DEVICES", NICS }, { "SHUNT_IB_DEVICES", "mlx10,mlx1:2" },
	    { "MSCCLPP_HCA_DEVICES", "mlx0" });
}

int main(int argc, char **argv)
{
	int fd = mkstemp(script), failed;

	own_environment();
	if (fd < 0 || argc < 3)
		return 2;
	fake = argv[1];
	old = argv[2];
	if (argc > 3)
		cmocka_set_test_filter(argv[3]);
	close(fd);
	failed = tests_run(NULL, NULL);
	unlink(script);
	return failed;
}

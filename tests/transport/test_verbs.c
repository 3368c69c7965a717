/* SPDX-License-Identifier: MIT */
/*
 * What only the provider verbs has: the library and its absence, the choice of NICs and addresses, errors of NICs,
 * memory of GPUs. The settings are read once for a process, so that each case has its own. Here are the library
 * and the choice of NICs, the rest stands in verbs_*.c.
 */
#include "tests/transport/verbs_suite.h"
#include <dirent.h>
#include <dlfcn.h>
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

static void test_a_path_that_fails_is_one_line(void **state)
{
	CASE(no_such_library, { "SHUNT_IBV_LIB", "/nonexistent/libibverbs.so.1" });
	CASE(no_such_library, { "SHUNT_IBV_LIB", "" }, { "MSCCLPP_IBV_SO", "/nonexistent/libibverbs.so.1" },
	    { "NCCL_IBVERBS_LIB", fake });
	CASE(another_library, { "SHUNT_IBV_LIB", "libm.so.6" });
}

static void nothing_there(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct unit_capture c;

	CHECK(devices_and_lines(info, &c) == 0);
	CHECK(unit_count(c.text, "no verbs") == 1);
}

static void test_the_real_library_without_devices(void **state)
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
	CASE(nothing_there, { "SHUNT_IBV_LIB", "" });
}

static void disabled(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_net_device *device;

	CHECK(ops->devices(info, SHUNT_NET_MAX_DEVICES) == 0);
	CHECK(ops->open(0, &device) == -ENODEV);
}

static void test_no_devices(void **state)
{
	CASE(disabled, { "NCCL_IB_DISABLE", "1" });
	CASE(nothing_there, { "FAKE_IBV_DEVICES", "" });
	CASE(nothing_there, { "FAKE_IBV_DEVICES", "mlx0 state=down" });
	CASE(nothing_there, { "NCCL_IB_HCA", "=mlx5_0" });
	/* Too few entries of a queue for what a connection needs. */
	CASE(nothing_there, { "FAKE_IBV_DEVICES", "mlx0 depth=100" });
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

static void all_nics(void)
{
	expect_names("mlx0 mlx1 mlx1:2 mlx10 ");
}

static void some_nics(void)
{
	expect_names("mlx1 mlx1:2 ");
}

static void listed_nics(void)
{
	expect_names("mlx10 mlx1:2 ");
}

static void test_nics_are_chosen_by_name(void **state)
{
	CASE(all_nics, { "FAKE_IBV_DEVICES", NICS });
	CASE(some_nics, { "FAKE_IBV_DEVICES", NICS }, { "NCCL_IB_HCA", "^=mlx0,mlx10" });
	CASE(some_nics, { "FAKE_IBV_DEVICES", NICS }, { "NCCL_IB_HCA", "=mlx1:1,mlx1:2" });
	CASE(listed_nics, { "FAKE_IBV_DEVICES", NICS }, { "MSCCLPP_HCA_DEVICES", "mlx10,mlx2,mlx1:2" },
	    { "NCCL_IB_HCA", "x" });
	CASE(listed_nics, { "FAKE_IBV_DEVICES", NICS }, { "SHUNT_IB_DEVICES", "mlx10,mlx1:2" },
	    { "MSCCLPP_HCA_DEVICES", "mlx0" });
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_a_path_that_fails_is_one_line),
	cmocka_unit_test(test_the_real_library_without_devices),
	cmocka_unit_test(test_no_devices),
	cmocka_unit_test(test_nics_are_chosen_by_name),
	cmocka_unit_test(test_ends_agree),
	cmocka_unit_test(test_sysfs_is_read),
	cmocka_unit_test(test_ends_that_cannot_connect_say_why),
	cmocka_unit_test(test_a_silent_network_is_found),
	cmocka_unit_test(test_ends_use_what_both_nics_can_do),
	cmocka_unit_test(test_data_may_land_late_and_in_pieces),
	cmocka_unit_test(test_sources_are_read_late),
	cmocka_unit_test(test_completions_come_late_and_in_batches),
	cmocka_unit_test(test_a_full_queue_has_room_again),
	cmocka_unit_test(test_completion_queues_do_not_overrun),
	cmocka_unit_test(test_a_signal_always_finds_a_receive),
	cmocka_unit_test(test_a_refused_write_kills_the_endpoint),
	cmocka_unit_test(test_a_killed_process_is_told),
	cmocka_unit_test(test_errors_of_nics_are_told),
	cmocka_unit_test(test_short_faults_are_survived),
	cmocka_unit_test(test_packets_that_are_lost_come_again),
	cmocka_unit_test(test_a_receive_that_is_late_is_waited_for),
	cmocka_unit_test(test_large_puts_go_over_rails_and_queue_pairs),
	cmocka_unit_test(test_ends_take_as_many_lanes_as_both_have),
	cmocka_unit_test(test_a_rail_that_fails_ends_the_endpoint),
	cmocka_unit_test(test_additions_happen_once),
	cmocka_unit_test(test_additions_need_atomics_at_both_ends),
	cmocka_unit_test(test_the_limit_of_locked_memory_is_named),
	cmocka_unit_test(test_a_gpus_memory_by_its_address),
	cmocka_unit_test(test_signals_wait_until_gpus_see_the_data),
	cmocka_unit_test(test_ordered_memory_has_its_order),
};

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
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(script);
	return failed;
}

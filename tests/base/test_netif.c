/* SPDX-License-Identifier: MIT */
/* Lists of devices, and the interfaces and addresses that they select. */
#include "tests/support/unit.h"
#include <netinet/in.h>
#include "base/inet/device_list.h"
#include "base/inet/netif.h"
#include "base/log.h"

TEST(test_netif_match_follows_nccls_grammar)
{
	static const struct {
		const char *spec, *name;
		bool match;
	} cases[] = {
		{ NULL, "eth0", true },
		{ "", "eth0", true },
		{ "eth", "eth0", true },
		{ "eth", "weth0", false },
		{ "ens,eth", "eth0", true },
		{ "ens,eth", "ib0", false },
		{ "=eth", "eth0", false },
		{ "=eth0", "eth0", true },
		{ "=eth0", "eth01", false },
		{ "=ib0,eth0", "eth0", true },
		{ "^docker,lo", "lo", false },
		{ "^docker,lo", "docker0", false },
		{ "^docker,lo", "eth0", true },
		{ "^=eth0", "eth0", false },
		{ "^=eth0", "eth01", true },
		{ "eth0:1234", "eth0", true },
		{ ",", "eth0", false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (shunt_device_list_match(cases[i].spec, cases[i].name, 0) != cases[i].match)
			print_error("%s against %s\n", cases[i].spec, cases[i].name);
		assert_int_equal(shunt_device_list_match(cases[i].spec, cases[i].name, 0), cases[i].match);
	}
}

TEST(test_nic_match_follows_nccls_grammar)
{
	static const struct {
		const char *spec, *name;
		int port;
		bool match;
	} cases[] = {
		{ NULL, "mlx5_0", 1, true },
		{ "", "mlx5_0", 1, true },
		{ "mlx5", "mlx5_0", 1, true },
		{ "mlx5", "mlx4_0", 1, false },
		{ "mlx5_1", "mlx5_10", 1, true },
		{ "=mlx5_1", "mlx5_10", 1, false },
		{ "=mlx5_1", "mlx5_1", 2, true },
		{ "=mlx5_1:1", "mlx5_1", 2, false },
		{ "=mlx5_1:1,mlx5_1:2", "mlx5_1", 2, true },
		{ "mlx5:2", "mlx5_3", 2, true },
		{ "mlx5:2", "mlx5_3", 1, false },
		{ "^mlx5_1", "mlx5_10", 1, false },
		{ "^=mlx5_1", "mlx5_10", 1, true },
		{ "^=mlx5_1:1", "mlx5_1", 1, false },
		{ "^=mlx5_1:1", "mlx5_1", 2, true },
		{ "bnxt,mlx5", "mlx5_0", 1, true },
		{ ",,mlx5", "mlx5_0", 1, true },
		{ ":1", "mlx5_0", 1, false }, /* as in NCCL an entry without a name means nothing */
		{ "^", "mlx5_0", 1, true },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool match = shunt_device_list_match(cases[i].spec, cases[i].name, cases[i].port);

		if (match != cases[i].match)
			print_error("%s against %s port %d\n", cases[i].spec, cases[i].name, cases[i].port);
		assert_int_equal(match, cases[i].match);
	}
}

TEST(test_a_list_of_nics_has_an_order)
{
	assert_int_equal(shunt_device_list_index("mlx5_2,mlx5_0:2,mlx5_1", "mlx5_2", 1), 0);
	assert_int_equal(shunt_device_list_index("mlx5_2,mlx5_0:2,mlx5_1", "mlx5_0", 2), 1);
	assert_int_equal(shunt_device_list_index("mlx5_2,mlx5_0:2,mlx5_1", "mlx5_0", 1), -1);
	assert_int_equal(shunt_device_list_index("mlx5_2,mlx5_0:2,mlx5_1", "mlx5_1", 1), 2);
	assert_int_equal(shunt_device_list_index("mlx5_2,mlx5_0:2,mlx5_1", "mlx5_10", 1), -1);
	assert_int_equal(shunt_device_list_index("", "mlx5_0", 1), -1);
}

static int choose(const char *ifname, const char *family, struct shunt_netaddr *addr)
{
	return shunt_netif_select(&(struct shunt_netif_rules){ ifname, family, NULL }, addr);
}

static int list(const char *ifname, const char *family, struct shunt_netaddr *addrs, int max)
{
	return shunt_netif_list(&(struct shunt_netif_rules){ ifname, family, NULL }, addrs, max);
}

TEST(test_netif_select_takes_what_the_user_names)
{
	struct shunt_netaddr addr;

	assert_int_equal(choose("=lo", "AF_INET", &addr), 0);
	assert_string_equal(addr.ifname, "lo");
	assert_int_equal(addr.ss.ss_family, AF_INET);
	assert_int_equal(((struct sockaddr_in *)&addr.ss)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	assert_int_equal(choose("=no_such_if", NULL, &addr), -EADDRNOTAVAIL);
	assert_non_null(strstr(shunt_last_error(), "no_such_if"));
	assert_non_null(strstr(shunt_last_error(), "lo"));
	assert_int_equal(choose(NULL, NULL, &addr), 0);
	/* Loopback only where there is nothing else. */
	if (!strcmp(addr.ifname, "lo"))
		assert_int_not_equal(choose("^lo,docker,veth,br-", NULL, &addr), 0);
}

TEST(test_netif_list_has_each_interface_once)
{
	enum { MAX = 64 };
	struct shunt_netaddr addrs[MAX], first;
	int n = list(NULL, NULL, addrs, MAX);

	assert_true(n >= 1);
	for (int i = 0; i < n; i++) {
		/* Loopback only where there is nothing else. */
		assert_true(n == 1 || strcmp(addrs[i].ifname, "lo") != 0);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(addrs[i].ifname, addrs[j].ifname);
	}
	assert_int_equal(choose(NULL, NULL, &first), 0);
	assert_string_equal(first.ifname, addrs[0].ifname);
	assert_int_equal(list("=lo", "AF_INET", addrs, MAX), 1);
	assert_string_equal(addrs[0].ifname, "lo");
	assert_int_equal(list("=lo", "AF_INET", addrs, 0), 0);
	assert_int_equal(list("=no_such_if", NULL, addrs, MAX), 0);
}

TEST(test_netif_parse_reads_all_forms)
{
	static const struct {
		const char *text, *shown; /* NULL: refused */
	} cases[] = {
		{ "127.0.0.1:4567", "127.0.0.1:4567" },
		{ "[::1]:4567", "[::1]:4567" },
		{ "lo:4567", "127.0.0.1:4567" },
		{ "127.0.0.1", NULL },
		{ "127.0.0.1:", NULL },
		{ "127.0.0.1:0", NULL },
		{ "127.0.0.1:65536", NULL },
		{ "127.0.0.1:12x", NULL },
		{ "::1:4567", NULL },
		{ ":4567", NULL },
		{ "[]:4567", NULL },
		{ "[zz]:4567", NULL },
		{ "", NULL },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_netaddr addr;
		char text[128];
		int err = shunt_netif_parse(cases[i].text, "AF_INET", &addr);

		if ((err == 0) != (cases[i].shown != NULL))
			print_error("%s gives %d\n", cases[i].text, err);
		assert_int_equal(err, cases[i].shown ? 0 : -EINVAL);
		if (err)
			continue;
		shunt_netaddr_show(&addr, text, sizeof(text));
		assert_string_equal(text, cases[i].shown);
	}
}

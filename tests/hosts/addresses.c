/* SPDX-License-Identifier: MIT */
/*
 * The table of docs/hosts.md: which address a rank offers. Each row is a process in a network namespace of its own,
 * with the row's interfaces. It asks every user of an address: the bootstrap, the roots of groups and of hosts, the
 * directory, and the sockets for data. Rows begin together, because the kernel notes the loss of a carrier but once a
 * second.
 *
 * test_addresses LIBNCCL asks that library, too, which needs no GPU, and compares its answers with the table.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/support/unit.h"
#include <sched.h>
#include "base/env.h"
#include "base/inet/netif.h"
#include "base/log.h"
#include "tools/common/netns/netns.h"
#include "transport/net/net.h"
#include "transport/net/tcp/tcp.h"
#include "transport/rendezvous/bootstrap.h"
#include "transport/rendezvous/directory_wire.h"
#include "transport/rendezvous/host_table.h"
#include "transport/rendezvous/wire/wire.h"

#define NONE ""
/* Two ordinary interfaces. */
#define TWO "e0 10.50.0.1/24; e1 10.60.0.1/24"

static const struct row {
	/* NAME [ADDRESS...] [down | unplugged]; ... in the order of their indices. The loopback is there and up. */
	const char *interfaces;
	const char *ifname, *family, *comm_id; /* the variables; NULL: not set */
	const char *ours;                      /* the address that a rank offers */
	const char *data;                      /* the interfaces for data */
	const char *nccl;                      /* NCCL's address, where it is another; NONE: it refuses */
} rows[] = {
	/* The order of the system. */
	{ TWO, NULL, NULL, NULL, "10.50.0.1", "e0,e1", NULL },
	{ "e1 10.60.0.1/24; e0 10.50.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1,e0", NULL },
	/* Up, with an address, and with a carrier. */
	{ "e0 10.50.0.1/24 unplugged; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1", NULL },
	{ "e0 10.50.0.1/24 unplugged; e1 10.60.0.1/24", "e0,e1", NULL, NULL, "10.60.0.1", "e1", NULL },
	{ "e0 10.50.0.1/24 unplugged; e1 10.60.0.1/24", "e0", NULL, NULL, NONE, NONE, NULL },
	{ "e0 10.50.0.1/24 unplugged", NULL, NULL, NULL, "127.0.0.1", "lo", NULL },
	{ "e0 10.50.0.1/24 down; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1", NULL },
	{ "e0; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1", NULL },
	{ "", NULL, NULL, NULL, "127.0.0.1", "lo", NULL },
	{ "lo down", NULL, NULL, NULL, NONE, NONE, NULL },
	/* By their names: ib first; docker, lo and virbr last; other bridges to containers behind ordinary interfaces.
	 */
	{ "e0 10.50.0.1/24; ib0 10.60.0.1/24; ib1 10.61.0.1/24", NULL, NULL, NULL, "10.60.0.1", "ib0,ib1", NULL },
	{ "docker0 172.17.0.1/16; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1", NULL },
	{ "virbr0 192.168.122.1/24; docker0 172.17.0.1/16", NULL, NULL, NULL, "172.17.0.1", "docker0", NULL },
	{ "virbr0 192.168.122.1/24", NULL, NULL, NULL, "127.0.0.1", "lo", NULL },
	{ "virbr0 192.168.122.1/24; lo down", NULL, NULL, NULL, "192.168.122.1", "virbr0", NULL },
	{ "br-0123456789ab 172.18.0.1/16; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1", "172.18.0.1" },
	{ "cni0 10.244.0.1/24; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1", "10.244.0.1" },
	{ "veth0 10.244.0.1/24", NULL, NULL, NULL, "10.244.0.1", "veth0", NULL },
	{ "br-ex 10.50.0.1/24; e1 10.60.0.1/24", NULL, NULL, NULL, "10.50.0.1", "br-ex,e1", NULL },
	/* NCCL_SOCKET_IFNAME: prefixes, or names after =; ^ excludes; a list has no order; a number behind : says
	   nothing. */
	{ TWO, "e1", NULL, NULL, "10.60.0.1", "e1", NULL },
	{ TWO, "e1,e0", NULL, NULL, "10.50.0.1", "e0,e1", NULL },
	{ TWO, "=e", NULL, NULL, NONE, NONE, NULL },
	{ TWO, "=e1", NULL, NULL, "10.60.0.1", "e1", NULL },
	{ TWO, "^e0", NULL, NULL, "10.60.0.1", "e1", "127.0.0.1" },
	{ TWO, "^e0,lo", NULL, NULL, "10.60.0.1", "e1", NULL },
	{ TWO, "^=e,lo", NULL, NULL, "10.50.0.1", "e0,e1", NULL },
	{ "e0 10.50.0.1/24; ib0 10.60.0.1/24", "^docker,lo", NULL, NULL, "10.50.0.1", "e0,ib0", NULL },
	{ TWO, "^=lo", NULL, NULL, "10.50.0.1", "e0,e1", NULL },
	{ TWO, "e1:5", NULL, NULL, "10.60.0.1", "e1", NULL },
	{ TWO, "x0", NULL, NULL, NONE, NONE, NULL },
	{ TWO, "", NULL, NULL, "10.50.0.1", "e0,e1", NULL },
	{ TWO, "x", NULL, NULL, "10.50.0.1", "e0,e1", NULL }, /* one character: as if it were not set */
	{ TWO, "lo", NULL, NULL, "127.0.0.1", "lo", NULL },
	{ "docker0 172.17.0.1/16; e1 10.60.0.1/24", "docker,e1", NULL, NULL, "172.17.0.1", "docker0,e1", NULL },
	/* Several addresses of an interface: the first; an alias counts as an interface. */
	{ "e0 10.50.0.1/24 :1 10.70.0.1/24; e1 10.60.0.1/24", "=e0", NULL, NULL, "10.50.0.1", "e0", NULL },
	{ "e0 10.50.0.1/24 :1 10.70.0.1/24", "e0:1", NULL, NULL, "10.50.0.1", "e0,e0:1", NULL },
	/* NCCL_SOCKET_FAMILY: IPv4 first, without it. */
	{ "e0 fd50::1/64; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1,e0", NULL },
	{ "e0 10.50.0.1/24 fd50::1/64; e1 10.60.0.1/24", NULL, "AF_INET6", NULL, "fd50::1", "e0", NULL },
	{ "e0 fd50::1/64; e1 10.60.0.1/24", NULL, "AF_INET", NULL, "10.60.0.1", "e1", NULL },
	{ "e0 fd50::1/64; e1 10.60.0.1/24", "e0", "AF_INET", NULL, NONE, NONE, NULL },
	{ "e0 10.50.0.1/24 fd50::1/64", NULL, "IPv6", NULL, "10.50.0.1", "e0", NULL },
	/* A host with IPv6 alone; its loopback, which NCCL never takes. */
	{ "e0 fd50::1/64; lo down", NULL, NULL, NULL, "fd50::1", "e0", NULL },
	{ TWO, "lo", "AF_INET6", NULL, "::1", "lo", NONE },
	/* Link-local addresses come behind the others. */
	{ "e0 fe80::5/64; e1 fd60::1/64", NULL, "AF_INET6", NULL, "fd60::1", "e1", "fe80::5%e0" },
	{ "e0 fe80::5/64", NULL, "AF_INET6", NULL, "fe80::5%e0", "e0", NULL },
	{ "usb0 169.254.3.1/24; e1 10.60.0.1/24", NULL, NULL, NULL, "10.60.0.1", "e1", "169.254.3.1" },
	{ "usb0 169.254.3.1/24; e1 10.60.0.1/24", "usb,e1", NULL, NULL, "10.60.0.1", "e1,usb0", "169.254.3.1" },
	{ "usb0 169.254.3.1/24", NULL, NULL, NULL, "169.254.3.1", "usb0", NULL },
	/* NCCL_COMM_ID: its subnet; for data NCCL_SOCKET_IFNAME and ib are stronger. */
	{ TWO, NULL, NULL, "10.60.0.9:7000", "10.60.0.1", "e1", NULL },
	{ TWO, "e0", NULL, "10.60.0.9:7000", "10.60.0.1", "e0", NULL },
	{ "e0 10.50.0.1/24; ib0 10.60.0.1/24", NULL, NULL, "10.50.0.9:7000", "10.50.0.1", "ib0", NULL },
	{ "docker0 172.17.0.1/16; e1 10.60.0.1/24", NULL, NULL, "172.17.0.9:7000", "172.17.0.1", "docker0", NULL },
	{ TWO, NULL, NULL, "127.0.0.1:7000", "127.0.0.1", "lo", NULL },
	{ "e0 10.50.0.1/24 fd50::1/64", NULL, "AF_INET", "[fd50::9]:7000", "fd50::1", "e0", NULL },
	{ "e0 fe80::5/64; e1 fe80::6/64", NULL, NULL, "[fe80::9%e1]:7000", "fe80::6%e1", "e1", NULL },
	{ "e0 10.50.0.1/16; e1 10.50.60.1/24", NULL, NULL, "10.50.60.9:7000", "10.50.0.1", "e0", NULL },
	{ "e0 10.50.0.1/24 unplugged; e1 10.50.0.2/24", NULL, NULL, "10.50.0.9:7000", "10.50.0.2", "e1", "10.50.0.1" },
	/* Behind a router, or by the name of an interface, which is Shunt's own form. */
	{ TWO, NULL, NULL, "10.99.0.9:7000", "10.50.0.1", "e0,e1", NONE },
	{ TWO, NULL, NULL, "e1:7000", "10.60.0.1", "e1", NONE },
	{ TWO, NULL, NULL, "10.60.0.9", NONE, NONE, "10.60.0.1" },
	{ TWO, NULL, NULL, "localhost:7000", "127.0.0.1", "lo", NULL },
};

enum { NROWS = sizeof(rows) / sizeof(rows[0]) };

static const char *nccl_path;

/* ---- a row's namespace */

static int make_interface(char *text)
{
	char *save = NULL, *name = strtok_r(text, " ", &save), alias[24];
	bool is_lo = name && !strcmp(name, "lo"), up = true, carrier = true;
	const char *addresses[4] = { NULL }, *labels[4] = { NULL };
	int n = 0, fd, err = 0;

	if (!name)
		return 0;
	for (char *word; (word = strtok_r(NULL, " ", &save));) {
		if (!strcmp(word, "down"))
			up = false;
		else if (!strcmp(word, "unplugged"))
			carrier = false;
		else if (*word == ':')
			labels[n] = word;
		else
			addresses[n++] = word;
	}
	err = is_lo ? 0 : netns_add_tap(name, carrier, &fd);
	err = err ? err : netns_set_flags(name, true, carrier);
	for (int i = 0; i < n && !err; i++) {
		snprintf(alias, sizeof(alias), "%s%s", name, labels[i] ? labels[i] : "");
		err = netns_add_address(alias, addresses[i]);
	}
	return err || up ? err : netns_set_flags(name, false, true);
}

/* The kernel gives each interface a link-local address. */
static void no_addresses_but_ours(void)
{
	int fd = open("/proc/sys/net/ipv6/conf/default/addr_gen_mode", O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		(void)!write(fd, "1", 1);
		close(fd);
	}
}

static int make_interfaces(const char *interfaces)
{
	char text[128], *save = NULL;
	int err;

	snprintf(text, sizeof(text), "%s", interfaces);
	no_addresses_but_ours();
	err = netns_set_flags("lo", true, true);
	for (char *item = strtok_r(text, ";", &save); item && !err; item = strtok_r(NULL, ";", &save))
		err = make_interface(item);
	return err;
}

static void set(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

/* ---- the users of an address */

static int expect(const struct row *row, const char *user, const char *got, const char *wanted)
{
	if (!strcmp(got, wanted))
		return 0;
	fprintf(stderr,
	    "%s, NCCL_SOCKET_IFNAME=%s NCCL_SOCKET_FAMILY=%s NCCL_COMM_ID=%s: %s is at \"%s\", not \"%s\"\n",
	    row->interfaces, row->ifname ? row->ifname : "(none)", row->family ? row->family : "(none)",
	    row->comm_id ? row->comm_id : "(none)", user, got, wanted);
	return 1;
}

static int expect_address(
    const struct row *row, const char *user, int err, const struct shunt_host_address *at, const char *wanted)
{
	char text[80] = NONE;

	if (!err) {
		struct shunt_netaddr addr = shunt_host_netaddr(at);

		shunt_netaddr_show_host(&addr, text, sizeof(text));
	}
	return expect(row, user, text, wanted);
}

static int check_bootstrap(const struct row *row)
{
	uint8_t bytes[SHUNT_BOOTSTRAP_ID_BYTES];
	struct rdzv_unique_id id;
	struct shunt_host_address at = { 0 };
	int err = shunt_bootstrap_new_id(bytes);

	memcpy(&id, bytes, sizeof(id));
	at.family = id.family;
	at.scope = id.scope;
	memcpy(at.addr, id.addr, sizeof(at.addr));
	return expect_address(row, "the bootstrap", err, &at, row->ours);
}

static int check_root(const struct row *row)
{
	struct shunt_host_address at = { 0 };
	int fd = -1, err = shunt_host_address_listen(&at, &fd);

	return expect_address(row, "a group's root", err, &at, row->ours);
}

static int check_directory(const struct row *row)
{
	struct shunt_directory_tail tail;
	struct shunt_host_address at = { 0 };
	int err = rdzv_directory_start(&tail);

	at.family = tail.family;
	memcpy(at.addr, tail.addr, sizeof(at.addr));
	return expect_address(row, "the directory", err, &at, row->ours);
}

static int check_data(const struct row *row)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	int n = shunt_net_tcp_ops.devices(info, SHUNT_NET_MAX_DEVICES);
	char text[128] = NONE;
	size_t end = 0;

	for (int i = 0; i < n; i++)
		end += (size_t)snprintf(text + end, sizeof(text) - end, "%s%s", i ? "," : "", info[i].name);
	return expect(row, "data", text, row->data);
}

/* The line "Bootstrap: Using e1:10.60.0.1<0>". */
static int check_nccl(const struct row *row)
{
	const char *wanted = row->nccl ? row->nccl : row->ours, *line;
	int (*new_id)(void *) = NULL;
	char path[64], text[128] = NONE, log[8192] = "", name[32], id[128];
	int fd = memfd_create("log", 0);
	void *lib;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
	set("NCCL_DEBUG", "INFO");
	set("NCCL_DEBUG_FILE", path);
	lib = dlopen(nccl_path, RTLD_NOW);
	if (lib)
		*(void **)&new_id = dlsym(lib, "ncclGetUniqueId");
	if (!new_id) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	(void)new_id(id);
	(void)!pread(fd, log, sizeof(log) - 1, 0);
	line = strstr(log, "Bootstrap: Using ");
	if (line)
		(void)sscanf(line, "Bootstrap: Using %31[^:]:%127[^<]", name, text);
	return expect(row, "NCCL", text, wanted);
}

_Noreturn static void walk(const struct row *row)
{
	int bad, err = unshare(CLONE_NEWNET) ? -errno : make_interfaces(row->interfaces);

	if (err) {
		fprintf(stderr, "%s: %s\n", row->interfaces, strerror(-err));
		child_exit(2);
	}
	set("NCCL_SOCKET_IFNAME", row->ifname);
	set("NCCL_SOCKET_FAMILY", row->family);
	set("NCCL_COMM_ID", row->comm_id);
	if (nccl_path)
		child_exit(check_nccl(row) != 0);
	bad = row->comm_id ? 0 : check_bootstrap(row); /* the id has the variable's address */
	bad += check_root(row) + check_directory(row) + check_data(row);
	child_exit(bad != 0);
}

TEST(test_every_user_of_an_address_follows_the_table)
{
	pid_t pids[NROWS];
	int status, bad = 0;

	for (int i = 0; i < NROWS; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (!pids[i])
			walk(&rows[i]);
	}
	for (int i = 0; i < NROWS; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
	}
	assert_int_equal(bad, 0);
}

/* 0: namespaces and TAPs can be had. */
static int try_namespaces(void)
{
	struct netns *netns = NULL;
	int err = netns_start(1, 1, &netns);

	netns_stop(netns);
	return err;
}

int main(int argc, char **argv)
{
	int err = try_namespaces();

	if (err) {
		printf("skipped: no network namespaces with TAPs (%s), which take root\n", strerror(-err));
		return 77;
	}
	nccl_path = argc > 1 ? argv[1] : NULL;
	return tests_run(NULL, NULL);
}

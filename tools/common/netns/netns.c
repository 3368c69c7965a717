/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tools/common/netns/netns.h"
#include <arpa/inet.h>
#include <linux/if_tun.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include "tools/common/libc.h"
#include "tools/common/netns/wire.h"

struct netns {
	int nhosts;
	pid_t wire;
	int fd[NETNS_MAX_HOSTS];  /* of the namespaces */
	struct netns_link *links; /* shared with the wire */
};

static int set_flag(int sock, const char *name, bool up)
{
	struct ifreq ifr = { 0 };

	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", name);
	if (ioctl(sock, SIOCGIFFLAGS, &ifr))
		return -errno;
	ifr.ifr_flags = (short)(up ? ifr.ifr_flags | IFF_UP : ifr.ifr_flags & ~IFF_UP);
	return ioctl(sock, SIOCSIFFLAGS, &ifr) ? -errno : 0;
}

static int set_ipv4(const char *name, struct in_addr address, int bits)
{
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), err = 0;
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr = address };
	struct ifreq ifr = { 0 };

	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", name);
	memcpy(&ifr.ifr_addr, &sin, sizeof(sin));
	if (sock < 0 || ioctl(sock, SIOCSIFADDR, &ifr))
		err = -errno;
	sin.sin_addr.s_addr = htonl(bits ? ~0u << (32 - bits) : 0);
	memcpy(&ifr.ifr_netmask, &sin, sizeof(sin));
	if (!err && ioctl(sock, SIOCSIFNETMASK, &ifr))
		err = -errno;
	if (sock >= 0)
		close(sock);
	return err;
}

/* The interface may need a moment until the address can be used. */
static int set_ipv6(const char *name, struct in6_addr address, int bits)
{
	int sock = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), err = -EADDRNOTAVAIL;
	struct in6_ifreq ifr = {
		.ifr6_addr = address, .ifr6_prefixlen = (unsigned)bits, .ifr6_ifindex = (int)if_nametoindex(name)
	};
	struct sockaddr_in6 sin6 = { .sin6_family = AF_INET6,
		.sin6_addr = address,
		.sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&address) ? if_nametoindex(name) : 0 };

	for (int i = 0; sock >= 0 && err && i < 1000; i++) {
		(void)ioctl(sock, SIOCSIFADDR, &ifr);
		err = bind(sock, (struct sockaddr *)&sin6, sizeof(sin6)) ? -errno : 0;
		if (err)
			(void)poll(NULL, 0, 1);
	}
	if (sock >= 0)
		close(sock);
	return err;
}

int netns_remove_ipv6(const char *name, const char *address, int bits)
{
	int sock = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), err = -EINVAL;
	struct in6_ifreq ifr = { .ifr6_prefixlen = (unsigned)bits, .ifr6_ifindex = (int)if_nametoindex(name) };

	if (inet_pton(AF_INET6, address, &ifr.ifr6_addr) == 1)
		err = sock < 0 || ioctl(sock, SIOCDIFADDR, &ifr) ? -errno : 0;
	if (sock >= 0)
		close(sock);
	return err;
}

int netns_add_address(const char *name, const char *address)
{
	const char *slash = strchr(address, '/');
	char host[INET6_ADDRSTRLEN] = "";
	struct in6_addr in6;
	struct in_addr in;

	if (!slash || (size_t)(slash - address) >= sizeof(host))
		return -EINVAL;
	memcpy(host, address, (size_t)(slash - address));
	if (inet_pton(AF_INET, host, &in) == 1)
		return set_ipv4(name, in, atoi(slash + 1));
	return inet_pton(AF_INET6, host, &in6) == 1 ? set_ipv6(name, in6, atoi(slash + 1)) : -EINVAL;
}

/* Else the kernel looks for others with the same address for a second, before it uses it. */
static void no_address_detection(void)
{
	int fd = open("/proc/sys/net/ipv6/conf/default/accept_dad", O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		(void)!write(fd, "0", 1);
		close(fd);
	}
}

int netns_set_flags(const char *name, bool up, bool carrier)
{
	struct ifreq ifr = { 0 };
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), err = sock < 0 ? -errno : set_flag(sock, name, up);

	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", name);
	/* The kernel notes the loss of a carrier once a second. */
	for (int i = 0; !err && !carrier && i < 20000; i++) {
		err = ioctl(sock, SIOCGIFFLAGS, &ifr) ? -errno : 0;
		if (!(ifr.ifr_flags & IFF_RUNNING))
			break;
		(void)poll(NULL, 0, 1);
	}
	if (sock >= 0)
		close(sock);
	return err;
}

/* index: 0, or that of the interface. */
static int add_tap(const char *name, bool carrier, int index, int *fd_p)
{
	struct ifreq ifr = { .ifr_flags = IFF_TAP | IFF_NO_PI };
	int tap, on = carrier;

	no_address_detection();
	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", name);
	tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	*fd_p = tap;
	if (tap < 0 || (index && ioctl(tap, TUNSETIFINDEX, &index)) || ioctl(tap, TUNSETIFF, &ifr) ||
	    (!carrier && ioctl(tap, TUNSETCARRIER, &on)))
		return -errno;
	return 0;
}

int netns_add_tap(const char *name, bool carrier, int *fd_p)
{
	return add_tap(name, carrier, 0, fd_p);
}

static int add_extra(const struct netns_extra *extra)
{
	int tap, err = netns_add_tap(extra->name, extra->carrier, &tap);

	err = err ? err : netns_set_flags(extra->name, true, extra->carrier);
	return err ? err : netns_add_address(extra->name, extra->address);
}

/* In the host's namespace. */
static int make_host(int host, const struct netns_extra *extra, int *tap_p)
{
	struct ifreq ifr = { .ifr_name = "eth0" };
	char ipv4[32], ipv6[32];
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), err = sock < 0 ? -errno : 0;

	snprintf(ipv4, sizeof(ipv4), "10.77.0.%d/24", host + 1);
	snprintf(ipv6, sizeof(ipv6), "fd77::%x/64", (unsigned)host + 1);
	err = err ? err : set_flag(sock, "lo", true);
	err = err || !extra ? err : add_extra(extra);
	/* As on real hosts, one name has other numbers elsewhere. */
	err = err ? err : add_tap("eth0", true, 10 + host, tap_p);
	ifr.ifr_hwaddr = (struct sockaddr){ .sa_family = ARPHRD_ETHER, .sa_data = { 2, 0, 0, 0, 0, (char)(host + 1) } };
	err = err || !ioctl(sock, SIOCSIFHWADDR, &ifr) ? err : -errno;
	err = err ? err : netns_add_address("eth0", ipv4);
	err = err ? err : set_flag(sock, "eth0", true);
	if (!err)
		(void)netns_add_address("eth0", ipv6); /* a machine without IPv6 has hosts without it */
	if (sock >= 0)
		close(sock);
	return err;
}

/* The wire's process. Its parent opens the namespaces through it when it has said 0. */
_Noreturn static void wire_main(
    int nhosts, struct netns_link *links, unsigned seed, const struct netns_extra *extra, int answer)
{
	static int taps[NETNS_MAX_HOSTS];
	int fds[NETNS_MAX_HOSTS], err = 0;

	(void)setpriority(PRIO_PROCESS, 0, -20); /* behind many ranks it would lose what a network carries */
	for (int h = 0; h < nhosts && !err; h++) {
		if (unshare(CLONE_NEWNET))
			err = -errno;
		fds[h] = err ? -1 : open("/proc/self/ns/net", O_RDONLY);
		err = err ? err : make_host(h, extra, &taps[h]);
	}
	(void)!write(answer, &err, sizeof(err));
	(void)!write(answer, fds, sizeof(fds));
	if (err)
		_exit(1);
	netns_wire_run(taps, nhosts, links, seed);
}

static int open_hosts(struct netns *netns, int answer)
{
	int fds[NETNS_MAX_HOSTS], err;
	char path[64];

	if (read(answer, &err, sizeof(err)) != sizeof(err) || read(answer, fds, sizeof(fds)) != sizeof(fds))
		return -EIO;
	for (int h = 0; h < netns->nhosts && !err; h++) {
		snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)netns->wire, fds[h]);
		netns->fd[h] = open(path, O_RDONLY | O_CLOEXEC);
		err = netns->fd[h] < 0 ? -errno : 0;
	}
	return err;
}

int netns_start(int nhosts, unsigned seed, struct netns **netns_p)
{
	return netns_start_with(nhosts, seed, NULL, netns_p);
}

int netns_start_with(int nhosts, unsigned seed, const struct netns_extra *extra, struct netns **netns_p)
{
	struct netns *netns;
	int answer[2], err;
	size_t bytes;

	if (nhosts < 1 || nhosts > NETNS_MAX_HOSTS)
		return -EINVAL;
	if (geteuid())
		return -EPERM;
	netns = calloc(1, sizeof(*netns));
	if (!netns)
		return -ENOMEM;
	netns->nhosts = nhosts;
	for (int h = 0; h < nhosts; h++)
		netns->fd[h] = -1;
	bytes = (size_t)nhosts * sizeof(*netns->links);
	/* cppcheck-suppress invalidFunctionArg; memory of no file has the descriptor -1 */
	netns->links = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (netns->links == MAP_FAILED || pipe2(answer, O_CLOEXEC)) {
		err = -errno;
		free(netns);
		return err;
	}
	netns->wire = fork();
	if (!netns->wire) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		wire_main(nhosts, netns->links, seed, extra, answer[1]);
	}
	close(answer[1]);
	err = netns->wire < 0 ? -errno : open_hosts(netns, answer[0]);
	close(answer[0]);
	if (err)
		netns_stop(netns);
	else
		*netns_p = netns;
	return err;
}

struct netns_link *netns_link(struct netns *netns, int host)
{
	return &netns->links[host];
}

int netns_enter(const struct netns *netns, int host)
{
	char name[16];

	if (setns(netns->fd[host], CLONE_NEWNET))
		return -errno;
	if (unshare(CLONE_NEWUTS))
		return -errno;
	snprintf(name, sizeof(name), "host%d", host);
	return sethostname(name, strlen(name)) ? -errno : 0;
}

/* A child goes there: the caller stays where it is. change: of the socket's namespace; 0 or -errno. */
static int change_host(const struct netns *netns, int host, int (*change)(int sock, int value), int value)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		return -errno;
	if (!pid) {
		int err = setns(netns->fd[host], CLONE_NEWNET) ? -errno : 0;

		_exit(err || change(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), value) ? 1 : 0);
	}
	if (waitpid(pid, &status, 0) != pid)
		return -errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EIO;
}

static int set_up(int sock, int up)
{
	return set_flag(sock, "eth0", up);
}

int netns_set_up(const struct netns *netns, int host, bool up)
{
	return change_host(netns, host, set_up, up);
}

static int set_mtu(int sock, int bytes)
{
	struct ifreq ifr = { .ifr_name = "eth0" };

	ifr.ifr_mtu = bytes;
	return ioctl(sock, SIOCSIFMTU, &ifr) ? -errno : 0;
}

int netns_set_mtu(const struct netns *netns, int host, int bytes)
{
	return change_host(netns, host, set_mtu, bytes);
}

void netns_stop(struct netns *netns)
{
	if (!netns)
		return;
	if (netns->wire > 0) {
		kill(netns->wire, SIGKILL);
		waitpid(netns->wire, NULL, 0);
	}
	for (int h = 0; h < netns->nhosts; h++)
		if (netns->fd[h] >= 0)
			close(netns->fd[h]);
	munmap(netns->links, (size_t)netns->nhosts * sizeof(*netns->links));
	free(netns);
}

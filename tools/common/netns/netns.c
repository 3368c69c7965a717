/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tools/common/netns/netns.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
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

static int set_ipv4(int sock, int host)
{
	struct ifreq ifr = { .ifr_name = "eth0" };
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a4d0000u + (unsigned)host + 1) };

	memcpy(&ifr.ifr_addr, &sin, sizeof(sin));
	if (ioctl(sock, SIOCSIFADDR, &ifr))
		return -errno;
	sin.sin_addr.s_addr = htonl(0xffffff00u);
	memcpy(&ifr.ifr_netmask, &sin, sizeof(sin));
	return ioctl(sock, SIOCSIFNETMASK, &ifr) ? -errno : 0;
}

/* A machine without IPv6 has hosts without it. The interface may need a moment until the address can be used. */
static void set_ipv6(int host)
{
	int sock = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct in6_ifreq ifr = { .ifr6_prefixlen = 64, .ifr6_ifindex = (int)if_nametoindex("eth0") };
	struct sockaddr_in6 sin6 = { .sin6_family = AF_INET6 };
	char text[32];

	snprintf(text, sizeof(text), "fd77::%x", (unsigned)host + 1);
	inet_pton(AF_INET6, text, &ifr.ifr6_addr);
	sin6.sin6_addr = ifr.ifr6_addr;
	for (int i = 0; sock >= 0 && i < 1000; i++) {
		(void)ioctl(sock, SIOCSIFADDR, &ifr);
		if (!bind(sock, (struct sockaddr *)&sin6, sizeof(sin6)))
			break;
		(void)poll(NULL, 0, 1);
	}
	if (sock >= 0)
		close(sock);
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

/* In the host's namespace. */
static int make_tap(int host, int *tap_p)
{
	struct ifreq ifr = { .ifr_name = "eth0" };
	int tap, sock, err = 0;

	no_address_detection();
	tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ifr.ifr_flags = IFF_TAP | IFF_NO_PI;
	if (tap < 0 || sock < 0 || ioctl(tap, TUNSETIFF, &ifr))
		err = -errno;
	if (!err) {
		ifr.ifr_hwaddr =
		    (struct sockaddr){ .sa_family = ARPHRD_ETHER, .sa_data = { 2, 0, 0, 0, 0, (char)(host + 1) } };
		err = ioctl(sock, SIOCSIFHWADDR, &ifr) ? -errno : 0;
	}
	err = err ? err : set_flag(sock, "lo", true);
	err = err ? err : set_ipv4(sock, host);
	err = err ? err : set_flag(sock, "eth0", true);
	if (!err)
		set_ipv6(host);
	if (sock >= 0)
		close(sock);
	*tap_p = tap;
	return err;
}

/* The wire's process. Its parent opens the namespaces through it when it has said 0. */
_Noreturn static void wire_main(int nhosts, struct netns_link *links, unsigned seed, int answer)
{
	static int taps[NETNS_MAX_HOSTS];
	int fds[NETNS_MAX_HOSTS], err = 0;

	(void)setpriority(PRIO_PROCESS, 0, -20); /* behind many ranks it would lose what a network carries */
	for (int h = 0; h < nhosts && !err; h++) {
		if (unshare(CLONE_NEWNET))
			err = -errno;
		fds[h] = err ? -1 : open("/proc/self/ns/net", O_RDONLY);
		err = err ? err : make_tap(h, &taps[h]);
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
		wire_main(nhosts, netns->links, seed, answer[1]);
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

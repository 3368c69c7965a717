/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Hosts on one machine: network namespaces, each with a TAP interface, and a process that carries frames between them:
 * the wire. It can be late, lose, repeat, reorder, be slow or be cut. So nothing is needed of the kernel but TAP (no
 * netem), and of the user but root.
 *
 * A host has the addresses 10.77.0.N and fd77::N, N being its number + 1, on an interface named eth0, and its own
 * loopback. Everything ends with the process that made it.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NETNS_MAX_HOSTS 16

/* The treatment of the frames that a host sends. The program may change it at any time. */
struct netns_link {
	atomic_uint delay_us, jitter_us; /* jitter: a random part more, which puts frames out of order */
	/* Of a million frames; reorder: the frame comes after the next frames */
	atomic_uint loss_ppm, repeat_ppm, reorder_ppm;
	atomic_uint rate_kbps; /* 0: no limit */
	atomic_uint room;      /* frames on their way at a time, as in a small switch; more are lost; 0: thousands */
	atomic_uint largest;   /* longer frames are lost, without a message; 0: no limit */
	atomic_bool cut_out, cut_in; /* all frames from the host, or to it, are lost */
	atomic_ullong cut;           /* the wire counts here what was lost by that */
	atomic_ullong full; /* the wire counts here the host's frames that are lost because it had no room for them */
};

struct netns;

/* 0; -EPERM: not root; another -errno: the machine has no TAP or no namespaces. seed: of all random choices. */
int netns_start(int nhosts, unsigned seed, struct netns **netns_p);
/* An interface that each host has before eth0, with nothing behind it: the same address on all. */
struct netns_extra {
	const char *name, *address; /* "192.168.7.1/24" */
	bool carrier;
};
/* extra: NULL or such an interface. */
int netns_start_with(int nhosts, unsigned seed, const struct netns_extra *extra, struct netns **netns_p);
struct netns_link *netns_link(struct netns *netns, int host);
/* From now on the calling thread is on this host, whose name is host0, host1, ... 0 or -errno. */
int netns_enter(const struct netns *netns, int host);
/* Takes the host's interface down, or up again. 0 or -errno. */
int netns_set_up(const struct netns *netns, int host, bool up);
/* Sets the largest packet of the host's interface. 0 or -errno. */
int netns_set_mtu(const struct netns *netns, int host, int bytes);
/* Ends the wire. NULL is allowed. Namespaces end with the last process in them. */
void netns_stop(struct netns *netns);

/* The parts of a host, for the namespace in which the caller is. 0 or -errno. */
/* A TAP, which lives as long as the descriptor; it is down. */
int netns_add_tap(const char *name, bool carrier, int *fd_p);
/* "10.0.0.1/24" or "fd77::1/64"; name:1 is an alias, for IPv4. */
int netns_add_address(const char *name, const char *address);
int netns_remove_ipv6(const char *name, const char *address, int bits);
/* carrier: false waits until the kernel knows that the interface has none. */
int netns_set_flags(const char *name, bool up, bool carrier);

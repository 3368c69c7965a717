/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * How the library's proxy thread sleeps, counted: a test that is built with naps.c stands between the library and the C
 * library's ppoll(), which no other thread of the library calls, and epoll_wait(), which the proxy calls in each turn.
 */
#include <stdatomic.h>
#include <stdbool.h>

struct naps {
	atomic_int turns; /* looks at the network that do not wait */
	atomic_int naps;
	atomic_int longest; /* of these: of the longest time that the proxy takes, from their beginning to their end */
};
extern struct naps naps;

/* Waits until the proxy has taken so many more naps of the longest time. False: they do not come. */
bool naps_until_longest(int n);
/* The proxy threads of this process. */
int naps_proxies(void);

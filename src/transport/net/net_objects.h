/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * For providers: the common part of their devices, memory and endpoints. A provider's struct begins with this part, as
 * its member `base`, so that a pointer to either is a pointer to both.
 */
#include "transport/net/net.h"

struct shunt_net_device {
	int epoll_fd; /* `fd` of struct shunt_net_ops: an epoll of all descriptors for which the device waits */
	int timer_fd; /* in it, too: the first deadline */
};

struct shunt_net_memory {
	uint8_t *start;
	size_t bytes;
};

struct shunt_net_endpoint {
	void *user;
	char *name; /* of the peer */
	uint8_t key[SHUNT_NET_KEY_BYTES];
	int64_t connect_ms;
	int err; /* of SHUNT_NET_ERROR, as the text */
	char text[512];
};

/* Opens epoll_fd and timer_fd, the timer with this epoll event. 0 or -errno; after an error descriptors may be open. */
struct epoll_event;
int shunt_net_device_init(struct shunt_net_device *device, struct epoll_event *timer);
/* Closes them; those that are negative are not open. */
void shunt_net_device_finish(struct shunt_net_device *device);
/* Ends a connection that is in the epoll set. An event that names it is not told any more, whoever has a copy. */
void shunt_net_device_close_socket(const struct shunt_net_device *device, int *fd);
int shunt_net_device_fd(const struct shunt_net_device *device);
/* Sets the timer to this value of shunt_now_ms(); SHUNT_NEVER stops it. */
void shunt_net_device_set_timer(const struct shunt_net_device *device, int64_t ms);

/* Copies the peer's description. 0 or -ENOMEM. */
int shunt_net_endpoint_init(struct shunt_net_endpoint *endpoint, const struct shunt_net_peer *peer);
void shunt_net_endpoint_finish(struct shunt_net_endpoint *endpoint);

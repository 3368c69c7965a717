/* SPDX-License-Identifier: MIT */
#include "transport/net/net_objects.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include "base/fd.h"
#include "base/io.h"

int shunt_net_device_init(struct shunt_net_device *device, struct epoll_event *timer)
{
	device->epoll_fd = SHUNT_FD(epoll_create1(EPOLL_CLOEXEC));
	device->timer_fd = SHUNT_FD(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
	return device->epoll_fd < 0 || device->timer_fd < 0 ||
	        epoll_ctl(device->epoll_fd, EPOLL_CTL_ADD, device->timer_fd, timer) ?
	    -errno :
	    0;
}

void shunt_net_device_finish(struct shunt_net_device *device)
{
	shunt_close_watched(device->epoll_fd, &device->timer_fd);
	shunt_close_fd(&device->epoll_fd);
}

void shunt_net_device_close_socket(const struct shunt_net_device *device, int *fd)
{
	if (shunt_fd_is_ours(*fd))
		shutdown(*fd, SHUT_RDWR);
	shunt_close_watched(device->epoll_fd, fd);
}

int shunt_net_device_fd(const struct shunt_net_device *device)
{
	return device->epoll_fd;
}

void shunt_net_device_set_timer(const struct shunt_net_device *device, int64_t ms)
{
	struct itimerspec time = { 0 };

	/* 0, 0 stops it. */
	if (ms != SHUNT_NEVER) {
		time.it_value.tv_sec = ms / 1000;
		time.it_value.tv_nsec = ms % 1000 * 1000000;
	}
	timerfd_settime(device->timer_fd, TFD_TIMER_ABSTIME, &time, NULL);
}

int shunt_net_endpoint_init(struct shunt_net_endpoint *endpoint, const struct shunt_net_peer *peer)
{
	endpoint->user = peer->user;
	endpoint->connect_ms = peer->connect_ms;
	memcpy(endpoint->key, peer->key, sizeof(endpoint->key));
	endpoint->name = strdup(peer->name ? peer->name : "a peer");
	return endpoint->name ? 0 : -ENOMEM;
}

void shunt_net_endpoint_finish(struct shunt_net_endpoint *endpoint)
{
	free(endpoint->name);
	endpoint->name = NULL;
}

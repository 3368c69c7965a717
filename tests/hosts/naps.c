/* SPDX-License-Identifier: MIT */
#include "tests/hosts/naps.h"
#include <sys/epoll.h>
#include "tools/common/libc.h"
#include "tests/support/until.h"

#define LONGEST_NS 2000000 /* NAP_LONGEST_NS of src/transport/net/proxy/proxy_thread.c */

struct naps naps;

static int (*libc_ppoll)(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *mask);
static int (*libc_epoll_wait)(int fd, struct epoll_event *events, int n, int ms);

/* Before there are threads. */
static __attribute__((constructor)) void find_libc(void)
{
	*(void **)&libc_ppoll = dlsym(RTLD_NEXT, "ppoll");
	*(void **)&libc_epoll_wait = dlsym(RTLD_NEXT, "epoll_wait");
}

/* Visible, so that the library finds them before the C library's. */
#pragma GCC visibility push(default)
int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *mask)
{
	int ready = libc_ppoll(fds, n, limit, mask);

	atomic_fetch_add(&naps.naps, 1);
	if (!ready && limit && limit->tv_nsec >= LONGEST_NS)
		atomic_fetch_add(&naps.longest, 1);
	return ready;
}

int epoll_wait(int fd, struct epoll_event *events, int n, int ms)
{
	if (!ms)
		atomic_fetch_add(&naps.turns, 1);
	return libc_epoll_wait(fd, events, n, ms);
}
#pragma GCC visibility pop

bool naps_until_longest(int n)
{
	return until_counted(&naps.longest, atomic_load(&naps.longest) + n, "long naps of the proxy");
}

int naps_proxies(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	char path[300], name[32];
	int n = 0;

	while (dir && (entry = readdir(dir))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		n += fgets(name, sizeof(name), f) && !strcmp(name, "shunt-proxy\n");
		fclose(f);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* SPDX-License-Identifier: MIT */
#include "tests/hosts/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "tests/support/child_exit.h"
#include "tests/support/pause.h"

static const struct world *current;
static struct netns *netns;
static struct world_shared *shared;

int world_host(int rank)
{
	return current->place[rank] - '0';
}

struct netns *world_netns(void)
{
	return netns;
}

struct world_shared *world_shared(void)
{
	return shared;
}

const char *world_error(void)
{
	return ncclGetLastError(NULL);
}

int world_await(int step, int n)
{
	for (int i = 0; i < 60000; i++, pause_us(PAUSE_POLL, 1000))
		if (atomic_load(&shared->step[step]) >= n)
			return 0;
	fprintf(stderr, "step %d did not come to %d\n", step, n);
	return 1;
}

/* In the rank's process, before the library is touched. */
static void go_to_host(int rank)
{
	char name[16];
	int err;

	for (int i = 0; current->env[i][0]; i++)
		setenv(current->env[i][0], current->env[i][1], 1);
	if (current->odd_env[0] && rank == current->odd)
		setenv(current->odd_env[0], current->odd_env[1], 1);
	if (current->named) {
		snprintf(name, sizeof(name), "host%d", world_host(rank));
		setenv("SHUNT_HOSTID", name, 1);
		return;
	}
	setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
	err = netns_enter(netns, world_host(rank));
	if (err) {
		fprintf(stderr, "rank %d cannot enter its host: %s\n", rank, strerror(-err));
		child_exit(98);
	}
}

int world_run(const struct world *w)
{
	int n = (int)strlen(w->place), nhosts = 0, failed;

	for (int r = 0; r < n; r++)
		nhosts = w->place[r] - '0' >= nhosts ? w->place[r] - '0' + 1 : nhosts;
	current = w;
	if (!w->named) {
		int err = netns_start(nhosts, 1, &netns);

		if (err)
			fprintf(stderr, "no network namespaces with TAPs: %s\n", strerror(-err));
		if (err == -EPERM || err == -EACCES || err == -ENOENT || err == -ENODEV || err == -ENXIO)
			return -EPERM;
		if (err)
			return 1;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (w->meanwhile)
		w->meanwhile(netns);
	failed = ranks_run_as(&(struct ranks){ .how = RANKS_PROCESSES,
	    .n = n,
	    .raw = 1,
	    .body = w->body,
	    .prepare = go_to_host,
	    .dies = w->dies,
	    .limit_s = w->limit_s });
	munmap(shared, sizeof(*shared));
	netns_stop(netns);
	netns = NULL;
	return failed;
}

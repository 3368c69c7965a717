/* SPDX-License-Identifier: MIT */
#include "tests/hosts/world.h"
#include "tests/support/child_exit.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

size_t world_most = 64;
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

/* A host keeps the link-local address that the kernel gave it. */
static void keep_link_local(int host)
{
	char address[32];

	setenv("NCCL_SOCKET_FAMILY", "AF_INET6", 1);
	snprintf(address, sizeof(address), "fd77::%x", (unsigned)host + 1);
	(void)netns_remove_ipv6("eth0", address, 64); /* another rank of the host may have removed it */
}

/* In the rank's process, before the library is touched. */
static void go_to_host(int rank)
{
	char name[16];
	int err;

	if (!current->named)
		setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
	for (int i = 0; current->env[i][0]; i++) {
		if (current->env[i][1])
			setenv(current->env[i][0], current->env[i][1], 1);
		else
			unsetenv(current->env[i][0]);
	}
	if (current->odd_env[0] && rank == current->odd)
		setenv(current->odd_env[0], current->odd_env[1], 1);
	if (current->named) {
		snprintf(name, sizeof(name), "host%d", world_host(rank));
		setenv("SHUNT_HOSTID", name, 1);
		return;
	}
	err = netns_enter(netns, world_host(rank));
	if (!err && current->link_local)
		keep_link_local(world_host(rank));
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
		int err = netns_start_with(nhosts, 1, w->extra, &netns);

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

void run_world(const struct world *w)
{
	int failed = strlen(w->place) > world_most || (WORLD_TSAN && w->plain) ? 0 : world_run(w);

	if (failed == -EPERM)
		skip(); /* hosts are network namespaces: root only */
	assert_int_equal(failed, 0);
}

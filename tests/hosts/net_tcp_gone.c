/* SPDX-License-Identifier: MIT */
/*
 * The provider "tcp" and time: a peer that does not read for longer than a dead host is waited for stays connected, and
 * a host that is gone is told, and a network that is away at first is found when it is back. Each in a network of its
 * own, at the same time.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include "tests/support/own.h"
#include "tests/transport/net_ends.h"
#include "tools/common/netns/netns.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/tcp/tcp_priv.h"

enum { SKIPPED = 77, BYTES = 8 << 20, PUTS = 8 };

static const struct shunt_net_ops *const ops = &shunt_net_tcp_ops;

static void loopback(bool up)
{
	struct ifreq ifr = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, SIOCGIFFLAGS, &ifr), 0);
	ifr.ifr_flags = (short)(up ? ifr.ifr_flags | IFF_UP : ifr.ifr_flags & ~IFF_UP);
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &ifr), 0);
	close(fd);
}

struct job {
	struct net_pair pair;
	struct shunt_net_memory *source, *target;
	uint8_t *from, *to;
};

static void job_open(struct job *job)
{
	loopback(true);
	net_pair_open(&job->pair, ops);
	job->from = calloc(1, BYTES);
	job->to = calloc(1, BYTES);
	assert_true(job->from && job->to);
	job->source = net_register(ops, job->pair.device[0], job->from, BYTES);
	job->target = net_register(ops, job->pair.device[1], job->to, BYTES);
}

static void job_put(struct job *job)
{
	struct shunt_net_put put = { .source = job->from,
		.memory = job->source,
		.remote = ops->mem_remote(job->target),
		.bytes = BYTES,
		.count = 1 };

	assert_int_equal(ops->post(job->pair.end[0].endpoint, &put, 1), 1);
}

static void job_close(struct job *job)
{
	ops->endpoint_close(job->pair.end[0].endpoint);
	ops->endpoint_close(job->pair.end[1].endpoint);
	ops->mem_deregister(job->source);
	ops->mem_deregister(job->target);
	ops->close(job->pair.device[0]);
	ops->close(job->pair.device[1]);
	free(job->from);
	free(job->to);
}

/* As a process that is stopped: its kernel answers, its window is closed. */
static int peer_does_not_read(int rank, void *arg)
{
	int64_t end = unit_now_ms() + TCP_GONE_MS + 3 * TCP_CHECK_MS;
	struct job job;

	job_open(&job);
	for (int i = 0; i < PUTS; i++)
		job_put(&job);
	while (unit_now_ms() < end)
		net_step_or_sleep(ops, job.pair.device[0], 1000);
	assert_false(job.pair.end[0].dead);
	NET_UNTIL(job.pair.end[1].signalled == PUTS && job.pair.end[0].done == PUTS, net_pair_step(&job.pair));
	job_close(&job);
	return 0;
}

static int host_is_gone(int rank, void *arg)
{
	struct job job;
	int64_t start;

	job_open(&job);
	job_put(&job);
	NET_UNTIL(job.pair.end[1].signalled == 1, net_pair_step(&job.pair));
	loopback(false);
	start = unit_now_ms();
	job_put(&job);
	NET_UNTIL(job.pair.end[0].dead, net_step_or_sleep(ops, job.pair.device[0], AT_ONCE_MS));
	assert_true(unit_now_ms() - start >= TCP_GONE_MS - TCP_CHECK_MS);
	assert_int_equal(job.pair.end[0].err, -ETIMEDOUT);
	assert_non_null(strstr(job.pair.end[0].text, "rank 3 on node2 (127.0.0.1:"));
	job_close(&job);
	return 0;
}

/* The network stays away until each connection was begun again so often, which the kernel alone never does. */
enum { BEGUN_AGAIN = 2, CONNECT_MS = 4 * AT_ONCE_MS, CONNECTED_RANKS = 2 };
static struct netns *netns;
static struct exchange {
	struct shunt_net_blob blob[CONNECTED_RANKS];
	atomic_int come;
	atomic_int connecting; /* ranks that connect: the other one is connected to */
} *exchange;
static atomic_int connects; /* of this process */

int __real_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	atomic_fetch_add(&connects, 1);
	return __real_connect(fd, addr, len);
}

/* The kernel knows the other host's hardware address from now on; else it would say that there is no such host. */
static void find_neighbour(int rank)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x0a4d0002u - (unsigned)rank)
	};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), -1);
	assert_int_equal(errno, ECONNREFUSED);
	close(fd);
}

static int connects_when_the_network_is_back(int rank, void *arg)
{
	struct shunt_net_device *device;
	struct net_end end;
	int first;

	setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
	assert_int_equal(netns_enter(netns, rank), 0);
	device = net_open(ops);
	net_create(ops, device, &end, 5, CONNECT_MS);
	exchange->blob[rank] = end.blob;
	find_neighbour(rank);
	atomic_fetch_add(&exchange->come, 1);
	NET_UNTIL(exchange->come >= CONNECTED_RANKS, net_step_or_sleep(ops, device, 1));
	if (!rank)
		netns_link(netns, 0)->cut_out = netns_link(netns, 0)->cut_in = true;
	atomic_fetch_add(&exchange->come, 1);
	NET_UNTIL(exchange->come >= 2 * CONNECTED_RANKS, net_step_or_sleep(ops, device, 1));
	connects = 0;
	assert_int_equal(ops->endpoint_connect(end.endpoint, &exchange->blob[!rank]), 0);
	first = connects;
	atomic_fetch_add(&exchange->connecting, first > 0);
	NET_UNTIL(connects >= (1 + BEGUN_AGAIN) * first, net_step_or_sleep(ops, device, 50));
	atomic_fetch_add(&exchange->come, 1);
	NET_UNTIL(exchange->come >= 3 * CONNECTED_RANKS, net_step_or_sleep(ops, device, 1));
	assert_int_equal(exchange->connecting, 1);
	assert_false(end.ready || end.dead);
	atomic_fetch_add(&exchange->come, 1);
	NET_UNTIL(exchange->come >= 4 * CONNECTED_RANKS, net_step_or_sleep(ops, device, 1));
	netns_link(netns, 0)->cut_out = netns_link(netns, 0)->cut_in = false;
	NET_UNTIL(end.ready || end.dead, net_step_or_sleep(ops, device, 50));
	assert_true(end.ready);
	atomic_fetch_add(&exchange->come, 1);
	NET_UNTIL(exchange->come == 5 * CONNECTED_RANKS, net_step_or_sleep(ops, device, 1));
	ops->endpoint_close(end.endpoint);
	ops->close(device);
	return 0;
}

TEST(test_network_is_back)
{
	int errs[CONNECTED_RANKS];

	if (netns_start(CONNECTED_RANKS, 1, &netns))
		skip(); /* no TAPs */
	exchange = mmap(NULL, sizeof(*exchange), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unit_run_processes(CONNECTED_RANKS, connects_when_the_network_is_back, NULL, errs);
	netns_stop(netns);
	munmap(exchange, sizeof(*exchange));
	assert_int_equal(errs[0], 0);
	assert_int_equal(errs[1], 0);
}

/*
 * Two ranks of each host exchange 512 KB again and again, over a wire that is slow and has little room: the sockets of
 * both must not fill it. With all of eight sockets from the start it loses some 2,000 frames of a host, and the calls
 * take ten times as long; with one socket some 300.
 */
enum { WIRE_RANKS = 2, WIRE_BYTES = 512 << 10, WIRE_TIMES = 60, WIRE_LOST = 1000 };
static struct wire_exchange {
	struct shunt_net_blob blob[2][WIRE_RANKS];
	struct shunt_net_remote remote[2][WIRE_RANKS];
	atomic_int come;
} *wire;

struct wire_rank {
	struct shunt_net_device *device;
	struct net_end end;
	struct shunt_net_memory *source, *target;
};

static void wire_step(struct wire_rank *ranks)
{
	for (int i = 0; i < WIRE_RANKS; i++)
		net_step(ops, ranks[i].device);
}

static int sockets_share_a_wire(int host, void *arg)
{
	static uint8_t from[WIRE_BYTES], to[WIRE_RANKS][WIRE_BYTES];
	struct wire_rank ranks[WIRE_RANKS];
	int fd;

	setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
	setenv("SHUNT_SOCKETS", "8", 1);
	setenv("SHUNT_SOCKET_THREADS", "0", 1);
	assert_int_equal(netns_enter(netns, host), 0);
	fd = open("/proc/sys/net/ipv4/tcp_congestion_control", O_WRONLY | O_CLOEXEC);
	assert_int_equal(write(fd, "reno", 4), 4); /* the one that every kernel has */
	close(fd);
	for (int i = 0; i < WIRE_RANKS; i++) {
		struct wire_rank *r = &ranks[i];

		r->device = net_open(ops);
		net_create(ops, r->device, &r->end, 5, CONNECT_MS);
		r->source = net_register(ops, r->device, from, WIRE_BYTES);
		r->target = net_register(ops, r->device, to[i], WIRE_BYTES);
		wire->blob[host][i] = r->end.blob;
		wire->remote[host][i] = ops->mem_remote(r->target);
	}
	atomic_fetch_add(&wire->come, 1);
	NET_UNTIL(wire->come >= 2, wire_step(ranks));
	for (int i = 0; i < WIRE_RANKS; i++)
		assert_int_equal(ops->endpoint_connect(ranks[i].end.endpoint, &wire->blob[!host][i]), 0);
	NET_UNTIL(ranks[0].end.ready && ranks[1].end.ready, wire_step(ranks));
	for (uint64_t n = 1; n <= WIRE_TIMES; n++) {
		for (int i = 0; i < WIRE_RANKS; i++) {
			struct shunt_net_put put = { .source = from,
				.memory = ranks[i].source,
				.remote = wire->remote[!host][i],
				.bytes = WIRE_BYTES,
				.count = 1 };

			net_put(ops, ranks[i].device, &ranks[i].end, &put);
		}
		NET_UNTIL(ranks[0].end.signalled >= n && ranks[1].end.signalled >= n, wire_step(ranks));
	}
	atomic_fetch_add(&wire->come, 1);
	NET_UNTIL(wire->come >= 4, wire_step(ranks)); /* the other's last acknowledgements */
	return 0;
}

static void test_sockets_do_not_fill_a_wire(void **state)
{
	int errs[2];

	if (netns_start(2, 1, &netns))
		skip(); /* no TAPs */
	for (int h = 0; h < 2; h++) {
		netns_link(netns, h)->rate_kbps = 400000;
		netns_link(netns, h)->room = 500;
	}
	wire = mmap(NULL, sizeof(*wire), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unit_run_processes(2, sockets_share_a_wire, NULL, errs);
	for (int h = 0; h < 2; h++) {
		assert_int_equal(errs[h], 0);
		print_message("host %d lost %llu frames\n", h, (unsigned long long)netns_link(netns, h)->full);
		assert_true(netns_link(netns, h)->full < WIRE_LOST);
	}
	netns_stop(netns);
	munmap(wire, sizeof(*wire));
}

static int may_unshare(int rank, void *arg)
{
	return unshare(CLONE_NEWNET) ? -errno : 0;
}

static int body(int rank, void *arg)
{
	if (unshare(CLONE_NEWNET))
		return -errno;
	return rank ? host_is_gone(rank, arg) : peer_does_not_read(rank, arg);
}

TEST(test_both)
{
	int errs[2];

	unit_run_processes(2, body, NULL, errs);
	assert_int_equal(errs[0], 0);
	assert_int_equal(errs[1], 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest on_a_wire[] = { cmocka_unit_test(test_sockets_do_not_fill_a_wire) };
	int err;

	own_environment();
	unit_run_processes(1, may_unshare, NULL, &err);
	if (err) {
		fprintf(stderr, "skipped: networks of their own need root\n");
		return SKIPPED;
	}
	return argc > 1 ? cmocka_run_group_tests(on_a_wire, NULL, NULL) : tests_run(NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * shunt doctor --net: every pair of ranks connects over TCP, at the address that the library would take, and measures
 * latency, rate and the largest segment. One pair at a time, so that pairs do not measure each other. Then the same by
 * verbs (net_verbs.c).
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include "tools/common/libc.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/os.h"
#include "tools/doctor/net_pairs.h"

#define LARGE 65536 /* more than any packet */
#define LEAST (1 << 20)
#define MOST (64 << 20)

/* Requests to the lower rank. */
struct ask {
	uint8_t token[16];
	uint64_t echo, take, give; /* bytes: said back at once; taken, then a byte; given */
};

/* ---- sockets */

static int all(int fd, void *buf, size_t bytes, bool writes)
{
	char *p = buf;

	while (bytes) {
		ssize_t n = writes ? send(fd, p, bytes, MSG_NOSIGNAL) : recv(fd, p, bytes, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? (errno == EAGAIN ? -ETIMEDOUT : -errno) : -ECONNRESET;
		p += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int stream(int fd, uint64_t bytes, bool writes)
{
	static char block[1 << 18];
	int err = 0;

	for (uint64_t n; !err && bytes; bytes -= n) {
		n = bytes < sizeof(block) ? bytes : sizeof(block);
		err = all(fd, block, n, writes);
	}
	return err;
}

static void limit_waits(int fd)
{
	struct timeval wait = { .tv_sec = NET_WAIT_S };
	int one = 1;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- the lower rank of a pair */

static int answer(const struct net *net, int fd)
{
	struct ask ask;
	char byte = 0, word[8];
	int err;

	while (!(err = all(fd, &ask, sizeof(ask), false))) {
		if (memcmp(ask.token, net->place[0].token, sizeof(ask.token)))
			return -EPROTO;
		for (uint64_t i = 0; !err && i < ask.echo; i += sizeof(word)) {
			err = all(fd, word, sizeof(word), false);
			err = err ? err : all(fd, word, sizeof(word), true);
		}
		if (!err && ask.take)
			err = stream(fd, ask.take, false);
		if (!err && ask.take)
			err = all(fd, &byte, 1, true);
		if (!err && ask.give)
			err = stream(fd, ask.give, true);
		if (err)
			return err;
	}
	return err;
}

static void serve(const struct net *net)
{
	struct pollfd pfd = { .fd = net->listen_fd, .events = POLLIN };

	/* Tries again after a stranger, which sends something else. */
	while (net->listen_fd >= 0 && poll(&pfd, 1, (NET_WAIT_S + 1) * 1000) > 0) {
		int fd = accept(net->listen_fd, NULL, NULL), err;

		if (fd < 0)
			return;
		limit_waits(fd);
		err = answer(net, fd);
		close(fd);
		if (err != -EPROTO)
			return;
	}
}

/* ---- the higher rank */

static int ask_for(const struct net *net, int fd, uint64_t echo, uint64_t take, uint64_t give)
{
	struct ask ask = { .echo = echo, .take = take, .give = give };

	memcpy(ask.token, net->place[0].token, sizeof(ask.token));
	return all(fd, &ask, sizeof(ask), true);
}

static int ping(const struct net *net, int fd, struct net_pair *pair)
{
	char word[8] = "";
	int err = ask_for(net, fd, (uint64_t)NET_PINGS * sizeof(word), 0, 0);
	float best = 1e9f;

	for (int i = 0; !err && i < NET_PINGS; i++) {
		double start = ranks_now_us();
		float took;

		err = all(fd, word, sizeof(word), true);
		err = err ? err : all(fd, word, sizeof(word), false);
		took = (float)(ranks_now_us() - start) / 2;
		best = took < best ? took : best;
	}
	pair->latency_us = best;
	return err;
}

static int transmit(const struct net *net, int fd, uint64_t bytes, float *mbs_p)
{
	double start = ranks_now_us();
	char byte;
	int err = ask_for(net, fd, 0, bytes, 0);

	err = err ? err : stream(fd, bytes, true);
	err = err ? err : all(fd, &byte, 1, false);
	*mbs_p = (float)((double)bytes / (ranks_now_us() - start));
	return err;
}

static int receive(const struct net *net, int fd, uint64_t bytes, float *mbs_p)
{
	double start = ranks_now_us();
	int err = ask_for(net, fd, 0, 0, bytes);

	err = err ? err : stream(fd, bytes, false);
	*mbs_p = (float)((double)bytes / (ranks_now_us() - start));
	return err;
}

static uint64_t bytes_for(float mbs)
{
	double bytes = (double)mbs * NET_TARGET_US;

	return bytes < LEAST ? LEAST : bytes > MOST ? MOST : (uint64_t)bytes;
}

static int connect_to(const struct net_place *place, int *fd_p)
{
	int fd = socket(place->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	limit_waits(fd); /* a connection, too, has the time for sending */
	if (connect(fd, (const struct sockaddr *)&place->at, place->len)) {
		int err = errno == EINPROGRESS ? -ETIMEDOUT : -errno;

		close(fd);
		return err;
	}
	*fd_p = fd;
	return 0;
}

static void measure(const struct net *net, const struct net_place *place, struct net_pair *pair)
{
	socklen_t len = sizeof(pair->mss);
	float rate = 0;
	int fd = -1;

	pair->step = NET_CONNECT;
	pair->err = place->err ? place->err : connect_to(place, &fd);
	if (pair->err)
		return;
	(void)getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &pair->mss, &len);
	pair->step = NET_PING;
	pair->err = ping(net, fd, pair);
	if (!pair->err) {
		pair->step = NET_LARGE;
		pair->err = transmit(net, fd, LARGE, &rate);
	}
	if (!pair->err) {
		pair->step = NET_RATE;
		pair->err = transmit(net, fd, bytes_for(rate), &pair->to_mbs);
	}
	if (!pair->err)
		pair->err = receive(net, fd, bytes_for(pair->to_mbs), &pair->from_mbs);
	close(fd);
}

/* ---- all pairs */

static void listen_here(struct net *net, struct net_place *place)
{
	struct shunt_netaddr addr;
	char *port;

	place->err = shunt_netif_here(&addr);
	if (place->err)
		return;
	net->listen_fd = socket(addr.ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (net->listen_fd < 0 || bind(net->listen_fd, (struct sockaddr *)&addr.ss, addr.len) ||
	    listen(net->listen_fd, 16)) {
		place->err = -errno;
		return;
	}
	place->len = sizeof(place->at);
	(void)getsockname(net->listen_fd, (struct sockaddr *)&place->at, &place->len);
	shunt_netaddr_show(&addr, place->address, sizeof(place->address));
	port = strrchr(place->address, ':');
	if (port)
		*port = '\0';
	snprintf(place->ifname, sizeof(place->ifname), "%s", addr.ifname);
}

static int exchange(struct net *net)
{
	struct net_place mine = { 0 };

	if (shunt_random(mine.token, sizeof(mine.token)) || shunt_host_id(mine.host, "shunt doctor net", 16) ||
	    shunt_host_machine_id(mine.machine, "shunt doctor net", 16))
		return -EIO;
	shunt_host_name(mine.name, sizeof(mine.name));
	listen_here(net, &mine);
	return ranks_allgather(net->ranks, &mine, sizeof(mine), net->place);
}

static int try_pairs(struct net *net)
{
	int err = 0;

	for (int low = 0; low < net->nranks; low++)
		for (int high = low + 1; high < net->nranks && !err; high++) {
			if (net->rank == low && !net->place[low].err)
				serve(net);
			if (net->rank == high)
				measure(net, &net->place[low], &net->pair[low]);
			err = ranks_barrier(net->ranks);
		}
	return err;
}

/* ---- report */

bool net_same_host(const struct net *net, int a, int b)
{
	return !memcmp(net->place[a].host, net->place[b].host, SHUNT_HOST_BYTES);
}

static void print_places(const struct net *net)
{
	printf("rank  host                  interface   address\n");
	for (int r = 0; r < net->nranks; r++)
		printf("%4d  %-20s  %-10s  %s\n", r, net->place[r].name, net->place[r].ifname, net->place[r].address);
}

void net_matrix_print(const struct net *net, struct net_pair (*rows)[RANKS_MAX], const char *title, bool latency)
{
	printf("\n%s\nfrom\\to", title);
	for (int to = 0; to < net->nranks; to++)
		printf(" %8d", to);
	putchar('\n');
	for (int from = 0; from < net->nranks; from++) {
		printf("%7d", from);
		for (int to = 0; to < net->nranks; to++) {
			const struct net_pair *p = from > to ? &rows[from][to] : &rows[to][from];

			if (from == to)
				printf(" %8s", "-");
			else if (p->err)
				printf(" %8s", "FAILS");
			else
				printf(" %8.1f", latency ? p->latency_us : from > to ? p->to_mbs : p->from_mbs);
		}
		putchar('\n');
	}
}

static void find_pair(struct findings *f, const struct net *net, int high, int low, const struct net_pair *p)
{
	static const char *const what[] = { [NET_CONNECT] = "cannot connect to",
		[NET_PING] = "connects to, but exchanges no message with",
		[NET_LARGE] = "exchanges small messages with, but loses large packets to",
		[NET_RATE] = "loses the connection to" };
	const struct net_place *a = &net->place[high], *b = &net->place[low];

	if (p->err)
		finding_add(f, FINDING_ERROR, NET_TOPIC,
		    p->step == NET_LARGE ? "the MTU of an interface is larger than that of the network between" :
		                           "NCCL_SOCKET_IFNAME chooses another interface; a firewall must let "
		                           "SHUNT_PORT_RANGE through",
		    "rank %d on %s (%s) %s rank %d on %s (%s): %s", high, a->name, a->address, what[p->step], low,
		    b->name, b->address, strerror(-p->err));
}

static void find_hosts(struct findings *f, const struct net *net)
{
	int nhosts = 0;
	bool machine = false;

	for (int r = 0; r < net->nranks; r++) {
		int first = 0;

		while (!net_same_host(net, first, r))
			first++;
		nhosts += first == r;
		machine = machine ||
		    (first == r && r &&
		        !memcmp(net->place[r].machine, net->place[0].machine, sizeof(net->place[r].machine)));
	}
	finding_add(f, FINDING_OK, NET_TOPIC, "", "%d ranks on %d host%s", net->nranks, nhosts, nhosts > 1 ? "s" : "");
	if (machine && nhosts > 1)
		finding_add(f, FINDING_INFO, NET_TOPIC, "share the network namespace (--network=host) for one host",
		    "hosts of one machine, in network namespaces of their own or named apart (SHUNT_HOSTID)");
}

static int report(const struct net *net, struct net_pair (*rows)[RANKS_MAX], struct net_verbs *verbs, bool json)
{
	struct findings f = { 0 };
	int status;

	find_hosts(&f, net);
	for (int high = 0; high < net->nranks; high++)
		for (int low = 0; low < high; low++)
			find_pair(&f, net, high, low, &rows[high][low]);
	net_verbs_find(&f, net, verbs);
	if (!json) {
		print_places(net);
		net_matrix_print(net, rows, "latency in us (half of a round trip, the shortest)", true);
		net_matrix_print(net, rows, "rate in MB/s (one connection)", false);
		net_verbs_print(net, verbs);
		putchar('\n');
	}
	status = findings_print(&f, json);
	findings_finish(&f);
	return status;
}

static int run(struct net *net, bool json)
{
	static struct net_pair rows[RANKS_MAX][RANKS_MAX];
	static struct net_verbs verbs;
	int err = exchange(net);

	err = err ? err : try_pairs(net);
	err = err ? err : ranks_allgather(net->ranks, net->pair, sizeof(net->pair), rows);
	err = err ? err : net_verbs_try(net, &verbs);
	if (err) {
		ranks_error(net->rank, err);
		return TOOL_FAIL;
	}
	return net->rank ? 0 : report(net, rows, &verbs, json);
}

static int rank_main(const void *arg, const struct ranks_slot *slot)
{
	static struct net net; /* a rank is a process here */
	const struct doctor_net *o = arg;
	int status, err;

	net = (struct net){ .rank = slot->rank, .nranks = slot->shared->launch.nranks, .listen_fd = -1 };
	ranks_progress_set(slot->progress, RANKS_RENDEZVOUS, -1, -1);
	err = ranks_join(slot->shared, o->ranks->worker_fd, slot->rank, o->ranks->timeout_s, &net.ranks);
	if (err)
		return TOOL_FAIL;
	status = run(&net, o->json);
	if (net.listen_fd >= 0)
		close(net.listen_fd);
	ranks_progress_set(slot->progress, RANKS_DONE, -1, -1);
	ranks_leave(net.ranks);
	return status;
}

int doctor_net(const struct doctor_net *o, int argc, char **argv)
{
	return o->ranks->worker_fd >= 0 ? ranks_slots_run(o->ranks, rank_main, o) : ranks_run(o->ranks, argc, argv);
}

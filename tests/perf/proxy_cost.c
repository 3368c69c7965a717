/* SPDX-License-Identifier: MIT */
/*
 * What the proxy thread costs, over tcp on loopback: `meson test --benchmark proxy_cost`. Triggers through the FIFO, a
 * put with its signal from one process's memory to another's and back, and until the death of a process is told.
 * Nothing is compared with a limit: the times are those of the machine.
 */
#include <sched.h>
#include "tools/common/libc.h"
#include "kernels/net_rings.h"
#include "tests/support/child.h"
#include "tests/support/child_exit.h"
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "transport/net/proxy/proxy.h"
#include "transport/net/tcp/tcp.h"

enum { TRIGGERS = 400000, ROUND_TRIPS = 4000, PAYLOAD = 64, MEMORY = 1 << 20, LIMIT_S = 60 };

/* What the two processes share. */
static struct shared {
	struct shunt_proxy_offer offer[2];
	atomic_int offers, ready;
	_Atomic double died;
} *shared;

static struct shunt_net_words *words;
static struct shunt_proxy *proxy;
static uint64_t pushed;
static _Atomic double failed_at;

static void require(int cond, const char *what)
{
	if (cond)
		return;
	fprintf(stderr, "%s failed\n", what);
	exit(1);
}

#define COMES(cond) \
	for (double end_ = now() + LIMIT_S; !(cond); sched_yield()) \
	require(now() < end_, #cond)

static void on_failure(void *ctx, int connection, int err, const char *text)
{
	(void)ctx;
	(void)connection;
	(void)err;
	(void)text;
	atomic_store(&failed_at, now());
}

static void open_side(int me)
{
	struct shunt_net_peer peer = { .name = "the other one", .connect_ms = LIMIT_S * 1000 };
	char text[256];

	words = aligned_alloc(4096, MEMORY);
	require(words != NULL, "memory");
	memset(words, 0, MEMORY);
	require(!shunt_proxy_create(&(struct shunt_proxy_config){ .net = &shunt_net_tcp_ops,
	                                .memory = words,
	                                .bytes = MEMORY,
	                                .npeers = 1,
	                                .peers = &peer,
	                                .ranks = (const uint8_t[]){ (uint8_t)!me },
	                                .failed = on_failure },
	            &shared->offer[me], &proxy),
	    "the proxy");
	atomic_fetch_add(&shared->offers, 1);
	COMES(shared->offers == 2);
	require(!shunt_proxy_connect(proxy, &shared->offer[!me], LIMIT_S * 1000, NULL, text), text);
	shunt_proxy_start(proxy);
	atomic_fetch_add(&shared->ready, 1);
	COMES(shared->ready == 2);
}

static void push(unsigned channel, unsigned what, uint32_t bytes, uint64_t from)
{
	uint64_t number = pushed++, flag = (uint64_t)(uint32_t)(number + 1) << 32;
	uint64_t *half = words->fifo[number & (SHUNT_NET_FIFO - 1)].half;
	const uint64_t value[4] = { SHUNT_NET_TRIGGER(0, channel, what), bytes, from, from };

	COMES(number < __atomic_load_n(&words->taken, __ATOMIC_ACQUIRE) + SHUNT_NET_FIFO);
	for (int i = 0; i < 4; i++)
		__atomic_store_n(&half[i], value[i] | flag, __ATOMIC_RELEASE);
}

static uint64_t raised(unsigned channel)
{
	return __atomic_load_n(&words->raised[0][channel], __ATOMIC_ACQUIRE);
}

#define PAYLOAD_AT (sizeof(struct shunt_net_words) + 4096 - sizeof(struct shunt_net_words) % 4096)
enum { PUT = SHUNT_NET_TRIGGER_SIGNAL | SHUNT_NET_TRIGGER_PUT };

/* Returns what it gets, and dies when it is told to. */
static void other_side(void)
{
	open_side(1);
	for (uint64_t k = 1; k <= ROUND_TRIPS; k++) {
		COMES(raised(1) >= k);
		push(1, PUT, PAYLOAD, PAYLOAD_AT);
	}
	COMES(raised(2) >= 1);
	atomic_store(&shared->died, now());
	raise(SIGKILL);
}

static void this_side(void)
{
	double start;

	open_side(0);
	start = now();
	for (int k = 0; k < TRIGGERS; k++)
		push(0, SHUNT_NET_TRIGGER_SIGNAL, 1, 0);
	COMES(__atomic_load_n(&words->taken, __ATOMIC_ACQUIRE) == TRIGGERS);
	printf("triggers through the FIFO, signals alone: %.2f million/s\n", TRIGGERS / (now() - start) / 1e6);
	start = now();
	for (uint64_t k = 1; k <= ROUND_TRIPS; k++) {
		push(1, PUT, PAYLOAD, PAYLOAD_AT);
		shunt_proxy_wake(proxy);
		COMES(raised(1) >= k);
	}
	printf("put of %d bytes with a signal, one way between two processes: %.1f us\n", PAYLOAD,
	    (now() - start) / ROUND_TRIPS / 2 * 1e6);
	push(2, SHUNT_NET_TRIGGER_SIGNAL, 1, 0);
	shunt_proxy_wake(proxy);
	COMES(atomic_load(&failed_at) > 0);
	printf("the death of a process is told after %.1f ms\n", (failed_at - shared->died) * 1e3);
	shunt_proxy_destroy(proxy);
	free(words);
}

int main(void)
{
	pid_t pid;
	int status;

	own_environment();
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(shared != MAP_FAILED, "mmap");
	pid = child_fork();
	if (!pid) {
		other_side();
		child_exit(1);
	}
	this_side();
	require(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "the other process");
	return 0;
}

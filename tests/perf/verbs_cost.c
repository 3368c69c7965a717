/* SPDX-License-Identifier: MIT */
/*
 * What a put with a signal costs in the provider verbs, without the NIC's driver: `meson test --benchmark verbs_cost`.
 * The calls of the driver are replaced by ones that note what was posted and complete it at once. Nothing is compared
 * with a limit: the times are those of the machine.
 */
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "transport/net/verbs/verbs.h"
#include "transport/net/verbs/verbs_priv.h"

enum { ROUNDS = 20000, EACH = 64, BATCH = 16, PAYLOAD = 64 };

static const struct shunt_net_ops *const ops = &shunt_net_verbs_ops;
static uint64_t signaled[VERBS_SENDS];
static unsigned posted, polled;
static unsigned long requests;

static void require(int cond, const char *what)
{
	if (cond)
		return;
	fprintf(stderr, "%s failed\n", what);
	exit(1);
}

static int post_send(struct shunt_ibv_qp *qp, struct shunt_ibv_send_wr *wr, struct shunt_ibv_send_wr **bad_p)
{
	for (; wr; wr = wr->next, requests++)
		if (wr->send_flags & SHUNT_IBV_SEND_SIGNALED)
			signaled[posted++ % VERBS_SENDS] = wr->wr_id;
	return 0;
}

static int poll_cq(struct shunt_ibv_cq *cq, int n, struct shunt_ibv_wc *wc)
{
	int got = 0;

	for (; got < n && polled != posted; got++)
		wc[got] = (struct shunt_ibv_wc){ .wr_id = signaled[polled++ % VERBS_SENDS] };
	return got;
}

static bool ready(struct shunt_net_device *device)
{
	struct shunt_net_event events[16];
	int n = ops->progress(device, events, 16);
	bool is = false;

	for (int i = 0; i < n; i++) {
		require(events[i].kind != SHUNT_NET_ERROR, "the connection");
		is |= events[i].kind == SHUNT_NET_READY;
	}
	return is;
}

/* ns of a put, `batch` in one call, with the progress that tells that they are done. */
static double cost(
    struct shunt_net_device *device, struct shunt_net_endpoint *ep, const struct shunt_net_put *put, int batch)
{
	struct verbs_endpoint *verbs = verbs_endpoint_of(ep);
	struct shunt_net_put puts[BATCH];
	struct shunt_net_event events[16];
	uint64_t done = 0;
	double start = now();

	for (int i = 0; i < batch; i++)
		puts[i] = *put;
	for (int r = 0; r < ROUNDS; r++) {
		/* As if the peer had returned them. */
		verbs->signals_allowed = verbs->signals_sent + VERBS_SIGNALS;
		for (int i = 0; i < EACH; i += batch) {
			int n;

			require(ops->post(ep, puts, batch) == batch, "post");
			n = ops->progress(device, events, 16);
			for (int j = 0; j < n; j++)
				done += events[j].count;
		}
	}
	require(done == (uint64_t)ROUNDS * EACH, "completing");
	return (now() - start) / ROUNDS / EACH * 1e9;
}

int main(void)
{
	static uint8_t bytes[4096];
	struct shunt_net_region region = { bytes, sizeof(bytes), -1, 0, 0 };
	struct shunt_net_peer peer = { .name = "the other end", .connect_ms = 10000 };
	struct shunt_net_endpoint *ep[2];
	struct shunt_net_memory *memory;
	struct shunt_net_device *device[2];
	struct shunt_net_blob blob[2];
	bool is[2] = { false, false };
	struct shunt_net_put put;

	own_environment();
	for (int i = 0; i < 2; i++) {
		require(!ops->open(0, &device[i]), "open");
		require(!ops->endpoint_create(device[i], &peer, &ep[i], &blob[i]), "endpoint_create");
	}
	require(!ops->mem_register(device[0], &region, &memory), "mem_register");
	for (int i = 0; i < 2; i++)
		require(!ops->endpoint_connect(ep[i], &blob[!i]), "endpoint_connect");
	while (!is[0] || !is[1])
		for (int i = 0; i < 2; i++)
			is[i] |= ready(device[i]);
	verbs_device_of(device[0])->rail[0].context->post_send = post_send;
	verbs_device_of(device[0])->rail[0].context->poll_cq = poll_cq;
	put = (struct shunt_net_put){
		.source = bytes, .memory = memory, .remote = ops->mem_remote(memory), .bytes = PAYLOAD, .count = 1
	};
	cost(device[0], ep[0], &put, 1);
	printf("put of %d bytes with a signal, posted and done: %.0f ns\n", PAYLOAD, cost(device[0], ep[0], &put, 1));
	printf("... in batches of %d: %.0f ns each\n", BATCH, cost(device[0], ep[0], &put, BATCH));
	printf("%lu requests, %u of them signaled\n", requests, posted);
	/* The NIC knows nothing of these puts: there is nothing to close in order. */
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * What a put with a signal costs in the provider verbs, without the NIC's driver: `meson test --benchmark verbs_cost`.
 * The calls of the driver are replaced by ones that note what was posted and complete it at once. Nothing is compared
 * with a limit: the times are those of the machine.
 */
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "tests/transport/net_ends.h"
#include "transport/net/verbs/verbs.h"
#include "transport/net/verbs/verbs_priv.h"

enum { ROUNDS = 20000, EACH = 64, BATCH = 16, PAYLOAD = 64 };

static const struct shunt_net_ops *const ops = &shunt_net_verbs_ops;
static uint64_t signaled[VERBS_SENDS];
static unsigned posted, polled;
static unsigned long requests;

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

/* ns of a put, `batch` in one call, with the progress that tells that they are done. */
static double cost(
    struct shunt_net_device *device, struct shunt_net_endpoint *ep, const struct shunt_net_put *put, int batch)
{
	struct verbs_endpoint *verbs = verbs_endpoint_of(ep);
	struct shunt_net_put puts[BATCH];
	struct shunt_net_event events[16];
	uint64_t done = 0, taken = 0;
	double start = now();

	for (int i = 0; i < batch; i++)
		puts[i] = *put;
	for (int r = 0; r < ROUNDS; r++) {
		/* As if the peer had returned them. */
		verbs->signals_allowed = verbs->signals_sent + VERBS_SIGNALS;
		for (int i = 0; i < EACH; i += batch) {
			int n;

			taken += (uint64_t)ops->post(ep, puts, batch);
			n = ops->progress(device, events, 16);
			for (int j = 0; j < n; j++)
				done += events[j].count;
		}
	}
	assert_true(taken == (uint64_t)ROUNDS * EACH && done == taken);
	return (now() - start) / ROUNDS / EACH * 1e9;
}

int main(void)
{
	static uint8_t bytes[4096];
	struct shunt_net_memory *memory;
	struct shunt_net_device *device;
	struct shunt_net_endpoint *ep;
	struct net_pair pair;
	struct shunt_net_put put;

	own_environment();
	net_pair_open(&pair, ops);
	device = pair.device[0];
	ep = pair.end[0].endpoint;
	memory = net_register(ops, device, bytes, sizeof(bytes));
	verbs_device_of(device)->rail[0].context->post_send = post_send;
	verbs_device_of(device)->rail[0].context->poll_cq = poll_cq;
	put = (struct shunt_net_put){
		.source = bytes, .memory = memory, .remote = ops->mem_remote(memory), .bytes = PAYLOAD, .count = 1
	};
	cost(device, ep, &put, 1);
	printf("put of %d bytes with a signal, posted and done: %.0f ns\n", PAYLOAD, cost(device, ep, &put, 1));
	printf("... in batches of %d: %.0f ns each\n", BATCH, cost(device, ep, &put, BATCH));
	printf("%lu requests, %u of them signaled\n", requests, posted);
	/* The NIC knows nothing of these puts: there is nothing to close in order. */
	return 0;
}

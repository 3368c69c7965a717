/* SPDX-License-Identifier: MIT */
/*
 * The p2p engine between two ranks in Simple by TMA copies, and in LL128 for the small messages of the launch: like
 * simple.cu, with fewer SMs. The number of blocks follows from the chunks, so an LL128 message may have more channels
 * than a role has warps.
 */
#include "kernels/tma.h"

/*
 * Loops over a run of LL128 messages, for one statement about message m: each message, and each channel that the warp
 * serves. A message begins on all its channels before the next message does: the other end may receive it in a launch
 * of its own, and return no credits for the next message before.
 */
#define EACH_MESSAGE(x, a, role, first, count, ok) \
	GPU_ROLL for (uint32_t m = first, width = simple_stride<SHUNT_TMA_CHANNELS>(a, role), begin = (x).channel; \
	    (ok) && m < (first) + (count); m++, (x).channel = begin) GPU_ROLL \
		for (; (ok) && (x).channel < (a).k.channels; (x).channel += width, gpu_warp_sync())

template <typename T, typename Op, typename A>
GPU_FN bool p2p_send_each(struct p2p x, const A &a, const struct shunt_role &role, uint32_t i, uint32_t n)
{
	bool ok = true;

	EACH_MESSAGE(x, a, role, i, n, ok)
	ok = p2p_send<T, Op>(x, a, role.peer, m, 1);
	return ok;
}

template <typename T, typename A>
GPU_FN bool p2p_recv_each(struct p2p x, const A &a, const struct shunt_role &role, uint32_t i, uint32_t n)
{
	bool ok = true;

	EACH_MESSAGE(x, a, role, i, n, ok)
	ok = p2p_recv<T>(x, a, role.peer, m, 1, 0);
	return ok;
}

template <typename T, typename Op, typename A>
GPU_FN bool p2p_reduce_each(struct p2p x, const A &a, const struct shunt_role &role, uint32_t i, uint32_t n)
{
	bool ok = true;

	EACH_MESSAGE(x, a, role, i, n, ok)
	ok = p2p_reduce<T, Op, 2, 1>(x, a, m, 1);
	return ok;
}

template <typename T, typename Op, typename A>
GPU_FN void tma_send_role(
    const A &a, const struct shunt_role &role, const struct simple &c, char *slots, struct gpu_mbar *bars)
{
	struct tma b = tma_init(a, role, c, slots, bars);

	EACH_RUN(a, role, (tma_send<T, Op>(b, a, i, n)), (p2p_send_each<T, Op>(c.x, a, role, i, n)))
	tma_done(b);
}

template <typename T, typename A> GPU_FN void p2p_copy_kernel(const A &a)
{
	GPU_SHARED(uint32_t, mailboxes, PROXY_MAILBOXES);
	TMA_SHARED(shared);
	struct shunt_role role;
	struct simple c;

	if (p2p_check_block(a) || proxy<2, SHUNT_TMA_CHANNELS>(a, mailboxes) ||
	    !simple_init(a, mailboxes, WHOLE_RING, WHOLE_RING, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND) {
		tma_send_role<T, struct op_copy>(a, role, c, TMA_WARP_SHARED(shared));
		return;
	}
	if (role.what == SHUNT_ROLE_RECV)
		EACH_RUN(a, role, simple_recv<T>(c, a, role.peer, i, n), p2p_recv_each<T>(c.x, a, role, i, n))
	else
		simple_copy<T>(c, a, role);
	simple_done(c);
}

template <typename T, typename Op, int N, typename A> GPU_FN void p2p_reduce_kernel(const A &a)
{
	GPU_SHARED(uint32_t, mailboxes, PROXY_MAILBOXES);
	TMA_SHARED(shared);
	struct shunt_role role;
	struct simple c;

	if (proxy<N, SHUNT_TMA_CHANNELS>(a, mailboxes) ||
	    !simple_init(a, mailboxes, REDUCE_AHEAD, REDUCE_AHEAD_BACKOFF, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND) {
		tma_send_role<T, Op>(a, role, c, TMA_WARP_SHARED(shared));
		return;
	}
	EACH_RUN(a, role, (simple_reduce<T, Op, N>(c, a, i, n)), (p2p_reduce_each<T, Op>(c.x, a, role, i, n)))
	simple_done(c);
}

SHUNT_HOT_ROWS(REDUCE2, tma2)
SHUNT_COPY_ROWS(COPY_FEW, tma)
SHUNT_COPY_ROWS(COPY_MANY, tma_many)

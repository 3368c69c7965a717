/* SPDX-License-Identifier: MIT */
/*
 * Exchanges between two ranks in chunks that are sent by bulk copies, and in lines where a message of the launch is
 * small: what chunks.cu does, with fewer SMs. Blocks were counted for the chunks here, so lines may have more channels
 * than a role has warps.
 */
#include "kernels/bulk.h"

/*
 * Before one statement about message m of a run in lines: for each message, and for each channel that the warp serves.
 * A message begins on all of them before the next one does: the other end may take it in a launch of its own, and give
 * no room for the next one before.
 */
#define EACH_MESSAGE(x, a, role, first, count, ok) \
	GPU_ROLL \
	for (uint32_t m = first, width = chunks_width<SHUNT_BULK_TURNS>(a, role), begin = (x).channel; \
	    (ok) && m < (first) + (count); m++, (x).channel = begin) \
		GPU_ROLL \
	for (; (ok) && (x).channel < (a).k.channels; (x).channel += width, gpu_warp_sync())

template <typename T, typename Op, typename A>
GPU_FN bool lines_send(struct xchg x, const A &a, const struct shunt_role &role, uint32_t i, uint32_t n)
{
	bool ok = true;

	EACH_MESSAGE(x, a, role, i, n, ok)
	ok = xchg_send<T, Op>(x, a, role.peer, m, 1);
	return ok;
}

template <typename T, typename A>
GPU_FN bool lines_take(struct xchg x, const A &a, const struct shunt_role &role, uint32_t i, uint32_t n)
{
	bool ok = true;

	EACH_MESSAGE(x, a, role, i, n, ok)
	ok = xchg_take<T>(x, a, role.peer, m, 1, 0);
	return ok;
}

template <typename T, typename Op, typename A>
GPU_FN bool lines_fold(struct xchg x, const A &a, const struct shunt_role &role, uint32_t i, uint32_t n)
{
	bool ok = true;

	EACH_MESSAGE(x, a, role, i, n, ok)
	ok = xchg_fold<T, Op, 2, 1>(x, a, m, 1);
	return ok;
}

template <typename T, typename Op, typename A>
GPU_FN void send(const A &a, const struct shunt_role &role, const struct chunks &c, char *slots, struct gpu_bar *bars)
{
	struct bulk b = bulk_init(a, role, c, slots, bars);

	EACH_RUN(a, role, (bulk_send<T, Op>(b, a, i, n)), (lines_send<T, Op>(c.x, a, role, i, n)))
	bulk_done(b);
}

template <typename T, typename A> GPU_FN void exchange_copy(const A &a)
{
	GPU_SHARED(uint32_t, posts, CHUNKS_POSTS);
	BULK_SHARED(shared);
	struct shunt_role role;
	struct chunks c;

	if (xchg_checks(a) || courier<2, SHUNT_BULK_TURNS>(a, posts) ||
	    !chunks_init(a, posts, WHOLE_RING, WHOLE_RING, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND) {
		send<T, struct op_copy>(a, role, c, BULK_OF_WARP(shared));
		return;
	}
	if (role.what == SHUNT_ROLE_TAKE)
		EACH_RUN(a, role, chunks_take<T>(c, a, role.peer, i, n), lines_take<T>(c.x, a, role, i, n))
	else
		chunks_copy<T>(c, a, role);
	chunks_done(c);
}

template <typename T, typename Op, int N, typename A> GPU_FN void exchange_fold(const A &a)
{
	GPU_SHARED(uint32_t, posts, CHUNKS_POSTS);
	BULK_SHARED(shared);
	struct shunt_role role;
	struct chunks c;

	if (courier<N, SHUNT_BULK_TURNS>(a, posts) || !chunks_init(a, posts, FOLD_AHEAD, FOLD_FAR, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND) {
		send<T, Op>(a, role, c, BULK_OF_WARP(shared));
		return;
	}
	EACH_RUN(a, role, (chunks_fold<T, Op, N>(c, a, i, n)), (lines_fold<T, Op>(c.x, a, role, i, n)))
	chunks_done(c);
}

SHUNT_HOT_ROWS(FOLD2, bulk2)
SHUNT_COPY_ROWS(COPY_FEW, bulk)
SHUNT_COPY_ROWS(COPY_MANY, bulk_many)

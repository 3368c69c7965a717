/* SPDX-License-Identifier: MIT */
/* Exchanges in chunks, and in lines where a message of the launch is small. */
#include "kernels/chunks.h"

/* Slots of a ring that a sender fills before the first is taken out again, and when couriers rest. More are in the way of what else a fold reads. */
#define FOLD_AHEAD 4u
#define FOLD_FAR 6u
#define WHOLE_RING UINT32_MAX

/* How many of the role's messages from i on travel in one way. */
template <typename A> GPU_FN uint32_t run_of(const A &a, const struct shunt_role &role, uint32_t i)
{
	uint32_t end = (uint32_t)role.first + role.count, next = i + 1;

	while (next < end && chunks_here(a, next) == chunks_here(a, i))
		next++;
	return next - i;
}

/* All messages of a role, run by run; the next run may read the counters that this one has left. Ends where one gave up. */
#define EACH_RUN(a, role, in_chunks, in_lines) \
	{ \
		GPU_ROLL \
		for (uint32_t i = (role).first, n; i < (uint32_t)(role).first + (role).count; i += n) { \
			n = run_of(a, role, i); \
			if (!(chunks_here(a, i) ? (in_chunks) : (in_lines))) \
				break; \
			gpu_warp_sync(); \
		} \
	}

/* The warp's role; false: it has none. */
template <typename A> GPU_FN bool chunks_init(const A &a, uint32_t *posts, uint32_t ahead, uint32_t far, struct shunt_role *role_p, struct chunks *c)
{
	uint32_t warp = gpu_tid() / 32, channel;

	if (!chunks_assign(a, warp, role_p, &channel))
		return false;
	c->x = xchg_init(a, channel);
	c->post = posts + warp;
	c->moved = 0;
	c->at = SHUNT_CHUNKS_AT(a.k.nranks);
	c->per_peer = SHUNT_CHUNKS_PER_PEER(a.k.nranks);
	c->ring = SHUNT_CHUNKS_RING(a.k.nranks);
	c->ahead = ahead < c->ring ? ahead : c->ring;
	c->far = a.k.nranks > COURIER_RESTS_AMONG ? c->ahead : far < c->ring ? far : c->ring;
	return true;
}

template <typename T, typename A> GPU_FN void exchange_copy(const A &a)
{
	GPU_SHARED(uint32_t, posts, SHUNT_MAX_THREADS / 32);
	struct shunt_role role;
	struct chunks c;

	if (xchg_checks(a) || courier<2>(a, posts) || !chunks_init(a, posts, WHOLE_RING, WHOLE_RING, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND)
		EACH_RUN(a, role, (chunks_send<T, struct op_copy>(c, a, role.peer, i, n)), (xchg_send<T, struct op_copy>(c.x, a, role.peer, i, n)))
	else if (role.what == SHUNT_ROLE_TAKE)
		EACH_RUN(a, role, chunks_take<T>(c, a, role.peer, i, n), xchg_take<T>(c.x, a, role.peer, i, n, 0))
	else
		chunks_copy<T>(c, a, role);
	if (gpu_lane() == 0)
		gpu_st_release_block32(c.post, c.moved | POST_DONE);
}

template <typename T, typename Op, int N, typename A> GPU_FN void exchange_fold(const A &a)
{
	GPU_SHARED(uint32_t, posts, SHUNT_MAX_THREADS / 32);
	struct shunt_role role;
	struct chunks c;

	if (courier<N>(a, posts) || !chunks_init(a, posts, FOLD_AHEAD, FOLD_FAR, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND)
		EACH_RUN(a, role, (chunks_send<T, Op>(c, a, role.peer, i, n)), (xchg_send<T, Op>(c.x, a, role.peer, i, n)))
	else
		EACH_RUN(a, role, (chunks_fold<T, Op, N>(c, a, i, n)), (xchg_fold<T, Op, N, 1>(c.x, a, i, n)))
	if (gpu_lane() == 0)
		gpu_st_release_block32(c.post, c.moved | POST_DONE);
}

SHUNT_COPY_ROWS(COPY_FEW, chunks8)
SHUNT_COPY_ROWS(COPY_MANY, chunks_many)
SHUNT_HOT_ROWS(FOLD2, chunks2)
SHUNT_HOT_ROWS(FOLD4, chunks4)
SHUNT_KERNEL_ROWS(FOLD8, chunks8)

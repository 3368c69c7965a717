/* SPDX-License-Identifier: MIT */
/* Exchanges in chunks, and in lines where a message of the launch is small. */
#include "kernels/chunks.h"

template <typename T, typename A> GPU_FN void exchange_copy(const A &a)
{
	GPU_SHARED(uint32_t, posts, CHUNKS_POSTS);
	struct shunt_role role;
	struct chunks c;

	if (xchg_checks(a) || (courier<2, 1>(a, posts)) || !chunks_init(a, posts, WHOLE_RING, WHOLE_RING, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND)
		EACH_RUN(a, role, (chunks_send<T, struct op_copy>(c, a, role.peer, i, n)),
		    (xchg_send<T, struct op_copy>(c.x, a, role.peer, i, n)))
	else if (role.what == SHUNT_ROLE_TAKE)
		EACH_RUN(a, role, chunks_take<T>(c, a, role.peer, i, n), xchg_take<T>(c.x, a, role.peer, i, n, 0))
	else
		chunks_copy<T>(c, a, role);
	chunks_done(c);
}

template <typename T, typename Op, int N, typename A> GPU_FN void exchange_fold(const A &a)
{
	GPU_SHARED(uint32_t, posts, CHUNKS_POSTS);
	struct shunt_role role;
	struct chunks c;

	if (courier<N, 1>(a, posts) || !chunks_init(a, posts, FOLD_AHEAD, FOLD_FAR, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND)
		EACH_RUN(
		    a, role, (chunks_send<T, Op>(c, a, role.peer, i, n)), (xchg_send<T, Op>(c.x, a, role.peer, i, n)))
	else
		EACH_RUN(a, role, (chunks_fold<T, Op, N>(c, a, i, n)), (xchg_fold<T, Op, N, 1>(c.x, a, i, n)))
	chunks_done(c);
}

SHUNT_COPY_ROWS(COPY_FEW, chunks8)
SHUNT_COPY_ROWS(COPY_MANY, chunks_many)
SHUNT_HOT_ROWS(FOLD2, chunks2)
SHUNT_HOT_ROWS(FOLD4, chunks4)
SHUNT_KERNEL_ROWS(FOLD8, chunks8)

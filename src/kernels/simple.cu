/* SPDX-License-Identifier: MIT */
/* The p2p engine in Simple, and in LL128 for the small messages of the launch. */
#include "kernels/simple.h"

template <typename T, typename A> GPU_FN void p2p_copy_kernel(const A &a)
{
	GPU_SHARED(uint32_t, mailboxes, PROXY_MAILBOXES);
	struct shunt_role role;
	struct simple c;

	if (p2p_check_block(a) || (proxy<2, 1>(a, mailboxes)) ||
	    !simple_init(a, mailboxes, WHOLE_RING, WHOLE_RING, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND)
		EACH_RUN(a, role, (simple_send<T, struct op_copy>(c, a, role.peer, i, n)),
		    (p2p_send<T, struct op_copy>(c.x, a, role.peer, i, n)))
	else if (role.what == SHUNT_ROLE_RECV)
		EACH_RUN(a, role, simple_recv<T>(c, a, role.peer, i, n), p2p_recv<T>(c.x, a, role.peer, i, n, 0))
	else
		simple_copy<T>(c, a, role);
	simple_done(c);
}

template <typename T, typename Op, int N, typename A> GPU_FN void p2p_reduce_kernel(const A &a)
{
	GPU_SHARED(uint32_t, mailboxes, PROXY_MAILBOXES);
	struct shunt_role role;
	struct simple c;

	if (proxy<N, 1>(a, mailboxes) || !simple_init(a, mailboxes, REDUCE_AHEAD, REDUCE_AHEAD_BACKOFF, &role, &c))
		return;
	if (role.what == SHUNT_ROLE_SEND)
		EACH_RUN(
		    a, role, (simple_send<T, Op>(c, a, role.peer, i, n)), (p2p_send<T, Op>(c.x, a, role.peer, i, n)))
	else
		EACH_RUN(a, role, (simple_reduce<T, Op, N>(c, a, i, n)), (p2p_reduce<T, Op, N, 1>(c.x, a, i, n)))
	simple_done(c);
}

SHUNT_COPY_ROWS(COPY_FEW, simple8)
SHUNT_COPY_ROWS(COPY_MANY, simple_many)
SHUNT_HOT_ROWS(REDUCE2, simple2)
SHUNT_HOT_ROWS(REDUCE4, simple4)
SHUNT_KERNEL_ROWS(REDUCE8, simple8)
SHUNT_FORMAT_ROWS(REDUCE8, simple8)

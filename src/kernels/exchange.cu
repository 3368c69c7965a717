/* SPDX-License-Identifier: MIT */
/* Exchanges in lines: all that a program's small calls need. */
#include "kernels/exchange.h"

/* The warp's role and channel; false: it has none. Warps of one channel stand side by side. */
template <typename A> GPU_FN bool assign(const A &a, struct shunt_role *role_p, uint32_t *channel_p)
{
	uint32_t warp = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32;

	*role_p = a.role[warp % a.k.roles];
	*channel_p = warp / a.k.roles;
	return *channel_p < role_p->channels;
}

template <typename T, typename A> GPU_FN void exchange_copy(const A &a)
{
	struct shunt_role role;
	uint32_t channel;

	if (xchg_checks(a) || !assign(a, &role, &channel))
		return;
	struct xchg x = xchg_init(a, channel);
	if (role.what == SHUNT_ROLE_SEND)
		xchg_send<T, struct op_copy>(x, a, role.peer, role.first, role.count);
	else if (role.what != SHUNT_ROLE_COPY)
		xchg_take<T>(x, a, role.peer, role.first, role.count,
		    role.what == SHUNT_ROLE_RELAY ? xchg_others(a, role.peer) : 0);
	else
		xchg_copy<T>(x, a, role);
}

/* Small messages wait for each instruction: no loops, and no division to find the role. */
template <typename T, typename A> GPU_FN void exchange_one(const A &a)
{
	uint32_t warp = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32, channel = xchg_turn(warp, a.k.per_role);
	struct shunt_role role = a.role[warp - channel * a.k.roles];

	if (xchg_checks(a) || channel >= role.channels)
		return;
	struct xchg x = xchg_init(a, channel);
	struct xchg_part p = xchg_part(a, role.first);
	if (role.what == SHUNT_ROLE_SEND)
		xchg_send_one<T>(x, a, role.peer, p);
	else if (role.what == SHUNT_ROLE_TAKE)
		xchg_take_one<T>(x, a, role.peer, p);
	else
		xchg_copy_batch<T>(x, p, channel);
}

template <typename T, typename Op, int N, typename A> GPU_FN void exchange_fold(const A &a)
{
	struct shunt_role role;
	uint32_t channel;

	if (!assign(a, &role, &channel))
		return;
	struct xchg x = xchg_init(a, channel);
	if (role.what == SHUNT_ROLE_SEND)
		xchg_send<T, Op>(x, a, role.peer, role.first, role.count);
	else
		xchg_fold<T, Op, N, N == 2 ? 4 : 3>(x, a, role.first, role.count);
}

SHUNT_COPY_ROWS(COPY_FEW, exchange8)
SHUNT_COPY_ROWS(COPY_MANY, exchange_many)
SHUNT_PACKS_ROW(COPY_ONE, exchange_one)
SHUNT_HOT_ROWS(FOLD2, exchange2)
SHUNT_HOT_ROWS(FOLD4, exchange4)

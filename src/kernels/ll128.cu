/* SPDX-License-Identifier: MIT */
/* The p2p engine in LL128, which is all that a program's small calls need. */
#include "kernels/p2p.h"

/* Role and channel of a warp; false: the warp has no role. Warps of one channel are adjacent. */
template <typename A> GPU_FN bool p2p_assign(const A &a, struct shunt_role *role_p, uint32_t *channel_p)
{
	uint32_t warp = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32;

	*role_p = a.role[warp % a.k.roles];
	*channel_p = warp / a.k.roles;
	return *channel_p < role_p->channels;
}

template <typename T, typename A> GPU_FN void p2p_copy_kernel(const A &a)
{
	struct shunt_role role;
	uint32_t channel;

	if (p2p_check_block(a) || !p2p_assign(a, &role, &channel))
		return;
	struct p2p x = p2p_init(a, channel);
	if (role.what == SHUNT_ROLE_SEND)
		p2p_send<T, struct op_copy>(x, a, role.peer, role.first, role.count);
	else if (role.what != SHUNT_ROLE_COPY)
		p2p_recv<T>(x, a, role.peer, role.first, role.count,
		    role.what == SHUNT_ROLE_FORWARD ? p2p_forward_ranks(a, role.peer) : 0);
	else
		p2p_copy<T>(x, a, role);
}

/* Small messages wait for each instruction: no loops, and no division to find the role. */
template <typename T, typename A> GPU_FN void ll128_one(const A &a)
{
	uint32_t warp = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32, channel = p2p_warp_channel(warp, a.k.per_role);
	struct shunt_role role = a.role[warp - channel * a.k.roles];

	if (p2p_check_block(a) || channel >= role.channels)
		return;
	struct p2p x = p2p_init(a, channel);
	struct p2p_message p = p2p_message(a, role.first);
	if (role.what == SHUNT_ROLE_SEND)
		p2p_send_one<T>(x, a, role.peer, p);
	else if (role.what == SHUNT_ROLE_RECV)
		p2p_recv_one<T>(x, a, role.peer, p);
	else
		p2p_copy_batch<T>(x, p, channel);
}

template <typename T, typename Op, int N, typename A> GPU_FN void p2p_reduce_kernel(const A &a)
{
	struct shunt_role role;
	uint32_t channel;

	if (!p2p_assign(a, &role, &channel))
		return;
	struct p2p x = p2p_init(a, channel);
	if (role.what == SHUNT_ROLE_SEND)
		p2p_send<T, Op>(x, a, role.peer, role.first, role.count);
	else
		p2p_reduce<T, Op, N, N == 2 ? 4 : 3>(x, a, role.first, role.count);
}

SHUNT_COPY_ROWS(COPY_FEW, ll128_8)
SHUNT_COPY_ROWS(COPY_MANY, ll128_many)
SHUNT_PACKS_ROW(COPY_ONE, ll128_one)
SHUNT_HOT_ROWS(REDUCE2, ll128_2)
SHUNT_HOT_ROWS(REDUCE4, ll128_4)

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The calls of one kind that were sent outside of graphs and are not received yet, as the host knows them. The device
 * keeps the same account (kernels/ep_calls.h), and graphs, which the host does not see, are in that one only: this one
 * is there to refuse a call at once.
 */
#include <stdbool.h>
#include <stdint.h>

struct shunt_ep_under_way {
	uint64_t sent; /* how many calls */
	struct {
		uint64_t key, number; /* key 0: free */
	} call[2];
	bool captured; /* graphs have calls of this kind */
};

/* False: a third call. */
bool shunt_ep_under_way_send(struct shunt_ep_under_way *u, uint64_t key);
/* False: no such call was sent. */
bool shunt_ep_under_way_receive(struct shunt_ep_under_way *u, uint64_t key);

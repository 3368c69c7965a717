/* SPDX-License-Identifier: MIT */
#include "comm/ep/under_way.h"

bool shunt_ep_under_way_send(struct shunt_ep_under_way *u, uint64_t key)
{
	uint64_t number = u->sent + 1;

	if (u->call[number & 1].key)
		return false;
	u->sent = number;
	u->call[number & 1].key = key;
	u->call[number & 1].number = number;
	return true;
}

bool shunt_ep_under_way_receive(struct shunt_ep_under_way *u, uint64_t key)
{
	int found = -1;

	for (int i = 0; i < 2; i++)
		if (u->call[i].key == key && (found < 0 || u->call[i].number < u->call[found].number))
			found = i;
	if (found < 0)
		return u->captured;
	u->call[found].key = 0;
	return true;
}

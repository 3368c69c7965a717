/* SPDX-License-Identifier: MIT */
#pragma once
/* The launches of low latency calls. */
#include "algos/ep/room.h"

/*
 * Checks a call and makes its launch. -EINVAL, -ENOSPC: with a text that names the value. Launches have a key, by which
 * the receive phase of a call finds its send phase.
 */
int shunt_ep_ll_dispatch_work(const struct shunt_ep_room *room, const struct shunt_ep_ll_dispatch *call,
    struct shunt_work *work, struct shunt_ep_why *why);
int shunt_ep_ll_combine_work(const struct shunt_ep_room *room, const struct shunt_ep_ll_combine *call,
    struct shunt_work *work, struct shunt_ep_why *why);

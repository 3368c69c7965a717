/* SPDX-License-Identifier: MIT */
#pragma once
/* The launches of calls of normal mode. */
#include "algos/ep/room.h"

/* Checks a call and makes its launch. -EINVAL, -ENOSPC: with a text that names the value. */
int shunt_ep_layout_work(const struct shunt_ep_room *room, const struct shunt_ep_layout *call, struct shunt_work *work,
    struct shunt_ep_why *why);
/* The launch has no place for counts yet. */
int shunt_ep_notify_work(const struct shunt_ep_room *room, const struct shunt_ep_notify *call, struct shunt_work *work,
    struct shunt_ep_why *why);
int shunt_ep_dispatch_work(const struct shunt_ep_room *room, const struct shunt_ep_dispatch *call,
    struct shunt_work *work, struct shunt_ep_why *why);
int shunt_ep_combine_work(const struct shunt_ep_room *room, const struct shunt_ep_combine *call,
    struct shunt_work *work, struct shunt_ep_why *why);

/* SPDX-License-Identifier: MIT */
#pragma once
#include "tools/common/netns/netns.h"

/* Carries Ethernet frames between TAPs for ever. The last byte of a host's MAC is its number + 1. */
_Noreturn void netns_wire_run(const int *taps, int nhosts, struct netns_link *links, unsigned seed);

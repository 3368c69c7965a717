/* SPDX-License-Identifier: MIT */
#pragma once
/* Questions to the selection: about buffers anywhere, and about buffers in windows. */
#include "algos/algo.h"

#define ONE_ISLAND &shunt_topology_one_island
#define SEL(key_) (&(const struct shunt_sel){ .key = (key_) })
#define SEL_WINDOW(key_) (&(const struct shunt_sel){ .key = (key_), .symmem = true, .no_sms = (key_)->no_sms })

/* SPDX-License-Identifier: MIT */
#pragma once
/* SHUNT_ALGO and shunt_algo_force(): rules that go before any table. */
#include "algos/algo.h"

/* True if a rule holds for this size; *algo_p is NULL if the rule says nccl. */
bool shunt_forced_find(
    enum shunt_kind kind, uint64_t bytes, const struct shunt_algo **algo_p, struct shunt_geometry *geometry_p);
/* Reads SHUNT_ALGO again if it was read: a plug-in has come whose name a rule may have. */
void shunt_forced_reread(void);
/* True: a rule of the text gives the real NCCL a collective that adds. */
bool shunt_forced_nccl_adds(const char *text);
/* True: a rule wants plans, or one of earlier did. */
bool shunt_forced_plans(void);
/* True: a rule gives Shunt calls whose data goes between any two ranks of islands, or one of earlier did. */
bool shunt_forced_pairs(void);
/* Calls add with the sizes at which a kind's rules begin and end, in any order. */
void shunt_forced_crossovers(enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx);
/* True: every rule of the text can be used. False: reason has one line about the first that cannot. */
bool shunt_forced_check(const char *text, char *reason, size_t bytes);

/* SPDX-License-Identifier: MIT */
#pragma once
/* Plans as JSON texts, made for the executor's tests; to be freed. n ranks. */

/* All-reduce in place by packets in two shots, `blocks` blocks; sums (redop "sum" ...). */
char *plan_twoshot(int n, int blocks, const char *redop);
/* All-gather: everyone loads the others' inputs, and nobody tells anybody anything. */
char *plan_get(int n);
/*
 * All-gather through single scratch, with a signal for data and one back for having read it; one block for each peer.
 */
char *plan_acks(int n);
/* All-reduce: switch load-reduce of a chunk to scratch, switch store of it. */
char *plan_switch(int n);
/* All-gather by port channels, in place or not, with flushes. */
char *plan_port(int n, int inplace);
/* All-gather of two ranks by packets, each of `chunks` chunks on its own. */
char *plan_long(int chunks);
/* All-reduce of one rank: input to scratch to output in windows, by two blocks and a semaphore. */
char *plan_windows(int window);
/* Custom, one rank: 3 chunks in, 2 out: the maximum and the product. */
char *plan_mixed(void);
/* Custom, one rank: the input to three chunks of output: a copy, that packed and unpacked, a copy of that; no nops. */
char *plan_packed(void);
/*
 * Reduce-scatter in place by plain loads: peers' chunks are read and summed into our own, which is all that is written.
 */
char *plan_scatter(int n);
/* All-reduce of two ranks in place: the input goes to plain scratch, and from there as packets to the other. */
char *plan_staged(void);
/*
 * All-reduce of two ranks in place: each loads the other's chunk and sums it into its own, and sends that back in
 * packets, over what it has loaded.
 */
char *plan_answers(void);
/*
 * In place, two ranks, by a buffer that is our part of another one, of which the plan says that it has no chunks: ranks
 * swap these parts.
 */
char *plan_parts(int scatter);

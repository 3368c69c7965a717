/* SPDX-License-Identifier: MIT */
#pragma once
/* Hooks for tests, in addition to shunt_gpu_sim_ops. Not exported by the library. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Any function as a kernel, which gets a copy of args. */
struct shunt_sim_launch {
	void (*fn)(const void *args);
	unsigned blocks, threads;
	const void *args;
	size_t arg_bytes;
};
/* Returns 0 or a negative errno, as shunt_gpu_ops.launch. */
int shunt_sim_launch_fn(int device, const struct shunt_sim_launch *launch, void *stream);
/* Blocks sleep for random times of at most max_us at their start, and now and then when they poll. max_us 0: never. */
void shunt_sim_set_jitter(unsigned seed, unsigned max_us);
/* waits: memory that peers can map is freed only when its device is idle, as with the CUDA driver; the caller waits. */
void shunt_sim_set_free_blocks(int waits);
/*
 * wait: copies by the host wait until the next call with 0, as they do while a call of the program that waits for
 * kernels holds the driver.
 */
void shunt_sim_set_copies_block(int wait);
/*
 * A gate in a stream: work that is enqueued after the gate begins when the gate is open. *gate is 0 at first, and lives
 * longer than the stream's work. Returns as shunt_sim_launch_fn().
 */
int shunt_sim_gate(int device, void *stream, const uint32_t *gate);
void shunt_sim_gate_open(uint32_t *gate);
/*
 * Waits until a kernel of the stream can go no further by itself: each of its blocks has ended, or all of the block's
 * threads poll in vain. False: the stream has come to its end. A kernel that gives up by its deadline ends the wait.
 */
bool shunt_sim_wait_stuck(int device, void *stream);
/* Makes what ThreadSanitizer keeps of n GPU threads, at most 2048, for forked children. Before the first kernel. */
void shunt_sim_make_fibers(unsigned n);
/* Reads the variables of device/sim/site.h, as the start of the program does. Only with -Dplanted_faults=true. */
void shunt_sim_sites_init(void);
/* Of a graph whose capture has ended, and of the graphs that it launches. */
struct shunt_sim_nodes {
	unsigned kernels;
	unsigned events; /* recorded, or waited for */
	unsigned others;
	unsigned blocks; /* of the widest kernel */
};
struct shunt_sim_nodes shunt_sim_graph_nodes(const void *graph);
/*
 * Bytes that kernels of a device have stored and loaded, word by word, behind posted links in memory of a device, or of
 * its rank's segment of the host's memory (SHUNT_SIM_LINKS). Data that they load plainly is not counted.
 */
struct shunt_sim_link_count {
	uint64_t stored, loaded;
};
struct shunt_sim_link_count shunt_sim_link_counts(int device, int owner);
/* Live streams, events, graphs and allocations of this process. */
size_t shunt_sim_live(void);
#ifdef __cplusplus
}
#endif

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A communicator's plug-ins: the set that its ranks agreed on in the set-up, and what each has on the device once it
 * was named. With the communicator's lock, unless a function says otherwise.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "device/gpu_ops.h"
#include "shunt/plugin.h"

struct shunt_comm;
struct shunt_algo;
struct shunt_kargs;
struct shunt_limits;
struct shunt_plugin_set;
struct shunt_plugin_use;

struct shunt_comm_plugin {
	struct shunt_gpu_function function; /* of its image; of the sim, its function */
	char why[160];                      /* not empty: its image cannot be loaded here */
	struct shunt_gpu_mem mem[SHUNT_MAX_RANKS];
	char *scratch;                                /* this rank's, for SHUNT_CHECK */
	struct shunt_plugin_fault *fault, *fault_dev; /* page-locked, and its address on the device */
	_Atomic uint64_t op;                          /* kargs.op of the last call */
	atomic_bool ready;
};

struct shunt_comm_plugins {
	struct shunt_plugin_set *set;       /* NULL: none */
	struct shunt_comm_plugin *state;    /* of each of the set */
	bool launched;                      /* one of them ran */
	struct shunt_plugin_watch *watches; /* calls that SHUNT_CHECK looks at (plugin_check.h) */
};

/* True: the row's plug-in has its memory on all ranks. Any thread, of a communicator that is ready. */
bool shunt_comm_plugin_ready(const struct shunt_comm *comm, const struct shunt_algo *row);
/*
 * Collective: makes the plug-in's memory. -EOPNOTSUPP: some rank cannot, and from now on the communicator does not use
 * it; another error breaks the communicator.
 */
int shunt_comm_plugin_prepare(struct shunt_comm *comm, const struct shunt_algo *row);

/* One call of a plug-in, complete except for the stream. */
struct shunt_plugin_run {
	const struct shunt_plugin *plugin;
	struct shunt_plugin_use *use;
	struct shunt_comm_plugin *state;
	struct shunt_plugin_call call;
	struct shunt_plugin_launch launch;
};
/* 0; or an error of the plug-in's geometry, which is the communicator's by then. */
int shunt_comm_plugin_run_init(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_algo *row,
    const struct shunt_limits *limits, const struct shunt_kargs *base, bool captured, struct shunt_plugin_run *run);

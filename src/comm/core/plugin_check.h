/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * SHUNT_CHECK of plug-ins. With the communicator's lock. Not for captured calls.
 *
 * | value | what each call of a plug-in comes with |
 * |---|---|
 * | 1 | guards before and behind its scratch, and an output of our own between guards, which is copied into the call's
 * | | 2 | the same call by an algorithm of Shunt's before it, to be compared |
 *
 * The host looks at a call when it has ended: at the next call of the communicator, or at its end.
 */
#include <stdbool.h>
#include <stdint.h>
#include "base/coll.h"

struct shunt_comm;
struct shunt_enqueue_ctx;
struct shunt_plugin_use;
struct shunt_plugin_watch;

#define SHUNT_PLUGIN_GUARD 4096u
#define SHUNT_PLUGIN_PATTERN 0xa5

/* Writes the guards around memory [at, at + bytes) of the device. 0 or -errno. */
int shunt_plugin_guard(struct shunt_comm *comm, char *at, uint64_t bytes);
/*
 * Before a plug-in's launch: *staged_p is the call that the plug-in is to do in place of coll, and *watch_p is for what
 * follows.
 */
int shunt_plugin_watch_begin(const struct shunt_enqueue_ctx *enqueue, struct shunt_comm *comm, void *stream,
    const struct shunt_plugin_use *use, const struct shunt_coll *coll, struct shunt_coll *staged_p,
    struct shunt_plugin_watch **watch_p);
/* After it. watch: NULL is allowed. */
int shunt_plugin_watch_launched(struct shunt_comm *comm, void *stream, struct shunt_plugin_watch *watch);
/*
 * Waits for the calls that are watched, and looks at what they did. An error is the communicator's by then. A kernel
 * that does not end after its limit is an error, too.
 */
int shunt_plugin_watches_look(struct shunt_comm *comm);
/* After the last kernel. */
void shunt_plugin_watches_finish(struct shunt_comm *comm);

/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Users' own kernels as algorithms (shunt/plugin.h): the process's plug-ins, and their rows. A row belongs to a name
 * and a kind, and stays for ever, since decisions and counters refer to it; whether a communicator has such a plug-in
 * is asked where a call is decided. Any thread.
 */
#include <stdatomic.h>
#include "algos/algo.h"
#include "base/callback.h"
#include "shunt/plugin.h"

struct shunt_plugin_entry {
	struct shunt_plugin plugin;      /* its pointers are to copies */
	struct shunt_callback functions; /* entered where one of the plug-in's functions is called */
	uint32_t kinds;                  /* bits */
	uint64_t hash;                   /* of all that ranks must have alike */
	atomic_uint refs;
	bool counted;                    /* in its rows */
	struct shunt_plugin_entry *next; /* in the registry */
};

/* The plug-ins of a communicator, by name. refused: not to be used any more, alike on all ranks. */
struct shunt_plugin_set {
	size_t n;
	uint64_t hash; /* of all; 0: none */
	struct shunt_plugin_use {
		struct shunt_plugin_entry *entry;
		atomic_bool refused;
	} use[];
};

struct shunt_plugin_entry *shunt_plugin_ref(struct shunt_plugin_entry *entry);
/* The last one calls the plug-in's drop. */
void shunt_plugin_unref(struct shunt_plugin_entry *entry);
/* The same for a `void *` from a thread that must not run it: the next one that may does. */
void shunt_plugin_unref_later(void *entry);
/*
 * What is wrong with an image, as far as its heads tell, or NULL. CUDA is not told how long it is, and reads what they
 * say. Of the bytes it reads those that there are.
 */
const char *shunt_plugin_image_fault(const void *image, uint64_t bytes);
/* shunt_plugin_register without what follows for selection. file_hash: of the file that it is from, or 0. */
int shunt_plugin_add(const struct shunt_plugin *plugin, uint64_t file_hash, char *why, size_t bytes);
int shunt_plugin_remove(const char *name);
/* The same for a plug-in that was only just added: its drop is not called. */
void shunt_plugin_forget(const char *name);
/* Adds the plug-ins of a file. 0, or as shunt_plugin_load. */
int shunt_plugin_load_file(const char *path, char *why, size_t bytes);
/* Those of SHUNT_PLUGINS, once. */
void shunt_plugin_files_load(void);
/* The plug-ins that are registered now; NULL: none, or no memory (logged). */
struct shunt_plugin_set *shunt_plugin_set_get(void);
void shunt_plugin_set_free(struct shunt_plugin_set *set); /* NULL is allowed */
/* Of the name of a row of a plug-in, or NULL. */
struct shunt_plugin_use *shunt_plugin_set_find(const struct shunt_plugin_set *set, const char *name);
/* Each rank's part of the round that finds out which plug-in differs. */
struct shunt_plugin_summary {
	uint32_t n;
	struct {
		char name[32];
		uint64_t hash;
	} row[16];
};
void shunt_plugin_set_summary(const struct shunt_plugin_set *set, struct shunt_plugin_summary *summary);
void shunt_plugin_summaries_differ(const struct shunt_plugin_summary *all, int n, char *text, size_t bytes);

/*
 * The row of a plug-in that has this kind, or NULL. Registered, or kept by a communicator or graph: rules and selectors
 * go on to name it for these, as on ranks that unregister it later.
 */
const struct shunt_algo *shunt_plugin_row(enum shunt_kind kind, const char *name);
/* The same, also if no plug-in has this name now; NULL: it cannot be a plug-in's name, or no memory. */
const struct shunt_algo *shunt_plugin_row_of_any(enum shunt_kind kind, const char *name);
/* Row i of the plug-ins that are registered, or NULL. */
const struct shunt_algo *shunt_plugin_row_at(size_t i);
/*
 * True: the communicator has the plug-in, and it takes the call. Before the set-up: this process has it. Calls the
 * plug-in's `supports`.
 */
bool shunt_plugin_fits(const struct shunt_sel_key *key, const struct shunt_coll *coll, const struct shunt_algo *row);
void shunt_plugin_request_init(const struct shunt_sel_key *key, const struct shunt_coll *coll,
    const struct shunt_limits *limits, struct shunt_plugin_request *request);

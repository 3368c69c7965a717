/* SPDX-License-Identifier: MIT */
#pragma once
/* Standalone: communicators as the program names them. */
#include "shim/handles/handles.h"

/*
 * A communicator that can be used, with a reference. NULL and *result_p: InvalidArgument, or the communicator's error.
 * what: the caller's name, for the log.
 */
struct shunt_entry *shunt_standalone_find(ncclComm_t comm, const char *what, ncclResult_t *result_p);
/* Logs that the communicator is not this process's, but its parent's (shunt_entry_is_ours), and returns as refuse. */
ncclResult_t shunt_standalone_refuse_parents(const char *what);
/*
 * Success: the communicator exists, in whatever state, and is this process's. Takes no lock, so an allocator's callback
 * may call it.
 */
ncclResult_t shunt_standalone_check(ncclComm_t comm, const char *what);

/* Logs, and returns InvalidArgument; it is the error of an open group, too. */
ncclResult_t shunt_standalone_refuse(const char *what, const char *reason);
/* A new entry, with the struct that its handle points to. NULL: logged. */
struct shunt_entry *shunt_standalone_new(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config);

static inline ncclComm_t shunt_standalone_handle(const struct shunt_entry *entry)
{
	return (ncclComm_t)entry->scomm;
}

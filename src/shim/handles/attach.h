/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_HANDLES_ATTACH_H
#define SHUNT_SHIM_HANDLES_ATTACH_H
/* Connects a communicator of NCCL's ABI with a struct shunt_comm. */
#include "shim/handles/handles.h"

/* Creates an entry that is not published, with the configuration's limits. NULL: no memory, or no socket. */
struct shunt_entry *shunt_attach(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config);
#endif

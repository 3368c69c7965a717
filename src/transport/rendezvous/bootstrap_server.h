/* SPDX-License-Identifier: MIT */
#pragma once
#include "transport/rendezvous/wire/wire.h"

/* Starts the thread of an id's server, which owns listen_fd from then on, also on an error. 0 or -errno. */
int rdzv_server_start(const struct rdzv_unique_id *id, int listen_fd);

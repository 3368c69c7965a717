/* SPDX-License-Identifier: MIT */
#pragma once
/* What a communicator over hosts tells its proxy. On one host these do nothing. */
#include "comm/comm.h"

/* A kernel is about to be launched. */
void shunt_comm_net_wake(struct shunt_comm *comm);
/* Tells the peers that this rank has given up, because of this rank, or (-1) since it was aborted. Any thread. */
void shunt_comm_net_abort(struct shunt_comm *comm, int because_of);
/* Tells them that the process of a rank of this host is dead. */
void shunt_comm_net_died(struct shunt_comm *comm, int rank);

/* SPDX-License-Identifier: MIT */
#pragma once
/* The agreement of the ranks, from their hellos: every rank comes to the same selection key. */

struct shunt_comm;
struct shunt_hello;

/* Fills in the selection key. Rank 0 logs what the user asked for and some rank cannot have. */
void shunt_comm_agree(struct shunt_comm *comm, const struct shunt_hello *hellos);
/* To be called once the links are agreed on: the selection key has what follows from them. */
void shunt_comm_agree_on_link(struct shunt_comm *comm, const struct shunt_hello *hellos);

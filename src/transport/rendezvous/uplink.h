/* SPDX-License-Identifier: MIT */
#pragma once
/* The second level of a rendezvous over several hosts. */
#include <stdatomic.h>
#include <stddef.h>
#include "transport/rendezvous/object.h"

/*
 * The root of a host joins the roots of the other hosts. *cancel, and errors, are those of a join; text gets the
 * reason.
 */
int rdzv_uplink_join(struct shunt_rendezvous *uplink, const atomic_int *cancel, char *text, size_t bytes);

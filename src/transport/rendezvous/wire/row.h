/* SPDX-License-Identifier: MIT */
#pragma once
/* Data of messages that callers see, too. */
#include <stdint.h>
#include "base/hash.h"

/* The data about each rank that all ranks have after a join. */
struct shunt_rendezvous_row {
	uint8_t host[SHUNT_HOST_BYTES]; /* equal for ranks of one host; keyed with the rendezvous's secret */
	int32_t member;
	uint32_t pid;    /* as the rank sees it */
	uint32_t caller; /* random, of this join; 0: the row is not of a hello */
	uint32_t zero;
};

#define SHUNT_RENDEZVOUS_MAX_RANKS 128 /* so that all descriptors of a round fit one message */
#define SHUNT_BOOTSTRAP_ID_BYTES 128   /* of a unique id */

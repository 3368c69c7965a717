/* SPDX-License-Identifier: MIT */
#pragma once
/* Text of tuning files for one machine. */
#include "algos/select/tuning.h"
#include "shunt/shunt.h"

/* The machine that the files are for. */
static const struct shunt_machine tuning_h200 = { .gpu = "NVIDIA H200", .cc = 90, .driver = 13000, .nranks = 4 };

#define TUNING_HEAD "{\"shunt_tuning\": 1, \"shunt\": \"" SHUNT_VERSION "\", \"nccl\": \"2.28.9\", "
#define TUNING_MACHINE "\"machine\": {\"gpu\": \"NVIDIA H200\", \"cc\": 90, \"driver\": 13000, \"ranks\": 4}, "
#define TUNING_ROWS \
	"\"rows\": [" \
	"{\"kind\": \"allreduce\", \"upto\": 2048, \"algorithm\": \"oneshot\", \"blocks\": 8, \"threads\": 128}, " \
	"{\"kind\": \"allreduce\", \"upto\": 4096, \"algorithm\": \"twoshot\", \"nccl\": true}, " \
	"{\"kind\": \"allreduce\", \"upto\": 1048576, \"algorithm\": \"twoshot\", \"blocks\": 64, \"threads\": 512}, " \
	"{\"kind\": \"allgather\", \"algorithm\": \"ll128\", \"blocks\": 32, \"threads\": 256, \"channels\": 16}]}"
static const char tuning_good[] = TUNING_HEAD TUNING_MACHINE TUNING_ROWS;

#define TUNING_OVER_HOSTS \
	"\"machine\": {\"gpu\": \"NVIDIA H200\", \"cc\": 90, \"driver\": 13000, \"ranks\": 4, \"hosts\": 2, \"net\": " \
	"\"tcp\", \"nvls\": false}, "
static const char tuning_over_hosts[] = TUNING_HEAD TUNING_OVER_HOSTS
    "\"rows\": [{\"kind\": \"allreduce\", \"upto\": 4096, \"algorithm\": \"hierarchical\"}, "
    "{\"kind\": \"broadcast\", \"upto\": 4096, \"algorithm\": \"hierarchical\"}, "
    "{\"kind\": \"allgather\", \"upto\": 67108864, \"algorithm\": \"hierarchical\"}]}";

/* A test fails if the text is refused. To be freed with shunt_tuning_free(). */
struct shunt_tuning *tuning_parsed(const char *text);

/* tuning_good with one place replaced. To be freed. */
char *tuning_edited(const char *from, const char *to);

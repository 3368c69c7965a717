/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What a profiler plug-in of NCCL exports, and what it is told. One description of an event serves the versions 4 to 7:
 * a version only adds members, at the end of the structures inside the union. Version 4 has one byte for the type; its
 * types fit, and the byte is the word's lowest. Its Coll and P2p have a Group as their parent, those of later versions
 * a CollApi or P2pApi.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum profiler_event {
	PROFILER_GROUP = 1 << 0,
	PROFILER_COLL = 1 << 1,
	PROFILER_P2P = 1 << 2,
	PROFILER_PROXY_OP = 1 << 3, /* Shunt has none of these three; their parents are told */
	PROFILER_PROXY_STEP = 1 << 4,
	PROFILER_KERNEL_CH = 1 << 6,
	PROFILER_NET_PLUGIN = 1 << 7,
	PROFILER_GROUP_API = 1 << 8, /* since version 5 */
	PROFILER_COLL_API = 1 << 9,
	PROFILER_P2P_API = 1 << 10,
	PROFILER_KERNEL_LAUNCH = 1 << 11,
	PROFILER_CE_COLL = 1 << 12, /* since version 6 */
	PROFILER_CE_SYNC = 1 << 13,
	PROFILER_CE_BATCH = 1 << 14,
};

enum profiler_state { PROFILER_KERNEL_STOP = 22, PROFILER_GROUP_START_STOP = 23, PROFILER_GROUP_END_START = 24 };

struct profiler_descr {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			bool captured;
			int depth;
		} group_api;
		struct {
			const char *func;
			size_t count;
			const char *dtype;
			int root;
			void *stream;
			bool captured;
			uint64_t tag; /* since version 7, as all that is called tag */
		} coll_api;
		struct {
			const char *func;
			size_t count;
			const char *dtype;
			void *stream;
			bool captured;
			uint64_t tag;
		} p2p_api;
		struct {
			void *stream;
		} kernel_launch;
		struct {
			uint64_t seq;
			const char *func;
			const void *send;
			void *recv;
			size_t count;
			int root;
			const char *dtype;
			uint8_t channels, warps;
			const char *algo, *proto;
			void *group;         /* since version 5 */
			const char *variant; /* since version 7 */
			bool symmetric;
			uint64_t tag;
		} coll;
		struct {
			const char *func;
			void *buffer;
			const char *dtype;
			size_t count;
			int peer;
			uint8_t channels;
			void *group; /* since version 5 */
			uint64_t tag;
		} p2p;
		struct {
			uint8_t channel;
			uint64_t timer; /* ns of the device's clock */
		} kernel_ch;
		struct {
			uint64_t seq;
			const char *func;
			const void *send;
			void *recv;
			size_t count;
			int root;
			const char *dtype, *sync;
			bool intra_batch_sync;
			uint32_t batch_size, batches, number;
			void *stream;
			uint64_t tag;
		} ce_coll;
	};
};

union profiler_state_args {
	struct {
		uint64_t timer;
	} kernel_ch;
	char room[16];
};

/* ncclDebugLogLevel is an enum: an int. */
typedef void profiler_log(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);

struct profiler_plugin {
	const char *name;
	union {
		int (*v4)(void **context, int *mask, const char *comm_name, uint64_t id, int nnodes, int nranks,
		    int rank, profiler_log *log);
		int (*v5)(void **context, uint64_t id, int *mask, const char *comm_name, int nnodes, int nranks,
		    int rank, profiler_log *log);
	} init;
	int (*start)(void *context, void **handle, struct profiler_descr *descr);
	int (*stop)(void *handle);
	int (*record_state)(void *handle, int state, union profiler_state_args *args);
	int (*finalize)(void *context);
};

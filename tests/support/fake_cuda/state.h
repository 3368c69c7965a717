/* SPDX-License-Identifier: MIT */
#pragma once
/* What the files of the fake driver share: what its calls hand out, the state of threads, and how a call begins. */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/cuda/cuda_abi.h"
#include "tests/support/fake_cuda/fake_cuda.h"

#define API __attribute__((visibility("default")))

/* Declared by the library's own list, so that a call with other parameters does not compile. */
#define PROTOTYPE(name, version, params) API int cu##name##version params;
SHUNT_CU_CALLS(PROTOTYPE)
SHUNT_CU_CALLS_OPTIONAL(PROTOTYPE)

enum fake_kind {
	DEVICE_MEM,
	HOST_MEM,
	HOST_PAGES,
	HANDLE,
	RANGE,
	STREAM,
	EVENT,
	GRAPH,
	EXEC,
	LIBRARY,
	USER_OBJECT,
	NKINDS
};
enum { MAX_EDGES = 16, MAX_KEPT = 4 };

struct work {
	void *dst;
	const void *src; /* NULL: memset */
	int value;
	size_t bytes;
	struct work *next;
};

/* Everything that a call hands out. */
struct fake_object {
	enum fake_kind kind;
	int device;
	uintptr_t addr;
	size_t bytes;
	int fd;
	bool mapped;
	int handle_types;
	unsigned access; /* bit per device */
	bool capturing;
	unsigned long long capture;
	uintptr_t tip; /* nodes are numbers, odd ones */
	struct {
		uintptr_t from, to;
	} edges[MAX_EDGES]; /* those that were added by hand */
	struct fake_object *retained[MAX_KEPT];
	void (*drop_object)(void *);
	void *arg;
	long refs;
	struct work *work;
	bool recorded;
	const char *data;
	struct fake_object *next;
};

extern pthread_mutex_t fake_lock;
extern struct fake_object *fake_objects;
extern __thread int fake_thread_mode; /* 0: global */
extern __thread int fake_captures;

/* Counts a call; true: it is the one that shall fail. */
bool fake_fails_now(const char *name);
#define ENTER() \
	do { \
		if (fake_fails_now(__func__)) \
			return fake_cuda.fail_with; \
	} while (0)
#define ENTER_CLEANUP() \
	do { \
		if (fake_cuda.fail_cleanup && fake_fails_now(__func__)) \
			return fake_cuda.fail_with; \
	} while (0)
/* Calls that the driver refuses while this thread captures, unless the thread asked to be left alone. */
#define UNSAFE() \
	do { \
		if (fake_captures && fake_thread_mode != SHUNT_CU_CAPTURE_MODE_RELAXED) \
			return SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED; \
	} while (0)

/* -1: no context is current. */
int fake_device(void);
#define NEED_CONTEXT() \
	do { \
		if (fake_device() < 0) \
			return SHUNT_CU_INVALID_CONTEXT; \
	} while (0)

/* addr 0: the object's own. */
struct fake_object *fake_object_add(enum fake_kind kind, uintptr_t addr, size_t bytes);
struct fake_object *fake_object_find(enum fake_kind kind, uintptr_t addr);
int fake_object_drop(enum fake_kind kind, uintptr_t addr);
void fake_work_drop(struct fake_object *o);
void fake_object_release(struct fake_object *u, long count);
void fake_retained_drop(struct fake_object *o);

/* *o_p: the stream if it captures, else NULL. The default stream is allowed. */
int fake_work_enqueue(void *stream, struct fake_object **o_p);

/* SPDX-License-Identifier: MIT */
/*
 * A library that shunt bench takes for libshunt.so: "devices" whose memory is malloc's, streams that run at once, and an all-reduce
 * of 32-bit floats and integers (sum) through a file in /dev/shm. MOCK_FAULT makes rank 1 misbehave from 1024 bytes on: die, hang, wrong (one
 * element), beyond (writes behind the result), input (writes to the input), fail (an error code).
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>
#include "shim/nccl_abi.h"
#include "shunt/device.h"
#include "shunt/shunt.h"

#define EXPORT __attribute__((visibility("default")))
enum { MAX_BYTES = 1 << 20, MAX_RANKS = 8, MAX_CALLS = 64 };

struct room {
	atomic_int joined, arrived, generation;
	char data[MAX_RANKS][MAX_BYTES];
};

struct ncclComm {
	int rank, nranks;
	struct room *room;
};

struct job {
	const void *send;
	void *recv;
	size_t count;
	ncclDataType_t dtype;
	ncclComm_t comm;
};

struct stream {
	struct graph *capturing;
};

struct graph {
	int n;
	struct job job[MAX_CALLS];
};

static void wait_all(ncclComm_t c)
{
	int generation = atomic_load(&c->room->generation);

	if (atomic_fetch_add(&c->room->arrived, 1) + 1 == c->nranks) {
		atomic_store(&c->room->arrived, 0);
		atomic_store(&c->room->generation, generation + 1);
	}
	while (atomic_load(&c->room->generation) == generation)
		sched_yield();
}

static void misbehave(const struct job *j, size_t bytes)
{
	const char *fault = getenv("MOCK_FAULT");

	if (!fault || j->comm->rank != 1 || bytes < 1024)
		return;
	if (!strcmp(fault, "die"))
		raise(SIGSEGV);
	while (!strcmp(fault, "hang"))
		sleep(1);
	if (!strcmp(fault, "wrong"))
		((unsigned *)j->recv)[bytes / 8]++;
	if (!strcmp(fault, "beyond"))
		((char *)j->recv)[bytes + 3] = 0;
	if (!strcmp(fault, "input") && j->send != j->recv)
		((unsigned *)j->send)[7]++;
}

static void job_run(const struct job *j)
{
	struct room *room = j->comm->room;
	size_t bytes = j->count * 4;

	memcpy(room->data[j->comm->rank], j->send, bytes);
	wait_all(j->comm);
	for (size_t i = 0; i < j->count; i++) {
		if (j->dtype == ncclFloat32) {
			float sum = 0;

			for (int r = 0; r < j->comm->nranks; r++)
				sum += ((float *)room->data[r])[i];
			((float *)j->recv)[i] = sum;
		} else {
			unsigned sum = 0;

			for (int r = 0; r < j->comm->nranks; r++)
				sum += ((unsigned *)room->data[r])[i];
			((unsigned *)j->recv)[i] = sum;
		}
	}
	wait_all(j->comm);
	misbehave(j, bytes);
}

EXPORT ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
	cudaStream_t stream)
{
	struct job job = { send, recv, count, dtype, comm };
	struct stream *s = stream;
	const char *fault = getenv("MOCK_FAULT");

	if (op != ncclSum || (dtype != ncclFloat32 && dtype != ncclInt32 && dtype != ncclUint32) || count > MAX_BYTES / 4)
		return ncclInvalidArgument;
	if (fault && !strcmp(fault, "fail") && comm->rank == 1 && count >= 256)
		return ncclSystemError;
	if (s->capturing) {
		if (s->capturing->n == MAX_CALLS)
			return ncclInternalError;
		s->capturing->job[s->capturing->n++] = job;
	} else {
		job_run(&job);
	}
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGetVersion(int *version)
{
	*version = 22809;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	unsigned long long number;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return ncclSystemError;
	memset(id, 0, sizeof(*id));
	snprintf(id->internal, sizeof(id->internal), "/dev/shm/shunt-mock-%llx", number);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm_p, int nranks, ncclUniqueId id, int rank)
{
	ncclComm_t c = calloc(1, sizeof(*c));
	int fd = open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (!c || fd < 0 || nranks > MAX_RANKS || ftruncate(fd, sizeof(struct room)))
		return ncclSystemError;
	c->rank = rank;
	c->nranks = nranks;
	c->room = mmap(NULL, sizeof(struct room), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (c->room == MAP_FAILED)
		return ncclSystemError;
	wait_all(c);
	if (!rank)
		unlink(id.internal);
	*comm_p = c;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	munmap(comm->room, sizeof(struct room));
	free(comm);
	return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
	return result ? "mock error" : "no error";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
	return "because it was told to";
}

EXPORT const char *shunt_version(void)
{
	return "mock";
}

EXPORT const char *shunt_real_nccl_path(void)
{
	return NULL;
}

EXPORT int shunt_counters(const void *comm, struct shunt_counter *rows, size_t cap, size_t *count_p)
{
	rows[0] = (struct shunt_counter){ "allreduce", "mock", "", 7, 1234 };
	*count_p = 1;
	return 0;
}

EXPORT int shunt_path_of(const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p)
{
	*path_p = count < 256 ? "small" : "large";
	return 0;
}

EXPORT const char *shunt_device_kind(void)
{
	return "sim";
}

EXPORT int shunt_device_name(int device, char *name, size_t bytes)
{
	snprintf(name, bytes, "mock device");
	return 0;
}

EXPORT int shunt_device_count(int *count_p)
{
	*count_p = MAX_RANKS;
	return 0;
}

EXPORT int shunt_device_set(int device)
{
	return device < MAX_RANKS ? 0 : -ENODEV;
}

EXPORT int shunt_stream_create(void **stream_p)
{
	*stream_p = calloc(1, sizeof(struct stream));
	return *stream_p ? 0 : -ENOMEM;
}

EXPORT int shunt_stream_synchronize(void *stream)
{
	return 0;
}

EXPORT int shunt_stream_destroy(void *stream)
{
	free(stream);
	return 0;
}

EXPORT int shunt_malloc(void **ptr_p, size_t bytes)
{
	*ptr_p = malloc(bytes);
	return *ptr_p ? 0 : -ENOMEM;
}

EXPORT int shunt_free(void *ptr)
{
	free(ptr);
	return 0;
}

EXPORT int shunt_memcpy(void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
	return 0;
}

EXPORT int shunt_memset_async(void *dst, int value, size_t bytes, void *stream)
{
	memset(dst, value, bytes);
	return 0;
}

EXPORT int shunt_mem_info(size_t *free_p, size_t *total_p)
{
	*free_p = *total_p = 0;
	return 0;
}

EXPORT int shunt_capture_begin(void *stream)
{
	struct stream *s = stream;

	s->capturing = calloc(1, sizeof(*s->capturing));
	return s->capturing ? 0 : -ENOMEM;
}

EXPORT int shunt_capture_end(void *stream, void **graph_p)
{
	struct stream *s = stream;

	*graph_p = s->capturing;
	s->capturing = NULL;
	return 0;
}

EXPORT int shunt_graph_launch(void *graph, void *stream)
{
	const struct graph *g = graph;

	for (int i = 0; i < g->n; i++)
		job_run(&g->job[i]);
	return 0;
}

EXPORT int shunt_graph_destroy(void *graph)
{
	free(graph);
	return 0;
}

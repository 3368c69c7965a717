/* SPDX-License-Identifier: MIT */
/* The mock library: communicators, the memory and the windows that go with them. */
#include "tests/tools/mock.h"
#include <stdalign.h>
#include <sys/random.h>
#include "tests/support/stub.h"
#include "tools/common/libc.h"

EXPORT ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return ncclInvalidArgument;
	*version = 22809;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	unsigned long long value_get;

	if (!id)
		return ncclInvalidArgument;
	if (getrandom(&value_get, sizeof(value_get), 0) != sizeof(value_get))
		return ncclSystemError;
	memset(id, 0, sizeof(*id));
	snprintf(id->internal, sizeof(id->internal), "/dev/shm/shunt-mock-%llx", value_get);
	return ncclSuccess;
}

static void split_votes_count(struct comm_init *b)
{
	ncclComm_t parent = b->parent;
	int votes[MAX_RANKS][2];

	for (int r = 0; r < parent->nranks; r++)
		mock_fifo_get(parent, COLL_CHANNEL, r, votes[r], sizeof(votes[r]));
	for (int r = 0; r < parent->nranks; r++) {
		bool tie =
		    votes[r][1] == b->key && (strcmp(mock_fault(), "ties") ? r < parent->rank : r > parent->rank);

		b->nranks += votes[r][0] == b->color;
		b->rank += votes[r][0] == b->color && (votes[r][1] < b->key || tie);
	}
}

static ncclResult_t comm_join(struct comm_init *b)
{
	ncclComm_t c = calloc(1, sizeof(*c));
	int fd = open(b->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (!c || fd < 0 || b->nranks > MAX_RANKS || ftruncate(fd, sizeof(struct comm_shm)))
		return ncclSystemError;
	snprintf(c->name, sizeof(c->name), "%.199s", b->name);
	c->rank = b->rank;
	c->nranks = b->nranks;
	c->device = b->device;
	c->async = b->async;
	c->shm = mmap(NULL, sizeof(struct comm_shm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	close(fd);
	if (c->shm == MAP_FAILED)
		return ncclSystemError;
	b->comm = c;
	return ncclSuccess;
}

ncclResult_t mock_comm_inits_run(struct comm_inits *comm_inits)
{
	ncclResult_t result = ncclSuccess;
	char byte = 0;

	for (size_t i = 0; i < comm_inits->n; i++)
		for (int r = 0; comm_inits->v[i].parent && r < comm_inits->v[i].parent->nranks; r++)
			mock_fifo_put(comm_inits->v[i].parent, COLL_CHANNEL, r,
			    (int[]){ comm_inits->v[i].color, comm_inits->v[i].key }, 2 * sizeof(int));
	for (size_t i = 0; i < comm_inits->n; i++)
		if (comm_inits->v[i].parent)
			split_votes_count(&comm_inits->v[i]);
	for (size_t i = 0; i < comm_inits->n; i++)
		if (comm_inits->v[i].color != NCCL_SPLIT_NOCOLOR && comm_join(&comm_inits->v[i]))
			return ncclSystemError;
	for (size_t i = 0; i < comm_inits->n; i++)
		for (int r = 0; comm_inits->v[i].comm && r < comm_inits->v[i].nranks; r++)
			mock_fifo_put(comm_inits->v[i].comm, COLL_CHANNEL, r, &byte, 1);
	for (size_t i = 0; i < comm_inits->n; i++) {
		struct comm_init *b = &comm_inits->v[i];

		for (int r = 0; b->comm && r < b->nranks; r++)
			mock_fifo_get(b->comm, COLL_CHANNEL, r, &byte, 1);
		if (b->comm && !b->rank)
			unlink(b->name);
		*b->comm_p = b->comm;
		if (b->comm && mock_in_progress(b->comm))
			result = ncclInProgress;
		if (b->parent && mock_in_progress(b->parent))
			result = ncclInProgress;
	}
	return result;
}

static ncclResult_t comm_init_add(const struct comm_init *b)
{
	struct comm_init only = *b;

	if (!mock_group.depth)
		return mock_comm_inits_run(&(struct comm_inits){ &only, 1 });
	mock_group.comm_inits.v = realloc(mock_group.comm_inits.v, (mock_group.comm_inits.n + 1) * sizeof(*b));
	mock_group.comm_inits.v[mock_group.comm_inits.n++] = *b;
	return ncclSuccess;
}

static struct comm_init comm_init_of_id(ncclComm_t *comm_p, int nranks, const ncclUniqueId *id, int rank)
{
	struct comm_init b = { .comm_p = comm_p, .rank = rank, .nranks = nranks, .device = mock_current_device };

	snprintf(b.name, sizeof(b.name), "%.96s", id->internal);
	return b;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm_p, int nranks, ncclUniqueId id, int rank)
{
	struct comm_init b;

	if (!comm_p || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	b = comm_init_of_id(comm_p, nranks, &id, rank);
	return comm_init_add(&b);
}

EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
	struct comm_init v[MAX_RANKS];
	ncclUniqueId id;

	if (!comms || n < 1 || n > MAX_RANKS)
		return ncclInvalidArgument;
	for (int i = 0; i < n && devices; i++) {
		if (devices[i] < 0 || devices[i] >= MAX_RANKS)
			return ncclInvalidArgument;
		for (int k = 0; k < i; k++)
			if (devices[k] == devices[i])
				return ncclInvalidUsage;
	}
	ncclGetUniqueId(&id);
	for (int i = 0; i < n; i++) {
		v[i] = comm_init_of_id(&comms[i], n, &id, i);
		v[i].device = devices ? devices[i] : i;
	}
	return mock_comm_inits_run(&(struct comm_inits){ v, (size_t)n });
}

#ifndef MOCK_OLD
EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *comm_p, ncclConfig_t *config)
{
	struct comm_init b;

	if (!comm || !comm_p)
		return ncclInvalidArgument;
	b = (struct comm_init){ .comm_p = comm_p,
		.parent = comm,
		.color = color,
		.key = key,
		.device = comm->device,
		.async = comm->async };
	snprintf(b.name, sizeof(b.name), "%s-%d-%d", comm->name, comm->splits++, color);
	return comm_init_add(&b);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *comm_p, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct comm_init b;

	if (!comm_p || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	if (config &&
	    (config->magic != SHUNT_NCCL_CONFIG_MAGIC ||
	        (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)))
		return ncclInvalidArgument;
	b = comm_init_of_id(comm_p, nranks, &id, rank);
	b.async = config && !config->blocking;
	return comm_init_add(&b);
}

EXPORT ncclResult_t ncclCommShrink(
    ncclComm_t comm, int *excluded, int n, ncclComm_t *comm_p, ncclConfig_t *config, int flags)
{
	struct comm_init b;

	if (!comm || !comm_p || !excluded || n < 1)
		return ncclInvalidArgument;
	b = (struct comm_init){ .comm_p = comm_p,
		.rank = comm->rank,
		.nranks = comm->nranks - n,
		.device = comm->device,
		.async = comm->async };
	for (int i = 0; i < n; i++)
		b.rank -= excluded[i] < comm->rank;
	snprintf(b.name, sizeof(b.name), "%s-shrunk%d", comm->name, comm->shrinks++);
	return comm_init_add(&b);
}

STUB(EXPORT ncclResult_t, ncclCommFinalize, (ncclComm_t comm), ncclSuccess)
#endif

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	if (comm->windows)
		abort();
	munmap(comm->shm, sizeof(struct comm_shm));
	free(comm);
	if (!strcmp(mock_fault(), "leak"))
		open("/dev/null", O_RDONLY | O_CLOEXEC);
	return ncclSuccess;
}

static ncclResult_t value_get(ncclComm_t comm, int value, int *value_p)
{
	if (!comm || !value_p)
		return ncclInvalidArgument;
	*value_p = value;
	return ncclSuccess;
}

#define QUERY(name, field) \
	STUB(EXPORT ncclResult_t, name, (const ncclComm_t comm, int *value_p), \
	    value_get(comm, comm ? comm->field : 0, value_p))
QUERY(ncclCommCount, nranks)
QUERY(ncclCommUserRank, rank)
QUERY(ncclCommCuDevice, device)

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	if (!comm || !state)
		return ncclInvalidArgument;
	*state = comm->broken ? ncclRemoteError : comm->in_progress ? ncclInProgress : ncclSuccess;
	comm->in_progress -= comm->in_progress > 0;
	return ncclSuccess;
}

#ifndef MOCK_OLD
/* Memory of ncclMemAlloc begins with a header, so that other memory is seen. */
struct allocation {
	alignas(64) uint64_t magic;
	unsigned windows;
};
#define ALLOCATED 0x6d6f636b6d656dull

static struct allocation *allocation_find(void *ptr)
{
	struct allocation *a = (struct allocation *)ptr - 1;

	if (a->magic != ALLOCATED)
		abort();
	return a;
}

EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	struct allocation *a = aligned_alloc(64, (sizeof(*a) + size + 63) / 64 * 64);

	if (!a)
		return ncclSystemError;
	*a = (struct allocation){ .magic = ALLOCATED };
	*ptr = a + 1;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *ptr)
{
	struct allocation *a = allocation_find(ptr);

	if (a->windows)
		abort();
	a->magic = 0;
	free(a);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	const char *how = getenv("MOCK_WINDOW");

	*win = NULL;
	if (flags != NCCL_WIN_COLL_SYMMETRIC || size % 4096)
		return ncclInvalidArgument;
	if (how && !strcmp(how, "fail") && comm->rank == 1)
		return ncclInvalidUsage;
	if (how && !strcmp(how, "none"))
		return ncclSuccess;
	allocation_find(buff)->windows++;
	comm->windows++;
	*win = (ncclWindow_t)allocation_find(buff);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	((struct allocation *)win)->windows--;
	comm->windows--;
	return ncclSuccess;
}
#endif

STUB(EXPORT const char *, ncclGetErrorString, (ncclResult_t result), result ? "mock error" : "no error")
STUB(EXPORT const char *, ncclGetLastError, (ncclComm_t comm), "because it was told to")

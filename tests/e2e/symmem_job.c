/* SPDX-License-Identifier: MIT */
#include "tests/e2e/symmem_job.h"
#include "tests/support/own.h"
#include "tests/support/until.h"

#define EVERY_KIND \
	"allgather:0-:ce,alltoall:0-:ce,broadcast:0-:ce,gather:0-:ce,scatter:0-:ce," \
	"allreduce:0-:direct,reducescatter:0-:direct,reduce:0-:direct"
bool symm_overlay;
struct symm_shared *symm_shared;
const char *const symm_names[KINDS] = { "allgather", "alltoall", "broadcast", "gather", "scatter" };

int symm_run_with(enum ranks_how how, int n, rank_fn body, int odd, void (*prepare)(int rank))
{
	memset(symm_shared, 0, sizeof(*symm_shared));
	symm_shared->odd = odd;
	return ranks_run_as(&(struct ranks){ .how = how, .n = n, .raw = 1, .body = body, .prepare = prepare });
}

int symm_run(enum ranks_how how, int n, rank_fn body)
{
	return symm_run_with(how, n, body, -1, NULL);
}

void symm_barrier(struct rank *r, int place)
{
	ranks_barrier(r, &symm_shared->barrier[place]);
}

unsigned char symm_pattern(const struct call *c, int from, int part, size_t i)
{
	return (unsigned char)(c->salt + 37 * from + 101 * part + i * 7 + i / 251);
}

struct buffers symm_buffers_of(const struct place *p, const struct call *c)
{
	char *in = p->window + c->at, *out = p->plain + c->at;
	size_t own = c->part * (size_t)p->rank;
	bool root = p->rank == c->root;

	switch (c->kind) {
	case ALLGATHER:
		return (struct buffers){ c->in_place ? in + own : out, in, 1, p->n };
	case ALLTOALL:
		return (struct buffers){ out, in, p->n, p->n };
	case BROADCAST:
		return (struct buffers){ c->in_place ? in : root ? out : NULL, in, root, 1 };
	case GATHER:
		if (c->in_place)
			return (struct buffers){ in + own, in, 1, root ? p->n : 0 };
		return (struct buffers){ in, root ? out : NULL, 1, root ? p->n : 0 };
	default:
		if (c->in_place)
			return (struct buffers){ in, in + own, root ? p->n : 0, 1 };
		return (struct buffers){ root ? out : NULL, in, root ? p->n : 0, 1 };
	}
}

int symm_fill(struct rank *r, const struct place *p, const struct call *c)
{
	struct buffers b = symm_buffers_of(p, c);
	char *host = malloc(ROOM);

	memset(host, 0x5a, ROOM);
	CHECK(shunt_memcpy(p->window, host, ROOM) == 0 && shunt_memcpy(p->plain, host, ROOM) == 0);
	for (int q = 0; q < b.sends; q++) {
		for (size_t i = 0; i < c->part; i++)
			host[i] = (char)symm_pattern(c, p->rank, q, i);
		CHECK(shunt_memcpy(b.send + (size_t)q * c->part, host, c->part) == 0);
	}
	free(host);
	return 0;
}

/* Where part q of what we receive comes from, and which part of theirs it is. */
int symm_check(struct rank *r, const struct place *p, const struct call *c)
{
	struct buffers b = symm_buffers_of(p, c);
	unsigned char *host = malloc(ROOM);
	size_t bytes = (size_t)b.receives * c->part;

	CHECK(!b.receives || shunt_memcpy(host, b.recv - GUARD, bytes + 2 * GUARD) == 0);
	for (int q = 0; q < b.receives; q++) {
		int from = c->kind == ALLGATHER || c->kind == ALLTOALL || c->kind == GATHER ? q : c->root;
		int part = c->kind == ALLTOALL || c->kind == SCATTER ? p->rank : 0;

		for (size_t i = 0; i < c->part; i++) {
			unsigned char want = symm_pattern(c, from, part, i),
			              got = host[GUARD + (size_t)q * c->part + i];

			if (got != want)
				fprintf(stderr,
				    "rank %d of %d: %s of %zu at %zu%s, root %d: byte %zu of part %d is %d and not "
				    "%d\n",
				    p->rank, p->n, symm_names[c->kind], c->part, c->at, c->in_place ? ", in place" : "",
				    c->root, i, q, got, want);
			CHECK(got == want);
		}
	}
	/* What lies around is as it was, where it is not the rest of what was sent. */
	for (int i = 0; i < GUARD && b.receives && !(c->in_place && c->kind == SCATTER); i++)
		CHECK(host[i] == 0x5a && host[GUARD + bytes + (size_t)i] == 0x5a);
	free(host);
	return 0;
}

ncclResult_t symm_enqueue(const struct place *p, const struct call *c)
{
	struct buffers b = symm_buffers_of(p, c);

	switch (c->kind) {
	case ALLGATHER:
		return ncclAllGather(b.send, b.recv, c->part, ncclInt8, p->comm, p->stream);
	case ALLTOALL:
		return ncclAlltoAll(b.send, b.recv, c->part, ncclInt8, p->comm, p->stream);
	case BROADCAST:
		return ncclBroadcast(b.send, b.recv, c->part, ncclInt8, c->root, p->comm, p->stream);
	case GATHER:
		return ncclGather(b.send, b.recv, c->part, ncclInt8, c->root, p->comm, p->stream);
	default:
		return ncclScatter(b.send, b.recv, c->part, ncclInt8, c->root, p->comm, p->stream);
	}
}

int symm_settle(struct rank *r, const struct place *p)
{
	ncclResult_t async = ncclSuccess;

	CHECK(shunt_stream_synchronize(p->stream) == 0);
	NCCL(ncclCommGetAsyncError(p->comm, &async));
	CHECK(async == ncclSuccess);
	return 0;
}

int symm_run_call(struct rank *r, const struct place *p, const struct call *c, const char *path)
{
	long before;

	if (!path)
		path = p->n == 2 && c->kind <= ALLTOALL ? "pairwise" : "ll128";
	before = ranks_count_calls(p->comm, symm_names[c->kind], path);

	if (symm_fill(r, p, c))
		return 1;
	NCCL(symm_enqueue(p, c));
	if (symm_settle(r, p))
		return 1;
	if (ranks_count_calls(p->comm, symm_names[c->kind], path) != before + 1)
		fprintf(stderr, "rank %d of %d: %s of %zu did not take the path %s\n", p->rank, p->n,
		    symm_names[c->kind], c->part, path);
	CHECK(ranks_count_calls(p->comm, symm_names[c->kind], path) == before + 1);
	return strcmp(path, "nccl") ? symm_check(r, p, c) : 0;
}

int symm_begin(struct rank *r, struct place *p)
{
	*p = (struct place){ .stream = r->stream, .rank = r->rank, .n = r->nranks };
	NCCL(ncclCommInitRank(&p->comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc_shared((void **)&p->window, ROOM) == 0 && shunt_malloc((void **)&p->plain, ROOM) == 0);
	return 0;
}

int symm_end(struct rank *r, struct place *p)
{
	NCCL(ncclCommDestroy(p->comm));
	CHECK(shunt_free(p->window) == 0 && shunt_free(p->plain) == 0);
	return 0;
}

int symm_end_broken(struct rank *r, struct place *p, bool aborted)
{
	if (!aborted)
		NCCL(ncclCommAbort(p->comm));
	CHECK(shunt_free(p->window) == 0 && shunt_free(p->plain) == 0);
	return 0;
}

void symm_set_check(int rank)
{
	setenv("SHUNT_CHECK", "1", 1);
}

int symm_mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:shunt-sim") != NULL;
	if (f)
		fclose(f);
	return n;
}

static void *abort_when_it_waits(void *arg)
{
	const struct symm_lone_call *l = arg;
	bool waits = until_dump_has(getpid(), l->waits);

	return (void *)(uintptr_t)(ncclCommAbort(l->comm) != ncclSuccess || !waits);
}

void symm_lone_call_begin(struct symm_lone_call *l, ncclComm_t comm, const char *waits)
{
	*l = (struct symm_lone_call){ .began = now(), .comm = comm, .waits = waits };
	if (waits)
		pthread_create(&l->thread, NULL, abort_when_it_waits, l);
}

int symm_lone_call_end(struct rank *r, struct symm_lone_call *l, void *stream)
{
	void *failed = NULL;

	CHECK(shunt_stream_synchronize(stream) == 0);
	CHECK(now() < l->began + AT_ONCE_S);
	if (l->waits)
		pthread_join(l->thread, &failed);
	CHECK(!failed);
	return 0;
}

void symm_begin_all(void)
{
	char address[32];

	symm_shared = mmap(NULL, sizeof(*symm_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(address, sizeof(address), "%p", (void *)symm_shared->fake);
	own_environment();
	symm_overlay = getenv("SHUNT_NCCL_LIB") != NULL;
	setenv("FAKE_NCCL_SHARED", address, 1);
	setenv("SHUNT_NCCL_LIB", "none", 0);
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_TIMEOUT", "60s", 1);
	setenv("SHUNT_ALGO", EVERY_KIND, 0);
}

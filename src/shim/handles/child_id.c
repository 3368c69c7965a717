/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/host.h"
#include "shim/handles/child_id.h"
#include "transport/rendezvous/directory.h"

/* The last bytes of a unique id. */
struct grow_tail {
	uint64_t magic;
	uint8_t host[SHUNT_HOST_BYTES];
	struct shunt_id id;
};
#define GROW_TAIL_MAGIC UINT64_C(0x776f7267746e7568) /* "huntgrow" */
#define GROW_TAIL_OFFSET (sizeof(ncclUniqueId) - sizeof(struct grow_tail))
/* Before it, in standalone, whose id has nothing else. */
#define GROW_ROOT_OFFSET (GROW_TAIL_OFFSET - sizeof(struct shunt_host_address))

struct shunt_id shunt_child_split(struct shunt_entry *parent, int color)
{
	return shunt_id_derive(&parent->id, sizeof(parent->id), "split", parent->splits++, (uint64_t)color);
}

static int compare_ints(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

/* The same for every order of the ranks. */
static uint64_t hash_ranks(const int *ranks, int n)
{
	int *sorted = malloc((size_t)n * sizeof(*sorted));
	uint64_t hash = 0;

	if (!sorted)
		return 0; /* peers will not find this rank */
	memcpy(sorted, ranks, (size_t)n * sizeof(*sorted));
	qsort(sorted, (size_t)n, sizeof(*sorted), compare_ints);
	hash = shunt_fnv1a(0, sorted, (size_t)n * sizeof(*sorted));
	free(sorted);
	return hash;
}

struct shunt_id shunt_child_shrunk(struct shunt_entry *parent, const int *excluded, int n)
{
	uint64_t set = hash_ranks(excluded, n);

	return shunt_id_derive(&parent->id, sizeof(parent->id), "shrink", shunt_entry_count_set(parent, set), set);
}

struct shunt_id shunt_child_group(struct shunt_entry *parent)
{
	return shunt_id_derive(&parent->id, sizeof(parent->id), "expert parallel", parent->ep_groups++, 0);
}

static struct shunt_id grown_id(const struct shunt_entry *parent)
{
	return shunt_id_derive(&parent->id, sizeof(parent->id), "grow", parent->grows, 0);
}

void shunt_child_grow_id(const struct shunt_entry *parent, const struct shunt_host_address *root, ncclUniqueId *id)
{
	static const char zero[sizeof(struct grow_tail)];
	struct grow_tail tail = { .magic = GROW_TAIL_MAGIC, .id = grown_id(parent) };
	const struct shunt_directory_tail *directory = shunt_comm_directory(parent->comm);

	if (memcmp(id->internal + GROW_TAIL_OFFSET, zero, sizeof(zero)))
		return;
	shunt_host_id(tail.host, &tail.id, sizeof(tail.id));
	memcpy(id->internal + GROW_TAIL_OFFSET, &tail, sizeof(tail));
	if (directory)
		shunt_directory_copy((uint8_t *)id->internal, directory);
	else if (root)
		memcpy(id->internal + GROW_ROOT_OFFSET, root, sizeof(*root));
}

struct shunt_id shunt_child_grown(struct shunt_entry *parent)
{
	struct shunt_id id = grown_id(parent);

	parent->grows++;
	return id;
}

struct shunt_host_address shunt_child_grow_root(const ncclUniqueId *id)
{
	struct shunt_host_address at;

	memcpy(&at, id->internal + GROW_ROOT_OFFSET, sizeof(at));
	if (at.family != 4 && at.family != 6)
		at.family = 0;
	return at;
}

const char *shunt_child_grown_by_id(const ncclUniqueId *id, struct shunt_id *id_p)
{
	uint8_t host[SHUNT_HOST_BYTES];
	struct grow_tail tail;

	memcpy(&tail, id->internal + GROW_TAIL_OFFSET, sizeof(tail));
	if (tail.magic != GROW_TAIL_MAGIC)
		return "its unique id was not made by Shunt for a communicator that grows";
	shunt_host_id(host, &tail.id, sizeof(tail.id));
	if (memcmp(host, tail.host, sizeof(host)) && !shunt_child_grow_root(id).family &&
	    !shunt_directory_tail_of((const uint8_t *)id->internal).magic)
		return "the communicator that grows is on another host";
	*id_p = tail.id;
	return NULL;
}

/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include "gpu/sim.h"

struct entry {
	struct entry *next;
	const void *object;
	enum sim_kind kind;
};

enum { BUCKETS = 256 };
static struct sim_lock lock;
static struct entry *bucket[BUCKETS];
static const char *const kind_name[] = { "stream", "event", "graph", "device memory", "host memory" };

/* The link that points to the object's entry, or to NULL. */
static struct entry **find(const void *object, enum sim_kind kind)
{
	struct entry **e = &bucket[((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u >> 56];

	while (*e && ((*e)->object != object || (*e)->kind != kind))
		e = &(*e)->next;
	return e;
}

int sim_handle_add(const void *object, enum sim_kind kind)
{
	struct entry *e = (struct entry *)sim_new(sizeof(*e)), **head;

	if (!e)
		return -ENOMEM;
	sim_lock(&lock);
	head = &bucket[((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u >> 56];
	*e = { *head, object, kind };
	*head = e;
	sim_unlock(&lock);
	return 0;
}

bool sim_handle_ok(const void *object, enum sim_kind kind)
{
	bool ok;

	sim_lock(&lock);
	ok = *find(object, kind);
	sim_unlock(&lock);
	if (!ok)
		shunt_error("sim: %p is not a live %s", object, kind_name[kind]);
	return ok;
}

bool sim_handle_remove(const void *object, enum sim_kind kind)
{
	struct entry **at, *e;

	sim_lock(&lock);
	at = find(object, kind);
	e = *at;
	if (e)
		*at = e->next;
	sim_unlock(&lock);
	if (!e)
		shunt_error("sim: %p is not a live %s", object, kind_name[kind]);
	sim_delete(e);
	return e;
}

/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include "device/sim/hooks.h"
#include "device/sim/sim.h"

struct entry {
	struct entry *next;
	const void *object;
	enum sim_kind kind;
};

enum { BUCKETS = 256 };
static struct sim_lock table_lock;
static struct entry *buckets[BUCKETS];
static const char *const kind_name[] = { "stream", "event", "graph", "device memory", "host memory" };

/* The link that points to the object's entry, or to NULL. */
static struct entry **find_entry(const void *object, enum sim_kind kind)
{
	struct entry **e = &buckets[((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u >> 56];

	while (*e && ((*e)->object != object || (*e)->kind != kind))
		e = &(*e)->next;
	return e;
}

int sim_handle_add(const void *object, enum sim_kind kind)
{
	struct entry *e = (struct entry *)sim_new(sizeof(*e)), **head;

	if (!e)
		return -ENOMEM;
	sim_lock(&table_lock);
	head = &buckets[((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u >> 56];
	*e = { *head, object, kind };
	*head = e;
	sim_unlock(&table_lock);
	return 0;
}

bool sim_handle_ok(const void *object, enum sim_kind kind)
{
	bool ok;

	sim_lock(&table_lock);
	ok = *find_entry(object, kind);
	sim_unlock(&table_lock);
	if (!ok)
		shunt_error("sim: %p is not a live %s", object, kind_name[kind]);
	return ok;
}

/* In a forked child: memory is there, and no thread that works. */
void sim_handle_forget(void)
{
	table_lock = {};
	for (struct entry *&head : buckets)
		for (struct entry **at = &head; *at;)
			if ((*at)->kind == SIM_STREAM || (*at)->kind == SIM_EVENT || (*at)->kind == SIM_GRAPH)
				*at = (*at)->next;
			else
				at = &(*at)->next;
}

bool sim_handle_remove(const void *object, enum sim_kind kind)
{
	struct entry **at, *e;

	sim_lock(&table_lock);
	at = find_entry(object, kind);
	e = *at;
	if (e)
		*at = e->next;
	sim_unlock(&table_lock);
	if (!e)
		shunt_error("sim: %p is not a live %s", object, kind_name[kind]);
	sim_delete(e);
	return e;
}

size_t shunt_sim_live(void)
{
	size_t n = 0;

	sim_lock(&table_lock);
	for (const struct entry *e : buckets)
		for (; e; e = e->next)
			n++;
	sim_unlock(&table_lock);
	return n;
}

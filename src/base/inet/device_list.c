/* SPDX-License-Identifier: MIT */
#include "base/inet/device_list.h"
#include <stdlib.h>
#include <string.h>

struct entry {
	const char *name;
	size_t bytes; /* of the name */
	int port;     /* 0: the entry has none */
};

/* Reads the first entry and moves *list_p behind it. False: the list has no more entries. */
static bool next_entry(const char **list_p, struct entry *entry)
{
	const char *text = *list_p + strspn(*list_p, ",");
	size_t n = strcspn(text, ","), name = strcspn(text, ",:");

	*entry = (struct entry){ text, name, name < n ? atoi(text + name + 1) : 0 };
	*list_p = text + n;
	return n > 0;
}

static bool is_entry(const struct entry *entry, const char *name, int port, bool exact)
{
	return entry->bytes && !strncmp(name, entry->name, entry->bytes) && (!exact || !name[entry->bytes]) &&
	    (!entry->port || !port || entry->port == port);
}

bool shunt_device_list_match(const char *spec, const char *name, int port)
{
	bool exclude, exact, found = false;
	struct entry entry;

	if (!spec || !*spec)
		return true;
	exclude = *spec == '^';
	spec += exclude;
	exact = *spec == '=';
	spec += exact;
	while (!found && next_entry(&spec, &entry))
		found = is_entry(&entry, name, port, exact);
	return found != exclude;
}

int shunt_device_list_index(const char *list, const char *name, int port)
{
	struct entry entry;

	for (int i = 0; next_entry(&list, &entry); i++)
		if (is_entry(&entry, name, port, true))
			return i;
	return -1;
}

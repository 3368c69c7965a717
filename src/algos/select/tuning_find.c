/* SPDX-License-Identifier: MIT */
/* Look-ups in all tables, the built-in ones and those of files. */
#include "algos/select/tuning.h"

/*
 * Before the set-up: the first row with which Shunt takes the call, of the tables that the ranks may agree on; else the
 * built-in row.
 */
static const struct shunt_tuning_row *find_any(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes, const struct shunt_tuning **table_p)
{
	const struct shunt_tuning_set *set = shunt_tuning_files();
	const struct shunt_tuning_row *first = NULL;
	const struct shunt_tuning *t;
	size_t builtin = 0;

	for (size_t i = 0; (t = shunt_tuning_builtin_at(builtin)) || i < set->n;) {
		const struct shunt_tuning_row *r;

		if (t)
			builtin++;
		else
			t = set->tables[i++];
		if (t->machine.nranks != sel_key->nranks || t->machine.nhosts || t->machine.sim)
			continue;
		r = shunt_tuning_row(t, kind, bytes);
		if (!first || (r && !r->forward)) {
			first = r;
			*table_p = t;
		}
		if (r && !r->forward)
			break;
	}
	return first;
}

const struct shunt_tuning_row *shunt_tuning_find(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, uint64_t bytes, const struct shunt_tuning **table_p)
{
	*table_p = NULL;
	if (!sel_key->cc && !sel_key->sim)
		return find_any(sel_key, kind, bytes, table_p);
	*table_p = sel_key->by_link ? sel_key->by_link : shunt_tuning_builtin_of(sel_key);
	return *table_p ? shunt_tuning_row(*table_p, kind, bytes) : NULL;
}

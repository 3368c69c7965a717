/* SPDX-License-Identifier: MIT */
#include "comm/observe/counters.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"

static size_t path_index(struct shunt_counters_table *table, const char *path)
{
	size_t i;

	for (i = 0; i < SHUNT_COUNTER_PATHS; i++) {
		const char *seen = atomic_load_explicit(&table->paths[i], memory_order_relaxed);

		if (!seen && atomic_compare_exchange_strong(&table->paths[i], &seen, path))
			break;
		if (seen == path)
			break;
	}
	return i;
}

void shunt_counters_add(struct shunt_counters_table *table, enum shunt_kind kind, const char *path,
    enum shunt_reason reason, uint64_t bytes)
{
	if (path) {
		size_t i = path_index(table, path);

		atomic_fetch_add_explicit(&table->ours[kind][i].calls, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&table->ours[kind][i].bytes, bytes, memory_order_relaxed);
	} else {
		atomic_fetch_add_explicit(&table->nccl[kind][reason].calls, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&table->nccl[kind][reason].bytes, bytes, memory_order_relaxed);
	}
}

size_t shunt_counters_list(const struct shunt_counters_table *table, struct shunt_counter *rows, size_t cap)
{
	size_t n = 0;

	for (int kind = 0; kind < SHUNT_NKINDS; kind++) {
		const char *op = shunt_kind_name((enum shunt_kind)kind);

		for (size_t i = 0; i <= SHUNT_COUNTER_PATHS; i++) {
			uint64_t calls = atomic_load_explicit(&table->ours[kind][i].calls, memory_order_relaxed);
			uint64_t bytes = atomic_load_explicit(&table->ours[kind][i].bytes, memory_order_relaxed);
			const char *path = i < SHUNT_COUNTER_PATHS ? atomic_load(&table->paths[i]) : "other";

			if (!calls)
				continue;
			if (n++ < cap)
				rows[n - 1] = (struct shunt_counter){ op, path, "", calls, bytes };
		}
		for (int reason = 0; reason < SHUNT_NREASONS; reason++) {
			uint64_t calls = atomic_load_explicit(&table->nccl[kind][reason].calls, memory_order_relaxed);
			uint64_t bytes = atomic_load_explicit(&table->nccl[kind][reason].bytes, memory_order_relaxed);

			if (!calls)
				continue;
			if (n++ < cap)
				rows[n - 1] = (struct shunt_counter){ op, "nccl",
					shunt_reason_name((enum shunt_reason)reason), calls, bytes };
		}
	}
	return n;
}

void shunt_counters_print(const struct shunt_counters_table *table, const char *title)
{
	size_t n = shunt_counters_list(table, NULL, 0);
	struct shunt_counter *rows = n ? calloc(n, sizeof(*rows)) : NULL;
	int op_width = 9, path_width = 4;

	if (!rows)
		return;
	/* Calls counted meanwhile may have added rows, which have to wait for the next time. */
	if (shunt_counters_list(table, rows, n) < n)
		n = 0;
	for (size_t i = 0; i < n; i++) {
		op_width = (int)strlen(rows[i].op) > op_width ? (int)strlen(rows[i].op) : op_width;
		path_width = (int)strlen(rows[i].path) > path_width ? (int)strlen(rows[i].path) : path_width;
	}
	shunt_banner("%s", title);
	shunt_banner(
	    "  %-*s  %-*s  %12s  %16s  %s", op_width, "operation", path_width, "path", "calls", "bytes", "reason");
	for (size_t i = 0; i < n; i++)
		shunt_banner("  %-*s  %-*s  %12" PRIu64 "  %16" PRIu64 "  %s", op_width, rows[i].op, path_width,
		    rows[i].path, rows[i].calls, rows[i].bytes, rows[i].reason);
	free(rows);
}

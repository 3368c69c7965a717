/* SPDX-License-Identifier: MIT */
/* A file of its own, because readers of dumps have no communicator. */
#include <stdio.h>
#include "comm/observe/check.h"

void shunt_check_text(const struct shunt_check *check, uint64_t count, char *text, size_t bytes)
{
	enum shunt_kind kind = (enum shunt_kind)check->kind;
	char group[64] = "", root[32] = "", number[40] = "";

	if (check->what & SHUNT_CHECK_MESSAGES) {
		snprintf(text, bytes, "message %u of %llu bytes", check->number, (unsigned long long)count);
		return;
	}
	if (check->calls > 1)
		snprintf(group, sizeof(group), "a group of %u collectives that begins with ", check->calls);
	if (shunt_kind_has_root(kind))
		snprintf(root, sizeof(root), ", root %u", check->root);
	if (check->what & SHUNT_CHECK_NUMBERED)
		snprintf(number, sizeof(number), " (collective %u)", check->number);
	snprintf(text, bytes, "%s%s of %llu %s%s%s%s%s", group, shunt_kind_name(kind), (unsigned long long)count,
	    shunt_dtype_name((enum shunt_dtype)check->dtype), shunt_kind_reduces(kind) ? ", " : "",
	    shunt_kind_reduces(kind) ? shunt_redop_name((enum shunt_redop)check->redop) : "", root, number);
}

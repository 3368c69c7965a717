/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include "base/hash.h"
#include "comm/observe/call_check.h"
#include "kernels/set.h"

void shunt_check_forward(struct shunt_check_count *count, int device, const struct shunt_coll *coll)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	enum shunt_capture state = SHUNT_CAPTURE_NONE;

	if (shunt_kind_is_p2p(coll->kind))
		return;
	/* An error of the device is reported by calls that need the device. */
	if (gpu && !gpu->stream_capture(device, coll->stream, &state) && state != SHUNT_CAPTURE_NONE)
		atomic_store(&count->captured, true);
	atomic_fetch_add(&count->collectives, 1);
}

static struct shunt_check describe(const struct shunt_coll *c)
{
	bool reduces = shunt_kind_reduces(c->kind);

	return (struct shunt_check){ .what = SHUNT_CHECK_CALLS,
		.kind = (uint8_t)c->kind,
		.dtype = (uint8_t)c->dtype,
		.redop = reduces ? (uint8_t)c->redop : 0,
		.root = shunt_kind_has_root(c->kind) ? (uint16_t)c->root : 0 };
}

void shunt_check_group(struct shunt_check_count *count, const struct shunt_coll *const *calls, size_t n, bool captured,
    uint64_t plugins, struct shunt_kargs *base)
{
	uint64_t hash = plugins;
	unsigned ncollectives = 0;

	for (size_t i = 0; i < n; i++) {
		if (shunt_kind_is_p2p(calls[i]->kind))
			continue;
		struct shunt_check c = describe(calls[i]);
		uint64_t elements = calls[i]->count;

		hash = shunt_fnv1a(shunt_fnv1a(hash, &c, sizeof(c)), &elements, sizeof(elements));
		if (!ncollectives++) {
			base->check = c;
			base->count = elements;
		}
	}
	if (!ncollectives)
		return;
	if (captured)
		atomic_store(&count->captured, true);
	base->check.what |= atomic_load(&count->captured) ? 0 : SHUNT_CHECK_NUMBERED;
	base->check.what |= plugins ? SHUNT_CHECK_PLUGIN : 0;
	base->check.calls = ncollectives < UINT16_MAX ? (uint16_t)ncollectives : UINT16_MAX;
	base->check.number = atomic_fetch_add(&count->collectives, ncollectives) + 1;
	base->check.hash = (uint32_t)(hash ^ hash >> 32);
}

void shunt_check_text(const struct shunt_check *check, uint64_t count, char *text, size_t bytes)
{
	enum shunt_kind kind = (enum shunt_kind)check->kind;
	char group[64] = "", root[32] = "", number[40] = "";
	const char *plugin = "";

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
	if (check->what & SHUNT_CHECK_PLUGIN)
		plugin = check->calls > 1 ? ", some by plug-ins" : " by a plug-in";
	snprintf(text, bytes, "%s%s of %llu %s%s%s%s%s%s", group, shunt_kind_name(kind), (unsigned long long)count,
	    shunt_dtype_name((enum shunt_dtype)check->dtype), shunt_kind_reduces(kind) ? ", " : "",
	    shunt_kind_reduces(kind) ? shunt_redop_name((enum shunt_redop)check->redop) : "", root, number, plugin);
}

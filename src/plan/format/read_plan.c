/* SPDX-License-Identifier: MIT */
/* A plan's JSON, from the top to the tables of each rank; read_ops.c reads the operations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/format/plan_priv.h"

#define NIL SHUNT_PLAN_NIL

struct loader {
	struct shunt_plan_log *log;
	struct shunt_arena *arena;
	uint32_t nranks;
};

static struct shunt_json_at in(const struct loader *l, const json_t *json, const char *where)
{
	return shunt_json_at(&l->log->json, json, where);
}

/* Loads an entry of a rank's "channels" that is of type memory or port. */
static bool add_channels(
    struct loader *l, const json_t *entry, const char *where, struct shunt_plan_channel *channels, uint32_t *n_p)
{
	const json_t *peers;
	uint32_t n;

	if (!shunt_json_array(in(l, entry, where), "connected_to", true, &peers, &n))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		char place[64];
		uint64_t peer;

		snprintf(place, sizeof(place), "%s.connected_to", where);
		if (!shunt_json_uint_at(in(l, peers, place), i, 0, l->nranks - 1, &peer))
			return false;
		channels[(*n_p)++] = (struct shunt_plan_channel){ (uint32_t)peer, NIL };
	}
	return true;
}

/* Loads an entry of type switch: a switch channel for each of its groups. */
static bool add_switches(
    struct loader *l, const json_t *entry, const char *where, struct shunt_plan_switch *switches, uint32_t *n_p)
{
	const json_t *groups, *group, *ranks;
	uint32_t ngroups, n;
	unsigned buffer;

	if (!shunt_json_word(in(l, entry, where), "buffer_type", shunt_plan_buffer_letters, &buffer) ||
	    !shunt_json_array(in(l, entry, where), "rank_groups", true, &groups, &ngroups))
		return false;
	for (uint32_t g = 0; g < ngroups; g++) {
		char list[112], place[96];
		uint32_t *members;
		uint64_t size, rank;

		snprintf(list, sizeof(list), "%.40s.rank_groups", where);
		snprintf(place, sizeof(place), "%.60s[%u]", list, g);
		if (!shunt_json_object_at(in(l, groups, list), g, &group) ||
		    !shunt_json_array(in(l, group, place), "ranks", true, &ranks, &n) ||
		    !shunt_json_uint_or(in(l, group, place), "size", n, n, n, &size))
			return false;
		members = shunt_arena_alloc(l->arena, n, sizeof(*members));
		if (shunt_plan_no_memory(l->log, members))
			return false;
		snprintf(list, sizeof(list), "%s.ranks", place);
		for (uint32_t i = 0; i < n; i++) {
			if (!shunt_json_uint_at(in(l, ranks, list), i, 0, l->nranks - 1, &rank))
				return false;
			members[i] = (uint32_t)rank;
		}
		switches[(*n_p)++] = (struct shunt_plan_switch){ (uint8_t)buffer, n, members };
	}
	return true;
}

static bool load_channels(struct loader *l, const json_t *object, struct shunt_plan_gpu *gpu)
{
	struct shunt_plan_channel *channels[2];
	struct shunt_plan_switch *switches;
	const json_t *entries, *entry;
	size_t capacity[3] = { 0 };
	uint32_t n;

	if (!shunt_json_array(in(l, object, ""), "channels", true, &entries, &n))
		return false;
	/* Room for all entries, whatever their types, which are checked below. */
	for (uint32_t i = 0; i < n; i++) {
		entry = json_array_get(entries, i);
		capacity[0] += json_array_size(json_object_get(entry, "connected_to"));
		capacity[2] += json_array_size(json_object_get(entry, "rank_groups"));
	}
	channels[0] = shunt_arena_alloc(l->arena, capacity[0], sizeof(*channels[0]));
	channels[1] = shunt_arena_alloc(l->arena, capacity[0], sizeof(*channels[1]));
	switches = shunt_arena_alloc(l->arena, capacity[2], sizeof(*switches));
	if (shunt_plan_no_memory(l->log, channels[0]) || shunt_plan_no_memory(l->log, channels[1]) ||
	    shunt_plan_no_memory(l->log, switches))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		char where[32];
		unsigned type;

		snprintf(where, sizeof(where), "channels[%u]", i);
		if (!shunt_json_object_at(in(l, entries, "channels"), i, &entry) ||
		    !shunt_json_word(in(l, entry, where), "channel_type", shunt_plan_type_names, &type))
			return false;
		if (type == SHUNT_PLAN_SWITCH && !add_switches(l, entry, where, switches, &gpu->nswitches))
			return false;
		if (type < SHUNT_PLAN_SWITCH && !add_channels(l, entry, where, channels[type], &gpu->nchannels[type]))
			return false;
	}
	gpu->channels[0] = channels[0];
	gpu->channels[1] = channels[1];
	gpu->switches = switches;
	return true;
}

static bool load_remotes(struct loader *l, const json_t *object, struct shunt_plan_gpu *gpu)
{
	const json_t *entries, *entry, *types;
	struct shunt_plan_remote *remotes;
	uint32_t n;

	if (!shunt_json_array(in(l, object, ""), "remote_buffers", true, &entries, &n))
		return false;
	remotes = shunt_arena_alloc(l->arena, n, sizeof(*remotes));
	if (shunt_plan_no_memory(l->log, remotes))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		char where[32], list[64];
		uint32_t ntypes;
		uint64_t rank;
		unsigned buffer;

		snprintf(where, sizeof(where), "remote_buffers[%u]", i);
		snprintf(list, sizeof(list), "%s.access_channel_types", where);
		if (!shunt_json_object_at(in(l, entries, "remote_buffers"), i, &entry) ||
		    !shunt_json_uint(in(l, entry, where), "rank", 0, l->nranks - 1, &rank) ||
		    !shunt_json_word(in(l, entry, where), "type", shunt_plan_buffer_letters, &buffer) ||
		    !shunt_json_array(in(l, entry, where), "access_channel_types", true, &types, &ntypes))
			return false;
		remotes[i] = (struct shunt_plan_remote){ (uint32_t)rank, (uint8_t)buffer, 0 };
		for (uint32_t t = 0; t < ntypes; t++) {
			const json_t *word = json_array_get(types, t);
			const char *text = json_is_string(word) ? json_string_value(word) : "";

			if (strcmp(text, "memory") && strcmp(text, "port")) {
				shunt_json_fail(&l->log->json, EINVAL, "%s[%u] is %s, expected \"memory\" or \"port\"",
				    list, t, json_is_string(word) ? shunt_json_quote(text).text : "no string");
				return false;
			}
			remotes[i].types |= (uint8_t)(1u << (*text == 'm' ? SHUNT_PLAN_MEMORY : SHUNT_PLAN_PORT));
		}
	}
	gpu->nremotes = n;
	gpu->remotes = remotes;
	return true;
}

static bool load_semaphores(struct loader *l, const json_t *object, struct shunt_plan_gpu *gpu)
{
	const json_t *entries, *entry;
	uint32_t *values, n;

	if (!shunt_json_array(in(l, object, ""), "semaphores", false, &entries, &n))
		return false;
	values = shunt_arena_alloc(l->arena, n, sizeof(*values));
	if (shunt_plan_no_memory(l->log, values))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		char where[32];
		uint64_t value;

		snprintf(where, sizeof(where), "semaphores[%u]", i);
		if (!shunt_json_object_at(in(l, entries, "semaphores"), i, &entry) ||
		    !shunt_json_uint(in(l, entry, where), "init_value", 0, INT32_MAX, &value))
			return false;
		values[i] = (uint32_t)value;
	}
	gpu->nsemaphores = n;
	gpu->semaphores = values;
	return true;
}

static bool load_gpu(struct loader *l, const json_t *gpus, uint32_t rank, struct shunt_plan_gpu *gpu)
{
	static const char *const keys[] = { "input_chunks", "output_chunks", "scratch_chunks" };
	const json_t *object, *blocks;
	uint64_t id;

	l->log->at.rank = rank;
	if (!shunt_json_object_at(in(l, gpus, "gpus"), rank, &object) ||
	    !shunt_json_uint(in(l, object, ""), "id", rank, rank, &id))
		return false;
	for (int b = 0; b < SHUNT_PLAN_NBUFFERS; b++)
		if (!shunt_json_uint(in(l, object, ""), keys[b], 0, SHUNT_PLAN_MAX_CHUNKS, &gpu->chunks[b]))
			return false;
	return load_channels(l, object, gpu) && load_remotes(l, object, gpu) && load_semaphores(l, object, gpu) &&
	    shunt_json_array(in(l, object, ""), "threadblocks", true, &blocks, &gpu->nblocks) &&
	    !shunt_plan_load_blocks(l->log, l->arena, gpu, rank, blocks);
}

/* Shunt's own keys: the calls that may use the plan, and its priority. */
static bool load_extras(struct loader *l, const json_t *root, struct shunt_plan *plan)
{
	const json_t *dtypes, *tags;
	uint64_t ranks_per_node;
	int64_t priority = 0, automatic = 1;
	uint32_t n;

	if (!shunt_json_uint_or(in(l, root, ""), "nranks_per_node", 1, SHUNT_PLAN_MAX_RANKS, 0, &ranks_per_node) ||
	    !shunt_json_array(in(l, root, ""), "dtypes", false, &dtypes, &n) ||
	    !shunt_json_object(in(l, root, ""), "tags", false, &tags))
		return false;
	if (tags &&
	    (!shunt_json_int_or(in(l, tags, "tags"), "priority", INT32_MIN, INT32_MAX, 0, &priority) ||
	        !shunt_json_int_or(in(l, tags, "tags"), "auto", 0, 1, 1, &automatic)))
		return false;
	plan->ranks_per_node = (uint32_t)ranks_per_node;
	plan->priority = (int32_t)priority;
	plan->automatic = automatic;
	plan->dtypes = dtypes ? 0 : (1u << SHUNT_NFORMATS) - 1;
	for (uint32_t i = 0; i < n; i++) {
		const json_t *word = json_array_get(dtypes, i);
		int d = 0;

		while (d < SHUNT_NFORMATS &&
		    (!json_is_string(word) || strcmp(json_string_value(word), shunt_dtype_name(d))))
			d++;
		if (d == SHUNT_NFORMATS) {
			shunt_json_fail(&l->log->json, EINVAL,
			    "dtypes[%u] is %s, expected the name of a type such as \"float16\"", i,
			    json_is_string(word) ? shunt_json_quote(json_string_value(word)).text : "no string");
			return false;
		}
		/* A type stands for all its accumulators. */
		plan->dtypes |= shunt_dtypes_with_formats(1u << d);
	}
	if (!plan->dtypes)
		shunt_json_fail(&l->log->json, EINVAL, "dtypes is empty, expected at least one type");
	return plan->dtypes;
}

static bool load_name(struct loader *l, const json_t *root, struct shunt_plan *plan)
{
	const char *name;

	if (!shunt_json_string(in(l, root, ""), "name", &name))
		return false;
	for (const char *p = name; *p; p++)
		if ((unsigned char)*p < ' ') {
			shunt_json_fail(&l->log->json, EINVAL, "name is %s, expected no control characters",
			    shunt_json_quote(name).text);
			return false;
		}
	if (!*name || strlen(name) > 255) {
		shunt_json_fail(&l->log->json, EINVAL, "name has %zu bytes, expected 1 to 255", strlen(name));
		return false;
	}
	/* Reserved: as a selector's answers these names mean no plan (match.c). */
	if (!strcmp(name, "native") || !strcmp(name, "nccl")) {
		shunt_json_fail(&l->log->json, EINVAL,
		    "name is \"%s\", expected another one: a selector that answers this means no plan", name);
		return false;
	}
	plan->name = shunt_arena_strdup(l->arena, name);
	return !shunt_plan_no_memory(l->log, plan->name);
}

static bool load_top(struct loader *l, const json_t *root, struct shunt_plan *plan)
{
	struct shunt_plan_gpu *gpus;
	const json_t *json_gpus;
	const char *protocol;
	unsigned collective;
	uint64_t threads, alignment;

	if (!json_is_object(root)) {
		shunt_json_fail(&l->log->json, EINVAL, "the text is no JSON object");
		return false;
	}
	if (!load_name(l, root, plan) ||
	    !shunt_json_word(in(l, root, ""), "collective", shunt_plan_collective_names, &collective) ||
	    !shunt_json_string(in(l, root, ""), "protocol", &protocol) ||
	    !shunt_json_bool(in(l, root, ""), "inplace", &plan->inplace) ||
	    !shunt_json_bool_or(in(l, root, ""), "reuse_resources", false, &plan->reuse_resources) ||
	    !shunt_json_bool_or(in(l, root, ""), "use_double_scratch_buffer", false, &plan->double_scratch) ||
	    !shunt_json_uint_or(in(l, root, ""), "buffer_alignment", 16, (uint64_t)1 << 30, 16, &alignment) ||
	    !shunt_json_uint_or(in(l, root, ""), "num_threads_per_block", 1, 1024, 1024, &threads) ||
	    !shunt_json_uint_or(in(l, root, ""), "min_message_size", 0, UINT64_MAX, 0, &plan->min_bytes) ||
	    !shunt_json_uint_or(in(l, root, ""), "max_message_size", 0, UINT64_MAX, UINT64_MAX, &plan->max_bytes) ||
	    !load_extras(l, root, plan) || !shunt_json_array(in(l, root, ""), "gpus", true, &json_gpus, &plan->nranks))
		return false;
	plan->collective = (enum shunt_plan_collective)collective;
	plan->ll = !strcmp(protocol, "LL");
	plan->alignment = (uint32_t)alignment;
	plan->threads = (uint32_t)threads;
	if (alignment % 16)
		shunt_json_fail(
		    &l->log->json, EINVAL, "buffer_alignment is %u, expected a multiple of 16", plan->alignment);
	else if (plan->min_bytes > plan->max_bytes)
		shunt_json_fail(&l->log->json, EINVAL,
		    "max_message_size is %llu, expected at least min_message_size, %llu",
		    (unsigned long long)plan->max_bytes, (unsigned long long)plan->min_bytes);
	else if (!plan->nranks || plan->nranks > SHUNT_PLAN_MAX_RANKS)
		shunt_json_fail(
		    &l->log->json, EINVAL, "gpus has %u entries, expected 1 to %u", plan->nranks, SHUNT_PLAN_MAX_RANKS);
	if (l->log->json.err)
		return false;
	l->nranks = plan->nranks;
	gpus = shunt_arena_alloc(l->arena, plan->nranks, sizeof(*gpus));
	if (shunt_plan_no_memory(l->log, gpus))
		return false;
	plan->gpus = gpus;
	for (uint32_t r = 0; r < plan->nranks; r++)
		if (!load_gpu(l, json_gpus, r, &gpus[r]))
			return false;
	l->log->at = (struct shunt_plan_location){ NIL, NIL, NIL, NIL, NULL, NULL };
	return true;
}

bool shunt_plan_read(struct shunt_plan_log *log, const char *json, size_t bytes, struct shunt_plan_owned *owned)
{
	struct loader l = { .log = log, .arena = &owned->arena };
	json_t *root = shunt_json_parse(&log->json, json, bytes);
	bool ok = root && load_top(&l, root, &owned->plan);

	json_decref(root);
	return ok;
}

/* SPDX-License-Identifier: MIT */
/* Loads the blocks of a rank: their operations, with the ids of the block replaced by those of the rank. */
#include <errno.h>
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/format/plan_priv.h"

#define NIL SHUNT_PLAN_NIL

/* Ids of the rank for the ids 0, 1, ... of a block. */
struct table {
	uint32_t n;
	uint32_t *ids;
};

struct loader {
	struct shunt_plan_log *log;
	struct shunt_arena *arena;
	const struct shunt_plan_gpu *gpu;
	uint32_t rank;
	/* Of the current block. */
	struct table channels[3]; /* by enum shunt_plan_channel_type */
	struct table remotes[2];
};

static struct shunt_json_at in(const struct loader *l, const json_t *json, const char *where)
{
	return shunt_json_at(&l->log->json, json, where);
}

/* A list of a block with tables: its keys, and the types that it may have. */
struct table_list {
	const char *list, *type_key, *ids_key;
	unsigned ntypes;
};
static const struct table_list channel_list = { "channels", "channel_type", "channel_ids", 3 },
                               remote_list = { "remote_buffer_refs", "access_channel_type", "remote_buffer_ids", 2 };

/*
 * Loads a block's tables, one for each channel type: the ids of all entries of the list of that type, one after the
 * other, below limits[type].
 */
static bool load_tables(
    struct loader *l, const json_t *block, const struct table_list *t, const uint32_t *limits, struct table *tables)
{
	const char *list = t->list, *ids_key = t->ids_key;
	const json_t *entries, *entry, *ids;
	size_t capacity = 0;
	uint32_t n, nids;

	if (!shunt_json_array(in(l, block, ""), list, false, &entries, &n))
		return false;
	for (uint32_t i = 0; i < n; i++)
		capacity += json_array_size(json_object_get(json_array_get(entries, i), ids_key));
	for (unsigned k = 0; k < t->ntypes; k++) {
		tables[k] = (struct table){ 0, shunt_arena_alloc(l->arena, capacity, sizeof(*tables[k].ids)) };
		if (shunt_plan_no_memory(l->log, tables[k].ids))
			return false;
	}
	for (uint32_t i = 0; i < n; i++) {
		char where[48], place[96];
		unsigned type;
		uint64_t id;

		snprintf(where, sizeof(where), "%s[%u]", list, i);
		snprintf(place, sizeof(place), "%s.%s", where, ids_key);
		if (!shunt_json_object_at(in(l, entries, list), i, &entry) ||
		    !shunt_json_word(in(l, entry, where), t->type_key, shunt_plan_type_names, &type) ||
		    !shunt_json_array(in(l, entry, where), ids_key, true, &ids, &nids))
			return false;
		if (type >= t->ntypes && nids) {
			shunt_json_fail(&l->log->json, EINVAL, "%s has numbers of type %s, expected none", place,
			    shunt_plan_type_names[type]);
			return false;
		}
		if (nids && !limits[type]) {
			shunt_json_fail(&l->log->json, EINVAL,
			    "%s[0] refers to a list of the rank that is empty for type %s", place,
			    shunt_plan_type_names[type]);
			return false;
		}
		for (uint32_t j = 0; j < nids; j++) {
			if (!shunt_json_uint_at(in(l, ids, place), j, 0, limits[type] - 1, &id))
				return false;
			tables[type].ids[tables[type].n++] = (uint32_t)id;
		}
	}
	return true;
}

/*
 * Loads the id in an object that is an index into a table of the block: its switch channels if the type is switch, else
 * remote buffers. *id_p is the rank's id.
 */
static bool lookup_id(struct loader *l, const json_t *object, const char *where, unsigned type, uint32_t *id_p)
{
	bool channel = type == SHUNT_PLAN_SWITCH;
	const struct table *table = channel ? &l->channels[type] : &l->remotes[type];
	const char *key = channel ? "switch_channel_id" : "buffer_id";
	uint64_t i;

	if (!table->n) {
		shunt_json_fail(&l->log->json, EINVAL, "%s.%s: the block has no %s list of its own for type %s", where,
		    key, channel ? "channels" : "remote_buffer_refs", shunt_plan_type_names[type]);
		return false;
	}
	if (!shunt_json_uint(in(l, object, where), key, 0, table->n - 1, &i))
		return false;
	*id_p = table->ids[i];
	return true;
}

/* kind: enum shunt_plan_slice_kind. */
static bool load_slice(struct loader *l, const json_t *object, const char *where, unsigned kind, unsigned type,
    struct shunt_plan_slice *slice)
{
	const struct shunt_plan_remote *remote;
	unsigned buffer = 0;
	uint32_t id;

	slice->packet = kind & SHUNT_PLAN_SLICE_PACKETS;
	if (!shunt_json_uint(in(l, object, where), "index", 0, SHUNT_PLAN_MAX_CHUNKS, &slice->index) ||
	    !shunt_json_uint(in(l, object, where), "size", 1, SHUNT_PLAN_MAX_CHUNKS, &slice->size))
		return false;
	switch (kind & SHUNT_PLAN_SLICE_PLACE) {
	case SHUNT_PLAN_SLICE_LOCAL:
		slice->place = SHUNT_PLAN_LOCAL;
		slice->target = l->rank;
		if (!shunt_json_word(in(l, object, where), "type", shunt_plan_buffer_letters, &buffer))
			return false;
		slice->buffer = (uint8_t)buffer;
		return true;
	case SHUNT_PLAN_SLICE_REMOTE:
		if (!lookup_id(l, object, where, type, &id))
			return false;
		remote = &l->gpu->remotes[id];
		slice->place = SHUNT_PLAN_REMOTE;
		slice->target = remote->rank;
		slice->buffer = remote->buffer;
		if (remote->types & (1u << type))
			return true;
		shunt_json_fail(&l->log->json, EINVAL,
		    "%s.buffer_id leads to remote_buffers[%u], whose access_channel_types lack \"%s\"", where, id,
		    shunt_plan_type_names[type]);
		return false;
	default:
		if (!lookup_id(l, object, where, SHUNT_PLAN_SWITCH, &id))
			return false;
		slice->place = SHUNT_PLAN_MULTICAST;
		slice->target = id;
		slice->buffer = l->gpu->switches[id].buffer;
		return true;
	}
}

/* A list of slices in the file: its key, the slices that it should have, and the operation's type. */
struct slice_list {
	const char *key;
	uint16_t list; /* as in struct shunt_plan_op_row */
	unsigned type;
};

static bool load_slices(struct loader *l, const json_t *object, const struct slice_list *t,
    const struct shunt_plan_slice **slices_p, uint32_t *n_p)
{
	unsigned least = shunt_plan_list_least(t->list);
	bool more = shunt_plan_list_more(t->list);
	const char *key = t->key;
	struct shunt_plan_slice *slices;
	const json_t *array, *entry;
	uint32_t n;

	if (!least)
		return true;
	if (!shunt_json_array(in(l, object, ""), key, true, &array, &n))
		return false;
	if (n < least || (n > least && !more)) {
		shunt_json_fail(
		    &l->log->json, EINVAL, "%s has %u entries, expected %u%s", key, n, least, more ? " or more" : "");
		return false;
	}
	slices = shunt_arena_alloc(l->arena, n, sizeof(*slices));
	if (shunt_plan_no_memory(l->log, slices))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		char where[32];

		snprintf(where, sizeof(where), "%s[%u]", key, i);
		if (!shunt_json_object_at(in(l, array, key), i, &entry) ||
		    !load_slice(l, entry, where, shunt_plan_list_kind(t->list, i), t->type, &slices[i]))
			return false;
	}
	*slices_p = slices;
	*n_p = n;
	return true;
}

/* glre has its own form: a source without a list, a destination chunk, and the switch channel in channel_ids. */
static bool load_glre(struct loader *l, const json_t *object, struct shunt_plan_op *op)
{
	struct shunt_plan_slice *s = shunt_arena_alloc(l->arena, 2, sizeof(*s));
	const struct table *table = &l->channels[SHUNT_PLAN_SWITCH];
	const json_t *chunk, *ids;
	unsigned buffer;
	uint64_t i, rank;
	uint32_t n;

	if (shunt_plan_no_memory(l->log, s) ||
	    !shunt_json_word(in(l, object, ""), "buffer_type", shunt_plan_buffer_letters, &buffer) ||
	    !shunt_json_uint(in(l, object, ""), "buffer_offset", 0, SHUNT_PLAN_MAX_CHUNKS, &s[0].index) ||
	    !shunt_json_uint(in(l, object, ""), "size", 1, SHUNT_PLAN_MAX_CHUNKS, &s[0].size) ||
	    !shunt_json_array(in(l, object, ""), "channel_ids", true, &ids, &n) ||
	    !shunt_json_object(in(l, object, ""), "dst_chunk", true, &chunk) ||
	    !shunt_json_uint_or(in(l, chunk, "dst_chunk"), "rank", l->rank, l->rank, l->rank, &rank) ||
	    !load_slice(l, chunk, "dst_chunk", SHUNT_PLAN_SLICE_LOCAL, SHUNT_PLAN_SWITCH, &s[1]))
		return false;
	if (n != 1 || !table->n) {
		shunt_json_fail(&l->log->json, EINVAL,
		    "channel_ids has %u entries, expected 1, a switch channel of the block, which has %u", n, table->n);
		return false;
	}
	if (!shunt_json_uint_at(in(l, ids, "channel_ids"), 0, 0, table->n - 1, &i))
		return false;
	s[0].place = SHUNT_PLAN_MULTICAST;
	s[0].target = table->ids[i];
	s[0].buffer = l->gpu->switches[s[0].target].buffer;
	if (buffer != s[0].buffer) {
		shunt_json_fail(&l->log->json, EINVAL,
		    "buffer_type is \"%s\", expected \"%s\" as the switch channel has",
		    shunt_plan_buffer_letters[buffer], shunt_plan_buffer_letters[s[0].buffer]);
		return false;
	}
	op->src = &s[0];
	op->dst = &s[1];
	op->nsrc = op->ndst = 1;
	return true;
}

/* Ids in the file: below `limit`. table: the rank's ids for those of the block; NULL: they are the rank's. */
struct id_list {
	const char *key, *what;
	const struct table *table;
	uint32_t limit;
};

static bool load_ids(struct loader *l, const json_t *object, const struct id_list *t, struct shunt_plan_op *op)
{
	const char *key = t->key;
	const json_t *array;
	uint32_t *ids, n;

	if (!shunt_json_array(in(l, object, ""), key, true, &array, &n))
		return false;
	if (!n) {
		shunt_json_fail(&l->log->json, EINVAL, "%s is empty, expected at least one number", key);
		return false;
	}
	if (!t->limit) {
		shunt_json_fail(
		    &l->log->json, EINVAL, "%s[0]: the %s has no %s", key, t->table ? "block" : "rank", t->what);
		return false;
	}
	ids = shunt_arena_alloc(l->arena, n, sizeof(*ids));
	if (shunt_plan_no_memory(l->log, ids))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t id;

		if (!shunt_json_uint_at(in(l, array, key), i, 0, t->limit - 1, &id))
			return false;
		ids[i] = t->table ? t->table->ids[id] : (uint32_t)id;
	}
	op->ids = ids;
	op->nids = n;
	return true;
}

static bool load_channel_ids(struct loader *l, const json_t *object, struct shunt_plan_op *op)
{
	char what[32];

	snprintf(what, sizeof(what), "%s channel", shunt_plan_type_names[op->type]);
	return load_ids(
	    l, object, &(struct id_list){ "channel_ids", what, &l->channels[op->type], l->channels[op->type].n }, op);
}

static bool load_type(
    struct loader *l, const json_t *object, const struct shunt_plan_op_row *row, struct shunt_plan_op *op)
{
	unsigned type;

	op->type = SHUNT_PLAN_NONE;
	if (!row->types)
		return true;
	if (!shunt_json_word(in(l, object, ""), "channel_type", shunt_plan_type_names, &type))
		return false;
	op->type = (uint8_t)type;
	if (row->types & (1u << type))
		return true;
	shunt_json_fail(&l->log->json, EINVAL, "channel_type is \"%s\", expected %s%s%s", shunt_plan_type_names[type],
	    row->types & 1u << SHUNT_PLAN_MEMORY ? "\"memory\"" : "", (row->types & 3u) == 3u ? " or " : "",
	    row->types & 1u << SHUNT_PLAN_PORT       ? "\"port\"" :
	        row->types & 1u << SHUNT_PLAN_SWITCH ? "\"switch\"" :
	                                               "");
	return false;
}

static bool load_group(struct loader *l, const json_t *object, struct shunt_plan_op *op)
{
	const json_t *info;
	uint64_t part, parts;

	op->parts = 1;
	if (!shunt_json_object(in(l, object, ""), "tbg_info", false, &info))
		return false;
	if (!info)
		return true;
	if (!op->nsrc) {
		shunt_json_fail(
		    &l->log->json, EINVAL, "tbg_info is there, expected none: the operation has no slices to share");
		return false;
	}
	if (!shunt_json_uint(in(l, info, "tbg_info"), "tbg_size", 1, SHUNT_PLAN_MAX_GROUP, &parts) ||
	    !shunt_json_uint(in(l, info, "tbg_info"), "tb_id", 0, parts - 1, &part))
		return false;
	op->part = (uint32_t)part;
	op->parts = (uint32_t)parts;
	return true;
}

static bool load_barrier(struct loader *l, const json_t *object, struct shunt_plan_op *op)
{
	uint64_t id, n;

	/* The file's number; the checker makes the numbers dense. */
	if (!shunt_json_uint(in(l, object, ""), "barrier_id", 0, UINT32_MAX - 1, &id) ||
	    !shunt_json_uint(in(l, object, ""), "num_threadblocks", 1, l->gpu->nblocks, &n))
		return false;
	op->barrier = (uint32_t)id;
	op->nblocks = (uint32_t)n;
	return true;
}

/* Loads the header of a pipeline, and its body into the operations that follow it. */
static bool load_op(struct loader *l, const json_t *object, bool inner, struct shunt_plan_op *op);
static bool load_pipeline(struct loader *l, const json_t *object, struct shunt_plan_op *op)
{
	const json_t *context, *body, *entry;

	if (!shunt_json_object(in(l, object, ""), "iter_context", true, &context) ||
	    !shunt_json_uint(in(l, context, "iter_context"), "unit_size", 1, UINT64_MAX, &op->unit_size) ||
	    !shunt_json_uint(
	        in(l, context, "iter_context"), "num_chunks", 1, SHUNT_PLAN_MAX_WINDOWED, &op->num_chunks) ||
	    !shunt_json_array(in(l, object, ""), "ops", true, &body, &op->nbody))
		return false;
	if (!op->nbody) {
		shunt_json_fail(&l->log->json, EINVAL, "ops is empty, expected at least one operation");
		return false;
	}
	for (uint32_t i = 0; i < op->nbody; i++) {
		l->log->at.inner = i;
		l->log->at.code = NULL;
		if (!shunt_json_object_at(in(l, body, "ops"), i, &entry) || !load_op(l, entry, true, &op[1 + i]))
			return false;
		op[1 + i].at = op->at;
		op[1 + i].inner = i;
	}
	return true;
}

/* The key "src", which programs' authors need in messages. Whatever else it is is ignored. */
static bool load_lines(struct loader *l, const json_t *object, struct shunt_plan_op *op)
{
	const char *text = json_string_value(json_object_get(object, "src"));
	char *copy;

	if (!text)
		return true;
	copy = shunt_arena_strdup(l->arena, text);
	if (shunt_plan_no_memory(l->log, copy))
		return false;
	for (char *c = copy; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	op->lines = copy;
	return true;
}

static bool load_op(struct loader *l, const json_t *object, bool inner, struct shunt_plan_op *op)
{
	const struct shunt_plan_op_row *row;
	unsigned code, redop = SHUNT_SUM;
	struct slice_list src = { "src_buff" }, dst = { "dst_buff" };

	if (!shunt_json_word(in(l, object, ""), "name", shunt_plan_op_names, &code))
		return false;
	row = &shunt_plan_op_rows[code];
	l->log->at.code = row->name;
	l->log->at.lines = NULL;
	op->code = (uint8_t)code;
	op->inner = NIL;
	if (!load_type(l, object, row, op))
		return false;
	src.list = shunt_plan_op_src(row, op->type);
	dst.list = row->dst;
	src.type = dst.type = op->type;
	if (row->effects & SHUNT_PLAN_OWN_KEYS) {
		if (!load_glre(l, object, op))
			return false;
	} else if (!load_slices(l, object, &src, &op->src, &op->nsrc) ||
	    !load_slices(l, object, &dst, &op->dst, &op->ndst)) {
		return false;
	}
	if ((row->effects & SHUNT_PLAN_PAIRWISE) && op->nsrc != op->ndst) {
		shunt_json_fail(
		    &l->log->json, EINVAL, "dst_buff has %u entries, expected %u as src_buff has", op->ndst, op->nsrc);
		return false;
	}
	if ((row->ids == SHUNT_PLAN_IDS_CHANNELS ||
	        (row->ids == SHUNT_PLAN_IDS_PORTS && op->type == SHUNT_PLAN_PORT)) &&
	    !load_channel_ids(l, object, op))
		return false;
	if (row->ids == SHUNT_PLAN_IDS_SEMAPHORES &&
	    !load_ids(l, object, &(struct id_list){ "semaphore_ids", "semaphore", NULL, l->gpu->nsemaphores }, op))
		return false;
	if ((row->effects & SHUNT_PLAN_REDUCES) &&
	    !shunt_json_word(in(l, object, ""), "reduce_op", shunt_plan_redop_names, &redop))
		return false;
	op->redop = (uint8_t)redop;
	if (!load_lines(l, object, op))
		return false;
	if (!load_group(l, object, op) || ((row->effects & SHUNT_PLAN_SYNCS_BLOCKS) && !load_barrier(l, object, op)))
		return false;
	if (!(row->effects & SHUNT_PLAN_REPEATS))
		return true;
	if (inner) {
		shunt_json_fail(&l->log->json, EINVAL, "name is \"pipeline\", expected none within a pipeline");
		return false;
	}
	return load_pipeline(l, object, op);
}

static bool load_ops(struct loader *l, const json_t *object, struct shunt_plan_block *block)
{
	const json_t *array, *entry;
	struct shunt_plan_op *ops;
	size_t capacity = 0, at = 0;
	uint32_t n;

	if (!shunt_json_array(in(l, object, ""), "ops", true, &array, &n))
		return false;
	/* Only pipelines have inner operations; elsewhere "ops" is an unknown key. */
	for (uint32_t i = 0; i < n; i++) {
		entry = json_array_get(array, i);
		capacity += 1 + json_array_size(json_object_get(entry, "ops"));
	}
	ops = shunt_arena_alloc(l->arena, capacity, sizeof(*ops));
	if (shunt_plan_no_memory(l->log, ops))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		l->log->at.op = i;
		l->log->at.inner = NIL;
		l->log->at.code = NULL;
		ops[at].at = i;
		if (!shunt_json_object_at(in(l, array, "ops"), i, &entry) || !load_op(l, entry, false, &ops[at]))
			return false;
		at += 1 + ops[at].nbody;
	}
	l->log->at.op = l->log->at.inner = NIL;
	l->log->at.code = NULL;
	block->nops = (uint32_t)at;
	block->ops = ops;
	return true;
}

int shunt_plan_load_blocks(struct shunt_plan_log *log, struct shunt_arena *arena, struct shunt_plan_gpu *gpu,
    uint32_t rank, const json_t *blocks)
{
	const uint32_t channels[] = { gpu->nchannels[0], gpu->nchannels[1], gpu->nswitches },
	               remotes[] = { gpu->nremotes, gpu->nremotes };
	struct loader l = { .log = log, .arena = arena, .gpu = gpu, .rank = rank };
	struct shunt_plan_block *all = shunt_arena_alloc(arena, gpu->nblocks, sizeof(*all));
	const json_t *object;
	uint64_t id;

	if (shunt_plan_no_memory(log, all))
		return -log->json.err;
	for (uint32_t b = 0; b < gpu->nblocks; b++) {
		log->at.block = b;
		if (!shunt_json_object_at(shunt_json_at(&log->json, blocks, "threadblocks"), b, &object) ||
		    !shunt_json_uint(shunt_json_at(&log->json, object, ""), "id", b, b, &id) ||
		    !load_tables(&l, object, &channel_list, channels, l.channels) ||
		    !load_tables(&l, object, &remote_list, remotes, l.remotes) || !load_ops(&l, object, &all[b]))
			return -log->json.err;
	}
	log->at.block = NIL;
	gpu->blocks = all;
	return 0;
}

/* SPDX-License-Identifier: MIT */
#include "tools/common/libc.h"
#include "tests/plan/op_plans.h"

bool op_case_next(struct op_case *c)
{
	do {
		if (c->type < SHUNT_PLAN_NONE) {
			c->type++;
		} else {
			c->code += c->type == SHUNT_PLAN_NONE;
			c->type = SHUNT_PLAN_MEMORY;
		}
		if (c->code == SHUNT_PLAN_NOPCODES)
			return false;
	} while (shunt_plan_op_rows[c->code].types ? !(shunt_plan_op_rows[c->code].types >> c->type & 1) :
	                                             c->type != SHUNT_PLAN_NONE);
	return true;
}

unsigned op_case_nslices(uint16_t list)
{
	return shunt_plan_list_least(list) + shunt_plan_list_more(list);
}

static const char *type_name(const struct op_case *c)
{
	return shunt_plan_channel_type_name(c->type);
}

static void put_slices(FILE *f, const char *key, uint16_t list, char plain, unsigned packets_at)
{
	fprintf(f, ",\"%s\":[", key);
	for (unsigned i = 0; i < op_case_nslices(list); i++) {
		unsigned kind = shunt_plan_list_kind(list, i), place = kind & SHUNT_PLAN_SLICE_PLACE;
		bool packets = kind & SHUNT_PLAN_SLICE_PACKETS;
		char buffer = packets ? 's' : plain;

		fprintf(f, "%s{", i ? "," : "");
		if (place == SHUNT_PLAN_SLICE_LOCAL)
			fprintf(f, "\"type\":\"%c\"", buffer);
		else
			fprintf(f, "\"%s\":%d", place == SHUNT_PLAN_SLICE_REMOTE ? "buffer_id" : "switch_channel_id",
			    buffer == 'i'     ? 0 :
			        buffer == 'o' ? 1 :
			                        2);
		fprintf(f, ",\"index\":%u,\"size\":1}", packets ? packets_at + i : i);
	}
	fputc(']', f);
}

static void put_op(FILE *f, const struct op_case *c)
{
	const struct shunt_plan_op_row *row = &shunt_plan_op_rows[c->code];
	bool ports = row->ids == SHUNT_PLAN_IDS_PORTS && c->type == SHUNT_PLAN_PORT;

	fprintf(f, "{\"name\":\"%s\"", row->name);
	if (row->types)
		fprintf(f, ",\"channel_type\":\"%s\"", type_name(c));
	if (row->effects & SHUNT_PLAN_OWN_KEYS)
		fputs(
		    ",\"buffer_type\":\"i\",\"buffer_offset\":0,\"size\":1,\"channel_ids\":[0],\"dst_chunk\":{\"type\":"
		    "\"o\",\"index\":0,\"size\":1}",
		    f);
	else if (row->src) {
		put_slices(f, "src_buff", shunt_plan_op_src(row, c->type), 'i', 0);
		put_slices(f, "dst_buff", row->dst, 'o', OP_PLAN_DST);
	}
	if (row->effects & SHUNT_PLAN_REDUCES)
		fputs(",\"reduce_op\":\"sum\"", f);
	if (row->ids == SHUNT_PLAN_IDS_CHANNELS || ports)
		fputs(",\"channel_ids\":[0,0]", f);
	if (row->ids == SHUNT_PLAN_IDS_SEMAPHORES)
		fputs(",\"semaphore_ids\":[0,0]", f);
	if (row->effects & SHUNT_PLAN_SYNCS_BLOCKS)
		fputs(",\"barrier_id\":0,\"num_threadblocks\":2", f);
	if (row->effects & SHUNT_PLAN_REPEATS)
		fputs(
		    ",\"iter_context\":{\"unit_size\":32,\"num_chunks\":1},\"ops\":[{\"name\":\"copy\",\"src_buff\":[{"
		    "\"type\":\"i\",\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":\"o\",\"index\":0,\"size\":1}]}]",
		    f);
	fputc('}', f);
}

/* Packets for the operation, the operation, and what another block or rank does on its behalf. */
static void put_ops(FILE *f, const struct op_case *c, int rank, int block)
{
	const struct shunt_plan_op_row *row = &shunt_plan_op_rows[c->code];
	uint16_t src = shunt_plan_op_src(row, c->type);

	for (unsigned i = 0; !rank && !block && i < op_case_nslices(src); i++)
		if (shunt_plan_list_kind(src, i) & SHUNT_PLAN_SLICE_PACKETS)
			fprintf(f,
			    "{\"name\":\"cpkt\",\"src_buff\":[{\"type\":\"i\",\"index\":%u,\"size\":1}],\"dst_buff\":[{"
			    "\"type\":\"s\",\"index\":%u,\"size\":1}]},{\"name\":\"nop\"},",
			    OP_PLAN_PACKED + i, i);
	if (!rank && (!block || row->effects & SHUNT_PLAN_SYNCS_BLOCKS))
		put_op(f, c);
	else if (!rank && row->ids == SHUNT_PLAN_IDS_SEMAPHORES)
		fprintf(f, "{\"name\":\"%s\",\"semaphore_ids\":[0,0]}",
		    row->effects & SHUNT_PLAN_ACQUIRES ? "sem_release" : "sem_acquire");
	else if (rank && !block && row->effects & (SHUNT_PLAN_SIGNALS | SHUNT_PLAN_WAITS))
		fprintf(f, "{\"name\":\"%s\",\"channel_type\":\"%s\",\"channel_ids\":[0,0]}",
		    row->effects & SHUNT_PLAN_SIGNALS ? "wait" : "signal", type_name(c));
}

#define TYPES "\"access_channel_types\":[\"memory\",\"port\"]}"
#define GROUP(buffer) \
	",{\"channel_type\":\"switch\",\"buffer_type\":\"" buffer "\",\"rank_groups\":[{\"size\":2,\"ranks\":[0,1]}]}"

json_t *op_case_plan(const struct op_case *c)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	json_t *plan;

	fputs("{\"name\":\"op\",\"collective\":\"custom\",\"protocol\":\"LL\",\"inplace\":false,\"gpus\":[", f);
	for (int r = 0; r < 2; r++) {
		fprintf(f,
		    "%s{\"id\":%d,\"input_chunks\":%d,\"output_chunks\":%d,\"scratch_chunks\":%d,\"channels\":["
		    "{\"channel_type\":\"memory\",\"connected_to\":[%d]},{\"channel_type\":\"port\",\"connected_to\":[%"
		    "d]}",
		    r ? "," : "", r, OP_PLAN_INPUTS, OP_PLAN_OUTPUTS, OP_PLAN_SCRATCH, 1 - r, 1 - r);
		fputs(GROUP("i") GROUP("o") GROUP("s") "],\"remote_buffers\":[", f);
		for (int b = 0; b < 3; b++)
			fprintf(f, "%s{\"rank\":%d,\"type\":\"%c\"," TYPES, b ? "," : "", 1 - r, "ios"[b]);
		fprintf(f, "],\"semaphores\":[{\"init_value\":%d}],\"threadblocks\":[", OP_PLAN_SEMAPHORE);
		for (int b = 0; b < 2; b++) {
			fprintf(f,
			    "%s{\"id\":%d,\"channels\":[{\"channel_type\":\"memory\",\"channel_ids\":[0]},{\"channel_"
			    "type\":"
			    "\"port\",\"channel_ids\":[0]},{\"channel_type\":\"switch\",\"channel_ids\":[0,1,2]}],",
			    b ? "," : "", b);
			fputs("\"remote_buffer_refs\":[{\"access_channel_type\":\"memory\",\"remote_buffer_ids\":[0,1,"
			      "2]},{"
			      "\"access_channel_type\":\"port\",\"remote_buffer_ids\":[0,1,2]}],\"ops\":[",
			    f);
			put_ops(f, c, r, b);
			fputs("]}", f);
		}
		fputs("]}", f);
	}
	fputs("]}", f);
	fclose(f);
	plan = json_loads(text, 0, NULL);
	free(text);
	return plan;
}

const char *op_case_path(const struct op_case *c)
{
	const struct shunt_plan_op_row *row = &shunt_plan_op_rows[c->code];
	uint16_t src = shunt_plan_op_src(row, c->type);
	static char path[64];
	unsigned before = 0;

	for (unsigned i = 0; i < op_case_nslices(src); i++)
		before += shunt_plan_list_kind(src, i) & SHUNT_PLAN_SLICE_PACKETS ? 2 : 0;
	snprintf(path, sizeof(path), "gpus/0/threadblocks/0/ops/%u", before);
	return path;
}

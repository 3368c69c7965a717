/* SPDX-License-Identifier: MIT */
/* Writes plans as JSON text. The format's numbers of channels and remote buffers follow from the peers of a rank. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "plan/format/ops.h"
#include "tools/plan/plan.h"

static unsigned count_peers(const struct plan_writer *w)
{
	unsigned n = w->recipe->nranks;

	return !w->ring ? n - 1 : n > 2 ? 2 : 1;
}

/* Order of a rank's peers: starts after the rank itself, so that ranks do not all begin with the same one. */
static unsigned peer_at(const struct plan_writer *w, unsigned i)
{
	unsigned n = w->recipe->nranks;

	return (w->rank + (w->ring && i ? n - 1 : i + 1)) % n;
}

static unsigned peer_index(const struct plan_writer *w, unsigned peer)
{
	unsigned i = 0;

	while (peer_at(w, i) != peer)
		i++;
	return i;
}

/* On a ring data goes to the next rank only. */
static unsigned count_remotes(const struct plan_writer *w)
{
	return w->ring ? 1 : count_peers(w);
}

void plan_write_rank(struct plan_writer *w, unsigned rank, const unsigned chunks[3], bool ring, unsigned links)
{
	FILE *out = w->out;

	w->rank = rank;
	w->ring = ring;
	w->nlinks = links;
	fprintf(out,
	    "%s\n    {\n      \"id\": %u, \"input_chunks\": %u, \"output_chunks\": %u, \"scratch_chunks\": %u,\n",
	    rank ? "," : "", rank, chunks[0], chunks[1], chunks[2]);
	fputs("      \"channels\": [{\"channel_type\": \"memory\", \"connected_to\": [", out);
	for (unsigned i = 0; i < links * count_peers(w); i++)
		fprintf(out, "%s%u", i ? ", " : "", peer_at(w, i % count_peers(w)));
	fputs("]}],\n      \"remote_buffers\": [", out);
	for (unsigned i = 0; i < count_remotes(w); i++)
		fprintf(out, "%s\n        {\"rank\": %u, \"type\": \"s\", \"access_channel_types\": [\"memory\"]}",
		    i ? "," : "", peer_at(w, i));
	fputs("\n      ],\n      \"threadblocks\": [", out);
}

void plan_write_rank_end(struct plan_writer *w)
{
	fputs("\n      ]\n    }", w->out);
}

void plan_write_block(struct plan_writer *w, unsigned block, unsigned first, unsigned n)
{
	FILE *out = w->out;

	fprintf(out,
	    "%s\n        {\n          \"id\": %u,\n          \"channels\": [{\"channel_type\": \"memory\", "
	    "\"channel_ids\": [",
	    block ? "," : "", block);
	for (unsigned i = 0; i < n * count_peers(w); i++)
		fprintf(out, "%s%u", i ? ", " : "", first * count_peers(w) + i);
	fputs("]}],\n          \"remote_buffer_refs\": [{\"access_channel_type\": \"memory\", \"remote_buffer_ids\": [",
	    out);
	for (unsigned i = 0; i < count_remotes(w); i++)
		fprintf(out, "%s%u", i ? ", " : "", i);
	fputs("]}],\n          \"ops\": [", out);
	w->comma = "";
}

void plan_write_block_end(struct plan_writer *w)
{
	fputs("\n          ]\n        }", w->out);
}

static void op_begin(struct plan_writer *w, const char *op)
{
	fprintf(w->out, "%s\n            %s{\"name\": \"%s\"", w->comma, w->in_pipeline ? "  " : "", op);
	w->comma = ",";
}

void plan_write_sync(struct plan_writer *w, const char *op, unsigned link, const unsigned *peers, unsigned n)
{
	unsigned ids[64], at;

	/* Ascending, as the format's own generator writes them. */
	for (unsigned i = 0; i < n; i++) {
		unsigned id = link * count_peers(w) + peer_index(w, peers[i]);

		for (at = i; at && ids[at - 1] > id; at--)
			ids[at] = ids[at - 1];
		ids[at] = id;
	}
	op_begin(w, op);
	fputs(", \"channel_type\": \"memory\", \"channel_ids\": [", w->out);
	for (unsigned i = 0; i < n; i++)
		fprintf(w->out, "%s%u", i ? ", " : "", ids[i]);
	fputs("]}", w->out);
}

void plan_write_nop(struct plan_writer *w)
{
	op_begin(w, "nop");
	putc('}', w->out);
}

static void write_slices(struct plan_writer *w, const char *key, const struct plan_slice *at, unsigned n)
{
	fprintf(w->out, ", \"%s\": [", key);
	for (unsigned i = 0; i < n; i++) {
		fputs(i ? ", " : "", w->out);
		if (at[i].peer < 0)
			fprintf(w->out, "{\"type\": \"%c\"", at[i].buffer);
		else
			fprintf(w->out, "{\"buffer_id\": %u", peer_index(w, (unsigned)at[i].peer));
		fprintf(w->out, ", \"index\": %u, \"size\": %u}", at[i].index, at[i].size);
	}
	putc(']', w->out);
}

static const struct shunt_plan_op_row *find_row(const char *op)
{
	const struct shunt_plan_op_row *row = shunt_plan_op_rows;

	while (strcmp(row->name, op))
		row++;
	return row;
}

void plan_write_data(struct plan_writer *w, const char *op, const struct plan_slice *src, unsigned nsrc,
    const struct plan_slice *dst, unsigned ndst)
{
	const struct shunt_plan_op_row *row = find_row(op);

	op_begin(w, op);
	write_slices(w, "src_buff", src, nsrc);
	write_slices(w, "dst_buff", dst, ndst);
	if (row->types)
		fputs(", \"channel_type\": \"memory\"", w->out);
	if (row->effects & SHUNT_PLAN_REDUCES)
		fprintf(w->out, ", \"reduce_op\": \"%s\"", w->recipe->redop);
	if (w->parts > 1)
		fprintf(w->out, ", \"tbg_info\": {\"tb_id\": %d, \"tbg_size\": %d}", w->part, w->parts);
	putc('}', w->out);
}

void plan_write_pipeline(struct plan_writer *w)
{
	op_begin(w, "pipeline");
	fprintf(
	    w->out, ", \"iter_context\": {\"unit_size\": %" PRIu64 ", \"num_chunks\": 1}, \"ops\": [", w->recipe->unit);
	w->comma = "";
	w->in_pipeline = true;
}

void plan_write_pipeline_end(struct plan_writer *w)
{
	fputs("\n            ]}", w->out);
	w->in_pipeline = false;
	w->comma = ",";
}

char *plan_recipe_text(const struct plan_recipe *r)
{
	struct plan_writer w = { .recipe = r, .parts = 1 };
	char *text = NULL;
	size_t bytes;

	w.out = open_memstream(&text, &bytes);
	if (!w.out)
		return NULL;
	fputs("{\n  \"name\": ", w.out);
	shunt_json_write_text(&(struct shunt_json_writer){ .out = w.out }, NULL, r->name);
	fprintf(w.out,
	    ",\n  \"collective\": \"%s\",\n  \"protocol\": \"%s\",\n  \"inplace\": %s,\n  \"reuse_resources\": %s,\n",
	    r->shape->plan_collective, r->shape->ll ? "LL" : "Simple", r->inplace ? "true" : "false",
	    r->shape->ll ? "true" : "false");
	fprintf(w.out,
	    "  \"use_double_scratch_buffer\": %s,\n  \"buffer_alignment\": 16,\n  \"num_threads_per_block\": %u,\n",
	    r->shape->ll ? "true" : "false", r->threads);
	fprintf(w.out, "  \"min_message_size\": %" PRIu64 ",\n  \"max_message_size\": %" PRIu64 ",\n", r->min_bytes,
	    r->max_bytes);
	if (r->priority)
		fprintf(w.out, "  \"tags\": {\"priority\": %d},\n", r->priority);
	fputs("  \"gpus\": [", w.out);
	r->shape->write(&w, r);
	fputs("\n  ]\n}\n", w.out);
	/* The stream keeps errors; out of memory is the only one. */
	bool bad = ferror(w.out);
	if (fclose(w.out) || bad) {
		free(text);
		return NULL;
	}
	return text;
}

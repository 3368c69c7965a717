/* SPDX-License-Identifier: MIT */
/* Writes plans as JSON text. The format's numbers of channels and remote buffers follow from the peers of a rank. */
#include "tools/common/libc.h"
#include "base/json.h"
#include "plan/format/op_rows.h"
#include "tools/plan/plan.h"

unsigned plan_locals(const struct plan_writer *w)
{
	return w->recipe->nhosts ? w->recipe->nranks / w->recipe->nhosts : w->recipe->nranks;
}

unsigned plan_rail_rank(const struct plan_writer *w, unsigned h)
{
	return h * plan_locals(w) + w->rank % plan_locals(w);
}

static bool is_far(const struct plan_writer *w, unsigned peer)
{
	return peer / plan_locals(w) != w->rank / plan_locals(w);
}

static unsigned count_peers(const struct plan_writer *w)
{
	unsigned n = plan_locals(w);

	return !w->ring ? n - 1 : n > 2 ? 2 : 1;
}

static unsigned count_rails(const struct plan_writer *w)
{
	return w->recipe->nhosts ? w->recipe->nhosts - 1 : 0;
}

/* Order of a rank's peers: starts after the rank itself, so that ranks do not all begin with the same one. */
static unsigned peer_at(const struct plan_writer *w, unsigned i)
{
	unsigned n = plan_locals(w);

	return w->rank / n * n + (w->rank % n + (w->ring && i ? n - 1 : i + 1)) % n;
}

static unsigned rail_at(const struct plan_writer *w, unsigned i)
{
	return plan_rail_rank(w, (w->rank / plan_locals(w) + i + 1) % (count_rails(w) + 1));
}

/* In a set of channels, and in a list of remote buffers. */
static unsigned peer_index(const struct plan_writer *w, unsigned peer)
{
	unsigned i = 0;

	while ((is_far(w, peer) ? rail_at(w, i) : peer_at(w, i)) != peer)
		i++;
	return i;
}

/* Remote buffers of one letter of w->mates. On a ring data goes to the next rank only. */
static unsigned count_remotes(const struct plan_writer *w)
{
	return w->ring ? 1 : count_peers(w);
}

/* {"channel_type": "memory", "connected_to": [1, 2, 1, 2]}: `sets` times n of them. */
struct id_list {
	const char *type_key, *type, *key;
	unsigned first, sets, n;
	unsigned (*at)(const struct plan_writer *w, unsigned i); /* NULL: numbers from `first` on */
};

/* Writes a list of such lists, without those that are empty. */
static void write_lists(struct plan_writer *w, const struct id_list *lists, unsigned nlists)
{
	const char *comma = "";

	for (unsigned k = 0; k < nlists; k++) {
		const struct id_list *l = &lists[k];

		if (!l->n)
			continue;
		fprintf(w->out, "%s{\"%s\": \"%s\", \"%s\": [", comma, l->type_key, l->type, l->key);
		for (unsigned set = 0; set < l->sets; set++)
			for (unsigned i = 0; i < l->n; i++)
				fprintf(w->out, "%s%u", set || i ? ", " : "",
				    l->at ? l->at(w, i) : l->first + set * l->n + i);
		fputs("]}", w->out);
		comma = ", ";
	}
}

static void write_remotes(struct plan_writer *w)
{
	const char *comma = "";

	for (const char *buffer = w->mates; *buffer; buffer++)
		for (unsigned i = 0; i < count_remotes(w); i++, comma = ",")
			fprintf(w->out,
			    "%s\n        {\"rank\": %u, \"type\": \"%c\", \"access_channel_types\": [\"memory\"]}",
			    comma, peer_at(w, i), *buffer);
	for (unsigned i = 0; i < count_rails(w); i++, comma = ",")
		fprintf(w->out, "%s\n        {\"rank\": %u, \"type\": \"s\", \"access_channel_types\": [\"port\"]}",
		    comma, rail_at(w, i));
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
	fputs("      \"channels\": [", out);
	write_lists(w,
	    (const struct id_list[]){ { "channel_type", "memory", "connected_to", 0, links, count_peers(w), peer_at },
	        { "channel_type", "port", "connected_to", 0, links, count_rails(w), rail_at } },
	    2);
	fputs("],\n      \"remote_buffers\": [", out);
	write_remotes(w);
	fputs("\n      ],\n      \"threadblocks\": [", out);
}

void plan_write_rank_end(struct plan_writer *w)
{
	fputs("\n      ]\n    }", w->out);
}

void plan_write_block(struct plan_writer *w, unsigned block, unsigned first, unsigned n)
{
	unsigned peers = count_peers(w), rails = count_rails(w), near = (unsigned)strlen(w->mates) * count_remotes(w);
	FILE *out = w->out;

	fprintf(out, "%s\n        {\n          \"id\": %u,\n          \"channels\": [", block ? "," : "", block);
	write_lists(w,
	    (const struct id_list[]){ { "channel_type", "memory", "channel_ids", first * peers, n, peers, NULL },
	        { "channel_type", "port", "channel_ids", first * rails, n, rails, NULL } },
	    2);
	fputs("],\n          \"remote_buffer_refs\": [", out);
	write_lists(w,
	    (const struct id_list[]){ { "access_channel_type", "memory", "remote_buffer_ids", 0, 1, near, NULL },
	        { "access_channel_type", "port", "remote_buffer_ids", near, 1, rails, NULL } },
	    2);
	fputs("],\n          \"ops\": [", out);
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
	bool far = is_far(w, peers[0]);
	unsigned ids[64], at;

	/* Ascending, as the format's own generator writes them. */
	for (unsigned i = 0; i < n; i++) {
		unsigned id = link * (far ? count_rails(w) : count_peers(w)) + peer_index(w, peers[i]);

		for (at = i; at && ids[at - 1] > id; at--)
			ids[at] = ids[at - 1];
		ids[at] = id;
	}
	op_begin(w, op);
	fprintf(w->out, ", \"channel_type\": \"%s\", \"channel_ids\": [", far ? "port" : "memory");
	for (unsigned i = 0; i < n; i++)
		fprintf(w->out, "%s%u", i ? ", " : "", ids[i]);
	fputs("]}", w->out);
}

void plan_write_nop(struct plan_writer *w)
{
	op_begin(w, "nop");
	putc('}', w->out);
}

/* In the block's list of remote buffers that are reached in the same way. */
static unsigned remote_index(const struct plan_writer *w, const struct plan_slice *at)
{
	unsigned buffer = 0;

	if (is_far(w, (unsigned)at->peer))
		return peer_index(w, (unsigned)at->peer);
	while (w->mates[buffer] != at->buffer)
		buffer++;
	return buffer * count_remotes(w) + peer_index(w, (unsigned)at->peer);
}

static void write_slices(struct plan_writer *w, const char *key, const struct plan_slice *at, unsigned n)
{
	fprintf(w->out, ", \"%s\": [", key);
	for (unsigned i = 0; i < n; i++) {
		fputs(i ? ", " : "", w->out);
		if (at[i].peer < 0)
			fprintf(w->out, "{\"type\": \"%c\"", at[i].buffer);
		else
			fprintf(w->out, "{\"buffer_id\": %u", remote_index(w, &at[i]));
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

static void write_ports(struct plan_writer *w, const struct plan_slice *dst, unsigned n)
{
	fputs(", \"channel_type\": \"port\", \"channel_ids\": [", w->out);
	for (unsigned i = 0; i < n; i++)
		fprintf(w->out, "%s%u", i ? ", " : "", peer_index(w, (unsigned)dst[i].peer));
	putc(']', w->out);
}

void plan_write_data(struct plan_writer *w, const char *op, const struct plan_slice *src, unsigned nsrc,
    const struct plan_slice *dst, unsigned ndst)
{
	const struct shunt_plan_op_row *row = find_row(op);
	int last = dst[ndst - 1].peer;

	op_begin(w, op);
	write_slices(w, "src_buff", src, nsrc);
	write_slices(w, "dst_buff", dst, ndst);
	if (row->types && last >= 0 && is_far(w, (unsigned)last))
		write_ports(w, dst, ndst);
	else if (row->types)
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
	struct plan_writer w = { .recipe = r, .parts = 1, .mates = "s" };
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
	if (r->nhosts)
		fprintf(w.out, "  \"nranks_per_node\": %u,\n", r->nranks / r->nhosts);
	if (r->priority || r->by_name)
		fprintf(w.out, "  \"tags\": {\"priority\": %d%s},\n", r->priority, r->by_name ? ", \"auto\": 0" : "");
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

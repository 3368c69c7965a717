/* SPDX-License-Identifier: MIT */
#include "tools/common/libc.h"
#include "tests/plan/exec_plans.h"

/* A text under construction: commas are put where the last thing was not an opening bracket. */
struct text {
	FILE *f;
	char *p;
	size_t n;
	int ranks, rank;
	bool gpu, block; /* are open */
	const char *channel, *buffers, *more;
};

static void begin_plan(
    struct text *t, int n, const char *name, const char *collective, const char *protocol, bool inplace, bool twice)
{
	memset(t, 0, sizeof(*t));
	t->f = open_memstream(&t->p, &t->n);
	t->ranks = n;
	fprintf(t->f,
	    "{\"name\":\"%s\",\"collective\":\"%s\",\"protocol\":\"%s\",\"inplace\":%s,\"use_double_scratch_buffer\":%"
	    "s,",
	    name, collective, protocol, inplace ? "true" : "false", twice ? "true" : "false");
	fprintf(t->f, "\"num_threads_per_block\":256,\"gpus\":[");
}

static void close_block(struct text *t)
{
	if (t->block)
		fprintf(t->f, "]},");
	t->block = false;
}

static void close_gpu(struct text *t)
{
	close_block(t);
	if (t->gpu)
		fprintf(t->f, "]%s},", t->more);
	t->gpu = false;
}

static char *end_plan(struct text *t)
{
	char *out;
	size_t w = 0;

	close_gpu(t);
	fprintf(t->f, "]}");
	fclose(t->f);
	/* ",]" and ",}" are easier to repair than to avoid. */
	out = t->p;
	for (size_t i = 0; t->p[i]; i++)
		if (t->p[i] != ',' || (t->p[i + 1] != ']' && t->p[i + 1] != '}'))
			out[w++] = t->p[i];
	out[w] = 0;
	return out;
}

/* Number of peer p among the others of our rank. */
static int peer_index(const struct text *t, int p)
{
	return p < t->rank ? p : p - 1;
}

static int buffer_id(const struct text *t, int p, char letter)
{
	return peer_index(t, p) * (int)strlen(t->buffers) + (int)(strchr(t->buffers, letter) - t->buffers);
}

/*
 * A rank with `channels` channels of one type to each other rank (numbered peer by peer) that may use all of their
 * `buffers`. It ends where the next one, or the plan, begins or ends; so do blocks.
 */
static void gpu_begin(struct text *t, int rank, int in, int out, int scratch, const char *channel, int channels,
    const char *buffers, const char *more)
{
	close_gpu(t);
	t->gpu = true;
	t->rank = rank;
	t->channel = channel;
	t->buffers = buffers;
	t->more = "";
	fprintf(t->f, "{\"id\":%d,\"input_chunks\":%d,\"output_chunks\":%d,\"scratch_chunks\":%d,\"channels\":[", rank,
	    in, out, scratch);
	if (t->ranks > 1 && channels) {
		fprintf(t->f, "{\"channel_type\":\"%s\",\"connected_to\":[", channel);
		for (int p = 0; p < t->ranks; p++)
			for (int k = 0; k < channels && p != rank; k++)
				fprintf(t->f, "%d,", p);
		fprintf(t->f, "]},");
	}
	for (const char *b = more; *b; b++) {
		fprintf(t->f,
		    "{\"channel_type\":\"switch\",\"buffer_type\":\"%c\",\"rank_groups\":[{\"size\":%d,\"ranks\":[", *b,
		    t->ranks);
		for (int p = 0; p < t->ranks; p++)
			fprintf(t->f, "%d,", p);
		fprintf(t->f, "]}]},");
	}
	fprintf(t->f, "],\"remote_buffers\":[");
	for (int p = 0; p < t->ranks; p++)
		for (const char *b = buffers; *b && p != rank; b++)
			fprintf(
			    t->f, "{\"rank\":%d,\"type\":\"%c\",\"access_channel_types\":[\"%s\"]},", p, *b, channel);
	fprintf(t->f, "],\"threadblocks\":[");
}

/* A block that may use channels first .. first + count - 1 and everything else. */
static void block_begin(struct text *t, int id, int first, int count, int switches)
{
	int buffers = (t->ranks - 1) * (int)strlen(t->buffers);

	close_block(t);
	t->block = true;
	fprintf(t->f, "{\"id\":%d,\"channels\":[", id);
	if (count) {
		fprintf(t->f, "{\"channel_type\":\"%s\",\"channel_ids\":[", t->channel);
		for (int i = 0; i < count; i++)
			fprintf(t->f, "%d,", first + i);
		fprintf(t->f, "]},");
	}
	if (switches) {
		fprintf(t->f, "{\"channel_type\":\"switch\",\"channel_ids\":[");
		for (int i = 0; i < switches; i++)
			fprintf(t->f, "%d,", i);
		fprintf(t->f, "]},");
	}
	fprintf(t->f, "],\"remote_buffer_refs\":[");
	if (buffers) {
		fprintf(t->f, "{\"access_channel_type\":\"%s\",\"remote_buffer_ids\":[", t->channel);
		for (int i = 0; i < buffers; i++)
			fprintf(t->f, "%d,", i);
		fprintf(t->f, "]},");
	}
	fprintf(t->f, "],\"ops\":[");
}

static void write_nop(struct text *t)
{
	fprintf(t->f, "{\"name\":\"nop\"},");
}

/* signal, wait, flush on channels from .. to - 1 of the block. */
static void write_channels(struct text *t, const char *name, int from, int to)
{
	fprintf(t->f, "{\"name\":\"%s\",\"channel_type\":\"%s\",\"channel_ids\":[", name, t->channel);
	for (int i = from; i < to; i++)
		fprintf(t->f, "%d,", i);
	fprintf(t->f, "]},");
}

#define LOCAL "{\"type\":\"%c\",\"index\":%d,\"size\":1},"
#define REMOTE "{\"buffer_id\":%d,\"index\":%d,\"size\":1},"

static void local_copy(struct text *t, const char *name, char from, int i, char to, int j)
{
	fprintf(t->f, "{\"name\":\"%s\",\"src_buff\":[" LOCAL "],\"dst_buff\":[" LOCAL "]},", name, from, i, to, j);
}

static void write_put(struct text *t, const char *name, char from, int i, int p, char to, int j)
{
	fprintf(t->f, "{\"name\":\"%s\",\"channel_type\":\"%s\",\"src_buff\":[" LOCAL "],\"dst_buff\":[" REMOTE "]",
	    name, t->channel, from, i, buffer_id(t, p, to), j);
	if (!strcmp(t->channel, "port"))
		fprintf(t->f, ",\"channel_ids\":[%d]", peer_index(t, p));
	fprintf(t->f, "},");
}

char *plan_twoshot(int n, int blocks, const char *redop)
{
	struct text t;

	begin_plan(&t, n, "twoshot", "allreduce", "LL", true, true);
	for (int r = 0; r < n; r++) {
		gpu_begin(&t, r, n * blocks, n * blocks, 2 * n * blocks, "memory", 1, "s", "");
		for (int b = 0; b < blocks; b++) {
			block_begin(&t, b, 0, n - 1, 0);
			for (int p = 0; p < n; p++)
				if (p != r)
					write_put(&t, "ppkt", 'i', p * blocks + b, p, 's', r * blocks + b);
			fprintf(t.f,
			    "{\"name\":\"respkt\",\"channel_type\":\"memory\",\"reduce_op\":\"%s\",\"src_buff\":"
			    "[" LOCAL,
			    redop, 'i', r * blocks + b);
			for (int p = 0; p < n; p++)
				if (p != r)
					fprintf(t.f, LOCAL, 's', p * blocks + b);
			fprintf(t.f, "],\"dst_buff\":[" LOCAL, 'i', r * blocks + b);
			for (int p = 0; p < n; p++)
				if (p != r)
					fprintf(t.f, REMOTE, buffer_id(&t, p, 's'), (n + r) * blocks + b);
			fprintf(t.f, "]},");
			for (int p = 0; p < n; p++)
				if (p != r)
					local_copy(&t, "upkt", 's', (n + p) * blocks + b, 'i', p * blocks + b);
		}
	}
	return end_plan(&t);
}

char *plan_get(int n)
{
	struct text t;

	begin_plan(&t, n, "get", "allgather", "Simple", false, false);
	for (int r = 0; r < n; r++) {
		gpu_begin(&t, r, 1, n, 0, "memory", 1, "i", "");
		block_begin(&t, 0, 0, n - 1, 0);
		local_copy(&t, "copy", 'i', 0, 'o', r);
		for (int p = 0; p < n; p++)
			if (p != r)
				fprintf(t.f,
				    "{\"name\":\"get\",\"channel_type\":\"memory\",\"src_buff\":[" REMOTE
				    "],\"dst_buff\":[" LOCAL "]},",
				    buffer_id(&t, p, 'i'), 0, 'o', p);
	}
	return end_plan(&t);
}

char *plan_acks(int n)
{
	struct text t;

	begin_plan(&t, n, "acks", "allgather", "Simple", false, false);
	for (int r = 0; r < n; r++) {
		gpu_begin(&t, r, 1, n, n, "memory", 2, "s", "");
		for (int p = 0; p < n; p++) {
			if (p == r)
				continue;
			block_begin(&t, peer_index(&t, p), 2 * peer_index(&t, p), 2, 0);
			if (!peer_index(&t, p))
				local_copy(&t, "copy", 'i', 0, 'o', r);
			write_put(&t, "put", 'i', 0, p, 's', r);
			write_nop(&t);
			write_channels(&t, "signal", 0, 1);
			write_channels(&t, "wait", 0, 1);
			write_nop(&t);
			local_copy(&t, "copy", 's', p, 'o', p);
			write_nop(&t);
			write_channels(&t, "signal", 1, 2);
			write_channels(&t, "wait", 1, 2);
		}
	}
	return end_plan(&t);
}

char *plan_switch(int n)
{
	struct text t;

	begin_plan(&t, n, "switch", "allreduce", "Simple", false, false);
	for (int r = 0; r < n; r++) {
		gpu_begin(&t, r, n, n, 1, "memory", 1, "", "io");
		block_begin(&t, 0, 0, n - 1, 2);
		fprintf(t.f,
		    "{\"name\":\"glre\",\"buffer_type\":\"i\",\"buffer_offset\":%d,\"size\":1,\"dst_chunk\":{\"rank\":%"
		    "d,\"type\":\"s\",\"index\":0,"
		    "\"size\":1},\"channel_ids\":[0],\"channel_type\":\"switch\",\"reduce_op\":\"sum\"},",
		    r, r);
		write_nop(&t);
		fprintf(t.f,
		    "{\"name\":\"gstore\",\"channel_type\":\"switch\",\"src_buff\":[" LOCAL
		    "],\"dst_buff\":[{\"switch_channel_id\":1,\"index\":%d,"
		    "\"size\":1}]},",
		    's', 0, r);
		write_nop(&t);
		write_channels(&t, "signal", 0, n - 1);
		write_channels(&t, "wait", 0, n - 1);
	}
	return end_plan(&t);
}

char *plan_port(int n, int inplace)
{
	struct text t;

	begin_plan(&t, n, "port", "allgather", "Simple", inplace, false);
	for (int r = 0; r < n; r++) {
		gpu_begin(&t, r, 1, n, 0, "port", 1, "o", "");
		block_begin(&t, 0, 0, n - 1, 0);
		if (!inplace)
			local_copy(&t, "copy", 'i', 0, 'o', r);
		for (int p = 0; p < n; p++)
			if (p != r && p % 2)
				write_put(&t, "pws", inplace ? 'o' : 'i', inplace ? r : 0, p, 'o', r);
		for (int p = 0; p < n; p++)
			if (p != r && p % 2 == 0) {
				write_put(&t, "put", inplace ? 'o' : 'i', inplace ? r : 0, p, 'o', r);
				write_channels(&t, "signal", peer_index(&t, p), peer_index(&t, p) + 1);
			}
		write_channels(&t, "flush", 0, n - 1);
		write_channels(&t, "wait", 0, n - 1);
	}
	return end_plan(&t);
}

char *plan_long(int count)
{
	struct text t;

	begin_plan(&t, 2, "long", "allgather", "LL", false, true);
	for (int r = 0; r < 2; r++) {
		gpu_begin(&t, r, count, 2 * count, count, "memory", 1, "s", "");
		block_begin(&t, 0, 0, 1, 0);
		for (int i = 0; i < count; i++)
			write_put(&t, "ppkt", 'i', i, 1 - r, 's', i);
		for (int i = 0; i < count; i++) {
			local_copy(&t, "copy", 'i', i, 'o', r * count + i);
			local_copy(&t, "upkt", 's', i, 'o', (1 - r) * count + i);
		}
	}
	return end_plan(&t);
}

char *plan_windows(int window)
{
	struct text t;

	begin_plan(&t, 1, "windows", "allreduce", "Simple", false, false);
	gpu_begin(&t, 0, 2, 2, 2, "memory", 0, "", "");
	for (int b = 0; b < 2; b++) {
		block_begin(&t, b, 0, 0, 0);
		fprintf(t.f, "{\"name\":\"pipeline\",\"iter_context\":{\"unit_size\":%d,\"num_chunks\":2},\"ops\":[",
		    window);
		if (b) {
			fprintf(t.f, "{\"name\":\"sem_acquire\",\"semaphore_ids\":[0]},");
			write_nop(&t);
		}
		fprintf(t.f,
		    "{\"name\":\"copy\",\"src_buff\":[{\"type\":\"%c\",\"index\":0,\"size\":2}],\"dst_buff\":[{"
		    "\"type\":\"%c\",\"index\":0,\"size\":2}]},",
		    b ? 's' : 'i', b ? 'o' : 's');
		if (!b) {
			write_nop(&t);
			fprintf(t.f, "{\"name\":\"sem_release\",\"semaphore_ids\":[0]},");
		}
		fprintf(t.f, "]}");
	}
	t.more = ",\"semaphores\":[{\"init_value\":0}]";
	return end_plan(&t);
}

char *plan_packed(void)
{
	struct text t;

	begin_plan(&t, 1, "packed", "custom", "LL", false, true);
	gpu_begin(&t, 0, 1, 3, 1, "memory", 0, "", "");
	block_begin(&t, 0, 0, 0, 0);
	local_copy(&t, "copy", 'i', 0, 'o', 0);
	local_copy(&t, "cpkt", 'o', 0, 's', 0);
	local_copy(&t, "upkt", 's', 0, 'o', 1);
	local_copy(&t, "copy", 'o', 1, 'o', 2);
	return end_plan(&t);
}

char *plan_mixed(void)
{
	static const char *const redops[] = { "max", "prod" };
	struct text t;

	begin_plan(&t, 1, "mixed", "custom", "Simple", false, false);
	gpu_begin(&t, 0, 3, 2, 0, "memory", 0, "", "");
	block_begin(&t, 0, 0, 0, 0);
	for (int i = 0; i < 2; i++)
		fprintf(t.f,
		    "{\"name\":\"re\",\"reduce_op\":\"%s\",\"src_buff\":[" LOCAL LOCAL LOCAL "],\"dst_buff\":[" LOCAL
		    "]},",
		    redops[i], 'i', 0, 'i', 1, 'i', 2, 'o', i);
	return end_plan(&t);
}

char *plan_scatter(int n)
{
	struct text t;

	begin_plan(&t, n, "scatter", "reducescatter", "Simple", true, false);
	for (int r = 0; r < n; r++) {
		gpu_begin(&t, r, n, 1, 0, "memory", 1, "i", "");
		block_begin(&t, 0, 0, n - 1, 0);
		fprintf(t.f, "{\"name\":\"rre\",\"channel_type\":\"memory\",\"reduce_op\":\"sum\",\"src_buff\":[" LOCAL,
		    'i', r);
		for (int p = 0; p < n; p++)
			if (p != r)
				fprintf(t.f, REMOTE, buffer_id(&t, p, 'i'), r);
		fprintf(t.f, "],\"dst_buff\":[" LOCAL "]},", 'i', r);
	}
	return end_plan(&t);
}

char *plan_parts(int scatter)
{
	const char *buffer = scatter ? "o" : "i";
	struct text t;

	begin_plan(&t, 2, "parts", scatter ? "reducescatter" : "allgather", "Simple", true, false);
	for (int r = 0; r < 2; r++) {
		gpu_begin(&t, r, !scatter, scatter, 1, "memory", 1, buffer, "");
		block_begin(&t, 0, 0, 1, 0);
		local_copy(&t, "copy", buffer[0], 0, 's', 0);
		write_nop(&t);
		write_channels(&t, "signal", 0, 1);
		write_channels(&t, "wait", 0, 1);
		write_nop(&t);
		write_put(&t, "put", 's', 0, 1 - r, buffer[0], 0);
		write_nop(&t);
		write_channels(&t, "signal", 0, 1);
		write_channels(&t, "wait", 0, 1);
	}
	return end_plan(&t);
}

char *plan_staged(void)
{
	struct text t;

	begin_plan(&t, 2, "staged", "allreduce", "LL", true, true);
	for (int r = 0; r < 2; r++) {
		gpu_begin(&t, r, 1, 1, 3, "memory", 1, "s", "");
		block_begin(&t, 0, 0, 1, 0);
		local_copy(&t, "copy", 'i', 0, 's', 2);
		write_nop(&t);
		write_put(&t, "ppkt", 's', 2, 1 - r, 's', 0);
		fprintf(t.f,
		    "{\"name\":\"repkt\",\"reduce_op\":\"sum\",\"src_buff\":[" LOCAL LOCAL "],\"dst_buff\":[" LOCAL
		    "]},",
		    'i', 0, 's', 0, 'i', 0);
	}
	return end_plan(&t);
}

char *plan_answers(void)
{
	struct text t;

	begin_plan(&t, 2, "answers", "allreduce", "LL", true, true);
	for (int r = 0; r < 2; r++) {
		gpu_begin(&t, r, 2, 2, 2, "memory", 1, "is", "");
		block_begin(&t, 0, 0, 1, 0);
		fprintf(t.f,
		    "{\"name\":\"rre\",\"channel_type\":\"memory\",\"reduce_op\":\"sum\",\"src_buff\":[" LOCAL REMOTE
		    "],\"dst_buff\":[" LOCAL "]},",
		    'i', r, buffer_id(&t, 1 - r, 'i'), r, 'i', r);
		write_nop(&t);
		write_put(&t, "ppkt", 'i', r, 1 - r, 's', r);
		local_copy(&t, "upkt", 's', 1 - r, 'i', 1 - r);
	}
	return end_plan(&t);
}

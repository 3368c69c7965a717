/* SPDX-License-Identifier: MIT */
/* The mock library: its devices, streams, events and graphs, and what it counts. */
#include "tests/tools/mock.h"
#include "tests/support/stub.h"
#include "tools/common/libc.h"

/* Does one thing, and returns 0. */
#define DOES(name, params, what) STUB(EXPORT int, name, params, ((what), 0))

STUB(EXPORT const char *, shunt_build, (void), "mock (abc1234, 2026-01-01; gcc 1)")
STUB(EXPORT const char *, shunt_version, (void), "mock")
STUB(EXPORT const char *, shunt_real_nccl_path, (void), getenv("MOCK_REAL"))

EXPORT int shunt_counters(const void *comm, struct shunt_counter *rows, size_t cap, size_t *count_p)
{
	const struct ncclComm *c = comm;
	size_t n = 0;

	for (int kind = 0; kind < SHUNT_NKINDS; kind++)
		for (int large = 0; large < 2; large++)
			if (c->counters[kind][large].calls && n++ < cap)
				rows[n - 1] = (struct shunt_counter){ shunt_kind_name((enum shunt_kind)kind),
					mock_path_name(large), "", c->counters[kind][large].calls,
					c->counters[kind][large].bytes };
	*count_p = n;
	return 0;
}

DOES(shunt_path_of, (const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p),
    *path_p = mock_path_name(mock_is_large(count)))
STUB(EXPORT const char *, shunt_device_kind, (void), getenv("MOCK_KIND") ? getenv("MOCK_KIND") : "sim")
DOES(shunt_device_name, (int device, char *name, size_t bytes), snprintf(name, bytes, "mock device"))
DOES(shunt_device_count, (int *count_p), *count_p = MAX_RANKS)

EXPORT int shunt_device_set(int wanted)
{
	if (wanted >= MAX_RANKS)
		return -ENODEV;
	mock_current_device = wanted;
	return 0;
}

STUB(EXPORT int, shunt_stream_create, (void **stream_p), (*stream_p = calloc(1, sizeof(struct stream))) ? 0 : -ENOMEM)

EXPORT int shunt_stream_synchronize(void *stream)
{
	if (stream)
		((struct stream *)stream)->synchronized++;
	return 0;
}

STUB(EXPORT int, shunt_event_create, (void **event_p), (*event_p = calloc(1, sizeof(struct event))) ? 0 : -ENOMEM)

EXPORT int shunt_event_record(void *event, void *stream)
{
	struct event *e = event;
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	e->stream = stream;
	e->synchronized = e->stream->synchronized;
	e->us = (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
	return 0;
}

EXPORT int shunt_event_elapsed_us(void *start, void *stop, float *us_p)
{
	struct event *from = start, *to = stop;

	if (to->stream->synchronized == to->synchronized)
		return -EAGAIN;
	*us_p = (float)(to->us - from->us);
	return 0;
}

DOES(shunt_event_destroy, (void *event), free(event))
DOES(shunt_stream_destroy, (void *stream), free(stream))
STUB(EXPORT int, shunt_malloc, (void **ptr_p, size_t bytes), (*ptr_p = malloc(bytes)) ? 0 : -ENOMEM)
DOES(shunt_free, (void *ptr), free(ptr))
DOES(shunt_memcpy, (void *dst, const void *src, size_t bytes), memcpy(dst, src, bytes))
DOES(shunt_memcpy_async, (void *dst, const void *src, size_t bytes, void *stream), memcpy(dst, src, bytes))
DOES(shunt_memset_async, (void *dst, int value, size_t bytes, void *stream), memset(dst, value, bytes))
DOES(shunt_mem_info, (size_t *free_p, size_t *total_p), *free_p = *total_p = 0)

EXPORT int shunt_capture_begin(void *stream)
{
	struct stream *s = stream;

	s->capturing = calloc(1, sizeof(*s->capturing));
	return s->capturing ? 0 : -ENOMEM;
}

EXPORT int shunt_capture_end(void *stream, void **graph_p)
{
	struct stream *s = stream;

	*graph_p = s->capturing;
	s->capturing = NULL;
	return 0;
}

EXPORT int shunt_graph_launch(void *graph, void *stream)
{
	const struct calls *g = graph;

	for (size_t first = 0, i = 0; i < g->n; i++) {
		if (g->v[i].comm)
			continue;
		mock_calls_run(&(struct calls){ g->v + first, i - first });
		first = i + 1;
	}
	return 0;
}

EXPORT int shunt_graph_destroy(void *graph)
{
	struct calls *g = graph;

	free(g->v);
	free(g);
	return 0;
}

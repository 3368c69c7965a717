/* SPDX-License-Identifier: MIT */
#include "tools/common/netns/wire.h"
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tools/common/libc.h"

#define FRAME_BYTES 2048
#define QUEUE 8192 /* frames on their way, with a share for each host; more are lost, as in a switch */
#define BATCH 32   /* of one host, before the next host's turn */
#define REORDER_US 3000
/* The most that a slow link holds. */
#define BACKLOG_US 200000

struct frame {
	int64_t due;
	uint64_t turn; /* of two frames that are due together, the one with the smaller turn goes first */
	int from, to;
	uint16_t bytes;
	uint8_t data[FRAME_BYTES];
};

struct wire {
	const int *taps;
	int nhosts;
	struct netns_link *links;
	struct frame *heap[QUEUE], *free_list[QUEUE];
	int n, nfree;
	int held[NETNS_MAX_HOSTS]; /* frames in the queue, by sender: a slow link must not lose what others send */
	uint64_t turns, random;
	int64_t busy_until[NETNS_MAX_HOSTS]; /* with a rate: when its last frame is sent */
};

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static uint32_t draw(struct wire *w, uint32_t below)
{
	w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return below ? (uint32_t)(w->random >> 33) % below : 0;
}

static bool happens(struct wire *w, unsigned ppm)
{
	return ppm && draw(w, 1000000) < ppm;
}

static bool before(const struct frame *a, const struct frame *b)
{
	return a->due < b->due || (a->due == b->due && a->turn < b->turn);
}

static void push(struct wire *w, struct frame *f)
{
	int i = w->n++;

	for (; i && before(f, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
		w->heap[i] = w->heap[(i - 1) / 2];
	w->heap[i] = f;
}

static struct frame *pop(struct wire *w)
{
	struct frame *top = w->heap[0], *last = w->heap[--w->n];
	int i = 0;

	for (int child = 1; child < w->n; i = child, child = 2 * i + 1) {
		if (child + 1 < w->n && before(w->heap[child + 1], w->heap[child]))
			child++;
		if (!before(w->heap[child], last))
			break;
		w->heap[i] = w->heap[child];
	}
	w->heap[i] = last;
	return top;
}

/* A frame as it goes on its way; without data. */
struct way {
	int64_t due;
	int from, to;
};

static void put(struct wire *w, const uint8_t *data, uint16_t bytes, struct way way)
{
	int room = (int)atomic_load(&w->links[way.from].room);
	struct frame *f;

	if (w->held[way.from] >= (room ? room : QUEUE / w->nhosts)) {
		atomic_fetch_add(&w->links[way.from].full, 1);
		return;
	}
	w->held[way.from]++;
	f = w->free_list[--w->nfree];
	f->due = way.due;
	f->turn = w->turns++;
	f->from = way.from;
	f->to = way.to;
	f->bytes = bytes;
	memcpy(f->data, data, bytes);
	push(w, f);
}

/* When the last bit of a frame that this host sends now arrives; -1: the link holds too many already. */
static int64_t arrival(struct wire *w, int from, uint16_t bytes)
{
	struct netns_link *link = &w->links[from];
	unsigned rate = atomic_load(&link->rate_kbps);
	int64_t sent = now_us();

	if (rate && w->busy_until[from] - sent > BACKLOG_US)
		return -1;
	if (rate) {
		sent = (sent > w->busy_until[from] ? sent : w->busy_until[from]) + bytes * 8000LL / rate;
		w->busy_until[from] = sent;
	}
	return sent + atomic_load(&link->delay_us) + draw(w, atomic_load(&link->jitter_us));
}

static void carry(struct wire *w, const uint8_t *data, uint16_t bytes, int from)
{
	struct netns_link *link = &w->links[from];
	unsigned largest = atomic_load(&link->largest);
	bool to_all = data[0] & 1;
	int64_t due = arrival(w, from, bytes);

	if (largest && bytes > largest)
		return;
	if (atomic_load(&link->cut_out)) {
		atomic_fetch_add(&link->cut, 1);
		return;
	}
	if (due < 0 || happens(w, atomic_load(&link->loss_ppm)))
		return;
	if (happens(w, atomic_load(&link->reorder_ppm)))
		due += REORDER_US;
	for (int to = 0; to < w->nhosts; to++) {
		if (to == from || (!to_all && data[5] != to + 1))
			continue;
		if (atomic_load(&w->links[to].cut_in)) {
			atomic_fetch_add(&w->links[to].cut, 1);
			continue;
		}
		put(w, data, bytes, (struct way){ due, from, to });
		if (happens(w, atomic_load(&link->repeat_ppm)))
			put(w, data, bytes, (struct way){ due, from, to });
	}
}

static void deliver(struct wire *w)
{
	int64_t now = now_us();

	while (w->n && w->heap[0]->due <= now) {
		struct frame *f = pop(w);

		(void)!write(w->taps[f->to], f->data, f->bytes); /* an interface that is down takes nothing */
		w->held[f->from]--;
		w->free_list[w->nfree++] = f;
	}
}

_Noreturn void netns_wire_run(const int *taps, int nhosts, struct netns_link *links, unsigned seed)
{
	static struct wire wire;
	static struct frame frames[QUEUE];
	struct wire *w = &wire;
	uint8_t data[FRAME_BYTES];

	*w = (struct wire){ .taps = taps, .nhosts = nhosts, .links = links, .random = seed };
	for (int i = 0; i < QUEUE; i++)
		w->free_list[w->nfree++] = &frames[i];
	for (;;) {
		struct pollfd pfd[NETNS_MAX_HOSTS];
		int64_t left = w->n ? w->heap[0]->due - now_us() : 1000000;
		struct timespec wait = { left > 0 ? left / 1000000 : 0, left > 0 ? left % 1000000 * 1000 : 0 };

		for (int h = 0; h < nhosts; h++)
			pfd[h] = (struct pollfd){ taps[h], POLLIN, 0 };
		ppoll(pfd, (nfds_t)nhosts, &wait, NULL);
		for (int h = 0; h < nhosts; h++)
			for (int k = 0; pfd[h].revents && k < BATCH; k++) {
				ssize_t n = read(taps[h], data, sizeof(data));

				if (n < 14)
					break;
				carry(w, data, (uint16_t)n, h);
			}
		deliver(w);
	}
}

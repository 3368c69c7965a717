/* SPDX-License-Identifier: MIT */
/*
 * What the sim tells ThreadSanitizer: exactly the orders of a device, no more. Each case is one program run; the racy
 * ones must end with TSan's exit code and a report (expect_race.sh), the ordered ones in silence.
 */
#include "tests/device/sim_test.h"

static uint64_t word[2];

static void k_add(const struct shunt_kargs &a)
{
	if (gpu_tid() == 0 && gpu_bid() == 0)
		*(uint64_t *)a.recv += a.count;
}

static void k_every_block(const struct shunt_kargs &a)
{
	if (gpu_tid() == 0)
		*(uint64_t *)a.recv += a.count;
}

static void k_every_warp(const struct shunt_kargs &a)
{
	gpu_warp_sync();
	if (gpu_lane() == 0)
		*(uint64_t *)a.recv += a.count;
}

static void k_every_lane(const struct shunt_kargs &a)
{
	gpu_sync();
	if (gpu_tid() < 2)
		*(uint64_t *)a.recv += a.count;
}

/* Lane 0 writes behind the barrier that lane 1 has reached, too: what lane 1 reads late is not ordered by it. */
static void k_late(const struct shunt_kargs &a)
{
	GPU_SHARED(uint32_t, x, 32);

	x[gpu_lane()] = 0;
	gpu_warp_sync();
	if (gpu_lane() == 31)
		x[0] = 1;
	if (gpu_lane() == 0)
		((uint64_t *)a.recv)[0] = x[0];
	gpu_warp_sync();
}

static void launch(void (*fn)(const struct shunt_kargs &), unsigned blocks, unsigned threads, void *stream)
{
	struct shunt_kargs a = make_kargs(NULL, word, 1);

	if (launch_fn(fn, 0, blocks, threads, &a, stream))
		exit(1);
}

/* Both streams have run kernels, copies and events before: none of that may order what comes. */
static void two_streams(bool ordered)
{
	void *s[2], *event;
	uint64_t other[2] = { 0, 0 };

	for (int i = 0; i < 2; i++)
		ops->stream_create(0, &s[i]);
	ops->event_create(0, false, &event);
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 2; i++) {
			struct shunt_kargs a = make_kargs(NULL, &other[i], 1);

			if (launch_fn(k_add, 0, 2, 32, &a, s[i]))
				exit(1);
			ops->memset_async(0, &other[i], 0, 8, s[i]);
			ops->event_record(0, event, s[i]);
		}
	launch(k_add, 1, 32, s[0]);
	if (ordered) {
		ops->event_record(0, event, s[0]);
		ops->event_wait(0, event, s[1]);
	}
	launch(k_add, 1, 32, s[1]);
	for (int i = 0; i < 2; i++) {
		ops->stream_sync(0, s[i]);
		ops->stream_destroy(0, s[i]);
	}
	ops->event_destroy(0, event);
	if (ordered && word[0] != 2)
		exit(1);
}

static void case_streams(void)
{
	two_streams(false);
}

static void case_streams_event(void)
{
	two_streams(true);
}

/* One after the other on a stream; the host looks after it has synchronised. */
static void case_one_stream(void)
{
	void *s;

	ops->stream_create(0, &s);
	for (int i = 0; i < 10; i++) {
		launch(k_add, i % 3 + 1, 32 * (i % 2 + 1), s);
		ops->copy_async(0, &word[1], &word[0], 8, s);
	}
	ops->stream_sync(0, s);
	if (word[0] != 10 || word[1] != 10)
		exit(1);
	word[0] = 0;
	launch(k_add, 1, 32, s);
	ops->stream_destroy(0, s);
	if (word[0] != 1)
		exit(1);
}

/* The host looks without having synchronised. */
static void case_host(void)
{
	void *s;

	ops->stream_create(0, &s);
	launch(k_add, 1, 32, s);
	while (!*(volatile uint64_t *)&word[0])
		;
	ops->stream_destroy(0, s);
}

/*
 * More than once: two accesses at the very same moment can overwrite each other's trace in ThreadSanitizer, which then
 * sees neither.
 */
static void case_blocks(void)
{
	for (int i = 0; i < 50; i++)
		launch(k_every_block, 2, 32, NULL);
	ops->stream_sync(0, NULL);
}

static void case_warps(void)
{
	launch(k_every_warp, 1, 64, NULL);
	ops->stream_sync(0, NULL);
}

static void case_lanes(void)
{
	launch(k_every_lane, 1, 64, NULL);
	ops->stream_sync(0, NULL);
}

static void case_late(void)
{
	launch(k_late, 1, 32, NULL);
	ops->stream_sync(0, NULL);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "streams", case_streams },
	{ "host", case_host },
	{ "blocks", case_blocks },
	{ "warps", case_warps },
	{ "lanes", case_lanes },
	{ "late", case_late },
	{ "streams-event", case_streams_event },
	{ "one-stream", case_one_stream },
};

int main(int argc, char **argv)
{
	for (const auto &c : cases)
		if (argc == 2 && !strcmp(c.name, argv[1])) {
			c.run();
			return 0;
		}
	return 2;
}

/* SPDX-License-Identifier: MIT */
/* How connections begin and end, with peers in other processes, and how a device sleeps. */
#include "tests/transport/net_suite.h"

/* ---- the end */

TEST(test_finish_loses_nothing)
{
	for (int turn = 0; turn < 4; turn++) {
		struct lane lane;
		struct shunt_net_put put;

		lane_open(&lane, 4 * MIB);
		for (uint32_t i = 0; i < 20; i++) {
			put = lane_put(&lane, 0, 0, i % 4 ? 100 : 1000000, 1);
			net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
		}
		put = lane_put(&lane, 0, 0, 4 << 20, 1);
		net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
		ops->finish(lane.pair.end[0].endpoint);
		ops->finish(lane.pair.end[1].endpoint);
		/* The sender closes as soon as it may, and its device as well. */
		NET_UNTIL(lane.pair.end[0].done == 21 && lane.pair.end[0].ended, net_pair_step(&lane.pair));
		net_end_close(ops, &lane.pair.end[0]);
		ops->mem_deregister(lane.source);
		ops->close(lane.pair.device[0]);
		NET_UNTIL(lane.pair.end[1].ended, net_step(ops, lane.pair.device[1]));
		assert_int_equal(lane.pair.end[1].signalled, 21);
		assert_memory_equal(lane.to, lane.from, 4 * MIB);
		for (int i = 0; i < 100; i++)
			net_step(ops, lane.pair.device[1]);
		assert_false(lane.pair.end[1].dead);
		net_end_close(ops, &lane.pair.end[1]);
		ops->mem_deregister(lane.target);
		ops->close(lane.pair.device[1]);
		free(lane.from);
		free(lane.to);
	}
}

TEST(test_close_leaves_sources_alone)
{
	struct lane lane;
	struct shunt_net_put put;
	uint8_t *pages = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct shunt_net_memory *memory;

	assert_true(pages != MAP_FAILED);
	lane_open(&lane, 8 * MIB);
	memory = net_register(ops, lane.pair.device[0], pages, 8 * MIB);
	put = lane_put(&lane, 0, 0, 8 << 20, 1);
	put.source = pages;
	put.memory = memory;
	for (int i = 0; i < 20; i++)
		assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	for (int i = 0; i < 3; i++)
		net_pair_step(&lane.pair);
	net_end_close(ops, &lane.pair.end[0]);
	ops->mem_deregister(memory);
	munmap(pages, 8 * MIB); /* a touch is the end of this process */
	NET_UNTIL(lane.pair.end[1].dead, net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[1].err, -EOWNERDEAD);
	assert_true(lane.pair.end[1].signalled < 20);
	lane_close(&lane);
}

TEST(test_closing_the_target_kills_the_sender)
{
	struct lane lane;
	struct shunt_net_put put;

	lane_open(&lane, 8 * MIB);
	put = lane_put(&lane, 0, 0, 8 << 20, 1);
	for (int i = 0; i < 5; i++)
		assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	for (int i = 0; i < 3; i++)
		net_pair_step(&lane.pair);
	net_end_close(ops, &lane.pair.end[1]);
	ops->mem_deregister(lane.target);
	lane.target = NULL;
	memset(lane.to, 0xdd, lane.bytes);
	NET_UNTIL(lane.pair.end[0].dead, net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[0].err, -EOWNERDEAD);
	net_expect_only(0xdd, lane.to, lane.bytes);
	lane_close(&lane);
}

/* The peer takes nothing meanwhile, so that verbs has no room for more than 512 signals. */
TEST(test_a_last_signal_comes_though_its_endpoint_is_closed_at_once)
{
	struct shunt_net_put signal = { .channel = 7, .count = 1 };
	struct shunt_net_put last = { .channel = 9, .count = 1, .flags = SHUNT_NET_LAST };
	struct lane lane;

	for (int signals = 0; signals <= 600; signals += 600) {
		lane_open(&lane, 64);
		for (int i = 0; i < signals && ops->post(lane.pair.end[0].endpoint, &signal, 1) == 1; i++)
			continue;
		assert_true(ops->post(lane.pair.end[0].endpoint, &last, 1) >= 0);
		net_end_close(ops, &lane.pair.end[0]);
		NET_UNTIL(lane.pair.end[1].dead, net_pair_step(&lane.pair));
		assert_int_equal(lane.pair.end[1].err, -EOWNERDEAD);
		assert_in_range(lane.pair.end[1].signals[9], 1, 2);
		lane_close(&lane);
	}
}

/* ---- connecting */

TEST(test_another_key_is_refused)
{
	struct shunt_net_device *device[2] = { net_open(ops), net_open(ops) };
	struct net_end end[2] = { 0 };

	for (int i = 0; i < 2; i++)
		net_create(ops, device[i], &end[i], (uint8_t)(1 + i), 1500);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ops->endpoint_connect(end[i].endpoint, &end[!i].blob), 0);
	for (int i = 0; i < 2; i++)
		NET_UNTIL(end[i].dead, (net_step(ops, device[0]), net_step(ops, device[1])));
	for (int i = 0; i < 2; i++) {
		assert_false(end[i].ready);
		assert_true(end[i].err == -EACCES || end[i].err == -ETIMEDOUT || end[i].err == -EOWNERDEAD);
		assert_non_null(strstr(end[i].text, "rank 3 on node2"));
		net_end_close(ops, &end[i]);
	}
	assert_true(end[0].err == -EACCES || end[1].err == -EACCES);
	for (int i = 0; i < 2; i++)
		ops->close(device[i]);
}

TEST(test_a_blob_of_nobody_is_refused)
{
	struct shunt_net_device *device = net_open(ops);
	struct unit_capture capture;
	struct net_end end = { 0 };
	struct shunt_net_blob blob = { 0 };
	const char *text;

	net_create(ops, device, &end, 1, 1000);
	unit_capture_begin(&capture);
	assert_int_equal(ops->endpoint_connect(end.endpoint, &blob), -EPROTO);
	memset(&blob, 0xa5, sizeof(blob));
	assert_int_equal(ops->endpoint_connect(end.endpoint, &blob), -EPROTO);
	/* Its own. */
	assert_int_equal(ops->endpoint_connect(end.endpoint, &end.blob), -EPROTO);
	text = unit_capture_end(&capture);
	assert_int_equal(unit_count(text, "rank 3 on node2"), 3);
	net_end_close(ops, &end);
	ops->close(device);
}

TEST(test_a_peer_that_does_not_connect_is_given_up)
{
	/* Both ways round: who connects depends on the blobs. */
	for (int turn = 0; turn < 6; turn++) {
		struct shunt_net_device *device = net_open(ops), *silent = net_open(ops);
		struct net_end end = { 0 }, other = { 0 };
		int64_t start;

		net_create(ops, device, &end, 1, 300);
		net_create(ops, silent, &other, 1, 300);
		start = unit_now_ms();
		assert_int_equal(ops->endpoint_connect(end.endpoint, &other.blob), 0);
		/* It needs no time-out of the caller's. */
		NET_UNTIL(end.dead, net_step_or_sleep(ops, device, AT_ONCE_MS));
		assert_true(unit_now_ms() - start >= 290);
		assert_int_equal(end.err, -ETIMEDOUT);
		assert_non_null(strstr(end.text, "rank 3 on node2"));
		net_end_close(ops, &end);
		net_end_close(ops, &other);
		ops->close(device);
		ops->close(silent);
	}
}

TEST(test_one_side_may_connect_later)
{
	for (int turn = 0; turn < 6; turn++) {
		struct net_pair pair = { .ops = ops };

		for (int i = 0; i < 2; i++) {
			pair.device[i] = net_open(ops);
			net_create(ops, pair.device[i], &pair.end[i], 9, AT_ONCE_MS);
		}
		assert_int_equal(ops->endpoint_connect(pair.end[0].endpoint, &pair.end[1].blob), 0);
		for (int i = 0; i < 200; i++)
			net_pair_step(&pair);
		assert_false(pair.end[1].ready);
		assert_int_equal(ops->endpoint_connect(pair.end[1].endpoint, &pair.end[0].blob), 0);
		NET_UNTIL(pair.end[0].ready && pair.end[1].ready, net_pair_step(&pair));
		net_pair_close(&pair);
	}
}

/* ---- processes */

/* Blobs and remotes go through pipes. */
static void exchange(int in, int out, const void *ours, void *theirs, size_t bytes)
{
	assert_int_equal(write(out, ours, bytes), bytes);
	for (size_t got = 0; got < bytes;) {
		ssize_t n = read(in, (char *)theirs + got, bytes - got);

		assert_true(n > 0);
		got += (size_t)n;
	}
}

/* Of an end in another process. */
struct remotes {
	struct shunt_net_remote memory, words;
};

static void exchange_remotes(
    int in, int out, const struct shunt_net_memory *memory, const struct net_end *end, struct remotes *theirs)
{
	struct remotes ours = { .memory = ops->mem_remote(memory) };

	if (net_adds)
		ours.words = ops->mem_remote(end->words);
	exchange(in, out, &ours, theirs, sizeof(ours));
}

/* One signal of channel 0. */
static void signal_to(const struct remotes *to, struct shunt_net_put *put)
{
	put->count = 1;
	put->flags |= net_adds ? SHUNT_NET_ADD : 0;
	put->words = to->words;
}

struct other_process {
	pid_t pid;
	int in, out;
};

static bool other_leaves_child; /* when it is connected: one that lives until this process closes the pipe */

static void leave_child(int in)
{
	char x;

	if (fork())
		return;
	while (read(in, &x, 1) > 0)
		;
	_exit(0);
}

/* Connects with this end, registers memory and puts signals until it is told to stop, or killed. */
static void other_body(int in, int out)
{
	static uint64_t words[1024];
	struct shunt_net_device *device = net_open(ops);
	struct shunt_net_memory *memory = net_register(ops, device, words, sizeof(words));
	struct net_end end = { 0 };
	struct remotes theirs;
	struct shunt_net_blob blob;
	struct shunt_net_put put = { .source = &words[5], .memory = memory, .bytes = 8 };

	net_create(ops, device, &end, 1, AT_ONCE_MS);
	exchange(in, out, &end.blob, &blob, sizeof(blob));
	exchange_remotes(in, out, memory, &end, &theirs);
	assert_int_equal(ops->endpoint_connect(end.endpoint, &blob), 0);
	NET_UNTIL(end.ready, net_step_or_sleep(ops, device, NET_NAP_MS));
	if (other_leaves_child)
		leave_child(in);
	words[5] = 4711;
	put.remote = theirs.memory;
	signal_to(&theirs, &put);
	net_put(ops, device, &end, &put);
	NET_UNTIL(end.ended || end.dead, net_step_or_sleep(ops, device, NET_NAP_MS));
	assert_true(end.ended);
	assert_int_equal(end.signalled, 1);
	assert_int_equal(words[7], 815);
	ops->finish(end.endpoint);
	NET_UNTIL(end.done == 1 && ops->arm(device), net_step(ops, device));
	/* The peer closes once it has our end. */
	exchange(in, out, "x", &blob, 1);
	net_end_close(ops, &end);
	ops->mem_deregister(memory);
	ops->close(device);
}

static void other_start(struct other_process *other)
{
	int to[2], from[2];

	assert_int_equal(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
	fflush(NULL);
	other->pid = child_fork();
	assert_true(other->pid >= 0);
	if (other->pid == 0) {
		close(to[1]);
		close(from[0]);
		other_body(to[0], from[1]);
		child_exit(0);
	}
	close(to[0]);
	close(from[1]);
	other->in = from[0];
	other->out = to[1];
}

struct here {
	struct shunt_net_device *device;
	struct shunt_net_memory *memory;
	struct remotes remotes; /* the other's */
	struct net_end end;
	uint64_t words[16];
};

static void here_connect(struct here *here, struct other_process *other)
{
	struct shunt_net_blob blob;

	*here = (struct here){ 0 };
	here->device = net_open(ops);
	here->memory = net_register(ops, here->device, here->words, sizeof(here->words));
	net_create(ops, here->device, &here->end, 1, AT_ONCE_MS);
	exchange(other->in, other->out, &here->end.blob, &blob, sizeof(blob));
	exchange_remotes(other->in, other->out, here->memory, &here->end, &here->remotes);
	assert_int_equal(ops->endpoint_connect(here->end.endpoint, &blob), 0);
	NET_UNTIL(here->end.signalled == 1, net_step_or_sleep(ops, here->device, NET_NAP_MS));
	assert_int_equal(here->words[0], 4711);
}

static void here_close(struct here *here, struct other_process *other)
{
	net_end_close(ops, &here->end);
	ops->mem_deregister(here->memory);
	ops->close(here->device);
	close(other->in);
	close(other->out);
}

TEST(test_two_processes)
{
	struct other_process other;
	struct here here;
	struct shunt_net_put put;
	int status;
	char x;

	other_start(&other);
	here_connect(&here, &other);
	here.words[3] = 815;
	put = (struct shunt_net_put){ .source = &here.words[3],
		.memory = here.memory,
		.remote = here.remotes.memory,
		.remote_offset = 56,
		.bytes = 8 };
	signal_to(&here.remotes, &put);
	net_put(ops, here.device, &here.end, &put);
	ops->finish(here.end.endpoint);
	NET_UNTIL(here.end.ended, net_step_or_sleep(ops, here.device, NET_NAP_MS));
	exchange(other.in, other.out, "x", &x, 1);
	assert_int_equal(waitpid(other.pid, &status, 0), other.pid);
	assert_int_equal(status, 0);
	here_close(&here, &other);
}

TEST(test_a_killed_peer_is_told_at_once)
{
	struct other_process other;
	struct here here;
	int status;

	/* A child of a process with real NICs has copies of what the kernel has; the fake's are its own. */
	other_leaves_child = !strcmp(ops->name, "tcp");
	other_start(&other);
	other_leaves_child = false;
	here_connect(&here, &other);
	kill(other.pid, SIGKILL);
	assert_int_equal(waitpid(other.pid, &status, 0), other.pid);
	NET_UNTIL(here.end.dead, net_step_or_sleep(ops, here.device, AT_ONCE_MS));
	assert_int_equal(here.end.err, -EOWNERDEAD);
	assert_non_null(strstr(here.end.text, "rank 3 on node2"));
	here_close(&here, &other);
}

/* ---- children */

/* What a device's epoll waits for. */
static int watched(const struct shunt_net_device *device)
{
	char path[64], line[256];
	FILE *info;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", ops->fd(device));
	info = fopen(path, "re");
	assert_non_null(info);
	while (fgets(line, sizeof(line), info))
		n += !strncmp(line, "tfd:", 4);
	fclose(info);
	return n;
}

/* Or an event would name memory that is freed. */
TEST(test_what_is_closed_is_watched_no_more_though_a_child_has_copies)
{
	int held = child_holds("nothing");
	struct shunt_net_device *fresh = net_open(ops);
	int least = watched(fresh), status;
	struct net_pair pair;
	pid_t child;

	assert_true(least > 0);
	net_pair_open(&pair, ops);
	if (!strcmp(ops->name, "tcp")) /* the fake of the other has descriptors of its own */
		assert_int_equal(child_holds("nothing"), held);
	child = child_sleeps(true);
	assert_true(child > 0);
	for (int i = 0; i < 2; i++)
		net_end_close(ops, &pair.end[i]);
	for (int i = 0; i < 2; i++)
		NET_UNTIL(watched(pair.device[i]) == least, net_pair_step(&pair));
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	for (int i = 0; i < 2; i++)
		ops->close(pair.device[i]);
	ops->close(fresh);
}

/* ---- sleeping */

/* Nothing comes: waits for the device end by themselves, but for a few that one of its timers ends. */
TEST(test_an_idle_device_sleeps)
{
	enum { WAITS = 12, WAIT_MS = 50, MOST_AWAKE = 100 };
	struct net_pair pair;
	struct pollfd fd;
	int awake = 0, asleep = 0;

	net_pair_open(&pair, ops);
	for (int i = 0; i < 2; i++)
		NET_UNTIL(ops->arm(pair.device[i]), net_step(ops, pair.device[i]));
	fd = (struct pollfd){ .fd = ops->fd(pair.device[0]), .events = POLLIN };
	while (asleep < WAITS) {
		assert_int_equal(net_step(ops, pair.device[0]), 0);
		if (ops->arm(pair.device[0]) && !poll(&fd, 1, WAIT_MS))
			asleep++;
		else
			assert_true(++awake < MOST_AWAKE);
	}
	net_pair_close(&pair);
}

struct ping {
	struct net_pair *pair;
	int turns;
	bool lost;
};

/* Waits for a signal in poll() alone, and answers it. */
static void answer(struct ping *ping, int i)
{
	struct net_end *end = &ping->pair->end[i];
	struct shunt_net_put signal = { .count = 1 };
	struct pollfd fd = { .fd = ops->fd(ping->pair->device[i]), .events = POLLIN };

	for (int turn = 0; turn < ping->turns; turn++) {
		if (i == 0 && ops->post(end->endpoint, &signal, 1) != 1)
			ping->lost = true;
		while (end->signalled <= (uint64_t)turn && !ping->lost && !end->dead) {
			net_step(ops, ping->pair->device[i]);
			if (end->signalled <= (uint64_t)turn && ops->arm(ping->pair->device[i]) &&
			    poll(&fd, 1, AT_ONCE_MS) != 1)
				ping->lost = true;
		}
		if (i == 1 && ops->post(end->endpoint, &signal, 1) != 1)
			ping->lost = true;
	}
}

static void *answer_thread(void *arg)
{
	answer(arg, 1);
	return NULL;
}

TEST(test_no_wakeup_is_lost)
{
	struct net_pair pair;
	struct ping here = { .pair = &pair, .turns = 4000 }, there = here;
	pthread_t thread;

	net_pair_open(&pair, ops);
	assert_int_equal(pthread_create(&thread, NULL, answer_thread, &there), 0);
	answer(&here, 0);
	pthread_join(thread, NULL);
	assert_false(here.lost || there.lost);
	assert_int_equal(pair.end[0].signalled, here.turns);
	net_pair_close(&pair);
}

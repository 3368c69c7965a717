/* SPDX-License-Identifier: MIT */
/* What the files of test_verbs share. */
#include "tests/transport/verbs_suite.h"

const char *fake, *old;
char script[] = "/tmp/shunt_faults_XXXXXX";
struct end ends[2];
_Alignas(64) uint8_t from[65536], to[65536];
uint8_t wide_from[WIDE], wide_to[WIDE];

pid_t fork_with(const struct setting *settings)
{
	pid_t pid;

	fflush(NULL);
	pid = child_fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		setenv("SHUNT_IBV_LIB", fake, 1);
		setenv("FAKE_IBV_TIME_SCALE", "100", 1);
		setenv("NCCL_DEBUG", "INFO", 1);
		setenv("NCCL_DEBUG_SUBSYS", "NET", 1);
		for (; settings->name; settings++)
			setenv(settings->name, settings->value, 1);
	}
	return pid;
}

void step(struct end *end)
{
	struct shunt_net_event e[16];
	struct pollfd fd = { .fd = ops->fd(end->device), .events = POLLIN };
	int n = ops->progress(end->device, e, 16);

	for (int i = 0; i < n; i++) {
		end->ready |= e[i].kind == SHUNT_NET_READY;
		end->ended |= e[i].kind == SHUNT_NET_END;
		CHECK(!end->dead);
		end->done += e[i].kind == SHUNT_NET_PUT_DONE ? e[i].count : 0;
		end->signalled += e[i].kind == SHUNT_NET_SIGNAL ? e[i].count : 0;
		if (e[i].kind != SHUNT_NET_ERROR)
			continue;
		end->dead = true;
		end->err = e[i].err;
		snprintf(end->text, sizeof(end->text), "%s", e[i].text);
		fprintf(stderr, "%s\n", e[i].text);
	}
	if (!n && ops->arm(end->device))
		poll(&fd, 1, 1);
}

void begin_within(int64_t connect_ms)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	struct shunt_net_peer peer = {
		.name = "rank 3 on node2", .connect_ms = connect_ms, .adds = shunt_config()->ibv_mode == SHUNT_IBV_HOST
	};
	int n = ops->devices(info, SHUNT_NET_MAX_DEVICES);

	CHECK(n >= 1);
	for (int i = 0; i < 2; i++) {
		int rails = (int)shunt_config()->ib_rails;

		CHECK(!ops->open(i < n ? i * rails : 0, &ends[i].device));
		for (int j = 1; j < rails; j++)
			CHECK(!ops->add_rail(ends[i].device, i * rails + j));
		CHECK(!ops->endpoint_create(ends[i].device, &peer, &ends[i].endpoint, &ends[i].blob));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ops->endpoint_connect(ends[i].endpoint, &ends[!i].blob));
}

void begin(void)
{
	begin_within(AT_ONCE_MS);
}

void end_all(void)
{
	for (int i = 0; i < 2; i++)
		ops->endpoint_close(ends[i].endpoint);
	for (int i = 0; i < 2; i++) {
		ops->mem_deregister(ends[i].memory);
		ops->close(ends[i].device);
	}
}

struct shunt_net_put put_between(struct shunt_net_region source, struct shunt_net_region target)
{
	CHECK(!ops->mem_register(ends[0].device, &source, &ends[0].memory));
	CHECK(!ops->mem_register(ends[1].device, &target, &ends[1].memory));
	return (struct shunt_net_put){
		.source = source.start, .memory = ends[0].memory, .remote = ops->mem_remote(ends[1].memory)
	};
}

struct shunt_net_put begin_put(struct shunt_net_region source, struct shunt_net_region target)
{
	struct shunt_net_put put;

	begin();
	put = put_between(source, target);
	UNTIL(ends[0].ready && ends[1].ready);
	return put;
}

void put_many(int n)
{
	struct shunt_net_put put = put_between(REGION(from, 0), REGION(to, 0));

	put.count = 1;
	for (int i = 0; i < n && !ends[0].dead; i++) {
		put.source = from + i % 1000;
		put.bytes = 1 + (uint32_t)(i * 37 % 60000);
		UNTIL(ends[0].dead || ops->post(ends[0].endpoint, &put, 1));
	}
	UNTIL(ends[0].dead || (ends[0].done == (uint64_t)n && ends[1].signalled == (uint64_t)n));
	if (ends[0].dead)
		UNTIL(ends[1].dead);
	else
		CHECK(!memcmp(to, put.source, put.bytes));
	end_all();
}

void works(void)
{
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (uint8_t)(i * 7 + i / 251);
	begin();
	UNTIL(ends[0].ready && ends[1].ready);
	put_many(300);
	CHECK(!ends[0].dead && !ends[1].dead);
}

void expect_dead(const char *text)
{
	begin();
	UNTIL(ends[0].dead && ends[1].dead);
	for (int i = 0; i < 2; i++) {
		CHECK(!ends[i].ready && ends[i].err == -EADDRNOTAVAIL);
		CHECK(strstr(ends[i].text, "rank 3 on node2") && strstr(ends[i].text, "mlx") &&
		    strstr(ends[i].text, text));
	}
	end_all();
}

void write_script(const char *text)
{
	int fd = open(script, O_WRONLY | O_TRUNC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

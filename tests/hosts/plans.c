/* SPDX-License-Identifier: MIT */
/*
 * Plans over two hosts, one for each operation on ports: all-gathers of two ranks, each of which sends its input to the
 * other's output through the port. Every size has other data, and its own chunks, in each of a few calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/world.h"

enum { MOST = 70000, CALLS = 2 };

/* Operations. %o: this rank's chunk of the output, %p: the peer's; in remote buffer 0, the peer's output or scratch. */
#define ON_PORT "\"channel_type\": \"port\", \"channel_ids\": [0]"
#define SIGNAL(op) "{\"name\": \"" op "\", " ON_PORT "}"
#define NOP "{\"name\": \"nop\"}"
#define OWN(buffer, index) "[{\"type\": \"" buffer "\", \"index\": " index ", \"size\": 1}]"
#define FAR(index) "[{\"buffer_id\": 0, \"index\": " index ", \"size\": 1}]"
#define DATA(op, channel, src, dst) "{\"name\": \"" op "\", " channel "\"src_buff\": " src ", \"dst_buff\": " dst "}"
#define PUT(op, src, dst) DATA(op, ON_PORT ", ", src, dst)
#define LOCAL(op, src, dst) DATA(op, "", src, dst)
#define KEEP LOCAL("copy", OWN("i", "0"), OWN("o", "%o"))
#define PACK LOCAL("cpkt", OWN("i", "0"), OWN("s", "0"))
#define UNPACK LOCAL("upkt", OWN("s", "1"), OWN("o", "%p"))

struct row {
	const char *name, *ops, *remote; /* remote: the type of the peer's buffer */
	const char *head;                /* of the plan */
};

#define PLAIN "\"protocol\": \"Simple\""
#define LL "\"protocol\": \"LL\", \"use_double_scratch_buffer\": true"

static const struct row rows[] = {
	{ "put",
	    PUT("put", OWN("i", "0"), FAR("%o")) ", " SIGNAL("signal") ", " SIGNAL("wait") ", " SIGNAL(
	        "flush") ", " KEEP,
	    "o", PLAIN },
	{ "pws", PUT("pws", OWN("i", "0"), FAR("%o")) ", " KEEP ", " SIGNAL("wait"), "o", PLAIN },
	{ "pwsf", PUT("pwsf", OWN("i", "0"), FAR("%o")) ", " SIGNAL("wait") ", " KEEP, "o", PLAIN },
	{ "relaxed",
	    SIGNAL("rlxsignal") ", " SIGNAL("rlxwait") ", " NOP ", " PUT("pws", OWN("i", "0"), FAR("%o")) ", " SIGNAL(
	        "wait") ", " KEEP,
	    "o", PLAIN },
	/* What is put was written in the launch, and is written again. */
	{ "again",
	    LOCAL("copy", OWN("i", "0"), OWN("s", "0")) ", " NOP ", " PUT("pws", OWN("s", "0"),
	        FAR("%o")) ", " NOP ", " LOCAL("copy", OWN("o", "%o"), OWN("s", "0")) ", " NOP ", " KEEP
	                                                                              ", " SIGNAL("wait"),
	    "o", PLAIN },
	{ "pipeline",
	    "{\"name\": \"pipeline\", \"iter_context\": {\"unit_size\": 4096, \"num_chunks\": 1}, \"ops\": [" PUT(
	        "pws", OWN("i", "0"), FAR("%o")) ", " SIGNAL("wait") "]}, " KEEP,
	    "o", PLAIN },
	{ "rppkt", PACK ", " PUT("rppkt", OWN("s", "0"), FAR("1")) ", " KEEP ", " UNPACK, "s", LL },
	{ "ppkt", PACK ", " NOP ", " PUT("ppkt", OWN("s", "0"), FAR("1")) ", " KEEP ", " UNPACK, "s", LL },
	/* One half of scratch: the ranks wait for each other in each launch. */
	{ "single",
	    SIGNAL("signal") ", " SIGNAL("wait") ", " NOP ", " PACK
	                                         ", " PUT("rppkt", OWN("s", "0"), FAR("1")) ", " KEEP ", " UNPACK,
	    "s", "\"protocol\": \"LL\"" },
};

static const struct row *current;

/* Appends the operations of a rank, with its chunks. */
static size_t write_ops(char *at, const char *ops, int rank)
{
	size_t n = 0;

	for (; *ops; ops++)
		if (ops[0] == '%') {
			at[n++] = (char)('0' + (*++ops == 'o' ? rank : 1 - rank));
		} else {
			at[n++] = *ops;
		}
	at[n] = 0;
	return n;
}

static void write_plan(const struct row *row, char *text, size_t bytes)
{
	size_t at = (size_t)snprintf(text, bytes,
	    "{\"name\": \"%s\", \"collective\": \"allgather\", %s, \"inplace\": false, \"num_threads_per_block\": 64, "
	    "\"gpus\": [",
	    row->name, row->head);

	for (int r = 0; r < 2; r++) {
		at += (size_t)snprintf(text + at, bytes - at,
		    "%s{\"id\": %d, \"input_chunks\": 1, \"output_chunks\": 2, \"scratch_chunks\": 2, \"channels\": "
		    "[{\"channel_type\": \"port\", \"connected_to\": [%d]}], \"remote_buffers\": [{\"rank\": %d, "
		    "\"type\": "
		    "\"%s\", \"access_channel_types\": [\"port\"]}], \"semaphores\": [], \"threadblocks\": [{\"id\": "
		    "0, "
		    "\"channels\": [{\"channel_type\": \"port\", \"channel_ids\": [0]}], \"remote_buffer_refs\": "
		    "[{\"access_channel_type\": \"port\", \"remote_buffer_ids\": [0]}], \"ops\": [",
		    r ? ", " : "", r, 1 - r, 1 - r, row->remote);
		at += write_ops(text + at, row->ops, r);
		at += (size_t)snprintf(text + at, bytes - at, "]}]}");
	}
	snprintf(text + at, bytes - at, "]}");
}

static uint8_t byte_of(int rank, size_t i, int call)
{
	return (uint8_t)(i * 7 + i / 251 + (size_t)rank * 101 + (size_t)call * 13);
}

static int run_size(struct rank *r, ncclComm_t comm, uint8_t *send, uint8_t *recv, size_t bytes)
{
	for (int call = 0; call < CALLS; call++) {
		struct shunt_plan_run run = { .size = sizeof(run),
			.name = current->name,
			.send = send,
			.recv = recv,
			.send_bytes = bytes,
			.recv_bytes = 2 * bytes,
			.dtype = ncclUint8,
			.stream = r->stream };

		for (size_t i = 0; i < bytes; i++)
			send[i] = byte_of(r->rank, i, call);
		memset(recv, 0xee, 2 * bytes + 16);
		CHECK(!shunt_plan_run(comm, &run));
		CHECK(!shunt_stream_synchronize(r->stream));
		for (size_t i = 0; i < 2 * bytes; i++)
			if (recv[i] != byte_of(i >= bytes, i % bytes, call)) {
				fprintf(stderr, "rank %d: %s of %zu bytes, call %d: byte %zu is %u\n", r->rank,
				    current->name, bytes, call, i, recv[i]);
				return 1;
			}
		CHECK(recv[2 * bytes] == 0xee);
	}
	return 0;
}

static int plan_body(struct rank *r)
{
	static const size_t sizes[] = { 1000, MOST, 20001, 16 }; /* the second needs larger regions */
	char text[8192], why[512];
	uint8_t *send, *recv;
	ncclComm_t comm;

	write_plan(current, text, sizeof(text));
	if (shunt_plan_register(current->name, text, strlen(text), why, sizeof(why))) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	CHECK(!shunt_malloc((void **)&send, MOST + 16) && !shunt_malloc((void **)&recv, 2 * MOST + 16));
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		CHECK(!run_size(r, comm, send, recv, sizes[i]));
	NCCL(ncclCommDestroy(comm));
	shunt_free(send);
	shunt_free(recv);
	return 0;
}

/* Every step-th row. The host of each rank is a name, or a network namespace. */
static void run_rows(bool named, size_t step)
{
	for (size_t i = 1; i <= sizeof(rows) / sizeof(rows[0]); i += step) {
		struct world w = { .place = "01", .named = named, .body = plan_body };
		int failed;

		current = &rows[i - 1];
		if (named) {
			w.env[0][0] = "NCCL_SOCKET_IFNAME";
			w.env[0][1] = "lo";
		}
		failed = world_run(&w);
		if (failed == -EPERM)
			skip();
		if (failed)
			fail_msg("%s", current->name);
	}
}

static void test_plans_run_over_hosts_by_name(void **state)
{
	(void)state;
	run_rows(true, 1);
}

static void test_plans_run_over_hosts_of_namespaces(void **state)
{
	(void)state;
	run_rows(false, 6);
}

static void test_plans_run_inside_one_host_as_before(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		current = &rows[i];
		assert_int_equal(world_run(&(struct world){ .place = "00", .named = true, .body = plan_body }), 0);
	}
}

/* ---- a plan that does not fit */

static int misfit_body(struct rank *r)
{
	static const char memory[] =
	    "{\"name\": \"misfit\", \"collective\": \"custom\", \"protocol\": \"Simple\", \"inplace\": false, "
	    "\"gpus\": ["
	    "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 2, \"scratch_chunks\": 0, \"channels\": "
	    "[{\"channel_type\": "
	    "\"memory\", \"connected_to\": [1]}], \"remote_buffers\": [], \"threadblocks\": []}, "
	    "{\"id\": 1, \"input_chunks\": 1, \"output_chunks\": 2, \"scratch_chunks\": 0, \"channels\": "
	    "[{\"channel_type\": "
	    "\"memory\", \"connected_to\": [0]}], \"remote_buffers\": [], \"threadblocks\": []}]}";
	struct shunt_plan_run run = { .size = sizeof(run),
		.name = "misfit",
		.send_bytes = 16,
		.recv_bytes = 32,
		.dtype = ncclUint8,
		.stream = r->stream };
	char why[512];
	ncclComm_t comm;
	int err;

	err = shunt_plan_register("misfit", memory, strlen(memory), why, sizeof(why));
	if (err) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	CHECK(!shunt_malloc((void **)(uintptr_t)&run.send, 16) && !shunt_malloc(&run.recv, 32));
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(shunt_plan_run(comm, &run) == -ENOENT);
	NCCL(ncclCommDestroy(comm));
	shunt_free((void *)(uintptr_t)run.send);
	shunt_free(run.recv);
	return 0;
}

static void test_plan_that_does_not_fit_is_none(void **state)
{
	(void)state;
	assert_int_equal(
	    world_run(&(struct world){
	        .place = "01", .named = true, .env = { { "NCCL_SOCKET_IFNAME", "lo" } }, .body = misfit_body }),
	    0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plans_run_over_hosts_by_name),
		cmocka_unit_test(test_plans_run_over_hosts_of_namespaces),
		cmocka_unit_test(test_plans_run_inside_one_host_as_before),
		cmocka_unit_test(test_plan_that_does_not_fit_is_none),
	};

	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_LOG", "error", 0);
	return cmocka_run_group_tests_name("hosts_plans", tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* How connections fail: what the other side or the own NIC refuses, losses, and faults of a script. */
#include "pair_rows.h"
#include "tests/support/pause.h"
#include "tests/support/unit.h"

/* ---- refusals ---- */

static void rnr_waits(struct pair_side *s)
{
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_SEND, 1, SPAN(0, 0, 0), 0));
		pause_us(PAUSE_LATE, 30000);
		CHECK(pair_poll_none(s->send_cq));
		pair_synchronize(s);
		pair_poll_ok(s->send_cq);
	} else {
		pair_synchronize(s);
		CHECK(!pair_receive(s, 1, 0, 0));
		pair_poll_ok(s->recv_cq);
	}
}

static void rnr_ends(struct pair_side *s)
{
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE_WITH_IMM, 1, SPAN(0, 0, 8), 0));
		CHECK(pair_poll(s->send_cq).status == IBV_WC_RNR_RETRY_EXC_ERR);
	}
}

/* What was posted behind a request that failed, and what was to be received: all come back, in order. */
static void check_flushed(struct pair_side *s, enum ibv_wc_status status)
{
	struct ibv_wc wc = pair_poll(s->send_cq);

	if (wc.status != status)
		fprintf(stderr, "status %s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == status && wc.wr_id == 100 && wc.vendor_err && wc.qp_num == s->qp->qp_num);
	for (uint64_t i = 0; i < 5; i++) {
		wc = pair_poll(s->send_cq);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == i && wc.qp_num == s->qp->qp_num);
		CHECK(wc.opcode != IBV_WC_RDMA_WRITE); /* garbage, as the opcode is of a real one */
	}
	for (uint64_t i = 0; i < 3; i++) {
		wc = pair_poll(s->recv_cq);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 50 + i);
	}
	CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 200, SPAN(0, 0, 8), 0)); /* posts are taken, and flushed */
	wc = pair_poll(s->send_cq);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 200);
}

static void refused_with(struct pair_side *s, int (*post)(struct pair_side *s), enum ibv_wc_status status)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	for (uint64_t i = 0; i < 3; i++)
		CHECK(!pair_receive(s, 50 + i, 0, 8));
	pair_synchronize(s);
	if (s->me == 0) {
		CHECK(!post(s));
		for (uint64_t i = 0; i < 5; i++)
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_UNSIGNALED));
		check_flushed(s, status);
	} else {
		struct ibv_async_event e = pair_event(s);

		CHECK(
		    e.event_type == (status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR));
		CHECK(e.element.qp == s->qp);
		for (uint64_t i = 0; i < 3; i++)
			CHECK(pair_poll(s->recv_cq).status == IBV_WC_WR_FLUSH_ERR);
	}
	CHECK(!ibv_query_qp(s->qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
}

/* A body, of which side 0 posts a request, and it comes back with a status. */
#define REFUSED(name, status, request) \
	static int post_##name(struct pair_side *s) \
	{ \
		return request; \
	} \
	static void name(struct pair_side *s) \
	{ \
		refused_with(s, post_##name, status); \
	}

REFUSED(bad_key, IBV_WC_REM_ACCESS_ERR, (s->peer.rkey ^= 0x10, pair_post(s, IBV_WR_RDMA_WRITE, 100, SPAN(0, 0, 8), 0)))
REFUSED(out_of_bounds, IBV_WC_REM_ACCESS_ERR, pair_post(s, IBV_WR_RDMA_WRITE, 100, SPAN(0, PAIR_BYTES - 4, 8), 0))
REFUSED(no_access, IBV_WC_REM_ACCESS_ERR, pair_post(s, IBV_WR_RDMA_READ, 100, SPAN(0, 0, 8), 0))
REFUSED(no_atomics, IBV_WC_REM_INV_REQ_ERR, pair_add(s, 100, 0, 8, 1))
REFUSED(unaligned_atomic, IBV_WC_REM_INV_REQ_ERR, pair_add(s, 100, 0, 12, 1))

static int post_write(struct pair_side *s)
{
	return pair_post(s, IBV_WR_RDMA_WRITE, 100, SPAN(0, 0, 8), 0);
}

/* A region of another protection domain than the QP's. */
static void other_domain(struct pair_side *s)
{
	struct ibv_pd *pd = ibv_alloc_pd(s->context);
	struct ibv_mr *mr;

	CHECK(pd);
	mr = ibv_reg_mr(pd, s->memory, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	atomic_store(&s->shared->words[s->me], mr->rkey);
	pair_synchronize(s);
	s->peer.rkey = (uint32_t)atomic_load(&s->shared->words[!s->me]);
	refused_with(s, post_write, IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
}

static int post_local_key(struct pair_side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->memory, 8, s->mr->rkey };
	struct ibv_send_wr wr = { .wr_id = 100, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	wr.wr.rdma.remote_addr = s->peer.address;
	wr.wr.rdma.rkey = s->peer.rkey;
	return ibv_post_send(s->qp, &wr, &bad);
}

/* The own key is wrong: the other side does not notice. */
static void local_key(struct pair_side *s)
{
	if (s->me == 0) {
		for (uint64_t i = 0; i < 3; i++)
			CHECK(!pair_receive(s, 50 + i, 0, 8));
		CHECK(!post_local_key(s));
		for (uint64_t i = 0; i < 5; i++)
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_UNSIGNALED));
		check_flushed(s, IBV_WC_LOC_PROT_ERR);
	}
}

static void too_long(struct pair_side *s)
{
	if (s->me == 1)
		CHECK(!pair_receive(s, 1, 0, 100));
	pair_synchronize(s);
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_SEND, 1, SPAN(0, 0, 101), 0));
		CHECK(pair_poll(s->send_cq).status == IBV_WC_REM_INV_REQ_ERR);
	} else {
		CHECK(pair_poll(s->recv_cq).status == IBV_WC_LOC_LEN_ERR);
		CHECK(pair_event(s).event_type == IBV_EVENT_QP_REQ_ERR);
	}
}

/* More reads in flight than the other side takes: in one list, so that no answer comes between them. */
static void too_many_reads(struct pair_side *s)
{
	if (s->me == 0) {
		struct ibv_sge sge = { (uintptr_t)s->memory, 30000, s->mr->lkey };
		struct ibv_send_wr reads[8], *bad;

		for (uint64_t i = 0; i < 8; i++) {
			reads[i] = (struct ibv_send_wr){ .wr_id = i,
				.sg_list = &sge,
				.num_sge = 1,
				.opcode = IBV_WR_RDMA_READ,
				.send_flags = IBV_SEND_SIGNALED,
				.next = i < 7 ? &reads[i + 1] : NULL };
			reads[i].wr.rdma.remote_addr = s->peer.address;
			reads[i].wr.rdma.rkey = s->peer.rkey;
		}
		CHECK(!ibv_post_send(s->qp, reads, &bad));
		CHECK(pair_poll(s->send_cq).status == IBV_WC_SUCCESS); /* one is in time */
		CHECK(pair_poll(s->send_cq).status == IBV_WC_REM_INV_REQ_ERR);
	} else {
		CHECK(pair_event(s).event_type == IBV_EVENT_QP_REQ_ERR);
	}
}

/* ---- losses ---- */

/* All arrives, in order, and has its effect once. */
static void losses(struct pair_side *s)
{
	if (s->me == 1)
		for (uint64_t i = 0; i < 40; i++)
			CHECK(!pair_receive(s, i, (uint32_t)(i * 8), 8));
	pair_synchronize(s);
	for (uint64_t i = 0; i < 40; i++) {
		if (s->me == 0) {
			__atomic_store_n((uint64_t *)(void *)s->memory, i + 1, __ATOMIC_RELAXED);
			CHECK(!pair_add(s, 1, 64, 30000, 1));
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 2, SPAN(0, 40000, 5000), 0));
			CHECK(!pair_post(s, IBV_WR_RDMA_READ, 3, SPAN(10000, 40000, 5000), 0));
			CHECK(!pair_post(s, IBV_WR_SEND, 4, SPAN(0, 0, 8), 0));
			for (uint64_t k = 1; k <= 4; k++)
				CHECK(pair_poll_ok(s->send_cq).wr_id == k);
			CHECK(pair_word(s->memory + 64) == i && pair_word(s->memory + 10000) == i + 1);
		} else {
			CHECK(pair_poll_ok(s->recv_cq).wr_id == i);
			CHECK(pair_word(s->memory + i * 8) == i + 1 && pair_word(s->memory + 30000) >= i + 1);
		}
	}
	pair_synchronize(s);
	CHECK(s->me == 0 || pair_word(s->memory + 30000) == 40);
}

/* The link is away for less time than the retries take. */
static void flap(struct pair_side *s)
{
	if (s->me == 0) {
		for (uint64_t i = 0; i < 50; i++) {
			CHECK(!pair_add(s, 1, 64, 30000, 1));
			pair_poll_ok(s->send_cq);
		}
		CHECK(pair_event(s).event_type == IBV_EVENT_PORT_ERR);
		CHECK(pair_event(s).event_type == IBV_EVENT_PORT_ACTIVE);
	}
	pair_synchronize(s);
	if (s->me == 1)
		CHECK(pair_word(s->memory + 30000) == 50);
}

/* The status of the first of so many writes, one after the other, that fails. */
static enum ibv_wc_status fails(struct pair_side *s, uint64_t most)
{
	struct ibv_wc wc = { 0 };

	for (uint64_t i = 0; i < most && wc.status == IBV_WC_SUCCESS; i++) {
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), 0));
		wc = pair_poll(s->send_cq);
	}
	return wc.status;
}

static void down(struct pair_side *s)
{
	if (s->me == 0) {
		struct ibv_port_attr port;

		CHECK(fails(s, 60) == IBV_WC_RETRY_EXC_ERR);
		CHECK(!ibv_query_port(s->context, 1, &port) && port.state == IBV_PORT_DOWN);
	}
}

/* The first packet never arrives, nothing says why, and small messages go if only the large are too large. */
static void silent(struct pair_side *s)
{
	int64_t began = unit_now_ms();

	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8), 0));
		CHECK(pair_poll(s->send_cq).status == IBV_WC_RETRY_EXC_ERR);
		CHECK(unit_now_ms() - began >= 80); /* 8 times 10 ms */
	}
	pair_synchronize(s);
	CHECK(s->me == 0 || pair_word(s->memory) == 0);
}

static void mtu_mismatch(struct pair_side *s)
{
	if (s->me == 0) {
		pair_send(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 512));
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 2, SPAN(0, 0, 4096), 0));
		CHECK(pair_poll(s->send_cq).status == IBV_WC_RETRY_EXC_ERR);
	}
}

static void peer_dies(struct pair_side *s)
{
	if (s->me == 1) {
		pair_synchronize(s);
		kill(getpid(), SIGKILL);
	}
	pair_send(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8));
	pair_synchronize(s);
	CHECK(fails(s, 100000) == IBV_WC_RETRY_EXC_ERR); /* it is not dead at once */
	child_exit(0);                                   /* there is nobody to end with */
}

/* ---- faults ---- */

static void corrupt(struct pair_side *s)
{
	CHECK(s->me == 1 || fails(s, 60) == IBV_WC_REM_OP_ERR);
}

static void stall(struct pair_side *s)
{
	if (s->me == 0) {
		int64_t began = unit_now_ms();

		for (uint64_t i = 0; i < 40; i++)
			pair_send(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8));
		CHECK(unit_now_ms() - began >= 199); /* it begins and ends in there */
	}
}

static void device_events(struct pair_side *s)
{
	if (s->me == 0) {
		for (uint64_t i = 0; i < 30; i++)
			pair_send(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8));
		CHECK(pair_event(s).event_type == IBV_EVENT_GID_CHANGE);
	}
}

static void fatal(struct pair_side *s)
{
	if (s->me == 0) {
		struct ibv_async_event e;

		CHECK(fails(s, 60) == IBV_WC_WR_FLUSH_ERR);
		e = pair_event(s);
		CHECK(e.event_type == IBV_EVENT_QP_FATAL && e.element.qp == s->qp);
		CHECK(pair_event(s).event_type == IBV_EVENT_DEVICE_FATAL);
	}
}

/* A script kills who has the device open; the other side learns of it by its time-outs alone. */
static void killed(struct pair_side *s)
{
	if (s->me == 1)
		pair_await_step(&s->shared->words[0], 1); /* never comes */
	CHECK(fails(s, 1000) == IBV_WC_RETRY_EXC_ERR);
	child_exit(0);
}

#ifdef __SANITIZE_THREAD__
/* Who reads data because a flag has come, and not a completion. */
static void reads_before_signal(struct pair_side *s)
{
	if (s->me == 0) {
		/* The reader has looked at this side's steps for the last time, which would say that data has come. */
		pair_await_step(&s->shared->words[0], 1);
		pair_send(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 4096));
		__atomic_store_n((uint64_t *)(void *)s->memory, 1, __ATOMIC_RELAXED);
		pair_send(s, IBV_WR_RDMA_WRITE, 2, SPAN(0, 8192, 8));
	} else {
		atomic_store(&s->shared->words[0], 1);
		CHECK(!pair_receive(s, 1, 0, 0)); /* rings: which must not order anything */
		pair_await(s->memory + 8192, 1);
		CHECK(!pair_receive(s, 1, 0, 0));
		CHECK(*(volatile char *)(s->memory + 100) == 0);
	}
}

/* Who writes a request's memory before it is complete. */
static void writes_before_completion(struct pair_side *s)
{
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 4096), 0));
		*(volatile char *)(s->memory + 100) = 1;
		pair_poll_ok(s->send_cq);
	}
}

enum { TSAN_FOUND = 66 };
#endif

/* ---- the rows ---- */

static char script[] = "/dev/shm/fake_ibv_faults.XXXXXX";

static void write_script(const char *line)
{
	FILE *f = fopen(script, "w");

	assert_non_null(f);
	fprintf(f, "# a test's\n%s\n", line);
	fclose(f);
}

#define FAULT(name, body, line, ...) \
	TEST(test_##name) \
	{ \
		write_script(line); \
		pair_run_both(&(struct pair_options){ __VA_ARGS__ }, body); \
	}

PROCESSES(port_not_active, silent, .env = ENV(QUICK), .devices = { "mlx0 state=init", "mlx0" })
ROW(rnr_waits, rnr_waits, .env = ENV(PATIENT))
ROW(rnr_ends, rnr_ends, .rnr_retry = 2)
ROW(rnr_without_retry, rnr_ends, .no_rnr_retry = true)
ROW(rnr_at_random, losses, .env = ENV("FAKE_IBV_RNR", "300", PATIENT))
ROW(bad_key, bad_key, .send_wr = 0)
ROW(out_of_bounds, out_of_bounds, .send_wr = 0)
ROW(no_access, no_access, .strict = true, .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
ROW(access_error_at_random, bad_key, .env = ENV("FAKE_IBV_ACCESS_ERRORS", "1000"))
ROW(other_domain, other_domain, .send_wr = 0)
ROW(local_key, local_key, .send_wr = 0)
ROW(receive_too_short, too_long, .send_wr = 0)
ROW(no_atomics, no_atomics, .devices = { "mlx0 atomic=none", "mlx0 atomic=none" })
ROW(unaligned_atomic, unaligned_atomic, .send_wr = 0)
PROCESSES(too_many_reads, too_many_reads, .reads = { 16, 1 })
ROW(losses, losses, .env = ENV("FAKE_IBV_DROP", "100@5", PATIENT))
ROW(losses_and_pieces, losses,
    .env = ENV("FAKE_IBV_DROP", "50@5", "FAKE_IBV_PIECE_US", "20", "FAKE_IBV_CQ_DELAY_US", "300", PATIENT),
    .access = IBV_ACCESS_RELAXED_ORDERING)
FAULT(drop, losses, "at=20 link=host0:mlx0 action=drop 3", .env = ENV("FAKE_IBV_FAULTS", script, PATIENT))
FAULT(flap, flap, "at=20 link=host0:mlx0 action=flap 100ms", .env = ENV("FAKE_IBV_FAULTS", script, PATIENT))
FAULT(down, down, "at=20 link=host0:mlx0 action=down", .env = ENV("FAKE_IBV_FAULTS", script, QUICK))
FAULT(corrupt_status, corrupt, "at=20 link=host0:mlx0 action=corrupt-status remote operation error",
    .env = ENV("FAKE_IBV_FAULTS", script, QUICK))
FAULT(stall, stall, "at=20 link=host0:mlx0 action=stall 200ms", .env = ENV("FAKE_IBV_FAULTS", script, PATIENT))
FAULT(gid_change, device_events, "at=20 link=host0:mlx0 action=gid-change", .env = ENV("FAKE_IBV_FAULTS", script))
FAULT(fatal, fatal, "at=20 link=host0:mlx0 action=fatal", .env = ENV("FAKE_IBV_FAULTS", script))
PROCESSES(peer_dies, peer_dies, .env = ENV(QUICK), .dies = true)
PROCESSES(wrong_gid, silent, .env = ENV(QUICK), .wrong_gid = true, .devices = { "r link=roce", "r link=roce" },
    .gid_index = { 3, 3 })
PROCESSES(wrong_gid_type, silent, .env = ENV(QUICK), .devices = { "r link=roce", "r link=roce" }, .gid_index = { 2, 3 })
PROCESSES(wrong_pkey, silent, .env = ENV(QUICK), .devices = { "mlx0 pkeys=0x8001", "mlx0 pkeys=0x8002" })
ROW(wrong_service_level, silent, .env = ENV(QUICK), .devices = { "mlx0 sls=1", "mlx0 sls=1" }, .sl = 1)
ROW(mtu_mismatch, mtu_mismatch, .env = ENV(QUICK), .mtu = { IBV_MTU_4096, IBV_MTU_1024 })
PROCESSES(link_of_smaller_mtu, mtu_mismatch, .env = ENV(QUICK), .mtu = { IBV_MTU_4096, IBV_MTU_4096 },
    .devices = { "mlx0 mtu=4096", "mlx0 mtu=1024" })

#ifdef __SANITIZE_THREAD__
TEST_CALL(
    test_race_with_arrival, pair_run(PAIR_THREADS, &(struct pair_options){ .status = TSAN_FOUND }, reads_before_signal))
TEST_CALL(test_race_with_source,
    pair_run(PAIR_THREADS, &(struct pair_options){ .status = TSAN_FOUND }, writes_before_completion))
#endif

/* A line of the variable itself, that acts again and again, on one host after the other. */
TEST(test_again_and_again)
{
	static char fired[] = "/dev/shm/fake_ibv_fired.XXXXXX";
	int fd = mkstemp(fired), hosts[2] = { 0 };
	char line[128];
	FILE *f;

	assert_true(fd >= 0);
	close(fd);
	pair_run(PAIR_PROCESSES,
	    &(struct pair_options){ .env = ENV("FAKE_IBV_FAULTS", "at=500us every=500us link=*:mlx0 action=stall 1us",
	                                "FAKE_IBV_FIRED", fired, PATIENT) },
	    losses);
	f = fopen(fired, "r");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		int host = -1;

		assert_int_equal(sscanf(line, "%*d host%d:mlx0:1 stall", &host), 1);
		assert_in_range(host, 0, 1);
		hosts[host]++;
	}
	fclose(f);
	unlink(fired);
	assert_true(hosts[0] >= 2 && hosts[1] >= 2);
}

TEST(test_killed_by_script)
{
	write_script("at=30 link=host1:mlx0 action=kill");
	pair_run(PAIR_PROCESSES, &(struct pair_options){ .env = ENV("FAKE_IBV_FAULTS", script, QUICK), .dies = true },
	    killed);
}

int main(void)
{
	int fd = mkstemp(script), failed;

	if (fd < 0)
		return 1;
	close(fd);
	alarm(600); /* no wait without an end */
	failed = tests_run(NULL, NULL);
	unlink(script);
	return failed;
}

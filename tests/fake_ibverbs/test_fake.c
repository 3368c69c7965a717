/* SPDX-License-Identifier: MIT */
/* How connections behave: what a real one does and a copy of memory does not, within a process and between two.
 * test_errors.c has what fails. */
#include "pair_rows.h"
#include "tests/support/pause.h"
#include "tests/support/unit.h"

static void fill(char *at, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i++)
		at[i] = (char)(seed * 31 + i * 7 + i / 251);
}

static bool filled(const char *at, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i++)
		if (at[i] != (char)(seed * 31 + i * 7 + i / 251))
			return false;
	return true;
}

/* ---- all operations ---- */

static void writes(struct pair_side *s)
{
	if (s->me == 0) {
		fill(s->memory, 10001, 1);
		pair_send(s, IBV_WR_RDMA_WRITE, 5, SPAN(0, 3, 10001));
		pair_send(s, IBV_WR_RDMA_WRITE_WITH_IMM, 6, SPAN(0, 20000, 0));
	} else {
		struct ibv_wc wc;

		CHECK(!pair_receive(s, 9, 0, 0));
		wc = pair_poll_ok(s->recv_cq);
		CHECK(wc.wr_id == 9 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & IBV_WC_WITH_IMM);
		CHECK(be32toh(wc.imm_data) == 6 && wc.byte_len == 0 && wc.qp_num == s->qp->qp_num);
		CHECK(filled(s->memory + 3, 10001, 1));
	}
}

static void reads(struct pair_side *s)
{
	if (s->me == 1)
		fill(s->memory + 100, 30000, 2);
	pair_synchronize(s);
	if (s->me == 0) {
		struct ibv_wc wc;

		CHECK(!pair_post(s, IBV_WR_RDMA_READ, 1, SPAN(8, 100, 30000), 0));
		CHECK(!pair_post(s, IBV_WR_RDMA_READ, 2, SPAN(40000, 101, 1), 0));
		CHECK(!pair_post(s, IBV_WR_RDMA_READ, 3, SPAN(0, 0, 0), 0));
		wc = pair_poll_ok(s->send_cq);
		CHECK(wc.wr_id == 1 && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 30000);
		CHECK(filled(s->memory + 8, 30000, 2));
		CHECK(pair_poll_ok(s->send_cq).wr_id == 2);
		CHECK(s->memory[40000] == s->memory[9]);
		CHECK(pair_poll_ok(s->send_cq).wr_id == 3);
	}
}

static void sends(struct pair_side *s)
{
	if (s->me == 1) {
		struct ibv_sge parts[3] = { { (uintptr_t)s->memory, 10, s->mr->lkey },
			{ (uintptr_t)s->memory + 1000, 2000, s->mr->lkey },
			{ (uintptr_t)s->memory + 5000, 3000, s->mr->lkey } };
		struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = parts, .num_sge = 3 }, *bad;
		struct ibv_wc wc;

		CHECK(!ibv_post_recv(s->qp, &wr, &bad));
		wc = pair_poll_ok(s->recv_cq);
		CHECK(wc.wr_id == 7 && wc.opcode == IBV_WC_RECV && wc.byte_len == 4000 && be32toh(wc.imm_data) == 3);
		memmove(s->memory + 10000, s->memory, 10);
		memmove(s->memory + 10010, s->memory + 1000, 2000);
		memmove(s->memory + 12010, s->memory + 5000, 1990);
		CHECK(filled(s->memory + 10000, 4000, 3));
	} else {
		struct ibv_sge parts[2] = { { (uintptr_t)s->memory, 1500, s->mr->lkey },
			{ (uintptr_t)s->memory + 9000, 2500, s->mr->lkey } };
		struct ibv_send_wr wr = { .wr_id = 3,
			.sg_list = parts,
			.num_sge = 2,
			.opcode = IBV_WR_SEND_WITH_IMM,
			.send_flags = IBV_SEND_SIGNALED,
			.imm_data = htobe32(3) },
		                   *bad;

		fill(s->memory, 4000, 3);
		memmove(s->memory + 9000, s->memory + 1500, 2500);
		CHECK(!ibv_post_send(s->qp, &wr, &bad));
		CHECK(pair_poll_ok(s->send_cq).opcode == IBV_WC_SEND);
	}
}

static void atomics(struct pair_side *s)
{
	if (s->me == 0) {
		for (uint64_t i = 0; i < 20; i++) {
			CHECK(!pair_add(s, i, 8, 64, 3));
			CHECK(pair_poll_ok(s->send_cq).opcode == IBV_WC_FETCH_ADD);
			CHECK(pair_word(s->memory + 8) == 3 * i);
		}
		CHECK(!pair_swap(s, 1, 8, 64, 60, 1000));
		CHECK(pair_poll_ok(s->send_cq).opcode == IBV_WC_COMP_SWAP);
		CHECK(pair_word(s->memory + 8) == 60);
		CHECK(!pair_swap(s, 2, 8, 64, 60, 2000));
		pair_poll_ok(s->send_cq);
		CHECK(pair_word(s->memory + 8) == 1000);
	}
	pair_synchronize(s);
	if (s->me == 1)
		CHECK(pair_word(s->memory + 64) == 1000);
}

/* The source of an inline request may be changed at once; it needs no key. */
static void inlines(struct pair_side *s)
{
	if (s->me == 0) {
		for (uint32_t i = 0; i < 32; i++) {
			uint64_t value = i + 1;
			struct ibv_sge sge = { (uintptr_t)&value, 8, 0xdead };
			struct ibv_send_wr wr = { .sg_list = &sge,
				.num_sge = 1,
				.opcode = IBV_WR_RDMA_WRITE,
				.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED },
			                   *bad;

			wr.wr.rdma.remote_addr = s->peer.address + i * 8;
			wr.wr.rdma.rkey = s->peer.rkey;
			CHECK(!ibv_post_send(s->qp, &wr, &bad));
			value = 0;
		}
		for (int i = 0; i < 32; i++)
			pair_poll_ok(s->send_cq);
		pair_send(s, IBV_WR_SEND, 1, SPAN(0, 0, 0));
	} else {
		CHECK(!pair_receive(s, 0, 0, 0));
		pair_poll_ok(s->recv_cq);
		for (uint64_t i = 0; i < 32; i++)
			CHECK(pair_word(s->memory + i * 8) == i + 1);
	}
}

/* A fenced request waits for the answer of a read before it: it may send what was read. */
static void fences(struct pair_side *s)
{
	if (s->me == 1)
		fill(s->memory, 20000, 6);
	pair_synchronize(s);
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_RDMA_READ, 1, SPAN(0, 0, 20000), PAIR_UNSIGNALED));
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 2, SPAN(0, 30000, 20000), IBV_SEND_FENCE));
		pair_poll_ok(s->send_cq);
		pair_send(s, IBV_WR_SEND, 3, SPAN(0, 0, 0));
	} else {
		CHECK(!pair_receive(s, 1, 0, 0));
		pair_poll_ok(s->recv_cq);
		CHECK(filled(s->memory + 30000, 20000, 6));
	}
}

/* ---- order and time of data ---- */

/* Data lies there in part, the last of it first in relaxed ordering and never without; the signal comes after all. */
static void pieces(struct pair_side *s)
{
	bool relaxed = s->o->access & IBV_ACCESS_RELAXED_ORDERING;
	int backwards = 0;

	for (uint64_t round = 1; round <= 20; round++) {
		if (s->me == 0) {
			for (int i = 0; i < 8192; i += 8)
				__atomic_store_n((uint64_t *)(void *)(s->memory + i), round, __ATOMIC_RELAXED);
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8192), PAIR_UNSIGNALED));
			pair_send(s, IBV_WR_RDMA_WRITE_WITH_IMM, 2, SPAN(0, 0, 0));
		} else {
			struct ibv_wc wc;

			CHECK(!pair_receive(s, round, 0, 0));
			while (!ibv_poll_cq(s->recv_cq, 1, &wc)) {
				uint64_t last = pair_word(s->memory + 8184), first = pair_word(s->memory);

				CHECK(last == round || last == round - 1); /* never half of it */
				backwards += last == round && first != round;
			}
			CHECK(wc.status == IBV_WC_SUCCESS);
			for (int i = 0; i < 8192; i += 8)
				CHECK(*(uint64_t *)(void *)(s->memory + i) == round);
		}
		pair_synchronize(s);
	}
	CHECK(s->me == 0 || relaxed == (backwards > 0));
}

/* An atomic is a signal as well. */
static void atomic_after_data(struct pair_side *s)
{
	for (uint64_t round = 1; round <= 10; round++) {
		if (s->me == 0) {
			fill(s->memory, 8000, round);
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8000), PAIR_UNSIGNALED));
			CHECK(!pair_add(s, 2, 30000, 20000, 1));
			pair_poll_ok(s->send_cq);
		} else {
			pair_await(s->memory + 20000, round);
			CHECK(filled(s->memory, 8000, round));
		}
		pair_synchronize(s);
	}
}

/* A completion has come and the data is not there, until the NIC serves a read. */
static void parked(struct pair_side *s)
{
	if (s->me == 0) {
		fill(s->memory, 1000, 4);
		pair_send(s, IBV_WR_RDMA_WRITE_WITH_IMM, 2, SPAN(0, 0, 1000));
		pair_synchronize(s);
	} else {
		struct ibv_qp *own[2] = { pair_qp(s, s->pd), pair_qp(s, s->pd) }, *of_side = s->qp;
		struct pair_info infos[2], peer = s->peer;

		for (int i = 0; i < 2; i++)
			pair_describe(s, own[i], &infos[i]);
		for (int i = 0; i < 2; i++)
			CHECK(!pair_connect(s, own[i], &infos[!i]));
		CHECK(!pair_receive(s, 1, 0, 0));
		pair_poll_ok(s->recv_cq);
		CHECK(pair_word(s->memory) == 0);
		s->qp = own[0];
		s->peer = infos[1];
		pair_send(s, IBV_WR_RDMA_READ, 3, SPAN(50000, 0, 1));
		CHECK(filled(s->memory, 1000, 4));
		s->qp = of_side;
		s->peer = peer;
		for (int i = 0; i < 2; i++)
			CHECK(!ibv_destroy_qp(own[i]));
		pair_synchronize(s);
	}
}

static void parked_for_a_time(struct pair_side *s)
{
	if (s->me == 0) {
		__atomic_store_n((uint64_t *)(void *)s->memory, 77, __ATOMIC_RELAXED);
		pair_send(s, IBV_WR_RDMA_WRITE_WITH_IMM, 2, SPAN(0, 0, 8));
	} else {
		CHECK(!pair_receive(s, 1, 0, 0));
		pair_poll_ok(s->recv_cq);
		pair_await(s->memory, 77);
	}
}

/*
 * Data for device memory only: the completion is early, data for other memory is in time, and an atomic to the same
 * device comes behind all of it.
 */
static void parked_device(struct pair_side *s)
{
	int fd = memfd_create("a_gpu", MFD_CLOEXEC);
	char *gpu;
	struct ibv_mr *mr;

	CHECK(fd >= 0 && !ftruncate(fd, 65536));
	gpu = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(gpu != MAP_FAILED);
	mr = ibv_reg_dmabuf_mr(s->pd, 0, 65536, (uintptr_t)gpu, fd,
	    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	atomic_store(&s->shared->words[s->me], (uintptr_t)gpu);
	atomic_store(&s->shared->words[2 + s->me], mr->rkey);
	if (s->me == 1)
		CHECK(!pair_receive(s, 1, 0, 0));
	pair_synchronize(s);
	if (s->me == 0) {
		struct pair_info host = s->peer;

		__atomic_store_n((uint64_t *)(void *)s->memory, 5, __ATOMIC_RELAXED);
		s->peer.address = atomic_load(&s->shared->words[1]);
		s->peer.rkey = (uint32_t)atomic_load(&s->shared->words[3]);
		pair_send(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 4096));
		s->peer = host;
		pair_send(s, IBV_WR_RDMA_WRITE_WITH_IMM, 1, SPAN(0, 0, 8));
		pair_synchronize(s);
		s->peer.address = atomic_load(&s->shared->words[1]);
		s->peer.rkey = (uint32_t)atomic_load(&s->shared->words[3]);
		CHECK(!pair_add(s, 2, 16, 8192, 1));
		pair_poll_ok(s->send_cq);
	} else {
		pair_poll_ok(s->recv_cq);
		CHECK(pair_word(s->memory) == 5 && pair_word(gpu) == 0);
		pair_synchronize(s);
		pair_await(gpu + 8192, 1);
		CHECK(pair_word(gpu) == 5);
	}
	pair_synchronize(s);
	CHECK(!ibv_dereg_mr(mr));
	munmap(gpu, 65536);
	close(fd);
}

/* Who changes the source after the post sends the change. */
static void late_source(struct pair_side *s)
{
	int late = 0;

	for (uint64_t round = 1; round <= 20; round++) {
		if (s->me == 0) {
			__atomic_store_n((uint64_t *)(void *)s->memory, round, __ATOMIC_RELAXED);
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8), 0));
			__atomic_store_n((uint64_t *)(void *)s->memory, round + 1000, __ATOMIC_RELAXED);
			pair_poll_ok(s->send_cq);
			pair_send(s, IBV_WR_SEND, 2, SPAN(0, 0, 0));
		} else {
			CHECK(!pair_receive(s, 1, 0, 0));
			pair_poll_ok(s->recv_cq);
			late += pair_word(s->memory) == round + 1000;
		}
		pair_synchronize(s);
	}
	CHECK(s->me == 0 || late == 20);
}

/* ---- completions ---- */

/* Two QPs on one CQ: in each the order of posts, among them any. */
static void any_order(struct pair_side *s)
{
	struct ibv_qp *first = s->qp, *second = pair_qp(s, s->pd);
	struct pair_info peers[2] = { s->peer };
	int crossed = 0;

	pair_describe(s, second, &s->shared->info[s->me]);
	pair_synchronize(s);
	peers[1] = s->shared->info[!s->me];
	CHECK(!pair_connect(s, second, &peers[1]));
	pair_synchronize(s);
	for (int round = 0; s->me == 0 && round < 20; round++) {
		uint64_t next[2] = { 0, 100 };

		for (uint64_t i = 0; i < 4; i++)
			for (int q = 0; q < 2; q++) {
				s->qp = q ? second : first;
				s->peer = peers[q];
				CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i + (q ? 100 : 0), SPAN(0, 0, 8), 0));
			}
		for (int i = 0; i < 8; i++) {
			uint64_t id = pair_poll_ok(s->send_cq).wr_id;
			int q = id >= 100;

			CHECK(id == next[q]);
			next[q]++;
			crossed += q && next[1] - 100 > next[0];
		}
	}
	CHECK(s->me || crossed);
	s->qp = first;
	s->peer = peers[0];
	pair_synchronize(s);
	CHECK(!ibv_destroy_qp(second));
}

static void batches(struct pair_side *s)
{
	int most = 0;

	for (int round = 0; s->me == 0 && round < 5; round++) {
		int n = 0;

		for (int i = 0; i < 16; i++)
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8), 0));
		while (n < 16) {
			struct ibv_wc wcs[16];
			int got;

			pause_us(PAUSE_POLL, 1000); /* less than a period */
			got = ibv_poll_cq(s->send_cq, 16, wcs);
			CHECK(got >= 0);
			most = got > most ? got : most;
			n += got;
		}
	}
	CHECK(s->me || most > 1);
}

/* Slots of requests without a completion come back when a later completion is polled. */
static void send_queue_full(struct pair_side *s)
{
	if (s->me)
		return;
	for (uint64_t i = 0; i < 7; i++)
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_UNSIGNALED));
	CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 7, SPAN(0, 0, 8), 0));
	CHECK(pair_post(s, IBV_WR_RDMA_WRITE, 8, SPAN(0, 0, 8), 0) == ENOMEM);
	CHECK(pair_poll_ok(s->send_cq).wr_id == 7);
	for (uint64_t i = 0; i < 8; i++)
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_UNSIGNALED));
	pause_us(PAUSE_GRACE, 50000);
	CHECK(pair_post(s, IBV_WR_RDMA_WRITE, 8, SPAN(0, 0, 8), 0) == ENOMEM); /* they are done, and nobody saw it */
	CHECK(pair_poll_none(s->send_cq));
}

static void recv_queue_full(struct pair_side *s)
{
	if (s->me == 1)
		for (uint64_t i = 0; i < 8; i++)
			CHECK(!pair_receive(s, i, 0, 0));
	pair_synchronize(s);
	if (s->me == 0)
		pair_send(s, IBV_WR_SEND, 1, SPAN(0, 0, 0));
	pair_synchronize(s);
	if (s->me == 1) {
		CHECK(pair_receive(s, 8, 0, 0) == ENOMEM);
		CHECK(pair_poll_ok(s->recv_cq).wr_id == 0);
		CHECK(!pair_receive(s, 8, 0, 0));
	}
}

static void cq_overrun(struct pair_side *s)
{
	if (s->me == 0) {
		struct ibv_async_event e;

		for (uint64_t i = 0; i < 6; i++)
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), 0));
		e = pair_event(s);
		CHECK(e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == s->send_cq);
	}
}

static void channels(struct pair_side *s)
{
	for (int round = 0; round < 10; round++) {
		struct pollfd p = { s->channel->fd, POLLIN, 0 };
		struct ibv_cq *cq;
		void *context;

		if (s->me == 1) {
			CHECK(!ibv_req_notify_cq(s->recv_cq, round & 1));
			CHECK(!pair_receive(s, 1, 0, 0));
		}
		pair_synchronize(s);
		if (s->me == 0) {
			CHECK(!pair_post(s, IBV_WR_SEND, 1, SPAN(0, 0, 0), round & 1 ? IBV_SEND_SOLICITED : 0));
			pair_poll_ok(s->send_cq);
		} else {
			CHECK(poll(&p, 1, PAIR_WAIT_MS) == 1);
			CHECK(!ibv_get_cq_event(s->channel, &cq, &context));
			CHECK(cq == s->recv_cq && context == s);
			ibv_ack_cq_events(cq, 1);
			pair_poll_ok(s->recv_cq);
			CHECK(poll(&p, 1, 0) == 0); /* once for each request to be told */
		}
	}
}

/* Who waits for a solicited completion is not woken by others. */
static void channels_unsolicited(struct pair_side *s)
{
	struct pollfd p = { s->channel->fd, POLLIN, 0 };

	if (s->me == 1) {
		CHECK(!ibv_req_notify_cq(s->recv_cq, 1));
		CHECK(!pair_receive(s, 1, 0, 0));
	}
	pair_synchronize(s);
	if (s->me == 0)
		pair_send(s, IBV_WR_SEND, 1, SPAN(0, 0, 0));
	if (s->me == 1) {
		pair_poll_ok(s->recv_cq);
		CHECK(poll(&p, 1, 0) == 0);
	}
}

/* Events that nobody read are gone with what they are about, also where something new has its address. */
static void events_of_the_dead(struct pair_side *s)
{
	for (int round = 0; round < 3; round++) {
		struct ibv_cq *cq = ibv_create_cq(s->context, 4, NULL, s->channel, 0), *told;
		struct pollfd p = { s->channel->fd, POLLIN, 0 };
		struct pair_info info;
		struct ibv_recv_wr wr = { .num_sge = 0 }, *bad;
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		struct ibv_cq *of_side = s->recv_cq;
		struct ibv_qp *qp;
		void *context;

		CHECK(cq);
		s->recv_cq = cq;
		qp = pair_qp(s, s->pd);
		s->recv_cq = of_side;
		pair_describe(s, qp, &info);
		CHECK(!pair_connect(s, qp, &info));
		CHECK(!ibv_req_notify_cq(cq, 0) && !ibv_post_recv(qp, &wr, &bad));
		CHECK(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
		CHECK(poll(&p, 1, PAIR_WAIT_MS) == 1);
		if (round == 2) { /* the third is read, and is that of the third */
			CHECK(!ibv_get_cq_event(s->channel, &told, &context) && told == cq);
			ibv_ack_cq_events(cq, 1);
			CHECK(poll(&p, 1, 0) == 0);
		}
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	}
}

/* ---- the rows ---- */

ROW(write, writes, .send_wr = 0)
ROW(write_roce, writes, .devices = { "r link=roce mtu=1024", "r link=roce mtu=4096" }, .gid_index = { 3, 3 })
ROW(read, reads, .send_wr = 0)
ROW(read_one_at_a_time, reads, .reads = { 1, 1 })
ROW(send, sends, .send_wr = 0)
ROW(atomic, atomics, .send_wr = 0)
ROW(atomic_global, atomics, .devices = { "mlx0 atomic=glob", "mlx0 atomic=glob" })
ROW(inline, inlines, .env = ENV("FAKE_IBV_LATE_READ_US", "1000"))
ROW(fence, fences, .env = ENV("FAKE_IBV_PIECE_US", "20"))
PROCESSES(write_routed, writes, .devices = { "mlx0 gids=ib@fe80::1,ib@fd00::1", "mlx0 gids=ib@fe80::2,ib@fd00::2" },
    .gid_index = { 1, 1 })
ROW(pieces_relaxed, pieces, .env = ENV("FAKE_IBV_PIECE_US", "300@7", "FAKE_IBV_BY_POLLS", "1"),
    .access = IBV_ACCESS_RELAXED_ORDERING)
ROW(pieces_in_order, pieces, .env = ENV("FAKE_IBV_PIECE_US", "300@7"))
ROW(atomic_comes_after_data, atomic_after_data, .env = ENV("FAKE_IBV_PIECE_US", "300"),
    .access = IBV_ACCESS_RELAXED_ORDERING)
ROW(parked_until_a_read, parked, .env = ENV("FAKE_IBV_ORDERING", "none-all", "FAKE_IBV_PARK_US", "600000000"))
ROW(parked_device_memory, parked_device, .env = ENV("FAKE_IBV_ORDERING", "none", "FAKE_IBV_PARK_US", "600000000"))
ROW(parked_for_a_time, parked_for_a_time, .env = ENV("FAKE_IBV_ORDERING", "none-all", "FAKE_IBV_PARK_US", "20000"))
ROW(source_read_late, late_source, .env = ENV("FAKE_IBV_LATE_READ_US", "5000@3", "FAKE_IBV_BY_POLLS", "1"))
ROW(completions_in_any_order, any_order, .env = ENV("FAKE_IBV_CQ_DELAY_US", "2000"))
ROW(completions_in_batches, batches, .env = ENV("FAKE_IBV_CQ_PERIOD_US", "5000"))
ROW(send_queue_full, send_queue_full, .send_wr = 8)
ROW(recv_queue_full, recv_queue_full, .recv_wr = 8)
ROW(cq_overrun, cq_overrun, .cqe = 4)
ROW(completion_channel, channels, .channel = true)
ROW(completion_channel_unsolicited, channels_unsolicited, .channel = true)
ROW(events_of_the_dead, events_of_the_dead, .channel = true)

TESTS_BEGIN
{
	alarm(600); /* no wait without an end */
}

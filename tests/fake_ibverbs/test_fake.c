/* SPDX-License-Identifier: MIT */
/* How connections behave: what a real one does and a copy of memory does not, within a process and between two. */
#include <poll.h>
#include "pair.h"
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
	pair_meet(s);
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
	pair_meet(s);
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
	pair_meet(s);
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_RDMA_READ, 1, SPAN(0, 0, 20000), PAIR_QUIET));
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
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8192), PAIR_QUIET));
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
		pair_meet(s);
	}
	CHECK(s->me == 0 || relaxed == (backwards > 0));
}

/* An atomic is a signal as well. */
static void atomic_after_data(struct pair_side *s)
{
	for (uint64_t round = 1; round <= 10; round++) {
		if (s->me == 0) {
			fill(s->memory, 8000, round);
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8000), PAIR_QUIET));
			CHECK(!pair_add(s, 2, 30000, 20000, 1));
			pair_poll_ok(s->send_cq);
		} else {
			pair_await(s->memory + 20000, round);
			CHECK(filled(s->memory, 8000, round));
		}
		pair_meet(s);
	}
}

/* A completion has come and the data is not there, until the NIC serves a read. */
static void parked(struct pair_side *s)
{
	if (s->me == 0) {
		fill(s->memory, 1000, 4);
		pair_send(s, IBV_WR_RDMA_WRITE_WITH_IMM, 2, SPAN(0, 0, 1000));
		pair_meet(s);
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
		pair_meet(s);
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
	pair_meet(s);
	if (s->me == 0) {
		struct pair_info host = s->peer;

		__atomic_store_n((uint64_t *)(void *)s->memory, 5, __ATOMIC_RELAXED);
		s->peer.address = atomic_load(&s->shared->words[1]);
		s->peer.rkey = (uint32_t)atomic_load(&s->shared->words[3]);
		pair_send(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 4096));
		s->peer = host;
		pair_send(s, IBV_WR_RDMA_WRITE_WITH_IMM, 1, SPAN(0, 0, 8));
		pair_meet(s);
		s->peer.address = atomic_load(&s->shared->words[1]);
		s->peer.rkey = (uint32_t)atomic_load(&s->shared->words[3]);
		CHECK(!pair_add(s, 2, 16, 8192, 1));
		pair_poll_ok(s->send_cq);
	} else {
		pair_poll_ok(s->recv_cq);
		CHECK(pair_word(s->memory) == 5 && pair_word(gpu) == 0);
		pair_meet(s);
		pair_await(gpu + 8192, 1);
		CHECK(pair_word(gpu) == 5);
	}
	pair_meet(s);
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
		pair_meet(s);
	}
	CHECK(s->me == 0 || late > 0);
}

/* ---- completions ---- */

/* Two QPs on one CQ: in each the order of posts, among them any. */
static void any_order(struct pair_side *s)
{
	struct ibv_qp *first = s->qp, *second = pair_qp(s, s->pd);
	struct pair_info peers[2] = { s->peer };
	int crossed = 0;

	pair_describe(s, second, &s->shared->info[s->me]);
	pair_meet(s);
	peers[1] = s->shared->info[!s->me];
	CHECK(!pair_connect(s, second, &peers[1]));
	pair_meet(s);
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
	pair_meet(s);
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
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_QUIET));
	CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 7, SPAN(0, 0, 8), 0));
	CHECK(pair_post(s, IBV_WR_RDMA_WRITE, 8, SPAN(0, 0, 8), 0) == ENOMEM);
	CHECK(pair_poll_ok(s->send_cq).wr_id == 7);
	for (uint64_t i = 0; i < 8; i++)
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_QUIET));
	pause_us(PAUSE_GRACE, 50000);
	CHECK(pair_post(s, IBV_WR_RDMA_WRITE, 8, SPAN(0, 0, 8), 0) == ENOMEM); /* they are done, and nobody saw it */
	CHECK(pair_poll_none(s->send_cq));
}

static void recv_queue_full(struct pair_side *s)
{
	if (s->me == 1)
		for (uint64_t i = 0; i < 8; i++)
			CHECK(!pair_receive(s, i, 0, 0));
	pair_meet(s);
	if (s->me == 0)
		pair_send(s, IBV_WR_SEND, 1, SPAN(0, 0, 0));
	pair_meet(s);
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
		pair_meet(s);
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
	pair_meet(s);
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

/* ---- refusals ---- */

static void rnr_waits(struct pair_side *s)
{
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_SEND, 1, SPAN(0, 0, 0), 0));
		pause_us(PAUSE_LATE, 30000);
		CHECK(pair_poll_none(s->send_cq));
		pair_meet(s);
		pair_poll_ok(s->send_cq);
	} else {
		pair_meet(s);
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
	pair_meet(s);
	if (s->me == 0) {
		CHECK(!post(s));
		for (uint64_t i = 0; i < 5; i++)
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_QUIET));
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

static int post_bad_key(struct pair_side *s)
{
	s->peer.rkey ^= 0x10;
	return pair_post(s, IBV_WR_RDMA_WRITE, 100, SPAN(0, 0, 8), 0);
}

static void bad_key(struct pair_side *s)
{
	refused_with(s, post_bad_key, IBV_WC_REM_ACCESS_ERR);
}

static int post_out_of_bounds(struct pair_side *s)
{
	return pair_post(s, IBV_WR_RDMA_WRITE, 100, SPAN(0, PAIR_BYTES - 4, 8), 0);
}

static void out_of_bounds(struct pair_side *s)
{
	refused_with(s, post_out_of_bounds, IBV_WC_REM_ACCESS_ERR);
}

static int post_read(struct pair_side *s)
{
	return pair_post(s, IBV_WR_RDMA_READ, 100, SPAN(0, 0, 8), 0);
}

static void no_access(struct pair_side *s)
{
	refused_with(s, post_read, IBV_WC_REM_ACCESS_ERR);
}

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
	pair_meet(s);
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
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), PAIR_QUIET));
		check_flushed(s, IBV_WC_LOC_PROT_ERR);
	}
}

static void too_long(struct pair_side *s)
{
	if (s->me == 1)
		CHECK(!pair_receive(s, 1, 0, 100));
	pair_meet(s);
	if (s->me == 0) {
		CHECK(!pair_post(s, IBV_WR_SEND, 1, SPAN(0, 0, 101), 0));
		CHECK(pair_poll(s->send_cq).status == IBV_WC_REM_INV_REQ_ERR);
	} else {
		CHECK(pair_poll(s->recv_cq).status == IBV_WC_LOC_LEN_ERR);
		CHECK(pair_event(s).event_type == IBV_EVENT_QP_REQ_ERR);
	}
}

static int post_add(struct pair_side *s)
{
	return pair_add(s, 100, 0, 8, 1);
}

static void no_atomics(struct pair_side *s)
{
	refused_with(s, post_add, IBV_WC_REM_INV_REQ_ERR);
}

static int post_add_unaligned(struct pair_side *s)
{
	return pair_add(s, 100, 0, 12, 1);
}

static void unaligned_atomic(struct pair_side *s)
{
	refused_with(s, post_add_unaligned, IBV_WC_REM_INV_REQ_ERR);
}

/* More reads in flight than the other side takes. */
static void too_many_reads(struct pair_side *s)
{
	if (s->me == 0) {
		bool refused = false;

		for (uint64_t i = 0; i < 8; i++)
			CHECK(!pair_post(s, IBV_WR_RDMA_READ, i, SPAN(0, 0, 30000), 0));
		for (uint64_t i = 0; i < 8; i++)
			refused |= pair_poll(s->send_cq).status == IBV_WC_REM_INV_REQ_ERR;
		CHECK(refused);
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
	pair_meet(s);
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
	pair_meet(s);
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
	pair_meet(s);
	if (s->me == 1)
		CHECK(pair_word(s->memory + 30000) == 50);
}

static void down(struct pair_side *s)
{
	if (s->me == 0) {
		struct ibv_port_attr port;
		struct ibv_wc wc = { 0 };

		for (uint64_t i = 0; i < 60 && wc.status == IBV_WC_SUCCESS; i++) {
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), 0));
			wc = pair_poll(s->send_cq);
		}
		CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
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
	pair_meet(s);
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
		pair_meet(s);
		kill(getpid(), SIGKILL);
	}
	pair_send(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8));
	pair_meet(s);
	for (int i = 0;; i++) {
		struct ibv_wc wc;

		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 8), 0));
		wc = pair_poll(s->send_cq);
		if (wc.status == IBV_WC_SUCCESS && i < 100000)
			continue; /* it is not dead yet */
		CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
		child_exit(0); /* there is nobody to end with */
	}
}

/* ---- faults ---- */

static void corrupt(struct pair_side *s)
{
	if (s->me == 0) {
		struct ibv_wc wc = { 0 };

		for (uint64_t i = 0; i < 60 && wc.status == IBV_WC_SUCCESS; i++) {
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), 0));
			wc = pair_poll(s->send_cq);
		}
		CHECK(wc.status == IBV_WC_REM_OP_ERR);
	}
}

static void stall(struct pair_side *s)
{
	if (s->me == 0) {
		int64_t longest = 0;

		for (uint64_t i = 0; i < 40; i++) {
			int64_t began = unit_now_ms();

			pair_send(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8));
			if (unit_now_ms() - began > longest)
				longest = unit_now_ms() - began;
		}
		CHECK(longest >= 150);
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
		struct ibv_wc wc = { 0 };

		for (uint64_t i = 0; i < 60 && wc.status == IBV_WC_SUCCESS; i++) {
			CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), 0));
			wc = pair_poll(s->send_cq);
		}
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
		e = pair_event(s);
		CHECK(e.event_type == IBV_EVENT_QP_FATAL && e.element.qp == s->qp);
		CHECK(pair_event(s).event_type == IBV_EVENT_DEVICE_FATAL);
	}
}

/* A script kills who has the device open; the other side learns of it by its time-outs alone. */
static void killed(struct pair_side *s)
{
	struct ibv_wc wc = { 0 };

	if (s->me == 1)
		pair_await_step(&s->shared->words[0], 1); /* never comes */
	for (uint64_t i = 0; i < 1000 && wc.status == IBV_WC_SUCCESS; i++) {
		CHECK(!pair_post(s, IBV_WR_RDMA_WRITE, i, SPAN(0, 0, 8), 0));
		wc = pair_poll(s->send_cq);
	}
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
	child_exit(0);
}

#ifdef __SANITIZE_THREAD__
/* Who reads data because a flag has come, and not a completion. */
static void reads_before_signal(struct pair_side *s)
{
	if (s->me == 0) {
		pair_send(s, IBV_WR_RDMA_WRITE, 1, SPAN(0, 0, 4096));
		__atomic_store_n((uint64_t *)(void *)s->memory, 1, __ATOMIC_RELAXED);
		pair_send(s, IBV_WR_RDMA_WRITE, 2, SPAN(0, 8192, 8));
	} else {
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

#define ENV(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}
#define QUICK "FAKE_IBV_TIME_SCALE", "1000", "FAKE_IBV_TIMEOUT_MIN_MS", "10"
/* Losses with small time-outs on a busy machine must not use up the retries. */
#define PATIENT "FAKE_IBV_TIMEOUT_MIN_MS", "40"

static char script[] = "/dev/shm/fake_ibv_faults.XXXXXX";

static void write_script(const char *line)
{
	FILE *f = fopen(script, "w");

	assert_non_null(f);
	fprintf(f, "# a test's\n%s\n", line);
	fclose(f);
}

/* Within a process and between two. */
static void both(const struct pair_options *o, void (*body)(struct pair_side *s))
{
	pair_run(PAIR_THREADS, o, body);
	pair_run(PAIR_PROCESSES, o, body);
}

#define ROW(name, body, ...) \
	static void test_##name(void **state) \
	{ \
		both(&(struct pair_options){ __VA_ARGS__ }, body); \
	}
#define FAULT(name, body, line, ...) \
	static void test_##name(void **state) \
	{ \
		write_script(line); \
		both(&(struct pair_options){ __VA_ARGS__ }, body); \
	}
#define PROCESSES(name, body, ...) \
	static void test_##name(void **state) \
	{ \
		pair_run(PAIR_PROCESSES, &(struct pair_options){ __VA_ARGS__ }, body); \
	}

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
PROCESSES(port_not_active, silent, .env = ENV(QUICK), .devices = { "mlx0 state=init", "mlx0" })
ROW(pieces_relaxed, pieces, .env = ENV("FAKE_IBV_PIECE_US", "300@7"), .access = IBV_ACCESS_RELAXED_ORDERING)
ROW(pieces_in_order, pieces, .env = ENV("FAKE_IBV_PIECE_US", "300@7"))
ROW(atomic_comes_after_data, atomic_after_data, .env = ENV("FAKE_IBV_PIECE_US", "300"),
    .access = IBV_ACCESS_RELAXED_ORDERING)
ROW(parked_until_a_read, parked, .env = ENV("FAKE_IBV_ORDERING", "none-all", "FAKE_IBV_PARK_US", "600000000"))
ROW(parked_device_memory, parked_device, .env = ENV("FAKE_IBV_ORDERING", "none", "FAKE_IBV_PARK_US", "600000000"))
ROW(parked_for_a_time, parked_for_a_time, .env = ENV("FAKE_IBV_ORDERING", "none-all", "FAKE_IBV_PARK_US", "20000"))
ROW(source_read_late, late_source, .env = ENV("FAKE_IBV_LATE_READ_US", "5000@3"))
ROW(completions_in_any_order, any_order, .env = ENV("FAKE_IBV_CQ_DELAY_US", "2000"))
ROW(completions_in_batches, batches, .env = ENV("FAKE_IBV_CQ_PERIOD_US", "5000"))
ROW(send_queue_full, send_queue_full, .send_wr = 8)
ROW(recv_queue_full, recv_queue_full, .recv_wr = 8)
ROW(cq_overrun, cq_overrun, .cqe = 4)
ROW(completion_channel, channels, .channel = true)
ROW(completion_channel_unsolicited, channels_unsolicited, .channel = true)
ROW(events_of_the_dead, events_of_the_dead, .channel = true)
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
static void test_race_with_arrival(void **state)
{
	pair_run(PAIR_THREADS, &(struct pair_options){ .status = TSAN_FOUND }, reads_before_signal);
}

static void test_race_with_source(void **state)
{
	pair_run(PAIR_THREADS, &(struct pair_options){ .status = TSAN_FOUND }, writes_before_completion);
}
#endif

/* A line of the variable itself, that acts again and again, on one host after the other. */
static void test_again_and_again(void **state)
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

static void test_killed_by_script(void **state)
{
	write_script("at=30 link=host1:mlx0 action=kill");
	pair_run(PAIR_PROCESSES, &(struct pair_options){ .env = ENV("FAKE_IBV_FAULTS", script, QUICK), .dies = true },
	    killed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_write_roce),
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_read_one_at_a_time),
		cmocka_unit_test(test_send),
		cmocka_unit_test(test_atomic),
		cmocka_unit_test(test_atomic_global),
		cmocka_unit_test(test_inline),
		cmocka_unit_test(test_fence),
		cmocka_unit_test(test_write_routed),
		cmocka_unit_test(test_port_not_active),
		cmocka_unit_test(test_pieces_relaxed),
		cmocka_unit_test(test_pieces_in_order),
		cmocka_unit_test(test_atomic_comes_after_data),
		cmocka_unit_test(test_parked_until_a_read),
		cmocka_unit_test(test_parked_device_memory),
		cmocka_unit_test(test_parked_for_a_time),
		cmocka_unit_test(test_source_read_late),
		cmocka_unit_test(test_completions_in_any_order),
		cmocka_unit_test(test_completions_in_batches),
		cmocka_unit_test(test_send_queue_full),
		cmocka_unit_test(test_recv_queue_full),
		cmocka_unit_test(test_cq_overrun),
		cmocka_unit_test(test_completion_channel),
		cmocka_unit_test(test_completion_channel_unsolicited),
		cmocka_unit_test(test_events_of_the_dead),
		cmocka_unit_test(test_rnr_waits),
		cmocka_unit_test(test_rnr_ends),
		cmocka_unit_test(test_rnr_without_retry),
		cmocka_unit_test(test_rnr_at_random),
		cmocka_unit_test(test_bad_key),
		cmocka_unit_test(test_out_of_bounds),
		cmocka_unit_test(test_no_access),
		cmocka_unit_test(test_access_error_at_random),
		cmocka_unit_test(test_other_domain),
		cmocka_unit_test(test_local_key),
		cmocka_unit_test(test_receive_too_short),
		cmocka_unit_test(test_no_atomics),
		cmocka_unit_test(test_unaligned_atomic),
		cmocka_unit_test(test_too_many_reads),
		cmocka_unit_test(test_losses),
		cmocka_unit_test(test_losses_and_pieces),
		cmocka_unit_test(test_drop),
		cmocka_unit_test(test_flap),
		cmocka_unit_test(test_down),
		cmocka_unit_test(test_corrupt_status),
		cmocka_unit_test(test_stall),
		cmocka_unit_test(test_gid_change),
		cmocka_unit_test(test_fatal),
		cmocka_unit_test(test_peer_dies),
		cmocka_unit_test(test_again_and_again),
		cmocka_unit_test(test_killed_by_script),
		cmocka_unit_test(test_wrong_gid),
		cmocka_unit_test(test_wrong_gid_type),
		cmocka_unit_test(test_wrong_pkey),
		cmocka_unit_test(test_wrong_service_level),
		cmocka_unit_test(test_mtu_mismatch),
		cmocka_unit_test(test_link_of_smaller_mtu),
#ifdef __SANITIZE_THREAD__
		cmocka_unit_test(test_race_with_arrival),
		cmocka_unit_test(test_race_with_source),
#endif
	};
	int fd = mkstemp(script), failed;

	if (fd < 0)
		return 1;
	close(fd);
	alarm(600); /* no wait without an end */
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(script);
	return failed;
}

/* SPDX-License-Identifier: MIT */
#include "pair.h"
#include "tests/support/pause.h"
#include "tests/support/unit.h"

_Noreturn void pair_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
	fflush(NULL);
	_exit(1);
}

static void set_environment(const char *const *env)
{
	for (; env && env[0]; env += 2)
		setenv(env[0], env[1], 1);
}

int pair_fork(const char *const *env, void (*body)(void *arg), void *arg)
{
	pid_t child;

	fflush(NULL);
	child = child_fork();
	assert_true(child >= 0);
	if (!child) {
		set_environment(env);
		body(arg);
		child_exit(0);
	}
	return child;
}

int pair_wait(int process)
{
	int status;

	assert_int_equal(waitpid(process, &status, 0), process);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void call(void *arg)
{
	void (*body)(void) = *(void (**)(void))arg;

	body();
}

int pair_alone(const char *const *env, void (*body)(void))
{
	return pair_wait(pair_fork(env, call, &body));
}

void pair_synchronize(struct pair_side *s)
{
	int64_t end = unit_now_ms() + PAIR_WAIT_MS;
	int step;

	if (s->send_cq)
		CHECK(ibv_poll_cq(s->send_cq, 0, NULL) ==
		    0); /* fake.h: tells ThreadSanitizer that what follows is later */
	step = atomic_fetch_add(&s->shared->steps[s->me], 1) + 1;
	while (atomic_load(&s->shared->steps[!s->me]) < step) {
		CHECK(unit_now_ms() < end);
		pause_us(PAUSE_POLL, 100);
	}
}

void pair_await_step(_Atomic uint64_t *at, uint64_t value)
{
	int64_t end = unit_now_ms() + PAIR_WAIT_MS;

	while (atomic_load(at) < value) {
		CHECK(unit_now_ms() < end);
		pause_us(PAUSE_POLL, 100);
	}
}

struct ibv_wc pair_poll(struct ibv_cq *cq)
{
	int64_t end = unit_now_ms() + PAIR_WAIT_MS;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc))) {
		CHECK(unit_now_ms() < end);
		pause_us(PAUSE_POLL, 20);
	}
	CHECK(n == 1);
	return wc;
}

struct ibv_wc pair_poll_ok(struct ibv_cq *cq)
{
	struct ibv_wc wc = pair_poll(cq);

	if (wc.status != IBV_WC_SUCCESS)
		pair_failed(__FILE__, __LINE__, ibv_wc_status_str(wc.status));
	return wc;
}

bool pair_poll_none(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	return !ibv_poll_cq(cq, 1, &wc);
}

uint64_t pair_word(const char *at)
{
	return __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE);
}

void pair_await(const char *at, uint64_t value)
{
	int64_t end = unit_now_ms() + PAIR_WAIT_MS;

	while (pair_word(at) != value) {
		CHECK(unit_now_ms() < end);
		pause_us(PAUSE_POLL, 20);
	}
}

struct ibv_async_event pair_event(struct pair_side *s)
{
	struct pollfd p = { s->context->async_fd, POLLIN, 0 };
	struct ibv_async_event e;

	CHECK(poll(&p, 1, PAIR_WAIT_MS) == 1);
	CHECK(!ibv_get_async_event(s->context, &e));
	ibv_ack_async_event(&e);
	return e;
}

static unsigned access_of(const struct pair_options *o)
{
	return o->strict ? o->access :
	                   o->access | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	        IBV_ACCESS_REMOTE_ATOMIC;
}

struct ibv_qp *pair_qp(struct pair_side *s, struct ibv_pd *pd)
{
	const struct pair_options *o = s->o;
	struct ibv_qp_init_attr init = { .send_cq = s->send_cq,
		.recv_cq = s->recv_cq,
		.cap = { .max_send_wr = o->send_wr ? o->send_wr : 64,
		    .max_recv_wr = o->recv_wr ? o->recv_wr : 64,
		    .max_send_sge = 4,
		    .max_recv_sge = 4,
		    .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(init.cap.max_inline_data >= 64);
	return qp;
}

void pair_describe(struct pair_side *s, struct ibv_qp *qp, struct pair_info *info)
{
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(s->context, 1, &port));
	CHECK(!ibv_query_gid(s->context, 1, s->o->gid_index[s->me], &info->gid));
	info->qpn = qp->qp_num;
	info->psn = (uint32_t)(qp->qp_num * 77 + 5) & 0xffffff;
	info->lid = port.lid;
	info->rkey = s->mr->rkey;
	info->address = (uintptr_t)s->memory;
}

static void fill_rtr(struct pair_side *s, const struct pair_info *peer, struct ibv_qp_attr *a)
{
	const struct pair_options *o = s->o;
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(s->context, 1, &port));
	*a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
		.path_mtu = o->mtu[s->me] ? o->mtu[s->me] : IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = o->reads[s->me] ? o->reads[s->me] : 16,
		.min_rnr_timer = o->min_rnr ? o->min_rnr : 1,
		.ah_attr = { .dlid = peer->lid, .sl = o->sl, .port_num = 1 } };
	a->ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET || o->gid_index[s->me];
	a->ah_attr.grh.dgid = peer->gid;
	a->ah_attr.grh.sgid_index = (uint8_t)o->gid_index[s->me];
	a->ah_attr.grh.hop_limit = 255;
	if (o->wrong_gid && s->me == 0)
		a->ah_attr.grh.dgid.raw[15] ^= 0x40;
}

int pair_connect(struct pair_side *s, struct ibv_qp *qp, const struct pair_info *peer)
{
	const struct pair_options *o = s->o;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access_of(o) };
	int err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	if (err)
		return err;
	fill_rtr(s, peer, &a);
	err = ibv_modify_qp(qp, &a,
	    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	        IBV_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
		.sq_psn = (uint32_t)(qp->qp_num * 77 + 5) & 0xffffff,
		.timeout = o->timeout ? o->timeout : 14,
		.retry_cnt = o->no_retry ? 0 :
		    o->retry             ? o->retry :
		                           7,
		.rnr_retry = o->no_rnr_retry ? 0 :
		    o->rnr_retry             ? o->rnr_retry :
		                               7,
		.max_rd_atomic = o->reads[s->me] ? o->reads[s->me] : 16 };
	return ibv_modify_qp(qp, &a,
	    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	        IBV_QP_MAX_QP_RD_ATOMIC);
}

static void open_side(struct pair_side *s)
{
	int n = 0, cqe = s->o->cqe ? s->o->cqe : 256;

	s->list = ibv_get_device_list(&n);
	CHECK(s->list && n > 0);
	s->context = ibv_open_device(s->list[0]);
	CHECK(s->context);
	s->pd = ibv_alloc_pd(s->context);
	CHECK(s->pd);
	if (s->o->channel) {
		s->channel = ibv_create_comp_channel(s->context);
		CHECK(s->channel);
	}
	s->send_cq = ibv_create_cq(s->context, cqe, s, s->channel, 0);
	s->recv_cq = ibv_create_cq(s->context, cqe, s, s->channel, 0);
	CHECK(s->send_cq && s->recv_cq);
	s->memory = mmap(NULL, PAIR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(s->memory != MAP_FAILED);
	s->mr = ibv_reg_mr(s->pd, s->memory, PAIR_BYTES, (int)access_of(s->o));
	CHECK(s->mr);
	s->qp = pair_qp(s, s->pd);
	pair_describe(s, s->qp, &s->shared->info[s->me]);
	pair_synchronize(s);
	s->peer = s->shared->info[!s->me];
	CHECK(!pair_connect(s, s->qp, &s->peer));
	pair_synchronize(s);
}

static void close_side(struct pair_side *s)
{
	pair_synchronize(s);
	CHECK(!ibv_destroy_qp(s->qp));
	CHECK(!ibv_dereg_mr(s->mr));
	CHECK(!ibv_destroy_cq(s->send_cq));
	s->send_cq = NULL;
	CHECK(!ibv_destroy_cq(s->recv_cq));
	CHECK(!s->channel || !ibv_destroy_comp_channel(s->channel));
	CHECK(!ibv_dealloc_pd(s->pd));
	CHECK(!ibv_close_device(s->context));
	ibv_free_device_list(s->list);
	munmap(s->memory, PAIR_BYTES);
}

struct job {
	struct pair_side side;
	void (*body)(struct pair_side *s);
};

static void run_side(void *arg)
{
	struct job *j = arg;

	open_side(&j->side);
	j->body(&j->side);
	close_side(&j->side);
}

static void *run_thread(void *arg)
{
	run_side(arg);
	return NULL;
}

/* Both sides are of one host, and of one device list. */
static void run_threads(void *arg)
{
	struct job *jobs = arg;
	pthread_t thread;

	if (jobs[0].side.o->status)
		CHECK(freopen("/dev/null", "w", stderr));
	setenv("FAKE_IBV_DEVICES", jobs[0].side.o->devices[0] ? jobs[0].side.o->devices[0] : "mlx0", 1);
	CHECK(!pthread_create(&thread, NULL, run_thread, &jobs[1]));
	run_side(&jobs[0]);
	pthread_join(thread, NULL);
}

static void run_process(void *arg)
{
	struct job *j = arg;
	const char *devices = j->side.o->devices[j->side.me];

	setenv("FAKE_IBV_DEVICES", devices ? devices : "mlx0", 1);
	setenv("FAKE_IBV_HOST", j->side.me ? "host1" : "host0", 1);
	run_side(j);
}

void pair_run(enum pair_mode mode, const struct pair_options *o, void (*body)(struct pair_side *s))
{
	struct pair_shared *shared =
	    mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct job jobs[2];
	char path[] = "/dev/shm/fake_ibv_test.XXXXXX";
	int fd = mkstemp(path), err[2] = { 0, 0 };

	assert_true(shared != MAP_FAILED && fd >= 0);
	close(fd);
	setenv("FAKE_IBV_FABRIC", path, 1);
	for (int i = 0; i < 2; i++)
		jobs[i] = (struct job){ { .me = i, .o = o, .shared = shared }, body };
	if (mode == PAIR_THREADS) {
		err[0] = pair_wait(pair_fork(o->env, run_threads, jobs));
	} else {
		int a = pair_fork(o->env, run_process, &jobs[0]), b = pair_fork(o->env, run_process, &jobs[1]);

		err[0] = pair_wait(a);
		if (err[0])
			kill(b, SIGKILL); /* it would wait for the other side */
		err[1] = pair_wait(b);
	}
	unlink(path);
	munmap(shared, sizeof(*shared));
	assert_int_equal(err[0], o->status);
	assert_int_equal(err[1], o->dies ? -SIGKILL : 0);
}

int pair_post(struct pair_side *s, enum ibv_wr_opcode op, uint64_t id, struct pair_span span, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)s->memory + span.at, span.bytes, s->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id,
		.sg_list = &sge,
		.num_sge = span.bytes ? 1 : 0,
		.opcode = op,
		.send_flags = (flags & ~PAIR_UNSIGNALED) | (flags & PAIR_UNSIGNALED ? 0 : IBV_SEND_SIGNALED),
		.imm_data = htobe32((uint32_t)id) },
	                   *bad;

	wr.wr.rdma.remote_addr = s->peer.address + span.to;
	wr.wr.rdma.rkey = s->peer.rkey;
	return ibv_post_send(s->qp, &wr, &bad);
}

void pair_send(struct pair_side *s, enum ibv_wr_opcode op, uint64_t id, struct pair_span span)
{
	struct ibv_wc wc;

	CHECK(!pair_post(s, op, id, span, 0));
	wc = pair_poll_ok(s->send_cq);
	CHECK(wc.wr_id == id);
}

int pair_receive(struct pair_side *s, uint64_t id, uint32_t at, uint32_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)s->memory + at, bytes, s->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = bytes ? 1 : 0 }, *bad;

	return ibv_post_recv(s->qp, &wr, &bad);
}

/* Signaled. */
static int post_atomic(struct pair_side *s, struct ibv_send_wr *wr, uint32_t at, uint32_t to)
{
	struct ibv_sge sge = { (uintptr_t)s->memory + at, 8, s->mr->lkey };
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->wr.atomic.remote_addr = s->peer.address + to;
	wr->wr.atomic.rkey = s->peer.rkey;
	return ibv_post_send(s->qp, wr, &bad);
}

int pair_add(struct pair_side *s, uint64_t id, uint32_t at, uint32_t to, uint64_t what)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };

	wr.wr.atomic.compare_add = what;
	return post_atomic(s, &wr, at, to);
}

int pair_swap(struct pair_side *s, uint64_t id, uint32_t at, uint32_t to, uint64_t compare, uint64_t with)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP };

	wr.wr.atomic.compare_add = compare;
	wr.wr.atomic.swap = with;
	return post_atomic(s, &wr, at, to);
}

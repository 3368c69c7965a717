/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Two sides with a connected QP each, as two threads of a process or as two processes. The environment is read once in
 * a process, so each run is in processes of its own; a CHECK that fails ends its process, and then the test.
 */
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { PAIR_BYTES = 65536, PAIR_WAIT_MS = 60000 };
enum pair_mode { PAIR_THREADS, PAIR_PROCESSES };

struct pair_info {
	uint32_t qpn, psn, rkey;
	uint16_t lid;
	union ibv_gid gid;
	uint64_t address;
};

struct pair_shared {
	_Atomic int steps[2];
	_Atomic uint64_t words[8]; /* as a test likes */
	struct pair_info info[2];
};

/* What a test wants otherwise: 0 is the value in parentheses. */
struct pair_options {
	const char *const *env;    /* NAME, VALUE, ..., NULL: of both sides; a side's host is host0 or host1 */
	const char *devices[2];    /* FAKE_IBV_DEVICES ("mlx0") */
	unsigned access;           /* of MR and QP (all) */
	bool strict;               /* access is meant as it is */
	uint32_t send_wr, recv_wr; /* (64) */
	int cqe;                   /* (256) */
	uint8_t timeout, retry, rnr_retry, min_rnr; /* (14, 7, 7, 1) */
	bool no_rnr_retry, no_retry;                /* 0 is meant */
	enum ibv_mtu mtu[2];                        /* (1024) */
	int gid_index[2];                           /* (0); is global on RoCE or if not 0 */
	uint8_t reads[2];                           /* in flight as requester and responder (16) */
	bool wrong_gid;                             /* side 0 is given an address that nobody has */
	bool channel;                               /* CQs have a completion channel */
	uint8_t sl;
	int status; /* of the process with threads, if it shall end with another than 0; its stderr is dropped */
	bool dies;  /* side 1 is killed in the course of the test */
};

struct pair_side {
	int me;
	const struct pair_options *o;
	struct pair_shared *shared;
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory; /* PAIR_BYTES, registered */
	struct pair_info peer;
};

#define CHECK(x) ((x) ? (void)0 : pair_failed(__FILE__, __LINE__, #x))
_Noreturn void pair_failed(const char *file, int line, const char *what);

/* Runs the body on both sides; asserts (cmocka) that both came to their ends. */
void pair_run(enum pair_mode mode, const struct pair_options *o, void (*body)(struct pair_side *s));
/* Runs a body in a process of its own with an environment. Its exit status, or -signal. */
int pair_alone(const char *const *env, void (*body)(void));
int pair_fork(const char *const *env, void (*body)(void *arg), void *arg); /* the process */
int pair_wait(int process);                                                /* its exit status, or -signal */

/* Both sides have come here. */
void pair_synchronize(struct pair_side *s);
/* To RTS with the peer's address. 0 or errno of ibv_modify_qp(). */
int pair_connect(struct pair_side *s, struct ibv_qp *qp, const struct pair_info *peer);
struct ibv_qp *pair_qp(struct pair_side *s, struct ibv_pd *pd);
void pair_describe(struct pair_side *s, struct ibv_qp *qp, struct pair_info *info_p);

/* One completion; waits, with an end. */
struct ibv_wc pair_poll(struct ibv_cq *cq);
struct ibv_wc pair_poll_ok(struct ibv_cq *cq);
bool pair_poll_none(struct ibv_cq *cq);
/* Waits until a word of memory is this. */
void pair_await(const char *at, uint64_t value);
uint64_t pair_word(const char *at);
void pair_await_step(_Atomic uint64_t *at, uint64_t value);
/* The next asynchronous event, acknowledged. */
struct ibv_async_event pair_event(struct pair_side *s);

/* Of this side's memory at `at` for the peer's at `to`. */
struct pair_span {
	uint32_t at, to, bytes;
};
#define SPAN(...) ((struct pair_span){ __VA_ARGS__ })

/* Requests; signaled unless flags has PAIR_UNSIGNALED. */
enum { PAIR_UNSIGNALED = 1u << 30 };
int pair_post(struct pair_side *s, enum ibv_wr_opcode op, uint64_t id, struct pair_span span, unsigned flags);
void pair_send(struct pair_side *s, enum ibv_wr_opcode op, uint64_t id, struct pair_span span); /* and its completion */
int pair_receive(struct pair_side *s, uint64_t id, uint32_t at, uint32_t bytes);
int pair_add(struct pair_side *s, uint64_t id, uint32_t at, uint32_t to, uint64_t what);
int pair_swap(struct pair_side *s, uint64_t id, uint32_t at, uint32_t to, uint64_t compare, uint64_t with);

/* SPDX-License-Identifier: MIT */
/* A member's side of a join: it proves its knowledge of the key to the root, and waits for the outcome. */
#include "transport/rendezvous/join_member.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include "transport/rendezvous/address.h"
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/rendezvous/wire/wait.h"
#include "transport/rendezvous/wire/wire.h"

static const char *who(const struct rdzv_ask *ask)
{
	return ask->who ? ask->who : "the root";
}

/* For the log: where ranks are those of a host, or hosts, the rank among all. */
static int own_rank(const struct rdzv_ask *ask)
{
	return ask->rdzv ? rdzv_own(ask->rdzv) : ask->rank;
}

/* The cause of a failure, to where the ask wants it. */
static SHUNT_LOG_PRINTF(2, 3) void say(const struct rdzv_ask *ask, const char *fmt, ...)
{
	char text[RDZV_WHY_BYTES];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (ask->rdzv)
		rdzv_because(ask->rdzv, "%s", text);
	else
		shunt_error("%s failed: %s", ask->what, text);
}

/* Waits until fd can be read, and logs what it waits for, if anything. */
static int await(int fd, const struct rdzv_ask *ask, const char *what, int64_t deadline)
{
	struct rdzv_wait_log wait_log = rdzv_wait_log_begin();
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	int64_t next_check = 0;
	int err;

	while ((err = rdzv_poll(&pfd, 1, &next_check,
	            what && wait_log.next_log < deadline ? wait_log.next_log : deadline, ask->cancel)) == -ETIMEDOUT &&
	    shunt_now_ms() < deadline)
		rdzv_wait_log_say(&wait_log, what);
	return err < 0 ? err : 0;
}

/* Of a connection that broke. A reset is no word of the root: it may have had no place, or no connection at all. */
static int broken(const struct rdzv_ask *ask, int error)
{
	if (ask->said_hello && rdzv_may_call_again(-error))
		return -EAGAIN;
	return error == ECONNRESET ? -ECONNRESET : shunt_io_error(error);
}

static int read_some(int fd, void *buf, size_t bytes, const struct rdzv_ask *ask, int64_t deadline)
{
	char *p = buf;

	while (bytes) {
		int err = await(fd, ask, NULL, deadline);
		ssize_t n;

		if (err)
			return err;
		n = recv(fd, p, bytes, MSG_DONTWAIT);
		if (!n)
			return -EOWNERDEAD;
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return broken(ask, errno);
		if (n > 0) {
			p += n;
			bytes -= (size_t)n;
		}
	}
	return 0;
}

static int read_challenge(int fd, const struct rdzv_ask *ask, struct rdzv_challenge *challenge)
{
	int err = await(fd, ask, ask->root, ask->challenge_deadline);

	if (err == -ETIMEDOUT && ask->root)
		say(ask, "%s says nothing: it has not come, or is stopped; SHUNT_TIMEOUT limits this wait", who(ask));
	if (!err)
		err = read_some(fd, challenge, sizeof(*challenge), ask,
		    ask->root ? shunt_deadline_ms(shunt_config()->setup_timeout) : ask->challenge_deadline);
	if (!err && !rdzv_head_is(&challenge->head, RDZV_CHALLENGE)) {
		err = -EPROTO;
		if (!ask->calls_again)
			say(ask, "something else than Shunt, or another version of it, answers for %s", who(ask));
	}
	return err;
}

static int say_hello(int fd, struct rdzv_ask *ask, const struct rdzv_challenge *challenge, struct rdzv_hello *hello)
{
	int err = rdzv_hello_init(hello, RDZV_HELLO, ask->key);

	if (err)
		return err;
	hello->member = ask->member;
	hello->nmembers = ask->nmembers;
	hello->rank = ask->rank;
	hello->nranks = ask->nranks;
	hello->caller = ask->caller;
	rdzv_hello_sign(hello, ask->key, challenge->nonce);
	err = shunt_io_write(fd, hello, sizeof(*hello), shunt_deadline_ms(shunt_config()->setup_timeout), ask->cancel);
	ask->said_hello = true;
	return err == -EOWNERDEAD ? 0 : err; /* a message that the root sent before it closed can still be read */
}

static int read_rows(int fd, const struct rdzv_ask *ask, const struct rdzv_hello *hello,
    const struct rdzv_answer *answer, struct shunt_rendezvous_row **rows_p)
{
	struct shunt_rendezvous_row *rows;
	int err;

	if (answer->nrows != (uint32_t)ask->nranks)
		return -EPROTO;
	rows = calloc(answer->nrows, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	err = read_some(fd, rows, answer->nrows * sizeof(*rows), ask, shunt_deadline_ms(shunt_config()->setup_timeout));
	if (!err &&
	    (!rdzv_rows_prove(answer, rows, ask->key, hello->nonce) || rows[ask->rank].member != ask->member ||
	        rows[ask->rank].pid != hello->pid))
		err = -EPROTO;
	if (err) {
		free(rows);
		return err;
	}
	*rows_p = rows;
	return 0;
}

/* One answer. 1: the outcome is still open. */
static int read_answer(
    int fd, struct rdzv_ask *ask, const struct rdzv_hello *hello, struct shunt_rendezvous_row **rows_p)
{
	struct rdzv_answer answer;
	int err = read_some(fd, &answer.head, sizeof(answer.head), ask, ask->deadline);

	if (!err && rdzv_head_is(&answer.head, RDZV_BUSY))
		return -EAGAIN;
	if (!err)
		err = read_some(fd, &answer.head + 1, sizeof(answer) - sizeof(answer.head), ask, ask->deadline);
	if (err == -ETIMEDOUT && !ask->calls_again)
		say(ask, "%s says nothing (stopped?), and rank %d gave up", who(ask), own_rank(ask));
	if (err == -EOWNERDEAD && !ask->calls_again)
		say(ask, "%s has ended, or refused rank %d", who(ask), own_rank(ask));
	if (err)
		return err;
	ask->answered = rdzv_answer_proves(&answer, ask->key, hello->nonce);
	if (!ask->answered && !ask->calls_again)
		say(ask, "%s gave an answer that Shunt's would not give", who(ask));
	if (!ask->answered)
		return -EPROTO;
	answer.text[sizeof(answer.text) - 1] = '\0';
	if (answer.head.kind == RDZV_WAIT) {
		shunt_warn("rank %d waits for the other ranks: %s", own_rank(ask), answer.text);
		return 1;
	}
	ask->told = true;
	if (answer.status)
		say(ask, "%s", answer.text);
	return answer.status ? answer.status : read_rows(fd, ask, hello, &answer, rows_p);
}

int rdzv_member_join(int fd, struct rdzv_ask *ask, struct shunt_rendezvous_row **rows_p)
{
	struct rdzv_challenge challenge;
	struct rdzv_hello hello;
	int err = 0;

	ask->said_hello = false;
	while (!err && !ask->caller)
		err = shunt_random(&ask->caller, sizeof(ask->caller));
	if (!err)
		err = read_challenge(fd, ask, &challenge);
	if (!err)
		err = say_hello(fd, ask, &challenge, &hello);
	if (err)
		return err;
	do
		err = read_answer(fd, ask, &hello, rows_p);
	while (err > 0);
	if (!err)
		rdzv_session(ask->session, ask->key, challenge.nonce, hello.nonce);
	return err;
}

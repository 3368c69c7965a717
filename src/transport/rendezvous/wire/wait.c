/* SPDX-License-Identifier: MIT */
/* Deadlines of waits for members, and log lines meanwhile. */
#include "transport/rendezvous/wire/wait.h"
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"

#define FIRST_LOG_MS 30000

struct rdzv_wait_log rdzv_wait_log_begin(void)
{
	return (struct rdzv_wait_log){ shunt_now_ms() + FIRST_LOG_MS, FIRST_LOG_MS };
}

bool rdzv_wait_log_due(struct rdzv_wait_log *p)
{
	int64_t now = shunt_now_ms();

	if (now < p->next_log)
		return false;
	p->step *= 2;
	p->next_log = now + p->step;
	return true;
}

void rdzv_wait_log_say(struct rdzv_wait_log *p, const char *what)
{
	int64_t waited = p->step;

	if (rdzv_wait_log_due(p))
		shunt_warn("communicator set-up has been waiting %lld s for %s", (long long)(waited / 1000), what);
}

int64_t rdzv_member_deadline(int64_t timeout_ms)
{
	int64_t setup_timeout = shunt_config()->setup_timeout;

	if (timeout_ms <= 0 || setup_timeout <= 0)
		return SHUNT_NEVER;
	return shunt_deadline_ms(timeout_ms + setup_timeout);
}

/* SPDX-License-Identifier: MIT */
/* Deadlines of waits for members, and log lines meanwhile. */
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "transport/rendezvous/priv.h"

#define FIRST_LOG_MS 30000

struct rdzv_wait_log shunt_rendezvous_wait_log(void)
{
	return (struct rdzv_wait_log){ shunt_now_ms() + FIRST_LOG_MS, FIRST_LOG_MS };
}

void shunt_rendezvous_log_waiting(struct rdzv_wait_log *p, const char *what)
{
	int64_t now = shunt_now_ms();

	if (now < p->next_log)
		return;
	shunt_warn("communicator set-up has been waiting %lld s for %s", (long long)(p->step / 1000), what);
	p->next_log = now + p->step;
	p->step *= 2;
}

int64_t shunt_rendezvous_join_deadline(bool is_root)
{
	const struct shunt_config *config = shunt_config();

	if (config->timeout <= 0 || config->setup_timeout <= 0)
		return is_root ? shunt_deadline_ms(config->timeout) : SHUNT_NEVER;
	return shunt_deadline_ms(config->timeout + (is_root ? 0 : config->setup_timeout));
}

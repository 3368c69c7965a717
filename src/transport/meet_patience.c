/* SPDX-License-Identifier: MIT */
/* How long members are waited for, and what the log says meanwhile. */
#include "core/config.h"
#include "core/io.h"
#include "core/log.h"
#include "transport/meet_priv.h"

#define FIRST_LOG_MS 30000

struct meet_patience shunt_meet_patience(void)
{
	return (struct meet_patience){ shunt_now_ms() + FIRST_LOG_MS, FIRST_LOG_MS };
}

void shunt_meet_still_waiting(struct meet_patience *p, const char *what)
{
	int64_t now = shunt_now_ms();

	if (now < p->next_log)
		return;
	shunt_warn("communicator set-up has been waiting %lld s for %s", (long long)(p->step / 1000), what);
	p->next_log = now + p->step;
	p->step *= 2;
}

int64_t shunt_meet_join_deadline(bool hub)
{
	const struct shunt_config *config = shunt_config();

	if (config->timeout <= 0 || config->setup_timeout <= 0)
		return hub ? shunt_deadline_ms(config->timeout) : SHUNT_NEVER;
	return shunt_deadline_ms(config->timeout + (hub ? 0 : config->setup_timeout));
}

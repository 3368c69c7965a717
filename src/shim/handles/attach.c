/* SPDX-License-Identifier: MIT */
#include "shim/handles/attach.h"
#include "base/log.h"

struct shunt_entry *shunt_attach(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config)
{
	struct shunt_comm_desc d = *desc;
	struct shunt_comm *comm;
	struct shunt_entry *e;

	d.max_ctas = config->max_ctas;
	d.no_sms = config->no_sms;
	d.few_ctas = config->few_ctas;
	d.no_clusters = config->no_clusters;
	d.nvls_off = config->nvls_off;
	if (shunt_comm_create(&d, &comm))
		return NULL;
	e = shunt_entry_create(comm);
	if (!e)
		return NULL;
	e->id = d.id;
	e->forward_reason = d.forward_reason;
	e->config = *config;
	if (config->name[0])
		shunt_info(
		    SHUNT_LOG_INIT, "communicator %s is the program's %s", shunt_id_text(d.id.b).s, config->name);
	if (d.rank >= 0 && d.nranks > 0 && d.device >= 0)
		shunt_life_locate(&e->life);
	return e;
}

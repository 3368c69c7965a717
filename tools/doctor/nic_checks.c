/* SPDX-License-Identifier: MIT */
/* The network devices that could carry data between hosts, of each provider, or why there are none. */
#include "tools/common/libc.h"
#include "base/config.h"
#include "tools/common/nics.h"
#include "tools/doctor/doctor.h"
#include "transport/net/tcp/tcp.h"

static const char topic[] = "host";

static void check_tcp(struct findings *f)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	int n = shunt_net_tcp_ops.devices(info, SHUNT_NET_MAX_DEVICES);
	char text[256];

	for (int i = 0; i < n; i++) {
		tool_interface_show(&info[i], text, sizeof(text));
		finding_add(f, i ? FINDING_INFO : FINDING_OK, topic, "", "tcp: %s%s", text,
		    i ? "; not used, it is not the first" : "");
	}
}

/* Without RDMA there is tcp; a library or a NIC that was asked for and cannot be used is worth a warning. */
static void check_none(struct findings *f, const struct shunt_verbs_look *look)
{
	enum shunt_net_choice choice = shunt_config()->net;
	bool asked = *shunt_config()->ibv_lib || choice == SHUNT_NET_VERBS || look->nleft_out;

	finding_add(f, asked && !shunt_nccl_env()->ib_disable ? FINDING_WARN : FINDING_INFO, topic,
	    shunt_nccl_env()->ib_disable ? "" :
	        look->nleft_out          ? "ibv_devinfo shows the state of ports" :
	                          "for NICs with RDMA: apt-get install libibverbs1 ibverbs-providers; in a container "
	                          "--device=/dev/infiniband",
	    "no RDMA (verbs): %s", look->none);
}

static void check_port(
    struct findings *f, const struct shunt_verbs_look *look, int i, const struct tool_gpus *gpus, size_t bytes)
{
	const struct shunt_verbs_port *port = &look->ports[i];
	char text[512];

	tool_nic_show(look, i, gpus, text, sizeof(text));
	if (!port->fails)
		finding_add(f, FINDING_OK, topic, "", "verbs: %s", text);
	else if (port->err == -ENOMEM || port->err == -EAGAIN)
		finding_add(f, FINDING_WARN, topic,
		    "ulimit -l unlimited; docker run --ulimit memlock=-1; with Slurm srun --propagate=MEMLOCK",
		    "verbs: %s: %zu MB, which a communicator may need, cannot be registered: the limit of locked "
		    "memory is too small",
		    text, bytes >> 20);
	else
		finding_add(f, FINDING_WARN, topic,
		    port->err == -EADDRNOTAVAIL ?
		        "show_gids lists the addresses; SHUNT_IB_GID_INDEX and NCCL_IB_ADDR_FAMILY choose" :
		        "look at ibv_devinfo, and at dmesg",
		    "verbs: %s cannot %s: %s", text, port->fails, strerror(-port->err));
}

void doctor_nics(struct findings *f)
{
	const size_t bytes = SHUNT_NET_MEMORY_MOST;
	struct shunt_verbs_look *look = malloc(sizeof(*look));
	struct tool_gpus gpus;

	check_tcp(f);
	if (!look || tool_gpus_find(&gpus)) {
		f->failed = true;
		free(look);
		return;
	}
	shunt_verbs_look(bytes, look);
	if (*look->none)
		check_none(f, look);
	for (int i = 0; i < look->n; i++)
		check_port(f, look, i, &gpus, bytes);
	for (int i = 0; i < look->nleft_out; i++)
		finding_add(f, FINDING_INFO, topic, "", "verbs: %s", look->left_out[i]);
	if (look->n && shunt_config()->net == SHUNT_NET_TCP)
		finding_add(f, FINDING_INFO, topic, "unset it for RDMA", "SHUNT_NET=tcp: NICs with RDMA are not used");
	free(gpus.at);
	free(look);
}
